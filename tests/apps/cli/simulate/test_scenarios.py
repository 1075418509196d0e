"""`penstock simulate run` and `explore`: for people, for programs, and with a status for violations."""

import os
import signal
from pathlib import Path

import pytest
from tests.apps.conftest import Shell
from tests.simulate.planted import plant

from penstock.simulate import explore
from penstock.simulate.scenario import SimulationScenario

SCENARIO = """world = "rule-book"
seed = 3
steps = ["1 state publisher1 plant 0",
         "1.5 withdraw publisher1"]
faults = ["0.5 crash 3 reader1"]
"""


def test_a_file_is_run_and_gives_the_same_trace_again(penstock: Shell) -> None:
    Path("one.toml").write_text(SCENARIO)
    done, again = (penstock("simulate", "run", "one.toml", "-o", "json") for _ in range(2))
    assert (done.status, done.json["violations"], done.json["seed"]) == (0, [], 3)
    assert done.json["counts"]["fault crash"] == 1
    assert done.json["trace"] == again.json["trace"]
    shown = penstock("simulate", "run", "one.toml", "--log")
    assert "✓ nothing is violated" in shown.out
    assert "acknowledged" in shown.out


def test_a_search_writes_a_scenario_that_shows_the_violation_again(
    penstock: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = "self._write([taken.step], [*self._written(taken).entries(self._limits)])"
    plant(monkeypatch, "penstock.authority.rulebook:RuleBook._append", line, "pass")
    done = penstock("simulate", "explore", "rule-book", "--seeds", "3", "--size", "4", "--processes", "1", "-o", "json")
    assert done.status == 1
    assert done.json["violations"][0]["checker"] == "no_acknowledged_change_lost"
    written = SimulationScenario.parse(Path(done.json["file"]).read_bytes())
    assert len(Path(done.json["file"]).read_text().splitlines()) <= 10
    assert SimulationScenario.parse(done.json["scenario"]) == written
    more = penstock("simulate", "explore", "rule-book", "--seeds", "3", "--size", "4", "--processes", "1")
    first = Path(done.json["file"])
    assert f"✓ wrote {first.stem}-2.toml" in more.out
    assert f"{first.read_text().splitlines()[-1]}\n" in more.out
    kept = penstock("simulate", "explore", "rule-book", "--seeds", "3", "--size", "4", "--out", str(first))
    assert kept.code == "file.exists"
    again = penstock("simulate", "run", done.json["file"])
    assert (again.status, again.code) == (1, "simulate.violation")
    assert written.world == "rule-book"


def test_a_search_without_a_violation_says_what_it_did(penstock: Shell) -> None:
    done = penstock("simulate", "explore", "rule-book", "--seeds", "2", "--size", "3", "--processes", "1")
    assert done.status == 0
    assert "2 seeds" in done.out
    assert "from seed 0 on" in done.out
    assert "seeds a second" in done.out
    assert "✓ nothing is violated" in done.out


def test_an_interrupted_search_says_how_to_go_on(penstock: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    run = explore.run_seed

    def interrupted(scenario: SimulationScenario) -> explore.SeedResult:
        if scenario.seed == 7:
            os.kill(os.getpid(), signal.SIGTERM)
        return run(scenario)

    monkeypatch.setattr(explore, "run_seed", interrupted)
    done = penstock(
        *("simulate", "explore", "rule-book", "--seed", "5", "--seeds", "9"), "--size", "3", "--processes", "1"
    )
    assert (done.status != 0, done.code) == (True, "cli.aborted")
    assert "seeds 5 to 6 violate nothing" in done.err
    assert "--seed 7" in done.err


def test_what_does_not_exist_is_refused(penstock: Shell) -> None:
    assert penstock("simulate", "run", "nothing.toml").code == "file.missing"
    assert "did you mean `components`?" in penstock("simulate", "run", "componets").err
    Path("one.toml").write_text('world = "brokr"\n')
    assert penstock("simulate", "run", "one.toml").code == "scenario.value"


@pytest.mark.parametrize("sharing", ["1", "2"])
def test_a_scenario_that_cannot_be_played_is_no_violation(penstock: Shell, sharing: str) -> None:
    # Whether a process exists is known when the world has started.
    Path("one.toml").write_text('world = "decisions"\nsteps = ["1 ask pepX a d1"]\nfaults = []\n')
    done = penstock("simulate", "explore", "one.toml", "--seeds", "2", "--processes", "1", "--sharing", sharing)
    assert (done.status, done.code) == (2, "scenario.value")
    assert "pepX" in done.err
    assert [path.name for path in Path().glob("*.toml")] == ["one.toml"]


def test_what_a_run_raises_is_a_violation(penstock: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    line = "end = self._simulation.time + 120"
    plant(monkeypatch, "penstock.simulate.worlds.rule_book:RuleBookWorld.settle", line, "raise LookupError('lost')")
    done = penstock("simulate", "run", "rule-book", "--size", "1", "-o", "json")
    assert done.status == 1
    assert [one["message"] for one in done.json["violations"]] == ["LookupError: lost"]
