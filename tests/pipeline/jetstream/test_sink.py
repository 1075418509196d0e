"""A JetStream stream as a sink of jobs: each batch is there once, whoever is killed, and events can be read again."""

import asyncio
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import nats
import pytest
from pyspark.sql import SparkSession
from tests.pipeline.jetstream.test_writer import DiedError, make
from tests.pipeline.jobs.test_job import Plant
from tests.pipeline.jobs_plant import admitted, build, interpreted, line, seen, write_events
from tests.pipeline.message_kills import deliver_whole, survive
from tests.trust.kit import NOW, refused

from penstock.pipeline.ingest.ingest import ingest_envelopes
from penstock.pipeline.jetstream import sink as sinks
from penstock.pipeline.jetstream.link import JetStreamLink
from penstock.pipeline.jetstream.options import parse_options
from penstock.pipeline.jetstream.reader import RangeReader
from penstock.pipeline.jetstream.sink import JetStreamSink
from penstock.pipeline.jetstream.writer import Attempt, publish_rows
from penstock.pipeline.jobs.job import run, spark_errors
from penstock.pipeline.jobs.schemes import register_schemes
from penstock.pipeline.tables.addresses import SinkOptions, SinkRows, parse_address, sink_at, source_at
from penstock.pipeline.tables.messages import messages
from penstock.testing.nats import NatsServer


@pytest.fixture(autouse=True, scope="module")
def _quick(spark: SparkSession) -> Iterator[None]:
    register_schemes()
    with interpreted(spark):
        yield


def address(server: NatsServer, stream: str, subject: str = "all") -> str:
    return f"{server.url.replace('nats:', 'jetstream:')}/{stream}?subject={stream}.{subject}"


def sink_of(url: str) -> JetStreamSink:
    made = sink_at(parse_address(url), SinkOptions())
    assert isinstance(made, JetStreamSink)
    made.check()
    return made


def contents(url: str, stream: str) -> Counter[tuple[str, bytes]]:
    """Return the messages of a stream with their subjects, and how often they are there."""
    with JetStreamLink(parse_options({"url": url, "stream": stream})) as link:
        chunks = RangeReader(link, 1, 1_000_000).chunks()
        return Counter((message.subject, message.payload) for chunk in chunks for message in chunk)


def test_a_batch_is_there_once_also_when_the_window_is_over(spark: SparkSession, server: NatsServer) -> None:
    # The server forgets ids after a tenth of a second, sooner than Spark begins again.
    make(server.url, "ONCE", duplicate_window=0.1)
    sink = sink_of(address(server, "ONCE"))
    # Equal rows are as many messages.
    rows = SinkRows(spark.createDataFrame([(1,), (1,), (1,), (2,)], "`@id` int"))
    expected = {("ONCE.all", b'{"id":1}'): 3, ("ONCE.all", b'{"id":2}'): 1}
    assert not sink.holds(spark, "o")

    # A driver published a part of the batch, and died.
    parts = messages(rows).toArrow().to_batches()
    some = list(sinks._numbered(parts, sink.subject))[1:3]
    publish_rows(sink.options, Attempt("o", 0, "killed", 0, "t"), some)
    assert sink.holds(spark, "o")
    assert sink.write(rows, "o", 0) == 4
    assert contents(server.url, "ONCE") == expected
    # The whole batch comes again, divided otherwise.
    assert sink_of(f"{address(server, 'ONCE')}&partitions=3").write(SinkRows(rows.frame.repartition(3)), "o", 0) == 4
    assert contents(server.url, "ONCE") == expected
    # Another output has batches of its own, and no batch comes after a later one.
    assert sink.write(rows, "p", 5) == 4
    with refused("jetstream.stale-batch"), spark_errors():
        sink.write(rows, "p", 4)
    assert contents(server.url, "ONCE").total() == 8


@pytest.mark.long
def test_views_have_subjects_of_their_readers_and_ingest_reads_them(
    spark: SparkSession, server: NatsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(server.url, "VIEWS")
    plant = Plant(tmp_path, build(tmp_path / "plant"))
    write_events(plant.folder / "in" / "0.jsonl", range(30))
    run(plant.ingest(), spark, plant.path("ingested"))
    with refused("jetstream.bad-option"):
        run(plant.admit(), spark, plant.path("wrong"), sinks=[sink_of(address(server, "VIEWS", "*"))])
    run(plant.admit(), spark, plant.path("admitted"))
    sink = sink_of(address(server, "VIEWS", "*"))

    def killed(*_: object) -> None:
        raise DiedError

    with monkeypatch.context() as patched:
        patched.setattr(sinks, "commit_batch", killed)
        with pytest.raises(DiedError):
            run(plant.deliver(), spark, plant.path("delivered"), sinks=[sink])
    run(plant.deliver(), spark, plant.path("delivered"), sinks=[sink])
    found = contents(server.url, "VIEWS")
    assert set(found.values()) == {1}
    assert {subject for subject, _ in found} == {"VIEWS.auditor", "VIEWS.engineer", "VIEWS.statistics"}
    ids = sorted(json.loads(payload)["id"] for subject, payload in found if subject == "VIEWS.engineer")
    assert ids == [one for one, *_ in seen("engineer", 30)]
    # What a reader got is a source.
    records = source_at(parse_address(address(server, "VIEWS", "statistics"))).batch(spark)
    read = ingest_envelopes(records, plant.loaded().types, NOW)
    assert read.bad.count() == 0
    assert sorted(row["@id"] for row in read.good.select("`@id`").collect()) == sorted(f"e{n}" for n in admitted(30))


def test_names_that_are_not_subjects_are_written_as_such(spark: SparkSession) -> None:
    frame = spark.createDataFrame([("a.b *>%é\n", 1)], "`@subscriber` string, `@id` int")
    (row,) = sinks._numbered(messages(SinkRows(frame)).toArrow().to_batches(), "views.*")
    assert row.subject == "views.a%2Eb%20%2A%3E%25%C3%A9%0A"
    assert row.headers["subscriber"] == "a.b%20*>%25%C3%A9%0A"


@pytest.mark.parametrize(
    ("code", "url"),
    [
        ("jetstream.bad-option", "jetstream://h/S"),
        ("jetstream.bad-option", "jetstream://h/S?subject=a,b"),
        ("jetstream.bad-option", "jetstream://h/S?subject=a.>"),
        ("jetstream.bad-option", "jetstream://h/S?subject=*"),
        ("jetstream.bad-option", "jetstream://h/S?subject=a.*.*"),
        ("jetstream.unknown-option", "jetstream://h/S?subject=a&writers=2"),
        ("tables.address", "jetstream://h?subject=a"),
        ("tables.address", "jetstream://h/S?subject=a&url=x"),
        ("tables.secret-in-address", "jetstream://a:b@h/S?subject=a"),
    ],
)
def test_a_wrong_address_is_refused_before_anything_is_written(code: str, url: str) -> None:
    with refused(code):
        sink_at(parse_address(url), SinkOptions())


@pytest.mark.long
@pytest.mark.parametrize("who", ["driver", "server"])
def test_from_jetstream_to_jetstream_nothing_is_lost_or_doubled_whoever_is_killed(
    spark: SparkSession, tmp_path: Path, who: str
) -> None:
    with NatsServer() as server:
        for stream in ("SOURCE", "TARGET", "WHOLE"):
            make(server.url, stream)

        def send(number: int) -> None:
            async def publish() -> None:
                connection = await nats.connect(server.url)
                await connection.jetstream().publish("SOURCE.all", line(number).encode())
                await connection.close()

            asyncio.run(publish())

        source = f"{address(server, 'SOURCE')}&maxMessagesPerBatch=6"
        sent = survive(tmp_path, send, source, address(server, "TARGET", "*"), server if who == "server" else None)
        deliver_whole(spark, tmp_path, sent, address(server, "WHOLE", "*"))
        found = Counter({(s.partition(".")[2], p): n for (s, p), n in contents(server.url, "TARGET").items()})
        whole = Counter({(s.partition(".")[2], p): n for (s, p), n in contents(server.url, "WHOLE").items()})
        assert found == whole
        assert found.total() > sent
