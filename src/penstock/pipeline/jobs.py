"""Jobs: what the pipeline does, from one path to another, at once or as a stream.

    ingest    records          ->  events/  quarantine/
    admit     events           ->  events/  refused/  decisions/
    deliver   events           ->  rows/ or views/  decisions/
    whatif    events           ->  (a comparison)
    audit     decision logs    ->  log/  quarantine/

An output consists of batches. Each part of it is a folder with a folder `@batch=N` for each of them, and `commits/` has
what is said of those that are complete, which is written last (`penstock.pipeline.layout`). A run at once is batch 0.

A stream numbers its batches; Spark's checkpoint, in `checkpoint/` of the output, says what belongs to which. A batch
that is complete is never written again, and one that is not is written anew, over what there is of it. So every event
is in the output exactly once, whenever a run was killed. A stream over the output of another job follows its commits,
never sees a batch that is not complete, and refuses to go on where that output was replaced (`following`).
"""

import json
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeAlias

from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # the name that everybody knows it by
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StringType, StructField, StructType

from penstock.errors import FailedError, MalformedError, PenstockError, RefusedError
from penstock.pipeline.following import OUTPUT, Followed, output_of
from penstock.pipeline.layout import BATCH, COMMITS, clear, commit, commits, committed
from penstock.pipeline.strict_files import STRICT, reading
from penstock.pipeline.task_errors import raised_by_task

CHECKPOINT: Final = "checkpoint"
_JOB: Final = "job"
_LINE: Final = StructType([StructField("value", StringType())])
_FOREVER: Final = "36500d"
"""Spark forgets files that are a week older than the newest one, and would not read such a file that comes late."""

Said: TypeAlias = dict[str, object]
"""What is committed of a batch. Every job says `counts`, a table of numbers that can be added up."""
Progress: TypeAlias = Callable[[Said], None]
"""Is told what was said of each batch that is complete."""


def _nothing(_: Said) -> None:
    """Tell nobody."""


@dataclass(frozen=True, slots=True)
class Streaming:
    """How a stream runs: at most so many files, or batches of another job, at a time; and whether it ends with them."""

    files: int = 100
    drain: bool = False


class Job(Protocol):
    """What a job reads, and what it does with a batch of it."""

    @property
    def name(self) -> str:
        """What it is called."""

    @property
    def source(self) -> str:
        """What it reads, in words that an output remembers."""

    @property
    def parts(self) -> tuple[str, ...]:
        """The folders that it writes."""

    @property
    def files(self) -> str | None:
        """Where the files stand that it reads, where it reads files."""

    def planned(self, events: DataFrame) -> tuple[DataFrame, ...]:
        """Return what would be computed of some input, to be looked at."""

    def all(self, spark: SparkSession) -> DataFrame:
        """Return everything that there is to read."""

    def arriving(self, spark: SparkSession, streaming: Streaming) -> DataFrame:
        """Return a stream of what arrives."""

    def arrived(self, batch: DataFrame) -> DataFrame:
        """Return what has arrived with a batch of that stream."""

    def step(self, events: DataFrame, batch: int, output: "Output") -> Said:
        """Write all parts of a batch, and return what is to be committed of it."""


@dataclass(frozen=True, slots=True)
class Output:
    """Where a job writes. `job` and `source` say what it is of: another job does not go on where this one stopped."""

    spark: SparkSession
    path: str
    job: str
    source: str
    parts: tuple[str, ...]

    def part(self, name: str, batch: int) -> str:
        """Return the folder of one part of a batch."""
        return f"{self.path}/{name}/{BATCH}={batch}"

    def check(self, *, stream: bool = False, overwrite: bool = False) -> bool:
        """Say whether the output is there already, and may be written.

        A stream that was stopped goes on in its own output; nothing else is written twice unasked. Raises
        `RefusedError` (`pipeline.exists`, `pipeline.foreign` for a folder of somebody else).
        """
        found = _note(self.spark, self.path)
        if found is None and not _is_empty(self.spark, self.path):
            raise RefusedError(
                "pipeline.foreign",
                f"`{self.path}` holds something that no job has written",
                hint="choose a folder that does not exist",
            )
        if found is not None and not overwrite and not (stream and self._mine(stream=True).items() <= found.items()):
            raise RefusedError(
                "pipeline.exists",
                f"`{self.path}` holds the output of `{str(found.get('job'))[:20]}` already",
                hint="choose another folder, or say --overwrite",
            )
        return found is not None

    def open(self, *, stream: bool = False, overwrite: bool = False) -> Said:
        """Prepare to write, and return what every commit says of the output. Raises as `check`."""
        if self.check(stream=stream, overwrite=overwrite):
            if not overwrite:
                return {name: value for name, value in (_note(self.spark, self.path) or {}).items() if name == OUTPUT}
            clear(self.spark, self.path, CHECKPOINT, *self.parts)
        own: Said = {OUTPUT: uuid.uuid4().hex}
        note = json.dumps({**self._mine(stream=stream), **own})
        line = self.spark.createDataFrame([(note,)], _LINE).coalesce(1)
        line.write.mode("overwrite").text(f"{self.path}/{_JOB}")
        # So that those can begin who follow.
        clear(self.spark, self.path)
        return own

    def _mine(self, *, stream: bool) -> Said:
        return {"job": self.job, "source": self.source, "stream": stream}

    def write(self, frame: DataFrame, part: str, batch: int) -> None:
        """Write one part of a batch, over what may be there of it."""
        frame.write.mode("overwrite").parquet(self.part(part, batch))

    def lines(self, part: str, batch: int) -> list[str]:
        """Return the lines of one part of a batch, and none where it was not written."""
        return _read_lines(self.spark, self.part(part, batch))

    def write_lines(self, lines: list[str], part: str, batch: int) -> None:
        """Write one part of a batch as lines of text."""
        frame = self.spark.createDataFrame([(line,) for line in lines], _LINE).coalesce(1)
        frame.write.mode("overwrite").text(self.part(part, batch))


@dataclass(frozen=True, slots=True)
class Running:
    """A stream that runs."""

    query: StreamingQuery
    problems: list[PenstockError] = field(default_factory=list)

    def wait(self, seconds: float | None = None) -> bool:
        """Wait for the end, and say whether it has come.

        Raises what the job raised, and `FailedError` (`pipeline.spark`).
        """
        with spark_errors():
            try:
                if seconds is not None:
                    return bool(self.query.awaitTermination(seconds))  # type: ignore[arg-type]  # a part of a second too
                self.query.awaitTermination()
            except PySparkException:
                if self.problems:
                    raise self.problems[0] from None
                raise
        return True

    def stop(self) -> None:
        """Stop; the batch that is being written is written anew by the next run."""
        self.query.stop()


def run(job: Job, spark: SparkSession, path: str, *, overwrite: bool = False, progress: Progress = _nothing) -> Said:
    """Run a job at once, and return what is said of its one batch.

    Raises as `Output.open` and the job's step do, and `FailedError` (`pipeline.no-input`, `pipeline.spark`).
    """
    with spark_errors():
        frame = job.all(spark)
        # Looked at before anything is written: through Spark Connect it is asked here whether there is an input.
        frame.schema  # noqa: B018
        output = Output(spark, path, job.name, job.source, job.parts)
        own = output.open(overwrite=overwrite)
        said = job.step(frame, 0, output)
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
) -> Running:
    """Begin a job as a stream, or go on with one that was stopped.

    Raises as `run`; who waits for it, `RefusedError` (`pipeline.replaced`) too.
    """
    problems: list[PenstockError] = []

    def process(frame: DataFrame, number: int) -> None:
        # Complete, and killed before Spark had noted it.
        if committed(frame.sparkSession, path, number):
            return
        output = Output(frame.sparkSession, path, job.name, job.source, job.parts)
        try:
            with spark_errors():
                follows = followed.check(frame)
                said = job.step(job.arrived(frame), number, output)
                commit(frame.sparkSession, path, number, {**said, **own, **follows})
            progress(said)
        except PenstockError as error:
            # Spark would keep nothing of it but its words.
            problems.append(error)
            raise

    with spark_errors():
        frame = job.arriving(spark, streaming)
        own = Output(spark, path, job.name, job.source, job.parts).open(stream=True, overwrite=overwrite)
        followed = Followed.before(commits(spark, path).values())
        writer = frame.writeStream.foreachBatch(process).option("checkpointLocation", f"{path}/{CHECKPOINT}")
        writer = writer.trigger(availableNow=True) if streaming.drain else writer
        return Running(writer.start(), problems)


@contextmanager
def spark_errors() -> Iterator[None]:
    """Turn what Spark raises into `FailedError`: `pipeline.spark`, and `pipeline.no-input` for a path without files.

    What a task of ours has raised is raised again.
    """
    try:
        yield
    except PySparkException as error:
        condition = error.getCondition() or "unknown"
        if condition == "PATH_NOT_FOUND":
            path = (error.getMessageParameters() or {}).get("path", "the path that is to be read")
            raise FailedError(
                "pipeline.no-input", f"there is nothing at `{path}`", hint="check the path, and which job wrote it"
            ) from error
        if (raised := raised_by_task(error)) is not None:
            raise raised from error
        raise FailedError(
            "pipeline.spark",
            f"Spark failed: {condition}",
            hint="its log says more: give a file with --spark-log",
            condition=condition,
        ) from error


# --- What other jobs have written ------------------------------------------------------------------------------------


def complete(spark: SparkSession, path: str) -> list[int]:
    """Return the numbers of the complete batches of another job's output.

    Raises `FailedError` (`pipeline.no-input`) where there is no output, or none that is complete.
    """
    found = list(commits(spark, path))
    if not found:
        raise _no_input(path)
    return found


def job_of(spark: SparkSession, path: str) -> str | None:
    """Return the name of the job that an output is of; None where there is none."""
    found = _note(spark, path)
    return None if found is None else str(found.get("job"))


def _note(spark: SparkSession, path: str) -> Said | None:
    """Return what an output says of itself; nothing known where it cannot be read."""
    lines = _read_lines(spark, f"{path}/{_JOB}")
    if not lines:
        return None
    try:
        found = json.loads(lines[0])
    except ValueError:
        found = None
    return found if isinstance(found, dict) else {}


def read_part(spark: SparkSession, path: str, part: str, batches: list[int], schema: StructType) -> DataFrame:
    """Return one part of some batches; columns that a batch lacks are null."""
    if not batches:
        return spark.createDataFrame([], schema)
    # Not by partition: a batch without rows may be a folder without files.
    reader = reading(spark).schema(schema).option("basePath", f"{path}/{part}")
    return reader.parquet(*(f"{path}/{part}/{BATCH}={batch}" for batch in batches)).select(
        *(f"`{name}`" for name in schema.names)
    )


def follow(spark: SparkSession, path: str, streaming: Streaming) -> DataFrame:
    """Return a stream of the commits of another job; `named` says which batches they are.

    Raises `FailedError` (`pipeline.no-input`) where the job has not begun.
    """
    source = f"{path}/{COMMITS}"
    if _missing(spark, source):
        raise _no_input(path)
    reader = spark.readStream.schema(_LINE).options(**STRICT).option("recursiveFileLookup", "true")
    lines = reader.options(**arriving(streaming)).text(source)
    return lines.select("value", output_of(F.col("value")))


def named(lines: DataFrame) -> list[int]:
    """Return the batches that some commits are of."""
    batches = lines.selectExpr("get_json_object(value, '$.batch') AS batch").where("batch IS NOT NULL").distinct()
    return sorted(int(row[0]) for row in batches.collect())


def arriving(streaming: Streaming) -> dict[str, str]:
    """Return the options with which files are read as they arrive."""
    return {"maxFilesPerTrigger": str(streaming.files), "maxFileAge": _FOREVER}


def totals(spark: SparkSession, path: str) -> dict[str, int]:
    """Add up what all complete batches of an output count. Raises `MalformedError` (`layout.manifest`)."""
    return add_up(commits(spark, path).values())


def add_up(said: Iterable[Said]) -> dict[str, int]:
    """Add up the counts of some batches."""
    found: dict[str, int] = {}
    for one in said:
        for name, count in counts_of(one).items():
            found[name] = found.get(name, 0) + count
    return found


def counts_of(said: Mapping[str, object]) -> dict[str, int]:
    """Return the counts that are said of a batch. Raises `MalformedError` (`layout.manifest`)."""
    counts = said.get("counts")
    if not isinstance(counts, dict) or not all(type(count) is int for count in counts.values()):
        raise MalformedError("layout.manifest", "a commit has no counts", hint="do not edit the folder `commits`")
    return counts


def check_sum(whole: int, parts: Mapping[str, int]) -> None:
    """Check that nothing was lost or doubled. Raises `FailedError` (`pipeline.lost`)."""
    if whole != sum(parts.values()):
        raise FailedError(
            "pipeline.lost",
            f"{whole} events were read, and {' + '.join(str(count) for count in parts.values())} came out",
            hint="do not use the output of this run; run it again",
        )


def _no_input(path: str) -> FailedError:
    return FailedError(
        "pipeline.no-input",
        f"`{path}` holds no complete output of a job",
        hint="give the folder that `penstock pipeline ingest` or `admit` wrote",
    )


def _read_lines(spark: SparkSession, path: str) -> list[str]:
    try:
        return [str(row[0]) for row in reading(spark).schema(_LINE).text(path).collect()]
    except AnalysisException as error:
        if error.getCondition() != "PATH_NOT_FOUND":
            raise
        return []


def files_of(spark: SparkSession, path: str) -> DataFrame:
    """Return every file below a path, with its length. What begins with `_` or `.` does not count."""
    reader = reading(spark).format("binaryFile").option("recursiveFileLookup", "true")
    return reader.load(path).select("path", "length")


def _missing(spark: SparkSession, path: str) -> bool:
    try:
        files_of(spark, path).limit(1).collect()
    except AnalysisException as error:
        if error.getCondition() != "PATH_NOT_FOUND":
            raise
        return True
    return False


def _is_empty(spark: SparkSession, path: str) -> bool:
    return _missing(spark, path) or not files_of(spark, path).limit(1).collect()
