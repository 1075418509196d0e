"""Five brokers of three domains, each a process of its own (`penstock up`), with lines between them that can be cut."""

import asyncio
import subprocess
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar

from tests.copies import Copy

from penstock.broker.client.client import Client, connect
from penstock.broker.routing.membership import rendezvous
from penstock.codec.sexp import canonical
from penstock.codec.wire import Wire
from penstock.crypto import SigningKey
from penstock.crypto.keys import private_key_to_sexp
from penstock.model import AttributeDefinition, AttributeSpec, EventType, Kind, NetworkName, TypeDefinition, TypeName
from penstock.testing.server_process import free_ports
from penstock.trust.capabilities import BROKER_RIGHTS, BoundSelector, Right, event_tag, network_tag
from penstock.trust.certificates import Authorisation, Certificate, issue
from penstock.trust.credentials import Credentials
from penstock.trust.event_types import sign_type
from penstock.trust.tags import Tag
from penstock.trust.validity import ALWAYS

HOST = "127.0.0.1"
#: for what has to happen, however busy the machine is
LONG = 60.0

DOMAINS = {"police": ("p1", "p2"), "council": ("c1",), "press": ("m1", "m2")}
BROKERS = tuple(name for names in DOMAINS.values() for name in names)
#: a ring: each broker and the one that it calls
LINES = (("p1", "p2"), ("p2", "c1"), ("c1", "m1"), ("m1", "m2"), ("m2", "p1"))
#: those between the press and everybody else
BORDER = (("c1", "m1"), ("m2", "p1"))

_T = TypeVar("_T")


def key_of(name: str) -> SigningKey:
    return SigningKey(sha256(name.encode()).digest())


OWNER = key_of("owner")
NETWORK = NetworkName(OWNER.principal, "London")
CLIENTS = ("officer", "clerk", "reporter", "camera", "operator")
ATTRIBUTES = {"plate": Kind.STRING, "speed": Kind.INTEGER, "officer": Kind.STRING}


def definition(name: str) -> TypeDefinition:
    own = tuple(AttributeDefinition(word, word, AttributeSpec(kind)) for word, kind in ATTRIBUTES.items())
    return TypeDefinition(TypeName(OWNER.principal, name), own)


def rooted_at(broker: str) -> Iterator[TypeDefinition]:
    """Yield types whose rendezvous node is a broker while all five are there."""
    principals = {key_of(name).principal: name for name in BROKERS}
    for number in range(1_000):
        made = definition(f"Sighting{number}")
        root = rendezvous(made.name.key, iter(principals))
        if root is not None and principals[root] == broker:
            yield made


#: what this is about: police and council, and the press is where their events meet; and two types of every broker
SIGHTING = next(rooted_at("m2"))
OTHERS = tuple(made for broker in BROKERS for _, made in zip(range(3), rooted_at(broker), strict=False))
TYPES = tuple(dict.fromkeys((SIGHTING, *OTHERS)))


def _issue(to: str, tag: Tag) -> Certificate:
    return issue(Authorisation(OWNER.principal, key_of(to).principal, tag, False, ALWAYS), OWNER)


def policy() -> Iterator[Certificate]:
    """Yield all rights: who may be there, who carries events, and who reads what of them."""
    for name in CLIENTS:
        yield _issue(name, network_tag(OWNER.principal, NETWORK.name, [Right.CONNECT]))
    for name in BROKERS:
        yield _issue(name, network_tag(OWNER.principal, NETWORK.name, BROKER_RIGHTS))
        yield _issue(name, event_tag(OWNER.principal, None, None, [Right.ROUTE, Right.STAMP]))
    yield _issue("camera", event_tag(OWNER.principal, None, None, [Right.PUBLISH]))
    yield _issue("officer", event_tag(OWNER.principal, None, None, [Right.SUBSCRIBE]))
    for made in TYPES:
        event_type = EventType.of(made)
        ids = {attribute.name: attribute.id for attribute in event_type.attributes}
        seen = [ids["plate"], ids["speed"]]
        yield _issue("clerk", event_tag(OWNER.principal, made.name.name, None, [Right.SUBSCRIBE], attributes=seen))
        fast = BoundSelector.of("speed > 50", event_type)
        yield _issue(
            "reporter",
            event_tag(
                OWNER.principal, made.name.name, None, [Right.SUBSCRIBE], attributes=[ids["speed"]], where=[fast]
            ),
        )


class Lines:
    """The lines between brokers, which pass on what they are given until they are cut. In a thread of their own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._whole: set[tuple[str, str]] = set()
        self._open: dict[tuple[str, str], set[asyncio.StreamWriter]] = {}
        self._servers: list[asyncio.Server] = []

    def lay(self, line: tuple[str, str], port: int) -> int:
        """Lay a line to a port; return the port where it begins."""
        return self._call(self._lay(line, port))

    def cut(self, *lines: tuple[str, str]) -> None:
        self._call(self._cut(lines))

    def mend(self, *lines: tuple[str, str]) -> None:
        self._whole.update(lines)

    def close(self) -> None:
        self._call(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(LONG)
        self._loop.close()

    def _call(self, work: Coroutine[Any, Any, _T]) -> _T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(LONG)

    async def _lay(self, line: tuple[str, str], port: int) -> int:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self._join(line, port, reader, writer)

        server = await asyncio.start_server(serve, HOST, 0)
        self._whole.add(line)
        self._servers.append(server)
        found: int = server.sockets[0].getsockname()[1]
        return found

    async def _close(self) -> None:
        for server in self._servers:
            server.close()
        await self._cut(self._whole)
        others = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.wait_for(asyncio.gather(*others, return_exceptions=True), LONG)

    async def _cut(self, lines: Iterable[tuple[str, str]]) -> None:
        for line in list(lines):
            self._whole.discard(line)
            for writer in self._open.pop(line, ()):
                writer.transport.abort()

    async def _join(
        self, line: tuple[str, str], port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        with suppress(OSError):
            if line in self._whole:
                there, back = await asyncio.open_connection(HOST, port)
                self._open.setdefault(line, set()).update((writer, back))
                if line not in self._whole:
                    await self._cut([line])  # it was cut meanwhile
                await asyncio.gather(_pump(reader, back), _pump(there, writer))
        writer.transport.abort()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    writer.transport.abort()


@dataclass
class Network:
    """The brokers in a folder, the lines between them, and their processes."""

    folder: Path
    lines: Lines = field(default_factory=Lines)
    ports: dict[str, int] = field(default_factory=dict)
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def lay_out(self) -> None:
        """Write down everything that the brokers use."""
        self.ports = dict(zip(BROKERS, free_ports(len(BROKERS)), strict=True))
        (self.folder / "all.cert").write_bytes(Credentials.of(*policy()).to_bytes())
        (self.folder / "types").mkdir()
        for number, made in enumerate(TYPES):
            (self.folder / "types" / f"{number}.type").write_bytes(sign_type(made, OWNER).to_bytes())
        begins = {line: self.lines.lay(line, self.ports[line[1]]) for line in LINES}
        for name in BROKERS:
            (self.folder / f"{name}.key").write_bytes(canonical(private_key_to_sexp(key_of(name))))
            (self.folder / f"{name}.key").chmod(0o600)
            (self.folder / f"{name}.toml").write_text(self._node_file(name, begins))

    def _node_file(self, name: str, begins: dict[tuple[str, str], int]) -> str:
        lines = [
            f'network = "{NETWORK}"',
            f'key = "{name}.key"',
            f'listen = "{HOST}:{self.ports[name]}"',
            'credentials = ["all.cert"]',
            'types = ["types/"]',
            f'operators = ["{key_of("operator").principal}"]',
            f'decisions = "{name}.jsonl"',
            f'state = "{name}.state"',
        ]
        for caller, called in LINES:
            if caller == name:
                port = begins[caller, called]
                lines += ["[[peers]]", f'address = "{HOST}:{port}"', f'principal = "{key_of(called).principal}"']
        return "\n".join(lines) + "\n"

    def start(self, *names: str) -> None:
        for name in names:
            with (self.folder / f"{name}.log").open("ab") as log:
                self.processes[name] = Copy(
                    ["up", f"{name}.toml", "-o", "json", "--quiet"], stdout=log, stderr=log, cwd=self.folder
                )

    def kill(self, name: str) -> None:
        """End a broker as `kill -9` does."""
        process = self.processes.pop(name)
        process.kill()
        process.wait(LONG)

    def close(self) -> None:
        for name in list(self.processes):
            self.kill(name)
        self.lines.close()

    # What tests ask.

    def client(self, broker: str, who: str) -> Client:
        return connect(
            f"penstock://{HOST}:{self.ports[broker]}",
            key=key_of(who),
            network=NETWORK,
            broker=key_of(broker).principal,
            patience=LONG,
            timeout=LONG,
        )

    async def status(self, broker: str) -> dict[str, Wire]:
        async with self.client(broker, "operator") as operator:
            return dict(await operator.status())

    async def until_all_see(self, *groups: Iterable[str]) -> None:
        """Wait until the brokers of each group see each other with all lines between them, and nobody else.

        A line that comes back later would change the paths again, and events can be lost while they change.
        """
        for group in map(frozenset, groups):
            expected: dict[str, set[str]] = {str(key_of(name).principal): set() for name in group}
            for line in LINES:
                if group.issuperset(line):
                    one, other = (str(key_of(name).principal) for name in line)
                    expected[one].add(other)
                    expected[other].add(one)
            for name in sorted(group):

                async def sees(name: str = name, expected: dict[str, set[str]] = expected) -> bool:
                    found: Any = (await self.status(name))["brokers"]
                    return {broker: set(links) for broker, links in found.items()} == expected

                await until(sees)


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(LONG):
        while not await holds():
            await asyncio.sleep(0.05)


def run(test: Coroutine[object, object, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(2 * LONG):
            await test

    asyncio.run(bounded())
