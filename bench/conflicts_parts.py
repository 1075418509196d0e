"""A rule base of any size whose conflicts are known: a tree that grows with the rules, and few that conflict.

Eight types stand below each type, and two rules on each. A type stands for a range of serial numbers within that of its
parent, and demands of subscribers to be of it, so that no two types state the same. Leaves of two kinds conflict:

- one of the two rules leaves out the first number of its range: one conflict;
- both rules admit a number that is not the parent's, and is that of the type above it: each conflicts with both
  rules of the parent. One in ten of these says it by a formula that is no list.

No rule has more than two conflicts.
"""

from pathlib import Path

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # the name that everybody knows it by

from penstock.model.profiles import alphabetic, numeric
from penstock.model.tree import TreeScope
from penstock.pipeline.conflicts.forms import RuleTerms
from penstock.pipeline.conflicts.input import InputTable, StorageFormat, read_rules, read_types
from penstock.pipeline.jobs.conflicts import Conflicts

BELOW = 8
ROOM = BELOW**12
TERMS = RuleTerms(TreeScope.UPWARD, {}, {"serial": numeric(0, ROOM - 1), "role": alphabetic("engineer", "worker")})


def _level(types: int) -> list[int]:
    """Return the number of the first type of each level."""
    firsts, first = [0], 0
    while (first := first * BELOW + 1) < types:
        firsts.append(first)
    return firsts


def _low(number: Column, types: int) -> tuple[Column, Column]:
    """Return the least serial number of a type's range, and how many are in it."""
    low, width = F.lit(0), F.lit(ROOM)
    for depth, first in enumerate(_level(types)):
        each = ROOM // BELOW**depth
        there = number >= first
        low, width = F.when(there, (number - first) * F.lit(each)).otherwise(low), F.when(there, each).otherwise(width)
    return low, width


def planted(spark: SparkSession, rules: int) -> DataFrame:
    """Return each type with what is planted there: `narrow` or `wide`, if anything."""
    types = rules // 2
    number = F.col("number")
    parent = F.floor((number - 1) / BELOW)
    leaf, childless = number * BELOW + 1 >= types, parent * BELOW + 1 < types
    narrow = leaf & (number % 10 == 0)
    # The first child of every third type whose own place is not the first among its siblings.
    wide = (
        leaf & childless & ((number - 1) % BELOW == 0) & (parent % 3 == 0) & (parent > 0) & ((parent - 1) % BELOW != 0)
    )
    frame = spark.range(0, types, numPartitions=8).withColumnRenamed("id", "number")
    return frame.withColumns(
        {
            "parent": F.when(number > 0, parent),
            "narrow": narrow & ~wide,
            "wide": wide,
            "formula": wide & (number % 10 == 1),
        }
    )


def expected(types: DataFrame) -> int:
    """Return how many conflicts are planted."""
    found = types.agg(F.count_if("narrow") + 4 * F.count_if("wide")).collect()[0][0]
    return int(found)


def write(spark: SparkSession, folder: Path, rules: int) -> Conflicts:
    """Write the tables of a rule base, and return the job over them."""
    types = planted(spark, rules)
    name = F.concat(F.lit("T"), F.col("number").cast("string"))
    above = F.when(F.col("parent").isNotNull(), F.concat(F.lit("T"), F.col("parent").cast("string")))
    types.select(name.alias("type"), above.alias("parent")).write.parquet(str(folder / "types"))
    start, width = _low(F.col("number"), rules // 2)
    second = F.col("copy") == 1
    low = start + F.when(F.col("narrow") & second, 1).when(F.col("wide"), -1).otherwise(0)
    written = F.concat(
        F.when(F.col("formula"), F.lit("(role = 'engineer' OR role = 'worker') AND ")).otherwise(F.lit("")),
        F.lit("serial <= "),
        (start + width - 1).cast("string"),
        F.lit(" AND serial >= "),
        low.cast("string"),
    )
    stated = types.select("*", F.explode(F.array(F.lit(0), F.lit(1))).alias("copy")).select(
        F.concat(F.lit("r"), F.col("number").cast("string"), F.lit("."), F.col("copy").cast("string")).alias("id"),
        name.alias("event"),
        F.concat(F.lit("org"), F.pmod(F.hash("number", "copy"), F.lit(50)).cast("string")).alias("stated_by"),
        written.alias("fnc_s"),
    )
    # Rules come in the order in which they were stated, not in that of the tree.
    stated.repartition(8, "id").write.parquet(str(folder / "rules"))
    tables = [InputTable(str(folder / part), StorageFormat.PARQUET) for part in ("rules", "types")]
    return Conflicts(lambda on: read_rules(on, tables[0]), lambda on: read_types(on, tables[1]), TERMS, str(folder))
