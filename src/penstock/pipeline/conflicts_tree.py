"""The tree of event types as a table, however many they are: numbers, and the types above each that have rules.

    number  bigint          by which other tables name the type
    type    string
    depth   int             0 for a root
    path    array<bigint>   the types above it that have rules, the nearest first
    top     string          the type below a root, or the root itself, in whose subtree it stands

Paths are found by doubling: who knows so many types above itself learns what the last of them knows, so that the
deepest tree (`type_depth`) takes six rounds.
"""

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
    [StructField("number", LongType()), StructField("type", StringType()), StructField("parent", StringType())]
)
"""Types that were stated once, with a number for each. It has to be written down before it is used."""
#: where a type stands whose path ends nowhere
_LOST: Final = -1


def number_types(types: DataFrame) -> DataFrame:
    """Give a number to each type (`NUMBERED`); `types` has `type` and `parent`, each type once."""
    return types.select(F.monotonically_increasing_id().alias("number"), "type", "parent")


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
        """The types that stand in none (`type`, `parent`, `reason`).

        One above is not stated (`tree.parent`), it is above itself (`type.cycle`), or too deep (`type.limit`).
        """
        return self.known.select("type", "parent", _reason().alias("reason")).where("reason IS NOT NULL")


def climb(numbered: DataFrame, bearing: DataFrame) -> Climbed:
    """Find the types above each; `bearing` names those (`type`) that have rules, each once."""
    # Cut off from how it was found each time: a plan that holds itself twice over doubles with each round.
    known = _first_step(numbered, bearing).localCheckpoint()
    for _ in range(DEFAULT_LIMITS.type_depth.bit_length()):
        if not known.where("up >= 0").limit(1).collect():
            break
        known = _doubled(known).localCheckpoint()
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
