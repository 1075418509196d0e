"""What the tests of policies share: small policies as XML, requests, and a clock."""

from datetime import UTC, datetime

from hypothesis import strategies as st

from penstock.policy.combining import POLICY_ALGORITHMS, RULE_ALGORITHMS
from penstock.policy.language.datatypes import INTEGER, STRING
from penstock.policy.language.policies import Policy, PolicyReference, PolicySet, Root, Rule, Target
from penstock.policy.language.requests import ACTION, ACTION_ID, SUBJECT, SUBJECT_ID, Attributes, Request, attribute
from penstock.policy.syntax.xml.elements import NAMESPACE
from penstock.policy.syntax.xml.policies import read_policy

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
FIRST = "urn:oasis:names:tc:xacml:1.0:rule-combining-algorithm:first-applicable"
AGE = "urn:example:age"
FUNCTION = "urn:oasis:names:tc:xacml:1.0:function:"
IDS = st.integers(0, 10**6).map(str)
XS = "http://www.w3.org/2001/XMLSchema#"


def small_policies(
    rules: st.SearchStrategy[Rule], targets: st.SearchStrategy[Target]
) -> tuple[st.SearchStrategy[Policy], st.SearchStrategy[PolicySet]]:
    """Return policies of a few rules, and sets of a few such policies, or of references to a policy `referred`."""
    policies = st.builds(
        Policy,
        IDS,
        st.just("1.0"),
        st.sampled_from(sorted(RULE_ALGORITHMS)),
        st.lists(rules, min_size=1, max_size=3).map(tuple),
        targets,
    )
    sets = st.builds(
        PolicySet,
        IDS,
        st.just("1.0"),
        st.sampled_from(sorted(POLICY_ALGORITHMS)),
        st.lists(policies | st.just(PolicyReference("referred", to_set=False)), max_size=3).map(tuple),
        targets,
    )
    return policies, sets


def value(text: str, of_type: str = "string") -> str:
    return f'<AttributeValue DataType="{XS}{of_type}">{text}</AttributeValue>'


def designator(name: str = AGE, of_type: str = "integer", *, must: bool = False) -> str:
    return (
        f'<AttributeDesignator Category="{SUBJECT}" AttributeId="{name}" DataType="{XS}{of_type}" '
        f'MustBePresent="{"true" if must else "false"}"/>'
    )


def apply(name: str, *arguments: str) -> str:
    return f'<Apply FunctionId="{name if ":" in name else FUNCTION + name}">{"".join(arguments)}</Apply>'


def rule(condition: str = "", effect: str = "Permit", *, target: str = "", more: str = "", name: str = "r") -> str:
    shown = f"<Condition>{condition}</Condition>" if condition else ""
    return f'<Rule RuleId="{name}" Effect="{effect}">{target}{shown}{more}</Rule>'


def policy_text(*inside: str, combining: str = FIRST, target: str = "<Target/>", name: str = "p") -> bytes:
    return (
        f'<Policy xmlns="{NAMESPACE}" PolicyId="{name}" Version="1.0" RuleCombiningAlgId="{combining}">'
        f"{target}{''.join(inside)}</Policy>"
    ).encode()


def policy(*inside: str, combining: str = FIRST) -> Root:
    return read_policy(policy_text(*inside, combining=combining))


def request(*ages: int, subject: str = "ann", action: str = "read") -> Request:
    who = [attribute(SUBJECT_ID, STRING, subject)] + ([attribute(AGE, INTEGER, *ages)] if ages else [])
    return Request((Attributes(SUBJECT, tuple(who)), Attributes(ACTION, (attribute(ACTION_ID, STRING, action),))))
