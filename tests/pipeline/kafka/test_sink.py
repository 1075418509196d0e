"""Kafka topics as sinks: each batch is there once, whoever is killed, and events can be read again."""

import json
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer
from pyspark.sql import SparkSession
from tests.jars import fetched_jars
from tests.kafka_server import RunningKafka
from tests.pipeline.jobs.test_job import KilledError, Plant
from tests.pipeline.jobs_plant import admitted, build, interpreted, line, write_events
from tests.pipeline.kafka.kafka_kit import Topic
from tests.pipeline.message_kills import deliver_whole, survive
from tests.trust.kit import refused

from penstock.pipeline.ingest.ingest import ingest_envelopes
from penstock.pipeline.jobs.job import run
from penstock.pipeline.jobs.schemes import register_schemes
from penstock.pipeline.kafka.link import headers_of
from penstock.pipeline.kafka.sink import BatchMark, KafkaSink, _fence, read_marks
from penstock.pipeline.tables.addresses import SinkOptions, SinkRows, parse_address, sink_at, source_at
from penstock.testing.kafka import KafkaServer


@pytest.fixture(autouse=True, scope="module")
def _quick(spark: SparkSession) -> Iterator[None]:
    register_schemes()
    with interpreted(spark):
        yield


def sink_of(url: str) -> KafkaSink:
    made = sink_at(parse_address(url), SinkOptions())
    assert isinstance(made, KafkaSink)
    made.check()
    return made


def numbers(spark: SparkSession, first: int, count: int) -> SinkRows:
    return SinkRows(spark.range(first, first + count).withColumnRenamed("id", "@id"))


def ids(topic: Topic) -> list[int]:
    return sorted(json.loads(message.value() or b"")["id"] for message in topic.read())


def test_a_batch_is_there_once_however_often_and_by_whom_it_is_written(
    spark: SparkSession, kafka: RunningKafka
) -> None:
    topic = Topic(kafka.address, 2)
    sink = sink_of(topic.url)
    assert not sink.holds(spark, "o")
    assert sink.write(numbers(spark, 0, 4), "o", 0) == 4
    assert sink.holds(spark, "o")
    # Another driver repeats it, divided otherwise, and goes on.
    again = numbers(spark, 0, 4)
    assert sink_of(topic.url).write(SinkRows(again.frame.repartition(3)), "o", 0) == 4
    assert sink.write(numbers(spark, 4, 2), "o", 1) == 2
    assert ids(topic) == [0, 1, 2, 3, 4, 5]
    # Another output has batches of its own.
    assert sink.write(numbers(spark, 6, 1), "p", 0) == 1
    assert ids(topic) == [0, 1, 2, 3, 4, 5, 6]
    with refused("kafka.stale-batch"):
        sink.write(numbers(spark, 0, 4), "o", 0)


def test_what_was_begun_before_is_fenced_and_not_read(spark: SparkSession, kafka: RunningKafka) -> None:
    topic = Topic(kafka.address)
    sink = sink_of(f"{topic.url}?writers=1")
    # A driver that stands still in the middle of its transaction.
    slow = _fence(sink.options, "o", 0)
    slow.begin_transaction()
    slow.produce(topic.name, b'{"id": 7}')
    assert slow.flush(60) == 0
    assert sink.write(numbers(spark, 0, 2), "o", 0) == 2
    with pytest.raises(Exception, match=r"(?i)fenced|epoch"):
        slow.commit_transaction(60)
    assert ids(topic) == [0, 1]
    assert len(topic.read("read_uncommitted")) == 3
    # Part of a batch is there: with other writers the rest would be other rows.
    with refused("kafka.writers"):
        sink_of(f"{topic.url}?writers=3").write(numbers(spark, 0, 2), "o", 0)
    assert {number: mark.rows for number, mark in read_marks(sink.options, "o").items()} == {0: 2}


@pytest.mark.long
def test_over_tls_a_topic_is_a_sink_and_a_source(spark: SparkSession, kafka: RunningKafka, tmp_path: Path) -> None:
    topic = Topic(kafka.address)
    url = f"kafka://{kafka.tls_address}/{topic.name}?config={kafka.tls_config(tmp_path)}"
    assert sink_of(url).write(numbers(spark, 0, 2), "o", 0) == 2
    found = source_at(parse_address(url)).batch(spark).collect()
    assert sorted(json.loads(bytes(row["@original"]))["id"] for row in found) == ids(topic) == [0, 1]


def test_with_fewer_writers_the_earlier_ones_cannot_commit_any_more(spark: SparkSession, kafka: RunningKafka) -> None:
    topic = Topic(kafka.address)
    assert sink_of(f"{topic.url}?writers=3").write(numbers(spark, 0, 1), "o", 0) == 1
    # A task of batch 1 stands still in the middle of its transaction when the job is started again, with one writer.
    slow = _fence(sink_of(topic.url).options, "o", 2)
    slow.begin_transaction()
    slow.produce(topic.name, b'{"id": 1}')
    slow.produce(f"{topic.name}.penstock", BatchMark(1, 1, 3).as_bytes(), key="o/2")
    assert slow.flush(60) == 0
    assert sink_of(f"{topic.url}?writers=1").write(numbers(spark, 1, 2), "o", 1) == 2
    with pytest.raises(Exception, match=r"(?i)fenced|epoch"):
        slow.commit_transaction(60)
    assert ids(topic) == [0, 1, 2]


def test_topics_that_were_just_created_are_waited_for(kafka: RunningKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    class LateConsumer(Consumer):
        """Its server hears of each topic only after it was asked for it."""

        def list_topics(self, topic: str | None = None, timeout: float = -1) -> Any:
            asked.append(topic or "")
            return super().list_topics("nowhere" if asked.count(topic or "") == 1 else topic, timeout=timeout)

    topic = Topic(kafka.address)
    # Not an administrator's client: that one would have a server create a topic whose name is misspelt.
    monkeypatch.setattr("penstock.pipeline.kafka.link.Consumer", LateConsumer)
    sink_of(topic.url)
    assert min(asked.count(topic.name), asked.count(f"{topic.name}.penstock")) >= 2


@pytest.mark.parametrize("mode", ["structured", "binary"])
def test_events_are_cloud_events_that_ingest_reads(
    spark: SparkSession, kafka: RunningKafka, tmp_path: Path, mode: str
) -> None:
    plant = Plant(tmp_path, build(tmp_path / "plant"))
    write_events(plant.folder / "in" / "0.jsonl", range(5))
    run(plant.ingest(), spark, plant.path("ingested"))
    topic = Topic(kafka.address)
    run(plant.admit(), spark, plant.path("admitted"), sinks=[sink_of(f"{topic.url}?mode={mode}")])
    messages = topic.read()
    headers = headers_of(messages[0])
    assert headers["content-type"] == (b"application/cloudevents+json" if mode == "structured" else b"application/json")
    assert ("ce_id" in headers) is (mode == "binary")
    found = source_at(parse_address(topic.url)).batch(spark)
    read = ingest_envelopes(found, plant.loaded().types, datetime.now(UTC))
    assert read.bad.count() == 0
    assert sorted(row["@id"] for row in read.good.select("`@id`").collect()) == [f"e{n}" for n in admitted(5)]


def test_a_job_that_was_killed_behind_kafkas_commit_goes_on(
    spark: SparkSession, kafka: RunningKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant = Plant(tmp_path, build(tmp_path / "plant"))
    write_events(plant.folder / "in" / "0.jsonl", range(8))
    run(plant.ingest(), spark, plant.path("ingested"))
    run(plant.admit(), spark, plant.path("admitted"))
    topic = Topic(kafka.address)
    sink = sink_of(topic.url)
    written = KafkaSink.write

    def killed(self: KafkaSink, rows: SinkRows, output: str, batch: int) -> int:
        written(self, rows, output, batch)
        raise KilledError("test.killed", "behind Kafka's commit")

    with monkeypatch.context() as patched:
        patched.setattr(KafkaSink, "write", killed)
        with refused("test.killed"):
            run(plant.deliver(), spark, plant.path("delivered"), sinks=[sink])
    before = contents(topic)
    run(plant.deliver(), spark, plant.path("delivered"), sinks=[sink])
    assert contents(topic) == before
    assert set(before.values()) == {1}


@pytest.mark.long
@pytest.mark.parametrize("who", ["driver", "server"])
def test_from_kafka_to_kafka_nothing_is_lost_or_doubled_whoever_is_killed(
    spark: SparkSession, tmp_path: Path, who: str
) -> None:
    with KafkaServer(fetched_jars("kafka"), ready_within=1800) as server:
        source, target, expected = (Topic(server.address, 2) for _ in range(3))

        def send(number: int) -> None:
            source.send(line(number).encode(), partition=number % 2)

        sent = survive(tmp_path, send, f"{source.url}?batch=6", target.url, server if who == "server" else None)
        deliver_whole(spark, tmp_path, sent, expected.url)
        assert contents(target) == contents(expected)
        assert len(target.read()) > sent


def contents(topic: Topic) -> Counter[tuple[bytes | None, object]]:
    """Return the values of a topic with their subscribers, and how often they are there."""
    return Counter((message.value(), headers_of(message).get("subscriber")) for message in topic.read())
