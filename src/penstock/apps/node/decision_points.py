"""Remote decision points as a source of authority in a broker, which asks them through an enforcement point.

A request of a client is decided when the points have answered, or have not answered in time. While the client is
connected, the broker asks again when a point that answered announces a policy update that may concern the answer, and
in any case every `refresh` seconds, and decides the client's requests again if the answer changes. An answer counts no
longer than it says: if the points are silent, what they permitted ends then. The question is:

| AuthZEN | value |
|---|---|
| subject | type `principal`, id the principal |
| action | `publish` or `subscribe` |
| resource | type `event-type`, id `owner/name`, without a version |
"""

import asyncio
from collections.abc import Callable, Collection
from datetime import datetime
from typing import Final, Protocol

from penstock.apps.node.load import PointsPlace
from penstock.authority.decisions.modes import AskedDecision
from penstock.authority.decisions.questions import AccessQuestion
from penstock.authority.decisions.secondary_point import MAX_AGE
from penstock.authority.decisions.updates import UpdateTopics, UpdateWatch, concerns
from penstock.errors import PenstockError
from penstock.fabric import Fabric
from penstock.fabric.tasks import in_background
from penstock.guard.point_answers import PointAnswer, PointAnswers, PointQuestion
from penstock.model.names import TypeName
from penstock.model.principals import Principal
from penstock.trust.capabilities import Right

#: seconds between two looks at what is due
_LOOK: Final = 0.1
#: questions that wait for an answer at a time
_TOGETHER: Final = 256
#: a point announces an update before it uses it: seconds until it is asked again, and how often
_AGAIN: Final = 0.02
_TIMES: Final = 50


class AsksPoints(Protocol):
    """An enforcement point."""

    async def ask(self, question: AccessQuestion) -> AskedDecision:
        """Ask decision points. Raises `PenstockError` if there is no answer."""


class BrokerPoints:
    """See the module. `changed` receives the principals concerned, `note` what keeps points from answering."""

    def __init__(
        self,
        place: PointsPlace,
        point: AsksPoints,
        clock: Callable[[], datetime],
        note: Callable[[PenstockError], None],
    ) -> None:
        self.authority = PointAnswers(place.owners)
        self._place = place
        self._point = point
        self._clock = clock
        self._note = note
        #: when questions were asked last, by the clock of the event loop, and those that wait
        self._last: dict[PointQuestion, float] = {}
        self._waiting: dict[PointQuestion, asyncio.Task[None]] = {}
        self._changed: set[Principal] = set()
        self._tell: Callable[[frozenset[Principal]], None] | None = None
        self._problem = ""
        self._updates = UpdateWatch(MAX_AGE)

    async def prepare(self, principal: Principal, right: Right, name: TypeName) -> None:
        """Ask about a request before it is decided, if nothing is known."""
        if name.owner not in self.authority.owners:
            return
        question = PointQuestion(principal, right, name.key)
        if self.authority.answer(question) is None:
            while question not in self._waiting and len(self._waiting) >= _TOGETHER:
                await asyncio.wait(self._waiting.values(), return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait([self._ask(question)])

    async def follow(
        self, live: Callable[[], Collection[Principal]], changed: Callable[[frozenset[Principal]], None]
    ) -> None:
        """Keep the answers current until cancelled."""
        self._tell = changed
        while True:
            await asyncio.sleep(_LOOK)
            affected = self.look(live())
            if affected:
                changed(affected)

    async def listen(self, fabric: Fabric) -> None:
        """Ask again what policy updates on the fabric may concern, until cancelled."""
        topics = UpdateTopics()
        await topics.declare(fabric)
        async with await fabric.subscribe(topics.updates) as samples:
            async for sample in samples:
                self.hear(sample.data)

    def hear(self, data: bytes) -> None:
        """Ask again what an update of a point that answered may concern."""
        try:
            changes = self._updates.take(data, *self._times())
        except PenstockError:
            # Anybody can send junk: the next look asks anyway.
            return
        for question in [*self.authority.questions] if changes else ():
            if any(concerns(change, _access_question(question)) for change in changes):
                self._last.pop(question, None)
                if len(self._waiting) < _TOGETHER:
                    self._ask(question)

    def look(self, live: Collection[Principal]) -> frozenset[Principal]:
        """Drop answers that have ended, ask what is due, and return the principals whose answers have changed."""
        now, moment = asyncio.get_running_loop().time(), self._clock()
        questions = self.authority.questions
        for question in [one for one in questions if one.principal not in live]:
            # Nobody asks for it any more; a client that connects asks again.
            del questions[question]
        for question, answer in [*questions.items()]:
            if answer is not None and answer.until <= moment:
                self._put(question, None)
        for question in [one for one in self._last if one not in questions]:
            del self._last[question]
        last, due = self._last, now - self._place.refresh
        # Whoever waits longest is first, so that a client with many questions does not starve the others.
        waiting = [one for one in questions if one not in self._waiting and last.get(one, due) <= due]
        for question in sorted(waiting, key=lambda one: last.get(one, 0.0)):
            if len(self._waiting) >= _TOGETHER:
                break
            self._ask(question)
        affected = frozenset(self._changed | self.authority.evicted)
        self._changed.clear()
        self.authority.evicted.clear()
        return affected

    def _ask(self, question: PointQuestion) -> "asyncio.Task[None]":
        waiting = self._waiting.get(question)
        if waiting is None:
            self._last[question] = asyncio.get_running_loop().time()
            waiting = self._waiting[question] = in_background("asking decision points", self._asked(question))
            waiting.add_done_callback(lambda _: self._waiting.pop(question, None))
        return waiting

    async def _asked(self, question: PointQuestion) -> None:
        try:
            found = await self._current(_access_question(question))
        except PenstockError as error:
            # The last answer counts as long as it says.
            if error.code != self._problem:
                self._note(error)
            self._problem = error.code
            return
        self._problem = ""
        answers = [answer.value for answer in found.answers]
        until = min((answer.until for answer in answers), default=self._clock())
        by = tuple(dict.fromkeys(f"point:{answer.point}" for answer in answers))
        self._put(question, PointAnswer(found.permits(), until, by))
        if self._changed and self._tell is not None:
            # Not at the next look: nobody may see the new answer while live subscriptions follow the old one.
            affected, self._changed = frozenset(self._changed), set()
            self._tell(affected)

    async def _current(self, question: AccessQuestion) -> AskedDecision:
        """Ask until the points that answer use the policies that they announced."""
        for _ in range(_TIMES):
            found = await self._point.ask(question)
            times = self._times()
            if not [answer for answer in found.answers if self._updates.is_old(answer.value, *times)]:
                return found
            await asyncio.sleep(_AGAIN)
        return await self._point.ask(question)

    def _times(self) -> tuple[float, float]:
        """Return the time by the clock, and by one that nobody sets."""
        return self._clock().timestamp(), asyncio.get_running_loop().time()

    def _put(self, question: PointQuestion, answer: PointAnswer | None) -> None:
        if self.authority.put(question, answer):
            self._changed.add(question.principal)

    def close(self) -> None:
        """Stop asking."""
        for task in [*self._waiting.values()]:
            task.cancel()


def _access_question(question: PointQuestion) -> AccessQuestion:
    return AccessQuestion.of(
        ("principal", str(question.principal)), str(question.action), ("event-type", str(question.type))
    )
