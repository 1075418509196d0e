"""Faults as data: what goes wrong, when, for how long, and where.

| kind | where | what happens |
|---|---|---|
| partition | a process or several with commas, and maybe others | they do not reach the others, or anybody |
| loss, duplicate, reorder | a process, a share | so many of its messages are lost, come twice or come late |
| delay | a process, seconds | messages to and from it take longer |
| slow | a process, a factor | its work takes so many times longer |
| stop | a process | it does nothing, and then goes on |
| crash | a process | it ends, loses what its disk had not synced, and starts again |
| skew, jump | a process, seconds | its clock is wrong: by little, or by much |
| disk-full | a process | its disk takes nothing |

Each ends after its seconds, so that everything can become whole again.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Final, Self

from penstock.errors import MalformedError, did_you_mean

if TYPE_CHECKING:
    from penstock.simulate.simulation import Simulation
    from penstock.simulate.worlds.world import SimulationWorld

#: the amounts of each kind of fault that `draw` chooses from, unless a world has others; none for kinds without one
_AMOUNTS: Final[dict[str, tuple[float, ...]]] = {
    "partition": (),
    "loss": (0.02, 0.1, 0.3),
    "duplicate": (0.1, 0.5),
    "reorder": (0.1, 0.5),
    "delay": (0.005, 0.05, 0.3),
    "slow": (3.0, 10.0, 30.0),
    "stop": (),
    "crash": (),
    "skew": (-0.4, -0.1, 0.1, 0.4),
    "jump": (-3600.0, -20.0, 20.0, 3600.0),
    "disk-full": (),
}
FAULT_KINDS: Final = (*_AMOUNTS,)
#: what amounts can be, by kind
_BOUNDS: Final[dict[str, tuple[float, float]]] = {
    **dict.fromkeys(("loss", "duplicate", "reorder"), (0.0, 1.0)),
    "delay": (0.0, 3_600.0),
    "slow": (0.001, 1_000_000.0),
    **dict.fromkeys(("skew", "jump"), (-86_400.0, 86_400.0)),
}
#: how many faults a run has at least, and how many more at most
_LEAST: Final = 5
_MORE: Final = 5
#: the kinds that need a process which runs, seconds between two of them at one process, and how often to try
_OF_PROCESS: Final = ("slow", "stop", "crash")
_APART: Final = 0.5
_ATTEMPTS: Final = 20


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that goes wrong, as one line: `at kind seconds where...`.

    `where` has names of processes, and amounts if the kind of fault needs one.

    >>> Fault.parse("3.2 partition 4 pep1 fabric")
    Fault(at=3.2, kind='partition', seconds=4.0, where=('pep1', 'fabric'))
    >>> str(Fault(0.5, "loss", 2.0, ("fabric", "0.2")))
    '0.5 loss 2 fabric 0.2'
    """

    at: float
    kind: str
    seconds: float
    where: tuple[str, ...] = ()

    @classmethod
    def parse(cls, line: str) -> Self:
        """Read one line. Raises `ValueError`."""
        at, kind, seconds, *where = line.split()
        return cls(float(at), kind, float(seconds), (*where,))

    def __str__(self) -> str:
        return " ".join((f"{self.at:.12g}", self.kind, f"{self.seconds:.12g}", *self.where))


def check_fault(fault: Fault) -> None:
    """Check what can be said of a fault without its world. Raises `MalformedError` (`scenario.value`)."""
    words = ""
    if fault.kind not in FAULT_KINDS:
        words = f"`{fault.kind[:40]}` is not a kind of fault"
    elif not fault.where:
        words = "it does not say where"
    elif fault.kind in _BOUNDS:
        low, high = _BOUNDS[fault.kind]
        try:
            within = low <= float(fault.where[1]) <= high
        except (IndexError, ValueError):
            within = False
        if not within:
            words = f"`{fault.kind}` needs an amount from {low:g} to {high:g}"
    if words:
        raise MalformedError(
            "scenario.value",
            f"fault `{fault}`: {words}",
            hint=did_you_mean(
                fault.kind,
                () if fault.kind in FAULT_KINDS else FAULT_KINDS,
                f"write `at kind seconds where`; the kind is one of {', '.join(FAULT_KINDS)}",
            ),
        )


def draw(random: Random, world: "SimulationWorld", within: float) -> tuple[Fault, ...]:
    """Draw at least five faults of the kinds that a world stands, which begin within some time; ordered by time.

    How long they last depends on the world alone: timeouts must be able to pass meanwhile.
    """
    found: list[Fault] = []
    for _ in range(_LEAST + random.randrange(_MORE + 1)):
        kind = random.choice(world.fault_kinds)
        process = random.choice(world.fault_targets.get(kind, world.processes))
        at = round(random.uniform(0.02, 0.7) * within, 3)
        lasts = round(random.uniform(0.02, 0.25) * world.seconds, 3)
        for _again in range(_ATTEMPTS):
            if kind not in _OF_PROCESS or not _meets(found, process, at, lasts):
                break
            process, at = random.choice(world.processes), round(random.uniform(0.02, 0.7) * within, 3)
        else:
            kind = next((one for one in world.fault_kinds if one not in _OF_PROCESS), kind)
        where: tuple[str, ...] = (process,)
        others = [other for other in world.processes if other != process]
        if kind == "partition" and others and random.random() < 0.5:  # one in two
            where = (process, ",".join(random.sample(others, random.randint(1, len(others)))))
        elif amounts := world.fault_amounts.get(kind, _AMOUNTS[kind]):
            where = (process, f"{random.choice(amounts):g}")
        found.append(Fault(at, kind, lasts, where))
    return (*sorted(found, key=lambda fault: fault.at),)


def _meets(faults: list[Fault], process: str, at: float, lasts: float) -> bool:
    """Return whether the process is down or stopped at that time: the fault would not happen."""
    return any(
        one.kind in _OF_PROCESS
        and one.where[0] == process
        and one.at <= at + lasts + _APART
        and at <= one.at + one.seconds + _APART
        for one in faults
    )


async def apply(simulation: "Simulation", world: "SimulationWorld", fault: Fault) -> None:
    """Let a fault happen now, and end it after its time. Raises `MalformedError` (`scenario.value`)."""
    check_fault(fault)
    process = fault.where[0]
    undo = _begin(simulation, fault, process)
    if undo is None:
        # It has crashed already.
        return
    simulation.note(process, "fault", fault=fault.kind, seconds=fault.seconds, where=fault.where)
    await asyncio.sleep(fault.seconds)
    undo()
    if fault.kind == "crash":
        await world.restart(process)
    simulation.note(process, "fault over", ended=fault.kind, where=fault.where)


def _begin(simulation: "Simulation", fault: Fault, process: str) -> Callable[[], None] | None:
    """Begin a fault, and return what ends it; None if it cannot happen now."""
    network, loop = simulation.network, simulation.loop
    match fault.kind:
        case "partition":
            cut = process.split(",")
            others = fault.where[1].split(",") if len(fault.where) > 1 else simulation.processes
            return network.partition(cut, [other for other in others if other not in cut])
        case "loss" | "duplicate" | "reorder" | "delay":
            return network.change(process.split(","), **{fault.kind: float(fault.where[1])})
        case "skew" | "jump":
            clock, wrong = simulation.clock(process), float(fault.where[1])
            clock.offset += wrong
            return lambda: clock.set(clock.offset - wrong)
        case "disk-full":
            return simulation.disk(process).fill()
    if not simulation.runs(process):
        return None
    found = simulation.process(process)
    match fault.kind:
        case "slow":
            factor = float(fault.where[1])
            found.slowness *= factor
            return lambda: setattr(found, "slowness", found.slowness / factor)
        case "stop":
            if found.paused:
                return None
            loop.pause(found)
            return lambda: loop.resume(found)
        case "crash":
            simulation.crash(process)
            return lambda: None
    raise ValueError(fault.kind)
