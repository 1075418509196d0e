"""CSV as typed columns: what tasks do with the bytes of files, or with their lines.

Records whose quotes can be left out, as nearly all are, are split and converted column by column, in Arrow. A text that
the fast way does not know for certain is converted by `texts`, once for each distinct one, and so is a record that it
cannot split. The fast way decides what is an event only: what is not has its reason from `texts`.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]  # it ships no types
import pyarrow.compute as pc  # type: ignore[import-untyped]  # it ships no types
from pyspark import TaskContext

from penstock.model.values import AttributeSpec, Enumerated, Kind, Scalar
from penstock.pipeline.event_columns import (
    EARLIEST,
    FILE,
    ID,
    LATEST,
    NUMBER,
    ORIGINAL,
    POSITION,
    REASON,
    SOURCE,
    TIME,
    WORDS,
)
from penstock.pipeline.ingest.mapping import ISO, BoundMapping, ColumnFormat, CsvLayout, FromColumn, Origin
from penstock.pipeline.ingest.texts import (
    BLANK,
    BOM,
    BYTES,
    NO_ID,
    NO_INSTANT,
    NO_SOURCE,
    NO_TIME,
    CsvGrammar,
    RecordError,
    check_fields,
    from_text,
    has_columns,
    is_principal,
)

Column: TypeAlias = Any
"""An array of Arrow, which ships no types."""

_INSTANT: Final = pa.timestamp("us", "UTC")
_TYPES: Final = {
    Kind.STRING: pa.string(),
    Kind.INTEGER: pa.int64(),
    Kind.FLOAT: pa.float64(),
    Kind.BOOLEAN: pa.bool_(),
    Kind.TIMESTAMP: _INSTANT,
}
_PLACE: Final = (
    pa.field(REASON, pa.string()),
    pa.field(WORDS, pa.string()),
    pa.field(FILE, pa.string()),
    pa.field(POSITION, pa.int64()),
    pa.field(ORIGINAL, pa.binary()),
)
_BRIEF: Final = (pa.field(REASON, pa.string()), pa.field(NUMBER, pa.int64()), pa.field(POSITION, pa.int64()))
_CHUNK: Final = 4 << 20
"""Bytes of a file that are converted together: they fit into a processor's cache."""
_PARTITION: Final = 33
"""Bits of a number that are the row of a partition, as in `monotonically_increasing_id`."""
_FEW: Final = 16
"""Lines that are not looked through any further for the one that is not UTF-8."""


# ----------------------------------------------------------------------------------------------------------------------
# Texts as values.


Problems: TypeAlias = Mapping[int, RecordError]
"""What is wrong, by row."""


def convert(texts: Column, what: str, spec: AttributeSpec, reading: ColumnFormat) -> tuple[Column, Problems]:
    """Convert texts to an attribute's values, and return them with the problems by row; those have null."""
    found = _given(texts, reading)
    values = _FAST[spec.kind](found, reading)
    if spec.domain is not None:
        values = pc.if_else(_inside(values, spec), values, None)
    unsure = np.flatnonzero(_mask(pc.and_(pc.is_valid(found), pc.is_null(values))))
    if not len(unsure):
        return values, {}
    known: dict[str, Scalar | RecordError] = {}
    made: list[Scalar] = []
    wrong: dict[int, RecordError] = {}
    for row, text in zip(unsure.tolist(), found.take(pa.array(unsure)).to_pylist(), strict=True):
        if text not in known:
            known[text] = _exact(what, spec, text, reading)
        value = known[text]
        if isinstance(value, RecordError):
            wrong[row] = value
        made.append(None if isinstance(value, RecordError) else value)
    mask = np.zeros(len(values), bool)
    mask[unsure] = True
    return pc.replace_with_mask(values, pa.array(mask), pa.array(made, values.type)), wrong


def _exact(what: str, spec: AttributeSpec, text: str, reading: ColumnFormat) -> Scalar | RecordError:
    try:
        return from_text(what, spec, text, reading)
    except RecordError as problem:
        return problem


def _given(texts: Column, reading: ColumnFormat) -> Column:
    """Return texts without their blanks, and null for the words for null."""
    found = pc.ascii_trim(texts, characters=BLANK) if reading.trim else texts
    if not reading.null:
        return found
    if reading.null == ("",):
        return pc.if_else(pc.equal(pc.binary_length(found), 0), None, found)
    return pc.if_else(pc.is_in(found, value_set=pa.array(reading.null)), None, found)


def _strings(texts: Column, reading: ColumnFormat) -> Column:  # noqa: ARG001  # as all kinds
    return texts


def _integers(texts: Column, reading: ColumnFormat) -> Column:  # noqa: ARG001  # as all kinds
    # As many digits as fit in any case.
    return _cast(texts, "^-?[0-9]{1,18}$", pa.int64())


def _floats(texts: Column, reading: ColumnFormat) -> Column:
    point = reading.decimal
    written = _only(texts, f"^-?[0-9]{{1,15}}(?:{re.escape(point)}[0-9]{{1,15}})?$")
    return (written if point == "." else pc.replace_substring(written, point, ".")).cast(pa.float64())


def _booleans(texts: Column, reading: ColumnFormat) -> Column:
    true, false = (pc.is_in(texts, value_set=pa.array(words, pa.string())) for words in (reading.true, reading.false))
    return pc.if_else(true, True, pc.if_else(false, False, pa.scalar(None, pa.bool_())))


_ISO_INSTANT: Final = (
    "^[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}:[0-9]{2}(?:\\.[0-9]{1,6})?"
    "(?:Z|[+-](?:(?:0[0-9]|1[0-7]):[0-5][0-9]|18:00))$"
)


def _instants(texts: Column, reading: ColumnFormat) -> Column:
    if not reading.formats or reading.formats[0] != ISO:
        return pa.nulls(len(texts), _INSTANT)
    found = _cast(texts, _ISO_INSTANT, _INSTANT)
    since = found.cast(pa.int64())
    return pc.if_else(pc.and_(pc.greater_equal(since, EARLIEST), pc.less_equal(since, LATEST)), found, None)


def _only(texts: Column, pattern: str) -> Column:
    fits = pc.match_substring_regex(texts, pattern)
    return texts if pc.all(fits, min_count=0).as_py() else pc.if_else(fits, texts, None)


def _cast(texts: Column, pattern: str, to: Any) -> Column:
    return _cast_each(_only(texts, pattern), to)


def _cast_each(texts: Column, to: Any) -> Column:
    """Cast texts; one that cannot be cast becomes null, and is found by halving."""
    try:
        return texts.cast(to)
    except pa.ArrowInvalid:
        if len(texts) == 1:
            return pa.nulls(1, to)
        half = len(texts) // 2
        return pa.concat_arrays([_cast_each(texts[:half], to), _cast_each(texts[half:], to)])


_FAST: Final[dict[Kind, Callable[[Column, ColumnFormat], Column]]] = {
    Kind.STRING: _strings,
    Kind.INTEGER: _integers,
    Kind.FLOAT: _floats,
    Kind.BOOLEAN: _booleans,
    Kind.TIMESTAMP: _instants,
}
"""For each kind the texts that it is certain about as values, and null for others."""


def _inside(values: Column, spec: AttributeSpec) -> Column:
    domain = spec.domain
    if isinstance(domain, Enumerated):
        # Not `is_in`, for which -0.0 may be another value than 0.0.
        return reduce(pc.or_, (pc.equal(values, pa.scalar(one, values.type)) for one in domain.values))
    low, high = (pa.scalar(end, values.type) for end in (domain.low, domain.high))  # type: ignore[union-attr]  # asked before
    return pc.and_(pc.greater_equal(values, low), pc.less_equal(values, high))


def _mask(condition: Column) -> Any:
    return pc.fill_null(condition, False).to_numpy(zero_copy_only=False)


# ----------------------------------------------------------------------------------------------------------------------
# Files as records.


RecordPlaces: TypeAlias = Mapping[int, frozenset[int]]
"""Places of records: numbers of rows of the input, and the positions in each if a row is a whole file."""


@dataclass(frozen=True, slots=True)
class EventColumn:
    """A column of events: its name, what it is in words, and where its values come from."""

    name: str
    what: str
    spec: AttributeSpec
    origin: Origin


@dataclass(frozen=True, slots=True)
class CsvTable:
    """What tasks know of a mapping, and what is asked of them: all records or some, with their place or its number."""

    layout: CsvLayout
    needed: tuple[str, ...]
    events: tuple[EventColumn, ...]
    brief: bool = False
    some: RecordPlaces | None = None

    @classmethod
    def of(cls, bound: BoundMapping, *, brief: bool = False, some: RecordPlaces | None = None) -> "CsvTable":
        """Return it of a mapping."""
        mapping, own = bound.mapping, bound.event_type.attributes
        text, moment = AttributeSpec(Kind.STRING), AttributeSpec(Kind.TIMESTAMP)
        events = (
            EventColumn(ID, "the id", text, mapping.id),
            EventColumn(SOURCE, "the source", text, mapping.source),
            EventColumn(TIME, "the time", moment, mapping.time),
            *(
                EventColumn(str(a.id), f"attribute `{a.name}`", a.spec, mapping.attributes[a.name])
                for a in own
                if a.name in mapping.attributes
            ),
        )
        return cls(mapping.csv, bound.columns, events, brief, some)

    @property
    def schema(self) -> Any:
        """The columns that come out: those of the quarantine but the time, or what is brief of them, and of events."""
        return pa.schema(
            [*(_BRIEF if self.brief else _PLACE), *(pa.field(one.name, _TYPES[one.spec.kind]) for one in self.events)]
        )

    def read(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Yield a row for each record of some batches of files, or of lines: an event, or a reason."""
        splitter, task = _Splitter(self), TaskContext.get()
        first = task.partitionId() << _PARTITION if task is not None else 0
        for batch in batches:
            originals = batch.column(ORIGINAL)
            files = pa.array(np.arange(first, first + len(originals))) if self.brief else batch.column(FILE)
            first += len(originals)
            if not self.layout.multiline:
                records = _Records(files, pa.nulls(len(files), pa.int64()), originals)
                yield from splitter.split(records, [*(self.layout.columns or ())])
                continue
            numbers = [None] * len(files) if self.some is None else batch.column(NUMBER).to_pylist()
            for file, content, number in zip(files, originals, numbers, strict=True):
                wanted = None if self.some is None else self.some.get(number, frozenset())
                yield from splitter.file(file, content.as_buffer().to_pybytes(), wanted)


@dataclass(frozen=True, slots=True)
class _Records:
    """Records as they stand in files, which have a name or a number."""

    files: Column
    positions: Column
    originals: Column

    def __len__(self) -> int:
        return len(self.originals)

    def each(self, change: Callable[[Column], Column]) -> "_Records":
        """Return some of them."""
        return _Records(change(self.files), change(self.positions), change(self.originals))

    def chosen(self, mask: Any) -> "_Records":
        """Return those of a mask of numpy."""
        return self if mask.all() else self.each(lambda column: column.filter(pa.array(mask)))

    @property
    def data(self) -> bytes:
        """Their bytes, one behind the other."""
        _, offsets, data = self.originals.buffers()
        ends = np.frombuffer(offsets, np.int32)[self.originals.offset :]
        return bytes(data[int(ends[0]) : int(ends[len(self)])].to_pybytes()) if len(self) else b""


class _Splitter:
    """Splits files into records, and records into fields, and converts those."""

    def __init__(self, table: CsvTable) -> None:
        self.table, self.layout, self.schema = table, table.layout, table.schema
        self.grammar = CsvGrammar(table.layout)
        # What is certainly one record: a line without quotes, or with quotes around whole fields without delimiters.
        # Of such a record, the fields are the same without the quotes.
        self.quote, delimiter = table.layout.quote.encode(), re.escape(table.layout.delimiter)
        plain = f"[^{delimiter}{table.layout.quote}\r\n]*"
        field = f"(?:{table.layout.quote}{plain}{table.layout.quote}|{plain})"
        self.simple = f"^{field}(?:{delimiter}{field})*$"
        self.single = f"^(?:[^{table.layout.quote}]*|{field}(?:{delimiter}{field})*\r?\n?)$"

    def file(self, file: Any, content: bytes, wanted: frozenset[int] | None) -> Iterator[Any]:
        """Yield the records of a whole file, or those at some positions."""
        columns: list[str | None] = [*(self.layout.columns or ())]
        text = content.decode(BYTES) if self.quote and self.quote in content else ""
        start, number = 0, 1
        if self.layout.header and content:
            start = self._end(text, 0) if text else content.find(b"\n") + 1 or len(content)
            columns = self.grammar.record_fields(content[:start].decode(BYTES))
            number += content.count(b"\n", 0, start)
        while start < len(content):
            end = content.find(b"\n", start + _CHUNK) + 1 or len(content)
            originals = _lines(content[start:end])
            positions = np.arange(number, number + len(originals))
            chosen = np.ones(len(positions), bool) if wanted is None else np.isin(positions, list(wanted))
            # (1) Records of several lines, or which may be: one by one.
            rows: list[_Row] = []
            for line, begin, stop in self._several(originals, text, start) if text else ():
                if chosen[line]:
                    fields = self.grammar.record_fields(text[begin:stop])
                    rows.append(_Row(file.as_py(), number + line, content[begin:stop], fields))
                chosen[line : line + 1 + content.count(b"\n", begin, stop - 1)] = False
                end = max(end, stop)
            yield from self._each(rows, columns)
            # (2) All others, which are lines.
            records = _Records(pa.repeat(file, len(positions)), pa.array(positions), originals).chosen(chosen)
            if len(records):
                yield from self.split(records, columns)
            number += content.count(b"\n", start, end)
            start = end

    def _several(self, lines: Column, text: str, start: int) -> Iterator[tuple[int, int, int]]:
        """Yield records that lines with quotes belong to: the first line's number, and where it begins and ends."""
        offsets = np.frombuffer(lines.buffers()[1], np.int32)
        stop = start
        for line in np.flatnonzero(~_mask(pc.match_substring_regex(lines, self.single))).tolist():
            begin = start + int(offsets[line])
            # A line within the record before does not begin another.
            if begin >= stop:
                stop = self._end(text, begin)
                yield line, begin, stop

    def _end(self, text: str, begin: int) -> int:
        """Return where the record ends that begins somewhere."""
        found = self.grammar.record.match(text, begin)
        return found.end() if found else len(text)

    def split(self, records: _Records, columns: Sequence[str | None]) -> Iterator[Any]:
        """Yield records that are lines."""
        # (1) The texts. What is not UTF-8 is found by halving.
        try:
            texts, data = self._texts(records)
        except pa.ArrowInvalid:
            if len(records) <= _FEW:
                yield from self._each(self._rows(records), columns)
                return
            half = len(records) // 2
            yield from self.split(records.each(lambda column: column[:half]), columns)
            yield from self.split(records.each(lambda column: column[half:]), columns)
            return
        # (2) Their fields. What is not plain is looked at one by one.
        layout = self.layout
        if self.quote and self.quote in data:
            simple = pc.match_substring_regex(texts, self.simple)
            texts = pc.if_else(simple, pc.replace_substring(texts, layout.quote, ""), texts)
        if layout.header and not layout.multiline:
            head = pc.equal(texts, layout.delimiter.join(layout.columns or ()))
            if pc.any(head).as_py():
                others = pc.invert(head)
                texts, records = texts.filter(others), records.each(lambda column: column.filter(others))
        fields = pc.split_pattern(texts, layout.delimiter)
        plain = pc.and_(pc.equal(pc.list_value_length(fields), len(columns)), pc.greater(pc.binary_length(texts), 0))
        for sign in ("\r", BOM, layout.quote):
            if sign and sign.encode() in data:
                plain = pc.and_(plain, pc.invert(pc.match_substring(texts, sign)))
        if not has_columns(columns, layout, self.table.needed):
            plain = pa.array(np.zeros(len(records), bool))
        if not pc.all(plain, min_count=0).as_py():
            odd = pc.invert(plain)
            yield from self._each(self._rows(records.each(lambda column: column.filter(odd))), columns)
            fields, records = fields.filter(plain), records.each(lambda column: column.filter(plain))
        # (3) The columns.
        if len(records):
            values, width = fields.flatten(), len(columns)
            found = {
                name: values.take(pa.array(np.arange(columns.index(name), len(values), width)))
                for name in self.table.needed
            }
            yield self._typed(records, found)

    def _texts(self, records: _Records) -> tuple[Column, bytes]:
        """Return the texts of records without their ends. Raises `ArrowInvalid` if one is not UTF-8."""
        data = records.data
        if self.layout.multiline:
            text = pa.array([data.replace(b"\r\n", b"\n")], pa.binary()).cast(pa.string())
            return pc.split_pattern(text, "\n").flatten()[: len(records)], data
        texts = records.originals.cast(pa.string())
        if b"\r" in data:
            texts = pc.if_else(pc.ends_with(texts, "\r"), pc.utf8_slice_codeunits(texts, 0, -1), texts)
        return texts, data

    def _rows(self, records: _Records) -> "Iterator[_Row]":
        """Split records one by one."""
        for file, position, original in zip(
            records.files.to_pylist(), records.positions.to_pylist(), records.originals.to_pylist(), strict=True
        ):
            if self.layout.multiline:
                yield _Row(file, position, original, self.grammar.record_fields(original.decode(BYTES)))
                continue
            fields = self.grammar.line_fields(original)
            if not (self.layout.header and fields == [*(self.layout.columns or ())]):
                yield _Row(file, position, original, fields)

    def _each(self, rows: "Iterable[_Row]", columns: Sequence[str | None]) -> Iterator[Any]:
        """Yield records that were split one by one."""
        good: list[_Row] = []
        bad: list[tuple[_Row, RecordError]] = []
        for row in rows:
            try:
                check_fields(row.original, row.fields, columns, self.layout, self.table.needed)
                good.append(row)
            except RecordError as problem:
                bad.append((row, problem))
        if bad:
            nothing = {one.name: pa.nulls(len(bad), _TYPES[one.spec.kind]) for one in self.table.events}
            yield self._batch(
                _records([row for row, _ in bad]), dict(enumerate(problem for _, problem in bad)), nothing
            )
        if good:
            found = {
                name: pa.array([row.fields[columns.index(name)] for row in good], pa.string())
                for name in self.table.needed
            }
            yield self._typed(_records(good), found)

    def _typed(self, records: _Records, texts: Mapping[str, Column]) -> Any:
        """Return records as events, or with the first thing that is wrong."""
        values: dict[str, Column] = {}
        wrong: dict[int, RecordError] = {}
        for one in self.table.events:
            kind = _TYPES[one.spec.kind]
            problems: Problems = {}
            if isinstance(one.origin, FromColumn):
                values[one.name], problems = convert(texts[one.origin.column], one.what, one.spec, one.origin.reading)
            else:
                values[one.name] = pa.repeat(pa.scalar(one.origin.value, kind), len(records))
            if one.name in _METADATA:
                problems = _METADATA[one.name](values[one.name], problems)
            for row, problem in problems.items():
                wrong.setdefault(row, problem)
        return self._batch(records, wrong, values)

    def _batch(self, records: _Records, wrong: Problems, values: Mapping[str, Column]) -> Any:
        count = len(records)
        reasons, words = pa.nulls(count, pa.string()), pa.nulls(count, pa.string())
        if wrong:
            reasons = pa.array([wrong[row].code if row in wrong else None for row in range(count)], pa.string())
            words = pa.array([wrong[row].words if row in wrong else None for row in range(count)], pa.string())
            good = pc.is_null(reasons)
            values = {name: pc.if_else(good, column, None) for name, column in values.items()}
        place: tuple[Column, ...] = (reasons, records.files, records.positions)
        if not self.table.brief:
            place = (reasons, words, records.files, records.positions, records.originals)
        return pa.RecordBatch.from_arrays(
            [*place, *(values[one.name] for one in self.table.events)], schema=self.schema
        )


@dataclass(frozen=True, slots=True)
class _Row:
    """A record that is looked at by itself."""

    file: str | int
    position: int | None
    original: bytes
    fields: Sequence[str | None]


def _records(rows: Sequence[_Row]) -> _Records:
    return _Records(
        pa.array([row.file for row in rows]),
        pa.array([row.position for row in rows], pa.int64()),
        pa.array([row.original for row in rows], pa.binary()),
    )


def _lines(chunk: bytes) -> Column:
    """Return the lines of some bytes, each with its end."""
    ends = np.flatnonzero(np.frombuffer(chunk, np.uint8) == ord("\n")) + 1
    if not chunk.endswith(b"\n"):
        ends = np.append(ends, len(chunk))
    offsets = np.concatenate(([0], ends)).astype(np.int32)
    return pa.Array.from_buffers(pa.binary(), len(ends), [None, pa.py_buffer(offsets), pa.py_buffer(chunk)])


# --- Metadata --------------------------------------------------------------------------------------------------------


def _ids(values: Column, _: Problems) -> Problems:
    return _all(pc.equal(pc.fill_null(pc.binary_length(values), 0), 0), NO_ID)


def _sources(values: Column, _: Problems) -> Problems:
    # Few publishers have many events.
    coded = values.dictionary_encode()
    others = [number for number, text in enumerate(coded.dictionary.to_pylist()) if not is_principal(text)]
    return _all(pc.or_(pc.is_null(values), pc.is_in(coded.indices, value_set=pa.array(others, pa.int32()))), NO_SOURCE)


def _times(values: Column, problems: Problems) -> Problems:
    return {**_all(pc.is_null(values), NO_TIME), **dict.fromkeys(problems, RecordError(*NO_INSTANT))}


def _all(condition: Column, problem: tuple[str, str]) -> dict[int, RecordError]:
    return dict.fromkeys(np.flatnonzero(_mask(condition)).tolist(), RecordError(*problem))


_METADATA: Final = {ID: _ids, SOURCE: _sources, TIME: _times}
"""What is wrong with metadata, from the values and what was wrong with their texts."""
