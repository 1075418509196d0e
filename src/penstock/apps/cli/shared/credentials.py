"""Read and verify credentials and event types from files."""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Final

from penstock.apps.cli.shared.files import read_bytes, within
from penstock.apps.cli.shared.session import Warned
from penstock.codec.sexp import SExp, parse
from penstock.crypto import PublicKey, digest
from penstock.errors import MalformedError, PenstockError, RefusedError
from penstock.model.names import NetworkName, TypeName
from penstock.model.principals import Principal
from penstock.model.types import EventType
from penstock.store.files.contexts import ContextFile
from penstock.trust.certificates import (
    Certificate,
    Threshold,
    UnverifiedCertificate,
    certificate_id,
    verify_certificate,
)
from penstock.trust.credentials import (
    Credentials,
    Damaged,
    UnverifiedCredentials,
    read_credentials,
    salvage_credentials,
)
from penstock.trust.event_types import UnverifiedType, VerifiedType, read_type, read_type_parts, verify_type
from penstock.trust.signed import SignedValue, read_statements
from penstock.trust.statement_book import StatementBook
from penstock.trust.statements import VALIDITY_KINDS, ValidityClaim

_TYPES: Final = "*.type"


@dataclass(frozen=True, slots=True)
class CredentialFiles:
    """Credentials from several files, and damaged certificates. Nothing is verified."""

    credentials: UnverifiedCredentials
    damaged: tuple[Damaged, ...] = ()

    @property
    def quorums(self) -> tuple[Threshold, ...]:
        """The quorums in the bag."""
        return self.credentials.quorums

    def to_sexp(self) -> SExp:
        """Return everything as a `(sequence …)`, including damaged certificates."""
        aside = [part for one in self.damaged for part in (one.body, one.signature)]
        return (*self.credentials.to_sexp(), *aside)


def read_bag(files: Iterable[str]) -> CredentialFiles:
    """Read credentials from several files as one bag. Raises what reading them raises."""
    certificates: dict[bytes, UnverifiedCertificate] = {}
    damaged: list[Damaged] = []
    quorums: list[Threshold] = []
    for file in files:
        data = read_bytes(file)
        with within(file):
            bag, aside = salvage_credentials(data)
        certificates |= {certificate.fingerprint: certificate for certificate in bag.certificates}
        damaged += aside
        quorums += bag.quorums
    found = UnverifiedCredentials(tuple(certificates.values()), tuple(dict.fromkeys(quorums)))
    return CredentialFiles(found, tuple(damaged))


def load_credentials(files: Iterable[str]) -> Credentials:
    """Read credentials and verify all of them. Raises what reading and verifying raise."""
    found = Credentials()
    for file in files:
        data = read_bytes(file)
        with within(file):
            found += read_credentials(data).verify()
    return found


def usable_credentials(files: Iterable[str]) -> tuple[Credentials, tuple[Warned, ...]]:
    """Read credentials and keep those that verify; the others are left out, with a warning each."""
    bag = read_bag(files)
    kept: list[Certificate] = []
    left_out = [(certificate_id(digest(one.body)), one.error) for one in bag.damaged]
    for unverified in bag.credentials.certificates:
        try:
            kept.append(verify_certificate(unverified))
        except RefusedError as error:
            left_out.append((unverified.id, error))
    warnings = [Warned(error.code, f"certificate {id_[:15]}… is left out: {error.message}") for id_, error in left_out]
    return Credentials(tuple(kept), bag.quorums), tuple(warnings)


def load_statements(files: Iterable[str]) -> list[SignedValue[ValidityClaim]]:
    """Read validity statements and verify their signatures. Raises what reading and verifying raise."""
    found: list[SignedValue[ValidityClaim]] = []
    for file in files:
        data = read_bytes(file)
        with within(file):
            found += (one.verify() for one in read_statements(data, *VALIDITY_KINDS))
    return found


def known_statements(files: Iterable[str], verifier: Principal, now: datetime) -> StatementBook:
    """Read validity statements into a book, in any order. Raises as `load_statements`."""
    book = StatementBook(verifier)
    for one in load_statements(files):
        with suppress(RefusedError):
            # A later one is there, or it has ended.
            book.take(one, now)
    return book


def load_type(file: str) -> UnverifiedType:
    """Read a signed type. Raises what reading it raises."""
    data = read_bytes(file)
    with within(file):
        return read_type(data)


@dataclass(frozen=True, slots=True)
class ShownType:
    """A type to show: the content of its file, and the first problem of its signature, if there is one."""

    unverified: UnverifiedType
    value: SExp
    code: str = ""
    problem: str = ""


def show_type(file: str) -> ShownType:
    """Read a type to show it, also one that was changed after it was signed. Raises what reading it raises."""
    data = read_bytes(file)
    with within(file):
        try:
            unverified = read_type(data)
        except RefusedError as error:
            value = parse(data)
            altered = _altered(value)
            if altered is None:
                raise
            return ShownType(altered, value, error.code, error.message)
        return ShownType(unverified, unverified.to_sexp())


def _altered(value: SExp) -> UnverifiedType | None:
    """Read a definition whose signature is of another definition."""
    match value:
        case (b"sequence", tuple(body), (b"signature", tuple(), tuple(key), bytes(data))):
            try:
                return read_type_parts(body, PublicKey.from_sexp(key), data)
            except RefusedError:
                # One of its credentials was changed; the rest can be shown without them.
                rest = tuple(part for part in body if not isinstance(part, tuple) or part[:1] != (b"credentials",))
                return read_type_parts(rest, PublicKey.from_sexp(key), data)
    return None


@dataclass(frozen=True, slots=True)
class Shelf:
    """The types that were given on the command line: a `TypeSource`."""

    types: dict[TypeName, UnverifiedType] = field(default_factory=dict)

    @classmethod
    def of(cls, *files: str) -> "Shelf":
        """Read types. Raises what reading them raises."""
        found = [load_type(file) for file in files]
        return cls({unverified.definition.name: unverified for unverified in found})

    def __call__(self, name: TypeName, /) -> UnverifiedType | None:
        """Return the type of that name, if it was given."""
        return self.types.get(name)

    def verify(self, unverified: UnverifiedType, now: datetime, network: NetworkName | None = None) -> VerifiedType:
        """Verify a type with the others at hand. Raises what `verify_type` raises."""
        return verify_type(unverified, now, types=self, network=network)


def beside(path: Path, folder: str, pattern: str) -> list[Path]:
    """Return the files beside a file, and those in a folder of its network, as `penstock init` lays it out."""
    place = path.absolute().parent
    return [one for where in (place, place / folder, place.parent / folder) for one in sorted(where.glob(pattern))]


def find_types(now: datetime, *paths: str) -> tuple[EventType, ...]:
    """Return the types that verify among those of the user's contexts, and those beside files and below folders.

    They name attributes for people: a file that cannot be read or verified is left out.
    """
    files: list[Path] = []
    with suppress(PenstockError):
        files += (Path(one.type_file) for one in ContextFile.load().contexts.values() if one.type_file)
    for path in map(Path, paths):
        files += sorted(path.rglob(_TYPES)) if path.is_dir() else beside(path, "types", _TYPES)
    known: dict[TypeName, UnverifiedType] = {}
    for file in files:
        with suppress(PenstockError):
            unverified = load_type(str(file))
            known.setdefault(unverified.definition.name, unverified)
    shelf, found = Shelf(known), []
    for unverified in known.values():
        with suppress(PenstockError):
            found.append(shelf.verify(unverified, now).event_type)
    return tuple(found)


def need_type(event_type: EventType | None, what: str) -> EventType:
    """Return the type. Raises `MalformedError` (`cli.type-file`) if none was given."""
    if event_type is None:
        raise MalformedError(
            "cli.type-file", f"{what} needs to know the event type", hint="give the signed type with --type-file"
        )
    return event_type
