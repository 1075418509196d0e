"""Which combining algorithm an id means: one of the standard's, a decision tuple, or one of them by priorities.

What an algorithm combines are policies, rules, or decisions that others have made (`combined`). With priorities, those
count that have the highest of all that are applicable (paper 4, section 4.1.1.3):

    urn:penstock:priorities:2,1,1:urn:oasis:names:tc:xacml:3.0:policy-combining-algorithm:deny-overrides

gives the first policy the priority 2 and the others 1. It is part of the id, so that it stands wherever XACML names an
algorithm.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Generic, TypeVar

from penstock.errors import MalformedError
from penstock.policy.combining import algorithms, tuples
from penstock.policy.combining.algorithms import IN_D, IN_DP, IN_P, NA, Child, CombiningAlgorithm, D, P
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

# ----------------------------------------------------------------------------------------------------------------------
# The algorithms of the standard (appendix C): one row for each, with all that is known of it.


@dataclass(frozen=True, slots=True)
class StandardAlgorithm:
    """A combining algorithm of the standard."""

    #: its short name; those that 3.0 has replaced say so
    name: str
    combine: CombiningAlgorithm
    #: when each decision comes, as a decision tuple
    elements: tuples.Elements
    ids: tuple[str, ...]
    #: after which decisions of a child no other is asked
    decisive: frozenset[XacmlDecision] = frozenset()
    #: the decision where nothing fails and no child says anything that counts; not known for the rare ones
    otherwise: XacmlDecision | None = None
    #: whether the places of children count, and those that are not applicable
    by_place: bool = False
    #: whether targets alone say which children apply
    by_target: bool = False

    @property
    def plain(self) -> bool:
        """Whether a single child decides alone, and nothing is applicable where no child is."""
        return self.otherwise is NA


_RULE, _POLICY = "rule-combining-algorithm", "policy-combining-algorithm"


def _ids(version: str, *names: str, kinds: Sequence[str] = (_RULE, _POLICY)) -> tuple[str, ...]:
    return tuple(f"urn:oasis:names:tc:xacml:{version}:{kind}:{name}" for kind in kinds for name in names)


def _before(kind: str, name: str) -> tuple[str, ...]:
    """Return the ids of an algorithm as it was before 3.0."""
    return (*_ids("1.0", name, kinds=[kind]), *_ids("1.1", f"ordered-{name}", kinds=[kind]))


STANDARD: Final = (
    StandardAlgorithm(
        "deny-overrides",
        algorithms.overrides(D),
        tuples.overrides_tuple("D", "P"),
        _ids("3.0", "deny-overrides", "ordered-deny-overrides"),
        frozenset({D}),
        NA,
    ),
    StandardAlgorithm(
        "permit-overrides",
        algorithms.overrides(P),
        tuples.overrides_tuple("P", "D"),
        _ids("3.0", "permit-overrides", "ordered-permit-overrides"),
        frozenset({P}),
        NA,
    ),
    StandardAlgorithm(
        "deny-unless-permit",
        algorithms.unless(P),
        tuples.unless_tuple("P", "D"),
        _ids("3.0", "deny-unless-permit"),
        frozenset({P}),
        D,
    ),
    StandardAlgorithm(
        "permit-unless-deny",
        algorithms.unless(D),
        tuples.unless_tuple("D", "P"),
        _ids("3.0", "permit-unless-deny"),
        frozenset({D}),
        P,
    ),
    StandardAlgorithm(
        "first-applicable",
        algorithms.first,
        tuples.FIRST_TUPLE,
        _ids("1.0", "first-applicable"),
        frozenset({P, D, IN_P, IN_D, IN_DP}),
        NA,
    ),
    StandardAlgorithm(
        "only-one-applicable",
        algorithms.only_one,
        tuples.ONLY_ONE_TUPLE,
        _ids("1.0", "only-one-applicable", kinds=[_POLICY]),
        by_target=True,
    ),
    StandardAlgorithm(
        "on-permit-apply-second",
        algorithms.on_permit_second,
        tuples.on_permit_second_tuple(),
        _ids("3.0", "on-permit-apply-second", kinds=[_POLICY]),
        by_place=True,
    ),
    StandardAlgorithm(
        "deny-overrides of rules before 3.0",
        algorithms.legacy_rules(D),
        tuples.legacy_rules_tuple("D", "P"),
        _before(_RULE, "deny-overrides"),
        frozenset({D}),
    ),
    StandardAlgorithm(
        "permit-overrides of rules before 3.0",
        algorithms.legacy_rules(P),
        tuples.legacy_rules_tuple("P", "D"),
        _before(_RULE, "permit-overrides"),
        frozenset({P}),
    ),
    StandardAlgorithm(
        "deny-overrides of policies before 3.0",
        algorithms.legacy_deny_policies,
        tuples.LEGACY_DENY_TUPLE,
        _before(_POLICY, "deny-overrides"),
        frozenset({D, IN_P, IN_D, IN_DP}),
    ),
    StandardAlgorithm(
        "permit-overrides of policies before 3.0",
        algorithms.legacy_permit_policies,
        tuples.LEGACY_PERMIT_TUPLE,
        _before(_POLICY, "permit-overrides"),
        frozenset({P}),
    ),
)
"""The algorithms of the standard; of those with one name the newest comes first."""

_BY_ID: Final = {name: one for one in STANDARD for name in one.ids}
RULE_ALGORITHMS: Final[Mapping[str, StandardAlgorithm]] = {id_: one for id_, one in _BY_ID.items() if _RULE in id_}
POLICY_ALGORITHMS: Final[Mapping[str, StandardAlgorithm]] = {id_: one for id_, one in _BY_ID.items() if _POLICY in id_}


def _short(ids: Mapping[str, object]) -> dict[str, str]:
    found: dict[str, str] = {}
    for one in ids:
        found.setdefault(one.rpartition(":")[2], one)
    return found


RULE_COMBINING: Final[Mapping[str, str]] = _short(RULE_ALGORITHMS)
"""Ids of algorithms for rules by their short names: the newest of one name."""
POLICY_COMBINING: Final[Mapping[str, str]] = _short(POLICY_ALGORITHMS)
"""Ids of algorithms for policies by their short names."""


def standard(name: str) -> StandardAlgorithm | None:
    """Return the algorithm of the standard that has an id, for rules or for policies."""
    return RULE_ALGORITHMS.get(name) or POLICY_ALGORITHMS.get(name)


# ----------------------------------------------------------------------------------------------------------------------
# Ids that say more: decision tuples, and priorities.


PRIORITIES: Final = "urn:penstock:priorities:"
"""How the id of an algorithm by priorities begins: they follow, and after a colon the id of the algorithm."""

_NUMBERS: Final = re.compile(r"-?[0-9]{1,9}(?:,-?[0-9]{1,9})*", re.ASCII)


def rule_algorithm(name: str) -> CombiningAlgorithm:
    """Return the algorithm that combines rules.

    Raises `MalformedError` (`xacml.combining`, `combining.priorities`), and as tuples do.
    """
    return _algorithm(name, RULE_ALGORITHMS, rule_algorithm)


def policy_algorithm(name: str) -> CombiningAlgorithm:
    """Return the algorithm that combines policies. Raises as `rule_algorithm`."""
    return _algorithm(name, POLICY_ALGORITHMS, policy_algorithm)


def _algorithm(
    name: str, known: Mapping[str, StandardAlgorithm], inner: Callable[[str], CombiningAlgorithm]
) -> CombiningAlgorithm:
    if name.startswith(PRIORITIES):
        return _by_priority(name, inner)
    if name.startswith(PREFIX):
        return tuple_algorithm(name)
    found = known.get(name)
    if found is None:
        raise MalformedError("xacml.combining", f"`{name[:120]}` is not a combining algorithm for this")
    return found.combine


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
    """Return what answers of several to one request come to, result by result, with obligations and advice.

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
    combine_those = known(inner)

    def combine(children: Sequence[Child[C]], context: C) -> PolicyOutcome:
        if len(children) != len(priorities):
            message = f"{len(priorities)} priorities for {len(children)} children"
            return PolicyOutcome(XacmlDecision.INDETERMINATE_DP, DecisionStatus(PROCESSING_ERROR, message))
        asked: dict[int, _Asked[C]] = {}
        for level in sorted(set(priorities), reverse=True):
            places = [place for place, priority in enumerate(priorities) if priority == level]
            those = {place: _Asked(children[place], children[place].evaluate(context)) for place in places}
            if any(one.outcome.decision is not XacmlDecision.NOT_APPLICABLE for one in those.values()):
                return combine_those([*those.values()], context)
            asked |= those
        return combine_those([asked[place] for place in range(len(children))], context)

    return combine
