"""Values by themselves: a few bytes each, in one form. What they have in common with columns is tested with them."""

from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from penstock.codec.columns import NULL, decode_cell, decode_cells, encode_cell, encode_cells, instant, microseconds
from penstock.errors import MalformedError
from penstock.model.values import INTEGER_MIN, Scalar


def code_of(act: Callable[..., object], *arguments: object) -> str:
    with pytest.raises(MalformedError) as caught:
        act(*arguments)
    return caught.value.code


@pytest.mark.parametrize(
    ("value", "octets"),
    [
        (None, "00"),
        ("é", "01c3a9"),
        (0, "0200"),
        (-128, "0280"),
        (128, "128000"),
        (-32_769, "22ff7fffff"),
        (1 << 40, "320000000000010000"),
        (-2.0, "0300000000000000c0"),
        (float("nan"), "03000000000000f87f"),
        (True, "0401"),
        (datetime(1970, 1, 1, 0, 0, 0, 258, tzinfo=UTC), "050201000000000000"),
    ],
)
def test_values_as_octets(value: Scalar, octets: str) -> None:
    assert encode_cell(value).hex() == octets
    assert encode_cells([value, value]) == [bytes.fromhex(octets)] * 2
    assert repr(decode_cell(bytes.fromhex(octets))) == repr(value)


def test_cells_that_are_none() -> None:
    assert decode_cells([b"\1a", None, NULL]) == [["a"], None, [None]]
    for wrong in (b"", b"\1\xff", b"\x7f", b"\x02"):
        assert code_of(decode_cells, [b"\1a", wrong]) == "block.column"


def test_the_last_instants() -> None:
    for value in (datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)):
        assert instant(microseconds(value)) == value
    assert code_of(lambda: instant(microseconds(datetime.max.replace(tzinfo=UTC)) + 1)) == "block.column"
    assert code_of(lambda: instant(INTEGER_MIN)) == "block.column"
