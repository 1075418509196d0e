"""What-if of admission counts exactly what publishing before and after would have put in."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from tests.budget import examples
from tests.guard.strategies import events, exclusive, families, restrictions
from tests.pipeline.enforce.test_admit import STRANGER, TIMES, published
from tests.pipeline.enforce.test_restrict import WITH_A_NUMBER
from tests.pipeline.jobs_plant import interpreted
from tests.pipeline.policy_kit import Publishers, Rulebook, trusted
from tests.pipeline.rows import frame

from penstock.guard import Branch, Restriction
from penstock.guard.restriction import When
from penstock.model import Event, EventType, Principal, Scalar, TransitEvent
from penstock.pipeline.comparison import Admissions, PolicyComparison
from penstock.pipeline.frames import ID, SOURCE, TIME, typed_schema
from penstock.pipeline.small.jobs import StoredEvent
from penstock.pipeline.small.whatif import compare_events
from penstock.pipeline.whatif import (
    compare_admission,
)
from penstock.selector import parse
from penstock.trust.capabilities import Right
from penstock.trust.credentials import Credentials

#: none of them the owner of a type, who may publish without a right that is given
PEOPLE = [Principal(bytes([number]) * 32) for number in range(10, 13)]
Rights = Mapping[Principal, Restriction]
Sent = Sequence[tuple[Principal, Event]]


@pytest.fixture(autouse=True, scope="module")
def _quick(spark: SparkSession) -> Iterator[None]:
    with interpreted(spark):
        yield


@st.composite
def cases(draw: st.DrawFn) -> tuple[EventType, Rights, Rights, Sent]:
    family = draw(families())
    event_type = draw(st.sampled_from(family.versions))

    def rights(kept: Rights) -> Rights:
        found = dict(kept)
        for person in PEOPLE:
            right = draw(restrictions(family, Right.PUBLISH) | exclusive(event_type, Right.PUBLISH))
            if draw(st.integers(0, 3)):
                found[person] = Restriction(tuple(replace(b, guards=frozenset()) for b in right.branches))
            elif draw(st.booleans()):
                found.pop(person, None)
        return found

    before = rights({})
    sent = [
        (
            draw(st.sampled_from([*PEOPLE, STRANGER])),
            replace(draw(events(event_type)), id=str(number), time=draw(st.sampled_from(TIMES))),
        )
        for number in range(draw(st.integers(1, 12)))
    ]
    return event_type, before, rights(before), sent


def compared(spark: SparkSession, event_type: EventType, before: Rights, after: Rights, sent: Sent) -> Admissions:
    """Compare on Spark, and check that the small engine finds the same."""
    rows = [{ID: e.id, TIME: e.time, SOURCE: str(who), **e.values} for who, e in sent]
    old, new = (
        Publishers(Credentials(), (), (Rulebook(dict(side)),), types=(trusted(event_type),)) for side in (before, after)
    )
    typed = frame(spark, typed_schema(event_type), rows)
    found = compare_admission(typed, event_type, old, new, samples=2)
    stored = [StoredEvent(str(event_type.name), e.id, e.time, str(who), by_id(e)) for who, e in sent]
    whole = found.added_to(PolicyComparison(old.revision, new.revision, len(sent), (), ()))
    assert compare_events(stored, old, new, [event_type], 2) == whole
    return found


def by_id(event: Event) -> dict[str, Scalar]:
    return {event.type.by_name[name].id: value for name, value in event.values.items() if value is not None}


def put_in(rights: Rights, who: Principal, event: Event) -> TransitEvent | None:
    right = rights.get(who, Restriction())
    if not right.for_type(event.type, Right.PUBLISH).branches:
        return None
    found = published(right, event)
    return None if isinstance(found, str) else found


def goes(value: Scalar, other: Scalar) -> bool:
    """Say whether a value goes in that is not the other one; to Spark a NaN is itself."""
    both = value != value and other != other  # noqa: PLR0124  # NaN is the value unequal to itself
    return value is not None and not both and value != other


@settings(
    deadline=None,
    max_examples=examples(6),
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.generate],
)
@given(cases())
def test_it_counts_what_publishing_before_and_after_would_put_in(
    spark: SparkSession, case: tuple[EventType, Rights, Rights, Sent]
) -> None:
    event_type, before, after, sent = case
    wanted: dict[tuple[Principal, str], list[list[str]]] = defaultdict(lambda: [[], []])
    for who, event in sent:
        old, new = put_in(before, who, event), put_in(after, who, event)
        for side, (more, less) in enumerate([(new, old), (old, new)]):
            if more is not None and less is None:
                wanted[who, ""][side].append(event.id)
            values, others = ({} if one is None else one.values for one in (more, less))
            for a in event_type.attributes:
                if goes(values.get(a.id), others.get(a.id)):
                    wanted[who, a.id][side].append(event.id)
    found = compared(spark, event_type, before, after, sent)
    assert {(c.reader.principal, c.attribute or "") for c in found.changes} == wanted.keys()
    for change in found.changes:
        gained, lost = wanted[change.reader.principal, change.attribute or ""]
        assert (change.gained, change.lost, change.right) == (len(gained), len(lost), Right.PUBLISH)
        assert change.gained_samples == tuple(sorted(gained)[:2])
        assert change.lost_samples == tuple(sorted(lost)[:2])


def test_nothing_is_read_where_nobody_s_right_changes_and_what_is_not_told_is_named(spark: SparkSession) -> None:
    event_type = WITH_A_NUMBER
    asking = Branch(action=Right.PUBLISH, guards=frozenset({"on-duty"}), when=When(condition=parse("rate < 9")))
    rights = {PEOPLE[0]: Restriction((asking,)), PEOPLE[1]: Restriction((Branch(action=Right.PUBLISH),))}
    event = replace(Event.of(event_type, {"a": 1}), id="e", time=TIMES[0])
    same = compared(spark, event_type, rights, rights, [(PEOPLE[1], event)])
    assert (same.changes, same.unknown) == ((), frozenset())
    assert [one.principal for one in same.publishers] == [event_type.name.owner, *PEOPLE[:2]]
    found = compared(spark, event_type, rights, {}, [(PEOPLE[0], event), (PEOPLE[1], event)])
    assert found.unknown == {"on-duty", "rate"}
    assert [(c.reader.principal, c.name, c.gained, c.lost) for c in found.changes] == [
        (PEOPLE[1], "", 0, 1),
        (PEOPLE[1], "a", 0, 1),
    ]
