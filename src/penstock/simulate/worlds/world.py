"""What a world is: real components of one subsystem, their workload, and what must hold of their log.

A run draws steps and faults from the seed (or takes those of a scenario), starts the world, performs each step at its
time, applies the faults, and stops them. Then `settle` must find the world whole again, and the checkers read the log.
"""

from collections.abc import Mapping
from random import Random
from typing import Protocol

from penstock.simulate.scenario import SimulationStep
from penstock.simulate.simulation import Simulation


class SimulationWorld(Protocol):
    """See the module. A world is made for one run, by its options."""

    #: what scenarios call it
    name: str
    #: which kinds of faults it must stand
    fault_kinds: tuple[str, ...]
    #: the processes that faults can hit
    processes: tuple[str, ...]
    #: how long steps and faults take, in virtual seconds
    seconds: float

    def __init__(self, options: Mapping[str, int]) -> None: ...

    def steps(self, random: Random, size: int) -> tuple[SimulationStep, ...]:
        """Draw a workload of about so many steps, ordered by time."""

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
