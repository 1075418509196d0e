"""One builder behind the three forms: what is wrong is refused with the same code in each, and with its place."""

import json
from collections.abc import Callable

import pytest
from tests.policy.kit import FIRST, apply, policy_text, rule, value

from penstock.errors import LimitError, MalformedError
from penstock.policy.language.policies import Policy, Root
from penstock.policy.limits import POLICY_DEPTH
from penstock.policy.syntax.forms import read_root
from penstock.policy.syntax.json.policies import read_json_policy
from penstock.policy.syntax.text.policies import read_text_policy
from penstock.policy.syntax.xml.elements import NAMESPACE
from penstock.policy.syntax.xml.policies import read_policy

NOT = "urn:oasis:names:tc:xacml:1.0:function:not"
TUPLE = "urn:penstock:decision-tuple:P=%23P%20%3E%20%3E"
SETS = "urn:oasis:names:tc:xacml:3.0:policy-combining-algorithm:deny-overrides"


def in_xml(condition: str, combining: str = FIRST, version: str = "1.0") -> bytes:
    found = policy_text(rule(condition), combining=combining.replace('"', "&quot;"))
    return found.replace(b'Version="1.0"', f'Version="{version}"'.encode())


def in_json(condition: object, combining: str = FIRST, version: str = "1.0") -> bytes:
    rules = [{"rule": {"id": "r", "effect": "Permit", "condition": condition}}]
    return json.dumps(
        {"policy": {"id": "p", "version": version, "combinerId": combining, "combinerArgs": rules}}
    ).encode()


def in_text(condition: str, combining: str = FIRST, version: str = "1.0") -> bytes:
    named = json.dumps(combining)
    return f'policy p version "{version}" {{ apply {named} rule r {{ permit condition {condition} }} }}'.encode()


INTEGER = "http://www.w3.org/2001/XMLSchema#integer"
TRUE = (value("true", "boolean"), {"const": {"dataType": "boolean", "value": "true"}}, "true")


@pytest.mark.parametrize(
    ("conditions", "more", "code"),
    [
        ((value("x"), {"const": "x"}, '"x"'), {}, "xacml.arguments"),
        ((value("x", "integer"), {"const": {"dataType": INTEGER, "value": "x"}}, '"x":integer'), {}, "xacml.value"),
        (
            (apply("not", value("x")), {"funcCall": {"funcId": NOT, "argExprs": [{"const": "x"}]}}, 'not "x"'),
            {},
            "xacml.arguments",
        ),
        ((apply("nil"), {"funcCall": {"funcId": "nil", "argExprs": []}}, "nil()"), {}, "xacml.function"),
        (('<VariableReference VariableId="v"/>', {"varRef": "v"}, 'variable("v")'), {}, "xacml.variable"),
        (TRUE, {"combining": "urn:none"}, "xacml.combining"),
        (TRUE, {"combining": "urn:penstock:priorities:x:" + FIRST}, "combining.priorities"),
        (TRUE, {"version": "one"}, "xacml.version"),
    ],
)
def test_each_form_is_refused_with_the_same_code_and_its_place(
    conditions: tuple[str, object, str], more: dict[str, str], code: str
) -> None:
    xml, as_json, text = conditions
    for data, field in (
        (in_xml(xml, **more), "line"),
        (in_json(as_json, **more), "path"),
        (in_text(text, **more), "column"),
    ):
        with pytest.raises(MalformedError) as caught:
            read_root(data)
        assert (caught.value.code, field in caught.value.fields) == (code, True), data


def test_a_json_error_says_the_path() -> None:
    with pytest.raises(MalformedError) as caught:
        read_json_policy(
            in_json({"funcCall": {"funcId": NOT, "argExprs": [{"const": {"dataType": "x", "value": ""}}]}})
        )
    path = "policy.combinerArgs[0].rule.condition.funcCall.argExprs[0].const.dataType"
    assert caught.value.fields["path"] == path
    assert caught.value.message.startswith(f"`{path}`: ")


@pytest.mark.parametrize("data", [in_xml(TRUE[0], TUPLE), in_json(TRUE[1], TUPLE), in_text("true", TUPLE)])
def test_a_mistake_within_a_decision_tuple_is_told_with_its_place(data: bytes) -> None:
    # It is an error of a selector, which has a place of its own within the selector.
    with pytest.raises(MalformedError) as caught:
        read_root(data)
    assert caught.value.code == "selector.syntax"
    assert {"line", "path"} & caught.value.fields.keys()


def test_of_many_operators_the_wrong_one_is_told() -> None:
    ands = " and ".join(["true"] * 5_000)
    assert isinstance(read_root(in_text(ands)), Policy)
    with pytest.raises(MalformedError) as caught:
        read_root(in_text('true\nand true\nand "x"\nand true'))
    assert (caught.value.code, caught.value.fields["line"]) == ("xacml.arguments", 3)


def chain_in_xml(count: int, *, forward: bool) -> bytes:
    inside = [value("true", "boolean"), *(f'<VariableReference VariableId="v{one}"/>' for one in range(count - 1))]
    listed = [f'<VariableDefinition VariableId="v{at}">{one}</VariableDefinition>' for at, one in enumerate(inside)]
    return policy_text(*(listed[::-1] if forward else listed), rule(f'<VariableReference VariableId="v{count - 1}"/>'))


def chain_in_json(count: int) -> bytes:
    listed = [{"id": "v0", **TRUE[1]}, *({"id": f"v{at}", "varRef": f"v{at - 1}"} for at in range(1, count))]
    found = json.loads(in_json({"varRef": f"v{count - 1}"}))
    found["policy"]["vars"] = listed
    return json.dumps(found).encode()


def chain_in_text(count: int) -> bytes:
    listed = ["variable v0 = true", *(f"variable v{at} = not v{at - 1}" for at in range(1, count))]
    return in_text(f"v{count - 1}").replace(b" rule", f" {' '.join(listed)} rule".encode(), 1)


@pytest.mark.parametrize(
    "chain",
    [lambda n: chain_in_xml(n, forward=False), lambda n: chain_in_xml(n, forward=True), chain_in_json, chain_in_text],
)
def test_variables_of_variables_count_as_depth(chain: Callable[[int], bytes]) -> None:
    few = POLICY_DEPTH // 2
    found = read_root(chain(few))
    assert isinstance(found, Policy)
    assert len(found.variables) == few
    for many in (POLICY_DEPTH + 1, 3_000):
        with pytest.raises(LimitError) as caught:
            read_root(chain(many))
        assert caught.value.code == "xacml.limit"


def test_a_policy_set_does_not_see_the_variables_of_its_policies() -> None:
    inner = policy_text(f'<VariableDefinition VariableId="v">{value("x")}</VariableDefinition>', rule()).decode()
    duty = (
        '<ObligationExpressions><ObligationExpression ObligationId="o" FulfillOn="Permit">'
        '<AttributeAssignmentExpression AttributeId="a"><VariableReference VariableId="v"/>'
        "</AttributeAssignmentExpression></ObligationExpression></ObligationExpressions>"
    )
    around = f'<PolicySet xmlns="{NAMESPACE}" PolicySetId="s" Version="1.0" PolicyCombiningAlgId="{SETS}"><Target/>'
    with pytest.raises(MalformedError) as caught:
        read_policy(f"{around}{inner}{duty}</PolicySet>".encode())
    assert caught.value.code == "xacml.variable"


@pytest.mark.parametrize(
    ("read", "text"),
    [
        (
            read_text_policy,
            'policy p { apply first-applicable rule r { permit condition variable("v") } variable v = true }',
        ),
        (read_json_policy, chain_in_json(3).replace(b'"varRef": "v0"', b'"varRef": "v2"')),
    ],
)
def test_a_variable_is_defined_before_it_is_used_except_in_xml(read: Callable[[object], Root], text: object) -> None:
    with pytest.raises(MalformedError) as caught:
        read(text)
    assert caught.value.code == "xacml.variable"
