"""Run the pipeline's jobs from one path to another, as a batch or as a stream.

    ingest    records          ->  events/  quarantine/
    admit     events           ->  events/  refused/  decisions/
    deliver   events           ->  rows/ or views/  decisions/
    whatif    events           ->  (a comparison)
    audit     decision logs    ->  log/  quarantine/

An output consists of batches. Each part of it is a folder with a folder `@batch=N` for each of them, and `commits/` has
the description of the complete ones, which is written last (`commits`). A run without a stream is batch 0.

A stream numbers its batches; Spark's checkpoint, in `checkpoint/` of the output, says what belongs to which. A batch
that is complete is never written again, and one that is not is written again, over what there is of it. So every event
is in the output exactly once, whenever a run was killed or a stream started again (`RunningStream`). A stream over the
output of another job follows its commits, never sees a batch that is not complete, and refuses to go on where that
output was replaced (`following`).

The main rows of a job can also go to tables (`RowSink`). A batch is then (1) written to the output and described in
`prepared/`, (2) written to each table from there, (3) committed. A run that was killed goes on behind what is done:
a prepared batch is not computed again, by a policy that has changed since, say, and a table takes a batch once.
"""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, Generic, Protocol, TypeAlias, TypeVar, runtime_checkable

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]  # it has no types
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from penstock.errors import FailedError, PenstockError, RefusedError
from penstock.pipeline.enforce.policy import PipelinePolicy, load_policy, policy_digest
from penstock.pipeline.file_system_errors import store_error
from penstock.pipeline.outputs import (
    CHECKPOINT,
    OUTPUT,
    PREPARED,
    TO,
    Followed,
    Output,
    Said,
    Streaming,
    check_apart,
    check_sum,
    commit,
    commits,
    committed,
    is_not_found,
    raised_by_task,
)
from penstock.pipeline.tables.addresses import RowSink, SinkRows

Progress: TypeAlias = Callable[[Said], None]
"""Receives the description of each complete batch."""


def _nothing(_: Said) -> None:
    """Ignore the progress."""


class Job(Protocol):
    """A job: its input, and how it processes a batch."""

    @property
    def name(self) -> str:
        """The name of the job."""

    @property
    def source(self) -> str:
        """A description of the input, which the output stores."""

    @property
    def parts(self) -> tuple[str, ...]:
        """The folders that it writes."""

    @property
    def files(self) -> str | None:
        """The path of the files that it reads, if it reads files."""

    def planned(self, events: DataFrame) -> tuple[DataFrame, ...]:
        """Return the planned computation for an input, for inspection."""

    def all(self, spark: SparkSession) -> DataFrame:
        """Return everything that there is to read."""

    def arriving(self, spark: SparkSession, streaming: Streaming) -> DataFrame:
        """Return a stream of arriving input."""

    def arrived(self, batch: DataFrame) -> DataFrame:
        """Return the input of a batch of the stream."""

    def step(self, events: DataFrame, batch: int, output: Output) -> Said:
        """Write all parts of a batch, and return its description for the commit."""


@runtime_checkable
class TableJob(Job, Protocol):
    """A job with main rows, which can also go to tables."""

    def rows(self, output: Output, batch: int, said: Said) -> SinkRows:
        """Return the main rows of a batch as they are stored in the output; `said` is its description."""


#: what Spark says if a Python worker did not start within the ten seconds that Spark gives it, also if it cannot start
_LATE: Final = "Python worker failed to connect back"
#: the condition of the error that we raise for it
_LATE_CONDITION: Final = "late-worker"
#: how often a query is started again in a row: on a machine with other work to do the next worker may be in time
_RESTARTS: Final = 5


def _is_late(error: Exception) -> bool:
    """Return whether Spark, or a job's own batch, failed because Python started too late."""
    if isinstance(error, PenstockError):
        return error.fields.get("condition") == _LATE_CONDITION
    return _LATE in str(error)


@dataclass(slots=True)
class RunningStream:
    """A stream that runs. It is started again if it ends because Python started too late, and goes on where it was.

    A batch that had begun is then written again, as after a run that was killed. `problems` are the errors that the job
    itself raised since the last start.
    """

    writer: DataStreamWriter
    problems: list[PenstockError] = field(default_factory=list)
    query: StreamingQuery = field(init=False)
    _restarts: int = 0

    def __post_init__(self) -> None:
        self._start()

    def _start(self) -> None:
        while True:
            self.problems.clear()
            try:
                self.query = self.writer.start()
            except PySparkException as error:
                # Through Spark Connect a worker starts already here.
                if not self._may_start_again(error):
                    raise
            else:
                return

    def _may_start_again(self, error: Exception) -> bool:
        self._restarts += 1
        return _is_late(error) and self._restarts <= _RESTARTS

    def wait(self, seconds: float | None = None) -> bool:
        """Wait for the end, and return whether it was reached.

        Raises what the job raised, and `FailedError` (`pipeline.spark`).
        """
        with spark_errors():
            while True:
                try:
                    if seconds is not None:
                        return bool(self.query.awaitTermination(seconds))  # type: ignore[arg-type]  # a part of a second too
                    self.query.awaitTermination()
                except PySparkException as error:
                    problem = self.problems[0] if self.problems else error
                    if _is_late(problem) and self.query.lastProgress:
                        self._restarts = 0
                    if not self._may_start_again(problem):
                        raise problem from None
                    self._start()
                else:
                    return True

    def stop(self) -> None:
        """Stop; the batch that is being written is written again by the next run."""
        self.query.stop()


def run(  # noqa: PLR0913  # a job and where it runs; the rest has defaults
    job: Job,
    spark: SparkSession,
    path: str,
    *,
    overwrite: bool = False,
    progress: Progress = _nothing,
    sinks: Sequence[RowSink] = (),
) -> Said:
    """Run a job as one batch, and return the description of that batch.

    Raises as `check_apart`, `Output.open`, the job's step and the sinks do, and `FailedError` (`pipeline.no-input`,
    `pipeline.spark`), `RefusedError` (`tables.holds`).
    """
    check_apart(path, job.files)
    to = tuple(sink.name for sink in sinks)
    with spark_errors():
        frame = job.all(spark)
        # Looked at before anything is written: through Spark Connect it is asked here whether there is an input.
        frame.schema  # noqa: B018
        output = Output(spark, path, job.name, job.source, job.parts, to)
        _check_held(output, sinks, overwrite=overwrite)
        own = output.open(overwrite=overwrite)
        said = _batch(job, lambda: frame, 0, output, sinks=sinks, name=own.get(OUTPUT))
        commit(spark, path, 0, {**said, **own})
    progress(said)
    return said


def start(  # noqa: PLR0913  # a job and where it runs; the rest has defaults
    job: Job,
    spark: SparkSession,
    path: str,
    streaming: Streaming,
    *,
    overwrite: bool = False,
    progress: Progress = _nothing,
    sinks: Sequence[RowSink] = (),
) -> RunningStream:
    """Start a job as a stream, or continue one that was stopped.

    Raises as `run`; waiting for it also raises `RefusedError` (`pipeline.replaced`).
    """
    check_apart(path, job.files)
    problems: list[PenstockError] = []
    to = tuple(sink.name for sink in sinks)

    def process(frame: DataFrame, number: int) -> None:
        # Complete, and killed before Spark had noted it.
        if committed(frame.sparkSession, path, number):
            return
        output = Output(frame.sparkSession, path, job.name, job.source, job.parts, to)
        try:
            with spark_errors():
                follows = followed.check(frame)
                said = _batch(job, lambda: job.arrived(frame), number, output, sinks=sinks, name=own.get(OUTPUT))
                commit(frame.sparkSession, path, number, {**said, **own, **follows})
            progress(said)
        except PenstockError as error:
            # Spark would keep nothing of it but its words.
            problems.append(error)
            raise

    with spark_errors():
        frame = job.arriving(spark, streaming)
        output = Output(spark, path, job.name, job.source, job.parts, to)
        _check_held(output, sinks, overwrite=overwrite)
        own = output.open(stream=True, overwrite=overwrite)
        followed = Followed.before(commits(spark, path).values())
        writer = frame.writeStream.foreachBatch(process).option("checkpointLocation", f"{path}/{CHECKPOINT}")
        writer = writer.trigger(availableNow=True) if streaming.drain else writer
        return RunningStream(writer, problems)


def _batch(  # noqa: PLR0913  # a batch, and everywhere that it goes
    job: Job, events: Callable[[], DataFrame], batch: int, output: Output, *, sinks: Sequence[RowSink], name: object
) -> Said:
    """Write a batch everywhere, and return its description. Raises as `run`, and `FailedError` (`pipeline.lost`)."""
    if not sinks:
        return job.step(events(), batch, output)
    if not isinstance(job, TableJob):
        raise RefusedError("tables.no-rows", f"`{job.name}` has no rows for a table", hint="leave out --to")
    # (1) The output, once: what a table has got must not be decided differently when a run goes on.
    lines = output.lines(PREPARED, batch)
    said: Said = json.loads(lines[0]) if lines else job.step(events(), batch, output)
    if not lines:
        output.write_lines([json.dumps(said, ensure_ascii=False)], PREPARED, batch)
    # (2) The tables, from the output.
    rows = job.rows(output, batch, said)
    whole = rows.frame.count()
    for sink in sinks:
        check_sum(whole, {sink.name: sink.write(rows, str(name), batch)})
    return {**said, TO: {sink.name: whole for sink in sinks}}


def _check_held(output: Output, sinks: Sequence[RowSink], *, overwrite: bool) -> None:
    """Check that no table has rows of an output that is to be overwritten. Raises `RefusedError` (`tables.holds`)."""
    begun = output.begun if overwrite and sinks else None
    for sink in sinks if begun is not None else ():
        if sink.holds(output.spark, begun or ""):
            raise RefusedError(
                "tables.holds",
                f"`{sink.name}` has rows of the output in `{output.path}`, which --overwrite would write again",
                hint="leave out --overwrite to go on, or choose another folder and another table",
            )


@contextmanager
def spark_errors() -> Iterator[None]:
    """Turn errors of Spark into `FailedError`: `pipeline.spark`, `pipeline.no-input` for a path without files.

    What a file system says is `pipeline.store-denied`, `pipeline.no-bucket`, `pipeline.store-unreachable` or
    `pipeline.no-connector`. Errors of our own tasks are raised again.
    """
    try:
        yield
    except PySparkException as error:
        if is_not_found(error):
            path = (error.getMessageParameters() or {}).get("path", "the path that is to be read")
            raise FailedError(
                "pipeline.no-input",
                f"there is nothing at `{path}`",
                hint="check the path; if a job writes there, run that first",
            ) from error
        if (raised := raised_by_task(error)) is not None:
            raise raised from error
        raise store_error(str(error)) or _spark_error(error, error.getCondition()) from error
    except Py4JJavaError as error:
        # Only the kind of the exception is shown: its words can contain anything.
        found = _EXCEPTION.search(str(error))
        raise store_error(str(error)) or _spark_error(error, found and found[1]) from error


#: the exception in an error of Java that Spark has no condition for
_EXCEPTION: Final = re.compile(r"^: ([\w.$]{1,120})", re.ASCII | re.MULTILINE)


def _spark_error(error: Exception, condition: str | None) -> FailedError:
    condition = condition or "unknown"
    hint = "check that the input can be read and the output be written; --spark-log FILE keeps its log"
    if _is_late(error):
        condition = _LATE_CONDITION
        hint = "Python did not start in ten seconds: check PYSPARK_PYTHON, or try again when the machine is less busy"
    return FailedError(
        "pipeline.spark",
        f"Spark failed: {condition}",
        hint=hint,
        condition=condition,
    )


# ----------------------------------------------------------------------------------------------------------------------
# Jobs that use a policy file: as a stream they read it again with each batch.
#
# What a policy file says may change while a stream runs: a right is given, or revoked. So before each batch the file
# and everything that it names are looked at, and where one of them is not as it was, all of it is read and verified
# again. A policy that cannot be read or does not hold stops the stream before anything of the batch is written: nobody
# knows then what is still allowed. Each batch is decided by one policy, whose revision is said in its commit.


REVISIONS: Final = "policies"
"""The key in a commit for the revisions of the policies that decided its batch."""

J = TypeVar("J", bound=Job)
Make: TypeAlias = Callable[[tuple[PipelinePolicy, ...]], J]
"""Make a job that uses some policies."""


@dataclass(slots=True)
class Watched:
    """Some policy files as they were when they were read last."""

    files: tuple[str, ...]
    clock: Callable[[], datetime]
    policies: tuple[PipelinePolicy, ...] = field(init=False)
    _digests: tuple[bytes, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._read(self._now())

    def renew(self) -> bool:
        """Read the files again if anything in them has changed, and return whether it has. Raises as `load_policy`."""
        digests = self._now()
        if digests == self._digests:
            return False
        self._read(digests)
        return True

    def latest(self) -> tuple[PipelinePolicy, ...]:
        """Return the policies as they are now. Raises as `load_policy`."""
        self.renew()
        return self.policies

    def _now(self) -> tuple[bytes, ...]:
        return tuple(policy_digest(file) for file in self.files)

    def _read(self, digests: tuple[bytes, ...]) -> None:
        # A change in between is not part of the digest, and is read with the next batch.
        self.policies = tuple(load_policy(file, self.clock()) for file in self.files)
        self._digests = digests


@dataclass(slots=True)
class ByPolicy(Generic[J]):
    """A job that uses policy files; see the module.

    One whose source says by which policies it goes stops where they are others: its batches are added up. Raises what
    reading a policy and making the job raise.
    """

    watched: Watched
    make: Make[J]
    job: J = field(init=False)
    #: the policies that the job was made of
    _made_of: tuple[PipelinePolicy, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._made_of = self.watched.policies
        self.job = self.make(self._made_of)

    @property
    def name(self) -> str:
        """The name of the job."""
        return self.job.name

    @property
    def source(self) -> str:
        """A description of the input."""
        return self.job.source

    @property
    def parts(self) -> tuple[str, ...]:
        """The folders that it writes."""
        return self.job.parts

    @property
    def files(self) -> str | None:
        """Where the files stand that it reads."""
        return self.job.files

    def planned(self, events: DataFrame) -> tuple[DataFrame, ...]:
        """Return the frames that would be computed from some input."""
        return self.job.planned(events)

    def all(self, spark: SparkSession) -> DataFrame:
        """Return everything that there is to read."""
        return self.job.all(spark)

    def arriving(self, spark: SparkSession, streaming: Streaming) -> DataFrame:
        """Return a stream of arriving input."""
        return self.job.arriving(spark, streaming)

    def arrived(self, batch: DataFrame) -> DataFrame:
        """Return the input of a batch, for the current policy.

        Raises what reading it raises, and `RefusedError` (`pipeline.policy-changed`).
        """
        latest = self.watched.latest()
        if latest is not self._made_of:
            made = self.make(latest)
            if made.source != self.job.source:
                raise RefusedError(
                    "pipeline.policy-changed",
                    f"a policy of `{self.name}` has changed, and the results so far belong to the old one",
                    hint="start again in another folder or with --overwrite",
                )
            # Only now: a batch after one that was refused must not be decided by the old policies.
            self.job, self._made_of = made, latest
        return self.job.arrived(batch)

    def step(self, events: DataFrame, batch: int, output: Output) -> Said:
        """Run the job on a batch, and add the revisions of the policies to the commit."""
        said = self.job.step(events, batch, output)
        return {**said, REVISIONS: [policy.revision for policy in self.watched.policies]}

    def rows(self, output: Output, batch: int, said: Said) -> SinkRows:
        """Return the main rows of a batch. Raises `RefusedError` (`tables.no-rows`) if the job has none."""
        if not isinstance(self.job, TableJob):
            raise RefusedError("tables.no-rows", f"`{self.name}` has no rows for a table", hint="leave out --to")
        return self.job.rows(output, batch, said)
