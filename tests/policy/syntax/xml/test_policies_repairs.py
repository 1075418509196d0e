"""Policies that are not quite XACML 3.0: what is guessed is told, and what cannot be is refused."""

import pytest
from tests.policy.kit import XS, apply, policy_text, rule, value

from penstock.errors import MalformedError
from penstock.policy.language.expressions import Designator
from penstock.policy.language.policies import Policy
from penstock.policy.language.requests import ACTION, ENVIRONMENT, RESOURCE, SUBJECT
from penstock.policy.syntax.text.policy_writer import inner
from penstock.policy.syntax.xml.policies import read_leniently, read_policy


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
