"""What is left of a policy as a restriction, so that who publishes or subscribes is decided once, and events quickly.

Where a policy tells attributes apart (`urn:penstock:attribute:name`, `urn:penstock:attribute:id`) it is asked about
each attribute of the type: an event is shown where one attribute of it is permitted, with those that are. Other
policies permit events whole.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

from penstock.guard.restriction import Branch, Restriction, When
from penstock.model.names import AttributeId
from penstock.model.types import EventType
from penstock.model.values import Schema
from penstock.policy.datatypes import STRING
from penstock.policy.event_attributes import ATTRIBUTE_ID, ATTRIBUTE_NAME, EventNames, event_names
from penstock.policy.lookup import Sources
from penstock.policy.policies import Root
from penstock.policy.requests import RESOURCE, Facts, key_of
from penstock.policy.residual import Residual, residual
from penstock.trust.capabilities import Right

#: what a policy asks for that tells attributes apart
_WHICH: Final = frozenset(key_of(RESOURCE, name, STRING) for name in (ATTRIBUTE_NAME, ATTRIBUTE_ID))


def residual_restriction(  # noqa: PLR0913  # what is known of a request
    root: Root,
    known: Facts,
    action: Right,
    event_type: EventType,
    *,
    names: EventNames | None = None,
    environment: Schema | None = None,
    sources: Sources | None = None,
    understood: frozenset[str] = frozenset(),
) -> Restriction:
    """Return what a policy permits of events of a type, given all that is known but the event.

    `understood` are the obligations that whoever enforces it meets; what is permitted with others is not. With
    `environment`, what brokers know of the moment may be asked for. Raises `RefusedError`: `policy.residual-fragment`,
    `policy.residual-limit`.
    """
    called = names or event_names(event_type)

    def left(facts: Facts) -> Residual:
        return residual(root, facts, called, environment=environment, sources=sources)

    found: list[tuple[AttributeId, Residual]] = []
    for attribute in event_type.attributes:
        one = left({**known, **called.of(attribute)})
        if not one.asked & _WHICH:
            return Restriction.of(_whole(one, action, understood))
        found.append((attribute.id, one))
    if not found:
        return Restriction.of(_whole(left(known), action, understood))
    return Restriction.of(_by_attributes(found, action, understood))


def _whole(one: Residual, action: Right, understood: frozenset[str]) -> Iterator[Branch]:
    because = _because([one])
    for case in one.cases:
        if all(duty.id in understood for duty in case.obligations):
            yield Branch(action=action, where=case.where, when=When(condition=case.when), because=because)


def _by_attributes(
    found: Iterable[tuple[AttributeId, Residual]], action: Right, understood: frozenset[str]
) -> Iterator[Branch]:
    """Yield a branch for all attributes that are permitted of the same events."""
    alike: dict[Branch, list[tuple[AttributeId, Residual]]] = {}
    for attribute, one in found:
        for branch in _whole(one, action, understood):
            alike.setdefault(branch, []).append((attribute, one))
    for branch, those in alike.items():
        attributes = frozenset(attribute for attribute, _ in those)
        yield replace(branch, attributes=attributes, because=_because(one for _, one in those))


def _because(those: Iterable[Residual]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(f"policy:{policy.id}" for one in those for policy in one.policies))
