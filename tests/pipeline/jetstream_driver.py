"""A program that streams from one JetStream stream to another; a test kills it and goes on from its checkpoint."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa  # type: ignore[import-untyped]  # it ships no types
from pyspark.sql import SparkSession

from penstock.pipeline.jetstream.source import NAME, register_jetstream
from penstock.pipeline.jobs.job import RunningStream


def stream(spark: SparkSession, url: str, folder: str) -> None:
    """Stream SOURCE to OUT; the task that meets event 200 fails the first time, when it has written others."""
    marker = str(Path(folder) / "failed")

    def failing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch
            if "e200" in batch.column("id").to_pylist() and not Path(marker).exists():
                Path(marker).touch()
                raise RuntimeError("a task that fails once")

    register_jetstream(spark)
    events = (
        spark.readStream.format(NAME)
        .options(url=url, stream="SOURCE", maxMessagesPerBatch="150", partitions="2", fetchSize="25")
        .load()
    )
    renamed = events.selectExpr("replace(subject, 'SOURCE', 'OUT') AS subject", "id", "headers", "payload")
    running = RunningStream(
        renamed.mapInArrow(failing, renamed.schema)
        .writeStream.format(NAME)
        .options(url=url, stream="OUT", maxInFlight="20", checkpointLocation=str(Path(folder) / "checkpoint"))
        .trigger(availableNow=True)
    )
    running.wait()


if __name__ == "__main__":
    os.environ["PYSPARK_PYTHON"] = sys.executable
    stream(
        SparkSession.builder.master("local[2,4]")  # a task may fail three times
        .config("spark.ui.enabled", "false")
        .config("spark.log.level", "OFF")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.codegen.wholeStage", "false")
        .config("spark.sql.codegen.factoryMode", "NO_CODEGEN")
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", "25")
        .getOrCreate(),
        *sys.argv[1:],
    )
