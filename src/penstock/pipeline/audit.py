"""Audit a decision log: which rights are used, and which are not.

    rights_used       decisions  ->  credentials that permissions rested on
    rights_unused     decisions and a policy  ->  credentials that none did
    requests_made     decisions  ->  who asked for what, and how often it was permitted
    refusals          decisions  ->  where refused requests pile up, by principal, resource and code
    kept_back         decisions  ->  where events that did not pass pile up, by principal and resource
    flows             decisions  ->  how much passes from domain to domain
    durations         decisions  ->  percentiles of the time taken
    slowest           decisions  ->  those that took longest
    over_time         decisions  ->  effects by period
    revocations       decisions  ->  how long it took until what was revoked counted nowhere

A frame of decisions has the schema `DECISIONS` (`penstock.pipeline.audit`). Decisions are counted by the records
that decide, events by those that enforce: what came of a decision may be recorded as often as one likes. Each transform
gives a frame of the schema of the same name; `audit` runs them all and collects what a report shows, which is bounded.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # the name that everybody knows it by
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DoubleType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from penstock.errors import MalformedError
from penstock.guard.decision import Effect
from penstock.guard.decision_log import ANSWERED, DECIDED, ENFORCED, REVOKED, DecisionRecord, RevocationRecord
from penstock.model.instants import in_utc
from penstock.model.values import Kind
from penstock.pipeline.enforce.policy import PipelinePolicy
from penstock.pipeline.frames import literal, micros
from penstock.pipeline.ingest.records import is_one_json
from penstock.policy.language.results import XacmlDecision
from penstock.trust.capabilities import Right, describe_tag
from penstock.trust.certificates import Name, NameCertificate, Statement, Subject

# ----------------------------------------------------------------------------------------------------------------------
# Decision logs in frames: what everybody wrote down who decided, line by line.
#
#     read_log     lines of CloudEvents  ->  decisions, and the lines that are none
#     log_frame    records at hand       ->  decisions
#
# A frame of decisions has the schema `DECISIONS`; records of revocations stand in it too, and answers of policies to
# questions about anything (docs/reference/decision-log.md).


_LOG_TEXT, _LOG_LONG, _LOG_TIME, _TEXTS = StringType(), LongType(), TimestampType(), ArrayType(StringType())


def schema_of(**fields: DataType) -> StructType:
    """Return the schema of a frame with these columns."""
    return StructType([StructField(name, kind) for name, kind in fields.items()])


DECISIONS: Final = schema_of(
    id=_LOG_TEXT,
    source=_LOG_TEXT,
    type=_LOG_TEXT,
    time=_LOG_TIME,
    principal=_LOG_TEXT,
    domain=_LOG_TEXT,
    action=_LOG_TEXT,
    resource=_LOG_TEXT,
    owner_domain=_LOG_TEXT,
    effect=_LOG_TEXT,
    because=_TEXTS,
    errors=_TEXTS,
    revision=_LOG_TEXT,
    took=_LOG_LONG,
    decision=_LOG_TEXT,
    passed=_LOG_LONG,
    refused=_LOG_LONG,
    ordered=_LOG_TIME,
)
"""A decision log in a frame. `resource` is the written name of a type or a network, `took` is in microseconds,
`decision` the decision that a record is of or about; `passed` and `refused` are null if it counts no events. Of a
revocation `principal` is the owner, `decision` the id of the order, and `ordered` its time; all others are null. Of a
policy decision `principal` and `resource` are its subject and resource, with the type before the id, if there is
one; `errors` has one code if it is not a permit."""

QUARANTINE: Final = schema_of(line=_LOG_TEXT, reason=_LOG_TEXT)
"""Lines that are not decisions, with the reason."""
DENIED: Final = "pdp.denied"
"""In the place of a code, for what a policy denies; where none applies, it is the next one."""
NOT_APPLICABLE: Final = "pdp.not-applicable"

_ENVELOPE: Final = (
    "specversion string, id string, source string, type string, time string, data struct<principal: string, domain:"
    " string, action: string, resource: struct<kind: string, owner: string, name: string, version: string, type:"
    " string, id: string>, subject: struct<type: string, id: string>, status: string,"
    " `owner-domain`: string, effect: string, because: array<string>, errors: array<string>, revision: string,"
    " took: bigint, decision: string, passed: bigint, refused: bigint, owner: string, revocation: string,"
    " ordered: string>, _corrupt string"
)


def log_frame(spark: SparkSession, records: Iterable[DecisionRecord | RevocationRecord]) -> DataFrame:
    """Return a frame of decisions from records in memory."""
    times = {field.name for field in DECISIONS if field.dataType == _LOG_TIME}
    raw = StructType([StructField(f.name, _LOG_LONG if f.name in times else f.dataType) for f in DECISIONS])
    made = spark.createDataFrame([_row(found) for found in records], raw)
    return made.select(*(F.timestamp_micros(n).alias(n) if n in times else n for n in DECISIONS.names))


def _row(r: DecisionRecord | RevocationRecord) -> tuple[object, ...]:
    if isinstance(r, RevocationRecord):
        known = {"id": r.id, "source": r.source, "type": REVOKED, "time": micros(r.time), "principal": str(r.owner)}
        known |= {"because": list(r.because), "decision": r.revocation, "ordered": micros(r.ordered)}
        return tuple(known.get(name) for name in DECISIONS.names)
    counts = (None, None) if r.counts is None else (r.counts.passed, r.counts.refused)
    asked = (str(r.principal), r.domain, str(r.action), str(r.resource), r.owner_domain)
    answer = (str(r.effect), list(r.because), list(r.errors), r.revision, r.took, r.decision or r.id)
    return (r.id, r.source, r.type, micros(r.time), *asked, *answer, *counts, None)


def instant(written: Column) -> Column:
    """Return the instant that a text in ISO 8601 with a zone says; null for others."""
    return F.try_to_timestamp(F.when(written.rlike(r"T.*(Z|[+-]\d\d:\d\d)$"), written))


def read_log(lines: DataFrame) -> tuple[DataFrame, DataFrame]:
    """Split lines of JSON (a column `value`) into decisions (`DECISIONS`) and those that are none (`QUARANTINE`).

    Every line is in one of the two. This looks at shape, not at the grammar of names; `read_record` is stricter.
    """
    return split(judged(lines))


def split(lines: DataFrame) -> tuple[DataFrame, DataFrame]:
    """Return the decisions and the quarantine of lines that were `judged`."""
    good = lines.where(F.col("reason").isNull()).select(*DECISIONS.names)
    return good, lines.where(F.col("reason").isNotNull()).select("line", "reason")


def parsed_lines(lines: DataFrame, envelope: StructType | str) -> DataFrame:
    """Return lines of JSON (a column `value`) as `line`, and what they say as `e`; `reason_of` needs both."""
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": "_corrupt"}
    return lines.select(F.col("value").alias("line"), F.from_json(F.col("value"), envelope, options=options).alias("e"))


def reason_of(wrong: Sequence[tuple[str, Column]]) -> Column:
    """Return the code of the first that is wrong with a line, and null if nothing is. First, it must be JSON."""
    no_json = F.col("e._corrupt").isNotNull() | F.col("e").isNull() | ~is_one_json(F.col("line"))
    return F.coalesce(*(F.when(found, F.lit(code)) for code, found in (("log.json", no_json), *wrong)))


def judged(lines: DataFrame) -> DataFrame:
    """Return every line with the reason why it is not a decision, which is null if it is one, and its columns."""
    parsed = parsed_lines(lines, _ENVELOPE)
    moment, ordered = instant(F.col("e.time")), instant(F.col("e.data.ordered"))
    data, resource = F.col("e.data"), _resource(F.col("e.data.resource"))
    enforced, revoked, answered = (holds(F.col("e.type") == one) for one in (ENFORCED, REVOKED, ANSWERED))
    types = F.col("e.type").isin(DECIDED, ENFORCED, REVOKED, ANSWERED)
    no_decision = (
        absent(resource, *(data[name] for name in ("principal", "errors")))
        | ~holds(data["effect"].isin(*Effect) & data["action"].isin(*Right))
        | (enforced & absent(data["decision"], data["passed"], data["refused"]))
    )
    no_revocation = absent(data["owner"], data["revocation"]) | ~holds(
        (F.size(data["because"]) > 0) & (ordered <= moment)
    )
    no_answer = absent(data["subject"], data["action"], data["resource"], _effect(data["decision"]))
    undecided = absent(data["revision"], data["took"]) | F.when(answered, no_answer).otherwise(no_decision)
    wrong = [
        ("log.envelope", ~holds((F.col("e.specversion") == "1.0") & types)),
        ("log.envelope", absent(F.col("e.id"), F.col("e.source"), data)),
        ("log.field", absent(moment, data["because"]) | F.when(revoked, no_revocation).otherwise(undecided)),
    ]
    reason = reason_of(wrong)
    known = {
        "time": moment,
        "resource": F.when(answered, _thing(data["resource"])).otherwise(resource),
        "owner_domain": data["owner-domain"],
        "principal": F.when(revoked, data["owner"])
        .when(answered, _thing(data["subject"]))
        .otherwise(data["principal"]),
        "effect": F.when(answered, _effect(data["decision"])).otherwise(data["effect"]),
        "errors": F.when(answered, _why(data)).otherwise(data["errors"]),
        "decision": F.when(enforced, data["decision"]).when(revoked, data["revocation"]).otherwise(F.col("e.id")),
        "ordered": F.when(revoked, ordered),
        **{n: F.col(f"e.{n}") for n in ("id", "source", "type")},
    }
    columns = [known.get(field.name, data[field.name]).alias(field.name) for field in DECISIONS]
    # A list of one, for the planner: otherwise it moves the reason, which is long, into what asks for it, and that back
    # to before the line is parsed.
    judgement = F.explode(F.array(F.struct("line", reason.alias("reason"), *columns)))
    return parsed.select(judgement.alias("judged")).select("judged.*")


def _resource(found: Column) -> Column:
    """Return the written name of a type or a network."""
    name = F.concat(found["owner"], F.lit("/"), found["name"])
    network, of_type = found["kind"] == "network", found["kind"] == "type"
    return F.when(network, name).when(of_type, F.concat(name, F.lit("@"), found["version"]))


# --- Answers of policies ---------------------------------------------------------------------------------------------


def _thing(found: Column) -> Column:
    """Return a name for somebody or something that policies were asked about; null if nobody said."""
    of_type, id_ = F.coalesce(found["type"], F.lit("")), F.coalesce(found["id"], F.lit(""))
    name = F.when(of_type == "", id_).otherwise(F.concat(of_type, F.lit("/"), id_))
    return F.when(name != "", name)


def _effect(decision: Column) -> Column:
    """Return the effect of a decision when it is enforced; null if there is none."""
    effects = {
        Effect.PERMIT: [XacmlDecision.PERMIT],
        Effect.DENY: [XacmlDecision.DENY, XacmlDecision.NOT_APPLICABLE],
        Effect.INDETERMINATE: [one for one in XacmlDecision if one.indeterminate],
    }
    found = F.lit(None)
    for effect, decisions in effects.items():
        words = dict.fromkeys(word for one in decisions for word in (one.value, one.plain))
        found = F.when(decision.isin(*words), F.lit(str(effect))).otherwise(found)
    return found


def _why(data: Column) -> Column:
    """Return the code of a refusal: of what went wrong, or that a policy says so, or that none says anything."""
    status = F.substring_index(data["status"], ":", -1)
    code = (
        F.when(data["status"] != "", status)
        .when(data["decision"] == XacmlDecision.DENY.value, F.lit(DENIED))
        .when(data["decision"] == XacmlDecision.NOT_APPLICABLE.value, F.lit(NOT_APPLICABLE))
    )
    return F.when(code.isNull(), F.array().cast("array<string>")).otherwise(F.array(code))


def absent(*columns: Column) -> Column:
    """Return whether one of some columns is null."""
    found = F.lit(False)
    for column in columns:
        found |= column.isNull()
    return found


def holds(condition: Column) -> Column:
    """Return whether a condition is true; it is not if it is null."""
    return F.coalesce(condition, F.lit(False))


# ----------------------------------------------------------------------------------------------------------------------
# Audit: which rights are in use, by a decision log.


_TEXT, _LONG, _TIME = StringType(), LongType(), TimestampType()
RIGHTS_USED: Final = schema_of(credential=_TEXT, decisions=_LONG, events=_LONG, first=_TIME, last=_TIME)
RIGHTS_UNUSED: Final = schema_of(credential=_TEXT, issuer=_TEXT, subject=_TEXT, right=_TEXT)
REQUESTS_MADE: Final = schema_of(
    principal=_TEXT, action=_TEXT, resource=_TEXT, permitted=_LONG, refused=_LONG, events=_LONG, last=_TIME
)
REFUSALS: Final = schema_of(
    principal=_TEXT,
    action=_TEXT,
    resource=_TEXT,
    effect=_TEXT,
    code=_TEXT,
    decisions=_LONG,
    last=_TIME,
)
KEPT_BACK: Final = schema_of(principal=_TEXT, action=_TEXT, resource=_TEXT, effect=_TEXT, events=_LONG, last=_TIME)
FLOWS: Final = schema_of(origin=_TEXT, target=_TEXT, action=_TEXT, decisions=_LONG, events=_LONG)
DURATIONS: Final = schema_of(
    action=_TEXT, decisions=_LONG, p50=DoubleType(), p90=DoubleType(), p99=DoubleType(), longest=_LONG
)
SLOWEST: Final = schema_of(
    id=_TEXT, time=_TIME, source=_TEXT, principal=_TEXT, action=_TEXT, resource=_TEXT, effect=_TEXT, took=_LONG
)
REVOCATIONS: Final = schema_of(
    owner=_TEXT, revocations=_LONG, credentials=_LONG, p50=DoubleType(), p95=DoubleType(), longest=_LONG, last=_TIME
)
OVER_TIME: Final = schema_of(start=_TIME, permit=_LONG, deny=_LONG, indeterminate=_LONG)


def within(log: DataFrame, since: datetime | None = None, until: datetime | None = None) -> DataFrame:
    """Return the decisions of a period, its end excluded.

    Raises `MalformedError` (`value.zone`, `value.range`) for a bound that is not an instant.
    """
    if since is not None:
        log = log.where(F.col("time") >= literal(in_utc(since), Kind.TIMESTAMP))
    if until is not None:
        log = log.where(F.col("time") < literal(in_utc(until), Kind.TIMESTAMP))
    return log


def _decides() -> Column:
    return F.col("type").isin(DECIDED, ANSWERED)


def _revokes() -> Column:
    return F.col("type") == REVOKED


def _permitted() -> Column:
    return F.col("effect") == str(Effect.PERMIT)


def _sum(name: str) -> Column:
    return F.coalesce(F.sum(name), F.lit(0).cast("bigint"))


def _percentile(share: int) -> Column:
    """Return an exact percentile of the time taken, to a tenth: further digits are of the interpolation."""
    return F.round(F.percentile("took", F.lit(share / 100)), 1).alias(f"p{share}")


def _shaped(frame: DataFrame, schema: StructType) -> DataFrame:
    return frame.select(*(F.col(field.name).cast(field.dataType) for field in schema))


def rights_used(log: DataFrame) -> DataFrame:
    """Return the credentials that permissions rested on (`RIGHTS_USED`)."""
    credential = F.explode(F.array_distinct("because")).alias("credential")
    used = log.where(_permitted()).select(credential, "type", "time", "passed")
    found = used.groupBy("credential").agg(
        F.count_if(_decides()).alias("decisions"),
        _sum("passed").alias("events"),
        F.min("time").alias("first"),
        F.max("time").alias("last"),
    )
    return _shaped(found, RIGHTS_USED)


def rights_unused(log: DataFrame, policy: PipelinePolicy) -> DataFrame:
    """Return the credentials of a policy that no permission rested on (`RIGHTS_UNUSED`)."""
    return _rights(log.sparkSession, policy).join(rights_used(log).select("credential"), "credential", "left_anti")


def _rights(spark: SparkSession, policy: PipelinePolicy) -> DataFrame:
    statements = [(certificate.id, certificate.statement) for certificate in policy.credentials]
    known = [(key, str(said.issuer), _subject(said.subject), _right(said)) for key, said in statements]
    return spark.createDataFrame(known, RIGHTS_UNUSED)


def _subject(subject: Subject) -> str:
    """Describe who a credential concerns, with whole principals, so that a reader's own petnames can replace them."""
    if isinstance(subject, Name):
        return " ".join([str(subject.principal), *(repr(name.decode(errors="replace")) for name in subject.names)])
    return str(subject)


def _right(statement: Statement) -> str:
    """Describe a credential's right, without forced values and conditions."""
    if isinstance(statement, NameCertificate):
        return f"member of {statement.name.decode(errors='backslashreplace')}"
    tag = describe_tag(statement.tag)
    rights = tag.get("rights", "*")
    shown = ", ".join(map(str, rights)) if isinstance(rights, list) else str(rights)
    return f"{'every right' if shown == '*' else shown} on {tag.get('name', '*')}"


def requests_made(log: DataFrame) -> DataFrame:
    """Return who asked for what, and how often it was permitted (`REQUESTS_MADE`)."""
    found = (
        log.where(~_revokes())
        .groupBy("principal", "action", "resource")
        .agg(
            F.count_if(_decides() & _permitted()).alias("permitted"),
            F.count_if(_decides() & ~_permitted()).alias("refused"),
            _sum("passed").alias("events"),
            F.max("time").alias("last"),
        )
    )
    return _shaped(found, REQUESTS_MADE)


def refusals(log: DataFrame) -> DataFrame:
    """Return the most frequent refusals (`REFUSALS`).

    A refusal without a code is one for which no credential was there. One with several codes counts for each of them.
    """
    refused = log.where(_decides() & ~_permitted())
    code = F.explode_outer(F.array_distinct("errors")).alias("code")
    refused = refused.select("principal", "action", "resource", "effect", "time", code)
    found = refused.groupBy("principal", "action", "resource", "effect", "code").agg(
        F.count(F.lit(1)).alias("decisions"), F.max("time").alias("last")
    )
    return _shaped(found, REFUSALS)


def kept_back(log: DataFrame) -> DataFrame:
    """Return where most events were kept back (`KEPT_BACK`).

    The effect says whether a permission does not cover them, or the request was refused.
    """
    found = (
        log.where(F.col("refused") > 0)
        .groupBy("principal", "action", "resource", "effect")
        .agg(_sum("refused").alias("events"), F.max("time").alias("last"))
    )
    return _shaped(found, KEPT_BACK)


def reason(code: object) -> str:
    """Return why a request was refused: its code, or a sentence if it has none."""
    return "no credential" if code is None else str(code)


def flows(log: DataFrame) -> DataFrame:
    """Return how much passes from domain to domain (`FLOWS`): to readers from owners, from publishers to owners."""
    actions = [str(Right.PUBLISH), str(Right.SUBSCRIBE)]
    reads = F.col("action") == str(Right.SUBSCRIBE)
    passing = log.where(_permitted() & F.col("action").isin(*actions) & (F.col("type") != ANSWERED))
    origin = F.when(reads, F.col("owner_domain")).otherwise(F.col("domain")).alias("origin")
    target = F.when(reads, F.col("domain")).otherwise(F.col("owner_domain")).alias("target")
    found = passing.groupBy(origin, target, "action").agg(
        F.count_if(_decides()).alias("decisions"), _sum("passed").alias("events")
    )
    return _shaped(found, FLOWS)


def durations(log: DataFrame) -> DataFrame:
    """Return exact percentiles of the time taken, by action (`DURATIONS`); in microseconds."""
    found = (
        log.where(_decides())
        .groupBy("action")
        .agg(
            F.count(F.lit(1)).alias("decisions"),
            *map(_percentile, (50, 90, 99)),
            F.max("took").alias("longest"),
        )
    )
    return _shaped(found, DURATIONS)


def slowest(log: DataFrame, count: int = 20) -> DataFrame:
    """Return the decisions that took longest (`SLOWEST`)."""
    return _shaped(log.where(_decides()).orderBy(F.desc("took"), "time", "id").limit(count), SLOWEST)


def over_time(log: DataFrame, width: timedelta = timedelta(hours=1)) -> DataFrame:
    """Return how many decisions had which effect, by period (`OVER_TIME`); periods without any are left out.

    Raises `MalformedError` (`audit.width`) for a width that is not positive.
    """
    step = width // timedelta(microseconds=1)
    if step <= 0:
        raise MalformedError("audit.width", "the width of a period must be positive", hint="choose an hour or a day")
    micro = F.unix_micros("time")
    start = F.timestamp_micros(micro - F.pmod(micro, F.lit(step))).alias("start")
    counts = [F.count_if(F.col("effect") == str(effect)).alias(str(effect)) for effect in Effect]
    return _shaped(log.where(_decides()).groupBy(start).agg(*counts), OVER_TIME)


def revocations(log: DataFrame) -> DataFrame:
    """Return how long revocations took, by owner (`REVOCATIONS`); in microseconds, exact percentiles.

    A revocation is complete when the last broker that tells of it has carried it out.
    """
    told = log.where(_revokes())
    whole = told.groupBy("principal", "decision").agg(
        (F.unix_micros(F.max("time")) - F.unix_micros(F.min("ordered"))).alias("took"),
        F.size(F.array_distinct(F.flatten(F.collect_set("because")))).alias("credentials"),
        F.max("time").alias("last"),
    )
    found = whole.groupBy(F.col("principal").alias("owner")).agg(
        F.count(F.lit(1)).alias("revocations"),
        F.sum("credentials").alias("credentials"),
        *map(_percentile, (50, 95)),
        F.max("took").alias("longest"),
        F.max("last").alias("last"),
    )
    return _shaped(found, REVOCATIONS)


@dataclass(frozen=True, slots=True)
class ReportTable:
    """Rows that were collected for a report. `more` says that further rows follow in the same order."""

    columns: tuple[str, ...]
    rows: tuple[tuple[object, ...], ...]
    more: bool = False

    def as_dicts(self) -> list[dict[str, object]]:
        """Return the rows as plain data."""
        return [{name: _plain(value) for name, value in zip(self.columns, row, strict=True)} for row in self.rows]


def _plain(value: object) -> object:
    return value.isoformat() if isinstance(value, datetime) else value


@dataclass(frozen=True, slots=True)
class AuditReport:
    """A report on a decision log in a period. `rights_unused` is None if no policy was given."""

    since: datetime | None
    until: datetime | None
    decisions: int
    rights_used: ReportTable
    rights_unused: ReportTable | None
    requests_made: ReportTable
    refusals: ReportTable
    flows: ReportTable
    durations: ReportTable
    slowest: ReportTable
    over_time: ReportTable
    #: of one period in `over_time`
    width: timedelta = timedelta(hours=1)
    revocations: ReportTable = ReportTable(tuple(REVOCATIONS.names), ())
    kept_back: ReportTable = ReportTable(tuple(KEPT_BACK.names), ())

    def tables(self) -> dict[str, ReportTable]:
        """Return all tables by name."""
        names = ("rights_used", "rights_unused", "requests_made", "refusals", "kept_back", "flows", "durations")
        found = {name: getattr(self, name) for name in (*names, "slowest", "over_time", "revocations")}
        return {name: table for name, table in found.items() if table is not None}

    def as_dict(self) -> dict[str, object]:
        """Return the report as plain data, for JSON."""
        return {
            "since": _plain(self.since),
            "until": _plain(self.until),
            "decisions": self.decisions,
            **{name: table.as_dicts() for name, table in self.tables().items()},
            "shortened": sorted(name for name, table in self.tables().items() if table.more),
        }


def audit(  # noqa: PLR0913  # a log and a policy; the rest has defaults
    log: DataFrame,
    policy: PipelinePolicy | None = None,
    *,
    since: datetime | None = None,
    until: datetime | None = None,
    top: int = 20,
    width: timedelta = timedelta(hours=1),
    periods: int = 1_000,
) -> AuditReport:
    """Audit a period of a decision log, with the credentials of a policy to find those that were not used.

    Each table has at most `top` rows, and at most `periods` periods; unused rights are all listed. Raises
    `MalformedError` (`audit.width`, `audit.top`, `value.zone`, `value.range`).
    """
    if top < 1 or periods < 1:
        raise MalformedError("audit.top", "a table has at least one row")
    log = within(log, since, until)
    asked = ["principal", "action", "resource"]
    used = rights_used(log)
    if policy is not None:
        # With the policy available, say who granted what to which principal.
        used = _rights(log.sparkSession, policy).join(used, "credential", "right")
    used = used.orderBy(F.desc("decisions"), "credential")
    unused = None if policy is None else rights_unused(log, policy).orderBy("issuer", "subject", "credential")
    requests = requests_made(log).orderBy(F.desc(F.col("permitted") + F.col("refused")), *asked)
    refused = refusals(log).orderBy(F.desc("decisions"), *asked, "effect", "code")
    kept = kept_back(log).orderBy(F.desc("events"), *asked, "effect")
    flowing = flows(log).orderBy(F.desc("events"), F.desc("decisions"), "origin", "target", "action")
    # Policies may be asked about any action.
    taken = collected_table(durations(log).orderBy(F.desc("decisions"), "action"), max(top, len(Right)))
    return AuditReport(
        since=since,
        until=until,
        decisions=log.where(_decides()).count() if taken.more else sum(int(str(row[1])) for row in taken.rows),
        rights_used=collected_table(used, top),
        rights_unused=None
        if unused is None or policy is None
        else collected_table(unused, max(len(policy.credentials), 1)),
        requests_made=collected_table(requests, top),
        refusals=collected_table(refused, top),
        flows=collected_table(flowing, top),
        durations=taken,
        slowest=collected_table(slowest(log, top + 1), top),
        over_time=collected_table(over_time(log, width).orderBy("start"), periods),
        width=width,
        revocations=collected_table(revocations(log).orderBy(F.desc("longest"), "owner"), top),
        kept_back=collected_table(kept, top),
    )


_EPOCH: Final = datetime.fromisoformat("1970-01-01T00:00:00+00:00")


def collected_table(frame: DataFrame, bound: int) -> ReportTable:
    """Collect at most so many rows of a frame for a report."""
    # Timestamps come as microseconds: Python's would be in this machine's time zone.
    times = {field.name for field in frame.schema if isinstance(field.dataType, TimestampType)}
    columns = [F.unix_micros(name).alias(name) if name in times else F.col(name) for name in frame.columns]

    def read(name: str, value: object) -> object:
        return _EPOCH + timedelta(microseconds=value) if name in times and isinstance(value, int) else value

    found = [row.asDict() for row in frame.limit(bound + 1).select(*columns).collect()]
    rows = tuple(tuple(read(name, value) for name, value in row.items()) for row in found[:bound])
    return ReportTable(tuple(frame.columns), rows, len(found) > bound)
