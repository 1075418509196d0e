"""Tables of Delta Lake, through delta-rs (the extra `delta`).

A batch is one transaction of the table, which says so: `txn` has the output's name as the application and the number of
the batch as its version. So a batch that the table has is never added again, and of two drivers that add the same one,
one fails. The rows are files that executors wrote; the driver adds their names to the log.

As a source a table is read in its last version, or in the one that `@vN` names. As a stream it is read version by
version, from the first or from the one after N: the rows of the files that a version added. A version that only
rearranges rows (`OPTIMIZE`) adds none. One that changed or deleted rows stops the stream, and so does a version whose
log is gone.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from types import ModuleType
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa  # type: ignore[import-untyped]  # it ships no types
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxFiles, SupportsTriggerAvailableNow
from pyspark.sql.types import LongType, StructField, StructType

from penstock.errors import FailedError, RefusedError
from penstock.pipeline.file_system_errors import store_error
from penstock.pipeline.frames import quoted
from penstock.pipeline.outputs import Streaming, read_lines
from penstock.pipeline.tables.addresses import AddressScheme, SinkOptions, SinkRows, TableAddress, bad_address
from penstock.pipeline.tables.columns import added_columns, partitioned, plain_rows
from penstock.pipeline.tables.files import BatchFile, DataFile, no_feature, no_table, read_files, write_files

OUTPUT_SAID: Final = "penstock.output"
BATCH_SAID: Final = "penstock.batch"
ROWS_SAID: Final = "penstock.rows"
_RECENT: Final = 1_000
"""Commits of a table among which a repeated batch is looked for, to say how many rows it has."""


def _deltalake() -> ModuleType:
    # Imported late: only tables of Delta Lake need it.
    try:
        import deltalake  # noqa: PLC0415
    except ImportError as missing:
        raise not_installed("Delta", "delta") from missing
    return deltalake


def not_installed(what: str, extra: str) -> FailedError:
    """Return the error for a format whose packages are not installed."""
    return FailedError(
        "tables.not-installed", f"{what} tables need further packages", hint=f"pip install 'penstock[{extra}]'"
    )


@dataclass(frozen=True, slots=True)
class DeltaSink:
    """A Delta table that the main rows of a job go to."""

    path: str
    by: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The address."""
        return f"delta:{self.path}"

    def check(self) -> None:
        """Check that delta-rs is installed and reaches the place. Raises `FailedError` as `_open`."""
        _open(self.path)

    def holds(self, spark: SparkSession, output: str) -> bool:  # noqa: ARG002  # as all sinks
        """Return whether the table has a batch of an output."""
        found = _open(self.path)
        return found is not None and found.transaction_version(_application(output)) is not None

    def write(self, rows: SinkRows, output: str, batch: int) -> int:
        """Add a batch, unless the table has it, and return how many of its rows the table has.

        Raises as `plain_rows`, `added_columns` and `partitioned`, and `FailedError` (`tables.commit`).
        """
        frame = plain_rows(rows)
        table = self._table(partitioned(frame, self.by).schema)
        application = _application(output)
        last = table.transaction_version(application)
        if last is not None and last >= batch:
            return _said(table, output, batch, otherwise=frame.count)
        files = write_files(frame, self.path, output, batch, tuple(table.metadata().partition_columns))
        count = sum(file.rows for file in files)
        deltalake = _deltalake()
        said = {OUTPUT_SAID: output, BATCH_SAID: str(batch), ROWS_SAID: str(count)}
        properties = deltalake.CommitProperties(
            custom_metadata=said, app_transactions=[deltalake.Transaction(application, batch)]
        )
        try:
            table.create_write_transaction(
                [_added(file) for file in files],
                "append",
                table.schema(),
                table.metadata().partition_columns,
                commit_properties=properties,
            )
        except deltalake.exceptions.DeltaError as error:
            raise FailedError(
                "tables.commit",
                f"`{self.name}` did not take batch {batch}: {type(error).__name__}",
                hint="another run may write the same output; run the job again, which goes on where it was",
            ) from error
        return count

    def _table(self, schema: StructType) -> Any:
        """Return the table, with a column for each of some rows; it is created if it is not there."""
        deltalake = _deltalake()
        wanted = StructType([StructField(one.name, one.dataType) for one in schema])
        found = _open(self.path)
        if found is None:
            columns = deltalake.Schema.from_json(wanted.json())
            # Where another run creates it meanwhile, its columns count.
            deltalake.DeltaTable.create(_uri(self.path), columns, mode="ignore", partition_by=list(self.by))
            found = deltalake.DeltaTable(_uri(self.path))
        added = added_columns(schema_of(found), wanted, self.name)
        if added:
            found.alter.add_columns(list(deltalake.Schema.from_json(StructType(added).json()).fields))
            found = deltalake.DeltaTable(_uri(self.path))
        return found


def _application(output: str) -> str:
    return f"penstock-{output}"


def _added(file: BatchFile) -> Any:
    # Imported late, as above.
    from deltalake.transaction import AddAction  # noqa: PLC0415

    statistics = json.dumps({"numRecords": file.rows})
    return AddAction(file.path, file.size, dict(file.partition), file.modified, True, statistics)


def _said(table: Any, output: str, batch: int, otherwise: Any) -> int:
    """Return how many rows the table's log says that a batch has."""
    for said in table.history(_RECENT):
        if said.get(OUTPUT_SAID) == output and said.get(BATCH_SAID) == str(batch):
            return int(said[ROWS_SAID])
    # The log has been shortened since. That the batch is there is known.
    return int(otherwise())


def _uri(path: str) -> str:
    """Return a path of Spark as delta-rs takes it."""
    scheme, sign, rest = path.partition("://")
    return f"s3://{rest}" if sign and scheme in ("s3a", "s3n") else path.removeprefix("file:")


def _open(path: str) -> Any | None:
    """Return the table at a path; None if there is none.

    Raises `FailedError` (`tables.not-installed`), and as `store_error` or `tables.no-table` where it cannot be looked.
    """
    deltalake = _deltalake()
    uri = _uri(path)
    try:
        return deltalake.DeltaTable(uri) if deltalake.DeltaTable.is_deltatable(uri) else None
    except OSError as error:
        found = store_error(str(error), path)
        raise found or no_table(f"delta:{path}", "check the path, and that it can be read") from error


def schema_of(table: Any) -> StructType:
    """Return the columns of a Delta table as Spark's."""
    return StructType.fromJson(json.loads(table.schema().to_json()))


# ----------------------------------------------------------------------------------------------------------------------
# The source.


VERSION: Final = "@version"
_LOG: Final = "_delta_log"
_AT: Final = re.compile(r"(.+)@v(\d{1,18})", re.DOTALL | re.ASCII)


@dataclass(frozen=True, slots=True)
class DeltaSource:
    """A Delta table that is read: in its last version, or in one that is named; as a stream, after that version."""

    path: str
    version: int | None = None
    records: bool = False

    @property
    def name(self) -> str:
        """The address."""
        return f"delta:{self.path}" if self.version is None else f"delta:{self.path}@v{self.version}"

    @property
    def files(self) -> str:
        """The path of the table."""
        return self.path

    def batch(self, spark: SparkSession) -> DataFrame:
        """Return the rows of the version.

        Raises `FailedError` (`tables.no-table`), `RefusedError` (`tables.feature`).
        """
        table = self._opened(self.version)
        by = table.metadata().partition_columns
        found = pa.table(table.get_add_actions(flatten=True)).to_pylist()
        files = [self._file(one["path"], {name: _text(one[f"partition.{name}"]) for name in by}) for one in found]
        return read_files(spark, files, schema_of(table), self.name)

    def stream(self, spark: SparkSession, streaming: Streaming) -> DataFrame:
        """Return the numbers of the versions as they are made. Raises as `batch`."""
        self._opened()
        try:
            spark.dataSource.register(DeltaVersions)
        except AnalysisException as error:
            # The session may know it already.
            if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
                raise
        after = -1 if self.version is None else self.version
        options = {"table": self.path, "after": str(after), "versions": str(streaming.files)}
        return spark.readStream.format(DeltaVersions.name()).options(**options).load()

    def arrived(self, batch: DataFrame) -> DataFrame:
        """Return the rows that some versions added.

        Raises `FailedError` (`tables.log-gone`), `RefusedError` (`tables.not-appended`, `tables.feature`).
        """
        if batch.columns != [VERSION]:
            return batch
        spark = batch.sparkSession
        versions = sorted(int(row[0]) for row in batch.select(quoted(VERSION)).collect())
        files = [file for version in versions for file in self._added(spark, version)]
        return read_files(spark, files, schema_of(self._opened()), self.name)

    def _opened(self, version: int | None = None) -> Any:
        if _open(self.path) is None:
            raise no_table(self.name, "check the path")
        deltalake = _deltalake()
        try:
            table = deltalake.DeltaTable(_uri(self.path), version=version)
        except deltalake.exceptions.DeltaError as error:
            raise no_table(self.name, "check the version, and that the table can be read") from error
        mapping = (table.metadata().configuration or {}).get("delta.columnMapping.mode", "none")
        if mapping != "none":
            raise no_feature(self.name, f"columns that are mapped by {mapping[:20]}")
        features = set(table.protocol().reader_features or ()) - _READ
        if features:
            raise no_feature(self.name, f"the feature {min(features)[:40]}")
        return table

    def _file(self, path: str, partition: Mapping[str, str | None]) -> DataFile:
        if "://" in path or path.startswith("/"):
            raise no_feature(self.name, "files outside of its folder")
        return DataFile(f"{self.path}/{unquote(path)}", tuple(sorted(partition.items())))

    def _added(self, spark: SparkSession, version: int) -> Iterator[DataFile]:
        lines = read_lines(spark, f"{self.path}/{_LOG}/{version:020}.json")
        if not lines:
            raise FailedError(
                "tables.log-gone",
                f"the log of version {version} of `{self.name}` is gone, and with it the names of its files",
                hint="read the table without --stream, or begin after a later version with @vN",
            )
        for line in lines:
            action = json.loads(line)
            if (removed := action.get("remove")) is not None and removed.get("dataChange", True):
                raise RefusedError(
                    "tables.not-appended",
                    f"version {version} of `{self.name}` changed or deleted rows",
                    hint="a stream reads rows that are added: begin after that version with @vN, in another folder",
                )
            if (added := action.get("add")) is not None and added.get("dataChange", True):
                values = added.get("partitionValues") or {}
                yield self._file(added["path"], {name: value or None for name, value in values.items()})


_READ: Final = frozenset({"timestampNtz", "v2Checkpoint", "vacuumProtocolCheck"})
"""Features of tables that do not change which rows their files have."""


def _text(value: object) -> str | None:
    """Return the value of a partition as the log has it."""
    if value is None or value == "":
        return None
    if isinstance(value, bool):
        return str(value).lower()
    return value.isoformat() if isinstance(value, date) else str(value)


@dataclass(frozen=True, slots=True)
class VersionRange(InputPartition):
    """Versions from one to another, both included."""

    first: int
    last: int


class DeltaVersionReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Names the versions of a table as they are made. An offset is the last version that was read, and the table."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._path = options["table"]
        self._after = int(options["after"])
        self._most = int(options["versions"])
        self._target: int | None = None

    def _now(self) -> tuple[int, str]:
        table = _open(self._path)
        if table is None:
            raise no_table(f"delta:{self._path}", "it was there when the stream began")
        return int(table.version()), str(table.metadata().id)

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  # Spark's name
        """Return the version before the first one to read."""
        return {"version": self._after, "table": self._now()[1]}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  # Spark's name
        """Return how many versions are read at a time."""
        return ReadMaxFiles(self._most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  # Spark's name
        """Store the last version."""
        self._target = self._now()[0]

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802  # Spark's name
        """Return the last version of the next batch. Raises `FailedError` (`tables.replaced`)."""
        last, table = self._now()
        begin = int(start["version"])
        if start["table"] != table:
            raise FailedError("tables.replaced", f"`delta:{self._path}` was made again since the stream began")
        last = last if self._target is None else min(last, self._target)
        if isinstance(limit, ReadMaxFiles):
            last = min(last, begin + limit.max_files)
        return {"version": max(begin, last), "table": table}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the versions of a batch."""
        first, last = int(start["version"]) + 1, int(end["version"])
        return [VersionRange(first, last)] if first <= last else []

    def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
        """Yield the numbers of some versions."""
        versions: Iterable[int] = ()
        if isinstance(partition, VersionRange):
            versions = range(partition.first, partition.last + 1)
        return ((version,) for version in versions)

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: the table keeps its log."""


class DeltaVersions(DataSource):
    """The versions of a Delta table, for Structured Streaming."""

    @classmethod
    def name(cls) -> str:
        """Return the name for `format(…)`."""
        return "penstock.delta-versions"

    def schema(self) -> StructType:
        """Return the only column."""
        return StructType([StructField(VERSION, LongType())])

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: ARG002, N802  # Spark's name
        """Return the reader."""
        return DeltaVersionReader(self.options)


# ----------------------------------------------------------------------------------------------------------------------
# The scheme.


def _source(address: TableAddress) -> DeltaSource:
    found = _AT.fullmatch(address.place)
    return DeltaSource(address.place) if found is None else DeltaSource(found[1], int(found[2]))


def _sink(address: TableAddress, options: SinkOptions) -> DeltaSink:
    if _AT.fullmatch(address.place):
        raise bad_address(DELTA, "a version can be read, and not be written to")
    return DeltaSink(address.place, options.partition_by)


DELTA: Final = AddressScheme("delta", "delta:PATH", source=_source, sink=_sink, resolve=lambda place, path: path(place))
