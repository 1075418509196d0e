"""Search for violations over many seeds in parallel, and shrink what is found to a scenario that people can read.

Shrinking removes steps and faults as long as the same checker still finds something (delta debugging: Zeller and
Hildebrandt, *Simplifying and Isolating Failure-Inducing Input*). What is left always reproduces the violation, because
everything else comes from the seed.
"""

import gc
import os
import pickle
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain, groupby
from multiprocessing import get_context
from typing import Final, TypeAlias, TypeVar

from penstock.errors import MalformedError
from penstock.simulate.checkers import Violation
from penstock.simulate.faults import Fault
from penstock.simulate.isolation import isolated
from penstock.simulate.pure_work import shared_results
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
    #: how many steps were performed, and faults, before shrinking
    before: int = 0


def run_seed(scenario: SimulationScenario, started: Callable[[], SimulationScenario] | None = None) -> SeedResult:
    """Run a scenario. What it raises is a violation too: nothing that is simulated may fail.

    Raises `MalformedError` (`scenario.value`) for a scenario that its world cannot play.
    """
    try:
        outcome = run(scenario, started)
    except Exception as error:  # whatever it is, the seed that leads to it is wanted
        if is_mistake(error):
            raise
        return _failed(scenario, error)
    return SeedResult(outcome.scenario.seed, outcome.trace, outcome.violations, outcome.counts)


def _failed(scenario: SimulationScenario, error: Exception) -> SeedResult:
    return SeedResult(scenario.seed, "", (unhandled(error),), {})


def unhandled(error: Exception) -> Violation:
    """Return the violation that it is if a run raises something."""
    return Violation("nothing_unhandled", 0.0, f"{type(error).__name__}: {error}")


def is_mistake(error: Exception) -> bool:
    """Return whether an error says that a scenario cannot be played, so that nothing has failed."""
    return isinstance(error, MalformedError) and error.code == "scenario.value"


class _AllRunError(BaseException):
    """All scenarios of a group were run, each in a process of its own: an end, which is not a failure of the world."""


def run_group(scenarios: Sequence[SimulationScenario]) -> list[SeedResult]:
    """Run scenarios that differ in their own seeds alone, and have the same `start`: their world starts only once.

    Each goes on in a copy of this process. What comes of it is the same as if it were run alone.
    """
    results: list[SeedResult] = []
    #: in a copy: its scenario, and where its result goes
    own: list[tuple[SimulationScenario, int]] = []

    def each() -> SimulationScenario:
        """Return the scenario of the copy that runs now; the original goes on until there are no more."""
        # What is there already is not looked at again in each copy, which would copy its memory.
        gc.collect()
        gc.freeze()
        for scenario in scenarios:
            back, out = os.pipe()
            child = os.fork()
            if child == 0:
                os.close(back)
                own.append((scenario, out))
                # It ends soon, and leaves its memory behind.
                gc.disable()
                return scenario
            os.close(out)
            with os.fdopen(back, "rb") as answer:
                data = answer.read()
            os.waitpid(child, 0)
            killed = ChildProcessError("the process of this seed was killed")
            found = pickle.loads(data) if data else _failed(scenario, killed)  # noqa: S301  # a copy wrote it
            if isinstance(found, MalformedError):
                raise found
            results.append(found)
        raise _AllRunError

    def answer_with(found: SeedResult | MalformedError) -> None:
        with os.fdopen(own[0][1], "wb") as answer:
            pickle.dump(found, answer)

    try:
        result = run_seed(scenarios[0], each)
        if own:
            answer_with(replace(result, seed=own[0][0].seed))
    except MalformedError as error:
        if not own:
            raise
        answer_with(error)
    except _AllRunError:
        gc.unfreeze()
        return results
    finally:
        if own:
            # Whatever happens, a copy does not go on with what the original does next.
            os._exit(0)
    # The start itself has failed.
    return [run_seed(scenario) for scenario in scenarios]


def explore(
    scenario: SimulationScenario,
    seeds: int,
    *,
    processes: int = 1,
    sharing: int = 1,
    progress: Progress = lambda *_: None,
) -> Exploration:
    """Run a scenario with so many seeds, from its own on, until one violates something; shrink that one.

    `sharing` seeds have the same start of the world, which is the option `start` of their scenarios.

    Raises `MalformedError` (`scenario.value`) for a scenario that its world cannot play.
    """
    world_of(scenario)
    counts: Counter[str] = Counter()
    fewest: dict[str, int] = {}
    number = 0
    candidates = [_candidate(scenario, seed, sharing) for seed in range(scenario.seed, scenario.seed + seeds)]
    with isolated(), shared_results(), _results(candidates, processes, sharing) as results:
        for number, result in enumerate(results, 1):
            progress("seeds", number, seeds)
            counts.update(result.counts)
            for what in ("messages", "faults"):
                fewest[what] = min(result.counts.get(what, 0), fewest.get(what, 1 << 60))
            if result.violations:
                whole = _performed(_candidate(scenario, result.seed, sharing))
                small = shrink(whole, result.violations[0].checker, progress)
                violations = run_seed(small).violations
                return Exploration(number, counts, fewest, small, violations, _size(whole))
    return Exploration(number, counts, fewest)


def _performed(scenario: SimulationScenario) -> SimulationScenario:
    """Return a scenario with the steps that a run performs, or with all that are drawn if it fails."""
    try:
        return run(scenario).scenario
    except Exception:  # noqa: BLE001  # that is what was found
        return drawn(scenario)


def _size(scenario: SimulationScenario) -> int:
    return len(scenario.steps or ()) + len(scenario.faults or ())


def _begin_process() -> None:
    """Let the process of the search alone say that it was interrupted; and collect garbage between seeds only."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    gc.disable()


def _run_seed(scenario: SimulationScenario) -> SeedResult:
    """Run a seed in a process of the search."""
    result = run_seed(scenario)
    gc.collect()
    # Results that are shared between seeds stay, and are not looked at again.
    gc.freeze()
    return result


def _candidate(scenario: SimulationScenario, seed: int, sharing: int) -> SimulationScenario:
    if sharing == 1:
        return replace(scenario, seed=seed)
    return replace(scenario, seed=seed, options={**scenario.options, "start": seed - seed % sharing})


@contextmanager
def _results(scenarios: Sequence[SimulationScenario], processes: int, sharing: int) -> Iterator[Iterator[SeedResult]]:
    if processes == sharing == 1:
        yield map(run_seed, scenarios)
        return
    with get_context().Pool(processes, _begin_process) as pool:
        if sharing == 1:
            yield pool.imap(_run_seed, scenarios, _CHUNK)
        else:
            groups = (list(group) for _, group in groupby(scenarios, key=lambda one: one.options["start"]))
            yield chain.from_iterable(pool.imap(run_group, groups))


# ----------------------------------------------------------------------------------------------------------------------
# Shrinking.

_Item: TypeAlias = SimulationStep | Fault
_T = TypeVar("_T")


def shrink(
    scenario: SimulationScenario, checker: str, progress: Progress = lambda *_: None, *, runs: int = SHRINKS
) -> SimulationScenario:
    """Return the scenario with as few steps and faults as still let a checker find something.

    It performs all its steps, with the default latency, if that is enough.
    """
    left = runs

    def fails(items: list[_Item]) -> bool:
        nonlocal left
        left -= 1
        progress("shrinking", runs - left, runs)
        return any(found.checker == checker for found in run_seed(_with(scenario, items)).violations)

    items: list[_Item] = [*(scenario.faults or ()), *(scenario.steps or ())]
    for spared in ("messages", "latency"):
        if spared in scenario.options:
            options = {name: value for name, value in scenario.options.items() if name != spared}
            whole, scenario = scenario, replace(scenario, options=options)
            if not fails(items):
                scenario = whole
    return _with(scenario, minimal(items, fails, lambda: left > 0))


def _with(scenario: SimulationScenario, items: list[_Item]) -> SimulationScenario:
    steps = tuple(one for one in items if isinstance(one, SimulationStep))
    options = {name: value for name, value in scenario.options.items() if name not in ("size", "seconds")}
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
