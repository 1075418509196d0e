"""All conflicts in a rule base on Spark: whether those that were planted are found, and how the time grows.

`make soak` asks the same of ten times as many rules (`soak_conflicts.py`).
"""

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession

from conflicts_parts import expected, planted, write
from harness import Result, at_most
from penstock.apps.cli.pipeline.spark_session import SparkMeter
from penstock.pipeline.jobs.job import run as run_job
from penstock.pipeline.outputs import counts_of
from spark_parts import spark_session

RULES = int(os.environ.get("PENSTOCK_BENCH_RULES", "1000000"))
#: more than are done in one part
WARM = 50_000
#: a meter hears of counters once a second
HEARD = 3.0


@dataclass(frozen=True, slots=True)
class Looked:
    """What one run came to."""

    rules: int
    seconds: float
    conflicts: int
    planted: int


@contextmanager
def metered_session(meter: SparkMeter, memory: str) -> Iterator[SparkSession]:
    spark = spark_session(memory, meter.settings)
    try:
        yield spark
    finally:
        spark.stop()


def look(spark: SparkSession, rules: int) -> Looked:
    """Make a rule base, and look for its conflicts."""
    with tempfile.TemporaryDirectory() as name:
        job = write(spark, Path(name), rules)
        known = expected(planted(spark, rules))
        start = time.perf_counter()
        said = run_job(job, spark, f"{name}/found")
        return Looked(rules, time.perf_counter() - start, counts_of(said)["conflicts"], known)


def measure(name: str, rules: int, memory: str) -> list[Result]:
    """Compare a rule base with one of a tenth of its rules."""
    with SparkMeter() as meter, metered_session(meter, memory) as spark:
        look(spark, WARM)
        few, many = look(spark, rules // 10), look(spark, rules)
        # What was told long ago waits to be heard, and there is room for no more.
        meter.counted()
        time.sleep(HEARD)
        spilled = meter.counted().spilled
    growth = many.seconds / few.seconds / 10
    times = f"{few.rules:,} rules {few.seconds:.1f} s, {many.rules:,} rules {many.seconds:.1f} s"
    found = [f"{each.conflicts:,} of {each.planted:,}" for each in (few, many)]
    right = all(each.conflicts == each.planted for each in (few, many))
    return [
        Result(f"{name}-found", many.conflicts / many.planted, "= 1", right, f"conflicts found: {' and '.join(found)}"),
        at_most(f"{name}-growth", growth, 1.5, f"{times}; 1 is linear"),
        Result(f"{name}-spilled", float(spilled), "= 0", not spilled, f"{spilled:,} bytes went to disk to be sorted"),
    ]


def run() -> list[Result]:
    return measure("conflicts", RULES, "6g")
