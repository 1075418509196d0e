"""Policy events, by which an owner changes its policy: each is signed, numbered and chained to the one before.

    (policy-event (owner <principal>) (number <n>) (previous <bytes>) (time <date>)
                  (checkpoint <parts>) (changes <change> …))
    <change>  (publish <certificate> <signature> …) | (revoke <certificate id> …) | (require-stamps)
              (install (sequence <definition> <signature>)) | (remove <owner> <name> <version>)
              (agree (sequence <agreement> <signature>)) | (end-agreement <name>)
              (describe (sequence <profile> <signature>) …) | (forget <principal> …)

Numbers begin with 1; `previous` is the digest of the body before, and 32 zeros in the first. The changes of a
checkpoint, together with those of as many events as it says that follow it, are the whole state: they start from
nothing, and they take effect together. So whoever has them needs nothing that came before.

What an agreement says is for those to read who enforce it (`penstock.guard.agreements`): here it is its owner's, has a
name, and takes the place of the one before of that name.
"""

import re
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Annotated, ClassVar, Final, Self, TypeAlias

from penstock.codec.sexp import BARE, Form, ListForm, Named, SExp, canonical, read_record, text
from penstock.codec.sexp import field as sexp_field
from penstock.errors import LimitError, RefusedError
from penstock.model.names import TypeName
from penstock.model.principals import DIGEST_BYTES, Principal
from penstock.trust.credentials import UnverifiedCredentials, collect_credentials
from penstock.trust.event_types import UnverifiedType, read_type
from penstock.trust.limits import POLICY_CHANGES, POLICY_EVENT_BYTES, POLICY_NUMBER, POLICY_PARTS, STAMP_PERIOD
from penstock.trust.profiles import ProfileClaim
from penstock.trust.signed import (
    DIGEST,
    Claim,
    StatementRecord,
    UnverifiedValue,
    count_form,
    malformed,
    read_owner,
    signed_form,
)

BEGINNING: Final = bytes(DIGEST_BYTES)
"""What the first event of a chain follows."""

_ID: Final = re.compile(r"cert:[a-z2-7]{52}", re.ASCII)
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)


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


def _read_definition(value: SExp) -> UnverifiedType:
    if not isinstance(value, tuple):
        raise malformed("a type is installed with its definition and signature")
    return read_type(canonical(value))


def _read_type_name(parts: tuple[SExp, ...]) -> TypeName:
    match parts:
        case (bytes(owner), bytes(name), bytes(version)):
            return TypeName(read_owner(owner), text(name), text(version))
    raise malformed("a type is removed by its owner, name and version")


_CREDENTIALS: Final[ListForm[UnverifiedCredentials]] = ListForm(lambda bag: bag.to_sexp()[1:], collect_credentials)
_CERTIFICATE_ID: Final = Form(str.encode, _read_id)
_DEFINITION: Final = Form(UnverifiedType.to_sexp, _read_definition)
_TYPE_NAME: Final[ListForm[TypeName]] = ListForm(
    lambda name: (str(name.owner).encode(), name.name.encode(), name.version.encode()), _read_type_name
)
_AGREEMENT_NAME: Final = Form(str.encode, lambda value: check_agreement_name(text(value)))


@dataclass(frozen=True, slots=True)
class PublishCertificates(StatementRecord):
    """Certificates that brokers may use: grants and names, of the owner and of others."""

    HEAD: ClassVar = b"publish"
    credentials: Annotated[UnverifiedCredentials, _CREDENTIALS, BARE] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Revoke(StatementRecord):
    """Certificates, by their ids, that count no longer, whoever shows them. There is no way back."""

    HEAD: ClassVar = b"revoke"
    certificates: Annotated[tuple[str, ...], _CERTIFICATE_ID, BARE]


@dataclass(frozen=True, slots=True)
class Install(StatementRecord):
    """A type of the owner that brokers are to serve; another definition of the same name is replaced."""

    HEAD: ClassVar = b"install"
    type: Annotated[UnverifiedType, _DEFINITION, BARE] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Remove(StatementRecord):
    """A type of the owner that brokers are to serve no longer."""

    HEAD: ClassVar = b"remove"
    name: Annotated[TypeName, _TYPE_NAME, BARE]


@dataclass(frozen=True, slots=True)
class RequireStamps(StatementRecord):
    """From now on a broker that has no time-stamp of the owner delivers none of its types."""

    HEAD: ClassVar = b"require-stamps"


@dataclass(frozen=True, slots=True)
class Agree(StatementRecord):
    """Rules that were agreed on about the owner's types; others under the same name are replaced."""

    HEAD: ClassVar = b"agree"
    #: as the agreement says itself
    name: str
    #: with its signature, which nobody has verified
    agreement: SExp = field(repr=False)

    @property
    def owner(self) -> Principal:
        """Whose types the agreement is about, as it says itself. Raises `MalformedError`."""
        return read_owner(_agreement_field(self.agreement, b"owner"))

    def to_sexp(self) -> SExp:
        """Return the change as it is signed."""
        return (self.HEAD, self.agreement)

    @classmethod
    def from_sexp(cls, body: SExp) -> Self:
        """Read the change. Raises `MalformedError` (`evolution.malformed`)."""
        match body:
            case (_, (b"sequence", (b"agreement", *_), (b"signature", *_)) as agreement):
                return cls(check_agreement_name(text(_agreement_field(agreement, b"name"))), agreement)
        raise malformed("an agreement is announced with its signature")


@dataclass(frozen=True, slots=True)
class EndAgreement(StatementRecord):
    """An agreement that counts no longer: rights on its types are what certificates say again."""

    HEAD: ClassVar = b"end-agreement"
    name: Annotated[str, _AGREEMENT_NAME, BARE]


@dataclass(frozen=True, slots=True)
class PublishProfiles(StatementRecord):
    """Profiles that the owner lets brokers use; others of the same principals are replaced."""

    HEAD: ClassVar = b"describe"
    profiles: Annotated[tuple[UnverifiedValue[ProfileClaim], ...], signed_form(ProfileClaim), BARE] = field(repr=False)


@dataclass(frozen=True, slots=True)
class ForgetProfiles(StatementRecord):
    """Principals whose profiles no longer count."""

    HEAD: ClassVar = b"forget"
    principals: Annotated[tuple[Principal, ...], BARE]


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
class PolicyEvent(Claim):
    """One step of an owner's policy."""

    HEAD: ClassVar = b"policy-event"
    ORDER: ClassVar = ("owner", "number", "previous", "time", "checkpoint", "changes")
    SIGNER: ClassVar = "owner"
    owner: Principal
    number: Annotated[int, count_form(POLICY_NUMBER, least=1)]
    previous: Annotated[bytes, DIGEST] = field(repr=False)
    time: datetime
    changes: tuple[Change, ...] = field(repr=False)
    #: how many of the following events belong to the checkpoint that this one begins; None where it begins none
    checkpoint: Annotated[int | None, count_form(POLICY_PARTS - 1)] = None

    @classmethod
    def from_sexp(cls, body: SExp) -> Self:
        """Read a body.

        Raises `MalformedError` (`evolution.malformed` and what certificates and types raise), `RefusedError`
        (`evolution.foreign-type`, `evolution.foreign-agreement`, and `*.signature-mismatch` of what it carries),
        `LimitError` (`evolution.limit`).
        """
        _check_size(body)
        return read_record(cls, body)

    def verify_fields(self) -> None:
        """Raise `MalformedError` for a place that no chain has, `RefusedError` for what is not the owner's."""
        if (self.number == 1) is not (self.previous == BEGINNING):
            raise malformed("policy events are counted from 1, and the first follows nothing")
        for change in self.changes:
            match change:
                case Install(unverified):
                    _check_owner(unverified.definition.name, self.owner)
                case Remove(name):
                    _check_owner(name, self.owner)
                case Agree() if change.owner != self.owner:
                    raise RefusedError(
                        "evolution.foreign-agreement",
                        "an agreement is about the types of somebody else than the owner of this policy",
                        hint="owners announce what was agreed about their own types",
                    )
            if self.checkpoint is not None and isinstance(change, Remove | EndAgreement | ForgetProfiles):
                raise malformed("a checkpoint starts from nothing, of which nothing can be removed")


def _check_size(body: SExp) -> None:
    if len(sexp_field(body, b"changes") or ()) - 1 > POLICY_CHANGES:
        raise LimitError("evolution.limit", f"a policy event has more than {POLICY_CHANGES} changes")
    if len(canonical(body)) > POLICY_EVENT_BYTES:
        raise LimitError(
            "evolution.limit",
            f"a policy event is larger than {POLICY_EVENT_BYTES} bytes",
            hint="say the rest in the next one",
        )


def _check_owner(name: TypeName, owner: Principal) -> None:
    if name.owner != owner:
        raise RefusedError(
            "evolution.foreign-type",
            f"`{name.name}` belongs to somebody else than the owner of this policy",
            hint="owners install and remove their own types",
        )


def _agreement_field(agreement: SExp, name: bytes) -> SExp:
    found = sexp_field(agreement[1], name) if isinstance(agreement, tuple) else None
    if found is None or len(found) != 2:
        raise malformed(f"an agreement has one `({name.decode()} …)` with one value")
    return found[1]


# ----------------------------------------------------------------------------------------------------------------------
# Time-stamps, and who has seen what (Belokosztolszki et al., section 6.3).
#
#     (time-stamp (owner <principal>) (number <n>) (head <bytes>) (time <date>) (period <milliseconds>)
#                 (by <principal>))
#     (hop-stamp (stamp <bytes>) (from <principal>) (to <principal>) (time <date>))
#     (acknowledgement (broker <principal>) (owner <principal>) (number <n>) (head <bytes>) (time <date>) (stamped))
#
# A time-stamp says how far an owner's policy is, and for how long a broker may go on without a newer one. The owner
# signs it, or somebody who holds the right `stamp` on all of the owner's types: `by` says who, and is left out of the
# owner's own. Whether that signer holds the right must be checked by the user of the stamp. Each broker that hands one
# on signs for the neighbour that gets it; one that is trusted no longer gets none. A broker acknowledges what it
# enforces; `stamped` adds that it stops by itself where stamps fail to come.


@dataclass(frozen=True, slots=True)
class TimeStamp(Claim):
    """At `time` the owner's chain ended with `number` and `head`, as far as the signer knew; good for `period` ms."""

    HEAD: ClassVar = b"time-stamp"
    owner: Principal
    number: int
    head: Annotated[bytes, DIGEST] = field(repr=False)
    time: datetime
    period: Annotated[int, count_form(STAMP_PERIOD, least=1)]
    #: who signs for the owner; None for the owner itself
    by: Principal | None = None

    @property
    def signer(self) -> Principal:
        """The owner, or who signs for it."""
        return self.owner if self.by is None else self.by

    @property
    def until(self) -> datetime:
        """The last instant at which a broker may use this stamp; the end of time where that lies beyond it."""
        room = datetime.max.replace(tzinfo=self.time.tzinfo) - self.time
        return self.time + min(timedelta(milliseconds=self.period), room)

    def verify_fields(self) -> None:
        """Raise `MalformedError` (`evolution.malformed`) for a place that no chain has, or a needless signer."""
        _verify_place(self.number, self.head)
        if self.by == self.owner:
            raise malformed("the owner's own time-stamp names nobody else who signs it")


@dataclass(frozen=True, slots=True)
class HopStamp(Claim):
    """A broker hands a time-stamp, known by its digest, to a neighbour that it trusts."""

    HEAD: ClassVar = b"hop-stamp"
    SIGNER: ClassVar = "sender"
    stamp: Annotated[bytes, DIGEST] = field(repr=False)
    sender: Annotated[Principal, Named(b"from")]
    receiver: Annotated[Principal, Named(b"to")]
    time: datetime


@dataclass(frozen=True, slots=True)
class Acknowledgement(Claim):
    """A broker enforces everything up to `number`; with `stamped` it delivers nothing where stamps fail to come."""

    HEAD: ClassVar = b"acknowledgement"
    SIGNER: ClassVar = "broker"
    broker: Principal
    owner: Principal
    number: int
    head: Annotated[bytes, DIGEST] = field(repr=False)
    time: datetime
    stamped: bool = False

    def verify_fields(self) -> None:
        """Raise `MalformedError` (`evolution.malformed`) for a place that no chain has."""
        _verify_place(self.number, self.head)


@dataclass(frozen=True, slots=True)
class CarriedStamp(StatementRecord):
    """A time-stamp as it travels, with the word of the broker that hands it on; its signer needs none."""

    HEAD: ClassVar = b"carried"
    stamp: Annotated[UnverifiedValue[TimeStamp], signed_form(TimeStamp), BARE]
    hop: Annotated[UnverifiedValue[HopStamp] | None, signed_form(HopStamp), BARE] = None


def _verify_place(number: int, head: bytes) -> None:
    if (number == 0) is not (head == BEGINNING):
        raise malformed("a chain without events has the head of the beginning, and no other has")
