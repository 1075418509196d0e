"""Columns of Arrow and columns of Python values have the same bytes, and the same bytes are refused."""

from contextlib import nullcontext
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]  # it ships no types
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.budget import USUAL, examples
from tests.trust.kit import refused

from penstock.codec.columns import KINDS, decode_column, encode_column
from penstock.errors import MalformedError
from penstock.model.values import Kind
from penstock.pipeline.sealed.columns import ARROW_TYPES, CODES, decode_array, encode_array

VALUES: dict[Kind, st.SearchStrategy[Any]] = {
    Kind.STRING: st.text(st.characters(codec="utf-8"), max_size=4),
    Kind.INTEGER: st.integers(-(1 << 63), (1 << 63) - 1) | st.integers(-200, 200),
    Kind.FLOAT: st.floats(),
    Kind.BOOLEAN: st.booleans(),
    Kind.TIMESTAMP: st.datetimes(timezones=st.just(UTC)),
}


@st.composite
def columns(draw: st.DrawFn) -> tuple[Kind, list[Any]]:
    kind = draw(st.sampled_from(list(VALUES)))
    few = draw(st.lists(VALUES[kind] | st.none(), min_size=1, max_size=40))
    # Of more than 1,024 texts the lengths are written.
    return kind, few * draw(st.sampled_from([1, 1, 1, 1_100]))


@settings(deadline=None, max_examples=examples(USUAL))
@given(columns())
def test_both_write_and_read_the_same(column: tuple[Kind, list[Any]]) -> None:
    kind, values = column
    octets = encode_column(values)
    assert encode_array(pa.array(values, ARROW_TYPES[kind]), kind) == octets
    sliced = pa.array([None, *values, None], ARROW_TYPES[kind])[1:-1]
    assert encode_array(sliced, kind) == octets
    found = decode_array(octets, len(values), kind)
    assert found.type == ARROW_TYPES[kind]
    # Bytes compare where values do not: a NaN is not equal to itself.
    assert encode_column(found.to_pylist()) == octets


@settings(deadline=None, max_examples=examples(USUAL))
@given(columns(), st.data())
def test_both_refuse_the_same(column: tuple[Kind, list[Any]], data: st.DataObject) -> None:
    kind, values = column
    octets = bytearray(encode_column(values))
    for _ in range(data.draw(st.integers(0, 2))):
        octets[data.draw(st.integers(0, len(octets) - 1))] = data.draw(st.integers(0, 255))
    changed = bytes(octets[: data.draw(st.integers(0, len(octets)))] + data.draw(st.binary(max_size=2)))
    try:
        expected = decode_column(changed, len(values))
    except MalformedError:
        with pytest.raises(MalformedError):
            decode_array(changed, len(values), kind)
        return
    other = changed[:1] != b"\0" and changed[0] & KINDS != CODES[kind]
    with refused("value.kind") if other else nullcontext():
        assert encode_column(decode_array(changed, len(values), kind).to_pylist()) == encode_column(expected)


def test_what_no_value_can_be_is_not_written() -> None:
    torn = pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\1\0\0\0"), pa.py_buffer(b"\xff")])
    with refused("value.text"):
        encode_array(torn, Kind.STRING)
    with refused("value.range"):
        encode_array(pa.array([1 << 62]).cast(pa.timestamp("us", "UTC")), Kind.TIMESTAMP)
    latest = datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)
    assert encode_array(pa.array([latest]), Kind.TIMESTAMP) == encode_column([latest])


def test_texts_are_not_cut_within_a_character() -> None:
    texts = ["ä", "b"] * 600
    octets = encode_column(texts)
    assert decode_array(octets, len(texts), Kind.STRING).to_pylist() == texts
    lengths = bytes((1, 2)) * 599 + bytes((1,))
    assert octets[1:].startswith(bytes((2, 1)) * 599)
    with refused("block.column"):
        decode_array(octets[:1] + lengths + octets[1 + len(lengths) :], len(texts), Kind.STRING)


def test_lengths_that_are_too_long_together_are_refused() -> None:
    octets = encode_column(["a" * (1 << 16)] + ["b"] * 1_099)
    lengths = (1 << 22).to_bytes(4, "little") * 1_099
    with refused("block.column"):
        decode_array(octets[:1] + lengths + octets[1 + len(lengths) :], 1_100, Kind.STRING)


def test_lengths_that_pass_all_numbers_together_are_refused() -> None:
    octets = encode_column(["a" * (1 << 16)] + ["b"] * 1_099)
    # Their sum comes back to where it began.
    lengths = (1 << 31).to_bytes(4, "little") * 2 + bytes(4 * 1_097)
    with refused("block.column"):
        decode_array(octets[:1] + lengths + octets[1 + len(lengths) :], 1_100, Kind.STRING)
