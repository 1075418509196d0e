"""Questions about all possible requests, each answered with a request that shows it.

They are answered for a fragment: attributes of strings, URIs, truth, integers, doubles, dates and times, without
issuers; equality, order, `is-in`, `one-and-only`, the size of a bag, `and`, `or`, `not`, `n-of`; targets, conditions,
variables, obligations; the combining algorithms of the standard. Requests have at most two values for each attribute,
or one where policies have many rules (`Analysis.values`): about others nothing is said.

Within the fragment nothing is approximated, errors included. What lies outside may be anything: what is answered
without it holds, and what depends on it is tried, and UNKNOWN where no request shows it, with what it depends on. What
the solver cannot settle within its limits is UNKNOWN too, never a guess. Each request is evaluated by the plain
evaluator before it is returned, and says what time it is where policies ask that.
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
# The part of a policy that matters where a rule applies, so that questions about one of many rules are small.
#
# Where an attribute has the value that a rule wants, a target that wants another does not match, whatever else is in
# it: what stands under it is not applicable and may be left out, as long as nothing counts it. An attribute that must
# be present, and is not, makes an error on both sides: what the rule wants of those tells nothing.


Needs: TypeAlias = Mapping[Key, frozenset[Value]]
"""Values of which attributes must have one, as long as they have one value."""


def needs(targets: Sequence[Target], *, present: bool = False) -> Needs:
    """Return the values of which attributes must have one, for all targets to match.

    With `present`, those without which no target can even fail: attributes that need not be there.
    """
    found: dict[Key, frozenset[Value]] = {}
    for target in targets:
        for attribute, values in necessary(target).items():
            if not (present and attribute.must_be_present):
                found[attribute.key] = found[attribute.key] & values if attribute.key in found else values
    return found


def apart(one: Needs, other: Needs) -> bool:
    """Say whether an attribute with one value cannot have what both need."""
    return any(not (values & other[key]) for key, values in one.items() if key in other)


class Slices:
    """Parts of policies; what their targets want is worked out once."""

    def __init__(self) -> None:
        #: by what targets are, not by what they say: each is kept beside, so that no other takes its place
        self._known: dict[int, tuple[Target, Needs]] = {}

    def _apart(self, wanted: Needs, target: Target) -> bool:
        found = self._known.get(id(target))
        if found is None:
            found = self._known[id(target)] = (target, needs((target,)))
        return apart(wanted, found[1])

    def near(self, root: Root, wanted: Needs) -> Root:
        """Return a policy without what is not applicable where attributes have what is wanted."""
        if not wanted:
            return root
        algorithm = standard(root.combining)
        # Children that are not applicable make no difference to the others.
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
# Questions about all possible requests, each answered with a request that shows it.


PERMIT, DENY = XacmlDecision.PERMIT.plain, XacmlDecision.DENY.plain
DECISIONS: Final = tuple(dict.fromkeys(decision.plain for decision in XacmlDecision))
#: requests with two values are looked at where there are so many rules at most
_MOST_RULES: Final = 40
_FIRST: Final = "first-applicable"


@dataclass(frozen=True, slots=True)
class AnalysisResult:
    """A verdict and, where one can exist, a request that shows it. It has no truth value: compare `verdict`."""

    verdict: AnalysisVerdict
    witness: Facts | None = None
    #: what an UNKNOWN depends on that is not understood, in words
    unknown: tuple[str, ...] = ()

    def __bool__(self) -> NoReturn:
        raise TypeError("an answer has no truth value; compare its verdict")


@dataclass(frozen=True, slots=True)
class DecisionChange:
    """Requests that are decided in another way than before: one of them, or that it is not known whether there is."""

    before: str
    after: str
    found: AnalysisResult


@dataclass(frozen=True, slots=True)
class PlacedRule:
    """A rule, where it stands: the ids of the policies around it, from the outermost, and its place in each."""

    rule: Rule
    within: tuple[str, ...]
    path: tuple[int, ...]
    targets: tuple[Target, ...]
    #: the rule with the targets around it, and nothing else
    alone: Root

    def __str__(self) -> str:
        return " / ".join((*self.within, self.rule.id))


@dataclass(frozen=True, slots=True)
class IdleRule:
    """A rule that does nothing: it never applies, or every decision is the same without it; YES, or UNKNOWN."""

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
    """Questions about some policies. What they refer to is found once, when they are given.

    Raises `MalformedError` (`xacml.fragment`) for policies that refer to what is not there.
    """

    def __init__(
        self,
        *roots: Root,
        sources: PolicySources | None = None,
        limits: SelectorLimits = SELECTOR_LIMITS,
        values: int = 2,
    ) -> None:
        known = NoSources() if sources is None else sources
        self.roots = tuple(_resolved(root, known, ()) for root in roots)
        #: how many values requests have at most for each attribute
        self.values = values if sum(1 for root in self.roots for _ in _placed(root)) <= _MOST_RULES else 1
        self._limits = limits
        self._searches: dict[int, Search] = {}
        self._slices = Slices()

    # --- two policies -------------------------------------------------------------------------------------------

    def implies(self) -> AnalysisResult:
        """Say whether the second permits all that the first permits; NO carries a request that only the first does."""
        return self._none(self.roots, frozenset((PERMIT, other) for other in DECISIONS if other != PERMIT))

    def equivalent(self) -> AnalysisResult:
        """Say whether both decide alike; NO carries a request that they decide differently."""
        return self._none(self.roots, _DIFFERENT)

    def disjoint(self) -> AnalysisResult:
        """Say whether nothing is permitted by both; NO carries a request that is."""
        return self._none(self.roots, frozenset({(PERMIT, PERMIT)}))

    def changes(self) -> Sequence[DecisionChange]:
        """Return each way in which decisions of the second policy differ from those of the first."""
        found = (
            DecisionChange(*way, self._exists(self.roots, frozenset({way}))) for way in product(DECISIONS, DECISIONS)
        )
        return [one for one in found if one.before != one.after and one.found.verdict is not AnalysisVerdict.NO]

    # --- rules of one -------------------------------------------------------------------------------------------

    def rules(self) -> Sequence[PlacedRule]:
        """Return all rules of the first policy, in their order."""
        return [*_placed(self.roots[0])]

    def idle_rules(self) -> Sequence[IdleRule]:
        """Return the rules of the first policy that do nothing; those that have obligations or advice do something."""
        found = (self._idle(rule) for rule in self.rules())
        return [one for one in found if one.verdict is not AnalysisVerdict.NO]

    def _idle(self, placed: PlacedRule) -> IdleRule:
        applies = frozenset({(XacmlDecision.of(placed.rule.effect).plain,)})
        never = self._none([placed.alone], applies)
        duties = placed.rule.duties
        if never.verdict is not AnalysisVerdict.NO or duties.obligations or duties.advice:
            return IdleRule(placed, never=True, verdict=never.verdict, unknown=never.unknown)
        # Where the rule is not applicable, it makes no difference: the rest is looked at where it may be.
        wanted = needs(placed.targets, present=True)
        roots = (self.roots[0], _without(self.roots[0], placed.path))
        both = [self._slices.near(one, wanted) for one in roots]
        if never.witness is not None and self._decided(both, never.witness) in _DIFFERENT:
            return IdleRule(placed, never=False, verdict=AnalysisVerdict.NO)
        same = self._none(both, _DIFFERENT, roots)
        return IdleRule(placed, never=False, verdict=same.verdict, unknown=same.unknown)

    def conflicts(self, *, conditions: bool = True) -> Sequence[RuleContradiction]:
        """Return the pairs of rules of the first policy that overlap and say the opposite, conditions or targets only.

        A rule applies where its target and those around it match and its condition holds, whatever other rules say.
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
        """Look for a request with one value for each attribute, and then with more; from so many on that it may need.

        `whole` are the policies of which `roots` are what matters where attributes have one value.
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
        # z3 takes a third of a second to import, which a program that never asks it should not pay.
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


def _resolved(root: Root, sources: PolicySources, around: tuple[str, ...]) -> Root:
    """Return a policy with what it refers to in the place of its references."""
    if isinstance(root, Policy):
        return root
    around = (*around, versioned(root))
    return replace(root, members=tuple(_member(one, sources, around) for one in root.members))


def _member(member: Policy | PolicySet | PolicyReference, sources: PolicySources, around: tuple[str, ...]) -> Root:
    if not isinstance(member, PolicyReference):
        return _resolved(member, sources, around)
    try:
        found = sources.policy(member)
        if member.to_set and versioned(found) in around:
            raise MalformedError("xacml.cycle", f"policy set `{member.id[:120]}` is within itself")
        return _resolved(found, sources, around)
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


def _placed(
    root: Root, within: tuple[str, ...] = (), path: tuple[int, ...] = (), around: tuple[PolicySet, ...] = ()
) -> Iterator[PlacedRule]:
    within = (*within, root.id)
    if isinstance(root, PolicySet):
        for place, member in enumerate(root.members):
            if not isinstance(member, PolicyReference):
                yield from _placed(member, within, (*path, place), (*around, root))
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
