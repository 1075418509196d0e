"""Restrictions as Spark columns: what a subscriber may see of each event, in native expressions.

`mask` is `penstock.guard.Delivery` for a whole frame of transit events, and gives the same rows and the same values.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, tzinfo
from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # the name that everybody knows it by

from penstock.errors import RefusedError
from penstock.guard.restriction import Restriction
from penstock.model.types import Attribute, EventType
from penstock.model.values import Enumerated, Kind
from penstock.pipeline.columns import Source, compile_condition, condition, literal
from penstock.pipeline.constants import OneRow
from penstock.pipeline.frames import TIME, metadata, quoted
from penstock.pipeline.programs import Constants, ShapeBranch, shape_branch
from penstock.selector import ALWAYS as TRUE
from penstock.selector import Selector
from penstock.selector.ast import Literal
from penstock.trust.capabilities import Right

_DAY: Final = 86_400_000_000
_HOUR: Final = 3_600_000_000
_MINUTE: Final = 60_000_000


def environment_sources(zone: tzinfo = UTC, facts: Mapping[str, Source] | None = None) -> dict[str, Source]:
    """Return the environment of each event: that of its time. What no log tells, the rate of publishing, is null."""
    time = quoted(TIME)
    # By arithmetic on instants, because hour() and its like depend on the session's time zone. The instant is moved by
    # the zone's offset, so that its parts in UTC are those of the clock on the wall.
    instant = F.unix_micros(time if zone is UTC else F.from_utc_timestamp(time, str(zone)))
    day = F.floor(instant / F.lit(_DAY))
    return {
        **(facts or {}),
        "time": Source(time, Kind.TIMESTAMP),
        "hour": Source(_part(instant, _DAY, _HOUR), Kind.INTEGER),
        "minute": Source(_part(instant, _HOUR, _MINUTE), Kind.INTEGER),
        # The first of January 1970 was a Thursday.
        "weekday": Source((F.pmod(day + F.lit(3), F.lit(7)) + F.lit(1)).cast("bigint"), Kind.INTEGER),
    }


def _part(instant: Column, whole: int, part: int) -> Column:
    return F.call_function("div", F.pmod(instant, F.lit(whole)), F.lit(part)).cast("bigint")


@dataclass(frozen=True, slots=True)
class Masked:
    """A restriction on one type, as columns over transit events.

    `shown` says where any branch holds; `values` has a column for each attribute of the reader's version, null where
    the reader may not see it. Neither depends on the reader's own selector, which sees only these columns.
    """

    shown: Column
    values: Mapping[str, Column]


def mask(  # noqa: PLR0913  # what a restriction is compiled against
    restriction: Restriction,
    event_type: EventType,
    sources: Mapping[str, Source],
    environment: Mapping[str, Source],
    guards: Mapping[str, Column] | None = None,
    *,
    constants: OneRow | None = None,
) -> Masked:
    """Compile a restriction for readers of `event_type`.

    `guards` has a boolean column for each guard whose results are known; a guard that is not there never holds. With
    `constants` the constants of the policy go there, to be joined to the events; without it they stand in expressions,
    which Spark prints. Raises `RefusedError` (`guard.online-test`).
    """
    branches = restriction.for_type(event_type, Right.SUBSCRIBE).branches
    if any(branch.when.validity.online for branch in branches):
        raise RefusedError("guard.online-test", "a branch still has on-line tests that nobody has answered")
    found = Constants()
    shapes = [shape_branch(branch, branch.holds_where(), found) for branch in branches]
    parameters = {
        f"@p{n}": Source(literal(value, kind), kind) if constants is None else constants.source(value, kind)
        for n, (value, kind) in enumerate(zip(found.values, found.kinds, strict=True))
    }
    held = [holds(shape, {**sources, **parameters}, {**environment, **parameters}, guards or {}) for shape in shapes]
    values = {
        a.name: _visible(a, [gate for gate, shape in zip(held, shapes, strict=True) if shape.shows(a.id)], sources)
        for a in event_type.attributes
    }
    return Masked(any_of(held), values)


def holds(
    branch: ShapeBranch,
    sources: Mapping[str, Source],
    environment: Mapping[str, Source],
    guards: Mapping[str, Column],
) -> Column:
    """Return where a branch holds: a boolean column that is never null. Parameters stand among both sources."""
    parts = []
    if not isinstance(branch.where, Literal) or branch.where.value is not True:
        parts.append(compile_condition(branch.where, sources).true)
    if not isinstance(branch.when, Literal) or branch.when.value is not True:
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


def any_of(columns: Sequence[Column]) -> Column:
    """Return where any of some boolean columns holds; of none, nowhere."""
    return reduce(lambda one, other: one | other, columns) if columns else F.lit(False)


def _visible(attribute: Attribute, held: Sequence[Column], sources: Mapping[str, Source]) -> Column:
    source = sources.get(attribute.id)
    spec = attribute.spec
    if source is None or source.kind is not spec.kind or not held:
        return literal(None, spec.kind)
    return F.when(any_of(held) & fits(source.column, attribute), source.column)


def fits(column: Column, attribute: Attribute) -> Column:
    """Return where a value lies in the domain of the reader's version; what does not becomes null."""
    spec = attribute.spec
    if isinstance(spec.domain, Enumerated):
        return F.coalesce(column.isin(*(literal(value, spec.kind) for value in spec.domain.values)), F.lit(False))
    if spec.domain is not None:
        low, high = literal(spec.domain.low, spec.kind), literal(spec.domain.high, spec.kind)
        return F.coalesce((low <= column) & (column <= high), F.lit(False))
    return F.lit(True)


def deliver_one(
    events: DataFrame,
    masked: Masked,
    event_type: EventType,
    selector: Selector = TRUE,
) -> DataFrame:
    """Return what one reader gets of a frame of transit events.

    Raises `SelectorError` for a selector that does not fit the type.
    """
    selector.check(event_type.schema)
    values = [column.alias(name) for name, column in masked.values.items()]
    seen = events.where(masked.shown).select(*metadata(), *values)
    if selector == TRUE:
        return seen
    own = {a.name: Source(quoted(a.name), a.spec.kind) for a in event_type.attributes}
    return seen.where(condition(selector, own).true)
