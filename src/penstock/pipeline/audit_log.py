"""Decision logs in frames: what everybody wrote down who decided, line by line.

    read_log     lines of CloudEvents  ->  decisions, and the lines that are none
    log_frame    records at hand       ->  decisions

A frame of decisions has the schema `DECISIONS`; records of revocations stand in it too, and answers of policies to
questions about anything (docs/reference/decision-log.md).
"""

from collections.abc import Iterable
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # the name that everybody knows it by
from pyspark.sql.types import ArrayType, DataType, LongType, StringType, StructField, StructType, TimestampType

from penstock.guard.decision import Effect
from penstock.guard.decision_log import DecisionRecord
from penstock.guard.log_envelopes import ANSWERED, DECIDED, ENFORCED, REVOKED
from penstock.guard.revocation_log import RevocationRecord
from penstock.pipeline.columns import micros
from penstock.pipeline.records import is_one_json
from penstock.policy.results import Decision
from penstock.trust.capabilities import Right

_TEXT, _LONG, _TIME, _TEXTS = StringType(), LongType(), TimestampType(), ArrayType(StringType())


def schema_of(**fields: DataType) -> StructType:
    """Return the schema of a frame with these columns."""
    return StructType([StructField(name, kind) for name, kind in fields.items()])


DECISIONS: Final = schema_of(
    id=_TEXT,
    source=_TEXT,
    type=_TEXT,
    time=_TIME,
    principal=_TEXT,
    domain=_TEXT,
    action=_TEXT,
    resource=_TEXT,
    owner_domain=_TEXT,
    effect=_TEXT,
    because=_TEXTS,
    errors=_TEXTS,
    revision=_TEXT,
    took=_LONG,
    decision=_TEXT,
    passed=_LONG,
    refused=_LONG,
    ordered=_TIME,
)
"""A decision log in a frame. `resource` is the written name of a type or a network, `took` is in microseconds,
`decision` the decision that a record is of or about; `passed` and `refused` are null where it counts no events. Of a
revocation `principal` is the owner, `decision` the id of the order, and `ordered` its time; what is left is null. Of an
answer of policies `principal` and `resource` are whom and what it is about, with the type before the id, if there is
one; `errors` has one code where it is no permission."""

QUARANTINE: Final = schema_of(line=_TEXT, reason=_TEXT)
"""Lines that are no decisions, and why."""
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
    """Return a frame of decisions from records that are at hand."""
    times = {field.name for field in DECISIONS if field.dataType == _TIME}
    raw = StructType([StructField(f.name, _LONG if f.name in times else f.dataType) for f in DECISIONS])
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


def _moment(written: Column) -> Column:
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


def judged(lines: DataFrame) -> DataFrame:
    """Return every line with the reason why it is not a decision, which is null where it is one, and its columns."""
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": "_corrupt"}
    parsed = lines.select(
        F.col("value").alias("line"), F.from_json(F.col("value"), _ENVELOPE, options=options).alias("e")
    )
    moment, ordered = _moment(F.col("e.time")), _moment(F.col("e.data.ordered"))
    data, resource = F.col("e.data"), _resource(F.col("e.data.resource"))
    enforced, revoked, answered = (_yes(F.col("e.type") == one) for one in (ENFORCED, REVOKED, ANSWERED))
    types = F.col("e.type").isin(DECIDED, ENFORCED, REVOKED, ANSWERED)
    no_decision = (
        _absent(resource, *(data[name] for name in ("principal", "errors")))
        | ~_yes(data["effect"].isin(*Effect) & data["action"].isin(*Right))
        | (enforced & _absent(data["decision"], data["passed"], data["refused"]))
    )
    no_revocation = _absent(data["owner"], data["revocation"]) | ~_yes(
        (F.size(data["because"]) > 0) & (ordered <= moment)
    )
    no_answer = _absent(data["subject"], data["action"], data["resource"], _effect(data["decision"]))
    undecided = _absent(data["revision"], data["took"]) | F.when(answered, no_answer).otherwise(no_decision)
    wrong = [
        ("log.json", F.col("e._corrupt").isNotNull() | F.col("e").isNull() | ~is_one_json(F.col("line"))),
        ("log.envelope", ~_yes((F.col("e.specversion") == "1.0") & types)),
        ("log.envelope", _absent(F.col("e.id"), F.col("e.source"), data)),
        ("log.field", _absent(moment, data["because"]) | F.when(revoked, no_revocation).otherwise(undecided)),
    ]
    reason = F.coalesce(*(F.when(found, F.lit(code)) for code, found in wrong))
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
    """Return a name for somebody or something that policies were asked about; null where nobody said."""
    of_type, id_ = F.coalesce(found["type"], F.lit("")), F.coalesce(found["id"], F.lit(""))
    name = F.when(of_type == "", id_).otherwise(F.concat(of_type, F.lit("/"), id_))
    return F.when(name != "", name)


def _effect(decision: Column) -> Column:
    """Return what a decision comes to where it is enforced; null for what is none."""
    effects = {
        Effect.PERMIT: [Decision.PERMIT],
        Effect.DENY: [Decision.DENY, Decision.NOT_APPLICABLE],
        Effect.INDETERMINATE: [one for one in Decision if one.indeterminate],
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
        .when(data["decision"] == Decision.DENY.value, F.lit(DENIED))
        .when(data["decision"] == Decision.NOT_APPLICABLE.value, F.lit(NOT_APPLICABLE))
    )
    return F.when(code.isNull(), F.array().cast("array<string>")).otherwise(F.array(code))


def _absent(*columns: Column) -> Column:
    found = F.lit(False)
    for column in columns:
        found |= column.isNull()
    return found


def _yes(condition: Column) -> Column:
    return F.coalesce(condition, F.lit(False))
