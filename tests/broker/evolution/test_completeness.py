"""When a revocation is complete, and which brokers it waits for."""

from dataclasses import replace
from datetime import datetime, timedelta

from tests.trust.kit import NOW, key, refused, who
from tests.trust.policy_kit import OTHER, OWNER, PERIOD, RIGHTS, at, author, revoke

from penstock.broker.evolution.completeness import BrokerProgress, Completeness, Completion
from penstock.broker.limits import BrokerLimits
from penstock.trust.policy_events import Acknowledgement, TimeStamp
from penstock.trust.policy_state import PolicyAuthor, publish
from penstock.trust.signed import SignedValue, sign_value

ONE, TWO = 31, 32
STAMPER, OTHER_STAMPER = 33, 34
SKEW = timedelta(seconds=2)


class Scene:
    """An owner that published (1), stamped, and revoked (2) five seconds later."""

    def __init__(self, *, stamps: bool = True, limits: BrokerLimits | None = None) -> None:
        self.policy: PolicyAuthor = author()
        self.completeness = Completeness(who(OWNER), skew=SKEW, limits=limits or BrokerLimits())
        self.events = [self.policy.change(NOW, publish(*RIGHTS))]
        if stamps:
            self.completeness.stamped(self.policy.stamp(NOW, PERIOD))
        self.events.append(self.policy.change(at(5), revoke(RIGHTS[0])))
        for event in self.events:
            self.completeness.published(event)

    def ack(self, broker: int, number: int, seconds: float, *, stamped: bool = True, came: float | None = None) -> None:
        head = self.events[number - 1].digest if number else bytes(32)
        value = Acknowledgement(who(broker), who(OWNER), number, head, at(seconds), stamped)
        self.completeness.acknowledged(at(seconds if came is None else came), sign_value(value, key(broker)))

    def of(self, seconds: float, *brokers: int, number: int = 2) -> Completion:
        return self.completeness.of(at(seconds), number, [who(broker) for broker in brokers])

    def progress(self, seconds: float, broker: int) -> tuple[BrokerProgress, datetime | None]:
        (standing,) = self.of(seconds, broker).brokers
        return standing.progress, standing.at


def test_a_revocation_is_complete_when_all_have_acknowledged_it() -> None:
    scene = Scene()
    scene.ack(ONE, 2, 6, came=7)
    assert not scene.of(7, ONE, TWO).complete
    scene.ack(TWO, 1, 6)
    scene.ack(TWO, 2, 8)
    found = scene.of(9, ONE, TWO)
    assert found.complete
    assert found.at == at(8)
    assert {(one.broker, one.progress, one.at) for one in found.brokers} == {
        (who(ONE), BrokerProgress.ACKNOWLEDGED, at(7)),
        (who(TWO), BrokerProgress.ACKNOWLEDGED, at(8)),
    }


def test_a_later_acknowledgement_counts_for_what_came_before() -> None:
    scene = Scene()
    scene.ack(ONE, 2, 6)
    assert scene.of(7, ONE, number=1).complete


def test_a_silent_broker_is_done_when_the_last_stamp_without_it_is_over() -> None:
    scene = Scene()
    scene.ack(ONE, 1, 1)
    # Five seconds until the revocation, ten of the stamp, two between the clocks.
    assert scene.completeness.deadline(2) == at(17)
    assert scene.progress(17, ONE) == (BrokerProgress.WAITING, at(17))
    assert scene.progress(17.1, ONE) == (BrokerProgress.RUN_OUT, at(17))
    assert scene.of(18, ONE).at == at(17)


def test_stamps_after_the_revocation_do_not_delay_it() -> None:
    scene = Scene()
    scene.completeness.stamped(scene.policy.stamp(at(6), PERIOD * 100))
    assert scene.completeness.deadline(2) == at(17)


def test_the_longest_of_the_earlier_periods_counts() -> None:
    scene = Scene(stamps=False)
    policy = author()
    policy.change(NOW, publish(*RIGHTS))
    for seconds, period in ((1, 30_000), (2, 1_000)):
        scene.completeness.stamped(policy.stamp(at(seconds), period))
    assert scene.completeness.deadline(2) == at(5 + 30 + 2)
    # An owner that stamps the old head after the revocation has made a mistake, and it is waited for.
    scene.completeness.stamped(policy.stamp(at(20), 1_000))
    assert scene.completeness.deadline(2) == at(20 + 30 + 2)


class Delegated(Scene):
    """The same, and somebody stamps for the owner: its clock shows three when it stamps the first event."""

    def __init__(self) -> None:
        super().__init__(stamps=False)
        self.completeness.stamped(self.stamp(1, 3))

    def stamp(self, number: int, seconds: float, by: int = STAMPER) -> SignedValue[TimeStamp]:
        value = TimeStamp(who(OWNER), number, self.events[number - 1].digest, at(seconds), PERIOD, who(by))
        return sign_value(value, key(by))


def test_there_is_no_deadline_before_whoever_stamps_has_heard_of_the_event() -> None:
    scene = Delegated()
    scene.ack(ONE, 1, 1)
    # It may go on stamping the event before, on the far side of a cut, for as long as it likes.
    assert scene.progress(10**6, ONE) == (BrokerProgress.WAITING, None)
    scene.completeness.stamped(scene.stamp(1, 40))
    # On its own clock it said at 50 that it enforces the revocation: none of its stamps is later and speaks of less.
    scene.ack(STAMPER, 2, 50, came=60)
    assert scene.progress(62, ONE) == (BrokerProgress.WAITING, at(50 + 10 + 2))
    assert scene.progress(62.1, ONE)[0] is BrokerProgress.RUN_OUT


def test_a_stamp_says_as_much_as_an_acknowledgement() -> None:
    scene = Delegated()
    scene.ack(ONE, 1, 1)
    scene.completeness.stamped(scene.stamp(2, 8))
    scene.completeness.stamped(scene.stamp(2, 18))
    assert scene.completeness.deadline(2) == at(8 + 10 + 2)


def test_of_several_who_stamp_the_last_counts() -> None:
    scene = Delegated()
    scene.ack(ONE, 1, 1)
    scene.completeness.stamped(scene.stamp(2, 8))
    found = scene.completeness.of(at(10**6), 2, [who(ONE)], stampers=[who(OTHER_STAMPER)])
    assert not found.complete
    scene.ack(OTHER_STAMPER, 2, 30)
    # How long its stamps are good is not known before one has come.
    assert scene.completeness.deadline(2) is None
    longer = TimeStamp(who(OWNER), 2, scene.events[1].digest, at(31), 3 * PERIOD, who(OTHER_STAMPER))
    scene.completeness.stamped(sign_value(longer, key(OTHER_STAMPER)))
    assert scene.completeness.deadline(2) == at(30 + 30 + 2)


def test_whoever_lost_the_right_keeps_none_going_that_knows_it() -> None:
    scene = Delegated()
    scene.ack(ONE, 1, 1)
    scene.completeness.stamps_no_longer(2, [who(STAMPER)])
    # It never heard of the second event, and neither did one broker: they may be together.
    assert scene.progress(10**6, ONE) == (BrokerProgress.WAITING, None)
    scene.ack(ONE, 2, 6)
    third = scene.policy.change(at(20))
    scene.completeness.published(third)
    (standing,) = scene.of(21, ONE, number=3).brokers
    assert (standing.progress, standing.at) == (BrokerProgress.WAITING, at(20 + 10 + 2))
    scene.completeness.stamps_again([who(STAMPER)])
    assert scene.completeness.deadline(3, 2) is None


def test_a_broker_that_does_not_go_by_stamps_is_waited_for() -> None:
    scene = Scene()
    scene.ack(ONE, 1, 1, stamped=False)
    assert scene.progress(10**6, ONE) == (BrokerProgress.WAITING, None)
    assert scene.progress(10**6, TWO) == (BrokerProgress.WAITING, None)


def test_without_stamps_nothing_runs_out() -> None:
    scene = Scene(stamps=False)
    scene.ack(ONE, 1, 1)
    assert scene.progress(10**6, ONE) == (BrokerProgress.WAITING, None)


def test_a_broker_whose_rights_ended_is_waited_for_until_its_last_stamp_is_over() -> None:
    scene = Scene()
    scene.ack(ONE, 2, 6)
    scene.ack(TWO, 1, 6)
    stop = scene.completeness.stops(who(TWO), at(5))
    # Ten seconds of the stamp, and two between the clocks twice: of this broker, and of the owner.
    assert stop == at(5 + 10 + 2 * 2)
    found = scene.completeness.of(at(7), 2, [who(ONE)], {who(TWO): stop})
    assert [(one.progress, one.at) for one in found.brokers if one.broker == who(TWO)] == [
        (BrokerProgress.WAITING, stop)
    ]
    assert not found.complete
    assert scene.completeness.of(at(20), 2, [who(ONE)]).complete


def test_a_broker_without_stamps_does_not_stop_by_itself() -> None:
    scene = Scene()
    scene.ack(ONE, 1, 1, stamped=False)
    assert scene.completeness.stops(who(ONE), at(5)) is None
    assert scene.completeness.stops(who(TWO), at(5)) is None
    without = Scene(stamps=False)
    without.ack(ONE, 1, 1)
    assert without.completeness.stops(who(ONE), at(5)) is None


def test_a_broker_that_is_forgotten_takes_no_space() -> None:
    scene = Scene()
    scene.ack(ONE, 2, 6)
    assert scene.completeness.goes_by_stamps(who(ONE))
    scene.completeness.forget(who(ONE))
    assert not scene.completeness.goes_by_stamps(who(ONE))
    assert not [*scene.completeness.statements()]


def test_of_no_brokers_nothing_is_known() -> None:
    assert not Scene().of(10**6).complete


def test_the_last_word_of_a_broker_counts() -> None:
    scene = Scene()
    scene.ack(ONE, 2, 6)
    # It lost what it knew.
    scene.ack(ONE, 0, 8, stamped=False)
    assert scene.progress(9, ONE)[0] is BrokerProgress.WAITING
    # What it said before comes again, from somebody who wants it to be believed.
    scene.ack(ONE, 2, 6, came=9)
    assert scene.progress(10**6, ONE)[0] is BrokerProgress.WAITING
    scene.ack(ONE, 2, 10)
    assert scene.progress(11, ONE) == (BrokerProgress.ACKNOWLEDGED, at(10))
    scene.ack(ONE, 2, 12)
    assert scene.progress(13, ONE) == (BrokerProgress.ACKNOWLEDGED, at(10))


def test_a_broker_that_enforces_another_policy_is_not_counted() -> None:
    scene = Scene()
    other = Acknowledgement(who(ONE), who(OWNER), 2, b"x" * 32, at(6))
    scene.completeness.acknowledged(at(6), sign_value(other, key(ONE)))
    assert scene.progress(10**6, ONE)[0] is BrokerProgress.DIVERGED
    ahead = replace(other, broker=who(TWO), number=3)
    scene.completeness.acknowledged(at(6), sign_value(ahead, key(TWO)))
    # The owner does not know of a third: it may be on another chain.
    assert scene.progress(7, TWO)[0] is BrokerProgress.WAITING
    third = scene.policy.change(at(7))
    scene.completeness.published(third)
    assert scene.progress(10**6, TWO)[0] is BrokerProgress.DIVERGED


def test_only_what_is_about_the_owner_is_taken() -> None:
    scene, other = Scene(), author(OTHER)
    foreign = Acknowledgement(who(ONE), who(OTHER), 0, bytes(32), NOW)
    with refused("evolution.other-owner"):
        scene.completeness.published(other.change(NOW))
    with refused("evolution.other-owner"):
        scene.completeness.stamped(other.stamp(NOW, PERIOD))
    with refused("evolution.other-owner"):
        scene.completeness.acknowledged(NOW, sign_value(foreign, key(ONE)))
    with refused("evolution.unknown-number"):
        scene.of(1, ONE, number=3)


def test_what_is_remembered_is_bounded() -> None:
    scene = Scene(limits=BrokerLimits(network_brokers=1, policy_acknowledgements=1, cache_entries=3))
    scene.ack(ONE, 1, 1)
    with refused("evolution.limit"):
        scene.ack(TWO, 1, 1)
    scene.ack(ONE, 2, 6)
    assert scene.progress(7, ONE) == (BrokerProgress.ACKNOWLEDGED, at(6))
    deadline = scene.completeness.deadline(2)
    for _ in range(10):
        scene.policy.change(at(20))
        scene.completeness.stamped(scene.policy.stamp(at(20), PERIOD * 10))
    found = scene.completeness.deadline(2)
    assert deadline is not None
    assert found is not None
    # Forgetting makes a deadline later, never earlier.
    assert found >= deadline


def test_a_word_is_signed_before_it_is_taken() -> None:
    signed: SignedValue[Acknowledgement] = sign_value(
        Acknowledgement(who(ONE), who(OWNER), 0, bytes(32), NOW), key(ONE)
    )
    assert signed.unverified().verify() == signed
