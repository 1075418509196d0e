"""An index of children by the equalities and ranges that they require, so that few of many are evaluated.

A target that requires an attribute to have one of some values does not match without one of them, whatever else is in
the target and whatever fails in it: one part that does not match is enough. Such a child is NotApplicable and can be
left out. Children whose applicability is not known are not left out: attributes that must be present and are not.
"""

import operator
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress, product
from math import prod
from operator import contains
from typing import Final, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

from penstock.errors import EvaluationError
from penstock.policy.engine.programs import Writer, built
from penstock.policy.language.datatypes import DOUBLE, Function, Value
from penstock.policy.language.functions import FUNCTIONS, V1
from penstock.policy.language.policies import (
    AllOf,
    AnyOf,
    Apply,
    Designator,
    Duties,
    Expression,
    Policy,
    PolicyLiteral,
    Reference,
    Rule,
    RuleEffect,
    Target,
)
from penstock.policy.language.requests import Facts

# ----------------------------------------------------------------------------------------------------------------------
# An index of children by the range in which an attribute must lie (a segment tree).
#
# A target that requires an attribute to be at least one value and at most another does not match if its only value lies
# outside. Open and closed ends are not distinguished: the children that are found are evaluated anyway. If an attribute
# has several values, one can be above the lower end and another below the upper one: then all children may apply.
#
# Ends and the gaps between them are numbered in order. Each range is entered at the few nodes of a binary tree over
# these numbers that cover it; a value is looked up from its leaf to the root.


#: fewer children than this are evaluated one by one
_FEWEST_RANGES: Final = 16


class Bags(Protocol):
    """Provides the values of attributes."""

    facts: Facts

    @property
    def names(self) -> bool:
        """Whether the names of applicable policies are wanted."""

    def bag(self, wanted: Designator, /) -> tuple[Value, ...]:
        """Return the bag of an attribute that is not among the facts. Raises `EvaluationError`."""


class Span(NamedTuple):
    """A range of values; None for an open end."""

    low: Value | None = None
    high: Value | None = None

    @property
    def empty(self) -> bool:
        """Whether it contains nothing."""
        return self.low is not None and self.high is not None and bool(self.low > self.high)

    def both(self, other: "Span") -> "Span":
        """Return the intersection."""
        lows = [one for one in (self.low, other.low) if one is not None]
        highs = [one for one in (self.high, other.high) if one is not None]
        return Span(max(lows, default=None), min(highs, default=None))

    def either(self, other: "Span") -> "Span":
        """Return the smallest range that contains both."""
        low = None if self.low is None or other.low is None else min(self.low, other.low)
        high = None if self.high is None or other.high is None else max(self.high, other.high)
        return Span(low, high)


Spans: TypeAlias = Mapping[Designator, Span]
"""Ranges in which attributes must lie, if they have exactly one value."""


def spans(target: Target) -> Spans:
    """Return the ranges that a target requires."""
    found: dict[Designator, Span] = {}
    for any_of in target:
        for attribute, span in _either(any_of).items():
            found[attribute] = found[attribute].both(span) if attribute in found else span
    return found


def _either(any_of: AnyOf) -> Spans:
    sides = [_every(all_of) for all_of in any_of]
    found: dict[Designator, Span] = dict(sides[0]) if sides else {}
    for side in sides[1:]:
        found = {attribute: span.either(side[attribute]) for attribute, span in found.items() if attribute in side}
    return {attribute: span for attribute, span in found.items() if span != Span()}


def _every(all_of: AllOf) -> Spans:
    found: dict[Designator, Span] = {}
    for match in all_of:
        attribute, value, call = match.attribute, match.value, match.function.call
        # NaN is in no range.
        if not isinstance(attribute, Designator) or attribute.issuer is not None or value != value:  # noqa: PLR0124
            continue
        if call in (operator.le, operator.lt):
            span = Span(low=value)
        elif call in (operator.ge, operator.gt):
            span = Span(high=value)
        else:
            continue
        found[attribute] = found.get(attribute, Span()).both(span)
    return found


class Ranges:
    """Positions of children, by ranges of one attribute."""

    __slots__ = ("_all", "_always", "_attribute", "_ends", "_key", "_leaves", "_nodes")

    def __init__(self, attribute: Designator, places: Sequence[int], known: Mapping[int, Span]) -> None:
        self._attribute = attribute
        self._key = attribute.key
        self._all = tuple(places)
        self._ends = sorted({end for span in known.values() for end in span if end is not None})
        # End n has the number 2n + 1, and the gap before it 2n.
        self._leaves = 1 << (2 * len(self._ends) + 1).bit_length()
        self._nodes: dict[int, list[int]] = {}
        self._always: list[int] = []
        for place in places:
            span = known.get(place)
            if span is None or span.empty:
                self._always.append(place)
            else:
                self._enter(place, span)

    @classmethod
    def of(cls, places: Sequence[int], targets: Sequence[Target]) -> "Ranges | None":
        """Return an index of some children, or None if it would not help."""
        if len(places) < _FEWEST_RANGES:
            return None
        found = {place: spans(targets[place]) for place in places}
        usual = Counter(attribute for one in found.values() for attribute in one)
        attribute, count = max(usual.items(), key=operator.itemgetter(1), default=(None, 0))
        if attribute is None or 2 * count < len(places):
            return None
        return cls(attribute, places, {place: one[attribute] for place, one in found.items() if attribute in one})

    def _enter(self, place: int, span: Span) -> None:
        first = 0 if span.low is None else self._number(span.low)
        last = self._leaves - 1 if span.high is None else self._number(span.high)
        left, right = first + self._leaves, last + self._leaves + 1
        while left < right:
            if left & 1:
                self._nodes.setdefault(left, []).append(place)
                left += 1
            if right & 1:
                right -= 1
                self._nodes.setdefault(right, []).append(place)
            left, right = left >> 1, right >> 1

    def _number(self, value: Value) -> int:
        """Return the number of a value: odd for an end, even for a gap."""
        place = bisect_left(self._ends, value)
        return 2 * place + (place < len(self._ends) and self._ends[place] == value)

    def places(self, context: Bags) -> Sequence[int]:
        """Return the positions of the children that may apply, in order. Raises `EvaluationError`."""
        bag = context.facts.get(self._key) or context.bag(self._attribute)
        if len(bag) != 1:
            # Without a value none of them matches, unless a missing value is an error.
            return self._all if bag or self._attribute.must_be_present else self._always
        value = bag[0]
        if value != value:  # noqa: PLR0124  # NaN
            return self._all
        found = [*self._always]
        nodes, node = self._nodes, self._number(value) + self._leaves
        while node:
            if node in nodes:
                found += nodes[node]
            node >>= 1
        found.sort()
        return found


# ----------------------------------------------------------------------------------------------------------------------
# An index of children by the tests with which their conditions begin, so that each distinct test is evaluated once.
#
# Many policies compare attributes with each other, which values in targets cannot express: `owner == subject-id`. A
# rule whose condition begins with a false test is not applicable, whatever follows, if nothing before the test fails.
# So one function evaluates the tests of all children, each distinct one once, and only children whose tests are all
# true are evaluated.
#
# Of children that only permit or only deny if their tests are true, the first of each is enough: algorithms do not
# distinguish one from a thousand. (Only-one-applicable uses targets, and decision tuples have no index.)
#
# A test is an argument of the condition's `and` that cannot fail if the attributes it needs are present, exactly once
# if it needs a single value. If an attribute has no value or several, the children that need it are evaluated. If an
# attribute cannot be looked up, all children are.


#: what a test needs of an attribute: nothing, at least one value, or exactly one; a stricter need is greater
_LOOKED_UP, _PRESENT, _SINGLE = range(3)
_AND: Final = f"{V1}and"
_ONE: Final = "-one-and-only"
#: suffixes of the names of functions that are total
_TOTAL_ENDS: Final = (
    "-equal", "-greater-than", "-greater-than-or-equal", "-less-than", "-less-than-or-equal", "-equal-ignore-case",
    "-is-in", "-bag-size", "-at-least-one-member-of", "-subset", "-set-equals", "-union", "-intersection", "-bag",
    "-starts-with", "-ends-with", "-contains", "-in-range", "-normalize-space", "-normalize-to-lower-case",
)  # fmt: skip
_TOTAL: Final = frozenset(
    one
    for one in FUNCTIONS.values()
    if not one.within and (one.name in ("and", "or", "not") or one.name.endswith(_TOTAL_ENDS))
)
#: bounds on the tests of one condition, and on all distinct tests
_MOST_OF_ONE: Final = 16
_MOST: Final = 16_384

Needed: TypeAlias = Mapping[Designator, int]
"""The need for each attribute, so that nothing fails."""


class Lead(NamedTuple):
    """The tests with which a rule's condition begins, and the needs under which they and its target cannot fail."""

    tests: tuple[Expression, ...]
    needed: Needed
    #: the effect of the rule if its condition is only these tests, and it has no target, obligations or advice
    decides: RuleEffect | None = None


Leads: TypeAlias = tuple[Lead, ...]
"""The leads of all rules of a child: it is not applicable if none of its rules is."""


def leads_of_rule(rule: Rule, variables: Mapping[str, Expression]) -> Leads | None:
    """Return the lead of a rule; None if it has no tests."""
    needed: dict[Designator, int] = {}
    for match in (match for any_of in rule.target for all_of in any_of for match in all_of):
        found = _needed_tests(match.attribute)
        if match.function not in _TOTAL or found is None:
            return None
        _add(needed, found)
    tests: list[Expression] = []
    whole = True
    for conjunct in _conjuncts(rule.condition, variables, set()):
        found = _needed_tests(conjunct)
        if found is None or len(tests) == _MOST_OF_ONE:
            whole = False
            break
        _add(needed, found)
        tests.append(conjunct)
    sure = whole and not rule.target and not _has_duties(rule.duties)
    return (Lead(tuple(tests), needed, rule.effect if sure else None),) if tests else None


def _has_duties(duties: Duties) -> bool:
    return bool(duties.obligations or duties.advice)


def leads_of_policy(policy: Policy) -> Leads | None:
    """Return the leads of all rules of a policy; None if one of them has none.

    An error in a policy's target does not count if none of its rules is applicable.
    """
    found = [leads_of_rule(rule, policy.variables) for rule in policy.rules]
    known = [lead for one in found if one is not None for lead in one]
    if not known or len(known) != len(found):
        return None
    if len(known) > 1 or policy.target or _has_duties(policy.duties):
        return tuple(lead._replace(decides=None) for lead in known)
    return tuple(known)


def _conjuncts(
    expression: Expression | None, variables: Mapping[str, Expression], seen: set[str]
) -> Iterator[Expression]:
    """Yield the conjuncts of a condition in the order of evaluation; each variable is expanded once."""
    match expression:
        case None:
            return
        case Reference(name):
            if name not in seen:
                seen.add(name)
                yield from _conjuncts(variables[name], variables, seen)
        case Apply(function, arguments) if function.id == _AND:
            for argument in arguments:
                yield from _conjuncts(argument, variables, seen)
        case _:
            yield expression


def _needed_tests(expression: object) -> Needed | None:
    """Return the needs under which an expression has a value; None if they are not known."""
    match expression:
        case PolicyLiteral():
            return {}
        case Designator(issuer=None):
            return {expression: _PRESENT if expression.must_be_present else _LOOKED_UP}
        case Apply(function, (Designator(issuer=None) as attribute,)) if function.id.endswith(_ONE):
            return {attribute: _SINGLE}
        case Apply(function, arguments) if function in _TOTAL:
            whole: dict[Designator, int] = {}
            for argument in arguments:
                found = _needed_tests(argument)
                if found is None:
                    return None
                _add(whole, found)
            return whole
    return None


def _add(needed: dict[Designator, int], more: Needed) -> None:
    for attribute, how in more.items():
        needed[attribute] = max(how, needed.get(attribute, _LOOKED_UP))


class _Writer(Writer):
    """Writes tests on attributes that were looked up, and that have exactly one value if one is needed."""

    def __init__(self, attributes: Mapping[Designator, str]) -> None:
        super().__init__({}, {})
        self._attributes = attributes

    def bag(self, attribute: Designator) -> str:
        return self._attributes[attribute]

    def call(self, function: Function, arguments: Sequence[Expression], written: Sequence[str]) -> str:
        if function.id.endswith(_ONE) and isinstance(arguments[0], Designator):
            return f"{written[0]}[0]"
        return super().call(function, arguments, written)


class _Looking(Writer):
    """Writes a test that looks attributes up; required attributes were checked before."""

    def bag(self, attribute: Designator) -> str:
        return f"(F.get({self.name(attribute.key)}) or C.bag({self.name(attribute)}))"


class _Entry(NamedTuple):
    """A rule of a child, under one of its tests: the position of the child, and the other tests."""

    place: int
    others: tuple[int, ...]
    decides: RuleEffect | None


class _TestGroup:
    """Rules under one of their tests. `few` is enough for a decision; `more` has redundant ones."""

    __slots__ = ("_said", "few", "more")

    def __init__(self) -> None:
        self.few: list[_Entry] = []
        self.more: list[_Entry] = []
        self._said: set[tuple[RuleEffect, tuple[int, ...]]] = set()

    def add(self, entry: _Entry) -> None:
        """Add a rule, in the order of positions."""
        if entry.decides is None:
            self.few.append(entry)
            return
        (self.more if (entry.decides, entry.others) in self._said else self.few).append(entry)
        self._said.add((entry.decides, entry.others))


class Comparisons:
    """Children by the tests that must be true if they are applicable."""

    __slots__ = ("_always", "_doubtful", "_groups", "_needs", "_programs", "_quick", "_tests")

    def __init__(self, leads: Sequence[Leads | None]) -> None:
        counted = Counter(test for those in leads for lead in those or () for test in lead.tests)
        numbers = {test: number for number, (test, _) in enumerate(counted.most_common(_MOST))}
        self._tests = [*numbers]
        self._programs: dict[int, Callable[..., object]] = {}
        self._groups = [_TestGroup() for _ in numbers]
        always: list[int] = []
        #: the strictest need for each attribute, and the children to evaluate if a need is not met
        needed: dict[Designator, int] = {}
        self._doubtful: dict[tuple[Designator, int], list[int]] = {}
        for place, those in enumerate(leads):
            entered = [_entered(lead, numbers, counted) for lead in those or ()]
            if not entered or not all(entered):
                always.append(place)
                continue
            for lead, tests in zip(those or (), entered, strict=True):
                # Enter it under its rarest test.
                entire = len(tests) == len({*lead.tests})
                self._groups[tests[0]].add(_Entry(place, tests[1:], lead.decides if entire else None))
                _add(needed, lead.needed)
                for need in lead.needed.items():
                    self._doubtful.setdefault(need, []).append(place)
        self._always = tuple(always)
        self._needs = [_needed_tests(test) or {} for test in self._tests]
        self._quick = self._written(needed)

    @classmethod
    def of(cls, leads: Sequence[Leads | None]) -> "Comparisons | None":
        """Return an index, or None if it would not help."""
        found = cls(leads)
        return found if 2 * len(found._always) < len(leads) else None

    @property
    def size(self) -> int:
        """The number of tests."""
        return len(self._tests)

    def places(self, context: Bags, *, whole: bool = False) -> Sequence[int]:
        """Return the positions of the children that may apply, in order; redundant ones only if `whole`.

        Raises `EvaluationError`.
        """
        found = {*self._always}
        holds = self._quick(context, context.facts)
        if holds is None:
            holds, doubtful = self._one_by_one(context)
            found.update(doubtful)
        for group in compress(self._groups, holds):
            entries = (*group.few, *group.more) if whole else group.few
            found.update(entry.place for entry in entries if all(map(holds.__getitem__, entry.others)))
        return sorted(found)

    def _one_by_one(self, context: Bags) -> tuple[Sequence[object], set[int]]:
        """Return which tests are true if not all can be evaluated, and the children that must be evaluated anyway."""
        unmet, places = set(), set[int]()
        for need, children in self._doubtful.items():
            attribute, how = need
            size = len(context.facts.get(attribute.key) or context.bag(attribute))
            if (how == _SINGLE and size != 1) or (how == _PRESENT and not size):
                unmet.add(need)
                places.update(children)
        return [
            unmet.isdisjoint(needs.items()) and self._program(number)(context, context.facts)
            for number, needs in enumerate(self._needs)
        ], places

    def _program(self, number: int) -> Callable[..., object]:
        found = self._programs.get(number)
        if found is None:
            to = _Looking({}, {})
            text = to.expression(self._tests[number])
            found = self._programs[number] = built("C, F", [f"return {text}"], to.names)
        return found

    def _written(self, needed: Needed) -> Callable[..., Sequence[object] | None]:
        """Return a function that evaluates all tests, or returns None if a need is not met.

        Raises `EvaluationError`.
        """
        names = {attribute: f"a{number}" for number, attribute in enumerate(needed)}
        to = _Writer(names)
        looked = [
            f"{name} = F.get({to.name(attribute.key)}) or C.bag({to.name(attribute)})"
            for attribute, name in names.items()
        ]
        wanted = [f"len({names[one]}) == 1" if how == _SINGLE else names[one] for one, how in needed.items() if how]
        tests = "".join(f"{to.expression(test)}, " for test in self._tests)
        check = [f"if not ({' and '.join(wanted)}):", " return None"] if wanted else []
        return built("C, F", [*looked, *check, f"return ({tests})"], to.names)


def _entered(lead: Lead, numbers: Mapping[Expression, int], counted: Mapping[Expression, int]) -> tuple[int, ...]:
    known = [test for test in dict.fromkeys(lead.tests) if test in numbers]
    return tuple(numbers[test] for test in sorted(known, key=lambda test: (counted[test], numbers[test])))


# ----------------------------------------------------------------------------------------------------------------------
# The index of children by the equalities that they require, with ranges and tests inside.


T = TypeVar("T")
U = TypeVar("U")

Needs: TypeAlias = Mapping[Designator, frozenset[Value]]
"""The values of which each attribute must have one."""

#: except for doubles: in XACML, NaN is equal to itself, and a dictionary does not find it
_EQUALITIES: Final = frozenset(
    function for function in FUNCTIONS.values() if function.call is operator.eq and function.takes[0] is not DOUBLE
)
#: the most combinations of values under which a child is entered
_MOST_ENTRIES: Final = 64
#: if there are more sets of needed attributes than this, each child is entered under one attribute
_MOST_KINDS: Final = 8
_FEWEST: Final = 4
#: fewer children than this are evaluated without the tests of all; a test is so many times cheaper than a child
_MANY: Final = 16
_CHEAPER: Final = 8


def necessary(target: Target) -> dict[Designator, frozenset[Value]]:
    """Return the equalities that a target requires."""
    found: dict[Designator, frozenset[Value]] = {}
    for any_of in target:
        for attribute, values in _needed(any_of).items():
            # An attribute can have several values, one for each requirement: intersecting them would be wrong.
            found[attribute] = min(found[attribute], values, key=len) if attribute in found else values
    return found


def _needed(any_of: AnyOf) -> dict[Designator, frozenset[Value]]:
    """Return the values of the attributes that each alternative compares for equality."""
    sides: list[dict[Designator, frozenset[Value]]] = []
    for all_of in any_of:
        side: dict[Designator, frozenset[Value]] = {}
        for match in all_of:
            attribute = match.attribute
            if match.function in _EQUALITIES and isinstance(attribute, Designator) and attribute.issuer is None:
                side.setdefault(attribute, frozenset((match.value,)))
        sides.append(side)
    common = set(sides[0]).intersection(*sides[1:]) if sides else set()
    return {attribute: frozenset().union(*(side[attribute] for side in sides)) for attribute in common}


def no_leads() -> None:
    """Return None: nothing is known about the tests that a child begins with."""


@dataclass(frozen=True, slots=True)
class IndexEntry(Generic[U]):
    """A child and the facts by which it is indexed. They are not kept: they are larger than the compiled child."""

    child: U
    target: Target
    #: equalities without which the child is not applicable
    needs: Needs
    #: a target without which the child is not applicable
    reach: Target
    #: computes the tests without which the child is not applicable; called only if many children have equal targets
    leads: Callable[[], Leads | None] = no_leads

    @classmethod
    def of(cls, child: U, target: Target, leads: Callable[[], Leads | None] = no_leads) -> "IndexEntry[U]":
        """Return an entry for a child of which only the target, and perhaps its tests, are known."""
        return cls(child, target, necessary(target), target, leads)


class Index(Generic[T]):
    """Children that are found by what they require."""

    def __init__(
        self,
        children: Sequence[T],
        found: Sequence[T],
        always: Sequence[int] | Ranges,
        groups: "Sequence[_Group | Ranges]",
        compared: Comparisons | None = None,
    ) -> None:
        self._compared = compared
        self._children = children
        self._found = found
        self._always = () if isinstance(always, Ranges) else tuple(always)
        self._groups = (*groups, always) if isinstance(always, Ranges) else tuple(groups)

    @classmethod
    def of(cls, entries: Sequence[IndexEntry[U]], known: Callable[[U], T]) -> "Index[T | U] | None":
        """Return an index, or None if it would not help.

        A child that is found by everything that its target requires is returned as `known(child)`: its target need not
        be evaluated again.
        """
        if len(entries) < _FEWEST:
            return None
        children = [entry.child for entry in entries]
        kinds = [_kind(entry.needs) for entry in entries]
        if len(set(kinds)) > _MOST_KINDS:
            usual = Counter(attribute for kind in kinds for attribute in kind)
            kinds = [(max(kind, key=lambda one: (usual[one], one.id)),) if kind else () for kind in kinds]
        groups: dict[tuple[Designator, ...], _Group] = {}
        always: list[int] = []
        found: list[T | U] = [*children]
        for place, kind in enumerate(kinds):
            if not kind:
                always.append(place)
                continue
            if kind not in groups:
                groups[kind] = _Group(kind)
            groups[kind].enter(place, [entries[place].needs[attribute] for attribute in kind])
            if _covered(entries[place].target, kind):
                found[place] = known(children[place])
        ranged = [entry.reach for entry in entries]
        for group in groups.values():
            group.range(ranged)
        rest = Ranges.of(always, ranged) or always
        many = max([len(always), *(group.most for group in groups.values())]) >= _MANY
        compared = Comparisons.of([entry.leads() for entry in entries]) if many else None
        gained = groups or isinstance(rest, Ranges) or compared is not None
        return Index(children, found, rest, [*groups.values()], compared) if gained else None

    def candidates(self, context: Bags) -> Sequence[T]:
        """Return the children that may apply, in their order. Redundant ones are left out if no names are wanted."""
        try:
            if len(self._groups) == 1 and not self._always:
                places = self._groups[0].places(context)
            else:
                several = [places for group in self._groups if (places := group.places(context))]
                if self._always or not several:
                    several.append(self._always)
                places = several[0] if len(several) == 1 else sorted({place for places in several for place in places})
            compared = self._compared
            if compared is not None and len(places) >= _MANY and len(places) * _CHEAPER > compared.size:
                left = compared.places(context, whole=context.names)
                places = left if len(places) == len(self._children) else sorted({*places}.intersection(left))
        except _Unknown:
            # Evaluate all children.
            return self._children
        except EvaluationError:
            return self._children
        found = self._found
        return [found[place] for place in places]


class _Unknown(Exception):  # noqa: N818  # nobody else sees it
    """An attribute that must be present is not."""


class _Group:
    """Children that need the same attributes, by their values."""

    __slots__ = ("_attributes", "_keys", "_must", "_places", "_ranges", "_single")

    def __init__(self, attributes: tuple[Designator, ...]) -> None:
        self._attributes = attributes
        self._keys = tuple(attribute.key for attribute in attributes)
        self._single = len(attributes) == 1
        self._must = any(attribute.must_be_present for attribute in attributes)
        self._places: dict[Value, list[int]] = {}
        self._ranges: dict[Value, Ranges] = {}

    def enter(self, place: int, values: Sequence[frozenset[Value]]) -> None:
        """Enter a child under all combinations of the values that it needs."""
        for chosen in product(*values):
            self._places.setdefault(chosen[0] if self._single else chosen, []).append(place)

    @property
    def most(self) -> int:
        """The largest number of children under one combination of values."""
        return max(map(len, self._places.values()), default=0)

    def range(self, targets: Sequence[Target]) -> None:
        """Index children that need the same values by the ranges that they require."""
        for values, places in self._places.items():
            ranges = Ranges.of(places, targets)
            if ranges is not None:
                self._ranges[values] = ranges

    def places(self, context: Bags) -> Sequence[int]:
        """Return the positions of the children that may apply. Raises `_Unknown`, `EvaluationError`."""
        facts = context.facts
        bags: list[tuple[Value, ...]] = []
        alone = True
        for key in self._keys:
            bag = facts.get(key)
            if not bag:
                bag = context.bag(self._attributes[len(bags)])
                if not bag:
                    if self._must:
                        raise _Unknown
                    return ()
            alone = alone and len(bag) == 1
            bags.append(bag)
        if alone:
            value = bags[0][0] if self._single else tuple([bag[0] for bag in bags])
            if self._ranges and value in self._ranges:
                return self._ranges[value].places(context)
            return self._places.get(value, ())
        return self._merged(bags[0] if self._single else self._combinations(bags))

    def _combinations(self, bags: Sequence[tuple[Value, ...]]) -> Iterable[Value]:
        """Return combinations of values; if there are more than entries, only those with entries."""
        if prod(map(len, bags)) <= len(self._places):
            return product(*bags)
        sets = [frozenset(bag) for bag in bags]
        return [chosen for chosen in self._places if all(map(contains, sets, chosen))]

    def _merged(self, values: Iterable[Value]) -> Sequence[int]:
        found = [places for value in values if (places := self._places.get(value))]
        if len(found) <= 1:
            return found[0] if found else ()
        return sorted({place for places in found for place in places})


def _covered(target: Target, kind: tuple[Designator, ...]) -> bool:
    """Return whether a target requires only values of these attributes, each in one place."""
    seen: set[Designator] = set()
    for any_of in target:
        attributes = {match.attribute for all_of in any_of for match in all_of}
        single = all(len(all_of) == 1 and all_of[0].function in _EQUALITIES for all_of in any_of)
        (attribute, *others) = attributes
        if not single or others or attribute in seen or attribute not in kind or attribute.must_be_present:
            return False
        seen.add(attribute)
    return True


def _kind(needs: Needs) -> tuple[Designator, ...]:
    """Return the attributes under which a child is entered: all, unless that would be too many entries."""
    attributes = sorted(needs, key=lambda one: (len(needs[one]), one.category, one.id, one.of.id, one.must_be_present))
    entries = 1
    chosen: list[Designator] = []
    for attribute in attributes:
        entries *= len(needs[attribute])
        if entries > _MOST_ENTRIES and chosen:
            break
        chosen.append(attribute)
    return tuple(sorted(chosen, key=lambda one: (one.category, one.id, one.of.id, one.must_be_present)))
