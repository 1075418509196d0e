"""Keys are where tasks run, and nowhere else: not in plans, not in what is sent to executors, not in errors."""

import base64
import re
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest
from pyspark import cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from tests.pipeline import sealed_kit
from tests.pipeline.sealed_kit import (
    BROKER,
    CAR,
    NOW,
    PLATE,
    SCOPES,
    TYPES,
    batch,
    event,
    key_files,
    ring,
    seal,
    sealer,
    secret,
)
from tests.spoiled import flipped
from tests.trust.kit import refused

from penstock.crypto.wrapping import Secret
from penstock.pipeline.outputs import raised_by_task
from penstock.pipeline.sealed.log import FIRST, KeyFiles, sealed_schema
from penstock.pipeline.sealed.messages import Blinding, _Messages
from penstock.pipeline.sealed.reader import BlockReader, events_schema, sealed_columns
from penstock.pipeline.sealed.writer import Compacting, Writing
from penstock.store.files.key_files import read_kek


def traces(keys: KeyFiles) -> re.Pattern[bytes]:
    """Return how any of the keys might be written."""
    return sealed_kit.traces(*(secret(scope).expose() for scope in SCOPES), read_kek(Path(keys.kek)).expose())


def plans(*frames: DataFrame) -> bytes:
    printed = StringIO()
    with redirect_stdout(printed):
        for frame in frames:
            frame.explain(extended=True)
            frame.explain(mode="formatted")
    return printed.getvalue().encode()


def pickled(value: object) -> bytes:
    """Return what Spark would send to executors."""
    found: bytes = cloudpickle.dumps(value)  # type: ignore[no-untyped-call]  # it has no types
    return found


def test_the_detector_detects(tmp_path: Path) -> None:
    found = traces(key_files(tmp_path, ring()))
    key = secret(str(CAR.key)).expose()
    texts = [key.hex(), repr(key), *(encode(b"x" + key).decode() for encode in (base64.b64encode, base64.b32encode))]
    for written in (key, *(text.encode() for text in (*texts, texts[-1].lower()))):
        assert found.search(b"before" + written + b"after"), written


def test_plans_and_what_executors_are_sent_hold_no_key(session: SparkSession, tmp_path: Path) -> None:
    keys = key_files(tmp_path, ring())
    found = traces(keys)
    columns = [name for name in batch([]).schema.names if not name.startswith("@")]
    blocks = session.createDataFrame([], sealed_schema(columns))
    events = session.createDataFrame([], events_schema(TYPES))
    reading = BlockReader.of(keys, TYPES, sealed_columns(blocks))
    writing, compacting = Writing(keys, TYPES, BROKER.principal, NOW), Compacting(keys)
    sealed = writing.blocks(writing.tagged(events))
    shown = plans(reading.events(blocks), reading.failures(blocks), sealed, compacting.blocks(blocks))
    assert b"MapInArrow" in shown
    tasks = (reading._opened, reading._strict, reading._failed, writing._sealed, writing._left, compacting._compacted)
    messages = _Messages(Blinding(frozenset([CAR.key]), keys))
    sent = pickled((*tasks, messages.of))
    assert str(tmp_path).encode() in sent
    for text in (shown, sent, repr((reading, writing, compacting, messages)).encode()):
        assert not found.search(text)


def test_errors_of_tasks_hold_no_key(session: SparkSession, tmp_path: Path) -> None:
    keys = key_files(tmp_path, ring())
    [row] = batch([seal(sealer(), [1, 2])]).to_pylist()
    row[FIRST] = flipped(row[FIRST])
    blocks = session.createDataFrame([tuple(row.values())], sealed_schema([n for n in row if n[0] != "@"]))
    with pytest.raises(PySparkException) as caught:
        BlockReader.of(keys, TYPES, sealed_columns(blocks)).events(blocks, strict=True).collect()
    told = f"{caught.value} {caught.value!r} {caught.value.__dict__}"
    assert "seal.closed-log" in told
    found = raised_by_task(caught.value)
    assert found is not None
    assert (found.code, bool(found.hint)) == ("seal.closed-log", True)
    assert not traces(keys).search(told.encode())
    assert str(event(1).values[PLATE]) not in told


def test_keys_are_not_pickled(tmp_path: Path) -> None:
    keys = key_files(tmp_path, ring()).read()
    with pytest.raises(TypeError, match="neither pickled nor copied"):
        pickled(keys)
    with refused("keys.kek"):
        (tmp_path / "kek").write_text("(kek)")
        KeyFiles(str(tmp_path / "ring"), str(tmp_path / "kek")).read()
    assert "Secret(…)" in repr(Secret(b"\1" * 32))
