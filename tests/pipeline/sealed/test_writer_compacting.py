"""Compaction says the same in fewer blocks, and shows nothing to anybody who could not read it before."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.pipeline.sealed.test_writer import blocks
from tests.pipeline.sealed_kit import CAR, NOW, PLATE, TRUCK, WHOLE, batch, event, key_files, ring, seal, sealer, shown
from tests.spoiled import flipped

from penstock.codec.blocks import Block, Level, encode_block, read_header
from penstock.crypto.limits import CryptoLimits
from penstock.crypto.opener import Opener
from penstock.crypto.seal_keys import KeyRing
from penstock.crypto.sealer import Sealer
from penstock.pipeline.sealed import writer as sealed_compacting
from penstock.pipeline.sealed.writer import Compacting


def compacted(folder: Path, keys: KeyRing, sealed: list[bytes], rows: int = 10) -> list[bytes]:
    return blocks(Compacting(key_files(folder, keys), rows)._compacted([batch(sealed[:3]), batch(sealed[3:])]))


def events(sealed: list[bytes], keys: KeyRing) -> list[dict[str, Any]]:
    found = [shown(one) for data in sealed for one in Opener(keys).open(data).events()]
    return sorted(found, key=lambda row: row["@time"])


def test_small_blocks_become_large_ones_with_the_same_events(tmp_path: Path) -> None:
    kinds, senders = (CAR, TRUCK, WHOLE), (sealer(), sealer())
    sealed = [seal(senders[n % 2], [n], kinds[n % 3]) for n in range(60)]
    found = compacted(tmp_path, ring(), sealed)
    assert [read_header(data).rows for data in found] == [10] * 6
    assert events(found, ring()) == [shown(event(n, kinds[n % 3])) for n in range(60)]
    assert len({read_header(data).id[:16] for data in found} & {read_header(data).id[:16] for data in sealed}) == 0
    assert {read_header(data).sender for data in found} == {read_header(data).sender for data in sealed}


def test_epochs_stay_what_they_were(tmp_path: Path) -> None:
    """Who joined later, and has no right to what was before, must not get it in a new block."""
    both = ring(epochs=(1, 2))
    sealed = [seal(sealer(ring(epochs=(1 + n % 2,))), [n]) for n in range(6)]
    found = compacted(tmp_path, both, sealed)
    assert sorted(read_header(data).fixed.epochs[0] for data in found) == [1, 2]
    for epoch in (1, 2):
        own = [data for data in found if read_header(data).fixed.epochs == (epoch,) * 6]
        assert events(own, ring(epochs=(epoch,))) == [shown(event(n)) for n in range(6) if 1 + n % 2 == epoch]


def test_what_cannot_be_sealed_anew_is_left_as_it_is(tmp_path: Path) -> None:
    from_ = sealer()
    plain = [seal(from_, [n]) for n in range(3)]
    signed = [seal(sealer(signed=True), [n]) for n in range(2)]
    assert {*compacted(tmp_path / "keys", ring(PLATE), plain)} == {*plain}, "no key for one of its columns"
    assert {*compacted(tmp_path / "signed", ring(), signed)} == {*signed}, "nobody else can sign it"
    assert {*compacted(tmp_path / "long", ring(), plain, rows=1)} == {*plain}, "long enough"
    torn = [flipped(plain[0]), *plain[1:]]
    found = compacted(tmp_path / "torn", ring(), torn)
    assert torn[0] in found
    assert len(found) == 2


@pytest.mark.parametrize("octets", [b"", b"\0more", b"\7unknown", b"\1\xff", b"\2"], ids=bytes.hex)
def test_what_opens_and_is_no_column_is_left_as_it_is(tmp_path: Path, octets: bytes) -> None:
    """Whoever holds the keys can seal it, and must neither stop the job nor have it sealed again as something else."""
    encoded = encode_block(Block.of([event(9), event(10)]))
    torn = sealer().seal_encoded(encoded._replace(columns=[octets, *encoded.columns[1:]]), NOW, Level.ATTRIBUTE)
    found = compacted(tmp_path, ring(), [seal(sealer(), [1]), torn, seal(sealer(), [2])])
    assert [read_header(data).rows for data in found] == [2, 2]
    assert torn in found
    assert events([data for data in found if data != torn], ring()) == [shown(event(n)) for n in (1, 2)]


def test_where_one_block_would_be_too_large_there_are_several(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few = partial(Sealer, limits=CryptoLimits(block_rows=4))
    monkeypatch.setattr(sealed_compacting, "Sealer", few)
    found = compacted(tmp_path, ring(), [seal(sealer(), [n]) for n in range(9)])
    assert sorted(read_header(data).rows for data in found) == [2, 3, 4]
    assert events(found, ring()) == [shown(event(n)) for n in range(9)]
