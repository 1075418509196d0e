"""Views, row filters and column masks for one reader, and whether existing ones are still what the policy gives.

A view has the metadata of events and the attributes of the reader's version, under their names. A row with a value that
its attribute cannot have is not an event, and is not in it. Who can read the definition of a view sees the constants of
the policy in it.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from penstock.errors import MalformedError, RefusedError, did_you_mean
from penstock.guard.restriction import Branch
from penstock.model.types import Attribute
from penstock.model.values import AttributeSpec, Enumerated, Kind, ValueDomain
from penstock.pipeline.enforce.policy import PipelinePolicy, Program
from penstock.pipeline.event_columns import METADATA, SOURCE, TIME, attributes_of
from penstock.pipeline.sql.conditions import (
    Sql,
    SqlCompiler,
    SqlDialect,
    SqlSource,
    all_of,
    any_of,
    inexpressible,
    null_of,
    when,
)
from penstock.selector import ALWAYS

_SIGN: Final = "penstock policy sql"
CHECKED: Final = "penstock_checked"
"""The name of the table that a view is run on to compare it with delivery."""
_REVISION: Final = re.compile(r"policy revision ([\w:.+/=-]{1,200})", re.ASCII)


@dataclass(frozen=True, slots=True)
class TableColumns:
    """A table of events of one type: its name, and which column holds what; what is not there has no column."""

    table: str
    #: by the names of the metadata and of the type's attributes
    columns: Mapping[str, str]

    @classmethod
    def of(cls, program: Program, table: str = "events", other: Mapping[str, str] | None = None) -> "TableColumns":
        """Return the columns of a table that calls them as the type does, but for `other`; an empty name means none.

        Raises `MalformedError`: `sql.column` for what the type does not have, `pipeline.case`.
        """
        names = [*METADATA, *(attribute.name for attribute in attributes_of([program.event_type]))]
        unknown = [name for name in other or {} if name not in names]
        if unknown:
            raise MalformedError(
                "sql.column",
                f"`{program.event_type.name.name}` has no attribute `{unknown[0][:80]}`",
                hint=did_you_mean(unknown[0], names, f"there are: {', '.join(names)[:400]}"),
            )
        found = {name: (other or {}).get(name, name) for name in names}
        return cls(table, {name: column for name, column in found.items() if column})


@dataclass(frozen=True, slots=True)
class ReaderSql:
    """A reader's program compiled for one dialect, over the columns of one table."""

    compiler: SqlCompiler
    table: TableColumns
    #: where each branch holds
    branches: tuple[tuple[Branch, Sql], ...]
    program: Program

    @classmethod
    def of(cls, program: Program, policy: PipelinePolicy, table: TableColumns, dialect: SqlDialect) -> "ReaderSql":
        """Compile a program.

        Raises `RefusedError`: `sql.guard` for a right that a guard decides about, `sql.time` for one that depends on
        the time if the table does not have it, `sql.inexpressible`.
        """
        compiler = SqlCompiler(dialect)
        sources = {
            str(a.id): SqlSource(column, a.spec.kind)
            for a in program.event_type.attributes
            if (column := _column(table, a.name)) is not None
        }
        time = _column(table, TIME)
        environment = compiler.environment(time, policy.zone, policy.facts)
        meant = (b for b in program.restriction.branches if b.only is None or program.event_type.key in b.only)
        branches = tuple((branch, _holds(branch, compiler, sources, environment)) for branch in meant)
        return cls(compiler, table, branches, program)

    @property
    def delivered(self) -> Sql:
        """Where any branch holds."""
        return any_of(condition for _, condition in self.branches)

    def shown(self, attribute: Attribute) -> list[int] | None:
        """Return the branches that show an attribute; None if all do."""
        showing = [number for number, (branch, _) in enumerate(self.branches) if branch.shows(attribute.id)]
        return None if len(showing) == len(self.branches) else showing

    def value(self, attribute: Attribute, conditions: Sequence[Sql]) -> Sql:
        """Return what the reader sees of an attribute, where conditions say which branches hold and one does."""
        column = _column(self.table, attribute.name)
        showing = self.shown(attribute)
        if column is None or showing == []:
            return null_of(attribute.spec.kind)
        return column if showing is None else when(any_of(conditions[number] for number in showing), column)

    @property
    def sound(self) -> Sql:
        """Where the values of a row are those that its attributes can have, as `ingest` asks."""
        columns = {a.name: _column(self.table, a.name) for a in attributes_of([self.program.event_type])}
        specs = {a.name: a.spec for a in self.program.event_type.attributes}
        checks = [self._fits(column, specs[name]) for name, column in columns.items() if column is not None]
        if (time := _column(self.table, TIME)) is not None:
            checks.append(self._fits(time, AttributeSpec(Kind.TIMESTAMP)))
        return all_of(checks)

    def _fits(self, column: Sql, spec: AttributeSpec) -> Sql:
        """Return where a value is null, or is an instant of ours and lies in its domain."""
        parts = []
        if spec.kind is Kind.TIMESTAMP:
            parts.append(self.compiler.is_dated(column))
        if spec.domain is not None:
            parts.append(self._is_within(column, spec.kind, spec.domain))
        empty = exp.Is(this=column.copy(), expression=exp.null())
        return any_of([empty, all_of(parts)]) if parts else exp.true()

    def _is_within(self, column: Sql, kind: Kind, domain: ValueDomain) -> Sql:
        compiler = self.compiler
        column = compiler.read(SqlSource(column, kind))
        if isinstance(domain, Enumerated):
            members = sorted(domain.values, key=str)
            return any_of(exp.EQ(this=column.copy(), expression=compiler.literal(one, kind)) for one in members)
        low, high = (compiler.literal(bound, kind) for bound in (domain.low, domain.high))
        return exp.Between(this=column.copy(), low=low, high=high)

    def wanted(self, values: Mapping[str, Sql]) -> Sql:
        """Return where the reader's own filter is true on what the reader sees."""
        if self.program.selector == ALWAYS:
            return exp.true()
        own = {
            a.name: SqlSource(values[a.name], a.spec.kind)
            for a in self.program.event_type.attributes
            if _column(self.table, a.name) is not None
        }
        return self.compiler.condition(self.program.selector.root, own)

    def query(self) -> exp.Select:
        """Return the reader's view as a query."""
        attributes = attributes_of([self.program.event_type])
        partly = any(self.shown(attribute) for attribute in attributes)
        kept = [name for name in self.program.metadata if name in self.table.columns]
        names = [f"{self._free()}{number}" for number in range(len(self.branches))]
        held = [_name(name) for name in names]
        conditions: Sequence[Sql] = held if partly else [condition for _, condition in self.branches]
        source: exp.Select | exp.Table = _table(self.table.table, self.compiler.dialect)
        if partly:
            # Each condition stands in the view once, however many attributes depend on it. Not beside `*`: a further
            # column of the table could have its name, and would decide in its place.
            named = [exp.alias_(c.copy(), name, quoted=True) for name, (_, c) in zip(names, self.branches, strict=True)]
            source = exp.select(*map(_name, self._read()), *named).from_(source)
        values = {a.name: self.value(a, conditions) for a in attributes}
        columns = [exp.alias_(_name(self.table.columns[name]), name, quoted=True) for name in kept]
        columns += [exp.alias_(value, name, quoted=True) for name, value in values.items()]
        seen = exp.select(*columns).from_(_from(source, "held")).where(all_of([any_of(conditions), self.sound]))
        wanted = self.wanted({name: _name(name) for name in values})
        if wanted == exp.true():
            return seen
        return exp.select(*map(_name, (*kept, *values))).from_(_from(seen, "seen")).where(wanted)

    def _read(self) -> list[str]:
        """Return each column of the table once that holds something."""
        cased = self.compiler.dialect is SqlDialect.POSTGRES
        return list({column if cased else column.lower(): column for column in self.table.columns.values()}.values())

    def _free(self) -> str:
        """Return how the name of no column begins."""
        found = "@holds"
        while any(column.lower().startswith(found) for column in self.table.columns.values()):
            found = f"@{found}"
        return found


def _holds(
    branch: Branch, compiler: SqlCompiler, sources: Mapping[str, SqlSource], environment: Mapping[str, SqlSource]
) -> Sql:
    if branch.guards:
        raise RefusedError(
            "sql.guard",
            f"the guard `{min(branch.guards)[:80]}` decides about a right, and only a broker can ask it",
            hint="use `penstock pipeline deliver` with the recorded results of guards",
        )
    condition, validity = branch.when.condition, branch.when.validity
    dated = validity.starts is not None or validity.ends is not None
    if "time" not in environment and (dated or condition.attributes & {"time", "hour", "minute", "weekday"}):
        raise RefusedError(
            "sql.time",
            "a right depends on the time, and the table does not have it",
            hint=f"name the column with the time of each event: --column {TIME}=COLUMN",
        )
    parts = [compiler.condition(branch.holds_where().root, sources), compiler.condition(condition.root, environment)]
    if validity.starts is not None:
        start = compiler.literal(validity.starts, Kind.TIMESTAMP)
        parts.append(exp.GTE(this=environment["time"].expression.copy(), expression=start))
    if validity.ends is not None:
        end = compiler.literal(validity.ends, Kind.TIMESTAMP)
        parts.append(exp.LTE(this=environment["time"].expression.copy(), expression=end))
    return all_of(parts)


def _column(table: TableColumns, name: str) -> Sql | None:
    column = table.columns.get(name)
    return None if column is None else _name(column)


def _name(name: str) -> Sql:
    return exp.column(exp.to_identifier(name, quoted=True))


def _from(source: exp.Select | exp.Table, name: str) -> Sql:
    return source.subquery(name) if isinstance(source, exp.Select) else source


# ----------------------------------------------------------------------------------------------------------------------
# Statements.


@dataclass(frozen=True, slots=True)
class Signature:
    """What a statement says about itself, in a comment: the reader, and the policy's revision."""

    reader: str
    revision: str

    def __str__(self) -> str:
        # Without quotes and line ends, whatever the name of the reader is: some engines take only a plain text.
        return f"{_SIGN}: reader {quote(self.reader, safe=' ')}, policy revision {self.revision}"


def view_statement(reader: ReaderSql, name: str, signature: Signature) -> str:
    """Return the statements that create a reader's view."""
    dialect = reader.compiler.dialect
    view = _table(name, dialect)
    properties: list[Sql] = []
    if dialect.is_spark:
        properties.append(exp.SchemaCommentProperty(this=reader.compiler.text(str(signature))))
    if dialect is SqlDialect.POSTGRES:
        # So that no function in somebody's query sees rows before the view has chosen them.
        properties.append(exp.Property(this=exp.var("security_barrier"), value=exp.true()))
    create = exp.Create(
        this=view,
        kind="VIEW",
        replace=True,
        expression=reader.query(),
        properties=exp.Properties(expressions=properties) if properties else None,
    )
    statements = [create.sql(dialect.written, pretty=True)]
    if not dialect.is_spark:
        text = reader.compiler.text(str(signature)).sql(dialect.written)
        statements.append(f"COMMENT ON VIEW {view.sql(dialect.written)} IS {text}")
    return _script(statements, signature)


def filter_statement(reader: ReaderSql, name: str, signature: Signature, *, only_these: bool = False) -> str:
    """Return the statements that filter the rows of the table itself, and mask its columns, for one reader.

    `only_these` says that the table has no columns but those of the type. Raises `RefusedError` (`sql.inexpressible`)
    for a dialect that has no such thing, for masks in PostgreSQL, for a column that holds two attributes, and for
    further columns at Databricks, where nothing hides a column that is not named.
    """
    dialect = reader.compiler.dialect
    columns = [column.lower() for column in reader.table.columns.values()]
    if len(set(columns)) < len(columns):
        # It has one mask, and the later of two would be in force.
        twice = next(column for column in columns if columns.count(column) > 1)
        raise inexpressible(dialect, f"a filter for the column `{twice[:80]}`, which is given twice", "use --as view")
    if dialect is SqlDialect.DATABRICKS:
        if not only_these:
            hint = "use --as view, or give --no-other-columns if the table has only the columns of the type"
            raise inexpressible(dialect, "a filter that hides the columns that the type does not have", hint)
        return _script(_databricks(reader, name, signature), signature)
    if dialect is not SqlDialect.POSTGRES:
        raise inexpressible(dialect, "row filters", "write a view: --as view")
    attributes = attributes_of([reader.program.event_type])
    if SOURCE in reader.table.columns and SOURCE not in reader.program.metadata:
        hint = "row-level security shows whole rows: write a view with --as view"
        raise inexpressible(dialect, f"a policy that hides `{SOURCE}`", hint)
    plain = [reader.value(a, [c for _, c in reader.branches]) == _column(reader.table, a.name) for a in attributes]
    if not all(plain):
        hidden = attributes[plain.index(False)].name
        hint = "row-level security shows whole rows: write a view with --as view"
        raise inexpressible(dialect, f"a policy that hides `{hidden}` in some rows", hint)
    own = {a.name: _name(reader.table.columns[a.name]) for a in attributes}
    rows = all_of([reader.delivered, reader.sound, reader.wanted(own)])
    table, policy = _written(reader.table.table, dialect), _written(name, dialect)
    role = _list([signature.reader], dialect)
    text = reader.compiler.text(str(signature)).sql(dialect.written)
    # Columns that the type does not have are not shown, whoever granted them before.
    granted = _list(reader.table.columns.values(), dialect)
    statements = [
        f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY",
        f"REVOKE SELECT ON {table} FROM PUBLIC, {role}",  # noqa: S608  # quoted names
        f"GRANT SELECT ({granted}) ON {table} TO {role}",
        f"CREATE POLICY {policy} ON {table} FOR SELECT TO {role} USING (\n  {rows.sql(dialect.written)}\n)",
        f"COMMENT ON POLICY {policy} ON {table} IS {text}",
    ]
    return _script(statements, signature)


def _databricks(reader: ReaderSql, name: str, signature: Signature) -> Iterable[str]:
    """Yield a row filter, and a mask for each column of which the reader does not see every value."""
    dialect, table = reader.compiler.dialect, reader.table
    conditions = [condition for _, condition in reader.branches]
    attributes = [a for a in attributes_of([reader.program.event_type]) if a.name in table.columns]
    values = {a.name: reader.value(a, conditions) for a in attributes}
    kinds = {TIME: Kind.TIMESTAMP, **{a.name: a.spec.kind for a in attributes}}
    of = {table.columns[what]: kind for what, kind in kinds.items() if what in table.columns}
    member = reader.compiler.text(signature.reader)
    rows = all_of([reader.delivered, reader.sound, reader.wanted(values)])
    rows = all_of([exp.Anonymous(this="IS_ACCOUNT_GROUP_MEMBER", expressions=[member]), rows])
    target = _written(table.table, dialect)
    used = _used(rows, of)
    function = f"{name}_rows"
    yield _function(function, {column: of[column] for column in used}, Kind.BOOLEAN, rows, signature)
    yield f"ALTER TABLE {target} SET ROW FILTER {_written(function, dialect)} ON ({_list(used, dialect)})"
    if SOURCE in table.columns and SOURCE not in reader.program.metadata:
        function, column = f"{name}_source", table.columns[SOURCE]
        yield _function(function, {column: Kind.STRING}, Kind.STRING, null_of(Kind.STRING), signature)
        yield f"ALTER TABLE {target} ALTER COLUMN {_list([column], dialect)} SET MASK {_written(function, dialect)}"
    for attribute in attributes:
        column, value = table.columns[attribute.name], values[attribute.name]
        if value == _name(column):
            continue
        others = [other for other in _used(value, of) if other != column]
        # No attribute has the name of another function, such as that of the row filter.
        function = f"{name}_mask_{attribute.name}"
        parameters = {one: of[one] for one in (column, *others)}
        yield _function(function, parameters, attribute.spec.kind, value, signature)
        using = f" USING COLUMNS ({_list(others, dialect)})" if others else ""
        quoted = _list([column], dialect)
        yield f"ALTER TABLE {target} ALTER COLUMN {quoted} SET MASK {_written(function, dialect)}{using}"


def _function(name: str, parameters: Mapping[str, Kind], returns: Kind, body: Sql, signature: Signature) -> str:
    dialect = SqlDialect.DATABRICKS
    declared = ", ".join(f"{_list([column], dialect)} {_type(kind)}" for column, kind in parameters.items())
    text = SqlCompiler(dialect).text(str(signature)).sql(dialect.written)
    return (
        f"CREATE OR REPLACE FUNCTION {_written(name, dialect)}({declared}) RETURNS {_type(returns)} COMMENT {text}"
        f"\nRETURN {body.sql(dialect.written)}"
    )


def _type(kind: Kind) -> str:
    made = null_of(kind)
    return made.args["to"].sql(SqlDialect.DATABRICKS.written)  # type: ignore[no-any-return]  # a text


def _used(body: Sql, of: Mapping[str, Kind]) -> list[str]:
    """Return the columns that an expression reads, in the order of the table."""
    read = {column.name for column in body.find_all(exp.Column)}
    return [column for column in of if column in read]


def _list(names: Iterable[str], dialect: SqlDialect) -> str:
    return ", ".join(_name(name).sql(dialect.written) for name in names)


def _table(name: str, dialect: SqlDialect) -> exp.Table:
    try:
        found = exp.to_table(name, dialect=dialect.written)
    except SqlglotError:
        found = None
    # A comment would be left out, and give the name of another table or view.
    if found is None or not isinstance(found.this, exp.Identifier) or any(part.comments for part in found.walk()):
        raise MalformedError("sql.name", f"`{name[:80]}` is not the name of a table", hint="quote it as SQL does")
    return found


def _written(name: str, dialect: SqlDialect) -> str:
    return _table(name, dialect).sql(dialect.written)


def _script(statements: Iterable[str], signature: Signature) -> str:
    # The text of the statement itself is a comment too, for tools that keep files.
    return "".join([f"-- {signature}\n", *(f"{statement};\n" for statement in statements)])


# ----------------------------------------------------------------------------------------------------------------------
# Drift: whether an existing statement is still what the policy gives.


@dataclass(frozen=True, slots=True)
class Drift:
    """How existing statements differ from what the policy gives: in their text, or only in the revision."""

    same: bool
    revision: str | None
    expected: str

    @property
    def outdated(self) -> bool:
        """Whether the statements name another revision, whatever their text is."""
        return self.revision != self.expected


def drift(existing: str, wanted: str, dialect: SqlDialect) -> Drift:
    """Compare existing statements with those that the policy gives, by their canonical text.

    Comments, layout and letter case of keywords do not count. Raises `MalformedError` (`sql.syntax`).
    """
    found, expected = _REVISION.search(existing), _REVISION.search(wanted)
    return Drift(
        canonical(existing, dialect) == canonical(wanted, dialect),
        found[1] if found else None,
        expected[1] if expected else "",
    )


def canonical(text: str, dialect: SqlDialect) -> tuple[str, ...]:
    """Return statements in one form: without comments, and one line each. Raises `MalformedError` (`sql.syntax`)."""
    try:
        parsed = sqlglot.parse(text, read=dialect.written)
    except SqlglotError as error:
        raise MalformedError(
            "sql.syntax", f"the existing statements are not {dialect}", hint="give what `penstock policy sql` wrote"
        ) from error
    return tuple(
        " ".join(_uncommented(one).sql(dialect.written, comments=False).split())
        for one in parsed
        if one is not None and not isinstance(one, exp.Comment) and not _is_comment(one)
    )


def _is_comment(statement: Sql) -> bool:
    return isinstance(statement, exp.Command) and statement.name.upper() == "COMMENT"


def _uncommented(statement: Sql) -> Sql:
    """Return a statement without the comments that an engine stores."""
    for comment in list(statement.find_all(exp.SchemaCommentProperty)):
        comment.pop()
    properties = statement.args.get("properties")
    if isinstance(properties, exp.Properties) and not properties.expressions:
        statement.set("properties", None)
    return statement
