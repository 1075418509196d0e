"""kill -9 of the driver, or of the server, of a pipeline from messages to messages, twenty times."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import SparkSession
from tests.pipeline.jobs.test_job import Plant
from tests.pipeline.jobs_plant import build, write_events
from tests.trust.kit import NOW

from penstock.pipeline.jobs.ingest import Envelopes, Ingest
from penstock.pipeline.jobs.job import run
from penstock.pipeline.tables.addresses import SinkOptions, parse_address, sink_at
from penstock.testing.server_process import ServerProcess

ROOT = Path(__file__).resolve().parents[2]
KILLS, EACH = 20, 10


class KilledPipeline:
    """A pipeline, whose driver is a process."""

    def __init__(self, folder: Path, source: str, target: str) -> None:
        self.command = [sys.executable, "-m", "tests.pipeline.messages_driver", str(folder), source, target]
        self.folder = folder
        self.driver = self._started()

    def _started(self, *more: str) -> "subprocess.Popen[bytes]":
        with (self.folder / "driver.log").open("ab") as log:
            return subprocess.Popen(
                [*self.command, *more], cwd=ROOT, stdout=subprocess.DEVNULL, stderr=log, start_new_session=True
            )

    def go_on(self) -> None:
        """Start the driver again if it has ended."""
        if self.driver.poll() is not None:
            self.driver = self._started()

    def kill(self) -> None:
        # Java too, in one blow: it would finish what it is doing.
        os.killpg(self.driver.pid, signal.SIGKILL)
        self.driver.wait()

    def drain(self) -> None:
        """Read what is left."""
        assert self._started("--drain").wait() == 0, self.log

    def complete(self) -> int:
        """Return how many batches were delivered."""
        return len(list((self.folder / "delivered" / "commits").glob("@batch=*/part-*")))

    @property
    def log(self) -> str:
        return (self.folder / "driver.log").read_text()[-3000:]


def survive(
    folder: Path, send: Callable[[int], None], source: str, target: str, server: ServerProcess | None = None
) -> int:
    """Kill the driver, or the server, again and again while messages arrive, and return how many were sent."""
    build(folder / "plant")
    pipeline = KilledPipeline(folder, source, target)
    sent = 0
    try:
        for turn in range(KILLS):
            before = pipeline.complete()
            for number in range(sent, sent + EACH):
                send(number)
            sent += EACH
            until = time.monotonic() + 1800
            # Killed while it works, at another moment each time.
            while pipeline.complete() == before and turn % 2:
                pipeline.go_on()
                assert time.monotonic() < until, pipeline.log
                time.sleep(0.05)
            time.sleep(0.1 * (turn % 7))
            if server is None:
                pipeline.kill()
            else:
                server.kill()
                server.start()
            pipeline.go_on()
    finally:
        pipeline.kill()
    pipeline.drain()
    return sent


def deliver_whole(spark: SparkSession, folder: Path, count: int, target: str) -> None:
    """Deliver the same records as one batch."""
    write_events(folder / "in" / "0.jsonl", range(count))
    whole = Plant(folder / "whole", folder / "plant" / "policy.toml")
    read = Envelopes(str(folder / "in"), whole.loaded().types)
    run(Ingest(read, lambda: NOW), spark, whole.path("ingested"))
    run(whole.admit(), spark, whole.path("admitted"))
    sink = sink_at(parse_address(target), SinkOptions())
    sink.check()
    run(whole.deliver(), spark, whole.path("delivered"), sinks=[sink])
