"""`penstock pipeline conflicts` and `conflicts-of`: all conflicts in rules of any number, on Spark."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import reduce
from typing import Any, Final

import click
from pyspark.sql import DataFrame, SparkSession

from penstock.apps.cli.moderator.sources import Cast, load_rules, opened_book, source_options
from penstock.apps.cli.pipeline.options import Run, cluster_of, html_option, out_options, spark_options
from penstock.apps.cli.pipeline.output import show_plan
from penstock.apps.cli.pipeline.runs import Done, execute, plan
from penstock.apps.cli.pipeline.spark_session import session as spark_session
from penstock.apps.cli.shared import options
from penstock.apps.cli.shared import terminal as paint
from penstock.apps.cli.shared.describe import counted
from penstock.apps.cli.shared.files import check_target, write_bytes
from penstock.apps.cli.shared.groups import example
from penstock.apps.cli.shared.names import load_names
from penstock.apps.cli.shared.options import JSON
from penstock.apps.cli.shared.session import CommandSession, say, say_json
from penstock.errors import MalformedError, RefusedError
from penstock.model.instants import parse_instant
from penstock.model.names import TypeKey
from penstock.model.principals import Principal
from penstock.moderator.rules.conflicts import Mode
from penstock.moderator.rules.rules import PublishRule
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
from penstock.pipeline.outputs.pages import number_text

_ALL: Final = "all"


def format_option(function: options.F) -> options.F:
    """Add `--format`."""
    return click.option(
        "--format",
        "written",
        type=click.Choice([each.value for each in StorageFormat]),
        help="How tables are stored (default: as their names end; folders are Parquet).",
    )(function)


def witnesses_option(function: options.F) -> options.F:
    """Add `--witnesses`."""
    return click.option(
        "--witnesses",
        type=click.IntRange(0, 1_000),
        default=20,
        show_default=True,
        help="Name somebody for whom rules collide, for so many of those that are listed.",
    )(function)


@click.command()
@click.argument("rules", required=False, metavar="[RULES]")
@click.option("--types", metavar="TABLE", help="A table of event types, besides those of the rule base.")
@source_options
@click.option("--mode", type=click.Choice([*Mode]), help="What counts as a conflict (default: as the rule base says).")
@click.option("--at", metavar="TIME", help=f"When rules are to be in force (default: now; `{_ALL}` for all of them).")
@format_option
@click.option("--top", type=click.IntRange(1, 1_000), default=20, show_default=True, help="Rows of a table.")
@witnesses_option
@click.option("--fail-on-conflict", is_flag=True, help="Exit with 1 if there is a conflict.")
@html_option
@out_options(required=True)
@spark_options
@options.output_option()
@click.pass_obj
@example(
    """
penstock pipeline conflicts rules.parquet --types types.parquet --file terms.yaml --out found --html conflicts.html
penstock pipeline conflicts --file rules.yaml --out found --fail-on-conflict
"""
)
def conflicts(  # noqa: PLR0913  # one argument an option
    session: CommandSession,
    /,
    *,
    rules: str | None,
    types: str | None,
    file: str | None,
    store_url: str | None,
    ledger: str,
    names_file: str | None,
    mode: str | None,
    at: str | None,
    written: str | None,
    top: int,
    witnesses: int,
    fail_on_conflict: bool,
    html: str | None,
    output: str,
    **rest: Any,
) -> None:
    """Find all conflicts in a rule base of any size, in one job.

    RULES is a table: Parquet, JSON lines or CSV. The rule base, a file or a rule book in a store, says which way rights
    reach and which attributes profiles have; its types and rules count too. Rows that are no rules go to quarantine,
    with the reason. The report says between whom the conflicts are, where, and which rules cause most of them;
    `penstock pipeline conflicts-of` lists those of one rule.
    """
    how = Run.of(output, stream=False, drain=False, files=1, **rest)
    form = None if written is None else StorageFormat(written)
    with _known(file, store_url, ledger, names_file) as known:
        of_rules, of_types = (
            None if each is None else InputTable.at(how.cluster.path(each), form) for each in (rules, types)
        )
        job = known.job(of_rules, of_types, None if mode is None else Mode(mode), _moment(at, session.now))
    if html is not None:
        check_target(html, overwrite=how.overwrite)
    with spark_session(how.cluster) as on:
        if how.dry_run:
            show_plan(job, plan(job, on.spark, how.place), output)
            return
        if how.place is None:
            raise MalformedError("cli.usage", "nothing says where the tables are to be written", hint="give --out")
        done = execute(job, on, how.place)
        with opened(on.spark, how.place.out) as stored:
            found = stored.report(top, witnesses)
    if html is not None:
        page = conflicts_html(found, names=known.cast.names.petnames, at=session.now)
        write_bytes(html, page.encode(), overwrite=how.overwrite)
    _show(found, done, how.out, output)
    if fail_on_conflict and found.counts.get("conflicts"):
        raise RefusedError("conflicts.found", "rules collide", hint="see the table")


@click.command("conflicts-of")
@click.argument("folder", metavar="FOLDER")
@click.argument("rule", metavar="RULE")
@click.option("--limit", type=click.IntRange(1, 100_000), default=20, show_default=True, help="So many at most.")
@witnesses_option
@spark_options
@options.output_option()
@example("penstock pipeline conflicts-of found r17")
def conflicts_of(*, folder: str, rule: str, limit: int, witnesses: int, output: str, **where: Any) -> None:
    """List the conflicts of one rule, one by one.

    FOLDER is what `conflicts` wrote. A witness is somebody whom one of the two rules admits, and the other does not.
    """
    cluster = cluster_of(**where)
    with spark_session(cluster) as on, opened(on.spark, cluster.path(folder)) as found:
        order = found.pairs(rule).orderBy("kind", "function", "rule", "other")
        rows = [row.asDict() for row in order.limit(limit + 1).collect()]
        shown = [_seen_from(rule, row) for row in rows[:limit]]
        seen = found.witnesses([Pair.of({**row, "rule": rule}) for row in shown[:witnesses]])
    people = [*seen, *([] for _ in shown[witnesses:])]
    if output == JSON:
        told = [{**row, "witnesses": [each.as_dict() for each in of]} for row, of in zip(shown, people, strict=True)]
        say_json({"rule": rule, "conflicts": told, "more": len(rows) > limit})
        return
    columns = ("kind", "function", "other", "type", "attributes")
    lines = [
        [*(_cell(row[name]) for name in columns), "; ".join(map(str, of))]
        for row, of in zip(shown, people, strict=True)
    ]
    paint.grid((*columns, "witness"), lines)
    say(f"more than {counted(limit, 'conflict')}" if len(rows) > limit else counted(len(rows), "conflict"))


def _seen_from(rule: str, row: dict[str, Any]) -> dict[str, object]:
    turned = row["other"] == rule
    kind = "down" if turned and row["kind"] == "up" else row["kind"]
    other, of = (row["rule"], row["type"]) if turned else (row["other"], row["other_type"])
    rest = {"attributes": row["attributes"], "certain": row["certain"]}
    return {"kind": kind, "function": row["function"], "other": other, "type": of, **rest}


# --- What is read ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Known:
    """A rule base: what rules may speak about, and the types and rules that it has itself."""

    where: str
    vocabulary: Vocabulary
    mode: Mode
    rules: tuple[PublishRule, ...]
    cast: Cast

    def job(
        self, rules: InputTable | None, types: InputTable | None, mode: Mode | None, at: datetime | None
    ) -> Conflicts:
        """Return the job over these and those of tables."""
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
        return Conflicts(all_rules, all_types, terms, source, at, None if rules is None else rules.path)

    def _who(self, principal: Principal) -> str:
        known = principal in self.cast.called or principal in self.cast.names.petnames
        return self.cast.show(principal) if known else str(principal)

    def _what(self, event: TypeKey) -> str:
        owners = {each.owner for each in self.vocabulary.tree.parents}
        return event.name if len(owners) == 1 else f"{self._who(event.owner)}/{event.name}"


@contextmanager
def _known(file: str | None, store_url: str | None, ledger: str, names_file: str | None) -> Iterator[_Known]:
    names = load_names(names_file)
    if file is not None:
        read = load_rules(file, names)
        yield _Known(file, read.vocabulary, read.mode, read.rules, Cast(names, read.names))
        return
    with opened_book(store_url=store_url, ledger=ledger, names_file=names_file) as (source, _):
        held = source.base.detector
        yield _Known(source.where, held.vocabulary, held.mode, tuple(held.rules.values()), source.cast)


def _moment(text: str | None, now: datetime) -> datetime | None:
    if text is None:
        return now
    return None if text == _ALL else parse_instant(text)


# --- What is answered ------------------------------------------------------------------------------------------------


def _show(found: ConflictReport, done: Done, out: str, output: str) -> None:
    if output == JSON:
        say_json({**found.as_dict(), "out": out, "seconds": round(done.seconds, 3)})
        return
    for title, table in found.tables().items():
        if table.rows:
            say(title)
            paint.grid(table.columns, [[_cell(value) for value in row] for row in table.rows])
            if table.more:
                say("and more")
            say()
    for reason, count in found.reasons.items():
        say(f"{reason}: {counted(count, 'row')}")
    counts = found.counts
    say(
        f"{counted(counts.get('read', 0), 'row')} = {counted(counts.get('rules', 0), 'rule')} in force + "
        f"{counts.get('not_in_force', 0):,} not in force + {counts.get('quarantined', 0):,} in quarantine"
    )
    say(counted(counts.get("conflicts", 0), "conflict"))
    say(f"wrote {out} in {done.seconds:.1f} s")


def _cell(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return number_text(value) if isinstance(value, int | float) else "" if value is None else str(value)
