"""Tables of Apache Iceberg, through pyiceberg (the extra `iceberg`).

    iceberg:CATALOG#NAMESPACE.TABLE

CATALOG is a name in pyiceberg's configuration, which also has the credentials, or the path of an SQLite file, beside
which the tables are.

A batch is one commit of the table. It adds the files that executors wrote, and sets the property
`penstock.output.OUTPUT` to the number of the batch; a batch that the property has reached is never added again. Two
drivers at a time must not run the same output: pyiceberg repeats a commit that met another one.

A stream begins with the whole of the current snapshot, and goes on with the files that later snapshots added. An offset
is the last snapshot that was read. If that is no longer an ancestor of the current one, or a snapshot in between has
expired, rows would be missing without an error: the stream is refused.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxFiles, SupportsTriggerAvailableNow
from pyspark.sql.types import LongType, StructField, StructType

from penstock.errors import FailedError, RefusedError
from penstock.pipeline.frames import quoted
from penstock.pipeline.outputs import Streaming
from penstock.pipeline.tables.addresses import AddressScheme, SinkOptions, SinkRows, TableAddress, bad_address
from penstock.pipeline.tables.columns import added_columns, partitioned, plain_rows
from penstock.pipeline.tables.delta import BATCH_SAID, OUTPUT_SAID, ROWS_SAID, not_installed
from penstock.pipeline.tables.files import DataFile, no_feature, no_table, read_files, write_files

_FOLDER: Final = "folder_"
"""What the name of a folder begins with: files of Iceberg have the columns that they are partitioned by, too."""


@dataclass(frozen=True, slots=True)
class IcebergPlace:
    """Where an Iceberg table is: its catalogue, and its name there."""

    catalog: str
    table: str

    @property
    def name(self) -> str:
        """The address."""
        return f"iceberg:{self.catalog}#{self.table}"

    def load_catalog(self) -> Any:
        """Return the catalogue. Raises `FailedError` (`tables.not-installed`, `tables.catalog`)."""
        # Imported late: only tables of Iceberg need it.
        try:
            from pyiceberg.catalog import load_catalog  # noqa: PLC0415
        except ImportError as missing:
            raise not_installed("Iceberg", "iceberg") from missing
        try:
            if not _is_file(self.catalog):
                return load_catalog(self.catalog)
            folder = Path(self.catalog).parent
            folder.mkdir(parents=True, exist_ok=True)
            settings = {"uri": f"sqlite:///{self.catalog}", "warehouse": folder.as_uri()}
            return load_catalog(Path(self.catalog).name, type="sql", **settings)
        except Exception as error:  # noqa: BLE001  # whatever drivers raise can name an address with credentials
            raise FailedError(
                "tables.catalog",
                f"the catalogue `{self.catalog[:80]}` cannot be used: {type(error).__name__}",
                hint="give a name in pyiceberg's configuration (~/.pyiceberg.yaml), or the path of an SQLite file",
            ) from None

    def open(self) -> Any | None:
        """Return the table; None if there is none. Raises as `load_catalog`."""
        catalog = self.load_catalog()
        return catalog.load_table(self.table) if catalog.table_exists(self.table) else None

    def opened(self) -> Any:
        """Return the table. Raises as `load_catalog`, and `FailedError` (`tables.no-table`)."""
        found = self.open()
        if found is None:
            raise no_table(self.name, "check the catalogue and the name")
        return found


def _is_file(catalog: str) -> bool:
    return "/" in catalog or catalog.endswith((".db", ".sqlite", ".sqlite3"))


@dataclass(frozen=True, slots=True)
class IcebergSink:
    """An Iceberg table that the main rows of a job go to."""

    place: IcebergPlace
    by: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The address."""
        return self.place.name

    def check(self) -> None:
        """Check that the catalogue answers. Raises as `IcebergPlace.load_catalog`."""
        self.place.load_catalog()

    def holds(self, spark: SparkSession, output: str) -> bool:  # noqa: ARG002  # as all sinks
        """Return whether the table has a batch of an output."""
        found = self.place.open()
        return found is not None and _property(output) in found.properties

    def write(self, rows: SinkRows, output: str, batch: int) -> int:
        """Add a batch, unless the table has it, and return how many of its rows the table has.

        Raises as `plain_rows`, `added_columns` and `partitioned`.
        """
        frame = plain_rows(rows)
        table = self._table(partitioned(frame, self.by).schema)
        if int(table.properties.get(_property(output), -1)) >= batch:
            return _said(table, output, batch, frame)
        by = [one.source_id for one in table.spec().fields]
        names = [str(table.schema().find_column_name(one)) for one in by]
        folders = [f"{_FOLDER}{name}" for name in names]
        copies = [quoted(name).alias(folder) for name, folder in zip(names, folders, strict=True)]
        copied = partitioned(frame, names).select("*", *copies)
        location = str(table.location()).rstrip("/")
        files = write_files(copied, f"{location}/data", output, batch, folders)
        count = sum(file.rows for file in files)
        said = {OUTPUT_SAID: output, BATCH_SAID: str(batch), ROWS_SAID: str(count)}
        with table.transaction() as transaction:
            transaction.set_properties({_property(output): str(batch)})
            if files:
                paths = [f"{location}/data/{file.path}" for file in files]
                transaction.add_files(paths, snapshot_properties=said, check_duplicate_files=False)
        return count

    def _table(self, schema: StructType) -> Any:
        """Return the table, with a column for each of some rows; it is created if it is not there."""
        wanted = StructType([StructField(one.name, one.dataType) for one in schema])
        columns = to_arrow_schema(wanted, timezone="UTC")
        catalog, name = self.place.load_catalog(), self.place.table
        if not catalog.table_exists(name):
            catalog.create_namespace_if_not_exists(name.rpartition(".")[0])
            with catalog.create_table_transaction(name, columns) as creation, creation.update_spec() as spec:
                for one in self.by:
                    spec.add_identity(one)
        table = catalog.load_table(name)
        added = added_columns(schema_of(table), wanted, self.name)
        if added:
            with table.update_schema() as update:
                update.union_by_name(to_arrow_schema(StructType(added), timezone="UTC"))
            table = catalog.load_table(name)
        return table


@dataclass(frozen=True, slots=True)
class IcebergSource:
    """An Iceberg table that is read, in its current snapshot; as a stream, from that on."""

    place: IcebergPlace
    records: bool = False

    @property
    def name(self) -> str:
        """The address."""
        return self.place.name

    @property
    def files(self) -> None:
        """None: the table's metadata says where they are."""
        return

    def batch(self, spark: SparkSession) -> DataFrame:
        """Return the rows of the snapshot.

        Raises as `IcebergPlace.opened`, and `RefusedError` (`tables.feature`) for rows that are deleted by other files,
        and for columns that were renamed: files are read by the names of columns.
        """
        table = self._opened()
        return self._read(spark, table, self._files(table, None))

    def _opened(self) -> Any:
        """Return the table, if its columns have kept their names. Raises as `batch`."""
        table = self.place.opened()
        names: dict[int, str] = {}
        for schema in table.schemas().values():
            for one in schema.fields:
                if names.setdefault(one.field_id, one.name) != one.name:
                    raise no_feature(self.name, f"a column `{one.name[:80]}` that was renamed")
        if len(set(names.values())) < len(names):
            raise no_feature(self.name, "a column that was dropped, and added again")
        return table

    def _files(self, table: Any, snapshot: int | None) -> list[Any]:
        """Return the files of a snapshot, or of the current one. Raises as `batch`."""
        tasks = list(table.scan(snapshot_id=snapshot).plan_files())
        if any(task.delete_files for task in tasks):
            raise no_feature(self.name, "rows that other files delete")
        return [task.file for task in tasks]

    def _read(self, spark: SparkSession, table: Any, files: Sequence[Any]) -> DataFrame:
        if any(str(file.file_format).rpartition(".")[2].upper() != "PARQUET" for file in files):
            raise no_feature(self.name, "files that are not Parquet")
        return read_files(spark, [DataFile(str(file.file_path)) for file in files], schema_of(table), self.name)

    def stream(self, spark: SparkSession, streaming: Streaming) -> DataFrame:
        """Return the ids of the snapshots as they are made. Raises as `batch`."""
        self._opened()
        try:
            spark.dataSource.register(IcebergSnapshots)
        except AnalysisException as error:
            # The session may know it already.
            if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
                raise
        options = {"catalog": self.place.catalog, "table": self.place.table, "snapshots": str(streaming.files)}
        return spark.readStream.format(IcebergSnapshots.name()).options(**options).load()

    def arrived(self, batch: DataFrame) -> DataFrame:
        """Return the rows that some snapshots added.

        Raises as `batch`, and `FailedError` (`tables.log-gone`), `RefusedError` (`tables.not-appended`).
        """
        if batch.columns != list(_SPAN.names):
            return batch
        table = self._opened()
        files: list[Any] = []
        for after, last in batch.collect():
            if after is None:
                files += self._whole(table, last)
            else:
                files += (file for one in _between(table, self.name, after, last) for file in self._added(table, one))
        return self._read(batch.sparkSession, table, files)

    def _whole(self, table: Any, snapshot: int) -> list[Any]:
        if table.snapshot_by_id(snapshot) is None:
            raise _gone(self.name)
        return self._files(table, snapshot)

    def _added(self, table: Any, snapshot: Any) -> Iterator[Any]:
        """Yield the files that a snapshot added."""
        # Imported late, as above.
        from pyiceberg.manifest import ManifestContent, ManifestEntryStatus  # noqa: PLC0415
        from pyiceberg.table.snapshots import Operation  # noqa: PLC0415

        operation = None if snapshot.summary is None else snapshot.summary.operation
        if operation is Operation.REPLACE:
            return  # the same rows in other files
        if operation is not Operation.APPEND:
            raise RefusedError(
                "tables.not-appended",
                f"a snapshot of `{self.name}` changed or deleted rows",
                hint="a stream reads rows that are added: begin again, in another folder",
            )
        for manifest in snapshot.manifests(table.io):
            if manifest.added_snapshot_id == snapshot.snapshot_id and manifest.content == ManifestContent.DATA:
                for entry in manifest.fetch_manifest_entry(table.io):
                    if entry.status == ManifestEntryStatus.ADDED and entry.snapshot_id == snapshot.snapshot_id:
                        yield entry.data_file


_SPAN: Final = StructType([StructField("@after", LongType()), StructField("@snapshot", LongType())])
"""What a stream names: the snapshots behind one, which is null at the beginning, up to another."""


def _between(table: Any, name: str, after: int, last: int) -> list[Any]:
    """Return the snapshots behind one, up to another, oldest first. Raises `FailedError` (`tables.log-gone`)."""
    found: list[Any] = []
    at: int | None = last
    while at != after:
        snapshot = None if at is None else table.snapshot_by_id(at)
        if snapshot is None:
            raise _gone(name)
        found.append(snapshot)
        at = snapshot.parent_snapshot_id
    return found[::-1]


def _gone(name: str) -> FailedError:
    return FailedError(
        "tables.log-gone",
        f"a snapshot of `{name}` that was not read yet has expired, or was rolled back",
        hint="read the table without --stream, or begin again in another folder; keep snapshots for longer",
    )


@dataclass(frozen=True, slots=True)
class SnapshotRange(InputPartition):
    """Snapshots behind one, up to another."""

    after: int | None
    last: int


class IcebergSnapshotReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Names the snapshots of a table as they are made. An offset is the last one that was read, and the table."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._place = IcebergPlace(options["catalog"], options["table"])
        self._most = int(options["snapshots"])
        self._target: int | None = None

    def _now(self) -> tuple[Any, int | None]:
        table = self._place.opened()
        current = table.current_snapshot()
        return table, None if current is None else int(current.snapshot_id)

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  # Spark's name
        """Return that nothing was read."""
        return {"snapshot": None, "table": str(self._now()[0].metadata.table_uuid)}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  # Spark's name
        """Return how many snapshots are read at a time."""
        return ReadMaxFiles(self._most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  # Spark's name
        """Store the current snapshot."""
        self._target = self._now()[1]

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802  # Spark's name
        """Return the last snapshot of the next batch. Raises `FailedError` (`tables.replaced`, `tables.log-gone`)."""
        table, last = self._now()
        if start["table"] != str(table.metadata.table_uuid):
            raise FailedError("tables.replaced", f"`{self._place.name}` was made again since the stream began")
        last = last if self._target is None else self._target
        if last is not None and start["snapshot"] is not None and last != start["snapshot"]:
            found = _between(table, self._place.name, start["snapshot"], last)
            count = limit.max_files if isinstance(limit, ReadMaxFiles) else len(found)
            last = int(found[:count][-1].snapshot_id)
        return {**start, "snapshot": start["snapshot"] if last is None else last}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the snapshots of a batch."""
        after, last = start["snapshot"], end["snapshot"]
        return [] if last is None or last == after else [SnapshotRange(after, last)]

    def read(self, partition: InputPartition) -> Iterator[tuple[int | None, int]]:
        """Yield the ids of some snapshots."""
        return iter([(partition.after, partition.last)] if isinstance(partition, SnapshotRange) else [])

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: the table keeps its snapshots."""


class IcebergSnapshots(DataSource):
    """The snapshots of an Iceberg table, for Structured Streaming."""

    @classmethod
    def name(cls) -> str:
        """Return the name for `format(…)`."""
        return "penstock.iceberg-snapshots"

    def schema(self) -> StructType:
        """Return the columns."""
        return _SPAN

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: ARG002, N802  # Spark's name
        """Return the reader."""
        return IcebergSnapshotReader(self.options)


def schema_of(table: Any) -> StructType:
    """Return the columns of an Iceberg table as Spark's."""
    return from_arrow_schema(table.schema().as_arrow(), prefer_timestamp_ntz=True)


def _property(output: str) -> str:
    return f"{OUTPUT_SAID}.{output}"


def _said(table: Any, output: str, batch: int, frame: DataFrame) -> int:
    """Return how many rows the table's snapshots say that a batch has."""
    for snapshot in reversed(table.snapshots()):
        said = snapshot.summary
        if said is not None and said.get(OUTPUT_SAID) == output and said.get(BATCH_SAID) == str(batch):
            return int(said[ROWS_SAID])
    # The snapshot is gone, or there is none for a batch without rows. That the batch is there is known.
    return frame.count()


def _place(address: TableAddress) -> IcebergPlace:
    catalog, sign, table = address.place.rpartition("#")
    if not sign or not catalog or "." not in table.strip("."):
        raise bad_address(ICEBERG, "it names a catalogue, and a table with its namespace")
    return IcebergPlace(catalog, table)


def _absolute(place: str, path: Any) -> str:
    catalog, sign, table = place.rpartition("#")
    return f"{path(catalog)}{sign}{table}" if sign and _is_file(catalog) else place


def _source(address: TableAddress) -> IcebergSource:
    return IcebergSource(_place(address))


def _sink(address: TableAddress, options: SinkOptions) -> IcebergSink:
    return IcebergSink(_place(address), options.partition_by)


ICEBERG: Final = AddressScheme(
    "iceberg", "iceberg:CATALOG#NAMESPACE.TABLE", source=_source, sink=_sink, resolve=_absolute
)
