"""Answers are remembered while nothing that they rest on has changed."""

from datetime import UTC, datetime, timedelta

from penstock.broker.limits import BrokerLimits
from penstock.broker.local.decisions import DecisionCache
from penstock.trust.validity import Validity, turning_point

NOW = datetime(2026, 5, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)


class Asking:
    """Somebody who counts how often an answer is found."""

    def __init__(self, limits: BrokerLimits | None = None) -> None:
        self.answers = DecisionCache(limits or BrokerLimits())
        self.found = 0

    def ask(self, about: str, by: str, now: datetime, *, answer: bool = True) -> bool:
        known = self.answers.known(about, (by,), now)
        if known is not None:
            return known
        self.found += 1
        until = turning_point([Validity.between(not_after=NOW + SECOND)], now)
        return self.answers.keep(about, (by,), until, answer=answer)


def test_an_answer_is_found_once_and_anew_where_it_rests_on_something_else() -> None:
    asking = Asking()
    assert asking.ask("a", "policy", NOW)
    assert asking.ask("a", "policy", NOW + SECOND, answer=False)
    assert asking.found == 1
    assert not asking.ask("a", "other policy", NOW, answer=False)
    assert not asking.ask("b", "policy", NOW, answer=False)


def test_a_date_that_passes_ends_an_answer_at_once() -> None:
    asking = Asking()
    assert asking.ask("a", "policy", NOW)
    assert not asking.ask("a", "policy", NOW + SECOND + datetime.resolution, answer=False)


def test_the_oldest_answers_are_forgotten() -> None:
    asking = Asking(BrokerLimits(cache_entries=2))
    for about in "abcbc":
        asking.ask(about, "policy", NOW)
    assert asking.found == 3
    asking.ask("a", "policy", NOW)
    assert asking.found == 4
