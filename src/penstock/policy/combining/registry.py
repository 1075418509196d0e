"""Which combining algorithm an id means: one of the standard's, a decision tuple, or one of them by priorities.

What an algorithm combines are policies, rules, or decisions that others have made (`combined`). With priorities, those
count that have the highest of all that are applicable (paper 4, section 4.1.1.3):

    urn:penstock:priorities:2,1,1:urn:oasis:names:tc:xacml:3.0:policy-combining-algorithm:deny-overrides

gives the first policy the priority 2 and the others 1. It is part of the id, so that it stands wherever XACML names an
algorithm.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Generic, TypeVar

from penstock.errors import MalformedError
from penstock.policy.combining.algorithms import (
    POLICY_ALGORITHMS,
    RULE_ALGORITHMS,
    Child,
    CombiningAlgorithm,
    algorithm,
)
from penstock.policy.combining.tuples import PREFIX, tuple_algorithm
from penstock.policy.language.results import (
    PROCESSING_ERROR,
    DecisionStatus,
    PolicyOutcome,
    Response,
    Result,
    XacmlDecision,
)

C = TypeVar("C")

PRIORITIES: Final = "urn:penstock:priorities:"
"""How the id of an algorithm by priorities begins: they follow, and after a colon the id of the algorithm."""

_NUMBERS: Final = re.compile(r"-?[0-9]{1,9}(?:,-?[0-9]{1,9})*", re.ASCII)


def rule_algorithm(name: str) -> CombiningAlgorithm:
    """Return the algorithm that combines rules.

    Raises `MalformedError` (`xacml.combining`, `combining.priorities`), and as tuples do.
    """
    if name.startswith(PRIORITIES):
        return _by_priority(name, rule_algorithm)
    return tuple_algorithm(name) if name.startswith(PREFIX) else algorithm(name, RULE_ALGORITHMS)


def policy_algorithm(name: str) -> CombiningAlgorithm:
    """Return the algorithm that combines policies. Raises as `rule_algorithm`."""
    if name.startswith(PRIORITIES):
        return _by_priority(name, policy_algorithm)
    return tuple_algorithm(name) if name.startswith(PREFIX) else algorithm(name, POLICY_ALGORITHMS)


def with_priorities(priorities: Sequence[int], name: str) -> str:
    """Return the id of an algorithm by priorities, one for each of what it combines, in their order.

    >>> with_priorities([2, 1], "urn:example:any")
    'urn:penstock:priorities:2,1:urn:example:any'
    """
    return f"{PRIORITIES}{','.join(map(str, priorities))}:{name}"


def split_priorities(name: str) -> tuple[tuple[int, ...], str]:
    """Return the priorities that an id says, none where it says none, and the id of the algorithm.

    Raises `MalformedError` (`combining.priorities`).
    """
    if not name.startswith(PRIORITIES):
        return (), name
    numbers, sign, inner = name.removeprefix(PRIORITIES).partition(":")
    if not sign or not _NUMBERS.fullmatch(numbers) or inner.startswith(PRIORITIES):
        raise MalformedError(
            "combining.priorities",
            "an algorithm by priorities says them, and which algorithm",
            hint=f"write {PRIORITIES}2,1:urn:…",
        )
    return tuple(map(int, numbers.split(","))), inner


def combined(name: str, outcomes: Sequence[PolicyOutcome], priorities: Sequence[int] | None = None) -> PolicyOutcome:
    """Return what decisions that several have made come to, by an algorithm for policies. Raises as `policy_algorithm`.

    >>> said = [PolicyOutcome(XacmlDecision.PERMIT), PolicyOutcome(XacmlDecision.DENY)]
    >>> name = "urn:oasis:names:tc:xacml:3.0:policy-combining-algorithm:deny-overrides"
    >>> combined(name, said).decision.value, combined(name, said, [2, 1]).decision.value
    ('Deny', 'Permit')
    """
    combine = policy_algorithm(name if priorities is None else with_priorities(priorities, name))
    return combine([_Made(one) for one in outcomes], None)


def combined_responses(name: str, responses: Sequence[Response], priorities: Sequence[int] | None = None) -> Response:
    """Return what answers of several to one request come to, result by result, with what is to be done.

    Raises `MalformedError` (`combining.responses`) where they answer different numbers of requests, and as `combined`.
    """
    if len({len(one.results) for one in responses}) > 1:
        raise MalformedError("combining.responses", "the responses do not answer the same number of requests")
    return Response(
        [_result(name, those, priorities) for those in zip(*(one.results for one in responses), strict=True)]
    )


def _result(name: str, results: Sequence[Result], priorities: Sequence[int] | None) -> Result:
    said = [PolicyOutcome(one.decision, one.status, one.obligations, one.advice, one.policies) for one in results]
    found = combined(name, said, priorities)
    about = results[0].attributes
    return Result(found.decision, found.status, found.obligations, found.advice, about, found.applicable)


@dataclass(frozen=True, slots=True)
class _Made:
    """A decision that was made already."""

    outcome: PolicyOutcome

    def evaluate(self, _context: object, /) -> PolicyOutcome:
        return self.outcome

    def applies(self, _context: object, /) -> bool | PolicyOutcome:
        decision = self.outcome.decision
        return (
            self.outcome if decision is XacmlDecision.INDETERMINATE_DP else decision is not XacmlDecision.NOT_APPLICABLE
        )


@dataclass(frozen=True, slots=True)
class _Asked(Generic[C]):
    """A child that was asked already."""

    child: Child[C]
    outcome: PolicyOutcome

    def evaluate(self, _context: C, /) -> PolicyOutcome:
        return self.outcome

    def applies(self, context: C, /) -> bool | PolicyOutcome:
        return self.child.applies(context)


@lru_cache(maxsize=256)
def _by_priority(name: str, known: Callable[[str], CombiningAlgorithm]) -> CombiningAlgorithm:
    priorities, inner = split_priorities(name)
    algorithm = known(inner)

    def combine(children: Sequence[Child[C]], context: C) -> PolicyOutcome:
        if len(children) != len(priorities):
            message = f"{len(priorities)} priorities for {len(children)} children"
            return PolicyOutcome(XacmlDecision.INDETERMINATE_DP, DecisionStatus(PROCESSING_ERROR, message))
        asked: dict[int, _Asked[C]] = {}
        for level in sorted(set(priorities), reverse=True):
            places = [place for place, priority in enumerate(priorities) if priority == level]
            those = {place: _Asked(children[place], children[place].evaluate(context)) for place in places}
            if any(one.outcome.decision is not XacmlDecision.NOT_APPLICABLE for one in those.values()):
                return algorithm([*those.values()], context)
            asked |= those
        return algorithm([asked[place] for place in range(len(children))], context)

    return combine
