"""kill -9 while many write: what was acknowledged is there, nothing is there by half, and the chain holds."""

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

from tests.budget import amount
from tests.store.writer import LEDGER

from penstock.store.ledgers.urls import open_store
from penstock.testing.postgres import PostgresServer

PROGRAM = Path(__file__).parents[1] / "writer.py"
WRITERS = 4
#: changes that are waited for before something is killed
CHANGES = amount(400)
#: a goal that nobody reaches before being killed
ENDLESS = 1_000_000
PATIENCE = 120.0


class Crash:
    """Writers of one store, the files in which they say what was acknowledged, and how often they were killed."""

    program: ClassVar = PROGRAM
    #: seconds that writers may take
    patience: ClassVar = PATIENCE

    def __init__(self, url: str, folder: Path) -> None:
        self.url = url
        self.folder = folder
        self.round = 0
        open_store(url, create=True).close()

    @contextmanager
    def writers(self, goal: int = ENDLESS) -> Iterator[subprocess.Popen[bytes]]:
        """Start writers that stop at a goal; at the end those that still run are killed."""
        self.round += 1
        words = (self.url, str(self.round), str(WRITERS), str(goal), str(self.folder))
        group = subprocess.Popen([sys.executable, self.program, *words], start_new_session=True)
        try:
            yield group
            assert goal < ENDLESS or group.poll() is None, "the writers have ended by themselves"
        finally:
            if group.poll() is None:
                os.killpg(group.pid, signal.SIGKILL)
                group.wait()

    def acknowledged(self) -> dict[int, str]:
        """Return the changes that were acknowledged to a writer: number and hash."""
        # The last line of each may be under way.
        texts = [file.read_text().rpartition("\n")[0] for file in self.folder.glob("*.ack")]
        lines = [line for text in texts for line in text.splitlines()]
        assert len({line.split()[0] for line in lines}) == len(lines), "two were given one number"
        return {int(number): digest for number, digest in map(str.split, lines)}

    def wait(self, acknowledged: int) -> None:
        """Wait until so many are acknowledged."""
        deadline = time.monotonic() + self.patience
        while len(self.acknowledged()) < acknowledged:
            assert time.monotonic() < deadline, "the writers are too slow, or failed"
            time.sleep(0.01)

    def verify(self) -> int:
        """Check all that must hold after a crash, others writing or not; return how many changes there are."""
        told = self.acknowledged()
        with open_store(self.url) as store:
            number = store.ledger(LEDGER).verify().number
            changes = list(store.ledger(LEDGER).read())
        hashes = {change.number: change.hash.hex() for change in changes}
        assert {key: hashes.get(key) for key in told} == told
        batches = Counter(change.why for change in changes)
        assert [why for why, count in batches.items() if count != int(why.split()[1])] == []
        assert len(changes) >= number
        return len(changes)


def test_sqlite_survives_its_writers(tmp_path: Path) -> None:
    crash = Crash(f"sqlite:{tmp_path}/rules.db", tmp_path)
    with crash.writers():
        crash.wait(CHANGES)
    there = crash.verify()
    assert there >= CHANGES
    with crash.writers(there + CHANGES) as writers:
        assert writers.wait(PATIENCE) == 0
    assert crash.verify() >= there + CHANGES


def test_postgresql_survives_its_writers_and_the_server_its_own_end(postgres: PostgresServer, tmp_path: Path) -> None:
    crash = Crash(postgres.url(postgres.new_database()), tmp_path)
    with crash.writers():
        crash.wait(CHANGES)
    there = crash.verify()
    assert there >= CHANGES
    with crash.writers(there + 2 * CHANGES) as writers:
        crash.wait(len(crash.acknowledged()) + CHANGES)
        postgres.kill()
        postgres.start()
        assert crash.verify() >= there + CHANGES
        assert writers.wait(PATIENCE) == 0
    assert crash.verify() >= there + 2 * CHANGES
    assert "automatic recovery in progress" in postgres.log
