"""A decision log as a file of JSON lines, which only grows.

A record counts as written when it is on the disk. What a crash cut off stays a line of its own: a reader finds it in
quarantine, and the next record whole. The file is opened anew for each record, so that it can be moved away at any
time, and several processes may write to one.
"""

import os
from dataclasses import dataclass
from pathlib import Path

from penstock.errors import FailedError
from penstock.guard import DecisionRecord
from penstock.guard.revocation_log import RevocationRecord
from penstock.store.files import sync_folder


@dataclass(frozen=True, slots=True)
class DecisionFile:
    """A sink for decision records. Raises `FailedError` (`log.write`) when a record could not be made safe."""

    path: Path

    def __call__(self, entry: DecisionRecord | RevocationRecord) -> None:
        """Append one record."""
        line = f"{entry.to_json()}\n".encode()
        try:
            new = not self.path.exists()
            # For its owner alone: who asks for what is nobody else's business.
            file = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                whole = _append(file, line)
                os.fsync(file)
            finally:
                os.close(file)
            if new:
                sync_folder(self.path.parent)
        except OSError as error:
            raise _failed(self.path, error.strerror or "it failed") from error
        if not whole:
            raise _failed(self.path, "not all of a record could be written")


def _append(file: int, line: bytes) -> bool:
    """Write in one piece, behind the end of what a crash cut off. Say whether all of it was written."""
    size = os.fstat(file).st_size
    torn = size > 0 and os.pread(file, 1, size - 1) != b"\n"
    data = b"\n" + line if torn else line
    return os.write(file, data) == len(data)


def _failed(path: Path, why: str) -> FailedError:
    hint = "nothing is allowed that cannot be recorded: make room, or name another file"
    return FailedError("log.write", f"a decision cannot be written to `{path}`: {why}", hint=hint)
