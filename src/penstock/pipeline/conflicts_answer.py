"""What was found, told in as many rows as there are statements, and expanded where somebody asks.

A rule at the root may collide with a million below it. So a conflict is told from each side once (`CONFLICTS`): a
statement, where the others stand, and how many rules they are. `pairs` has them one by one, for a rule or for all.
"""

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # the name that everybody knows it by
from pyspark.sql.types import ArrayType, BinaryType, BooleanType, LongType, StringType, StructField, StructType

from penstock.moderator.conflicts import Kind
from penstock.pipeline.conflicts_literal import BOTH, joint_word, with_words

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
collides: on the same type (`same`), on types above (`up`) or below (`down`), such as `other`."""
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
    found = [(Kind.SAME, beside), (Kind.UP, up), (Kind.DOWN, down)]
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
    return whole.withColumn("kind", F.lit(str(Kind.UP))).select(*PAIRS.names)


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
            "kind": F.lit(str(Kind.SAME)),
            "other_type": F.col("type"),
            "certain": F.coalesce("is_certain", F.lit(True)),
        }
    ).select(*PAIRS.names)
