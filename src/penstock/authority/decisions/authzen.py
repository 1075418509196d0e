"""Answers of AuthZEN 1.0: a decision, and the decisions of a batch. HTTP and fabrics carry the same."""

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from penstock.errors import LimitError, MalformedError
from penstock.policy.language.results import Obligation, PolicyOutcome, XacmlDecision
from penstock.policy.syntax.json.requests import Json

SEMANTICS: Final[Mapping[str, bool | None]] = {
    "execute_all": None,
    "deny_on_first_deny": False,
    "permit_on_first_permit": True,
}
"""By which decision each of them ends."""

Evaluation: TypeAlias = Callable[[Mapping[str, Json]], dict[str, Json]]
"""Decides one question. Raises `MalformedError` (`pdp.request`)."""
BatchItem: TypeAlias = Callable[[Json, Mapping[str, Json]], dict[str, Json]]
"""Decides one question of a batch, with the members that all have. It refuses a malformed one."""


def write_decision(outcome: PolicyOutcome) -> dict[str, Json]:
    """Return a decision: true for Permit alone. Its context has errors, obligations and advice."""
    decided: dict[str, Json] = {"decision": outcome.decision is XacmlDecision.PERMIT}
    context: dict[str, Json] = {}
    if outcome.decision.indeterminate:
        context["error"] = {"code": outcome.status.code, "message": outcome.status.message}
    for name, duties in (("obligations", outcome.obligations), ("advice", outcome.advice)):
        if duties:
            context[name] = [_write_duty(duty) for duty in duties]
    if context:
        decided["context"] = context
    return decided


def _write_duty(duty: Obligation) -> Json:
    assigned: list[Json] = [{"id": one.id, "value": one.of.write(one.value)} for one in duty.assigned]
    return {"id": duty.id, "attributes": assigned}


def refused(code: str, message: str) -> dict[str, Json]:
    """Return the answer to a question within others that cannot be decided."""
    return {"decision": False, "context": {"error": {"code": code, "message": message}}}


def evaluate_batch(
    found: Mapping[str, Json], evaluation: Evaluation, decide_item: BatchItem, most: int
) -> dict[str, Json]:
    """Decide the questions of a batch in order, up to the one that ends it; without any, the question that it is.

    Raises `MalformedError` (`pdp.request`) for what is wrong with all of them, `LimitError` (`pdp.limit`).
    """
    items = found.get("evaluations")
    ends_with = _semantic(found)
    if items is None or items == []:
        return evaluation(found)
    if not isinstance(items, list):
        raise MalformedError("pdp.request", "`evaluations` is not a list")
    if len(items) > most:
        raise LimitError("pdp.limit", f"more than {most} decisions were requested together")
    for name in ("subject", "action", "resource", "context"):
        if not isinstance(found.get(name, {}), dict):
            raise MalformedError("pdp.request", f"`{name}` is not an object")
    answers: list[Json] = []
    for item in items:
        answer = decide_item(item, found)
        answers.append(answer)
        if answer["decision"] is ends_with:
            break
    return {"evaluations": answers}


def _semantic(found: Mapping[str, Json]) -> bool | None:
    options = found.get("options", {})
    name = options.get("evaluations_semantic", "execute_all") if isinstance(options, dict) else None
    if not isinstance(name, str) or name not in SEMANTICS:
        raise MalformedError("pdp.request", f"`evaluations_semantic` must be one of {', '.join(SEMANTICS)}")
    return SEMANTICS[name]
