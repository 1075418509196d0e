"""The log that the replicas of a key manager share: a record is taken at the place it is meant for, or not at all.

That is compare-and-swap, and all that keeps replicas from splitting. Any store that has it will do: a stream that takes
an expected sequence, a table with a unique number. Nothing in it is secret.
"""

from collections.abc import Iterable
from datetime import datetime
from typing import Protocol

from penstock.broker.key_manager import Append, KeyManager, Output
from penstock.codec.sexp import parse_canonical
from penstock.trust.key_messages import KeyRecord
from penstock.trust.signed import read_signed


class KeyLog(Protocol):
    """See the module."""

    def append(self, number: int, record: bytes) -> bool:
        """Write a record as the one with so many before it; say no, and write nothing, where the log is not so long."""

    def read(self, number: int) -> Iterable[bytes]:
        """Return the records from a place on."""


class MemoryLog:
    """A log that lasts as long as the process."""

    def __init__(self) -> None:
        self.records: list[bytes] = []

    def append(self, number: int, record: bytes) -> bool:
        """Write a record, or say no."""
        if number != len(self.records):
            return False
        self.records.append(record)
        return True

    def read(self, number: int) -> Iterable[bytes]:
        """Return the records from a place on."""
        return tuple(self.records[number:])


def catch_up(now: datetime, manager: KeyManager, log: KeyLog) -> list[Output]:
    """Let a manager take in what it has not read, from the beginning where it starts. Raises what `take` raises."""
    said: list[Output] = []
    for record in log.read(manager.position):
        said += manager.take(now, read_signed(parse_canonical(record), KeyRecord))
    return said


def carry_out(now: datetime, manager: KeyManager, log: KeyLog, outputs: Iterable[Output]) -> list[Output]:
    """Write what a manager wants written, as often as it takes, and return what is to be sent.

    Raises what `take` raises.
    """
    sent: list[Output] = []
    waiting = [*outputs]
    while waiting:
        output = waiting.pop(0)
        if not isinstance(output, Append):
            sent.append(output)
            continue
        # Taken or not: what stands in that place now is in the log.
        log.append(output.number, output.record.to_bytes())
        waiting += catch_up(now, manager, log)
    return sent
