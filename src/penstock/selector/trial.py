"""Find a row by trying a few: values that the selectors themselves mention, and those next to them.

z3 is slow at computing with doubles, and large products can defeat it, while the row that shows the answer is
often near at hand. A row that is found is certain; finding none says nothing.
"""

import itertools
import math
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Final

from penstock.errors import MalformedError
from penstock.model.values import AttributeSpec, Enumerated, Kind, Ranged, Scalar, Value
from penstock.selector.ast import Like, Literal, walk
from penstock.selector.question import Question
from penstock.selector.sets import universe

_ROWS: Final = 1_000
_VALUES: Final = 16
#: a large prime
_STRIDE: Final = 2_147_483_647
_SECOND: Final = timedelta(seconds=1)


def try_rows(question: Question) -> dict[str, Scalar] | None:
    """Return a row that answers the question, or None if none of those tried does."""
    names = sorted(question.attributes)
    mentioned = _mentioned(question)
    choices = [_choices(question.schema[name], mentioned) for name in names]
    for values in _combinations(choices):
        row = dict(zip(names, values, strict=True))
        if question.shown_by(row):
            return row
    return None


def _combinations(choices: list[list[Scalar]]) -> Iterator[tuple[Scalar, ...]]:
    if math.prod(len(values) for values in choices) <= _ROWS:
        yield from itertools.product(*choices)
        return
    # Too many to try all: read the digits of a number that jumps about, so that every list is used early.
    total = math.prod(len(values) for values in choices)
    for step in range(_ROWS):
        number = step * _STRIDE % total
        row: list[Scalar] = []
        for values in choices:
            number, digit = divmod(number, len(values))
            row.append(values[digit])
        yield tuple(row)


def _mentioned(question: Question) -> list[Value]:
    found: dict[tuple[Kind, Value], Value] = {}
    for selector in question.holding + question.failing:
        for node in walk(selector.root):
            if isinstance(node, Literal) and node.value is not None and node.kind is not None:
                found[node.kind, node.value] = node.value
            elif isinstance(node, Like):
                found[Kind.STRING, node.pattern] = node.pattern
    return list(found.values())


def _choices(spec: AttributeSpec, mentioned: list[Value]) -> list[Scalar]:
    """Return values for one attribute, likely ones first."""
    candidates: list[Scalar] = [universe(spec).example()]
    match spec.domain:
        case Enumerated(values):
            candidates += sorted(values)
        case Ranged(low, high):
            candidates += [low, high]
        case None:
            pass
    for value in mentioned:
        candidates += _near(spec.kind, value)
    kept = [value for value in dict.fromkeys(candidates) if _fits(spec, value)]
    return [*kept[:_VALUES], None]


def _near(kind: Kind, value: Value) -> list[Scalar]:
    match value:
        case bool():
            return [value, not value] if kind is Kind.BOOLEAN else []
        case str():
            return [value, value + "a"] if kind is Kind.STRING else []
        case datetime():
            return _around(value) if kind is Kind.TIMESTAMP else []
        case _ if kind is Kind.INTEGER:
            whole = math.floor(value)
            return [whole, whole + 1, whole - 1, 1]
        case _ if kind is Kind.FLOAT:
            return [float(value), value + 1.0, value - 1.0, value - 0.5, 1.0]
        case _:
            return []


def _around(moment: datetime) -> list[Scalar]:
    try:
        return [moment, moment + _SECOND, moment - _SECOND]
    except OverflowError:
        # At an end of the calendar.
        return [moment]


def _fits(spec: AttributeSpec, value: Scalar) -> bool:
    try:
        spec.check(value)
    except MalformedError:
        return False
    return True
