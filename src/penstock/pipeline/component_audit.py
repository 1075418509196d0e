"""Audit the logs of authorization components: who asked what, whose answer counted, and what was missing.

    read_samples       lines of CloudEvents  ->  samples, and the lines that are none
    decisions          samples               ->  requests with their answers, and the decision that these give
    asked              decisions             ->  who asked what, and what came of it
    answers            samples, decisions    ->  by decision point: its answers, those that counted, how long they took
    disagreements      decisions             ->  requests to which decision points answered differently
    information        samples               ->  by information point: its answers, and how long they took
    uninformed         samples               ->  by decision point: decisions and requests without information
    refusals           decisions             ->  how often each subject was refused

Log points write such logs (docs/reference/component-log.md). Each transform gives a frame of the schema of the same
name. A sample that several log points have logged counts once. How long something took is measured by the clock of the
log point that heard both. `audit_components` runs them all and collects what a report shows, which is bounded.

Which answers count is what the enforcement point's combining algorithm says; the caller provides it (`CombineAnswers`),
because enforcement points combine by the same code.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, TypeAlias

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812  # the name that everybody knows it by
from pyspark.sql.types import ArrayType, BooleanType, DoubleType, IntegerType, LongType, StringType, TimestampType

from penstock.pipeline.audit import (
    QUARANTINE,
    ReportTable,
    absent,
    collected_table,
    holds,
    instant,
    parsed_lines,
    reason_of,
    schema_of,
    within,
)

SAMPLE: Final = "io.penstock.component.sample"
_TEXT, _LONG, _TIME, _DOUBLE = StringType(), LongType(), TimestampType(), DoubleType()
_THING: Final = schema_of(type=_TEXT, id=_TEXT)
_RESTS: Final = ArrayType(schema_of(id=_TEXT, revision=_TEXT, changed=_TEXT))
_DATA: Final = schema_of(
    domain=_TEXT,
    topic=_TEXT,
    kind=_TEXT,
    writer=_TEXT,
    principal=_TEXT,
    role=_TEXT,
    home=_TEXT,
    number=_LONG,
    configuration=_LONG,
    heard=_TEXT,
    subject=_THING,
    action=_TEXT,
    resource=_THING,
    names=ArrayType(_TEXT),
    requester=_TEXT,
    request=_LONG,
    effect=_TEXT,
    status=_TEXT,
    rests=_RESTS,
)
_ENVELOPE: Final = schema_of(
    specversion=_TEXT, id=_TEXT, source=_TEXT, type=_TEXT, time=_TEXT, data=_DATA, _corrupt=_TEXT
)
SAMPLES: Final = schema_of(
    id=_TEXT,
    source=_TEXT,
    time=_TIME,
    **{field.name: _TIME if field.name == "heard" else field.dataType for field in _DATA},
)
"""Samples in a frame: what a log point logs. A request has `number`, and a reply `requester` and `request`."""
DECISIONS: Final = schema_of(
    id=_TEXT,
    time=_TIME,
    domain=_TEXT,
    requester=_TEXT,
    role=_TEXT,
    number=_LONG,
    subject=_TEXT,
    action=_TEXT,
    resource=_TEXT,
    configuration=_LONG,
    answers=IntegerType(),
    effect=_TEXT,
    counted=ArrayType(_TEXT),
    disagreed=BooleanType(),
    said=ArrayType(_TEXT),
)
"""Requests and the decisions that their answers give; `effect` is null if the answers give none, and `said` has each
replier with its effect."""
ASKED: Final = schema_of(
    requester=_TEXT,
    subject=_TEXT,
    action=_TEXT,
    resource=_TEXT,
    permitted=_LONG,
    refused=_LONG,
    undecided=_LONG,
    last=_TIME,
)
ANSWERS: Final = schema_of(
    replier=_TEXT, home=_TEXT, answers=_LONG, counted=_LONG, outdated=_LONG, p50=_DOUBLE, p95=_DOUBLE, longest=_LONG
)
DISAGREEMENTS: Final = schema_of(
    time=_TIME, requester=_TEXT, subject=_TEXT, action=_TEXT, resource=_TEXT, effect=_TEXT, said=ArrayType(_TEXT)
)
INFORMATION: Final = schema_of(
    replier=_TEXT, home=_TEXT, answers=_LONG, attributes=_LONG, p50=_DOUBLE, p95=_DOUBLE, longest=_LONG
)
UNINFORMED: Final = schema_of(
    decider=_TEXT, decisions=_LONG, indeterminate=_LONG, asked=_LONG, unanswered=_LONG, last=_TIME
)
REFUSALS: Final = schema_of(subject=_TEXT, refusals=_LONG, last=_TIME)

GivenAnswer: TypeAlias = Mapping[str, object]
"""One answer: `replier`, `home`, `principal`, `effect`, `status`, `heard` (in microseconds since 1970), and `rests`
(`id`, `revision`, `changed`)."""
CombineAnswers: TypeAlias = Callable[[str, Sequence[GivenAnswer]], tuple[str | None, list[str]]]
"""Combines the answers to one request, in the order in which they were heard, by the role of the requester. Returns the
effect, or None if the answers give none, and the repliers whose answers counted."""


def first_answer(_role: str, answers: Sequence[GivenAnswer]) -> tuple[str | None, list[str]]:
    """Combine answers by taking the first one."""
    return (str(answers[0]["effect"]), [str(answers[0]["replier"])]) if answers else (None, [])


def read_samples(lines: DataFrame) -> tuple[DataFrame, DataFrame]:
    """Split lines of JSON (a column `value`) into samples (`SAMPLES`), each once, and those that are none."""
    parsed = parsed_lines(lines, _ENVELOPE)
    data = F.col("e.data")
    needed = [F.col("e.id"), instant(F.col("e.time")), instant(data["heard"])]
    needed += [data[name] for name in ("domain", "topic", "kind", "writer", "number", "configuration")]
    asks = (data["kind"] == "DREQ") & absent(data["subject"]["id"], data["action"], data["resource"]["id"])
    replies = data["kind"].isin("DREP", "IREP") & absent(data["requester"], data["request"])
    decides = (data["kind"] == "DREP") & absent(data["effect"])
    wrong = [
        ("log.envelope", ~holds((F.col("e.specversion") == "1.0") & (F.col("e.type") == SAMPLE))),
        ("log.field", absent(*needed) | holds(asks | replies | decides)),
    ]
    judged = parsed.select("line", "e", reason_of(wrong).alias("reason"))
    known = {"time": instant(F.col("e.time")), "heard": instant(data["heard"])}
    known |= {name: F.col(f"e.{name}") for name in ("id", "source")}
    columns = [known.get(field.name, data[field.name]).alias(field.name) for field in SAMPLES]
    good = judged.where(F.col("reason").isNull()).select(*columns)
    once = good.groupBy("id").agg(F.min_by(F.struct(*SAMPLES.names), F.struct("heard", "source")).alias("one"))
    return once.select("one.*"), judged.where(F.col("reason").isNotNull()).select(*QUARANTINE.names)


def _thing(name: str) -> Column:
    of_type, id_ = F.col(name)["type"], F.col(name)["id"]
    return F.when(F.coalesce(of_type, F.lit("")) == "", id_).otherwise(F.concat(of_type, F.lit(":"), id_))


def _paired(samples: DataFrame, requests: str, replies: str) -> DataFrame:
    """Return replies with the request that each is for: `of` is the request, and `heard_after` is in microseconds."""
    asked = samples.where(F.col("kind") == requests).select(
        F.col("domain").alias("domain"),
        F.col("writer").alias("requester"),
        F.col("number").alias("request"),
        F.col("configuration").alias("of_configuration"),
        F.col("heard").alias("of_heard"),
    )
    given = samples.where(F.col("kind") == replies).drop("number", "subject", "resource", "action")
    after = (F.unix_micros("heard") - F.unix_micros("of_heard")).alias("took")
    return given.join(asked, ["domain", "requester", "request"]).select("*", after)


def decisions(samples: DataFrame, combine: CombineAnswers = first_answer) -> DataFrame:
    """Return each request, and the decision that its answers give (`DECISIONS`).

    Only answers of the configuration of the request count, and of each replier only the first.
    """
    answer = F.struct(
        F.unix_micros("heard").alias("heard"),
        *(F.col("writer").alias("replier"), "home", "principal", "effect", "status", "rests"),
    )
    counting = _paired(samples, "DREQ", "DREP").where(F.col("configuration") == F.col("of_configuration"))
    firsts = counting.groupBy("domain", "requester", "request", "writer").agg(F.min(answer).alias("answer"))
    given = firsts.groupBy("domain", F.col("requester").alias("writer"), F.col("request").alias("number")).agg(
        F.sort_array(F.collect_list("answer")).alias("given")
    )
    requests = samples.where(F.col("kind") == "DREQ").join(given, ["domain", "writer", "number"], "left")

    def combined(role: str, found: list[Row] | None) -> tuple[str | None, list[str]]:
        return combine(role, [one.asDict(recursive=True) for one in found or ()])

    result = F.udf(combined, schema_of(effect=_TEXT, counted=ArrayType(_TEXT)), useArrow=False)
    answers = F.coalesce(F.col("given"), F.array().cast(given.schema["given"].dataType))
    found = requests.select(
        "*",
        answers.alias("all"),
        result("role", "given").alias("result"),
        _thing("subject").alias("who"),
        _thing("resource").alias("what"),
    ).select(
        *("id", "time", "domain", F.col("writer").alias("requester"), "role", "number"),
        *(F.col("who").alias("subject"), "action", F.col("what").alias("resource"), "configuration"),
        F.size("all").alias("answers"),
        F.col("result.effect").alias("effect"),
        F.col("result.counted").alias("counted"),
        (F.size(F.array_distinct(F.transform("all", lambda one: one["effect"]))) > 1).alias("disagreed"),
        F.transform("all", lambda one: F.concat(one["replier"], F.lit(": "), one["effect"])).alias("said"),
    )
    return _shaped(found, DECISIONS)


def _shaped(frame: DataFrame, schema: object) -> DataFrame:
    return frame.select(*(F.col(field.name).cast(field.dataType) for field in schema))  # type: ignore[attr-defined]  # fields


def _percentile(share: int) -> Column:
    return F.round(F.percentile("took", F.lit(share / 100)), 1).alias(f"p{share}")


def _refused() -> Column:
    """Return whether policies refused: an Indeterminate decision says that something failed, not that it is denied."""
    return F.col("effect").isin("Deny", "NotApplicable")


def asked(made: DataFrame) -> DataFrame:
    """Return who asked what through which enforcement point, and what came of it (`ASKED`)."""
    permitted = F.col("effect") == "Permit"
    found = made.groupBy("requester", "subject", "action", "resource").agg(
        F.count_if(permitted).alias("permitted"),
        F.count_if(_refused()).alias("refused"),
        F.count_if(~holds(permitted | _refused())).alias("undecided"),
        F.max("time").alias("last"),
    )
    return _shaped(found, ASKED)


def answers(samples: DataFrame, made: DataFrame) -> DataFrame:
    """Return how often each decision point answered, how often its answer counted, and how long it took (`ANSWERS`).

    `outdated` answers are of another configuration than the request. Times are in microseconds.
    """
    given = _paired(samples, "DREQ", "DREP")
    counted = (
        made.select(F.explode("counted").alias("writer")).groupBy("writer").agg(F.count(F.lit(1)).alias("counted"))
    )
    found = given.groupBy("writer", "home").agg(
        F.count(F.lit(1)).alias("answers"),
        F.count_if(F.col("configuration") != F.col("of_configuration")).alias("outdated"),
        *map(_percentile, (50, 95)),
        F.max("took").alias("longest"),
    )
    whole = found.join(counted, "writer", "left").withColumn("counted", F.coalesce("counted", F.lit(0)))
    return _shaped(whole.withColumnRenamed("writer", "replier"), ANSWERS)


def disagreements(made: DataFrame) -> DataFrame:
    """Return the requests to which decision points answered differently (`DISAGREEMENTS`)."""
    return _shaped(made.where("disagreed"), DISAGREEMENTS)


def information(samples: DataFrame) -> DataFrame:
    """Return how often each information point answered, and how long it took, in microseconds (`INFORMATION`)."""
    found = (
        _paired(samples, "IREQ", "IREP")
        .groupBy(F.col("writer").alias("replier"), "home")
        .agg(
            F.count(F.lit(1)).alias("answers"),
            F.sum(F.size("names")).alias("attributes"),
            *map(_percentile, (50, 95)),
            F.max("took").alias("longest"),
        )
    )
    return _shaped(found, INFORMATION)


def uninformed(samples: DataFrame) -> DataFrame:
    """Return the decisions and the requests of each decision point that lack information (`UNINFORMED`).

    `indeterminate` are decisions that something was missing for, and `unanswered` requests for attributes to which no
    information point has answered with any. Decision points that lack nothing are left out.
    """
    decided = (
        samples.where(F.col("kind") == "DREP")
        .groupBy("domain", F.col("writer").alias("decider"))
        .agg(
            F.count(F.lit(1)).alias("decisions"),
            F.count_if(F.col("effect") == "Indeterminate").alias("indeterminate"),
            F.max(F.when(F.col("effect") == "Indeterminate", F.col("time"))).alias("failed"),
        )
    )
    informed = _paired(samples, "IREQ", "IREP").where(F.size("names") > 0).select("domain", "requester", "request")
    requests = samples.where(F.col("kind") == "IREQ").select(
        "domain", F.col("writer").alias("requester"), F.col("number").alias("request"), "time"
    )
    known = informed.distinct().withColumn("known", F.lit(True))
    missing = (
        requests.join(known, ["domain", "requester", "request"], "left")
        .groupBy("domain", F.col("requester").alias("decider"))
        .agg(
            F.count(F.lit(1)).alias("asked"),
            F.count_if(F.col("known").isNull()).alias("unanswered"),
            F.max(F.when(F.col("known").isNull(), F.col("time"))).alias("silent"),
        )
    )
    whole = decided.join(missing, ["domain", "decider"], "full").select(
        "decider",
        *(F.coalesce(name, F.lit(0)).alias(name) for name in ("decisions", "indeterminate", "asked", "unanswered")),
        F.greatest("failed", "silent").alias("last"),
    )
    return _shaped(whole.where((F.col("indeterminate") > 0) | (F.col("unanswered") > 0)), UNINFORMED)


def refusals(made: DataFrame) -> DataFrame:
    """Return how often each subject was refused (`REFUSALS`)."""
    found = (
        made.where(_refused()).groupBy("subject").agg(F.count(F.lit(1)).alias("refusals"), F.max("time").alias("last"))
    )
    return _shaped(found, REFUSALS)


@dataclass(frozen=True, slots=True)
class ComponentAudit:
    """A report on the log of a domain's components in a period."""

    since: datetime | None
    until: datetime | None
    samples: int
    #: lines that are not samples
    quarantined: int
    asked: ReportTable
    answers: ReportTable
    disagreements: ReportTable
    information: ReportTable
    uninformed: ReportTable
    refusals: ReportTable

    def tables(self) -> dict[str, ReportTable]:
        """Return all tables by name."""
        names = ("asked", "answers", "disagreements", "information", "uninformed", "refusals")
        return {name: getattr(self, name) for name in names}

    def as_dict(self) -> dict[str, object]:
        """Return the report as plain data, for JSON."""
        return {
            "since": None if self.since is None else self.since.isoformat(),
            "until": None if self.until is None else self.until.isoformat(),
            "samples": self.samples,
            "quarantined": self.quarantined,
            **{name: table.as_dicts() for name, table in self.tables().items()},
            "shortened": sorted(name for name, table in self.tables().items() if table.more),
        }


def audit_components(  # noqa: PLR0913  # a log; the rest has defaults
    lines: DataFrame,
    combine: CombineAnswers = first_answer,
    *,
    since: datetime | None = None,
    until: datetime | None = None,
    top: int = 20,
    subjects: int = 100_000,
) -> ComponentAudit:
    """Audit a period of a log of components. Each table has at most `top` rows, and refusals at most `subjects`.

    Raises `MalformedError` (`value.zone`, `value.range`) for a bound that is not an instant.
    """
    whole, bad = read_samples(lines)
    samples = within(whole, since, until).cache()
    made = decisions(samples, combine).cache()
    often = F.col("permitted") + F.col("refused") + F.col("undecided")
    try:
        return ComponentAudit(
            since=since,
            until=until,
            samples=samples.count(),
            quarantined=bad.count(),
            asked=collected_table(
                asked(made).orderBy(F.desc(often), "requester", "subject", "action", "resource"), top
            ),
            answers=collected_table(answers(samples, made).orderBy(F.desc("answers"), "replier"), top),
            disagreements=collected_table(disagreements(made).orderBy(F.desc("time")), top),
            information=collected_table(information(samples).orderBy(F.desc("p95"), "replier"), top),
            uninformed=collected_table(uninformed(samples).orderBy(F.desc("last"), "decider"), top),
            refusals=collected_table(refusals(made).orderBy(F.desc("refusals"), "subject"), subjects),
        )
    finally:
        made.unpersist()
        samples.unpersist()
