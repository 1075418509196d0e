"""Jobs by a policy file: what was revoked counts until then, and a stream uses the policy as it is."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import cast
from zoneinfo import ZoneInfo

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # the name that everybody knows it by
from tests.pipeline.jobs_plant import NAME, POLICY, build, build_revocable, interpreted, revoke, write_events
from tests.pipeline.rows import transit_frame
from tests.trust.kit import NOW, grant, refused, who

from penstock.errors import MalformedError
from penstock.guard import Effect, EventRequest, decide
from penstock.guard.capabilities import CapabilityAuthority, Revoking
from penstock.model import Event
from penstock.pipeline.enforce.admit import admit
from penstock.pipeline.enforce.deliver import deliver
from penstock.pipeline.enforce.layout import open_view
from penstock.pipeline.enforce.policy import PipelinePolicy, load_policy
from penstock.pipeline.enforce.restrict import deliver_one, mask
from penstock.pipeline.frames import ID, SOURCE, TIME, quoted, transit_sources
from penstock.pipeline.jobs.enforce import DeliverJob, RecordingPolicy
from penstock.pipeline.jobs.ingest import Envelopes, Ingest
from penstock.pipeline.jobs.job import ByPolicy, Watched, start
from penstock.pipeline.outputs import Output, Said, Streaming, commits
from penstock.pipeline.whatif import compare, compare_admission
from penstock.trust import Credentials, Right, event_tag


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    return build_revocable(tmp_path / "plant")


# --- What is renewed, and when; without Spark ------------------------------------------------------------------------


@dataclass(slots=True)
class Noted:
    """A job that notes by which policies it was asked."""

    policies: tuple[PipelinePolicy, ...]
    asked: list[str]
    by: str = "anything"
    name: str = "noted"
    parts: tuple[str, ...] = ()
    files: str | None = None

    @property
    def source(self) -> str:
        return self.by

    def planned(self, events: DataFrame) -> tuple[DataFrame, ...]:
        return (events,)

    def all(self, _spark: SparkSession) -> DataFrame:
        return cast("DataFrame", None)

    def arriving(self, spark: SparkSession, _streaming: Streaming) -> DataFrame:
        return self.all(spark)

    def arrived(self, batch: DataFrame) -> DataFrame:
        return batch

    def step(self, _events: DataFrame, _batch: int, _output: Output) -> Said:
        self.asked.append(self.policies[0].revision)
        return {"counts": {}}


@dataclass
class Steps:
    """Batches of a job, one after the other."""

    job: ByPolicy[Noted]
    made: int = 0
    said: list[object] = field(default_factory=list)

    def __call__(self) -> str:
        nothing = cast("DataFrame", None)
        self.job.arrived(nothing)
        found = self.job.step(nothing, 0, cast("Output", None))["policies"]
        assert found == [self.job.job.asked[-1]]
        return self.job.job.asked[-1]


def steps(policy: Path, *, sums: bool = False) -> Steps:
    asked: list[str] = []
    made = count()

    def make(policies: tuple[PipelinePolicy, ...]) -> Noted:
        next(made)
        return Noted(policies, asked, policies[0].revision if sums else "anything")

    return Steps(ByPolicy(Watched((str(policy),), lambda: NOW), make))


def test_each_batch_goes_by_the_policy_as_it_is(policy: Path) -> None:
    step = steps(policy)
    first, job = step(), step.job.job
    assert step() == first
    assert step.job.job is job, "what has not changed is not decided again"
    revoke(policy.parent, 5, "statistics")
    second = step()
    assert second != first
    (policy.parent / "certs" / "engineer.cert").unlink()
    assert step() not in (first, second)


def test_a_policy_that_does_not_hold_stops_the_job(policy: Path) -> None:
    step = steps(policy)
    step()
    chain = policy.parent / "owner.chain"
    whole = chain.read_bytes()
    for wrong, code in ((whole[:-5], "evolution.torn"), (b"x" + whole, "evolution.broken"), (None, "file.missing")):
        chain.unlink() if wrong is None else chain.write_bytes(wrong)
        for _ in range(2):
            with refused(code):
                step()
    assert len(step.job.job.asked) == 1
    chain.write_bytes(whole)
    assert step() == step.job.job.asked[0]


def test_what_adds_up_over_one_policy_stops_where_it_is_another(policy: Path) -> None:
    step = steps(policy, sums=True)
    step()
    revoke(policy.parent, 5, "statistics")
    for _ in range(2):
        with refused("pipeline.policy-changed"):
            step()


def test_a_batch_after_one_whose_job_could_not_be_made_does_not_go_by_the_old_policy(policy: Path) -> None:
    asked: list[str] = []

    def make(policies: tuple[PipelinePolicy, ...]) -> Noted:
        if asked:
            raise MalformedError("pipeline.unknown-subscriber", "gone")
        return Noted(policies, asked)

    step = Steps(ByPolicy(Watched((str(policy),), lambda: NOW), make))
    step()
    revoke(policy.parent, 5, "statistics")
    for _ in range(2):
        with refused("pipeline.unknown-subscriber"):
            step()
    assert len(asked) == 1


# --- What readers and publishers get ---------------------------------------------------------------------------------


@pytest.fixture
def quick(spark: SparkSession) -> Iterator[SparkSession]:
    with interpreted(spark):
        yield spark


def test_history_before_an_order_stays_and_nothing_after_it_is_delivered(quick: SparkSession, policy: Path) -> None:
    """Spark gives what a broker would have given at the time of each event, and what-if tells the difference."""
    before = load_policy(str(policy), NOW)
    revoke(policy.parent, 2, "statistics")
    after = load_policy(str(policy), NOW)
    verified = after.types[0]
    event_type = verified.event_type
    seconds = [0.0, 1.999999, 2.0, 2.000001, 3.0]
    sent = [
        replace(
            Event.of(event_type, {"sensor": "s", "region": "north", "value": 30.0}).to_transit(),
            id=f"e{number}",
            time=NOW + timedelta(seconds=moment),
        )
        for number, moment in enumerate(seconds)
    ]
    frame = transit_frame(quick, [event_type], sent).persist()
    try:
        delivered = deliver(frame, [event_type], replace(after, subscribers=after.subscribers[:1]))
        found = sorted(row["@id"] for row in delivered.for_subscriber("statistics").collect())
        told = compare(frame, before, after, types=[event_type])
        same = compare(frame, after, after, types=[event_type])
    finally:
        frame.unpersist()
    live = Revoking(CapabilityAuthority(after.credentials), after.revocations)
    allowed = []
    for event in sent:
        assert event.time is not None
        asked = EventRequest(who(4), Right.SUBSCRIBE, verified, event.time)
        allowed.append(decide(asked, [live]).effect is Effect.PERMIT)
    assert allowed == [True, True, False, False, False]
    assert found == [event.id for event, permitted in zip(sent, allowed, strict=True) if permitted] == ["e0", "e1"]
    lost = {(change.reader.name, change.name): (change.gained, change.lost) for change in told.changes}
    assert lost == {(who_, name): (0, 3) for who_ in ("statistics", "auditor") for name in ("", "region", "value")}
    assert not same.changes


def test_hours_are_those_of_the_policy_s_zone_and_facts_are_its_own(quick: SparkSession, tmp_path: Path) -> None:
    """Delivery, admission, what-if and the view of one reader ask as the broker of that zone would."""
    file = build(tmp_path / "plant")
    office = ["hour >= 9 AND hour < 17 AND on_duty"]
    for name, subject, right in (("publisher", 2, Right.PUBLISH), ("statistics", 4, Right.SUBSCRIBE)):
        tag = event_tag(who(1), NAME, None, [right], when=office)
        (file.parent / "certs" / f"{name}.cert").write_bytes(Credentials.of(grant(1, subject, tag)).to_bytes())
    file.write_text(f'zone = "Europe/Amsterdam"\nfacts = {{ on_duty = true }}\n{POLICY}')
    loaded = load_policy(str(file), NOW)
    verified, event_type = loaded.types[0], loaded.types[0].event_type
    # In Amsterdam it is two hours later than in UTC: from 7:00 to 14:59 of UTC the office is open.
    start_of_day = NOW.replace(hour=0, minute=30, second=0, microsecond=0)
    event = Event.of(event_type, {"sensor": "s", "region": "north", "value": 30.0})
    sent = [replace(event.to_transit(), id=str(hour), time=start_of_day + timedelta(hours=hour)) for hour in range(24)]
    zone = ZoneInfo("Europe/Amsterdam")
    hours = {one.id for one in sent if one.time is not None and 9 <= one.time.astimezone(zone).hour < 17}
    assert len(hours) == 8
    transit = transit_frame(quick, [event_type], sent).persist()
    typed = transit.select(
        ID, TIME, F.lit(str(who(2))).alias(SOURCE), *(quoted(a.id).alias(a.name) for a in event_type.attributes)
    )
    try:
        delivered = deliver(transit, [event_type], loaded).for_subscriber("statistics")
        assert {row[ID] for row in delivered.collect()} == hours
        admitted = admit(typed, verified, loaded)
        assert {row[ID] for row in admitted.events.collect()} == hours
        nobody = replace(loaded, credentials=Credentials())
        (change,) = [
            one
            for one in compare(transit, loaded, nobody, types=[event_type]).changes
            if one.attribute is None and one.reader.name == "statistics"
        ]
        assert (change.gained, change.lost) == (0, len(hours))
        (put, *_) = compare_admission(typed, event_type, loaded, nobody).changes
        assert (put.attribute, put.gained, put.lost) == (None, 0, len(hours))
        shown = loaded.decide(who(4), Right.SUBSCRIBE, verified).restriction
        masked = mask(shown, event_type, transit_sources([event_type]), loaded)
        assert {row[ID] for row in deliver_one(transit, masked, event_type).collect()} == hours
    finally:
        transit.unpersist()


@pytest.mark.long
def test_streams_go_by_what_is_revoked_while_they_run(quick: SparkSession, policy: Path, tmp_path: Path) -> None:
    for number in range(2):
        write_events(tmp_path / "in" / f"{number}.jsonl", range(number * 2, number * 2 + 2))
    loaded = load_policy(str(policy), NOW)
    ids = count()
    ingested, out = str(tmp_path / "ingested"), str(tmp_path / "out")
    one_by_one = Streaming(files=1, drain=True)
    start(Ingest(Envelopes(str(tmp_path / "in"), loaded.types), lambda: NOW), quick, ingested, one_by_one).wait()

    def make(policies: tuple[PipelinePolicy, ...]) -> DeliverJob:
        desk = RecordingPolicy.of(policies[0], "test", clock=lambda: NOW, timer=lambda: 0, ids=lambda: f"d{next(ids)}")
        return DeliverJob(ingested, tuple(one.event_type for one in policies[0].types), desk)

    def revoked(_said: Said) -> None:
        # Ordered before any event: what was delivered already stays, and nothing more is.
        revoke(policy.parent, 0, "statistics")

    job = ByPolicy(Watched((str(policy),), lambda: NOW), make)
    start(job, quick, out, one_by_one, progress=revoked).wait()
    found = sorted(row["@id"] for row in open_view(quick, out, "statistics").collect())
    assert found in (["e0", "e1"], ["e2", "e3"]), "what came with the first batch, whichever that was"
    revisions = [said["policies"] for said in commits(quick, out).values()]
    assert len(revisions) == 2
    assert revisions[0] != revisions[1]
