"""Read files with a size limit, and write them completely or not at all, without silent overwriting."""

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import BinaryIO, Final

from penstock.codec.sexp import SExp, advanced, parse, parse_many
from penstock.errors import FailedError, MalformedError, RefusedError
from penstock.store.files import files
from penstock.store.files.files import MAX_BYTES, PUBLIC, check_secret, new_file, reason, replacing
from penstock.store.files.files import SECRET as SECRET

STDIN: Final = "-"
PRIVATE: Final = (b"private-key",)
PROTECTED: Final = (b"protected-key",)
KEKS: Final = ((b"kek",), (b"protected-kek",))


@contextmanager
def within(file: str) -> Iterator[None]:
    """Add the name of the file to errors; standard input has no name."""
    if file != STDIN:
        with files.within(file):
            yield
        return
    try:
        yield
    except (MalformedError, RefusedError) as error:
        error.message = f"standard input: {error.message}"
        raise


def read_bytes(name: str) -> bytes:
    """Read a regular file, or standard input for `-`.

    Raises `FailedError` (`file.missing`, `file.unreadable`) and `LimitError` (`file.limit`).
    """
    if name != STDIN:
        return files.read_file(name)
    try:
        data = _standard_input().read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        raise files.unreadable(name, error) from None
    files.check_size(name, data)
    return data


def _standard_input() -> BinaryIO:
    if sys.stdin is None:
        raise OSError(errno.EBADF, "there is no standard input")
    return sys.stdin.buffer


def read_sexp(name: str) -> SExp:
    """Read a file of one S-expression in any form. Raises what `read_bytes` and `parse` raise."""
    data = read_bytes(name)
    with within(name):
        return parse(data)


def read_sexps(name: str) -> list[SExp]:
    """Read a file of any number of S-expressions. Raises what `read_bytes` and `parse_many` raise."""
    data = read_bytes(name)
    with within(name):
        return parse_many(data)


def check_private(name: str) -> None:
    """Check that only its owner can read a secret file. Raises `RefusedError` (`file.exposed`)."""
    if name != STDIN:
        check_secret(name)


def as_text(value: SExp) -> bytes:
    """Return an S-expression as it is written into files: in the form that people can read."""
    return advanced(value).encode() + b"\n"


def check_target(name: str, *, overwrite: bool, for_key: bool = False, lasting: bool = False) -> None:
    """Check that a file can be written, before anything is.

    A private key is replaced only by another one (`for_key`): what it has signed cannot be signed again without it.
    What nothing ever replaces is `lasting`: what lies under it could not be opened again.

    Raises `RefusedError` (`file.exists`, `file.private-key`) and `FailedError` (`file.unwritable`).
    """
    path = Path(name)
    try:
        os.lstat(name)
    except (FileNotFoundError, NotADirectoryError):
        if not name:
            raise _unwritable(name, "it has no name") from None
    except (OSError, ValueError) as error:
        # Its name is too long, for example.
        raise _unwritable(name, reason(error)) from None
    if os.path.lexists(name):
        # A file would replace the device, for everybody on the machine.
        if os.path.exists(name) and not os.path.isfile(name) and not path.is_dir():  # noqa: PTH110, PTH113  # these do not raise
            raise _unwritable(name, "it is a device or a pipe; what goes to standard output can be sent there")
        if lasting or not overwrite:
            raise _exists(name, lasting=lasting)
        if path.is_dir():
            raise _unwritable(name, "it is a folder")
        if not for_key and holds_private_key(name):
            raise RefusedError(
                "file.private-key", f"`{name}` is a private key and would be lost", hint="choose another name"
            )
    if not path.parent.is_dir():
        raise _unwritable(name, f"there is no folder `{path.parent}`")
    if not os.access(path.parent, os.W_OK):
        raise _unwritable(name, f"nothing can be written to the folder `{path.parent}`")


def check_distinct(*names: str | None) -> None:
    """Check that files to be written are different ones. Raises `MalformedError` (`file.twice`)."""
    seen: set[str] = set()
    for name in names:
        if name is not None:
            real = os.path.realpath(name)
            if real in seen:
                raise MalformedError("file.twice", f"`{name}` would be written twice", hint="give two different files")
            seen.add(real)


def holds_private_key(name: str) -> bool:
    """Return whether a file contains a private or key-encryption key, encrypted or not, even a damaged one."""
    try:
        values = parse_many(read_bytes(name))
    except (FailedError, MalformedError):
        return False
    return any(isinstance(value, tuple) and value[:1] in (PRIVATE, PROTECTED, *KEKS) for value in values)


def write_bytes(name: str, data: bytes, *, mode: int = PUBLIC, overwrite: bool = False, for_key: bool = False) -> None:
    """Write a file; an existing one is replaced in one step or not at all.

    Raises as `check_target` does.
    """
    check_target(name, overwrite=overwrite, for_key=for_key)
    path = Path(name)
    try:
        with replacing(path, mode) if overwrite else new_file(path, mode) as stream:
            stream.write(data)
    except FileExistsError:
        raise _exists(name) from None
    except (OSError, ValueError) as error:
        raise _unwritable(name, reason(error)) from None


@contextmanager
def filling(name: str, *, mode: int = PUBLIC, overwrite: bool = False) -> Iterator[BinaryIO]:
    """Write a file piece by piece. It appears under its name when it is complete, and never after an error.

    Raises as `check_target` does, and `OSError` if the disk is full.
    """
    check_target(name, overwrite=overwrite)
    # Somebody may write a file of that name in the meantime.
    again = partial(check_target, name, overwrite=overwrite)
    with ExitStack() as stack:
        try:
            stream = stack.enter_context(replacing(Path(name), mode, again))
        except (OSError, ValueError) as error:
            raise _unwritable(name, reason(error)) from None
        yield stream


@contextmanager
def reading(name: str) -> Iterator[BinaryIO]:
    """Read a file of any length, or standard input for `-`.

    Raises `FailedError` (`file.missing`, `file.unreadable`).
    """
    try:
        stream = _standard_input() if name == STDIN else open(name, "rb")  # noqa: PTH123, SIM115  # for who closes it
    except FileNotFoundError:
        raise FailedError("file.missing", f"there is no file `{name}`", hint="check the path") from None
    except (OSError, ValueError) as error:
        raise files.unreadable(name, error) from None
    with stream:
        yield stream


def _exists(name: str, *, lasting: bool = False) -> RefusedError:
    hint = (
        "choose another name: such files are never replaced" if lasting else "choose another name, or give --overwrite"
    )
    return RefusedError("file.exists", f"`{name}` exists already", hint=hint)


def _unwritable(name: str, why: str) -> FailedError:
    return FailedError("file.unwritable", f"`{name}` cannot be written: {why}")
