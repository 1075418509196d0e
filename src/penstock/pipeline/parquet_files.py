"""The columns of each Parquet file of a table.

Spark takes the columns of one file for those of all of them. Where another file lacks one, its values are null, and the
rows of a file in which a column was renamed would be events of which nothing is known. So each is asked for its own.
"""

import re
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeAlias
from urllib.parse import unquote

import pyarrow as pa  # type: ignore[import-untyped]  # it ships no types
import pyarrow.parquet as pq  # type: ignore[import-untyped]  # it ships no types
from pyspark.sql import SparkSession

from penstock.errors import LimitError
from penstock.model.limits import DEFAULT_LIMITS
from penstock.pipeline.strict_files import reading

Seen: TypeAlias = dict[tuple[object, ...], bool]
"""Whether a file lacks a column, by its name, length and time: a stream asks each once."""
_ASKED_AT_ONCE: Final = 8
_GLOB: Final = re.compile(r"([\\\[\]{}*?])")


def files_lacking(spark: SparkSession, path: str, columns: Iterable[str], seen: Seen | None = None) -> tuple[str, ...]:
    """Return those files at a path that lack one of some columns, by the names under which records have them.

    Reads the end of each file that is not in `seen` yet, and notes it there. Raises `LimitError` (`ingest.files`).
    """
    wanted, known = frozenset(columns), {} if seen is None else seen
    files = reading(spark).format("binaryFile").load(path)
    rows = files.select("path", "_metadata.file_path", "length", "modificationTime").collect()
    new = [row for row in rows if tuple(row) not in known]
    if len(new) > DEFAULT_LIMITS.table_files:
        raise LimitError(
            "ingest.files",
            f"`{path}` has {len(new):,} files, each of which is to be asked for its columns",
            hint=f"at most {DEFAULT_LIMITS.table_files:,} are read at once: give one folder after the other",
        )
    with ThreadPoolExecutor(_ASKED_AT_ONCE) as pool:
        found = pool.map(lambda row: _columns(spark, row[0]), new)
        known.update((tuple(row), not wanted <= own) for row, own in zip(new, found, strict=True))
    return tuple(sorted(row[1] for row in rows if known[tuple(row)]))


def _columns(spark: SparkSession, file: str) -> frozenset[str]:
    """Return the columns of a file, and those that its folders stand for."""
    folders = (unquote(folder).partition("=") for folder in file.split("/")[:-1])
    own = _local(spark, file)
    if own is None:
        own = reading(spark).parquet(_GLOB.sub(r"\\\1", file)).columns
    return frozenset((*own, *(name for name, sign, _ in folders if sign)))


def _local(spark: SparkSession, file: str) -> list[str] | None:
    """Return the columns of a file that is here; None where Spark has to be asked, and tells what is wrong."""
    scheme, _, path = file.partition(":")
    # Of Spark Connect the session is another class, and the file is where the server is.
    if scheme != "file" or not isinstance(spark, SparkSession):
        return None
    try:
        return list(pq.read_schema(path).names)
    except (OSError, pa.ArrowInvalid):
        return None
