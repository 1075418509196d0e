"""`penstock moderator` on rules in files: check, show, propose, explain, allow, sign, export."""

from pathlib import Path

import pytest
from click.shell_completion import ShellComplete
from tests.apps.conftest import Shell

from penstock.apps.cli.main import cli

RULES = """\
title: A press line of two companies
scope: upward
owner: plant
types:
  Line:
  Line.Press: Line
  Line.Paint: Line
publishers:
  attributes: {country: [de, fr]}
  profiles: {acme: {country: de}, bolt: {country: fr}}
subscribers:
  attributes:
    role: [engineer, worker]
    company: [acme, bolt]
  profiles:
    ada: {role: engineer, company: acme}
    cyd: {role: engineer, company: bolt}
rules:
  - {id: press, event: Line.Press, by: acme, fnc_s: {role: engineer}}
  - {id: line, event: Line, by: bolt, fnc_s: {company: bolt}}
  - {id: paint, event: Line.Paint, by: bolt, fnc_s: "role = 'worker' OR company = 'bolt'"}
subscriptions:
  - {id: ada-press, event: Line.Press, by: ada}
  - {id: cyd-press, event: Line.Press, by: cyd, fnc_p: {country: fr}}
"""


@pytest.fixture
def filed(penstock: Shell) -> Shell:
    """A folder with a rule base in a file."""
    Path("rules.yaml").write_text(RULES, encoding="utf-8")
    return penstock


@pytest.fixture
def keyed(filed: Shell) -> Shell:
    """Keys for everybody besides."""
    for name in ("plant", "acme", "bolt", "ada"):
        filed.ok("key", "new", f"{name}.key", "--name", name)
    return filed


def test_check_names_every_conflict(filed: Shell) -> None:
    ran = filed("moderator", "check", "rules.yaml")
    assert (ran.status, ran.code) == (1, "moderator.conflict")
    assert "✗ line (line 20): bolt: only subscribers with company bolt receive Line." in ran.out
    assert (
        "line on Line conflicts with rule press on Line.Press, below it, in what it demands of subscribers." in ran.out
    )
    assert "line demands company bolt, which rule press does not." in ran.out
    assert (
        "somebody with company acme and role engineer could receive Line.Press by rule press, but not Line" in ran.out
    )
    # The third conflicts with the second, though that conflicts itself.
    assert "paint does not demand company bolt, which rule line does." in ran.out
    assert "propose line --file rules.yaml" in ran.err
    found = filed("moderator", "check", "rules.yaml", "-o", "json").json
    assert (found["ok"], found["rules"]) == (False, 3)
    first = found["conflicts"][0]
    assert (first["rule"], first["line"]) == ("line", 20)
    (conflict,) = first["conflicts"]
    assert {key: conflict[key] for key in ("kind", "with", "function", "attributes", "extra", "admitted_by")} == {
        "kind": "down",
        "with": ["press"],
        "function": "fnc_s",
        "attributes": ["company"],
        "extra": ["(company, bolt)"],
        "admitted_by": "rule",
    }
    assert conflict["witness"] == {"company": "acme", "role": "engineer"}


def test_check_without_a_conflict(filed: Shell) -> None:
    Path("rules.yaml").write_text(RULES.replace("fnc_s: {company: bolt}", "fnc_s: 'TRUE'"), encoding="utf-8")
    assert "✓ 3 rules, no conflict" in filed.ok("moderator", "check", "rules.yaml").out
    assert filed.ok("moderator", "check", "rules.yaml", "-o", "json").json["ok"] is True


def test_rules_that_are_never_valid_together_do_not_collide(filed: Shell) -> None:
    text = RULES.replace("by: acme,", "by: acme, until: 2026-06-30,").replace(
        "by: bolt,", "by: bolt, from: 2026-07-01,"
    )
    Path("rules.yaml").write_text(text, encoding="utf-8")
    ran = filed("moderator", "check", "rules.yaml", "-o", "json").json
    assert [each["rule"] for each in ran["conflicts"]] == ["paint"]


def test_check_names_all_that_is_wrong_with_rules(filed: Shell) -> None:
    text = RULES.replace("{role: engineer}}\n  - {id: line", "{role: boss}}\n  - {id: line").replace(
        "{company: bolt}}\n", "'company = ''acme'' AND company = ''bolt'''}\n", 1
    )
    Path("rules.yaml").write_text(text, encoding="utf-8")
    ran = filed("moderator", "check", "rules.yaml")
    assert (ran.status, ran.code) == (2, "moderator.wrong-rules")
    assert "✗ press (line 19): " in ran.out
    assert "[moderator.domain]" in ran.out
    assert "[moderator.contradiction]" in ran.out
    problems = filed("moderator", "check", "rules.yaml", "-o", "json").json["problems"]
    assert [(each["rule"], each["line"]) for each in problems] == [("press", 19), ("line", 20)]
    # Where one is to be stated, the first that is wrong is an error with its line.
    assert "`rules.yaml`: line 19: " in filed("moderator", "show", "--file", "rules.yaml").err


def test_a_file_that_is_none(filed: Shell) -> None:
    Path("bad.yaml").write_text(RULES.replace("scope: upward", "scope: sideways"), encoding="utf-8")
    ran = filed("moderator", "check", "bad.yaml")
    assert (ran.status, ran.code) == (2, "moderator.file")
    assert "`bad.yaml`: line 2: rule base, `scope`: expected one of downward, upward" in ran.err
    Path("bad.yaml").write_bytes(b"\xff")
    assert filed("moderator", "check", "bad.yaml").code == "yaml.malformed"
    assert filed("moderator", "check", "none.yaml").code == "file.missing"
    assert filed("moderator", "show").code == "cli.usage"
    assert filed("moderator", "show", "--file", "rules.yaml", "--store", "sqlite:x.db").code == "cli.usage"


def test_show(filed: Shell) -> None:
    out = filed.ok("moderator", "show", "--file", "rules.yaml").out
    assert "└── Line.Press  {(role, engineer)}  [press]" in out
    assert "rejected_rule(Line, [bolt], {(company, bolt)})" in out
    assert "cyd-press: cyd wants Line.Press from publishers with country fr." in out
    shown = filed.ok("moderator", "show", "--file", "rules.yaml", "-o", "json").json
    parents = {each["name"]: each["parent"] and each["parent"]["name"] for each in shown["types"]}
    assert parents == {"Line": None, "Line.Press": "Line", "Line.Paint": "Line"}
    assert [(each["stated"]["id"], each["status"]) for each in shown["rules"]] == [
        ("line", "rejected"),
        ("paint", "in-force"),
        ("press", "in-force"),
    ]
    one = filed.ok("moderator", "show", "press", "--file", "rules.yaml", "-o", "json").json
    assert one["form"]["fnc_s"] == "role = 'engineer'"
    assert "stated by" in filed.ok("moderator", "show", "press", "--file", "rules.yaml").out


def test_propose_ranks_ways_out_and_counts_people(filed: Shell) -> None:
    found = filed.ok("moderator", "propose", "line", "--file", "rules.yaml", "-o", "json").json
    told = [
        (each["strategy"], each["touched"], each["relaxed"], each["gained"], each["lost"])
        for each in found["proposals"]
    ]
    # What opens the type to everybody is not the first, though it changes fewer rules.
    assert told == [("add-attributes", 2, [], 0, 1), ("follow", 0, ["bolt"], 1, 0)]
    assert [each["means"] for each in found["proposals"]][1] == [
        "After this, everybody can receive Line from bolt: wider than line asks for."
    ]
    out = filed.ok("moderator", "propose", "line", "--file", "rules.yaml").out
    assert "2. follow: line alone changes" in out
    assert "   After this, everybody can receive Line from bolt: wider than line asks for." in out
    assert "1 gains and none loses events; bolt must agree to demand less" in out
    assert "     + fnc_s: company = 'bolt'" in out
    assert filed("moderator", "propose", "press", "--file", "rules.yaml").code == "moderator.not-rejected"
    wrong = filed("moderator", "propose", "lime", "--file", "rules.yaml")
    assert wrong.code == "moderator.unknown-rule"
    assert "did you mean `line`?" in wrong.err
    assert filed("moderator", "propose", "ada-press", "--file", "rules.yaml").code == "moderator.unknown-rule"


def test_explain_a_rule_and_a_step(filed: Shell) -> None:
    out = filed.ok("moderator", "explain", "line", "--file", "rules.yaml").out
    assert "It was rejected, because it conflicts" in out
    assert "line demands company bolt, which rule press does not." in out
    assert "step 2, 2026-05-01 12:00:00 UTC: bolt asked to state line on Line" in out
    told = filed.ok("moderator", "explain", "press", "--file", "rules.yaml", "-o", "json").json
    assert told["sentences"] == [
        "acme: only subscribers with role engineer receive Line.Press.",
        "It is in force as it was stated.",
    ]
    assert [step["number"] for step in told["steps"]] == [1]
    out = filed.ok("moderator", "explain", "--step", "1", "--file", "rules.yaml").out
    assert "acme asked to state press on Line.Press" in out
    assert "No later step depends on it" in out
    assert filed("moderator", "explain", "--step", "9", "--file", "rules.yaml").code == "moderator.unknown-step"
    assert filed("moderator", "explain", "--file", "rules.yaml").code == "cli.usage"


def test_explain_two_rules(filed: Shell) -> None:
    pair = ("moderator", "explain", "line", "--file", "rules.yaml", "--with")
    assert "line demands company bolt, which rule press does not." in filed.ok(*pair, "press").out
    assert [each["kind"] for each in filed.ok(*pair, "paint", "-o", "json").json["conflicts"]] == ["down"]
    assert "They do not conflict." in filed.ok(*pair, "line").out
    apart = filed.ok("moderator", "explain", "press", "--with", "paint", "--file", "rules.yaml").out
    assert "They have nothing to do with each other" in apart


def test_rules_and_types_are_completed(filed: Shell) -> None:
    shell = ShellComplete(cli, {}, "penstock", "_PENSTOCK_COMPLETE")
    asked = ["moderator", "explain", "--file", "rules.yaml"]
    assert [item.value for item in shell.get_completions(asked, "p")] == ["paint", "press"]
    asked = ["moderator", "allow", "--file", "rules.yaml"]
    assert [item.value for item in shell.get_completions(asked, "Line.")] == ["Line.Paint", "Line.Press"]
    assert shell.get_completions(["moderator", "explain", "--file", "none.yaml"], "p") == []
    assert filed.folder.exists()


def test_allow_looks_both_ways(filed: Shell) -> None:
    ran = filed("moderator", "allow", "Line.Press", "--file", "rules.yaml")
    assert ran.status == 0
    assert "✓ ada receives Line.Press from acme" in ran.out
    assert "the profile of acme does not satisfy fnc_p of rule `cyd-press`: `country`" in ran.out
    one = filed("moderator", "allow", "Line.Press", "--publisher", "acme", "--subscriber", "cyd", "-f", "rules.yaml")
    assert (one.status, one.code) == (1, "moderator.not-allowed")
    pairs = filed("moderator", "allow", "Line.Paint", "--subscriber", "ada", "-f", "rules.yaml", "-o", "json").json
    assert [(each["publisher"], each["allowed"]) for each in pairs["pairs"]] == [("bolt", False)]
    assert filed("moderator", "allow", "Line.Pres", "-f", "rules.yaml").code == "moderator.unknown-type"


def test_rules_are_signed_each_by_its_own_and_put_together(keyed: Shell) -> None:
    keyed.ok("moderator", "sign", "rules.yaml", "--key", "acme.key", "--out", "acme.rules")
    keyed.ok("moderator", "sign", "rules.yaml", "--key", "bolt.key", "--out", "bolt.rules")
    assert keyed("moderator", "sign", "rules.yaml", "--key", "plant.key").code == "moderator.no-rules"
    keyed.ok("moderator", "sign", "rules.yaml", "--key", "plant.key", "--found", "--out", "plant.rules")
    assert keyed("moderator", "check", "acme.rules").code == "moderator.bundle"
    ran = keyed.ok("moderator", "export", "plant.rules", "acme.rules", "bolt.rules", "--out", "all.yaml")
    assert "3 rules" in ran.out
    again, before = (keyed("moderator", "check", file, "-o", "json").json for file in ("all.yaml", "rules.yaml"))
    assert [each["rule"] for each in again["conflicts"]] == [each["rule"] for each in before["conflicts"]]
    assert keyed("moderator", "export", "all.yaml").status == 2
    forged = Path("acme.rules").read_text(encoding="utf-8").replace("(id press)", "(id pross)")
    Path("acme.rules").write_text(forged, encoding="utf-8")
    ran = keyed("moderator", "export", "plant.rules", "acme.rules")
    assert (ran.status, ran.code) == (1, "evolution.signature-mismatch")
