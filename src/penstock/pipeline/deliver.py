"""Delivery to a whole set of readers in one pass over the events.

The few programs of a shape are expressions over the event. The many that differ only in their constants are rows of a
broadcast table, which the event finds by a key: an equality, or a bin of a range, in the restriction or in the reader's
own filter. What the key finds is then evaluated exactly, so that the join decides speed and never meaning. What a
program shows is a word of bits (`views`), and the attributes are masked by the word in the end.

No constant of a policy stands in an expression, because expressions are printed: in plans, in the UI, in logs. All of
them are data of broadcast tables.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import chain
from math import isfinite
from typing import Final, TypeAlias

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # the name that everybody knows it by

from penstock.errors import MalformedError
from penstock.model.types import EventType
from penstock.model.values import Kind, Value
from penstock.pipeline.columns import Source, micros
from penstock.pipeline.constants import OneRow, Slots
from penstock.pipeline.constants import table as constants_table
from penstock.pipeline.frames import attributes_of, metadata, quoted, transit_sources
from penstock.pipeline.policy import Policy
from penstock.pipeline.programs import Constants, Program, Shape, equality, group_by_shape, programs_of, span
from penstock.pipeline.restrict import environment_sources
from penstock.pipeline.views import Viewer, bits, is_always, keep

PROGRAM: Final = "@program"
SUBSCRIBER: Final = "@subscriber"
_SLOT, _ENTRY, _KEY, _OF = "@slot", "@entry", "@key", "@of"
_FEW: Final = 4
"""Programs of one shape that are cheaper as expressions than as a join."""
_SOME: Final = 16
"""Programs of one shape without a key that are better rows of a table, all of which every event is tried on."""
_BINS: Final = 4_096
_BINS_PER_SPAN: Final = 256


@dataclass(frozen=True, slots=True)
class Delivered:
    """What all readers of a policy get: rows by program, with attributes under their ids.

    Readers who share a program share its rows; `for_subscriber` is a view on them in the reader's own version, and
    `by_subscriber` repeats them for each reader.
    """

    rows: DataFrame
    programs: tuple[Program, ...]

    def for_subscriber(self, name: str) -> DataFrame:
        """Return what one reader gets, under the names of its version.

        Raises `MalformedError` (`pipeline.unknown-subscriber`).
        """
        for program in self.programs:
            if name in program.readers:
                own = [quoted(a.id).alias(a.name) for a in program.event_type.attributes]
                return self.rows.where(quoted(PROGRAM) == program.number).select(*metadata(), *own)
        raise MalformedError(
            "pipeline.unknown-subscriber",
            f"`{name}` is no reader of this policy, or may see nothing",
            hint="add it to the policy's subscribers; `penstock explain` says what a reader lacks",
        )

    def by_subscriber(self) -> DataFrame:
        """Return a row for each reader and event, with the reader's name in `@subscriber`."""
        pairs = [(program.number, reader) for program in self.programs for reader in program.readers]
        kinds = {PROGRAM: Kind.INTEGER, SUBSCRIBER: Kind.STRING}
        readers = constants_table(self.rows.sparkSession, kinds, pairs)
        readers = readers.select(quoted(PROGRAM).cast("int").alias(PROGRAM), SUBSCRIBER)
        return self.rows.join(F.broadcast(readers), PROGRAM)


def deliver(
    events: DataFrame,
    types: Sequence[EventType],
    policy: Policy,
    *,
    guards: Mapping[str, Column] | None = None,
    environment: Mapping[str, Source] | None = None,
) -> Delivered:
    """Deliver a frame of transit events of some types to the subscribers of a policy.

    `types` are the versions whose attributes the frame has. `guards` has a boolean column for each guard whose results
    the log holds; a guard that is not there never holds. Raises `SelectorError` for a filter that does not fit.
    """
    programs = programs_of(policy)
    return Delivered(_Plan(events, types, guards or {}, environment or environment_sources()).rows(programs), programs)


Members: TypeAlias = Sequence[tuple[Program, tuple[Value, ...]]]


@dataclass(frozen=True, slots=True)
class _Inline:
    """A program that is an expression."""

    program: Program
    shape: Shape
    parameters: Mapping[str, Source]


@dataclass(frozen=True, slots=True)
class _Probe:
    """A shape whose programs are rows of a table: the key of an event, and the programs under each key."""

    shape: Shape
    key: tuple[Column, ...]
    table: Mapping[Value | None, Members]


class _Plan:
    """Builds the frame of delivered rows.

    Each program that is an expression and each probe is a *slot*. An event is repeated for every slot in which it has
    something: words of a view there, or a key to look up.
    """

    def __init__(
        self,
        events: DataFrame,
        types: Sequence[EventType],
        guards: Mapping[str, Column],
        environment: Mapping[str, Source],
    ) -> None:
        self._events = events
        self._attributes = list(attributes_of(types))
        self._sources = transit_sources(types)
        self._kinds = {name: source.kind for name, source in self._sources.items()}
        self._viewer = Viewer(self._sources, environment, guards)
        self._constants = OneRow("@i")
        self._words = [f"@w{word}" for word in range(self._viewer.words)]

    def rows(self, programs: Iterable[Program]) -> DataFrame:
        """Return the delivered rows, one for each program that shows an event."""
        inline: list[_Inline] = []
        probes: list[_Probe] = []
        for shape, members in group_by_shape(programs, self._kinds).items():
            probe = self._probe(shape, members) if len(members) > _FEW else None
            if probe is not None:
                probes.append(probe)
            else:
                inline += [_Inline(p, shape, self._constants.parameters(Constants(list(v)))) for p, v in members]
        frame = self._slots(self._expressions(inline), len(inline), probes)
        frame = self._found(frame, inline, probes) if probes else self._chosen(frame, inline)
        view = [quoted(name) for name in self._words]
        passed = [quoted(PROGRAM), *metadata(), *(quoted(a.id) for a in self._attributes), *view]
        masked = [self._viewer.value(a.id, view).alias(str(a.id)) for a in self._attributes]
        return keep(frame, view[0] != 0, passed).select(PROGRAM, *metadata(), *masked)

    def _probe(self, shape: Shape, members: Members) -> _Probe | None:
        if (key := equality(shape, self._kinds)) is not None:
            return _Probe(shape, (_key(self._sources[key[0]]),), _by_key(members, key[1]))
        spanned = span(shape, self._kinds)
        if spanned is not None and (bins := _Bins.of(members, spanned[1], self._kinds[spanned[0]])) is not None:
            key_column = bins.column(quoted(spanned[0]), self._constants)
            return _Probe(shape, (key_column,), bins.table(members, spanned[1]))
        return _Probe(shape, (), {None: members}) if len(members) > _SOME else None

    def _expressions(self, inline: Sequence[_Inline]) -> DataFrame:
        """Return the events with the words of each program that is an expression beside them."""
        frame = self._constants.join(self._viewer.hoist(self._events))
        shown = [self._viewer.shown(one.shape, one.parameters) for one in inline]
        frame = frame.withColumns(dict(zip(self._of(inline), chain.from_iterable(shown), strict=True)))
        if all(is_always(one.shape.selector) for one in inline):
            return frame
        asked = [self._viewer.asked(one.shape, one.parameters, self._view(n)) for n, one in enumerate(inline)]
        return frame.withColumns(dict(zip(self._of(inline), chain.from_iterable(asked), strict=True)))

    def _of(self, inline: Sequence[_Inline]) -> list[str]:
        return [f"@v{number}{word}" for number in range(len(inline)) for word in self._words]

    def _view(self, number: int) -> list[Column]:
        return [quoted(f"@v{number}{word}") for word in self._words]

    def _slots(self, frame: DataFrame, inline: int, probes: Sequence[_Probe]) -> DataFrame:
        """Repeat each event for the slots in which it has something."""
        entries = [F.when(self._view(n)[0] != 0, self._view(n)[0]) for n in range(inline)]
        entries += [F.xxhash64(F.lit(n), *probe.key) for n, probe in enumerate(probes, start=inline)]
        if len(entries) == 1:
            return frame.withColumns({_SLOT: F.lit(0), _ENTRY: entries[0]})
        array = F.array(*entries) if entries else F.array().cast("array<bigint>")
        return frame.select("*", F.posexplode(array).alias(_SLOT, _ENTRY)).where(quoted(_ENTRY).isNotNull())

    def _chosen(self, frame: DataFrame, inline: Sequence[_Inline]) -> DataFrame:
        """Name the programs of a frame whose slots are all expressions."""
        numbers = {n: F.lit(one.program.number) for n, one in enumerate(inline)}
        words = [{n: self._view(n)[word] for n in range(len(inline))} for word in range(self._viewer.words)]
        chosen = {name: _case(_SLOT, cases) for name, cases in zip(self._words, words, strict=True)}
        return frame.withColumns({PROGRAM: _case(_SLOT, numbers).cast("int"), **chosen})

    def _found(self, frame: DataFrame, inline: Sequence[_Inline], probes: Sequence[_Probe]) -> DataFrame:
        """Look the keys up, and evaluate what is found exactly: two keys may have one hash."""
        slots = Slots("@s")
        parameters = [slots.take(probe.shape.kinds) for probe in probes]
        table = self._table(slots, inline, probes)
        sought = quoted(_ENTRY)
        if inline:
            sought = F.when(quoted(_SLOT) < len(inline), quoted(_SLOT).cast("bigint")).otherwise(sought)
        # A difference, because Spark would make an equation a part of the key, and a key of two columns is slower.
        found = frame.join(F.broadcast(table), sought == quoted(_KEY)).where(quoted(_OF) - quoted(_SLOT) == 0)
        views = [self._view(n) for n in range(len(inline))]
        views += [self._viewer.shown(probe.shape, known) for probe, known in zip(probes, parameters, strict=True)]
        found = found.withColumns(self._by_slot(dict(enumerate(views))))
        view = [quoted(name) for name in self._words]
        asked = {
            n: self._viewer.asked(probe.shape, known, view)
            for n, (probe, known) in enumerate(zip(probes, parameters, strict=True), start=len(inline))
            if not is_always(probe.shape.selector)
        }
        return found.withColumns(self._by_slot(asked, view)) if asked else found

    def _by_slot(self, views: Mapping[int, Sequence[Column]], otherwise: Sequence[Column] = ()) -> dict[str, Column]:
        return {
            name: _case(_OF, {n: view[word] for n, view in views.items()}, otherwise[word] if otherwise else None)
            for word, name in enumerate(self._words)
        }

    def _table(self, slots: Slots, inline: Sequence[_Inline], probes: Sequence[_Probe]) -> DataFrame:
        kinds = {_OF: Kind.INTEGER, PROGRAM: Kind.INTEGER, "@text": Kind.STRING, "@whole": Kind.INTEGER}
        kinds |= {"@real": Kind.FLOAT, **slots.kinds}
        rows: list[list[Value | None]] = [
            [n, one.program.number, None, None, None, *slots.row((), ())] for n, one in enumerate(inline)
        ]
        for number, probe in enumerate(probes, start=len(inline)):
            for key, members in probe.table.items():
                stored = _stored(key)
                rows += [[number, p.number, *stored, *slots.row(probe.shape.kinds, values)] for p, values in members]
        made = constants_table(self._events.sparkSession, kinds, rows)
        hashed = F.xxhash64(quoted(_OF).cast("int"), quoted("@text"), quoted("@whole"), quoted("@real"))
        return made.select(
            F.when(quoted(_OF) < len(inline), quoted(_OF)).otherwise(hashed).alias(_KEY),
            quoted(_OF).cast("int").alias(_OF),
            quoted(PROGRAM).cast("int").alias(PROGRAM),
            *map(quoted, slots.kinds),
        )


def _case(name: str, cases: Mapping[int, Column], otherwise: Column | None = None) -> Column:
    if len(cases) == 1 and otherwise is None:
        return next(iter(cases.values()))
    found = bits(0) if otherwise is None else otherwise
    for case, column in cases.items():
        found = F.when(quoted(name) == case, column).otherwise(found)
    return found


def _key(source: Source) -> Column:
    """Return a value as it goes into the hash of a key; equal values have one form."""
    if source.kind is Kind.TIMESTAMP:
        return F.unix_micros(source.column)
    if source.kind is Kind.BOOLEAN:
        return source.column.cast("bigint")
    # Zero has two signs, and both are equal.
    return source.column + F.lit(0.0) if source.kind is Kind.FLOAT else source.column


def _stored(key: Value | None) -> tuple[str | None, int | None, float | None]:
    """Return a key as text, whole number or real number, as `_key` has it. What is null does not count in a hash."""
    if isinstance(key, str):
        return key, None, None
    if isinstance(key, float):
        return None, None, key + 0.0
    return None, micros(key) if isinstance(key, datetime) else None if key is None else int(key), None


def _by_key(members: Members, keys: Sequence[int]) -> dict[Value | None, Members]:
    table: dict[Value | None, list[tuple[Program, tuple[Value, ...]]]] = {}
    for program, values in members:
        for key in dict.fromkeys(values[number] for number in keys):
            table.setdefault(key, []).append((program, values))
    return {**table}


@dataclass(frozen=True, slots=True)
class _Bins:
    """Bins of equal width over the spans of a shape, as integers: numbers as they are, times in microseconds."""

    low: float
    width: float
    last: int
    kind: Kind

    @classmethod
    def of(cls, members: Members, keys: Sequence[tuple[int, int]], kind: Kind) -> "_Bins | None":
        """Choose bins, or None where they would not help: an infinite end, or spans that cover most of everything."""
        spans = [(_number(values[low]), _number(values[high])) for _, values in members for low, high in keys]
        if not all(isfinite(low) and isfinite(high) for low, high in spans):
            return None
        low, high = min(s[0] for s in spans), max(s[1] for s in spans)
        if not high > low:
            return None
        width = (high - low) / min(_BINS, 2 * len(spans))
        bins = cls(low, width, int((high - low) / width) + 1, kind)
        return bins if all(len(bins.covered(*span)) <= _BINS_PER_SPAN for span in spans) else None

    def covered(self, low: float, high: float) -> range:
        """Return the bins that a span touches, one more on each side because of rounding."""
        if high < low:
            return range(0)
        first, last = int((low - self.low) / self.width) - 1, int((high - self.low) / self.width) + 1
        return range(max(-1, first), min(self.last, last) + 1)

    def column(self, value: Column, constants: OneRow) -> Column:
        """Return the bin of an event's value; what lies outside of all spans has a bin that no span covers."""
        number = F.unix_micros(value) if self.kind is Kind.TIMESTAMP else value
        low, width = (constants.source(bound, Kind.FLOAT).column for bound in (self.low, self.width))
        place = F.try_divide(number.cast("double") - low, width)
        return F.floor(F.greatest(F.least(place, F.lit(float(self.last + 1))), F.lit(-3.0))).try_cast("bigint")

    def table(self, members: Members, keys: Sequence[tuple[int, int]]) -> dict[Value | None, Members]:
        """Return for each bin the programs whose spans touch it."""
        table: dict[Value | None, list[tuple[Program, tuple[Value, ...]]]] = {}
        for program, values in members:
            touched = {b for low, high in keys for b in self.covered(_number(values[low]), _number(values[high]))}
            for number in touched:
                table.setdefault(number, []).append((program, values))
        return {**table}


def _number(value: Value) -> float:
    if isinstance(value, datetime):
        return float(micros(value))
    return float(value)
