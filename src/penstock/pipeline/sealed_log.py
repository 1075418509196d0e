"""The sealed log: a block of events in each row, and a binary column for each attribute.

    @header   binary   the header of the block, with route and signature
    @rows     int      how many events it says it has
    @first    binary   ids and times; at event level everything
    and       binary   for each attribute, under its id: null where the block has none, or is sealed at event level

`penstock.codec.blocks.join` of a row is the block as brokers send it. A reader reads the columns that it holds keys
for, and those of the others stay on the disk.

    key files   a key ring under a key-encryption key, and a file that holds the latter

Those who hold keys are processes, not plans: what a plan knows is the two paths, and each task reads the files where it
runs. See ADR 20.
"""

import gc
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import pyarrow as pa  # type: ignore[import-untyped]  # it ships no types
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import BinaryType, IntegerType, StructField, StructType

from penstock.codec.sexp import parse
from penstock.crypto import SigningKey, read_key
from penstock.crypto.seal_keys import KeyRing, column_scope
from penstock.errors import MalformedError
from penstock.model.types import EventType, Sealing
from penstock.pipeline.commits import Said, commits
from penstock.pipeline.frames import attributes_of, quoted
from penstock.pipeline.outputs import read_part
from penstock.store.crash_dumps import withhold_memory
from penstock.store.files import check_secret, read_file, within
from penstock.store.keks import read_kek
from penstock.store.key_rings import read_key_ring

HEADER: Final = "@header"
ROWS: Final = "@rows"
FIRST: Final = "@first"
HEAD: Final = (HEADER, ROWS, FIRST)
BLOCK: Final = "@block"
"""A block that came as a message, and has no columns here."""
SEALED: Final = "sealed"
"""The part of an output that is a sealed log."""
ATTRIBUTES: Final = "attributes"
"""What a commit says of it: the attributes that have a column."""
CLOSED: Final = "closed"
"""What a commit says of events that were read from it: the attributes that are null because no key is held."""


FILES: Final = {
    # No two sealed columns are equal: looking for it takes time and memory.
    "parquet.enable.dictionary": "false",
    # A row may be megabytes: how large they are is looked at from the first one on, not after a hundred, and a reader
    # holds few of them at a time.
    "parquet.block.size": str(16 << 20),
    "parquet.block.size.row.check.min": "1",
    "parquet.page.size.row.check.min": "1",
}
"""How a sealed log is written."""


@dataclass(frozen=True, slots=True)
class KeyFiles:
    """Where keys are found, on each machine that seals or opens."""

    ring: str
    kek: str

    def read(self) -> KeyRing:
        """Return the keys, which no crash dump of this process will hold. Raises as `read_kek` and `read_key_ring`."""
        withhold_memory()
        return read_key_ring(Path(self.ring), read_kek(Path(self.kek)))


def sealed_schema(attributes: Iterable[str]) -> StructType:
    """Return the schema of a sealed log with columns for some attributes."""
    head = [StructField(HEADER, BinaryType()), StructField(ROWS, IntegerType()), StructField(FIRST, BinaryType())]
    return StructType([*head, *(StructField(name, BinaryType()) for name in attributes)])


def sealed_arrow(attributes: Iterable[str]) -> Any:
    """Return the same schema in Arrow."""
    head = [(HEADER, pa.binary()), (ROWS, pa.int32()), (FIRST, pa.binary())]
    return pa.schema([*head, *((name, pa.binary()) for name in attributes)])


def read_log(spark: SparkSession, path: str, batches: list[int]) -> DataFrame:
    """Return the blocks of some batches of a sealed log."""
    said = commits(spark, path)
    found = [said.get(batch, {}).get(ATTRIBUTES) for batch in batches]
    columns = dict.fromkeys(str(name) for names in found if isinstance(names, list) for name in names)
    return read_part(spark, path, SEALED, batches, sealed_schema(columns))


def names_said(said: Iterable[Said], what: str) -> tuple[str, ...]:
    """Return all names that some commits say of something."""
    found = [one.get(what) for one in said]
    return tuple(dict.fromkeys(str(name) for names in found if isinstance(names, list) for name in names))


@cache
def _settle_worker() -> None:
    """Keep what a worker of Spark has imported out of its searches for garbage, of which each task ends with one."""
    gc.freeze()


def map_arrow(
    frame: DataFrame,
    function: Callable[[Iterator[Any]], Iterator[Any]],
    schema: StructType,
    columns: Iterable[str] | None = None,
) -> DataFrame:
    """Apply a function to the batches of a frame, or of some of its columns.

    Spark would not find columns whose names have a dot.
    """
    own = tuple(frame.columns if columns is None else columns)

    def named(batches: Iterable[Any]) -> Iterator[Any]:
        _settle_worker()
        return function(batch.rename_columns(own) for batch in batches)

    return frame.select(*(quoted(name).alias(f"c{place}") for place, name in enumerate(own))).mapInArrow(named, schema)


def columns_of(types: Iterable[EventType]) -> tuple[str, ...]:
    """Return the attributes that have a column when events of some types are sealed."""
    return tuple(str(a.id) for a in attributes_of(t for t in types if t.sealing is Sealing.ATTRIBUTE))


def readable(types: Iterable[EventType], ring: KeyRing, columns: Iterable[str]) -> tuple[str, ...]:
    """Return the columns of a log in which something may open with the keys of a ring."""
    held = {str(a.id) for t in types for a in t.attributes if ring.newest(column_scope(t.key, str(a.id))) is not None}
    return tuple(name for name in columns if name in held)


def closed(types: Iterable[EventType], ring: KeyRing, columns: Iterable[str]) -> tuple[str, ...]:
    """Return the attributes of a log of which a ring has no key at all, though it opens their events.

    Each is named with its type, as the last version calls it.
    """
    known = frozenset(columns)
    found = {
        column_scope(t.key, str(a.id)): f"{t.key.name} {a.name}"
        for t in types
        if t.sealing is Sealing.ATTRIBUTE and ring.newest(str(t.key)) is not None
        for a in t.attributes
        if str(a.id) in known
    }
    return tuple(name for scope, name in found.items() if ring.newest(scope) is None)


def read_signer(path: str) -> SigningKey:
    """Read a private key that lies under no passphrase: nobody can be asked where tasks run.

    Raises `FailedError` and `MalformedError` (`seal.signer` and what reading a key raises).
    """
    with within(path):
        found = read_key(parse(read_file(path)))
        if not isinstance(found, SigningKey):
            raise MalformedError(
                "seal.signer", "tasks cannot sign with this key", hint="give a private key in the clear"
            )
    check_secret(path)
    return found
