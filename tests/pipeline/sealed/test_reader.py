"""Blocks that brokers seal are read by tasks: all of what keys are held for, and nothing of what does not open."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]  # it ships no types
import pytest
from tests.pipeline.sealed_kit import (
    BROKER,
    CAR,
    NOW,
    PLATE,
    SPEED,
    TRUCK,
    TYPES,
    WHOLE,
    batch,
    event,
    key_files,
    plain,
    ring,
    seal,
    sealer,
    shown,
)
from tests.trust.kit import refused

from penstock.codec.blocks import Block, Level, Padding, PlainNames, encode_block, read_header, reroute
from penstock.crypto.aead import CipherAlgorithm
from penstock.crypto.blinding import blind
from penstock.crypto.seal_keys import KeyRing, label_scope
from penstock.crypto.sealer import Sealer, SealerSettings
from penstock.crypto.wrapping import Secret
from penstock.pipeline.sealed import reader as sealed_reading
from penstock.pipeline.sealed.log import BLOCK, FIRST, HEADER, ROWS, closed, sealed_arrow
from penstock.pipeline.sealed.reader import BlockReader


def reading(folder: Path, keys: KeyRing, senders: tuple[str, ...] | None = None) -> BlockReader:
    columns = dict.fromkeys(str(a.id) for t in TYPES for a in t.attributes)
    return BlockReader.of(key_files(folder, keys), TYPES, columns, senders)


def rows(found: Any) -> list[dict[str, Any]]:
    """Return rows as Spark will show them: bits of their number say which values are null."""
    whole = pa.Table.from_batches(found)
    assert not any(column.null_count for column in whole.columns)
    table = whole.to_pylist()
    marked = [name for name in table[0] if name not in ("@names", "@id", "@source")]
    return [
        {n: None if n in marked and row["@names"] >> 32 + marked.index(n) & 1 else plain(row[n]) for n in row}
        for row in table
    ]


def opened(by: BlockReader, log: Any) -> list[dict[str, Any]]:
    found = rows(list(by._opened([log.select([HEADER, ROWS, FIRST, *by.wanted])])))
    for row in found:
        names = row.pop("@names")
        source = row.pop("@source") if by.senders is None else by.senders[names & 0xFFFF]
        assert source == str(BROKER.principal)
    return sorted(found, key=lambda row: row["@time"])


def blinded(block: bytes, labels: Secret) -> bytes:
    route = read_header(block).route
    assert isinstance(route, PlainNames)
    return reroute(block, blind(labels, route.names))


@pytest.mark.parametrize("kind", TYPES, ids=lambda t: t.name.name)
@pytest.mark.parametrize("sizes", [(1,) * 40, (1, 2, 30, 1, 7), (1500, 1)], ids=["single", "mixed", "long"])
def test_what_brokers_seal_is_read(tmp_path: Path, kind: Any, sizes: tuple[int, ...]) -> None:
    settings = [SealerSettings(), SealerSettings(CipherAlgorithm.AES_GCM_SIV, Padding.POWERS)]
    senders = [Sealer(ring(), BROKER.principal, os.urandom, settings=settings[n % 2]) for n in range(3)]
    blocks, number = [], 0
    for place, size in enumerate(sizes):
        blocks.append(seal(senders[place % 3], range(number, number + size), kind))
        number += size
    expected = [shown(event(n, kind)) for n in range(number)]
    assert opened(reading(tmp_path, ring()), batch(blocks)) == expected
    named = reading(tmp_path / "named", ring(), (str(CAR.key.owner), str(BROKER.principal)))
    assert opened(named, batch(blocks)) == expected
    [failed] = reading(tmp_path / "others", ring(), (str(CAR.key.owner),))._failed([batch(blocks)])
    assert {row["@reason"] for row in failed.to_pylist()} == {"block.malformed"}
    assert failed.num_rows == len(blocks)


def test_small_batches_go_together_in_their_order_and_long_ones_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sealed_reading, "_FEW", 10)
    monkeypatch.setattr(sealed_reading, "_SMALL", 1_000)
    texts = [["a"] * 3, ["b"] * 9, ["c"] * 12, ["d"] * 2, ["e" * 2_000], ["f" * 600], ["g" * 600], ["h"]]
    found = [*sealed_reading._gathered(pa.RecordBatch.from_pydict({"text": text}) for text in texts)]
    assert [[text[0] for text in one.column("text").unique().to_pylist()] for one in found] == [
        ["a", "b"], ["c"], ["d"], ["e"], ["f", "g"], ["h"]
    ]  # fmt: skip
    assert [text for one in found for text in one.column("text").to_pylist()] == [t for text in texts for t in text]


@pytest.mark.parametrize("size", [1, 5])
def test_what_goes_under_labels_is_read_by_who_holds_their_key(tmp_path: Path, size: int) -> None:
    labels = Secret(bytes(32))
    sealed = [
        blinded(seal(sealer(), numbers, kind), labels)
        for numbers, kind in ((range(size), CAR), (range(size, 9), TRUCK), ([9], WHOLE))
    ]
    held = ring()
    for kind in (CAR, WHOLE):
        held.put(label_scope(kind.key), 7, labels)
    by = reading(tmp_path, held)
    columns = sealed_arrow(by.wanted).append(pa.field(BLOCK, pa.binary()))
    whole = [{BLOCK: data, ROWS: read_header(data).rows} for data in sealed]
    log = pa.RecordBatch.from_pylist(whole, schema=columns)
    found = rows(list(by._opened([log])))
    assert [row["@id"] for row in found] == [event(n).id for n in (*range(size), 9)]
    assert found[0][PLATE] == shown(event(0))[PLATE]
    [failed] = by._failed([log])
    assert [(row["@reason"], row[BLOCK]) for row in failed.to_pylist()] == [("seal.unknown-label", sealed[1])]


@pytest.mark.parametrize("size", [1, 5])
def test_what_no_key_is_held_for_is_null_and_not_read(tmp_path: Path, size: int) -> None:
    by = reading(tmp_path, ring(PLATE))
    assert PLATE in by.wanted, "trucks have a key of their own for what they inherit"
    by = reading(tmp_path / "less", ring(PLATE, f"{TRUCK.key} {PLATE}"))
    assert PLATE not in by.wanted
    sealed = [seal(sealer(), range(size)), seal(sealer(), range(size, 2 * size), TRUCK)]
    expected = [shown(event(n, CAR if n < size else TRUCK)) | {PLATE: None} for n in range(2 * size)]
    assert opened(by, batch(sealed)) == expected


def test_events_stand_in_the_version_with_their_attributes(tmp_path: Path) -> None:
    by = reading(tmp_path, ring())
    log = batch([seal(sealer(), [1]), seal(sealer(), [2], TRUCK), seal(sealer(), [4, 5], WHOLE)])
    found = rows(list(by._opened([log.select([HEADER, ROWS, FIRST, *by.wanted])])))
    assert {row["@names"] >> 16 & 0xFFFF for row in found} == {*range(len(TYPES))}


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("column", [HEADER, FIRST, PLATE])
def test_every_changed_octet_is_found_and_concerns_its_block_alone(tmp_path: Path, size: int, column: str) -> None:
    by, from_ = reading(tmp_path, ring()), sealer()
    blocks = [seal(from_, range(n * size, n * size + size)) for n in range(3)]
    log = batch(blocks).to_pylist()
    data = bytearray(log[1][column])
    for place in range(0, len(data), 5):
        changed = bytes(data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :])
        torn = batch([log[0], log[1] | {column: changed}, log[2]])
        [kept] = by._failed([torn])
        assert kept.drop_columns(["@reason"]).to_pylist() == torn.slice(1, 1).to_pylist(), place
        good = [shown(event(n)) for n in (*range(size), *range(2 * size, 3 * size))]
        assert opened(by, torn) == good
        with refused("seal.closed-log"):
            list(by._strict([torn]))


def test_columns_of_other_blocks_do_not_open(tmp_path: Path) -> None:
    by, from_ = reading(tmp_path, ring()), sealer()
    one, other = batch([seal(from_, [1]), seal(from_, [2])]).to_pylist()
    spliced = [one | {PLATE: other[PLATE]}, one | {PLATE: None}, one | {FIRST: other[FIRST]}, one | {HEADER: None}]
    codes = next(by._failed([batch(spliced)])).column("@reason").to_pylist()
    assert sorted(codes) == ["block.malformed", *["seal.cannot-open"] * 3]
    assert list(next(by._failed([batch([one | {ROWS: 2}])])).column("@reason").to_pylist()) == ["block.malformed"]


@pytest.mark.parametrize("size", [1, 3])
def test_unknown_keys_and_types_wait(tmp_path: Path, size: int) -> None:
    later = ring(epochs=(2,))
    log = batch([seal(sealer(later), range(size))])
    [kept] = reading(tmp_path, ring())._failed([log])
    assert kept.column("@reason").to_pylist() == ["seal.unknown-key"]
    narrow = BlockReader(key_files(tmp_path / "2", later), (WHOLE,), ())
    [kept] = narrow._failed([log])
    assert kept.column("@reason").to_pylist() == ["pipeline.unknown-type"]


@pytest.mark.parametrize("size", [1, 3])
def test_a_block_waits_while_one_epoch_of_an_attribute_is_lacking(tmp_path: Path, size: int) -> None:
    """Its values are there, and would be taken for none."""
    both = ring(epochs=(1, 2))
    held = ring(epochs=(1, 2))
    held.drop(PLATE, 2)
    by = reading(tmp_path, held)
    log = batch([seal(sealer(both), range(size)), seal(sealer(), range(size, 2 * size))])
    [kept] = by._failed([log])
    assert kept.column("@reason").to_pylist() == ["seal.unknown-key"]
    assert kept.drop_columns(["@reason"]).to_pylist() == log.slice(0, 1).to_pylist()
    assert opened(by, log) == [shown(event(n)) for n in range(size, 2 * size)]
    with refused("seal.closed-log"):
        list(by._strict([log]))
    # The header is believed once something under it has opened.
    row = batch([seal(sealer(), range(size))]).to_pylist()[0]
    epoch = row[HEADER].index((1).to_bytes(8, "big"), 54 + 8) + 7
    changed = row[HEADER][:epoch] + b"\2" + row[HEADER][epoch + 1 :]
    [kept] = by._failed([batch([row | {HEADER: changed}])])
    assert kept.column("@reason").to_pylist() == ["seal.cannot-open"]


def test_attributes_without_any_key_are_named() -> None:
    columns = dict.fromkeys(str(a.id) for t in TYPES for a in t.attributes)
    assert closed(TYPES, ring(), columns) == ()
    without = ring(PLATE, f"{TRUCK.key} {SPEED}")
    assert closed(TYPES, without, columns) == ("org.Car plate", "org.Truck speed")
    assert closed(TYPES, without, [SPEED]) == ("org.Truck speed",), "the log has no plates"
    assert closed(TYPES, ring(str(CAR.key), PLATE), columns) == (), "blocks of cars wait as a whole"
    without.put(PLATE, 9, Secret(bytes(32)))
    assert closed(TYPES, without, columns) == ("org.Truck speed",), "blocks of other epochs wait"


@pytest.mark.parametrize("size", [1, 3])
def test_who_holds_the_key_of_a_type_forges_no_attributes_under_it(tmp_path: Path, size: int) -> None:
    forged = sealer().seal(Block.of([event(n) for n in range(size)]), NOW, Level.EVENT)
    [kept] = reading(tmp_path, ring())._failed([batch([forged])])
    assert kept.column("@reason").to_pylist() == ["seal.cannot-open"]


def test_what_is_no_column_keeps_nothing_out_that_has_its_name(tmp_path: Path) -> None:
    """Whoever holds the keys can seal anything under the name of a good block."""
    good, other = (Sealer(ring(), BROKER.principal, bytes) for _ in range(2))
    encoded = encode_block(Block.of([event(2)]))
    broken = other.seal_encoded(encoded._replace(columns=[b"", *encoded.columns[1:]]), NOW)
    log = batch([broken, *[seal(good, [1])] * 2])
    assert len({header[:110] for header in log.column(HEADER).to_pylist()}) == 1
    by = replace(reading(tmp_path, ring()), once=True)
    assert [row["@id"] for row in opened(by, log)] == ["e1"]
    [kept] = by._failed([log])
    assert kept.column("@reason").to_pylist() == ["block.column", "seal.replayed"]
