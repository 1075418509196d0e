"""Refusals that anybody can cause: so many are recorded and reported, and the others counted."""

from collections import Counter
from datetime import timedelta
from itertools import count

import pytest
from tests.broker.node_kit import Broker, ending, peer, run, running, settings, until
from tests.broker.sports import NETWORK, NEWS, NOW, PDA, STRANGER

from penstock.broker.core.reports import Refusals
from penstock.broker.limits import BrokerLimits
from penstock.crypto import SigningKey
from penstock.errors import PenstockError
from penstock.guard import DecisionRecord, Recorder
from penstock.guard.decision import Effect
from penstock.guard.decision_log import EventCounts
from penstock.model.principals import Principal
from penstock.trust.capabilities import Right

LIMITS = BrokerLimits(refusal_records=3, refusal_reports=2, refusal_period=60_000)
_IDS = count(1)


def record(principal: Principal, effect: Effect = Effect.DENY, action: Right = Right.CONNECT) -> DecisionRecord:
    resource = NETWORK if action.on_network else NEWS.name
    return DecisionRecord(
        id=f"d{next(_IDS)}",
        source="broker",
        time=NOW,
        principal=principal,
        action=action,
        resource=resource,
        effect=effect,
        revision="",
        took=0,
    )


def stranger(number: int) -> Principal:
    return SigningKey(number.to_bytes(32, "big")).principal


class Log:
    """A decision log, and what operators receive."""

    def __init__(self) -> None:
        self.written: list[DecisionRecord] = []
        self.told: list[PenstockError] = []
        self.counts: Counter[str] = Counter()
        self.refusals = Refusals(self.written.append, self.counts, LIMITS)
        self.recorder = Recorder(
            source="broker",
            sink=self.refusals,
            clock=lambda: NOW,
            timer=lambda: 0,
            ids=lambda: f"e{next(_IDS)}",
        )

    def end(self, periods: float) -> None:
        for passed in (0.0, periods):
            self.refusals.tick(NOW + passed * timedelta(minutes=1), self.recorder, self.told.append)


def test_one_principal_is_recorded_once_and_then_counted() -> None:
    log = Log()
    for _ in range(1_000):
        log.recorder.write(record(stranger(1)))
    assert len(log.written) == 1
    log.end(0.9)
    assert len(log.written) == 1
    log.end(2)
    first, summary = log.written
    assert summary.decision == first.id
    assert summary.counts is not None
    assert (summary.counts.passed, summary.counts.refused) == (0, 999)
    # Another period begins with a record again.
    log.recorder.write(record(stranger(1)))
    assert len(log.written) == 3


def test_ever_new_principals_are_recorded_so_often_and_no_oftener() -> None:
    log = Log()
    for number in range(1_000):
        log.recorder.write(record(stranger(number)))
    assert len(log.written) == 3
    assert log.counts["refusals not recorded"] == 997
    log.end(2)
    assert len(log.written) == 3


def test_what_is_permitted_and_what_ends_it_is_always_recorded() -> None:
    log = Log()
    member = stranger(99)
    log.recorder.write(record(member, Effect.PERMIT))
    for number in range(10):
        log.recorder.write(record(stranger(number)))
    for _ in range(5):
        log.recorder.write(record(stranger(50), Effect.PERMIT))
        log.recorder.write(record(stranger(51), action=Right.SUBSCRIBE))
        log.recorder.write(record(stranger(52), Effect.PERMIT, Right.INSTALL))
    log.recorder.write(record(member))
    assert log.written[-1].principal == member
    assert len(log.written) == 1 + 3 + 15 + 1
    log.recorder.write(record(member))
    assert len(log.written) == 20


def test_a_member_that_asks_to_be_a_broker_again_and_again_is_refused_once_in_the_log() -> None:
    """To be let in and to be refused another right are two questions: neither makes the other one new."""
    log = Log()
    member = stranger(99)
    for number in range(10):
        log.recorder.write(record(stranger(number)))
    for _ in range(1_000):
        log.recorder.write(record(member, Effect.PERMIT))
        log.recorder.write(record(member, action=Right.BROKER))
        log.recorder.write(record(member, action=Right.INSTALL))
    refused = [one for one in log.written if one.principal == member and one.effect is Effect.DENY]
    # Strangers do not keep it out of the log, however many they are.
    assert [one.action for one in refused] == [Right.BROKER, Right.INSTALL]
    log.end(2)
    summaries = {one.action: one.counts for one in log.written if one.counts is not None}
    assert summaries == {action: EventCounts(passed=0, refused=999) for action in (Right.BROKER, Right.INSTALL)}


def test_members_and_strangers_do_not_take_each_others_place_in_the_log() -> None:
    log = Log()
    for _ in range(2):
        for number in range(10):
            log.recorder.write(record(stranger(number), Effect.PERMIT))
            log.recorder.write(record(stranger(number), action=Right.INSTALL))
            log.recorder.write(record(stranger(100 + number)))
        refused = [one for one in log.written if one.effect is Effect.DENY and one.counts is None]
        assert [one.action for one in refused].count(Right.INSTALL) == 10
        assert [one.action for one in refused].count(Right.CONNECT) == 3
        log.end(2)
        log.written.clear()


def test_each_right_that_somebody_loses_leaves_its_trace() -> None:
    log = Log()
    broker = stranger(99)
    for _ in range(2):
        log.recorder.write(record(broker, Effect.PERMIT))
        log.recorder.write(record(broker, Effect.PERMIT, Right.BROKER))
        log.recorder.write(record(broker, action=Right.BROKER))
        log.recorder.write(record(broker, action=Right.BROKER))
        log.recorder.write(record(broker))
        log.recorder.write(record(broker))
    denied = [one.action for one in log.written if one.effect is Effect.DENY]
    # The second refusals of the first round are recorded as those of a period, and those of the second round counted.
    assert denied.count(Right.BROKER) == denied.count(Right.CONNECT) == 3
    log.end(2)
    assert sorted(one.action for one in log.written if one.counts == EventCounts(0, 1)) == [Right.BROKER, Right.CONNECT]


def test_operators_are_told_a_few_times_and_then_how_often() -> None:
    log = Log()
    told = [log.refusals.report("link.tls") for _ in range(10)]
    assert told == [True, True, *[False] * 8]
    assert log.refusals.report("link.busy")
    log.end(2)
    (summary,) = log.told
    assert (summary.code, summary.fields["times"]) == ("link.tls", 8)
    assert log.refusals.report("link.tls")


def test_a_stranger_who_tries_again_writes_no_more_to_the_log() -> None:
    limits = BrokerLimits(link_goodbye=300, refusal_records=4, refusal_reports=3, refusal_period=10**9)

    async def main() -> None:
        async with running(limits=limits) as node:
            for _ in range(6):
                async with peer(node, STRANGER) as bad:
                    assert await ending(bad) == "broker.not-permitted"
            for number in range(6):
                async with peer(node, SigningKey(bytes([200 + number]) * 32)) as bad:
                    assert await ending(bad) == "broker.not-permitted"
            assert [one.effect for one in node.records] == [Effect.DENY] * 4
            assert node.core.counts["refusals not recorded"] == 3
            assert len([one for one in node.told if one.code]) <= 3 * len(node.codes)
            await until(lambda: not len(node.clients))
        # What was counted is recorded at the end.
        assert [one.counts.refused for one in node.records if one.counts is not None] == [5]

    run(main())


def test_a_log_that_cannot_be_written_lets_nobody_in() -> None:
    """As before: what stands in front of the log does not swallow its errors."""

    def full(_record: DecisionRecord) -> None:
        raise PenstockError("log.write", "no room")

    node = Broker(settings(), sink=full)
    with pytest.raises(PenstockError) as caught:
        node.core.recorder.write(record(PDA.principal, Effect.PERMIT))
    assert caught.value.code == "log.write"
