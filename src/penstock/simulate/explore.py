"""Search for violations over many seeds in parallel, and shrink what is found to a scenario that people can read.

Shrinking removes steps and faults as long as the same checker still finds something (delta debugging: Zeller and
Hildebrandt, *Simplifying and Isolating Failure-Inducing Input*). What is left always reproduces the violation, because
everything else comes from the seed.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing import get_context
from typing import Final, TypeAlias, TypeVar

from penstock.simulate.checkers import Violation
from penstock.simulate.faults import Fault
from penstock.simulate.isolation import isolated
from penstock.simulate.pure_work import computed_once
from penstock.simulate.run import drawn, run, world_of
from penstock.simulate.scenario import SimulationScenario, SimulationStep

#: runs that shrinking takes at most
SHRINKS: Final = 500
#: seeds that a process takes at a time
_CHUNK: Final = 4

Progress: TypeAlias = Callable[[str, int, int], None]
"""Receives what is done (`seeds` or `shrinking`), how much of it, and of how many; 0 if that is not known."""


@dataclass(frozen=True, slots=True)
class SeedResult:
    """What came of one seed."""

    seed: int
    trace: str
    violations: tuple[Violation, ...]
    counts: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Exploration:
    """What came of a search: how many seeds were run, what they did together, and the first violation."""

    seeds: int
    counts: Mapping[str, int]
    #: the fewest messages and faults of one seed
    fewest: Mapping[str, int]
    #: the shrunk scenario of the lowest seed that violates something, and what it violates
    scenario: SimulationScenario | None = None
    violations: tuple[Violation, ...] = ()
    #: how many steps and faults there were before shrinking
    before: int = 0


def run_seed(scenario: SimulationScenario) -> SeedResult:
    """Run a scenario. What it raises is a violation too: nothing that is simulated may fail."""
    try:
        outcome = run(scenario)
    except Exception as error:  # noqa: BLE001  # whatever it is, the seed that leads to it is wanted
        found = Violation("nothing_unhandled", 0.0, f"{type(error).__name__}: {error}")
        return SeedResult(scenario.seed, "", (found,), {})
    return SeedResult(scenario.seed, outcome.trace, outcome.violations, outcome.counts)


def explore(
    scenario: SimulationScenario, seeds: int, *, processes: int = 1, progress: Progress = lambda *_: None
) -> Exploration:
    """Run a scenario with so many seeds, from its own on, until one violates something; shrink that one.

    Raises `MalformedError` (`scenario.value`) for a world that does not exist.
    """
    world_of(scenario)
    counts: Counter[str] = Counter()
    fewest: dict[str, int] = {}
    number = 0
    candidates = (replace(scenario, seed=seed) for seed in range(scenario.seed, scenario.seed + seeds))
    with isolated(), computed_once(), _results(candidates, processes) as results:
        for number, result in enumerate(results, 1):
            progress("seeds", number, seeds)
            counts.update(result.counts)
            for what in ("messages", "faults"):
                fewest[what] = min(result.counts.get(what, 0), fewest.get(what, 1 << 60))
            if result.violations:
                whole = drawn(replace(scenario, seed=result.seed))
                small = shrink(whole, result.violations[0].checker, progress)
                violations = run_seed(small).violations
                return Exploration(number, counts, fewest, small, violations, _size(whole))
    return Exploration(number, counts, fewest)


def _size(scenario: SimulationScenario) -> int:
    return len(scenario.steps or ()) + len(scenario.faults or ())


@contextmanager
def _results(scenarios: Iterator[SimulationScenario], processes: int) -> Iterator[Iterator[SeedResult]]:
    if processes == 1:
        yield map(run_seed, scenarios)
        return
    with get_context().Pool(processes) as pool:
        yield pool.imap(run_seed, scenarios, _CHUNK)


# ----------------------------------------------------------------------------------------------------------------------
# Shrinking.

_Item: TypeAlias = SimulationStep | Fault
_T = TypeVar("_T")


def shrink(
    scenario: SimulationScenario, checker: str, progress: Progress = lambda *_: None, *, runs: int = SHRINKS
) -> SimulationScenario:
    """Return the scenario with as few steps and faults as still let a checker find something."""
    left = runs

    def fails(items: list[_Item]) -> bool:
        nonlocal left
        left -= 1
        progress("shrinking", runs - left, runs)
        return any(found.checker == checker for found in run_seed(_with(scenario, items)).violations)

    items: list[_Item] = [*(scenario.faults or ()), *(scenario.steps or ())]
    return _with(scenario, minimal(items, fails, lambda: left > 0))


def _with(scenario: SimulationScenario, items: list[_Item]) -> SimulationScenario:
    steps = tuple(one for one in items if isinstance(one, SimulationStep))
    options = {name: value for name, value in scenario.options.items() if name != "size"}
    faults = tuple(one for one in items if isinstance(one, Fault))
    return replace(scenario, steps=steps, faults=faults, options=options)


def minimal(items: list[_T], fails: Callable[[list[_T]], bool], more: Callable[[], bool] = lambda: True) -> list[_T]:
    """Return a part of the items that still fails, of which no single one can be left out.

    `more` says whether there may be another try.

    >>> minimal([*range(100)], lambda items: {3, 42, 97} <= {*items})
    [3, 42, 97]
    """
    parts = 2
    while items and more():
        size = max(1, len(items) // parts)
        for start in range(0, len(items), size):
            rest = [*items[:start], *items[start + size :]]
            if more() and fails(rest):
                items, parts = rest, max(2, parts - 1)
                break
        else:
            if size == 1:
                return items
            parts = min(len(items), 2 * parts)
    return items
