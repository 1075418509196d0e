"""Records: the pieces of the input, each with its place and its bytes, and how their texts become values.

    @file      string   the file, if it came from one
    @position  bigint   the line of the file at which it begins, or the row, from 1, if known
    @original  binary   the record as it was in the file

Lines and CSV keep the bytes of the input, valid UTF-8 or not. Records of CSV that Spark splits (`csv_records`) have two
more columns, `@columns` and `@fields`. Parquet records have `@row`, and as their original the row as JSON, because a
row has no bytes of its own.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # the name that everybody knows it by

from penstock.model.values import AttributeSpec, Enumerated, Kind
from penstock.pipeline.event_columns import FILE as FILE
from penstock.pipeline.event_columns import NUMBER as NUMBER
from penstock.pipeline.event_columns import ORIGINAL as ORIGINAL
from penstock.pipeline.event_columns import POSITION as POSITION
from penstock.pipeline.frames import EARLIEST, LATEST, literal, quoted
from penstock.pipeline.ingest.mapping import RFC3339, ColumnFormat, CsvLayout, TimeFormat
from penstock.pipeline.outputs import STRICT, Reader, reading

# ----------------------------------------------------------------------------------------------------------------------
# Texts and JSON values as attribute values, in native expressions: the values that `Event.of` accepts, or a problem.
#
# A conversion never raises, whatever the session's ANSI mode and time zone. If there is no value, the problem says why.
# It names the attribute and never its value: a message must not contain what its reader may not see.
#
# Expressions are kept small: what is used twice is a column first, because Spark writes out an expression at each use.


_INFINITY: Final = float("inf")
_BLANK: Final = " \t\r\n"


@dataclass(frozen=True, slots=True)
class RecordProblem:
    """A problem of the records for which a condition is true. If the condition is null, there is no problem."""

    where: Column
    code: str
    words: str
    #: a condition that only records without this problem and without the others of a record meet, if that is shorter
    #: than the contrary of `where`
    unless: Column | None = None

    @property
    def absent(self) -> Column:
        """A filter for the records without the problem."""
        return ~F.coalesce(self.where, F.lit(False)) if self.unless is None else self.unless


@dataclass(frozen=True, slots=True)
class Converted:
    """A value, and its problems, in terms of the column that will hold the value."""

    value: Column
    problems: Callable[[Column], Sequence[RecordProblem]]


def given(text: Column, reading: ColumnFormat) -> Column:
    """Return a text without its blanks, and null if it is a word for null."""

    def known(found: Column) -> Column:
        return F.when(~found.isin(*reading.null), found) if reading.null else found

    if not reading.trim:
        return known(text)
    # Spark's own function looks at the whole text, whose ends are rarely blank. That is asked once. All blanks, and few
    # other characters, sort before `!`.
    ends = (text < F.lit("!"), *(text.endswith(sign) for sign in _BLANK))
    return F.when(reduce(or_, ends), known(F.btrim(text, F.lit(_BLANK)))).otherwise(known(text))


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
        return Converted(text, lambda found: _outside(what, spec, found))
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
        wrong = ~text.rlike(written)
        if spec.kind is Kind.INTEGER:
            # Nearly all integers are written as Spark writes them, and need no regular expression.
            wrong = F.coalesce(found.cast("string") != text, F.lit(True)) & wrong
        return [
            _kind(what, spec.kind, wrong),
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
    """Take a value out of a column that has its kind: only an instant may be none of ours."""

    def problems(found: Column) -> list[RecordProblem]:
        timed = spec.kind is Kind.TIMESTAMP
        wrong = [_kind(what, spec.kind, column.isNotNull() & _no_value(spec.kind, found))] if timed else []
        return [*wrong, *_outside(what, spec, found)]

    return Converted(value, problems)


def _kind(what: str, kind: Kind, where: Column) -> RecordProblem:
    return RecordProblem(where, "ingest.kind", f"{what}: expected {kind}")


def _range(what: str, kind: Kind, where: Column) -> RecordProblem:
    words = "an integer does not fit into 64 bits" if kind is Kind.INTEGER else "a number is too large for a float"
    return RecordProblem(where, "ingest.range", f"{what}: {words}")


def _too_large(kind: Kind, value: Column) -> Column:
    # A number in digits that becomes infinite was too large.
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
        inside = reduce(or_, (value == literal(member, kind) for member in domain.values))
    else:
        inside = (literal(domain.low, kind) <= value) & (value <= literal(domain.high, kind))
    return [outside(what, inside)]


def outside(what: str, inside: Column) -> RecordProblem:
    """Return the problem of values that are not inside the domain of their attribute."""
    return RecordProblem(~inside, "ingest.domain", f"{what}: the value lies outside the attribute's declared domain")


def instant(text: Column, formats: Sequence[TimeFormat], zone: str | None) -> Column:
    """Read a timestamp in the first format that fits; null if none does.

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
                if shape.as_written:
                    # Groups are not needed, and Java looks up single characters faster than ranges.
                    pattern = re.sub(r"\((?!\?)", "(?:", pattern).replace("[0-9]", "[0123456789]")
                fits = text.rlike(pattern)
                if shape.as_written:
                    found = F.concat(text, F.lit(suffix)) if suffix else text
                else:
                    found = F.regexp_replace(text, pattern, shape.replacement + suffix)
                written = F.when(fits, found).otherwise(written)
                if any(other.unit for other in formats):
                    counted = F.when(~fits, counted)
    moment = written.try_cast("timestamp")
    if any(form.unit for form in formats):
        return F.coalesce(moment, F.timestamp_micros(counted))
    return moment


# ----------------------------------------------------------------------------------------------------------------------
# Records.


FIELDS: Final = "@fields"
COLUMNS: Final = "@columns"
ROW: Final = "@row"
PROBLEM: Final = "@problem"
PLACE: Final = (FILE, POSITION, ORIGINAL)

_FILE_PATH: Final = "_metadata.file_path"
_BYTES: Final = "ISO-8859-1"
"""The encoding in which each byte is one character: it splits bytes as if they were text, and loses none."""
_UNEVEN: Final = "more or fewer fields than the header has"
_BOM: Final = "\ufeff"
_BOM_BYTES: Final = _BOM.encode().decode(_BYTES)
#: what surrounds a line number: characters that no byte decodes to
_AROUND_NUMBER: Final = ("\ue000", "\ue001")
_LINE_NUMBER: Final = "([0-9]++)".join(_AROUND_NUMBER)
_LINE: Final = "[0-9]++".join(_AROUND_NUMBER)


def read_lines(reader: Reader, path: str) -> DataFrame:
    """Return the lines of text files, such as JSON lines, as records. A file may hold any bytes."""
    lines = reader.options(**STRICT).text(path, lineSep="\n")
    return lines.select(
        F.col(_FILE_PATH).alias(FILE),
        F.lit(None).cast("bigint").alias(POSITION),
        F.col("value").cast("binary").alias(ORIGINAL),
    )


def line_text(original: Column) -> Column:
    """Return a line as text, without a byte order mark before it or a carriage return behind it."""
    return _between(original, "\r")


def _between(original: Column, *ends: str) -> Column:
    """Return a record as text, without a byte order mark before it, or the first of some ends that is behind it."""
    text, none = original.cast("string"), F.lit(0)
    before = F.when(text.startswith(_BOM), F.lit(len(_BOM.encode()))).otherwise(none)
    behind = none
    for end in reversed(ends):
        behind = F.when(text.endswith(end), F.lit(len(end))).otherwise(behind)
    return F.substring(original, before + 1, F.octet_length(original) - before - behind).cast("string")


def read_parquet(reader: Reader, path: str) -> DataFrame:
    """Return the rows of Parquet files as records."""
    rows = reader.options(**STRICT).parquet(path)
    row = F.struct(*map(quoted, rows.columns))
    options = {"timeZone": "UTC", "ignoreNullFields": "false"}
    return rows.select(
        F.col(_FILE_PATH).alias(FILE),
        (F.col("_metadata.row_index") + F.lit(1)).cast("bigint").alias(POSITION),
        F.to_json(row, options).cast("binary").alias(ORIGINAL),
        row.alias(ROW),
    )


def read_csv(reader: Reader, path: str, layout: CsvLayout) -> DataFrame:
    """Return CSV files, or their lines if every line is a record, for `ingest_table`, which splits them in tasks."""
    if not layout.multiline:
        return read_lines(reader, path)
    files = reader.options(**STRICT).text(path, wholetext=True)
    return files.select(
        F.col(_FILE_PATH).alias(FILE),
        F.lit(None).cast("bigint").alias(POSITION),
        F.col("value").cast("binary").alias(ORIGINAL),
    )


def csv_records(reader: Reader, path: str, layout: CsvLayout) -> DataFrame:
    """Return the records of CSV files, split into fields by Spark. The header is not a record.

    Records end at a line feed, with or without a carriage return, outside of quotes. Where a record cannot be read so,
    because a quote is not closed or stands where it must not, its first line is a record that is bad, and reading goes
    on with the next line.
    """
    return _whole_files(reader, path, layout) if layout.multiline else _single_lines(reader, path, layout)


def _whole_files(reader: Reader, path: str, layout: CsvLayout) -> DataFrame:
    files = reader.options(**STRICT).text(path, wholetext=True)
    content = F.decode(F.col("value").cast("binary"), _BYTES)
    whole, found = quoted("@content"), quoted("@found")
    # (1) Lines, or records where quotes may join lines. The mark belongs to the first one's bytes, and to no field.
    lines = F.split(whole, "\n", -1)
    pieces, ended = lines, F.size(lines) - 1
    if layout.quote:
        joined = whole.contains(layout.quote)
        records = F.regexp_extract_all(whole, F.lit(_record_pattern(layout)), F.lit(0))
        pieces, ended = F.when(joined, records).otherwise(lines), F.when(joined, F.lit(0)).otherwise(ended)
    split = files.select(F.col(_FILE_PATH).alias(FILE), content.alias("@content")).select(
        quoted(FILE), whole, pieces.alias("@pieces"), ended.alias("@ended")
    )
    columns = F.array(*map(F.lit, layout.columns or ()))
    if layout.header:
        columns = _unique(quoted("@names"))
        split = split.select("*", _header(F.get(quoted("@pieces"), F.lit(0)), layout).alias("@names"))
    # (2) Which line a record begins at is its number, unless one before it has several lines.
    found_all = quoted("@pieces")
    if layout.quote:
        ends = F.length(whole) - F.length(F.replace(whole, F.lit("\n")))
        count = ends + F.when(whole.endswith("\n"), 0).otherwise(1)
        uneven = (quoted("@ended") == 0) & (count > F.size(found_all))
        numbered = F.regexp_extract_all(_numbered(whole), F.lit(_record_pattern(layout, _LINE)), F.lit(0))
        found_all = F.when(uneven, numbered).otherwise(found_all)
    # Apart, so that it is not computed again for every record.
    headed = split.select(quoted(FILE), columns.alias(COLUMNS), quoted("@ended"), found_all.alias("@all"))
    each = headed.select(
        quoted(FILE), quoted(COLUMNS), quoted("@ended"), F.posexplode("@all").alias("@number", "@found")
    )
    # (3) The bytes of each: lines without their end get it again, and behind the last end there may be nothing.
    unended = F.col("@number") < quoted("@ended")
    rows = each.where(unended | (found != ""))
    if layout.header:
        rows = rows.where(F.col("@number") > 0)
    marked = found.startswith(_AROUND_NUMBER[0])
    line = F.when(marked, F.regexp_extract("@found", f"\\A{_LINE_NUMBER}", 1).try_cast("bigint"))
    text = F.when(marked, F.regexp_replace("@found", _LINE, "")).when(unended, F.concat(found, F.lit("\n")))
    originals = rows.select(
        quoted(FILE),
        F.coalesce(line, (F.col("@number") + F.lit(1)).cast("bigint")).alias(POSITION),
        F.encode(text.otherwise(found), _BYTES).alias(ORIGINAL),
        quoted(COLUMNS),
    )
    return _with_fields(originals, layout, "\r\n", "\n")


def _with_fields(records: DataFrame, layout: CsvLayout, *ends: str) -> DataFrame:
    """Split records into fields. What is not text has none, and its reason is another one."""
    text = F.when(F.is_valid_utf8(quoted(ORIGINAL).cast("string")), _between(quoted(ORIGINAL), *ends))
    return records.select("*", text.alias("@text")).select(
        *map(quoted, PLACE), quoted(COLUMNS), _fields(quoted("@text"), layout).alias(FIELDS)
    )


def _unique(names: Column) -> Column:
    """Return the columns of a header. Nothing can be read from one whose name stands twice: it has none."""
    return F.transform(names, lambda name: F.when(F.size(F.filter(names, lambda other: other == name)) == 1, name))


def _numbered(content: Column) -> Column:
    """Return a text of which every line says before its beginning which one it is."""
    before, after = map(F.lit, _AROUND_NUMBER)
    lines = F.split(content, "\n", -1)
    return F.array_join(F.transform(lines, lambda line, n: F.concat(before, (n + 1).cast("string"), after, line)), "\n")


def _single_lines(reader: Reader, path: str, layout: CsvLayout) -> DataFrame:
    names = F.array(*map(F.lit, layout.columns or ()))
    found = _with_fields(read_lines(reader, path).select("*", names.alias(COLUMNS)), layout, "\r")
    if not layout.header:
        return found
    return found.where(~F.coalesce(quoted(FIELDS) == quoted(COLUMNS), F.lit(False)))


def csv_columns(spark: SparkSession, path: str, layout: CsvLayout) -> tuple[str, ...]:
    """Return the columns that the headers of CSV files name, each once."""
    files = reading(spark).text(path, wholetext=True)
    first = F.decode(F.substring_index("value", "\n", 1).cast("binary"), _BYTES)
    headers = files.select(_header(first, layout).alias(COLUMNS)).distinct().orderBy(COLUMNS).collect()
    return tuple(dict.fromkeys(name for row in headers for name in row[0] if name))


def csv_rows(records: DataFrame, columns: Sequence[str]) -> DataFrame:
    """Return the records of CSV files with a header as rows: some columns by name, and what is wrong in `@problem`.

    A field is found by the header of its own file. An empty one is null, and so is one of a column that the file does
    not have. An empty line is not a row.
    """
    fields, names = quoted(FIELDS), quoted(COLUMNS)
    found = [
        F.nullif(F.get(fields, (F.array_position(names, F.lit(name)) - F.lit(1)).cast("int")), F.lit("")).alias(name)
        for name in columns
    ]
    again = RecordProblem(F.size(F.array_distinct(names)) != F.size(names), "", "a column stands twice in the header")
    problem = F.coalesce(*(F.when(one.where, F.lit(one.words)) for one in [*csv_problems(), again]))
    rows = records.where(~is_empty(quoted(ORIGINAL)))
    return rows.select(*map(quoted, PLACE), problem.alias(PROBLEM), *found)


def csv_problems() -> list[RecordProblem]:
    """Return the problems that a CSV record can have, whatever its fields contain. The first is that it is not text."""
    fields, original = quoted(FIELDS), quoted(ORIGINAL).cast("string")
    uneven, several = F.size(fields) != F.size(quoted(COLUMNS)), original.rlike("\\n(?!\\z)")
    return [
        RecordProblem(~F.is_valid_utf8(original), "ingest.utf8", "not UTF-8"),
        RecordProblem(fields.isNull(), "ingest.csv", "quotes or line ends stand where they must not"),
        RecordProblem(uneven & several, "ingest.columns", f"{_UNEVEN}, over several lines: a quote may be missing"),
        RecordProblem(uneven, "ingest.columns", _UNEVEN),
    ]


def is_empty(original: Column) -> Column:
    """Return a column that is true for empty lines."""
    longest = len(f"{_BOM}\r\n".encode())
    return (F.octet_length(original) <= longest) & original.cast("string").rlike(f"\\A(?:{_BOM})?\r?\n?\\z")


def is_one_json(text: Column) -> Column:
    """Return a column that is true for texts of exactly one JSON value: Spark would read only the first of several."""
    # Between brackets of two kinds: what closes one kind and opens it again does not fit the other.
    around = (('{"":', "}"), ("[", "]"))
    whole = [F.try_parse_json(F.concat(F.lit(begin), text, F.lit(end))).isNotNull() for begin, end in around]
    return whole[0] & whole[1]


def place_text() -> Column:
    """Return the name of a record's file, and the line where that is known."""
    name = F.regexp_extract(F.coalesce(quoted(FILE), F.lit("")), "[^/]*\\z", 0)
    return F.concat(name, F.coalesce(F.concat(F.lit(", line "), quoted(POSITION).cast("string")), F.lit("")))


# --- The grammar of RFC 4180 -----------------------------------------------------------------------------------------
# All repetitions are possessive: they never go back, and Java's engine then needs no stack for them.


def _code(character: str) -> str:
    return f"\\x{ord(character):02x}"


def _record_pattern(layout: CsvLayout, before: str = "") -> str:
    """Return an expression for one record with its line end, which matches everywhere but at the end of the text.

    What stands before each line is part of the record. A record is read to its end, over several lines where quotes
    say so, if all of it is as it must be; otherwise it is one line. So a quote too many costs the line that it stands
    in: up to the next line with such a quote the text is looked at twice, and never more often.
    """
    return f"(?!{before}\\z)(?:\\A{before}{_BOM_BYTES}|{before})(?:{_whole(layout)}(?:\\r?+\\n|\\z)|[^\\n]*+\\n?+)"


def _whole(layout: CsvLayout) -> str:
    """Return an expression for a record whose quotes and line ends all stand where they may."""
    delimiter, quote = _code(layout.delimiter), _code(layout.quote) if layout.quote else ""
    field = f"[^{delimiter}{quote}\\r\\n]*+"
    if quote:
        field = f"(?:{quote}(?:[^{quote}]++|{quote}{quote})*+{quote}|{field})"
    return f"{field}(?:{delimiter}{field})*+"


def _fields(text: Column, layout: CsvLayout) -> Column:
    """Split a record into fields; null if quotes or line ends stand where they must not."""
    plain = ~text.contains("\r")
    found = F.split(text, f"\\{layout.delimiter}", -1)
    if not layout.quote:
        return F.when(plain, found)
    split = F.transform(
        _pieces(text, layout), lambda f: F.when(f.startswith(layout.quote), _inner(f, layout)).otherwise(f)
    )
    # A record without quotes, as nearly all are, needs no regular expression.
    return F.when(plain & ~text.contains(layout.quote), found).when(text.rlike(f"\\A{_whole(layout)}\\z"), split)


def _header(record: Column, layout: CsvLayout) -> Column:
    """Split a header, each character of which stands for a byte, into names; one that cannot be read is null."""
    text = F.regexp_replace(record, f"\\A{_BOM_BYTES}|\r?\n\\z", "")
    quote = _code(layout.quote) if layout.quote else ""

    def name(f: Column) -> Column:
        readable = F.when(~f.rlike(f"[{quote}\r]"), f)
        if quote:
            closed = f"\\A{quote}(?:[^{quote}]++|{quote}{quote})*+{quote}\\z"
            readable = F.when(f.rlike(closed), _inner(f, layout)).otherwise(readable)
        return F.encode(readable, _BYTES).cast("string")

    return F.transform(_pieces(text, layout), name)


def _pieces(text: Column, layout: CsvLayout) -> Column:
    """Split a record at the delimiters that are not in quotes."""
    delimiter, field = _code(layout.delimiter), f"[^{_code(layout.delimiter)}]*+"
    if layout.quote:
        quote = _code(layout.quote)
        field = f"{quote}(?:[^{quote}]++|{quote}{quote})*+{quote}?+{field}|{field}"
    pattern = F.lit(f"{delimiter}({field})")
    return F.regexp_extract_all(F.concat(F.lit(layout.delimiter), text), pattern, F.lit(1))


def _inner(field: Column, layout: CsvLayout) -> Column:
    """Return what a field has between its quotes."""
    inside = F.substring(field, F.lit(2), F.length(field) - 2)
    return F.replace(inside, F.lit(layout.quote * 2), F.lit(layout.quote))
