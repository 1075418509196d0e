"""`penstock selector`: check, eval, and questions about all possible events."""

import json

import pytest
from tests.apps.conftest import Shell

SCHEMA = (
    *("--attribute", "speed:integer:0..200", "--attribute", "zone:string:north|south"),
    *("--attribute", "seen:timestamp", "--attribute", "ok:boolean", "--attribute", "x:float"),
)


def test_check(penstock: Shell) -> None:
    assert penstock.ok("selector", "check", "speed>30 and zone='north'").out == "speed > 30 AND zone = 'north'\n"
    data = penstock.ok("selector", "check", "speed>30", *SCHEMA, "-o", "json").json
    assert data == {"ok": True, "selector": "speed > 30", "attributes": ["speed"]}


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("speed >", "selector.syntax"),
        ("speed > 'x'", "selector.type"),
        ("colour = 1", "selector.unknown-attribute"),
        ("(SELECT 1)", "selector.unsupported"),
        ("(" * 200 + "ok" + ")" * 200, "selector.limit"),
        ("ok OR " * 9000 + "ok", "selector.limit"),
    ],
)
def test_check_points_at_what_is_wrong(penstock: Shell, text: str, code: str) -> None:
    ran = penstock("selector", "check", text, *SCHEMA)
    assert (ran.status, ran.code) == (2, code)
    error = json.loads(penstock("selector", "check", text, *SCHEMA, "-o", "json").err)["error"]
    assert error["code"] == code
    if code != "selector.limit":
        assert "^" in ran.err
        assert "^" in error["pointer"]


@pytest.mark.parametrize(
    ("text", "values", "shown", "status"),
    [
        ("speed > 30", ["speed=42"], "TRUE", 0),
        ("speed > 30", ["speed=2"], "FALSE", 1),
        ("speed > 30", [], "NULL", 1),
        ("zone LIKE 'n%' AND ok", ["zone=north", "ok=true"], "TRUE", 0),
        ("seen > TIMESTAMP '2026-01-01 00:00:00'", ["seen=2026-02-01T00:00Z"], "TRUE", 0),
        ("x < 0.5", ["x=0.25"], "TRUE", 0),
    ],
)
def test_eval(penstock: Shell, text: str, values: list[str], shown: str, status: int) -> None:
    given = [part for value in values for part in ("--set", value)]
    ran = penstock("selector", "evaluate", text, *SCHEMA, *given)
    assert (ran.out, ran.status) == (f"{shown}\n", status)
    value = penstock("selector", "evaluate", text, *SCHEMA, *given, "-o", "json").json["value"]
    assert value is {"TRUE": True, "FALSE": False, "NULL": None}[shown]


@pytest.mark.parametrize(
    ("values", "status", "code"),
    [
        (["speed=fast"], 2, "value.malformed"),
        (["speed=999"], 2, "value.domain"),
        (["colour=red"], 2, "event.unknown-attribute"),
        (["speed"], 2, "cli.pair"),
        (["speed=0"], 1, "selector.division"),
    ],
)
def test_eval_of_what_has_no_value(penstock: Shell, values: list[str], status: int, code: str) -> None:
    ran = penstock("selector", "evaluate", "1 / speed > 0", *SCHEMA, *[p for v in values for p in ("--set", v)])
    assert (ran.status, ran.code) == (status, code)
    assert penstock("selector", "evaluate", "speed > 1").code == "cli.schema"


@pytest.mark.parametrize(
    ("question", "verdict"),
    [
        (("covers", "speed > 30", "speed > 50"), "yes"),
        (("covers", "speed > 50", "speed > 30"), "no"),
        (("overlaps", "speed > 30", "speed < 50"), "yes"),
        (("overlaps", "speed > 50", "speed < 30"), "no"),
        (("equivalent", "speed > 30", "NOT speed <= 30"), "yes"),
        (("equivalent", "speed > 30", "speed >= 30"), "no"),
        (("equivalent", "zone = 'north'", "zone <> 'south'"), "yes"),
        (("satisfiable", "speed > 199"), "yes"),
        (("satisfiable", "speed > 200"), "no"),
        (("overlaps", "speed * 2 = x", "x > 399"), "yes"),
    ],
)
def test_questions_about_all_events(penstock: Shell, question: tuple[str, ...], verdict: str) -> None:
    ran = penstock("selector", *question, *SCHEMA)
    assert ran.out.splitlines()[0] == verdict
    assert (ran.status, ran.code) == ((0, "") if verdict == "yes" else (1, "selector.no"))
    data = penstock("selector", *question, *SCHEMA, "-o", "json").json
    assert data["verdict"] == verdict
    # What exists is shown, and so is what tells two apart.
    shows = (question[0] in ("overlaps", "satisfiable")) is (verdict == "yes")
    assert (data["witness"] is not None) is shows
    assert ("for example" in ran.out) is shows


def test_nothing_is_given_twice(penstock: Shell) -> None:
    declared = ("--attribute", "a:integer")
    for line in (
        ("check", "a > 1", *declared, "--attribute", "a:string"),
        ("evaluate", "a > 1", *declared, "--set", "a=1", "--set", "a=2"),
        ("evaluate", "a > 1", *declared, "--set", "a=1", "--set", "a=1"),
    ):
        ran = penstock("selector", *line)
        assert (ran.status, ran.code) == (2, "cli.twice")
    penstock.ok("key", "new", "o.key")
    penstock.ok("type", "new", "a.B", "--key", "o.key", "--attribute", "a:string", "--out", "b.type")
    assert penstock("selector", "check", "a > 1", "--type-file", "b.type", *declared).code == "cli.twice"
