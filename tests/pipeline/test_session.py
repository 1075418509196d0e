"""The session that tests share."""

import os

import pytest
from pyspark.sql import SparkSession


@pytest.mark.skipif("PYTEST_XDIST_WORKER" not in os.environ, reason="one process has one session anyway")
def test_those_who_share_it_are_kept_in_one_process(spark: SparkSession, request: pytest.FixtureRequest) -> None:
    """xdist makes groups of names: a mark that it read too early would leave a session in each process."""
    assert request.node.nodeid.endswith("@spark")
