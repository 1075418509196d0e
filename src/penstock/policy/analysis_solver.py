"""Requests that policies answer in some way, found with z3 within limits of time and effort, and then evaluated.

This module imports z3, which takes a while; analysis.py imports it on first use. Questions about the same policies
share their formulas, and each has a solver of its own, so that answers do not depend on earlier ones.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final, TypeAlias

import z3

from penstock.model.limits import Limits
from penstock.policy.analysis_encode import Encoder
from penstock.policy.evaluate import evaluate
from penstock.policy.formulas import Formula, every, some
from penstock.policy.lookup import Context, NoSources
from penstock.policy.policies import Root
from penstock.policy.requests import Facts
from penstock.policy.results import Decision
from penstock.selector.represent import UnsettledError as UnsettledError

Ways: TypeAlias = frozenset[tuple[str, ...]]
"""Decisions of some policies, as they are told outside: each way that is looked for."""

#: what the clock says counts for nothing: requests that are found say what time it is
_NOW: Final = datetime(2026, 1, 1, tzinfo=UTC)


class Search:
    """A search for requests with at most one value for each attribute, over policies that are known beforehand."""

    def __init__(self, roots: Sequence[Root], limits: Limits) -> None:
        self._limits = limits
        self._encoder = Encoder(roots, lambda wanted: bool(Context(None, _NOW, NoSources(), {}).bag(wanted)))
        self._known: dict[int, tuple[Root, dict[str, Formula]]] = {}

    def find(self, roots: Sequence[Root], wanted: Ways) -> Facts | None:
        """Return a request on which policies decide in one of some ways; none if there is none. It has been evaluated.

        Raises `UnsettledError` when z3 gives up or its request does not survive, and `MalformedError`
        (`xacml.fragment`).
        """
        said = [self._decisions(root) for root in roots]
        ways = (every(one[decision] for one, decision in zip(said, way, strict=True)) for way in sorted(wanted))
        solver = z3.Solver(ctx=self._encoder.context)
        solver.set("timeout", self._limits.solver_time)
        solver.set("rlimit", self._limits.solver_effort)
        solver.add(*self._encoder.constraints, some(ways))
        verdict = solver.check()
        if verdict == z3.unsat:
            return None
        if verdict != z3.sat:
            raise UnsettledError
        facts = self._facts(solver.model())
        if decisions(roots, facts) not in wanted:
            raise UnsettledError
        for key in [*facts]:
            # What does not matter is left out.
            fewer = {other: values for other, values in facts.items() if other is not key}
            facts = fewer if decisions(roots, fewer) in wanted else facts
        return facts

    def _decisions(self, root: Root) -> dict[str, Formula]:
        if id(root) not in self._known:
            says = self._encoder.root(root).says
            plain = {
                name: some(says[one] for one in Decision if one.plain == name)
                for name in {one.plain for one in Decision}
            }
            self._known[id(root)] = (root, plain)
        return self._known[id(root)][1]

    def _facts(self, model: z3.ModelRef) -> Facts:
        encoder = self._encoder
        return {
            key: (encoder.scales[key.of].values[model.eval(place, model_completion=True).as_long()],)
            for key, (there, place) in encoder.attributes.items()
            if z3.is_true(model.eval(there, model_completion=True))
        }


def decisions(roots: Sequence[Root], facts: Facts) -> tuple[str, ...]:
    """Return what policies say about a request, by the plain evaluator."""
    return tuple(evaluate(root, Context(None, _NOW, NoSources(), facts)).decision.plain for root in roots)
