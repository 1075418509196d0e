"""Rules that speak about what is not there are refused, before anything is done with them."""

import pytest
from tests.moderator.kit import WORKFLOW, event, rule, words
from tests.trust.kit import refused, who

from penstock.moderator.limits import ModeratorLimits
from penstock.moderator.rules.rules import RuleFunction, SubscribeRule
from penstock.selector import parse

VOCABULARY = words(WORKFLOW)


def test_what_is_well_formed_passes() -> None:
    VOCABULARY.check(rule("r", "A1", "role = 'engineer' AND age BETWEEN 0 AND 120", "licensed OR company = 'C'"))
    VOCABULARY.check(SubscribeRule("s", event("A1"), who(1), who(1), parse("company IN ('A', 'C')")))


@pytest.mark.parametrize(
    ("about", "fnc_s", "code"),
    [
        ("A99", "TRUE", "moderator.unknown-type"),
        ("A1", "height > 3", "moderator.unknown-attribute"),
        ("A1", "licensed", "moderator.unknown-attribute"),
        ("A1", "role = 'cook'", "moderator.domain"),
        ("A1", "'cook' = role", "moderator.domain"),
        ("A1", "role IN ('worker', 'cook')", "moderator.domain"),
        ("A1", "NOT (age BETWEEN 10 AND 121)", "moderator.domain"),
        ("A1", "age <= 10.5 OR age >= 120.5", "moderator.domain"),
        ("A1", "role = 'worker' AND role = 'engineer'", "moderator.contradiction"),
        ("A1", "FALSE", "moderator.contradiction"),
        ("A1", "age > 5 AND age < 5", "moderator.contradiction"),
        ("A1", "age LIKE 'x'", "selector.type"),
    ],
)
def test_what_is_not_is_refused(about: str, fnc_s: str, code: str) -> None:
    with refused(code):
        VOCABULARY.check(rule("r", about, fnc_s))


def test_the_function_of_publishers_is_about_publishers() -> None:
    with refused("moderator.unknown-attribute"):
        VOCABULARY.check(rule("r", "A1", "role = 'worker'", "role = 'worker'"))
    with refused("moderator.domain"):
        VOCABULARY.check(rule("r", "A1", "TRUE", "company = 'D'"))


def test_messages_name_rule_function_and_attribute_and_no_value() -> None:
    with pytest.raises(Exception, match=r"rule `r`, fnc_s: attribute `role`") as caught:
        VOCABULARY.check(rule("r", "A1", "role = 'cook'"))
    assert "cook" not in str(caught.value)


def test_what_the_solver_does_not_decide_in_time_is_refused() -> None:
    hard = rule("r", "A1", "badge LIKE '%a_b%' AND NOT badge LIKE '%a%b%' AND age * age * age = 100000 + age")
    with refused("moderator.undecided"):
        VOCABULARY.check(hard, limits=ModeratorLimits(solver_time=100, solver_effort=100))


def test_what_has_passed_is_not_asked_again() -> None:
    VOCABULARY.check(
        rule("r", "A1", "role = 'cook'"), passed={(RuleFunction.S, "role = 'cook'"), (RuleFunction.P, "TRUE")}
    )
