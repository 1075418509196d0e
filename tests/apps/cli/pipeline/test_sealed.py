"""`penstock pipeline seal`, `unseal` and `compact`, and the other jobs over a sealed log."""

import os
from collections.abc import Iterator
from dataclasses import replace

import pyarrow.parquet as pq  # type: ignore[import-untyped]  # it ships no types
import pytest
from pyspark.sql import SparkSession
from tests.apps.conftest import Shell
from tests.pipeline.jetstream.test_reader import on
from tests.pipeline.jobs_plant import FIRST, NAME, SECOND, SENSOR, build, good, interpreted, write_events
from tests.pipeline.sealed_kit import key_files
from tests.trust.kit import key, who

from penstock.codec.blocks import Padding
from penstock.codec.sexp import transport
from penstock.crypto.aead import CipherAlgorithm
from penstock.crypto.keys import private_key_to_sexp
from penstock.crypto.seal_keys import KeyRing
from penstock.crypto.wrapping import Secret
from penstock.model.types import EventType, Sealing
from penstock.testing.nats import NatsServer
from penstock.trust import sign_type

RECORDS = 42
POLICY = ("--policy", "plant/policy.toml")
WHOLE, SOME = (("--ring", f"{name}/ring", "--kek", f"{name}/kek") for name in ("whole", "some"))


@pytest.fixture(autouse=True)
def _quick(spark: SparkSession) -> Iterator[None]:
    with interpreted(spark):
        yield


@pytest.fixture
def plant(penstock: Shell) -> Shell:
    """Return a plant whose readings are sealed, with all keys and with all but that of the sensor."""
    build(penstock.folder / "plant")
    for number, definition in enumerate((FIRST, SECOND)):
        sealed = replace(definition, sealing=Sealing.ATTRIBUTE)
        (penstock.folder / "plant" / f"reading-{number}.type").write_bytes(sign_type(sealed, key(1)).to_bytes())
    whole, some = KeyRing(), KeyRing()
    for scope in (f"{who(1)}/{NAME}", *(str(a.id) for a in EventType.of(FIRST).attributes)):
        secret = Secret(os.urandom(32))
        for ring in (whole, some) if scope != str(SENSOR) else (whole,):
            ring.put(scope, 1, secret)
    key_files(penstock.folder / "whole", whole)
    key_files(penstock.folder / "some", some)
    write_events(penstock.folder / "in" / "0.jsonl", range(RECORDS))
    return penstock


@pytest.mark.long
def test_from_events_to_a_sealed_log_and_back(plant: Shell) -> None:
    events = len(good(RECORDS))
    plant.ok("pipeline", "ingest", "in", *POLICY, "--out", "ingested")
    sealing = ("pipeline", "seal", "ingested", *POLICY, *WHOLE, "--out", "sealed")
    assert plant(*sealing).code == "cli.sender"
    chosen = ("--algorithm", "aes-gcm-siv", "--pad", "powers")
    done = plant.ok(*sealing, "--sender", str(who(2)), "--rows", "4", *chosen)
    headers = pq.read_table(plant.folder / "sealed" / "sealed", columns=["@header"])["@header"].to_pylist()
    assert {header[2:4] for header in headers} == {bytes((CipherAlgorithm.AES_GCM_SIV, Padding.POWERS))}
    assert f"{events} events = {events} sealed + 0 in quarantine" in done.out
    found = plant.ok("pipeline", "compact", "sealed", *WHOLE, "--out", "compacted", "-o", "json").json
    assert found["counts"] == {"read": events, "sealed": events, "blocks read": 9, "blocks": 1}
    opened = plant.ok("pipeline", "unseal", "compacted", *POLICY, *SOME, "--out", "opened")
    assert f"{events} events = {events} opened + 0 still sealed + 0 in quarantine" in opened.out
    closed = f"{NAME} probe"
    assert f"no key for {closed}: all its values are empty" in opened.out
    # A job that is given keys reads the log itself, and delivers the same.
    plant.ok("pipeline", "deliver", "opened", *POLICY, "--out", "once")
    found = plant.ok("pipeline", "deliver", "sealed", *POLICY, *SOME, "--out", "twice", "-o", "json").json
    assert found["closed"] == [closed]
    policies = ("--before", "plant/policy.toml", "--after", "plant/policy.toml")
    assert f"no key for {closed}" in plant.ok("pipeline", "whatif", "sealed", *policies, *SOME).out
    once, twice = (plant.ok("pipeline", "view", name, "engineer", "-o", "json").json for name in ("once", "twice"))
    assert once == twice
    assert once["rows"] > 0
    assert {(event["probe"], event["@source"]) for event in once["events"]} == {(None, str(who(2)))}
    _through_jetstream(plant, events)


def _through_jetstream(plant: Shell, events: int) -> None:
    """Signed by the owner, who may publish everything, and verified by the policy."""
    (plant.folder / "owner.key").write_bytes(transport(private_key_to_sexp(key(1))))
    with NatsServer() as server:
        on(server.url, lambda js: js.add_stream(name="SEALED", subjects=["sealed"]))
        sink = ("--to-jetstream", server.url, "SEALED", "--jetstream", "subject=sealed", "--stream", "--drain")
        sealing = ("pipeline", "seal", "ingested", *POLICY, *WHOLE, "--key", "owner.key", "--rows", "4", *sink)
        assert plant(*sealing[:-2], "--out", "x", "--jetstream", "subject").code == "cli.pair"
        plant.ok(*sealing, "--out", "published")
        source = ("--from-jetstream", server.url, "SEALED", "--verify", "--stream", "--drain")
        found = plant.ok("pipeline", "unseal", *POLICY, *WHOLE, *source, "--out", "arrived", "-o", "json").json
    assert found["counts"] == {"read": events, "events": events, "sealed": 0, "quarantined": 0, "blocks": 9}


def test_what_is_wrong_is_told(plant: Shell) -> None:
    types = ("--type-file", "plant/reading-0.type")
    assert plant("pipeline", "unseal", "x", *types, *WHOLE, "--verify", "--out", "y").code == "cli.policy"
    assert plant("pipeline", "deliver", "x", *POLICY, "--ring", "whole/ring", "--out", "y").code == "cli.keys"
    wrong = ("--ring", "whole/ring", "--kek", "some/kek")
    assert plant("pipeline", "unseal", "x", *POLICY, *wrong, "--out", "y").code == "keys.wrong-kek"
    assert plant("pipeline", "unseal", *POLICY, *WHOLE, "--out", "y").code == "cli.resource"
    assert plant("pipeline", "unseal", "x", *WHOLE, "--out", "y").code == "cli.type-file"
    assert plant("pipeline", "compact", "x", *WHOLE, "--out", "y").code == "pipeline.no-input"
