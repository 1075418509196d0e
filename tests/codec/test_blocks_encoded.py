"""Blocks whose columns are bytes: written, bundled for sealing, and read back."""

from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.budget import examples

from penstock.codec.blocks import (
    Block,
    EncodedBlock,
    Level,
    bundle,
    decode_block,
    decode_events,
    encode_block,
    encode_events,
    encode_events_as,
    names,
    unbundle,
)
from penstock.codec.columns import decode_bundle, encode_bundle, encode_column
from penstock.errors import MalformedError
from penstock.model.events import EventRows
from penstock.model.names import AttributeId, TypeKey
from penstock.model.principals import Principal
from penstock.model.values import Scalar

OWNER = Principal(b"\1" * 32)
TYPE = TypeKey(OWNER, "Numberplate")
NAMES = names(TYPE, (), tuple(str(AttributeId(OWNER, TYPE.name, uid)) for uid in "01"))
NOW = datetime(2026, 5, 1, tzinfo=UTC)
BLOCKS = [
    Block(NAMES, ["a"], [None], [["x"], [1]]),
    Block(NAMES, ["a"], [NOW], [[None], [1.5]]),
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


@pytest.mark.parametrize("block", BLOCKS)
def test_events_are_written_and_read_as_blocks_are(block: Block) -> None:
    events = block.events()
    assert encode_events(events) == encode_block(Block.of(events))
    for encoded in (encode_block(block), encode_block(block)._replace(columns=[None, encode_column(block.ids)])):
        assert decode_events(encoded) == decode_block(encoded).events()


ROWS: st.SearchStrategy[list[list[Scalar]]] = st.lists(
    st.tuples(
        st.text(max_size=3), st.none() | st.just(NOW), st.none() | st.text(max_size=3), st.none() | st.integers(0, 9)
    ).map(list),
    min_size=1,
    max_size=4,
)


@settings(max_examples=examples(100), deadline=None)
@given(ROWS)
def test_rows_are_written_and_read_as_events_are(rows: list[list[Scalar]]) -> None:
    events = EventRows(TYPE, (), NAMES.attributes, rows)
    plain = tuple(events)
    written, expected = encode_events(events), encode_events(plain)
    columns = dict(zip(written.names.attributes, written.columns, strict=True))
    assert columns == dict(zip(expected.names.attributes, expected.columns, strict=True))
    assert written[1:4] == expected[1:4]
    assert decode_events(written) == decode_block(written).events() == [*plain]
    assert encode_events(events) == written


def test_events_that_were_written_last_are_not_written_again() -> None:
    one, other = (tuple(block.events()) for block in BLOCKS[1:3])
    written = encode_events(one)
    assert encode_events(one) is written
    assert encode_events(other) == encode_block(BLOCKS[2])
    assert encode_events(one) == written
    # A list may have changed since.
    events = [*other]
    encode_events(events)
    events.pop()
    assert encode_events(events).rows == 1


@pytest.mark.parametrize("block", BLOCKS)
def test_some_events_of_a_block_are_written_under_its_names(block: Block) -> None:
    events = block.events()
    assert encode_events_as(NAMES, events) == encode_block(block)
    for event in events:
        (found,) = decode_events(encode_events_as(NAMES, [event]))
        assert found == event


def test_an_event_by_itself_is_read_in_its_one_form() -> None:
    encoded = encode_block(BLOCKS[0])
    for wrong in ({"ids": b""}, {"times": b"\5"}, {"columns": [b"\6", b"\1"]}, {"columns": [b"\1\xff", b"\1"]}):
        with pytest.raises(MalformedError) as caught:
            decode_events(encoded._replace(**wrong))
        assert caught.value.code == "block.column"


def test_two_columns_are_cut_where_the_length_says() -> None:
    assert decode_bundle(b"\2\0\0\0abc", 2) == [b"ab", b"c"]
    for wrong in (b"", b"\0\0\0", b"\4\0\0\0abc"):
        with pytest.raises(MalformedError) as caught:
            decode_bundle(wrong, 2)
        assert caught.value.code == "block.column"


def test_closed_columns_stay_closed() -> None:
    encoded = encode_block(Block(NAMES, ["a", "b"], [NOW, None], [None, [1, 2]]))
    assert encoded.columns[0] is None
    assert decode_block(encoded).columns == [None, [1, 2]]
    for wrong in (encoded, encoded._replace(columns=encoded.columns[1:])):
        with pytest.raises(MalformedError) as caught:
            bundle(wrong, Level.ATTRIBUTE)
        assert caught.value.code == "block.malformed"
