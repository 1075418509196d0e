"""`penstock pipeline conflicts`: from tables and a rule base to a report, a page, and the conflicts of one rule."""

import json
from collections.abc import Iterator

import pyarrow as pa  # type: ignore[import-untyped]  # it ships no types
import pytest
from deltalake import write_deltalake
from pyspark.sql import SparkSession
from tests.apps.conftest import Shell
from tests.pipeline.jobs_plant import interpreted

TERMS = """
scope: upward
types: {Line: , Line.Press: Line}
subscribers: {attributes: {role: [engineer, worker], company: [acme, bolt]}}
rules:
  - {id: b1, event: Line, by: bolt, fnc_s: {company: bolt}}
"""
ROWS = [
    {"id": "a1", "event": "Line.Press", "stated_by": "acme", "fnc_s": {"role": "engineer"}},
    {"id": "a2", "event": "Line.Press.Arm", "stated_by": "acme", "fnc_s": "{(role, engineer), (company, bolt)}"},
    {"id": "a3", "event": "Line.Press", "stated_by": "bolt", "fnc_s": "role IN ('engineer', 'worker')"},
    {"id": "old", "event": "Line", "stated_by": "acme", "fnc_s": "TRUE", "valid_until": "2001-01-01T00:00:00Z"},
    {"id": "c1", "event": "Line.Pack", "stated_by": "cade"},
    {"id": "c 2", "event": "Line", "stated_by": "cade"},
]


@pytest.fixture(autouse=True)
def _quick(spark: SparkSession) -> Iterator[None]:
    with interpreted(spark):
        yield


@pytest.mark.long
def test_from_tables_to_the_conflicts_of_one_rule(penstock: Shell) -> None:
    (penstock.folder / "terms.yaml").write_text(TERMS, encoding="utf-8")
    lines = [json.dumps(row) for row in ROWS] + ["{"]
    (penstock.folder / "rules.jsonl").write_text("\n".join(lines), encoding="utf-8")
    (penstock.folder / "types.csv").write_text("type,parent\nLine.Press.Arm,Line.Press\n", encoding="utf-8")
    tables = ("rules.jsonl", "--types", "types.csv", "--file", "terms.yaml")
    done = penstock(
        *("pipeline", "conflicts", *tables, "--out", "found", "--html", "page.html", "--fail-on-conflict", "-o", "json")
    )
    assert done.status == 1
    assert "conflicts.found" in done.err
    data = json.loads(done.out)
    assert data["counts"] == {
        "read": 8,
        "rules": 4,
        "not_in_force": 1,
        "quarantined": 3,
        "types": 3,
        "types_quarantined": 0,
        "conflicts": 3,
        "between_types": 2,
    }
    assert data["reasons"] == {"moderator.unknown-type": 1, "moderator.rule": 1, "conflicts.row": 1}
    assert [list(row.values()) for row in data["organisations"]] == [["acme", "bolt", 2], ["bolt", "bolt", 1]]
    assert data["causes"][0]["rule"] == "b1"
    assert data["causes"][0]["others"] == 2
    assert data["causes"][0]["witness"] == "company acme and role engineer, by a1"
    assert "Which rules" in (penstock.folder / "page.html").read_text(encoding="utf-8")
    mine = penstock.ok("pipeline", "conflicts-of", "found", "b1", "-o", "json").json
    assert mine["conflicts"] == [
        {
            "kind": "down",
            "function": "fnc_s",
            "other": other,
            "type": "Line.Press",
            "attributes": ["company"],
            "certain": True,
            "witnesses": [
                {"function": "fnc_s", "profile": {"company": "acme", "role": role}, "admitted_by": other},
            ],
        }
        for other, role in (("a1", "engineer"), ("a3", "engineer"))
    ]
    assert "same" in penstock.ok("pipeline", "conflicts-of", "found", "a1").out
    assert "moderator.unknown-type" in penstock.ok("pipeline", "quarantine", "found").out
    unknown = penstock("pipeline", "conflicts-of", "found", "zz")
    assert (unknown.status, unknown.code) == (2, "moderator.unknown-rule")


def test_rules_in_a_table_of_a_lake(penstock: Shell) -> None:
    (penstock.folder / "terms.yaml").write_text(TERMS, encoding="utf-8")
    rule = {"id": "a1", "event": "Line", "stated_by": "acme"}
    write_deltalake(str(penstock.folder / "rules"), pa.Table.from_pylist([rule]))
    planned = penstock.ok(
        *("pipeline", "conflicts", "delta:rules", "--file", "terms.yaml", "--out", "found", "--dry-run", "-o", "json")
    )
    assert "delta:" in planned.out
    ran = penstock("pipeline", "conflicts", "delta:rules", "--format", "csv", "--file", "terms.yaml", "--out", "found")
    assert ran.code == "tables.mapping"


def test_what_is_missing_is_named(penstock: Shell) -> None:
    (penstock.folder / "terms.yaml").write_text(TERMS, encoding="utf-8")
    (penstock.folder / "rules.csv").write_text("id,event\na,Line\n", encoding="utf-8")
    lacking = penstock("pipeline", "conflicts", "rules.csv", "--file", "terms.yaml", "--out", "found")
    assert (lacking.status, lacking.code) == (2, "conflicts.column")
    assert "`stated_by`" in lacking.err
    nothing = penstock("pipeline", "conflicts", "rules.csv", "--out", "found")
    assert (nothing.status, nothing.code) == (2, "cli.usage")
    foreign = penstock("pipeline", "conflicts-of", "terms.yaml", "a")
    assert (foreign.status, foreign.code) == (3, "pipeline.no-input")
