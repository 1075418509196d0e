"""Time-stamps that a broker signs by itself."""

from datetime import datetime, timedelta

from tests.trust.kit import NOW, key, who
from tests.trust.policy_kit import BROKER, OTHER, OWNER, at

from penstock.broker.evolution.policy_keeper import StampIssuer, StampSettings
from penstock.trust.policy_events import BEGINNING

SKEW = timedelta(seconds=1)
Head = tuple[int, bytes] | None


class Scene:
    """A broker that stamps for an owner every ten seconds, good for thirty."""

    def __init__(self, *, begins: bool = True, for_whom: int = OWNER) -> None:
        self.head: Head = (0, BEGINNING)
        self.owner = who(for_whom)
        self.issuer = StampIssuer(key(BROKER), StampSettings(begins=begins), lambda _owner: self.head, SKEW)

    def change(self, number: int) -> None:
        self.head = number, bytes([number % 256]) * 32

    def due(self, seconds: float) -> list[int]:
        signed, self.turn = self.issuer.due(at(seconds), frozenset([self.owner]))
        self.signed = [stamp.unverified().verify().value for stamp in signed]
        return [stamp.number for stamp in self.signed]


def test_a_stamp_is_signed_every_so_often() -> None:
    scene = Scene()
    assert scene.due(0) == [0]
    (stamp,) = scene.signed
    assert (stamp.owner, stamp.signer, stamp.head, stamp.time) == (who(OWNER), who(BROKER), BEGINNING, NOW)
    assert stamp.until == at(30)
    assert scene.turn == at(10)
    assert scene.due(9.9) == []
    assert scene.turn == at(10)
    assert scene.due(10) == [0]


def test_an_owner_that_is_a_broker_signs_its_own() -> None:
    scene = Scene(for_whom=BROKER)
    scene.due(0)
    assert scene.signed[0].by is None


def test_a_change_is_stamped_immediately() -> None:
    scene = Scene()
    scene.due(0)
    scene.change(1)
    assert scene.due(5) == [1]
    assert scene.due(5.1) == []


def test_many_changes_are_stamped_once_a_second_and_put_nothing_off() -> None:
    scene = Scene()
    stamped: list[tuple[float, int]] = []
    for step in range(400):
        scene.change(step + 1)
        stamped += [(step / 10, number) for number in scene.due(step / 10)]
    times = [time for time, _ in stamped]
    assert times == [float(second) for second in range(40)]
    # Each one speaks of the last change before it.
    assert [number for _, number in stamped] == [10 * second + 1 for second in range(40)]


def test_nothing_is_signed_while_more_is_known_than_is_enforced() -> None:
    scene = Scene()
    scene.due(0)
    scene.head = None
    assert scene.due(100) == []


def test_a_broker_that_has_lost_what_it_knew_waits_until_it_has_heard_of_the_owner() -> None:
    scene = Scene(begins=False)
    assert scene.due(0) == []
    assert scene.issuer.waits(scene.owner)
    scene.change(7)
    assert scene.due(1) == []
    scene.issuer.heard(scene.owner)
    assert scene.due(2) == [7]


def test_time_does_not_go_back_after_a_restart() -> None:
    before, scene = Scene(), Scene()
    before.due(5)
    scene.issuer.stamped(before.signed[0])
    assert scene.due(4.5) == []
    scene.change(1)
    assert scene.due(5.5) == []
    assert scene.due(6) == [1]


def test_the_stamps_of_others_put_nothing_off() -> None:
    scene, other = Scene(), StampIssuer(key(OTHER), StampSettings(), lambda _owner: (0, BEGINNING), SKEW)
    (signed,), _ = other.due(at(3), frozenset([who(OWNER)]))
    scene.issuer.stamped(signed.value)
    assert scene.due(3) == [0]


def test_a_clock_that_was_two_hours_ahead_and_is_set_right_signs_again() -> None:
    scene = Scene()
    assert scene.due(7200) == [0]
    assert scene.due(1) == [0]
    (stamp,) = scene.signed
    assert stamp.time == at(1)


def test_what_is_asked_for_is_the_next_turn_of_all_owners() -> None:
    scene = Scene()
    turn: datetime | None
    _, turn = scene.issuer.due(NOW, frozenset())
    assert turn is None
