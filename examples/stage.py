"""What the examples with brokers share: brokers of this process that talk over TLS, and how far a policy has come."""

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count

from rich.console import Console
from rich.table import Table

from penstock.broker.client.client import Client, connect
from penstock.broker.core.settings import NodeSettings
from penstock.broker.limits import BrokerLimits
from penstock.broker.node.node import Node
from penstock.broker.wire.transports import PeerAddress
from penstock.codec.wire import Wire
from penstock.crypto import SigningKey
from penstock.errors import PenstockError
from penstock.guard import DecisionRecord, Recorder
from penstock.model import AttributeDefinition, AttributeSpec, Kind, NetworkName, Petnames, TypeDefinition, TypeName
from penstock.model.principals import Principal
from penstock.trust import Authorisation, Certificate, Credentials, Subject, Tag, UnverifiedType, issue

_PATIENCE = 20.0
_DONE = ("acknowledged", "run-out")


def key(example: str, name: str) -> SigningKey:
    """Make a key for a demonstration. Real keys come from `penstock key new`, never from a name."""
    return SigningKey(hashlib.sha256(f"{example} demonstration: {name}".encode()).digest())


def now() -> datetime:
    """Return the time."""
    return datetime.now(UTC)


def grant(issuer: SigningKey, subject: Subject, tag: Tag, *, pass_on: bool = False) -> Certificate:
    """Issue one capability."""
    return issue(Authorisation(issuer.principal, subject, tag, pass_on), issuer)


def define(owner: SigningKey, name: str, extends: TypeName | None = None, **attributes: Kind) -> TypeDefinition:
    """Define a type. The name of an attribute is its number too, which is good enough for a demonstration."""
    own = tuple(AttributeDefinition(word, word, AttributeSpec(kind)) for word, kind in attributes.items())
    return TypeDefinition(TypeName(owner.principal, name), own, extends)


async def eventually(holds: Callable[[], object], what: str) -> None:
    """Wait until something holds. Stop the demonstration when it never does."""
    until = time.monotonic() + _PATIENCE
    while not holds():
        if time.monotonic() > until:
            raise SystemExit(f"this should have happened: {what}")
        await asyncio.sleep(0.01)


@dataclass
class Rounds:
    """Events that go on flowing while things change: `publish` sends a round, `seen` says what came of later ones.

    Rounds are numbered, so that events that were under way before a change differ from those published after it.
    """

    publish: Callable[[int], Awaitable[None]]
    seen: Callable[[int], Mapping[str, set[str]]]
    last: int = 0

    async def until(self, expected: Mapping[str, set[str]], what: str) -> int:
        """Go on until everybody has got what is expected of the rounds from now on, and return the first of these.

        Stop the demonstration when somebody gets anything else, also of a round more.
        """
        first = self.last + 1
        until = time.monotonic() + _PATIENCE
        while self.seen(first) != expected and time.monotonic() < until:
            await self._next()
        await self._next()
        await asyncio.sleep(0.2)
        if self.seen(first) != expected:
            raise SystemExit(f"{what}: {self.seen(first)}")
        return first

    async def _next(self) -> None:
        self.last += 1
        await self.publish(self.last)
        await asyncio.sleep(0.02)


@dataclass(frozen=True)
class Place:
    """A broker: its key, its policy, the credentials that it shows to everybody, and the peer that it calls."""

    name: str
    key: SigningKey
    credentials: Credentials
    calls: str = ""


@dataclass(frozen=True)
class Stage:
    """A network of brokers that run, by their names."""

    network: NetworkName
    nodes: Mapping[str, Node]
    names: Petnames
    console: Console

    def client(self, broker: str, who: SigningKey, *credentials: Certificate) -> Client:
        """Return a client that connects to a broker when it is entered."""
        url = f"penstock://127.0.0.1:{self.nodes[broker].port}"
        return connect(url, key=who, network=self.network, credentials=Credentials.of(*credentials))

    def chapter(self, title: str) -> None:
        """Begin a part."""
        self.console.print(f"\n[bold]{title}[/]", highlight=False)

    def say(self, text: str) -> None:
        """Print a line."""
        self.console.print(f"  {text}", highlight=False, markup=False)

    def refused(self, what: str, error: PenstockError) -> None:
        """Print that something was refused, and how."""
        self.console.print(f"  [green]refused[/]  {what}", highlight=False)
        text = f"           {shown(error.message, self.names)} [{error.code}]"
        self.console.print(text, style="dim", markup=False, highlight=False)
        for right, about in _missing(error):
            self.console.print(f"           missing: {right} on {about}", style="dim", markup=False, highlight=False)

    async def complete(self, operator: Client, owner: Principal, number: int) -> float:
        """Wait until a policy event is complete, as `penstock net show` tells it; return after how many seconds."""
        started = time.perf_counter()
        while (progress(await operator.status(), owner, number)).get("complete") is None:
            if time.perf_counter() - started > _PATIENCE:
                raise SystemExit(f"policy event {number} should be complete by now")
            await asyncio.sleep(0.01)
        return time.perf_counter() - started

    async def show_progress(self, operator: Client, owner: Principal, number: int) -> None:
        """Print how far a policy event is at each broker."""
        event = progress(await operator.status(), owner, number)
        table = Table("policy event", "revokes", "broker", "progress")
        for broker, standing in sorted(_table(event.get("brokers")).items()):
            word = str(_table(standing).get("progress"))
            name = self.names.show(Principal.parse(broker))
            table.add_row(str(number), str(event.get("revokes")), name, f"{'✓' if word in _DONE else '…'} {word}")
        self.console.print(table)


def shown(text: str, names: Petnames) -> str:
    """Return a message with names in the place of keys."""
    for principal, name in names.items():
        text = text.replace(principal.short, name)
    return text


def _missing(error: PenstockError) -> Iterator[tuple[str, str]]:
    """Yield the missing rights. The broker reveals them only if the type's owner permits it."""
    detail = error.fields.get("detail")
    for missing in detail.get("missing", ()) if isinstance(detail, dict) else ():
        right, about, *_ = missing
        yield right, str(about).rpartition("/")[2]


def progress(status: Mapping[str, Wire], owner: Principal, number: int) -> Mapping[str, Wire]:
    """Return what a broker's state tells about one policy event."""
    events = _table(_table(status.get("policy")).get(str(owner))).get("events")
    found = [_table(event) for event in events] if isinstance(events, list) else []
    return next((event for event in found if event.get("number") == number), {})


def _table(value: Wire) -> Mapping[str, Wire]:
    return value if isinstance(value, dict) else {}


@asynccontextmanager
async def brokers(  # noqa: PLR0913  # what a network is made of
    network: NetworkName,
    places: Sequence[Place],
    *,
    types: Sequence[UnverifiedType],
    operator: SigningKey,
    names: Petnames,
    console: Console,
) -> AsyncIterator[Stage]:
    """Run brokers, each after the one that it calls, and wait until all know of each other."""
    nodes: dict[str, Node] = {}
    async with AsyncExitStack() as stack:
        for place in places:
            called = nodes.get(place.calls)
            settings = NodeSettings(
                key=place.key,
                network=network,
                peers=() if called is None else (PeerAddress("127.0.0.1", called.port, called.core.principal),),
                credentials=place.credentials,
                types=tuple(types),
                operators=frozenset([operator.principal]),
                limits=BrokerLimits(),
            )
            nodes[place.name] = await stack.enter_async_context(Node(settings, _recorder(place.key)))
        whole = {place.key.principal for place in places}
        await eventually(
            lambda: all(set(node.core.router.view.links) == whole for node in nodes.values()),
            "all brokers know of each other",
        )
        await eventually(
            lambda: all(_is_fresh(node, network.owner) for node in nodes.values()), "all brokers have a time-stamp"
        )
        yield Stage(network, nodes, names, console)


def _is_fresh(node: Node, owner: Principal) -> bool:
    return _table(node.policies.status().get(str(owner))).get("state") == "fresh"


def _recorder(broker: SigningKey) -> Recorder:
    """Record decisions in memory: a node that runs from a file writes them to disk."""
    numbers = count(1)
    records: list[DecisionRecord] = []
    return Recorder(
        source=str(broker.principal),
        sink=records.append,
        clock=now,
        timer=time.perf_counter_ns,
        ids=lambda: f"{broker.principal.short}-{next(numbers)}",
    )
