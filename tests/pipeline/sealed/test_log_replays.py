"""What can be said of blocks without opening them."""

import os

import pytest
from pyspark.sql import SparkSession
from tests.pipeline.sealed_kit import BROKER, CAR, NOW, batch, ring, seal, sealer

from penstock.crypto.sealer import Sealer
from penstock.pipeline.frames import micros
from penstock.pipeline.sealed import log as sealed_replays
from penstock.pipeline.sealed.log import FIRST, HEADER, ROWS, count_blocks, sealed_schema


def test_blocks_are_counted_and_their_senders_named(session: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    other = Sealer(ring(), CAR.key.owner, os.urandom)
    sealed = [seal(sealer(), [1, 2, 3]), seal(other, [4])]
    cut = batch(sealed).column(HEADER)[1].as_py()[:50]
    others = [{HEADER: b"\1\0\0\0\0\1short", ROWS: 1}, {HEADER: cut, ROWS: -1}, {HEADER: b""}, {}, {}]
    log = batch([*sealed, sealed[0], *others]).select([HEADER, ROWS, FIRST])
    blocks = session.createDataFrame([tuple(row.values()) for row in log.to_pylist()], sealed_schema([]))
    found = count_blocks(blocks)
    assert found[:4] == (8, 7, 4, 1)
    assert (found.first, found.last) == (b"", micros(NOW).to_bytes(8, "big")), "what is cut hides no time"
    assert found.senders is not None
    assert {*found.senders} == {str(BROKER.principal), str(CAR.key.owner)}
    monkeypatch.setattr(sealed_replays, "_MOST_SENDERS", 3)
    assert count_blocks(blocks) == found._replace(senders=None), "some are not all"
    assert count_blocks(blocks.limit(0)) == (0, 0, 0, 0, b"", b"", ())
