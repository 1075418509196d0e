"""Messages of JetStream are the blocks that brokers send: they are cut into columns, and nothing is lost of others."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]  # it ships no types
import pytest
from nats.js import JetStreamContext
from pyspark.sql import SparkSession
from tests.pipeline.jetstream.test_reader import on
from tests.pipeline.sealed.test_reader import blinded
from tests.pipeline.sealed_kit import BROKER, CAR, TRUCK, WHOLE, event, key_files, ring, seal, sealer
from tests.spoiled import flipped
from tests.trust.kit import refused

from penstock.codec.blocks import read_header
from penstock.crypto.blinding import Directory
from penstock.crypto.opener import Opener
from penstock.crypto.seal_keys import label_scope
from penstock.crypto.wrapping import Secret
from penstock.pipeline.ingest.records import ORIGINAL
from penstock.pipeline.jobs.job import run
from penstock.pipeline.jobs.sealed import LogBlocks, Unseal
from penstock.pipeline.sealed.log import BLOCK, columns_of
from penstock.pipeline.sealed.messages import Blinding, MessageBlocks, _Cut, _Messages
from penstock.testing.nats import NatsServer


def cut(*payloads: bytes | None) -> Any:
    payload = pa.RecordBatch.from_arrays([pa.array(payloads, pa.binary())], [ORIGINAL])
    [found] = _Cut(columns_of([CAR])).rows([payload])
    return found


def test_messages_are_cut_and_put_together_again() -> None:
    sealed = [seal(sealer(), [1, 2]), seal(sealer(signed=True), [3])]
    log = cut(*sealed)
    assert log.column(BLOCK).null_count == 2
    [again] = _Messages().of([log.drop_columns([BLOCK])])
    assert again.column("payload").to_pylist() == sealed
    assert again.column("id").to_pylist()[0] == f"{BROKER.principal}/{read_header(sealed[0]).id.hex()}"


def test_messages_of_blinded_types_say_labels(tmp_path: Path) -> None:
    """As brokers send them: who runs a stream is not told what is in it."""
    keys, secret = ring(), Secret(bytes(32))
    keys.put(label_scope(CAR.key), 3, secret)
    files = key_files(tmp_path, keys)
    blinding = Blinding.of([replace(CAR, blinded=True), WHOLE], files)
    sealed = seal(sealer(), [1, 2]), seal(sealer(), [3], WHOLE)
    [found] = _Messages(blinding).of([cut(*sealed).drop_columns([BLOCK])])
    car, whole = found.column("payload").to_pylist()
    assert (car, whole) == (blinded(sealed[0], secret), sealed[1])
    assert b"org.Car" not in car
    assert Opener(keys, Directory.of(keys, [CAR])).open(car).events() == [event(1), event(2)]
    assert Blinding.of([CAR, WHOLE], files) is None
    with refused("seal.unknown-label"):
        Blinding.of([replace(TRUCK, blinded=True)], files)


def test_what_has_no_columns_here_is_kept_whole() -> None:
    truck = seal(sealer(), [4, 5], TRUCK)
    rows = cut(b"no block", truck, None).to_pylist()
    assert [(row["@header"], row["@rows"], row[BLOCK]) for row in rows] == [
        (None, None, b"no block"),
        (None, 2, truck),
        (None, None, b""),
    ]


def test_what_arrives_while_a_stream_is_read_at_once_is_not_read(session: SparkSession, server: NatsServer) -> None:
    """Blocks are counted, then opened: those have to be the same."""

    async def publish(js: JetStreamContext) -> None:
        await js.add_stream(name="LIVE", subjects=["live"])
        await js.publish("live", b"block")

    on(server.url, publish)
    found = MessageBlocks({"url": server.url, "stream": "LIVE"}, (CAR,)).messages(session, stream=False)
    on(server.url, publish)
    assert found.count() == 1


@pytest.mark.long
def test_a_stream_of_blocks_is_unsealed(session: SparkSession, server: NatsServer, tmp_path: Path) -> None:
    torn = seal(sealer(), [6])
    payloads = [seal(sealer(), [1, 2]), seal(sealer(), [3]), seal(sealer(), [4], TRUCK), flipped(torn), b"junk"]

    async def publish(js: JetStreamContext) -> None:
        await js.add_stream(name="SEALED", subjects=["sealed"])
        for payload in payloads:
            await js.publish("sealed", payload)

    on(server.url, publish)
    blocks = MessageBlocks({"url": server.url, "stream": "SEALED"}, (CAR,))
    said: Any = run(Unseal(blocks, (CAR,), key_files(tmp_path, ring())), session, str(tmp_path / "out"))
    assert said["counts"] == {"read": 5, "events": 3, "sealed": 1, "quarantined": 1, "blocks": 5}
    assert said["reasons"] == {"pipeline.unknown-type": 1, "seal.cannot-open": 1, "block.malformed": 1}
    opened = session.read.parquet(f"{tmp_path}/out/events").collect()
    assert sorted(row["@id"] for row in opened) == [event(n).id for n in (1, 2, 3)]
    waiting = session.read.parquet(f"{tmp_path}/out/sealed").collect()
    assert [bytes(row[BLOCK]) for row in waiting] == [payloads[2]]
    # Whoever knows its type later opens it from there.
    again = Unseal(LogBlocks(f"{tmp_path}/out"), (CAR, TRUCK), key_files(tmp_path / "later", ring()))
    said = run(again, session, str(tmp_path / "again"))
    assert said["counts"] == {"read": 1, "events": 1, "sealed": 0, "quarantined": 0, "blocks": 1}
