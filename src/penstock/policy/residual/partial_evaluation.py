"""Partial evaluation: reduce a policy to selectors if everything but the event is known.

A selector matches an event if and only if the policy permits the request with that event in it. Denied, not applicable
and undecided all mean not permitted. So a subscription is decided once, and each event costs only a comparison or two.

Attributes of the subject, the resource, the action and the context can be left open in the same way, and the same can
be asked of Deny: then a selector matches exactly the requests that the policy denies.

Parts that do not need the event are evaluated immediately, by the plain evaluator. Parts that need it become formulas
if selectors can express them: comparisons, parts of strings, memberships and logic. Any other part that needs a single
attribute with few possible values is evaluated for each of these values, and for none.

Selectors are less expressive than policies. Parts that they cannot express are refused (`policy.residual-fragment`);
nothing is approximated. A null attribute has no values, and sources are not asked for it. If an event has NaN for a
number that is needed, or a value that its type does not allow, it is not permitted.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from itertools import product
from types import MappingProxyType
from typing import Final, TypeAlias, TypeVar

from penstock.errors import EvaluationError, MalformedError, PenstockError, RefusedError
from penstock.model.values import AttributeSpec, Enumerated, Kind, Ranged, Schema
from penstock.model.values import Value as EventValue
from penstock.policy.analysis.formulas import (
    EncodedChild,
    Outcomes,
    TruthFormula,
    algorithm,
    always,
    both,
    contained,
    decided,
    either,
    every,
    every_truth,
    in_order,
    n_of,
    negated,
    ruled,
    some,
    some_truth,
)
from penstock.policy.combining import (
    IN_DP,
    CombiningAlgorithm,
    P,
    StandardAlgorithm,
    policy_algorithm,
    rule_algorithm,
    standard,
)
from penstock.policy.engine.evaluate import EvaluationScope, target_matches
from penstock.policy.engine.lookup import Context, NoSources, PolicySources, is_clock
from penstock.policy.language.datatypes import BOOLEAN, DATE_TIME, Bag, DataType, Function, Value
from penstock.policy.language.event_attributes import ENVIRONMENT_FACT, EVENT, EventNames, data_type_of, policy_value
from penstock.policy.language.functions import V1, V3
from penstock.policy.language.policies import (
    AllOf,
    AnyOf,
    Apply,
    ApplyEach,
    ApplyPath,
    Designator,
    Duties,
    Duty,
    Expression,
    HigherOrder,
    Match,
    Policy,
    PolicyReference,
    PolicySet,
    Reference,
    Root,
    Rule,
    RuleEffect,
    Target,
    versioned,
)
from penstock.policy.language.requests import ENVIRONMENT, RESOURCE, Facts, Key, key_of
from penstock.policy.language.results import Assigned, Obligation, PolicyId, PolicyOutcome, XacmlDecision
from penstock.policy.limits import RESIDUAL_CASES, RESIDUAL_VALUES
from penstock.policy.residual.formulas import (
    Assumptions,
    Formula,
    Graph,
    UnsaidError,
    Variable,
    apart,
    compared,
    compared_with,
    like,
    selector_of,
    simplified,
    too_large,
)
from penstock.policy.residual.request_attributes import RequestTerm
from penstock.selector import ALWAYS, Selector
from penstock.selector.ast import ComparisonOperator

# ----------------------------------------------------------------------------------------------------------------------
# Relations of two values, at least one of which is known only when an event comes.


_OPERATORS: Final = {
    "equal": ComparisonOperator.EQ,
    "greater-than": ComparisonOperator.GT,
    "greater-than-or-equal": ComparisonOperator.GE,
    "less-than": ComparisonOperator.LT,
    "less-than-or-equal": ComparisonOperator.LE,
}
#: whether other characters can come before the part of a string, and after it
_PARTS: Final = {
    f"{V3}string-starts-with": (False, True),
    f"{V3}string-ends-with": (True, False),
    f"{V3}string-contains": (True, True),
}


@dataclass(frozen=True, slots=True)
class KnownValue:
    """A value that is known."""

    value: Value


Operand: TypeAlias = KnownValue | Variable
Predicate: TypeAlias = Callable[[Operand, Operand], Formula]
"""The condition under which a relation of two values is true. It raises `UnsaidError`."""


def equality(graph: Graph, of_type: DataType) -> Predicate:
    """Return when two values are equal as in bags, where NaN is equal to itself."""

    def equal(one: Operand, other: Operand) -> Formula:
        if isinstance(one, KnownValue) and isinstance(other, KnownValue):
            return bool(one.value is other.value or one.value == other.value)
        return _ordered(graph, of_type, ComparisonOperator.EQ, one, other)

    return equal


def predicate(graph: Graph, function: Function) -> Predicate:
    """Return the predicate of a function of two values. Raises `UnsaidError`."""
    said = _said(graph, function)

    def holds(one: Operand, other: Operand) -> Formula:
        if isinstance(one, KnownValue) and isinstance(other, KnownValue):
            return bool(function.call(one.value, other.value))
        return said(one, other)

    return holds


def _said(graph: Graph, function: Function) -> Predicate:
    if function.id in _PARTS:
        return partial(_part, graph, _PARTS[function.id])
    of_type = function.takes[0]
    if isinstance(of_type, DataType) and function.takes == (of_type, of_type):
        operator = _OPERATORS.get(function.id.removeprefix(f"{V1}{of_type}-"))
        if operator is not None:
            return partial(_ordered, graph, of_type, operator)
    raise UnsaidError(f"function `{function.name}`")


def _ordered(graph: Graph, of_type: DataType, operator: ComparisonOperator, one: Operand, other: Operand) -> Formula:
    match one, other:
        case Variable(), Variable():
            return compared_with(graph, one, operator, other, of_type)
        case Variable(), KnownValue(value):
            return compared(graph, one, operator, value, of_type)
        case KnownValue(value), Variable():
            return compared(graph, other, operator.flipped, value, of_type)
    raise UnsaidError("a comparison of two known values")


def _part(graph: Graph, around: tuple[bool, bool], part: Operand, text: Operand) -> Formula:
    match part, text:
        case KnownValue(value), Variable():
            return like(graph, text, before=around[0], part=value, behind=around[1])
    raise UnsaidError("a part of a string that is not known")


# ----------------------------------------------------------------------------------------------------------------------
# Known and unknown attributes: parts are evaluated, or tried value by value.


#: never used: parts that use the time are separated before
_NO_TIME: Final = datetime(2000, 1, 1, tzinfo=UTC)

Variables: TypeAlias = Mapping[str, Expression]
"""The variables that a policy defines."""

Question: TypeAlias = Callable[[EvaluationScope], bool]
"""A part that is true or false if everything is known. It raises `EvaluationError`."""


@dataclass(frozen=True, slots=True)
class EventUnknown:
    """An attribute that is known only when an event comes, and its possible values."""

    variable: Variable
    spec: AttributeSpec


class Knowledge:
    """The known facts, and the attributes of the event and its environment."""

    def __init__(
        self, known: Facts, unknown: Mapping[Key, EventUnknown], sources: PolicySources, asked: set[Key] | None = None
    ) -> None:
        #: attributes that were used and are known, or known to be missing
        self.asked: set[Key] = set() if asked is None else asked
        self.sources = sources
        self._known: Facts = {key: values for key, values in known.items() if key not in unknown}
        self._unknown = unknown
        self._context = Context(None, _NO_TIME, sources, self._known)

    def unknown(self, wanted: Designator) -> Variable:
        """Return an attribute that is not known yet; None if it is known."""
        return self._unknown[wanted.key].variable

    def missing(self, expression: Expression, variables: Variables) -> set[EventUnknown]:
        """Return the unknown attributes of an expression. Raises `UnsaidError` for those that change with time."""
        found: set[EventUnknown] = set()
        for wanted in _designators(expression, variables):
            if wanted.issuer is None and wanted.key in self._unknown:
                found.add(self._unknown[wanted.key])
                continue
            self.asked.add(wanted.key)
            if wanted.key not in self._known and _depends_on_time(wanted):
                raise UnsaidError(f"attribute `{wanted.id[:120]}`, which changes with time")
        return found

    def values(self, expression: Expression, variables: Variables) -> tuple[Value, ...] | None:
        """Return the value or bag of an expression without unknown attributes; None if it fails."""
        try:
            value = EvaluationScope(self._context, variables).value(expression)
        except EvaluationError:
            return None
        return value if isinstance(expression.gives, Bag) else (value,)

    def settled(self, holds: Question, variables: Variables) -> TruthFormula:
        """Return the truth of a question without unknown attributes."""
        return _answered(holds, EvaluationScope(self._context, variables))

    def tried(
        self, holds: Question, variables: Variables, missing: set[EventUnknown]
    ) -> tuple[EventUnknown, dict[EventValue | None, TruthFormula]] | None:
        """Evaluate a question with one unknown attribute for each possible value, and for none.

        Returns None if it has more unknown attributes, or too many values.
        """
        if len(missing) != 1:
            return None
        (asked,) = missing
        values = _few_values(asked.spec)
        if values is None:
            return None
        scopes = {value: EvaluationScope(self._with(asked, value), variables) for value in (None, *values)}
        return asked, {value: _answered(holds, scope) for value, scope in scopes.items()}

    def _with(self, asked: EventUnknown, value: EventValue | None) -> Context:
        bag = () if value is None else (policy_value(value),)
        facts = {key: bag for key, one in self._unknown.items() if one == asked}
        return Context(None, _NO_TIME, self.sources, {**self._known, **facts})


def _answered(holds: Question, scope: EvaluationScope) -> TruthFormula:
    try:
        found = holds(scope)
    except EvaluationError:
        return TruthFormula(False, False)
    return TruthFormula(found, not found)


def _designators(expression: Expression, variables: Variables) -> Iterator[Designator]:
    """Yield the attributes of an expression. Raises `UnsaidError` for functions that look into the request."""
    match expression:
        case Designator():
            yield expression
        case Reference(name):
            yield from _designators(variables[name], variables)
        case ApplyPath(name):
            raise UnsaidError(f"function `{name}`")
        case Apply(function, arguments) | ApplyEach(_, function, arguments):
            if function.within:
                raise UnsaidError(f"function `{function.name}`")
            for argument in arguments:
                yield from _designators(argument, variables)


def _depends_on_time(wanted: Designator) -> bool:
    """Return whether an attribute can change until an event comes."""
    fact = wanted.category == ENVIRONMENT and wanted.id.startswith(ENVIRONMENT_FACT) and wanted.issuer is None
    return fact or is_clock(wanted)


def _few_values(spec: AttributeSpec) -> tuple[EventValue, ...] | None:
    """Return all possible values, if they are few."""
    match spec:
        case AttributeSpec(Kind.BOOLEAN, None):
            return (False, True)
        case AttributeSpec(_, Enumerated(values)) if len(values) <= RESIDUAL_VALUES:
            return tuple(sorted(values))
        case AttributeSpec(Kind.INTEGER, Ranged(int() as low, int() as high)):
            return tuple(range(low, high + 1)) if high - low < RESIDUAL_VALUES else None
    return None


# ----------------------------------------------------------------------------------------------------------------------
# Targets and conditions as formulas over an event that is not known yet.


_OR, _AND, _NOT, _N_OF = f"{V1}or", f"{V1}and", f"{V1}not", f"{V1}n-of"
S = TypeVar("S")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ResidualTerm:
    """A value: when it exists without an error, and its cases, of which exactly one is true then."""

    fine: Formula
    cases: tuple[tuple[Formula, Operand], ...]


@dataclass(frozen=True, slots=True)
class ResidualBag:
    """A bag: when it exists without an error, and its possible values, each with when it is present."""

    fine: Formula
    members: tuple[tuple[Formula, Operand], ...]


class ResidualEncoder:
    """Formulas for the expressions of policies if everything but the event is known."""

    def __init__(self, knowledge: Knowledge) -> None:
        self.graph = Graph()
        self.knowledge = knowledge
        #: for attributes that were tried with all values of their type: that they have one of these
        self.allowed: dict[Variable, tuple[Formula, ...]] = {}
        self._variables: dict[tuple[int, str], tuple[Variables, object]] = {}

    # --- targets ------------------------------------------------------------------------------------------------

    def target(self, target: Target) -> TruthFormula:
        """Return when a target matches. Raises `UnsaidError`."""
        return every_truth(_up_to(target, self._any_of, lambda truth: truth.fails is True))

    def _any_of(self, any_of: AnyOf) -> TruthFormula:
        return some_truth(_up_to(any_of, self._all_of, lambda truth: truth.holds is True))

    def _all_of(self, all_of: AllOf) -> TruthFormula:
        return every_truth(_up_to(all_of, self._match, lambda truth: truth.fails is True))

    def _match(self, match: Match) -> TruthFormula:
        if match.function.within:
            raise UnsaidError(f"function `{match.function.name}`")

        def said() -> TruthFormula:
            bag, holds = self._bag(match.attribute, {}), predicate(self.graph, match.function)
            found = some(both(there, holds(KnownValue(match.value), one)) for there, one in bag.members)
            return decided(bag.fine, found)

        missing = self.knowledge.missing(match.attribute, {})
        return self._answered(missing, {}, partial(target_matches, (((match,),),)), said)

    def _answered(
        self, missing: set[EventUnknown], variables: Variables, holds: Question, said: Callable[[], TruthFormula]
    ) -> TruthFormula:
        """Return the truth of a question: evaluated, expressed as a formula, or tried with each value."""
        if not missing:
            return self.knowledge.settled(holds, variables)
        try:
            return said()
        except UnsaidError:
            tried = self.knowledge.tried(holds, variables, missing)
            if tried is None:
                raise
        return self._in_cases(*tried)

    def _in_cases(self, asked: EventUnknown, found: dict[EventValue | None, TruthFormula]) -> TruthFormula:
        variable, equal = asked.variable, equality(self.graph, data_type_of(asked.spec.kind))
        values = [value for value in found if value is not None]
        having = [equal(variable, KnownValue(policy_value(value))) for value in values]
        if asked.spec.domain is not None:
            self.allowed[variable] = tuple(having)
        cases: list[tuple[Formula, TruthFormula]] = [(negated(self.graph.present(variable)), found[None])]
        cases += [(when, found[value]) for when, value in zip(having, values, strict=True)]
        return TruthFormula(
            some(both(when, truth.holds) for when, truth in cases),
            some(both(when, truth.fails) for when, truth in cases),
        )

    # --- truth --------------------------------------------------------------------------------------------------

    def truth(self, expression: Expression, variables: Variables) -> TruthFormula:
        """Return when an expression is true. Raises `UnsaidError`."""

        def holds(scope: EvaluationScope) -> bool:
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

    def _said(self, expression: Expression, variables: Variables) -> TruthFormula:
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

    def _logic(self, function: Function, arguments: Sequence[Expression], variables: Variables) -> TruthFormula:
        """A.3.5: arguments are evaluated in order, and no more than necessary."""
        if function.id == _N_OF:
            return self._n_of(arguments[0], arguments[1:], variables)
        if function.id == _NOT:
            truth = self.truth(arguments[0], variables)
            return TruthFormula(truth.fails, truth.holds)
        decisive, truths = function.id == _OR, []
        for argument in arguments:
            truths.append(self.truth(argument, variables))
            goes_on = truths[-1].fails if decisive else truths[-1].holds
            if goes_on is False:
                break
        return in_order(truths, decisive=decisive)

    def _n_of(self, number: Expression, arguments: Sequence[Expression], variables: Variables) -> TruthFormula:
        if self.knowledge.missing(number, variables):
            raise UnsaidError("`n-of` with a number that is not known")
        wanted = self.knowledge.values(number, variables)
        if wanted is None:
            return TruthFormula(False, False)
        return n_of(wanted[0], [self.truth(argument, variables) for argument in arguments])

    def _compared(self, holds: Predicate, first: Expression, second: Expression, variables: Variables) -> TruthFormula:
        one, other = self._term(first, variables), self._term(second, variables)
        found = some(every([when, also, holds(left, right)]) for when, left in one.cases for also, right in other.cases)
        return decided(both(one.fine, other.fine), found)

    def _is_in(self, function: Function, first: Expression, second: Expression, variables: Variables) -> TruthFormula:
        one, bag = self._term(first, variables), self._bag(second, variables)
        equal = equality(self.graph, _member_type(function))
        found = some(
            every([when, there, equal(left, right)]) for when, left in one.cases for there, right in bag.members
        )
        return decided(both(one.fine, bag.fine), found)

    def _as_truth(self, term: ResidualTerm) -> TruthFormula:
        true = KnownValue(True)
        equal = equality(self.graph, BOOLEAN)
        return decided(term.fine, some(both(when, equal(one, true)) for when, one in term.cases))

    def _of_bags(self, function: Function, one: ResidualBag, other: ResidualBag) -> TruthFormula:
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

    def _each(self, expression: ApplyEach, variables: Variables) -> TruthFormula:
        """A.3.12, for functions that cannot fail."""
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

    def _term(self, expression: Expression, variables: Variables) -> ResidualTerm:
        if not self.knowledge.missing(expression, variables):
            value = self.knowledge.values(expression, variables)
            return ResidualTerm(False, ()) if value is None else ResidualTerm(True, ((True, KnownValue(value[0])),))
        match expression:
            case Reference(name):
                return self._variable(self._term, name, variables)
            case Apply(function, (inner,)) if function.name == f"{_of(inner)}-one-and-only":
                return self._only(self._bag(inner, variables))
            case Apply(function, (inner,)) if function.name == f"{_of(inner)}-bag-size":
                return self._size(self._bag(inner, variables))
        if expression.gives is BOOLEAN:
            truth = self.truth(expression, variables)
            return ResidualTerm(truth.fine, ((truth.holds, KnownValue(True)), (truth.fails, KnownValue(False))))
        raise UnsaidError(_construct(expression))

    def _only(self, bag: ResidualBag) -> ResidualTerm:
        alone = [
            (every([there, *(negated(also) for other, (also, _) in enumerate(bag.members) if other != place)]), one)
            for place, (there, one) in enumerate(bag.members)
        ]
        return ResidualTerm(both(bag.fine, some(when for when, _ in alone)), tuple(alone))

    def _size(self, bag: ResidualBag) -> ResidualTerm:
        certain = sum(there is True for there, _ in bag.members)
        doubtful = [there for there, _ in bag.members if there is not True]
        if len(doubtful) != 1:
            raise UnsaidError("the size of a bag of several values that are not known")
        more, fewer = KnownValue(certain + 1), KnownValue(certain)
        return ResidualTerm(bag.fine, ((doubtful[0], more), (negated(doubtful[0]), fewer)))

    def _as_bag(self, expression: Expression, variables: Variables) -> ResidualBag:
        if isinstance(expression.gives, Bag):
            return self._bag(expression, variables)
        term = self._term(expression, variables)
        return ResidualBag(term.fine, term.cases)

    def _bag(self, expression: Expression, variables: Variables) -> ResidualBag:
        if not self.knowledge.missing(expression, variables):
            values = self.knowledge.values(expression, variables)
            return ResidualBag(values is not None, tuple((True, KnownValue(value)) for value in values or ()))
        match expression:
            case Designator():
                variable = self.knowledge.unknown(expression)
                there = self.graph.present(variable)
                return ResidualBag(there if expression.must_be_present else True, ((there, variable),))
            case Reference(name):
                return self._variable(self._bag, name, variables)
            case Apply(function, arguments) if function.name == f"{_of(expression)}-bag":
                terms = [self._term(argument, variables) for argument in arguments]
                return ResidualBag(
                    every(term.fine for term in terms), tuple(case for term in terms for case in term.cases)
                )
        raise UnsaidError(_construct(expression))

    def _variable(self, encode: "Callable[[Expression, Variables], T]", name: str, variables: Variables) -> T:
        """Encode a variable of a policy once."""
        # It is asked for as one kind of thing only, and what is kept holds what its key is made of.
        key = (id(variables), f"{encode.__name__} {name}")
        if key not in self._variables:
            self._variables[key] = (variables, encode(variables[name], variables))
        found: T = self._variables[key][1]  # type: ignore[assignment]  # put there by the same function
        return found


def _up_to(
    things: Iterable[S], encode: Callable[[S], TruthFormula], decides: Callable[[TruthFormula], bool]
) -> list[TruthFormula]:
    """Encode parts whose order does not matter, up to one that decides. Raises `UnsaidError`."""
    found: list[TruthFormula] = []
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


def _shared(equal: Predicate, one: ResidualBag, other: ResidualBag) -> Formula:
    found: Formula = some(
        every([there, also, equal(left, right)]) for there, left in one.members for also, right in other.members
    )
    return found


def _all_in(equal: Predicate, one: ResidualBag, other: ResidualBag) -> Formula:
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


# ----------------------------------------------------------------------------------------------------------------------
# Policies and policy sets as formulas over an event: outcomes, and obligations and advice of a permit.


@dataclass(frozen=True, slots=True)
class Due:
    """An obligation or an advice, when it accompanies the decision, and its content if that is known."""

    when: Formula
    obligation: bool
    told: Obligation | None


@dataclass(frozen=True, slots=True)
class ResidualPart:
    """A rule, a policy or a policy set: its outcomes, and obligations and advice of one decision."""

    child: EncodedChild
    dues: tuple[Due, ...] = ()
    policies: tuple[PolicyId, ...] = ()


_NOTHING: Final = ResidualPart(EncodedChild(always(XacmlDecision.NOT_APPLICABLE), TruthFormula(False, True)))
_BROKEN: Final = ResidualPart(EncodedChild(always(IN_DP), TruthFormula(False, False)))


class ResidualPolicies:
    """Policies as formulas over the event: when they make a decision, and with which obligations and advice."""

    def __init__(self, encoder: ResidualEncoder, effect: RuleEffect) -> None:
        self._encoder = encoder
        self._effect = effect
        self._decision = XacmlDecision.of(effect)
        self._around: list[str] = []

    def container(self, root: Root, around: tuple[str, ...]) -> ResidualPart:
        """Encode a policy or a policy set (section 7.12 to 7.14)."""
        with self.within(root):
            variables = root.variables if isinstance(root, Policy) else {}
            applies = self._encoder.target(root.target)
            if applies.fails is True:
                return _NOTHING
            parts = [*self._parts(root, around)]
            said, gathered = self._combined(root, parts)
            told = {effect: self._fine(root.duties, effect, variables) for effect in RuleEffect}
            child = contained(applies, said, told)
            if child.says[self._decision] is False:
                return ResidualPart(child)
            inner = [
                Due(both(when, due.when), due.obligation, due.told)
                for when, part in zip(gathered, parts, strict=True)
                for due in part.dues
            ]
            name = PolicyId(root.id, root.version, isinstance(root, PolicySet))
            policies = (*(one for part in parts for one in part.policies), name)
            return ResidualPart(child, (*inner, *self._dues(root.duties, variables)), policies)

    def _parts(self, root: Root, around: tuple[str, ...]) -> Iterator[ResidualPart]:
        if isinstance(root, Policy):
            yield from (self._rule(rule, root.variables) for rule in root.rules)
            return
        for member in root.members:
            if isinstance(member, PolicyReference):
                yield self._referred(member, (*around, versioned(root)))
            else:
                yield self.container(member, (*around, versioned(root)))

    def _referred(self, reference: PolicyReference, around: tuple[str, ...]) -> ResidualPart:
        try:
            found = self._encoder.knowledge.sources.policy(reference)
        except PenstockError:
            return _BROKEN
        if reference.to_set and versioned(found) in around:
            return _BROKEN
        return self.container(found, around)

    def _rule(self, rule: Rule, variables: Variables) -> ResidualPart:
        with self.within(rule):
            applies = self._encoder.target(rule.target)
            if applies.fails is True:
                return _NOTHING
            condition = (
                TruthFormula(True, False) if rule.condition is None else self._encoder.truth(rule.condition, variables)
            )
            child = ruled(rule.effect, applies, condition, self._fine(rule.duties, rule.effect, variables))
            decides = child.says[self._decision] is not False
            return ResidualPart(child, tuple(self._dues(rule.duties, variables)) if decides else ())

    # --- combining ----------------------------------------------------------------------------------------------

    def _combined(self, root: Root, parts: Sequence[ResidualPart]) -> tuple[Outcomes, list[Formula]]:
        """Combine parts, and return when each part's obligations accompany the decision (section 7.18)."""
        children = [part.child for part in parts]
        combine, known = algorithm(root.combining), standard(root.combining)
        if combine is None or known is None:
            named = rule_algorithm if isinstance(root, Policy) else policy_algorithm
            return _by_cases(named(root.combining), children, self._decision)
        return combine(children), _told_with(known, children, self._decision)

    # --- obligations and advice ---------------------------------------------------------------------------------

    def _fine(self, duties: Duties, effect: RuleEffect, variables: Variables) -> Formula:
        """Return when obligations and advice can be evaluated."""
        found: Formula = every(
            self._encoder.fine(assignment.expression, variables)
            for duty in (*duties.obligations, *duties.advice)
            if duty.on is effect
            for assignment in duty.assignments
        )
        return found

    def _dues(self, duties: Duties, variables: Variables) -> Iterator[Due]:
        for those, obligation in ((duties.obligations, True), (duties.advice, False)):
            for duty in those:
                if duty.on is self._effect:
                    yield Due(True, obligation, self._told(duty, variables))

    def _told(self, duty: Duty, variables: Variables) -> Obligation | None:
        assigned: list[Assigned] = []
        for one in duty.assignments:
            values = self._values(one.expression, variables)
            if values is None:
                return None
            kind = one.expression.gives
            of_type = kind.of if isinstance(kind, Bag) else kind
            assigned += [Assigned(one.id, of_type, value, one.category, one.issuer) for value in values]
        return Obligation(duty.id, tuple(assigned))

    def _values(self, expression: Expression, variables: Variables) -> tuple[Value, ...] | None:
        knowledge = self._encoder.knowledge
        return None if knowledge.missing(expression, variables) else knowledge.values(expression, variables)

    # --- what is not understood ---------------------------------------------------------------------------------

    @contextmanager
    def within(self, element: Rule | Root) -> Iterator[None]:
        """Add the place to an `UnsaidError`. Raises `RefusedError` (`policy.residual-fragment`)."""
        kind = "policy set" if isinstance(element, PolicySet) else "policy" if isinstance(element, Policy) else "rule"
        self._around.append(f"{kind} `{element.id[:120]}`")
        try:
            yield
        except UnsaidError as error:
            place = " of ".join(reversed(self._around))
            raise RefusedError(
                "policy.residual-fragment",
                f"{place}: {error} cannot be evaluated before the event",
                hint="compare attributes of the event with values, or enforce the policy event by event",
                construct=str(error),
                element=place,
            ) from None
        finally:
            self._around.pop()


# --- combining -------------------------------------------------------------------------------------------------------


def _told_with(known: StandardAlgorithm, children: Sequence[EncodedChild], decision: XacmlDecision) -> list[Formula]:
    """Return when each child's obligations accompany a decision of a standard algorithm."""
    if known.by_place and len(children) in (2, 3):
        permits = children[0].says[P]
        return [False, permits, negated(permits)][: len(children)]
    found: list[Formula] = []
    before: Formula = False
    for child in children:
        one = child.says[decision]
        found.append(both(one, negated(before)))
        if decision in known.decisive:
            # After the first such decision no other child is evaluated: only its obligations count.
            before = some([before, one])
    return found


class _Fixed:
    """A child with a given decision, which leaves a mark with it."""

    def __init__(self, place: int, decision: XacmlDecision) -> None:
        self._outcome = PolicyOutcome(decision, obligations=(Obligation(str(place)),))

    def evaluate(self, _context: None, /) -> PolicyOutcome:
        return self._outcome

    def applies(self, _context: None, /) -> bool | PolicyOutcome:
        raise UnsaidError("a combining algorithm that uses targets")


def _by_cases(
    combine: CombiningAlgorithm, children: Sequence[EncodedChild], decision: XacmlDecision
) -> tuple[Outcomes, list[Formula]]:
    """Combine by an algorithm that is not standard: once for each possible combination of decisions."""
    possible = [[one for one in XacmlDecision if child.says[one] is not False] for child in children]
    said: dict[XacmlDecision, list[Formula]] = {one: [] for one in XacmlDecision}
    told: list[list[Formula]] = [[] for _ in children]
    for number, decisions in enumerate(product(*possible)):
        if number >= RESIDUAL_CASES:
            raise UnsaidError("a combining algorithm that is not standard, with so many policies that use the event")
        outcome = combine([_Fixed(place, one) for place, one in enumerate(decisions)], None)
        when = every(child.says[one] for child, one in zip(children, decisions, strict=True))
        said[outcome.decision].append(when)
        for mark in outcome.obligations if outcome.decision is decision else ():
            told[int(mark.id)].append(when)
    return {one: some(those) for one, those in said.items()}, [some(those) for those in told]


# ----------------------------------------------------------------------------------------------------------------------
# Residuals.


_CLOCK: Final = "urn:oasis:names:tc:xacml:1.0:environment:current-dateTime"


@dataclass(frozen=True, slots=True)
class ResidualCase:
    """Events with the decision, the environment in which they have it, and obligations and advice."""

    where: Selector
    when: Selector = ALWAYS
    obligations: tuple[Obligation, ...] = ()
    advice: tuple[Obligation, ...] = ()


@dataclass(frozen=True, slots=True)
class Residual:
    """The residual of a policy: any of its cases permits, or denies. Without cases, nothing is permitted, or denied.

    Obligations that depend on the event make separate cases. `policies` are those that can decide so. `asked` has the
    known facts that were used: as long as they do not change, the residual does not change.
    """

    cases: tuple[ResidualCase, ...]
    policies: tuple[PolicyId, ...]
    asked: frozenset[Key]


def residual(  # noqa: PLR0913  # what is known of a request
    root: Root,
    known: Facts,
    names: EventNames,
    *,
    environment: Schema | None = None,
    sources: PolicySources | None = None,
    asked: set[Key] | None = None,
    effect: RuleEffect = RuleEffect.PERMIT,
    unknown: Mapping[Key, AttributeSpec] = MappingProxyType({}),
) -> Residual:
    """Return the residual of a policy, given everything but the event, whose attributes have these names.

    With `environment`, brokers' facts become a condition, including current-dateTime. `unknown` are attributes of the
    request that are left open too; they have at most one value, and the names of `request_attributes`. `effect` is the
    decision in question. `asked` collects the facts that are used, even if the policy is refused. Raises
    `RefusedError`: `policy.residual-fragment` for constructs that selectors cannot express, `policy.residual-limit`.
    Raises `MalformedError` (`policy.request-attribute`) for an unknown attribute that has no name, or another type.
    """
    missing = {**_of_event(names), **_of_moment(environment or {}), **_of_request(unknown)}
    knowledge = Knowledge(known, missing, sources or NoSources(), asked)
    encoder = ResidualEncoder(knowledge)
    policies = ResidualPolicies(encoder, effect)
    part = policies.container(root, ())
    with policies.within(root):
        cases = tuple(_cases(encoder, part, XacmlDecision.of(effect)))
    return Residual(cases, tuple(dict.fromkeys(part.policies)), frozenset(knowledge.asked))


def _of_event(names: EventNames) -> dict[Key, EventUnknown]:
    return {
        key_of(RESOURCE, f"{EVENT}{name}", data_type_of(one.spec.kind)): EventUnknown(
            Variable(str(one.id), one.spec.kind), one.spec
        )
        for name, one in names.attributes.items()
    }


def _of_request(unknown: Mapping[Key, AttributeSpec]) -> dict[Key, EventUnknown]:
    found: dict[Key, EventUnknown] = {}
    for key, spec in unknown.items():
        if data_type_of(spec.kind) is not key.of:
            message = f"attribute `{key.id[:120]}` is a {key.of}, and not {spec.kind.phrase}"
            raise MalformedError("policy.request-attribute", message)
        found[key] = EventUnknown(Variable(RequestTerm(key).name, spec.kind), spec)
    return found


def _of_moment(environment: Schema) -> dict[Key, EventUnknown]:
    found = {
        key_of(ENVIRONMENT, f"{ENVIRONMENT_FACT}{name}", data_type_of(spec.kind)): EventUnknown(
            Variable(name, spec.kind, of_moment=True), spec
        )
        for name, spec in environment.items()
    }
    time = environment.get("time")
    if time is not None and time.kind is Kind.TIMESTAMP:
        # The enforcing broker knows the current time.
        moment = EventUnknown(Variable("time", time.kind, of_moment=True, certain=True), time)
        found[key_of(ENVIRONMENT, _CLOCK, DATE_TIME)] = moment
        found[key_of(ENVIRONMENT, f"{ENVIRONMENT_FACT}time", DATE_TIME)] = moment
    return found


# --- cases -----------------------------------------------------------------------------------------------------------


def _cases(encoder: ResidualEncoder, part: ResidualPart, decision: XacmlDecision) -> Iterator[ResidualCase]:
    """Yield the cases of a decision, separated by obligations and by environment. Raises `UnsaidError`."""
    decides = _with_allowed(encoder, part.child.says[decision])
    duties = [due for due in part.dues if due.obligation]
    for formula, obligations in _by_obligations(decides, duties):
        advice = tuple(
            due.told for due in part.dues if not due.obligation and due.told is not None and _surely(formula, due.when)
        )
        by_moment: dict[Formula, list[Formula]] = {}
        for event, moment in apart(formula, RESIDUAL_CASES):
            by_moment.setdefault(moment, []).append(event)
        for moment, events in by_moment.items():
            where, when = _short(some(events)), _short(moment)
            if where is not False and when is not False:
                yield ResidualCase(selector_of(where), selector_of(when), obligations, advice)


def _with_allowed(encoder: ResidualEncoder, formula: Formula) -> Formula:
    """Return when the policy decides so, and values that were tried are allowed by the event's type."""
    found = _short(formula)
    for variable, having in encoder.allowed.items():
        there = encoder.graph.present(variable)
        others = both(there, *map(negated, having))
        if _short(both(found, others)) is not False:
            found = _short(both(found, either(negated(there), *having)))
    return found


def _by_obligations(decides: Formula, dues: Sequence[Due]) -> list[tuple[Formula, tuple[Obligation, ...]]]:
    """Return the cases of a decision, separated by obligations. Raises `UnsaidError`, `RefusedError`."""
    found: list[tuple[Formula, tuple[Obligation, ...]]] = [] if decides is False else [(decides, ())]
    for due in dues:
        further: list[tuple[Formula, tuple[Obligation, ...]]] = []
        for formula, told in found:
            with_it, without = _short(both(formula, due.when)), _short(both(formula, negated(due.when)))
            if with_it is not False:
                if due.told is None:
                    raise UnsaidError("an obligation with values of the event")
                further.append((with_it, (*told, due.told)))
            if without is not False:
                further.append((without, told))
        if len(further) > RESIDUAL_CASES:
            raise too_large()
        found = further
    return found


def _surely(formula: Formula, when: Formula) -> bool:
    return _short(both(formula, negated(when))) is False


def _short(formula: Formula) -> Formula:
    return simplified(formula, Assumptions())
