"""`penstock.jetstream`: NATS JetStream as a Python Data Source of Spark, for batch and for Structured Streaming."""

from typing import Final

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from penstock.errors import MalformedError
from penstock.pipeline.jetstream_options import Options, parse_options
from penstock.pipeline.jetstream_read import JetStreamReader, JetStreamStreamReader, schema_of

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


def register(spark: SparkSession) -> None:
    """Make `penstock.jetstream` known to a session."""
    spark.dataSource.register(JetStreamDataSource)
