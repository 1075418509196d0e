"""A logical key hierarchy: a secret that all members of a group share, and that is cheap to change with the members.

Members are the leaves of a binary tree (`places`). The invariant: each node has a secret that the members below it
know, and nobody else has ever known. The epoch key is derived from the root's secret. When members change, every node
above a place that was taken or given up gets a new secret:

1. The lowest of them are drawn at random. The secret above a new one is derived from it, in one direction: a holder of
   a new secret can compute those above (Canetti et al., "Multicast security", 1999). The same is true for a new leaf.
2. Each new secret is wrapped for every child of its node that cannot derive it. The child's own secret is never sent.

So a change costs one wrapped secret instead of two for each level and path, and at most two paths change when a member
leaves: at most 2·⌈log2 n⌉. Nothing is derived from a secret that existed before the change. The One-way Function Tree
fails because of this (`tests/crypto/oft.py`).

`KeyTree` is for the key manager, and `KeyPath` for a member. Both are deterministic: randomness is an argument.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from penstock.codec.sexp import SExp
from penstock.crypto.wrapping import SALT_BYTES, SECRET_BYTES, Secret, unopened, unwrap, wrap

# ----------------------------------------------------------------------------------------------------------------------
# The places of members in a binary tree of minimal height.
#
# With n members the nodes 1 … n-1 are inner nodes and the places n … 2n-1 are leaves. The parent of node k is k // 2.
# So no leaf is deeper than ⌈log2 n⌉. A new member shares the place of the first leaf: both move below it. When a member
# leaves, the last leaf takes its place, and the sibling of the last leaf takes their parent's. If some join and others
# leave in one step, those that join take the free places.


M = TypeVar("M")
ROOT: Final = 1


@dataclass(frozen=True, slots=True)
class SeatChange:
    """The result of a change of members: leaves that moved, from and to, and inner nodes that need new keys.

    Those are all nodes above a place that was taken or given up: a member that is no longer below them knows their
    keys, and a member that is below them now must not know the old ones.
    """

    moves: tuple[tuple[int, int], ...]
    stale: tuple[int, ...]


def above(place: int) -> Iterator[int]:
    """Yield the nodes above a place, the nearest first.

    >>> list(above(11))
    [5, 2, 1]
    """
    while place > ROOT:
        place //= 2
        yield place


class TreeSeats(Generic[M]):
    """See the module."""

    def __init__(self) -> None:
        self.place: dict[M, int] = {}
        self.member: dict[int, M] = {}
        self._origin: dict[M, int] = {}
        self._touched: set[int] = set()

    def __len__(self) -> int:
        return len(self.place)

    def change(self, joins: Sequence[M], leaves: Sequence[M]) -> SeatChange:
        """Let some members join and others leave, in one step."""
        self._origin, self._touched = {}, set()
        both = min(len(joins), len(leaves))
        for joining, leaving in zip(joins, leaves, strict=False):
            self._put(joining, self._drop(leaving))
        for leaving in leaves[both:]:
            self._leave(leaving)
        for joining in joins[both:]:
            self._join(joining)
        inner = {node for place in self._touched for node in above(place) if node < len(self)}
        new = set(joins)
        stayed = ((old, member) for member, old in self._origin.items() if member in self.place and member not in new)
        moves = sorted((old, self.place[member]) for old, member in stayed if old != self.place[member])
        return SeatChange(tuple(moves), tuple(sorted(inner, reverse=True)))

    def _join(self, joining: M) -> None:
        size = len(self)
        if not size:
            self._put(joining, ROOT)
            return
        self._put(self.member[size], 2 * size)
        self._put(joining, 2 * size + 1)

    def _leave(self, leaving: M) -> None:
        size = len(self)
        last = self.member[2 * size - 1]
        free = self._drop(leaving)
        if size == 1:
            return
        if last != leaving:
            self._put(last, free)
        # One of the last two leaves remains, unless that place has just been filled: it takes their parent's place.
        remaining = self.member.get(2 * size - 2, self.member.get(2 * size - 1))
        if remaining is not None:
            self._put(remaining, size - 1)

    def _put(self, member: M, place: int) -> None:
        old = self.place.get(member)
        if old is not None:
            self._origin.setdefault(member, old)
            self._touched.add(old)
            if self.member.get(old) == member:
                del self.member[old]
        self.place[member], self.member[place] = place, member
        self._touched.add(place)

    def _drop(self, leaving: M) -> int:
        place = self.place.pop(leaving)
        del self.member[place]
        self._touched.add(place)
        return place


# ----------------------------------------------------------------------------------------------------------------------
# The secrets of the tree.


HANDLE_BYTES: Final = 16
CHECK_BYTES: Final = 16
_PLACE_BYTES: Final = 8
_CHECK: Final = b"check"
_HANDLE: Final = b"handle"
_UP: Final = b"up"
_NODE: Final = b"node"
_EPOCH: Final = b"epoch"
_NOBODY: Final = b"nobody"
_SALT: Final = b"salt"


@dataclass(frozen=True, slots=True)
class Renewed:
    """A node with a new secret: the child that derives it (0 for none), and the secret wrapped for the others."""

    node: int
    heir: int
    boxes: tuple[tuple[int, bytes], ...] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Rekey:
    """The public message to a group's members about an epoch.

    `placed` has the places of new leaves by their handles, `moves` the leaves that moved, from and to. By `check` a
    member verifies that it has found the right secret.
    """

    group: bytes = field(repr=False)
    epoch: int
    salt: bytes = field(repr=False)
    check: bytes = field(repr=False)
    placed: tuple[tuple[bytes, int], ...] = field(default=(), repr=False)
    moves: tuple[tuple[int, int], ...] = field(default=(), repr=False)
    renewed: tuple[Renewed, ...] = field(default=(), repr=False)

    @property
    def wrapped(self) -> int:
        """The number of wrapped secrets."""
        return sum(len(node.boxes) for node in self.renewed)


def handle(leaf: Secret) -> bytes:
    """Return the handle of a leaf: its member can compute it, others cannot tell whose it is."""
    return leaf.derive(_HANDLE).expose()[:HANDLE_BYTES]


def epoch_key(root: Secret, group: bytes, epoch: int) -> Secret:
    """Return the key of an epoch. It opens no wrapped secret, so it can be given to others."""
    return root.derive(_EPOCH, group, _number(epoch))


class KeyTree:
    """The secrets of all nodes, for the key manager. Leaves are known by their handles."""

    def __init__(self, group: bytes) -> None:
        self._group = group
        self._places: TreeSeats[bytes] = TreeSeats()
        self._leaves: dict[bytes, Secret] = {}
        self._inner: dict[int, Secret] = {}
        #: the secret of a group without members
        self._nobody: Secret | None = None
        self.epoch = 0

    def __len__(self) -> int:
        return len(self._leaves)

    def __contains__(self, leaf: bytes) -> bool:
        return leaf in self._leaves

    def key(self) -> Secret:
        """Return the key of the epoch. Raises `RefusedError` (`keys.unopened`) before the first."""
        return epoch_key(self._root, self._group, self.epoch)

    def rekey(self, seed: Secret, joins: Iterable[Secret] = (), leaves: Iterable[bytes] = ()) -> Rekey:
        """Begin the next epoch, which some leaves join and others leave.

        `seed` and the leaves that join must be fresh: never used in a tree before.
        """
        before = len(self)
        joining = {handle(leaf): leaf for leaf in joins}
        leaving = [leaf for leaf in dict.fromkeys(leaves) if leaf in self._leaves]
        change = self._places.change([*joining], leaving)
        for leaf in leaving:
            del self._leaves[leaf]
        self._leaves |= joining
        for node in range(max(len(self), ROOT), before):
            del self._inner[node]
        self.epoch += 1
        self._nobody = seed.derive(_NOBODY)
        # A new epoch has a new root secret, even if no member joined or left.
        stale = change.stale or ((ROOT,) if len(self) > 1 else ())
        placed = tuple((leaf, self._places.place[leaf]) for leaf in joining)
        salt = seed.derive(_SALT).expose()[:SALT_BYTES]
        renewed = self._renew(seed, salt, stale, {place for _, place in placed})
        return Rekey(
            self._group, self.epoch, salt, _check(self._root, self._group, self.epoch), placed, change.moves, renewed
        )

    def path(self, leaf: bytes) -> "KeyPath":
        """Return the secrets that a member knows. Raises `KeyError` for a leaf that is not in the tree."""
        place = self._places.place[leaf]
        return KeyPath(self._group, place, self._leaves[leaf], {node: self._inner[node] for node in above(place)})

    def to_sexp(self) -> SExp:
        """Return the tree with all secrets, for immediate wrapping. Leaves and inner nodes are listed by place."""
        nobody = b"" if self._nobody is None else self._nobody.expose()
        leaves = (self._leaves[self._places.member[place]].expose() for place in range(len(self), 2 * len(self)))
        inner = (self._inner[node].expose() for node in range(ROOT, len(self)))
        return (b"tree", _number(self.epoch), nobody, (b"leaves", *leaves), (b"inner", *inner))

    @classmethod
    def from_sexp(cls, group: bytes, value: SExp) -> "KeyTree":
        """Read the form of `to_sexp`. Raises `RefusedError` (`keys.unopened`), `MalformedError` (`keys.malformed`)."""
        tree = cls(group)
        match value:
            case (b"tree", bytes(epoch), bytes(nobody), (b"leaves", *leaves), (b"inner", *inner)):
                tree.epoch = int.from_bytes(epoch, "big")
                tree._nobody = Secret(nobody) if nobody else None
                tree._inner = {node: _secret(raw) for node, raw in enumerate(inner, ROOT)}
                placed = [(place, _secret(raw)) for place, raw in enumerate(leaves, len(leaves))]
            case _:
                raise unopened()
        if len(inner) != max(0, len(leaves) - 1):
            raise unopened()
        for place, leaf in placed:
            named = handle(leaf)
            tree._leaves[named] = leaf
            tree._places.place[named], tree._places.member[place] = place, named
        return tree

    def _renew(self, seed: Secret, salt: bytes, stale: tuple[int, ...], new: set[int]) -> tuple[Renewed, ...]:
        """Give nodes new secrets, the lowest first."""
        new = {*new, *stale}
        renewed: list[Renewed] = []
        for node in stale:
            children = (2 * node, 2 * node + 1)
            heir = next((child for child in children if child in new), 0)
            context = (self._group, _number(self.epoch), _number(node))
            secret = self._secret(heir).derive(_UP, *context) if heir else seed.derive(_NODE, *context)
            others = [child for child in children if child != heir]
            boxes = [wrap(self._secret(child), secret.expose(), salt, *context, _number(child)) for child in others]
            self._inner[node] = secret
            renewed.append(Renewed(node, heir, tuple(zip(others, boxes, strict=True))))
        return tuple(renewed)

    @property
    def _root(self) -> Secret:
        if self._nobody is None:
            raise unopened()
        return self._secret(ROOT) if self._leaves else self._nobody

    def _secret(self, node: int) -> Secret:
        return self._inner[node] if node < len(self) else self._leaves[self._places.member[node]]


class KeyPath:
    """The secrets of one member: its leaf, its place, and the secrets above. Without a place it is at 0."""

    __slots__ = ("_above", "_group", "leaf", "place")

    def __init__(self, group: bytes, place: int, leaf: Secret, secrets: Mapping[int, Secret]) -> None:
        self._group = group
        self.place = place
        self.leaf = leaf
        self._above = dict(secrets)

    def __len__(self) -> int:
        """Return the number of secrets."""
        return 1 + len(self._above)

    def key(self, epoch: int) -> Secret:
        """Return the key of this path's epoch. Raises `RefusedError` (`keys.unopened`)."""
        root = self.leaf if self.place == ROOT else self._above.get(ROOT)
        if root is None:
            raise unopened()
        return epoch_key(root, self._group, epoch)

    def follow(self, rekey: Rekey) -> "KeyPath":
        """Return the path in the next epoch. This path is not changed.

        Raises `RefusedError` (`keys.unopened`) if the member does not belong to the group in that epoch, or has missed
        a message. Then request the path from the key manager.
        """
        place = dict(rekey.placed).get(handle(self.leaf)) or dict(rekey.moves).get(self.place, self.place)
        renewed = {node.node: node for node in rekey.renewed}
        found: dict[int, Secret] = {}
        child, secret = place, self.leaf
        for node in above(place):
            step = renewed.get(node)
            secret = self._known(node) if step is None else _climb(rekey, step, child, secret)
            found[node] = secret
            child = node
        path = KeyPath(self._group, place, self.leaf, found)
        if rekey.group != self._group or not place or _check(secret, self._group, rekey.epoch) != rekey.check:
            raise unopened()
        return path

    def to_bytes(self) -> bytes:
        """Return place and secrets without the leaf, for immediate sealing or wrapping."""
        return _number(self.place) + b"".join(self._above[node].expose() for node in above(self.place))

    @classmethod
    def from_bytes(cls, group: bytes, leaf: Secret, data: bytes) -> "KeyPath":
        """Read the form of `to_bytes`. Raises `RefusedError` (`keys.unopened`)."""
        place = int.from_bytes(data[:_PLACE_BYTES], "big")
        raw, nodes = data[_PLACE_BYTES:], list(above(place))
        if len(raw) != SECRET_BYTES * len(nodes) or not place:
            raise unopened()
        secrets = (raw[at : at + SECRET_BYTES] for at in range(0, len(raw), SECRET_BYTES))
        return cls(group, place, leaf, dict(zip(nodes, map(Secret, secrets), strict=True)))

    def _known(self, node: int) -> Secret:
        secret = self._above.get(node)
        if secret is None:
            raise unopened()
        return secret


def _climb(rekey: Rekey, step: Renewed, child: int, below: Secret) -> Secret:
    """Return the new secret of a node, for a holder of a child's secret."""
    context = (rekey.group, _number(rekey.epoch), _number(step.node))
    if child == step.heir:
        return below.derive(_UP, *context)
    box = dict(step.boxes).get(child)
    if box is None:
        raise unopened()
    return Secret(unwrap(below, box, rekey.salt, *context, _number(child)))


def _check(root: Secret, group: bytes, epoch: int) -> bytes:
    return root.derive(_CHECK, group, _number(epoch)).expose()[:CHECK_BYTES]


def _secret(raw: SExp) -> Secret:
    if not isinstance(raw, bytes):
        raise unopened()
    return Secret(raw)


def _number(value: int) -> bytes:
    return value.to_bytes(_PLACE_BYTES, "big")
