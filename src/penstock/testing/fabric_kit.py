"""Tools for tests of adapters of `penstock.fabric`: a manual clock, and conditions to wait for."""
# ruff: noqa: S101  # tests assert

import asyncio
import heapq
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from itertools import count
from typing import Final, TypeVar

from penstock.errors import PenstockError
from penstock.fabric.port import Clock, Fabric, TopicSubscription
from penstock.fabric.qos import KEEP_ALL, Durability, Qos, Reliability

PATIENCE: Final = 60.0
_MOMENT: Final = 0.05

PERSISTENT: Final = Durability.PERSISTENT
RELIABLE: Final = Reliability.RELIABLE
EVENTS: Final = Qos()
STATE: Final = Qos(durability=Durability.TRANSIENT, history=1, reliability=RELIABLE)
LOG: Final = Qos(durability=Durability.TRANSIENT, history=KEEP_ALL, reliability=RELIABLE)
LIVE: Final = Qos(history=KEEP_ALL, reliability=RELIABLE)


class ManualClock:
    """A clock that stands still until a test moves it."""

    def __init__(self, start: float = 1_800_000_000.0) -> None:
        self._now = start
        self._numbers = count()
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []

    def now(self) -> float:
        """Return the seconds since 1970."""
        return self._now

    async def sleep(self, seconds: float) -> None:
        """Wait until the clock was moved so far."""
        waking: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._now + seconds, next(self._numbers), waking))
        await waking

    async def advance(self, seconds: float) -> None:
        """Move the clock; tasks that slept until then have run when this returns."""
        end = self._now + seconds
        while self._sleepers and self._sleepers[0][0] <= end:
            self._now, _, waking = heapq.heappop(self._sleepers)
            if not waking.done():
                waking.set_result(None)
            for _ in range(10):
                await asyncio.sleep(0)
        self._now = end
        for _ in range(10):
            await asyncio.sleep(0)


@contextmanager
def refused(code: str) -> Iterator[None]:
    """Expect an error of Penstock with this code."""
    try:
        yield
    except PenstockError as error:
        if error.code != code:
            raise AssertionError(f"{error.code} instead of {code}") from error
    else:
        raise AssertionError(f"nothing was refused; expected {code}")


_CaseT = TypeVar("_CaseT", bound="FabricCase")


def scenario(test: Callable[[_CaseT, Fabric], Awaitable[None]]) -> Callable[[_CaseT], None]:
    """Run a test with a fabric of its own, in an event loop of its own, for a bounded time."""

    @wraps(test)
    def run(self: _CaseT) -> None:
        async def whole() -> None:
            self.clock = ManualClock()
            async with asyncio.timeout(PATIENCE), await self.open(self.clock) as fabric:
                await test(self, fabric)
            left = asyncio.all_tasks() - {asyncio.current_task()}
            assert not left, f"tasks are left: {left}"

        asyncio.run(whole())

    del run.__wrapped__  # or pytest looks for a fixture named `fabric`
    return run


async def take(subscription: TopicSubscription, number: int) -> list[bytes]:
    """Return the data of this many samples."""
    return [(await asyncio.wait_for(anext(subscription), PATIENCE)).data for _ in range(number)]


async def nothing(subscription: TopicSubscription) -> None:
    """Expect that no sample comes."""
    try:
        sample = await asyncio.wait_for(anext(subscription), _MOMENT)
    except TimeoutError:
        return
    raise AssertionError(f"unexpected: {sample}")


async def until(holds: Callable[[], bool]) -> None:
    """Wait until something holds."""
    end = asyncio.get_running_loop().time() + PATIENCE
    while not holds():
        assert asyncio.get_running_loop().time() < end, "it never held"
        await asyncio.sleep(0.005)


@contextmanager
def refused_end() -> Iterator[None]:
    """Expect the end of an iterator."""
    try:
        yield
    except StopAsyncIteration:
        return
    raise AssertionError("the iterator went on")


class FabricCase(ABC):
    """The base of tests of an adapter: how to open a fabric."""

    clock: ManualClock

    @abstractmethod
    async def open(self, clock: Clock) -> Fabric:
        """Return a new fabric without topics. Persistent topics must be possible."""

    async def join(self, fabric: Fabric) -> Fabric:
        """Return a second client of the same fabric; the same object if there are no clients."""
        return fabric

    async def leave(self, first: Fabric, second: Fabric) -> None:
        """Close a second client."""
        if second is not first:
            await second.close()
