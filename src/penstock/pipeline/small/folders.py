"""Outputs as folders of this machine: what `penstock.pipeline.outputs` writes through Spark."""

import json
import os
import shutil
import uuid
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import accumulate
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa  # type: ignore[import-untyped]  # it ships no types
import pyarrow.parquet as pq  # type: ignore[import-untyped]  # it ships no types

from penstock.model.types import Attribute
from penstock.model.values import Kind
from penstock.pipeline.commits import (
    BATCH,
    CHECKPOINT,
    COMMITS,
    JOB,
    OUTPUT,
    Said,
    check_apart,
    check_free,
    commit_line,
    no_input,
    read_commit,
    read_note,
)
from penstock.pipeline.event_columns import ID, SOURCE, TIME, micros

ARROW: Final[Mapping[Kind, pa.DataType]] = {
    Kind.STRING: pa.string(),
    Kind.INTEGER: pa.int64(),
    Kind.FLOAT: pa.float64(),
    Kind.BOOLEAN: pa.bool_(),
    Kind.TIMESTAMP: pa.timestamp("us", "UTC"),
}
"""The types in which attributes are stored."""
STORED: Final = ((ID, ARROW[Kind.STRING]), (TIME, ARROW[Kind.TIMESTAMP]), (SOURCE, ARROW[Kind.STRING]))
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_ESCAPED: Final = frozenset("\"#%'*/:=?\\{[]^\x7f") | {chr(code) for code in range(1, 32)}
"""Characters that Spark escapes in the names of partitions."""


class NotSmallError(Exception):
    """The small engine cannot do this, and Spark can. Nothing was written."""


def by_ids(attributes: Iterable[Attribute]) -> list[tuple[str, pa.DataType]]:
    """Return the columns of some attributes under their ids."""
    return [(str(attribute.id), ARROW[attribute.spec.kind]) for attribute in attributes]


@dataclass(frozen=True, slots=True)
class SmallOutput:
    """Where a job writes one batch, number 0. `job` and `source` identify it."""

    path: Path
    job: str
    source: str
    parts: tuple[str, ...]

    def open(self, *, files: str | None, overwrite: bool) -> Said:
        """Prepare to write, and return the part that every commit has in common.

        Raises `RefusedError` (`pipeline.exists`, `pipeline.foreign`, `pipeline.own-input`).
        """
        check_apart(str(self.path), files)
        notes = read_lines(self.path / JOB)
        found = read_note(notes[0]) if notes else None
        foreign = found is None and next(visible(self.path), None) is not None
        check_free(str(self.path), found, foreign=foreign, continues=None, overwrite=overwrite)
        # Commits first, so that the rest does not look complete.
        for part in (COMMITS, *self.parts, CHECKPOINT):
            shutil.rmtree(self.path / part, ignore_errors=True)
        own: Said = {OUTPUT: uuid.uuid4().hex}
        note = {"job": self.job, "source": self.source, "stream": False, **own}
        write_lines(self.path / JOB, [json.dumps(note)])
        (self.path / COMMITS).mkdir(parents=True, exist_ok=True)
        return own

    def part(self, name: str) -> Path:
        """Return the folder of one part."""
        return self.path / name / f"{BATCH}=0"

    def write(self, part: str, columns: Sequence[tuple[str, pa.DataType]], rows: Sequence[Sequence[object]]) -> None:
        """Write the rows of one part."""
        write_rows(self.part(part), columns, rows)

    def commit(self, said: Mapping[str, object]) -> None:
        """Write last that the batch is complete, and what it contains."""
        write_lines(self.path / COMMITS / f"{BATCH}=0", [commit_line(0, said)])


def write_rows(folder: Path, columns: Sequence[tuple[str, pa.DataType]], rows: Sequence[Sequence[object]]) -> None:
    """Write rows as one Parquet file of a folder, replacing earlier ones."""
    values = list(zip(*rows, strict=True)) or [()] * len(columns)
    schema = pa.schema(columns)
    arrays = [_array(column, of) for column, (_, of) in zip(values, columns, strict=True)]
    # By schema: a table made of a dictionary would lose a column of two with one name.
    table = pa.Table.from_arrays(arrays, schema=schema)
    file = _fresh(folder, f"part-00000-{uuid.uuid4()}.snappy.parquet")
    pq.write_table(table, f"{file}.inprogress")
    _finish(file)


def _array(values: Sequence[Any], of: pa.DataType) -> pa.Array:
    """Return a column of Arrow. `pa.array` would import pandas to see that a list is not a series of it."""
    there = [value is not None for value in values]
    valid = None if all(there) else _bits(there)
    buffers: list[Any]
    if of == pa.bool_():
        buffers = [_bits(value is True for value in values)]
    elif of == pa.float64():
        buffers = [array("d", (0.0 if value is None else value for value in values))]
    elif of in (pa.string(), pa.binary()):
        texts = [b"" if value is None else value if isinstance(value, bytes) else value.encode() for value in values]
        buffers = [array("i", accumulate(map(len, texts), initial=0)), b"".join(texts)]
    else:
        numbers = (0 if value is None else micros(value) if isinstance(value, datetime) else value for value in values)
        buffers = [array("q", numbers)]
    made = [None if one is None else pa.py_buffer(one) for one in (valid, *buffers)]
    return pa.Array.from_buffers(of, len(values), made)


def _bits(flags: Iterable[bool]) -> bytes:
    found = bytearray()
    for place, flag in enumerate(flags):
        if place % 8 == 0:
            found.append(0)
        found[-1] |= flag << place % 8
    return bytes(found)


def write_lines(folder: Path, lines: Iterable[str]) -> None:
    """Write lines into one file of a folder, replacing earlier ones."""
    file = _fresh(folder, f"part-00000-{uuid.uuid4()}.txt")
    Path(f"{file}.inprogress").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    _finish(file)


def _fresh(folder: Path, name: str) -> Path:
    # The whole folder: Hadoop would find a checksum that belongs to another file.
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder / name


def _finish(file: Path) -> None:
    descriptor = os.open(f"{file}.inprogress", os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    Path(f"{file}.inprogress").rename(file)


# --- Reading ---------------------------------------------------------------------------------------------------------


def visible(folder: Path) -> Iterator[Path]:
    """Yield the files below a folder, in order. Names that begin with `_` or `.` do not count."""
    for place, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith(("_", ".")))
        yield from (Path(place, name) for name in sorted(files) if not name.startswith(("_", ".")))


def read_lines(folder: Path) -> list[str]:
    """Return the lines of all files below a folder; none if there is nothing."""
    return [line for file in visible(folder) for line in file.read_text(encoding="utf-8").split("\n") if line]


def read_commits(path: Path) -> dict[int, Said]:
    """Return the description of each complete batch. Raises `MalformedError` (`layout.manifest`)."""
    return dict(sorted(map(read_commit, read_lines(path / COMMITS)), key=lambda found: found[0]))


def complete(path: Path) -> list[int]:
    """Return the complete batches of another job's output. Raises `FailedError` (`pipeline.no-input`)."""
    found = list(read_commits(path))
    if not found:
        raise no_input(str(path))
    return found


def stored_files(folder: Path) -> list[Path]:
    """Return the Parquet files below a folder."""
    return [file for file in visible(folder) if file.suffix == ".parquet"]


def count_rows(files: Iterable[Path]) -> int:
    """Return the number of rows of Parquet files, by their footers."""
    return sum(pq.read_metadata(file).num_rows for file in files)


def read_rows(files: Iterable[Path], columns: Sequence[tuple[str, pa.DataType]]) -> list[tuple[Any, ...]]:
    """Return some columns of Parquet files as rows; a column that a file lacks is null."""
    found: list[tuple[Any, ...]] = []
    for file in files:
        table = pq.ParquetFile(file, coerce_int96_timestamp_unit="us").read()
        there = set(table.column_names)
        values = [_values(table.column(name), of) if name in there else [None] * table.num_rows for name, of in columns]
        found += zip(*values, strict=True)
    return found


def _values(column: Any, of: pa.DataType) -> list[Any]:
    """Return the values of a column, instants in UTC. What Arrow offers for them imports pandas and takes a while."""
    column = column if column.type == of else column.cast(of)
    if of != ARROW[Kind.TIMESTAMP]:
        return list(column.to_pylist())
    counted = (number for chunk in column.chunks for number in chunk.view(pa.int64()).to_pylist())
    return [None if number is None else _EPOCH + timedelta(microseconds=number) for number in counted]


def partition_name(value: str) -> str:
    """Return a value as Spark writes it in the name of a folder."""
    if not value:
        return "__HIVE_DEFAULT_PARTITION__"
    return "".join(f"%{ord(character):02X}" if character in _ESCAPED else character for character in value)


def partitions(folder: Path, key: str) -> dict[str, Path]:
    """Return the folders `key=value` of a folder, by value."""
    if not folder.is_dir():
        return {}
    found = (one.name.partition("=") for one in sorted(folder.iterdir()) if one.is_dir())
    return {unquote(value): folder / f"{key}={value}" for name, _, value in found if name == key}
