"""The decision service in OpenAPI 3.1: what it is asked, and what it answers. It is served at `/openapi.json`.

Schemas say what is refused as a whole. What a policy cannot use, and what is wrong with one question among several, is
a decision like others, and so nothing that a schema forbids.
"""

from collections.abc import Mapping
from typing import Final, TypeAlias

from penstock.apps.http.limits import SERVICE_LIMITS, ServiceLimits
from penstock.apps.http.server import (
    AUTHORIZE,
    DISCOVERY,
    ENDPOINTS,
    HEALTH,
    HOME,
    JSON,
    METRICS,
    OPENAPI,
    XACML_JSON,
    XACML_XML,
    XML,
)
from penstock.authority.decisions.authzen import SEMANTICS
from penstock.authority.decisions.questions import RESERVED
from penstock.policy.syntax.json.requests import Json

Schema: TypeAlias = dict[str, Json]
_TEXT: Final[Schema] = {"type": "string"}
_NAME: Final[Schema] = {"type": "string", "minLength": 1}
_OBJECT: Final[Schema] = {"type": "object"}
_COUNT: Final[Schema] = {"type": "integer", "minimum": 0}


def document(url: str, *, closed: bool, limits: ServiceLimits = SERVICE_LIMITS) -> dict[str, Json]:
    """Return the document of a service at this address; a closed one wants tokens of its callers."""
    made: dict[str, Json] = {
        "openapi": "3.1.0",
        "info": {
            "title": "Penstock decision service",
            "version": "1.0",
            "description": "Who may do what: AuthZEN 1.0, and the REST profile of XACML 3.0.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": url}],
        "paths": {**_questions(closed=closed), **_pages()},
        "components": {
            "schemas": {**_asked(limits), **_response_schemas(), **_xacml()},
            "responses": _responses(),
            "headers": _headers(),
            "parameters": {
                "RequestId": {
                    "name": "X-Request-ID",
                    "in": "header",
                    "description": "comes back in the answer, and is in the decision log",
                    "schema": _TEXT,
                }
            },
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }
    return made


# --- paths -----------------------------------------------------------------------------------------------------------

_SUMMARIES: Final[Mapping[str, tuple[str, str, str]]] = {
    "access_evaluation_endpoint": ("Evaluation", "Question", "Decision"),
    "access_evaluations_endpoint": ("Several evaluations", "Questions", "Decisions"),
    "search_subject_endpoint": ("Which subjects may", "SubjectSearch", "Found"),
    "search_resource_endpoint": ("To which resources a subject may", "ResourceSearch", "Found"),
    "search_action_endpoint": ("What a subject may do", "ActionSearch", "Found"),
}


def _questions(*, closed: bool) -> dict[str, Json]:
    # A kind of content that is unknown is 415 where there are several kinds.
    wrong: dict[str, Json] = {**_answers(_WRONG), **(_answers({"401": "Unknown"}) if closed else {})}
    several_kinds: dict[str, Json] = {**wrong, "415": _answer("Wrong")}
    asked: dict[str, Json] = {
        XACML_JSON: _ref("XacmlRequest"),
        JSON: _ref("XacmlRequest"),
        XACML_XML: _TEXT,
        XML: _TEXT,
    }
    content: dict[str, Json] = {XACML_JSON: _ref("XacmlResponse"), XACML_XML: _TEXT}
    operations = {
        AUTHORIZE: _operation("authorize", "A request of XACML", asked, {"200": _decided(content), **several_kinds}),
    }
    for name, path in ENDPOINTS.items():
        summary, question, answer = _SUMMARIES[name]
        answers = {"200": _decided({JSON: _ref(answer)}), **wrong}
        operations[path] = _operation(name, summary, {JSON: _ref(question)}, answers)
    security: list[Json] = [{"token": []}] if closed else []
    return {path: {"post": {**operation, "security": security}} for path, operation in operations.items()}


def _operation(name: str, summary: str, asked: Mapping[str, Json], answers: dict[str, Json]) -> dict[str, Json]:
    return {
        "operationId": name,
        "summary": summary,
        "parameters": [{"$ref": "#/components/parameters/RequestId"}],
        "requestBody": {"required": True, "content": _content(asked)},
        "responses": answers,
    }


def _decided(content: Mapping[str, Json]) -> Json:
    headers: dict[str, Json] = {name: {"$ref": f"#/components/headers/{name}"} for name in _headers()}
    return {"description": "It is decided.", "headers": headers, "content": _content(content)}


def _pages() -> dict[str, Json]:
    any_text: Schema = {"type": "string"}
    return {
        DISCOVERY: _page("discovery", "The discovery document of AuthZEN", {JSON: _ref("Discovery")}),
        HOME: _page("home", "Where decisions are, as the REST profile of XACML has it", {XML: any_text}),
        HEALTH: _page("health", "Whether it decides, and by which revision", {JSON: _ref("Health")}, failing=True),
        METRICS: _page("metrics", "Counts for Prometheus", {"text/plain": any_text}),
        OPENAPI: _page("openapi", "This document", {JSON: _OBJECT}),
    }


def _page(name: str, summary: str, content: Mapping[str, Json], *, failing: bool = False) -> Json:
    answers: dict[str, Json] = {
        "200": {"description": summary, "content": _content(content)},
        **_answers(_WRONG_PAGE),
    }
    if failing:
        answers["503"] = {"description": "Decisions cannot be recorded.", "content": _content(content)}
    return {"get": {"operationId": name, "summary": summary, "responses": answers, "security": []}}


def _content(kinds: Mapping[str, Json]) -> Json:
    return {kind: {"schema": schema} for kind, schema in kinds.items()}


def _ref(name: str) -> Json:
    return {"$ref": f"#/components/schemas/{name}"}


def _answer(name: str) -> Json:
    return {"$ref": f"#/components/responses/{name}"}


def _answers(by_status: Mapping[str, str]) -> dict[str, Json]:
    return {status: _answer(name) for status, name in by_status.items()}


# --- what goes wrong -------------------------------------------------------------------------------------------------

_WRONG_PAGE: Final = {"400": "NoRequest", "405": "NotSo", "413": "NoRequest", "431": "NoRequest", "501": "NoRequest"}
_WRONG: Final = {**_WRONG_PAGE, "400": "Wrong", "503": "NotNow"}


def _responses() -> dict[str, Json]:
    error = {JSON: _ref("Error")}
    header: Json = {"description": "methods that are answered", "schema": _TEXT}
    challenge: Json = {"description": "how to show a token", "schema": _TEXT}
    return {
        "Wrong": {"description": "This is not a question, or not one of HTTP.", "content": _content(error)},
        "Unknown": {
            "description": "A token of a caller is wanted.",
            "headers": {"WWW-Authenticate": challenge},
            "content": _content(error),
        },
        "NotNow": {"description": "No decision can be made or recorded now.", "content": _content(error)},
        "NotSo": {"description": "Another method is wanted.", "headers": {"Allow": header}, "content": _content(error)},
        "NoRequest": {"description": "It cannot be read, or is too long.", "content": _content(error)},
    }


def _headers() -> dict[str, Json]:
    return {
        "X-Decision-ID": {"description": "names the decisions in the log", "required": True, "schema": _NAME},
        "X-Policy-Revision": {"description": "the bundle that decided", "required": True, "schema": _NAME},
    }


# --- what is asked ---------------------------------------------------------------------------------------------------


def _asked(limits: ServiceLimits) -> dict[str, Json]:
    action = _record({"name": _NAME, "properties": _ref("Properties")}, ["name"])
    kind = _record({"type": _NAME, "properties": _ref("Properties")}, ["type"])
    who, what, how = {"subject": _ref("Entity")}, {"resource": _ref("Entity")}, {"action": _ref("Action")}
    page = {"page": _ref("Page"), "context": _ref("Context")}
    asked: Schema = {**who, **how, **what, "context": _ref("Context")}
    reserved = ", ".join(f"`{name}`" for name in sorted(RESERVED))
    semantics: list[Json] = [*SEMANTICS]
    return {
        "Properties": {"type": ["object", "null"], "description": f"None of them is called {reserved}."},
        "Context": {"$ref": "#/components/schemas/Properties"},
        "Entity": _record({"type": _NAME, "id": _NAME, "properties": _ref("Properties")}, ["type", "id"]),
        "Action": action,
        "EntityKind": kind,
        "Question": _record(asked, [*who, *how, *what]),
        "Questions": {"anyOf": [_one(asked), _several(limits)]},
        "SubjectSearch": _record({"subject": _ref("EntityKind"), **how, **what, **page}, ["subject", *how, *what]),
        "ResourceSearch": _record({**who, **how, "resource": _ref("EntityKind"), **page}, [*who, *how, "resource"]),
        "ActionSearch": _record({**who, **what, **page}, [*who, *what]),
        "Page": {
            "type": ["object", "null"],
            "properties": {
                "token": {"type": ["string", "null"], "description": "`next_token` of the page before"},
                "limit": {"type": ["integer", "null"], "minimum": 1},
            },
        },
        "Options": _record({"evaluations_semantic": {"enum": semantics}}, []),
    }


def _one(asked: Schema) -> Json:
    none: Schema = {"type": ["array", "null"], "maxItems": 0}
    return _record({**asked, "evaluations": none, "options": _ref("Options")}, ["subject", "action", "resource"])


def _several(limits: ServiceLimits) -> Json:
    """Return the schema of several questions: each can lack the common members; a malformed one is answered `false`."""
    items: Schema = {
        "type": "array",
        "minItems": 1,
        "maxItems": limits.pdp_evaluations,
        "items": {"description": "a `Question`; its errors are in its own answer"},
    }
    shared: Schema = dict.fromkeys(("subject", "action", "resource", "context"), _OBJECT)
    return _record({"evaluations": items, "options": _ref("Options"), **shared}, ["evaluations"])


def _record(members: Schema, needed: list[str]) -> Schema:
    """Return the schema of an object; other members are ignored."""
    required: list[Json] = [*needed]
    return {"type": "object", "properties": members, **({"required": required} if required else {})}


# --- responses ------------------------------------------------------------------------------------------------------


def _response_schemas() -> dict[str, Json]:
    error = _closed({"code": _NAME, "message": _TEXT}, ["code", "message"])
    duty = _closed({"id": _TEXT, "attributes": _list(_closed({"id": _TEXT, "value": _TEXT}, ["id", "value"]))}, ["id"])
    duties: Schema = _list(duty)
    context = _closed({"error": error, "obligations": duties, "advice": duties}, [])
    page = _closed({"next_token": _TEXT, "count": _COUNT, "total": _COUNT}, ["next_token", "count", "total"])
    one: Schema = {
        "oneOf": [_closed({"type": _TEXT, "id": _TEXT}, ["type", "id"]), _closed({"name": _TEXT}, ["name"])],
    }
    address: Schema = {"type": "string", "format": "uri"}
    places: Schema = {"policy_decision_point": address, **dict.fromkeys(ENDPOINTS, address)}
    health: Schema = {"status": {"enum": ["ok", "stale", "failing"]}, "revision": _NAME, "code": _NAME}
    return {
        "Error": _closed({"error": error}, ["error"]),
        "Decision": _closed({"decision": {"type": "boolean"}, "context": context}, ["decision"]),
        "Decisions": {
            "oneOf": [_ref("Decision"), _closed({"evaluations": _list(_ref("Decision"))}, ["evaluations"])],
        },
        "Found": _closed({"results": _list(one), "page": page}, ["results"]),
        "Discovery": _closed(places, [*places]),
        "Health": _closed(health, ["status", "revision"]),
    }


def _closed(members: Schema, needed: list[str]) -> Schema:
    return {**_record(members, needed), "additionalProperties": False}


def _list(items: Json) -> Schema:
    return {"type": "array", "items": items}


# --- XACML -----------------------------------------------------------------------------------------------------------


def _xacml() -> dict[str, Json]:
    """Return schemas of the JSON profile; whether a value is one of its type, only its reader says."""
    several: Schema = {"anyOf": [_ref("XacmlCategory"), _list(_ref("XacmlCategory"))]}
    short = ("AccessSubject", "Resource", "Action", "Environment")
    request: Schema = {
        "Category": {**_list(_ref("XacmlNamedCategory")), "minItems": 1},
        **dict.fromkeys(short, several),
        "ReturnPolicyIdList": {"type": "boolean"},
        "CombinedDecision": {"type": "boolean"},
        "XPathVersion": _TEXT,
        "MultiRequests": _record(
            {"RequestReference": _list(_record({"ReferenceId": _list(_TEXT)}, ["ReferenceId"]))}, ["RequestReference"]
        ),
    }
    category: Schema = {"CategoryId": _TEXT, "Id": _TEXT, "Attribute": _list(_ref("XacmlAttribute"))}
    attribute: Schema = {"AttributeId": _TEXT, "Value": _VALUE, "DataType": _TEXT, "Issuer": _TEXT}
    attribute["IncludeInResult"] = {"type": "boolean"}
    result: Schema = {
        "Decision": {"enum": ["Permit", "Deny", "NotApplicable", "Indeterminate"]},
        "Status": _OBJECT,
        "Obligations": _list(_OBJECT),
        "AssociatedAdvice": _list(_OBJECT),
        "Category": _list(_ref("XacmlNamedCategory")),
        "PolicyIdentifierList": _OBJECT,
    }
    some: list[Json] = [{"required": [name]} for name in ("Category", *short)]
    return {
        "XacmlRequest": _closed({"Request": {**_closed(request, []), "anyOf": some}}, ["Request"]),
        "XacmlNamedCategory": _closed(category, ["CategoryId"]),
        "XacmlCategory": _closed(category, []),
        "XacmlAttribute": _closed(attribute, ["AttributeId", "Value"]),
        "XacmlResponse": _closed({"Response": _list(_closed(result, ["Decision"]))}, ["Response"]),
    }


_VALUE: Final[Schema] = {
    "description": "a value, or a list of values of one kind",
    "type": ["string", "number", "boolean", "object", "array"],
}
