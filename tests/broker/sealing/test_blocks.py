"""Sealed events between routers: who reads them, who carries them, and what goes over the wire."""

import secrets
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.broker.network import principal
from tests.broker.sealed_kit import ALL, CAR, CARS, KEYS, NOW, PLATE, SPEED, Line

from penstock.broker.limits import BrokerLimits
from penstock.broker.routing.messages import Hop
from penstock.broker.sealing.blocks import SealedPublications
from penstock.codec.blocks import Block
from penstock.codec.wire import decode, encode
from penstock.crypto.sealer import Sealer
from penstock.errors import MalformedError, RefusedError
from penstock.model.events import Event
from penstock.model.types import Sealing


@pytest.mark.parametrize("sealing", [Sealing.ATTRIBUTE, Sealing.EVENT])
def test_a_broker_without_keys_carries_what_it_cannot_read(sealing: Sealing) -> None:
    line = Line({"pub": ALL, "between": (), "sub": ALL}, sealing)
    line.advertise("pub")
    line.subscribe("sub")
    line.publish("pub", *CARS)
    assert [dict(event.values) for event in line.delivered["sub"]] == [
        {PLATE: plate, SPEED: speed} for plate, speed in CARS
    ]
    assert [(event.id, event.time) for event in line.delivered["sub"]] == [(plate, NOW) for plate, _ in CARS]
    for wires in (("pub", "between"), ("between", "sub")):
        assert b"SECRET" not in line.over(*wires)


def test_a_broker_with_some_keys_reads_what_it_has_keys_for() -> None:
    line = Line({"pub": ALL, "sub": (str(CAR.key), SPEED)})
    line.advertise("pub")
    line.subscribe("sub")
    line.publish("pub", *CARS)
    assert [dict(event.values) for event in line.delivered["sub"]] == [{SPEED: speed} for _, speed in CARS]


def test_filters_are_asked_where_the_events_can_be_read_and_are_told_to_nobody() -> None:
    line = Line({"pub": ALL, "between": (), "sub": ALL})
    line.advertise("pub", "plate LIKE 'SECRET%'")
    line.subscribe("sub", "plate = 'SECRET-2' AND speed > 77")
    line.publish("pub", *CARS)
    assert [event.id for event in line.delivered["sub"]] == ["SECRET-2"]
    told = b"".join(octets for wires in line.wire.values() for octets in wires)
    assert b"SECRET" not in told
    assert b"77" not in told


def test_an_event_outside_of_what_was_advertised_is_refused_before_it_is_sealed() -> None:
    line = Line({"pub": ALL, "sub": ALL})
    line.advertise("pub", "speed > 50")
    with pytest.raises(RefusedError) as caught:
        line.publish("pub", ("SECRET-1", 30))
    assert caught.value.code == "route.outside"


def test_plaintext_goes_beside_to_who_reads_as_much_and_to_nobody_else() -> None:
    line = Line({"pub": ALL, "same": ALL, "sub": (str(CAR.key), SPEED)}, equals={("pub", "same"), ("same", "pub")})
    line.advertise("pub")
    line.subscribe("sub")
    line.subscribe("same")
    line.publish("pub", *CARS)
    assert b"SECRET" in line.over("pub", "same")
    assert b"SECRET" not in line.over("same", "sub")
    assert [dict(event.values) for event in line.delivered["sub"]] == [{SPEED: speed} for _, speed in CARS]
    assert [event.values[PLATE] for event in line.delivered["same"]] == ["SECRET-1", "SECRET-2"]


def test_what_has_no_key_yet_waits_for_it() -> None:
    line = Line({"pub": ALL, "sub": ()})
    line.advertise("pub")
    line.subscribe("sub", "speed > 50")
    line.publish("pub", *CARS)
    assert "sub" not in line.delivered
    for scope, key in KEYS.items():
        line.rings["sub"].begin(scope, 1, key)
    line.run("sub", line.routers["sub"].keys_changed())
    assert [event.id for event in line.delivered["sub"]] == ["SECRET-2"]
    line.run("sub", line.routers["sub"].keys_changed())
    assert len(line.delivered["sub"]) == 1


def test_without_keys_nothing_is_published() -> None:
    line = Line({"pub": (), "sub": ALL})
    line.advertise("pub")
    with pytest.raises(RefusedError) as caught:
        line.publish("pub", *CARS)
    assert caught.value.code == "seal.unknown-key"


@given(st.data())
def test_a_block_that_was_changed_on_its_way_reaches_nobody_and_harms_nobody(data: st.DataObject) -> None:
    line = Line({"pub": ALL, "between": (), "sub": ALL})
    line.advertise("pub")
    line.subscribe("sub")

    def meddle(here: str, hop: Hop) -> Hop:
        body = hop.body
        if here != "between" or not isinstance(body, SealedPublications):
            return hop
        tree = hop.to_tree()
        octets = bytearray(body.block)
        octets[data.draw(st.integers(0, len(octets) - 1))] ^= 1 << data.draw(st.integers(0, 7))
        tree[4][7] = bytes(octets)  # type: ignore[index]  # the block
        return Hop.from_tree(tree)

    line.meddle = meddle
    # If it is not a block any more, whoever handed it on is cut by the node.
    with suppress(MalformedError):
        line.publish("pub", *CARS)
    assert not line.delivered.get("sub")
    assert not line.cuts


def test_a_sealed_body_reads_back_and_what_is_none_does_not() -> None:
    line = Line({"pub": ALL, "sub": ALL}, equals={("pub", "sub")})
    line.advertise("pub")
    line.subscribe("sub")
    line.publish("pub", *CARS)
    hops = [Hop.from_tree(decode(octets)) for octets in line.wire["pub", "sub"]]
    (hop,) = [hop for hop in hops if isinstance(hop.body, SealedPublications)]
    assert Hop.from_tree(decode(encode(hop.to_tree()))) == hop
    tree = hop.to_tree()[4]
    assert isinstance(tree, list)
    wrongs: list[tuple[int, Any]] = [
        (0, b""),
        (1, -1),
        (5, []),
        (5, [3, 1, 2, 1]),
        (5, [1, 1]),
        (6, [0, 7]),
        (6, [1, 2]),
        (7, b"x"),
        (8, [b"", b""]),
    ]
    for place, wrong in wrongs:
        changed = [*tree]
        changed[place] = wrong
        with pytest.raises(MalformedError):
            SealedPublications.from_tree(changed)
    # What is sealed elsewhere, for logs, is too much for brokers.
    many = [Event.of(CAR, {}, id="", time=NOW).to_transit()] * (BrokerLimits().route_block_events + 1)
    for rows, code in ((many[1:], None), (many, "message.limit")):
        block = Sealer(line.rings["pub"], principal("pub"), secrets.token_bytes).seal(Block.of(rows), NOW)
        assert _code([*tree[:7], block, []]) == code


def test_plaintext_of_some_events_stands_beside_under_all_names_of_their_block() -> None:
    line = Line({"pub": ALL})
    rows: list[dict[str, Any]] = [{"plate": "SECRET-1", "speed": 30}, {"speed": 80}, {"plate": "SECRET-3"}]
    events = tuple(Event.of(CAR, values, id=str(len(values)), time=NOW).to_transit() for values in rows)
    block = Sealer(line.rings["pub"], principal("pub"), secrets.token_bytes).seal(Block.of(events), NOW)
    whole = SealedPublications(principal("pub"), 1, (1, 2, 3), events, block=block, places=(0, 1, 2), closed=False)
    for places in ([0, 1, 2], [0], [1], [1, 2]):
        part = whole.pick(places).onward(beside=True)
        assert SealedPublications.from_tree(part.to_tree()).believed().events == part.events


def _code(tree: list[Any]) -> str | None:
    try:
        SealedPublications.from_tree(tree)
    except MalformedError as error:
        return error.code
    return None
