"""Questions about all possible requests, each answered with a request as an example.

They are answered for a fragment: attributes of strings, URIs, booleans, integers, doubles, dates and times, without
issuers; equality, order, `is-in`, `at-least-one-member-of`, `one-and-only`, the size of a bag, `and`, `or`, `not`,
`n-of`; targets, conditions, variables, obligations; the combining algorithms of the standard. Requests have at most two
values for each attribute, or one if policies have many rules (`Analysis.values`); the answers say nothing about other
requests.

Within the fragment nothing is approximated, errors included. Parts outside the fragment can have any result: answers
that do not depend on them are certain; the others are tried, and are UNKNOWN if no request shows them, with the parts
that they depend on. Questions that the solver cannot decide within its limits are UNKNOWN too. Each request is
evaluated by the plain evaluator before it is returned, and contains the current time if policies use it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING, Final, NoReturn, TypeAlias

from penstock.errors import MalformedError, PenstockError
from penstock.policy.combining import (
    POLICY_COMBINING,
    RULE_COMBINING,
    split_priorities,
    standard,
    with_priorities,
)
from penstock.policy.engine.index import necessary
from penstock.policy.engine.lookup import NoSources, PolicySources
from penstock.policy.language.datatypes import Value
from penstock.policy.language.policies import (
    Duties,
    Policy,
    PolicyReference,
    PolicySet,
    Root,
    Rule,
    RuleEffect,
    Target,
    versioned,
)
from penstock.policy.language.requests import Facts, Key
from penstock.policy.language.results import XacmlDecision
from penstock.selector.analysis import AnalysisVerdict
from penstock.selector.limits import SELECTOR_LIMITS, SelectorLimits

if TYPE_CHECKING:
    from penstock.policy.analysis.solver import Search, Ways


# ----------------------------------------------------------------------------------------------------------------------
# Slices: the part of a policy that matters if a rule applies, so that questions about one of many rules are small.
#
# If an attribute has the value that a rule requires, a target that requires another value does not match, whatever else
# is in it: everything under it is not applicable and can be left out, unless the algorithm counts it. Attributes that
# must be present are not used for this, because a missing one is an error on both sides.


Needs: TypeAlias = Mapping[Key, frozenset[Value]]
"""The values of which attributes must have one, if they have exactly one value."""


def needs(targets: Sequence[Target], *, present: bool = False) -> Needs:
    """Return the values of which attributes must have one, for all targets to match.

    With `present`, only for attributes that need not be present: without them no target can fail.
    """
    found: dict[Key, frozenset[Value]] = {}
    for target in targets:
        for attribute, values in necessary(target).items():
            if not (present and attribute.must_be_present):
                found[attribute.key] = found[attribute.key] & values if attribute.key in found else values
    return found


def apart(one: Needs, other: Needs) -> bool:
    """Return whether some attribute with one value cannot satisfy both needs."""
    return any(not (values & other[key]) for key, values in one.items() if key in other)


class Slices:
    """Computes slices of policies; the needs of each target are computed once."""

    def __init__(self) -> None:
        #: by the targets' object ids; the targets are kept alive, so that no id is reused
        self._known: dict[int, tuple[Target, Needs]] = {}

    def _apart(self, wanted: Needs, target: Target) -> bool:
        found = self._known.get(id(target))
        if found is None:
            found = self._known[id(target)] = (target, needs((target,)))
        return apart(wanted, found[1])

    def near(self, root: Root, wanted: Needs) -> Root:
        """Return a policy without the parts that are not applicable if attributes satisfy the needs."""
        if not wanted:
            return root
        algorithm = standard(root.combining)
        # Children that are not applicable do not affect the others.
        leave_out = algorithm is not None and not algorithm.by_place
        if isinstance(root, Policy):
            rules = [one for one in root.rules if not leave_out or not self._apart(wanted, one.target)]
            return replace(root, rules=tuple(rules))
        members: list[Policy | PolicySet | PolicyReference] = []
        for member in root.members:
            if isinstance(member, PolicyReference):
                members.append(member)
            elif not leave_out or not self._apart(wanted, member.target):
                members.append(self.near(member, wanted))
        return replace(root, members=tuple(members))


# ----------------------------------------------------------------------------------------------------------------------
# Questions.


PERMIT, DENY = XacmlDecision.PERMIT.plain, XacmlDecision.DENY.plain
DECISIONS: Final = tuple(dict.fromkeys(decision.plain for decision in XacmlDecision))
#: requests with two values for an attribute are considered up to so many rules
_MOST_RULES: Final = 40
_FIRST: Final = "first-applicable"


@dataclass(frozen=True, slots=True)
class AnalysisResult:
    """A verdict and, if one can exist, a request as an example. It has no truth value: compare `verdict`."""

    verdict: AnalysisVerdict
    witness: Facts | None = None
    #: the parts outside the fragment on which an UNKNOWN depends, in words
    unknown: tuple[str, ...] = ()

    def __bool__(self) -> NoReturn:
        raise TypeError("an answer has no truth value; compare its verdict")


@dataclass(frozen=True, slots=True)
class DecisionChange:
    """Requests that are decided differently than before: an example, or that it is not known whether there is one."""

    before: str
    after: str
    found: AnalysisResult


@dataclass(frozen=True, slots=True)
class PlacedRule:
    """A rule and its place: the ids of the enclosing policies, outermost first, and its position in each."""

    rule: Rule
    within: tuple[str, ...]
    path: tuple[int, ...]
    targets: tuple[Target, ...]
    #: the rule with the targets of its enclosing policies, and nothing else
    alone: Root

    def __str__(self) -> str:
        return " / ".join((*self.within, self.rule.id))


@dataclass(frozen=True, slots=True)
class IdleRule:
    """A rule without effect: it never applies, or every decision is the same without it; YES, or UNKNOWN."""

    rule: PlacedRule
    #: whether it never applies
    never: bool
    verdict: AnalysisVerdict
    #: what an UNKNOWN depends on that is not understood, in words
    unknown: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RuleContradiction:
    """A rule that permits and one that denies, and a request to which both apply."""

    permit: PlacedRule
    deny: PlacedRule
    found: AnalysisResult


class Analysis:
    """Questions about some policies. References are resolved once, in the constructor.

    Raises `MalformedError` (`xacml.fragment`) for dangling references.
    """

    def __init__(
        self,
        *roots: Root,
        sources: PolicySources | None = None,
        limits: SelectorLimits = SELECTOR_LIMITS,
        values: int = 2,
    ) -> None:
        known = NoSources() if sources is None else sources
        self.roots = tuple(resolved(root, known) for root in roots)
        #: the most values for each attribute in a request
        self.values = values if sum(1 for root in self.roots for _ in placed_rules(root)) <= _MOST_RULES else 1
        self._limits = limits
        self._searches: dict[int, Search] = {}
        self._slices = Slices()

    # --- several policies ---------------------------------------------------------------------------------------

    def implies(self) -> AnalysisResult:
        """Does the second policy permit all that the first permits? NO has a request that only the first permits."""
        return self._none(self.roots, frozenset((PERMIT, other) for other in DECISIONS if other != PERMIT))

    def equivalent(self) -> AnalysisResult:
        """Do both policies decide alike? NO has a request that they decide differently."""
        return self._none(self.roots, _DIFFERENT)

    def disjoint(self) -> AnalysisResult:
        """Is nothing permitted by both policies? NO has a request that both permit."""
        return self._none(self.roots, frozenset({(PERMIT, PERMIT)}))

    def example(self, *wanted: Sequence[str]) -> AnalysisResult:
        """Is there a request that all policies decide in one of these ways, a decision for each? YES has one."""
        return self._exists(self.roots, frozenset(map(tuple, wanted)))

    def changes(self) -> Sequence[DecisionChange]:
        """Return each way in which decisions of the second policy differ from those of the first."""
        found = (
            DecisionChange(*way, self._exists(self.roots, frozenset({way}))) for way in product(DECISIONS, DECISIONS)
        )
        return [one for one in found if one.before != one.after and one.found.verdict is not AnalysisVerdict.NO]

    # --- rules of one -------------------------------------------------------------------------------------------

    def rules(self) -> Sequence[PlacedRule]:
        """Return all rules of the first policy, in order."""
        return [*placed_rules(self.roots[0])]

    def idle_rules(self) -> Sequence[IdleRule]:
        """Return the rules of the first policy without effect; rules with obligations or advice have one."""
        found = (self._idle(rule) for rule in self.rules())
        return [one for one in found if one.verdict is not AnalysisVerdict.NO]

    def _idle(self, placed: PlacedRule) -> IdleRule:
        applies = frozenset({(XacmlDecision.of(placed.rule.effect).plain,)})
        never = self._none([placed.alone], applies)
        duties = placed.rule.duties
        if never.verdict is not AnalysisVerdict.NO or duties.obligations or duties.advice:
            return IdleRule(placed, never=True, verdict=never.verdict, unknown=never.unknown)
        # A rule that does not apply makes no difference: only requests to which it may apply are searched.
        wanted = needs(placed.targets, present=True)
        roots = (self.roots[0], _without(self.roots[0], placed.path))
        both = [self._slices.near(one, wanted) for one in roots]
        if never.witness is not None and self._decided(both, never.witness) in _DIFFERENT:
            return IdleRule(placed, never=False, verdict=AnalysisVerdict.NO)
        same = self._none(both, _DIFFERENT, roots)
        return IdleRule(placed, never=False, verdict=same.verdict, unknown=same.unknown)

    def conflicts(self, *, conditions: bool = True) -> Sequence[RuleContradiction]:
        """Return the pairs of rules of the first policy that overlap and have opposite effects.

        A rule applies if its target and the enclosing ones match and its condition is true, whatever other rules
        decide.
        """
        rules = self.rules()
        alone = {one.path: one.alone if conditions else _unconditional(one.alone) for one in rules}
        wanted = {one.path: needs(one.targets) for one in rules}
        found = []
        for permit, deny in product(rules, rules):
            if permit.rule.effect is RuleEffect.DENY or deny.rule.effect is RuleEffect.PERMIT:
                continue
            least = 2 if apart(wanted[permit.path], wanted[deny.path]) else 1
            both = self._exists((alone[permit.path], alone[deny.path]), frozenset({(PERMIT, DENY)}), least=least)
            if both.verdict is not AnalysisVerdict.NO:
                found.append(RuleContradiction(permit, deny, both))
        return found

    # --- the solver ---------------------------------------------------------------------------------------------

    def _exists(
        self, roots: Sequence[Root], wanted: "Ways", whole: Sequence[Root] | None = None, *, least: int = 1
    ) -> AnalysisResult:
        """Search for a request with one value for each attribute, and then with more, starting from `least`.

        `roots` are slices of `whole` that are exact if attributes have one value.
        """
        found = AnalysisResult(AnalysisVerdict.NO)
        for values in range(least, self.values + 1):
            asked = roots if values == 1 or whole is None else whole
            more = self._with_values(values, asked, wanted)
            if more.verdict is AnalysisVerdict.YES:
                return more
            found = more if found.verdict is AnalysisVerdict.NO else found
        return found

    def _with_values(self, values: int, roots: Sequence[Root], wanted: "Ways") -> AnalysisResult:
        # Importing z3 takes a third of a second, which programs that do not use it should not spend.
        from penstock.policy.analysis import solver as analysis_solver  # noqa: PLC0415

        if values not in self._searches:
            self._searches[values] = analysis_solver.Search(self.roots, self._limits, values)
        search = self._searches[values]
        try:
            found = search.find(roots, wanted)
        except analysis_solver.UnsettledError:
            return AnalysisResult(AnalysisVerdict.UNKNOWN, unknown=search.unknown(roots))
        return AnalysisResult(AnalysisVerdict.NO if found is None else AnalysisVerdict.YES, found)

    def _decided(self, roots: Sequence[Root], facts: Facts) -> tuple[str, ...]:
        from penstock.policy.analysis import solver as analysis_solver  # noqa: PLC0415  # as above

        return analysis_solver.decisions(roots, facts)

    def _none(self, roots: Sequence[Root], wanted: "Ways", whole: Sequence[Root] | None = None) -> AnalysisResult:
        found = self._exists(roots, wanted, whole)
        opposite = {AnalysisVerdict.YES: AnalysisVerdict.NO, AnalysisVerdict.NO: AnalysisVerdict.YES}
        return AnalysisResult(opposite.get(found.verdict, found.verdict), found.witness, found.unknown)


_DIFFERENT: Final = frozenset(way for way in product(DECISIONS, DECISIONS) if way[0] != way[1])


def resolved(root: Root, sources: PolicySources, around: tuple[str, ...] = ()) -> Root:
    """Return a policy with its references resolved. Raises `MalformedError` (`xacml.fragment`) if one cannot be."""
    if isinstance(root, Policy):
        return root
    around = (*around, versioned(root))
    return replace(root, members=tuple(_member(one, sources, around) for one in root.members))


def _member(member: Policy | PolicySet | PolicyReference, sources: PolicySources, around: tuple[str, ...]) -> Root:
    if not isinstance(member, PolicyReference):
        return resolved(member, sources, around)
    try:
        found = sources.policy(member)
        if member.to_set and versioned(found) in around:
            raise MalformedError("xacml.cycle", f"policy set `{member.id[:120]}` is within itself")
        return resolved(found, sources, around)
    except PenstockError as error:
        if error.code == "xacml.fragment":
            raise
        within = around[-1].partition(" ")[2]
        raise MalformedError(
            "xacml.fragment",
            f"policy set `{within[:120]}`: {error.message}",
            hint="give the policies that it refers to",
            construct=f"reference to `{member.id[:120]}`",
            element=f"policy set `{within[:120]}`",
        ) from error


def placed_rules(
    root: Root, within: tuple[str, ...] = (), path: tuple[int, ...] = (), around: tuple[PolicySet, ...] = ()
) -> Iterator[PlacedRule]:
    """Yield the rules of a policy, in order, without those of referenced policies."""
    within = (*within, root.id)
    if isinstance(root, PolicySet):
        for place, member in enumerate(root.members):
            if not isinstance(member, PolicyReference):
                yield from placed_rules(member, within, (*path, place), (*around, root))
        return
    for place, rule in enumerate(root.rules):
        alone: Root = replace(root, rules=(rule,), combining=RULE_COMBINING[_FIRST], duties=Duties())
        for outer in reversed(around):
            alone = replace(outer, members=(alone,), combining=POLICY_COMBINING[_FIRST], duties=Duties())
        targets = (*(one.target for one in around), root.target, rule.target)
        yield PlacedRule(rule, within, (*path, place), targets, alone)


def _without(root: Root, path: tuple[int, ...]) -> Root:
    """Return a policy without the rule at a place."""
    place, *rest = path
    if isinstance(root, Policy):
        priorities, name = split_priorities(root.combining)
        left = priorities[:place] + priorities[place + 1 :]
        combining = with_priorities(left, name) if left else name
        return replace(root, rules=root.rules[:place] + root.rules[place + 1 :], combining=combining)
    member = root.members[place]
    changed = member if isinstance(member, PolicyReference) else _without(member, tuple(rest))
    return replace(root, members=(*root.members[:place], changed, *root.members[place + 1 :]))


def _unconditional(root: Root) -> Root:
    if isinstance(root, Policy):
        return replace(root, rules=tuple(replace(one, condition=None, duties=Duties()) for one in root.rules))
    members = (one if isinstance(one, PolicyReference) else _unconditional(one) for one in root.members)
    return replace(root, members=tuple(members))
