"""Routers with blinded types: what neighbours hear, which trees clients stand in, and labels that change."""

import hashlib
import random
from dataclasses import replace
from datetime import timedelta

import pytest
from tests.broker.blinded_kit import (
    CAR,
    CAR_MADE,
    LORRY,
    NOW,
    OVERLAP,
    OWNER,
    SHARED,
    Row,
    label_key,
    version,
)
from tests.broker.network import principal

from penstock.broker.routing.messages import Enter, Hop
from penstock.broker.sealing.blocks import SealedPublications
from penstock.broker.wire.entries import Advertisement
from penstock.broker.wire.publications import Publications
from penstock.codec.blocks import LABEL_BYTES, Blinded, read_header, reroute
from penstock.codec.wire import decode, encode
from penstock.crypto.blinding import blind, blinded_key, is_blinded, label
from penstock.crypto.wrapping import Secret
from penstock.errors import MalformedError, RefusedError
from penstock.model.events import Event, TransitEvent


def met(*names: str) -> Row:
    """Return a row whose ends have the key of labels, and a publisher and a reader there."""
    row = Row(names or ("pub", "between", "sub"))
    row.advertise("pub")
    row.subscribe("sub")
    for name in ("pub", "sub"):
        row.give(name)
    return row


def heard(row: Row) -> list[SealedPublications]:
    """Return the sealed blocks that the reader's broker was given."""
    bodies = [Hop.from_tree(decode(octets)).body for _, there, octets in row.said if there == "sub"]
    return [body for body in bodies if isinstance(body, SealedPublications)]


def route_of(block: SealedPublications) -> Blinded:
    route = read_header(block.block).route
    assert isinstance(route, Blinded)
    return route


def test_neighbours_hear_labels_and_clients_hear_names() -> None:
    row = met()
    row.publish("pub", "AE05 XYZ", "LN06 ABC")
    assert row.delivered["sub"] == [(("s",), "AE05 XYZ", CAR.key), (("s",), "LN06 ABC", CAR.key)]
    assert all(is_blinded(tree) for tree in row.routers["between"]._forest.trees)
    for wires in (("pub", "between"), ("between", "sub")):
        said = row.over(*wires)
        assert b"sealed" in said
        for word in (b"Numberplate", b"AE05", OWNER.principal.digest, str(OWNER.principal).encode()):
            assert word not in said


def test_nobody_hears_of_a_type_before_there_is_a_label() -> None:
    row = Row()
    row.advertise("pub")
    row.subscribe("sub")
    assert not any(b"enter" in octets for _, _, octets in row.said)
    with pytest.raises(RefusedError) as caught:
        row.publish("pub", "1")
    assert caught.value.code == "seal.unknown-label"


def test_who_wants_a_type_has_its_sub_types_and_nobody_hears_what_extends_what() -> None:
    row = met()
    row.advertise("pub", LORRY, key="lorries")
    for name in ("pub", "sub"):
        row.give(name, of_type=LORRY.key)
    row.publish("pub", "car")
    row.publish("pub", "lorry", of_type=LORRY, key="lorries")
    assert row.delivered["sub"] == [(("s",), "car", CAR.key), (("s",), "lorry", LORRY.key)]
    entries = [Hop.from_tree(decode(octets)).body for _, _, octets in row.said if b"enter" in octets]
    offered = [body.entry for body in entries if isinstance(body, Enter) and isinstance(body.entry, Advertisement)]
    assert offered
    assert all(entry.tree == entry.type for entry in offered)
    routes = map(route_of, heard(row))
    # The labels of an ancestor under the key of the sub-type are not those of its own tree.
    assert len({one for route in routes for one in (route.type, *route.ancestors)}) == 3


def test_filters_are_asked_at_the_readers_broker() -> None:
    row = met()
    row.subscribe("sub", text="plate = 'B'", key="t")
    row.publish("pub", "A", "B")
    assert sorted(row.delivered["sub"]) == [(("s",), "A", CAR.key), (("s", "t"), "B", CAR.key)]


@pytest.mark.parametrize("seed", range(10))
def test_labels_change_at_each_broker_in_its_own_time_and_each_event_comes_once(seed: int) -> None:
    """Whoever hears of a new key within half of the overlap loses nothing, whenever clocks tick."""
    chance = random.Random(seed)  # noqa: S311  # the same each time
    row = met("pub", "one", "other", "sub")
    begun = NOW + timedelta(seconds=50)
    hears = {name: begun + timedelta(seconds=chance.uniform(0, OVERLAP / 2 - 1)) for name in ("pub", "sub")}
    published = 0
    while row.now < begun + timedelta(seconds=2 * OVERLAP):
        row.pass_time(chance.uniform(0, 10), *chance.sample(("pub", "sub"), chance.randrange(1, 3)))
        for name, when in list(hears.items()):
            if row.now >= when:
                row.give(name, 2, begun)
                del hears[name]
        if not hears or row.now < begun + timedelta(seconds=OVERLAP / 2):
            row.publish("pub", str(published))
            published += 1
    assert row.ids("sub") == [str(number) for number in range(published)]
    assert row.labels["pub"].trees(CAR.key) == row.labels["sub"].trees(CAR.key)
    assert row.labels["pub"].in_use(CAR.key) == blinded_key(label(label_key(2), str(CAR.key)))
    for name in row.names:
        assert len(row.routers[name]._forest.trees) == 1, "the old tree is gone"


def test_a_publisher_is_told_once_whether_anybody_wants_it_under_any_label() -> None:
    row = met()
    assert [told for told in row.wanted if told[0] == "pub"][-1] == ("pub", "a", True)
    told = len(row.wanted)
    begun = NOW + timedelta(seconds=1)
    for name in ("pub", "sub"):
        row.give(name, 2, begun)
    row.pass_time(2 * OVERLAP)
    assert len(row.wanted) == told, "somebody wanted it all the time"
    row.run("sub", row.routers["sub"].unsubscribe("s"))
    assert row.wanted[told:] == [("pub", "a", False)]


def test_what_is_taken_back_is_gone_under_all_labels() -> None:
    row = met()
    for name in ("pub", "sub"):
        row.give(name, 2, NOW)
    assert len(row.routers["between"]._forest.trees) == 2
    row.run("sub", row.routers["sub"].unsubscribe("s"))
    row.run("pub", row.routers["pub"].unadvertise("a"))
    for name in row.names:
        assert not row.routers[name]._forest.trees
    for take_back in (row.routers["pub"].unadvertise, row.routers["pub"].unsubscribe):
        with pytest.raises(RefusedError) as caught:
            take_back("a")
        assert caught.value.code == "route.unknown"


def test_keys_of_clients_are_taken_once_also_where_no_label_is_there() -> None:
    row = Row()
    row.advertise("pub")
    row.subscribe("pub")
    for again in (row.advertise, row.subscribe):
        with pytest.raises(RefusedError) as caught:
            again("pub")
        assert caught.value.code == "route.key"


def test_an_owner_that_begins_to_blind_a_type_hides_it_from_then_on() -> None:
    plain = version(CAR_MADE, blinded=False)
    row = Row(types=(plain,))
    row.advertise("pub")
    row.subscribe("sub")
    row.publish("pub", "1")
    before = len(row.said)
    hidden = version(CAR_MADE, name=replace(CAR_MADE.name, version="1"), previous="0")
    for name in ("pub", "sub"):
        row.libraries[name].add(hidden, NOW)
        row.give(name)
    row.publish("pub", "2")
    assert row.ids("sub") == ["1", "2"]
    assert not row.routers["between"]._forest.trees.keys() & {CAR.key}
    later = b"".join(octets for _, _, octets in row.said[before:])
    assert b"Numberplate" not in later


def test_a_type_that_is_blinded_is_not_named_even_once_more() -> None:
    row = Row(types=(version(CAR_MADE, blinded=False),))
    row.advertise("pub")
    row.subscribe("sub")
    row.libraries["pub"].add(version(CAR_MADE, name=replace(CAR_MADE.name, version="1"), previous="0"), NOW)
    row.labels["pub"].put(CAR.key, 1, label_key(1), NOW)
    before = len(row.said)
    row.publish("pub", "1")
    assert b"enter" in b"".join(octets for _, _, octets in row.said[before:])
    assert not any(b"Numberplate" in octets for _, _, octets in row.said[before:])
    assert CAR.key not in row.routers["pub"]._forest.trees


def tell(row: Row, body: Publications) -> None:
    """Let the broker between say something to the reader's."""
    hop = row.routers["between"]._neighbours[principal("sub")].hops.say(body)
    heard = Hop.from_tree(decode(bytes(encode(hop.to_tree()))))
    row.run("sub", row.routers["sub"].receive(principal("between"), heard, 0.0))


def test_events_that_are_not_sealed_do_not_go_under_a_label() -> None:
    row = met()
    tree = row.labels["pub"].in_use(CAR.key)
    forged = Publications(principal("between"), 1, (1,), (TransitEvent(tree, (), {}, "forged", NOW),))
    tell(row, forged)
    assert row.ids("sub") == []
    assert [unopened.reason.code for _, unopened in row.unopened] == ["seal.missing"]


def test_a_block_that_comes_again_under_another_label_is_a_copy() -> None:
    row = met()
    for name in ("pub", "sub"):
        row.give(name, 2, NOW)
    row.publish("pub", "1")
    block = heard(row)[-1]
    names = row.labels["sub"].resolve(route_of(block))
    tell(row, replace(block, block=reroute(block.block, blind(label_key(2), names))))
    assert row.ids("sub") == ["1"]
    assert [unopened.reason.code for _, unopened in row.unopened] == ["seal.replayed"]


def test_plaintext_beside_a_blinded_block_is_no_message() -> None:
    row = met("pub", "sub")
    row.publish("pub", "1")
    assert row.ids("sub") == ["1"]
    assert not any(block.beside for block in heard(row)), "though both read as much"
    (block,) = heard(row)
    tree = block.to_tree()
    tree[-1] = [b"", b""]
    with pytest.raises(MalformedError) as caught:
        SealedPublications.from_tree(tree)
    assert caught.value.code == "message.malformed"


def test_what_cannot_be_named_yet_waits_for_the_type() -> None:
    row = met()
    colour = replace(CAR_MADE.attributes[0], name="colour", uid="9")
    wider = version(CAR_MADE, name=replace(CAR_MADE.name, version="1"), attributes=(*CAR_MADE.attributes, colour))
    event_type = row.libraries["pub"].add(wider, NOW).event_type
    scope = str(event_type.by_name["colour"].id)
    for name in ("pub", "sub"):
        row.rings[name].begin(scope, 1, Secret(bytes(32)))
    events = [Event.of(event_type, {"plate": "1", "colour": "red"}, id="1", time=NOW).to_transit()]
    row.run("pub", row.routers["pub"].publish("a", events))
    assert row.ids("sub") == []
    row.libraries["sub"].add(wider, NOW)
    row.run("sub", row.routers["sub"].keys_changed())
    assert row.ids("sub") == ["1"]


def test_no_guess_gives_a_label() -> None:
    """Whoever has other keys, and all names of the world, comes to none of the labels."""
    row = met()
    row.publish("pub", "1")
    route = route_of(heard(row)[-1])
    found = {route.type, *route.attributes}
    guesses = [str(CAR.key), CAR.name.name, str(CAR.name), *(str(attribute.id) for attribute in CAR.attributes)]
    keys = [Secret(bytes(32)), label_key(2), label_key(1, LORRY.key), *SHARED.values()]
    keys += [Secret(hashlib.sha256(guess.encode()).digest()) for guess in guesses]
    tried = {label(key, guess) for key in keys for guess in guesses}
    tried |= {hashlib.sha256(guess.encode()).digest()[:LABEL_BYTES] for guess in guesses}
    assert not tried & found
    assert label(label_key(1), str(CAR.key)) == route.type, "with the key it is found immediately"
