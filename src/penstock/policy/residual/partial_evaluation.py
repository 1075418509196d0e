"""Partial evaluation: what is left of a policy where everything but the event is known.

What is left are selectors over the event's attributes: one matches an event if the policy permits the request
with that event in it, and only there. Denied, not applicable and not decided are all the same: not permitted. So who
may subscribe is asked once, and each event is asked no more than a comparison or two.

Selectors say less than policies do. What they have no words for is refused (`policy.residual-fragment`), and nothing is
approximated. An attribute that is null has no values, and sources are not asked for it. Where an event has NaN for a
number that is asked for, it is not permitted; where it has a value that its type does not allow, neither.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from typing import Final

from penstock.errors import PenstockError, RefusedError
from penstock.model.values import Kind, Schema
from penstock.policy.analysis.combining import algorithm
from penstock.policy.analysis.formulas import (
    EncodedChild,
    Outcomes,
    TruthFormula,
    always,
    both,
    contained,
    either,
    every,
    negated,
    ruled,
    some,
)
from penstock.policy.combining.algorithms import IN_DP, CombiningAlgorithm, P
from penstock.policy.combining.registry import StandardAlgorithm, policy_algorithm, rule_algorithm, standard
from penstock.policy.engine.lookup import NoSources, PolicySources
from penstock.policy.language.datatypes import DATE_TIME, Bag, Value
from penstock.policy.language.event_attributes import ENVIRONMENT_FACT, EVENT, EventNames, data_type_of
from penstock.policy.language.expressions import Expression
from penstock.policy.language.policies import (
    Duties,
    Duty,
    Policy,
    PolicyReference,
    PolicySet,
    Root,
    Rule,
    RuleEffect,
    versioned,
)
from penstock.policy.language.requests import ENVIRONMENT, RESOURCE, Facts, Key, key_of
from penstock.policy.language.results import Assigned, Obligation, PolicyId, PolicyOutcome, XacmlDecision
from penstock.policy.limits import RESIDUAL_CASES
from penstock.policy.residual.conditions import EventUnknown, Knowledge, ResidualEncoder, Variables
from penstock.policy.residual.formulas import Assumptions, Formula, Variable, apart, simplified, too_large
from penstock.policy.residual.selector import UnsaidError, selector_of
from penstock.selector import ALWAYS, Selector

# ----------------------------------------------------------------------------------------------------------------------
# Policies and policy sets as formulas over an event: when each says what, and obligations and advice where it permits.


@dataclass(frozen=True, slots=True)
class Due:
    """An obligation or an advice, when it accompanies a permit, and its content if that is known."""

    when: Formula
    obligation: bool
    told: Obligation | None


@dataclass(frozen=True, slots=True)
class ResidualPart:
    """A rule, a policy or a policy set: when it says what, and obligations and advice where it permits."""

    child: EncodedChild
    dues: tuple[Due, ...] = ()
    policies: tuple[PolicyId, ...] = ()


_NOTHING: Final = ResidualPart(EncodedChild(always(XacmlDecision.NOT_APPLICABLE), TruthFormula(False, True)))
_BROKEN: Final = ResidualPart(EncodedChild(always(IN_DP), TruthFormula(False, False)))


class ResidualPolicies:
    """Policies as formulas over the event."""

    def __init__(self, encoder: ResidualEncoder) -> None:
        self._encoder = encoder
        self._around: list[str] = []

    def container(self, root: Root, around: tuple[str, ...]) -> ResidualPart:
        """Return what a policy or a policy set says (section 7.12 to 7.14)."""
        with self.within(root):
            variables = root.variables if isinstance(root, Policy) else {}
            applies = self._encoder.target(root.target)
            if applies.fails is True:
                return _NOTHING
            parts = [*self._parts(root, around)]
            said, gathered = self._combined(root, parts)
            told = {effect: self._fine(root.duties, effect, variables) for effect in RuleEffect}
            child = contained(applies, said, told)
            if child.says[P] is False:
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
            return ResidualPart(child, tuple(self._dues(rule.duties, variables)) if child.says[P] is not False else ())

    # --- combining ----------------------------------------------------------------------------------------------

    def _combined(self, root: Root, parts: Sequence[ResidualPart]) -> tuple[Outcomes, list[Formula]]:
        """Return what parts say together, and when each one's obligations accompany a permit (section 7.18)."""
        children = [part.child for part in parts]
        combine, known = algorithm(root.combining), standard(root.combining)
        if combine is None or known is None:
            named = rule_algorithm if isinstance(root, Policy) else policy_algorithm
            return _by_cases(named(root.combining), children)
        return combine(children), _told_with(known, [child.says[P] for child in children])

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
                if duty.on is RuleEffect.PERMIT:
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


def _told_with(known: StandardAlgorithm, permits: Sequence[Formula]) -> list[Formula]:
    """Return when what each child has to do goes with a permission that an algorithm of the standard gives."""
    if known.by_place and len(permits) in (2, 3):
        return [False, permits[0], negated(permits[0])][: len(permits)]
    found: list[Formula] = []
    before: Formula = False
    for one in permits:
        found.append(both(one, negated(before)))
        if P in known.decisive:
            # Once one permits it asks no more: what has to be done is what that one says.
            before = some([before, one])
    return found


class _Fixed:
    """A child with a given decision, which leaves a mark with it."""

    def __init__(self, place: int, decision: XacmlDecision) -> None:
        self._outcome = PolicyOutcome(decision, obligations=(Obligation(str(place)),))

    def evaluate(self, _context: None, /) -> PolicyOutcome:
        return self._outcome

    def applies(self, _context: None, /) -> bool | PolicyOutcome:
        raise UnsaidError("a combining algorithm that asks for targets")


def _by_cases(combine: CombiningAlgorithm, children: Sequence[EncodedChild]) -> tuple[Outcomes, list[Formula]]:
    """Combine by an algorithm that is not of the standard: once for all decisions that may come together."""
    possible = [[decision for decision in XacmlDecision if child.says[decision] is not False] for child in children]
    said: dict[XacmlDecision, list[Formula]] = {decision: [] for decision in XacmlDecision}
    told: list[list[Formula]] = [[] for _ in children]
    for number, decisions in enumerate(product(*possible)):
        if number >= RESIDUAL_CASES:
            raise UnsaidError("a combining algorithm of its own, for so many policies that ask for the event")
        outcome = combine([_Fixed(place, decision) for place, decision in enumerate(decisions)], None)
        when = every(child.says[decision] for child, decision in zip(children, decisions, strict=True))
        said[outcome.decision].append(when)
        for mark in outcome.obligations if outcome.decision is P else ():
            told[int(mark.id)].append(when)
    return {decision: some(those) for decision, those in said.items()}, [some(those) for those in told]


# ----------------------------------------------------------------------------------------------------------------------
# Partial evaluation: what is left of a policy where everything but the event is known.


_CLOCK: Final = "urn:oasis:names:tc:xacml:1.0:environment:current-dateTime"


@dataclass(frozen=True, slots=True)
class PermitCase:
    """Events that are permitted, the moments at which they are, and what has to be done, and may be, with each."""

    where: Selector
    when: Selector = ALWAYS
    obligations: tuple[Obligation, ...] = ()
    advice: tuple[Obligation, ...] = ()


@dataclass(frozen=True, slots=True)
class Residual:
    """What is left of a policy: any of its cases permits. Without one, nothing is permitted.

    Obligations that depend on the event make cases of their own. `policies` are those that can permit, and `asked` is
    what is known of the request that was asked for: where none of that changes, neither does what is left.
    """

    cases: tuple[PermitCase, ...]
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
) -> Residual:
    """Return what is left of a policy, given all that is known but the event, whose attributes have these names.

    With `environment`, what brokers know of the moment becomes a condition, current-dateTime included. `asked` gathers
    what is asked for, also where that ends in a refusal. Raises `RefusedError`: `policy.residual-fragment` for what
    selectors cannot say, `policy.residual-limit`.
    """
    unknown = {**_of_event(names), **_of_moment(environment or {})}
    knowledge = Knowledge(known, unknown, sources or NoSources(), asked)
    encoder = ResidualEncoder(knowledge)
    policies = ResidualPolicies(encoder)
    part = policies.container(root, ())
    with policies.within(root):
        cases = tuple(_cases(encoder, part))
    return Residual(cases, tuple(dict.fromkeys(part.policies)), frozenset(knowledge.asked))


def _of_event(names: EventNames) -> dict[Key, EventUnknown]:
    return {
        key_of(RESOURCE, f"{EVENT}{name}", data_type_of(one.spec.kind)): EventUnknown(
            Variable(str(one.id), one.spec.kind), one.spec
        )
        for name, one in names.attributes.items()
    }


def _of_moment(environment: Schema) -> dict[Key, EventUnknown]:
    found = {
        key_of(ENVIRONMENT, f"{ENVIRONMENT_FACT}{name}", data_type_of(spec.kind)): EventUnknown(
            Variable(name, spec.kind, of_moment=True), spec
        )
        for name, spec in environment.items()
    }
    time = environment.get("time")
    if time is not None and time.kind is Kind.TIMESTAMP:
        # Whoever enforces a condition knows what time it is.
        moment = EventUnknown(Variable("time", time.kind, of_moment=True, certain=True), time)
        found[key_of(ENVIRONMENT, _CLOCK, DATE_TIME)] = moment
        found[key_of(ENVIRONMENT, f"{ENVIRONMENT_FACT}time", DATE_TIME)] = moment
    return found


# --- cases -----------------------------------------------------------------------------------------------------------


def _cases(encoder: ResidualEncoder, part: ResidualPart) -> Iterator[PermitCase]:
    """Yield what is permitted, apart by what has to be done and by when. Raises `UnsaidError`."""
    permitted = _permitted(encoder, part.child.says[P])
    duties = [due for due in part.dues if due.obligation]
    for formula, obligations in _by_obligations(permitted, duties):
        advice = tuple(
            due.told for due in part.dues if not due.obligation and due.told is not None and _surely(formula, due.when)
        )
        by_moment: dict[Formula, list[Formula]] = {}
        for event, moment in apart(formula, RESIDUAL_CASES):
            by_moment.setdefault(moment, []).append(event)
        for moment, events in by_moment.items():
            where, when = _short(some(events)), _short(moment)
            if where is not False and when is not False:
                yield PermitCase(selector_of(where), selector_of(when), obligations, advice)


def _permitted(encoder: ResidualEncoder, formula: Formula) -> Formula:
    """Return when there is permission, and values that were tried are such that the type of the event allows them."""
    found = _short(formula)
    for variable, having in encoder.allowed.items():
        there = encoder.graph.present(variable)
        others = both(there, *map(negated, having))
        if _short(both(found, others)) is not False:
            found = _short(both(found, either(negated(there), *having)))
    return found


def _by_obligations(permitted: Formula, dues: Sequence[Due]) -> list[tuple[Formula, tuple[Obligation, ...]]]:
    """Return what is permitted, apart by what has to be done. Raises `UnsaidError`, `RefusedError`."""
    found: list[tuple[Formula, tuple[Obligation, ...]]] = [] if permitted is False else [(permitted, ())]
    for due in dues:
        further: list[tuple[Formula, tuple[Obligation, ...]]] = []
        for formula, told in found:
            with_it, without = _short(both(formula, due.when)), _short(both(formula, negated(due.when)))
            if with_it is not False:
                if due.told is None:
                    raise UnsaidError("an obligation that tells of the event")
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
