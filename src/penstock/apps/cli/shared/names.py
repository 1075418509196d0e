"""Whom a word on the command line means: a principal, a petname, or a file with a key or a quorum in it.

Petnames stand in a TOML file, one a line: `met = "ed25519:…"`. They are the reader's own, for display and for
typing less; nothing that is signed contains one.
"""

import json
import os
import re
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click
from click.shell_completion import CompletionItem

from penstock.apps.cli.shared.files import check_target, read_bytes, read_sexp, within, write_bytes
from penstock.apps.cli.shared.session import SPOKEN, speak
from penstock.codec.sexp import SExp
from penstock.crypto import read_key
from penstock.errors import FailedError, MalformedError, PenstockError, RefusedError
from penstock.model.names import AttributeId, NetworkName
from penstock.model.principals import Petnames, Principal
from penstock.store.files.files import reason
from penstock.store.files.strict_tables import check_petname, parse_petnames
from penstock.trust.subjects import Subject, Threshold, read_subject

DEFAULT_FILE: Final = "names.toml"
ENVIRONMENT: Final = "PENSTOCK_NAMES"
_BARE: Final = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)


@dataclass(frozen=True, slots=True)
class NameBook:
    """One reader's petnames, both ways."""

    by_name: dict[str, Principal]
    petnames: Petnames

    @classmethod
    def of(cls, by_name: dict[str, Principal]) -> "NameBook":
        """Index petnames; of two names for one principal the first is shown."""
        shown: dict[Principal, str] = {}
        for name, principal in by_name.items():
            shown.setdefault(principal, name)
        return cls(by_name, Petnames(shown))

    def show(self, principal: Principal) -> str:
        """Return the petname, or else the short written form."""
        return self.petnames.show(principal)

    def show_text(self, text: str) -> str:
        """Return the same for a written principal; what is none stays as it is."""
        try:
            return self.show(Principal.parse(text))
        except MalformedError:
            return text

    def subject(self, text: str) -> Subject:
        """Return whom a word means: a principal, or the quorum that a file describes.

        Raises `MalformedError` (`principal.unknown`, `principal.malformed` and what reading a file raises) and
        `RefusedError` (`principal.ambiguous`).
        """
        if text.startswith(("ed25519:", "threshold:")):
            return Principal.parse(text)
        named = self.by_name.get(text)
        found = _in_file(text)
        if named is not None and found is not None and principal_of(found) != named:
            raise RefusedError(
                "principal.ambiguous",
                f"`{text}` is both a name and a file, and they are different principals",
                hint=f"write `./{text}` for the file",
            )
        if named is not None:
            return named
        if found is None:
            known = ", ".join(sorted(self.by_name)[:10]) or "none"
            raise MalformedError(
                "principal.unknown",
                f"`{text[:80]}` is no principal, no name and no file",
                hint=f"write `ed25519:…`, a key file, or one of the names: {known}",
            )
        return found

    def speak(self, text: str) -> str:
        """Put petnames into a text that names principals by their short form."""
        return speak(text, self.spoken())

    def spoken(self) -> dict[str, str]:
        """Return the petnames by the short form of their principals."""
        return {principal.short: petname for principal, petname in self.petnames.items()}

    def principal(self, text: str) -> Principal:
        """Return the principal that a word means. Raises as `subject` does."""
        return principal_of(self.subject(text))

    def network(self, text: str) -> NetworkName:
        """Read `owner/name`, the owner in any form. Raises `MalformedError` (`name.malformed`) and as `subject`."""
        owner, name = self.owned(text, "network")
        if owner is None or name is None:
            raise MalformedError("name.malformed", f"`{text[:80]}` is no one network", hint="write `owner/name`")
        return NetworkName(owner, name)

    def owned(self, text: str, what: str) -> tuple[Principal | None, str | None]:
        """Read `owner/name`, where each may be `*` and stands for all then; a single `*` stands for both."""
        if text == "*":
            return None, None
        # Names of networks and types have no `/`, paths of key files may.
        owner, slash, name = text.rpartition("/")
        if not slash or not owner or not name:
            raise MalformedError("name.malformed", f"`{text[:80]}` is no {what}", hint=f"write `owner/{what} name`")
        return None if owner == "*" else self.principal(owner), None if name == "*" else name

    def attribute(self, text: str) -> AttributeId:
        """Read `owner/type#uid`, the owner in any form. Raises as `network` does."""
        rest, hash_sign, uid = text.rpartition("#")
        owner, slash, type_name = rest.rpartition("/")
        if not hash_sign or not slash:
            raise MalformedError("name.malformed", f"`{text[:80]}` is no attribute id", hint="write `owner/type#uid`")
        return AttributeId(self.principal(owner), type_name, uid)


def principal_of(subject: Subject) -> Principal:
    """Return the one principal that a key or a quorum is. Raises `MalformedError` for a name."""
    if isinstance(subject, Principal):
        return subject
    if isinstance(subject, Threshold):
        return subject.principal
    raise MalformedError("principal.malformed", "a name is no principal")


def _in_file(text: str) -> Subject | None:
    try:
        if not Path(text).is_file():
            return None
    except (OSError, ValueError):
        return None
    return read_party(read_sexp(text), text)


def read_party(value: SExp, where: str) -> Subject:
    """Read a key of any kind, or a quorum, as a subject. Raises `MalformedError` (`key.malformed`, `subject.*`)."""
    if isinstance(value, tuple) and value[:1] == (b"k-of-n",):
        with within(where):
            return read_subject(value)
    try:
        return read_key(value).principal
    except MalformedError as error:
        raise MalformedError(error.code, f"`{where}` holds no key: {error.message}", hint=error.hint) from None


def load_names(chosen: str | None) -> NameBook:
    """Read the petnames: from the file chosen, from `$PENSTOCK_NAMES`, or from `names.toml` where there is one.

    Raises `MalformedError` (`petname.malformed`, `principal.malformed`) and what reading a file raises.
    """
    names = _load(chosen)
    # Errors name principals by their short form; whoever prints one may find here what the reader calls them.
    click.get_current_context().meta.setdefault(SPOKEN, {}).update(names.spoken())
    return names


def _load(chosen: str | None) -> NameBook:
    name = names_file(chosen)
    if chosen is None and ENVIRONMENT not in os.environ and not Path(name).is_file():
        return NameBook.of({})
    return parse_names(read_bytes(name), name)


def complete_who(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete a word that means a principal: a petname, or a file."""
    try:
        known = _load(context.params.get("names_file")).by_name
    except PenstockError:
        known = {}
    names = [CompletionItem(name) for name in known if name.startswith(incomplete)]
    return [*names, CompletionItem(incomplete, type="file")]


def names_file(chosen: str | None) -> str:
    """Return the file that petnames are kept in."""
    return chosen or os.environ.get(ENVIRONMENT) or DEFAULT_FILE


def parse_names(data: bytes, where: str) -> NameBook:
    """Read a file of petnames. Raises `MalformedError` (`petname.malformed`, `principal.malformed`)."""
    with within(where):
        return NameBook.of(parse_petnames(data))


def names_line(name: str, principal: Principal) -> bytes:
    """Return the line that a petname has in the file. A JSON string is a TOML string."""
    key = name if _BARE.fullmatch(name) else json.dumps(name, ensure_ascii=False)
    return f'{key} = "{principal}"\n'.encode()


# ----------------------------------------------------------------------------------------------------------------------
# The file of petnames, changed by one program at a time.
#
# Whoever changes it holds `names.toml.lock` from before it is read until it is written, so that two programs that each
# add a name do not lose one. Lines that are not changed stay as their owner wrote them, with comments and all.


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
