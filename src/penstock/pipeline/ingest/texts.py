"""Texts as values and CSV as fields, one by one and without Spark, exactly by the rules of ingest.

Tasks and the small engine use it. What they compute for whole columns is held to it by tests.
"""

import math
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import cache, lru_cache
from typing import Final
from zoneinfo import ZoneInfo

from penstock.errors import did_you_mean
from penstock.model.values import INTEGER_MAX, INTEGER_MIN, AttributeSpec, Kind, Scalar
from penstock.pipeline.ingest.mapping import ColumnFormat, CsvLayout, Rewriting, TimeFormat

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_PRINCIPAL: Final = re.compile(r"(?:ed25519|threshold):[a-z2-7]{51}[aq]", re.ASCII)
BLANK: Final = " \t\r\n"
BOM: Final = "\ufeff"


class RecordError(Exception):
    """A record does not fit: the reason, and words that do not contain its values."""

    def __init__(self, code: str, words: str) -> None:
        super().__init__(code)
        self.code, self.words = code, words


NO_ID: Final = ("ingest.id", "the id is absent or no text")
NO_SOURCE: Final = ("ingest.source", "the source is not a principal")
NO_INSTANT: Final = ("ingest.time", "the time is not an instant")
NO_TIME: Final = ("ingest.time", "the time is absent")


def is_principal(text: str) -> bool:
    """Return whether a text is a principal in its canonical form."""
    return _PRINCIPAL.fullmatch(text) is not None


# ----------------------------------------------------------------------------------------------------------------------
# Texts as values.


def wrong_kind(what: str, kind: Kind) -> RecordError:
    """Return the error for a value of another kind."""
    return RecordError("ingest.kind", f"{what}: expected {kind}")


def checked_value(what: str, spec: AttributeSpec, value: Scalar) -> Scalar:
    """Return a value that has its kind, if it fits into 64 bits and lies in its domain. Raises `RecordError`."""
    if isinstance(value, bool) or value is None:
        pass
    elif isinstance(value, int) and not INTEGER_MIN <= value <= INTEGER_MAX:
        raise RecordError("ingest.range", f"{what}: an integer does not fit into 64 bits")
    if value is not None and spec.domain is not None and not spec.domain.contains(value):
        raise RecordError("ingest.domain", f"{what}: the value lies outside the attribute's declared domain")
    return value


def finite(what: str, value: float) -> float:
    """Return a float. Raises `RecordError` (`ingest.range`) if it is infinite."""
    if math.isinf(value):
        raise RecordError("ingest.range", f"{what}: a number is too large for a float")
    return value


def from_text(what: str, spec: AttributeSpec, text: str | None, reading: ColumnFormat) -> Scalar:
    """Convert a text to an attribute's value. Raises `RecordError`."""
    if text is None:
        return None
    text = text.strip(BLANK) if reading.trim else text
    if text in reading.null:
        return None
    kind = spec.kind
    value: Scalar = text
    if kind in (Kind.INTEGER, Kind.FLOAT):
        if not _written(kind, reading.group, reading.decimal).fullmatch(text):
            raise wrong_kind(what, kind)
        digits = text.replace(reading.group, "") if reading.group else text
        value = int(digits) if kind is Kind.INTEGER else finite(what, float(digits.replace(reading.decimal, ".")))
    elif kind is Kind.BOOLEAN:
        if text not in reading.true and text not in reading.false:
            raise wrong_kind(what, kind)
        value = text in reading.true
    elif kind is Kind.TIMESTAMP:
        value = instant(text, reading.formats, reading.zone)
        if value is None:
            raise wrong_kind(what, kind)
    return checked_value(what, spec, value)


@cache
def _written(kind: Kind, group: str, point: str) -> re.Pattern[str]:
    digits = f"(?:[0-9]{{1,3}}(?:[{group}][0-9]{{3}})+|[0-9]+)" if group else "[0-9]+"
    if kind is Kind.INTEGER:
        return re.compile(f"[+-]?{digits}")
    return re.compile(f"[+-]?(?:{digits}(?:[{point}][0-9]*)?|[{point}][0-9]+)(?:[eE][+-]?[0-9]+)?")


def instant(text: str, formats: Sequence[TimeFormat], zone: str | None) -> datetime | None:
    """Read a timestamp in the first format that fits; None if none does, or there is no such instant."""
    for form in formats:
        if form.unit and _whole(form.number).fullmatch(text):
            # Towards zero, as a cast of a decimal does.
            return _moved(_EPOCH, int(Decimal(text) * form.unit))
        for shape in form.rewritings:
            if (shape.zoned or zone is not None) and (found := _whole(shape.pattern).fullmatch(text)):
                return _rewritten(found, shape, zone)
    return None


@cache
def _whole(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)


_GROUP: Final = re.compile(r"\$(\d+)")
_PARTS: Final = re.compile(
    r"(\d{4})-(\d{1,2})-(\d{1,2})T(\d{1,2}):(\d\d):(\d\d)(?:\.(\d+))?(?:Z|([+-])(\d\d):?(\d\d))?", re.ASCII
)


def _rewritten(found: re.Match[str], shape: Rewriting, zone: str | None) -> datetime | None:
    text = _GROUP.sub(lambda group: found[int(group[1])] or "", shape.replacement)
    parts = _PARTS.fullmatch(text)
    if parts is None:
        return None
    *numbers, fraction, sign, hours, minutes = parts.groups()
    try:
        year, month, day, hour, minute, second = map(int, numbers)
        micros = int((fraction or "").ljust(6, "0")[:6])
        local = datetime(year, month, day, hour, minute, second, micros, UTC)
        if not shape.zoned and zone is not None:
            return local.replace(tzinfo=ZoneInfo(zone)).astimezone(UTC)
        ahead = timedelta(hours=int(hours or 0), minutes=int(minutes or 0))
        return local + (ahead if sign == "-" else -ahead)
    except (ValueError, OverflowError):
        return None


def _moved(start: datetime, micros: int) -> datetime | None:
    try:
        return start + timedelta(microseconds=micros)
    except OverflowError:
        return None


# ----------------------------------------------------------------------------------------------------------------------
# CSV, by the grammar of RFC 4180.


BYTES: Final = "latin-1"
"""The encoding in which each byte is one character."""
_BOM_BYTES: Final = BOM.encode().decode(BYTES)


class CsvGrammar:
    """How the bytes of a CSV file are split into records and fields."""

    def __init__(self, layout: CsvLayout) -> None:
        delimiter, quote = re.escape(layout.delimiter), re.escape(layout.quote)
        self.delimiter, self.quote = layout.delimiter, layout.quote
        plain = f"[^{delimiter}{quote}\\r\\n]*+"
        inner = f"{quote}(?:[^{quote}]++|{quote}{quote})*+{quote}"
        field = f"(?:{inner}|{plain})" if quote else plain
        whole = f"{field}(?:{delimiter}{field})*+(?:\\r?+\\n|\\Z)"
        self.record = re.compile(f"(?!\\Z)(?:\\A{_BOM_BYTES})?+(?:{whole}|[^\\n]*+\\n?+)")
        self._end = re.compile(f"\\A{_BOM_BYTES}|\r?\n\\Z")
        rest = f"[^{delimiter}]*+"
        loose = f"{quote}(?:[^{quote}]++|{quote}{quote})*+{quote}?+{rest}|{rest}" if quote else rest
        self._field = re.compile(f"{delimiter}({loose})")
        self._closed = re.compile(inner) if quote else None

    def fields(self, text: str) -> list[str | None]:
        """Split a record; a field in which quotes or line ends stand where they must not is None."""
        return [self._plain(field) for field in self._field.findall(self.delimiter + text)]

    def record_fields(self, record: str) -> list[str | None]:
        """Split a record of a whole file, each character of which stands for a byte."""
        return [_utf8(field) for field in self.fields(self._end.sub("", record))]

    def line_fields(self, line: bytes) -> list[str | None]:
        """Split a record that is a line; what is not text has no fields."""
        text = line_text(line)
        return [] if text is None else self.fields(text)

    def _plain(self, field: str) -> str | None:
        if self._closed is not None and self._closed.fullmatch(field):
            return field[1:-1].replace(self.quote * 2, self.quote)
        return None if "\r" in field or (self.quote and self.quote in field) else field


def check_fields(
    original: bytes,
    fields: Sequence[str | None],
    columns: Sequence[str | None],
    layout: CsvLayout,
    needed: Sequence[str],
) -> None:
    """Check that a record has the columns of its header, and all that are needed. Raises `RecordError`."""
    try:
        original.decode()
    except UnicodeDecodeError:
        raise RecordError("ingest.utf8", "not UTF-8") from None
    if original.removeprefix(BOM.encode()) in (b"", b"\n", b"\r\n", b"\r"):
        raise RecordError("ingest.empty", "an empty line")
    if not has_columns(columns, layout, needed):
        raise RecordError("ingest.header", _header_words(tuple(columns), layout, tuple(needed)))
    if None in fields:
        raise RecordError("ingest.csv", "quotes or line ends stand where they must not")
    if len(fields) != len(columns):
        several = ", over several lines: a quote may be missing" if b"\n" in original[:-1] else ""
        raise RecordError("ingest.columns", f"more or fewer fields than the header has{several}")


def has_columns(columns: Sequence[str | None], layout: CsvLayout, needed: Sequence[str]) -> bool:
    """Return whether a header has all columns that are needed."""
    if layout.columns is None:
        return all(columns.count(name) == 1 for name in needed)
    return set(needed) <= set(layout.columns) and list(columns) == list(layout.columns)


@lru_cache(maxsize=1)
def _header_words(columns: tuple[str | None, ...], layout: CsvLayout, needed: tuple[str, ...]) -> str:
    """Say what is wrong with a header, which all records of its file have in common."""
    there = columns if layout.columns is None else layout.columns
    name = next((one for one in needed if there.count(one) != 1), None)
    if name is None:
        return "the header is not the list `csv.columns` of the mapping"
    if layout.columns is not None:
        return f"`csv.columns` of the mapping lacks the column `{name[:80]}`"
    if name in there:
        return f"the header has the column `{name[:80]}` several times"
    # A line with no name that is needed is perhaps no header, but a record.
    names = [one for one in there if one is not None and one.isprintable()] if {*needed} & {*there} else ()
    similar = did_you_mean(name, names)
    return f"the header lacks the column `{name[:80]}`{f': {similar}' if similar else ''}"


def _utf8(field: str | None) -> str | None:
    return None if field is None else field.encode(BYTES).decode(errors="replace")


def line_text(line: bytes) -> str | None:
    """Return a line as text, without a byte order mark before it or a carriage return behind it."""
    try:
        return line.decode().removeprefix(BOM).removesuffix("\r")
    except UnicodeDecodeError:
        return None
