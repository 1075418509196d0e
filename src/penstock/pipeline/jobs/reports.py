"""The jobs `whatif` and `audit`: the effects of a policy change, and a report on decisions.

As streams they keep what they have found: `whatif` the differences of each batch, which add up, and `audit` the
decisions that it has read, over which each report is made.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # the name that everybody knows it by
from pyspark.sql.types import StringType, StructField, StructType

from penstock.errors import MalformedError
from penstock.model.names import AttributeId, TypeKey
from penstock.model.principals import Principal
from penstock.pipeline.audit import DECISIONS, QUARANTINE, AuditReport, audit, judged, read_log, split
from penstock.pipeline.enforce.policy import PipelinePolicy
from penstock.pipeline.frames.frames import attributes_of, metadata, quoted
from penstock.pipeline.ingest.event_frames import TYPE
from penstock.pipeline.jobs.enforce import DECISIONS as DECISIONS_PART
from penstock.pipeline.jobs.enforce import OF_UNKNOWN_TYPE, UNKNOWN_TYPE, OfEvents
from penstock.pipeline.jobs.session_settings import is_small
from penstock.pipeline.outputs.files import STRICT, Streaming, arriving, reading
from penstock.pipeline.outputs.outputs import (
    BATCH,
    Output,
    Said,
    check_sum,
    commits,
    complete,
    follow,
    named,
    read_part,
)
from penstock.pipeline.sealed.signers import SignerPolicy
from penstock.pipeline.whatif import (
    Admissions,
    AffectedReader,
    PolicyComparison,
    VisibilityChange,
    check_environments,
    compare,
    compare_admission,
)
from penstock.trust.capabilities import Right

LOG: Final = "log"
BAD: Final = "quarantine"
_VALUE: Final = StructType([StructField("value", StringType())])


# --- What-if ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WhatIf(OfEvents):
    """The job `whatif`: two policies on the events that another job wrote.

    Raises `MalformedError` (`whatif.environment`) when the policies speak of different zones or facts.
    """

    before: PipelinePolicy
    after: PipelinePolicy
    samples: int = 5
    name: str = "whatif"
    parts: tuple[str, ...] = ()

    @property
    def judge(self) -> SignerPolicy:
        """The policy as it is: what would be does not change who has signed."""
        return SignerPolicy(self.before, self.before.types)

    def __post_init__(self) -> None:
        check_environments(self.before, self.after)

    @property
    def source(self) -> str:
        """What is read, and what is compared: other policies are another output."""
        return f"{self.path} {self.before.revision} {self.after.revision}"

    def compare(self, events: DataFrame) -> PolicyComparison:
        """Compare on some events: for readers each type by itself, and for publishers each version."""
        found: PolicyComparison | None = None
        for key in dict.fromkeys(event_type.key for event_type in self.types):
            types = [event_type for event_type in self.types if event_type.key == key]
            own = events.where(quoted(TYPE).isin([str(t.name) for t in types]))
            own = own.select(*metadata(), *(quoted(a.id) for a in attributes_of(types)))
            part = compare(own, self.before, self.after, types=types, samples=self.samples)
            found = part if found is None else found + part
        if found is None:
            raise MalformedError("whatif.types", "no policy has a type")
        for name in dict.fromkeys(str(event_type.name) for event_type in self.types):
            found = self._admission(events, name).added_to(found)
        other = events.count() - found.events
        return replace(found, unknown_type=other, closed=self.closed(events.sparkSession))

    def _admission(self, events: DataFrame, name: str) -> Admissions:
        """Compare what publishers may put in of one version."""
        event_type = next(one for one in self.types if str(one.name) == name)
        own = events.where(quoted(TYPE) == name)
        typed = own.select(*metadata(), *(quoted(a.id).alias(a.name) for a in event_type.attributes))
        return compare_admission(typed, event_type, self.before, self.after, samples=self.samples)

    def planned(self, events: DataFrame) -> tuple[DataFrame, ...]:
        """Return what would be read; the comparison itself is planned pair by pair."""
        return (events,)

    def step(self, events: DataFrame, batch: int, output: Output) -> Said:  # noqa: ARG002  # as all jobs
        """Compare a batch. What is found is in the commit itself."""
        found = self.compare(events)
        counts = {"read": found.events + found.unknown_type, "changes": len(found.changes)}
        counts[OF_UNKNOWN_TYPE] = found.unknown_type
        reasons = {UNKNOWN_TYPE: found.unknown_type} if found.unknown_type else {}
        return {"counts": counts, "reasons": reasons, "comparison": _stored(found)}


def compared(spark: SparkSession, path: str) -> PolicyComparison:
    """Return the sum of what the batches of an output of `whatif` found.

    Raises `FailedError` (`pipeline.no-input`) where none is complete, `MalformedError` (`layout.manifest`).
    """
    complete(spark, path)
    found = [_restored(said.get("comparison")) for said in commits(spark, path).values()]
    whole = found[0]
    for part in found[1:]:
        whole += part
    return whole


def _stored(found: PolicyComparison) -> dict[str, object]:
    return {
        **found.as_dict(),
        "readers": [_reader_data(reader) for reader in found.readers],
        "publishers": [_reader_data(publisher) for publisher in found.publishers],
        "passed_over": [_reader_data(reader) for reader in found.passed_over],
    }


def _reader_data(reader: AffectedReader) -> list[str]:
    return [reader.name, str(reader.principal), reader.type.name, str(reader.type.owner)]


def _reader(found: Iterable[str]) -> AffectedReader:
    name, principal, type_name, owner = found
    return AffectedReader(name, Principal.parse(principal), TypeKey(Principal.parse(owner), type_name))


def _restored(found: object) -> PolicyComparison:
    try:
        return _comparison(found)
    except (KeyError, TypeError, ValueError) as error:
        raise MalformedError(
            "layout.manifest", "a comparison cannot be read", hint="do not edit the folder `commits`"
        ) from error


def _comparison(found: object) -> PolicyComparison:
    if not isinstance(found, dict):
        raise TypeError("no comparison")
    return PolicyComparison(
        found["before"],
        found["after"],
        found["events"],
        tuple(_reader(one) for one in found["readers"]),
        tuple(_change(one) for one in found["changes"]),
        tuple(_reader(one) for one in found["passed_over"]),
        tuple(found["unknown"]),
        tuple(found.get("closed", ())),
        tuple(_reader(one) for one in found["publishers"]),
        int(found["unknown_type"]),
    )


def _change(found: Mapping[str, object]) -> VisibilityChange:
    owner, _, name = str(found["type"]).partition("/")
    attribute = found["attribute"]
    right = Right.PUBLISH if "publisher" in found else Right.SUBSCRIBE
    who = str(found["publisher" if right is Right.PUBLISH else "subscriber"])
    return VisibilityChange(
        AffectedReader(who, Principal.parse(str(found["principal"])), TypeKey(Principal.parse(owner), name)),
        None if attribute is None else _attribute(str(attribute)),
        str(found["name"]),
        int(str(found["gained"])),
        int(str(found["lost"])),
        tuple(found["gained_samples"]),  # type: ignore[arg-type]  # a list; what else raises
        tuple(found["lost_samples"]),  # type: ignore[arg-type]  # the same
        right,
    )


def _attribute(text: str) -> AttributeId:
    rest, _, uid = text.rpartition("#")
    owner, _, type_name = rest.partition("/")
    return AttributeId(Principal.parse(owner), type_name, uid)


# --- Audit -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Audit:
    """The job `audit`, over lines of decision logs. `of_job` says that the path is the output of another job."""

    path: str
    of_job: bool = False
    name: str = "audit"
    parts: tuple[str, ...] = (LOG, BAD)

    @property
    def source(self) -> str:
        """What is read."""
        return self.path

    @property
    def files(self) -> str:
        """Where the lines stand."""
        return f"{self.path}/{DECISIONS_PART}" if self.of_job else self.path

    def all(self, spark: SparkSession) -> DataFrame:
        """Return all lines. Raises `FailedError` (`pipeline.no-input`)."""
        if self.of_job:
            return self._decided(spark, complete(spark, self.path))
        return reading(spark).schema(_VALUE).option("recursiveFileLookup", "true").text(self.path)

    def arriving(self, spark: SparkSession, streaming: Streaming) -> DataFrame:
        """Return the lines of files as they arrive, or the commits of the other job."""
        if self.of_job:
            return follow(spark, self.path, streaming)
        reader = spark.readStream.schema(_VALUE).options(**STRICT).option("recursiveFileLookup", "true")
        return reader.options(**arriving(streaming)).text(self.path)

    def arrived(self, batch: DataFrame) -> DataFrame:
        """Return the lines that have arrived."""
        return self._decided(batch.sparkSession, named(batch)) if self.of_job else batch

    def _decided(self, spark: SparkSession, batches: list[int]) -> DataFrame:
        if not batches:
            return spark.createDataFrame([], _VALUE)
        folders = [f"{self.path}/{DECISIONS_PART}/{BATCH}={batch}" for batch in batches]
        return reading(spark).schema(_VALUE).text(folders)

    def planned(self, events: DataFrame) -> tuple[DataFrame, ...]:
        """Return what would be computed."""
        return read_log(events)

    def step(self, events: DataFrame, batch: int, output: Output) -> Said:
        """Keep the decisions, and put aside the lines that are none. Raises `FailedError` (`pipeline.lost`)."""
        lines = events.persist()
        try:
            good, bad = read_log(lines)
            output.write(good, LOG, batch)
            output.write(bad, BAD, batch)
            counts = {"read": lines.count()}
        finally:
            lines.unpersist()
        counts["records"] = output.spark.read.schema(DECISIONS).parquet(output.part(LOG, batch)).count()
        counts["quarantined"] = output.spark.read.schema(QUARANTINE).parquet(output.part(BAD, batch)).count()
        check_sum(counts["read"], {name: counts[name] for name in ("records", "quarantined")})
        return {"counts": counts}


@dataclass(frozen=True, slots=True)
class ReportOptions:
    """What a report is asked for: a period, how many rows a table has, how long the steps of time are."""

    since: datetime | None = None
    until: datetime | None = None
    top: int = 20
    width: timedelta = timedelta(hours=1)

    def ask(self, log: DataFrame, policy: PipelinePolicy | None) -> AuditReport:
        """Return the report on a log, which is read for each table. Raises as `audit`."""
        return audit(log, policy, since=self.since, until=self.until, top=self.top, width=self.width)


@contextmanager
def _computed_once(frame: DataFrame, path: str) -> Iterator[DataFrame]:
    """Give a frame of what stands below a path that is not computed again each time it is read.

    A small one is one partition of plain rows: nothing is exchanged between tasks, or compiled to unpack columns.
    """
    if is_small(path):
        yield frame.coalesce(1).localCheckpoint()
        return
    kept = frame.persist()
    try:
        yield kept
    finally:
        kept.unpersist()


def audited(
    spark: SparkSession, path: str, policy: PipelinePolicy | None = None, question: ReportOptions | None = None
) -> AuditReport:
    """Report on everything that an output of `audit` has kept so far. Raises as `audit`, and `pipeline.no-input`."""
    log = read_part(spark, path, LOG, complete(spark, path), DECISIONS)
    with _computed_once(log, f"{path}/{LOG}") as kept:
        return (question or ReportOptions()).ask(kept, policy)


def audit_at_once(
    job: Audit, spark: SparkSession, policy: PipelinePolicy | None = None, question: ReportOptions | None = None
) -> tuple[AuditReport, dict[str, int]]:
    """Report on a log without keeping anything of it, and count its lines. Raises as `audited`."""
    with _computed_once(judged(job.all(spark)), job.files) as lines:
        good, _ = split(lines)
        read, records = lines.agg(F.count(F.lit(1)), F.count_if(F.col("reason").isNull())).collect()[0]
        counts = {"read": read, "records": records, "quarantined": read - records}
        return (question or ReportOptions()).ask(good, policy), counts
