"""Sealed events between routers: who reads them, who carries them, and what goes over the wire."""

import secrets
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any, TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.broker.network import NUMBER, OWNER, TEXT, filter_of, make_type, principal

from penstock.broker.messages import Hop
from penstock.broker.routing import Cut, Deliver, Output, Router, Send, Settings, Unopened
from penstock.broker.sealed import SealedPublications, Vault
from penstock.broker.vault import KeyVault
from penstock.codec.wire import Encoded, decode, encode
from penstock.crypto.live_keys import LiveKeys
from penstock.crypto.wrapping import Secret
from penstock.errors import MalformedError, RefusedError
from penstock.model.events import Event, TransitEvent
from penstock.model.names import TypeKey
from penstock.model.principals import Principal
from penstock.model.types import EventType, Sealing

CAR = make_type("Car", {"plate": TEXT, "speed": NUMBER})
PLATE, SPEED = (str(attribute.id) for attribute in CAR.attributes)
NOW = datetime(2026, 5, 1, tzinfo=UTC)
#: of the type, of the plate, of the speed
KEYS = {scope: Secret(bytes([number]) * 32) for number, scope in enumerate((str(CAR.key), PLATE, SPEED), 1)}


def ring(*scopes: str) -> LiveKeys:
    held = LiveKeys()
    for scope in scopes:
        held.begin(scope, 1, KEYS[scope])
    return held


Meddle: TypeAlias = Callable[[str, Hop], Hop]


@dataclass
class Line:
    """Routers in a row, each with the scopes of its keys, and everything that went over the wires between them."""

    scopes: dict[str, tuple[str, ...]]
    sealing: Sealing = Sealing.ATTRIBUTE
    #: pairs of neighbours that read as much as each other
    equals: set[tuple[str, str]] = field(default_factory=set)
    wire: dict[tuple[str, str], list[Encoded]] = field(default_factory=dict)
    delivered: dict[str, list[TransitEvent]] = field(default_factory=dict)
    unopened: list[tuple[str, Unopened]] = field(default_factory=list)
    cuts: list[Cut] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.names = {principal(name): name for name in self.scopes}
        self.rings = {name: ring(*scopes) for name, scopes in self.scopes.items()}
        self.routers = {name: Router(principal(name), 1, Settings(vault=self.vault(name))) for name in self.scopes}
        #: what changes words on their way from one
        self.meddle: Meddle = lambda _here, hop: hop
        order = list(self.scopes)
        for one, other in pairwise(order):
            begun = [(one, output) for output in self.routers[one].link_up(principal(other), 0.0)]
            begun += [(other, output) for output in self.routers[other].link_up(principal(one), 0.0)]
            self._run(begun)

    def vault(self, name: str) -> Vault:
        def equal(peer: Principal, _of_type: TypeKey) -> bool:
            return (name, self.names[peer]) in self.equals

        return KeyVault(
            self.rings[name],
            principal(name),
            lambda key: self.sealing if key.owner == OWNER else Sealing.NONE,
            equal,
            clock=lambda: NOW,
            random=secrets.token_bytes,
        )

    def run(self, here: str, outputs: list[Output]) -> None:
        self._run([(here, output) for output in outputs])

    def _run(self, pending: list[tuple[str, Output]]) -> None:
        while pending:
            here, output = pending.pop(0)
            match output:
                case Send(peer, hop):
                    there = self.names[peer]
                    octets = encode(hop.to_tree())
                    self.wire.setdefault((here, there), []).append(octets)
                    heard = self.meddle(here, Hop.from_tree(decode(octets)))
                    pending += [(there, one) for one in self.routers[there].receive(principal(here), heard, 0.0)]
                case Deliver(deliveries):
                    self.delivered.setdefault(here, []).extend(event for _, event in deliveries)
                case Unopened():
                    self.unopened.append((here, output))
                case Cut():
                    self.cuts.append(output)

    def subscribe(self, name: str, text: str = "TRUE", of_type: EventType = CAR) -> None:
        self.run(name, self.routers[name].subscribe("s", of_type.key, filter_of(of_type, text)))

    def advertise(self, name: str, text: str = "TRUE") -> None:
        self.run(name, self.routers[name].advertise("a", CAR.key, CAR.ancestors, filter_of(CAR, text)))

    def publish(self, name: str, *cars: tuple[str, int]) -> None:
        events = [
            Event.of(CAR, {"plate": plate, "speed": speed}, id=plate, time=NOW).to_transit() for plate, speed in cars
        ]
        self.run(name, self.routers[name].publish("a", events))

    def over(self, here: str, there: str) -> bytes:
        return b"".join(self.wire[here, there])


ALL = tuple(KEYS)
CARS = [("SECRET-1", 30), ("SECRET-2", 90)]


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
    line = Line({"pub": ALL, "same": ALL, "sub": (str(CAR.key), SPEED)}, equals={("pub", "same")})
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
    # Where it is no block any more, whoever handed it on is cut by the node.
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
        (5, [3, 2]),
        (5, [1]),
        (6, [0, 7]),
        (7, b"x"),
        (8, [b"", b""]),
    ]
    for place, wrong in wrongs:
        changed = [*tree]
        changed[place] = wrong
        with pytest.raises(MalformedError):
            SealedPublications.from_tree(changed)
