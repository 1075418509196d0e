"""A program that streams from one JetStream stream to another; the tests kill it and start it again."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa  # type: ignore[import-untyped]  # it ships no types
from pyspark.sql import SparkSession

from penstock.pipeline.jetstream import NAME, register


def main(url: str, folder: str) -> None:
    """Stream SOURCE to OUT; the task that meets event 1000 fails the first time, with half of its rows written."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    marker = str(Path(folder) / "failed")

    def failing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch
            if "e1000" in batch.column("id").to_pylist() and not Path(marker).exists():
                Path(marker).touch()
                raise RuntimeError("a task that fails once")

    spark = (
        SparkSession.builder.master("local[2,4]")
        .config("spark.ui.enabled", "false")
        .config("spark.log.level", "OFF")
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", "25")
        .getOrCreate()
    )
    register(spark)
    events = (
        spark.readStream.format(NAME)
        .options(url=url, stream="SOURCE", maxMessagesPerBatch="300", partitions="2", fetchSize="25")
        .load()
    )
    renamed = events.selectExpr("replace(subject, 'SOURCE', 'OUT') AS subject", "id", "headers", "payload")
    query = (
        renamed.mapInArrow(failing, renamed.schema)
        .writeStream.format(NAME)
        .options(url=url, stream="OUT", maxInFlight="20", checkpointLocation=str(Path(folder) / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
