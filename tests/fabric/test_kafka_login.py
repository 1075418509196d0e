"""Addresses of Kafka servers, and the file with security settings."""

import asyncio
from pathlib import Path

import pytest

from penstock.errors import FailedError, MalformedError
from penstock.fabric.addresses import open_fabric
from penstock.fabric.kafka_login import KafkaLogin, parse_kafka, read_config
from penstock.fabric.nats_login import AddressError, SecretError, UnreadableError

SECURITY = "# ours\nsecurity.protocol=SASL_SSL\n\n sasl.username = ann\nsasl.password=a=b#c\n"


def config(path: Path, text: str = SECURITY, mode: int = 0o600) -> Path:
    path.write_text(text, "utf-8")
    path.chmod(mode)
    return path


def test_an_address_has_servers_a_topic_and_options() -> None:
    found = parse_kafka("kafka://a,[::1]:1,b.example:9093/t-1_x.y?config=/f&start=earliest")
    assert found.login.servers == ("a:9092", "[::1]:1", "b.example:9093")
    assert found.login.bootstrap == "a:9092,[::1]:1,b.example:9093"
    assert (found.login.config, found.topic, found.options) == ("/f", "t-1_x.y", {"start": "earliest"})
    assert "/f" not in repr(found)


@pytest.mark.parametrize(
    "text",
    [
        *("kafka://", "kafka://a:b", "kafka://a:70000", "kafka://a,,b", "kafka://a/b/c", "kafka://a/.."),
        *("kafka://a?x=1&x=2", "nats://a", "kafka://a#b", "kafka://a/t opic", "kafka://a/" + "x" * 250),
    ],
)
def test_what_is_not_an_address_is_refused(text: str) -> None:
    with pytest.raises(AddressError):
        parse_kafka(text)


def test_an_address_has_no_secret_in_it() -> None:
    with pytest.raises(SecretError) as refused:
        parse_kafka("kafka://ann:hidden@a")
    assert "hidden" not in str(refused.value)


def test_the_file_has_security_settings(tmp_path: Path) -> None:
    path = config(tmp_path / "client")
    assert read_config(path) == {"security.protocol": "SASL_SSL", "sasl.username": "ann", "sasl.password": "a=b#c"}
    assert KafkaLogin(("a:1",), str(path)).settings()["bootstrap.servers"] == "a:1"


@pytest.mark.parametrize(
    ("text", "mode"),
    [
        (SECURITY, 0o640),
        (SECURITY, 0o604),
        ("bootstrap.servers=elsewhere", 0o600),
        ("plugin.library.paths=/tmp/evil.so", 0o600),
        ("ssl.providers=evil", 0o600),
        ("sasl.password", 0o600),
        ("sasl.username=a\nsasl.username=b", 0o600),
        ("transactional.id=x", 0o600),
    ],
)
def test_a_file_that_others_read_or_that_sets_more_is_refused(tmp_path: Path, text: str, mode: int) -> None:
    with pytest.raises(UnreadableError) as refused:
        read_config(config(tmp_path / "client", text, mode))
    assert str(refused.value) == "config"
    with pytest.raises(FailedError) as failed:
        asyncio.run(open_fabric(f"kafka://127.0.0.1:1?config={tmp_path / 'client'}"))
    assert failed.value.code == "fabric.credentials"


@pytest.mark.parametrize("text", ["kafka://a:1/topic", "kafka://a:1?start=0", "kafka://a:b", "kafka://ann:hidden@a"])
def test_a_fabric_has_servers_only(text: str) -> None:
    with pytest.raises(MalformedError) as refused:
        asyncio.run(open_fabric(text))
    assert refused.value.code == "fabric.bad-address"
    assert "hidden" not in str(refused.value)
