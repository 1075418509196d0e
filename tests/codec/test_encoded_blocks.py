"""Blocks whose columns are octets: written, bundled for sealing, and read back."""

from datetime import UTC, datetime

import pytest

from penstock.codec.block_names import names
from penstock.codec.blocks import Block, Level
from penstock.codec.columns import encode_bundle, encode_column
from penstock.codec.encoded_blocks import EncodedBlock, bundle, decode_block, encode_block, unbundle
from penstock.errors import MalformedError
from penstock.model.names import AttributeId, TypeKey
from penstock.model.principals import Principal

OWNER = Principal(b"\1" * 32)
TYPE = TypeKey(OWNER, "Numberplate")
NAMES = names(TYPE, (), tuple(str(AttributeId(OWNER, TYPE.name, uid)) for uid in "01"))
NOW = datetime(2026, 5, 1, tzinfo=UTC)
BLOCKS = [
    Block(NAMES, ["a"], [None], [["x"], [1]]),
    Block(NAMES, ["a", "b"], [NOW, None], [["x", None], [1, 2]]),
    Block(NAMES, ["", ""], [None, None], [[None, None], [True, False]]),
]


@pytest.mark.parametrize("block", BLOCKS)
def test_blocks_are_read_back(block: Block) -> None:
    encoded = encode_block(block)
    assert decode_block(encoded) == block
    ids, times = encode_column(block.ids), encode_column(block.times)
    columns = [encode_column(column or []) for column in block.columns]
    assert encoded == EncodedBlock(NAMES, len(block.ids), ids, times, columns)
    assert bundle(encoded, Level.ATTRIBUTE) == [encode_bundle([ids, times]), *columns]
    assert bundle(encoded, Level.EVENT) == [encode_bundle([ids, times, *columns])]
    for level in Level:
        assert unbundle(NAMES, len(block.ids), level, bundle(encoded, level)) == encoded


def test_closed_columns_stay_closed() -> None:
    encoded = encode_block(Block(NAMES, ["a", "b"], [NOW, None], [None, [1, 2]]))
    assert encoded.columns[0] is None
    assert decode_block(encoded).columns == [None, [1, 2]]
    for wrong in (encoded, encoded._replace(columns=encoded.columns[1:])):
        with pytest.raises(MalformedError) as caught:
            bundle(wrong, Level.ATTRIBUTE)
        assert caught.value.code == "block.malformed"
