"""Answer questions about all possible rows, each with a row that proves the answer.

A schema says what the attributes may hold; each of them may also be null. Simple selectors are decided by set
algebra, all others by a solver within its limits, and what it cannot settle is UNKNOWN, never a guess: every row is
evaluated before it is returned.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Literal, NoReturn, TypeAlias

from penstock.model.values import Scalar, Schema
from penstock.selector import algebra
from penstock.selector.algebra import RowQuestion
from penstock.selector.limits import SELECTOR_LIMITS, SelectorLimits
from penstock.selector.selector import Selector

Means: TypeAlias = Literal["algebra", "solver"]


class AnalysisVerdict(Enum):
    """The answer itself."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class SelectorAnalysis:
    """A verdict and, where one can exist, a row that shows it. It has no truth value: compare `verdict`.

    The row lists each attribute that the selectors use.
    """

    verdict: AnalysisVerdict
    witness: Mapping[str, Scalar] | None
    by: Means

    def __bool__(self) -> NoReturn:
        raise TypeError("an answer has no truth value; compare its verdict")


def satisfiable(a: Selector, schema: Schema, *, limits: SelectorLimits = SELECTOR_LIMITS) -> SelectorAnalysis:
    """Return whether there is a row on which `a` is TRUE; YES carries one.

    Raises `SelectorError` when a selector does not fit the schema.
    """
    return _exists(_ask(RowQuestion(schema, (a,)), limits))


def overlaps(a: Selector, b: Selector, schema: Schema, *, limits: SelectorLimits = SELECTOR_LIMITS) -> SelectorAnalysis:
    """Return whether there is a row on which both are TRUE; YES carries one.

    Raises `SelectorError` when a selector does not fit the schema.
    """
    return _exists(_ask(RowQuestion(schema, (a, b)), limits))


def covers(a: Selector, b: Selector, schema: Schema, *, limits: SelectorLimits = SELECTOR_LIMITS) -> SelectorAnalysis:
    """Return whether `a` is TRUE wherever `b` is; NO carries a row on which only `b` is.

    Raises `SelectorError` when a selector does not fit the schema.
    """
    return _none_exists(_ask(RowQuestion(schema, (b,), (a,)), limits))


def equivalent(
    a: Selector, b: Selector, schema: Schema, *, limits: SelectorLimits = SELECTOR_LIMITS
) -> SelectorAnalysis:
    """Return whether `a` and `b` are TRUE on the same rows; NO carries a row on which one is and the other is not.

    Raises `SelectorError` when a selector does not fit the schema.
    """
    first = covers(a, b, schema, limits=limits)
    if first.verdict is AnalysisVerdict.NO:
        return first
    second = covers(b, a, schema, limits=limits)
    if second.verdict is AnalysisVerdict.NO:
        return second
    by: Means = "solver" if "solver" in (first.by, second.by) else "algebra"
    return SelectorAnalysis(
        AnalysisVerdict.YES if first.verdict is second.verdict is AnalysisVerdict.YES else AnalysisVerdict.UNKNOWN,
        None,
        by,
    )


@dataclass(frozen=True, slots=True)
class _Finding:
    """A row that was looked for, the certainty that there is none, or neither."""

    row: Mapping[str, Scalar] | None
    settled: bool
    by: Means


def _exists(finding: _Finding) -> SelectorAnalysis:
    if not finding.settled:
        return SelectorAnalysis(AnalysisVerdict.UNKNOWN, None, finding.by)
    return SelectorAnalysis(AnalysisVerdict.NO if finding.row is None else AnalysisVerdict.YES, finding.row, finding.by)


def _none_exists(finding: _Finding) -> SelectorAnalysis:
    if not finding.settled:
        return SelectorAnalysis(AnalysisVerdict.UNKNOWN, None, finding.by)
    return SelectorAnalysis(AnalysisVerdict.YES if finding.row is None else AnalysisVerdict.NO, finding.row, finding.by)


def _ask(question: RowQuestion, limits: SelectorLimits) -> _Finding:
    for selector in question.holding + question.failing:
        selector.check(question.schema)
    try:
        row = algebra.search(question)
    except algebra.TooHardError:
        return ask_solver(question, limits)
    return _Finding(row, row is None or question.shown_by(row), "algebra")


def ask_solver(question: RowQuestion, limits: SelectorLimits) -> _Finding:
    """Answer by the solver, whether or not algebra could."""
    # z3 takes a third of a second to import, which a program that never asks it should not pay.
    from penstock.selector import solver  # noqa: PLC0415

    try:
        row = solver.search(question, limits)
    except solver.UnsettledError:
        return _Finding(None, settled=False, by="solver")
    return _Finding(row, settled=True, by="solver")
