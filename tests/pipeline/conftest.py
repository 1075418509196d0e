"""One Spark session for the whole run."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.pipeline import cluster
from tests.pipeline.jobs_plant import interpreted

from penstock.pipeline.jetstream import register


@pytest.fixture(scope="session", params=["spark"])
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    _mark(tmp_path_factory.getbasetemp())
    os.environ["PYSPARK_PYTHON"] = sys.executable
    session = (
        SparkSession.builder.master("local[2]")
        .appName("penstock tests")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.default.parallelism", "2")
        .config("spark.sql.session.timeZone", "Pacific/Auckland")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    yield session
    session.stop()


def _mark(folder: Path) -> None:
    """Fail where another process of this run has a session: it would warm up a second Java."""
    shared = folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder
    (shared / "session").touch(exist_ok=False)


@pytest.fixture(scope="module")
def session(spark: SparkSession) -> Iterator[SparkSession]:
    """Return the session, which knows `penstock.jetstream`, and does not compile what a handful of messages run."""
    register(spark)
    with interpreted(spark):
        yield spark


@pytest.fixture(scope="session", params=["cluster"])
def everywhere(tmp_path_factory: pytest.TempPathFactory) -> cluster.Ran:
    """Run every job on a cluster, and for a client of Spark Connect."""
    return cluster.run(tmp_path_factory.mktemp("cluster"))
