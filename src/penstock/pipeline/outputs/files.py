"""Read and replace files, independently of a cluster's settings.

Some settings of Spark let a job pass over files that are broken or have gone, or leave rows of an earlier run in a
folder that is written over. Nobody would see from the output that it is not whole, or not of this policy. Options of a
reader and of a writer go before settings.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, TypeAlias

from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, DataFrameReader, DataFrameWriter, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamReader
from pyspark.sql.types import StringType, StructField, StructType

Reader: TypeAlias = DataFrameReader | DataStreamReader
"""`spark.read`, or `spark.readStream` for files that arrive while it runs."""

STRICT: Final = {"ignoreCorruptFiles": "false", "ignoreMissingFiles": "false"}


def reading(spark: SparkSession) -> DataFrameReader:
    """Return what reads files, and fails where one of them cannot be read."""
    return spark.read.options(**STRICT)


def replacing(frame: DataFrame) -> DataFrameWriter:
    """Return what writes into a folder, of which nothing else is left: other partitions neither."""
    return frame.write.mode("overwrite").option("partitionOverwriteMode", "static")


def is_not_found(error: PySparkException) -> bool:
    """Say whether Spark failed because there is nothing at a path."""
    return error.getCondition() == "PATH_NOT_FOUND"


# ----------------------------------------------------------------------------------------------------------------------
# Lines of text that an output keeps: what is said of it and of its batches.
#
# They go through Spark, so that a path may be any that Spark can write.


LINE: Final = StructType([StructField("value", StringType())])


def read_lines(spark: SparkSession, path: str) -> list[str]:
    """Return the lines of all files below a path, and none where there is nothing."""
    try:
        lines = reading(spark).schema(LINE).option("recursiveFileLookup", "true").text(path).collect()
    except AnalysisException as error:
        if not is_not_found(error):
            raise
        return []
    return [str(line[0]) for line in lines]


def write_lines(spark: SparkSession, lines: Iterable[str], path: str) -> None:
    """Write lines into one file of a folder, replacing earlier ones."""
    frame = spark.createDataFrame([(line,) for line in lines], LINE).coalesce(1)
    frame.write.mode("overwrite").text(path)


# ----------------------------------------------------------------------------------------------------------------------
# How a stream reads files as they arrive.


_FOREVER: Final = "36500d"
"""Spark forgets files that are a week older than the newest one, and would not read such a file that comes late."""


@dataclass(frozen=True, slots=True)
class Streaming:
    """How a stream runs: at most so many files, or batches of another job, at a time; and whether it ends with them."""

    files: int = 100
    drain: bool = False


def arriving(streaming: Streaming) -> dict[str, str]:
    """Return the options with which files are read as they arrive."""
    return {"maxFilesPerTrigger": str(streaming.files), "maxFileAge": _FOREVER}
