"""No task ends unnoticed: tasks are made in one module, which reports, restarts and names those that fail."""

import ast
import asyncio
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.fabric import tasks
from penstock.fabric.tasks import failing, heeding, in_background, keep_running, waited_for

SOURCE = Path(penstock.__file__).parent
#: calls that make a task; its exception is lost unless somebody takes it
MAKERS = frozenset({"create_task", "ensure_future", "run_coroutine_threadsafe", "TaskGroup"})


def makers(path: Path) -> Iterator[str]:
    """Yield the places in a module where tasks are made."""
    text = path.read_text()
    # To read a module as a tree takes long, and few name one of them.
    for node in ast.walk(ast.parse(text)) if any(name in text for name in MAKERS) else ():
        if isinstance(node, ast.Call):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called in MAKERS:
                yield f"{path.relative_to(SOURCE)}:{node.lineno} {called}"


def test_tasks_are_made_in_one_module() -> None:
    found = [each for path in SOURCE.rglob("*.py") if path != Path(tasks.__file__) for each in makers(path)]
    # From a thread that reads lines; the result is waited for in the same expression. And an event loop makes tasks.
    allowed = [each for each in found if each.startswith(("apps/cli/pub_sub.py", "simulate/loop.py"))]
    assert found == allowed
    assert len(allowed) <= 3


def test_the_lint_finds_what_makes_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = tmp_path / "made.py"
    made.write_text("import asyncio\nasyncio.get_running_loop().create_task(x())\nensure_future(y())\n")
    monkeypatch.setitem(globals(), "SOURCE", tmp_path)
    assert list(makers(made)) == ["made.py:2 create_task", "made.py:3 ensure_future"]


def test_nothing_waits_by_what_swallows_cancellations() -> None:
    found = [path for path in SOURCE.rglob("*.py") if "asyncio.wait_for(" in path.read_text()]
    assert [path for path in found if "testing" not in path.parts] == []


class Heard:
    """What the exception handler of the event loop received."""

    def __init__(self) -> None:
        self.reports: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _loop, context: self.reports.append(context))

    @property
    def messages(self) -> list[str]:
        return [str(each["message"]) for each in self.reports]


def run(test: Coroutine[object, object, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(30):
            await test

    asyncio.run(bounded())


async def until(holds: Callable[[], object]) -> None:
    while not holds():
        await asyncio.sleep(0.001)


def test_a_task_that_fails_is_reported_named_and_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "_SETTLED", 0.05)

    async def main() -> None:
        heard, turns, going = Heard(), 0, asyncio.Event()

        async def work() -> None:
            nonlocal turns
            turns += 1
            if turns <= 2:
                raise ValueError("a message from outside")
            await going.wait()

        task = keep_running("reading", work)
        await until(lambda: turns)
        assert failing() == ["reading"]
        await until(lambda: turns == 3)
        assert heard.messages == ["reading failed and starts again"] * 2
        await until(lambda: not failing())
        going.set()
        await task

    run(main())


def test_a_future_that_somebody_else_cancels_does_not_end_a_task() -> None:
    async def main() -> None:
        heard, futures = Heard(), list[asyncio.Future[None]]()

        async def work() -> None:
            futures.append(asyncio.get_running_loop().create_future())
            await futures[-1]

        task = keep_running("asking", work)
        await until(lambda: futures)
        futures[0].cancel()
        await until(lambda: len(futures) == 2)
        assert heard.messages == ["asking was interrupted and starts again"]
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled()
        assert failing() == []

    run(main())


def test_what_background_work_raises_is_reported() -> None:
    async def main() -> None:
        heard = Heard()

        async def work() -> None:
            raise LookupError

        await until(in_background("closing", work()).done)
        await until(lambda: heard.messages == ["closing failed"])
        with pytest.raises(LookupError):
            await waited_for(work())
        assert heard.messages == ["closing failed"]

    run(main())


async def swallowing() -> str:
    """Wait as `asyncio.wait_for` does when what it waits for is done in the moment in which it is cancelled."""
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        return "done"
    return "late"


def test_a_cancellation_that_foreign_code_swallows_is_raised() -> None:
    async def main() -> None:
        went_on: list[str] = []

        async def work() -> None:
            went_on.append(await heeding(swallowing()))

        task = waited_for(work())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert went_on == []

    run(main())


def test_what_is_over_in_time_is_returned_and_a_cancelled_task_may_clean_up() -> None:
    async def main() -> None:
        cleaned: list[str] = []

        async def answer() -> str:
            await asyncio.sleep(0)
            return "answer"

        async def work() -> None:
            try:
                await asyncio.sleep(60)
            finally:
                cleaned.append(await heeding(answer()))

        assert await heeding(answer()) == "answer"
        task = waited_for(work())
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert (cleaned, task.cancelled()) == (["answer"], True)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.001):
                await heeding(swallowing())

    run(main())
