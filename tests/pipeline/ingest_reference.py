"""What ingest must do, record by record, with nothing but the standard library and `Event.of`."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from zoneinfo import ZoneInfo

from tests.trust.kit import NOW, key, who

from penstock.errors import MalformedError
from penstock.model import (
    AttributeDefinition,
    AttributeSpec,
    Enumerated,
    Event,
    EventType,
    Kind,
    Principal,
    Ranged,
    Scalar,
    TypeDefinition,
    TypeName,
)
from penstock.pipeline.ingest.mapping import BoundMapping, ColumnFormat, CsvLayout, FromColumn, Origin
from penstock.trust.event_types import VerifiedType, sign_type, verify_type

OWNER = 1
SOURCE = str(who(2))
ISO = re.compile(
    r"(\d{4}-\d\d-\d\d)(?:[T ]((?:[01]\d|2[0-3]):[0-5]\d)(?::([0-5]\d)(?:\.(\d{1,9}))?)?"
    r"(Z|[+-](?:(?:0\d|1[0-7]):[0-5]\d|18:00))?)?",
    re.ASCII,
)
#: how a mapping of Parquet files begins; attributes follow
PARQUET_MAPPING = f"""
type = "reading.type"
format = "parquet"
[event]
id = "n"
time = "t"
source = {{ constant = "{SOURCE}" }}
[attributes]
"""
CODES = {
    "value.kind": "ingest.kind",
    "value.range": "ingest.range",
    "value.domain": "ingest.domain",
    "value.text": "ingest.text",
    "event.unknown-attribute": "ingest.unknown-attribute",
}


class BadError(Exception):
    """A record does not fit."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


@dataclass(frozen=True)
class Found:
    """An event with its publisher, or the reason why there is none."""

    event: Event | None = None
    source: str = ""
    reason: str | None = None


def define() -> tuple[VerifiedType, VerifiedType]:
    """Sign and verify a type with every kind and domain, in two versions."""
    span = Ranged(datetime(2000, 1, 1, tzinfo=UTC), datetime(2030, 1, 1, tzinfo=UTC))
    first = TypeDefinition(
        TypeName(who(OWNER), "org.plant.Reading"),
        (
            AttributeDefinition("sensor", "0", AttributeSpec(Kind.STRING)),
            AttributeDefinition("colour", "1", AttributeSpec(Kind.STRING, Enumerated(frozenset({"red", "grün"})))),
            AttributeDefinition("count", "2", AttributeSpec(Kind.INTEGER)),
            AttributeDefinition("lane", "3", AttributeSpec(Kind.INTEGER, Ranged(0, 9))),
            AttributeDefinition("value", "4", AttributeSpec(Kind.FLOAT)),
            AttributeDefinition("share", "5", AttributeSpec(Kind.FLOAT, Ranged(-1.0, 1.0))),
            AttributeDefinition("level", "6", AttributeSpec(Kind.FLOAT, Enumerated(frozenset({0.0, 0.5, 1.0})))),
            AttributeDefinition("on", "7", AttributeSpec(Kind.BOOLEAN)),
            AttributeDefinition("seen", "8", AttributeSpec(Kind.TIMESTAMP)),
            AttributeDefinition("due-by", "9", AttributeSpec(Kind.TIMESTAMP, span)),
        ),
    )
    second = first.rename("sensor", "probe", version="1").remove("level", version="2")
    made = [sign_type(definition, key(OWNER)) for definition in (first, second)]
    one, two = (verify_type(signed, NOW) for signed in made)
    return one, two


def checked(event_type: EventType, values: Mapping[str, Scalar], identity: str, time: datetime) -> Event:
    try:
        return Event.of(event_type, values, id=identity, time=time)
    except MalformedError as error:
        raise BadError(CODES[error.code]) from error


def principal(text: object) -> str:
    try:
        if isinstance(text, str):
            return str(Principal.parse(text))
    except MalformedError:
        pass
    raise BadError("ingest.source")


def judged(read: Callable[[], tuple[Event, str]]) -> Found:
    try:
        event, source = read()
    except BadError as bad:
        return Found(reason=bad.code)
    return Found(event, source)


def iso(text: str, zone: tzinfo | None, code: str = "ingest.kind", *, rfc: bool = False) -> datetime:
    found = ISO.fullmatch(text)
    if not found:
        raise BadError(code)
    day, clock, second, fraction, offset = found.groups()
    if zone is None and (second is None or offset is None) and rfc:
        raise BadError(code)
    written = f"{day}T{clock or '00:00'}:{second or '00'}.{(fraction or '').ljust(6, '0')[:6]}"
    try:
        local = datetime.fromisoformat(written)  # the zone comes next
    except ValueError as error:
        raise BadError(code) from error
    return zoned(local, offset, zone, code)


def zoned(local: datetime, offset: str | None, zone: tzinfo | None, code: str) -> datetime:
    try:
        if offset:
            digits = re.sub(r"\D", "", offset)
            ahead = timedelta() if offset == "Z" else timedelta(hours=int(digits[:2]), minutes=int(digits[2:]))
            return local.replace(tzinfo=UTC) - (-ahead if offset[0] == "-" else ahead)
        if zone is None:
            raise BadError(code)
        return local.replace(tzinfo=zone).astimezone(UTC)
    except OverflowError as error:
        raise BadError(code) from error


# --- CloudEvents -----------------------------------------------------------------------------------------------------


def envelope(line: bytes, types: Sequence[EventType]) -> Found:
    return judged(lambda: _envelope(line, types))


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    if len({name for name, _ in pairs}) != len(pairs):
        raise BadError("ingest.duplicate-key")
    return dict(pairs)


def _no_constant(_: str) -> object:
    raise BadError("ingest.json")


def _has_surrogate(value: object) -> bool:
    if isinstance(value, dict):
        return any(_has_surrogate(item) for pair in value.items() for item in pair)
    if isinstance(value, list):
        return any(map(_has_surrogate, value))
    return isinstance(value, str) and any("\ud800" <= character <= "\udfff" for character in value)


def _envelope(line: bytes, types: Sequence[EventType]) -> tuple[Event, str]:
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadError("ingest.utf8") from error
    text = text.removeprefix("\ufeff").removesuffix("\r")
    if not text.strip(" \t\r\n"):
        raise BadError("ingest.empty")
    try:
        outer = json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)
    except ValueError as error:
        raise BadError("ingest.json") from error
    if _has_surrogate(outer):
        raise BadError("ingest.text")
    if not isinstance(outer, dict):
        raise BadError("ingest.json")
    if outer.get("specversion") != "1.0":
        raise BadError("ingest.envelope")
    identity = outer.get("id")
    if not isinstance(identity, str) or not identity:
        raise BadError("ingest.id")
    source = principal(outer.get("source"))
    if not isinstance(outer.get("time"), str):
        raise BadError("ingest.time")
    time = iso(outer["time"], None, "ingest.time", rfc=True)
    named = {str(t.name): t for t in types} | {str(t.key): t for t in types if t.name.version == "0"}
    found = outer.get("type")
    if not isinstance(found, str) or found not in named:
        raise BadError("ingest.type")
    content = outer.get("datacontenttype")
    if content is not None and content != "application/json":
        raise BadError("ingest.data")
    data = outer.get("data")
    if not isinstance(data, dict):
        raise BadError("ingest.data")
    event_type = named[found]
    if data.keys() - event_type.by_name.keys():
        raise BadError("ingest.unknown-attribute")
    values: dict[str, Scalar] = {}
    for name, spec in event_type.schema.items():
        values[name] = from_json(spec, data.get(name))
        checked(event_type, {name: values[name]}, identity, time)
    return checked(event_type, values, identity, time), source


def from_json(spec: AttributeSpec, value: object) -> Scalar:
    if isinstance(value, dict | list):
        raise BadError("ingest.kind")
    assert value is None or isinstance(value, str | int | float)
    if spec.kind is Kind.TIMESTAMP and isinstance(value, str):
        return iso(value, None, rfc=True)
    if spec.kind is Kind.FLOAT and not isinstance(value, bool) and isinstance(value, int | float):
        try:
            value = float(value)
        except OverflowError as error:
            raise BadError("ingest.range") from error
        if value in (float("inf"), float("-inf")):
            raise BadError("ingest.range")
    return value


# --- CSV -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Record:
    """The bytes of a record, its fields, None where quotes or line ends stand where they must not, and its line."""

    original: bytes
    fields: list[bytes | None]
    line: int


def split(content: bytes, layout: CsvLayout) -> list[Record]:
    """Split a whole file, byte by byte: a record that cannot be read to its end is one line."""
    records: list[Record] = []
    start, line = 0, 1
    while start < len(content):
        begin = 3 if start == 0 and content.startswith(b"\xef\xbb\xbf") else start
        found = whole(content, begin, layout)
        if found is None:
            end = content.find(b"\n", begin) + 1 or len(content)
            # What of it can be read does not matter: the record is bad.
            fields: list[bytes | None] = [None]
        else:
            end, fields = found
        records.append(Record(content[start:end], fields, line))
        line += content.count(b"\n", start, end)
        start = end
    return records


def whole(content: bytes, start: int, layout: CsvLayout) -> tuple[int, list[bytes | None]] | None:
    """Read one record to its end; None where a quote or a carriage return stands where it must not."""
    delimiter, quote = layout.delimiter.encode(), layout.quote.encode()
    fields: list[bytes | None] = []
    position = start
    while True:
        value = b""
        if quote and content[position : position + 1] == quote:
            position += 1
            while True:
                if position >= len(content):
                    return None
                if content[position : position + 2] == quote * 2:
                    value += quote
                    position += 2
                elif content[position : position + 1] == quote:
                    position += 1
                    break
                else:
                    value += content[position : position + 1]
                    position += 1
        else:
            while position < len(content) and content[position : position + 1] not in (delimiter, b"\n", b"\r", quote):
                value += content[position : position + 1]
                position += 1
        fields.append(value)
        rest = content[position : position + 2]
        if not rest or rest[:1] == b"\n":
            return min(position + 1, len(content)), fields
        if rest == b"\r\n":
            return position + 2, fields
        if rest[:1] != delimiter:
            return None
        position += 1


def table(content: bytes, bound: BoundMapping) -> list[tuple[Record, Found]]:
    """Read a whole CSV file with a header."""
    first, *others = split(content, bound.mapping.csv) or [Record(b"", [], 1)]
    return [(record, judged(lambda record=record: _row(record, first.fields, bound))) for record in others]  # type: ignore[misc]  # bound immediately


def _row(record: Record, header: list[bytes | None], bound: BoundMapping) -> tuple[Event, str]:
    try:
        record.original.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadError("ingest.utf8") from error
    # The last one is the end of a file that was cut within the end of its last line.
    if record.original in (b"\n", b"\r\n", b"\r"):
        raise BadError("ingest.empty")
    names = [name.decode("utf-8") for name in header if name is not None]
    if any(names.count(name) != 1 for name in bound.columns):
        raise BadError("ingest.header")
    if None in record.fields:
        raise BadError("ingest.csv")
    if len(record.fields) != len(header):
        raise BadError("ingest.columns")
    texts = {name: (text or b"").decode() for name, text in zip(names, record.fields, strict=True)}
    mapping = bound.mapping

    def value(origin: Origin, kind: Kind, code: str = "ingest.kind") -> Scalar:
        if isinstance(origin, FromColumn):
            return from_text(kind, texts[origin.column], origin.reading, code)
        return origin.value

    identity = value(mapping.id, Kind.STRING)
    if not isinstance(identity, str) or not identity:
        raise BadError("ingest.id")
    source = principal(value(mapping.source, Kind.STRING))
    time = value(mapping.time, Kind.TIMESTAMP, "ingest.time")
    if not isinstance(time, datetime):
        raise BadError("ingest.time")
    values: dict[str, Scalar] = {}
    for name, spec in bound.event_type.schema.items():
        if name in mapping.attributes:
            values[name] = value(mapping.attributes[name], spec.kind)
            checked(bound.event_type, {name: values[name]}, identity, time)
    return checked(bound.event_type, values, identity, time), source


def from_text(kind: Kind, text: str, reading: ColumnFormat, code: str) -> Scalar:
    text = text.strip(" \t\r\n") if reading.trim else text
    if text in reading.null:
        return None
    if kind is Kind.STRING:
        return text
    if kind is Kind.BOOLEAN:
        if text not in (*reading.true, *reading.false):
            raise BadError(code)
        return text in reading.true
    if kind is Kind.TIMESTAMP:
        return moment(text, reading, code)
    digits = text
    if reading.group and re.fullmatch(rf"[+-]?\d{{1,3}}(?:{re.escape(reading.group)}\d{{3}})+(?!\d).*", text, re.ASCII):
        digits = text.replace(reading.group, "")
    if kind is Kind.INTEGER:
        if not re.fullmatch(r"[+-]?\d+", digits, re.ASCII):
            raise BadError(code)
        return int(digits)
    point = re.escape(reading.decimal)
    if not re.fullmatch(rf"[+-]?(?:\d+(?:{point}\d*)?|{point}\d+)(?:[eE][+-]?\d+)?", digits, re.ASCII):
        raise BadError(code)
    number = float(digits.replace(reading.decimal, "."))
    if number in (float("inf"), float("-inf")):
        raise BadError("ingest.range")
    return number


def moment(text: str, reading: ColumnFormat, code: str) -> datetime:
    zone = ZoneInfo(reading.zone) if reading.zone else None
    for form in reading.formats:
        try:
            if form.text == "iso":
                return iso(text, zone, code)
            if form.unit:
                return unix(text, form.unit, code)
            local = datetime.strptime(text, form.text.replace("%-", "%"))  # noqa: DTZ007  # the zone comes next
            if not strict(form.text).fullmatch(text):
                continue
            return local.astimezone(UTC) if local.tzinfo else zoned(local, None, zone, code)
        except (BadError, ValueError, OverflowError):
            continue
    raise BadError(code)


def strict(form: str) -> re.Pattern[str]:
    """Return how many digits a format asks for; Python takes fewer."""
    pattern = re.escape(form).replace("%\\-", "%-")
    for directive in ("%d", "%m", "%H", "%M", "%S"):
        pattern = pattern.replace(directive, r"\d\d").replace(f"%-{directive[1:]}", r"\d{1,2}")
    return re.compile(pattern.replace("%Y", r"\d{4}").replace("%f", r"\d{1,6}").replace("%z", r".*"), re.ASCII)


def unix(text: str, unit: int, code: str) -> datetime:
    found = re.fullmatch(r"(-?)(\d{1,18})(?:\.(\d{1,9}))?", text, re.ASCII)
    length = {1: 18, 1_000: 15, 1_000_000: 12}[unit]
    if not found or len(found[2]) > length or (found[3] and unit != 1_000_000):
        raise BadError(code)
    micros = int(found[2]) * unit + int((found[3] or "").ljust(6, "0")[:6])
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=-micros if found[1] else micros)
