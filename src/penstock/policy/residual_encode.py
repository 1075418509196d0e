"""Targets and conditions as formulas over an event that is not known yet.

What does not ask for the event is evaluated now, by the plain evaluator. What does is written down where selectors have
words for it: comparisons, parts of texts, memberships and logic. Whatever else asks for one attribute that can have a
few values only is tried with each of them, and with none.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from penstock.model.values import Value as EventValue
from penstock.policy.datatypes import BOOLEAN, DataType
from penstock.policy.evaluate import Scope, target_matches
from penstock.policy.event_attributes import data_type_of, policy_value
from penstock.policy.expressions import Apply, ApplyEach, Designator, Expression, HigherOrder, Reference
from penstock.policy.formulas import (
    Truth,
    both,
    decided,
    either,
    every,
    every_truth,
    in_order,
    n_of,
    negated,
    some,
    some_truth,
)
from penstock.policy.functions import V1
from penstock.policy.policies import AllOf, AnyOf, Match, Target
from penstock.policy.residual_formulas import Formula, Graph, Variable
from penstock.policy.residual_known import Knowledge, Question, Unknown, Variables
from penstock.policy.residual_predicates import Constant, Operand, Predicate, equality, predicate
from penstock.policy.residual_selector import UnsaidError
from penstock.policy.signatures import Bag, Function

_OR, _AND, _NOT, _N_OF = f"{V1}or", f"{V1}and", f"{V1}not", f"{V1}n-of"
S = TypeVar("S")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Term:
    """A value: when there is one without an error, and what it is in each case, of which just one holds then."""

    fine: Formula
    cases: tuple[tuple[Formula, Operand], ...]


@dataclass(frozen=True, slots=True)
class Bagged:
    """A bag: when there is one without an error, and which values it may have, each with when it is there."""

    fine: Formula
    members: tuple[tuple[Formula, Operand], ...]


class Encoder:
    """Formulas for the expressions of some policies, where everything but the event is known."""

    def __init__(self, knowledge: Knowledge) -> None:
        self.graph = Graph()
        self.knowledge = knowledge
        #: attributes that were tried with all values that their type allows: that they have one of those
        self.allowed: dict[Variable, tuple[Formula, ...]] = {}
        self._variables: dict[tuple[int, str], tuple[Variables, object]] = {}

    # --- targets ------------------------------------------------------------------------------------------------

    def target(self, target: Target) -> Truth:
        """Return when a target matches. Raises `UnsaidError`."""
        return every_truth(_up_to(target, self._any_of, lambda truth: truth.fails is True))

    def _any_of(self, any_of: AnyOf) -> Truth:
        return some_truth(_up_to(any_of, self._all_of, lambda truth: truth.holds is True))

    def _all_of(self, all_of: AllOf) -> Truth:
        return every_truth(_up_to(all_of, self._match, lambda truth: truth.fails is True))

    def _match(self, match: Match) -> Truth:
        if match.function.within:
            raise UnsaidError(f"function `{match.function.name}`")

        def said() -> Truth:
            bag, holds = self._bag(match.attribute, {}), predicate(self.graph, match.function)
            found = some(both(there, holds(Constant(match.value), one)) for there, one in bag.members)
            return decided(bag.fine, found)

        missing = self.knowledge.missing(match.attribute, {})
        return self._answered(missing, {}, partial(target_matches, (((match,),),)), said)

    def _answered(
        self, missing: set[Unknown], variables: Variables, holds: Question, said: Callable[[], Truth]
    ) -> Truth:
        """Return when something holds: as it is known, as it can be said, or as it comes out when it is tried."""
        if not missing:
            return self.knowledge.settled(holds, variables)
        try:
            return said()
        except UnsaidError:
            tried = self.knowledge.tried(holds, variables, missing)
            if tried is None:
                raise
        return self._in_cases(*tried)

    def _in_cases(self, asked: Unknown, found: dict[EventValue | None, Truth]) -> Truth:
        variable, equal = asked.variable, equality(self.graph, data_type_of(asked.spec.kind))
        values = [value for value in found if value is not None]
        having = [equal(variable, Constant(policy_value(value))) for value in values]
        if asked.spec.domain is not None:
            self.allowed[variable] = tuple(having)
        cases: list[tuple[Formula, Truth]] = [(negated(self.graph.present(variable)), found[None])]
        cases += [(when, found[value]) for when, value in zip(having, values, strict=True)]
        return Truth(
            some(both(when, truth.holds) for when, truth in cases),
            some(both(when, truth.fails) for when, truth in cases),
        )

    # --- truth --------------------------------------------------------------------------------------------------

    def truth(self, expression: Expression, variables: Variables) -> Truth:
        """Return when an expression is true. Raises `UnsaidError`."""

        def holds(scope: Scope) -> bool:
            return bool(scope.value(expression))

        missing = self.knowledge.missing(expression, variables)
        return self._answered(missing, variables, holds, lambda: self._said(expression, variables))

    def fine(self, expression: Expression, variables: Variables) -> Formula:
        """Return when an expression has a value without an error. Raises `UnsaidError`."""
        found: Formula
        if isinstance(expression.gives, Bag):
            found = self._bag(expression, variables).fine
        elif expression.gives is BOOLEAN:
            found = self.truth(expression, variables).fine
        else:
            found = self._term(expression, variables).fine
        return found

    def _said(self, expression: Expression, variables: Variables) -> Truth:
        match expression:
            case Reference(name):
                return self._variable(self.truth, name, variables)
            case Apply(function, arguments) if function.id in (_OR, _AND, _NOT, _N_OF):
                return self._logic(function, arguments, variables)
            case Apply(function, (one, other)) if isinstance(one.gives, Bag) and isinstance(other.gives, Bag):
                return self._of_bags(function, self._bag(one, variables), self._bag(other, variables))
            case Apply(function, (one, bag)) if function.name == f"{one.gives}-is-in":
                return self._is_in(function, one, bag, variables)
            case Apply(function, (one, other)):
                return self._compared(predicate(self.graph, function), one, other, variables)
            case Apply(function) if function.name == "boolean-one-and-only":
                return self._as_truth(self._term(expression, variables))
            case ApplyEach():
                return self._each(expression, variables)
        raise UnsaidError(_construct(expression))

    def _logic(self, function: Function, arguments: Sequence[Expression], variables: Variables) -> Truth:
        """A.3.5: arguments are looked at in their order, and no more of them than need be."""
        if function.id == _N_OF:
            return self._n_of(arguments[0], arguments[1:], variables)
        if function.id == _NOT:
            truth = self.truth(arguments[0], variables)
            return Truth(truth.fails, truth.holds)
        decisive, truths = function.id == _OR, []
        for argument in arguments:
            truths.append(self.truth(argument, variables))
            goes_on = truths[-1].fails if decisive else truths[-1].holds
            if goes_on is False:
                break
        return in_order(truths, decisive=decisive)

    def _n_of(self, number: Expression, arguments: Sequence[Expression], variables: Variables) -> Truth:
        if self.knowledge.missing(number, variables):
            raise UnsaidError("`n-of` with a number that is not known")
        wanted = self.knowledge.values(number, variables)
        if wanted is None:
            return Truth(False, False)
        return n_of(wanted[0], [self.truth(argument, variables) for argument in arguments])

    def _compared(self, holds: Predicate, first: Expression, second: Expression, variables: Variables) -> Truth:
        one, other = self._term(first, variables), self._term(second, variables)
        found = some(every([when, also, holds(left, right)]) for when, left in one.cases for also, right in other.cases)
        return decided(both(one.fine, other.fine), found)

    def _is_in(self, function: Function, first: Expression, second: Expression, variables: Variables) -> Truth:
        one, bag = self._term(first, variables), self._bag(second, variables)
        equal = equality(self.graph, _member_type(function))
        found = some(
            every([when, there, equal(left, right)]) for when, left in one.cases for there, right in bag.members
        )
        return decided(both(one.fine, bag.fine), found)

    def _as_truth(self, term: Term) -> Truth:
        true = Constant(True)
        equal = equality(self.graph, BOOLEAN)
        return decided(term.fine, some(both(when, equal(one, true)) for when, one in term.cases))

    def _of_bags(self, function: Function, one: Bagged, other: Bagged) -> Truth:
        of_type = _member_type(function)
        equal = equality(self.graph, of_type)
        fine = both(one.fine, other.fine)
        match function.name.removeprefix(f"{of_type}-"):
            case "at-least-one-member-of":
                return decided(fine, _shared(equal, one, other))
            case "subset":
                return decided(fine, _all_in(equal, one, other))
            case "set-equals":
                return decided(fine, both(_all_in(equal, one, other), _all_in(equal, other, one)))
        raise UnsaidError(f"function `{function.name}`")

    def _each(self, expression: ApplyEach, variables: Variables) -> Truth:
        """A.3.12, of functions that cannot fail."""
        if len(expression.arguments) != 2:
            raise UnsaidError(f"function `{expression.name}` of {len(expression.arguments)} arguments")
        holds = predicate(self.graph, expression.function)
        bags = [self._as_bag(argument, variables) for argument in expression.arguments]
        first, second = (bag.members for bag in bags)
        fine = every(bag.fine for bag in bags)

        def among(one: Operand, *, all_of: bool) -> Formula:
            found: Formula = (
                every(either(negated(there), holds(one, other)) for there, other in second)
                if all_of
                else some(both(there, holds(one, other)) for there, other in second)
            )
            return found

        match expression.name:
            case HigherOrder.ANY_OF | HigherOrder.ANY_OF_ANY | HigherOrder.ANY_OF_ALL:
                whole = expression.name == HigherOrder.ANY_OF_ALL
                return decided(fine, some(both(there, among(one, all_of=whole)) for there, one in first))
            case HigherOrder.ALL_OF | HigherOrder.ALL_OF_ALL | HigherOrder.ALL_OF_ANY:
                whole = expression.name != HigherOrder.ALL_OF_ANY
                return decided(fine, every(either(negated(there), among(one, all_of=whole)) for there, one in first))
        raise UnsaidError(f"function `{expression.name}`")

    # --- values and bags ----------------------------------------------------------------------------------------

    def _term(self, expression: Expression, variables: Variables) -> Term:
        if not self.knowledge.missing(expression, variables):
            value = self.knowledge.values(expression, variables)
            return Term(False, ()) if value is None else Term(True, ((True, Constant(value[0])),))
        match expression:
            case Reference(name):
                return self._variable(self._term, name, variables)
            case Apply(function, (inner,)) if function.name == f"{_of(inner)}-one-and-only":
                return self._only(self._bag(inner, variables))
            case Apply(function, (inner,)) if function.name == f"{_of(inner)}-bag-size":
                return self._size(self._bag(inner, variables))
        if expression.gives is BOOLEAN:
            truth = self.truth(expression, variables)
            return Term(truth.fine, ((truth.holds, Constant(True)), (truth.fails, Constant(False))))
        raise UnsaidError(_construct(expression))

    def _only(self, bag: Bagged) -> Term:
        alone = [
            (every([there, *(negated(also) for other, (also, _) in enumerate(bag.members) if other != place)]), one)
            for place, (there, one) in enumerate(bag.members)
        ]
        return Term(both(bag.fine, some(when for when, _ in alone)), tuple(alone))

    def _size(self, bag: Bagged) -> Term:
        certain = sum(there is True for there, _ in bag.members)
        doubtful = [there for there, _ in bag.members if there is not True]
        if len(doubtful) != 1:
            raise UnsaidError("the size of a bag of several values that are not known")
        more, fewer = Constant(certain + 1), Constant(certain)
        return Term(bag.fine, ((doubtful[0], more), (negated(doubtful[0]), fewer)))

    def _as_bag(self, expression: Expression, variables: Variables) -> Bagged:
        if isinstance(expression.gives, Bag):
            return self._bag(expression, variables)
        term = self._term(expression, variables)
        return Bagged(term.fine, term.cases)

    def _bag(self, expression: Expression, variables: Variables) -> Bagged:
        if not self.knowledge.missing(expression, variables):
            values = self.knowledge.values(expression, variables)
            return Bagged(values is not None, tuple((True, Constant(value)) for value in values or ()))
        match expression:
            case Designator():
                variable = self.knowledge.unknown(expression)
                there = self.graph.present(variable)
                return Bagged(there if expression.must_be_present else True, ((there, variable),))
            case Reference(name):
                return self._variable(self._bag, name, variables)
            case Apply(function, arguments) if function.name == f"{_of(expression)}-bag":
                terms = [self._term(argument, variables) for argument in arguments]
                return Bagged(every(term.fine for term in terms), tuple(case for term in terms for case in term.cases))
        raise UnsaidError(_construct(expression))

    def _variable(self, encode: "Callable[[Expression, Variables], T]", name: str, variables: Variables) -> T:
        """Return what a variable of a policy stands for, once."""
        # It is asked for as one kind of thing only, and what is kept holds what its key is made of.
        key = (id(variables), f"{encode.__name__} {name}")
        if key not in self._variables:
            self._variables[key] = (variables, encode(variables[name], variables))
        found: T = self._variables[key][1]  # type: ignore[assignment]  # put there by the same function
        return found


def _up_to(things: Iterable[S], encode: Callable[[S], Truth], decides: Callable[[Truth], bool]) -> list[Truth]:
    """Encode what counts in any order: where one decides, the others are not needed. Raises `UnsaidError`."""
    found: list[Truth] = []
    unsaid: UnsaidError | None = None
    for thing in things:
        try:
            truth = encode(thing)
        except UnsaidError as error:
            unsaid = unsaid or error
            continue
        if decides(truth):
            return [truth]
        found.append(truth)
    if unsaid is not None:
        raise unsaid
    return found


def _shared(equal: Predicate, one: Bagged, other: Bagged) -> Formula:
    found: Formula = some(
        every([there, also, equal(left, right)]) for there, left in one.members for also, right in other.members
    )
    return found


def _all_in(equal: Predicate, one: Bagged, other: Bagged) -> Formula:
    found: Formula = every(
        either(negated(there), some(both(also, equal(left, right)) for also, right in other.members))
        for there, left in one.members
    )
    return found


def _of(expression: Expression) -> str:
    return str(expression.gives.of) if isinstance(expression.gives, Bag) else ""


def _member_type(function: Function) -> DataType:
    kind = function.takes[0]
    return kind.of if isinstance(kind, Bag) else kind


def _construct(expression: Expression) -> str:
    match expression:
        case Apply(function):
            return f"function `{function.name}`"
        case ApplyEach(name):
            return f"function `{name}`"
    return "an expression"
