"""CSV files become what the reference makes of them: fields, values, reasons, and every byte."""

import tempfile
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from tests.budget import examples
from tests.pipeline.ingest_reference import SOURCE, Found, Record, define, split, table
from tests.pipeline.rows import collected, same

from penstock.pipeline.frames import micros
from penstock.pipeline.ingest.event_frames import REASON, WORDS
from penstock.pipeline.ingest.ingest import Ingested, ingest_table, read_csv, run_ingest
from penstock.pipeline.ingest.mapping import BoundMapping, CsvLayout, read_mapping
from penstock.pipeline.ingest.records import COLUMNS, ORIGINAL, POSITION, csv_records
from penstock.pipeline.ingest.records import FIELDS as SPLIT

AT = datetime(2026, 5, 1, 12, tzinfo=UTC)
FIRST, _ = define()
MAPPING = """
type = "reading.type"
format = "csv"
[event]
id = "Nr"
time = { column = "Zeit", formats = ["%d.%m.%Y %H:%M", "unix"], zone = "Europe/Berlin" }
source = { column = "von", null = [] }
[defaults]
null = ["", "EMPTY"]
[attributes]
sensor = { column = "Sensor", trim = false, null = [] }
colour = "Farbe"
count = { column = "Zahl", group = "." }
lane = { constant = 4 }
value = { column = "Wert", decimal = ",", group = "." }
share = "Anteil"
on = { column = "an", true = ["ja", "1"], false = ["nein", "0"] }
seen = { column = "gesehen", formats = ["iso", "unix-ms"] }
due-by = { column = "bis", formats = ["%-d/%-m/%Y %H:%M:%S.%f%z"] }
"""
HEADER = ["Nr", "Zeit", "von", "Sensor", "Farbe", "Zahl", "Wert", "Anteil", "an", "gesehen", "bis", "Rest"]
GOOD = ["7", "01.05.2026 12:30", SOURCE, "s 1", "grün", "1.234", "1.234,5", "0.5", "ja", "2026-05-01T08:00:00Z",
        "1/6/2026 10:00:00.25+0200", "x"]  # fmt: skip
BOUND = read_mapping(MAPPING).bind(FIRST)


def line(*fields: str, **changes: str) -> bytes:
    values = dict(zip(HEADER, fields or GOOD, strict=True)) | changes
    return ",".join(f'"{v.replace(chr(34), chr(34) * 2)}"' if set(v) & set(',"\r\n') else v
                    for v in values.values()).encode()  # fmt: skip


TOP = ",".join(HEADER).encode()
CASES: list[tuple[bytes, str | None]] = [
    (line(), None),
    (line(Sensor='two\nlines, and "quotes"\r\n'), None),
    (line(Sensor=" "), None),
    (line(Nr="", Sensor=""), "ingest.id"),
    (b"", "ingest.empty"),
    (line(Sensor="\ud83d".encode("utf-16", "surrogatepass").decode("latin-1")[:1]), None),
    (line(Farbe="red").replace(b"red", b"r\xffd"), "ingest.utf8"),
    (line() + b",more", "ingest.columns"),
    (line().rsplit(b",", 1)[0], "ingest.columns"),
    (b"only", "ingest.columns"),
    (line(Rest='a"b').replace(b'"a""b"', b'a"b'), "ingest.csv"),
    (line(Rest="a,b") + b"c", "ingest.csv"),
    (line(Rest="a,b").replace(b'"a,b"', b"a\rb"), "ingest.csv"),
    (line(von="me"), "ingest.source"),
    (line(von=""), "ingest.source"),
    (line(Zeit="1.5.2026 12:30"), "ingest.time"),
    (line(Zeit="31.02.2026 12:30"), "ingest.time"),
    (line(Zeit=""), "ingest.time"),
    (line(Zeit="EMPTY"), "ingest.time"),
    (line(Zeit="-1.5"), None),
    (line(Zeit="999999999999"), "ingest.time"),
    (line(Zeit="25.10.2026 02:30"), None),
    (line(Zeit="29.03.2026 02:30"), None),
    (line(Farbe="blue"), "ingest.domain"),
    (line(Farbe="EMPTY"), None),
    (line(Zahl="12.34"), "ingest.kind"),
    (line(Zahl="1e3"), "ingest.kind"),
    (line(Zahl="0x10"), "ingest.kind"),
    (line(Zahl="9223372036854775807"), None),
    (line(Zahl="9.223.372.036.854.775.808"), "ingest.range"),
    (line(Zahl=" +5 "), None),
    (line(Wert="1.5"), "ingest.kind"),
    (line(Wert="NaN"), "ingest.kind"),
    (line(Wert="Infinity"), "ingest.kind"),
    (line(Wert="1e400"), "ingest.range"),
    (line(Wert=",5"), None),
    (line(Wert="5d"), "ingest.kind"),
    (line(Anteil="1.5"), "ingest.domain"),
    (line(an="true"), "ingest.kind"),
    (line(an="0"), None),
    (line(gesehen="2026-05-01T08:00:00"), "ingest.kind"),
    (line(gesehen="1777000000123"), None),
    (line(gesehen="epoch"), "ingest.kind"),
    (line(bis="1/6/2031 10:00:00.25Z"), "ingest.domain"),
    (line(bis="1/13/2026 10:00:00.25Z"), "ingest.kind"),
]


def compare(ingested: Ingested, expected: list[tuple[Record, Found]]) -> None:
    rows = {row[POSITION]: row for row in collected(ingested.tagged)}
    assert sorted(rows) == [record.line for record, _ in expected]
    for record, found in expected:
        row, original = rows[record.line], record.original
        assert row[REASON] == found.reason, (original, row[REASON], found.reason)
        if found.event is None:
            assert bytes(row[ORIGINAL]) == original
            continue
        event = found.event
        assert event.time is not None
        assert (row["@id"], row["@time"], row["@source"]) == (event.id, micros(event.time), found.source), original
        for attribute in event.type.attributes:
            assert same(event[attribute.name], row[attribute.id]), (original, attribute.name, row[attribute.id])


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_each_way_to_be_broken_has_its_reason(spark: SparkSession, tmp_path: Path, end: bytes) -> None:
    content = b"\xef\xbb\xbf" + end.join([TOP, *(text for text, _ in CASES)]) + end
    (tmp_path / "a.csv").write_bytes(content)
    ingested = ingest_table(read_csv(spark.read, str(tmp_path), BOUND.mapping.csv), BOUND, AT)
    expected = table(content, BOUND)
    assert [found.reason for _, found in expected] == [reason for _, reason in CASES]
    compare(ingested, expected)


PIECES = st.sampled_from(
    [b'"', b'""', b",", b"\n", b"\r\n", b"\r", b"a", b"", b"1", b"\xff", "ü".encode(), b"EMPTY", b" ", b"\t", b"\\"]
)
FIELDS = st.lists(PIECES, max_size=3).map(b"".join)


@st.composite
def contents(draw: st.DrawFn) -> bytes:
    lines = []
    for _ in range(draw(st.integers(30, 60))):
        fields = line().split(b",")
        for _ in range(draw(st.integers(0, 2))):
            fields[draw(st.integers(0, len(fields) - 1))] = draw(FIELDS)
        if draw(st.integers(0, 4)) == 0:
            fields = draw(st.lists(FIELDS, max_size=4))
        lines.append(b",".join(fields) + draw(st.sampled_from([b"\n", b"\r\n"])))
    return draw(st.sampled_from([b"", b"\xef\xbb\xbf"])) + TOP + b"\n" + b"".join(lines) + draw(FIELDS)


@settings(
    deadline=None,
    max_examples=examples(5),
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(contents())
@example(TOP + b"\n" + line() + b"\r\n\r")
def test_files_become_what_the_reference_makes_of_them(spark: SparkSession, content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "a.csv").write_bytes(content)
        ingested = ingest_table(read_csv(spark.read, folder, BOUND.mapping.csv), BOUND, AT)
        compare(ingested, table(content, BOUND))


@settings(
    deadline=None,
    max_examples=examples(5),
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(contents())
@example(TOP + b"\n" + line() + b"\r\n\r")
def test_records_that_spark_splits_are_those_of_the_reference(spark: SparkSession, content: bytes) -> None:
    layout = CsvLayout()
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "a.csv").write_bytes(content)
        rows = sorted(csv_records(spark.read, folder, layout).collect(), key=lambda row: int(row[POSITION]))
    header, *expected = split(content, layout)
    assert [(row[POSITION], bytes(row[ORIGINAL])) for row in rows] == [(one.line, one.original) for one in expected]
    for row, one in zip(rows, expected, strict=True):
        assert row[COLUMNS] == [name.decode() for name in header.fields if name is not None]
        readable = None not in one.fields and is_utf8(one.original)
        assert row[SPLIT] == ([(field or b"").decode() for field in one.fields] if readable else None)


def is_utf8(data: bytes) -> bool:
    return data.decode(errors="replace").encode() == data


@settings(deadline=None, max_examples=examples(300))
@given(st.lists(PIECES, max_size=30).map(b"".join))
def test_the_reference_loses_no_octet(content: bytes) -> None:
    assert b"".join(record.original for record in split(content, CsvLayout())) == content


@pytest.mark.parametrize("stray", [b'"x,y', b'1,"open', b'"', b'1,"a,b",c"', b'"a" b,"c'])
def test_a_quote_too_many_costs_one_line(spark: SparkSession, tmp_path: Path, stray: bytes) -> None:
    """What follows the line is read: with quotes in it or without, and over several lines where a value has them."""
    quoted = line(Sensor='two\nlines, and "quotes"')
    for number, others in enumerate(([line(), line(), line()], [quoted, line(Rest=",5"), quoted, line()])):
        (tmp_path / f"{number}.csv").write_bytes(b"\n".join([TOP, quoted, stray, *others]))
        bound = BOUND.mapping.csv
        ingested = ingest_table(read_csv(spark.read, str(tmp_path / f"{number}.csv"), bound), BOUND, AT)
        rows = sorted((row[POSITION], row[REASON], row[ORIGINAL]) for row in collected(ingested.tagged))
        bad = [(position, reason, bytes(original)) for position, reason, original in rows if reason]
        assert bad == [(4, "ingest.csv", stray + b"\n")], "the header, a record of two lines, and then this"
        assert len(rows) == 2 + len(others)


def test_a_column_may_stand_anywhere_and_must_stand_once(spark: SparkSession, tmp_path: Path) -> None:
    turned = b"\n".join(b",".join(reversed(text.split(b","))) for text in (TOP, line().replace(b'"1.234,5"', b"5")))
    (tmp_path / "turned.csv").write_bytes(turned)
    (tmp_path / "twice.csv").write_bytes(TOP.replace(b"Rest", b"Nr") + b"\n" + line())
    (tmp_path / "less.csv").write_bytes(TOP.replace(b"Farbe", b"Colour") + b"\n" + line() + b"\n" + line())
    (tmp_path / "empty.csv").write_bytes(b"")
    ingested = ingest_table(read_csv(spark.read, str(tmp_path), BOUND.mapping.csv), BOUND, AT)
    found = [(row["@file"].rsplit("/", 1)[1], row[REASON], row[WORDS]) for row in collected(ingested.tagged)]
    assert sorted(found) == [
        ("less.csv", "ingest.header", "the header lacks the column `Farbe`"),
        ("less.csv", "ingest.header", "the header lacks the column `Farbe`"),
        ("turned.csv", None, None),
        ("twice.csv", "ingest.header", "the header has the column `Nr` several times"),
    ]


def one_line(**csv: object) -> BoundMapping:
    columns = "[" + ", ".join(f'"{name}"' for name in HEADER) + "]"
    options = "".join(f"{key} = {value}\n" for key, value in csv.items())
    return read_mapping(f"{MAPPING}\n[csv]\nmultiline = false\ncolumns = {columns}\n{options}").bind(FIRST)


def test_lines_that_are_read_one_by_one(spark: SparkSession, tmp_path: Path) -> None:
    cases = [(text, reason) for text, reason in CASES if b"\n" not in text]
    content = b"\xef\xbb\xbf" + b"\r\n".join([TOP, *(text for text, _ in cases), b'1,"open', TOP, line()])
    (tmp_path / "a.csv").write_bytes(content)
    bound = one_line()
    ingested = ingest_table(read_csv(spark.read, str(tmp_path), bound.mapping.csv), bound, AT)
    kept: list[tuple[bytes, str]] = []
    tally = run_ingest(ingested, lambda it: kept.extend((bytes(r[ORIGINAL]), r[REASON]) for r in it.bad.collect()))
    expected = [(text + b"\r", reason) for text, reason in cases if reason] + [(b'1,"open\r', "ingest.csv")]
    assert sorted(kept) == sorted(expected)
    assert (tally.read, tally.bad) == (len(cases) + 2, len(expected))


def test_other_delimiters_and_quotes(spark: SparkSession, tmp_path: Path) -> None:
    plain = line(Wert="5", Sensor='a"b;').decode().replace('"a""b;"', "'a\"b;'").replace(",", ";")
    (tmp_path / "a.csv").write_text(plain + "\n" + plain.replace("'", "|"), encoding="utf-8")
    for options, reasons in (
        ({"delimiter": '";"', "quote": '"\'"'}, [None, "ingest.columns"]),
        ({"delimiter": '";"', "quote": '""'}, ["ingest.columns", "ingest.columns"]),
    ):
        bound = one_line(header="false", **options)
        ingested = ingest_table(read_csv(spark.read, str(tmp_path), bound.mapping.csv), bound, AT)
        rows = sorted(collected(ingested.tagged), key=lambda row: b"|" in row[ORIGINAL])
        assert [row[REASON] for row in rows] == reasons
        sensor = FIRST.event_type.by_name["sensor"].id
        assert rows[0][sensor] == ('a"b;' if reasons[0] is None else None)
