"""All conflicts in a rule base of any size (paper 1, section III-B), without comparing each rule with each.

Rules on one event type whose function means the same are one *statement*. Statements conflict on the same type if they
mean different things, and with one on a type above if the lower one does not imply the upper one, or in a tree of
downward scope the other way round (`moderator.conflicts.demands`).

1. *Summaries.* What all statements on a type demand, attribute by attribute: where all of these intervals meet, and
   what lies around them.
2. *Edges.* The summary of each type against that of the nearest type above it that has rules. Implication is
   transitive, so that whoever has no edge that fails on its way up conflicts with nothing above.
3. *Check each statement once*, against the summaries above edges that fail.
4. *Expand* only those that fail there: to all types above them, put together by what they mean, so that a million rules
   that state the same are one row below a type.
5. *Decide* each pair of meanings once: by their intervals if these say all, by `moderator.judge` if not.

A join of intervals would compare a type near the root with everything below it. Here a rule is never joined with
anything but the few types above it.
"""

from collections.abc import Iterable, Iterator
from typing import Any, Final

import pyarrow as pa  # type: ignore[import-untyped]  # it ships no types
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # the name that everybody knows it by
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from penstock.model.tree import TreeScope
from penstock.moderator.detection.judge import QuickJudge
from penstock.moderator.rules.rules import RuleFunction
from penstock.pipeline.conflicts.forms import DEMAND, RuleTerms
from penstock.selector import parse

STATEMENTS: Final = StructType(
    [
        StructField("node", LongType()),
        StructField("function", StringType()),
        StructField("word", BinaryType()),
        StructField("rules", LongType()),
        StructField("example", StringType()),
        StructField("stated", StringType()),
        StructField("exact", BooleanType()),
        StructField("demands", ArrayType(DEMAND)),
        StructField("path", ArrayType(LongType())),
    ]
)
"""What is stated on each type: how many rules say it, one of them, and what it demands."""
GROUPS: Final = StructType(
    [
        StructField("node", LongType()),
        StructField("function", StringType()),
        StructField("upper", BinaryType()),
        StructField("lower", BinaryType()),
        StructField("upper_rules", LongType()),
        StructField("lower_rules", LongType()),
        StructField("lower_types", LongType()),
        StructField("upper_example", StringType()),
        StructField("lower_example", StringType()),
        StructField("upper_stated", StringType()),
        StructField("lower_stated", StringType()),
        StructField("attributes", ArrayType(StringType())),
        StructField("certain", BooleanType()),
    ]
)
"""A statement on a type, and all statements below that type which mean one and the same and conflict with it."""
SAME: Final = StructType(
    [
        StructField("node", LongType()),
        StructField("function", StringType()),
        StructField("word", BinaryType()),
        StructField("others", LongType()),
        StructField("other", StringType()),
        StructField("attributes", ArrayType(StringType())),
        StructField("certain", BooleanType()),
    ]
)
"""A statement on a type, and how many rules on the same type state something else, such as `other`."""
EQUAL: Final = StructType(
    [
        StructField("function", StringType()),
        StructField("word", BinaryType()),
        StructField("other", BinaryType()),
        StructField("equal", BooleanType()),
        StructField("attributes", ArrayType(StringType())),
        StructField("certain", BooleanType()),
    ]
)
"""Whether two functions that intervals do not settle mean the same."""
_ANSWER: Final = StructType(
    [
        StructField("function", StringType()),
        StructField("one", StringType()),
        StructField("other", StringType()),
        StructField("holds", BooleanType()),
        StructField("certain", BooleanType()),
        StructField("attributes", ArrayType(StringType())),
    ]
)
_ARROW: Final = pa.schema(
    [
        ("function", pa.string()),
        ("one", pa.string()),
        ("other", pa.string()),
        ("holds", pa.bool_()),
        ("certain", pa.bool_()),
        ("attributes", pa.list_(pa.string())),
    ]
)
_PLACE: Final = ("node", "function")


# --- One against another ---------------------------------------------------------------------------------------------


def violated(inner: Column, outer: Column) -> Column:
    """Return the demands of `outer` that `inner` is not known to meet."""

    def met(wanted: Column) -> Column:
        return F.exists(
            inner,
            lambda known: (
                (known["of"] == wanted["of"])
                & F.coalesce((known["least"] >= wanted["low"]) & (known["most"] <= wanted["high"]), F.lit(False))
            ),
        )

    return F.filter(outer, lambda wanted: wanted["low"].isNotNull() & ~met(wanted))


def _against(lower: Column, upper: Column, scope: TreeScope) -> Column:
    """Return what is violated between a type and one above it; which one has to imply the other is the tree's scope."""
    return violated(lower, upper) if scope is TreeScope.UPWARD else violated(upper, lower)


def attributes_of(demands: Column) -> Column:
    """Return the attributes that demands are about, sorted."""
    return F.array_sort(F.array_distinct(F.transform(demands, lambda demand: demand["attribute"])))


# --- (1) Summaries ---------------------------------------------------------------------------------------------------


def summaries(statements: DataFrame) -> DataFrame:
    """Return a summary of all statements on a type: `node`, `function`, `path`, `count`, `demands`."""
    by_type = statements.groupBy(*_PLACE).agg(
        F.count(F.lit(1)).alias("count"), F.first("demands").alias("demands"), F.first("path").alias("path")
    )
    single = by_type.where("count = 1").select(*_PLACE, "path", "count", "demands")
    several = by_type.where("count > 1").select(*_PLACE, "path", "count")
    each = statements.select(*_PLACE, F.inline("demands")).join(several, list(_PLACE))
    all_have = F.count("least") == F.first("count")
    merged = each.groupBy(*_PLACE, "of").agg(
        F.first("path").alias("path"),
        F.first("count").alias("count"),
        F.struct(
            F.col("of"),
            F.first("attribute").alias("attribute"),
            # Where all that demand something of it meet; around everything that is allowed by any.
            F.max("low").alias("low"),
            F.min("high").alias("high"),
            F.when(all_have, F.min("least")).alias("least"),
            F.when(all_have, F.max("most")).alias("most"),
        ).alias("demand"),
    )
    packed = merged.groupBy(*_PLACE).agg(
        F.first("path").alias("path"), F.first("count").alias("count"), F.collect_list("demand").alias("demands")
    )
    return single.unionByName(packed)


# --- (2) Edges -------------------------------------------------------------------------------------------------------


def failing_edges(found: DataFrame, scope: TreeScope) -> DataFrame:
    """Return the types whose summary does not fit that of the nearest one above: `node`, `function`."""
    above = found.select(F.col("node").alias("above"), "function", F.col("demands").alias("theirs"))
    edges = found.where(F.size("path") > 0).withColumn("above", F.get("path", F.lit(0)))
    failing = F.size(_against(F.col("demands"), F.col("theirs"), scope)) > 0
    return edges.join(above, ["above", "function"]).where(failing).select(*_PLACE)


# --- (3) Check each once ---------------------------------------------------------------------------------------------


def suspects(statements: DataFrame, found: DataFrame, failing: DataFrame, scope: TreeScope) -> DataFrame:
    """Return the statements that do not fit all summaries above edges that fail: `node`, `function`, `word`."""
    # Each type on the way up, and the one above it.
    line = F.concat(F.array("node"), F.slice("path", F.lit(1), F.size("path") - 1))
    steps = found.where(F.size("path") > 0).select(
        *_PLACE, F.inline(F.arrays_zip(line.alias("from"), F.col("path").alias("above")))
    )
    doubtful = steps.join(failing.select(F.col("node").alias("from"), "function"), ["from", "function"])
    doubtful = doubtful.select(*_PLACE, "above").distinct()
    above = found.select(F.col("node").alias("above"), "function", F.col("demands").alias("theirs"))
    asked = (
        statements.select(*_PLACE, "word", "demands").join(doubtful, list(_PLACE)).join(above, ["above", "function"])
    )
    fails = F.size(_against(F.col("demands"), F.col("theirs"), scope)) > 0
    return asked.where(fails).select(*_PLACE, "word").distinct()


# --- (4) Expand ------------------------------------------------------------------------------------------------------


def below(statements: DataFrame) -> DataFrame:
    """Return what stands below each type, put together by what it means: one row for a type and a word."""
    spread = statements.select(
        F.explode("path").alias("node"), "function", "word", "rules", "example", "stated", "exact", "demands"
    )
    return spread.groupBy(*_PLACE, "word").agg(
        F.sum("rules").alias("rules"),
        F.count(F.lit(1)).alias("types"),
        F.min("example").alias("example"),
        F.first("stated").alias("stated"),
        F.first("exact").alias("exact"),
        F.first("demands").alias("demands"),
    )


def candidates(statements: DataFrame, lower: DataFrame, scope: TreeScope) -> DataFrame:
    """Return each statement with what stands below its type and may conflict with it (`GROUPS`, and `sure`)."""
    upper = statements.select(*_PLACE, *(F.col(name).alias(f"upper_{name}") for name in _CARRIED))
    under = lower.select(*_PLACE, *(F.col(name).alias(f"lower_{name}") for name in (*_CARRIED, "types")))
    at_fault = _against(F.col("lower_demands"), F.col("upper_demands"), scope)
    return (
        upper.join(under, list(_PLACE))
        .withColumn("at_fault", at_fault)
        .where(F.size("at_fault") > 0)
        .select(
            *_PLACE,
            F.col("upper_word").alias("upper"),
            F.col("lower_word").alias("lower"),
            *(f"{side}_{name}" for name in ("rules", "example", "stated") for side in ("upper", "lower")),
            "lower_types",
            attributes_of(F.col("at_fault")).alias("attributes"),
            F.lit(True).alias("certain"),
            (F.col("upper_exact") & F.col("lower_exact")).alias("sure"),
        )
    )


_CARRIED: Final = ("word", "rules", "example", "stated", "exact", "demands")


# --- (5) Decide ------------------------------------------------------------------------------------------------------


def decided(found: DataFrame, terms: RuleTerms) -> DataFrame:
    """Return the candidates that conflict (`GROUPS`); a judge decides each pair that intervals do not settle."""
    sides = ("lower_stated", "upper_stated") if terms.scope is TreeScope.UPWARD else ("upper_stated", "lower_stated")
    one, other = (F.col(side).alias(name) for side, name in zip(sides, ("one", "other"), strict=True))
    open_ = found.where("NOT sure")
    answers = implied(open_.select("function", one, other).distinct(), terms)
    judged = (
        open_.drop("attributes", "certain")
        .withColumns({"one": F.col(sides[0]), "other": F.col(sides[1])})
        .join(answers.where("NOT holds"), ["function", "one", "other"])
    )
    return found.where("sure").select(*GROUPS.names).unionByName(judged.select(*GROUPS.names))


def implied(pairs: DataFrame, terms: RuleTerms, *, both: bool = False) -> DataFrame:
    """Say of pairs of functions (`function`, `one`, `other`) whether one implies the other, and what is lacking.

    With `both`, each has to imply the other.
    """

    def ask(batches: Iterable[Any]) -> Iterator[Any]:
        judge = QuickJudge(terms.vocabulary, terms.mode)
        for batch in batches:
            yield pa.RecordBatch.from_pylist([_answer(judge, row, both=both) for row in batch.to_pylist()], _ARROW)

    return pairs.select("function", "one", "other").mapInArrow(ask, _ANSWER)


def _answer(judge: QuickJudge, row: dict[str, str], *, both: bool) -> dict[str, object]:
    function, one, other = RuleFunction(row["function"]), parse(row["one"]), parse(row["other"])
    answers = [judge.implies(function, one, other), *([judge.implies(function, other, one)] if both else [])]
    failed = [answer for answer in answers if not answer.holds]
    lacking = frozenset[str]().union(*(part.attributes for answer in failed for part in answer.missing))
    # Undecided is a conflict that says so, unless one of the two is known not to hold.
    certain = not failed or any(answer.certain for answer in failed)
    return {**row, "holds": not failed, "certain": certain, "attributes": sorted(lacking)}


# --- On the same type ------------------------------------------------------------------------------------------------


def same_type(statements: DataFrame, found: DataFrame, equal: DataFrame) -> DataFrame:
    """Return the statements that others on the same type differ from (`SAME`).

    No pairs are made: a statement conflicts with all rules on its type but those that mean the same.
    """
    several = found.where("count > 1").select(*_PLACE, _differing().alias("attributes"))
    here = statements.select(*_PLACE, "word", "rules", "example").join(several, list(_PLACE))
    ends = F.min("example").alias("first"), F.max("example").alias("last")
    totals = here.groupBy(*_PLACE).agg(F.sum("rules").alias("all"), *ends)
    others = here.select(*_PLACE, F.col("word").alias("other"), F.col("rules").alias("theirs"))
    known = (
        here.select(*_PLACE, "word")
        .join(equal, ["function", "word"])
        .join(others, [*_PLACE, "other"])
        .groupBy(*_PLACE, "word")
        .agg(
            F.sum(F.when(F.col("equal"), F.col("theirs")).otherwise(0)).alias("alike"),
            F.array_distinct(F.flatten(F.collect_list("attributes"))).alias("more"),
            F.min("certain").alias("certain"),
        )
    )
    alike = F.coalesce("alike", F.lit(0))
    count = F.col("all") - F.col("rules") - alike
    # Where some mean the same, it would have to be looked for.
    other = F.when(alike == 0, F.when(F.col("example") == F.col("first"), F.col("last")).otherwise(F.col("first")))
    named = F.array_sort(F.array_distinct(F.concat("attributes", F.coalesce("more", F.array().cast("array<string>")))))
    return (
        here.join(totals, list(_PLACE))
        .join(known, [*_PLACE, "word"], "left")
        .select(
            *_PLACE,
            "word",
            count.alias("others"),
            other.alias("other"),
            named.alias("attributes"),
            F.coalesce("certain", F.lit(True)).alias("certain"),
        )
        .where("others > 0")
    )


def _differing() -> Column:
    """Return the attributes on which the statements of a summary differ, as far as intervals say."""
    parted = F.filter(
        "demands",
        lambda demand: (
            demand["attribute"].isNotNull()
            & ~F.coalesce((demand["low"] == demand["least"]) & (demand["high"] == demand["most"]), F.lit(False))
        ),
    )
    return attributes_of(parted)


def unsettled(statements: DataFrame, found: DataFrame, terms: RuleTerms) -> DataFrame:
    """Say of functions on one type, of which one at least is not exact, whether they mean the same (`EQUAL`)."""
    here = statements.join(found.where("count > 1").select(*_PLACE), list(_PLACE), "left_semi")
    mine = here.where("NOT exact").select(*_PLACE, "word", "stated")
    theirs = here.select(*_PLACE, F.col("word").alias("other"), F.col("stated").alias("theirs"), F.col("exact"))
    pairs = mine.join(theirs, list(_PLACE)).where("word <> other AND (exact OR word < other)")
    pairs = pairs.select("function", "word", "other", "stated", "theirs").distinct()
    answers = implied(
        pairs.select("function", F.col("stated").alias("one"), F.col("theirs").alias("other")), terms, both=True
    )
    asked = pairs.withColumnsRenamed({"other": "partner", "stated": "one", "theirs": "other"})
    half = asked.join(answers, ["function", "one", "other"]).select(
        "function", "word", F.col("partner").alias("other"), F.col("holds").alias("equal"), "attributes", "certain"
    )
    turned = half.select("function", F.col("other").alias("word"), F.col("word").alias("other"), *EQUAL.names[3:])
    return half.unionByName(turned)
