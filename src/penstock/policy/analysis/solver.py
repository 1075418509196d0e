"""Find requests for which policies decide in a certain way: encode policies as z3 formulas, solve, then evaluate.

An attribute is encoded as a flag that it is present, and the position of its value in the scale of its type; or both
for each of two values. A truth is a pair of formulas: when it is true and when it is false; if neither, the plain
evaluator meets an error. Nothing is approximated: the order in which arguments are evaluated, attributes that must be
present and obligations that cannot be evaluated have the same effect as in the plain evaluator.

Parts that have no formula are unknowns: each can be true, false or an error, independently of the request, and is the
same wherever it occurs. Results that do not depend on unknowns are certain; the others have to be tried.

A scale has as few values as a question needs. Policies of the fragment only compare values, so only their order and
their equality with named values matter: a scale has the named values of the type, and in each gap between two of them
as many others as there are attributes of the type, or all if there are fewer. Requests that differ by any values differ
by these.

Questions about the same policies share their formulas. Each has a solver of its own, so that answers do not depend on
earlier ones, with limits on time and effort. This module imports z3, which takes a while: `questions` imports it on
first use.
"""

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial
from itertools import pairwise, product
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

import z3

from penstock.errors import EvaluationError, MalformedError
from penstock.policy.analysis.formulas import (
    EncodedChild,
    Formula,
    Outcomes,
    TruthFormula,
    algorithm,
    all_of,
    both,
    contained,
    decided,
    either,
    every,
    every_truth,
    in_order,
    n_of,
    negated,
    one_of,
    ruled,
    some,
    some_truth,
)
from penstock.policy.engine.evaluate import EvaluationScope, evaluate, target_matches
from penstock.policy.engine.lookup import Context, NoSources, is_clock
from penstock.policy.language.datatypes import (
    BOOLEAN,
    DATE,
    DATE_TIME,
    DOUBLE,
    INTEGER,
    STRING,
    TIME,
    URI,
    Bag,
    DataType,
    Function,
    Value,
)
from penstock.policy.language.functions import V1
from penstock.policy.language.policies import (
    Apply,
    ApplyEach,
    ApplyPath,
    ContentSelector,
    Designator,
    Duties,
    Expression,
    Match,
    Policy,
    PolicyLiteral,
    PolicyReference,
    PolicySet,
    Reference,
    Root,
    Rule,
    RuleEffect,
    Target,
    designators,
)
from penstock.policy.language.requests import Facts
from penstock.policy.language.results import XacmlDecision
from penstock.policy.language.times import DAY, Date, DateTime, Time, days_of, into_days
from penstock.selector.limits import SelectorLimits
from penstock.selector.solver import UnsettledError as UnsettledError

if TYPE_CHECKING:
    from penstock.policy.language.requests import Key


Between: TypeAlias = Callable[[Value | None, Value | None, int], Sequence[Value]]
"""Returns a number of values between two bounds, in order, or all if there are fewer; None is an open bound."""

_FURTHEST: Final = 14 * 60
_START: Final = days_of(2026, 1, 1) * DAY
#: suffixes that give the next strings; the last one gives all of them
_FILLERS: Final = ("a", "0", "!", "\0")


class Scale:
    """The values of one type that a question needs, by position; NaN comes last, and has no order."""

    def __init__(self, of_type: DataType, named: Iterable[Value], attributes: int) -> None:
        ends, between = _TYPES[of_type]
        known = sorted({value for value in (*named, *ends) if value == value})  # noqa: PLR0124  # NaN is not
        bounds = [None, *known, None]
        self.values: list[Value] = []
        for low, high in pairwise(bounds):
            self.values += between(low, high, attributes)
            if high is not None:
                self.values.append(high)
        self._places = {value: place for place, value in enumerate(self.values)}
        #: the positions of the values that are not merely examples of what is between others
        self.named = frozenset(self._places[value] for value in known)
        #: the position of NaN, if the type has it
        self.unordered = len(self.values) if of_type is DOUBLE else None
        if of_type is DOUBLE:
            self.values.append(math.nan)

    def place(self, value: Value) -> int:
        """Return the position of a named value."""
        if self.unordered is not None and math.isnan(value):
            return self.unordered
        return self._places[value]


def known_type(of_type: DataType) -> bool:
    """Return whether a type is in the fragment."""
    return of_type in _TYPES


def _no_others(_low: Value | None, _high: Value | None, _count: int) -> Sequence[Value]:
    return ()


def _texts(low: str | None, high: str | None, count: int) -> Sequence[str]:
    # The empty string is the first, and always named.
    if low is None:
        return ()
    several = [[low + filler * times for times in range(1, count + 1)] for filler in _FILLERS]
    for found in several:
        if high is None or not found or found[-1] < high:
            return found
    return [text for text in several[-1] if high is None or text < high]


def _integers(low: int | None, high: int | None, count: int) -> Sequence[int]:
    if low is None:
        return range(count) if high is None else range(high - count, high)
    return range(low + 1, low + 1 + count if high is None else min(high, low + 1 + count))


def _doubles(low: float | None, high: float | None, count: int) -> Sequence[float]:
    # The infinities are always named.
    if low is None or high is None:
        return ()
    steps = range(1, count + 1)
    if math.isinf(low):
        found = [(0.0 if math.isinf(high) else high) - step for step in reversed(steps)]
    elif math.isinf(high):
        found = [low + step for step in steps]
    else:
        found = [low + (high - low) * step / (count + 1) for step in steps]
    if all(one < other for one, other in pairwise([low, *found, high])):
        return found
    return _next_doubles(low, high, count)


def _next_doubles(low: float, high: float, count: int) -> Sequence[float]:
    found: list[float] = []
    while len(found) < count and (following := math.nextafter(found[-1] if found else low, math.inf)) < high:
        found.append(following)
    return found


def _moments(low: DateTime | None, high: DateTime | None, count: int) -> Sequence[DateTime]:
    orders = _orders(None if low is None else low.order, None if high is None else high.order, count)
    return [DateTime(*into_days(order), 0) for order in orders]


def _times(low: Time | None, high: Time | None, count: int) -> Sequence[Time]:
    # The first time, in the easternmost zone, is always named.
    if low is None:
        return ()
    # Prefer times in UTC: people write these.
    beyond = Decimal(DAY if low.order < DAY - 1 else DAY + _FURTHEST * 60)
    return [_time(order) for order in _orders(low.order, beyond if high is None else high.order, count)]


def _orders(low: Decimal | None, high: Decimal | None, count: int) -> Sequence[Decimal]:
    steps = range(1, count + 1)
    if low is None:
        start = Decimal(_START) if high is None else high
        return [start - step * DAY for step in reversed(steps)]
    if high is None:
        return [low + step * DAY for step in steps]
    found = {low + (high - low) * step / (count + 1) for step in steps}
    return sorted(order for order in found if low < order < high)


def _time(order: Decimal) -> Time:
    zone = _FURTHEST if order < 0 else -_FURTHEST if order >= DAY else 0
    return Time(0, order + zone * 60, zone)


def _dates(low: Date | None, high: Date | None, count: int) -> Sequence[Date]:
    if low is None or high is None or high.order - low.order > count * DAY:
        steps = range(1, count + 1)
        if low is None:
            start = Decimal(_START) if high is None else high.order
            return [_date(start - step * DAY) for step in reversed(steps)]
        return [_date(low.order + step * DAY) for step in steps]
    # Zones are whole minutes, and span more than a day.
    minutes = range(int(low.order) + 60, int(high.order), 60)
    return [_date(Decimal(order)) for order in minutes[:count]]


def _date(order: Decimal) -> Date:
    days, rest = into_days(order)
    ahead = -int(rest) // 60
    return Date(days, Decimal(0), ahead) if -ahead <= _FURTHEST else Date(days + 1, Decimal(0), ahead + DAY // 60)


_TYPES: Final[dict[DataType, tuple[tuple[Value, ...], Between]]] = {
    STRING: (("",), _texts),
    URI: (("",), _texts),
    BOOLEAN: ((False, True), _no_others),
    INTEGER: ((), _integers),
    DOUBLE: ((-math.inf, math.inf), _doubles),
    DATE_TIME: ((), _moments),
    DATE: ((), _dates),
    TIME: ((_time(Decimal(-_FURTHEST * 60)),), _times),
}


# ----------------------------------------------------------------------------------------------------------------------
# The values and attributes that policies name, from which scales are built.


class NamedValues:
    """The values and attributes that policies name."""

    def __init__(self) -> None:
        self.values: dict[DataType, set[Value]] = {BOOLEAN: set()}
        self.keys: set[Key] = set()

    def root(self, root: Root) -> None:
        """Add the values and attributes of a policy or a policy set."""
        self._target(root.target)
        self._duties(root.duties)
        if isinstance(root, PolicySet):
            for member in root.members:
                if not isinstance(member, PolicyReference):
                    self.root(member)
            return
        for expression in root.variables.values():
            self._expression(expression)
        for rule in root.rules:
            self._target(rule.target)
            self._duties(rule.duties)
            if rule.condition is not None:
                self._expression(rule.condition)

    def _target(self, target: Target) -> None:
        for match in (match for any_of in target for group in any_of for match in group):
            self._value(match.value, match.of)
            self._expression(match.attribute)

    def _duties(self, duties: Duties) -> None:
        for duty in (*duties.obligations, *duties.advice):
            for assignment in duty.assignments:
                self._expression(assignment.expression)

    def _expression(self, expression: Expression) -> None:
        match expression:
            case PolicyLiteral(value, of_type):
                self._value(value, of_type)
            case Designator():
                self.keys.add(expression.key)
            case ApplyEach(_, _, arguments) | ApplyPath(_, arguments):
                for argument in arguments:
                    self._expression(argument)
            case Apply(function, arguments):
                if function.name.endswith(("-bag", "-bag-size")):
                    # what a bag may have for its size
                    self.values.setdefault(INTEGER, set()).update((0, 1, 2, len(arguments)))
                for argument in arguments:
                    self._expression(argument)

    def _value(self, value: Value, of_type: DataType) -> None:
        if known_type(of_type):
            self.values.setdefault(of_type, set()).add(value)


_ORDERS: Final[Mapping[str, Callable[[Formula, Formula], Formula]]] = {
    "greater-than": z3.UGT,
    "greater-than-or-equal": z3.UGE,
    "less-than": z3.ULT,
    "less-than-or-equal": z3.ULE,
}
#: positions are bit vectors of this size, which are faster for the solver than integers
BITS: Final = 32
_LOGIC: Final = (f"{V1}or", f"{V1}and", f"{V1}not", f"{V1}n-of")
Variables = Mapping[str, Expression]
T = TypeVar("T")

# One operator with many arguments is faster for the solver than many with two.
all_of.register(z3.BoolRef, lambda _one, formulas: z3.And(formulas))
one_of.register(z3.BoolRef, lambda _one, formulas: z3.Or(formulas))


@dataclass(frozen=True, slots=True)
class EncodedTerm:
    """A value: when it exists without an error, and its position."""

    fine: Formula
    place: Formula


@dataclass(frozen=True, slots=True)
class EncodedBag:
    """A bag: when it exists without an error, and its possible values, each with when it is present."""

    fine: Formula
    members: tuple[tuple[Formula, Formula], ...]


@dataclass(frozen=True, slots=True)
class UnencodedTerm:
    """A part without a formula: its possible states, exactly one of which is true, and how to determine it."""

    #: a description, and its first place
    construct: str
    states: tuple[Formula, ...]
    #: returns the number of its state for a request
    actual: Callable[[Context], int]
    #: the attributes that it depends on and that are in the fragment
    keys: "tuple[Key, ...]"


class PolicyEncoder:
    """Formulas for some policies, which share attributes and scales; the number of values per attribute is limited.

    Scales also have the values in `given`. If at most `different` attributes have other values, they are smaller.
    """

    def __init__(
        self,
        roots: Sequence[Root],
        always: Callable[[Designator], bool],
        values: int = 1,
        *,
        given: Mapping[DataType, Iterable[Value]] = MappingProxyType({}),
        different: int | None = None,
    ) -> None:
        self.context = z3.Context()
        self.constraints: list[Formula] = []
        #: for each value of an attribute: whether it is present, and its position
        self.attributes: dict[Key, tuple[tuple[Formula, Formula], ...]] = {}
        self.unknown: list[UnencodedTerm] = []
        self._unknown: dict[Hashable, tuple[object, UnencodedTerm]] = {}
        self._always = always
        self._most = values
        named = NamedValues()
        for root in roots:
            named.root(root)
        for of_type, those in given.items():
            named.values.setdefault(of_type, set()).update(those)
        count = {of_type: sum(key.of is of_type for key in named.keys) for of_type in _TYPES}
        self.scales = {
            of_type: Scale(
                of_type,
                named.values.get(of_type, ()),
                values * (count[of_type] if different is None else min(count[of_type], different)),
            )
            for of_type in {*named.values, *(key.of for key in named.keys)}
            if known_type(of_type)
        }
        self._around: list[str] = []
        self._rules: dict[tuple[int, int], tuple[Rule, Variables, EncodedChild]] = {}
        self._variables: dict[tuple[int, str], tuple[Variables, Any]] = {}

    # --- policies -----------------------------------------------------------------------------------------------

    def root(self, root: Root) -> EncodedChild:
        """Return when each decision is the outcome of a policy or a policy set."""
        with self._within(root, "policy set" if isinstance(root, PolicySet) else "policy"):
            variables = root.variables if isinstance(root, Policy) else {}
            applies = self._target(root.target)
            combine = algorithm(root.combining)
            said = self._unknown_outcomes(root) if combine is None else combine([*self._children(root)])
            told = {effect: self._told(root.duties, effect, variables) for effect in RuleEffect}
            return contained(applies, said, told)

    def _children(self, root: Root) -> Iterator[EncodedChild]:
        if isinstance(root, Policy):
            yield from (self._rule(rule, root.variables) for rule in root.rules)
            return
        for member in root.members:
            if isinstance(member, PolicyReference):
                raise self._outside(f"reference to `{member.id[:120]}`")
            yield self.root(member)

    def _rule(self, rule: Rule, variables: Variables) -> EncodedChild:
        key = (id(rule), id(variables))
        if key not in self._rules:
            with self._within(rule, "rule"):
                # What is kept holds what its key is made of.
                self._rules[key] = (rule, variables, self._ruled(rule, variables))
        return self._rules[key][2]

    def _ruled(self, rule: Rule, variables: Variables) -> EncodedChild:
        condition = TruthFormula(True, False) if rule.condition is None else self._truth(rule.condition, variables)
        told = self._told(rule.duties, rule.effect, variables)
        return ruled(rule.effect, self._target(rule.target), condition, told)

    def _told(self, duties: Duties, effect: RuleEffect, variables: Variables) -> Formula:
        """Return when obligations and advice can be evaluated."""
        return every(
            self._fine(assignment.expression, variables)
            for duty in (*duties.obligations, *duties.advice)
            if duty.on is effect
            for assignment in duty.assignments
        )

    def _fine(self, expression: Expression, variables: Variables) -> Formula:
        try:
            return self._is_fine(expression, variables)
        except MalformedError as error:
            return self._unknown_value(expression, variables, error).states[0]

    def _is_fine(self, expression: Expression, variables: Variables) -> Formula:
        if isinstance(expression, PolicyLiteral):
            return True
        if isinstance(expression.gives, Bag):
            return self._bag(expression, variables).fine
        if expression.gives is BOOLEAN:
            return self._truth(expression, variables).fine
        return self._term(expression, variables).fine

    # --- targets ------------------------------------------------------------------------------------------------

    def _target(self, target: Target) -> TruthFormula:
        return every_truth(
            some_truth(every_truth(self._match(one) for one in all_of) for all_of in any_of) for any_of in target
        )

    def _match(self, match: Match) -> TruthFormula:
        try:
            return self._matched(match)
        except MalformedError as error:
            target: Target = (((match,),),)
            return self._unknown_truth(match, {}, error, lambda scope: target_matches(target, scope))

    def _matched(self, match: Match) -> TruthFormula:
        compare = self._comparison(match.function)
        bag = self._bag(match.attribute, {})
        named = self._literal(match.value, match.of).place
        holds = some(both(there, compare(named, place)) for there, place in bag.members)
        return decided(bag.fine, holds)

    def _comparison(self, function: Function) -> Callable[[Formula, Formula], Formula]:
        of_type = function.takes[0]
        if isinstance(of_type, DataType) and function.takes == (of_type, of_type) and known_type(of_type):
            if function.id == f"{V1}{of_type}-equal":
                return lambda a, b: a == b
            compare = _ORDERS.get(function.id.removeprefix(f"{V1}{of_type}-"))
            if compare is not None:
                return self._ordered(compare, self.scales[of_type].unordered)
        raise self._outside(f"function `{function.name}`")

    def _ordered(
        self, compare: Callable[[Formula, Formula], Formula], unordered: int | None
    ) -> Callable[[Formula, Formula], Formula]:
        if unordered is None:
            return compare
        return lambda a, b: every([compare(a, b), a != unordered, b != unordered])

    # --- expressions --------------------------------------------------------------------------------------------

    def _truth(self, expression: Expression, variables: Variables) -> TruthFormula:
        try:
            return self._understood(expression, variables)
        except MalformedError as error:
            return self._unknown_truth(expression, variables, error, lambda scope: scope.value(expression))

    def _understood(self, expression: Expression, variables: Variables) -> TruthFormula:
        match expression:
            case PolicyLiteral(value):
                return TruthFormula(value, not value)
            case Reference(name):
                return self._variable(self._truth, name, variables)
            case Apply(function, arguments) if function.id in _LOGIC:
                return self._combined(function, arguments, variables)
            case Apply(function, (one, bag)) if function.name == f"{_of(bag)}-is-in":
                return self._is_in(self._value(one, variables), self._bag(bag, variables))
            case Apply(function, (one, other)) if function.name == f"{_of(one)}-at-least-one-member-of":
                return self._common(self._bag(one, variables), self._bag(other, variables))
            case Apply(function, (one, other)) if not isinstance(one.gives, Bag):
                compare = self._comparison(function)
                left, right = self._value(one, variables), self._value(other, variables)
                return decided(both(left.fine, right.fine), compare(left.place, right.place))
            case Apply(function) if function.name == "boolean-one-and-only":
                term = self._term(expression, variables)
                return decided(term.fine, term.place == self.scales[BOOLEAN].place(True))
        raise self._outside(_construct(expression))

    def _variable(self, encode: "Callable[[Expression, Variables], T]", name: str, variables: Variables) -> T:
        """Encode a variable once."""
        key = (id(variables), name)
        if key not in self._variables:
            self._variables[key] = (variables, encode(variables[name], variables))
        found: T = self._variables[key][1]
        return found

    def _combined(self, function: Function, arguments: Sequence[Expression], variables: Variables) -> TruthFormula:
        """A.3.5: arguments are evaluated in order, and no more than necessary."""
        if function.id == f"{V1}n-of":
            return self._n_of(arguments, variables)
        truths = [self._truth(argument, variables) for argument in arguments]
        if function.id == f"{V1}not":
            return TruthFormula(truths[0].fails, truths[0].holds)
        return in_order(truths, decisive=function.id == f"{V1}or")

    def _n_of(self, arguments: Sequence[Expression], variables: Variables) -> TruthFormula:
        number = arguments[0]
        if not isinstance(number, PolicyLiteral):
            raise self._outside("`n-of` with a number that is computed")
        return n_of(number.value, [self._truth(argument, variables) for argument in arguments[1:]])

    def _is_in(self, one: EncodedTerm, bag: EncodedBag) -> TruthFormula:
        holds = some(both(there, place == one.place) for there, place in bag.members)
        return decided(both(one.fine, bag.fine), holds)

    def _common(self, one: EncodedBag, other: EncodedBag) -> TruthFormula:
        """A.3.11: at-least-one-member-of."""
        pairs = product(one.members, other.members)
        holds = some(every([first, second, place == same]) for (first, place), (second, same) in pairs)
        return decided(both(one.fine, other.fine), holds)

    def _value(self, expression: Expression, variables: Variables) -> EncodedTerm:
        """Encode a value of any type, including computed booleans."""
        computed = isinstance(expression, Apply) and not expression.function.name.endswith("-one-and-only")
        if expression.gives is BOOLEAN and computed:
            truth, scale = self._truth(expression, variables), self.scales[BOOLEAN]
            places = (z3.BitVecVal(scale.place(value), BITS, self.context) for value in (True, False))
            return EncodedTerm(truth.fine, _if(truth.holds, *places))
        return self._term(expression, variables)

    def _term(self, expression: Expression, variables: Variables) -> EncodedTerm:
        match expression:
            case PolicyLiteral(value, of_type):
                return self._literal(value, of_type)
            case Reference(name):
                return self._variable(self._value, name, variables)
            case Apply(function, (inner,)) if function.name == f"{_of(inner)}-one-and-only":
                return self._only(self._bag(inner, variables))
            case Apply(function, (inner,)) if function.name == f"{_of(inner)}-bag-size":
                return self._size(self._bag(inner, variables))
        raise self._outside(_construct(expression))

    def _only(self, bag: EncodedBag) -> EncodedTerm:
        found: Formula = z3.BitVecVal(0, BITS, self.context)
        for there, place in bag.members:
            found = _if(there, place, found)
        return EncodedTerm(both(bag.fine, _counted(bag).get(1, False)), found)

    def _size(self, bag: EncodedBag) -> EncodedTerm:
        found: Formula = self._literal(0, INTEGER).place
        for size, formula in _counted(bag).items():
            found = _if(formula, self._literal(size, INTEGER).place, found)
        return EncodedTerm(bag.fine, found)

    def _bag(self, expression: Expression, variables: Variables) -> EncodedBag:
        match expression:
            case Designator():
                return self._designated(expression)
            case Reference(name):
                return self._variable(self._bag, name, variables)
            case Apply(function, arguments) if function.name.endswith("-bag"):
                terms = [self._value(argument, variables) for argument in arguments]
                fine = every(term.fine for term in terms)
                return EncodedBag(fine, tuple((True, term.place) for term in terms))
        raise self._outside(_construct(expression))

    def _designated(self, wanted: Designator) -> EncodedBag:
        if wanted.issuer is not None:
            raise self._outside(f"attribute `{wanted.id[:120]}` of an issuer")
        if not known_type(wanted.of):
            raise self._outside(f"attribute `{wanted.id[:120]}` of type `{wanted.of}`")
        if wanted.key not in self.attributes:
            self.attributes[wanted.key] = self._members(wanted)
        members = self.attributes[wanted.key]
        return EncodedBag(some(there for there, _ in members) if wanted.must_be_present else True, members)

    def _members(self, wanted: Designator) -> tuple[tuple[Formula, Formula], ...]:
        """Return the values that an attribute can have, as variables."""
        number, always = len(self.attributes), self._always(wanted)
        # A request has one current time.
        members = [
            (z3.Bool(f"there {number} {one}", self.context), z3.BitVec(f"place {number} {one}", BITS, self.context))
            for one in range(1 if always else self._most)
        ]
        self.constraints += [z3.ULT(place, len(self.scales[wanted.of].values)) for _, place in members]
        if always:
            self.constraints.append(members[0][0])
        for (there, place), (second, other) in pairwise(members):
            # The order of two values does not matter.
            self.constraints += [z3.Implies(second, there), z3.ULE(place, other)]
        return tuple(members)

    def _literal(self, value: Value, of_type: DataType) -> EncodedTerm:
        if not known_type(of_type):
            raise self._outside(f"value of type `{of_type}`")
        place = z3.BitVecVal(self.scales[of_type].place(value), BITS, self.context)
        return EncodedTerm(True, place)

    # --- what is not understood ---------------------------------------------------------------------------------

    def _unknown_truth(
        self,
        what: Match | Expression,
        variables: Variables,
        error: MalformedError,
        ask: Callable[[EvaluationScope], object],
    ) -> TruthFormula:
        def actual(context: Context) -> int:
            try:
                return 0 if ask(EvaluationScope(context, variables)) else 1
            except EvaluationError:
                return 2

        found = self._left_open(what, variables, error, 3, actual)
        return TruthFormula(found.states[0], found.states[1])

    def _unknown_value(self, expression: Expression, variables: Variables, error: MalformedError) -> UnencodedTerm:
        def actual(context: Context) -> int:
            try:
                EvaluationScope(context, variables).value(expression)
            except EvaluationError:
                return 1
            return 0

        return self._left_open(("told", expression), variables, error, 2, actual)

    def _unknown_outcomes(self, root: Root) -> Outcomes:
        alone: Root = replace(root, target=(), duties=Duties())
        decisions = [*XacmlDecision]

        def actual(context: Context) -> int:
            return decisions.index(evaluate(alone, Context(context.request, context.now, context.sources)).decision)

        error = self._outside(f"combining algorithm `{root.combining[:120]}`")
        found = self._left_open(alone, {}, error, len(decisions), actual)
        return dict(zip(decisions, found.states, strict=True))

    def _left_open(
        self, what: Hashable, variables: Variables, error: MalformedError, count: int, actual: Callable[[Context], int]
    ) -> UnencodedTerm:
        """Return an unknown for a part without a formula; it is the same wherever the variables are the same."""
        refers = any(isinstance(one, Reference) for one in _parts(what))
        # Policies contain mappings of variables, which cannot be hashed.
        key = (id(what) if isinstance(what, Policy | PolicySet) else what, id(variables) if refers else None)
        if key not in self._unknown:
            state = z3.BitVec(f"unknown {len(self.unknown)}", BITS, self.context)
            self.constraints.append(z3.ULT(state, count))
            depends = [what, variables] if refers else [what]
            asked = {one for one in designators(depends) if one.issuer is None and known_type(one.of)}
            for one in asked:
                self._designated(one)
            places = tuple(state == one for one in range(count))
            name = f"{error.fields['construct']} of {error.fields['element']}"
            made = UnencodedTerm(name, places, actual, tuple(dict.fromkeys(one.key for one in asked)))
            self.unknown.append(made)
            # What is kept holds what its key is made of.
            self._unknown[key] = ((what, variables), made)
        return self._unknown[key][1]

    def described(self, formulas: Iterable[Formula]) -> tuple[str, ...]:
        """Describe the unknowns in formulas."""
        used = _variables([one for one in formulas if not isinstance(one, bool)])
        names = (one.construct for place, one in enumerate(self.unknown) if f"unknown {place}" in used)
        return tuple(dict.fromkeys(names))

    def learnt(self, model: z3.ModelRef, context: Callable[[], Context]) -> Iterator[Formula]:
        """Yield the actual states of unknowns that the solver guessed wrong, for requests like the model's."""
        for one in self.unknown:
            actual = one.states[one.actual(context())]
            if not z3.is_true(model.eval(actual, model_completion=True)):
                members = [member for key in one.keys for pair in self.attributes[key] for member in pair]
                like = [member == model.eval(member, model_completion=True) for member in members]
                yield z3.Implies(z3.And(like), actual) if like else actual

    @contextmanager
    def _within(self, element: Rule | Root, kind: str) -> Iterator[None]:
        self._around.append(f"{kind} `{element.id[:120]}`")
        try:
            yield
        finally:
            self._around.pop()

    def _outside(self, construct: str) -> MalformedError:
        element = " of ".join(reversed(self._around))
        return MalformedError(
            "xacml.fragment",
            f"{element}: {construct} is not understood by the analysis",
            hint="it understands comparisons, is-in and logic of attributes with at most one value, without issuers",
            construct=construct,
            element=element,
        )


def _counted(bag: EncodedBag) -> dict[int, Formula]:
    """Return when a bag has each number of values."""
    found: dict[int, Formula] = {0: True}
    for there, _ in bag.members:
        more = {size + 1: both(formula, there) for size, formula in found.items()}
        same = {size: both(formula, negated(there)) for size, formula in found.items()}
        found = {size: either(more.get(size, False), same.get(size, False)) for size in {*more, *same}}
    return found


def _parts(what: object) -> Iterator[object]:
    """Yield an element and all elements in it."""
    yield what
    if isinstance(what, Apply | ApplyEach | ApplyPath):
        for argument in what.arguments:
            yield from _parts(argument)
    elif isinstance(what, tuple):
        for one in what:
            yield from _parts(one)


def _if(formula: Formula, one: Formula, other: Formula) -> Formula:
    return (one if formula else other) if isinstance(formula, bool) else z3.If(formula, one, other)


def _of(expression: Expression) -> str:
    return str(expression.gives.of) if isinstance(expression.gives, Bag) else ""


def _construct(expression: Expression) -> str:
    match expression:
        case Apply(function):
            return f"function `{function.name}`"
        case ApplyEach(name) | ApplyPath(name):
            return f"function `{name}`"
        case ContentSelector():
            return "an attribute selector"
    return "an attribute" if isinstance(expression, Designator) else "an expression"


Ways: TypeAlias = frozenset[tuple[str, ...]]
"""The combinations of some policies' decisions to search for."""

#: the clock does not matter, because requests that are found contain the current time
#: the number of requests that are tried if some part has no formula
_ATTEMPTS: Final = 32
_NOW: Final = datetime(2026, 1, 1, tzinfo=UTC)


class Search:
    """A search for requests over given policies, with a limited number of values for each attribute."""

    def __init__(self, roots: Sequence[Root], limits: SelectorLimits, values: int = 1) -> None:
        self._limits = limits
        self._encoder = PolicyEncoder(roots, is_clock, values)
        self._known: dict[int, tuple[Root, dict[str, Formula]]] = {}
        #: the current time, for parts without a formula that use it
        self._clock = {one.key: _context({}).bag(one) for one in designators(roots) if is_clock(one)}

    def find(self, roots: Sequence[Root], wanted: Ways) -> Facts | None:
        """Return a request for which policies decide in one of some ways, evaluated; None if there is none.

        If the solver's request is decided differently, because of parts without a formula, the solver learns the
        results of these parts for such requests, and searches for another one. Raises `UnsettledError` if it gives up,
        or if no request is confirmed.
        """
        said = [self._decisions(root) for root in roots]
        ways = (every(one[decision] for one, decision in zip(said, way, strict=True)) for way in sorted(wanted))
        solver = z3.Solver(ctx=self._encoder.context)
        solver.set("timeout", self._limits.solver_time)
        solver.set("rlimit", self._limits.solver_effort)
        solver.add(*self._encoder.constraints, some(ways))
        for attempt in range(_ATTEMPTS):
            verdict = solver.check()
            if verdict == z3.unsat and attempt == 0:
                return None
            if verdict != z3.sat:
                # The tried requests say nothing about other values.
                raise UnsettledError
            model = solver.model()
            facts = self._facts(model)
            if decisions(roots, facts) in wanted:
                return self._fewer(roots, wanted, facts)
            learnt = [*self._encoder.learnt(model, partial(_context, facts))]
            if not learnt:
                raise UnsettledError
            solver.add(*learnt)
        raise UnsettledError

    def unknown(self, roots: Sequence[Root]) -> tuple[str, ...]:
        """Describe the parts of policies without a formula."""
        return self._encoder.described(one for root in roots for one in self._decisions(root).values())

    def _fewer(self, roots: Sequence[Root], wanted: Ways, facts: Facts) -> Facts:
        """Remove attributes that do not matter; the time stays, so that the result does not depend on the clock."""
        for key in [*facts]:
            if key in self._clock:
                continue
            for fewer in ((), facts[key][:1], facts[key][1:]):
                less = {other: values if other is not key else fewer for other, values in facts.items()}
                less = {other: values for other, values in less.items() if values}
                if len(fewer) < len(facts.get(key, ())) and decisions(roots, less) in wanted:
                    facts = less
                    break
        return facts

    def _decisions(self, root: Root) -> dict[str, Formula]:
        if id(root) not in self._known:
            says = self._encoder.root(root).says
            plain = {
                name: some(says[one] for one in XacmlDecision if one.plain == name)
                for name in {one.plain for one in XacmlDecision}
            }
            self._known[id(root)] = (root, plain)
        return self._known[id(root)][1]

    def _facts(self, model: z3.ModelRef) -> Facts:
        encoder = self._encoder
        found = {
            key: tuple(
                encoder.scales[key.of].values[model.eval(place, model_completion=True).as_long()]
                for there, place in members
                if z3.is_true(model.eval(there, model_completion=True))
            )
            for key, members in encoder.attributes.items()
        }
        return {**self._clock, **{key: values for key, values in found.items() if values}}


def _variables(formulas: Sequence[Formula]) -> set[str]:
    """Return the names of the variables in formulas; shared parts are visited once."""
    found, seen, left = set[str](), set[int](), [*formulas]
    while left:
        one = left.pop()
        if one.get_id() not in seen:
            seen.add(one.get_id())
            left += one.children()
            if z3.is_const(one) and one.decl().kind() == z3.Z3_OP_UNINTERPRETED:
                found.add(one.decl().name())
    return found


def decisions(roots: Sequence[Root], facts: Facts) -> tuple[str, ...]:
    """Return the decisions of policies for a request, by the plain evaluator."""
    return tuple(evaluate(root, _context(facts)).decision.plain for root in roots)


def _context(facts: Facts) -> Context:
    return Context(None, _NOW, NoSources(), facts)
