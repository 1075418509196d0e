"""Conflicts by Definition 1, word by word: rules of two publishers that differ in both functions.

What differs is neither ordered nor transitive, so nothing can be passed over: all that is stated on a type is compared
with all that is stated below it. Rules that state the same, and are of the same publisher alone, still count as one.
"""

from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # the name that everybody knows it by

from penstock.pipeline.conflicts import attributes_of, implied, violated
from penstock.pipeline.conflicts_forms import key_of
from penstock.pipeline.conflicts_terms import Terms

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


def literal_groups(statements: DataFrame, terms: Terms) -> DataFrame:
    """Return statements with what collides with them below (`GROUPS`)."""
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


def literal_same(statements: DataFrame, terms: Terms) -> tuple[DataFrame, DataFrame]:
    """Return statements that others on the same type collide with (`SAME`), and pairs that do not (`EQUAL`)."""
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


def _colliding(pairs: DataFrame, terms: Terms) -> DataFrame:
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


def _differing(pairs: DataFrame, side: str, terms: Terms) -> DataFrame:
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
