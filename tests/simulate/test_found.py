"""What the search has found is fixed: each scenario violates nothing any more."""

from pathlib import Path

import pytest

from penstock.simulate.run import run
from penstock.simulate.scenario import SimulationScenario

FOUND = sorted((Path(__file__).parent / "found").glob("*.toml"))


@pytest.mark.parametrize("file", FOUND, ids=lambda file: file.stem)
def test_what_was_found_is_fixed(file: Path) -> None:
    assert run(SimulationScenario.parse(file.read_bytes())).violations == ()
