"""Worlds of brokers and their clients: `brokers`, where requests come and go, and `revocation`, where rights do.

Brokers are `b0` to `b4`, in a ring with a chord. Publishers `p0` and `p1` and readers `r0` to `r2` are clients of
different brokers. The process `owner` hands policy events in.

Steps:

- `publish PUBLISHER EVENT`
- `subscribe READER` and `unsubscribe READER`
- `grant READER` and `revoke READER`: the owner changes the reader's right.

The value of an event follows from its number. In `revocation`, `r1` may see no values, and `r2` only events with high
ones. In `brokers-on-fabric` a fabric connects the brokers, in the place of links.
"""

import asyncio
import hashlib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from random import Random
from typing import TYPE_CHECKING, Final

from penstock.broker.client.client import Client, Feed, Subscription
from penstock.broker.core.settings import TrustSettings
from penstock.broker.evolution.policy_keeper import StampSettings
from penstock.errors import PenstockError, RefusedError
from penstock.simulate.brokers import OWNER, READING, BrokerNetwork, ReaderPart, grant, value_of
from penstock.simulate.fabric import FABRIC
from penstock.simulate.scenario import SimulationStep
from penstock.simulate.simulation import START, Simulation
from penstock.trust.capabilities import Right
from penstock.trust.policy_events import Change, PolicyEvent, PublishCertificates, Revoke
from penstock.trust.policy_state import publish
from penstock.trust.validity import Validity

if TYPE_CHECKING:
    from penstock.model.events import Event
    from penstock.trust.certificates import Certificate
    from penstock.trust.signed import SignedValue

LINKS: Final = ((1, 0), (2, 1), (3, 2), (4, 3), (4, 0), (3, 0))
BROKERS: Final = ("b0", "b1", "b2", "b3", "b4")
HOMES: Final = {"p0": "b0", "p1": "b2", "r0": "b1", "r1": "b3", "r2": "b4", "owner": "b0"}
PUBLISHERS: Final = ("p0", "p1")
READERS: Final = ("r0", "r1", "r2")
_TOPIC: Final = READING.name.name
#: the brokers that sign time-stamps, which last shorter than many partitions
_STAMPERS: Final = ("b0", "b3")
_STAMPS: Final = StampSettings(period=timedelta(seconds=3), every=timedelta(seconds=1))
#: seconds between two attempts of a client
_AGAIN: Final = 0.5
#: seconds in which everything must be whole again when faults have stopped
_SETTLES: Final = 240.0
#: by how much a broker's time may be ahead of a clock that it believes
_STEP: Final = timedelta(seconds=2)


def _digest(names: Iterable[str]) -> str:
    return hashlib.sha256(" ".join(sorted(names)).encode()).hexdigest()[:16]


def _certificates_of(change: Change) -> tuple[str, ...]:
    match change:
        case Revoke(certificates):
            return certificates
        case PublishCertificates(credentials):
            return tuple(one.id for one in credentials.certificates)
    return ()


class BrokersWorld:
    """See the module."""

    name = "brokers"
    #: what comes twice or in another order does so beneath connections, which hide it
    fault_kinds: tuple[str, ...] = (
        *("partition", "loss", "delay", "slow", "stop", "crash", "skew", "jump", "disk-full"),
    )
    fault_amounts: Mapping[str, tuple[float, ...]] = {}
    fault_targets: Mapping[str, tuple[str, ...]] = {"disk-full": BROKERS}
    step_kinds: Mapping[str, tuple[str, ...]] = {
        "publish": ("PUBLISHER", "EVENT"),
        **dict.fromkeys(("subscribe", "unsubscribe", "grant", "revoke"), ("READER",)),
    }
    option_names = ()
    processes = (*BROKERS, *HOMES)
    seconds = 40.0
    #: seconds for what is under way when all is whole again, and for the last events
    _arrives = 5.0
    #: the steps, and how often each is drawn
    _shares: Mapping[str, int] = {"publish": 8, "subscribe": 1, "unsubscribe": 1}
    #: what readers may see that may not see everything
    _parts: Mapping[str, ReaderPart] = {}

    def __init__(self, options: Mapping[str, int]) -> None:
        del options
        self._clients: dict[str, Client] = {}
        self._feeds: dict[str, Feed[Event]] = {}
        self._subscriptions: dict[str, Subscription[Event]] = {}
        #: the readers that want to read
        self._reading = set(READERS)
        #: the certificate of each process whose right to read the owner has granted, and how many there were
        self._rights: dict[str, Certificate] = {}
        self._issued = 0
        #: the id of the last such certificate of each process, also of one that is not signed yet
        self._latest: dict[str, str] = {}
        #: the certificates that each change of the owner is about, by its number
        self._about: dict[int, tuple[str, ...]] = {}
        #: changes that the owner has not signed, each with the reader whose right it revokes; and those not handed in
        self._changes: asyncio.Queue[tuple[Change, str]] = asyncio.Queue()
        self._unsent: list[tuple[SignedValue[PolicyEvent], str]] = []

    def steps(self, random: Random, size: int, within: float) -> tuple[SimulationStep, ...]:
        """Draw events of both publishers, and changes of requests or rights."""
        found: list[SimulationStep] = []
        for number in range(size):
            (kind,) = random.choices([*self._shares], [*self._shares.values()])
            arguments = (random.choice(PUBLISHERS), f"e{number}") if kind == "publish" else (random.choice(READERS),)
            found.append(SimulationStep(round(random.uniform(0, within), 3), kind, arguments))
        return (*sorted(found, key=lambda step: step.at),)

    # --- Processes -----------------------------------------------------------------------------------------------

    async def start(self, simulation: Simulation) -> None:
        """Start the brokers, grant everybody's rights, and connect all clients."""
        self._simulation = simulation
        self._network = self._build()
        await self._network.start()
        await self.restart("owner")
        self._first()
        await self._network.until(lambda: self._changes.empty() and not self._unsent and self._agreed())
        for name in (*PUBLISHERS, *READERS):
            await self.restart(name)
        await self._network.until(lambda: len(self._feeds) + len(self._subscriptions) == len(HOMES) - 1)

    def _first(self) -> None:
        """Let the owner grant the rights that everybody begins with."""
        self._changes.put_nowait((publish(*(grant(name, Right.PUBLISH) for name in PUBLISHERS)), ""))
        for reader in READERS:
            self._grant(reader)

    def _promised(self) -> list[str]:
        """Return the readers that must get everything, now that all is whole again."""
        return sorted(self._reading & self._rights.keys())

    def _build(self) -> BrokerNetwork:
        return BrokerNetwork(self._simulation, LINKS, clients=HOMES)

    async def restart(self, process: str) -> None:
        """Start a process, also one that has crashed."""
        if process not in HOMES:
            await self._network.restart(process)
        elif process == "owner":
            # Another queue: the process that has crashed still waits at the old one.
            before, self._changes = self._changes, asyncio.Queue()
            while not before.empty():
                self._changes.put_nowait(before.get_nowait())
            self._simulation.start(process, self._own())
        else:
            # What it had has ended with it.
            self._feeds.pop(process, None)
            self._subscriptions.pop(process, None)
            work = self._publish_from(process) if process in PUBLISHERS else self._read(process)
            self._simulation.start(process, work)

    def _known(self) -> list[int]:
        """Return how many changes of the owner each broker has, without those that have none."""
        owner = OWNER.principal
        # A status would tell it too, and takes much longer.
        keepers = [node.policies._keeper for node in self._network.nodes.values()]  # noqa: SLF001
        return [events[-1].value.number for keeper in keepers if (events := keeper.log(owner))]

    def _agreed(self) -> bool:
        """Return whether all brokers have everything that the owner has said."""
        return self._known() == [self._network.author.number] * len(self._network.brokers)

    async def _connected(self, name: str) -> Client:
        """Connect a client, however often that takes. It connects again by itself from then on."""
        while True:
            client = self._network.client(name, HOMES[name])
            try:
                await client.__aenter__()
            except PenstockError:
                await asyncio.sleep(_AGAIN)
            else:
                self._clients[name] = client
                return client

    async def _publish_from(self, name: str) -> None:
        client = await self._connected(name)
        while name not in self._feeds:
            try:
                self._feeds[name] = await client.advertise(READING.name)
            except PenstockError:
                await asyncio.sleep(_AGAIN)

    async def _read(self, name: str) -> None:
        client = await self._connected(name)
        while True:
            subscription = self._subscriptions.get(name)
            try:
                if name in self._reading and subscription is None:
                    self._subscriptions[name] = await client.subscribe(READING.name)
                    self._simulation.note(name, "subscribed", reader=name)
                elif name not in self._reading and subscription is not None:
                    await subscription.unsubscribe()
                    del self._subscriptions[name]
                elif subscription is not None:
                    with suppress(TimeoutError):
                        event = await subscription.next(_AGAIN)
                        self._simulation.note(name, "received", reader=name, event=str(event["event"]))
                    continue
            except PenstockError as error:
                if isinstance(error, RefusedError) and subscription is not None:
                    self._subscriptions.pop(name, None)
            await asyncio.sleep(_AGAIN)

    # --- The owner -----------------------------------------------------------------------------------------------

    def _grant(self, reader: str) -> None:
        if reader in self._rights:
            return
        self._rights[reader] = right = grant(reader, Right.SUBSCRIBE, valid=self._valid(), part=self._parts.get(reader))
        self._latest[reader] = right.id
        self._simulation.note("owner", "granted", reader=reader, topic=_TOPIC)
        self._changes.put_nowait((publish(right), ""))

    def _valid(self, ends: float | None = None) -> Validity:
        """Return the validity of another certificate, which has another id: one that was revoked stays so."""
        self._issued += 1
        start = datetime.fromtimestamp(START, UTC)
        until = None if ends is None else start + timedelta(seconds=ends)
        return Validity.between(start - timedelta(days=1, seconds=self._issued), until)

    def _revoke(self, reader: str) -> None:
        right = self._rights.pop(reader, None)
        if right is not None:
            self._changes.put_nowait((Revoke((right.id,)), reader))

    async def _own(self) -> None:
        """Sign changes of policy one after the other, and hand each in until a broker has taken it.

        What the owner has signed it must not sign again otherwise; so it is on a disk, which this process leaves out.
        """
        author, note = self._network.author, self._simulation.note
        client = await self._connected("owner")
        while True:
            if not self._unsent:
                change, revoked = await self._changes.get()
                now = datetime.fromtimestamp(START + self._simulation.time, UTC)
                self._unsent.append((author.change(now, change), revoked))
                self._about[author.number] = _certificates_of(change)
            signed, revoked = self._unsent[0]
            try:
                await client.evolve(signed.to_bytes())
            except PenstockError as error:
                note("owner", "not handed in", code=error.code)
                await asyncio.sleep(_AGAIN)
                continue
            self._unsent.pop(0)
            note("owner", "acknowledged", of="policy", change=str(signed.value.number))
            # The reader may have been given another right since, which is signed next.
            if revoked and self._latest[revoked] in self._about[signed.value.number]:
                self._simulation.start("watch", self._watch(revoked, signed.value.number))

    def _has_right(self, reader: str) -> bool:
        return reader in self._rights

    async def _watch(self, reader: str, number: int) -> None:
        """Note that a revocation is complete as soon as a broker says so, unless the right is given again."""
        network, latest = self._network, self._latest[reader]
        while latest == self._latest[reader] and not self._has_right(reader):
            for name, node in network.nodes.items():
                with suppress(PenstockError):
                    if self._simulation.runs(name) and node.policies.completion(OWNER.principal, number).complete:
                        self._simulation.note(name, "revoked", reader=reader, topic=_TOPIC, number=number)
                        return
            await asyncio.sleep(0.02)

    # --- Steps ---------------------------------------------------------------------------------------------------

    async def perform(self, step: SimulationStep) -> None:
        """Perform a step, which the world has."""
        name = step.arguments[0]
        match step.name:
            case "publish":
                if name in self._feeds and self._simulation.runs(name):
                    self._simulation.start(name, self._publish(name, step.arguments[1]))
            case "subscribe":
                self._reading.add(name)
            case "unsubscribe":
                self._reading.discard(name)
            case "grant":
                self._grant(name)
            case "revoke":
                self._revoke(name)
            case _:
                raise ValueError(step.name)

    async def _publish(self, name: str, event: str) -> None:
        try:
            await self._feeds[name].publish(event=event, value=value_of(event))
        except PenstockError as error:
            self._simulation.note(name, "not published", event=event, code=error.code)
        else:
            self._simulation.note(name, "published", event=event)

    async def settle(self) -> None:
        """Wait until all brokers know each other and the owner's policy, and let the last events arrive."""
        with suppress(TimeoutError):
            await self._network.until(self._whole, _SETTLES)
        await asyncio.sleep(self._arrives)
        self._before_last()
        for name in PUBLISHERS:
            self._simulation.start(name, self._publish(name, f"last of {name}"))
            for reader in self._promised():
                self._simulation.note("owner", "promised", reader=reader, event=f"last of {name}")
        await asyncio.sleep(self._arrives)
        note = self._simulation.note
        for name, node in self._network.nodes.items():
            state = node.policies._keeper.state(OWNER.principal)  # noqa: SLF001  # the whole state
            published = frozenset(one.id for one in state.credentials)
            held = published | state.revoked
            changes = tuple(str(number) for number, about in self._about.items() if held.issuperset(about))
            note(name, "holds", of="policy", changes=changes)
            note(name, "replica", of="policy", state=f"{_digest(published)} without {_digest(state.revoked)}")
            note(name, "replica", of="brokers", state=_digest(str(one) for one in node.brokers()))

    def _before_last(self) -> None:
        """Look at the brokers when all is whole again: for worlds that note more."""

    def _is_in_time(self, name: str) -> bool:
        """Return whether a broker believes its clock: one that was started while it was ahead takes a minute."""
        return self._network.nodes[name].core.latest <= self._simulation.clock(name).date() + _STEP

    def _whole(self) -> bool:
        network = self._network
        return (
            self._changes.empty()
            and not self._unsent
            and all(self._simulation.runs(name) for name in self.processes)
            and all(len(node.brokers()) == len(network.brokers) for node in network.nodes.values())
            and self._agreed()
            and all(map(self._is_in_time, network.brokers))
            and all(client.peer is not None for client in self._clients.values())
            and len(self._feeds) == len(PUBLISHERS)
            # Who has lost its right keeps its subscription; who had none when it asked has none.
            and (self._reading & self._rights.keys()) <= self._subscriptions.keys() <= self._reading
        )


class RevocationWorld(BrokersWorld):
    """See the module. Brokers deliver only while time-stamps are fresh, which `b0` and `b3` sign.

    Clocks do not jump by more than the brokers assume: a revocation is complete when the stamps of a broker that
    cannot be reached have expired.
    """

    name = "revocation"
    fault_kinds = tuple(kind for kind in BrokersWorld.fault_kinds if kind != "jump")
    _shares: Mapping[str, int] = {"publish": 8, "grant": 1, "revoke": 1}
    _parts: Mapping[str, ReaderPart] = {"r1": ReaderPart(attributes=("event",)), "r2": ReaderPart(low=False)}

    def _build(self) -> BrokerNetwork:
        return BrokerNetwork(
            self._simulation,
            LINKS,
            clients=HOMES,
            parts=self._parts,
            rights={name: [grant(name, Right.STAMP)] for name in _STAMPERS},
            trust=TrustSettings(strict=True),
            stamps=_STAMPS,
        )


class FabricBrokersWorld(BrokersWorld):
    """See the module. A fabric connects the brokers, whose servers can crash too."""

    name = "brokers-on-fabric"
    processes = (*BrokersWorld.processes, FABRIC)
    _shares: Mapping[str, int] = {"publish": 8, "subscribe": 1, "unsubscribe": 1, "grant": 1, "revoke": 1}

    def _build(self) -> BrokerNetwork:
        return BrokerNetwork(self._simulation, LINKS, clients=HOMES, on_fabric=True)

    async def restart(self, process: str) -> None:
        """Start a process, also one that has crashed."""
        if process == FABRIC:
            self._simulation.fabrics.start()
        else:
            await super().restart(process)
