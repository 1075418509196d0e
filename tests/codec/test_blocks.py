"""Blocks as bytes: events are laid out by column and back, names have one form, and nothing else is read."""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from types import MappingProxyType

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.budget import examples

from penstock.codec.blocks import (
    FIRST,
    Blinded,
    Block,
    BlockHeader,
    Fixed,
    Level,
    Padding,
    PlainNames,
    join,
    names,
    read_block,
    read_bound,
    read_fixed,
    read_header,
    read_names,
    read_parts,
    read_route,
    reroute,
    says_labels,
    split,
    write_block,
    write_bound,
    write_fixed,
    write_route,
)
from penstock.codec.columns import microseconds
from penstock.codec.limits import CodecLimits
from penstock.errors import LimitError, PenstockError
from penstock.model.events import TransitEvent
from penstock.model.names import AttributeId, TypeKey
from penstock.model.principals import THRESHOLD, Principal
from penstock.model.values import Scalar

OWNER, OTHER = Principal(b"\1" * 32), Principal(b"\2" * 32)
TYPE, PARENT = TypeKey(OWNER, "uk.gov.pito.Numberplate"), TypeKey(OTHER, "Sighting")
OWN, INHERITED = str(AttributeId(OWNER, TYPE.name, "1")), str(AttributeId(OTHER, PARENT.name, "1"))
NAMES = names(TYPE, (PARENT,), (INHERITED, OWN))
NOW = datetime(2026, 5, 1, tzinfo=UTC)
FIXED = Fixed(Level.ATTRIBUTE, False, 1, Padding.NONE, OWNER.digest, b"i" * 16, (1, 2, 3))
BOUND = write_bound(write_fixed(FIXED), 5, microseconds(NOW), 9)
COLUMNS = [b"first", b"", b"third"]
DATA = write_block(BOUND, write_route(PlainNames(NAMES)), b"", COLUMNS)


def code_of(act: Callable[..., object], *arguments: object) -> str:
    with pytest.raises(PenstockError) as caught:
        act(*arguments)
    return caught.value.code


def event(id_: str, **values: Scalar) -> TransitEvent:
    ids = {"own": OWN, "inherited": INHERITED}
    found = MappingProxyType({ids[name]: value for name, value in values.items()})
    return TransitEvent(TYPE, (PARENT,), found, id_, NOW)


def test_a_block_that_was_read_last_is_read_by_the_limits_at_hand() -> None:
    data = bytes(bytearray(DATA))
    parts = read_block(data)
    assert read_block(data) is parts
    assert read_block(bytes(bytearray(data))) == parts
    for limits in (CodecLimits(block_bytes=10), CodecLimits(block_rows=8)):
        assert read_block(data) == parts
        with pytest.raises(LimitError):
            read_block(data, limits=limits)


@pytest.mark.parametrize("rows", [[{"own": 1}, {"own": 2}], [{"own": 1, "inherited": 2}, {"inherited": 3, "own": 4}]])
def test_events_with_the_same_attributes_come_back(rows: list[dict[str, Scalar]]) -> None:
    events = [event(str(number), **row) for number, row in enumerate(rows)]
    assert Block.of(events).events() == events


def test_events_are_laid_out_by_column() -> None:
    events = [event("a", own=1), event("b", inherited="x"), event("c", own=3, inherited="y"), event("d")]
    block = Block.of(events)
    assert block.names.attributes == (OWN, INHERITED)
    assert block.columns == [[1, None, 3, None], [None, "x", "y", None]]
    assert block.events() == events
    assert block.column(OWN) == [1, None, 3, None]
    assert block.column("nothing") is None
    closed = replace(block, columns=[None, block.columns[1]])
    assert [dict(found.values) for found in closed.events()] == [{}, {INHERITED: "x"}, {INHERITED: "y"}, {}]
    assert closed.column(OWN) is None
    assert Block.of(events[:1]).columns == [[1]]
    assert Block.of(events[3:]).events() == events[3:]


#: ids, times and columns for two attributes
WRONG_SHAPES: list[tuple[list[str], list[datetime], list[list[int]]]] = [
    ([], [], [[], []]),
    (["a"], [], [[1], [1]]),
    (["a"], [NOW], [[1]]),
    (["a"], [NOW], [[1], [1, 2]]),
]


def test_a_block_is_of_one_type_and_one_length() -> None:
    assert code_of(Block.of, []) == "block.malformed"
    assert code_of(Block.of, [event("a"), replace(event("b"), key=PARENT)]) == "block.malformed"
    assert code_of(Block.of, [event("a"), replace(event("b"), ancestors=())]) == "block.malformed"
    for ids, times, columns in WRONG_SHAPES:
        assert code_of(Block, NAMES, ids, times, columns) == "block.malformed"


def test_names_are_short_where_they_can_be() -> None:
    assert NAMES.written == f"{TYPE} {PARENT} {INHERITED} #1".encode()
    assert read_names(NAMES.written) == NAMES
    assert len({names(TYPE, (PARENT,), ids).digest for ids in ((OWN,), (INHERITED,), (OWN, INHERITED))}) == 3


@pytest.mark.parametrize(
    "octets",
    [
        b"",
        b" ",
        "é".encode(),
        str(TYPE).encode() + b" ",
        f"{TYPE}  #1".encode(),
        f"{TYPE} {OWN}".encode(),
        f"{TYPE} #1 {PARENT}".encode(),
        f"{TYPE} #1 #1".encode(),
        f"{TYPE} {TYPE}".encode(),
        f"{TYPE} {PARENT} {PARENT}".encode(),
        f"{TYPE}@1".encode(),
        f"{TYPE} #".encode(),
        f"{TYPE}#1".encode(),
        TYPE.name.encode(),
    ],
)
def test_names_have_one_form(octets: bytes) -> None:
    assert code_of(read_names, octets) in {"block.malformed", "name.malformed", "principal.malformed"}


def test_whoever_writes_an_owner_otherwise_first_does_not_change_what_others_write() -> None:
    owner = Principal(b"\7" * 32)
    true, wrong = TypeKey(owner, "a.B"), TypeKey(Principal(owner.digest, THRESHOLD), "a.B")
    attributes = (f"{true}#1",)
    for key in (wrong, true):
        found = read_names(f"{key} {'#1' if key is true else attributes[0]}".encode())
        assert str(found.type) == str(found.blank.key) == str(key)
        assert str(names(key, (), attributes).type) == str(key)


def test_attributes_are_given_by_their_ids() -> None:
    for wrong in ("numberplate", "#1", f"{OWN} #2", f"{OWN}\n", ""):
        assert code_of(names, TYPE, (), (wrong,)) in {"name.malformed", "principal.malformed"}


def test_names_are_bounded() -> None:
    many = tuple(f"{TYPE}#{place}" for place in range(1_025))
    assert read_names(names(TYPE, (), many[:-1]).written).attributes == many[:-1]
    assert code_of(names, TYPE, (), many) == "block.limit"
    assert (
        code_of(read_names, " ".join([str(TYPE), *(f"#{place}" for place in range(1_025))]).encode()) == "block.limit"
    )
    assert code_of(names, TYPE, tuple(TypeKey(OWNER, f"A{place}") for place in range(33)), ()) == "block.limit"


LABELS = [bytes((place,)) * 16 for place in range(4)]


@pytest.mark.parametrize(
    "route",
    [PlainNames(NAMES), Blinded(LABELS[0], (), ()), Blinded(LABELS[0], (LABELS[1],), (LABELS[2], LABELS[3]))],
)
def test_routes_are_read_back(route: PlainNames | Blinded) -> None:
    octets = write_route(route)
    assert read_route(octets) == route
    for changed in (b"\2" + octets[1:], octets[:1] + (0).to_bytes(4, "big")):
        assert code_of(read_route, changed) in {"block.malformed", "principal.malformed"}


def test_blinded_routes_have_one_form() -> None:
    for content in (b"\0", b"\1" + LABELS[0], b"\0" + LABELS[0][:15], b"\0" + LABELS[0] + b"x"):
        assert code_of(read_route, b"\1" + len(content).to_bytes(4, "big") + content) == "block.malformed"
    many = b"\0" + LABELS[0] * 1_026
    assert code_of(read_route, b"\1" + len(many).to_bytes(4, "big") + many) == "block.limit"


def test_a_header_is_read_by_everybody() -> None:
    header = read_header(DATA)
    assert header == BlockHeader(FIXED, 5, NOW, 9, PlainNames(NAMES))
    assert header.sender == OWNER
    assert header.id == b"i" * 16 + (5).to_bytes(8, "big")
    assert read_bound(BOUND) == (FIXED, 5, microseconds(NOW), 9)
    for wrong in (b"", BOUND[:-1], BOUND + b"\0"):
        assert code_of(read_bound, wrong) == "block.malformed"


def test_parts_are_split_and_joined() -> None:
    header, columns = split(DATA)
    assert columns == {FIRST: b"first", INHERITED: b"", OWN: b"third"}
    assert join(header, columns) == DATA
    assert read_parts(header, {OWN: b"x"}).columns == [None, None, b"x"]
    assert code_of(join, header, {**columns, "more": b""}) == "block.malformed"
    assert code_of(join, header, {FIRST: b"first"}) == "block.malformed"


def test_a_blinded_block_is_split_under_its_labels() -> None:
    blinded = reroute(DATA, Blinded(LABELS[0], (LABELS[1],), (LABELS[2], LABELS[3])))
    header, columns = split(blinded)
    assert [*columns] == [FIRST, LABELS[2].hex(), LABELS[3].hex()]
    assert join(header, columns) == blinded
    assert reroute(blinded, PlainNames(NAMES)) == DATA
    assert says_labels(blinded)
    assert not any(says_labels(octets) for octets in (DATA, b"", DATA[:40], DATA[:80]))
    for labels in ((LABELS[2],), (LABELS[2], LABELS[2])):
        assert code_of(split, reroute(DATA, Blinded(LABELS[0], (), labels))) == "block.malformed"


@pytest.mark.parametrize(
    ("place", "octet"),
    [(0, 0), (0, 2), (1, 4), (1, 1), (1, 2), (3, 3), (5, 0), (5, 2), (5, 255)],
)
def test_what_is_no_block(place: int, octet: int) -> None:
    changed = DATA[:place] + bytes((octet,)) + DATA[place + 1 :]
    assert code_of(read_header, changed) in {"block.malformed", "block.limit"}


def test_rows_are_bounded() -> None:
    for rows in (0, (1 << 20) + 1, (1 << 32) - 1):
        bound = write_bound(write_fixed(FIXED), 5, 0, rows)
        assert code_of(read_block, write_block(bound, write_route(PlainNames(NAMES)), b"", COLUMNS)) == "block.limit"


def test_times_are_instants() -> None:
    bound = write_bound(write_fixed(FIXED), 5, (1 << 63) - 1, 1)
    assert code_of(read_header, write_block(bound, write_route(PlainNames(NAMES)), b"", COLUMNS)) == "block.column"


@settings(max_examples=examples(300), deadline=None)
@given(st.binary(max_size=200), st.integers(0, len(DATA)))
@example(b"", 0)
@example(b"\xff" * 20, 78)
@example(b"\0\xff\xff\xff\xff", 98)
def test_there_is_one_form(octets: bytes, kept: int) -> None:
    data = DATA[:kept] + octets
    try:
        parts = read_block(data)
    except PenstockError as error:
        code = error.code
    else:
        columns = [column for column in parts.columns if column is not None]
        assert write_block(parts.bound, parts.route, parts.signature, columns) == data
        code = "block.malformed"
    assert code in {"block.malformed", "block.limit"}


def test_the_flags_say_whether_there_is_a_signature() -> None:
    signed = write_bound(write_fixed(FIXED._replace(signed=True)), 5, 0, 1)
    route = write_route(PlainNames(NAMES))
    assert read_block(write_block(signed, route, b"signature", COLUMNS)).signature == b"signature"
    assert code_of(read_block, write_block(signed, route, b"", COLUMNS)) == "block.malformed"
    assert code_of(read_block, write_block(BOUND, route, b"signature", COLUMNS)) == "block.malformed"
    assert read_fixed(signed).signed
