"""The log that the replicas of a key manager share: a record is taken at the place it is meant for, or not at all.

That is compare-and-swap, and all that keeps replicas from splitting. Any store that has it will do: a folder with a
file for each record (`penstock.store.files.key_files`), a stream that takes an expected sequence (`penstock.fabric.
nats_log`). No key can be read in it. Records name types and members, blinded ones too, so that a manager seals them to
the managers before they go there (`SealedLog`):

    0x02, salt (16 bytes), wrapped under the key-encryption key: length (4 bytes), record, zeros to a multiple of 256

A manager is a plain state machine; a log may take its time. `KeyScribe` is between: nobody waits for it, and nobody is
told anything before the log has it.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Protocol, TypeAlias

from penstock.broker.keys.group import GroupState, Holder
from penstock.broker.keys.sealing import (
    open_over,
    open_record,
    open_seed,
    open_state,
    seal_record,
    wrap_over,
    wrap_state,
)
from penstock.broker.limits import BrokerLimits
from penstock.codec.limits import wide
from penstock.codec.sexp import SExp, canonical, parse_canonical
from penstock.crypto.key_tree import Rekey
from penstock.crypto.keys import RandomBytes
from penstock.crypto.wrapping import SALT_BYTES, Secret, unopened
from penstock.errors import LimitError, PenstockError, RefusedError
from penstock.model.instants import format_date, parse_date
from penstock.model.principals import Principal
from penstock.trust.key_statements import KeyCheckpoint, KeyGroup, KeyRecord
from penstock.trust.policy_events import BEGINNING
from penstock.trust.signed import SignedValue, UnverifiedValue, read_signed

# ----------------------------------------------------------------------------------------------------------------------
# The log that the replicas of a key manager share: a record is taken at the place it is meant for, or not at all.


class KeyLog(Protocol):
    """See the module. What cannot be reached raises `FailedError`; whether a record was taken is then not known."""

    async def append(self, number: int, record: bytes) -> bool:
        """Write a record as the one with so many before it; say no, and write nothing, where the log is not so long."""

    async def read(self, number: int) -> Sequence[bytes]:
        """Return the records from a place on, or from the first that is kept."""

    async def forget(self, number: int) -> None:
        """Keep no record before a place."""

    async def close(self) -> None:
        """Let go of what the log needs."""


class MemoryLog:
    """A log that lasts as long as the process. Nothing in it ever waits."""

    def __init__(self) -> None:
        self.records: list[bytes] = []
        self.first = 0

    async def append(self, number: int, record: bytes) -> bool:
        """Write a record, or say no."""
        if number != self.first + len(self.records):
            return False
        self.records.append(record)
        return True

    async def read(self, number: int) -> Sequence[bytes]:
        """Return the records from a place on."""
        return tuple(self.records[max(0, number - self.first) :])

    async def forget(self, number: int) -> None:
        """Keep no record before a place."""
        gone = max(0, min(number - self.first, len(self.records)))
        del self.records[:gone]
        self.first += gone

    async def close(self) -> None:
        """Do nothing: there is nothing to let go of."""


class SealedLog:
    """A log whose records only holders of the key-encryption key can read. Records that were not sealed still read."""

    def __init__(self, log: KeyLog, kek: Secret, random: RandomBytes) -> None:
        self._log = log
        self._kek = kek
        self._random = random

    async def append(self, number: int, record: bytes) -> bool:
        """Write a record, sealed, or say no."""
        return await self._log.append(number, seal_record(self._kek, record, self._random(SALT_BYTES)))

    async def read(self, number: int) -> Sequence[bytes]:
        """Return the records from a place on. Raises `RefusedError` (`keys.unopened`, `keys.log-version`)."""
        return [open_record(self._kek, stored) for stored in await self._log.read(number)]

    async def forget(self, number: int) -> None:
        """Keep no record before a place."""
        await self._log.forget(number)

    async def close(self) -> None:
        """Let go of what the log needs."""
        await self._log.close()


Record: TypeAlias = KeyRecord | KeyCheckpoint


def read_record(data: bytes) -> UnverifiedValue[Record]:
    """Read a record of a log. Raises `MalformedError`, and `RefusedError` (`evolution.signature-mismatch`)."""
    kinds: tuple[type[Record], ...] = (KeyRecord, KeyCheckpoint)
    return read_signed(parse_canonical(data), *kinds)


# ----------------------------------------------------------------------------------------------------------------------
# Keys of epochs that are over, for logs: wrapped, and kept until somebody says that they are to be forgotten.


@dataclass(frozen=True, slots=True)
class _Over:
    """A key of an epoch that is over, wrapped, and since when it is."""

    since: datetime
    salt: bytes = field(repr=False)
    box: bytes = field(repr=False)


class Archive:
    """See the module. What is forgotten are always the oldest epochs of a group."""

    def __init__(self, kek: Secret, random: RandomBytes) -> None:
        self._kek = kek
        self._random = random
        self._over: dict[bytes, dict[int, _Over]] = {}

    def put(self, group: KeyGroup, epoch: int, key: Secret, since: datetime) -> None:
        """Keep the key of an epoch that is over from now on."""
        salt = self._random(SALT_BYTES)
        box = wrap_over(self._kek, key, salt, group, epoch)
        self._over.setdefault(group.id, {})[epoch] = _Over(since, salt, box)

    def get(self, group: KeyGroup, epoch: int) -> Secret:
        """Return the key of an epoch that is kept. Raises `KeyError`."""
        kept = self._over[group.id][epoch]
        return open_over(self._kek, kept.box, kept.salt, group, epoch)

    def kept(self, group: KeyGroup, first: int, last: int) -> list[int]:
        """Return which epochs are kept, from one to another; they follow each other."""
        return sorted(epoch for epoch in self._over.get(group.id, ()) if first <= epoch <= last)

    def forget(self, before: datetime) -> None:
        """Forget the keys of epochs that were over before an instant."""
        for group, kept in self._over.items():
            self._over[group] = {epoch: one for epoch, one in kept.items() if one.since >= before}

    def to_sexp(self, *, since: datetime | None = None) -> SExp:
        """Return what is kept, wrapped as it is; only of epochs that were not over before an instant."""
        return (
            b"archive",
            *(
                (group, *(_write(epoch, one) for epoch, one in kept.items() if since is None or one.since >= since))
                for group, kept in self._over.items()
            ),
        )

    def read(self, value: SExp) -> "Archive":
        """Return the archive that `to_sexp` wrote. Raises `RefusedError` (`keys.unopened`)."""
        found = Archive(self._kek, self._random)
        match value:
            case (b"archive", *groups):
                for group in groups:
                    name, kept = _group(group)
                    found._over[name] = dict(map(_read, kept))
                return found
        raise unopened()


def _write(epoch: int, one: _Over) -> SExp:
    return (str(epoch).encode(), format_date(one.since), one.salt, one.box)


def _read(value: SExp) -> tuple[int, _Over]:
    match value:
        case (bytes(epoch), bytes(since), bytes(salt), bytes(box)) if epoch.isdigit():
            return int(epoch), _Over(parse_date(since), salt, box)
    raise unopened()


def _group(value: SExp) -> tuple[bytes, Iterable[SExp]]:
    match value:
        case (bytes(name), *kept):
            return name, kept
    raise unopened()


# ----------------------------------------------------------------------------------------------------------------------
# Checkpoints: what a key manager knows, in its log, so that what came before can be forgotten.
#
#     (key-state (groups <group state> …) <archive>)
#
# wrapped under the key of the managers, in the context of the place where the checkpoint begins, and cut into parts.
# The parts follow each other in the log: where another replica's record is in between, they count for nothing, and
# whoever wanted the checkpoint begins again. A manager that reads a whole one, its own or another's, uses it from
# then on; so what was read of a log that begins with a checkpoint, and of one that has all records, is the same.


class CheckpointSource(Protocol):
    """What a checkpoint is made of: a `KeyFold`."""

    groups: dict[KeyGroup, GroupState]
    archive: Archive
    number: int
    head: bytes
    checkpoint: int

    @property
    def gathered(self) -> int:
        """How many parts of a checkpoint stand at the end of the log, if it is not whole."""


def write_state(
    known: CheckpointSource, kek: Secret, salt: bytes, *, since: datetime | None, limits: BrokerLimits
) -> list[bytes]:
    """Return the parts of a checkpoint that begins where the log ends. Raises `LimitError` (`keys.checkpoint`).

    Epochs that were over before `since` are left out.
    """
    sealed = wrap_state(kek, _written(known, since), salt, known.number)
    size = limits.key_checkpoint_bytes
    parts = [sealed[at : at + size] for at in range(0, len(sealed), size)]
    if len(parts) > limits.key_checkpoint_parts:
        raise LimitError(
            "keys.checkpoint",
            "there are too many keys for a checkpoint, and nothing of the log is forgotten",
            hint="forget old epochs first: `penstock keys forget`",
        )
    return parts


def _written(known: CheckpointSource, since: datetime | None) -> bytes:
    states = (b"groups", *(state.to_sexp() for state in known.groups.values()))
    return canonical((b"key-state", states, known.archive.to_sexp(since=since)))


def read_state(
    parts: Iterable[KeyCheckpoint], archive: Archive, kek: Secret
) -> tuple[dict[KeyGroup, GroupState], Archive]:
    """Return what the parts of a checkpoint hold. Raises `RefusedError` (`keys.unopened`)."""
    try:
        return _read_checkpoint([*parts], archive, kek)
    except PenstockError:
        # What was read of it is not to be seen in any report.
        raise unopened() from None


def _read_checkpoint(
    parts: list[KeyCheckpoint], archive: Archive, kek: Secret
) -> tuple[dict[KeyGroup, GroupState], Archive]:
    content = open_state(kek, b"".join(part.sealed for part in parts), parts[0].salt, parts[0].first)
    # It is our own, as long as it may be.
    match parse_canonical(content, limits=wide(len(content))):
        case (b"key-state", (b"groups", *states), kept):
            read = (GroupState.from_sexp(state) for state in states)
            return {state.group: state for state in read}, archive.read(kept)
    raise unopened()


class Condensing:
    """A checkpoint that a manager wants to have in its log, its parts while they are written, and what follows.

    What lies before a whole checkpoint is to be forgotten. Until the log has done so old keys are still there, so that
    it is asked for again and again, by whoever knows of the checkpoint.
    """

    def __init__(self, kek: Secret, random: RandomBytes, limits: BrokerLimits) -> None:
        self._kek = kek
        self._random = random
        self._limits = limits
        self.wanted = False
        #: epochs that were over before this instant are not to be kept
        self.since: datetime | None = None
        #: where nothing of the log is kept before, as far as is known
        self.forgotten = 0
        #: the instant for the parts that are being written, and that of the last checkpoint of them that is whole
        self._made: datetime | None = None
        self._left_out: datetime | None = None
        self._tried = 0
        self._salt = b""
        self._parts: list[bytes] = []
        #: until when another replica has the log for its checkpoint
        self._quiet: datetime | None = None

    def want(self, since: datetime | None) -> None:
        """Want one; who wants to keep less decides."""
        self.wanted = True
        if since is not None:
            self.since = since if self.since is None else max(since, self.since)

    def look(self, known: CheckpointSource) -> None:
        """Want one where the log is long."""
        if known.number - max(known.checkpoint, self._tried) >= self._limits.key_log:
            self.want(None)

    def waits(self, now: datetime) -> bool:
        """Say whether another replica is to be let write its checkpoint."""
        return self._quiet is not None and now < self._quiet

    def broken(self) -> None:
        """Begin again: another record stands between the parts."""
        self._parts = []

    def take(self, now: datetime, *, mine: bool, whole: bool) -> None:
        """Record that a part is in the log, of one's own checkpoint or of another's, and whether it was the last."""
        if not mine:
            self.broken()
            # Another replica is at it; what it writes is as good, unless something was to be forgotten.
            self._quiet = None if whole else now + timedelta(milliseconds=self._limits.key_retry)
            self.wanted = self.wanted and not (whole and self.since is None)
        elif whole:
            self.broken()
            self._left_out = self._made or self._left_out
            if self.since == self._made:
                self.wanted, self.since = False, None

    def has_left_out(self, before: datetime) -> bool:
        """Say whether a checkpoint of one's own is whole that has no epochs which were over before an instant."""
        return self._left_out is not None and self._left_out >= before

    def next(self, now: datetime, known: CheckpointSource, manager: Principal) -> KeyCheckpoint:
        """Return the part that comes next. Raises `LimitError` (`keys.checkpoint`); then nothing more is wanted."""
        number = known.gathered if self._parts and self._made == self.since else 0
        if not number:
            self._begin(known)
        data = self._parts[number]
        return KeyCheckpoint(manager, known.number, known.head, now, number, len(self._parts), self._salt, data)

    def _begin(self, known: CheckpointSource) -> None:
        since, self.wanted, self.since = self.since, False, None
        # Should it be too much, another is tried when the log is longer.
        self._tried = known.number
        self._salt = self._random(SALT_BYTES)
        self._parts = write_state(known, self._kek, self._salt, since=since, limits=self._limits)
        self.wanted, self.since, self._made = True, since, since


class CheckpointReader:
    """Puts the parts of a checkpoint together, as they come from the log."""

    def __init__(self) -> None:
        self._parts: list[KeyCheckpoint] = []

    @property
    def count(self) -> int:
        """How many parts were put together."""
        return len(self._parts)

    def whole(self, part: KeyCheckpoint) -> list[KeyCheckpoint]:
        """Return all parts, if this is the last one of those before it; nothing is kept by asking."""
        found = [*self._following(part), part]
        return found if len(found) == part.parts else []

    def take(self, part: KeyCheckpoint | None) -> None:
        """Keep a part until all are there; None for a record of another kind, which ends it."""
        following = [] if part is None or part.part + 1 == part.parts else [*self._following(part), part]
        # A part without those before it is of no use.
        self._parts = following if following and following[0].part == 0 else []

    def _following(self, part: KeyCheckpoint) -> Iterator[KeyCheckpoint]:
        last = self._parts[-1] if self._parts else None
        same = last is not None and (last.salt, last.parts, last.first) == (part.salt, part.parts, part.first)
        if same and last is not None and last.part + 1 == part.part:
            yield from self._parts


# ----------------------------------------------------------------------------------------------------------------------
# What the log of key managers says: all groups, and the keys of epochs that are over. A fold of its records.


@dataclass(frozen=True, slots=True)
class AppliedRecord:
    """The effect of a record: the message to members if an epoch begins, and whether a checkpoint is whole.

    One that does not follow from those before is skipped, by all who read it.
    """

    rekey: Rekey | None = field(default=None, repr=False)
    whole: bool = False
    skipped: RefusedError | None = None


class KeyFold:
    """See the module. Records of `replicas` count, and no others."""

    def __init__(self, kek: Secret, replicas: frozenset[Principal], random: RandomBytes, limits: BrokerLimits) -> None:
        self._kek = kek
        self._replicas = replicas
        self._limits = limits
        self.groups: dict[KeyGroup, GroupState] = {}
        self.archive = Archive(kek, random)
        #: how many records there are, the digest of the last, and where the last checkpoint begins
        self.number = 0
        self.head = BEGINNING
        self.checkpoint = 0
        self._gathering = CheckpointReader()
        #: whether records were left out, and the checkpoint in their place is not whole yet
        self._jumped = False

    @property
    def gathered(self) -> int:
        """How many parts of a checkpoint stand at the end of the log, if it is not whole."""
        return self._gathering.count

    def state(self, group: KeyGroup) -> GroupState:
        """Return the state of a group, also of one that has not begun."""
        return self.groups.get(group) or GroupState(group)

    def missed(self, state: GroupState, holder: Holder, first: int) -> list[Secret]:
        """Return the keys of the last epochs before this one that a member was to have: from `first` on, not too many.

        Labels that are still in use are asked for by themselves.
        """
        if not first or state.group.labels:
            return []
        since = max(first, holder.since, state.epoch - self._limits.key_waiting)
        return [
            self.archive.get(state.group, epoch) for epoch in self.archive.kept(state.group, since, state.epoch - 1)
        ]

    def released(self, state: GroupState, first: int, last: int) -> tuple[int, list[Secret]]:
        """Return the keys of epochs that are over, from one to another, and the first that is kept; not too many.

        Of labels, also that of now: it lasts for long, and events of a type that were read by then lie under it. Raises
        `RefusedError` (`keys.no-history`) where none of the epochs is over.
        """
        kept = self.archive.kept(state.group, first, last)
        if state.group.labels and state.tree and first <= state.epoch <= last:
            kept.append(state.epoch)
        if not kept or first < 1:
            raise RefusedError(
                "keys.no-history",
                "none of these epochs is over and kept",
                hint="epochs are counted from 1; the oldest ones may be forgotten",
            )
        released = kept[: self._limits.key_history]
        return kept[0], [
            state.tree.key() if epoch == state.epoch else self.archive.get(state.group, epoch) for epoch in released
        ]

    def take(self, signed: SignedValue[Record]) -> AppliedRecord:
        """Take in the next record. Raises as `KeyManager.take`; nothing has changed then."""
        record = signed.value
        if record.signer not in self._replicas or not self._is_next(record):
            raise RefusedError(
                "keys.log", "a record is not the next one of the log, or not of a manager", hint="read the log in order"
            )
        taken = self._take_part(record) if isinstance(record, KeyCheckpoint) else self._take_record(record)
        self.number, self.head = record.number + 1, signed.digest
        return taken

    def _is_next(self, record: Record) -> bool:
        if isinstance(record, KeyCheckpoint) and not record.part and record.number > self.number:
            return True
        # After a jump nothing is known before the checkpoint is whole.
        known = not self._jumped or isinstance(record, KeyCheckpoint)
        return known and (record.number, record.previous) == (self.number, self.head)

    def _take_record(self, record: KeyRecord) -> AppliedRecord:
        seed = open_seed(self._kek, record.seed, record.salt, record.word.group, record.number)
        state = self.state(record.word.group)
        self._gathering.take(None)
        try:
            state.check(record)
        except RefusedError as error:
            # It stays in the log, and whoever stopped at it would stop for good.
            return AppliedRecord(skipped=error)
        if record.refresh and state.epoch:
            self.archive.put(state.group, state.epoch, state.tree.key(), record.time)
        rekey = state.apply(record, seed)
        self.groups[state.group] = state
        return AppliedRecord(rekey)

    def _take_part(self, part: KeyCheckpoint) -> AppliedRecord:
        whole = self._gathering.whole(part)
        if whole:
            self.groups, self.archive = read_state(whole, self.archive, self._kek)
            self.checkpoint = part.first
        self._jumped = not whole and (self._jumped or part.number > self.number)
        self._gathering.take(part)
        return AppliedRecord(whole=bool(whole))
