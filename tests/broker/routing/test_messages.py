"""Messages come back from their trees as they were, and nothing else is read as one."""

import random
from collections.abc import Sequence
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.broker.network import NUMBER, OWNER, TEXT, filter_of, make_type, principal
from tests.budget import examples

from penstock.broker.limits import NETWORK_PROOF, BrokerLimits
from penstock.broker.routing.messages import (
    Again,
    Announcement,
    Body,
    Disclosure,
    Enter,
    Greeting,
    Hop,
    Pulse,
    Stamp,
    WithdrawEntry,
)
from penstock.broker.wire.entries import Advertisement, Filter, InterestEntry, SubscriptionEntry
from penstock.broker.wire.plain_trees import Tree
from penstock.broker.wire.publications import Publications, blocks
from penstock.codec.wire import decode, encode
from penstock.errors import LimitError, MalformedError
from penstock.model.events import Event
from penstock.model.names import TypeKey
from penstock.model.principals import THRESHOLD, Principal
from penstock.model.values import INTEGER_MAX, AttributeSpec, Kind, Scalar

KINDS = {"n": NUMBER, "s": TEXT, "f": AttributeSpec(Kind.FLOAT), "b": AttributeSpec(Kind.BOOLEAN)}
NEWS = make_type("News", {**KINDS, "t": AttributeSpec(Kind.TIMESTAMP)})
SPORT = make_type("News.Sport", {"score": NUMBER}, NEWS)
FILTERS = st.sampled_from(["TRUE", "n > 3", "n > 3 AND s LIKE 'a%'", "f < 0.5 OR b", "t IS NULL"]).map(
    lambda text: filter_of(NEWS, text)
)

COUNTS = st.integers(0, INTEGER_MAX)
PRINCIPALS = st.binary(min_size=32, max_size=32).map(Principal)
KEYS = st.sampled_from([NEWS.key, SPORT.key, TypeKey(Principal(bytes(32), THRESHOLD), "a.b.c")])
ENTRIES = (
    st.builds(InterestEntry, KEYS)
    | st.builds(Advertisement, KEYS, KEYS, FILTERS)
    | st.builds(SubscriptionEntry, KEYS, FILTERS)
)
MOMENTS = st.none() | st.datetimes(timezones=st.just(UTC))
EVENTS = st.builds(
    lambda n, s, f, b, t, name, time: Event.of(
        SPORT, {"n": n, "s": s, "f": f, "b": b, "t": t}, id=name, time=time
    ).to_transit(),
    st.none() | st.integers(-(2**63), 2**63 - 1),
    st.none() | st.text(max_size=9),
    st.none() | st.floats(allow_nan=False),
    st.none() | st.booleans(),
    MOMENTS,
    st.text(max_size=9),
    MOMENTS,
)
BLOCKS = st.builds(
    lambda origin, incarnation, rows, hops, retain, state: Publications(
        origin, incarnation, tuple(sorted(rows)), tuple(rows[number] for number in sorted(rows)), hops, retain, state
    ),
    PRINCIPALS,
    COUNTS,
    st.dictionaries(COUNTS, EVENTS, min_size=1, max_size=4),
    COUNTS,
    st.sampled_from(["", "slot"]),
    st.booleans(),
)
BODIES = (
    st.builds(Greeting)
    | st.builds(Pulse)
    | st.builds(Again, st.builds(Stamp, COUNTS, COUNTS))
    | st.builds(
        Announcement,
        st.just(principal("me")),
        COUNTS,
        COUNTS,
        st.sets(PRINCIPALS, max_size=4).map(lambda links: tuple(sorted(links))),
        st.binary(max_size=9),
    )
    | st.builds(Enter, COUNTS, ENTRIES)
    | st.builds(WithdrawEntry, COUNTS)
    | st.builds(Disclosure, PRINCIPALS, COUNTS, COUNTS, st.binary(max_size=9), st.binary(max_size=9))
    | BLOCKS
)
HOPS = st.builds(Hop, st.builds(Stamp, COUNTS, COUNTS), COUNTS, BODIES)


def hop_of(body: Body) -> list[Tree]:
    return Hop(Stamp(1, 1), 1, body).to_tree()


def body_of(body: Body, **changes: object) -> list[object]:
    tree = body.to_tree()
    assert isinstance(tree, dict)
    return [*hop_of(body)[:-1], {**tree, **changes}]


def changed(place: int, value: object) -> list[object]:
    """Return a hop with one thing in it changed."""
    tree: list[object] = [*hop_of(Greeting())]
    tree[place] = value
    return tree


def block_of(**changes: object) -> list[object]:
    """Return events with some of what describes them changed."""
    names = ("origin", "incarnation", "hops", "retain", "state", "header", "columns")
    return [*hop_of(BLOCK)[:-1], list({**dict(zip(names, BLOCK.to_tree(), strict=True)), **changes}.values())]


def octets_at(tree: list[Tree], place: int) -> bytes:
    octets = tree[place]
    assert isinstance(octets, bytes)
    return octets


def header_of(place: int, value: object) -> list[object]:
    """Return events with one part of their header changed: the type, its ancestors, the attributes."""
    header = [[b"\x00" + OWNER.digest, "News.Sport"], [], [N]]
    header[place] = value
    return block_of(header=encode(header))  # type: ignore[arg-type]  # whatever it is


def columns_of(*columns: Sequence[object]) -> list[object]:
    """Return events with such columns."""
    cells = [cell for column in columns for cell in column]
    return block_of(columns=encode(cells))  # type: ignore[arg-type]  # whatever they are


def is_plain(tree: object) -> bool:
    if isinstance(tree, list):
        return all(map(is_plain, tree))
    if isinstance(tree, dict):
        return all(type(name) is str and is_plain(value) for name, value in tree.items())
    return tree is None or type(tree) in (bool, int, float, str, bytes, datetime)


@given(HOPS)
def test_a_message_comes_back_from_its_plain_tree(hop: Hop) -> None:
    tree = hop.to_tree()

    assert is_plain(tree)
    assert Hop.from_tree(tree) == hop


PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.binary(max_size=40)
    | st.datetimes()
    | st.sampled_from(["kind", "subscription", "TRUE", "n >", "integer"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


def spoiled(tree: Tree, other: object, chance: random.Random) -> object:
    """Return the tree with one place, anywhere in it, replaced, removed or added."""
    if isinstance(tree, dict) and tree and chance.random() < 0.9:
        name = chance.choice(sorted(tree))
        action = chance.random()
        if action < 0.1:
            return {key: value for key, value in tree.items() if key != name}
        if action < 0.2:
            return {**tree, str(other)[:9]: other}
        return {**tree, name: spoiled(tree[name], other, chance)}
    if isinstance(tree, list) and tree and chance.random() < 0.9:
        place = chance.randrange(len(tree))
        return [*tree[:place], spoiled(tree[place], other, chance), *tree[place + 1 :]]
    return other


@given(HOPS, PLAIN, st.randoms(use_true_random=False))
@settings(max_examples=examples(400))
def test_a_spoiled_tree_is_refused_or_means_what_it_says(hop: Hop, other: object, chance: random.Random) -> None:
    tree = spoiled(hop.to_tree(), other, chance)
    try:
        read = Hop.from_tree(tree)
    except MalformedError:
        return
    assert read.to_tree() == tree


@given(BLOCKS, PLAIN, st.randoms(use_true_random=False))
@settings(max_examples=examples(400))
def test_spoiled_events_are_refused_or_mean_what_they_say(
    block: Publications, other: object, chance: random.Random
) -> None:
    tree = block.to_tree()
    place = chance.choice((5, 6))
    try:
        tree[place] = encode(spoiled(decode(octets_at(tree, place)), other, chance))  # type: ignore[arg-type]  # refused
        read = Publications.from_tree(tree)
    except MalformedError:
        return
    again = Publications(read.origin, read.incarnation, read.numbers, read.events, read.hops, read.retain, read.state)
    assert Publications.from_tree(again.to_tree()) == read


@given(BLOCKS, st.binary(max_size=60), st.integers(0, 400))
@settings(max_examples=examples(400))
def test_spoiled_octets_of_events_are_refused_or_read(block: Publications, other: bytes, place: int) -> None:
    tree = block.to_tree()
    for part in (5, 6):
        octets = octets_at(tree, part)
        try:
            Publications.from_tree([*tree[:part], octets[:place] + other + octets[place + 1 :], *tree[part + 1 :]])
        except MalformedError:
            continue


@given(PLAIN)
def test_no_other_tree_is_a_message(tree: object) -> None:
    with pytest.raises(MalformedError) as caught:
        Hop.from_tree(tree)
    assert caught.value.code == "message.malformed"


EVENT = Event.of(SPORT, {"n": 1}, id="1").to_transit()
BLOCK = Publications(OWNER, 1, (1,), (EVENT,))
ANNOUNCEMENT = Announcement(OWNER, 1, 1, tuple(sorted([principal("a"), principal("b")])))
DISCLOSURE = Disclosure(OWNER, 1, 1, b"credentials")
SUBSCRIPTION = Enter(1, SubscriptionEntry(NEWS.key, filter_of(NEWS, "n > 3")))
N = str(NEWS.attribute("n").id)


def entry(**changes: object) -> list[object]:
    tree = SUBSCRIPTION.entry.to_tree()
    return body_of(SUBSCRIPTION, entry={**tree, **changes})


@pytest.mark.parametrize(
    ("tree", "code"),
    [
        (changed(2, True), "message.malformed"),
        (changed(2, -1), "message.malformed"),
        (changed(1, 2**63), "message.malformed"),
        (changed(3, "impulse"), "message.malformed"),
        ([*hop_of(Pulse()), 1], "message.malformed"),
        (body_of(Pulse(), more=None), "message.malformed"),
        (body_of(WithdrawEntry(1), handle=1.0), "message.malformed"),
        (body_of(ANNOUNCEMENT, broker=bytes(32)), "message.malformed"),
        (body_of(ANNOUNCEMENT, broker=b"\x02" + bytes(32)), "message.malformed"),
        (body_of(ANNOUNCEMENT, links=[b"\x00" + bytes(32)] * 2), "message.malformed"),
        (body_of(ANNOUNCEMENT, links=[b"\x00" + OWNER.digest]), "message.malformed"),
        (body_of(ANNOUNCEMENT, links=[b""] * (BrokerLimits().network_links + 1)), "message.limit"),
        (body_of(ANNOUNCEMENT, proof=bytes(NETWORK_PROOF + 1)), "message.limit"),
        (body_of(DISCLOSURE, octets=bytes(BrokerLimits().network_disclosure + 1)), "message.limit"),
        (entry(kind="wish"), "message.malformed"),
        (entry(tree=[b"\x00" + bytes(32), "7"]), "name.malformed"),
        (entry(tree=[b"\x00" + bytes(32), "News", "0"]), "message.malformed"),
        (entry(filter={"where": "n  >  3", "kinds": {}}), "message.malformed"),
        (entry(filter={"where": "n >", "kinds": {}}), "selector.syntax"),
        (entry(filter={"where": "x" * 20_000, "kinds": {}}), "selector.limit"),
        (entry(filter={"where": f'"{N}" > 3', "kinds": {}}), "message.malformed"),
        (entry(filter={"where": f'"{N}" > 3', "kinds": {N: "string"}}), "selector.type"),
        (entry(filter={"where": f'"{N}" > 3', "kinds": {N: "number"}}), "message.malformed"),
        (entry(filter={"where": "TRUE", "kinds": {N: "integer"}}), "message.malformed"),
        (entry(filter={"where": "n > 3", "kinds": {"n": "integer"}}), "name.malformed"),
        (block_of(hops=-1), "message.malformed"),
        (block_of(incarnation=True), "message.malformed"),
        (block_of(retain="x" * 129), "message.limit"),
        (block_of(retain="\u00e4"), "message.malformed"),
        (block_of(more=1), "message.malformed"),
        (block_of(header=b"\xc1"), "wire.malformed"),
        (block_of(columns=bytes(BrokerLimits().route_block_bytes + 1)), "message.limit"),
        (header_of(0, [b"\x00" + OWNER.digest, "7"]), "name.malformed"),
        (header_of(1, [[b"\x00" + OWNER.digest, "News.Sport"]]), "message.malformed"),
        (header_of(1, [[b"\x00" + OWNER.digest, "a"]] * 33), "message.limit"),
        (header_of(1, {}), "message.malformed"),
        (header_of(2, ["n"]), "name.malformed"),
        (header_of(2, [N, N]), "message.malformed"),
        (header_of(2, [f"{N}{i}" for i in range(1025)]), "message.limit"),
        (columns_of([1], ["1"], [None]), "message.malformed"),
        (columns_of(), "message.malformed"),
        (block_of(columns=encode({})), "message.malformed"),
        (columns_of([1], ["1"], [None], [1, 2]), "message.malformed"),
        (columns_of([1], ["1"], [None], [b"bytes"]), "message.malformed"),
        (columns_of([1], ["1"], [None], [[1]]), "message.malformed"),
        (columns_of([1], ["1"], [None], [2**63]), "value.range"),
        (columns_of([1, 2], ["1", "2"], [None, None], [2**63, "a"]), "value.range"),
        (columns_of([2, 1], ["1", "2"], [None, None], [1, 1]), "message.malformed"),
        (columns_of([1, 1], ["1", "2"], [None, None], [1, 1]), "message.malformed"),
        (columns_of([-1], ["1"], [None], [1]), "message.malformed"),
        (columns_of([2**63], ["1"], [None], [1]), "message.malformed"),
        (columns_of([True], ["1"], [None], [1]), "message.malformed"),
        (columns_of([1], [1], [None], [1]), "message.malformed"),
        (columns_of([1], ["1"], ["now"], [1]), "message.malformed"),
        (columns_of(*([1] * 1025 for _ in range(4))), "message.limit"),
    ],
)
def test_what_is_wrong_has_a_code(tree: object, code: str) -> None:
    with pytest.raises(MalformedError) as caught:
        Hop.from_tree(tree)
    assert caught.value.code == code
    assert isinstance(caught.value, LimitError) == code.endswith(".limit")


def test_a_subclass_is_not_what_a_codec_makes() -> None:
    class Text(str):
        __slots__ = ()

    with pytest.raises(MalformedError):
        Hop.from_tree(block_of(retain=Text("a")))


def test_schemes_of_principals_survive() -> None:
    quorum = Principal(bytes(range(32)), THRESHOLD)
    hop = Hop.from_tree(hop_of(Enter(1, InterestEntry(TypeKey(quorum, "News")))))

    assert isinstance(hop.body, Enter)
    assert hop.body.entry.tree.owner.scheme == THRESHOLD


def test_a_filter_knows_its_kinds_and_no_more() -> None:
    assert Filter() == Filter.from_tree({"where": "TRUE", "kinds": {}})
    assert filter_of(NEWS, "n > 3").kinds == ((N, Kind.INTEGER),)
    with pytest.raises(MalformedError):
        filter_of(NEWS, "n > 'a'")


def test_events_of_one_type_share_a_block_whatever_they_lack() -> None:
    rows: list[dict[str, Scalar]] = [{"n": 1}, {"s": "a"}, {}, {"n": 2, "s": "b"}]
    events = [Event.of(NEWS, row, id="1").to_transit() for row in rows]
    (block,) = blocks(OWNER, 1, 7, events)

    assert block.numbers == (7, 8, 9, 10)
    assert Publications.from_tree(block.to_tree()).events == tuple(events)


def test_events_of_several_types_make_blocks_in_order() -> None:
    events = [Event.of(of_type, {}).to_transit() for of_type in (NEWS, NEWS, SPORT, NEWS)]

    assert [(block.type, block.numbers) for block in blocks(OWNER, 1, 1, events)] == [
        (NEWS.key, (1, 2)),
        (SPORT.key, (3,)),
        (NEWS.key, (4,)),
    ]


def test_large_blocks_are_split_and_too_large_events_refused() -> None:
    limits = BrokerLimits(route_block_events=3, route_block_bytes=100)
    small, large = (Event.of(NEWS, {"s": "x" * size}, id="1").to_transit() for size in (20, 200))
    (block,) = blocks(OWNER, 1, 1, [small] * 10)
    parts = list(block.parts(limits))

    assert [number for part in parts for number in part.numbers] == list(range(1, 11))
    assert max(len(part.events) for part in parts) <= 3
    assert all(len(part._columns) <= 100 for part in parts)
    with pytest.raises(LimitError) as caught:
        list(Publications(OWNER, 1, (1, 2), (small, large)).parts(limits))
    assert caught.value.code == "route.event-size"


def test_what_goes_on_whole_is_not_written_again() -> None:
    (read,) = [Publications.from_tree(BLOCK.to_tree())]

    assert read.onward().to_tree()[6] is read.to_tree()[6]
    assert read.onward().hops == read.hops + 1


def test_values_do_not_show_in_a_repr() -> None:
    event = Event.of(NEWS, {"s": "a secret"}, id="1").to_transit()

    assert "secret" not in repr(Publications(OWNER, 1, (1,), (event,)))
