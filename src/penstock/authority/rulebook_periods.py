"""The periods of rules in a rule book: whether one has ended, or begun, and nobody has let that come into effect.

That is asked before anything is decided, so of all rules only those with a period are looked at.
"""

from collections.abc import Iterable
from datetime import datetime
from typing import Final

from penstock.model.instants import instant_key
from penstock.moderator.base import RuleBase
from penstock.moderator.deltas import Standing, Status, Wish
from penstock.trust.validity import ALWAYS, State

_OVER: Final = (Status.ENDED, Status.WITHDRAWN)


class Periods:
    """Which rules of a rule base have a period; it follows the base, wherever that goes."""

    def __init__(self, base: RuleBase) -> None:
        self._base = base
        #: their ids, and before when nothing is due
        self._limited: dict[str, bytes] = {}
        self._seen = -1

    def due(self, when: datetime) -> bool:
        """Say whether a period has ended, or begun, that is not taken in."""
        self._follow()
        now = instant_key(when)
        limited = (one for one, due in self._limited.items() if due <= now)
        found = (self._base.standings.get(one) or self._base.wishes.get(one) for one in limited)
        return any(each is not None and self._is_due(each, now) for each in found)

    def _is_due(self, each: Standing | Wish, now: bytes) -> bool:
        match each.stated.validity.state(now):
            case State.EXPIRED:
                return each.status not in _OVER
            case State.VALID:
                return each.status is Status.WAITING and not each.stated.rests(self._base.away)
            case _:
                return False

    def _follow(self) -> None:
        """Take in what was stated since. Rules that are gone may stay: they are never due."""
        taken = self._base.next_number - 1
        if self._seen < 0 or taken - self._seen > self._base.remembered:
            self._limited.clear()
            self._limited.update(self._base.limited)
            self._note(self._base.wishes.items())
        elif taken > self._seen:
            for step in self._base.since(self._seen):
                self._note((one, change.after) for one, change in step.delta.rules.items())
                self._note((one, change.after) for one, change in step.delta.wishes.items())
        self._seen = taken

    def _note(self, rules: Iterable[tuple[str, Standing | Wish | None]]) -> None:
        limited = (one for one, each in rules if each is not None and each.stated.validity != ALWAYS)
        self._limited.update(dict.fromkeys(limited, b""))
