"""A policy answers once, records what was asked, and says nothing that is not written down."""

from dataclasses import replace
from datetime import timedelta
from itertools import count

import pytest
from tests.guard.london import (
    BAG,
    BILLING,
    CAMERA,
    MALLORY,
    NOW,
    PITO,
    SMITH,
    STATISTICS,
    TO_BILLING,
    TO_CCS,
    V4799,
    V8516,
)

from penstock.errors import FailedError
from penstock.guard import DecisionRecord, Effect, EventCounts, Recorder, Sink
from penstock.guard.decision_log import DECIDED, ENFORCED
from penstock.model import Domain
from penstock.pipeline.enforce.policy import PipelinePolicy, Subscriber
from penstock.pipeline.enforce.programs import programs_of
from penstock.selector import parse
from penstock.trust.capabilities import Right
from penstock.trust.certificates import Threshold
from penstock.trust.credentials import Credentials

READERS = (
    Subscriber("billing", BILLING.principal, V8516),
    Subscriber("statistics", STATISTICS.principal, V4799),
    Subscriber("statistics at night", STATISTICS.principal, V4799, parse("location = 'Victoria'")),
    Subscriber("mallory", MALLORY.principal, V8516),
)


def recorder(sink: Sink) -> Recorder:
    minutes, ticks, numbers = count(), count(0, 1_000), count(1)
    return Recorder(
        source="job",
        sink=sink,
        clock=lambda: NOW + timedelta(minutes=next(minutes)),
        timer=lambda: next(ticks),
        ids=lambda: f"d{next(numbers)}",
        domains=(Domain("PITO", PITO.principal),),
    )


def test_every_subscription_is_recorded_once() -> None:
    log: list[DecisionRecord] = []
    policy = PipelinePolicy(BAG, READERS, recorder=recorder(log.append))
    programs_of(policy)
    programs_of(policy)
    assert [(e.principal, e.action, e.effect, e.resource) for e in log] == [
        (BILLING.principal, Right.SUBSCRIBE, Effect.PERMIT, V8516.event_type.name),
        (STATISTICS.principal, Right.SUBSCRIBE, Effect.PERMIT, V4799.event_type.name),
        (MALLORY.principal, Right.SUBSCRIBE, Effect.DENY, V8516.event_type.name),
    ]
    assert {(e.type, e.source, e.revision, e.owner_domain) for e in log} == {(DECIDED, "job", policy.revision, "PITO")}
    assert set(log[0].because) == {TO_CCS.id, TO_BILLING.id, *V8516.because}


def test_who_could_publish_and_did_not_is_not_in_the_log() -> None:
    log: list[DecisionRecord] = []
    policy = PipelinePolicy(BAG, recorder=recorder(log.append))
    for principal in policy.principals():
        policy.decide(principal, Right.PUBLISH, V8516)
    assert log == []
    policy.enforced(CAMERA.principal, Right.PUBLISH, V8516, EventCounts(3, 1))
    policy.enforced(CAMERA.principal, Right.PUBLISH, V8516, EventCounts(2, 0))
    policy.enforced(MALLORY.principal, Right.PUBLISH, V8516, EventCounts(0, 5))
    first, *_ = log
    assert [(e.principal, e.type, e.effect, e.counts) for e in log] == [
        (CAMERA.principal, DECIDED, Effect.PERMIT, None),
        (CAMERA.principal, ENFORCED, Effect.PERMIT, EventCounts(3, 1)),
        (CAMERA.principal, ENFORCED, Effect.PERMIT, EventCounts(2, 0)),
        (MALLORY.principal, DECIDED, Effect.DENY, None),
        (MALLORY.principal, ENFORCED, Effect.DENY, EventCounts(0, 5)),
    ]
    assert [e.decision for e in log[1:3]] == [first.id, first.id]
    assert len({e.id for e in log}) == len(log)


def test_subscriptions_that_share_a_decision_are_counted_each() -> None:
    log: list[DecisionRecord] = []
    policy = PipelinePolicy(BAG, READERS, recorder=recorder(log.append))
    for subscriber, passed in zip(READERS, (9, 8, 2, 0), strict=True):
        policy.enforced(subscriber.principal, Right.SUBSCRIBE, subscriber.type, EventCounts(passed, 0))
    assert [e.type for e in log].count(DECIDED) == 3
    assert [e.counts.passed for e in log if e.counts is not None] == [9, 8, 2, 0]


def test_without_a_record_there_is_no_answer_and_none_is_remembered() -> None:
    log: list[DecisionRecord] = []
    broken = True

    def sink(entry: DecisionRecord) -> None:
        if broken:
            raise FailedError("log.write", "no space is left")
        log.append(entry)

    policy = PipelinePolicy(BAG, recorder=recorder(sink))
    for _ in range(2):
        with pytest.raises(FailedError):
            policy.decide(BILLING.principal, Right.SUBSCRIBE, V8516)
        with pytest.raises(FailedError):
            policy.enforced(CAMERA.principal, Right.PUBLISH, V8516, EventCounts(1, 0))
    broken = False
    assert policy.decide(BILLING.principal, Right.SUBSCRIBE, V8516).effect is Effect.PERMIT
    policy.enforced(CAMERA.principal, Right.PUBLISH, V8516, EventCounts(1, 0))
    assert [e.type for e in log] == [DECIDED, DECIDED, ENFORCED]


def test_without_a_recorder_the_answer_is_the_same() -> None:
    log: list[DecisionRecord] = []
    silent, loud = PipelinePolicy(BAG), PipelinePolicy(BAG, recorder=recorder(log.append))
    for who in (BILLING, SMITH, MALLORY):
        assert silent.decide(who.principal, Right.SUBSCRIBE, V8516) == loud.decide(
            who.principal, Right.SUBSCRIBE, V8516
        )
    silent.enforced(BILLING.principal, Right.SUBSCRIBE, V8516, EventCounts(1, 0))
    assert len(log) == 3


def test_another_policy_remembers_nothing_of_this_one() -> None:
    policy = PipelinePolicy(BAG)
    assert policy.decide(BILLING.principal, Right.SUBSCRIBE, V8516).effect is Effect.PERMIT
    revision = policy.revision
    poorer = replace(policy, credentials=Credentials.of(TO_CCS))
    assert poorer.decide(BILLING.principal, Right.SUBSCRIBE, V8516).effect is Effect.DENY
    assert poorer.revision != revision


def test_revisions_are_equal_where_policies_are() -> None:
    assert (
        PipelinePolicy(BAG, READERS).revision == PipelinePolicy(Credentials.of(*reversed(list(BAG))), READERS).revision
    )
    quorum = Threshold(1, (BILLING.principal, SMITH.principal))
    odd = Subscriber(f"a {BILLING.principal}", BILLING.principal, V8516)
    others = [
        PipelinePolicy(BAG),
        PipelinePolicy(Credentials.of(*list(BAG)[1:]), READERS),
        PipelinePolicy(Credentials.of(*BAG, quorums=[quorum]), READERS),
        PipelinePolicy(BAG, READERS[1:]),
        PipelinePolicy(BAG, (*READERS, odd)),
        PipelinePolicy(BAG, (*READERS, replace(odd, name="a"))),
    ]
    assert len({policy.revision for policy in (PipelinePolicy(BAG, READERS), *others)}) == 1 + len(others)
