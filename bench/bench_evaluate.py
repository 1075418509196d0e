"""Decisions on a table of requests under 1,000 policies, against a plain read and write of that table, by turns.

Each policy wants a role, an action and a kind of resource; every third wants a level in a range of its own, every fifth
denies, and some overlap. Roles that no policy knows are in a fifth of the requests. That few combinations come again is
seen to: a level is one of 100,000, and ids, times and users are beside it, which are not asked for and go through.
A sample of the answers is checked against the compiled policy, request by request.
"""

import os
import tempfile
from dataclasses import replace
from pathlib import Path

from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # the name that everybody knows it by

from bench_policy import DOES_KEY, KIND_KEY, LEVEL_KEY, NOW, ROLE_KEY, Line, lines, root
from harness import Result, at_least, observed
from penstock.pipeline.evaluate import DECISION, RequestColumn, TablePolicies, evaluate
from penstock.pipeline.frames import quoted
from penstock.policy.engine.compiler import CompiledPolicy
from spark_parts import medians, spark_session

ROWS = int(os.environ.get("PENSTOCK_BENCH_ROWS", "5000000"))
POLICIES = 1_000
LEVELS = 100_000
ROLES = 10_000
USERS = 1_000_000
START = 1_760_000_000_000_000
SAMPLE = 2_000
COLUMNS = (
    RequestColumn("role", ROLE_KEY),
    RequestColumn("action", DOES_KEY),
    RequestColumn("kind", KIND_KEY),
    RequestColumn("level", LEVEL_KEY),
)


def policies() -> list[Line]:
    """Return policies whose ranges have bounds of their own."""
    return [
        line if line.low is None else replace(line, low=line.low * 1_000 + number, high=line.low * 1_000 + 30_000)
        for number, line in enumerate(lines(POLICIES))
    ]


def requests(spark: SparkSession, known: list[Line]) -> DataFrame:
    rows = [(number, line.role, line.does, line.kind) for number, line in enumerate(known)]
    table = spark.createDataFrame(rows, "number bigint, known string, action string, kind string")
    n = F.col("id")

    def chance(salt: int, below: int) -> Column:
        return F.pmod(F.xxhash64(n, F.lit(salt)), F.lit(below))

    asked = spark.range(0, ROWS, numPartitions=8).withColumn("number", chance(1, len(known)))
    stranger = F.concat(F.lit("visitor"), chance(2, ROLES).cast("string"))
    return asked.join(F.broadcast(table), "number").select(
        F.concat(F.lit("request-"), n).alias("request"),
        F.timestamp_micros(F.lit(START) + n * 1_000).alias("time"),
        F.concat(F.lit("user"), chance(3, USERS).cast("string")).alias("user"),
        F.when(chance(4, 5) == 0, stranger).otherwise(F.col("known")).alias("role"),
        "action",
        "kind",
        chance(5, LEVELS).alias("level"),
        F.concat(F.lit("/records/"), chance(6, USERS).cast("string")).alias("path"),
    )


def check(decided: DataFrame, known: list[Line]) -> None:
    """Compare a sample with what the compiled policy says of each request by itself."""
    ask = CompiledPolicy(root(known)).ask

    def expected(row: Row) -> str:
        facts = {one.key: (row[one.name],) for one in COLUMNS}
        return ask(facts, NOW).decision.plain

    sample = decided.where(F.pmod(F.xxhash64("request"), F.lit(ROWS // SAMPLE)) == 0).collect()
    assert len(sample) > SAMPLE // 2
    assert [row[DECISION] for row in sample] == [expected(row) for row in sample]


def run() -> list[Result]:
    spark = spark_session("3g")
    known = policies()
    deciding = TablePolicies(root(known))
    with tempfile.TemporaryDirectory() as folder:
        source, copied, decided = (str(Path(folder) / name) for name in ("requests", "copied", "decided"))
        requests(spark, known).write.parquet(source)

        def copy() -> None:
            spark.read.parquet(source).write.mode("overwrite").parquet(copied)

        def decide() -> None:
            evaluate(spark.read.parquet(source), deciding, COLUMNS, NOW).write.mode("overwrite").parquet(decided)

        plain, ours = medians(copy, decide)
        found = spark.read.parquet(decided)
        check(found, known)
        assert found.count() == ROWS
        applicable = found.where(quoted(DECISION) != "NotApplicable").count() / ROWS
        assert applicable >= 0.5
    spark.stop()
    detail = f"{ROWS:,} requests, {POLICIES:,} policies: copied in {plain:.2f} s, decided in {ours:.2f} s"
    shares = f"{applicable:.0%} of the requests are applicable; {ROWS / ours:,.0f} decisions a second"
    return [
        at_least("spark-evaluate", plain / ours, 0.45, f"{detail}; {shares}"),
        observed("spark-evaluate-microseconds", (ours - plain) / ROWS * 1e6, "microseconds a row that it takes longer"),
    ]
