"""A driver that is there to be killed: a job over many types, which kills itself at a place in a batch.

python kept_driver.py FOLDER JOB PLACE BATCH [--attached]

JOB is `admit` or `deliver`; few types are many here. PLACE is where what is evaluated once is `unwritten`, being
written (`half`), `written`, `divided` into the parts of the output, or taken away and not committed (`gone`).
With `--attached` it uses the Java of the process that started it, and reads one batch. Otherwise it is a stream.
"""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa  # type: ignore[import-untyped]  # it ships no types
import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.pipeline.killed_driver import attached, begun, kill

from penstock.apps.cli.main import cli
from penstock.pipeline import outputs, shared_columns
from penstock.pipeline.enforce import layout
from penstock.pipeline.jobs import enforce, job

FROM = {"admit": ("ingested", "admitted"), "deliver": ("admitted", "delivered")}


def killing(group: int) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return what a task makes of rows if it kills a driver behind the first of them."""

    def rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch
            os.killpg(group, signal.SIGKILL)

    return rows


def kill_at(place: str, number: int) -> None:
    """Have this process killed at a place in a batch."""

    @contextmanager
    def kept(frame: DataFrame, path: str, batch: int) -> Iterator[DataFrame]:
        here = place if batch == number else None
        if here == "unwritten":
            kill()
        if here == "half":
            frame = frame.mapInArrow(killing(os.getpgid(0)), frame.schema)
        with outputs.kept(frame, path, batch) as rows:
            if here == "written":
                kill()
            yield rows
            if here == "divided":
                kill()

    def commit(spark: SparkSession, path: str, batch: int, said: dict[str, object]) -> None:
        if place == "gone" and batch == number:
            kill()
        outputs.commit(spark, path, batch, said)

    patched = pytest.MonkeyPatch()
    patched.setattr(shared_columns, "MANY", 0)
    patched.setattr(job, "commit", commit)
    for module in (enforce, layout):
        patched.setattr(module, "kept", kept)


def main(folder: Path, name: str, place: str, number: int, *more: str) -> None:
    """Run until killed."""
    kill_at(place, number)
    source, out = (str(folder / one) for one in FROM[name])
    begin, how = (attached, []) if more else (begun, ["--stream", "--drain", "--files", "1"])
    begin()
    cli.main(["pipeline", name, source, "--policy", str(folder / "plant" / "policy.toml"), "--out", out, *how])


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4]), *sys.argv[5:])
