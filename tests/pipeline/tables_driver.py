"""A driver that is there to be killed: `ingest` as a stream into a table, which kills itself at a place in a batch.

python tables_driver.py FOLDER ADDRESS PLACE BATCH [--attached]

With `--attached` it uses the Java of the process that started it, and reads one batch.
PLACE is `files` (the rows are written, the table does not list them), `commit` (the table has the batch, the job has
not committed it), or `random` (at any time from that batch on). With the place `end` it goes on to the end.
"""

import random
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.pipeline.killed_driver import attached, begun, kill
from tests.trust.kit import NOW

from penstock.apps.cli.main import cli
from penstock.pipeline import outputs
from penstock.pipeline.enforce.policy import load_policy
from penstock.pipeline.jobs import job
from penstock.pipeline.jobs.ingest import Envelopes, Ingest
from penstock.pipeline.jobs.schemes import register_schemes
from penstock.pipeline.tables import delta, iceberg
from penstock.pipeline.tables.addresses import SinkOptions, parse_address, sink_at
from penstock.pipeline.tables.files import write_files


def kill_at(place: str, number: int) -> None:
    """Have this process killed at a place in a batch."""

    def behind(function: Callable[..., Any], position: int) -> Callable[..., Any]:
        def called(*arguments: Any) -> Any:
            found = function(*arguments)
            if arguments[position] >= number:
                kill()
            return found

        return called

    def commit(spark: SparkSession, path: str, batch: int, said: dict[str, object]) -> None:
        if place == "commit" and batch >= number:
            kill()
        if place == "random" and batch >= number:
            threading.Timer(random.uniform(0, 1), kill).start()  # noqa: S311  # when, not a secret
        outputs.commit(spark, path, batch, said)

    patched = pytest.MonkeyPatch()
    patched.setattr(job, "commit", commit)
    if place == "files":
        for module in (delta, iceberg):
            patched.setattr(module, "write_files", behind(write_files, 3))


def run_attached(folder: Path, address: str) -> None:
    """Run `ingest` without a Java of its own."""
    spark = attached()
    register_schemes()
    sink = sink_at(parse_address(address), SinkOptions())
    types = load_policy(str(folder / "plant" / "policy.toml"), NOW).types
    job.run(Ingest(Envelopes(str(folder / "in"), types), lambda: NOW), spark, str(folder / "out"), sinks=[sink])


def main(folder: Path, address: str, place: str, number: int, *more: str) -> None:
    """Run until killed, or until nothing is left."""
    if more:
        kill_at(place, number)
        run_attached(folder, address)
        return
    hive = {
        "spark.sql.catalogImplementation": "hive",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.hadoop.javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={folder}/metastore;create=true",
        "spark.hadoop.datanucleus.schema.autoCreateAll": "true",
        "spark.hadoop.hive.metastore.schema.verification": "false",
    }
    begun({"spark.sql.shuffle.partitions": "1", **(hive if address.startswith("table:") else {})})
    if place != "end":
        kill_at(place, number)
    options = ["--policy", str(folder / "plant" / "policy.toml"), "--out", str(folder / "out"), "--to", address]
    cli.main(["pipeline", "ingest", str(folder / "in"), *options, "--stream", "--drain", "--files", "1"])


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4]), *sys.argv[5:])
