"""The smallest changes of a request after which a policy decides differently.

Each attribute that the policy uses has the request's values, or other ones: at most two, which replace the request's
values or are added to them. The solver searches for requests with another decision in which as few attributes as
possible are changed. Each request is evaluated by the engine before it is returned.

A change of a value is generalised: other values of the attribute with which the engine decides the same way are found,
and described as ranges. Within the fragment of `questions`, values between two values that a policy names are decided
alike. Attributes that are used outside the fragment are not generalised.

This module imports z3, as `solver` does.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Final

import z3

from penstock.errors import EvaluationError
from penstock.policy.analysis.formulas import Formula, some
from penstock.policy.analysis.solver import BITS, PolicyEncoder, Scale, known_type
from penstock.policy.engine.decide import Evaluator
from penstock.policy.engine.lookup import Context, is_clock
from penstock.policy.language.datatypes import BOOLEAN, INTEGER, STRING, URI, DataType, Value
from penstock.policy.language.policies import Designator, Root, designators
from penstock.policy.language.requests import Key, Request
from penstock.policy.language.results import XacmlDecision
from penstock.policy.syntax.text.tokens import quoted
from penstock.selector.analysis import AnalysisVerdict
from penstock.selector.limits import SelectorLimits

#: attributes that one counterfactual changes, and counterfactuals that are returned
MOST_CHANGED: Final = 4
MOST_FOUND: Final = 5
#: questions to the solver, and requests that are evaluated to generalise values
_CHECKS: Final = 32
_TRIED: Final = 1_000
#: values of an attribute in a request, and ranges or exceptions in a description
_LARGEST: Final = 64
_RANGES: Final = 4
#: other values that an attribute can get
_VALUES: Final = 2


# ----------------------------------------------------------------------------------------------------------------------
# Changes.


@dataclass(frozen=True, slots=True)
class ValueRange:
    """The values between two bounds, each included or not; None is an open bound. NaN is never between them."""

    low: Value | None = None
    high: Value | None = None
    with_low: bool = True
    with_high: bool = True

    def __contains__(self, value: Value) -> bool:
        if isinstance(value, float) and math.isnan(value):
            return False
        above = self.low is None or self.low < value or (self.with_low and self.low == value)
        return above and (self.high is None or value < self.high or (self.with_high and self.high == value))

    def text(self, name: str, of_type: DataType) -> str:
        """Return it as a condition on the attribute with this name."""
        low, high = (None if one is None else value_text(one, of_type) for one in (self.low, self.high))
        if low is not None and self.low == self.high:
            return f"{name} = {low}"
        if low is not None and high is not None and self.with_low and self.with_high:
            return f"{name} between {low} and {high}"
        bounds = [] if low is None else [f"{name} {'>=' if self.with_low else '>'} {low}"]
        bounds += [] if high is None else [f"{name} {'<=' if self.with_high else '<'} {high}"]
        return " and ".join(bounds) or f"{name} with any value"


@dataclass(frozen=True, slots=True)
class RequestChange:
    """Other values of an attribute in a request."""

    key: Key
    before: tuple[Value, ...]
    #: the new values; none to remove the attribute
    values: tuple[Value, ...]
    #: whether the new values are added to those before
    added: bool = False
    #: if there is one new value: where others with the same effect are, except for those in `excluded`
    ranges: tuple[ValueRange, ...] = ()
    excluded: tuple[Value, ...] = ()

    def suits(self, value: Value) -> bool:
        """Return whether a value has the same effect as the new one."""
        return value not in self.excluded and any(value in one for one in self.ranges)

    def text(self, name: str) -> str:
        """Return it as a condition on the attribute with this name."""
        of_type = self.key.of
        if not self.values:
            return f"no {name}"
        if self.added:
            return f"{_listed(self.values, of_type, 'and')} added to {name}"
        if self.excluded:
            return f"{name} other than {_listed(self.excluded, of_type, 'and')}"
        shown, more = self.ranges[:_RANGES], len(self.ranges) - _RANGES
        others = f" or {more} others" if more > 0 else ""
        if self.ranges and all(one.low is not None and one.low == one.high for one in self.ranges):
            return f"{name} = {_listed([one.low for one in shown], of_type, 'or')}{others}"
        if self.ranges:
            return " or ".join(one.text(name, of_type) for one in shown) + others
        return f"{name} = {_listed(self.values, of_type, 'and')}"


@dataclass(frozen=True, slots=True)
class Counterfactual:
    """Changes of a request, and the decision that they lead to."""

    changes: tuple[RequestChange, ...]
    decision: XacmlDecision

    def applied(self, request: Request) -> Request:
        """Return the changed request."""
        return changed_request(request, self.changes)


@dataclass(frozen=True, slots=True)
class CounterfactualSearch:
    """The result of a search: YES if there are counterfactuals, NO if there are none, otherwise UNKNOWN."""

    verdict: AnalysisVerdict
    found: tuple[Counterfactual, ...] = ()
    #: the number of attributes that could be changed together, None for all of the policy
    most: int | None = None
    #: whether all smallest changes were found, and no smaller ones exist
    certain: bool = True
    #: the parts outside the fragment on which the uncertainty depends, in words
    unknown: tuple[str, ...] = ()
    #: why the search was not completed
    reason: str = ""


def changed_request(request: Request, changes: Iterable[RequestChange]) -> Request:
    """Return a request with changed attributes."""
    for one in changes:
        request = request.with_values(one.key, one.values, added=one.added)
    return request


def value_text(value: Value, of_type: DataType) -> str:
    """Return a value for people: texts in quotes, others as XACML writes them."""
    return quoted(of_type.write(value)) if of_type in (STRING, URI) else of_type.write(value)


def _listed(values: Iterable[Value], of_type: DataType, word: str) -> str:
    texts = [value_text(value, of_type) for value in values]
    return f" {word} ".join([", ".join(texts[:-1]), texts[-1]] if len(texts) > 1 else texts)


# ----------------------------------------------------------------------------------------------------------------------
# The search.


class _NearEncoder(PolicyEncoder):
    """Formulas in which each attribute has the values of a request, unless its flag `changed` is set."""

    def __init__(self, root: Root, before: Mapping[Key, tuple[Value, ...]]) -> None:
        self.before = before
        self.changed: dict[Key, Formula] = {}
        #: whether the new values are added to those before
        self.added: dict[Key, Formula] = {}
        #: the new values of each attribute: whether each is present, and its position
        self.new: dict[Key, list[tuple[Formula, Formula]]] = {}
        largest = max(map(len, before.values()), default=0) + _VALUES
        # the request's values, and the possible sizes of bags
        given: dict[DataType, set[Value]] = {INTEGER: {*range(largest + 1)}}
        for key, values in before.items():
            given.setdefault(key.of, set()).update(values)
        super().__init__([root], is_clock, _VALUES, given=given, different=MOST_CHANGED)

    def _members(self, wanted: Designator) -> tuple[tuple[Formula, Formula], ...]:
        key, number, context = wanted.key, len(self.attributes), self.context
        scale, before, clock = self.scales[key.of], self.before[key], is_clock(wanted)
        changed = self.changed[key] = z3.Bool(f"changed {number}", context)
        added = self.added[key] = z3.Bool(f"added {number}", context)
        new = self.new[key] = [
            (z3.Bool(f"there {number} {one}", context), z3.BitVec(f"place {number} {one}", BITS, context))
            for one in range(1 if clock else _VALUES)
        ]
        self.constraints += [z3.ULT(place, len(scale.values)) for _, place in new]
        self.constraints.append(z3.Implies(added, z3.And(changed, new[0][0])))
        if clock or not before:
            self.constraints.append(z3.Not(added))
        if clock:
            # There is always one current time.
            self.constraints.append(new[0][0])
        else:
            (there, place), (second, other) = new
            self.constraints += [z3.Implies(second, there), z3.Implies(second, z3.ULT(place, other))]
        kept = z3.Or(z3.Not(changed), added)
        old = [(kept, z3.BitVecVal(scale.place(value), BITS, context)) for value in before]
        return (*old, *((z3.And(changed, there), place) for there, place in new))


class CounterfactualFinder:
    """Searches for the smallest changes of one request. `root` has no references, and `policy` evaluates it."""

    def __init__(self, root: Root, policy: Evaluator, context: Context, limits: SelectorLimits) -> None:
        self._policy = policy
        self._base = context
        self._limits = limits
        self._tried = 0
        self._before = {one.key: _bag(context, one) for one in designators(root) if _changeable(one)}
        self._too_large = any(len(values) > _LARGEST for values in self._before.values())
        if not self._too_large:
            self._encoder = _NearEncoder(root, self._before)
            self._says = self._encoder.root(root).says

    def find(self, wanted: frozenset[XacmlDecision]) -> CounterfactualSearch:
        """Return the smallest changes that lead to one of some decisions."""
        if self._too_large:
            reason = f"an attribute of the request has more than {_LARGEST} values"
            return CounterfactualSearch(AnalysisVerdict.UNKNOWN, certain=False, reason=reason)
        encoder, goal = self._encoder, some(self._says[one] for one in wanted)
        solver = z3.Solver(ctx=encoder.context)
        solver.set("timeout", self._limits.solver_time)
        solver.set("rlimit", self._limits.solver_effort)
        solver.add(*encoder.constraints, goal)
        flags = [*encoder.changed.values()]
        found: list[tuple[RequestChange, ...]] = []
        certain, gave_up, checks = True, False, 0
        for size, simple in product(range(1, min(MOST_CHANGED, len(flags)) + 1), _SIMPLICITY):
            if gave_up or (found and len(found[0]) < size) or len(found) >= MOST_FOUND:
                break
            learnt: list[Formula] = []
            solver.push()
            solver.add(z3.AtMost(*flags, size), *self._simple(*simple))
            while len(found) < MOST_FOUND:
                checks += 1
                verdict = z3.unknown if checks > _CHECKS else solver.check()
                if verdict != z3.sat:
                    gave_up = verdict == z3.unknown
                    break
                model = solver.model()
                changes = self._changes(model)
                if self._decides(changes) in wanted:
                    found.append(self._fewest(changes, wanted))
                    more = [z3.Not(z3.And([encoder.changed[one.key] for one in found[-1]]))]
                else:
                    certain = False
                    more = [*encoder.learnt(model, partial(self._context, changes))] or [self._other(model, changes)]
                learnt += more
                solver.add(*more)
            solver.pop()
            solver.add(*learnt)
        return self._result(found, wanted, certain=certain and not gave_up, gave_up=gave_up)

    def _result(
        self,
        found: Sequence[tuple[RequestChange, ...]],
        wanted: frozenset[XacmlDecision],
        *,
        certain: bool,
        gave_up: bool,
    ) -> CounterfactualSearch:
        unknown = () if certain else self._encoder.described(self._says[one] for one in wanted)
        reason = "the solver reached its limits" if gave_up else ""
        most = MOST_CHANGED if len(self._encoder.changed) > MOST_CHANGED else None
        if not found:
            verdict = AnalysisVerdict.NO if certain else AnalysisVerdict.UNKNOWN
            return CounterfactualSearch(verdict, (), most, certain, unknown, reason)
        places = {key: place for place, key in enumerate(self._before)}
        in_order = sorted(found, key=lambda changes: [places[one.key] for one in changes])
        several = tuple(self._generalised(one) for one in in_order)
        return CounterfactualSearch(AnalysisVerdict.YES, several, most, certain, unknown, reason)

    def _simple(self, removing: bool, adding: bool, several: bool) -> Iterator[Formula]:
        """Yield constraints: attributes are not removed, get no further values, and not two, unless that is allowed."""
        if not removing:
            changed = self._encoder.changed
            yield from (z3.Implies(changed[key], new[0][0]) for key, new in self._encoder.new.items())
        if not adding:
            yield from (z3.Not(one) for one in self._encoder.added.values())
        if not several:
            yield from (z3.Not(there) for new in self._encoder.new.values() for there, _ in new[1:])

    def _changes(self, model: z3.ModelRef) -> tuple[RequestChange, ...]:
        encoder = self._encoder

        def true(formula: Formula) -> bool:
            return bool(z3.is_true(model.eval(formula, model_completion=True)))

        return tuple(
            RequestChange(
                key,
                self._before[key],
                tuple(
                    encoder.scales[key.of].values[model.eval(place, model_completion=True).as_long()]
                    for there, place in encoder.new[key]
                    if true(there)
                ),
                true(encoder.added[key]),
            )
            # in the order of the policy
            for key in self._before
            if key in encoder.changed and true(encoder.changed[key])
        )

    def _other(self, model: z3.ModelRef, changes: Sequence[RequestChange]) -> Formula:
        """Return that the changes are not exactly these."""
        encoder = self._encoder
        keys = [one.key for one in changes]
        variables = [part for key in keys for pair in encoder.new[key] for part in pair]
        variables += [flags[key] for key in keys for flags in (encoder.changed, encoder.added)]
        return z3.Or([one != model.eval(one, model_completion=True) for one in variables])

    # --- the engine ---------------------------------------------------------------------------------------------

    def _context(self, changes: Iterable[RequestChange]) -> Context:
        return Context(changed_request(self._base.request, changes), self._base.now, self._base.sources)

    def _decides(self, changes: Iterable[RequestChange]) -> XacmlDecision:
        self._tried += 1
        return self._policy(self._context(changes)).decision

    def _fewest(
        self, changes: tuple[RequestChange, ...], wanted: frozenset[XacmlDecision]
    ) -> tuple[RequestChange, ...]:
        """Leave out changes that are not necessary."""
        for change in changes:
            fewer = tuple(one for one in changes if one.key is not change.key)
            if self._decides(fewer) in wanted:
                changes = fewer
        return changes

    def _generalised(self, changes: tuple[RequestChange, ...]) -> Counterfactual:
        """Find other values with the same effect: any of one attribute together with any of another."""
        decision = self._decides(changes)
        choices: dict[Key, list[RequestChange]] = {one.key: [one] for one in changes}
        changed: dict[Key, RequestChange] = {one.key: one for one in changes}
        for change in changes:
            key = change.key
            others = [*product(*(those for other, those in choices.items() if other is not key))]
            places = self._alternatives(change, alone=len(changes) == 1)
            if not places or self._tried + len(places) * len(others) > _TRIED:
                continue
            scale = self._encoder.scales[key.of]
            tried = {place: replace(change, values=(scale.values[place],)) for place in places}
            suitable = {
                place for place, one in tried.items() if all(self._decides((one, *rest)) is decision for rest in others)
            }
            choices[key] = [tried[place] for place in suitable]
            for place in range(len(scale.values)):
                if place not in tried and place - 1 in suitable:
                    suitable.add(place)
            ranges, excluded = described(scale, key.of, suitable)
            changed[key] = replace(change, ranges=ranges, excluded=excluded)
        return Counterfactual(tuple(changed.values()), decision)

    def _alternatives(self, change: RequestChange, *, alone: bool) -> Sequence[int]:
        """Return the positions of the values to try instead of a change's value."""
        fixed = change.added or len(change.values) != 1
        if fixed or any(change.key in one.keys for one in self._encoder.unknown):
            return ()
        scale = self._encoder.scales[change.key.of]
        places = range(len(scale.values))
        # If nothing else changes, values between two named ones have the same effect: one of them is enough.
        return [one for one in places if one == 0 or one in scale.named or one - 1 in scale.named] if alone else places


#: which changes besides other values are searched: attributes are removed, get further values, and get two
_SIMPLICITY: Final = ((False, False, False), (True, False, False), (True, True, False), (True, True, True))


def described(scale: Scale, of_type: DataType, suitable: set[int]) -> tuple[tuple[ValueRange, ...], tuple[Value, ...]]:
    """Describe values by positions on a scale: ranges, and exceptions from them."""
    places = [place for place in range(len(scale.values)) if place != scale.unordered]
    wrong = [place for place in places if place not in suitable]
    if of_type is not BOOLEAN and len(wrong) <= _RANGES and scale.named.issuperset(wrong):
        return (ValueRange(),), tuple(scale.values[place] for place in wrong)
    runs: list[list[int]] = []
    for place in places:
        if place in suitable:
            if runs and runs[-1][-1] == place - 1:
                runs[-1].append(place)
            else:
                runs.append([place])
    return tuple(_range(scale, run[0], run[-1], places[-1]) for run in runs), ()


def _range(scale: Scale, first: int, last: int, end: int) -> ValueRange:
    values, named = scale.values, scale.named
    if first == last and first in named:
        return ValueRange(values[first], values[first])
    low, with_low = (values[first], True) if first in named or first - 1 not in named else (values[first - 1], False)
    high, with_high = (values[last], True) if last in named or last + 1 not in named else (values[last + 1], False)
    return ValueRange(
        None if first == 0 else low,
        None if last == end else high,
        first == 0 or with_low,
        last == end or with_high,
    )


def _changeable(wanted: Designator) -> bool:
    return wanted.issuer is None and known_type(wanted.of)


def _bag(context: Context, wanted: Designator) -> tuple[Value, ...]:
    try:
        return context.bag(wanted)
    except EvaluationError:
        return ()
