"""Checkpoints: what a key manager knows, in its log, so that what came before can be forgotten.

    (key-state (groups <group state> …) <archive>)

wrapped under the key of the managers, in the context of the place where the checkpoint begins, and cut into parts. The
parts follow each other in the log: where another replica's record is in between, they count for nothing, and whoever
wanted the checkpoint begins anew. A manager that reads a whole one, its own or another's, goes by it from then on; so
what was read of a log that begins with a checkpoint, and of one that has all records, is the same.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from datetime import datetime
from typing import Protocol

from penstock.broker.key_archive import Archive
from penstock.broker.key_group import GroupState
from penstock.broker.key_sealing import open_state, wrap_state
from penstock.codec.sexp import canonical, parse_canonical
from penstock.crypto.keyfile import RandomBytes
from penstock.crypto.wrapping import SALT_BYTES, Secret, unopened
from penstock.errors import LimitError, PenstockError
from penstock.model.limits import Limits
from penstock.trust.key_messages import KeyGroup
from penstock.trust.key_records import KeyCheckpoint


class Known(Protocol):
    """What a checkpoint is made of: a `KeyFold`."""

    groups: dict[KeyGroup, GroupState]
    archive: Archive
    number: int


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
    """A checkpoint that a manager wants to have in its log, and its parts while they are written."""

    def __init__(self) -> None:
        self.wanted = False
        #: epochs that were over before this instant are not to be kept
        self.since: datetime | None = None
        self._salt = b""
        self._parts: list[bytes] = []

    def want(self, since: datetime | None) -> None:
        """Want one; who wants to keep less decides."""
        self.wanted = True
        if since is not None:
            self.since = since if self.since is None else max(since, self.since)

    def broken(self) -> None:
        """Begin anew: another record stands between the parts."""
        self._parts = []

    def done(self) -> None:
        """Want nothing more."""
        self.wanted, self.since, self._parts = False, None, []

    def next(self, written: int, parts: Callable[[bytes], list[bytes]], random: RandomBytes) -> tuple[int, int, bytes]:
        """Return which part comes after so many that are written, of how many, and the salt of all of them.

        `parts` makes them. Raises what it raises; then nothing more is wanted.
        """
        number = written if self._parts else 0
        if not number:
            self.wanted = False
            self._salt = random(SALT_BYTES)
            self._parts = parts(self._salt)
            self.wanted = True
        return number, len(self._parts), self._salt

    def part(self, number: int) -> bytes:
        """Return a part."""
        return self._parts[number]


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
