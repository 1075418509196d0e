"""Answers that hold for many requests: the set of requests for which a policy gives the same answer, as a selector.

`holds_for` evaluates a policy for one request and collects the reasons of the outcome: conditions on single attributes
that this request meets, and under which every request has the same decision, obligations and advice. Their conjunction
is the set. It contains the request, and it is exact in this sense: the policy gives the same answer to every request
in it, and no error is overlooked. It need not be the largest such set.

(1) Every part of a policy has an outcome: true, false or an error; a decision. The reasons of a part are those of the
    parts that decide it. A target is false because of one match, a rule does not apply because of its target or of its
    condition, and deny-overrides denies because of one rule, unless obligations of others could join.
(2) A match or a comparison gives a condition on the values of its attribute: one is or is not among them, or there is
    exactly one and it is in a range. Any other function gives the whole bag of each attribute that it uses.
(3) Where several reasons suffice, those win that others have given already, then those on actions, resources, the
    context and subjects, in this order: a recycled answer serves other subjects first.

There is no set if an attribute that decides did not come with the request (from the clock, from a source, from a
hierarchy), if it has an issuer, if the policy looks into a content, if the decision is Indeterminate, or if the
selector or the effort would be too large.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, TypeAlias

from penstock.errors import EvaluationError, LimitError, MalformedError, PenstockError, SelectorError
from penstock.model.values import INTEGER_MAX, INTEGER_MIN
from penstock.policy.combining import (
    IN_D,
    IN_DP,
    IN_P,
    NA,
    D,
    P,
    policy_algorithm,
    rule_algorithm,
    standard,
)
from penstock.policy.engine.evaluate import (
    EvaluationScope,
    RuleChild,
    combined_children,
    referenced,
    status_of,
    target_applies,
    target_matches,
)
from penstock.policy.engine.lookup import ABOVE, Context, NoSources, is_clock
from penstock.policy.language.datatypes import BOOLEAN, DOUBLE, INTEGER, STRING, URI, Bag, Value
from penstock.policy.language.functions import V1
from penstock.policy.language.policies import (
    AllOf,
    AnyOf,
    Apply,
    ApplyEach,
    ApplyPath,
    ContentSelector,
    Designator,
    Duties,
    Duty,
    Expression,
    HigherOrder,
    Match,
    Policy,
    PolicyLiteral,
    PolicyReference,
    Reference,
    Root,
    Rule,
    RuleEffect,
    Target,
    versioned,
)
from penstock.policy.language.requests import ACTION, ENVIRONMENT, RESOURCE, SUBJECT, Key
from penstock.policy.language.results import NOT_APPLICABLE, DecisionStatus, PolicyOutcome, XacmlDecision
from penstock.policy.limits import POLICY_CALLS, REQUEST_SET_BAG, REQUEST_SET_LACKS, REQUEST_SET_STEPS, REQUEST_SET_TEXT
from penstock.policy.residual.request_attributes import Aspect, RequestTerm, always_single, list_text
from penstock.selector import Selector, built, conjunction, equals, negation
from penstock.selector.ast import AttributeReference, ComparisonOperator
from penstock.selector.selector import compares

EQ, NE, LT, LE, GT, GE = (
    ComparisonOperator.EQ,
    ComparisonOperator.NE,
    ComparisonOperator.LT,
    ComparisonOperator.LE,
    ComparisonOperator.GT,
    ComparisonOperator.GE,
)
#: types whose values are equal exactly if they are written equally: their bags can be said to lack one
_MEMBERS: Final = (STRING, INTEGER, BOOLEAN, URI)
_EQUALITIES: Final = frozenset(f"{V1}{one}-equal" for one in _MEMBERS)
#: comparisons that never fail and mean the same in selectors
_COMPARISONS: Final = {
    **{f"{V1}{one}-equal": EQ for one in (*_MEMBERS, DOUBLE)},
    **{
        f"{V1}{one}-{name}": operator
        for one in (STRING, INTEGER, DOUBLE)
        for name, operator in (
            ("greater-than", GT),
            ("greater-than-or-equal", GE),
            ("less-than", LT),
            ("less-than-or-equal", LE),
        )
    },
}
_OR, _AND, _NOT, _N_OF = f"{V1}or", f"{V1}and", f"{V1}not", f"{V1}n-of"
_IS_IN: Final = frozenset(f"{V1}{one}-is-in" for one in _MEMBERS)
_SHARED: Final = frozenset(f"{V1}{one}-at-least-one-member-of" for one in _MEMBERS)
_SUBSET: Final = frozenset(f"{V1}{one}-subset" for one in _MEMBERS)
_ONLY: Final = frozenset(f"{V1}{one}-one-and-only" for one in (*_MEMBERS, DOUBLE))
#: functions that have a value if their arguments have
_SAFE: Final = frozenset([*_COMPARISONS, *_IS_IN, *_SHARED, *_SUBSET, _OR, _AND, _NOT])
#: how much a condition on a category costs
_PRICES: Final = {ACTION: 1, RESOURCE: 2, ENVIRONMENT: 3, SUBJECT: 4}
_NEVER: Final = 1_000_000
Truth: TypeAlias = bool | None
"""True, false, or None for an error."""


class NoSetError(Exception):
    """The reasons cannot be stated as conditions on the request."""


class AnswerSets:
    """The sets of requests with the same answer under one policy, which is prepared once."""

    def __init__(self, root: Root) -> None:
        self._root = root
        #: prepared policies by their ids, with the policies, so that no other gets the same id
        self._prepared: dict[int, tuple[Root, _Prepared]] = {}

    def holds_for(
        self, context: Context, outcome: PolicyOutcome, *, withheld: Callable[[Key], bool] = lambda _key: False
    ) -> Selector | None:
        """Return a set of requests, among them this one, that get the same answer; None if there is none.

        `context` is that of the evaluation, and `outcome` its result. `withheld` says which attributes must not appear
        in a set, since they do not come from the request although the facts have them.
        """
        if outcome.decision.indeterminate:
            return None
        grounds = _Grounds(context, withheld, self.prepared)
        try:
            found = _Container(self._root, grounds, ())
            if _told(found.outcome) != _told(outcome):
                return None
            found.settle()
            return grounds.selector()
        except (NoSetError, RecursionError):
            return None

    def prepared(self, root: Root) -> "_Prepared":
        """Return a policy prepared for many requests."""
        found = self._prepared.get(id(root))
        if found is None:
            found = (root, _prepare(root))
            if len(self._prepared) < REQUEST_SET_STEPS:
                self._prepared[id(root)] = found
        return found[1]


def _told(outcome: PolicyOutcome) -> tuple[object, ...]:
    return outcome.decision, outcome.obligations, outcome.advice


def holds_for(root: Root, context: Context, outcome: PolicyOutcome) -> Selector | None:
    """Return a set of requests, among them this one, to which a policy gives the same answer; None if there is none.

    If a policy answers more than one request, `AnswerSets` is faster.
    """
    return AnswerSets(root).holds_for(context, outcome)


# ----------------------------------------------------------------------------------------------------------------------
# Conditions on the request.


@dataclass(slots=True)
class _Conditions:
    """The conditions on one bag, all of which this request meets."""

    bag: tuple[Value, ...]
    whole: bool = False
    present: bool = False
    single: bool = False
    has: dict[Value, None] = field(default_factory=dict)
    lacks: dict[Value, None] = field(default_factory=dict)
    compared: dict[tuple[ComparisonOperator, Value], None] = field(default_factory=dict)


class _Grounds:
    """The conditions that have been collected, and the request that meets them."""

    def __init__(
        self, context: Context, withheld: Callable[[Key], bool], prepared: "Callable[[Root], _Prepared]"
    ) -> None:
        self.context = context
        self.prepared = prepared
        self._withheld = withheld
        self._found: dict[Key, _Conditions] = {}
        self._steps = 0
        sources = type(context.sources)
        self._asks = getattr(sources, "attribute", None) is not NoSources.attribute
        self._ranks = getattr(sources, "parents", None) is not NoSources.parents

    def step(self) -> None:
        """Count a step. Raises `NoSetError` if there are too many."""
        self._steps += 1
        if self._steps > REQUEST_SET_STEPS:
            raise NoSetError

    # --- attributes ---------------------------------------------------------------------------------------------

    def elsewhere(self, wanted: Designator) -> bool:
        """Return whether an attribute can have values that the request lacks."""
        above = self._ranks and wanted.category == RESOURCE and wanted.id in ABOVE
        return self._asks or above or is_clock(wanted)

    def bag(self, wanted: Designator) -> tuple[Value, ...]:
        """Return the values that the request has."""
        return self.context.facts.get(wanted.key, ())

    def price(self, wanted: Designator | ContentSelector) -> int:
        """Return what a condition on an attribute costs, and nothing if all its values are stated already."""
        if not self.can_be_stated(wanted):
            return _NEVER
        known = self._found.get(wanted.key)  # type: ignore[union-attr]  # a content selector cannot be stated
        return 0 if known is not None and known.whole else _PRICES[wanted.category]

    def can_be_stated(self, wanted: Designator | ContentSelector) -> bool:
        """Return whether conditions on an attribute can be stated."""
        if not isinstance(wanted, Designator) or wanted.issuer is not None or wanted.category not in _PRICES:
            return False
        if self._withheld(wanted.key):
            return False
        return bool(self.bag(wanted)) or not self.elsewhere(wanted)

    def _on(self, wanted: Designator) -> _Conditions:
        if not self.can_be_stated(wanted):
            raise NoSetError
        found = self._found.get(wanted.key)
        if found is None:
            found = self._found[wanted.key] = _Conditions(self.bag(wanted))
        if self.elsewhere(wanted):
            # A request without it would be decided by values from elsewhere.
            found.present = True
        return found

    # --- conditions ---------------------------------------------------------------------------------------------

    def whole(self, wanted: Designator) -> None:
        """Require the same values in the same order."""
        self._on(wanted).whole = True

    def present(self, wanted: Designator) -> None:
        """Require a value."""
        self._on(wanted).present = True

    def single(self, wanted: Designator) -> None:
        """Require exactly one value."""
        self._on(wanted).single = True

    def having(self, wanted: Designator, values: Sequence[Value]) -> None:
        """Require one of several values that the request has."""
        found = self._on(wanted)
        if always_single(wanted.key):
            found.whole = True
        elif not found.whole and not any(value in found.has for value in values):
            found.has[values[0]] = None

    def lacking(self, wanted: Designator, value: Value) -> None:
        """Require that a value is missing."""
        found = self._on(wanted)
        if not found.whole:
            found.lacks[value] = None
            found.whole = len(found.lacks) > most_lacks(wanted)

    def lacks(self, wanted: Designator, value: Value) -> bool:
        """Return whether it follows from the conditions that a value is missing."""
        found = self._found.get(wanted.key)
        return found is not None and (found.whole or value in found.lacks)

    def compared(self, wanted: Designator, operator: ComparisonOperator, value: Value) -> None:
        """Require exactly one value in a relation that the request's value has."""
        if operator is EQ or not all(map(_has_literal, (value, *self.bag(wanted)))):
            self.whole(wanted)
        else:
            self._on(wanted).compared[operator, value] = None

    # --- the selector -------------------------------------------------------------------------------------------

    def selector(self) -> Selector:
        """Return the conjunction of all conditions. Raises `NoSetError`."""
        try:
            found = conjunction(*(one for key, on in self._found.items() for one in _written(key, on)))
        except (LimitError, MalformedError, SelectorError):
            raise NoSetError from None
        if len(found.text) > REQUEST_SET_TEXT:
            raise NoSetError
        return found


def most_lacks(wanted: Designator) -> int:
    """Return how many values an attribute can be said to lack before all its values are stated instead.

    Sets are found by what they bind of actions and resources, and serve many subjects.
    """
    return REQUEST_SET_LACKS if wanted.category == SUBJECT else REQUEST_SET_LACKS // 4


def _has_literal(value: Value) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    return not isinstance(value, int) or INTEGER_MIN <= value <= INTEGER_MAX


def _written(key: Key, on: _Conditions) -> Iterable[Selector]:
    """Yield the conditions on a bag, without those that follow from others. Raises `SelectorError` and others."""

    def name(aspect: Aspect = Aspect.VALUE, text: str = "") -> str:
        return RequestTerm(key, aspect, text).name

    if len(on.bag) > REQUEST_SET_BAG:
        raise NoSetError
    if on.whole:
        if not on.bag:
            yield equals(name(Aspect.COUNT), 0)
        elif len(on.bag) == 1 and key.of is not DOUBLE and _has_literal(on.bag[0]):
            value = on.bag[0]
            yield equals(name(), value if key.of in (STRING, BOOLEAN, INTEGER) else key.of.write(value))
        else:
            yield equals(name(Aspect.LIST), list_text(key.of, on.bag))
        return
    for operator, value in on.compared:
        yield compares(name(), operator, value)
    if on.single and not on.compared:
        yield equals(name(Aspect.COUNT), 1)
    for value in on.has:
        yield _condition(name(Aspect.HAS, key.of.write(value)))
    if on.present and not (on.has or on.single or on.compared):
        yield compares(name(Aspect.COUNT), GT, 0)
    for value in on.lacks:
        yield negation(_condition(name(Aspect.HAS, key.of.write(value))))


def _condition(name: str) -> Selector:
    return built(AttributeReference(name))


# ----------------------------------------------------------------------------------------------------------------------
# Targets and expressions.


class _Reasons:
    """The outcomes of targets and expressions of one policy, and their reasons."""

    def __init__(self, grounds: _Grounds, scope: EvaluationScope) -> None:
        self.grounds = grounds
        self.scope = scope
        #: of matches that have been evaluated, by their ids
        self._truths: dict[int, Truth] = {}

    # --- targets ------------------------------------------------------------------------------------------------

    def truth(self, target: Target) -> Truth:
        """Return whether a target matches; the order of its parts does not matter (section 7.7)."""
        return _every([self._any_of(one) for one in target])

    def _any_of(self, any_of: AnyOf) -> Truth:
        return _some([self._all_of(one) for one in any_of])

    def _all_of(self, all_of: AllOf) -> Truth:
        return _every([self._match(one) for one in all_of])

    def _match(self, match: Match) -> Truth:
        number = id(match)
        if number not in self._truths:
            self.grounds.step()
            try:
                self._truths[number] = target_matches((((match,),),), self.scope)
            except EvaluationError:
                self._truths[number] = None
        return self._truths[number]

    def settle_target(self, target: Target) -> None:
        """State why a target has its truth."""
        truth = self.truth(target)
        if truth is False:
            failing = [one for one in target if self._any_of(one) is False]
            self._settle_any_of(min(failing, key=self._price_of_failing))
            return
        for any_of in target:
            self._settle_any_of(any_of)

    def _price_of_failing(self, any_of: AnyOf) -> int:
        return sum(self._price(self._cheapest(all_of)) for all_of in any_of)

    def _settle_any_of(self, any_of: AnyOf) -> None:
        truths = [self._all_of(one) for one in any_of]
        if True in truths:
            holding = [one for one, truth in zip(any_of, truths, strict=True) if truth is True]
            chosen = min(holding, key=lambda one: sum(map(self._price, one)))
            for match in chosen:
                self._settle_match(match)
            return
        for all_of, truth in zip(any_of, truths, strict=True):
            for match in [self._cheapest(all_of)] if truth is False else all_of:
                self._settle_match(match)

    def _cheapest(self, all_of: AllOf) -> Match:
        """Return the match that is the cheapest reason why a conjunction fails."""
        return min((one for one in all_of if self._match(one) is False), key=self._price)

    def _price(self, match: Match) -> int:
        wanted, grounds = match.attribute, self.grounds
        if match.function.within:
            return _NEVER
        if match.function.id in _EQUALITIES and isinstance(wanted, Designator) and grounds.lacks(wanted, match.value):
            return 0
        return grounds.price(wanted)

    def _settle_match(self, match: Match) -> None:
        wanted, function, truth = match.attribute, match.function, self._match(match)
        if not isinstance(wanted, Designator) or function.within:
            raise NoSetError
        bag, operator = self.grounds.bag(wanted), _COMPARISONS.get(function.id)
        if len(bag) == 1 and operator is not None and operator is not EQ and truth is not None:
            operator = operator.flipped if truth else operator.flipped.negated
            self.grounds.compared(wanted, operator, match.value)
        elif truth is True:
            holding = [one for one in bag if self._holds(match, one)]
            self.grounds.having(wanted, holding)
        elif truth is False and function.id in _EQUALITIES:
            self.grounds.lacking(wanted, match.value)
            self.settle_fine(wanted)
        else:
            self.grounds.whole(wanted)

    def _holds(self, match: Match, value: Value) -> bool:
        try:
            return bool(match.function.call(match.value, value))
        except EvaluationError:
            return False

    def settle_target_fine(self, target: Target) -> None:
        """State why a target is true or false, whichever."""
        matches = [match for any_of in target for all_of in any_of for match in all_of]
        if any(one.function.id not in _COMPARISONS or self._match(one) is None for one in matches):
            self.settle_target(target)
            return
        for match in matches:
            self.settle_fine(match.attribute)

    # --- expressions --------------------------------------------------------------------------------------------

    def value(self, expression: Expression) -> Value:
        """Return the value of an expression; None for an error."""
        self.grounds.step()
        try:
            return self.scope.value(expression)
        except EvaluationError:
            return None

    def settle(self, expression: Expression) -> None:
        """State why an expression has its value, or its error."""
        self.grounds.step()
        match expression:
            case PolicyLiteral():
                return
            case Designator():
                self.grounds.whole(expression)
            case Reference(name):
                self.settle(self.scope.variables[name])
            case ContentSelector() | ApplyPath():
                raise NoSetError
            case Apply(function) | ApplyEach(_, function) if function.within:
                raise NoSetError
            case Apply(function, arguments) if function.id in (_OR, _AND):
                self._settle_logic(arguments, decisive=function.id == _OR)
            case Apply(function, arguments) if function.id == _N_OF:
                self._settle_n_of(arguments[0], arguments[1:])
            case Apply(function, (one, other)) if self._settle_relation(function.id, one, other):
                return
            case ApplyEach(HigherOrder.ANY_OF | HigherOrder.ANY_OF_ANY, function, (one, other)) if (
                function.id in _EQUALITIES and self._settle_shared(one, other, most=POLICY_CALLS // REQUEST_SET_BAG)
            ):
                return
            case Apply(_, arguments) | ApplyEach(_, _, arguments):
                for argument in arguments:
                    self.settle(argument)
                    if self.value(argument) is None:
                        break

    def settle_fine(self, expression: Expression) -> None:
        """State why an expression has a value, whichever."""
        match expression:
            case PolicyLiteral():
                return
            case Designator() if self.value(expression) is not None:
                if expression.must_be_present or self.grounds.elsewhere(expression):
                    self.grounds.present(expression)
            case Reference(name):
                self.settle_fine(self.scope.variables[name])
            case Apply(function, (Designator() as wanted,)) if (
                function.id in _ONLY and self.value(expression) is not None
            ):
                self.grounds.single(wanted)
            case Apply(function, arguments) if function.id in _SAFE and all(
                self.value(argument) is not None for argument in arguments
            ):
                for argument in arguments:
                    self.settle_fine(argument)
            case _:
                self.settle(expression)

    def _settle_logic(self, arguments: Sequence[Expression], *, decisive: bool) -> None:
        """A.3.5: arguments are evaluated in order, up to the first that decides or fails."""
        evaluated = []
        for argument in arguments:
            evaluated.append(argument)
            if self.value(argument) in (decisive, None):
                break
        decided = bool(evaluated) and self.value(evaluated[-1]) is decisive
        for argument in evaluated[:-1]:
            # If one decides, an earlier one can only decide likewise.
            if decided:
                self.settle_fine(argument)
            else:
                self.settle(argument)
        for argument in evaluated[-1:]:
            self.settle(argument)

    def _settle_n_of(self, number: Expression, arguments: Sequence[Expression]) -> None:
        self.settle(number)
        wanted = self.value(number)
        for left, argument in zip(range(len(arguments), 0, -1), arguments, strict=True):
            if wanted is None or wanted <= 0 or wanted > left:
                break
            self.settle(argument)
            found = self.value(argument)
            wanted = None if found is None else wanted - found

    def _settle_relation(self, function_id: str, one: Expression, other: Expression) -> bool:
        """State why a relation of an attribute with known values holds or fails; return whether that was possible."""
        operator = _COMPARISONS.get(function_id)
        if operator is not None:
            return self._settle_comparison(operator, one, other) or self._settle_comparison(
                operator.flipped, other, one
            )
        if function_id in _IS_IN or function_id in _SHARED:
            return self._settle_shared(one, other)
        return function_id in _SUBSET and self._settle_subset(one, other)

    def _settle_comparison(self, operator: ComparisonOperator, one: Expression, other: Expression) -> bool:
        wanted = self._only(one)
        value, compared = self.value(one), self.value(other)
        if wanted is None or value is None or compared is None or not _is_number(value, compared):
            return False
        self.settle(other)
        holds = _holds(operator, value, compared)
        self.grounds.compared(wanted, operator if holds else operator.negated, compared)
        return True

    def _only(self, expression: Expression) -> Designator | None:
        """Return the attribute whose only value an expression is."""
        match expression:
            case Reference(name):
                return self._only(self.scope.variables[name])
            case Apply(function, (Designator() as wanted,)) if function.id in _ONLY:
                return wanted
        return None

    def _designator(self, expression: Expression) -> Designator | None:
        if isinstance(expression, Reference):
            return self._designator(self.scope.variables[expression.id])
        return expression if isinstance(expression, Designator) and expression.of in _MEMBERS else None

    def _settle_shared(self, one: Expression, other: Expression, most: int | None = None) -> bool:
        """State why an attribute has, or does not have, one of some values, of which there are not too many."""
        for wanted, others in ((self._designator(other), one), (self._designator(one), other)):
            values, bag = self.value(others), None if wanted is None else self.value(wanted)
            if wanted is None or values is None or bag is None:
                continue
            values = values if isinstance(others.gives, Bag) else (values,)
            if most is not None and len(values) > most:
                return False
            self.settle(others)
            found = [value for value in values if value in bag]
            if found:
                self.grounds.having(wanted, found)
            else:
                for value in values:
                    self.grounds.lacking(wanted, value)
            self.settle_fine(wanted)
            return True
        return False

    def _settle_subset(self, one: Expression, other: Expression) -> bool:
        """State why an attribute has, or does not have, all of some values."""
        wanted, values = self._designator(other), self.value(one)
        bag = None if wanted is None else self.value(wanted)
        if wanted is None or values is None or bag is None:
            return False
        self.settle(one)
        missing = [value for value in values if value not in bag]
        if missing:
            self.grounds.lacking(wanted, missing[0])
        for value in values if not missing else ():
            self.grounds.having(wanted, [value])
        self.settle_fine(wanted)
        return True

    # --- obligations --------------------------------------------------------------------------------------------

    def settle_duties(self, duties: Duties, effect: RuleEffect) -> None:
        """State why obligations and advice are what they are."""
        for duty in _all_duties(duties):
            if duty.on is effect:
                for assignment in duty.assignments:
                    self.settle(assignment.expression)


def _is_number(*values: Value) -> bool:
    return not any(isinstance(value, float) and math.isnan(value) for value in values)


def _holds(operator: ComparisonOperator, one: Value, other: Value) -> bool:
    found: bool
    match operator:
        case ComparisonOperator.EQ:
            found = one == other
        case ComparisonOperator.LT:
            found = one < other
        case ComparisonOperator.LE:
            found = one <= other
        case ComparisonOperator.GT:
            found = one > other
        case _:
            found = one >= other
    return found


def _every(truths: Sequence[Truth]) -> Truth:
    return False if False in truths else None if None in truths else True


def _some(truths: Sequence[Truth]) -> Truth:
    return True if True in truths else None if None in truths else False


# ----------------------------------------------------------------------------------------------------------------------
# Rules, policies and policy sets.


_ALL: Final = frozenset(XacmlDecision)


@dataclass(frozen=True, slots=True)
class _Prepared:
    """What is known of a policy or a policy set before any request.

    Most rules of a large policy ask for one value of the same attribute. For a request with other values they do not
    apply, and need not be looked at one by one.
    """

    #: the effects that obligations or advice can accompany: its own, and those in it
    duties: frozenset[RuleEffect]
    #: the attribute that most children need, and the places of the children that need each value
    pivot: Designator | None
    by_value: Mapping[Value, tuple[int, ...]]
    #: the places of the other children
    rest: tuple[int, ...]


def _prepare(root: Root) -> _Prepared:
    duties = frozenset(_duties(root))
    children = root.rules if isinstance(root, Policy) else root.members
    known = standard(root.combining)
    by_attribute: dict[Designator, dict[Value, list[int]]] = {}
    if known is not None and known.otherwise is not None:
        # Children that are not applicable make no difference to these algorithms.
        for place, child in enumerate(children):
            for wanted, value in {} if isinstance(child, PolicyReference) else _needed(child.target):
                by_attribute.setdefault(wanted, {}).setdefault(value, []).append(place)
    pivot = max(by_attribute, key=lambda wanted: len(by_attribute[wanted]), default=None)
    if pivot is None or len(by_attribute[pivot]) <= most_lacks(pivot) + 1:
        return _Prepared(duties, None, {}, ())
    by_value = by_attribute[pivot]
    found = {place for places in by_value.values() for place in places}
    rest = tuple(place for place in range(len(children)) if place not in found)
    return _Prepared(duties, pivot, {value: tuple(places) for value, places in by_value.items()}, rest)


def _duties(part: Rule | Root | PolicyReference) -> Iterator[RuleEffect]:
    """Yield the effects that obligations or advice can accompany; all of them for a reference."""
    if isinstance(part, PolicyReference):
        yield from RuleEffect
    elif isinstance(part, Rule):
        yield from (duty.on for duty in _all_duties(part.duties) if duty.on is part.effect)
    else:
        yield from (duty.on for duty in _all_duties(part.duties))
        for child in part.rules if isinstance(part, Policy) else part.members:
            yield from _duties(child)


def _all_duties(duties: Duties) -> tuple[Duty, ...]:
    return (*duties.obligations, *duties.advice)


def _needed(target: Target) -> Iterator[tuple[Designator, Value]]:
    """Yield the first value that a target needs of each attribute: without it, the target does not match."""
    seen: set[Designator] = set()
    for any_of in target:
        for match in any_of[0] if len(any_of) == 1 else ():
            wanted = match.attribute
            if isinstance(wanted, Designator) and match.function.id in _EQUALITIES and wanted not in seen:
                seen.add(wanted)
                yield wanted, match.value


class _Skipped:
    """The children that do not apply because the request has other values of an attribute."""

    def __init__(self, wanted: Designator, grounds: _Grounds, duties: frozenset[RuleEffect]) -> None:
        self._wanted = wanted
        self._grounds = grounds
        self._duties = duties

    def evaluate(self, _context: Context, /) -> PolicyOutcome:
        """Return NotApplicable."""
        return NOT_APPLICABLE

    def applies(self, _context: Context, /) -> bool:
        """Return False."""
        return False

    def has_duties(self, effect: RuleEffect) -> bool:
        """Return whether obligations or advice can accompany an effect."""
        return effect in self._duties

    def settle_target(self) -> None:
        """State why their targets do not match."""
        self._grounds.whole(self._wanted)

    def settle(self) -> None:
        """State why they do not apply."""
        self._grounds.whole(self._wanted)

    def settle_within(self, allowed: frozenset[XacmlDecision]) -> None:
        """State why they do not apply."""
        if allowed != _ALL:
            self._grounds.whole(self._wanted)


class _RuleNode:
    """A rule, its outcome, and the reasons of it."""

    def __init__(self, rule: Rule, reasons: _Reasons) -> None:
        self._rule = rule
        self._reasons = reasons
        self._child = RuleChild(rule, reasons.scope)

    @cached_property
    def outcome(self) -> PolicyOutcome:
        """The outcome (section 7.11)."""
        if self._reasons.truth(self._rule.target) is False:
            return NOT_APPLICABLE
        return self._child.evaluate(self._reasons.scope.context)

    def evaluate(self, _context: Context, /) -> PolicyOutcome:
        """Return the outcome."""
        return self.outcome

    def applies(self, context: Context, /) -> bool | PolicyOutcome:
        """Return whether its target matches, or the outcome if that is not known."""
        return self._child.applies(context)

    def has_duties(self, effect: RuleEffect) -> bool:
        """Return whether obligations or advice can accompany an effect."""
        return self._rule.effect is effect and any(duty.on is effect for duty in _all_duties(self._rule.duties))

    def settle_target(self) -> None:
        """State why its target matches, does not match, or fails."""
        self._reasons.settle_target(self._rule.target)

    def settle(self) -> None:
        """State why it has its outcome."""
        rule, reasons = self._rule, self._reasons
        truth = reasons.truth(rule.target)
        if truth is not True:
            reasons.settle_target(rule.target)
            return
        holds = rule.condition is None or reasons.value(rule.condition)
        if holds is False:
            # If the target did not match, the rule would not apply either.
            reasons.settle_target_fine(rule.target)
        else:
            reasons.settle_target(rule.target)
        if rule.condition is not None:
            reasons.settle(rule.condition)
        if holds:
            reasons.settle_duties(rule.duties, rule.effect)

    def settle_within(self, allowed: frozenset[XacmlDecision]) -> None:
        """State why its outcome is one of several."""
        rule, reasons = self._rule, self._reasons
        decides, spoiled = XacmlDecision.of(rule.effect), XacmlDecision.spoiled(rule.effect)
        if allowed >= {NA, decides, spoiled}:
            return
        fails = rule.condition is not None and reasons.truth(rule.target) is not False
        if allowed >= {NA, spoiled} and fails and rule.condition and reasons.value(rule.condition) is False:
            # Whatever its target says, the rule does not decide.
            reasons.settle(rule.condition)
        else:
            self.settle()


class _Container:
    """A policy or a policy set, its outcome, and the reasons of it."""

    def __init__(self, root: Root, grounds: _Grounds, around: tuple[str, ...]) -> None:
        self._root = root
        self._grounds = grounds
        self._around = around
        variables = root.variables if isinstance(root, Policy) else {}
        self._reasons = _Reasons(grounds, EvaluationScope(grounds.context, variables))

    @cached_property
    def _children(self) -> "list[_Node]":
        known, grounds = self._grounds.prepared(self._root), self._grounds
        children = self._root.rules if isinstance(self._root, Policy) else self._root.members
        bag = () if known.pivot is None else grounds.bag(known.pivot)
        if known.pivot is None or not bag or not grounds.can_be_stated(known.pivot):
            return [self._child(one) for one in children]
        places = sorted({*known.rest, *(place for value in bag for place in known.by_value.get(value, ()))})
        return [_Skipped(known.pivot, grounds, known.duties), *(self._child(children[place]) for place in places)]

    def _child(self, child: Rule | Root | PolicyReference) -> "_Node":
        around = (*self._around, versioned(self._root))
        match child:
            case Rule():
                return _RuleNode(child, self._reasons)
            case PolicyReference():
                return _Referred(child, self._grounds, around)
        return _Container(child, self._grounds, around)

    @cached_property
    def _combined(self) -> PolicyOutcome:
        named = rule_algorithm if isinstance(self._root, Policy) else policy_algorithm
        return named(self._root.combining)(self._children, self._grounds.context)

    @cached_property
    def outcome(self) -> PolicyOutcome:
        """The outcome (section 7.12 to 7.14)."""
        self._grounds.step()
        return combined_children(self._root, self._reasons.scope, (), lambda _children, _context: self._combined)

    def evaluate(self, _context: Context, /) -> PolicyOutcome:
        """Return the outcome."""
        return self.outcome

    def applies(self, _context: Context, /) -> bool | PolicyOutcome:
        """Return whether its target matches, or the outcome if that is not known."""
        return target_applies(self._root, self._reasons.scope)

    def has_duties(self, effect: RuleEffect) -> bool:
        """Return whether obligations or advice can accompany an effect."""
        return effect in self._grounds.prepared(self._root).duties or any(
            one.has_duties(effect) for one in self._children
        )

    def settle_target(self) -> None:
        """State why its target matches, does not match, or fails."""
        self._reasons.settle_target(self._root.target)

    def settle(self) -> None:
        """State why it has its outcome."""
        truth = self._reasons.truth(self._root.target)
        if truth is False:
            self.settle_target()
            return
        said = self._combined.decision
        self._settle_children(said)
        if said is NA:
            # Whatever its target says, it does not apply.
            return
        self.settle_target()
        if truth is True and said in (P, D):
            self._reasons.settle_duties(self._root.duties, _effect(said))

    def settle_within(self, _allowed: frozenset[XacmlDecision]) -> None:
        """State why its outcome is one of several."""
        self.settle()

    def _settle_children(self, said: XacmlDecision) -> None:
        """State why the combination of the children has this decision, with these obligations and advice."""
        children, known = self._children, standard(self._root.combining)
        allowed = None if known is None else _allowed(known.name, said)
        if known is None or allowed is None:
            for child in children:
                child.settle_target()
                child.settle()
            return
        agreeing = [
            place
            for place, child in enumerate(children)
            if allowed.one_of_them and child.evaluate(self._grounds.context).decision is said
        ]
        if said in known.decisive and agreeing:
            decisive = children[agreeing[0]]
            children = children[: agreeing[0]]
            decisive.settle()
            if not self._can_have_duties(said, [*children, decisive]):
                for child in children if known.name == "first-applicable" else ():
                    child.settle_within(allowed.others)
                return
        elif said not in (P, D) or not self._can_have_duties(said, children):
            for place, child in enumerate(children):
                if agreeing and place == agreeing[0]:
                    child.settle()
                else:
                    child.settle_within(allowed.others)
            return
        for child in children:
            child.settle()

    def _can_have_duties(self, said: XacmlDecision, children: "Sequence[_Node]") -> bool:
        return any(child.has_duties(_effect(said)) for child in children)


class _Referred:
    """A referenced policy."""

    def __init__(self, reference: PolicyReference, grounds: _Grounds, around: tuple[str, ...]) -> None:
        self._reference = reference
        self._grounds = grounds
        self._around = around

    @cached_property
    def _found(self) -> _Container | DecisionStatus:
        try:
            root = referenced(self._reference, self._grounds.context, self._around)
        except PenstockError as error:
            return status_of(error)
        return _Container(root, self._grounds, self._around)

    def evaluate(self, context: Context, /) -> PolicyOutcome:
        """Return the outcome."""
        found = self._found
        return PolicyOutcome(IN_DP, found) if isinstance(found, DecisionStatus) else found.evaluate(context)

    def applies(self, context: Context, /) -> bool | PolicyOutcome:
        """Return whether its target matches, or the outcome if that is not known."""
        found = self._found
        return PolicyOutcome(IN_DP, found) if isinstance(found, DecisionStatus) else found.applies(context)

    def has_duties(self, effect: RuleEffect) -> bool:
        """Return whether obligations or advice can accompany an effect."""
        return isinstance(self._found, DecisionStatus) or self._found.has_duties(effect)

    def settle_target(self) -> None:
        """State why its target matches, does not match, or fails."""
        self._there().settle_target()

    def settle(self) -> None:
        """State why it has its outcome."""
        self._there().settle()

    def settle_within(self, allowed: frozenset[XacmlDecision]) -> None:
        """State why its outcome is one of several."""
        if allowed != _ALL:
            self._there().settle_within(allowed)

    def _there(self) -> _Container:
        if isinstance(self._found, DecisionStatus):
            # It may be found later, although the policies are the same.
            raise NoSetError
        return self._found


_Node: TypeAlias = _RuleNode | _Container | _Referred | _Skipped


@dataclass(frozen=True, slots=True)
class _Allowed:
    """Which decisions of the children give a combined decision."""

    #: the decisions that each child can have
    others: frozenset[XacmlDecision]
    #: whether one of the children must have the combined decision
    one_of_them: bool = True


def _allowed(algorithm: str, said: XacmlDecision) -> _Allowed | None:
    """Return the decisions of children that give a decision; None for rare algorithms, and for Indeterminate."""
    match algorithm, said:
        case ("deny-overrides" | "permit-unless-deny", XacmlDecision.DENY):
            return _Allowed(_ALL)
        case ("permit-overrides" | "deny-unless-permit", XacmlDecision.PERMIT):
            return _Allowed(_ALL)
        case "deny-overrides", XacmlDecision.PERMIT:
            return _Allowed(frozenset({NA, P, IN_P}))
        case "permit-overrides", XacmlDecision.DENY:
            return _Allowed(frozenset({NA, D, IN_D}))
        case "deny-unless-permit", XacmlDecision.DENY:
            return _Allowed(_ALL - {P}, one_of_them=False)
        case "permit-unless-deny", XacmlDecision.PERMIT:
            return _Allowed(_ALL - {D}, one_of_them=False)
        case "first-applicable", XacmlDecision.PERMIT | XacmlDecision.DENY:
            return _Allowed(frozenset({NA, said}))
        case "deny-overrides" | "permit-overrides" | "first-applicable", XacmlDecision.NOT_APPLICABLE:
            return _Allowed(frozenset({NA}), one_of_them=False)
    return None


def _effect(said: XacmlDecision) -> RuleEffect:
    return RuleEffect.PERMIT if said is P else RuleEffect.DENY
