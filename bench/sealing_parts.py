"""The processes of bench_sealing: `python sealing_parts.py <role> …`, set up as in Figure 7.7 of the dissertation.

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
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from datetime import UTC, datetime
from itertools import count

from penstock import connect
from penstock.broker.core.settings import NodeSettings, TrustSettings
from penstock.broker.keys.log import MemoryLog
from penstock.broker.keys.node_keys import Managing
from penstock.broker.limits import BrokerLimits
from penstock.broker.node.node import Node
from penstock.broker.sealing.blocks import LINGERING, Lingering
from penstock.broker.wire.transports import PeerAddress
from penstock.crypto import SigningKey
from penstock.crypto.wrapping import Secret
from penstock.guard import Recorder
from penstock.model import AttributeDefinition, AttributeSpec, Kind, NetworkName, TypeDefinition, TypeName
from penstock.model.events import TransitEvent, typed
from penstock.model.types import Sealing
from penstock.trust.capabilities import BROKER_RIGHTS, Right, event_tag, network_tag
from penstock.trust.certificates import Authorisation, Certificate, issue
from penstock.trust.credentials import Credentials
from penstock.trust.event_types import UnverifiedType, sign_type
from penstock.trust.validity import ALWAYS

OWNER, WRITER, READER, *BROKERS = (SigningKey(bytes([number]) * 32) for number in range(41, 47))
NETWORK = NetworkName(OWNER.principal, "Bench")
LEVELS = tuple(Sealing)
LENGTH = 30
#: managers repeat themselves so seldom that it falls into no round
LIMITS = BrokerLimits(key_notice=3_600_000)


def definition(name: str) -> TypeDefinition:
    """Return the type of a name such as `attribute.W10`."""
    spec = AttributeSpec(Kind.STRING)
    attributes = tuple(AttributeDefinition(one, one, spec) for one in values(name))
    return TypeDefinition(TypeName(OWNER.principal, name), attributes, sealing=Sealing(name.partition(".")[0]))


def values(name: str) -> dict[str, str]:
    """Return the values of an event."""
    return {f"a{place}": f"{place:0{LENGTH}}" for place in range(int(name.partition("W")[2]))}


def name_of(level: Sealing, width: int) -> str:
    """Return the name of a type: how it is sealed, and how many attributes it has."""
    return f"{level}.W{width}"


def types(width: int) -> dict[str, UnverifiedType]:
    """Return the types of so many attributes."""
    return {name: sign_type(definition(name), OWNER) for name in (name_of(level, width) for level in LEVELS)}


def _issue(who: SigningKey, tag: object) -> Certificate:
    return issue(Authorisation(OWNER.principal, who.principal, tag, False, ALWAYS), OWNER)  # type: ignore[arg-type]  # a tag


def credentials(names: Iterable[str]) -> Credentials:
    """Everybody may do everything: all brokers have the same rights, and the first one manages the keys."""
    rights = [Right.PUBLISH, Right.SUBSCRIBE]
    found = [_issue(who, network_tag(OWNER.principal, "Bench", [Right.CONNECT])) for who in (WRITER, READER)]
    found += [_issue(who, network_tag(OWNER.principal, "Bench", BROKER_RIGHTS)) for who in BROKERS]
    for name in names:
        tag = event_tag(OWNER.principal, name, None, rights)
        found += [_issue(who, tag) for who in (WRITER, READER)]
        found += [
            _issue(who, event_tag(OWNER.principal, name, None, [*rights, Right.ROUTE, Right.KEYS])) for who in BROKERS
        ]
    return Credentials.of(*found)


class Presealed:
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


async def broker(number: int, mode: str, width: int, *called: int) -> None:
    """Run a broker that calls the one before it, if it is told where that listens; it says when it has all keys."""
    numbers, signed = count(1), types(width)
    settings = NodeSettings(
        key=BROKERS[number],
        network=NETWORK,
        peers=tuple(PeerAddress("127.0.0.1", port, BROKERS[number - 1].principal) for port in called),
        credentials=credentials(signed),
        types=tuple(signed.values()),
        sealing=LINGERING if mode == "gathering" else Lingering(),
        limits=LIMITS,
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
        print(node.port, flush=True)
        if mode in ("no-cache", "gathering"):
            node.keys.reads_as_much = lambda _peer, _of_type: False  # type: ignore[method-assign, assignment]  # for comparison only
        presealed = Presealed(node.core.vault.seal)
        if mode == "presealed":
            node.core.vault.seal = presealed  # type: ignore[method-assign]  # for comparison only
        # A key for each of the two types that are sealed, and one for each attribute that is sealed by itself.
        wanted = 2 + width
        async for word in _words():
            match word:
                case ["keys"]:
                    held = node.keys.status()["held"]
                    assert isinstance(held, dict)
                    seal = [one for one in held.values() if isinstance(one, dict) and one["seals"]]
                    print(len(seal) == wanted, flush=True)
                case ["make", blocks]:
                    presealed.make(int(blocks))
                    print("made", flush=True)


async def _words() -> AsyncIterator[list[str]]:
    """Yield what is asked for, line by line, except for what everybody answers in the same way."""
    while line := await asyncio.to_thread(sys.stdin.readline):
        if line == "cpu\n":
            print(time.process_time(), flush=True)
        else:
            yield line.split()


async def publisher(width: int, port: int) -> None:
    """Publish through a broker."""
    async with connect(f"penstock://127.0.0.1:{port}", key=WRITER, network=NETWORK) as client:
        feeds = {name: await client.advertise(signed) for name, signed in types(width).items()}
        print("ready", flush=True)
        async for events, name, rows in _words():
            feed, event = feeds[name], values(name)
            while feed.quiet:
                await asyncio.sleep(0.01)
            for _ in range(int(events) // int(rows)):
                for _ in range(int(rows)):
                    await feed.post(event)
                await feed.flush()


async def subscriber(width: int, port: int) -> None:
    """Read through a broker, and tell how long it took from the first to the last."""
    async with connect(f"penstock://127.0.0.1:{port}", key=READER, network=NETWORK) as client:
        held = {name: await client.subscribe(signed) for name, signed in types(width).items()}
        print("ready", flush=True)
        async for number, name, _ in _words():
            events, expected = held[name], values(name)
            first = await anext(events)
            assert dict(first.values) == expected
            start = time.perf_counter()
            for _ in range(int(number) - 1):
                await anext(events)
            print(time.perf_counter() - start, flush=True)


def main(role: str, *words: str) -> None:
    match role:
        case "broker":
            asyncio.run(broker(int(words[0]), words[1], *map(int, words[2:])))
        case "publisher":
            asyncio.run(publisher(*map(int, words)))
        case "subscriber":
            asyncio.run(subscriber(*map(int, words)))


if __name__ == "__main__":
    main(*sys.argv[1:])
