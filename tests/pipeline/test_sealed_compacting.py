"""Compaction says the same in fewer blocks, and shows nothing to anybody who could not read it before."""

from pathlib import Path
from typing import Any

from tests.pipeline.sealed_kit import CAR, PLATE, TRUCK, WHOLE, batch, event, key_files, ring, seal, sealer, shown
from tests.pipeline.test_sealed_writing import blocks

from penstock.codec.blocks import read_header
from penstock.crypto.opener import Opener
from penstock.crypto.seal_keys import KeyRing
from penstock.pipeline.sealed_compacting import Compacting


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
    torn = [plain[0][:-1] + bytes([plain[0][-1] ^ 1]), *plain[1:]]
    found = compacted(tmp_path / "torn", ring(), torn)
    assert torn[0] in found
    assert len(found) == 2
