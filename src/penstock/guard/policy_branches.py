"""Turn policies into branches: by selectors if that is possible, and otherwise by a guard.

A guard asks the policy about each event that comes, and the moment at which it does. Only a local broker can do that: a
question about all times, which a job on Spark asks, is then not answered, and that is a refusal.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import reduce
from itertools import combinations
from typing import Final

from penstock.errors import EvaluationError, RefusedError
from penstock.guard.decision import DecisionProblem, EventRequest, Ruling
from penstock.guard.enforce import OwnGuard
from penstock.guard.limits import BROKER_VIEWS
from penstock.guard.policy_subjects import SubjectFacts
from penstock.guard.residuals import Residuals
from penstock.guard.restriction import Branch
from penstock.model.types import Attribute
from penstock.model.values import Scalar, Schema
from penstock.policy.engine.compiler import CompiledPolicy
from penstock.policy.engine.lookup import PolicySources
from penstock.policy.language.event_attributes import ATTRIBUTE_ID, ATTRIBUTE_NAME, EVENT, EventNames, environment_facts
from penstock.policy.language.expressions import Designator
from penstock.policy.language.policies import Root
from penstock.policy.language.requests import ENVIRONMENT, Facts
from penstock.policy.language.requests import Request as PolicyRequest
from penstock.policy.language.results import PolicyOutcome, XacmlDecision
from penstock.selector import conjunction
from penstock.trust.capabilities import Right

RECORD: Final = "urn:penstock:obligation:record"
"""The obligation to write a decision down, which is met wherever something is decided before anybody has an answer."""

ALL: Final = "urn:penstock:policies"
"""What policies are called that stand around those that were given."""

UNDERSTOOD: Final = frozenset({RECORD})
#: of the ids that an error names
_LONGEST: Final = 400
_ANY_TIME: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class PolicyGuard:
    """Asks a policy about each event: a guard. What cannot be decided raises, which refuses."""

    policy: CompiledPolicy
    known: Facts
    names: EventNames

    def __call__(self, values: Mapping[str, Scalar], environment: Mapping[str, Scalar]) -> bool:
        """Say whether the policy permits an event. Raises `EvaluationError` (`policies.indeterminate`)."""
        now = environment.get("time")
        if not isinstance(now, datetime):
            return False
        facts = {**self.known, **self.names.facts(values), **environment_facts(environment)}
        outcome = self.policy.ask(facts, now)
        if outcome.decision.indeterminate:
            raise EvaluationError("policies.indeterminate", "policies could not be decided about an event")
        return outcome.decision is XacmlDecision.PERMIT and not _unmet(outcome)


class PolicyBranches:
    """The branches of a policy, computed once for each type. `name` identifies its content.

    `of` are the policies that decide in it, and `asked` the attributes that they, and those they refer to, ask for.
    """

    def __init__(
        self, root: Root, sources: PolicySources, of: Iterable[Root], asked: Iterable[Designator], name: str
    ) -> None:
        ids = dict.fromkeys(one.id for one in of)
        self._because = tuple(f"policy:{one}" for one in ids)
        self._source = " ".join(ids)[:_LONGEST]
        self._left = Residuals(root, sources, UNDERSTOOD)
        self._compiled = CompiledPolicy(root, sources)
        self._name = name
        wanted = tuple(asked)
        #: whether a policy tells the attributes of an event apart
        self._by_attribute = any(one.id in {ATTRIBUTE_NAME, ATTRIBUTE_ID} for one in wanted)
        #: whether what it says depends on the event, or on the moment
        self._depends = any(one.category == ENVIRONMENT or one.id.startswith(EVENT) for one in wanted)

    def rule(self, request: EventRequest, names: EventNames, known: SubjectFacts, environment: Schema) -> Ruling:
        """Return what is permitted, given the facts known in a period."""
        try:
            found = self._branches(request, names, known.facts, environment)
        except RefusedError as error:
            message = f"what policies permit is for a broker to ask of each event: {error.message}"
            return Ruling(problems=(DecisionProblem("policies.each-event", message, self._source),))
        if request.action is Right.PUBLISH:
            found = tuple(_together(found))
        branches = tuple(
            replace(branch, when=replace(branch.when, validity=known.period), because=(*branch.because, *known.because))
            for branch in found
        )
        return Ruling(branches) if branches else self._why(request, known.facts)

    def _branches(
        self, request: EventRequest, names: EventNames, known: Facts, environment: Schema
    ) -> Sequence[Branch]:
        """Return the permitted branches. Raises `RefusedError` if they cannot be decided for all times."""
        if not self._depends:
            return tuple(self._asked_once(request, names, known))
        try:
            found = self._left.restriction(
                known, request.action, request.type.event_type, names=names, environment=environment
            )
        except RefusedError:
            if request.now is None:
                raise
            return tuple(self._asked_each(request, names, known))
        return tuple(replace(one, because=tuple(filter(_given, one.because))) for one in found.branches)

    def _asked_once(self, request: EventRequest, names: EventNames, known: Facts) -> Iterator[Branch]:
        """Yield branches if they do not depend on the event."""
        permitted: list[Attribute | None] = []
        because: dict[str, None] = {}
        for attribute, facts in self._parts(request, names, known):
            asked = replace(PolicyRequest.of_facts(facts), return_policy_ids=True)
            outcome = self._compiled.ask_request(asked, request.now or _ANY_TIME)
            if outcome.decision is XacmlDecision.PERMIT and not _unmet(outcome):
                permitted.append(attribute)
                because.update(dict.fromkeys(filter(_given, (f"policy:{one.id}" for one in outcome.applicable))))
        if permitted:
            shown = frozenset(attribute.id for attribute in permitted if attribute is not None)
            attributes = None if None in permitted else shown
            yield Branch(action=request.action, attributes=attributes, because=tuple(because))

    def _asked_each(self, request: EventRequest, names: EventNames, known: Facts) -> Iterator[Branch]:
        """Yield branches that the local broker evaluates for each event."""
        for attribute, facts in self._parts(request, names, known):
            yield Branch(
                action=request.action,
                attributes=None if attribute is None else frozenset({attribute.id}),
                guards=frozenset({self._guard(facts, names)}),
                because=self._because,
            )

    def _parts(
        self, request: EventRequest, names: EventNames, known: Facts
    ) -> Iterator[tuple[Attribute | None, Facts]]:
        """Yield the questions: each attribute if a policy distinguishes them, otherwise the event."""
        attributes = request.type.event_type.attributes if self._by_attribute else ()
        yield from ((attribute, {**known, **names.of(attribute)}) for attribute in attributes)
        if not attributes:
            yield None, known

    def _guard(self, facts: Facts, names: EventNames) -> OwnGuard:
        """Return a guard whose name says all that its answers rest on but the event and the moment."""
        about = sorted((key.category, key.id, key.of.id, values) for key, values in facts.items())
        called = sorted((name, attribute.id) for name, attribute in names.attributes.items())
        name = hashlib.sha256(repr((self._name, about, called)).encode()).hexdigest()[:32]
        return OwnGuard(f"policy:{name}", PolicyGuard(self._compiled, facts, names))

    def _why(self, request: EventRequest, known: Facts) -> Ruling:
        """Explain why nothing is permitted whatever the event is; name only a policy's id."""
        about = f"{request.principal.short} {request.action} `{request.type.event_type.name.name}`"
        outcome = self._compiled.ask(known, request.now or _ANY_TIME)
        unmet = _unmet(outcome)
        if outcome.decision is XacmlDecision.PERMIT and unmet:
            message = f"policies let {about} with an obligation that is not known here: `{unmet[0][:120]}`"
            return Ruling(problems=(DecisionProblem("policies.obligation", message, self._source),))
        if outcome.decision.indeterminate:
            missing = ", ".join(f"`{one.id[:120]}`" for one in outcome.status.missing)
            message = f"whether policies let {about} could not be decided{f': {missing} is missing' if missing else ''}"
            return Ruling(problems=(DecisionProblem("policies.indeterminate", message, self._source),))
        message = f"policies do not let {about}"
        return Ruling(refusals=(DecisionProblem("policies.not-permitted", message, self._source),))


def _together(branches: Sequence[Branch]) -> Iterator[Branch]:
    """Yield branches to publish, and those that some of them are together.

    A right to publish sees what it lets through itself, and a condition on one attribute may ask for another.
    """
    yield from branches
    apart = [branch for branch in branches if branch.attributes is not None]
    most = len(apart) if len(apart) <= BROKER_VIEWS else 1
    sizes = {*range(2, most + 1), len(apart)} - {0, 1}
    yield from (reduce(_with, some) for size in sorted(sizes) for some in combinations(apart, size))


def _with(one: Branch, other: Branch) -> Branch:
    """Return what lets through as much as two, where both hold."""
    return replace(
        one,
        attributes=(one.attributes or frozenset()) | (other.attributes or frozenset()),
        where=conjunction(one.where, other.where),
        guards=one.guards | other.guards,
        when=replace(one.when, condition=conjunction(one.when.condition, other.when.condition)),
        because=tuple(dict.fromkeys(one.because + other.because)),
    )


def _given(policy: str) -> bool:
    """Say whether a policy was configured, and not only built around others."""
    return not policy.startswith(f"policy:{ALL}")


def _unmet(outcome: PolicyOutcome) -> tuple[str, ...]:
    """Return the obligations that nobody here can meet."""
    return tuple(one.id for one in outcome.obligations if one.id not in UNDERSTOOD)
