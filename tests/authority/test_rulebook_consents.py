"""The rule book: what others have to agree to, and for how long."""

import pytest
from tests.authority.kit import K1, K2, K3, KEYS, MODERATOR, NOW, book_in, ledger
from tests.authority.rights_kit import AT_A, DAY, ENGINEERS, STRANGER, agreed, colliding, planned, refuses
from tests.moderator.kit import P1, P2, P3, rule

from penstock.authority.rulebook import RuleBook
from penstock.moderator.rules.steps import (
    Add,
    Leave,
    Resolve,
    Return,
    RuleStatus,
    Strategy,
    Undo,
    WithdrawRule,
)
from penstock.moderator.settlement.proposals import Consent, subject_of
from penstock.trust.signed import UnverifiedValue, sign_value


@pytest.fixture
def book() -> RuleBook:
    return book_in(ledger())


def test_nobody_else_relaxes_a_rule(book: RuleBook) -> None:
    chosen = colliding(book)
    refuses(book, "moderator.not-yours", K3, chosen)
    refuses(book, "moderator.consent", K2, Resolve("r2", Strategy.DELETE, frozenset({P2})))
    refuses(book, "moderator.consent", K2, chosen)
    step = planned(book, chosen)
    refuses(book, "moderator.consent", K2, chosen, agreed(book, STRANGER, step))
    refuses(book, "moderator.consent", MODERATOR, chosen, agreed(book, K1, step))
    book.ask(K2, chosen, NOW, consents=[agreed(book, K1, step)])
    assert {each.status for each in book.base.standings.values()} == {RuleStatus.IN_FORCE}
    book.verify()


def test_a_consent_is_to_what_comes_of_it(book: RuleBook) -> None:
    chosen = colliding(book)
    consent = agreed(book, K1, planned(book, chosen))
    book.ask(K3, Add(rule("r3", "A1", ENGINEERS, of=[P3])), NOW)
    three = Resolve("r2", Strategy.DELETE, frozenset({P1, P2, P3}))
    refuses(book, "moderator.consent", K2, three, consent, agreed(book, K3, planned(book, three)))


def test_a_consent_ends(book: RuleBook) -> None:
    chosen = colliding(book)
    refuses(book, "moderator.consent", K2, chosen, agreed(book, K1, planned(book, chosen), days=-1))


def test_a_consent_counts_once(book: RuleBook) -> None:
    chosen = colliding(book)
    consent = agreed(book, K1, planned(book, chosen))
    book.ask(K2, chosen, NOW, consents=[consent])
    book.ask(K2, Undo(3), NOW)
    refuses(book, "moderator.consent", K2, chosen, consent)
    book.ask(K2, chosen, NOW, consents=[agreed(book, K1, planned(book, chosen))])


def test_a_relaxation_that_was_taken_back_is_agreed_to_again(book: RuleBook) -> None:
    chosen = colliding(book)
    book.ask(K2, chosen, NOW, consents=[agreed(book, K1, planned(book, chosen))])
    book.ask(K2, Undo(3), NOW)
    refuses(book, "moderator.consent", K2, Undo(4))
    refuses(book, "moderator.consent", MODERATOR, Undo(4), agreed(book, K2, planned(book, Undo(4), P2)))
    book.ask(K2, Undo(4), NOW, consents=[agreed(book, K1, planned(book, Undo(4)))])
    book.ask(K2, WithdrawRule("r2"), NOW)
    refuses(book, "moderator.consent", K2, Undo(6))
    book.verify()


def test_to_take_back_a_tightening_needs_nobody(book: RuleBook) -> None:
    colliding(book)
    book.ask(K2, Resolve("r2", Strategy.ADD), NOW)
    book.ask(K2, Undo(3), NOW)
    assert book.base.standing("r1").form == rule("r1", "A1", ENGINEERS)


def test_what_was_agreed_to_once_does_not_come_back_with_its_publisher(book: RuleBook) -> None:
    book.ask(K1, Add(rule("r1", "A1", ENGINEERS)), NOW)
    book.ask(K2, Add(rule("r2", "A1", of=[P2])), NOW)
    chosen = Resolve("r2", Strategy.DELETE, frozenset({P1}))
    book.ask(K2, chosen, NOW, consents=[agreed(book, K1, planned(book, chosen))])
    book.ask(K3, Add(rule("r3", "A1", "machine = 'M'", of=[P3])), NOW)
    book.ask(K3, Resolve("r3", Strategy.ADD), NOW)
    book.ask(K1, Leave(P1), NOW)
    book.ask(K1, Return(P1), NOW)
    book.ask(K3, WithdrawRule("r3"), NOW)
    assert book.base.standing("r1").status is RuleStatus.REJECTED


def test_a_rule_of_several_is_relaxed_by_all_of_them(book: RuleBook) -> None:
    ours = Add(rule("r1", "A1", ENGINEERS, of=[P1, P2]))
    book.ask(K1, ours, NOW, consents=[agreed(book, K2, ours)])
    book.ask(K3, Add(rule("r3", "A1", of=[P3])), NOW)
    one = Resolve("r3", Strategy.DELETE, frozenset({P1}))
    refuses(book, "moderator.consent", K3, one)
    both = Resolve("r3", Strategy.DELETE, frozenset({P1, P2}))
    step = planned(book, both, P3)
    refuses(book, "moderator.consent", K3, both, agreed(book, K1, step))
    book.ask(K3, both, NOW, consents=[agreed(book, K1, step), agreed(book, K2, step)])


def test_a_consent_is_not_given_for_later(book: RuleBook) -> None:
    chosen = colliding(book)
    refuses(book, "moderator.consent", K2, chosen, agreed(book, K1, planned(book, chosen), since=3))


def test_a_consent_counts_in_one_book(book: RuleBook) -> None:
    chosen = colliding(book)
    value = Consent(bytes(32), P1, subject_of(planned(book, chosen)), 2, NOW + DAY)
    refuses(book, "moderator.wrong-book", K2, chosen, sign_value(value, K1).unverified())


def test_a_consent_that_was_forged_is_none(book: RuleBook) -> None:
    chosen = colliding(book)
    good = agreed(book, K1, planned(book, chosen))
    forged = UnverifiedValue(good.value, good.digest, good.body, STRANGER.public, good.signature)
    refuses(book, "evolution.wrong-key", K2, chosen, forged)


def test_who_relaxes_the_own_rule_has_agreed_by_asking(book: RuleBook) -> None:
    book.ask(K1, Add(rule("r1", "A1", ENGINEERS)), NOW)
    book.ask(K1, Add(rule("r2", "A1", AT_A)), NOW)
    book.ask(K1, Resolve("r2", Strategy.DELETE, frozenset({P1})), NOW)
    assert KEYS[P1] is K1
    book.verify()


def test_a_replay_comes_to_what_was_agreed_to_or_to_nothing(book: RuleBook) -> None:
    both = f"{ENGINEERS} AND {AT_A}"
    book.ask(K3, Add(rule("r0", "A1", both, of=[P3])), NOW)
    book.ask(K1, Add(rule("r1", "A1", both)), NOW)
    book.ask(K2, Add(rule("r2", "A1", ENGINEERS, of=[P2])), NOW)
    chosen = Resolve("r2", Strategy.DELETE, frozenset({P1, P3}))
    step = planned(book, chosen)
    book.ask(K2, chosen, NOW, consents=[agreed(book, K1, step), agreed(book, K3, step)])
    # P1 agreed to what comes of it with the rule of P3, and not without.
    refuses(book, "moderator.replay", MODERATOR, Undo(1, replay=True))
