"""Deliver events to a whole set of readers in one pass over the events.

A question is one program, for delivery, or a reader's programs before and after a change, for what-if. Questions that
differ only in their constants have one form. If a form has few questions, they are expressions over the event. If it
has many, they are rows of a broadcast table, which the event finds by a key: an equality, or a bin of a range, in a
restriction or in a reader's own filter. What the key finds is then evaluated exactly, so the join affects only speed.

Constants of a policy are data of broadcast tables. In an expression they would be printed: in plans, in the UI, in
logs. Only the filter that is pushed down to the files contains some, unless the policy hides them.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from itertools import chain
from math import floor, isfinite
from typing import Final, TypeAlias

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # the name that everybody knows it by

from penstock.guard.restriction import Branch, Restriction
from penstock.model.names import TypeKey
from penstock.model.types import EventType
from penstock.model.values import Kind, Value
from penstock.pipeline.enforce.manifest import PROGRAM as PROGRAM
from penstock.pipeline.enforce.manifest import SUBSCRIBER as SUBSCRIBER
from penstock.pipeline.enforce.manifest import asked_programs, subscribers_of
from penstock.pipeline.enforce.manifest import no_view as no_view
from penstock.pipeline.enforce.policy import PipelinePolicy
from penstock.pipeline.enforce.programs import (
    Constants,
    OneRow,
    Program,
    Shape,
    Slots,
    equality,
    shape_of,
    shared_shape,
    span,
    table,
    unfiltered,
)
from penstock.pipeline.enforce.pushdown import filter_column, necessary_for
from penstock.pipeline.enforce.restrict import Viewer, bits, either, in_environment, is_always, keep_here
from penstock.pipeline.frames import (
    ID,
    METADATA,
    SOURCE,
    TIME,
    ColumnSource,
    attributes_of,
    choice,
    in_quotes,
    literal,
    metadata,
    micros,
    quoted,
    transit_sources,
)
from penstock.pipeline.ingest.event_frames import TYPE
from penstock.pipeline.shared_columns import OF, SharedColumns, are_many, is_one_of, parts_of

# ----------------------------------------------------------------------------------------------------------------------
# Keys by which events find rows of a table of constants: a value, or the bin of a range that it lies in.


KEY: Final[Mapping[str, Kind]] = {"@text": Kind.STRING, "@whole": Kind.INTEGER, "@real": Kind.FLOAT}
"""The columns in which a key stands in a table, to be hashed together. What is null does not count in a hash."""
_BINS: Final = 4_096
_BINS_PER_SPAN: Final = 256
_FINER: Final = (16, 4, 2)
"""Bins for each span, the finest first that do not make a span touch too many: fewer spans share a bin then."""


def key_of(source: ColumnSource) -> Column:
    """Return a value as it goes into the hash of a key; equal values have one form."""
    if source.kind is Kind.TIMESTAMP:
        return F.unix_micros(source.column)
    if source.kind is Kind.BOOLEAN:
        return source.column.cast("bigint")
    # Zero has two signs, and both are equal.
    return source.column + F.lit(0.0) if source.kind is Kind.FLOAT else source.column


def stored_key(key: Value | None) -> tuple[str | None, int | None, float | None]:
    """Return a constant as it stands in the columns of a key, as `key_of` has it."""
    if isinstance(key, str):
        return key, None, None
    if isinstance(key, float):
        return None, None, key + 0.0
    return None, micros(key) if isinstance(key, datetime) else None if key is None else int(key), None


@dataclass(frozen=True, slots=True)
class Bins:
    """Bins of equal width over some spans: numbers as they are, times in microseconds.

    The bins of a span are computed by the same operations on the same doubles as the bin of a value. Rounding keeps the
    order of values, so a value of a span lies in one of its bins.
    """

    low: float
    width: float
    last: int
    kind: Kind

    @classmethod
    def of(cls, groups: Sequence[Sequence[tuple[Value, Value]]], kind: Kind) -> "Bins | None":
        """Choose bins for groups of spans, or None where they would not help.

        That is where an end is infinite, a span covers most of everything, or all of them together are longer than the
        largest number or too short for bins to have a width.
        """
        spans = [(_number(low), _number(high)) for group in groups for low, high in group]
        if not spans or not all(isfinite(low) and isfinite(high) for low, high in spans):
            return None
        low, high = min(s[0] for s in spans), max(s[1] for s in spans)
        if high < low:
            return None
        # Whole numbers have bins of their own, if there are not too many.
        least = 0.0 if kind is Kind.FLOAT else 1.0
        for finer in _FINER:
            width = max(least, (high - low) / min(_BINS, finer * len(spans)))
            if not (isfinite(width) and width > 0):
                return None
            bins = cls(low, width, floor((high - low) / width), kind)
            if all(len(bins._covered(*span)) <= _BINS_PER_SPAN for span in spans):
                return bins
        return None

    def touched(self, spans: Sequence[tuple[Value, Value]]) -> set[int]:
        """Return the bins that some spans touch."""
        return {place for low, high in spans for place in self._covered(_number(low), _number(high))}

    def _covered(self, low: float, high: float) -> range:
        if high < low:
            return range(0)
        return range(floor((low - self.low) / self.width), floor((high - self.low) / self.width) + 1)

    def column(self, value: Column, constants: OneRow) -> Column:
        """Return the bin of an event's value; what lies outside of all spans has a bin that no span covers."""
        number = F.unix_micros(value) if self.kind is Kind.TIMESTAMP else value
        low, width = (constants.source(bound, Kind.FLOAT).column for bound in (self.low, self.width))
        place = F.try_divide(number.cast("double") - low, width)
        return F.floor(F.greatest(F.least(place, F.lit(float(self.last + 1))), F.lit(-3.0))).try_cast("bigint")


def _number(value: Value) -> float:
    if isinstance(value, datetime):
        return float(micros(value))
    return float(value)


# ----------------------------------------------------------------------------------------------------------------------
# Find the questions that concern an event.


QUESTION: Final = "@question"
VERSION: Final = "@version"
"""The column of the number of the reader's version, in rows that share columns."""
_SLOT, _ENTRY, _KEY, _OF = "@slot", "@entry", "@key", "@slot of"
_FEW: Final = 4
"""Questions of one form that are cheaper as expressions than as a join."""
_SOME: Final = 16
"""Questions of one form without a key that are better rows of a table, on all of which every event is tried."""

Words: TypeAlias = Sequence[Column]
Relevant: TypeAlias = Callable[[Sequence[Words]], Column]
"""Says from the words of all parts of a question whether its answer is wanted."""
Shaping: TypeAlias = Callable[[Program], tuple[Shape, tuple[Value, ...]]]
"""Returns the shape of a program and its constants."""


@dataclass(frozen=True, slots=True)
class SearchQuestion:
    """What is evaluated for an event: for each part the programs any of which may show it."""

    number: int
    parts: tuple[tuple[Program, ...], ...]


@dataclass(frozen=True, slots=True)
class _Form:
    """What questions that differ only in their constants have in common."""

    parts: tuple[tuple[Shape, ...], ...]

    @property
    def shapes(self) -> tuple[Shape, ...]:
        return tuple(chain.from_iterable(self.parts))

    @property
    def kinds(self) -> tuple[Kind, ...]:
        return tuple(kind for shape in self.shapes for kind in shape.kinds)

    def each(self, parameters: Mapping[str, ColumnSource]) -> Iterator[tuple[Shape, dict[str, ColumnSource]]]:
        """Yield each shape with its own part of the parameters."""
        start = 0
        for shape in self.shapes:
            yield shape, {f"@p{n}": parameters[f"@p{start + n}"] for n in range(len(shape.kinds))}
            start += len(shape.kinds)

    def joined(self, words: Sequence[Words]) -> list[list[Column]]:
        """Return the words of each part, of those of each shape."""
        found, left = [], iter(words)
        for part in self.parts:
            views = [next(left) for _ in part]
            found.append([either(list(word)) for word in zip(*views, strict=True)] if views else [])
        return found


Members: TypeAlias = Sequence[tuple[SearchQuestion, tuple[Value, ...]]]


@dataclass(frozen=True, slots=True)
class _Inline:
    """A question that is an expression."""

    question: SearchQuestion
    form: _Form
    parameters: Mapping[str, ColumnSource]


@dataclass(frozen=True, slots=True)
class _Probe:
    """A form whose questions are rows of a table: the key of an event, and the questions under each key."""

    form: _Form
    key: tuple[Column, ...]
    table: Mapping[Value | None, Members]


class Finder:
    """Finds the questions that an event is relevant to.

    Each question that is an expression and each probe is a *slot*. An event is repeated for every slot in which it has
    something: an answer, or a key to look up.
    """

    def __init__(
        self, events: DataFrame, viewer: Viewer, relevant: Relevant, *, parts: int = 1, shape: Shaping | None = None
    ) -> None:
        self._events = events
        self._kinds = {name: source.kind for name, source in viewer.sources.items()}
        self._shape = shape or (lambda program: shape_of(program, self._kinds))
        self._viewer = viewer
        self._relevant = relevant
        self._constants = OneRow("@i")
        self._parts = parts

    def find(self, questions: Iterable[SearchQuestion]) -> DataFrame:
        """Return the events, once for each question that they are relevant to: its number, and the words of it."""
        inline: list[_Inline] = []
        probes: list[_Probe] = []
        for form, members in self._forms(questions).items():
            probe = self._probe(form, members) if len(members) > _FEW else None
            if probe is not None:
                probes.append(probe)
            else:
                inline += [self._inline(question) for question, _ in members]
        frame = self._slots(self._expressions(inline), inline, probes)
        frame = self._found(frame, inline, probes) if probes else self._chosen(frame, inline)
        words = [quoted(name) for part in self.words() for name in part]
        passed = [quoted(name) for name in self._events.columns]
        answers = [[quoted(name) for name in part] for part in self.words()]
        return keep_here(frame, self._relevant(answers), [*passed, quoted(QUESTION), *words])

    def words(self) -> list[list[str]]:
        """Return the names of the words of each part, in the frame that `find` returns."""
        return [[f"@w{part}_{word}" for word in range(self._viewer.words)] for part in range(self._parts)]

    def _forms(
        self, questions: Iterable[SearchQuestion]
    ) -> dict[_Form, list[tuple[SearchQuestion, tuple[Value, ...]]]]:
        found: dict[_Form, list[tuple[SearchQuestion, tuple[Value, ...]]]] = {}
        for question in questions:
            made = [[self._erased(*self._shape(program)) for program in part] for part in question.parts]
            form, values = _joined(made)
            found.setdefault(form, []).append((question, values))
        return found

    def _erased(self, shape: Shape, values: tuple[Value, ...]) -> tuple[Shape, tuple[Value, ...]]:
        """Return a shape with what its branches show among the constants: it is more of the same shape then."""
        constants = Constants(list(values))
        branches = tuple(
            replace(branch, attributes=None, bits=tuple(map(constants.name, self._viewer.mask(shape, branch))))
            for branch in shape.branches
        )
        return replace(shape, branches=branches, kinds=constants.kinds), tuple(constants.values)

    def _inline(self, question: SearchQuestion) -> _Inline:
        form, values = _joined([[self._shape(program) for program in part] for part in question.parts])
        return _Inline(question, form, self._constants.parameters(Constants(list(values))))

    def _probe(self, form: _Form, members: Members) -> _Probe | None:
        if (key := equality(form.shapes, self._kinds)) is not None:
            return _Probe(form, (key_of(self._viewer.sources[key[0]]),), _by_key(members, key[1]))
        spanned = span(form.shapes, self._kinds)
        if spanned is not None:
            name, keys = spanned
            spans = [[(values[low], values[high]) for low, high in keys] for _, values in members]
            if (bins := Bins.of(spans, self._kinds[name])) is not None:
                under: dict[Value | None, list[tuple[SearchQuestion, tuple[Value, ...]]]] = {}
                for member, touched in zip(members, map(bins.touched, spans), strict=True):
                    for place in touched:
                        under.setdefault(place, []).append(member)
                return _Probe(form, (bins.column(quoted(name), self._constants),), {**under})
        return _Probe(form, (), {None: members}) if len(members) > _SOME else None

    def _expressions(self, inline: Sequence[_Inline]) -> DataFrame:
        """Return the events with the words of each shape of each question that is an expression beside them."""
        frame = self._constants.join(self._viewer.hoist(self._events))
        asked: dict[str, Column] = {}
        shown: dict[str, Column] = {}
        for number, one in enumerate(inline):
            for place, (shape, known) in enumerate(one.form.each(one.parameters)):
                names = self._names(number, place)
                shown |= zip(names, self._viewer.shown(shape, known), strict=True)
                if not is_always(shape.selector):
                    asked |= zip(names, self._viewer.asked(shape, known, list(map(quoted, names))), strict=True)
        frame = frame.withColumns(shown) if shown else frame
        return frame.withColumns(asked) if asked else frame

    def _names(self, number: int, place: int) -> list[str]:
        return [f"@v{number}_{place}_{word}" for word in range(self._viewer.words)]

    def _answer(self, number: int, form: _Form) -> list[list[Column]]:
        """Return the words of the parts of a question that is an expression."""
        views = [list(map(quoted, self._names(number, place))) for place in range(len(form.shapes))]
        return [part or [bits(0)] * self._viewer.words for part in form.joined(views)]

    def _slots(self, frame: DataFrame, inline: Sequence[_Inline], probes: Sequence[_Probe]) -> DataFrame:
        """Repeat each event for the slots in which it has something."""
        wanted = [self._relevant(self._answer(number, one.form)) for number, one in enumerate(inline)]
        entries = [F.when(answer, bits(1)) for answer in wanted]
        entries += [F.xxhash64(F.lit(n), *probe.key) for n, probe in enumerate(probes, start=len(inline))]
        if len(entries) == 1:
            # Where there is one slot, Spark folds every choice of a slot away.
            return frame.withColumns({_SLOT: F.lit(0), _ENTRY: entries[0]})
        array = F.array(*entries) if entries else F.array().cast("array<bigint>")
        return frame.select("*", F.posexplode(array).alias(_SLOT, _ENTRY)).where(quoted(_ENTRY).isNotNull())

    def _chosen(self, frame: DataFrame, inline: Sequence[_Inline]) -> DataFrame:
        """Name the questions of a frame whose slots are all expressions."""
        answers = {number: self._answer(number, one.form) for number, one in enumerate(inline)}
        numbers = {number: F.lit(one.question.number) for number, one in enumerate(inline)}
        return frame.withColumns({QUESTION: _case(numbers, F.lit(0)), **self._by_slot(answers)})

    def _by_slot(self, answers: Mapping[int, Sequence[Words]]) -> dict[str, Column]:
        return {
            column: _case({slot: answer[part][word] for slot, answer in answers.items()}, bits(0))
            for part, columns in enumerate(self.words())
            for word, column in enumerate(columns)
        }

    def _found(self, frame: DataFrame, inline: Sequence[_Inline], probes: Sequence[_Probe]) -> DataFrame:
        """Look the keys up, and evaluate what is found exactly: two keys may have one hash."""
        slots = Slots("@s")
        known = [slots.take(probe.form.kinds) for probe in probes]
        rows = self._table(slots, inline, probes)
        sought = quoted(_ENTRY)
        if inline:
            sought = F.when(quoted(_SLOT) < len(inline), quoted(_SLOT).cast("bigint")).otherwise(sought)
        # A difference, because Spark would make an equation a part of the key, and a key of two columns is slower.
        found = frame.join(F.broadcast(rows), sought == quoted(_KEY)).where(quoted(_OF) - quoted(_SLOT) == 0)
        shown: dict[str, dict[int, Column]] = {}
        asked: dict[str, dict[int, Column]] = {}
        answers: dict[int, Sequence[Words]] = {n: self._answer(n, one.form) for n, one in enumerate(inline)}
        for slot, (probe, parameters) in enumerate(zip(probes, known, strict=True), start=len(inline)):
            for place, (shape, own) in enumerate(probe.form.each(parameters)):
                names = self._names(len(inline), place)
                for name, word in zip(names, self._viewer.shown(shape, own), strict=True):
                    shown.setdefault(name, {})[slot] = word
                if not is_always(shape.selector):
                    for name, word in zip(names, self._viewer.asked(shape, own, list(map(quoted, names))), strict=True):
                        asked.setdefault(name, {})[slot] = word
            answers[slot] = self._answer(len(inline), probe.form)
        found = found.withColumns({name: _case(cases, bits(0)) for name, cases in shown.items()})
        if asked:
            found = found.withColumns({name: _case(cases, quoted(name)) for name, cases in asked.items()})
        return found.withColumns(self._by_slot(answers))

    def _table(self, slots: Slots, inline: Sequence[_Inline], probes: Sequence[_Probe]) -> DataFrame:
        kinds = {_OF: Kind.INTEGER, QUESTION: Kind.INTEGER, **KEY, **slots.kinds}
        rows: list[list[Value | None]] = [
            [slot, one.question.number, *stored_key(None), *slots.row((), ())] for slot, one in enumerate(inline)
        ]
        for slot, probe in enumerate(probes, start=len(inline)):
            for key, members in probe.table.items():
                stored = stored_key(key)
                rows += [[slot, q.number, *stored, *slots.row(probe.form.kinds, values)] for q, values in members]
        made = table(self._events.sparkSession, kinds, rows)
        hashed = F.xxhash64(quoted(_OF).cast("int"), *map(quoted, KEY))
        return made.select(
            F.when(quoted(_OF) < len(inline), quoted(_OF)).otherwise(hashed).alias(_KEY),
            quoted(_OF).cast("int").alias(_OF),
            quoted(QUESTION).cast("int").alias(QUESTION),
            *map(quoted, slots.kinds),
        )


def _case(cases: Mapping[int, Column], otherwise: Column) -> Column:
    """Return the value in the slot of a row."""
    return choice(quoted(_SLOT), cases, otherwise)


def _joined(made: Sequence[Sequence[tuple[Shape, tuple[Value, ...]]]]) -> tuple[_Form, tuple[Value, ...]]:
    form = _Form(tuple(tuple(shape for shape, _ in part) for part in made))
    return form, tuple(value for part in made for _, values in part for value in values)


def _by_key(members: Members, keys: Sequence[int]) -> dict[Value | None, Members]:
    found: dict[Value | None, list[tuple[SearchQuestion, tuple[Value, ...]]]] = {}
    for question, values in members:
        for key in dict.fromkeys(values[number] for number in keys):
            found.setdefault(key, []).append((question, values))
    return {**found}


# ----------------------------------------------------------------------------------------------------------------------
# Delivery. Each program that shows an event is found together with the words of bits (`restrict`) that mask its
# attributes.


@dataclass(frozen=True, slots=True)
class Delivered:
    """The deliveries to all readers of a policy: rows by program, with attributes under their ids.

    Readers who share a program share its rows; `for_subscriber` is a view on them in the reader's own version, and
    `by_subscriber` repeats them for each reader. `without_rights` names the subscribers who may see nothing.
    """

    rows: DataFrame
    programs: tuple[Program, ...]
    without_rights: tuple[str, ...] = ()
    #: the columns of the attributes, if many types share them; rows then have the number of the reader's version
    shared: SharedColumns | None = None

    def for_subscriber(self, name: str) -> DataFrame:
        """Return one reader's events, under the names of its version.

        Raises `RefusedError` (`pipeline.no-rights`), `MalformedError` (`pipeline.unknown-subscriber`).
        """
        for program in self.programs:
            if name in program.readers:
                own = (
                    (literal(None, kind) if column is None else quoted(column)).alias(name)
                    for name, column, kind in self.view(program.event_type)
                )
                return self.rows.where(quoted(PROGRAM) == program.number).select(*metadata(), *own)
        readers = [reader for program in self.programs for reader in program.readers]
        raise no_view(name, readers, self.without_rights)

    def by_subscriber(self) -> DataFrame:
        """Return a row for each reader and event, with the reader's name in `@subscriber`."""
        pairs = [(program.number, reader) for program in self.programs for reader in program.readers]
        kinds = {PROGRAM: Kind.INTEGER, SUBSCRIBER: Kind.STRING}
        readers = table(self.rows.sparkSession, kinds, pairs)
        readers = readers.select(quoted(PROGRAM).cast("int").alias(PROGRAM), SUBSCRIBER)
        return self.rows.join(F.broadcast(readers), PROGRAM)

    def view(self, version: EventType) -> tuple[tuple[str, str | None, Kind], ...]:
        """Return the attributes of a version: the name, the column of the rows if they have it, and the kind of each.

        Versions with an equal view differ in nothing that rows say.
        """
        shared = self.shared
        if shared is None:
            return tuple((a.name, str(a.id), a.spec.kind) for a in version.attributes)
        own = shared.own(version)
        return tuple((a.name, own.get(str(a.id)), a.spec.kind) for a in version.attributes)

    def by_id(self, types: Iterable[EventType]) -> "Delivered":
        """Return the same with a column for each attribute of some types."""
        shared = self.shared
        if shared is None:
            return self
        attributes = shared.spread(VERSION, _versions(self.programs), types)
        return replace(self, rows=self.rows.selectExpr(*map(in_quotes, (PROGRAM, *METADATA)), *attributes), shared=None)

    def parts(self, there: Collection[int] | None = None) -> list[DataFrame]:
        """Return the rows with a column for each attribute id, as they are stored.

        Those of many types are in parts, by the versions of their readers, each with only its own columns. Programs
        that are not `there`, by number, have none (default: all have rows).
        """
        if self.shared is None:
            return [self.rows]
        versions = _versions(self.programs)
        numbers = {version: number for number, version in enumerate(versions)}
        some = dict.fromkeys(one.event_type for one in self.programs if there is None or one.number in there)
        found = []
        for part in parts_of(some or versions[:1]):
            own = self.rows.where(quoted(VERSION).between(numbers[part[0]], numbers[part[-1]]))
            found.append(replace(self, rows=own).by_id(part).rows)
        return found or [self.by_id(()).rows]


def _versions(programs: Iterable[Program]) -> list[EventType]:
    """Return the versions that programs are in, each in the place that is its number."""
    return sorted({program.event_type for program in programs}, key=lambda one: str(one.name))


def is_known(types: Sequence[EventType]) -> Column:
    """Say of which events `@type` is one of some versions; never null."""
    return F.coalesce(quoted(TYPE).isin(*(str(one.name) for one in types)), F.lit(False))


class ByType:
    """Asks of each event whether it is of a type that a branch is about, as if by guards: one for each set of types.

    Where a branch is about all types nothing is asked: that no event is of another one is seen to before (`is_known`).
    """

    def __init__(self, types: Sequence[EventType], *, told: bool) -> None:
        self._types = types
        self._told = told
        self._below = types_below(types)
        self._asked: dict[frozenset[str], str] = {}

    def program(self, program: Program) -> Program:
        """Return a program whose branches hold for events of what its reader subscribed to, as far as they say."""
        branches = tuple(self._branch(branch, program.event_type) for branch in program.restriction.branches)
        return replace(program, restriction=Restriction(branches))

    def _branch(self, branch: Branch, reader: EventType) -> Branch:
        below = self._below.get(reader.key, ())
        meant = frozenset(str(one.name) for one in below if branch.only is None or one.key in branch.only)
        if len(meant) == len(self._types) or (branch.only is None and not self._told):
            return replace(branch, only=None)
        guard = self._asked.setdefault(meant, f"@of {len(self._asked)}")
        return replace(branch, only=None, guards=branch.guards | {guard})

    def guards(self) -> dict[str, Column]:
        """Return the columns of what was asked; where no event says its type, none holds."""
        if not self._told:
            return {}
        return {name: quoted(TYPE).isin(*sorted(meant)) for meant, name in self._asked.items()}

    def numbers(self, of: Mapping[str, int]) -> dict[str, list[int]]:
        """Return what was asked, by the numbers of the types."""
        return {guard: sorted(of[name] for name in meant) for meant, guard in self._asked.items()}


def types_below(types: Iterable[EventType]) -> dict[TypeKey, list[EventType]]:
    """Return for each type the versions of it, and of the types that extend it, among some."""
    found: dict[TypeKey, list[EventType]] = {}
    for event_type in types:
        for key in dict.fromkeys((event_type.key, *event_type.ancestors)):
            found.setdefault(key, []).append(event_type)
    return found


def prefiltered(
    events: DataFrame, programs: Sequence[Program], kinds: Mapping[str, Kind], policy: PipelinePolicy
) -> DataFrame:
    """Return the events that some programs may show, as far as files can tell; all if constants are hidden."""
    known = {**kinds, TIME: Kind.TIMESTAMP}
    pushed = None if policy.constants == "hidden" else necessary_for(programs, known)
    return events if pushed is None else events.where(filter_column(pushed))


def deliver(  # noqa: PLR0913  # events, and who may see them; the rest has defaults
    events: DataFrame,
    types: Sequence[EventType],
    policy: PipelinePolicy,
    *,
    guards: Mapping[str, Column] | None = None,
    facts: Mapping[str, ColumnSource] | None = None,
    own_filters: bool = True,
    reader: str | None = None,
) -> Delivered:
    """Deliver a frame of transit events of some types to the subscribers of a policy.

    `types` are the versions whose attributes the frame has; of which of them an event is, `@type` says, without which
    all of them count as what each subscriber reads. Events of any other version go to nobody. `guards` has a boolean
    column for each guard whose results the log holds; a guard that is not there never holds. `facts` are columns that
    tell of each event what the policy says once for all. Without `own_filters`, return what the rights of those readers
    show who have a filter of their own, before that is asked. `reader` is the only subscriber to deliver to (default:
    all).

    Unless the policy hides its constants, what all that is shown has in common is pushed down to the files. Raises
    `SelectorError` for a filter that does not fit, and `MalformedError` (`pipeline.unknown-subscriber`).
    """
    asked, names = _programs(policy, own_filters=own_filters, reader=reader)
    found = _delivered(events, types, policy, asked=asked, names=names, guards=guards or {}, facts=facts)
    return found.by_id(types)


def deliver_shared(  # noqa: PLR0913  # as `deliver`
    events: DataFrame,
    types: Sequence[EventType],
    policy: PipelinePolicy,
    *,
    own_filters: bool = True,
    reader: str | None = None,
    there: Collection[str] | None = None,
) -> Delivered:
    """Deliver as `deliver`, with the rows of many types in shared columns.

    Types that are not `there`, by name, have no events (default: all have some). Raises as `deliver`.
    """
    asked, names = _programs(policy, own_filters=own_filters, reader=reader)
    return _delivered(events, types, policy, asked=asked, names=names, guards={}, facts=None, there=there)


def _programs(
    policy: PipelinePolicy, *, own_filters: bool, reader: str | None
) -> tuple[tuple[Program, ...], Sequence[str]]:
    """Return the programs of a policy, or of one reader, and who asked for them."""
    asked, names = asked_programs(policy, reader), [one.name for one in subscribers_of(policy, reader)]
    return asked if own_filters else unfiltered(asked), names


def _delivered(  # noqa: PLR0913  # all that `deliver` was given
    events: DataFrame,
    types: Sequence[EventType],
    policy: PipelinePolicy,
    *,
    asked: Sequence[Program],
    names: Sequence[str],
    guards: Mapping[str, Column],
    facts: Mapping[str, ColumnSource] | None,
    there: Collection[str] | None = None,
) -> Delivered:
    told = TYPE in events.columns
    by_type = ByType(types, told=told)
    programs = tuple(by_type.program(program) for program in asked)
    kinds = {str(a.id): a.spec.kind for a in attributes_of(types)}
    events = prefiltered(events, programs, kinds, policy)
    shared, shape, concerned = None, None, programs
    if told and are_many(types):
        shared = SharedColumns.of(types, _apart(asked, types))
        about = by_type.numbers(shared.numbers)
        concerned = tuple(one for program in programs for one in _of_each_type(program, about))
        shape = partial(shared_shape, kinds=kinds, shared=shared, about=about)
        # Those of other types are left out here.
        events = shared.gather(events, there)
        sources = {OF: ColumnSource(quoted(OF), Kind.INTEGER)}
        sources |= {str(column): ColumnSource(quoted(column), kind) for column, kind in shared.kinds.items()}
        used = {guard for one in concerned for branch in one.restriction.branches for guard in branch.guards}
        of_types = {guard: F.expr(is_one_of(OF, about[guard])) for guard in used if len(about.get(guard, ())) > 1}
    else:
        events = events.where(is_known(types)) if told else events
        sources, of_types = transit_sources(types), by_type.guards()
    read = _read(concerned, None if shared is None else shared.columns)
    events, sources = _packed(events, sources, read)
    events, environment = in_environment(events, policy, facts)
    viewer = Viewer(sources, environment, {**guards, **of_types}, read)
    finder = Finder(events, viewer, lambda parts: parts[0][0] != 0, shape=shape)
    found = finder.find(SearchQuestion(program.number, ((program,),)) for program in concerned)
    view = [quoted(name) for part in finder.words() for name in part]
    masked = [viewer.value(name, view).alias(name) for name in sources if name != OF]
    reading = {name for program in programs for name in program.readers}
    without = tuple(name for name in names if name not in reading)
    hidden = [program.number for program in programs if SOURCE not in program.metadata]
    source = quoted(SOURCE) if not hidden else F.when(~quoted(QUESTION).isin(*hidden), quoted(SOURCE))
    told_of = [quoted(ID), quoted(TIME), source.alias(SOURCE)]
    rows = found.select(quoted(QUESTION).alias(PROGRAM), *told_of, *masked)
    if shared is not None:
        rows = _in_versions(rows, programs)
    return Delivered(rows, programs, without, shared)


_WIDE: Final = 60
"""More attributes than this that no condition reads are one column on their way."""
_REST: Final = "@rest"


def _read(programs: Iterable[Program], columns: Mapping[str, str] | None) -> set[str]:
    """Return the attributes that rights and filters read, by id, or by their shared columns."""
    found = {OF}
    for program in programs:
        own = program.event_type.by_name
        names = {*_named(program), *(str(own[name].id) for name in program.selector.attributes if name in own)}
        found |= names if columns is None else {str(columns[name]) for name in names if name in columns}
    return found


def _packed(
    events: DataFrame, sources: Mapping[str, ColumnSource], read: Collection[str]
) -> tuple[DataFrame, dict[str, ColumnSource]]:
    """Return events, of which many attributes that no condition reads are in one column, and where attributes stand.

    Spark copies a row several times on its way to readers, column by column. What is one column is copied as a whole,
    and Spark generates no code for whole stages of rows with more than 100 columns.
    """
    rest = [name for name in sources if name not in read]
    if len(rest) <= _WIDE:
        return events, {**sources}
    known = {*rest}
    others = (in_quotes(name) for name in events.columns if name not in known)
    frame = events.selectExpr(*others, f"struct({', '.join(map(in_quotes, rest))}) AS {in_quotes(_REST)}")
    places = {
        name: ColumnSource(quoted(_REST).getField(name), source.kind) if name in known else source
        for name, source in sources.items()
    }
    return frame, places


_TYPES_APART: Final = 16
"""Programs about as many types are asked for each of them: by a constant, and not by an expression of their own."""


def _of_each_type(program: Program, about: dict[str, list[int]]) -> Iterator[Program]:
    """Yield a program for each type that a program is about, if those are few; nothing if it is about none.

    An event has one type, so at most one of them shows it. `about` gets the numbers of the guards that they have.
    """
    branches = program.restriction.branches
    meant = [[set(about[guard]) for guard in branch.guards if guard in about] for branch in branches]
    concerned = [
        (branch, set.intersection(*types) if types else None)
        for branch, types in zip(branches, meant, strict=True)
        if all(types)
    ]
    numbers = sorted({number for _, types in concerned for number in types or ()})
    if any(types is None for _, types in concerned) or len(numbers) > _TYPES_APART:
        yield program
        return
    for number in numbers:
        guard = f"@of number {number}"
        about[guard] = [number]
        own = tuple(
            replace(branch, guards=branch.guards.difference(about) | {guard})
            for branch, types in concerned
            if types is not None and number in types
        )
        yield replace(program, restriction=Restriction(own))


def _apart(programs: Iterable[Program], types: Sequence[EventType]) -> Iterator[frozenset[str]]:
    """Yield what must not share columns: attributes that a program names or shows, and those of events it is about."""
    below = types_below(types)
    for reader, named in {(one.event_type, _named(one)) for one in programs}:
        for event_type in below.get(reader.key, ()):
            yield frozenset({*named, *reader.by_id, *event_type.by_id})


def _named(program: Program) -> frozenset[str]:
    """Return the ids of the attributes that a program's rights compare."""
    return frozenset(name for branch in program.restriction.branches for name in branch.holds_where().attributes)


def _in_versions(rows: DataFrame, programs: Sequence[Program]) -> DataFrame:
    """Return rows with the number of the reader's version beside each."""
    numbers = {version: number for number, version in enumerate(_versions(programs))}
    read = [(program.number, numbers[program.event_type]) for program in programs]
    known = F.broadcast(table(rows.sparkSession, {_OF: Kind.INTEGER, VERSION: Kind.INTEGER}, read))
    return rows.join(known, quoted(PROGRAM) == quoted(_OF)).drop(_OF)
