"""Requests that show what the policies of a domain plan decide, and where they are incomplete or contradict each other.

Each enforcement point of a plan asks about some actions. For each of them, the analysis of policies searches for one
request for each decision: with one value for every attribute that the policies can use, as if all information were
there. These requests are findings, where nothing or two contrary policies apply, and they are asked in the simulation.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import combinations, count, cycle, permutations
from typing import Final
from urllib.parse import unquote

from penstock.authority.components.component_factory import role_configurations
from penstock.authority.components.exchange.samples import Configuration
from penstock.authority.components.exchange.topics import ComponentKind
from penstock.authority.components.information.dependencies import action_name, actions_meet, attribute_name
from penstock.authority.components.plans.domain_check import PlanFinding, PlanLevel, decides_for, informs
from penstock.authority.components.plans.domain_plan import ComponentPlan, DomainPlan, LoadedPlan, RolePlan
from penstock.authority.components.points.decision import ConfiguredPolicies
from penstock.authority.components.points.enforcement import answer_mode
from penstock.authority.decisions.questions import (
    KEY_ACTION_ID,
    KEY_RESOURCE_ID,
    KEY_RESOURCE_TYPE,
    KEY_SUBJECT_ID,
    KEY_SUBJECT_TYPE,
    RESERVED,
    TYPES,
    AccessQuestion,
    Entity,
)
from penstock.errors import PenstockError
from penstock.policy.analysis.questions import Analysis, resolved
from penstock.policy.engine.lookup import is_clock
from penstock.policy.language.datatypes import INTEGER, STRING, Bag, DataType, Value
from penstock.policy.language.functions import FUNCTIONS, V1
from penstock.policy.language.policies import (
    Designator,
    Match,
    Policy,
    PolicyLiteral,
    Root,
    Rule,
    RuleEffect,
    apply,
    function_of,
)
from penstock.policy.language.requests import ACTION, ENVIRONMENT, RESOURCE, SUBJECT, Facts, Key
from penstock.policy.language.results import XacmlDecision
from penstock.policy.syntax.json.requests import Json
from penstock.policy.syntax.text.policy_writer import write_text
from penstock.selector.analysis import AnalysisVerdict
from penstock.simulate.simulation import START

PERMIT, DENY, NOT_APPLICABLE = (
    one.plain for one in (XacmlDecision.PERMIT, XacmlDecision.DENY, XacmlDecision.NOT_APPLICABLE)
)
_ANY: Final = "*"
#: policies of one role that are compared with each other for one action
_COMPARED: Final = 12


@dataclass(frozen=True, slots=True)
class DomainFinding(PlanFinding):
    """What a simulation found, with the request that shows it, as AuthZEN writes it."""

    request: Mapping[str, Json] | None = None

    def as_dict(self) -> dict[str, object]:
        """Return it as plain data."""
        found = PlanFinding.as_dict(self)
        return found if self.request is None else {**found, "request": self.request}


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """A request of an enforcement point, what its decision roles decide by their policies, and what PIPs must know."""

    component: str
    action: str
    question: AccessQuestion
    #: the decision of each decision role that answers
    decisions: Mapping[str, str]
    #: attributes that the question does not have, by category and id
    known: Mapping[str, Mapping[str, Json]]

    def as_dict(self) -> dict[str, Json]:
        """Return the request with everything that is known about it, as AuthZEN writes it."""
        return told(self.question, self.known)

    def entities(self) -> dict[tuple[str, str], Mapping[str, Json]]:
        """Return what information points must know, by the category and the id of each entity."""
        asked = self.question
        ids = {SUBJECT: asked.subject.id, ACTION: asked.action.id, RESOURCE: asked.resource.id, ENVIRONMENT: ""}
        return {(category, id_): self.known.get(category, {}) for category, id_ in ids.items()}


@dataclass(frozen=True, slots=True)
class PlannedRequests:
    """The requests to ask, what is wrong with the policies, and actions for which no request was found."""

    requests: tuple[PlanRequest, ...]
    findings: tuple[DomainFinding, ...]
    #: what the analysis does not understand or compare, in words
    unknown: tuple[str, ...] = ()


def told(question: AccessQuestion, known: Mapping[str, Mapping[str, Json]]) -> dict[str, Json]:
    """Return a question with attributes that others know, as AuthZEN writes it."""
    found: dict[str, Json] = {
        word: Entity(one.type, one.id, {**one.properties, **known.get(category, {})}).to_json()
        for word, category, one in (
            ("subject", SUBJECT, question.subject),
            ("action", ACTION, question.action),
            ("resource", RESOURCE, question.resource),
        )
    }
    context = {**question.context, **known.get(ENVIRONMENT, {})}
    return {**found, "context": context} if context else found


# ----------------------------------------------------------------------------------------------------------------------
# All requests of a plan.


def planned_requests(loaded: LoadedPlan, now: float = START) -> PlannedRequests:
    """Return the requests of all enforcement points of a plan, and what they show; `now` is when they are asked.

    Policies that cannot be read are not searched: a simulation shows what they do to the components that get them.
    """
    requests: list[PlanRequest] = []
    findings: dict[tuple[str, str, str], DomainFinding] = {}
    unknown: dict[str, None] = {}
    for search in _searches(loaded, now):
        requests += search.requests()
        for one in search.findings():
            # Several enforcement points of one role show the same.
            findings.setdefault((one.code, one.where, one.message), one)
        unknown |= {f"{search.name}: {one}": None for one in search.unknown}
    return PlannedRequests(tuple(requests), tuple(findings.values()), tuple(unknown))


def changed_decisions(before: LoadedPlan, after: LoadedPlan, now: float = START) -> list[DomainFinding]:
    """Return how decisions of roles differ between two plans of a domain, each with a request as an example."""
    old = decision_policies(before)
    found: dict[tuple[str, str], DomainFinding] = {}
    for search in _searches(after, now):
        for role, new in search.deciding.items():
            if role not in old:
                continue
            for way in _DIFFERENT:
                facts = search.find([old[role].combined, new.combined], [old[role], new], way)
                if facts is not None:
                    message = f"requests to `{search.name}` that were {way[0]} become {way[1]}"
                    one = search.finding("simulate.decision-changed", f"roles.{role}", message, "", facts)
                    found.setdefault((one.where, message), one)
    return [*found.values()]


def decision_policies(loaded: LoadedPlan) -> dict[str, ConfiguredPolicies]:
    """Return the policies of each decision role, as its decision points combine them, if they can be read."""
    found: dict[str, ConfiguredPolicies] = {}
    for name, row in role_configurations(loaded).items():
        if loaded.plan.roles[name].kind is ComponentKind.PDP and row.policies:
            configuration = Configuration(
                loaded.plan.name, "simulated", 0, b"", row.combining, row.priorities, row.policies
            )
            with suppress(PenstockError):
                found[name] = ConfiguredPolicies.of(configuration)
    return found


def _searches(loaded: LoadedPlan, now: float) -> Iterator["_ActionSearch"]:
    plan, configured, numbers = loaded.plan, decision_policies(loaded), count(1)
    for component in plan.components.values():
        role = plan.roles.get(component.role)
        if role is not None and role.kind is ComponentKind.PEP:
            deciding = {name: one for name, one in configured.items() if decides_for(plan.roles[name], role)}
            for asked in _actions(component, deciding.values()):
                yield _ActionSearch(plan, component, role, deciding, asked, now, numbers)


def _actions(component: ComponentPlan, deciding: Iterable[ConfiguredPolicies]) -> Iterator[tuple[str, str]]:
    """Yield the resource types and actions that a PEP asks about; what policies name stands for `*`."""
    named = sorted({name for one in deciding for name in one.actions})
    found: dict[tuple[str, str], None] = {}
    for asked in component.actions or (f"{_ANY}/{_ANY}",):
        of_type, _, action = asked.partition("/")
        if _ANY not in (of_type, action):
            found[unquote(of_type), unquote(action)] = None
            continue
        for name in named:
            if actions_meet(frozenset({asked}), frozenset({name})):
                parts = name.partition("/")[::2]
                pair = [
                    unquote(mine if mine != _ANY else its) for mine, its in zip((of_type, action), parts, strict=True)
                ]
                found[pair[0].replace(_ANY, "any"), pair[1].replace(_ANY, "any")] = None
    yield from found


class _ActionSearch:
    """The search for requests about one action of one enforcement point."""

    def __init__(  # noqa: PLR0913, PLR0917  # a component, and what it asks
        self,
        plan: DomainPlan,
        component: ComponentPlan,
        role: RolePlan,
        deciding: Mapping[str, ConfiguredPolicies],
        asked: tuple[str, str],
        now: float,
        numbers: Iterator[int],
    ) -> None:
        self.plan = plan
        self.now = now
        #: for words, so that no two requests have an entity in common
        self.numbers = numbers
        self.component = component
        self.role = role
        self.asked = asked
        self.name = action_name(*asked)
        name = frozenset({self.name})
        self.deciding = {one: each for one, each in deciding.items() if actions_meet(name, each.actions)}
        #: the attributes that the policies of all roles can use for this action
        self.keys = [
            keys[0]
            for each in self.deciding.values()
            for _, keys in each.needs.of(*asked).attributes
            if keys[0].of in _sizes()
        ]
        self.guard = _guard(asked, tuple(dict.fromkeys(self.keys)))
        self.unknown: list[str] = []
        self._found: dict[object, Facts | None] = {}

    def requests(self) -> Iterator[PlanRequest]:
        """Yield a request for each decision of each role, and none twice."""
        seen: set[str] = set()
        for each in self.deciding.values():
            for wanted in (PERMIT, DENY, NOT_APPLICABLE):
                found = self.find([each.combined], [each], (wanted,))
                if found is not None:
                    request = self.request(found)
                    if str(request.as_dict()) not in seen:
                        seen.add(str(request.as_dict()))
                        yield request
        if not self.deciding:
            yield self.request({})

    def findings(self) -> list[DomainFinding]:
        """Return what is wrong with the policies that decide about the action."""
        found: list[DomainFinding] = []
        for role, each in self.deciding.items():
            where = f"roles.{role}"
            facts = self.find([each.combined], [each], (NOT_APPLICABLE,))
            if facts is not None:
                message = f"no policy of `{role}` decides about a request to `{self.name}`"
                hint = "add a rule for it, or apply `deny-unless-permit`; without, the answer is NotApplicable"
                found.append(self.finding("simulate.policy-incomplete", where, message, hint, facts))
            found += self.contradictions(role, each, where)
        mode = answer_mode(self.role.combining.get("decision", "first"))
        for (one, first), (other, second) in combinations(self.deciding.items(), 2):
            facts = self.find([first.combined, second.combined], [first, second], *_DIFFERENT)
            if facts is not None:
                decided = self.request(facts).decisions
                message = f"`{one}` answers {decided[one]} and `{other}` {decided[other]} to the same request"
                hint = (
                    f"`{self.role.role}` combines answers by `{mode}`; let one decision role answer, or let them agree"
                )
                level = PlanLevel.PROBLEM if mode.wait is None else PlanLevel.WARNING
                where = f"roles.{self.role.role}"
                found.append(self.finding("simulate.decisions-differ", where, message, hint, facts, level))
        return found

    def contradictions(self, role: str, each: ConfiguredPolicies, where: str) -> Iterator[DomainFinding]:
        """Find policies of one rank of which one permits what the other denies, among the first ones of the action."""
        ranks = each.configuration.priorities
        policies = [each.policies[place] for place in each.needs.of(*self.asked).policies]
        of_rank = Counter(ranks.get(one.id, 0) for one in policies)
        left = sum(of_rank[ranks.get(one.id, 0)] > 1 for one in policies[_COMPARED:])
        if left:
            self.unknown.append(
                f"contradictions are searched among the first {_COMPARED} of {len(policies)} policies of `{role}`: "
                f"{left} not compared"
            )
        for one, other in combinations(policies[:_COMPARED], 2):
            if ranks.get(one.id, 0) != ranks.get(other.id, 0):
                continue
            facts = self.find([one, other], [each], (PERMIT, DENY), (DENY, PERMIT))
            if facts is not None:
                decided = self.request(facts).decisions[role]
                message = f"`{one.id}` and `{other.id}` contradict each other; together they give {decided}"
                hint = "give one of them a higher priority, or leave it to the combining algorithm if this is meant"
                yield self.finding("simulate.policy-inconsistent", where, message, hint, facts)

    def find(
        self, roots: Sequence[Root], configured: Sequence[ConfiguredPolicies], *ways: tuple[str, ...]
    ) -> Facts | None:
        """Return the facts of a request about this action that policies decide in one of some ways; None without."""
        key = (tuple(map(id, roots)), ways)
        if key not in self._found:
            self._found[key] = self._search(roots, configured, ways)
        return self._found[key]

    def _search(
        self, roots: Sequence[Root], configured: Sequence[ConfiguredPolicies], ways: Sequence[tuple[str, ...]]
    ) -> Facts | None:
        try:
            whole = [resolved(root, each.sources) for root, each in zip(roots, cycle(configured), strict=False)]
            found = Analysis(*whole, self.guard, values=1).example(*((*way, PERMIT) for way in ways))
        except PenstockError as error:
            self.unknown.append(error.message)
            return None
        if found.verdict is AnalysisVerdict.UNKNOWN:
            self.unknown += found.unknown
        return None if found.witness is None else self.with_words(found.witness, configured)

    def decided(self, configured: ConfiguredPolicies, facts: Facts) -> str:
        """Return the decision when requests are asked, with the time of the clock and not that of the facts."""
        asked = {key: values for key, values in facts.items() if not _is_clock(key)}
        return configured.decide(asked, None, self.now).decision.plain

    def with_words(self, facts: Facts, configured: Sequence[ConfiguredPolicies]) -> Facts:
        """Replace texts that no policy has by words, if this changes no decision; `configured` are other policies."""
        deciding = [*self.deciding.values(), *configured]
        written = "".join(write_text(policy) for each in deciding for policy in each.policies)
        texts = dict.fromkeys(value for values in facts.values() for value in values if isinstance(value, str))
        kept = {text for text in texts if text in self.asked or f'"{text}"' in written}
        words = {text: text if text in kept else f"text-{next(self.numbers)}" for text in texts}
        found = {
            key: tuple(words[value] if isinstance(value, str) else value for value in values)
            for key, values in facts.items()
        }
        return found if all(self.decided(each, found) == self.decided(each, facts) for each in deciding) else facts

    def finding(  # noqa: PLR0913, PLR0917  # the parts of a finding
        self, code: str, where: str, message: str, hint: str, facts: Facts, level: PlanLevel = PlanLevel.WARNING
    ) -> DomainFinding:
        return DomainFinding(code, where, message, hint, level, self.request(facts).as_dict())

    def request(self, facts: Facts) -> PlanRequest:
        """Return facts as a request of this component: what it gives, and what information points must know."""
        given: dict[str, dict[str, Json]] = {}
        known: dict[str, dict[str, Json]] = {}
        for key, values in facts.items():
            name = attribute_name(key.category, key.id)
            if key.id in RESERVED or name is None or _is_clock(key):
                continue
            where = given if name in self.component.gives else known
            where.setdefault(key.category, {})[key.id] = _json(key.of, values)
        of_type, action = self.asked
        question = AccessQuestion(
            Entity(self.subject_type(facts), _text(facts, KEY_SUBJECT_ID, "somebody"), given.get(SUBJECT, {})),
            Entity("", action, given.get(ACTION, {})),
            Entity(of_type, _text(facts, KEY_RESOURCE_ID, "something"), given.get(RESOURCE, {})),
            given.get(ENVIRONMENT, {}),
        )
        decisions = {role: self.decided(each, facts) for role, each in self.deciding.items()}
        return PlanRequest(self.component.id, self.name, question, decisions, known)

    def subject_type(self, facts: Facts) -> str:
        """Return the subject's type: as policies want it, or of the source that knows most about such subjects."""
        if facts.get(KEY_SUBJECT_TYPE):
            return _text(facts, KEY_SUBJECT_TYPE, "subject")
        counts: dict[str, int] = {}
        wanted_names = {attribute_name(key.category, key.id) for key in self.keys if key.category == SUBJECT}
        for component in self.plan.components.values():
            informing = self.plan.roles.get(component.role)
            if informing is None or not any(informs(informing, self.plan.roles[one]) for one in self.deciding):
                continue
            for source in (self.plan.sources[name] for name in component.sources):
                if source.of == "subject":
                    counts[source.type] = counts.get(source.type, 0) + len(wanted_names & source.provides)
        return max(sorted(counts), key=counts.__getitem__, default="subject")


# ----------------------------------------------------------------------------------------------------------------------
# Requests as values of policies.


_DIFFERENT: Final = tuple(permutations((PERMIT, DENY, NOT_APPLICABLE), 2))
_EQUAL: Final = f"{V1}string-equal"
_AND: Final = f"{V1}and"
_INTEGER_EQUAL: Final = f"{V1}integer-equal"
_DENY_UNLESS_PERMIT: Final = "urn:oasis:names:tc:xacml:3.0:rule-combining-algorithm:deny-unless-permit"


@cache
def _sizes() -> Mapping[DataType, str]:
    """Return the function that counts values, for each type that the analysis understands."""
    # Importing z3 takes a third of a second, which other simulations should not spend.
    from penstock.policy.analysis.solver import known_type  # noqa: PLC0415

    return {
        one.takes[0].of: id_
        for id_, one in FUNCTIONS.items()
        if id_.endswith("-bag-size") and isinstance(one.takes[0], Bag) and known_type(one.takes[0].of)
    }


def _guard(asked: tuple[str, str], keys: Iterable[Key]) -> Root:
    """Return a policy that permits requests about one action in which each of some attributes has one value."""
    target = tuple(
        ((Match(function_of(_EQUAL), value, STRING, Designator(key.category, key.id, key.of)),),)
        for key, value in zip((KEY_RESOURCE_TYPE, KEY_ACTION_ID), asked, strict=True)
    )
    one = PolicyLiteral(1, INTEGER)
    sizes = [
        apply(_INTEGER_EQUAL, [apply(_sizes()[key.of], [Designator(key.category, key.id, key.of)]), one])
        for key in (KEY_RESOURCE_TYPE, KEY_ACTION_ID, KEY_SUBJECT_ID, KEY_RESOURCE_ID, *keys)
    ]
    rule = Rule("whole", RuleEffect.PERMIT, target, apply(_AND, sizes))
    return Policy("urn:penstock:simulate:guard", "1.0", _DENY_UNLESS_PERMIT, (rule,))


def _is_clock(key: Key) -> bool:
    return is_clock(Designator(key.category, key.id, key.of))


def _json(of: DataType, values: Sequence[Value]) -> Json:
    found: list[Json] = [value if of in _PLAIN else of.write(value) for value in values]
    return found[0] if len(found) == 1 else found


_PLAIN: Final = frozenset(TYPES.values())


def _text(facts: Facts, key: Key, otherwise: str) -> str:
    return str(facts[key][0]) if facts.get(key) else otherwise
