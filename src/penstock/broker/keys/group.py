"""The state of a key group, as its managers compute it from the records in their log.

The rules:

1. A broker that is admitted during an epoch gets a leaf and the epoch's key, and a place in the tree with the next
   epoch. It gets no secrets of the tree before: they may be older than the epoch, and together with earlier messages
   they would open earlier epochs.
2. A broker that leaves keeps the epoch's key, and loses its place with the next epoch.
3. An evicted broker loses both immediately: a record that evicts starts an epoch. Evicted brokers are remembered,
   because the dates of their credentials do not show that they had no right in between.
4. A record's effect depends on the log alone. Writers of records check the size of a group, readers do not: replicas
   with other limits must compute the same tree.

Every secret is derived from the seed of its record, so all replicas compute the same tree, also after a restart.
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
#: the path of a member that has no place in the tree yet
UNPLACED: Final = bytes(8)


@dataclass(frozen=True, slots=True)
class Holder:
    """A broker that holds the epoch's key: its leaf, the leaf's name in the tree, and when its right ends.

    `since` is the first epoch whose key it was entitled to, and to all since then.
    """

    leaf: Secret = field(repr=False)
    handle: bytes = field(repr=False)
    until: datetime | None
    since: int

    def expired(self, now: datetime) -> bool:
        """Return whether the broker's right has ended."""
        return self.until is not None and now > self.until


class GroupState:
    """The state of one key group. `members` are in the group; `left` are not, but still hold the epoch's key."""

    def __init__(self, group: KeyGroup) -> None:
        self.group = group
        self.id = group.id
        self.tree = KeyTree(self.id)
        self.members: dict[Principal, Holder] = {}
        self.left: dict[Principal, Holder] = {}
        self.evicted: set[Principal] = set()
        #: the last record's statement about the epoch
        self.word: EpochStatement | None = None

    @property
    def epoch(self) -> int:
        """The number of the epoch; 0 before the first."""
        return self.tree.epoch

    def holders(self) -> dict[Principal, Holder]:
        """Return all brokers that hold the epoch's key."""
        return self.left | self.members

    def check(self, record: KeyRecord) -> None:
        """Raise `RefusedError` (`keys.record`) if a record does not follow from the state."""
        begins = self.epoch + record.refresh
        same = self.word is not None and replace(record.word, manager=self.word.manager) == self.word
        told = record.refresh and record.word.begun == record.time
        if record.word.epoch != begins or not (told or same) or (record.evicted and not record.refresh):
            raise RefusedError(
                "keys.record",
                "a record of a key group does not follow from the records before it",
                hint="check that the node file names the right log",
            )

    def apply(self, record: KeyRecord, seed: Secret) -> Rekey | None:
        """Apply a record; return the message to members if an epoch starts. Raises what `check` raises."""
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
        """Return a member's path in the tree, or the epoch's key if the member has no place yet."""
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

    # Checkpoints.

    def to_sexp(self) -> SExp:
        """Return the state with all secrets, for immediate wrapping. Raises `RefusedError` before the first epoch."""
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
                # Checkpoints of older versions do not have `since`.
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
# Changes of a key group that wait until a record in the log has them.


@dataclass(frozen=True, slots=True)
class Applicant:
    """A broker to admit, or whose right to renew: its right, and the key that the answer is sealed to.

    If the broker has not asked, there is no key and no answer.
    """

    right: KeyEntitlement
    public: bytes = field(default=b"", repr=False)


@dataclass(slots=True)
class Wishes:
    """The brokers to admit, to let go and to evict, and whether to start an epoch in any case."""

    admit: dict[Principal, Applicant] = field(default_factory=dict)
    leave: set[Principal] = field(default_factory=set)
    evict: set[Principal] = field(default_factory=set)
    #: those of them that an operator evicts, whatever their right
    ordered: set[Principal] = field(default_factory=set)
    refresh: bool = False

    def __bool__(self) -> bool:
        return bool(self.admit or self.leave or self.evict or self.refresh)

    def need_epoch(self, state: GroupState, begun: datetime) -> bool:
        """Return whether an epoch must start: not if all who join have had their right since this one started.

        Section 7.6.2; `begun` is when the epoch started on the slowest clock. Joining never changes labels: they
        reveal nothing about the past that would be worth moving a rendezvous for.
        """
        if self.refresh or self.evict or not state.tree:
            return True
        return not state.group.labels and not all(
            broker in state.members or (applicant.right.covers(begun) and broker not in state.evicted)
            for broker, applicant in self.admit.items()
        )

    def check_room(self, state: GroupState, broker: Principal, most: int) -> None:
        """Raise `LimitError` (`keys.members`) if members and waiting brokers leave no place for a broker."""
        if broker in state.members or broker in self.admit:
            return
        waiting = sum(one not in state.members for one in self.admit)
        if len(state.members) + waiting >= most:
            raise LimitError(
                "keys.members",
                f"the key group is full: it has {most} members, the most that are allowed",
                hint="evict brokers that no longer need the key",
            )

    def fit(self, state: GroupState, most: int, now: datetime) -> None:
        """Drop waiting brokers whose right has ended, or whose place a replica has given to others. They ask again."""
        for broker in [who for who, applicant in self.admit.items() if applicant.right.expired(now)]:
            del self.admit[broker]
        waiting = [broker for broker in self.admit if broker not in state.members]
        for broker in waiting[max(0, most - len(state.members)) :]:
            del self.admit[broker]

    def has(self, broker: Principal) -> bool:
        """Return whether a broker is to be admitted or evicted."""
        return broker in self.admit or broker in self.evict

    def patient(self) -> "Wishes":
        """Return the changes that do not need a new epoch."""
        admit = {broker: applicant for broker, applicant in self.admit.items() if broker not in self.evict}
        return Wishes(admit, self.leave - self.evict)

    def expire(self, state: GroupState, now: datetime) -> None:
        """Evict the brokers whose right has ended, unless it is renewed now and was valid all the while.

        Labels stay with a broker whose right was renewed after a break, too.
        """
        for broker, holder in state.holders().items():
            renewed = self.admit.get(broker)
            kept = renewed is not None and (state.group.labels or renewed.right.covers(holder.until or now))
            if holder.expired(now) and not kept:
                self.evict.add(broker)

    def review(self, state: GroupState, broker: Principal, right: KeyEntitlement | None) -> None:
        """Apply a broker's current right: evict it without one, and renew its right if the end differs.

        An operator's eviction that still waits is carried out, whatever the right: the broker is not admitted after it.
        """
        member, left, waiting = state.members.get(broker), state.left.get(broker), self.admit.get(broker)
        if state.group.labels and right is not None and broker not in self.ordered:
            # It has a right again.
            self.evict.discard(broker)
        if right is None or (left is not None and left.until != right.until):
            self.admit.pop(broker, None)
            if member is not None or left is not None:
                self.evict.add(broker)
        elif waiting is not None:
            self.admit[broker] = replace(waiting, right=right)
        elif member is not None and member.until != right.until and broker not in self.ordered:
            self.admit[broker] = Applicant(right)

    def settle(self, state: GroupState, record: KeyRecord) -> Iterator[tuple[Principal, Applicant]]:
        """Drop the changes that are done now, and yield the brokers that were admitted."""
        for broker, applicant in [*self.admit.items()]:
            member = state.members.get(broker)
            if member is not None and member.until == applicant.right.until and broker not in self.evict:
                del self.admit[broker]
                yield broker, applicant
        self.leave &= state.members.keys()
        self.evict &= state.holders().keys()
        self.ordered &= self.evict
        self.refresh &= not record.refresh

    def changes(
        self, most: int
    ) -> tuple[tuple[tuple[Principal, datetime | None], ...], tuple[Principal, ...], tuple[Principal, ...]]:
        """Return admissions with their ends, departures and evictions: no more than fit in one record.

        A broker that is evicted is admitted by a later one.
        """
        admitted = [(who, applicant.right.until) for who, applicant in self.admit.items() if who not in self.evict]
        return tuple(admitted[:most]), _some(self.leave - self.evict, most), _some(self.evict, most)


def _some(brokers: set[Principal], most: int) -> tuple[Principal, ...]:
    return tuple(sorted(brokers, key=lambda broker: broker.digest)[:most])


# ----------------------------------------------------------------------------------------------------------------------
# When the epoch of a key group ends by itself, and the different rules for the keys of labels.
#
# A type's labels say where its events meet. Their key only serves to recognise the type, so it stays when brokers join
# and lasts long. When it changes, brokers use the old and the new labels for a while. The next change waits until that
# is over, so at most two labels of a type are in use at a time.


@dataclass(frozen=True, slots=True)
class Refreshing:
    """When an epoch ends by itself, in milliseconds and blocks, and after which time its key must not be used.

    The key of labels has its own period, and a time in which old and new labels are both in use.
    """

    period: int
    blocks: int
    longest: int
    labels: int
    overlap: int

    @classmethod
    def by(cls, limits: BrokerLimits) -> "Refreshing":
        """Return the periods that the limits set."""
        epochs = limits.key_epoch, limits.key_blocks, limits.key_longest
        return cls(*epochs, limits.label_epoch, limits.label_overlap)

    def of(self, group: KeyGroup) -> "Refreshing":
        """Return the periods that apply to a group."""
        if not group.labels:
            return self
        return replace(self, period=self.labels, longest=max(self.longest, LABEL_LONGEST))

    def overlaps(self, state: GroupState, now: datetime) -> bool:
        """Return whether the previous labels are still in use."""
        if not state.group.labels or state.word is None:
            return False
        return state.epoch > 1 and now < state.word.begun + timedelta(milliseconds=self.overlap)

    def resumes(self, state: GroupState, wishes: Wishes) -> datetime | None:
        """Return until when changes may have to wait; None if they need not."""
        waits = state.group.labels and state.epoch > 1 and (wishes.evict or wishes.refresh)
        return state.word.begun + timedelta(milliseconds=self.overlap) if waits and state.word is not None else None

    def due(self, state: GroupState, wishes: Wishes, now: datetime) -> Wishes:
        """Return the changes that can be made now."""
        return wishes.patient() if self.overlaps(state, now) else wishes
