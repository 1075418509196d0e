"""Records of CSV, JSON lines and Parquet as typed events, one by one, by the rules of `penstock.pipeline.ingest`."""

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import cache, partial
from pathlib import Path
from typing import Any, Final, TypeAlias
from zoneinfo import ZoneInfo

import pyarrow as pa  # type: ignore[import-untyped]  # it ships no types
import pyarrow.parquet as pq  # type: ignore[import-untyped]  # it ships no types

from penstock.errors import MalformedError
from penstock.model.types import EventType
from penstock.model.values import INTEGER_MAX, INTEGER_MIN, AttributeSpec, Kind, Scalar
from penstock.pipeline.ingest.mapping import (
    RFC3339,
    BoundMapping,
    ColumnFormat,
    CsvLayout,
    FromColumn,
    MappedFormat,
    Origin,
    Rewriting,
    TimeFormat,
)
from penstock.pipeline.small.folders import NotSmallError

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_PRINCIPAL: Final = re.compile(r"(?:ed25519|threshold):[a-z2-7]{51}[aq]", re.ASCII)
_BLANK: Final = " \t\r\n"
_BOM: Final = "\ufeff"
_TEXT: Final = AttributeSpec(Kind.STRING)
_MOMENT: Final = AttributeSpec(Kind.TIMESTAMP)


class RecordError(Exception):
    """A record does not fit: the reason, and words that do not contain its values."""

    def __init__(self, code: str, words: str) -> None:
        super().__init__(code)
        self.code, self.words = code, words


@dataclass(frozen=True, slots=True)
class SmallEvent:
    """An event as it was read: its version, its metadata, and its values by attribute name."""

    event_type: EventType
    id: str
    time: datetime
    source: str
    values: Mapping[str, Scalar]


@dataclass(frozen=True, slots=True)
class SmallRecord:
    """A record: where it stands, its bytes, and the function that reads it and raises `RecordError`."""

    file: str
    position: int | None
    original: bytes
    read: Callable[[], SmallEvent]


Records: TypeAlias = Iterator[SmallRecord]


def file_address(file: Path) -> str:
    """Return the name of a file as Spark says it."""
    return "file:" + re.sub(r"[ \"#%<>?\[\\\]^`{|}]", lambda found: f"%{ord(found[0]):02X}", str(file))


def _principal(value: object) -> str:
    if not isinstance(value, str) or not _PRINCIPAL.fullmatch(value):
        raise RecordError("ingest.source", "the source is not a principal")
    return value


def _identity(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise RecordError("ingest.id", "the id is absent or no text")
    return value


def _instant(read: Callable[[], Scalar]) -> datetime:
    try:
        time = read()
    except RecordError:
        raise RecordError("ingest.time", "the time is not an instant") from None
    if not isinstance(time, datetime):
        raise RecordError("ingest.time", "the time is absent")
    return time


# ----------------------------------------------------------------------------------------------------------------------
# Texts as values.


def _wrong_kind(what: str, kind: Kind) -> RecordError:
    return RecordError("ingest.kind", f"{what}: expected {kind}")


def _checked(what: str, spec: AttributeSpec, value: Scalar) -> Scalar:
    """Return a value that has its kind, if it fits into 64 bits and lies in its domain."""
    if isinstance(value, bool) or value is None:
        pass
    elif isinstance(value, int) and not INTEGER_MIN <= value <= INTEGER_MAX:
        raise RecordError("ingest.range", f"{what}: an integer does not fit into 64 bits")
    if value is not None and spec.domain is not None and not spec.domain.contains(value):
        raise RecordError("ingest.domain", f"{what}: the value lies outside the attribute's declared domain")
    return value


def _finite(what: str, value: float) -> float:
    if math.isinf(value):
        raise RecordError("ingest.range", f"{what}: a number is too large for a float")
    return value


def from_text(what: str, spec: AttributeSpec, text: str | None, reading: ColumnFormat) -> Scalar:
    """Convert a text to an attribute's value. Raises `RecordError`."""
    if text is None:
        return None
    text = text.strip(_BLANK) if reading.trim else text
    if text in reading.null:
        return None
    kind = spec.kind
    value: Scalar = text
    if kind in (Kind.INTEGER, Kind.FLOAT):
        if not _written(kind, reading.group, reading.decimal).fullmatch(text):
            raise _wrong_kind(what, kind)
        digits = text.replace(reading.group, "") if reading.group else text
        value = int(digits) if kind is Kind.INTEGER else _finite(what, float(digits.replace(reading.decimal, ".")))
    elif kind is Kind.BOOLEAN:
        if text not in reading.true and text not in reading.false:
            raise _wrong_kind(what, kind)
        value = text in reading.true
    elif kind is Kind.TIMESTAMP:
        value = instant(text, reading.formats, reading.zone)
        if value is None:
            raise _wrong_kind(what, kind)
    return _checked(what, spec, value)


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
# Rows of tables, by a mapping.


def mapped_event(bound: BoundMapping, cell: Callable[[str, AttributeSpec, FromColumn], Scalar]) -> SmallEvent:
    """Return the event of a row, whose cells a function reads. Raises `RecordError`."""
    mapping, event_type = bound.mapping, bound.event_type

    def value(what: str, spec: AttributeSpec, origin: Origin) -> Scalar:
        return cell(what, spec, origin) if isinstance(origin, FromColumn) else origin.value

    identity = _identity(value("the id", _TEXT, mapping.id))
    source = _principal(value("the source", _TEXT, mapping.source))
    time = _instant(lambda: value("the time", _MOMENT, mapping.time))
    values = {
        a.name: value(f"attribute `{a.name}`", a.spec, mapping.attributes[a.name])
        for a in event_type.attributes
        if a.name in mapping.attributes
    }
    return SmallEvent(event_type, identity, time, source, values)


# --- CSV, by the grammar of RFC 4180 ---------------------------------------------------------------------------------


_BYTES: Final = "latin-1"
"""The encoding in which each byte is one character."""
_BOM_BYTES: Final = _BOM.encode().decode(_BYTES)


class _Grammar:
    """How the bytes of a CSV file are split into records and fields."""

    def __init__(self, layout: CsvLayout) -> None:
        delimiter, quote = re.escape(layout.delimiter), re.escape(layout.quote)
        self.delimiter, self.quote = layout.delimiter, layout.quote
        plain = f"[^{delimiter}{quote}\\r\\n]*+"
        inner = f"{quote}(?:[^{quote}]++|{quote}{quote})*+{quote}"
        field = f"(?:{inner}|{plain})" if quote else plain
        whole = f"{field}(?:{delimiter}{field})*+(?:\\r?+\\n|\\Z)"
        self.record = re.compile(f"(?!\\Z)(?:\\A{_BOM_BYTES})?+(?:{whole}|[^\\n]*+\\n?+)")
        self.end = re.compile(f"\\A{_BOM_BYTES}|\r?\n\\Z")
        rest = f"[^{delimiter}]*+"
        loose = f"{quote}(?:[^{quote}]++|{quote}{quote})*+{quote}?+{rest}|{rest}" if quote else rest
        self._field = re.compile(f"{delimiter}({loose})")
        self._closed = re.compile(inner) if quote else None

    def fields(self, text: str) -> list[str | None]:
        """Split a record; a field in which quotes or line ends stand where they must not is None."""
        return [self._plain(field) for field in self._field.findall(self.delimiter + text)]

    def _plain(self, field: str) -> str | None:
        if self._closed is not None and self._closed.fullmatch(field):
            return field[1:-1].replace(self.quote * 2, self.quote)
        return None if "\r" in field or (self.quote and self.quote in field) else field


def read_csv(file: Path, bound: BoundMapping) -> Records:
    """Yield the records of a CSV file, without its header."""
    layout, address = bound.mapping.csv, file_address(file)
    grammar, content = _Grammar(layout), file.read_bytes()
    declared: list[str | None] = [*(layout.columns or ())]
    if not layout.multiline:
        rows = _CsvRows(bound, declared)
        for line in _lines(content):
            text = _line_text(line)
            fields = [] if text is None else grammar.fields(text)
            if not (layout.header and fields == declared):
                yield SmallRecord(address, None, line, partial(rows.read, line, fields))
        return
    text = content.decode(_BYTES)
    found = None if layout.header else _CsvRows(bound, declared)
    number, seen = 1, 0
    for match in grammar.record.finditer(text):
        number += text.count("\n", seen, match.start())
        seen = match.start()
        fields = [_utf8(field) for field in grammar.fields(grammar.end.sub("", match[0]))]
        if found is None:
            found = _CsvRows(bound, fields)
            continue
        original = match[0].encode(_BYTES)
        yield SmallRecord(address, number, original, partial(found.read, original, fields))


@dataclass(frozen=True, slots=True)
class _CsvRows:
    """The rows below one header."""

    bound: BoundMapping
    columns: Sequence[str | None]

    def read(self, original: bytes, fields: Sequence[str | None]) -> SmallEvent:
        """Read a row. Raises `RecordError`."""
        try:
            original.decode()
        except UnicodeDecodeError:
            raise RecordError("ingest.utf8", "not UTF-8") from None
        if original.removeprefix(_BOM.encode()) in (b"", b"\n", b"\r\n", b"\r"):
            raise RecordError("ingest.empty", "an empty line")
        columns, declared, needed = self.columns, self.bound.mapping.csv.columns, self.bound.columns
        if declared is None:
            right = all(columns.count(name) == 1 for name in needed)
        else:
            right = set(needed) <= set(declared) and list(columns) == list(declared)
        if not right:
            raise RecordError("ingest.header", "the header is not the one that the mapping needs")
        if None in fields:
            raise RecordError("ingest.csv", "quotes or line ends stand where they must not")
        if len(fields) != len(columns):
            several = ", over several lines: a quote may be missing" if b"\n" in original[:-1] else ""
            raise RecordError("ingest.columns", f"more or fewer fields than the header has{several}")
        return mapped_event(
            self.bound,
            lambda what, spec, origin: from_text(what, spec, fields[columns.index(origin.column)], origin.reading),
        )


def _utf8(field: str | None) -> str | None:
    return None if field is None else field.encode(_BYTES).decode(errors="replace")


def _lines(content: bytes) -> list[bytes]:
    lines = content.split(b"\n")
    return lines if lines[-1] else lines[:-1]


def _line_text(line: bytes) -> str | None:
    """Return a line as text, without a byte order mark before it or a carriage return behind it."""
    try:
        return line.decode().removeprefix(_BOM).removesuffix("\r")
    except UnicodeDecodeError:
        return None


# --- Parquet ---------------------------------------------------------------------------------------------------------


_WHOLE_TYPES: Final = (pa.int8(), pa.int16(), pa.int32(), pa.int64())
_SIMPLE: Final = (*_WHOLE_TYPES, pa.bool_(), pa.float64(), pa.string(), pa.large_string())


def read_parquet(files: Sequence[Path], bound: BoundMapping) -> Records:
    """Yield the rows of Parquet files with equal columns of simple types; other tables are for Spark."""
    tables = [pq.ParquetFile(file, coerce_int96_timestamp_unit="us").read() for file in files]
    schema = tables[0].schema.remove_metadata()
    if any(table.schema.remove_metadata() != schema for table in tables):
        raise NotSmallError("Parquet files differ in their columns")
    for field in schema:
        if field.type not in _SIMPLE and not (pa.types.is_timestamp(field.type) and _is_instant(field.type)):
            raise NotSmallError(f"a Parquet column holds {field.type}")
    kinds = {field.name: field.type for field in schema}
    if len(kinds) != len(schema) or any("=" in folder for folder in files[0].parts[:-1]):
        raise NotSmallError("Parquet columns are also in the names of folders")
    _check_columns(kinds, bound)
    for file, table in zip(files, tables, strict=True):
        address = file_address(file)
        try:
            rows = table.to_pylist()
        except UnicodeDecodeError:
            raise NotSmallError("a Parquet text is not UTF-8") from None
        for position, row in enumerate(rows, start=1):
            yield SmallRecord(address, position, row_json(row).encode(), partial(_parquet_event, row, bound))


def _is_instant(of: Any) -> bool:
    return of.tz is not None and of.unit in ("ms", "us")


def _check_columns(kinds: Mapping[str, Any], bound: BoundMapping) -> None:
    """Leave columns that the mapping cannot read to Spark, which says what is wrong."""
    mapping, schema = bound.mapping, bound.event_type.schema
    origins: list[tuple[Kind, Origin]] = [(Kind.STRING, mapping.id), (Kind.TIMESTAMP, mapping.time)]
    origins += [(Kind.STRING, mapping.source), *((schema[name].kind, one) for name, one in mapping.attributes.items())]
    for kind, origin in origins:
        if not isinstance(origin, FromColumn):
            continue
        of = kinds.get(origin.column)
        fits = of in (pa.string(), pa.large_string()) or (
            (kind is Kind.BOOLEAN and of == pa.bool_())
            or (kind is Kind.INTEGER and of in _WHOLE_TYPES)
            or (kind is Kind.FLOAT and of in (*_WHOLE_TYPES, pa.float64()))
            or (kind is Kind.TIMESTAMP and of is not None and pa.types.is_timestamp(of))
        )
        if not fits:
            raise NotSmallError(f"column `{origin.column[:80]}` is not one that holds {kind.phrase}")


def _parquet_event(row: Mapping[str, Any], bound: BoundMapping) -> SmallEvent:
    def cell(what: str, spec: AttributeSpec, origin: FromColumn) -> Scalar:
        value = row[origin.column]
        if isinstance(value, str):
            return from_text(what, spec, value, origin.reading)
        if isinstance(value, datetime):
            value = value.astimezone(UTC)
        elif spec.kind is Kind.FLOAT and value is not None:
            value = float(value)
        return _checked(what, spec, value)

    return mapped_event(bound, cell)


def row_json(row: Mapping[str, Any]) -> str:
    """Return a row as Spark's `to_json` writes it."""
    return (
        "{"
        + ",".join(f"{json.dumps(name, ensure_ascii=False)}:{_cell_json(value)}" for name, value in row.items())
        + "}"
    )


def _cell_json(value: object) -> str:
    if isinstance(value, datetime):
        moment = value.astimezone(UTC)
        return f'"{moment:%Y-%m-%dT%H:%M:%S}.{moment.microsecond // 1000:03d}Z"'
    if isinstance(value, float):
        return java_float(value) if math.isfinite(value) else f'"{java_float(value)}"'
    return json.dumps(value, ensure_ascii=False)


def java_float(value: float) -> str:
    """Return a float as Java writes it.

    >>> [java_float(one) for one in (0.1, 1e7, 1.5e-4, float("-inf"))]
    ['0.1', '1.0E7', '1.5E-4', '-Infinity']
    """
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return repr(value) if "e" not in repr(value) else f"{value:.17f}".rstrip("0")
    sign, digits, exponent = Decimal(repr(value)).normalize().as_tuple()
    power = len(digits) - 1 + int(exponent)
    rest = "".join(map(str, digits[1:])) or "0"
    return f"{'-' if sign else ''}{digits[0]}.{rest}E{power}"


# ----------------------------------------------------------------------------------------------------------------------
# CloudEvents in lines of JSON.


_JSON: Final = re.compile(r"\s*application/(?:[a-z0-9.!#$&^_-]+\+)?json\s*(?:;.*)?", re.ASCII | re.IGNORECASE)
_ESCAPES: Final = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\[^u]", re.ASCII | re.DOTALL)
_HALF: Final = re.compile(r"\\u[dD][89a-fA-F][0-9a-fA-F]{2}", re.ASCII)
_DIGITS: Final = 38
"""Digits of the largest decimal of Spark: a number with more is a float."""
_NUMBER: Final = 1_000
"""Characters of the longest number that Spark's parser reads."""


class _Pairs(list[tuple[str, Any]]):
    """A JSON object as it is written."""


class _Number(str):
    """A JSON number as it is written."""

    __slots__ = ()


def _no_constant(_: str) -> object:
    raise ValueError("not a JSON number")


_DECODER: Final = json.JSONDecoder(
    object_pairs_hook=_Pairs, parse_int=_Number, parse_float=_Number, parse_constant=_no_constant
)


def read_envelopes(file: Path, types: Mapping[str, EventType]) -> Records:
    """Yield the lines of a file of CloudEvents; `types` are the versions by their names."""
    address = file_address(file)
    for line in _lines(file.read_bytes()):
        yield SmallRecord(address, None, line, partial(_envelope, line, types))


def type_names(types: Iterable[EventType]) -> dict[str, EventType]:
    """Return versions by the names that records may use; the later of two counts."""
    found: dict[str, EventType] = {}
    for event_type in types:
        name = event_type.name
        found[str(name)] = event_type
        if name.version == "0":
            found[str(name.key)] = event_type
    return found


def _envelope(line: bytes, types: Mapping[str, EventType]) -> SmallEvent:
    outer = _object(line)
    if outer.get("specversion") != "1.0" or isinstance(outer.get("specversion"), _Number):
        raise RecordError("ingest.envelope", "`specversion` is not `1.0`")
    identity, source = _identity(_string(outer.get("id"))), _principal(_string(outer.get("source")))
    time = _instant(lambda: from_json("time", _MOMENT, outer.get("time")))
    event_type = types.get(_string(outer.get("type")) or "")
    if event_type is None:
        raise RecordError("ingest.type", "of no type and version that is known")
    data, content = outer.get("data"), outer.get("datacontenttype")
    is_json = content is None or (_string(content) is not None and _JSON.fullmatch(content) is not None)
    if not isinstance(data, _Pairs) or not is_json:
        raise RecordError("ingest.data", "`data` is not a JSON object")
    given = dict(data)
    if given.keys() - event_type.by_name.keys():
        name = event_type.name
        words = f"`data` has an attribute that `{name.name}` version {name.version} lacks"
        raise RecordError("ingest.unknown-attribute", words)
    values = {a.name: from_json(f"attribute `{a.name}`", a.spec, given.get(a.name)) for a in event_type.attributes}
    return SmallEvent(event_type, identity, time, source, values)


def _object(line: bytes) -> dict[str, Any]:
    """Return the object of a line. Raises `RecordError`."""
    text = _line_text(line)
    if text is None:
        raise RecordError("ingest.utf8", "not UTF-8")
    if not text.strip(_BLANK):
        raise RecordError("ingest.empty", "an empty line")
    try:
        found, end = _DECODER.raw_decode(text, len(text) - len(text.lstrip(_BLANK)))
    except (ValueError, RecursionError):
        found, end = None, 0
    half = _HALF.search(_ESCAPES.sub(" ", text)) is not None
    unread = not isinstance(found, _Pairs) or half or _unreadable(found, 0) or bool(text[end:].strip(_BLANK))
    if unread and half:
        raise RecordError("ingest.text", "a string holds a lone surrogate")
    if isinstance(found, _Pairs) and (_repeated(found) or _repeated(dict(found).get("data"))):
        raise RecordError("ingest.duplicate-key", "a name stands twice in an object")
    if unread or found is None:
        raise RecordError("ingest.json", "not one JSON object")
    return dict(found)


def _repeated(found: object) -> bool:
    return isinstance(found, _Pairs) and len({name for name, _ in found}) != len(found)


def _unreadable(value: object, depth: int) -> bool:
    """Return whether Spark does not read a value: a name stands twice deep inside, or a number is too long."""
    if isinstance(value, _Pairs):
        again = depth > 1 and _repeated(value)
        return again or any(_unreadable(member, depth + 1) for _, member in value)
    if isinstance(value, list):
        return any(_unreadable(member, depth + 2) for member in value)
    return isinstance(value, _Number) and len(value) > _NUMBER


def _string(value: object) -> str | None:
    return value if isinstance(value, str) and not isinstance(value, _Number) else None


def from_json(what: str, spec: AttributeSpec, value: object) -> Scalar:
    """Convert a JSON value to an attribute's value. Raises `RecordError`."""
    kind = spec.kind
    if value is None:
        return None
    found: Scalar = None
    if isinstance(value, _Number):
        whole = value.removeprefix("-").isdecimal()
        if kind is Kind.INTEGER and whole and len(value.removeprefix("-")) <= _DIGITS:
            found = int(value)
        elif kind is Kind.FLOAT:
            found = _finite(what, float(value))
            # A decimal has one zero.
            found = 0.0 if found == 0 and "e" not in value.lower() else found
    elif isinstance(value, bool):
        found = value if kind is Kind.BOOLEAN else None
    elif isinstance(value, str):
        found = value if kind is Kind.STRING else instant(value, (RFC3339,), None) if kind is Kind.TIMESTAMP else None
    if found is None:
        raise _wrong_kind(what, kind)
    return _checked(what, spec, found)


# ----------------------------------------------------------------------------------------------------------------------
# Whole inputs.


def read_table(files: Sequence[Path], bound: BoundMapping) -> Records:
    """Yield the records of tables. Raises `NotSmallError` for what only Spark reads."""
    if bound.mapping.format is MappedFormat.PARQUET:
        yield from read_parquet(files, bound)
        return
    for file in files:
        yield from read_csv(file, bound)


def check_types(types: Sequence[EventType]) -> None:
    """Leave types that cannot stand in one table to Spark, which says what is wrong. Raises `NotSmallError`."""
    kinds: dict[str, Kind] = {}
    for event_type in types:
        for attribute in event_type.attributes:
            if kinds.setdefault(str(attribute.id), attribute.spec.kind) is not attribute.spec.kind:
                raise NotSmallError("an attribute has two kinds")
    if len({event_type.name for event_type in types}) != len(types):
        raise NotSmallError("a version of a type is given twice")
    try:
        for event_type in types:
            str(event_type.name)
    except MalformedError:
        raise NotSmallError("a type has no name") from None
