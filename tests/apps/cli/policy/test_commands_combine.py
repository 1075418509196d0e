"""`penstock policy combine`: what decisions of several come to, and what a tuple leaves open."""

import json

import pytest
from tests.apps.conftest import Shell

from penstock.policy.combining import PREFIX
from penstock.policy.language.results import Obligation, Response, Result, XacmlDecision
from penstock.policy.syntax.json import requests as json_written
from penstock.policy.syntax.xml import requests as xml_requests

SEVEN = ("--element", "P=#P > 1", "--element", "D=#P < 1 and #D > 0", "--element", "IN=#P < 1 and #D = 0 and #IN > 0")


@pytest.mark.parametrize(
    ("arguments", "decision"),
    [
        (("--by", "deny-overrides", "P", "NA", "D"), "Deny"),
        (("--by", "deny-overrides", "P@2", "D@1"), "Permit"),
        (("--by", "first-applicable", "NotApplicable", "IN_D"), "Indeterminate{D}"),
        (("--element", "P=#P > #D", "--element", "D=#D >= #P", "P", "P", "D"), "Permit"),
    ],
)
def test_decisions_are_combined(penstock: Shell, arguments: tuple[str, ...], decision: str) -> None:
    assert penstock.ok("policy", "combine", *arguments).out == f"{decision}\n"


def test_the_papers_tuple_leaves_one_permit_open(penstock: Shell) -> None:
    done = penstock.ok("policy", "combine", *SEVEN, "P")
    assert done.out.splitlines()[0].startswith("! no element accepts: ")
    assert done.out.splitlines()[1] == "Indeterminate{DP}"
    told = penstock.ok("policy", "combine", *SEVEN, "-o", "json").json
    assert told["algorithm"].startswith(PREFIX)
    assert told["decision"] is None
    assert told["gap"] is not None
    again = penstock.ok("policy", "combine", "--by", told["algorithm"], "P", "P", "-o", "json").json
    assert again["decision"] == "Permit"


def test_what_two_elements_accept_is_refused(penstock: Shell) -> None:
    done = penstock("policy", "combine", "--element", "P=#P > 1", "--element", "D=#P < 3")
    assert (done.status, done.code) == (1, "combining.overlap")


@pytest.mark.parametrize(
    "arguments", [("P",), ("--by", "deny-overrides", "--element", "P=P"), ("--element", "P"), ("--element", "P=P") * 2]
)
def test_what_is_not_said_is_told(penstock: Shell, arguments: tuple[str, ...]) -> None:
    assert penstock("policy", "combine", *arguments).status == 2


@pytest.mark.parametrize("decision", ["X", "P@", "P@x"])
def test_what_is_no_decision_is_told(penstock: Shell, decision: str) -> None:
    done = penstock("policy", "combine", "--by", "deny-overrides", decision)
    assert done.code in ("combining.decision", "xacml.combining")


def test_whole_answers_are_combined(penstock: Shell) -> None:
    permit = Response([Result(XacmlDecision.PERMIT, obligations=(Obligation("log"),))])
    deny = Response([Result(XacmlDecision.DENY, advice=(Obligation("sorry"),))])
    (penstock.folder / "house.xml").write_bytes(xml_requests.write_response(permit))
    (penstock.folder / "guests.json").write_text(json.dumps(json_written.write_response(deny)))
    both = ("--by", "deny-overrides", "--response", "house.xml", "--response", "guests.json")
    assert penstock.ok("policy", "combine", *both).out == "Deny\n  advice sorry\n"
    higher = ("--by", "deny-overrides", "--response", "house.xml@2", "--response", "guests.json@1")
    assert penstock.ok("policy", "combine", *higher).out == "Permit\n  obligation log\n"
    told = penstock.ok("policy", "combine", *higher, "-o", "json").json
    assert told["decision"] == "Permit"
    assert told["response"] == json_written.write_response(permit)
    assert penstock("policy", "combine", *both, "P").status == 2
    assert penstock("policy", "combine", "--by", "deny-overrides", "--response", "none.xml").code == "file.missing"
