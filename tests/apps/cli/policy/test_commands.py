"""`penstock pdp evaluate` and `penstock policy check`: decisions about requests in files, and what is wrong there."""

import json

from tests.apps.conftest import Shell
from tests.policy.kit import AGE, apply, designator, policy_text, rule, value

from penstock.policy.language.requests import SUBJECT

ONE = apply("integer-one-and-only", designator(must=True))
ADULTS = policy_text(rule(apply("integer-greater-than", ONE, value("17", "integer"))))


def asked(*ages: int) -> str:
    attribute = [{"AttributeId": AGE, "Value": [*ages], "DataType": "integer"}] if ages else []
    return json.dumps({"Request": {"Category": [{"CategoryId": SUBJECT, "Attribute": attribute}]}})


def test_a_request_is_decided(penstock: Shell) -> None:
    (penstock.folder / "adults.xml").write_bytes(ADULTS)
    done = penstock("pdp", "evaluate", "--policy", "adults.xml", stdin=asked(18))
    assert (done.status, done.out) == (0, "✓ Permit\n")
    refused = penstock("pdp", "evaluate", "--policy", "adults.xml", stdin=asked(17))
    assert (refused.status, refused.code, refused.out) == (1, "pdp.not-permitted", "? NotApplicable\n")
    missing = penstock("pdp", "evaluate", "--policy", "adults.xml", stdin=asked())
    assert missing.status == 1
    assert f"  missing: {AGE} (integer) of {SUBJECT}\n" in missing.out


def test_the_answer_is_a_response(penstock: Shell) -> None:
    (penstock.folder / "adults.xml").write_bytes(ADULTS)
    as_json = penstock("pdp", "evaluate", "--policy", "adults.xml", "-o", "json", stdin=asked(18))
    assert as_json.json["Response"][0]["Decision"] == "Permit"
    as_xml = penstock("pdp", "evaluate", "--policy", "adults.xml", "-o", "xml", stdin=asked(18))
    assert "<Decision>Permit</Decision>" in as_xml.out


def test_what_is_no_request(penstock: Shell) -> None:
    (penstock.folder / "adults.xml").write_bytes(ADULTS)
    for text, code in (("hello", "xacml.request"), ("{}", "xacml.json"), ("<a/>", "xacml.element")):
        done = penstock("pdp", "evaluate", "--policy", "adults.xml", stdin=text)
        assert (done.status, done.code) == (2, code)


def test_policies_are_checked(penstock: Shell) -> None:
    (penstock.folder / "adults.xml").write_bytes(ADULTS)
    assert penstock.ok("policy", "check", "adults.xml").out == "✓ adults.xml: policy p 1.0\n"
    (penstock.folder / "wrong.xml").write_bytes(policy_text(rule(value("5", "integer"))))
    done = penstock("policy", "check", "adults.xml", "wrong.xml")
    assert (done.status, done.code) == (2, "xacml.arguments")
    assert "`wrong.xml`: line 1, `Condition`" in done.err
