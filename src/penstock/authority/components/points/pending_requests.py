"""Requests that wait for replies: by number, with one timer for all of them.

A replier begins to read a requester's requests when it has read what the requester requires. So a requester that was
answered by nobody since it published this asks again, after a part of the lifespan and then after twice as long.
"""

import asyncio
import heapq
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from penstock.fabric import Clock
from penstock.fabric.tasks import in_background

T = TypeVar("T")
#: the part of the lifespan after which an unanswered request is written again for the first time
FIRST_PAUSE: Final = 1 / 16


class PendingRequests(Generic[T]):
    """What waits, by the number of its request.

    `over` is called with what still waits when its time has come, and returns until when it waits further, or None.
    Times are those of `Clock.steady`: nobody waits longer because somebody has set the clock.
    """

    def __init__(self, clock: Clock, over: Callable[[int, T], float | None]) -> None:
        self._clock = clock
        self._over = over
        self._waiting: dict[int, T] = {}
        #: when to look at which request; those that were answered are passed over
        self._due: list[tuple[float, int]] = []
        self._timer: asyncio.Task[None] | None = None
        self._until = 0.0

    def __len__(self) -> int:
        return len(self._waiting)

    def get(self, number: int) -> T | None:
        """Return what waits under a number."""
        return self._waiting.get(number)

    def add(self, number: int, waiting: T, until: float) -> None:
        """Let something wait until a time."""
        self._waiting[number] = waiting
        heapq.heappush(self._due, (until, number))
        if self._timer is None or until < self._until:
            self._start()

    def remove(self, number: int) -> T | None:
        """Return what waits under a number, which waits no more."""
        return self._waiting.pop(number, None)

    def close(self) -> list[T]:
        """Stop the timer, and return what still waits."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        left = [*self._waiting.values()]
        self._waiting.clear()
        self._due.clear()
        return left

    def _start(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._until = self._due[0][0]
        self._timer = in_background("waiting for replies", self._run())

    async def _run(self) -> None:
        try:
            while self._due:
                self._until = self._due[0][0]
                left = self._until - self._clock.steady()
                if left > 0:
                    await self._clock.sleep(left)
                    continue
                _, number = heapq.heappop(self._due)
                waiting = self._waiting.get(number)
                until = None if waiting is None else self._over(number, waiting)
                if until is not None and number in self._waiting:
                    heapq.heappush(self._due, (until, number))
        finally:
            if self._timer is asyncio.current_task():
                self._timer = None
