"""The text form and the XML of policies: both say what the policy says, and errors are reported with their place."""

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.policy.random_policies import Maker

from penstock.errors import LimitError, MalformedError, PenstockError
from penstock.policy.language.datatypes import (
    ADDRESS,
    BASE64,
    BOOLEAN,
    DATE,
    DATE_TIME,
    DAY_TIME,
    DIRECTORY,
    DOUBLE,
    HEX,
    HOST,
    INTEGER,
    MAILBOX,
    STRING,
    TIME,
    URI,
    XPATH,
    YEAR_MONTH,
    DataType,
    XPathExpression,
)
from penstock.policy.language.functions import FUNCTIONS, V1, V3
from penstock.policy.language.policies import (
    Apply,
    Assignment,
    ContentSelector,
    Designator,
    Duties,
    Duty,
    Expression,
    Policy,
    PolicyLiteral,
    PolicyReference,
    PolicySet,
    Root,
    Rule,
    RuleEffect,
    apply,
)
from penstock.policy.language.requests import RESOURCE, SUBJECT
from penstock.policy.limits import PolicyLimits
from penstock.policy.syntax.text.lint import lint_document
from penstock.policy.syntax.text.policies import read_document, read_text_policy
from penstock.policy.syntax.text.policy_writer import lay_out, write_text
from penstock.policy.syntax.text.tokens import PolicyTextError
from penstock.policy.syntax.xml.policies import read_policy, write_policy

FIRST = "urn:oasis:names:tc:xacml:1.0:rule-combining-algorithm:first-applicable"
CLINIC = """\
// who may see records
namespace clinic {
    attribute role { category = subject id = "urn:example:role" type = string }
    attribute age { category = subject id = "urn:example:age" type = integer required }

    policyset all version "2.1" {
        description "all of it"
        apply deny-unless-permit
        reference policy wards version "1.*"
        reference policyset other.house earliest "2.0"

        policy records {
            apply first-applicable
            variable adult = age >= 18

            rule doctors {
                permit
                target clause role == "doctor" or role == "nurse" and age < 67
                on permit { obligation log { "urn:example:who" = role } advice "be kind" }
            }

            rule rest {
                deny
                condition not adult or role != "guest" and age + 1 * 2 > 3 and "x" in [role, "y"]
            }
        }
    }
}
"""


def holds(root: Root) -> None:
    text = write_text(root)
    assert read_text_policy(text) == root
    assert lay_out(text) == text
    assert read_policy(write_policy(root)) == root


def of_condition(condition: Expression) -> Policy:
    return Policy("p", "1.0", FIRST, (Rule("r", RuleEffect.PERMIT, (), condition),))


@pytest.mark.parametrize("seed", range(30))
def test_random_policies_are_read_back(seed: int) -> None:
    holds(Maker(seed).policy_set())


def test_policies_of_the_suites_are_read_back(suites: Path) -> None:
    files = [*sorted((suites / "xacml-3.0").glob("III*Policy*.xml")), suites / "policies/KMarket.xml"]
    seen = 0
    for file in files:
        with suppress(MalformedError):
            root = read_policy(file.read_bytes())
            holds(root)
            seen += 1
    assert seen > 20


def test_what_the_text_means() -> None:
    document = read_document(CLINIC)
    (root,) = document.policies
    assert isinstance(root, PolicySet)
    assert (root.id, root.version, root.description) == ("clinic.all", "2.1", "all of it")
    wards, house, records = root.members
    assert wards == PolicyReference("clinic.wards", to_set=False, version="1.*")
    assert house == PolicyReference("other.house", to_set=True, earliest="2.0")
    assert isinstance(records, Policy)
    age = Designator(SUBJECT, "urn:example:age", INTEGER, None, must_be_present=True)
    only = apply(f"{V1}integer-one-and-only", [age])
    old = apply(f"{V1}integer-greater-than-or-equal", [only, PolicyLiteral(18, INTEGER)])
    assert records.variables == {"adult": old}
    doctors, rest = records.rules
    older = doctors.target[0][1][1]
    assert (older.function.name, older.value, older.attribute) == ("integer-greater-than", 67, age)
    assert [one.id for one in doctors.duties.advice] == ["be kind"]
    condition = rest.condition
    assert isinstance(condition, Apply)
    assert condition.function.name == "or"
    assert isinstance(condition.arguments[1], Apply)
    assert len(condition.arguments[1].arguments) == 3
    holds(root)


def test_operators_bind_as_they_should() -> None:
    def number(text: str) -> Expression:
        return read_text_policy(f"policy p {{ apply first-applicable variable v = {text} }}").variables["v"]  # type: ignore[union-attr]  # it is a policy

    assert number("1 + 2 + 3") == apply(f"{V1}integer-add", [PolicyLiteral(n, INTEGER) for n in (1, 2, 3)])
    assert number("1 - 2 - 3") == number("(1 - 2) - 3") != number("1 - (2 - 3)")
    assert number("1 + 2 * 3") == number("1 + (2 * 3)") != number("(1 + 2) * 3")
    assert number("(1 + 2) + 3") != number("1 + 2 + 3")
    assert number("not true and false") == number("(not true) and false") != number("not (true and false)")
    assert number("true or true and false") == number("true or (true and false)")
    assert number("1 - -5") == number("1-  -  5")
    for text in ("(1 + 2) + 3", "1 - (2 - 3)", "(1 - 2) * -3", "not (true and false)", "(true and true) and false"):
        holds(of_condition(apply(f"{V1}integer-equal", [number(text), PolicyLiteral(1, INTEGER)])) if "1" in text else
              of_condition(number(text)))  # fmt: skip


VALUES = {
    STRING: 'a "b" \\ \n \t é \u202e',
    DOUBLE: 1e300,
    INTEGER: -(10**30),
    HEX: b"\x01\xff",
    BASE64: b"\x01\xff",
    BOOLEAN: True,
    YEAR_MONTH: YEAR_MONTH.read("P1Y2M"),
    HOST: HOST.read("example.org:80"),
    TIME: TIME.read("08:00:00-03:00"),
    DATE: DATE.read("-12026-01-31Z"),
    DATE_TIME: DATE_TIME.read("2026-01-31T08:00:00.5Z"),
    DAY_TIME: DAY_TIME.read("-P3DT4H"),
    URI: "urn:x",
    MAILBOX: MAILBOX.read("A.b@Example.org"),
    DIRECTORY: DIRECTORY.read("CN=A B, O=C"),
    ADDRESS: ADDRESS.read("192.0.2.1/255.255.255.0:80-90"),
    XPATH: XPathExpression("//a:b", RESOURCE, (("a", "urn:a"),), "http://www.w3.org/TR/1999/REC-xpath-19991116"),
}


def test_values_of_all_types_are_read_back() -> None:
    told = [Assignment(one.name, PolicyLiteral(value, one)) for one, value in VALUES.items()]
    told.append(Assignment("b", PolicyLiteral(-0.5, DOUBLE), RESOURCE, "me"))
    duty = Duty("all", RuleEffect.DENY, tuple(told))
    holds(
        Policy(
            "urn:p q", "1.2.3", FIRST, (), (), {}, Duties((duty,), (Duty("urn:x", RuleEffect.PERMIT),)), "who", "why"
        )
    )


def test_every_function_has_a_way_to_be_written() -> None:
    for function in FUNCTIONS.values():
        arguments = [*function.takes]
        if function.repeated is not None:
            arguments += [function.takes[-1]] * max(function.repeated - 1, 0)
        given_: list[Expression] = [
            PolicyLiteral(VALUES[one], one) if isinstance(one, DataType) else Designator(SUBJECT, "x", one.of)
            for one in arguments
        ]
        if function.check is not None and function.takes[0] is STRING:
            given_[0] = PolicyLiteral("example.org", STRING)
        made = apply(function.id, given_)
        holds(Policy("p", "1.0", FIRST, (), (), {"v": made, "select": PolicyLiteral(True, BOOLEAN)}))


def test_paths_are_read_back() -> None:
    old = "http://www.w3.org/TR/1999/REC-xpath-19991116"
    found = ContentSelector(
        RESOURCE, "//a:b", STRING, must_be_present=True, context="c", prefixes=(("a", "urn:a"),), version=old
    )
    holds(of_condition(apply(f"{V1}string-is-in", [PolicyLiteral("x", STRING), found])))
    path = XPathExpression("//x", RESOURCE, (), old)
    count = apply(f"{V3}xpath-node-count", [PolicyLiteral(path, XPATH)])
    inside = of_condition(apply(f"{V1}integer-less-than", [count, PolicyLiteral(1, INTEGER)]))
    holds(PolicySet("s", "1.0", FIRST.replace("rule-", "policy-"), (inside,)))


@pytest.mark.parametrize(
    ("text", "code", "line", "column"),
    [
        ("policy p {\n  apply nonsense\n}", "xacml.combining", 2, 9),
        ("policy p {\n  apply first-applicable\n  rule r { permit condition 5 }\n}", "xacml.arguments", 3, 29),
        ("policy p { apply first-applicable\nrule r { permit condition nobody == 1 } }", "xacml.attribute", 2, 27),
        ("policy p { apply first-applicable rule r { } }", "xacml.syntax", 1, 40),
        ("policy p { }", "xacml.combining", 1, 8),
        ('policy p { description "x', "xacml.syntax", 1, 24),
        ("policy p { apply first-applicable variable v = v }", "xacml.attribute", 1, 48),
        ("policy p { apply first-applicable variable v = 1 == true }", "xacml.arguments", 1, 50),
        ("policy p { apply first-applicable variable v = f(1) }", "xacml.function", 1, 48),
        ('policy p { apply first-applicable variable v = "x":date }', "xacml.value", 1, 48),
        ("policy p { apply first-applicable variable v = 1 < 2 < 3 }", "xacml.syntax", 1, 54),
        ('policy p version "x" { apply first-applicable }', "xacml.version", 1, 8),
        ('attribute a { id = "x" }', "xacml.attribute", 1, 11),
        ("policy p { ?", "xacml.syntax", 1, 12),
        ("policy p {", "xacml.syntax", 1, 11),
    ],
)
def test_what_is_wrong_is_told_with_its_place(text: str, code: str, line: int, column: int) -> None:
    with pytest.raises(PolicyTextError) as caught:
        read_document(text)
    error = caught.value
    assert (error.code, error.fields["line"], error.fields["column"]) == (code, line, column)
    assert error.pointer().endswith(" " * (column - 1) + "^")


def test_what_is_nested_too_deep() -> None:
    for text in ("(" * 100 + "1", "not " * 100 + "true", "1" + " - 1" * 100, "[" * 100):
        with pytest.raises(LimitError):
            read_document(f"policy p {{ apply first-applicable variable v = {text} }}")
    with pytest.raises(LimitError):
        read_document("policyset s { " * 100)
    with pytest.raises(LimitError):
        read_document("policy p { }", limits=PolicyLimits(policy_bytes=5))


WORDS = [
    *"{}[]()=:,<+-", "==", "policy", "policyset", "p", "rule", "permit", "apply", "first-applicable", "target",
    "clause", "a", '"x"', "1", "1.5", "variable", "condition", "attribute", "category", "subject", "id", "type",
    "string", "not", "and", "in", "on", "obligation", "select", "xpath", "of", "function", "any-of",
    "string-equal", "\n", "// c\n",
]  # fmt: skip
BEGIN = 'attribute a { category = subject id = "a" type = string } policy p { apply first-applicable '


@given(st.text(max_size=40) | st.lists(st.sampled_from(WORDS), max_size=30).map(" ".join), st.booleans())
def test_any_text_is_read_or_refused(text: str, begun: bool) -> None:  # a flag that hypothesis draws
    text = f"{BEGIN}{text}" if begun else text
    with suppress(PenstockError):
        laid = lay_out(text)
        assert lay_out(laid) == laid
        document = read_document(text)
        assert read_document(laid).policies == document.policies
        for root in document.policies:
            assert read_text_policy(write_text(root)) == root


def test_comments_and_lines_stay() -> None:
    untidy = CLINIC.replace("    ", "\t").replace(" == ", "==").replace("\n\n", "\n\n\n\n").replace(" {", "{")
    assert untidy != CLINIC
    assert lay_out(untidy) == lay_out(CLINIC) == CLINIC


def test_what_is_hardly_meant() -> None:
    text = """
attribute used { category = action id = "u" type = string }
attribute idle { category = action id = "i" type = string }
policy p {
    apply first-applicable
    variable lost = true
    rule sometimes { deny condition used == "z" }
    rule a { permit target clause used == "x" }
    rule b { deny target clause used == "x" clause used == "y" condition used == "x" }
    rule b { deny condition true }
    rule c { permit }
}
"""
    found = [(one.code, one.name, one.line) for one in lint_document(read_document(text))]
    assert found == [
        ("unused-attribute", "idle", 3),
        ("duplicate-rule", "b", 10),
        ("unreachable-rule", "b", 10),
        ("unreachable-rule", "c", 11),
        ("unused-variable", "lost", 6),
    ]
    assert [one.code for one in lint_document(read_document(text.replace("first-applicable", "deny-overrides")))] == [
        "unused-attribute", "duplicate-rule", "unused-variable",
    ]  # fmt: skip


def test_the_example_of_the_reference() -> None:
    page = (Path(__file__).parents[4] / "docs/reference/policy-language.md").read_text()
    example = page.partition("```policy\n")[2].partition("```")[0]
    assert lay_out(example) == example
    document = read_document(example)
    assert [root.id for root in document.policies] == ["clinic.records"]
    assert [*lint_document(document)] == []
    holds(document.policies[0])
