"""Policy events, by which an owner changes its policy: each is signed, numbered and chained to the one before.

    (policy-event (owner <principal>) (number <n>) (previous <bytes>) (time <date>)
                  (checkpoint <parts>) (changes <change> …))
    <change>  (publish <certificate> <signature> …) | (revoke <certificate id> …) | (require-stamps)
              (install (sequence <definition> <signature>)) | (remove <owner> <name> <version>)
              (agree (sequence <agreement> <signature>)) | (end-agreement <name>)
              (describe (sequence <profile> <signature>) …) | (forget <principal> …)

Numbers begin with 1. `previous` is the digest of the previous body, and 32 zero bytes in the first event. The changes
of a checkpoint, together with those of the following events that it announces, are the whole state: they start from
nothing, and they take effect together. So no earlier events are needed.

The content of an agreement is read by `penstock.guard.agreements`. Here it has an owner and a name, and replaces the
previous agreement of that name.
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
"""The `previous` of a chain's first event."""

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


CREDENTIALS: Final[ListForm[UnverifiedCredentials]] = ListForm(lambda bag: bag.to_sexp()[1:], collect_credentials)
CERTIFICATE_ID: Final = Form(str.encode, _read_id)
_DEFINITION: Final = Form(UnverifiedType.to_sexp, _read_definition)
_TYPE_NAME: Final[ListForm[TypeName]] = ListForm(
    lambda name: (str(name.owner).encode(), name.name.encode(), name.version.encode()), _read_type_name
)
_AGREEMENT_NAME: Final = Form(str.encode, lambda value: check_agreement_name(text(value)))


@dataclass(frozen=True, slots=True)
class PublishCertificates(StatementRecord):
    """Certificates that brokers may use: grants and names, of the owner and of others."""

    HEAD: ClassVar = b"publish"
    credentials: Annotated[UnverifiedCredentials, CREDENTIALS, BARE] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Revoke(StatementRecord):
    """Revoke certificates, by their ids, whoever presents them. This cannot be undone."""

    HEAD: ClassVar = b"revoke"
    certificates: Annotated[tuple[str, ...], CERTIFICATE_ID, BARE]


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
    """Require that brokers without a fresh time-stamp of the owner deliver none of its types."""

    HEAD: ClassVar = b"require-stamps"


@dataclass(frozen=True, slots=True)
class Agree(StatementRecord):
    """Rules that were agreed on about the owner's types; others under the same name are replaced."""

    HEAD: ClassVar = b"agree"
    #: as the agreement says itself
    name: str
    #: with its signature, which is not verified
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
    """End an agreement: certificates alone decide about its types again."""

    HEAD: ClassVar = b"end-agreement"
    name: Annotated[str, _AGREEMENT_NAME, BARE]


@dataclass(frozen=True, slots=True)
class PublishProfiles(StatementRecord):
    """Profiles that the owner lets brokers use; others of the same principals are replaced."""

    HEAD: ClassVar = b"describe"
    profiles: Annotated[tuple[UnverifiedValue[ProfileClaim], ...], signed_form(ProfileClaim), BARE] = field(repr=False)


@dataclass(frozen=True, slots=True)
class ForgetProfiles(StatementRecord):
    """Remove the profiles of principals."""

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
    #: how many of the following events belong to the checkpoint that this one begins; None if it does not begin one
    checkpoint: Annotated[int | None, count_form(POLICY_PARTS - 1)] = None

    @classmethod
    def from_sexp(cls, body: SExp) -> Self:
        """Read a body.

        Raises `MalformedError` (`evolution.malformed` and what certificates and types raise), `RefusedError`
        (`evolution.foreign-type`, `evolution.foreign-agreement`, and `*.signature-mismatch` of its content),
        `LimitError` (`evolution.limit`).
        """
        _check_size(body)
        return read_record(cls, body)

    def verify_fields(self) -> None:
        """Raise `MalformedError` for an impossible position in a chain, `RefusedError` for content of another owner."""
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
                        "the agreement is about types of another owner than this policy's",
                        hint="let each owner announce the agreements about its own types",
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
            hint="put the rest into the next one",
        )


def _check_owner(name: TypeName, owner: Principal) -> None:
    if name.owner != owner:
        raise RefusedError(
            "evolution.foreign-type",
            f"`{name.name}` belongs to another owner than this policy",
            hint="owners install and remove their own types",
        )


def _agreement_field(agreement: SExp, name: bytes) -> SExp:
    found = sexp_field(agreement[1], name) if isinstance(agreement, tuple) else None
    if found is None or len(found) != 2:
        raise malformed(f"an agreement has one `({name.decode()} …)` with one value")
    return found[1]


# ----------------------------------------------------------------------------------------------------------------------
# Time-stamps and acknowledgements (Belokosztolszki et al., section 6.3).
#
#     (time-stamp (owner <principal>) (number <n>) (head <bytes>) (time <date>) (period <milliseconds>)
#                 (by <principal>))
#     (hop-stamp (stamp <bytes>) (from <principal>) (to <principal>) (time <date>))
#     (acknowledgement (broker <principal>) (owner <principal>) (number <n>) (head <bytes>) (time <date>) (stamped))
#
# A time-stamp contains the head of an owner's policy, and how long a broker may continue without a newer one. The owner
# signs it, or a principal with the right `stamp` on all of the owner's types. `by` names that principal, and is left
# out if the owner signs. The user of the stamp must check that the signer has the right. Each broker that forwards a
# stamp signs it for the neighbour that receives it. A neighbour that is no longer trusted receives none. A broker
# acknowledges the policy that it enforces. `stamped` adds that it stops by itself without fresh stamps.


@dataclass(frozen=True, slots=True)
class TimeStamp(Claim):
    """At `time` the owner's chain ended with `number` and `head`, as far as the signer knew. Valid for `period` ms."""

    HEAD: ClassVar = b"time-stamp"
    owner: Principal
    number: int
    head: Annotated[bytes, DIGEST] = field(repr=False)
    time: datetime
    period: Annotated[int, count_form(STAMP_PERIOD, least=1)]
    #: the principal that signs for the owner; None for the owner itself
    by: Principal | None = None

    @property
    def signer(self) -> Principal:
        """The owner, or the principal that signs for it."""
        return self.owner if self.by is None else self.by

    @property
    def until(self) -> datetime:
        """The last instant at which a broker may use this stamp, at most the largest `datetime`."""
        room = datetime.max.replace(tzinfo=self.time.tzinfo) - self.time
        return self.time + min(timedelta(milliseconds=self.period), room)

    def verify_fields(self) -> None:
        """Raise `MalformedError` (`evolution.malformed`) for an impossible position, or a needless signer."""
        _verify_place(self.number, self.head)
        if self.by == self.owner:
            raise malformed("the owner's own time-stamp must not name another signer")


@dataclass(frozen=True, slots=True)
class HopStamp(Claim):
    """A broker forwards a time-stamp, known by its digest, to a neighbour that it trusts."""

    HEAD: ClassVar = b"hop-stamp"
    SIGNER: ClassVar = "sender"
    stamp: Annotated[bytes, DIGEST] = field(repr=False)
    sender: Annotated[Principal, Named(b"from")]
    receiver: Annotated[Principal, Named(b"to")]
    time: datetime


@dataclass(frozen=True, slots=True)
class Acknowledgement(Claim):
    """A broker enforces everything up to `number`. With `stamped` it stops delivering without fresh stamps."""

    HEAD: ClassVar = b"acknowledgement"
    SIGNER: ClassVar = "broker"
    broker: Principal
    owner: Principal
    number: int
    head: Annotated[bytes, DIGEST] = field(repr=False)
    time: datetime
    stamped: bool = False

    def verify_fields(self) -> None:
        """Raise `MalformedError` (`evolution.malformed`) for an impossible position in a chain."""
        _verify_place(self.number, self.head)


@dataclass(frozen=True, slots=True)
class CarriedStamp(StatementRecord):
    """A time-stamp in transit, with the hop-stamp of the broker that forwards it. Its signer needs none."""

    HEAD: ClassVar = b"carried"
    stamp: Annotated[UnverifiedValue[TimeStamp], signed_form(TimeStamp), BARE]
    hop: Annotated[UnverifiedValue[HopStamp] | None, signed_form(HopStamp), BARE] = None


def _verify_place(number: int, head: bytes) -> None:
    if (number == 0) is not (head == BEGINNING):
        raise malformed("only a chain without events has an empty head")
