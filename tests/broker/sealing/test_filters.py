"""Filters on sealed types: what is sealed of them, who opens it, which covers which, and who gets what then."""

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.broker.blinded_kit import Row
from tests.broker.network import filter_of, make_type, principal
from tests.broker.sealed_kit import ALL, CAR, CARS, PLATE, SPEED, Line, ring
from tests.budget import examples
from tests.spoiled import flipped

from penstock.broker.limits import BrokerLimits
from penstock.broker.routing.filters import Covering
from penstock.broker.routing.messages import Enter, Hop, WithdrawEntry
from penstock.broker.routing.trees import Forest
from penstock.broker.sealing.blocks import SealedPublications
from penstock.broker.sealing.filters import KeyFilters
from penstock.broker.wire.entries import Advertisement, AnyFilter, Filter, SealedFilter, SubscriptionEntry, read_entry
from penstock.codec.blocks import FIRST, Padding, pad
from penstock.codec.wire import decode, encode
from penstock.crypto.filters import LEAST_BYTES, filter_key, seal_filter
from penstock.crypto.seal_keys import column_scope
from penstock.crypto.wrapping import Secret
from penstock.errors import PenstockError
from penstock.model.names import TypeKey
from penstock.model.types import Sealing

TRUCK = make_type("Truck", {}, CAR)
TYPE = str(CAR.key)
SECOND = Secret(b"2" * 32)


def filters(*scopes: str, level: Sealing = Sealing.ATTRIBUTE) -> KeyFilters:
    return KeyFilters(ring(*scopes), lambda _of_type: level, limits=BrokerLimits())


def seal(text: str, *scopes: str, level: Sealing = Sealing.ATTRIBUTE) -> AnyFilter:
    return filters(*scopes or ALL, level=level).seal(CAR.key, filter_of(CAR, text))


def sealed(text: str, *scopes: str, level: Sealing = Sealing.ATTRIBUTE) -> SealedFilter:
    found = seal(text, *scopes, level=level)
    assert isinstance(found, SealedFilter)
    return found


def seen(text: str, *scopes: str, level: Sealing = Sealing.ATTRIBUTE) -> dict[str, str]:
    """Return what a broker with some keys reads of a filter that was sealed by one with all of them."""
    opened = filters(*scopes or ALL).open(CAR.key, sealed(text, level=level))
    short = {PLATE: "plate", SPEED: "speed"}
    return {short.get(column, column): content.selector.rename(short).text for (column, _), content in opened.clauses}


# What is sealed.


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("plate = 'X' AND speed > 70", {"plate": "plate = 'X'", "speed": "speed > 70"}),
        ("speed > 70 AND speed < 90", {"speed": "speed > 70 AND speed < 90"}),
        ("speed > 70 AND (plate = 'X' OR speed = 99)", {"speed": "speed > 70"}),
        (
            "(speed = 1 OR speed = 2) AND plate LIKE 'A%'",
            {"plate": "plate LIKE 'A%'", "speed": "speed = 1 OR speed = 2"},
        ),
    ],
)
def test_what_is_asked_of_one_attribute_is_sealed_under_its_key(text: str, told: dict[str, str]) -> None:
    assert seen(text) == told


@pytest.mark.parametrize("text", ["TRUE", "plate = 'X' OR speed > 70", "plate IS NULL", "plate = 'X' OR plate IS NULL"])
def test_everything_else_stays_with_the_subscribers_broker(text: str) -> None:
    assert seal(text) == Filter()


def test_only_what_one_holds_the_key_of_is_sealed_and_opened() -> None:
    text = "plate = 'X' AND speed > 70"
    assert len(sealed(text, TYPE, SPEED).parts) == 1
    assert seal(text, TYPE) == Filter()
    assert seen(text, TYPE, SPEED) == {"speed": "speed > 70"}
    assert seen(text, TYPE) == {}


def test_at_event_level_a_filter_is_sealed_as_a_whole() -> None:
    text = "plate = 'X' OR speed > 70"
    assert seen(text, TYPE, level=Sealing.EVENT) == {FIRST: text}
    assert seen(text, PLATE, SPEED, level=Sealing.EVENT) == {}
    assert seal(text, level=Sealing.NONE) == filter_of(CAR, text)


def test_neither_constants_nor_attributes_nor_lengths_are_told() -> None:
    octets = encode(SubscriptionEntry(CAR.key, sealed("plate = 'SECRET' AND speed > 4711")).to_tree())
    for told in (b"SECRET", b"4711", b"plate", b"speed", b"string"):
        assert told not in bytes(octets)
    lengths = {len(sealed(text).parts[0]) for text in ("speed > 1", "speed BETWEEN 1000000 AND 2000000")}
    assert len(lengths) == 1


def test_what_would_be_too_much_stays() -> None:
    long = " OR ".join(f"plate = '{number:020}'" for number in range(100))
    assert seal(long) == Filter()
    assert len(sealed(f"({long}) AND speed > 1").parts) == 1


# What does not count.


def forged(scope: str, text: str) -> SealedFilter:
    """Return a filter that somebody with the key of a scope has made up."""
    content = pad(Padding.SIZES, encode(filter_of(CAR, text).to_tree()))
    return SealedFilter(seal_filter([(filter_key(_secret(scope), scope), content)]))


def _secret(scope: str) -> Secret:
    found = ring(scope).key(scope, 1)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("scope", "text"), [(SPEED, "plate = 'X'"), (SPEED, "plate = 'X' AND speed > 1"), (SPEED, "TRUE")]
)
def test_who_has_the_key_of_one_attribute_does_not_ask_about_another(scope: str, text: str) -> None:
    by = filters(*ALL)
    opened = by.open(CAR.key, forged(scope, text))
    assert opened.clauses == ()
    assert len(opened.closed) == by.unopened == 1


def test_junk_under_a_known_hint_counts_as_closed() -> None:
    (part,) = sealed("speed > 70").parts
    junk = SealedFilter((flipped(part),))
    not_padded = SealedFilter(seal_filter([(filter_key(_secret(SPEED), SPEED), b"x")]))
    by = filters(*ALL)
    for number, found in enumerate((junk, SealedFilter((part[:LEAST_BYTES],)), not_padded), 1):
        assert by.open(CAR.key, found).clauses == by.open(CAR.key, found).clauses == ()
        assert by.unopened == number, "once for each"
    # What no key is held for is nobody's fault.
    assert filters(PLATE).open(CAR.key, sealed("speed > 70")).closed
    blind = filters(PLATE)
    blind.open(CAR.key, junk)
    assert blind.unopened == 0


# What is read.


def test_a_sealed_subscription_reads_back() -> None:
    entry = SubscriptionEntry(CAR.key, sealed("plate = 'X' AND speed > 70"))
    assert read_entry(decode(encode(entry.to_tree()))) == entry
    assert "SECRET" not in repr(sealed("plate = 'SECRET'"))


def _wrong() -> Iterator[tuple[object, str]]:
    one, other = sealed("plate = 'X' AND speed > 70").parts
    yield [], "message.malformed"
    yield None, "message.malformed"
    yield [other, one], "message.malformed"
    yield [one, one], "message.malformed"
    yield [one, one[:20] + other[20:]], "message.malformed"
    yield [one, "text"], "message.malformed"
    yield [one[: LEAST_BYTES - 1]], "message.malformed"
    yield [one + bytes(BrokerLimits().filter_bytes)], "message.limit"
    yield [bytes([number]) * 64 for number in range(BrokerLimits().filter_parts + 1)], "message.limit"


@pytest.mark.parametrize(("parts", "code"), [*_wrong()])
def test_what_is_no_sealed_filter_is_refused(parts: object, code: str) -> None:
    tree: dict[str, Any] = SubscriptionEntry(CAR.key).to_tree()
    tree["filter"] = {"sealed": parts}
    with pytest.raises(PenstockError) as caught:
        read_entry(tree)
    assert caught.value.code == code


PARTS = st.lists(st.binary(min_size=LEAST_BYTES, max_size=80), min_size=1, max_size=3)


@given(st.lists(st.binary(max_size=70) | st.none() | st.integers(), max_size=4) | PARTS)
def test_any_octets_are_read_or_refused_and_open_nothing(parts: list[object]) -> None:
    tree: dict[str, Any] = SubscriptionEntry(CAR.key).to_tree()
    tree["filter"] = {"sealed": parts}
    try:
        entry = read_entry(tree)
    except PenstockError:
        return
    assert isinstance(entry, SubscriptionEntry)
    assert isinstance(entry.filter, SealedFilter)
    assert filters(*ALL).open(CAR.key, entry.filter).clauses == ()


# What covers what (7.3.1).


def forwarded(texts: Sequence[str], *scopes: str) -> list[str]:
    """Return which of some filters a broker with some keys sends on."""
    covering: Covering[int] = Covering(CAR.key, filters(*scopes), limits=BrokerLimits())
    by_filter = {seal(text): text for text in texts}
    for number, filter_ in enumerate(by_filter):
        covering.put(number, filter_)
    return sorted(by_filter[filter_] for filter_ in covering)


def test_without_keys_equal_filters_and_fewer_conjuncts_cover() -> None:
    assert forwarded(["speed > 70", "speed > 70 AND plate = 'X'"]) == ["speed > 70"]
    assert forwarded(["speed > 70", "speed > 80"]) == ["speed > 70", "speed > 80"]
    assert forwarded(["speed > 70", "plate = 'X'", "TRUE"]) == ["TRUE"]
    covering: Covering[str] = Covering(CAR.key, filters(), limits=BrokerLimits())
    assert len(covering.put("one", seal("speed > 70"))) == 1
    assert covering.put("equal", seal("speed > 70")) == []
    assert covering.remove("one") == []
    assert len(covering.remove("equal")) == 1


def test_with_keys_open_parts_are_compared_and_closed_ones_by_name() -> None:
    assert forwarded(["speed > 70", "speed > 80"], SPEED) == ["speed > 70"]
    texts = ["speed > 70 AND plate = 'X'", "speed > 80 AND plate = 'X'", "speed > 90 AND plate = 'Y'"]
    assert forwarded(texts, SPEED) == [texts[0], texts[2]]
    assert forwarded(texts, PLATE) == texts
    # Joined they would have to be sealed again, by somebody who has not asked for them.
    assert forwarded(["speed < 70", "speed >= 70"], SPEED) == ["speed < 70", "speed >= 70"]


def test_a_filter_of_another_epoch_covers_nothing() -> None:
    keys = ring(*ALL)
    found = KeyFilters(keys, lambda _of_type: Sealing.ATTRIBUTE, limits=BrokerLimits())
    old = found.seal(CAR.key, filter_of(CAR, "speed > 70"))
    keys.begin(SPEED, 2, SECOND)
    covering: Covering[str] = Covering(CAR.key, found, limits=BrokerLimits())
    covering.put("old", old)
    covering.put("new", found.seal(CAR.key, filter_of(CAR, "speed > 80")))
    assert len(list(covering)) == 2


# Who gets what.


def rows(line: Line, here: str, there: str) -> list[int]:
    """Return how many events went from one to the other, block by block."""
    hops = (Hop.from_tree(decode(octets)) for octets in line.wire.get((here, there), []))
    return [len(hop.body.numbers) for hop in hops if isinstance(hop.body, SealedPublications)]


@pytest.mark.parametrize("sealing", [Sealing.ATTRIBUTE, Sealing.EVENT])
def test_a_broker_with_keys_passes_on_what_is_wanted(sealing: Sealing) -> None:
    line = Line({"pub": ALL, "between": ALL, "sub": ALL}, sealing)
    line.advertise("pub")
    line.subscribe("between")
    line.subscribe("sub", "speed > 70")
    line.publish("pub", *CARS)
    line.publish("pub", ("SLOW", 10))
    assert line.ids("sub") == ["SECRET-2"]
    assert rows(line, "pub", "between") == [2, 1]
    assert rows(line, "between", "sub") == [1]


def test_the_publishers_broker_sends_nothing_that_nobody_wants() -> None:
    line = Line({"pub": ALL, "between": (), "sub": ALL})
    line.advertise("pub")
    line.subscribe("sub", "speed > 70")
    line.publish("pub", ("SLOW", 10))
    line.publish("pub", *CARS)
    assert rows(line, "pub", "between") == rows(line, "between", "sub") == [1]


def test_who_opens_some_parts_goes_by_these() -> None:
    line = Line({"pub": ALL, "between": (TYPE, SPEED), "sub": ALL})
    line.advertise("pub")
    line.subscribe("between")
    line.subscribe("sub", "speed > 70 AND plate = 'FAST'")
    line.publish("pub", ("FAST", 80), ("OTHER", 80), ("SLOW", 10))
    assert rows(line, "between", "sub") == [2]
    assert line.ids("sub") == ["FAST"]


def test_a_filter_that_came_as_it_is_says_nothing() -> None:
    """Or somebody without keys could choose filters, and see which events match (7.3)."""
    asked = Enter(99, SubscriptionEntry(CAR.key, filter_of(CAR, "plate = 'SECRET-1'")))

    def meddle(here: str, hop: Hop) -> Hop:
        body = hop.body
        chosen = here == "thief" and isinstance(body, Enter) and isinstance(body.entry, SubscriptionEntry)
        return Hop(hop.stamp, hop.number, asked) if chosen else hop

    line = Line({"pub": ALL, "thief": ()})
    line.meddle = meddle
    line.advertise("pub")
    line.subscribe("thief")
    line.publish("pub", *CARS)
    assert rows(line, "pub", "thief") == [2]


@pytest.mark.parametrize("first", ["pub", "sub"])
def test_filters_on_blinded_types_name_neither_type_nor_attribute(first: str) -> None:
    row = Row()
    row.advertise("pub")
    row.subscribe("sub", text="plate = 'B'")
    for name in dict.fromkeys((first, "pub", "sub")):
        row.give(name)
    row.publish("pub", "A", "B")
    sent = [Hop.from_tree(decode(octets)).body for _, there, octets in row.said if there == "between"]
    assert [len(body.numbers) for body in sent if isinstance(body, SealedPublications)] == [1]
    assert b"plate" not in row.over("sub", "between")


# When keys change.


def test_filters_are_sealed_anew_in_each_epoch_the_new_one_before_the_old_one_goes() -> None:
    line = Line({"pub": ALL, "between": (), "sub": ALL})
    line.advertise("pub")
    line.subscribe("sub", "speed > 70")
    line.wire.clear()
    for name in ("pub", "sub"):
        line.rings[name].begin(SPEED, 2, SECOND)
        line.run(name, line.routers[name].keys_changed())
    for wires in (("sub", "between"), ("between", "pub")):
        bodies = [Hop.from_tree(decode(octets)).body for octets in line.wire[wires]]
        assert [type(body) for body in bodies] == [Enter, WithdrawEntry]
    line.publish("pub", *CARS)
    assert rows(line, "pub", "between") == [1]
    assert line.ids("sub") == ["SECRET-2"]


def test_many_filters_are_sealed_anew_some_at_a_time_and_no_event_is_lost_meanwhile() -> None:
    line = Line({"pub": ALL, "between": (), "sub": ALL}, limits=BrokerLimits(filter_sealings=2))
    line.advertise("pub")
    sub = line.routers["sub"]
    for number, speed in enumerate((10, 30, 50, 90, 95)):
        line.run("sub", sub.subscribe(f"s{number}", CAR.key, filter_of(CAR, f"speed = {speed}")))
    for name in ("pub", "sub"):
        line.rings[name].begin(SPEED, 2, SECOND)
    line.run("pub", line.routers["pub"].keys_changed())
    line.wire.clear()
    line.run("sub", sub.keys_changed())
    assert entered(line) == 2
    # What was not sealed yet asks nothing of the new epoch: all goes that way, and clients get what they want.
    line.publish("pub", *CARS)
    assert rows(line, "pub", "between") == [2]
    assert line.ids("sub") == [car for car, _ in CARS]
    # One that has gone in the meantime, and a new key, do no harm.
    line.run("sub", sub.unsubscribe("s4"))
    while sub.resealing:
        line.run("sub", sub.reseal())
    assert entered(line) == 4
    line.wire.clear()
    line.publish("pub", *CARS, ("NOBODY", 77))
    assert rows(line, "pub", "between") == [2]


def entered(line: Line) -> int:
    """Return how many filters were sealed again and told."""
    bodies = [Hop.from_tree(decode(octets)).body for octets in line.wire["sub", "between"]]
    return sum(isinstance(body, Enter) for body in bodies)


def test_who_was_left_out_of_an_epoch_learns_nothing_of_it_by_asking() -> None:
    line = Line({"pub": ALL, "evicted": ALL})
    line.advertise("pub")
    line.subscribe("evicted", "speed > 70")
    line.publish("pub", *CARS)
    assert rows(line, "pub", "evicted") == [1]
    line.rings["pub"].begin(SPEED, 2, SECOND)
    line.run("pub", line.routers["pub"].keys_changed())
    line.publish("pub", *CARS)
    assert rows(line, "pub", "evicted") == [1, 2]


def test_a_newcomer_learns_nothing_of_earlier_epochs_by_asking() -> None:
    line = Line({"pub": ALL, "new": (TYPE, PLATE)})
    line.advertise("pub")
    line.rings["new"].begin(SPEED, 2, SECOND)
    line.subscribe("new", "speed > 70")
    line.publish("pub", *CARS)
    assert rows(line, "pub", "new") == [2]


def test_a_filter_that_can_be_sealed_no_longer_is_given_up_for_the_type() -> None:
    line = Line({"pub": ALL, "sub": ALL})
    line.advertise("pub")
    line.subscribe("sub", "speed > 70")
    line.rings["sub"].leave(SPEED)
    line.run("sub", line.routers["sub"].tick(1.0))
    line.publish("pub", *CARS)
    assert rows(line, "pub", "sub") == [2]
    assert line.ids("sub") == []


def test_who_gets_a_key_drops_what_it_carried_before() -> None:
    line = Line({"pub": ALL, "between": (), "sub": ALL})
    line.advertise("pub")
    line.subscribe("between")
    line.subscribe("sub", "speed > 70")
    line.publish("pub", *CARS)
    assert rows(line, "between", "sub") == [2]
    for scope in ALL:
        line.rings["between"].begin(scope, 1, _secret(scope))
    line.publish("pub", *CARS)
    assert rows(line, "between", "sub") == [2, 1]


def test_an_old_filter_says_nothing_beside_a_new_one() -> None:
    line = Line({"evicted": ALL, "pub": ALL, "sub": ALL})
    line.advertise("pub")
    line.subscribe("evicted", "speed > 70")
    line.subscribe("sub", "speed > 70")
    for name in ("pub", "sub"):
        line.rings[name].begin(SPEED, 2, SECOND)
        line.run(name, line.routers[name].keys_changed())
    line.publish("pub", *CARS)
    assert rows(line, "pub", "evicted") == [2]
    assert rows(line, "pub", "sub") == [1]


def test_equal_filters_that_came_before_and_after_a_key_are_one() -> None:
    line = Line({"pub": ALL, "between": (), "sub": ALL})
    line.advertise("pub")
    line.subscribe("sub", "speed > 70")
    for scope in ALL:
        line.rings["between"].begin(scope, 1, _secret(scope))
    router = line.routers["between"]
    line.run("between", router.subscribe("another", CAR.key, filter_of(CAR, "plate = 'ANOTHER'")))
    line.subscribe("between", "speed > 70")
    line.run("between", router.unsubscribe("s"))
    line.publish("pub", *CARS)
    assert line.ids("sub") == ["SECRET-2"]


def test_what_a_neighbour_could_not_open_is_not_taken_for_null() -> None:
    """It may be of equal rights, and its key still be on the way."""
    equal = {("slow", "between"), ("between", "slow")}
    line = Line({"pub": ALL, "slow": (TYPE, SPEED), "between": ALL, "sub": ALL}, equals=equal)
    line.advertise("pub")
    line.subscribe("between")
    line.subscribe("sub", "plate LIKE 'SECRET%'")
    line.publish("pub", *CARS)
    assert rows(line, "between", "sub") == [2]


# In trees of sub-types.


def in_tree_of_truck(levels: dict[TypeKey, Sealing], *, open_: bool) -> tuple[KeyFilters, AnyFilter]:
    """Subscribe to cars, hear of trucks, and return what the neighbours get to see there."""
    keys = ring(*ALL)
    for scope in (str(TRUCK.key), column_scope(TRUCK.key, SPEED)):
        keys.begin(scope, 1, SECOND)
    found = KeyFilters(keys, levels.__getitem__, limits=BrokerLimits())
    forest = Forest(lambda _key: None, found, limits=BrokerLimits())
    forest.subscribe("s", CAR.key, filter_of(CAR, "plate = 'SECRET' AND speed > 70"), open_=open_)
    forest.put(principal("neighbour"), 1, Advertisement(CAR.key, TRUCK.key))
    forest.changed()
    return found, forest.trees[TRUCK.key].subscriptions[None]["s"]


def test_a_sub_type_has_filters_under_its_own_keys() -> None:
    levels = {CAR.key: Sealing.ATTRIBUTE, TRUCK.key: Sealing.ATTRIBUTE}
    found, told = in_tree_of_truck(levels, open_=False)
    assert isinstance(told, SealedFilter)
    assert [clause.column for clause in found.open(TRUCK.key, told).clauses] == [(SPEED, 1)]
    assert found.open(CAR.key, told).clauses == ()


def test_what_is_secret_about_a_type_is_not_told_in_the_tree_of_one_that_is_not_sealed() -> None:
    _, told = in_tree_of_truck({CAR.key: Sealing.ATTRIBUTE, TRUCK.key: Sealing.NONE}, open_=False)
    assert told == Filter()
    _, told = in_tree_of_truck({CAR.key: Sealing.NONE, TRUCK.key: Sealing.NONE}, open_=True)
    assert told == filter_of(CAR, "plate = 'SECRET' AND speed > 70")


# What those without keys do.


@settings(max_examples=examples(20), deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["A-1", "B-2"]), st.integers(60, 80)), min_size=1, max_size=4))
def test_what_a_broker_without_keys_does_depends_on_no_value(cars: list[tuple[str, int]]) -> None:
    line = Line({"pub": ALL, "between": (), "sub": ALL})
    line.advertise("pub")
    line.subscribe("between")
    line.subscribe("sub", "speed > 70 AND plate LIKE 'A%'")
    line.publish("pub", *cars)
    assert rows(line, "pub", "between") == rows(line, "between", "sub") == [len(cars)]
