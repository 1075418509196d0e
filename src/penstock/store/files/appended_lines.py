"""A log file to which lines are appended quickly: the system has a line before it is answered, the disk soon after."""

import os
from pathlib import Path

from penstock.errors import FailedError


class AppendedLines:
    """Appends to a file that others may move away. Raises `FailedError` (`log.write`) if a line could not be written.

    The caller calls `sync` from time to time: it flushes to the disk, and notices when the file was moved away.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: int | None = None
        self._unsynced = False

    def write(self, lines: bytes) -> None:
        """Append whole lines."""
        try:
            if self._file is None:
                # Only its owner can read it: requests are confidential.
                flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
                self._file = os.open(self._path, flags, 0o600)
            whole = os.write(self._file, lines) == len(lines)
        except OSError as error:
            raise self._failed(error.strerror or "it failed") from error
        self._unsynced = True
        if not whole:
            # A line that was cut off stays a separate line.
            os.write(self._file, b"\n")
            raise self._failed("not all of a record could be written")

    def sync(self) -> None:
        """Flush to the disk, and check whether the file still has its name."""
        if self._file is None:
            return
        try:
            if self._unsynced:
                os.fsync(self._file)
                self._unsynced = False
            if not self._path.exists() or not os.path.samestat(self._path.stat(), os.fstat(self._file)):
                self.close()
        except OSError as error:
            raise self._failed(error.strerror or "it failed") from error

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _failed(self, why: str) -> FailedError:
        self.close()
        hint = "nothing is allowed that cannot be recorded: make room, or name another file"
        return FailedError("log.write", f"a decision cannot be written to `{self._path}`: {why}", hint=hint)
