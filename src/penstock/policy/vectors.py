"""Many requests decided together: attributes are looked at one by one, and requests that are alike go on as one.

All requests begin in one state, and each attribute leads from a state to another: units that the attribute makes
inapplicable are out (`vectors_parts`), and of those that are left it is noted what the attribute decides in them. Where
the same units are left with the same results, requests are in one state, however they differ otherwise: the policy says
the same of them. So it is asked once for each state at the end, about a request that leads there, by `CompiledPolicy`.

Who has the requests knows into which classes their values fall (`constants`), and keeps the steps that were made.
"""

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TypeAlias

from penstock.policy.compiled import CompiledPolicy
from penstock.policy.datatypes import Value
from penstock.policy.lookup import Context, Sources
from penstock.policy.policies import Root
from penstock.policy.requests import Key, Request
from penstock.policy.results import Outcome, Status
from penstock.policy.vectors_parts import Part, Unit, constants_of, units_of

Class: TypeAlias = Hashable
"""Values of an attribute that are alike in every part of a policy, by whatever name."""
Units: TypeAlias = int
"""A set of units, as bits."""


@dataclass(frozen=True, slots=True, eq=False)
class _Asked:
    """A part, and the units that it is of."""

    part: Part
    units: Units


@dataclass(frozen=True, slots=True)
class _State:
    """Requests that are alike so far: units that may apply, what is known of them, and what one such request says."""

    live: Units
    known: tuple[tuple[_Asked, Hashable], ...]
    facts: Mapping[Key, tuple[Value, ...]]


class Vectors:
    """A policy that decides many requests together, at one time, by the attributes that are known of them."""

    def __init__(self, root: Root, sources: Sources, now: datetime, known: Iterable[Key]) -> None:
        self._compiled = CompiledPolicy(root, sources)
        self._sources = sources
        self._now = now
        self._units = units_of(root, sources, known)
        keys = {part.key: None for unit in self._units for part in (*unit.wanted, *unit.parts)}
        self._looks = sorted((_Look(self._units, key) for key in keys), key=lambda look: look.rank)
        #: the attributes that the policy depends on, in the order in which they are looked at
        self.keys = tuple(look.key for look in self._looks)
        self.clear()

    def clear(self) -> None:
        """Forget all states but the first, which is 0, and what was found."""
        #: the states before each attribute, and those at the end
        self._states: list[list[_State]] = [[] for _ in range(len(self._looks) + 1)]
        self._numbers: list[dict[Hashable, int]] = [{} for _ in self._states]
        self._results: dict[tuple[_Asked, Class], Hashable] = {}
        self._enter(0, _State((1 << len(self._units)) - 1, (), {}))

    @property
    def size(self) -> int:
        """How much is remembered."""
        return sum(map(len, self._states)) + len(self._results)

    def constants(self, place: int, state: int | None = None) -> frozenset[Value] | None:
        """Return the constants that tell values of an attribute apart, as `constants_of` does.

        To requests in a state, fewer may matter.
        """
        look = self._looks[place]
        return look.constants(look.asked if state is None else self._states[place][state].live)

    def ignores(self, place: int, state: int) -> bool:
        """Say whether an attribute does not matter to requests in a state."""
        return not self._states[place][state].live & self._looks[place].asked

    def step(self, place: int, state: int, of: Class, bag: tuple[Value, ...]) -> int:
        """Return the state after an attribute which is of a class, as this bag is."""
        look, before = self._looks[place], self._states[place][state]
        if self.ignores(place, state):
            return self._enter(place + 1, before)
        facts = {look.key: bag}
        context = Context(None, self._now, self._sources, facts)
        live, failed = look.live(bag, context)
        live &= before.live
        found = [(asked, self._result(asked, of, context)) for asked in look.parts(live)]
        known = tuple(one for one in (*before.known, *failed, *found) if one[0].units & live)
        return self._enter(place + 1, _State(live, known, {**before.facts, **facts}))

    def outcome(self, state: int) -> Outcome:
        """Return what the policy says of requests that are in a state at the end, with the policies that applied."""
        request = replace(Request.of_facts(self._states[-1][state].facts), return_policy_ids=True)
        return self._compiled.ask_request(request, self._now)

    def _result(self, asked: _Asked, of: Class, context: Context) -> Hashable:
        found = self._results.get((asked, of))
        if found is None:
            found = self._results[asked, of] = asked.part.result(context)
        return found

    def _enter(self, place: int, state: _State) -> int:
        numbers, alike = self._numbers[place], (state.live, state.known)
        number = numbers.get(alike)
        if number is None:
            number = numbers[alike] = len(numbers)
            self._states[place].append(state)
        return number


class _Look:
    """What a policy looks for in one attribute."""

    def __init__(self, units: Sequence[Unit], key: Key) -> None:
        self.key = key
        self._everything: Units = (1 << len(units)) - 1
        wanted = {place: those for place, unit in enumerate(units) if (those := _of(unit.wanted, key))}
        parts = {place: those for place, unit in enumerate(units) if (those := _of(unit.parts, key))}
        self._wanted = [_Asked(part, those) for part, those in _users(wanted).items()]
        self._parts = {place: [_Asked(part, 1 << place) for part in those] for place, those in parts.items()}
        self._other = [one for one in self._wanted if one.part.values is None]
        self._equal, self._by_value = _by_value(wanted)
        #: units to which it matters
        self.asked: Units = sum(1 << place for place in wanted.keys() | parts.keys())
        self._all = {place: (*wanted.get(place, ()), *parts.get(place, ())) for place in wanted.keys() | parts.keys()}
        self._constants: dict[int, frozenset[Value] | None] = {}

    @property
    def rank(self) -> tuple[int, int, str, str]:
        """Where it stands in the order: first what leaves the fewest units."""
        return -self._equal.bit_count(), -len(self._wanted), self.key.category, self.key.id

    def live(self, bag: tuple[Value, ...], context: Context) -> tuple[Units, list[tuple[_Asked, Hashable]]]:
        """Return the units that a bag leaves, and parts that the units cannot do without and that fail."""
        live, asked = self._everything, self._wanted
        if len(bag) == 1:
            # Equalities cannot fail where there is a value.
            live = live & ~self._equal | self._by_value.get(bag[0], 0)
            asked = self._other
        failed: list[tuple[_Asked, Hashable]] = []
        for one in asked:
            result = one.part.result(context)
            if isinstance(result, Status):
                failed.append((one, result))
            elif result is not True:
                live &= ~one.units
        return live, failed

    def parts(self, live: Units) -> Iterator[_Asked]:
        """Yield what else the attribute decides in some units."""
        for place in _places(live & self.asked):
            yield from self._parts.get(place, ())

    def constants(self, live: Units) -> frozenset[Value] | None:
        """Return the constants that tell values apart in some units, or none where those do not suffice."""
        found: set[Value] = set()
        for place in _places(live & self.asked):
            if place not in self._constants:
                self._constants[place] = constants_of(self._all[place], self.key)
            own = self._constants[place]
            if own is None:
                return None
            found |= own
        return frozenset(found)


def _of(parts: Iterable[Part], key: Key) -> list[Part]:
    return [part for part in parts if part.key is key]


def _places(units: Units) -> Iterator[int]:
    while units:
        lowest = units & -units
        yield lowest.bit_length() - 1
        units ^= lowest


def _users(parts: Mapping[int, Sequence[Part]]) -> dict[Part, Units]:
    """Return the units of each part."""
    found: dict[Part, Units] = {}
    for place, those in parts.items():
        for part in those:
            found[part] = found.get(part, 0) | 1 << place
    return found


def _by_value(wanted: Mapping[int, Sequence[Part]]) -> tuple[Units, dict[Value, Units]]:
    """Return the units that want one of some values, and those that each value leaves."""
    equal, found = 0, dict[Value, Units]()
    for place, parts in wanted.items():
        several = [part.values for part in parts if part.values is not None]
        if several:
            equal |= 1 << place
            for value in several[0].intersection(*several[1:]):
                found[value] = found.get(value, 0) | 1 << place
    return equal, found
