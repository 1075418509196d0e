"""The OpenAPI document of the service: schemathesis asks what it allows and much that it does not."""

from functools import cache
from typing import TYPE_CHECKING, Any

import jsonschema_rs
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.apps.acs.kit import ADMIN, Desk
from tests.budget import examples

from penstock.apps.acs.openapi import acs_document
from penstock.apps.acs.operations import OPERATIONS

if TYPE_CHECKING:
    from schemathesis import BaseSchema, Case

DOCUMENT = acs_document("http://127.0.0.1")
PATHS = [operation.path for operation in OPERATIONS]


def test_it_is_whole() -> None:
    for path in PATHS:
        body = DOCUMENT["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
        name = body["$ref"].rpartition("/")[2]
        schema = DOCUMENT["components"]["schemas"][name]
        assert schema["additionalProperties"] is False
        jsonschema_rs.meta.validate({"$schema": "https://json-schema.org/draft/2020-12/schema", **schema})


@cache
def schema() -> "BaseSchema":
    import schemathesis  # noqa: PLC0415  # most processes of a run never need it

    made = schemathesis.openapi.from_dict(DOCUMENT)
    made.validate()
    return made


@cache
def cases(path: str, *, good: bool) -> "st.SearchStrategy[Case[Any]]":
    from schemathesis import GenerationMode  # noqa: PLC0415  # as above

    mode = GenerationMode.POSITIVE if good else GenerationMode.NEGATIVE
    return schema()[path]["POST"].as_strategy(generation_mode=mode)


@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(data=st.data())
def test_answers_are_as_the_document_says(data: st.DataObject) -> None:
    import json  # noqa: PLC0415  # beside its use

    path, good = data.draw(st.sampled_from(PATHS)), data.draw(st.booleans())
    body = data.draw(cases(path, good=good)).body
    desk = Desk()
    try:
        sent = json.dumps(body).encode()
    except (TypeError, ValueError):
        sent = b"not JSON"
    answer = desk.send(desk.request(ADMIN, path.removeprefix("/v1/"), sent))
    responses = DOCUMENT["paths"][path]["post"]["responses"]
    assert str(answer.status.value) in responses
    assert answer.status < 500
    assert b"Traceback" not in answer.body
    found = json.loads(answer.body)
    assert isinstance(found, dict)
    if answer.status != 200:
        assert set(found["error"]) <= {"code", "message", "hint"}
    # The ledger is whole, whatever was asked.
    desk.domain.verify()
