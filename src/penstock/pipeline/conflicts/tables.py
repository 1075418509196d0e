"""The tables of a run of `conflicts`, one after the other: each is written once, and read by what comes after it.

rules/       every row that was read, with the reason where it is not a rule
numbers/     the rows of the table of types, with a number for each, and the reason where it is not a type
functions/   every text that was stated, and what it means
stated/      which texts rules state on which type
types/       the tree: the types above each type that have rules
statements/  what is stated on each type, by how many rules
summaries/   what all statements on a type have in common
groups/      statements, and what conflicts with them below
same/        statements that others on the same type differ from
equal/       functions that were asked about by hand, as it were
conflicts/   all conflicts from each side
quarantine/  rows that are not rules or types
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # the name that everybody knows it by
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from penstock.model.limits import TYPE_DEPTH
from penstock.moderator.rules.rules import Mode
from penstock.pipeline.conflicts.detection import (
    CONFLICTS,
    EQUAL,
    GROUPS,
    SAME,
    STATEMENTS,
    below,
    candidates,
    decided,
    failing_edges,
    joint_statements,
    literal_groups,
    literal_same,
    same_type,
    summaries,
    suspects,
    told,
    unsettled,
)
from penstock.pipeline.conflicts.forms import FUNCTIONS, RuleTerms, read_functions
from penstock.pipeline.conflicts.input import QUARANTINE, check_rules, check_types
from penstock.pipeline.outputs import Output, check_sum, read_part

# ----------------------------------------------------------------------------------------------------------------------
# The tree of any number of event types as a table: numbers, and the types above each that have rules.
#
#     number  bigint          by which other tables name the type
#     type    string
#     depth   int             0 for a root
#     path    array<bigint>   the types above it that have rules, the nearest first
#     top     string          the type below a root, or the root itself, in whose subtree it stands
#
# Paths are found by doubling: who knows so many types above itself learns what the last of them knows, so that the
# deepest tree (`type_depth`) takes six steps, two at a time.


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
    """The types, with those above them as far as they are known."""

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
    # Computed in each round: a plan that contains itself twice would double with each round.
    known = gathered(_first_step(numbered, bearing)).localCheckpoint()
    for _ in range(-(-TYPE_DEPTH.bit_length() // 2)):
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
        .when(F.col("up").isNotNull() | (F.size(line) > TYPE_DEPTH), F.lit("type.limit"))
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
    """Name the top of each line: the type below the root, if there is one."""
    number = F.col("number")
    top = F.when(F.size("line") < 2, number).otherwise(F.get("line", F.size("line") - 2))
    named = known.where(F.size("line") < 2).select(number.alias("@top"), F.col("type").alias("top"))
    return (
        known.select("number", "type", F.size("line").alias("depth"), "path", top.alias("@top"))
        .join(named, "@top")
        .select(*TREE.names)
    )


# ----------------------------------------------------------------------------------------------------------------------
# How Spark divides the work on a rule base of some size.


_PARTITIONS: Final = "spark.sql.shuffle.partitions"
_ROWS_A_PART: Final = 250_000
#: up to this many rules take less time than planning how to divide them, and than compiling the plan
_FEW: Final = 20_000
#: these are done in one part, as planned before, and stay where they are
_AT_ONCE: Final = {
    _PARTITIONS: "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    "spark.sql.codegen.wholeStage": "false",
}


@contextmanager
def planned_for(spark: SparkSession, rows: int) -> Iterator[bool]:
    """Set the number of shuffle partitions so that none is sorted on disk; few rows are processed in one.

    Yields whether there are few.
    """
    few = rows <= _FEW
    before = int(spark.conf.get(_PARTITIONS, None) or 0)
    with _settings(spark, _AT_ONCE if few else {_PARTITIONS: str(max(before, -(-rows // _ROWS_A_PART)))}):
        yield few


@contextmanager
def _settings(spark: SparkSession, wanted: Mapping[str, str]) -> Iterator[None]:
    before = {name: spark.conf.get(name, None) for name in wanted}
    for name, value in wanted.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, old in before.items():
            if old is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, old)


# ----------------------------------------------------------------------------------------------------------------------
# The tables of a run of `conflicts`, one after the other: each is written once, and read by what comes after it.


_TEXT: Final = StringType()
RULES: Final = StructType(
    [
        *(StructField(name, _TEXT) for name in ("id", "event", "stated_by", "alone")),
        *(StructField(name, BinaryType()) for name in ("key_p", "key_s")),
        StructField("in_force", BooleanType()),
        *(StructField(name, _TEXT) for name in ("reason", "words", "original")),
    ]
)
SUMMARIES: Final = StructType(
    [
        StructField("node", LongType()),
        StructField("function", _TEXT),
        STATEMENTS["path"],
        StructField("count", LongType()),
        STATEMENTS["demands"],
    ]
)
STATED: Final = StructType(
    [
        StructField("event", _TEXT),
        StructField("key_p", BinaryType()),
        StructField("key_s", BinaryType()),
        StructField("alone", _TEXT),
        StructField("rules", LongType()),
        StructField("example", _TEXT),
    ]
)
PARTS: Final = {
    "rules": RULES,
    "types": TREE,
    "functions": FUNCTIONS,
    "numbers": NUMBERED,
    "stated": STATED,
    "statements": STATEMENTS,
    "summaries": SUMMARIES,
    "groups": GROUPS,
    "same": SAME,
    "equal": EQUAL,
    "conflicts": CONFLICTS,
    "quarantine": QUARANTINE,
}
_PLACE: Final = ["node", "function"]
_BOTH: Final = ("fnc_p", "fnc_s")


@contextmanager
def bench(output: Output, batch: int, *, few: bool) -> Iterator["Bench"]:
    """Set up a run, and release its cached frames afterwards; `few` says that everything is small."""
    made = Bench(output, batch, few)
    try:
        yield made
    finally:
        for frame in made.held:
            frame.unpersist()


@dataclass(slots=True)
class Bench:
    """A run of the job, and the tables that it has written so far."""

    output: Output
    batch: int
    few: bool
    reasons: dict[str, int] = field(default_factory=dict)
    #: functions of which not all rules mean the same: others cannot conflict
    varied: list[str] = field(default_factory=list)
    #: tables that were written, as they are read
    written: dict[str, DataFrame] = field(default_factory=dict)
    #: frames that are kept in memory until the end
    held: list[DataFrame] = field(default_factory=list)

    def put(self, part: str, frame: DataFrame) -> DataFrame:
        """Write a table, and return it as it is read."""
        self.output.write(self.gathered(frame.select(*PARTS[part].names)), part, self.batch)
        return self.read(part)

    def read(self, part: str) -> DataFrame:
        """Return a table that was written."""
        if part not in self.written:
            table = read_part(self.output.spark, self.output.path, part, [self.batch], PARTS[part])
            self.written[part] = self.gathered(table)
        return self.written[part]

    def gathered(self, frame: DataFrame) -> DataFrame:
        """Return a frame in one part, if it is small: what is in one part needs no shuffle to be joined."""
        return frame.coalesce(1) if self.few else frame

    def hold(self, frame: DataFrame, *, again: bool = False) -> DataFrame:
        """Compute a frame that may be small now: if it is, it is sent to all tasks where it is joined.

        Where everything is small, that is known before, and only what is used `again` is kept.
        """
        if self.few and not again:
            return frame
        kept = self.gathered(frame).persist()
        self.held.append(kept)
        if not self.few:
            kept.count()
        return kept

    # --- what is read -------------------------------------------------------------------------------------------

    def rules(self, rows: DataFrame, terms: RuleTerms, at: datetime | None) -> None:
        """Check all rows."""
        checked = check_rules(self.gathered(rows), at)
        good = checked.where("reason IS NULL AND in_force")
        texts = good.select(
            F.inline(F.array(*(F.struct(F.lit(f).alias("function"), F.col(f).alias("text")) for f in _BOTH)))
        )
        functions = self.put("functions", read_functions(texts.distinct(), terms))
        twice = self.hold(good.groupBy("id").count().where("count > 1").select("id", F.lit(True).alias("twice")))
        wrong = self.hold(functions.where("reason IS NOT NULL").select("function", "key", "reason", "words"))
        p, s = (
            wrong.where(F.col("function") == name).select(
                F.col("key").alias(f"key_{name[-1]}"),
                F.col("reason").alias(f"{name}_reason"),
                F.concat(F.lit(f"{name}: "), "words").alias(f"{name}_words"),
            )
            for name in _BOTH
        )
        judged = checked.join(twice, "id", "left").join(p, "key_p", "left").join(s, "key_s", "left")
        # Rules that are not in force are not processed further.
        later = F.coalesce(F.when(F.col("twice"), F.lit("moderator.duplicate-id")), "fnc_p_reason", "fnc_s_reason")
        reason = F.coalesce("reason", F.when(F.col("in_force"), later))
        words = F.when(F.col("reason").isNull(), F.coalesce("fnc_p_words", "fnc_s_words"))
        table = judged.withColumns({"reason": reason, "words": words})
        self.put("rules", table.withColumn("original", F.when(F.col("reason").isNotNull(), F.col("original"))))

    def tree(self, rows: DataFrame, terms: RuleTerms) -> None:
        """Build the tree of types, and set aside rows that are not types or rules."""
        numbers = self.put("numbers", number_types(check_types(self.gathered(rows))))
        good = self.read("rules").where("reason IS NULL AND in_force")
        if terms.mode is not Mode.LITERAL:
            good = good.withColumn("alone", F.lit(None).cast("string"))
        counted = good.groupBy("event", "key_p", "key_s", "alone").agg(
            F.count(F.lit(1)).alias("rules"), F.min("id").alias("example")
        )
        stated = self.put("stated", counted)
        bearing = stated.select(F.col("event").alias("type")).distinct()
        climbed = climb(numbers.where("reason IS NULL"), bearing, self.gathered)
        types = self.put("types", climbed.tree)
        unknown = stated.join(types.select(F.col("type").alias("event")), "event", "left_anti")
        self._homeless = self.hold(unknown.select("event", "rules"))
        self._set_aside(climbed.lost.unionByName(numbers.where("reason IS NOT NULL").select("reason", "original")))

    #: types that are none, by how many rules they are stated
    _homeless: DataFrame = field(init=False)

    def _set_aside(self, types: DataFrame) -> None:
        rules = self.read("rules")
        lacking = rules.where("reason IS NULL AND in_force").join(self._homeless, "event", "left_semi")
        of_rules = F.lit("rules").alias("source")
        homeless = lacking.select(
            F.lit("moderator.unknown-type").alias("reason"),
            F.lit("there is no such event type").alias("words"),
            of_rules,
            F.to_json(F.struct("id", "event", "stated_by")).alias("original"),
        )
        bad = rules.where("reason IS NOT NULL").select("reason", "words", of_rules, "original")
        of_types = types.select(
            "reason", F.lit(None).cast("string").alias("words"), F.lit("types").alias("source"), "original"
        )
        self.put("quarantine", bad.unionByName(homeless).unionByName(of_types))

    def counted(self) -> dict[str, int]:
        """Count everything that was read."""
        one, words = F.lit(1), self.read("functions").where("reason IS NULL")
        # In one job: each of these takes longer to start than to run.
        asked = {
            "aside": (self.read("quarantine"), F.concat_ws(" ", "source", "reason"), one),
            "idle": (self.read("rules").where("reason IS NULL AND NOT in_force"), F.lit(""), one),
            "stated": (self.read("stated"), F.lit(""), F.col("rules")),
            "homeless": (self._homeless, F.lit(""), F.col("rules")),
            "types": (self.read("types"), F.lit(""), one),
            "varied": (
                words.groupBy("function").agg((F.min("word") < F.max("word")).cast("int").alias("differ")),
                F.col("function"),
                F.col("differ"),
            ),
        }
        parts = [
            frame.select(F.lit(what).alias("what"), of.alias("of"), count.cast("bigint").alias("count"))
            for what, (frame, of, count) in asked.items()
        ]
        whole = reduce(DataFrame.union, parts).groupBy("what", "of").agg(F.sum("count"))
        found: dict[str, dict[str, int]] = {what: {} for what in asked}
        for what, of, count in whole.collect():
            found[what][of] = count
        return self._told(found)

    def _told(self, found: dict[str, dict[str, int]]) -> dict[str, int]:
        self.varied = [function for function, differ in found["varied"].items() if differ]
        aside = {"rules": 0, "types": 0}
        for name, count in found["aside"].items():
            source, _, reason = name.partition(" ")
            aside[source] += count
            self.reasons[reason] = self.reasons.get(reason, 0) + count
        return {
            "rules": found["stated"].get("", 0) - found["homeless"].get("", 0),
            "not_in_force": found["idle"].get("", 0),
            "quarantined": aside["rules"],
            "types": found["types"].get("", 0),
            "types_quarantined": aside["types"],
        }

    # --- what is found ------------------------------------------------------------------------------------------

    def statements(self) -> DataFrame:
        """Group rules that state the same on the same type."""
        tree = self.read("types").select(F.col("type").alias("event"), F.col("number").alias("node"), "path")
        placed = self.read("stated").join(tree, "event")
        each = F.array(*(F.struct(F.lit(f).alias("function"), F.col(f"key_{f[-1]}").alias("key")) for f in _BOTH))
        spread = placed.select("node", "path", "rules", "example", F.inline(each))
        spread = spread.where(F.col("function").isin(self.varied))
        words = self.read("functions").where("reason IS NULL")
        meant = words.select("function", "key", "word", "stated", "exact", "demands")
        found = (
            spread.join(meant, ["function", "key"])
            .groupBy(*_PLACE, "word")
            .agg(
                F.sum("rules").alias("rules"),
                F.min("example").alias("example"),
                *(F.first(name).alias(name) for name in ("stated", "exact", "demands", "path")),
            )
        )
        return self.put("statements", found)

    def find(self, terms: RuleTerms) -> None:
        """Find all conflicts."""
        statements = self.statements()
        whole = self.put("summaries", summaries(statements))
        failing = self.hold(failing_edges(whole, terms.scope))
        keys = self.hold(suspects(statements, whole, failing, terms.scope))
        flagged = self.hold(statements.join(keys, [*_PLACE, "word"], "left_semi"), again=True)
        maybe = self.hold(candidates(statements, below(flagged), terms.scope), again=True)
        groups = self.put("groups", decided(maybe, terms))
        equal = self.put("equal", unsettled(statements, whole, terms))
        same = self.put("same", same_type(statements, whole, equal))
        self.put("conflicts", told(statements, flagged, groups, same, self.read("types")))

    def find_literal(self, terms: RuleTerms) -> None:
        """Find all conflicts by Definition 1."""
        joint = joint_statements(self.read("stated"), self.read("functions"), self.read("types"))
        joint = self.hold(joint, again=True)
        groups = self.put("groups", literal_groups(joint, terms))
        beside, alike = literal_same(joint, terms)
        self.put("equal", alike)
        same = self.put("same", beside)
        self.put("conflicts", told(joint, joint, groups, same, self.read("types")))

    def conflicts(self) -> dict[str, int]:
        """Count the conflicts: pairs of rules and functions."""
        product = F.col("rules") * F.col("others")
        sums = {
            str(row[0]): int(row[1]) for row in self.read("conflicts").groupBy("kind").agg(F.sum(product)).collect()
        }
        between = sums.get("up", 0)
        check_sum(between, {"down": sums.get("down", 0)})
        return {"conflicts": between + sums.get("same", 0) // 2, "between_types": between}
