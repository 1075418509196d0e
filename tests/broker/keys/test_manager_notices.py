"""When members learn which epoch there is: often where they may not know, and seldom otherwise."""

from datetime import datetime

from tests.broker.key_kit import GROUP, LANES, REPLICA, World, at, carry_out, catch_up, manager

from penstock.broker.keys.manager import KeyManager, KeyNotices, Tell
from penstock.broker.limits import BrokerLimits
from penstock.trust.key_statements import KeyNotice


def times(notices: KeyNotices, until: int) -> list[int]:
    return [second for second in range(until) if notices.is_due(at(second), GROUP)]


def test_after_a_start_they_come_more_and_more_seldom() -> None:
    assert times(KeyNotices(limits=BrokerLimits()), 120) == [0, 1, 2, 4, 7, 12, 22, 42, 72, 102]


def test_an_epoch_that_was_told_is_told_again_much_later() -> None:
    notices = KeyNotices(limits=BrokerLimits())
    assert notices.next(GROUP) is None
    notices.told(at(0), GROUP)
    assert times(notices, 100) == [30, 60, 90]
    assert notices.next(GROUP) == at(120)
    assert notices.is_due(at(0), LANES)


def test_what_a_replica_should_have_told_is_told_soon() -> None:
    notices = KeyNotices(limits=BrokerLimits())
    notices.told_by_another(at(0), GROUP)
    assert notices.is_due(at(0), GROUP)
    notices.told(at(0), GROUP)
    notices.told_by_another(at(10), GROUP)
    notices.told_by_another(at(12), GROUP)
    assert times(notices, 60) == [15, 45]


def told(one: KeyManager, now: datetime) -> list[int]:
    outputs = (output.value.value for output in one.tick(now)[0] if isinstance(output, Tell))
    return [value.word.epoch for value in outputs if isinstance(value, KeyNotice)]


def test_a_replica_tells_the_epoch_that_another_one_began_and_did_not_live_to_tell() -> None:
    world = World(20, 21)
    other = manager(REPLICA)
    catch_up(at(0), other, world.log)
    for second in range(100):
        told(other, at(second))
    world.now = at(100)
    # It is written, and lost on the way.
    carry_out(world.now, world.manager, world.log, world.manager.rotate(world.now, GROUP))
    catch_up(at(101), other, world.log)
    assert told(other, at(101)) == []
    assert told(other, at(106)) == [2]
    assert {broker.member.epoch for broker in world.brokers.values()} == {1}
    world.manager = other
    world.pass_time(40)
    assert {broker.keys[2] for broker in world.brokers.values()} == {world.key()}
