"""Whatever is decided through a recorder is recorded before it is answered, or not answered."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import count

import pytest
from tests.guard.london import (
    BAG,
    BILLING,
    CCS,
    MALLORY,
    MET,
    NETWORK,
    NOW,
    PITO,
    SMITH,
    SUSPECT,
    TO_CCS,
    TO_MET,
    TO_SMITH,
    V8516,
    ask,
)

from penstock.errors import FailedError, MalformedError
from penstock.guard import (
    CapabilityAuthority,
    DecisionRecord,
    Effect,
    EventCounts,
    EventRequest,
    NetworkRequest,
    Recorded,
    Recorder,
    Request,
    Ruling,
    Sink,
)
from penstock.guard.decision_log import DECIDED, ENFORCED, read_record
from penstock.model import Domain
from penstock.trust.capabilities import Right

AUTHORITIES = [CapabilityAuthority(BAG)]
DOMAINS = (
    Domain("PITO", PITO.principal),
    Domain("UK", CCS.principal, subdomains=(Domain("CCS", MET.principal, clients=(BILLING.principal,)),)),
)


@dataclass
class Watch:
    """A clock that ticks a minute whenever it is read, and a timer that goes 42 µs."""

    now: datetime = NOW
    ticks: Iterator[int] = field(default_factory=lambda: count(0, 42_999))

    def __call__(self) -> datetime:
        self.now += timedelta(minutes=1)
        return self.now

    def timer(self) -> int:
        return next(self.ticks)


def recorder(sink: Sink, domains: tuple[Domain, ...] = DOMAINS) -> Recorder:
    watch, numbers = Watch(), count(1)
    return Recorder(
        source="ccs-broker",
        sink=sink,
        clock=watch,
        timer=watch.timer,
        ids=lambda: f"d{next(numbers)}",
        domains=domains,
    )


def reads() -> EventRequest:
    return EventRequest(BILLING.principal, Right.SUBSCRIBE, V8516, NOW)


def decided(sink: Sink) -> Recorded:
    return recorder(sink).decide(reads(), AUTHORITIES, "policy:a")


def test_a_decision_is_that_of_the_one_door_and_is_recorded_once() -> None:
    log: list[DecisionRecord] = []
    found = decided(log.append)
    assert found.decision == ask(BILLING, Right.SUBSCRIBE)
    assert log == [found.record]
    entry = found.record
    assert (entry.type, entry.id, entry.source, entry.revision) == (DECIDED, "d1", "ccs-broker", "policy:a")
    assert (entry.time, entry.took) == (NOW + timedelta(minutes=1), 42)
    assert (entry.effect, entry.because) == (Effect.PERMIT, found.decision.because)
    assert (entry.domain, entry.owner_domain) == ("CCS", "PITO"), "the innermost domain"
    assert read_record(entry.to_json()) == entry


def test_refusals_are_recorded_with_their_codes() -> None:
    log: list[DecisionRecord] = []
    made = recorder(log.append)
    made.decide(EventRequest(MALLORY.principal, Right.SUBSCRIBE, V8516, NOW), AUTHORITIES, "policy:a")
    made.decide(NetworkRequest(SMITH.principal, Right.CONNECT, NETWORK, NOW), AUTHORITIES, "policy:a")
    late = EventRequest(SMITH.principal, Right.SUBSCRIBE, V8516, NOW + timedelta(days=9_999))
    made.decide(late, [CapabilityAuthority(BAG)], "policy:a")
    assert [entry.effect for entry in log[:2]] == [Effect.DENY, Effect.DENY]
    assert (log[0].domain, log[0].owner_domain) == (None, "PITO")
    assert (log[1].resource, log[1].owner_domain) == (NETWORK, "PITO")
    assert log[2].effect is not Effect.PERMIT
    assert [entry.id for entry in log] == ["d1", "d2", "d3"]


def test_counts_follow_under_the_decision_with_ids_of_their_own() -> None:
    log: list[DecisionRecord] = []
    made = recorder(log.append)
    found = made.decide(reads(), AUTHORITIES, "policy:a")
    made.enforced(found.record, EventCounts(passed=40, refused=2))
    made.enforced(found.record, EventCounts(passed=1, refused=0))
    assert [(e.type, e.id, e.decision) for e in log] == [
        (DECIDED, "d1", None),
        (ENFORCED, "d2", "d1"),
        (ENFORCED, "d3", "d1"),
    ]
    assert [e.time for e in log] == [NOW + timedelta(minutes=n) for n in (1, 2, 3)]
    assert [e.counts for e in log] == [None, EventCounts(40, 2), EventCounts(1, 0)]


def test_nothing_passes_under_a_refusal() -> None:
    log: list[DecisionRecord] = []
    made = recorder(log.append)
    found = made.decide(EventRequest(MALLORY.principal, Right.PUBLISH, V8516, NOW), AUTHORITIES, "policy:a")
    made.enforced(found.record, EventCounts(passed=0, refused=3))
    with pytest.raises(MalformedError) as caught:
        made.enforced(found.record, EventCounts(passed=1, refused=2))
    assert caught.value.code == "log.field"
    assert len(log) == 2


def test_without_a_record_there_is_no_answer() -> None:
    def full(entry: DecisionRecord) -> None:
        raise FailedError("log.write", "no space is left")

    with pytest.raises(FailedError):
        decided(full)


def test_what_cannot_be_logged_is_not_answered() -> None:
    log: list[DecisionRecord] = []

    class Broken:
        def rule(self, request: Request, /) -> Ruling:
            raise FailedError("Not A Code", "a source of another making")

    with pytest.raises(MalformedError) as caught:
        recorder(log.append).decide(reads(), [Broken()], "policy:a")
    assert caught.value.code == "log.field"
    assert log == []


def test_what_nobody_asked_is_written_when_somebody_does() -> None:
    log: list[DecisionRecord] = []
    made = recorder(log.append)
    found = made.consider(reads(), AUTHORITIES, "policy:a")
    assert log == []
    made.write(found.record)
    assert log == [found.record]


def test_no_value_is_in_a_record() -> None:
    log: list[DecisionRecord] = []
    request = EventRequest(SMITH.principal, Right.SUBSCRIBE, V8516, NOW)
    found = recorder(log.append).decide(request, AUTHORITIES, "policy:a")
    assert found.decision.effect is Effect.PERMIT
    assert set(log[0].because) >= {TO_MET.id, TO_SMITH.id}
    assert TO_CCS.id not in log[0].because
    assert SUSPECT not in log[0].to_json() + repr(log[0])


def test_everybody_is_at_home_in_one_domain() -> None:
    with pytest.raises(MalformedError) as caught:
        recorder(print, (*DOMAINS, Domain("other", BILLING.principal)))
    assert caught.value.code == "domain.duplicate"


def test_each_decision_is_safe_before_it_is_answered_and_many_together_at_once() -> None:
    log: list[str] = []
    made = replace(recorder(lambda entry: log.append(entry.id)), safe=lambda: log.append("safe"))
    first = made.decide(EventRequest(SMITH.principal, Right.SUBSCRIBE, V8516, NOW), AUTHORITIES, "r1")
    assert log == ["d1", "safe"]
    with made.together():
        made.decide(EventRequest(SMITH.principal, Right.SUBSCRIBE, V8516, NOW), AUTHORITIES, "r1")
        with made.together():
            made.decide(EventRequest(SMITH.principal, Right.SUBSCRIBE, V8516, NOW), AUTHORITIES, "r1")
        assert log == ["d1", "safe", "d2", "d3"]
    assert log[4:] == ["safe"]
    # Nobody waits for the disk because of counts.
    made.enforced(first.record, EventCounts(passed=1, refused=0))
    assert log[5:] == ["d4"]


def test_what_was_decided_together_does_not_count_where_it_is_not_safe() -> None:
    def full() -> None:
        raise FailedError("log.write", "the disk is full")

    made = replace(recorder(lambda _entry: None), safe=full)
    with pytest.raises(FailedError), made.together():
        made.decide(EventRequest(SMITH.principal, Right.SUBSCRIBE, V8516, NOW), AUTHORITIES, "r1")
