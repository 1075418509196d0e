"""Policy evolution at one broker: what it applies, what it acknowledges, and when it stops."""

from dataclasses import replace
from datetime import timedelta

import pytest
from tests.broker.policy_node import PolicyNode, names
from tests.trust.kit import NOW, key, refused, who
from tests.trust.policy_kit import (
    BROKER,
    NEIGHBOUR,
    OTHER,
    OWNER,
    PERIOD,
    RIGHTS,
    SECOND,
    TYPES,
    at,
    author,
    install,
    remove,
    revoke,
)
from tests.trust.types_kit import PLATE

from penstock.broker.evolution.policy_keeper import Acknowledge, Changed, Forked, Reason, Resubscribe, Stale
from penstock.broker.limits import BrokerLimits
from penstock.model.types import TypeDefinition
from penstock.trust.certificates import UnverifiedCertificate
from penstock.trust.credentials import Credentials, UnverifiedCredentials
from penstock.trust.policy_events import (
    BEGINNING,
    CarriedStamp,
    HopStamp,
    PolicyEvent,
    PublishCertificates,
    RequireStamps,
    TimeStamp,
)
from penstock.trust.policy_state import PolicyAuthor, publish
from penstock.trust.signed import SignedValue, sign_value


def published(node: PolicyNode) -> set[str]:
    return {certificate.id for certificate in node.keeper.credentials()}


# What is applied.


def test_what_an_owner_publishes_is_applied_and_acknowledged() -> None:
    node, policy = PolicyNode(), author()
    assert names(node.event(policy.change(NOW, publish(RIGHTS[0]), install()))) == ["changed 1", "ack 1"]
    changed, acknowledge = node.said
    assert isinstance(changed, Changed)
    assert isinstance(acknowledge, Acknowledge)
    assert [one.definition for one in changed.installed] == [PLATE]
    assert changed.state == policy.state
    ack = acknowledge.acknowledgement.unverified().verify().value
    assert (ack.broker, ack.owner, ack.number, ack.head) == (who(BROKER), who(OWNER), 1, policy.head)
    assert published(node) == {RIGHTS[0].id}
    assert node.delivers()


def test_events_come_in_any_order_and_more_than_once() -> None:
    node, policy = PolicyNode(), author()
    events = [policy.change(NOW, publish(right)) for right in RIGHTS[:3]]
    assert names(node.event(events[2])) == ["behind", "resubscribe"]
    assert not node.delivers()
    assert names(node.event(events[1], events[2])) == []
    assert names(node.event(events[0])) == ["changed 3", "ack 3", "fresh"]
    assert node.state == policy.state
    assert node.delivers()
    assert names(node.event(*events)) == []


def test_revoked_rights_do_not_come_back_with_old_events() -> None:
    node, policy = PolicyNode(), author()
    events = [policy.change(NOW, publish(*RIGHTS)), policy.change(NOW, revoke(RIGHTS[0]))]
    node.event(*events, events[0], events[0])
    node.event(*policy.checkpoint(NOW), *events)
    assert RIGHTS[0].id not in published(node)
    bag = Credentials.of(*RIGHTS)
    assert node.keeper.revocations().strike(bag, who(OWNER)) == Credentials.of(*RIGHTS[1:])


def test_types_are_replaced_by_removing_and_installing() -> None:
    node, policy = PolicyNode(), author()
    node.event(policy.change(NOW, install(TYPES[0]), install(TYPES[1])))
    wider = TypeDefinition(PLATE.name, PLATE.attributes[:1])
    changed = node.event(policy.change(NOW, install(wider), remove(TYPES[1].name)))[0]
    assert isinstance(changed, Changed)
    assert [one.definition for one in changed.installed] == [wider]
    assert set(changed.removed) == {PLATE.name, TYPES[1].name}


def test_a_checkpoint_needs_nothing_before_it() -> None:
    policy = author()
    for right in RIGHTS:
        policy.change(NOW, publish(right))
    policy.change(NOW, revoke(RIGHTS[0]))
    (checkpoint,), after = policy.checkpoint(NOW), policy.change(NOW, install())
    late = PolicyNode()
    assert names(late.event(after)) == ["behind", "resubscribe"]
    assert names(late.event(checkpoint)) == ["changed 9", "ack 9", "fresh"]
    assert late.state == policy.state
    assert [event.value.number for event in late.keeper.log(who(OWNER))] == [8, 9]


def test_nothing_of_a_checkpoint_holds_before_all_of_it_is_there() -> None:
    node, policy = PolicyNode(), author()
    node.event(policy.change(NOW, publish(RIGHTS[0])))
    parts = [policy.change(NOW, revoke(RIGHTS[1]), checkpoint=2), policy.change(NOW), policy.change(NOW, install())]
    assert names(node.event(parts[0], parts[2])) == ["behind", "resubscribe"]
    assert published(node) == {RIGHTS[0].id}
    assert names(node.event(parts[1])) == ["changed 4", "ack 4", "fresh"]
    assert published(node) == set()
    late = PolicyNode()
    assert names(late.event(*reversed(parts)))[-3:] == ["changed 4", "ack 4", "fresh"]
    assert late.state == node.state == policy.state


def test_owners_do_not_mix() -> None:
    node, one, other = PolicyNode(), author(OWNER), author(OTHER)
    node.event(one.change(NOW, publish(RIGHTS[0])), other.change(NOW, revoke(RIGHTS[0])))
    assert published(node) == {RIGHTS[0].id}
    assert set(node.keeper.owners()) == {who(OWNER), who(OTHER)}


def test_only_the_owner_changes_its_policy() -> None:
    node = PolicyNode()
    signed = author().change(NOW, publish(*RIGHTS))
    forged = SignedValue(signed.value, signed.digest, signed.body, key(OTHER).public, signed.signature)
    with refused("evolution.wrong-key"):
        node.event(forged)
    assert not list(node.keeper.owners())


def test_nothing_is_acknowledged_before_it_is_enforced() -> None:
    node, policy = PolicyNode(enforces=False), author()
    assert names(node.event(policy.change(NOW, publish(RIGHTS[0])))) == ["changed 1"]
    assert not node.delivers()
    # Whoever drives it has failed to enforce the change.
    assert names(node.tick()) == ["behind", "resubscribe"]
    assert names(node.keeper.enforced(NOW, who(OWNER), 1)) == ["ack 1", "fresh"]
    assert node.delivers()
    assert node.keeper.enforced(NOW, who(OTHER), 1) == []
    node.event(policy.change(NOW), policy.change(NOW))
    assert names(node.keeper.enforced(NOW, who(OWNER), 2))[0] == "ack 2"
    assert not node.delivers()
    assert names(node.keeper.enforced(NOW, who(OWNER), 99)) == ["ack 3", "fresh"]


def test_what_is_enforced_in_part_is_delivered_by_and_not_acknowledged() -> None:
    node, policy = PolicyNode(enforces=False), author()
    node.event(policy.change(NOW, publish(RIGHTS[0])))
    assert names(node.keeper.enforced(NOW, who(OWNER), 1)) == ["ack 1"]
    node.event(policy.change(NOW))
    # A type of it could not be installed: all else holds.
    assert names(node.keeper.enforced(NOW, who(OWNER), 2, whole=False)) == []
    assert node.delivers()
    # Nor is it acknowledged on another occasion.
    assert names(node.stamp(policy.stamp(NOW, 10_000))) == ["ack 1 stamped"]
    assert names(node.keeper.enforced(NOW, who(OWNER), 2)) == ["ack 2 stamped"]


def test_an_event_that_nobody_can_apply_leaves_the_broker_behind() -> None:
    spoilt = UnverifiedCertificate(RIGHTS[0].statement, RIGHTS[0].to_sexps()[0], key(OWNER).public, bytes(64), b"")
    bad = PolicyEvent(who(OWNER), 1, BEGINNING, NOW, (PublishCertificates(UnverifiedCredentials((spoilt,))),))
    signed = sign_value(bad, key(OWNER))
    node = PolicyNode()
    assert names(node.event(signed)) == ["unusable 1 key.bad-signature", "behind", "resubscribe"]
    assert not node.delivers()
    past = PolicyEvent(who(OWNER), 2, signed.digest, NOW, (), checkpoint=0)
    assert names(node.event(sign_value(past, key(OWNER)))) == ["changed 2", "ack 2", "fresh"]


def test_a_log_has_a_bound_that_a_checkpoint_resets() -> None:
    node, policy = PolicyNode(limits=BrokerLimits(policy_log_bytes=2_000)), author()
    events = [policy.change(NOW, publish(right)) for right in RIGHTS]
    said = names(node.event(*events))
    assert any(word.startswith("unusable") and word.endswith("evolution.limit") for word in said)
    assert not node.delivers()
    assert names(node.event(policy.change(NOW, checkpoint=0)))[-1] == "fresh"


def test_what_waits_has_a_bound() -> None:
    node, policy = PolicyNode(limits=BrokerLimits(policy_pending_bytes=2_000)), author()
    events = [policy.change(NOW, publish(right)) for right in RIGHTS * 4]
    node.event(*reversed(events[1:]))
    assert names(node.event(events[0]))[0] != f"changed {len(events)}"
    assert not node.delivers()
    node.event(*events)
    assert node.delivers()
    assert node.state == policy.state


def test_owners_are_bounded() -> None:
    node = PolicyNode(limits=BrokerLimits(policy_owners=1))
    node.event(author(OWNER).change(NOW))
    with refused("evolution.owners"):
        node.event(author(OTHER).change(NOW))
    node.keeper.forget(who(OWNER))
    node.event(author(OTHER).change(NOW))


# Time-stamps.


def test_a_strict_broker_says_so_of_an_owner_from_the_beginning() -> None:
    assert PolicyNode().keeper.follow(NOW, who(OWNER)) == []
    strict = PolicyNode(strict=True, limits=BrokerLimits(policy_owners=1)).keeper
    assert strict.follow(NOW, who(OWNER)) == [Stale(who(OWNER), Reason.UNSTAMPED), Resubscribe(who(OWNER))]
    assert strict.follow(NOW, who(OWNER)) == []
    # Nor is one delivered whose policy there is no room for.
    assert strict.follow(NOW, who(BROKER)) == [Stale(who(BROKER), Reason.UNSTAMPED)]


def test_an_owner_without_stamps_is_delivered_unless_the_operator_is_strict() -> None:
    event = author().change(NOW)
    for strict in (False, True):
        node = PolicyNode(strict=strict)
        assert node.delivers() is not strict
        node.event(event)
        assert node.delivers() is not strict
        assert node.delivers(at(10**6)) is not strict


def test_a_broker_behind_the_head_stops() -> None:
    node, policy = PolicyNode(), author()
    node.event(policy.change(NOW))
    missed = policy.change(NOW, revoke(RIGHTS[0]))
    assert names(node.stamp(policy.stamp(NOW, PERIOD))) == ["ack 1 stamped", "behind", "resubscribe"]
    assert not node.delivers()
    assert names(node.event(missed)) == ["changed 2", "ack 2 stamped", "fresh"]
    assert node.delivers()


def test_a_broker_without_a_newer_stamp_stops() -> None:
    node, policy = PolicyNode(), author()
    node.event(policy.change(NOW))
    node.stamp(policy.stamp(NOW, PERIOD))
    assert node.delivers(at(10))
    assert not node.delivers(at(10.000001))
    _, turn = node.keeper.tick(NOW)
    assert turn == at(10) + timedelta.resolution
    assert node.keeper.turns() == turn
    assert names(node.tick(at(10))) == []
    assert names(node.tick(turn)) == ["silent", "resubscribe"]
    _, again = node.keeper.tick(turn)
    assert again == turn + 5 * SECOND
    assert names(node.tick(turn + SECOND)) == []
    assert names(node.tick(again)) == ["resubscribe"]
    node.now = at(16)
    assert names(node.stamp(policy.stamp(at(16), PERIOD))) == ["fresh"]
    assert node.delivers()


def test_old_stamps_do_not_keep_a_broker_going() -> None:
    node, policy = PolicyNode(), author()
    node.event(policy.change(NOW))
    old = policy.stamp(NOW, PERIOD)
    node.now = at(5)
    node.stamp(policy.stamp(at(5), PERIOD))
    node.stamp(old)
    assert node.delivers(at(15))
    node.now = at(16)
    node.stamp(old)
    assert not node.delivers()


def test_stamps_that_are_required_have_to_be_there() -> None:
    node, policy = PolicyNode(), author()
    event = policy.change(NOW, RequireStamps())
    assert names(node.event(event)) == ["changed 1", "ack 1 stamped", "unstamped", "resubscribe"]
    assert not node.delivers()
    node.stamp(policy.stamp(NOW, PERIOD))
    assert node.delivers()


def test_a_stamp_from_the_future_is_refused() -> None:
    policy = author()
    stamp = policy.stamp(at(3), PERIOD)
    with refused("evolution.future"):
        PolicyNode().stamp(stamp)
    with refused("evolution.future"):
        PolicyNode(skew=2 * SECOND).stamp(stamp)
    PolicyNode(skew=3 * SECOND).stamp(stamp)


def test_stamps_are_signed_from_hop_to_hop() -> None:
    near, far, policy = PolicyNode(BROKER, trusted={NEIGHBOUR}), PolicyNode(NEIGHBOUR, trusted={BROKER}), author()
    assert near.keeper.hand_on(NOW, who(OWNER), who(NEIGHBOUR)) is None
    near.stamp(policy.stamp(NOW, PERIOD))
    carried = near.keeper.hand_on(NOW, who(OWNER), who(NEIGHBOUR))
    assert carried is not None
    far.hear(BROKER, carried)
    assert far.keeper.hand_on(NOW, who(OWNER), who(BROKER)) is not None
    near.trusted.clear()
    assert near.keeper.hand_on(NOW, who(OWNER), who(NEIGHBOUR)) is None


def hop(stamp: SignedValue[TimeStamp], sender: int, receiver: int, digest: bytes | None = None) -> CarriedStamp:
    said = sign_value(HopStamp(digest or stamp.digest, who(sender), who(receiver), NOW), key(sender))
    return CarriedStamp(stamp.unverified(), said.unverified())


def test_a_stamp_is_taken_only_from_a_trusted_neighbour_that_signed_it_for_this_broker() -> None:
    node, stamp = PolicyNode(trusted={NEIGHBOUR}), author().stamp(NOW, PERIOD)
    with refused("evolution.untrusted"):
        node.hear(OTHER, hop(stamp, OTHER, BROKER))
    wrong = (
        CarriedStamp(stamp.unverified()),
        hop(stamp, OTHER, BROKER),
        hop(stamp, NEIGHBOUR, OTHER),
        hop(stamp, NEIGHBOUR, BROKER, bytes(32)),
    )
    for carried in wrong:
        with refused("evolution.not-for-us"):
            node.hear(NEIGHBOUR, carried)
    assert not list(node.keeper.owners())
    node.hear(NEIGHBOUR, hop(stamp, NEIGHBOUR, BROKER))


# Stamps that others sign for the owner.

DELEGATE, SECOND_DELEGATE = 41, 42


def by(
    policy: PolicyAuthor, seconds: float = 0, delegate: int = DELEGATE, head: bytes | None = None
) -> SignedValue[TimeStamp]:
    """Return a stamp of the author's head that somebody else has signed."""
    value = TimeStamp(who(OWNER), policy.number, head or policy.head, at(seconds), PERIOD, who(delegate))
    return sign_value(value, key(delegate))


def test_a_stamp_of_whoever_may_sign_for_the_owner_is_as_good_as_its_own() -> None:
    node, policy = PolicyNode(strict=True, stampers={DELEGATE}, now=at(6)), author()
    assert not node.delivers()
    node.stamp(by(policy))
    assert node.delivers()
    assert not node.delivers(at(10.1))
    policy.change(NOW)
    assert names(node.stamp(by(policy, 1)))[0] == "behind"


def test_a_stamp_whose_signer_is_not_known_yet_waits_and_says_nothing() -> None:
    node, policy = PolicyNode(), author()
    node.event(policy.change(NOW, publish(RIGHTS[0])))
    policy.change(NOW)
    assert names(node.stamp(by(policy))) == []
    # It neither raises the number nor makes anybody wait for stamps.
    assert node.delivers()
    assert node.keeper.known(who(OWNER)) == 1
    assert node.keeper.stamps(who(OWNER)) == []
    node.stampers.add(DELEGATE)
    assert names(node.weigh()) == ["ack 1 stamped", "behind", "resubscribe"]
    assert node.keeper.known(who(OWNER)) == 2
    assert not node.delivers()


def test_the_stamps_of_a_signer_who_lost_the_right_count_no_longer() -> None:
    node, policy = PolicyNode(stampers={DELEGATE, SECOND_DELEGATE}, trusted={NEIGHBOUR}, now=at(6)), author()
    node.event(policy.change(NOW))
    ahead = replace(by(policy, 1).value, number=9, head=b"x" * 32)
    node.stamp(by(policy, 0, SECOND_DELEGATE))
    assert names(node.stamp(sign_value(ahead, key(DELEGATE))))[0] == "behind"
    node.stampers = {SECOND_DELEGATE}
    # What it claimed goes with it: another one still says that all is well.
    assert names(node.weigh()) == ["fresh"]
    assert node.keeper.hand_on(NOW, who(OWNER), who(NEIGHBOUR), who(DELEGATE)) is None
    assert node.keeper.hand_on(NOW, who(OWNER), who(NEIGHBOUR), who(SECOND_DELEGATE)) is not None
    node.stampers = set()
    assert names(node.weigh())[0] == "unstamped"
    assert not node.delivers()


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_signer_who_names_another_head_makes_no_fork_and_does_not_count(order: tuple[int, int]) -> None:
    node, policy = PolicyNode(strict=True, stampers={DELEGATE}, now=at(6)), author()
    event = policy.change(NOW, publish(RIGHTS[0]))
    false = by(policy, head=b"x" * 32)
    for i in order:
        node.event(event) if i else node.stamp(false)
    assert "forked" not in names(node.said)
    assert not node.delivers()
    assert names(node.stamp(by(policy, 1)))[-1] == "fresh"


def test_of_several_signers_each_says_what_it_knows() -> None:
    node, policy = PolicyNode(stampers={DELEGATE, SECOND_DELEGATE}, now=at(6)), author()
    node.event(policy.change(NOW))
    first = by(policy, 5)
    policy.change(NOW)
    # The clock of the second is behind, and it knows more.
    node.stamp(first)
    assert names(node.stamp(by(policy, 1, SECOND_DELEGATE)))[0] == "behind"
    node.stamp(by(author(), 6))
    assert not node.delivers()


def test_after_a_restart_stamps_are_needed_though_their_signer_is_not_known_yet() -> None:
    node, policy = PolicyNode(stampers={DELEGATE}), author()
    node.event(policy.change(NOW))
    node.stamp(by(policy))
    again = PolicyNode(now=at(1))
    assert "unstamped" in names(again.restore(node.keeper.snapshot(NOW, who(OWNER))))
    assert not again.delivers()
    again.stampers.add(DELEGATE)
    assert names(again.weigh()) == ["fresh"]
    assert again.delivers()


def test_a_stamp_is_for_the_key_that_it_names() -> None:
    policy = author()
    forged = replace(by(policy).unverified(), key=key(SECOND_DELEGATE).public)
    with refused("evolution.wrong-key"):
        PolicyNode(stampers={DELEGATE, SECOND_DELEGATE}).keeper.stamp(NOW, who(OWNER), CarriedStamp(forged))


def test_strangers_who_sign_stamps_push_out_nobody_who_may() -> None:
    node, policy = (
        PolicyNode(strict=True, stampers={DELEGATE}, now=at(6), limits=BrokerLimits(policy_stampers=2)),
        author(),
    )
    node.stamp(by(policy))
    for stranger in range(50, 60):
        node.stamp(by(policy, 1, stranger))
    assert node.delivers()
    node.stampers = {DELEGATE, 59}
    node.weigh()
    with refused("evolution.stampers"):
        node.stamp(by(policy, 2, 60))


def test_a_stamp_from_a_clock_that_was_ahead_is_forgotten_when_it_is_set_right() -> None:
    node, policy = PolicyNode(strict=True, now=at(7200)), author()
    node.stamp(policy.stamp(at(7200), PERIOD))
    assert node.delivers()
    node.tick(at(1))
    assert not node.delivers()
    assert names(node.stamp(author().stamp(at(1), PERIOD)))[-1] == "fresh"


# Forks.


def twins() -> tuple[SignedValue[PolicyEvent], SignedValue[PolicyEvent]]:
    return author().change(NOW, publish(RIGHTS[0])), author().change(NOW, publish(RIGHTS[1]))


def test_two_events_with_one_number_are_a_fork() -> None:
    node, (one, other) = PolicyNode(), twins()
    node.event(one)
    assert names(node.event(other)) == ["fork 1", "forked"]
    forked = node.said[-2]
    assert isinstance(forked, Forked)
    assert set(forked.fork.events) == {one, other}
    assert not node.delivers()
    assert published(node) == set()
    # Nothing helps but an operator who has settled it.
    assert names(node.event(one, other)) == []
    assert names(node.tick(at(3600))) == []
    assert node.keeper.tick(node.now)[1] is None
    node.keeper.forget(who(OWNER))
    assert node.delivers()


def later(previous: SignedValue[PolicyEvent], number: int) -> SignedValue[PolicyEvent]:
    return sign_value(PolicyEvent(who(OWNER), number, previous.digest, NOW, ()), key(OWNER))


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_an_event_on_top_of_another_one_is_a_fork(order: tuple[int, int]) -> None:
    one, other = twins()
    events = (one, later(other, 2))
    node = PolicyNode()
    node.event(*(events[i] for i in order))
    assert "forked" in names(node.said)
    assert not node.delivers()


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_stamp_with_another_head_is_a_fork(order: tuple[int, int]) -> None:
    one, other = author(), author()
    event, _ = one.change(NOW, publish(RIGHTS[0])), other.change(NOW)
    stamp = other.stamp(NOW, PERIOD)
    node = PolicyNode()
    for i in order:
        node.event(event) if i else node.stamp(stamp)
    assert "forked" in names(node.said)
    assert not node.delivers()
    node.stamp(one.stamp(NOW, PERIOD))
    assert not node.delivers()
    again = PolicyNode()
    again.restore(node.keeper.snapshot(NOW, who(OWNER)))
    assert "forked" in names(again.said)


def test_two_that_wait_are_a_fork_too() -> None:
    one, other = twins()
    node = PolicyNode()
    node.event(later(one, 5))
    assert names(node.event(later(other, 5)))[0] == "fork 5"


def test_nobody_hands_on_the_stamps_of_an_owner_who_forked() -> None:
    node, policy = PolicyNode(trusted={NEIGHBOUR}), author()
    node.stamp(policy.stamp(NOW, PERIOD))
    node.event(*twins())
    assert node.keeper.hand_on(NOW, who(OWNER), who(NEIGHBOUR)) is None


# Snapshots.


def test_a_broker_goes_on_from_its_snapshot() -> None:
    node, policy = PolicyNode(), author()
    node.event(policy.change(NOW, publish(*RIGHTS), install()), policy.change(NOW, revoke(RIGHTS[0])))
    node.stamp(policy.stamp(NOW, PERIOD))
    again = PolicyNode(now=at(1))
    said = names(again.restore(node.keeper.snapshot(NOW, who(OWNER))))
    assert said[0] == "changed 2"
    assert said[-1] == "ack 2 stamped"
    assert again.state == node.state
    assert again.delivers()
    assert not again.delivers(at(11))
    assert again.keeper.snapshot(NOW, who(OWNER)) == node.keeper.snapshot(NOW, who(OWNER))


def test_a_gap_and_a_fork_are_not_forgotten() -> None:
    policy = author()
    first, second = policy.change(NOW), policy.change(NOW)
    gap = PolicyNode()
    gap.event(second)
    again = PolicyNode()
    again.restore(gap.keeper.snapshot(NOW, who(OWNER)))
    assert not again.delivers()
    again.event(first)
    assert again.delivers()
    for one, other in (twins(), (first, later(twins()[0], 2)), (later(first, 5), later(second, 5))):
        forked = PolicyNode()
        forked.event(one, other)
        restored = PolicyNode()
        restored.restore(forked.keeper.snapshot(NOW, who(OWNER)))
        assert "forked" in names(restored.said)


def test_the_snapshot_of_an_unknown_owner_holds_nothing() -> None:
    node = PolicyNode()
    assert node.restore(node.keeper.snapshot(NOW, who(OWNER))) == []
