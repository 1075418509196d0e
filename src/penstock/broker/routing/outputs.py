"""Outputs of a router, and its settings."""

from dataclasses import dataclass, field
from typing import TypeAlias

from penstock.broker.limits import BrokerLimits
from penstock.broker.routing.membership import TRUSTING, Admitted, AnnouncementProof, MayRoute, anybody, everybody
from penstock.broker.routing.messages import Hop
from penstock.broker.sealing.blocks import NoVault, Vault
from penstock.errors import PenstockError
from penstock.model.events import TransitEvent
from penstock.model.principals import Principal


@dataclass(frozen=True, slots=True)
class Send:
    """Say something to a neighbour."""

    peer: Principal
    hop: Hop


Deliveries: TypeAlias = tuple[tuple[tuple[str, ...], TransitEvent], ...]
"""Events in the order of their arrival, each with the keys of the clients' subscriptions that it matches."""


@dataclass(frozen=True, slots=True)
class Deliver:
    """Give events to clients."""

    deliveries: Deliveries


@dataclass(frozen=True, slots=True)
class Cut:
    """Close the link to a neighbour, which breaks the rules or has fallen silent."""

    peer: Principal
    reason: PenstockError


@dataclass(frozen=True, slots=True)
class Interested:
    """Somebody in the network wants what a client has advertised under this key, or nobody does."""

    key: str
    wanted: bool


@dataclass(frozen=True, slots=True)
class Disclosed:
    """Another broker discloses this now; nothing at all once it is forgotten. `peer` is who handed it on.

    The router waits for `believe` before it passes anything on.
    """

    broker: Principal
    data: bytes = field(repr=False)
    peer: Principal | None = None


@dataclass(frozen=True, slots=True)
class Laid:
    """The paths of what a client has asked for are laid; or that could not be confirmed in time."""

    token: str
    complete: bool = True


@dataclass(frozen=True, slots=True)
class Unsent:
    """Events that a neighbour had asked for were not passed on to it: the link to it is lost."""

    peer: Principal
    events: int


@dataclass(frozen=True, slots=True)
class Unopened:
    """A sealed block is refused: it does not open, or is not what it says, or should have come at another time.

    `block` is as it came, sealed, and empty for events that came as they are. `peer` is who handed it on.
    """

    origin: Principal
    block: bytes = field(repr=False)
    reason: PenstockError
    peer: Principal | None = None


Output: TypeAlias = Send | Deliver | Cut | Interested | Disclosed | Unopened | Unsent | Laid


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterSettings:
    """Settings of a router: who it trusts, how announcements are proved, times in seconds, and bounds.

    When the answers of `may_route` or `admitted` change, call `Router.trust_changed`.
    """

    may_route: MayRoute = everybody
    admitted: Admitted = anybody
    proof: AnnouncementProof = TRUSTING
    #: what is sealed and opened here
    vault: Vault = field(default_factory=NoVault)
    #: between two signs of life, and until a neighbour without one is cut off
    pulse: float = 5.0
    silence: float = 20.0
    #: how long brokers are remembered that cannot be reached
    lifetime: float = 600.0
    #: whether a fabric is between brokers, and who writes to it seals what goes there
    on_fabric: bool = False
    limits: BrokerLimits


@dataclass(frozen=True, slots=True)
class Size:
    """How much a router holds: what its clients asked for, what neighbours entered, what it entered with them."""

    clients: int
    entered: int
    subscriptions: int
    told: int
    trees: int
    retained: int = 0
