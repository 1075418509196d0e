"""Files: read with a bound and named in every error; written whole, safe on the disk, and never through a link.

A file is made under a name that nobody else uses, exclusively and without following a link, and then takes its place.
Secrets are for their owner alone: they are written so, and one that others can read is refused.
"""

import errno
import os
import secrets
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

from penstock.errors import FailedError, LimitError, MalformedError, RefusedError, printable

#: for the owner alone; for everybody, less what the umask takes away
SECRET: Final = 0o600
PUBLIC: Final = 0o666

#: more than any bag of credentials within `TrustLimits` needs
MAX_BYTES: Final = 32 << 20


@contextmanager
def within(file: str) -> Iterator[None]:
    """Say in an error which file it is about."""
    try:
        yield
    except (MalformedError, RefusedError) as error:
        error.message = f"`{printable(file)}`: {error.message}"
        raise


def read_file(name: str, limit: int = MAX_BYTES) -> bytes:
    """Read a regular file; whatever else has a name may never end, or never begin.

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
    """Check that a file of a secret is for its owner alone; one of the superuser's may be for a group as well.

    Raises `RefusedError` (`file.exposed`). A file that is not there is for others to report.
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
    """Write a file that must not exist yet; return when it is safe on the disk.

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
    """Put a file in the place of another, as a whole; return when it is safe on the disk. It is for its owner alone.

    Raises `FailedError` (`file.unwritable`).
    """
    replace_file_by(path, (data,))


def replace_file_by(path: Path, parts: Iterable[bytes]) -> None:
    """Put a file in the place of another, as `replace_file` does, from parts that need not all be in memory.

    Raises `FailedError` (`file.unwritable`), and what making a part raises; the file is then as it was.
    """
    try:
        with replacing(path) as stream:
            stream.writelines(parts)
    except OSError as error:
        raise FailedError("file.unwritable", f"`{path}` cannot be written: {reason(error)}") from error


@contextmanager
def replacing(path: Path, mode: int = SECRET, check: Callable[[], None] = lambda: None) -> Iterator[BinaryIO]:
    """Write a file that takes the place of another when all of it is safe on the disk, and never where something fails.

    `check` is called before that. Raises what it raises, and `OSError`.
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
    """Write a file that nobody has made, with its mode from the first moment; `durable`, it is then safe on the disk.

    Raises `FileExistsError`, also for a link that leads nowhere, and other `OSError`; the file is gone then.
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


def sync_folder(folder: Path) -> None:
    """Make the names in a folder safe on the disk. Raises `OSError`."""
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
    # Not to wait: opening a pipe that nobody writes to would.
    handle = os.open(name, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    mode = os.fstat(handle).st_mode
    if stat.S_ISREG(mode):
        return handle
    os.close(handle)
    raise OSError(
        errno.EINVAL, "it is a folder" if stat.S_ISDIR(mode) else "it is not a regular file; `-` is standard input"
    )
