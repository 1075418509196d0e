"""Outputs of a router, and its settings."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias, overload

from penstock.broker.limits import BrokerLimits
from penstock.broker.routing.membership import TRUSTING, Admitted, AnnouncementProof, MayRoute, anybody, everybody
from penstock.broker.routing.messages import Hop
from penstock.broker.sealing.blocks import NoVault, Vault
from penstock.errors import PenstockError
from penstock.model.events import EventRows, TransitEvent
from penstock.model.names import TypeKey
from penstock.model.principals import Principal


@dataclass(frozen=True, slots=True)
class Send:
    """Send a message to a neighbour."""

    peer: Principal
    hop: Hop


_Delivery: TypeAlias = tuple[tuple[str, ...], TransitEvent]

Deliveries: TypeAlias = Sequence[_Delivery]
"""Events in the order of arrival, each with the keys of the clients' subscriptions that it matches: one at least."""


class RowDeliveries(Sequence[_Delivery]):
    """The same as rows: `keys` has those that each of the `events` matches."""

    __slots__ = ("events", "keys")

    def __init__(self, keys: Sequence[tuple[str, ...]], events: EventRows) -> None:
        if not all(keys):
            events = events.pick([place for place, found in enumerate(keys) if found])
            keys = [found for found in keys if found]
        self.keys = keys
        self.events = events

    def __len__(self) -> int:
        return len(self.keys)

    @overload
    def __getitem__(self, place: int) -> _Delivery: ...

    @overload
    def __getitem__(self, place: slice) -> Deliveries: ...

    def __getitem__(self, place: int | slice) -> _Delivery | Deliveries:
        return tuple(self)[place]

    def __iter__(self) -> Iterator[_Delivery]:
        return zip(self.keys, self.events, strict=True)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    __hash__ = None  # type: ignore[assignment]  # keys and rows are lists


@dataclass(frozen=True, slots=True)
class Deliver:
    """Deliver events to clients."""

    deliveries: Deliveries


@dataclass(frozen=True, slots=True)
class Cut:
    """Close the link to a neighbour that breaks the protocol or is silent."""

    peer: Principal
    reason: PenstockError


@dataclass(frozen=True, slots=True)
class Interested:
    """Tell a client whether any subscription in the network may match its advertisement."""

    key: str
    wanted: bool


@dataclass(frozen=True, slots=True)
class Disclosed:
    """Read another broker's new disclosure; it is empty once that broker is forgotten. `peer` has forwarded it.

    The router forwards it only after `believe`.
    """

    broker: Principal
    data: bytes = field(repr=False)
    peer: Principal | None = None


@dataclass(frozen=True, slots=True)
class Laid:
    """Tell a client that the paths of its requests are set up, or could not be confirmed in time."""

    token: str
    complete: bool = True


@dataclass(frozen=True, slots=True)
class Unsent:
    """Count events that a neighbour had subscribed to and did not get, because its link is lost."""

    peer: Principal
    events: int


@dataclass(frozen=True, slots=True)
class Unopened:
    """Quarantine and report a refused block: it does not open, is malformed, a replay, or from the wrong time.

    `block` is sealed as it arrived, and empty for events that arrived unsealed. `peer` has forwarded it.
    """

    origin: Principal
    block: bytes = field(repr=False)
    reason: PenstockError
    peer: Principal | None = None


Output: TypeAlias = Send | Deliver | Cut | Interested | Disclosed | Unopened | Unsent | Laid


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterSettings:
    """Settings of a router: permissions, proofs of announcements, times in seconds, and bounds.

    Call `Router.trust_changed` when the answers of `may_route` or `admitted` change.
    """

    may_route: MayRoute = everybody
    admitted: Admitted = anybody
    #: whether a type may go to a neighbour and come from it, by both of these, if the answer is cached
    may_pass: Callable[[TypeKey, Principal], bool] | None = None
    proof: AnnouncementProof = TRUSTING
    #: seals and opens events
    vault: Vault = field(default_factory=NoVault)
    #: the time between two signs of life, and after which a silent neighbour is cut off
    pulse: float = 5.0
    silence: float = 20.0
    #: how long unreachable brokers are remembered
    lifetime: float = 600.0
    #: whether a fabric is between brokers, and who writes to it seals what goes there
    on_fabric: bool = False
    limits: BrokerLimits


@dataclass(frozen=True, slots=True)
class Size:
    """How much a router holds: clients' requests, neighbours' entries here, and its entries with neighbours."""

    clients: int
    entered: int
    subscriptions: int
    told: int
    trees: int
    retained: int = 0
