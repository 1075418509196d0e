"""AuthZEN 1.0 against the running service: the certification scenario, and the decisions of the interop scenario."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.apps.pdp_kit import (
    ALICE,
    ASKED,
    BOB,
    EVALUATION,
    EVALUATIONS,
    READ,
    RECORD,
    SEARCH,
    TODO,
    WRITE,
    Serving,
    serving,
)

ADMIN = {**BOB, "properties": {"role": "admin"}}
ACTIVE = {**RECORD, "properties": {"status": "active"}}
ARCHIVED = {"type": "record", "id": "record-2", "properties": {"status": "archived"}}


@pytest.fixture(scope="module", params=["pdp"])
def pdp() -> Iterator[Serving]:
    with serving(TODO) as running:
        yield running


def question(subject: object, action: object, resource: object, **more: object) -> dict[str, object]:
    return {"subject": subject, "action": action, "resource": resource, **more}


def delete(*, soft: bool) -> dict[str, object]:
    return {"name": "delete", "properties": {"soft": soft}}


# --- 1.4: the eight decisions ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "decision"),
    [
        (question(ALICE, READ, RECORD), True),
        (question(ALICE, WRITE, RECORD), True),
        (question(BOB, READ, RECORD), True),
        (question(BOB, WRITE, RECORD), False),
        (question(ALICE, WRITE, ARCHIVED), False),
        (question(ADMIN, WRITE, ARCHIVED), True),
        (question(ALICE, delete(soft=True), RECORD), True),
        (question(ALICE, delete(soft=False), RECORD), False),
    ],
)
def test_the_fixture_decisions(pdp: Serving, asked: object, decision: bool) -> None:
    assert [pdp.ask(EVALUATION, asked).json for _ in range(2)] == [{"decision": decision}] * 2


def test_context_properties_and_unknown_fields_are_accepted(pdp: Serving) -> None:
    assert pdp.decides({**ASKED, "context": {"time": "2025-06-27T18:03-07:00", "ip": "192.168.1.1"}})
    manager = {**ALICE, "properties": {"department": "Sales", "role": "manager"}}
    get, owned = {**READ, "properties": {"method": "GET"}}, {**ACTIVE, "properties": {"status": "active", "owner": "b"}}
    assert pdp.decides(question(manager, get, owned))
    assert pdp.decides({**ASKED, "foo": "bar", "futureField": {"nested": True}})


@pytest.mark.parametrize("path", [EVALUATION, EVALUATIONS])
def test_what_is_no_question(pdp: Serving, path: str) -> None:
    wrong: list[object] = [{key: value for key, value in ASKED.items() if key != name} for name in ASKED]
    for name, part in (("subject", "type"), ("subject", "id"), ("resource", "type"), ("resource", "id")):
        wrong.append({**ASKED, name: {key: value for key, value in ALICE.items() if key != part}})
    wrong += [{**ASKED, "action": {}}, {**ASKED, "subject": "alice"}, {**ASKED, "action": {"name": 123}}]
    wrong += [b"", b"{", b"[]", b"null", b'{"subject":NaN}', b'{"a":1,"a":2}', b"[" * 100_000, b"\xff"]
    wrong += [{**ASKED, "context": 1}, {**ASKED, "subject": {**ALICE, "properties": []}}]
    for asked in wrong:
        said = pdp.ask(path, asked)
        assert said.status == 400, asked
        assert said.json["error"]["code"] in ("pdp.request", "xacml.json")
        assert b"Traceback" not in said.body
    assert pdp.ask(path, ASKED, Content_Type="text/plain").status == 400


def test_what_the_bundle_knows_is_believed_before_a_question(pdp: Serving) -> None:
    """Of bob it says that he is an administrator, and of alice it does not; anybody can write that into a question."""
    for who in (ALICE, {"type": "user", "id": "mallory"}):
        asked = question({**who, "properties": {"role": "admin"}}, WRITE, ARCHIVED)
        assert pdp.ask(EVALUATION, asked).json["decision"] is False
        assert pdp.ask(EVALUATIONS, {"evaluations": [asked]}).json["evaluations"][0]["decision"] is False
    told = {**BOB, "properties": {"role": "guest"}}
    assert pdp.ask(EVALUATION, question(told, WRITE, {**ARCHIVED, "properties": {"status": "active"}})).json == (
        pdp.ask(EVALUATION, question(BOB, WRITE, ARCHIVED)).json
    )


def test_a_question_is_believed_first_with_an_option() -> None:
    with serving(TODO, "--trust-properties") as pdp:
        asked = question({**ALICE, "properties": {"role": "admin"}}, WRITE, ARCHIVED)
        assert pdp.ask(EVALUATION, asked).json == {"decision": True}


def test_properties_cannot_say_who_asks(pdp: Serving) -> None:
    spoof = {"urn:oasis:names:tc:xacml:1.0:subject:subject-id": "alice"}
    assert pdp.ask(EVALUATION, question({**BOB, "properties": spoof}, WRITE, RECORD)).status == 400
    assert pdp.ask(EVALUATION, {**ASKED, "context": {"a": {"b": 1}, "a.b": 2}}).status == 400


def test_the_request_id_comes_back(pdp: Serving) -> None:
    assert pdp.ask(EVALUATION, ASKED, X_Request_ID="one-2").headers["x-request-id"] == "one-2"
    assert pdp.ask(EVALUATION, b"", X_Request_ID="two").headers["x-request-id"] == "two"
    assert "x-request-id" not in pdp.ask(EVALUATION, ASKED).headers


# --- 3: several together ----------------------------------------------------------------------------------------------


def decisions(pdp: Serving, asked: object) -> list[bool]:
    said = pdp.ask(EVALUATIONS, asked)
    assert said.status == 200
    return [one["decision"] for one in said.json["evaluations"]]


def test_several_with_defaults(pdp: Serving) -> None:
    reads: dict[str, object] = {"subject": ALICE, "action": READ}
    assert decisions(pdp, {**reads, "evaluations": [{"resource": RECORD}, {"resource": ARCHIVED}]}) == [True, True]
    bob = {"subject": BOB, "resource": RECORD, "evaluations": [{"action": READ}, {"action": WRITE}]}
    assert decisions(pdp, bob) == [True, False]
    writes: dict[str, object] = {"subject": ALICE, "action": WRITE}
    assert decisions(pdp, {**writes, "evaluations": [{"resource": ACTIVE}, {"resource": ARCHIVED}]}) == [True, False]
    who = {"action": WRITE, "resource": ARCHIVED, "evaluations": [{"subject": ALICE}, {"subject": ADMIN}]}
    assert decisions(pdp, who) == [False, True]
    assert decisions(pdp, {"evaluations": [ASKED, question(BOB, WRITE, RECORD)]}) == [True, False]
    whole = {**writes, "resource": ACTIVE, "context": {"time": "now"}, "evaluations": [{}, {"resource": ARCHIVED}]}
    assert decisions(pdp, whole) == [True, False]


def test_without_several_it_is_one(pdp: Serving) -> None:
    assert pdp.ask(EVALUATIONS, ASKED).json == {"decision": True}
    assert pdp.ask(EVALUATIONS, {**ASKED, "evaluations": []}).json == {"decision": True}


def test_one_of_several_that_is_malformed_is_refused(pdp: Serving) -> None:
    asked = {"subject": ALICE, "action": READ, "evaluations": [{"resource": RECORD}, {}, 5, {"resource": RECORD}]}
    assert decisions(pdp, {**asked, "options": {"evaluations_semantic": "execute_all"}}) == [True, False, False, True]


def test_the_three_semantics(pdp: Serving) -> None:
    actions: list[Any] = [{"action": one} for one in (READ, WRITE, READ)]
    asked = {"subject": BOB, "resource": RECORD, "evaluations": actions}
    for semantic, found in (
        ("execute_all", [True, False, True]),
        ("deny_on_first_deny", [True, False]),
        ("permit_on_first_permit", [True]),
    ):
        assert decisions(pdp, {**asked, "options": {"evaluations_semantic": semantic}}) == found
    wrong: list[object] = [{"evaluations_semantic": "first"}, {"evaluations_semantic": 1}, []]
    for options in wrong:
        assert pdp.ask(EVALUATIONS, {**asked, "options": options}).status == 400
    assert pdp.ask(EVALUATIONS, {**ASKED, "evaluations": {}}).status == 400
    assert pdp.ask(EVALUATIONS, {**ASKED, "evaluations": [{}] * 1_001}).status == 400


# --- 4: searches -----------------------------------------------------------------------------------------------------


def found(pdp: Serving, kind: str, asked: object) -> list[str]:
    said = pdp.ask(SEARCH + kind, asked)
    assert said.status == 200
    return [one.get("id", one.get("name")) for one in said.json["results"]]


def test_searches(pdp: Serving) -> None:
    context = {"context": {"ip": "192.168.1.1"}}
    users, records = {"type": "user"}, {"type": "record"}
    for subject in (users, ALICE):
        for more in ({}, context):
            assert found(pdp, "subject", question(subject, READ, RECORD, **more)) == ["alice", "bob"]
    assert found(pdp, "subject", question(users, WRITE, ARCHIVED)) == ["bob"]
    for resource in (records, RECORD):
        for more in ({}, context):
            assert found(pdp, "resource", question(ALICE, READ, resource, **more)) == ["record-1", "record-2"]
    assert found(pdp, "resource", question(ADMIN, WRITE, records)) == ["record-2"]
    assert found(pdp, "action", {"subject": ALICE, "resource": RECORD, **context}) == ["read", "write"]
    assert found(pdp, "action", {"subject": ADMIN, "resource": ARCHIVED}) == ["read", "write"]
    assert pdp.ask(SEARCH + "resource", question(ALICE, READ, records)).json["results"][0] == RECORD


def test_searches_that_find_nothing(pdp: Serving) -> None:
    nobody, nothing = {"type": "user", "id": "nobody"}, {"type": "record", "id": "nothing"}
    assert found(pdp, "action", {"subject": nobody, "resource": RECORD}) == []
    assert found(pdp, "action", {"subject": ALICE, "resource": nothing}) == []
    assert found(pdp, "resource", question(nobody, READ, {"type": "record"})) == []
    assert found(pdp, "resource", question(ALICE, READ, {"type": "spaceship"})) == []
    assert found(pdp, "subject", question({"type": "spaceship"}, READ, RECORD)) == []
    assert found(pdp, "subject", question({"type": "user"}, READ, nothing)) == []


def test_searches_that_are_no_questions(pdp: Serving) -> None:
    user, record = {"type": "user"}, {"type": "record"}
    for kind, asked in (
        ("subject", {"subject": user, "resource": RECORD}),
        ("resource", {"action": READ, "resource": record}),
        ("action", {"subject": ALICE}),
        ("subject", question(user, READ, record)),
        ("resource", question(user, READ, record)),
        ("action", {"subject": user, "resource": RECORD}),
        ("subject", question(user, READ, RECORD, page=[])),
        ("subject", question(user, READ, RECORD, page={"limit": 0})),
        ("subject", question(user, READ, RECORD, page={"token": "x"})),
    ):
        assert pdp.ask(SEARCH + kind, asked).status == 400, asked


def test_pages(pdp: Serving) -> None:
    asked = question({"type": "user"}, READ, RECORD)
    first = pdp.ask(SEARCH + "subject", {**asked, "page": {"limit": 1}}).json
    assert (first["results"], first["page"]["total"]) == ([ALICE], 2)
    token = first["page"]["next_token"]
    second = pdp.ask(SEARCH + "subject", {**asked, "page": {"limit": 1, "token": token}}).json
    assert (second["results"], second["page"]["next_token"]) == ([BOB], "")
    other = question({"type": "user"}, WRITE, RECORD, page={"token": token})
    assert pdp.ask(SEARCH + "subject", other).json["error"]["code"] == "pdp.page"


# --- 6: discovery, and the interop scenario --------------------------------------------------------------------------


def test_discovery(pdp: Serving) -> None:
    said = pdp.send("GET", "/.well-known/authzen-configuration").json
    assert said["policy_decision_point"] == pdp.url
    assert said["access_evaluation_endpoint"] == f"{pdp.url}{EVALUATION}"
    assert {name for name in said if name.endswith("_endpoint")} == {
        "access_evaluation_endpoint",
        "access_evaluations_endpoint",
        "search_subject_endpoint",
        "search_resource_endpoint",
        "search_action_endpoint",
    }


def test_the_interop_decisions(pdp: Serving, suites: Path) -> None:
    cases = json.loads((suites / "authzen" / "decisions-authorization-api-1_0-02.json").read_text())
    assert len(cases["evaluation"]) == 40
    for case in cases["evaluation"]:
        assert pdp.ask(EVALUATION, case["request"]).json == {"decision": case["expected"]}, case
    for case in cases["evaluations"]:
        assert pdp.ask(EVALUATIONS, case["request"]).json == {"evaluations": case["expected"]}, case
