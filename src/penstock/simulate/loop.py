"""An event loop in virtual time: it advances its clock instead of waiting.

Code runs in **simulated processes**. What a process starts belongs to it: its tasks, callbacks and timers inherit its
context. Each process has a processor of its own. Work that is marked with `spend` keeps that processor busy for a while
of virtual time, and what else the process has to do waits until it is free, so that load and queues are real. A process
can be paused, and killed: then nothing of it runs any more.

Within a process callbacks run in the order that asyncio guarantees. Which process runs next is drawn from the seed, so
that different seeds explore different interleavings. Nothing else is random: one seed always gives the same trace.
"""

import asyncio
import heapq
import itertools
import sys
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from contextvars import Context, ContextVar, copy_context
from random import Random
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, TypeVar
from weakref import WeakSet

from penstock.errors import FailedError
from penstock.fabric.tasks import forget_tasks

_T = TypeVar("_T")
#: how often code that ends can wait again
_CLEANINGS: Final = 100
#: the modules that refuse what is real
_GUARDS: Final = (__name__, "penstock.simulate.isolation")


class SimulatedProcess:
    """A process of a simulation: what runs in it shares one processor, and ends when it is killed."""

    __slots__ = ("alive", "busy_until", "name", "paused", "queue", "reports", "slowness", "spent", "tasks")

    def __init__(self, name: str, reports: list[dict[str, Any]]) -> None:
        self.name = name
        #: the reports of its loop
        self.reports = reports
        self.alive = True
        self.paused = False
        #: until when its processor is busy
        self.busy_until = 0.0
        #: how many times longer its work takes than on other machines
        self.slowness = 1.0
        #: seconds of its processor that were used
        self.spent = 0.0
        self.queue: deque[asyncio.Handle] = deque()
        #: its tasks, as long as somebody else knows them
        self.tasks: WeakSet[asyncio.Task[Any]] = WeakSet()

    def __repr__(self) -> str:
        return f"SimulatedProcess({self.name!r})"


_PROCESS: Final[ContextVar[SimulatedProcess | None]] = ContextVar("_PROCESS", default=None)


def current_process() -> SimulatedProcess | None:
    """Return the process that the running code belongs to; None outside of all processes."""
    return _PROCESS.get()


def spend(seconds: float) -> None:
    """Keep the processor of the current process busy for some time. Outside of a process it costs nothing."""
    process = _PROCESS.get()
    if process is not None:
        seconds *= process.slowness
        process.spent += seconds
        process.busy_until += seconds


if TYPE_CHECKING:
    # What it does not override raises `NotImplementedError`, as `AbstractEventLoop` has it.
    _Loop = asyncio.BaseEventLoop
else:
    _Loop = asyncio.AbstractEventLoop


class VirtualLoop(_Loop):
    """See the module. `seed` decides which process runs next if several can."""

    def __init__(self, seed: int = 0) -> None:
        self._random = Random(seed)  # noqa: S311  # a simulation must be repeatable
        self._now = 0.0
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._numbers = itertools.count()
        #: processes that have something to run, in no particular order
        self._ready: list[SimulatedProcess] = []
        #: what was reported and nobody handled
        self.reports: list[dict[str, Any]] = []
        #: the code that drives the simulation, outside of all processes
        self._driver = SimulatedProcess("driver", self.reports)
        self._processes: dict[str, SimulatedProcess] = {}
        #: what is left of killed processes
        self._dead: list[object] = []
        self._running = self._closed = self._stopping = False
        self._handler: Callable[[asyncio.AbstractEventLoop, dict[str, Any]], object] | None = None
        #: how many callbacks have run
        self.steps = 0

    def reseed(self, seed: int | str) -> None:
        """Let another seed decide from now on which process runs next."""
        self._random.seed(seed)

    # --- Processes -----------------------------------------------------------------------------------------------

    def process(self, name: str) -> SimulatedProcess:
        """Return a new process. One of the same name must have been killed before."""
        before = self._processes.get(name)
        if before is not None and before.alive:
            raise ValueError(f"process `{name}` is running")
        found = self._processes[name] = SimulatedProcess(name, self.reports)
        found.busy_until = self._now
        return found

    @contextmanager
    def within(self, process: SimulatedProcess) -> Iterator[None]:
        """Let everything that is started meanwhile belong to a process."""
        token = _PROCESS.set(process)
        try:
            yield
        finally:
            _PROCESS.reset(token)

    def start(self, process: SimulatedProcess, work: Coroutine[Any, Any, _T]) -> "asyncio.Task[_T]":
        """Run work as a task of a process."""
        return self.create_task(work, name=process.name, context=self.context_of(process))

    def context_of(self, process: SimulatedProcess) -> Context:
        """Return a context for callbacks of a process."""
        context = copy_context()
        context.run(_PROCESS.set, process)
        return context

    def kill(self, process: SimulatedProcess) -> None:
        """End a process as if by `kill -9`: nothing of it runs any more, not even what cleans up."""
        process.alive = False
        # A task that nobody knows any more would clean up now, or whenever memory is collected.
        self._dead += process.tasks
        self._dead += process.queue
        process.queue.clear()

    def pause(self, process: SimulatedProcess) -> None:
        """Stop a process, as a debugger or a full machine does, until `resume`."""
        process.paused = True

    def resume(self, process: SimulatedProcess) -> None:
        """Let a process go on. What it has missed runs now."""
        process.paused = False
        process.busy_until = max(process.busy_until, self._now)
        if process.queue:
            self._ready.append(process)

    def keep(self, work: Coroutine[Any, Any, Any]) -> None:
        """Let go of a coroutine when the loop is closed: nobody may ever have begun with it."""
        if work.cr_frame is not None:  # type: ignore[attr-defined]  # coroutines have one until they end
            self._dead.append(work)

    # --- Time and callbacks --------------------------------------------------------------------------------------

    def time(self) -> float:
        """Return the virtual time in seconds. Within a process it includes what was spent in this callback."""
        process = _PROCESS.get()
        return self._now if process is None else max(self._now, process.busy_until)

    def call_soon(
        self, callback: Callable[..., object], *args: object, context: Context | None = None
    ) -> asyncio.Handle:
        """Run a callback after those that its process has to run already."""
        handle = asyncio.Handle(callback, args, self, context)
        self._enqueue(handle)
        return handle

    def call_later(
        self, delay: float, callback: Callable[..., object], *args: object, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Run a callback some time from now."""
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[..., object], *args: object, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Run a callback at a time."""
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._timers, (when, next(self._numbers), timer))
        return timer

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Do nothing: a cancelled timer is dropped when its time comes."""

    def _enqueue(self, handle: asyncio.Handle) -> None:
        process = handle._context.get(_PROCESS) or self._driver  # type: ignore[attr-defined]  # noqa: SLF001  # every handle has one
        if not process.alive:
            return
        if not process.queue and not process.paused:
            self._ready.append(process)
        process.queue.append(handle)

    def _step(self) -> None:
        """Run one callback, or advance the time to when there is one."""
        while not self._ready:
            if not self._timers:
                raise FailedError(
                    "simulate.stalled",
                    f"at {self._now:.6f} s nothing is left that could happen, and the simulation has not ended",
                    hint="a task waits for something that never comes: look at what was killed or lost last",
                )
            self._advance(self._timers[0][0])
        ready = self._ready
        place = self._random.randrange(len(ready)) if len(ready) > 1 else 0
        ready[place], ready[-1] = ready[-1], ready[place]
        process = ready.pop()
        if process.paused or not process.queue:
            return
        if process.busy_until > self._now:
            # Its processor is busy: it is ready again when that is over.
            self._wake(process)
            return
        process.busy_until = self._now
        handle = process.queue.popleft()
        if process.queue:
            ready.append(process)
        if not handle.cancelled():
            self.steps += 1
            handle._run()  # noqa: SLF001  # what a loop does with a handle
        self._due()

    def _wake(self, process: SimulatedProcess) -> None:
        # In no process: whether it can run is asked when its time comes.
        def ready() -> None:
            if process.queue and not process.paused:
                self._ready.append(process)

        heapq.heappush(self._timers, (process.busy_until, next(self._numbers), _Wake(process.busy_until, ready, self)))

    def _advance(self, when: float) -> None:
        self._now = max(self._now, when)
        self._due()

    def _due(self) -> None:
        timers = self._timers
        while timers and timers[0][0] <= self._now:
            timer = heapq.heappop(timers)[2]
            if timer.cancelled():
                continue
            if isinstance(timer, _Wake):
                timer.ready()
            else:
                self._enqueue(timer)

    # --- Running -------------------------------------------------------------------------------------------------

    def run_forever(self) -> None:
        """Run until `stop`. Raises `FailedError` (`simulate.stalled`) if nothing can happen any more."""
        if self._running or self._closed:
            raise RuntimeError("the loop is running or closed")
        before = asyncio._get_running_loop()  # noqa: SLF001  # for whoever implements an event loop
        self._running = True
        asyncio._set_running_loop(self)  # noqa: SLF001
        try:
            while not self._stopping:
                self._step()
        finally:
            self._running = self._stopping = False
            asyncio._set_running_loop(before)  # noqa: SLF001

    def forked(self) -> None:
        """Go on in a copy of the process: asyncio remembers in which process a loop runs."""
        asyncio._set_running_loop(self)  # noqa: SLF001

    def run_until_complete(self, future: Any) -> Any:
        """Run until a future or coroutine is done, and return its result."""
        task = asyncio.ensure_future(future, loop=self)
        task.add_done_callback(lambda _: self.stop())
        try:
            self.run_forever()
        except BaseException:
            task.cancel()
            raise
        return task.result()

    def run_for(self, seconds: float) -> None:
        """Run everything that happens within some time, and set the clock to its end."""
        end = self.call_at(self._now + seconds, self.stop)
        try:
            self.run_forever()
        finally:
            end.cancel()

    def stop(self) -> None:
        """Return from `run_forever` after this callback."""
        self._stopping = True

    def is_running(self) -> bool:
        """Return whether it runs."""
        return self._running

    def is_closed(self) -> bool:
        """Return whether it was closed."""
        return self._closed

    def close(self) -> None:
        """Forget everything that waits. Nothing of it runs any more, except what cleans up without waiting."""
        self._closed = True
        for process in (self._driver, *self._processes.values()):
            process.alive = False
        ended: set[asyncio.Task[Any]] = set()
        # What cleans up may start tasks, which do not run either. It must not make a loop with real sockets for them.
        running = asyncio._get_running_loop()  # noqa: SLF001  # the public function fails without a loop
        asyncio._set_running_loop(self)  # noqa: SLF001  # no public function does it
        try:
            while tasks := asyncio.all_tasks(self) - ended:
                for task in tasks:
                    _end(task)
                ended |= tasks
        finally:
            asyncio._set_running_loop(running)  # noqa: SLF001  # as above
        for one in self._dead:
            if isinstance(one, Coroutine):
                one.close()
        forget_tasks(self)
        self._timers.clear()
        self._ready.clear()
        self._dead.clear()

    async def shutdown_asyncgens(self) -> None:
        """Do nothing: generators end with what uses them."""

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:  # asyncio's signature
        """Do nothing: there is no executor."""

    # --- Tasks, and what they report -----------------------------------------------------------------------------

    def create_future(self) -> "asyncio.Future[Any]":
        """Return a new future."""
        return asyncio.Future(loop=self)

    def create_task(  # type: ignore[override]  # newer versions of Python have more arguments
        self, coro: Coroutine[Any, Any, _T], *, name: str | None = None, context: Context | None = None, **_: Any
    ) -> "asyncio.Task[_T]":
        """Return a new task."""
        task = asyncio.Task(coro, loop=self, name=name, context=context)
        process = _PROCESS.get() if context is None else context.get(_PROCESS)
        (process or self._driver).tasks.add(task)
        return task

    def get_debug(self) -> bool:
        """Return False: debugging reads a real clock."""
        return False

    def set_debug(self, enabled: bool) -> None:
        """Ignore it: debugging reads a real clock."""

    def set_exception_handler(
        self, handler: Callable[[asyncio.AbstractEventLoop, dict[str, Any]], object] | None
    ) -> None:
        """Let a function handle what nobody else does."""
        self._handler = handler

    def get_exception_handler(self) -> Callable[[asyncio.AbstractEventLoop, dict[str, Any]], object] | None:
        """Return the function that handles what nobody else does."""
        return self._handler

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        """Keep a report."""
        self.reports.append(context)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Report what nobody handles."""
        if self._handler is None:
            self.default_exception_handler(context)
        else:
            self._handler(self, context)

    # --- What a simulation does not have -------------------------------------------------------------------------

    def call_soon_threadsafe(self, *_: Any, **__: Any) -> Any:  # type: ignore[override]  # it is refused anyway
        """Refuse: a simulation has no threads. Raises `FailedError` (`simulate.real`)."""
        raise unreal("a thread", "loop.call_soon_threadsafe")

    def run_in_executor(self, *_: Any) -> Any:  # type: ignore[override]  # it is refused anyway
        """Refuse: a simulation has no threads. Raises `FailedError` (`simulate.real`)."""
        raise unreal("a thread", "loop.run_in_executor")

    async def create_connection(self, *_: Any, **__: Any) -> Any:
        """Refuse: a simulation has a network of its own. Raises `FailedError` (`simulate.real`)."""
        raise unreal("a socket", "loop.create_connection")

    async def create_server(self, *_: Any, **__: Any) -> Any:
        """Refuse: a simulation has a network of its own. Raises `FailedError` (`simulate.real`)."""
        raise unreal("a socket", "loop.create_server")


def _end(task: "asyncio.Task[Any]") -> None:
    """Leave the code of a task that will not go on, as often as it waits again while it cleans up."""
    task._log_destroy_pending = False  # type: ignore[attr-defined]  # noqa: SLF001  # it is not an accident
    waiting: list[Any] = [task.get_coro()]
    while hasattr(inner := getattr(waiting[-1], "cr_await", None), "close"):
        waiting.append(inner)
    # The innermost first: the code that awaits it would end with an error while it still cleans up.
    for coroutine in reversed(waiting):
        for _ in range(_CLEANINGS):
            with suppress(Exception):
                coroutine.close()
                break


class _Wake(asyncio.TimerHandle):
    """A timer of the loop itself: a processor is free again."""

    def __init__(self, when: float, ready: Callable[[], None], loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(when, ready, (), loop)
        self.ready = ready


def unreal(what: str, called: str) -> FailedError:
    """Return the error for code that leaves the simulation by calling something.

    Within a process the loop also keeps a report, once for each place in the code: the code may catch the error.
    """
    process, caller = _PROCESS.get(), _caller()
    error = FailedError(
        "simulate.real",
        f"simulated code of `{process.name if process else 'the driver'}` used {what} of the real machine: "
        f"{caller} called `{called}`",
        hint="pass it in from outside, so that a simulation can bring its own",
    )
    if process is not None and all(report.get("place") != (called, caller) for report in process.reports):
        report = {"message": "the real machine was used", "exception": error, "place": (called, caller)}
        process.reports.append(report)
    return error


def _caller() -> str:
    """Return the module and line that called what is refused, and those of Penstock if it was a library."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001  # nothing else shows the caller
    while frame is not None and _module(frame) in _GUARDS:
        frame = frame.f_back
    if frame is None:
        return "something"
    found = f"`{_module(frame)}:{frame.f_lineno}`"
    if not _module(frame).startswith("penstock."):
        while frame is not None and not _module(frame).startswith("penstock."):
            frame = frame.f_back
        # Below the event loop is what runs the simulation.
        if frame is not None and _module(frame) != __name__:
            found += f" for `{_module(frame)}:{frame.f_lineno}`"
    return found


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__"))
