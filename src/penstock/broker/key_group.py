"""The state of a key group, as a key manager knows it: a fold of the records in the managers' log.

The rules:

1. Who is admitted while an epoch lasts gets a leaf and the key of the epoch, and a place in the tree with the next.
   None of the secrets in the tree is given to it before: they may be older than the epoch, and with what was said
   earlier they would open epochs before it.
2. Who leaves keeps the key of the epoch, and loses its place with the next.
3. Who is evicted loses both at once: a record that evicts begins an epoch. Whoever was evicted is remembered, because
   the dates of its credentials do not tell that it had no right in between.
4. What a record comes to depends on the log alone. How large a group may be is asked of those who write records, not of
   those who read them: replicas with other limits, or other limits after a restart, must not come to another tree.

Every secret comes from the seed of its record, so that replicas, and a manager that starts again, come to one tree.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final

from penstock.codec.sexp import SExp
from penstock.codec.sexp import field as sexp_field
from penstock.crypto.key_tree import KeyTree, Rekey, handle
from penstock.crypto.wrapping import Secret, unopened
from penstock.errors import RefusedError
from penstock.model.principals import Principal
from penstock.trust.key_forms import count, read_end, write_end
from penstock.trust.key_messages import KeyGroup, Word
from penstock.trust.key_records import KeyRecord
from penstock.trust.signed import read_count, read_owner

_LEAF: Final = b"leaf"
#: what stands in the place of a path for somebody who has none yet
UNPLACED: Final = bytes(8)


@dataclass(frozen=True, slots=True)
class Holder:
    """Somebody who holds the key of the epoch: the leaf, its name in the tree, and when the right ends.

    `since` is the first epoch of which it was to have the key, as of all since then.
    """

    leaf: Secret = field(repr=False)
    handle: bytes = field(repr=False)
    until: datetime | None
    since: int

    def expired(self, now: datetime) -> bool:
        """Say whether the right has ended."""
        return self.until is not None and now > self.until


class GroupState:
    """See the module. `members` are in the group; `left` are not, and still hold the key of the epoch."""

    def __init__(self, group: KeyGroup) -> None:
        self.group = group
        self.id = group.id
        self.tree = KeyTree(self.id)
        self.members: dict[Principal, Holder] = {}
        self.left: dict[Principal, Holder] = {}
        self.evicted: set[Principal] = set()
        #: the last record's word on the epoch
        self.word: Word | None = None

    @property
    def epoch(self) -> int:
        """The number of the epoch; 0 before the first."""
        return self.tree.epoch

    def holders(self) -> dict[Principal, Holder]:
        """Return all that hold the key of the epoch."""
        return self.left | self.members

    def check(self, record: KeyRecord) -> None:
        """Check a record before anything is done with it. Raises `RefusedError` (`keys.record`)."""
        begins = self.epoch + record.refresh
        same = self.word is not None and replace(record.word, manager=self.word.manager) == self.word
        told = record.refresh and record.word.begun == record.time
        if record.word.epoch != begins or not (told or same) or (record.evicted and not record.refresh):
            raise RefusedError(
                "keys.record",
                "a record of a key group does not follow from those before",
                hint="is the log the right one?",
            )

    def apply(self, record: KeyRecord, seed: Secret) -> Rekey | None:
        """Take a record in; return what members are told, where an epoch begins. Raises what `check` raises."""
        self.check(record)
        for broker, until in record.admitted:
            self._admit(broker, until, seed, record.word.epoch)
        for broker in record.left:
            if broker in self.members:
                self.left[broker] = self.members.pop(broker)
        gone = [self._evict(broker) for broker in record.evicted]
        self.word = record.word
        if not record.refresh:
            return None
        leaves = [holder.handle for holder in (*self.left.values(), *filter(None, gone))]
        joins = [holder.leaf for holder in self.members.values() if holder.handle not in self.tree]
        self.left = {}
        return self.tree.rekey(seed, joins, leaves)

    def place(self, broker: Principal) -> bytes:
        """Return what a member needs beside its leaf: its path, or the key of the epoch where it has no place yet."""
        holder = self.members[broker]
        if holder.handle in self.tree:
            return self.tree.path(holder.handle).to_bytes()
        return UNPLACED + self.tree.key().expose()

    def _admit(self, broker: Principal, until: datetime | None, seed: Secret, epoch: int) -> None:
        known = self.members.get(broker) or self.left.pop(broker, None)
        leaf = seed.derive(_LEAF, self.id, broker.digest) if known is None else known.leaf
        self.members[broker] = Holder(leaf, handle(leaf), until, epoch if known is None else known.since)
        self.evicted.discard(broker)

    def _evict(self, broker: Principal) -> Holder | None:
        self.evicted.add(broker)
        return self.members.pop(broker, None) or self.left.pop(broker, None)

    # For checkpoints.

    def to_sexp(self) -> SExp:
        """Return everything, with all secrets: to be wrapped at once. Raises `RefusedError` before the first epoch."""
        if self.word is None:
            raise unopened()
        return (
            b"state",
            *self.word.parts(),
            self.tree.to_sexp(),
            (b"members", *_write(self.members)),
            (b"left", *_write(self.left)),
            (b"evicted", *(str(who).encode() for who in self.evicted)),
        )

    @classmethod
    def from_sexp(cls, value: SExp) -> "GroupState":
        """Read what `to_sexp` wrote. Raises `RefusedError` (`keys.unopened`), `MalformedError`."""
        word = Word.read(value)
        state = cls(word.group)
        state.word = word
        state.tree = KeyTree.from_sexp(state.id, sexp_field(value, b"tree") or ())
        state.members = dict(_read(value, b"members", word.epoch))
        state.left = dict(_read(value, b"left", word.epoch))
        state.evicted = {read_owner(who) for who in _list(value, b"evicted")}
        return state


def _write(holders: Mapping[Principal, Holder]) -> Iterator[SExp]:
    for who, holder in holders.items():
        yield (str(who).encode(), holder.leaf.expose(), write_end(holder.until), count(holder.since))


def _read(value: SExp, name: bytes, epoch: int) -> Iterator[tuple[Principal, Holder]]:
    for one in _list(value, name):
        match one:
            case (bytes(who), bytes(octets), bytes(until), *since) if len(since) <= 1:
                leaf = Secret(octets)
                # Checkpoints of before did not say since when.
                first = read_count(since[0]) if since else epoch
                yield read_owner(who), Holder(leaf, handle(leaf), read_end(until), first)
            case _:
                raise unopened()


def _list(value: SExp, name: bytes) -> tuple[SExp, ...]:
    found = sexp_field(value, name)
    if found is None:
        raise unopened()
    return found[1:]
