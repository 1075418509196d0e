"""What carries statements about policy between brokers: a port. Behind it are `policy_gossip` and `fabric_network`.

Brokers keep policy themselves, verified and bounded by owner (`evolution`), and serve it from there: a network keeps
nothing. Over links, neighbours compare how far they are (`policy_gossip`). On a fabric, statements have topics.
Time-stamps over links are signed by each neighbour for the next (section 6.3), because a broker that is not trusted any
more must get none. On a fabric they come from their owner alone.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Protocol

from penstock.broker.policy_transport import Statement
from penstock.model.events import TransitEvent
from penstock.model.principals import Principal
from penstock.trust.policy_events import PolicyEvent
from penstock.trust.signed import SignedValue
from penstock.trust.stamps import Acknowledgement, TimeStamp


class PolicyBook(Protocol):
    """What a broker knows of owners' policies: verified statements only. `Policies` is one."""

    def owners(self) -> Iterable[Principal]:
        """Return the owners whose policy this broker keeps."""

    def carries(self, owner: Principal) -> bool:
        """Say whether this broker keeps the policy of an owner; begin to keep it if it must."""

    def top(self, owner: Principal) -> SignedValue[PolicyEvent] | None:
        """Return the owner's event with the highest number."""

    def applied(self, owner: Principal) -> int:
        """Return the number of the last event that was applied."""

    def has(self, owner: Principal, number: int, digest: bytes) -> bool:
        """Say whether an event of the owner would change nothing, by its number and digest."""

    def events(self, owner: Principal) -> Sequence[SignedValue[PolicyEvent]]:
        """Return the owner's events from the last checkpoint on."""

    def fork(self, owner: Principal) -> Sequence[SignedValue[PolicyEvent]]:
        """Return the events that show that an owner has forked its policy; none if it has not."""

    def acknowledgements(self, owner: Principal) -> Iterable[SignedValue[Acknowledgement]]:
        """Return the last acknowledgement of each broker to an owner."""

    def acknowledged(self, owner: Principal, broker: Principal) -> datetime | None:
        """Return when the last acknowledgement of a broker was signed."""

    def statements(self) -> Iterable[Statement]:
        """Return what this broker knows of all owners' policies, and has acknowledged itself."""

    def take_events(self, now: datetime, events: Sequence[SignedValue[PolicyEvent]]) -> None:
        """Take in verified events of one owner."""

    def take_acknowledgement(self, now: datetime, acknowledgement: SignedValue[Acknowledgement]) -> None:
        """Take in a verified acknowledgement."""

    def arrived(self, now: datetime, event: TransitEvent) -> None:
        """Take a statement that came as an event, and that nobody has verified yet."""

    def linked(self, peer: Principal) -> None:
        """Take note of a new link to a neighbour."""

    def compared(self) -> None:
        """Take note that a network may have learned how far owners' chains go."""


class PolicyNetwork(Protocol):
    """See the module."""

    def attach(self, book: PolicyBook) -> None:
        """Serve what this book holds, and bring it what arrives. Called once, before anything else."""

    def follow(self, owner: Principal) -> None:
        """Ask for what an owner says, and for what is acknowledged to it: now, and from now on. Called once."""

    def ask_again(self, owner: Principal) -> None:
        """Ask again for what there is of an owner that is followed."""

    def is_compared(self, owner: Principal) -> bool:
        """Say whether it is known how far an owner's chain goes, as far as other brokers can tell."""

    def publish(self, statement: Statement) -> None:
        """Send a verified statement to all brokers that follow its owner."""

    def stamped(self, stamp: SignedValue[TimeStamp]) -> None:
        """Let others have a time-stamp that its owner has handed in here, if no broker has to sign for it."""

    def neighbours(self) -> Iterable[Principal]:
        """Return the neighbours for whom stamps are signed here."""

    def hand_on(self, peer: Principal, stamp: bytes) -> None:
        """Give a neighbour a stamp that was signed for it."""
