"""The environment that conditions speak about, and how often a client publishes."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from tests.guard.london import NOW

from penstock.errors import MalformedError
from penstock.guard import ENVIRONMENT, PublicationRate, environment, environment_schema
from penstock.model import AttributeSpec, Kind
from penstock.selector import evaluate, parse


def test_the_hour_is_the_brokers_hour() -> None:
    utc, london = environment(NOW), environment(NOW, zone=ZoneInfo("Europe/London"))
    assert (utc["hour"], london["hour"]) == (12, 13)
    assert utc["time"] == london["time"] == NOW
    assert utc["weekday"] == 5  # a Friday
    late = environment(datetime(2026, 5, 3, 23, 30, tzinfo=UTC), zone=ZoneInfo("Europe/London"))
    assert (late["weekday"], late["hour"], late["minute"]) == (1, 0, 30)


def test_what_every_broker_knows_fits_its_schema() -> None:
    known = environment(NOW, rate=3)
    assert known.keys() == ENVIRONMENT.keys()
    for name, spec in ENVIRONMENT.items():
        spec.check(known[name])


def test_a_moment_without_a_zone_is_no_moment() -> None:
    with pytest.raises(MalformedError) as caught:
        environment(datetime(2026, 5, 1))  # noqa: DTZ001  # the fault
    assert caught.value.code == "value.zone"


def test_a_moment_without_a_date_in_the_zone_is_refused() -> None:
    with pytest.raises(MalformedError) as caught:
        environment(datetime.max.replace(tzinfo=UTC), zone=ZoneInfo("Asia/Tokyo"))
    assert caught.value.code == "value.range"


def test_facts_never_replace_what_the_broker_knows() -> None:
    known = environment(NOW, facts={"hour": 3, "rate": 0, "on_duty": True})
    assert (known["hour"], known["rate"], known["on_duty"]) == (12, None, True)


def test_a_fact_must_not_take_a_name_that_every_broker_uses() -> None:
    schema = environment_schema({"on_duty": AttributeSpec(Kind.BOOLEAN)})
    assert schema.keys() == {*ENVIRONMENT, "on_duty"}
    assert environment_schema() == ENVIRONMENT
    with pytest.raises(MalformedError) as caught:
        environment_schema({"hour": AttributeSpec(Kind.STRING)})
    assert caught.value.code == "environment.reserved"


@pytest.mark.parametrize("condition", ["hour < 17", "NOT hour > 17", "rate < 10", "on_duty", "NOT on_duty"])
def test_what_the_broker_does_not_know_satisfies_no_condition(condition: str) -> None:
    assert evaluate(parse(condition), {}) is None


def test_the_rate_counts_one_minute() -> None:
    rate = PublicationRate()
    for second in range(5):
        rate.note(NOW + timedelta(seconds=second))
    assert rate.at(NOW + timedelta(seconds=4)) == 5
    assert rate.at(NOW + timedelta(seconds=59, microseconds=999_999)) == 5
    assert rate.at(NOW + timedelta(seconds=60)) == 4
    assert rate.at(NOW + timedelta(hours=1)) == 0


def test_the_rate_forgets_also_when_nobody_asks() -> None:
    rate = PublicationRate(timedelta(seconds=1))
    for second in range(1000):
        rate.note(NOW + timedelta(seconds=second))
    assert len(rate._counted) == 1


def test_the_rate_of_a_fast_publisher_takes_little_memory_and_is_exact_but_for_a_moment() -> None:
    rate = PublicationRate()
    for moment in range(100_000):
        rate.note(NOW + timedelta(microseconds=10 * moment))
    assert len(rate._counted) == 100
    assert rate.at(NOW + timedelta(seconds=1)) == 100_000
    rate.note(NOW + timedelta(seconds=2), events=7)
    assert rate.at(NOW + timedelta(seconds=61)) == 7
