"""Events that come again are put aside, and the rest is what a naive pass over all records keeps."""

import contextlib
import json
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.pipeline.ingest.test_ingest_envelopes import AT, FIRST, good, records
from tests.pipeline.ingest_reference import SOURCE
from tests.pipeline.jobs.test_job import Plant, ids
from tests.pipeline.jobs_plant import build, interpreted, write_events
from tests.pipeline.rows import collected, sharing
from tests.trust.kit import NOW, who

from penstock.pipeline.frames import quoted
from penstock.pipeline.ingest.event_frames import REASON
from penstock.pipeline.ingest.ingest import ingest_envelopes, once
from penstock.pipeline.ingest.records import ORIGINAL, POSITION
from penstock.pipeline.jobs.enforce import Admit
from penstock.pipeline.jobs.ingest import Envelopes, Ingest
from penstock.pipeline.jobs.job import run, start
from penstock.pipeline.outputs import Output, Said, Streaming, commit, commits, totals

OTHER = str(who(3))


@pytest.fixture(autouse=True, scope="module")
def _quick(spark: SparkSession) -> Iterator[None]:
    with interpreted(spark):
        yield


def line(id_: str, minute: int, source: str = SOURCE) -> bytes:
    time = datetime(2026, 5, 1, 12, tzinfo=UTC) + timedelta(minutes=minute)
    return json.dumps(good(id=id_, source=source, time=time.isoformat())).encode()


LINES = [
    *(line("a", 0), line("a", 1), line("b", 0), line("a", 0, OTHER), line("c", -90), line("c", 2), line("c", 2)),
    *(b"{", b"{", line("known", 5), line("known", 5, OTHER), line("old", -61), line("edge", -60), line("", 0)),
]
SINCE = datetime(2026, 5, 1, 11, tzinfo=UTC)


def naive(lines: Sequence[bytes], known: set[tuple[str, str]]) -> list[str | None]:
    """Return the reason of each line: in-time events by time first, then late ones."""
    reasons: list[str | None] = ["ingest.json" if text == b"{" else None for text in lines]
    events = []
    for number, text in enumerate(lines):
        if reasons[number] is None:
            event = json.loads(text)
            time = datetime.fromisoformat(event["time"])
            events.append((time < SINCE, time, number, (event["source"], event["id"])))
    for late, _, number, key in sorted(events):
        if not key[1]:
            reasons[number] = "ingest.id"
        elif key in known:
            reasons[number] = "ingest.duplicate"
        elif late:
            reasons[number] = "ingest.late"
        known.add(key)
    return reasons


def test_all_but_the_first_are_put_aside_with_their_bytes(spark: SparkSession) -> None:
    earlier = ingest_envelopes(records(spark, [line("known", 5)]), [FIRST], AT).good
    found = once(ingest_envelopes(records(spark, LINES), [FIRST], AT), earlier, SINCE)
    rows = sorted(collected(found.tagged), key=lambda row: int(row[POSITION]))
    assert [row[REASON] for row in rows] == naive(LINES, {(SOURCE, "known")})
    assert {"ingest.duplicate", "ingest.late", "ingest.json", None} <= {row[REASON] for row in rows}
    aside = collected(found.bad)
    assert {bytes(row[ORIGINAL]) for row in aside} == {LINES[int(row[POSITION])] for row in rows if row[REASON]}


def job(folder: Path) -> Ingest:
    return Ingest(Envelopes(str(folder), (FIRST,)), lambda: NOW, dedupe=timedelta(hours=1))


def test_a_stream_that_starts_again_compares_with_what_it_stored(spark: SparkSession, tmp_path: Path) -> None:
    source, out = tmp_path / "in", str(tmp_path / "out")
    source.mkdir()
    for name, lines in (
        ("a", [line("x", 0), line("x", 0), line("y", 30)]),
        ("b", [line("x", 0), line("y", 29), line("z", 31), line("w", -31)]),
    ):
        (source / f"{name}.jsonl").write_bytes(b"\n".join(lines))
        start(job(source), spark, out, Streaming(drain=True)).wait()
    assert totals(spark, out) == {"read": 7, "events": 3, "quarantined": 4}
    assert [said["reasons"] for said in commits(spark, out).values()] == [
        {"ingest.duplicate": 1},
        {"ingest.duplicate": 2, "ingest.late": 1},
    ]
    assert sorted(row["@id"] for row in spark.read.parquet(f"{out}/events").collect()) == ["x", "y", "z"]


@pytest.mark.long
@pytest.mark.parametrize("many", [False, True])
def test_admit_refuses_what_it_has_admitted_before(spark: SparkSession, tmp_path: Path, *, many: bool) -> None:
    with sharing() if many else contextlib.nullcontext():
        _admit_refuses_what_it_has_admitted_before(spark, tmp_path)


def _admit_refuses_what_it_has_admitted_before(spark: SparkSession, tmp_path: Path) -> None:
    plant = Plant(tmp_path, build(tmp_path / "plant"))
    write_events(plant.folder / "in" / "a.jsonl", [0, 1, 1, 2, 3, 4])
    run(plant.ingest(), spark, plant.path("ingested"))
    job = Admit(plant.path("ingested"), plant.types(), plant.desk(), dedupe=timedelta(hours=1))
    output = Output(spark, plant.path("admitted"), job.name, job.source, job.parts)

    def admit(batch: int, *names: str) -> Said:
        return job.step(job.all(spark).where(quoted("@id").isin(*names)), batch, output)

    first = admit(0, "e0", "e1", "e2")
    assert first["reasons"] == {"ingest.duplicate": 1}
    assert ids(spark, plant.path("admitted/events")) == ["e0", "e1", "e2"]
    commit(spark, output.path, 0, first)
    # e4 is by somebody without a right, and is refused as such. A batch that is written again says the same.
    for _ in range(2):
        second = admit(1, "e2", "e3", "e4")
        assert second["reasons"] == {"ingest.duplicate": 1, "guard.denied": 1}
        assert ids(spark, plant.path("admitted/events")) == ["e0", "e1", "e2", "e3"]
    lines = [json.loads(text)["data"] for batch in (0, 1) for text in output.lines("decisions", batch)]
    # No decision refused what came again.
    assert sum(one.get("events", {}).get("refused", 0) for one in lines) <= 1


def test_a_batch_compares_all_events(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b"\n".join([line("x", 0), line("x", 600), line("w", -600)]))
    said = run(job(tmp_path / "a.jsonl"), spark, str(tmp_path / "out"))
    assert said["reasons"] == {"ingest.duplicate": 1}
