"""Make and run the jobs of `penstock pipeline`, and show their progress."""

import contextlib
import io
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Final, TypeAlias

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # the name that everybody knows it by
from pyspark.sql.types import TimestampType
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from penstock.apps.cli.pipeline.done import Done as Done
from penstock.apps.cli.pipeline.done import shown_value
from penstock.apps.cli.pipeline.spark_session import Remote, Started
from penstock.apps.cli.shared.session import CommandSession
from penstock.errors import MalformedError
from penstock.pipeline.audit import AuditReport
from penstock.pipeline.comparison import PolicyComparison
from penstock.pipeline.enforce.layout import Layout, open_view
from penstock.pipeline.enforce.policy import ConstantsIn, PipelinePolicy, known_types, load_policy
from penstock.pipeline.frames import ID, TIME, quoted
from penstock.pipeline.ingest.mapping import BoundMapping
from penstock.pipeline.jobs.enforce import Admit, DeliverJob, RecordingPolicy
from penstock.pipeline.jobs.ingest import Envelopes, Ingest, MappedTables, RecordSource, table_records
from penstock.pipeline.jobs.job import ByPolicy, Job, Watched, run, start
from penstock.pipeline.jobs.reports import Audit, ReportOptions, WhatIf, audit_at_once, audited, compared
from penstock.pipeline.outputs import Output, Streaming, check_apart, commits, files_of
from penstock.pipeline.sealed.log import KeyFiles
from penstock.pipeline.tables.addresses import RowSink, RowSource
from penstock.trust.event_types import VerifiedType

# ----------------------------------------------------------------------------------------------------------------------
# The progress of a job on a terminal: tasks that are done, rows that were read, and rows per second.


_EACH: Final = 0.3


@dataclass(slots=True)
class Watch:
    """Count the rows that a job has read, and the time that it took."""

    started: float = field(default_factory=time.monotonic)
    read: int = 0
    batches: int = 0

    def __call__(self, said: Mapping[str, object]) -> None:
        """Count a batch."""
        counts = said.get("counts")
        self.batches += 1
        self.read += counts.get("read", 0) if isinstance(counts, dict) else 0

    @property
    def seconds(self) -> float:
        """Seconds since the job began."""
        return time.monotonic() - self.started

    @property
    def rate(self) -> int:
        """Rows per second."""
        return round(self.read / self.seconds) if self.seconds else 0


@contextmanager
def watching(job: str, on: Started) -> Iterator[Watch]:
    """Show progress on standard error while a job runs, if that is a terminal."""
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
    """Register for the progress reports of a Spark Connect server, if the session has one."""
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
    """The progress line, and the source of its text."""

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
        """Return the rows that Spark has counted, or else those of complete batches, as text."""
        counter = self.remote or self.on.meter
        counts_text = "" if counter is None else counter.counted().text(self.watch.seconds)
        if not counts_text and self.watch.read:
            return f"{self.watch.read:,} rows, {self.watch.rate:,} rows/s"
        return counts_text


def _tasks(spark: SparkSession) -> tuple[int, int | None]:
    """Return how many tasks of the running stages are done, and how many there are, as far as known."""
    try:
        tracker = spark.sparkContext.statusTracker()
        stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
    except Exception:  # noqa: BLE001  # whatever a session that is being stopped raises: then there is no bar
        return 0, None
    known = [stage for stage in stages if stage is not None]
    whole = sum(stage.numTasks for stage in known)
    return sum(stage.numCompletedTasks for stage in known), whole or None


# ----------------------------------------------------------------------------------------------------------------------
# Jobs. This module imports Spark, and is therefore imported late.


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class JobOutput:
    """Where a job writes, and how: as a batch or as a stream, replacing an output or not."""

    out: str
    streaming: Streaming | None = None
    overwrite: bool = False
    #: the tables that the main rows also go to
    sinks: tuple[RowSink, ...] = ()


@dataclass(frozen=True, slots=True)
class Planned:
    """The plan of a job: the files, bytes and records that it would read, and Spark's plans."""

    files: int | None
    bytes: int | None
    records: int
    plans: tuple[str, ...]


def execute(job: Job, on: Started, place: JobOutput, on_batch: Callable[[], None] = lambda: None) -> Done:
    """Run a job to its end. A stream ends when it is interrupted, or with `--drain` when its source is empty.

    Raises what `run`, `start` and `Running.wait` raise.
    """
    spark = on.spark
    with watching(job.name, on) as watch:

        def progress(said: dict[str, object]) -> None:
            watch(said)
            on_batch()

        if place.streaming is None:
            run(job, spark, place.out, overwrite=place.overwrite, progress=progress, sinks=place.sinks)
        else:
            running = start(
                job,
                spark,
                place.out,
                place.streaming,
                overwrite=place.overwrite,
                progress=progress,
                sinks=place.sinks,
            )
            try:
                while not running.wait(0.5):
                    pass
            except KeyboardInterrupt:
                # An interrupt is the normal way to stop a stream.
                running.stop()
        return Done.of(list(commits(spark, place.out).values()), watch.batches, watch.seconds, watch.rate)


def plan(job: Job, spark: SparkSession, place: JobOutput | None) -> Planned:
    """Return the plan of a job, without writing anything. Raises as `run`."""
    if place is not None:
        check_apart(place.out, job.files)
        to = tuple(sink.name for sink in place.sinks)
        output = Output(spark, place.out, job.name, job.source, job.parts, to)
        output.check(stream=place.streaming is not None, overwrite=place.overwrite)
    events = job.all(spark)
    files = size = None
    if job.files is not None:
        found = files_of(spark, job.files).agg(F.count("*"), F.coalesce(F.sum("length"), F.lit(0))).collect()[0]
        files, size = int(found[0]), int(found[1])
    return Planned(files, size, events.count(), tuple(_explained(frame) for frame in job.planned(events)))


def _explained(frame: DataFrame) -> str:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        frame.explain(mode="formatted")
    return printed.getvalue().strip()


# --- The jobs --------------------------------------------------------------------------------------------------------


def clock(session: CommandSession) -> Callable[[], datetime]:
    """Return a clock that continues from the time at which the command began."""
    started = time.monotonic()
    return lambda: session.now + timedelta(seconds=time.monotonic() - started)


def load(file: str, session: CommandSession) -> PipelinePolicy:
    """Read a policy file. Raises what `load_policy` raises."""
    return load_policy(file, session.now)


def _desk(policy: PipelinePolicy, job: str, session: CommandSession) -> RecordingPolicy:
    return RecordingPolicy.of(
        policy,
        f"penstock-pipeline/{job}",
        clock=clock(session),
        timer=time.perf_counter_ns,
        ids=lambda: session.random(16).hex(),
    )


def _hiding(policy: PipelinePolicy, constants: ConstantsIn | None) -> PipelinePolicy:
    """Return a policy that hides its constants, or not, if an option says so."""
    return policy if constants is None else replace(policy, constants=constants)


def ingest_job(  # noqa: PLR0913  # each way to say what is read
    session: CommandSession,
    *,
    path: str | None,
    types: tuple[VerifiedType, ...],
    bound: BoundMapping | None,
    messages: Mapping[str, str] | None,
    table: RowSource | None = None,
) -> Ingest:
    """Return the job `ingest`. Raises `MalformedError` (`cli.resource`) if it is unclear what to read."""
    records: RecordSource
    if (path is None) is (messages is None):
        raise MalformedError(
            "cli.resource", "ingest reads either files or a stream", hint="give a path, or --from-jetstream"
        )
    if table is not None:
        return Ingest(table_records(table, bound, types), clock(session))
    if messages is not None and bound is None:
        # Imported late: reading files does not need nats-py.
        from penstock.pipeline.jetstream.messages import JetStreamSource  # noqa: PLC0415

        records = table_records(JetStreamSource(messages), None, types)
    elif path is not None and bound is not None:
        records = MappedTables(path, bound)
    elif path is not None:
        records = Envelopes(path, types)
    else:
        raise MalformedError("cli.resource", "messages are CloudEvents, which need no mapping", hint="leave it out")
    return Ingest(records, clock(session))


EventSource: TypeAlias = tuple[str, RowSource | None]
"""Where events are: the output of a job at a path, or a table."""


def _check_unsealed(table: RowSource | None, keys: KeyFiles | None) -> None:
    if table is not None and keys is not None:
        raise MalformedError("cli.keys", "a table is not a sealed log", hint="leave out --ring and --kek")


def admit_job(
    session: CommandSession,
    source: EventSource,
    policy: str,
    keys: KeyFiles | None,
    *,
    dedupe: timedelta | None = None,
) -> ByPolicy[Admit]:
    """Return the job `admit` by a policy file; with keys, over a sealed log. Raises what `load_policy` raises."""

    path, table = source
    _check_unsealed(table, keys)

    def make(policies: tuple[PipelinePolicy, ...]) -> Admit:
        desk = _desk(policies[0], "admit", session)
        return Admit(path, known_types(*policies), desk, keys=keys, table=table, dedupe=dedupe)

    return ByPolicy(Watched((policy,), clock(session)), make)


def deliver_job(  # noqa: PLR0913  # what is delivered, by what, and how
    session: CommandSession,
    source: EventSource,
    policy: str,
    layout: Layout,
    keys: KeyFiles | None,
    *,
    reader: str | None = None,
    constants: ConstantsIn | None = None,
) -> ByPolicy[DeliverJob]:
    """Return the job `deliver` by a policy file; with keys, over a sealed log. Raises what `load_policy` raises."""

    path, table = source
    _check_unsealed(table, keys)

    def make(policies: tuple[PipelinePolicy, ...]) -> DeliverJob:
        desk = _desk(_hiding(policies[0], constants), "deliver", session)
        return DeliverJob(path, known_types(*policies), desk, layout, reader, keys=keys, table=table)

    return ByPolicy(Watched((policy,), clock(session)), make)


def whatif_job(  # noqa: PLR0913  # what is compared, by what, and how
    session: CommandSession,
    source: EventSource,
    policies: tuple[str, str],
    samples: int,
    keys: KeyFiles | None,
    *,
    constants: ConstantsIn | None = None,
) -> ByPolicy[WhatIf]:
    """Return the job `whatif` by two policy files, before and after; with keys, over a sealed log.

    Raises what `load_policy` raises, and `MalformedError` (`whatif.environment`).
    """

    path, table = source
    _check_unsealed(table, keys)

    def make(found: tuple[PipelinePolicy, ...]) -> WhatIf:
        old, new = (_hiding(policy, constants) for policy in found)
        return WhatIf(path, known_types(new, old), old, new, samples, keys=keys, table=table)

    return ByPolicy(Watched(policies, clock(session)), make)


def policy_now(file: str | None, session: CommandSession) -> Callable[[], PipelinePolicy | None]:
    """Return a function that reads a policy file again when it has changed. Raises what `load_policy` raises."""
    if file is None:
        return lambda: None
    watched = Watched((file,), clock(session))
    return lambda: watched.latest()[0]


def audit_job(spark: SparkSession, source: EventSource) -> Audit:
    """Return the job `audit`, over log files, a table, or the decisions of another job."""
    path, table = source
    return Audit(path, of_job=table is None and bool(commits(spark, path)), table=table)


def comparison(job: ByPolicy[WhatIf], on: Started, place: JobOutput | None) -> tuple[PolicyComparison, Done | None]:
    """Compare two policies; with a place, keep the result there. Raises as `execute`."""
    if place is None:
        with watching(job.name, on):
            return job.job.compare(job.all(on.spark)), None
    done = execute(job, on, place)
    return compared(on.spark, place.out), done


@dataclass(frozen=True, slots=True)
class AuditRun:
    """An audit: the current policy, the options of the report, and who gets it."""

    policy: Callable[[], PipelinePolicy | None]
    question: ReportOptions
    on_report: Callable[[AuditReport], None]

    def run(self, job: Audit, on: Started, place: JobOutput | None) -> Done | None:
        """Audit a log, and hand over the report; for a stream, one after each batch.

        Raises as `execute`, and what reading the policy raises.
        """
        if place is not None:
            return execute(job, on, place, lambda: self.report(on.spark, place.out))
        with watching(job.name, on) as watch:
            found, counts = audit_at_once(job, on.spark, self.policy(), self.question)
            watch({"counts": counts})
            self.on_report(found)
            return Done(counts, {}, 1, watch.seconds, watch.rate)

    def report(self, spark: SparkSession, out: str) -> None:
        """Hand over the report of an output. Raises what reading it and the policy raise."""
        self.on_report(audited(spark, out, self.policy(), self.question))


# --- Views -----------------------------------------------------------------------------------------------------------


def view_rows(
    spark: SparkSession, path: str, subscriber: str, limit: int
) -> tuple[tuple[str, ...], list[list[object]], int]:
    """Return the columns of a reader's view, its first rows by time, and how many there are. Raises as `open_view`."""
    view = open_view(spark, path, subscriber)
    times = {field.name for field in view.schema if isinstance(field.dataType, TimestampType)}
    # Timestamps come as microseconds: Python's would be in this machine's time zone.
    columns = [F.unix_micros(quoted(n)).alias(n) if n in times else quoted(n) for n in view.columns]
    found = view.orderBy(quoted(TIME), quoted(ID)).limit(limit).select(*columns).collect()
    rows = [[_read(value, name in times) for name, value in zip(view.columns, row, strict=True)] for row in found]
    return tuple(view.columns), rows, view.count()


def _read(value: object, is_time: bool) -> object:
    return shown_value(_EPOCH + timedelta(microseconds=value) if is_time and isinstance(value, int) else value)
