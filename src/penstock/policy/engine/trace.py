"""Evaluate a policy as `evaluate` does, and record what each element decided and which children decided.

The outcomes are those of the plain evaluator, whose functions are called: only the children that combining algorithms
receive are different ones, which record that they were evaluated.

Children decided if the combining algorithm gives the same decision when all other children are not applicable, and if
none of them can be left out. If no children are necessary, the algorithm decided by default: deny-unless-permit denies
if no child permits.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from penstock.errors import PenstockError
from penstock.policy.combining import Child, CombiningAlgorithm, policy_algorithm, rule_algorithm
from penstock.policy.engine.evaluate import (
    EvaluationScope,
    RuleChild,
    combined_children,
    evaluate,
    referenced,
    status_of,
    target_applies,
)
from penstock.policy.engine.lookup import Context
from penstock.policy.language.policies import Policy, PolicyReference, PolicySet, Root, Rule, versioned
from penstock.policy.language.results import NOT_APPLICABLE, PolicyOutcome, XacmlDecision

PolicyElement: TypeAlias = Rule | Policy | PolicySet | PolicyReference
"""A child of a policy or of a policy set; a reference only if it cannot be resolved or was not."""


@dataclass(frozen=True, slots=True)
class TracedElement:
    """A rule, a policy or a policy set, and its part in a decision."""

    element: PolicyElement
    #: the request and the variables that its expressions are evaluated with
    scope: EvaluationScope
    #: None if the combining algorithm did not need it
    outcome: PolicyOutcome | None
    #: whether its target matches, or the outcome if that is not known; None if the algorithm did not ask for it
    applies: bool | PolicyOutcome | None = None
    children: "tuple[TracedElement, ...]" = ()
    #: the positions of the children that decided
    deciding: tuple[int, ...] = ()

    @property
    def applicable(self) -> bool:
        """Whether it could have affected its combining algorithm's result."""
        decided = self.outcome is not None and self.outcome.decision is not XacmlDecision.NOT_APPLICABLE
        return decided or (self.applies is not None and self.applies is not False)


def trace(root: Root, context: Context) -> TracedElement:
    """Return the outcome of a policy or a policy set as `evaluate` does, with all that led to it."""
    context.policy = context.policy or partial(evaluate, root)
    child = _TracedChild(root, EvaluationScope(context), ())
    child.evaluate(context)
    return child.traced()


class _TracedChild:
    """A child that records how a combining algorithm uses it."""

    def __init__(self, element: PolicyElement, scope: EvaluationScope, around: tuple[str, ...]) -> None:
        self._element = element
        #: the scope of a rule is its policy's; others have their own
        self._scope = scope
        self._around = around
        self._outcome: PolicyOutcome | None = None
        self._applies: bool | PolicyOutcome | None = None
        self._children: Sequence[_TracedChild] = ()
        self._combine: CombiningAlgorithm | None = None

    def applies(self, context: Context, /) -> bool | PolicyOutcome:
        """Return whether its target matches, or the outcome if that is not known."""
        if isinstance(self._element, Rule):
            self._applies = RuleChild(self._element, self._scope).applies(context)
            return self._applies
        try:
            root = self._resolved()
        except PenstockError as error:
            self._applies = PolicyOutcome(XacmlDecision.INDETERMINATE_DP, status_of(error))
        else:
            self._applies = target_applies(root, self._scope)
        return self._applies

    def evaluate(self, context: Context, /) -> PolicyOutcome:
        """Return its outcome."""
        if isinstance(self._element, Rule):
            self._outcome = RuleChild(self._element, self._scope).evaluate(context)
            return self._outcome
        try:
            root = self._resolved()
        except PenstockError as error:
            self._outcome = PolicyOutcome(XacmlDecision.INDETERMINATE_DP, status_of(error))
            return self._outcome
        children: Sequence[_TracedChild]
        if isinstance(root, Policy):
            combine = rule_algorithm(root.combining)
            children = [_TracedChild(rule, self._scope, ()) for rule in root.rules]
        else:
            around = (*self._around, versioned(root))
            combine = policy_algorithm(root.combining)
            children = [_TracedChild(member, self._scope, around) for member in root.members]

        def recorded(those: Sequence[Child[Context]], context: Context, /) -> PolicyOutcome:
            # It is not called if the target does not match.
            self._children, self._combine = children, combine
            return combine(those, context)

        self._outcome = combined_children(root, self._scope, children, recorded)
        return self._outcome

    def _resolved(self) -> Root:
        """Return the policy or policy set, looked up once. Raises `PenstockError`."""
        context, element = self._scope.context, self._element
        if isinstance(element, Rule):
            raise TypeError("a rule contains no policies")
        root = referenced(element, context, self._around) if isinstance(element, PolicyReference) else element
        self._element = root
        self._scope = EvaluationScope(context, root.variables if isinstance(root, Policy) else {})
        return root

    def traced(self) -> TracedElement:
        """Return the record."""
        children = tuple(child.traced() for child in self._children)
        deciding = () if self._combine is None else _deciding(self._combine, children, self._scope.context)
        return TracedElement(self._element, self._scope, self._outcome, self._applies, children, deciding)


# ----------------------------------------------------------------------------------------------------------------------
# The children that decided.


@dataclass(frozen=True, slots=True)
class _Recorded:
    """A child with a recorded outcome, or one that is not applicable."""

    outcome: PolicyOutcome
    matches: bool | PolicyOutcome

    def evaluate(self, _context: Context, /) -> PolicyOutcome:
        return self.outcome

    def applies(self, _context: Context, /) -> bool | PolicyOutcome:
        return self.matches


_ABSENT = _Recorded(NOT_APPLICABLE, matches=False)


def _deciding(combine: CombiningAlgorithm, children: Sequence[TracedElement], context: Context) -> tuple[int, ...]:
    """Return the positions of the children that decided."""
    recorded: list[Child[Context]] = [
        _Recorded(one.outcome or NOT_APPLICABLE, matches=one.applicable if one.applies is None else one.applies)
        for one in children
    ]

    def decides(places: Sequence[int]) -> XacmlDecision:
        kept = frozenset(places)
        return combine([one if place in kept else _ABSENT for place, one in enumerate(recorded)], context).decision

    places = [place for place, one in enumerate(children) if one.applicable]
    wanted = decides(places)
    agreeing = [place for place in places if (outcome := children[place].outcome) and outcome.decision is wanted]
    # The usual cases first, which need few steps: the algorithm by default, one child, and those that agree.
    for few in ([], agreeing[:1]):
        if decides(few) is wanted:
            return tuple(few)
    left = agreeing if decides(agreeing) is wanted else [*agreeing, *(one for one in places if one not in agreeing)]
    for place in left[::-1]:
        fewer = [one for one in left if one != place]
        if decides(fewer) is wanted:
            left = fewer
    return tuple(sorted(left))
