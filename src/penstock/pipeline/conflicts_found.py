"""What a run of `conflicts` has found, opened: a report, the conflicts of one rule, and for whom they collide.

A pair of rules is shown with somebody whom one of them admits and the other does not, as the moderator names him
(`moderator.collide`). That is done for pairs that are shown, not for all that there are.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # the name that everybody knows it by

from penstock.errors import FailedError, MalformedError
from penstock.model.profiles import Profile
from penstock.moderator.collide import differences
from penstock.moderator.conflicts import Function, Kind, Mode, Party
from penstock.moderator.facts import plain_values
from penstock.moderator.judge import QuickJudge
from penstock.moderator.rules import PublishRule
from penstock.moderator.sentences import person
from penstock.pipeline.audit import Table
from penstock.pipeline.commits import Said, commits, counts_of
from penstock.pipeline.conflicts_answer import each_function, members, pairs
from penstock.pipeline.conflicts_literal import BOTH
from penstock.pipeline.conflicts_planning import planned_for
from penstock.pipeline.conflicts_report import ConflictReport, Tables, report
from penstock.pipeline.conflicts_tables import PARTS
from penstock.pipeline.conflicts_terms import ANYWHERE, Terms
from penstock.pipeline.outputs import job_of, read_part
from penstock.selector import ALWAYS, Selector, parse


class Pair(NamedTuple):
    """Two rules that collide over a function; `other` stands where `kind` says, seen from `rule`."""

    rule: str
    other: str
    kind: Kind
    #: one of the two, or `conflicts_literal.BOTH`
    function: str

    @classmethod
    def of(cls, row: Mapping[str, object]) -> "Pair":
        """Return the pair that a row is about."""
        return cls(str(row["rule"]), str(row["other"]), Kind(str(row["kind"])), str(row["function"]))


@dataclass(frozen=True, slots=True)
class Witness:
    """Somebody whom one of two rules admits, and the other does not."""

    function: Function
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

    tables: Tables
    rules: DataFrame
    functions: DataFrame
    terms: Terms
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
        return replace(made, causes=Table((*made.causes.columns, "witness"), rows, made.causes.more))

    def witnesses(self, shown: Sequence[Pair]) -> list[list[Witness]]:
        """Return for each pair for whom they collide; nobody where none was found in time, two if it is about both."""
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
            rule: PublishRule(rule, ANYWHERE, (who,), who, of.get(Function.P, ALWAYS), of.get(Function.S, ALWAYS))
            for rule, of in found.items()
        }


@contextmanager
def opened(spark: SparkSession, path: str) -> Iterator[Found]:
    """Open an output of `conflicts`. Raises `FailedError` (`pipeline.no-input`) where there is no complete one."""
    said = _said(spark, path)

    def read(part: str) -> DataFrame:
        return read_part(spark, path, part, [0], PARTS[part])

    terms = Terms.from_dict(said.get("terms"))
    with planned_for(spark, counts_of(said).get("read", 0)) as few:
        rules, functions = read("rules").where("reason IS NULL AND in_force"), read("functions")
        stated = members(rules, functions, read("types"), literal=terms.mode is Mode.LITERAL)
        stated = stated.persist() if few else stated
        tables = Tables(stated, *(read(part) for part in ("types", "groups", "same", "equal", "conflicts")))
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
