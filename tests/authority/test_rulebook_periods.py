"""Periods end and begin before anything is decided, whoever asks, and whether it is rehearsed or done."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest
from tests.authority.kit import K1, K2, MODERATOR, NAME, NOW, book_in, founding, ledger
from tests.authority.poll_kit import K4, polls_in
from tests.moderator.kit import P1, P2, P4, event, rule
from tests.trust.kit import refused

from penstock.authority.limits import AuthorityLimits
from penstock.authority.polls import Settlement
from penstock.authority.rulebook import Periods, RuleBook
from penstock.moderator.polls import Ballot, cast
from penstock.moderator.rules.rules import PublishRule, SubscribeRule
from penstock.moderator.rules.steps import (
    Add,
    Note,
    Pass,
    Request,
    RuleStatus,
    StateSubscriberRule,
    Strategy,
    WithdrawRule,
)
from penstock.moderator.settlement.addition import Plan
from penstock.store.ledgers.ledgers import Store
from penstock.store.ledgers.memory import MemoryRecords
from penstock.trust.validity import Validity

DAY = timedelta(days=1)
LATER = NOW + 2 * DAY
ENGINEERS, AT_A = "role = 'engineer'", "company = 'A'"


def timed(of: PublishRule, begin: int | None, end: int | None) -> PublishRule:
    days = (None if day is None else NOW + day * DAY for day in (begin, end))
    return replace(of, validity=Validity.between(*days))


def old() -> RuleBook:
    """A book with a rule that ends after a day."""
    book = book_in(ledger())
    book.ask(K1, Add(timed(rule("old", "A1", ENGINEERS), None, 1)), NOW)
    return book


NEW = Add(rule("new", "A1", AT_A, of=[P2]))
WAYS: list[Callable[[RuleBook], Plan]] = [
    lambda book: book.ask(K2, NEW, LATER),
    lambda book: book.take(book.sign(K2, NEW, LATER).unverified(), LATER),
    lambda book: book.plan(NEW, Note(P2, LATER)),
    lambda book: book.rehearse(book.sign(K2, NEW, LATER).unverified(), LATER),
]


def test_periods_are_known_before_any_rule_of_a_snapshot_is_read() -> None:
    book = old()
    place = book.ledger
    book.ask(K1, Add(timed(rule("later", "A2", ENGINEERS), 3, 4)), NOW)
    book.ask(K1, Add(timed(rule("gone", "A2", ENGINEERS), None, 1)), NOW)
    book.ask(K1, WithdrawRule("gone"), NOW)
    book.keep(MODERATOR)
    for days, ended_or_begun in ((0.5, set()), (2, {"old"}), (3.5, {"old", "later"})):
        resumed = RuleBook.open(place)
        assert Periods(resumed.base).due(NOW + days * DAY) is bool(ended_or_begun)
        passed = resumed.plan(Pass(), Note(P1, NOW + days * DAY)).step.delta.rules
        assert passed.keys() == ended_or_begun
        assert resumed.base.read == len(ended_or_begun)


@pytest.mark.parametrize("way", WAYS)
def test_a_rule_that_has_ended_stands_in_nobodys_way(way: Callable[[RuleBook], Plan]) -> None:
    book = old()
    head = book.head
    step = way(book).step
    assert (step.number, step.delta.rules["new"].after.status) == (3, RuleStatus.IN_FORCE)  # type: ignore[union-attr]  # it is in force
    done = book.head != head
    assert [each.request for each in book.base.steps[1:]] == ([Pass(), NEW] if done else [])
    assert book.base.standings["old"].status is (RuleStatus.ENDED if done else RuleStatus.IN_FORCE)
    assert (book.passed is not None) is done
    book.verify()


def test_unsigned_books_do_the_same() -> None:
    book = RuleBook.create_unsigned(ledger(), founding(unsafe_unsigned=True), NOW)
    book.take_unsigned(Add(timed(rule("old", "A1", ENGINEERS), None, 1)), Note(P1, NOW))
    assert book.rehearse_unsigned(NEW, Note(P2, LATER)) == book.take_unsigned(NEW, Note(P2, LATER))
    assert set(book.base.detector.rules) == {"new"}
    book.verify()


@pytest.mark.parametrize(
    ("asked", "code"), [(WithdrawRule("old"), "moderator.not-yours"), (WithdrawRule("none"), "moderator.unknown-rule")]
)
def test_what_is_refused_lets_no_time_pass(asked: Request, code: str) -> None:
    book = old()
    head, image = book.head, book.base.image()
    for way in (book.take, book.rehearse):
        with refused(code):
            way(book.sign(K2, asked, LATER).unverified(), LATER)
    assert (book.head, book.base.image()) == (head, image)


def test_nothing_is_taken_in_a_rehearsal() -> None:
    book = old()
    with book.rehearsal(LATER), pytest.raises(ValueError, match="rehearsal"):
        book.ask(K2, NEW, LATER)
    book.ask(K2, NEW, LATER)


def test_after_so_long_only_the_moderator_lets_time_pass() -> None:
    far = NOW + timedelta(seconds=AuthorityLimits().moderator_leap) + DAY
    book = old()
    with refused("moderator.untimely"):
        book.ask(K2, NEW, far)
    book.ask(
        MODERATOR, StateSubscriberRule(SubscribeRule("s", event("A1"), MODERATOR.principal, MODERATOR.principal)), far
    )
    assert [each.request for each in book.base.steps[1:-1]] == [Pass()]
    book.ask(K2, NEW, far)
    book.verify()


def test_only_rules_with_periods_are_looked_at_and_all_of_these() -> None:
    book = book_in(ledger())
    periods = Periods(book.base)
    assert not periods.due(LATER)
    book.ask(K1, Add(rule("for-ever", "A1", ENGINEERS)), NOW)
    assert not periods.due(LATER)
    book.ask(K1, Add(timed(rule("short", "A2", ENGINEERS), None, 1)), NOW)
    book.ask(K2, Add(timed(rule("soon", "A10", AT_A, of=[P2]), 3, None)), NOW)
    assert [periods.due(NOW + day * DAY) for day in (0, 2, 4)] == [False, True, True]
    book.pass_time(LATER)
    assert [periods.due(NOW + day * DAY) for day in (2, 4)] == [False, True]
    # The base keeps no steps in mind any more.
    book.base.forget(lambda count: [step.step for step in book.log()][:count])
    book.ask(K2, WithdrawRule("soon"), LATER)
    book.base.forget(lambda count: [step.step for step in book.log()][:count])
    assert not periods.due(NOW + 4 * DAY)
    assert book.base.remembered == 0
    assert book.pass_time(NOW + 4 * DAY) is None


def test_a_poll_is_about_the_rules_that_hold_when_it_is_asked_and_when_it_ends() -> None:
    store = Store(MemoryRecords())
    book = book_in(store.ledger(NAME))
    book.ask(K1, Add(timed(rule("a", "A1", ENGINEERS), None, 1)), NOW)
    book.ask(K2, Add(timed(rule("b", "A1", ENGINEERS, of=[P2]), None, 5)), NOW)
    book.ask(K4, Add(rule("m", "A1", "machine = 'M'", of=[P4])), NOW)
    polls = polls_in(store)
    voters = {P2, P4}
    assert set(polls.plan("m", LATER, LATER + DAY).voters) == voters
    poll = polls.ask("m", LATER, LATER + DAY)
    assert set(poll.question.value.voters) == voters
    for each in (K2, K4):
        polls.hear(cast(poll.question, each, Ballot(frozenset([Strategy.ADD]))).unverified(), LATER)
    # By then the rule of P2 has ended, and what was asked about cannot be done.
    (ended,) = polls.advance(NOW + 6 * DAY)
    assert ended.settlement == Settlement(None, "poll.stale")
    book.refresh()
    assert book.base.standings["b"].status is RuleStatus.ENDED
    book.verify()
