"""Load the petnames that a command line uses, complete them, and change their file."""

import json
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import click
from click.shell_completion import CompletionItem

from penstock.apps.cli.shared.files import STDIN, check_target, read_bytes, write_bytes
from penstock.apps.cli.shared.session import SPOKEN
from penstock.errors import MalformedError, PenstockError, RefusedError, did_you_mean
from penstock.model.principals import Principal
from penstock.store.files import name_book
from penstock.store.files.contexts import load_context
from penstock.store.files.files import locked
from penstock.store.files.name_book import NameBook as NameBook
from penstock.store.files.name_book import names_file as names_file
from penstock.store.files.name_book import parse_names
from penstock.store.files.strict_tables import check_petname

_BARE: Final = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)


def load_names(chosen: str | None) -> NameBook:
    """Read the petnames of the given file or `$PENSTOCK_NAMES`, else of `names.toml` here, else of the key's folder.

    The folder of the key that a command was given is that of its network: a name must not mean somebody of another one.
    So is the folder of the files that it was given. Without either the context in use has the names.

    Raises `MalformedError` (`petname.malformed`, `principal.malformed`) and what reading a file raises.
    """
    names = _load(chosen)
    # Errors name principals by their short form; `report` finds the reader's names for them here.
    click.get_current_context().meta.setdefault(SPOKEN, {}).update(names.spoken())
    return names


def _load(chosen: str | None) -> NameBook:
    if names_file(chosen) == STDIN:
        return parse_names(read_bytes(STDIN), STDIN)
    return name_book.load_names(chosen or _other_names())


def _other_names() -> str | None:
    """Return the file of names to use if the environment and this folder have none. Raises as `load_context`."""
    if name_book.ENVIRONMENT in os.environ or Path(name_book.DEFAULT_FILE).is_file():
        return None
    context = click.get_current_context(silent=True)
    for word in () if context is None else _given_files(context.params):
        if os.path.exists(word):  # noqa: PTH110  # it takes any word
            place = Path(word).resolve() / name_book.DEFAULT_FILE
            # In a folder of a network, a file is at most one folder below its names.
            for folder in place.parents[0 if Path(word).is_dir() else 1 :][:2]:
                if (folder / name_book.DEFAULT_FILE).is_file():
                    return str(folder / name_book.DEFAULT_FILE)
    found = load_context().names
    # The folder of a context may be gone, and most commands need no names.
    return found if Path(found).is_file() else None


def _given_files(parameters: Mapping[str, object]) -> Iterator[str]:
    """Yield the files and folders that a command was given: first its key, then what it reads."""
    for name in ("key_file", "files", "paths"):
        given = parameters.get(name)
        yield from (word for word in (given if isinstance(given, tuple) else (given,)) if isinstance(word, str))


def complete_who(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete a word that names a principal: a petname, or a file."""
    try:
        known = _load(context.params.get("names_file")).by_name
    except PenstockError:
        known = {}
    names = [CompletionItem(name) for name in known if name.startswith(incomplete)]
    return [*names, CompletionItem(incomplete, type="file")]


def names_line(name: str, principal: Principal) -> bytes:
    """Return the line that a petname has in the file. A JSON string is a TOML string."""
    key = name if _BARE.fullmatch(name) else json.dumps(name, ensure_ascii=False)
    return f'{key} = "{principal}"\n'.encode()


# ----------------------------------------------------------------------------------------------------------------------
# The file of petnames, changed by one program at a time.
#
# Whoever changes it holds `names.toml.lock` from before it is read until it is written, so that two programs that each
# add a name do not lose one. Lines that are not changed stay as their owner wrote them, with comments and all.


@contextmanager
def remembering(
    name: str | None, principal: Principal, chosen: str | None, *, replace: bool, dry_run: bool
) -> Iterator[None]:
    """Check that a petname can be stored, let the caller write the file that it is for, and then store it.

    Without a name nothing is done. Raises `MalformedError` (`petname.malformed`), `RefusedError`
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
    """Remove a petname from the file. Raises `RefusedError` (`petname.unknown`) and as `remembering` does."""
    with _editing(chosen, dry_run=dry_run) as file:
        before = _read(file)
        known = parse_names(before, file).by_name
        if name not in known:
            hint = did_you_mean(name, known, "`penstock name list` shows all")
            raise RefusedError("petname.unknown", f"you have no name `{name}`", hint=hint)
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
            hint="choose another name, or give --overwrite to use it for the new one",
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
    # A symbolic link stays a link, and its target is written.
    file = os.path.realpath(names_file(chosen))
    check_target(file, overwrite=True)
    if dry_run:
        yield file
        return
    with locked(file, "petname.locked"):
        yield file


def _read(file: str) -> bytes:
    return read_bytes(file) if Path(file).exists() else b""
