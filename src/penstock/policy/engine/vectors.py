"""Decide many requests together: attributes are examined one by one, and equivalent requests are treated as one.

All requests begin in one state, and each attribute leads from one state to another: units that the attribute makes
inapplicable are dropped, and for the remaining units the results of their parts are noted. Requests with the same
remaining units and the same results are in the same state, however they differ otherwise: the policy decides them
alike. So `CompiledPolicy` is asked once for each final state, about one request that leads there.

The caller knows into which classes its values fall (`constants`), and caches the steps.
"""

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final, TypeAlias

from penstock.errors import EvaluationError, PenstockError
from penstock.policy.engine.compiler import CompiledPolicy
from penstock.policy.engine.evaluate import EvaluationScope, status_of, target_matches
from penstock.policy.engine.index import necessary
from penstock.policy.engine.lookup import ABOVE, Context, PolicySources
from penstock.policy.engine.programs import Program, condition_program
from penstock.policy.language.datatypes import (
    BOOLEAN,
    DATE,
    DATE_TIME,
    DOUBLE,
    INTEGER,
    STRING,
    Bag,
    Function,
    Kind,
    Value,
)
from penstock.policy.language.functions import V3, WITHIN
from penstock.policy.language.policies import (
    AnyOf,
    Apply,
    ApplyEach,
    ApplyPath,
    Designator,
    Duty,
    Expression,
    Match,
    Policy,
    PolicyLiteral,
    PolicyReference,
    PolicySet,
    Reference,
    Root,
    Rule,
    Target,
    versioned,
)
from penstock.policy.language.requests import RESOURCE, RESOURCE_ID, Key, Request, key_of
from penstock.policy.language.results import DecisionStatus, PolicyOutcome

# ----------------------------------------------------------------------------------------------------------------------
# The parts of a policy, each of which depends on one attribute.
#
# A *unit* is a rule, or a policy's or policy set's own parts: its target, obligations and advice. The results of the
# parts determine the decision. A *wanted* part is required by a target: if it is false, the unit is not applicable, and
# neither is anything inside, whatever the other parts are and whatever fails in them (section 7.7).


#: this function evaluates the whole policy for another request
_ASKS_AGAIN: Final = f"{V3}access-permitted"
#: types whose equal values are identical in every respect
_PLAIN: Final = (STRING, BOOLEAN, INTEGER)


class AttributePart:
    """A part that depends on one attribute: a part of a target, or an expression."""

    __slots__ = ("_program", "asks", "key", "values", "variables")

    def __init__(
        self,
        key: Key,
        asks: AnyOf | Expression,
        variables: Mapping[str, Expression],
        values: frozenset[Value] | None = None,
    ) -> None:
        self.key = key
        self.asks = asks
        self.variables = variables
        #: the values of which the attribute must have one, if that is all that the part says
        self.values = values
        self._program: Program | None = None

    def result(self, context: Context) -> Hashable:
        """Return its result for a request: a value, or the status of an error."""
        try:
            if isinstance(self.asks, tuple):
                return target_matches((self.asks,), EvaluationScope(context, self.variables))
            if self._program is None:
                self._program = condition_program(self.asks, self.variables, {})
            return _exactly(self.asks.gives, self._program(context, context.facts))
        except EvaluationError as error:
            return status_of(error)


@dataclass(frozen=True, slots=True)
class Unit:
    """A rule, or the own parts of a policy or policy set. `wanted` includes the parts of enclosing units."""

    wanted: tuple[AttributePart, ...]
    parts: tuple[AttributePart, ...]


def _exactly(kind: Kind, value: Value) -> Hashable:
    """Return a key that distinguishes values that differ in any respect: 0.0 and -0.0, or one instant in two zones."""
    if isinstance(kind, Bag):
        return tuple(_exactly(kind.of, one) for one in value)
    return value if kind in _PLAIN else kind.write(value)


def units_of(root: Root, sources: PolicySources, known: Iterable[Key]) -> list[Unit]:
    """Return the units of a policy, with their parts for some attributes."""
    return [*_Reader(sources, frozenset(known)).units(root, (), ())]


class _Reader:
    """Finds the parts of a policy."""

    def __init__(self, sources: PolicySources, known: frozenset[Key]) -> None:
        self._sources = sources
        self._known = known

    def units(
        self, member: Policy | PolicySet | PolicyReference, around: tuple[str, ...], wanted: tuple[AttributePart, ...]
    ) -> Iterator[Unit]:
        if isinstance(member, PolicyReference):
            found = self._found(member, around)
            if found is not None:
                yield from self.units(found, around, wanted)
            return
        variables = member.variables if isinstance(member, Policy) else {}
        own, more = self._target(member.target, variables)
        duties = self._duties((*member.duties.obligations, *member.duties.advice), variables)
        within = (*wanted, *own)
        yield Unit(within, (*more, *duties))
        if isinstance(member, Policy):
            yield from (self._rule(rule, variables, within) for rule in member.rules)
            return
        for one in member.members:
            yield from self.units(one, (*around, versioned(member)), within)

    def _found(self, reference: PolicyReference, around: tuple[str, ...]) -> Root | None:
        """Return a referenced policy; None if it cannot be found, which no attribute can change."""
        try:
            found = self._sources.policy(reference)
        except PenstockError:
            return None
        return None if reference.to_set and versioned(found) in around else found

    def _rule(self, rule: Rule, variables: Mapping[str, Expression], wanted: tuple[AttributePart, ...]) -> Unit:
        own, more = self._target(rule.target, variables)
        condition = () if rule.condition is None else self._parts(rule.condition, variables)
        told = [one for one in (*rule.duties.obligations, *rule.duties.advice) if one.on is rule.effect]
        return Unit((*wanted, *own), (*more, *condition, *self._duties(told, variables)))

    def _duties(self, duties: Iterable[Duty], variables: Mapping[str, Expression]) -> Iterator[AttributePart]:
        for duty in duties:
            for assignment in duty.assignments:
                yield from self._parts(assignment.expression, variables)

    # --- targets ------------------------------------------------------------------------------------------------

    def _target(
        self, target: Target, variables: Mapping[str, Expression]
    ) -> tuple[tuple[AttributePart, ...], tuple[AttributePart, ...]]:
        """Return the parts that a target requires, and parts that depend on several attributes."""
        wanted: list[AttributePart] = []
        more: list[AttributePart] = []
        for any_of in target:
            matches = [match for all_of in any_of for match in all_of]
            keys = frozenset[Key]().union(*(self._keys(match.attribute, variables) for match in matches))
            if len(keys) == 1 and not any(match.function.within for match in matches):
                (key,) = keys
                wanted.append(AttributePart(key, any_of, variables, _one_of(any_of, key)))
            else:
                more += [part for match in matches for part in self._match(match, variables)]
        return tuple(wanted), tuple(more)

    def _match(self, match: Match, variables: Mapping[str, Expression]) -> Iterator[AttributePart]:
        keys = self._keys(match.attribute, variables)
        if match.function.id == _ASKS_AGAIN:
            yield from self._bags(self._known)
        elif len(keys) == 1:
            (key,) = keys
            yield AttributePart(key, ((match,),), variables)
        else:
            yield from self._bags(keys)

    # --- expressions --------------------------------------------------------------------------------------------

    def _parts(self, expression: Expression, variables: Mapping[str, Expression]) -> Iterator[AttributePart]:
        """Yield the largest parts of an expression that depend on one attribute."""
        if self._asks_again(expression, variables):
            yield from self._bags(self._known)
            return
        keys = self._keys(expression, variables)
        if len(keys) == 1:
            (key,) = keys
            yield AttributePart(key, expression, variables)
        elif isinstance(expression, Reference):
            yield from self._parts(variables[expression.id], variables)
        elif isinstance(expression, Apply | ApplyEach | ApplyPath):
            for argument in expression.arguments:
                yield from self._parts(argument, variables)
        else:
            yield from self._bags(keys)

    def _bags(self, keys: Iterable[Key]) -> Iterator[AttributePart]:
        """Yield whole attributes, of which every value counts."""
        for key in sorted(keys, key=lambda one: (one.category, one.id, one.of.id)):
            yield AttributePart(key, Designator(key.category, key.id, key.of), {})

    def _keys(self, expression: Expression, variables: Mapping[str, Expression]) -> frozenset[Key]:
        """Return the attributes that an expression depends on."""
        match expression:
            case Designator(issuer=None):
                keys = {expression.key}
                if expression.category == RESOURCE and expression.id in ABOVE:
                    keys.add(key_of(RESOURCE, RESOURCE_ID, expression.of))
                return self._known & keys
            case Reference(name):
                return self._keys(variables[name], variables)
            case Apply() | ApplyEach() | ApplyPath():
                return frozenset[Key]().union(*(self._keys(one, variables) for one in expression.arguments))
        # Rows have no contents, and their values have no issuers.
        return frozenset()

    def _asks_again(self, expression: Expression, variables: Mapping[str, Expression]) -> bool:
        match expression:
            case Reference(name):
                return self._asks_again(variables[name], variables)
            case ApplyPath(name) if WITHIN[name].id == _ASKS_AGAIN:
                return True
            case ApplyEach(function=Function(id=name)) if name == _ASKS_AGAIN:
                return True
            case Apply() | ApplyEach() | ApplyPath():
                return any(self._asks_again(one, variables) for one in expression.arguments)
        return False


def _one_of(any_of: AnyOf, key: Key) -> frozenset[Value] | None:
    """Return the values of which one is required, if that is all that a part says."""
    if any(len(all_of) != 1 for all_of in any_of):
        return None
    return next((values for attribute, values in necessary((any_of,)).items() if attribute.key is key), None)


# --- constants -------------------------------------------------------------------------------------------------------

_EQUAL: Final = ("-equal",)
_ORDERS: Final = (*_EQUAL, "-greater-than", "-greater-than-or-equal", "-less-than", "-less-than-or-equal")
#: types whose values are classified by their position among constants
ORDERED: Final = (INTEGER, DOUBLE, DATE, DATE_TIME)


def constants_of(parts: Iterable[AttributePart], key: Key) -> frozenset[Value] | None:
    """Return the constants with which parts compare an attribute; None if they use it in another way.

    Values with the same position among them are equivalent in every part: equal to one, or between the same two; for
    types that are not `ORDERED`, equal to none.
    """
    found: set[Value] = set()
    for part in parts:
        compared = (
            all(_matched(match, key, found) for all_of in part.asks for match in all_of)
            if isinstance(part.asks, tuple)
            else _compared(part.asks, part.variables, key, found)
        )
        if not compared:
            return None
    return frozenset(found)


def _compares(function: Function, key: Key) -> bool:
    known = _ORDERS if key.of in ORDERED else _EQUAL
    return function.takes == (key.of, key.of) and function.name.removeprefix(key.of.name) in known


def _depends(attribute: Expression, key: Key) -> bool:
    if not isinstance(attribute, Designator) or attribute.issuer is not None:
        return False
    above = attribute.category == RESOURCE and attribute.id in ABOVE
    return key in (attribute.key, key_of(RESOURCE, RESOURCE_ID, attribute.of) if above else None)


def _matched(match: Match, key: Key, found: set[Value]) -> bool:
    if not _depends(match.attribute, key):
        return True
    found.add(match.value)
    return _compares(match.function, key) and _is(match.attribute, key)


def _compared(expression: Expression, variables: Mapping[str, Expression], key: Key, found: set[Value]) -> bool:
    """Return whether an attribute is compared only with constants, and collect these."""
    match expression:
        case Designator():
            return not _depends(expression, key)
        case Reference(name):
            return _compared(variables[name], variables, key, found)
        case Apply(function, (Designator() as bag,)) if function.name == f"{key.of.name}-bag-size" and _is(bag, key):
            return True
        case Apply(function, (first, second)) | ApplyEach(_, function, (first, second)):
            members = [f"{key.of.name}-{name}" for name in ("is-in", "at-least-one-member-of")]
            if _compares(function, key) or function.name in members:
                constants = _constants(second if _is(first, key) else first)
                if constants is not None and (_is(first, key) or _is(second, key)):
                    found.update(constants)
                    return True
    if isinstance(expression, Apply | ApplyEach | ApplyPath):
        return all(_compared(one, variables, key, found) for one in expression.arguments)
    return True


def _is(expression: Expression, key: Key) -> bool:
    """Return whether an expression is an attribute, or its only value."""
    if isinstance(expression, Apply) and expression.function.name == f"{key.of.name}-one-and-only":
        (expression,) = expression.arguments
    return isinstance(expression, Designator) and expression.key is key and expression.issuer is None


def _constants(expression: Expression) -> list[Value] | None:
    """Return the values of a constant, or of a bag of constants."""
    if isinstance(expression, PolicyLiteral):
        return [expression.value]
    if isinstance(expression, Apply) and expression.function.name.endswith("-bag"):
        values = [one.value for one in expression.arguments if isinstance(one, PolicyLiteral)]
        return values if len(values) == len(expression.arguments) else None
    return None


# ----------------------------------------------------------------------------------------------------------------------
# Deciding many requests together.


Class: TypeAlias = Hashable
"""The name of a class of values of an attribute that are equivalent in every part of a policy."""
Units: TypeAlias = int
"""A set of units, as bits."""


@dataclass(frozen=True, slots=True, eq=False)
class _Asked:
    """A part, and the units that it belongs to."""

    part: AttributePart
    units: Units


@dataclass(frozen=True, slots=True)
class _State:
    """Requests that are equivalent so far: units that may apply, their known results, and one such request."""

    live: Units
    known: tuple[tuple[_Asked, Hashable], ...]
    facts: Mapping[Key, tuple[Value, ...]]


class Vectors:
    """A policy that decides many requests together, at one instant, by their known attributes."""

    def __init__(self, root: Root, sources: PolicySources, now: datetime, known: Iterable[Key]) -> None:
        self._compiled = CompiledPolicy(root, sources)
        self._sources = sources
        self._now = now
        self._units = units_of(root, sources, known)
        keys = {part.key: None for unit in self._units for part in (*unit.wanted, *unit.parts)}
        self._looks = sorted((_Look(self._units, key) for key in keys), key=lambda look: look.rank)
        #: the attributes that the policy depends on, in the order in which they are examined
        self.keys = tuple(look.key for look in self._looks)
        self.clear()

    def clear(self) -> None:
        """Drop all cached states but the first, which is 0, and all outcomes."""
        #: the states before each attribute, and those at the end
        self._states: list[list[_State]] = [[] for _ in range(len(self._looks) + 1)]
        self._numbers: list[dict[Hashable, int]] = [{} for _ in self._states]
        self._results: dict[tuple[_Asked, Class], Hashable] = {}
        self._enter(0, _State((1 << len(self._units)) - 1, (), {}))

    @property
    def size(self) -> int:
        """The number of cached states."""
        return sum(map(len, self._states)) + len(self._results)

    def constants(self, place: int, state: int | None = None) -> frozenset[Value] | None:
        """Return the constants that distinguish values of an attribute, as `constants_of` does.

        In a given state, fewer may matter.
        """
        look = self._looks[place]
        return look.constants(look.asked if state is None else self._states[place][state].live)

    def ignores(self, place: int, state: int) -> bool:
        """Return whether an attribute does not matter to requests in a state."""
        return not self._states[place][state].live & self._looks[place].asked

    def step(self, place: int, state: int, of: Class, bag: tuple[Value, ...]) -> int:
        """Return the state after an attribute of a class, of which `bag` is an example."""
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

    def outcome(self, state: int) -> PolicyOutcome:
        """Return the outcome for requests in a final state, with the applicable policies."""
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
    """The parts of a policy for one attribute."""

    def __init__(self, units: Sequence[Unit], key: Key) -> None:
        self.key = key
        self._everything: Units = (1 << len(units)) - 1
        wanted = {place: those for place, unit in enumerate(units) if (those := _of(unit.wanted, key))}
        parts = {place: those for place, unit in enumerate(units) if (those := _of(unit.parts, key))}
        self._wanted = [_Asked(part, those) for part, those in _users(wanted).items()]
        self._parts = {place: [_Asked(part, 1 << place) for part in those] for place, those in parts.items()}
        self._other = [one for one in self._wanted if one.part.values is None]
        self._equal, self._by_value = _by_value(wanted)
        #: units to which the attribute matters
        self.asked: Units = sum(1 << place for place in wanted.keys() | parts.keys())
        self._all = {place: (*wanted.get(place, ()), *parts.get(place, ())) for place in wanted.keys() | parts.keys()}
        self._constants: dict[int, frozenset[Value] | None] = {}

    @property
    def rank(self) -> tuple[int, int, str, str]:
        """The sort key: attributes that leave the fewest units come first."""
        return -self._equal.bit_count(), -len(self._wanted), self.key.category, self.key.id

    def live(self, bag: tuple[Value, ...], context: Context) -> tuple[Units, list[tuple[_Asked, Hashable]]]:
        """Return the units that a bag leaves, and required parts of units that fail."""
        live, asked = self._everything, self._wanted
        if len(bag) == 1:
            # Equalities cannot fail if there is a value.
            live = live & ~self._equal | self._by_value.get(bag[0], 0)
            asked = self._other
        failed: list[tuple[_Asked, Hashable]] = []
        for one in asked:
            result = one.part.result(context)
            if isinstance(result, DecisionStatus):
                failed.append((one, result))
            elif result is not True:
                live &= ~one.units
        return live, failed

    def parts(self, live: Units) -> Iterator[_Asked]:
        """Yield the other parts of some units for the attribute."""
        for place in _places(live & self.asked):
            yield from self._parts.get(place, ())

    def constants(self, live: Units) -> frozenset[Value] | None:
        """Return the constants that distinguish values in some units; None if constants are not enough."""
        found: set[Value] = set()
        for place in _places(live & self.asked):
            if place not in self._constants:
                self._constants[place] = constants_of(self._all[place], self.key)
            own = self._constants[place]
            if own is None:
                return None
            found |= own
        return frozenset(found)


def _of(parts: Iterable[AttributePart], key: Key) -> list[AttributePart]:
    return [part for part in parts if part.key is key]


def _places(units: Units) -> Iterator[int]:
    while units:
        lowest = units & -units
        yield lowest.bit_length() - 1
        units ^= lowest


def _users(parts: Mapping[int, Sequence[AttributePart]]) -> dict[AttributePart, Units]:
    """Return the units of each part."""
    found: dict[AttributePart, Units] = {}
    for place, those in parts.items():
        for part in those:
            found[part] = found.get(part, 0) | 1 << place
    return found


def _by_value(wanted: Mapping[int, Sequence[AttributePart]]) -> tuple[Units, dict[Value, Units]]:
    """Return the units that require one of some values, and those that each value leaves."""
    equal, found = 0, dict[Value, Units]()
    for place, parts in wanted.items():
        several = [part.values for part in parts if part.values is not None]
        if several:
            equal |= 1 << place
            for value in several[0].intersection(*several[1:]):
                found[value] = found.get(value, 0) | 1 << place
    return equal, found
