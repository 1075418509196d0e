"""The search stops at the lowest seed that violates something, and shrinks it to what is needed."""

import asyncio
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import FailedError, MalformedError, PenstockError
from penstock.simulate import run as runs
from penstock.simulate.explore import explore, minimal, run_group, run_seed, shrink
from penstock.simulate.faults import Fault
from penstock.simulate.run import drawn, run
from penstock.simulate.scenario import SimulationScenario, SimulationStep
from penstock.simulate.simulation import Simulation


class Counting:
    """A world whose counter must not get to three while it is cut off."""

    name = "counting"
    fault_kinds = ("partition", "slow")
    fault_amounts: Mapping[str, tuple[float, ...]] = {}
    fault_targets: Mapping[str, tuple[str, ...]] = {}
    step_kinds: Mapping[str, tuple[str, ...]] = {"up": (), "look": (), "fail": (), "date": ()}
    option_names = ()
    processes = ("one", "two")
    seconds = 10.0

    def __init__(self, options: Mapping[str, int]) -> None:
        self.options = options
        self.count = 0

    def steps(self, random: Random, size: int, within: float) -> tuple[SimulationStep, ...]:
        times = (round(number / 10 * within / self.seconds, 3) for number in range(size))
        return tuple(SimulationStep(at, random.choice(("up", "look"))) for at in times)

    async def start(self, simulation: Simulation) -> None:
        self.simulation = simulation
        for process in self.processes:
            simulation.start(process, asyncio.sleep(0))

    async def perform(self, step: SimulationStep) -> None:
        if step.name == "fail":
            raise OSError("no such thing")
        if step.name == "date":
            await self.simulation.start("one", read_date())
        if step.name == "up" and not self.simulation.network.reaches("one", "two"):
            self.count += 1
        if self.count == 3 and step.name == "look":
            self.simulation.note("one", "asked", request="r")

    async def restart(self, process: str) -> None:
        """Nothing is lost."""

    async def settle(self) -> None:
        """Nothing is left."""


async def read_date() -> None:
    """Read the real clock, and go on as if nothing had happened."""
    with suppress(PenstockError):
        time.time()


@pytest.fixture(autouse=True)
def _world(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "WORLDS", {"counting": Counting})


def test_a_search_finds_the_lowest_seed_and_shrinks_it() -> None:
    heard: list[tuple[str, int, int]] = []
    found = explore(
        SimulationScenario("counting", 0, options={"size": 30}), 50, progress=lambda *what: heard.append(what)
    )
    assert found.scenario is not None
    assert [
        run(SimulationScenario("counting", seed, options={"size": 30})).violations
        for seed in range(found.scenario.seed)
    ] == ([()] * found.scenario.seed)
    assert found.seeds == found.scenario.seed + 1
    assert [step.name for step in found.scenario.steps or ()] == ["up", "up", "up", "look"]
    assert [fault.kind for fault in found.scenario.faults or ()] == ["partition"]
    assert {one.checker for one in found.violations} == {"suspended_requests_end"}
    assert found.before >= 35
    assert len(found.scenario.text().splitlines()) <= 10
    assert run(SimulationScenario.parse(found.scenario.text())).violations == found.violations
    assert {what for what, _, _ in heard} == {"seeds", "shrinking"}


def test_processes_do_not_change_what_is_found() -> None:
    scenario = SimulationScenario("counting", 0, options={"size": 20})
    one, two = (explore(scenario, 12, processes=number) for number in (1, 2))
    assert one == two
    assert one.scenario is not None


def test_seeds_that_share_a_start_give_what_each_gives_alone() -> None:
    scenario = SimulationScenario("counting", 0, options={"size": 30})
    alone = explore(scenario, 50, sharing=10)
    assert alone.scenario is not None
    assert alone.scenario.options == {"start": alone.scenario.seed - alone.scenario.seed % 10}
    assert run(SimulationScenario.parse(alone.scenario.text())).violations == alone.violations
    group = [replace(scenario, seed=seed, options={"size": 30, "start": 10}) for seed in range(10, 16)]
    together = run_group(group)
    assert [result.trace for result in together] == [run(one).trace for one in group]
    assert [result.seed for result in together] == [*range(10, 16)]
    assert len({result.trace for result in together}) == 6


def test_a_start_that_fails_is_a_violation_of_each_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def start(self: Counting, simulation: Simulation) -> None:
        raise OSError("no such thing")

    monkeypatch.setattr(Counting, "start", start)
    group = [SimulationScenario("counting", seed, options={"start": 0}) for seed in (1, 2)]
    assert [(one.seed, one.violations[0].checker) for one in run_group(group)] == [
        (1, "nothing_unhandled"),
        (2, "nothing_unhandled"),
    ]


def test_code_that_hides_that_it_used_the_real_machine_violates_something() -> None:
    steps = tuple(SimulationStep(at, "date") for at in (1.0, 2.0))
    (found,) = run(SimulationScenario("counting", 0, steps=steps, faults=())).violations
    assert found.checker == "nothing_unhandled"
    assert "`time.time`" in found.message
    assert f"`{__name__}:" in found.message


def test_a_failure_after_the_real_machine_was_used_names_what_was_called() -> None:
    steps = (SimulationStep(1.0, "date"), SimulationStep(2.0, "fail"))
    (found,) = run_seed(SimulationScenario("counting", 0, steps=steps, faults=())).violations
    assert found.checker == "nothing_unhandled"
    assert "`time.time`" in found.message
    with pytest.raises(FailedError) as error:
        run(SimulationScenario("counting", 0, steps=steps, faults=()))
    assert isinstance(error.value.__cause__, OSError)


def test_what_a_shared_start_hides_is_a_violation_of_each_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = Counting.start

    async def start(self: Counting, simulation: Simulation) -> None:
        await usual(self, simulation)
        await simulation.start("one", read_date())

    monkeypatch.setattr(Counting, "start", start)
    group = [SimulationScenario("counting", seed, options={"start": 0, "size": 5}) for seed in range(3)]
    together = run_group(group)
    assert together == [run_seed(one) for one in group]
    assert ["`time.time`" in one.message for result in together for one in result.violations] == [True] * 3


def test_a_third_of_the_networks_has_each_shape_of_latency() -> None:
    shapes = [drawn(SimulationScenario("counting", seed)).options.get("latency", 0) for seed in range(90)]
    assert {*shapes} == {0, 1, 2}
    assert all(20 < shapes.count(shape) < 40 for shape in (0, 1, 2))
    assert drawn(SimulationScenario("counting", 1, options={"latency": 0})).options == {"latency": 0}
    for seed in range(10):
        assert drawn(SimulationScenario("counting", seed, faults=())).options == {}, "a file says all by itself"


@pytest.mark.parametrize(
    ("latency", "shape"), [(None, "uniform"), (0, "uniform"), (1, "exponential"), (2, "lognormal")]
)
def test_the_latency_has_its_shape_when_the_world_has_started(
    latency: int | None, shape: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual, found = Counting.start, list[str]()

    async def start(self: Counting, simulation: Simulation) -> None:
        await usual(self, simulation)
        found.append(simulation.network.between("one", "two").latency.shape)

    async def settle(self: Counting) -> None:
        found.append(self.simulation.network.between("one", "two").latency.shape)

    monkeypatch.setattr(Counting, "start", start)
    monkeypatch.setattr(Counting, "settle", settle)
    options = {"start": 5} if latency is None else {"start": 5, "latency": latency}
    run(SimulationScenario("counting", 7, (), (), options))
    assert found == ["uniform", shape]


def test_seeds_that_share_a_start_have_latencies_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    async def settle(self: Counting) -> None:
        latency = self.simulation.network.between("one", "two").latency
        self.simulation.note("one", latency.shape)

    monkeypatch.setattr(Counting, "settle", settle)
    group = [SimulationScenario("counting", seed, options={"start": 0, "size": 5}) for seed in range(9)]
    together = run_group(group)
    assert together == [run_seed(one) for one in group]
    shapes = {name for result in together for name in result.counts if name.startswith("note ")}
    assert shapes >= {"note uniform", "note exponential", "note lognormal"}


def test_a_shrunk_scenario_has_a_latency_of_its_own_only_if_it_needs_one() -> None:
    steps = tuple(SimulationStep(at, name) for at, name in enumerate(("up", "up", "up", "look"), 1))
    cut = Fault(0.5, "partition", 9.0, ("one", "two"))
    scenario = SimulationScenario("counting", 0, steps, (cut,), {"size": 30, "latency": 2})
    assert shrink(scenario, "nothing").options == {"latency": 2}
    assert shrink(scenario, "suspended_requests_end").options == {}


def test_only_steps_that_were_performed_are_shrunk(monkeypatch: pytest.MonkeyPatch) -> None:
    class Speaking(Counting):
        async def perform(self, step: SimulationStep) -> None:
            await super().perform(step)
            self.simulation.network.send("one", "two", b"", lambda _: None)

    monkeypatch.setattr(runs, "WORLDS", {"counting": Speaking})
    scenario = SimulationScenario("counting", 0, options={"size": 30, "messages": 31})
    found = explore(scenario, 50)
    assert found.scenario is not None
    assert found.scenario.options == {}
    whole = replace(scenario, seed=found.scenario.seed)
    performed, every = run(whole).scenario, drawn(whole)
    assert found.before == len(performed.steps or ()) + len(performed.faults or ())
    assert len(performed.steps or ()) < len(every.steps or ())


def test_everything_begins_within_the_seconds_of_a_scenario() -> None:
    whole = drawn(SimulationScenario("counting", 4, options={"size": 30, "seconds": 2}))
    assert max(step.at for step in whole.steps or ()) < 2
    assert max(fault.at for fault in whole.faults or ()) < 2
    assert max(fault.seconds for fault in whole.faults or ()) > 0.25 * 2, "they last as long as ever"


def test_without_a_violation_all_seeds_are_run() -> None:
    found = explore(SimulationScenario("counting", 5, steps=()), 7)
    assert (found.seeds, found.scenario, found.violations) == (7, None, ())
    assert found.counts["faults"] >= 35
    assert found.fewest["faults"] >= 5


def test_what_is_raised_is_a_violation_of_its_own() -> None:
    failing = (SimulationStep(1.0, "up"), SimulationStep(2.0, "fail"))
    found = explore(SimulationScenario("counting", 0, steps=failing, faults=()), 1)
    assert found.scenario is not None
    assert found.scenario.steps == failing[1:]
    assert [one.checker for one in found.violations] == ["nothing_unhandled"]


def test_a_drawn_scenario_is_the_same_as_its_seed() -> None:
    scenario = SimulationScenario("counting", 4, options={"size": 30})
    whole = drawn(scenario)
    assert len(whole.steps or ()) == 30
    assert len(whole.faults or ()) >= 5
    assert run(whole).trace == run(scenario).trace == run(SimulationScenario.parse(whole.text())).trace
    assert run(SimulationScenario("counting", 5)).trace != run(SimulationScenario("counting", 6)).trace


def test_shrinking_ends_after_so_many_runs() -> None:
    tries: list[Any] = []
    scenario = drawn(SimulationScenario("counting", 0, options={"size": 30}))
    shrink(scenario, "suspended_requests_end", lambda *what: tries.append(what), runs=5)
    assert len(tries) <= 5


@pytest.mark.parametrize(
    ("faults", "world"), [((Fault(1.0, "flood", 1.0, ("one",)),), "counting"), ((), "nowhere"), (None, "countin")]
)
def test_what_does_not_exist_is_refused(faults: tuple[Fault, ...] | None, world: str) -> None:
    with pytest.raises(MalformedError) as error:
        run(SimulationScenario(world, 1, steps=(), faults=faults))
    assert error.value.code == "scenario.value"


@given(st.sets(st.integers(0, 39), min_size=1, max_size=6))
def test_what_is_left_fails_and_nothing_of_it_can_be_left_out(needed: set[int]) -> None:
    assert minimal([*range(40)], lambda items: needed <= {*items}) == sorted(needed)
