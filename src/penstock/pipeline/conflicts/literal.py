"""Conflicts by Definition 1, word by word: rules of two publishers that differ in both functions.

What differs is neither ordered nor transitive, so nothing can be passed over: all that is stated on a type is compared
with all that is stated below it. Rules that state the same, and are of the same publisher alone, still count as one.
"""

from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # the name that everybody knows it by
from pyspark.sql.types import ArrayType, BinaryType, BooleanType, LongType, StringType, StructField, StructType

from penstock.moderator.rules.rules import ConflictKind
from penstock.pipeline.conflicts.detection import attributes_of, implied, violated
from penstock.pipeline.conflicts.forms import RuleTerms, key_of

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
    """Return what is stated on each type, both functions in one; `p` and `s` say what they demand."""
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
    """Return statements with what conflicts with them below (`GROUPS`)."""
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
    return reduce(lambda left, side: _differing(left, side, terms), _SIDES, found).withColumns(
        {
            "attributes": F.array_sort(F.array_distinct(F.concat("p_attributes", "s_attributes"))),
            "certain": F.col("p_certain") & F.col("s_certain"),
        }
    )


def _differing(pairs: DataFrame, side: str, terms: RuleTerms) -> DataFrame:
    """Return the pairs that differ in one function: by intervals where these say all, or else as a judge says."""
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
# What was found, told in as many rows as there are statements, and expanded where somebody asks.
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
_PLACE: Final = ["node", "function"]


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
    """Return which rules state what: `id`, `stated_by`, `type`, `node`, `path`, `function`, `word`."""
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
    both = mine.join(theirs, _PLACE).where("word <> partner AND rule < other")
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
