"""Parquet files as tables: those of a folder, of a table of Spark's catalogue, and those that a log of files lists.

Executors write the files of a batch, so a batch may be of any size. A folder, and a table of the catalogue, have a
folder `event_batch=OUTPUT-N` for each batch of an output, which other tools read as a column. A batch that is written
again replaces its folder; so it is there once, whenever a run was killed. Neither has transactions: who reads while a
batch is written may see a part of it. Tables of Delta Lake and Iceberg have them.
"""

import re
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import reduce
from typing import Final
from urllib.parse import unquote

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # the name that everybody knows it by
from pyspark.sql.types import (
    BooleanType,
    ByteType,
    DateType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructField,
    StructType,
)

from penstock.errors import FailedError, LimitError, RefusedError
from penstock.pipeline.frames import quoted
from penstock.pipeline.outputs import STRICT, Streaming, arriving, is_missing, is_not_found, reading
from penstock.pipeline.tables.addresses import AddressScheme, SinkOptions, SinkRows, TableAddress, bad_address
from penstock.pipeline.tables.columns import BATCH_COLUMN, NO_VALUE, added_columns, partitioned, plain_rows

_NAME: Final = re.compile(r"\w+(\.\w+){0,2}", re.ASCII)
_GLOB: Final = re.compile(r"([\\\[\]{}*?])")
PARTITIONS: Final = 2_000
"""Partitions of a table that are read together, at most: each is a part of Spark's plan."""
_TEXTUAL: Final = (StringType, BooleanType, ByteType, ShortType, IntegerType, LongType, DateType)
"""Columns whose values are the same text for everybody."""
_TIMESTAMPS: Final = "spark.sql.parquet.outputTimestampType"
_OVERWRITE: Final = "spark.sql.sources.partitionOverwriteMode"


@contextmanager
def _setting(spark: SparkSession, name: str, value: str) -> Iterator[None]:
    before = spark.conf.get(name, None)
    spark.conf.set(name, value)
    try:
        yield
    finally:
        if before is None:
            spark.conf.unset(name)
        else:
            spark.conf.set(name, before)


def batch_name(output: str, batch: int) -> str:
    """Return the name of a batch among those of all outputs."""
    return f"{output}-{batch}"


# ----------------------------------------------------------------------------------------------------------------------
# Files that a log lists: executors write them, and the driver adds them to the log.


@dataclass(frozen=True, slots=True)
class BatchFile:
    """A file of a batch: its path below the folder of the table, and what the log says of it."""

    path: str
    size: int
    #: milliseconds since 1970
    modified: int
    rows: int
    partition: Mapping[str, str | None]


def write_files(frame: DataFrame, table: str, output: str, batch: int, by: Sequence[str]) -> list[BatchFile]:
    """Write rows as files into the folder of a table, and return those that have rows, counted in the files.

    An attempt uses a folder of its own: it never touches a file that the log may list. The files of an attempt that was
    killed are not in the log, and are removed with others of the kind (`vacuum`, say).
    """
    spark = frame.sparkSession
    folder = f"penstock-{output}/{batch}-{uuid.uuid4().hex[:8]}"
    place = f"{table}/{folder}"
    with _setting(spark, _TIMESTAMPS, "TIMESTAMP_MICROS"):
        # The usual form of Spark is one that the formats do not have.
        partitioned(frame, by).write.partitionBy(*by).parquet(place)
    inside = StructType([one for one in frame.schema if one.name not in by])
    stored = reading(spark).schema(inside).option("recursiveFileLookup", "true").parquet(place)
    about = [F.col(f"_metadata.{name}") for name in ("file_path", "file_size", "file_modification_time")]
    counted = stored.select(*about).groupBy("file_path", "file_size", "file_modification_time").count()
    when = F.unix_millis("file_modification_time")
    return [
        _file(folder, str(row[0]), int(row[1]), int(row[2]), int(row[3]))
        for row in counted.select("file_path", "file_size", when, "count").collect()
    ]


def _file(folder: str, path: str, size: int, modified: int, rows: int) -> BatchFile:
    # Spark gives the path as a URI.
    inside = unquote(path).rpartition(f"/{folder}/")[2]
    pairs = [part.partition("=") for part in inside.split("/")[:-1]]
    partition = {unquote(name): None if value == NO_VALUE else unquote(value) for name, _, value in pairs}
    return BatchFile(f"{folder}/{inside}", size, modified, rows, partition)


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file that a log lists, and the values of the columns that it is partitioned by, as text."""

    path: str
    partition: tuple[tuple[str, str | None], ...] = ()


def read_files(spark: SparkSession, files: Sequence[DataFile], schema: StructType, name: str) -> DataFrame:
    """Return the rows of some files; Spark reads none of a partition that a filter excludes.

    Raises `RefusedError` (`tables.feature`) for a column that cannot be partitioned by here, and `LimitError`
    (`tables.partitions`).
    """
    groups: dict[tuple[tuple[str, str | None], ...], list[str]] = {}
    for file in files:
        groups.setdefault(file.partition, []).append(_GLOB.sub(r"\\\1", file.path))
    if len(groups) > PARTITIONS:
        raise LimitError(
            "tables.partitions",
            f"`{name}` has {len(groups):,} partitions",
            hint=f"at most {PARTITIONS:,} can be read together: read one version after the other with --stream",
        )
    if not groups:
        return spark.createDataFrame([], schema)

    def part(values: tuple[tuple[str, str | None], ...], paths: Sequence[str]) -> DataFrame:
        known = dict(values)
        inside = StructType([one for one in schema if one.name not in known])
        rows = reading(spark).schema(inside).parquet(*paths)
        return rows.select(
            *(
                F.lit(known[one.name]).cast(one.dataType).alias(one.name) if one.name in known else quoted(one.name)
                for one in schema
            )
        )

    for one in schema:
        if any(one.name in dict(values) for values in groups) and not isinstance(one.dataType, _TEXTUAL):
            raise no_feature(name, f"a partition by `{one.name}`, which holds {one.dataType.simpleString()[:80]}")
    return reduce(DataFrame.union, [part(values, paths) for values, paths in groups.items()])


def no_feature(name: str, what: str) -> RefusedError:
    """Return the error for a table that uses something that is not read here."""
    return RefusedError(
        "tables.feature", f"`{name}` has {what}, which is not read here", hint="copy the rows into a plain table first"
    )


# ----------------------------------------------------------------------------------------------------------------------
# A folder of Parquet files.


@dataclass(slots=True)
class ParquetFolder:
    """A folder of Parquet files, as a source and as a sink."""

    path: str
    by: tuple[str, ...] = ()
    records: bool = False
    _known: StructType | None = field(default=None, repr=False)

    @property
    def name(self) -> str:
        """The address."""
        return f"parquet:{self.path}"

    @property
    def files(self) -> str:
        """The path."""
        return self.path

    def batch(self, spark: SparkSession) -> DataFrame:
        """Return all rows, with the columns of all files, and of the folders `NAME=VALUE` that they are in."""
        return reading(spark).options(mergeSchema="true").parquet(self.path)

    def stream(self, spark: SparkSession, streaming: Streaming) -> DataFrame:
        """Return the rows of files as they arrive, with the columns of those that are there."""
        reader = spark.readStream.schema(self.batch(spark).schema).options(**STRICT, **arriving(streaming))
        return reader.options(mergeSchema="true").parquet(self.path)

    def arrived(self, batch: DataFrame) -> DataFrame:
        """Return the rows as they are."""
        return batch

    def check(self) -> None:
        """Do nothing: Spark says what it cannot write."""

    def holds(self, spark: SparkSession, output: str) -> bool:
        """Return whether there is a batch of an output."""
        return not is_missing(spark, f"{self.path}/{BATCH_COLUMN}={output}-*")

    def write(self, rows: SinkRows, output: str, batch: int) -> int:
        """Write a batch in the place of what there is of it, and count it. Raises `RefusedError` (`tables.foreign`).

        Raises also as `plain_rows`, `added_columns` and `partitioned`.
        """
        frame = plain_rows(rows)
        spark = frame.sparkSession
        known = self._columns(spark)
        added = added_columns(known, frame.schema, self.name)
        self._known = StructType([*known, *added])
        place = f"{self.path}/{BATCH_COLUMN}={batch_name(output, batch)}"
        with _setting(spark, _TIMESTAMPS, "TIMESTAMP_MICROS"):
            writer = partitioned(frame, self.by).write.mode("overwrite").option("partitionOverwriteMode", "static")
            writer.partitionBy(*self.by).parquet(place)
        return reading(spark).schema(frame.schema).parquet(place).count()

    def _columns(self, spark: SparkSession) -> StructType:
        """Return the columns of the rows that are there."""
        if self._known is None:
            try:
                found = self.batch(spark).schema
            except AnalysisException as error:
                # Nothing is there, or files without rows.
                if not is_not_found(error) and error.getCondition() != "UNABLE_TO_INFER_SCHEMA":
                    raise
                found = StructType([StructField(BATCH_COLUMN, StringType())])
            if BATCH_COLUMN not in found.names:
                raise _foreign(self.name)
            # What Spark reads out of the names of folders need not be of the type that was written.
            self._known = StructType([one for one in found if one.name not in (BATCH_COLUMN, *self.by)])
        return self._known


def _foreign(name: str) -> RefusedError:
    return RefusedError(
        "tables.foreign",
        f"`{name}` holds rows that no job has written: it has no partition column `{BATCH_COLUMN}`",
        hint="give a place that does not exist; a job creates it",
    )


# ----------------------------------------------------------------------------------------------------------------------
# A table of Spark's catalogue.


@dataclass(frozen=True, slots=True)
class CatalogueTable:
    """A table of Spark's catalogue, as a source and as a sink. The catalogue is that of the session."""

    table: str
    by: tuple[str, ...] = ()
    records: bool = False

    @property
    def name(self) -> str:
        """The address."""
        return f"table:{self.table}"

    @property
    def files(self) -> None:
        """None: the catalogue says where they are."""
        return

    def batch(self, spark: SparkSession) -> DataFrame:
        """Return all rows. Raises `FailedError` (`tables.no-table`)."""
        self._found(spark)
        return spark.read.options(**STRICT).table(self.table)

    def stream(self, spark: SparkSession, streaming: Streaming) -> DataFrame:
        """Return the rows that are there and those that arrive. Raises as `batch`."""
        self._found(spark)
        return spark.readStream.options(**STRICT, **arriving(streaming)).table(self.table)

    def arrived(self, batch: DataFrame) -> DataFrame:
        """Return the rows as they are."""
        return batch

    def _found(self, spark: SparkSession) -> None:
        if not spark.catalog.tableExists(self.table):
            raise no_table(self.name, "check the name, and that the session has the catalogue (--conf)")

    def check(self) -> None:
        """Do nothing: the catalogue is known once there is a session."""

    def holds(self, spark: SparkSession, output: str) -> bool:
        """Return whether there is a batch of an output."""
        if not spark.catalog.tableExists(self.table):
            return False
        rows = spark.read.table(self.table)
        if BATCH_COLUMN not in rows.columns:
            raise _foreign(self.name)
        return bool(rows.where(quoted(BATCH_COLUMN).startswith(f"{output}-")).limit(1).collect())

    def write(self, rows: SinkRows, output: str, batch: int) -> int:
        """Write a batch in the place of what there is of it, and count it. Raises as `ParquetFolder.write`."""
        name = batch_name(output, batch)
        frame = partitioned(plain_rows(rows), self.by).withColumn(BATCH_COLUMN, F.lit(name))
        spark = frame.sparkSession
        if not spark.catalog.tableExists(self.table):
            frame.limit(0).write.format("parquet").partitionBy(BATCH_COLUMN, *self.by).saveAsTable(self.table)
        there = spark.read.table(self.table).schema
        partitions = {column.name for column in spark.catalog.listColumns(self.table) if column.isPartition}
        if BATCH_COLUMN not in partitions:
            raise _foreign(self.name)
        added = added_columns(there, frame.schema, self.name)
        if added:
            texts = ", ".join(f"`{one.name}` {one.dataType.simpleString()}" for one in added)
            spark.sql(f"ALTER TABLE {self.table} ADD COLUMNS ({texts})")
            there = spark.read.table(self.table).schema
        have = set(frame.columns)
        columns = [quoted(f.name) if f.name in have else F.lit(None).cast(f.dataType).alias(f.name) for f in there]
        with _setting(spark, _OVERWRITE, "dynamic"), _setting(spark, _TIMESTAMPS, "TIMESTAMP_MICROS"):
            # Only the partitions of this batch are replaced.
            frame.select(*columns).write.mode("overwrite").insertInto(self.table)
        return spark.read.table(self.table).where(quoted(BATCH_COLUMN) == name).count()


def no_table(name: str, hint: str) -> FailedError:
    """Return the error for a table that does not exist."""
    return FailedError("tables.no-table", f"there is no table at `{name}`", hint=hint)


# ----------------------------------------------------------------------------------------------------------------------
# The schemes.


def _catalogue(address: TableAddress, options: SinkOptions | None = None) -> CatalogueTable:
    if not _NAME.fullmatch(address.place):
        raise bad_address(CATALOGUE, "a name has letters, digits and `_`, and at most two dots")
    return CatalogueTable(address.place, () if options is None else options.partition_by)


PARQUET: Final = AddressScheme(
    "parquet",
    "parquet:PATH",
    source=lambda address: ParquetFolder(address.place),
    sink=lambda address, options: ParquetFolder(address.place, options.partition_by),
    resolve=lambda place, path: path(place),
)
CATALOGUE: Final = AddressScheme("table", "table:NAME", source=_catalogue, sink=_catalogue)
