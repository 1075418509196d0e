"""A keeper that is driven as a broker drives it: what changes is enforced immediately, and what it says is kept."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from tests.trust.kit import NOW, key, who
from tests.trust.policy_kit import BROKER, OWNER

from penstock.broker.evolution.policy_keeper import (
    NO_SKEW,
    Acknowledge,
    Changed,
    Forked,
    Fresh,
    Output,
    PolicyKeeper,
    Resubscribe,
    Stale,
    UnusableEvent,
)
from penstock.broker.limits import BrokerLimits
from penstock.trust.policy_events import CarriedStamp, PolicyEvent, TimeStamp
from penstock.trust.policy_state import PolicyState
from penstock.trust.signed import SignedValue

DEFAULTS = BrokerLimits()


@dataclass
class PolicyNode:
    number: int = BROKER
    strict: bool = False
    skew: timedelta = NO_SKEW
    limits: BrokerLimits = DEFAULTS
    trusted: set[int] = field(default_factory=set)
    #: who may stamp for the owner
    stampers: set[int] = field(default_factory=set)
    enforces: bool = True
    now: datetime = NOW
    said: list[Output] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.keeper = PolicyKeeper(
            key(self.number),
            lambda _now, _owner, broker: any(broker == who(number) for number in self.trusted),
            stampers=lambda _now, _owner: frozenset(map(who, self.stampers)),
            strict=self.strict,
            skew=self.skew,
            limits=self.limits,
        )

    def event(self, *events: SignedValue[PolicyEvent]) -> list[Output]:
        return self._all(self.keeper.receive(self.now, event.unverified()) for event in events)

    def stamp(self, stamp: SignedValue[TimeStamp]) -> list[Output]:
        """Get a stamp from the owner itself."""
        return self._all([self.keeper.stamp(self.now, stamp.value.owner, CarriedStamp(stamp.unverified()))])

    def hear(self, sender: int, carried: CarriedStamp) -> list[Output]:
        return self._all([self.keeper.stamp(self.now, who(sender), carried)])

    def weigh(self) -> list[Output]:
        return self._all([self.keeper.weigh(self.now)])

    def restore(self, data: bytes) -> list[Output]:
        return self._all([self.keeper.restore(self.now, data)])

    def tick(self, now: datetime | None = None) -> list[Output]:
        self.now = now or self.now
        return self._all([self.keeper.tick(self.now)[0]])

    def _all(self, outputs: Iterable[list[Output]]) -> list[Output]:
        said: list[Output] = []
        for batch in outputs:
            for output in batch:
                said.append(output)
                if isinstance(output, Changed) and self.enforces:
                    said += self.keeper.enforced(self.now, output.owner, output.number)
        self.said += said
        return said

    @property
    def state(self) -> PolicyState:
        return self.keeper.state(who(OWNER))

    def delivers(self, now: datetime | None = None) -> bool:
        return self.keeper.delivers(now or self.now, who(OWNER))


def names(outputs: list[Output]) -> list[str]:
    """Return what was said, in short."""
    short: list[str] = []
    for output in outputs:
        match output:
            case Changed(_, number):
                short.append(f"changed {number}")
            case Acknowledge(ack):
                short.append(f"ack {ack.value.number}{' stamped' if ack.value.stamped else ''}")
            case Stale(_, reason):
                short.append(str(reason))
            case Fresh():
                short.append("fresh")
            case Resubscribe():
                short.append("resubscribe")
            case Forked(_, fork):
                short.append(f"fork {fork.number}")
            case UnusableEvent(_, number, code):
                short.append(f"unusable {number} {code}")
    return short
