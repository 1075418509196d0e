"""Policies in JSON: read, written and read back; what is not a policy is refused."""

import json
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.policy.random_policies import Maker

from penstock.errors import LimitError, MalformedError, PenstockError
from penstock.policy.language.policies import Policy, PolicySet
from penstock.policy.syntax.json.policies import read_json_policy, write_json_policy

DENY = "urn:oasis:names:tc:xacml:3.0:rule-combining-algorithm:deny-unless-permit"


@pytest.mark.parametrize("seed", range(15))
def test_random_policies_are_read_back(seed: int) -> None:
    root = Maker(seed).policy_set()
    assert read_json_policy(write_json_policy(root)) == root


def test_valid_policies_of_the_suite_are_read_back(suites: Path) -> None:
    files = sorted((suites / "xacml-json/Policies/valid").glob("*.json"))
    assert len(files) >= 5
    for file in files:
        root = read_json_policy(file.read_bytes())
        assert read_json_policy(write_json_policy(root)) == root


def test_rules_beside_policies() -> None:
    inside = [{"rule": {"id": "r", "effect": "Permit"}}, {"policyRef": {"id": "q", "version": "1.*"}}]
    root = read_json_policy(json.dumps({"policy": {"id": "p", "combinerId": DENY, "combinerArgs": inside}}).encode())
    assert isinstance(root, PolicySet)
    assert ":policy-combining-algorithm:deny-unless-permit" in root.combining
    assert isinstance(root.members[0], Policy)
    assert (root.version, root.members[0].id, len(root.members[0].rules)) == ("1.0", "r", 1)
    assert isinstance(read_json_policy(json.dumps({"policy": {"id": "p", "combinerId": DENY}}).encode()), Policy)


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({"nonsense": 1}, "xacml.json"),
        ({"combinerId": "x"}, "xacml.combining"),
        ({"id": 5}, "xacml.json"),
        ({"version": "x"}, "xacml.version"),
        ({"target": [[[]]]}, "xacml.json"),
        ({"combinerArgs": [{"rule": {"id": "r", "effect": "Maybe"}}]}, "xacml.json"),
        ({"combinerArgs": [{"rule": {"id": "r", "effect": "Deny", "condition": {"const": "x"}}}]}, "xacml.arguments"),
        ({"combinerArgs": [{"rule": {"id": "r", "effect": "Deny", "condition": {"varRef": "x"}}}]}, "xacml.variable"),
    ],
)
def test_what_is_no_policy(more: dict[str, object], code: str) -> None:
    with pytest.raises(MalformedError) as caught:
        read_json_policy(json.dumps({"policy": {"id": "p", "combinerId": DENY, **more}}).encode())
    assert caught.value.code == code


def test_what_is_nested_too_deep() -> None:
    text = '{"policy": {"id": "p", "combinerId": "' + DENY + '", "combinerArgs": ['
    with pytest.raises(LimitError):
        read_json_policy((text * 100 + "]}}" * 100).encode())


NAMES = st.sampled_from(["policy", "id", "combinerId", "combinerArgs", "rule", "effect", "target", "condition", "vars"])
ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from(["p", DENY, "Permit"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=12,
)


@given(ANY)
def test_any_json_is_read_or_refused(value: object) -> None:
    for data in (value, {"policy": value}, {"policy": {"id": "p", "combinerId": DENY, "combinerArgs": value}}):
        with suppress(PenstockError):
            read_json_policy(json.dumps(data).encode())
