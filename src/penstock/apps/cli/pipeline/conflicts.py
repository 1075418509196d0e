"""`penstock pipeline conflicts` and `conflicts-of`: find all conflicts between any number of rules, on Spark."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import reduce
from typing import Any, Final

import click
from pyspark.sql import DataFrame, SparkSession

from penstock.apps.cli.moderator.sources import Cast, RuleSourceOptions, load_rules
from penstock.apps.cli.pipeline.options import OutFolderOptions, Run, SparkOptions
from penstock.apps.cli.pipeline.output import plan_answer
from penstock.apps.cli.pipeline.runs import Done, execute, plan
from penstock.apps.cli.pipeline.spark_session import session as spark_session
from penstock.apps.cli.shared.commands import CommandAnswer, argument, command, option, option_class, output_option
from penstock.apps.cli.shared.describe import counted
from penstock.apps.cli.shared.files import check_target, write_bytes
from penstock.apps.cli.shared.options import html_option
from penstock.apps.cli.shared.session import CommandSession
from penstock.apps.cli.shared.terminal import Shown, grid_table
from penstock.errors import MalformedError, RefusedError
from penstock.model.instants import parse_instant
from penstock.model.names import TypeKey
from penstock.model.principals import Principal
from penstock.moderator.rules.rules import Mode, PublishRule
from penstock.moderator.rules.vocabulary import Vocabulary
from penstock.pipeline.conflicts.forms import RuleTerms
from penstock.pipeline.conflicts.input import (
    InputTable,
    StorageFormat,
    TableNames,
    read_rules,
    read_types,
    rules_frame,
    types_frame,
)
from penstock.pipeline.conflicts.report import ConflictReport, Pair, conflicts_html, opened
from penstock.pipeline.jobs.conflicts import Conflicts
from penstock.pipeline.pages import number_text

_ALL: Final = "all"


def witnesses_option() -> Any:
    """Declare `--witnesses`."""
    return option(
        "--witnesses",
        type=click.IntRange(0, 1_000),
        default=20,
        show_default=True,
        help="Name somebody affected, for this many of the listed conflicts.",
    )


@option_class
class _Conflicts:
    rules: str | None = argument(required=False, metavar="[RULES]")
    types: str | None = option(
        "--types", metavar="TABLE", help="Read event types from this table, besides those of the rule base."
    )
    source: RuleSourceOptions
    mode: str | None = option(
        "--mode", type=click.Choice([*Mode]), help="Set what counts as a conflict (default: as the rule base says)."
    )
    at: str | None = option(
        "--at",
        metavar="TIME",
        help=f"Compare rules that are in force at this time (default: now; `{_ALL}` for all rules).",
    )
    written: str | None = option(
        "--format",
        type=click.Choice([each.value for each in StorageFormat]),
        help="Read tables in this format (default: by the name's ending; folders are Parquet).",
    )
    limit: int = option(
        "--limit",
        type=click.IntRange(1, 1_000),
        default=20,
        show_default=True,
        help="Show at most this many rows of a table.",
    )
    witnesses: int = witnesses_option()
    fail_on_conflict: bool = option("--fail-on-conflict", is_flag=True, help="Exit with 1 if there is a conflict.")
    html: str | None = html_option()
    folder: OutFolderOptions
    spark: SparkOptions
    output: str = output_option()


@command(
    example="""
penstock pipeline conflicts rules.parquet --types types.parquet --file terms.yaml --out found --html conflicts.html
penstock pipeline conflicts --file rules.yaml --out found --fail-on-conflict
"""
)
def conflicts(session: CommandSession, options: _Conflicts) -> CommandAnswer:
    """Find all conflicts in a rule base of any size, in one job.

    RULES is a table: Parquet, JSON lines or CSV, or delta:PATH, iceberg:CATALOG#NAMESPACE.TABLE, parquet:PATH or
    table:NAME. The rule base, a file or a rule book in a store, defines which way
    rights extend and which attributes profiles have; its types and rules count too. Rows that are not rules go to
    quarantine, with the reason. The report shows who is in conflict, where, and which rules cause most of
    them. `penstock pipeline conflicts-of` lists those of one rule.
    """
    how = Run.of(options.folder, options.spark)
    form = None if options.written is None else StorageFormat(options.written)
    with _known(options.source) as known:
        of_rules, of_types = (
            None if found is None else InputTable.at(found[0], form, found[1])
            for found in (None if each is None else how.source(each) for each in (options.rules, options.types))
        )
        mode = None if options.mode is None else Mode(options.mode)
        job = known.job(of_rules, of_types, mode, _moment(options.at, session.now))
    if options.html is not None:
        check_target(options.html, overwrite=how.overwrite)
    with spark_session(how.cluster) as on:
        if how.dry_run:
            return plan_answer(job, plan(job, on.spark, how.place))
        if how.place is None:
            raise MalformedError("cli.usage", "no folder is given for the tables", hint="give --out")
        done = execute(job, on, how.place)
        with opened(on.spark, how.place.out) as stored:
            found = stored.report(options.limit, options.witnesses)
    if options.html is not None:
        page = conflicts_html(found, names=known.cast.names.petnames, at=session.now)
        write_bytes(options.html, page.encode(), overwrite=how.overwrite)
    error = None
    if options.fail_on_conflict and found.counts.get("conflicts"):
        error = RefusedError("conflicts.found", "rules conflict", hint="see the table")
    data = {**found.as_dict(), "out": how.out, "seconds": round(done.seconds, 3)}
    return CommandAnswer(data, _show(found, done, how.out), error)


@option_class
class _ConflictsOf:
    folder: str = argument(metavar="FOLDER")
    rule: str = argument(metavar="RULE")
    limit: int = option(
        "--limit", type=click.IntRange(1, 100_000), default=20, show_default=True, help="List at most this many."
    )
    witnesses: int = witnesses_option()
    spark: SparkOptions
    output: str = output_option()


@command(name="conflicts-of", example="penstock pipeline conflicts-of found r17")
def conflicts_of(options: _ConflictsOf) -> CommandAnswer:
    """List the conflicts of one rule.

    FOLDER is what `conflicts` wrote. A witness is somebody who satisfies one of the two rules and not the other.
    """
    cluster = options.spark.cluster()
    with spark_session(cluster) as on, opened(on.spark, cluster.path(options.folder)) as found:
        order = found.pairs(options.rule).orderBy("kind", "function", "rule", "other")
        rows = [row.asDict() for row in order.limit(options.limit + 1).collect()]
        shown = [_seen_from(options.rule, row) for row in rows[: options.limit]]
        seen = found.witnesses([Pair.of({**row, "rule": options.rule}) for row in shown[: options.witnesses]])
    people = [*seen, *([] for _ in shown[options.witnesses :])]
    with_witnesses = [
        {**row, "witnesses": [each.as_dict() for each in of]} for row, of in zip(shown, people, strict=True)
    ]
    columns = ("kind", "function", "other", "type", "attributes")
    lines = [
        [*(_cell(row[name]) for name in columns), "; ".join(map(str, of))]
        for row, of in zip(shown, people, strict=True)
    ]
    more = len(rows) > options.limit
    said = f"more than {counted(options.limit, 'conflict')}" if more else counted(len(rows), "conflict")
    data = {"rule": options.rule, "conflicts": with_witnesses, "more": more}
    return CommandAnswer(data, [grid_table((*columns, "witness"), lines), said])


def _seen_from(rule: str, row: dict[str, Any]) -> dict[str, object]:
    turned = row["other"] == rule
    kind = "down" if turned and row["kind"] == "up" else row["kind"]
    other, of = (row["rule"], row["type"]) if turned else (row["other"], row["other_type"])
    rest = {"attributes": row["attributes"], "certain": row["certain"]}
    return {"kind": kind, "function": row["function"], "other": other, "type": of, **rest}


# --- What is read ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Known:
    """A rule base: its vocabulary, and its own types and rules."""

    where: str
    vocabulary: Vocabulary
    mode: Mode
    rules: tuple[PublishRule, ...]
    cast: Cast

    def job(
        self, rules: InputTable | None, types: InputTable | None, mode: Mode | None, at: datetime | None
    ) -> Conflicts:
        """Return the job over these rules and those of tables."""
        people = self.vocabulary
        terms = RuleTerms(
            people.tree.scope, people.publishers.attributes, people.subscribers.attributes, mode or self.mode
        )
        naming = TableNames(self._who, self._what)

        def all_rules(spark: SparkSession) -> DataFrame:
            own = [rules_frame(spark, self.rules, naming)] if self.rules or rules is None else []
            return reduce(DataFrame.unionByName, [*own, *([] if rules is None else [read_rules(spark, rules)])])

        def all_types(spark: SparkSession) -> DataFrame:
            own = types_frame(spark, people.tree, naming)
            return own if types is None else own.unionByName(read_types(spark, types))

        source = " ".join(each for each in (self.where, rules and rules.path, types and types.path) if each)
        return Conflicts(all_rules, all_types, terms, source, at, None if rules is None else rules.files)

    def _who(self, principal: Principal) -> str:
        known = principal in self.cast.called or principal in self.cast.names.petnames
        return self.cast.show(principal) if known else str(principal)

    def _what(self, event: TypeKey) -> str:
        owners = {each.owner for each in self.vocabulary.tree.parents}
        return event.name if len(owners) == 1 else f"{self._who(event.owner)}/{event.name}"


@contextmanager
def _known(where: RuleSourceOptions) -> Iterator[_Known]:
    if where.file is not None:
        names = where.book.names.load()
        read = load_rules(where.file, names)
        yield _Known(where.file, read.vocabulary, read.mode, read.rules, Cast(names, read.names))
        return
    with where.book.opened() as (source, _):
        held = source.base.detector
        yield _Known(source.where, held.vocabulary, held.mode, tuple(held.rules.values()), source.cast)


def _moment(text: str | None, now: datetime) -> datetime | None:
    if text is None:
        return now
    return None if text == _ALL else parse_instant(text)


# --- What is answered ------------------------------------------------------------------------------------------------


def _show(found: ConflictReport, done: Done, out: str) -> Iterator[Shown]:
    for title, table in found.tables().items():
        if table.rows:
            yield title
            yield grid_table(table.columns, [[_cell(value) for value in row] for row in table.rows])
            if table.more:
                yield "and more"
            yield ""
    for reason, count in found.reasons.items():
        yield f"{reason}: {counted(count, 'row')}"
    counts = found.counts
    yield (
        f"{counted(counts.get('read', 0), 'row')} = {counted(counts.get('rules', 0), 'rule')} in force + "
        f"{counts.get('not_in_force', 0):,} not in force + {counts.get('quarantined', 0):,} in quarantine"
    )
    yield counted(counts.get("conflicts", 0), "conflict")
    yield f"wrote {out} in {done.seconds:.1f} s"


def _cell(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return number_text(value) if isinstance(value, int | float) else "" if value is None else str(value)
