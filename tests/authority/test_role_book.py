"""Role books: what was stored is there for every reader, and limits hold for all who write at the same time."""

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Barrier

import pytest

from penstock.authority.role_book import RoleBook
from penstock.errors import MalformedError, RefusedError
from penstock.guard.roles import RoleHistory
from penstock.model.principals import Principal
from penstock.roles.engine import (
    ActivateRole,
    Appoint,
    OpenSession,
    RoleFounding,
    SetFact,
    WithdrawAppointment,
)
from penstock.store.ledgers.ledgers import Ledger, NewChange
from penstock.store.ledgers.memory import MemoryRecords
from penstock.store.ledgers.urls import open_store

DOMAIN = Principal(b"d" * 32)
PEOPLE = [Principal(bytes([number]) * 32) for number in range(8)]
NOW = datetime(2026, 3, 2, 12, tzinfo=UTC)
POLICY = """
domain other; role r; role chief; appointment a(n: integer); appointment f by other; fact open: boolean;
activate r if appointment a(_) *, where open *;
activate chief if where open;
allow r to subscribe self/x.Y;
limit chief to 1;
"""
FOUNDING = RoleFounding(DOMAIN, POLICY, (("other", Principal(b"o" * 32)),))


def test_a_book_is_what_its_ledger_says() -> None:
    ledger = Ledger(MemoryRecords(), "roles")
    book = RoleBook.create(ledger, FOUNDING, NOW)
    who = PEOPLE[0]
    book.change(SetFact("open", True), DOMAIN, NOW)
    book.change(Appoint("a", who, DOMAIN, (1,), NOW + timedelta(hours=1)), DOMAIN, NOW, "hired")
    book.change(OpenSession("s", who), who, NOW)
    outcome = book.change(ActivateRole("s", "r"), who, NOW)
    again = RoleBook(ledger)
    assert again.founding == FOUNDING
    assert [*again.engine.records()] == [*book.engine.records()]
    assert outcome.record in [*again.engine.records()]
    ended = again.advance(NOW + timedelta(hours=2)).ended
    assert [one.record.name for one in ended] == ["a", "r"]
    history = RoleHistory(FOUNDING.engine(), book.changes())
    assert len(history.periods(who)) == 1


def test_what_is_refused_is_not_stored() -> None:
    ledger = Ledger(MemoryRecords(), "roles")
    book = RoleBook.create(ledger, FOUNDING, NOW)
    with pytest.raises(RefusedError) as caught:
        book.change(WithdrawAppointment("1", DOMAIN), DOMAIN, NOW)
    assert caught.value.code == "role.no-record"
    assert ledger.head().number == 1


def test_a_book_sees_what_others_have_changed() -> None:
    ledger = Ledger(MemoryRecords(), "roles")
    one, other = RoleBook.create(ledger, FOUNDING, NOW), RoleBook(ledger)
    one.change(SetFact("open", True), DOMAIN, NOW)
    # The other service's clock is behind.
    record = other.change(Appoint("a", PEOPLE[0], DOMAIN, (1,)), DOMAIN, NOW - timedelta(hours=1)).record
    assert record is not None
    assert record.since == NOW
    one.refresh()
    assert [*one.engine.records()] == [*other.engine.records()]


def test_cardinality_holds_for_all_who_write(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path / 'roles.db'}"
    with open_store(url, create=True) as store:
        book = RoleBook.create(store.ledger("roles"), FOUNDING, NOW)
        book.change(SetFact("open", True), DOMAIN, NOW)
    together = Barrier(len(PEOPLE))

    def activate(who: Principal) -> bool:
        with open_store(url) as store:
            mine = RoleBook(store.ledger("roles"))
            mine.change(OpenSession(str(who), who), who, NOW)
            together.wait(60)
            try:
                mine.change(ActivateRole(str(who), "chief"), who, NOW)
            except RefusedError as error:
                if error.code != "role.cardinality":
                    raise
                return False
            return True

    with ThreadPoolExecutor(len(PEOPLE)) as pool:
        assert sum(pool.map(activate, PEOPLE)) == 1
    with open_store(url) as store:
        assert [one.name for one in RoleBook(store.ledger("roles")).engine.records()] == ["chief"]


def test_other_ledgers_and_policies_are_refused() -> None:
    ledger = Ledger(MemoryRecords(), "roles")
    with pytest.raises(RefusedError) as caught:
        RoleBook(ledger)
    assert caught.value.code == "role.no-book"
    with pytest.raises(MalformedError):
        RoleBook.create(ledger, RoleFounding(DOMAIN, "role r"), NOW)
    book = RoleBook.create(ledger, FOUNDING, NOW)
    with pytest.raises(RefusedError) as caught:
        RoleBook.create(ledger, FOUNDING, NOW)
    assert caught.value.code == "role.book-exists"
    ledger.append(ledger.head(), [NewChange(who=DOMAIN, when=NOW, kind="appoint", after=b"(4:none)")])
    with pytest.raises(MalformedError) as malformed:
        book.refresh()
    assert malformed.value.code == "role.record"
