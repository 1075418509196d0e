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
from functools import reduce
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
from penstock.moderator.rules.rules import ConflictKind, RuleFunction
from penstock.pipeline.conflicts.forms import DEMAND, RuleTerms, key_of
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
"""The statements on each type: the number of rules, one of them, and its demands."""
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
    """Return the demands that are violated between a type and one above it, in the direction of the tree's scope."""
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
            # The intersection of all demands on it, and the hull of everything that any of them allows.
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
    """Return the statements below each type, grouped by meaning: one row for a type and a word."""
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
    """Return each statement with those below its type that may conflict with it (`GROUPS`, and `sure`)."""
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
    """Return for pairs of functions (`function`, `one`, `other`) whether one implies the other, and what is missing.

    With `both`, each must imply the other.
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
    # If some mean the same, the others must be searched for.
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
    """Return whether functions on one type, at least one of them not exact, mean the same (`EQUAL`)."""
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


# ----------------------------------------------------------------------------------------------------------------------
# Conflicts by Definition 1, word by word: rules of two publishers that differ in both functions.
#
# "Differs" is neither ordered nor transitive, so nothing can be skipped: each statement on a type is compared with each
# statement below it. Rules of one publisher that state the same still count as one.


BOTH: Final = "both"
"""In the place of a function: a conflict is about the two together."""
_SIDES: Final = {"p": "fnc_p", "s": "fnc_s"}
_MINE: Final = ("word", "rules", "example", "stated", "alone", *_SIDES)


def joint_word(alone: Column) -> Column:
    """Return the word of a rule: what its two functions mean (`word_p`, `word_s`), and whose alone it is."""
    return key_of(F.concat_ws(" ", F.hex("word_p"), F.hex("word_s"), F.coalesce(alone, F.lit(""))))


def with_words(rules: DataFrame, functions: DataFrame) -> DataFrame:
    """Add the words of both functions to frames that name them by their keys."""
    words = functions.where("reason IS NULL")
    for side, function in _SIDES.items():
        of = words.where(F.col("function") == function).select(
            F.col("key").alias(f"key_{side}"),
            F.col("word").alias(f"word_{side}"),
            F.struct("word", "stated", "exact", "demands").alias(side),
        )
        rules = rules.join(of, f"key_{side}")
    return rules


def joint_statements(stated: DataFrame, functions: DataFrame, tree: DataFrame) -> DataFrame:
    """Return the statements on each type, both functions in one; `p` and `s` are their demands."""
    placed = stated.join(tree.select(F.col("type").alias("event"), F.col("number").alias("node"), "path"), "event")
    worded = with_words(placed, functions).withColumn("word", joint_word(F.col("alone")))
    return (
        worded.groupBy("node", "word")
        .agg(
            F.sum("rules").alias("rules"),
            F.min("example").alias("example"),
            *(F.first(name).alias(name) for name in ("alone", "path", *_SIDES)),
        )
        .withColumns({"function": F.lit(BOTH), "stated": F.concat_ws(" | ", F.col("p.stated"), F.col("s.stated"))})
    )


def literal_groups(statements: DataFrame, terms: RuleTerms) -> DataFrame:
    """Return statements with their conflicts below (`GROUPS`)."""
    spread = statements.select(F.explode("path").alias("node"), *_MINE)
    lower = spread.groupBy("node", "word").agg(
        F.sum("rules").alias("rules"),
        F.count(F.lit(1)).alias("types"),
        F.min("example").alias("example"),
        *(F.first(name).alias(name) for name in ("stated", "alone", *_SIDES)),
    )
    under = lower.select("node", *(F.col(name).alias(f"lower_{name}") for name in (*_MINE, "types")))
    over = statements.select("node", *(F.col(name).alias(f"upper_{name}") for name in _MINE))
    return _colliding(over.join(under, "node"), terms).withColumns(
        {"function": F.lit(BOTH), "upper": F.col("upper_word"), "lower": F.col("lower_word")}
    )


def literal_same(statements: DataFrame, terms: RuleTerms) -> tuple[DataFrame, DataFrame]:
    """Return statements that others on the same type conflict with (`SAME`), and pairs that do not (`EQUAL`)."""
    over = statements.select("node", *(F.col(name).alias(f"upper_{name}") for name in _MINE))
    under = statements.select("node", *(F.col(name).alias(f"lower_{name}") for name in _MINE))
    pairs = over.join(under, "node").where("upper_word <> lower_word")
    found = _colliding(pairs, terms)
    same = found.groupBy("node", F.col("upper_word").alias("word")).agg(
        F.sum("lower_rules").alias("others"),
        F.min("lower_example").alias("other"),
        F.array_sort(F.array_distinct(F.flatten(F.collect_set("attributes")))).alias("attributes"),
        F.min("certain").alias("certain"),
    )
    words = ["upper_word", "lower_word"]
    alike = pairs.select(*words).distinct().join(found.select(*words).distinct(), words, "left_anti")
    equal = alike.select(
        F.lit(BOTH).alias("function"),
        F.col("upper_word").alias("word"),
        F.col("lower_word").alias("other"),
        F.lit(True).alias("equal"),
        F.array().cast("array<string>").alias("attributes"),
        F.lit(True).alias("certain"),
    )
    return same.withColumn("function", F.lit(BOTH)), equal


def _colliding(pairs: DataFrame, terms: RuleTerms) -> DataFrame:
    """Return the pairs of two publishers that differ in both functions, with `attributes` and `certain`."""
    found = pairs.where(~F.coalesce(F.col("upper_alone") == F.col("lower_alone"), F.lit(False)))
    for side in _SIDES:
        found = found.where(F.col(f"upper_{side}.word") != F.col(f"lower_{side}.word"))
    return reduce(lambda left, side: _differing_texts(left, side, terms), _SIDES, found).withColumns(
        {
            "attributes": F.array_sort(F.array_distinct(F.concat("p_attributes", "s_attributes"))),
            "certain": F.col("p_certain") & F.col("s_certain"),
        }
    )


def _differing_texts(pairs: DataFrame, side: str, terms: RuleTerms) -> DataFrame:
    """Return the pairs that differ in one function: by intervals if these are exact, or else by a judge."""
    upper, lower = F.col(f"upper_{side}"), F.col(f"lower_{side}")
    exact = upper["exact"] & lower["exact"]
    keys = {"function": F.lit(_SIDES[side]), "one": upper["stated"], "other": lower["stated"]}
    asked = pairs.where(~exact).select(*(column.alias(name) for name, column in keys.items())).distinct()
    answers = implied(asked, terms, both=True).select(
        "one", "other", F.struct("holds", "certain", "attributes").alias("said")
    )
    plain = F.concat(violated(upper["demands"], lower["demands"]), violated(lower["demands"], upper["demands"]))
    return (
        pairs.withColumns({"one": F.when(~exact, upper["stated"]), "other": F.when(~exact, lower["stated"])})
        .join(answers, ["one", "other"], "left")
        .where("said IS NULL OR NOT said.holds")
        .withColumns(
            {
                f"{side}_attributes": F.coalesce("said.attributes", attributes_of(plain)),
                f"{side}_certain": F.coalesce("said.certain", F.lit(True)),
            }
        )
        .drop("one", "other", "said")
    )


# ----------------------------------------------------------------------------------------------------------------------
# Results: one row for each statement, expanded into pairs on request.
#
# A rule at the root may conflict with a million below it. A conflict is reported from each side once (`CONFLICTS`): a
# statement, where the others stand, and how many rules they are. `pairs` has them one by one, for a rule or for all.


_TEXT: Final = StringType()
CONFLICTS: Final = StructType(
    [
        StructField("type", _TEXT),
        StructField("function", _TEXT),
        StructField("kind", _TEXT),
        StructField("rule", _TEXT),
        StructField("rules", LongType()),
        StructField("others", LongType()),
        StructField("other", _TEXT),
        StructField("attributes", ArrayType(_TEXT)),
        StructField("certain", BooleanType()),
        StructField("stated", _TEXT),
        StructField("node", LongType()),
        StructField("word", BinaryType()),
    ]
)
"""`rules` rules on a type state one function, `rule` is one of them; `others` is with how many rules each of them
conflicts: on the same type (`same`), on types above (`up`) or below (`down`), such as `other`."""
PAIRS: Final = StructType(
    [
        StructField("rule", _TEXT),
        StructField("other", _TEXT),
        StructField("kind", _TEXT),
        StructField("function", _TEXT),
        StructField("type", _TEXT),
        StructField("other_type", _TEXT),
        StructField("attributes", ArrayType(_TEXT)),
        StructField("certain", BooleanType()),
    ]
)
"""`other` stands where `kind` says, seen from `rule`. Between types, `rule` is the lower one (`up`); on one type it is
the one whose id comes first. The attributes are those of `GROUPS`, and on one type those on which its rules differ."""


def told(statements: DataFrame, flagged: DataFrame, groups: DataFrame, same: DataFrame, tree: DataFrame) -> DataFrame:
    """Return all conflicts from each side (`CONFLICTS`)."""
    down = _summed(groups, "upper", "lower")
    over = _summed(groups, "lower", "upper").withColumnRenamed("node", "above")
    climbing = flagged.select(*_PLACE, "word", F.explode("path").alias("above"))
    up = (
        climbing.join(over, ["above", "function", "word"])
        .groupBy(*_PLACE, "word")
        .agg(F.sum("others").alias("others"), F.min("other").alias("other"), *_merged())
    )
    beside = same.select(*_PLACE, "word", "others", "other", "attributes", "certain")
    found = [(ConflictKind.SAME, beside), (ConflictKind.UP, up), (ConflictKind.DOWN, down)]
    parts = [part.select(F.lit(str(kind)).alias("kind"), "*") for kind, part in found]
    whole = parts[0].unionByName(parts[1]).unionByName(parts[2])
    stated = statements.select(*_PLACE, "word", "rules", F.col("example").alias("rule"), "stated")
    named = tree.select(F.col("number").alias("node"), "type")
    return whole.join(stated, [*_PLACE, "word"]).join(named, "node").select(*CONFLICTS.names)


def _summed(groups: DataFrame, mine: str, theirs: str) -> DataFrame:
    return groups.groupBy(*_PLACE, F.col(mine).alias("word")).agg(
        F.sum(f"{theirs}_rules").alias("others"), F.min(f"{theirs}_example").alias("other"), *_merged()
    )


def _merged() -> list[Column]:
    named = F.array_sort(F.array_distinct(F.flatten(F.collect_set("attributes"))))
    return [named.alias("attributes"), F.min("certain").alias("certain")]


def members(rules: DataFrame, functions: DataFrame, tree: DataFrame, *, literal: bool) -> DataFrame:
    """Return the rules with their statements: `id`, `stated_by`, `type`, `node`, `path`, `function`, `word`."""
    places = tree.select(F.col("number").alias("node"), F.col("type").alias("event"), "path")
    named = [F.col("id"), F.col("stated_by"), F.col("event")]
    if literal:
        words = joint_word(F.col("alone")).alias("word")
        stated = with_words(rules, functions).select(*named, F.lit(BOTH).alias("function"), words)
    else:
        known = functions.where("reason IS NULL").select("function", "key", "word")
        stated = rules.select(*named, each_function()).join(known, ["function", "key"]).drop("key")
    return stated.join(places, "event").withColumnRenamed("event", "type")


def each_function() -> Column:
    """Return the functions that rules name by their keys, in rows of their own: `function`, `key`."""
    return F.inline(
        F.array(
            F.struct(F.lit("fnc_p").alias("function"), F.col("key_p").alias("key")),
            F.struct(F.lit("fnc_s").alias("function"), F.col("key_s").alias("key")),
        )
    )


def pairs(
    stated: DataFrame, groups: DataFrame, same: DataFrame, equal: DataFrame, rule: str | None = None
) -> DataFrame:
    """Return the conflicts one by one (`PAIRS`), of one rule or of all; `stated` is what `members` returns."""
    return _between(stated, groups, rule).unionByName(_beside(stated, same, equal, rule))


def _between(stated: DataFrame, groups: DataFrame, rule: str | None) -> DataFrame:
    lower = stated.select(
        F.col("id").alias("rule"),
        "function",
        F.col("word").alias("lower"),
        F.explode("path").alias("node"),
        "type",
    )
    upper = stated.select(
        F.col("id").alias("other"), "function", F.col("word").alias("upper"), "node", F.col("type").alias("other_type")
    )
    found = groups.select(*_PLACE, "upper", "lower", "attributes", "certain")
    whole = lower.join(found, [*_PLACE, "lower"]).join(upper, [*_PLACE, "upper"])
    if rule is not None:
        whole = whole.where((F.col("rule") == rule) | (F.col("other") == rule))
    return whole.withColumn("kind", F.lit(str(ConflictKind.UP))).select(*PAIRS.names)


def _beside(stated: DataFrame, same: DataFrame, equal: DataFrame, rule: str | None) -> DataFrame:
    here = stated.join(same.select(*_PLACE, "word", "attributes"), [*_PLACE, "word"])
    mine = here.select(*_PLACE, "word", F.col("id").alias("rule"), "type", "attributes")
    theirs = here.select(*_PLACE, F.col("word").alias("partner"), F.col("id").alias("other"))
    both = mine.join(theirs, list(_PLACE)).where("word <> partner AND rule < other")
    if rule is not None:
        both = both.where((F.col("rule") == rule) | (F.col("other") == rule))
    answers = equal.select(
        "function", "word", F.col("other").alias("partner"), "equal", F.col("certain").alias("is_certain")
    )
    judged = both.join(answers, ["function", "word", "partner"], "left").where("equal IS NULL OR NOT equal")
    return judged.withColumns(
        {
            "kind": F.lit(str(ConflictKind.SAME)),
            "other_type": F.col("type"),
            "certain": F.coalesce("is_certain", F.lit(True)),
        }
    ).select(*PAIRS.names)
