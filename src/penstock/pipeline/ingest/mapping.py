"""Mapping files: which column of a table becomes which attribute of an event, and how its text is read.

`read_mapping` reads the file, strictly and without touching anything else. `Mapping.bind` resolves it against a
verified type; only a bound mapping can be used. docs/reference/mapping.md describes the keys.
"""

import re
from collections.abc import Iterator
from collections.abc import Mapping as MappingOf
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from penstock.errors import FailedError, MalformedError, did_you_mean
from penstock.model.principals import Principal
from penstock.model.types import Attribute, EventType
from penstock.model.values import Kind, Scalar, Value, canonical, check_value
from penstock.store.files.strict_tables import Strict
from penstock.trust.event_types import VerifiedType

# ----------------------------------------------------------------------------------------------------------------------
# Formats of timestamps, as regular expressions that rewrite a text into one that Spark reads.
#
# A format is strict: missing digits are not guessed. It is `iso`, `unix`, `unix-ms`, `unix-us`, or a text with
# directives:
#
#     %Y      four digits of the year           %H %M %S     two digits of hour, minute and second
#     %m %d   two digits of month and day       %f           one to nine digits of a fraction of the second
#     %-m %-d %-H                               one or two digits
#     %z      `Z`, `+01:00` or `+0100`          %%           a percent sign
#
# Each directive occurs at most once, and every format has year, month and day.


_YEAR, _MONTH, _DAY = "([0-9]{4})", "(0[1-9]|1[0-2])", "(0[1-9]|[12][0-9]|3[01])"
_HOUR, _MINUTE = "([01][0-9]|2[0-3])", "([0-5][0-9])"
_FRACTION: Final = "([0-9]{1,9})"
#: as far as zones go in Java, which is farther than they go on Earth
_ZONE: Final = "(Z|[+-](?:(?:0[0-9]|1[0-7]):[0-5][0-9]|18:00))"
_LOOSE_ZONE: Final = "(Z|[+-](?:(?:0[0-9]|1[0-7]):?[0-5][0-9]|18:?00))"
_DIRECTIVES: Final[MappingOf[str, tuple[str, str]]] = MappingProxyType(
    {
        "%Y": ("year", _YEAR),
        "%m": ("month", _MONTH),
        "%-m": ("month", "(0?[1-9]|1[0-2])"),
        "%d": ("day", _DAY),
        "%-d": ("day", "(0?[1-9]|[12][0-9]|3[01])"),
        "%H": ("hour", _HOUR),
        "%-H": ("hour", "([01]?[0-9]|2[0-3])"),
        "%M": ("minute", _MINUTE),
        "%S": ("second", _MINUTE),
        "%f": ("fraction", _FRACTION),
        "%z": ("zone", _LOOSE_ZONE),
    }
)
_PIECE: Final = re.compile(r"%-?[A-Za-z%]|%|[^%]", re.ASCII | re.DOTALL)
_LENGTH: Final = 64
_DATE: Final = f"{_YEAR}-{_MONTH}-{_DAY}"


@dataclass(frozen=True, slots=True)
class Rewriting:
    """One shape of a timestamp: an expression for the whole text, and what it becomes, up to the zone.

    `zoned` says whether the zone is part of it, `as_written` that Spark reads the text itself, without replacing.
    """

    pattern: str
    replacement: str
    zoned: bool
    as_written: bool = False


@dataclass(frozen=True, slots=True)
class TimeFormat:
    """One format: the shapes of its text, or else a number of units of so many microseconds since 1970."""

    text: str
    rewritings: tuple[Rewriting, ...] = ()
    unit: int = 0
    number: str = ""


RFC3339: Final = TimeFormat(
    "rfc3339",
    (
        Rewriting(
            f"{_DATE}[T ]{_HOUR}:{_MINUTE}:{_MINUTE}(\\.[0-9]{{1,9}})?{_ZONE}", "$1-$2-$3T$4:$5:$6$7$8", True, True
        ),
    ),
)
"""What JSON uses. No mapping can name it."""

ISO: Final = TimeFormat(
    "iso",
    (
        *RFC3339.rewritings,
        Rewriting(f"{_DATE}[T ]{_HOUR}:{_MINUTE}:{_MINUTE}(\\.[0-9]{{1,9}})?", "$1-$2-$3T$4:$5:$6$7", False, True),
        Rewriting(f"{_DATE}[T ]{_HOUR}:{_MINUTE}{_ZONE}", "$1-$2-$3T$4:$5:00$6", True),
        Rewriting(f"{_DATE}[T ]{_HOUR}:{_MINUTE}", "$1-$2-$3T$4:$5:00", False),
        Rewriting(_DATE, "$1-$2-$3T00:00:00", False),
    ),
)
_NAMED: Final[MappingOf[str, TimeFormat]] = MappingProxyType(
    {
        "iso": ISO,
        "unix": TimeFormat("unix", unit=1_000_000, number="-?[0-9]{1,12}(?:\\.[0-9]{1,9})?"),
        "unix-ms": TimeFormat("unix-ms", unit=1_000, number="-?[0-9]{1,15}"),
        "unix-us": TimeFormat("unix-us", unit=1, number="-?[0-9]{1,18}"),
    }
)


def time_format(text: str) -> TimeFormat:
    """Read a format.

    >>> time_format("%d.%m.%Y").rewritings[0].replacement
    '$3-$2-$1T00:00:00'

    Raises `MalformedError` (`mapping.format`).
    """
    if text in _NAMED:
        return _NAMED[text]
    parts: list[str] = []
    groups: dict[str, str] = {}
    for piece in _PIECE.findall(text[: _LENGTH + 1]):
        if piece == "%%" or (len(piece) == 1 and piece != "%"):
            parts.append(re.escape("%" if piece == "%%" else piece))
            continue
        if piece not in _DIRECTIVES:
            raise _problem(text, f"`{piece}` is not a directive of a time format")
        name, pattern = _DIRECTIVES[piece]
        if name in groups:
            raise _problem(text, f"the {name} stands twice in a time format")
        groups[name] = f"${len(groups) + 1}"
        parts.append(pattern)
    missing = [name for name in ("year", "month", "day") if name not in groups]
    if missing or len(text) > _LENGTH:
        raise _problem(text, f"a time format lacks the {missing[0]}" if missing else "a time format is too long")
    for finer, coarser in (("minute", "hour"), ("second", "minute"), ("fraction", "second")):
        if finer in groups and coarser not in groups:
            raise _problem(text, f"a time format has the {finer} and not the {coarser}")
    clock = ":".join(groups.get(name, "00") for name in ("hour", "minute", "second"))
    fraction = f".{groups['fraction']}" if "fraction" in groups else ""
    replacement = f"{groups['year']}-{groups['month']}-{groups['day']}T{clock}{fraction}{groups.get('zone', '')}"
    return TimeFormat(text, (Rewriting("".join(parts), replacement, "zone" in groups),))


def _problem(text: str, message: str) -> MalformedError:
    return MalformedError(
        "mapping.format",
        message,
        hint="write `iso`, `unix`, `unix-ms`, `unix-us`, or something like `%d.%m.%Y %H:%M:%S`",
        format=text[:_LENGTH],
    )


# ----------------------------------------------------------------------------------------------------------------------
# Mapping files.


_HELP: Final = "see docs/reference/mapping.md"
_FILE: Final = Strict.of("mapping.", _HELP, zone="zone")


class MappedFormat(StrEnum):
    """The kind of files that a mapping is for."""

    CSV = "csv"
    PARQUET = "parquet"


@dataclass(frozen=True, slots=True)
class ColumnFormat:
    """How the text of a column is read. The defaults here apply if a mapping file does not say otherwise."""

    trim: bool = True
    null: tuple[str, ...] = ("",)
    formats: tuple[TimeFormat, ...] = (ISO,)
    zone: str | None = None
    decimal: str = "."
    group: str = ""
    true: tuple[str, ...] = ("true",)
    false: tuple[str, ...] = ("false",)


@dataclass(frozen=True, slots=True)
class FromColumn:
    """A value from a column."""

    column: str
    reading: ColumnFormat
    #: the options that the mapping file gives for this column alone
    own: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class ConstantColumn:
    """A value that is the same for every record."""

    value: Value


Origin = FromColumn | ConstantColumn


@dataclass(frozen=True, slots=True)
class CsvLayout:
    """The layout of a CSV file.

    With `multiline` a quoted field may hold line ends, and each file is read by one task. Without, each line is a
    record, large files are read by many tasks, and `columns` must be given.
    """

    delimiter: str = ","
    quote: str = '"'
    header: bool = True
    multiline: bool = True
    columns: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Mapping:
    """A mapping file as it was read. `type_file` names the file of the signed event type, as the mapping writes it."""

    type_file: str
    format: MappedFormat
    #: a column in every mapping file
    id: Origin
    time: Origin
    source: Origin
    attributes: MappingOf[str, Origin]
    csv: CsvLayout

    def bind(self, verified: VerifiedType) -> "BoundMapping":
        """Resolve the names of attributes against a type whose signature was verified.

        Raises `MalformedError`: `mapping.attribute` for a name that the type lacks, `mapping.constant` for a constant
        that does not fit, `mapping.option` for an option that the attribute's kind does not have,
        `mapping.value` for a float with one sign for two things.
        """
        event_type = verified.event_type
        bound: dict[str, Origin] = {}
        for name, origin in self.attributes.items():
            attribute = event_type.by_name.get(name)
            if attribute is None:
                raise MalformedError(
                    "mapping.attribute",
                    f"`{event_type.name.name}` version {event_type.name.version} has no attribute `{name[:80]}`",
                    hint=did_you_mean(name, event_type.by_name, f"it has: {', '.join(event_type.by_name) or 'none'}"),
                    attribute=name[:80],
                )
            bound[name] = _bound(attribute, origin)
        return BoundMapping(replace(self, attributes=MappingProxyType(bound)), event_type)


@dataclass(frozen=True, slots=True)
class BoundMapping:
    """A mapping whose attributes are those of a verified type. Only `Mapping.bind` makes one."""

    mapping: Mapping
    event_type: EventType

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that the mapping reads, each once."""
        origins = (self.mapping.id, self.mapping.time, self.mapping.source, *self.mapping.attributes.values())
        return tuple(dict.fromkeys(origin.column for origin in origins if isinstance(origin, FromColumn)))


_OPTIONS_OF: Final[MappingOf[Kind, frozenset[str]]] = MappingProxyType(
    {
        Kind.STRING: frozenset({"trim", "null"}),
        Kind.INTEGER: frozenset({"trim", "null", "group"}),
        Kind.FLOAT: frozenset({"trim", "null", "group", "decimal"}),
        Kind.BOOLEAN: frozenset({"trim", "null", "true", "false"}),
        Kind.TIMESTAMP: frozenset({"trim", "null", "formats", "zone"}),
    }
)
_OPTIONS: Final = frozenset().union(*_OPTIONS_OF.values())


def _bound(attribute: Attribute, origin: Origin) -> Origin:
    kind = attribute.spec.kind
    if isinstance(origin, FromColumn):
        _check_options(f"attribute `{attribute.name}`", kind, origin)
        sign = origin.reading.decimal
        if kind is Kind.FLOAT and origin.reading.group == sign:
            raise _FILE.wrong(f"attributes.{attribute.name}.group", f"another sign than `{sign}`, the decimal sign")
        return origin
    value: Scalar = origin.value
    if kind is Kind.FLOAT and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    try:
        attribute.spec.check(value)
    except MalformedError as error:
        raise MalformedError(
            "mapping.constant",
            f"attribute `{attribute.name}`: {error.message}",
            hint=error.hint or f"the attribute is a {kind}",
        ) from error
    found = canonical(value)
    return origin if found is None else ConstantColumn(found)


def _check_options(what: str, kind: Kind, origin: FromColumn) -> None:
    wrong = sorted(origin.own - _OPTIONS_OF[kind])
    if wrong:
        raise MalformedError(
            "mapping.option",
            f"{what} is a {kind}, which has no option `{wrong[0]}`",
            hint=f"its options are: {', '.join(sorted(_OPTIONS_OF[kind]))}",
        )


# --- Reading the file ------------------------------------------------------------------------------------------------


@contextmanager
def naming_type(file: str) -> Iterator[None]:
    """Say of a type file that cannot be read in which mapping its name stands."""
    try:
        yield
    except FailedError as error:
        hint = f"correct `type` in the mapping `{file}`: it is relative to the mapping's own folder"
        raise FailedError(error.code, error.message, hint=hint) from None


def read_mapping(data: str | bytes) -> Mapping:
    """Read a mapping file.

    Raises `MalformedError`: `mapping.syntax` when it is not TOML, `mapping.unknown-key`, `mapping.missing`,
    `mapping.value` for a value of a wrong shape, `mapping.format` for a time format, `mapping.zone`,
    `mapping.constant` and `mapping.option` for the id, the time and the source.
    """
    table = _FILE.parse(data)
    _FILE.known("the mapping", table, {"type", "format", "event", "attributes", "defaults", "csv"})
    try:
        table_format = MappedFormat(_FILE.text("format", _FILE.needed("the mapping", table, "format")))
    except ValueError as error:
        raise _FILE.wrong("format", "`csv` or `parquet`") from error
    if "csv" in table and table_format is not MappedFormat.CSV:
        raise _FILE.wrong("csv", "absent: the format is not `csv`")
    defaults = _reading("defaults", _FILE.table("defaults", table.get("defaults", {})), ColumnFormat())
    event = _FILE.table("event", _FILE.needed("the mapping", table, "event"))
    _FILE.known("event", event, {"id", "time", "source"})
    identity = _origin("event.id", _FILE.needed("event", event, "id"), defaults)
    if not isinstance(identity, FromColumn):
        raise _FILE.wrong("event.id", "a column: events with equal ids cannot be distinguished")
    time = _origin("event.time", _FILE.needed("event", event, "time"), defaults)
    source = _origin("event.source", _FILE.needed("event", event, "source"), defaults)
    _check_options("the id", Kind.STRING, identity)
    return Mapping(
        type_file=_FILE.text("type", _FILE.needed("the mapping", table, "type")),
        format=table_format,
        id=identity,
        time=_event_constant("time", Kind.TIMESTAMP, time),
        source=_event_constant("source", Kind.STRING, source),
        attributes=MappingProxyType(
            {
                name: _origin(f"attributes.{name}", value, defaults)
                for name, value in _FILE.table("attributes", _FILE.needed("the mapping", table, "attributes")).items()
            }
        ),
        csv=_csv(_FILE.table("csv", table.get("csv", {}))),
    )


def _event_constant(name: str, kind: Kind, origin: Origin) -> Origin:
    if isinstance(origin, FromColumn):
        _check_options(f"the {name}", kind, origin)
        return origin
    try:
        check_value(kind, origin.value)
        if kind is Kind.STRING:
            Principal.parse(str(origin.value))
    except MalformedError as error:
        raise MalformedError("mapping.constant", f"event.{name}: {error.message}", hint=error.hint or _HELP) from error
    return origin


def _origin(where: str, value: object, defaults: ColumnFormat) -> Origin:
    if isinstance(value, str):
        return FromColumn(value, defaults)
    table = _FILE.table(where, value)
    if "constant" in table:
        _FILE.known(where, table, {"constant"})
        constant = table["constant"]
        if not isinstance(constant, str | int | float | datetime):
            raise _FILE.wrong(f"{where}.constant", "a string, a number, a boolean or a date with time and zone")
        return ConstantColumn(constant)
    column = _FILE.text(f"{where}.column", _FILE.needed(where, table, "column"))
    options = {key: option for key, option in table.items() if key != "column"}
    return FromColumn(column, _reading(where, options, defaults), frozenset(options))


def _reading(where: str, table: MappingOf[str, object], defaults: ColumnFormat) -> ColumnFormat:
    _FILE.known(where, table, _OPTIONS)
    found = defaults
    if "trim" in table:
        found = replace(found, trim=_FILE.flag(f"{where}.trim", table["trim"]))
    if "null" in table:
        found = replace(found, null=_FILE.texts(f"{where}.null", table["null"]))
    if "formats" in table:
        formats = _FILE.some(f"{where}.formats", _FILE.texts(f"{where}.formats", table["formats"]))
        found = replace(found, formats=tuple(map(time_format, formats)))
    if "zone" in table:
        found = replace(found, zone=_FILE.time_zone(f"{where}.zone", table["zone"]).key)
    if "decimal" in table:
        found = replace(found, decimal=_one_of(f"{where}.decimal", table["decimal"], (".", ",")))
    if "group" in table:
        found = replace(found, group=_one_of(f"{where}.group", table["group"], ("", ".", ",", " ", "'", "_", "\u00a0")))
    if "true" in table:
        found = replace(found, true=_FILE.some(f"{where}.true", _FILE.texts(f"{where}.true", table["true"])))
    if "false" in table:
        found = replace(found, false=_FILE.some(f"{where}.false", _FILE.texts(f"{where}.false", table["false"])))
    both = sorted(set(found.true) & set(found.false))
    if both:
        raise _FILE.wrong(where, f"clear: `{both[0][:40]}` is both true and false")
    return found


def _csv(table: MappingOf[str, object]) -> CsvLayout:
    _FILE.known("csv", table, {"delimiter", "quote", "header", "multiline", "columns"})
    delimiter = _FILE.text("csv.delimiter", table.get("delimiter", ","))
    quote = table.get("quote", '"')
    if len(delimiter) != 1 or not delimiter.isascii() or delimiter.isalnum() or delimiter in '\r\n\0"':
        raise _FILE.wrong("csv.delimiter", "one ASCII character that is not a letter, digit, line end or quote")
    if not isinstance(quote, str) or quote not in ("", '"', "'") or quote == delimiter:
        raise _FILE.wrong("csv.quote", "`\"`, `'`, or empty where nothing is quoted")
    columns = None
    if "columns" in table:
        columns = _FILE.some("csv.columns", _FILE.texts("csv.columns", table["columns"]))
        if len(set(columns)) != len(columns):
            raise _FILE.wrong("csv.columns", "a list in which no name stands twice")
    layout = CsvLayout(
        delimiter,
        quote,
        _FILE.flag("csv.header", table.get("header", True)),
        _FILE.flag("csv.multiline", table.get("multiline", True)),
        columns,
    )
    if columns is None and not (layout.header and layout.multiline):
        raise MalformedError(
            "mapping.missing",
            "csv lacks `columns`",
            hint="without a header, or if each line is read by itself, list the columns in their order",
        )
    return layout


def _one_of(where: str, value: object, allowed: tuple[str, ...]) -> str:
    if not isinstance(value, str) or value not in allowed:
        raise _FILE.wrong(where, f"one of {', '.join(f'`{sign}`' for sign in allowed if sign)}")
    return value
