"""Compile restrictions to Spark columns: a subscriber's view of each event, in native expressions.

`mask` is `penstock.guard.Delivery` for a whole frame of transit events, and gives the same rows and the same values.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, tzinfo
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # the name that everybody knows it by

from penstock.guard.restriction import Restriction
from penstock.model.types import Attribute, EventType
from penstock.model.values import Enumerated, Kind, kind_of
from penstock.pipeline.enforce.policy import PipelinePolicy
from penstock.pipeline.enforce.programs import (
    Constants,
    OneRow,
    Shape,
    ShapeBranch,
    answered,
    constants_row,
    look_up,
    shape_branch,
)
from penstock.pipeline.frames import (
    EARLIEST,
    LATEST,
    TIME,
    ColumnSource,
    all_of,
    attributes_of,
    balanced,
    compile_condition,
    condition,
    hoist,
    literal,
    metadata,
    quoted,
)
from penstock.selector import ALWAYS as TRUE
from penstock.selector import Selector
from penstock.selector.ast import Condition, Literal
from penstock.trust.capabilities import Right

# ----------------------------------------------------------------------------------------------------------------------
# The attributes that a reader sees of each event, as bits in integer columns.
#
# Bit 0 says that the event is delivered, and one bit for each attribute that its value may be seen. Each branch adds
# its bits where it holds, so that every condition stands in the plan once, however many attributes hang on it; a plan
# that repeats conditions outgrows what the JVM compiles, and is then interpreted.
#
# The words of a view are made in two steps, `shown` and `asked`, each in a projection of its own: the filter of a
# reader sees what the first step lets it see. Rows without a view are dropped by `keep`, not by a filter, which Spark
# would push below the projection and so evaluate everything twice.


WORD: Final = 62
"""Bits that are used of one 64-bit integer."""
_KEPT: Final = "@kept"


def bits(value: int) -> Column:
    """Return a word as a constant. It says which attributes there are, and nothing of a policy's constants."""
    return F.lit(value).cast("bigint")


def either(words: Sequence[Column]) -> Column:
    """Return the bits that any of some words has."""
    return balanced(Column.bitwiseOR, words) if words else bits(0)


def keep(frame: DataFrame, where: Column, columns: Iterable[Column]) -> DataFrame:
    """Return some columns of the rows where a condition holds, without evaluating those columns twice."""
    return frame.select(*columns, F.explode(F.when(where, F.array(F.lit(True)))).alias(_KEPT)).drop(_KEPT)


def keep_uncopied(frame: DataFrame, where: Column, columns: Iterable[Column]) -> DataFrame:
    """Return what `keep` returns, by a join: it takes longer to start, and copies no row as `explode` does.

    That pays where nothing else in the plan makes many rows of one, and so copies them anyway.
    """
    judged = frame.select(*columns, where.cast("bigint").alias(_KEPT))
    return look_up(judged, quoted(_KEPT), {}, [1]).drop(_KEPT)


def keep_here(frame: DataFrame, where: Column, columns: Iterable[Column]) -> DataFrame:
    """Return what `keep` returns, at the least cost, for rows that are all wanted: no later filter gets below it.

    To Spark the condition may be another one each time, so it stays in its place; it is always the same.
    """
    kept = where & (F.spark_partition_id() >= F.lit(0))
    return frame.select(*columns, kept.alias(_KEPT)).where(quoted(_KEPT)).drop(_KEPT)


def is_always(condition: Condition) -> bool:
    """Return whether a condition is always true."""
    return isinstance(condition, Literal) and condition.value is True


def holds(
    branch: ShapeBranch,
    sources: Mapping[str, ColumnSource],
    environment: Mapping[str, ColumnSource],
    guards: Mapping[str, Column],
) -> Column:
    """Return where a branch holds: a boolean column that is never null. Parameters stand among both sources."""
    return all_of(demands(branch, sources, environment, guards))


def demands(
    branch: ShapeBranch,
    sources: Mapping[str, ColumnSource],
    environment: Mapping[str, ColumnSource],
    guards: Mapping[str, Column],
) -> list[Column]:
    """Return the conditions that are all true where a branch holds: boolean columns that are never null."""
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
    return parts


class Viewer:
    """Compiles shapes to the words of their views, over frames that have some attributes."""

    def __init__(
        self,
        sources: Mapping[str, ColumnSource],
        environment: Mapping[str, ColumnSource],
        guards: Mapping[str, Column],
        read: Collection[str] | None = None,
    ) -> None:
        """Take where attributes stand, and which of them conditions `read` (default: any)."""
        self.sources = sources
        self._read = sources.keys() if read is None else read
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
        frame, made = hoist(frame, {name: source for name, source in self.sources.items() if name in self._read})
        self._hoisted = {**self.sources, **made}
        return frame

    def shown(self, shape: Shape, parameters: Mapping[str, ColumnSource]) -> list[Column]:
        """Return the words of what the branches of a shape show; 0 if none holds."""
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

    def asked(self, shape: Shape, parameters: Mapping[str, ColumnSource], words: Sequence[Column]) -> list[Column]:
        """Return the words of a view where the reader's own filter, which sees only the view, is true; else 0."""
        if is_always(shape.selector):
            return list(words)
        own = {a.name: ColumnSource(self.value(a.id, words), a.spec.kind) for a in self._visible(shape.event_type)}
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


# ----------------------------------------------------------------------------------------------------------------------
# Restrictions as Spark columns: what a subscriber may see of each event, in native expressions.


_DAY: Final = 86_400_000_000
_HOUR: Final = 3_600_000_000
_MINUTE: Final = 60_000_000


def in_environment(
    events: DataFrame, policy: PipelinePolicy, told: Mapping[str, ColumnSource] | None = None
) -> tuple[DataFrame, dict[str, ColumnSource]]:
    """Return the events with a policy's facts beside them, and where conditions find time and facts.

    `told` are facts that the events tell themselves, each in a column; they count instead of the policy's.
    """
    facts = OneRow("@f")
    environment = environment_of(policy, facts, told)
    return facts.join(events), environment


def environment_of(
    policy: PipelinePolicy, facts: OneRow, told: Mapping[str, ColumnSource] | None = None
) -> dict[str, ColumnSource]:
    """Return where conditions find the time in a policy's zone, and its facts, which are taken into a row."""
    known = {name: facts.source(value, kind_of(value)) for name, value in policy.facts.items()}
    return environment_sources(policy.zone, {**known, **(told or {})})


def environment_sources(zone: tzinfo, facts: Mapping[str, ColumnSource]) -> dict[str, ColumnSource]:
    """Return the environment of each event: that of its time. What no log tells, the rate of publishing, is null.

    So are the parts of a time that has no date in the zone, because it would lie outside the years 1 to 9999 there.
    """
    time = quoted(TIME)
    # By arithmetic on instants, because hour() and its like depend on the session's time zone. The instant is moved by
    # the zone's offset, so that its parts in UTC are those of the clock on the wall.
    instant = F.unix_micros(time) if zone is UTC else _dated(F.unix_micros(F.from_utc_timestamp(time, str(zone))))
    # Whole days in integers: a quotient of doubles is the next day's a microsecond before midnight, far from 1970.
    day = F.call_function("div", instant - F.pmod(instant, F.lit(_DAY)), F.lit(_DAY))
    return {
        **facts,
        "time": ColumnSource(time, Kind.TIMESTAMP),
        "hour": ColumnSource(_part(instant, _DAY, _HOUR), Kind.INTEGER),
        "minute": ColumnSource(_part(instant, _HOUR, _MINUTE), Kind.INTEGER),
        # The first of January 1970 was a Thursday.
        "weekday": ColumnSource((F.pmod(day + F.lit(3), F.lit(7)) + F.lit(1)).cast("bigint"), Kind.INTEGER),
    }


def _dated(instant: Column) -> Column:
    return F.when(instant.between(F.lit(EARLIEST), F.lit(LATEST)), instant)


def _part(instant: Column, whole: int, part: int) -> Column:
    return F.call_function("div", F.pmod(instant, F.lit(whole)), F.lit(part)).cast("bigint")


@dataclass(frozen=True, slots=True)
class Masked:
    """A restriction on one type, compiled. Constants that are hidden are beside it, to be joined to the events."""

    shape: Shape
    viewer: Viewer
    parameters: Mapping[str, ColumnSource]
    constants: OneRow


def mask(
    restriction: Restriction,
    event_type: EventType,
    sources: Mapping[str, ColumnSource],
    policy: PipelinePolicy,
    guards: Mapping[str, Column] | None = None,
) -> Masked:
    """Compile a restriction for readers of `event_type`, with the policy's zone and facts for its conditions.

    `guards` has a boolean column for each guard whose results are known; a guard that is not there never holds. Nor
    does a branch about some types only: of which type an event is, nothing here tells. Raises `RefusedError`
    (`guard.online-test`).
    """
    held = answered(restriction.for_type(event_type, Right.SUBSCRIBE)).branches
    branches = tuple(branch for branch in held if branch.only is None)
    found = Constants()
    kinds = {name: source.kind for name, source in sources.items()}
    templates = tuple(shape_branch(branch, branch.holds_where(), found, kinds) for branch in branches)
    shape = Shape(event_type, templates, TRUE.root, found.kinds)
    constants = constants_row("@x", policy.constants)
    viewer = Viewer(sources, environment_of(policy, constants), guards or {})
    return Masked(shape, viewer, constants.parameters(found), constants)


def deliver_one(
    events: DataFrame,
    masked: Masked,
    event_type: EventType,
    selector: Selector = TRUE,
) -> DataFrame:
    """Return one reader's view of a frame of transit events.

    Raises `SelectorError` for a selector that does not fit the type.
    """
    selector.check(event_type.schema)
    viewer, words = masked.viewer, [f"@w{number}" for number in range(masked.viewer.words)]
    view = [quoted(name) for name in words]
    joined = masked.constants.join(viewer.hoist(events))
    made = viewer.shown(masked.shape, masked.parameters)
    frame = joined.select(*columns(events), *(word.alias(name) for name, word in zip(words, made, strict=True)))
    kept = keep_uncopied(frame, view[0] != 0, columns(frame))
    seen = kept.select(*metadata(), *(c.alias(name) for name, c in viewer.values(event_type, view).items()))
    if selector == TRUE:
        return seen
    own = {a.name: ColumnSource(quoted(a.name), a.spec.kind) for a in event_type.attributes}
    return seen.where(condition(selector, own).true)
