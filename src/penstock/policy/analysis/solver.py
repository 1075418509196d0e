"""Requests that policies answer in some way, found with z3 within limits of time and effort, and then evaluated.

This module imports z3, which takes a while; analysis.py imports it on first use. Questions about the same policies
share their formulas, and each has a solver of its own, so that answers do not depend on earlier ones.
"""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Final, TypeAlias

import z3

from penstock.policy.analysis.encoder import PolicyEncoder
from penstock.policy.analysis.formulas import Formula, every, some
from penstock.policy.engine.evaluate import evaluate
from penstock.policy.engine.lookup import Context, NoSources
from penstock.policy.language.expressions import Designator
from penstock.policy.language.policies import Root, designators
from penstock.policy.language.requests import Facts
from penstock.policy.language.results import XacmlDecision
from penstock.selector.limits import SelectorLimits
from penstock.selector.solver import UnsettledError as UnsettledError

Ways: TypeAlias = frozenset[tuple[str, ...]]
"""Decisions of some policies, as seen from outside: each combination to look for."""

#: what the clock says counts for nothing: requests that are found say what time it is
#: how many requests are tried where something has no formula
_ATTEMPTS: Final = 32
_NOW: Final = datetime(2026, 1, 1, tzinfo=UTC)


class Search:
    """A search for requests with so many values at most for each attribute, over policies that are known beforehand."""

    def __init__(self, roots: Sequence[Root], limits: SelectorLimits, values: int = 1) -> None:
        self._limits = limits
        self._encoder = PolicyEncoder(roots, _is_clock, values)
        self._known: dict[int, tuple[Root, dict[str, Formula]]] = {}
        #: what time it is, for what asks that in a way that has no formula
        self._clock = {one.key: _context({}).bag(one) for one in designators(roots) if _is_clock(one)}

    def find(self, roots: Sequence[Root], wanted: Ways) -> Facts | None:
        """Return a request on which policies decide in one of some ways; none if there is none. It has been evaluated.

        Where the request that the solver finds does not decide so, because of parts without a formula, the solver
        learns what that is for such requests, and looks for another one. Raises `UnsettledError` when it gives up, and
        where no request survives.
        """
        said = [self._decisions(root) for root in roots]
        ways = (every(one[decision] for one, decision in zip(said, way, strict=True)) for way in sorted(wanted))
        solver = z3.Solver(ctx=self._encoder.context)
        solver.set("timeout", self._limits.solver_time)
        solver.set("rlimit", self._limits.solver_effort)
        solver.add(*self._encoder.constraints, some(ways))
        for attempt in range(_ATTEMPTS):
            verdict = solver.check()
            if verdict == z3.unsat and attempt == 0:
                return None
            if verdict != z3.sat:
                # What was tried says nothing about values that were not.
                raise UnsettledError
            model = solver.model()
            facts = self._facts(model)
            if decisions(roots, facts) in wanted:
                return self._fewer(roots, wanted, facts)
            learnt = [*self._learnt(model, facts)]
            if not learnt:
                raise UnsettledError
            solver.add(*learnt)
        raise UnsettledError

    def unknown(self, roots: Sequence[Root]) -> tuple[str, ...]:
        """Return what has no formula in policies, in words."""
        formulas = [one for root in roots for one in self._decisions(root).values() if not isinstance(one, bool)]
        used = _variables(formulas)
        names = (one.construct for place, one in enumerate(self._encoder.unknown) if f"unknown {place}" in used)
        return tuple(dict.fromkeys(names))

    def _fewer(self, roots: Sequence[Root], wanted: Ways, facts: Facts) -> Facts:
        """Leave out what does not matter; the time stays, so that it does not matter when somebody asks."""
        for key in [*facts]:
            if key in self._clock:
                continue
            for fewer in ((), facts[key][:1], facts[key][1:]):
                less = {other: values if other is not key else fewer for other, values in facts.items()}
                less = {other: values for other, values in less.items() if values}
                if len(fewer) < len(facts.get(key, ())) and decisions(roots, less) in wanted:
                    facts = less
                    break
        return facts

    def _learnt(self, model: z3.ModelRef, facts: Facts) -> Iterator[Formula]:
        """Yield what is the case for requests like one, of what the solver got wrong."""
        for one in self._encoder.unknown:
            actual = one.states[one.actual(_context(facts))]
            if not z3.is_true(model.eval(actual, model_completion=True)):
                members = [member for key in one.keys for pair in self._encoder.attributes[key] for member in pair]
                like = [member == model.eval(member, model_completion=True) for member in members]
                yield z3.Implies(z3.And(like), actual) if like else actual

    def _decisions(self, root: Root) -> dict[str, Formula]:
        if id(root) not in self._known:
            says = self._encoder.root(root).says
            plain = {
                name: some(says[one] for one in XacmlDecision if one.plain == name)
                for name in {one.plain for one in XacmlDecision}
            }
            self._known[id(root)] = (root, plain)
        return self._known[id(root)][1]

    def _facts(self, model: z3.ModelRef) -> Facts:
        encoder = self._encoder
        found = {
            key: tuple(
                encoder.scales[key.of].values[model.eval(place, model_completion=True).as_long()]
                for there, place in members
                if z3.is_true(model.eval(there, model_completion=True))
            )
            for key, members in encoder.attributes.items()
        }
        return {**self._clock, **{key: values for key, values in found.items() if values}}


def _variables(formulas: Sequence[Formula]) -> set[str]:
    """Return the names of the variables in formulas, in which much is shared."""
    found, seen, left = set[str](), set[int](), [*formulas]
    while left:
        one = left.pop()
        if one.get_id() not in seen:
            seen.add(one.get_id())
            left += one.children()
            if z3.is_const(one) and one.decl().kind() == z3.Z3_OP_UNINTERPRETED:
                found.add(one.decl().name())
    return found


def decisions(roots: Sequence[Root], facts: Facts) -> tuple[str, ...]:
    """Return what policies say about a request, by the plain evaluator."""
    return tuple(evaluate(root, _context(facts)).decision.plain for root in roots)


def _context(facts: Facts) -> Context:
    return Context(None, _NOW, NoSources(), facts)


def _is_clock(wanted: Designator) -> bool:
    """Say whether an attribute is there whatever a request says: the time."""
    return bool(_context({}).bag(wanted))
