"""A decision log as an append-only file of JSON lines.

A record counts as written when it is on the disk: `append` hands it to the system, and `sync` returns when all are
safe. A record that a crash truncated stays on a line of its own: a reader quarantines it, and the next record is
complete. The file is reopened for each record, so that it can be moved away at any time, and several processes can
write to one file.
"""

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Protocol

from penstock.errors import FailedError
from penstock.store.files.files import sync_folder


class LogRecord(Protocol):
    """A record of a log: of a decision, of a revocation, of a sample of a component."""

    def to_json(self) -> str:
        """Return the record as one line of JSON."""
        ...


@dataclass(frozen=True, slots=True)
class DecisionFile:
    """A sink for decision records. Raises `FailedError` (`log.write`) if a record could not be stored."""

    path: Path
    #: open files that are not synced yet, by device and inode
    _unsafe: dict[tuple[int, int], int] = field(init=False, default_factory=dict, repr=False, compare=False)
    _new: list[None] = field(init=False, default_factory=list, repr=False, compare=False)

    def __call__(self, entry: LogRecord) -> None:
        """Append one record, and make it safe."""
        self.append(entry)
        self.sync()

    def append(self, entry: LogRecord) -> None:
        """Append one record; it is safe when `sync` has returned."""
        line = f"{entry.to_json()}\n".encode()
        try:
            if not self.path.exists():
                self._new.append(None)
            # Readable by its owner only: it shows who asks for what.
            file = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                whole = _append(file, line)
            finally:
                self._keep_open(file)
        except OSError as error:
            raise _failed(self.path, error.strerror or "it failed") from error
        if not whole:
            raise _failed(self.path, "not all of a record could be written")

    def sync(self) -> None:
        """Sync everything that was appended, also to a file that has been moved away since."""
        try:
            while self._unsafe:
                place, file = next(iter(self._unsafe.items()))
                os.fsync(file)
                del self._unsafe[place]
                os.close(file)
            if self._new:
                sync_folder(self.path.parent)
                self._new.clear()
        except OSError as error:
            raise _failed(self.path, error.strerror or "it failed") from error

    def _keep_open(self, file: int) -> None:
        """Keep a file open until it is synced; open it once, however many records it takes."""
        found = os.fstat(file)
        if self._unsafe.setdefault((found.st_dev, found.st_ino), file) != file:
            os.close(file)


@dataclass(frozen=True, slots=True)
class GuardFile:
    """A file with the results of guards, a line of JSON for each event and guard: `time`, `event`, `guard`, `held`.

    `held` is null if a guard failed or is not known. Pipelines read it, so that history can be replayed.
    """

    path: Path
    clock: Callable[[], datetime]

    def append(self, event: str, guard: str, held: bool | None) -> None:
        """Append a result, without waiting for the disk. Raises `FailedError` (`log.write`)."""
        found = {"time": self.clock().isoformat(), "event": event, "guard": guard, "held": held}
        line = f"{json.dumps(found, separators=(',', ':'))}\n".encode()
        try:
            file = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                whole = _append(file, line)
            finally:
                os.close(file)
        except OSError as error:
            raise _failed(self.path, error.strerror or "it failed") from error
        if not whole:
            raise _failed(self.path, "not all of a record could be written")


def _append(file: int, line: bytes) -> bool:
    """Write in one piece, on a new line if a crash truncated the last one. Return whether all of it was written."""
    size = os.fstat(file).st_size
    torn = size > 0 and os.pread(file, 1, size - 1) != b"\n"
    data = b"\n" + line if torn else line
    return os.write(file, data) == len(data)


def _failed(path: Path, why: str) -> FailedError:
    hint = "nothing is allowed that cannot be recorded: make room, or name another file"
    return FailedError("log.write", f"a decision cannot be written to `{path}`: {why}", hint=hint)
