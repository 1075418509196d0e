"""A broker in a key group: messages that are lost, late, doubled or forged, and when it must not seal."""

from dataclasses import replace
from datetime import datetime
from typing import cast

import pytest
from tests.broker.key_kit import GROUP, MANAGER, PLATES, REPLICA, Broker, World, at, catch_up, manager
from tests.trust.kit import NOW, key, refused, who

from penstock.broker.keys.manager import Reply, Tell
from penstock.broker.keys.member import Ask, KeyRefused
from penstock.broker.limits import BrokerLimits
from penstock.trust.key_statements import (
    NO_PLACE,
    NOT_MEMBER,
    EpochStatement,
    KeyGroup,
    KeyHistory,
    KeyNotice,
    KeyPathAnswer,
    KeyRefusal,
    KeyRequest,
    KeyWish,
)
from penstock.trust.signed import SignedValue, UnverifiedValue, sign_value


def told(world: World, epoch: int) -> list[Tell]:
    return [tell for tell in world.told if tell.value.value.word.epoch == epoch]


def hear(world: World, number: int, *tells: Tell) -> list[str]:
    broker = world.brokers[number]
    return [said for tell in tells for said in broker.take(broker.member.receive(world.now, tell.value.unverified()))]


def deaf(world: World, number: int, epochs: int) -> None:
    """Let epochs begin that a broker does not hear of."""
    world.deaf = {number}
    for _ in range(epochs):
        world.rotate()
    world.deaf = set()


# What is lost, late or doubled.


def test_epochs_that_come_late_are_followed_in_order() -> None:
    world = World(20, 21)
    world.pass_time(601)
    deaf(world, 20, 2)
    assert hear(world, 20, *told(world, 4)) == ["ask", "hold"]
    assert world.brokers[20].member.epoch == 2
    assert hear(world, 20, *told(world, 3)) == ["opened", "opened", "resume"]
    assert world.brokers[20].keys[4] == world.key()
    assert hear(world, 20, *told(world, 3), *told(world, 4)) == []


def test_parts_come_in_any_order_and_more_than_once() -> None:
    world = World(*range(20, 32), limits=BrokerLimits(key_nodes=3))
    world.pass_time(601)
    world.deaf = {20}
    for number in (25, 28):
        world.leave(number)
    world.pass_time(601)
    world.deaf = set()
    parts = [tell for tell in told(world, 3) if not isinstance(tell.value.value, KeyNotice)]
    assert len(parts) > 1
    assert hear(world, 20, *reversed(parts[1:]), *parts[1:]) == ["hold"]
    assert hear(world, 20, parts[0]) == ["opened", "resume"]
    assert world.brokers[20].keys[3] == world.key()


def test_parts_that_do_not_come_are_asked_for_after_a_while() -> None:
    world = World(*range(20, 32), limits=BrokerLimits(key_nodes=3))
    world.deaf = {20}
    world.pass_time(601)
    world.deaf = set()
    assert hear(world, 20, told(world, 2)[0]) == ["hold"]
    broker = world.brokers[20]
    assert broker.take(broker.member.tick(world.now + 5 * (at(1) - NOW))[0]) == ["ask"]
    world.now = at(607)
    world.post(20)
    assert broker.keys[2] == world.key()


def test_a_member_that_was_away_is_told_its_path() -> None:
    world = World(20, 21, 22, 23)
    world.pass_time(601)
    deaf(world, 20, 50)
    assert hear(world, 20, *told(world, 52)) == ["ask", "hold"]
    world.post(20)
    broker = world.brokers[20]
    assert broker.keys[52] == world.key()
    assert broker.seals
    # The keys of the last epochs that it has missed come with it, and not of all.
    most = world.limits.key_waiting
    assert {*broker.had} == {1, 2, *range(52 - most, 53)}
    assert all(broker.had[epoch] == world.brokers[21].had[epoch] for epoch in broker.had if epoch > 1)
    world.rotate()
    assert broker.keys[53] == world.key()


def test_a_notice_tells_that_something_was_lost() -> None:
    world = World(20, 21)
    deaf(world, 20, 1)
    world.pass_time(30)
    assert world.brokers[20].keys[2] == world.key()


def test_an_event_tells_that_something_was_lost_and_asking_goes_on_until_there_is_an_answer() -> None:
    world = World(20, 21)
    deaf(world, 20, 1)
    broker = world.brokers[20]
    assert broker.take(broker.member.wanted(world.now, 1)) == []
    assert broker.take(broker.member.wanted(world.now, 2)) == ["ask"]
    assert broker.take(broker.member.wanted(world.now, 2)) == []
    broker.asks.clear()
    said, turn = broker.member.tick(at(4))
    assert (said, turn) == ([], at(5))
    assert broker.take(broker.member.tick(at(5))[0]) == ["ask"]
    world.post(20)
    assert broker.keys[2] == world.key()
    assert broker.member.tick(at(11))[0] == []


def test_joining_is_asked_for_until_there_is_an_answer() -> None:
    broker = Broker(20)
    assert broker.take(broker.member.wanted(NOW, 3)) == []
    assert broker.take(broker.member.join(NOW)) == ["ask"]
    assert broker.take(broker.member.tick(at(5))[0]) == ["ask"]
    first, second = (ask.value for ask in broker.asks)
    assert (first.wish, first.public) == (second.wish, second.public) == (KeyWish.JOIN, first.public)
    assert first.time < second.time


def test_a_welcome_that_comes_twice_or_late_changes_nothing() -> None:
    world = World(20)
    world.pass_time(601)
    (welcome,) = (reply.value for reply in world.replies)
    assert world.brokers[20].member.receive(world.now, welcome.unverified()) == []
    assert world.brokers[20].keys[2] == world.key()
    world.leave(20)
    with refused("keys.unopened"):
        world.brokers[20].member.receive(world.now, welcome.unverified())


def test_who_is_evicted_finds_out() -> None:
    world = World(20, 21)
    world.evict(20)
    assert world.brokers[20].member.epoch == 1
    world.post(20)
    assert world.refusals == ["keys.not-member"]
    broker = world.brokers[20]
    assert (broker.keys, broker.seals, broker.member.epoch) == ({}, False, 0)
    assert broker.member.tick(at(100)) == ([], None)


def test_who_is_dismissed_while_it_joins_anew_goes_on_joining() -> None:
    world = World(20, 21)
    world.evict(20)
    broker = world.brokers[20]
    assert [ask.value.wish for ask in broker.asks] == [KeyWish.PATH]
    # The old request is answered first: that this broker is not a member.
    world.join(20)
    assert world.refusals == ["keys.not-member"]
    assert broker.keys == {world.epoch: world.key()}
    assert not broker.member.evicted


def test_who_leaves_forgets_everything() -> None:
    world = World(20, 21)
    world.leave(20)
    broker = world.brokers[20]
    assert (broker.keys, broker.seals, broker.member.epoch) == ({}, False, 0)
    world.rotate()
    assert broker.keys == {}


# What is not believed.


def signed_notice(world: World, by: int, epoch: int = 5, seconds: float = 0) -> SignedValue[KeyNotice]:
    word = EpochStatement(who(by), world.group, epoch, at(seconds), 1000)
    return sign_value(KeyNotice(word, at(seconds)), key(by))


def test_only_managers_are_believed() -> None:
    world = World(20)
    member = world.brokers[20].member
    with refused("keys.untrusted"):
        member.receive(NOW, signed_notice(world, 99).unverified())
    with refused("keys.future"):
        member.receive(NOW, signed_notice(world, MANAGER, seconds=1).unverified())
    genuine = signed_notice(world, MANAGER)
    with refused("evolution.wrong-key"):
        member.receive(NOW, replace(genuine.unverified(), key=key(99).public))
    with refused("key.bad-signature"):
        member.receive(NOW, replace(genuine.unverified(), signature=bytes(64)))
    with refused("keys.wrong-group"):
        Broker(20, PLATES).member.receive(NOW, genuine.unverified())


def test_answers_to_others_are_not_taken() -> None:
    world = World(20, 21)
    requests: list[SignedValue[KeyRequest]] = []
    for number in (20, 21):
        broker = world.brokers[number]
        broker.take(broker.member.wanted(NOW, 9))
        requests += broker.asks
    (reply,) = world.ask(20, requests[0])
    assert isinstance(reply, Reply)
    assert isinstance(reply.value.value, KeyPathAnswer)
    with refused("keys.unopened"):
        world.brokers[21].member.receive(NOW, reply.value.unverified())
    # With another name on it, it does not open either: the manager would have to sign that, and have the leaf wrong.
    forged = sign_value(replace(reply.value.value, broker=who(21)), key(MANAGER))
    (ask,) = world.brokers[21].member.receive(NOW, forged.unverified())
    assert isinstance(ask, Ask)
    assert ask.request.value.wish is KeyWish.JOIN


def test_a_history_that_nobody_asked_for_is_not_taken() -> None:
    world = World(20)
    world.pass_time(601)
    broker = world.brokers[20]
    answer = KeyHistory(EpochStatement(who(MANAGER), GROUP, 1, NOW, 1), who(20), bytes(32), 1, b"")
    assert broker.member.receive(world.now, sign_value(answer, key(MANAGER)).unverified()) == []
    broker.member.history(world.now, 1, 1)
    for changed in (answer, replace(answer, broker=who(21))):
        with refused("keys.unopened"):
            broker.member.receive(world.now, sign_value(changed, key(MANAGER)).unverified())


def test_absurd_epochs_cost_no_memory() -> None:
    world = World(20, 21)
    deaf(world, 20, 40)
    member = world.brokers[20].member
    for epoch in range(3, 42):
        hear(world, 20, *told(world, epoch))
    assert len(member._parts) <= BrokerLimits().key_waiting


# When it must not seal, and when it forgets.


def test_a_key_opens_what_is_under_way_for_a_while() -> None:
    world = World(20, 21)
    world.pass_time(601)
    broker = world.brokers[20]
    assert {*broker.keys} == {1, 2}
    world.pass_time(59)
    assert {*broker.keys} == {1, 2}
    world.pass_time(1)
    assert {*broker.keys} == {2}


def test_events_wait_when_no_manager_is_reached_beyond_the_longest_epoch() -> None:
    world = World(20, 21)
    broker = world.brokers[20]
    assert broker.seals
    assert broker.member.seals(at(1200))
    assert not broker.member.seals(at(1201))
    assert broker.take(broker.member.tick(at(1200))[0]) == []
    assert broker.member.turns() == at(1200) + (at(0.000001) - NOW)
    assert broker.take(broker.member.tick(at(1201))[0]) == ["hold"]
    # The manager is back.
    world.now = at(1300)
    assert [hear(world, 20, *told(world, 1)), broker.member.seals(world.now)] == [[], False]
    world.pass_time(1)
    assert broker.keys[2] == world.key()
    assert broker.member.seals(world.now)


def test_before_it_has_a_key_a_broker_seals_nothing() -> None:
    broker = Broker(20)
    assert not broker.member.seals(NOW)
    assert broker.take(broker.member.tick(NOW)[0]) == []
    assert not broker.seals


# What managers refuse.


def refusal(manager: int = MANAGER, broker: int = 20, public: bytes = b"", group: KeyGroup = GROUP) -> KeyRefusal:
    return KeyRefusal(who(manager), group, who(broker), public, NO_PLACE, NOW)


def test_a_refusal_counts_for_who_asked_of_who_manages_and_asking_goes_on() -> None:
    broker = Broker(20)
    broker.take(broker.member.join(NOW))
    public = broker.asks[0].value.public
    member = broker.member
    genuine = sign_value(refusal(public=public), key(MANAGER)).unverified()
    assert member.refused(NOW, genuine) == [KeyRefused(GROUP, NO_PLACE)]
    for other in (refusal(broker=21, public=public), refusal(public=bytes(32)), refusal(public=public, group=PLATES)):
        assert member.refused(NOW, sign_value(other, key(MANAGER)).unverified()) == []
    with refused("keys.untrusted"):
        member.refused(NOW, sign_value(refusal(99, public=public), key(99)).unverified())
    with refused("evolution.wrong-key"):
        member.refused(NOW, replace(genuine, value=refusal(99, public=public)))
    assert broker.take(member.tick(at(5))[0]) == ["ask"]
    world = World(20)
    assert world.brokers[20].member.refused(NOW, genuine) == []


def seeking(world: World, number: int) -> list[SignedValue[KeyRequest]]:
    """Return what a broker asks that has heard of an epoch which it cannot follow; nobody has answered."""
    asks = world.brokers[number].asks
    assert {ask.value.wish for ask in asks} == {KeyWish.PATH}
    return asks


def test_who_was_evicted_is_told_so_and_forgets_its_keys() -> None:
    world = World(20, 21)
    world.pass_time(601)
    world.evict(21)
    broker = world.brokers[21]
    [request] = seeking(world, 21)
    assert (request.value.first, request.value.last) == (3, 3)
    assert not broker.member.evicted
    world.post(21)
    assert (broker.member.evicted, broker.keys, broker.member.epoch, broker.seals) == (True, {}, 0, False)
    # It does not go on asking.
    world.pass_time(60)
    assert broker.asks == []
    world.join(21)
    assert (broker.member.evicted, broker.seals, world.epoch) == (False, True, 4)
    assert world.brokers[20].keys[4] == broker.keys[4]


def refused_while_evicting(world: World, number: int, request: SignedValue[KeyRequest]) -> list[str]:
    """Bring a request to a manager whose operator evicts the broker, and its answer back."""
    with refused("keys.not-member"):
        world.ask(number, request)
    answer = sign_value(world.refusal(request), key(MANAGER))
    return world.brokers[number].take(world.brokers[number].member.refused(world.now, answer.unverified()))


@pytest.mark.parametrize("joins", [False, True], ids=["renews", "joins"])
def test_who_only_renews_its_right_does_not_come_back_after_its_eviction(*, joins: bool) -> None:
    world = World(20, 21)
    broker, ends = world.brokers[21], (at(100), at(200))
    broker.member.until = ends[0]
    evicts = world.manager.evict(world.now, GROUP, who(21))
    if joins:
        broker.take(broker.member.join(at(1), ends[0]))
    world.now = at(2)
    # Also if it does so once more before it is answered.
    for end in (at(150), ends[1]):
        broker.take(broker.member.renew(world.now, end))
    assert refused_while_evicting(world, 21, broker.asks[-1]) == []
    broker.asks.clear()
    # It still has its keys. What it was evicted with is the right that it had before.
    assert (broker.seals, broker.member.evicted, broker.member.until) == (True, not joins, ends[joins])
    world.run(evicts)
    for seconds in (1, 5, 5):
        world.pass_time(seconds)
    assert (world.members() == {20, 21}, broker.seals, broker.member.evicted) == (joins, joins, not joins)


def test_who_follows_an_epoch_was_not_evicted() -> None:
    world = World(20, 21)
    broker = world.brokers[21]
    world.manager.evict(world.now, GROUP, who(21))
    world.now = at(1)
    broker.take(broker.member.renew(world.now, at(100)))
    refused_while_evicting(world, 21, broker.asks.pop())
    assert broker.member.evicted
    # The manager starts again, and its log does not have the eviction.
    world.restart()
    world.rotate()
    assert (broker.keys[2] == world.key(), broker.member.evicted) == (True, False)


def test_who_has_no_key_yet_is_told_that_an_operator_evicts_it() -> None:
    world = World(20, 21)
    world.manager.evict(world.now, GROUP, who(21))
    world.now = at(1)
    broker = world.brokers[21] = Broker(21)
    broker.take(broker.member.join(world.now))
    assert refused_while_evicting(world, 21, broker.asks.pop()) == ["keyrefused"]
    assert not broker.member.evicted
    assert broker.take(broker.member.tick(at(5))[0]) == ["ask"]


def test_that_somebody_was_evicted_is_believed_about_its_last_request_alone() -> None:
    world = World(20, 21)
    world.pass_time(601)
    world.evict(21)
    [first] = seeking(world, 21)
    member = world.brokers[21].member
    later = [one.request for one in member.tick(at(607))[0] if isinstance(one, Ask)]
    genuine = [sign_value(world.refusal(request), key(MANAGER)).unverified() for request in (first, *later)]
    assert member.refused(world.now, genuine[0]) == []
    with refused("keys.untrusted"):
        forged = replace(world.refusal(later[0]), manager=who(99))
        member.refused(world.now, sign_value(forged, key(99)).unverified())
    no_place = sign_value(world.refusal(later[0], NO_PLACE), key(MANAGER)).unverified()
    assert member.refused(world.now, no_place) == []
    assert not world.brokers[21].member.evicted
    assert KeyRefused(GROUP, NOT_MEMBER) in member.refused(world.now, genuine[1])
    assert member.evicted
    # Who has come back since then does not believe what was said before.
    world.join(21)
    assert world.brokers[21].member.refused(world.now, genuine[1]) == []
    assert world.brokers[21].seals


def test_who_is_back_does_not_believe_an_answer_that_comes_late() -> None:
    world = World(20, 21)
    world.evict(21)
    broker = world.brokers[21]
    late = sign_value(world.refusal(seeking(world, 21)[-1]), key(MANAGER)).unverified()
    broker.asks.clear()
    world.join(21)
    assert broker.member.refused(world.now, late) == []
    assert (broker.seals, broker.member.evicted) == (True, False)


def test_a_replica_that_is_behind_does_not_say_who_was_evicted() -> None:
    world = World(20, 21)
    world.evict(21)
    behind = manager(REPLICA)
    catch_up(world.now, behind, world.log)
    asked = seeking(world, 21)[-1].value
    assert behind.was_evicted(asked)
    assert not behind.was_evicted(replace(asked, broker=who(20)))
    world.post(21)
    world.join(21)
    assert not behind.was_evicted(replace(asked, last=world.brokers[21].member.epoch))


def behind_on(world: World, number: int) -> UnverifiedValue[KeyPathAnswer]:
    """Let epochs begin of which a broker hears in a notice alone, and return what a replica says that is behind too."""
    behind = manager(REPLICA)
    catch_up(world.now, behind, world.log)
    deaf(world, number, 2)
    world.now = at(30)
    world.deaf = {number}
    world.run(world.manager.tick(world.now)[0])
    world.deaf = set()
    assert hear(world, number, told(world, world.epoch)[-1]) == ["ask", "hold"]
    (answer,) = behind.path(world.now, world.brokers[number].asks.pop().unverified())
    assert isinstance(answer, Reply)
    assert isinstance(answer.value.value, KeyPathAnswer)
    return cast("UnverifiedValue[KeyPathAnswer]", answer.value.unverified())


def test_a_replica_that_is_behind_is_not_asked_again_at_once() -> None:
    world = World(20, 21)
    answer, broker = behind_on(world, 20), world.brokers[20]
    # As often as it comes, and whoever sends it again: asking goes on when it is time to.
    for _ in range(3):
        assert broker.take(broker.member.receive(world.now, answer)) == []
    world.now = at(35)
    assert broker.take(broker.member.tick(world.now)[0]) == ["ask"]
    world.post(20)
    assert broker.keys[world.epoch] == world.key()
    assert broker.seals


def test_an_old_answer_ends_no_request_to_join() -> None:
    world = World(20, 21)
    answer, broker = behind_on(world, 20), world.brokers[20]
    assert broker.take(broker.member.join(world.now)) == ["ask"]
    broker.asks.clear()
    assert broker.take(broker.member.receive(world.now, answer)) == []
    world.now = at(40)
    assert broker.take(broker.member.tick(world.now)[0]) == ["ask"]
    assert broker.asks[-1].value.wish is KeyWish.JOIN


def test_later_requests_are_not_dated_by_a_clock_that_was_ahead() -> None:
    member = World(20, 21).brokers[20].member

    def asked(seconds: float) -> datetime:
        (ask,) = cast("list[Ask]", member.refresh(at(seconds)))
        return ask.request.value.time

    assert asked(10) == at(10)
    # A manager may have taken that one, and takes none with the same time or an earlier one.
    assert asked(10) == at(10) + datetime.resolution
    assert asked(9) == at(10) + 2 * datetime.resolution
    assert asked(3_600) == at(3_600)
    assert asked(11) == at(11)
