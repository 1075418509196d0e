"""Brokers that keep policy and talk about it over links in memory, with one clock for all: no sockets, no waiting."""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from itertools import pairwise

from tests.broker.core_kit import LonePorts, lone_core
from tests.broker.node_kit import BROKERS, settings
from tests.broker.sports import AGENCY, NOW

from penstock.broker.evolution.gossip import PolicyGossip
from penstock.broker.evolution.statements import PolicyBook
from penstock.broker.limits import BrokerLimits
from penstock.broker.node.machine import Machine
from penstock.broker.node.policies import Forgetful, Keep, NodePolicies
from penstock.codec.wire import Wire, Writable, decode, encode
from penstock.crypto import SigningKey
from penstock.errors import PenstockError
from penstock.model.principals import Principal
from penstock.trust.policy_events import PolicyEvent
from penstock.trust.signed import SignedValue

DEFAULTS = BrokerLimits()

OWNER = AGENCY.principal
Meddle = Callable[[Principal, Wire], Iterable[Wire]]
"""Returns what a broker says in the place of a message to a neighbour."""


class Kept(Forgetful):
    """A keep in memory."""

    def __init__(self) -> None:
        self.snapshots: dict[Principal, bytes] = {}

    def load(self) -> Iterable[bytes]:
        return list(self.snapshots.values())

    def save(self, owner: Principal, snapshot: bytes) -> None:
        self.snapshots[owner] = snapshot


class GossipBroker(LonePorts):
    """The part of a node that is about policy."""

    def __init__(self, world: "World", key: SigningKey, peers: int, keep: Keep | None = None) -> None:
        super().__init__()
        self.world, self.me = world, key.principal
        #: what this broker says in the place of what it should
        self.meddle: Meddle = lambda _peer, message: [message]
        made = settings(key=key, limits=world.limits)
        self.core = lone_core(made, self, lambda: world.now)
        for one in made.types:
            self.core.library.add(one, world.now)
        self.policies = NodePolicies(self.core, keep or Forgetful(), partial(self.gossip_of, peers), Machine())
        self.policies.start()

    def gossip_of(self, peers: int, book: PolicyBook) -> PolicyGossip:
        core, world = self.core, self.world
        self.gossip = PolicyGossip(
            book,
            core.now,
            lambda: world.time,
            core.goes_by,
            self.send,
            soon=world.later,
            note=core.note,
            peers=peers,
            limits=world.limits,
        )
        return self.gossip

    def do_due(self) -> None:
        self.policies.tick()

    def rights_changed(self) -> None:
        self.policies.rights_changed()

    def remembers(self, broker: Principal) -> bool:
        return self.policies.counts_stamps_of(broker)

    def send(self, peer: Principal, message: Writable) -> None:
        for said in self.meddle(peer, decode(encode(message))):
            self.say(peer, said)

    def say(self, peer: Principal, message: Writable) -> None:
        """Say something to a neighbour, whatever it is."""
        wire = self.world.wires.get((self.me, peer))
        if wire is not None:
            wire.append(encode(message))

    def hear(self, peer: Principal, message: Wire) -> None:
        self.core.begin()
        match message:
            case ["policy", *words]:
                self.gossip.heard(peer, words)
            case ["stamp", bytes(stamp)]:
                self.gossip.heard_stamp(peer, stamp)

    def hand_in(self, *events: SignedValue[PolicyEvent], client: Principal = BROKERS[4].principal) -> None:
        """Take events from a client that is not the owner."""
        for event in events:
            self.policies.hand_in(client, event.to_bytes())

    @property
    def number(self) -> int:
        return self.policies.applied(OWNER)

    @property
    def state(self) -> str:
        state = self.policies.told(OWNER, 0)["state"]
        assert isinstance(state, str)
        suspended = OWNER in self.core.local.suspended
        assert suspended is (state != "fresh")
        return state


@dataclass
class World:
    limits: BrokerLimits = DEFAULTS
    now: datetime = NOW
    #: seconds that have passed; `now` can be set to any time
    time: float = 0.0
    brokers: dict[Principal, GossipBroker] = field(default_factory=dict)
    wires: dict[tuple[Principal, Principal], deque[bytes]] = field(default_factory=dict)
    #: links that a broker has cut, and why: who was cut, and the code
    cut: list[tuple[Principal, str]] = field(default_factory=list)
    #: messages that were delivered
    messages: int = 0
    #: what runs in the next turn of an event loop
    soon: list[Callable[[], None]] = field(default_factory=list)
    #: whether a turn is over after each message, or only when somebody calls `turn`
    turns: bool = True
    #: whether everything has a turn of its own, so that acknowledgements go singly
    singly: bool = False

    def start(self, number: int, peers: int = 0, keep: Keep | None = None) -> GossipBroker:
        """Start a broker, or start it again."""
        key = BROKERS[number]
        for other in self.brokers:
            self.unlink(key.principal, other)
        broker = self.brokers[key.principal] = GossipBroker(self, key, peers, keep)
        return broker

    def link(self, *brokers: GossipBroker) -> None:
        """Link each broker with the next."""
        for one, other in pairwise(brokers):
            self.wires[one.me, other.me], self.wires[other.me, one.me] = deque(), deque()
            one.gossip.linked(other.me)
            other.gossip.linked(one.me)

    def unlink(self, one: Principal, other: Principal) -> None:
        if self.wires.pop((one, other), None) is not None:
            del self.wires[other, one]
            self.brokers[one].gossip.unlinked(other)
            self.brokers[other].gossip.unlinked(one)

    def step(self, way: tuple[Principal, Principal]) -> None:
        """Let the next message of one way arrive."""
        sender, receiver = way
        message = decode(self.wires[way].popleft())
        self.messages += 1
        try:
            self.brokers[receiver].hear(sender, message)
        except PenstockError as error:
            self.cut.append((sender, error.code))
            self.unlink(receiver, sender)
        if self.turns:
            self.turn()

    def later(self, work: Callable[[], None]) -> None:
        """Call a function when this turn of the event loop is over."""
        if self.singly:
            work()
        else:
            self.soon.append(work)

    def turn(self) -> None:
        """Let a turn of the event loop be over."""
        while self.soon:
            self.soon.pop(0)()

    def settle(self, most: int = 100_000) -> None:
        """Let everything arrive, until nobody says anything more."""
        for _ in range(most):
            way = next((way for way, wire in self.wires.items() if wire), None)
            if way is None:
                self.turn()
                way = next((way for way, wire in self.wires.items() if wire), None)
            if way is None:
                return
            self.step(way)
        raise AssertionError("brokers talk without end")

    def sleep(self, seconds: float) -> None:
        """Let time pass, with ticks and everything that they lead to."""
        end = self.time + seconds
        while self.time < end:
            passed = min(0.5, end - self.time)
            self.time += passed
            self.now += timedelta(seconds=passed)
            for broker in self.brokers.values():
                broker.policies.tick()
                broker.gossip.tick()
            self.settle()
