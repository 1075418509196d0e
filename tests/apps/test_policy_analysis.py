"""`penstock policy analyse` and `penstock policy diff`: what they find, and how they say it."""

from tests.apps.conftest import Shell
from tests.policy.kit import AGE, FIRST, FUNCTION, XS, apply, designator, policy_text, rule, value

from penstock.policy.requests import ACTION, ACTION_ID, SUBJECT

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
    assert penstock.ok("policy", "diff", "old.xml", "new.xml", "--lenient").out == "✓ the policies decide alike\n"
    assert penstock.ok("policy", "check", "new.xml").out.startswith("✓")
    assert penstock("pdp", "evaluate", "old.xml").status != 0
