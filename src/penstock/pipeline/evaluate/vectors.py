"""Requests in columns of Arrow, decided together: the steps of `penstock.policy.engine.vectors` for whole columns at
once.

Steps that were made stand in tables, by state and class; who comes that way again looks them up.
"""

import json
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]  # it ships no types
from numpy.typing import NDArray
from pyspark.sql.types import StringType, StructField, StructType

from penstock.pipeline.evaluate.columns import BROKEN, MISSING, Column
from penstock.pipeline.limits import PIPELINE_LIMITS, PipelineLimits
from penstock.policy.engine.vectors import Vectors
from penstock.policy.language.requests import Key
from penstock.policy.language.results import (
    OK,
    SYNTAX_ERROR,
    DecisionStatus,
    Obligation,
    PolicyOutcome,
    Response,
    Result,
    XacmlDecision,
)
from penstock.policy.syntax.json.requests import write_response

# ----------------------------------------------------------------------------------------------------------------------
# Answers to the requests of a table: what a policy says, as columns beside each row.


DECISION: Final = "@decision"
STATUS: Final = "@status"
OBLIGATIONS: Final = "@obligations"
ADVICE: Final = "@advice"
POLICIES: Final = "@policies"


class RequestDecision(NamedTuple):
    """The answer to a request. Obligations, advice and the applied policies are JSON.

    Where there is nothing to say, it is null: most rows get a decision and no more, and texts cost more than all else.
    """

    decision: str
    #: why there is no decision: the last part of the standard's code
    status: str | None = None
    obligations: str | None = None
    advice: str | None = None
    #: the ids of the policies that were applicable, the inner ones first
    policies: str | None = None


COLUMNS: Final = (DECISION, STATUS, OBLIGATIONS, ADVICE, POLICIES)
"""The columns of answers, in the order of their parts."""
SCHEMA: Final = StructType([StructField(name, StringType()) for name in COLUMNS])


def answer_of(outcome: PolicyOutcome) -> RequestDecision:
    """Return the answer to a request whose result is known."""
    applicable = [one.id for one in outcome.applicable]
    return RequestDecision(
        outcome.decision.plain,
        None if outcome.status.code == OK else outcome.status.code.rpartition(":")[2],
        _duties(outcome.obligations),
        _duties(outcome.advice),
        _text(applicable) if applicable else None,
    )


def _duties(told: Sequence[Obligation]) -> str | None:
    """Write obligations or advice as the JSON profile does."""
    if not told:
        return None
    written: Any = write_response(Response([Result(XacmlDecision.PERMIT, obligations=tuple(told))]))
    return _text(written["Response"][0]["Obligations"])


def _text(found: object) -> str:
    return json.dumps(found, ensure_ascii=False, separators=(",", ":"))


class DecisionTable:
    """Everything that was said so far, by numbers, as arrays of which rows are taken."""

    def __init__(self, first: Sequence[RequestDecision]) -> None:
        self._arrays = _arrays(first)

    def __len__(self) -> int:
        return len(self._arrays[0])

    def add(self, answers: Sequence[RequestDecision]) -> None:
        """Append answers; their numbers go on."""
        if answers:
            pairs = zip(self._arrays, _arrays(answers), strict=True)
            self._arrays = [pa.concat_arrays([before, more]) for before, more in pairs]

    def columns(self, numbers: Any) -> list[Any]:
        """Return the columns of rows whose answers have these numbers."""
        places = pa.array(numbers)
        return [array.take(places) for array in self._arrays]


def _arrays(answers: Sequence[RequestDecision]) -> list[Any]:
    return [pa.array([one[place] for one in answers], pa.string()) for place in range(len(COLUMNS))]


# ----------------------------------------------------------------------------------------------------------------------
# Requests in columns of Arrow, decided together: the steps of `penstock.policy.engine.vectors` for whole columns at


Numbers: TypeAlias = NDArray[np.signedinteger[Any]]
"""States, classes and answers, by their numbers."""

UNREADABLE: Final = PolicyOutcome(
    XacmlDecision.INDETERMINATE_DP, DecisionStatus(SYNTAX_ERROR, "a column has a value that is not of its data type")
)
"""What is said of a row that cannot be read, whatever the policy says."""
_UNKNOWN: Final = -1
_MATTERS: Final = -2
#: columns of more classes have no table for all of them
_MOST_CLASSES: Final = 4_096


class Decider:
    """Decides rows, and remembers how: by columns for the attributes that the policy looks at, in that order.

    `answers` has everything that was said so far, by its numbers.
    """

    def __init__(self, vectors: Vectors, columns: Sequence[Column], limits: PipelineLimits = PIPELINE_LIMITS) -> None:
        self._vectors = vectors
        self._columns = columns
        self._most = limits.policy_remembered
        self._forget()

    @property
    def keys(self) -> Sequence[Key]:
        """The attributes that are looked at, in their order."""
        return self._vectors.keys

    def _forget(self) -> None:
        self._vectors.clear()
        for column in self._columns:
            column.clear()
        self._steps: list[_Steps] = [_Steps(self._vectors, place, column) for place, column in enumerate(self._columns)]
        self._ends = np.full(0, _UNKNOWN, np.int32)
        self._numbers: dict[RequestDecision, int] = {answer_of(UNREADABLE): 0}
        self.answers = DecisionTable([*self._numbers])

    @property
    def size(self) -> int:
        """Return the size of the cache."""
        return self._vectors.size + sum(steps.size for steps in self._steps)

    def decide(self, arrays: Sequence[Any], rows: int) -> Numbers:
        """Return the numbers of the answers to rows, whose attributes are in arrays in the order of `keys`."""
        if self.size > self._most:
            self._forget()
        states = np.zeros(rows, np.int32)
        broken = np.zeros(rows, np.bool_)
        for steps, array in zip(self._steps, arrays, strict=True):
            states = steps.after(states, array, broken)
        found = self._ended(states)
        found[broken] = 0
        return found

    def _ended(self, states: Numbers) -> Numbers:
        self._ends = _longer(self._ends, int(states.max(initial=-1)) + 1)
        found = self._ends[states]
        new: list[RequestDecision] = []
        for state in np.unique(states[found == _UNKNOWN]).tolist():
            answer = answer_of(self._vectors.outcome(state))
            if answer not in self._numbers:
                self._numbers[answer] = len(self._numbers)
                new.append(answer)
            self._ends[state] = self._numbers[answer]
        self.answers.add(new)
        return self._ends[states]


class _Steps:
    """The steps that one attribute makes."""

    def __init__(self, vectors: Vectors, place: int, column: Column) -> None:
        self._vectors = vectors
        self._place = place
        self._column = column
        width = column.width
        self._width = width if width is not None and width <= _MOST_CLASSES else None
        #: by state and class, where there are few classes
        self._table: Numbers = np.full((0, self._width or 0), _UNKNOWN, np.int32)
        #: by state: where the attribute does not matter, the next one
        self._through: Numbers = np.full(0, _UNKNOWN, np.int32)
        self._pairs: dict[tuple[int, int], int] = {}

    @property
    def size(self) -> int:
        """Return the size of the cache."""
        return self._table.size + len(self._pairs)

    def after(self, states: Numbers, array: Any, broken: NDArray[np.bool_]) -> Numbers:
        """Return the states after the attribute, and note the rows in which it cannot be read."""
        classes = self._column.classes(array)
        unread = classes == BROKEN
        if unread.any():
            broken |= unread
            classes = np.where(unread, MISSING, classes)
        most = int(states.max(initial=-1)) + 1
        if self._width is None:
            return self._by_pairs(states, classes, array, most)
        self._table = _longer(self._table, most)
        found = self._table[states, classes]
        rows = np.flatnonzero(found == _UNKNOWN)
        if len(rows):
            self._make(states, classes, array, rows)
            found[rows] = self._table[states[rows], classes[rows]]
        return found

    def _make(self, states: Numbers, classes: Numbers, array: Any, rows: Numbers) -> None:
        """Make the steps of some rows, each with all classes that do not differ in its state."""
        groups, grouped = np.empty(0, np.int64), None
        for row in rows[_firsts(states[rows], classes[rows])].tolist():
            state, of = int(states[row]), int(classes[row])
            if self._table[state, of] != _UNKNOWN:
                continue
            if state != grouped:
                groups, grouped = self._groups(state), state
            self._table[state, groups == groups[of]] = self._step(state, of, array, row)

    def _groups(self, state: int) -> Numbers:
        if self._vectors.ignores(self._place, state):
            return np.zeros(self._table.shape[1], np.int64)
        return self._column.groups(self._vectors.constants(self._place, state) or ())

    def _by_pairs(self, states: Numbers, classes: Numbers, array: Any, most: int) -> Numbers:
        self._through = _longer(self._through, most)
        for state in np.unique(states[self._through[states] == _UNKNOWN]).tolist():
            ignored = self._vectors.ignores(self._place, state)
            self._through[state] = self._vectors.step(self._place, state, MISSING, ()) if ignored else _MATTERS
        found = self._through[states]
        rows = np.flatnonzero(found == _MATTERS)
        if len(rows):
            keys = _paired(states[rows], classes[rows])
            _, firsts, places = np.unique(keys, return_index=True, return_inverse=True)
            following = [self._pair(states, classes, array, row) for row in rows[firsts].tolist()]
            found[rows] = np.array(following, np.int32)[places]
        return found

    def _pair(self, states: Numbers, classes: Numbers, array: Any, row: int) -> int:
        pair = int(states[row]), int(classes[row])
        following = self._pairs.get(pair)
        if following is None:
            following = self._pairs[pair] = self._step(*pair, array, row)
        return following

    def _step(self, state: int, of: int, array: Any, row: int) -> int:
        bag = () if of == MISSING else self._column.bag(array, row)
        return self._vectors.step(self._place, state, of, bag)


def _paired(states: Numbers, classes: Numbers) -> Numbers:
    paired: Numbers = states.astype(np.int64) * (int(classes.max()) + 1) + classes
    return paired


def _firsts(states: Numbers, classes: Numbers) -> Numbers:
    """Return the first row of each pair of a state and a class."""
    firsts: Numbers = np.unique(_paired(states, classes), return_index=True)[1]
    return firsts


def _longer(table: Numbers, length: int) -> Numbers:
    """Return a table with rows for so many states at least."""
    if length <= len(table):
        return table
    more = np.full((max(length, 2 * len(table)) - len(table), *table.shape[1:]), _UNKNOWN, np.int32)
    return np.concatenate([table, more])
