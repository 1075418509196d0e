from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.policy.kit import apply, designator, policy_text, rule, value

from penstock.errors import MalformedError, PenstockError
from penstock.model.limits import Limits
from penstock.policy.requests import ACTION
from penstock.policy.xml_elements import NAMESPACE
from penstock.policy.xml_policies import read_policy
from penstock.policy.xml_requests import read_request

WHOLE = policy_text(
    "<Description>words</Description>",
    f'<VariableDefinition VariableId="v">{designator()}</VariableDefinition>',
    rule(apply("integer-is-in", value("5", "integer"), '<VariableReference VariableId="v"/>')),
)
ASKED = (
    f'<Request xmlns="{NAMESPACE}" ReturnPolicyIdList="false" CombinedDecision="false"><Attributes Category="{ACTION}">'
    f"<Content><a><b>1</b></a></Content>"
    f'<Attribute AttributeId="x" IncludeInResult="true">{value("5", "integer")}</Attribute></Attributes></Request>'
).encode()


@pytest.mark.parametrize(
    ("inside", "code", "line"),
    [
        (rule(apply("integer-add", value("5", "integer"), value("x"))), "xacml.arguments", True),
        (rule(value("5", "integer")), "xacml.arguments", True),
        (rule(apply("nonsense", value("x"))), "xacml.function", True),
        (rule(value("x", "nonsense")), "xacml.type", True),
        (rule(value("x", "integer")), "xacml.value", True),
        (rule('<VariableReference VariableId="v"/>'), "xacml.variable", True),
        (
            '<VariableDefinition VariableId="v"><VariableReference VariableId="v"/></VariableDefinition>',
            "xacml.variable",
            True,
        ),
        (rule(effect="Maybe"), "xacml.element", True),
        ("<Nonsense/>", "xacml.element", True),
        ("<Target/>", "xacml.element", True),
        (rule(apply("any-of", value("x"))), "xacml.arguments", True),
        ("<unclosed>", "xml.malformed", True),
        (rule(apply("not", apply("not"))), "xacml.arguments", True),
    ],
)
def test_what_is_wrong_is_told_with_its_line(inside: str, code: str, line: bool) -> None:  # a column
    with pytest.raises(MalformedError) as caught:
        read_policy(policy_text("\n\n", inside))
    assert caught.value.code == code
    assert ("line" in caught.value.fields) is line


@pytest.mark.parametrize(
    "before",
    [
        b'<!DOCTYPE Policy [<!ENTITY x "y">]>',
        b'<!DOCTYPE Policy SYSTEM "file:///etc/passwd">',
    ],
)
def test_there_are_no_document_types(before: bytes) -> None:
    with pytest.raises(MalformedError) as caught:
        read_policy(before + WHOLE)
    assert caught.value.code == "xml.doctype"


def test_there_are_bounds() -> None:
    with pytest.raises(MalformedError) as caught:
        read_policy(WHOLE, limits=Limits(xml_bytes=100))
    assert caught.value.code == "xml.limit"
    deep = value("true", "boolean")
    for _ in range(70):
        deep = apply("not", deep)
    with pytest.raises(MalformedError) as caught:
        read_policy(policy_text(rule(deep)))
    assert caught.value.code == "xacml.limit"


@given(st.data())
def test_spoiled_documents_are_read_or_refused(data: st.DataObject) -> None:
    read, whole = data.draw(st.sampled_from([(read_policy, WHOLE), (read_request, ASKED)]))
    place = data.draw(st.integers(0, len(whole)))
    spoiled = whole[:place] + data.draw(st.binary(max_size=8)) + whole[place + data.draw(st.integers(0, 40)) :]
    with suppress(PenstockError):
        read(spoiled)
