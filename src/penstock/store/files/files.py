"""Files: read with a size limit and named in every error; written atomically, synced, and never through a link.

A file is created under a unique temporary name, exclusively and without following a link, and then renamed.
Secrets are written so that only their owner can read them, and a secret that others can read is refused.
"""

import errno
import os
import secrets
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

from penstock.errors import FailedError, LimitError, MalformedError, RefusedError, printable

#: modes: readable by the owner only; readable by everybody, as far as the umask allows
SECRET: Final = 0o600
PUBLIC: Final = 0o666

#: more than any bag of credentials within `TrustLimits` needs
MAX_BYTES: Final = 32 << 20


@contextmanager
def within(file: str) -> Iterator[None]:
    """Put the file's name in front of an error's message."""
    try:
        yield
    except (MalformedError, RefusedError) as error:
        error.message = f"`{printable(file)}`: {error.message}"
        raise


def read_file(name: str, limit: int = MAX_BYTES) -> bytes:
    """Read a regular file. Anything else is refused: reading a pipe or a device may never end.

    Raises `FailedError` (`file.missing`, `file.unreadable`) and `LimitError` (`file.limit`).
    """
    try:
        if name == os.devnull:
            return b""
        with os.fdopen(_open_regular(name), "rb") as stream:
            data = stream.read(limit + 1)
    except FileNotFoundError:
        raise FailedError("file.missing", f"there is no file `{name}`", hint="check the path") from None
    except (OSError, ValueError) as error:
        raise unreadable(name, error) from None
    check_size(name, data, limit)
    return data


def check_secret(name: str | Path) -> None:
    """Check that only its owner can read a secret file; a group can read it too if root owns it.

    Raises `RefusedError` (`file.exposed`). A missing file is not reported here.
    """
    try:
        found = Path(name).stat()
    except (OSError, ValueError):
        return
    others = stat.S_IRWXO | (stat.S_IWGRP | stat.S_IXGRP if found.st_uid == 0 else stat.S_IRWXG)
    if os.name == "posix" and stat.S_ISREG(found.st_mode) and found.st_mode & others:
        raise RefusedError(
            "file.exposed",
            f"`{printable(str(name))}` holds a secret, and others can use it: its mode is"
            f" {stat.S_IMODE(found.st_mode):04o}",
            hint=f"run `chmod 600 {name}`, and make a new secret if others may have read this one",
        )


def create_file(path: Path, data: bytes, *, mode: int = SECRET) -> None:
    """Write a file that must not exist yet; return when it is synced to the disk.

    Raises `RefusedError` (`file.exists`) and `FailedError` (`file.unwritable`).
    """
    try:
        with new_file(path, mode) as stream:
            stream.write(data)
        sync_folder(path.parent)
    except FileExistsError:
        raise RefusedError("file.exists", f"`{path}` exists already", hint="choose another name") from None
    except (OSError, ValueError) as error:
        raise FailedError("file.unwritable", f"`{path}` cannot be written: {reason(error)}") from None


def replace_file(path: Path, data: bytes) -> None:
    """Replace a file atomically; return when it is synced. Only its owner can read it.

    Raises `FailedError` (`file.unwritable`).
    """
    replace_file_by(path, (data,))


def replace_file_by(path: Path, parts: Iterable[bytes]) -> None:
    """Replace a file as `replace_file` does, from parts that need not all be in memory.

    Raises `FailedError` (`file.unwritable`), and what making a part raises; the file is then unchanged.
    """
    try:
        with replacing(path) as stream:
            stream.writelines(parts)
    except OSError as error:
        raise FailedError("file.unwritable", f"`{path}` cannot be written: {reason(error)}") from error


@contextmanager
def replacing(path: Path, mode: int = SECRET, check: Callable[[], None] = lambda: None) -> Iterator[BinaryIO]:
    """Write a file that replaces another one as soon as all of it is synced, and not if anything fails.

    `check` is called before it is replaced. Raises what `check` raises, and `OSError`.
    """
    beside = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        with new_file(beside, mode) as stream:
            yield stream
        check()
        beside.replace(path)
        sync_folder(path.parent)
    finally:
        beside.unlink(missing_ok=True)


@contextmanager
def new_file(path: Path, mode: int = SECRET, *, durable: bool = True) -> Iterator[BinaryIO]:
    """Write a file that must not exist yet, with its mode from the beginning; `durable` syncs it to the disk.

    Raises `FileExistsError`, also for a dangling link, and other `OSError`; the file is then removed.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
    handle = os.open(path, flags, mode)
    try:
        with os.fdopen(handle, "wb") as stream:
            yield stream
            if durable:
                stream.flush()
                os.fsync(stream.fileno())
    except BaseException:
        path.unlink(missing_ok=True)
        raise


#: seconds to wait for another program, and between two attempts
WAIT: Final = 5.0
_LOOK: Final = 0.02


@contextmanager
def locked(file: str | Path, code: str) -> Iterator[None]:
    """Hold the lock of a file that programs read, change and write.

    Raises `FailedError` (`code` if another program holds it for too long, `file.unwritable`).
    """
    lock = Path(f"{file}.lock")
    patience = time.monotonic() + WAIT
    while True:
        try:
            os.close(os.open(lock, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
            break
        except FileExistsError:
            if time.monotonic() >= patience:
                raise FailedError(
                    code,
                    f"another program is changing `{file}`",
                    hint=f"try again; if none is running, remove `{lock}`",
                ) from None
            time.sleep(_LOOK)
        except (OSError, ValueError) as error:
            raise FailedError("file.unwritable", f"`{lock}` cannot be written: {reason(error)}") from None
    try:
        yield
    finally:
        lock.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Sync the names in a folder to the disk. Raises `OSError`."""
    found = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(found)
    finally:
        os.close(found)


def unreadable(name: str, error: OSError | ValueError) -> FailedError:
    """Return the error for a file that cannot be read."""
    return FailedError("file.unreadable", f"`{name}` cannot be read: {reason(error)}")


def check_size(name: str, data: bytes, limit: int = MAX_BYTES) -> None:
    """Raise `LimitError` (`file.limit`) if the data is too long."""
    if len(data) > limit:
        raise LimitError("file.limit", f"`{name}` has more than {limit} bytes")


def reason(error: OSError | ValueError) -> str:
    """Describe why a file could not be used."""
    return (error.strerror if isinstance(error, OSError) else None) or "it is not a usable path"


def _open_regular(name: str) -> int:
    # Opening a pipe that nobody writes to would block.
    handle = os.open(name, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    mode = os.fstat(handle).st_mode
    if stat.S_ISREG(mode):
        return handle
    os.close(handle)
    raise OSError(
        errno.EINVAL, "it is a folder" if stat.S_ISDIR(mode) else "it is not a regular file; `-` is standard input"
    )
