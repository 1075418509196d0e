"""The requests of clients, and the outputs of the local broker: to the router, to clients, and to its operator.

A client learns whether a request was accepted, by which code it was refused, and which of the certificates that it
showed are revoked. What it was granted of the request, and what it lacks, is its operator's to know, and the client's
only where the owner of the type lets it ask (`Right.RESTRICTIONS`): how somebody is restricted may itself be sensitive
(section 8 of the paper on Hermes).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any, TypeAlias

from penstock.broker.local.effective_requests import Offer, Ruled, SubscriptionPart
from penstock.broker.routing.outputs import Output as Routed
from penstock.broker.routing.router import Router
from penstock.broker.wire.entries import Filter
from penstock.errors import PenstockError, RefusedError
from penstock.guard import ANYTIME, Branch, Decision, Effect
from penstock.model.events import Event, TransitEvent
from penstock.model.names import NetworkName, TypeKey, TypeName
from penstock.model.principals import Principal
from penstock.model.types import EventType
from penstock.selector import ALWAYS, Selector
from penstock.trust.capabilities import Right
from penstock.trust.refusals import LackedRight, RevokedCertificate, RightChange


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
    WATCH_RIGHTS = "watch-rights"


@dataclass(frozen=True, slots=True)
class ClientRequest:
    """A request as it was made. `id` is the client's name for the subscription or advertisement that it is about."""

    verb: Verb
    about: TypeName | NetworkName | None = None
    id: str = ""
    selector: Selector = field(default=ALWAYS, repr=False)


@dataclass(frozen=True, slots=True)
class MissingRight:
    """A right that a principal lacks: wholly, or for the attributes that are named."""

    right: Right
    about: TypeName | NetworkName
    attributes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Detail:
    """What was granted of a request, as plain data for each type it reaches, and what was not."""

    granted: tuple[tuple[TypeKey, dict[str, object]], ...] = field(default=(), repr=False)
    missing: tuple[MissingRight, ...] = ()
    #: codes of what kept credentials or sources from counting
    problems: tuple[str, ...] = ()


# To the router: its methods of the same names.


@dataclass(frozen=True, slots=True)
class Subscribe:
    """Receive events of a type and its sub-types that pass a filter; `group` names the owner of the subscription."""

    key: str
    type: TypeKey
    filter: Filter = field(repr=False)
    group: str = field(default="", compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Unsubscribe:
    """End a subscription."""

    key: str


@dataclass(frozen=True, slots=True)
class Advertise:
    """Advertise events of a type that pass a filter."""

    key: str
    type: TypeKey
    ancestors: tuple[TypeKey, ...]
    filter: Filter = field(repr=False)


@dataclass(frozen=True, slots=True)
class Unadvertise:
    """End an advertisement."""

    key: str


@dataclass(frozen=True, slots=True)
class Publish:
    """Send events under an advertisement."""

    key: str
    events: Sequence[TransitEvent]


ToRouter: TypeAlias = Subscribe | Unsubscribe | Advertise | Unadvertise | Publish


def carry_out(output: ToRouter, router: Router) -> list[Routed]:
    """Carry out an output at the router. Raises what the router raises."""
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
    """The request is active, wholly or in part; the client does not learn which.

    `keys` are its entries in the router: events arrive when the paths of all of them are laid.
    """

    session: str
    asked: ClientRequest
    keys: tuple[str, ...] = field(default=(), compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Refused:
    """The request was refused. The detail is there where the owner of the type lets the client ask.

    Of several events that were to be published, it was the one at `position`. If a right was missing, `lacked` says
    which one, and `revoked` which of the client's certificates are revoked; nobody knows here since when.
    """

    session: str
    asked: ClientRequest
    code: str
    message: str
    detail: Detail | None = None
    hint: str = ""
    position: int = 0
    lacked: LackedRight | None = None
    revoked: tuple[RevokedCertificate, ...] = ()


@dataclass(slots=True)
class Given:
    """Events for a subscription, as the client may see them. Nobody changes one; it is not frozen, to save time."""

    session: str
    subscription: str
    type: EventType
    #: id, time and values of each
    rows: list[list[Any]] = field(repr=False)

    @property
    def events(self) -> tuple[Event, ...]:
        """The same as events, for whoever looks into it."""
        names = self.type.by_name
        return tuple(
            Event(self.type, MappingProxyType(dict(zip(names, values, strict=True))), id_, time)
            for id_, time, *values in self.rows
        )


@dataclass(frozen=True, slots=True)
class Answered:
    """How a request is restricted."""

    session: str
    asked: ClientRequest
    detail: Detail


@dataclass(frozen=True, slots=True)
class Quenched:
    """Nobody subscribes to what is advertised (`quiet`), or somebody does again."""

    session: str
    advertisement: str
    quiet: bool


@dataclass(frozen=True, slots=True)
class RightChanged:
    """The right to an active request has changed, and its client watches that.

    `refused` says why nothing of it is permitted: what the client would get if it asked now. The detail is there where
    the owner of the type lets the client ask; a client that may not ask does not learn that its request is restricted
    in another way.
    """

    session: str
    asked: ClientRequest
    change: RightChange
    refused: Refused | None = None
    detail: Detail | None = None


@dataclass(frozen=True, slots=True)
class Closed:
    """The session has ended: close its connection."""

    session: str
    code: str


ToClient: TypeAlias = Accepted | Refused | Given | Answered | Quenched | RightChanged | Closed


@dataclass(frozen=True, slots=True)
class RequestReport:
    """To the operator: the outcome of a request, or of working it out again. Without a code it is active."""

    session: str
    principal: Principal
    asked: ClientRequest
    detail: Detail
    code: str = ""


Output: TypeAlias = ToRouter | ToClient | RequestReport


# ----------------------------------------------------------------------------------------------------------------------
# The outcome of a request: what was granted, what was not, and the refusal.


def subscribed(reader: EventType, parts: Mapping[TypeKey, SubscriptionPart], ruled: Iterable[Ruled]) -> Detail:
    """Return the detail of an effective subscription to a type."""
    ruled = list(ruled)
    granted = tuple((key, part.restriction.as_dict(reader)) for key, part in parts.items())
    missing: list[MissingRight] = []
    for one in ruled:
        event_type = one.type.event_type
        served = next((parts[key] for key in (event_type.key, *event_type.ancestors) if key in parts), None)
        if served is None:
            missing.append(MissingRight(Right.SUBSCRIBE, event_type.name))
        elif served.type == event_type.key:
            hidden = _hidden(reader, served.restriction.branches)
            missing += [MissingRight(Right.SUBSCRIBE, event_type.name, hidden)] if hidden else []
    return Detail(granted, tuple(missing), _problems(ruled))


def advertised(offers: Mapping[TypeName, Offer], ruled: Iterable[Ruled]) -> Detail:
    """Return the detail of an effective advertisement."""
    ruled = list(ruled)
    granted = tuple((o.type.key, o.publication.restriction.as_dict(o.type)) for o in offers.values())
    missing: list[MissingRight] = []
    for one in ruled:
        event_type = one.type.event_type
        offer = offers.get(event_type.name)
        hidden = () if offer is None else _hidden(event_type, offer.publication.restriction.branches)
        if offer is None or hidden:
            missing.append(MissingRight(Right.PUBLISH, event_type.name, hidden))
    return Detail(granted, tuple(missing), _problems(ruled))


def _hidden(event_type: EventType, branches: Iterable[Branch]) -> tuple[str, ...]:
    branches = list(branches)
    return tuple(a.name for a in event_type.attributes if not any(branch.shows(a.id) for branch in branches))


def _problems(ruled: Iterable[Ruled]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(problem.code for one in ruled for problem in one.recorded.decision.errors))


def settled(decision: Decision) -> bool:
    """Say whether a decision permits without further conditions: for rights that do not concern events."""
    return decision.effect is Effect.PERMIT and any(
        branch.holds_where() == ALWAYS and not branch.guards and branch.when.condition == ANYTIME.condition
        for branch in decision.restriction.branches
    )


def require(decision: Decision, who: Principal, right: Right, about: TypeName | NetworkName) -> None:
    """Raise `RefusedError` (`broker.not-permitted`) unless a decision permits without conditions."""
    if not settled(decision):
        problems = tuple(dict.fromkeys(problem.code for problem in decision.errors))
        detail = Detail(missing=(MissingRight(right, about),), problems=problems)
        raise not_permitted(LackedRight(who, right, about), detail)


def not_permitted(lacked: LackedRight, detail: Detail) -> RefusedError:
    """Return a refusal. Its detail says what was granted, and why no more; not every client may see the detail."""
    return lacked.refuse("broker.not-permitted", detail=detail)


def detail_of(error: PenstockError) -> Detail | None:
    """Return the detail of a refusal, if it has one."""
    detail = error.fields.get("detail")
    return detail if isinstance(detail, Detail) else None


def unknown(asked: ClientRequest) -> RefusedError:
    """Return the refusal of a request about a request that is not active."""
    return RefusedError("broker.unknown-id", f"no active request has the id `{asked.id[:80]}`")
