"""Kafka topics as sources: offsets, times, transactions, CloudEvents in both modes, and what is lost."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from confluent_kafka import Producer
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from tests.kafka_server import USERS, RunningKafka
from tests.pipeline.jobs_plant import interpreted
from tests.pipeline.kafka.kafka_kit import Topic
from tests.trust.kit import refused

from penstock.pipeline.jobs.job import spark_errors
from penstock.pipeline.jobs.schemes import register_schemes
from penstock.pipeline.kafka.reader import KafkaSource, event_of
from penstock.pipeline.outputs import Streaming
from penstock.pipeline.tables.addresses import parse_address, source_at


@pytest.fixture(autouse=True, scope="module")
def _quick(spark: SparkSession) -> Iterator[None]:
    register_schemes()
    with interpreted(spark):
        yield


def source(url: str) -> KafkaSource:
    found = source_at(parse_address(url))
    assert isinstance(found, KafkaSource)
    return found


def read(frame: DataFrame) -> list[tuple[str, int, bytes]]:
    return sorted((row["@file"], row["@position"], bytes(row["@original"])) for row in frame.collect())


def originals(frame: DataFrame) -> list[bytes]:
    return [original for *_, original in read(frame)]


def test_a_batch_has_the_committed_records_that_there_are(spark: SparkSession, kafka: RunningKafka) -> None:
    topic = Topic(kafka.address, 2)
    topic.send(b"0", b"1")
    topic.send(b"2", partition=1)
    transaction = Producer({"bootstrap.servers": kafka.address, "transactional.id": topic.name})
    transaction.init_transactions(60)
    for value, commit in ((b"kept", True), (b"aborted", False)):
        transaction.begin_transaction()
        transaction.produce(topic.name, value, partition=0)
        assert transaction.flush(60) == 0
        (transaction.commit_transaction if commit else transaction.abort_transaction)(60)
    frame = source(topic.url).batch(spark)
    topic.send(b"later")
    name = f"kafka:{topic.name}"
    assert read(frame) == [
        (f"{name}/0", 0, b"0"),
        (f"{name}/0", 1, b"1"),
        (f"{name}/0", 2, b"kept"),
        (f"{name}/1", 0, b"2"),
    ]
    assert originals(source(f"{topic.url}?start=0:1,1:1&end=0:2,1:1").batch(spark)) == [b"1"]
    past, future = (datetime.now(UTC) + timedelta(days=days) for days in (-1, 1))
    assert len(originals(source(f"{topic.url}?start={past:%Y-%m-%dT%H:%M:%SZ}").batch(spark))) == 5
    assert originals(source(f"{topic.url}?start={future:%Y-%m-%dT%H:%M:%SZ}").batch(spark)) == []
    assert originals(source(f"{topic.url}?start=latest").batch(spark)) == []


def test_a_stream_reads_each_record_once_in_batches(spark: SparkSession, kafka: RunningKafka, tmp_path: Path) -> None:
    topic = Topic(kafka.address)
    topic.send(*(b"%d" % number for number in range(5)))
    batches: list[list[bytes]] = []

    def drain() -> None:
        frame = source(f"{topic.url}?batch=3").stream(spark, Streaming())
        query = (
            frame.writeStream.foreachBatch(lambda batch, _: batches.append(originals(batch)))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    drain()
    assert batches == [[b"0", b"1", b"2"], [b"3", b"4"]]
    topic.send(b"5")
    drain()
    assert batches[2:] == [[b"5"]]


def test_records_that_are_gone_stop_a_reader_unless_it_may_skip_them(spark: SparkSession, kafka: RunningKafka) -> None:
    topic = Topic(kafka.address)
    topic.send(b"0", b"1", b"2")
    topic.delete_before(2)
    with refused("kafka.data-lost"), spark_errors():
        source(f"{topic.url}?start=0:0").batch(spark).collect()
    assert originals(source(f"{topic.url}?start=0:0&lost=skip").batch(spark)) == [b"2"]
    assert originals(source(topic.url).batch(spark)) == [b"2"]


def test_who_may_not_read_is_refused_and_no_plan_has_the_password(
    spark: SparkSession, kafka: RunningKafka, tmp_path: Path
) -> None:
    topic = Topic(kafka.address)
    topic.send(b"0")
    path = tmp_path / "client"
    path.write_text(
        f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\nsasl.username=eve\nsasl.password={USERS['eve']}\n"
    )
    path.chmod(0o644)
    url = f"kafka://{kafka.sasl_address}/{topic.name}?config={path}"
    with refused("kafka.credentials"):
        source(url).batch(spark)
    path.chmod(0o600)
    with refused("kafka.unauthorized"):
        source(url).batch(spark)
    frame = source(topic.url).batch(spark)
    assert USERS["eve"] not in str(frame._jdf.queryExecution().toString())


@pytest.mark.parametrize(
    "url",
    [
        *("kafka://h:1", "kafka://h:x/t", "kafka://h/t?strat=0", "kafka://h/t?start=then", "kafka://h/t?batch=-1"),
        *(
            "kafka://h/t?lost=maybe",
            "kafka://h/t?mode=x",
            "kafka://h/t?writers=0",
            "kafka://h/t?start=2026-01-01T00:00",
        ),
    ],
)
def test_a_wrong_address_is_refused_before_anything_is_read(url: str) -> None:
    register_schemes()
    with refused("kafka.bad-option"):
        source_at(parse_address(url))


def test_a_topic_that_is_not_there_is_named(spark: SparkSession, kafka: RunningKafka) -> None:
    with refused("kafka.no-topic"):
        source(f"kafka://{kafka.address}/nowhere").batch(spark)


def test_a_record_in_binary_mode_is_put_together() -> None:
    headers = {"ce_specversion": b"1.0", "ce_id": 'é"'.encode(), "content-type": b"application/json", "other": b"x"}
    made = json.loads(event_of(b'{"value": 1.0}', headers))
    assert made == {"specversion": "1.0", "id": 'é"', "data": {"value": 1.0}}
    whole = json.dumps(made).encode()
    assert event_of(whole, {"content-type": b"application/cloudevents+json", "ce_specversion": b"1.0"}) == whole
    assert event_of(whole, {}) == whole


@given(value=st.binary(max_size=20), name=st.text(max_size=4), text=st.binary(max_size=5))
def test_no_value_and_no_header_make_another_event(value: bytes, name: str, text: bytes) -> None:
    headers = {"ce_specversion": b"1.0", "ce_id": b"1", f"ce_{name}": text}
    made = event_of(b'1, "id": "2"' + value, headers)
    if made != b'1, "id": "2"' + value:
        assert json.loads(made)["id"] == (text.decode() if name == "id" else "1")
