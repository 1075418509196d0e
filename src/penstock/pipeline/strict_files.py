"""How files are read and replaced, whatever the settings of a cluster say.

Some settings of Spark let a job pass over files that are broken or have gone, or leave rows of an earlier run in a
folder that is written over. Nobody would see from the output that it is not whole, or not of this policy. Options of a
reader and of a writer go before settings.
"""

from typing import Final, TypeAlias

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, DataFrameReader, DataFrameWriter, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamReader

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
