"""A Parquet file that lacks a column is put aside, and does not become events of which nothing is known."""

import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa  # type: ignore[import-untyped]  # it ships no types
import pyarrow.parquet as pq  # type: ignore[import-untyped]  # it ships no types
import pytest
from pyspark.sql import SparkSession
from tests.pipeline.ingest_reference import PARQUET_MAPPING, define
from tests.pipeline.jobs_plant import interpreted
from tests.trust.kit import NOW, refused

from penstock.pipeline.ingest import formats as parquet_files
from penstock.pipeline.ingest.formats import Seen, files_lacking
from penstock.pipeline.ingest.mapping import read_mapping
from penstock.pipeline.jobs.ingest import Ingest, MappedTables
from penstock.pipeline.jobs.job import run, start
from penstock.pipeline.outputs import Streaming, totals

MAPPING = PARQUET_MAPPING + 'sensor = "s"'


@pytest.fixture(autouse=True, scope="module")
def _quick(spark: SparkSession) -> Iterator[None]:
    with interpreted(spark):
        yield


def write(folder: Path, name: str, **columns: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({column: [value] for column, value in columns.items()}), folder / f"{name}.parquet")


def job(folder: Path) -> Ingest:
    return Ingest(MappedTables(str(folder), read_mapping(MAPPING).bind(define()[0])), lambda: NOW)


@pytest.mark.parametrize("stream", [False, pytest.param(True, marks=pytest.mark.long)])
def test_rows_of_a_file_that_lacks_a_column_are_put_aside(spark: SparkSession, tmp_path: Path, stream: bool) -> None:
    source, out = tmp_path / "in", str(tmp_path / "out")
    write(source, "a", n="1", t="2026-05-01T00:00:00Z", renamed="lost")
    write(source, "b", n="2", t="2026-05-01T00:00:00Z", s="kept")
    if stream:
        start(job(source), spark, out, Streaming(drain=True)).wait()
        write(source, "c", n="3", t="2026-05-01T00:00:00Z")
        start(job(source), spark, out, Streaming(drain=True)).wait()
    else:
        run(job(source), spark, out)
    assert totals(spark, out) == {"read": 2 + stream, "events": 1, "quarantined": 1 + stream}
    aside = spark.read.parquet(f"{out}/quarantine").orderBy("@file").collect()
    assert {row["@reason"] for row in aside} == {"ingest.header"}
    assert json.loads(bytes(aside[0]["@original"]))["renamed"] == "lost"
    assert [row["@id"] for row in spark.read.parquet(f"{out}/events").collect()] == ["2"]


@pytest.mark.parametrize("here", [True, False])
def test_each_file_is_asked_once(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, here: bool
) -> None:
    asked: list[str] = []
    local = parquet_files._local

    def _local(spark: SparkSession, file: str) -> list[str] | None:
        asked.append(file)
        return local(spark, file) if here else None

    monkeypatch.setattr(parquet_files, "_local", _local)
    write(tmp_path / "a b" / "day=1", "[x]", n="1")
    write(tmp_path / "a b" / "day=2", "y", m="1")
    seen: Seen = {}
    for _ in range(2):
        (lacking,) = files_lacking(spark, str(tmp_path / "a b"), ["n", "day"], seen)
        assert lacking.endswith("/a%20b/day=2/y.parquet")
    assert len(asked) == 2


def test_a_table_of_too_many_files_is_refused(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet_files, "TABLE_FILES", 0)
    write(tmp_path / "in", "a", n="1")
    with refused("ingest.files"):
        files_lacking(spark, str(tmp_path / "in"), ["n"])
