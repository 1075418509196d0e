"""The OpenAPI document of the decision service: it names what is answered, and is what it claims to be."""

import json
from typing import Any

import jsonschema_rs
from tests.apps.pdp_kit import TODO

from penstock.apps.http.bundles import load
from penstock.apps.http.openapi import document
from penstock.apps.http.server import AUTHORIZE, ENDPOINTS, OPENAPI, HttpRequest
from penstock.apps.http.service import Callers, DecisionService, ServiceSettings

URL = "https://pdp.example.com"
SERVICE = DecisionService(load(TODO), ServiceSettings(URL))
DOCUMENT: Any = document(URL, closed=False)
QUESTIONS = {AUTHORIZE, *ENDPOINTS.values()}


def test_it_names_every_route_and_no_other() -> None:
    answered = {path.decode(): ["post"] for path in SERVICE.posts} | {path.decode(): ["get"] for path in SERVICE.pages}
    assert {path: [*operations] for path, operations in DOCUMENT["paths"].items()} == answered


def test_the_service_serves_it() -> None:
    answer = SERVICE.answer(HttpRequest(b"GET", OPENAPI.encode(), {}))
    assert (answer.status, answer.content_type) == (200, "application/json")
    assert json.loads(answer.body) == DOCUMENT


def test_only_a_closed_service_wants_tokens_and_for_questions_alone() -> None:
    shut = DecisionService(SERVICE.bundle, ServiceSettings(URL, Callers({b"": "nobody"})))
    closed = json.loads(shut.answer(HttpRequest(b"GET", OPENAPI.encode(), {})).body)
    wanted = {
        (path, operation["security"] == [{"token": []}], "401" in operation["responses"])
        for path, operations in closed["paths"].items()
        for operation in operations.values()
    }
    assert wanted == {(path, path in QUESTIONS, path in QUESTIONS) for path in closed["paths"]}
    assert '"token": []' not in json.dumps(DOCUMENT)


def test_references_lead_somewhere_and_schemas_are_schemas() -> None:
    for name, found in references(DOCUMENT):
        part: Any = DOCUMENT
        for step in found.removeprefix("#/").split("/"):
            part = part[step]
        assert part, name
    for schema in DOCUMENT["components"]["schemas"].values():
        jsonschema_rs.meta.validate({"$schema": "https://json-schema.org/draft/2020-12/schema", **schema})


def references(part: Any, name: str = "") -> list[tuple[str, str]]:
    if isinstance(part, dict):
        own = [(name, part["$ref"])] if isinstance(part.get("$ref"), str) else []
        return own + [found for key, value in part.items() for found in references(value, f"{name}/{key}")]
    return [found for value in part for found in references(value, name)] if isinstance(part, list) else []
