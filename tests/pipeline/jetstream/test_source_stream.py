"""Structured Streaming over JetStream, exactly once: replays, failing tasks, and a driver that is killed."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import nats
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from tests.pipeline import jetstream_driver

from penstock.pipeline.jetstream.link import JetStreamLink, stream_state
from penstock.pipeline.jetstream.options import Options, parse_options
from penstock.pipeline.jetstream.reader import RangeReader
from penstock.pipeline.jetstream.source import NAME
from penstock.pipeline.jobs.job import RunningStream
from penstock.testing.nats import NatsServer

WINDOW = 0.5


def make(url: str, stream: str, count: int = 0) -> Options:
    async def run() -> None:
        connection = await nats.connect(url)
        js = connection.jetstream()
        await js.add_stream(name=stream, subjects=[f"{stream}.>"], duplicate_window=WINDOW)
        for i in range(count):
            await js.publish_async(f"{stream}.{i % 7}", b"payload %d" % i, headers={"ce-id": f"e{i}"})
        await js.publish_async_completed()
        await connection.close()

    asyncio.run(run())
    return parse_options({"url": url, "stream": stream})


def stored(options: Options) -> Counter[tuple[str, str, bytes]]:
    """Return how often each message is there; the stream's name in subjects is taken off."""
    with JetStreamLink(options) as link:
        found: Counter[tuple[str, str, bytes]] = Counter()
        for chunk in RangeReader(link, 1, 1_000_000).chunks():
            found.update((m.subject.partition(".")[2], m.headers["ce-id"], m.payload) for m in chunk)
        return found


def copied(session: SparkSession, url: str, source: str, out: str, checkpoint: Path) -> list[int]:
    """Copy a stream to another with a streaming query; return the rows of its batches."""
    events = session.readStream.format(NAME).options(url=url, stream=source, maxMessagesPerBatch="200").load()
    running = RunningStream(
        events.selectExpr(f"replace(subject, '{source}', '{out}') AS subject", "id", "sequence", "payload")
        .writeStream.format(NAME)
        .options(url=url, stream=out, checkpointLocation=str(checkpoint))
        .trigger(availableNow=True)
    )
    running.wait()
    return [progress.numInputRows for progress in running.query.recentProgress if progress.numInputRows]


def test_a_query_copies_a_stream_and_replays_a_batch_after_the_window(
    session: SparkSession, server: NatsServer, tmp_path: Path
) -> None:
    source, out = make(server.url, "COPY", 450), make(server.url, "COPIED")
    assert copied(session, server.url, "COPY", "COPIED", tmp_path) == [200, 200, 50]
    assert stored(out) == stored(source)
    # As if the driver had died after the sink's commit, and after the publishing but before that commit.
    time.sleep(WINDOW)
    for forget in (False, True):
        (tmp_path / "commits" / "2").unlink()
        (tmp_path / "commits" / ".2.crc").unlink(missing_ok=True)
        if forget:
            _uncommit(out)
        copied(session, server.url, "COPY", "COPIED", tmp_path)
        assert stored(out) == stored(source)


def _uncommit(options: Options) -> None:
    """Take the mark off the last batch, which an earlier run then seems to have left."""

    async def run() -> None:
        connection = await nats.connect(list(options.login.urls))
        bucket = await connection.jetstream().key_value(options.state_bucket)
        (key,) = [key for key in await bucket.keys() if key.startswith(f"{options.stream}.") and key.endswith(".batch")]
        value = (await bucket.get(key)).value
        assert value is not None
        assert b'"committed": true' in value
        # The floor is where the batch began: before its 50 messages.
        value = value.replace(b'"committed": true', b'"committed": false')
        await bucket.put(key, value)
        await connection.close()

    asyncio.run(run())


def events(session: SparkSession, out: str, count: int) -> DataFrame:
    return session.range(count, numPartitions=2).selectExpr(
        f"'{out}.x' AS subject", "concat('e', id) AS id", "map('n', string(id)) AS headers", "string(id) AS payload"
    )


def test_a_frame_is_written_once_for_its_write_id(session: SparkSession, server: NatsServer) -> None:
    out = make(server.url, "FRAME")
    for _ in range(2):
        writer = events(session, "FRAME", 300).write.format(NAME).mode("append")
        writer.options(url=server.url, stream="FRAME", writeId="january").save()
        time.sleep(WINDOW)
    assert stored(out) == Counter(("x", f"e{i}", str(i).encode()) for i in range(300))
    events(session, "FRAME", 10).write.format(NAME).mode("append").options(url=server.url, stream="FRAME").save()
    assert sum(stored(out).values()) == 310, "without a write id each job is a write of its own"


def test_a_frame_that_does_not_fit_and_a_secret_are_refused(session: SparkSession, server: NatsServer) -> None:
    frame = events(session, "FRAME", 1)
    for wrong, options, code in (
        (frame.drop("id"), {}, "jetstream.columns"),
        (frame.selectExpr("*", "1 AS extra"), {}, "jetstream.columns"),
        (frame, {"password": "s3kr1t"}, "jetstream.secret-in-options"),
    ):
        with pytest.raises(PySparkException) as refused:
            wrong.write.format(NAME).mode("append").options(url=server.url, stream="FRAME", **options).save()
        assert code in str(refused.value)
        assert "s3kr1t" not in str(refused.value)


@pytest.mark.long
def test_a_driver_that_is_killed_leaves_every_event_once(
    session: SparkSession, server: NatsServer, tmp_path: Path
) -> None:
    source, out = make(server.url, "SOURCE", 900), make(server.url, "OUT")
    command = [sys.executable, jetstream_driver.__file__, server.url, str(tmp_path)]
    with (tmp_path / "log").open("wb") as log:
        driver = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    try:
        assert _reaches(out, 400, driver, within=240), (tmp_path / "log").read_text()
    finally:
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()
    assert (tmp_path / "failed").exists(), "a task failed too, halfway"
    assert sum(stored(out).values()) < 900
    time.sleep(WINDOW)
    jetstream_driver.stream(session, server.url, str(tmp_path))
    assert stored(out) == stored(source)


def _reaches(options: Options, count: int, process: "subprocess.Popen[bytes]", *, within: float) -> bool:
    deadline = time.monotonic() + within
    with JetStreamLink(options) as link:
        while time.monotonic() < deadline and process.poll() is None:
            if link.call(lambda client: stream_state(client, options)).last >= count:
                return True
            time.sleep(0.02)
    return False
