"""What tasks seal, brokers open; and no two attempts have an incarnation in common."""

import base64
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]  # it ships no types
import pytest
from tests.pipeline.sealed_kit import BROKER, CAR, NOW, TRUCK, TYPES, WHOLE, event, key_files, plain, ring, shown

from penstock.codec.blocks import Padding, join, read_header
from penstock.crypto.aead import CipherAlgorithm
from penstock.crypto.limits import CryptoLimits
from penstock.crypto.opener import Opener
from penstock.crypto.sealer import SealerSettings
from penstock.model.types import EventType
from penstock.pipeline.sealed.columns import ARROW_TYPES
from penstock.pipeline.sealed.log import FIRST, HEADER, ROWS
from penstock.pipeline.sealed.writer import Writing


def frame(numbers: range, *types: EventType) -> Any:
    """Return events of some types by turns, as Spark hands them over."""
    kinds = {str(a.id): a.spec.kind for t in TYPES for a in t.attributes}
    rows = []
    for number in numbers:
        one = types[number % len(types)]
        found = event(number, one)
        rows.append({"@type": str(one.name), "@id": found.id, "@time": found.time, **found.values})
    head = [("@type", pa.string()), ("@id", pa.string()), ("@time", pa.timestamp("us", "UTC"))]
    schema = pa.schema([*head, *((name, ARROW_TYPES[kind]) for name, kind in kinds.items())])
    return pa.RecordBatch.from_pylist(rows, schema=schema)


def blocks(found: Any) -> list[bytes]:
    rows = [row for batch in found for row in batch.to_pylist()]
    parts = [{n: d for n, d in row.items() if d is not None} for row in rows]
    return [join(p.pop(HEADER), {"": p.pop(FIRST), **{n: d for n, d in p.items() if n != ROWS}}) for p in parts]


@pytest.mark.parametrize(("size", "whole"), [(1, 75), (10, 6), (64, 0)])
def test_what_tasks_seal_brokers_open(tmp_path: Path, size: int, whole: int) -> None:
    settings = SealerSettings(CipherAlgorithm.AES_GCM_SIV, Padding.POWERS) if size == 10 else SealerSettings()
    writing = Writing(key_files(tmp_path, ring()), TYPES, BROKER.principal, NOW, rows=size, settings=settings)
    batches = [frame(range(start, start + 25), CAR, TRUCK, WHOLE) for start in (0, 25, 50)]
    sealed = blocks(writing._sealed(batches))
    assert [read_header(data).rows for data in sealed].count(size) == whole
    broker = Opener(ring())
    events = sorted((e for data in sealed for e in broker.open(data).events()), key=lambda e: str(e.time))
    assert [shown(e) for e in events] == [shown(event(n, TYPES[n % 3])) for n in range(75)]
    assert {read_header(data).sender for data in sealed} == {BROKER.principal}
    chosen = {(fixed.algorithm, fixed.padding) for fixed in (read_header(data).fixed for data in sealed)}
    assert chosen == {(settings.algorithm, settings.padding)}


@pytest.mark.parametrize("size", [1, 10, 64])
@pytest.mark.parametrize("kind", [CAR, WHOLE], ids=lambda t: t.name.name)
def test_events_too_large_for_a_block_are_told_and_keep_no_other_back(tmp_path: Path, kind: Any, size: int) -> None:
    events = frame(range(9), kind).to_pylist()
    for place in (2, 8):
        events[place][str(kind.attributes[0].id)] = "x" * 3_000
    batch = pa.RecordBatch.from_pylist(events, schema=frame(range(1), kind).schema)
    limits = CryptoLimits(block_bytes=3_000)
    writing = Writing(key_files(tmp_path, ring()), TYPES, BROKER.principal, NOW, rows=size, limits=limits)
    sealed = blocks(writing._sealed([batch]))
    assert all(len(data) <= limits.block_bytes for data in sealed)
    ids = [event.id for data in sealed for event in Opener(ring()).open(data).events()]
    assert sorted(ids) == [f"e{n}" for n in range(9) if n not in (2, 8)]
    left = [row for found in writing._left([batch]) for row in found.to_pylist()]
    assert left == [events[place] | {"@reason": "block.limit"} for place in (2, 8)]


def test_each_attempt_seals_as_an_incarnation_of_its_own(tmp_path: Path) -> None:
    writing = Writing(key_files(tmp_path, ring()), TYPES, BROKER.principal, NOW, rows=1)
    attempts = [blocks(writing._sealed([frame(range(5), CAR)])) for _ in range(3)]
    ids = [read_header(data).id for sealed in attempts for data in sealed]
    assert len({*ids}) == 15
    assert len({name[:16] for name in ids}) == 3


def test_signed_blocks_are_those_of_their_sender(tmp_path: Path) -> None:
    key = tmp_path / "broker.key"
    key.write_text(f"(private-key (ed25519 (q |{_b64(BROKER.public.raw)}|) (d |{_b64(bytes([2]) * 32)}|)))")
    writing = Writing(key_files(tmp_path, ring()), TYPES, BROKER.principal, NOW, rows=10, signer=str(key))
    [data] = blocks(writing._sealed([frame(range(4), CAR)]))
    opener = Opener(ring())
    assert opener.verify(data, opener.open(data)).sender == BROKER.principal
    assert plain(opener.open(data).events()[1].id) == "e1"


def _b64(octets: bytes) -> str:
    return base64.b64encode(octets).decode()
