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
from tests.trust.types_kit import PLATE

from penstock.broker.keys.log import MemoryLog
from penstock.broker.keys.manager import Append, Output, Reply, Tell
from penstock.broker.keys.rights import Grounds
from penstock.broker.limits import BrokerLimits
from penstock.crypto.hpke import SealingKey
from penstock.model.names import AttributeId, TypeKey
from penstock.model.principals import Principal
from penstock.trust.key_statements import KeyEpoch, KeyGroup, KeyRecord, KeyRequest, KeyWish
from penstock.trust.signed import UnverifiedValue, parse_signed, sign_value
from penstock.trust.validity import ALWAYS, Validity


def request(
    broker: int, wish: KeyWish = KeyWish.JOIN, seconds: float = 0, group: KeyGroup = GROUP
) -> UnverifiedValue[KeyRequest]:
    public = SealingKey(lambda size: bytes([broker]) * size).public if wish in (KeyWish.JOIN, KeyWish.HISTORY) else b""
    return sign_value(KeyRequest(wish, who(broker), group, at(seconds), 0, 0, public), key(broker)).unverified()


def lose_right(world: World, number: int, seconds: float = 0) -> list[Output]:
    """Let a broker lose its right by a change of policy."""
    others = world.manager.holders(GROUP) - {who(number)}
    return world.manager.review(at(seconds), GROUP, lambda _: [], others)


def last_record(world: World) -> KeyRecord:
    return parse_signed(world.log.records[-1], KeyRecord).value


# Joining and leaving, and the refreshes that this saves.


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


@pytest.mark.parametrize("rotates", [False, True])
def test_who_asks_again_while_its_eviction_waits_is_admitted_after_it(*, rotates: bool) -> None:
    world = World(20, 21)
    # Its right was revoked and is there again before the log has the eviction, or an epoch before that.
    first = world.manager.rotate(world.now, GROUP) if rotates else []
    (append,) = first + lose_right(world, 21)
    again = world.manager.join(at(1), request(21, seconds=1), grounds(21, right(21)))
    assert again == []
    sent = carry_out(at(1), world.manager, world.log, [append])
    assert [output.broker for output in sent if isinstance(output, Reply)] == [who(21)]
    assert world.members() == {20, 21}
    assert world.epoch == 3 + rotates
    assert who(21) not in world.manager._state(GROUP).evicted


def test_another_right_does_not_undo_an_operators_eviction_that_waits() -> None:
    world = World(20, 21)
    evicts = world.manager.evict(world.now, GROUP, who(21))
    longer = right(21, validity=Validity.between(NOW - DAY, NOW + 9 * DAY))
    shown = {who(20): grounds(20, right(20)), who(21): grounds(21, longer)}
    assert world.manager.review(at(1), GROUP, shown.__getitem__) == []
    renews = request(21, seconds=1)
    with refused("keys.not-member"):
        world.manager.join(at(1), renews, grounds(21, longer))
    sent = carry_out(at(1), world.manager, world.log, evicts)
    assert not any(isinstance(output, Reply) for output in sent)
    assert (world.members(), world.epoch) == ({20}, 2)
    # The same request, sent again by somebody else, does not bring it back. Its next one does.
    with refused("keys.old-request"):
        world.manager.join(at(2), renews, grounds(21, longer))
    carry_out(at(2), world.manager, world.log, world.manager.join(at(2), request(21, seconds=2), grounds(21, longer)))
    assert world.members() == {20, 21}


def test_who_is_to_be_admitted_is_not_told_that_it_was_evicted() -> None:
    world = World(20, 21)
    (evicts,) = lose_right(world, 21)
    assert world.manager.join(at(1), request(21, seconds=1), grounds(21, right(21))) == []
    assert isinstance(evicts, Append)
    assert at_once(world.log.append(evicts.number, evicts.record.to_bytes()))
    (admits,) = (said for said in catch_up(at(1), world.manager, world.log) if isinstance(said, Append))
    # It has heard of the epoch that its eviction began, asks for its path, and waits.
    asked = request(21, KeyWish.PATH, seconds=2)
    with refused("keys.not-member"):
        world.manager.path(at(2), asked)
    assert not world.manager.was_evicted(asked.value)
    carry_out(at(2), world.manager, world.log, [admits])
    assert world.members() == {20, 21}
    carry_out(at(3), world.manager, world.log, world.manager.evict(at(3), GROUP, who(21)))
    assert world.manager.was_evicted(asked.value)


def test_whose_right_ends_while_it_waits_is_not_admitted() -> None:
    world = World(20, 21)
    (append,) = lose_right(world, 21)
    short = right(21, validity=Validity.between(NOW - DAY, at(5)))
    assert world.manager.join(at(1), request(21, seconds=1), grounds(21, short, now=at(1))) == []
    assert [type(one) for one in carry_out(at(60), world.manager, world.log, [append])] == [Tell]
    assert world.members() == {20}


def test_who_leaves_while_its_right_waits_to_be_renewed_is_not_admitted_again() -> None:
    world = World(20, 21)
    (append,) = world.manager.rotate(world.now, GROUP)
    longer = right(21, validity=Validity.between(NOW - DAY, NOW + 9 * DAY))
    assert world.manager.join(at(1), request(21, seconds=1), grounds(21, longer)) == []
    assert world.manager.leave(at(2), request(21, KeyWish.LEAVE, seconds=2)) == []
    carry_out(at(2), world.manager, world.log, [append])
    assert world.members() == {20}


@pytest.mark.parametrize(("before", "after"), [(100, 1_000), (1_000, 100)])
def test_who_waits_is_admitted_by_its_right_of_today(before: int, after: int) -> None:
    world = World(20)
    (append,) = world.manager.rotate(world.now, GROUP)
    rights = {end: right(21, validity=Validity.between(NOW - DAY, at(end))) for end in (before, after)}
    assert world.manager.join(at(1), request(21, seconds=1), grounds(21, rights[before])) == []
    shown = {who(20): grounds(20, right(20)), who(21): grounds(21, rights[after])}
    assert world.manager.review(at(1), GROUP, shown.__getitem__) == []
    (reply,) = (one for one in carry_out(at(2), world.manager, world.log, [append]) if isinstance(one, Reply))
    assert reply.broker == who(21)
    assert world.manager._state(GROUP).members[who(21)].until == at(after)


@pytest.mark.parametrize(("begins", "epochs"), [(-10, 1), (50, 3)], ids=["without a break", "after a break"])
def test_who_has_another_right_when_one_has_ended_is_still_there(begins: int, epochs: int) -> None:
    world = World(20)
    world.join(21, right(21, validity=Validity.between(NOW - DAY, at(10))))
    assert world.manager.lapsed(at(10)) == set()
    assert world.manager.lapsed(at(60)) == {who(21)}
    world.certificates[21] = later = right(21, validity=Validity.between(at(begins), NOW + DAY))
    shown = {who(20): grounds(20, right(20)), who(21): grounds(21, later, now=at(60))}
    world.now = at(60)
    world.run(world.manager.review(at(60), GROUP, shown.__getitem__, {who(20)}))
    world.pass_time(0)
    assert world.manager.lapsed(at(60)) == set()
    world.pass_time(10)
    world.pass_time(10)
    assert world.members() == {20, 21}
    # The time between two rights has an epoch of its own.
    assert world.epoch == epochs
    assert world.brokers[21].keys[world.epoch] == world.key()


def test_who_joins_while_it_is_let_go_is_still_there() -> None:
    world = World(20, 21)
    left = world.manager.leave(at(1), request(21, KeyWish.LEAVE, seconds=1))
    assert world.manager.join(at(2), request(21, seconds=2), grounds(21, right(21))) == []
    (reply,) = carry_out(at(3), world.manager, world.log, left)
    assert isinstance(reply, Reply)
    assert (reply.broker, world.members(), world.epoch) == (who(21), {20, 21}, 1)


def test_a_manager_that_serves_a_group_no_longer_decides_nothing_about_it() -> None:
    world, served = World(20, 21), [PLATE.name]
    world.join(22, right(22, validity=Validity.between(NOW - DAY, at(10))))
    world.manager._serves = lambda _of_type: served
    served.clear()
    # Another replica may, in the same log.
    assert world.manager.review(at(1), GROUP, lambda _broker: []) == []
    said, _ = world.manager.tick(at(3_600))
    assert not [one for one in said if isinstance(one, Append)]
    assert world.members() == {20, 21, 22}
    served.append(PLATE.name)
    world.pass_time(3_600)
    assert world.members() == {20, 21}


def test_what_is_asked_about_groups_that_do_not_exist_leaves_nothing_behind() -> None:
    world = World(20)
    before = len(world.manager._wishes)
    strange = KeyGroup(GROUP.type, AttributeId(GROUP.type.owner, GROUP.type.name, "x"))
    asked = request(99, KeyWish.PATH, group=strange)
    with refused("keys.not-member"):
        world.manager.path(at(0), asked)
    assert not world.manager.was_evicted(asked.value)
    assert len(world.manager._wishes) == before


def test_groups_take_turns() -> None:
    one, log = manager(limits=BrokerLimits(key_changes=1)), MemoryLog()
    for group in (GROUP, PLATES):
        carry_out(at(0), one, log, one.join(at(0), request(20, group=group), grounds(20, right(20))))
    (append,) = one.rotate(at(1), GROUP)
    # One group has changes for four records.
    for number in (21, 22, 23, 24):
        assert one.join(at(1), request(number, seconds=1), grounds(number, right(number))) == []
    assert one.evict(at(1), PLATES, who(20)) == []
    turns = []
    for _ in range(3):
        assert isinstance(append, Append)
        assert isinstance(append.record.value, KeyRecord)
        turns.append(append.record.value.word.group)
        assert at_once(log.append(append.number, append.record.to_bytes()))
        (append,) = (said for said in catch_up(at(1), one, log) if isinstance(said, Append))
    assert turns == [GROUP, PLATES, GROUP]


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


# Clocks.


@pytest.mark.parametrize(("number", "begins"), [(MANAGER, 1), (REPLICA, 0)])
def test_a_manager_whose_clock_was_ahead_begins_another_epoch_when_it_is_right(number: int, begins: int) -> None:
    world = World(20, 21)
    world.now = at(3_600)
    world.rotate()
    ahead = world.epoch
    # A replica leaves it to the one whose clock it was: its own may be behind.
    world.restart(number)
    world.deaf = {20, 21}
    for seconds in (10, 11, 12):
        world.now = at(seconds)
        world.run(world.manager.tick(world.now)[0])
    assert world.epoch == ahead + begins


def test_what_was_said_while_the_clock_was_ahead_does_not_keep_anybody_from_leaving() -> None:
    one, log = manager(), MemoryLog()
    one.tick(at(3_600))
    for number in (20, 21, 22):
        said = one.join(at(3_600), request(number, seconds=3_600), grounds(number, right(number)))
        carry_out(at(3_600), one, log, said)
    carry_out(at(10), one, log, one.tick(at(10))[0])
    with refused("keys.old-request"):
        one.leave(at(10), request(20, KeyWish.LEAVE, seconds=9))
    for number in (20, 21):
        carry_out(at(11), one, log, one.leave(at(11), request(number, KeyWish.LEAVE, seconds=11)))
    assert {*one._state(GROUP).members} == {who(22)}


# Who is refused.


def test_requests_are_checked() -> None:
    one = manager()
    shown = grounds(20, right(20))
    with refused("keys.wrong-request"):
        one.join(NOW, request(20, KeyWish.LEAVE), shown)
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
    for wish in (KeyWish.LEAVE, KeyWish.PATH, KeyWish.REFRESH):
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
        world.manager.leave(world.now, request(20, KeyWish.LEAVE, seconds=2.5))
    world.pass_time(1)
    world.run(world.manager.leave(world.now, request(20, KeyWish.LEAVE, seconds=4)))
    assert world.members() == {21}


TWO = BrokerLimits(key_members=2)


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
    # All rights are renewed together.
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


# Announcements.


def test_a_large_epoch_is_told_in_parts() -> None:
    world = World(*range(20, 30), limits=BrokerLimits(key_nodes=3))
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
