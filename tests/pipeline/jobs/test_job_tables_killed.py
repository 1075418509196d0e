"""kill -9 of a driver that writes to tables, at each place and at random, and a restart: every row is there once."""

import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq  # type: ignore[import-untyped]  # it ships no types
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from tests.pipeline.jobs.test_job import Plant
from tests.pipeline.jobs_plant import build, good, line, write_events
from tests.pipeline.killed_driver import drive

from penstock.pipeline.jobs.job import run
from penstock.pipeline.jobs.schemes import register_schemes
from penstock.pipeline.outputs import commits, totals
from penstock.pipeline.tables.addresses import SinkOptions, parse_address, sink_at
from penstock.pipeline.tables.iceberg import IcebergPlace

TABLES: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "delta": ("delta:{}/t", lambda folder: DeltaTable(str(folder / "t")).to_pyarrow_table()),
    "iceberg": (
        "iceberg:{}/i/c.db#ns.t",
        lambda folder: IcebergPlace(str(folder / "i" / "c.db"), "ns.t").opened().scan().to_arrow(),
    ),
    "parquet": ("parquet:{}/t", lambda folder: pq.read_table(str(folder / "t"))),
    "table": ("table:events", lambda folder: pq.read_table(str(folder / "warehouse" / "events"))),
}


def check_killed(spark: SparkSession, folder: Path, kind: str, places: Sequence[str]) -> None:
    """Kill a driver at places, one batch after the other, and compare with what one batch would give."""
    address, opened = TABLES[kind]
    build(folder / "plant")
    (folder / "in").mkdir()
    files = 2 * len(places) + 2
    for number in range(files):
        (folder / "in" / f"{number:02}.jsonl").write_text(f"{line(2 * number)}\n{line(2 * number + 1)}\n")
    for batch, place in enumerate(places):
        assert drive("tables_driver", folder, address.format(folder), place, str(batch)) == -signal.SIGKILL
    assert drive("tables_driver", folder, address.format(folder), "end", "0") == 0
    rows = opened(folder)
    found = duckdb.sql("SELECT event_id FROM rows").fetchall()  # type: ignore[union-attr]  # a query has rows
    assert sorted(one[0] for one in found) == sorted(f"e{n}" for n in good(2 * files))
    out = str(folder / "out")
    assert totals(spark, out)["events"] == len(good(2 * files)) == rows.num_rows
    assert list(commits(spark, out)) == list(range(files))


def test_a_driver_that_is_killed_behind_the_commit_of_a_table_writes_nothing_twice(
    spark: SparkSession, tmp_path: Path
) -> None:
    plant = Plant(tmp_path, build(tmp_path / "plant"))
    write_events(tmp_path / "in" / "0.jsonl", range(9))
    address, opened = TABLES["delta"]
    arguments = (address.format(tmp_path), "commit", "0", "--attached")
    assert drive("tables_driver", tmp_path, *arguments, spark=spark) == -signal.SIGKILL
    assert opened(tmp_path).num_rows == len(good(9))
    assert not list(commits(spark, plant.path("out")))
    register_schemes()
    run(
        plant.ingest(),
        spark,
        plant.path("out"),
        sinks=[sink_at(parse_address(address.format(tmp_path)), SinkOptions())],
    )
    assert sorted(opened(tmp_path).column("event_id").to_pylist()) == sorted(f"e{n}" for n in good(9))
    assert totals(spark, plant.path("out"))["events"] == len(good(9))


@pytest.mark.long
@pytest.mark.parametrize("kind", TABLES)
def test_a_driver_that_is_killed_at_a_table_loses_and_doubles_nothing(
    spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    check_killed(spark, tmp_path, kind, ["commit" if kind in ("parquet", "table") else "files", "commit"])


@pytest.mark.long
def test_a_delta_table_survives_twenty_kills(spark: SparkSession, tmp_path: Path) -> None:
    check_killed(spark, tmp_path, "delta", ["files", "commit", "random", "commit"] * 5)
