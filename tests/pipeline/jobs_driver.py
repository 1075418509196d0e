"""A driver that is there to be killed: three jobs of the command line as streams, each on the output of the one before.

python jobs_driver.py FOLDER
"""

import sys
import threading
import time
from pathlib import Path

from pyspark.sql import SparkSession
from tests.java import LIGHT

from penstock.apps.cli.main import cli
from penstock.pipeline.jobs.session_settings import INTERPRETED


def main(folder: Path) -> None:
    """Run until killed."""
    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    for name, value in {"spark.sql.shuffle.partitions": "2", "spark.log.level": "OFF", **INTERPRETED, **LIGHT}.items():
        spark = spark.config(name, value)
    spark.getOrCreate()
    policy = str(folder / "plant" / "policy.toml")
    for job, source, out in (
        ("ingest", "in", "ingested"),
        ("admit", "ingested", "admitted"),
        ("deliver", "admitted", "delivered"),
    ):
        paths = [str(folder / source), "--policy", policy, "--out", str(folder / out)]
        arguments = ["pipeline", job, *paths, "--stream", "--files", "1"]
        threading.Thread(target=cli.main, args=(arguments,), daemon=True).start()
        while not (folder / out / "commits").is_dir():
            time.sleep(0.1)
    time.sleep(600)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
