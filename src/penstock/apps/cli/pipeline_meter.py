"""What Spark itself counts while a job runs, read as it runs.

A Spark that this command has started sends its own counters once a second, as StatsD datagrams, to a socket of this
process that only this machine can reach: no port of Spark is opened for it, and nothing is added to a plan. Rows are
told when a task ends, octets as they are read. Spark Connect tells the tasks that are done, and the octets that they
have read. All of it is over all passes, so that a row that is read twice counts twice; nothing is estimated.
"""

import re
import socket
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final, Self

_LOOPBACK: Final = "127.0.0.1"
_SINK: Final = "spark.metrics.conf.*.sink.penstock"
_READ, _WRITTEN, _SPILLED = "recordsRead", "recordsWritten", "diskBytesSpilled"
_OCTETS: Final = r"filesystem\.\w+\.read_bytes"
_WANTED: Final = rf"executor\.({_READ}|{_WRITTEN}|{_SPILLED}|{_OCTETS})"
#: the application and the executor, the counter, and what it has come to
_COUNTER: Final = re.compile(rf"([\w.-]{{1,200}})\.{_WANTED}:(\d{{1,19}})\|[cg]", re.ASCII)
_DATAGRAM: Final = 1_024
_MEBI: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Counted:
    """How many rows were read and written so far, and how many octets read; 0 also where nobody tells.

    `spilled` are octets that did not fit into memory, and were written to disk meanwhile.
    """

    read: int = 0
    written: int = 0
    octets: int = 0
    spilled: int = 0

    def text(self, seconds: float) -> str:
        """Say it in words, with what comes to a second."""
        each = max(seconds, 0.001)
        if self.read:
            said = f"{self.read:,} rows read, {round(self.read / each):,} rows/s"
            return f"{said}, {self.written:,} written" if self.written else said
        if self.octets:
            return f"{self.octets / _MEBI:,.1f} MiB read, {self.octets / _MEBI / each:,.1f} MiB/s"
        return ""


class Meter:
    """Listens to the counters of a Spark on this machine."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind((_LOOPBACK, 0))
        self._socket.setblocking(False)
        self._found: dict[tuple[str, str], int] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self._socket.getsockname()[1])

    @property
    def settings(self) -> dict[str, str]:
        """What Spark must be told when it starts."""
        told = {
            "class": "org.apache.spark.metrics.sink.StatsdSink",
            "host": _LOOPBACK,
            "port": str(self.port),
            "period": "1",
            "unit": "seconds",
            "regex": rf".*\.{_WANTED}",
        }
        return {f"{_SINK}.{name}": value for name, value in told.items()}

    def counted(self) -> Counted:
        """Return what all executors have counted."""
        while True:
            try:
                data = self._socket.recv(_DATAGRAM)
            except BlockingIOError:
                break
            told = _COUNTER.fullmatch(data.decode("ascii", errors="replace").strip())
            if told is not None:
                # Counters only grow; a datagram may come late.
                key = (told[1], told[2])
                self._found[key] = max(self._found.get(key, 0), int(told[3]))
        return Counted(self._sum(_READ), self._sum(_WRITTEN), self._sum(_OCTETS), self._sum(_SPILLED))

    def _sum(self, name: str) -> int:
        return sum(count for (_, counter), count in self._found.items() if re.fullmatch(name, counter))


@dataclass(slots=True)
class Remote:
    """What a Spark Connect server tells of the operations of this session: registered as a progress handler."""

    #: of the operation that was heard of last
    done: int = 0
    whole: int = 0
    _octets: dict[str | None, int] = field(default_factory=dict)

    def __call__(self, *, stages: Iterable[Any] | None, operation_id: str | None, **_: object) -> None:
        """Take in how far an operation is."""
        known = list(stages or ())
        if known:
            self.done = sum(stage.num_completed_tasks for stage in known)
            self.whole = sum(stage.num_tasks for stage in known)
            self._octets[operation_id] = sum(stage.num_bytes_read for stage in known)

    def counted(self) -> Counted:
        """Return what was read by all operations."""
        return Counted(octets=sum(self._octets.values()))
