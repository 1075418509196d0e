"""The jobs `whatif` and `audit`, the HTML page of an audit, and the quarantine read back.

`whatif` shows the effects of a policy change, `audit` reports on decisions. As streams they keep what they have found:
`whatif` the differences of each batch, which add up, and `audit` the decisions that it has read, over which each report
is made.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from pyspark.sql import Column, DataFrame, Row, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812  # the name that everybody knows it by
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType

from penstock.errors import FailedError, MalformedError, RefusedError
from penstock.model.names import AttributeId, TypeKey
from penstock.model.principals import Petnames, Principal
from penstock.pipeline import pages
from penstock.pipeline.audit import (
    DECISIONS,
    QUARANTINE,
    AuditReport,
    ReportTable,
    audit,
    judged,
    read_log,
    reason,
    split,
)
from penstock.pipeline.audit import QUARANTINE as LINES
from penstock.pipeline.commits import DECISIONS as DECISIONS_PART
from penstock.pipeline.commits import OF_UNKNOWN_TYPE, UNKNOWN_TYPE
from penstock.pipeline.commits import QUARANTINED as PART
from penstock.pipeline.comparison import (
    Admissions,
    AffectedReader,
    PolicyComparison,
    VisibilityChange,
    check_environments,
)
from penstock.pipeline.conflicts.input import QUARANTINE as ROWS
from penstock.pipeline.enforce.policy import PipelinePolicy
from penstock.pipeline.frames import attributes_of, metadata, quoted
from penstock.pipeline.ingest.event_frames import REASON, TYPE, WORDS
from penstock.pipeline.ingest.records import FILE, ORIGINAL, POSITION
from penstock.pipeline.jobs.enforce import OfEvents
from penstock.pipeline.jobs.session_settings import is_small
from penstock.pipeline.outputs import (
    BATCH,
    STRICT,
    Output,
    Said,
    Streaming,
    arriving,
    check_sum,
    commits,
    complete,
    follow,
    job_of,
    named,
    read_part,
    reading,
)
from penstock.pipeline.quarantine import FETCHED, QuarantinedRecord, safe_text
from penstock.pipeline.quarantine import QuarantineSummary as QuarantineSummary
from penstock.pipeline.sealed.signers import SignerPolicy
from penstock.pipeline.tables.addresses import RowSource
from penstock.pipeline.whatif import (
    compare,
    compare_admission,
)
from penstock.trust.capabilities import Right

# ----------------------------------------------------------------------------------------------------------------------
# The HTML page of an audit report.


def audit_html(
    report: AuditReport, *, names: Petnames | None = None, title: str = "Decisions", at: datetime | None = None
) -> str:
    """Return an audit as a page; `names` is for display, `at` when it was made.

    Raises `MalformedError` (`value.zone`, `value.range`) when `at` is not an instant.
    """
    shown = pages.PrincipalNames(names)
    refused = sum(pages.number(row[2]) + pages.number(row[3]) for row in report.over_time.rows)
    facts = {
        "decisions": report.decisions,
        "refused" + (" (of those shown)" if report.over_time.more else ""): refused,
        "rights used" + (", at least" if report.rights_used.more else ""): len(report.rights_used.rows),
    }
    if report.rights_unused is not None:
        facts["rights not used"] = len(report.rights_unused.rows)

    def part(title: str, text: str, table: ReportTable, figure: str = "") -> str:
        rows = [
            tuple(shown.cell(name, cell) for name, cell in zip(table.columns, row, strict=True)) for row in table.rows
        ]
        more = " There is more than is shown." if table.more else ""
        caption = f"{title}, in numbers" if figure else title
        return pages.section(
            title, text, figure, pages.table(f"{caption}.{more}", table.columns, rows) if rows else "<p>None.</p>"
        )

    over = [
        (row[0], tuple(map(pages.number, row[1:]))) for row in report.over_time.rows if isinstance(row[0], datetime)
    ]
    flows = [
        pages.FlowBand(str(shown.cell("", row[0])), str(shown.cell("", row[1])), f"{row[2]}, {events:,}", events)
        for row in report.flows.rows
        for events in (pages.number(row[4]),)
    ]
    hot = [
        (
            f"{shown.principal(str(row['principal']))}: {row['action']}, {reason(row['code'])}",
            pages.number(row["decisions"]),
        )
        for row in report.refusals.as_dicts()
    ]
    kept = [
        (f"{shown.principal(str(row['principal']))}: {row['action']}, {row['effect']}", pages.number(row["events"]))
        for row in report.kept_back.as_dicts()
    ]
    slow = [
        (f"{row[0]}, {share} %", round(float(str(row[at])))) for row in report.durations.rows for share, at in _SHARES
    ]
    effects = pages.legend(("a", "permit"), ("b", "deny"), ("c", "indeterminate"))
    parts = [
        part(
            "Decisions over time",
            "How many requests were permitted, denied, or could not be decided.",
            report.over_time,
            pages.columns("Decisions by period: permitted, denied, indeterminate", over, report.width) + effects,
        ),
        part(
            "Refusals",
            "Where refused requests pile up.",
            _reasoned(report.refusals),
            pages.bars("Refused requests", hot, "b"),
        ),
        part(
            "Events kept back",
            "Where events did not pass: a permission (permit) does not cover them, or the request was refused.",
            report.kept_back,
            pages.bars("Events that did not pass", kept, "b"),
        ),
        part(
            "Flows between domains",
            "Events that passed, from the owner's domain to the reader's, and from the publisher's to the owner's.",
            report.flows,
            pages.flows("Events that passed from one domain to another", flows),
        ),
        part("Rights that were used", "The credentials that permissions rested on.", report.rights_used),
    ]
    if report.rights_unused is not None:
        text = "Credentials that no permission rested on in this period: candidates for not being renewed."
        parts.append(part("Rights that were not used", text, report.rights_unused))
    parts += [
        _revoked(report, shown, part),
        part("Requests", "Who asked for what.", report.requests_made),
        part(
            "Time taken",
            "Percentiles of the time that a decision took.",
            report.durations,
            pages.bars("Microseconds that a decision took, by action and percentile", slow, "a"),
        ),
        part("Slowest decisions", "Those that took longest.", report.slowest),
    ]
    since = "the beginning" if report.since is None else pages.moment(report.since)
    until = "the end" if report.until is None else pages.moment(report.until)
    return pages.page(title, f"From {since} to {until} (UTC)", facts, parts, pages.made(at))


def _revoked(
    report: AuditReport, names: pages.PrincipalNames, part: Callable[[str, str, ReportTable, str], str]
) -> str:
    title = "Time to revoke"
    if not report.revocations.rows:
        return pages.section(title, "There were no revocations in this period.")
    text = "From when an owner ordered a revocation to when the last broker had carried it out."
    bars = [
        (f"{names.principal(str(row[0]))}, {share}", round(float(str(row[at]))))
        for row in report.revocations.rows
        for share, at in _TO_REVOKE
    ]
    figure = pages.bars("Microseconds that a revocation took, by owner", bars, "a")
    return part(title, text, report.revocations, figure)


def _reasoned(refusals: ReportTable) -> ReportTable:
    """Return refusals with a reason in each row, even without a code."""
    code = refusals.columns.index("code")
    rows = [(*row[:code], reason(row[code]), *row[code + 1 :]) for row in refusals.rows]
    return replace(refusals, rows=tuple(rows))


_SHARES: Final = ((50, 2), (90, 3), (99, 4))
_TO_REVOKE: Final = (("median", 3), ("95 %", 4), ("longest", 5))


# ----------------------------------------------------------------------------------------------------------------------
# The jobs `whatif` and `audit`.


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
        """The policy before the change: it decides who may have signed."""
        return SignerPolicy(self.before, self.before.types)

    def __post_init__(self) -> None:
        check_environments(self.before, self.after)

    @property
    def source(self) -> str:
        """The input, and the policies that are compared: other policies are another output."""
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
        """Compare the events of one version that publishers may publish."""
        event_type = next(one for one in self.types if str(one.name) == name)
        own = events.where(quoted(TYPE) == name)
        typed = own.select(*metadata(), *(quoted(a.id).alias(a.name) for a in event_type.attributes))
        return compare_admission(typed, event_type, self.before, self.after, samples=self.samples)

    def planned(self, events: DataFrame) -> tuple[DataFrame, ...]:
        """Return the events that would be read; the comparison itself is planned pair by pair."""
        return (events,)

    def step(self, events: DataFrame, batch: int, output: Output) -> Said:  # noqa: ARG002  # as all jobs
        """Compare a batch. The commit contains the result."""
        found = self.compare(events)
        counts = {"read": found.events + found.unknown_type, "changes": len(found.changes)}
        counts[OF_UNKNOWN_TYPE] = found.unknown_type
        reasons = {UNKNOWN_TYPE: found.unknown_type} if found.unknown_type else {}
        return {"counts": counts, "reasons": reasons, "comparison": _stored(found)}


def compared(spark: SparkSession, path: str) -> PolicyComparison:
    """Return the sum of the comparisons in an output of `whatif`.

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
    #: the table, or the messages, if the lines are there
    table: RowSource | None = None

    @property
    def source(self) -> str:
        """The name of the input."""
        return self.path if self.table is None else self.table.name

    @property
    def files(self) -> str | None:
        """Where the lines stand."""
        if self.table is not None:
            return self.table.files
        return f"{self.path}/{DECISIONS_PART}" if self.of_job else self.path

    def all(self, spark: SparkSession) -> DataFrame:
        """Return all lines. Raises `FailedError` (`pipeline.no-input`), and as `_lines` and the table."""
        if self.table is not None:
            return self._lines(self.table, self.table.batch(spark))
        if self.of_job:
            return self._decided(spark, complete(spark, self.path))
        return reading(spark).schema(_VALUE).option("recursiveFileLookup", "true").text(self.path)

    def arriving(self, spark: SparkSession, streaming: Streaming) -> DataFrame:
        """Return the lines of files as they arrive, or the commits of the other job. Raises as the table."""
        if self.table is not None:
            return self.table.stream(spark, streaming)
        if self.of_job:
            return follow(spark, self.path, streaming)
        reader = spark.readStream.schema(_VALUE).options(**STRICT).option("recursiveFileLookup", "true")
        return reader.options(**arriving(streaming)).text(self.path)

    def arrived(self, batch: DataFrame) -> DataFrame:
        """Return the lines that have arrived. Raises as `_lines` and the table."""
        if self.table is not None:
            return self._lines(self.table, self.table.arrived(batch))
        return self._decided(batch.sparkSession, named(batch)) if self.of_job else batch

    @staticmethod
    def _lines(table: RowSource, rows: DataFrame) -> DataFrame:
        """Return messages, or the column `value` of a table. Raises `RefusedError` (`tables.kind`)."""
        if table.records:
            return rows.select(quoted(ORIGINAL).cast(StringType()).alias("value"))
        if "value" not in rows.columns or not isinstance(rows.schema["value"].dataType, StringType):
            raise RefusedError(
                "tables.kind",
                f"`{table.name}` has no column `value` of texts, in which a decision log would stand",
                hint="give a table with one record of a decision log as JSON in each row, in the column `value`",
            )
        return rows.select("value")

    def _decided(self, spark: SparkSession, batches: list[int]) -> DataFrame:
        if not batches:
            return spark.createDataFrame([], _VALUE)
        folders = [f"{self.path}/{DECISIONS_PART}/{BATCH}={batch}" for batch in batches]
        return reading(spark).schema(_VALUE).text(folders)

    def planned(self, events: DataFrame) -> tuple[DataFrame, ...]:
        """Return the frames that would be computed."""
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
    """Options of a report: the period, the number of rows of a table, and the width of time steps."""

    since: datetime | None = None
    until: datetime | None = None
    top: int = 20
    width: timedelta = timedelta(hours=1)

    def ask(self, log: DataFrame, policy: PipelinePolicy | None) -> AuditReport:
        """Return the report on a log, which is read for each table. Raises as `audit`."""
        return audit(log, policy, since=self.since, until=self.until, top=self.top, width=self.width)


@contextmanager
def _computed_once(frame: DataFrame, path: str | None) -> Iterator[DataFrame]:
    """Yield a frame of the data below a path that is computed only once.

    A small one is one partition of plain rows: nothing is exchanged between tasks, or compiled to unpack columns.
    """
    if path is not None and is_small(path):
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


# ----------------------------------------------------------------------------------------------------------------------
# The quarantine read back: records that are not an event (`ingest`), a decision (`audit`) or a rule (`conflicts`).
#
# A record in quarantine is whatever somebody sent. Only its beginning is fetched, and characters that do not print are
# escaped.


_TEXT: Final = StringType()
_RECORDS: Final = StructType(
    [
        StructField(REASON, _TEXT),
        StructField(WORDS, _TEXT),
        StructField(FILE, _TEXT),
        StructField(POSITION, LongType()),
        StructField(ORIGINAL, BinaryType()),
    ]
)


def open_quarantine(spark: SparkSession, path: str, samples: int = 3) -> QuarantineSummary:
    """Read the quarantine of an output, with at most this many samples of each reason.

    Raises `FailedError` (`pipeline.no-input`) where no job that has one wrote there, or no batch is complete.
    """
    records = _records(spark, path)
    counted = records.groupBy("reason").count().orderBy(F.desc("count"), "reason").collect()
    reasons = {str(row[0]): int(row[1]) for row in counted}
    place = Window.partitionBy("reason").orderBy("file", "position", "original")
    some = records.withColumn("place", F.row_number().over(place)).where(F.col("place") <= samples)
    found = some.select(
        "reason", "words", "file", "position", F.octet_length("original"), F.substring("original", 1, FETCHED), "place"
    ).collect()
    order = list(reasons)
    rows = sorted(found, key=lambda row: (order.index(row[0]), row[6]))
    return QuarantineSummary(reasons, tuple(_sample(row) for row in rows))


def _sample(row: Row) -> QuarantinedRecord:
    reason, words, file, position, size, beginning, _ = row
    return QuarantinedRecord(reason, words, file, position, size, safe_text(bytes(beginning)))


def _records(spark: SparkSession, path: str) -> DataFrame:
    job = job_of(spark, path)
    if job == "ingest":
        part = read_part(spark, path, PART, complete(spark, path), _RECORDS)
        columns = [quoted(name).alias(name.removeprefix("@")) for name in _RECORDS.names]
    elif job == "conflicts":
        part = read_part(spark, path, PART, complete(spark, path), ROWS)
        columns = [
            F.col("reason"),
            F.col("words"),
            F.col("source").alias("file"),
            F.lit(None).cast("bigint").alias("position"),
            F.encode("original", "UTF-8").alias("original"),
        ]
    elif job == "audit":
        part = read_part(spark, path, PART, complete(spark, path), LINES)
        unknown: dict[str, Column] = {name: F.lit(None).cast("string") for name in ("words", "file")}
        columns = [
            F.col("reason"),
            *(column.alias(name) for name, column in unknown.items()),
            F.lit(None).cast("bigint").alias("position"),
            F.encode("line", "UTF-8").alias("original"),
        ]
    else:
        raise FailedError(
            "pipeline.no-input",
            f"`{path}` has no quarantine of records",
            hint="give the folder that `penstock pipeline ingest`, `conflicts` or `audit --out` wrote; blocks that "
            "`seal` and `unseal` set aside are in the folder `quarantine` of their output",
        )
    return part.select(*columns)
