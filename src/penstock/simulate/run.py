"""Run a scenario: draw what it does not say, start its world, perform steps and faults, settle, and check the log.

The same scenario always gives the same outcome, in every process.
"""

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Final

from penstock.errors import FailedError, MalformedError, PenstockError, did_you_mean
from penstock.fabric.tasks import waited_for
from penstock.simulate.checkers import Violation, check
from penstock.simulate.faults import Fault, apply, check_fault, draw
from penstock.simulate.network import SHAPES
from penstock.simulate.scenario import SimulationScenario, SimulationStep
from penstock.simulate.simulation import Entry, Simulation
from penstock.simulate.worlds import WORLDS
from penstock.simulate.worlds.world import PROCESS_WORDS, SimulationWorld

#: how many steps a run has if its scenario does not say it
STEPS: Final = 100
#: how many times longer steps can go on until there are enough messages
_LONGER: Final = 8
#: the words for arguments of steps that are whole numbers, and seconds
_WHOLE: Final = frozenset({"NUMBER", "RANK"})
_SECONDS: Final = frozenset({"SECONDS", "DELAY"})
#: the largest option, and the longest time
_MOST: Final = 100_000
_LONGEST: Final = 100_000.0
_DIGITS: Final = 9
#: seconds that connections have at most to send again what was lost, before a world must settle
_RESENDING: Final = 240.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a scenario, whose steps and faults are all written down."""

    scenario: SimulationScenario
    #: the SHA-256 of everything that was noted and sent
    trace: str
    violations: tuple[Violation, ...]
    #: messages, steps, faults and notes, by kind
    counts: Mapping[str, int]
    log: Sequence[Entry]


def world_of(scenario: SimulationScenario) -> SimulationWorld:
    """Return the world of a scenario, which has not started.

    Raises `MalformedError` (`scenario.value`) for a world, an option, a step or a fault that does not exist.
    """
    found = WORLDS.get(scenario.world)
    if found is None:
        raise MalformedError(
            "scenario.value",
            f"`world` is `{scenario.world[:40]}`, which does not exist",
            hint=did_you_mean(scenario.world, WORLDS, f"it is one of {', '.join(WORLDS)}"),
        )
    world = found(_checked_options(scenario, found({}).option_names))
    for step in scenario.steps or ():
        _check_step(step, world)
    for fault in scenario.faults or ():
        check_fault(fault)
    for item in _items(scenario):
        moments = (item.at, item.seconds) if isinstance(item, Fault) else (item.at,)
        if not all(0 <= moment <= _LONGEST for moment in moments):
            raise _wrong(f"`{item}` has a time that is not from 0 to {_LONGEST:g} seconds")
    return world


def _items(scenario: SimulationScenario) -> list[SimulationStep | Fault]:
    return [*(scenario.steps or ()), *(scenario.faults or ())]


def _checked_options(scenario: SimulationScenario, own: Sequence[str]) -> Mapping[str, int]:
    known = (*own, "size", "seconds", "messages", "start", "latency")
    for name, value in scenario.options.items():
        if name not in known:
            hint = did_you_mean(name, known, f"there are: {', '.join(known)}")
            raise _wrong(f"the world `{scenario.world}` has no option `{name[:40]}`", hint)
        low, high = (0, len(SHAPES) - 1) if name == "latency" else (1, _MOST)
        if name != "start" and not low <= value <= high:
            raise _wrong(f"the option `{name}` is {value}", f"it is a number from {low} to {high:,}")
    return scenario.options


def _check_step(step: SimulationStep, world: SimulationWorld) -> None:
    words = world.step_kinds.get(step.name)
    if words is None:
        hint = did_you_mean(step.name, world.step_kinds, f"there are: {', '.join(world.step_kinds)}")
        raise _wrong(f"the world `{world.name}` has no step `{step.name[:40]}`", hint)
    if len(words) != len(step.arguments):
        raise _wrong(f"step `{step}`: it needs {' '.join(words)}", f"write `SECONDS {step.name} {' '.join(words)}`")
    for word, value in zip(words, step.arguments, strict=True):
        if not _fits(word, value):
            raise _wrong(f"step `{step}`: `{value[:40]}` is not {_kind(word)}", f"{word} is {_kind(word)}")


def _fits(word: str, value: str) -> bool:
    """Return whether an argument of a step is of the kind that its word names."""
    if word in _WHOLE:
        return value.isascii() and value.isdigit() and len(value) <= _DIGITS
    if word in _SECONDS:
        try:
            return 0 <= float(value) <= _LONGEST
        except ValueError:
            return False
    return "|" not in word or value in word.split("|")


def _kind(word: str) -> str:
    if word in _WHOLE:
        return f"a whole number of at most {_DIGITS} digits"
    return f"a number of seconds from 0 to {_LONGEST:g}" if word in _SECONDS else word.replace("|", " or ")


def _check_processes(scenario: SimulationScenario, world: SimulationWorld, running: Iterable[str]) -> None:
    """Check that all processes exist, of which some are known only when the world has started."""
    known = [*dict.fromkeys((*world.processes, *running))]
    for item in _items(scenario):
        if isinstance(item, Fault):
            named = [one for part in item.where[: 2 if item.kind == "partition" else 1] for one in part.split(",")]
        else:
            words = zip(world.step_kinds[item.name], item.arguments, strict=True)
            named = [one for word, one in words if word in PROCESS_WORDS]
        for one in named:
            if one not in known:
                hint = did_you_mean(one, known, f"there are: {', '.join(known)}")
                raise _wrong(f"`{item}`: the process `{one[:40]}` does not exist", hint)


def _wrong(words: str, hint: str = "") -> MalformedError:
    return MalformedError("scenario.value", words, hint=hint)


def drawn(scenario: SimulationScenario) -> SimulationScenario:
    """Return the scenario with the steps and faults that its seed gives, where it has none.

    The options `size` and `seconds` say how many steps there are, and within which time everything begins. With the
    option `messages` there are more steps, as many in the same time: `run` stops when there are enough messages. With
    the faults the option `latency` is drawn, unless the scenario has it: the place of the latency's shape in `SHAPES`
    (default: 0).
    """
    world, size = world_of(scenario), scenario.options.get("size", STEPS)
    within = scenario.options.get("seconds", world.seconds)
    steps, faults, options = scenario.steps, scenario.faults, scenario.options
    if steps is None:
        longer = _LONGER if "messages" in options else 1
        steps = world.steps(_random(scenario, "steps"), size * longer, within * longer)
    if faults is None:
        faults = draw(_random(scenario, "faults"), world, within)
        shape = options.get("latency", _random(scenario, "latency").randrange(len(SHAPES)))
        options = {**options, "latency": shape} if shape else options
    return replace(scenario, steps=steps, faults=faults, options=options)


def _random(scenario: SimulationScenario, purpose: str) -> Random:
    return Random(f"{scenario.seed}/{purpose}")  # noqa: S311  # a simulation must be repeatable


def run(scenario: SimulationScenario, started: Callable[[], SimulationScenario] | None = None) -> Outcome:
    """Run a scenario. Raises `MalformedError` (`scenario.value`) if its world does not know a step or a fault.

    Raises `FailedError` (`simulate.real`) if the world fails after code has used the real machine, and what the world
    raises otherwise.

    With the option `messages`, steps that come after all faults are performed only until the network was given so many
    messages.

    With the option `start` the world starts with that seed, and goes on with the scenario's own. Scenarios that differ
    in nothing else than their own seed start in the same way: `started` is called when the world has started, and
    returns the one to go on with.
    """
    world = world_of(scenario)
    with Simulation(scenario.options.get("start", scenario.seed)) as simulation:
        try:
            scenario = simulation.run(_drive(simulation, world, started or (lambda: scenario)))
        except Exception as error:
            real = next(_real_uses(simulation), error)
            if real is error:
                raise
            raise real from error
        log = simulation.log
        violations = (*check(log), *_reports(simulation))
        counts = Counter({"messages": simulation.messages, "steps": len(scenario.steps or ())})
        counts["faults"] = sum(entry.kind == "fault" for entry in log)
        counts.update(f"note {entry.kind}" for entry in log)
        counts.update(f"fault {entry.fields['fault']!s}" for entry in log if entry.kind == "fault")
        return Outcome(scenario, simulation.trace, violations, dict(counts), log)


async def _drive(
    simulation: Simulation, world: SimulationWorld, started: Callable[[], SimulationScenario]
) -> SimulationScenario:
    await world.start(simulation)
    scenario = drawn(started())
    _check_processes(scenario, world, simulation.processes)
    # `started` may have returned in a copy of the process.
    simulation.loop.forked()
    if "start" in scenario.options:
        simulation.reseed(scenario.seed)
    if "latency" in scenario.options:
        conditions = simulation.network.conditions
        latency = replace(conditions.latency, shape=SHAPES[scenario.options["latency"]])
        simulation.network.set_all(replace(conditions, latency=latency))
    start = simulation.time

    async def at(seconds: float, work: SimulationStep | Fault) -> None:
        await asyncio.sleep(max(0.0, start + seconds - simulation.time))
        await (apply(simulation, world, work) if isinstance(work, Fault) else world.perform(work))

    steps, faults = scenario.steps or (), scenario.faults or ()
    enough = scenario.options.get("messages")
    over = math.inf if enough is None else max((one.at + one.seconds for one in faults), default=0.0)
    performed, later = [one for one in steps if one.at <= over], [one for one in steps if one.at > over]
    begun: list[SimulationStep | Fault] = [*performed, *faults]
    under_way = [waited_for(at(one.at, one)) for one in begun]
    if enough is not None:
        await asyncio.sleep(over)
        for step in later:
            if simulation.messages >= enough:
                break
            await asyncio.sleep(max(0.0, start + step.at - simulation.time))
            under_way.append(waited_for(world.perform(step)))
            performed.append(step)
    await asyncio.gather(*under_way)
    await simulation.network.resent(_RESENDING)
    await world.settle()
    return replace(scenario, steps=(*performed,))


def _real_uses(simulation: Simulation) -> Iterator[FailedError]:
    """Yield what used the real machine: whatever failed afterwards may have failed because of it."""
    for report in simulation.loop.reports:
        error = report.get("exception")
        if isinstance(error, FailedError) and error.code == "simulate.real":
            yield error


def _reports(simulation: Simulation) -> list[Violation]:
    """Return what failed in a task: a fault of the code, unless the task goes on after a failure of something else."""
    found = []
    for report in simulation.loop.reports:
        message, error = str(report.get("message")), report.get("exception")
        routine = isinstance(error, PenstockError) and not error.code.startswith("simulate.")
        if not (routine and message.endswith("starts again")):
            found.append(Violation("nothing_unhandled", simulation.time, f"{message}: {error!r}"))
    return found
