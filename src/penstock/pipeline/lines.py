"""Lines of text that an output keeps: what is said of it and of its batches.

They go through Spark, so that a path may be any that Spark can write.
"""

from collections.abc import Iterable
from typing import Final

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.types import StringType, StructField, StructType

from penstock.pipeline.strict_files import is_not_found, reading

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
    """Write lines into one file of a folder, over what may be there of them."""
    frame = spark.createDataFrame([(line,) for line in lines], LINE).coalesce(1)
    frame.write.mode("overwrite").text(path)
