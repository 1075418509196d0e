"""A world of sealed events: brokers of which one manages keys, and others may read and may not.

Brokers and clients are those of `brokers`. `b0` manages the keys; `b0` and `b2` can publish. The owner grants `b1`,
`b3` and `b4` the right to read, and revokes it. The manager's log is on the disk of `b0`.

Steps:

- `publish PUBLISHER EVENT`
- `admit BROKER` and `expel BROKER`: the owner changes the broker's right.
- `rotate`: the manager begins new epochs.
"""

import asyncio
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
from penstock.model.types import EventType, Sealing
from penstock.simulate.brokers import READING, BrokerNetwork, grant, key_of
from penstock.simulate.disk import SimulatedDisk
from penstock.simulate.scenario import SimulationStep
from penstock.simulate.worlds.brokers import HOMES, LINKS, PUBLISHERS, BrokersWorld
from penstock.trust.capabilities import Right
from penstock.trust.key_statements import KeyRecord

_MANAGER: Final = "b0"
_WRITERS: Final = ("b0", "b2")
_MEMBERS: Final = ("b1", "b3", "b4")
#: seconds in which a manager that knows of a revocation has begun an epoch without the broker
_EVICTS: Final = 2.0
_KEK: Final = Secret(bytes(range(32)))


class DiskLog:
    """The log of a key manager on a simulated disk, with all records that it has ever had."""

    def __init__(self, disk: SimulatedDisk) -> None:
        self._disk = disk

    @property
    def every(self) -> list[bytes]:
        """All records, also those that were forgotten."""
        if not self._disk.names("keys.log"):
            return []
        records = parse_canonical(self._disk.read("keys.log"))
        return [one for one in records if isinstance(one, bytes)] if isinstance(records, tuple) else []

    async def append(self, number: int, record: bytes) -> bool:
        """Write a record, or return False. Raises `FailedError` (`file.unwritable`)."""
        before = self.every
        if number != len(before):
            return False
        try:
            self._disk.replace("keys.log", canonical((*before, record)))
        except OSError as error:
            raise FailedError("file.unwritable", f"the log cannot be written: {error.strerror}") from error
        return True

    async def read(self, number: int) -> Sequence[bytes]:
        """Return the records from a position on."""
        return self.every[number:]

    async def forget(self, number: int) -> None:
        """Keep all of them: the world looks at them in the end."""

    async def close(self) -> None:
        """Do nothing."""


class _SealingNetwork(BrokerNetwork):
    """Brokers whose sealing and opening is noted by the world."""

    world: "SealingWorld"

    def started(self, name: str, node: Node) -> None:
        """Note which blocks a broker seals and opens."""
        vault, world = node.core.vault, self.world
        seal, open_ = vault.seal, vault.open

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

        vault.seal, vault.open = sealing, opening  # type: ignore[method-assign]  # only this one broker's


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
        "rotate": ("MANAGER",),
    }
    _shares: Mapping[str, int] = {"publish": 8, "admit": 1, "expel": 1, "rotate": 1}

    def __init__(self, options: Mapping[str, int]) -> None:
        super().__init__(options)
        #: the epoch of each group in which a block was sealed, and who has opened which
        self.sealed: dict[tuple[str, bytes], int] = {}
        self.opened: dict[tuple[str, str, bytes], None] = {}
        #: which broker may open blocks of a group from an epoch on (`joined`), or may not (`left`)
        self._members: list[tuple[str, str, str, int]] = []
        #: how many evictions of a broker from a group are known
        self._evictions: dict[tuple[str, str], int] = {}

    def steps(self, random: Random, size: int, within: float) -> tuple[SimulationStep, ...]:
        """Draw events of both publishers, changes of brokers' rights, and new epochs."""
        found: list[SimulationStep] = []
        for number in range(size):
            (kind,) = random.choices([*self._shares], [*self._shares.values()])
            arguments: tuple[str, ...] = (random.choice(_MEMBERS),)
            if kind in ("publish", "rotate"):
                arguments = (random.choice(PUBLISHERS), f"e{number}") if kind == "publish" else (_MANAGER,)
            found.append(SimulationStep(round(random.uniform(0, within), 3), kind, arguments))
        return (*sorted(found, key=lambda step: step.at),)

    def _build(self) -> BrokerNetwork:
        network = _SealingNetwork(
            self._simulation,
            LINKS,
            clients=HOMES,
            definition=replace(READING, sealing=Sealing.ATTRIBUTE),
            rights={
                name: [grant(name, Right.PUBLISH), *([grant(name, Right.KEYS)] if name == _MANAGER else [])]
                for name in _WRITERS
            },
            managing=lambda name: Managing(self._log, _KEK) if name == _MANAGER else None,
        )
        network.world = self
        return network

    @property
    def _log(self) -> DiskLog:
        return DiskLog(self._simulation.disk(_MANAGER))

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
            case "rotate":
                if self._simulation.runs(_MANAGER):
                    self._simulation.start(_MANAGER, self._rotate())
            case _:
                await super().perform(step)

    async def _rotate(self) -> None:
        with suppress(PenstockError):
            for group in self._network.nodes[_MANAGER].keys.managed():
                self._network.nodes[_MANAGER].keys.rotate(group)

    def _grant(self, reader: str) -> None:
        if reader not in self._rights:
            super()._grant(reader)
            # Who was evicted does not come back to an epoch that has begun without it.
            for scope, (last, evicted) in self._epochs(reader).items():
                self._leave(reader, scope, evicted)
                self._members.append(("joined", reader, scope, last + 1 if evicted else last))

    def _revoke(self, reader: str) -> None:
        if reader in self._rights:
            # What an earlier order has led to says nothing about this one.
            for scope, (_, evicted) in self._epochs(reader).items():
                self._evictions[reader, scope] = len(evicted)
        super()._revoke(reader)

    async def _watch(self, reader: str, number: int) -> None:
        """Note also that a broker gets the keys of no later epoch, when the manager had time to begin one."""
        await super()._watch(reader, number)
        await asyncio.sleep(_EVICTS)
        if reader not in self._rights:
            for scope, (last, evicted) in self._epochs(reader).items():
                if not self._leave(reader, scope, evicted):
                    self._members.append(("left", reader, scope, last + 1))

    def _leave(self, broker: str, scope: str, evicted: Sequence[int]) -> bool:
        """Note the epochs that have begun without a broker since the last time; return whether there is one."""
        known = self._evictions.setdefault((broker, scope), 0)
        self._members += [("left", broker, scope, epoch) for epoch in evicted[known:]]
        self._evictions[broker, scope] = len(evicted)
        return len(evicted) > known

    def _epochs(self, broker: str) -> dict[str, tuple[int, list[int]]]:
        """Return the last epoch of each group, and the epochs that have begun with the eviction of a broker."""
        found: dict[str, tuple[int, list[int]]] = {scope: (0, []) for scope in _all_scopes()}
        for data in self._log.every if broker in _MEMBERS else ():
            record = read_record(open_record(_KEK, data)).value
            if isinstance(record, KeyRecord):
                _, evicted = found.setdefault(record.word.group.scope, (0, []))
                if key_of(broker).principal in record.evicted:
                    evicted.append(record.word.epoch)
                found[record.word.group.scope] = record.word.epoch, evicted
        return found

    async def settle(self) -> None:
        """Wait until everything is whole again, and note who was a member when, and who has opened what."""
        await super().settle()
        note = self._simulation.note
        writers = [("joined", broker, scope, 0) for broker in _WRITERS for scope in _all_scopes()]
        for kind, member, group, epoch in (*writers, *self._members):
            note(_MANAGER, kind, member=member, group=group, epoch=epoch)
        blocks = {data: f"block {number}" for number, (_, data) in enumerate(self.sealed)}
        for (scope, data), epoch in self.sealed.items():
            note(_MANAGER, "sealed", group=scope, block=blocks[data], epoch=epoch)
        for member, scope, data in self.opened:
            note(member, "opened", member=member, group=scope, block=blocks[data])

    def _promised(self) -> list[str]:
        """Return the readers whose brokers may read."""
        return [reader for reader in super()._promised() if HOMES[reader] in self._rights]
