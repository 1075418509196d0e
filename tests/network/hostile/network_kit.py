"""A network of broker processes under attack, with an honest publisher and an honest reader beside the attacker.

    calm phase -> attack, a revocation in the middle of it -> drain -> `Figures`, held against the bounds of the attack

Over links four brokers stand in a line: the publisher and the owner are at the first one, the reader and the one that
is revoked at the last, and attackers choose. Across NATS there are three brokers and one server. The owner of the types
is the coordinator of the network. Attackers run in a process of their own (`attacker`), so that what they spend is not
taken from the honest parties; what they say is in `strangers`, `members`, `forgers`, `subscribers` and `litter`.

In a short run, counts are asserted and times are only printed. With `LONG=1` each attack takes longer, times are
asserted too, and all figures go to a JSON file.
"""

import asyncio
import base64
import json
import os
import subprocess
import sys
import time
from bisect import bisect_left, bisect_right
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from itertools import count, pairwise
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from _pytest.mark import ParameterSet
from tests.broker.node_kit import BROKERS, client_of
from tests.broker.sports import AGENCY, NEWS, PDA, REPORTER, grant
from tests.budget import amount
from tests.network.brokers import Lines
from tests.network.hostile.bounds import Bounds
from tests.network.hostile.target import GROUND, LISTENING, MEMBER, SUBSCRIBER
from tests.network.processes import BrokerProcess, start_module

from penstock.broker.client.client import Client, Feed
from penstock.crypto import SigningKey
from penstock.errors import PenstockError
from penstock.model import Event
from penstock.testing.nats import NatsServer
from penstock.testing.server_process import free_ports
from penstock.trust.capabilities import Right
from penstock.trust.certificates import Certificate
from penstock.trust.credentials import Credentials
from penstock.trust.policy_events import PolicyEvent, Revoke
from penstock.trust.policy_state import PolicyAuthor, publish
from penstock.trust.signed import SignedValue

#: `make soak`
IN_LONG_RUN = bool(os.environ.get("LONG"))
#: events that are published in a second, and how long the calm phase and an attack take
RATE = 500 if IN_LONG_RUN else 200
CALM = 5.0 if IN_LONG_RUN else 0.5
SECONDS = 20.0 if IN_LONG_RUN else float(amount(2))
#: for what has to happen, however busy the machine is
PATIENCE = 120.0
#: publications are made so often in a second
_BEATS = 50
_FIGURES = Path("hostile-figures.json")

#: rights that all brokers know from the beginning
POLICY = (
    grant(PDA, NEWS, Right.SUBSCRIBE),
    grant(REPORTER, NEWS, Right.PUBLISH),
    grant(AGENCY, None, Right.CONNECT),
    grant(MEMBER, None, Right.CONNECT),
    grant(GROUND, None, Right.CONNECT),
    grant(SUBSCRIBER, None, Right.CONNECT),
    grant(SUBSCRIBER, NEWS, Right.SUBSCRIBE),
)


def now() -> datetime:
    return datetime.now(UTC)


async def until(holds: Callable[[], object]) -> None:
    """Wait for something to become true."""
    async with asyncio.timeout(PATIENCE):
        while not holds():
            await asyncio.sleep(0.02)


# The processes.


class Attacker:
    """The process of the attacker. It takes one order after the other."""

    def __init__(self) -> None:
        self._process = start_module("tests.network.hostile.attacker", stdin=subprocess.PIPE)

    async def begin(self, order: dict[str, object]) -> None:
        """Give an order; return when the attack has begun."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        answer = await self._answer()
        assert answer == {"begun": True}, answer

    async def end(self) -> int:
        """Wait until the attack is over; return how many blows there were."""
        answer = await self._answer()
        assert "blows" in answer, answer.get("error", answer)
        return int(answer["blows"])

    async def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = await asyncio.to_thread(self._process.stdout.readline)
        found: dict[str, Any] = json.loads(line or '{"error": "the attacker has ended"}')
        return found

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()


@dataclass
class Network:
    """Broker processes in a folder: in a line, or with a NATS server between them."""

    folder: Path
    nats: NatsServer | None = None
    #: links between brokers that can be cut
    lines: Lines | None = None
    brokers: list[BrokerProcess] = field(default_factory=list)
    author: PolicyAuthor = field(default_factory=lambda: PolicyAuthor(AGENCY))
    newcomers: list[BrokerProcess] = field(default_factory=list)
    #: when a broker that had been killed was ready again
    back: float | None = None
    #: all that the owner has said
    said: list[SignedValue[PolicyEvent]] = field(default_factory=list)

    def __post_init__(self) -> None:
        number = 4 if self.nats is None else 3
        ports = free_ports(number)
        url = "" if self.nats is None else self.nats.url
        for key, port in enumerate(ports):
            peers = [(self._way_to(key - 1, ports[key - 1]), key - 1)] if key and self.nats is None else []
            clock = str(self.folder / f"clock{key}")
            self.brokers.append(BrokerProcess(key, self.folder, peers, POLICY, port, nats=url, clock=clock))
        self.attacker = Attacker()
        self._clients = count(1)

    def _way_to(self, key: int, port: int) -> int:
        return port if self.lines is None else self.lines.lay(line_to(key), port)

    async def start(self) -> None:
        if self.nats is not None:
            await self.attacker.begin(self.order(LISTENING, 0))
            await self.attacker.end()
        await asyncio.gather(*(broker.start() for broker in self.brokers))
        await self.until_whole()

    def close(self) -> None:
        self.attacker.close()
        for broker in (*self.brokers, *self.newcomers):
            broker.kill()
        if self.lines is not None:
            self.lines.close()

    @property
    def first(self) -> BrokerProcess:
        return self.brokers[0]

    @property
    def last(self) -> BrokerProcess:
        return self.brokers[-1]

    def order(self, attack: str, seconds: float) -> dict[str, object]:
        """Return the attacker's order."""
        return {
            "attack": attack,
            "seconds": seconds,
            "ports": [broker.port for broker in self.brokers],
            "nats": "" if self.nats is None else self.nats.url,
            "policy": [base64.b64encode(event.to_bytes()).decode() for event in self.said],
        }

    # What operators and the owner do.

    async def until_whole(self) -> None:
        """Wait until each broker sees all others, and uses the owner's policy."""
        expected = {str(BROKERS[broker.key].principal) for broker in self.brokers}
        answers: dict[int, object] = {}
        try:
            async with asyncio.timeout(PATIENCE):
                for broker in self.brokers:
                    while not expected <= (await self._seen_by(broker, answers)):
                        await asyncio.sleep(0.1)
        except TimeoutError:
            raise AssertionError(f"the network is not whole; brokers said last: {answers}") from None

    async def _seen_by(self, broker: BrokerProcess, answers: dict[int, object]) -> set[str]:
        answers[broker.key] = "nothing"
        try:
            async with client_of(broker.port, AGENCY, patience=PATIENCE) as operator:
                status = await operator.status()
        except PenstockError as error:
            answers[broker.key] = error
            return set()
        seen, policy = status["brokers"], status["policy"]
        assert isinstance(seen, dict)
        assert isinstance(policy, dict)
        of_agency = answers[broker.key] = policy.get(str(AGENCY.principal))
        state = of_agency.get("state") if isinstance(of_agency, dict) else None
        return set(seen) if state == "fresh" else set()

    async def say(self, owner: Client, *changes: Any) -> int:
        """Let the owner change its policy; return the number of the change."""
        event = self.author.change(now(), *changes)
        self.said.append(event)
        await owner.evolve(event.to_bytes())
        return event.value.number

    def running(self) -> list[int]:
        """Return which brokers run."""
        return [one.key for one in self.brokers if one.process is not None and one.process.poll() is None]

    def memory(self) -> int:
        """Return the megabytes that the largest broker takes."""
        sizes = [0]
        for broker in self.brokers:
            if broker.process is not None:
                with suppress(OSError):
                    text = Path(f"/proc/{broker.process.pid}/status").read_text()
                    sizes += [int(line.split()[1]) // 1024 for line in text.splitlines() if line.startswith("VmRSS")]
        return max(sizes)

    def processor_time(self) -> float:
        """Return the seconds of processor time that all brokers have taken."""
        ticks = 0
        for broker in self.brokers:
            if broker.process is not None:
                with suppress(OSError):
                    stat = Path(f"/proc/{broker.process.pid}/stat").read_text().rpartition(")")[2].split()
                    ticks += int(stat[11]) + int(stat[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    def decisions(self) -> int:
        """Return the bytes of all decision logs."""
        files = [broker.log.with_name("decisions.jsonl") for broker in self.brokers]
        return sum(file.stat().st_size for file in files if file.exists())


def line_to(key: int) -> tuple[str, str]:
    """Return the name of the link that the next broker in the line has to this one."""
    return str(key + 1), str(key)


async def completed(owner: Client, number: int, patience: float = PATIENCE) -> datetime:
    """Wait until the owner's broker says that all brokers enforce a policy event; return since when."""
    waiting: list[str] = []
    try:
        async with asyncio.timeout(patience):
            while True:
                found, waiting = _progress(await owner.status(), number)
                if found is not None:
                    return found
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise AssertionError(f"policy event {number} is not complete after {patience} s; missing: {waiting}") from None


def _progress(status: Mapping[str, Any], number: int) -> tuple[datetime | None, list[str]]:
    """Return since when a policy event is complete, and the brokers that it waits for."""
    owners = status["policy"]
    for event in owners.get(str(AGENCY.principal), {}).get("events", ()):
        if event["number"] == number:
            return event["complete"], [name for name, one in event["brokers"].items() if one["progress"] == "waiting"]
    return None, ["the owner's broker"]


# The honest parties.


class Publisher:
    """Publishes at a steady rate, and remembers which events were accepted. Nothing is made up for after a pause."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._numbers = count(1)
        self.accepted: list[int] = []
        self.failed = 0
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        beat = 1 / _BEATS
        loop = asyncio.get_running_loop()
        while True:
            begun = loop.time()
            await self.publish(RATE // _BEATS)
            await asyncio.sleep(max(0.0, begun + beat - loop.time()))

    async def publish(self, events: int) -> None:
        numbers = [next(self._numbers) for _ in range(events)]
        try:
            await self._feed.publish_many([{"headline": str(number)} for number in numbers])
            self.accepted += numbers
        except PenstockError:
            self.failed += events

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


@dataclass
class Reader:
    """Reads, and remembers what came when."""

    numbers: list[int] = field(default_factory=list)
    times: list[float] = field(default_factory=list)

    def __call__(self, event: Event) -> None:
        self.numbers.append(int(str(event["headline"])))
        self.times.append(time.time())

    def rate(self, begin: float, end: float) -> float:
        return (bisect_right(self.times, end) - bisect_left(self.times, begin)) / (end - begin)

    def first_after(self, moment: float | None) -> float:
        """Return the seconds from a moment, if there was one, to the next event that came."""
        return 0.0 if moment is None else next((at for at in self.times if at >= moment), float("inf")) - moment

    def longest_pause(self, begin: float, end: float) -> float:
        inside = self.times[bisect_left(self.times, begin) : bisect_right(self.times, end)]
        return max(later - earlier for earlier, later in pairwise([begin, *inside, end]))


@dataclass
class Honest:
    """The honest parties: a publisher, a reader at the other end, one who is going to be revoked, and the owner."""

    network: Network
    owner: Client
    publisher: Publisher
    reader: Reader
    revoked: Reader
    victim: SigningKey
    rights: tuple[Certificate, ...]

    async def more(self, events: int = 10) -> None:
        """Wait until so many more events have arrived at the reader."""
        wanted = len(self.reader.numbers) + events
        await until(lambda: len(self.reader.numbers) >= wanted)

    async def drain(self) -> int:
        """Publish until something of it arrives; return how many accepted events were lost before."""
        await self.publisher.stop()
        accepted = list(self.publisher.accepted)
        last = max(accepted, default=0)
        async with asyncio.timeout(PATIENCE):
            while not self.reader.numbers or self.reader.numbers[-1] <= last:
                await self.publisher.publish(1)
                await asyncio.sleep(0.05)
        return len(set(accepted) - set(self.reader.numbers))

    async def revoke(self) -> int:
        """Revoke the victim's right to read; return the number of the policy event."""
        return await self.network.say(self.owner, Revoke((self.rights[1].id,)))

    async def meet_newcomer(self) -> int:
        """Start a broker that knows nothing; return how many events it delivers to the victim, who tries there."""
        network = self.network
        peers = [] if network.nats else [(network.brokers[1].port, 1)]
        newcomer = BrokerProcess(len(BROKERS) - 1, network.folder, peers, POLICY, nats=network.first.nats)
        network.newcomers.append(newcomer)
        await newcomer.start()
        reader, victim = Reader(), Reader()
        async with (
            client_of(newcomer.port, PDA, patience=PATIENCE) as honest,
            client_of(newcomer.port, self.victim, credentials=Credentials.of(*self.rights)) as hostile,
        ):
            with suppress(PenstockError):
                await hostile.subscribe(NEWS.name, callback=victim)
            await honest.subscribe(NEWS.name, callback=reader)
            async with asyncio.timeout(PATIENCE):
                while len(reader.numbers) < 20:
                    await self.publisher.publish(1)
                    await asyncio.sleep(0.02)
        return len(victim.numbers)

    def late(self, since: datetime) -> int:
        """Return how many events were handed to the victim after a time, by the brokers' own logs."""
        found = (line for broker in self.network.brokers for line in broker.deliveries())
        mine = [line for line in found if line["to"] == str(self.victim.principal)]
        return sum(len(line["ids"]) for line in mine if line["at"] > since.timestamp())


_victims = count(1)


@asynccontextmanager
async def honest_parties(network: Network) -> AsyncIterator[Honest]:
    """Connect the honest parties; all of them have got something when they are yielded."""
    victim = SigningKey(next(_victims).to_bytes(4, "big") * 8)
    rights = grant(victim, None, Right.CONNECT), grant(victim, NEWS, Right.SUBSCRIBE)
    async with AsyncExitStack() as stack:

        async def connected(broker: BrokerProcess, key: SigningKey) -> Client:
            return await stack.enter_async_context(client_of(broker.port, key, patience=PATIENCE, timeout=PATIENCE))

        owner = await connected(network.first, AGENCY)
        await completed(owner, await network.say(owner, publish(*rights)))
        reader, revoked = Reader(), Reader()
        await (await connected(network.last, PDA)).subscribe(NEWS.name, callback=reader)
        await (await connected(network.last, victim)).subscribe(NEWS.name, callback=revoked)
        feed = await (await connected(network.first, REPORTER)).advertise(NEWS.name)
        publisher = Publisher(feed)
        stack.push_async_callback(publisher.stop)
        await until(lambda: reader.numbers and revoked.numbers)
        # What was published before the subscription had reached the publisher's broker was not promised.
        publisher.accepted = [one for one in publisher.accepted if one >= reader.numbers[0]]
        yield Honest(network, owner, publisher, reader, revoked, victim, rights)


# Attacks.


@dataclass(frozen=True)
class Figures:
    """What an attack cost the honest parties."""

    attack: str
    #: what the attacker did
    blows: int
    #: events that were accepted, and of these the ones that never arrived
    accepted: int
    lost: int
    #: events in a second as a part of what was usual before, and the longest pause in seconds
    ratio: float
    pause: float
    #: seconds from the restart of a killed broker to the next event
    healing: float
    #: seconds until the revocation was complete, and events that the revoked reader got after that
    revocation: float
    late: int
    #: seconds of processor time of all brokers that one blow took, besides what they take in a calm network
    work: float
    #: megabytes by which the largest broker grew, and kilobytes that were added to decision logs
    memory: int
    logged: int

    def __str__(self) -> str:
        return (
            f"{self.attack:<42} blows {self.blows:>6}  lost {self.lost:>4} of {self.accepted:>5}  "
            f"throughput {self.ratio:4.0%}  pause {self.pause:5.2f} s  healing {self.healing:4.2f} s  "
            f"revocation {self.revocation:5.2f} s  late {self.late}  work {self.work * 1000:5.1f} ms  "
            f"memory {self.memory:+d} MB  log {self.logged:+d} kB"
        )

    def violations(self, bounds: Bounds) -> list[str]:
        """Return which bounds were not kept."""
        found = [f"{self.late} events delivered after the revocation was complete"] if self.late else []
        if bounds.lost is not None and self.lost > bounds.lost:
            found.append(f"{self.lost} accepted events lost; {bounds.lost} allowed")
        if self.work > bounds.work:
            found.append(f"a blow took {self.work:.3f} s of processor time; {bounds.work} s allowed")
        if IN_LONG_RUN:
            measured = (
                (self.ratio >= bounds.throughput, f"throughput {self.ratio:.0%}; {bounds.throughput:.0%} required"),
                (self.pause <= bounds.pause, f"pause of {self.pause:.1f} s; {bounds.pause} s allowed"),
                (self.healing <= bounds.healing, f"{self.healing:.1f} s to heal; {bounds.healing} s allowed"),
                (self.memory <= bounds.memory, f"{self.memory} MB more; {bounds.memory} MB allowed"),
                (self.logged <= bounds.logged, f"{self.logged} kB in decision logs; {bounds.logged} kB allowed"),
            )
            found += [text for kept, text in measured if not kept]
        return found


Fault: TypeAlias = Callable[[Network], Awaitable[int]]
"""Does something to a network that nobody wants; returns how often."""


async def under_attack(network: Network, attack: str, bounds: Bounds, fault: Fault | None = None) -> Figures:
    """Measure what an attack of the attacker or a fault of our own costs, with a revocation in the middle of it."""
    async with honest_parties(network) as honest:
        network.back = None
        begun, spent = time.time(), network.processor_time()
        await asyncio.sleep(CALM)
        await honest.more()
        calm = time.time() - begun
        usual, usual_work = honest.reader.rate(begun, time.time()), (network.processor_time() - spent) / calm
        memory, decisions, spent = network.memory(), network.decisions(), network.processor_time()
        if fault is None:
            await network.attacker.begin(network.order(attack, SECONDS))
        begun = time.time()
        ending = asyncio.ensure_future(network.attacker.end() if fault is None else fault(network))
        await asyncio.sleep(SECONDS / 2)
        revoking = time.time()
        try:
            complete = await completed(honest.owner, await honest.revoke())
        except AssertionError:
            # Whatever the attacker could not do is the better explanation.
            await ending
            raise
        revocation = time.time() - revoking
        blows = await ending
        ended = time.time()
        lost = await honest.drain()
        work = network.processor_time() - spent - usual_work * (time.time() - begun)
        late = honest.late(complete) + (await honest.meet_newcomer() if bounds.newcomer else 0)
        return Figures(
            attack=attack,
            blows=blows,
            accepted=len(honest.publisher.accepted),
            lost=lost,
            ratio=honest.reader.rate(begun, ended) / usual,
            pause=honest.reader.longest_pause(begun, ended),
            healing=honest.reader.first_after(network.back),
            revocation=revocation,
            late=late,
            work=max(0.0, work) / max(1, blows),
            memory=network.memory() - memory,
            logged=(network.decisions() - decisions) // 1024,
        )


def parameters(table: Mapping[str, Bounds]) -> list[ParameterSet]:
    """Return the attacks of this run as parameters of a test: some of them, or in a long run all."""
    if IN_LONG_RUN:
        return [pytest.param(name, marks=pytest.mark.long) for name in table]
    return [pytest.param(name) for name, bounds in table.items() if bounds.short]


def record(figures: Figures) -> None:
    """Print a line; in a long run, also keep the figures in a file."""
    sys.stdout.write(f"\n{figures}\n")
    if IN_LONG_RUN:
        kept = json.loads(_FIGURES.read_text()) if _FIGURES.exists() else {}
        kept[figures.attack] = asdict(figures)
        _FIGURES.write_text(json.dumps(kept, indent=1) + "\n")


def check(figures: Figures, bounds: Bounds) -> None:
    """Hold figures against the bounds of their attack."""
    record(figures)
    assert not figures.violations(bounds), f"{figures.violations(bounds)}\n{figures}"


class Stage:
    """Where attacks take place: one network after the other, each until an attack has spoiled it."""

    def __init__(self, folder: Callable[[], Path], nats: Callable[[], NatsServer] | None = None) -> None:
        self._folder, self._nats = folder, nats
        self._network: Network | None = None

    def run(self, attack: str, bounds: Bounds, fault: Fault | None = None) -> None:
        """Let an attack take place, and check what it cost. Afterwards all brokers run and see each other."""

        async def played() -> None:
            async with asyncio.timeout(4 * PATIENCE + SECONDS):
                network = self._network
                if network is None:
                    network = self._network = Network(self._folder(), None if self._nats is None else self._nats())
                    await network.start()
                figures = await under_attack(network, attack, bounds, fault)
                assert network.running() == [broker.key for broker in network.brokers]
                await network.until_whole()
                check(figures, bounds)
                if bounds.stays or bounds.newcomer:
                    self.close()

        try:
            asyncio.run(played())
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        if self._network is not None:
            self._network.close()
            self._network = None
