"""Answers to the requests of a table: what a policy says, as columns beside each row."""

import json
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa  # type: ignore[import-untyped]  # it ships no types
from pyspark.sql.types import StringType, StructField, StructType

from penstock.policy.json_written import write_response
from penstock.policy.results import OK, Decision, Outcome, Response, Result, Told

DECISION: Final = "@decision"
STATUS: Final = "@status"
OBLIGATIONS: Final = "@obligations"
ADVICE: Final = "@advice"
POLICIES: Final = "@policies"


class Answer(NamedTuple):
    """What is said of a request. What is to be done, and which policies applied, is JSON.

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


def answer_of(outcome: Outcome) -> Answer:
    """Return what is said of a request whose outcome is known."""
    applicable = [one.id for one in outcome.applicable]
    return Answer(
        outcome.decision.plain,
        None if outcome.status.code == OK else outcome.status.code.rpartition(":")[2],
        _duties(outcome.obligations),
        _duties(outcome.advice),
        _text(applicable) if applicable else None,
    )


def _duties(told: Sequence[Told]) -> str | None:
    """Write obligations or advice as the JSON profile does."""
    if not told:
        return None
    written: Any = write_response(Response([Result(Decision.PERMIT, obligations=tuple(told))]))
    return _text(written["Response"][0]["Obligations"])


def _text(found: object) -> str:
    return json.dumps(found, ensure_ascii=False, separators=(",", ":"))


class Answers:
    """Everything that was said so far, by numbers, as arrays of which rows are taken."""

    def __init__(self, first: Sequence[Answer]) -> None:
        self._arrays = _arrays(first)

    def __len__(self) -> int:
        return len(self._arrays[0])

    def add(self, answers: Sequence[Answer]) -> None:
        """Append answers; their numbers go on."""
        if answers:
            pairs = zip(self._arrays, _arrays(answers), strict=True)
            self._arrays = [pa.concat_arrays([before, more]) for before, more in pairs]

    def columns(self, numbers: Any) -> list[Any]:
        """Return the columns of rows whose answers have these numbers."""
        places = pa.array(numbers)
        return [array.take(places) for array in self._arrays]


def _arrays(answers: Sequence[Answer]) -> list[Any]:
    return [pa.array([one[place] for one in answers], pa.string()) for place in range(len(COLUMNS))]
