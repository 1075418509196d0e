"""Views: what one reader of a policy file may see of any DataFrame, and what cannot be an event in it.

`view` returns the rows and columns that a reader may see. The DataFrame holds events of one type: `mapping` says which
column is which attribute. It is a mapping file, or a dict of columns by attribute name, in which `@id`, `@time` and
`@source` stand for the event's own; without a mapping the columns have the names of the attributes. Or it holds events
as they travel, in columns with attribute ids, as `penstock pipeline ingest` writes them.

Everything is `DataFrame -> DataFrame` in native expressions: on streams and through Spark Connect too. No row raises: a
row that is not an event of the type, because a value has another kind or lies outside of its domain, is not shown, and
`quarantine` lists it.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Final, TypeAlias

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # the name that everybody knows it by
from pyspark.sql.types import (
    BooleanType,
    ByteType,
    DataType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    TimestampType,
)

from penstock.errors import MalformedError, RefusedError, did_you_mean
from penstock.guard.restriction import Branch, Restriction
from penstock.model.principals import Principal
from penstock.model.types import Attribute, EventType
from penstock.model.values import Kind
from penstock.pipeline.comparison import PolicyComparison
from penstock.pipeline.enforce.deliver import ByType, is_known
from penstock.pipeline.enforce.manifest import reader_program
from penstock.pipeline.enforce.policy import ConstantsIn as ConstantsIn
from penstock.pipeline.enforce.policy import PipelinePolicy, load_policy, programs_of
from penstock.pipeline.enforce.programs import (
    Constants,
    OneRow,
    PrintedConstants,
    Program,
    constants_row,
    shape_of,
)
from penstock.pipeline.enforce.pushdown import filter_column, necessary, without_decided
from penstock.pipeline.enforce.restrict import Viewer, columns, demands, environment_of, fits, holds, is_always, keep
from penstock.pipeline.frames import (
    ID,
    METADATA,
    SOURCE,
    TIME,
    ColumnSource,
    all_of,
    any_of,
    attributes_of,
    compile_condition,
    literal,
    quoted,
    transit_sources,
)
from penstock.pipeline.ingest.event_frames import REASON, TYPE, WORDS, metadata_problems
from penstock.pipeline.ingest.formats import check_table
from penstock.pipeline.ingest.mapping import (
    BoundMapping,
    ColumnFormat,
    ConstantColumn,
    CsvLayout,
    FromColumn,
    MappedFormat,
    Origin,
    naming_type,
    read_mapping,
)
from penstock.pipeline.ingest.mapping import Mapping as TableMapping
from penstock.pipeline.ingest.records import RecordProblem
from penstock.pipeline.whatif import (
    compare,
)
from penstock.selector import ALWAYS
from penstock.store.files.files import read_file, within
from penstock.trust.capabilities import Right
from penstock.trust.event_types import read_type

PolicySource: TypeAlias = PipelinePolicy | str | os.PathLike[str]
"""A policy, or the path of its policy file."""

ColumnMapping: TypeAlias = BoundMapping | str | os.PathLike[str] | Mapping[str, str | Column | None] | None
"""Which column is which attribute: a mapping file, a mapping bound to a type, columns by attribute name, or None."""

SHOWN: Final = "@shown"
REASONS: Final = "@reasons"
ATTRIBUTES: Final = "@attributes"
_WRONG: Final = "@wrong"
_AS_IS: Final = ColumnFormat(trim=False, null=())
"""How a column of text is read if no mapping file says otherwise: as it is."""
_PUBLISHERS: Final = 32
"""Principals that the source of an event is compared with before its letters are looked at."""
_NO_ID, _NO_TIME = ConstantColumn("-"), ConstantColumn(datetime.fromtimestamp(0, tz=UTC))
_PLAIN: Final[Mapping[Kind, tuple[type[DataType], ...]]] = {
    Kind.STRING: (StringType,),
    Kind.INTEGER: (ByteType, ShortType, IntegerType, LongType),
    Kind.FLOAT: (ByteType, ShortType, IntegerType, FloatType, DoubleType),
    Kind.BOOLEAN: (BooleanType,),
    Kind.TIMESTAMP: (TimestampType,),
}
"""The types of columns that hold values of a kind as they are: nothing in them can be wrong but the domain."""


def view(  # noqa: PLR0913  # data, policy and reader; the rest has defaults
    df: DataFrame,
    policy: PolicySource,
    reader: str,
    mapping: ColumnMapping = None,
    *,
    ids: bool = False,
    constants: ConstantsIn | None = None,
    now: datetime | None = None,
) -> DataFrame:
    """Return the rows and columns of a DataFrame that a reader may see.

    `reader` is a subscriber of the policy file. The columns are the event's id and time, under the names that they have
    in the data, and the attributes that some right of the reader shows, under the names of its version. With `ids`,
    they are `@id`, `@time`, `@source` and attribute ids. If no right shows an attribute of a row, it is null. Rights
    are asked at the time of each event. The source is not a column if a right of the reader hides it.

    The reader's own filter and the constants of its rights are pushed down to the files; with `constants="hidden"` no
    plan contains them, and everything is read (default: as the policy says, otherwise `public`). `now` is the time at
    which the policy's types are verified (default: the current time).

    Raises `MalformedError`: `pipeline.unknown-subscriber`, `mapping.column` for a column that is missing or of a wrong
    type, `view.time` if rights depend on a time that the data does not have, `view.type` for data of a type that the
    reader does not read; `RefusedError` (`pipeline.no-rights`); and what reading policy and mapping raises. Never for a
    row.
    """
    known = _policy(policy, now)
    program = reader_program(known, reader)
    held = constants_row("@x", constants or known.constants)
    printed = isinstance(held, PrintedConstants)
    publishers = known.principals() if printed else ()
    events = EventColumns.of(df, known, program, mapping, publishers=publishers, whole=False)
    pushed = necessary(program, events.kinds) if printed else None
    sound = events.sound(None if pushed is None else filter_column(pushed))
    asked = program if pushed is None else without_decided(program, events.kinds)
    rows, values = _shown(sound, events, asked, known, held)
    return rows.select(*events.output(program, values, ids=ids))


def restrict(
    policy: PolicySource,
    reader: str,
    mapping: ColumnMapping = None,
    *,
    ids: bool = False,
    constants: ConstantsIn | None = None,
) -> Callable[[DataFrame], DataFrame]:
    """Return `view` as a function of the DataFrame: `df.transform(restrict("policy.toml", "firm"))`."""
    return lambda df: view(df, policy, reader, mapping, ids=ids, constants=constants)


def quarantine(
    df: DataFrame, policy: PolicySource, reader: str, mapping: ColumnMapping = None, *, now: datetime | None = None
) -> DataFrame:
    """Return the rows of a DataFrame that are not events, for which `view` shows nothing to anybody.

    Each row has its columns, the code of what is wrong in `@reason`, and words for it in `@words`, as in the quarantine
    of `penstock pipeline ingest`. A column that the reader's rights neither show nor ask about is looked at only if its
    values must be converted or its attribute has a domain. Raises as `view`.
    """
    known = _policy(policy, now)
    events = EventColumns.of(df, known, reader_program(known, reader), mapping)
    return events.wrong()


def explain_view(  # noqa: PLR0913  # as `view`
    df: DataFrame,
    policy: PolicySource,
    reader: str,
    mapping: ColumnMapping = None,
    *,
    constants: ConstantsIn | None = None,
    now: datetime | None = None,
) -> DataFrame:
    """Return every row of a DataFrame with the reasons why a reader sees it, or not, and why which attributes.

    `@shown` says whether `view` shows the row, `@reasons` what each right of the reader says about it, and
    `@attributes` of each attribute of a row that is shown, by name, why it is shown or not. For one row, filter the
    DataFrame before. With `constants="hidden"` the reasons do not quote conditions. The result is for those who may see
    the data: it has all columns. Raises as `view`, but not for a reader without rights.
    """
    known = _policy(policy, now)
    try:
        program = reader_program(known, reader)
    except RefusedError as error:
        if error.code != "pipeline.no-rights":
            raise
        (one,) = (one for one in known.subscribers if one.name == reader)
        program = Program(0, Restriction(), one.type.event_type, one.selector, (reader,))
    events = EventColumns.of(df, known, program, mapping)
    held = constants_row("@x", constants or known.constants)
    return _explained(events, program, known, held, quoting=isinstance(held, PrintedConstants))


def whatif(  # noqa: PLR0913  # data and two policies; the rest has defaults
    df: DataFrame,
    before: PolicySource,
    after: PolicySource,
    mapping: ColumnMapping = None,
    *,
    samples: int = 5,
    now: datetime | None = None,
) -> PolicyComparison:
    """Return who would gain and who would lose which attributes, on how many rows, if one policy replaced another.

    Without a mapping file, all subscribers of both policies read the type of the data. Raises as `view` and `compare`,
    and `MalformedError` (`whatif.types`) if it is not clear of which type the data are.
    """
    old, new = _policy(before, now), _policy(after, now)
    if isinstance(mapping, str | os.PathLike):
        mapping = read_bound_mapping(mapping, new)
    if isinstance(mapping, BoundMapping):
        event_type = mapping.event_type
    else:
        types = {one.type.event_type.name: one.type.event_type for one in (*old.subscribers, *new.subscribers)}
        if len(types) != 1:
            raise MalformedError(
                "whatif.types",
                "the subscribers of the policies read several types, or none",
                hint="give a mapping file, which names the type of the data",
            )
        (event_type,) = types.values()
    everything = Branch(action=Right.SUBSCRIBE)
    program = Program(0, Restriction((everything,)), event_type, ALWAYS, ("",))
    events = EventColumns.of(df, new, program, mapping)
    if not events.timed and any(map(_asks_time, (*programs_of(old), *programs_of(new)))):
        raise _no_time("readers")
    transit = events.sound().select(*map(quoted, METADATA), *map(quoted, transit_sources(events.types)))
    return compare(transit, old, new, types=events.types, samples=samples)


def _policy(policy: PolicySource, now: datetime | None) -> PipelinePolicy:
    if isinstance(policy, PipelinePolicy):
        return policy
    return load_policy(os.fspath(policy), datetime.now(UTC) if now is None else now)


# ----------------------------------------------------------------------------------------------------------------------
# The events of a DataFrame.


@dataclass(frozen=True, slots=True)
class EventColumns:
    """A DataFrame whose rows are events of some types: its columns are those of events as they travel, and more.

    `kinds` has the columns about which a filter can be pushed down, and `names` the columns of the data that hold an
    event's id, time and source.
    """

    frame: DataFrame
    types: tuple[EventType, ...]
    kinds: Mapping[str, Kind]
    names: Mapping[str, str]
    #: whether `@type` says of each row which type it is of
    told: bool
    problems: Sequence[RecordProblem] = ()
    #: the columns of the data
    data: tuple[str, ...] = ()
    #: whether the time of each event is known
    timed: bool = True
    #: whether a mapping says which column is which; else the data are events as they travel
    mapped: bool = False
    #: whether values are converted, which costs more than reading them
    converted: bool = False

    @classmethod
    def of(  # noqa: PLR0913  # as `view`
        cls,
        df: DataFrame,
        policy: PipelinePolicy,
        program: Program,
        mapping: ColumnMapping,
        *,
        publishers: Sequence[Principal] = (),
        whole: bool = True,
    ) -> "EventColumns":
        """Find the events of a DataFrame for a reader's program. Raises `MalformedError` as `view`.

        `publishers` are principals that plans may contain. Unless it is `whole`, a row has only the columns of the data
        that its event is made of.
        """
        if not isinstance(df, DataFrame):
            raise MalformedError(
                "view.data",
                f"the data are a `{type(df).__name__}`, and not a DataFrame of Spark",
                hint="read files with `spark.read`, and convert tables with `spark.createDataFrame`",
            )
        ids = {str(attribute.id) for attribute in program.event_type.attributes}
        if mapping is None and ids and ids <= set(df.columns):
            found = cls._travelling(df, policy, program)
        else:
            bound, df = _bound(df, policy, program, mapping)
            likely = islice(dict.fromkeys((bound.event_type.name.owner, *publishers)), _PUBLISHERS)
            found = cls._mapped(df, bound, program, list(map(str, likely)), whole=whole)
        line = {key for one in found.types for key in (one.key, *one.ancestors)}
        if program.event_type.key not in line:
            raise MalformedError(
                "view.type",
                f"the data are events of `{found.types[0].name.name}`, and `{program.readers[0][:80]}` reads"
                f" `{program.event_type.name.name}`",
                hint="choose a reader of that type, or another mapping",
            )
        if not found.timed and _asks_time(program):
            raise _no_time(f"`{program.readers[0][:80]}`")
        return found

    @classmethod
    def _travelling(cls, df: DataFrame, policy: PipelinePolicy, program: Program) -> "EventColumns":
        there = set(df.columns)
        known = [one.event_type for one in policy.types] or [program.event_type]
        types = tuple(one for one in known if {str(a.id) for a in one.attributes} <= there)
        kinds = {str(a.id): a.spec.kind for a in attributes_of(types)}
        if unknown := (_needed(program) & there) - kinds.keys():
            # Taken for null, it would be shown by whatever asks for that.
            raise MalformedError(
                "view.type",
                f"the policy does not have the type of the attribute `{min(unknown)[:120]}`, about which rights ask",
                hint="add all versions of the data to `types` of the policy file",
            )
        names = {str(name): str(name) for name in METADATA if name in there}
        absent = [F.lit(None).cast("string").alias(name) for name in (ID, SOURCE) if name not in there]
        if TIME in there:
            kinds[TIME] = Kind.TIMESTAMP
        else:
            absent.append(literal(None, Kind.TIMESTAMP).alias(TIME))
        return cls(df.select("*", *absent), types, kinds, names, TYPE in there, (), tuple(df.columns), TIME in there)

    @classmethod
    def _mapped(
        cls, df: DataFrame, bound: BoundMapping, program: Program, publishers: Sequence[str], *, whole: bool
    ) -> "EventColumns":
        mapping, event_type = bound.mapping, bound.event_type
        fields = {field.name: field.dataType for field in df.schema}
        needed = _needed(program)
        plain = {n for n, o in mapping.attributes.items() if _is_plain(event_type.by_name[n], o, fields)}
        # What nobody asks about and nothing can be wrong with is not read.
        kept = {
            name: origin
            for name, origin in mapping.attributes.items()
            if name not in plain or event_type.by_name[name].id in needed
        }
        bound = replace(bound, mapping=replace(mapping, attributes=kept, format=MappedFormat.PARQUET))
        # Under names of our own: those of the data may be any, `@id` too.
        read = set(bound.columns)
        whole = whole or not read <= fields.keys()
        own = {name: _data(number) for number, name in enumerate(df.columns) if whole or name in read}
        records = df.select(*(quoted(name).alias(alias) for name, alias in own.items()))
        checked = check_table(records, bound, columns=own)
        stand = {
            name: origin.column
            for name, origin in zip(METADATA, (mapping.id, mapping.time, mapping.source), strict=True)
            if isinstance(origin, FromColumn)
        }
        names = {name: name if column == _made(name) else column for name, column in stand.items()}
        (version,) = checked.versions
        values = {
            str(a.id): converted.value if (converted := version.values.get(a.name)) else literal(None, a.spec.kind)
            for a in attributes_of([event_type])
        }
        typed = checked.frame.select(
            "*",
            checked.type.alias(TYPE),
            checked.id.alias(ID),
            checked.time.value.alias(TIME),
            checked.source.alias(SOURCE),
            *(value.alias(name) for name, value in values.items()),
        )
        attributes = event_type.by_name
        problems = [*checked.problems, *metadata_problems(checked, publishers)]
        for name, converted in version.values.items():
            problems += converted.problems(quoted(attributes[name].id))
        kinds = {str(attributes[name].id): attributes[name].spec.kind for name in plain & kept.keys()}
        if isinstance(fields.get(stand.get(TIME, "")), TimestampType):
            kinds[TIME] = Kind.TIMESTAMP
        timed = mapping.time is not _NO_TIME
        return cls(
            typed,
            (event_type,),
            kinds,
            names,
            True,
            problems,
            tuple(df.columns),
            timed,
            mapped=True,
            converted=plain < mapping.attributes.keys(),
        )

    def sound(self, pushed: Column | None = None) -> DataFrame:
        """Return the rows that are events, of those that a filter of plain columns lets through."""
        asked = [] if pushed is None else [pushed]
        absent = [problem.absent for problem in self.problems]
        # A mapping is of one type.
        told = [is_known(self.types)] if self.told and not self.mapped else []
        if not self.converted:
            # One filter, and the one of the files first: Spark plans every operator in each of its steps.
            return _where(self.frame, [*asked, *absent, *told])
        # Not by a filter, for which Spark would convert everything twice.
        found = _where(self.frame, asked)
        return _where(keep(found, all_of(absent), columns(found)), told)

    def judged(self) -> DataFrame:
        """Return all rows, with the number of what is wrong in `@wrong`; `row` returns the columns of the data."""
        number = F.lit(None).cast("int")
        for position, problem in reversed(list(enumerate(self.problems))):
            number = F.when(problem.where, F.lit(position)).otherwise(number)
        named = {} if self.mapped else {_data(n): quoted(name) for n, name in enumerate(self.data)}
        return self.frame.withColumns({_WRONG: number, **named})

    def row(self) -> list[Column]:
        """Return the columns of the data, in a frame that `judged` made."""
        return [quoted(_data(number)).alias(name) for number, name in enumerate(self.data)]

    def said(self, of: Callable[[RecordProblem], str]) -> Column:
        """Return the text of what is wrong with a row that `judged` judged; null if nothing is."""
        texts = [F.lit(of(problem)) for problem in self.problems] or [F.lit("")]
        return F.get(F.array(*texts), quoted(_WRONG))

    def wrong(self) -> DataFrame:
        """Return the rows that are not events, with what is wrong."""
        said = [self.said(lambda one: one.code).alias(REASON), self.said(lambda one: one.words).alias(WORDS)]
        return keep(self.judged(), quoted(_WRONG).isNotNull(), [*self.row(), *said])

    def output(self, program: Program, values: Mapping[str, Column], *, ids: bool) -> list[Column]:
        """Return the columns of a view of which `_shown` made the rows and the values of attributes."""
        shown = visible_attributes(program)
        own = [values[a.name].alias(str(a.id) if ids else a.name) for a in shown]
        taken = {a.name.lower() for a in shown}
        found = []
        for name, column in self.names.items():
            if name not in program.metadata:
                continue
            plain = name if ids or column.lower() in taken else column
            taken.add(plain.lower())
            found.append(quoted(name).alias(plain))
        return [*found, *own]


def _where(frame: DataFrame, conditions: Sequence[Column]) -> DataFrame:
    return frame.where(all_of(conditions)) if conditions else frame


def _made(name: str) -> str:
    """Return the name of a column that is computed for an attribute, or for an event's id, time or source."""
    return f"@{name}"


def _data(number: int) -> str:
    """Return the name under which a column of the data stands beside those of events."""
    return f"@d{number}"


def _shown(
    frame: DataFrame, events: EventColumns, program: Program, policy: PipelinePolicy, constants: OneRow
) -> tuple[DataFrame, dict[str, Column]]:
    """Return the rows that a program shows, and the values of the attributes that it can show, by name."""
    by_type = ByType(events.types, told=events.told)
    asked = by_type.program(program)
    sources = transit_sources(events.types)
    environment = environment_of(policy, constants)
    viewer = Viewer(sources, environment, by_type.guards())
    shape, values = shape_of(asked, {name: source.kind for name, source in sources.items()})
    parameters = constants.parameters(Constants(list(values)))
    if len(shape.branches) == 1:
        # One right is a filter and a projection, which Spark plans as quickly as a query written by hand.
        known = {**sources, **parameters}, {**environment, **parameters}
        views = {a.name: ColumnSource(_seen(a, sources), a.spec.kind) for a in visible_attributes(program)}
        wanted = demands(shape.branches[0], *known, by_type.guards())
        if not is_always(shape.selector):
            wanted.append(compile_condition(shape.selector, {**views, **parameters}).true)
        return _where(constants.join(frame), wanted), {name: one.column for name, one in views.items()}
    words = [f"@w{number}" for number in range(viewer.words)]
    seen = [quoted(name) for name in words]
    joined = constants.join(viewer.hoist(frame))
    found = joined.withColumns(dict(zip(words, viewer.shown(shape, parameters), strict=True)))
    if not is_always(shape.selector):
        found = found.where(seen[0] != 0)
        found = found.withColumns(dict(zip(words, viewer.asked(shape, parameters, seen), strict=True)))
    visible = {a.name for a in visible_attributes(program)}
    own = {name: value for name, value in viewer.values(program.event_type, seen).items() if name in visible}
    return found.where(seen[0] != 0), own


def _seen(attribute: Attribute, sources: Mapping[str, ColumnSource]) -> Column:
    """Return an attribute that is shown, in the reader's version; null if that cannot hold its value."""
    source = sources.get(attribute.id)
    if source is None or source.kind is not attribute.spec.kind:
        return literal(None, attribute.spec.kind)
    return source.column if attribute.spec.domain is None else F.when(fits(source.column, attribute), source.column)


def _explained(
    events: EventColumns, program: Program, policy: PipelinePolicy, constants: OneRow, *, quoting: bool
) -> DataFrame:
    by_type = ByType(events.types, told=events.told)
    sources = transit_sources(events.types)
    environment = environment_of(policy, constants)
    shape, values = shape_of(by_type.program(program), {name: source.kind for name, source in sources.items()})
    parameters = constants.parameters(Constants(list(values)))
    asked = {**sources, **parameters}, {**environment, **parameters}, by_type.guards()
    frame = constants.join(events.judged())
    held = [quoted(f"@h{number}") for number in range(len(shape.branches))]
    frame = frame.withColumns({f"@h{n}": holds(branch, *asked) for n, branch in enumerate(shape.branches)})
    names = {str(a.id): a.name for a in program.event_type.attributes}
    rights = [f"right {n}" for n in range(1, len(held) + 1)]
    reasons: list[Column] = []
    for right, branch, one, there in zip(rights, program.restriction.branches, shape.branches, held, strict=True):
        only = replace(one, where=ALWAYS.root, when=ALWAYS.root, starts=None, ends=None, guards=frozenset())
        dates, moment = replace(only, starts=one.starts, ends=one.ends), replace(only, when=one.when)
        where = f"the event does not match {_quoted(branch.holds_where().rename(names).text, quoting)}"
        text = (
            F.when(there, F.lit(f"{right} shows it: {', '.join(branch.because) or 'no certificate is named'}"))
            .when(~holds(dates, *asked), F.lit(f"{right} is not valid at the event's time"))
            .when(
                ~holds(moment, *asked),
                F.lit(f"{right} has a condition that is not met: {_quoted(branch.when.condition.text, quoting)}"),
            )
            .when(
                ~holds(replace(only, guards=one.guards), *asked),
                F.lit(f"{right} is about other types, or depends on a guard whose result is not known here"),
            )
            .otherwise(F.lit(f"{right} does not apply: {where}"))
        )
        reasons.append(text)
    if not reasons:
        reasons.append(F.lit(f"`{program.readers[0]}` has no right to subscribe to `{program.event_type.name.name}`"))
    viewed = {a.id: sources[a.id] for a in program.event_type.attributes if a.id in sources}
    own: dict[str, ColumnSource] = {}
    attributes: list[Column] = []
    for a in program.event_type.attributes:
        listing = [n for n, branch in enumerate(shape.branches) if branch.shows(a.id)]
        why = F.lit("no right that applies lists it" if listing else "no right lists it")
        for n in reversed(listing):
            why = F.when(held[n], F.lit(f"{rights[n]} lists it")).otherwise(why)
        source = viewed.get(a.id)
        if source is not None and source.kind is a.spec.kind:
            seen = any_of([held[n] for n in listing]) & fits(source.column, a)
            own[a.name] = ColumnSource(F.when(seen, source.column), a.spec.kind)
            if listing:
                why = F.when(source.column.isNull(), F.lit("the event has no value for it")).otherwise(why)
        attributes += [F.lit(a.name), why]
    found = any_of(held)
    accepted = compile_condition(shape.selector, {**own, **parameters}).true
    told = is_known(events.types) if events.told else F.lit(True)
    filtered = f"the reader's own filter does not accept what it sees: {_quoted(program.selector.text, quoting)}"
    rejected = F.when(found & ~accepted, F.array(F.lit(filtered))).otherwise(F.array().cast("array<string>"))
    bad = events.said(lambda one: f"it is not an event: {one.words}")
    shown = quoted(_WRONG).isNull() & told & found & accepted
    return frame.select(
        *events.row(),
        shown.alias(SHOWN),
        F.when(bad.isNotNull(), F.array(bad))
        .when(~told, F.array(F.lit("it is of a type that the policy does not have")))
        .otherwise(F.concat(F.array(*reasons), rejected))
        .alias(REASONS),
        F.when(shown, F.create_map(*attributes)).alias(ATTRIBUTES),
    )


def _quoted(text: str, quoting: bool) -> str:  # whether conditions are quoted
    return f"`{text}`" if quoting else "its condition"


def visible_attributes(program: Program) -> list[Attribute]:
    """Return the attributes that some right of a reader shows."""
    branches = program.restriction.branches
    return [a for a in program.event_type.attributes if any(branch.shows(a.id) for branch in branches)]


def _needed(program: Program) -> frozenset[str]:
    """Return the ids of the attributes that a program shows or asks about."""
    asked = (branch.holds_where().attributes for branch in program.restriction.branches)
    return frozenset(str(a.id) for a in visible_attributes(program)).union(*asked)


def _asks_time(program: Program) -> bool:
    whens = [branch.when for branch in program.restriction.branches]
    return any(w.validity.starts or w.validity.ends or w.condition != ALWAYS for w in whens)


def _no_time(whose: str) -> MalformedError:
    return MalformedError(
        "view.time",
        f"the rights of {whose} depend on the time of each event, and no column has it",
        hint='name the column: `mapping={"@time": "…"}`',
    )


def _is_plain(attribute: Attribute, origin: Origin, fields: Mapping[str, DataType]) -> bool:
    """Return whether a column holds the values of an attribute as they are, and each of them fits."""
    if not isinstance(origin, FromColumn) or attribute.spec.domain is not None:
        return isinstance(origin, ConstantColumn)
    found = fields.get(origin.column)
    if isinstance(found, StringType) and (found != StringType() or origin.reading.trim or origin.reading.null):
        return False
    return isinstance(found, _PLAIN[attribute.spec.kind])


# --- Mappings --------------------------------------------------------------------------------------------------------


def _bound(
    df: DataFrame, policy: PipelinePolicy, program: Program, mapping: ColumnMapping
) -> tuple[BoundMapping, DataFrame]:
    """Return a mapping of a DataFrame, which has further columns if the mapping computes some."""
    if isinstance(mapping, BoundMapping):
        return mapping, df
    if mapping is None or isinstance(mapping, Mapping):
        return _named(df, program.event_type, mapping or {})
    return read_bound_mapping(mapping, policy), df


def read_bound_mapping(file: str | os.PathLike[str], policy: PipelinePolicy) -> BoundMapping:
    """Read a mapping file, and find the type that it names among those of a policy."""
    path = os.fspath(file)
    data = read_file(path)
    with within(path):
        found = read_mapping(data)
    type_file = str(Path(path).parent / found.type_file)
    with naming_type(path):
        data = read_file(type_file)
    with within(type_file):
        name = read_type(data).definition.name
    for verified in policy.types:
        if verified.event_type.name == name:
            with within(path):
                return found.bind(verified)
    raise MalformedError(
        "view.type",
        f"the policy does not have the type `{name.name}` version {name.version} of the mapping `{path}`",
        hint="add its file to `types` of the policy file",
    )


def _named(
    df: DataFrame, event_type: EventType, given: Mapping[str, str | Column | None]
) -> tuple[BoundMapping, DataFrame]:
    """Return the mapping of columns by name. What is not named is the column of the same name."""
    allowed = (*METADATA, *event_type.by_name)
    if unknown := [name for name in given if name not in allowed]:
        raise MalformedError(
            "mapping.attribute",
            f"`{event_type.name.name}` version {event_type.name.version} has no attribute `{unknown[0][:80]}`",
            hint=did_you_mean(unknown[0], allowed, f"it has: {', '.join(event_type.by_name)}"),
        )
    made: dict[str, Column] = {}
    there = set(df.columns)

    def origin(name: str) -> FromColumn | None:
        column = given.get(name, name)
        if isinstance(column, Column):
            made[_made(name)] = column
            return FromColumn(_made(name), _AS_IS)
        if column is None or (name not in given and name in METADATA and name not in there):
            return None
        if column not in there:
            raise MalformedError(
                "mapping.column",
                f"there is no column `{column[:80]}` for the attribute `{name}`",
                hint=f'name its column, `mapping={{"{name}": "…"}}`, or None if the data does not have it; '
                + did_you_mean(column, there, f"there are: {', '.join(sorted(there))[:400]}"),
            )
        return FromColumn(column, _AS_IS)

    metadata = [origin(name) for name in METADATA]
    attributes = {a.name: found for a in event_type.attributes if (found := origin(a.name)) is not None}
    # What stands here for what the data does not have is not shown.
    identity, time, source = metadata
    made_of = TableMapping(
        "",
        MappedFormat.PARQUET,
        identity or _NO_ID,
        time or _NO_TIME,
        source or ConstantColumn(str(event_type.name.owner)),
        attributes,
        CsvLayout(),
    )
    return BoundMapping(made_of, event_type), df.withColumns(made) if made else df
