"""Routers in a row that seal, and somebody between them who meddles."""

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from itertools import pairwise
from typing import TypeAlias

from tests.broker.network import NUMBER, OWNER, TEXT, filter_of, make_type, principal

from penstock.broker.limits import BrokerLimits
from penstock.broker.routing.messages import Hop
from penstock.broker.routing.outputs import Cut, Deliver, Deliveries, Output, RouterSettings, Send, Unopened
from penstock.broker.routing.router import Router
from penstock.broker.sealing.blocks import Vault
from penstock.broker.sealing.vault import KeyVault, Signatures
from penstock.codec.wire import Encoded, decode, encode
from penstock.crypto import SigningKey
from penstock.crypto.seal_keys import LiveKeys
from penstock.crypto.wrapping import Secret
from penstock.model.events import Event, TransitEvent
from penstock.model.names import TypeKey
from penstock.model.principals import Principal
from penstock.model.types import EventType, Protection, Sealing

DEFAULTS = BrokerLimits()

CAR = make_type("Car", {"plate": TEXT, "speed": NUMBER})
PLATE, SPEED = (str(attribute.id) for attribute in CAR.attributes)
NOW = datetime(2026, 5, 1, tzinfo=UTC)
SKEW = timedelta(seconds=1)
#: of the type, of the plate, of the speed
KEYS = {scope: Secret(bytes([number]) * 32) for number, scope in enumerate((str(CAR.key), PLATE, SPEED), 1)}


def ring(*scopes: str) -> LiveKeys:
    held = LiveKeys()
    for scope in scopes:
        held.begin(scope, 1, KEYS[scope])
    return held


def signer(name: str) -> SigningKey:
    return SigningKey(sha256(name.encode()).digest())


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
    now: datetime = NOW
    limits: BrokerLimits = DEFAULTS
    #: whether events have to be signed, and who may
    signed: bool = False
    publishers: tuple[str, ...] = ("pub",)

    def __post_init__(self) -> None:
        self.names = {principal(name): name for name in self.scopes}
        self.rings = {name: ring(*scopes) for name, scopes in self.scopes.items()}
        self.routers = {
            name: Router(principal(name), 1, RouterSettings(vault=self.vault(name), limits=self.limits))
            for name in self.scopes
        }
        #: what changes words on their way from one
        self.meddle: Meddle = lambda _here, hop: hop
        order = list(self.scopes)
        for one, other in pairwise(order):
            begun = [(one, output) for output in self.routers[one].link_up(principal(other), 0.0)]
            begun += [(other, output) for output in self.routers[other].link_up(principal(one), 0.0)]
            self._run(begun)

    def settings(self, name: str) -> RouterSettings:
        return RouterSettings(vault=self.vault(name), limits=self.limits)

    def vault(self, name: str) -> Vault:
        def equal(peer: Principal, _of_type: TypeKey) -> bool:
            return (name, self.names[peer]) in self.equals

        def may_sign(broker: Principal, _of_type: TypeKey, attributes: tuple[str, ...]) -> bool:
            return any(broker == signer(one).principal and {*attributes} <= {*ALL} for one in self.publishers)

        began = self.now
        return KeyVault(
            self.rings[name],
            signer(name).principal,
            lambda key: Protection(self.sealing if key.owner == OWNER else Sealing.NONE, self.signed),
            equal,
            clock=lambda: self.now,
            began=lambda: began,
            random=secrets.token_bytes,
            signatures=Signatures(signer(name), may_sign),
            skew=SKEW,
            limits=self.limits,
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
                    self.deliver(here, deliveries)
                case Unopened():
                    self.unopened.append((here, output))
                case Cut():
                    self.cuts.append(output)

    def deliver(self, here: str, deliveries: Deliveries) -> None:
        self.delivered.setdefault(here, []).extend(event for _, event in deliveries)

    def subscribe(self, name: str, text: str = "TRUE", of_type: EventType = CAR) -> None:
        self.run(name, self.routers[name].subscribe("s", of_type.key, filter_of(of_type, text)))

    def advertise(self, name: str, text: str = "TRUE") -> None:
        self.run(name, self.routers[name].advertise("a", CAR.key, CAR.ancestors, filter_of(CAR, text)))

    def publish(self, name: str, *cars: tuple[str, int]) -> None:
        events = [
            Event.of(CAR, {"plate": plate, "speed": speed}, id=plate, time=NOW).to_transit() for plate, speed in cars
        ]
        self.run(name, self.routers[name].publish("a", events))

    def codes(self) -> list[tuple[str, str]]:
        return [(here, unopened.reason.code) for here, unopened in self.unopened]

    def ids(self, name: str) -> list[str]:
        return [event.id for event in self.delivered.get(name, [])]

    def over(self, here: str, there: str) -> bytes:
        return b"".join(self.wire[here, there])


ALL = tuple(KEYS)
CARS = [("SECRET-1", 30), ("SECRET-2", 90)]
