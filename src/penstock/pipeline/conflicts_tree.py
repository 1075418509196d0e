"""The tree of event types as a table, however many they are: numbers, and the types above each that have rules.

    number  bigint          by which other tables name the type
    type    string
    depth   int             0 for a root
    path    array<bigint>   the types above it that have rules, the nearest first
    top     string          the type below a root, or the root itself, in whose subtree it stands

Paths are found by doubling: who knows so many types above itself learns what the last of them knows, so that the
deepest tree (`type_depth`) takes six steps, two at a time.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # the name that everybody knows it by
from pyspark.sql.types import ArrayType, IntegerType, LongType, StringType, StructField, StructType

from penstock.model.limits import DEFAULT_LIMITS

TREE: Final = StructType(
    [
        StructField("number", LongType()),
        StructField("type", StringType()),
        StructField("depth", IntegerType()),
        StructField("path", ArrayType(LongType())),
        StructField("top", StringType()),
    ]
)
NUMBERED: Final = StructType(
    [
        StructField("number", LongType()),
        *(StructField(name, StringType()) for name in ("type", "parent", "reason", "original")),
    ]
)
"""What was stated as types, with a number for each, and the reason if it is none. To be written down before use."""
#: where a type stands whose path ends nowhere
_LOST: Final = -1


def number_types(checked: DataFrame) -> DataFrame:
    """Give a number to each type (`NUMBERED`); a type that is stated twice is none (`tree.duplicate`)."""
    again = F.when(F.count(F.lit(1)) > 1, F.lit("tree.duplicate"))
    stated = F.first("parent").alias("parent"), again.alias("reason"), F.first("original").alias("original")
    once = checked.where("reason IS NULL").groupBy("type").agg(*stated)
    bad = checked.where("reason IS NOT NULL").select(*once.columns)
    whole = once.withColumn("original", F.when(F.col("reason").isNotNull(), F.col("original"))).unionByName(bad)
    return whole.withColumn("number", F.monotonically_increasing_id())


@dataclass(frozen=True, slots=True)
class Climbed:
    """What the types know of those above them."""

    known: DataFrame

    @property
    def tree(self) -> DataFrame:
        """The types that stand in a tree (`TREE`)."""
        return _shaped(self.known.where(_reason().isNull()))

    @property
    def lost(self) -> DataFrame:
        """The types that stand in none (`reason`, `original`).

        One above is not stated (`tree.parent`), it is above itself (`type.cycle`), or too deep (`type.limit`).
        """
        row = F.to_json(F.struct("type", "parent")).alias("original")
        return self.known.select(_reason().alias("reason"), row).where("reason IS NOT NULL")


def climb(numbered: DataFrame, bearing: DataFrame, gathered: Callable[[DataFrame], DataFrame]) -> Climbed:
    """Find the types above each; `bearing` names those (`type`) that have rules, each once.

    `gathered` says how what was found so far is to be shared out.
    """
    # Cut off from how it was found each time: a plan that holds itself twice over doubles with each round.
    known = gathered(_first_step(numbered, bearing)).localCheckpoint()
    for _ in range(-(-DEFAULT_LIMITS.type_depth.bit_length() // 2)):
        if not known.where("up >= 0").limit(1).collect():
            break
        known = gathered(_doubled(gathered(_doubled(known)))).localCheckpoint()
    return Climbed(known)


def _reason() -> Column:
    line = F.col("line")
    again = F.array_contains(line, F.col("number")) | (F.size(F.array_distinct(line)) < F.size(line))
    return (
        F.when(F.col("up") == _LOST, F.lit("tree.parent"))
        .when(again, F.lit("type.cycle"))
        .when(F.col("up").isNotNull() | (F.size(line) > DEFAULT_LIMITS.type_depth), F.lit("type.limit"))
    )


def _first_step(numbered: DataFrame, bearing: DataFrame) -> DataFrame:
    """Return what each type knows of its parent.

    `up` is the last type of `line`, the types above; null at a root. `path` are those of the line that have rules.
    """
    parents = numbered.join(bearing.select("type", F.lit(True).alias("bears")), "type", "left").select(
        F.col("type").alias("parent"), F.col("number").alias("above"), F.coalesce("bears", F.lit(False)).alias("bears")
    )
    up = F.when(F.col("parent").isNotNull(), F.coalesce("above", F.lit(_LOST)))
    return numbered.join(parents, "parent", "left").select(
        "number",
        "type",
        "parent",
        up.alias("up"),
        _listed(F.col("above"), F.col("above").isNotNull()).alias("line"),
        _listed(F.col("above"), F.col("bears")).alias("path"),
    )


def _listed(value: Column, there: Column) -> Column:
    return F.when(there, F.array(value)).otherwise(F.array().cast("array<bigint>"))


def _doubled(known: DataFrame) -> DataFrame:
    above = known.select(
        F.col("number").alias("up"),
        F.col("up").alias("further"),
        F.col("line").alias("more"),
        F.col("path").alias("others"),
    )
    found = (
        known.where("up >= 0")
        .join(above, "up")
        .select(
            "number",
            "type",
            "parent",
            F.col("further").alias("up"),
            F.concat("line", "more").alias("line"),
            F.concat("path", "others").alias("path"),
        )
    )
    return known.where("up IS NULL OR up < 0").unionByName(found)


def _shaped(known: DataFrame) -> DataFrame:
    """Name the top of each line: the type below the root, where there is one."""
    number = F.col("number")
    top = F.when(F.size("line") < 2, number).otherwise(F.get("line", F.size("line") - 2))
    named = known.where(F.size("line") < 2).select(number.alias("@top"), F.col("type").alias("top"))
    return (
        known.select("number", "type", F.size("line").alias("depth"), "path", top.alias("@top"))
        .join(named, "@top")
        .select(*TREE.names)
    )
