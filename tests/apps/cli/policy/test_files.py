"""`penstock policy check|fmt|convert|test`, with policies in the text form."""

import json

import pytest
from tests.apps.conftest import Shell
from tests.policy.kit import policy_text, rule

from penstock.policy.syntax.text.policies import read_text_policy
from penstock.policy.syntax.xml.policies import read_policy

RECORDS = """\
attribute role { category = subject id = "urn:example:role" type = string }
attribute born { category = subject id = "urn:example:born" type = date }

policy records {
    apply deny-unless-permit

    rule doctors {
        permit
        target clause role == "doctor"
        on permit { obligation log }
    }

    rule old { permit condition born < "1960-01-01":date } // by age
}
"""
TESTS = """
policy: records.policy
tests:
- name: doctors
  request: {subject: {role: [nurse, doctor]}}
  decision: Permit
  obligations: [log]
- name: by age
  request: {subject: {born: 1950-01-31}}
  decision: Permit
  obligations: []
- name: ids with types
  request: {subject: {urn:example:born: {type: date, value: 1970-01-31}}, action: {n: {type: integer, value: 5}}}
  decision: Deny
"""


def test_policies_in_text_are_checked(penstock: Shell) -> None:
    (penstock.folder / "records.policy").write_text(RECORDS)
    assert penstock.ok("policy", "check", "records.policy").out == "✓ records.policy: policy records 1.0\n"
    (penstock.folder / "more.policy").write_text(
        f'attribute idle {{ category = action id = "x" type = time }}\n{RECORDS}'
    )
    assert "! more.policy:1:11: nobody uses the attribute `idle` (unused-attribute)" in penstock.ok(
        "policy", "check", "more.policy"
    ).out  # fmt: skip
    found = penstock.ok("policy", "check", "more.policy", "-o", "json").json
    assert found["findings"][0]["line"] == 1
    (penstock.folder / "wrong.policy").write_text(RECORDS.replace("born <", "borne <"))
    wrong = penstock("policy", "check", "wrong.policy")
    assert (wrong.status, wrong.code) == (2, "xacml.attribute")
    assert "wrong.policy" in wrong.err
    assert "line 13, column 33" in wrong.err
    assert f"\n  {' ' * 32}^\n" in wrong.err


def test_policies_are_laid_out(penstock: Shell) -> None:
    file = penstock.folder / "records.policy"
    file.write_text(RECORDS.replace("    ", "  "))
    assert penstock("policy", "fmt", "--check", "records.policy").code == "policy.layout"
    penstock.ok("policy", "fmt", "records.policy")
    laid = file.read_text()
    assert laid == RECORDS.replace(" // by", "  // by")
    assert penstock.ok("policy", "fmt", "records.policy").out == ""
    penstock.ok("policy", "fmt", "--check", "records.policy")
    assert penstock.ok("policy", "fmt", "-", stdin=RECORDS).out == laid
    file.write_text("policy p {")
    assert penstock("policy", "fmt", "records.policy").code == "xacml.syntax"
    assert file.read_text() == "policy p {"


def test_policies_are_converted(penstock: Shell) -> None:
    (penstock.folder / "records.policy").write_text(RECORDS)
    penstock.ok("policy", "convert", "records.policy", "--out", "records.xml")
    assert read_policy((penstock.folder / "records.xml").read_bytes()) == read_text_policy(RECORDS)
    back = penstock.ok("policy", "convert", "records.xml").out
    assert read_text_policy(back) == read_text_policy(RECORDS)
    penstock.ok("policy", "convert", "records.policy", "--to", "json", "--out", "records.json")
    assert penstock.ok("policy", "check", "records.json").out == "✓ records.json: policy records 1.0\n"
    assert read_policy(penstock.ok("policy", "convert", "records.json").out.encode()) == read_text_policy(RECORDS)
    same = penstock.ok("policy", "convert", "records.xml", "--to", "xml").out
    assert read_policy(same.encode()) == read_text_policy(RECORDS)


def test_cases_beside_policies_are_run(penstock: Shell) -> None:
    (penstock.folder / "records.policy").write_text(RECORDS)
    (penstock.folder / "tests.yaml").write_text(TESTS)
    assert penstock.ok("policy", "test", "tests.yaml").out.count("✓") == 3
    (penstock.folder / "tests.yaml").write_text(TESTS.replace("[nurse, doctor]", "nurse"))
    failed = penstock("policy", "test", "tests.yaml")
    assert (failed.status, failed.code) == (1, "policy.tests")
    assert "expected Permit, and it is Deny" in failed.out
    assert "expected obligations log, and it is none" in failed.out
    assert penstock("policy", "test", "tests.yaml", "-o", "json").json["failed"] == 1


def test_what_is_no_case(penstock: Shell) -> None:
    (penstock.folder / "records.policy").write_text(RECORDS)
    (penstock.folder / "other.xml").write_bytes(policy_text(rule()))
    for change in (("decision: Deny", "decision: No"), ("tests:", "checks:"), ("{role:", "[role:"), ("role:", "born:")):
        text = TESTS.replace(*change)
        assert penstock("policy", "test", "-", stdin=text).status == 2
    assert penstock("policy", "test", "-", stdin=TESTS.replace("action: {n", "action: {role")).code == "xacml.case"
    # Another policy does not ask for any of this.
    assert penstock("policy", "test", "-", stdin=TESTS.replace("records.policy", "other.xml")).code == "xacml.case"
    done = penstock("policy", "test", "-", stdin=TESTS.replace("decision: Deny", "decision: Permit"))
    assert (done.status, done.code) == (1, "policy.tests")


def test_what_a_decision_tuple_leaves_open_is_told(penstock: Shell) -> None:
    text = 'policy p {\n    apply tuple { P "#P > 1" D "#P < 1" }\n\n    rule a {\n        permit\n    }\n}\n'
    (penstock.folder / "gap.policy").write_text(text)
    done = penstock.ok("policy", "check", "gap.policy")
    assert (
        "! gap.policy: no element of the decision tuple accepts: 1 of P; that is Indeterminate (combining-gap)"
        in done.out
    )
    penstock.ok("policy", "fmt", "--check", "gap.policy")
    penstock.ok("policy", "convert", "gap.policy", "--to", "xml", "--out", "gap.xml")
    assert penstock.ok("policy", "convert", "gap.xml", "--to", "text").out.rstrip() == text.rstrip()


def test_policies_that_do_not_go_together_are_refused(penstock: Shell) -> None:
    for name, text in (("one.xml", policy_text(rule())), ("other.xml", policy_text(rule(effect="Deny")))):
        (penstock.folder / name).write_bytes(text)
    penstock.ok("policy", "check", "one.xml")
    assert penstock("policy", "check", "one.xml", "other.xml").code == "xacml.duplicate"
    assert penstock("policy", "analyse", "one.xml", "--refer", "other.xml").code == "xacml.duplicate"
    # Two versions of one policy are compared, and not used together.
    assert penstock("policy", "diff", "one.xml", "other.xml").code == "xacml.differ"


@pytest.mark.parametrize(
    ("written", "wrong", "hint"),
    [
        ("subject: {role:", "subject: {rol:", "did you mean `role`"),
        ("subject: {role:", "subjct: {role:", "did you mean `subject`"),
        ("{born: 1950-01-31}", "{urn:example:birth: 1950-01-31}", "did you mean `urn:example:born`"),
        ("{born: 1950-01-31}", "{urn:example:born: 1950-01-31}", "type: date"),
    ],
)
def test_a_misspelt_attribute_of_a_test_is_told(penstock: Shell, written: str, wrong: str, hint: str) -> None:
    (penstock.folder / "records.policy").write_text(RECORDS)
    assert written in TESTS
    (penstock.folder / "tests.yaml").write_text(TESTS.replace(written, wrong))
    ran = penstock("policy", "test", "tests.yaml")
    assert ran.code == "xacml.case"
    assert hint in ran.err


def test_policies_in_cedar_are_checked_converted_and_decide(penstock: Shell) -> None:
    (penstock.folder / "ranks.cedar").write_text(
        'permit (principal is User, action == Action::"read", resource)\n'
        "when { principal has rank && principal.rank >= 3 };"
    )
    assert penstock.ok("policy", "check", "ranks.cedar").out.startswith("✓ ranks.cedar: policy cedar-")
    penstock.ok("policy", "convert", "ranks.cedar", "--out", "ranks.xml")
    penstock.ok("policy", "convert", "ranks.cedar", "--to", "text", "--out", "ranks.policy")
    for rank, status in ((3, 0), (2, 1)):
        (penstock.folder / "question.json").write_text(
            json.dumps(
                {
                    "subject": {"type": "User", "id": "ann", "properties": {"rank": rank}},
                    "action": {"name": "read"},
                    "resource": {"type": "Record", "id": "7"},
                }
            )
        )
        for policy in ("ranks.cedar", "ranks.xml", "ranks.policy"):
            assert penstock("pdp", "evaluate", "question.json", "--policy", policy).status == status
    (penstock.folder / "wrong.cedar").write_text("permit (principal, action, resource) when { principal.rank >= 3 };")
    wrong = penstock("policy", "check", "wrong.cedar")
    assert (wrong.status, wrong.code) == (2, "cedar.can-err")
    assert "line 1, column 45" in wrong.err
    assert "principal has rank" in wrong.err
