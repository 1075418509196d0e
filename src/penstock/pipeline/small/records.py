"""Records of CSV, JSON lines and Parquet as typed events, one by one, by the rules of `penstock.pipeline.ingest`."""

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias

import pyarrow as pa  # type: ignore[import-untyped]  # it ships no types
import pyarrow.parquet as pq  # type: ignore[import-untyped]  # it ships no types

from penstock.errors import MalformedError
from penstock.model.types import EventType
from penstock.model.values import AttributeSpec, Kind, Scalar
from penstock.pipeline.ingest.mapping import (
    RFC3339,
    BoundMapping,
    FromColumn,
    MappedFormat,
    Origin,
)
from penstock.pipeline.ingest.texts import (
    BLANK,
    BYTES,
    NO_ID,
    NO_INSTANT,
    NO_SOURCE,
    NO_TIME,
    CsvGrammar,
    RecordError,
    check_fields,
    checked_value,
    finite,
    from_text,
    instant,
    is_principal,
    line_text,
    wrong_kind,
)
from penstock.pipeline.small.folders import NotSmallError

_TEXT: Final = AttributeSpec(Kind.STRING)
_MOMENT: Final = AttributeSpec(Kind.TIMESTAMP)


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
    if not isinstance(value, str) or not is_principal(value):
        raise RecordError(*NO_SOURCE)
    return value


def _identity(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise RecordError(*NO_ID)
    return value


def _event_time(read: Callable[[], Scalar]) -> datetime:
    try:
        time = read()
    except RecordError:
        raise RecordError(*NO_INSTANT) from None
    if not isinstance(time, datetime):
        raise RecordError(*NO_TIME)
    return time


# ----------------------------------------------------------------------------------------------------------------------
# Rows of tables, by a mapping.


def mapped_event(bound: BoundMapping, cell: Callable[[str, AttributeSpec, FromColumn], Scalar]) -> SmallEvent:
    """Return the event of a row, whose cells a function reads. Raises `RecordError`."""
    mapping, event_type = bound.mapping, bound.event_type

    def value(what: str, spec: AttributeSpec, origin: Origin) -> Scalar:
        return cell(what, spec, origin) if isinstance(origin, FromColumn) else origin.value

    identity = _identity(value("the id", _TEXT, mapping.id))
    source = _principal(value("the source", _TEXT, mapping.source))
    time = _event_time(lambda: value("the time", _MOMENT, mapping.time))
    values = {
        a.name: value(f"attribute `{a.name}`", a.spec, mapping.attributes[a.name])
        for a in event_type.attributes
        if a.name in mapping.attributes
    }
    return SmallEvent(event_type, identity, time, source, values)


# --- CSV, by the grammar of RFC 4180 ---------------------------------------------------------------------------------


def read_csv(file: Path, bound: BoundMapping) -> Records:
    """Yield the records of a CSV file, without its header."""
    layout, address = bound.mapping.csv, file_address(file)
    grammar, content = CsvGrammar(layout), file.read_bytes()
    declared: list[str | None] = [*(layout.columns or ())]
    if not layout.multiline:
        for line in _lines(content):
            fields = grammar.line_fields(line)
            if not (layout.header and fields == declared):
                yield SmallRecord(address, None, line, partial(_csv_event, bound, line, fields, declared))
        return
    text = content.decode(BYTES)
    columns = None if layout.header else declared
    number, seen = 1, 0
    for match in grammar.record.finditer(text):
        number += text.count("\n", seen, match.start())
        seen = match.start()
        fields = grammar.record_fields(match[0])
        if columns is None:
            columns = fields
            continue
        original = match[0].encode(BYTES)
        yield SmallRecord(address, number, original, partial(_csv_event, bound, original, fields, columns))


def _csv_event(
    bound: BoundMapping, original: bytes, fields: Sequence[str | None], columns: Sequence[str | None]
) -> SmallEvent:
    check_fields(original, fields, columns, bound.mapping.csv, bound.columns)
    return mapped_event(
        bound, lambda what, spec, origin: from_text(what, spec, fields[columns.index(origin.column)], origin.reading)
    )


def _lines(content: bytes) -> list[bytes]:
    lines = content.split(b"\n")
    return lines if lines[-1] else lines[:-1]


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
        return checked_value(what, spec, value)

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
    time = _event_time(lambda: from_json("time", _MOMENT, outer.get("time")))
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
    text = line_text(line)
    if text is None:
        raise RecordError("ingest.utf8", "not UTF-8")
    if not text.strip(BLANK):
        raise RecordError("ingest.empty", "an empty line")
    try:
        found, end = _DECODER.raw_decode(text, len(text) - len(text.lstrip(BLANK)))
    except (ValueError, RecursionError):
        found, end = None, 0
    half = _HALF.search(_ESCAPES.sub(" ", text)) is not None
    unread = not isinstance(found, _Pairs) or half or _unreadable(found, 0) or bool(text[end:].strip(BLANK))
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
            found = finite(what, float(value))
            # A decimal has one zero.
            found = 0.0 if found == 0 and "e" not in value.lower() else found
    elif isinstance(value, bool):
        found = value if kind is Kind.BOOLEAN else None
    elif isinstance(value, str):
        found = value if kind is Kind.STRING else instant(value, (RFC3339,), None) if kind is Kind.TIMESTAMP else None
    if found is None:
        raise wrong_kind(what, kind)
    return checked_value(what, spec, found)


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
