"""Admission, delivery and what-if keep attribute values and the constants of policies to themselves.

They stand in data, never in an expression: plans, the UI, logs and errors print expressions.
"""

import contextlib
import io
import logging
import re
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from tests.pipeline import secrets_job as job

from penstock.errors import PenstockError
from penstock.pipeline.enforce.admit import admit
from penstock.pipeline.enforce.deliver import deliver
from penstock.pipeline.frames import ID, micros, quoted
from penstock.pipeline.whatif import compare

TYPES = [job.TYPE.event_type]
SECRETS = re.compile("|".join(job.TRACES))
KINDS = [
    pytest.param(job.COMPARED, id="compared"),
    pytest.param(job.PATTERN, id="patterns"),
    pytest.param(job.SPANS, id="spans"),
]


def leaks(text: str) -> set[str]:
    return set(SECRETS.findall(text))


def plans(*frames: DataFrame) -> str:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        for frame in frames:
            frame.explain(extended=True)
    return printed.getvalue()


@pytest.fixture
def executed(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Keep the plan of every frame that is asked for its rows."""
    found: list[str] = []
    kind = type(spark.range(1))

    def watched(action: Callable[..., Any]) -> Callable[..., Any]:
        def run(frame: DataFrame, *arguments: Any, **named: Any) -> Any:
            found.append(plans(frame))
            return action(frame, *arguments, **named)

        return run

    for name in ("collect", "count", "toArrow", "toPandas", "toLocalIterator", "take", "first", "isEmpty"):
        monkeypatch.setattr(kind, name, watched(getattr(kind, name)))
    return found


@pytest.fixture(autouse=True)
def _whole_plans(spark: SparkSession) -> None:
    # Spark shortens what it prints; a secret behind the cut would be missed.
    spark.conf.set("spark.sql.debug.maxToStringFields", "1000")


def test_the_detector_detects(spark: SparkSession) -> None:
    for secret in ("'SECRET0'", "770770770", "77027702.25", "77027702.25D", "TIMESTAMP '2031-07-07 00:00:00'"):
        assert leaks(plans(spark.range(1).selectExpr(f"{secret} AS a"))), secret
    assert leaks(f"{micros(job.SECRET_DAY)}")
    assert leaks("RLIKE ^.SEC_RET")


@pytest.mark.parametrize("text", KINDS)
def test_plans_of_admission_hold_no_constant(spark: SparkSession, text: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, logger="penstock"):
        admitted = admit(job.events(spark), job.TYPE, job.policy(2, text))
        found = plans(admitted.events, admitted.refused)
    assert "Project" in found
    assert leaks(found) == set()
    assert leaks(caplog.text) == set()


@pytest.mark.parametrize("text", KINDS)
@pytest.mark.parametrize("alike", [1, 5])
def test_plans_of_delivery_hold_no_constant(spark: SparkSession, alike: int, text: str) -> None:
    found = plans(deliver(job.transit(spark), TYPES, job.policy(alike, text)).by_subscriber())
    assert "Project" in found
    assert leaks(found) == set()


@pytest.mark.parametrize("text", KINDS)
def test_plans_of_what_if_hold_no_constant(spark: SparkSession, executed: list[str], text: str) -> None:
    found = compare(job.transit(spark), job.policy(0), job.policy(2, text), types=TYPES)
    assert found.changes, "something is compared"
    assert any("Aggregate" in plan for plan in executed)
    assert leaks("\n".join(executed)) == set()


FAILURES: dict[str, Callable[[SparkSession], object]] = {
    "admit": lambda spark: admit(job.events(spark).drop("plate"), job.TYPE, job.policy(2)),
    "deliver": lambda spark: deliver(job.transit(spark).select(quoted(ID)), TYPES, job.policy(2, job.PATTERN)),
    "what-if": lambda spark: compare(job.transit(spark).select(quoted(ID)), job.policy(0), job.policy(2), types=TYPES),
}


@pytest.mark.parametrize("name", FAILURES)
def test_errors_quote_no_constant(spark: SparkSession, name: str) -> None:
    """What goes wrong in the hands of a user is a column that is not there; Spark's error then prints the plan."""
    with pytest.raises((PySparkException, PenstockError)) as caught:
        FAILURES[name](spark)
    assert leaks(f"{caught.value} {caught.value!r} {caught.value.__dict__}") == set()
