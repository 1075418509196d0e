"""Updates and heartbeats: chains, gaps, forks, copies, and clocks that are wrong."""

from datetime import datetime, timedelta

import pytest
from tests.authority.decisions.kit import NOW, OTHER, PDP, PEP, POLICY

from penstock.authority.decisions.messages import PolicyRevision
from penstock.authority.decisions.updates import (
    FollowResult,
    PolicyHeartbeat,
    PolicyUpdate,
    ResourceChange,
    UpdateAuthor,
    UpdateFollower,
    UpdateResult,
    read_update,
)
from penstock.authority.limits import ANSWER_BYTES, UPDATE_CHANGES
from penstock.errors import LimitError, MalformedError, RefusedError
from penstock.trust.signed import SignedValue, sign_value

START = NOW.timestamp()
EVERYTHING = [ResourceChange()]


def revision(number: int, policy: str = POLICY.id) -> PolicyRevision:
    return PolicyRevision(policy, str(number), NOW)


class Following:
    """An author, a follower, and a clock that both use."""

    def __init__(self, max_age: float = 5) -> None:
        self.author = UpdateAuthor(PDP, NOW, [revision(0)])
        self.follower = UpdateFollower(max_age)
        self.seconds = 0.0

    def update(self, number: int) -> SignedValue[PolicyUpdate]:
        return self.author.update(self.now, POLICY.id, revision(number), EVERYTHING)

    @property
    def now(self) -> datetime:
        return NOW + timedelta(seconds=self.seconds)

    def beat(self) -> SignedValue[PolicyHeartbeat]:
        return self.author.heartbeat(self.now)

    def hear(self, beat: SignedValue[PolicyHeartbeat] | None = None) -> FollowResult:
        return self.follower.take_heartbeat(beat or self.beat(), START + self.seconds, self.seconds)

    def fresh(self) -> bool:
        return self.follower.is_fresh(START + self.seconds, self.seconds)


def test_a_heartbeat_joins_and_updates_follow() -> None:
    both = Following()
    assert not both.fresh()
    assert both.hear() is FollowResult.JOIN
    assert both.fresh()
    assert both.follower.revisions == {POLICY.id: "0"}
    first = both.update(1)
    assert both.follower.take_update(first) is FollowResult.NEXT
    assert both.follower.revisions == {POLICY.id: "1"}
    assert both.follower.take_update(first) is FollowResult.NOTHING
    assert both.hear() is FollowResult.NOTHING
    removed = both.author.update(both.now, POLICY.id, None, EVERYTHING)
    assert both.follower.take_update(removed) is FollowResult.NEXT
    assert both.follower.revisions == {}
    assert both.hear() is FollowResult.NOTHING


def test_a_point_without_heartbeats_is_not_used() -> None:
    both = Following()
    both.hear()
    both.seconds = 4.999
    assert both.fresh()
    both.seconds = 5
    assert not both.fresh()
    assert both.hear() is FollowResult.NOTHING
    assert both.fresh()


def test_updates_before_a_heartbeat_are_ignored() -> None:
    both = Following()
    assert both.follower.take_update(both.update(1)) is FollowResult.NOTHING
    assert both.hear() is FollowResult.JOIN
    assert both.follower.revisions == {POLICY.id: "1"}


def test_a_gap_is_noticed_by_the_next_update_or_heartbeat() -> None:
    both = Following()
    both.hear()
    both.update(1)
    late = both.update(2)
    assert both.follower.take_update(late) is FollowResult.LOST
    assert not both.fresh()
    assert both.follower.take_update(both.update(3)) is FollowResult.NOTHING
    assert both.hear() is FollowResult.JOIN
    assert both.follower.revisions == {POLICY.id: "3"}
    both.update(4)
    assert both.hear() is FollowResult.JOIN
    assert both.follower.revisions == {POLICY.id: "4"}


def test_copies_of_heartbeats_do_not_extend_anything() -> None:
    both = Following()
    beat = both.beat()
    assert both.hear(beat) is FollowResult.JOIN
    both.seconds = 3
    both.hear(beat)
    both.seconds = 5
    assert not both.fresh()
    assert both.hear(beat) is FollowResult.NOTHING
    assert not both.fresh()


def test_a_heartbeat_that_was_held_back_does_not_count() -> None:
    both = Following()
    both.hear()
    both.seconds = 1
    held = both.beat()
    both.seconds = 6
    both.hear(held)
    assert not both.fresh()


def test_a_heartbeat_before_the_last_update_does_not_count() -> None:
    both = Following()
    both.hear()
    both.seconds = 1
    old = both.beat()
    both.follower.take_update(both.update(1))
    assert both.hear(old) is FollowResult.NOTHING
    both.seconds = 5
    assert not both.fresh()


def test_two_updates_with_one_number_end_the_chain() -> None:
    both = Following()
    twin = UpdateAuthor(PDP, NOW, [revision(0)])
    both.hear()
    assert both.follower.take_update(both.update(1)) is FollowResult.NEXT
    assert both.follower.take_update(twin.update(NOW, POLICY.id, revision(2), EVERYTHING)) is FollowResult.LOST
    assert not both.fresh()
    both.seconds = 1
    assert both.hear() is FollowResult.NOTHING
    assert not both.fresh()
    both.author = UpdateAuthor(PDP, both.now, [revision(3)])
    assert both.hear() is FollowResult.JOIN
    assert both.fresh()


def test_heartbeats_with_another_head_end_the_chain() -> None:
    both = Following()
    twin = UpdateAuthor(PDP, NOW, [revision(0)])
    both.hear()
    both.follower.take_update(both.update(1))
    twin.update(NOW, POLICY.id, revision(2), EVERYTHING)
    both.seconds = 1
    assert both.hear(twin.heartbeat(both.now)) is FollowResult.LOST
    assert not both.fresh()


def test_an_update_that_follows_another_one_ends_the_chain() -> None:
    both = Following()
    twin = UpdateAuthor(PDP, NOW, [revision(0)])
    both.hear()
    both.follower.take_update(both.update(1))
    twin.update(NOW, POLICY.id, revision(5), EVERYTHING)
    assert both.follower.take_update(twin.update(NOW, POLICY.id, revision(6), EVERYTHING)) is FollowResult.LOST


def test_a_restarted_point_begins_another_chain() -> None:
    both = Following()
    both.hear()
    both.follower.take_update(both.update(1))
    both.seconds = 2
    old, both.author = both.author, UpdateAuthor(PDP, both.now, [revision(7)])
    assert both.follower.take_update(both.update(8)) is FollowResult.NOTHING
    assert both.hear() is FollowResult.JOIN
    both.seconds = 3
    assert both.hear(old.heartbeat(both.now)) is FollowResult.NOTHING
    assert both.follower.revisions == {POLICY.id: "8"}


def test_other_revisions_than_expected_are_followed() -> None:
    both = Following()
    both.hear()
    both.seconds = 1
    odd = PolicyHeartbeat(PDP.principal, NOW, 0, bytes(32), both.now, (revision(9),))
    assert both.hear(sign_value(odd, PDP)) is FollowResult.JOIN


# --- clocks -----------------------------------------------------------------------------------------------------------


def test_a_stopped_clock_does_not_extend_a_heartbeat() -> None:
    both = Following()
    both.hear()
    assert both.follower.is_fresh(START, 4.9)
    assert not both.follower.is_fresh(START, 5.0)


def test_a_clock_that_goes_back_does_not_extend_a_heartbeat() -> None:
    both = Following()
    both.hear()
    assert not both.follower.is_fresh(START - 3_600, 5.0)


def test_a_clock_that_jumps_ahead_stops_it() -> None:
    both = Following()
    both.hear()
    assert not both.follower.is_fresh(START + 3_600, 0.1)


def test_a_heartbeat_from_the_future_does_not_count() -> None:
    both = Following()
    both.seconds = 5.1
    beat = both.beat()
    assert both.follower.take_heartbeat(beat, START, 0) is FollowResult.NOTHING
    assert not both.follower.is_fresh(START, 0)


def test_the_dates_of_an_author_do_not_go_back() -> None:
    author = UpdateAuthor(PDP, NOW, [revision(0)])
    first, second = author.heartbeat(NOW), author.heartbeat(NOW - timedelta(hours=1))
    assert first.value.time < second.value.time
    assert author.update(NOW - timedelta(days=1), "p", revision(1, "p"), ()).value.time == second.value.time


# --- statements -------------------------------------------------------------------------------------------------------


def test_statements_are_read_as_they_were_written() -> None:
    author = UpdateAuthor(PDP, NOW, [revision(0)])
    result = UpdateResult(PEP.principal, PDP.principal, bytes(32), NOW, 1, 2)
    update = author.update(NOW, POLICY.id, revision(1), EVERYTHING)
    for signed in (update, author.heartbeat(NOW), sign_value(result, PEP)):
        assert read_update(signed.to_bytes()).verify().value == signed.value


def test_replaced_policies_have_an_update_each() -> None:
    author = UpdateAuthor(PDP, NOW, [revision(0, "a"), revision(0, "b"), revision(0, "c")])
    signed = author.replace(NOW, [revision(0, "a"), revision(1, "b"), revision(0, "d")], EVERYTHING)
    found = [(one.value.policy, one.value.before, one.value.after) for one in signed]
    assert found == [("b", "0", "1"), ("c", "0", None), ("d", None, "0")]
    assert author.heartbeat(NOW).value.revisions == {"a": "0", "b": "1", "d": "0"}


def test_forged_and_spoiled_statements_are_refused() -> None:
    author = UpdateAuthor(PDP, NOW, [revision(0)])
    data = author.heartbeat(NOW).to_bytes()
    with pytest.raises(RefusedError):
        sign_value(author.heartbeat(NOW).value, OTHER)
    for place in range(0, len(data), 7):
        spoiled = bytearray(data)
        spoiled[place] ^= 1
        with pytest.raises((MalformedError, RefusedError, LimitError)):
            read_update(bytes(spoiled)).verify()
    with pytest.raises(LimitError):
        read_update(bytes(ANSWER_BYTES + 1))


@pytest.mark.parametrize(
    "changed",
    [
        {"number": 2},
        {"previous": bytes([1]) * 32},
        {"before": "1"},
        {"number": 0},
        {"changes": (ResourceChange(),) * (UPDATE_CHANGES + 1)},
    ],
)
def test_impossible_updates_are_refused(changed: dict[str, object]) -> None:
    values = {
        "point": PDP.principal, "began": NOW, "number": 1, "previous": bytes(32), "time": NOW, "policy": "p",
        "changes": (), "before": "0", "after": "1", **changed,
    }  # fmt: skip
    with pytest.raises((MalformedError, LimitError)):
        sign_value(PolicyUpdate(**values), PDP)  # type: ignore[arg-type]  # by name


def test_impossible_heartbeats_are_refused() -> None:
    for number, head, policies in (
        (0, bytes([1]) * 32, ()),
        (1, bytes(32), ()),
        (0, bytes(32), (revision(0), revision(1))),
        (0, bytes(32), tuple(revision(0, str(one)) for one in range(300))),
    ):
        with pytest.raises(MalformedError):
            sign_value(PolicyHeartbeat(PDP.principal, NOW, number, head, NOW, policies), PDP)
