"""kill -9 of a driver in the middle of streams, and a restart: every event is in every output exactly once."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.apps.conftest import Shell
from tests.pipeline.jobs.test_job import RECORDS, Plant, check
from tests.pipeline.jobs_plant import build, interpreted, write_events

from penstock.pipeline.outputs import totals

FILES = 14
ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(autouse=True)
def _quick(spark: SparkSession) -> Iterator[None]:
    with interpreted(spark):
        yield


def complete(folder: Path, output: str) -> int:
    return len(list((folder / output / "commits").glob("@batch=*/part-*")))


@pytest.mark.long
def test_a_driver_that_was_killed_loses_and_doubles_nothing(spark: SparkSession, tmp_path: Path) -> None:
    plant = Plant(tmp_path, build(tmp_path / "plant"))
    each = RECORDS // FILES
    for number in range(FILES):
        write_events(tmp_path / "in" / f"{number:02}.jsonl", range(number * each, (number + 1) * each))
    driver = subprocess.Popen(
        [sys.executable, "-m", "tests.pipeline.jobs_driver", str(tmp_path)],
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
    for job, source, out in steps:
        paths = [plant.path(source), "--policy", str(plant.policy), "--out", plant.path(out)]
        penstock.ok("pipeline", job, *paths, "--stream", "--drain", "--files", str(FILES))
    check(spark, plant)
    assert totals(spark, str(tmp_path / "ingested"))["read"] == RECORDS
