"""Keys by which events find rows of a table of constants: a value, or the bin of a range that it lies in."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from math import isfinite
from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812  # the name that everybody knows it by

from penstock.model.values import Kind, Value
from penstock.pipeline.columns import Source, micros
from penstock.pipeline.constants import OneRow

KEY: Final[Mapping[str, Kind]] = {"@text": Kind.STRING, "@whole": Kind.INTEGER, "@real": Kind.FLOAT}
"""The columns in which a key stands in a table, to be hashed together. What is null does not count in a hash."""
_BINS: Final = 4_096
_BINS_PER_SPAN: Final = 256


def key_of(source: Source) -> Column:
    """Return a value as it goes into the hash of a key; equal values have one form."""
    if source.kind is Kind.TIMESTAMP:
        return F.unix_micros(source.column)
    if source.kind is Kind.BOOLEAN:
        return source.column.cast("bigint")
    # Zero has two signs, and both are equal.
    return source.column + F.lit(0.0) if source.kind is Kind.FLOAT else source.column


def stored_key(key: Value | None) -> tuple[str | None, int | None, float | None]:
    """Return a constant as it stands in the columns of a key, as `key_of` has it."""
    if isinstance(key, str):
        return key, None, None
    if isinstance(key, float):
        return None, None, key + 0.0
    return None, micros(key) if isinstance(key, datetime) else None if key is None else int(key), None


@dataclass(frozen=True, slots=True)
class Bins:
    """Bins of equal width over some spans, as integers: numbers as they are, times in microseconds."""

    low: float
    width: float
    last: int
    kind: Kind

    @classmethod
    def of(cls, groups: Sequence[Sequence[tuple[Value, Value]]], kind: Kind) -> "Bins | None":
        """Choose bins for groups of spans, or None where they would not help.

        That is where an end is infinite, a span covers most of everything, or all of them together are longer than the
        largest number or too short for bins to have a width.
        """
        spans = [(_number(low), _number(high)) for group in groups for low, high in group]
        if not spans or not all(isfinite(low) and isfinite(high) for low, high in spans):
            return None
        low, high = min(s[0] for s in spans), max(s[1] for s in spans)
        width = (high - low) / min(_BINS, 2 * len(spans))
        if not (isfinite(width) and width > 0):
            return None
        bins = cls(low, width, int((high - low) / width) + 1, kind)
        return bins if all(len(bins._covered(*span)) <= _BINS_PER_SPAN for span in spans) else None

    def touched(self, spans: Sequence[tuple[Value, Value]]) -> set[int]:
        """Return the bins that some spans touch."""
        return {place for low, high in spans for place in self._covered(_number(low), _number(high))}

    def _covered(self, low: float, high: float) -> range:
        # One more on each side because of rounding.
        if high < low:
            return range(0)
        first, last = int((low - self.low) / self.width) - 1, int((high - self.low) / self.width) + 1
        return range(max(-1, first), min(self.last, last) + 1)

    def column(self, value: Column, constants: OneRow) -> Column:
        """Return the bin of an event's value; what lies outside of all spans has a bin that no span covers."""
        number = F.unix_micros(value) if self.kind is Kind.TIMESTAMP else value
        low, width = (constants.source(bound, Kind.FLOAT).column for bound in (self.low, self.width))
        place = F.try_divide(number.cast("double") - low, width)
        return F.floor(F.greatest(F.least(place, F.lit(float(self.last + 1))), F.lit(-3.0))).try_cast("bigint")


def _number(value: Value) -> float:
    if isinstance(value, datetime):
        return float(micros(value))
    return float(value)
