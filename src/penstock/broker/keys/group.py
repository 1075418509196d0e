"""The state of a key group, as a key manager knows it: a fold of the records in the managers' log.

The rules:

1. Who is admitted while an epoch lasts gets a leaf and the key of the epoch, and a place in the tree with the next.
   None of the secrets in the tree is given to it before: they may be older than the epoch, and with what was said
   earlier they would open epochs before it.
2. Who leaves keeps the key of the epoch, and loses its place with the next.
3. An evicted member loses both immediately: a record that evicts begins an epoch. Whoever was evicted is remembered,
   because the dates of its credentials do not tell that it had no right in between.
4. A record's effect depends on the log alone. How large a group may be is asked of those who write records, not of
   those who read them: replicas with other limits, or other limits after a restart, must not come to another tree.

Every secret comes from the seed of its record, so that replicas, and a manager that starts again, come to one tree.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final

from penstock.broker.keys.rights import KeyEntitlement
from penstock.broker.limits import BrokerLimits
from penstock.codec.sexp import SExp, read_fields, written_fields
from penstock.codec.sexp import field as sexp_field
from penstock.crypto.key_tree import KeyTree, Rekey, handle
from penstock.crypto.wrapping import Secret, unopened
from penstock.errors import LimitError, RefusedError
from penstock.model.principals import Principal
from penstock.trust.key_statements import END, EpochStatement, KeyGroup, KeyRecord
from penstock.trust.limits import LABEL_LONGEST
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
        self.word: EpochStatement | None = None

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
        """Take a record in; return the message to members, if an epoch begins. Raises what `check` raises."""
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
        """Return everything, with all secrets, for immediate wrapping. Raises `RefusedError` before the first epoch."""
        if self.word is None:
            raise unopened()
        return (
            b"state",
            *written_fields(self.word),
            self.tree.to_sexp(),
            (b"members", *_write(self.members)),
            (b"left", *_write(self.left)),
            (b"evicted", *(str(who).encode() for who in self.evicted)),
        )

    @classmethod
    def from_sexp(cls, value: SExp) -> "GroupState":
        """Read what `to_sexp` wrote. Raises `RefusedError` (`keys.unopened`), `MalformedError`."""
        if not isinstance(value, tuple):
            raise unopened()
        word, _ = read_fields(EpochStatement, value)
        state = cls(word.group)
        state.word = word
        state.tree = KeyTree.from_sexp(state.id, sexp_field(value, b"tree") or ())
        state.members = dict(_read(value, b"members", word.epoch))
        state.left = dict(_read(value, b"left", word.epoch))
        state.evicted = {read_owner(who) for who in _list(value, b"evicted")}
        return state


def _write(holders: Mapping[Principal, Holder]) -> Iterator[SExp]:
    for who, holder in holders.items():
        yield (str(who).encode(), holder.leaf.expose(), END.write(holder.until), b"%d" % holder.since)


def _read(value: SExp, name: bytes, epoch: int) -> Iterator[tuple[Principal, Holder]]:
    for one in _list(value, name):
        match one:
            case (bytes(who), bytes(raw), bytes(until), *since) if len(since) <= 1:
                leaf = Secret(raw)
                # Checkpoints of before did not say since when.
                first = read_count(since[0]) if since else epoch
                yield read_owner(who), Holder(leaf, handle(leaf), END.read(until), first)
            case _:
                raise unopened()


def _list(value: SExp, name: bytes) -> tuple[SExp, ...]:
    found = sexp_field(value, name)
    if found is None:
        raise unopened()
    return found[1:]


# ----------------------------------------------------------------------------------------------------------------------
# What is to become of a key group: wishes that wait until a record in the log has them.


@dataclass(frozen=True, slots=True)
class Applicant:
    """A broker that wants to join, or its right renewed: the right, and the key that the answer is sealed to.

    Where nobody has asked there is no key, and no answer.
    """

    right: KeyEntitlement
    public: bytes = field(default=b"", repr=False)


@dataclass(slots=True)
class Wishes:
    """Who is to be admitted, let go and evicted, and whether an epoch is to begin in any case."""

    admit: dict[Principal, Applicant] = field(default_factory=dict)
    leave: set[Principal] = field(default_factory=set)
    evict: set[Principal] = field(default_factory=set)
    refresh: bool = False

    def __bool__(self) -> bool:
        return bool(self.admit or self.leave or self.evict or self.refresh)

    def need_epoch(self, state: GroupState, begun: datetime) -> bool:
        """Say whether an epoch must begin; not where all who join had their right when it began, and ever since.

        Section 7.6.2; `begun` is when the epoch began on the slowest clock. Labels reveal nothing about the past that
        would be worth moving a rendezvous for: nobody's joining changes them.
        """
        if self.refresh or self.evict or not state.tree:
            return True
        return not state.group.labels and not all(
            broker in state.members or (applicant.right.covers(begun) and broker not in state.evicted)
            for broker, applicant in self.admit.items()
        )

    def check_room(self, state: GroupState, broker: Principal, most: int) -> None:
        """Check that there is a place for a broker among those who are in the group and those who wait.

        Raises `LimitError` (`keys.members`).
        """
        if broker in state.members or broker in self.admit:
            return
        waiting = sum(one not in state.members for one in self.admit)
        if len(state.members) + waiting >= most:
            raise LimitError(
                "keys.members",
                f"a key group has at most {most} members, and this one has no place left",
                hint="evict brokers that need the key no longer",
            )

    def fit(self, state: GroupState, most: int) -> None:
        """Forget who wants to join where a replica has given the last places to others; it asks again."""
        waiting = [broker for broker in self.admit if broker not in state.members]
        for broker in waiting[max(0, most - len(state.members)) :]:
            del self.admit[broker]

    def patient(self) -> "Wishes":
        """Return those that need no epoch."""
        return Wishes(self.admit, self.leave - self.evict)

    def reinstate(self, broker: Principal) -> None:
        """Let a broker stay that was to be evicted and is not yet, since it has a right again."""
        self.evict.discard(broker)

    def review(self, state: GroupState, broker: Principal, right: KeyEntitlement | None) -> None:
        """Take in what right a broker has now: without one it is evicted, and with another end that end counts."""
        member, left = state.members.get(broker), state.left.get(broker)
        if right is None or (left is not None and left.until != right.until):
            self.admit.pop(broker, None)
            if member is not None or left is not None:
                self.evict.add(broker)
        elif member is not None and member.until != right.until:
            self.admit.setdefault(broker, Applicant(right))

    def settle(self, state: GroupState, record: KeyRecord) -> Iterator[tuple[Principal, Applicant]]:
        """Forget what is as it was wished, and yield those who are admitted."""
        for broker, applicant in [*self.admit.items()]:
            member = state.members.get(broker)
            if member is not None and member.until == applicant.right.until:
                del self.admit[broker]
                yield broker, applicant
        self.leave &= state.members.keys()
        self.evict &= state.holders().keys()
        self.refresh &= not record.refresh

    def changes(
        self, most: int
    ) -> tuple[tuple[tuple[Principal, datetime | None], ...], tuple[Principal, ...], tuple[Principal, ...]]:
        """Return who is admitted and until when, who is let go, and who is evicted: no more than fit in one record."""
        admitted = [(broker, applicant.right.until) for broker, applicant in self.admit.items()]
        return tuple(admitted[:most]), _some(self.leave - self.evict, most), _some(self.evict, most)


def _some(brokers: set[Principal], most: int) -> tuple[Principal, ...]:
    return tuple(sorted(brokers, key=lambda broker: broker.digest)[:most])


# ----------------------------------------------------------------------------------------------------------------------
# When the epoch of a key group ends by itself, and what is otherwise with the keys of labels.
#
# A type's labels say where its events meet. Their key is for recognising a type and for nothing else, so that it stays
# when brokers join, and for long. When it changes, brokers are to be found under the old labels and the new ones for a
# while. The next change does not begin before that is over: so no more than two labels of a type are in use at a time.


@dataclass(frozen=True, slots=True)
class Refreshing:
    """When an epoch ends by itself, in milliseconds and blocks, and after which time nobody may seal under its key.

    The key of labels has a period of its own, and the time in which old and new ones are both in use.
    """

    period: int
    blocks: int
    longest: int
    labels: int
    overlap: int

    @classmethod
    def by(cls, limits: BrokerLimits) -> "Refreshing":
        """Return what some limits say."""
        epochs = limits.key_epoch, limits.key_blocks, limits.key_longest
        return cls(*epochs, limits.label_epoch, limits.label_overlap)

    def of(self, group: KeyGroup) -> "Refreshing":
        """Return what counts for a group."""
        if not group.labels:
            return self
        return replace(self, period=self.labels, longest=max(self.longest, LABEL_LONGEST))

    def overlaps(self, state: GroupState, now: datetime) -> bool:
        """Say whether the labels before those of now are still in use."""
        if not state.group.labels or state.word is None:
            return False
        return state.epoch > 1 and now < state.word.begun + timedelta(milliseconds=self.overlap)

    def resumes(self, state: GroupState, wishes: Wishes) -> datetime | None:
        """Return until when wishes may have to wait; None where they need not."""
        waits = state.group.labels and state.epoch > 1 and (wishes.evict or wishes.refresh)
        return state.word.begun + timedelta(milliseconds=self.overlap) if waits and state.word is not None else None

    def due(self, state: GroupState, wishes: Wishes, now: datetime) -> Wishes:
        """Return what can be done of some wishes now."""
        return wishes.patient() if self.overlaps(state, now) else wishes
