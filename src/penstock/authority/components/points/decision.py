"""PDP: a decision point decides by the policies of its configuration, and asks information points for what they need.

For each request it knows from the policies which attributes can decide about this action on this resource type. What
the question does not say of them is asked for in one request to all information points, and their answers are combined
(`information_combining`). An attribute without an answer in time is Null: evaluations that use it are Indeterminate.

A question of an enforcement point of another domain is about a subject there. A mapping (`attribute_mapping`) says what
the subject's attributes mean here; what the question does not say of them, information points of that domain are asked.
Without a mapping, the decision is Indeterminate (`foreign.unmapped`).

It reads the requests of enforcement points that ask about actions which its policies decide about, and of no others.
"""

import json
import secrets
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from typing import Final

from penstock.authority.components.exchange.samples import (
    AttributeQuery,
    Configuration,
    DecisionReply,
    DecisionRequest,
    FieldValue,
    InformationReply,
    InformationRequest,
    RequiredNames,
    SampleDuty,
    SampleRevision,
)
from penstock.authority.components.exchange.topics import TopicKind
from penstock.authority.components.exchange.verification import RoutineRefusedError, VerifiedSample
from penstock.authority.components.information.attribute_mapping import (
    AttributeMapping,
    ReviewedMapping,
    map_subject,
)
from penstock.authority.components.information.combining import (
    CombinedInformation,
    InformationAnswer,
    InformationCollection,
    InformationMode,
    TimedValue,
)
from penstock.authority.components.information.dependencies import (
    DependencyList,
    Names,
    PolicyNeeds,
    action_name,
    actions_meet,
    attribute_name,
    read_attribute_name,
)
from penstock.authority.components.points.component import ComponentSettings
from penstock.authority.components.points.pending_requests import FIRST_PAUSE, PendingRequests
from penstock.authority.components.points.request_components import ReplyingComponent, RequestingComponent
from penstock.authority.decisions.coverage import PLAIN_ALGORITHMS
from penstock.authority.decisions.decision_point import Note, quiet
from penstock.authority.decisions.messages import AnswerEffect, duties_of
from penstock.authority.decisions.questions import TYPES, AccessQuestion, facts_of, flattened
from penstock.authority.limits import PEP_QUESTIONS
from penstock.crypto import Signer
from penstock.errors import EvaluationError, LimitError, MalformedError, PenstockError
from penstock.fabric import Clock, Fabric, RandomBytes
from penstock.policy.combining import with_priorities
from penstock.policy.engine.compiler import CompiledPolicy
from penstock.policy.engine.lookup import Context, NoSources, PolicySources, Repository, check_policies
from penstock.policy.language.datatypes import DOUBLE, DataType, Value, failed, read_value
from penstock.policy.language.policies import Designator, PolicyReference, PolicySet, Root
from penstock.policy.language.requests import ACTION, ENVIRONMENT, RESOURCE, SUBJECT, Facts, Request
from penstock.policy.language.results import DecisionStatus, MissingAttribute, PolicyOutcome, XacmlDecision
from penstock.policy.syntax.forms import read_policies

_ALGORITHM: Final = "urn:oasis:names:tc:xacml:3.0:policy-combining-algorithm:"
_DENY_OVERRIDES: Final = f"{_ALGORITHM}deny-overrides"
#: how information is combined if the configuration does not say it
_INFORMATION: Final = "compose"
#: the policy set around the policies of a configuration
_ROOT: Final = "urn:penstock:component:policies"
#: configurations whose policies stay compiled: the one in force, the one that is prepared, and earlier ones for LS
_CONFIGURATIONS: Final = 8


class InformedSources(NoSources):
    """Policies to refer to, and the attributes that information points have answered."""

    def __init__(self, policies: PolicySources, information: CombinedInformation | None) -> None:
        self._policies = policies
        self._information = information

    def policy(self, reference: PolicyReference) -> Root:
        """Return the newest policy that matches a reference. Raises as `Repository.policy`."""
        return self._policies.policy(reference)

    def attribute(self, wanted: Designator, _request: Request, /) -> Sequence[Value]:
        """Return the values of an attribute. Raises `EvaluationError` (`xacml.missing`, `xacml.processing`)."""
        information = self._information
        name = None if wanted.issuer is not None else attribute_name(wanted.category, wanted.id)
        if information is None or name is None:
            return ()
        if name in information.null:
            missing = MissingAttribute(wanted.category, wanted.id, wanted.of, wanted.issuer)
            raise EvaluationError("xacml.missing", f"no information point answered for `{name[:120]}`", missing=missing)
        found = information.fields.get(name)
        return () if found is None else typed_values(json.loads(found.value), wanted.of)


def typed_values(value: FieldValue, of_type: DataType) -> Sequence[Value]:
    """Return the values of an attribute as a policy wants them. Raises `EvaluationError` (`xacml.processing`).

    Texts are read as values of the type, because many sources have nothing but texts.
    """
    found: list[Value] = []
    for one in value if isinstance(value, list) else [value]:
        if one is None:
            continue
        if TYPES[type(one)] is of_type:
            found.append(one)
        elif isinstance(one, str):
            try:
                found.append(read_value(one, of_type))
            except MalformedError:
                raise failed(f"a value of an attribute is not of type {of_type.id[:120]}") from None
        elif of_type is DOUBLE and not isinstance(one, bool):
            found.append(float(one))
        else:
            raise failed(f"a value of an attribute is not of type {of_type.id[:120]}")
    return found


def algorithm_id(written: str) -> str:
    """Return the id of a combining algorithm, of which the last word is enough.

    >>> algorithm_id("permit-overrides")
    'urn:oasis:names:tc:xacml:3.0:policy-combining-algorithm:permit-overrides'
    """
    return written if ":" in written else f"{_ALGORITHM}{written}"


@dataclass(frozen=True)
class ConfiguredPolicies:
    """The policies of one configuration, ready to decide. They do not change."""

    configuration: Configuration
    policies: tuple[Root, ...]
    sources: Repository
    mode: InformationMode

    @classmethod
    def of(cls, configuration: Configuration) -> "ConfiguredPolicies":
        """Read the policies of a configuration.

        Raises `MalformedError` and `LimitError` for policies and algorithms that cannot be read.
        """
        documents = [[*read_policies(one.text).policies] for one in configuration.policies]
        if not all(documents):
            raise MalformedError("xacml.syntax", "a policy of the configuration has no policy in it")
        roots = tuple(document[0] for document in documents)
        others = [one for document in documents for one in document[1:]]
        check_policies(roots, others)
        mode = InformationMode.parse(configuration.combining.get("information", _INFORMATION))
        found = cls(configuration, roots, Repository(others), mode)
        _ = found.policy  # raises for an unknown algorithm
        return found

    def serves(self, configuration: Configuration) -> bool:
        """Return whether another configuration has the same policies, combined in the same way."""
        mine = self.configuration
        return (mine.policies, mine.combining, mine.priorities) == (
            configuration.policies,
            configuration.combining,
            configuration.priorities,
        )

    @cached_property
    def _combining(self) -> str:
        combining = algorithm_id(self.configuration.combining.get("policy", _DENY_OVERRIDES))
        ranks = [self.configuration.priorities.get(one.id, 0) for one in self.configuration.policies]
        return with_priorities(ranks, combining) if len({*ranks}) > 1 else combining

    @cached_property
    def informants(self) -> dict[str, int]:
        """The priorities of domains that inform: those that are not of policies."""
        policies = {one.id for one in self.configuration.policies}
        return {name: rank for name, rank in self.configuration.priorities.items() if name not in policies}

    @cached_property
    def combined(self) -> PolicySet:
        """The policies together: only the applicable ones with the highest priority count."""
        return PolicySet(_ROOT, "1.0", self._combining, self.policies)

    @cached_property
    def policy(self) -> CompiledPolicy:
        """The policies together, compiled."""
        return CompiledPolicy(self.combined, self.sources)

    @cached_property
    def actions(self) -> Names:
        """The actions on resource types outside of which nothing is applicable."""
        return (
            self.needs.actions if self._combining.endswith(PLAIN_ALGORITHMS) else frozenset({action_name(None, None)})
        )

    @cached_property
    def needs(self) -> PolicyNeeds:
        """What the policies need for each question."""
        return PolicyNeeds(self.policies, self.sources)

    @cached_property
    def revisions(self) -> tuple[SampleRevision, ...]:
        """The identities, revisions and change times of the policies."""
        return tuple(SampleRevision(one.id, one.revision, one.changed) for one in self.configuration.policies)

    def rests_on(self, question: AccessQuestion) -> tuple[SampleRevision, ...]:
        """Return the policies that can decide a question."""
        found = self.needs.of(question.resource.type, question.action.id).policies
        return tuple(self.revisions[place] for place in found)

    def decide(self, facts: Facts, information: CombinedInformation | None, now: float) -> PolicyOutcome:
        """Evaluate the policies. Whatever fails is Indeterminate."""
        sources = InformedSources(self.sources, information)
        return self.policy.evaluate(Context(None, moment_of(now), sources, facts))


# ----------------------------------------------------------------------------------------------------------------------
# The component.


@dataclass(slots=True)
class _Inquiry:
    """A request for a decision that waits for information. Times are those of `Clock.steady`."""

    request: VerifiedSample
    asked: AccessQuestion
    #: what is asked here: for a subject of another domain, after the mapping
    question: AccessQuestion
    facts: Facts
    policies: ConfiguredPolicies
    collection: InformationCollection
    queries: tuple[AttributeQuery, ...]
    deadline: float
    again: float
    pause: float
    #: if the information is for this mapping, and not for the policies
    mapping: AttributeMapping | None = None
    #: the requests for information: each can be answered
    numbers: list[int] = field(default_factory=list)


class DecisionComponent(ReplyingComponent, RequestingComponent):
    """See the module."""

    READS = TopicKind.DREQ

    def __init__(  # noqa: PLR0913  # named settings, each with a default
        self,
        fabric: Fabric,
        key: Signer,
        settings: ComponentSettings,
        *,
        mappings: Iterable[ReviewedMapping] = (),
        clock: Clock | None = None,
        random: RandomBytes = secrets.token_bytes,
        note: Note = quiet,
    ) -> None:
        super().__init__(
            fabric,
            key,
            settings,
            dependencies=DependencyList(frozenset(), actions_meet),
            clock=clock,
            random=random,
            note=note,
        )
        self._mappings = {one.mapping.source: one for one in mappings if one.mapping.target == settings.domain}
        #: the attributes of other domains' subjects that mappings need
        self._mapped: Names = frozenset(
            name
            for one in self._mappings.values()
            for word in one.mapping.schema
            if (name := attribute_name(SUBJECT, word))
        )
        self._required: Names = frozenset()
        #: the policies of the last configurations, the newest first
        self._policies: deque[ConfiguredPolicies] = deque(maxlen=_CONFIGURATIONS)
        self._pending: PendingRequests[_Inquiry] = PendingRequests(self._clock, self._over)

    # ------------------------------------------------------------------------------------------------------------------
    # What the layer calls.

    async def prepare(self, configuration: Configuration) -> None:
        """Read the policies. Raises `MalformedError` and `LimitError` for policies that cannot be read."""
        self._policies_of(configuration)

    async def configured(self, configuration: Configuration) -> None:
        """Decide by other policies, read the requests about their actions, and say which attributes they require."""
        policies = self._policies_of(configuration)
        self.depend(self.dependencies.provide(policies.actions))
        required = policies.needs.attributes | self._mapped
        if required != self._required:
            self._required = required
            await self._publish(self._required)

    async def leaving(self) -> None:
        """Let the information points forget this component."""
        if self._required:
            await self._publish(frozenset())

    async def close(self) -> None:
        """Close all topics. Requests that wait for information get no answer."""
        self._pending.close()
        self._required = frozenset()
        await super().close()

    async def received(self, sample: VerifiedSample) -> None:
        """Handle what enforcement points require and ask, and what information points reply."""
        match sample.record:
            case RequiredNames(names):
                await self.required(sample.writer.id, frozenset(names))
            case DecisionRequest():
                await self._decide(sample, sample.record.asked)
            case InformationReply():
                await self._informed(sample, sample.record)

    async def _publish(self, names: Names) -> None:
        if self.writes(TopicKind.QPDP):
            await self.publish_required(TopicKind.QPDP, names)

    def _policies_of(self, configuration: Configuration) -> ConfiguredPolicies:
        for one in self._policies:
            if one.configuration is configuration:
                return one
        for one in self._policies:
            if one.serves(configuration):
                found = replace(one, configuration=configuration)
                break
        else:
            found = ConfiguredPolicies.of(configuration)
        self._policies.appendleft(found)
        return found

    # ------------------------------------------------------------------------------------------------------------------
    # Decisions.

    async def _decide(self, request: VerifiedSample, asked: AccessQuestion) -> None:
        """Decide, or ask for information first."""
        if request.configuration is None:
            return
        policies, home = self._policies_of(request.configuration), request.writer.home
        if home == self.settings.domain:
            await self._decide_here(request, asked, asked, policies)
            return
        try:
            mapping = self._mapping(home)
        except EvaluationError as error:
            self._note(error)
            await self._reply(request, asked, policies, _undecided(error))
            return
        said = flattened(asked.subject.properties, "pdp.request")
        missing = frozenset(
            name for word in mapping.schema if word not in said and (name := attribute_name(SUBJECT, word))
        )
        if missing and self._can_ask():
            await self._inquire(self._inquiry(request, asked, asked, policies, missing, {}, mapping))
        else:
            await self._decide_mapped(request, asked, asked, policies, mapping)

    def _mapping(self, home: str) -> AttributeMapping:
        """Return the table for subjects of a domain. Raises `EvaluationError` (`foreign.*`) if none is valid now."""
        found = self._mappings.get(home)
        if found is None:
            raise EvaluationError("foreign.unmapped", f"there is no mapping for subjects of `{home}`")
        return found.at(moment_of(self.now()))

    async def _decide_mapped(
        self,
        request: VerifiedSample,
        asked: AccessQuestion,
        known: AccessQuestion,
        policies: ConfiguredPolicies,
        mapping: AttributeMapping,
    ) -> None:
        """Decide about a subject of another domain, with everything that is known of it there."""
        try:
            question = map_subject(known, mapping)
        except PenstockError as error:
            self._note(error)
            await self._reply(request, asked, policies, _undecided(error))
            return
        # The table says all that there is of its attributes, also that one is absent.
        settled = frozenset(name for word in mapping.attributes if (name := attribute_name(SUBJECT, word)))
        await self._decide_here(request, asked, question, policies, settled)

    async def _decide_here(
        self,
        request: VerifiedSample,
        asked: AccessQuestion,
        question: AccessQuestion,
        policies: ConfiguredPolicies,
        settled: Names = frozenset(),
    ) -> None:
        """Decide a question in the terms of this domain, or ask for information first."""
        facts = facts_of(question)
        missing = policies.needs.of(question.resource.type, question.action.id).missing(facts) - settled
        if not missing:
            await self._reply(request, asked, policies, policies.decide(facts, None, self.now()))
        elif self._can_ask():
            await self._inquire(self._inquiry(request, asked, question, policies, missing, facts))
        else:
            null = CombinedInformation({}, missing, frozenset(), frozenset())
            await self._reply(request, asked, policies, policies.decide(facts, null, self.now()))

    def _can_ask(self) -> bool:
        """Return whether information points can be asked; otherwise, what is missing is Null."""
        if not self.writes(TopicKind.IREQ):
            return False
        if len(self._pending) >= PEP_QUESTIONS:
            self._note(LimitError("pdp.limit", f"{PEP_QUESTIONS} questions wait for information"))
            return False
        return True

    def _inquiry(  # noqa: PLR0913, PLR0917  # the parts of an inquiry
        self,
        request: VerifiedSample,
        asked: AccessQuestion,
        question: AccessQuestion,
        policies: ConfiguredPolicies,
        missing: Names,
        facts: Facts,
        mapping: AttributeMapping | None = None,
    ) -> _Inquiry:
        now, configuration = self._clock.steady(), policies.configuration
        # What is left of the request's time is for the way back.
        deadline = now + max(0.0, request.time + configuration.lifespan - self.now()) / 2
        pause = configuration.lifespan * FIRST_PAUSE
        return _Inquiry(
            request,
            asked,
            question,
            facts,
            policies,
            InformationCollection(policies.mode, missing, policies.informants),
            queries_for(question, missing),
            deadline,
            now + pause,
            2 * pause,
            mapping,
        )

    async def _inquire(self, inquiry: _Inquiry) -> None:
        number = self.next_number()
        inquiry.numbers.append(number)
        self._pending.add(number, inquiry, inquiry.deadline if self.settled else min(inquiry.again, inquiry.deadline))
        await self.write_all(TopicKind.IREQ, InformationRequest(inquiry.queries), number=number, under=inquiry.request)

    async def _informed(self, sample: VerifiedSample, reply: InformationReply) -> None:
        self._answered = True
        inquiry = self._pending.get(reply.number)
        if inquiry is None:
            return
        if sample.written_under != inquiry.request.written_under:
            raise RoutineRefusedError(
                "component.old-configuration",
                f"a reply of `{sample.writer.id}` is of configuration {sample.written_under}, "
                f"not {inquiry.request.written_under}",
            )
        if inquiry.mapping is not None and sample.writer.home != inquiry.mapping.source:
            return  # another domain's subject of the same name
        inquiry.collection.take(information_answer(sample, reply, inquiry.question), moment_of(self.now()))
        if inquiry.collection.complete:
            self._forget(inquiry)
            await self._conclude(inquiry)

    def _forget(self, inquiry: _Inquiry) -> None:
        for number in inquiry.numbers:
            self._pending.remove(number)

    async def _conclude(self, inquiry: _Inquiry) -> None:
        """Decide with the information that came."""
        information = inquiry.collection.result()
        if information.alarm is not None:
            self._note(information.alarm)
        request, asked, policies, mapping = inquiry.request, inquiry.asked, inquiry.policies, inquiry.mapping
        if mapping is not None:
            known = _with_information(asked, information, mapping)
            await self._decide_mapped(request, asked, known, policies, mapping)
            return
        await self._reply(request, asked, policies, policies.decide(inquiry.facts, information, self.now()))

    def _over(self, _number: int, inquiry: _Inquiry) -> float | None:
        """Decide without information that did not come, or ask again while nobody has answered at all."""
        now = self._clock.steady()
        if now >= inquiry.deadline:
            self._forget(inquiry)
            self._begin("deciding without information", self._conclude_late(inquiry))
            return None
        if now >= inquiry.again and not self.settled:
            inquiry.again, inquiry.pause = now + inquiry.pause, 2 * inquiry.pause
            self._begin("asking for information again", self._inquire_again(inquiry))
            return None
        return inquiry.deadline

    async def _inquire_again(self, inquiry: _Inquiry) -> None:
        try:
            await self._inquire(inquiry)
        except PenstockError as error:
            self._note(error)

    async def _conclude_late(self, inquiry: _Inquiry) -> None:
        try:
            await self._conclude(inquiry)
        except PenstockError as error:
            self._refuse(error)

    async def _reply(
        self, request: VerifiedSample, question: AccessQuestion, policies: ConfiguredPolicies, outcome: PolicyOutcome
    ) -> None:
        effect = AnswerEffect.of(outcome.decision)
        obligations, advice = duties_of(outcome)
        reply = DecisionReply(
            self.settings.domain,
            request.writer.id,
            request.number,
            question.digest,
            effect,
            policies.rests_on(question),
            outcome.status.code if effect is AnswerEffect.INDETERMINATE else "",
            tuple(SampleDuty(one.id, one.assigned) for one in obligations),
            tuple(SampleDuty(one.id, one.assigned) for one in advice),
        )
        await self.write(TopicKind.DREP, reply, under=request)


def _undecided(error: PenstockError) -> PolicyOutcome:
    return PolicyOutcome(XacmlDecision.INDETERMINATE_DP, DecisionStatus(error.code, error.message))


def _with_information(
    asked: AccessQuestion, information: CombinedInformation, mapping: AttributeMapping
) -> AccessQuestion:
    """Return a question about a subject of another domain with the attributes that its information points know."""
    properties = flattened(asked.subject.properties, "pdp.request")
    for word in mapping.schema:
        name = attribute_name(SUBJECT, word)
        found = None if name is None else information.fields.get(name)
        if found is not None:
            properties[word] = json.loads(found.value)
    return replace(asked, subject=replace(asked.subject, properties=properties))


def queries_for(question: AccessQuestion, missing: Names) -> tuple[AttributeQuery, ...]:
    """Return what to ask information points: the attributes of each entity of a question."""
    by_category: dict[str, list[str]] = {}
    for name in sorted(missing):
        category, attribute = read_attribute_name(name)
        by_category.setdefault(category, []).append(attribute)
    return tuple(
        AttributeQuery(category, *_entity(question, category), tuple(names)) for category, names in by_category.items()
    )


def _entity(question: AccessQuestion, category: str) -> tuple[str, str]:
    """Return the type and the id of an entity of a question."""
    if category == ENVIRONMENT:
        return "", ""
    entity = {SUBJECT: question.subject, RESOURCE: question.resource, ACTION: question.action}[category]
    return entity.type, entity.id


def information_answer(sample: VerifiedSample, reply: InformationReply, question: AccessQuestion) -> InformationAnswer:
    """Return the fields of a reply that are about the entities of a question."""
    fields: dict[str, TimedValue] = {}
    for one in reply.fields:
        name = attribute_name(one.category, one.name)
        if name is not None and (one.type, one.id) == _entity(question, one.category):
            fields[name] = TimedValue(json.dumps(one.value), moment_of(one.changed))
    # Components with one key are one source: two of them do not confirm each other.
    return InformationAnswer(sample.writer.home, str(sample.writer.principal), fields)


def moment_of(seconds: float) -> datetime:
    """Return a time as a date. Raises `MalformedError` (`component.sample`) for one that no date has."""
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, ValueError, OSError):
        raise MalformedError("component.sample", "a change time is out of range") from None
