"""Compute residual policies as restrictions, so that requests are decided once, and events quickly.

Where a policy tells attributes apart (`urn:penstock:attribute:name`, `urn:penstock:attribute:id`) it is asked about
each attribute of the type: an event is shown where one attribute of it is permitted, with those that are. Other
policies permit events whole.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from penstock.errors import RefusedError
from penstock.guard.limits import RESIDUAL_KEPT
from penstock.guard.restriction import Branch, Restriction, When
from penstock.model.names import AttributeId
from penstock.model.types import EventType
from penstock.model.values import Schema
from penstock.policy.engine.lookup import PolicySources
from penstock.policy.language.datatypes import STRING, Value
from penstock.policy.language.event_attributes import ATTRIBUTE_ID, ATTRIBUTE_NAME, EventNames, event_names
from penstock.policy.language.policies import Root
from penstock.policy.language.requests import RESOURCE, Facts, Key, key_of
from penstock.policy.residual.partial_evaluation import Residual, residual
from penstock.trust.capabilities import Right

#: what a policy asks for that tells attributes apart
_WHICH: Final = frozenset(key_of(RESOURCE, name, STRING) for name in (ATTRIBUTE_NAME, ATTRIBUTE_ID))


_Found: TypeAlias = Restriction | RefusedError
_Kept: TypeAlias = dict[tuple[Key, ...], dict[tuple[tuple[Value, ...], ...], _Found]]
"""What came of a question, by what was asked for of who asks, and by what that was."""


@dataclass(frozen=True, slots=True)
class _About:
    """The question, without the subject."""

    action: Right
    event_type: EventType
    names: EventNames
    environment: Schema

    @property
    def key(self) -> tuple[object, ...]:
        """Return the cache key."""
        return self.action, self.event_type, tuple(self.names.attributes.items()), tuple(self.environment.items())


class Residuals:
    """The residual of one policy, cached for all subjects with the same attributes, as far as the policy uses them.

    What `sources` find must not depend on the request, nor change. `understood` are the obligations that whoever
    enforces it meets; what is permitted with others is not.
    """

    def __init__(
        self, root: Root, sources: PolicySources | None = None, understood: frozenset[str] = frozenset()
    ) -> None:
        self._root = root
        self._sources = sources
        self._understood = understood
        self._kept: dict[tuple[object, ...], _Kept] = {}
        self._count = 0

    def restriction(
        self,
        known: Facts,
        action: Right,
        event_type: EventType,
        *,
        names: EventNames | None = None,
        environment: Schema | None = None,
    ) -> Restriction:
        """Return what the policy permits of events of a type, given all that is known but the event.

        With `environment`, what brokers know of the moment may be asked for. Raises `RefusedError`:
        `policy.residual-fragment`, `policy.residual-limit`.
        """
        about = _About(action, event_type, names or event_names(event_type), environment or {})
        kept = self._kept.setdefault(about.key, {})
        # What is asked for depends on what is known, but there are few ways to go on.
        known_already = (kept[asked].get(_values(known, asked)) for asked in [*kept])
        found = next((one for one in known_already if one is not None), None) or self._keep(kept, known, about)
        if isinstance(found, RefusedError):
            # Raised once more as it is, it would gather the traces of all who met it.
            raise RefusedError(found.code, found.message, hint=found.hint, **found.fields)
        return found

    def _keep(self, kept: _Kept, known: Facts, about: _About) -> _Found:
        if self._count >= RESIDUAL_KEPT:
            self._kept, self._count = {}, 0
        gathered: set[Key] = set()
        try:
            found: _Found = self._left(known, about, gathered)
        except RefusedError as error:
            found = error
        asked = tuple(sorted(gathered, key=lambda key: (key.category, key.id, key.of.id)))
        kept.setdefault(asked, {})[_values(known, asked)] = found
        self._count += 1
        return found

    def _left(self, known: Facts, about: _About, asked: set[Key]) -> Restriction:
        """Return the residual, and collect the attributes that it used."""

        def left(facts: Facts) -> Residual:
            return residual(
                self._root, facts, about.names, environment=about.environment, sources=self._sources, asked=asked
            )

        found: list[tuple[AttributeId, Residual]] = []
        for attribute in about.event_type.attributes:
            one = left({**known, **about.names.of(attribute)})
            if not one.asked & _WHICH:
                return Restriction.of(_whole(one, about.action, self._understood))
            found.append((attribute.id, one))
        if not found:
            return Restriction.of(_whole(left(known), about.action, self._understood))
        return Restriction.of(_by_attributes(found, about.action, self._understood))


def _values(known: Facts, asked: tuple[Key, ...]) -> tuple[tuple[Value, ...], ...]:
    return tuple(known.get(key, ()) for key in asked)


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
