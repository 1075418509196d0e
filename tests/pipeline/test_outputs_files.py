"""No setting of a cluster lets a job pass over files."""

import gzip
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow.parquet as pq  # type: ignore[import-untyped]  # it ships no types
import pytest
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]  # it has no types
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # the name that everybody knows it by

from penstock.pipeline.conflicts.input import InputTable, StorageFormat, read_rules
from penstock.pipeline.enforce.manifest import ROWS
from penstock.pipeline.event_columns import ID, TYPE
from penstock.pipeline.ingest.ingest import read_csv, read_lines, read_parquet
from penstock.pipeline.ingest.mapping import CsvLayout
from penstock.pipeline.jobs.reports import Audit
from penstock.pipeline.outputs import Output, read_part

SETTINGS = ("spark.sql.files.ignoreCorruptFiles", "spark.sql.files.ignoreMissingFiles")
READERS: dict[str, Callable[[SparkSession, str], DataFrame]] = {
    "lines": lambda spark, path: read_lines(spark.read, path),
    "csv": lambda spark, path: read_csv(spark.read, path, CsvLayout()),
    "decisions": lambda spark, path: Audit(path).all(spark),
    "rules": lambda spark, path: read_rules(spark, InputTable(path, StorageFormat.JSON)),
}


@pytest.fixture(autouse=True, scope="module")
def _careless(spark: SparkSession) -> Iterator[None]:
    for name in SETTINGS:
        spark.conf.set(name, "true")
    yield
    for name in SETTINGS:
        spark.conf.unset(name)


@pytest.mark.parametrize("name", READERS)
def test_a_file_that_is_broken_fails_the_job(spark: SparkSession, tmp_path: Path, name: str) -> None:
    (tmp_path / "a.gz").write_bytes(gzip.compress(b'{"id":1}\n' * 1000)[:-20])
    with pytest.raises(Py4JJavaError, match="FAILED_READ_FILE"):
        READERS[name](spark, str(tmp_path)).collect()


def test_a_table_that_is_broken_fails_the_job(spark: SparkSession, tmp_path: Path) -> None:
    rows = spark.range(3)
    rows.coalesce(1).write.parquet(str(tmp_path / ROWS / "@batch=0"))
    part = read_part(spark, str(tmp_path), ROWS, [0], rows.schema)
    records = read_parquet(spark.read, str(tmp_path / ROWS / "@batch=0"))
    file = next((tmp_path / ROWS / "@batch=0").glob("*.parquet"))
    file.with_name(f".{file.name}.crc").unlink()
    whole = file.read_bytes()
    for broken in (whole[:40], None):
        file.unlink()
        if broken is not None:
            file.write_bytes(broken)
        for frame in (part, records):
            with pytest.raises(Py4JJavaError, match="FAILED_READ_FILE"):
                frame.collect()


def test_versions_are_found_by_their_dictionary_and_have_no_statistics(spark: SparkSession, tmp_path: Path) -> None:
    output = Output(spark, str(tmp_path), "ingest", "x", ("events",))
    rows = spark.range(9).coalesce(1).select(F.lit("a long text").alias(TYPE), F.col("id").alias(ID))
    output.write(rows, "events", 0, rows)
    for file in tmp_path.rglob("*.parquet"):
        version, id_ = map(pq.read_metadata(file).row_group(0).column, range(2))
        assert (version.has_dictionary_page, version.is_stats_set, id_.is_stats_set) == (True, False, True)
