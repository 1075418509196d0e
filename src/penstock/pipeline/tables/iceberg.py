"""Tables of Apache Iceberg, through pyiceberg (the extra `iceberg`).

    iceberg:CATALOG#NAMESPACE.TABLE

CATALOG is a name in pyiceberg's configuration, which also has the credentials, or the path of an SQLite file, beside
which the tables are.

A batch is one commit of the table. It adds the files that executors wrote, and sets the property
`penstock.output.OUTPUT` to the number of the batch; a batch that the property has reached is never added again. Two
drivers at a time must not run the same output: pyiceberg repeats a commit that met another one.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructField, StructType

from penstock.errors import FailedError
from penstock.pipeline.frames import quoted
from penstock.pipeline.outputs import Streaming
from penstock.pipeline.tables.addresses import AddressScheme, SinkOptions, SinkRows, TableAddress, bad_address
from penstock.pipeline.tables.columns import added_columns, partitioned, plain_rows
from penstock.pipeline.tables.delta import BATCH_SAID, OUTPUT_SAID, ROWS_SAID, not_installed
from penstock.pipeline.tables.files import DataFile, no_feature, no_stream, no_table, read_files, write_files

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
    """An Iceberg table that is read, in its current snapshot."""

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
        table = self.place.opened()
        names: dict[int, str] = {}
        for schema in table.schemas().values():
            for one in schema.fields:
                if names.setdefault(one.field_id, one.name) != one.name:
                    raise no_feature(self.name, f"a column `{one.name[:80]}` that was renamed")
        if len(set(names.values())) < len(names):
            raise no_feature(self.name, "a column that was dropped, and added again")
        tasks = list(table.scan().plan_files())
        if any(task.delete_files for task in tasks):
            raise no_feature(self.name, "rows that other files delete")
        if any(str(task.file.file_format).rpartition(".")[2].upper() != "PARQUET" for task in tasks):
            raise no_feature(self.name, "files that are not Parquet")
        files = [DataFile(str(task.file.file_path)) for task in tasks]
        return read_files(spark, files, schema_of(table), self.name)

    def stream(self, spark: SparkSession, streaming: Streaming) -> DataFrame:  # noqa: ARG002  # as all sources
        """Refuse: pyiceberg does not say how far a stream has read. Raises `RefusedError` (`tables.no-stream`)."""
        raise no_stream(self.name, "only its current snapshot is read")

    def arrived(self, batch: DataFrame) -> DataFrame:
        """Return the rows as they are."""
        return batch


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
