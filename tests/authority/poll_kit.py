"""What the tests of polls share: a rule book in which P4 asks for more than P1, P2 and P3 demand."""

from datetime import datetime, timedelta

from tests.authority.kit import KEYS, MODERATOR, NAME, NOW, book_in
from tests.moderator.kit import P4
from tests.moderator.poll_kit import CANDIDATE, ENGINEERS

from penstock.authority.polls import Polls, State, polls_name, read_polls
from penstock.authority.rulebook import RuleBook
from penstock.crypto import SigningKey
from penstock.moderator.rules.steps import Add
from penstock.moderator.settlement.addition import Tightening
from penstock.store.ledgers.ledgers import Store
from penstock.store.ledgers.memory import MemoryRecords

K4: SigningKey = KEYS[P4]
HOUR = timedelta(hours=1)
ASKED = NOW + HOUR
DEADLINE = ASKED + HOUR


def contested(store: Store | None = None, tightening: Tightening = Tightening.FREE) -> Store:
    """Return a store with the rule book."""
    place = store or Store(MemoryRecords())
    book = book_in(place.ledger(NAME), tightening=tightening)
    for rule in (*ENGINEERS, CANDIDATE):
        book.ask(KEYS[rule.stated_by], Add(rule), NOW)
    return place


def polls_in(store: Store) -> Polls:
    """Open the polls, as a process does that has just begun."""
    return Polls(store.ledger(polls_name(NAME)), RuleBook.open(store.ledger(NAME)), MODERATOR)


def polls_of(store: Store) -> State:
    """Read the polls, as anybody may."""
    return read_polls(store.ledger(polls_name(NAME)), RuleBook.open(store.ledger(NAME)).founding)


def at(minutes: float) -> datetime:
    """Return a time so long after the question."""
    return ASKED + timedelta(minutes=minutes)
