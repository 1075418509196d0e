"""Which engine runs a job: small inputs need no Spark, and everything else does."""

import subprocess
import sys
from pathlib import Path

import pytest
from tests.apps.conftest import Shell
from tests.pipeline.jobs_plant import build, good, seen, write_events

SMALL = ("--engine", "small")


@pytest.fixture
def plant(penstock: Shell) -> Path:
    build(penstock.folder / "plant")
    write_events(penstock.folder / "in" / "a.jsonl", range(42))
    return penstock.folder


@pytest.mark.usefixtures("plant")
def test_jobs_run_one_after_the_other(penstock: Shell) -> None:
    policy = ("--policy", "plant/policy.toml", *SMALL, "--out")
    ingested = penstock.ok("pipeline", "ingest", "in", *policy, "ingested")
    assert "42 records = 36 events + 6 in quarantine" in ingested.out
    assert "  ingest.json  6" in ingested.out
    aside = penstock.ok("pipeline", "quarantine", "ingested", *SMALL)
    assert aside.out.splitlines()[-1] == "6 records in quarantine"
    assert (
        "36 events = 29 admitted + 7 refused" in penstock.ok("pipeline", "admit", "ingested", *policy, "admitted").out
    )
    delivered = penstock.ok("pipeline", "deliver", "admitted", *policy, "delivered", "-o", "json").json
    engineer = len(seen("engineer", 42))
    assert delivered["delivered"] == {"auditor": 29, "statistics": 29, "engineer": engineer, "stranger": 0}
    assert delivered["without_rights"] == ["stranger"]
    shown = penstock.ok("pipeline", "view", "delivered", "engineer", "--limit", "2", *SMALL)
    assert shown.out.splitlines()[-1] == f"2 of {engineer} events"
    assert penstock("pipeline", "view", "delivered", "stranger", *SMALL).code == "pipeline.no-rights"
    assert penstock("pipeline", "admit", "ingested", *policy, "admitted").code == "pipeline.exists"


@pytest.mark.usefixtures("plant")
@pytest.mark.parametrize("more", [("--stream",), ("--master", "spark://host:7077"), ("--dry-run",)])
def test_what_the_small_engine_lacks_is_refused_by_name(penstock: Shell, more: tuple[str, ...]) -> None:
    done = penstock("pipeline", "ingest", "in", "--policy", "plant/policy.toml", "--out", "x", *SMALL, *more)
    assert done.code == "pipeline.small"
    assert more[0] in done.err
    assert penstock("pipeline", "ingest", "in/*.jsonl", "--policy", "plant/policy.toml", "--out", "x", *SMALL).code == (
        "pipeline.small"
    )


def test_two_policies_are_compared(penstock: Shell, plant: Path) -> None:
    """The statistics office asks for less, and loses what it sees of 30 and below."""
    propose(plant)
    penstock.ok("pipeline", "ingest", "in", "--policy", "plant/policy.toml", *SMALL, "--out", "ingested")
    asked = (
        "pipeline",
        "whatif",
        "ingested",
        "--before",
        "plant/policy.toml",
        "--after",
        "plant/proposal.toml",
        *SMALL,
    )
    found = penstock.ok(*asked, "--samples", "2", "-o", "json").json
    lost = [number for number in good(42) if number <= 30]
    assert [(one["subscriber"], one["name"], one["gained"], one["lost"]) for one in found["changes"]] == [
        ("statistics", name, 0, len(lost)) for name in ("", "region", "value")
    ]
    assert found["changes"][0]["lost_samples"] == sorted(f"e{number}" for number in lost)[:2]
    assert (found["events"], found["readers"], found["unknown_type"]) == (36, 4, 0)
    shown = penstock.ok(*asked, "--fail-on", "gain", "--html", "change.html")
    assert shown.out.splitlines()[-1].startswith("36 events under two policies, 4 readers compared")
    assert "statistics" in (plant / "change.html").read_text(encoding="utf-8")
    assert penstock(*asked, "--html", "change.html").code == "file.exists"
    refused = penstock(*asked, "--fail-on", "loss")
    assert (refused.code, refused.status) == ("whatif.changes", 1)
    assert penstock(*asked, "--out", "kept").code == "pipeline.small"


def propose(plant: Path) -> None:
    """Write a policy with one more filter."""
    policy = (plant / "plant" / "policy.toml").read_text(encoding="utf-8")
    proposed = policy.replace('name = "statistics"', 'name = "statistics"\nwhere = "value > 30"')
    (plant / "plant" / "proposal.toml").write_text(proposed, encoding="utf-8")


def test_a_small_job_imports_no_spark(plant: Path) -> None:
    """And nothing else that takes long: the whole command must take less than a second."""
    propose(plant)
    commands = (
        "ingest in --policy plant/policy.toml --out ingested",
        "whatif ingested --before plant/policy.toml --after plant/proposal.toml --html change.html",
    )
    program = (
        "import sys; from penstock.apps.cli.main import cli\n"
        f"for command in {commands!r}:\n"
        "  try: cli.main(['pipeline', *command.split()])\n"
        "  except SystemExit as end: assert end.code == 0\n"
        "print({'pyspark', 'py4j', 'pandas', 'lxml', 'elementpath', 'duckdb'} & {*sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=plant, capture_output=True, check=True)
    assert done.stdout.decode().splitlines()[-1] == "set()"
