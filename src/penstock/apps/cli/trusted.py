"""Credentials and types from files: read, verified, and put where a verifier finds them."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime

from penstock.apps.cli.files import read_bytes
from penstock.apps.cli.session import Warned
from penstock.errors import MalformedError, RefusedError
from penstock.model.names import NetworkName, TypeName
from penstock.model.types import EventType
from penstock.trust.certificates import Certificate, verify_certificate
from penstock.trust.credentials import Credentials, UnverifiedCredentials, read_credentials
from penstock.trust.event_types import UnverifiedType, VerifiedType, read_type, verify_type
from penstock.trust.subjects import Threshold


@contextmanager
def _within(file: str) -> Iterator[None]:
    """Say in an error which file it is about."""
    try:
        yield
    except (MalformedError, RefusedError) as error:
        error.message = f"`{file}`: {error.message}"
        raise


def read_bag(files: Iterable[str]) -> UnverifiedCredentials:
    """Read credentials from several files as one bag. Nothing is verified. Raises what reading them raises."""
    bags: list[UnverifiedCredentials] = []
    for file in files:
        data = read_bytes(file)
        with _within(file):
            bags.append(read_credentials(data))
    return UnverifiedCredentials(
        tuple({c.fingerprint: c for bag in bags for c in bag.certificates}.values()),
        tuple(dict.fromkeys(quorum for bag in bags for quorum in bag.quorums)),
    )


def load_credentials(files: Iterable[str]) -> Credentials:
    """Read credentials and verify all of them. Raises what reading and verifying raise."""
    return read_bag(files).verify()


def usable_credentials(files: Iterable[str]) -> tuple[Credentials, tuple[Warned, ...]]:
    """Read credentials and keep those that verify; the others are left out, with a warning each."""
    bag = read_bag(files)
    kept: list[Certificate] = []
    warnings: list[Warned] = []
    for unverified in bag.certificates:
        try:
            kept.append(verify_certificate(unverified))
        except RefusedError as error:
            warnings.append(Warned(error.code, f"certificate {unverified.id[:15]}… is left out: {error.message}"))
    return Credentials(tuple(kept), bag.quorums), tuple(warnings)


def load_type(file: str) -> UnverifiedType:
    """Read a signed type. Raises what reading it raises."""
    data = read_bytes(file)
    with _within(file):
        return read_type(data)


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


def load_event_type(
    file: str | None, parents: tuple[str, ...], previous: tuple[str, ...], now: datetime
) -> EventType | None:
    """Read and verify the type that names of attributes are looked up in.

    Attributes must not be looked up in a type that somebody else made: a forged one could give one name to another
    attribute. Raises what reading and verifying it raise.
    """
    return None if file is None else load_verified_type(file, parents, previous, now)[0].event_type


def load_verified_type(
    file: str, parents: tuple[str, ...], previous: tuple[str, ...], now: datetime
) -> tuple[VerifiedType, tuple[Threshold, ...]]:
    """Read and verify a type; return it, and the quorums that its credentials hold.

    Raises what reading and verifying it raise.
    """
    unverified = load_type(file)
    shelf = Shelf.of(*parents, *previous)
    with _within(file):
        verified = shelf.verify(unverified, now)
        return verified, tuple(unverified.credentials.verify().thresholds().values())


def need_type(event_type: EventType | None, what: str) -> EventType:
    """Return the type. Raises `MalformedError` (`cli.type-file`) where none was given."""
    if event_type is None:
        raise MalformedError(
            "cli.type-file", f"{what} needs to know the event type", hint="give the signed type with --type-file"
        )
    return event_type
