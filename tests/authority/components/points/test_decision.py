"""A decision point's policies: combined by the configuration, with information that may be Null."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from penstock.authority.components.exchange.samples import Configuration, PolicyText, SampleRevision
from penstock.authority.components.information.combining import CombinedInformation, TimedValue
from penstock.authority.components.points.decision import ConfiguredPolicies, algorithm_id, typed_values
from penstock.authority.decisions.questions import RESOURCE_TYPE, AccessQuestion, facts_of
from penstock.errors import EvaluationError, MalformedError
from penstock.policy.language.datatypes import BOOLEAN, DATE, DOUBLE, INTEGER, STRING, DataType
from penstock.policy.language.requests import ACTION_ID
from penstock.policy.language.results import MISSING_ATTRIBUTE, XacmlDecision

P, D, NA, IN = "Permit", "Deny", "NotApplicable", "Indeterminate"
NOW = 1_800_000_000.0
THEN = datetime.fromtimestamp(NOW - 1, UTC)
HEAD = f"""namespace t {{
    attribute sort {{ category = resource id = "{RESOURCE_TYPE}" type = string }}
    attribute does {{ category = action id = "{ACTION_ID}" type = string }}
    attribute rank {{ category = subject id = "rank" type = integer }}
    attribute owner {{ category = resource id = "owner" type = string }}
"""


def text(name: str, body: str, changed: float = 1.0) -> PolicyText:
    return PolicyText(name, "r1", changed, f"{HEAD} policy {name} {{ {body} }} }}".encode())


PERMITS = text("permits", 'apply deny-overrides target clause sort == "account" rule r { permit condition rank > 3 }')
DENIES = text("denies", 'apply deny-overrides rule r { deny target clause sort == "account" and does == "withdraw" }')


def policies(*those: PolicyText, **settings: Any) -> ConfiguredPolicies:
    return ConfiguredPolicies.of(Configuration("bank", "pdp", 1, b"x", policies=those, **settings))


def question(action: str = "look", kind: str = "account") -> AccessQuestion:
    return AccessQuestion.of(("user", "alice"), action, (kind, "7"))


def told(null: tuple[str, ...] = (), **fields: object) -> CombinedInformation:
    values = {f"subject/{name}": TimedValue(json.dumps(value), THEN) for name, value in fields.items()}
    return CombinedInformation(values, frozenset(null), frozenset(), frozenset())


def decided(found: ConfiguredPolicies, asked: AccessQuestion, information: CombinedInformation | None = None) -> str:
    return found.decide(facts_of(asked), information, NOW).decision.plain


def test_policies_are_combined_by_the_configuration() -> None:
    both = (PERMITS, DENIES)
    high = told(rank=4)
    assert decided(policies(*both), question("withdraw"), high) == D
    assert decided(policies(*both, combining={"policy": "permit-overrides"}), question("withdraw"), high) == P
    # Only the applicable policies with the highest priority count.
    assert decided(policies(*both, priorities={"permits": 1}), question("withdraw"), high) == P
    assert decided(policies(*both, priorities={"permits": 1}), question("withdraw"), told(rank=1)) == D
    # A priority of a policy is not one of a domain whose information everybody would wait for.
    assert policies(*both, priorities={"permits": 1, "bank": 2}).informants == {"bank": 2}
    assert decided(policies(*both), question("look", "loan")) == NA
    assert decided(policies(), question()) == NA


def test_null_makes_the_evaluation_indeterminate_and_nothing_else() -> None:
    found = policies(PERMITS, DENIES)
    null = told(("subject/rank",))
    outcome = found.decide(facts_of(question()), null, NOW)
    assert (outcome.decision.plain, outcome.status.code) == (IN, MISSING_ATTRIBUTE)
    assert decided(found, question("withdraw"), null) == D, "it is denied whatever the rank is"
    assert decided(found, question("look", "loan"), null) == NA
    # Known to be without a value, which is an error only because the policy wants exactly one.
    assert decided(found, question(), told(rank=None)) == IN
    assert decided(found, question(), told(rank="5")) == P
    assert decided(found, question(), told(rank="high")) == IN


def test_answers_name_the_policies_that_can_decide() -> None:
    found = policies(PERMITS, DENIES)
    one, other = SampleRevision("permits", "r1", 1.0), SampleRevision("denies", "r1", 1.0)
    assert found.rests_on(question("withdraw")) == (one, other)
    assert found.rests_on(question("look")) == (one, other), "the outer policy of `denies` has no target"
    assert found.actions == {"account/*", "account/withdraw"}
    assert policies(PERMITS, combining={"policy": "deny-unless-permit"}).actions == {"*/*"}
    assert decided(policies(combining={"policy": "deny-unless-permit"}), question()) == D


@pytest.mark.parametrize(
    ("those", "settings", "code"),
    [
        ((PERMITS, PERMITS), {}, "xacml.duplicate"),
        ((PolicyText("a", "r", 1.0, b"<nothing/>"),), {}, "x.*"),
        ((PolicyText("a", "r", 1.0, HEAD.encode() + b"}"),), {}, "xacml.syntax"),
        ((PERMITS,), {"combining": {"policy": "no-such-thing"}}, "xacml.combining"),
        ((PERMITS,), {"combining": {"information": "no-such-thing"}}, "pdp.information-mode"),
    ],
)
def test_wrong_configurations(those: tuple[PolicyText, ...], settings: dict[str, Any], code: str) -> None:
    with pytest.raises(MalformedError, match=rf"\[{code}\]"):
        policies(*those, **settings)


def test_ids_of_algorithms() -> None:
    full = "urn:oasis:names:tc:xacml:3.0:policy-combining-algorithm:first-applicable"
    assert algorithm_id("first-applicable") == algorithm_id(full) == full


@pytest.mark.parametrize(
    ("value", "of_type", "values"),
    [
        (None, STRING, []),
        ("a", STRING, ["a"]),
        ([1, 2], INTEGER, [1, 2]),
        (["1", 2], INTEGER, [1, 2]),
        (1, DOUBLE, [1.0]),
        ("true", BOOLEAN, [True]),
        (True, BOOLEAN, [True]),
    ],
)
def test_values_have_the_type_that_a_policy_wants(value: Any, of_type: DataType, values: list[object]) -> None:
    assert repr([*typed_values(value, of_type)]) == repr(values)


@pytest.mark.parametrize(
    ("value", "of_type"), [(1, STRING), (True, INTEGER), (True, DOUBLE), ("x", DATE), (1.5, INTEGER)]
)
def test_values_of_other_types_are_errors(value: Any, of_type: DataType) -> None:
    with pytest.raises(EvaluationError):
        typed_values(value, of_type)


def test_plain_decisions_are_those_of_answers() -> None:
    assert {one.plain for one in XacmlDecision} == {P, D, NA, IN}
