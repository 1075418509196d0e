"""Files that others wrote: regular ones only, bounded, and named in every error about them."""

import errno
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from penstock.errors import FailedError, LimitError, MalformedError, RefusedError, printable

#: more than any bag of credentials within `Limits` needs
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


def replace_file(path: Path, data: bytes) -> None:
    """Put a file in the place of another, as a whole; return when it is safe on the disk. It is for its owner alone.

    Raises `FailedError` (`file.unwritable`).
    """
    replace_file_by(path, (data,))


def replace_file_by(path: Path, parts: Iterable[bytes]) -> None:
    """Put a file in the place of another, as `replace_file` does, from parts that need not be there all at once.

    Raises `FailedError` (`file.unwritable`), and what making a part raises; the file is then as it was.
    """
    beside = path.with_name(f".{path.name}.new")
    try:
        handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(handle, "wb") as stream:
            stream.writelines(parts)
            stream.flush()
            os.fsync(stream.fileno())
        beside.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        raise FailedError("file.unwritable", f"`{path}` cannot be written: {reason(error)}") from error


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
    """Check that what was read is not longer than it may be. Raises `LimitError` (`file.limit`)."""
    if len(data) > limit:
        raise LimitError("file.limit", f"`{name}` has more than {limit} bytes")


def reason(error: OSError | ValueError) -> str:
    """Say in words why a file could not be used."""
    return (error.strerror if isinstance(error, OSError) else None) or "it is no usable path"


def _open_regular(name: str) -> int:
    # Not to wait: opening a pipe that nobody writes to would.
    handle = os.open(name, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    mode = os.fstat(handle).st_mode
    if stat.S_ISREG(mode):
        return handle
    os.close(handle)
    raise OSError(
        errno.EINVAL, "it is a folder" if stat.S_ISDIR(mode) else "it is no regular file; `-` is standard input"
    )
