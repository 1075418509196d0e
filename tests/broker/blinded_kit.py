"""Routers in a row that know blinded types, with labels that are given and taken at will, and all that they say."""

import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise

from tests.broker.network import NUMBER, TEXT, filter_of, principal

from penstock.broker.blinding import BlindedVault, BlindingRouter, Labels
from penstock.broker.limits import BrokerLimits
from penstock.broker.local.type_library import Library
from penstock.broker.routing.messages import Hop
from penstock.broker.routing.outputs import Cut, Deliver, Interested, Output, RouterSettings, Send, Unopened
from penstock.broker.sealing.vault import KeyVault, Signatures
from penstock.codec.wire import decode, encode
from penstock.crypto import SigningKey
from penstock.crypto.seal_keys import LiveKeys, column_scope
from penstock.crypto.wrapping import Secret
from penstock.model.events import Event
from penstock.model.names import TypeKey, TypeName
from penstock.model.types import AttributeDefinition, EventType, Sealing, TypeDefinition
from penstock.trust.event_types import UnverifiedType, sign_type

OWNER = SigningKey(bytes([71]) * 32)
NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
OVERLAP = 100.0
LIMITS = BrokerLimits(label_overlap=int(OVERLAP * 1000))

CAR_MADE = TypeDefinition(
    TypeName(OWNER.principal, "uk.gov.pito.Numberplate"),
    (AttributeDefinition("plate", "0", TEXT), AttributeDefinition("speed", "1", NUMBER)),
    sealing=Sealing.ATTRIBUTE,
    blinded=True,
)
LORRY_MADE = TypeDefinition(
    TypeName(OWNER.principal, "uk.gov.pito.Lorry"),
    (AttributeDefinition("axles", "2", NUMBER),),
    CAR_MADE.name,
    sealing=Sealing.ATTRIBUTE,
    blinded=True,
)
CAR = EventType.of(CAR_MADE)
LORRY = EventType.of(LORRY_MADE, CAR)
SIGNED = (sign_type(CAR_MADE, OWNER), sign_type(LORRY_MADE, OWNER))
SCOPES = [
    scope for of in (CAR, LORRY) for scope in (str(of.key), *(column_scope(of.key, str(a.id)) for a in of.attributes))
]
SHARED = {scope: Secret(bytes([72 + number]) * 32) for number, scope in enumerate(SCOPES)}


def label_key(number: int, of_type: TypeKey = CAR.key) -> Secret:
    """Return the key of labels of a type in an epoch."""
    return Secret(bytes([number, *str(of_type).encode()[-31:]]))


@dataclass
class Row:
    """The first and the last, and whoever else is named as a reader, have keys; those between have none."""

    names: tuple[str, ...] = ("pub", "between", "sub")
    readers: tuple[str, ...] = ("pub", "sub")
    types: tuple[UnverifiedType, ...] = SIGNED
    now: datetime = NOW
    said: list[tuple[str, str, bytes]] = field(default_factory=list)
    delivered: dict[str, list[tuple[tuple[str, ...], str, TypeKey]]] = field(default_factory=dict)
    wanted: list[tuple[str, str, bool]] = field(default_factory=list)
    unopened: list[tuple[str, Unopened]] = field(default_factory=list)
    cuts: list[Cut] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.libraries = {name: Library(limits=BrokerLimits()) for name in self.names}
        for name in self.readers:
            for made in self.types:
                self.libraries[name].add(made, NOW)
        self.labels = {name: Labels(self.libraries[name], lambda: self.now, LIMITS) for name in self.names}
        self.rings = {name: LiveKeys() for name in self.names}
        self.routers = {name: self._router(name) for name in self.names}
        for one, other in pairwise(self.names):
            begun = self.routers[one].link_up(principal(other), 0.0)
            self.run(other, self.routers[other].link_up(principal(one), 0.0))
            self.run(one, begun)

    def _vault(self, name: str) -> KeyVault:
        ring = self.rings[name]
        for scope, secret in SHARED.items() if name in self.readers else ():
            ring.begin(scope, 1, secret)
        signer = SigningKey(principal(name).digest)
        began = self.now
        return KeyVault(
            ring,
            signer.principal,
            self.libraries[name].protection,
            lambda _peer, _of_type: True,
            clock=lambda: self.now,
            began=lambda: began,
            random=secrets.token_bytes,
            signatures=Signatures(signer, lambda *_: False),
            limits=LIMITS,
        )

    def _router(self, name: str) -> BlindingRouter:
        settings = RouterSettings(vault=BlindedVault(self._vault(name), self.labels[name]), limits=LIMITS)
        return BlindingRouter(principal(name), 1, settings, self.labels[name])

    def run(self, here: str, outputs: Iterable[Output]) -> None:
        """Carry out what a router wants, until nobody wants anything."""
        pending = [(here, output) for output in outputs]
        called = {principal(name): name for name in self.names}
        while pending:
            here, output = pending.pop(0)
            match output:
                case Send(peer, hop):
                    octets = bytes(encode(hop.to_tree()))
                    self.said.append((here, called[peer], octets))
                    heard = Hop.from_tree(decode(octets))
                    there = called[peer]
                    pending += [(there, one) for one in self.routers[there].receive(principal(here), heard, 0.0)]
                case Deliver(deliveries):
                    found = [(keys, event.id, event.key) for keys, event in deliveries]
                    self.delivered.setdefault(here, []).extend(found)
                case Interested(key, wanted):
                    self.wanted.append((here, key, wanted))
                case Unopened():
                    self.unopened.append((here, output))
                case Cut():
                    self.cuts.append(output)

    # Labels.

    def give(self, name: str, number: int = 1, begun: datetime = NOW, of_type: TypeKey = CAR.key) -> None:
        """Let a broker have the key of labels of an epoch."""
        self.labels[name].put(of_type, number, label_key(number, of_type), begun)
        self.run(name, self.routers[name].labels_changed())

    def pass_time(self, seconds: float, *names: str) -> None:
        """Let some brokers, or all, notice that it is later."""
        self.now += timedelta(seconds=seconds)
        for name in names or self.readers:
            self.tick(name)

    def tick(self, name: str) -> None:
        self.labels[name].tick()
        self.run(name, self.routers[name].labels_changed())

    # Clients.

    def subscribe(self, name: str, of_type: EventType = CAR, text: str = "TRUE", key: str = "s") -> None:
        self.run(name, self.routers[name].subscribe(key, of_type.key, filter_of(of_type, text)))

    def advertise(self, name: str, of_type: EventType = CAR, key: str = "a") -> None:
        self.run(name, self.routers[name].advertise(key, of_type.key, of_type.ancestors))

    def publish(self, name: str, *plates: str, of_type: EventType = CAR, key: str = "a") -> None:
        made = [Event.of(of_type, {"plate": plate, "speed": 50}, id=plate, time=self.now) for plate in plates]
        events = [event.to_transit() for event in made]
        self.run(name, self.routers[name].publish(key, events))

    def ids(self, name: str) -> list[str]:
        return [event for _, event, _ in self.delivered.get(name, [])]

    def over(self, one: str, other: str) -> bytes:
        """Return all that was said between two neighbours."""
        return b"".join(octets for here, there, octets in self.said if {here, there} == {one, other})


def version(made: TypeDefinition, **changes: object) -> UnverifiedType:
    """Return the next version of a type, signed."""
    return sign_type(replace(made, **changes), OWNER)  # type: ignore[arg-type]  # of the definition
