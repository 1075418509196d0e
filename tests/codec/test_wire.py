"""Messages and frames: what is written is read back in whatever pieces, and hostile bytes are refused cheaply."""

import resource
from contextlib import suppress
from datetime import UTC, datetime, timedelta, timezone
from itertools import pairwise
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.budget import examples

from penstock.codec.limits import CodecLimits
from penstock.codec.wire import (
    HEADER_BYTES,
    KEEPALIVE,
    FrameReader,
    Wire,
    decode,
    decode_messages,
    encode,
    frame,
    raw_frame,
)
from penstock.errors import LimitError, MalformedError
from penstock.model import AttributeId, Principal

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(1 << 63), (1 << 64) - 1),
    st.floats(allow_nan=False),
    st.text(st.characters(exclude_categories=["Cs"])),
    st.binary(),
    st.datetimes(timezones=st.just(UTC)),
)
MESSAGES: st.SearchStrategy[Wire] = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("abc"), inner, max_size=4)
)
SMALL = CodecLimits(frame_bytes=64, handshake_bytes=16, frame_messages=3, wire_depth=3, wire_items=4)


def nested(depth: int) -> Wire:
    value: Wire = 1
    for _ in range(depth):
        value = [value]
    return value


@settings(max_examples=examples(100))
@given(MESSAGES)
def test_a_message_is_read_back(message: Wire) -> None:
    assert decode(memoryview(encode(message))) == message


def test_an_instant_is_the_same_instant_in_any_zone_and_year() -> None:
    zone = timezone(timedelta(hours=5))
    first, last = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)
    for moment in (first, last, datetime(2026, 10, 25, 1, 30, 0, 1, zone), first.astimezone(zone)):
        read = decode(encode(moment))
        assert isinstance(read, datetime)
        assert (read, read.tzinfo) == (moment, UTC)


def test_a_tuple_and_an_attribute_id_are_written_as_what_they_are() -> None:
    uid = AttributeId(Principal(bytes(32)), "Numberplate", "1")
    assert decode(encode({uid: [uid]})) == {str(uid): [str(uid)]}
    assert decode(encode((1, (2,)))) == [1, [2]]


@pytest.mark.parametrize(
    "value",
    [
        object(),
        {1, 2},
        {1: 2},
        {b"key": 1},
        [{"a": {None: 1}}],
        1 << 64,
        -(1 << 63) - 1,
        "\ud800",
        datetime(2026, 1, 1),  # noqa: DTZ001  # without a zone on purpose
    ],
)
def test_what_is_no_message_is_not_written(value: Wire) -> None:
    with pytest.raises(MalformedError) as caught:
        encode(value)
    assert caught.value.code == "wire.value"


@pytest.mark.parametrize("value", [nested(4), [1] * 5, {str(n): n for n in range(5)}, [[[1] * 5]], b"x" * 64])
def test_what_would_not_be_read_is_not_written(value: Any) -> None:
    with pytest.raises(LimitError) as caught:
        encode(value, limits=SMALL)
    assert caught.value.code == "wire.limit"


def test_the_limits_themselves_are_allowed() -> None:
    values: list[Wire] = [nested(3), [1, 2, 3, 4], {str(n): n for n in range(4)}]
    for value in values:
        assert decode(encode(value, limits=SMALL), limits=SMALL) == value


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",  # never used
        b"\x91",  # a list of one, without it
        b"\x01\x01",  # more behind it
        b"\xa1\xff",  # text that is not UTF-8
        b"\x81\xc4\x01a\x01",  # a key of bytes
        b"\x81\x01\x01",  # a key that is a number
        b"\x81\x90\x01",  # a key that is a list
        b"\x82\xa1a\x01\xa1a\x02",  # a key twice
        b"\xd4\x05a",  # an extension
        b"\x91\xd4\x05a",
        b"\xc7\x03\xff123",  # an instant of a wrong size
        b"\xc7\x0c\xff\x00\x00\x00\x00\x7f" + b"\xff" * 7,  # an instant in no year
        b"\xd7\xff" + b"\xff" * 8,
        b"\xdd\xff\xff\xff\xff",  # claims
        b"\xdf\xff\xff\xff\xff",
        b"\xdb\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\xdc\xff\xff" * 100_000,
        b"\x91" * 100_000,
        b"\x81\xa1a" * 100_000,
    ],
)
def test_hostile_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(MalformedError) as caught:
        decode(data)
    assert caught.value.code in ("wire.malformed", "wire.limit")


def test_nesting_that_msgpack_would_still_read_is_refused() -> None:
    for data in (b"\x91" * 17 + b"\x01", b"\x81\xa1a" * 17 + b"\x01"):
        with pytest.raises(LimitError) as caught:
            decode(data)
        assert caught.value.code == "wire.limit"
    assert decode(b"\x91" * 16 + b"\x01") == nested(16)
    assert decode_messages(b"\x91" * 17 + b"\x01") == [nested(16)]


@pytest.mark.parametrize("others", [0, 14, 15, 40])
def test_nesting_is_seen_among_however_many_others(others: int) -> None:
    deep: list[list[Wire] | dict[str, Wire]] = [
        [*range(others), nested(16)],
        {**{str(number): number for number in range(others)}, "": nested(16)},
    ]
    for value in deep:
        with pytest.raises(LimitError):
            encode(value)
        with pytest.raises(LimitError):
            decode(msgpack.packb(value))


def test_lists_that_claim_more_than_they_hold_cost_little_memory() -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for head in (b"\xdc\x20\x00", b"\xdd\x00\x10\x00\x00"):
        with pytest.raises(MalformedError):
            decode(head * 1_000 + bytes(1_000_000))
    # Unbounded this would be eight gigabytes.
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 256 << 10


@settings(max_examples=examples(300))
@given(st.binary(max_size=200))
def test_any_bytes_are_a_message_or_an_error(data: bytes) -> None:
    for read in (decode, decode_messages):
        with suppress(MalformedError):
            read(data)


@settings(max_examples=examples(200))
@given(MESSAGES, st.data())
def test_changed_bytes_are_a_message_or_an_error(message: Wire, data: st.DataObject) -> None:
    whole = bytearray(encode(message))
    place = data.draw(st.integers(0, len(whole) - 1))
    whole[place] = data.draw(st.integers(0, 255))
    try:
        value = decode(whole)
    except MalformedError:
        return
    # What is read can be written: nobody passes on what the next one refuses.
    encode(value)


@settings(max_examples=examples(50))
@given(st.lists(st.lists(MESSAGES, max_size=3), max_size=5), st.data())
def test_frames_are_read_back_in_whatever_pieces_they_come(batches: list[list[Wire]], data: st.DataObject) -> None:
    stream = b"".join(frame([encode(message) for message in batch]) for batch in batches)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    reader, found = FrameReader(), []
    for start, end in pairwise([0, *cuts, len(stream)]):
        found += [decode_messages(view) for view in reader.feed(stream[start:end])]
    reader.close()
    assert found == batches


def test_octet_by_octet() -> None:
    stream = frame([encode("one")]) + KEEPALIVE + frame([encode(2)] * 20)
    reader = FrameReader()
    found = [bytes(view) for octet in stream for view in reader.feed(bytes((octet,)))]
    assert [decode_messages(view) if view else [] for view in found] == [["one"], [], [2] * 20]
    assert not reader.partial


def test_a_frame_that_came_whole_is_not_copied() -> None:
    data = frame([encode(1)])
    (view,) = FrameReader().feed(data)
    assert view.obj is data


@pytest.mark.parametrize("count", [0, 1, 15, 16, 255, 4_096])
def test_a_frame_of_so_many_messages(count: int) -> None:
    data = frame([encode(n) for n in range(count)])
    assert decode_messages(data[HEADER_BYTES:]) == list(range(count))


def test_a_frame_is_refused_as_soon_as_its_length_is_known() -> None:
    for length, refused in ((64, False), (65, True), (0xFFFF_FFFF, True)):
        reader = FrameReader(limits=SMALL)
        assert reader.feed(length.to_bytes(4, "big")[:3]) == []
        if not refused:
            assert reader.feed(length.to_bytes(4, "big")[3:]) == []
            continue
        with pytest.raises(LimitError) as caught:
            reader.feed(length.to_bytes(4, "big")[3:])
        assert caught.value.code == "frame.limit"


def test_the_opening_frames_are_smaller_even_where_all_come_at_once() -> None:
    stream = raw_frame(bytes(16)) * 2 + raw_frame(bytes(64))
    assert list(map(len, FrameReader(opening=2, limits=SMALL).feed(stream))) == [16, 16, 64]
    with pytest.raises(LimitError):
        FrameReader(opening=3, limits=SMALL).feed(stream)
    with pytest.raises(LimitError):
        FrameReader(opening=1, limits=SMALL).feed(KEEPALIVE + raw_frame(bytes(17)))


def test_the_end_inside_of_a_frame() -> None:
    for cut in (1, 4, 5):
        reader = FrameReader()
        reader.feed(raw_frame(b"whole") + raw_frame(b"cut")[:cut])
        with pytest.raises(MalformedError) as caught:
            reader.close()
        assert caught.value.code == "frame.truncated"


@settings(max_examples=examples(200))
@given(st.lists(st.binary(max_size=80), max_size=6))
def test_any_stream_is_frames_or_an_error(pieces: list[bytes]) -> None:
    reader, size = FrameReader(limits=SMALL), 0
    with suppress(LimitError):
        for piece in pieces:
            size += sum(HEADER_BYTES + len(view) for view in reader.feed(piece))
        assert reader.partial == (size < sum(map(len, pieces)))


def test_a_frame_with_something_else_or_too_much_in_it() -> None:
    for body, code in ((encode("text"), "wire.malformed"), (frame([encode(1)] * 4)[HEADER_BYTES:], "wire.limit")):
        with pytest.raises(MalformedError) as caught:
            decode_messages(body, limits=SMALL)
        assert caught.value.code == code


def test_errors_quote_nothing_of_the_message() -> None:
    for data in (b"\xa6secret\x01", b"\x82\xa6secret\x01\xa6secret\x02", msgpack.packb({b"secret": 1})):
        with pytest.raises(MalformedError) as caught:
            decode(data)
        assert "secret" not in str(caught.value)
