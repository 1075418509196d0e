"""Writing down what must not be forgotten, off the event loop: nobody waits for a slow disk but who has to know.

Snapshots are written one after the other by one thread, so that those of an owner arrive in the order in which they
were taken. Callers are notified on the event loop when one is safe. A snapshot is taken when its turn comes:
while one is being written, any number of changes become one more.
"""

import asyncio
import queue
import threading
from collections.abc import Callable, Iterable
from typing import Protocol, TypeAlias

from penstock.errors import FailedError, PenstockError
from penstock.model.principals import Principal

Told: TypeAlias = Callable[[PenstockError | None], None]
"""Told that something is safe on the disk, or why it is not."""

_Job: TypeAlias = tuple[Callable[[], None], Callable[[BaseException | None], None]]


class Keep(Protocol):
    """Where a node keeps what must not be forgotten about owners' policies."""

    def load(self) -> Iterable[bytes]:
        """Return all snapshots. Raises `FailedError`."""

    def save(self, owner: Principal, snapshot: bytes) -> None:
        """Put a snapshot in the place of the last one about an owner; return when it is safe. Raises `FailedError`."""

    def load_brokers(self) -> bytes:
        """Return the brokers that were seen; nothing if none were. Raises `FailedError`."""

    def save_brokers(self, seen: bytes) -> None:
        """Put the brokers that were seen in the place of those before. Raises `FailedError`."""


class Forgetful:
    """Keeps nothing: for tests, and for nodes that start from nothing. Saving takes no time, and needs no thread."""

    def load(self) -> Iterable[bytes]:
        """Return nothing."""
        return ()

    def save(self, owner: Principal, snapshot: bytes) -> None:
        """Do nothing."""

    def load_brokers(self) -> bytes:
        """Return nothing."""
        return b""

    def save_brokers(self, seen: bytes) -> None:
        """Do nothing."""


class SnapshotWriter:
    """See the module. `snapshot` returns what there is to be kept of an owner now."""

    def __init__(self, keep: Keep, snapshot: Callable[[Principal], bytes]) -> None:
        self._keep = keep
        self._snapshot = snapshot
        #: those who wait, by owner, in the order in which they are served
        self._waiting: dict[Principal, list[Told]] = {}
        self._writing = False
        self._planned = False
        self._idle = asyncio.Event()
        self._jobs: queue.SimpleQueue[_Job] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def save(self, owner: Principal, told: Told | None = None) -> None:
        """Write down what is known of an owner; the caller is notified once, when that is safe or has failed."""
        self._waiting.setdefault(owner, []).extend([] if told is None else [told])
        if isinstance(self._keep, Forgetful):
            self._go_on()
        elif not self._planned:
            # All that is asked for in one go is written in one go.
            self._planned = True
            asyncio.get_running_loop().call_soon(self._begin)

    def _begin(self) -> None:
        self._planned = False
        self._go_on()

    async def finish(self, patience: float) -> None:
        """Wait until all is written, but not for longer than so many seconds. Raises `FailedError`."""
        try:
            async with asyncio.timeout(patience):
                while self._writing or self._waiting:
                    self._idle.clear()
                    await self._idle.wait()
        except TimeoutError:
            raise FailedError(
                "file.unwritable",
                "what is known of owners' policies was not written down in time",
                hint="see to the disk; what was not acknowledged comes again from the network",
            ) from None

    def _go_on(self) -> None:
        while self._waiting and not self._writing:
            owner = next(iter(self._waiting))
            waiting = self._waiting.pop(owner)
            self._writing = True
            self._write(owner, waiting)

    def _write(self, owner: Principal, waiting: list[Told]) -> None:
        def work() -> None:
            self._keep.save(owner, snapshot)

        def done(error: BaseException | None) -> None:
            self._writing = False
            found = error if error is None or isinstance(error, PenstockError) else _unwritable(error)
            for told in waiting:
                told(found)
            self._go_on()
            self._idle.set()

        snapshot = self._snapshot(owner)
        if isinstance(self._keep, Forgetful):
            work()
            done(None)
        else:
            self._in_thread((work, done))

    def _in_thread(self, job: _Job) -> None:
        if self._thread is None:
            # It must not keep a process from ending whose disk does not answer.
            loop = asyncio.get_running_loop()
            self._thread = threading.Thread(target=_work, args=(self._jobs, loop), name="snapshot-writer", daemon=True)
            self._thread.start()
        self._jobs.put(job)


def _work(jobs: "queue.SimpleQueue[_Job]", loop: asyncio.AbstractEventLoop) -> None:
    while not loop.is_closed():
        work, done = jobs.get()
        error: BaseException | None = None
        try:
            work()
        except BaseException as found:  # noqa: BLE001  # the waiting caller receives every error
            error = found
        try:
            loop.call_soon_threadsafe(done, error)
        except RuntimeError:
            # The loop has ended, and with it everybody who waited.
            return


def _unwritable(error: BaseException) -> FailedError:
    return FailedError("file.unwritable", f"what is known of a policy cannot be written: {type(error).__name__}")
