"""A local broker with a router of its own, and the sports news service of the paper (section 7)."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import count
from typing import TYPE_CHECKING

from penstock.broker.core.event_path import EventPath, PathPorts
from penstock.broker.limits import BrokerLimits
from penstock.broker.local import requests
from penstock.broker.local.decisions import AuthoritySources
from penstock.broker.local.local_broker import LocalBroker
from penstock.broker.local.requests import Output
from penstock.broker.local.type_library import Library
from penstock.broker.routing.outputs import (
    Cut,
    Deliver,
    Disclosed,
    Interested,
    Laid,
    RouterSettings,
    Send,
    Unopened,
    Unsent,
)
from penstock.broker.routing.outputs import Output as Routed
from penstock.broker.routing.router import Router
from penstock.broker.wire.protocol import PublishMessage
from penstock.crypto import SigningKey
from penstock.guard import DecisionRecord, Recorder, Rules
from penstock.model import (
    AttributeDefinition,
    AttributeSpec,
    Event,
    Kind,
    NetworkName,
    Scalar,
    TransitEvent,
    TypeDefinition,
    TypeName,
)
from penstock.trust.capabilities import Right, event_tag, network_tag
from penstock.trust.certificates import Authorisation, Certificate, issue
from penstock.trust.credentials import Credentials
from penstock.trust.event_types import UnverifiedType, sign_type
from penstock.trust.validity import ALWAYS, Validity

if TYPE_CHECKING:
    from penstock.codec.wire import Wire

DEFAULTS = BrokerLimits()

AGENCY, PDA, REPORTER, STRANGER = (SigningKey(bytes([i]) * 32) for i in range(11, 15))
NETWORK = NetworkName(AGENCY.principal, "Sports")
NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
TEXT, NUMBER = AttributeSpec(Kind.STRING), AttributeSpec(Kind.INTEGER)


def definition(name: str, attributes: dict[str, AttributeSpec], extends: TypeName | None = None) -> TypeDefinition:
    own = tuple(AttributeDefinition(word, word, spec) for word, spec in attributes.items())
    return TypeDefinition(TypeName(AGENCY.principal, name), own, extends)


# Figure 8.
NEWS = definition("SportsNews", {"headline": TEXT, "location": TEXT, "agency": TEXT})
TENNIS = definition("TennisMatch", {"sets": NUMBER}, NEWS.name)
SOCCER = definition("SoccerMatch", {"goals": NUMBER}, NEWS.name)
LIVE = definition("LiveFeed", {}, NEWS.name)
SOCCER_GOAL = definition("SoccerGoal", {"minute": NUMBER}, LIVE.name)
TYPES = (NEWS, TENNIS, SOCCER, LIVE, SOCCER_GOAL)


def grant(
    who: SigningKey, definition: TypeDefinition | None, *rights: Right, valid: Validity = ALWAYS, **terms: object
) -> Certificate:
    """Grant rights on one type, or on the network where there is none."""
    if definition is None:
        tag = network_tag(NETWORK.owner, NETWORK.name, rights)
    else:
        ids = {a.name: a.id for a in LIBRARY_TYPES[definition.name].attributes}
        if "attributes" in terms:
            terms["attributes"] = [ids[name] for name in terms["attributes"]]  # type: ignore[attr-defined]  # names
        if "forced" in terms:
            terms["forced"] = {ids[name]: value for name, value in terms["forced"].items()}  # type: ignore[attr-defined]  # names
        tag = event_tag(AGENCY.principal, definition.name.name, None, rights, **terms)  # type: ignore[arg-type]  # of event_tag
    return issue(Authorisation(AGENCY.principal, who.principal, tag, False, valid), AGENCY)


def signed(definition: TypeDefinition) -> UnverifiedType:
    return sign_type(definition, AGENCY)


def stocked() -> Library:
    library = Library(NETWORK, limits=BrokerLimits())
    for one in TYPES:
        library.add(signed(one), NOW)
    return library


LIBRARY_TYPES = {one.name: stocked().get(one.name, NOW).event_type for one in TYPES}
CONNECT = tuple(grant(who, None, Right.CONNECT) for who in (PDA, REPORTER))


class _Path(EventPath):
    """An event path that ends in lists instead of links."""

    told: tuple[list[Output], ...] = ()

    def write(self, given: requests.Given) -> None:
        for said in self.told:
            said.append(given)


@dataclass
class Node:
    """A local broker and its router. What clients receive is in `told`, what its operator receives in `reports`."""

    limits: BrokerLimits = DEFAULTS
    library: Library = field(default_factory=stocked)
    rules: Rules | None = None
    now: datetime = NOW
    records: list[DecisionRecord] = field(default_factory=list)
    told: list[Output] = field(default_factory=list)
    reports: list[requests.RequestReport] = field(default_factory=list)
    routed: list[Output] = field(default_factory=list)
    sink: Callable[[DecisionRecord], None] | None = None

    def __post_init__(self) -> None:
        numbers = count(1)
        self.router = Router(AGENCY.principal, 1, RouterSettings(limits=BrokerLimits()))
        recorder = Recorder(
            source="broker",
            sink=self._write,
            clock=lambda: self.now,
            timer=lambda: 0,
            ids=lambda: str(next(numbers)),
        )
        self.broker = LocalBroker(NETWORK, recorder, self.library, rules=self.rules, limits=self.limits)
        ports = PathPorts(begin=lambda: self.now, settle=lambda outputs: self._said.extend(self.run(outputs)))
        self.path = _Path(self.broker, self.library, self.router, ports, self.limits)
        self.path.told = (self.told, self._said)

    def _write(self, record: DecisionRecord) -> None:
        (self.sink or self.records.append)(record)

    def run(self, outputs: Iterable[Output | Routed]) -> list[Output]:
        """Carry out what the broker wants; return what it says to clients."""
        said: list[Output] = []
        for output in outputs:
            match output:
                case requests.RequestReport():
                    self.reports.append(output)
                case (
                    requests.Subscribe()
                    | requests.Unsubscribe()
                    | requests.Advertise()
                    | requests.Unadvertise()
                    | requests.Publish()
                ):
                    self.routed.append(output)
                    said += self.run(requests.carry_out(output, self.router))
                case Deliver(deliveries):
                    said += self.run([*self.broker.catch_up(self.now), *self.path.deliver(deliveries, self.now)])
                case Cut() | Disclosed() | Interested() | Laid() | Send() | Unopened() | Unsent():
                    pass
                case _:
                    said.append(output)
        self.told += said
        return said

    def policy(self, *certificates: Certificate) -> list[Output]:
        """Change the policy."""
        sources = AuthoritySources(Credentials.of(*CONNECT, *certificates), revision="policy:test")
        return self.run(self.broker.change(self.now, sources=sources))

    def connect(self, who: SigningKey, session: str | None = None) -> list[Output]:
        return self.run(self.broker.connect(self.now, session or NAMES[who.principal], who.principal, Credentials()))

    def publish(self, definition: TypeDefinition, id: str = "", **values: Scalar) -> list[Output]:  # noqa: A002  # as events call it
        event = Event.of(LIBRARY_TYPES[definition.name], values, id=id, time=self.now)
        return self.publish_as("reporter", definition.name.name, event)

    def publish_as(self, session: str, advertisement: str, event: Event) -> list[Output]:
        """Take an event the whole way, and return what clients receive."""
        self._said.clear()
        row: list[Wire] = [event.id, event.time, *event.values.values()]
        self.path.publish(session, PublishMessage(0, advertisement, event.type.name, [row]))
        return self._said.copy()

    def inject(self, event: TransitEvent) -> list[Output]:
        """Publish an event elsewhere in the network."""
        if event.key not in self._elsewhere:
            self._elsewhere.add(event.key)
            self.router.advertise(f"0.{event.key}", event.key, event.ancestors)
        return self.run(self.router.publish(f"0.{event.key}", (event,)))

    _said: list[Output] = field(default_factory=list)
    _elsewhere: set[object] = field(default_factory=set)


NAMES = {PDA.principal: "pda", REPORTER.principal: "reporter", STRANGER.principal: "stranger"}
