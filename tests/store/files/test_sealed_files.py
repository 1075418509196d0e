"""Files of sealed blocks."""

import io
import stat
from datetime import UTC, datetime, timedelta
from io import BytesIO
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.codec.blocks import VERSION
from penstock.crypto import SigningKey
from penstock.errors import FailedError, MalformedError
from penstock.store.files.sealed_files import QuarantineFolder, read_sealed, write_sealed
from penstock.store.limits import StoreLimits

BLOCKS = st.lists(st.binary(max_size=50).map(lambda octets: b"\1" + octets), max_size=5)


def file_of(*blocks: bytes) -> bytes:
    stream = BytesIO()
    assert sum(write_sealed(stream, block) for block in blocks) == len(stream.getvalue())
    return stream.getvalue()


class Slow(BytesIO):
    """Gives an byte at a time, as a pipe may."""

    def read(self, _size: int | None = -1, /) -> bytes:
        return super().read(1)


@given(BLOCKS, BLOCKS)
def test_blocks_are_read_back_also_from_files_put_together(some: list[bytes], others: list[bytes]) -> None:
    data = file_of(*some) + file_of(*others)
    assert [*read_sealed(BytesIO(data))] == [*read_sealed(Slow(data))] == some + others


@given(BLOCKS, st.data())
def test_a_file_that_was_cut_gives_what_was_whole_and_says_so(blocks: list[bytes], data: st.DataObject) -> None:
    whole = file_of(*blocks, b"\1last")
    cut = data.draw(st.integers(len(file_of(*blocks)) + 1, len(whole) - 1))
    found: list[bytes] = []
    with pytest.raises(MalformedError) as caught:
        found.extend(read_sealed(BytesIO(whole[:cut])))
    assert caught.value.code == "seal.truncated"


@pytest.mark.parametrize("octets", [b"\0\0\0\0", b"\0\0\0\2\2x", b'{"specversion": "1.0"}', b"\0\0\0\x0a\1"])
def test_what_is_no_file_of_blocks_is_not_read(octets: bytes) -> None:
    with pytest.raises(MalformedError) as caught:
        [*read_sealed(BytesIO(octets), limits=StoreLimits(block_bytes=9))]
    assert caught.value.code == "seal.file"


NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
LOUD, QUIET = (SigningKey(bytes([number]) * 32).principal for number in (1, 2))


def block(number: int, size: int = 10) -> bytes:
    return bytes([VERSION, number]) + bytes(size - 2)


def names(path: Path) -> list[str]:
    return sorted(file.name for file in path.iterdir())


def test_a_block_is_kept_as_it_came_under_its_time_code_and_peer(tmp_path: Path) -> None:
    path = tmp_path / "quarantine"
    folder = QuarantineFolder(path, 1_000, 1 << 20)
    assert not path.exists()
    folder.keep(NOW, "seal.closed-epoch", LOUD, block(1))
    folder.keep(NOW, "seal.cannot-open", None, block(2))
    assert names(path) == [
        f"20260501T120000.000000Z-000001-seal.closed-epoch-{LOUD.digest.hex()[:8]}.sealed",
        "20260501T120000.000000Z-000002-seal.cannot-open-00000000.sealed",
    ]
    together = b"".join((path / name).read_bytes() for name in names(path))
    assert list(read_sealed(io.BytesIO(together))) == [block(1), block(2)]
    assert len(folder) == 2
    assert {stat.S_IMODE(file.stat().st_mode) for file in path.iterdir()} == {0o600}


@pytest.mark.parametrize("most", [(3, 1 << 20), (1_000, 3 * 14)])
def test_who_sends_most_pushes_out_his_own(tmp_path: Path, most: tuple[int, int]) -> None:
    folder = QuarantineFolder(tmp_path, *most)
    folder.keep(NOW, "seal.closed-epoch", QUIET, block(0))
    for number in range(1, 9):
        # Whoever starts again goes on with what is there.
        folder = QuarantineFolder(tmp_path, *most)
        folder.keep(NOW + timedelta(seconds=number), "seal.cannot-open", LOUD, block(number))
    assert len(folder) == 3
    kept = [next(read_sealed(io.BytesIO((tmp_path / name).read_bytes())))[1] for name in names(tmp_path)]
    assert kept == [0, 7, 8]


def test_what_cannot_be_kept_is_told(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    with pytest.raises(FailedError) as caught:
        QuarantineFolder(path, 1_000, 1 << 20).keep(NOW, "seal.cannot-open", None, block(1))
    assert caught.value.code == "file.unwritable"
