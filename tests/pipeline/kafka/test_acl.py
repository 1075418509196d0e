"""A policy as access control lists of a real Kafka server: users that the policy refuses are refused by the server."""

import time
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import AclBinding, AclOperation, AclPermissionType
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType
from confluent_kafka.cimpl import NewTopic
from tests.apps.conftest import Shell
from tests.kafka_server import USERS, RunningKafka
from tests.pipeline.jobs_plant import NAME, build
from tests.trust.kit import NOW, refused, who

from penstock.pipeline.enforce.policy import load_policy
from penstock.pipeline.kafka.acl import acl_of


def login(kafka: RunningKafka, user: str) -> dict[str, str | int | float | bool]:
    return {
        "bootstrap.servers": kafka.sasl_address,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": user,
        "sasl.password": USERS[user],
    }


def may_write(kafka: RunningKafka, user: str, topic: str) -> bool:
    reports: list[object] = []
    producer = Producer(login(kafka, user))
    producer.produce(topic, b"x", on_delivery=lambda error, _: reports.append(error))
    assert producer.flush(60) == 0
    return reports[0] is None


def may_read(kafka: RunningKafka, user: str, topic: str) -> bool:
    consumer = Consumer({**login(kafka, user), "group.id": "x"})
    try:
        consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=60)
        consumer.assign([TopicPartition(topic, 0, 0)])
        while True:
            message = consumer.poll(60)
            assert message is not None
            error = message.error()
            # Groups are not the policy's subject.
            if error is None or error.code() != KafkaError.GROUP_AUTHORIZATION_FAILED:
                return error is None
    except KafkaException:
        return False
    finally:
        consumer.close()


def test_whom_the_policy_refuses_the_server_refuses(kafka: RunningKafka, tmp_path: Path) -> None:
    policy = load_policy(str(build(tmp_path)), NOW)
    # ann publishes, ben reads, and eve has no right.
    users = {who(2): "ann", who(4): "ben", who(3): "eve", who(5): "engineer", who(1): "owner"}
    entries = acl_of(policy, users, "acl-")
    topic = f"acl-{NAME}"
    assert {(one.user, one.operation) for one in entries} == {
        ("ann", "Write"),
        ("ben", "Read"),
        ("engineer", "Read"),
        ("owner", "Read"),
        ("owner", "Write"),
    }
    assert {one.topic for one in entries} == {topic}
    admin = AdminClient({"bootstrap.servers": kafka.address})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(60)
    bindings = [
        AclBinding(
            ResourceType.TOPIC,
            one.topic,
            ResourcePatternType.LITERAL,
            f"User:{one.user}",
            "*",
            AclOperation[one.operation.upper()],
            AclPermissionType.ALLOW,
        )
        for one in entries
    ]
    for made in admin.create_acls(bindings).values():
        made.result(60)
    # Entries take effect a moment after they are stored.
    until = time.monotonic() + 60
    while not may_write(kafka, "ann", topic):
        assert time.monotonic() < until
    assert [may_write(kafka, user, topic) for user in ("ann", "ben", "eve")] == [True, False, False]
    assert [may_read(kafka, user, topic) for user in ("ann", "ben", "eve")] == [False, True, False]


def test_what_lists_cannot_hold_is_listed(tmp_path: Path) -> None:
    policy = load_policy(str(build(tmp_path)), NOW)
    entries = {(one.user, one.operation): " ".join(one.lacks) for one in acl_of(policy, {who(2): "ann"})}
    assert "always set" in entries["ann", "Write"]
    assert "2 attributes" in entries["statistics", "Read"]
    assert "only some rows" in entries["engineer", "Read"]
    with refused("acl.user"):
        acl_of(policy, {who(2): "a b"})
    with refused("acl.topic"):
        acl_of(policy, {}, "a/")


def test_the_command_writes_commands_and_json(tmp_path: Path) -> None:
    path = build(tmp_path)
    shell = Shell(tmp_path)
    common = ("policy", "acl", "--for", "kafka", "--policy", str(path), "--user", "statistics=stats")
    text = shell.ok(*common).out
    what = f"--add --allow-principal User:stats --operation Read --topic {NAME}"
    assert f"kafka-acls --bootstrap-server localhost:9092 {what}" in text.splitlines()
    assert "# not held: " in text
    found = shell.ok(*common, "-o", "json").json
    assert "User:stats" in {entry["principal"] for entry in found["entries"]}
