"""A network of real brokers and clients in a simulation, and the owner whose policy they follow.

    network = BrokerNetwork(simulation, tree(1000, 4))
    await network.start()                        # returns when all brokers know each other
    await network.connect("r1", network.key("r1"), "b7")

Brokers are the processes `b0`, `b1` and so on. They are `Node`s with real links, channels, decisions and signatures.
They keep policy on their disks, and come back with it after a crash (`restart`).
"""

import asyncio
import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from random import Random
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from penstock.broker.client.client import Client
from penstock.broker.client.connection import Caller
from penstock.broker.core.clock import loop_time
from penstock.broker.core.reports import LinkReport
from penstock.broker.core.settings import NodeSettings, TrustSettings
from penstock.broker.evolution.policy_keeper import StampSettings
from penstock.broker.fabric.network import FabricSettings
from penstock.broker.keys.node_keys import Managing
from penstock.broker.limits import BrokerLimits
from penstock.broker.local.requests import Given, RequestReport
from penstock.broker.node.machine import Machine
from penstock.broker.node.node import Node
from penstock.broker.wire.link import Endpoint
from penstock.crypto.keys import SigningKey
from penstock.errors import FailedError, PenstockError
from penstock.fabric import Fabric
from penstock.guard import DecisionRecord, Effect, Recorder
from penstock.model.names import NetworkName, TypeName
from penstock.model.types import AttributeDefinition, EventType, TypeDefinition
from penstock.model.values import AttributeSpec, Kind
from penstock.simulate.disk import DiskKeep
from penstock.simulate.simulation import Simulation
from penstock.store.files.name_book import NameBook, WrittenNames
from penstock.trust.capabilities import BROKER_RIGHTS, BoundSelector, Right, event_tag, network_tag
from penstock.trust.certificates import Authorisation, Certificate, issue
from penstock.trust.credentials import Credentials
from penstock.trust.event_types import sign_type
from penstock.trust.policy_state import PolicyAuthor
from penstock.trust.validity import ALWAYS, Validity

if TYPE_CHECKING:
    from penstock.model.principals import Principal

OWNER: Final = SigningKey(hashlib.sha256(b"owner").digest())
NETWORK: Final = NetworkName(OWNER.principal, "Simulated")
READING: Final = TypeDefinition(
    TypeName(OWNER.principal, "Reading"),
    (
        AttributeDefinition("event", "event", AttributeSpec(Kind.STRING)),
        AttributeDefinition("value", "value", AttributeSpec(Kind.INTEGER)),
    ),
)
NOTHING: Final[Mapping[str, Sequence[Certificate]]] = MappingProxyType({})
#: seconds until a network that has just started must know all its brokers
_COMPLETE: Final = 300.0
#: what a broker says if it did not start because the fabric, or the database of its keys, did not answer
_AWAY: Final = ("fabric.unreachable", "store.failed")
#: seconds until it starts again
_PAUSE: Final = 1.0

Links = Sequence[tuple[int, int]]


def tree(brokers: int, fan_out: int = 4) -> Links:
    """Return the links of a tree: each broker calls its parent.

    >>> tree(6, 4)
    [(1, 0), (2, 0), (3, 0), (4, 0), (5, 1)]
    """
    return [(number, (number - 1) // fan_out) for number in range(1, brokers)]


def random_graph(brokers: int, degree: int, random: Random) -> Links:
    """Return the links of a connected graph in which brokers have about so many neighbours."""
    links = {(number, random.randrange(number)) for number in range(1, brokers)}
    while len(links) < brokers * degree // 2:
        one, other = sorted(random.sample(range(brokers), 2), reverse=True)
        links.add((one, other))
    return sorted(links)


def key_of(name: str) -> SigningKey:
    """Return the key of a process, always the same one."""
    return SigningKey(hashlib.sha256(name.encode()).digest())


#: the highest value that is low, and what is noted of the delivery of such an event, also if the value is hidden
_HIGHEST: Final = 4
LOW: Final = "low value"


@dataclass(frozen=True, slots=True)
class ReaderPart:
    """What a reader may see if that is not everything: some attributes only, or no events with a low value."""

    attributes: tuple[str, ...] = tuple(one.name for one in READING.attributes)
    low: bool = True

    @property
    def shows(self) -> tuple[str, ...]:
        """What may be noted of a delivery: attributes, and that the event is a low one."""
        return (*self.attributes, LOW) if self.low else self.attributes

    def restriction(self) -> dict[str, Any]:
        """Return the arguments of `event_tag`."""
        type_ = EventType.of(READING)
        high = [] if self.low else [BoundSelector.of(f"value > {_HIGHEST}", type_)]
        return {"attributes": [type_.by_name[name].id for name in self.attributes], "where": high}


_EVERYTHING: Final = ReaderPart()


def value_of(event: str) -> int:
    """Return the value of an event: the last digit of its number, or 9 if it has none."""
    return int(event[-1]) if event[-1:].isdigit() and event.startswith("e") else 9


def grant(name: str, *rights: Right, valid: Validity = ALWAYS, part: ReaderPart | None = None) -> Certificate:
    """Return a certificate for a process: rights on the type, or on the network."""
    if all(right.on_network for right in rights):
        tag = network_tag(NETWORK.owner, NETWORK.name, rights)
    else:
        # Time-stamps are for all types of an owner.
        of = None if Right.STAMP in rights else READING.name.name
        tag = event_tag(OWNER.principal, of, None, rights, **({} if part is None else part.restriction()))
    return issue(Authorisation(OWNER.principal, key_of(name).principal, tag, False, valid), OWNER)


def _on(fabric: Fabric) -> FabricSettings:
    """Return settings for a fabric on which brokers notice soon that one is away."""
    return FabricSettings(fabric=fabric, unsafe_plaintext=True, renewal=2.0, absence=6.0)


class BrokerNetwork:
    """See the module. Everything that brokers decide and deliver is noted, by the names of processes.

    `definition` is the type that clients publish, `rights` are further certificates of brokers, and `managing` says
    which of them manage keys, and how. `parts` says what readers may see if that is not everything. With `on_fabric` a
    fabric connects brokers in the place of links.
    """

    def __init__(  # noqa: PLR0913  # named settings, each with a default
        self,
        simulation: Simulation,
        links: Links,
        *,
        clients: Iterable[str] = (),
        definition: TypeDefinition = READING,
        rights: Mapping[str, Sequence[Certificate]] = NOTHING,
        parts: Mapping[str, ReaderPart] = MappingProxyType({}),
        managing: Callable[[str], Managing | None] = lambda _broker: None,
        trust: TrustSettings | None = None,
        stamps: StampSettings | None = None,
        limits: BrokerLimits | None = None,
        durable: bool = True,
        on_fabric: bool = False,
    ) -> None:
        self.simulation = simulation
        self.limits = limits or BrokerLimits()
        self.brokers = [f"b{number}" for number in range(1 + max(map(max, links), default=0))]
        self.nodes: dict[str, Node] = {}
        #: what the owner says
        self.author = PolicyAuthor(OWNER)
        self._peers: dict[str, list[str]] = {name: [] for name in self.brokers}
        for one, other in () if on_fabric else links:
            self._peers[f"b{one}"].append(f"b{other}")
        self._type = sign_type(definition, OWNER)
        self._rights = rights
        self._parts = parts
        self._managing = managing
        self._trust = trust or TrustSettings(strict=False)
        self._stamps = stamps or StampSettings()
        self._durable = durable
        self._on_fabric = on_fabric
        self._names: dict[Principal, str] = {}
        for name in (*self.brokers, *clients):
            self._names[key_of(name).principal] = name
        #: who may connect; what it may do beyond that, the owner says
        self._connect = [grant(name, Right.CONNECT) for name in clients]

    # --- Brokers -------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start all brokers, and return when they know each other. Raises `TimeoutError`."""
        await asyncio.gather(*(self.restart(name) for name in self.brokers))
        await self.until(lambda: all(len(node.brokers()) == len(self.brokers) for node in self.nodes.values()))

    async def until(self, holds: Callable[[], bool], seconds: float = _COMPLETE) -> None:
        """Wait until something holds. Raises `TimeoutError`."""
        async with asyncio.timeout(seconds):
            while not holds():
                await asyncio.sleep(0.05)

    async def restart(self, name: str) -> None:
        """Start a broker, also after a crash; again if the fabric or the database is away, as an operator does."""
        while True:
            try:
                await self.simulation.start(name, self._run(name))
            except FailedError as error:
                if error.code not in _AWAY:
                    raise
                self.simulation.note(name, "started again", how=error.code)
                await asyncio.sleep(_PAUSE)
                if not self.simulation.runs(name):
                    # It has crashed meanwhile, and is started again when that is over.
                    return
            else:
                return

    async def _run(self, name: str) -> None:
        simulation, key = self.simulation, key_of(name)
        clock, process, numbers = simulation.clock(name), simulation.process(name), count(1)
        recorder = Recorder(
            source=name,
            sink=lambda record: self._decided(name, record),
            clock=clock.date,
            timer=lambda: 0,
            ids=lambda: f"{name}-{next(numbers)}",
        )
        disk = simulation.disk(name)
        machine = Machine(
            steady=clock.steady,
            timer=loop_time,
            worked=lambda: process.spent,
            background=disk.background,
            listen=simulation.network.listener(name),
        )
        settings = NodeSettings(
            key=key,
            network=NETWORK,
            peers=tuple(simulation.network.address(name, peer, key_of(peer).principal) for peer in self._peers[name]),
            credentials=Credentials.of(
                *self._connect, grant(name, *BROKER_RIGHTS), grant(name, Right.ROUTE), *self._rights.get(name, ())
            ),
            types=(self._type,),
            operators=frozenset({OWNER.principal}),
            trust=self._trust,
            stamps=self._stamps,
            limits=self.limits,
            random=simulation.random(name).randbytes,
        )
        node = Node(
            settings,
            recorder,
            clock=clock.date,
            machine=machine,
            reported=lambda report: self._reported(name, report),
            keep=DiskKeep(disk) if self._durable else None,
            fabric=_on(simulation.fabric(name)) if self._on_fabric else None,
            managing=self._managing(name),
        )
        self._note_deliveries(name, node)
        self.started(name, node)
        self.nodes[name] = node
        await node.start()

    def started(self, name: str, node: Node) -> None:
        """Look at a broker before it runs: for worlds that note more."""

    def _note_deliveries(self, name: str, node: Node) -> None:
        """Note what a broker sends to its readers."""
        path = node.core.path
        write = path.write

        def noting(given: Given) -> None:
            if given.session in path.links:
                reader = self._names.get(path.links[given.session].peer.principal, "?")
                for event in given.events:
                    which = str(event.values["event"])
                    shown = [attribute for attribute, value in event.values.items() if value is not None]
                    if value_of(which) <= _HIGHEST:
                        shown.append(LOW)
                    fields = {"reader": reader, "session": given.session, "topic": given.type.name.name, "event": which}
                    self.simulation.note(name, "delivered", **fields, shown=tuple(shown))
            write(given)

        path.write = noting  # type: ignore[method-assign]  # only this one broker's

    def _decided(self, name: str, record: DecisionRecord) -> None:
        if record.action is Right.SUBSCRIBE and record.decision is None and isinstance(record.resource, TypeName):
            reader = self._names.get(record.principal, "?")
            # What the owner has granted, not what the broker has understood.
            shows = self._parts.get(reader, _EVERYTHING).shows if record.effect is Effect.PERMIT else ()
            self.simulation.note(name, "decided", reader=reader, topic=record.resource.name, shows=shows)

    def _reported(self, name: str, report: RequestReport | LinkReport | PenstockError) -> None:
        self.simulation.note(name, "report", code=report.code)

    # --- Clients -------------------------------------------------------------------------------------------------

    def client(self, name: str, broker: str, **more: Any) -> Client:
        """Return a client of a broker, which belongs to the process `name`."""
        simulation = self.simulation
        endpoint = Endpoint(
            key=OWNER if name == "owner" else key_of(name),
            network=NETWORK,
            limits=self.limits,
            random=simulation.random(name).randbytes,
        )
        caller = Caller(
            address=simulation.network.address(name, broker, key_of(broker).principal),
            endpoint=endpoint,
            credentials=more.pop("credentials", Credentials()),
            timeout=more.pop("timeout", 10.0),
            clock=simulation.clock(name).date,
        )
        return Client(caller, (self._type,), more.pop("patience", 60.0), WrittenNames(lambda: NameBook.of({})))
