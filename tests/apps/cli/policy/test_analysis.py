"""`penstock policy analyse` and `penstock policy diff`: what they find, and how they say it."""

import json

from tests.apps.conftest import Shell
from tests.policy.kit import AGE, FIRST, FUNCTION, XS, apply, designator, policy_text, rule, value

from penstock.policy.language.requests import ACTION, ACTION_ID, SUBJECT

AGES = apply("integer-one-and-only", designator(must=True))


LOOKED_AT = "  looked at: requests with at most 2 values for each attribute"


def older(than: int) -> str:
    return apply("integer-greater-than", AGES, value(str(than), "integer"))


def test_rules_are_looked_at(penstock: Shell) -> None:
    both = policy_text(rule(name="all"), rule(older(17), effect="Deny", name="old"))
    (penstock.folder / "both.xml").write_bytes(both)
    done = penstock.ok("policy", "analyse", "both.xml")
    assert "! p / old: every decision is the same without it\n" in done.out
    assert f"! p / all permits what p / old denies\n  {AGE} = 18 (integer, {SUBJECT})\n" in done.out
    found = penstock.ok("policy", "analyse", "both.xml", "-o", "json").json
    assert found["idle"] == [{"rule": ["p", "old"], "why": "same-without", "verdict": "yes", "unknown": []}]
    assert found["conflicts"][0]["request"][0]["values"] == ["18"]
    assert found["values"] == 2
    (penstock.folder / "one.xml").write_bytes(policy_text(rule(older(17))))
    assert penstock.ok("policy", "analyse", "one.xml").out.startswith("✓")


def test_findings_can_fail(penstock: Shell) -> None:
    (penstock.folder / "both.xml").write_bytes(
        policy_text(rule(name="all"), rule(older(17), effect="Deny", name="old"))
    )
    analyse = ("policy", "analyse", "both.xml", "--fail-on")
    for kinds in ("conflicts", "same-without", "idle", "any", "never-applies,conflicts"):
        done = penstock(*analyse, kinds)
        assert (done.status, done.code) == (1, "policy.findings")
    assert "found 1 same-without, 1 conflicts" in penstock(*analyse, "any").err
    assert penstock.ok(*analyse, "never-applies").out == penstock.ok("policy", "analyse", "both.xml").out
    assert penstock(*analyse, "conflicts", "-o", "json").json == penstock.ok(*analyse[:3], "-o", "json").json
    wrong = penstock(*analyse, "conflict")
    assert (wrong.status, wrong.code) == (2, "cli.usage")
    assert "did you mean `conflicts`?" in wrong.err


def test_findings_that_are_not_known_fail_too(penstock: Shell) -> None:
    text = apply("string-regexp-match", value("^x{9}$"), apply("string-one-and-only", designator("n", "string")))
    (penstock.folder / "pattern.xml").write_bytes(policy_text(rule(text, name="like"), rule(effect="Deny", name="no")))
    done = penstock("policy", "analyse", "pattern.xml", "--fail-on", "never-applies")
    assert (done.status, done.code) == (1, "xacml.undecided")


def test_versions_are_compared(penstock: Shell) -> None:
    (penstock.folder / "one.xml").write_bytes(policy_text(rule(older(17))))
    (penstock.folder / "two.xml").write_bytes(policy_text(rule(older(20))))
    alike = penstock.ok("policy", "diff", "one.xml", "one.xml").out
    assert alike.splitlines() == [LOOKED_AT, "✓ the policies decide alike"]
    done = penstock("policy", "diff", "one.xml", "two.xml")
    assert (done.status, done.code) == (1, "xacml.differ")
    assert "! Permit becomes NotApplicable\n" in done.out
    as_json = penstock("policy", "diff", "two.xml", "one.xml", "-o", "json")
    assert as_json.status == 1
    (change,) = as_json.json["changes"]
    assert (change["before"], change["after"]) == ("NotApplicable", "Permit")
    # What is shown is so when it is asked.
    (penstock.folder / "shown.json").write_text(json.dumps(change["xacml"]))
    asked = [penstock("pdp", "evaluate", "shown.json", "--policy", file).out for file in ("two.xml", "one.xml")]
    assert [one.split()[1] for one in asked] == ["NotApplicable", "Permit"]


def test_what_is_not_understood(penstock: Shell) -> None:
    text = apply("string-regexp-match", value("^x{9}$"), apply("string-one-and-only", designator("n", "string")))
    known = rule(older(17), effect="Deny", name="old"), rule(older(20), effect="Deny", name="older")
    (penstock.folder / "pattern.xml").write_bytes(policy_text(rule(text, name="like"), *known))
    done = penstock.ok("policy", "analyse", "pattern.xml")
    depends = "  depends on function `string-regexp-match` of rule `like` of policy `p`, which is not understood"
    assert f"? not known whether p / like permits what p / old denies\n{depends}\n" in done.out
    assert "! p / older: every decision is the same without it\n" in done.out
    found = penstock.ok("policy", "analyse", "pattern.xml", "-o", "json").json
    assert [one["verdict"] for one in found["conflicts"]] == ["unknown", "unknown"]
    assert found["conflicts"][0]["unknown"]


OLD = (
    '<Policy xmlns="urn:oasis:names:tc:xacml:3.0:core:schema:wd-17" PolicyId="p" '
    f'RuleCombiningAlgId="{FIRST}"><Rule RuleId="r" Effect="Permit"><Target><AnyOf><AllOf>'
    f'<Match MatchId="{FUNCTION}string-equal">{value("read")}'
    f'<AttributeDesignator AttributeId="{ACTION_ID}" DataType="{XS}string"/></Match>'
    "</AllOf></AnyOf></Target></Rule></Policy>"
)


def test_what_is_not_quite_xacml_is_read_where_that_is_wanted(penstock: Shell) -> None:
    (penstock.folder / "old.xml").write_text(OLD)
    assert penstock("policy", "analyse", "old.xml").code == "xacml.element"
    done = penstock.ok("policy", "analyse", "old.xml", "--lenient")
    assert done.out.startswith("✓")
    told = done.err.splitlines()
    assert [line.startswith("warning: old.xml: ") for line in told] == [True] * 4
    assert told[2] == (
        "warning: old.xml: `AttributeDesignator`: it has no `Category`; taken to be "
        f"`{ACTION}` (line 1) [xacml.repaired]"
    )
    penstock.ok("policy", "convert", "old.xml", "--lenient", "--to", "xml", "--out", "new.xml")
    alike = penstock.ok("policy", "diff", "old.xml", "new.xml", "--lenient").out
    assert alike.splitlines() == [LOOKED_AT, "✓ the policies decide alike"]
    assert penstock.ok("policy", "check", "new.xml").out.startswith("✓")
    assert penstock("pdp", "evaluate", "old.xml").status != 0


NAMED = """\
attribute role { category = subject id = "urn:example:role" type = string }
attribute now { category = environment id = "urn:oasis:names:tc:xacml:1.0:environment:current-time" type = time }

policy records {
    apply first-applicable
    rule doctors { permit target clause role == "doctor" }
    rule guests { deny target clause role == "guest" condition now > "18:00:00Z":time }
}
"""


def test_requests_are_shown_with_the_names_of_the_policy_and_with_the_time(penstock: Shell) -> None:
    (penstock.folder / "records.policy").write_text(NAMED)
    done = penstock.ok("policy", "analyse", "records.policy")
    assert "! records / doctors permits what records / guests denies\n" in done.out
    assert "\n  role = doctor, guest (string, subject)\n" in done.out
    (shown,) = [line for line in done.out.splitlines() if line.startswith("  now = ")]
    assert "18:00:00" < shown.removeprefix("  now = ") < "24"
    assert shown.endswith("Z (time, environment)")
    (conflict,) = penstock.ok("policy", "analyse", "records.policy", "-o", "json").json["conflicts"]
    assert {one["name"]: one["id"] for one in conflict["request"]}["role"] == "urn:example:role"
    (penstock.folder / "late.policy").write_text(NAMED.replace("first-applicable", "deny-overrides"))
    (change, *_) = penstock("policy", "diff", "records.policy", "late.policy", "-o", "json").json["changes"]
    (penstock.folder / "shown.json").write_text(json.dumps(change["xacml"]))
    for at in ("1999-01-01T03:00:00Z", "2040-01-01T23:00:00Z"):
        for file, decision in (("records.policy", change["before"]), ("late.policy", change["after"])):
            asked = penstock("pdp", "evaluate", "shown.json", "--policy", file, "--at", at)
            assert asked.out.split()[1] == decision
