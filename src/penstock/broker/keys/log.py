"""The log that the replicas of a key manager share, and the state that follows from its records.

A record is accepted at the position it is meant for, or not at all. This compare-and-swap is all that keeps replicas
from diverging. Any store that offers it will do: a folder with a
file for each record (`penstock.store.files.key_files`), a stream that takes an expected sequence (`penstock.fabric.
nats_log`). The log contains no readable key. Records name types and members, also blinded ones, so a manager seals
them to the managers before it stores them (`SealedLog`):

    0x02, salt (16 bytes), wrapped under the key-encryption key: length (4 bytes), record, zeros to a multiple of 256

A manager is a pure state machine, while a log may be slow. `node_keys.KeyScribe` connects them: nothing waits for it,
and nothing is sent before the log has the record.
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
from penstock.trust.signed import SignedValue, UnverifiedValue, parse_signed

# ----------------------------------------------------------------------------------------------------------------------
# The log that the replicas of a key manager share: a record is taken at the place it is meant for, or not at all.


class KeyLog(Protocol):
    """A store of records. An unreachable one raises `FailedError`; a record may then have been accepted or not."""

    async def append(self, number: int, record: bytes) -> bool:
        """Write a record at a position; return False and write nothing if the log does not end there."""

    async def read(self, number: int) -> Sequence[bytes]:
        """Return the records from a position on, or from the first one that is kept."""

    async def forget(self, number: int) -> None:
        """Drop all records before a position."""

    async def close(self) -> None:
        """Release the log's resources."""


class MemoryLog:
    """A log in memory. It never waits."""

    def __init__(self) -> None:
        self.records: list[bytes] = []
        self.first = 0

    async def append(self, number: int, record: bytes) -> bool:
        """Write a record, or return False."""
        if number != self.first + len(self.records):
            return False
        self.records.append(record)
        return True

    async def read(self, number: int) -> Sequence[bytes]:
        """Return the records from a position on."""
        return tuple(self.records[max(0, number - self.first) :])

    async def forget(self, number: int) -> None:
        """Drop all records before a position."""
        gone = max(0, min(number - self.first, len(self.records)))
        del self.records[:gone]
        self.first += gone

    async def close(self) -> None:
        """Do nothing: there are no resources."""


class SealedLog:
    """A log whose records only holders of the key-encryption key can read. It also reads unsealed records."""

    def __init__(self, log: KeyLog, kek: Secret, random: RandomBytes) -> None:
        self._log = log
        self._kek = kek
        self._random = random

    async def append(self, number: int, record: bytes) -> bool:
        """Write a record, sealed, or return False."""
        return await self._log.append(number, seal_record(self._kek, record, self._random(SALT_BYTES)))

    async def read(self, number: int) -> Sequence[bytes]:
        """Return the records from a position on. Raises `RefusedError` (`keys.unopened`, `keys.log-version`)."""
        return [open_record(self._kek, stored) for stored in await self._log.read(number)]

    async def forget(self, number: int) -> None:
        """Drop all records before a position."""
        await self._log.forget(number)

    async def close(self) -> None:
        """Release the log's resources."""
        await self._log.close()


Record: TypeAlias = KeyRecord | KeyCheckpoint


def read_record(data: bytes) -> UnverifiedValue[Record]:
    """Read a record. Raises `MalformedError`, and `RefusedError` (`evolution.signature-mismatch`)."""
    kinds: tuple[type[Record], ...] = (KeyRecord, KeyCheckpoint)
    return parse_signed(data, *kinds)


# ----------------------------------------------------------------------------------------------------------------------
# Keys of past epochs: wrapped, and kept until an operator has them forgotten. Logs are read with them.


@dataclass(frozen=True, slots=True)
class _Over:
    """The wrapped key of a past epoch, and when that epoch ended."""

    since: datetime
    salt: bytes = field(repr=False)
    box: bytes = field(repr=False)


class Archive:
    """The keys of past epochs, by group. Only the oldest epochs of a group are ever forgotten."""

    def __init__(self, kek: Secret, random: RandomBytes) -> None:
        self._kek = kek
        self._random = random
        self._over: dict[bytes, dict[int, _Over]] = {}

    def put(self, group: KeyGroup, epoch: int, key: Secret, since: datetime) -> None:
        """Keep the key of an epoch that has ended."""
        salt = self._random(SALT_BYTES)
        box = wrap_over(self._kek, key, salt, group, epoch)
        self._over.setdefault(group.id, {})[epoch] = _Over(since, salt, box)

    def get(self, group: KeyGroup, epoch: int) -> Secret:
        """Return the key of a kept epoch. Raises `KeyError`."""
        kept = self._over[group.id][epoch]
        return open_over(self._kek, kept.box, kept.salt, group, epoch)

    def kept(self, group: KeyGroup, first: int, last: int) -> list[int]:
        """Return the kept epochs in a range. They are consecutive."""
        return sorted(epoch for epoch in self._over.get(group.id, ()) if first <= epoch <= last)

    def forget(self, before: datetime) -> None:
        """Forget the keys of epochs that ended before a time."""
        for group, kept in self._over.items():
            self._over[group] = {epoch: one for epoch, one in kept.items() if one.since >= before}

    def to_sexp(self, *, since: datetime | None = None) -> SExp:
        """Return the wrapped keys of epochs that did not end before `since`."""
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
# Checkpoints: a key manager's whole state as records of its log, so that earlier records can be dropped.
#
#     (key-state (groups <group state> …) <archive>)
#
# wrapped under the managers' key, in the context of the position where the checkpoint starts, and cut into parts. The
# parts are consecutive in the log. If another replica's record is in between, they do not count, and the writer starts
# again. A manager that reads a whole checkpoint, its own or another's, continues from it. So a log that starts with a
# checkpoint and one that has all records give the same state.


class CheckpointSource(Protocol):
    """The state that a checkpoint is made of: a `KeyFold`."""

    groups: dict[KeyGroup, GroupState]
    archive: Archive
    number: int
    head: bytes
    checkpoint: int

    @property
    def gathered(self) -> int:
        """How many parts of an incomplete checkpoint are at the end of the log."""


def write_state(
    known: CheckpointSource, kek: Secret, salt: bytes, *, since: datetime | None, limits: BrokerLimits
) -> list[bytes]:
    """Return the parts of a checkpoint that starts where the log ends. Raises `LimitError` (`keys.checkpoint`).

    Epochs that ended before `since` are left out.
    """
    sealed = wrap_state(kek, _written(known, since), salt, known.number)
    size = limits.key_checkpoint_bytes
    parts = [sealed[at : at + size] for at in range(0, len(sealed), size)]
    if len(parts) > limits.key_checkpoint_parts:
        raise LimitError(
            "keys.checkpoint",
            f"a checkpoint of the key log takes more than {limits.key_checkpoint_parts} records: the log keeps growing",
            hint="forget old epochs: run `penstock sealing forget`",
        )
    return parts


def _written(known: CheckpointSource, since: datetime | None) -> bytes:
    states = (b"groups", *(state.to_sexp() for state in known.groups.values()))
    return canonical((b"key-state", states, known.archive.to_sexp(since=since)))


def read_state(
    parts: Iterable[KeyCheckpoint], archive: Archive, kek: Secret
) -> tuple[dict[KeyGroup, GroupState], Archive]:
    """Return the groups and the archive of a checkpoint. Raises `RefusedError` (`keys.unopened`)."""
    try:
        return _read_checkpoint([*parts], archive, kek)
    except PenstockError:
        # No report may quote the content.
        raise unopened() from None


def _read_checkpoint(
    parts: list[KeyCheckpoint], archive: Archive, kek: Secret
) -> tuple[dict[KeyGroup, GroupState], Archive]:
    content = open_state(kek, b"".join(part.sealed for part in parts), parts[0].salt, parts[0].first)
    # The managers wrote it, so its length is trusted.
    match parse_canonical(content, limits=wide(len(content))):
        case (b"key-state", (b"groups", *states), kept):
            read = (GroupState.from_sexp(state) for state in states)
            return {state.group: state for state in read}, archive.read(kept)
    raise unopened()


class Condensing:
    """The checkpoint that a manager wants in its log, and its parts while they are written.

    Records before a whole checkpoint must go. Until the log has dropped them it still has old keys, so every manager
    that knows the checkpoint asks for that again and again.
    """

    def __init__(self, kek: Secret, random: RandomBytes, limits: BrokerLimits) -> None:
        self._kek = kek
        self._random = random
        self._limits = limits
        self.wanted = False
        #: epochs that ended before this time are left out
        self.since: datetime | None = None
        #: the position before which the log keeps nothing, as far as is known
        self.forgotten = 0
        #: `since` of the parts that are being written, and of the last own checkpoint that is whole
        self._made: datetime | None = None
        self._left_out: datetime | None = None
        self._tried = 0
        self._salt = b""
        self._parts: list[bytes] = []
        #: until when another replica writes its checkpoint
        self._quiet: datetime | None = None

    def want(self, since: datetime | None) -> None:
        """Request a checkpoint; of two requests the later `since` counts."""
        self.wanted = True
        if since is not None:
            self.since = since if self.since is None else max(since, self.since)

    def look(self, known: CheckpointSource) -> None:
        """Request a checkpoint if the log has become long."""
        if known.number - max(known.checkpoint, self._tried) >= self._limits.key_log:
            self.want(None)

    def waits(self, now: datetime) -> bool:
        """Return whether to wait for another replica's checkpoint."""
        return self._quiet is not None and now < self._quiet

    def broken(self) -> None:
        """Start again: another record is between the parts."""
        self._parts = []

    def take(self, now: datetime, *, mine: bool, whole: bool) -> None:
        """Record that the log has a part of this or another manager's checkpoint, and whether it was the last."""
        if not mine:
            self.broken()
            # Another replica's checkpoint is as good, unless epochs had to be forgotten.
            self._quiet = None if whole else now + timedelta(milliseconds=self._limits.key_retry)
            self.wanted = self.wanted and not (whole and self.since is None)
        elif whole:
            self.broken()
            self._left_out = self._made or self._left_out
            if self.since == self._made:
                self.wanted, self.since = False, None

    def has_left_out(self, before: datetime) -> bool:
        """Return whether this manager has written a whole checkpoint without epochs that ended before a time."""
        return self._left_out is not None and self._left_out >= before

    def next(self, now: datetime, known: CheckpointSource, manager: Principal) -> KeyCheckpoint:
        """Return the next part. Raises `LimitError` (`keys.checkpoint`), and then drops the request."""
        number = known.gathered if self._parts and self._made == self.since else 0
        if not number:
            self._begin(known)
        data = self._parts[number]
        return KeyCheckpoint(manager, known.number, known.head, now, number, len(self._parts), self._salt, data)

    def _begin(self, known: CheckpointSource) -> None:
        since, self.wanted, self.since = self.since, False, None
        # If it is too large, try again only when the log is longer.
        self._tried = known.number
        self._salt = self._random(SALT_BYTES)
        self._parts = write_state(known, self._kek, self._salt, since=since, limits=self._limits)
        self.wanted, self.since, self._made = True, since, since


class CheckpointReader:
    """Joins the parts of a checkpoint as they come from the log."""

    def __init__(self) -> None:
        self._parts: list[KeyCheckpoint] = []

    @property
    def count(self) -> int:
        """How many parts were joined."""
        return len(self._parts)

    def whole(self, part: KeyCheckpoint) -> list[KeyCheckpoint]:
        """Return all parts if this is the last one, otherwise nothing. Changes nothing."""
        found = [*self._following(part), part]
        return found if len(found) == part.parts else []

    def take(self, part: KeyCheckpoint | None) -> None:
        """Keep a part until all are there. None, for any other record, drops the parts."""
        following = [] if part is None or part.part + 1 == part.parts else [*self._following(part), part]
        # A part without those before it is useless.
        self._parts = following if following and following[0].part == 0 else []

    def _following(self, part: KeyCheckpoint) -> Iterator[KeyCheckpoint]:
        last = self._parts[-1] if self._parts else None
        same = last is not None and (last.salt, last.parts, last.first) == (part.salt, part.parts, part.first)
        if same and last is not None and last.part + 1 == part.part:
            yield from self._parts


# ----------------------------------------------------------------------------------------------------------------------
# The state that follows from the log: all groups, and the keys of past epochs.


@dataclass(frozen=True, slots=True)
class AppliedRecord:
    """The effect of a record: the message to members if an epoch starts, and whether a checkpoint is whole.

    All managers skip a record that does not follow from those before it.
    """

    rekey: Rekey | None = field(default=None, repr=False)
    whole: bool = False
    skipped: RefusedError | None = None


class KeyFold:
    """The state that follows from the log's records. Only records of `replicas` count."""

    def __init__(self, kek: Secret, replicas: frozenset[Principal], random: RandomBytes, limits: BrokerLimits) -> None:
        self._kek = kek
        self._replicas = replicas
        self._limits = limits
        self.groups: dict[KeyGroup, GroupState] = {}
        self.archive = Archive(kek, random)
        #: how many records there are, the digest of the last, and where the last checkpoint starts
        self.number = 0
        self.head = BEGINNING
        self.checkpoint = 0
        self._gathering = CheckpointReader()
        #: whether records were skipped for a checkpoint that is not whole yet
        self._jumped = False

    @property
    def gathered(self) -> int:
        """How many parts of an incomplete checkpoint are at the end of the log."""
        return self._gathering.count

    def state(self, group: KeyGroup) -> GroupState:
        """Return the state of a group, also of one that does not exist yet."""
        return self.groups.get(group) or GroupState(group)

    def missed(self, state: GroupState, holder: Holder, first: int) -> list[Secret]:
        """Return the keys of the previous epochs that a member has missed: from `first` on, up to `key_waiting`.

        Members ask for labels that are still in use separately.
        """
        if not first or state.group.labels:
            return []
        since = max(first, holder.since, state.epoch - self._limits.key_waiting)
        return [
            self.archive.get(state.group, epoch) for epoch in self.archive.kept(state.group, since, state.epoch - 1)
        ]

    def released(self, state: GroupState, first: int, last: int) -> tuple[int, list[Secret]]:
        """Return the first kept epoch of a range, and the keys from there on, up to `key_history`.

        For labels this includes the current key: it lasts long, and earlier events are labelled with it. Raises
        `RefusedError` (`keys.no-history`) if none of the epochs is both over and kept.
        """
        kept = self.archive.kept(state.group, first, last)
        if state.group.labels and state.tree and first <= state.epoch <= last:
            kept.append(state.epoch)
        if not kept or first < 1:
            raise RefusedError(
                "keys.no-history",
                "none of these epochs is both over and kept",
                hint="ask for epochs from 1 on that are over; the oldest ones may have been forgotten",
            )
        released = kept[: self._limits.key_history]
        return kept[0], [
            state.tree.key() if epoch == state.epoch else self.archive.get(state.group, epoch) for epoch in released
        ]

    def take(self, signed: SignedValue[Record]) -> AppliedRecord:
        """Apply the next record. Raises as `KeyManager.take`, and then changes nothing."""
        record = signed.value
        if record.signer not in self._replicas or not self._is_next(record):
            raise RefusedError(
                "keys.log", "a record is not the next one of the log, or not a manager's", hint="read the log in order"
            )
        taken = self._take_part(record) if isinstance(record, KeyCheckpoint) else self._take_record(record)
        self.number, self.head = record.number + 1, signed.digest
        return taken

    def _is_next(self, record: Record) -> bool:
        if isinstance(record, KeyCheckpoint) and not record.part and record.number > self.number:
            return True
        # After a jump, only the rest of the checkpoint can follow.
        known = not self._jumped or isinstance(record, KeyCheckpoint)
        return known and (record.number, record.previous) == (self.number, self.head)

    def _take_record(self, record: KeyRecord) -> AppliedRecord:
        seed = open_seed(self._kek, record.seed, record.salt, record.word.group, record.number)
        state = self.state(record.word.group)
        self._gathering.take(None)
        try:
            state.check(record)
        except RefusedError as error:
            # It stays in the log: a manager that stopped here would never continue.
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
