"""What a world is: real components of one subsystem, their workload, and the rules that their log must meet.

A run draws steps and faults from the seed (or takes those of a scenario), starts the world, performs each step at its
time, applies the faults, and stops them. Then `settle` must find the world whole again, and the checkers read the log.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from random import Random
from typing import Any, Final, Protocol

from penstock.errors import FailedError
from penstock.simulate.scenario import SimulationStep
from penstock.simulate.simulation import Simulation

#: words for arguments of steps that are names of processes
PROCESS_WORDS: Final = frozenset({"PUBLISHER", "READER", "BROKER", "MANAGER", "PEP", "SERVICE", "GATE"})
#: seconds before work that has failed is started again
_PAUSE: Final = 1.0


class SimulationWorld(Protocol):
    """See the module. A world is made for one run."""

    @property
    def name(self) -> str:
        """What scenarios call it."""

    @property
    def fault_kinds(self) -> tuple[str, ...]:
        """Which kinds of faults it must stand."""

    @property
    def fault_amounts(self) -> Mapping[str, tuple[float, ...]]:
        """The amounts of faults to draw, for kinds whose usual ones do not suit it."""

    @property
    def fault_targets(self) -> Mapping[str, tuple[str, ...]]:
        """The processes that a fault can hit, for kinds that do nothing to the others."""

    @property
    def step_kinds(self) -> Mapping[str, tuple[str, ...]]:
        """The kinds of steps with what each needs; words in `PROCESS_WORDS` are names of processes."""

    @property
    def option_names(self) -> tuple[str, ...]:
        """The options that it has, besides those of every scenario."""

    @property
    def processes(self) -> tuple[str, ...]:
        """The processes that faults can hit."""

    @property
    def seconds(self) -> float:
        """How long steps and faults take, in virtual seconds."""

    def steps(self, random: Random, size: int, within: float) -> tuple[SimulationStep, ...]:
        """Draw a workload of about so many steps within so many seconds, ordered by time."""

    async def start(self, simulation: Simulation) -> None:
        """Start the processes and return when the first step can be performed."""

    async def perform(self, step: SimulationStep) -> None:
        """Perform a step. It can fail because of faults: what must hold nevertheless is in the log."""

    async def restart(self, process: str) -> None:
        """Start a process again that was killed. It finds what its disk had synced."""

    async def settle(self) -> None:
        """Wait until the world is whole again, for a bounded time, and note what is left in the log.

        Faults have stopped: everybody can be reached, and every process runs.
        """


class ProcessTasks:
    """Tasks of simulated processes: none is forgotten while it waits, and one that fails is reported."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, process: str, work: Coroutine[Any, Any, object]) -> None:
        """Run work as a task of a process."""
        task: asyncio.Task[object] = self._simulation.start(process, work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def supervise(self, process: str, work: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """Run work as a task of a process, and start it again if the fabric or a store fails, as an operator does."""

        async def again() -> None:
            while True:
                try:
                    await work()
                except FailedError as error:
                    if error.code.startswith("simulate."):
                        raise
                    self._simulation.note(process, "started again", how=error.code)
                    await asyncio.sleep(_PAUSE)
                else:
                    return

        self.start(process, again())

    def _ended(self, task: "asyncio.Task[object]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            loop = self._simulation.loop
            loop.call_exception_handler({"message": f"a task of {task.get_name()} failed", "exception": error})
