"""What is shown while a job runs: Spark's own counters, and nothing that is guessed."""

import os
import pty
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.pipeline.jobs_plant import build, write_events

from penstock.apps.cli.pipeline.runs import Watch, watching
from penstock.apps.cli.pipeline.spark_session import Cluster, Remote, SparkCounts, SparkMeter, Started

RECORDS = 42


def test_a_meter_adds_up_what_executors_count() -> None:
    with SparkMeter() as meter, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as spark:
        spark.connect(("127.0.0.1", meter.port))
        for line in (
            "app-1.1.executor.recordsRead:5|c",
            "app-1.1.executor.recordsRead:9|c",
            "app-1.2.executor.recordsRead:2|c",
            "app-1.2.executor.recordsRead:1|c",
            "app-1.2.executor.recordsWritten:4|c",
            "app-1.2.executor.filesystem.file.read_bytes:100|g",
            "app-1.2.executor.filesystem.hdfs.read_bytes:11|g",
            "app-1.2.executor.diskBytesSpilled:8|c",
            "app-1.2.executor.recordsRead:-7|c",
            "app-1.2.executor.threadpool.activeTasks:7|g",
            "\udc80",
        ):
            spark.send(line.encode(errors="surrogateescape"))
        assert meter.counted() == SparkCounts(11, 4, 111, 8)
        assert meter.counted() == SparkCounts(11, 4, 111, 8)
        assert all(re.search(r"\.\*\.sink\.penstock\.\w+$", name) for name in meter.settings)


def test_counts_in_words() -> None:
    assert SparkCounts().text(1.0) == ""
    assert SparkCounts(size=3 << 20).text(2.0) == "3.0 MiB read, 1.5 MiB/s"
    assert SparkCounts(read=3_000, size=3 << 20).text(2.0) == "3,000 rows read, 1,500 rows/s"
    assert SparkCounts(read=3_000, written=1_000).text(0.0).endswith("1,000 written")


def test_a_connect_server_tells_tasks_and_bytes() -> None:
    def stage(tasks: int, done: int, size: int) -> SimpleNamespace:
        return SimpleNamespace(num_tasks=tasks, num_completed_tasks=done, num_bytes_read=size)

    remote = Remote()
    remote(stages=[stage(4, 1, 10), stage(2, 0, 0)], inflight_tasks=2, operation_id="a", done=False)
    assert (remote.done, remote.whole, remote.counted().size) == (1, 6, 10)
    remote(stages=[stage(4, 4, 40), stage(2, 1, 5)], inflight_tasks=1, operation_id="a", done=False)
    remote(stages=None, inflight_tasks=0, operation_id="a", done=True)
    remote(stages=[stage(1, 0, 1)], inflight_tasks=1, operation_id="b", done=False)
    assert (remote.done, remote.whole, remote.counted().size) == (0, 1, 46)


def test_only_a_spark_on_this_machine_is_metered(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Cluster().metered
    assert not Cluster(remote="sc://x").metered
    assert not Cluster(master="spark://x:7077").metered
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    assert not Cluster().metered, "spark-submit has chosen where it runs"


def test_a_connect_session_is_asked_and_left_in_peace(monkeypatch: pytest.MonkeyPatch) -> None:
    handlers: list[object] = []
    spark = SimpleNamespace(registerProgressHandler=handlers.append, removeProgressHandler=handlers.remove)
    monkeypatch.setattr(sys, "stderr", SimpleNamespace(isatty=lambda: True, write=len, flush=dict))
    with watching("ingest", Started(spark)):  # type: ignore[arg-type]  # what of a session is used
        assert len(handlers) == 1
    assert handlers == []


def test_a_watch_adds_up() -> None:
    watch = Watch()
    watch({"counts": {"read": 5}})
    watch({"counts": {"read": 7}})
    watch({})
    assert (watch.read, watch.batches) == (12, 3)
    assert watch.rate > 0


def on_a_terminal(*arguments: str) -> tuple[int, str]:
    """Run a command whose standard error is a terminal, and return how it ended and what was shown there."""
    ours, theirs = pty.openpty()
    shown: list[bytes] = []

    def listen(read: Callable[[int, int], bytes]) -> None:
        # A terminal that nobody writes to any more is an error.
        try:
            while data := read(ours, 65_536):
                shown.append(data)
        except OSError:
            return

    listener = threading.Thread(target=listen, args=(os.read,))
    listener.start()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "160"}
    ran = subprocess.run(
        [str(Path(sys.executable).with_name("penstock")), *arguments],
        stderr=theirs,
        stdout=subprocess.DEVNULL,
        env=environment,
        check=False,
    )
    os.close(theirs)
    listener.join()
    os.close(ours)
    return ran.returncode, b"".join(shown).decode(errors="replace")


@pytest.mark.long
def test_rows_are_shown_while_a_job_runs(tmp_path: Path) -> None:
    policy = build(tmp_path / "plant")
    write_events(tmp_path / "in" / "0.jsonl", range(RECORDS))
    status, shown = on_a_terminal(
        "pipeline", "ingest", str(tmp_path / "in"), "--policy", str(policy), "--out", str(tmp_path / "out"),
        "--master", "local[1]", "--conf", "spark.sql.codegen.wholeStage=false",
        "--conf", "spark.sql.codegen.factoryMode=NO_CODEGEN",
    )  # fmt: skip
    assert status == 0, shown
    told = [int(found) for found in re.findall(r"(\d+) rows read, \d+ rows/s", shown)]
    assert told, shown[-2_000:]
    assert max(told) >= RECORDS
    assert re.search(r"MiB read|[\d,]+ written", shown)
