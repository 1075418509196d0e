"""Tables of Delta Lake, through delta-rs (the extra `delta`).

A batch is one transaction of the table, which says so: `txn` has the output's name as the application and the number of
the batch as its version. So a batch that the table has is never added again, and of two drivers that add the same one,
one fails. The rows are files that executors wrote; the driver adds their names to the log.
"""

import json
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Final

from pyspark.sql import SparkSession
from pyspark.sql.types import StructField, StructType

from penstock.errors import FailedError
from penstock.pipeline.tables.addresses import AddressScheme, SinkOptions, SinkRows, TableAddress
from penstock.pipeline.tables.columns import added_columns, partitioned, plain_rows
from penstock.pipeline.tables.files import BatchFile, write_files

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
        """Check that delta-rs is installed. Raises `FailedError` (`tables.not-installed`)."""
        _deltalake()

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
    deltalake = _deltalake()
    uri = _uri(path)
    return deltalake.DeltaTable(uri) if deltalake.DeltaTable.is_deltatable(uri) else None


def schema_of(table: Any) -> StructType:
    """Return the columns of a Delta table as Spark's."""
    return StructType.fromJson(json.loads(table.schema().to_json()))


def _sink(address: TableAddress, options: SinkOptions) -> DeltaSink:
    return DeltaSink(address.place, options.partition_by)


DELTA: Final = AddressScheme("delta", "delta:PATH", sink=_sink, resolve=lambda place, path: path(place))
