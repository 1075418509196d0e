"""What in a policy depends on which attribute: its parts, each of which one attribute decides alone.

A *unit* is a rule, or what a policy or a policy set says besides its children: its target, and what is to be done. What
a policy says of a request follows from what the parts of its units are. A part that is *wanted* is one of those that a
target cannot do without: where it does not hold, the unit is not applicable, and so is all that it contains, whatever
the other parts are and whatever fails in them (section 7.7).
"""

from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from penstock.errors import EvaluationError, PenstockError
from penstock.policy.datatypes import BOOLEAN, DATE, DATE_TIME, DOUBLE, INTEGER, STRING, Value
from penstock.policy.evaluate import Scope, status_of, target_matches
from penstock.policy.expressions import (
    Apply,
    ApplyEach,
    ApplyPath,
    Designator,
    Expression,
    Literal,
    Reference,
)
from penstock.policy.functions import V3, WITHIN
from penstock.policy.index import necessary
from penstock.policy.lookup import ABOVE, Context, Sources
from penstock.policy.policies import (
    AnyOf,
    Duty,
    Match,
    Policy,
    PolicyReference,
    PolicySet,
    Root,
    Rule,
    Target,
    versioned,
)
from penstock.policy.programs import Program, condition_program
from penstock.policy.requests import RESOURCE, RESOURCE_ID, Key, key_of
from penstock.policy.signatures import Bag, Function, Kind

#: it asks the whole policy about another request
_ASKS_AGAIN: Final = f"{V3}access-permitted"
#: equal values of these are the same in every respect
_PLAIN: Final = (STRING, BOOLEAN, INTEGER)


class Part:
    """Something that one attribute decides: a part of a target, or an expression."""

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
        #: where it holds just if the attribute has one of some values
        self.values = values
        self._program: Program | None = None

    def result(self, context: Context) -> Hashable:
        """Return what it is for a request: a value, or the status of what fails."""
        try:
            if isinstance(self.asks, tuple):
                return target_matches((self.asks,), Scope(context, self.variables))
            if self._program is None:
                self._program = condition_program(self.asks, self.variables, {})
            return _exactly(self.asks.gives, self._program(context, context.facts))
        except EvaluationError as error:
            return status_of(error)


@dataclass(frozen=True, slots=True)
class Unit:
    """A rule, or what a policy or a policy set says besides its children. `wanted` has what is around it, too."""

    wanted: tuple[Part, ...]
    parts: tuple[Part, ...]


def _exactly(kind: Kind, value: Value) -> Hashable:
    """Return a value such that what differs in any respect is not equal: 0.0 and -0.0, or one moment in two zones."""
    if isinstance(kind, Bag):
        return tuple(_exactly(kind.of, one) for one in value)
    return value if kind in _PLAIN else kind.write(value)


def units_of(root: Root, sources: Sources, known: Iterable[Key]) -> list[Unit]:
    """Return the units of a policy, by what they depend on among some attributes."""
    return [*_Reader(sources, frozenset(known)).units(root, (), ())]


class _Reader:
    """Finds the parts of a policy."""

    def __init__(self, sources: Sources, known: frozenset[Key]) -> None:
        self._sources = sources
        self._known = known

    def units(
        self, member: Policy | PolicySet | PolicyReference, around: tuple[str, ...], wanted: tuple[Part, ...]
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
        """Return the policy that is meant; none where asking for it fails, which no attribute can change."""
        try:
            found = self._sources.policy(reference)
        except PenstockError:
            return None
        return None if reference.to_set and versioned(found) in around else found

    def _rule(self, rule: Rule, variables: Mapping[str, Expression], wanted: tuple[Part, ...]) -> Unit:
        own, more = self._target(rule.target, variables)
        condition = () if rule.condition is None else self._parts(rule.condition, variables)
        told = [one for one in (*rule.duties.obligations, *rule.duties.advice) if one.on is rule.effect]
        return Unit((*wanted, *own), (*more, *condition, *self._duties(told, variables)))

    def _duties(self, duties: Iterable[Duty], variables: Mapping[str, Expression]) -> Iterator[Part]:
        for duty in duties:
            for assignment in duty.assignments:
                yield from self._parts(assignment.expression, variables)

    # --- targets ------------------------------------------------------------------------------------------------

    def _target(self, target: Target, variables: Mapping[str, Expression]) -> tuple[tuple[Part, ...], tuple[Part, ...]]:
        """Return the parts that a target cannot do without, and those that are of several attributes."""
        wanted: list[Part] = []
        more: list[Part] = []
        for any_of in target:
            matches = [match for all_of in any_of for match in all_of]
            keys = frozenset[Key]().union(*(self._keys(match.attribute, variables) for match in matches))
            if len(keys) == 1 and not any(match.function.within for match in matches):
                (key,) = keys
                wanted.append(Part(key, any_of, variables, _one_of(any_of, key)))
            else:
                more += [part for match in matches for part in self._match(match, variables)]
        return tuple(wanted), tuple(more)

    def _match(self, match: Match, variables: Mapping[str, Expression]) -> Iterator[Part]:
        keys = self._keys(match.attribute, variables)
        if match.function.id == _ASKS_AGAIN:
            yield from self._bags(self._known)
        elif len(keys) == 1:
            (key,) = keys
            yield Part(key, ((match,),), variables)
        else:
            yield from self._bags(keys)

    # --- expressions --------------------------------------------------------------------------------------------

    def _parts(self, expression: Expression, variables: Mapping[str, Expression]) -> Iterator[Part]:
        """Yield the largest parts of an expression that are of one attribute."""
        if self._asks_again(expression, variables):
            yield from self._bags(self._known)
            return
        keys = self._keys(expression, variables)
        if len(keys) == 1:
            (key,) = keys
            yield Part(key, expression, variables)
        elif isinstance(expression, Reference):
            yield from self._parts(variables[expression.id], variables)
        elif isinstance(expression, Apply | ApplyEach | ApplyPath):
            for argument in expression.arguments:
                yield from self._parts(argument, variables)
        else:
            yield from self._bags(keys)

    def _bags(self, keys: Iterable[Key]) -> Iterator[Part]:
        """Yield whole attributes, of which everything counts."""
        for key in sorted(keys, key=lambda one: (one.category, one.id, one.of.id)):
            yield Part(key, Designator(key.category, key.id, key.of), {})

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
        # Rows have no contents, and nobody has issued what stands in them.
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
    """Return the values of which one is wanted, where that is all that is said."""
    if any(len(all_of) != 1 for all_of in any_of):
        return None
    return next((values for attribute, values in necessary((any_of,)).items() if attribute.key is key), None)


# --- constants -------------------------------------------------------------------------------------------------------

_EQUAL: Final = ("-equal",)
_ORDERS: Final = (*_EQUAL, "-greater-than", "-greater-than-or-equal", "-less-than", "-less-than-or-equal")
#: types whose values are told apart by where they lie among constants
ORDERED: Final = (INTEGER, DOUBLE, DATE, DATE_TIME)


def constants_of(parts: Iterable[Part], key: Key) -> frozenset[Value] | None:
    """Return the constants that an attribute is compared with in parts, or none where something else is done with it.

    Values that are alike to all of them are alike in every part: equal to one, or between the same two; of a type that
    is not `ORDERED`, equal to none.
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
    """Say whether an attribute is compared with constants alone, which are added to what was found."""
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
    """Say whether it is an attribute, or its only value."""
    if isinstance(expression, Apply) and expression.function.name == f"{key.of.name}-one-and-only":
        (expression,) = expression.arguments
    return isinstance(expression, Designator) and expression.key is key and expression.issuer is None


def _constants(expression: Expression) -> list[Value] | None:
    """Return the values of a constant, or of a bag of constants."""
    if isinstance(expression, Literal):
        return [expression.value]
    if isinstance(expression, Apply) and expression.function.name.endswith("-bag"):
        values = [one.value for one in expression.arguments if isinstance(one, Literal)]
        return values if len(values) == len(expression.arguments) else None
    return None
