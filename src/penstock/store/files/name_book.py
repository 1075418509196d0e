"""Resolve a written word: a principal, a petname, or a file with a key or a quorum in it.

Petnames are in a TOML file, one per line: `met = "ed25519:…"`. They are local to the reader, for display and for
typing less. Signed data never contains one.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from penstock.codec.sexp import SExp, parse
from penstock.crypto import read_key
from penstock.errors import MalformedError, RefusedError, did_you_mean
from penstock.model.names import AttributeId, NetworkName, TypeName
from penstock.model.principals import Petnames, Principal
from penstock.store.files.files import read_file, within
from penstock.store.files.strict_tables import parse_petnames
from penstock.trust.certificates import Subject, Threshold, read_subject

DEFAULT_FILE: Final = "names.toml"
ENVIRONMENT: Final = "PENSTOCK_NAMES"
_SCHEMES: Final = ("ed25519:", "threshold:")


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

    def write(self, principal: Principal) -> str:
        """Return a word that `principal` reads: the petname, or else the whole written form."""
        name = self.show(principal)
        return name if self.by_name.get(name) == principal else str(principal)

    def show_text(self, text: str) -> str:
        """Return the petname of a written principal; return any other text unchanged."""
        try:
            return self.show(Principal.parse(text))
        except MalformedError:
            return text

    def subject(self, text: str) -> Subject:
        """Return the principal that a word names: a principal itself, or the quorum that a file describes.

        Raises `MalformedError` (`principal.unknown`, `principal.malformed` and what reading a file raises) and
        `RefusedError` (`principal.ambiguous`).
        """
        if text.startswith(_SCHEMES):
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
            known = ", ".join(sorted(self.by_name)[:10])
            names = f"one of the names: {known}" if known else "give a file of names with --names"
            raise MalformedError(
                "principal.unknown",
                f"`{text[:80]}` is not a principal, a name or a file",
                hint=did_you_mean(text, self.by_name, f"write `ed25519:…`, a key file, or {names}"),
            )
        return found

    def spoken(self) -> dict[str, str]:
        """Return the petnames by the short form of their principals."""
        return {principal.short: petname for principal, petname in self.petnames.items()}

    def principal(self, text: str) -> Principal:
        """Return the principal that a word names. Raises as `subject` does."""
        return principal_of(self.subject(text))

    def network(self, text: str) -> NetworkName:
        """Read `owner/name`, the owner in any form. Raises `MalformedError` (`name.malformed`) and as `subject`."""
        owner, name = self.owned(text, "network")
        if owner is None or name is None:
            raise MalformedError(
                "name.malformed", f"`{text[:80]}` is not exactly one network", hint="write `owner/name`"
            )
        return NetworkName(owner, name)

    def type(self, text: str) -> TypeName:
        """Read `owner/name@version`, the owner in any form. Raises as `network` does."""
        owner, name = self.owned(text, "type")
        if owner is None or name is None:
            raise MalformedError("name.malformed", f"`{text[:80]}` is not one type", hint="write `owner/name`")
        return TypeName.parse(f"{owner}/{name}")

    def owned(self, text: str, what: str) -> tuple[Principal | None, str | None]:
        """Parse `owner/name`, in which each may be `*` for all; a single `*` means both."""
        if text == "*":
            return None, None
        # Names of networks and types do not contain `/`; paths of key files can.
        owner, slash, name = text.rpartition("/")
        if not slash or not owner or not name:
            raise MalformedError("name.malformed", f"`{text[:80]}` is not a {what} name", hint="write `owner/name`")
        return None if owner == "*" else self.principal(owner), None if name == "*" else name

    def attribute(self, text: str) -> AttributeId:
        """Read `owner/type#uid`, the owner in any form. Raises as `network` does."""
        rest, hash_sign, uid = text.rpartition("#")
        owner, slash, type_name = rest.rpartition("/")
        if not hash_sign or not slash:
            raise MalformedError(
                "name.malformed", f"`{text[:80]}` is not an attribute id", hint="write `owner/type#uid`"
            )
        return AttributeId(self.principal(owner), type_name, uid)


def principal_of(subject: Subject) -> Principal:
    """Return the principal of a key or a quorum. Raises `MalformedError` for a name."""
    if isinstance(subject, Principal):
        return subject
    if isinstance(subject, Threshold):
        return subject.principal
    raise MalformedError("principal.malformed", "a name is not a principal")


def _in_file(text: str) -> Subject | None:
    try:
        if not Path(text).is_file():
            return None
    except (OSError, ValueError):
        return None
    data = read_file(text)
    with within(text):
        value = parse(data)
    return read_party(value, text)


def read_party(value: SExp, where: str) -> Subject:
    """Read a key of any kind, or a quorum, as a subject. Raises `MalformedError` (`key.malformed`, `subject.*`)."""
    if isinstance(value, tuple) and value[:1] == (b"k-of-n",):
        with within(where):
            return read_subject(value)
    try:
        return read_key(value).principal
    except MalformedError as error:
        raise MalformedError(error.code, f"`{where}` holds no key: {error.message}", hint=error.hint) from None


def parse_names(data: bytes, where: str) -> NameBook:
    """Read a file of petnames. Raises `MalformedError` (`petname.malformed`, `principal.malformed`)."""
    with within(where):
        return NameBook.of(parse_petnames(data))


def names_file(chosen: str | None) -> str:
    """Return the file that petnames are kept in."""
    return chosen or os.environ.get(ENVIRONMENT) or DEFAULT_FILE


def load_names(path: str | os.PathLike[str] | None = None) -> NameBook:
    """Return the petnames in a file (default: `$PENSTOCK_NAMES`, or `names.toml` in the working folder if it exists).

    Raises `MalformedError` (`petname.malformed`, `principal.malformed`) and `FailedError` (`file.*`).
    """
    name = names_file(None if path is None else str(path))
    if path is None and ENVIRONMENT not in os.environ and not Path(name).is_file():
        return NameBook.of({})
    return parse_names(read_file(name), name)


class WrittenNames:
    """Read names that a program wrote. Petnames are loaded when the first one occurs, and not before."""

    def __init__(self, load: Callable[[], NameBook] = load_names) -> None:
        self._book = cache(load)

    def principal(self, name: Principal | str) -> Principal:
        """Return a principal. Raises as `NameBook.principal` and `load_names`."""
        return name if isinstance(name, Principal) else self._for(name).principal(name)

    def network(self, name: NetworkName | str) -> NetworkName:
        """Return the name of a network. Raises as `NameBook.network` and `load_names`."""
        return name if isinstance(name, NetworkName) else self._for(name).network(name)

    def type(self, name: TypeName | str) -> TypeName:
        """Return the name of a type. Raises as `NameBook.type` and `load_names`."""
        return name if isinstance(name, TypeName) else self._for(name).type(name)

    def _for(self, text: str) -> NameBook:
        return _NO_NAMES if text.startswith(_SCHEMES) else self._book()


_NO_NAMES: Final = NameBook.of({})
