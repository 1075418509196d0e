"""Checkpoints: what a key manager knows, in its log, so that what came before can be forgotten.

    (key-state (groups <group state> …) <archive>)

wrapped under the key of the managers, in the context of the place where the checkpoint begins, and cut into parts. The
parts follow each other in the log: where another replica's record is in between, they count for nothing, and whoever
wanted the checkpoint begins anew. A manager that reads a whole one, its own or another's, goes by it from then on; so
what was read of a log that begins with a checkpoint, and of one that has all records, is the same.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Protocol

from penstock.broker.key_archive import Archive
from penstock.broker.key_group import GroupState
from penstock.broker.key_sealing import open_state, wrap_state
from penstock.codec.sexp import canonical, parse_canonical
from penstock.crypto.keyfile import RandomBytes
from penstock.crypto.wrapping import SALT_BYTES, Secret, unopened
from penstock.errors import LimitError, PenstockError
from penstock.model.limits import Limits
from penstock.model.principals import Principal
from penstock.trust.key_messages import KeyGroup
from penstock.trust.key_records import KeyCheckpoint


class Known(Protocol):
    """What a checkpoint is made of: a `KeyFold`."""

    groups: dict[KeyGroup, GroupState]
    archive: Archive
    number: int
    head: bytes
    checkpoint: int

    @property
    def gathered(self) -> int:
        """How many parts of a checkpoint stand at the end of the log, if it is not whole."""


def write_state(known: Known, kek: Secret, salt: bytes, *, since: datetime | None, limits: Limits) -> list[bytes]:
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


def _written(known: Known, since: datetime | None) -> bytes:
    states = (b"groups", *(state.to_sexp() for state in known.groups.values()))
    return canonical((b"key-state", states, known.archive.to_sexp(since=since)))


def read_state(
    parts: Iterable[KeyCheckpoint], archive: Archive, kek: Secret, limits: Limits
) -> tuple[dict[KeyGroup, GroupState], Archive]:
    """Return what the parts of a checkpoint hold. Raises `RefusedError` (`keys.unopened`)."""
    try:
        return _read([*parts], archive, kek, limits)
    except PenstockError:
        # What was read of it is not to be seen in any report.
        raise unopened() from None


def _read(
    parts: list[KeyCheckpoint], archive: Archive, kek: Secret, limits: Limits
) -> tuple[dict[KeyGroup, GroupState], Archive]:
    content = open_state(kek, b"".join(part.sealed for part in parts), parts[0].salt, parts[0].first)
    # It is our own, as long as it may be.
    own = replace(limits, sexp_bytes=len(content), sexp_nodes=len(content))
    match parse_canonical(content, limits=own):
        case (b"key-state", (b"groups", *states), kept):
            read = (GroupState.from_sexp(state) for state in states)
            return {state.group: state for state in read}, archive.read(kept)
    raise unopened()


class Condensing:
    """A checkpoint that a manager wants to have in its log, its parts while they are written, and what follows.

    What lies before a whole checkpoint is to be forgotten. Until the log has done so old keys are still there, so that
    it is asked for again and again, by whoever knows of the checkpoint.
    """

    def __init__(self, kek: Secret, random: RandomBytes, limits: Limits) -> None:
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

    def look(self, known: Known) -> None:
        """Want one where the log is long."""
        if known.number - max(known.checkpoint, self._tried) >= self._limits.key_log:
            self.want(None)

    def waits(self, now: datetime) -> bool:
        """Say whether another replica is to be let write its checkpoint."""
        return self._quiet is not None and now < self._quiet

    def broken(self) -> None:
        """Begin anew: another record stands between the parts."""
        self._parts = []

    def take(self, now: datetime, *, mine: bool, whole: bool) -> None:
        """Take note that a part is in the log, of one's own checkpoint or of another's, and whether it was the last."""
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

    def next(self, now: datetime, known: Known, manager: Principal) -> KeyCheckpoint:
        """Return the part that comes next. Raises `LimitError` (`keys.checkpoint`); then nothing more is wanted."""
        number = known.gathered if self._parts and self._made == self.since else 0
        if not number:
            self._begin(known)
        octets = self._parts[number]
        return KeyCheckpoint(manager, known.number, known.head, now, number, len(self._parts), self._salt, octets)

    def _begin(self, known: Known) -> None:
        since, self.wanted, self.since = self.since, False, None
        # Should it be too much, another is tried when the log is longer.
        self._tried = known.number
        self._salt = self._random(SALT_BYTES)
        self._parts = write_state(known, self._kek, self._salt, since=since, limits=self._limits)
        self.wanted, self.since, self._made = True, since, since


class Gathering:
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
