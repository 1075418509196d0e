"""Worlds of sealed events: brokers that manage keys, and others that may read and may not.

Brokers and clients are those of `brokers`. `b0` and `b2` can publish. The owner grants `b1`, `b3` and `b4` the right to
read, and revokes it. In `sealing`, `b0` manages the keys, and has their log on its disk. In `sealing-replicas`, `b0`
and `b2` do, and the log is in the database `store`.

Steps:

- `publish PUBLISHER EVENT`
- `admit BROKER` and `expel BROKER`: the owner changes the broker's right.
- `lend BROKER SECONDS`: the owner gives the broker, if it has no right, one that ends by its date.
- `rotate MANAGER`: the manager begins new epochs.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from random import Random
from typing import Final

from penstock.broker.keys.log import read_record
from penstock.broker.keys.node_keys import Managing
from penstock.broker.keys.sealing import open_record
from penstock.broker.node.node import Node
from penstock.codec.sexp import canonical, parse_canonical
from penstock.crypto.seal_keys import column_scope
from penstock.crypto.wrapping import Secret
from penstock.errors import FailedError, PenstockError
from penstock.model.events import TransitEvent
from penstock.model.names import TypeKey
from penstock.model.principals import Principal
from penstock.model.types import EventType, Sealing
from penstock.simulate.brokers import READING, BrokerNetwork, grant, key_of
from penstock.simulate.disk import SimulatedDisk
from penstock.simulate.scenario import SimulationStep
from penstock.simulate.simulation import Simulation
from penstock.simulate.worlds.brokers import BROKERS, HOMES, LINKS, PUBLISHERS, BrokersWorld
from penstock.simulate.worlds.records import STORE, StoreLink
from penstock.trust.capabilities import Right
from penstock.trust.key_statements import KeyRecord
from penstock.trust.policy_state import publish

_WRITERS: Final = ("b0", "b2")
_MEMBERS: Final = ("b1", "b3", "b4")
#: seconds in which a manager that knows of a revocation has begun an epoch without the broker
_EVICTS: Final = 2.0
_KEK: Final = Secret(bytes(range(32)))
#: seconds by which a clock may be wrong, so that a right that has ended for so long has ended for all
_SKEW: Final = 1.0
#: seconds that a message to the database takes
_TAKES: Final = 0.001
#: for how many seconds a right is lent at least and at most
_LENT: Final = (2, 12)


class DiskLog:
    """The log of key managers on a simulated disk, with all records that it has ever had.

    `link` connects a manager to it if the log is in a database.
    """

    def __init__(self, disk: SimulatedDisk, link: StoreLink | None = None) -> None:
        self._disk = disk
        self._link = link

    async def _reach(self) -> None:
        if self._link is not None:
            await asyncio.sleep(_TAKES)
            self._link.reach()

    @property
    def every(self) -> list[bytes]:
        """All records, also those that were forgotten."""
        if not self._disk.names("keys.log"):
            return []
        records = parse_canonical(self._disk.read("keys.log"))
        return [one for one in records if isinstance(one, bytes)] if isinstance(records, tuple) else []

    async def append(self, number: int, record: bytes) -> bool:
        """Write a record, or return False. Raises `FailedError` (`file.unwritable`), and as the link does."""
        await self._reach()
        before = self.every
        follows = number == len(before)
        if follows:
            try:
                self._disk.replace("keys.log", canonical((*before, record)))
            except OSError as error:
                raise FailedError("file.unwritable", f"the log cannot be written: {error.strerror}") from error
        await self._reach()
        return follows

    async def read(self, number: int) -> Sequence[bytes]:
        """Return the records from a position on. Raises as the link does."""
        await self._reach()
        found = self.every[number:]
        await self._reach()
        return found

    async def forget(self, number: int) -> None:
        """Keep all of them: the world looks at them in the end."""

    async def close(self) -> None:
        """Do nothing."""


class _SealingNetwork(BrokerNetwork):
    """Brokers whose sealing and opening is noted by the world."""

    world: "SealingWorld"

    def started(self, name: str, node: Node) -> None:
        """Note which blocks a broker seals and opens, and which neighbours may have events that are not sealed."""
        vault, world = node.core.vault, self.world
        seal, open_, reads = vault.seal, vault.open, vault.reads_as_much
        members = {key_of(member).principal: member for member in _MEMBERS}

        def sealing(events: Sequence[TransitEvent], /) -> bytes:
            data = seal(events)
            for scope in _scopes(events):
                world.sealed[scope, data] = node.core.ring.current(scope) or 0
            return data

        def opening(data: bytes, /) -> Sequence[TransitEvent]:
            events = open_(data)
            for scope in _scopes(events):
                world.opened[name, scope, data] = None
            return events

        def reading(peer: Principal, of_type: TypeKey, /) -> bool:
            found = reads(peer, of_type)
            # By a clock that is wrong a right may not have ended.
            if found and peer in members and abs(self.simulation.clock(name).offset) < _SKEW:
                self.simulation.note(name, "trusted", reader=members[peer], topic=of_type.name, event="an event")
            return found

        vault.seal, vault.open = sealing, opening  # type: ignore[method-assign]  # only this one broker's
        vault.reads_as_much = reading


def _scopes(events: Sequence[TransitEvent]) -> list[str]:
    """Return the names of the groups whose keys the values of events need."""
    found: dict[str, None] = {}
    for event in events:
        found[str(event.key)] = None
        for attribute, value in event.values.items():
            if value is not None:
                found[column_scope(event.key, attribute)] = None
    return list(found)


def _all_scopes() -> list[str]:
    """Return the names of all groups: of the type, and of each attribute."""
    type_ = EventType.of(READING)
    return [str(type_.key), *(column_scope(type_.key, str(attribute.id)) for attribute in type_.attributes)]


class SealingWorld(BrokersWorld):
    """See the module."""

    name = "sealing"
    step_kinds: Mapping[str, tuple[str, ...]] = {
        "publish": ("PUBLISHER", "EVENT"),
        "admit": ("BROKER",),
        "expel": ("BROKER",),
        "lend": ("BROKER", "SECONDS"),
        "rotate": ("MANAGER",),
    }
    #: a manager that could not write its log tries again after five seconds
    _arrives = 7.0
    _managers: tuple[str, ...] = ("b0",)
    _shares: Mapping[str, int] = {"publish": 8, "admit": 1, "expel": 2, "lend": 1, "rotate": 1}

    def __init__(self, options: Mapping[str, int]) -> None:
        super().__init__(options)
        #: the epoch of each group in which a block was sealed, and who has opened which
        self.sealed: dict[tuple[str, bytes], int] = {}
        self.opened: dict[tuple[str, str, bytes], None] = {}
        #: which broker may open blocks of a group from an epoch on (`joined`), or may not (`left`)
        self._members: list[tuple[str, str, str, int]] = []
        #: the brokers whose right ends by its date, and how often each broker was given a right
        self._lent: set[str] = set()
        self._given: Counter[str] = Counter()
        #: how many evictions of a broker from a group are known
        self._evictions: dict[tuple[str, str], int] = {}

    def steps(self, random: Random, size: int, within: float) -> tuple[SimulationStep, ...]:
        """Draw events of both publishers, changes of brokers' rights, and new epochs."""
        found: list[SimulationStep] = []
        for number in range(size):
            (kind,) = random.choices([*self._shares], [*self._shares.values()])
            match kind:
                case "publish":
                    arguments: tuple[str, ...] = (random.choice(PUBLISHERS), f"e{number}")
                case "rotate":
                    arguments = (random.choice(self._managers),)
                case "lend":
                    arguments = (random.choice(_MEMBERS), str(random.randint(*_LENT)))
                case _:
                    arguments = (random.choice(_MEMBERS),)
            found.append(SimulationStep(round(random.uniform(0, within), 3), kind, arguments))
        return (*sorted(found, key=lambda step: step.at),)

    def _build(self) -> BrokerNetwork:
        network = _SealingNetwork(
            self._simulation,
            LINKS,
            clients=HOMES,
            definition=replace(READING, sealing=Sealing.ATTRIBUTE),
            rights={
                name: [grant(name, Right.PUBLISH), *([grant(name, Right.KEYS)] if name in self._managers else [])]
                for name in _WRITERS
            },
            managing=self._managing,
        )
        network.world = self
        return network

    def _managing(self, broker: str) -> Managing | None:
        if broker not in self._managers:
            return None
        others = frozenset(key_of(other).principal for other in self._managers if other != broker)
        return Managing(self._log(broker), _KEK, others)

    def _log(self, manager: str) -> DiskLog:
        """Return the log as a manager has it."""
        return DiskLog(self._simulation.disk(manager))

    def _first(self) -> None:
        super()._first()
        for broker in _MEMBERS:
            self._grant(broker)

    async def perform(self, step: SimulationStep) -> None:
        """Perform a step, which the world has."""
        match step.name:
            case "admit":
                self._grant(step.arguments[0])
            case "expel":
                self._revoke(step.arguments[0])
            case "lend":
                self._lend(step.arguments[0], float(step.arguments[1]))
            case "rotate":
                if self._simulation.runs(step.arguments[0]):
                    self._simulation.start(step.arguments[0], self._rotate(step.arguments[0]))
            case _:
                await super().perform(step)

    async def _rotate(self, manager: str) -> None:
        with suppress(PenstockError):
            for group in self._network.nodes[manager].keys.managed():
                self._network.nodes[manager].keys.rotate(group)

    def _grant(self, reader: str) -> None:
        if reader not in self._rights:
            super()._grant(reader)
            self._join(reader)

    def _join(self, broker: str) -> None:
        """Note that a broker may open what is sealed from now on."""
        self._given[broker] += 1
        # Who was evicted does not come back to an epoch that has begun without it.
        for scope, (last, evicted) in self._epochs(broker).items():
            self._leave(broker, scope, evicted)
            self._members.append(("joined", broker, scope, last + 1 if evicted and evicted[-1] else last))

    def _revoke(self, reader: str) -> None:
        if reader in self._rights:
            self._end(reader)
        super()._revoke(reader)

    def _end(self, broker: str) -> None:
        """Remember that what an earlier order has led to says nothing about the end of this right."""
        for scope, (_, evicted) in self._epochs(broker).items():
            self._evictions[broker, scope] = len(evicted)

    def _lend(self, broker: str, seconds: float) -> None:
        if broker not in self._rights and broker not in self._lent:
            ends = self._simulation.time + seconds
            right = grant(broker, Right.SUBSCRIBE, valid=self._valid(ends))
            self._latest[broker] = right.id
            self._changes.put_nowait((publish(right), ""))
            self._simulation.note("owner", "granted", reader=broker, topic=READING.name.name)
            self._join(broker)
            self._lent.add(broker)
            self._simulation.start("lent", self._take_back(broker, ends))

    async def _take_back(self, broker: str, ends: float) -> None:
        await asyncio.sleep(ends - self._simulation.time)
        self._lent.discard(broker)
        given = self._given[broker]
        if not self._has_right(broker):
            self._end(broker)
        await asyncio.sleep(2 * _SKEW)
        # A right that it had before may not be revoked everywhere yet.
        known = self._changes.empty() and not self._unsent and self._agreed()
        if known and not self._has_right(broker) and given == self._given[broker]:
            self._simulation.note("owner", "revoked", reader=broker, topic=READING.name.name)

    def _has_right(self, reader: str) -> bool:
        return super()._has_right(reader) or reader in self._lent

    async def _watch(self, reader: str, number: int) -> None:
        """Note also that a broker gets the keys of no later epoch, when the manager had time to begin one."""
        given, had = self._given[reader], self._has_right(reader)
        await super()._watch(reader, number)
        await asyncio.sleep(_EVICTS)
        if not had and given == self._given[reader]:
            for scope, (last, evicted) in self._epochs(reader).items():
                if not self._leave(reader, scope, evicted):
                    self._members.append(("left", reader, scope, last + 1))

    def _leave(self, broker: str, scope: str, evicted: Sequence[int]) -> bool:
        """Note the epochs that have begun without a broker since the last time; return whether there is one."""
        known = self._evictions.setdefault((broker, scope), 0)
        begun = [("left", broker, scope, epoch) for epoch in evicted[known:] if epoch]
        self._members += begun
        self._evictions[broker, scope] = len(evicted)
        return bool(begun)

    def _epochs(self, broker: str) -> dict[str, tuple[int, list[int]]]:
        """Return the last epoch of each group, and the epochs that have begun with the eviction of a broker.

        0 stands for an eviction after which it was admitted again: one that came late, when it had another right.
        """
        found: dict[str, tuple[int, list[int]]] = {scope: (0, []) for scope in _all_scopes()}
        for data in self._log(self._managers[0]).every if broker in _MEMBERS else ():
            record = read_record(open_record(_KEK, data)).value
            if isinstance(record, KeyRecord):
                _, evicted = found.setdefault(record.word.group.scope, (0, []))
                if key_of(broker).principal in record.evicted:
                    evicted.append(record.word.epoch)
                if any(key_of(broker).principal == who for who, _ in record.admitted):
                    evicted = [0] * len(evicted)
                found[record.word.group.scope] = record.word.epoch, evicted
        return found

    def _before_last(self) -> None:
        """Note that who has no right when all is whole again opens nothing of the present epoch any more."""
        for broker in _MEMBERS:
            if broker not in self._rights:
                for scope, (last, evicted) in self._epochs(broker).items():
                    self._leave(broker, scope, evicted)
                    self._members.append(("left", broker, scope, last))

    def _whole(self) -> bool:
        return super()._whole() and not self._lent and all(map(self._is_known, _all_scopes()))

    def _is_known(self, scope: str) -> bool:
        """Return whether all have the newest epoch. Who was cut off hears of it by the manager's next notice."""
        held = {node.core.ring.current(scope) for node in self._network.nodes.values()}
        return len(held - {None}) <= 1

    async def settle(self) -> None:
        """Wait until everything is whole again, and note who was a member when, and who has opened what."""
        await super().settle()
        note, manager = self._simulation.note, self._managers[0]
        writers = [("joined", broker, scope, 0) for broker in _WRITERS for scope in _all_scopes()]
        for kind, member, group, epoch in (*writers, *self._members):
            note(manager, kind, member=member, group=group, epoch=epoch)
        blocks = {data: f"block {number}" for number, (_, data) in enumerate(self.sealed)}
        for (scope, data), epoch in self.sealed.items():
            note(manager, "sealed", group=scope, block=blocks[data], epoch=epoch)
        for member, scope, data in self.opened:
            note(member, "opened", member=member, group=scope, block=blocks[data])

    def _promised(self) -> list[str]:
        """Return the readers whose brokers may read."""
        return [reader for reader in super()._promised() if HOMES[reader] in self._rights]


class ReplicasWorld(SealingWorld):
    """See the module."""

    name = "sealing-replicas"
    processes = (*BrokersWorld.processes, STORE)
    fault_targets: Mapping[str, tuple[str, ...]] = {"disk-full": (*BROKERS, STORE)}
    _managers = _WRITERS

    async def start(self, simulation: Simulation) -> None:
        """Start the database, and then everything else."""
        self._simulation = simulation
        await self.restart(STORE)
        await super().start(simulation)

    async def restart(self, process: str) -> None:
        """Start a process, also one that has crashed."""
        if process == STORE:
            self._simulation.start(STORE, asyncio.sleep(0))
        else:
            await super().restart(process)

    def _log(self, manager: str) -> DiskLog:
        return DiskLog(self._simulation.disk(STORE), StoreLink(self._simulation, manager))
