"""Heuristics: which of the rules in the log comes back first when several could (paper 1, section V-B).

The paper takes the newest and mentions others. It also brings back rules that their own publishers had withdrawn
(Example 3); here only `PAPER` does so.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from penstock.model.profiles import Profile
from penstock.moderator.base import RuleBase
from penstock.moderator.deltas import Logged
from penstock.moderator.lists import parts
from penstock.moderator.propose import admits

Key: TypeAlias = Callable[[RuleBase, Logged, Sequence[Profile]], tuple[int, ...]]
"""What entries are sorted by: the least comes first."""


@dataclass(frozen=True, slots=True)
class Heuristic:
    """An order of the log, and whether it revives what was withdrawn."""

    name: str
    key: Key
    #: rules that were withdrawn come back too, and requests that were rejected are resolved by adding attributes
    revive: bool = False

    def ordered(self, base: RuleBase, entries: Iterable[Logged], subscribers: Sequence[Profile] = ()) -> list[Logged]:
        """Return entries, the one to be tried first at the beginning."""
        return sorted(entries, key=lambda entry: self.key(base, entry, subscribers))


def _newest(_base: RuleBase, entry: Logged, _subscribers: Sequence[Profile]) -> tuple[int, ...]:
    step, index = entry.place
    return (-step, -index)


def _oldest(_base: RuleBase, entry: Logged, _subscribers: Sequence[Profile]) -> tuple[int, ...]:
    return entry.place


def _most_subscribers(base: RuleBase, entry: Logged, subscribers: Sequence[Profile]) -> tuple[int, ...]:
    admitted = sum(admits(entry.rules[0].fnc_s, subscriber) for subscriber in subscribers)
    return (-admitted, *_newest(base, entry, subscribers))


def _fewest_changes(base: RuleBase, entry: Logged, subscribers: Sequence[Profile]) -> tuple[int, ...]:
    changed = [rule for rule in entry.rules if base.detector.rules.get(rule.id) != rule]
    pieces = 0
    for rule in changed:
        now = base.detector.rules.get(rule.id)
        before = set() if now is None else {*parts(now.fnc_p), *parts(now.fnc_s)}
        pieces += len(before ^ {*parts(rule.fnc_p), *parts(rule.fnc_s)})
    return (len(changed), pieces, *_newest(base, entry, subscribers))


NEWEST: Final = Heuristic("newest", _newest)
OLDEST: Final = Heuristic("oldest", _oldest)
MOST_SUBSCRIBERS: Final = Heuristic("most-subscribers", _most_subscribers)
FEWEST_CHANGES: Final = Heuristic("fewest-changes", _fewest_changes)
PAPER: Final = Heuristic("paper", _newest, revive=True)

HEURISTICS: Final = {
    heuristic.name: heuristic for heuristic in (NEWEST, OLDEST, MOST_SUBSCRIBERS, FEWEST_CHANGES, PAPER)
}
