"""What tests of the pipeline share besides the one Spark session of the run."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession
from tests.pipeline import cluster
from tests.pipeline.jobs_plant import interpreted

from penstock.pipeline.jetstream.source import register_jetstream


@pytest.fixture(scope="module")
def session(spark: SparkSession) -> Iterator[SparkSession]:
    """Return the session, which knows `penstock.jetstream`, and does not compile what a handful of messages run."""
    register_jetstream(spark)
    with interpreted(spark):
        yield spark


@pytest.fixture(scope="session", params=["cluster"])
def everywhere(tmp_path_factory: pytest.TempPathFactory) -> cluster.Ran:
    """Run every job on a cluster, and for a client of Spark Connect."""
    return cluster.run(tmp_path_factory.mktemp("cluster"))
