"""Time-stamps, and who has seen what (Belokosztolszki et al., section 6.3).

    (time-stamp (owner <principal>) (number <n>) (head <bytes>) (time <date>) (period <milliseconds>) (by <principal>))
    (hop-stamp (stamp <bytes>) (from <principal>) (to <principal>) (time <date>))
    (acknowledgement (broker <principal>) (owner <principal>) (number <n>) (head <bytes>) (time <date>) (stamped))

A time-stamp says how far an owner's policy is, and for how long a broker may go on without a newer one. The owner signs
it, or somebody who holds the right `stamp` on all of the owner's types: `by` says who, and is left out of the owner's
own. Whether that signer holds the right must be checked by the user of the stamp. Each broker that hands one on
signs for the neighbour that gets it; one that is trusted no longer gets none. A broker acknowledges what it enforces;
`stamped` adds that it stops by itself where stamps fail to come.
"""

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Annotated, ClassVar

from penstock.codec.sexp import BARE, Named
from penstock.model.principals import Principal
from penstock.trust.limits import STAMP_PERIOD
from penstock.trust.policy.events import BEGINNING
from penstock.trust.signed import (
    DIGEST,
    Claim,
    StatementRecord,
    UnverifiedValue,
    count_form,
    malformed,
    signed_form,
)


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
