"""A log as a folder with a file for each record: each file is whole and safe on the disk.

A record is written under another name, made safe, and then given its own, which the system does as a whole and for one
only: of two processes that write to the same place, one is refused. What a crash left under other names counts for
nothing, and is removed. A lock, which ends with its process, keeps apart those who write and those who forget.

The folder may be shared by processes of one machine. It is for its owner alone.
"""

import asyncio
import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from penstock.errors import FailedError
from penstock.store.files.files import new_file, reason, sync_folder

_SUFFIX: Final = ".record"
_DIGITS: Final = 16
_LOCK: Final = "lock"
_NEW: Final = ".new"


class KeyFolder:
    """See the module. Whatever takes time is done in a thread. Raises `FailedError` (`keys.log-folder`)."""

    def __init__(self, path: Path) -> None:
        self.path = path

    async def append(self, number: int, record: bytes) -> bool:
        """Write a record as the one with so many before it; say no, and write nothing, where the log is not so long."""
        return await asyncio.to_thread(self._append, number, record)

    async def read(self, number: int) -> Sequence[bytes]:
        """Return the records from a place on, or from the first that is kept."""
        return await asyncio.to_thread(self._read, number)

    async def forget(self, number: int) -> None:
        """Keep no record before a place."""
        await asyncio.to_thread(self._forget, number)

    async def close(self) -> None:
        """Do nothing: nothing is open between two calls."""

    def _append(self, number: int, record: bytes) -> bool:
        with self._failing(), self._locked():
            if number != self._end():
                return False
            new = self.path / _NEW
            with new_file(new) as stream:
                stream.write(record)
            try:
                # Refused where the name is taken, whatever anybody believes about locks.
                os.link(new, self._file(number))
            except FileExistsError:
                return False
            finally:
                new.unlink()
            sync_folder(self.path)
            return True

    def _read(self, number: int) -> list[bytes]:
        with self._failing():
            # Mostly there is nothing new, which is one question to the system.
            if not self.path.is_dir() or (number and self._is_end(number)):
                return []
            with self._locked():
                return [self._file(place).read_bytes() for place in self._numbers() if place >= number]

    def _forget(self, number: int) -> None:
        with self._failing(), self._locked():
            # The first ones first: whatever is left follows on each other.
            for place in self._numbers():
                if place < number < self._end():
                    self._file(place).unlink()
            sync_folder(self.path)

    def _is_end(self, number: int) -> bool:
        return self._file(number - 1).exists() and not self._file(number).exists()

    def _end(self) -> int:
        return max(self._numbers(), default=-1) + 1

    def _numbers(self) -> list[int]:
        names = (path.stem for path in self.path.iterdir() if path.suffix == _SUFFIX)
        return sorted(int(name) for name in names if len(name) == _DIGITS and name.isdecimal())

    def _file(self, number: int) -> Path:
        return self.path / f"{number:0{_DIGITS}}{_SUFFIX}"

    @contextmanager
    def _locked(self) -> Iterator[None]:
        if not self.path.is_dir():
            self.path.mkdir(mode=0o700, exist_ok=True)
            sync_folder(self.path.parent)
        handle = os.open(self.path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            with suppress(FileNotFoundError):
                # Of somebody who died while writing.
                (self.path / _NEW).unlink()
            yield
        finally:
            os.close(handle)

    @contextmanager
    def _failing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise _failed(self.path, reason(error)) from error


def _failed(path: Path, why: str) -> FailedError:
    hint = "no key changes before it can be written: make room, or give the folder back to the node's user"
    return FailedError("keys.log-folder", f"the log of keys in `{path}` cannot be used: {why}", hint=hint)
