"""`penstock type`: define, edit, show, verify."""

import sys
from pathlib import Path

import pytest
from tests.apps.conftest import Shell


@pytest.fixture
def owner(penstock: Shell) -> Shell:
    """An owner, a stranger, and a type."""
    for name in ("owner", "stranger"):
        penstock.ok("key", "new", f"{name}.key", "--name", name)
    penstock.ok(
        *("type", "new", "org.Reading", "--key", "owner.key", "--attribute", "sensor:string"),
        *("--attribute", "value:float:-1.5..1e3", "--attribute", "unit:string:C|F", "--out", "v0.type"),
    )
    return penstock


def test_define(owner: Shell) -> None:
    data = owner.ok("type", "show", "v0.type", "-o", "json").json
    assert (data["name"], data["version"], data["previous"]) == ("org.Reading", "0", None)
    assert [(a["name"], a["kind"]) for a in data["attributes"]] == [
        ("sensor", "string"),
        ("value", "float"),
        ("unit", "string"),
    ]
    assert data["attributes"][1]["range"] == ["-1.5", "1000.0"]
    assert data["attributes"][2]["one_of"] == ["C", "F"]
    assert len({a["uid"] for a in data["attributes"]}) == 3
    shown = owner.ok("type", "show", "v0.type").out
    assert "float, -1.5 to 1000.0" in shown
    assert "owner" in shown
    assert owner.ok("type", "show", "v0.type", "-o", "sexp").out == Path("v0.type").read_text()


def test_define_prints_or_writes_or_rehearses(owner: Shell) -> None:
    line = ("type", "new", "a.B", "--key", "owner.key", "--attribute", "x#1:boolean")
    shown = owner.ok(*line).out
    owner.ok(*line, "--out", "b.type")
    assert Path("b.type").read_text() == shown
    assert owner(*line, "--out", "b.type").code == "file.exists"
    owner.ok(*line, "--out", "c.type", "--dry-run")
    assert not Path("c.type").exists()
    assert owner.ok(*line, "-o", "json").json["attributes"] == [{"name": "x", "uid": "1", "kind": "boolean"}]


def test_define_from_an_event_class(owner: Shell) -> None:
    Path("readings.py").write_text(
        "from dataclasses import dataclass\n"
        "import penstock\n"
        '@penstock.event("owner/org.Metered@7")\n'
        "@dataclass\n"
        "class Metered:\n"
        "    id: str\n"
        "    power: float | None = None\n"
        "@penstock.event\n"
        "@dataclass\n"
        "class Detailed(Metered):\n"
        "    note: str = ''\n"
        "class Plain: ...\n"
    )
    before = list(sys.path)
    line = ("type", "new", "--key", "owner.key", "--from")
    owner.ok(*line, "readings:Metered", "--seal", "attribute", "--out", "metered.type")
    made = owner.ok("type", "show", "metered.type", "-o", "json").json
    assert (made["name"], made["version"], made["sealing"]) == ("org.Metered", "7", "attribute")
    assert [(a["name"], a["uid"], a["kind"]) for a in made["attributes"]] == [
        ("id", "0", "string"),
        ("power", "1", "float"),
    ]
    below = owner.ok(*line, "readings:Detailed", "--extends", "metered.type", "-o", "json").json
    assert (below["name"], [a["name"] for a in below["attributes"]]) == ("Detailed", ["note"])
    assert owner(*line, "readings:Detailed").code == "event.class"
    assert owner(*line, "readings:Plain").code == "event.class"
    for written in ("readings:Nobody", "nowhere:Metered", "readings", "", "readings:penstock"):
        assert owner(*line, written).code == "cli.class", written
    wrong = owner("type", "new", "--key", "stranger.key", "--from", "readings:Metered")
    assert wrong.code == "event.class"
    for more in (("org.Other",), ("--attribute", "x:string"), ("--version", "8")):
        assert owner(*line, "readings:Metered", *more).code == "cli.usage"
    assert owner("type", "new", "--key", "owner.key").code == "cli.usage"
    assert sys.path == before


def test_edit(owner: Shell) -> None:
    made = owner.ok(
        *("type", "edit", "v0.type", "--key", "owner.key", "--add", "place:string", "--remove", "unit"),
        *("--rename", "sensor=device", "--retype", "value:integer:0..9", "--out", "v1.type", "-o", "json"),
    ).json
    before = owner.ok("type", "show", "v0.type", "-o", "json").json
    assert made["previous"] == "0"
    assert len(made["version"]) == 32
    assert [a["name"] for a in made["attributes"]] == ["device", "value", "place"]
    assert made["attributes"][0]["uid"] == before["attributes"][0]["uid"]
    assert made["attributes"][1]["uid"] != before["attributes"][1]["uid"]
    assert sorted(change["operation"] for change in made["changes"]) == ["add", "remove", "rename", "retype"]
    again = owner.ok("type", "edit", "v1.type", "--key", "owner.key", "--remove", "place", "--version", "2").out
    assert '"2"' in again


def test_sealed_and_blinded(owner: Shell) -> None:
    edit = ("type", "edit", "v0.type", "--key", "owner.key", "--out")
    made = owner.ok(*edit, "v1.type", "--seal", "event", "--blinded", "-o", "json").json
    assert (made["sealing"], made["blinded"], made["changes"]) == ("event", True, [])
    assert "by event, blinded" in owner.ok("type", "show", "v1.type").out
    below = owner.ok("type", "new", "org.Below", "--key", "owner.key", "--extends", "v1.type", "-o", "json").json
    assert (below["sealing"], below["blinded"]) == ("event", True), "as what it extends"
    assert owner(*edit, "v2.type", "--blinded").code == "type.blinded"
    signed = owner.ok(*edit, "v3.type", "--seal", "event", "--signed", "-o", "json").json
    assert (signed["blinded"], signed["signed"]) == (False, True)
    assert "by event, signed" in owner.ok("type", "show", "v3.type").out


@pytest.mark.parametrize(
    ("more", "status", "code"),
    [
        ((), 2, "cli.no-change"),
        (("--remove", "colour"), 2, "type.unknown-attribute"),
        (("--rename", "sensor"), 2, "cli.pair"),
        (("--rename", "sensor=unit"), 2, "type.duplicate-attribute"),
        (("--add", "unit:string"), 2, "type.duplicate-attribute"),
        (("--add", "x:colour"), 2, "cli.attribute"),
        (("--add", "x"), 2, "cli.attribute"),
        (("--add", "x:integer:9..1"), 2, "value.domain"),
        (("--add", "x:integer:a..b"), 2, "value.malformed"),
        (("--add", "1x:string"), 2, "name.malformed"),
        (("--add", "x:string", "--version", "0"), 2, "type.cycle"),
        (("--add", "x:string", "--version", "a b"), 2, "name.malformed"),
    ],
)
def test_edits_that_make_no_sense(owner: Shell, more: tuple[str, ...], status: int, code: str) -> None:
    ran = owner("type", "edit", "v0.type", "--key", "owner.key", *more)
    assert (ran.status, ran.code) == (status, code)


def test_a_stranger_cannot_edit_or_define(owner: Shell) -> None:
    edited = owner("type", "edit", "v0.type", "--key", "stranger.key", "--add", "x:string")
    assert (edited.status, edited.code) == (1, "type.over-reach")
    assert "stranger may not" in edited.err
    line = ("type", "new", "org.Reading", "--owner", "owner", "--key", "stranger.key", "--attribute", "x:string")
    assert owner(*line).code == "type.forged"
    owner.ok(*line, "--unchecked", "--out", "forged.type")
    forged = owner("type", "verify", "forged.type")
    assert (forged.status, forged.code) == (1, "type.forged")
    assert owner("type", "edit", "forged.type", "--key", "owner.key", "--add", "y:string").code == "type.forged"


def test_a_forged_type_names_no_attributes(owner: Shell) -> None:
    line = ("type", "new", "org.Reading", "--owner", "owner", "--key", "stranger.key", "--attribute", "x:string")
    owner.ok(*line, "--unchecked", "--out", "forged.type")
    for command in (
        ("cert", "issue", "--key", "owner.key", "--to", "stranger", "--type-file", "forged.type", "--right", "publish"),
        ("explain", "--principal", "stranger", "--right", "publish", "--type-file", "forged.type"),
        ("selector", "check", "x = 'y'", "--type-file", "forged.type"),
    ):
        ran = owner(*command)
        assert (ran.status, ran.code) == (1, "type.forged")


def test_extends(owner: Shell) -> None:
    line = ("type", "new", "org.Humidity", "--key", "owner.key", "--extends", "v0.type", "--attribute")
    assert owner(*line, "sensor:string").code == "type.duplicate-attribute"
    owner.ok(*line, "humidity:float", "--out", "sub.type")
    assert owner("type", "verify", "sub.type").code == "type.unknown-parent"
    verified = owner.ok("type", "verify", "sub.type", "--parent", "v0.type", "-o", "json").json
    assert [a["name"] for a in verified["attributes"]] == ["sensor", "value", "unit", "humidity"]
    assert "extends" in owner.ok("type", "show", "sub.type").out


def test_verify_says_who_and_until_when(owner: Shell) -> None:
    owner.ok(
        *("cert", "issue", "--key", "owner.key", "--to", "stranger", "--type", "owner/org.*", "--right", "manage"),
        *("--days", "10", "--out", "manage.cert"),
    )
    owner.ok(
        *("type", "edit", "v0.type", "--key", "stranger.key", "--add", "x:string", "--credential", "manage.cert"),
        *("--version", "2", "--out", "v2.type"),
    )
    out = owner.ok("type", "verify", "v2.type").out
    assert "stranger" in out
    assert "owner → stranger: manage on owner/org.*" in out
    assert "until 2026-05-11" in out
    late = owner("type", "verify", "v2.type", "--previous", "v0.type", "--at", "2026-06-01")
    assert (late.status, late.code) == (1, "type.over-reach")
    # The credentials of a version are used again for the next one.
    owner.ok("type", "edit", "v2.type", "--key", "stranger.key", "--add", "y:string", "--out", "v3.type")
    assert owner("type", "verify", "v2.type", "--network", "owner/Plant").code == "type.not-installable"
    assert owner.ok("type", "verify", "v0.type", "--network", "owner/Plant").status == 0


def test_a_program_gets_an_answer_also_where_it_is_no(owner: Shell) -> None:
    line = ("type", "new", "org.Reading", "--owner", "owner", "--key", "stranger.key", "--attribute", "x:string")
    owner.ok(*line, "--unchecked", "--out", "forged.type")
    for file, status, code in (("forged.type", 1, "type.forged"), ("missing.type", 3, "file.missing")):
        ran = owner("type", "verify", file, "-o", "json")
        assert (ran.status, ran.json["ok"], ran.json["code"]) == (status, False, code)
        assert ran.json["reason"]
    # Explaining a type in a file starts with verifying it, so the hint is about the type's name.
    shown = owner("type", "verify", "forged.type").err
    assert ("penstock explain" in shown, "--type-file" in shown) == (True, False)
