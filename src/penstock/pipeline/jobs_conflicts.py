"""The job `conflicts`: all conflicts in a table of rules.

    rules/       every row that was read, with the reason where it is no rule
    types/       the tree: a number for each type, and the types above it that have rules
    functions/   every text that was stated, and what it means
    statements/  what is stated on each type, by how many rules
    groups/      statements, and what collides with them below
    same/        statements that others on the same type differ from
    equal/       functions that were asked about by hand, as it were
    conflicts/   all conflicts from each side
    quarantine/  what is no rule, and no type

Every table is written once and read by what comes after it, so that nothing is computed twice.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # the name that everybody knows it by
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from penstock.errors import FailedError, MalformedError
from penstock.moderator.conflicts import Mode
from penstock.pipeline.conflicts import (
    EQUAL,
    GROUPS,
    SAME,
    STATEMENTS,
    below,
    candidates,
    decided,
    failing_edges,
    same_type,
    summaries,
    suspects,
    unsettled,
)
from penstock.pipeline.conflicts_answer import CONFLICTS, members, pairs, told
from penstock.pipeline.conflicts_forms import FUNCTIONS, Terms, read_functions
from penstock.pipeline.conflicts_input import QUARANTINE, check_rules, check_types
from penstock.pipeline.conflicts_literal import joint_statements, literal_groups, literal_same
from penstock.pipeline.conflicts_report import ConflictReport, Tables, report
from penstock.pipeline.conflicts_tree import NUMBERED, TREE, climb, number_types
from penstock.pipeline.jobs import Output, Said, Streaming, check_sum, complete, job_of, read_part
from penstock.pipeline.layout import commits

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
_STATED: Final = StructType(
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
    "stated": _STATED,
    "statements": STATEMENTS,
    "summaries": SUMMARIES,
    "groups": GROUPS,
    "same": SAME,
    "equal": EQUAL,
    "conflicts": CONFLICTS,
    "quarantine": QUARANTINE,
}
_PLACE: Final = ["node", "function"]
_PARTITIONS: Final = "spark.sql.shuffle.partitions"
_ROWS_A_PART: Final = 250_000
Source = Callable[[SparkSession], DataFrame]
"""How a table is got from a session."""


@dataclass(frozen=True, slots=True)
class Conflicts:
    """The job `conflicts`, over tables of rules (`conflicts_input.RULES`) and of types (`TYPES`).

    `at` is the time at which rules are in force; without it all are. No stream: a rule may collide with any other.
    """

    rules: Source
    types: Source
    terms: Terms
    source: str
    at: datetime | None = None
    files: str | None = None
    name: str = "conflicts"
    parts: tuple[str, ...] = tuple(PARTS)

    def all(self, spark: SparkSession) -> DataFrame:
        """Return all rules."""
        return self.rules(spark)

    def arriving(self, spark: SparkSession, streaming: Streaming) -> DataFrame:  # noqa: ARG002  # as all jobs
        """Refuse. Raises `FailedError` (`conflicts.stream`)."""
        raise _no_stream()

    def arrived(self, batch: DataFrame) -> DataFrame:  # noqa: ARG002  # as all jobs
        """Refuse. Raises `FailedError` (`conflicts.stream`)."""
        raise _no_stream()

    def planned(self, events: DataFrame) -> tuple[DataFrame, ...]:
        """Return what would be read; the rest is planned table by table."""
        return (check_rules(events, self.at),)

    def step(self, events: DataFrame, batch: int, output: Output) -> Said:
        """Find all conflicts."""
        with _wide(events), _bench(output, batch) as bench:
            rows = bench.rules(events, self)
            bench.tree(self.types(output.spark), self.terms)
            counts = bench.set_aside()
            if self.terms.mode is Mode.LITERAL:
                bench.find_literal(self.terms)
            else:
                bench.find(self.terms)
            counts |= bench.counted()
        check_sum(rows, {name: counts[name] for name in ("rules", "not_in_force", "quarantined")})
        return {"counts": {"read": rows, **counts}, "reasons": bench.reasons, "mode": str(self.terms.mode)}


def _no_stream() -> FailedError:
    return FailedError(
        "conflicts.stream",
        "conflicts are looked for in all rules at once",
        hint="run the job again when rules have changed",
    )


@contextmanager
def _wide(rows: DataFrame) -> Iterator[None]:
    """Let shuffles have so many parts that none of them has to go to disk to be sorted; Spark joins small ones."""
    spark = rows.sparkSession
    before = spark.conf.get(_PARTITIONS, None)
    wanted = max(int(before or 0), -(-rows.count() // _ROWS_A_PART))
    spark.conf.set(_PARTITIONS, str(wanted))
    try:
        yield
    finally:
        if before is None:
            spark.conf.unset(_PARTITIONS)
        else:
            spark.conf.set(_PARTITIONS, before)


@contextmanager
def _bench(output: Output, batch: int) -> Iterator["_Bench"]:
    bench = _Bench(output, batch)
    try:
        yield bench
    finally:
        for frame in bench.held:
            frame.unpersist()


@dataclass(slots=True)
class _Bench:
    """The tables of a run, one after the other."""

    output: Output
    batch: int
    reasons: dict[str, int] = field(default_factory=dict)
    #: frames that are kept in memory until the end
    held: list[DataFrame] = field(default_factory=list)

    def put(self, part: str, frame: DataFrame) -> DataFrame:
        """Write a table, and return it as it is read."""
        self.output.write(frame, part, self.batch)
        return self.read(part)

    def read(self, part: str) -> DataFrame:
        """Return a table that was written."""
        return read_part(self.output.spark, self.output.path, part, [self.batch], PARTS[part])

    def hold(self, frame: DataFrame) -> DataFrame:
        """Compute a frame now: what is small is known to be so, and sent to all tasks where it is joined."""
        kept = frame.persist()
        kept.count()
        self.held.append(kept)
        return kept

    # --- what is read -------------------------------------------------------------------------------------------

    def rules(self, rows: DataFrame, job: Conflicts) -> int:
        """Check all rows, and return how many there are."""
        checked = check_rules(rows, job.at)
        good = checked.where("reason IS NULL AND in_force")
        texts = good.select(
            F.inline(F.array(*(F.struct(F.lit(f).alias("function"), F.col(f).alias("text")) for f in _BOTH)))
        )
        functions = self.put("functions", read_functions(texts.distinct(), job.terms))
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
        # What is not in force is not looked at any further.
        later = F.coalesce(F.when(F.col("twice"), F.lit("moderator.duplicate-id")), "fnc_p_reason", "fnc_s_reason")
        reason = F.coalesce("reason", F.when(F.col("in_force"), later))
        words = F.when(F.col("reason").isNull(), F.coalesce("fnc_p_words", "fnc_s_words"))
        table = judged.withColumns({"reason": reason, "words": words})
        table = table.withColumn("original", F.when(F.col("reason").isNotNull(), F.col("original")))
        return self.put("rules", table.select(*RULES.names)).count()

    def tree(self, rows: DataFrame, terms: Terms) -> None:
        """Build the tree of types."""
        checked = check_types(rows)
        once = (
            checked.where("reason IS NULL")
            .groupBy("type")
            .agg(
                F.count(F.lit(1)).alias("count"),
                F.first("parent").alias("parent"),
                F.first("original").alias("original"),
            )
        )
        numbered = self.put("numbers", number_types(once.where("count = 1")))
        good = self.read("rules").where("reason IS NULL AND in_force")
        if terms.mode is not Mode.LITERAL:
            good = good.withColumn("alone", F.lit(None).cast("string"))
        counted = good.groupBy("event", "key_p", "key_s", "alone").agg(
            F.count(F.lit(1)).alias("rules"), F.min("id").alias("example")
        )
        stated = self.put("stated", counted.select(*_STATED.names))
        climbed = climb(numbered, stated.select(F.col("event").alias("type")).distinct())
        self.put("types", climbed.tree)
        lost = climbed.lost.select("reason", F.to_json(F.struct("type", "parent")).alias("original"))
        twice = once.where("count > 1").select(F.lit("tree.duplicate").alias("reason"), "original")
        bad = checked.where("reason IS NOT NULL").select("reason", "original")
        self._types_aside = self.hold(lost.unionByName(twice).unionByName(bad))

    _types_aside: DataFrame = field(init=False)

    def set_aside(self) -> dict[str, int]:
        """Write what is no rule and no type, and count everything that was read."""
        rules, types = self.read("rules"), self.read("types")
        known = types.select(F.col("type").alias("event"))
        unknown = self.hold(self.read("stated").select("event").distinct().join(known, "event", "left_anti"))
        lacking = rules.where("reason IS NULL AND in_force").join(unknown, "event", "left_semi")
        homeless = lacking.select(
            F.lit("moderator.unknown-type").alias("reason"),
            F.lit("there is no such event type").alias("words"),
            F.lit("rules").alias("source"),
            F.to_json(F.struct("id", "event", "stated_by")).alias("original"),
        )
        bad = rules.where("reason IS NOT NULL").select("reason", "words", F.lit("rules").alias("source"), "original")
        of_types = self._types_aside.select(
            "reason", F.lit(None).cast("string").alias("words"), F.lit("types").alias("source"), "original"
        )
        aside = self.put("quarantine", bad.unionByName(homeless).unionByName(of_types))
        found = {(str(row[0]), str(row[1])): int(row[2]) for row in aside.groupBy("source", "reason").count().collect()}
        for (_, reason), count in found.items():
            self.reasons[reason] = self.reasons.get(reason, 0) + count
        quarantined = sum(count for (source, _), count in found.items() if source == "rules")
        idle = rules.where("reason IS NULL AND NOT in_force").count()
        in_force = self.read("stated").join(unknown, "event", "left_anti").agg(F.coalesce(F.sum("rules"), F.lit(0)))
        return {
            "rules": int(in_force.collect()[0][0]),
            "not_in_force": idle,
            "quarantined": quarantined,
            "types": types.count(),
            "types_quarantined": sum(count for (source, _), count in found.items() if source == "types"),
        }

    # --- what is found ------------------------------------------------------------------------------------------

    def statements(self) -> DataFrame:
        """Put rules together that say the same on the same type."""
        words = self.read("functions").where("reason IS NULL")
        # A function of which all rules mean the same cannot collide.
        varied = [
            str(row[0])
            for row in words.groupBy("function").agg(F.count_distinct("word").alias("n")).where("n > 1").collect()
        ]
        tree = self.read("types").select(F.col("type").alias("event"), F.col("number").alias("node"), "path")
        placed = self.read("stated").join(tree, "event")
        each = F.array(*(F.struct(F.lit(f).alias("function"), F.col(f"key_{f[-1]}").alias("key")) for f in _BOTH))
        spread = placed.select("node", "path", "rules", "example", F.inline(each)).where(F.col("function").isin(varied))
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
        return self.put("statements", found.select(*STATEMENTS.names))

    def find(self, terms: Terms) -> None:
        """Find all conflicts."""
        statements = self.statements()
        whole = self.put("summaries", summaries(statements).select(*SUMMARIES.names))
        failing = self.hold(failing_edges(whole, terms.scope))
        keys = self.hold(suspects(statements, whole, failing, terms.scope))
        flagged = self.hold(statements.join(keys, [*_PLACE, "word"], "left_semi"))
        maybe = self.hold(candidates(statements, below(flagged), terms.scope))
        groups = self.put("groups", decided(maybe, terms).select(*GROUPS.names))
        equal = self.put("equal", unsettled(statements, whole, terms).select(*EQUAL.names))
        same = self.put("same", same_type(statements, whole, equal).select(*SAME.names))
        self.put("conflicts", told(statements, flagged, groups, same, self.read("types")).select(*CONFLICTS.names))

    def find_literal(self, terms: Terms) -> None:
        """Find all conflicts by Definition 1."""
        joint = self.hold(joint_statements(self.read("stated"), self.read("functions"), self.read("types")))
        groups = self.put("groups", literal_groups(joint, terms).select(*GROUPS.names))
        beside, alike = literal_same(joint, terms)
        self.put("equal", alike.select(*EQUAL.names))
        same = self.put("same", beside.select(*SAME.names))
        self.put("conflicts", told(joint, joint, groups, same, self.read("types")).select(*CONFLICTS.names))

    def counted(self) -> dict[str, int]:
        """Count what was found: pairs of rules and functions that collide."""
        product = F.col("rules") * F.col("others")
        sums = {
            str(row[0]): int(row[1]) for row in self.read("conflicts").groupBy("kind").agg(F.sum(product)).collect()
        }
        between = sums.get("up", 0)
        check_sum(between, {"down": sums.get("down", 0)})
        return {"conflicts": between + sums.get("same", 0) // 2, "between_types": between}


_BOTH: Final = ("fnc_p", "fnc_s")


def found_pairs(spark: SparkSession, path: str, rule: str | None = None) -> DataFrame:
    """Return the conflicts that an output holds one by one (`PAIRS`), of one rule or of all.

    Raises `FailedError` (`pipeline.no-input`) where there is no complete output, `MalformedError`
    (`moderator.unknown-rule`).
    """
    of = found_tables(spark, path)
    if rule is not None and not of.stated.where(F.col("id") == rule).limit(1).collect():
        raise MalformedError("moderator.unknown-rule", f"no rule in force is called `{rule[:80]}`")
    return pairs(of.stated, of.groups, of.same, of.equal, rule)


def found_report(spark: SparkSession, path: str, top: int = 20) -> ConflictReport:
    """Return the report on an output. Raises `FailedError` (`pipeline.no-input`), `MalformedError` (`audit.top`)."""
    of = found_tables(spark, path)
    (said,) = commits(spark, path).values()
    return report(of, said, top)


def found_tables(spark: SparkSession, path: str) -> Tables:
    """Return the tables of an output. Raises `FailedError` (`pipeline.no-input`)."""
    if job_of(spark, path) != "conflicts":
        raise FailedError(
            "pipeline.no-input",
            f"`{path}` holds no conflicts",
            hint="give the folder that `penstock pipeline conflicts` wrote",
        )
    batches = complete(spark, path)

    def read(part: str) -> DataFrame:
        return read_part(spark, path, part, batches, PARTS[part])

    literal = any(said.get("mode") == Mode.LITERAL for said in commits(spark, path).values())
    good = read("rules").where("reason IS NULL AND in_force")
    stated = members(good, read("functions"), read("types"), literal=literal)
    return Tables(stated, *(read(part) for part in ("types", "groups", "same", "equal", "conflicts")))
