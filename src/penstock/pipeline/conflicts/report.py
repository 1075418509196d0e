"""Report on a rule base: which parties' rules conflict, where, and which rules cause most conflicts.

    organisations   who states the two rules           one  other  conflicts
    subtrees        below which type the upper stands  subtree  between_types  same_type
    causes          whose rules conflict with most      rule  type  kind  function  others  attributes  …

A conflict is a pair of rules and the function that they conflict over; in the mode `literal`, a pair.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final, NamedTuple

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # the name that everybody knows it by

from penstock.errors import FailedError, MalformedError
from penstock.model.principals import Petnames
from penstock.model.profiles import Profile
from penstock.moderator.descriptions import person, plain_values
from penstock.moderator.detection.judge import QuickJudge, differences
from penstock.moderator.rules.rules import ConflictKind, Mode, Party, PublishRule, RuleFunction
from penstock.pipeline import pages
from penstock.pipeline.audit import ReportTable
from penstock.pipeline.conflicts.detection import BOTH, each_function, members, pairs
from penstock.pipeline.conflicts.forms import ANYWHERE, RuleTerms
from penstock.pipeline.conflicts.tables import PARTS, planned_for
from penstock.pipeline.outputs import Said, commits, counts_of, job_of, read_part
from penstock.selector import ALWAYS, Selector, parse

_PLACE: Final = ["node", "function"]
_CAUSES: Final = ("rule", "rules", "type", "kind", "function", "others", "other", "attributes", "certain", "stated")


@dataclass(frozen=True, slots=True)
class ConflictReport:
    """The conflicts of a rule base. `counts` are those of the job."""

    counts: Mapping[str, int]
    reasons: Mapping[str, int]
    mode: str
    organisations: ReportTable
    subtrees: ReportTable
    causes: ReportTable

    def tables(self) -> dict[str, ReportTable]:
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
class ConflictTables:
    """The tables of an output that a report is made of; `stated` is what `conflicts_answer.members` returns."""

    stated: DataFrame
    types: DataFrame
    groups: DataFrame
    same: DataFrame
    equal: DataFrame
    conflicts: DataFrame


def organisations(of: ConflictTables) -> DataFrame:
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


def subtrees(of: ConflictTables) -> DataFrame:
    """Return how many conflicts have their upper rule in which subtree: `subtree`, `between_types`, `same_type`."""
    product = F.col("rules") * F.col("others")

    def total(kind: ConflictKind, count: Column, name: str) -> Column:
        return F.coalesce(F.sum(F.when(F.col("kind") == str(kind), count)), F.lit(0)).cast("bigint").alias(name)

    tops = of.types.select(F.col("number").alias("node"), F.col("top").alias("subtree"))
    found = of.conflicts.where(F.col("kind") != str(ConflictKind.UP)).join(tops, "node")
    return found.groupBy("subtree").agg(
        total(ConflictKind.DOWN, product, "between_types"), total(ConflictKind.SAME, product / 2, "same_type")
    )


def causes(of: ConflictTables) -> DataFrame:
    """Return the statements of which each rule conflicts with others, those with most first."""
    order = [F.desc("others"), F.desc("rules"), *map(F.col, ("rule", "function", "kind"))]
    named = F.concat_ws(", ", "attributes").alias("attributes")
    return of.conflicts.select(*(named if name == "attributes" else name for name in _CAUSES)).orderBy(*order)


def report(of: ConflictTables, said: Mapping[str, object], mode: str, top: int) -> ConflictReport:
    """Collect a report with at most `top` rows per table. Raises `MalformedError` (`audit.top`)."""
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


def _collected(frame: DataFrame, top: int) -> ReportTable:
    rows = [tuple(_whole(value) for value in row) for row in frame.limit(top + 1).collect()]
    return ReportTable(tuple(frame.columns), tuple(rows[:top]), len(rows) > top)


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

    Raises `MalformedError` (`value.zone`, `value.range`) when `at` is not an instant.
    """
    shown = pages.PrincipalNames(names)

    def part(title: str, text: str, table: ReportTable, figure: str = "") -> str:
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
            "Between which parties",
            "Conflicts by who states the two rules.",
            found.organisations,
            pages.bars("Conflicts by organisations", by_pair, "b"),
        ),
        part(
            "Where",
            "Conflicts by the subtree in which the upper of the two types stands.",
            found.subtrees,
            pages.bars("Conflicts by subtree", by_tree, "b"),
        ),
        part(
            "Which rules",
            "Those that conflict with most others: on the same type, on types above (up) or below (down). The column "
            "“rules” says how many on the type state the same function.",
            found.causes,
            pages.bars("Rules that each of these conflicts with", by_rule, "b"),
        ),
    ]
    if found.reasons:
        aside = ReportTable(("reason", "rows"), tuple(found.reasons.items()))
        parts.append(part("Set aside", "Rows that are not rules or types, by reason.", aside))
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


# ----------------------------------------------------------------------------------------------------------------------
# The output of a run of `conflicts`: a report, the conflicts of one rule, and witnesses.
#
# A pair of rules is shown with a profile that one of them admits and the other does not, as the moderator does
# (`conflicts_between`). That is done for pairs that are shown, not for all that there are.


class Pair(NamedTuple):
    """Two rules that conflict over a function; `other` stands where `kind` says, seen from `rule`."""

    rule: str
    other: str
    kind: ConflictKind
    #: one of the two, or `conflicts_literal.BOTH`
    function: str

    @classmethod
    def of(cls, row: Mapping[str, object]) -> "Pair":
        """Return the pair that a row is about."""
        return cls(str(row["rule"]), str(row["other"]), ConflictKind(str(row["kind"])), str(row["function"]))


@dataclass(frozen=True, slots=True)
class Witness:
    """A profile that one of two rules admits, and the other does not."""

    function: RuleFunction
    profile: Profile
    admitted_by: str

    def __str__(self) -> str:
        """Describe them."""
        return f"{person(self.profile.values)}, by {self.admitted_by}"

    def as_dict(self) -> dict[str, object]:
        """Return the witness as plain data."""
        profile = plain_values(self.profile.values)
        return {"function": str(self.function), "profile": profile, "admitted_by": self.admitted_by}


@dataclass(frozen=True, slots=True)
class Found:
    """An output that is open."""

    tables: ConflictTables
    rules: DataFrame
    functions: DataFrame
    terms: RuleTerms
    said: Said

    def pairs(self, rule: str | None = None) -> DataFrame:
        """Return the conflicts one by one (`PAIRS`), of one rule or of all; to be used while the output is open.

        Raises `MalformedError` (`moderator.unknown-rule`).
        """
        of = self.tables
        if rule is not None and not of.stated.where(F.col("id") == rule).limit(1).collect():
            raise MalformedError("moderator.unknown-rule", f"no rule in force is called `{rule[:80]}`")
        return pairs(of.stated, of.groups, of.same, of.equal, rule)

    def report(self, top: int = 20, witnesses: int = 20) -> ConflictReport:
        """Return the report, with a witness for so many of the rules that it lists, if there is one at hand.

        Raises `MalformedError` (`audit.top`).
        """
        made = report(self.tables, self.said, str(self.terms.mode), top)
        listed = made.causes.as_dicts()[:witnesses]
        shown = [Pair.of({**row, "other": row["other"] or ""}) for row in listed]
        named = ["; ".join(map(str, found)) for found in self.witnesses(shown)]
        named += [""] * (len(made.causes.rows) - len(named))
        rows = tuple((*row, text) for row, text in zip(made.causes.rows, named, strict=True))
        return replace(made, causes=ReportTable((*made.causes.columns, "witness"), rows, made.causes.more))

    def witnesses(self, shown: Sequence[Pair]) -> list[list[Witness]]:
        """Return the witnesses of each pair; none if none was found in time, two if it is about both functions."""
        stated = self._stated({rule for pair in shown for rule in pair[:2]})
        judge = QuickJudge(self.terms.vocabulary, self.terms.mode)
        return [
            [] if pair.rule not in stated or pair.other not in stated else [*self._between(pair, stated, judge)]
            for pair in shown
        ]

    def _between(self, pair: Pair, stated: Mapping[str, PublishRule], judge: QuickJudge) -> Iterator[Witness]:
        for found in differences(stated[pair.rule], stated[pair.other], pair.kind, self.terms.scope, judge):
            if found.witness is not None and pair.function in (found.function, BOTH):
                by = pair.rule if found.admitted_by is Party.CANDIDATE else pair.other
                yield Witness(found.function, found.witness, by)

    def _stated(self, ids: Iterable[str]) -> dict[str, PublishRule]:
        """Return rules as the moderator has them, but for where they stand, and who publishes."""
        wanted = self.rules.sparkSession.createDataFrame([(each,) for each in sorted(ids)], "id string")
        asked = self.rules.join(F.broadcast(wanted), "id").select("id", each_function())
        texts = self.functions.where("reason IS NULL").select("function", "key", "stated")
        found: dict[str, dict[str, Selector]] = {}
        for row in texts.join(F.broadcast(asked), ["function", "key"]).collect():
            found.setdefault(row.id, {})[row.function] = parse(row.stated)
        who = ANYWHERE.owner
        return {
            rule: PublishRule(
                rule, ANYWHERE, (who,), who, of.get(RuleFunction.P, ALWAYS), of.get(RuleFunction.S, ALWAYS)
            )
            for rule, of in found.items()
        }


@contextmanager
def opened(spark: SparkSession, path: str) -> Iterator[Found]:
    """Open an output of `conflicts`. Raises `FailedError` (`pipeline.no-input`) where there is no complete one."""
    said = _said(spark, path)

    def read(part: str) -> DataFrame:
        return read_part(spark, path, part, [0], PARTS[part])

    terms = RuleTerms.from_dict(said.get("terms"))
    with planned_for(spark, counts_of(said).get("read", 0)) as few:
        rules, functions = read("rules").where("reason IS NULL AND in_force"), read("functions")
        stated = members(rules, functions, read("types"), literal=terms.mode is Mode.LITERAL)
        stated = stated.persist() if few else stated
        tables = ConflictTables(stated, *(read(part) for part in ("types", "groups", "same", "equal", "conflicts")))
        try:
            yield Found(tables, rules, functions, terms, said)
        finally:
            if few:
                stated.unpersist()


def _said(spark: SparkSession, path: str) -> Said:
    said = commits(spark, path) if job_of(spark, path) == "conflicts" else {}
    if not said:
        raise FailedError(
            "pipeline.no-input",
            f"`{path}` holds no conflicts",
            hint="give the folder that `penstock pipeline conflicts` wrote",
        )
    return said[0]
