"""Every reader of policies, requests and responses: what was spoiled is refused with an error of ours, or understood.

What is understood is worked with, since a reader that lets nonsense through makes others fail: policies are asked,
both ways, and written in every form; requests are decided, and the answers written.
"""

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.budget import examples
from tests.policy.kit import NOW, apply, designator, policy_text, request, rule, value
from tests.policy.random_policies import Maker
from tests.policy.syntax.cedar.random_cedar import CedarMaker
from tests.spoiled import NASTY, spoiled

from penstock.errors import PenstockError
from penstock.policy.engine.cases import failures, read_cases
from penstock.policy.engine.compiler import CompiledPolicy
from penstock.policy.engine.decide import decide, plainly
from penstock.policy.language.policies import Root
from penstock.policy.language.requests import ACTION, SUBJECT, Request
from penstock.policy.language.results import Response
from penstock.policy.syntax.cedar.compiler import compile_cedar
from penstock.policy.syntax.json import requests as json_requests
from penstock.policy.syntax.json import requests as json_written
from penstock.policy.syntax.json.policies import read_json_policy, write_json_policy
from penstock.policy.syntax.text.lint import lint_document
from penstock.policy.syntax.text.policies import read_document
from penstock.policy.syntax.text.policy_writer import lay_out, write_text
from penstock.policy.syntax.xml import requests as xml_requests
from penstock.policy.syntax.xml.elements import NAMESPACE
from penstock.policy.syntax.xml.policies import read_policy, write_policy

ROOT = Path(__file__).parents[3]
REQUEST = (
    f'<Request xmlns="{NAMESPACE}" ReturnPolicyIdList="true" CombinedDecision="false">'
    f'<Attributes Category="{ACTION}"><Content><a xmlns:p="urn:p"><p:b>1</p:b></a></Content>'
    f'<Attribute AttributeId="x" IncludeInResult="true">{value("5", "integer")}{value("2026-01-01", "date")}'
    '</Attribute><Attribute AttributeId="urn:oasis:names:tc:xacml:3.0:content-selector" IncludeInResult="false">'
    f'<AttributeValue DataType="urn:oasis:names:tc:xacml:3.0:data-type:xpathExpression" XPathCategory="{ACTION}">//p:b'
    f"</AttributeValue></Attribute></Attributes>"
    f'<Attributes Category="{SUBJECT}"><Attribute AttributeId="s1" IncludeInResult="true">{value("a")}</Attribute>'
    "</Attributes></Request>"
).encode()
JSON_REQUEST = json.dumps(
    {
        "Request": {
            "ReturnPolicyIdList": True,
            "AccessSubject": [{"Attribute": [{"AttributeId": "s1", "Value": ["a", "b"], "IncludeInResult": True}]}],
            "Action": {
                "Attribute": [
                    {"AttributeId": "n", "Value": 1},
                    {"AttributeId": "d", "Value": [0.5, 1], "Issuer": "me"},
                    {"AttributeId": "t", "Value": "10:00:00", "DataType": "http://www.w3.org/2001/XMLSchema#time"},
                    {"AttributeId": "o", "Value": {"a": [1, None]}, "IncludeInResult": True},
                ]
            },
        }
    }
).encode()


@cache
def roots() -> Sequence[Root]:
    own = read_policy(
        policy_text(
            f'<VariableDefinition VariableId="v">{designator()}</VariableDefinition>',
            rule(apply("integer-is-in", value("5", "integer"), '<VariableReference VariableId="v"/>')),
            rule(apply("string-regexp-match", value("a+"), apply("string-one-and-only", designator("s1", "string")))),
        )
    )
    return [own, *(Maker(seed).policy() for seed in range(4)), *(Maker(seed).policy_set() for seed in range(4))]


@cache
def asked() -> Sequence[Request]:
    return [
        request(5),
        xml_requests.read_request(REQUEST),
        json_requests.read_request(JSON_REQUEST),
        Request.of_facts(Maker(1).facts()),
    ]


def of_the_reference(kind: str) -> bytes:
    page = (ROOT / "docs/reference/policy-language.md").read_text()
    return page.partition(f"```{kind}\n")[2].partition("```")[0].encode()


def as_text() -> list[bytes]:
    return [of_the_reference("policy"), *(write_text(root).encode() for root in roots())]


def responses() -> list[Response]:
    return [decide(CompiledPolicy(root).evaluate, one, NOW) for root in roots()[:4] for one in asked()[:2]]


def worked_with(root: Root) -> None:
    """Ask a policy and write it: errors of ours are answers too."""
    compiled = CompiledPolicy(root)
    for one in asked():
        quick, plain = decide(compiled.evaluate, one, NOW), decide(plainly(root), one, NOW)
        assert [result.decision for result in quick.results] == [result.decision for result in plain.results]
    for write in (write_policy, write_json_policy, write_text):
        with suppress(PenstockError):
            write(root)


def decided(read: Callable[[bytes], Request], data: bytes) -> None:
    found = read(data)
    for root in roots()[:3]:
        told(decide(CompiledPolicy(root).evaluate, found, NOW))


def told(response: Response) -> None:
    with suppress(PenstockError):
        xml_requests.write_response(response)
    json.dumps(json_written.write_response(response)).encode()


def text_policy(data: bytes) -> None:
    text = data.decode("utf-8", "surrogateescape")
    document = read_document(text)
    assert lay_out(lay_out(text)) == lay_out(text)
    assert all(finding.message for finding in lint_document(document))
    for root in document.policies:
        worked_with(root)


def cases(data: bytes) -> None:
    names = read_document(of_the_reference("policy").decode()).attributes
    for case in read_cases(data.decode("utf-8", "surrogateescape")).read(names, names.values()):
        failures(case, plainly(roots()[0]), NOW)


def understood(work: Callable[[bytes], object], data: bytes) -> bool:
    """Say whether work could be done with a document; anything but an error of ours fails the test."""
    try:
        work(data)
    except PenstockError as error:
        refused = error
    else:
        return True
    assert refused.code
    assert refused.message
    return False


READERS: dict[str, tuple[Callable[[bytes], object], Callable[[], list[bytes]]]] = {
    "policies as XML": (lambda data: worked_with(read_policy(data)), lambda: [write_policy(one) for one in roots()]),
    "policies as JSON": (
        lambda data: worked_with(read_json_policy(data)),
        lambda: [write_json_policy(one) for one in roots()],
    ),
    "policies as text": (text_policy, as_text),
    "policies in Cedar": (
        lambda data: worked_with(compile_cedar(data.decode("utf-8", "surrogateescape"))),
        lambda: [of_the_reference("cedar"), *(CedarMaker(seed).policies().encode() for seed in range(8))],
    ),
    "test cases": (cases, lambda: [of_the_reference("yaml")]),
    "requests as XML": (lambda data: decided(xml_requests.read_request, data), lambda: [REQUEST]),
    "requests as JSON": (lambda data: decided(json_requests.read_request, data), lambda: [JSON_REQUEST]),
    "responses as XML": (
        lambda data: told(xml_requests.read_response(data)),
        lambda: [xml_requests.write_response(one) for one in responses()],
    ),
    "responses as JSON": (
        lambda data: told(json_requests.read_response(data)),
        lambda: [json.dumps(json_written.write_response(one)).encode() for one in responses()],
    ),
}


@cache
def samples_of(kind: str) -> list[bytes]:
    return READERS[kind][1]()


@pytest.mark.parametrize("kind", READERS)
def test_samples_are_understood(kind: str) -> None:
    assert all(understood(READERS[kind][0], sample) for sample in samples_of(kind))


@pytest.mark.parametrize("kind", READERS)
@settings(max_examples=examples(60))
@given(data=st.data())
def test_spoiled_documents_are_refused_or_worked_with(kind: str, data: st.DataObject) -> None:
    understood(READERS[kind][0], data.draw(spoiled(samples_of(kind))))


@pytest.mark.parametrize("kind", READERS)
def test_what_readers_stumble_over_alone_is_refused(kind: str) -> None:
    for nasty in (*NASTY, b""):
        for data in (nasty, nasty * 3, b"{" + nasty, b"<a>" + nasty, b'{"Request": ' + nasty + b"}"):
            read = understood(READERS[kind][0], data)
            # An empty text is a document without policies.
            assert not read or kind == "policies as text", data


DEEP = [part * 20_000 for part in (b"[", b"{", b"(", b"<a>", b'{"a":', b"not ", b"- ", b"policyset s { ")]
BOMB = (
    b'<!DOCTYPE a [<!ENTITY e0 "aaaaaaaaaa">'
    + b"".join(b'<!ENTITY e%d "%b">' % (level, b"&e%d;" % (level - 1) * 10) for level in range(1, 10))
    + b"]>"
)


@pytest.mark.parametrize("kind", READERS)
def test_depth_and_entities_that_explode_are_refused(kind: str) -> None:
    for data in (*DEEP, *(sample[: len(sample) // 2] + DEEP[0] for sample in samples_of(kind)[:1])):
        assert not understood(READERS[kind][0], data)
    for sample in samples_of(kind)[:2]:
        place = sample.index(b">") + 1 if b">" in sample else len(sample) // 2
        assert not understood(READERS[kind][0], BOMB + sample[:place] + b"&e9;" + sample[place:])


@pytest.mark.parametrize(
    "data",
    [
        b'{"Request": {"Action": {}, "Action": {}}}',
        b'{"policy": {"id": "a", "id": "b"}}',
        b'{"Response": [], "Response": []}',
    ],
)
def test_names_that_stand_twice_are_refused(data: bytes) -> None:
    for kind in ("policies as JSON", "requests as JSON", "responses as JSON", "test cases"):
        assert not understood(READERS[kind][0], data)
