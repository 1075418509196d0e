"""CloudEvents, and rows of Parquet files, as typed events."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from typing import Final, TypeAlias
from urllib.parse import unquote

import pyarrow as pa  # type: ignore[import-untyped]  # it ships no types
import pyarrow.parquet as pq  # type: ignore[import-untyped]  # it ships no types
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # the name that everybody knows it by
from pyspark.sql.types import (
    BooleanType,
    ByteType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from penstock.errors import LimitError, MalformedError, did_you_mean
from penstock.model.types import EventType
from penstock.model.values import AttributeSpec, Enumerated, Kind, Value
from penstock.pipeline.frames import literal, micros, quoted, unprinted
from penstock.pipeline.ingest.event_frames import (
    LACKS,
    NAME,
    PRINCIPAL,
    RANK,
    TYPE,
    UNKNOWN_ATTRIBUTE,
    CheckedRecords,
    Version,
)
from penstock.pipeline.ingest.mapping import BoundMapping, FromColumn, Origin
from penstock.pipeline.ingest.records import (
    FILE,
    ORIGINAL,
    PLACE,
    ROW,
    Converted,
    RecordProblem,
    constant,
    from_column,
    from_json,
    from_text,
    given,
    line_text,
    outside,
)
from penstock.pipeline.ingest.texts import is_principal
from penstock.pipeline.limits import TABLE_FILES
from penstock.pipeline.outputs import reading
from penstock.pipeline.shared_columns import OF, SharedColumns

# ----------------------------------------------------------------------------------------------------------------------
# CloudEvents 1.0 in structured JSON, one a line, as typed events.
#
#     specversion  `1.0`
#     id           a text that is not empty
#     source       the principal of the publisher, `ed25519:…` or `threshold:…`, which is a URI as CloudEvents asks
#     type         the event type in one version, `owner/name@version`; without `@version` it is version 0
#     time         RFC 3339. CloudEvents may lack it; here it is needed, for rights are asked at its time
#     data         an object: attribute names and values. What is absent is null
#
# Timestamps in `data` are written as `time` is. Other members of the envelope (`subject`, `dataschema`, extensions) are
# allowed and not kept. `datacontenttype` is JSON where it stands.


_MAP: Final = "map<string,variant>"
_MOMENT: Final = AttributeSpec(Kind.TIMESTAMP)
_MEMBERS: Final = ("specversion", "id", "source", "type", "time", "datacontenttype", "data")
_JSON: Final = r"(?i)\A\s*application/(?:[a-z0-9.!#$&^_-]+\+)?json\s*(?:;.*)?\z"
# What is left of escapes once complete pairs and all other escapes are taken out is half a pair.
_ESCAPES: Final = r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\[^u]"
_HALF: Final = r"\\u[dD][89a-fA-F][0-9a-fA-F]{2}"

_LINE, _OUTER, _DATA = "@line", "@outer", "@data"
_NAMED, _NAMED_TYPE, _LOW, _HIGH, _MEMBERS_OF = "@named", "@named type", "@low", "@high", "@members"
_DOMAINS: Final[Mapping[Kind, pa.DataType]] = {
    Kind.STRING: pa.string(),
    Kind.INTEGER: pa.int64(),
    Kind.FLOAT: pa.float64(),
    Kind.BOOLEAN: pa.bool_(),
    Kind.TIMESTAMP: pa.int64(),
}
"""The types in which the ends and members of domains are in tables."""


def check_envelopes(records: DataFrame, types: Iterable[EventType]) -> CheckedRecords:
    """Check records against the versions that they name."""
    versions = list(types)
    names = dict.fromkeys(name for event_type in versions for name in event_type.by_name)
    parsed = _members(records).select("*", *_read(_DATA, {f"data.{name}": F.lit(name) for name in names}))
    return _checked(parsed, _type(versions), versions=[_version(event_type) for event_type in versions])


def check_shared(records: DataFrame, shared: SharedColumns) -> CheckedRecords:
    """Check records against the versions that they name, whose attributes share columns.

    What is asked of a version, and of the attribute that it has in each column, is in a table that a record finds by
    its type. So one expression asks it of all versions.
    """
    members = _members(records)
    known = F.broadcast(records.sparkSession.createDataFrame(_asked(shared)))
    typed = members.join(known, _string("type") == quoted(_NAMED), "left").withColumnRenamed(TYPE, _NAMED_TYPE)
    names = {f"data.{column}": quoted(f"{NAME} {column}") for column in shared.kinds}
    parsed = typed.select("*", *_read(_DATA, names))
    unknown = F.size(F.array_except(F.map_keys(quoted(_DATA)), F.array(*names.values()))) > 0
    return _checked(
        parsed,
        quoted(_NAMED_TYPE),
        shared={column: _shared_value(column, kind, parsed.columns) for column, kind in shared.kinds.items()},
        lacking=unknown,
    )


def _asked(shared: SharedColumns) -> pa.Table:
    """Return what is asked of each version, by every text that names it: a row for each."""
    rows: list[dict[str, object]] = []
    fields = {_NAMED: pa.string(), TYPE: pa.string(), OF: pa.int64(), LACKS: pa.string()}
    for column in shared.kinds:
        fields |= {f"{NAME} {column}": pa.string(), f"{RANK} {column}": pa.int32()}
    for number, event_type in enumerate(shared.types):
        own = shared.own(event_type)
        row: dict[str, object] = {TYPE: str(event_type.name), OF: number, LACKS: _lacks(event_type)}
        for rank, attribute in enumerate(event_type.attributes):
            column, domain = own[attribute.id], attribute.spec.domain
            row |= {f"{NAME} {column}": attribute.name, f"{RANK} {column}": rank}
            if domain is None:
                continue
            # Times are numbers here: on its way Spark would shift a timestamp by the session's zone.
            stored = _DOMAINS[attribute.spec.kind]
            if isinstance(domain, Enumerated):
                row[f"{_MEMBERS_OF} {column}"] = [_plain(value) for value in domain.values]
            else:
                row |= {f"{_LOW} {column}": _plain(domain.low), f"{_HIGH} {column}": _plain(domain.high)}
            fields |= {f"{_MEMBERS_OF} {column}": pa.list_(stored)}
            fields |= {f"{end} {column}": stored for end in (_LOW, _HIGH)}
        rows += [{_NAMED: text, **row} for text in _texts(event_type)]
    return pa.table({name: pa.array([row.get(name) for row in rows], type=kind) for name, kind in fields.items()})


def _plain(value: Value) -> object:
    return micros(value) if isinstance(value, datetime) else value


def _shared_value(column: str, kind: Kind, known: Sequence[str]) -> Converted:
    """Return what a record has in a shared column. Its problems lack the attribute's name."""
    read = from_json("", AttributeSpec(kind), _shape(f"data.{column}"), _text(f"data.{column}"))
    if f"{_LOW} {column}" not in known:
        return read
    low, high, members = (quoted(f"{what} {column}") for what in (_LOW, _HIGH, _MEMBERS_OF))

    def problems(found: Column) -> list[RecordProblem]:
        value = F.unix_micros(found) if kind is Kind.TIMESTAMP else found
        # Each is null where a domain has none.
        domains = [(low <= value) & (value <= high), F.array_contains(members, value)]
        return [*read.problems(found), *(outside("", inside) for inside in domains)]

    return Converted(read.value, problems)


def _members(records: DataFrame) -> DataFrame:
    """Return records with the members of their envelopes, and those of their data in a map."""
    place = [quoted(name) for name in PLACE]
    # (1) The line as text, null if it is none.
    line = F.when(F.is_valid_utf8(quoted(ORIGINAL).cast("string")), line_text(quoted(ORIGINAL)))
    lines = records.select(*place, line.alias(_LINE))
    # (2) The object. Spark's parser stops behind the first value and ignores the rest of the line; but only one single
    # value can be put both into an object and into an array.
    text = quoted(_LINE)
    whole = F.try_parse_json(F.concat(F.lit('{"":'), text, F.lit("}")))
    alone = F.try_parse_json(F.concat(F.lit("["), text, F.lit("]"))).isNotNull()
    outer = lines.select(*place, text, F.when(alone, F.try_variant_get(whole, "$['']", _MAP)).alias(_OUTER))
    # (3) The members of the envelope, and those of its data.
    data = F.try_variant_get(F.try_element_at(quoted(_OUTER), F.lit("data")), "$", _MAP)
    found = quoted(_OUTER).isNotNull()
    own = _read(_OUTER, {name: F.lit(name) for name in _MEMBERS})
    return outer.select(*place, text, found.alias(_OUTER), data.alias(_DATA), *own)


def _checked(
    parsed: DataFrame,
    type_: Column,
    versions: Sequence[Version] = (),
    shared: Mapping[str, Converted] | None = None,
    lacking: Column | None = None,
) -> CheckedRecords:
    content = _string("datacontenttype")
    json = (_shape("datacontenttype") == "VOID") | content.rlike(_JSON)
    no_data = quoted(_DATA).isNull() | ~_shape("data").startswith("OBJECT") | ~F.coalesce(json, F.lit(False))
    return CheckedRecords(
        parsed,
        type=type_,
        id=_string("id"),
        time=from_json("time", _MOMENT, _shape("time"), _text("time")),
        source=_string("source"),
        problems=_line_problems(),
        versions=versions,
        content=[RecordProblem(no_data, "ingest.data", "`data` is not a JSON object")],
        shared=shared or {},
        lacking=lacking,
    )


def _read(object_: str, names: Mapping[str, Column]) -> list[Column]:
    """Return shape and text of some members of an object, by their names in it; an absent member is a null."""
    columns = []
    for column, name in names.items():
        value = F.try_element_at(quoted(object_), name)
        columns.append(F.coalesce(F.schema_of_variant(value), F.lit("VOID")).alias(f"@shape {column}"))
        columns.append(F.try_variant_get(value, "$", "string").alias(f"@text {column}"))
    return columns


def _shape(name: str) -> Column:
    return quoted(f"@shape {name}")


def _text(name: str) -> Column:
    return quoted(f"@text {name}")


def _string(name: str) -> Column:
    return F.when(_shape(name) == "STRING", _text(name))


def _type(versions: Iterable[EventType]) -> Column:
    # One list of cases: of a thousand types, each within the next, Spark could not plan the expression.
    found = F.when(F.lit(False), F.lit(""))
    for event_type in versions:
        found = found.when(_string("type").isin(*_texts(event_type)), F.lit(str(event_type.name)))
    return found


def _texts(event_type: EventType) -> list[str]:
    """Return the texts that name a version."""
    name = event_type.name
    return [str(name), str(name.key)] if name.version == "0" else [str(name)]


def _lacks(event_type: EventType) -> str:
    name = event_type.name
    return f"`data` has an attribute that `{name.name}` version {name.version} lacks"


def _line_problems() -> list[RecordProblem]:
    text, unread = quoted(_LINE), ~quoted(_OUTER)
    half = F.regexp_replace(text, _ESCAPES, " ").rlike(_HALF)
    # A session can be configured to let the last of two equal names win. Then every line is checked.
    lax = F.try_parse_json(F.lit('{"a":1,"a":2}')).isNotNull()
    repeated = (unread | lax) & (_repeated(text) | _repeated(F.get_json_object(text, "$.data")))
    return [
        RecordProblem(text.isNull(), "ingest.utf8", "not UTF-8"),
        RecordProblem(text.rlike(r"\A[ \t\r\n]*\z"), "ingest.empty", "an empty line"),
        RecordProblem(unread & half, "ingest.text", "a string holds a lone surrogate"),
        RecordProblem(repeated, "ingest.duplicate-key", "a name stands twice in an object"),
        RecordProblem(unread, "ingest.json", "not one JSON object"),
        RecordProblem(
            ~F.coalesce(_string("specversion") == "1.0", F.lit(False)), "ingest.envelope", "`specversion` is not `1.0`"
        ),
    ]


def _repeated(text: Column) -> Column:
    keys = F.json_object_keys(text)
    return F.coalesce(F.size(keys) != F.size(F.array_distinct(keys)), F.lit(False))


def _version(event_type: EventType) -> Version:
    known = F.array(*map(F.lit, event_type.by_name)) if event_type.by_name else F.array().cast("array<string>")
    unknown = F.size(F.array_except(F.map_keys(quoted(_DATA)), known)) > 0
    values = {
        a.name: from_json(f"attribute `{a.name}`", a.spec, _shape(f"data.{a.name}"), _text(f"data.{a.name}"))
        for a in event_type.attributes
    }
    return Version(event_type, values, [RecordProblem(unknown, UNKNOWN_ATTRIBUTE, _lacks(event_type))])


# ----------------------------------------------------------------------------------------------------------------------
# The columns of each Parquet file of a table.
#
# Spark takes the columns of one file for those of all of them. Where another file lacks one, its values are null, and
# the rows of a file in which a column was renamed would be events of which nothing is known. So each is asked for its
# own.


Seen: TypeAlias = dict[tuple[object, ...], bool]
"""Whether a file lacks a column, by its name, length and time: a stream asks each once."""
_ASKED_AT_ONCE: Final = 8
_GLOB: Final = re.compile(r"([\\\[\]{}*?])")


def files_lacking(spark: SparkSession, path: str, columns: Iterable[str], seen: Seen | None = None) -> tuple[str, ...]:
    """Return those files at a path that lack one of some columns, by the names under which records have them.

    Reads the end of each file that is not in `seen` yet, and notes it there. Raises `LimitError` (`ingest.files`).
    """
    wanted, known = frozenset(columns), {} if seen is None else seen
    files = reading(spark).format("binaryFile").load(path)
    rows = files.select("path", "_metadata.file_path", "length", "modificationTime").collect()
    new = [row for row in rows if tuple(row) not in known]
    if len(new) > TABLE_FILES:
        raise LimitError(
            "ingest.files",
            f"`{path}` has {len(new):,} files whose columns must be read",
            hint=f"at most {TABLE_FILES:,} can be read together: read one folder after the other",
        )
    with ThreadPoolExecutor(_ASKED_AT_ONCE) as pool:
        found = pool.map(lambda row: _columns(spark, row[0]), new)
        known.update((tuple(row), not wanted <= own) for row, own in zip(new, found, strict=True))
    return tuple(sorted(row[1] for row in rows if known[tuple(row)]))


def _columns(spark: SparkSession, file: str) -> frozenset[str]:
    """Return the columns of a file, and those that its folders stand for."""
    folders = (unquote(folder).partition("=") for folder in file.split("/")[:-1])
    own = _local(spark, file)
    if own is None:
        own = reading(spark).parquet(_GLOB.sub(r"\\\1", file)).columns
    return frozenset((*own, *(name for name, sign, _ in folders if sign)))


def _local(spark: SparkSession, file: str) -> list[str] | None:
    """Return the columns of a file that is here; None if Spark must read it, and reports problems."""
    scheme, _, path = file.partition(":")
    # Of Spark Connect the session is another class, and the file is where the server is.
    if scheme != "file" or not isinstance(spark, SparkSession):
        return None
    try:
        return list(pq.read_schema(path).names)
    except (OSError, pa.ArrowInvalid):
        return None


# ----------------------------------------------------------------------------------------------------------------------
# Rows of Parquet files as typed events, by a mapping.


_TEXT: Final = AttributeSpec(Kind.STRING)
_PRINCIPAL: Final = "@principal"
_WHOLE: Final = (ByteType, ShortType, IntegerType, LongType)
_REAL: Final = (FloatType, DoubleType, DecimalType)


@dataclass(frozen=True, slots=True)
class _Cell:
    """A column that a mapping reads: where it stands, and of which type."""

    column: Column
    type: DataType


@dataclass(frozen=True, slots=True)
class _Table:
    """Records whose columns were found, and what is wrong with them as rows of a table."""

    frame: DataFrame
    cells: Mapping[str, _Cell]
    problems: Sequence[RecordProblem]


def check_table(
    records: DataFrame,
    bound: BoundMapping,
    lacking: Sequence[str] = (),
    columns: Mapping[str, str] | None = None,
    publishers: Column | None = None,
) -> CheckedRecords:
    """Check Parquet records against a mapping; `lacking` are files that lack one of its columns.

    `columns` has the names that the columns of a table have in the frame, if they do not stand in `@row`. `publishers`
    is an array of principals that records are likely to have as their sources (`first_publishers`).

    Raises `MalformedError` (`mapping.column`) for a Parquet column that is absent, or of a type that cannot be an
    attribute of its kind.
    """
    mapping = bound.mapping
    from_source = mapping.source if columns is None and isinstance(mapping.source, FromColumn) else None
    table = _parquet(records, bound, lacking, columns, None if from_source is None else from_source.column)
    # What values and problems both use is a column first: a text without its blanks.
    origins = (mapping.id, mapping.time, mapping.source, *mapping.attributes.values())
    read = [origin for origin in origins if isinstance(origin, FromColumn)]
    texts = {
        _text_key(origin): given(table.cells[origin.column].column, origin.reading)
        for origin in read
        if isinstance(table.cells[origin.column].type, StringType) and (origin.reading.trim or origin.reading.null)
    }
    named = {key: f"@text {number}" for number, key in enumerate(texts)}

    def converted(what: str, spec: AttributeSpec, origin: Origin) -> Converted:
        if not isinstance(origin, FromColumn):
            return constant(literal(origin.value, spec.kind))
        cell, name = table.cells[origin.column], named.get(_text_key(origin))
        if isinstance(cell.type, StringType):
            return from_text(what, spec, cell.column if name is None else quoted(name), origin.reading)
        return _from_typed(what, spec, origin, cell)

    values = {
        name: converted(f"attribute `{name}`", bound.event_type.by_name[name].spec, origin)
        for name, origin in mapping.attributes.items()
    }
    frame = table.frame.select("*", *(text.alias(named[key]) for key, text in texts.items())) if texts else table.frame
    if from_source is not None:
        # As letters: a column of a table can have a collation, by which others are equal to them.
        publisher = converted("the source", _TEXT, from_source).value.cast("string")
        principal = publisher.rlike(PRINCIPAL)
        if publishers is not None:
            principal = F.array_contains(publishers, publisher) | principal
        frame = frame.select("*", F.coalesce(principal, F.lit(False)).alias(_PRINCIPAL))
    return CheckedRecords(
        frame,
        type=F.lit(str(bound.event_type.name)),
        id=converted("the id", _TEXT, mapping.id).value,
        time=converted("the time", _MOMENT, mapping.time),
        source=converted("the source", _TEXT, mapping.source).value,
        problems=table.problems,
        versions=[Version(bound.event_type, values)],
        principal=None if from_source is None else quoted(_PRINCIPAL),
    )


_FIRST_RECORDS: Final = 1_000
_LIKELY_PUBLISHERS: Final = 8
_LONGEST_PRINCIPAL: Final = 62


def first_publishers(records: DataFrame, bound: BoundMapping) -> Column | None:
    """Return an array of principals that the first of some Parquet records have as their sources; None without any.

    Runs a small job. Comparing a source with a few texts takes a tenth of the time of matching its letters. Plans
    do not print them: they are what records contain.
    """
    source = bound.mapping.source
    if not isinstance(source, FromColumn):
        return None
    text = given(quoted(ROW).getField(source.column), source.reading)
    short = F.when((F.octet_length(text) <= F.lit(_LONGEST_PRINCIPAL)) & F.is_valid_utf8(text), text)
    found = (row[0] for row in records.select(short).limit(_FIRST_RECORDS).collect())
    seen = Counter(text for text in found if text is not None and is_principal(text))
    if not seen:
        return None
    likely = [text for text, _ in seen.most_common(_LIKELY_PUBLISHERS)]
    return unprinted(records.sparkSession, likely, pa.string())


def _parquet(
    records: DataFrame,
    bound: BoundMapping,
    lacking: Sequence[str],
    columns: Mapping[str, str] | None,
    publisher: str | None,
) -> _Table:
    """Find the columns; of `publisher`, `@principal` will say whether it has a principal."""
    schema, frame = records.schema, records
    if columns is None:
        row = schema[ROW].dataType
        there = {f.name: f.dataType for f in row.fields} if isinstance(row, StructType) else {}
        # As columns: of a row that is looked at in several steps, Spark would make a copy first.
        columns = {name: f"@cell {number}" for number, name in enumerate(bound.columns) if name in there}
        others = (quoted(name) for name in records.columns if name != ROW)
        frame = records.select(*others, *(quoted(ROW).getField(name).alias(own) for name, own in columns.items()))
    else:
        there = {name: schema[own].dataType for name, own in columns.items()}
    cells: dict[str, _Cell] = {}
    for name in bound.columns:
        if name not in there:
            raise MalformedError(
                "mapping.column",
                f"there is no column `{name[:80]}`",
                hint=did_you_mean(name, there, f"there are: {', '.join(sorted(there))[:400]}"),
                column=name[:80],
            )
        cells[name] = _Cell(quoted(columns[name]), there[name])
    source = bound.mapping.source
    problems = []
    for name, found in cells.items():
        if isinstance(found.type, StringType):
            valid = F.is_valid_utf8(found.column)
            # A source must be a principal, and then it is. Where that was asked before, a principal is not looked at.
            principal = isinstance(source, FromColumn) and source.column == name
            unless = F.lit(True) if principal else F.coalesce(valid, F.lit(True))
            where = ~quoted(_PRINCIPAL) & ~valid if name == publisher else ~valid
            problems.append(RecordProblem(where, "ingest.utf8", "not UTF-8", unless))
    if lacking:
        header = RecordProblem(
            quoted(FILE).isin(*lacking), "ingest.header", "the file lacks a column that the mapping needs"
        )
        problems.insert(0, header)
    return _Table(frame, cells, problems)


def _text_key(origin: FromColumn) -> tuple[str, bool, tuple[str, ...]]:
    return origin.column, origin.reading.trim, origin.reading.null


def _from_typed(what: str, spec: AttributeSpec, origin: FromColumn, cell: _Cell) -> Converted:
    column, reading, found, kind = cell.column, origin.reading, cell.type, spec.kind
    value: Column | None = None
    if kind is Kind.BOOLEAN and isinstance(found, BooleanType):
        value = column
    elif kind is Kind.INTEGER and isinstance(found, _WHOLE):
        value = column.cast("bigint")
    elif kind is Kind.FLOAT and isinstance(found, (*_WHOLE, *_REAL)):
        value = column.cast("double")
    elif kind is Kind.TIMESTAMP and isinstance(found, TimestampType):
        value = column
    elif kind is Kind.TIMESTAMP and isinstance(found, TimestampNTZType) and reading.zone is not None:
        # With its zone: a cast alone would take the session's.
        value = F.concat(column.cast("string"), F.lit(f" {reading.zone}")).try_cast("timestamp")
    if value is not None:
        return from_column(what, spec, column, value)
    raise MalformedError(
        "mapping.column",
        f"{what} is a {kind}, and column `{origin.column[:80]}` holds {found.simpleString()[:80]}",
        hint="give its `zone`" if isinstance(found, TimestampNTZType) else "convert it before it is read",
        column=origin.column[:80],
    )
