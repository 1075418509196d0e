"""Selectors as columns mean what the reference interpreter says they mean."""

from collections.abc import Sequence
from datetime import datetime

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812  # the name that everybody knows it by
from tests.budget import examples
from tests.selector.strategies import SCHEMA, conditions, rows

from penstock.errors import EvaluationError
from penstock.model.values import Kind, Scalar
from penstock.pipeline.frames import SPARK_TYPES, ColumnSource, condition, micros
from penstock.selector import Selector, evaluate, parse

NAMES = list(SCHEMA)


def reference(selector: Selector, row: dict[str, Scalar]) -> tuple[bool, bool]:
    try:
        truth = evaluate(selector, row)
    except EvaluationError:
        return False, False
    return truth is True, truth is False


def spark_answers(
    spark: SparkSession, selectors: Sequence[Selector], given_rows: Sequence[dict[str, Scalar]]
) -> list[list[tuple[bool, bool]]]:
    def plain(value: Scalar) -> object:
        return micros(value) if isinstance(value, datetime) else value

    fields = [f"`c{n}` {'bigint' if SCHEMA[name].kind is Kind.TIMESTAMP else SPARK_TYPES[SCHEMA[name].kind]}"
              for n, name in enumerate(NAMES)]  # fmt: skip
    data = [(number, *(plain(row.get(name)) for name in NAMES)) for number, row in enumerate(given_rows)]
    frame = spark.createDataFrame(data, schema=f"n int, {', '.join(fields)}")
    sources = {}
    for number, name in enumerate(NAMES):
        kind = SCHEMA[name].kind
        column = F.col(f"c{number}")
        sources[name] = ColumnSource(F.timestamp_micros(column) if kind is Kind.TIMESTAMP else column, kind)
    truths = [condition(selector, sources) for selector in selectors]
    chosen = [F.array(*(F.struct(truth.true.alias("t"), truth.false.alias("f")) for truth in truths)).alias("a")]
    collected = sorted(frame.select("n", *chosen).collect(), key=lambda row: int(row["n"]))
    return [[(pair["t"], pair["f"]) for pair in row["a"]] for row in collected]


@settings(deadline=None, max_examples=examples(8), suppress_health_check=list(HealthCheck))
@given(st.lists(conditions(), min_size=10, max_size=25), st.lists(rows(), min_size=20, max_size=40))
def test_columns_agree_with_the_reference(
    spark: SparkSession, texts: list[str], given_rows: list[dict[str, Scalar]]
) -> None:
    selectors = [parse(text) for text in texts]
    answers = spark_answers(spark, selectors, given_rows)
    for row, found in zip(given_rows, answers, strict=True):
        for selector, pair in zip(selectors, found, strict=True):
            assert pair == reference(selector, row), (selector.text, row)
