"""Delivery to a whole set of readers in one pass over the events.

Each event is given an array of hits: which programs show it, and which attributes. The few programs of a kind are
expressions over the event; the many that differ only in their constants are rows of a broadcast table, which the event
finds by a key (an equality, or a bin of a range) in a left join that keeps one row an event. What the key finds is then
evaluated exactly, so that the join decides speed and never meaning. The array is exploded once, and the attributes are
masked by the bits of the hit.

No constant of a policy stands in an expression, because expressions are printed: in plans, in the UI, in logs. All of
them are data of broadcast tables.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from math import isfinite
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # the name that everybody knows it by
from pyspark.sql.types import ArrayType, IntegerType, LongType, StringType, StructField, StructType

from penstock.errors import MalformedError
from penstock.model.types import Attribute, EventType
from penstock.model.values import Kind, Value
from penstock.pipeline.columns import Source, compile_condition, micros
from penstock.pipeline.constants import OneRow, lookup, plain, restored, stored
from penstock.pipeline.frames import attributes_of, metadata, quoted, transit_sources
from penstock.pipeline.policy import Policy
from penstock.pipeline.programs import Program, Shape, equality, group_by_shape, programs_of, span
from penstock.pipeline.restrict import any_of, environment_sources, fits, holds

PROGRAM: Final = "@program"
SUBSCRIBER: Final = "@subscriber"
_HIT: Final = "@hit"
_WORD: Final = 62
"""Attributes whose visibility goes into one 64-bit integer."""
_FEW: Final = 4
"""Programs of one shape that are cheaper as expressions than as a join."""
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
        schema = StructType([StructField(PROGRAM, IntegerType()), StructField(SUBSCRIBER, StringType())])
        readers = self.rows.sparkSession.createDataFrame(pairs, schema=schema)
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


class _Plan:
    """Builds the frame of delivered rows."""

    def __init__(
        self,
        events: DataFrame,
        types: Sequence[EventType],
        guards: Mapping[str, Column],
        environment: Mapping[str, Source],
    ) -> None:
        self._frame = events
        self._attributes = list(attributes_of(types))
        self._place = {str(a.id): number for number, a in enumerate(self._attributes)}
        self._sources = transit_sources(types)
        self._kinds = {name: source.kind for name, source in self._sources.items()}
        self._environment = environment
        self._guards = guards
        self._constants = OneRow("@i")
        self._words = max(1, -(-len(self._attributes) // _WORD))

    def rows(self, programs: Iterable[Program]) -> DataFrame:
        """Return the delivered rows, one for each program that shows an event."""
        inline: list[Column] = []
        arrays: list[Column] = []
        for shape, members in group_by_shape(programs).items():
            key = equality(shape, self._kinds) if len(members) > _FEW else None
            spanned = span(shape, self._kinds) if len(members) > _FEW and key is None else None
            if key is not None:
                table = _by_key(members, key[1])
                arrays.append(self._joined(shape, quoted(key[0]), self._kinds[key[0]], table))
            elif spanned is not None and (bins := _Bins.of(members, spanned[1], self._kinds[spanned[0]])) is not None:
                column = bins.column(quoted(spanned[0]))
                arrays.append(self._joined(shape, column, Kind.INTEGER, bins.table(members, spanned[1])))
            else:
                inline += [self._constant(shape, program, values) for program, values in members]
        if inline:
            arrays.append(F.array_compact(F.array(*inline)))
        if not arrays:
            arrays = [F.array().cast(ArrayType(self._hit_type()))]
        hits = arrays[0] if len(arrays) == 1 else F.concat(*arrays)
        exploded = self._constants.join(self._frame).select(
            *metadata(), *(quoted(a.id) for a in self._attributes), F.explode(hits).alias(_HIT)
        )
        return exploded.select(quoted(_HIT)[PROGRAM].alias(PROGRAM), *metadata(), *map(self._masked, self._attributes))

    def _masked(self, attribute: Attribute) -> Column:
        word, bit = divmod(self._place[str(attribute.id)], _WORD)
        seen = quoted(_HIT)[f"@w{word}"].bitwiseAND(F.lit(1 << bit)) != 0
        return F.when(seen, quoted(attribute.id)).alias(str(attribute.id))

    def _hit_type(self) -> StructType:
        words = [StructField(f"@w{word}", LongType()) for word in range(self._words)]
        return StructType([StructField(PROGRAM, IntegerType()), *words])

    def _constant(self, shape: Shape, program: Program, values: Sequence[Value]) -> Column:
        pairs = zip(values, shape.kinds, strict=True)
        parameters = {f"@p{n}": self._constants.source(value, kind) for n, (value, kind) in enumerate(pairs)}
        shown, hit = self._evaluate(shape, F.lit(program.number), parameters)
        return F.when(shown, hit)

    def _joined(
        self, shape: Shape, key: Column, kind: Kind, table: Mapping[Value, list[tuple[Program, tuple[Value, ...]]]]
    ) -> Column:
        """Join the table of a shape's constants, and return the hits among what an event finds there."""
        number = len([name for name in self._frame.columns if name.startswith("@c")])
        name, found_by = f"@c{number}", f"@k{number}"
        fields = [StructField(f"@p{n}", stored(k)) for n, k in enumerate(shape.kinds)]
        struct = StructType([StructField(PROGRAM, IntegerType()), *fields])
        rows = {key: [(p.number, *map(plain, values)) for p, values in found] for key, found in table.items()}
        constants = lookup(self._frame.sparkSession, rows, StructField(found_by, stored(kind)), name, struct)
        sought = F.unix_micros(key) if kind is Kind.TIMESTAMP else key
        self._frame = self._frame.join(constants, sought == quoted(found_by), "left").drop(found_by)

        def parameters(candidate: Column) -> dict[str, Source]:
            return {f"@p{n}": restored(candidate[f"@p{n}"], k) for n, k in enumerate(shape.kinds)}

        def shown(candidate: Column) -> Column:
            return self._evaluate(shape, candidate[PROGRAM], parameters(candidate))[0]

        def hit(candidate: Column) -> Column:
            return self._evaluate(shape, candidate[PROGRAM], parameters(candidate))[1]

        found = F.transform(F.filter(quoted(name), shown), hit)
        return F.coalesce(found, F.array().cast(ArrayType(self._hit_type())))

    def _evaluate(self, shape: Shape, program: Column, parameters: Mapping[str, Source]) -> tuple[Column, Column]:
        """Return whether a program shows an event, and the hit: its number and the bits of what it shows."""
        values, environment = {**self._sources, **parameters}, {**self._environment, **parameters}
        held = [holds(branch, values, environment, self._guards) for branch in shape.branches]
        visible: dict[str, Column] = {}
        for attribute in shape.event_type.attributes:
            seen = [gate for gate, branch in zip(held, shape.branches, strict=True) if branch.shows(attribute.id)]
            source = self._sources.get(attribute.id)
            if seen and source is not None and source.kind is attribute.spec.kind:
                visible[str(attribute.id)] = any_of(seen) & fits(source.column, attribute)
        own: dict[str, Source] = dict(parameters)
        for attribute in shape.event_type.attributes:
            if (shown := visible.get(attribute.id)) is not None:
                column = F.when(shown, self._sources[attribute.id].column)
                own[attribute.name] = Source(column, attribute.spec.kind)
        asked = compile_condition(shape.selector, own).true
        words = [F.lit(0).cast("bigint") for _ in range(self._words)]
        for name, column in visible.items():
            word, bit = divmod(self._place[name], _WORD)
            words[word] = words[word].bitwiseOR(F.when(column, F.lit(1 << bit).cast("bigint")).otherwise(F.lit(0)))
        hit = F.struct(program.cast("int").alias(PROGRAM), *(w.alias(f"@w{n}") for n, w in enumerate(words)))
        return any_of(held) & asked, hit


def _by_key(
    members: Sequence[tuple[Program, tuple[Value, ...]]], keys: Sequence[int]
) -> dict[Value, list[tuple[Program, tuple[Value, ...]]]]:
    table: dict[Value, list[tuple[Program, tuple[Value, ...]]]] = {}
    for program, values in members:
        for key in dict.fromkeys(values[number] for number in keys):
            table.setdefault(key, []).append((program, values))
    return table


@dataclass(frozen=True, slots=True)
class _Bins:
    """Bins of equal width over the spans of a shape, as integers: numbers as they are, times in microseconds."""

    low: float
    width: float
    last: int
    kind: Kind

    @classmethod
    def of(
        cls, members: Sequence[tuple[Program, tuple[Value, ...]]], keys: Sequence[tuple[int, int]], kind: Kind
    ) -> "_Bins | None":
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

    def column(self, value: Column) -> Column:
        """Return the bin of an event's value; what lies outside of all spans has a bin that no span covers."""
        number = F.unix_micros(value) if self.kind is Kind.TIMESTAMP else value
        place = (number.cast("double") - F.lit(self.low)) / F.lit(self.width)
        return F.floor(F.greatest(F.least(place, F.lit(float(self.last + 1))), F.lit(-3.0))).try_cast("bigint")

    def table(
        self, members: Sequence[tuple[Program, tuple[Value, ...]]], keys: Sequence[tuple[int, int]]
    ) -> dict[Value, list[tuple[Program, tuple[Value, ...]]]]:
        """Return for each bin the programs whose spans touch it."""
        table: dict[Value, list[tuple[Program, tuple[Value, ...]]]] = {}
        for program, values in members:
            touched = {b for low, high in keys for b in self.covered(_number(values[low]), _number(values[high]))}
            for number in touched:
                table.setdefault(number, []).append((program, values))
        return table


def _number(value: Value) -> float:
    if isinstance(value, datetime):
        return float(micros(value))
    return float(value)
