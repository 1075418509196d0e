"""Explain one decision: what decided, which values were seen, what did not apply, and what would change the decision.

`explain` evaluates a request with `trace`, whose outcomes are the engine's. `counterfactuals` finds the smallest
changes of the request that lead to another decision.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from penstock.errors import EvaluationError, MalformedError, PenstockError
from penstock.policy.analysis.questions import placed_rules, resolved
from penstock.policy.combining import split_priorities, standard
from penstock.policy.engine.decide import single_requests
from penstock.policy.engine.evaluate import EvaluationScope, evaluate, status_of, target_matches
from penstock.policy.engine.lookup import Context, NoSources, PolicySources
from penstock.policy.engine.trace import PolicyElement, TracedElement, trace
from penstock.policy.language.functions import V1
from penstock.policy.language.policies import (
    AnyOf,
    Apply,
    ContentSelector,
    Designator,
    Expression,
    Policy,
    PolicyReference,
    PolicySet,
    Reference,
    Root,
    Rule,
    check_issuers,
)
from penstock.policy.language.requests import Key, Request, key_of
from penstock.policy.language.results import MissingAttribute, Obligation, PolicyOutcome, XacmlDecision
from penstock.policy.syntax.text.policies import written_combining
from penstock.policy.syntax.text.policy_writer import PolicyTextWriter, inner
from penstock.policy.syntax.text.tokens import quoted
from penstock.selector.analysis import AnalysisVerdict
from penstock.selector.limits import SELECTOR_LIMITS, SelectorLimits

if TYPE_CHECKING:
    from penstock.policy.analysis.counterfactuals import CounterfactualSearch

#: requests in one request that are explained, elements that did not decide, and rules of a policy that is searched
MOST_EXPLAINED: Final = 10
MOST_OTHERS: Final = 10
_MOST_RULES: Final = 1_000
#: values of an attribute, characters of a value and of a part of a policy
_VALUES: Final = 8
_LONG_VALUE: Final = 80
_LONG_TEXT: Final = 300
_AND: Final = f"{V1}and"


# ----------------------------------------------------------------------------------------------------------------------
# The explanation.


@dataclass(frozen=True, slots=True)
class SeenValues:
    """An attribute, by its name in the policy, and its values; none if the request does not have it."""

    name: str
    values: tuple[str, ...]
    #: the number of further values
    more: int = 0

    def __str__(self) -> str:
        more = (f"and {self.more} more",) if self.more else ()
        return f"{self.name} = {', '.join((*self.values, *more))}" if self.values else f"{self.name} is missing"


@dataclass(frozen=True, slots=True)
class ExplainedTest:
    """A clause of a target or a part of a condition, whether it is true, and the values it saw."""

    text: str
    #: None if it could not be evaluated
    holds: bool | None
    values: tuple[SeenValues, ...] = ()
    #: why it could not be evaluated
    error: str = ""

    def as_dict(self) -> dict[str, object]:
        """Return it as plain data."""
        seen = {one.name: [*one.values] for one in self.values}
        return {"test": self.text, "holds": self.holds, "values": seen, **({"error": self.error} if self.error else {})}


@dataclass(frozen=True, slots=True)
class ExplainedElement:
    """A rule, a policy or a policy set, and its part in the decision."""

    #: "rule", "policy", "policy set" or "reference"
    kind: str
    #: the ids of the enclosing policies, outermost first, and its own
    place: tuple[str, ...]
    #: None if it was not evaluated, because the decision did not depend on it any more
    decision: XacmlDecision | None
    #: the combining algorithm of a policy or a policy set
    combining: str = ""
    #: what it tested, as far as that explains its decision
    tests: tuple[ExplainedTest, ...] = ()
    #: why it decided, if no test and no child explains it
    note: str = ""
    #: the children that decided
    children: "tuple[ExplainedElement, ...]" = ()

    @property
    def id(self) -> str:
        """Its id."""
        return self.place[-1]

    def as_dict(self) -> dict[str, object]:
        """Return it as plain data."""
        found: dict[str, object] = {
            "kind": self.kind,
            "place": [*self.place],
            "decision": None if self.decision is None else self.decision.value,
            "combining": self.combining,
            "tests": [one.as_dict() for one in self.tests],
            "note": self.note,
            "decided_by": [one.as_dict() for one in self.children],
        }
        return {name: value for name, value in found.items() if value not in ("", []) or name == "place"}


@dataclass(frozen=True, slots=True)
class DecisionExplanation:
    """The explanation of one decision."""

    request: Request
    outcome: PolicyOutcome
    #: the deciding policies and rules, as a tree; None if the request could not be evaluated at all
    path: ExplainedElement | None = None
    #: elements that did not decide: not applicable, overridden or not evaluated
    others: tuple[ExplainedElement, ...] = ()
    #: the number of further ones
    left_out: int = 0
    #: the smallest changes that lead to Permit, or away from it; None if they were not searched for
    changes: "CounterfactualSearch | None" = None
    #: the names of attributes
    names: Mapping[Key, str] = field(default_factory=dict)

    def change_texts(self) -> Iterator[tuple[str, str]]:
        """Yield the changed attributes of each counterfactual, in words, and the decision that they lead to."""
        for one in () if self.changes is None else self.changes.found:
            texts = [change.text(self.names[change.key]) for change in one.changes]
            several = len(texts) > 1
            yield (
                " and ".join(f"({text})" if several and " or " in text else text for text in texts),
                one.decision.value,
            )

    def as_dict(self) -> dict[str, object]:
        """Return it as plain data."""
        status = self.outcome.status
        return {
            "decision": self.outcome.decision.value,
            "status": {
                "code": status.code,
                "message": status.message,
                "missing": [
                    {"category": one.category, "id": one.id, "type": one.of.id, "name": self.name_of(one)}
                    for one in status.missing
                ],
            },
            "obligations": [_duty_data(one) for one in self.outcome.obligations],
            "advice": [_duty_data(one) for one in self.outcome.advice],
            "path": None if self.path is None else self.path.as_dict(),
            "others": [one.as_dict() for one in self.others],
            "left_out": self.left_out,
            "changes": None if self.changes is None else self._changes_data(self.changes),
        }

    def name_of(self, missing: MissingAttribute) -> str:
        """Return the name of a missing attribute."""
        return self.names.get(key_of(missing.category, missing.id, missing.of), missing.id)

    def _changes_data(self, changes: "CounterfactualSearch") -> dict[str, object]:
        return {
            "verdict": changes.verdict.value,
            "certain": changes.certain,
            "most_attributes": changes.most,
            "unknown": [*changes.unknown],
            "reason": changes.reason,
            "found": [
                {
                    "text": text,
                    "decision": decision,
                    "attributes": [
                        {
                            "name": self.names[one.key],
                            "category": one.key.category,
                            "id": one.key.id,
                            "type": one.key.of.id,
                            "before": [one.key.of.write(value) for value in one.before],
                            "values": [one.key.of.write(value) for value in one.values],
                            "added": one.added,
                        }
                        for one in found.changes
                    ],
                }
                for found, (text, decision) in zip(changes.found, self.change_texts(), strict=True)
            ],
        }


def _duty_data(duty: Obligation) -> dict[str, object]:
    return {"id": duty.id, "attributes": [{"id": one.id, "value": one.of.write(one.value)} for one in duty.assigned]}


def explain(  # noqa: PLR0913  # named settings, each with a default
    root: Root,
    request: Request,
    now: datetime,
    sources: PolicySources | None = None,
    *,
    names: Mapping[Key, str] = MappingProxyType({}),
    most: int | None = MOST_OTHERS,
    changes: bool = True,
    limits: SelectorLimits = SELECTOR_LIMITS,
) -> Iterator[DecisionExplanation]:
    """Yield an explanation of each decision on a request, which asks for one decision or for several.

    `names` are the policy's names of attributes, `most` is the number of elements that did not decide and are listed,
    and `changes` says whether to search for counterfactuals. Raises `MalformedError` (`xacml.issuer`).
    """
    check_issuers(root)
    known = sources or NoSources()
    try:
        for one in single_requests(request, known):
            yield _Explainer(root, one, now, known, names).explanation(most, limits if changes else None)
    except PenstockError as error:
        yield DecisionExplanation(request, PolicyOutcome(XacmlDecision.INDETERMINATE_DP, status_of(error)))


class _Explainer:
    """Explains the decision on one request."""

    def __init__(
        self, root: Root, request: Request, now: datetime, sources: PolicySources, names: Mapping[Key, str]
    ) -> None:
        self._context = Context(request, now, sources)
        self._root = root
        self._traced = trace(root, self._context)
        self._unresolved = ""
        try:
            self._whole = resolved(root, sources)
        except MalformedError as error:
            self._whole, self._unresolved = root, error.message
        self._writer = PolicyTextWriter([self._whole, *_containers(self._traced)], names)

    def explanation(self, most: int | None, limits: SelectorLimits | None) -> DecisionExplanation:
        """Return the explanation, with counterfactuals if there are limits on the search."""
        outcome = self._traced.outcome
        if outcome is None:
            raise TypeError("a policy that was traced has an outcome")
        others = self._others(self._traced, (), deciding=True)
        listed = tuple(islice(others, most))
        return DecisionExplanation(
            self._context.request,
            outcome,
            self._decided(self._traced, ()),
            listed,
            sum(1 for _ in others),
            None if limits is None else self._changes(outcome.decision, limits),
            self._writer.names,
        )

    # --- counterfactuals ----------------------------------------------------------------------------------------

    def _changes(self, decision: XacmlDecision, limits: SelectorLimits) -> "CounterfactualSearch":
        # Importing z3 takes a third of a second, which programs that do not use it should not spend.
        from penstock.policy.analysis import counterfactuals  # noqa: PLC0415

        reason = self._unresolved
        if sum(1 for _ in islice(placed_rules(self._whole), _MOST_RULES + 1)) > _MOST_RULES:
            reason = f"the policy has more than {_MOST_RULES} rules"
        if reason:
            return counterfactuals.CounterfactualSearch(AnalysisVerdict.UNKNOWN, certain=False, reason=reason)
        wanted = frozenset({XacmlDecision.PERMIT})
        if decision is XacmlDecision.PERMIT:
            wanted = frozenset({XacmlDecision.DENY, XacmlDecision.NOT_APPLICABLE})
        root = self._root
        finder = counterfactuals.CounterfactualFinder(
            self._whole, lambda context: evaluate(root, context), self._context, limits
        )
        return finder.find(wanted)

    # --- elements -----------------------------------------------------------------------------------------------

    def _decided(self, traced: TracedElement, within: tuple[str, ...]) -> ExplainedElement:
        """Explain an element by all its tests, and by the children that decided."""
        element = traced.element
        place = (*within, element.id)
        return ExplainedElement(
            _kind(element),
            place,
            None if traced.outcome is None else traced.outcome.decision,
            _combining(element),
            tuple(self._tests(traced)),
            self._note(traced),
            tuple(self._decided(traced.children[one], place) for one in traced.deciding),
        )

    def _others(self, traced: TracedElement, within: tuple[str, ...], *, deciding: bool) -> Iterator[ExplainedElement]:
        """Yield the elements that did not decide, and of those that decided nothing by a child also the children."""
        place = (*within, traced.element.id)
        if not deciding and not self._passes_on(traced):
            yield self._other(traced, place)
            if traced.deciding:
                return
        for number, child in enumerate(traced.children):
            yield from self._others(child, place, deciding=number in traced.deciding)

    def _passes_on(self, traced: TracedElement) -> bool:
        """Return whether an element is not applicable because no child is."""
        outcome = traced.outcome
        return outcome is not None and outcome.decision is XacmlDecision.NOT_APPLICABLE and bool(traced.children)

    def _other(self, traced: TracedElement, place: tuple[str, ...]) -> ExplainedElement:
        element, outcome = traced.element, traced.outcome
        tests = self._tests(traced) if outcome is not None or traced.applies is False else ()
        failed = tuple(islice((one for one in tests if one.holds is not True), 1))
        decision = None if outcome is None else outcome.decision
        if decision is None and traced.applies is False:
            decision = XacmlDecision.NOT_APPLICABLE
        note = "" if failed else self._note(traced)
        return ExplainedElement(_kind(element), place, decision, _combining(element), failed, note)

    def _note(self, traced: TracedElement) -> str:
        element, outcome = traced.element, traced.outcome
        if outcome is None:
            if isinstance(traced.applies, PolicyOutcome):
                return traced.applies.status.message
            return "its target matches" if traced.applies else ""
        if outcome.decision.indeterminate:
            return outcome.status.message
        if isinstance(element, Rule | PolicyReference) or traced.deciding:
            return ""
        if outcome.decision is not XacmlDecision.NOT_APPLICABLE:
            return f"{_combining(element)} decides so if no {_child_word(element)} decides otherwise"
        return f"no {_child_word(element)} applies" if self._target_matches(traced) else ""

    def _target_matches(self, traced: TracedElement) -> bool:
        return all(one.holds is True for one in self._tests(traced))

    # --- targets and conditions ---------------------------------------------------------------------------------

    def _tests(self, traced: TracedElement) -> Iterator[ExplainedTest]:
        """Yield the clauses of an element's target, and the parts of its condition up to the first that is not true."""
        element, scope = traced.element, traced.scope
        if isinstance(element, PolicyReference):
            return
        for any_of in element.target:
            test = self._clause(any_of, scope)
            yield test
            if test.holds is False:
                return
        if isinstance(element, Rule) and element.condition is not None:
            for part in _conjuncts(element.condition, scope):
                test = self._condition(part, scope)
                yield test
                if test.holds is not True:
                    return

    def _clause(self, any_of: AnyOf, scope: EvaluationScope) -> ExplainedTest:
        for all_of in any_of:
            try:
                if len(any_of) > 1 and target_matches(((all_of,),), scope):
                    # One alternative is enough.
                    return self._clause((all_of,), scope)
            except EvaluationError:
                continue
        try:
            holds, error = target_matches((any_of,), scope), ""
        except EvaluationError as failed:
            holds, error = None, failed.message
        used = [match.attribute for all_of in any_of for match in all_of]
        return ExplainedTest(_short(self._writer.clause(any_of), _LONG_TEXT), holds, self._seen(used, scope), error)

    def _condition(self, part: Expression, scope: EvaluationScope) -> ExplainedTest:
        try:
            holds, error = bool(scope.value(part)), ""
        except EvaluationError as failed:
            holds, error = None, failed.message
        return ExplainedTest(_short(self._writer.condition(part), _LONG_TEXT), holds, self._seen([part], scope), error)

    def _seen(self, expressions: Sequence[Expression], scope: EvaluationScope) -> tuple[SeenValues, ...]:
        """Return the values of the attributes in expressions, each once."""
        used = [one for one in _inner(expressions, scope) if isinstance(one, Designator | ContentSelector)]
        found = {}
        for one in used:
            name = self._writer.names[one.key] if isinstance(one, Designator) else one.path
            if name not in found:
                found[name] = _seen_values(name, one, scope.context)
        return tuple(found.values())


def _seen_values(name: str, wanted: Designator | ContentSelector, context: Context) -> SeenValues:
    try:
        values = context.bag(wanted) if isinstance(wanted, Designator) else context.selected(wanted)
    except EvaluationError:
        values = ()
    texts = (wanted.of.write(value) for value in values[:_VALUES])
    quotes = wanted.of.name in ("string", "anyURI")
    shown = tuple(quoted(_short(text, _LONG_VALUE)) if quotes else _short(text, _LONG_VALUE) for text in texts)
    return SeenValues(name, shown, max(0, len(values) - _VALUES))


def _inner(expressions: Sequence[Expression], scope: EvaluationScope) -> Iterator[Expression]:
    """Yield expressions and all within them, and within the variables that they use."""
    known: set[str] = set()
    for one in inner(expressions):
        yield one
        if isinstance(one, Reference) and one.id not in known:
            known.add(one.id)
            yield from _inner([scope.variables[one.id]], scope)


def _conjuncts(condition: Expression, scope: EvaluationScope) -> Iterator[Expression]:
    """Yield the parts that must all be true, in the order in which they are evaluated."""
    match condition:
        case Reference(name):
            yield from _conjuncts(scope.variables[name], scope)
        case Apply(function, arguments) if function.id == _AND and arguments:
            for one in arguments:
                yield from _conjuncts(one, scope)
        case _:
            yield condition


def _containers(traced: TracedElement) -> Iterator[Root]:
    if isinstance(traced.element, Policy | PolicySet):
        yield traced.element
        for child in traced.children:
            yield from _containers(child)


def _kind(element: PolicyElement) -> str:
    match element:
        case Rule():
            return "rule"
        case Policy():
            return "policy"
        case PolicySet():
            return "policy set"
        case PolicyReference():
            return "reference"


def _child_word(element: Root) -> str:
    return "rule" if isinstance(element, Policy) else "policy"


def _combining(element: PolicyElement) -> str:
    if isinstance(element, Rule | PolicyReference):
        return ""
    known = standard(split_priorities(element.combining)[1])
    text = written_combining(element)
    return known.name if known is not None and text.startswith('"') else text


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
