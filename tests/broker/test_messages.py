"""Messages come back from their trees as they were, and nothing else is read as one."""

import random
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.broker.network import NUMBER, OWNER, TEXT, filter_of, make_type, principal
from tests.budget import examples

from penstock.broker.messages import (
    Advertisement,
    Again,
    Announcement,
    Body,
    Enter,
    Filter,
    Greeting,
    Hop,
    Interest,
    Publication,
    Pulse,
    Stamp,
    Subscription,
    Tree,
    Withdraw,
)
from penstock.errors import LimitError, MalformedError
from penstock.model.events import Event
from penstock.model.limits import DEFAULT_LIMITS
from penstock.model.names import TypeKey
from penstock.model.principals import THRESHOLD, Principal
from penstock.model.values import INTEGER_MAX, AttributeSpec, Kind

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
    st.builds(Interest, KEYS) | st.builds(Advertisement, KEYS, KEYS, FILTERS) | st.builds(Subscription, KEYS, FILTERS)
)
MOMENTS = st.none() | st.datetimes(timezones=st.just(UTC))
EVENTS = st.builds(
    lambda n, s, f, b, t, name, time: Event.of(
        SPORT, {"n": n, "s": s, "f": f, "b": b, "t": t}, id=name, time=time
    ).to_transit(),
    st.none() | st.integers(-(2**63), 2**63 - 1),
    st.none() | st.text(max_size=9),
    st.none() | st.floats(),
    st.none() | st.booleans(),
    MOMENTS,
    st.text(max_size=9),
    MOMENTS,
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
    | st.builds(Withdraw, COUNTS)
    | st.builds(Publication, PRINCIPALS, COUNTS, COUNTS, COUNTS, EVENTS)
)
HOPS = st.builds(Hop, st.builds(Stamp, COUNTS, COUNTS), COUNTS, BODIES)


def hop_of(body: Body) -> dict[str, Tree]:
    return Hop(Stamp(1, 1), 1, body).to_tree()


def body_of(body: Body, **changes: object) -> dict[str, object]:
    return {**hop_of(body), "body": {**body.to_tree(), **changes}}


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


@given(PLAIN)
def test_no_other_tree_is_a_message(tree: object) -> None:
    with pytest.raises(MalformedError) as caught:
        Hop.from_tree(tree)
    assert caught.value.code == "message.malformed"


EVENT = Event.of(SPORT, {"n": 1}, id="1").to_transit()
PUBLICATION = Publication(OWNER, 1, 1, 0, EVENT)
ANNOUNCEMENT = Announcement(OWNER, 1, 1, tuple(sorted([principal("a"), principal("b")])))
SUBSCRIPTION = Enter(1, Subscription(NEWS.key, filter_of(NEWS, "n > 3")))
N = str(NEWS.attribute("n").id)


def entry(**changes: object) -> dict[str, object]:
    tree = SUBSCRIPTION.entry.to_tree()
    return body_of(SUBSCRIPTION, entry={**tree, **changes})


@pytest.mark.parametrize(
    ("tree", "code"),
    [
        ({**hop_of(Pulse()), "number": True}, "message.malformed"),
        ({**hop_of(Pulse()), "number": -1}, "message.malformed"),
        ({**hop_of(Pulse()), "number": 2**63}, "message.malformed"),
        ({**hop_of(Pulse()), "more": 1}, "message.malformed"),
        (body_of(Pulse(), kind="impulse"), "message.malformed"),
        (body_of(Pulse(), more=None), "message.malformed"),
        (body_of(Withdraw(1), handle=1.0), "message.malformed"),
        (body_of(ANNOUNCEMENT, broker=bytes(32)), "message.malformed"),
        (body_of(ANNOUNCEMENT, broker=b"\x02" + bytes(32)), "message.malformed"),
        (body_of(ANNOUNCEMENT, links=[b"\x00" + bytes(32)] * 2), "message.malformed"),
        (body_of(ANNOUNCEMENT, links=[b"\x00" + OWNER.digest]), "message.malformed"),
        (body_of(ANNOUNCEMENT, links=[b""] * (DEFAULT_LIMITS.network_links + 1)), "message.limit"),
        (body_of(ANNOUNCEMENT, proof=bytes(DEFAULT_LIMITS.network_proof + 1)), "message.limit"),
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
        (body_of(PUBLICATION, values={N: None}), "message.malformed"),
        (body_of(PUBLICATION, values={N: b"bytes"}), "message.malformed"),
        (body_of(PUBLICATION, values={N: 2**63}), "value.range"),
        (body_of(PUBLICATION, values={N: "\ud800"}), "value.text"),
        (body_of(PUBLICATION, values={"n": 1}), "name.malformed"),
        (body_of(PUBLICATION, values={f"{N}{i}": 1 for i in range(1025)}), "message.limit"),
        (body_of(PUBLICATION, ancestors=[[b"\x00" + OWNER.digest, "News.Sport"]]), "message.malformed"),
        (body_of(PUBLICATION, ancestors=[[b"\x00" + OWNER.digest, "a"]] * 33), "message.limit"),
        (body_of(PUBLICATION, id="\ud800"), "value.text"),
        (body_of(PUBLICATION, time="now"), "message.malformed"),
        (body_of(PUBLICATION, time=datetime(2026, 1, 1)), "value.zone"),  # noqa: DTZ001  # that is the fault
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
        Hop.from_tree(body_of(PUBLICATION, values={N: Text("a")}))


def test_schemes_of_principals_survive() -> None:
    quorum = Principal(bytes(range(32)), THRESHOLD)
    hop = Hop.from_tree(hop_of(Enter(1, Interest(TypeKey(quorum, "News")))))

    assert isinstance(hop.body, Enter)
    assert hop.body.entry.tree.owner.scheme == THRESHOLD


def test_a_filter_knows_its_kinds_and_no_more() -> None:
    assert Filter() == Filter.from_tree({"where": "TRUE", "kinds": {}})
    assert filter_of(NEWS, "n > 3").kinds == ((N, Kind.INTEGER),)
    with pytest.raises(MalformedError):
        filter_of(NEWS, "n > 'a'")


def test_values_do_not_show_in_a_repr() -> None:
    event = Event.of(NEWS, {"s": "a secret"}, id="1").to_transit()

    assert "secret" not in repr(Publication(OWNER, 1, 1, 0, event))
