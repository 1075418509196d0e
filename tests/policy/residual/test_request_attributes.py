"""Names of selectors over requests mean one attribute each, and quick tests say what the selector language says."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.budget import examples

from penstock.errors import EvaluationError, MalformedError
from penstock.model.values import INTEGER_MAX, Scalar
from penstock.policy.language.datatypes import BOOLEAN, DATE, DOUBLE, INTEGER, STRING, TYPES, XPATH
from penstock.policy.language.requests import ACTION, ENVIRONMENT, RESOURCE, SUBJECT, SUBJECT_ID, Facts, key_of
from penstock.policy.residual.request_attributes import (
    Aspect,
    RequestTerm,
    bound_values,
    compile_request_set,
    request_term,
)
from penstock.selector import evaluate, parse

ROLE, LEVEL = key_of(SUBJECT, "role", STRING), key_of(ENVIRONMENT, "level", INTEGER)
IDS = st.sampled_from(["role", "id", "a b", 'has "x" y', "integer x", "properties.x", SUBJECT_ID]) | st.text(
    min_size=1, max_size=9
)
TERMS = st.builds(
    RequestTerm,
    st.builds(
        key_of,
        st.sampled_from([SUBJECT, RESOURCE, ACTION, ENVIRONMENT]),
        IDS.filter(lambda text: text.isprintable()),
        st.sampled_from([one for one in TYPES if one is not XPATH]),
    ),
    st.sampled_from(Aspect),
)


@settings(max_examples=examples(60))
@given(TERMS, st.text(st.characters(exclude_categories=["Cs"]), max_size=9))
def test_a_name_means_one_attribute(term: RequestTerm, text: str) -> None:
    if term.aspect is Aspect.HAS:
        term = RequestTerm(term.key, term.aspect, text)
    assert request_term(term.name) == term


@pytest.mark.parametrize(
    "name",
    [
        "role", "subject.role", "subject.properties.", "string subject.id", "has subject.id", 'has "x"subject.id',
        "has 1 subject.id", 'has  "x" subject.id', 'has "\\u0041" subject.id', "count", "xpathExpression subject.id",
        "time  subject.id", f"subject.properties.{SUBJECT_ID}",
    ],
)  # fmt: skip
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(MalformedError) as caught:
        request_term(name)
    assert caught.value.code == "policy.request-attribute"


def test_attributes_of_other_categories_and_types_have_no_name() -> None:
    for key in (key_of("urn:other", "x", STRING), key_of(SUBJECT, "x", XPATH), key_of(SUBJECT, "\ud800", STRING)):
        with pytest.raises(MalformedError):
            str(RequestTerm(key).name)


@pytest.mark.parametrize(
    ("name", "facts", "value"),
    [
        ("subject.properties.role", {ROLE: ("nurse",)}, "nurse"),
        ("subject.properties.role", {ROLE: ("nurse", "clerk")}, None),
        ("subject.properties.role", {}, None),
        ("integer context.level", {LEVEL: (3,)}, 3),
        ("integer context.level", {LEVEL: (INTEGER_MAX + 1,)}, None),
        ("boolean context.x", {key_of(ENVIRONMENT, "x", BOOLEAN): (True,)}, True),
        ("double context.x", {key_of(ENVIRONMENT, "x", DOUBLE): (1.5,)}, 1.5),
        ("date context.x", {key_of(ENVIRONMENT, "x", DATE): (DATE.read("2026-01-31"),)}, "2026-01-31"),
        ("count subject.properties.role", {ROLE: ("a", "a")}, 2),
        ("count subject.properties.role", {}, 0),
        ("list subject.properties.role", {ROLE: ("b", "a", "ä")}, '["b","a","ä"]'),
        ("list integer context.level", {LEVEL: (3,)}, '["3"]'),
        ('has "3" integer context.level', {LEVEL: (4, 3)}, True),
        ('has "a" subject.properties.role', {ROLE: ("b",)}, False),
        ('has "a" subject.properties.role', {}, False),
        ('has "a" subject.properties.role', {ROLE: ("a",) * 1_001}, None),
        ("list subject.properties.role", {ROLE: ("a",) * 1_001}, None),
    ],
)
def test_values(name: str, facts: Facts, value: Scalar) -> None:
    term = request_term(name)
    assert term.value(facts.get(term.key, ())) == value


ROLES = "subject.properties.role"
SELECTORS = [
    "TRUE",
    "FALSE",
    f"\"{ROLES}\" = 'a'",
    f'"has ""a"" {ROLES}"',
    f'NOT "has ""a"" {ROLES}"',
    f'"count {ROLES}" = 0',
    f'"count {ROLES}" = 1',
    '"integer context.level" > 1',
    f"""\"list {ROLES}\" = '["a","b"]'""",
    f'"{ROLES}" = \'a\' OR "integer context.level" = 2',
    '"double context.level" > 0.5',
    '"has ""1"" integer context.level"',
]
FACTS = st.fixed_dictionaries(
    {},
    optional={
        ROLE: st.lists(st.sampled_from("ab"), max_size=3).map(tuple) | st.just(("a",) * 1_001),
        LEVEL: st.lists(st.integers(0, 2), max_size=2).map(tuple),
        key_of(ENVIRONMENT, "level", DOUBLE): st.just((float("nan"),)) | st.just((1.0,)),
    },
)


@given(st.lists(st.sampled_from(SELECTORS), min_size=1, max_size=3), FACTS)
def test_a_set_has_the_requests_for_which_its_selector_is_true(texts: list[str], facts: Facts) -> None:
    selector = parse(" AND ".join(f"({text})" for text in texts))
    try:
        terms = {name: request_term(name) for name in selector.attributes}
        seen = {name: term.value(facts.get(term.key, ())) for name, term in terms.items()}
        expected = evaluate(selector, seen) is True
    except EvaluationError:
        expected = False
    assert compile_request_set(selector)(facts) is expected
    if expected:
        assert all(facts[key] == (value,) for key, value in bound_values(selector).items())


def test_a_selector_over_something_else_is_refused() -> None:
    with pytest.raises(MalformedError):
        compile_request_set(parse("price > 3"))
