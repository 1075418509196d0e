"""The real system in every world: nothing is violated, and one seed gives one trace in every process."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from penstock.errors import MalformedError
from penstock.simulate.explore import explore
from penstock.simulate.run import run
from penstock.simulate.scenario import SimulationScenario
from penstock.simulate.worlds import WORLDS

#: seeds of each world that `make soak` runs
SOAK_SEEDS = int(os.environ.get("SEEDS", "10000"))
#: how often steps come in a search, and with how many messages they end: it has the rest of a thousand while it settles
SOAK_OPTIONS = {
    world: {"size": size, "seconds": seconds, "messages": messages}
    for world, size, seconds, messages in (
        ("brokers", 50, 16, 930),
        ("revocation", 10, 10, 800),
        ("brokers-on-fabric", 24, 16, 930),
        ("sealing", 10, 16, 880),
        ("sealing-replicas", 10, 16, 880),
        ("components", 5, 8, 1_000),
        ("decisions", 56, 20, 780),
        ("roles", 220, 20, 880),
        ("rule-book", 100, 20, 980),
    )
}
#: what the log of a search must have, or else a checker would have nothing to read
SOAK_NOTES = {
    "brokers": ("decided", "delivered", "received", "promised", "acknowledged"),
    "revocation": ("decided", "delivered", "received", "promised", "acknowledged", "granted", "revoked"),
    "brokers-on-fabric": ("decided", "delivered", "received", "promised", "acknowledged", "granted", "revoked"),
    "sealing": ("joined", "left", "sealed", "opened", "delivered", "received", "promised", "revoked", "trusted"),
    "sealing-replicas": (
        "joined",
        "left",
        "sealed",
        "opened",
        "delivered",
        "received",
        "promised",
        "revoked",
        "trusted",
    ),
    "components": ("asked", "ended", "answered", "decision", "joining", "join-ended", "acknowledged", "policy-ended"),
    "decisions": ("asked", "ended", "answered", "recycled", "policy", "policy-ended"),
    "roles": ("condition", "role", "revocation", "statement", "statement-ended", "access", "acknowledged"),
    "rule-book": ("acknowledged", "applied", "holds", "replica"),
}
#: seeds that share one start of their world, where starting takes long
SOAK_SHARING = {
    "brokers": 50,
    "revocation": 50,
    "brokers-on-fabric": 50,
    "sealing": 50,
    "sealing-replicas": 50,
    "components": 50,
}


@pytest.mark.parametrize("world", WORLDS)
def test_nothing_is_violated(world: str) -> None:
    found = explore(SimulationScenario(world, 1, options={"size": 10}), 1)
    assert found.violations == (), "" if found.scenario is None else found.scenario.text()
    assert found.fewest["faults"] >= 5
    assert found.fewest["messages"] >= 100


def test_a_run_goes_on_until_it_has_enough_messages() -> None:
    scenario = SimulationScenario("rule-book", 3, options={"size": 10, "seconds": 4, "messages": 300})
    outcome = run(scenario)
    steps, faults = outcome.scenario.steps or (), outcome.scenario.faults or ()
    assert outcome.counts["messages"] >= 300
    assert 10 < len(steps) < 80
    assert steps[-1].at > max(one.at + one.seconds for one in faults)
    assert run(SimulationScenario.parse(outcome.scenario.text())).trace == outcome.trace
    enough = run(replace(scenario, options={**scenario.options, "messages": 1}))
    assert len(enough.scenario.steps or ()) < len(steps)


def test_steps_that_come_after_all_faults_are_on_time() -> None:
    text = """world = "decisions"
options = { messages = 10000 }
steps = ["1 policy 5 3", "1.5 policy 6 1", "1.6 policy 7 0"]
faults = ["0.5 skew 0.6 pdp1 0.1"]"""
    log = run(SimulationScenario.parse(text)).log
    assert [round(one.at, 2) for one in log if one.kind == "policy"] == [0.0, 6.0, 6.5, 6.6]


@pytest.mark.parametrize(
    ("text", "words", "hint"),
    [
        ('world = "roles"\nsteps = ["1 aks gate1 ann"]', "no step `aks`", "there are: duty, work, visit, enter"),
        ('world = "roles"\nsteps = ["1 entr gate1 ann"]', "no step `entr`", "did you mean `enter`?"),
        ('world = "roles"\nsteps = ["1 enter gate1"]', "it needs GATE PERSON", "write `SECONDS enter GATE PERSON`"),
        ('world = "roles"\nsteps = ["1 enter gate9 ann"]', "the process `gate9` does not exist", "did you mean"),
        ('world = "roles"\nsteps = ["-1 enter gate1 ann"]', "has a time that is not from 0", ""),
        ('world = "roles"\nfaults = ["1 crash 1e99 gate1"]', "has a time that is not from 0", ""),
        ('world = "roles"\nfaults = ["nan crash 1 gate1"]', "has a time that is not from 0", ""),
        ('world = "roles"\nfaults = ["1 crsh 1 gate1"]', "not a kind of fault", "did you mean `crash`?"),
        ('world = "roles"\nfaults = ["1 crash 1"]', "does not say where", ""),
        ('world = "roles"\nfaults = ["1 loss 1 gate1 1.5"]', "an amount from 0 to 1", ""),
        ('world = "roles"\nfaults = ["1 delay 1 gate1 nan"]', "an amount from 0 to 3600", ""),
        ('world = "roles"\nfaults = ["1 slow 1 gate1"]', "needs an amount", ""),
        (
            'world = "roles"\nfaults = ["1 partition 1 gate1 gate2,lab"]',
            "the process `lab` does not exist",
            "laboratory",
        ),
        ('world = "decisions"\nsteps = ["1 policy abc 1"]', "`abc` is not a whole number", "NUMBER is"),
        ('world = "decisions"\nsteps = ["1 policy 4 nan"]', "`nan` is not a number of seconds", "DELAY is"),
        ('world = "decisions"\nsteps = ["1 policy 4 -1"]', "`-1` is not a number of seconds", ""),
        ('world = "components"\nsteps = ["1 policy -1"]', "`-1` is not a whole number", "RANK is"),
        ('world = "roles"\nsteps = ["1 duty hospital ann si"]', "`si` is not yes or no", ""),
        ('world = "roles"\noptions = { sizes = 4 }', "no option `sizes`", "did you mean `size`?"),
        ('world = "roles"\noptions = { size = 0 }', "`size` is 0", "from 1 to 100,000"),
        ('world = "decisions"\noptions = { peps = 0 }', "`peps` is 0", ""),
    ],
)
def test_a_scenario_that_its_world_cannot_play_is_refused(text: str, words: str, hint: str) -> None:
    with pytest.raises(MalformedError) as refused:
        run(SimulationScenario.parse(text))
    assert refused.value.code == "scenario.value"
    assert words in refused.value.message
    assert hint in refused.value.hint


@pytest.mark.parametrize("world", WORLDS)
def test_worlds_draw_the_steps_that_they_have(world: str) -> None:
    made = WORLDS[world]({})
    steps = made.steps(Random(1), 300, made.seconds)  # noqa: S311  # a test must be repeatable
    assert {step.name for step in steps} <= made.step_kinds.keys()
    assert all(len(made.step_kinds[step.name]) == len(step.arguments) for step in steps)
    page = (Path(__file__).parents[2] / "docs/how-to/simulate.md").read_text().replace("\\|", "|")
    (row,) = (line for line in page.splitlines() if line.startswith("|") and f"`{world}`" in line)
    assert all(f"`{name} {' '.join(words)}`" in row for name, words in made.step_kinds.items())


def test_requests_to_a_rule_book_have_names_of_their_own() -> None:
    random = Random(17)  # noqa: S311  # a test must be repeatable
    times = [step.at for step in WORLDS["rule-book"]({}).steps(random, 2_000, 60.0)]
    assert len({f"{at:g}" for at in times}) == len(times)


_TRACES = """
import sys
from penstock.simulate.run import run
from penstock.simulate.scenario import SimulationScenario
for world in sys.argv[2:]:
    for seed in range(int(sys.argv[1])):
        print(run(SimulationScenario(world, seed, options={"size": 5})).trace)
"""


def traces_twice(seeds: int) -> tuple[list[str], list[str]]:
    """Return the traces of each world's first seeds in this process, and in one with other hashes."""
    here = [
        run(SimulationScenario(world, seed, options={"size": 5})).trace for world in WORLDS for seed in range(seeds)
    ]
    command = [sys.executable, "-W", "ignore", "-c", _TRACES, str(seeds), *WORLDS]
    there = subprocess.run(
        command, env={**os.environ, "PYTHONHASHSEED": "5"}, capture_output=True, text=True, check=True
    )
    return here, there.stdout.split()


def test_one_seed_gives_one_trace_in_every_process() -> None:
    here, there = traces_twice(1)
    assert there == here
    # The worlds of brokers differ in a few steps only, which a seed may not draw.
    assert len({*here}) >= len(WORLDS) - 1


@pytest.mark.long
def test_a_hundred_scenarios_have_the_same_traces_in_another_process() -> None:
    here, there = traces_twice(100 // len(WORLDS) + 1)
    assert there == here
    assert len(here) >= 100
    assert len({*here}) >= 90


@pytest.mark.long
@pytest.mark.parametrize("world", WORLDS)
def test_a_search_over_many_seeds_finds_nothing(world: str) -> None:
    scenario = SimulationScenario(world, 0, options=SOAK_OPTIONS[world])
    found = explore(scenario, SOAK_SEEDS, processes=os.cpu_count() or 1, sharing=SOAK_SHARING.get(world, 1))
    assert found.violations == (), "" if found.scenario is None else found.scenario.text()
    kinds = WORLDS[world]({}).fault_kinds
    assert {kind for kind in kinds if not found.counts.get(f"fault {kind}")} == set()
    assert {note for note in SOAK_NOTES[world] if not found.counts.get(f"note {note}")} == set()
    assert found.fewest["faults"] >= 5
    assert found.fewest["messages"] >= 1_000
