"""Admission of a frame lets through what `Publication` lets through, and refuses the rest with the same code."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from tests.budget import examples
from tests.guard.strategies import events, exclusive, families, restrictions
from tests.pipeline.policy_kit import NOON, Publishers, Rulebook, trusted
from tests.pipeline.rows import collected, frame, same

from penstock.errors import RefusedError
from penstock.guard import Publication, Restriction, environment
from penstock.model import Event, EventType, Principal, TransitEvent
from penstock.pipeline.enforce.admit import REASON, admit
from penstock.pipeline.frames import ID, SOURCE, TIME, typed_schema
from penstock.trust.capabilities import Right
from penstock.trust.credentials import Credentials

TIMES = [NOON, NOON + timedelta(hours=7), NOON - timedelta(days=2)]
STRANGER = Principal(b"\xff" * 32)


@st.composite
def cases(draw: st.DrawFn) -> tuple[EventType, list[Restriction], list[tuple[int, Event]]]:
    family = draw(families())
    event_type = draw(st.sampled_from(family.versions))
    rights = []
    for _ in range(draw(st.integers(1, 4))):
        found = draw(restrictions(family, Right.PUBLISH) | exclusive(event_type, Right.PUBLISH))
        rights.append(Restriction(tuple(replace(branch, guards=frozenset()) for branch in found.branches)))
    sent = [
        (
            draw(st.integers(0, len(rights))),
            replace(draw(events(event_type)), id=str(number), time=draw(st.sampled_from(TIMES))),
        )
        for number in range(draw(st.integers(1, 12)))
    ]
    return event_type, rights, sent


def published(right: Restriction, event: Event) -> TransitEvent | str:
    assert event.time is not None
    try:
        return Publication(right, event.type)(event, environment(event.time))
    except RefusedError as error:
        return error.code


def check(
    spark: SparkSession, event_type: EventType, rights: Sequence[Restriction], sent: Sequence[tuple[int, Event]]
) -> None:
    principals = [Principal(number.to_bytes(32, "big")) for number in range(len(rights))]
    who = [*principals, STRANGER]
    policy = Publishers(Credentials(), (), (Rulebook(dict(zip(principals, rights, strict=True))),))
    rows = [{ID: e.id, TIME: e.time, SOURCE: str(who[number]), **e.values} for number, e in sent]
    admitted = admit(frame(spark, typed_schema(event_type), rows), trusted(event_type), policy)
    good = {row[ID]: row for row in collected(admitted.events)}
    bad = {row[ID]: row[REASON] for row in collected(admitted.refused)}
    assert len(good) + len(bad) == len(sent)
    for number, event in sent:
        if who[number] == STRANGER or not rights[number].for_type(event_type, Right.PUBLISH).branches:
            assert bad[event.id] == "guard.denied"
            continue
        transit = published(rights[number], event)
        if isinstance(transit, str):
            assert bad[event.id] == transit
            continue
        for attribute in event_type.attributes:
            expected, found = transit.values.get(attribute.id), good[event.id][attribute.id]
            assert same(expected, found), (attribute.name, expected, found)


@settings(deadline=None, max_examples=examples(6), suppress_health_check=list(HealthCheck))
@given(cases())
def test_a_frame_is_admitted_as_each_event_would_be(
    spark: SparkSession, case: tuple[EventType, list[Restriction], list[tuple[int, Event]]]
) -> None:
    check(spark, *case)
