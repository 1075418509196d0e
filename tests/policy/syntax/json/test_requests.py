import base64
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.policy.kit import NOW, policy, request, rule
from tests.policy.random_policies import Maker

from penstock.errors import MalformedError, PenstockError
from penstock.policy.engine.compiler import CompiledPolicy
from penstock.policy.engine.decide import decide
from penstock.policy.language.datatypes import BOOLEAN, DOUBLE, INTEGER, STRING, XPATH
from penstock.policy.language.requests import RESOURCE, SUBJECT, Request
from penstock.policy.syntax.json.requests import OBJECT, read_request, read_response, write_request, write_response

ASKED = {
    "Request": {
        "CombinedDecision": False,
        "AccessSubject": {"Attribute": [{"AttributeId": "who", "Value": "ann", "IncludeInResult": True}]},
        "Category": [
            {
                "CategoryId": "Resource",
                "Id": "r",
                "Attribute": [
                    {"AttributeId": "sizes", "Value": [1, 2.5]},
                    {"AttributeId": "uri", "Value": "urn:x", "DataType": "anyURI", "Issuer": "me"},
                    {
                        "AttributeId": "path",
                        "DataType": XPATH.id,
                        "Value": {
                            "XPathCategory": "Resource",
                            "XPath": "//a:b",
                            "Namespaces": [{"Prefix": "a", "Namespace": "urn:a"}],
                        },
                    },
                ],
            }
        ],
        "MultiRequests": {"RequestReference": [{"ReferenceId": ["r"]}]},
    }
}


def octets(value: object) -> bytes:
    return json.dumps(value).encode()


def test_types_are_those_that_json_shows() -> None:
    asked = read_request(octets(ASKED))
    resource, subject = asked.categories
    assert (resource.category, subject.category) == (RESOURCE, SUBJECT)
    assert subject.attributes[0].values == ((STRING, "ann"),)
    assert resource.by_id["sizes"][0].values == ((DOUBLE, 1.0), (DOUBLE, 2.5))
    assert resource.by_id["uri"][0].issuer == "me"
    (path,) = resource.by_id["path"][0].values
    assert (path[0], path[1].category, path[1].prefixes) == (XPATH, RESOURCE, (("a", "urn:a"),))
    assert asked.references == (("r",),)


@pytest.mark.parametrize(
    ("value", "expected"),
    [(True, (BOOLEAN, True)), (3, (INTEGER, 3)), (3.5, (DOUBLE, 3.5)), ("x", (STRING, "x"))],
)
def test_a_value_without_a_type(value: object, expected: tuple[object, object]) -> None:
    entry = {"AttributeId": "x", "Value": value}
    asked = read_request(octets({"Request": {"Resource": {"Attribute": [entry]}}}))
    assert asked.categories[0].attributes[0].values == (expected,)


def test_what_was_written_is_read_back() -> None:
    asked = read_request(octets(ASKED))
    assert read_request(octets(write_request(asked))) == asked
    response = decide(CompiledPolicy(policy(rule())).evaluate, request(5), NOW)
    assert read_response(octets(write_response(response))) == response


@given(st.integers(0, 1 << 40))
def test_any_request_and_response_come_back(seed: int) -> None:
    maker = Maker(seed)
    asked = Request.of_facts(maker.facts())
    if asked.categories:
        again = read_request(octets(write_request(asked)))
        assert write_request(again) == write_request(asked)
    response = decide(CompiledPolicy(maker.policy_set()).evaluate, asked, NOW)
    written = write_response(response)
    assert write_response(read_response(octets(written))) == written


RECORD = '<r xmlns="urn:r"><a>"é"</a></r>'


@pytest.mark.parametrize(
    "content", [RECORD, f'<?xml version="1.0"?>\n{RECORD}', base64.b64encode(RECORD.encode()).decode()]
)
def test_contents_are_xml_as_it_is_or_in_base64(content: str) -> None:
    asked = read_request(octets({"Request": {"Resource": {"Content": content}}}))
    found = asked.categories[0].content
    assert found is not None
    (node,) = found.select("/p:r/p:a", [("p", "urn:r")], "")
    assert found.text(node) == '"é"'
    again = read_request(octets(write_request(asked))).categories[0].content
    assert again is not None
    assert again.written() == found.written()


@pytest.mark.parametrize(
    ("content", "code"),
    [
        ("<r>", "xml.malformed"),
        ("", "xacml.json"),
        ("words", "xacml.json"),
        (base64.b64encode(b"\xff\xfe").decode(), "xml.malformed"),
        ("<!DOCTYPE r []><r/>", "xml.doctype"),
        ({"r": 1}, "xacml.json"),
    ],
)
def test_contents_that_are_no_xml_are_refused(content: object, code: str) -> None:
    with pytest.raises(MalformedError) as caught:
        read_request(octets({"Request": {"Resource": {"Content": content}}}))
    assert caught.value.code == code


@pytest.mark.parametrize(
    "data",
    [
        b"{",
        b"[]",
        b'{"Request": 1}',
        b'{"Request": {"Category": [{"CategoryId": NaN}]}}',
        b'{"Request": {}, "Request": {}}',
    ],
)
def test_what_is_no_request_is_refused(data: bytes) -> None:
    with pytest.raises(MalformedError) as caught:
        read_request(data)
    assert caught.value.code == "xacml.json"


def test_valid_samples_of_others_come_back(suites: Path) -> None:
    for path in sorted((suites / "xacml-json" / "Requests" / "valid").glob("*.json")):
        asked = read_request(path.read_bytes())
        assert write_request(read_request(octets(write_request(asked)))) == write_request(asked), path.name
    for path in sorted((suites / "xacml-json" / "Responses" / "valid").glob("*.json")):
        response = read_response(path.read_bytes())
        assert read_response(octets(write_response(response))) == response, path.name


def test_invalid_samples_of_others_are_refused(suites: Path) -> None:
    for folder, read in (("Requests", read_request), ("Responses", read_response)):
        paths = sorted((suites / "xacml-json" / folder / "invalid").glob("*.json"))
        assert len(paths) > 5
        for path in paths:
            with pytest.raises(MalformedError):
                read(path.read_bytes())


def test_an_object_of_no_known_type_is_kept() -> None:
    entry = {"AttributeId": "x", "Value": {"b": 1, "a": None}}
    asked = read_request(octets({"Request": {"Resource": {"Attribute": [entry]}}}))
    ((of_type, value),) = asked.categories[0].attributes[0].values
    assert (of_type, str(value)) == (OBJECT, '{"a":null,"b":1}')


@given(st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
def test_anything_else_is_refused(data: bytes) -> None:
    for read in (read_request, read_response):
        with pytest.raises(PenstockError):
            read(data)
