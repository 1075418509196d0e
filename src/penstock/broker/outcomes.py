"""What came of a request: what was granted, what was not, and the refusal that says so to those who may know."""

from collections.abc import Iterable, Mapping
from typing import Final

from penstock.broker.effective import Offer, Part, Ruled
from penstock.broker.requests import Asked, Detail, Missing
from penstock.errors import PenstockError, RefusedError
from penstock.guard import ANYTIME, Branch, Decision, Effect
from penstock.model.names import NetworkName, TypeKey, TypeName
from penstock.model.types import EventType
from penstock.selector import ALWAYS
from penstock.trust.capabilities import Right

_NOTHING: Final = "no right to any of this"
_ENTERING: Final = {
    Right.CONNECT: "no right to connect to this network",
    Right.BROKER: "no right to be a broker of this network",
}


def subscribed(reader: EventType, parts: Mapping[TypeKey, Part], ruled: Iterable[Ruled]) -> Detail:
    """Say what a subscription to a type comes to."""
    ruled = list(ruled)
    granted = tuple((key, part.restriction.as_dict(reader)) for key, part in parts.items())
    missing: list[Missing] = []
    for one in ruled:
        event_type = one.type.event_type
        served = next((parts[key] for key in (event_type.key, *event_type.ancestors) if key in parts), None)
        if served is None:
            missing.append(Missing(Right.SUBSCRIBE, event_type.name))
        elif served.type == event_type.key:
            hidden = _hidden(reader, served.restriction.branches)
            missing += [Missing(Right.SUBSCRIBE, event_type.name, hidden)] if hidden else []
    return Detail(granted, tuple(missing), _problems(ruled))


def advertised(offers: Mapping[TypeName, Offer], ruled: Iterable[Ruled]) -> Detail:
    """Say what an advertisement comes to."""
    ruled = list(ruled)
    granted = tuple((o.type.key, o.publication.restriction.as_dict(o.type)) for o in offers.values())
    missing: list[Missing] = []
    for one in ruled:
        event_type = one.type.event_type
        offer = offers.get(event_type.name)
        hidden = () if offer is None else _hidden(event_type, offer.publication.restriction.branches)
        if offer is None or hidden:
            missing.append(Missing(Right.PUBLISH, event_type.name, hidden))
    return Detail(granted, tuple(missing), _problems(ruled))


def _hidden(event_type: EventType, branches: Iterable[Branch]) -> tuple[str, ...]:
    branches = list(branches)
    return tuple(a.name for a in event_type.attributes if not any(branch.shows(a.id) for branch in branches))


def _problems(ruled: Iterable[Ruled]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(problem.code for one in ruled for problem in one.recorded.decision.errors))


def settled(decision: Decision) -> bool:
    """Say whether a decision is a yes that nothing is left to be asked about: for rights that no event is about."""
    return decision.effect is Effect.PERMIT and any(
        branch.holds_where() == ALWAYS and not branch.guards and branch.when.condition == ANYTIME.condition
        for branch in decision.restriction.branches
    )


def require(decision: Decision, right: Right, about: TypeName | NetworkName) -> None:
    """Raise `RefusedError` (`broker.not-permitted`) unless a decision is a yes."""
    if not settled(decision):
        problems = tuple(dict.fromkeys(problem.code for problem in decision.errors))
        # Whoever connects knows that this is what it asked for.
        message = _ENTERING.get(right, _NOTHING)
        raise not_permitted(Detail(missing=(Missing(right, about),), problems=problems), message)


def not_permitted(detail: Detail, message: str = _NOTHING) -> RefusedError:
    """Return a refusal. Why a right is missing is in its detail, which is not for everybody."""
    return RefusedError(
        "broker.not-permitted",
        message,
        hint="ask the owner, or disclose further credentials",
        detail=detail,
    )


def detail_of(error: PenstockError) -> Detail | None:
    """Return the detail of a refusal, if it has one."""
    detail = error.fields.get("detail")
    return detail if isinstance(detail, Detail) else None


def unknown(asked: Asked) -> RefusedError:
    """Return the refusal of a request about another one that does not stand."""
    return RefusedError("broker.unknown-id", f"no request stands under `{asked.id[:80]}`")
