"""Tasks whose end is noticed: the only module that makes tasks (`tests/test_tasks.py` checks it).

| made by | for | when it raises |
|---|---|---|
| `keep_running` | loops that last as long as what they serve | reported, started again after a pause, and `failing` |
| `in_background` | work that nobody waits for | reported |
| `waited_for` | work whose result the caller takes | raised where the caller takes it |

Reports go to the exception handler of the event loop, which logs them. As with `asyncio.all_tasks`, what fails is known
for each event loop.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, TypeVar
from weakref import WeakKeyDictionary

_T = TypeVar("_T")
#: seconds before the first restart; doubles
_FIRST_PAUSE: Final = 0.05
_LONGEST_PAUSE: Final = 5.0
#: seconds that a task has to run after a restart until it counts as sound
_SETTLED: Final = 2.0

_FAILING: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, dict[object, str]]] = WeakKeyDictionary()
#: the event loop holds its tasks weakly
_HELD: Final[set[asyncio.Task[Any]]] = set()


def keep_running(name: str, work: Callable[[], Awaitable[None]]) -> asyncio.Task[None]:
    """Run `work` in a task until it returns or the task is cancelled; run it again whenever it raises."""
    return asyncio.get_running_loop().create_task(_keep_running(name, work), name=name)


def in_background(name: str, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """Run `work` in a background task; report its errors."""
    task = asyncio.get_running_loop().create_task(work, name=name)
    _HELD.add(task)
    task.add_done_callback(_ended)
    return task


def waited_for(work: Awaitable[_T]) -> asyncio.Future[_T]:
    """Run `work` in a task. The caller takes its result, or cancels it and gathers it."""
    return asyncio.ensure_future(work)


async def heeding(work: Awaitable[_T]) -> _T:
    """Wait for foreign code that may swallow a cancellation of this task, and raise `CancelledError` anyway.

    `asyncio.wait_for` does so up to Python 3.11 if what it waits for is done at that moment.
    """
    task = asyncio.current_task()
    before = task.cancelling() if task else 0
    try:
        return await work
    finally:
        if task and task.cancelling() > before:
            raise asyncio.CancelledError


def report(message: str, error: BaseException) -> None:
    """Pass an error that nobody else handles to the exception handler of the event loop."""
    asyncio.get_running_loop().call_exception_handler({"message": message, "exception": error})


def failing() -> list[str]:
    """Return the names of tasks of this event loop that have failed and not yet run for `_SETTLED` since."""
    return sorted(_FAILING.get(asyncio.get_running_loop(), {}).values())


async def _keep_running(name: str, work: Callable[[], Awaitable[None]]) -> None:
    loop = asyncio.get_running_loop()
    known, me = _FAILING.setdefault(loop, {}), object()
    settled: asyncio.TimerHandle | None = None
    pause = _FIRST_PAUSE
    try:
        while True:
            began = loop.time()
            try:
                await work()
            except asyncio.CancelledError as error:
                # A cancelled future inside looks the same as a cancellation of this task.
                task = asyncio.current_task()
                if task is None or task.cancelling():
                    raise
                report(f"{name} was interrupted and starts again", error)
            except Exception as error:  # noqa: BLE001  # whatever it is, the task must go on
                report(f"{name} failed and starts again", error)
            else:
                return
            if settled is not None:
                settled.cancel()
            known[me] = name
            if loop.time() - began > _SETTLED:
                pause = _FIRST_PAUSE
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
            settled = loop.call_later(_SETTLED, known.pop, me, None)
    finally:
        if settled is not None:
            settled.cancel()
        known.pop(me, None)


def forget_tasks(loop: asyncio.AbstractEventLoop) -> None:
    """Let go of the background tasks of an event loop that is closed: they will not end."""
    _HELD.difference_update([task for task in _HELD if task.get_loop() is loop])


def _ended(task: asyncio.Task[None]) -> None:
    _HELD.discard(task)
    if not task.cancelled() and (error := task.exception()) is not None:
        report(f"{task.get_name()} failed", error)
