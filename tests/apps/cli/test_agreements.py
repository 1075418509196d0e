"""Agreed rules on the command line: signed, announced, and issued as certificates."""

from pathlib import Path

import pytest
from tests.apps.conftest import Shell

from penstock.codec.sexp import parse_many
from penstock.guard import Agreement, AgreementMode
from penstock.trust.profiles import ProfileClaim
from penstock.trust.signed import read_statements

RULES = """\
owner: plant
scope: downward
types: {Machine: , Press: Machine}
publishers:
  attributes: {certified: boolean}
  profiles: {acme: {certified: true}, bolt: {certified: false}}
subscribers:
  attributes: {role: [engineer, visitor]}
  profiles: {ada: {role: engineer}, bob: {role: visitor}}
rules:
  - {id: acme, by: acme, event: Machine, fnc_p: certified, fnc_s: role = 'engineer'}
  - {id: bolt, by: bolt, event: Press}
  - {id: late, by: bolt, event: Machine}
"""
NOWHERE = ("--broker", "penstock://127.0.0.1:1", "--network", "plant/Floor", "--key", "plant.key", "--dry-run")
FILE = ("--file", "rules.yaml", "--name", "plant", "--key", "plant.key")


@pytest.fixture
def plant(penstock: Shell) -> Shell:
    for who in ("plant", "acme", "bolt", "ada", "bob"):
        penstock.ok("key", "new", f"{who}.key", "--name", who)
    penstock.ok("type", "new", "Machine", "--key", "plant.key", "--attribute", "publisher:string", "--out", "m.type")
    penstock.ok("type", "new", "Press", "--key", "plant.key", "--extends", "m.type", "--out", "p.type")
    (penstock.folder / "rules.yaml").write_text(RULES)
    return penstock


def principal(shell: Shell, who: str) -> str:
    found: str = shell.ok("key", "show", f"{who}.key", "-o", "json").json["principal"]
    return found


def compiled(shell: Shell, *more: str) -> tuple[Agreement, list[ProfileClaim]]:
    shell.ok("moderator", "compile", *FILE, "--out", "plant.agreement", "--overwrite", *more)
    data = Path("plant.agreement").read_bytes()
    first, *rest = (one.verify().value for one in read_statements(data, Agreement, ProfileClaim))
    assert isinstance(first, Agreement)
    return first, [one for one in rest if isinstance(one, ProfileClaim)]


def test_rules_in_force_are_signed(plant: Shell) -> None:
    agreement, profiles = compiled(plant)
    assert agreement.name == "plant"
    assert str(agreement.owner) == principal(plant, "plant")
    # The third rule conflicts with the first.
    assert [rule.id for rule in agreement.rules] == ["acme", "bolt"]
    assert (agreement.combining, agreement.publisher_attribute) == (AgreementMode.BOTH, "publisher")
    known = {str(claim.of): (claim.publisher, claim.subscriber) for claim in profiles}
    assert known == {
        principal(plant, "acme"): ({"certified": True}, None),
        principal(plant, "bolt"): ({"certified": False}, None),
        principal(plant, "ada"): (None, {"role": "engineer"}),
        principal(plant, "bob"): (None, {"role": "visitor"}),
    }
    said = plant.ok("moderator", "compile", *FILE, "--out", "other.agreement", "--dry-run")
    assert "agreement plant: 2 rules on 2 event types, 4 profiles" in said.out
    assert "not in force, and left out: late" in said.out
    assert not Path("other.agreement").exists()
    data = plant.ok("moderator", "compile", *FILE, "-o", "json").json
    assert (data["rules"], data["left_out"], data["written"]) == (["acme", "bolt"], ["late"], False)


def test_what_an_agreement_says_besides(plant: Shell) -> None:
    more = ("--rights", "alone", "--described-by", "acme", "--publisher-attribute", "maker")
    agreement, _ = compiled(plant, *more)
    assert (agreement.combining, agreement.publisher_attribute) == (AgreementMode.ALONE, "maker")
    assert [str(who) for who in agreement.described_by] == [principal(plant, "acme")]
    # Who owns none of the types has nothing to announce.
    assert plant("moderator", "compile", *FILE[:4], "--key", "acme.key").code == "agreement.no-types"


def test_agreements_are_announced(plant: Shell) -> None:
    compiled(plant)
    data = plant.ok("net", "agree", "plant.agreement", *NOWHERE, "-o", "json").json
    (event,) = data["events"]
    assert [list(change) for change in event["changes"]] == [["describe"]] * 4 + [["agree"]]
    said = plant.ok("net", "agree", "plant.agreement", *NOWHERE).out
    assert "announces the agreement plant" in said
    assert "describes bob, by the word of plant" in said
    foreign = (*NOWHERE[:5], "acme.key", "--dry-run")
    assert plant("net", "agree", "plant.agreement", *foreign).code == "evolution.foreign-agreement"
    assert plant("net", "end-agreement", "plant", *NOWHERE).code == "evolution.no-agreement"
    assert plant.ok("net", "remove-profile", "bob", *NOWHERE).out.startswith("nothing to sign")
    Path("plant.agreement").write_bytes(Path("rules.yaml").read_bytes())
    assert plant("net", "agree", "plant.agreement", *NOWHERE).status == 2


def test_certificates_say_the_same_and_follow_a_change(plant: Shell) -> None:
    types = ("--type-file", "m.type", "--type-file", "p.type")
    first = plant.ok("moderator", "certify", *FILE, *types, "--out", "old.certs", "-o", "json").json
    assert (len(first["issued"]), first["kept"], first["revoke"], first["short"]) == (6, [], [], [])
    asked = ("--right", "subscribe", "--type-file", "p.type", "--parent", "m.type", "--credential", "old.certs")
    assert plant("explain", "--principal", "bob", *asked).status == 0
    (plant.folder / "rules.yaml").write_text(RULES.replace("bob: {role: visitor}", "bob: {role: engineer}"))
    again = ("--issued", "old.certs", "--out", "new.certs")
    found = plant.ok("moderator", "certify", *FILE, *types, *again, "-o", "json").json
    assert (len(found["issued"]), len(found["kept"]), len(found["revoke"])) == (2, 5, 1)
    said = plant.ok("moderator", "certify", *FILE, *types, *again, "--overwrite").out
    assert "1 certificate to be revoked" in said
    assert found["revoke"][0] in said
    # Nothing is left to do.
    done = ("--issued", "new.certs", "-o", "json")
    last = plant.ok("moderator", "certify", *FILE, *types, *done).json
    assert (last["issued"], last["revoke"], len(last["kept"])) == ([], [], 7)
    # What was issued for something else stays what it is.
    other = plant.ok("moderator", "certify", *FILE[:2], "--key", "plant.key", *types, *done).json
    assert (len(other["issued"]), other["revoke"]) == (7, [])
    assert parse_many(Path("new.certs").read_bytes())


def test_what_certificates_cannot_say_is_told(plant: Shell) -> None:
    upwards = RULES.replace("downward", "upward").replace("event: Machine, fnc_p", "event: Press, fnc_p")
    upwards = upwards.replace("  - {id: bolt, by: bolt, event: Press}\n", "").replace(
        "id: late, by: bolt", "id: late, by: acme"
    )
    (plant.folder / "rules.yaml").write_text(upwards)
    said = plant.ok(
        "moderator", "certify", *FILE, "--type-file", "m.type", "--type-file", "p.type", "--out", "c.certs"
    ).out
    assert "✗ not said: bob may have Machine from acme, but not all that is below it" in said


def test_explain_goes_by_what_was_agreed(plant: Shell) -> None:
    compiled(plant, "--rights", "alone")
    about = ("explain", "--type-file", "p.type", "--parent", "m.type", "--agreement", "plant.agreement")
    told = plant.ok(*about, "--principal", "bob", "--right", "subscribe").out
    assert "✓ bob may subscribe to Press@0" in told
    assert "agreed rules  bolt" in told
    assert f"publisher IN ('{principal(plant, 'bolt')}')" in told
    # Bolt is not certified, which the rule of acme demands of all who publish about machines.
    machine = ("explain", "--type-file", "m.type", "--agreement", "plant.agreement")
    refused = plant(*machine, "--principal", "bolt", "--right", "publish")
    assert (refused.status, refused.code) == (1, "agreement.not-allowed")
    assert plant(*machine, "--principal", "plant", "--right", "subscribe").code == "moderator.unknown-profile"
    assert plant(
        "explain", "--type", "plant/Machine", *about[-2:], "--principal", "bob", "--right", "subscribe"
    ).code == ("cli.resource")


def test_explain_wants_certificates_too_where_both_must_allow(plant: Shell) -> None:
    compiled(plant, "--rights", "both")
    about = ("explain", "--type-file", "p.type", "--parent", "m.type", "--principal", "ada", "--right", "subscribe")
    assert plant(*about, "--agreement", "plant.agreement").status == 1
    issue = ("cert", "issue", "--key", "plant.key", "--to", "ada", "--type", "plant/Press", "--right", "subscribe")
    plant.ok(*issue, "--out", "ada.cert")
    told = plant.ok(*about, "--agreement", "plant.agreement", "--credential", "ada.cert", "-o", "json").json
    (answer,) = told["answers"]
    assert {one for way in answer["grants"] for one in way["because"] if one.startswith("rule:")} == {
        "rule:acme",
        "rule:bolt",
    }
