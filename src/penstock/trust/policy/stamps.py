"""Time-stamps, and who has seen what (Belokosztolszki et al., section 6.3).

    (time-stamp (owner <principal>) (number <n>) (head <bytes>) (time <date>) (period <milliseconds>) (by <principal>))
    (hop-stamp (stamp <bytes>) (from <principal>) (to <principal>) (time <date>))
    (acknowledgement (broker <principal>) (owner <principal>) (number <n>) (head <bytes>) (time <date>) (stamped))

A time-stamp says how far an owner's policy is, and for how long a broker may go on without a newer one. The owner signs
it, or somebody who holds the right `stamp` on all of the owner's types: `by` says who, and is left out of the owner's
own. Whether that signer holds the right is for whoever goes by the stamp to find out. Each broker that hands one on
signs for the neighbour that gets it; one that is trusted no longer gets none. A broker acknowledges what it enforces;
`stamped` adds that it stops by itself where stamps fail to come.
"""

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import ClassVar

from penstock.codec.sexp import SExp
from penstock.codec.sexp import field as sexp_field
from penstock.model.limits import DEFAULT_LIMITS
from penstock.model.principals import Principal
from penstock.trust.policy.events import BEGINNING
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


@dataclass(frozen=True, slots=True)
class TimeStamp:
    """At `time` the owner's chain ended with `number` and `head`, as far as the signer knew; good for `period` ms."""

    HEAD: ClassVar = b"time-stamp"
    owner: Principal
    number: int
    head: bytes = field(repr=False)
    time: datetime
    period: int
    #: who signs for the owner; None for the owner itself
    by: Principal | None = None

    @property
    def signer(self) -> Principal:
        """The owner, or who signs for it."""
        return self.owner if self.by is None else self.by

    @property
    def until(self) -> datetime:
        """The last instant at which a broker may go by this stamp; the end of time where that lies beyond it."""
        room = datetime.max.replace(tzinfo=self.time.tzinfo) - self.time
        return self.time + min(timedelta(milliseconds=self.period), room)

    def to_sexp(self) -> SExp:
        """Return the body that is signed."""
        period = (b"period", str(self.period).encode())
        by: tuple[SExp, ...] = () if self.by is None else ((b"by", str(self.by).encode()),)
        return (self.HEAD, *_place(self.owner, self.number, self.head), time_field(self.time), period, *by)

    @classmethod
    def from_sexp(cls, body: SExp) -> "TimeStamp":
        """Read a body. Raises `MalformedError` (`evolution.malformed` and what the parts raise)."""
        period = read_count(one(body, b"period"), DEFAULT_LIMITS.stamp_period)
        if not period:
            raise malformed("a time-stamp is good for at least a millisecond")
        made = cls(*_read_place(body), read_time(body), period, _read_signer(body))
        if made.by == made.owner:
            raise malformed("the owner's own time-stamp names nobody else who signs it")
        return made


@dataclass(frozen=True, slots=True)
class HopStamp:
    """A broker hands a time-stamp, known by its digest, to a neighbour that it trusts."""

    HEAD: ClassVar = b"hop-stamp"
    stamp: bytes = field(repr=False)
    sender: Principal
    receiver: Principal
    time: datetime

    @property
    def signer(self) -> Principal:
        """The broker that hands it on."""
        return self.sender

    def to_sexp(self) -> SExp:
        """Return the body that is signed."""
        sender, receiver = (b"from", str(self.sender).encode()), (b"to", str(self.receiver).encode())
        return (self.HEAD, (b"stamp", self.stamp), sender, receiver, time_field(self.time))

    @classmethod
    def from_sexp(cls, body: SExp) -> "HopStamp":
        """Read a body. Raises `MalformedError` (`evolution.malformed` and what the parts raise)."""
        sender, receiver = read_owner(one(body, b"from")), read_owner(one(body, b"to"))
        return cls(read_digest(one(body, b"stamp")), sender, receiver, read_time(body))


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """A broker enforces everything up to `number`; with `stamped` it delivers nothing where stamps fail to come."""

    HEAD: ClassVar = b"acknowledgement"
    broker: Principal
    owner: Principal
    number: int
    head: bytes = field(repr=False)
    time: datetime
    stamped: bool = False

    @property
    def signer(self) -> Principal:
        """The broker."""
        return self.broker

    def to_sexp(self) -> SExp:
        """Return the body that is signed."""
        stamped: tuple[SExp, ...] = ((b"stamped",),) if self.stamped else ()
        place = _place(self.owner, self.number, self.head)
        return (self.HEAD, (b"broker", str(self.broker).encode()), *place, time_field(self.time), *stamped)

    @classmethod
    def from_sexp(cls, body: SExp) -> "Acknowledgement":
        """Read a body. Raises `MalformedError` (`evolution.malformed` and what the parts raise)."""
        broker, stamped = read_owner(one(body, b"broker")), sexp_field(body, b"stamped") is not None
        return cls(broker, *_read_place(body), read_time(body), stamped)


@dataclass(frozen=True, slots=True)
class CarriedStamp:
    """A time-stamp as it travels, with the word of the broker that hands it on; its signer needs none."""

    stamp: UnverifiedValue[TimeStamp]
    hop: UnverifiedValue[HopStamp] | None = None

    def to_sexp(self) -> SExp:
        """Return both as they travel."""
        return (b"carried", self.stamp.to_sexp(), *(() if self.hop is None else (self.hop.to_sexp(),)))

    @classmethod
    def from_sexp(cls, value: SExp) -> "CarriedStamp":
        """Read both. Raises what `read_signed` raises."""
        match value:
            case (b"carried", stamp):
                return cls(read_signed(stamp, TimeStamp))
            case (b"carried", stamp, hop):
                return cls(read_signed(stamp, TimeStamp), read_signed(hop, HopStamp))
        raise malformed("not a time-stamp on its way")


def _read_signer(body: SExp) -> Principal | None:
    return None if sexp_field(body, b"by") is None else read_owner(one(body, b"by"))


def _place(owner: Principal, number: int, head: bytes) -> tuple[SExp, ...]:
    return (b"owner", str(owner).encode()), (b"number", str(number).encode()), (b"head", head)


def _read_place(body: SExp) -> tuple[Principal, int, bytes]:
    number, head = read_count(one(body, b"number")), read_digest(one(body, b"head"))
    if (number == 0) is not (head == BEGINNING):
        raise malformed("a chain without events has the head of the beginning, and no other has")
    return read_owner(one(body, b"owner")), number, head
