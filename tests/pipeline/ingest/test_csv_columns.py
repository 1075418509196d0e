"""CSV by columns is what the reference makes of each record, and a column is what its texts are one by one."""

from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime
from itertools import product
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]  # it ships no types
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.budget import examples
from tests.pipeline.ingest.test_ingest_csv import BOUND, CASES, FIRST, HEADER, MAPPING, TOP, contents, line, one_line
from tests.pipeline.ingest_reference import Found, Record, table

from penstock.model import AttributeSpec, Enumerated, Kind, Ranged
from penstock.pipeline.event_columns import FILE, ID, NUMBER, ORIGINAL, POSITION, REASON, SOURCE, TIME, WORDS
from penstock.pipeline.ingest import csv_columns
from penstock.pipeline.ingest.csv_columns import CsvTable, convert
from penstock.pipeline.ingest.mapping import BoundMapping, ColumnFormat, read_mapping, time_format
from penstock.pipeline.ingest.texts import RecordError, from_text
from penstock.pipeline.small import records as small


def read(bound: BoundMapping, *originals: bytes) -> list[dict[str, object]]:
    batch = pa.record_batch({FILE: ["a"] * len(originals), ORIGINAL: pa.array(originals, pa.binary())})
    return [row for made in CsvTable.of(bound).read([batch]) for row in made.to_pylist()]


def compare(content: bytes, expected: Iterable[tuple[Record, Found]]) -> None:
    rows = {row[POSITION]: row for row in read(BOUND, content)}
    assert sorted(rows) == [record.line for record, _ in expected]  # type: ignore[type-var]  # numbers
    for record, found in expected:
        row = rows[record.line]
        assert (row[REASON], row[ORIGINAL]) == (found.reason, record.original)
        event = found.event
        assert (row[ID], row[TIME], row[SOURCE]) == ((event.id, event.time, found.source) if event else (None,) * 3)
        for attribute in event.type.attributes if event else ():
            assert same([row.get(str(attribute.id))], [event[attribute.name] if event else None])


PLAIN = [text for text, _ in CASES if b'"' not in text and b"\n" not in text]


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("few", [16, 1])
def test_each_case_is_what_the_reference_says(
    monkeypatch: pytest.MonkeyPatch, end: bytes, mark: bytes, few: int
) -> None:
    monkeypatch.setattr(csv_columns, "_CHUNK", 1 << 20 if few == 16 else 100)
    monkeypatch.setattr(csv_columns, "_FEW", few)
    for lines in ([text for text, _ in CASES], PLAIN, [*[line(Wert="5", Zahl="7")] * 60, *PLAIN]):
        for last in (b"", end, b"\r"):
            content = mark + end.join([TOP, *lines]) + last
            compare(content, table(content, BOUND))
    compare(b"", [])


@settings(deadline=None, max_examples=examples(10))
@given(contents(), st.booleans())
def test_files_are_what_the_reference_says(content: bytes, plain: bool) -> None:  # as Hypothesis calls it
    content = content.replace(b'"', b"") if plain else content
    compare(content, table(content, BOUND))


@settings(deadline=None, max_examples=examples(10))
@given(contents(), st.booleans(), st.integers(1, 4))
def test_some_records_and_their_numbers_are_those_of_all(content: bytes, plain: bool, step: int) -> None:
    content = content.replace(b'"', b"") if plain else content
    whole = sorted(read(BOUND, content), key=lambda row: row[POSITION])  # type: ignore[arg-type, return-value]  # numbers
    places = {8: frozenset(one for row in whole[::step] if isinstance(one := row[POSITION], int))}
    originals = pa.array([content, content], pa.binary())
    files = pa.record_batch({FILE: ["a", "b"], NUMBER: pa.array([7, 8], pa.int64()), ORIGINAL: originals})

    def rows(table: CsvTable, batch: Any) -> list[dict[str, object]]:
        found = [row for made in table.read([batch]) for row in made.to_pylist()]
        return sorted(found, key=lambda row: (row.get(NUMBER, 0), row[POSITION]))

    some = rows(CsvTable.of(BOUND, some=places), files)
    assert repr(some) == repr([row | {FILE: "b"} for row in whole[::step]])
    brief = rows(CsvTable.of(BOUND, brief=True), files.select([ORIGINAL]))
    left_out = (WORDS, FILE, ORIGINAL)
    expected = [
        {REASON: row[REASON], NUMBER: number, **{name: row[name] for name in row if name not in (REASON, *left_out)}}
        for number in range(2)
        for row in whole
    ]
    assert repr(brief) == repr(expected)


@settings(deadline=None, max_examples=examples(10))
@given(contents(), st.booleans())
def test_lines_are_what_they_are_one_by_one(
    tmp_path_factory: pytest.TempPathFactory,
    content: bytes,
    plain: bool,  # as Hypothesis calls it
) -> None:
    file, bound = tmp_path_factory.mktemp("lines") / "a.csv", one_line()
    file.write_bytes(content.replace(b'"', b"") if plain else content)
    expected: Counter[tuple[object, ...]] = Counter()
    for record in small.read_csv(file, bound):
        try:
            event = record.read()
            expected[None, None, record.original, event.id, event.time] += 1
        except RecordError as problem:
            expected[problem.code, problem.words, record.original, None, None] += 1
    lines = file.read_bytes().removesuffix(b"\n").split(b"\n")
    found = Counter(tuple(row[name] for name in (REASON, WORDS, ORIGINAL, ID, TIME)) for row in read(bound, *lines))
    assert found == expected


def test_files_without_a_header() -> None:
    columns = ", ".join(f'"{name}"' for name in HEADER)
    bound = read_mapping(f"{MAPPING}\n[csv]\nheader = false\ncolumns = [{columns}]\n").bind(FIRST)
    rows = read(bound, b"\xef\xbb\xbf" + b"\n".join([line(Wert="5"), TOP, line(Wert="7")]))
    assert sorted((row[POSITION], row[REASON], row[ID]) for row in rows) == [
        (1, None, "7"),
        (2, "ingest.source", None),
        (3, None, "7"),
    ]


# --- One column ------------------------------------------------------------------------------------------------------

NUMBERS = ["0", "-0", "007", "+5", "-5", "1.5", "-.5", "5.", ".5", "1e3", "1E-400", "1e400", "0x10", "nan", "inf",
           "9" * 18, "9" * 19, "9223372036854775807", "-9223372036854775808", "9223372036854775808", "1,5", "1.234,5",
           "1.234", "12.34", "٣", "1" * 15 + "." + "1" * 15, "1" * 16 + ".5", "0.1", "-0.0", "1 2", "--1",
           "-", "1_0"]  # fmt: skip
TIMES = ["2026-05-01T08:00:00Z", "2026-05-01 08:00:00.5+02:00", "2026-05-01T08:00:00.1234567Z", "2026-02-30T08:00:00Z",
         "2024-02-29T23:59:59.999999Z", "2023-02-29T00:00:00Z", "2026-05-01T24:00:00Z", "2026-05-01T08:60:00Z",
         "2026-05-01T08:00:60Z", "2026-05-01T08:00:00+18:00", "2026-05-01T08:00:00+18:01", "2026-05-01T08:00:00-19:00",
         "0000-01-01T00:00:00Z", "0001-01-01T00:00:00Z", "0001-01-01T00:00:00+01:00", "9999-12-31T23:59:59-01:00",
         "9999-12-31T23:59:59Z", "2026-13-01T00:00:00Z", "2026-05-01T08:00Z", "2026-05-01", "2026-05-01T08:00:00",
         "2026-05-01t08:00:00z", "2026-05-01T08:00:00Z\n", "1969-12-31T23:59:59.999999Z",
         "20260501T080000Z"]  # fmt: skip
SPAN = Ranged(datetime(2000, 1, 1, tzinfo=UTC), datetime(2030, 1, 1, tzinfo=UTC))
SPECS = [
    *map(AttributeSpec, Kind),
    AttributeSpec(Kind.STRING, Enumerated(frozenset({"red", "7"}))),
    AttributeSpec(Kind.INTEGER, Ranged(0, 9)),
    AttributeSpec(Kind.INTEGER, Enumerated(frozenset({5, 7}))),
    AttributeSpec(Kind.FLOAT, Ranged(-1.0, 1.0)),
    AttributeSpec(Kind.FLOAT, Enumerated(frozenset({0.0, 0.5}))),
    AttributeSpec(Kind.BOOLEAN, Enumerated(frozenset({True}))),
    AttributeSpec(Kind.TIMESTAMP, SPAN),
    AttributeSpec(Kind.TIMESTAMP, Enumerated(frozenset({datetime(2026, 5, 1, 8, tzinfo=UTC)}))),
]
READINGS = [
    ColumnFormat(),
    ColumnFormat(trim=False, null=()),
    ColumnFormat(
        null=("-", "red"), decimal=",", group=".", zone="Europe/Berlin", true=("1", "red"), false=("0", "red")
    ),
    ColumnFormat(formats=(time_format("unix"), time_format("iso"))),
]
WORDS_ = ["", " ", "red", " red", "true", "false", "1\t", "\u00a07", "ü", *NUMBERS, *TIMES]
TEXTS = st.one_of(st.sampled_from(WORDS_), st.text("0123456789+-.,eETZ: ", max_size=24))


def one_by_one(texts: list[str], spec: AttributeSpec, reading: ColumnFormat) -> list[object]:
    found: list[object] = []
    for text in texts:
        try:
            found.append(from_text("it", spec, text, reading))
        except RecordError as problem:
            found.append((problem.code, problem.words))
    return found


def by_columns(texts: list[str], spec: AttributeSpec, reading: ColumnFormat) -> list[object]:
    values, wrong = convert(pa.array(texts, pa.string()), "it", spec, reading)
    return [(wrong[n].code, wrong[n].words) if n in wrong else value for n, value in enumerate(values.to_pylist())]


def same(found: list[object], expected: list[object]) -> bool:
    """Compare with kinds and the signs of zeros."""
    return found == expected and all(
        repr(one) == repr(other) for one, other in zip(found, expected, strict=True) if not isinstance(one, datetime)
    )


def test_a_column_is_what_its_texts_are() -> None:
    for spec, reading in product(SPECS, READINGS):
        expected = one_by_one(WORDS_, spec, reading)
        assert same(by_columns(WORDS_, spec, reading), expected), (spec, reading)


@settings(deadline=None, max_examples=examples(100))
@given(st.lists(TEXTS, min_size=1, max_size=12), st.sampled_from(SPECS), st.sampled_from(READINGS))
def test_columns_at_random(texts: list[str], spec: AttributeSpec, reading: ColumnFormat) -> None:
    assert same(by_columns(texts, spec, reading), one_by_one(texts, spec, reading))
