"""`penstock.jetstream`: NATS JetStream as a Python Data Source of Spark, for batch and for Structured Streaming."""

from typing import Final

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from penstock.errors import MalformedError
from penstock.pipeline.jetstream import link  # noqa: F401  # first, because it says what to install if nats-py is missing
from penstock.pipeline.jetstream.options import Options, parse_options
from penstock.pipeline.jetstream.reader import JetStreamReader, JetStreamStreamReader, schema_of
from penstock.pipeline.jetstream.writer import JetStreamStreamWriter, JetStreamWriter, check_written

NAME: Final = "penstock.jetstream"


class JetStreamDataSource(DataSource):
    """The source and sink. Options and guarantees: docs/reference/jetstream.md."""

    @classmethod
    def name(cls) -> str:
        """Return the name for `format(…)`."""
        return NAME

    def _parsed(self) -> Options:
        return parse_options(self.options)

    def schema(self) -> StructType:
        """Return the columns that option `columns` names. Raises as `parse_options`."""
        return schema_of(self._parsed().columns)

    def _checked(self, schema: StructType) -> Options:
        options = self._parsed()
        if schema.simpleString() != schema_of(options.columns).simpleString():
            raise MalformedError(
                "jetstream.columns",
                f"the schema `{schema.simpleString()}` is not the source's own",
                hint="give no schema; choose columns with option `columns`",
            )
        return options

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a bounded range. Raises as `parse_options`, and `jetstream.columns`."""
        return JetStreamReader(self._checked(schema), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  # Spark's name
        """Return the reader of a stream. Raises as `parse_options`, and `jetstream.columns`."""
        return JetStreamStreamReader(self._checked(schema), schema)

    def _writable(self, schema: StructType, *, overwrite: bool) -> Options:
        options = self._parsed()
        if overwrite:
            raise MalformedError(
                "jetstream.overwrite", "a stream is not overwritten", hint="use mode `append`, or purge it yourself"
            )
        check_written(schema, options)
        return options

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the writer of a frame. Raises as `parse_options`, `jetstream.columns`, `jetstream.overwrite`."""
        return JetStreamWriter(self._writable(schema, overwrite=overwrite))

    def streamWriter(  # noqa: N802  # Spark's name
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamWriter:
        """Return the writer of a streaming query. Raises as `writer`."""
        return JetStreamStreamWriter(self._writable(schema, overwrite=overwrite))


def register_jetstream(spark: SparkSession) -> None:
    """Make `penstock.jetstream` known to a session, which may know it already."""
    try:
        spark.dataSource.register(JetStreamDataSource)
    except AnalysisException as error:
        # Spark looks in the session that is active, and that may be another one, of a batch of a stream, say.
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise
