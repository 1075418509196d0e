"""What benchmarks on Spark have in common."""

import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping

from pyspark.sql import DataFrame, SparkSession

from penstock.pipeline.jobs.session_settings import EVERYWHERE, LOCAL

WARM, ROUNDS = 3, 5


def spark_session(memory: str, also: Mapping[str, str] | None = None) -> SparkSession:
    """Start Spark on two cores, with what `penstock` sets on one machine, so much memory and further settings."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "4",
        "spark.driver.memory": memory,
        "spark.log.level": "ERROR",
        **EVERYWHERE,
        **LOCAL,
        **(also or {}),
    }
    builder = SparkSession.builder.master("local[2]").appName("penstock bench")
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def nothing(frame: DataFrame) -> None:
    """Make every row of a frame, and put it nowhere."""
    frame.write.format("noop").mode("overwrite").save()


def medians(*jobs: Callable[[], None], warm: int = WARM, rounds: int = ROUNDS) -> list[float]:
    """Time jobs by turns; the first rounds do not count: Java compiles what it has seen a while."""
    samples: list[list[float]] = [[] for _ in jobs]
    for number in range(warm + rounds):
        for job, times in zip(jobs, samples, strict=True):
            start = time.perf_counter()
            job()
            if number >= warm:
                times.append(time.perf_counter() - start)
    return [statistics.median(times) for times in samples]
