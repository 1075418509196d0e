"""What can be said of blocks without opening them."""

import os

import pytest
from pyspark.sql import SparkSession
from tests.pipeline.sealed_kit import BROKER, CAR, batch, ring, seal, sealer

from penstock.crypto.sealer import Sealer
from penstock.pipeline import sealed_replays
from penstock.pipeline.sealed_log import FIRST, HEADER, ROWS, sealed_schema
from penstock.pipeline.sealed_replays import count_blocks


def test_blocks_are_counted_and_their_senders_named(session: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    other = Sealer(ring(), CAR.key.owner, os.urandom)
    sealed = [seal(sealer(), [1, 2, 3]), seal(other, [4])]
    log = batch([*sealed, sealed[0], {HEADER: b"\1\0\0\0\0\1short", ROWS: 1}]).select([HEADER, ROWS, FIRST])
    blocks = session.createDataFrame([tuple(row.values()) for row in log.to_pylist()], sealed_schema([]))
    found = count_blocks(blocks)
    assert (found.blocks, found.rows, found.uncounted, found.copies) == (4, 8, 0, 1)
    assert found.senders is not None
    assert {*found.senders} == {str(BROKER.principal), str(CAR.key.owner)}
    monkeypatch.setattr(sealed_replays, "_MOST_SENDERS", 1)
    assert count_blocks(blocks).senders is None, "some are not all"
