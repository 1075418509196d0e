"""The question of the analysis: is there a row on which some selectors are TRUE and others are not?"""

from collections.abc import Mapping
from dataclasses import dataclass

from penstock.errors import EvaluationError, MalformedError
from penstock.model.values import Scalar, Schema
from penstock.selector.evaluate import evaluate
from penstock.selector.selector import Selector


@dataclass(frozen=True, slots=True)
class RowQuestion:
    """A search for a row that fits `schema`, on which all of `holding` are TRUE and none of `failing` is."""

    schema: Schema
    holding: tuple[Selector, ...]
    failing: tuple[Selector, ...] = ()

    @property
    def attributes(self) -> frozenset[str]:
        """The attributes that the answer depends on."""
        return frozenset().union(*(selector.attributes for selector in self.holding + self.failing))

    def shown_by(self, row: Mapping[str, Scalar]) -> bool:
        """Say whether `row` answers the question, by evaluating the selectors on it."""
        try:
            for name, value in row.items():
                self.schema[name].check(value)
            if not all(evaluate(selector, row) is True for selector in self.holding):
                return False
        except (MalformedError, EvaluationError):
            return False
        return not any(_is_true(selector, row) for selector in self.failing)


def _is_true(selector: Selector, row: Mapping[str, Scalar]) -> bool:
    try:
        return evaluate(selector, row) is True
    except EvaluationError:
        return False
