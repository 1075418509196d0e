"""kill -9 while many change one rule book: what was acknowledged is there, nothing is there by half."""

from datetime import UTC, datetime
from pathlib import Path
from typing import ClassVar

import pytest
from tests.authority.book_writer import LEDGER, MODERATOR, begin, fingerprint
from tests.store.ledgers.test_crashes import Crash

from penstock.authority.rulebook import RuleBook
from penstock.moderator.detection.detector import find_conflicts
from penstock.moderator.rules.steps import Pass
from penstock.store.ledgers.urls import open_store
from penstock.testing.postgres import PostgresServer


class BookCrash(Crash):
    """Writers of one rule book."""

    program: ClassVar = Path(__file__).with_name("book_writer.py")

    def __init__(self, url: str, folder: Path) -> None:
        super().__init__(url, folder)
        with open_store(url) as store:
            begin(store)

    def verify(self) -> int:
        """Check all that must hold after a crash, others writing or not; return how many steps there are."""
        told = self.acknowledged()
        with open_store(self.url) as store:
            book = RuleBook.open(store.ledger(LEDGER))
            book.verify()
        steps = {step.number: fingerprint(step) for step in book.base.steps}
        assert {number: steps.get(number) for number in told} == told
        rules, words = list(book.base.detector.rules.values()), book.base.detector.vocabulary
        assert not any(find_conflicts(rule, rules, words, book.base.mode) for rule in rules)
        with open_store(self.url) as store:
            RuleBook.open(store.ledger(LEDGER)).ask(MODERATOR, Pass(), datetime.now(UTC))
        return len(steps)


class LongBookCrash(BookCrash):
    """Writers of one rule book that change it a thousand times."""

    patience: ClassVar = 250.0


def test_a_book_in_sqlite_survives_its_writers(tmp_path: Path) -> None:
    crash = BookCrash(f"sqlite:{tmp_path}/rules.db", tmp_path)
    with crash.writers():
        crash.wait(30)
    assert crash.verify() >= 30


def test_a_book_in_postgresql_survives_its_writers_and_its_server(postgres: PostgresServer, tmp_path: Path) -> None:
    crash = BookCrash(postgres.url(postgres.new_database()), tmp_path)
    with crash.writers():
        crash.wait(20)
        postgres.kill()
        postgres.start()
        crash.wait(40)
    assert crash.verify() >= 40


@pytest.mark.long
def test_a_thousand_changes_of_a_book_in_sqlite(tmp_path: Path) -> None:
    crash = LongBookCrash(f"sqlite:{tmp_path}/rules.db", tmp_path)
    with crash.writers():
        crash.wait(500)
    assert crash.verify() >= 500
    with crash.writers(1_000) as writers:
        assert writers.wait(crash.patience) == 0
    assert crash.verify() >= 1_000


@pytest.mark.long
def test_a_thousand_changes_of_a_book_in_postgresql(postgres: PostgresServer, tmp_path: Path) -> None:
    crash = LongBookCrash(postgres.url(postgres.new_database()), tmp_path)
    with crash.writers():
        crash.wait(333)
    assert crash.verify() >= 333
    with crash.writers(1_000) as writers:
        crash.wait(667)
        postgres.kill()
        postgres.start()
        assert writers.wait(crash.patience) == 0
    assert crash.verify() >= 1_000
