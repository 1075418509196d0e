"""`penstock policy explain`: what it prints, for people and for programs."""

import json

import pytest
from tests.apps.conftest import Shell
from tests.apps.pdp_kit import TODO

POLICY = """\
attribute role { category = subject id = "urn:example:role" type = string }
attribute hour { category = environment id = "urn:example:hour" type = integer }

policy records {
    apply deny-overrides
    rule chiefs { permit target clause role == "chief" }
    rule nurses { permit target clause role == "nurse" condition hour >= 8 and hour <= 17 }
    rule guests { deny target clause role == "guest" on deny { obligation log { who = role } } }
}
"""
EVENING = """\
? NotApplicable

Decided by
  policy records (deny-overrides): NotApplicable
    no rule applies

Did not decide
  rule chiefs: role == "chief" is false  (role = "nurse")
  rule nurses: hour <= 17 is false  (hour = 20)
  rule guests: role == "guest" is false  (role = "nurse")

What would change the decision
  Permit with role = "chief"
  Permit with hour between 8 and 17
"""
GUEST = """\
✗ Deny

Decided by
  policy records (deny-overrides): Deny
    rule guests: Deny
      ✓ role == "guest"  (role = "guest")

Did not decide
  rule chiefs: role == "chief" is false  (role = "guest")
  rule nurses: role == "nurse" is false  (role = "guest")

Obligations
  log
    who = guest

What would change the decision
  Permit with role = "chief"
"""


@pytest.fixture
def policy(penstock: Shell) -> str:
    (penstock.folder / "records.policy").write_text(POLICY)
    return "records.policy"


def test_for_people(penstock: Shell, policy: str) -> None:
    evening = penstock("policy", "explain", policy, "--set", "role=nurse", "--set", "hour=20")
    assert (evening.status, evening.code) == (1, "pdp.not-permitted")
    assert evening.out == EVENING
    assert penstock("policy", "explain", policy, "--set", "role=guest").out == GUEST
    day = penstock.ok("policy", "explain", policy, "--set", "role=nurse", "--set", "hour=9")
    assert day.out.startswith("✓ Permit\n\nDecided by\n")
    assert max(map(len, day.out.splitlines())) <= 80


def test_for_programs(penstock: Shell, policy: str) -> None:
    done = penstock("policy", "explain", policy, "--set", "role=nurse", "--set", "hour=20", "-o", "json")
    assert done.status == 1
    (found,) = done.json["decisions"]
    assert found["decision"] == "NotApplicable"
    assert [one["text"] for one in found["changes"]["found"]] == ['role = "chief"', "hour between 8 and 17"]
    # A change that is shown has this effect.
    for one in found["changes"]["found"]:
        (change,) = one["attributes"]
        given = {"role": "nurse", "hour": "20", change["name"]: change["values"][0]}
        pairs = [word for name, value in given.items() for word in ("--set", f"{name}={value}")]
        assert penstock.ok("policy", "explain", policy, *pairs).out.startswith("✓ Permit")


def test_requests_in_all_forms(penstock: Shell, policy: str) -> None:
    xacml = {
        "Request": {
            "AccessSubject": {"Attribute": [{"AttributeId": "urn:example:role", "Value": "chief"}]},
        }
    }
    authzen = {
        "subject": {"type": "user", "id": "ann", "properties": {"urn:example:role": "chief"}},
        "action": {"name": "read"},
        "resource": {"type": "record", "id": "1"},
    }
    for name, request in (("xacml.json", xacml), ("authzen.json", authzen)):
        (penstock.folder / name).write_text(json.dumps(request))
        assert penstock.ok("policy", "explain", policy, "--request", name).out.startswith("✓ Permit")
        assert penstock.ok("pdp", "evaluate", name, "--policy", policy).out.startswith("✓ Permit")
    # What is set replaces what the request says.
    assert penstock("policy", "explain", policy, "--request", "xacml.json", "--set", "role=guest").out == GUEST


def test_a_bundle_with_entities(penstock: Shell) -> None:
    question = {
        "subject": {"type": "user", "id": "CiRmZDM2MTRkMy1jMzlhLTQ3ODEtYjdiZC04Yjk2ZjVhNTEwMGQSBWxvY2Fs"},
        "action": {"name": "can_delete_todo"},
        "resource": {"type": "todo", "id": "1", "properties": {"ownerID": "somebody@the-citadel.com"}},
    }
    (penstock.folder / "question.json").write_text(json.dumps(question))
    done = penstock("policy", "explain", str(TODO), "--request", "question.json", "--all")
    assert done.code in ("", "pdp.not-permitted")
    assert "Decided by\n  policy set " in done.out


def test_long_lists_are_cut(penstock: Shell) -> None:
    rules = "\n".join(f'rule r{number} {{ permit target clause role == "x{number}" }}' for number in range(30))
    declared = 'attribute role { category = subject id = "urn:example:role" type = string }'
    (penstock.folder / "long.policy").write_text(f"{declared}\npolicy p {{ apply deny-overrides\n{rules}\n}}")
    done = penstock("policy", "explain", "long.policy", "--set", "role=y")
    assert "  20 more. Use --all to list them.\n" in done.out
    everything = penstock("policy", "explain", "long.policy", "--set", "role=y", "--all")
    assert everything.out.count("  rule r") == 30


def test_many_decisions(penstock: Shell, policy: str) -> None:
    roles = [{"Attribute": [{"AttributeId": "urn:example:role", "Value": role}]} for role in ["chief"] * 10 + ["guest"]]
    (penstock.folder / "many.json").write_text(json.dumps({"Request": {"AccessSubject": roles}}))
    done = penstock("policy", "explain", policy, "--request", "many.json")
    # The last one is denied, although it is not explained.
    assert (done.status, done.code) == (1, "pdp.not-permitted")
    assert done.out.count("✓ Permit\n") == 10
    assert "Use --all to explain" in done.out
    everything = penstock("policy", "explain", policy, "--request", "many.json", "--all", "-o", "json").json
    assert [one["decision"] for one in everything["decisions"]] == ["Permit"] * 10 + ["Deny"]
    assert everything["more"] is False


def test_mistakes(penstock: Shell, policy: str) -> None:
    missing = penstock("policy", "explain", policy)
    assert (missing.status, missing.code) == (2, "cli.usage")
    wrong = penstock("policy", "explain", policy, "--set", "roles=nurse")
    assert (wrong.status, wrong.code) == (2, "cli.usage")
    assert "did you mean `role`?" in wrong.err
    kind = penstock("policy", "explain", policy, "--set", "hour=late")
    assert kind.code == "xacml.value"
    assert "--set hour" in kind.err
