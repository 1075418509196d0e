"""Scenario files: one line for each step and each fault, and strict about what they do not have."""

import pytest

from penstock.errors import MalformedError
from penstock.simulate.faults import Fault
from penstock.simulate.run import world_of
from penstock.simulate.scenario import SimulationScenario, SimulationStep

FILE = """\
world = "components"
seed = 7
options = { size = 20 }
steps = ["0.5 request pep1 read file1",
         "2 reconfigure DR(1)"]
faults = ["1.25 partition 4 pep1 fabric"]
"""


def test_a_scenario_is_written_as_it_was_read() -> None:
    scenario = SimulationScenario.parse(FILE)
    assert scenario == SimulationScenario(
        "components",
        7,
        (SimulationStep(0.5, "request", ("pep1", "read", "file1")), SimulationStep(2.0, "reconfigure", ("DR(1)",))),
        (Fault(1.25, "partition", 4.0, ("pep1", "fabric")),),
        {"size": 20},
    )
    assert scenario.text() == FILE


def test_steps_and_faults_that_are_not_written_down_are_left_to_the_seed() -> None:
    scenario = SimulationScenario.parse('world = "components"')
    assert (scenario.seed, scenario.steps, scenario.faults) == (0, None, None)
    assert SimulationScenario.parse('world = "components"\nfaults = []').faults == ()


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("world", "scenario.syntax"),
        ("seed = 1", "scenario.missing"),
        ('world = "components"\nfault = []', "scenario.unknown-key"),
        ('world = "components"\nseed = "7"', "scenario.value"),
        ('world = "components"\nseed = true', "scenario.value"),
        ('world = "components"\noptions = { size = "20" }', "scenario.value"),
        ('world = "components"\nsteps = "0.5 request"', "scenario.value"),
        ('world = "components"\nsteps = ["soon request"]', "scenario.value"),
        ('world = "components"\nfaults = ["1 partition"]', "scenario.value"),
    ],
)
def test_a_wrong_file_is_refused(text: str, code: str) -> None:
    with pytest.raises(MalformedError) as error:
        SimulationScenario.parse(text)
    assert error.value.code == code


@pytest.mark.parametrize("latency", [-1, 3])
def test_a_latency_has_one_of_three_shapes(latency: int) -> None:
    text = 'world = "roles"\noptions = {{ latency = {} }}'
    with pytest.raises(MalformedError) as refused:
        world_of(SimulationScenario.parse(text.format(latency)))
    assert refused.value.code == "scenario.value"
    assert refused.value.hint == "it is a number from 0 to 2"
    for right in range(3):
        world_of(SimulationScenario.parse(text.format(right)))
