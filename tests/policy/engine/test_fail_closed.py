"""Whatever fails on the way to a decision, also what should never fail, ends in Indeterminate."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from tests.policy.kit import FIRST, NOW, apply, designator, policy_text, request, rule, value

from penstock.errors import EvaluationError
from penstock.policy.combining import RULE_ALGORITHMS
from penstock.policy.engine.compiler import CompiledPolicy
from penstock.policy.engine.decide import SCOPE, Evaluator, decide, plainly
from penstock.policy.engine.lookup import NoSources
from penstock.policy.language import functions
from penstock.policy.language.datatypes import STRING
from penstock.policy.language.policies import Designator, PolicyReference, Root
from penstock.policy.language.requests import RESOURCE, RESOURCE_ID, Attributes, Request, attribute
from penstock.policy.language.results import PROCESSING_ERROR, Result, XacmlDecision
from penstock.policy.syntax.xml.elements import NAMESPACE
from penstock.policy.syntax.xml.policies import read_policy

ERRORS: list[Exception] = [
    RuntimeError("secret"),
    EvaluationError("xacml.processing", "known"),
    RecursionError(),
    KeyError(),
]
EITHER: list[Callable[[Root], Evaluator]] = [plainly, lambda root: CompiledPolicy(root).evaluate]
LOOKED_UP = policy_text(
    rule(apply("integer-equal", apply("integer-one-and-only", designator("urn:x")), value("5", "integer")))
)
REFERRING = (
    f'<PolicySet xmlns="{NAMESPACE}" PolicySetId="s" Version="1.0" PolicyCombiningAlgId='
    '"urn:oasis:names:tc:xacml:1.0:policy-combining-algorithm:first-applicable"><Target/>'
    "<PolicyIdReference>p</PolicyIdReference></PolicySet>"
).encode()
PERMITTING = policy_text(rule())
BELOW = Request((Attributes(RESOURCE, (attribute(RESOURCE_ID, STRING, "r"), attribute(SCOPE, STRING, "Children"))),))


class Failing(NoSources):
    """Sources of which everything fails."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def policy(self, _reference: PolicyReference) -> Root:
        raise self._error

    def attribute(self, _wanted: Designator, _request: Request, /) -> Sequence[Any]:
        raise self._error

    def children(self, _resource: Any, /) -> Sequence[Any]:
        raise self._error


def one_result(
    policy: bytes, asked: Request, way: Callable[[Root], Evaluator], sources: NoSources | None = None
) -> Result:
    (result,) = decide(way(read_policy(policy)), asked, NOW, sources).results
    return result


@pytest.mark.parametrize("way", EITHER)
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize(("policy", "asked"), [(LOOKED_UP, request()), (REFERRING, request()), (PERMITTING, BELOW)])
def test_sources_that_fail(policy: bytes, asked: Request, error: Exception, way: Callable[[Root], Evaluator]) -> None:
    result = one_result(policy, asked, way, Failing(error))
    assert result.decision.indeterminate
    assert result.status.code == PROCESSING_ERROR
    assert "secret" not in result.status.message


@pytest.mark.parametrize("way", EITHER)
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_functions_that_fail(
    error: Exception, way: Callable[[Root], Evaluator], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"{functions.V1}string-normalize-space"
    failing = replace(functions.FUNCTIONS[name], call=raising(error))
    monkeypatch.setitem(table(functions.FUNCTIONS), name, failing)
    asked = apply("string-equal", apply(name, apply("string-one-and-only", designator("urn:s", "string"))), value("a"))
    who = replace(request().categories[0], attributes=(attribute("urn:s", STRING, "a"),))
    result = one_result(policy_text(rule(asked)), Request((who,)), way)
    assert result.decision.indeterminate
    assert result.status.code == PROCESSING_ERROR


@pytest.mark.parametrize("way", EITHER)
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_combining_that_fails(
    error: Exception, way: Callable[[Root], Evaluator], monkeypatch: pytest.MonkeyPatch
) -> None:
    failing = replace(RULE_ALGORITHMS[FIRST], combine=raising(error), otherwise=None)
    monkeypatch.setitem(table(RULE_ALGORITHMS), FIRST, failing)
    assert one_result(PERMITTING, request(), way).decision is XacmlDecision.INDETERMINATE_DP


def test_nothing_of_that_fails_by_itself() -> None:
    for way in EITHER:
        assert one_result(PERMITTING, request(), way).decision is XacmlDecision.PERMIT


def raising(error: Exception) -> Callable[..., Any]:
    def call(*_arguments: object) -> Any:
        raise error

    return call


def table(found: Mapping[str, Any]) -> dict[str, Any]:
    assert isinstance(found, dict)
    return found
