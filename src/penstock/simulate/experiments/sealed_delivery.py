"""Plain and sealed events between real brokers, set up as in Figure 7.7 of the dissertation.

A publisher at one broker, a subscriber without a filter at another; there may be one between them. Brokers carry three
types of so many attributes: plain, sealed by event and sealed by attribute, so that all are measured in the same
processes. Who publishes or reads waits for lines `<events> <type> <rows>` on standard input; rows are the events of one
message. To `cpu` everybody answers how much of the processor it has taken, in seconds.

    cache      brokers send the plaintext beside to each other, since both may read everything
    no-cache   they do not: the second broker has to open what the first one sealed
    presealed  with the cache, and nothing is sealed in the time that is measured: the blocks are made before
    gathering  without the cache, and events of several messages are sealed together, as nodes do by default

In the first three a message is a block. What the dissertation measured for Figure 7.9 is a broker that has plaintext
and ciphertext, and passes them on: with `cache` that is the one between two others.
"""

import asyncio
import statistics
import sys
import time
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from datetime import UTC, datetime
from itertools import count
from typing import Final, Protocol

from penstock.broker.client.client import connect
from penstock.broker.core.settings import NodeSettings, TrustSettings
from penstock.broker.keys.log import MemoryLog
from penstock.broker.keys.node_keys import Managing
from penstock.broker.limits import BrokerLimits
from penstock.broker.node.node import Node
from penstock.broker.sealing.blocks import LINGERING, Lingering
from penstock.broker.wire.transports import PeerAddress
from penstock.crypto import SigningKey
from penstock.crypto.wrapping import Secret
from penstock.errors import FailedError
from penstock.guard import Recorder
from penstock.model import AttributeDefinition, AttributeSpec, Kind, NetworkName, TypeDefinition, TypeName
from penstock.model.events import TransitEvent, typed
from penstock.model.types import Sealing
from penstock.simulate.experiments.processes import EventWay, ProcessPart
from penstock.trust.capabilities import BROKER_RIGHTS, Right, event_tag, network_tag
from penstock.trust.certificates import Authorisation, Certificate, issue
from penstock.trust.credentials import Credentials
from penstock.trust.event_types import UnverifiedType, sign_type
from penstock.trust.validity import ALWAYS

_OWNER, _WRITER, _READER, *_BROKERS = (SigningKey(bytes([number]) * 32) for number in range(41, 47))
_NETWORK = NetworkName(_OWNER.principal, "Bench")
LEVELS = tuple(Sealing)
_LENGTH = 30
#: seconds in which brokers have got all keys
_PATIENCE: Final = 120
#: managers repeat themselves so seldom that it falls into no round
_LIMITS: Final = BrokerLimits(key_notice=3_600_000)


def _definition(name: str) -> TypeDefinition:
    """Return the type of a name such as `attribute.W10`."""
    spec = AttributeSpec(Kind.STRING)
    attributes = tuple(AttributeDefinition(one, one, spec) for one in _values(name))
    return TypeDefinition(TypeName(_OWNER.principal, name), attributes, sealing=Sealing(name.partition(".")[0]))


def _values(name: str) -> dict[str, str]:
    """Return the values of an event."""
    return {f"a{place}": f"{place:0{_LENGTH}}" for place in range(int(name.partition("W")[2]))}


def name_of(level: Sealing, width: int) -> str:
    """Return the name of a type: how it is sealed, and how many attributes it has."""
    return f"{level}.W{width}"


def _types(width: int) -> dict[str, UnverifiedType]:
    """Return the types of so many attributes."""
    return {name: sign_type(_definition(name), _OWNER) for name in (name_of(level, width) for level in LEVELS)}


def _issue(who: SigningKey, tag: object) -> Certificate:
    return issue(Authorisation(_OWNER.principal, who.principal, tag, False, ALWAYS), _OWNER)  # type: ignore[arg-type]  # a tag


def _credentials(names: Iterable[str]) -> Credentials:
    """Everybody may do everything: all brokers have the same rights, and the first one manages the keys."""
    rights = [Right.PUBLISH, Right.SUBSCRIBE]
    found = [_issue(who, network_tag(_OWNER.principal, "Bench", [Right.CONNECT])) for who in (_WRITER, _READER)]
    found += [_issue(who, network_tag(_OWNER.principal, "Bench", BROKER_RIGHTS)) for who in _BROKERS]
    for name in names:
        tag = event_tag(_OWNER.principal, name, None, rights)
        found += [_issue(who, tag) for who in (_WRITER, _READER)]
        found += [
            _issue(who, event_tag(_OWNER.principal, name, None, [*rights, Right.ROUTE, Right.KEYS])) for who in _BROKERS
        ]
    return Credentials.of(*found)


class _Presealed:
    """Seals beforehand: when it is asked for a block of as many events as the last one, it has one."""

    def __init__(self, seal: Callable[[Sequence[TransitEvent]], bytes]) -> None:
        self._seal = seal
        self._sample: Sequence[TransitEvent] = ()
        self._kind: tuple[object, int] = (None, 0)
        self._made: deque[bytes] = deque()

    def make(self, blocks: int) -> None:
        """Make as many blocks as the next round takes, like the last one. Blocks that are left over are dropped.

        They are left over if a broker sealed several messages in one block, and would be refused as replays later.
        """
        if self._sample:
            self._kind = typed(self._sample).key, len(self._sample)
            self._made = deque(self._seal(self._sample) for _ in range(blocks))

    def __call__(self, events: Sequence[TransitEvent], /) -> bytes:
        """Return a block of such events."""
        self._sample = events
        if self._made and self._kind == (typed(events).key, len(events)):
            return self._made.popleft()
        return self._seal(events)


async def sealing_broker(number: int, mode: str, width: int, *called: int) -> None:
    """Run a broker that calls the one before it, if there is one; it says when it has all keys."""
    numbers, signed = count(1), _types(width)
    settings = NodeSettings(
        key=_BROKERS[number],
        network=_NETWORK,
        peers=tuple(PeerAddress("127.0.0.1", port, _BROKERS[number - 1].principal) for port in called),
        credentials=_credentials(signed),
        types=tuple(signed.values()),
        sealing=LINGERING if mode == "gathering" else Lingering(),
        limits=_LIMITS,
        trust=TrustSettings(strict=False),
    )
    recorder = Recorder(
        source="bench",
        sink=lambda _record: None,
        clock=lambda: datetime.now(UTC),
        timer=time.perf_counter_ns,
        ids=lambda: str(next(numbers)),
    )
    managing = None if called else Managing(MemoryLog(), Secret(bytes(32)))
    async with Node(settings, recorder, managing=managing) as node:
        _say(node.port)
        if mode in ("no-cache", "gathering"):
            node.keys.reads_as_much = lambda _peer, _of_type: False  # type: ignore[method-assign, assignment]  # for comparison only
        presealed = _Presealed(node.core.vault.seal)
        if mode == "presealed":
            node.core.vault.seal = presealed  # type: ignore[method-assign]  # for comparison only
        # A key for each of the two types that are sealed, and one for each attribute that is sealed by itself.
        wanted = 2 + width
        async for word in _words():
            match word:
                case ["keys"]:
                    held = node.keys.status()["held"]
                    keys = held.values() if isinstance(held, dict) else ()
                    seal = [one for one in keys if isinstance(one, dict) and one["seals"]]
                    _say(len(seal) == wanted)
                case ["make", blocks]:
                    presealed.make(int(blocks))
                    _say("made")


def _say(word: object) -> None:
    """Answer the process that started this one."""
    print(word, flush=True)  # noqa: T201  # it reads standard output


async def _words() -> AsyncIterator[list[str]]:
    """Yield what is asked for, line by line, except for what everybody answers in the same way."""
    while line := await asyncio.to_thread(sys.stdin.readline):
        if line == "cpu\n":
            _say(time.process_time())
        else:
            yield line.split()


async def sealing_publisher(width: int, port: int) -> None:
    """Publish through a broker."""
    async with connect(f"penstock://127.0.0.1:{port}", key=_WRITER, network=_NETWORK) as client:
        feeds = {name: await client.advertise(signed) for name, signed in _types(width).items()}
        _say("ready")
        async for events, name, rows in _words():
            feed, event = feeds[name], _values(name)
            while feed.quiet:
                await asyncio.sleep(0.01)
            for _ in range(int(events) // int(rows)):
                for _ in range(int(rows)):
                    await feed.post(event)
                await feed.flush()


async def sealing_subscriber(width: int, port: int) -> None:
    """Read through a broker, and tell how long it took from the first to the last."""
    async with connect(f"penstock://127.0.0.1:{port}", key=_READER, network=_NETWORK) as client:
        held = {name: await client.subscribe(signed) for name, signed in _types(width).items()}
        _say("ready")
        async for number, name, _ in _words():
            events, expected = held[name], _values(name)
            first = await anext(events)
            if dict(first.values) != expected:
                raise ValueError("an event has arrived that was not published")
            start = time.perf_counter()
            for _ in range(int(number) - 1):
                await anext(events)
            _say(time.perf_counter() - start)


# ----------------------------------------------------------------------------------------------------------------------
# The network, seen from the process that measures.


class StartPart(Protocol):
    """Starts a process that plays a role."""

    def __call__(self, role: str, /, *words: object) -> ProcessPart:
        """Return the process."""
        ...


class SealingNetwork:
    """A line of brokers with two clients, and what they carried: events in a second, of the processor and by the clock.

    Of the processor counts what all of them take; of three brokers only what the one between takes.
    """

    def __init__(self, start: StartPart, mode: str, width: int, brokers: int = 2) -> None:
        line, ports = list[ProcessPart](), list[str]()
        for number in range(brokers):
            line.append(start("sealing-broker", number, mode, width, *ports[-1:]))
            ports.append(line[-1].hear())
        subscriber = start("sealing-subscriber", width, ports[-1])
        for broker in line:
            _wait_for_keys(broker)
        publisher = start("sealing-publisher", width, ports[0])
        self.first = line[0]
        self._way = EventWay(publisher, subscriber)
        self._parts = line[1:-1] or [publisher, *line, subscriber]
        self._taken: dict[tuple[str, int], list[tuple[float, float]]] = defaultdict(list)

    def carry(self, name: str, rows: int, events: int) -> None:
        """Carry events, and remember how it went."""
        before = self._cpu()
        by_clock = self._way.carry(events, name, rows)
        self._taken[name, rows].append((events / (self._cpu() - before), by_clock))

    def prepare(self, name: str, rows: int, events: int) -> None:
        """Carry events that do not count."""
        self._way.carry(events, name, rows)

    def rates(self, name: str, rows: int) -> tuple[float, float]:
        """Return events in a second: of the processor, and by the clock."""
        of_processor, by_clock = zip(*self._taken[name, rows], strict=True)
        return statistics.median(of_processor), statistics.median(by_clock)

    def ratio(self, name: str, other: str, rows: int) -> float:
        """Return the ratio of two rates: that of the round in the middle, since others may have been busy in some."""
        pairs = zip(self._taken[name, rows], self._taken[other, rows], strict=True)
        return statistics.median([one / two for (one, _), (two, _) in pairs])

    def preseal(self, name: str, rows: int, events: int) -> None:
        """Let the first broker seal beforehand what is carried next."""
        self.prepare(name, rows, rows)
        self.first.say("make", events // rows)
        self.first.hear()

    def _cpu(self) -> float:
        for part in self._parts:
            part.say("cpu")
        return sum(float(part.hear()) for part in self._parts)


def _wait_for_keys(broker: ProcessPart) -> None:
    end = time.monotonic() + _PATIENCE
    while time.monotonic() < end:
        broker.say("keys")
        if broker.hear() == "True":
            return
        time.sleep(0.1)
    raise FailedError("experiment.ended", "a broker of the experiment did not get its keys")


def in_turn(names: Sequence[str], turn: int) -> Sequence[str]:
    """Return names with another one first in each turn: what comes behind another may find it harder, or easier."""
    first = turn % len(names)
    return [*names[first:], *names[:first]]
