"""Progress of a job on a terminal: how far it is, how many rows it has read, and how many in a second."""

import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

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
def watching(job: str, spark: object) -> Iterator[Watch]:
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
    with Progress(*columns, console=Console(file=sys.stderr), transient=True) as shown:
        task = shown.add_task(job, total=None, rows="")
        ended = threading.Event()
        thread = threading.Thread(target=_refresh, args=(shown, task, watch, spark, ended), daemon=True)
        thread.start()
        try:
            yield watch
        finally:
            ended.set()
            thread.join()


def _refresh(shown: Progress, task: TaskID, watch: Watch, spark: object, ended: threading.Event) -> None:
    while not ended.wait(_EACH):
        done, whole = _tasks(spark)
        rows = f"{watch.read:,} rows, {watch.rate:,}/s" if watch.read else ""
        shown.update(task, completed=done, total=whole, rows=rows)


def _tasks(spark: Any) -> tuple[int, int | None]:
    """Return how many tasks of the running stages are done, and how many there are; nothing where nobody tells.

    Through Spark Connect a session has no context to ask.
    """
    try:
        tracker = spark.sparkContext.statusTracker()
        stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
    except Exception:  # noqa: BLE001  # whatever a session lacks: then there is no bar, only the time
        return 0, None
    known = [stage for stage in stages if stage is not None]
    whole = sum(stage.numTasks for stage in known)
    return sum(stage.numCompletedTasks for stage in known), whole or None
