"""The One-way Function Tree of the paper (section 7.6.1; Sherman and McGrew, 2003). For comparison, and unsafe.

No other module imports it: it is here so that its tests can carry out the attack that the logical key hierarchy
withstands (docs/explanation/key-groups.md).

The key of a node is a function of its children's keys, blinded: key = f(g(left) ⊕ g(right)). A member knows its own
leaf key and the blinded keys of the siblings along its path, and computes everything above. A change makes the keys
along one path new, and sends each of them, blinded, to the sibling: ⌈log2 n⌉ + 1 wrapped keys or so.

**Do not use it.** A blinded key that somebody knew when leaving stays in use until something changes below it, and one
that somebody gets when joining was in use before. So one who was evicted and one who joined later can together compute
group keys of epochs in which neither was a member; the tests of this module do (Horng, 2002). `key_tree` gives each new
key nothing to do with what was there before, and does not fall to it.
"""

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from penstock.crypto.wrapping import SECRET_BYTES, Secret, unopened, unwrap, wrap

M = TypeVar("M", bound=Hashable)


def blinded(key: Secret) -> Secret:
    """Return the blinded key that siblings receive: g."""
    return key.derive(b"oft-blind")


def mixed(one: Secret, other: Secret) -> Secret:
    """Return the key of a node from the blinded keys of its children: f(x ⊕ y)."""
    octets = int.from_bytes(one.expose(), "big") ^ int.from_bytes(other.expose(), "big")
    return Secret(octets.to_bytes(SECRET_BYTES, "big")).derive(b"oft-mix")


@dataclass(frozen=True, slots=True)
class Broadcast:
    """The message to members about a change: a leaf that moved, one that joined beside it or is gone, and wrapped keys.

    `boxes` hold the new blinded key of a node, for whoever is below its sibling; `leaf` the new key of a leaf whose
    member stays.
    """

    salt: bytes = field(repr=False)
    boxes: dict[int, bytes] = field(repr=False)
    leaf: tuple[int, bytes] | None = field(default=None, repr=False)
    moved: tuple[int, int] | None = None
    joined: int | None = None
    gone: int | None = None

    @property
    def wrapped(self) -> int:
        """How many wrapped keys this is."""
        return len(self.boxes) + (self.leaf is not None)


class _Node(Generic[M]):
    __slots__ = ("children", "key", "member", "name", "parent", "size")

    def __init__(self, name: int, key: Secret, parent: "_Node[M] | None", member: M) -> None:
        self.name, self.key, self.parent = name, key, parent
        self.member: M | None = member
        self.children: tuple[_Node[M], _Node[M]] | None = None
        self.size = 1

    def line(self) -> Iterator["_Node[M]"]:
        """Yield the node and all above it."""
        node: _Node[M] | None = self
        while node is not None:
            yield node
            node = node.parent

    def sibling(self) -> "_Node[M] | None":
        if self.parent is None or self.parent.children is None:
            return None
        one, other = self.parent.children
        return other if one is self else one

    def leaf(self) -> "_Node[M]":
        """Return a leaf that is not deeper than others."""
        node = self
        while node.children is not None:
            node = min(node.children, key=lambda child: child.size)
        return node


@dataclass(slots=True)
class OneWayView:
    """What one member knows: its leaf key, and name and blinded key of each sibling along its path."""

    place: int
    leaf: Secret
    siblings: list[tuple[int, Secret]]

    def keys(self) -> Iterator[Secret]:
        """Yield the keys along the path, the group's last."""
        key = self.leaf
        yield key
        for _, sibling in self.siblings:
            key = mixed(blinded(key), sibling)
            yield key

    def key(self) -> Secret:
        """Return the group's key."""
        *_, key = self.keys()
        return key

    def follow(self, told: Broadcast) -> None:
        """Take in a change. Raises `RefusedError` (`keys.unopened`)."""
        if told.moved is not None and told.moved[0] == self.place:
            self.place = told.moved[1]
            if told.joined is not None:
                # The blinded key of the new sibling is in a box; until then anything stands for it.
                self.siblings.insert(0, (told.joined, self.leaf))
        self.siblings = [pair for pair in self.siblings if pair[0] != told.gone]
        if told.leaf is not None and told.leaf[0] == self.place:
            self.leaf = Secret(unwrap(self.leaf, told.leaf[1], told.salt))
        key = self.leaf
        for at, (name, sibling) in enumerate(self.siblings):
            box = told.boxes.get(name)
            found = sibling if box is None else Secret(unwrap(key, box, told.salt))
            self.siblings[at] = (name, found)
            key = mixed(blinded(key), found)


class UnsafeOneWayTree(Generic[M]):
    """All keys, for a key manager that compares. Fresh keys come in as secrets, and salts as bytes."""

    def __init__(self) -> None:
        self._root: _Node[M] | None = None
        self._leaves: dict[M, _Node[M]] = {}
        self._names = 0

    def __len__(self) -> int:
        return len(self._leaves)

    def key(self) -> Secret:
        """Return the group's key. Raises `RefusedError` (`keys.unopened`) where there is no member."""
        if self._root is None:
            raise unopened()
        return self._root.key

    def join(self, member: M, leaf: Secret, renewed: Secret, salt: bytes) -> Broadcast:
        """Let somebody join under a leaf key; the member whose place is shared gets the key `renewed`."""
        if self._root is None:
            self._root = self._leaves[member] = self._node(leaf, None, member)
            return Broadcast(salt, {})
        shared = self._root.leaf()
        whose, shared.member = shared.member, None
        if whose is None:  # pragma: no cover  # leaves have members
            raise unopened()
        stays, joins = self._node(shared.key, shared, whose), self._node(leaf, shared, member)
        shared.children = (stays, joins)
        self._leaves[whose], self._leaves[member] = stays, joins
        for node in shared.line():
            node.size += 1
        own, boxes = self._spread(stays, renewed, salt)
        boxes[joins.name] = wrap(renewed, blinded(joins.key).expose(), salt)
        return Broadcast(salt, boxes, own, moved=(shared.name, stays.name), joined=joins.name)

    def leave(self, member: M, renewed: Secret, salt: bytes) -> Broadcast:
        """Let somebody leave; a leaf below the sibling, which takes the parent's place, gets the key `renewed`."""
        gone = self._leaves.pop(member)
        sibling, parent = gone.sibling(), gone.parent
        if sibling is None or parent is None:
            self._root = None
            return Broadcast(salt, {})
        for node in parent.line():
            node.size -= 1
        parent.children, parent.key = sibling.children, sibling.key
        for child in parent.children or ():
            child.parent = parent
        parent.member = sibling.member
        if parent.member is not None:
            self._leaves[parent.member] = parent
        own, boxes = self._spread(parent.leaf(), renewed, salt)
        return Broadcast(salt, boxes, own, moved=(sibling.name, parent.name), gone=gone.name)

    def view(self, member: M) -> OneWayView:
        """Return a member's knowledge, as a joiner receives it."""
        leaf = self._leaves[member]
        found = [sibling for node in leaf.line() if (sibling := node.sibling()) is not None]
        return OneWayView(leaf.name, leaf.key, [(node.name, blinded(node.key)) for node in found])

    def _spread(self, leaf: _Node[M], renewed: Secret, salt: bytes) -> tuple[tuple[int, bytes], dict[int, bytes]]:
        """Give a leaf a new key, and all above it; return what its member opens, and what others do."""
        own = (leaf.name, wrap(leaf.key, renewed.expose(), salt))
        leaf.key = renewed
        boxes: dict[int, bytes] = {}
        for node in leaf.line():
            if node.children is not None:
                one, other = node.children
                node.key = mixed(blinded(one.key), blinded(other.key))
            sibling = node.sibling()
            if sibling is not None:
                boxes[node.name] = wrap(sibling.key, blinded(node.key).expose(), salt)
        return own, boxes

    def _node(self, key: Secret, parent: _Node[M] | None, member: M) -> _Node[M]:
        self._names += 1
        return _Node(self._names, key, parent, member)
