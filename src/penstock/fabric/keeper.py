"""Where an embedded fabric keeps what must outlive it: one SQLite file, written before a publisher gets its answer."""

import json
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from penstock.errors import FailedError, MalformedError
from penstock.fabric.envelope import Sample, decode, encode
from penstock.fabric.qos import Qos

_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS topic (name TEXT PRIMARY KEY, qos TEXT NOT NULL, epoch INTEGER NOT NULL DEFAULT 0);
CREATE TABLE IF NOT EXISTS sample (at INTEGER PRIMARY KEY AUTOINCREMENT, topic TEXT NOT NULL, octets BLOB NOT NULL);
"""


class FileKeeper:
    """Keeps persistent topics and their samples in a file.

    All methods raise `FailedError` (`fabric.keeper`) where the file cannot be used.
    """

    def __init__(self, path: Path) -> None:
        with _guarded():
            self._database = sqlite3.connect(path, isolation_level=None)
            self._database.execute("PRAGMA journal_mode=WAL")
            self._database.execute("PRAGMA synchronous=FULL")
            self._database.executescript(_SCHEMA)

    def topics(self) -> list[tuple[str, Qos, int]]:
        """Return the name, the quality of service and the last epoch of every topic."""
        with _guarded():
            rows = self._database.execute("SELECT name, qos, epoch FROM topic ORDER BY name").fetchall()
            return [(name, Qos.from_dict(json.loads(text)), epoch) for name, text, epoch in rows]

    def samples(self, topic: str) -> list[tuple[int, Sample]]:
        """Return what was kept, oldest first, with the number to drop it by."""
        with _guarded():
            rows = self._database.execute("SELECT at, octets FROM sample WHERE topic = ? ORDER BY at", (topic,))
            return [(at, decode(octets)) for at, octets in rows]

    def declare(self, topic: str, qos: Qos) -> None:
        """Keep a topic."""
        with _guarded():
            self._database.execute("INSERT INTO topic (name, qos) VALUES (?, ?)", (topic, json.dumps(qos.as_dict())))

    def claimed(self, topic: str, epoch: int) -> None:
        """Keep the epoch of a topic's owner."""
        with _guarded():
            self._database.execute("UPDATE topic SET epoch = ? WHERE name = ?", (epoch, topic))

    def remove(self, topic: str) -> None:
        """Forget a topic and its samples."""
        with _guarded(), self._whole():
            self._database.execute("DELETE FROM sample WHERE topic = ?", (topic,))
            self._database.execute("DELETE FROM topic WHERE name = ?", (topic,))

    def replace(self, topic: str, sample: Sample, gone: list[int]) -> int:
        """Keep a sample and drop others, both or neither; return the number to drop it by."""
        with _guarded(), self._whole():
            self._database.executemany("DELETE FROM sample WHERE at = ?", [(at,) for at in gone])
            done = self._database.execute("INSERT INTO sample (topic, octets) VALUES (?, ?)", (topic, encode(sample)))
            return int(done.lastrowid or 0)

    def close(self) -> None:
        """Close the file."""
        with _guarded():
            self._database.close()

    @contextmanager
    def _whole(self) -> Iterator[None]:
        self._database.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._database.execute("ROLLBACK")
            raise
        self._database.execute("COMMIT")


@contextmanager
def _guarded() -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, MalformedError, ValueError) as error:
        raise FailedError(
            "fabric.keeper", f"the file of persistent topics cannot be used: {type(error).__name__}"
        ) from error
