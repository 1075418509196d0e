"""Evaluate policies for a request, literally as the standard says (section 7).

This is the plain evaluator: it evaluates everything, in the order of the policy, and faster ones are compared with it.
Nothing is raised for a policy's fault: errors give Indeterminate, with a status.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from math import prod
from typing import Any

from penstock.errors import EvaluationError, MalformedError, PenstockError
from penstock.policy.combining import Child, policy_algorithm, rule_algorithm
from penstock.policy.engine.lookup import Context
from penstock.policy.language.datatypes import Bag, DataType, Function, Value, failed
from penstock.policy.language.functions import V1, WITHIN
from penstock.policy.language.policies import (
    Apply,
    ApplyEach,
    ApplyPath,
    Assignment,
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
    PolicySet,
    Reference,
    Root,
    Rule,
    RuleEffect,
    Target,
    versioned,
)
from penstock.policy.language.results import (
    MISSING_ATTRIBUTE,
    NOT_APPLICABLE,
    PROCESSING_ERROR,
    SYNTAX_ERROR,
    Assigned,
    DecisionStatus,
    MissingAttribute,
    Obligation,
    PolicyId,
    PolicyOutcome,
    XacmlDecision,
)
from penstock.policy.limits import POLICY_CALLS

_OR, _AND, _N_OF = f"{V1}or", f"{V1}and", f"{V1}n-of"


def evaluate(root: Root, context: Context, /) -> PolicyOutcome:
    """Return the outcome of a policy or a policy set for a request."""
    context.policy = context.policy or partial(evaluate, root)
    child = _PolicyChild(root, context) if isinstance(root, Policy) else _SetChild(root, context, ())
    return child.evaluate(context)


def status_of(error: PenstockError) -> DecisionStatus:
    """Return the status for an error."""
    missing = error.fields.get("missing")
    if isinstance(missing, MissingAttribute):
        return DecisionStatus(MISSING_ATTRIBUTE, error.message, (missing,))
    # The standard detects these during evaluation (section 7.17.1, 7.17.2), Penstock when a policy is read.
    late = ("xacml.arguments", "xacml.function")
    syntax = error.code == "xacml.value" or (isinstance(error, MalformedError) and error.code not in late)
    return DecisionStatus(SYNTAX_ERROR if syntax else PROCESSING_ERROR, error.message)


# --- expressions -----------------------------------------------------------------------------------------------------

Variables = Mapping[str, Expression]


@dataclass(slots=True)
class EvaluationScope:
    """The scope of an expression: the request, and the variables of its policy, each evaluated once."""

    context: Context
    variables: Variables = field(default_factory=dict)
    _known: dict[str, Value] = field(default_factory=dict)

    def value(self, expression: Expression) -> Value:
        """Return the value of an expression. Raises `EvaluationError` (`xacml.processing`, `xacml.missing`)."""
        match expression:
            case PolicyLiteral(value):
                return value
            case Designator():
                return self.context.designated(expression)
            case ContentSelector():
                return self.context.selected(expression)
            case Reference(name):
                if name not in self._known:
                    self._known[name] = self.value(self.variables[name])
                return self._known[name]
            case Apply(function, arguments):
                if function.id in (_OR, _AND, _N_OF):
                    return self._logic(function.id, arguments)
                return function.call(*map(self.value, arguments))
            case ApplyEach():
                return self._each(expression)
            case ApplyPath(name, arguments):
                return self.called(WITHIN[name])(*map(self.value, arguments))

    def called(self, function: Function) -> Callable[..., Value]:
        """Return a function that takes only values."""
        return partial(function.call, self.context) if function.within else function.call

    def _logic(self, name: str, arguments: Sequence[Expression]) -> bool:
        """Evaluate arguments in order, and no more than necessary (A.3.5)."""
        if name != _N_OF:
            decisive = name == _OR
            return decisive if any(self.value(one) is decisive for one in arguments) else not decisive
        wanted = self.value(arguments[0])
        left = len(arguments) - 1
        if wanted > left:
            raise failed("n-of requires more arguments than there are")
        for argument in arguments[1:]:
            if wanted <= 0 or wanted > left:
                break
            wanted -= self.value(argument)
            left -= 1
        return bool(wanted <= 0)

    def _each(self, expression: ApplyEach) -> Value:
        name, call = expression.name, self.called(expression.function)
        values = [self.value(argument) for argument in expression.arguments]
        bags = [
            value if isinstance(argument.gives, Bag) else (value,)
            for value, argument in zip(values, expression.arguments, strict=True)
        ]
        if prod(map(len, bags)) > POLICY_CALLS:
            raise failed("there are too many values for a higher-order function")
        match name:
            case HigherOrder.ANY_OF | HigherOrder.ANY_OF_ANY:
                return any(call(*chosen) for chosen in product(*bags))
            case HigherOrder.ALL_OF:
                return all(call(*chosen) for chosen in product(*bags))
            case HigherOrder.MAP:
                return tuple(call(*chosen) for chosen in product(*bags))
            case HigherOrder.ALL_OF_ANY:
                return all(any(call(one, other) for other in bags[1]) for one in bags[0])
            case HigherOrder.ANY_OF_ALL:
                return any(all(call(one, other) for other in bags[1]) for one in bags[0])
            case _:
                return all(call(one, other) for one in bags[0] for other in bags[1])


# --- targets ---------------------------------------------------------------------------------------------------------


def target_matches(target: Target, scope: EvaluationScope) -> bool:
    """Return whether a target matches (section 7.7). Raises `EvaluationError` if that is not known."""
    return _every(lambda any_of: _some(lambda all_of: _every(lambda one: _matches(one, scope), all_of), any_of), target)


def _matches(match: Match, scope: EvaluationScope) -> bool:
    values, call = scope.value(match.attribute), scope.called(match.function)
    return _some(lambda value: bool(call(match.value, value)), values)


def _some(holds: Callable[[Any], bool], things: Sequence[Any]) -> bool:
    """Return whether one is true; an error counts only if none is."""
    error: EvaluationError | None = None
    for thing in things:
        try:
            if holds(thing):
                return True
        except EvaluationError as found:
            error = error or found
    if error is not None:
        raise error
    return False


def _every(holds: Callable[[Any], bool], things: Sequence[Any]) -> bool:
    """Return whether all are true; an error counts only if none is false."""
    return not _some(lambda thing: not holds(thing), things)


# --- rules and policies ----------------------------------------------------------------------------------------------


@dataclass(slots=True)
class RuleChild:
    """A rule, as combining algorithms evaluate it."""

    rule: Rule
    scope: EvaluationScope

    def applies(self, _context: Context, /) -> bool | PolicyOutcome:
        """Return whether its target matches, or the outcome if that is not known."""
        try:
            return target_matches(self.rule.target, self.scope)
        except EvaluationError as error:
            return PolicyOutcome(XacmlDecision.spoiled(self.rule.effect), status_of(error))

    def evaluate(self, _context: Context, /) -> PolicyOutcome:
        """Section 7.11."""
        rule = self.rule
        try:
            if not target_matches(rule.target, self.scope):
                return NOT_APPLICABLE
            if rule.condition is not None and not self.scope.value(rule.condition):
                return NOT_APPLICABLE
            obligations, advice = duties_told(rule.duties, rule.effect, self.scope)
        except EvaluationError as error:
            return PolicyOutcome(XacmlDecision.spoiled(rule.effect), status_of(error))
        return PolicyOutcome(XacmlDecision.of(rule.effect), obligations=obligations, advice=advice)


def combined_children(
    root: Root,
    scope: EvaluationScope,
    children: Sequence[Child[Context]],
    combine: Callable[[Sequence[Child[Context]], Context], PolicyOutcome],
) -> PolicyOutcome:
    """Return the outcome of a policy or a policy set from its target, its children and its duties (7.12 to 7.14)."""
    try:
        matches: bool | EvaluationError = target_matches(root.target, scope)
    except EvaluationError as error:
        matches = error
    if matches is False:
        return NOT_APPLICABLE
    combined = combine(children, scope.context)
    if not isinstance(matches, EvaluationError):
        return _with_duties(root, scope, combined)
    if combined.decision is XacmlDecision.NOT_APPLICABLE:
        return NOT_APPLICABLE
    return PolicyOutcome(doubted(combined.decision), status_of(matches))


def _with_duties(root: Root, scope: EvaluationScope, combined: PolicyOutcome) -> PolicyOutcome:
    decision = combined.decision
    if decision not in (XacmlDecision.PERMIT, XacmlDecision.DENY):
        return PolicyOutcome(decision, combined.status, applicable=combined.applicable)
    effect = RuleEffect.PERMIT if decision is XacmlDecision.PERMIT else RuleEffect.DENY
    try:
        obligations, advice = duties_told(root.duties, effect, scope)
    except EvaluationError as error:
        return PolicyOutcome(XacmlDecision.spoiled(effect), status_of(error))
    return PolicyOutcome(
        decision,
        combined.status,
        (*combined.obligations, *obligations),
        (*combined.advice, *advice),
        (*combined.applicable, PolicyId(root.id, root.version, isinstance(root, PolicySet))),
    )


def doubted(decision: XacmlDecision) -> XacmlDecision:
    """Return the decision if it is not known whether the target matches (table 7)."""
    if decision is XacmlDecision.PERMIT:
        return XacmlDecision.INDETERMINATE_P
    return XacmlDecision.INDETERMINATE_D if decision is XacmlDecision.DENY else decision


@dataclass(slots=True)
class _PolicyChild:
    policy: Policy
    context: Context

    def _scope(self) -> EvaluationScope:
        return EvaluationScope(self.context, self.policy.variables)

    def applies(self, _context: Context, /) -> bool | PolicyOutcome:
        return target_applies(self.policy, self._scope())

    def evaluate(self, _context: Context, /) -> PolicyOutcome:
        scope = self._scope()
        children = [RuleChild(rule, scope) for rule in self.policy.rules]
        return combined_children(self.policy, scope, children, rule_algorithm(self.policy.combining))


@dataclass(slots=True)
class _SetChild:
    policies: PolicySet
    context: Context
    #: the enclosing sets, to detect cycles
    around: tuple[str, ...]

    def applies(self, _context: Context, /) -> bool | PolicyOutcome:
        return target_applies(self.policies, EvaluationScope(self.context))

    def evaluate(self, _context: Context, /) -> PolicyOutcome:
        around = (*self.around, versioned(self.policies))
        children = [_child(member, self.context, around) for member in self.policies.members]
        combine = policy_algorithm(self.policies.combining)
        return combined_children(self.policies, EvaluationScope(self.context), children, combine)


@dataclass(slots=True)
class _ReferenceChild:
    """A referenced policy, which is looked up when it is needed; if it cannot be found, the result is Indeterminate."""

    reference: PolicyReference
    context: Context
    around: tuple[str, ...]

    def _found(self) -> "_PolicyChild | _SetChild":
        found = referenced(self.reference, self.context, self.around)
        if isinstance(found, Policy):
            return _PolicyChild(found, self.context)
        return _SetChild(found, self.context, self.around)

    def applies(self, _context: Context, /) -> bool | PolicyOutcome:
        try:
            return self._found().applies(self.context)
        except PenstockError as error:
            return PolicyOutcome(XacmlDecision.INDETERMINATE_DP, status_of(error))

    def evaluate(self, _context: Context, /) -> PolicyOutcome:
        try:
            found = self._found()
        except PenstockError as error:
            return PolicyOutcome(XacmlDecision.INDETERMINATE_DP, status_of(error))
        return found.evaluate(self.context)


def referenced(reference: PolicyReference, context: Context, around: tuple[str, ...]) -> Root:
    """Return the policy that a reference within policy sets means.

    Raises what sources raise, and `EvaluationError` (`xacml.cycle`) if it is one of these sets.
    """
    found = context.sources.policy(reference)
    if reference.to_set and versioned(found) in around:
        raise EvaluationError("xacml.cycle", f"policy set `{reference.id[:120]}` is within itself")
    return found


def _child(
    member: Policy | PolicySet | PolicyReference, context: Context, around: tuple[str, ...]
) -> _PolicyChild | _SetChild | _ReferenceChild:
    match member:
        case Policy():
            return _PolicyChild(member, context)
        case PolicySet():
            return _SetChild(member, context, around)
        case PolicyReference():
            return _ReferenceChild(member, context, around)


def target_applies(root: Root, scope: EvaluationScope) -> bool | PolicyOutcome:
    """Return whether the target of a policy or a policy set matches, or the outcome if that is not known."""
    try:
        return target_matches(root.target, scope)
    except EvaluationError as error:
        return PolicyOutcome(XacmlDecision.INDETERMINATE_DP, status_of(error))


# --- obligations and advice ------------------------------------------------------------------------------------------


def duties_told(
    duties: Duties, effect: RuleEffect, scope: EvaluationScope
) -> tuple[tuple[Obligation, ...], tuple[Obligation, ...]]:
    """Return the obligations and advice for an effect (section 7.18). Raises `EvaluationError`."""
    return (
        tuple(_told(duty, scope) for duty in duties.obligations if duty.on is effect),
        tuple(_told(duty, scope) for duty in duties.advice if duty.on is effect),
    )


def _told(duty: Duty, scope: EvaluationScope) -> Obligation:
    return Obligation(duty.id, tuple(one for assignment in duty.assignments for one in _assigned(assignment, scope)))


def _assigned(assignment: Assignment, scope: EvaluationScope) -> Iterator[Assigned]:
    kind, value = assignment.expression.gives, scope.value(assignment.expression)
    of_type: DataType = kind.of if isinstance(kind, Bag) else kind
    for one in value if isinstance(kind, Bag) else (value,):
        yield Assigned(assignment.id, of_type, one, assignment.category, assignment.issuer)
