"""Policies that are not quite XACML 3.0: what is guessed is reported, and what cannot be is refused."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.policy.kit import FUNCTION, XS, apply, designator, policy_text, rule, value

from penstock.errors import MalformedError, PenstockError
from penstock.policy.language.policies import Designator, Policy
from penstock.policy.language.requests import ACTION, ENVIRONMENT, RESOURCE, SUBJECT
from penstock.policy.limits import PolicyLimits
from penstock.policy.syntax.text.policy_writer import inner
from penstock.policy.syntax.xml.elements import NAMESPACE
from penstock.policy.syntax.xml.policies import read_leniently, read_policy
from penstock.policy.syntax.xml.requests import read_request

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


MATCH = (
    f'<Target><AnyOf><AllOf><Match MatchId="urn:oasis:names:tc:xacml:1.0:function:integer-equal">'
    f"{value('5', 'integer')}{designator()}</Match></AllOf></AnyOf></Target>"
)


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        (rule(target=MATCH), rule(target="<Target>age = 5</Target>")),
        (rule(target=MATCH), rule(target=MATCH.replace("<AnyOf>", "not <AnyOf>"))),
        (rule(target=MATCH), rule(target=MATCH.replace("</Match>", "</Match> or"))),
        (rule(target=MATCH), rule(target=MATCH.replace('MustBePresent="false"', 'MustBePresent="false" Isuer="a"'))),
        (rule(target=MATCH), rule(target=MATCH.replace("<Match ", '<Match Negated="true" '))),
        (rule(apply("not", value("true", "boolean"))), rule("not" + value("true", "boolean"))),
        (rule(), rule().replace("<Rule ", '<Rule Enabled="false" ')),
        (rule(), rule(more="for ann only")),
        (
            rule(),
            "<CombinerParameters><CombinerParameter/></CombinerParameters>",
        ),
        (
            "<PolicyDefaults><XPathVersion>x</XPathVersion></PolicyDefaults>",
            "<PolicyDefaults><XPath/></PolicyDefaults>",
        ),
    ],
)
def test_what_the_schema_does_not_have_is_not_read_over(right: str, wrong: str) -> None:
    read_policy(policy_text(right))
    with pytest.raises(MalformedError) as caught:
        read_policy(policy_text("\n\n", wrong))
    assert caught.value.code == "xacml.element"
    assert caught.value.fields["line"] == 3


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        (b"<Attribute ", b'<Attribute Isuer="a" '),
        (b"CombinedDecision=", b"CombineDecision="),
        (b"</Attributes>", b"and more</Attributes>"),
        (
            b"</Request>",
            b"<MultiRequests><RequestReference><Other ReferenceId='a'/></RequestReference></MultiRequests></Request>",
        ),
    ],
)
def test_what_the_schema_of_requests_does_not_have_is_not_read_over(right: bytes, wrong: bytes) -> None:
    read_request(ASKED)
    with pytest.raises(MalformedError) as caught:
        read_request(ASKED.replace(right, wrong))
    assert caught.value.code == "xacml.element"


def test_a_reference_with_a_misspelt_version_is_refused() -> None:
    whole = (
        f'<PolicySet xmlns="{NAMESPACE}" PolicySetId="s" Version="1.0" PolicyCombiningAlgId='
        '"urn:oasis:names:tc:xacml:1.0:policy-combining-algorithm:first-applicable"><Target/>'
        '<PolicyIdReference Version="1.0">p</PolicyIdReference></PolicySet>'
    )
    read_policy(whole.encode())
    with pytest.raises(MalformedError) as caught:
        read_policy(whole.replace('Version="1.0">p', 'Verson="1.0">p').encode())
    assert caught.value.code == "xacml.element"


def test_the_older_name_of_a_category_may_stand_beside_it_if_it_says_the_same() -> None:
    twice = MATCH.replace("<AttributeDesignator ", f'<AttributeDesignator SubjectCategory="{SUBJECT}" ')
    read_policy(policy_text(rule(target=twice)))
    with pytest.raises(MalformedError):
        read_policy(policy_text(rule(target=twice.replace(f'SubjectCategory="{SUBJECT}', 'SubjectCategory="other'))))


@pytest.mark.parametrize(
    ("namespace", "version"),
    [
        ("urn:oasis:names:tc:xacml:2.0:policy:schema:os", "XACML 2.0"),
        ("urn:oasis:names:tc:xacml:1.0:policy", "XACML 1.0"),
        ("urn:oasis:names:tc:xacml:3.0:schema:os", "a draft of XACML 3.0"),
        ("urn:oasis:names:tc:xacml:3.0:core:schema:wd-11", "a draft of XACML 3.0"),
    ],
)
def test_another_version_of_the_standard_is_named(namespace: str, version: str) -> None:
    older = WHOLE.replace(NAMESPACE.encode(), namespace.encode()).replace(b' Version="1.0"', b"")
    asked = ASKED.replace(NAMESPACE.encode(), namespace.replace("policy", "context").encode())
    for read, data in ((read_policy, older), (read_request, asked), (read_leniently, older)):
        with pytest.raises(MalformedError) as caught:
            read(data)
        assert caught.value.code == "xacml.older"
        assert version in caught.value.message
        assert "policy-language" in (caught.value.hint or "")


def test_white_space_around_the_uri_of_a_type_or_function_means_nothing() -> None:
    spaced = (
        WHOLE.replace(b'#integer"', b'#integer \n"')
        .replace(b'FunctionId="urn', b'FunctionId=" urn')
        .replace(b'Category="', b'Category="\n  ')
        .replace(b'RuleCombiningAlgId="', b'RuleCombiningAlgId=" ')
    )
    assert spaced != WHOLE
    assert read_policy(spaced) == read_policy(WHOLE)
    asked = read_request(ASKED.replace(b'#integer"', b'#integer "').replace(b'AttributeId="', b'AttributeId="  '))
    assert asked.categories == read_request(ASKED).categories


@pytest.mark.parametrize(
    ("function", "of_type", "right", "wrong"),
    [("rfc822Name-match", "rfc822Name", ".sun.com", "."), ("x500Name-match", "x500Name", "c=US", " ")],
)
def test_a_pattern_that_can_match_nothing_is_refused_when_it_is_read(
    function: str, of_type: str, right: str, wrong: str
) -> None:
    kind = f"urn:oasis:names:tc:xacml:1.0:data-type:{of_type}"
    attribute = designator("n").replace(f"{XS}integer", kind)

    def matching(text: str) -> tuple[str, str]:
        pattern = value(text) if function.startswith("rfc") else value(text).replace(f"{XS}string", kind)
        match = f'<Match MatchId="{FUNCTION}{function}">{pattern}{attribute}</Match>'
        one = apply(f"{of_type}-one-and-only", attribute)
        target = f"<Target><AnyOf><AllOf>{match}</AllOf></AnyOf></Target>"
        return rule(target=target), rule(apply(function, pattern, one))

    for one, other in zip(matching(right), matching(wrong), strict=True):
        read_policy(policy_text(one))
        with pytest.raises(MalformedError) as caught:
            read_policy(policy_text(other))
        assert caught.value.code == "xacml.value"


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
        read_policy(WHOLE, limits=PolicyLimits(xml_bytes=100))
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


def about(name: str) -> bytes:
    attribute = f'<AttributeDesignator AttributeId="{name}" DataType="{XS}string"/>'
    return policy_text(rule(apply("string-is-in", value("x"), attribute)), target="")


@pytest.mark.parametrize(
    ("name", "category"),
    [
        ("urn:oasis:names:tc:xacml:1.0:subject:subject-id", SUBJECT),
        ("http://example.org/xacml/resource/resource-type", RESOURCE),
        ("urn:example:action:kind", ACTION),
        ("urn:oasis:names:tc:xacml:1.0:environment:current-time", ENVIRONMENT),
    ],
)
def test_what_is_lacking_is_guessed_and_told(name: str, category: str) -> None:
    root, repairs = read_leniently(about(name))
    assert isinstance(root, Policy)
    assert root.rules[0].condition is not None
    (found,) = (one for one in inner([root.rules[0].condition]) if isinstance(one, Designator))
    assert (found.category, found.must_be_present) == (category, False)
    assert [(one.line, one.element) for one in repairs] == [
        (1, "Policy"), (1, "AttributeDesignator"), (1, "AttributeDesignator"),
    ]  # fmt: skip
    assert "no `Target`" in str(repairs[0])


def test_a_category_that_the_name_does_not_say_is_not_guessed() -> None:
    with pytest.raises(MalformedError) as caught:
        read_leniently(about("urn:example:resources"))
    assert (caught.value.code, caught.value.fields["line"]) == ("xacml.element", 1)


def test_what_is_whole_is_read_as_it_is() -> None:
    whole = policy_text(rule())
    assert read_leniently(whole) == (read_policy(whole), [])


def test_what_is_wrong_stays_wrong() -> None:
    with pytest.raises(MalformedError):
        read_leniently(policy_text("<Rule/>"))
