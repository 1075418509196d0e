from dataclasses import replace

import pytest
from tests.policy.kit import AGE, NOW, apply, designator, policy, request, rule, value

from penstock.policy.engine.decide import CONTENT_SELECTOR, MULTIPLE_SELECTORS, decide, plainly
from penstock.policy.engine.lookup import Repository
from penstock.policy.language.datatypes import INTEGER, XPATH
from penstock.policy.language.policies import Policy, PolicyReference, PolicySet
from penstock.policy.language.requests import RESOURCE, SUBJECT, Request
from penstock.policy.language.results import SYNTAX_ERROR, XacmlDecision
from penstock.policy.syntax.xml.elements import NAMESPACE
from penstock.policy.syntax.xml.requests import read_request, read_response, write_response

ADULTS = policy(
    rule(apply("integer-greater-than", apply("integer-one-and-only", designator()), value("17", "integer")))
)
FIRST = "urn:oasis:names:tc:xacml:1.0:policy-combining-algorithm:first-applicable"


def test_a_category_that_comes_twice_makes_two_requests() -> None:
    asked = request(18)
    other = request(5)
    both = replace(asked, categories=(*asked.categories, *other.of(SUBJECT)))
    assert [one.decision for one in decide(plainly(ADULTS), both, NOW).results] == [
        XacmlDecision.PERMIT,
        XacmlDecision.NOT_APPLICABLE,
    ]


def test_decisions_are_combined_where_they_agree() -> None:
    asked = request(18)
    same = replace(asked, categories=(*asked.categories, *request(20).of(SUBJECT)), combined_decision=True)
    assert [one.decision for one in decide(plainly(ADULTS), same, NOW).results] == [XacmlDecision.PERMIT]
    other = replace(asked, categories=(*asked.categories, *request(5).of(SUBJECT)), combined_decision=True)
    assert [one.decision for one in decide(plainly(ADULTS), other, NOW).results] == [XacmlDecision.INDETERMINATE_DP]


def test_a_reference_that_names_nothing_is_told() -> None:
    (result,) = decide(plainly(ADULTS), replace(request(18), references=(("nobody",),)), NOW).results
    assert result.decision is XacmlDecision.INDETERMINATE_DP


def test_references_to_policies_find_the_newest_that_suits() -> None:
    newer = Policy(ADULTS.id, "1.2", ADULTS.combining, ())
    known = Repository([ADULTS, newer])

    def asked(version: str | None) -> XacmlDecision:
        root = PolicySet("s", "1.0", FIRST, (PolicyReference("p", to_set=False, version=version),))
        return decide(plainly(root), request(18), NOW, known).results[0].decision

    assert asked(None) is XacmlDecision.NOT_APPLICABLE
    assert asked("1.0") is XacmlDecision.PERMIT
    assert asked("1.+") is XacmlDecision.NOT_APPLICABLE
    assert asked("2.*") is XacmlDecision.INDETERMINATE_DP


def test_a_set_that_is_within_itself_decides_nothing() -> None:
    root = PolicySet("s", "1.0", FIRST, (PolicyReference("s", to_set=True),))
    assert (
        decide(plainly(root), request(18), NOW, Repository([root])).results[0].decision
        is XacmlDecision.INDETERMINATE_DP
    )


def test_policies_that_were_applicable_are_named_where_that_is_wanted() -> None:
    (result,) = decide(plainly(ADULTS), replace(request(18), return_policy_ids=True), NOW).results
    assert [(one.id, one.version) for one in result.policies] == [("p", "1.0")]
    assert decide(plainly(ADULTS), request(18), NOW).results[0].policies == ()


def test_responses_are_written_as_they_are_read() -> None:
    response = decide(plainly(ADULTS), replace(request(18), return_policy_ids=True), NOW)
    assert read_response(write_response(response)) == response
    strict = policy(rule(apply("integer-is-in", value("1", "integer"), designator(must=True))))
    missing = decide(plainly(strict), request(), NOW)
    assert read_response(write_response(missing)).results[0].status == missing.results[0].status


# --- many requests in one --------------------------------------------------------------------------------------------

MANY = f"""<Request xmlns="{NAMESPACE}" CombinedDecision="false" ReturnPolicyIdList="false">
  <Attributes Category="{SUBJECT}" xml:id="old"><Attribute AttributeId="{AGE}" IncludeInResult="true">
    <AttributeValue DataType="{INTEGER.id}">40</AttributeValue></Attribute></Attributes>
  <Attributes Category="{SUBJECT}" xml:id="young"><Attribute AttributeId="{AGE}" IncludeInResult="true">
    <AttributeValue DataType="{INTEGER.id}">4</AttributeValue></Attribute></Attributes>
  <Attributes Category="{RESOURCE}" xml:id="records">
    <Content><r xmlns=""><a>1</a><a>2</a><b/></r></Content>SELECT</Attributes>
  MULTI
</Request>"""
ASKED_MANY = (
    f'<Attribute AttributeId="{MULTIPLE_SELECTORS[0]}" IncludeInResult="true"><AttributeValue DataType="{XPATH.id}" '
    f'XPathCategory="{RESOURCE}">PATH</AttributeValue></Attribute>'
)


def many(select: str = "", multi: str = "") -> Request:
    return read_request(MANY.replace("SELECT", select).replace("MULTI", multi).encode())


def test_requests_name_what_they_are_about() -> None:
    named = [
        "".join(f'<AttributesReference ReferenceId="{name}"/>' for name in names)
        for names in (("young", "records"), ("old",), ("old", "records"))
    ]
    references = "".join(f"<RequestReference>{one}</RequestReference>" for one in named)
    results = decide(plainly(ADULTS), many(multi=f"<MultiRequests>{references}</MultiRequests>"), NOW).results
    assert [one.decision for one in results] == [
        XacmlDecision.NOT_APPLICABLE,
        XacmlDecision.PERMIT,
        XacmlDecision.PERMIT,
    ]
    assert [one.attributes[0].attributes[0].values[0][1] for one in results] == [4, 40, 40]


@pytest.mark.parametrize(
    "name",
    [
        "urn:oasis:names:tc:xacml:3.0:profile:multiple:content-selector",
        "urn:oasis:names:tc:xacml:3.0:multiple:content-selector",
    ],
)
def test_each_node_of_each_makes_a_request(name: str) -> None:
    asked = many(ASKED_MANY.replace("PATH", "/r/a").replace(MULTIPLE_SELECTORS[0], name))
    results = decide(plainly(ADULTS), asked, NOW).results
    assert len(results) == 4
    chosen = [one.attributes[1].attributes[0] for one in results]
    assert {one.id for one in chosen} == {CONTENT_SELECTOR}
    assert [one.values[0][1].path for one in chosen] == ["/*[1]/*[1]", "/*[1]/*[2]"] * 2


def test_a_request_for_nothing_is_told() -> None:
    for combined in (True, False):
        asked = replace(many(ASKED_MANY.replace("PATH", "/r/none")), combined_decision=combined)
        (result,) = decide(plainly(ADULTS), asked, NOW).results
        assert (result.decision, result.status.code) == (XacmlDecision.INDETERMINATE_DP, SYNTAX_ERROR)


@pytest.mark.parametrize(
    "name",
    [
        "urn:oasis:names:tc:xacml:3.0:profile:multiple:xpath-expression",
        "urn:oasis:names:tc:xacml:3.0:profile:multiple:content-selectors",
        "urn:oasis:names:tc:xacml:3.0:multiple:scope",
        "urn:oasis:names:tc:xacml:2.0:profile:multiple:scope",
        "urn:oasis:names:tc:xacml:1.0:resource:scope",
    ],
)
def test_an_unknown_way_to_ask_for_several_decisions_is_an_error(name: str) -> None:
    (result,) = decide(plainly(ADULTS), many(ASKED_MANY.replace(MULTIPLE_SELECTORS[0], name)), NOW).results
    assert (result.decision, result.status.code) == (XacmlDecision.INDETERMINATE_DP, SYNTAX_ERROR)


def test_a_path_that_asks_for_several_decisions_finds_nodes_and_stands_there_once() -> None:
    selector = ASKED_MANY.replace("PATH", "/r/a")
    value_at = selector[selector.index("<AttributeValue") : selector.index("</Attribute>")]
    for wrong in (
        ASKED_MANY.replace("PATH", "count(/r/a)"),
        ASKED_MANY.replace("PATH", "string(/r/a[1])"),
        selector + selector,
        selector + selector.replace(MULTIPLE_SELECTORS[0], MULTIPLE_SELECTORS[1]),
        selector.replace(value_at, value_at + value_at),
    ):
        (result,) = decide(plainly(ADULTS), many(wrong), NOW).results
        assert (result.decision, result.status.code) == (XacmlDecision.INDETERMINATE_DP, SYNTAX_ERROR), wrong


def test_several_categories_may_each_ask_for_several_decisions() -> None:
    asked = many(ASKED_MANY.replace("PATH", "/r/a"))
    (records,) = asked.of(RESOURCE)
    both = replace(asked, categories=(*request(18).of(SUBJECT), records, replace(records, category="other")))
    assert len(decide(plainly(ADULTS), both, NOW).results) == 4


def test_requests_in_one_are_not_without_end() -> None:
    one = request(18)
    categories = tuple(replace(each, category=f"c{place % 5}") for place in range(50) for each in one.of(SUBJECT))
    (result,) = decide(plainly(ADULTS), replace(one, categories=categories), NOW).results
    assert result.decision is XacmlDecision.INDETERMINATE_DP
