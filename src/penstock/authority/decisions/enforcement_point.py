"""A policy enforcement point: it asks decision points, and believes only those that may decide.

    async with EnforcementPoint(fabric, key, rights) as point:
        decision = await point.ask(AccessQuestion.of(("user", "alice"), "read", ("document", "report-7")))
        if decision.permits():
            ...

Over the fabric it subscribes to the answer by the question's digest, publishes the request, takes the answer and
unsubscribes; neither side knows the other. Straight back, the request names the address at which this point listens.
Point to point, requests go over links to points that are configured. Who asks the same question at the same time shares
one request. A secondary decision point answers before anybody is asked, where it can, and learns what was answered.

An answer counts if it (1) is to a question that waits, (2) is valid now, (3) comes from a principal with the capability
to decide about the resource, (4) is signed by it, and (5) does not rest on older policies than an answer before, unless
the mode compares nothing. Without a decision in time `ask` raises: nothing is permitted without an answer.
"""

import asyncio
import secrets
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, Final, Self

from penstock.authority.decisions.coverage import answer_key, request_key
from penstock.authority.decisions.decision_point import TOPICS, DecisionTopics, Note, quiet
from penstock.authority.decisions.links import LinkReply, PointLinks
from penstock.authority.decisions.messages import AccessAnswer, AccessRequest, PolicyRevision, read_answer
from penstock.authority.decisions.modes import FIRST, AnswerMode, AskedDecision
from penstock.authority.decisions.questions import AccessQuestion
from penstock.authority.decisions.rights import DecisionRights
from penstock.authority.decisions.secondary_point import SecondaryPoint
from penstock.authority.limits import PEP_ANSWERS, PEP_POLICIES, PEP_QUESTIONS, POINT_SKEW, REQUEST_LIFESPAN
from penstock.crypto import Signer
from penstock.errors import LimitError, MalformedError, PenstockError, RefusedError
from penstock.fabric import Clock, Fabric, Publisher, RandomBytes, Sample, SystemClock, TopicSubscription
from penstock.fabric.tasks import waited_for
from penstock.model.principals import Principal
from penstock.trust.capabilities import DecisionRight
from penstock.trust.signed import SignedValue, signed_bytes

#: numbers of requests begin at random, so that two points with one key do not send the same request
_NUMBER_BYTES: Final = 6


class AskPath(StrEnum):
    """How requests and answers travel."""

    DIRECT = "direct"
    FABRIC = "fabric"
    STRAIGHT_BACK = "straight-back"


@dataclass(frozen=True, slots=True)
class PointAddress:
    """A decision point that is asked point to point."""

    address: str
    principal: Principal


@dataclass(eq=False)
class _Waiting:
    """A question that waits for answers."""

    question: AccessQuestion
    answers: dict[Principal, SignedValue[AccessAnswer]] = field(default_factory=dict)
    #: the digests of bytes that were looked at
    seen: set[int] = field(default_factory=set)
    #: why answers did not count, by code
    dropped: Counter[str] = field(default_factory=Counter)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    #: how many callers wait, and what they share
    callers: int = 0
    task: "asyncio.Future[AskedDecision] | None" = None


class EnforcementPoint:
    """See the module. `timeout` is in seconds."""

    def __init__(  # noqa: PLR0913  # named settings, each with a default
        self,
        fabric: Fabric | None,
        key: Signer,
        rights: DecisionRights,
        *,
        path: AskPath = AskPath.FABRIC,
        mode: AnswerMode = FIRST,
        timeout: float = 2.0,
        topics: DecisionTopics = TOPICS,
        clock: Clock | None = None,
        random: RandomBytes = secrets.token_bytes,
        links: PointLinks | None = None,
        points: Sequence[PointAddress] = (),
        note: Note = quiet,
        secondary: SecondaryPoint | None = None,
    ) -> None:
        _check(path, fabric, links, points)
        if secondary is not None and not mode.takes_one:
            raise MalformedError(
                "pep.mode",
                "answers of several decision points cannot be recycled as one",
                hint="use `first` or `newest`, or no secondary decision point",
            )
        self._secondary = secondary
        self.counts: Counter[str] = Counter()
        self._fabric = fabric
        self._key = key
        self._rights = rights
        self._path = path
        self._mode = mode
        self._timeout = min(timeout, REQUEST_LIFESPAN / 1000)
        self._topics = topics
        self._clock = clock or SystemClock()
        self._links = links
        self._points = points
        self._note = note
        self._number = int.from_bytes(random(_NUMBER_BYTES))
        self._waiting: dict[bytes, _Waiting] = {}
        #: the newest change of each policy that was seen
        self._newest: OrderedDict[str, PolicyRevision] = OrderedDict()
        self._reading: TopicSubscription | None = None
        self._writer: Publisher | None = None
        self._sending: set[asyncio.Future[None]] = set()

    async def __aenter__(self) -> Self:
        if self._path is not AskPath.FABRIC and self._links is not None:
            self._links.listen(self._hear_link)
        if self._path is not AskPath.DIRECT and self._fabric is not None:
            await self._topics.declare(self._fabric)
            self._writer = await self._fabric.publisher(self._topics.requests)
            if self._path is AskPath.FABRIC:
                self._reading = await self._fabric.subscribe(self._topics.answers, keys=(), callback=self._hear)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Stop asking; questions that wait are refused."""
        tasks: list[asyncio.Future[Any]] = [*self._sending]
        tasks += (waiting.task for waiting in self._waiting.values() if waiting.task is not None)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._reading is not None:
            await self._reading.close()
        if self._writer is not None:
            await self._writer.close()

    async def ask(self, question: AccessQuestion) -> AskedDecision:
        """Ask decision points, and return the decision.

        Raises `RefusedError` if there is none: `pep.no-answer`, `pep.too-few`, `pep.not-believed`, `pep.incomparable`,
        `pep.unreachable`, `pep.closed`; `LimitError` (`pep.limit`); `MalformedError` (`pdp.request`); `FailedError`
        (`log.write`) if a recycled answer cannot be recorded.
        """
        if self._secondary is not None:
            recycled = self._secondary.answer(question)
            if recycled is not None:
                self.counts["recycled"] += 1
                return AskedDecision(recycled.effect, (), derivation=recycled.derivation)
        waiting = self._waiting.get(question.digest)
        if waiting is None or waiting.task is None:
            if len(self._waiting) >= PEP_QUESTIONS:
                raise LimitError("pep.limit", f"{PEP_QUESTIONS} questions wait for an answer", hint="ask later")
            self.counts["requests"] += 1
            waiting = self._waiting[question.digest] = _Waiting(question)
            waiting.task = waited_for(self._ask(waiting))
        else:
            self.counts["shared"] += 1
        waiting.callers += 1
        try:
            # The request goes on for the others if this caller is cancelled.
            return await asyncio.shield(waiting.task)
        except asyncio.CancelledError:
            if waiting.task.cancelled():
                raise RefusedError("pep.closed", "the enforcement point was closed", hint="open it again") from None
            raise
        finally:
            waiting.callers -= 1
            if not waiting.callers and not waiting.task.done():
                waiting.task.cancel()
                self._forget(waiting)  # whoever asks now sends another request

    def _forget(self, waiting: _Waiting) -> bool:
        if self._waiting.get(waiting.question.digest) is not waiting:
            return False
        del self._waiting[waiting.question.digest]
        return True

    async def _ask(self, waiting: _Waiting) -> AskedDecision:
        key = answer_key(waiting.question.digest)
        try:
            await self._open(waiting.question, key)
            await self._collect(waiting)
            return self._conclude(waiting)
        finally:
            self._forget(waiting)
            if self._reading is not None and waiting.question.digest not in self._waiting:
                await self._reading.drop(key)

    async def _open(self, question: AccessQuestion, key: str) -> None:
        """Subscribe to the answer and send the request. Raises as `ask`."""
        request = self._request(question)
        try:
            async with asyncio.timeout(self._timeout):
                if self._reading is not None:
                    await self._reading.add(key)
                await self._send(request, request_key(question))
        except (PenstockError, TimeoutError) as error:
            code, hint = (error.code, error.hint) if isinstance(error, PenstockError) else ("timeout", "")
            self.counts["refused"] += 1
            raise RefusedError("pep.unreachable", f"the request could not be sent: {code}", hint=hint) from error

    def _request(self, question: AccessQuestion) -> bytes:
        self._number += 1
        reply_to = self._links.address if self._path is AskPath.STRAIGHT_BACK and self._links is not None else None
        request = AccessRequest(
            question, self._key.principal, self._number, self._now(), max(1, round(self._timeout * 1000)), reply_to
        )
        return signed_bytes(request, self._key)

    async def _send(self, request: bytes, key: str) -> None:
        if self._writer is not None:
            await self._writer.publish(request, key=key)
        elif self._links is not None:
            # A point that is not there keeps the others from nothing.
            sends = {waited_for(self._links.send(to.address, to.principal, request)) for to in self._points}
            self._sending |= sends
            for send in sends:
                send.add_done_callback(self._sent)
            failed: BaseException | None = None
            while sends:
                done, sends = await asyncio.wait(sends, return_when=asyncio.FIRST_COMPLETED)
                errors = [send.exception() for send in done]
                if not all(errors):
                    return
                failed = errors[0]
            if failed is not None:
                raise failed

    def _sent(self, send: "asyncio.Future[None]") -> None:
        self._sending.discard(send)
        if not send.cancelled() and isinstance(error := send.exception(), PenstockError):
            self._note(error)

    async def _collect(self, waiting: _Waiting) -> None:
        """Wait for as many answers as the mode wants, for its time, and never longer than the timeout."""
        start, mode = self._clock.now(), self._mode
        end = start + self._timeout
        soon = end if mode.wait is None else min(end, start + mode.wait)
        while True:
            now = self._clock.now()
            if len(waiting.answers) >= (mode.answers or PEP_ANSWERS):
                return
            # After its time the mode takes the first answer that comes.
            until = soon if waiting.answers or now < soon else end
            if now >= until:
                return
            waiting.changed.clear()
            await self._wait(waiting.changed, until - now)

    async def _wait(self, changed: asyncio.Event, seconds: float) -> None:
        timer = waited_for(self._clock.sleep(seconds))
        timer.add_done_callback(lambda _: changed.set())
        try:
            await changed.wait()
        finally:
            timer.cancel()
            await asyncio.gather(timer, return_exceptions=True)

    def _conclude(self, waiting: _Waiting) -> AskedDecision:
        answers, mode = [*waiting.answers.values()], self._mode
        if not answers:
            raise self._refusal(waiting)
        for answer in answers:
            # Not before: of the answers to one question, the older ones count as answers too.
            self._learn(answer.value)
        if mode.wait is None and mode.answers is not None and len(answers) < mode.answers:
            self.counts["refused"] += 1
            raise RefusedError(
                "pep.too-few",
                f"{len(answers)} of {mode.answers} decision points answered in time",
                hint="start more decision points, or ask for fewer answers",
            )
        try:
            decision = mode.combine(answers)
        except RefusedError as error:
            self.counts["incomparable"] += 1
            self.counts["disagreements"] += 1
            self._note(error)
            raise
        if decision.disagreed:
            self.counts["disagreements"] += 1
            effects = ", ".join(f"{one.value.point.short}: {one.value.effect}" for one in answers)
            self._note(RefusedError("pep.disagreement", f"decision points answer differently: {effects}"))
        self.counts["answered"] += 1
        if self._secondary is not None:
            for answer in decision.answers:
                self._secondary.learn(waiting.question, answer)
        return decision

    def _refusal(self, waiting: _Waiting) -> RefusedError:
        self.counts["refused"] += 1
        if waiting.dropped:
            reasons = ", ".join(f"{number} {why}" for why, number in waiting.dropped.most_common())
            return RefusedError(
                "pep.not-believed",
                f"answers came, but none can be believed: {reasons}",
                hint="check the decision points' certificates, their clocks, and who else publishes answers",
                reasons=dict(waiting.dropped),
            )
        return RefusedError(
            "pep.no-answer",
            f"no decision point answered within {self._timeout:g} s",
            hint="check that a decision point runs that covers the resource, and that it lets this sender ask",
        )

    # ------------------------------------------------------------------------------------------------------------------
    # Answers.

    async def _hear(self, sample: Sample) -> None:
        self._take(sample.data)

    def _hear_link(self, _principal: Principal, data: bytes, _reply: LinkReply) -> None:
        # What counts is who signed the answer: a cache may send one on.
        self._take(data)

    def _take(self, data: bytes) -> None:
        try:
            found = read_answer(data)
        except PenstockError as error:
            self.counts["malformed"] += 1
            self._note(error)
            return
        answer = found.value
        waiting = self._waiting.get(answer.question)
        if waiting is None:
            self.counts["unasked"] += 1
            return
        mark = hash(data)
        if answer.point in waiting.answers or mark in waiting.seen:
            self.counts["copies"] += 1
            return
        if len(waiting.seen) < PEP_ANSWERS:
            waiting.seen.add(mark)
        why = self._problem(waiting.question, answer)
        if why is None:
            try:
                verified = found.verify()
            except RefusedError:
                why = "forged"
            else:
                waiting.answers[answer.point] = verified
                waiting.changed.set()
                return
        waiting.dropped[why] += 1
        self.counts[why] += 1

    def _problem(self, question: AccessQuestion, answer: AccessAnswer) -> str | None:
        now = self._now()
        if answer.until < now:
            return "late"
        ahead = now + timedelta(seconds=POINT_SKEW)
        if answer.issued > ahead or any(policy.changed > ahead for policy in answer.rests_on):
            return "early"
        if not self._rights.may(answer.point, DecisionRight.DECIDE, question.resource, now):
            return "unauthorized"
        return "stale" if self._mode.compares and self._is_stale(answer) else None

    def _is_stale(self, answer: AccessAnswer) -> bool:
        for policy in answer.rests_on:
            known = self._newest.get(policy.id)
            if known is not None and known.revision != policy.revision and known.changed > policy.changed:
                return True
        return False

    def _learn(self, answer: AccessAnswer) -> None:
        for policy in answer.rests_on:
            known = self._newest.get(policy.id)
            if known is None or known.changed < policy.changed:
                self._newest[policy.id] = policy
                self._newest.move_to_end(policy.id)
                if len(self._newest) > PEP_POLICIES:
                    self._newest.popitem(last=False)

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self._clock.now(), UTC)


def _check(path: AskPath, fabric: Fabric | None, links: PointLinks | None, points: Sequence[PointAddress]) -> None:
    problem = None
    if path is AskPath.DIRECT and (links is None or not points):
        problem = "asking point to point needs links and the addresses of decision points"
    elif path is not AskPath.DIRECT and fabric is None:
        problem = "asking over a fabric needs one"
    elif path is AskPath.STRAIGHT_BACK and (links is None or not links.address):
        problem = "answers that come straight back need an address at which this point listens"
    if problem is not None:
        raise MalformedError("pep.path", problem, hint="see docs/reference/decisions.md")


class BlockingPoint:
    """Ask from a program without an event loop.

    with BlockingPoint(lambda: EnforcementPoint(…)) as point:
        decision = point.ask(question)

    `opened` returns an enforcement point that was not opened yet, within the event loop of this object.
    """

    def __init__(self, opened: Callable[[], AbstractAsyncContextManager[EnforcementPoint]]) -> None:
        self._opened = opened
        self._runner = asyncio.Runner()
        self._manager: AbstractAsyncContextManager[EnforcementPoint] | None = None
        self._point: EnforcementPoint | None = None

    def __enter__(self) -> Self:
        async def enter() -> EnforcementPoint:
            self._manager = self._opened()
            return await self._manager.__aenter__()

        try:
            self._point = self._runner.run(enter())
        except BaseException:
            self._runner.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        async def leave() -> None:
            if self._manager is not None:
                await self._manager.__aexit__(None, None, None)

        try:
            with suppress(PenstockError):
                self._runner.run(leave())
        finally:
            self._point = None
            self._runner.close()

    def ask(self, question: AccessQuestion) -> AskedDecision:
        """Ask, and return the decision. Raises as `EnforcementPoint.ask`."""
        if self._point is None:
            raise RefusedError("pep.closed", "the enforcement point was closed", hint="open it again")
        return self._runner.run(self._point.ask(question))
