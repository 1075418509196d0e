"""Compile policies: they decide as `evaluate` does, but evaluate only children that can apply.

Targets become an index (`index`), so that of thousands of children only those with matching equalities are evaluated.
Targets and conditions become Python (`programs`); parts without a fast form are evaluated by the plain evaluator. If
the fast form fails, the plain evaluator is asked again, because it defines the effect of errors.
"""

import gc
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from typing import Final

from penstock.errors import EvaluationError, PenstockError
from penstock.policy.combining import Child, CombiningAlgorithm, policy_algorithm, rule_algorithm, standard
from penstock.policy.engine.evaluate import EvaluationScope, doubted, duties_told, status_of, target_matches
from penstock.policy.engine.index import (
    Index,
    IndexEntry,
    Leads,
    Needs,
    leads_of_policy,
    leads_of_rule,
    necessary,
    no_leads,
)
from penstock.policy.engine.lookup import Context, NoSources, PolicySources
from penstock.policy.engine.programs import Program, condition_program, target_program
from penstock.policy.language.policies import (
    Duties,
    Expression,
    Policy,
    PolicyReference,
    PolicySet,
    Root,
    Rule,
    RuleEffect,
    Target,
    check_issuers,
    versioned,
)
from penstock.policy.language.requests import Facts, Request
from penstock.policy.language.results import NOT_APPLICABLE, PolicyId, PolicyOutcome, XacmlDecision

IN_DP: Final = XacmlDecision.INDETERMINATE_DP


class CompiledPolicy:
    """A policy or a policy set, ready to decide. Policies that it refers to are taken from `sources` when needed.

    Raises `MalformedError` (`xacml.issuer`).
    """

    def __init__(self, root: Root, sources: PolicySources | None = None) -> None:
        check_issuers(root)
        self._sources = sources or NoSources()
        with _uncollected():
            self._ask = _compile(root, ()).child.evaluate

    def evaluate(self, context: Context) -> PolicyOutcome:
        """Return the outcome for a request, exactly as `evaluate` does."""
        context.policy = context.policy or self._ask
        return self._ask(context)

    def ask(self, facts: Facts, now: datetime) -> PolicyOutcome:
        """Return the outcome for a request in its shortest form, without the names of policies."""
        context = Context(None, now, self._sources, facts)
        context.policy = ask = self._ask
        return ask(context)

    def ask_request(self, request: Request, now: datetime) -> PolicyOutcome:
        """Return the outcome for a request for one decision."""
        return self.evaluate(Context(request, now, self._sources))


@contextmanager
def _uncollected() -> Iterator[None]:
    """Suspend the garbage collector: all objects created here stay alive, and it would scan them repeatedly."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class _Unit(ABC):
    """A compiled rule, policy or policy set. Call `matched` if the target is known to match."""

    __slots__ = ("_program", "target", "variables")

    def __init__(self, target: Target, variables: Mapping[str, Expression]) -> None:
        self.target = target
        self.variables = variables
        self._program = target_program(target)

    def scope(self, context: Context) -> EvaluationScope:
        """Return the scope in which its expressions are evaluated."""
        return EvaluationScope(context, self.variables)

    def matches(self, context: Context) -> bool:
        """Return whether the target matches. Raises `EvaluationError` if that is not known."""
        if self._program is None:
            return True
        try:
            return bool(self._program(context, context.facts))
        except EvaluationError:
            # The failure does not matter if another part does not match.
            return target_matches(self.target, self.scope(context))

    def applies(self, context: Context, /) -> bool | PolicyOutcome:
        """Return whether the target matches, or the outcome if that is not known."""
        try:
            return self.matches(context)
        except EvaluationError as error:
            return PolicyOutcome(IN_DP, status_of(error))

    def evaluate(self, context: Context, /) -> PolicyOutcome:
        """Return its outcome."""
        try:
            if not self.matches(context):
                return NOT_APPLICABLE
        except EvaluationError as error:
            return self.doubtful(context, error)
        return self.matched(context)

    @abstractmethod
    def doubtful(self, context: Context, error: EvaluationError) -> PolicyOutcome:
        """Return the outcome if it is not known whether the target matches."""

    @abstractmethod
    def matched(self, context: Context) -> PolicyOutcome:
        """Return the outcome if the target matches."""


class _Found:
    """A child whose target is known to match, because the index found it by everything that the target requires."""

    __slots__ = ("applies", "evaluate")

    def __init__(self, unit: _Unit) -> None:
        self.evaluate = unit.matched
        self.applies = unit.applies


class _Rule(_Unit):
    """A rule."""

    __slots__ = ("_condition", "_decided", "_duties", "_effect")

    def __init__(self, rule: Rule, policy: Policy, programs: dict[str, Program]) -> None:
        super().__init__(rule.target, policy.variables)
        self._effect = rule.effect
        self._decided = _PERMITTED if rule.effect is RuleEffect.PERMIT else _DENIED
        self._duties = rule.duties if _told(rule.duties, rule.effect) else None
        self._condition = (
            None if rule.condition is None else condition_program(rule.condition, policy.variables, programs)
        )

    def doubtful(self, _context: Context, error: EvaluationError) -> PolicyOutcome:
        return PolicyOutcome(XacmlDecision.spoiled(self._effect), status_of(error))

    def matched(self, context: Context) -> PolicyOutcome:
        condition = self._condition
        try:
            if condition is not None and not condition(context, context.facts):
                return NOT_APPLICABLE
            if self._duties is None:
                return self._decided
            obligations, advice = duties_told(self._duties, self._effect, self.scope(context))
        except EvaluationError as error:
            return PolicyOutcome(XacmlDecision.spoiled(self._effect), status_of(error))
        return PolicyOutcome(self._decided.decision, obligations=obligations, advice=advice)


class _Container(_Unit):
    """A policy or a policy set."""

    __slots__ = ("_children", "_combine", "_duties", "_index", "_name", "_single")

    def __init__(
        self,
        root: Root,
        children: Sequence[IndexEntry[_Unit]],
        combine: CombiningAlgorithm,
        variables: Mapping[str, Expression],
    ) -> None:
        super().__init__(root.target, variables)
        self._children = tuple(entry.child for entry in children)
        self._combine = combine
        known = standard(root.combining)
        #: whether the outcome of a single child is the result
        self._single = _plain(root.combining)
        self._duties = root.duties if root.duties.obligations or root.duties.advice else None
        self._name = PolicyId(root.id, root.version, isinstance(root, PolicySet))
        # Decision tuples can count children that are not applicable, and priorities use positions.
        self._index = None if known is None or known.by_place else _indexed(children, by_target=known.by_target)

    def _combined(self, context: Context) -> PolicyOutcome:
        children: Sequence[Child[Context]] = self._children
        if self._index is not None:
            children = self._index.candidates(context)
        if self._single and len(children) == 1:
            return children[0].evaluate(context)
        return self._combine(children, context)

    def doubtful(self, context: Context, error: EvaluationError) -> PolicyOutcome:
        outcome = self._combined(context)
        if outcome.decision is XacmlDecision.NOT_APPLICABLE:
            return NOT_APPLICABLE
        return PolicyOutcome(doubted(outcome.decision), status_of(error))

    def matched(self, context: Context) -> PolicyOutcome:
        outcome = self._combined(context)
        decision = outcome.decision
        if decision is XacmlDecision.PERMIT or decision is XacmlDecision.DENY:
            return self._decided(outcome, context) if context.names or self._duties is not None else outcome
        if outcome.obligations or outcome.advice:
            return PolicyOutcome(decision, outcome.status, applicable=outcome.applicable)
        return outcome

    def _decided(self, outcome: PolicyOutcome, context: Context) -> PolicyOutcome:
        """Add this policy's obligations and advice, and its name, to a decision."""
        effect = RuleEffect.PERMIT if outcome.decision is XacmlDecision.PERMIT else RuleEffect.DENY
        obligations, advice = outcome.obligations, outcome.advice
        if self._duties is not None:
            try:
                more, also = duties_told(self._duties, effect, self.scope(context))
            except EvaluationError as error:
                return PolicyOutcome(XacmlDecision.spoiled(effect), status_of(error))
            obligations, advice = (*obligations, *more), (*advice, *also)
        applicable = (*outcome.applicable, self._name) if context.names else ()
        return PolicyOutcome(outcome.decision, outcome.status, obligations, advice, applicable)


class _Referred(_Unit):
    """A referenced policy, which is looked up when it is needed, and compiled once."""

    __slots__ = ("_around", "_known", "_reference")

    def __init__(self, reference: PolicyReference, around: tuple[str, ...]) -> None:
        super().__init__((), {})
        self._reference = reference
        self._around = around
        self._known: tuple[Root, _Unit] | None = None

    def _found(self, context: Context) -> _Unit:
        policy = context.sources.policy(self._reference)
        if self._reference.to_set and versioned(policy) in self._around:
            raise EvaluationError("xacml.cycle", f"policy set `{self._reference.id[:120]}` is within itself")
        known = self._known
        if known is None or known[0] is not policy:
            known = self._known = (policy, _compile(policy, self._around).child)
        return known[1]

    def applies(self, context: Context, /) -> bool | PolicyOutcome:
        try:
            return self._found(context).applies(context)
        except PenstockError as error:
            return PolicyOutcome(IN_DP, status_of(error))

    def doubtful(self, _context: Context, error: EvaluationError) -> PolicyOutcome:
        return PolicyOutcome(IN_DP, status_of(error))

    def matched(self, context: Context) -> PolicyOutcome:
        # A reference has no target of its own; the policy evaluates its target itself.
        try:
            unit = self._found(context)
        except PenstockError as error:
            return PolicyOutcome(IN_DP, status_of(error))
        return unit.evaluate(context)


# --- compiling -------------------------------------------------------------------------------------------------------


def _compile(member: Policy | PolicySet | PolicyReference, around: tuple[str, ...]) -> IndexEntry[_Unit]:
    match member:
        case Policy():
            return _compile_policy(member)
        case PolicySet():
            children = [_compile(one, (*around, versioned(member))) for one in member.members]
            return IndexEntry.of(_Container(member, children, policy_algorithm(member.combining), {}), member.target)
        case PolicyReference():
            return IndexEntry.of(_Referred(member, around), ())


def _compile_policy(policy: Policy) -> IndexEntry[_Unit]:
    programs: dict[str, Program] = {}
    children: list[IndexEntry[_Unit]] = [
        IndexEntry.of(_Rule(rule, policy, programs), rule.target, partial(leads_of_rule, rule, policy.variables))
        for rule in policy.rules
    ]
    unit = _Container(policy, children, rule_algorithm(policy.combining), policy.variables)
    reach = policy.target
    if len(children) == 1 and _plain(policy.combining):
        reach = (*reach, *children[0].target)
    return IndexEntry(
        unit, policy.target, needs_of_policy(policy, [child.needs for child in children]), reach, leads_where(policy)
    )


def _indexed(children: Sequence[IndexEntry[_Unit]], *, by_target: bool) -> "Index[_Unit | _Found] | None":
    entries = [IndexEntry.of(one.child, one.target) for one in children] if by_target else children
    return Index.of(entries, _Found)


def _told(duties: Duties, effect: RuleEffect) -> bool:
    return any(duty.on is effect for duty in (*duties.obligations, *duties.advice))


_PERMITTED: Final = PolicyOutcome(XacmlDecision.PERMIT)
_DENIED: Final = PolicyOutcome(XacmlDecision.DENY)


def _plain(combining: str) -> bool:
    known = standard(combining)
    return known is not None and known.plain


def leads_where(policy: Policy) -> Callable[[], Leads | None]:
    """Return the function that computes a policy's leads, if it is not applicable without an applicable rule."""
    return partial(leads_of_policy, policy) if _plain(policy.combining) else no_leads


def needs_of_policy(policy: Policy, of_rules: Sequence[Needs]) -> Needs:
    """Return the equalities that a policy needs: its target's, and those of all rules if it needs one of its rules."""
    needs = necessary(policy.target)
    if not of_rules or not _plain(policy.combining):
        return needs
    common = set(of_rules[0]).intersection(*of_rules[1:])
    # The target's own needs take precedence: an attribute with several values may have others for the rules.
    return {**{key: frozenset().union(*(one[key] for one in of_rules)) for key in common}, **needs}
