"""Keys of epochs that a member has missed: they come with its path, of the time in which it was to have them."""

from tests.broker.key_kit import (
    GROUP,
    MANAGER,
    REPLICA,
    SECOND,
    Broker,
    World,
    carry_out,
    catch_up,
    grounds,
    joining,
    manager,
    right,
)
from tests.broker.keys.test_member import deaf, hear, told
from tests.trust.kit import DAY, NOW, key, refused, who

from penstock.broker.keys.manager import Reply
from penstock.broker.keys.member import Opened
from penstock.broker.keys.sealing import open_missed
from penstock.broker.limits import BrokerLimits
from penstock.crypto.seal_keys import label_scope
from penstock.crypto.wrapping import Secret
from penstock.trust.key_statements import KeyGroup, KeyPathAnswer, KeyRequest, KeyWish
from penstock.trust.signed import sign_value
from penstock.trust.validity import Validity


def missed(world: World, number: int, first: int = 1) -> dict[int, Secret]:
    """Return the keys that a manager gives to a member which says that it has none from some epoch on."""
    world.now += SECOND
    request = KeyRequest(KeyWish.PATH, who(number), world.group, world.now, first)
    (reply,) = world.manager.path(world.now, sign_value(request, key(number)).unverified())
    assert isinstance(reply, Reply)
    answer, holder = reply.value.value, world.manager._state(world.group).members[who(number)]
    assert isinstance(answer, KeyPathAnswer)
    if not answer.missed:
        return {}
    keys = open_missed(holder.leaf, answer.missed, answer.salt, world.group, answer.word.epoch)
    return dict(enumerate(keys, answer.word.epoch - len(keys)))


def test_they_open_what_has_come_and_are_forgotten_like_others() -> None:
    world = World(20, 21)
    deaf(world, 20, 3)
    hear(world, 20, *told(world, 4))
    broker = world.brokers[20]
    (ask,) = broker.asks
    assert (ask.value.wish, ask.value.first) == (KeyWish.PATH, 2)
    world.post(20)
    # All of them, in their order; the newest is sealed under.
    assert [*broker.keys.items()] == [*world.brokers[21].keys.items()]
    assert broker.member.epoch == 4
    world.pass_time(world.limits.key_grace / 1000)
    assert {*broker.keys} == {4}


def test_an_answer_that_comes_twice_or_late_brings_nothing_back() -> None:
    world = World(20, 21)
    deaf(world, 20, 2)
    hear(world, 20, *told(world, 3))
    world.post(20)
    answer = world.replies[-1].value
    world.pass_time(world.limits.key_grace / 1000)
    member = world.brokers[20].member
    assert member.receive(world.now, answer.unverified()) == []
    world.rotate()
    assert member.receive(world.now, answer.unverified()) == []
    assert {*world.brokers[20].keys} == {3, 4}


def test_an_answer_that_comes_late_brings_only_what_is_still_missed() -> None:
    world = World(20, 21)
    deaf(world, 20, 2)
    broker = world.brokers[20]
    broker.take(broker.member.wanted(world.now, 2))
    (answer,) = world.ask(20, broker.asks.pop())
    assert isinstance(answer, Reply)
    # It was asked for both, and hears of one by itself.
    hear(world, 20, *told(world, 2))
    said = broker.member.receive(world.now, answer.value.unverified())
    assert [output.epoch for output in said if isinstance(output, Opened)] == [3]


def test_who_has_its_right_renewed_has_been_there_all_the_while() -> None:
    world = World(20)
    world.rotate()
    world.now += SECOND
    world.join(20, right(20, validity=Validity.between(NOW - SECOND, NOW + 9 * DAY)))
    assert world.manager._state(GROUP).members[who(20)].until == NOW + 9 * DAY
    assert [*missed(world, 20)] == [1]


def test_nobody_gets_keys_of_epochs_from_before_it_came() -> None:
    world = World(20)
    world.rotate()
    world.now += SECOND
    world.join(21)
    came = world.epoch
    for _ in range(2):
        world.rotate()
    assert [*missed(world, 21)] == [*range(came, world.epoch)]
    assert [*missed(world, 20)] == [*range(1, world.epoch)]
    assert missed(world, 20)[came] == world.brokers[20].had[came]


def test_who_was_evicted_and_is_back_gets_none_of_the_time_between() -> None:
    world = World(20, 21)
    world.evict(20)
    with refused("keys.not-member"):
        missed(world, 20)
    world.rotate()
    world.now += SECOND
    world.brokers[20] = Broker(20)
    world.join(20)
    back = world.epoch
    world.rotate()
    assert [*missed(world, 20)] == [back]


def test_since_when_somebody_is_a_member_outlasts_restarts_and_checkpoints() -> None:
    world = World(20)
    world.rotate()
    world.now += SECOND
    world.join(21)
    came = world.epoch
    world.rotate()
    world.run(world.manager.condense(world.now))
    assert world.log.first
    world.restart()
    world.now += SECOND
    assert [*missed(world, 21)] == [came]
    assert [*missed(world, 20)] == [*range(1, world.epoch)]


def test_they_are_the_last_ones_and_not_too_many_and_none_that_were_forgotten() -> None:
    world = World(20, limits=BrokerLimits(key_waiting=3))
    for _ in range(5):
        world.now += SECOND
        world.rotate()
    assert [*missed(world, 20)] == [3, 4, 5]
    assert [*missed(world, 20, 5)] == [5]
    assert missed(world, 20, 6) == {}
    # Brokers of before do not ask.
    assert missed(world, 20, 0) == {}
    world.run(world.manager.condense(world.now, world.now))
    assert missed(world, 20) == {}


def test_labels_do_not_come_with_a_path() -> None:
    labels = KeyGroup(GROUP.type, labels=True)
    assert labels.scope == label_scope(GROUP.type)
    world = World(20, group=labels)
    for _ in range(2):
        world.pass_time(world.limits.label_overlap / 1000 + 1)
        world.run(world.manager.rotate(world.now, labels))
    assert world.epoch > 1
    assert missed(world, 20) == {}


def test_who_was_welcomed_before_its_eviction_joins_again() -> None:
    world = World(20, 21)
    world.deaf = {21}
    world.evict(21)
    # Another replica, which was behind, has answered this request.
    request = joining(21, world.now + SECOND)
    carry_out(world.now, world.manager, world.log, world.manager.join(world.now, request, grounds(21, right(21))))
    assert world.members() == {20, 21}
    world.deaf = set()
    world.pass_time(2)
    world.rotate()
    world.pass_time(10)
    world.pass_time(10)
    assert world.brokers[21].keys[world.epoch] == world.key()


def test_who_was_welcomed_before_its_eviction_and_dismissed_after_it_joins_again_when_it_is_admitted() -> None:
    world, behind = World(20, 21), manager(REPLICA)
    catch_up(world.now, behind, world.log)
    broker, old = world.brokers[21], world.replies[-1].value.unverified()
    world.deaf = {21}
    world.evict(21)
    world.now += SECOND
    broker.take(broker.member.join(world.now))
    (request,) = (ask.unverified() for ask in broker.asks)
    broker.asks.clear()
    # A replica that has not read the eviction answers first, and then one that has not read the admission.
    (early,) = behind.join(world.now, request, grounds(21, right(21), now=world.now))
    assert isinstance(early, Reply)
    broker.take(broker.member.receive(world.now, early.value.unverified()))
    hear(world, 21, *told(world, 2))
    (path,) = broker.asks
    refusal = sign_value(world.refusal(path), key(MANAGER)).unverified()
    assert broker.take(broker.member.refused(world.now, refusal))[0] == "forgetkey"
    assert broker.member.evicted
    broker.asks.clear()
    # A copy of a welcome from before says nothing.
    for copy in (old, early.value.unverified()):
        with refused("keys.unopened"):
            broker.member.receive(world.now, copy)
    world.deaf = set()
    world.run(world.manager.join(world.now, request, grounds(21, right(21), now=world.now)))
    assert [ask.value.wish for ask in broker.asks] == [KeyWish.JOIN]
    world.pass_time(1)
    assert broker.keys[world.epoch] == world.key()


def test_who_waits_for_a_later_epoch_takes_no_welcome_of_an_earlier_one() -> None:
    world, behind = World(20, 21), manager(REPLICA)
    catch_up(world.now, behind, world.log)
    broker = world.brokers[21]
    world.deaf = {21}
    world.evict(21)
    again = joining(21, world.now + SECOND)
    carry_out(world.now, world.manager, world.log, world.manager.join(world.now, again, grounds(21, right(21))))
    world.rotate()
    world.now += 5 * SECOND
    hear(world, 21, *told(world, world.epoch))
    rounds = 0
    while broker.asks and rounds < 20:
        rounds += 1
        world.now += SECOND / 100
        asked = broker.asks.pop(0)
        # The replica that is behind is nearer.
        if asked.value.wish is KeyWish.JOIN:
            (welcome,) = behind.join(world.now, asked.unverified(), grounds(21, right(21), now=world.now))
            assert isinstance(welcome, Reply)
            assert broker.take(broker.member.receive(world.now, welcome.value.unverified())) == []
        world.run(world.ask(21, asked))
    assert rounds == 2
    assert broker.keys[world.epoch] == world.key()
