"""The One-way Function Tree: it works, it is cheap, and two who should know nothing find a key together."""

from random import Random

from tests.crypto.key_kit import GROUP, Listening, Secrets
from tests.crypto.oft import Broadcast, OneWayView, UnsafeOneWayTree, blinded, mixed
from tests.trust.kit import refused

from penstock.crypto.key_tree import KeyPath
from penstock.crypto.wrapping import Secret

SALT = bytes(16)


class Group:
    """A tree whose members hear everything."""

    def __init__(self, size: int) -> None:
        self.fresh = Secrets(1)
        self.tree: UnsafeOneWayTree[int] = UnsafeOneWayTree()
        self.views: dict[int, OneWayView] = {}
        for member in range(size):
            self.join(member)

    def join(self, member: int) -> Broadcast:
        told = self.tree.join(member, self.fresh(), self.fresh(), self.fresh().expose()[:16])
        for view in self.views.values():
            view.follow(told)
        self.views[member] = self.tree.view(member)
        return told

    def leave(self, member: int) -> Broadcast:
        told = self.tree.leave(member, self.fresh(), self.fresh().expose()[:16])
        del self.views[member]
        for view in self.views.values():
            view.follow(told)
        return told


def test_members_find_the_key_after_any_changes() -> None:
    group, random = Group(9), Random(1)  # noqa: S311  # the same secrets each time
    for step in range(60):
        if random.random() < 0.5:
            group.join(100 + step)
        elif len(group.tree) > 1:
            group.leave(random.choice([*group.views]))
        assert {view.key() for view in group.views.values()} == {group.tree.key()}


def test_a_change_costs_a_wrapped_key_a_level() -> None:
    group = Group(64)
    assert group.leave(5).wrapped <= 7
    assert group.join(100).wrapped <= 9


def test_an_empty_group_has_no_key() -> None:
    group = Group(1)
    group.leave(0)
    with refused("keys.unopened"):
        group.tree.key()


def test_who_left_alone_does_not_follow() -> None:
    group = Group(4)
    old = group.tree.view(2)
    old.follow(group.tree.leave(2, group.fresh(), SALT))
    assert group.tree.key() not in {*old.keys()}


def collude(evict: int) -> tuple[Secret, set[Secret], Secret]:
    """Evict one, then let one join. Return the key between, what the two have each alone, and what they have together.

    The evicted one still has the blinded key of the other half, and the joiner that of the evicted one's half.
    """
    group = Group(6)
    group.leave(0)
    evicted = group.tree.view(evict)
    group.leave(evict)
    between = group.tree.key()
    group.join(99)
    joined = group.tree.view(99)
    alone = {*evicted.keys(), *joined.keys()}
    return between, alone, mixed(evicted.siblings[-1][1], joined.siblings[-1][1])


def test_an_evicted_member_and_a_later_joiner_find_a_key_that_neither_may_know() -> None:
    # These three are one half of the tree, and the larger one, so that the joiner comes into the other.
    for evict in (1, 3, 5):
        between, alone, together = collude(evict)
        assert between not in alone
        assert together == between


def test_the_same_two_find_nothing_in_a_logical_key_hierarchy() -> None:
    """All that the two ever hold, all that is ever said, and every way to combine it that the trees have."""
    group = Listening(4)
    gone = group.members[0]
    evicted = group.paths[gone]
    group.change(0, (gone,))
    root, key = group.tree._root, group.tree.key()
    group.change(1)
    joined = group.paths[group.members[-1]]
    known = {evicted.leaf, *evicted._above.values(), joined.leaf, *joined._above.values()}
    known |= {mixed(blinded(one), other) for one in known for other in known} | {
        mixed(a, b) for a in known for b in known
    }
    assert root not in known
    assert key not in known
    for path in (evicted, KeyPath(GROUP, joined.place, joined.leaf, joined._above)):
        with refused("keys.unopened"):
            path.follow(group.heard[1])
