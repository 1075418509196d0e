"""The Spark session of one command: started quietly, and stopped again if it was started here."""

import os
import re
import socket
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any, Final, Self

from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # it has no types
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from penstock.apps.cli.pipeline.warm_spark import find_warm_spark
from penstock.errors import FailedError
from penstock.pipeline.jobs.job import spark_errors
from penstock.pipeline.jobs.session_settings import EVERYWHERE, LOCAL, SMALL, is_small
from penstock.pipeline.tables.addresses import has_scheme

# ----------------------------------------------------------------------------------------------------------------------
# The counters of Spark itself, read while a job runs.
#
# A Spark that this command has started sends its own counters once a second, as StatsD datagrams, to a socket of this
# process that only this machine can reach: no port of Spark is opened for it, and nothing is added to a plan. Rows are
# reported when a task ends, bytes as they are read. Spark Connect reports finished tasks, and the bytes that they have
# read. All passes count, so a row that is read twice counts twice; nothing is estimated.


_LOOPBACK: Final = "127.0.0.1"
_SINK: Final = "spark.metrics.conf.*.sink.penstock"
_READ, _WRITTEN, _SPILLED = "recordsRead", "recordsWritten", "diskBytesSpilled"
_OCTETS: Final = r"filesystem\.\w+\.read_bytes"
_WANTED: Final = rf"executor\.({_READ}|{_WRITTEN}|{_SPILLED}|{_OCTETS})"
#: the application and the executor, the counter, and its value
_COUNTER: Final = re.compile(rf"([\w.-]{{1,200}})\.{_WANTED}:(\d{{1,19}})\|[cg]", re.ASCII)
_DATAGRAM: Final = 1_024
_MEBI: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class SparkCounts:
    """The rows read and written so far, and the bytes read; 0 if that is not known.

    `spilled` are bytes that did not fit into memory and were written to disk.
    """

    read: int = 0
    written: int = 0
    size: int = 0
    spilled: int = 0

    def text(self, seconds: float) -> str:
        """Return the counts as text, with rates per second."""
        each = max(seconds, 0.001)
        if self.read:
            said = f"{self.read:,} rows read, {round(self.read / each):,} rows/s"
            return f"{said}, {self.written:,} written" if self.written else said
        if self.size:
            return f"{self.size / _MEBI:,.1f} MiB read, {self.size / _MEBI / each:,.1f} MiB/s"
        return ""


class SparkMeter:
    """Receive the counters of a Spark on this machine."""

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
        """The port on which it listens."""
        return int(self._socket.getsockname()[1])

    @property
    def settings(self) -> dict[str, str]:
        """Settings that Spark needs when it starts."""
        properties = {
            "class": "org.apache.spark.metrics.sink.StatsdSink",
            "host": _LOOPBACK,
            "port": str(self.port),
            "period": "1",
            "unit": "seconds",
            "regex": rf".*\.{_WANTED}",
        }
        return {f"{_SINK}.{name}": value for name, value in properties.items()}

    def counted(self) -> SparkCounts:
        """Return the sums over all executors."""
        while True:
            try:
                data = self._socket.recv(_DATAGRAM)
            except BlockingIOError:
                break
            counter = _COUNTER.fullmatch(data.decode("ascii", errors="replace").strip())
            if counter is not None:
                # Counters only grow, and a datagram can arrive late.
                key = (counter[1], counter[2])
                self._found[key] = max(self._found.get(key, 0), int(counter[3]))
        return SparkCounts(self._sum(_READ), self._sum(_WRITTEN), self._sum(_OCTETS), self._sum(_SPILLED))

    def _sum(self, name: str) -> int:
        return sum(count for (_, counter), count in self._found.items() if re.fullmatch(name, counter))


@dataclass(slots=True)
class Remote:
    """The progress that a Spark Connect server reports of this session's operations: a progress handler."""

    #: tasks of the last operation that was reported
    done: int = 0
    whole: int = 0
    _sizes: dict[str | None, int] = field(default_factory=dict)

    def __call__(self, *, stages: Iterable[Any] | None, operation_id: str | None, **_: object) -> None:
        """Store the progress of an operation."""
        known = list(stages or ())
        if known:
            self.done = sum(stage.num_completed_tasks for stage in known)
            self.whole = sum(stage.num_tasks for stage in known)
            self._sizes[operation_id] = sum(stage.num_bytes_read for stage in known)

    def counted(self) -> SparkCounts:
        """Return the bytes that all operations have read."""
        return SparkCounts(size=sum(self._sizes.values()))


# ----------------------------------------------------------------------------------------------------------------------
# The session.


_GATEWAY: Final = "PYSPARK_GATEWAY_PORT"
"""Set by spark-submit for the program that it runs."""
_QUIET: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
}


@dataclass(frozen=True, slots=True)
class Cluster:
    """Where Spark runs: a master, or a Spark Connect server; further settings; and the file of its log."""

    master: str = "local[*]"
    remote: str | None = None
    conf: Mapping[str, str] | None = None
    log: str | None = None

    @property
    def local(self) -> bool:
        """Whether Spark runs in this process: not under spark-submit, which has chosen a master already."""
        return self.master.startswith("local") and _GATEWAY not in os.environ

    @property
    def metered(self) -> bool:
        """Whether its counters can be sent to this process."""
        return self.remote is None and self.local

    @property
    def unchosen(self) -> bool:
        """Whether nothing was said about where Spark runs, so that a warm one can be used."""
        return self.local and replace(self, conf=self.conf or None) == Cluster()

    def path(self, text: str) -> str:
        """Return a path for Spark: on this machine it is relative to the working folder of the command."""
        if self.remote is not None or not self.local or has_scheme(text):
            return text
        return str(Path(text).absolute())


@dataclass(frozen=True, slots=True)
class Started:
    """A session, and the meter of its counters, if there is one."""

    spark: SparkSession
    meter: SparkMeter | None = None


@contextmanager
def session(cluster: Cluster, reads: str | None = None) -> Iterator[Started]:
    """Yield a session: that of this process if there is one.

    `reads` is the path of everything that is read in it, if that is known: a small input does not pay for what
    speeds up a large one.

    Raises `FailedError` (`pipeline.java`, `pipeline.remote`, `pipeline.spark`, `file.unwritable`).
    """
    active = SparkSession.getActiveSession()
    with _failures(), ExitStack() as stack:
        if active is not None:
            yield Started(active)
            return
        warm = find_warm_spark() if cluster.unchosen else None
        if warm is not None:
            cluster, reads = replace(cluster, remote=warm.url), None
        # Counters are shown on a terminal, and reach this machine only.
        shown = cluster.metered and sys.stderr.isatty()
        meter = stack.enter_context(SparkMeter()) if shown else None
        keeps = _KEEPS.get()
        small = {} if keeps else _small(cluster, reads)
        started = _start(cluster, {**small, **({} if meter is None else meter.settings)})
        try:
            yield Started(started, meter)
        finally:
            if not keeps:
                started.stop()


_KEEPS: Final[ContextVar[bool]] = ContextVar("_KEEPS", default=False)


@contextmanager
def one_session() -> Iterator[None]:
    """Let all commands that run meanwhile share a session: that which the first of them starts."""
    token = _KEEPS.set(True)
    before = SparkSession.getActiveSession()
    try:
        yield
    finally:
        _KEEPS.reset(token)
        kept = SparkSession.getActiveSession()
        if kept is not None and kept is not before:
            kept.stop()


@contextmanager
def _failures() -> Iterator[None]:
    try:
        with spark_errors():
            yield
    except Py4JError as error:
        raise FailedError("pipeline.spark", "Spark stopped answering", hint="--spark-log FILE keeps its log") from error


def _start(cluster: Cluster, also: Mapping[str, str]) -> SparkSession:
    # Workers must use the same Python.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    with _log(cluster.log) as log:
        try:
            with _redirected(log.fileno()):
                return _builder(cluster, also).getOrCreate()
        except (PySparkException, Py4JError, OSError, ImportError) as error:
            raise _not_started(cluster, _said(log)) from error


def _builder(cluster: Cluster, also: Mapping[str, str]) -> SparkSession.Builder:
    builder = SparkSession.builder.appName("penstock")
    if cluster.remote is not None:
        chosen = dict(cluster.conf or {})
        builder = builder.remote(cluster.remote)
    else:
        chosen = {**_QUIET, **EVERYWHERE, **(_local() if cluster.local else {}), **also, **(cluster.conf or {})}
        # A program's settings would override those of spark-submit.
        builder = builder if _GATEWAY in os.environ else builder.master(cluster.master)
    for name, value in chosen.items():
        builder = builder.config(name, value)
    return builder


def _local() -> dict[str, str]:
    cores = max(2, os.cpu_count() or 2)
    # Several tasks for each core: all cores finish a long file at the same time, and rows are counted by task.
    tasks = {"spark.sql.shuffle.partitions": cores, "spark.sql.files.minPartitionNum": 4 * cores}
    return {**LOCAL, **{name: str(number) for name, number in tasks.items()}}


def _small(cluster: Cluster, reads: str | None) -> Mapping[str, str]:
    """Return further settings if all input is small and on this machine."""
    return SMALL if cluster.metered and is_small(reads) else {}


@contextmanager
def _log(file: str | None) -> Iterator[IO[bytes]]:
    """Open the file for all output of Java and Spark; without a name it is a temporary file."""
    if file is None:
        with tempfile.TemporaryFile() as found:
            yield found
        return
    with open(file, "ab+") as named:  # noqa: PTH123  # as the other branch: a binary stream
        yield named


@contextmanager
def _redirected(target: int) -> Iterator[None]:
    """Redirect standard output and error for a while: processes that are started meanwhile keep the redirection."""
    sys.stdout.flush()
    sys.stderr.flush()
    saved = [(stream, os.dup(stream)) for stream in (1, 2)]
    try:
        for stream, _ in saved:
            os.dup2(target, stream)
        yield
    finally:
        for stream, copy in saved:
            os.dup2(copy, stream)
            os.close(copy)


def _said(log: IO[bytes]) -> str:
    """Return the most useful line of the log: the first about Java, or else the last."""
    log.seek(0)
    lines = [line.strip() for line in log.read(65_536).decode(errors="replace").splitlines() if line.strip()]
    telling = [line for line in lines if "java" in line.lower()] + lines[::-1]
    return telling[0][:200] if telling else ""


def _not_started(cluster: Cluster, said: str) -> FailedError:
    reason = f": {said}" if said else ""
    if cluster.remote is not None:
        return FailedError("pipeline.remote", f"no Spark Connect server answers{reason}", hint="check --remote")
    return FailedError(
        "pipeline.java",
        f"Spark does not start{reason}",
        hint="it needs Java 17 or later: install one, and set JAVA_HOME to its folder",
    )
