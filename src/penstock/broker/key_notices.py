"""When a key manager tells which epoch a group has: from time to time, and more often where members may not know.

A manager that has just started does not know whom it told before, and brokers may not be within reach yet. One that
reads that a replica has begun an epoch cannot know whether the replica lived to tell it.
"""

from datetime import datetime, timedelta
from typing import Final, NamedTuple

from penstock.model.limits import DEFAULT_LIMITS, Limits
from penstock.trust.key_messages import KeyGroup

#: the first pause after a start is `key_retry` divided by this; each one is twice as long as the one before
_PATIENCE: Final = 16


class _Next(NamedTuple):
    due: datetime
    pause: timedelta


class KeyNotices:
    """See the module."""

    def __init__(self, limits: Limits = DEFAULT_LIMITS) -> None:
        self._longest = timedelta(milliseconds=limits.key_notice)
        self._retry = timedelta(milliseconds=limits.key_retry)
        self._next: dict[KeyGroup, _Next] = {}

    def is_due(self, now: datetime, group: KeyGroup) -> bool:
        """Say whether a group is to be told its epoch now; the next time is later then."""
        expected = self._next.get(group)
        if expected is not None and expected.due - expected.pause <= now < expected.due:
            return False
        pause = min(self._longest, self._retry / _PATIENCE if expected is None else 2 * expected.pause)
        self._next[group] = _Next(now + pause, pause)
        return True

    def told(self, now: datetime, group: KeyGroup) -> None:
        """Take note that a group is told of its epoch now, which has begun."""
        self._next[group] = _Next(now + self._longest, self._longest)

    def told_by_another(self, now: datetime, group: KeyGroup) -> None:
        """Take note that a replica has begun an epoch, and should have told it."""
        expected = self._next.get(group)
        if expected is not None:
            self._next[group] = expected._replace(due=min(expected.due, now + self._retry))

    def next(self, group: KeyGroup) -> datetime | None:
        """Return when a group is told next, if it was told anything."""
        expected = self._next.get(group)
        return None if expected is None else expected.due
