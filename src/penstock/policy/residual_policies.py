"""Policies and policy sets as formulas over an event: when each says what, and what is to be done where it permits."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from typing import Final

from penstock.errors import PenstockError, RefusedError
from penstock.model.limits import DEFAULT_LIMITS
from penstock.policy.analysis_combine import algorithm
from penstock.policy.combine import IN_DP, Algorithm, P
from penstock.policy.combining import policy_algorithm, rule_algorithm
from penstock.policy.datatypes import Value
from penstock.policy.expressions import Expression
from penstock.policy.formulas import Child, Outcomes, Truth, always, both, contained, every, negated, ruled, some
from penstock.policy.policies import Duties, Duty, Effect, Policy, PolicyReference, PolicySet, Root, Rule, versioned
from penstock.policy.residual_encode import Encoder
from penstock.policy.residual_formulas import Formula
from penstock.policy.residual_known import Variables
from penstock.policy.residual_selector import UnsaidError
from penstock.policy.results import Assigned, Decision, Outcome, PolicyId, Told
from penstock.policy.signatures import Bag

#: algorithms that ask no more once one permits: what has to be done is what that one says
_UP_TO_FIRST: Final = ("permit-overrides", "deny-unless-permit", "first-applicable")
_BY_PLACE: Final = "on-permit-apply-second"


@dataclass(frozen=True, slots=True)
class Due:
    """An obligation or an advice, when it is told with a permission, and what it says, where that is known."""

    when: Formula
    obligation: bool
    told: Told | None


@dataclass(frozen=True, slots=True)
class Part:
    """A rule, a policy or a policy set: when it says what, and what is to be done where it permits."""

    child: Child
    dues: tuple[Due, ...] = ()
    policies: tuple[PolicyId, ...] = ()


_NOTHING: Final = Part(Child(always(Decision.NOT_APPLICABLE), Truth(False, True)))
_BROKEN: Final = Part(Child(always(IN_DP), Truth(False, False)))


class Policies:
    """Policies as formulas over the event."""

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder
        self._around: list[str] = []

    def container(self, root: Root, around: tuple[str, ...]) -> Part:
        """Return what a policy or a policy set says (section 7.12 to 7.14)."""
        with self.within(root):
            variables = root.variables if isinstance(root, Policy) else {}
            applies = self._encoder.target(root.target)
            if applies.fails is True:
                return _NOTHING
            parts = [*self._parts(root, around)]
            said, gathered = self._combined(root, parts)
            told = {effect: self._fine(root.duties, effect, variables) for effect in Effect}
            child = contained(applies, said, told)
            if child.says[P] is False:
                return Part(child)
            inner = [
                Due(both(when, due.when), due.obligation, due.told)
                for when, part in zip(gathered, parts, strict=True)
                for due in part.dues
            ]
            name = PolicyId(root.id, root.version, isinstance(root, PolicySet))
            policies = (*(one for part in parts for one in part.policies), name)
            return Part(child, (*inner, *self._dues(root.duties, variables)), policies)

    def _parts(self, root: Root, around: tuple[str, ...]) -> Iterator[Part]:
        if isinstance(root, Policy):
            yield from (self._rule(rule, root.variables) for rule in root.rules)
            return
        for member in root.members:
            if isinstance(member, PolicyReference):
                yield self._referred(member, (*around, versioned(root)))
            else:
                yield self.container(member, (*around, versioned(root)))

    def _referred(self, reference: PolicyReference, around: tuple[str, ...]) -> Part:
        try:
            found = self._encoder.knowledge.sources.policy(reference)
        except PenstockError:
            return _BROKEN
        if reference.to_set and versioned(found) in around:
            return _BROKEN
        return self.container(found, around)

    def _rule(self, rule: Rule, variables: Variables) -> Part:
        with self.within(rule):
            applies = self._encoder.target(rule.target)
            if applies.fails is True:
                return _NOTHING
            condition = Truth(True, False) if rule.condition is None else self._encoder.truth(rule.condition, variables)
            child = ruled(rule.effect, applies, condition, self._fine(rule.duties, rule.effect, variables))
            return Part(child, tuple(self._dues(rule.duties, variables)) if child.says[P] is not False else ())

    # --- combining ----------------------------------------------------------------------------------------------

    def _combined(self, root: Root, parts: Sequence[Part]) -> tuple[Outcomes, list[Formula]]:
        """Return what parts say together, and when what each has to do is told with a permission (section 7.18)."""
        children = [part.child for part in parts]
        combine = algorithm(root.combining)
        if combine is None:
            named = rule_algorithm if isinstance(root, Policy) else policy_algorithm
            return _by_cases(named(root.combining), children)
        short = root.combining.rpartition(":")[2].removeprefix("ordered-")
        return combine(children), _told_with(short, [child.says[P] for child in children])

    # --- obligations and advice ---------------------------------------------------------------------------------

    def _fine(self, duties: Duties, effect: Effect, variables: Variables) -> Formula:
        """Return when obligations and advice can be told."""
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
                if duty.on is Effect.PERMIT:
                    yield Due(True, obligation, self._told(duty, variables))

    def _told(self, duty: Duty, variables: Variables) -> Told | None:
        assigned: list[Assigned] = []
        for one in duty.assignments:
            values = self._values(one.expression, variables)
            if values is None:
                return None
            kind = one.expression.gives
            of_type = kind.of if isinstance(kind, Bag) else kind
            assigned += [Assigned(one.id, of_type, value, one.category, one.issuer) for value in values]
        return Told(duty.id, tuple(assigned))

    def _values(self, expression: Expression, variables: Variables) -> tuple[Value, ...] | None:
        knowledge = self._encoder.knowledge
        return None if knowledge.missing(expression, variables) else knowledge.values(expression, variables)

    # --- what is not understood ---------------------------------------------------------------------------------

    @contextmanager
    def within(self, element: Rule | Root) -> Iterator[None]:
        """Say where something stands that cannot be said. Raises `RefusedError` (`policy.residual-fragment`)."""
        kind = "policy set" if isinstance(element, PolicySet) else "policy" if isinstance(element, Policy) else "rule"
        self._around.append(f"{kind} `{element.id[:120]}`")
        try:
            yield
        except UnsaidError as error:
            place = " of ".join(reversed(self._around))
            raise RefusedError(
                "policy.residual-fragment",
                f"{place}: {error} cannot be said of events beforehand",
                hint="compare attributes of the event with values, or have the policy enforced event by event",
                construct=str(error),
                element=place,
            ) from None
        finally:
            self._around.pop()


# --- combining -------------------------------------------------------------------------------------------------------


def _told_with(short: str, permits: Sequence[Formula]) -> list[Formula]:
    """Return when what each child has to do goes with a permission that an algorithm of the standard gives."""
    if short == _BY_PLACE and len(permits) in (2, 3):
        return [False, permits[0], negated(permits[0])][: len(permits)]
    found: list[Formula] = []
    before: Formula = False
    for one in permits:
        found.append(both(one, negated(before)))
        if short in _UP_TO_FIRST:
            before = some([before, one])
    return found


class _Fixed:
    """A child that says what it is told to, and leaves a mark with it."""

    def __init__(self, place: int, decision: Decision) -> None:
        self._outcome = Outcome(decision, obligations=(Told(str(place)),))

    def evaluate(self, _context: None, /) -> Outcome:
        return self._outcome

    def applies(self, _context: None, /) -> bool | Outcome:
        raise UnsaidError("a combining algorithm that asks for targets")


def _by_cases(combine: Algorithm, children: Sequence[Child]) -> tuple[Outcomes, list[Formula]]:
    """Combine by an algorithm that is not of the standard: once for all decisions that may come together."""
    possible = [[decision for decision in Decision if child.says[decision] is not False] for child in children]
    said: dict[Decision, list[Formula]] = {decision: [] for decision in Decision}
    told: list[list[Formula]] = [[] for _ in children]
    for number, decisions in enumerate(product(*possible)):
        if number >= DEFAULT_LIMITS.residual_cases:
            raise UnsaidError("a combining algorithm of its own, for so many policies that ask for the event")
        outcome = combine([_Fixed(place, decision) for place, decision in enumerate(decisions)], None)
        when = every(child.says[decision] for child, decision in zip(children, decisions, strict=True))
        said[outcome.decision].append(when)
        for mark in outcome.obligations if outcome.decision is P else ():
            told[int(mark.id)].append(when)
    return {decision: some(those) for decision, those in said.items()}, [some(those) for those in told]
