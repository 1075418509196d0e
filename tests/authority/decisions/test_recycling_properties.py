"""A recycled answer is the decision point's own, whatever is asked and however policies change in between."""

from collections.abc import Callable
from dataclasses import replace
from itertools import product

import pytest
from tests.authority.decisions.recycling_worlds import DENY, AttributeWorld, LabelWorld, RoleWorld, World, drive

from penstock.authority.decisions import recycling
from penstock.authority.decisions.questions import AccessQuestion
from penstock.authority.decisions.recycling import Recycler
from penstock.authority.decisions.updates import PolicyChange, RolePermissionChange
from penstock.authority.limits import AuthorityLimits

WORLDS = [RoleWorld, LabelWorld, AttributeWorld]


@pytest.mark.parametrize("kind", WORLDS)
@pytest.mark.parametrize("seed", range(12))
def test_recycled_answers_are_those_of_the_point_and_all_that_follow(kind: Callable[[int], World], seed: int) -> None:
    assert drive(kind(seed), Recycler(), 150) > 0


@pytest.mark.parametrize("kind", WORLDS)
@pytest.mark.parametrize("seed", range(3))
def test_the_same_with_room_for_few(kind: Callable[[int], World], seed: int) -> None:
    recycler = Recycler(limits=AuthorityLimits(recycling_entries=20, recycling_labels=8))
    assert drive(kind(seed), recycler, 200) > 0
    assert len(recycler) <= 20


# --- planted faults: with a rule that is wrong, the same tests fail ---------------------------------------------------


def some_role_is_enough(patch: pytest.MonkeyPatch) -> None:
    """A question is permitted if it shares a role with a remainder, instead of containing it."""
    original = recycling._Permission._allow

    def allow(permission: recycling._Permission, entry: recycling._Entry) -> None:
        original(permission, entry)
        for place in permission._remainders.values():
            for remainder, recycled in list(place):
                place.append((frozenset({min(remainder)}), recycled))

    patch.setattr(recycling._Permission, "_allow", allow)


def one_denied_role_denies(patch: pytest.MonkeyPatch) -> None:
    """A question is denied if any of its roles is denied."""
    answering = recycling._Permission.answer

    def answer(permission: recycling._Permission, question: AccessQuestion) -> recycling.Recycled | None:
        roles = recycling._roles(question, permission.attribute) or frozenset()
        if any(role in permission._denied for role in roles):
            return recycling.Recycled(DENY, recycling.RecyclingRule.DENIED_ROLES, lambda: ((), ()), ())
        return answering(permission, question)

    patch.setattr(recycling._Permission, "answer", answer)


def withdrawn_permissions_stay(patch: pytest.MonkeyPatch) -> None:
    """Removing a permission from a role drops the denials with it, and granting it drops the permits."""
    original = recycling._affects

    def affects(change: PolicyChange, entry: recycling._Entry) -> bool:
        if isinstance(change, RolePermissionChange):
            change = replace(change, granted=not change.granted)
        return original(change, entry)

    patch.setattr(recycling, "_affects", affects)


def changes_drop_nothing(patch: pytest.MonkeyPatch) -> None:
    """Changes of resources drop no answers."""
    patch.setattr(recycling, "_affects", lambda _change, _entry: False)


def a_denied_read_gives_the_reverse(patch: pytest.MonkeyPatch) -> None:
    """From ¬(s ≥ o) follows o ≥ s, as if labels were totally ordered."""
    original = recycling._Order._not_greater

    def not_greater(order: recycling._Order, x: int, y: int, entry: recycling._Entry | None) -> None:
        original(order, x, y, entry)
        if entry is not None:
            order._greater(y, x, entry)

    patch.setattr(recycling._Order, "_not_greater", not_greater)


def a_denied_write_negates_both(patch: pytest.MonkeyPatch) -> None:
    """From a denied write follow both negations."""

    def differing(order: recycling._Order, x: int, y: int, entry: recycling._Entry) -> None:
        order._not_greater(x, y, entry)
        order._not_greater(y, x, entry)

    patch.setattr(recycling._Order, "_differing", differing)


def a_write_needs_one_direction(patch: pytest.MonkeyPatch) -> None:
    """A permitted append says s ≥ o."""
    original = recycling._Order.learn

    def learn(order: recycling._Order, entry: recycling._Entry, mode: recycling._Mode) -> None:
        original(order, entry, recycling._Mode.READ if mode is recycling._Mode.APPEND else mode)

    patch.setattr(recycling._Order, "learn", learn)


def negations_go_up(patch: pytest.MonkeyPatch) -> None:
    """From ¬(x ≥ y) and x' ≥ x follows ¬(x' ≥ y)."""
    original = recycling._Order._not_greater

    def not_greater(order: recycling._Order, x: int, y: int, entry: recycling._Entry | None) -> None:
        order.below, order.above = order.above, order.below
        try:
            original(order, x, y, entry)
        finally:
            order.below, order.above = order.above, order.below

    patch.setattr(recycling._Order, "_not_greater", not_greater)


def the_matrix_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    """A path permits although a discretionary part decides too."""
    original = recycling._Order.learn

    def learn(order: recycling._Order, entry: recycling._Entry, mode: recycling._Mode) -> None:
        original(order, entry, mode)
        order.discretionary = 0

    patch.setattr(recycling._Order, "learn", learn)


def sets_contain_everything_bound(patch: pytest.MonkeyPatch) -> None:
    """A set is taken for larger than it is."""
    patch.setattr(recycling, "_compiled", lambda _selector: lambda _question: True)
    patch.setattr(recycling, "bound_values", lambda _selector: {})


def changes_look_at_the_question_alone(patch: pytest.MonkeyPatch) -> None:
    """A change drops an answer if it concerns its question, whatever set it holds for."""
    original = recycling._affects

    def affects(change: PolicyChange, entry: recycling._Entry) -> bool:
        known, entry.request_set = entry.request_set, None
        try:
            return original(change, entry)
        finally:
            entry.request_set = known

    patch.setattr(recycling, "_affects", affects)


@pytest.mark.parametrize(
    ("kind", "fault"),
    [
        (RoleWorld, some_role_is_enough),
        (RoleWorld, one_denied_role_denies),
        (RoleWorld, withdrawn_permissions_stay),
        (RoleWorld, changes_drop_nothing),
        (LabelWorld, a_denied_read_gives_the_reverse),
        (LabelWorld, a_denied_write_negates_both),
        (LabelWorld, a_write_needs_one_direction),
        (LabelWorld, negations_go_up),
        (LabelWorld, the_matrix_is_forgotten),
        (LabelWorld, changes_drop_nothing),
        (AttributeWorld, sets_contain_everything_bound),
        (AttributeWorld, changes_look_at_the_question_alone),
        (AttributeWorld, changes_drop_nothing),
    ],
)
def test_a_wrong_rule_is_found(
    kind: Callable[[int], World], fault: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def run() -> None:
        for seed, changes in product(range(20), (0.02, 0.1)):
            drive(kind(seed), Recycler(), 150, changes=changes, complete=False)

    fault(monkeypatch)
    with pytest.raises(AssertionError):
        run()
