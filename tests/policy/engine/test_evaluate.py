import pytest
from tests.policy.kit import AGE, NOW, apply, designator, policy, request, rule, value

from penstock.errors import EvaluationError
from penstock.policy.engine.decide import decide, plainly
from penstock.policy.engine.lookup import NoSources
from penstock.policy.language.policies import Root
from penstock.policy.language.requests import Request
from penstock.policy.language.results import MISSING_ATTRIBUTE, PROCESSING_ERROR, Result, XacmlDecision

ONE = apply("integer-one-and-only", designator())
ADULT = apply("integer-greater-than", ONE, value("17", "integer"))
BROKEN = apply("integer-greater-than", apply("integer-divide", value("1", "integer"), value("0", "integer")), ONE)
TRUE = value("true", "boolean")


def ask(root: Root, asked: Request) -> Result:
    (result,) = decide(plainly(root), asked, NOW).results
    return result


def test_a_condition_decides() -> None:
    root = policy(rule(ADULT))
    assert ask(root, request(18)).decision is XacmlDecision.PERMIT
    assert ask(root, request(17)).decision is XacmlDecision.NOT_APPLICABLE


def test_what_is_not_one_is_an_error() -> None:
    root = policy(rule(ADULT, "Deny"))
    for ages in ((), (1, 2)):
        result = ask(root, request(*ages))
        assert result.decision is XacmlDecision.INDETERMINATE_D
        assert result.status.code == PROCESSING_ERROR


def test_what_is_missing_is_named() -> None:
    wanted = apply("integer-greater-than", apply("integer-one-and-only", designator(must=True)), value("1", "integer"))
    result = ask(policy(rule(wanted)), request())
    assert result.status.code == MISSING_ATTRIBUTE
    assert [one.id for one in result.status.missing] == [AGE]


@pytest.mark.parametrize(
    ("condition", "decision"),
    [
        (apply("or", TRUE, BROKEN), XacmlDecision.PERMIT),
        (apply("or", BROKEN, TRUE), XacmlDecision.INDETERMINATE_P),
        (apply("and", apply("not", TRUE), BROKEN), XacmlDecision.NOT_APPLICABLE),
        (apply("and", TRUE, BROKEN), XacmlDecision.INDETERMINATE_P),
        (apply("or"), XacmlDecision.NOT_APPLICABLE),
        (apply("and"), XacmlDecision.PERMIT),
        (apply("n-of", value("1", "integer"), TRUE, BROKEN), XacmlDecision.PERMIT),
        (apply("n-of", value("0", "integer"), BROKEN), XacmlDecision.PERMIT),
        (apply("n-of", value("2", "integer"), TRUE), XacmlDecision.INDETERMINATE_P),
        (apply("n-of", value("2", "integer"), apply("not", TRUE), TRUE), XacmlDecision.NOT_APPLICABLE),
    ],
)
def test_no_more_is_looked_at_than_need_be(condition: str, decision: XacmlDecision) -> None:
    assert ask(policy(rule(condition)), request(5)).decision is decision


def test_targets() -> None:
    def target(name: str) -> str:
        match = f'<Match MatchId="urn:oasis:names:tc:xacml:1.0:function:string-equal">{value(name)}{subject}</Match>'
        return f"<Target><AnyOf><AllOf>{match}</AllOf></AnyOf></Target>"

    subject = designator("urn:oasis:names:tc:xacml:1.0:subject:subject-id", "string", must=True)
    root = policy(rule(target=target("ann")), rule(effect="Deny", name="other"))
    assert ask(root, request()).decision is XacmlDecision.PERMIT
    assert ask(root, request(subject="bob")).decision is XacmlDecision.DENY


def test_variables_are_read_in_any_order() -> None:
    define = '<VariableDefinition VariableId="a"><VariableReference VariableId="b"/></VariableDefinition>'
    again = f'<VariableDefinition VariableId="b">{ADULT}</VariableDefinition>'
    root = policy(define, again, rule('<VariableReference VariableId="a"/>'))
    assert ask(root, request(18)).decision is XacmlDecision.PERMIT


def test_functions_of_functions() -> None:
    function = '<Function FunctionId="urn:oasis:names:tc:xacml:1.0:function:integer-greater-than"/>'

    def asked(name: str, *ages: int) -> XacmlDecision:
        condition = apply(
            f"urn:oasis:names:tc:xacml:3.0:function:{name}", function, value("3", "integer"), designator()
        )
        return ask(policy(rule(condition)), request(*ages)).decision

    assert asked("any-of", 5, 2) is XacmlDecision.PERMIT
    assert asked("any-of", 5, 6) is XacmlDecision.NOT_APPLICABLE
    assert asked("all-of", 1, 2) is XacmlDecision.PERMIT
    assert asked("all-of", 1, 5) is XacmlDecision.NOT_APPLICABLE
    assert asked("any-of-any", 5, 2) is XacmlDecision.PERMIT
    assert asked("all-of") is XacmlDecision.PERMIT
    assert asked("any-of") is XacmlDecision.NOT_APPLICABLE


def test_obligations_go_with_the_effect_and_spoil_it_where_they_fail() -> None:
    def duty(inside: str, on: str = "Permit") -> str:
        given = f'<AttributeAssignmentExpression AttributeId="said">{inside}</AttributeAssignmentExpression>'
        expression = f'<ObligationExpression ObligationId="o" FulfillOn="{on}">{given}</ObligationExpression>'
        return f"<ObligationExpressions>{expression}</ObligationExpressions>"

    (told,) = ask(policy(rule(more=duty(designator()))), request(4, 5)).obligations
    assert [one.value for one in told.assigned] == [4, 5]
    assert ask(policy(rule(more=duty(designator(), "Deny"))), request(4)).obligations == ()
    assert ask(policy(rule(more=duty(ONE))), request()).decision is XacmlDecision.INDETERMINATE_P
    assert ask(policy(rule(), duty(ONE)), request()).decision is XacmlDecision.INDETERMINATE_P


def test_what_a_source_gives_is_as_good_and_asked_once() -> None:
    asked = []

    class Register(NoSources):
        def attribute(self, wanted: object, _request: Request, /) -> tuple[int, ...]:
            asked.append(wanted)
            return (40,)

    root = policy(rule(apply("and", ADULT, ADULT)))
    (result,) = decide(plainly(root), request(), NOW, Register()).results
    assert result.decision is XacmlDecision.PERMIT
    assert len(asked) == 1


def test_a_source_that_fails_permits_nothing() -> None:
    class Register(NoSources):
        def attribute(self, _wanted: object, _request: Request, /) -> tuple[int, ...]:
            raise EvaluationError("xacml.processing", "out of reach")

    (result,) = decide(plainly(policy(rule(ADULT))), request(), NOW, Register()).results
    assert result.decision is XacmlDecision.INDETERMINATE_P
