"""The log that the replicas of a key manager share: a record is taken at the place it is meant for, or not at all.

That is compare-and-swap, and all that keeps replicas from splitting. Any store that has it will do: a folder with a
file for each record (`penstock.store.files.key_files`), a stream that takes an expected sequence (`penstock.fabric.
nats_log`). No key can be read in it. Records name types and members, blinded ones too, so that a manager seals them to
the managers before they go there (`SealedLog`):

    0x02, salt (16 bytes), wrapped under the key-encryption key: length (4 bytes), record, zeros to a multiple of 256

A manager is a plain state machine; a log may take its time. `KeyScribe` is between: nobody waits for it, and nobody is
told anything before the log has it.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Protocol, TypeAlias

from penstock.broker.keys.manager import KeyManager
from penstock.broker.keys.manager_outputs import Append, Noted, Output, Record, Reply, Sent, Tell, TruncateLog
from penstock.broker.keys.sealing import open_record, seal_record
from penstock.codec.sexp import parse_canonical
from penstock.crypto.keys import RandomBytes
from penstock.crypto.wrapping import SALT_BYTES, Secret
from penstock.errors import PenstockError, RefusedError
from penstock.fabric.tasks import keep_running
from penstock.trust.key_statements import KeyCheckpoint, KeyRecord
from penstock.trust.signed import UnverifiedValue, read_signed


class KeyLog(Protocol):
    """See the module. What cannot be reached raises `FailedError`; whether a record was taken is then not known."""

    async def append(self, number: int, record: bytes) -> bool:
        """Write a record as the one with so many before it; say no, and write nothing, where the log is not so long."""

    async def read(self, number: int) -> Sequence[bytes]:
        """Return the records from a place on, or from the first that is kept."""

    async def forget(self, number: int) -> None:
        """Keep no record before a place."""

    async def close(self) -> None:
        """Let go of what the log needs."""


class MemoryLog:
    """A log that lasts as long as the process. Nothing in it ever waits."""

    def __init__(self) -> None:
        self.records: list[bytes] = []
        self.first = 0

    async def append(self, number: int, record: bytes) -> bool:
        """Write a record, or say no."""
        if number != self.first + len(self.records):
            return False
        self.records.append(record)
        return True

    async def read(self, number: int) -> Sequence[bytes]:
        """Return the records from a place on."""
        return tuple(self.records[max(0, number - self.first) :])

    async def forget(self, number: int) -> None:
        """Keep no record before a place."""
        gone = max(0, min(number - self.first, len(self.records)))
        del self.records[:gone]
        self.first += gone

    async def close(self) -> None:
        """Do nothing: there is nothing to let go of."""


class SealedLog:
    """A log whose records only holders of the key-encryption key can read. Records that were not sealed still read."""

    def __init__(self, log: KeyLog, kek: Secret, random: RandomBytes) -> None:
        self._log = log
        self._kek = kek
        self._random = random

    async def append(self, number: int, record: bytes) -> bool:
        """Write a record, sealed, or say no."""
        return await self._log.append(number, seal_record(self._kek, record, self._random(SALT_BYTES)))

    async def read(self, number: int) -> Sequence[bytes]:
        """Return the records from a place on. Raises `RefusedError` (`keys.unopened`, `keys.log-version`)."""
        return [open_record(self._kek, stored) for stored in await self._log.read(number)]

    async def forget(self, number: int) -> None:
        """Keep no record before a place."""
        await self._log.forget(number)

    async def close(self) -> None:
        """Let go of what the log needs."""
        await self._log.close()


Clock: TypeAlias = Callable[[], datetime]
Put: TypeAlias = Callable[[Iterable[Output]], None]
"""Takes what a manager wants done."""


def read_record(octets: bytes) -> UnverifiedValue[Record]:
    """Read a record of a log. Raises `MalformedError`, and `RefusedError` (`evolution.signature-mismatch`)."""
    kinds: tuple[type[Record], ...] = (KeyRecord, KeyCheckpoint)
    return read_signed(parse_canonical(octets), *kinds)


async def catch_up(clock: Clock, manager: KeyManager, log: KeyLog, put: Put) -> None:
    """Let a manager take in what it has not read, from the beginning where it starts; `put` gets what it says to each.

    Raises what `take` and the log raise. What was said to the records before stands.
    """
    for record in await log.read(manager.position):
        unverified = read_record(record)
        if unverified.value.number >= manager.position:
            put(manager.take(clock(), unverified))


async def carry_out(
    clock: Clock, manager: KeyManager, log: KeyLog, outputs: Iterable[Output], send: Callable[[Sent], None]
) -> None:
    """Write what a manager wants written, as often as it takes, and send the rest.

    What follows from a record is sent when it has come back, and does not wait for the next: that may fail. Raises what
    `take` and the log raise.
    """
    waiting: deque[Append | TruncateLog] = deque()

    def put(outputs: Iterable[Output]) -> None:
        for output in outputs:
            if isinstance(output, Append | TruncateLog):
                waiting.append(output)
            else:
                send(output)

    put(outputs)
    while waiting:
        match waiting.popleft():
            case Append(number, record):
                # Taken or not: what stands in that place now is in the log.
                await log.append(number, record.to_bytes())
                await catch_up(clock, manager, log, put)
            case TruncateLog(number) if number > manager.forgotten:
                await log.forget(number)
                manager.forgot(number)


class KeyScribe:
    """Writes what a manager wants written, one after another, while everybody goes on; see the module.

    `send` receives messages to send, `failed` receives errors: the manager proposes again what was not written.
    """

    def __init__(  # noqa: PLR0913  # the manager, the log, and its callbacks
        self,
        manager: KeyManager,
        log: KeyLog,
        clock: Clock,
        *,
        send: Callable[[Tell | Reply], None],
        failed: Callable[[PenstockError], None],
        period: float,
    ) -> None:
        self._manager = manager
        self._log = log
        self._clock = clock
        self._send = send
        self._failed = failed
        self._period = period
        self._waiting: list[Append | TruncateLog] = []
        self._more = asyncio.Event()
        self._wrong = ""
        self._writing: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Read the log, and begin.

        Raises what `take` and the log raise, and `RefusedError` (`keys.wrong-kek`).
        """
        try:
            await catch_up(self._clock, self._manager, self._log, self.put)
        except RefusedError as error:
            if error.code != "keys.unopened":
                raise
            raise RefusedError(
                "keys.wrong-kek",
                "the log of keys does not open: it was written under another key-encryption key, or changed",
                hint="give the key that it was written with; without it, begin with another log",
            ) from error
        self._writing = keep_running("writing the key log", self._write)

    async def stop(self) -> None:
        """Write nothing more. What is being written may be in the log or not, as after a crash."""
        if self._writing is not None:
            self._writing.cancel()
            await asyncio.gather(self._writing, return_exceptions=True)
        await self._log.close()

    def put(self, outputs: Iterable[Output]) -> None:
        """Send the messages, and have the rest written."""
        for output in outputs:
            if isinstance(output, Append | TruncateLog):
                self._waiting.append(output)
                self._more.set()
            else:
                self._say(output)

    def _say(self, output: Sent) -> None:
        if isinstance(output, Noted):
            self._failed(output.reason)
        else:
            self._send(output)

    async def _write(self) -> None:
        while True:
            # Other replicas write too: what they wrote is read now and then, when there is nothing to write.
            try:
                async with asyncio.timeout(self._period):
                    await self._more.wait()
            except TimeoutError:
                pass
            self._more.clear()
            waiting, self._waiting = self._waiting, []
            try:
                await carry_out(self._clock, self._manager, self._log, waiting, self._say)
                await catch_up(self._clock, self._manager, self._log, self.put)
                self._wrong = ""
            except PenstockError as error:
                # Once, until it works again or something else is wrong.
                if error.code != self._wrong:
                    self._wrong = error.code
                    self._failed(error)
