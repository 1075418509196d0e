"""A restriction as columns shows what `Delivery` shows, row by row and value by value."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # the name that everybody knows it by
from tests.budget import examples
from tests.guard.strategies import Family, events, families, restrictions, selectors
from tests.pipeline.policy_kit import NOON, define, numbers
from tests.pipeline.rows import collected, same, transit_frame

from penstock.errors import MalformedError
from penstock.guard import Branch, Delivery, Restriction, environment
from penstock.model import (
    Event,
    EventType,
    TransitEvent,
)
from penstock.pipeline.enforce.policy import PipelinePolicy
from penstock.pipeline.enforce.restrict import deliver_one, environment_sources, mask
from penstock.pipeline.frames import ID, TIME, micros, quoted, transit_sources
from penstock.selector import ALWAYS, Selector, parse
from penstock.trust.capabilities import Right
from penstock.trust.credentials import Credentials

IN_UTC = PipelinePolicy(Credentials())
"""A policy that gives no right: restrictions come from elsewhere."""

TIMES = [
    NOON,
    NOON + timedelta(hours=7),
    NOON + timedelta(days=40),
    NOON - timedelta(days=2),
    datetime(1969, 12, 31, 23, 59, 59, 1, UTC),
    datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC),
    # Far from 1970 a double does not tell a microsecond before midnight from midnight.
    datetime(1, 1, 1, tzinfo=UTC),
    datetime(1, 1, 2, 23, 59, 59, 999_999, UTC),
    datetime(1500, 1, 1, 23, 59, 59, 999_999, UTC),
    datetime(2399, 12, 31, 23, 59, 59, 999_999, UTC),
    datetime(9999, 12, 30, 23, 59, 59, 999_999, UTC),
    datetime(9999, 12, 31, 23, 59, 59, 999_999, UTC),
]

WITH_A_NUMBER = EventType.of(define("T", numbers(["a"])))


def without_guards(restriction: Restriction) -> Restriction:
    """Guards are not in a log; those whose results are known come in as columns, which has its own test."""
    return Restriction(tuple(replace(branch, guards=frozenset()) for branch in restriction.branches))


@st.composite
def cases(draw: st.DrawFn) -> tuple[Family, EventType, Restriction, Selector, list[TransitEvent]]:
    family = draw(families())
    reader = draw(st.sampled_from(family.types))
    restriction = without_guards(draw(restrictions(family, Right.SUBSCRIBE)))
    selector = draw(st.just(ALWAYS) | selectors(reader.schema))
    writers = [version for version in family.types if reader.key in (version.key, *version.ancestors)]
    sent = [
        replace(draw(events(draw(st.sampled_from(writers)))).to_transit(), id=str(n), time=draw(st.sampled_from(TIMES)))
        for n in range(draw(st.integers(1, 12)))
    ]
    return family, reader, restriction, selector, sent


@settings(deadline=None, max_examples=examples(10), suppress_health_check=list(HealthCheck))
@given(cases())
def test_columns_show_what_delivery_shows(
    spark: SparkSession, case: tuple[Family, EventType, Restriction, Selector, list[TransitEvent]]
) -> None:
    family, reader, restriction, selector, sent = case
    deliver = Delivery(restriction, reader, selector)
    expected = {}
    for event in sent:
        assert event.time is not None
        seen = deliver(event, environment(event.time))
        if seen is not None:
            expected[event.id] = seen
    masked = mask(restriction, reader, transit_sources(family.types), IN_UTC)
    frame = transit_frame(spark, family.types, sent)
    found = {row[ID]: row for row in collected(deliver_one(frame, masked, reader, selector))}
    assert found.keys() == expected.keys()
    for key, delivered in expected.items():
        for name, value in delivered.values.items():
            assert same(value, found[key][name]), (name, value, found[key][name])


def test_guards_hold_where_the_log_says_so_and_nowhere_else(spark: SparkSession) -> None:
    reader = WITH_A_NUMBER
    sent = [replace(Event.of(reader, {"a": n}).to_transit(), id=str(n), time=NOON) for n in range(3)]
    restriction = Restriction((Branch(action=Right.SUBSCRIBE, guards=frozenset({"on-duty"})),))
    frame = transit_frame(spark, [reader], sent)
    answers = F.when(quoted(ID) == "0", True).when(quoted(ID) == "1", False)
    known: list[tuple[dict[str, Column], set[str]]] = [({}, set()), ({"on-duty": answers}, {"0"})]
    for guards, shown in known:
        masked = mask(restriction, reader, transit_sources([reader]), IN_UTC, guards)
        assert {row[ID] for row in deliver_one(frame, masked, reader).collect()} == shown


def test_no_row_is_copied_and_a_filter_of_the_view_reaches_the_events(
    spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    reader = WITH_A_NUMBER
    restriction = Restriction(
        (Branch(action=Right.SUBSCRIBE, where=parse("a > 7").rename({"a": reader.by_name["a"].id})),)
    )
    masked = mask(restriction, reader, transit_sources([reader]), IN_UTC)
    view = deliver_one(transit_frame(spark, [reader], []), masked, reader)
    view.where(quoted(ID) == "mine").explain()
    plan = capsys.readouterr().out.split("== Physical Plan ==")[1]
    # Whatever can make several rows of one copies each of them.
    assert "Generate" not in plan
    assert "NestedLoop" not in plan
    assert plan.index("Filter") > plan.rindex("BroadcastHashJoin")


def test_the_environment_is_that_of_the_broker_s_zone(spark: SparkSession) -> None:
    zones = [UTC, ZoneInfo("Europe/London"), ZoneInfo("America/St_Johns"), ZoneInfo("Pacific/Kiritimati")]
    changes = [datetime(2026, 10, 25, 0, 30, tzinfo=UTC), datetime(2026, 10, 25, 1, 30, tzinfo=UTC)]
    times = [*TIMES, *changes]
    rows = [(number, micros(moment)) for number, moment in enumerate(times)]
    frame = spark.createDataFrame(rows, schema="n int, t bigint").select("n", F.timestamp_micros("t").alias(TIME))
    parts = ["hour", "minute", "weekday"]
    for zone in zones:
        sources = environment_sources(zone, {})
        found = frame.select("n", *(sources[part].column.alias(part) for part in parts)).collect()
        for row in found:
            try:
                expected = environment(times[row["n"]], zone=zone)
            except MalformedError:
                # It has no date in that zone.
                expected = dict.fromkeys(parts)
            assert [row[part] for part in parts] == [expected[part] for part in parts], (zone, row)
