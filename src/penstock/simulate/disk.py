"""The disk of a simulated process: what was not synced is lost in a crash, and a full disk takes nothing.

Files have names and bytes. `append` and `write` change what the process sees; `sync` makes it safe. After a crash a
file is as it was synced last, with some of what was appended since: a write can be torn. `replace` does what
`penstock.store.files.files.replace_file` does: afterwards the new content is safe, and before it the old one is.

`DiskKeep` keeps what a broker must not forget, and `background` is the thread that writes it. SQLite databases are
transactional themselves: a `Connection` to memory that outlives its process is one on a disk (`database`).
"""

import errno
import sqlite3
from collections.abc import Callable, Iterator
from random import Random
from typing import Final

from penstock.errors import FailedError
from penstock.model.principals import Principal
from penstock.simulate.loop import VirtualLoop

#: seconds that syncing a file takes, at least and at most
_SYNC: Final = (0.0005, 0.004)
#: pages that a database can have: as many as SQLite allows
_PAGES: Final = 1_073_741_823


class SimulatedDisk:
    """See the module. It outlives its process."""

    def __init__(self, loop: VirtualLoop, random: Random) -> None:
        self._loop = loop
        self._random = random
        self._files: dict[str, bytes] = {}
        self._synced: dict[str, bytes] = {}
        self._databases: dict[str, sqlite3.Connection] = {}
        #: how many faults say that it is full
        self._full = 0

    @property
    def full(self) -> bool:
        """Whether it takes nothing."""
        return self._full > 0

    def names(self, ending: str = "") -> list[str]:
        """Return the names of the files, sorted."""
        return sorted(name for name in self._files if name.endswith(ending))

    def read(self, name: str) -> bytes:
        """Return what a file has, as its process sees it. Raises `FileNotFoundError`."""
        found = self._files.get(name)
        if found is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", name)
        return found

    def write(self, name: str, data: bytes) -> None:
        """Replace what a file has. It is not safe yet. Raises `OSError` if the disk is full."""
        self._check_room()
        self._files[name] = data

    def append(self, name: str, data: bytes) -> None:
        """Add to a file. It is not safe yet. Raises `OSError` if the disk is full."""
        self.write(name, self._files.get(name, b"") + data)

    def sync(self, name: str) -> None:
        """Make a file safe as it is. Raises `OSError` if the disk is full, `FileNotFoundError`."""
        self._check_room()
        self._synced[name] = self.read(name)

    def replace(self, name: str, data: bytes) -> None:
        """Replace a file in one step, and make it safe. Raises `OSError` if the disk is full."""
        self.write(name, data)
        self.sync(name)

    def remove(self, name: str) -> None:
        """Remove a file, if there is one."""
        self._files.pop(name, None)
        self._synced.pop(name, None)

    def database(self, name: str) -> sqlite3.Connection:
        """Return an SQLite database, always the same one. What was committed is safe."""
        found = self._databases.get(name)
        if found is None:
            found = self._databases[name] = sqlite3.connect(":memory:", isolation_level=None)
        self._bound(found)
        return found

    def background(self) -> "DiskQueue":
        """Return what does the work of a thread that writes to this disk (`penstock.broker.node.machine`)."""
        return DiskQueue(self._loop, self._random)

    def fill(self) -> Callable[[], None]:
        """Let the disk be full. Return what ends that."""
        self._full += 1
        self._bound(*self._databases.values())

        def undo() -> None:
            self._full -= 1
            self._bound(*self._databases.values())

        return undo

    def crashed(self) -> None:
        """Lose what was not synced, except some of what was appended."""
        for name in self.names():
            now, safe = self._files[name], self._synced.get(name)
            if safe is None:
                del self._files[name]
            elif now != safe:
                torn = self._random.randrange(len(now) - len(safe) + 1) if now.startswith(safe) else 0
                self._files[name] = self._synced[name] = safe + now[len(safe) : len(safe) + torn]
        for database in self._databases.values():
            if database.in_transaction:
                database.execute("ROLLBACK")

    def _check_room(self) -> None:
        if self._full:
            raise OSError(errno.ENOSPC, "no space left on device")

    def _bound(self, *databases: sqlite3.Connection) -> None:
        for database in databases:
            # SQLite never goes below what the database has already.
            database.execute(f"PRAGMA max_page_count = {1 if self._full else _PAGES}")


class DiskQueue:
    """Work that waits for a disk, done one after the other (`penstock.broker.node.machine.Background`)."""

    def __init__(self, loop: VirtualLoop, random: Random) -> None:
        self._loop = loop
        self._random = random
        self._free = 0.0

    def __call__(self, work: Callable[[], None], done: Callable[[BaseException | None], None]) -> None:
        """Do some work when the disk has time for it. A crash before that is one before the work."""
        self._free = max(self._free, self._loop.time()) + self._random.uniform(*_SYNC)

        def run() -> None:
            error: BaseException | None = None
            try:
                work()
            except Exception as found:  # noqa: BLE001  # the waiting caller receives every error
                error = found
            done(error)

        self._loop.call_at(self._free, run)


class DiskKeep:
    """What a broker must not forget, on a simulated disk (`penstock.broker.node.policies.Keep`)."""

    def __init__(self, disk: SimulatedDisk) -> None:
        self._disk = disk

    def load(self) -> Iterator[bytes]:
        """Yield all snapshots."""
        yield from map(self._disk.read, self._disk.names(".policy"))

    def save(self, owner: Principal, snapshot: bytes) -> None:
        """Replace an owner's snapshot. Raises `FailedError` (`file.unwritable`)."""
        self._replace(f"{owner}.policy", snapshot)

    def load_brokers(self) -> bytes:
        """Return the brokers that were seen."""
        return self._disk.read("brokers.seen") if self._disk.names("brokers.seen") else b""

    def save_brokers(self, seen: bytes) -> None:
        """Replace the brokers that were seen. Raises `FailedError` (`file.unwritable`)."""
        self._replace("brokers.seen", seen)

    def load_statements(self) -> Iterator[bytes]:
        """Yield the validity statements of all issuers."""
        yield from map(self._disk.read, self._disk.names(".statements"))

    def save_statements(self, issuer: Principal, snapshot: bytes) -> None:
        """Replace an issuer's validity statements, or remove them (empty). Raises `FailedError` (`file.unwritable`)."""
        if snapshot:
            self._replace(f"{issuer}.statements", snapshot)
        else:
            self._disk.remove(f"{issuer}.statements")

    def _replace(self, name: str, data: bytes) -> None:
        try:
            self._disk.replace(name, data)
        except OSError as error:
            raise FailedError("file.unwritable", f"`{name}` cannot be written: {error.strerror}") from error
