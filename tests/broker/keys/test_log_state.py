"""The log of key managers: what is released of epochs that are over, and how replicas stay one."""

from dataclasses import replace

import pytest
from tests.broker.key_kit import (
    GROUP,
    MANAGER,
    REPLICA,
    World,
    at,
    at_once,
    carry_out,
    catch_up,
    grounds,
    manager,
    right,
)
from tests.broker.keys.test_manager import request
from tests.trust.kit import DAY, NOW, key, refused, who

from penstock.broker.keys.log import MemoryLog
from penstock.broker.keys.manager import Append, Noted, Reply, Tell
from penstock.broker.limits import BrokerLimits
from penstock.codec.sexp import canonical
from penstock.trust.capabilities import Right
from penstock.trust.key_statements import KeyRecord
from penstock.trust.signed import UnverifiedValue, parse_signed, sign_value
from penstock.trust.validity import Validity

# History.


def history(world: World, number: int, first: int, last: int) -> None:
    broker = world.brokers[number]
    broker.take(broker.member.history(world.now, first, last))
    world.post(number)


def test_keys_of_epochs_that_are_over_are_released_under_a_right() -> None:
    world = World(20)
    keys = {world.epoch: world.key()}
    for _ in range(3):
        world.pass_time(601)
        keys[world.epoch] = world.key()
    world.join(21, right(21, Right.SUBSCRIBE, Right.HISTORY, validity=Validity.between(at(1800), NOW + DAY)))
    reader = world.brokers[21]
    current = world.epoch
    history(world, 21, 1, 99)
    assert {epoch: key for epoch, key in reader.had.items() if epoch < current} == {
        epoch: key for epoch, key in keys.items() if epoch < current
    }
    for first, last in ((current, current), (3, 2), (0, 2)):
        history(world, 21, first, last)
        assert world.refusals.pop() == "keys.no-history"
    history(world, 20, 1, 1)
    assert world.refusals.pop() == "keys.not-entitled"


def test_history_is_released_after_a_restart_and_no_more_than_allowed_at_once() -> None:
    world = World(20, limits=BrokerLimits(key_history=2))
    for _ in range(4):
        world.pass_time(601)
    world.restart()
    world.certificates[20] = right(20, Right.HISTORY)
    broker = world.brokers[20]
    before = broker.had
    broker.had = {}
    history(world, 20, 1, 99)
    assert broker.had == {epoch: before[epoch] for epoch in (1, 2)}


# One log, several replicas.


def test_a_manager_that_starts_again_has_lost_nothing() -> None:
    world = World(20, 21, 22)
    world.leave(21)
    world.evict(22)
    key, epoch = world.key(), world.epoch
    world.restart()
    assert (world.key(), world.epoch, world.members()) == (key, epoch, {20})
    world.pass_time(601)
    assert world.brokers[20].keys[epoch + 1] == world.key() != key


def test_a_manager_that_died_before_it_told_anybody_is_made_up_for() -> None:
    world = World(20, 21)
    outputs = world.manager.rotate(world.now, GROUP)
    carry_out(world.now, world.manager, world.log, outputs)
    world.restart(REPLICA)
    assert world.epoch == 2
    assert [broker.member.epoch for broker in world.brokers.values()] == [1, 1]
    world.pass_time(1)
    assert [broker.keys[2] for broker in world.brokers.values()] == [world.key()] * 2


def test_of_two_replicas_one_gets_the_place() -> None:
    log = MemoryLog()
    one, other = manager(MANAGER), manager(REPLICA)
    (first,) = one.join(NOW, request(20), grounds(20, right(20)))
    (second,) = other.join(NOW, request(21), grounds(21, right(21)))
    assert isinstance(second, Append)
    sent = carry_out(NOW, one, log, [first])
    assert [type(output) for output in sent] == [Tell, Reply]
    # The other one meant the same place: it reads, and proposes again on top of that.
    sent = carry_out(NOW, other, log, [second])
    assert [type(output) for output in sent] == [Reply]
    catch_up(NOW, one, log)
    assert len(log.records) == 2
    assert one.holders(GROUP) == other.holders(GROUP) == {who(20), who(21)}
    assert one._state(GROUP).tree.key() == other._state(GROUP).tree.key()
    assert one._state(GROUP).epoch == 1


def test_two_replicas_never_begin_the_same_epoch_twice() -> None:
    log = MemoryLog()
    one, other = manager(MANAGER), manager(REPLICA)
    carry_out(NOW, one, log, one.join(NOW, request(20), grounds(20, right(20))))
    catch_up(NOW, other, log)
    mine, theirs = one.rotate(NOW, GROUP), other.rotate(NOW, GROUP)
    told = carry_out(NOW, one, log, mine) + carry_out(NOW, other, log, theirs)
    epochs = [output.value.value for output in told if isinstance(output, Tell)]
    # What both wanted has happened once: the second finds it done.
    assert [epoch.word.epoch for epoch in epochs] == [2]
    assert len(log.records) == 2


def test_one_that_was_asleep_can_do_nothing_but_read() -> None:
    log = MemoryLog()
    one, sleeper = manager(MANAGER), manager(REPLICA)
    carry_out(NOW, one, log, one.join(NOW, request(20), grounds(20, right(20))))
    catch_up(NOW, sleeper, log)
    (stale,) = sleeper.rotate(NOW, GROUP)
    for _ in range(3):
        carry_out(NOW, one, log, one.rotate(NOW, GROUP))
    assert isinstance(stale, Append)
    assert not at_once(log.append(stale.number, stale.record.to_bytes()))
    assert catch_up(NOW, sleeper, log) == []
    assert sleeper._state(GROUP).tree.key() == one._state(GROUP).tree.key()


def test_what_was_appended_without_an_answer_is_appended_again_and_found() -> None:
    log, one = MemoryLog(), manager()
    (append,) = one.join(NOW, request(20), grounds(20, right(20)))
    assert isinstance(append, Append)
    at_once(log.append(append.number, append.record.to_bytes()))  # and the answer is lost
    assert one.tick(at(1))[0] == []
    said, turn = one.tick(at(5))
    assert said == [append]
    assert turn == at(10)
    assert [type(output) for output in carry_out(at(5), one, log, said)] == [Tell, Reply]
    assert len(log.records) == 1


def records(world: World) -> list[UnverifiedValue[KeyRecord]]:
    return [parse_signed(record, KeyRecord) for record in world.log.records]


def test_a_log_that_was_changed_is_not_taken() -> None:
    world = World(20, 21)
    world.evict(21)
    first, second, third = records(world)
    fresh = manager()
    with refused("keys.log"):
        fresh.take(NOW, second)
    fresh.take(NOW, first)
    for record in (first, third):
        with refused("keys.log"):
            fresh.take(NOW, record)
    forged = replace(second.value, word=replace(second.value.word, manager=who(99)))
    with refused("keys.log"):
        fresh.take(NOW, sign_value(forged, key(99)).unverified())
    other_seed = replace(second.value, seed=first.value.seed, salt=first.value.salt)
    with refused("keys.unopened"):
        fresh.take(NOW, sign_value(other_seed, key(MANAGER)).unverified())
    fresh.take(NOW, second)
    fresh.take(NOW, third)
    assert fresh._state(GROUP).tree.key() == world.key()


def unsound(record: KeyRecord) -> list[KeyRecord]:
    """Return records that a manager signs and that do not follow: of another epoch, or without the one they need."""
    return [replace(record, word=replace(record.word, epoch=7)), replace(record, evicted=(who(20),))]


@pytest.mark.parametrize("which", [0, 1])
def test_a_record_that_does_not_follow_counts_for_nothing_with_all_who_read_it(which: int) -> None:
    world = World(20, 21)
    first, second = records(world)
    wrong = sign_value(unsound(second.value)[which], key(MANAGER)).unverified()
    replicas = manager(), manager(REPLICA)
    for one in replicas:
        one.take(NOW, first)
        [noted] = one.take(NOW, wrong)
        assert isinstance(noted, Noted)
        assert noted.reason.code == "keys.record"
        assert (one.position, one._state(GROUP).epoch) == (2, 1)
        assert one.holders(GROUP) == {who(20)}
    # The log goes on behind it.
    log = MemoryLog()
    log.records = [canonical(record.to_sexp()) for record in (first, wrong)]
    carry_out(NOW, replicas[0], log, replicas[0].join(NOW, request(22), grounds(22, right(22))))
    catch_up(NOW, replicas[1], log)
    again = manager(seed=9)
    assert [type(output) for output in catch_up(NOW, again, log)] == [Noted]
    assert [one.holders(GROUP) for one in (*replicas, again)] == [{who(20), who(22)}] * 3
    assert len({one._state(GROUP).tree.key() for one in (*replicas, again)}) == 1


def test_what_is_too_much_for_one_record_is_left_for_the_next() -> None:
    one, log = manager(limits=BrokerLimits(key_changes=2)), MemoryLog()
    outputs = [
        output for number in range(20, 27) for output in one.join(NOW, request(number), grounds(number, right(number)))
    ]
    sent = carry_out(NOW, one, log, outputs)
    assert len([output for output in sent if isinstance(output, Reply)]) == 7
    # One alone, since the first could not wait; then two at a time.
    assert len(log.records) == 4
    outputs = [output for number in range(20, 25) for output in one.evict(NOW, GROUP, who(number))]
    carry_out(NOW, one, log, outputs)
    assert one.holders(GROUP) == {who(25), who(26)}
    assert len(log.records) == 7
