"""What-if counts exactly what live delivery before and after would have given, on Spark and without it."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # the name that everybody knows it by
from tests.budget import examples
from tests.guard.london import (
    BAG,
    BILLING,
    CCS,
    LOCATION,
    NOW,
    PLATE,
    SMITH,
    STATISTICS,
    SUSPECT,
    TIMESTAMP,
    TO_SMITH,
    TYPE,
    V4799,
    V8516,
    grant,
    numberplate,
)
from tests.guard.strategies import Family, events, families, restrictions, selectors
from tests.pipeline.enforce.test_deliver import MANY
from tests.pipeline.jobs_plant import interpreted
from tests.pipeline.policy_kit import NOON, SIGHTING, TIMES, Rulebook, define, numbers, policy_of, sightings, trusted
from tests.pipeline.rows import transit_frame

from penstock.errors import MalformedError
from penstock.guard import Branch, Delivery, Restriction, environment
from penstock.model import (
    AttributeId,
    Event,
    EventType,
    Kind,
    Principal,
    TransitEvent,
    TypeDefinition,
    TypeName,
)
from penstock.pipeline.comparison import (
    AffectedReader,
    PolicyComparison,
    VisibilityChange,
    fails_on,
)
from penstock.pipeline.enforce.policy import PipelinePolicy, Subscriber
from penstock.pipeline.frames import ID, quoted
from penstock.pipeline.small.jobs import StoredEvent
from penstock.pipeline.small.whatif import compare_events
from penstock.pipeline.whatif import (
    compare,
)
from penstock.selector import ALWAYS, parse
from penstock.trust.capabilities import Right
from penstock.trust.credentials import Credentials

PEOPLE = [Principal(bytes([n]) * 32) for n in range(1, 4)]


@st.composite
def policies(draw: st.DrawFn, family: Family) -> PipelinePolicy:
    given = {person: draw(restrictions(family, Right.SUBSCRIBE)) for person in PEOPLE if draw(st.integers(0, 5))}
    readable = [v for v in family.types if v.key in (family.versions[0].key, *family.versions[0].ancestors)]
    subscribers = []
    for number, person in enumerate(PEOPLE):
        for _ in range(draw(st.sampled_from([0, 1, 1, 1, 2]))):
            version = draw(st.sampled_from(readable))
            selector = draw(st.just(ALWAYS) | selectors(version.schema))
            subscribers.append(Subscriber(f"s{number}", person, trusted(version), selector))
    return PipelinePolicy(Credentials(), tuple(subscribers), (Rulebook(given),))


Case = tuple[Family, PipelinePolicy, PipelinePolicy, list[TransitEvent]]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    family = draw(families())
    before = draw(policies(family))
    after = draw(st.one_of(policies(family), policies(family), st.just(before)))
    history = [
        replace(
            draw(events(draw(st.sampled_from(family.versions)))).to_transit(),
            id=draw(st.sampled_from(["é", "\U0001f697", "e"])) + str(n),
            time=draw(st.sampled_from(TIMES)),
        )
        for n in range(draw(st.integers(0, 12)))
    ]
    return family, before, after, history


Seen = dict[AffectedReader, dict[str, set[AttributeId]]]


def live(policy: PipelinePolicy, history: list[TransitEvent]) -> Seen:
    """Deliver every event, and note which attributes arrived with a value."""
    seen: Seen = defaultdict(dict)
    for s in policy.subscribers:
        event_type = s.type.event_type
        deliver = Delivery(policy.decide(s.principal, Right.SUBSCRIBE, s.type).restriction, event_type, s.selector)
        for event in history:
            assert event.time is not None
            if (copy := deliver(event, environment(event.time))) is not None:
                mine = seen[AffectedReader(s.name, s.principal, event_type.key)].setdefault(event.id, set())
                mine |= {event_type.by_name[name].id for name, value in copy.values.items() if value is not None}
    return seen


def expected(
    before: PipelinePolicy, after: PipelinePolicy, history: list[TransitEvent]
) -> dict[tuple[AffectedReader, str], list[list[str]]]:
    old, new = live(before, history), live(after, history)
    found: dict[tuple[AffectedReader, str], list[list[str]]] = defaultdict(lambda: [[], []])
    for side, (more, less) in enumerate([(new, old), (old, new)]):
        for reader, shown in more.items():
            for event, attributes in shown.items():
                known_before = less.get(reader, {}).get(event)
                if known_before is None:
                    found[reader, ""][side].append(event)
                for attribute in attributes - (known_before or set()):
                    found[reader, attribute][side].append(event)
    return found


@settings(deadline=None, max_examples=examples(10), suppress_health_check=list(HealthCheck))
@given(cases())
def test_it_counts_what_delivery_before_and_after_would_give(spark: SparkSession, case: Case) -> None:
    family, before, after, history = case
    frame = transit_frame(spark, family.versions, history)
    found = compare(frame, before, after, types=family.versions, samples=2)
    check(found, before, after, history)
    assert without_spark(family.versions, before, after, history) == found


def without_spark(
    types: Sequence[EventType], before: PipelinePolicy, after: PipelinePolicy, history: list[TransitEvent]
) -> PolicyComparison:
    name = str(types[0].name)
    stored = [
        StoredEvent(name, e.id, e.time, "", {n: v for n, v in e.values.items() if v is not None}) for e in history
    ]
    return compare_events(stored, before, after, types, 2)


@settings(deadline=None, max_examples=examples(20), suppress_health_check=list(HealthCheck))
@given(cases())
def test_the_small_engine_counts_it_too(case: Case) -> None:
    family, before, after, history = case
    check(without_spark(family.versions, before, after, history), before, after, history)


def check(found: PolicyComparison, before: PipelinePolicy, after: PipelinePolicy, history: list[TransitEvent]) -> None:
    wanted = expected(before, after, history)
    assert found.events == len(history)
    assert {(c.reader, c.attribute or "") for c in found.changes} == wanted.keys()
    for change in found.changes:
        gained, lost = wanted[change.reader, change.attribute or ""]
        assert (change.gained, change.lost) == (len(gained), len(lost))
        assert change.gained_samples == tuple(sorted(gained)[:2])
        assert change.lost_samples == tuple(sorted(lost)[:2])
    assert found.passed_over == ()


#: `make soak` compares them all; delivery, which is the same program, tries each of them anyway
SOME = ("equality", "range of times", "filters on what they may not see")


@pytest.mark.parametrize("name", [pytest.param(name, marks=[] if name in SOME else pytest.mark.long) for name in MANY])
def test_many_readers_whose_constants_change(spark: SparkSession, name: str) -> None:
    readers = MANY[name]
    before, after = policy_of(readers), policy_of([*readers[1:], readers[0]])
    sent = sightings(60)
    frame = transit_frame(spark, [SIGHTING], sent)
    with interpreted(spark):
        found = compare(frame, before, after, types=[SIGHTING], samples=2)
    check(found, before, after, sent)
    assert without_spark([SIGHTING], before, after, sent) == found


# --- London: the statistics office asks for the plate ----------------------------------------------------------------

ASKED = grant(CCS, STATISTICS.principal, numberplate(Right.SUBSCRIBE, attributes=[PLATE, LOCATION, TIMESTAMP]))
READERS = (
    Subscriber("billing", BILLING.principal, V8516),
    Subscriber("statistics", STATISTICS.principal, V4799),
    Subscriber("smith", SMITH.principal, V8516),
)
BEFORE = PipelinePolicy(BAG, READERS)


@pytest.fixture(scope="module")
def history(spark: SparkSession) -> DataFrame:
    sent = [
        replace(
            Event.of(TYPE, {"numberplate": SUSPECT if n == 3 else f"P{n}", "timestamp": NOW, "location": "V"}),
            id=f"e{n}",
            time=NOW,
        ).to_transit()
        for n in range(10)
    ]
    return transit_frame(spark, [TYPE], sent).persist()


def test_one_attribute_is_gained_on_every_event(history: DataFrame) -> None:
    found = compare(history, BEFORE, PipelinePolicy(Credentials.of(*BAG, ASKED), READERS), types=[TYPE], samples=3)
    reader = AffectedReader("statistics", STATISTICS.principal, TYPE.key)
    # In the version that the office reads the attribute has its old name.
    assert found.changes == (VisibilityChange(reader, PLATE, "license-plate", 10, 0, ("e0", "e1", "e2")),)
    assert (found.events, len(found.readers)) == (10, 3)
    assert [fails_on(found, what) for what in ("gain", "loss", "any")] == [True, False, True]


def test_a_reader_of_one_policy_only_gains_or_loses_everything(history: DataFrame) -> None:
    less = PipelinePolicy(BAG, READERS[:2])
    lost = compare(history, BEFORE, less, types=[TYPE])
    everything = ["", "location", "numberplate", "timestamp"]
    assert [(c.name, c.gained, c.lost) for c in lost.changes] == [(name, 0, 1) for name in everything]
    assert all(c.lost_samples == ("e3",) and c.reader.name == "smith" for c in lost.changes)
    gained = compare(history, less, BEFORE, types=[TYPE])
    assert [(c.name, c.gained, c.lost) for c in gained.changes] == [(name, 1, 0) for name in everything]
    without = PipelinePolicy(Credentials.of(*(c for c in BAG if c is not TO_SMITH)), READERS)
    assert compare(history, BEFORE, without, types=[TYPE]).changes == lost.changes


def test_the_same_policy_changes_nothing(history: DataFrame) -> None:
    found = compare(history, BEFORE, BEFORE, types=[TYPE])
    assert (found.changes, found.events) == ((), 10)
    assert not fails_on(found, "any")
    assert found.before == found.after == BEFORE.revision


def test_a_filter_on_a_hidden_attribute_matches_only_once_it_is_seen(history: DataFrame) -> None:
    asking = (Subscriber("statistics", STATISTICS.principal, V8516, parse(f"numberplate = '{SUSPECT}'")),)
    found = compare(
        history, PipelinePolicy(BAG, asking), PipelinePolicy(Credentials.of(*BAG, ASKED), asking), types=[TYPE]
    )
    assert [(c.name, c.gained, c.gained_samples) for c in found.changes] == [
        ("", 1, ("e3",)),
        ("location", 1, ("e3",)),
        ("numberplate", 1, ("e3",)),
        ("timestamp", 1, ("e3",)),
    ]


def test_more_attributes_than_a_word_has_bits(spark: SparkSession) -> None:
    names = [f"a{n}" for n in range(70)]
    wide = EventType.of(define("Wide", numbers(names), owner=PEOPLE[0]))
    ids = [a.id for a in wide.attributes]
    crowd = [Principal(n.to_bytes(32, "big")) for n in range(1, 6)]
    shows = {
        person: Restriction((Branch(action=Right.SUBSCRIBE, attributes=frozenset({ids[n], ids[69 - n]})),))
        for n, person in enumerate(crowd)
    }
    readers = tuple(Subscriber(str(person), person, trusted(wide)) for person in crowd)
    before, after = PipelinePolicy(Credentials(), readers), PipelinePolicy(Credentials(), readers, (Rulebook(shows),))
    sent = [replace(Event.of(wide, dict.fromkeys(names, 1), id="e").to_transit(), time=NOON)]
    found = compare(transit_frame(spark, [wide], sent), before, after, types=[wide])
    assert found.events == 1
    seen: dict[Principal, set[str]] = defaultdict(set)
    for change in found.changes:
        assert (change.gained, change.lost, change.gained_samples) == (1, 0, ("e",))
        seen[change.reader.principal].add(change.name)
    assert seen == {person: {"", f"a{n}", f"a{69 - n}"} for n, person in enumerate(crowd)}


def test_what_the_history_does_not_tell_is_named(spark: SparkSession, history: DataFrame) -> None:
    branch = Branch(action=Right.SUBSCRIBE, guards=frozenset({"on-duty"}))
    readers = (Subscriber("x", PEOPLE[0], V8516),)
    before = PipelinePolicy(Credentials(), readers)
    after = PipelinePolicy(Credentials(), readers, (Rulebook({PEOPLE[0]: Restriction((branch,))}),))
    found = compare(history, before, after, types=[TYPE])
    assert (found.unknown, found.changes) == (("on-duty",), ())
    guards: dict[str, Column] = {"on-duty": quoted(ID) == F.lit("e4")}
    told = compare(history, before, after, types=[TYPE], guards=guards)
    assert told.unknown == ()
    assert {(c.gained, c.gained_samples) for c in told.changes} == {(1, ("e4",))}


def test_readers_of_other_types_are_passed_over_and_results_add_up(history: DataFrame) -> None:
    other = EventType.of(define("Other", {"a": Kind.STRING}, owner=PEOPLE[0]))
    readers = (*READERS, Subscriber("x", PEOPLE[0], trusted(other)))
    before, after = PipelinePolicy(BAG, readers), PipelinePolicy(Credentials.of(*BAG, ASKED), readers)
    found = compare(history, before, after, types=[TYPE])
    assert [reader.name for reader in found.passed_over] == ["x"]
    both = found + replace(found, readers=(found.passed_over[0],), passed_over=found.readers, changes=())
    assert (both.events, both.passed_over, len(both.readers), both.changes) == (20, (), 4, found.changes)
    doubled = found + found
    assert [(c.gained, c.gained_samples) for c in doubled.changes] == [(20, ("e0", "e1", "e2", "e3", "e4"))]
    with pytest.raises(MalformedError) as caught:
        found + replace(found, after="policy:other")
    assert caught.value.code == "whatif.policies"


def test_as_plain_data(history: DataFrame) -> None:
    found = compare(history, BEFORE, PipelinePolicy(Credentials.of(*BAG, ASKED), READERS), types=[TYPE], samples=1)
    plain = found.as_dict()
    assert plain["changes"] == [
        {
            "subscriber": "statistics",
            "principal": str(STATISTICS.principal),
            "type": str(TYPE.key),
            "attribute": str(PLATE),
            "name": "license-plate",
            "gained": 10,
            "lost": 0,
            "gained_samples": ["e0"],
            "lost_samples": [],
        }
    ]
    assert (plain["events"], plain["readers"]) == (10, 3)


def test_what_cannot_be_compared_is_refused(history: DataFrame) -> None:
    other = EventType.of(TypeDefinition(TypeName(PEOPLE[0], "Other"), ()))
    attempts: list[tuple[str, list[EventType], DataFrame, int]] = [
        ("whatif.types", [], history, 5),
        ("whatif.types", [TYPE, other], history, 5),
        ("whatif.samples", [TYPE], history, 0),
        ("whatif.columns", [TYPE], history.select(quoted(ID)), 5),
    ]
    for code, types, frame, samples in attempts:
        with pytest.raises(MalformedError) as caught:
            compare(frame, BEFORE, BEFORE, types=types, samples=samples)
        assert caught.value.code == code
    with pytest.raises(MalformedError) as caught:
        fails_on(PolicyComparison("", "", 0, (), ()), "nothing")  # type: ignore[arg-type]  # the fault
    assert caught.value.code == "whatif.fail-on"
