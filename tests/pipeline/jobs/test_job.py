"""Jobs from path to path: in one batch and as streams; what was stopped goes on without losing or doubling anything."""

import contextlib
import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, cast

import pytest
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]  # it has no types
from pyspark.errors import AnalysisException, PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from tests.pipeline.anywhere import publish
from tests.pipeline.jobs_plant import (
    HIDDEN,
    NAME,
    POLICY,
    admitted,
    build,
    good,
    interpreted,
    line,
    seen,
    write_events,
)
from tests.pipeline.rows import sharing
from tests.trust.kit import NOW, grant, refused, who

from penstock.errors import FailedError, PenstockError
from penstock.guard.decision_log import DecisionRecord, EventCounts, read_record
from penstock.model import EventType
from penstock.pipeline import outputs as commits
from penstock.pipeline import shared_columns
from penstock.pipeline.enforce.layout import Layout, open_view
from penstock.pipeline.enforce.policy import PipelinePolicy, load_policy
from penstock.pipeline.jetstream.messages import JetStreamSource, check_stream
from penstock.pipeline.jetstream.options import parse_options
from penstock.pipeline.jobs import enforce
from penstock.pipeline.jobs import job as jobs
from penstock.pipeline.jobs import reports as jobs_report
from penstock.pipeline.jobs.enforce import Admit, DeliverJob, RecordingPolicy
from penstock.pipeline.jobs.ingest import Envelopes, Ingest, TableRecords
from penstock.pipeline.jobs.job import Job, RunningStream, run, spark_errors, start
from penstock.pipeline.jobs.reports import Audit, WhatIf, audit_at_once, audited, compared
from penstock.pipeline.outputs import Output, Said, Streaming, totals
from penstock.testing.nats import NatsServer
from penstock.trust import Credentials, Right, event_tag

RECORDS = 42
STREAM = Streaming(files=1, drain=True)


class Plant:
    """The world of `jobs_plant`, and the jobs over it."""

    def __init__(self, folder: Path, policy: Path) -> None:
        self.folder = folder
        self.policy = policy
        self.numbers = count()

    def loaded(self) -> PipelinePolicy:
        return load_policy(str(self.policy), NOW)

    def path(self, name: str) -> str:
        return str(self.folder / name)

    def desk(self) -> RecordingPolicy:
        def clock() -> datetime:
            return NOW + timedelta(seconds=next(self.numbers))

        return RecordingPolicy.of(
            self.loaded(), "test", clock=clock, timer=lambda: next(self.numbers), ids=lambda: f"d{next(self.numbers)}"
        )

    def types(self) -> tuple[EventType, ...]:
        return tuple(verified.event_type for verified in self.loaded().types)

    def ingest(self) -> Job:
        return Ingest(Envelopes(self.path("in"), self.loaded().types), lambda: NOW)

    def admit(self) -> Job:
        return Admit(self.path("ingested"), self.types(), self.desk())

    def deliver(self, chosen: Layout = Layout.PROGRAM) -> DeliverJob:
        return DeliverJob(self.path("admitted"), self.types(), self.desk(), chosen)

    def write(self, files: int = 1) -> None:
        each = RECORDS // files
        for number in range(files):
            write_events(self.folder / "in" / f"{number}.jsonl", range(number * each, (number + 1) * each))


@pytest.fixture(autouse=True, scope="module")
def _quick(spark: SparkSession) -> Iterator[None]:
    with interpreted(spark):
        yield


@pytest.fixture
def plant(tmp_path: Path) -> Plant:
    return Plant(tmp_path, build(tmp_path / "plant"))


def ids(spark: SparkSession, path: str) -> list[str]:
    return sorted(row["@id"] for row in spark.read.parquet(path).select("`@id`").collect())


def view(spark: SparkSession, path: str, subscriber: str) -> list[tuple[object, ...]]:
    rows = open_view(spark, path, subscriber)
    sensor = "probe" if "probe" in rows.columns else "sensor"
    return sorted((r["@id"], r[sensor], r["region"], r["value"]) for r in rows.collect())


def check_admitted(spark: SparkSession, plant: Plant) -> None:
    """Check that every event is where it belongs, once."""
    assert ids(spark, plant.path("ingested/events")) == sorted(f"e{n}" for n in good(RECORDS))
    broken = spark.read.parquet(plant.path("ingested/quarantine")).collect()
    assert sorted(bytes(r["@original"]).decode() for r in broken) == sorted(
        f"broken {n}" for n in range(RECORDS) if n % 7 == 6
    )
    assert ids(spark, plant.path("admitted/events")) == sorted(f"e{n}" for n in admitted(RECORDS))
    assert ids(spark, plant.path("admitted/refused")) == sorted(f"e{n}" for n in good(RECORDS) if n % 5 == 4)


def check(spark: SparkSession, plant: Plant) -> None:
    """Check that every event is where it belongs, once, and so is what readers see."""
    check_admitted(spark, plant)
    for subscriber in ("statistics", "engineer", "auditor"):
        assert view(spark, plant.path("delivered"), subscriber) == seen(subscriber, RECORDS)
    with refused("pipeline.no-rights"):
        open_view(spark, plant.path("delivered"), "stranger")


def stored(path: str) -> list[DecisionRecord]:
    lines = [line for file in Path(path).rglob("part-*") for line in file.read_text().splitlines()]
    found = [read_record(line) for line in lines]
    assert len({record.id for record in found}) == len(found)
    return found


def records(path: str) -> list[tuple[str, str, int, int]]:
    return sorted(
        (str(r.principal), str(r.effect), r.counts.passed, r.counts.refused)
        for r in stored(path)
        if r.counts is not None
    )


@pytest.mark.long
@pytest.mark.parametrize("many", [False, True])
def test_from_records_to_views_at_once(
    spark: SparkSession, plant: Plant, monkeypatch: pytest.MonkeyPatch, *, many: bool
) -> None:
    plant.write()
    # Of many types, each is a part of its own here, and readers of both get rows of both.
    monkeypatch.setattr(shared_columns, "PART_COLUMNS", 1)
    told: list[Said] = []
    with sharing() if many else contextlib.nullcontext():
        run(plant.ingest(), spark, plant.path("ingested"), progress=told.append)
        run(plant.admit(), spark, plant.path("admitted"), progress=told.append)
        run(plant.deliver(), spark, plant.path("delivered"), progress=told.append)
    check(spark, plant)
    events, passed = len(good(RECORDS)), len(admitted(RECORDS))
    assert told[0]["counts"] == {"read": RECORDS, "events": events, "quarantined": RECORDS - events}
    assert told[0]["reasons"] == {"ingest.json": RECORDS - events}
    assert told[1]["reasons"] == {"guard.denied": events - passed}
    delivered = {name: len(seen(name, RECORDS)) for name in ("statistics", "auditor", "engineer")}
    assert told[2]["delivered"] == {**delivered, "stranger": 0}
    assert totals(spark, plant.path("delivered"))["delivered"] == sum(delivered.values())
    by_publisher = records(plant.path("admitted/decisions"))
    assert sum(r[2] for r in by_publisher) == passed
    assert {r[:2] for r in by_publisher} == {(str(who(2)), "permit"), (str(who(3)), "deny")}
    by_reader = records(plant.path("delivered/decisions"))
    assert (str(who(3)), "deny", 0, passed) in by_reader
    assert (str(who(4)), "permit", passed, 0) in by_reader
    assert (str(who(5)), "permit", delivered["engineer"], passed - delivered["engineer"]) in by_reader


def test_what_a_readers_own_filter_passes_over_was_not_refused(spark: SparkSession, plant: Plant) -> None:
    filtered = POLICY.replace(f"value <> {HIDDEN}", "value < 30").replace(
        f'principal = "statistics"\ntype = "{NAME}"', f'principal = "statistics"\ntype = "{NAME}"\nwhere = "value < 5"'
    )
    plant.policy.write_text(filtered, encoding="utf-8")
    plant.write()
    run(plant.ingest(), spark, plant.path("ingested"))
    run(DeliverJob(plant.path("ingested"), plant.types(), plant.desk()), spark, plant.path("delivered"))
    values = good(RECORDS)
    assert records(plant.path("delivered/decisions")) == sorted(
        [
            (str(who(4)), "permit", len(values), 0),
            # `auditor`: its right shows everything, and its filter asks for a part of it.
            (str(who(4)), "permit", sum(value < 5 for value in values), 0),
            # `engineer`: its right keeps back what is not above 20, and its filter passes over what is not below 30.
            (str(who(5)), "permit", sum(20 < value < 30 for value in values), sum(value <= 20 for value in values)),
            (str(who(3)), "deny", 0, len(values)),
        ]
    )


def test_nothing_is_written_over_anything_unasked(spark: SparkSession, plant: Plant) -> None:
    plant.write()
    run(plant.ingest(), spark, plant.path("ingested"))
    for stream in (False, True):
        with refused("pipeline.exists"):
            if stream:
                start(plant.ingest(), spark, plant.path("ingested"), STREAM)
            else:
                run(plant.ingest(), spark, plant.path("ingested"))
    with refused("pipeline.foreign"):
        run(plant.ingest(), spark, plant.path("plant"), overwrite=True)
    # It would be cleared before it is read.
    with refused("pipeline.own-input"):
        run(plant.admit(), spark, plant.path("ingested"), overwrite=True)
    with refused("pipeline.own-input"):
        start(plant.admit(), spark, plant.path("ingested"), STREAM, overwrite=True)
    with refused("pipeline.no-input"):
        run(plant.deliver(), spark, plant.path("delivered"))
    with refused("pipeline.no-input"):
        start(plant.deliver(), spark, plant.path("elsewhere"), STREAM)
    (plant.folder / "in" / "0.jsonl").unlink()
    write_events(plant.folder / "in" / "few.jsonl", range(3))
    run(plant.ingest(), spark, plant.path("ingested"), overwrite=True)
    assert ids(spark, plant.path("ingested/events")) == ["e0", "e1", "e2"]


def test_a_stream_does_not_take_an_output_that_was_replaced_for_more_of_it(spark: SparkSession, plant: Plant) -> None:
    write_events(plant.folder / "in" / "0.jsonl", range(1))
    run(plant.ingest(), spark, plant.path("ingested"))
    follow = partial(start, plant.admit(), spark, plant.path("admitted"), STREAM)
    follow().wait()
    run(plant.ingest(), spark, plant.path("ingested"), overwrite=True)
    with refused("pipeline.replaced"):
        follow().wait()
    assert ids(spark, plant.path("admitted/events")) == ["e0"]
    follow(overwrite=True).wait()
    assert ids(spark, plant.path("admitted/events")) == ["e0"]


class Leaky(Output):
    """An output that loses what should be put aside."""

    def write(self, frame: DataFrame, part: str, batch: int, *more: DataFrame) -> None:
        super().write(frame.limit(0) if part == "quarantine" else frame, part, batch, *more)


@pytest.mark.parametrize("code", ["ingest.lost", "pipeline.lost"])
def test_what_is_lost_while_it_is_written_is_told(spark: SparkSession, plant: Plant, code: str) -> None:
    (plant.folder / "in").mkdir()
    (plant.folder / "in" / "0.jsonl").write_text("broken\n")
    job = plant.ingest() if code == "ingest.lost" else Audit(plant.path("in"))
    with refused(code):
        job.step(job.all(spark), 0, Leaky(spark, plant.path("out"), job.name, job.source, job.parts))


class Doubling(Output):
    """An output that has one of the events twice."""

    def write(self, frame: DataFrame, part: str, batch: int, *more: DataFrame) -> None:
        super().write(frame.union(frame.limit(1)) if part == "events" else frame, part, batch, *more)


def test_an_event_that_is_doubled_does_not_make_up_for_one_that_is_refused(spark: SparkSession, plant: Plant) -> None:
    write_events(plant.folder / "in" / "0.jsonl", range(5))
    run(plant.ingest(), spark, plant.path("ingested"))
    job = plant.admit()
    with refused("pipeline.lost"):
        job.step(job.all(spark), 0, Doubling(spark, plant.path("out"), job.name, job.source, job.parts))


class KilledError(PenstockError):
    """As if the driver had been killed."""


def killed_at(monkeypatch: pytest.MonkeyPatch, number: int, when: str) -> None:
    """Make the commit of a batch fail: before it is written, or behind it."""

    def commit(spark: SparkSession, path: str, batch: int, said: dict[str, object]) -> None:
        if batch == number and when == "before":
            raise KilledError("test.killed", "killed")
        commits.commit(spark, path, batch, said)
        if batch == number:
            raise KilledError("test.killed", "killed")

    monkeypatch.setattr(jobs, "commit", commit)


@pytest.mark.long
@pytest.mark.parametrize("when", ["before", "behind"])
def test_streams_that_are_stopped_go_on(
    spark: SparkSession, plant: Plant, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    plant.write(files=2)
    outputs = {"ingested": plant.ingest, "admitted": plant.admit}
    for number, (path, job) in zip((1, 0), outputs.items(), strict=True):
        with monkeypatch.context() as patched, contextlib.suppress(KilledError):
            killed_at(patched, number, when)
            start(job(), spark, plant.path(path), STREAM).wait()
    # Who follows goes on first: it must not see what was written twice, nor miss what comes.
    for path in ("admitted", "ingested", "admitted"):
        start(outputs[path](), spark, plant.path(path), Streaming(files=5, drain=True)).wait()
    check_admitted(spark, plant)
    assert totals(spark, plant.path("ingested"))["read"] == RECORDS


def change(plant: Plant) -> Path:
    """Write a policy in which statistics may see the sensor too, and everybody what is above 20."""
    tag = event_tag(who(1), "org.plant.Reading", None, [Right.SUBSCRIBE])
    (plant.policy.parent / "more.cert").write_bytes(Credentials.of(grant(1, 4, tag)).to_bytes())
    after = plant.policy.with_name("after.toml")
    after.write_text(POLICY.replace('["certs/*.cert"]', '["certs/*.cert", "more.cert"]'), encoding="utf-8")
    return after


@pytest.mark.long
def test_what_if_adds_up_over_the_batches_of_a_stream(spark: SparkSession, plant: Plant) -> None:
    plant.write(files=2)
    start(plant.ingest(), spark, plant.path("ingested"), STREAM).wait()
    after = load_policy(str(change(plant)), NOW)
    job = WhatIf(plant.path("ingested"), plant.types(), plant.loaded(), after)
    run(job, spark, plant.path("as one batch"))
    start(job, spark, plant.path("as stream"), STREAM).wait()
    whole = compared(spark, plant.path("as one batch"))
    assert [(c.reader.name, c.name, c.gained) for c in whole.changes] == [
        ("auditor", "sensor", len(good(RECORDS))),
        ("statistics", "sensor", len(good(RECORDS))),
    ]
    assert compared(spark, plant.path("as stream")) == whole


@pytest.mark.long
def test_audit_reports_on_files_and_on_what_jobs_decided(spark: SparkSession, plant: Plant) -> None:
    desk = plant.desk()
    first = desk.policy.types[0]
    output = Output(spark, plant.path("admitted"), "admit", "", ())
    log = plant.folder / "log"
    log.mkdir()
    for batch in range(2):
        for publisher, counts in ((who(2), EventCounts(5, 1)), (who(3), EventCounts(0, 4))):
            desk.policy.enforced(publisher, Right.PUBLISH, first, counts)
        (log / f"{batch}.jsonl").write_text("".join(f"{record.to_json()}\n" for record in desk.records) + "none\n")
        output.write_lines(desk.lines(), "decisions", batch)
        commits.commit(spark, output.path, batch, {})
    output.write_lines(["a batch that is not complete"], "decisions", 2)
    run(Audit(plant.path("admitted"), of_job=True), spark, plant.path("of job"))
    start(Audit(str(log)), spark, plant.path("of files"), STREAM).wait()
    kept = [spark.read.parquet(plant.path(f"{name}/log")).drop("@batch").collect() for name in ("of job", "of files")]
    assert sorted(map(str, kept[0])) == sorted(map(str, kept[1]))
    report = audited(spark, plant.path("of job"), plant.loaded())
    requests = [(row["principal"], row["permitted"], row["events"]) for row in report.requests_made.as_dicts()]
    assert sorted(requests) == sorted([(str(who(2)), 1, 10), (str(who(3)), 0, 0)])
    assert report.rights_unused is not None
    assert len(report.rights_unused.rows) == 2
    assert totals(spark, plant.path("of job")) == {"read": 6, "records": 6, "quarantined": 0}
    assert totals(spark, plant.path("of files")) == {"read": 8, "records": 6, "quarantined": 2}


def test_a_small_log_is_read_once_and_nothing_of_it_is_exchanged(
    spark: SparkSession, plant: Plant, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = plant.desk()
    first = desk.policy.types[0]
    for publisher, counts in ((who(2), EventCounts(5, 1)), (who(3), EventCounts(0, 4))):
        desk.policy.enforced(publisher, Right.PUBLISH, first, counts)
    log = plant.folder / "log.jsonl"
    log.write_text("".join(f"{record.to_json()}\n" for record in desk.records) + "none\n")
    context = spark.sparkContext
    context.setJobGroup("small", "")
    try:
        report, counted = audit_at_once(Audit(str(log)), spark, plant.loaded())
    finally:
        context.setJobGroup("", "")
    assert counted == {"read": 5, "records": 4, "quarantined": 1}
    tracker = context.statusTracker()
    found = [tracker.getJobInfo(number) for number in tracker.getJobIdsForGroup("small")]
    stages = [len(job.stageIds) for job in found if job is not None]
    # One job reads it, one counts it, each table has one, and rights are joined with the policy's certificates.
    assert len(stages) <= 3 + len(report.tables())
    assert stages.count(1) >= len(stages) - 1
    monkeypatch.setattr(jobs_report, "is_small", lambda _: False)
    assert audit_at_once(Audit(str(log)), spark, plant.loaded()) == (report, counted)


def test_no_constant_of_a_policy_is_in_a_plan(spark: SparkSession, plant: Plant) -> None:
    plant.policy.write_text(POLICY.replace("[[", f"[facts]\nlimit = {HIDDEN}\n[[", 1), encoding="utf-8")
    plant.write()
    run(plant.ingest(), spark, plant.path("ingested"))
    job = Admit(plant.path("ingested"), plant.types(), plant.desk())
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        for frame in job.planned(job.all(spark)):
            frame.explain(extended=True)
    assert "@f0" in printed.getvalue()
    assert HIDDEN not in printed.getvalue()
    assert "north" not in printed.getvalue()


@pytest.mark.long
def test_messages_are_ingested_as_they_arrive(spark: SparkSession, plant: Plant) -> None:
    with NatsServer() as server:
        options = publish(server.url, "READINGS", [line(number).encode() for number in range(9)])
        job = Ingest(TableRecords(JetStreamSource(options), plant.loaded().types), lambda: NOW)
        assert (job.source, job.files) == ("nats:READINGS", None)
        with refused("jetstream.no-stream"):
            check_stream(parse_options({**options, "stream": "OTHER"}))
        start(job, spark, plant.path("ingested"), STREAM).wait()
    assert ids(spark, plant.path("ingested/events")) == sorted(f"e{n}" for n in good(9))
    assert totals(spark, plant.path("ingested")) == {"read": 9, "events": 8, "quarantined": 1}


LATE = "[STREAM_FAILED] Query terminated: Python worker failed to connect back."
LATE_BATCH = FailedError("pipeline.spark", "late-worker", hint="ten seconds are over", condition="late-worker")


class LateTaskError(Py4JJavaError):  # type: ignore[misc]  # it has no types
    """What PySpark raises if Python starts too late for a task, as text alone: otherwise Java has it."""

    def __init__(self, words: str = "Python worker failed to connect back.") -> None:
        self.words = words

    def __str__(self) -> str:
        return f"An error occurred while calling o1.x.\n: org.apache.spark.SparkException: Job aborted: {self.words}"


def test_a_task_whose_python_started_too_late_is_named() -> None:
    with pytest.raises(FailedError) as late, spark_errors():
        raise LateTaskError
    assert late.value.fields["condition"] == "late-worker"
    assert "ten seconds" in late.value.hint
    with pytest.raises(FailedError) as other, spark_errors():
        raise LateTaskError("a disk is full")
    assert other.value.fields["condition"] == "org.apache.spark.SparkException"


@dataclass
class LateQuery:
    """A query that ended because Python started too late, if `late`, and has made progress before, if it `ran`.

    `problem` is what its batch raised.
    """

    late: bool
    ran: bool = False
    words: str = LATE
    problem: PenstockError | None = None

    @property
    def lastProgress(self) -> dict[str, object] | None:  # noqa: N802  # Spark's name
        return {"batchId": 0} if self.ran else None

    def awaitTermination(self, timeout: float | None = None) -> bool:  # noqa: N802  # Spark's name
        if self.late:
            raise StreamingQueryException(self.words)
        return timeout is None or timeout > 1


class LateWriter:
    """What begins such queries, one after the other, or fails to."""

    def __init__(self, problems: list[PenstockError], *queries: LateQuery | PySparkException) -> None:
        self.problems = problems
        self.queries = iter(queries)

    def start(self) -> LateQuery:
        query = next(self.queries)
        if isinstance(query, PySparkException):
            raise query
        if query.problem is not None:
            self.problems.append(query.problem)
        return query


def running(*queries: LateQuery | PySparkException) -> RunningStream:
    problems: list[PenstockError] = []
    return RunningStream(cast("Any", LateWriter(problems, *queries)), problems)


def test_a_query_whose_python_started_too_late_is_started_again() -> None:
    late, ran, good = LateQuery(late=True), LateQuery(late=True, ran=True), LateQuery(late=False)
    assert running(*[late] * 5, good).wait()
    assert not running(late, good).wait(1)
    # Only failures in a row count.
    assert running(*[late] * 5, ran, *[late] * 4, good).wait(2)
    # Through Spark Connect it fails as it starts.
    error = AnalysisException(LATE)
    assert running(error, late, error, error, late, good).wait()
    # In a batch it is the job that fails.
    batch = LateQuery(late=True, words="Query terminated", problem=LATE_BATCH)
    assert running(*[batch] * 5, good).wait()
    for queries in ([late] * 6, [late, *[error] * 5], [batch] * 6):
        with pytest.raises(FailedError, match="late-worker") as failed:
            running(*queries).wait()
        assert "ten seconds" in str(failed.value.hint)


def test_a_query_that_fails_otherwise_is_not_started_again() -> None:
    broken = running(LateQuery(late=True, words="Job aborted"))
    with pytest.raises(FailedError, match="Spark failed"):
        broken.wait()
    with pytest.raises(AnalysisException):
        running(AnalysisException("Job aborted"))
    own = LateQuery(late=True, problem=FailedError("test.own", "the job's own"))
    for queries in ([own], [LateQuery(late=True, problem=LATE_BATCH), own]):
        with pytest.raises(FailedError, match="the job's own"):
            running(*queries).wait()


@pytest.mark.long
def test_a_batch_whose_python_started_too_late_is_written_again(
    spark: SparkSession, plant: Plant, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each part of a batch is written, and then fails once."""
    failed: set[tuple[object, ...]] = set()

    def late(of: object, name: str, place: Callable[..., tuple[object, ...]]) -> None:
        write = getattr(of, name)

        def behind(*values: Any, **named: Any) -> Any:
            written = write(*values, **named)
            if (found := place(*values, **named)) not in failed:
                failed.add(found)
                raise LateTaskError
            return written

        monkeypatch.setattr(of, name, behind)

    late(Output, "write", lambda output, _frame, part, batch, *_: (output.path, part, batch))
    late(enforce, "store_rows", lambda _delivered, path, *, batch, **_: (path, "rows", batch))
    plant.write()
    jobs = {"ingested": plant.ingest(), "admitted": plant.admit(), "delivered": plant.deliver()}
    for out, job in jobs.items():
        start(job, spark, plant.path(out), STREAM).wait()
        assert list(commits.commits(spark, plant.path(out))) == [0]
    assert len(failed) == 2 + 2 + 1
    check(spark, plant)
    assert totals(spark, plant.path("ingested"))["read"] == RECORDS
    # Nothing is recorded twice, and no decision is lost with an attempt.
    passed = len(admitted(RECORDS))
    assert sum(record[2] for record in records(plant.path("admitted/decisions"))) == passed
    assert sum(record[2] + record[3] for record in records(plant.path("delivered/decisions"))) == 4 * passed
    for out in ("admitted", "delivered"):
        found = stored(plant.path(f"{out}/decisions"))
        assert {one.id for one in found if one.decision is None} == {one.decision for one in found} - {None}


def test_a_stream_of_one_file_is_refused_before_anything_is_written(spark: SparkSession, tmp_path: Path) -> None:
    one = tmp_path / "one.jsonl"
    one.write_text("")
    with refused("pipeline.no-input"):
        start(Ingest(Envelopes(str(one), ()), lambda: NOW), spark, str(tmp_path / "out"), Streaming())
    assert not (tmp_path / "out").exists()
