"""The logical key hierarchy: all members find the key, nobody else does, and it costs little."""

from dataclasses import replace
from math import ceil, log2
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tests.budget import examples
from tests.crypto.key_kit import GROUP, Listening, Secrets
from tests.trust.kit import refused

from penstock.crypto.key_tree import KeyPath, KeyTree, Rekey, above, handle
from penstock.crypto.wrapping import Secret, unwrap

# What members find.


def test_members_find_the_key_of_every_epoch() -> None:
    group = Listening()
    for size in range(1, 20):
        group.change(1)
        assert len(group.paths) == size
        assert {path.key(group.tree.epoch) for path in group.paths.values()} == {group.tree.key()}


def test_a_member_knows_no_more_than_its_path() -> None:
    group = Listening(1000)
    assert max(map(len, group.paths.values())) == 1 + ceil(log2(1000))
    for name, path in group.paths.items():
        assert path.to_bytes() == group.tree.path(name).to_bytes()


def test_a_group_without_members_has_a_key_that_nobody_has() -> None:
    group = Listening(2)
    before, (one, other) = group.paths, group.members
    group.change(0, (one, other))
    for path in before.values():
        with refused("keys.unopened"):
            path.follow(group.heard[-1])
    assert len(group.tree) == 0
    assert group.tree.key() not in {path.key(group.tree.epoch) for path in before.values()}
    group.change(1)
    assert [path.key(3) for path in group.paths.values()] == [group.tree.key()]


def test_before_the_first_epoch_there_is_no_key() -> None:
    with refused("keys.unopened"):
        KeyTree(GROUP).key()
    with refused("keys.unopened"):
        KeyPath(GROUP, 0, Secrets()(), {}).key(0)


def test_who_was_evicted_finds_nothing() -> None:
    group = Listening(9)
    gone = group.members[4]
    old = group.paths[gone]
    rekey = group.change(0, (gone,))
    with refused("keys.unopened"):
        old.follow(rekey)


def test_who_missed_an_epoch_notices() -> None:
    group = Listening(4)
    (path,) = (path for path in group.paths.values() if path.place == 4)
    (beside,) = (name for name, other in group.paths.items() if other.place == 5)
    group.change(0, (beside,))
    group.change()
    with refused("keys.unopened"):
        path.follow(group.heard[-1])


def test_a_path_is_written_and_read_and_nothing_else() -> None:
    group = Listening(5)
    path = next(iter(group.paths.values()))
    written = path.to_bytes()
    assert KeyPath.from_bytes(GROUP, path.leaf, written).key(1) == group.tree.key()
    for other in (written[:-1], written + b"x", b"", bytes(8), written[8:]):
        with refused("keys.unopened"):
            KeyPath.from_bytes(GROUP, path.leaf, other)


def test_the_same_seeds_give_the_same_tree() -> None:
    assert Listening(7, seed=3).heard == Listening(7, seed=3).heard
    assert Listening(7, seed=3).heard != Listening(7, seed=4).heard


@pytest.mark.parametrize("part", ["salt", "check", "group", "epoch", "boxes"])
def test_a_rekey_that_was_changed_gives_no_key(part: str) -> None:
    group = Listening(4)
    old = group.paths
    rekey = group.change(0, ())
    changes: dict[str, dict[str, object]] = {
        "salt": {"salt": bytes(16)},
        "check": {"check": bytes(16)},
        "group": {"group": b"other"},
        "epoch": {"epoch": 7},
        "boxes": {"renewed": ()},
    }
    for path in old.values():
        with refused("keys.unopened"):
            path.follow(replace(rekey, **changes[part]))  # type: ignore[arg-type]  # one of several fields


def test_nothing_shows_a_secret() -> None:
    group = Listening(4)
    shown = repr((group.heard, group.paths, group.tree, next(iter(group.paths.values())).leaf))
    for secret in (group.tree.key(), *(path.leaf for path in group.paths.values())):
        assert repr(secret.expose())[2:-1] not in shown
        assert secret.expose().hex() not in shown


# What it costs.


def bound(size: int) -> float:
    return 2 * log2(size) + 2


@pytest.mark.parametrize("size", [*range(2, 40), 63, 64, 65])
def test_whoever_leaves_a_group_costs_no_more_than_two_paths(size: int) -> None:
    for at in range(size):
        tree, leaves = KeyTree(GROUP), Secrets().several(size)
        tree.rekey(Secrets(1)(), leaves)
        assert tree.rekey(Secrets(2)(), (), [handle(leaves[at])]).wrapped <= min(bound(size), 2 * ceil(log2(size)))


@pytest.mark.parametrize("seed", [1, 2])
def test_wrapped_keys_for_a_change_under_churn_up_to_ten_thousand_members(seed: int) -> None:
    random, fresh = Random(seed), Secrets(seed)  # noqa: S311  # the same secrets each time
    tree, leaves = KeyTree(GROUP), fresh.several(10_000)
    assert tree.rekey(fresh(), leaves).wrapped < 10_000
    members = [handle(leaf) for leaf in leaves]
    for shrink in (2, 10, 100, 100, 10, 2):
        for _ in range(60):
            if random.random() < 0.5:
                leaf = fresh()
                cost, size = tree.rekey(fresh(), [leaf]).wrapped, len(tree)
                members.append(handle(leaf))
            else:
                at = random.randrange(len(members))
                members[at], members[-1] = members[-1], members[at]
                size, cost = len(tree), tree.rekey(fresh(), (), [members.pop()]).wrapped
            assert cost <= bound(size)
        kept = max(len(members) // shrink, 20)
        tree.rekey(fresh(), (), members[kept:])
        del members[kept:]


@pytest.mark.parametrize(("joins", "leaves"), [(20, 0), (0, 20), (20, 20), (5, 15)])
def test_a_batch_is_cheaper_than_its_changes_one_by_one(joins: int, leaves: int) -> None:
    batch, single = Listening(100, seed=1), Listening(100, seed=1)
    gone = tuple(batch.members[::4][:leaves])
    together = batch.change(joins, gone).wrapped
    alone = sum(single.change(0, (name,)).wrapped for name in gone) + sum(
        single.change(1).wrapped for _ in range(joins)
    )
    assert together < alone / 2


# Who finds what: a set of secrets, closed under all that was ever sent.


def sent(tree: KeyTree, rekey: Rekey) -> list[tuple[Secret, Secret]]:
    """Return which secret gives which: everything that a rekey makes possible, and whether it does."""
    found = []
    for step in rekey.renewed:
        new = tree._secret(step.node)
        for child, box in step.boxes:
            context = (GROUP, *(number.to_bytes(8, "big") for number in (rekey.epoch, step.node, child)))
            assert unwrap(tree._secret(child), box, rekey.salt, *context) == new.expose()
            found.append((tree._secret(child), new))
        if step.heir:
            found.append((tree._secret(step.heir), new))
    return found


def closure(known: set[Secret], gives: dict[Secret, list[Secret]]) -> set[Secret]:
    waiting = [*known]
    while waiting:
        for new in gives.get(waiting.pop(), []):
            if new not in known:
                known.add(new)
                waiting.append(new)
    return known


class Groups(RuleBasedStateMachine):
    """Any joins, leaves and batches; a coalition of everybody who is not a member of an epoch never finds its root."""

    def __init__(self) -> None:
        super().__init__()
        self.fresh = Secrets(7)
        self.tree = KeyTree(GROUP)
        self.leaves: dict[bytes, Secret] = {}
        self.paths: dict[bytes, KeyPath] = {}
        self.gives: dict[Secret, list[Secret]] = {}
        #: for each member that ever was: all that it ever knew, apart from what it could derive from messages
        self.knew: dict[bytes, set[Secret]] = {}
        self.roots: list[tuple[Secret, frozenset[bytes]]] = []

    @initialize(size=st.integers(1, 9))
    def begin(self, size: int) -> None:
        self.change(size, [])

    @rule(joins=st.integers(0, 4), leaves=st.lists(st.integers(0, 30), max_size=4))
    def change(self, joins: int, leaves: list[int]) -> None:
        members = [*self.leaves]
        gone = {members[at % len(members)] for at in leaves} if members else set()
        new = {handle(leaf): leaf for leaf in self.fresh.several(joins)}
        rekey = self.tree.rekey(self.fresh(), new.values(), sorted(gone))
        for below, found in sent(self.tree, rekey):
            self.gives.setdefault(below, []).append(found)
        self.leaves = {name: leaf for name, leaf in self.leaves.items() if name not in gone} | new
        paths = {name: path for name, path in self.paths.items() if name not in gone}
        self.paths = {name: path.follow(rekey) for name, path in paths.items()}
        # Who joins either hears the broadcast or receives its path; the result is the same.
        for name, leaf in new.items():
            self.paths[name] = KeyPath(GROUP, 0, leaf, {}).follow(rekey)
            assert self.paths[name].to_bytes() == self.tree.path(name).to_bytes()
        for name, path in self.paths.items():
            self.knew.setdefault(name, set()).update((path.leaf, *path._above.values()))
        if self.leaves:
            self.roots.append((self.tree._root, frozenset(self.leaves)))

    @invariant()
    def all_members_have_the_key(self) -> None:
        for path in self.paths.values():
            assert path.key(self.tree.epoch) == self.tree.key()

    def teardown(self) -> None:
        for root, members in self.roots:
            outside = [knew for name, knew in self.knew.items() if name not in members]
            assert root not in closure(set().union(*outside), self.gives)
            # The closure is real: each member finds it from its leaf and what was sent.
            assert all(root in closure({*self.knew[name]}, self.gives) for name in members)


TestGroups = Groups.TestCase
TestGroups.settings = settings(max_examples=examples(60), stateful_step_count=15, deadline=None)


@given(st.integers(2, 60), st.data())
@settings(max_examples=examples(60), deadline=None)
def test_each_secret_is_known_to_those_below_it_alone(size: int, data: st.DataObject) -> None:
    """The invariant of the module: after any change no one who left, and no old path, holds a secret in use."""
    group = Listening(size)
    old: list[KeyPath] = []
    for _ in range(3):
        old += group.paths.values()
        gone = data.draw(st.lists(st.sampled_from(group.members), max_size=3, unique=True)) if group.paths else []
        group.change(data.draw(st.integers(0, 3)), tuple(gone))
    for path in old:
        place = group.tree._places.place.get(handle(path.leaf))
        entitled = {group.tree._inner[node] for node in above(place)} if place else set()
        assert set(path._above.values()) & set(group.tree._inner.values()) <= entitled
