"""Key managers: who gets a key, when it changes, and how replicas stay one."""

import pickle
from dataclasses import replace
from datetime import timedelta

import pytest
from tests.broker.key_kit import (
    GROUP,
    KEK,
    MANAGER,
    PLATES,
    REFRESHING,
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
from tests.trust.kit import DAY, NOW, key, refused, who

from penstock.broker.key_log import MemoryLog
from penstock.broker.key_outputs import Append, Noted, Output, Reply, Tell
from penstock.broker.key_rights import Grounds
from penstock.codec.sexp import canonical, parse_canonical
from penstock.crypto.hpke import SealingKey
from penstock.model.limits import Limits
from penstock.model.names import TypeKey
from penstock.model.principals import Principal
from penstock.trust.capabilities import Right
from penstock.trust.key_messages import KeyEpoch, KeyGroup, KeyRequest, Wish
from penstock.trust.key_records import KeyRecord
from penstock.trust.signed import UnverifiedValue, read_signed, sign_value
from penstock.trust.validity import ALWAYS, Validity


def request(
    broker: int, wish: Wish = Wish.JOIN, seconds: float = 0, group: KeyGroup = GROUP
) -> UnverifiedValue[KeyRequest]:
    public = SealingKey(lambda size: bytes([broker]) * size).public if wish in (Wish.JOIN, Wish.HISTORY) else b""
    return sign_value(KeyRequest(wish, who(broker), group, at(seconds), 0, 0, public), key(broker)).unverified()


def last_record(world: World) -> KeyRecord:
    return read_signed(parse_canonical(world.log.records[-1]), KeyRecord).value


# Joining and leaving, and the refreshes that this spares.


def test_the_first_member_begins_the_first_epoch() -> None:
    world = World(20)
    assert world.epoch == 1
    assert world.brokers[20].keys == {1: world.key()}


def test_who_had_the_right_when_the_epoch_began_joins_without_a_new_one() -> None:
    world = World(20)
    world.pass_time(10)
    world.join(21)
    assert world.epoch == 1
    assert world.brokers[21].keys == {1: world.key()}
    assert not last_record(world).refresh


def test_who_joins_without_a_new_epoch_gets_no_secret_of_the_tree() -> None:
    world = World(20, 21)
    state = world.manager._state(GROUP)
    assert state.place(who(21))[:8] == bytes(8)
    world.pass_time(601)
    assert world.epoch == 2
    assert int.from_bytes(state.place(who(21))[:8], "big") > 0
    assert world.brokers[21].keys[2] == world.key()


def test_who_had_no_right_when_the_epoch_began_joins_with_a_new_one() -> None:
    world = World(20)
    world.pass_time(10)
    world.join(21, right(21, validity=Validity.between(at(5), NOW + DAY)))
    assert world.epoch == 2
    assert 1 not in world.brokers[21].had
    assert world.brokers[20].keys[2] == world.brokers[21].keys[2] == world.key()


def test_who_leaves_with_a_right_that_goes_on_changes_nothing_yet() -> None:
    world = World(20, 21)
    world.leave(21)
    assert (world.epoch, world.members()) == (1, {20})
    assert world.manager.holders(GROUP) == {who(20), who(21)}
    world.pass_time(601)
    assert world.epoch == 2
    assert world.manager.holders(GROUP) == {who(20)}
    assert 2 not in world.brokers[21].had


def test_who_has_left_loses_the_key_when_the_right_ends() -> None:
    world = World(20)
    world.join(21, right(21, validity=Validity.between(NOW - DAY, at(60))))
    world.leave(21)
    world.pass_time(59)
    assert world.epoch == 1
    assert world.manager.turns() is not None
    world.pass_time(2)
    assert world.epoch == 2
    assert world.manager.holders(GROUP) == {who(20)}


def test_a_member_loses_the_key_when_its_right_ends_and_keeps_it_by_renewing() -> None:
    world = World(20)
    short = Validity.between(NOW - DAY, at(60))
    for number in (21, 22):
        world.join(number, right(number, validity=short))
    world.pass_time(30)
    world.join(22, right(22, validity=ALWAYS))
    assert world.epoch == 1
    world.pass_time(31)
    assert (world.epoch, world.members()) == (2, {20, 22})
    assert world.brokers[22].keys[2] == world.key()
    assert not world.brokers[21].seals


def test_who_left_and_comes_back_in_the_same_epoch_is_where_it_was() -> None:
    world = World(20, 21)
    world.leave(21)
    world.join(21)
    assert world.brokers[21].keys == {1: world.key()}
    world.pass_time(601)
    assert world.brokers[21].keys[2] == world.key()


def test_who_is_evicted_loses_the_key_at_once() -> None:
    world = World(20, 21, 22)
    world.leave(22)
    for number, epoch in ((21, 2), (22, 2)):
        world.evict(number)
        assert world.epoch == epoch
    assert world.manager.holders(GROUP) == {who(20)}
    world.evict(99)
    assert world.epoch == 2


def test_who_was_evicted_and_has_a_new_right_does_not_get_the_key_of_the_time_between() -> None:
    world = World(20, 21)
    world.evict(21)
    world.pass_time(601)
    assert world.epoch == 3
    # The dates of the new certificate say that the right has always been there.
    world.join(21, right(21, validity=ALWAYS))
    assert world.epoch == 4
    assert {*world.brokers[21].had} == {1, 4}


def test_when_policy_changes_everybody_is_asked_about_anew() -> None:
    world = World(20, 21, 22, 23, 24)
    world.leave(23)
    world.leave(24)
    shorter = Validity.between(NOW - DAY, at(60))
    rights = {20: right(20), 21: right(21, validity=shorter), 24: right(24)}
    numbers = {who(number): number for number in range(20, 25)}

    def ask(broker: Principal) -> Grounds:
        number = numbers[broker]
        return grounds(number, *([rights[number]] if number in rights else []))

    world.run(world.manager.review(world.now, GROUP, ask))
    assert (world.epoch, world.members()) == (2, {20, 21})
    assert len(world.log.records) == 5 + 2 + 1
    assert world.manager.review(world.now, GROUP, ask) == []
    world.pass_time(61)
    assert (world.epoch, world.members()) == (3, {20})


def test_a_review_overtakes_a_request_that_waits() -> None:
    one, log = manager(), MemoryLog()
    waiting = one.join(NOW, request(20), grounds(20, right(20))) + one.join(NOW, request(21), grounds(21, right(21)))
    assert one.review(NOW, GROUP, lambda _: []) == []
    # The first is in the log already, perhaps: it is admitted, told nothing, and evicted.
    sent = carry_out(NOW, one, log, waiting)
    assert not any(isinstance(output, Reply) for output in sent)
    assert one.holders(GROUP) == set()
    assert len(log.records) == 2


def test_an_eviction_overtakes_a_request_that_waits() -> None:
    one = manager()
    (append,) = one.join(NOW, request(20), grounds(20, right(20)))
    assert isinstance(append, Append)
    one.evict(NOW, GROUP, who(20))
    log = MemoryLog()
    sent = carry_out(NOW, one, log, [append])
    assert not any(isinstance(output, Reply) for output in sent)
    assert one.holders(GROUP) == set()


def test_epochs_end_by_age_by_volume_and_by_hand() -> None:
    world = World(20, 21)
    world.pass_time(599)
    assert world.epoch == 1
    world.pass_time(1)
    assert world.epoch == 2
    for blocks, epoch in ((999, 2), (1, 3), (999, 3)):
        world.run(world.manager.sealed(world.now, GROUP, blocks))
        assert world.epoch == epoch
    world.rotate()
    assert world.epoch == 4
    assert all(world.brokers[number].keys[4] == world.key() for number in (20, 21))


def test_members_may_ask_for_an_epoch_but_not_all_the_time() -> None:
    world = World(20)
    broker = world.brokers[20]
    broker.take(broker.member.refresh(world.now))
    world.post(20)
    assert (world.epoch, world.refusals) == (1, ["keys.too-soon"])
    world.pass_time(60)
    broker.take(broker.member.refresh(world.now))
    world.post(20)
    assert world.epoch == 2


def test_groups_of_one_type_are_apart() -> None:
    one, log = manager(), MemoryLog()
    for group in (GROUP, PLATES):
        for broker in (20, 21):
            carry_out(NOW, one, log, one.join(NOW, request(broker, group=group), grounds(broker, right(broker))))
    assert {*one.groups()} == {GROUP, PLATES}
    assert one._state(GROUP).tree.key() != one._state(PLATES).tree.key()
    carry_out(NOW, one, log, one.evict(NOW, PLATES, who(21)))
    assert one.holders(GROUP) == {who(20), who(21)}
    assert one.holders(PLATES) == {who(20)}


# Who is refused.


def test_requests_are_checked() -> None:
    one = manager()
    shown = grounds(20, right(20))
    with refused("keys.wrong-request"):
        one.join(NOW, request(20, Wish.LEAVE), shown)
    for seconds in (-61, 61):
        with refused("keys.old-request"):
            one.join(NOW, request(20, seconds=seconds), shown)
    with refused("keys.not-entitled"):
        one.join(NOW, request(21), shown)
    with refused("keys.not-managed"):
        one.join(NOW, request(20, group=KeyGroup(TypeKey(who(1), "other"))), shown)
    genuine = request(20)
    with refused("evolution.wrong-key"):
        one.join(NOW, replace(genuine, value=replace(genuine.value, broker=who(21))), shown)
    for wish in (Wish.LEAVE, Wish.PATH, Wish.REFRESH):
        with refused("keys.not-member"):
            getattr(one, str(wish))(NOW, request(20, wish))


def test_a_copy_of_a_request_is_refused() -> None:
    one, shown = manager(), grounds(20, right(20))
    carry_out(NOW, one, MemoryLog(), one.join(NOW, request(20), shown))
    with refused("keys.old-request"):
        one.join(at(1), request(20), shown)


def test_nobody_is_put_out_by_what_it_said_before_the_manager_started() -> None:
    world = World(20, 21)
    world.pass_time(2)
    world.restart()
    world.pass_time(1)
    with refused("keys.old-request"):
        world.manager.leave(world.now, request(20, Wish.LEAVE, seconds=2.5))
    world.pass_time(1)
    world.run(world.manager.leave(world.now, request(20, Wish.LEAVE, seconds=4)))
    assert world.members() == {21}


TWO = Limits(key_members=2)


def test_a_group_is_not_larger_than_allowed_and_everything_goes_on() -> None:
    world = World(20, 21, limits=TWO)
    before = world.log_length
    with refused("keys.members"):
        world.manager.join(NOW, request(22), grounds(22, right(22)))
    assert world.log_length == before
    world.evict(21)
    assert world.epoch == 2
    carry_out(NOW, world.manager, world.log, world.manager.join(NOW, request(22), grounds(22, right(22))))
    assert world.manager.holders(GROUP) == {who(20), who(22)}


def test_who_waits_for_a_place_counts_and_who_has_one_does_not_count_twice() -> None:
    one, log = manager(limits=TWO), MemoryLog()
    waiting = [
        output for number in (20, 21) for output in one.join(NOW, request(number), grounds(number, right(number)))
    ]
    with refused("keys.members"):
        one.join(NOW, request(22), grounds(22, right(22)))
    carry_out(NOW, one, log, waiting)
    # All rights are renewed at once.
    longer = Validity.between(NOW - DAY, NOW + 9 * DAY)
    rights = {who(number): grounds(number, right(number, validity=longer)) for number in (20, 21)}
    carry_out(NOW, one, log, one.review(NOW, GROUP, lambda broker: rights[broker]))
    assert {holder.until for holder in one._state(GROUP).members.values()} == {NOW + 9 * DAY}


def test_of_two_replicas_one_gives_the_last_place_away() -> None:
    log = MemoryLog()
    one, other = manager(MANAGER, limits=TWO), manager(REPLICA, limits=TWO)
    carry_out(NOW, one, log, one.join(NOW, request(20), grounds(20, right(20))))
    catch_up(NOW, other, log)
    mine = one.join(NOW, request(21), grounds(21, right(21)))
    theirs = other.join(NOW, request(22), grounds(22, right(22)))
    carry_out(NOW, one, log, mine)
    assert carry_out(NOW, other, log, theirs) == []
    assert one.holders(GROUP) == other.holders(GROUP) == {who(20), who(21)}
    with refused("keys.members"):
        other.join(at(1), request(22, seconds=1), grounds(22, right(22)))


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
    world = World(20, limits=Limits(key_history=2))
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
    # The other one meant the same place: it reads, and proposes anew on top of that.
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
    return [read_signed(parse_canonical(record), KeyRecord) for record in world.log.records]


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
    one, log = manager(limits=Limits(key_changes=2)), MemoryLog()
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


# What is told.


def test_a_large_epoch_is_told_in_parts() -> None:
    world = World(*range(20, 30), limits=Limits(key_nodes=3))
    world.pass_time(601)
    parts = [tell.value.value for tell in world.told if tell.value.value.word.epoch == 2]
    told = [part for part in parts if isinstance(part, KeyEpoch)]
    assert [(part.part, part.parts) for part in told] == [(0, 3), (1, 3), (2, 3)]
    assert all(broker.keys[2] == world.key() for broker in world.brokers.values())


def test_managers_tell_the_epoch_from_time_to_time() -> None:
    world = World(20)
    told = len(world.told)
    world.pass_time(29)
    assert len(world.told) == told
    world.pass_time(1)
    assert len(world.told) == told + 1
    assert world.manager.turns() == world.now + timedelta(seconds=30)


def test_nothing_shows_a_key() -> None:
    world = World(20, 21)
    world.evict(21)
    world.pass_time(601)
    outputs: list[Output] = [*world.told, *world.manager.rotate(world.now, GROUP)]
    state = world.manager._state(GROUP)
    secrets = [KEK, world.key(), *(holder.leaf for holder in state.members.values())]
    shown = [repr(outputs), repr(vars(state)), repr(vars(world.manager)), repr(vars(world.brokers[20].member))]
    shown += [repr(world.log.records)]
    octets = b"".join((*world.log.records, *(tell.value.to_bytes() for tell in world.told)))
    for secret in secrets:
        assert not any(repr(secret.expose())[2:-1] in text for text in shown)
        assert not any(secret.expose().hex() in text for text in shown)
        assert secret.expose() not in octets
    for unpicklable in (world.manager, world.brokers[20].member, state):
        with pytest.raises((TypeError, AttributeError)):
            pickle.dumps(unpicklable)
    assert REFRESHING.longest == state.word.longest if state.word else False
