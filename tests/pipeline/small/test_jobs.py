"""The jobs without Spark write what Spark's write, and either reads what the other wrote."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.pipeline.jobs.test_job import RECORDS, Plant, records
from tests.pipeline.jobs_plant import build, interpreted, seen
from tests.pipeline.policy_kit import SIGHTING, policy_of
from tests.pipeline.rows import collected
from tests.trust.kit import NOW

from penstock.errors import FailedError, MalformedError, RefusedError
from penstock.guard import Branch, Restriction
from penstock.pipeline.enforce.layout import Layout, open_view
from penstock.pipeline.enforce.policy import programs_of
from penstock.pipeline.jobs import reports
from penstock.pipeline.jobs.job import run
from penstock.pipeline.outputs import commits
from penstock.pipeline.small import jobs
from penstock.pipeline.small.folders import NotSmallError, read_commits
from penstock.pipeline.small.jobs import SmallAdmit, SmallDeliver, SmallIngest, view_rows
from penstock.selector import ALWAYS
from penstock.trust.capabilities import Right


@pytest.fixture(autouse=True, scope="module")
def _quick(spark: SparkSession) -> Iterable[None]:
    with interpreted(spark):
        yield


@pytest.fixture
def plant(tmp_path: Path) -> Plant:
    found = Plant(tmp_path, build(tmp_path / "plant"))
    found.write()
    return found


def small(plant: Plant, name: str, out: str, *, layout: Layout = Layout.PROGRAM, overwrite: bool = False) -> None:
    """Run a job without Spark, over the folders that the jobs on Spark use."""
    job: SmallIngest | SmallAdmit | SmallDeliver
    if name == "ingest":
        job = SmallIngest(Path(plant.path("in")), plant.types(), None, lambda: NOW)
    elif name == "admit":
        job = SmallAdmit(Path(plant.path("ingested")), plant.desk())
    else:
        job = SmallDeliver(Path(plant.path("admitted")), plant.desk(), layout)
    job.run(Path(plant.path(out)), overwrite=overwrite)


def on_spark(spark: SparkSession, plant: Plant, name: str, out: str, layout: Layout = Layout.PROGRAM) -> None:
    job = plant.ingest() if name == "ingest" else plant.admit() if name == "admit" else plant.deliver(layout)
    run(job, spark, plant.path(out))


def rows(spark: SparkSession, path: str) -> list[str]:
    """Return all rows of a part, by Spark, in any order and with their columns."""
    found = spark.read.parquet(path)
    return sorted(repr(sorted(row.asDict().items())) for row in collected(found))


def said(path: str) -> dict[int, object]:
    """Return the commits without what differs in each run."""
    return {
        batch: {name: value for name, value in one.items() if name not in ("output", "policies")}
        for batch, one in read_commits(Path(path)).items()
    }


PARTS = {"ingest": ("events", "quarantine"), "admit": ("events", "refused"), "deliver": ("rows",)}


def test_spark_reads_what_was_written_without_it(spark: SparkSession, plant: Plant) -> None:
    for name, out in (("ingest", "ingested"), ("admit", "admitted"), ("deliver", "delivered")):
        small(plant, name, out)
    ingested = plant.path("ingested")
    assert jobs.open_quarantine(Path(ingested), 2) == reports.open_quarantine(spark, ingested, 2)
    for reader in ("statistics", "engineer"):
        found = [(row[0], *row[3:]) for row in open_view(spark, plant.path("delivered"), reader).collect()]
        assert sorted(found) == seen(reader, RECORDS)


@pytest.mark.long
def test_each_job_writes_what_spark_writes(spark: SparkSession, plant: Plant) -> None:
    """Each job reads what the other engine wrote before."""
    small(plant, "ingest", "ingested")
    on_spark(spark, plant, "ingest", "ingested on spark")
    on_spark(spark, plant, "admit", "admitted")
    small(plant, "admit", "admitted small")
    small(plant, "deliver", "delivered")
    on_spark(spark, plant, "deliver", "delivered on spark")
    pairs = {"ingest": ("ingested", "ingested on spark"), "admit": ("admitted small", "admitted")}
    for name, (one, two) in {**pairs, "deliver": ("delivered", "delivered on spark")}.items():
        for part in PARTS[name]:
            assert rows(spark, plant.path(f"{one}/{part}")) == rows(spark, plant.path(f"{two}/{part}")), part
        assert said(plant.path(one)) == said(plant.path(two))
        assert {*commits(spark, plant.path(one))} == {0}
        if name != "ingest":
            assert records(plant.path(f"{one}/decisions")) == records(plant.path(f"{two}/decisions"))
    for reader in ("statistics", "engineer", "auditor"):
        for out in ("delivered", "delivered on spark"):
            found = open_view(spark, plant.path(out), reader)
            columns, own = view_rows(Path(plant.path(out)), reader)
            assert list(columns) == found.columns
            assert sorted((row[0], *row[3:]) for row in own) == seen(reader, RECORDS)
            assert len(own) == found.count()


@pytest.mark.long
def test_one_reader_alone_gets_what_spark_delivers_to_it(spark: SparkSession, plant: Plant) -> None:
    for name, out in (("ingest", "ingested"), ("admit", "admitted")):
        small(plant, name, out)
    SmallDeliver(Path(plant.path("admitted")), plant.desk(), Layout.PROGRAM, "engineer").run(
        Path(plant.path("one")), overwrite=False
    )
    run(replace(plant.deliver(), reader="engineer"), spark, plant.path("one on spark"))
    assert said(plant.path("one")) == said(plant.path("one on spark"))
    assert rows(spark, plant.path("one/rows")) == rows(spark, plant.path("one on spark/rows"))
    assert records(plant.path("one/decisions")) == records(plant.path("one on spark/decisions"))


def test_nothing_is_left_behind_for_a_subscriber_that_the_policy_does_not_have(plant: Plant) -> None:
    for name, out in (("ingest", "ingested"), ("admit", "admitted")):
        small(plant, name, out)
    delivered = Path(plant.path("delivered"))
    job = SmallDeliver(Path(plant.path("admitted")), plant.desk(), Layout.PROGRAM, "enginer")
    with pytest.raises(MalformedError, match="no subscriber `enginer`") as caught:
        job.run(delivered, overwrite=False)
    assert caught.value.code == "pipeline.unknown-subscriber"
    assert not delivered.exists()
    with pytest.raises(MalformedError, match="no subscriber `enginer`"):
        replace(plant.deliver(), reader="enginer")


@pytest.mark.long
def test_folders_of_readers(spark: SparkSession, plant: Plant) -> None:
    small(plant, "ingest", "admitted")
    small(plant, "deliver", "small", layout=Layout.SUBSCRIBER)
    on_spark(spark, plant, "deliver", "spark", Layout.SUBSCRIBER)
    assert said(plant.path("small")) == said(plant.path("spark"))
    for out in ("small", "spark"):
        _, found = view_rows(Path(plant.path(out)), "engineer")
        assert len(found) == open_view(spark, plant.path(out), "engineer").count() > 0


def test_outputs_are_guarded_as_spark_guards_them(plant: Plant) -> None:
    small(plant, "ingest", "ingested")
    before = read_commits(Path(plant.path("ingested")))
    with pytest.raises(RefusedError) as problem:
        small(plant, "ingest", "ingested")
    assert problem.value.code == "pipeline.exists"
    small(plant, "ingest", "ingested", overwrite=True)
    assert read_commits(Path(plant.path("ingested")))[0]["output"] != before[0]["output"]
    with pytest.raises(RefusedError) as foreign:
        small(plant, "ingest", "plant", overwrite=True)
    assert foreign.value.code == "pipeline.foreign"
    with pytest.raises(RefusedError) as own:
        SmallIngest(Path(plant.path("in")), plant.types(), None, lambda: NOW).run(plant.folder, overwrite=True)
    assert own.value.code == "pipeline.own-input"
    with pytest.raises(FailedError) as nothing:
        SmallAdmit(plant.folder / "nothing", plant.desk()).run(plant.folder / "out", overwrite=False)
    assert nothing.value.code == "pipeline.no-input"


def test_readers_without_a_view(plant: Plant) -> None:
    small(plant, "ingest", "admitted")
    small(plant, "deliver", "delivered")
    with pytest.raises(RefusedError) as refused:
        view_rows(Path(plant.path("delivered")), "stranger")
    assert refused.value.code == "pipeline.no-rights"
    with pytest.raises(MalformedError) as unknown:
        view_rows(Path(plant.path("delivered")), "nobody")
    assert unknown.value.code == "pipeline.unknown-subscriber"
    with pytest.raises(FailedError, match="the output of another job") as early:
        view_rows(Path(plant.path("admitted")), "engineer")
    assert early.value.code == "layout.incomplete"
    assert "penstock pipeline deliver" in (early.value.hint or "")
    with pytest.raises(NotSmallError):
        view_rows(Path(plant.path("nowhere")), "engineer")


def test_what_is_not_small_is_left_to_spark(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    for text in ("s3a://bucket/in", "in/*.csv"):
        with pytest.raises(NotSmallError):
            jobs.local_path(text)
    (plant.folder / "in" / "more.gz").write_bytes(b"")
    with pytest.raises(NotSmallError):
        small(plant, "ingest", "ingested")
    (plant.folder / "in" / "more.gz").unlink()
    small(plant, "ingest", "ingested")
    monkeypatch.setattr(jobs, "SMALL_EVENTS", 3)
    with pytest.raises(NotSmallError):
        small(plant, "admit", "admitted")
    with pytest.raises(NotSmallError):
        jobs.open_quarantine(plant.folder / "in", 1)
    monkeypatch.setattr(jobs, "SMALL_BYTES", 3)
    with pytest.raises(NotSmallError):
        small(plant, "ingest", "other")
    assert not (plant.folder / "other").exists()


def test_a_right_can_hide_who_published() -> None:
    policy = policy_of(
        [(SIGHTING, Restriction((Branch(action=Right.SUBSCRIBE, source=shown),)), ALWAYS) for shown in (True, False)]
    )
    event = jobs.StoredEvent(str(SIGHTING.name), "1", NOW, "who", {})
    rows, _ = jobs._delivered(policy, programs_of(policy), [event], {str(SIGHTING.name): SIGHTING})
    assert [told for ((told, _),) in rows.values()] == [("1", NOW, "who"), ("1", NOW, None)]
