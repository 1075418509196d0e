"""The helper that starts a real Kafka server, and the server that tests share."""

import json
import os
from dataclasses import asdict
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from tests.jars import fetched_jars
from tests.kafka_server import USERS, RunningKafka, shared_server

from penstock.errors import FailedError
from penstock.testing.kafka import KafkaServer


def _store(address: str, topic: str, *, create: bool) -> int:
    if create:
        admin = AdminClient({"bootstrap.servers": address})
        admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(30)
    producer = Producer({"bootstrap.servers": address, "acks": "all"})
    producer.produce(topic, b"x")
    assert producer.flush(30) == 0
    consumer = Consumer({"bootstrap.servers": address, "group.id": "none"})
    try:
        return int(consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=30)[1])
    finally:
        consumer.close()


def test_a_second_process_finds_the_server_of_the_run(kafka: RunningKafka, tmp_path: Path) -> None:
    there = RunningKafka("there:1", "there:2", "there:3", "/certificate")
    (tmp_path / "kafka.json").write_text(json.dumps(asdict(there)))
    with shared_server(tmp_path) as running:
        assert running == there
    assert _store(kafka.address, "shared", create=True) == 1


def test_who_logs_in_may_only_do_what_is_allowed(kafka: RunningKafka) -> None:
    login: dict[str, str | int | float | bool] = {
        "bootstrap.servers": kafka.sasl_address,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "eve",
        "sasl.password": USERS["eve"],
    }
    admin = AdminClient(login)
    with pytest.raises(KafkaException, match="AUTHORIZATION"):
        admin.create_topics([NewTopic("eves", 1, 1)])["eves"].result(30)


@pytest.mark.long
@pytest.mark.java
def test_a_server_keeps_its_data_over_a_crash_and_ends() -> None:
    with KafkaServer(fetched_jars("kafka")) as server:
        address, pid = server.address, server.pid
        assert pid is not None
        assert _store(address, "kept", create=True) == 1
        server.kill()
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
        server.start()
        assert server.address == address
        assert _store(address, "kept", create=False) == 2
    assert server.pid is None


def test_a_server_that_does_not_start_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho no such class >&2\nexit 3\n")
    java.chmod(0o700)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(FailedError) as failed, KafkaServer(tmp_path / "jars"):
        pass
    assert failed.value.code == "testing.kafka-not-ready"
    assert "no such class" in failed.value.hint


def test_no_java_is_an_error_with_a_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(FailedError) as failed, KafkaServer(tmp_path / "jars"):
        pass
    assert failed.value.code == "testing.no-java"
