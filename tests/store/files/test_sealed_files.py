"""Files of sealed blocks."""

from io import BytesIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import MalformedError
from penstock.store.files.sealed_files import read_sealed, write_sealed
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
