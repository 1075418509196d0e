"""`penstock policy sql`: a reader's rights as views, row filters and column masks of other engines."""

from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import click

from penstock.apps.cli.shared.commands import CommandAnswer, command, option, option_class, output_option
from penstock.apps.cli.shared.events import split_pair
from penstock.apps.cli.shared.session import CommandSession
from penstock.errors import MalformedError, RefusedError
from penstock.pipeline.enforce.manifest import reader_program
from penstock.pipeline.enforce.policy import PipelinePolicy, load_policy

if TYPE_CHECKING:
    from penstock.pipeline.sql.statements import ReaderSql

_DIALECTS: Final = ("spark", "databricks", "postgres", "duckdb")


@option_class
class _Sql:
    policy_file: str = option("--policy", required=True, metavar="FILE", help="Read this policy file of the pipeline.")
    reader: str = option("--reader", required=True, metavar="NAME", help="Write what this subscriber may see.")
    dialect: str = option("--dialect", required=True, type=click.Choice(_DIALECTS), help="Write SQL for this engine.")
    table: str = option(
        "--table", default="events", show_default=True, metavar="NAME", help="Read events of the type from this table."
    )
    name: str | None = option(
        "--name", metavar="NAME", help="Name the view or the filter so (default: the table and the reader)."
    )
    columns: tuple[str, ...] = option(
        "--column",
        multiple=True,
        metavar="NAME=COLUMN",
        help="Find an attribute, @id, @time or @source in this column (default: of the same name); nothing after = if"
        " the table does not have it. Can be repeated.",
    )
    form: Literal["view", "filter"] = option(
        "--as",
        type=click.Choice(["view", "filter"]),
        default="view",
        show_default=True,
        help="Write a view, or what filters the table itself: row filters and masks, or row-level security.",
    )
    no_other_columns: bool = option(
        "--no-other-columns",
        is_flag=True,
        help="State that the table has only the columns of the type: a filter for Databricks cannot hide others.",
    )
    check: str | None = option(
        "--check",
        metavar="FILE",
        help="Run the view on this Parquet, CSV or JSON lines file, and compare it with what brokers deliver.",
    )
    server: str | None = option("--server", metavar="URL", help="Run --check on this PostgreSQL server.")
    drift: str | None = option(
        "--drift", metavar="FILE", help="Compare these existing statements with what the policy gives."
    )
    output: str = output_option()


@command(
    example="""
penstock policy sql --policy policy.toml --reader statistics --dialect duckdb --table readings
penstock policy sql --policy policy.toml --reader statistics --dialect duckdb --check readings.parquet
penstock policy sql --policy policy.toml --reader statistics --dialect postgres --drift deployed.sql
"""
)
def sql(session: CommandSession, options: _Sql) -> CommandAnswer:
    """Write SQL that shows a reader the rows and attributes that brokers would deliver to it.

    The statements say the policy's revision in a comment. They contain the policy's constants, so protect them like the
    policy. What a dialect cannot express is refused. --check exits with 1 if a row differs. Statements for Databricks
    are checked on Spark. --drift exits with 1 if the existing statements differ in more than comments and layout.
    """
    # Imported late: sqlglot takes a while, and the other verbs do not need it.
    from penstock.pipeline.sql import statements  # noqa: PLC0415
    from penstock.pipeline.sql.conditions import SqlDialect  # noqa: PLC0415

    policy = load_policy(options.policy_file, session.now)
    program, dialect = reader_program(policy, options.reader), SqlDialect(options.dialect)
    columns = dict(split_pair(one, "NAME=COLUMN") for one in options.columns)
    named = options.table if options.check is None else statements.CHECKED
    table = statements.TableColumns.of(program, named, columns)
    made = statements.ReaderSql.of(program, policy, table, dialect)
    if options.check is not None:
        return _compared(options, made, policy)
    name = options.name or f"{options.table}_{options.reader}"
    signature = statements.Signature(options.reader, policy.revision)
    if options.form == "view":
        text = statements.view_statement(made, name, signature)
    else:
        text = statements.filter_statement(made, name, signature, only_these=options.no_other_columns)
    if options.drift is None:
        return CommandAnswer({"sql": text, "revision": policy.revision}, text.rstrip("\n").split("\n"))
    found = statements.drift(Path(options.drift).read_text(encoding="utf-8"), text, dialect)
    data = {"same": found.same, "revision": found.revision, "expected": found.expected}
    if not found.same:
        error = RefusedError("sql.drift", f"`{options.drift}` is not what the policy gives", hint="write it again")
        return CommandAnswer(data, [], error)
    older = f"; it names revision {found.revision or 'none'}, and the policy has another" if found.outdated else ""
    return CommandAnswer(data, [f"✓ {options.drift} is what the policy gives{older}"])


def _compared(options: _Sql, made: "ReaderSql", policy: PipelinePolicy) -> CommandAnswer:
    from penstock.pipeline.sql import comparison  # noqa: PLC0415  # as above

    program, table, dialect = made.program, made.table, made.compiler.dialect
    if dialect == "duckdb":
        run: comparison.Run = comparison.run_on_duckdb
    elif dialect == "postgres":
        if options.server is None:
            raise MalformedError("cli.usage", "--check needs a PostgreSQL server", hint="give its URL with --server")
        run = comparison.run_on_postgres(options.server)
    else:
        run = comparison.run_on_spark
    data = comparison.read_data(str(options.check), comparison.table_schema(program, table))
    found = comparison.compared(
        run(made.query().sql(dialect.written), data), comparison.delivered_rows(program, policy, table, data)
    )
    answer = {
        "rows": data.num_rows,
        "view": found.rows,
        "delivered": found.delivered,
        "only_view": list(found.only_view),
        "only_delivery": list(found.only_delivery),
    }
    if found.same:
        said = f"✓ {found.rows:,} of {data.num_rows:,} rows, in the view and by delivery"
        return CommandAnswer(answer, [said])
    lines = [f"only the view has: {one}" for one in found.only_view[:20]]
    lines += [f"only delivery has: {one}" for one in found.only_delivery[:20]]
    return CommandAnswer(answer, lines, RefusedError("sql.differs", "the view and delivery differ", hint="report this"))
