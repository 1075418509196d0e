"""Delivery to many readers in one pass gives each of them what `Delivery` gives, and tells nobody the constants."""

import contextlib
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # the name that everybody knows it by
from tests.budget import examples
from tests.guard.strategies import Family, events, families, restrictions, selectors
from tests.pipeline.jobs_plant import interpreted
from tests.pipeline.policy_kit import (
    NOON,
    PLATE,
    RATIO,
    SEEN,
    SIGHTING,
    SPEED,
    TIMES,
    by_id,
    define,
    numbers,
    policy_of,
    reader,
    sightings,
)
from tests.pipeline.rows import collected, same, transit_frame

from penstock.errors import MalformedError, RefusedError
from penstock.guard import Branch, Delivery, Restriction, When, environment
from penstock.model import (
    Event,
    EventType,
    Kind,
    Scalar,
    TransitEvent,
)
from penstock.pipeline.enforce.deliver import SUBSCRIBER, Delivered, deliver
from penstock.pipeline.enforce.programs import Program, equality, shape_of, span
from penstock.pipeline.frames import ID, quoted
from penstock.pipeline.ingest.event_frames import TYPE
from penstock.selector import ALWAYS, Selector, parse
from penstock.trust.capabilities import Right
from penstock.trust.validity import Validity


def check(
    delivered: Delivered, readers: Sequence[tuple[EventType, Restriction, Selector]], sent: Sequence[TransitEvent]
) -> None:
    found = {(row[SUBSCRIBER], row[ID]): row for row in collected(delivered.by_subscriber())}
    expected = set()
    for number, (event_type, restriction, selector) in enumerate(readers):
        give = Delivery(restriction, event_type, selector)
        for event in sent:
            assert event.time is not None
            seen = give(event, environment(event.time))
            if seen is None:
                continue
            key = (f"reader-{number}", event.id)
            expected.add(key)
            assert key in found
            for name, value in seen.values.items():
                got = found[key][event_type.by_name[name].id]
                assert same(value, got), (key, name, value, got)
    assert found.keys() == expected


@st.composite
def cases(
    draw: st.DrawFn,
) -> tuple[Family, list[tuple[EventType, Restriction, Selector]], list[TransitEvent]]:
    family = draw(families())
    own = family.versions
    readers = []
    for _ in range(draw(st.integers(1, 6))):
        event_type = draw(st.sampled_from(own))
        found = draw(restrictions(family, Right.SUBSCRIBE))
        plain = Restriction(tuple(replace(branch, guards=frozenset()) for branch in found.branches))
        readers.append((event_type, plain, draw(st.just(ALWAYS) | selectors(event_type.schema))))
    sent = [
        replace(draw(events(draw(st.sampled_from(own)))).to_transit(), id=str(n), time=draw(st.sampled_from(TIMES)))
        for n in range(draw(st.integers(1, 8)))
    ]
    return family, readers, sent


@settings(deadline=None, max_examples=examples(6), suppress_health_check=list(HealthCheck))
@given(cases())
def test_each_reader_gets_what_live_delivery_gives(
    spark: SparkSession, case: tuple[Family, list[tuple[EventType, Restriction, Selector]], list[TransitEvent]]
) -> None:
    family, readers, sent = case
    frame = transit_frame(spark, family.types, sent)
    check(deliver(frame, family.types, policy_of(readers)), readers, sent)


MANY: dict[str, list[tuple[EventType, Restriction, Selector]]] = {
    "equality": [reader(f"plate = 'P{n}' AND speed > {n}", PLATE, SPEED) for n in range(20)],
    "forced": [reader("TRUE", PLATE, forced=((PLATE, f"P{n}"),)) for n in range(20)],
    "range of integers": [reader(f"speed BETWEEN {n} AND {n + 3}", SPEED) for n in range(-5, 50)],
    "range of floats": [reader(f"ratio >= {n}.25 AND ratio < {n + 1}.5", RATIO, SPEED) for n in range(12)],
    "range of times": [
        reader(f"seen BETWEEN TIMESTAMP '2026-05-01 12:{n:02}:00' AND TIMESTAMP '2026-05-01 13:{n:02}:00'", SEEN)
        for n in range(12)
    ],
    "empty and endless ranges": [reader(f"speed BETWEEN {n} AND {9 - n}", SPEED) for n in range(10)],
    "dates": [
        reader("TRUE", PLATE, when=When(Validity.between(NOON - timedelta(days=n), NOON + timedelta(days=n))))
        for n in range(1, 9)
    ],
    "without a key": [reader(f"speed > {n} OR plate = 'P{n}'", SPEED) for n in range(18)],
    "patterns": [reader(f"plate LIKE '%{n}' OR plate LIKE '_{n}%'", PLATE) for n in range(6)],
    "equality in a filter of their own": [
        (SIGHTING, reader(f"speed > {n % 2}", PLATE, SPEED)[1], parse(f"'P{n}' = plate AND speed < 30"))
        for n in range(12)
    ],
    "filters on what they may not see": [
        (SIGHTING, reader(f"speed > {n}", SPEED)[1], parse(f"plate = 'P{n}' OR speed = {n + 1}")) for n in range(6)
    ],
    "filters of their own": [
        (SIGHTING, reader("speed > 3", PLATE, SPEED)[1], parse(f"plate = 'P{n}' OR ratio > 1")) for n in range(8)
    ],
}


@pytest.mark.parametrize("name", MANY)
def test_many_readers_that_differ_in_constants(spark: SparkSession, name: str) -> None:
    sent = sightings(60)
    readers = MANY[name]
    check(deliver(transit_frame(spark, [SIGHTING], sent), [SIGHTING], policy_of(readers)), readers, sent)


def test_all_kinds_of_readers_together_in_one_pass(spark: SparkSession) -> None:
    sent = sightings(30)
    readers = [reader_ for group in MANY.values() for reader_ in group[:7]]
    delivered = deliver(transit_frame(spark, [SIGHTING], sent), [SIGHTING], policy_of(readers))
    check(delivered, readers, sent)


def test_readers_with_equal_rights_share_a_program(spark: SparkSession) -> None:
    readers = [reader("speed > 3", PLATE)] * 5 + [reader("speed > 4", PLATE)]
    delivered = deliver(transit_frame(spark, [SIGHTING], sightings(3)), [SIGHTING], policy_of(readers))
    assert [len(program.readers) for program in delivered.programs] == [5, 1]


def test_a_reader_reads_its_own_version(spark: SparkSession) -> None:
    readers = [reader("speed > 3", PLATE)]
    delivered = deliver(transit_frame(spark, [SIGHTING], sightings(6)), [SIGHTING], policy_of(readers))
    view = delivered.for_subscriber("reader-0")
    assert view.columns == ["@id", "@time", "@source", "plate", "speed", "seen", "ratio"]
    assert {row["plate"] for row in view.collect()} == {"P4", None}
    for written, hint in (("readr-0", "did you mean `reader-0`?"), ("nobody", "there are: reader-0.")):
        with pytest.raises(MalformedError) as refused:
            delivered.for_subscriber(written)
        assert refused.value.code == "pipeline.unknown-subscriber"
        assert hint in str(refused.value.hint)


def test_who_may_see_nothing_gets_nothing(spark: SparkSession) -> None:
    nothing = (SIGHTING, Restriction(), ALWAYS)
    delivered = deliver(transit_frame(spark, [SIGHTING], sightings(3)), [SIGHTING], policy_of([nothing]))
    assert delivered.rows.count() == 0
    assert delivered.without_rights == ("reader-0",)
    with pytest.raises(RefusedError) as refused:
        delivered.for_subscriber("reader-0")
    assert refused.value.code == "pipeline.no-rights"


def test_events_of_a_type_that_nobody_knows_go_to_nobody(spark: SparkSession) -> None:
    other = replace(SIGHTING.name, name="Secret")
    of = F.when(quoted(ID) == "0", F.lit(str(SIGHTING.name))).when(quoted(ID) == "1", F.lit(str(other)))
    events = transit_frame(spark, [SIGHTING], sightings(3)).withColumn(TYPE, of)
    delivered = deliver(events, [SIGHTING], policy_of([reader("TRUE", PLATE)]))
    assert [row[ID] for row in delivered.for_subscriber("reader-0").collect()] == ["0"]


@pytest.mark.parametrize("count", [1, 20])
def test_no_constant_of_a_policy_is_in_a_plan(spark: SparkSession, count: int) -> None:
    readers = [reader(f"plate = 'SECRET{n}' AND speed > {770000 + n}", PLATE) for n in range(count)]
    policy = replace(policy_of(readers), constants="hidden")
    delivered = deliver(transit_frame(spark, [SIGHTING], sightings(3)), [SIGHTING], policy)
    plans = io.StringIO()
    with contextlib.redirect_stdout(plans):
        delivered.rows.explain(extended=True)
        delivered.by_subscriber().explain(mode="formatted")
    assert "@p" in plans.getvalue() or "@i" in plans.getvalue()
    assert "SECRET" not in plans.getvalue()
    assert "7700" not in plans.getvalue()


def test_keys_are_found_where_every_branch_has_them() -> None:
    kinds: dict[str, Kind] = {attribute.id: attribute.spec.kind for attribute in SIGHTING.attributes}

    def program(*where: str) -> Program:
        branches = tuple(Branch(action=Right.SUBSCRIBE, where=by_id(text)) for text in where)
        return Program(0, Restriction(branches), SIGHTING, ALWAYS, ("r",))

    assert equality([shape_of(program("plate = 'A'", "speed > 1 AND plate = 'B'"), kinds)[0]], kinds) == (PLATE, (0, 2))
    assert equality([shape_of(program("plate = 'A'", "speed = 1"), kinds)[0]], kinds) is None
    assert equality([shape_of(program("plate = 'A' OR speed = 1"), kinds)[0]], kinds) is None
    assert equality([shape_of(program("ratio = 1"), kinds)[0]], kinds) == (RATIO, (0,)), "the same number as a real one"
    large = 2**53 + 1
    assert equality([shape_of(program(f"ratio = {large}"), kinds)[0]], kinds) is None, "that is not a real number"
    assert equality([shape_of(program("speed = 1.0"), kinds)[0]], kinds) == (SPEED, (0,))
    assert equality([shape_of(program("speed = 1.5"), kinds)[0]], kinds) is None
    assert span([shape_of(program("speed > 1 AND speed <= 9"), kinds)[0]], kinds) == (SPEED, ((0, 1),))
    assert span([shape_of(program("speed > 1"), kinds)[0]], kinds) is None


# --- Scale: what grows, and what does not. How long it takes is in bench/bench_pipeline.py. ---------------------------


def plan_size(found: DataFrame) -> int:
    """Return how many operators and expressions the plan of a frame has."""
    plan = found._jdf.queryExecution().optimizedPlan()
    return len(re.findall(r"#\d+|\w+\(| AND | OR | = ", plan.toString()))


def test_plans_do_not_grow_with_readers(spark: SparkSession) -> None:
    sent = transit_frame(spark, [SIGHTING], sightings(3))
    policies = [policy_of([reader(f"plate = 'P{n}'", PLATE) for n in range(count)]) for count in (20, 200)]
    few, many = (plan_size(deliver(sent, [SIGHTING], replace(one, constants="hidden")).rows) for one in policies)
    assert few == many > 0


def wide(number: int, attributes: int) -> EventType:
    return EventType.of(define(f"Wide{number}", numbers(f"a{n}" for n in range(attributes))))


def sent_of(event_type: EventType, number: int, values: Mapping[str, Scalar]) -> TransitEvent:
    return replace(Event.of(event_type, dict(values)).to_transit(), id=str(number), time=NOON)


def everything(event_type: EventType, where: str) -> tuple[EventType, Restriction, Selector]:
    ids = {a.name: a.id for a in event_type.attributes}
    return event_type, Restriction((Branch(action=Right.SUBSCRIBE, where=parse(where).rename(ids)),)), ALWAYS


def test_wide_rows_long_texts_and_skewed_keys(spark: SparkSession) -> None:
    of = wide(0, 200)
    asked = " OR ".join(f"a{n} = {n}" for n in range(100))
    readers = [everything(of, asked), everything(of, "a199 > 3 AND a0 IS NULL")]
    sent = [sent_of(of, n, {f"a{k}": k + n % 2 for k in range(n, 200)}) for n in range(4)]
    with interpreted(spark):
        check(deliver(transit_frame(spark, [of], sent), [of], policy_of(readers)), readers, sent)
    # Nearly all events have one key, and texts are long.
    text = "x" * 16_000
    long = [replace(one, values={**one.values, PLATE: text + str(n == 7)}) for n, one in enumerate(sightings(30))]
    named = [reader(f"plate = '{text}{last}'", PLATE, SPEED) for last in ("False", "True", "Neither")] * 2
    check(deliver(transit_frame(spark, [SIGHTING], long), [SIGHTING], policy_of(named)), named, long)


def test_many_types(spark: SparkSession) -> None:
    types = [wide(number, 2) for number in range(12)]
    readers = [everything(of, "a0 > 1") for of in types[::2]]
    sent = [sent_of(of, n, {"a0": n % 4, "a1": n}) for n, of in enumerate(types)]
    names = F.array(*(F.lit(str(of.name)) for of in types))
    told = transit_frame(spark, types, sent).withColumn(TYPE, F.get(names, quoted(ID).cast("int")))
    with interpreted(spark):
        found = collected(deliver(told, types, policy_of(readers)).by_subscriber())
    expected = {(f"reader-{n // 2}", str(n)) for n in range(0, 12, 2) if n % 4 > 1}
    assert {(row[SUBSCRIBER], row[ID]) for row in found} == expected
