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

If the mode compares nothing, one answer is enough: the point that answered first is asked alone about resources of the
same type for `PREFERRED_PERIOD`, and others need not answer in vain. If it does not answer within `PREFERRED_WAIT`, all
are asked, then and for `PREFERRED_PAUSE`.
"""

import asyncio
import secrets
from collections import Counter, OrderedDict
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, Final, Self

from penstock.authority.decisions.coverage import answer_key, request_key
from penstock.authority.decisions.decision_point import TOPICS, DecisionTopics, Note, quiet
from penstock.authority.decisions.links import LinkReply, PointLinks
from penstock.authority.decisions.message_bytes import answer_from_bytes, request_bytes
from penstock.authority.decisions.messages import AccessAnswer, AccessRequest, AnswerEffect, PolicyRevision
from penstock.authority.decisions.modes import FIRST, AnswerMode, AskedDecision
from penstock.authority.decisions.questions import AccessQuestion
from penstock.authority.decisions.rights import DecisionRights
from penstock.authority.decisions.secondary_point import SecondaryPoint
from penstock.authority.limits import (
    PEP_ANSWERS,
    PEP_POLICIES,
    PEP_QUESTIONS,
    POINT_SKEW,
    PREFERRED_PAUSE,
    PREFERRED_PERIOD,
    PREFERRED_WAIT,
    REQUEST_LIFESPAN,
)
from penstock.crypto import Signer
from penstock.errors import LimitError, MalformedError, PenstockError, RefusedError
from penstock.fabric import Clock, Fabric, Publisher, RandomBytes, Sample, SystemClock, TopicSubscription
from penstock.fabric.port import close_all
from penstock.fabric.tasks import in_background, waited_for
from penstock.model.principals import Principal
from penstock.trust.capabilities import DecisionRight
from penstock.trust.signed import SignedValue

_SKEW: Final = timedelta(seconds=POINT_SKEW)
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
    """A question that waits for answers, and the callers that wait for the decision."""

    question: AccessQuestion
    #: the request, and the point that is asked alone
    request: bytes = b""
    preferred: Principal | None = None
    callers: "set[asyncio.Future[AskedDecision]]" = field(default_factory=set)
    answers: dict[Principal, SignedValue[AccessAnswer]] = field(default_factory=dict)
    #: the digests of bytes that were looked at
    seen: set[int] = field(default_factory=set)
    #: why answers did not count, by code
    dropped: Counter[str] = field(default_factory=Counter)
    #: whether the request was sent
    sent: bool = False
    #: how many answers are enough
    enough: int = PEP_ANSWERS
    #: ends what runs when time is over
    stop: Callable[[], object] = lambda: None


@dataclass(frozen=True, slots=True)
class _Preference:
    """The point that is asked alone, or None for all points, and until when by `Clock.steady`."""

    point: Principal | None
    until: float


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
        #: seconds until the answers are looked at, if not enough have come before
        self._soon = self._timeout if mode.wait is None else min(mode.wait, self._timeout)
        self._topics = topics
        self._clock = clock or SystemClock()
        self._links = links
        self._points = points
        self._note = note
        self._number = int.from_bytes(random(_NUMBER_BYTES))
        self._waiting: dict[bytes, _Waiting] = {}
        #: the newest change of each policy, by the point that said so
        self._newest: dict[Principal, OrderedDict[str, PolicyRevision]] = {}
        #: whether one point may be asked alone, and which one, by the type of the resource
        self._prefers = not mode.compares and self._soon > 2 * PREFERRED_WAIT
        self._prefers = self._prefers and (path is not AskPath.DIRECT or len(points) > 1)
        self._preferences: OrderedDict[str, _Preference] = OrderedDict()
        self._reading: TopicSubscription | None = None
        self._writer: Publisher | None = None
        self._to_one: Publisher | None = None
        self._tasks: set[asyncio.Future[None]] = set()

    async def __aenter__(self) -> Self:
        try:
            await self._open_topics()
        except BaseException:
            await self.close()
            raise
        return self

    async def _open_topics(self) -> None:
        if self._path is not AskPath.FABRIC and self._links is not None:
            self._links.listen(self._hear_link)
        if self._path is not AskPath.DIRECT and self._fabric is not None:
            await self._topics.declare(self._fabric)
            self._writer = await self._fabric.publisher(self._topics.requests)
            self._to_one = await self._fabric.publisher(self._topics.to_one)
            if self._path is AskPath.FABRIC:
                self._reading = await self._fabric.subscribe(self._topics.answers, keys=(), callback=self._hear)

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Stop asking; questions that wait are refused."""
        for waiting in [*self._waiting.values()]:
            self._finish(waiting, RefusedError("pep.closed", "the enforcement point was closed", hint="open it again"))
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await close_all((self._reading, self._writer, self._to_one), self._note)

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
                return AskedDecision(recycled.effect, (), recycled=recycled)
        caller: asyncio.Future[AskedDecision] = asyncio.get_running_loop().create_future()
        waiting = self._waiting.get(question.digest)
        if waiting is not None:
            self.counts["shared"] += 1
            waiting.callers.add(caller)
        else:
            if len(self._waiting) >= PEP_QUESTIONS:
                raise LimitError("pep.limit", f"{PEP_QUESTIONS} questions wait for an answer", hint="ask later")
            request, preferred = self._request(question), self._preferred(question) if self._prefers else None
            self.counts["requests"] += 1
            waiting = _Waiting(question, request, preferred, {caller}, enough=self._mode.answers or PEP_ANSWERS)
            self._waiting[question.digest] = waiting
            # Over an open link the request goes first, and the rest is done while it is on its way.
            waiting.sent = self._path is AskPath.DIRECT and self._send_now(waiting)
            if not caller.done():
                self._after(waiting, self._soon if preferred is None else PREFERRED_WAIT)
            if not waiting.sent:
                await self._send_for(waiting, caller)
        try:
            return await caller
        finally:
            waiting.callers.discard(caller)
            if not waiting.callers:
                self._finish(waiting)  # if it waits still, nobody wants the answer any more

    async def _send_for(self, waiting: _Waiting, caller: "asyncio.Future[AskedDecision]") -> None:
        """Send the request for all that wait. If it fails, or this caller is cancelled, the others get the error."""
        try:
            await self._open(waiting)
            waiting.sent = True
        except RefusedError as error:
            self._finish(waiting, error)
        except BaseException:
            caller.cancel()
            self._finish(waiting, RefusedError("pep.unreachable", "sending the request was cancelled"))
            raise

    def _after(self, waiting: _Waiting, seconds: float) -> None:
        """Look at the answers after some time."""
        if isinstance(self._clock, SystemClock):
            # A task for each question would cost more than the rest of waiting.
            waiting.stop = asyncio.get_running_loop().call_later(seconds, self._look, waiting).cancel
            return

        async def look(clock: Clock = self._clock) -> None:
            await clock.sleep(seconds)
            self._look(waiting)

        waiting.stop = self._background("waiting for answers", look()).cancel

    def _look(self, waiting: _Waiting) -> None:
        """Decide when time is over. If only the mode's time is over and there is no answer, take the next one.

        If it is only the preferred point's time, ask all others.
        """
        if waiting.preferred is not None:
            self._prefer(waiting.question, None, PREFERRED_PAUSE)
            waiting.preferred = None
            self.counts["asked-again"] += 1
            self._after(waiting, self._soon - PREFERRED_WAIT)
            self._background("asking all decision points", self._send_again(waiting))
            return
        left = self._timeout - self._soon
        if waiting.answers or waiting.enough == 1 or left <= 0:
            self._finish(waiting)
        else:
            waiting.enough = 1
            self._after(waiting, left)

    def _finish(self, waiting: _Waiting, error: PenstockError | None = None) -> None:
        """Give the callers the decision or an error, and unsubscribe. Does nothing the second time."""
        if self._waiting.get(waiting.question.digest) is not waiting:
            return
        del self._waiting[waiting.question.digest]
        waiting.stop()
        callers = [caller for caller in waiting.callers if not caller.done()]
        if callers:
            try:
                decision = self._conclude(waiting) if error is None else None
            except PenstockError as refusal:
                decision, error = None, refusal
            for caller in callers:
                if decision is not None:
                    caller.set_result(decision)
                elif error is not None:
                    caller.set_exception(error)
        if self._reading is not None:
            # The callers go on with the decision meanwhile.
            self._background("unsubscribing from an answer", self._unsubscribe(self._reading, waiting.question.digest))

    async def _unsubscribe(self, reading: TopicSubscription, digest: bytes) -> None:
        if digest not in self._waiting:
            with suppress(PenstockError):  # if the fabric is away; an answer that nobody waits for is dropped
                await reading.drop(answer_key(digest))

    def _background(self, name: str, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = in_background(name, work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _open(self, waiting: _Waiting) -> None:
        """Subscribe to the answer and send the request. Raises `RefusedError` (`pep.unreachable`)."""
        try:
            async with asyncio.timeout(self._timeout):
                if self._reading is not None:
                    await self._reading.add(answer_key(waiting.question.digest))
                await self._send(waiting)
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
        return request_bytes(request, self._key)

    def _send_now(self, waiting: _Waiting) -> bool:
        """Send the request over the open link to the only point that is asked; return whether there is one."""
        points = self._points
        if waiting.preferred is not None:
            points = [to for to in points if to.principal == waiting.preferred]
        if len(points) != 1 or self._links is None:
            return False
        return self._links.try_send(points[0].address, points[0].principal, waiting.request)

    async def _send(self, waiting: _Waiting) -> None:
        request = waiting.request
        if waiting.preferred is not None and self._to_one is not None:
            await self._to_one.publish(request, key=str(waiting.preferred))
        elif self._writer is not None:
            await self._writer.publish(request, key=request_key(waiting.question))
        elif self._links is not None:
            # A point that is not there keeps the others from nothing.
            sends = {waited_for(self._links.send(to.address, to.principal, request)) for to in self._points}
            self._tasks |= sends
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

    async def _send_again(self, waiting: _Waiting) -> None:
        """Send the same request to all points: who has it already takes this one for a copy."""
        try:
            async with asyncio.timeout(self._timeout):
                await self._send(waiting)
        except PenstockError as error:
            self._note(error)
        except TimeoutError:
            pass  # the question is refused then

    def _preferred(self, question: AccessQuestion) -> Principal | None:
        """Return the point that is to be asked alone."""
        found = self._preferences.get(question.resource.type)
        return None if found is None or found.until < self._clock.steady() else found.point

    def _prefer(self, question: AccessQuestion, point: Principal | None, period: float) -> None:
        """Ask this point alone for some time, or all points, unless that was said before."""
        now, kind = self._clock.steady(), question.resource.type
        found = self._preferences.get(kind)
        if point is None or found is None or found.until < now:
            self._preferences[kind] = _Preference(point, now + period)
            self._preferences.move_to_end(kind)
            if len(self._preferences) > PEP_POLICIES:
                self._preferences.popitem(last=False)

    def _sent(self, send: "asyncio.Future[None]") -> None:
        self._tasks.discard(send)
        if not send.cancelled() and isinstance(error := send.exception(), PenstockError):
            self._note(error)

    def _conclude(self, waiting: _Waiting) -> AskedDecision:
        answers, mode = self._current(waiting), self._mode
        if not answers:
            raise self._refusal(waiting)
        for answer in answers if mode.compares else ():
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
        if self._prefers and decision.effect in (AnswerEffect.PERMIT, AnswerEffect.DENY):
            self._prefer(waiting.question, answers[0].value.point, PREFERRED_PERIOD)
        if self._secondary is not None:
            for answer in answers:
                if any(answer is one for one in decision.answers):
                    self._secondary.learn(waiting.question, answer)
        return decision

    def _refusal(self, waiting: _Waiting) -> RefusedError:
        self.counts["refused"] += 1
        if not waiting.sent:
            return RefusedError("pep.unreachable", "the request could not be sent in time")
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
            found = answer_from_bytes(data)
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
        known = waiting.answers.get(answer.point)
        if mark in waiting.seen or (known is not None and answer.issued <= known.value.issued):
            # A later answer counts instead: the first one may be a copy that somebody kept.
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
                if len(waiting.answers) >= waiting.enough and len(self._current(waiting)) >= waiting.enough:
                    self._finish(waiting)
                return
        waiting.dropped[why] += 1
        self.counts[why] += 1

    def _current(self, waiting: _Waiting) -> list[SignedValue[AccessAnswer]]:
        """Return the answers, without those that ended or became stale while others were waited for."""
        for point, answer in [*waiting.answers.items()] if self._mode.compares else ():
            why = self._problem(waiting.question, answer.value)
            if why is not None:
                del waiting.answers[point]
                waiting.dropped[why] += 1
                self.counts[why] += 1
        return [*waiting.answers.values()]

    def _problem(self, question: AccessQuestion, answer: AccessAnswer) -> str | None:
        now = self._now()
        if answer.until < now:
            return "late"
        ahead = now + _SKEW
        if answer.issued > ahead or any(policy.changed > ahead for policy in answer.rests_on):
            return "early"
        if not self._rights.may(answer.point, DecisionRight.DECIDE, question.resource, now):
            return "unauthorized"
        return "stale" if self._mode.compares and self._is_stale(question, answer, now) else None

    def _is_stale(self, question: AccessQuestion, answer: AccessAnswer, now: datetime) -> bool:
        """Return whether somebody who may decide about the resource has named a newer change of a policy."""
        for point, newest in self._newest.items():
            for policy in answer.rests_on:
                known = newest.get(policy.id)
                if (
                    known is not None
                    and known.revision != policy.revision
                    and known.changed > policy.changed
                    and self._rights.may_decide(point, question.resource, now)
                ):
                    return True
        return False

    def _learn(self, answer: AccessAnswer) -> None:
        newest = self._newest.setdefault(answer.point, OrderedDict())
        for policy in answer.rests_on:
            known = newest.get(policy.id)
            if known is None or known.changed < policy.changed:
                newest[policy.id] = policy
                newest.move_to_end(policy.id)
                if len(newest) > PEP_POLICIES:
                    newest.popitem(last=False)

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
