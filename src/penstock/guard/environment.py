"""The environment that dynamic conditions speak about: time, how often a client publishes, and facts from outside.

A condition such as `hour BETWEEN 9 AND 16 AND on_duty` is evaluated at the local broker for each event (paper 5,
section 6.4). The broker builds the environment; nothing here reads a clock.
"""

from collections import deque
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta, tzinfo
from types import MappingProxyType
from typing import Final

from penstock.errors import MalformedError
from penstock.model.instants import in_utc
from penstock.model.values import AttributeSpec, Kind, Ranged, Scalar, Schema

ENVIRONMENT: Final[Schema] = MappingProxyType(
    {
        "time": AttributeSpec(Kind.TIMESTAMP),
        "hour": AttributeSpec(Kind.INTEGER, Ranged(0, 23)),
        "minute": AttributeSpec(Kind.INTEGER, Ranged(0, 59)),
        "weekday": AttributeSpec(Kind.INTEGER, Ranged(1, 7)),
        "rate": AttributeSpec(Kind.INTEGER),
    }
)
"""What every broker knows. `hour`, `minute` and `weekday` (1 is Monday) are in the broker's zone, UTC unless it says
otherwise; `rate` is how many events the client published within the last minute."""


def environment_schema(facts: Schema | None = None) -> Schema:
    """Return the schema for conditions if a broker knows further facts.

    Raises `MalformedError` (`environment.reserved`) when a fact takes a name that every broker uses.
    """
    taken = ENVIRONMENT.keys() & (facts or {}).keys()
    if taken:
        raise MalformedError(
            "environment.reserved", f"`{min(taken)}` is a name that every broker uses", hint="choose another name"
        )
    return MappingProxyType({**ENVIRONMENT, **(facts or {})})


def environment(
    now: datetime, *, rate: int | None = None, facts: Mapping[str, Scalar] | None = None, zone: tzinfo = UTC
) -> Mapping[str, Scalar]:
    """Return the environment at one moment.

    Raises `MalformedError`: `value.zone` when `now` has no time zone, `value.range` when it lies outside the years 1
    to 9999 of UTC or the broker's zone.
    """
    moment = in_utc(now)
    try:
        local = moment.astimezone(zone)
    except OverflowError as error:
        raise MalformedError("value.range", "the moment has no date in the broker's zone") from error
    own: dict[str, Scalar] = {
        "time": moment,
        "hour": local.hour,
        "minute": local.minute,
        "weekday": local.isoweekday(),
        "rate": rate,
    }
    return MappingProxyType({**(facts or {}), **own})


class PublicationRate:
    """Count the events that one client published within the last minute.

    Events that come within a six-thousandth of the window are forgotten together, so that a client who publishes fast
    does not fill the memory.
    """

    def __init__(self, window: timedelta = timedelta(minutes=1)) -> None:
        self._window = window
        self._grain = window / 6_000
        #: since when, and how many
        self._counted: deque[tuple[datetime, list[int]]] = deque()
        self._sum = 0
        self._now: datetime | None = None

    def note(self, now: datetime, events: int = 1) -> None:
        """Count publications."""
        self._forget(now)
        if not self._counted or now - self._counted[-1][0] >= self._grain:
            self._counted.append((now, [0]))
        self._counted[-1][1][0] += events
        self._sum += events

    def take(self, now: datetime, events: int, most: int) -> bool:
        """Count publications if they are not more than `most` together with those within the window; say whether."""
        if self.at(now) + events > most:
            return False
        self.note(now, events)
        return True

    def at(self, now: datetime) -> int:
        """Return the number of publications within the window that ends now."""
        self._forget(now)
        return self._sum

    def _forget(self, now: datetime) -> None:
        # Also when a publication is counted: a client whose rate is never read must not fill the memory.
        if now is self._now:
            return
        self._now = now
        while self._counted and self._counted[-1][0] > now:
            # The clock was ahead, and has been corrected.
            self._sum -= self._counted.pop()[1][0]
        while self._counted and now - self._counted[0][0] >= self._window:
            self._sum -= self._counted.popleft()[1][0]
