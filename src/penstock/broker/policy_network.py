"""What carries statements about policy between brokers: a port, and the routed network behind it.

A network gives what arrives to `arrived`, and keeps what is published for those who ask later. Time-stamps are the
exception: in a routed network each neighbour signs them for the next (section 6.3), because who is trusted no longer is
to get none; where there are no neighbours they come from their owner alone.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import datetime
from typing import Final, Protocol, TypeAlias

from penstock.broker.core import Core
from penstock.broker.exchange import OWN
from penstock.broker.neighbours import Neighbours
from penstock.broker.policy_transport import ACKNOWLEDGEMENT, POLICY, Statement, wrap
from penstock.model.events import TransitEvent
from penstock.model.names import TypeKey
from penstock.model.principals import Principal
from penstock.trust.signed import SignedValue
from penstock.trust.stamps import CarriedStamp, TimeStamp

Arrived: TypeAlias = Callable[[datetime, TransitEvent], None]
"""Takes an event about policy, which nobody has verified yet."""

_KEYS: Final = {name: f"{OWN}{name.rpartition('.')[2]} " for name in (POLICY, ACKNOWLEDGEMENT)}


def nobody(_now: datetime, _event: TransitEvent) -> None:
    """Take no event."""


class PolicyNetwork(Protocol):
    """See the module."""

    #: told of what arrives
    arrived: Arrived

    def follow(self, owner: Principal) -> None:
        """Ask for what an owner says, and for what is acknowledged to it: now, and from now on. It is called once."""

    def ask_again(self, owner: Principal) -> None:
        """Ask once more for what there is of an owner that is followed."""

    def publish(self, statement: Statement) -> None:
        """Send a statement to all brokers that follow its owner, who is followed here, and let it be kept."""

    def stamped(self, stamp: SignedValue[TimeStamp]) -> None:
        """Let others have a time-stamp that its owner has handed in here, where nobody has to sign for it."""

    def neighbours(self) -> Iterable[Principal]:
        """Return those for whom stamps are signed here."""

    def hand_on(self, peer: Principal, stamp: bytes) -> None:
        """Give a neighbour a stamp that was signed for it."""


class RoutedPolicy:
    """Statements travel as retained events of the router, under keys of the broker itself; stamps from link to link."""

    def __init__(self, core: Core, neighbours: Neighbours) -> None:
        self._core = core
        self._neighbours = neighbours
        self.arrived: Arrived = nobody
        core.exchange.own.update(dict.fromkeys(_KEYS, self._hear))

    def follow(self, owner: Principal) -> None:
        """Advertise and subscribe to what is said about an owner's policy."""
        core, router = self._core, self._core.router
        for name, key in _KEYS.items():
            core.settle(router.advertise(f"{key}{owner}", TypeKey(owner, name)))
        for name, key in _KEYS.items():
            core.settle(router.subscribe(f"{key}{owner}", TypeKey(owner, name)))

    def ask_again(self, owner: Principal) -> None:
        """Subscribe anew: that doubles as a request for the current state."""
        core, key = self._core, f"{_KEYS[POLICY]}{owner}"
        core.settle(core.router.unsubscribe(key))
        core.settle(core.router.subscribe(key, TypeKey(owner, POLICY)))

    def publish(self, statement: Statement) -> None:
        """Publish a statement as a retained event."""
        retained = wrap(statement)
        value = statement.stamp.value if isinstance(statement, CarriedStamp) else statement.value
        event = replace(retained.event, id=retained.slot, time=value.time)
        key = f"{_KEYS[event.key.name]}{event.key.owner}"
        self._core.settle(self._core.router.publish(key, (event,), retained.slot))

    def _hear(self, now: datetime, event: TransitEvent) -> None:
        self.arrived(now, event)

    def stamped(self, stamp: SignedValue[TimeStamp]) -> None:
        """Do nothing: each neighbour gets its own."""

    def neighbours(self) -> Iterable[Principal]:
        """Return the brokers to whom there is a link."""
        return self._neighbours.up()

    def hand_on(self, peer: Principal, stamp: bytes) -> None:
        """Send a stamp over the link."""
        self._neighbours.send_stamp(peer, stamp)
