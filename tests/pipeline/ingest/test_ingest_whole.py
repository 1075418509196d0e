"""Whole runs: a file of which 5 % is broken, Parquet, streams, and the example of the municipality."""

import csv
import json
import os
import random
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # the name that everybody knows it by
from tests.pipeline.ingest.test_ingest_csv import BOUND, HEADER, MAPPING, TOP, line
from tests.pipeline.ingest.test_ingest_csv import CASES as ROWS
from tests.pipeline.ingest.test_ingest_envelopes import CASES as LINES
from tests.pipeline.ingest.test_ingest_envelopes import WHOLE
from tests.pipeline.ingest_reference import PARQUET_MAPPING, define
from tests.pipeline.jobs_plant import interpreted
from tests.pipeline.rows import collected
from tests.scripts import load_script
from tests.trust.kit import who

from penstock.errors import MalformedError
from penstock.pipeline.frames import micros
from penstock.pipeline.ingest import formats, ingest
from penstock.pipeline.ingest.csv_columns import RecordPlaces
from penstock.pipeline.ingest.event_frames import REASON
from penstock.pipeline.ingest.ingest import (
    Ingested,
    RecordTally,
    each_batch,
    ingest_envelopes,
    ingest_table,
    read_csv,
    read_lines,
    read_parquet,
    run_ingest,
    store_ingest,
)
from penstock.pipeline.ingest.mapping import read_mapping
from penstock.pipeline.ingest.records import NUMBER, ORIGINAL, POSITION

AT = datetime(2026, 5, 1, 12, tzinfo=UTC)
FIRST, SECOND = define()


@pytest.fixture(autouse=True, scope="module")
def _quick(spark: SparkSession) -> Iterator[None]:
    with interpreted(spark):
        yield


def mixed(good: bytes, cases: list[tuple[bytes, str | None]], count: int, seed: int) -> list[tuple[bytes, str | None]]:
    """Return `count` records, 5 % of them broken, each kind of broken at least once."""
    chance = random.Random(seed)  # noqa: S311  # test data
    broken = [(record, reason) for record, reason in cases if reason is not None and b"\n" not in record]
    wanted = count // 20
    assert wanted >= len(broken)
    chosen = broken + chance.choices(broken, k=wanted - len(broken))
    made = [*chosen, *([(good, None)] * (count - wanted))]
    chance.shuffle(made)
    return made


def check(ingested: Ingested, records: list[tuple[bytes, str | None]], end: bytes = b"") -> None:
    kept: list[tuple[bytes, str]] = []
    good: list[int] = []

    def write(it: Ingested) -> None:
        kept.extend((bytes(row[ORIGINAL]), row[REASON]) for row in it.bad.collect())
        good.append(it.good.count())

    tally = run_ingest(ingested, write)
    expected = Counter((record + end, reason) for record, reason in records if reason is not None)
    assert Counter(kept) == expected
    assert good == [len(records) - expected.total()]
    assert tally == RecordTally(len(records), good[0], expected.total(), tally.reasons)
    bad = expected.total()
    assert str(tally) == f"{len(records):,} records = {len(records) - bad:,} good + {bad:,} in quarantine"
    assert dict(tally.reasons) == Counter(reason for _, reason in expected.elements())


def test_a_log_of_which_a_part_is_broken_in_every_way(spark: SparkSession, tmp_path: Path) -> None:
    records = mixed(WHOLE, LINES, 2_000, seed=3)
    half = len(records) // 2
    for name, part in (("a.jsonl", records[:half]), ("b.jsonl", records[half:])):
        (tmp_path / name).write_bytes(b"".join(record + b"\n" for record, _ in part))
    check(ingest_envelopes(read_lines(spark.read, str(tmp_path)), [FIRST, SECOND], AT), records)


def test_a_table_of_which_a_part_is_broken_in_every_way(spark: SparkSession, tmp_path: Path) -> None:
    records = mixed(line(), ROWS, 2_000, seed=4)
    (tmp_path / "a.csv").write_bytes(b"".join(record + b"\r\n" for record in (TOP, *(r for r, _ in records))))
    check(ingest_table(read_csv(spark.read, str(tmp_path), BOUND.mapping.csv), BOUND, AT), records, b"\r\n")


LIST = ", ".join(f'"{name}"' for name in HEADER)
BY_LINE = read_mapping(f"{MAPPING}\n[csv]\nmultiline = false\ncolumns = [{LIST}]\n").bind(FIRST)
BROKEN = [line(von="me"), line(Farbe="red").replace(b"red", b"r\xffd"), line(Nr="")]


def plan_of(frame: DataFrame) -> str:
    """Return the plan that Spark runs for a frame, with all fields."""
    settings = frame.sparkSession.conf
    settings.set("spark.sql.debug.maxToStringFields", "1000")
    try:
        return str(frame._jdf.queryExecution().executedPlan().toString())
    finally:
        settings.unset("spark.sql.debug.maxToStringFields")


def found_again(spark: SparkSession, form: str, folder: Path) -> Ingested:
    """Ingest two files of 7 good records and 3 bad ones in some format."""
    if form == "parquet":
        rows = [(str(n) if n % 3 else None, AT) for n in range(1, 11)]
        frame = spark.createDataFrame(rows, "n string, t timestamp")
        frame.coalesce(1).write.option("maxRecordsPerFile", "5").parquet(str(folder / "in"))
        bound = read_mapping(PARQUET_MAPPING).bind(FIRST)
        return ingest_table(read_parquet(spark.read, str(folder / "in")), bound, AT)
    top, good, bad, end = {
        "csv": (TOP, line(), BROKEN, b"\n"),
        "quotes": (TOP, line(Sensor='"a"\nb'), BROKEN, b"\n"),
        "lines": (TOP, line(), BROKEN, b"\n"),
        "envelopes": (WHOLE, WHOLE, [b"{", b"", b"\xff"], b"\n"),
    }[form]
    parts = [[top, good, bad[0], bad[1], good], [top, good, good, bad[2], good, good, good]]
    for name, part in zip("ab", parts, strict=True):
        (folder / f"{name}.txt").write_bytes(end.join(part[form == "envelopes" :]))
    if form == "envelopes":
        return ingest_envelopes(read_lines(spark.read, str(folder)), [FIRST], AT)
    bound = BY_LINE if form == "lines" else BOUND
    return ingest_table(read_csv(spark.read, str(folder), bound.mapping.csv), bound, AT)


@pytest.mark.parametrize("form", ["csv", "quotes", "lines", "envelopes", "parquet"])
def test_bad_records_are_found_again_by_their_places(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    ingested = found_again(spark, form, tmp_path)
    whole = sorted(map(str, ingested.bad.collect()))
    asked: list[int] = []

    def stored(frame: DataFrame) -> DataFrame:
        return spark.createDataFrame(frame.collect(), frame.schema)

    def some(places: RecordPlaces) -> DataFrame:
        assert ingested.separate is not None
        found = ingested.separate.some(places)
        # A literal of this run's time would be part of compiled code, and each run would compile its own.
        assert "00 AS @ingested" not in plan_of(found)
        found = found.cache()
        asked.append(found.count())
        return found

    def aside(frame: DataFrame) -> DataFrame:
        assert sorted(map(str, frame.collect())) == whole
        return stored(frame)

    assert ingested.separate is not None
    watched = replace(ingested, separate=replace(ingested.separate, some=some))
    for noted in (3, 2):
        monkeypatch.setattr(ingest, "NOTED_RECORDS", noted)
        tally = store_ingest(watched, stored, aside)
        assert (tally.read, tally.good, tally.bad) == (10, 7, 3)
    # Few others were checked again, those in the same rows of the other file; of more than can be noted there are no
    # places.
    assert asked == [6 if form == "parquet" else 3]


def test_sources_with_a_collation_are_checked_as_letters(spark: SparkSession, tmp_path: Path) -> None:
    rows = [(str(number), AT, text) for number, text in enumerate((str(who(2)), str(who(2)).upper()))]
    frame = spark.createDataFrame(rows, "n string, t timestamp, p string COLLATE UTF8_LCASE").coalesce(1)
    frame.write.parquet(str(tmp_path / "in"))
    bound = read_mapping(re.sub("source = .*", 'source = "p"', PARQUET_MAPPING)).bind(FIRST)
    separate = ingest_table(read_parquet(spark.read, str(tmp_path / "in")), bound, AT).separate
    assert separate is not None
    assert [row[REASON] for row in separate.brief().orderBy(NUMBER).collect()] == [None, "ingest.source"]
    assert spark.conf.get("spark.sql.session.localRelationCacheThreshold") == "0", "requests have no publishers"


@pytest.mark.parametrize("sampled", [2, 1_000])
def test_likely_publishers_are_recognised_and_every_other_source_is_checked(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sampled: int
) -> None:
    monkeypatch.setattr(formats, "_FIRST_RECORDS", sampled)
    known, other, bad = str(who(2)), str(who(3)), "ingest.source"
    cases = [
        (None, bad), (f" {known}", None), (other, None), (known[:-1], bad), (f"{known}a", bad), ("x" * 100, bad),
        (other.upper(), bad), (known, None),
    ]  # fmt: skip
    rows = [(str(number), AT, text) for number, (text, _) in enumerate(cases)]
    frame = spark.createDataFrame(rows, "n string, t timestamp, p string")
    broken = spark.sql("SELECT 'x', TIMESTAMP '2026-05-01T12:00:00Z', CAST(X'ff' AS STRING)")
    frame.coalesce(1).union(broken).coalesce(1).write.parquet(str(tmp_path / "in"))
    bound = read_mapping(re.sub("source = .*", 'source = "p"', PARQUET_MAPPING)).bind(FIRST)
    records = read_parquet(spark.read, str(tmp_path / "in"))
    separate = ingest_table(records, bound, AT).separate
    assert separate is not None
    brief = separate.brief()
    assert [row[REASON] for row in brief.orderBy(NUMBER).collect()] == [*(reason for _, reason in cases), "ingest.utf8"]
    likely = formats.first_publishers(records, bound)
    assert likely is not None
    assert spark.range(1).select(F.sort_array(likely)).first() == ([known] if sampled == 2 else sorted((known, other)),)
    plan = plan_of(brief)
    assert "subquery" in plan
    assert known not in plan


def test_records_that_are_not_in_their_places_any_more_are_found_among_all(spark: SparkSession, tmp_path: Path) -> None:
    ingested = found_again(spark, "envelopes", tmp_path)
    assert ingested.separate is not None
    moved = replace(ingested.separate, some=lambda _: ingested.tagged.limit(0))
    written: list[int] = []

    def stored(frame: DataFrame) -> DataFrame:
        written.append(frame.count())
        return frame

    assert store_ingest(replace(ingested, separate=moved), stored, stored).bad == 3
    assert written == [7, 0, 3]


def test_a_stream_of_files(spark: SparkSession, tmp_path: Path) -> None:
    source, state = tmp_path / "in", tmp_path / "state"
    source.mkdir()
    told: list[RecordTally] = []
    seen: list[str] = []
    process = each_batch(
        lambda records: ingest_envelopes(records, [FIRST], AT),
        lambda it, number: seen.extend(f"{number} {row[REASON]}" for row in it.bad.collect()),
        lambda tally, _: told.append(tally),
    )
    for name, content in (("a.jsonl", WHOLE + b"\n{\n"), ("b.jsonl", b"\xff\n" + WHOLE + b"\n" + WHOLE)):
        (source / name).write_bytes(content)
        lines = read_lines(spark.readStream, str(source))
        assert lines.isStreaming
        query = lines.writeStream.foreachBatch(process).option("checkpointLocation", str(state))
        assert query.trigger(availableNow=True).start().awaitTermination(60)
    assert [(tally.read, tally.good, tally.bad) for tally in told] == [(2, 1, 1), (3, 2, 1)]
    assert seen == ["0 ingest.json", "1 ingest.utf8"]


PARQUET = f"""{PARQUET_MAPPING}sensor = "a.b`c"
lane = "i"
value = "d"
level = "m"
on = "b"
seen = {{ column = "w", zone = "Europe/Amsterdam" }}
colour = "s"
"""


def test_parquet(spark: SparkSession, tmp_path: Path) -> None:
    spark.sql(
        "SELECT * FROM VALUES"
        " ('1', TIMESTAMP '2026-05-01T12:00:00Z', 'x', 3S, 1.5D, 0.5BD, true,"
        " TIMESTAMP_NTZ '2026-07-01 12:00:00', 'red'),"
        " ('2', TIMESTAMP '2026-05-01T12:00:00Z', NULL, NULL, double('NaN'), NULL, NULL, NULL, NULL),"
        " (NULL, TIMESTAMP '2026-05-01T12:00:00Z', 'x', 3S, 1.5D, 0.5BD, true, NULL, 'red'),"
        " ('4', NULL, 'x', 3S, 1.5D, 0.5BD, true, NULL, 'red'),"
        " ('5', TIMESTAMP '2026-05-01T12:00:00Z', 'x', 10S, 1.5D, 0.5BD, true, NULL, 'red'),"
        " ('6', TIMESTAMP '2026-05-01T12:00:00Z', 'x', 3S, 1.5D, 0.4BD, true, NULL, 'red'),"
        " ('7', TIMESTAMP '2026-05-01T12:00:00Z', 'x', 3S, 1.5D, 0.5BD, true, NULL, 'blue'),"
        " ('8', TIMESTAMP '2026-05-01T12:00:00Z', CAST(X'ff' AS STRING), 3S, 1.5D, 0.5BD, true, NULL, 'red')"
        " AS v(n, t, `a.b``c`, i, d, m, b, w, s)"
    ).coalesce(1).write.parquet(str(tmp_path / "in"))
    bound = read_mapping(PARQUET).bind(FIRST)
    ingested = ingest_table(read_parquet(spark.read, str(tmp_path / "in")), bound, AT)
    rows = sorted(collected(ingested.tagged), key=lambda row: int(row[POSITION]))
    assert [row[REASON] for row in rows] == [
        None, None, "ingest.id", "ingest.time", "ingest.domain", "ingest.domain", "ingest.domain", "ingest.utf8",
    ]  # fmt: skip
    uid = {a.name: a.id for a in FIRST.event_type.attributes}
    first = rows[0]
    assert first[uid["seen"]] == micros(datetime(2026, 7, 1, 10, tzinfo=UTC))
    assert [first[uid[name]] for name in ("sensor", "lane", "value", "level", "on")] == ["x", 3, 1.5, 0.5, True]
    assert json.loads(bytes(rows[2][ORIGINAL]))["t"] == "2026-05-01T12:00:00.000Z"
    assert rows[1][uid["value"]] != rows[1][uid["value"]]  # NaN is the value unequal to itself
    for change in (('lane = "i"', 'lane = "d"'), ('"a.b`c"', '"gone"'), (', zone = "Europe/Amsterdam"', "")):
        other = read_mapping(PARQUET.replace(*change)).bind(FIRST)
        with pytest.raises(MalformedError) as raised:
            ingest_table(read_parquet(spark.read, str(tmp_path / "in")), other, AT)
        assert raised.value.code == "mapping.column"


# --- The example -----------------------------------------------------------------------------------------------------


def example() -> ModuleType:
    return load_script("examples/receipt/receipt.py")


COLUMNS = ["case:channel", "case:concept:name", "case:deadline", "case:department", "case:enddate",
           "case:enddate_planned", "case:group", "case:responsible", "case:startdate", "concept:instance",
           "concept:name", "lifecycle:transition", "org:group", "org:resource", "time:timestamp"]  # fmt: skip


def sample(path: Path, count: int) -> None:
    """Write a log of the same shape as the municipality's."""
    chance = random.Random(7)  # noqa: S311  # test data
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for number in range(count):
            day = f"2011-10-{chance.randrange(1, 31):02} 13:42:22.688000+02:00"
            writer.writerow(
                [chance.choice(["Internet", "Desk", "Post"]), f"case-{number // 6}", day,
                 chance.choice(["General", "Experts"]), chance.choice(["", day]), day, chance.choice(["", "Group 5"]),
                 f"Resource{chance.randrange(40):02}", day, f"task-{number}", "Confirmation of receipt", "complete",
                 chance.choice(["Group 1", "Group 3", "EMPTY"]), f"Resource{chance.randrange(40):02}", day]
            )  # fmt: skip


def test_the_municipality(spark: SparkSession, tmp_path: Path) -> None:
    suites = os.environ.get("PENSTOCK_SUITES")
    path = Path(suites or tmp_path) / "events" / "receipt.csv"
    if not path.exists():
        path = tmp_path / "receipt.csv"
        sample(path, 300)
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    first, *readers = example().summary(spark, str(path))
    assert first == f"{len(rows):,} records = {len(rows):,} good + 0 in quarantine"
    counts = {text.split(": ")[0]: text.split(": ")[1] for text in readers}

    def those(**only: str) -> int:
        return sum(all(row[name.replace("_", ":")] == value for name, value in only.items()) for row in rows)

    work = "case, responsible, deadline, activity, group, resource"
    assert counts["Group 1"] == f"{those(org_group='Group 1'):,} events with {work}"
    assert counts["Group 3"] == f"{those(org_group='Group 3'):,} events with {work}"
    experts = sum(row["case:department"] == "Experts" or row["case:channel"] == "Post" for row in rows)
    assert counts["Experts"].startswith(f"{experts:,} events with case, channel, department")
    assert counts["Help desk"] == f"{len(rows):,} events with case, channel, planned, activity"
    assert counts["Visitor"] == "0 events"
