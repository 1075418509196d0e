"""A simulation: one seed, one loop, and what the machines of a real system have: clocks, processors, network and disks.

    simulation = Simulation(7)
    clock = simulation.clock("shop")                  # for fabrics and components; `clock.date` for brokers
    fabric = simulation.fabric("shop")                # the fabric as the process `shop` sees it, across the network
    simulation.start("shop", serve(fabric, clock, simulation.random("shop").randbytes))  # a task of the process `shop`
    simulation.note("shop", "delivered", event=3)     # for checkers
    simulation.run_for(60)
    simulation.crash("shop")                          # as `kill -9`; what its disk had not synced is lost
    simulation.start("shop", ...)                     # it comes back with the same clock and disk
    simulation.log, simulation.trace                  # what happened, and its SHA-256 with all messages
    simulation.close()

Processes are known by their names, since one that has crashed comes back as a new one. While a simulation runs, what
production code does costs its process time: signing, verifying, deciding and so on take what `ServiceTimes` says. The
same seed gives the same log and the same messages, and therefore the same trace.

>>> async def tick(simulation: Simulation) -> None:
...     while True:
...         await simulation.clock("watch").sleep(1)
...         simulation.note("watch", "tick", second=round(simulation.time))
>>> with Simulation(seed=1) as simulation:
...     _ = simulation.start("watch", tick(simulation))
...     simulation.run_for(2.5)
>>> [(entry.kind, entry.fields) for entry in simulation.log]
[('tick', {'second': 1}), ('tick', {'second': 2})]
>>> simulation.trace[:12]
'f9fdd0df25a6'
"""

import asyncio
import functools
import hashlib
import importlib
import sys
import types
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from random import Random
from typing import Any, Final, NamedTuple, Self, TypeAlias, TypeVar

from penstock.fabric import Fabric
from penstock.simulate.disk import SimulatedDisk
from penstock.simulate.fabric import FabricServers
from penstock.simulate.isolation import isolated
from penstock.simulate.loop import SimulatedProcess, VirtualLoop, spend
from penstock.simulate.network import SimulatedNetwork

_T = TypeVar("_T")

#: when simulations begin: 2026-01-01, in seconds since 1970
START: Final = 1_767_225_600.0
#: what the field of a note can be: data whose text is the same in every process
Plain: TypeAlias = "str | int | float | bool | bytes | tuple[Plain, ...] | None"

# ----------------------------------------------------------------------------------------------------------------------
# Service times: how long the work of production code keeps the processor of its process busy.


#: the functions behind each service; their calls take time
SERVICES: Final[Mapping[str, tuple[str, ...]]] = {
    "sign": ("penstock.crypto.keys:SigningKey.sign",),
    "verify": ("penstock.crypto.keys:PublicKey.verify",),
    "decide": ("penstock.guard.decision:decide",),
    "evaluate": (
        "penstock.policy.engine.compiler:CompiledPolicy.evaluate",
        "penstock.policy.engine.compiler:CompiledPolicy.ask",
    ),
    "seal": ("penstock.crypto.sealer:Sealer.seal_encoded",),
    "open": (
        "penstock.crypto.opener:Opener.open",
        "penstock.crypto.opener:Opener.open_events",
        "penstock.crypto.opener:Opener.open_parts",
        "penstock.crypto.opener:Opener.open_encoded",
    ),
    "route": ("penstock.broker.routing.router:Router.receive",),
    "publish": ("penstock.broker.core.event_path:EventPath.publish",),
    "deliver": ("penstock.broker.core.event_path:EventPath.deliver",),
}


@dataclass(frozen=True, slots=True)
class ServiceTimes:
    """Seconds for one call of each service (`SERVICES`).

    The defaults are fixed, so that a trace does not depend on the machine. `penstock simulate calibrate` measures those
    of a machine.
    """

    seconds: Mapping[str, float] = field(
        default_factory=lambda: {
            "sign": 40e-6,
            "verify": 90e-6,
            "decide": 150e-6,
            "evaluate": 60e-6,
            "seal": 120e-6,
            "open": 90e-6,
            "route": 60e-6,
            "publish": 80e-6,
            "deliver": 40e-6,
        }
    )

    def of(self, service: str) -> float:
        """Return the seconds for one call of a service; 0 for one that is not in the table."""
        return self.seconds.get(service, 0.0)


def serving(times: ServiceTimes) -> AbstractContextManager[None]:
    """Let calls of production code spend their service times, in whatever simulated process they happen."""
    return replaced_services(lambda service, original: _spending(original, times.of(service)))


def replaced_services(
    replacement: Callable[[str, Callable[..., Any]], Callable[..., Any]],
) -> AbstractContextManager[None]:
    """Replace the functions behind services: a function gets the service and the original of each."""
    return replaced_functions(((service, path) for service, paths in SERVICES.items() for path in paths), replacement)


@contextmanager
def replaced_functions(
    functions: Iterable[tuple[str, str]], replacement: Callable[[str, Callable[..., Any]], Callable[..., Any]]
) -> Iterator[None]:
    """Replace functions, each with a word and its path: a function gets the word and the original of each."""
    undo: list[tuple[Any, str, object]] = []
    try:
        for word, path in functions:
            module_name, _, qualified = path.partition(":")
            *owners, name = qualified.split(".")
            where: Any = functools.reduce(getattr, owners, importlib.import_module(module_name))
            original = vars(where)[name]
            new = replacement(word, original)
            places = [where] if owners else [one for one in _penstock() if vars(one).get(name) is original]
            for place in places:
                undo.append((place, name, original))
                setattr(place, name, new)
        yield
    finally:
        for place, name, original in reversed(undo):
            setattr(place, name, original)


def _spending(original: Callable[..., Any], seconds: float) -> Callable[..., Any]:
    @functools.wraps(original)
    def serve(*args: Any, **named: Any) -> Any:
        spend(seconds)
        return original(*args, **named)

    return serve


def _penstock() -> list[types.ModuleType]:
    return [module for name, module in list(sys.modules.items()) if name.startswith("penstock.")]


# ----------------------------------------------------------------------------------------------------------------------
# Clocks.


class SimulatedClock:
    """The clock of a process, for fabrics and components (`now`, `sleep`) and for brokers (`date`, `steady`).

    It is wrong by `offset` seconds, which a fault changes. It survives the process, as the clock of a machine does.
    """

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self.offset = 0.0

    def set(self, offset: float) -> None:
        """Let the clock be wrong by so many seconds."""
        self.offset = offset

    def now(self) -> float:
        """Return the seconds since 1970, as this process believes."""
        return START + self.offset + self._loop.time()

    def date(self) -> datetime:
        """Return the time, as this process believes."""
        return datetime.fromtimestamp(self.now(), UTC)

    def steady(self) -> float:
        """Return seconds of a clock that nobody sets."""
        return self._loop.time()

    async def sleep(self, seconds: float) -> None:
        """Wait. That the clock is set meanwhile does not matter."""
        await asyncio.sleep(seconds)


# ----------------------------------------------------------------------------------------------------------------------
# The simulation.


class Entry(NamedTuple):
    """Something that happened: when in virtual time, in which process, and what."""

    at: float
    process: str
    kind: str
    fields: dict[str, Plain]


class Simulation:
    """See the module. Everything random comes from the seed; use `random` with one name for each purpose."""

    def __init__(self, seed: int = 0, times: ServiceTimes | None = None) -> None:
        #: what random sources come from
        self._source = str(seed)
        self.times = times or ServiceTimes()
        self.loop = VirtualLoop(seed)
        self.log: list[Entry] = []
        #: how many messages the network was given
        self.messages = 0
        self._closed = False
        self._hash = hashlib.sha256()
        self._processes: dict[str, SimulatedProcess] = {}
        self._randoms: dict[str, Random] = {}
        self._clocks: dict[str, SimulatedClock] = {}
        self._servers: FabricServers | None = None
        self._disks: dict[str, SimulatedDisk] = {}
        self.network = SimulatedNetwork(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all processes. The log and the trace stay as they are."""
        self._closed = True
        self.loop.close()

    # --- Time, randomness and the log ----------------------------------------------------------------------------

    @property
    def time(self) -> float:
        """The virtual time in seconds since the simulation began."""
        return self.loop.time()

    def random(self, name: str) -> Random:
        """Return the random source for a purpose, always the same one. Others do not change what it gives."""
        found = self._randoms.get(name)
        if found is None:
            found = self._randoms[name] = Random(f"{self._source}/{name}")  # noqa: S311  # a simulation must be repeatable
        return found

    def reseed(self, seed: int) -> None:
        """Let everything random come from another seed from now on. No source begins again with what it gave before."""
        self._source = f"{self._source}, then {seed}"
        self.loop.reseed(self._source)
        for name, random in self._randoms.items():
            random.seed(f"{self._source}/{name}")

    def clock(self, process: str) -> SimulatedClock:
        """Return the clock of a process, always the same one."""
        return self._clocks.setdefault(process, SimulatedClock(self.loop))

    def disk(self, process: str) -> SimulatedDisk:
        """Return the disk of a process, always the same one."""
        found = self._disks.get(process)
        if found is None:
            found = self._disks[process] = SimulatedDisk(self.loop, self.random(f"disk of {process}"))
        return found

    def note(self, process: str, kind: str, **fields: Plain) -> None:
        """Write into the log what happened, for checkers."""
        if self._closed:
            # Tasks that are ended may clean up, in any order.
            return
        entry = Entry(self.loop.time(), process, kind, fields)
        self.log.append(entry)
        self.record(repr((entry.at, process, kind, sorted(fields.items()))).encode())

    def record(self, data: bytes) -> None:
        """Let data be part of the trace. Data must be the same in every process with the same seed."""
        if not self._closed:
            self._hash.update(len(data).to_bytes(8) + data)

    @property
    def trace(self) -> str:
        """The SHA-256 of everything that was noted and sent until now."""
        return self._hash.hexdigest()

    # --- Processes -----------------------------------------------------------------------------------------------

    def process(self, name: str) -> SimulatedProcess:
        """Return the process of a name, a new one if there is none that runs."""
        found = self._processes.get(name)
        if found is None or not found.alive:
            found = self._processes[name] = self.loop.process(name)
        return found

    @property
    def processes(self) -> tuple[str, ...]:
        """The names of all processes that have ever run, in the order of their first start."""
        return tuple(self._processes)

    def runs(self, name: str) -> bool:
        """Return whether a process is there: it has started, and has not crashed since."""
        found = self._processes.get(name)
        return found is not None and found.alive

    def start(self, process: str, work: Coroutine[Any, Any, _T]) -> "asyncio.Task[_T]":
        """Run work as a task of a process, which starts with it unless it runs already."""
        return self.loop.start(self.process(process), work)

    def crash(self, process: str) -> None:
        """End a process as if by `kill -9`, and lose what its disk had not synced."""
        found = self._processes.get(process)
        if found is not None and found.alive:
            self.loop.kill(found)
            self.network.crashed(process)
            self.disk(process).crashed()
            if self._servers is not None:
                self._servers.crashed(process)

    def fabric(self, process: str) -> Fabric:
        """Return the fabric as a process sees it, across the network. Its servers are the process `fabric`."""
        return self.fabrics.client(process)

    @property
    def fabrics(self) -> FabricServers:
        """The servers of the fabric, in the process `fabric`. Call `start` after a crash."""
        if self._servers is None:
            self._servers = FabricServers(self)
        return self._servers

    def service(self, name: str, calls: int = 1) -> None:
        """Spend the time of a service in the current process: for work that `SERVICES` does not name."""
        spend(self.times.of(name) * calls)

    # --- Running -------------------------------------------------------------------------------------------------

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run until some work of the driver, which is in no process, is done. Return its result."""
        with self._running():
            result: _T = self.loop.run_until_complete(work)
            return result

    def run_for(self, seconds: float) -> None:
        """Run everything that happens within some virtual time."""
        with self._running():
            self.loop.run_for(seconds)

    @contextmanager
    def _running(self) -> Iterator[None]:
        with ExitStack() as stack:
            stack.enter_context(isolated())
            stack.enter_context(serving(self.times))
            yield
