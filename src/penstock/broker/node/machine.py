"""What a node uses of its machine beside the wall clock and randomness. A simulation brings its own."""

import asyncio
import queue
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from time import monotonic, thread_time
from typing import Protocol, TypeAlias

from penstock.broker.core.clock import Steady
from penstock.broker.wire.link import Endpoint, Link, Refused, Serve, listen
from penstock.fabric.port import since_boot

Background: TypeAlias = Callable[[Callable[[], None], Callable[[BaseException | None], None]], None]
"""Does some work off the event loop, one after the other, and then calls a function on it, with the error if any."""


class LinkListener(Protocol):
    """Accepts links until it is closed."""

    @property
    def port(self) -> int:
        """The port."""

    @property
    def links(self) -> list[Link]:
        """The links that are served now."""

    async def close(self) -> None:
        """Stop accepting, close all links, and wait until they are closed."""


Listen: TypeAlias = Callable[[Endpoint, str, int, Serve, Refused], Awaitable[LinkListener]]
"""Accepts links at a host and port (`penstock.broker.wire.link.listen`)."""


class WorkerThread:
    """A `Background` of one thread, which starts with the first work."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[tuple[Callable[[], None], Callable[[BaseException | None], None]]]
        self._jobs = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def __call__(self, work: Callable[[], None], done: Callable[[BaseException | None], None]) -> None:
        """Do some work when all before it is done."""
        if self._thread is None:
            # A daemon thread, because a hanging disk must not keep the process from ending.
            loop = asyncio.get_running_loop()
            self._thread = threading.Thread(target=self._run, args=(loop,), name="snapshot-writer", daemon=True)
            self._thread.start()
        self._jobs.put((work, done))

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        while not loop.is_closed():
            work, done = self._jobs.get()
            error: BaseException | None = None
            try:
                work()
            except BaseException as found:  # noqa: BLE001  # the waiting caller receives every error
                error = found
            try:
                loop.call_soon_threadsafe(done, error)
            except RuntimeError:
                # The loop has ended, and with it all callers.
                return


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """See the module."""

    #: seconds of a clock that nobody sets
    steady: Steady = since_boot
    #: the same, of the clock of the event loop
    timer: Steady = monotonic
    #: seconds that the processor has worked for the caller
    worked: Callable[[], float] = thread_time
    #: gives what must not wait for the disk a place of its own
    background: Callable[[], Background] = WorkerThread
    listen: Listen = listen
