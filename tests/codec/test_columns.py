"""Columns: every column of values is read back as it was, has one form, and nothing else is read."""

import math
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from enum import IntEnum, StrEnum
from typing import TypeVar

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.budget import examples

from penstock.codec.columns import (
    NULL,
    Column,
    decode_bundle,
    decode_cell,
    decode_cells,
    decode_column,
    decode_columns,
    encode_bundle,
    encode_cell,
    encode_cells,
    encode_column,
    instant,
    microseconds,
)
from penstock.errors import MalformedError
from penstock.model.values import INTEGER_MAX, INTEGER_MIN, Scalar

T = TypeVar("T")

KINDS: dict[str, st.SearchStrategy[Scalar]] = {
    "string": st.text(st.characters(codec="utf-8"), max_size=12),
    "integer": st.integers(INTEGER_MIN, INTEGER_MAX) | st.integers(-300, 300),
    "float": st.floats(),
    "boolean": st.booleans(),
    "timestamp": st.datetimes(timezones=st.just(UTC)),
}
COLUMNS = st.sampled_from([*KINDS.values()]).flatmap(
    lambda values: st.lists(values, min_size=1, max_size=20) | st.lists(values | st.none(), min_size=1, max_size=20)
)


def same(one: Scalar, other: Scalar) -> bool:
    """Say whether two values are the same, with their kinds and signs of zero. There is one NaN."""
    if isinstance(one, float) and isinstance(other, float):
        return (math.isnan(one) and math.isnan(other)) or (
            one == other and math.copysign(1, one) == math.copysign(1, other)
        )
    return type(one) is type(other) and one == other


def code_of(act: Callable[..., object], *arguments: object) -> str:
    with pytest.raises(MalformedError) as caught:
        act(*arguments)
    return caught.value.code


def attempt(act: Callable[[], list[T]]) -> list[T] | str:
    """Return what was read, or the code of the refusal."""
    try:
        return act()
    except MalformedError as error:
        return error.code


@settings(max_examples=examples(400), deadline=None)
@given(COLUMNS)
@example([""])
@example(["", ""])
@example(["\0", "a"])
@example([None, None])
@example([None, float("nan"), -0.0, math.inf])
@example([INTEGER_MIN, INTEGER_MAX])
@example([-129, 128])
@example(["x" * 70_000, "\0" * 300])
@example([datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)])
def test_columns_are_read_back(values: Column) -> None:
    octets = encode_column(values)
    found = decode_column(octets, len(values))
    assert len(found) == len(values)
    assert all(map(same, found, values))
    cells = encode_cells(values)
    assert cells == [encode_cell(value) for value in values] == [encode_column([value]) for value in values]
    for value, cell, column in zip(values, cells, decode_cells(cells), strict=True):
        assert same(decode_cell(cell), value)
        assert column is not None
        assert same(column[0], value)


@pytest.mark.parametrize("rows", [1_023, 1_024, 1_025, 5_000])
def test_long_columns(rows: int) -> None:
    for column in (
        [f"{place}é" * (place % 3) for place in range(rows)],
        ["a" * (place % 300) for place in range(rows)],
        [None if place % 7 else str(place) for place in range(rows)],
        [place % 3 == 0 for place in range(rows)],
        [None if place % 5 else place * 1_000 for place in range(rows)],
    ):
        assert decode_column(encode_column(column), rows) == column
        assert decode_columns([encode_column(column), None], rows) == [column, None]


def test_long_columns_have_one_form_too() -> None:
    assert decode_column(b"\x31" + b"\0" * 1_023, 1_024) == [""] * 1_024
    assert code_of(lambda: decode_column(b"\x31" + b"\0" * 1_024, 1_025)) == "block.column"
    assert code_of(lambda: decode_columns([b"\x31" + b"\0" * 1_024], 1_025)) == "block.column"


def test_columns_are_compact() -> None:
    assert encode_column(["AE05 XYZ"]) == b"\x01AE05 XYZ"
    assert encode_column(["a", "", "bc"]) == b"\x31a\0\0bc"
    assert encode_column(["a\0", "b"]) == b"\x01\x02a\0b"
    assert encode_column([1, -1, 127]) == b"\x02\x01\xff\x7f"
    assert encode_column([1, None, 300]) == b"\x1a\x05\x01\0\0\0\x2c\x01"
    assert encode_column([True, False, True]) == b"\x04\x05"
    assert encode_column([None] * 1_000) == NULL


@settings(max_examples=examples(400), deadline=None)
@given(st.integers(1, 12), st.binary(max_size=40))
@example(2, b"\x13\0\0\0\0\0\0\0\0")
@example(2, b"\x0a\x03\0\0")  # a bitmap without a null
@example(2, b"\x0a\0\0\0")  # and one of nothing else
@example(2, b"\x0a\x01\x01\x01")  # a null whose slot is not zero
@example(2, b"\x0a\xf1\x01\0")  # bits behind the last row
@example(2, b"\x0b\x01" + bytes(15) + b"\x80")  # the other zero of floats in a slot
@example(1, b"\x03\x01\0\0\0\0\0\xf8\x7f")  # another NaN
@example(2, b"\x03" + bytes(8) + b"\x01\0\0\0\0\0\xf8\x7f")
@example(2, b"\x12\0\0\0\0")  # numbers wider than they need be
@example(2, b"\x01\0ab")  # lengths where a NUL would do
@example(2, b"\x31\xff\0")  # no text
@example(2, b"\x31a")  # a text too few
@example(2, b"\x31a\0b\0c")  # and one too many
@example(1, b"")
@example(2, b"")
@example(2, b"\x05" + b"\xff" * 7 + b"\x7f" + bytes(8))  # the year 294247
def test_there_is_one_form(rows: int, octets: bytes) -> None:
    one_form(rows, octets)


def one_form(rows: int, octets: bytes) -> None:
    found = attempt(lambda: decode_column(octets, rows))
    among = attempt(lambda: decode_columns([None, octets], rows))
    if isinstance(found, str):
        assert found == among == "block.column"
    else:
        assert len(found) == rows
        assert encode_column(found) == octets
        assert isinstance(among, list)
        assert [among[0], encode_column(among[1] or [])] == [None, octets]


@settings(max_examples=examples(300), deadline=None)
@given(COLUMNS, st.data())
def test_what_is_changed_is_another_column_or_none(values: Column, data: st.DataObject) -> None:
    octets = bytearray(encode_column(values))
    place = data.draw(st.integers(0, len(octets) - 1))
    octets[place] ^= data.draw(st.integers(1, 255))
    one_form(len(values), bytes(octets))


class Colour(StrEnum):
    RED = "red"


class Number(IntEnum):
    ONE = 1


class Double(float):
    pass


class Moment(datetime):
    pass


def test_subclasses_are_what_they_are() -> None:
    pairs: list[tuple[Scalar, Scalar]] = [
        (Colour.RED, "red"),
        (Number.ONE, 1),
        (Double(1.5), 1.5),
        (Moment(2026, 5, 1, tzinfo=UTC), datetime(2026, 5, 1, tzinfo=UTC)),
    ]
    for unusual, plain in pairs:
        assert encode_cell(unusual) == encode_cell(plain)
        assert encode_column([unusual, None, plain]) == encode_column([plain, None, plain])


def test_timestamps_may_be_far_apart_and_in_any_order() -> None:
    day, first = timedelta(days=1), datetime(2026, 5, 1, tzinfo=UTC)
    times = [first, first + 2 * day, first - day, first + timedelta(microseconds=7), datetime(1, 1, 1, tzinfo=UTC)]
    written = encode_column(times)
    epoch, microsecond = datetime(1970, 1, 1, tzinfo=UTC), timedelta(microseconds=1)
    assert written[1:] == b"".join(((time - epoch) // microsecond).to_bytes(8, "little", signed=True) for time in times)
    assert decode_column(written, len(times)) == times


def test_instants_of_other_zones_are_the_same() -> None:
    east = datetime(2026, 5, 1, 3, tzinfo=timezone(timedelta(hours=3)))
    west = datetime(2026, 5, 1, tzinfo=UTC)
    assert encode_cell(east) == encode_cell(west)
    assert encode_column([east, west]) == encode_column([west, west])
    assert instant(microseconds(east)) == west


@pytest.mark.parametrize(
    ("value", "code"),
    [
        (INTEGER_MAX + 1, "value.range"),
        (INTEGER_MIN - 1, "value.range"),
        ("\ud800", "value.text"),
        (datetime(2026, 5, 1), "value.zone"),  # noqa: DTZ001  # it is what is tested
        (datetime(9999, 12, 31, 23, tzinfo=timezone(timedelta(hours=-2))), "value.range"),
        (b"octets", "value.kind"),
        ([], "value.kind"),
    ],
)
def test_what_is_no_value(value: Scalar, code: str) -> None:
    assert code_of(lambda: encode_cell(value)) == code
    assert code_of(lambda: encode_cells([value])) == code
    assert code_of(lambda: encode_column([value, value])) == code
    assert code_of(lambda: encode_column([None, value, value])) == code


@pytest.mark.parametrize(
    "values", [["a", 1], [1, 1.0], [True, 1], [None, 1, "a"], [datetime(2026, 5, 1, tzinfo=UTC), 1]]
)
def test_kinds_do_not_mix(values: Column) -> None:
    assert code_of(lambda: encode_column(values)) == "value.kind"


@given(st.lists(st.binary(max_size=5), min_size=1, max_size=6))
def test_bundles_are_read_back(parts: list[bytes]) -> None:
    assert decode_bundle(encode_bundle(parts), len(parts)) == parts


@given(st.binary(max_size=30), st.integers(1, 5))
@example(b"\xff\xff\xff\xff", 2)
@example(b"", 2)
def test_bundles_have_one_form(octets: bytes, count: int) -> None:
    parts = attempt(lambda: decode_bundle(octets, count))
    if isinstance(parts, str):
        assert parts == "block.column"
    else:
        assert encode_bundle(parts) == octets
