"""The output of a job: where it writes, what is complete, and how the next job follows it.

Each part of an output is a folder with a folder `@batch=N` for each batch. `job/` says which job's output it is,
`commits/` which batches are complete.
"""

import json
import re
import uuid
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, TypeAlias

from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import Column, DataFrame, DataFrameReader, DataFrameWriter, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # the name that everybody knows it by
from pyspark.sql.streaming.readwriter import DataStreamReader
from pyspark.sql.types import StringType, StructField, StructType

from penstock.errors import FailedError, LimitError, MalformedError, PenstockError, RefusedError
from penstock.pipeline.commits import BATCH as BATCH
from penstock.pipeline.commits import CHECKPOINT as CHECKPOINT
from penstock.pipeline.commits import COMMITS as COMMITS
from penstock.pipeline.commits import JOB, check_free, commit_line, read_commit, read_note
from penstock.pipeline.commits import OUTPUT as OUTPUT
from penstock.pipeline.commits import PREPARED as PREPARED
from penstock.pipeline.commits import TO as TO
from penstock.pipeline.commits import Said as Said
from penstock.pipeline.commits import add_up as add_up
from penstock.pipeline.commits import check_apart as check_apart
from penstock.pipeline.commits import check_sum as check_sum
from penstock.pipeline.commits import counts_of as counts_of
from penstock.pipeline.commits import no_input as no_input
from penstock.pipeline.event_columns import TYPE
from penstock.pipeline.frames import quoted

# ----------------------------------------------------------------------------------------------------------------------
# Read and replace files, independently of a cluster's settings.
#
# Some settings of Spark let a job skip files that are broken or missing, or leave rows of an earlier run in a folder
# that is overwritten. The output would not show that it is incomplete, or not of this policy. Options of a reader or a
# writer take precedence over such settings.


Reader: TypeAlias = DataFrameReader | DataStreamReader
"""`spark.read`, or `spark.readStream` for files that arrive while it runs."""

STRICT: Final = {"ignoreCorruptFiles": "false", "ignoreMissingFiles": "false"}
#: Versions are long texts, and mostly the same one. To compare each with the smallest and the largest takes a tenth of
#: an ingest, and readers can tell from the column's dictionary which versions are there.
_WRITTEN: Final = {f"parquet.column.statistics.enabled#{TYPE}": "false"}


def reading(spark: SparkSession) -> DataFrameReader:
    """Return a reader that fails if one of the files cannot be read."""
    return spark.read.options(**STRICT)


def replacing(frame: DataFrame) -> DataFrameWriter:
    """Return a writer that replaces the whole folder, including other partitions."""
    return frame.write.mode("overwrite").option("partitionOverwriteMode", "static")


def is_not_found(error: PySparkException) -> bool:
    """Return whether Spark failed because there is nothing at a path."""
    return error.getCondition() == "PATH_NOT_FOUND"


# ----------------------------------------------------------------------------------------------------------------------
# Lines of text in an output: notes about it and about its batches.
#
# Spark reads and writes them, so a path can be any that Spark can write.


LINE: Final = StructType([StructField("value", StringType())])


def read_lines(spark: SparkSession, path: str) -> list[str]:
    """Return the lines of all files below a path; none if there is nothing."""
    try:
        lines = reading(spark).schema(LINE).option("recursiveFileLookup", "true").text(path).collect()
    except AnalysisException as error:
        if not is_not_found(error):
            raise
        return []
    return [str(line[0]) for line in lines]


def write_lines(spark: SparkSession, lines: Iterable[str], path: str) -> None:
    """Write lines into one file of a folder, replacing earlier ones."""
    found = list(lines)
    # As an expression: rows of Python would need a worker of Python, which takes longer to start than this to run.
    each = F.explode(F.split(F.lit("\n".join(found)), "\n")).alias("value")
    spark.range(0, min(len(found), 1), 1, 1).select(each).write.mode("overwrite").text(path)


# ----------------------------------------------------------------------------------------------------------------------
# How a stream reads files as they arrive.


_FOREVER: Final = "36500d"
"""Spark forgets files that are a week older than the newest one, and would not read such a file that comes late."""


@dataclass(frozen=True, slots=True)
class Streaming:
    """How a stream runs: the number of files, or batches of another job, at a time; and whether it drains them."""

    files: int = 100
    drain: bool = False


def arriving(streaming: Streaming) -> dict[str, str]:
    """Return the options with which files are read as they arrive."""
    return {"maxFilesPerTrigger": str(streaming.files), "maxFileAge": _FOREVER}


# ----------------------------------------------------------------------------------------------------------------------
# Recover errors that tasks raised on purpose: Spark passes on only their text.


CLOSED_LOG: Final = "seal.closed-log"
NO_ROW: Final = "evaluate.row"
_KINDS: Final = {kind.__name__: kind for kind in (FailedError, LimitError, MalformedError, RefusedError)}
#: an error as the last line of a Python traceback
_WORDS: Final = re.compile(
    rf"^\s*penstock\.errors\.({'|'.join(_KINDS)}): (.*) \[([a-z0-9-]+(?:\.[a-z0-9-]+)+)\]\s*$", re.MULTILINE
)
_HINTS: Final = {
    CLOSED_LOG: "`penstock pipeline unseal` sets aside what does not open",
    NO_ROW: "correct the line or take it out, and run the job again",
}


def closed_log(code: str) -> FailedError:
    """Return the error for a log that is to be read as a whole, and has a block that is not."""
    return FailedError(CLOSED_LOG, f"a block of the sealed log does not open: {code}", hint=_HINTS[CLOSED_LOG])


def raise_in_task(code: str, words: Column) -> Column:
    """Return a column that fails whatever asks for its value, as a task that raises `MalformedError` does."""
    kind = MalformedError.__name__
    return F.raise_error(F.concat(F.lit(f"\npenstock.errors.{kind}: "), words, F.lit(f" [{code}]\n")))


def raised_by_task(error: PySparkException) -> PenstockError | None:
    """Return the error that a task raised on purpose, if Spark failed because of it."""
    found = _WORDS.findall(str(error))
    if not found:
        return None
    kind, message, code = found[-1]
    return _KINDS[kind](code, message, hint=_HINTS.get(code, "its log says more: give a file with --spark-log"))


# ----------------------------------------------------------------------------------------------------------------------
# Commits: notes about the complete batches of an output, each in `commits/@batch=N/`.
#
# A commit is written after everything else of a batch: without one, the batch does not exist for readers. A run that is
# not a stream has one batch, number 0.


def commit(spark: SparkSession, path: str, batch: int, said: Mapping[str, object]) -> None:
    """Commit a batch of an output with its description. It is written last."""
    write_lines(spark, [commit_line(batch, said)], _commit_place(path, batch))


def commits(spark: SparkSession, path: str) -> dict[int, Said]:
    """Return the description of each complete batch of an output, by number; nothing if there is no output.

    Raises `MalformedError` (`layout.manifest`).
    """
    said = [read_commit(line) for line in read_lines(spark, f"{path}/{COMMITS}")]
    return dict(sorted(said, key=lambda found: found[0]))


def committed(spark: SparkSession, path: str, batch: int) -> bool:
    """Return whether a batch of an output is complete."""
    return bool(read_lines(spark, _commit_place(path, batch)))


def _commit_place(path: str, batch: int) -> str:
    return f"{path}/{COMMITS}/{BATCH}={batch}"


def withdraw(spark: SparkSession, path: str, batch: int) -> None:
    """Take back that a batch is complete, before it is written again."""
    if committed(spark, path, batch):
        write_lines(spark, [], _commit_place(path, batch))


def clear(spark: SparkSession, path: str, *parts: str) -> None:
    """Empty an output. Its commits are removed first, so that the rest does not look complete."""
    nothing = spark.range(0, 0, 1, 1).select(F.lit("").alias("value"), F.lit(0).alias(BATCH))

    def empty(part: str) -> None:
        replacing(nothing).partitionBy(BATCH).text(f"{path}/{part}")

    empty(COMMITS)
    if parts:
        # Side by side: each is a job of Spark that does nothing but begin and end.
        with ThreadPoolExecutor(len(parts)) as threads:
            list(threads.map(empty, parts))


# --- What they count -------------------------------------------------------------------------------------------------


def totals(spark: SparkSession, path: str) -> dict[str, int]:
    """Add up the counts of all complete batches of an output. Raises `MalformedError` (`layout.manifest`)."""
    return add_up(commits(spark, path).values())


# ----------------------------------------------------------------------------------------------------------------------
# The output.


@dataclass(frozen=True, slots=True)
class Output:
    """Where a job writes. `job` and `source` identify it: another job cannot continue this output."""

    spark: SparkSession
    path: str
    job: str
    source: str
    parts: tuple[str, ...]
    #: the tables that its main rows also go to
    to: tuple[str, ...] = ()

    def part(self, name: str, batch: int) -> str:
        """Return the folder of one part of a batch."""
        return f"{self.path}/{name}/{BATCH}={batch}"

    def check(self, *, stream: bool = False, overwrite: bool = False) -> bool:
        """Return whether the output exists already, and check that it may be written.

        A stream that was stopped continues in its own output, and so does a run whose rows may be in tables already;
        nothing else is overwritten without `overwrite`. Raises `RefusedError` (`pipeline.exists`, `pipeline.foreign`
        for a folder of somebody else).
        """
        found = _note(self.spark, self.path)
        foreign = found is None and bool(_has_files(self.spark, self.path))
        goes_on = stream or (bool(self.to) and found is not None and not commits(self.spark, self.path))
        wanted = self._mine(stream=stream) if goes_on else None
        check_free(self.path, found, foreign=foreign, continues=wanted, overwrite=overwrite)
        return found is not None

    def open(self, *, stream: bool = False, overwrite: bool = False) -> Said:
        """Prepare to write, and return the part that every commit has in common. Raises as `check`."""
        exists = self.check(stream=stream, overwrite=overwrite)
        if exists:
            # Of a run that was killed. This one may have no such batch, or not so many types.
            if not is_missing(self.spark, f"{self.path}/{KEPT}"):
                _take_away(self.spark, f"{self.path}/{KEPT}")
            if not overwrite:
                return {name: value for name, value in (_note(self.spark, self.path) or {}).items() if name == OUTPUT}
            # A batch must not look prepared when its parts are gone.
            clear(self.spark, self.path, *((PREPARED,) if self.to else ()), CHECKPOINT, *self.parts)
        own: Said = {OUTPUT: uuid.uuid4().hex}
        note = json.dumps({**self._mine(stream=stream), **own})
        write_lines(self.spark, [note], f"{self.path}/{JOB}")
        if not exists:
            # So that jobs that follow can begin.
            clear(self.spark, self.path)
        return own

    def _mine(self, *, stream: bool) -> Said:
        return {"job": self.job, "source": self.source, "stream": stream, TO: list(self.to)}

    @property
    def begun(self) -> str | None:
        """The name of the output that is there, if there is one."""
        found = (_note(self.spark, self.path) or {}).get(OUTPUT)
        return None if found is None else str(found)

    def write(self, frame: DataFrame, part: str, batch: int, *more: DataFrame) -> None:
        """Write one part of a batch, replacing an earlier attempt; `more` rows of it can have other columns."""
        frame.write.mode("overwrite").options(**_WRITTEN).parquet(self.part(part, batch))
        for one in more:
            one.write.mode("append").options(**_WRITTEN).parquet(self.part(part, batch))

    def lines(self, part: str, batch: int) -> list[str]:
        """Return the lines of one part of a batch; none if it was not written."""
        return read_lines(self.spark, self.part(part, batch))

    def write_lines(self, lines: list[str], part: str, batch: int) -> None:
        """Write one part of a batch as lines of text."""
        write_lines(self.spark, lines, self.part(part, batch))


# --- What is evaluated once ---


KEPT: Final = "kept"
"""The folder of an output for rows that its job is about to divide. It has no rows when the job is done.

What a run that was killed leaves there is taken away when the next one opens the output.
"""


@contextmanager
def kept(frame: DataFrame, path: str, batch: int) -> Iterator[DataFrame]:
    """Yield rows that several Spark jobs read, from files in the output, and take these away afterwards.

    Spark plans a frame that is persisted again for each job that reads it, and compares that plan with all that are
    persisted. That takes time by the square of the columns of its input. What is in files is planned once.
    """
    place, spark = f"{path}/{KEPT}/{BATCH}={batch}", frame.sparkSession
    try:
        frame.write.mode("overwrite").parquet(place)
        yield reading(spark).schema(frame.schema).parquet(place)
    finally:
        _take_away(spark, place)


def _take_away(spark: SparkSession, place: str) -> None:
    replacing(spark.range(0, 0, 1, 1).select(F.lit("").alias("value"))).text(place)


# --- What other jobs have written ------------------------------------------------------------------------------------


def complete(spark: SparkSession, path: str) -> list[int]:
    """Return the numbers of the complete batches of another job's output.

    Raises `FailedError` (`pipeline.no-input`) if there is no output, or no complete one.
    """
    found = list(commits(spark, path))
    if not found:
        raise no_input(path)
    return found


def job_of(spark: SparkSession, path: str) -> str | None:
    """Return the name of the job of an output; None if there is none."""
    found = _note(spark, path)
    return None if found is None else str(found.get("job"))


def _note(spark: SparkSession, path: str) -> Said | None:
    """Return the note of an output; an empty one if it cannot be read."""
    lines = read_lines(spark, f"{path}/{JOB}")
    return read_note(lines[0]) if lines else None


def read_part(spark: SparkSession, path: str, part: str, batches: list[int], schema: StructType) -> DataFrame:
    """Return one part of some batches; columns that a batch lacks are null."""
    if not batches:
        return spark.createDataFrame([], schema)
    # Not by partition: a batch without rows may be a folder without files.
    reader = reading(spark).schema(schema).option("basePath", f"{path}/{part}")
    return reader.parquet(*(f"{path}/{part}/{BATCH}={batch}" for batch in batches)).drop(BATCH)


def files_of(spark: SparkSession, path: str) -> DataFrame:
    """Return every file below a path, with its size. Names that begin with `_` or `.` do not count."""
    reader = reading(spark).format("binaryFile").option("recursiveFileLookup", "true")
    return reader.load(path).select("path", "length")


def is_missing(spark: SparkSession, path: str) -> bool:
    """Return whether there is nothing at a path, not even an empty folder."""
    return _has_files(spark, path) is None


def _has_files(spark: SparkSession, path: str) -> bool | None:
    """Return whether there is a file below a path; None if there is nothing at it."""
    try:
        return bool(files_of(spark, path).limit(1).collect())
    except AnalysisException as error:
        if not is_not_found(error):
            raise
        return None


# ----------------------------------------------------------------------------------------------------------------------
# A stream that follows the output of another job by its commits. It follows the same output as in its first batch.
#
# Every output has a name of its own, drawn at random when it is begun, which its note and all its commits say. A job
# that is run with `--overwrite` begins another output in the same place. Its commits are new files, and whoever
# followed the old one would take them for more of it, and have every event twice.


FOLLOWS: Final = "follows"
"""The key in a commit for the output that was followed."""
_OF: Final = "@output"


def follow(spark: SparkSession, path: str, streaming: Streaming) -> DataFrame:
    """Return a stream of the commits of another job; `named` says which batches they are.

    Raises `FailedError` (`pipeline.no-input`) if the job has not begun.
    """
    source = f"{path}/{COMMITS}"
    if is_missing(spark, source):
        raise no_input(path)
    reader = spark.readStream.schema(LINE).options(**STRICT).option("recursiveFileLookup", "true")
    lines = reader.options(**arriving(streaming)).text(source)
    return lines.select("value", _output_of(F.col("value")))


def named(lines: DataFrame) -> list[int]:
    """Return the batches that some commits are of."""
    batches = lines.selectExpr("get_json_object(value, '$.batch') AS batch").where("batch IS NOT NULL").distinct()
    return sorted(int(row[0]) for row in batches.collect())


def _output_of(line: Column) -> Column:
    """Return of which output a commit is, beside its line; those of earlier versions of Penstock have no name."""
    return F.coalesce(F.get_json_object(line, f"$.{OUTPUT}"), F.lit("")).alias(_OF)


@dataclass(slots=True)
class Followed:
    """The output that a stream follows, once it is known."""

    first: str | None = None

    @classmethod
    def before(cls, said: Iterable[Mapping[str, object]]) -> "Followed":
        """Return the output that a continued stream has followed, by its own commits."""
        return cls(next((str(one[FOLLOWS]) for one in said if FOLLOWS in one), None))

    def check(self, commits: DataFrame) -> dict[str, object]:
        """Check that some commits are of the output that was followed before, and return its description.

        Frames that are not commits have none. Raises `RefusedError` (`pipeline.replaced`).
        """
        if _OF not in commits.columns:
            return {}
        found = {str(row[0]) for row in commits.select(quoted(_OF)).distinct().collect()}
        if self.first is None and len(found) == 1:
            (self.first,) = found
        if found - {self.first}:
            raise RefusedError(
                "pipeline.replaced",
                "the output that this stream follows was written again since the stream began",
                hint="its events would be there twice: use --overwrite here as well, or choose another folder",
            )
        return {} if self.first is None else {FOLLOWS: self.first}
