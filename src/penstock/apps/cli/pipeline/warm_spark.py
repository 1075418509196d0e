"""A Spark that stays warm: `penstock pipeline serve` keeps it, and other commands of the same user find it by a note.

It is a Spark Connect server that only this machine reaches. Every program on a machine can reach its ports, so commands
show it a secret from the note, which only the user can read. They do so only if all that listens at its port belongs to
the user: another user could listen there after it was killed, or beside it at `::1`, and would get the secret and data.
"""

import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec
import pyspark

from penstock import __version__
from penstock.errors import PenstockError, RefusedError
from penstock.store.files.files import check_secret, read_file, replace_file

ALONE: Final = "PENSTOCK_SPARK_ALONE"
"""A variable that lets a command start a Spark of its own, although one is kept warm."""
_HOST: Final = "localhost"
_SOCKETS: Final = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_LISTENS: Final = "0A"


class _Note(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file's content."""

    port: int
    secret: str
    process: int
    versions: list[str]


@dataclass(frozen=True, slots=True)
class WarmSpark:
    """A Spark Connect server on this machine, and its process."""

    port: int
    secret: str = field(repr=False)
    process: int

    @property
    def url(self) -> str:
        """Its address for Spark. It contains the secret."""
        return f"sc://{_HOST}:{self.port}/;token={self.secret}"


def note_path() -> Path:
    """Return the user's note of the warm Spark, in `$XDG_STATE_HOME` or `~/.local/state`."""
    # The XDG specification says that relative paths are ignored.
    chosen = Path(os.environ.get("XDG_STATE_HOME", ""))
    folder = chosen if chosen.is_absolute() else Path.home() / ".local" / "state"
    return folder / "penstock" / "spark.json"


def find_warm_spark() -> WarmSpark | None:
    """Return the warm Spark, if one runs that has the versions of this command."""
    if os.environ.get(ALONE):
        return None
    path = str(note_path())
    try:
        check_secret(path)
        note = msgspec.json.decode(read_file(path), type=_Note)
    except (PenstockError, msgspec.MsgspecError):  # whatever the file is: the command then starts a Spark of its own
        return None
    if note.versions != _versions() or not _answers(note.port):
        return None
    return WarmSpark(note.port, note.secret, note.process)


@contextmanager
def noted(port: int, secret: str) -> Iterator[WarmSpark]:
    """Let commands find a Spark for a while.

    Raises `RefusedError` (`pipeline.serving`) if they find another one already.
    """
    refuse_second()
    path = note_path()
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    note = _Note(port, secret, os.getpid(), _versions())
    replace_file(path, msgspec.json.encode(note))
    try:
        yield WarmSpark(port, secret, note.process)
    finally:
        with suppress(OSError):
            path.unlink()


def refuse_second() -> None:
    """Raise `RefusedError` (`pipeline.serving`) if a Spark is kept warm already."""
    found = find_warm_spark()
    if found is not None:
        raise RefusedError(
            "pipeline.serving",
            f"process {found.process} keeps a Spark warm already",
            hint=f"use it, or stop it with `kill {found.process}`",
        )


def _versions() -> list[str]:
    """Return the versions that both sides must have: objects of Python travel between them."""
    return [__version__, pyspark.__version__, platform.python_version()]


def _answers(port: int) -> bool:
    """Return whether programs of this user listen at a port, and no others. Without /proc, nobody can say so."""
    owners = {owner for table in _SOCKETS for owner in _listening(table, port)}
    return owners == {os.getuid()}


def _listening(table: Path, port: int) -> Iterator[int]:
    """Yield the user of each socket that listens at a port, at any address."""
    try:
        lines = table.read_text("ascii").splitlines()[1:]
    except FileNotFoundError:
        # A machine without IPv6.
        return
    for _, local, _, state, *rest in map(str.split, lines):
        if state == _LISTENS and int(local.rpartition(":")[2], 16) == port:
            yield int(rest[3])
