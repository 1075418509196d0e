"""Policy-evolution events: how an owner changes policy, each signed, numbered and chained to the one before.

    (policy-event (owner <principal>) (number <n>) (previous <bytes>) (time <date>)
                  (checkpoint <parts>) (changes <change> …))
    <change>  (publish <certificate> <signature> …) | (revoke <certificate id> …) | (require-stamps)
              (install (sequence <definition> <signature>)) | (remove <owner> <name> <version>)
              (agree (sequence <agreement> <signature>)) | (end-agreement <name>)
              (describe (sequence <profile> <signature>) …) | (forget <principal> …)

Numbers begin with 1; `previous` is the digest of the body before, and 32 zeros in the first. The changes of a
checkpoint, together with those of as many events as it says that follow it, are the whole state: they start from
nothing, and they hold all at once. So whoever has them needs nothing that came before.

What an agreement says is for those to read who enforce it (`penstock.guard.agreements`): here it is its owner's, has a
name, and takes the place of the one before of that name.
"""

import re
from dataclasses import dataclass, field
from datetime import datetime
from typing import ClassVar, Final, TypeAlias

from penstock.codec.sexp import SExp, canonical, text
from penstock.codec.sexp import field as sexp_field
from penstock.errors import LimitError, RefusedError
from penstock.model.limits import DEFAULT_LIMITS
from penstock.model.names import TypeName
from penstock.model.principals import DIGEST_BYTES, Principal
from penstock.trust.credentials import UnverifiedCredentials, collect_credentials
from penstock.trust.event_types import UnverifiedType, read_type
from penstock.trust.profiles import ProfileClaim
from penstock.trust.signed import (
    UnverifiedValue,
    malformed,
    one,
    read_count,
    read_digest,
    read_owner,
    read_signed,
    read_time,
    time_field,
)

BEGINNING: Final = bytes(DIGEST_BYTES)
"""What the first event of a chain follows."""

_ID: Final = re.compile(r"cert:[a-z2-7]{52}", re.ASCII)
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)


@dataclass(frozen=True, slots=True)
class PublishCertificates:
    """Certificates that brokers may go by: grants and names, of the owner and of others."""

    credentials: UnverifiedCredentials = field(repr=False)

    def to_sexp(self) -> SExp:
        """Return the change as it is signed."""
        sequence = self.credentials.to_sexp()
        return (b"publish", *sequence[1:]) if isinstance(sequence, tuple) else sequence


@dataclass(frozen=True, slots=True)
class Revoke:
    """Certificates, by their ids, that count no longer, whoever shows them. There is no way back."""

    certificates: tuple[str, ...]

    def to_sexp(self) -> SExp:
        """Return the change as it is signed."""
        return (b"revoke", *(id_.encode() for id_ in self.certificates))


@dataclass(frozen=True, slots=True)
class Install:
    """A type of the owner that brokers are to serve; another definition of the same name is replaced."""

    type: UnverifiedType = field(repr=False)

    def to_sexp(self) -> SExp:
        """Return the change as it is signed."""
        return (b"install", self.type.to_sexp())


@dataclass(frozen=True, slots=True)
class Remove:
    """A type of the owner that brokers are to serve no longer."""

    name: TypeName

    def to_sexp(self) -> SExp:
        """Return the change as it is signed."""
        return (b"remove", str(self.name.owner).encode(), self.name.name.encode(), self.name.version.encode())


@dataclass(frozen=True, slots=True)
class RequireStamps:
    """From now on a broker that has no time-stamp of the owner delivers none of its types."""

    def to_sexp(self) -> SExp:
        """Return the change as it is signed."""
        return (b"require-stamps",)


@dataclass(frozen=True, slots=True)
class Agree:
    """Rules that were agreed on about the owner's types; others under the same name are replaced."""

    name: str
    #: with its signature, which nobody has verified
    agreement: SExp = field(repr=False)

    def to_sexp(self) -> SExp:
        """Return the change as it is signed."""
        return (b"agree", self.agreement)


@dataclass(frozen=True, slots=True)
class EndAgreement:
    """An agreement that counts no longer: rights on its types are what certificates say again."""

    name: str

    def to_sexp(self) -> SExp:
        """Return the change as it is signed."""
        return (b"end-agreement", self.name.encode())


@dataclass(frozen=True, slots=True)
class PublishProfiles:
    """Profiles that the owner lets brokers go by; others of the same principals are replaced."""

    profiles: tuple[UnverifiedValue[ProfileClaim], ...] = field(repr=False)

    def to_sexp(self) -> SExp:
        """Return the change as it is signed."""
        return (b"describe", *(profile.to_sexp() for profile in self.profiles))


@dataclass(frozen=True, slots=True)
class ForgetProfiles:
    """Principals of whom no profile counts any more."""

    principals: tuple[Principal, ...]

    def to_sexp(self) -> SExp:
        """Return the change as it is signed."""
        return (b"forget", *(str(principal).encode() for principal in self.principals))


Change: TypeAlias = (
    PublishCertificates
    | Revoke
    | Install
    | Remove
    | RequireStamps
    | Agree
    | EndAgreement
    | PublishProfiles
    | ForgetProfiles
)


@dataclass(frozen=True, slots=True)
class PolicyEvent:
    """One step of an owner's policy."""

    HEAD: ClassVar = b"policy-event"
    owner: Principal
    number: int
    previous: bytes = field(repr=False)
    time: datetime
    changes: tuple[Change, ...] = field(repr=False)
    #: how many of the following events belong to the checkpoint that this one begins; None where it begins none
    checkpoint: int | None = None

    @property
    def signer(self) -> Principal:
        """The owner: nobody else changes its policy."""
        return self.owner

    def to_sexp(self) -> SExp:
        """Return the body that is signed. Raises `MalformedError` for a time that cannot be written."""
        parts: list[SExp] = [
            (b"owner", str(self.owner).encode()),
            (b"number", str(self.number).encode()),
            (b"previous", self.previous),
            time_field(self.time),
        ]
        if self.checkpoint is not None:
            parts.append((b"checkpoint", str(self.checkpoint).encode()))
        return (self.HEAD, *parts, (b"changes", *(change.to_sexp() for change in self.changes)))

    @classmethod
    def from_sexp(cls, body: SExp) -> "PolicyEvent":
        """Read a body.

        Raises `MalformedError` (`evolution.malformed` and what certificates and types raise), `RefusedError`
        (`evolution.foreign-type`, `evolution.foreign-agreement`, and `*.signature-mismatch` of what it carries),
        `LimitError` (`evolution.limit`).
        """
        owner, number = read_owner(one(body, b"owner")), read_count(one(body, b"number"))
        previous = read_digest(one(body, b"previous"))
        changes = sexp_field(body, b"changes")
        if changes is None:
            raise malformed("a policy event has changes")
        if number < 1 or (number == 1) is not (previous == BEGINNING):
            raise malformed("policy events are counted from 1, and the first follows nothing")
        _check_size(body, changes)
        checkpoint = None
        if sexp_field(body, b"checkpoint") is not None:
            checkpoint = read_count(one(body, b"checkpoint"), DEFAULT_LIMITS.policy_parts - 1)
        read = tuple(_read_change(change, owner) for change in changes[1:])
        if checkpoint is not None and any(
            isinstance(change, Remove | EndAgreement | ForgetProfiles) for change in read
        ):
            raise malformed("a checkpoint starts from nothing, of which nothing can be removed")
        return cls(owner, number, previous, read_time(body), read, checkpoint)


def _check_size(body: SExp, changes: tuple[SExp, ...]) -> None:
    limits = DEFAULT_LIMITS
    if len(changes) - 1 > limits.policy_changes:
        raise LimitError("evolution.limit", f"a policy event has more than {limits.policy_changes} changes")
    if len(canonical(body)) > limits.policy_event_bytes:
        raise LimitError(
            "evolution.limit",
            f"a policy event is larger than {limits.policy_event_bytes} bytes",
            hint="say the rest in the next one",
        )


def _read_change(value: SExp, owner: Principal) -> Change:
    match value:
        case (b"publish", *items):
            return PublishCertificates(collect_credentials(items))
        case (b"revoke", *ids):
            return Revoke(tuple(_read_id(id_) for id_ in ids))
        case (b"install", tuple(definition)):
            unverified = read_type(canonical(definition))
            _check_owner(unverified.definition.name, owner)
            return Install(unverified)
        case (b"remove", bytes(of), bytes(name), bytes(version)):
            removed = TypeName(read_owner(of), text(name), text(version))
            _check_owner(removed, owner)
            return Remove(removed)
        case (b"require-stamps",):
            return RequireStamps()
        case (b"agree", (b"sequence", (b"agreement", *_) as body, (b"signature", *_)) as agreement):
            return Agree(_read_agreement(body, owner), agreement)
        case (b"end-agreement", bytes(name)):
            return EndAgreement(check_agreement_name(text(name)))
        case (b"describe", *profiles):
            return PublishProfiles(tuple(read_signed(profile, ProfileClaim) for profile in profiles))
        case (b"forget", *principals):
            return ForgetProfiles(tuple(map(read_owner, principals)))
    raise malformed("a policy event has a change that is not known")


def _read_agreement(body: SExp, owner: Principal) -> str:
    if read_owner(one(body, b"owner")) != owner:
        raise RefusedError(
            "evolution.foreign-agreement",
            "an agreement is about the types of somebody else than the owner of this policy",
            hint="owners announce what was agreed about their own types",
        )
    return check_agreement_name(text(one(body, b"name")))


def check_agreement_name(name: str) -> str:
    """Return the name of an agreement. Raises `MalformedError` (`evolution.malformed`)."""
    if not _NAME.fullmatch(name):
        raise malformed("an agreement is called by up to 64 ASCII letters, digits, `.`, `_` and `-`")
    return name


def _read_id(value: SExp) -> str:
    id_ = text(value)
    if not _ID.fullmatch(id_):
        raise malformed("not the id of a certificate")
    return id_


def _check_owner(name: TypeName, owner: Principal) -> None:
    if name.owner != owner:
        raise RefusedError(
            "evolution.foreign-type",
            f"`{name.name}` belongs to somebody else than the owner of this policy",
            hint="owners install and remove their own types",
        )
