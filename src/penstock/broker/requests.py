"""What clients ask of their local broker, and what it says in return: to the router, to clients, and to its operator.

A client learns whether a request was accepted, and by which code it was refused. What it was granted of it, and which
right it lacks, is its operator's to know, and the client's only where the owner of the type lets it ask
(`Right.RESTRICTIONS`): how somebody is restricted may itself be sensitive (section 8 of the paper on Hermes).
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeAlias

from penstock.broker.entries import Filter
from penstock.broker.outputs import Output as Routed
from penstock.broker.routing import Router
from penstock.model.events import Event, TransitEvent
from penstock.model.names import NetworkName, TypeKey, TypeName
from penstock.model.principals import Principal
from penstock.selector import ALWAYS, Selector
from penstock.trust.capabilities import Right


class Verb(StrEnum):
    """What clients ask for."""

    CONNECT = "connect"
    ADD_TYPE = "add-type"
    REMOVE_TYPE = "remove-type"
    ADVERTISE = "advertise"
    UNADVERTISE = "unadvertise"
    SUBSCRIBE = "subscribe"
    UNSUBSCRIBE = "unsubscribe"
    PUBLISH = "publish"
    RESTRICTIONS = "restrictions"


@dataclass(frozen=True, slots=True)
class Asked:
    """A request as it was made. `id` is the client's name for the subscription or advertisement that it is about."""

    verb: Verb
    about: TypeName | NetworkName | None = None
    id: str = ""
    selector: Selector = field(default=ALWAYS, repr=False)


@dataclass(frozen=True, slots=True)
class Missing:
    """A right that a principal lacks: wholly, or for the attributes that are named."""

    right: Right
    about: TypeName | NetworkName
    attributes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Detail:
    """What was granted of a request, as plain data for each type it reaches, and what was not."""

    granted: tuple[tuple[TypeKey, dict[str, object]], ...] = field(default=(), repr=False)
    missing: tuple[Missing, ...] = ()
    #: codes of what kept credentials or sources from counting
    problems: tuple[str, ...] = ()


# To the router: its methods of the same names.


@dataclass(frozen=True, slots=True)
class Subscribe:
    """Have events of a type and its sub-types that pass a filter; `group` is whose it is."""

    key: str
    type: TypeKey
    filter: Filter = field(repr=False)
    group: str = field(default="", compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Unsubscribe:
    """Have them no longer."""

    key: str


@dataclass(frozen=True, slots=True)
class Advertise:
    """Announce events of a type that pass a filter."""

    key: str
    type: TypeKey
    ancestors: tuple[TypeKey, ...]
    filter: Filter = field(repr=False)


@dataclass(frozen=True, slots=True)
class Unadvertise:
    """Announce them no longer."""

    key: str


@dataclass(frozen=True, slots=True)
class Publish:
    """Send events under an advertisement."""

    key: str
    events: tuple[TransitEvent, ...]


ToRouter: TypeAlias = Subscribe | Unsubscribe | Advertise | Unadvertise | Publish


def carry_out(output: ToRouter, router: Router) -> list[Routed]:
    """Tell a router what the local broker wants of it. Raises what the router raises."""
    match output:
        case Subscribe(key, of_type, filter_, group):
            return router.subscribe(key, of_type, filter_, group)
        case Unsubscribe(key):
            return router.unsubscribe(key)
        case Advertise(key, of_type, ancestors, filter_):
            return router.advertise(key, of_type, ancestors, filter_)
        case Unadvertise(key):
            return router.unadvertise(key)
        case Publish(key, events):
            return router.publish(key, events)


# To clients.


@dataclass(frozen=True, slots=True)
class Accepted:
    """The request stands, wholly or in part; which of the two is not said.

    `keys` are those under which the router knows it: what was asked for comes when the paths of all of them are laid.
    """

    session: str
    asked: Asked
    keys: tuple[str, ...] = field(default=(), compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Refused:
    """The request was refused. The detail is there where the owner of the type lets the client ask.

    Of several events that were to be published, it was the one at `position`.
    """

    session: str
    asked: Asked
    code: str
    message: str
    detail: Detail | None = None
    hint: str = ""
    position: int = 0


@dataclass(frozen=True, slots=True)
class Given:
    """Events for a subscription, as the client may see them."""

    session: str
    subscription: str
    events: tuple[Event, ...] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Answered:
    """What `restrictions` found."""

    session: str
    asked: Asked
    detail: Detail


@dataclass(frozen=True, slots=True)
class Quenched:
    """Nobody wants what an advertisement announces (`quiet`), or somebody does again."""

    session: str
    advertisement: str
    quiet: bool


@dataclass(frozen=True, slots=True)
class Closed:
    """The session is over; its connection is to be closed."""

    session: str
    code: str


ToClient: TypeAlias = Accepted | Refused | Given | Answered | Quenched | Closed


@dataclass(frozen=True, slots=True)
class Report:
    """To the operator: what came of a request, or what became of it since. No code means that it stands."""

    session: str
    principal: Principal
    asked: Asked
    detail: Detail
    code: str = ""


Output: TypeAlias = ToRouter | ToClient | Report
