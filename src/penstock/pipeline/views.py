"""What a reader sees of each event, as bits in integer columns.

Bit 0 says that the event is delivered, and one bit for each attribute that its value may be seen. Each branch adds its
bits where it holds, so that every condition stands in the plan once, however many attributes hang on it; a plan that
repeats conditions outgrows what the JVM compiles, and is then interpreted.

The words of a view are made in two steps, `shown` and `asked`, each in a projection of its own: the filter of a reader
sees what the first step lets it see. Rows without a view are dropped by `keep`, not by a filter, which Spark would push
below the projection and so evaluate everything twice.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # the name that everybody knows it by

from penstock.model.types import Attribute, EventType
from penstock.model.values import Enumerated
from penstock.pipeline.columns import Source, compile_condition, hoist, literal
from penstock.pipeline.constants import look_up
from penstock.pipeline.frames import attributes_of, quoted
from penstock.pipeline.programs import Shape, ShapeBranch
from penstock.selector.ast import Condition, Literal

WORD: Final = 62
"""Bits that are used of one 64-bit integer."""
_KEPT: Final = "@kept"


def bits(value: int) -> Column:
    """Return a word as a constant. It says which attributes there are, and nothing of a policy's constants."""
    return F.lit(value).cast("bigint")


def either(words: Sequence[Column]) -> Column:
    """Return the bits that any of some words has."""
    return reduce(lambda one, other: one.bitwiseOR(other), words) if words else bits(0)


def any_of(columns: Sequence[Column]) -> Column:
    """Return where any of some boolean columns holds; of none, nowhere."""
    return reduce(lambda one, other: one | other, columns) if columns else F.lit(False)


def keep(frame: DataFrame, where: Column, columns: Iterable[Column]) -> DataFrame:
    """Return some columns of the rows where a condition holds, without evaluating those columns twice."""
    return frame.select(*columns, F.explode(F.when(where, F.array(F.lit(True)))).alias(_KEPT)).drop(_KEPT)


def keep_uncopied(frame: DataFrame, where: Column, columns: Iterable[Column]) -> DataFrame:
    """Return what `keep` returns, by a join: it takes longer to start, and copies no row as `explode` does.

    That pays where nothing else in the plan makes many rows of one, and so copies them anyway.
    """
    judged = frame.select(*columns, where.cast("bigint").alias(_KEPT))
    return look_up(judged, quoted(_KEPT), {}, [1]).drop(_KEPT)


def is_always(condition: Condition) -> bool:
    """Say whether a condition asks nothing."""
    return isinstance(condition, Literal) and condition.value is True


def holds(
    branch: ShapeBranch,
    sources: Mapping[str, Source],
    environment: Mapping[str, Source],
    guards: Mapping[str, Column],
) -> Column:
    """Return where a branch holds: a boolean column that is never null. Parameters stand among both sources."""
    parts = []
    if not is_always(branch.where):
        parts.append(compile_condition(branch.where, sources).true)
    if not is_always(branch.when):
        parts.append(compile_condition(branch.when, environment).true)
    time = environment["time"].column
    if branch.starts is not None:
        parts.append(F.coalesce(time >= environment[branch.starts].column, F.lit(False)))
    if branch.ends is not None:
        parts.append(F.coalesce(time <= environment[branch.ends].column, F.lit(False)))
    for name in sorted(branch.guards):
        known = guards.get(name)
        parts.append(F.lit(False) if known is None else F.coalesce(known, F.lit(False)))
    return reduce(lambda one, other: one & other, parts) if parts else F.lit(True)


class Viewer:
    """Compiles shapes to the words of their views, over frames that have some attributes."""

    def __init__(
        self,
        sources: Mapping[str, Source],
        environment: Mapping[str, Source],
        guards: Mapping[str, Column],
    ) -> None:
        self.sources = sources
        self._hoisted = sources
        self._environment = environment
        self._guards = guards
        self._places = {name: divmod(bit, WORD) for bit, name in enumerate(sources, start=1)}
        self.words = len(sources) // WORD + 1

    def bit(self, word: int, bit: int) -> str | None:
        """Return the id of the attribute that a bit stands for; None for bit 0, which stands for the event."""
        return next((name for name, place in self._places.items() if place == (word, bit)), None)

    def hoist(self, frame: DataFrame) -> DataFrame:
        """Return a frame with what conditions read of every event, each thing made once."""
        frame, self._hoisted = hoist(frame, self.sources)
        return frame

    def shown(self, shape: Shape, parameters: Mapping[str, Source]) -> list[Column]:
        """Return the words of what the branches of a shape show; 0 where none holds."""
        known = {**self._hoisted, **parameters}, {**self._environment, **parameters}
        visible = self._visible(shape.event_type)
        found: list[list[Column]] = [[] for _ in range(self.words)]
        for branch in shape.branches:
            held = holds(branch, *known, self._guards)
            words = [parameters[name].column for name in branch.bits] or [*map(bits, self.mask(shape, branch))]
            for word, value in enumerate(words):
                found[word].append(F.when(held, value).otherwise(bits(0)))
        hidden: list[list[Column]] = [[] for _ in range(self.words)]
        for attribute in visible:
            if attribute.spec.domain is not None:
                word, bit = self._places[attribute.id]
                there = fits(self.sources[attribute.id].column, attribute)
                hidden[word].append(F.when(there, bits(0)).otherwise(bits(1 << bit)))
        return [
            either(parts).bitwiseAND(F.bitwise_not(either(out))) if out else either(parts)
            for parts, out in zip(found, hidden, strict=True)
        ]

    def asked(self, shape: Shape, parameters: Mapping[str, Source], words: Sequence[Column]) -> list[Column]:
        """Return the words of a view where the reader's own filter, which sees only the view, is true; else 0."""
        if is_always(shape.selector):
            return list(words)
        own = {a.name: Source(self.value(a.id, words), a.spec.kind) for a in self._visible(shape.event_type)}
        asked = compile_condition(shape.selector, {**own, **parameters}).true
        return [F.when(asked, word).otherwise(bits(0)) for word in words]

    def value(self, attribute: str, words: Sequence[Column]) -> Column:
        """Return the value of an attribute where a view shows it, else null."""
        word, bit = self._places[attribute]
        return F.when(words[word].bitwiseAND(bits(1 << bit)) != 0, self.sources[attribute].column)

    def values(self, event_type: EventType, words: Sequence[Column]) -> dict[str, Column]:
        """Return the values of a view by the names that a version gives them; what the frame lacks is null."""
        visible = {attribute.id for attribute in self._visible(event_type)}
        return {
            a.name: self.value(a.id, words) if a.id in visible else literal(None, a.spec.kind)
            for a in attributes_of([event_type])
        }

    def present(self) -> list[Column]:
        """Return words that say which attributes of an event have a value; bit 0 is set."""
        found: list[list[Column]] = [[] for _ in range(self.words)]
        found[0].append(bits(1))
        for name, (word, bit) in self._places.items():
            there = self.sources[name].column.isNotNull()
            found[word].append(F.when(there, bits(1 << bit)).otherwise(bits(0)))
        return [either(parts) for parts in found]

    def _visible(self, event_type: EventType) -> list[Attribute]:
        """Return the attributes of a version that the frame has, of the same kind."""
        return [
            a
            for a in event_type.attributes
            if (source := self.sources.get(a.id)) is not None and source.kind is a.spec.kind
        ]

    def mask(self, shape: Shape, branch: ShapeBranch) -> list[int]:
        """Return the words of what a branch of a shape shows where it holds."""
        words = [1] + [0] * (self.words - 1)
        for attribute in self._visible(shape.event_type):
            if branch.shows(attribute.id):
                word, bit = self._places[attribute.id]
                words[word] |= 1 << bit
        return words


def fits(column: Column, attribute: Attribute) -> Column:
    """Return where a value lies in the domain of the reader's version; what does not becomes null."""
    spec = attribute.spec
    if isinstance(spec.domain, Enumerated):
        return F.coalesce(column.isin(*(literal(value, spec.kind) for value in spec.domain.values)), F.lit(False))
    if spec.domain is not None:
        low, high = literal(spec.domain.low, spec.kind), literal(spec.domain.high, spec.kind)
        return F.coalesce((low <= column) & (column <= high), F.lit(False))
    return F.lit(True)


def columns(frame: DataFrame) -> list[Column]:
    """Return all columns of a frame, by name."""
    return [quoted(name) for name in frame.columns]
