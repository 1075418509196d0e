"""Progress of a job on a terminal: how far it is, how many rows it has read, and how many in a second."""

import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from penstock.apps.cli.pipeline_meter import Remote
from penstock.apps.cli.pipeline_spark import Started

_EACH: Final = 0.3


@dataclass(slots=True)
class Watch:
    """Counts what a job has read, and the time that it took."""

    started: float = field(default_factory=time.monotonic)
    read: int = 0
    batches: int = 0

    def __call__(self, said: Mapping[str, object]) -> None:
        """Take in what is said of a batch."""
        counts = said.get("counts")
        self.batches += 1
        self.read += counts.get("read", 0) if isinstance(counts, dict) else 0

    @property
    def seconds(self) -> float:
        """How long it has taken so far."""
        return time.monotonic() - self.started

    @property
    def rate(self) -> int:
        """Rows a second."""
        return round(self.read / self.seconds) if self.seconds else 0


@contextmanager
def watching(job: str, on: Started) -> Iterator[Watch]:
    """Show progress on standard error while a job runs, where that is a terminal."""
    watch = Watch()
    if not sys.stderr.isatty():
        yield watch
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[rows]}"),
        TimeElapsedColumn(),
    )
    with (
        _told(on.spark) as remote,
        Progress(*columns, console=Console(file=sys.stderr), transient=True) as shown,
    ):
        display = _Display(shown, shown.add_task(job, total=None, rows=""), watch, on, remote)
        ended = threading.Event()
        thread = threading.Thread(target=display.keep, args=(ended,), daemon=True)
        thread.start()
        try:
            yield watch
        finally:
            ended.set()
            thread.join()


@contextmanager
def _told(spark: SparkSession) -> Iterator[Remote | None]:
    """Ask a Spark Connect server to tell how far it is; a session without one has other means."""
    remote = Remote()
    try:
        spark.registerProgressHandler(remote)  # type: ignore[arg-type]  # a function will do
    except PySparkException:
        yield None
        return
    try:
        yield remote
    finally:
        spark.removeProgressHandler(remote)  # type: ignore[arg-type]  # a function will do


@dataclass(frozen=True, slots=True)
class _Display:
    """The line that is shown, and whom it asks what to show."""

    shown: Progress
    task: TaskID
    watch: Watch
    on: Started
    remote: Remote | None

    def keep(self, ended: threading.Event) -> None:
        """Keep it up to date until the job has ended."""
        while not ended.wait(_EACH):
            done, whole = (
                _tasks(self.on.spark) if self.remote is None else (self.remote.done, self.remote.whole or None)
            )
            self.shown.update(self.task, completed=done, total=whole, rows=self._rows())

    def _rows(self) -> str:
        """Say what Spark has counted, or else what the batches that are complete have."""
        counter = self.remote or self.on.meter
        told = "" if counter is None else counter.counted().text(self.watch.seconds)
        if not told and self.watch.read:
            return f"{self.watch.read:,} rows, {self.watch.rate:,} rows/s"
        return told


def _tasks(spark: SparkSession) -> tuple[int, int | None]:
    """Return how many tasks of the running stages are done, and how many there are; nothing where nobody tells."""
    try:
        tracker = spark.sparkContext.statusTracker()
        stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
    except Exception:  # noqa: BLE001  # whatever a session that is being stopped raises: then there is no bar
        return 0, None
    known = [stage for stage in stages if stage is not None]
    whole = sum(stage.numTasks for stage in known)
    return sum(stage.numCompletedTasks for stage in known), whole or None
