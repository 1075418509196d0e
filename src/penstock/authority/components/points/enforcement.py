"""PEP: an enforcement point asks the decision points of its domain, and enforces their combined decision.

    async with EnforcementComponent(fabric, key, settings) as point:
        decision = await point.decide(AccessQuestion.of(("user", "alice"), "withdraw", ("account", "7")))
        if decision.permits():
            ...

Answers count if they were written under the configuration number of the request. The configuration says how they are
combined (`decisions.modes`), and which domains' answers have a higher priority. Without a decision in time, `decide`
raises: nothing is permitted without an answer.
"""

import asyncio
import secrets
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from types import MappingProxyType

from penstock.authority.components.exchange.certificates import ComponentCertificate
from penstock.authority.components.exchange.samples import (
    Configuration,
    DecisionReply,
    DecisionRequest,
    SampleDuty,
    SampleRevision,
)
from penstock.authority.components.exchange.topics import TopicKind
from penstock.authority.components.exchange.verification import RoutineRefusedError, VerifiedSample
from penstock.authority.components.information.combining import Priorities
from penstock.authority.components.information.dependencies import Names, action_name, check_action_name
from penstock.authority.components.points.component import ComponentSettings
from penstock.authority.components.points.pending_requests import FIRST_PAUSE, PendingRequests
from penstock.authority.components.points.request_components import RequestingComponent
from penstock.authority.decisions.decision_point import Note, quiet
from penstock.authority.decisions.messages import AccessAnswer, AnswerDuty, PolicyRevision
from penstock.authority.decisions.modes import FIRST, AnswerMode, AskedDecision, of_highest_priority
from penstock.authority.decisions.questions import AccessQuestion
from penstock.authority.limits import PEP_ANSWERS, PEP_QUESTIONS
from penstock.crypto import Signer
from penstock.errors import LimitError, PenstockError, RefusedError
from penstock.fabric import Clock, Fabric, RandomBytes


@dataclass(frozen=True, slots=True)
class ComponentAnswer:
    """The answer of a decision point whose sample was verified."""

    value: AccessAnswer
    replier: ComponentCertificate


@lru_cache(4_096)
def _revision(policy: SampleRevision) -> PolicyRevision:
    return PolicyRevision(policy.id, policy.revision, datetime.fromtimestamp(policy.changed, UTC))


def _duties(duties: tuple[SampleDuty, ...]) -> tuple[AnswerDuty, ...]:
    return tuple(AnswerDuty(one.id, one.assigned) for one in duties)


def answer_of(reply: DecisionReply, replier: ComponentCertificate, time: float, lifespan: float) -> ComponentAnswer:
    """Return a reply as an answer that modes combine."""
    issued = datetime.fromtimestamp(time, UTC)
    answer = AccessAnswer(
        reply.question,
        reply.effect,
        tuple(map(_revision, reply.rests_on)),
        replier.principal,
        issued,
        issued + timedelta(seconds=lifespan),
        reply.status or None,
        _duties(reply.obligations),
        _duties(reply.advice),
    )
    return ComponentAnswer(answer, replier)


@dataclass(slots=True)
class AnswerCollection:
    """The answers to one request until there are enough. Of each replier the first one counts.

    Components with one key are one replier: two of them do not confirm each other.
    """

    mode: AnswerMode
    priorities: Priorities
    _answers: dict[bytes, ComponentAnswer] = field(default_factory=dict)

    def take(self, answer: ComponentAnswer) -> None:
        """Take an answer."""
        self._answers.setdefault(answer.replier.key, answer)

    @property
    def started(self) -> bool:
        """Whether there is an answer."""
        return bool(self._answers)

    @property
    def enough(self) -> bool:
        """Whether no further answer is waited for: a mode with a time waits for all."""
        return self.mode.answers is not None and self.has(self.mode.answers)

    @property
    def lacks(self) -> bool:
        """Whether it is worth while to ask again: nobody has answered, or not so many as the mode wants."""
        return not self._answers or (self.mode.answers is not None and not self.enough)

    def has(self, number: int) -> bool:
        """Return whether there are so many answers of the highest priority that there is."""
        highest = max((0, *self.priorities.values()))
        return sum(self._priority(one) >= highest for one in self._answers.values()) >= number

    def decision(self, dropped: Mapping[str, int] = MappingProxyType({})) -> AskedDecision:
        """Return what the answers so far give, of which only those with the highest priority count.

        `dropped` are samples that were refused meanwhile, by code. Raises `RefusedError`: `pep.no-answer`,
        `pep.not-believed`, `pep.too-few`, `pep.incomparable`.
        """
        answers = of_highest_priority(self._answers.values(), self._priority)
        if not answers and dropped:
            reasons = ", ".join(f"{number} {code}" for code, number in sorted(dropped.items()))
            raise RefusedError(
                "pep.not-believed",
                f"answers came, but none can be believed: {reasons}",
                hint="check who else writes replies, and the clocks and roles of the decision points",
                reasons=dict(dropped),
            )
        if not answers:
            raise RefusedError(
                "pep.no-answer",
                "no decision point answered in time",
                hint="check that a decision point decides about this action on this type of resource",
            )
        if self.mode.wait is None and len(answers) < (self.mode.answers or 1):
            raise RefusedError(
                "pep.too-few",
                f"{len(answers)} of {self.mode.answers} decision points answered in time",
                hint="start more decision points, or ask for fewer answers",
            )
        return self.mode.combine(answers)

    def _priority(self, answer: ComponentAnswer) -> int:
        return self.priorities.get(answer.replier.home, 0)


# ----------------------------------------------------------------------------------------------------------------------
# The component.


@dataclass(slots=True)
class _Asked:
    """A question that waits for its decision. Times are those of `Clock.steady`."""

    question: AccessQuestion
    decided: "asyncio.Future[AskedDecision]"
    deadline: float
    #: when to ask again without an answer, as long as nobody has answered this component, and the pause after that
    again: float
    pause: float
    #: its requests: each can be answered
    numbers: list[int] = field(default_factory=list)
    #: the configuration number under which it was asked, and its answers; None until the request was written
    under: int | None = None
    answers: AnswerCollection | None = None
    #: when the mode's time is over, and whether it is: then the next answer is enough
    soon: float | None = None
    late: bool = False
    #: how many samples of each code were refused before
    counts: Counter[str] = field(default_factory=Counter)
    #: replies that were quicker than the acknowledgement of the request
    early: list[VerifiedSample] = field(default_factory=list)


class EnforcementComponent(RequestingComponent):
    """See the module. `actions` are the actions on resource types that it asks about: `account/withdraw`, `account/*`.

    Raises `MalformedError` (`component.required`).
    """

    def __init__(  # noqa: PLR0913  # named settings, each with a default
        self,
        fabric: Fabric,
        key: Signer,
        settings: ComponentSettings,
        *,
        actions: Names = frozenset({action_name(None, None)}),  # noqa: B008  # a constant
        clock: Clock | None = None,
        random: RandomBytes = secrets.token_bytes,
        note: Note = quiet,
    ) -> None:
        super().__init__(fabric, key, settings, clock=clock, random=random, note=note)
        for name in actions:
            check_action_name(name)
        self._actions = actions
        self._pending: PendingRequests[_Asked] = PendingRequests(self._clock, self._over)

    async def decide(self, question: AccessQuestion) -> AskedDecision:
        """Ask the decision points, and return the combined decision.

        Raises `RefusedError`: `pep.no-answer`, `pep.not-believed`, `pep.too-few`, `pep.incomparable`,
        `component.not-joined`, `component.outside-list`; `LimitError` (`pep.limit`, `pdp.limit`), `MalformedError`
        (`pdp.request`); and as `Publisher.publish`. `AskedDecision.refusal` says why a decision permits nothing.
        """
        if self.configuration is None or not self.joined:
            hint = "join first; if it has lost its role and joins again, ask later"
            message = f"component `{self.settings.id}` has not joined a domain"
            raise RefusedError("component.not-joined", message, hint=hint)
        if len(self._pending) >= PEP_QUESTIONS:
            raise LimitError("pep.limit", f"{PEP_QUESTIONS} questions wait for an answer", hint="ask later")
        now, lifespan = self._clock.steady(), self.configuration.lifespan
        future: asyncio.Future[AskedDecision] = asyncio.get_running_loop().create_future()
        pause = lifespan * FIRST_PAUSE
        asked = _Asked(question, future, now + lifespan, now + pause, 2 * pause, counts=self.counts.copy())
        try:
            await self._ask(asked)
            return await future
        finally:
            for number in asked.numbers:
                self._pending.remove(number)
            if future.done() and not future.cancelled():
                future.exception()  # if writing failed, nobody else takes it

    async def require(self, actions: Names) -> None:
        """Ask about other actions from now on. Raises `MalformedError` (`component.required`), and as `write`."""
        for name in actions:
            check_action_name(name)
        self._actions = actions
        await self.publish_required(TopicKind.QPEP, actions)

    async def _ask(self, asked: _Asked) -> None:
        """Write a request for a question, and take the answers that were quicker."""
        number = self.next_number()
        asked.numbers.append(number)
        self._pending.add(number, asked, asked.deadline if self.settled else min(asked.again, asked.deadline))
        sample = await self.write_all(TopicKind.DREQ, DecisionRequest.of(asked.question), number=number)
        configuration = self.configuration_of(sample.configuration)
        if configuration is None:
            return
        mode = answer_mode(configuration.combining.get("decision", "first"))
        if asked.under != sample.configuration:
            asked.under, asked.answers = sample.configuration, AnswerCollection(mode, configuration.priorities)
            now = self._clock.steady()
            if mode.wait is not None and now + mode.wait < asked.deadline:
                asked.soon = now + mode.wait
                self._pending.add(number, asked, asked.soon)
        early, asked.early = asked.early, []
        for reply in early:
            try:
                self._take(asked, reply)
            except PenstockError as error:  # of one replier; the others' replies count
                self._refuse(error)

    async def _ask_again(self, asked: _Asked) -> None:
        try:
            await self._ask(asked)
        except PenstockError as error:
            self._note(error)

    # ------------------------------------------------------------------------------------------------------------------
    # What the layer calls.

    async def configured(self, configuration: Configuration) -> None:
        """Say which actions are asked about, to the decision points of the topics-list.

        Raises `MalformedError` (`pep.mode`) for a configuration that combines answers in an unknown way.
        """
        answer_mode(configuration.combining.get("decision", "first"))
        await self.publish_required(TopicKind.QPEP, self._actions)

    async def leaving(self) -> None:
        """Let the decision points forget this component."""
        await self.publish_required(TopicKind.QPEP, frozenset())

    async def superseded(self, numbers: list[int]) -> None:
        """Ask again under the new configuration."""
        for number in numbers:
            asked = self._pending.remove(number)
            if asked is not None and not asked.decided.done():
                asked.under = asked.answers = None
                await self._ask(asked)

    async def close(self) -> None:
        """Close all topics. Questions that wait get no decision."""
        for asked in self._pending.close():
            if not asked.decided.done():
                error = RefusedError("component.not-joined", f"component `{self.settings.id}` has left its domain")
                asked.decided.set_exception(error)
        await super().close()

    async def received(self, sample: VerifiedSample) -> None:
        """Take a reply. Raises `RefusedError` (`pep.unasked`, `component.old-configuration`)."""
        reply = sample.record
        if not isinstance(reply, DecisionReply):
            return
        self._answered = True
        asked = self._pending.get(reply.number)
        if asked is None:
            return  # it came too late, or enough others had answered before
        if asked.under is None:
            if len(asked.early) < PEP_ANSWERS:
                asked.early.append(sample)
        else:
            self._take(asked, sample)

    def _take(self, asked: _Asked, sample: VerifiedSample) -> None:
        reply, configuration, answers = sample.record, sample.configuration, asked.answers
        if not isinstance(reply, DecisionReply) or configuration is None or answers is None or asked.decided.done():
            return
        if sample.written_under != asked.under:
            raise RoutineRefusedError(
                "component.old-configuration",
                f"a reply of `{sample.writer.id}` is of configuration {sample.written_under}, not {asked.under}",
            )
        if reply.question != asked.question.digest:
            raise RefusedError("pep.unasked", f"a reply of `{sample.writer.id}` is to another question")
        answers.take(answer_of(reply, sample.writer, sample.time, configuration.lifespan))
        if answers.enough or (asked.late and answers.has(1)):
            self._decide(asked, answers)

    def _over(self, _number: int, asked: _Asked) -> float | None:
        """Conclude, ask again, or let the question wait further."""
        now, answers = self._clock.steady(), asked.answers
        if asked.decided.done():
            return None
        if now >= asked.deadline:
            self._decide(asked, answers)
            return None
        if asked.soon is not None and now >= asked.soon and answers is not None:
            asked.soon, asked.late = None, True
            if answers.started:
                self._decide(asked, answers)
                return None
        if now >= asked.again and not self.settled and (answers is None or answers.lacks):
            asked.again, asked.pause = now + asked.pause, 2 * asked.pause
            self._begin("asking again", self._ask_again(asked))
            return None
        return asked.deadline

    def _decide(self, asked: _Asked, answers: AnswerCollection | None) -> None:
        try:
            decision = (answers or AnswerCollection(FIRST, {})).decision(self.counts - asked.counts)
        except RefusedError as error:
            if error.code == "pep.incomparable":
                self._note(error)
            asked.decided.set_exception(error)
            return
        if decision.disagreed:
            effects = ", ".join(sorted(f"{one.value.point.short}: {one.value.effect}" for one in decision.answers))
            self._note(RefusedError("pep.disagreement", f"decision points answer differently: {effects}"))
        asked.decided.set_result(decision)


@lru_cache(256)
def answer_mode(text: str) -> AnswerMode:
    """Return a mode by its text. Raises as `AnswerMode.parse`."""
    return AnswerMode.parse(text)
