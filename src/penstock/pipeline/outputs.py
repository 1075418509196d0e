"""The output of a job: where it writes, and what others read of it.

Each part of it is a folder with a folder `@batch=N` for each batch. `job/` says whose output it is, `commits/` which
batches are complete.
"""

import json
import os
import uuid
from dataclasses import dataclass
from typing import Final

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from penstock.errors import FailedError, RefusedError
from penstock.pipeline.commits import BATCH, OUTPUT, Said, clear, commits
from penstock.pipeline.frames import quoted
from penstock.pipeline.lines import read_lines, write_lines
from penstock.pipeline.strict_files import is_not_found, reading

CHECKPOINT: Final = "checkpoint"
_JOB: Final = "job"


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
        if found is None and _has_files(self.spark, self.path):
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
        write_lines(self.spark, [note], f"{self.path}/{_JOB}")
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
        return read_lines(self.spark, self.part(part, batch))

    def write_lines(self, lines: list[str], part: str, batch: int) -> None:
        """Write one part of a batch as lines of text."""
        write_lines(self.spark, lines, self.part(part, batch))


def check_apart(path: str, files: str | None) -> None:
    """Check that the files that a job reads do not stand in its output: it would be cleared before they are read.

    Raises `RefusedError` (`pipeline.own-input`).
    """
    if files is not None and f"{_place(files)}/".startswith(f"{_place(path)}/"):
        raise RefusedError(
            "pipeline.own-input",
            f"`{path}` holds what the job reads, and is not written over",
            hint="choose another folder for the output",
        )


def _place(path: str) -> str:
    """Return a path in one way of writing it, where it is of this machine."""
    local = path.removeprefix("file://").removeprefix("file:")
    return path.rstrip("/") if "://" in local else os.path.realpath(local)


# --- What other jobs have written ------------------------------------------------------------------------------------


def complete(spark: SparkSession, path: str) -> list[int]:
    """Return the numbers of the complete batches of another job's output.

    Raises `FailedError` (`pipeline.no-input`) where there is no output, or none that is complete.
    """
    found = list(commits(spark, path))
    if not found:
        raise no_input(path)
    return found


def job_of(spark: SparkSession, path: str) -> str | None:
    """Return the name of the job that an output is of; None where there is none."""
    found = _note(spark, path)
    return None if found is None else str(found.get("job"))


def _note(spark: SparkSession, path: str) -> Said | None:
    """Return what an output says of itself; nothing known where it cannot be read."""
    lines = read_lines(spark, f"{path}/{_JOB}")
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
    return reader.parquet(*(f"{path}/{part}/{BATCH}={batch}" for batch in batches)).select(*map(quoted, schema.names))


def no_input(path: str) -> FailedError:
    """Return the error for a folder without a complete output of a job."""
    return FailedError(
        "pipeline.no-input",
        f"`{path}` holds no complete output of a job",
        hint="give the folder that `penstock pipeline ingest` or `admit` wrote",
    )


def files_of(spark: SparkSession, path: str) -> DataFrame:
    """Return every file below a path, with its length. What begins with `_` or `.` does not count."""
    reader = reading(spark).format("binaryFile").option("recursiveFileLookup", "true")
    return reader.load(path).select("path", "length")


def is_missing(spark: SparkSession, path: str) -> bool:
    """Say whether there is nothing at a path, not even an empty folder."""
    return _has_files(spark, path) is None


def _has_files(spark: SparkSession, path: str) -> bool | None:
    """Say whether there is a file below a path; None where there is nothing at it."""
    try:
        return bool(files_of(spark, path).limit(1).collect())
    except AnalysisException as error:
        if not is_not_found(error):
            raise
        return None
