"""Texts and JSON values as attribute values, in native expressions: what `Event.of` takes, and what is wrong otherwise.

A conversion never raises, whatever the session's ANSI mode and time zone. Where it has no value it says why, in words
that name the attribute and never its value: a message must not carry what its reader may not see.

Expressions are kept small: what is used twice is a column first, because Spark writes an expression out wherever it is
used.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812  # the name that everybody knows it by

from penstock.model.values import AttributeSpec, Enumerated, Kind
from penstock.pipeline.frames.columns import EARLIEST, LATEST, literal
from penstock.pipeline.ingest.mapping import ColumnFormat
from penstock.pipeline.ingest.time_formats import RFC3339, TimeFormat

_INFINITY: Final = float("inf")
_BLANK: Final = " \t\r\n"


@dataclass(frozen=True, slots=True)
class RecordProblem:
    """What is wrong with a record where a condition holds. The condition may be null, and then nothing is wrong."""

    where: Column
    code: str
    words: str


@dataclass(frozen=True, slots=True)
class Converted:
    """A value, and what is wrong with it: told of the column in which the value will stand."""

    value: Column
    problems: Callable[[Column], Sequence[RecordProblem]]


def given(text: Column, reading: ColumnFormat) -> Column:
    """Return a text without its blanks, and null where it is a word for null."""
    found = F.btrim(text, F.lit(_BLANK)) if reading.trim else text
    for word in reading.null:
        found = F.nullif(found, F.lit(word))
    return found


def constant(value: Column) -> Converted:
    """Return a value that was checked before."""
    return Converted(value, lambda _: ())


def from_text(what: str, spec: AttributeSpec, text: Column, reading: ColumnFormat) -> Converted:
    """Convert a text, as `given` returns it, to an attribute's value."""
    kind = spec.kind
    if kind is Kind.INTEGER:
        return _number(what, spec, text, reading, _plain(text, reading).try_cast("bigint"))
    if kind is Kind.FLOAT:
        return _number(what, spec, text, reading, _plain(text, reading).try_cast("double"))
    if kind is Kind.BOOLEAN:
        value = F.when(text.isin(*reading.true), F.lit(True)).when(text.isin(*reading.false), F.lit(False))
    elif kind is Kind.TIMESTAMP:
        value = instant(text, reading.formats, reading.zone)
    else:
        value = text
    return Converted(
        value,
        lambda found: [_kind(what, kind, text.isNotNull() & _no_value(kind, found)), *_outside(what, spec, found)],
    )


def _number(what: str, spec: AttributeSpec, text: Column, reading: ColumnFormat, value: Column) -> Converted:
    digits, point = "[0-9]+", reading.decimal
    if reading.group:
        digits = f"(?:[0-9]{{1,3}}(?:[{reading.group}][0-9]{{3}})+|[0-9]+)"
    written = f"\\A[+-]?{digits}\\z"
    if spec.kind is Kind.FLOAT:
        written = f"\\A[+-]?(?:{digits}(?:[{point}][0-9]*)?|[{point}][0-9]+)(?:[eE][+-]?[0-9]+)?\\z"

    def problems(found: Column) -> list[RecordProblem]:
        return [
            _kind(what, spec.kind, ~text.rlike(written)),
            _range(what, spec.kind, text.isNotNull() & _too_large(spec.kind, found)),
            *_outside(what, spec, found),
        ]

    return Converted(value, problems)


def _plain(text: Column, reading: ColumnFormat) -> Column:
    if reading.group:
        text = F.replace(text, F.lit(reading.group), F.lit(""))
    return text if reading.decimal == "." else F.replace(text, F.lit(reading.decimal), F.lit("."))


def from_json(what: str, spec: AttributeSpec, shape: Column, text: Column) -> Converted:
    """Convert a JSON value to an attribute's value.

    `shape` is what `schema_of_variant` says of it, and `text` is the value as text. JSON has one kind of number: an
    integer is a number without fraction and exponent, a float is any number.
    """
    kind = spec.kind
    there = shape != "VOID"
    decimal = shape.startswith("DECIMAL")
    if kind is Kind.INTEGER:
        value = F.when(shape == "BIGINT", text.try_cast("bigint"))
        # More than 64 bits are a decimal in Spark.
        right = (shape == "BIGINT") | (decimal & (F.length(text) > 18) & ~text.contains("."))
    elif kind is Kind.FLOAT:
        right = decimal | shape.isin("BIGINT", "DOUBLE")
        value = F.when(right, text.try_cast("double"))
    elif kind is Kind.BOOLEAN:
        right = shape == "BOOLEAN"
        value = F.when(right, text == "true")
    else:
        right = shape == "STRING"
        value = F.when(right, text if kind is Kind.STRING else instant(text, (RFC3339,), None))

    def problems(found: Column) -> list[RecordProblem]:
        wrong = [_kind(what, kind, there & ~right)]
        if kind is Kind.TIMESTAMP:
            wrong.append(_kind(what, kind, there & _no_value(kind, found)))
        if kind in (Kind.INTEGER, Kind.FLOAT):
            wrong.append(_range(what, kind, there & _too_large(kind, found)))
        return [*wrong, *_outside(what, spec, found)]

    return Converted(value, problems)


def from_column(what: str, spec: AttributeSpec, column: Column, value: Column) -> Converted:
    """Take a value out of a column that has its kind."""
    return Converted(
        value,
        lambda found: [
            _kind(what, spec.kind, column.isNotNull() & _no_value(spec.kind, found)),
            *_outside(what, spec, found),
        ],
    )


def _kind(what: str, kind: Kind, where: Column) -> RecordProblem:
    return RecordProblem(where, "ingest.kind", f"{what}: expected {kind}")


def _range(what: str, kind: Kind, where: Column) -> RecordProblem:
    words = "an integer does not fit into 64 bits" if kind is Kind.INTEGER else "a number is too large for a float"
    return RecordProblem(where, "ingest.range", f"{what}: {words}")


def _too_large(kind: Kind, value: Column) -> Column:
    # What is written in digits and becomes infinite was too large.
    return value.isNull() if kind is Kind.INTEGER else F.abs(value) == F.lit(_INFINITY)


def _no_value(kind: Kind, value: Column) -> Column:
    if kind is not Kind.TIMESTAMP:
        return value.isNull()
    return value.isNull() | ~F.unix_micros(value).between(F.lit(EARLIEST), F.lit(LATEST))


def _outside(what: str, spec: AttributeSpec, value: Column) -> list[RecordProblem]:
    domain, kind = spec.domain, spec.kind
    if domain is None:
        return []
    if isinstance(domain, Enumerated):
        # Not `isin`, whose hash set tells -0.0 from 0.0.
        inside = reduce(lambda one, other: one | other, (value == literal(member, kind) for member in domain.values))
    else:
        inside = (literal(domain.low, kind) <= value) & (value <= literal(domain.high, kind))
    return [RecordProblem(~inside, "ingest.domain", f"{what}: the value lies outside the attribute's declared domain")]


def instant(text: Column, formats: Sequence[TimeFormat], zone: str | None) -> Column:
    """Read a timestamp in the first format that fits; null where none does.

    A text without a zone is in `zone`; where that is None it is not an instant. Of an hour that autumn shows twice the
    first is meant, and what spring leaves out counts on from before.
    """
    written = F.lit(None).cast("string")
    counted = F.lit(None).cast("bigint")
    for form in reversed(formats):
        if form.unit:
            fits = text.rlike(f"\\A{form.number}\\z")
            micros = (text.try_cast("decimal(28,9)") * F.lit(form.unit)).try_cast("bigint")
            counted = F.when(fits, micros).otherwise(counted)
            written = F.when(~fits, written)
        for shape in reversed(form.rewritings):
            if shape.zoned or zone is not None:
                # With its zone the text means the same in every session.
                pattern, suffix = f"\\A(?:{shape.pattern})\\z", "" if shape.zoned else f" {zone}"
                fits = text.rlike(pattern)
                written = F.when(fits, F.regexp_replace(text, pattern, shape.replacement + suffix)).otherwise(written)
                if any(other.unit for other in formats):
                    counted = F.when(~fits, counted)
    moment = written.try_cast("timestamp")
    if any(form.unit for form in formats):
        return F.coalesce(moment, F.timestamp_micros(counted))
    return moment
