"""Without Spark, records become exactly what Spark makes of them: events, reasons, words, places and bytes."""

import json
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa  # type: ignore[import-untyped]  # it ships no types
import pyarrow.parquet as pq  # type: ignore[import-untyped]  # it ships no types
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from tests.budget import examples
from tests.pipeline.ingest import test_ingest_csv as in_csv
from tests.pipeline.ingest import test_ingest_envelopes as in_json
from tests.pipeline.ingest_reference import PARQUET_MAPPING
from tests.pipeline.jobs_plant import interpreted
from tests.pipeline.rows import collected

from penstock.pipeline.event_columns import FILE, ORIGINAL, POSITION, REASON, TYPE, WORDS, attributes_of, micros
from penstock.pipeline.ingest.ingest import (
    Ingested,
    ingest_envelopes,
    ingest_table,
    read_csv,
    read_lines,
    read_parquet,
)
from penstock.pipeline.ingest.mapping import BoundMapping, read_mapping
from penstock.pipeline.ingest.texts import RecordError
from penstock.pipeline.small import records
from penstock.pipeline.small.folders import NotSmallError

AT = in_csv.AT
FIRST, SECOND = in_json.FIRST, in_json.SECOND
ALL = [FIRST.event_type, SECOND.event_type]


def plain(value: object) -> object:
    """Return a value as it is compared: zeros and kinds count."""
    if isinstance(value, datetime):
        return micros(value)
    return bytes(value) if isinstance(value, bytearray) else (type(value).__name__, repr(value))


def of_spark(ingested: Ingested) -> Counter[tuple[object, ...]]:
    ids = [str(a.id) for a in attributes_of(ingested.types)]
    found: Counter[tuple[object, ...]] = Counter()
    for row in collected(ingested.tagged):
        if row[REASON] is not None:
            found[row[REASON], row[WORDS], row[FILE], row[POSITION], bytes(row[ORIGINAL])] += 1
        else:
            times = [a for a in ids if type(row[a]) is int]
            values = [row[a] if a in times else plain(row[a]) for a in ids]
            found[row[TYPE], row["@id"], row["@time"], row["@source"], *values] += 1
    return found


def without_spark(found: Iterable[records.SmallRecord], types: Iterable[object]) -> Counter[tuple[object, ...]]:
    ids = [a.id for a in attributes_of(types)]  # type: ignore[arg-type]  # event types
    rows: Counter[tuple[object, ...]] = Counter()
    for record in found:
        try:
            event = record.read()
        except RecordError as problem:
            rows[problem.code, problem.words, record.file, record.position, record.original] += 1
            continue
        by_id = {event.event_type.by_name[name].id: value for name, value in event.values.items()}
        values = [by_id.get(one) for one in ids]
        shown = [v if type(v) is int else micros(v) if isinstance(v, datetime) else plain(v) for v in values]
        rows[str(event.event_type.name), event.id, micros(event.time), event.source, *shown] += 1
    return rows


def check(found: Counter[tuple[object, ...]], expected: Counter[tuple[object, ...]]) -> None:
    more, less = sorted(map(repr, found - expected)), sorted(map(repr, expected - found))
    assert not more, "\n".join([*more[:5], "", *less[:5]])
    assert not less, "\n".join(less[:5])


def check_csv(spark: SparkSession, folder: Path, bound: BoundMapping) -> None:
    expected = of_spark(ingest_table(read_csv(spark.read, str(folder), bound.mapping.csv), bound, AT))
    files = sorted(folder.iterdir())
    check(without_spark(records.read_table(files, bound), [bound.event_type]), expected)


def vague(rows: Counter[tuple[object, ...]]) -> Counter[tuple[object, ...]]:
    """Return rows with one reason for lines that cannot be parsed: of several mistakes, either may be found first."""
    unread = {"ingest.json", "ingest.duplicate-key", "ingest.text"}
    return Counter(("unread", *row[2:]) if row[0] in unread else row for row in rows.elements())


def check_lines(spark: SparkSession, file: Path, *, damaged: bool = False) -> None:
    expected = of_spark(ingest_envelopes(read_lines(spark.read, str(file)), [FIRST, SECOND], AT))
    found = without_spark(records.read_envelopes(file, records.type_names(ALL)), ALL)
    check(vague(found) if damaged else found, vague(expected) if damaged else expected)


@pytest.fixture(autouse=True)
def _quick(spark: SparkSession) -> Iterable[None]:
    with interpreted(spark):
        yield


def test_csv(spark: SparkSession, tmp_path: Path) -> None:
    for number, end in enumerate((b"\n", b"\r\n")):
        lines = end.join([in_csv.TOP, *(text for text, _ in in_csv.CASES)])
        (tmp_path / f"a {number}.csv").write_bytes(b"\xef\xbb\xbf" + lines + end)
    (tmp_path / "twice.csv").write_bytes(in_csv.TOP.replace(b"Rest", b"Nr") + b"\n" + in_csv.line())
    (tmp_path / "stray.csv").write_bytes(b"\n".join([in_csv.TOP, b'1,"open', in_csv.line(), b'"a" b,"c']))
    check_csv(spark, tmp_path, in_csv.BOUND)


@pytest.mark.long
def test_csv_line_by_line(spark: SparkSession, tmp_path: Path) -> None:
    cases = [text for text, _ in in_csv.CASES if b"\n" not in text]
    (tmp_path / "a.csv").write_bytes(b"\xef\xbb\xbf" + b"\r\n".join([in_csv.TOP, *cases, b'1,"open', in_csv.TOP]))
    check_csv(spark, tmp_path, in_csv.one_line())


@pytest.mark.long
@settings(
    deadline=None,
    max_examples=examples(40),
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(in_csv.contents())
def test_csv_at_random(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    folder = tmp_path_factory.mktemp("csv")
    (folder / "a.csv").write_bytes(content)
    check_csv(spark, folder, in_csv.BOUND)


def test_lines_of_json(spark: SparkSession, tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    more = [
        *(in_json.raw("count", text) for text in ("1" * 38, "1" * 39, "-0", "1e2", "1.0", "9223372036854775808")),
        *(in_json.raw("value", text) for text in ("-0.0", "-0", "-0e0", "1e400", "1" * 400, "0.1", "1E-330", '"1"')),
        in_json.raw("sensor", '{"a": 1, "a": 2}'),
        in_json.raw("sensor", '"\\ud83d\\ude00"'),
        in_json.raw("sensor", '"\\ud83d"'),
        in_json.WHOLE.replace(b'"id"', b'"id": "x", "id"'),
    ]
    file.write_bytes(b"\n".join([*(text for text, _ in in_json.CASES if b"\n" not in text), *more]))
    check_lines(spark, file)


@pytest.mark.long
@settings(
    deadline=None,
    max_examples=examples(40),
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(st.lists(in_json.envelopes(), min_size=20, max_size=60))
def test_lines_at_random(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, lines: list[bytes]) -> None:
    file = tmp_path_factory.mktemp("json") / "a.jsonl"
    file.write_bytes(b"\n".join(line for line in lines if b"\n" not in line))
    check_lines(spark, file, damaged=True)


MAPPED = PARQUET_MAPPING + 'count = "i"\nvalue = "f"\non = "b"\nseen = "t"\ncolour = "s"\nlane = "l"\n'


def parquet(folder: Path, **other: pa.Array) -> Path:
    noon = datetime(2026, 5, 1, 12, tzinfo=UTC)
    columns = {
        "n": ["1", "2", "", "4", None, "6"],
        "t": pa.array([noon + timedelta(microseconds=n * 1_001) for n in range(5)] + [None], pa.timestamp("us", "UTC")),
        "i": pa.array([1, None, 3, 4, 5, -(2**63)], pa.int64()),
        "f": pa.array([1.5, float("nan"), -0.0, 1e20, 1e-5, float("inf")]),
        "b": [True, False, None, True, False, True],
        "s": ["red", "grün", 'it\'s "quoted"\n', None, "", "blue"],
        "l": ["1", "x", "10", "", None, " 9 "],
    }
    pq.write_table(pa.table({**columns, **other}), folder / "a.parquet")
    return folder / "a.parquet"


def test_parquet(spark: SparkSession, tmp_path: Path) -> None:
    bound = read_mapping(MAPPED).bind(FIRST)
    file = parquet(tmp_path)
    expected = of_spark(ingest_table(read_parquet(spark.read, str(file)), bound, AT))
    check(without_spark(records.read_table([file], bound), [FIRST.event_type]), expected)


@pytest.mark.parametrize(
    "other",
    [
        {"more": pa.array([[1]] * 6)},
        {"t": pa.array([datetime(2026, 5, 1)] * 6, pa.timestamp("us"))},  # noqa: DTZ001  # without a zone
        {"i": pa.array([1.5] * 6)},
    ],
)
def test_parquet_that_only_spark_reads(tmp_path: Path, other: dict[str, pa.Array]) -> None:
    with pytest.raises(NotSmallError):
        list(records.read_table([parquet(tmp_path, **other)], read_mapping(MAPPED).bind(FIRST)))


def test_json_of_rows_is_json() -> None:
    row = {"a": 1e20, "b": None, "c": "\u2028\\", "d": True, "e": 0.001, "f": 123456.75}
    assert json.loads(records.row_json(row)) == row
