from dataclasses import replace

from tests.policy.kit import NOW, apply, designator, policy, request, rule, value

from penstock.policy.decide import decide, plainly
from penstock.policy.policies import Policy, PolicyReference, PolicySet
from penstock.policy.repository import Repository
from penstock.policy.requests import SUBJECT
from penstock.policy.results import Decision
from penstock.policy.xml_requests import read_response, write_response

ADULTS = policy(
    rule(apply("integer-greater-than", apply("integer-one-and-only", designator()), value("17", "integer")))
)
FIRST = "urn:oasis:names:tc:xacml:1.0:policy-combining-algorithm:first-applicable"


def test_a_category_that_comes_twice_makes_two_requests() -> None:
    asked = request(18)
    other = request(5)
    both = replace(asked, categories=(*asked.categories, *other.of(SUBJECT)))
    assert [one.decision for one in decide(plainly(ADULTS), both, NOW).results] == [
        Decision.PERMIT,
        Decision.NOT_APPLICABLE,
    ]


def test_decisions_are_combined_where_they_agree() -> None:
    asked = request(18)
    same = replace(asked, categories=(*asked.categories, *request(20).of(SUBJECT)), combined_decision=True)
    assert [one.decision for one in decide(plainly(ADULTS), same, NOW).results] == [Decision.PERMIT]
    other = replace(asked, categories=(*asked.categories, *request(5).of(SUBJECT)), combined_decision=True)
    assert [one.decision for one in decide(plainly(ADULTS), other, NOW).results] == [Decision.INDETERMINATE_DP]


def test_a_reference_that_names_nothing_is_told() -> None:
    (result,) = decide(plainly(ADULTS), replace(request(18), references=(("nobody",),)), NOW).results
    assert result.decision is Decision.INDETERMINATE_DP


def test_references_to_policies_find_the_newest_that_suits() -> None:
    newer = Policy(ADULTS.id, "1.2", ADULTS.combining, ())
    known = Repository([ADULTS, newer])

    def asked(version: str | None) -> Decision:
        root = PolicySet("s", "1.0", FIRST, (PolicyReference("p", to_set=False, version=version),))
        return decide(plainly(root), request(18), NOW, known).results[0].decision

    assert asked(None) is Decision.NOT_APPLICABLE
    assert asked("1.0") is Decision.PERMIT
    assert asked("1.+") is Decision.NOT_APPLICABLE
    assert asked("2.*") is Decision.INDETERMINATE_DP


def test_a_set_that_is_within_itself_decides_nothing() -> None:
    root = PolicySet("s", "1.0", FIRST, (PolicyReference("s", to_set=True),))
    assert decide(plainly(root), request(18), NOW, Repository([root])).results[0].decision is Decision.INDETERMINATE_DP


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
