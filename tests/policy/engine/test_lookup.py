"""What policies ask besides attributes of the request: contents, other requests, and where a resource is."""

from dataclasses import replace
from html import escape

import pytest
from tests.policy.kit import FUNCTION, NOW, XS, apply, policy, policy_text, request, rule, value

from penstock.codec.xml_text import XmlContent, read_xml
from penstock.errors import EvaluationError, MalformedError
from penstock.policy.engine.compiler import CompiledPolicy
from penstock.policy.engine.decide import SCOPE, decide, plainly
from penstock.policy.engine.evaluate import status_of
from penstock.policy.engine.lookup import ABOVE, ANCESTOR, ANCESTOR_OR_SELF, PARENT, Context, NoSources, Repository
from penstock.policy.language.datatypes import STRING, URI, XPATH, XPathExpression
from penstock.policy.language.policies import Designator, Root
from penstock.policy.language.requests import (
    ACTION,
    ACTION_ID,
    RESOURCE,
    RESOURCE_ID,
    SUBJECT,
    SUBJECT_ID,
    Attributes,
    Request,
    RequestAttribute,
    attribute,
)
from penstock.policy.language.results import PROCESSING_ERROR, SYNTAX_ERROR, Result, XacmlDecision
from penstock.policy.limits import POLICY_NESTED
from penstock.policy.syntax.xml.policies import read_policy, write_policy
from penstock.policy.syntax.xml.requests import read_attributes

F3 = "urn:oasis:names:tc:xacml:3.0:function:"
PATH_TYPE = "urn:oasis:names:tc:xacml:3.0:data-type:xpathExpression"
RECORD = b"<r><a id='1'><b>x</b></a><a id='2'><b>y</b></a></r>"


def answer(root: Root, asked: Request) -> Result:
    """What both evaluators say, which is the same."""
    (plain,) = decide(plainly(root), asked, NOW).results
    (quick,) = decide(CompiledPolicy(root).evaluate, asked, NOW).results
    assert plain == quick
    return plain


# --- paths -----------------------------------------------------------------------------------------------------------


def path(text: str) -> str:
    return f'<AttributeValue DataType="{PATH_TYPE}" XPathCategory="{RESOURCE}">{text}</AttributeValue>'


def named(of_type: str, name: str, category: str = RESOURCE) -> str:
    return (
        f'<AttributeDesignator Category="{category}" AttributeId="{name}" DataType="{of_type}" MustBePresent="false"/>'
    )


def asked_about(*paths: str) -> Request:
    selected = RequestAttribute("node", tuple((XPATH, XPathExpression(one, RESOURCE)) for one in paths))
    return Request((Attributes(RESOURCE, (selected,), XmlContent(read_xml(RECORD))),))


@pytest.mark.parametrize(
    ("function", "written", "wanted", "holds"),
    [
        ("xpath-node-match", "/r/a", "/r/a[2]/b", True),
        ("xpath-node-match", "/r/a[1]", "/r/a[2]/b", False),
        ("xpath-node-equal", "/r/a[1]", "//a[@id='1']", True),
        ("xpath-node-equal", "/r", "/r/a", False),
        ("xpath-node-equal", "//@id", "/r/a[2]/@id", True),
        ("xpath-node-equal", "/r/a[1]/@id", "/r/a[2]/@id", False),
        ("xpath-node-equal", "//b/text()", "/r/a[2]/b/text()", True),
        ("xpath-node-match", "/r/a[2]", "/r/a[2]/@id", True),
        ("xpath-node-match", "/r/a[1]", "/r/a[2]/b/text()", False),
        ("xpath-node-match", "/", "//b", True),
    ],
)
def test_paths_match_in_targets_and_one_by_one(function: str, written: str, wanted: str, *, holds: bool) -> None:
    target = (
        f'<Target><AnyOf><AllOf><Match MatchId="{F3}{function}">{path(written)}{named(PATH_TYPE, "node")}'
        "</Match></AllOf></AnyOf></Target>"
    )
    each = apply(f"{F3}any-of", f'<Function FunctionId="{F3}{function}"/>', path(written), named(PATH_TYPE, "node"))
    decision = XacmlDecision.PERMIT if holds else XacmlDecision.NOT_APPLICABLE
    for root in (policy(rule(target=target)), policy(rule(each))):
        assert answer(root, asked_about("/r/nothing", wanted)).decision is decision
        assert read_policy(write_policy(root)) == root


def test_a_path_of_the_wrong_category_finds_nothing() -> None:
    elsewhere = path("/r/a").replace(RESOURCE, ACTION)
    root = policy(rule(apply(f"{F3}xpath-node-match", path("/r"), elsewhere)))
    assert answer(root, asked_about()).decision is XacmlDecision.NOT_APPLICABLE


@pytest.mark.parametrize("found", ["count(//a)", "string(/r/a[1])", "//a = 'x'", "1 to 3"])
def test_a_path_that_does_not_find_nodes_is_a_syntax_error(found: str) -> None:
    selector = f'<AttributeSelector Category="{RESOURCE}" Path="{found}" DataType="{XS}string" MustBePresent="false"/>'
    size = apply("integer-greater-than", apply("string-bag-size", selector), value("0", "integer"))
    counted = apply("integer-greater-than", apply(f"{F3}xpath-node-count", path(found)), value("0", "integer"))
    for condition in (size, counted, apply(f"{F3}xpath-node-equal", path("//a"), path(found))):
        result = answer(policy(rule(condition)), asked_about())
        assert (result.decision, result.status.code) == (XacmlDecision.INDETERMINATE_P, SYNTAX_ERROR)


@pytest.mark.parametrize(
    ("paths", "decision"),
    [
        (["/r/a[2]"], XacmlDecision.PERMIT),
        (["/r/a[1]"], XacmlDecision.NOT_APPLICABLE),
        (["/r/none"], XacmlDecision.INDETERMINATE_P),
        (["/r/a"], XacmlDecision.INDETERMINATE_P),
        (["count(/r/a)"], XacmlDecision.INDETERMINATE_P),
        ([], XacmlDecision.INDETERMINATE_P),
        (["/r/a[1]", "/r/a[2]"], XacmlDecision.INDETERMINATE_P),
    ],
)
def test_a_path_begins_at_the_one_node_that_another_finds(paths: list[str], decision: XacmlDecision) -> None:
    selector = (
        f'<AttributeSelector Category="{RESOURCE}" Path="b" DataType="{XS}string" MustBePresent="false" '
        'ContextSelectorId="node"/>'
    )
    result = answer(policy(rule(apply("string-is-in", value("y"), selector))), asked_about(*paths))
    assert result.decision is decision
    assert (result.status.code == SYNTAX_ERROR) is decision.indeterminate


def test_a_path_that_another_begins_at_is_of_the_same_category() -> None:
    selector = (
        f'<AttributeSelector Category="{RESOURCE}" Path="b" DataType="{XS}string" MustBePresent="false" '
        'ContextSelectorId="node"/>'
    )
    (resource,) = asked_about().categories
    elsewhere = RequestAttribute("node", ((XPATH, XPathExpression("/r/a[2]", ACTION)),))
    asked = Request((replace(resource, attributes=(elsewhere,)),))
    result = answer(policy(rule(apply("string-is-in", value("y"), selector))), asked)
    assert (result.decision, result.status.code) == (XacmlDecision.INDETERMINATE_P, SYNTAX_ERROR)


@pytest.mark.parametrize("name", [f"{FUNCTION}xpath-node-match", "urn:example:unknown"])
def test_functions_that_are_not_supported_are_processing_errors(name: str) -> None:
    target = f'<Target><AnyOf><AllOf><Match MatchId="{name}">{value("/r")}{named(f"{XS}string", "node")}</Match>'
    with pytest.raises(MalformedError) as caught:
        read_policy(policy_text(rule(target=f"{target}</AllOf></AnyOf></Target>")))
    assert status_of(caught.value).code == PROCESSING_ERROR


# --- other requests --------------------------------------------------------------------------------------------------


def said(name: str, text: str) -> str:
    return f'<Attribute AttributeId="{name}" IncludeInResult="false">{value(text)}</Attribute>'


def permitted(category: str, content: str) -> str:
    return apply(f"{F3}access-permitted", value(category, "anyURI"), value(escape(content)))


def who(name: str) -> str:
    one = apply("string-one-and-only", named(f"{XS}string", SUBJECT_ID, SUBJECT))
    return apply("string-equal", one, value(name))


def test_what_one_may_depends_on_what_another_may() -> None:
    root = policy(rule(who("ann")), rule(apply("and", who("bob"), permitted(SUBJECT, said(SUBJECT_ID, "ann")))))
    assert answer(root, request(subject="bob")).decision is XacmlDecision.PERMIT
    refused = policy(rule(apply("and", who("bob"), permitted(SUBJECT, said(SUBJECT_ID, "carl")))))
    assert answer(refused, request(subject="bob")).decision is XacmlDecision.NOT_APPLICABLE


def test_the_rest_of_the_request_stays_and_the_category_is_replaced() -> None:
    writes = apply(
        "string-equal", apply("string-one-and-only", named(f"{XS}string", ACTION_ID, ACTION)), value("write")
    )
    asks = apply("not", writes)
    root = policy(
        rule(apply("and", writes, who("ann"))), rule(apply("and", asks, permitted(ACTION, said(ACTION_ID, "write"))))
    )
    assert answer(root, request(subject="ann", action="read")).decision is XacmlDecision.PERMIT
    assert answer(root, request(subject="bob", action="read")).decision is XacmlDecision.NOT_APPLICABLE


def test_requests_that_lead_to_each_other_end_in_an_error() -> None:
    root = policy(rule(permitted(SUBJECT, said(SUBJECT_ID, "ann"))))
    result = answer(root, request())
    assert (result.decision, result.status.code) == (XacmlDecision.INDETERMINATE_P, PROCESSING_ERROR)
    # An error below must not become a plain `no` above, of which `not` would make a permission.
    denied = policy(rule(apply("not", permitted(SUBJECT, said(SUBJECT_ID, "ann")))))
    assert answer(denied, request()).decision is XacmlDecision.INDETERMINATE_P


def test_requests_are_counted_all_in_all() -> None:
    inner = permitted(SUBJECT, said(SUBJECT_ID, "carl"))
    enough = policy(rule(who("carl")), rule(apply("and", *[inner] * POLICY_NESTED)))
    assert answer(enough, request()).decision is XacmlDecision.PERMIT
    too_many = policy(rule(who("carl")), rule(apply("and", *[inner] * (POLICY_NESTED + 1))))
    assert answer(too_many, request()).decision is XacmlDecision.INDETERMINATE_P


@pytest.mark.parametrize("content", ["<Attribute", "</Attributes><Attributes>", "<!DOCTYPE x []>", "<Rule/>"])
def test_what_is_no_content_of_a_category_is_an_error(content: str) -> None:
    result = answer(policy(rule(permitted(SUBJECT, content))), request())
    assert (result.decision, result.status.code) == (XacmlDecision.INDETERMINATE_P, SYNTAX_ERROR)


def test_a_category_is_a_name_and_nothing_else() -> None:
    found = read_attributes('a" Category="b', said("x", "y"))
    assert found == Attributes('a" Category="b', (attribute("x", STRING, "y"),))


# --- hierarchies -----------------------------------------------------------------------------------------------------

TREE = {"d/1/a": ["d/1"], "d/1/b": ["d/1", "e"], "d/1": ["d"], "d/2": ["d"]}
SOURCES = Repository(above=TREE)


def about(resource: str, *more: RequestAttribute) -> Request:
    return Request((Attributes(RESOURCE, (attribute(RESOURCE_ID, STRING, resource), *more)),))


@pytest.mark.parametrize(
    ("name", "found"),
    [(PARENT, ("d/1", "e")), (ANCESTOR, ("d/1", "e", "d")), (ANCESTOR_OR_SELF, ("d/1/b", "d/1", "e", "d"))],
)
def test_a_resource_knows_what_it_is_in(name: str, found: tuple[str, ...]) -> None:
    context = Context(about("d/1/b"), NOW, SOURCES)
    assert context.bag(Designator(RESOURCE, name, STRING)) == found
    assert context.bag(Designator(RESOURCE, name, URI)) == ()
    assert context.bag(Designator(SUBJECT, name, STRING)) == ()
    with_it = Context(about("d/1/b", attribute(name, STRING, "said")), NOW, SOURCES)
    assert with_it.bag(Designator(RESOURCE, name, STRING)) == ("said",)


def test_where_there_is_no_hierarchy_nothing_is_known() -> None:
    for sources in (NoSources(), Repository()):
        context = Context(about("d"), NOW, sources)
        assert [context.bag(Designator(RESOURCE, name, STRING)) for name in ABOVE] == [(), (), ()]
    top = Context(about("d"), NOW, SOURCES)
    assert [top.bag(Designator(RESOURCE, name, STRING)) for name in ABOVE] == [(), (), ("d",)]


def test_rules_for_what_is_below_a_resource() -> None:
    root = policy(rule(apply("string-is-in", value("d/1"), named(f"{XS}string", ANCESTOR_OR_SELF))))
    for resource, decision in (
        ("d/1/a", XacmlDecision.PERMIT),
        ("d/1", XacmlDecision.PERMIT),
        ("d", XacmlDecision.NOT_APPLICABLE),
    ):
        for policy_asked in (plainly(root), CompiledPolicy(root).evaluate):
            assert decide(policy_asked, about(resource), NOW, SOURCES).results[0].decision is decision


@pytest.mark.parametrize(
    ("scope", "found"),
    [
        ("Immediate", ["d"]),
        ("Children", ["d", "d/1", "d/2"]),
        ("Descendants", ["d", "d/1", "d/2", "d/1/a", "d/1/b"]),
    ],
)
def test_a_scope_asks_about_a_part_of_a_hierarchy(scope: str, found: list[str]) -> None:
    who_asks = replace(attribute(RESOURCE_ID, STRING, "d"), include_in_result=True)
    asked = Request((Attributes(RESOURCE, (who_asks, attribute(SCOPE, STRING, scope))),))
    results = decide(plainly(policy(rule())), asked, NOW, SOURCES).results
    assert [one.attributes[0].attributes[0].values[0][1] for one in results] == found


def test_a_hierarchy_that_is_a_ring_ends() -> None:
    ring = Repository(above={"a": ["b"], "b": ["a"]})
    assert Context(about("a"), NOW, ring).bag(Designator(RESOURCE, ANCESTOR, STRING)) == ("b",)
    asked = about("a", attribute(SCOPE, STRING, "Descendants"))
    assert len(decide(plainly(policy(rule())), asked, NOW, ring).results) == 2


def test_a_hierarchy_that_never_ends_is_an_error() -> None:
    class Endless(Repository):
        def parents(self, resource: str, /) -> list[str]:
            return [f"{one}{resource}"[-20:] for one in range(10)]

    with pytest.raises(EvaluationError):
        Context(about("a"), NOW, Endless()).bag(Designator(RESOURCE, ANCESTOR, STRING))
