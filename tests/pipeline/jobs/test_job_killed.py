"""kill -9 of a driver in the middle of streams, and a restart: every event is in every output exactly once."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.apps.conftest import Shell
from tests.pipeline.jobs.test_job import RECORDS, STREAM, Plant, check, check_admitted, records
from tests.pipeline.jobs_plant import admitted, build, good, interpreted, seen, write_events
from tests.pipeline.killed_driver import ROOT, drive
from tests.pipeline.rows import sharing

from penstock.pipeline.jobs.job import run, start
from penstock.pipeline.outputs import commits, totals

FILES = 14
#: of `kept_driver`, in the order of a batch, and whether rows are kept there
PLACES = {"unwritten": False, "half": None, "written": True, "divided": True, "gone": False}


@pytest.fixture(autouse=True)
def _quick(spark: SparkSession) -> Iterator[None]:
    with interpreted(spark):
        yield


def complete(folder: Path, output: str) -> int:
    return len(list((folder / output / "commits").glob("@batch=*/part-*")))


def are_kept(folder: Path, output: str) -> bool:
    """Return whether there are rows in the folder of those that are evaluated once, even in parts of files."""
    return any(file.stat().st_size for file in (folder / output / "kept").rglob("part-*"))


@pytest.mark.long
@pytest.mark.parametrize("many", [False, True])
def test_a_driver_that_was_killed_loses_and_doubles_nothing(spark: SparkSession, tmp_path: Path, *, many: bool) -> None:
    plant = Plant(tmp_path, build(tmp_path / "plant"))
    each = RECORDS // FILES
    for number in range(FILES):
        write_events(tmp_path / "in" / f"{number:02}.jsonl", range(number * each, (number + 1) * each))
    driver = subprocess.Popen(
        [sys.executable, "-m", "tests.pipeline.jobs_driver", str(tmp_path), *["--many"] * many],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        until = time.monotonic() + 300
        while not complete(tmp_path, "delivered"):
            assert driver.poll() is None
            assert time.monotonic() < until
            time.sleep(0.05)
    finally:
        # Java too, in one blow: it would finish what it is doing.
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()
    assert 0 < complete(tmp_path, "delivered") <= complete(tmp_path, "ingested") < FILES, "killed in the middle"
    penstock = Shell(tmp_path)
    steps = (("ingest", "in", "ingested"), ("admit", "ingested", "admitted"), ("deliver", "admitted", "delivered"))
    with sharing() if many else nullcontext():
        for job, source, out in steps:
            paths = [plant.path(source), "--policy", str(plant.policy), "--out", plant.path(out)]
            penstock.ok("pipeline", job, *paths, "--stream", "--drain", "--files", str(FILES))
            assert not are_kept(tmp_path, out)
    check(spark, plant)
    assert totals(spark, str(tmp_path / "ingested"))["read"] == RECORDS


def test_the_next_run_takes_away_what_a_killed_one_has_kept(spark: SparkSession, tmp_path: Path) -> None:
    plant = Plant(tmp_path, build(tmp_path / "plant"))
    plant.write()
    run(plant.ingest(), spark, plant.path("ingested"))
    assert drive("kept_driver", tmp_path, "admit", "written", "0", "--attached", spark=spark) == -signal.SIGKILL
    assert are_kept(tmp_path, "admitted")
    # The types are no longer many: it keeps nothing itself.
    run(plant.admit(), spark, plant.path("admitted"), overwrite=True)
    assert not are_kept(tmp_path, "admitted")
    check_admitted(spark, plant)


@pytest.mark.long
@pytest.mark.parametrize("killed", ["admit", "deliver"])
def test_a_driver_that_is_killed_at_what_it_keeps_loses_and_doubles_nothing(
    spark: SparkSession, tmp_path: Path, killed: str
) -> None:
    plant = Plant(tmp_path, build(tmp_path / "plant"))
    files = len(PLACES) + 1
    plant.write(files)
    jobs = {
        "ingest": ("ingested", plant.ingest),
        "admit": ("admitted", plant.admit),
        "deliver": ("delivered", plant.deliver),
    }
    with sharing():
        for name, (out, job) in jobs.items():
            if name == killed:
                for batch, (place, rows) in enumerate(PLACES.items()):
                    assert drive("kept_driver", tmp_path, name, place, str(batch)) == -signal.SIGKILL
                    assert len(commits(spark, plant.path(out))) == batch
                    assert rows in (None, are_kept(tmp_path, out))
                    unfinished = tmp_path / out / "kept" / f"@batch={batch}" / "_temporary"
                    assert unfinished.is_dir() is (place == "half")
            start(job(), spark, plant.path(out), STREAM).wait()
            assert list(commits(spark, plant.path(out))) == list(range(files))
            assert not are_kept(tmp_path, out)
    check(spark, plant)
    passed = len(admitted(RECORDS))
    assert totals(spark, plant.path("admitted"))["read"] == len(good(RECORDS))
    assert totals(spark, plant.path("admitted"))["events"] == passed
    assert sum(record[2] for record in records(plant.path("admitted/decisions"))) == passed
    delivered = sum(len(seen(name, RECORDS)) for name in ("statistics", "auditor", "engineer"))
    assert totals(spark, plant.path("delivered"))["delivered"] == delivered
    assert sum(record[2] for record in records(plant.path("delivered/decisions"))) == delivered
