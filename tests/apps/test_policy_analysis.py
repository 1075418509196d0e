"""`penstock policy analyse` and `penstock policy diff`: what they find, and how they say it."""

from tests.apps.conftest import Shell
from tests.policy.kit import AGE, apply, designator, policy_text, rule, value

from penstock.policy.requests import SUBJECT

AGES = apply("integer-one-and-only", designator(must=True))


def older(than: int) -> str:
    return apply("integer-greater-than", AGES, value(str(than), "integer"))


def test_rules_are_looked_at(penstock: Shell) -> None:
    both = policy_text(rule(name="all"), rule(older(17), effect="Deny", name="old"))
    (penstock.folder / "both.xml").write_bytes(both)
    done = penstock.ok("policy", "analyse", "both.xml")
    assert "! p / old: every decision is the same without it\n" in done.out
    assert f"! p / all permits what p / old denies\n  {AGE} = 18 (integer, {SUBJECT})\n" in done.out
    found = penstock.ok("policy", "analyse", "both.xml", "-o", "json").json
    assert found["idle"] == [{"rule": ["p", "old"], "why": "same-without", "verdict": "yes"}]
    assert found["conflicts"][0]["request"][0]["value"] == "18"
    (penstock.folder / "one.xml").write_bytes(policy_text(rule(older(17))))
    assert penstock.ok("policy", "analyse", "one.xml").out.startswith("✓")


def test_versions_are_compared(penstock: Shell) -> None:
    (penstock.folder / "one.xml").write_bytes(policy_text(rule(older(17))))
    (penstock.folder / "two.xml").write_bytes(policy_text(rule(older(20))))
    assert penstock.ok("policy", "diff", "one.xml", "one.xml").out == "✓ the policies decide alike\n"
    done = penstock("policy", "diff", "one.xml", "two.xml")
    assert (done.status, done.code) == (1, "xacml.differ")
    assert "! Permit becomes NotApplicable\n" in done.out
    as_json = penstock("policy", "diff", "two.xml", "one.xml", "-o", "json")
    assert as_json.status == 1
    (change,) = as_json.json["changes"]
    assert (change["before"], change["after"]) == ("NotApplicable", "Permit")


def test_what_is_not_understood(penstock: Shell) -> None:
    text = apply("string-regexp-match", value("a"), apply("string-one-and-only", designator("n", "string")))
    (penstock.folder / "pattern.xml").write_bytes(policy_text(rule(text)))
    done = penstock("policy", "analyse", "pattern.xml")
    assert (done.status, done.code) == (2, "xacml.fragment")
