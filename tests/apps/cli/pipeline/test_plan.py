"""`penstock pipeline run`: a plan's steps in the order of their inputs, and what is wrong in a plan."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.apps.conftest import Shell
from tests.pipeline.jobs_plant import build, good, interpreted, seen, write_events

PLAN = """
out = "results"

[step.views]
job = "deliver"
from = "admit"
policy = "plant/policy.toml"

[step.admit]
from = "ingest"
policy = "plant/policy.toml"

[step.ingest]
source = "in"
policy = "plant/policy.toml"
"""


@pytest.fixture
def plant(penstock: Shell) -> Shell:
    build(penstock.folder / "plant")
    write_events(penstock.folder / "in" / "0.jsonl", range(42))
    return penstock


@pytest.mark.java
def test_the_steps_of_a_plan_run_after_those_that_they_read(plant: Shell, spark: SparkSession) -> None:
    # Not in the working folder: paths are relative to the plan.
    (plant.folder / "plan.toml").write_text(PLAN)
    with interpreted(spark):
        done = plant.ok("pipeline", "run", "plan.toml", "-o", "json").json["steps"]
        assert [(step["step"], step["job"]) for step in done] == [
            ("ingest", "ingest"),
            ("admit", "admit"),
            ("views", "deliver"),
        ]
        assert done[0]["answer"]["counts"]["events"] == len(good(42))
        found = plant.ok("pipeline", "view", "results/views", "engineer", "-o", "json").json
        assert found["rows"] == len(seen("engineer", 42))
        again = plant("pipeline", "run", "plan.toml")
        assert again.code == "pipeline.exists"
        assert "step `ingest` failed" in again.err
        resumed = plant.ok("pipeline", "run", "plan.toml", "--resume").out
        assert resumed.count("(complete already)") == 3


def test_a_dry_run_shows_the_commands(plant: Shell) -> None:
    Path("plan.toml").write_text(PLAN)
    lines = plant.ok("pipeline", "run", "plan.toml", "--dry-run").out.splitlines()
    assert [line.split()[2] for line in lines] == ["ingest", "admit", "deliver"]
    assert lines[0].startswith(f"penstock pipeline ingest {plant.folder}/in --policy {plant.folder}/plant/policy.toml")
    assert not Path("results").exists()
    data = plant.ok("pipeline", "run", "plan.toml", "--dry-run", "-o", "json").json
    assert [step["step"] for step in data["steps"]] == ["ingest", "admit", "views"]


def test_tables_are_relative_to_the_plan_too(plant: Shell) -> None:
    plan = 'out = "o"\n[step.deliver]\nsource = "delta:lake/x"\npolicy = "p"\nto = ["parquet:y", "table:z"]\n'
    (plant.folder / "sub").mkdir()
    (plant.folder / "sub" / "plan.toml").write_text(plan)
    said = plant.ok("pipeline", "run", "sub/plan.toml", "--dry-run").out
    assert f" delta:{plant.folder}/sub/lake/x " in said
    assert f"--to parquet:{plant.folder}/sub/y --to table:z" in said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no steps"),
        ("out = ", "not TOML"),
        ("steps = 1", "did you mean `step`"),
        ("[step.ingst]\nsource = 'in'", "did you mean `ingest`"),
        ("[step.view]\nsource = 'in'", "no job that a plan can run"),
        ("[step.a]\njob = 'ingest'\nsource = 'in'\nmaping = 'm.toml'", "did you mean `mapping`"),
        ("[step.a]\njob = 'ingest'\nsource = 'in'\nmaster = 'local'", "no setting `master`"),
        ("[step.admit]\nfrom = 'ingst'\n[step.ingest]\nsource='in'", "did you mean `ingest`"),
        ("[step.admit]\nfrom = 'b'\n[step.b]\njob = 'deliver'\nfrom = 'admit'", "wait for each other"),
        ("[step.admit]\nfrom = 'admit'", "wait for each other"),
        ("[step.ingest]\nsource = 'in'\nstream = true", "stream without an end"),
        ("[step.ingest]\nsource = 'in'\nstream = 'yes'", "true or false"),
        ("[step.ingest]\nsource = 'in'\npolicy = { a = 1 }", "value that an option cannot have"),
        ("[step.a]\njob = 'admit'\nout = 'x'\n[step.b]\njob = 'admit'\nout = 'x'", "same folder"),
        ("[step.a]\njob = 'admit'\nfrom = 'b'\nsource = 'x'\n[step.b]\njob = 'admit'", "both `from` and `source`"),
        ("[step.'a/b']\njob = 'admit'", "is not a step"),
        ("step = 1", "up to 100 tables"),
    ],
)
def test_a_mistake_in_a_plan_is_named(penstock: Shell, text: str, said: str) -> None:
    Path("plan.toml").write_text(text)
    refused = penstock("pipeline", "run", "plan.toml")
    assert (refused.status, refused.code) == (2, "pipeline.plan")
    assert said in refused.err
