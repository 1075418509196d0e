"""Restrictions as Spark columns: what a subscriber may see of each event, in native expressions.

`mask` is `penstock.guard.Delivery` for a whole frame of transit events, and gives the same rows and the same values.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, tzinfo
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # the name that everybody knows it by

from penstock.guard.restriction import Restriction
from penstock.model.types import EventType
from penstock.model.values import Kind, kind_of
from penstock.pipeline.columns import EARLIEST, LATEST, Source, condition
from penstock.pipeline.constants import OneRow
from penstock.pipeline.frames import TIME, metadata, quoted
from penstock.pipeline.policy import Policy
from penstock.pipeline.programs import Constants, Shape, answered, shape_branch
from penstock.pipeline.views import Viewer, columns, keep_uncopied
from penstock.selector import ALWAYS as TRUE
from penstock.selector import Selector
from penstock.trust.capabilities import Right

_DAY: Final = 86_400_000_000
_HOUR: Final = 3_600_000_000
_MINUTE: Final = 60_000_000


def in_environment(
    events: DataFrame, policy: Policy, told: Mapping[str, Source] | None = None
) -> tuple[DataFrame, dict[str, Source]]:
    """Return the events with a policy's facts beside them, and where conditions find time and facts.

    `told` are facts that the events tell themselves, each in a column; they count instead of the policy's.
    """
    facts = OneRow("@f")
    environment = environment_of(policy, facts, told)
    return facts.join(events), environment


def environment_of(policy: Policy, facts: OneRow, told: Mapping[str, Source] | None = None) -> dict[str, Source]:
    """Return where conditions find the time in a policy's zone, and its facts, which are taken into a row."""
    known = {name: facts.source(value, kind_of(value)) for name, value in policy.facts.items()}
    return environment_sources(policy.zone, {**known, **(told or {})})


def environment_sources(zone: tzinfo, facts: Mapping[str, Source]) -> dict[str, Source]:
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
        "time": Source(time, Kind.TIMESTAMP),
        "hour": Source(_part(instant, _DAY, _HOUR), Kind.INTEGER),
        "minute": Source(_part(instant, _HOUR, _MINUTE), Kind.INTEGER),
        # The first of January 1970 was a Thursday.
        "weekday": Source((F.pmod(day + F.lit(3), F.lit(7)) + F.lit(1)).cast("bigint"), Kind.INTEGER),
    }


def _dated(instant: Column) -> Column:
    return F.when(instant.between(F.lit(EARLIEST), F.lit(LATEST)), instant)


def _part(instant: Column, whole: int, part: int) -> Column:
    return F.call_function("div", F.pmod(instant, F.lit(whole)), F.lit(part)).cast("bigint")


@dataclass(frozen=True, slots=True)
class Masked:
    """A restriction on one type, compiled. The constants of the policy are beside it, to be joined to the events."""

    shape: Shape
    viewer: Viewer
    parameters: Mapping[str, Source]
    constants: OneRow


def mask(
    restriction: Restriction,
    event_type: EventType,
    sources: Mapping[str, Source],
    policy: Policy,
    guards: Mapping[str, Column] | None = None,
) -> Masked:
    """Compile a restriction for readers of `event_type`; its conditions are asked in the policy's zone, with its facts.

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
    constants = OneRow("@x")
    viewer = Viewer(sources, environment_of(policy, constants), guards or {})
    return Masked(shape, viewer, constants.parameters(found), constants)


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
    viewer, words = masked.viewer, [f"@w{number}" for number in range(masked.viewer.words)]
    view = [quoted(name) for name in words]
    joined = masked.constants.join(viewer.hoist(events))
    made = viewer.shown(masked.shape, masked.parameters)
    frame = joined.select(*columns(events), *(word.alias(name) for name, word in zip(words, made, strict=True)))
    kept = keep_uncopied(frame, view[0] != 0, columns(frame))
    seen = kept.select(*metadata(), *(c.alias(name) for name, c in viewer.values(event_type, view).items()))
    if selector == TRUE:
        return seen
    own = {a.name: Source(quoted(a.name), a.spec.kind) for a in event_type.attributes}
    return seen.where(condition(selector, own).true)
