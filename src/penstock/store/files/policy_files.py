"""The chain of an owner's policy events as an append-only file: one signed event per line, in transport form.

1. An event is on the disk before it is sent. So an event that was truncated while it was written was never sent,
   and another one can be signed instead of it; anything else would fork the policy.
2. One process at a time continues a chain (`hold`); the lock ends with the process.
3. A checkpoint of several events is stored completely or not at all.

The file `<file>.state` stores how far events were submitted, and the last time-stamp: the owner must not go back behind
them, but they are not part of the chain. If it is lost, more events than necessary are submitted again.

    (chain-state (handed-in <n>) [<signed time-stamp>])
"""

import fcntl
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Self

from penstock.codec.sexp import SExp, advanced, parse, transport
from penstock.errors import FailedError, MalformedError, PenstockError, RefusedError, printable
from penstock.model.principals import Principal
from penstock.store.files.files import read_file, reason, replace_file, sync_folder, unreadable, within
from penstock.trust.policy_events import BEGINNING, PolicyEvent, TimeStamp
from penstock.trust.signed import SignedValue, read_count, read_signed

# ----------------------------------------------------------------------------------------------------------------------
# A node's knowledge of owners' policies: a folder with a file for each owner, replaced atomically.
#
# Another file lists the brokers that the node has seen and waits for. Issuers of validity statements have files too.


_BROKERS: Final = "brokers.seen"


@dataclass(frozen=True, slots=True)
class PolicyFolder:
    """A folder of policy snapshots, which must exist. The broker signs them, and verifies them when it reads them."""

    path: Path

    def load(self) -> Iterator[bytes]:
        """Yield all snapshots. Raises `FailedError` (`file.unreadable`)."""
        yield from self._load("policy")

    def save(self, owner: Principal, snapshot: bytes) -> None:
        """Replace an owner's snapshot. Raises `FailedError` (`file.unwritable`)."""
        replace_file(self._file(owner, "policy"), snapshot)

    def load_statements(self) -> Iterator[bytes]:
        """Yield the validity statements of all issuers. Raises `FailedError` (`file.unreadable`)."""
        yield from self._load("statements")

    def save_statements(self, issuer: Principal, snapshot: bytes) -> None:
        """Replace an issuer's validity statements, or remove them (empty). Raises `FailedError` (`file.unwritable`)."""
        file = self._file(issuer, "statements")
        if snapshot:
            replace_file(file, snapshot)
            return
        try:
            file.unlink(missing_ok=True)
        except OSError as error:
            raise FailedError("file.unwritable", f"`{file}` cannot be removed: {reason(error)}") from error

    def _load(self, kind: str) -> Iterator[bytes]:
        for file in sorted(self.path.glob(f"*.{kind}")):
            try:
                yield file.read_bytes()
            except OSError as error:
                raise FailedError("file.unreadable", f"`{file}` cannot be read: {error.strerror}") from error

    def _file(self, about: Principal, kind: str) -> Path:
        return self.path / f"{str(about).replace(':', '-')}.{kind}"

    def load_brokers(self) -> bytes:
        """Return the brokers that the node has seen. Raises `FailedError` (`file.unreadable`)."""
        file = self.path / _BROKERS
        try:
            return file.read_bytes() if file.exists() else b""
        except OSError as error:
            raise unreadable(str(file), error) from error

    def save_brokers(self, seen: bytes) -> None:
        """Store the brokers that the node has seen. Raises `FailedError` (`file.unwritable`)."""
        replace_file(self.path / _BROKERS, seen)


# ----------------------------------------------------------------------------------------------------------------------
# The chain of an owner's policy events as an append-only file.


_FETCH: Final = "get what is missing with `penstock net chain fetch`"


@dataclass(frozen=True, slots=True)
class Chain:
    """The valid part of a file: verified events, and the error in the rest.

    `size` is the number of bytes of these events. `torn` means that a crash truncated the rest.
    """

    events: tuple[SignedValue[PolicyEvent], ...] = ()
    size: int = 0
    problem: RefusedError | None = None

    @property
    def torn(self) -> bool:
        """Say whether the last event is incomplete."""
        return self.problem is not None and self.problem.code == "evolution.torn"

    @property
    def owner(self) -> Principal | None:
        """Return the owner; None for a chain without events."""
        return self.events[0].value.owner if self.events else None

    @property
    def number(self) -> int:
        """The number of the last event."""
        return self.events[-1].value.number if self.events else 0

    @property
    def head(self) -> bytes:
        """The digest of the last event."""
        return self.events[-1].digest if self.events else BEGINNING

    def verify(self) -> None:
        """Raise `RefusedError` (`evolution.torn`, `evolution.broken`) unless the whole file is valid."""
        if self.problem is not None:
            raise self.problem

    def since(self, number: int) -> tuple[SignedValue[PolicyEvent], ...]:
        """Return the events after a number, but none before the last checkpoint."""
        begin = max((index for index, event in enumerate(self.events) if event.value.checkpoint is not None), default=0)
        return tuple(event for event in self.events[begin:] if event.value.number > number)


@dataclass(frozen=True, slots=True)
class ChainState:
    """How far an owner's events were submitted, and the last time-stamp."""

    handed_in: int = 0
    stamp: SignedValue[TimeStamp] | None = field(default=None, repr=False)

    def to_sexp(self) -> SExp:
        """Return the state as it is stored."""
        stamp = () if self.stamp is None else (self.stamp.to_sexp(),)
        return (b"chain-state", (b"handed-in", str(self.handed_in).encode()), *stamp)

    @classmethod
    def from_sexp(cls, value: SExp) -> "ChainState":
        """Read a state. Raises `MalformedError` (`evolution.chain-state` and as time-stamps), `RefusedError`."""
        match value:
            case (b"chain-state", (b"handed-in", bytes(number))):
                return cls(read_count(number))
            case (b"chain-state", (b"handed-in", bytes(number)), tuple(stamp)):
                return cls(read_count(number), read_signed(stamp, TimeStamp).verify())
        hint = "remove the file, and everything is submitted again"
        raise MalformedError("evolution.chain-state", "not the state of a chain", hint=hint)


# Reading.


def read_chain(data: bytes) -> Chain:
    """Read and verify a chain, up to the first error in it."""
    found: list[SignedValue[PolicyEvent]] = []
    ends = [0]
    *lines, rest = data.split(b"\n")
    for number, line in enumerate([*lines, rest] if rest else lines, 1):
        try:
            event = read_signed(_record(line), PolicyEvent).verify()
            check_next(found[-1] if found else None, event)
        except PenstockError as error:
            return _whole(found, ends, _torn() if number > len(lines) else _broken(number, error))
        found.append(event)
        ends.append(min(ends[-1] + len(line) + 1, len(data)))
    return _whole(found, ends, None)


def check_next(last: SignedValue[PolicyEvent] | None, event: SignedValue[PolicyEvent]) -> None:
    """Check that an event follows another one. A file begins with the owner's first event or with a checkpoint.

    Raises `RefusedError`: `evolution.other-owner`, `evolution.not-next`, `evolution.backwards`.
    """
    value = event.value
    if last is None:
        if value.number != 1 and value.checkpoint is None:
            raise RefusedError(
                "evolution.not-next", f"a chain cannot begin with policy event {value.number}: it is not a checkpoint"
            )
        return
    if value.owner != last.value.owner:
        raise RefusedError("evolution.other-owner", "a policy event of another owner")
    if (value.number, value.previous) != (last.value.number + 1, last.digest):
        raise RefusedError("evolution.not-next", f"policy event {value.number} does not follow {last.value.number}")
    if value.time < last.value.time:
        raise RefusedError("evolution.backwards", f"policy event {value.number} is older than the previous one")


def _record(line: bytes) -> SExp:
    value = parse(line)
    if transport(value) != line:
        raise MalformedError("evolution.malformed", "a line is not in its one written form")
    return value


def _whole(events: list[SignedValue[PolicyEvent]], ends: list[int], problem: RefusedError | None) -> Chain:
    """Leave out a checkpoint that lacks some of its parts."""
    begins = [index for index, event in enumerate(events) if event.value.checkpoint is not None]
    if begins and begins[-1] + (events[begins[-1]].value.checkpoint or 0) >= len(events):
        return Chain(tuple(events[: begins[-1]]), ends[begins[-1]], problem or _torn())
    return Chain(tuple(events), ends[-1], problem)


def _torn() -> RefusedError:
    hint = "the next change of policy cuts it off, if it was never sent"
    return RefusedError("evolution.torn", "the last policy event was not written to its end", hint=hint)


def _broken(line: int, error: PenstockError) -> RefusedError:
    hint = f"restore the file from a copy, or move it away and {_FETCH}"
    return RefusedError("evolution.broken", f"line {line}: {error.message}", hint=hint, line=line, reason=error.code)


# Writing.


@dataclass(frozen=True, slots=True)
class ChainFile:
    """The file of a chain, and its state file."""

    path: Path

    def read(self) -> Chain:
        """Read the current chain; a missing file means an empty chain. Raises as `read_file`."""
        if not self.path.exists():
            return Chain()
        chain = read_chain(read_file(str(self.path)))
        return chain if chain.problem is None else replace(chain, problem=_about(self.path, chain.problem))

    def state(self) -> ChainState | None:
        """Read the state file beside the chain, if it exists. Raises as `read_file` and `ChainState.from_sexp`."""
        beside = self.beside
        if not beside.exists():
            return None
        with within(str(beside)):
            return ChainState.from_sexp(parse(read_file(str(beside))))

    @property
    def beside(self) -> Path:
        """Return the path of the state file."""
        return self.path.with_name(f"{self.path.name}.state")

    def hold(self) -> "HeldChain":
        """Lock the chain for this process; create the file if there is none.

        Raises `RefusedError` (`evolution.busy`, `evolution.broken`), `FailedError` (`file.*`), and as `state`.
        """
        try:
            file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise _unwritable(self.path, error) from error
        try:
            self._lock(file)
            chain = self.read()
            if not chain.torn:
                chain.verify()
            return HeldChain(self, file, chain, self.state())
        except BaseException:
            os.close(file)
            raise

    def _lock(self, file: int) -> None:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            taken = os.fstat(file).st_ino != self.path.stat().st_ino  # the file was replaced meanwhile
        except OSError:
            taken = True
        if taken:
            raise RefusedError(
                "evolution.busy", f"`{self.path}` is in use by another process", hint="try again when it is done"
            )


class HeldChain:
    """A chain that this process has locked, until it is closed."""

    def __init__(self, file: ChainFile, handle: int, chain: Chain, state: ChainState | None) -> None:
        self.file = file
        self.chain = chain
        self._handle = handle
        self._state = state

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._handle)

    @property
    def state(self) -> ChainState:
        """Return the state beside the chain."""
        return self._state or ChainState()

    def check(self, owner: Principal) -> None:
        """Check that the owner may continue from here, as far as the files show.

        (1) It is the owner's chain. (2) Everything that was sent is in it. (3) A truncated event was not sent: each
        event is submitted before the next one is signed, and that is noted in the state file.

        Raises `RefusedError`: `evolution.other-owner`, `evolution.old-chain`, `evolution.torn`.
        """
        path, chain = self.file.path, self.chain
        # (1) An event signed by another owner would start a chain of its own.
        if chain.owner not in (None, owner):
            raise _about(path, RefusedError("evolution.other-owner", "the chain belongs to another owner"))
        # (2) Rule 1 of the module: then the file is an old copy.
        if self.state.handed_in > chain.number:
            message = f"`{path}` ends with policy event {chain.number}, and {self.state.handed_in} was handed in"
            raise RefusedError("evolution.old-chain", message, hint=_FETCH)
        stamp = self.state.stamp
        if stamp is not None and (stamp.value.owner != owner or stamp.value.number > chain.number):
            message = f"`{self.file.beside}` has a time-stamp of what is not in the chain"
            raise RefusedError("evolution.old-chain", message, hint=_FETCH)
        # (3) Without a note it is unknown.
        if chain.torn and chain.events and self._state is None:
            raise _about(path, RefusedError("evolution.torn", "it is unknown who received the last event", hint=_FETCH))

    def cut(self) -> bool:
        """Remove an incomplete last event; return whether there was one. Raises `FailedError`."""
        if not self.chain.torn:
            return False
        try:
            os.ftruncate(self._handle, self.chain.size)
            os.fsync(self._handle)
        except OSError as error:
            raise _unwritable(self.file.path, error) from error
        self.chain = replace(self.chain, problem=None)
        return True

    def append(self, events: Sequence[SignedValue[PolicyEvent]]) -> None:
        """Append the next events; return when they are synced to the disk.

        Raises `FailedError` (`file.unwritable`), and what `check_next` raises. Then the file is unchanged.
        """
        whole = self.chain.events
        for event in events:
            check_next(whole[-1] if whole else None, event)
            whole = (*whole, event)
        self.cut()
        size = os.fstat(self._handle).st_size
        try:
            # The last event is valid, but its line feed is missing.
            begin = b"\n" if size and os.pread(self._handle, 1, size - 1) != b"\n" else b""
            data = begin + b"".join(transport(event.to_sexp()) + b"\n" for event in events)
            _write(self._handle, data)
            os.fsync(self._handle)
            sync_folder(self.file.path.parent)
        except OSError as error:
            os.ftruncate(self._handle, size)
            raise _unwritable(self.file.path, error) from error
        self.chain = Chain(whole, size + len(data))

    def note(self, *, handed_in: int | None = None, stamp: SignedValue[TimeStamp] | None = None) -> None:
        """Store how far events were submitted, or a time-stamp before it is sent; return when it is safe. Raises
        `FailedError`.
        """
        now = self.state
        state = ChainState(max(now.handed_in, handed_in or 0), stamp or now.stamp)
        if state != self._state:
            replace_file(self.file.beside, advanced(state.to_sexp()).encode() + b"\n")
            self._state = state


def _write(handle: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(handle, rest) :]


def _about(path: Path, error: RefusedError) -> RefusedError:
    error.message = f"`{printable(str(path))}`: {error.message}"
    return error


def _unwritable(path: Path, error: OSError) -> FailedError:
    return FailedError("file.unwritable", f"`{path}` cannot be written: {reason(error)}")
