"""Policies compiled: what they say is what `evaluate` says, and only what can apply is looked at.

A policy set is read once. Targets become an index (`index`), so that of thousands of children those are evaluated whose
equalities hold; targets and conditions become Python (`programs`); what has no quick form is left to the plain
evaluator. Whatever fails on the quick way is asked again on the plain one, which knows what an error comes to.
"""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Final, TypeAlias

from penstock.errors import EvaluationError, PenstockError
from penstock.policy.combine import POLICY_ALGORITHMS, RULE_ALGORITHMS, Algorithm, algorithm
from penstock.policy.combining import policy_algorithm, rule_algorithm
from penstock.policy.evaluate import Scope, doubted, duties_told, status_of, target_matches
from penstock.policy.index import Index, Needs, necessary
from penstock.policy.lookup import Context, NoSources, Sources
from penstock.policy.policies import Effect, Policy, PolicyReference, PolicySet, Root, Rule, Target
from penstock.policy.programs import Program, condition_program, target_program
from penstock.policy.requests import Facts, Request
from penstock.policy.results import NOT_APPLICABLE, Decision, Outcome, PolicyId

P, D, NA = Decision.PERMIT, Decision.DENY, Decision.NOT_APPLICABLE
IN_P, IN_D, IN_DP = Decision.INDETERMINATE_P, Decision.INDETERMINATE_D, Decision.INDETERMINATE_DP


class CompiledPolicy:
    """A policy or a policy set, ready to decide. Policies that it refers to are taken from `sources` when needed."""

    def __init__(self, root: Root, sources: Sources | None = None) -> None:
        self._sources = sources or NoSources()
        self._root = _compile_root(root, ())

    def evaluate(self, context: Context) -> Outcome:
        """Return what the policy says about a request: just what `evaluate` returns."""
        return self._root.evaluate(context)

    def ask(self, facts: Facts, now: datetime) -> Outcome:
        """Return what the policy says about a request in its shortest form."""
        return self._root.evaluate(Context(None, now, self._sources, facts))

    def ask_request(self, request: Request, now: datetime) -> Outcome:
        """Return what the policy says about a request for one decision."""
        return self._root.evaluate(Context(request, now, self._sources))


Evaluated: TypeAlias = Callable[[Context], Outcome]


class _Unit:
    """A rule, a policy or a policy set that was compiled."""

    __slots__ = ("evaluate", "needs", "scope", "target")

    def __init__(self, evaluate: Evaluated, target: Target, scope: "Scoped") -> None:
        self.evaluate = evaluate
        self.target = target
        self.scope = scope
        #: equalities without which it is not applicable
        self.needs: Needs = necessary(target)

    def applies(self, context: Context, /) -> bool | Outcome:
        """Say whether the target matches."""
        try:
            return target_matches(self.target, self.scope(context))
        except EvaluationError as error:
            return Outcome(IN_DP, status_of(error))


Scoped: TypeAlias = Callable[[Context], Scope]


def _matcher(target: Target, scope: Scoped) -> Callable[[Context], bool]:
    """Return what says whether a target matches; raises `EvaluationError` where that is not known."""
    program = target_program(target)
    if program is None:
        return lambda _: True

    def matches(context: Context) -> bool:
        try:
            return bool(program(context, context.facts))
        except EvaluationError:
            # What failed may not matter, where something else does not match.
            return target_matches(target, scope(context))

    return matches


# --- rules -----------------------------------------------------------------------------------------------------------


def _compile_rule(rule: Rule, policy: Policy, variables: "dict[str, Program]") -> _Unit:
    def scope(context: Context) -> Scope:
        return Scope(context, policy.variables)

    matches = target_program(rule.target)
    condition = None if rule.condition is None else condition_program(rule.condition, policy.variables, variables)
    effect, decided = rule.effect, Outcome(Decision.of(rule.effect))
    spoiled = Decision.spoiled(effect)
    duties = rule.duties if any(duty.on is effect for duty in (*rule.duties.obligations, *rule.duties.advice)) else None

    def evaluate(context: Context, /) -> Outcome:
        facts = context.facts
        try:
            if matches is not None:
                try:
                    matched = matches(context, facts)
                except EvaluationError:
                    matched = target_matches(rule.target, scope(context))
                if not matched:
                    return NOT_APPLICABLE
            if condition is not None and not condition(context, facts):
                return NOT_APPLICABLE
            if duties is None:
                return decided
            obligations, advice = duties_told(duties, effect, scope(context))
        except EvaluationError as error:
            return Outcome(spoiled, status_of(error))
        return Outcome(decided.decision, obligations=obligations, advice=advice)

    return _Unit(evaluate, rule.target, scope)


# --- policies and policy sets ----------------------------------------------------------------------------------------


def _compile_root(root: Root, around: tuple[str, ...]) -> _Unit:
    return _compile_policy(root) if isinstance(root, Policy) else _compile_set(root, around)


def _compile_policy(policy: Policy) -> _Unit:
    def scope(context: Context) -> Scope:
        return Scope(context, policy.variables)

    variables: dict[str, Program] = {}
    children = [_compile_rule(rule, policy, variables) for rule in policy.rules]
    unit = _container(policy, children, rule_algorithm(policy.combining), scope)
    unit.needs = _needs_of_policy(policy, unit.needs, children)
    return unit


def _compile_set(policies: PolicySet, around: tuple[str, ...]) -> _Unit:
    inside = (*around, policies.id)
    children = [_compile_member(member, inside) for member in policies.members]
    return _container(policies, children, policy_algorithm(policies.combining), Scope)


def _compile_member(member: Policy | PolicySet | PolicyReference, around: tuple[str, ...]) -> _Unit:
    if not isinstance(member, PolicyReference):
        return _compile_root(member, around)
    return _reference(member, around)


def _reference(reference: PolicyReference, around: tuple[str, ...]) -> _Unit:
    """Return what finds a policy when it is needed, and compiles it once."""
    known: dict[int, tuple[Root, _Unit]] = {}

    def found(context: Context) -> _Unit:
        if reference.to_set and reference.id in around:
            raise EvaluationError("xacml.cycle", f"policy set `{reference.id[:120]}` is within itself")
        policy = context.sources.policy(reference)
        kept = known.get(id(policy))
        if kept is None or kept[0] is not policy:
            known.clear()
            kept = known[id(policy)] = (policy, _compile_root(policy, around))
        return kept[1]

    def evaluate(context: Context, /) -> Outcome:
        try:
            unit = found(context)
        except PenstockError as error:
            return Outcome(IN_DP, status_of(error))
        return unit.evaluate(context)

    class _Referred(_Unit):
        __slots__ = ()

        def applies(self, context: Context, /) -> bool | Outcome:
            try:
                return found(context).applies(context)
            except PenstockError as error:
                return Outcome(IN_DP, status_of(error))

    return _Referred(evaluate, (), Scope)


def _container(root: Root, children: Sequence[_Unit], combine: Algorithm, scope: Scoped) -> _Unit:
    matches = _matcher(root.target, scope)
    always = not root.target
    needs = [necessary(child.target) if combine in _BY_TARGET else child.needs for child in children]
    chosen = None if _by_place(combine) else Index.of(needs, children)
    quick = _quick(combine)
    name = (PolicyId(root.id, root.version, isinstance(root, PolicySet)),)
    told = {
        effect: any(duty.on is effect for duty in (*root.duties.obligations, *root.duties.advice)) for effect in Effect
    }

    def combined(context: Context) -> Outcome:
        candidates = children if chosen is None else chosen.candidates(context)
        return quick(candidates, context)

    def evaluate(context: Context, /) -> Outcome:
        try:
            if not always and not matches(context):
                return NOT_APPLICABLE
        except EvaluationError as error:
            outcome = combined(context)
            if outcome.decision is NA:
                return NOT_APPLICABLE
            return Outcome(doubted(outcome.decision), status_of(error))
        outcome = combined(context)
        decision = outcome.decision
        if decision is P or decision is D:
            effect = Effect.PERMIT if decision is P else Effect.DENY
            obligations, advice = outcome.obligations, outcome.advice
            if told[effect]:
                try:
                    more, also = duties_told(root.duties, effect, scope(context))
                except EvaluationError as error:
                    return Outcome(Decision.spoiled(effect), status_of(error))
                obligations, advice = (*obligations, *more), (*advice, *also)
            return Outcome(decision, outcome.status, obligations, advice, (*outcome.applicable, *name))
        if outcome.obligations or outcome.advice:
            return Outcome(decision, outcome.status, applicable=outcome.applicable)
        return outcome

    return _Unit(evaluate, root.target, scope)


_V1: Final = "urn:oasis:names:tc:xacml:1.0:"
_V3: Final = "urn:oasis:names:tc:xacml:3.0:"
#: what goes by the places of children, of which none may be left out
_POSITIONAL: Final = (algorithm(f"{_V3}policy-combining-algorithm:on-permit-apply-second", POLICY_ALGORITHMS),)
#: what asks targets alone which children apply, whatever is in them
_BY_TARGET: Final = (algorithm(f"{_V1}policy-combining-algorithm:only-one-applicable", POLICY_ALGORITHMS),)
_KNOWN: Final = (*RULE_ALGORITHMS.values(), *POLICY_ALGORITHMS.values())
#: what a single child says is what it says alone
_SINGLE: Final = tuple(
    algorithm(name.replace(":rule-", f":{kind}-"), known)
    for kind, known in (("rule", RULE_ALGORITHMS), ("policy", POLICY_ALGORITHMS))
    for name in (
        f"{_V3}rule-combining-algorithm:deny-overrides",
        f"{_V3}rule-combining-algorithm:ordered-deny-overrides",
        f"{_V3}rule-combining-algorithm:permit-overrides",
        f"{_V3}rule-combining-algorithm:ordered-permit-overrides",
        f"{_V1}rule-combining-algorithm:first-applicable",
    )
)


def _by_place(combine: Algorithm) -> bool:
    """Say whether it matters which children there are besides those that are applicable; tuples may count those too."""
    return combine in _POSITIONAL or not any(combine is one for one in _KNOWN)


def _quick(combine: Algorithm) -> Algorithm:
    """Return an algorithm for which one child is no work: what a single one says is what all say."""
    if combine not in _SINGLE:
        return combine

    def quick(children: Sequence[_Unit], context: Context, /) -> Outcome:
        if not children:
            return NOT_APPLICABLE
        if len(children) == 1:
            return children[0].evaluate(context)
        return combine(children, context)

    return quick  # type: ignore[return-value]  # it is given units alone


def _needs_of_policy(policy: Policy, needs: Needs, children: Sequence[_Unit]) -> Needs:
    """Add what all rules need, where a policy whose rules are not applicable is not applicable itself."""
    if not children or rule_algorithm(policy.combining) not in _SINGLE:
        return needs
    common = set(children[0].needs).intersection(*(child.needs for child in children[1:]))
    found = dict(needs)
    for key in common:
        values = frozenset().union(*(child.needs[key] for child in children))
        found[key] = found[key] & values if key in found else values
    return found
