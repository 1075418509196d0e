"""The file of petnames, changed by one program at a time.

Whoever changes it holds `names.toml.lock` from before it is read until it is written, so that two programs that each
add a name do not lose one. Lines that are not changed stay as their owner wrote them, with comments and all.
"""

import os
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from penstock.apps.cli.files import check_target, read_bytes, write_bytes
from penstock.apps.cli.names import names_file, names_line, parse_names
from penstock.errors import FailedError, MalformedError, RefusedError
from penstock.model.principals import Principal
from penstock.store.files import reason
from penstock.store.petnames import check_petname

#: seconds: how long to wait for another program, and between two looks
WAIT: Final = 5.0
_LOOK: Final = 0.02


@contextmanager
def locked(file: str) -> Iterator[None]:
    """Hold the lock of a file. Raises `FailedError` (`petname.locked`, `file.unwritable`)."""
    lock = Path(f"{file}.lock")
    patience = time.monotonic() + WAIT
    while True:
        try:
            os.close(os.open(lock, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
            break
        except FileExistsError:
            if time.monotonic() >= patience:
                raise FailedError(
                    "petname.locked",
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


@contextmanager
def remembering(
    name: str | None, principal: Principal, chosen: str | None, *, replace: bool, dry_run: bool
) -> Iterator[None]:
    """Check that a petname can be kept, let the caller write what it is for, and then keep it.

    Without a name there is nothing to do. Raises `MalformedError` (`petname.malformed`), `RefusedError`
    (`petname.exists`), `FailedError` (`petname.locked`, `file.*`).
    """
    if name is None:
        yield
        return
    check_petname(name)
    with _editing(chosen, dry_run=dry_run) as file:
        after = with_name(_read(file), file, name, principal, replace=replace)
        yield
        if not dry_run:
            write_bytes(file, after, overwrite=True)


def forget(name: str, chosen: str | None, *, dry_run: bool) -> None:
    """Take a petname out of the file. Raises `RefusedError` (`petname.unknown`) and as `remembering` does."""
    with _editing(chosen, dry_run=dry_run) as file:
        before = _read(file)
        if name not in parse_names(before, file).by_name:
            raise RefusedError("petname.unknown", f"you know nobody as `{name}`", hint="`penstock name list` shows all")
        lines = before.splitlines(keepends=True)
        del lines[_place(lines, name, file)]
        if not dry_run:
            write_bytes(file, b"".join(lines), overwrite=True)


def with_name(data: bytes, file: str, name: str, principal: Principal, *, replace: bool) -> bytes:
    """Return what a file of petnames holds with one more in it, or with another principal under the name.

    Raises `RefusedError` (`petname.exists`) where that is not wanted.
    """
    known = parse_names(data, file).by_name.get(name)
    if known == principal:
        return data
    line = names_line(name, principal)
    if known is None:
        gap = b"" if not data or data.endswith(b"\n") else b"\n"
        return data + gap + line
    if not replace:
        raise RefusedError(
            "petname.exists",
            f"you know another principal as `{name}`",
            hint="choose another name, or say --overwrite to use it for the new one",
        )
    lines = data.splitlines(keepends=True)
    lines[_place(lines, name, file)] = line
    return b"".join(lines)


def _place(lines: list[bytes], name: str, file: str) -> int:
    for number, line in enumerate(lines):
        try:
            if name in tomllib.loads(line.decode()):
                return number
        except (UnicodeDecodeError, tomllib.TOMLDecodeError):
            continue
    raise MalformedError("petname.malformed", f"`{name}` has no line of its own in `{file}`", hint="edit it by hand")


@contextmanager
def _editing(chosen: str | None, *, dry_run: bool) -> Iterator[str]:
    # A link stays a link: what it leads to is written.
    file = os.path.realpath(names_file(chosen))
    check_target(file, overwrite=True)
    if dry_run:
        yield file
        return
    with locked(file):
        yield file


def _read(file: str) -> bytes:
    return read_bytes(file) if Path(file).exists() else b""
