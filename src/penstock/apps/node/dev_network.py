"""The network that `penstock dev` runs: two organisations, each with a broker, and clients that see different things.

`grid` owns the type of meter readings. Its `meter` publishes them at grid's broker. `control-room` reads at the same
broker, `billing` and `planner` at the city's. Readers watch their rights, and may ask how they are restricted. Rights
change as in production: the owner signs a policy event that grants the new certificate and revokes the old one, and
both brokers acknowledge it.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from itertools import count
from typing import Final

from penstock.apps.node.starter import Grantor, reading_type
from penstock.broker.client.client import Client, Feed, RightNotice, connect
from penstock.broker.core.settings import NodeSettings
from penstock.broker.limits import BrokerLimits
from penstock.broker.node.node import Node
from penstock.broker.wire.transports import PeerAddress
from penstock.codec.wire import Wire
from penstock.crypto import SigningKey, new_key
from penstock.crypto.keys import RandomBytes
from penstock.errors import FailedError, MalformedError, did_you_mean
from penstock.guard import Recorder
from penstock.model.events import Event
from penstock.model.names import NetworkName
from penstock.model.values import Scalar
from penstock.trust.capabilities import BROKER_RIGHTS, Right
from penstock.trust.certificates import Certificate
from penstock.trust.credentials import Credentials, read_credentials
from penstock.trust.event_types import verify_type
from penstock.trust.policy_events import Change, PublishCertificates, Revoke
from penstock.trust.policy_state import PolicyAuthor

OWNER: Final = "grid"
NEIGHBOUR: Final = "city"
METER: Final = "meter"
_NETWORK: Final = "dev"
#: seconds until somebody must have answered
_LONGEST: Final = 60.0
_PAUSE: Final = 0.005


@dataclass(frozen=True, slots=True)
class ReadRight:
    """What a reader may see: some attributes, in the order of the type, of events that match a selector."""

    attributes: tuple[str, ...]
    where: str = ""

    def __str__(self) -> str:
        shown = ", ".join(self.attributes) or "nothing"
        return f"{shown} where {self.where}" if self.where else shown


@dataclass(slots=True)
class DevReader:
    """A subscriber: its right now, the last right that was not empty, and what it has received."""

    name: str
    organisation: str
    right: ReadRight
    granted: ReadRight = field(init=False)
    certificate: Certificate | None = None
    events: int = 0
    last: Mapping[str, Scalar] | None = None

    def __post_init__(self) -> None:
        self.granted = self.right


OnEvent = Callable[[DevReader | None, Mapping[str, Scalar]], None]
"""Receives each event: the reader that has received it, or None for the publisher."""

OnRight = Callable[[DevReader, RightNotice], None]
"""Receives what a reader's client learns about its right."""


class DevNetwork:
    """A running network; `dev_network` makes one."""

    def __init__(
        self,
        random: RandomBytes,
        clock: Callable[[], datetime],
        on_event: OnEvent,
        on_right: OnRight = lambda _reader, _notice: None,
    ) -> None:
        self._clock = clock
        self._on_event = on_event
        self._on_right = on_right
        self._keys = {name: new_key(random) for name in (OWNER, NEIGHBOUR, *_BROKERS.values(), METER, *_READERS)}
        self.name = NetworkName(self._keys[OWNER].principal, _NETWORK)
        self._signed = reading_type(self._keys[OWNER])
        self.type = verify_type(self._signed, clock()).event_type
        self.readers = {name: DevReader(name, *of) for name, of in _READERS.items()}
        self.published = 0
        self.brokers: dict[str, Node] = {}
        self._grants = Grantor(self._keys[OWNER])
        self._author = PolicyAuthor(self._keys[OWNER])
        self._owner: Client
        self._feed: Feed[Event]

    async def start(self, stack: AsyncExitStack) -> None:
        """Start the brokers, connect everybody, and grant the first rights. Raises what connecting raises."""
        credentials = Credentials.of(*self._first_certificates())
        for organisation, name in _BROKERS.items():
            peers = tuple(
                PeerAddress(node.settings.host, node.port, node.settings.key.principal)
                for node in self.brokers.values()
            )
            node = Node(self._settings(self._keys[name], credentials, peers), self._recorder(name), clock=self._clock)
            self.brokers[organisation] = await stack.enter_async_context(node)
        self._owner = await stack.enter_async_context(self._client(OWNER, OWNER))
        await self._until(lambda: len(self.brokers[OWNER].brokers()) == len(_BROKERS), "the brokers are not linked")
        meter = await stack.enter_async_context(self._client(METER, OWNER))
        self._feed = await meter.advertise(self._signed)
        for reader in self.readers.values():
            client = await stack.enter_async_context(self._client(reader.name, reader.organisation))
            await client.watch_rights(partial(self._right_changed, reader))
            await client.subscribe(self._signed, callback=partial(self._received, reader))

    async def publish(self) -> Mapping[str, Scalar]:
        """Publish the next reading, and return it when grid's broker has accepted it."""
        number = self.published
        values: dict[str, Scalar] = {
            "meter": f"M-{11 + number * 5 % 9}",
            "region": ("north", "south")[number % 2],
            "power": round(0.5 + number * 7 % 23 / 10, 1),
        }
        self.published += 1
        self._on_event(None, values)
        await self._feed.publish(values)
        return values

    async def change(self, who: str, right: ReadRight) -> float:
        """Give a reader another right in place of its own; return after how many seconds both brokers enforce it.

        Raises `MalformedError` (`dev.command`) for an unknown reader, and as `Grantor.on_type` for a wrong selector.
        """
        reader = self.reader(who)
        changes: list[Change] = []
        certificate = None
        if right.attributes:
            certificate = self._certificate(reader, right)
            changes.append(PublishCertificates(read_credentials(Credentials.of(certificate).to_bytes())))
        if reader.certificate is not None:
            changes.append(Revoke((reader.certificate.id,)))
        if not changes or right == reader.right:
            return 0.0
        begun = time.perf_counter()
        await self._owner.evolve(self._author.change(self._clock(), *changes).to_bytes())
        await self._complete()
        reader.right, reader.certificate = right, certificate
        if right.attributes:
            reader.granted = right
        return time.perf_counter() - begun

    def reader(self, who: str) -> DevReader:
        """Return a reader. Raises `MalformedError` (`dev.command`)."""
        if who not in self.readers:
            hint = did_you_mean(who, self.readers, f"the readers are: {', '.join(self.readers)}")
            raise MalformedError("dev.command", f"there is no reader `{who[:40]}`", hint=hint)
        return self.readers[who]

    # The parts.

    def _first_certificates(self) -> list[Certificate]:
        who = {name: key.principal for name, key in self._keys.items()}
        found = [self._grants.on_network(self.name, who[name], Right.CONNECT) for name in (METER, *self.readers)]
        for broker in _BROKERS.values():
            found.append(self._grants.on_network(self.name, who[broker], *BROKER_RIGHTS))
            found.append(self._grants.on_type(self.type, who[broker], Right.ROUTE))
        found.append(self._grants.on_types(who[_BROKERS[OWNER]], Right.STAMP))
        found.append(self._grants.on_type(self.type, who[METER], Right.PUBLISH))
        for reader in self.readers.values():
            found.append(self._grants.on_type(self.type, who[reader.name], Right.RESTRICTIONS))
            reader.certificate = self._certificate(reader, reader.right)
            found.append(reader.certificate)
        return found

    def _certificate(self, reader: DevReader, right: ReadRight) -> Certificate:
        who = self._keys[reader.name].principal
        # A certificate that was revoked never counts again: each has its own comment, and so its own id.
        grants = replace(self._grants, comment=f"policy event {self._author.number + 1}")
        return grants.on_type(self.type, who, Right.SUBSCRIBE, right.attributes, right.where or None)

    def _settings(self, key: SigningKey, credentials: Credentials, peers: tuple[PeerAddress, ...]) -> NodeSettings:
        return NodeSettings(
            key=key,
            network=self.name,
            peers=peers,
            credentials=credentials,
            types=(self._signed,),
            operators=frozenset([self._keys[OWNER].principal]),
            limits=BrokerLimits(),
        )

    def _recorder(self, name: str) -> Recorder:
        numbers = count(1)
        return Recorder(
            source=name,
            sink=lambda _record: None,
            clock=self._clock,
            timer=time.perf_counter_ns,
            ids=lambda: str(next(numbers)),
        )

    def _client(self, who: str, organisation: str) -> Client:
        node = self.brokers[organisation]
        return connect(
            f"penstock://{node.settings.host}:{node.port}",
            key=self._keys[who],
            network=self.name,
            credentials=Credentials(),
            broker=node.settings.key.principal,
            clock=self._clock,
        )

    def _received(self, reader: DevReader, event: Event) -> None:
        reader.events += 1
        reader.last = {name: event[name] for name in self.type.by_name}
        self._on_event(reader, reader.last)

    def _right_changed(self, reader: DevReader, notice: RightNotice) -> None:
        if notice.refusal is not None:
            # What it saw last is not what it sees.
            reader.last = None
        self._on_right(reader, notice)

    async def _complete(self) -> None:
        """Wait until both brokers have acknowledged the last policy event."""
        while not _is_complete(await self._owner.status(), self._author):
            await asyncio.sleep(_PAUSE)

    async def _until(self, found: Callable[[], bool], problem: str) -> None:
        try:
            async with asyncio.timeout(_LONGEST):
                while not found():
                    await asyncio.sleep(_PAUSE)
        except TimeoutError:
            raise FailedError(
                "dev.not-started", problem, hint="try again; other programs may use all processors"
            ) from None


@asynccontextmanager
async def dev_network(
    random: RandomBytes,
    on_event: OnEvent = lambda _reader, _values: None,
    on_right: OnRight = lambda _reader, _notice: None,
    clock: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> AsyncIterator[DevNetwork]:
    """Run the network. Raises `FailedError` (`dev.not-started`)."""
    async with AsyncExitStack() as stack:
        made = DevNetwork(random, clock, on_event, on_right)
        await made.start(stack)
        yield made


_BROKERS: Final = {OWNER: f"{OWNER}-broker", NEIGHBOUR: f"{NEIGHBOUR}-broker"}
_READERS: Final = {
    "control-room": (OWNER, ReadRight(("meter", "region", "power"))),
    "billing": (NEIGHBOUR, ReadRight(("meter", "power"))),
    "planner": (NEIGHBOUR, ReadRight(("region", "power"), "region = 'north'")),
}


def _is_complete(status: Mapping[str, Wire], author: PolicyAuthor) -> bool:
    """Say whether every broker has acknowledged the author's last policy event."""
    match status:
        case {"policy": dict(policy)}:
            match policy.get(str(author.owner)):
                case {"events": [*_, {"number": int(number), "complete": datetime()}]}:
                    return number >= author.number
    return False
