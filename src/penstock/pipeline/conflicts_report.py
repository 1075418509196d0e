"""What a rule base comes to: between whom its conflicts are, where they stand, and which rules cause most of them.

    organisations   who states the two rules           one  other  conflicts
    subtrees        below which type the upper stands  subtree  between_types  same_type
    causes          whose rules collide with most      rule  type  kind  function  others  attributes  …

A conflict is a pair of rules and the function that they collide over; in the mode `literal`, a pair.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # the name that everybody knows it by

from penstock.errors import MalformedError
from penstock.model.principals import Petnames
from penstock.moderator.conflicts import Kind
from penstock.pipeline import pages
from penstock.pipeline.audit import Table

_PLACE: Final = ["node", "function"]
_CAUSES: Final = ("rule", "rules", "type", "kind", "function", "others", "other", "attributes", "certain", "stated")


@dataclass(frozen=True, slots=True)
class ConflictReport:
    """What was found in a rule base. `counts` are those of the job."""

    counts: Mapping[str, int]
    reasons: Mapping[str, int]
    mode: str
    organisations: Table
    subtrees: Table
    causes: Table

    def tables(self) -> dict[str, Table]:
        """Return all tables by name."""
        return {"organisations": self.organisations, "subtrees": self.subtrees, "causes": self.causes}

    def as_dict(self) -> dict[str, object]:
        """Return the report as plain data, for JSON."""
        return {
            "mode": self.mode,
            "counts": dict(self.counts),
            "reasons": dict(self.reasons),
            **{name: table.as_dicts() for name, table in self.tables().items()},
            "shortened": sorted(name for name, table in self.tables().items() if table.more),
        }


@dataclass(frozen=True, slots=True)
class Tables:
    """The tables of an output that a report is made of; `stated` is what `conflicts_answer.members` returns."""

    stated: DataFrame
    types: DataFrame
    groups: DataFrame
    same: DataFrame
    equal: DataFrame
    conflicts: DataFrame


def organisations(of: Tables) -> DataFrame:
    """Return how many conflicts there are between any two who state rules: `one`, `other`, `conflicts`."""
    told = of.conflicts.select(*_PLACE, "word").distinct()
    each = of.stated.join(told, [*_PLACE, "word"], "left_semi")
    who = each.groupBy(*_PLACE, "word", "path", F.col("stated_by").alias("who")).agg(F.count(F.lit(1)).alias("count"))
    found = _between(of.groups, who).unionByName(_beside(of.equal, who.join(of.same, [*_PLACE, "word"], "left_semi")))
    return found.groupBy("one", "other").agg(F.sum("conflicts").alias("conflicts"))


def _between(groups: DataFrame, who: DataFrame) -> DataFrame:
    upper = who.select(*_PLACE, F.col("word").alias("upper"), F.col("who").alias("over"), F.col("count").alias("m"))
    below = who.select(F.explode("path").alias("node"), "function", F.col("word").alias("lower"), "who", "count")
    lower = below.groupBy(*_PLACE, "lower", F.col("who").alias("under")).agg(F.sum("count").alias("n"))
    pairs = groups.select(*_PLACE, "upper", "lower").join(upper, [*_PLACE, "upper"]).join(lower, [*_PLACE, "lower"])
    return _ordered(pairs, F.col("m") * F.col("n"))


def _beside(equal: DataFrame, who: DataFrame) -> DataFrame:
    """Count on one type: all pairs, less those that mean the same; seen from both sides, and halved."""
    all_of = who.groupBy(*_PLACE, "who").agg(F.sum("count").alias("count"))
    every = _paired(all_of, all_of, _PLACE, 1)
    alike = _paired(who, who, [*_PLACE, "word"], -1)
    settled = equal.where("equal").select("function", "word", F.col("other").alias("partner"))
    mine = who.join(settled, ["function", "word"]).select(*_PLACE, F.col("partner").alias("word"), "who", "count")
    judged = _paired(mine, who, [*_PLACE, "word"], -1)
    seen = every.unionByName(alike).unionByName(judged)
    return _ordered(seen.groupBy("over", "under").agg(F.sum("n").alias("n")), F.col("n") / 2).where("conflicts > 0")


def _paired(one: DataFrame, other: DataFrame, keys: list[str], sign: int) -> DataFrame:
    mine = one.select(*keys, F.col("who").alias("over"), F.col("count").alias("m"))
    theirs = other.select(*keys, F.col("who").alias("under"), F.col("count").alias("k"))
    return mine.join(theirs, keys).select("over", "under", (F.col("m") * F.col("k") * sign).alias("n"))


def _ordered(pairs: DataFrame, count: Column) -> DataFrame:
    return pairs.select(
        F.least("over", "under").alias("one"), F.greatest("over", "under").alias("other"), count.alias("conflicts")
    )


def subtrees(of: Tables) -> DataFrame:
    """Return how many conflicts have their upper rule in which subtree: `subtree`, `between_types`, `same_type`."""
    product = F.col("rules") * F.col("others")

    def total(kind: Kind, count: Column, name: str) -> Column:
        return F.coalesce(F.sum(F.when(F.col("kind") == str(kind), count)), F.lit(0)).cast("bigint").alias(name)

    tops = of.types.select(F.col("number").alias("node"), F.col("top").alias("subtree"))
    found = of.conflicts.where(F.col("kind") != str(Kind.UP)).join(tops, "node")
    return found.groupBy("subtree").agg(
        total(Kind.DOWN, product, "between_types"), total(Kind.SAME, product / 2, "same_type")
    )


def causes(of: Tables) -> DataFrame:
    """Return the statements of which each rule collides with others, those with most first."""
    order = [F.desc("others"), F.desc("rules"), *map(F.col, ("rule", "function", "kind"))]
    named = F.concat_ws(", ", "attributes").alias("attributes")
    return of.conflicts.select(*(named if name == "attributes" else name for name in _CAUSES)).orderBy(*order)


def report(of: Tables, said: Mapping[str, object], mode: str, top: int) -> ConflictReport:
    """Collect what a report shows, at most `top` rows a table. Raises `MalformedError` (`audit.top`)."""
    if top < 1:
        raise MalformedError("audit.top", "a table has one row at least")
    between = organisations(of).orderBy(F.desc("conflicts"), "one", "other")
    where = subtrees(of).orderBy(F.desc(F.col("between_types") + F.col("same_type")), "subtree")
    return ConflictReport(
        _numbers(said.get("counts")),
        _numbers(said.get("reasons")),
        mode,
        _collected(between, top),
        _collected(where, top),
        _collected(causes(of), top),
    )


def _numbers(found: object) -> dict[str, int]:
    return {str(name): int(count) for name, count in found.items()} if isinstance(found, dict) else {}


def _collected(frame: DataFrame, top: int) -> Table:
    rows = [tuple(_whole(value) for value in row) for row in frame.limit(top + 1).collect()]
    return Table(tuple(frame.columns), tuple(rows[:top]), len(rows) > top)


def _whole(value: object) -> object:
    return int(value) if isinstance(value, float) else value


# --- As a page -------------------------------------------------------------------------------------------------------


def conflicts_html(
    found: ConflictReport,
    *,
    names: Petnames | None = None,
    title: str = "Conflicts between rules",
    at: datetime | None = None,
) -> str:
    """Return a report as a page; `names` is for display, `at` when it was made.

    Raises `MalformedError` (`value.zone`, `value.range`) when `at` is no instant.
    """
    shown = pages.Names(names)

    def part(title: str, text: str, table: Table, figure: str = "") -> str:
        more = " There is more than is shown." if table.more else ""
        rows = [tuple(shown.principal(cell) if isinstance(cell, str) else cell for cell in row) for row in table.rows]
        return pages.section(
            title, text, figure, pages.table(f"{title}.{more}", table.columns, rows) if rows else "<p>None.</p>"
        )

    by_pair = [
        (f"{shown.principal(str(row[0]))} – {shown.principal(str(row[1]))}", pages.number(row[2]))
        for row in found.organisations.rows
    ]
    by_tree = [
        (shown.principal(str(row[0])), pages.number(row[1]) + pages.number(row[2])) for row in found.subtrees.rows
    ]
    by_rule = [
        (f"{row['rule']} on {shown.principal(str(row['type']))}: {row['kind']}", pages.number(row["others"]))
        for row in found.causes.as_dicts()
    ]
    parts = [
        part(
            "Between whom",
            "Conflicts by who states the two rules.",
            found.organisations,
            pages.bars("f1", "Conflicts by organisations", by_pair, "b"),
        ),
        part(
            "Where",
            "Conflicts by the subtree in which the upper of the two types stands.",
            found.subtrees,
            pages.bars("f2", "Conflicts by subtree", by_tree, "b"),
        ),
        part(
            "Which rules",
            "Those that collide with most others: on the same type, on types above (up) or below (down). `rules` says "
            "how many on the type state the same function.",
            found.causes,
            pages.bars("f3", "Rules that each of these collides with", by_rule, "b"),
        ),
    ]
    if found.reasons:
        aside = Table(("reason", "rows"), tuple(found.reasons.items()))
        parts.append(part("Set aside", "Rows that are no rules or no types, by reason.", aside))
    facts = {
        name: found.counts.get(key, 0)
        for name, key in {
            "rules in force": "rules",
            "event types": "types",
            "conflicts": "conflicts",
            "of them between types": "between_types",
            "rows set aside": "quarantined",
        }.items()
    }
    lead = f"{found.counts.get('rules', 0):,} rules compared in the mode {found.mode}"
    return pages.page(title, lead, facts, parts, pages.made(at))
