"""Policies of the fragment that analysis understands, as formulas: when each decision comes.

An attribute is whether it is there, and the place of its value in the scale of its type. A truth is the pair of
formulas that say when it holds and when it does not; where neither does, the plain evaluator meets an error. Nothing is
approximated: the order in which arguments are looked at, attributes that must be present and obligations that cannot
be told count as they do there.

This module imports z3, which takes a while; analysis.py imports it on first use.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

import z3

from penstock.errors import MalformedError
from penstock.policy.analysis_combine import algorithm
from penstock.policy.analysis_named import Named
from penstock.policy.analysis_scales import Scale, known_type
from penstock.policy.datatypes import BOOLEAN, INTEGER, DataType, Value
from penstock.policy.expressions import (
    Apply,
    ApplyEach,
    ApplyPath,
    Designator,
    Expression,
    Literal,
    Reference,
    Selector,
)
from penstock.policy.formulas import (
    Child,
    Formula,
    Truth,
    all_of,
    both,
    contained,
    decided,
    every,
    every_truth,
    in_order,
    n_of,
    one_of,
    ruled,
    some,
    some_truth,
)
from penstock.policy.functions import V1
from penstock.policy.policies import Duties, Effect, Match, Policy, PolicyReference, PolicySet, Root, Rule, Target
from penstock.policy.signatures import Bag, Function

if TYPE_CHECKING:
    from penstock.policy.requests import Key

_ORDERS: Final[Mapping[str, Callable[[Formula, Formula], Formula]]] = {
    "greater-than": z3.UGT,
    "greater-than-or-equal": z3.UGE,
    "less-than": z3.ULT,
    "less-than-or-equal": z3.ULE,
}
#: places are numbers of so many bits, about which the solver reasons more quickly than about integers
_BITS: Final = 32
_LOGIC: Final = (f"{V1}or", f"{V1}and", f"{V1}not", f"{V1}n-of")
Variables = Mapping[str, Expression]
T = TypeVar("T")

# One operator of many arguments, about which the solver reasons more quickly than about many of two.
all_of.register(z3.BoolRef, lambda _one, formulas: z3.And(formulas))
one_of.register(z3.BoolRef, lambda _one, formulas: z3.Or(formulas))


@dataclass(frozen=True, slots=True)
class Term:
    """A value: when there is one without an error, and its place."""

    fine: Formula
    place: Formula


@dataclass(frozen=True, slots=True)
class Bagged:
    """A bag: when there is one without an error, and which values it may have, each with when it is there."""

    fine: Formula
    members: tuple[tuple[Formula, Formula], ...]


class Encoder:
    """Formulas for some policies, which share their attributes and scales."""

    def __init__(self, roots: Sequence[Root], always: Callable[[Designator], bool]) -> None:
        self.context = z3.Context()
        self.constraints: list[Formula] = []
        #: whether an attribute is there, and the place of its value
        self.attributes: dict[Key, tuple[Formula, Formula]] = {}
        self._always = always
        named = Named()
        for root in roots:
            named.root(root)
        self.scales = {
            of_type: Scale(of_type, named.values.get(of_type, ()), sum(key.of is of_type for key in named.keys))
            for of_type in {*named.values, *(key.of for key in named.keys)}
            if known_type(of_type)
        }
        self._around: list[str] = []
        self._rules: dict[tuple[int, int], tuple[Rule, Variables, Child]] = {}
        self._variables: dict[tuple[int, str], tuple[Variables, Any]] = {}

    # --- policies -----------------------------------------------------------------------------------------------

    def root(self, root: Root) -> Child:
        """Return when a policy or a policy set says what. Raises `MalformedError` (`xacml.fragment`)."""
        with self._within(root, "policy set" if isinstance(root, PolicySet) else "policy"):
            variables = root.variables if isinstance(root, Policy) else {}
            applies = self._target(root.target)
            combine = algorithm(root.combining)
            if combine is None:
                raise self._outside(f"combining algorithm `{root.combining[:120]}`")
            said = combine([*self._children(root)])
            told = {effect: self._told(root.duties, effect, variables) for effect in Effect}
            return contained(applies, said, told)

    def _children(self, root: Root) -> Iterator[Child]:
        if isinstance(root, Policy):
            yield from (self._rule(rule, root.variables) for rule in root.rules)
            return
        for member in root.members:
            if isinstance(member, PolicyReference):
                raise self._outside(f"reference to `{member.id[:120]}`")
            yield self.root(member)

    def _rule(self, rule: Rule, variables: Variables) -> Child:
        key = (id(rule), id(variables))
        if key not in self._rules:
            with self._within(rule, "rule"):
                # What is kept holds what its key is made of.
                self._rules[key] = (rule, variables, self._ruled(rule, variables))
        return self._rules[key][2]

    def _ruled(self, rule: Rule, variables: Variables) -> Child:
        condition = Truth(True, False) if rule.condition is None else self._truth(rule.condition, variables)
        told = self._told(rule.duties, rule.effect, variables)
        return ruled(rule.effect, self._target(rule.target), condition, told)

    def _told(self, duties: Duties, effect: Effect, variables: Variables) -> Formula:
        """Return when obligations and advice can be told."""
        return every(
            self._fine(assignment.expression, variables)
            for duty in (*duties.obligations, *duties.advice)
            if duty.on is effect
            for assignment in duty.assignments
        )

    def _fine(self, expression: Expression, variables: Variables) -> Formula:
        if isinstance(expression, Literal):
            return True
        if isinstance(expression.gives, Bag):
            return self._bag(expression, variables).fine
        if expression.gives is BOOLEAN:
            return self._truth(expression, variables).fine
        return self._term(expression, variables).fine

    # --- targets ------------------------------------------------------------------------------------------------

    def _target(self, target: Target) -> Truth:
        return every_truth(
            some_truth(every_truth(self._match(one) for one in all_of) for all_of in any_of) for any_of in target
        )

    def _match(self, match: Match) -> Truth:
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

    def _truth(self, expression: Expression, variables: Variables) -> Truth:
        match expression:
            case Literal(value):
                return Truth(value, not value)
            case Reference(name):
                return self._variable(self._truth, name, variables)
            case Apply(function, arguments) if function.id in _LOGIC:
                return self._combined(function, arguments, variables)
            case Apply(function, (one, bag)) if function.name == f"{_of(bag)}-is-in":
                return self._is_in(self._value(one, variables), self._bag(bag, variables))
            case Apply(function, (one, other)) if not isinstance(one.gives, Bag):
                compare = self._comparison(function)
                left, right = self._value(one, variables), self._value(other, variables)
                return decided(both(left.fine, right.fine), compare(left.place, right.place))
            case Apply(function) if function.name == "boolean-one-and-only":
                term = self._term(expression, variables)
                return decided(term.fine, term.place == self.scales[BOOLEAN].place(True))
        raise self._outside(_construct(expression))

    def _variable(self, encode: "Callable[[Expression, Variables], T]", name: str, variables: Variables) -> T:
        """Return what a variable stands for, once."""
        key = (id(variables), name)
        if key not in self._variables:
            self._variables[key] = (variables, encode(variables[name], variables))
        found: T = self._variables[key][1]
        return found

    def _combined(self, function: Function, arguments: Sequence[Expression], variables: Variables) -> Truth:
        """A.3.5: arguments are looked at in their order, and no more of them than need be."""
        if function.id == f"{V1}n-of":
            return self._n_of(arguments, variables)
        truths = [self._truth(argument, variables) for argument in arguments]
        if function.id == f"{V1}not":
            return Truth(truths[0].fails, truths[0].holds)
        return in_order(truths, decisive=function.id == f"{V1}or")

    def _n_of(self, arguments: Sequence[Expression], variables: Variables) -> Truth:
        number = arguments[0]
        if not isinstance(number, Literal):
            raise self._outside("`n-of` with a number that is computed")
        return n_of(number.value, [self._truth(argument, variables) for argument in arguments[1:]])

    def _is_in(self, one: Term, bag: Bagged) -> Truth:
        holds = some(both(there, place == one.place) for there, place in bag.members)
        return decided(both(one.fine, bag.fine), holds)

    def _value(self, expression: Expression, variables: Variables) -> Term:
        """Return a value of any type, also of truth that is computed."""
        computed = isinstance(expression, Apply) and not expression.function.name.endswith("-one-and-only")
        if expression.gives is BOOLEAN and computed:
            truth, scale = self._truth(expression, variables), self.scales[BOOLEAN]
            places = (z3.BitVecVal(scale.place(value), _BITS, self.context) for value in (True, False))
            return Term(truth.fine, _if(truth.holds, *places))
        return self._term(expression, variables)

    def _term(self, expression: Expression, variables: Variables) -> Term:
        match expression:
            case Literal(value, of_type):
                return self._literal(value, of_type)
            case Reference(name):
                return self._variable(self._value, name, variables)
            case Apply(function, (inner,)) if function.name == f"{_of(inner)}-one-and-only":
                return self._only(self._bag(inner, variables))
            case Apply(function, (inner,)) if function.name == f"{_of(inner)}-bag-size":
                return self._size(self._bag(inner, variables))
        raise self._outside(_construct(expression))

    def _only(self, bag: Bagged) -> Term:
        if len(bag.members) != 1:
            return Term(False, z3.BitVecVal(0, _BITS, self.context))
        ((there, place),) = bag.members
        return Term(both(bag.fine, there), place)

    def _size(self, bag: Bagged) -> Term:
        size = self._literal(len(bag.members), INTEGER).place
        if len(bag.members) == 1:
            size = _if(bag.members[0][0], size, self._literal(0, INTEGER).place)
        return Term(bag.fine, size)

    def _bag(self, expression: Expression, variables: Variables) -> Bagged:
        match expression:
            case Designator():
                return self._designated(expression)
            case Reference(name):
                return self._variable(self._bag, name, variables)
            case Apply(function, arguments) if function.name.endswith("-bag"):
                terms = [self._value(argument, variables) for argument in arguments]
                fine = every(term.fine for term in terms)
                return Bagged(fine, tuple((True, term.place) for term in terms))
        raise self._outside(_construct(expression))

    def _designated(self, wanted: Designator) -> Bagged:
        if wanted.issuer is not None:
            raise self._outside(f"attribute `{wanted.id[:120]}` of an issuer")
        if not known_type(wanted.of):
            raise self._outside(f"attribute `{wanted.id[:120]}` of type `{wanted.of}`")
        if wanted.key not in self.attributes:
            self.attributes[wanted.key] = self._attribute(wanted)
        there, place = self.attributes[wanted.key]
        return Bagged(there if wanted.must_be_present else True, ((there, place),))

    def _attribute(self, wanted: Designator) -> tuple[Formula, Formula]:
        number = len(self.attributes)
        there, place = z3.Bool(f"there {number}", self.context), z3.BitVec(f"place {number}", _BITS, self.context)
        self.constraints.append(z3.ULT(place, len(self.scales[wanted.of].values)))
        if self._always(wanted):
            self.constraints.append(there)
        return there, place

    def _literal(self, value: Value, of_type: DataType) -> Term:
        if not known_type(of_type):
            raise self._outside(f"value of type `{of_type}`")
        place = z3.BitVecVal(self.scales[of_type].place(value), _BITS, self.context)
        return Term(True, place)

    # --- what is not understood ---------------------------------------------------------------------------------

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
        case Selector():
            return "an attribute selector"
    return "an attribute" if isinstance(expression, Designator) else "an expression"
