"""A policy decision point on a fabric: it subscribes to the requests that it can resolve, and answers them.

    async with PolicyDecisionPoint(fabric, key, source) as point:
        ...
        await point.replace(newer)  # other policies: subscriptions follow

For each request, in this order: (1) it is a request, came where its sender sends it (under its own key, or over the
sender's link), and is not too old; (2) its sender may ask about the resource; (3) it is not a copy; (4) the signature
is the sender's; (5) the sender has not asked too often. Only then policies are evaluated. Whatever fails is dropped and
counted: the sender's enforcement point refuses when nothing comes. Nobody else can use up what a sender may ask.

A sender that needs one answer can send a request to one point alone, under the point's principal (topic `to_one`). No
other point receives it. If that one does not answer, the sender publishes the same request for all points.
"""

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Final, Protocol, Self, TypeAlias

from penstock.authority.decisions.coverage import Coverage, answer_key, request_key
from penstock.authority.decisions.links import LinkReply, PointLinks
from penstock.authority.decisions.message_bytes import answer_bytes, request_from_bytes
from penstock.authority.decisions.messages import (
    AccessAnswer,
    AccessRequest,
    AnswerEffect,
    PolicyRevision,
    RecyclingClass,
    duties_of,
)
from penstock.authority.decisions.questions import AccessQuestion
from penstock.authority.decisions.rights import DecisionRights
from penstock.authority.limits import POINT_SENDERS, POINT_SKEW
from penstock.crypto import Signer
from penstock.errors import PenstockError, RefusedError
from penstock.fabric import Clock, Fabric, Publisher, Qos, Sample, SystemClock, TopicSubscription
from penstock.fabric.port import close_all
from penstock.fabric.tasks import in_background, report
from penstock.model.principals import Principal
from penstock.policy.language.results import DecisionStatus, PolicyOutcome, XacmlDecision
from penstock.trust.capabilities import DecisionRight
from penstock.trust.signed import UnverifiedValue

#: answers and requests of one key that may wait for a reader: one question may have several points and senders
QOS: Final = Qos(history=1_000)


@dataclass(frozen=True, slots=True)
class DecisionTopics:
    """The topics of decisions: requests to all points, requests to one point, and answers."""

    requests: str = "access-requests"
    answers: str = "access-answers"
    to_one: str = "access-requests-to-one"

    async def declare(self, fabric: Fabric) -> None:
        """Declare all. Raises as `Fabric.declare`."""
        for topic in (self.requests, self.answers, self.to_one):
            await fabric.declare(topic, QOS)


TOPICS: Final = DecisionTopics()
_SKEW: Final = timedelta(seconds=POINT_SKEW)
#: senders that were silent for longest, of which one is forgotten for a new one if its requests have ended
_TRIED: Final = 64


@dataclass(frozen=True, slots=True)
class PointDecision:
    """A decision with what its answer says about it."""

    outcome: PolicyOutcome
    rests_on: tuple[PolicyRevision, ...]
    recycling: RecyclingClass | None = None
    holds_for: str | None = None


class DecisionSource(Protocol):
    """The policies of a decision point. They do not change: other policies are another source."""

    def decide(self, question: AccessQuestion, now: datetime) -> PointDecision:
        """Decide a question. Raises `PenstockError`, which makes the answer Indeterminate."""
        ...

    def coverage(self) -> Coverage:
        """Return the keys of the requests that these policies can resolve."""
        ...


@dataclass(frozen=True, slots=True)
class AskRate:
    """How often one sender may ask: a number per second, and in a burst."""

    per_second: float = 2_000.0
    burst: float = 4_000.0


@dataclass(slots=True)
class PointSender:
    """A sender: what is left of its rate, and the digests of its requests until they end."""

    left: float
    then: float
    seen: "OrderedDict[bytes, float]"

    def charge(self, rate: AskRate, now: float) -> bool:
        """Count a request; return whether the rate allows it."""
        self.left = min(rate.burst, self.left + max(0.0, now - self.then) * rate.per_second)
        self.then = now
        if self.left < 1:
            return False
        self.left -= 1
        return True

    def forget(self, now: float) -> None:
        """Forget requests that have ended."""
        while self.seen and next(iter(self.seen.values())) < now:
            self.seen.popitem(last=False)


Note: TypeAlias = Callable[[PenstockError], None]
"""Receives errors and alarms."""


def quiet(_error: PenstockError) -> None:
    """Ignore the error."""


class PolicyDecisionPoint:
    """See the module. `rights` says who may ask; without it everyone whose signature is right."""

    def __init__(  # noqa: PLR0913  # named settings, each with a default
        self,
        fabric: Fabric | None,
        key: Signer,
        source: DecisionSource,
        *,
        rights: DecisionRights | None = None,
        topics: DecisionTopics = TOPICS,
        clock: Clock | None = None,
        lifetime: float = 5.0,
        rate: AskRate = AskRate(),  # noqa: B008  # a constant
        links: PointLinks | None = None,
        note: Note = quiet,
    ) -> None:
        self.counts: Counter[str] = Counter()
        self._fabric = fabric
        self._key = key
        self._source = source
        self._rights = rights
        self._topics = topics
        self._clock = clock or SystemClock()
        self._lifetime = timedelta(seconds=lifetime)
        self._rate = rate
        self._links = links
        self._note = note
        self._senders: OrderedDict[Principal, PointSender] = OrderedDict()
        self._reading: TopicSubscription | None = None
        self._reading_alone: TopicSubscription | None = None
        #: the keys of requests to one point that are read here; None for all
        self._names: Sequence[str] | None = (str(key.principal),)
        self._coverage: Coverage = None
        self._writer: Publisher | None = None
        self._sending: set[asyncio.Task[None]] = set()
        self._closed = False

    async def __aenter__(self) -> Self:
        try:
            await self._open()
        except BaseException:
            # What has begun to read would go on answering.
            await self.close()
            raise
        return self

    async def _open(self) -> None:
        self._closed = False
        if self._links is not None:
            self._links.listen(self._hear_link)
        if self._fabric is not None:
            await self._topics.declare(self._fabric)
            self._writer = await self._fabric.publisher(self._topics.answers)
            await self._subscribe()
            self._reading_alone = await self._fabric.subscribe(
                self._topics.to_one, keys=self._names, callback=self._hear_alone
            )

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Stop answering."""
        self._closed = True
        await close_all((self._reading_alone, self._reading), self._note)
        for task in list(self._sending):
            task.cancel()
        await asyncio.gather(*self._sending, return_exceptions=True)
        await close_all((self._writer,), self._note)

    async def replace(self, source: DecisionSource) -> None:
        """Decide by other policies from now on, and subscribe to what they cover. Raises as `Fabric.subscribe`."""
        before, self._source = self._coverage, source
        if self._fabric is None or self._reading is None:
            return
        after = source.coverage()
        if before is None or after is None:
            if before != after:
                old = self._reading
                await self._subscribe()
                await old.close()
            return
        for choice in after - before:
            await self._reading.add(choice)
        for choice in before - after:
            await self._reading.drop(choice)
        self._coverage = after

    async def _subscribe(self) -> None:
        if self._fabric is not None:
            coverage = self._source.coverage()
            self._reading = await self._fabric.subscribe(self._topics.requests, keys=coverage, callback=self._hear)
            self._coverage = coverage

    # ------------------------------------------------------------------------------------------------------------------
    # Requests.

    async def _hear(self, sample: Sample) -> None:
        # Under another key, anybody could bring a request to points that do not cover it.
        await self._answer_to(self._accept(sample.data, lambda found: request_key(found.question) == sample.key))

    async def _hear_alone(self, sample: Sample) -> None:
        await self._answer_to(self._accept(sample.data, lambda found: self._covers(found.question)))

    def _covers(self, question: AccessQuestion) -> bool:
        keys = None if self._reading is None else self._reading.keys
        return keys is None or keys.match(request_key(question)) is not None

    async def _answer_to(self, request: AccessRequest | None) -> None:
        if request is None:
            return
        answer = self._answer(request)
        if answer is None:
            return
        if request.reply_to is not None:
            self._send_back(request.reply_to, request.sender, answer)
        elif self._writer is not None:
            try:
                await self._writer.publish(answer, key=answer_key(request.question.digest))
            except PenstockError as error:
                self._drop("unsent", error)

    def _hear_link(self, principal: Principal, data: bytes, reply: LinkReply) -> None:
        if self._closed:
            return
        # Whoever has the link could let the point answer to others' requests.
        request = self._accept(data, lambda found: found.sender == principal)
        if request is None:
            return
        answer = self._answer(request)
        if answer is not None:
            reply(answer)

    def _send_back(self, address: str, principal: Principal, answer: bytes) -> None:
        if self._links is None:
            self.counts["no-links"] += 1
            return
        links = self._links

        async def send() -> None:
            try:
                await links.send(address, principal, answer)
            except PenstockError as error:
                self._drop("unsent", error)

        # An address that does not answer keeps nobody else waiting.
        task = in_background("sending an answer straight back", send())
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    def _drop(self, why: str, error: PenstockError) -> None:
        self.counts[why] += 1
        self._note(error)

    def _accept(self, data: bytes, is_here: Callable[[AccessRequest], bool]) -> AccessRequest | None:
        """Return a request that is to be answered; see the module for the order of checks."""
        self.counts["requests"] += 1
        try:
            found = request_from_bytes(data)
        except PenstockError as error:
            self._drop("malformed", error)
            return None
        request, now = found.value, self._clock.now()
        why = self._problem(found, now) if is_here(request) else "misdirected"
        if why is None:
            try:
                found.verify()
            except RefusedError as error:
                self._drop("forged", error)
                return None
            why = self._charge(found, now)
        if why is not None:
            self.counts[why] += 1
            return None
        return request

    def _problem(self, found: UnverifiedValue[AccessRequest], now: float) -> str | None:
        request = found.value
        moment = datetime.fromtimestamp(now, UTC)
        if request.until < moment or request.time - moment > _SKEW:
            return "late"
        question, rights = request.question, self._rights
        if rights is not None and not rights.may(request.sender, DecisionRight.ASK, question.resource, moment):
            return "unauthorized"
        sender = self._senders.get(request.sender)
        return "copies" if sender is not None and found.digest in sender.seen else None

    def _charge(self, found: UnverifiedValue[AccessRequest], now: float) -> str | None:
        request = found.value
        sender = self._senders.get(request.sender)
        if sender is None:
            if not self._make_room(now):
                return "limited"
            sender = self._senders[request.sender] = PointSender(self._rate.burst, now, OrderedDict())
        self._senders.move_to_end(request.sender)
        sender.forget(now)
        if not sender.charge(self._rate, now):
            return "limited"
        sender.seen[found.digest] = request.until.timestamp()
        return None

    def _make_room(self, now: float) -> bool:
        """Forget a sender if there are too many, and return whether there is room. Copies must stay known as copies."""
        if len(self._senders) < POINT_SENDERS:
            return True
        for principal, sender in islice(self._senders.items(), _TRIED):
            sender.forget(now)
            if not sender.seen:
                del self._senders[principal]
                return True
        return False

    # ------------------------------------------------------------------------------------------------------------------
    # Answers.

    def _answer(self, request: AccessRequest) -> bytes | None:
        """Return the signed answer to a request; None if there is none to give."""
        now = datetime.fromtimestamp(self._clock.now(), UTC)
        self.counts["answers"] += 1
        try:
            return self._signed(request, self._source.decide(request.question, now), now)
        except PenstockError as error:
            self._drop("failed", error)
            outcome = PolicyOutcome(XacmlDecision.INDETERMINATE_DP, DecisionStatus(error.code))
        except Exception as error:  # noqa: BLE001  # one question must not end the point
            self.counts["failed"] += 1
            report("deciding a question", error)
            outcome = PolicyOutcome(XacmlDecision.INDETERMINATE_DP, DecisionStatus("pdp.failed"))
        return self._signed(request, PointDecision(outcome, ()), now)

    def _signed(self, request: AccessRequest, decided: PointDecision, now: datetime) -> bytes:
        outcome = decided.outcome
        effect, (obligations, advice) = AnswerEffect.of(outcome.decision), duties_of(outcome)
        plain = effect in (AnswerEffect.PERMIT, AnswerEffect.DENY) and not obligations
        answer = AccessAnswer(
            request.question.digest,
            effect,
            decided.rests_on,
            self._key.principal,
            now,
            now + self._lifetime,
            outcome.status.code if effect is AnswerEffect.INDETERMINATE else None,
            obligations,
            advice,
            decided.recycling if plain else None,
            decided.holds_for if plain else None,
        )
        return answer_bytes(answer, self._key)
