"""Types that share columns: what comes out is what an expression for each type gives."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial, reduce
from itertools import combinations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # the name that everybody knows it by
from tests.budget import examples
from tests.guard.strategies import Family, events, exclusive, families, restrictions, selectors
from tests.pipeline.enforce.test_admit import TIMES
from tests.pipeline.enforce.test_deliver import wide
from tests.pipeline.jobs_plant import interpreted
from tests.pipeline.policy_kit import OWNER, Publishers, Rulebook, define, numbers, policy_of, trusted
from tests.pipeline.rows import collected, sharing, transit_frame

from penstock.guard import Branch, Restriction
from penstock.model import (
    AttributeSpec,
    Event,
    EventType,
    Kind,
    Principal,
    TransitEvent,
)
from penstock.pipeline import shared_columns
from penstock.pipeline.enforce import deliver as delivery
from penstock.pipeline.enforce.admit import REASON, admit, admit_shared
from penstock.pipeline.enforce.deliver import PROGRAM, deliver, deliver_shared
from penstock.pipeline.frames import ID, SOURCE, quoted
from penstock.pipeline.ingest.event_frames import TYPE
from penstock.pipeline.shared_columns import PART_COLUMNS, SharedColumns, parts_of
from penstock.selector import ALWAYS, Selector, parse
from penstock.trust.capabilities import Right
from penstock.trust.credentials import Credentials


@pytest.fixture(autouse=True, scope="module")
def _quick(spark: SparkSession) -> Iterator[None]:
    with interpreted(spark):
        yield


@given(families(), families())
def test_attributes_that_meet_share_no_column(one: Family, other: Family) -> None:
    # Families have types of the same names, and their attributes can be of other kinds.
    types = {str(event_type.name): event_type for event_type in (*one.types, *other.types)}
    apart = frozenset(map(str, one.ids))
    shared = SharedColumns.of(types.values(), [apart])
    for event_type in shared.types:
        own = shared.own(event_type)
        assert len(set(own.values())) == len(own)
        assert all(shared.kinds[own[a.id]] is a.spec.kind for a in event_type.attributes if a.id in own)
    for first, second in combinations(apart & shared.columns.keys(), 2):
        assert shared.columns[first] != shared.columns[second]


def test_a_thousand_types_need_the_columns_of_one() -> None:
    types = [wide(number, 3) for number in range(1000)]
    assert len(SharedColumns.of(types).kinds) == 3
    parts = list(parts_of(reversed(types)))
    assert [one for part in parts for one in part] == sorted(types, key=lambda one: str(one.name))
    assert {len(part) for part in parts[:-1]} == {PART_COLUMNS // 3}
    assert len(list(parts_of([wide(0, 2 * PART_COLUMNS), wide(1, 1)]))) == 2


def of_types(
    spark: SparkSession, types: Sequence[EventType], sent: Sequence[tuple[EventType, TransitEvent]]
) -> DataFrame:
    """Return events that say their type, with the sources they have."""
    names = F.array(*(F.lit(str(of.name)) for of, _ in sent))
    frame = transit_frame(spark, types, [event for _, event in sent])
    return frame.withColumn(TYPE, F.get(names, quoted(ID).cast("int")))


def rows(found: DataFrame, *names: str) -> list[tuple[object, ...]]:
    """Return some columns of a frame, those that it lacks as null, in an order of their own."""
    taken = [
        tuple(str(row[name]) if name in found.columns and row[name] is not None else "" for name in names)
        for row in collected(found)
    ]
    return sorted(taken)


def together(parts: Iterable[DataFrame]) -> DataFrame:
    """Return the rows of frames with columns of their own."""
    return reduce(partial(DataFrame.unionByName, allowMissingColumns=True), parts)


@st.composite
def deliveries(
    draw: st.DrawFn,
) -> tuple[Family, list[tuple[EventType, Restriction, Selector]], list[tuple[EventType, TransitEvent]]]:
    family = draw(families())
    readers = []
    for _ in range(draw(st.integers(1, 8))):
        event_type = draw(st.sampled_from(family.types))
        found = draw(restrictions(family, Right.SUBSCRIBE))
        plain = Restriction(tuple(replace(branch, guards=frozenset()) for branch in found.branches))
        readers.append((event_type, plain, draw(st.just(ALWAYS) | selectors(event_type.schema))))
    sent = []
    for number in range(draw(st.integers(1, 8))):
        event_type = draw(st.sampled_from(family.types))
        event = replace(draw(events(event_type)).to_transit(), id=str(number), time=draw(st.sampled_from(TIMES)))
        sent.append((event_type, event))
    return family, readers, sent


@settings(deadline=None, max_examples=examples(3), suppress_health_check=list(HealthCheck))
@given(deliveries())
def test_readers_get_the_same_rows(
    spark: SparkSession,
    case: tuple[Family, list[tuple[EventType, Restriction, Selector]], list[tuple[EventType, TransitEvent]]],
) -> None:
    family, readers, sent = case
    policy, frame = policy_of(readers), of_types(spark, family.types, sent)
    columns = [PROGRAM, ID, *map(str, family.ids)]
    expected = rows(deliver(frame, family.types, policy).rows, *columns)
    with pytest.MonkeyPatch.context() as patched:
        # All that no condition reads is one column on its way.
        patched.setattr(delivery, "_WIDE", 0)
        assert rows(deliver(frame, family.types, policy).rows, *columns) == expected
    with sharing():
        assert rows(deliver(frame, family.types, policy).rows, *columns) == expected
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(shared_columns, "PART_COLUMNS", 1)
            patched.setattr(delivery, "_WIDE", 0)
            patched.setattr(delivery, "_TYPES_APART", 1)
            found = deliver_shared(frame, family.types, policy)
            parts = found.parts()
            assert len(parts) == max(1, len({program.event_type for program in found.programs}))
            assert rows(together(parts), *columns) == expected


def test_versions_of_a_type_see_nothing_of_each_other(spark: SparkSession) -> None:
    """A column that both versions used would show the reader of one an attribute of the other."""
    first = define("Changed", numbers(["old", "kept"]))
    second = first.remove("old", version="1").add("new", "2", AttributeSpec(Kind.INTEGER), version="2")
    before, after = EventType.of(first), EventType.of(second)
    sent = [
        (before, replace(Event.of(before, {"old": 5, "kept": 1}).to_transit(), id="0", time=TIMES[0])),
        (after, replace(Event.of(after, {"new": 7, "kept": 2}).to_transit(), id="1", time=TIMES[0])),
    ]
    old, kept, new = (str(a.id) for a in (*before.attributes, after.by_name["new"]))
    whole = Restriction((Branch(action=Right.SUBSCRIBE),))
    named = Restriction((Branch(action=Right.SUBSCRIBE, where=parse("x = 5").rename({"x": old})),))
    # The last sees events by an attribute that its own version lacks, and not its value.
    policy = policy_of([(before, whole, ALWAYS), (after, whole, ALWAYS), (after, named, ALWAYS)])
    with sharing():
        found = deliver(of_types(spark, [before, after], sent), [before, after], policy).rows
        assert rows(found, PROGRAM, ID, old, kept, new) == [
            ("0", "0", "5", "1", ""),
            ("0", "1", "", "2", ""),
            ("1", "0", "", "1", ""),
            ("1", "1", "", "2", "7"),
            ("2", "0", "", "1", ""),
        ]


@st.composite
def admissions(draw: st.DrawFn) -> tuple[Family, list[Restriction], list[tuple[int, Event]]]:
    family = draw(families())
    rights = []
    for _ in range(draw(st.integers(1, 4))):
        of = draw(st.sampled_from(family.types))
        found = draw(restrictions(family, Right.PUBLISH) | exclusive(of, Right.PUBLISH))
        rights.append(Restriction(tuple(replace(branch, guards=frozenset()) for branch in found.branches)))
    sent = []
    for number in range(draw(st.integers(1, 12))):
        event = draw(events(draw(st.sampled_from(family.types))))
        made = replace(event, id=str(number), time=draw(st.sampled_from(TIMES)))
        sent.append((draw(st.integers(0, len(rights))), made))
    return family, rights, sent


@settings(deadline=None, max_examples=examples(3), suppress_health_check=list(HealthCheck))
@given(admissions())
def test_publishers_are_admitted_alike(
    spark: SparkSession, case: tuple[Family, list[Restriction], list[tuple[int, Event]]]
) -> None:
    family, rights, sent = case
    principals = [Principal(number.to_bytes(32, "big")) for number in range(len(rights) + 1)]
    policy = Publishers(Credentials(), (), (Rulebook(dict(zip(principals, rights, strict=False))),))
    sources = F.array(*(F.lit(str(principals[number])) for number, _ in sent))
    transit = of_types(spark, family.types, [(event.type, event.to_transit()) for _, event in sent])
    frame = transit.withColumn(SOURCE, F.get(sources, quoted(ID).cast("int")))
    found = admit_shared(frame, [trusted(one) for one in family.types], policy)
    attributes = [str(name) for name in family.ids]
    apart = []
    for one in family.types:
        typed = [quoted(a.id).alias(a.name) for a in one.attributes]
        own = frame.where(quoted(TYPE) == str(one.name)).select(ID, "@time", SOURCE, *typed)
        apart.append(admit(own, trusted(one), policy))
    good, bad = together(one.events for one in apart), together(one.refused for one in apart)
    expected = rows(good, ID, SOURCE, *attributes), rows(bad, ID, SOURCE, REASON)
    good = together(found.parts())
    assert (rows(good, ID, SOURCE, *attributes), rows(found.refused, ID, SOURCE, REASON)) == expected
    assert sum(map(len, expected)) == len(sent)


def test_what_a_type_lacks_does_not_count(spark: SparkSession) -> None:
    types = [wide(1, 1), wide(2, 1)]
    (one,), (other,) = (event_type.attributes for event_type in types)
    empty = [replace(Event.of(of, {"a0": None}).to_transit(), id=str(n), time=TIMES[0]) for n, of in enumerate(types)]
    # Each of the two events has a value under the attribute of the other one's type.
    strange = {str(a.id): F.when(quoted(ID) == number, 5).cast("bigint") for a, number in ((one, "1"), (other, "0"))}
    frame = of_types(spark, types, list(zip(types, empty, strict=True))).withColumns(strange)
    shared = SharedColumns.of(types)
    assert shared.columns[one.id] == shared.columns[other.id]
    assert [row[str(shared.columns[one.id])] for row in shared.gather(frame).collect()] == [None, None]


def test_rows_have_nothing_under_the_attributes_of_other_types(spark: SparkSession) -> None:
    """Both types use one column. What is in it is the attribute of the reader's type, and of no other."""
    types = [wide(1, 1), wide(2, 1)]
    sent = [(of, replace(Event.of(of, {"a0": 5}).to_transit(), id=str(n), time=TIMES[0])) for n, of in enumerate(types)]
    one, other = (str(a.id) for of in types for a in of.attributes)
    frame, whole = of_types(spark, types, sent), {right: Restriction((Branch(action=right),)) for right in Right}
    expected = [("0", "5", ""), ("1", "", "5")]
    with sharing():
        found = deliver(frame, types, policy_of([(of, whole[Right.SUBSCRIBE], ALWAYS) for of in types])).rows
        assert rows(found, PROGRAM, one, other) == rows(found, ID, one, other) == expected
    rights = Rulebook({OWNER: whole[Right.PUBLISH]})
    published = frame.withColumn(SOURCE, F.lit(str(OWNER)))
    admitted = admit_shared(published, [trusted(of) for of in types], Publishers(Credentials(), (), (rights,)))
    assert rows(together(admitted.parts()), ID, one, other) == expected
