"""Requests that wait: one timer for all, in the order of their times."""

import asyncio
from collections.abc import Awaitable, Callable

from penstock.authority.components.points.pending_requests import PendingRequests
from penstock.testing.fabric_suite import ManualClock


def run(scenario: Callable[[ManualClock], Awaitable[None]]) -> None:
    async def whole() -> None:
        await scenario(ManualClock())

    asyncio.run(whole())


def test_each_is_looked_at_when_its_time_has_come() -> None:
    seen: list[tuple[str, float]] = []

    async def scenario(clock: ManualClock) -> None:
        start = clock.steady()

        def over(number: int, waiting: str) -> float | None:
            seen.append((waiting, clock.steady() - start))
            if waiting == "again" and len(seen) < 3:
                return clock.steady() + 10
            pending.remove(number)
            return None

        pending: PendingRequests[str] = PendingRequests(clock, over)
        pending.add(1, "late", start + 5)
        pending.add(2, "soon", start + 1)
        pending.add(3, "answered", start + 2)
        pending.add(4, "again", start + 3)
        assert pending.remove(3) == "answered"
        assert (pending.get(3), pending.get(1), len(pending)) == (None, "late", 3)
        await asyncio.sleep(0)
        await clock.advance(20)
        assert len(pending) == 0
        pending.add(5, "afterwards", clock.steady() + 1)
        await asyncio.sleep(0)
        await clock.advance(1)

    run(scenario)
    assert seen == [("soon", 1), ("again", 3), ("late", 5), ("again", 13), ("afterwards", 21)]


def test_closing_returns_what_waits_and_ends_the_timer() -> None:
    async def scenario(clock: ManualClock) -> None:
        pending: PendingRequests[str] = PendingRequests(clock, lambda _number, _waiting: None)
        pending.add(1, "a", clock.steady() + 1)
        await asyncio.sleep(0)
        assert pending.close() == ["a"]
        await asyncio.sleep(0)
        assert [*asyncio.all_tasks()] == [asyncio.current_task()]
        await clock.advance(2)

    run(scenario)


def test_there_is_one_timer_whatever_waits() -> None:
    async def scenario(clock: ManualClock) -> None:
        pending: PendingRequests[int] = PendingRequests(clock, lambda number, _: pending.remove(number))
        for number in range(100):
            pending.add(number, number, clock.steady() + 5 - number / 100)
        await asyncio.sleep(0)
        assert len(asyncio.all_tasks()) == 2
        await clock.advance(6)
        assert len(pending) == 0

    run(scenario)
