"""The Spark session of one command: started quietly, and stopped again if it was started here."""

import os
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]  # it has no types
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from penstock.apps.cli.pipeline_meter import Meter
from penstock.errors import FailedError
from penstock.pipeline.jobs import spark_errors
from penstock.pipeline.session_settings import EVERYWHERE, LOCAL, SMALL, is_small

_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")
_EXCEPTION: Final = re.compile(r"^: ([\w.$]{1,120})", re.ASCII | re.MULTILINE)
_GATEWAY: Final = "PYSPARK_GATEWAY_PORT"
"""Set by spark-submit for the program that it runs."""
_QUIET: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
}


@dataclass(frozen=True, slots=True)
class Cluster:
    """Where Spark runs: a master, or a Spark Connect server; further settings; and the file that its words go to."""

    master: str = "local[*]"
    remote: str | None = None
    conf: Mapping[str, str] | None = None
    log: str | None = None

    @property
    def local(self) -> bool:
        """Whether Spark runs in this process: not under spark-submit, which has chosen a master before us."""
        return self.master.startswith("local") and _GATEWAY not in os.environ

    @property
    def metered(self) -> bool:
        """Whether its counters can be sent to this process."""
        return self.remote is None and self.local

    def path(self, text: str) -> str:
        """Return a path as Spark is to read it: on this machine it is relative to where the command was started."""
        if self.remote is not None or not self.local or _SCHEME.match(text):
            return text
        return str(Path(text).absolute())


@dataclass(frozen=True, slots=True)
class Started:
    """A session, and the meter that its counters go to, if there is one."""

    spark: SparkSession
    meter: Meter | None = None


@contextmanager
def session(cluster: Cluster, reads: str | None = None) -> Iterator[Started]:
    """Give a session, that of this process where there is one.

    `reads` is the path of everything that is read in it, where that is known: a small input does not pay for what
    speeds up a large one.

    Raises `FailedError` (`pipeline.java`, `pipeline.remote`, `pipeline.spark`, `file.unwritable`).
    """
    active = SparkSession.getActiveSession()
    with _failures(), ExitStack() as stack:
        if active is not None:
            yield Started(active)
            return
        # Counters are for somebody who looks at them, and find only this machine.
        shown = cluster.metered and sys.stderr.isatty()
        meter = stack.enter_context(Meter()) if shown else None
        started = _start(cluster, {**_small(cluster, reads), **({} if meter is None else meter.settings)})
        try:
            yield Started(started, meter)
        finally:
            started.stop()


@contextmanager
def _failures() -> Iterator[None]:
    try:
        with spark_errors():
            yield
    except Py4JJavaError as error:
        # Its words may hold anything; which exception it is, may be said.
        found = _EXCEPTION.search(str(error))
        condition = found[1] if found else "unknown"
        raise FailedError(
            "pipeline.spark",
            f"Spark failed: {condition}",
            hint="can the input be read, and the output be written? More is in its log: give a file with --spark-log",
            condition=condition,
        ) from error
    except Py4JError as error:
        raise FailedError(
            "pipeline.spark", "Spark stopped answering", hint="its log says more: give a file with --spark-log"
        ) from error


def _start(cluster: Cluster, also: Mapping[str, str]) -> SparkSession:
    # Workers must be of the same Python.
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
        # What a program says would win over what spark-submit was told.
        builder = builder if _GATEWAY in os.environ else builder.master(cluster.master)
    for name, value in chosen.items():
        builder = builder.config(name, value)
    return builder


def _local() -> dict[str, str]:
    cores = max(2, os.cpu_count() or 2)
    # Several tasks for each core: a file that is long ends for all at the same time, and rows are counted by task.
    tasks = {"spark.sql.shuffle.partitions": cores, "spark.sql.files.minPartitionNum": 4 * cores}
    return {**LOCAL, **{name: str(number) for name, number in tasks.items()}}


def _small(cluster: Cluster, reads: str | None) -> Mapping[str, str]:
    """Return what is set besides where everything that is read stands on this machine, and is small."""
    return SMALL if cluster.metered and is_small(reads) else {}


@contextmanager
def _log(file: str | None) -> Iterator[IO[bytes]]:
    """Open the file that everything goes to which Java and Spark say; without a name nobody finds it again."""
    if file is None:
        with tempfile.TemporaryFile() as found:
            yield found
        return
    with open(file, "ab+") as named:  # noqa: PTH123  # as the other branch: a binary stream
        yield named


@contextmanager
def _redirected(target: int) -> Iterator[None]:
    """Send standard output and error elsewhere for a while: what is started meanwhile keeps them for good."""
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
    """Return the line that tells most: the first that speaks of Java, or else the last."""
    log.seek(0)
    lines = [line.strip() for line in log.read(65_536).decode(errors="replace").splitlines() if line.strip()]
    telling = [line for line in lines if "java" in line.lower()] + lines[::-1]
    return telling[0][:200] if telling else ""


def _not_started(cluster: Cluster, said: str) -> FailedError:
    told = f": {said}" if said else ""
    if cluster.remote is not None:
        return FailedError("pipeline.remote", f"no Spark Connect server answers{told}", hint="check --remote")
    return FailedError(
        "pipeline.java",
        f"Spark does not start{told}",
        hint="it needs Java 17 or later: install one, and set JAVA_HOME to its folder",
    )
