"""Role books: what was stored is there for every reader, and limits hold for all who write at the same time."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from threading import Barrier

import pytest

from penstock.authority import role_book
from penstock.authority.role_book import RoleBook, RoleBookImage, RoleSnapshot
from penstock.codec.sexp import canonical, parse_canonical
from penstock.crypto import SigningKey
from penstock.errors import MalformedError, RefusedError
from penstock.guard.roles import RoleHistory
from penstock.model.principals import Principal
from penstock.roles.engine import (
    ActivateRole,
    Appoint,
    EndSession,
    OpenSession,
    RoleChange,
    RoleFounding,
    SetFact,
    WithdrawAppointment,
)
from penstock.store.ledgers.ledgers import Change, Ledger, NewChange
from penstock.store.ledgers.memory import MemoryRecords
from penstock.store.ledgers.urls import open_store
from penstock.trust.signed import sign_value

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


KEY, SMITH, JONES = (SigningKey(bytes([number]) * 32) for number in (101, 102, 103))
SIGNED = RoleFounding(KEY.principal, POLICY, (("other", Principal(b"o" * 32)),))


def signed_book() -> tuple[Ledger, RoleBook]:
    ledger = Ledger(MemoryRecords(), "roles")
    book = RoleBook.create(ledger, SIGNED, NOW, "hello", KEY)
    book.change_all([SetFact("open", True), Appoint("a", SMITH.principal, KEY.principal, (1,))], KEY.principal, NOW)
    return ledger, book


def test_the_domain_and_those_who_act_sign_changes() -> None:
    ledger, book = signed_book()
    own = RoleBook(ledger, SMITH)
    own.change(OpenSession("s", SMITH.principal), SMITH.principal, NOW)
    own.change(ActivateRole("s", "r"), SMITH.principal, NOW, "to work")
    book.refresh()
    assert [one.name for one in book.engine.active(SMITH.principal)] == ["r"]
    assert [*RoleBook(ledger).engine.records()] == [*book.engine.records()]
    assert len(book.exported().changes) == 4


@pytest.mark.parametrize(
    ("key", "change"),
    [
        (SMITH, SetFact("open", False)),
        (SMITH, OpenSession("t", JONES.principal)),
        (SMITH, Appoint("a", SMITH.principal, KEY.principal, (2,))),
        (JONES, EndSession("s")),
        (JONES, ActivateRole("s", "r")),
    ],
)
def test_nobody_signs_for_another(key: SigningKey, change: RoleChange) -> None:
    ledger, book = signed_book()
    book.change(OpenSession("s", SMITH.principal), SMITH.principal, NOW)
    mine = RoleBook(ledger, key)
    with pytest.raises(RefusedError) as caught:
        mine.change(change, key.principal, NOW)
    assert caught.value.code == "role.not-permitted"
    # Somebody who can write to the store does not ask the book.
    ledger.append(ledger.head(), mine._entries([change], key.principal, "", None))
    with pytest.raises(RefusedError) as caught:
        RoleBook(ledger)
    assert caught.value.code == "role.ledger"


def test_a_signed_book_has_signed_changes_in_their_places() -> None:
    ledger, book = signed_book()
    with pytest.raises(RefusedError) as caught:
        RoleBook(ledger).change(SetFact("open", False), KEY.principal, NOW)
    assert caught.value.code == "role.unsigned"
    [*_, last] = ledger.read(1)
    unsigned = canonical(SetFact("open", False).to_sexp())
    for after in (unsigned, last.after):
        copy = Ledger(MemoryRecords(), "roles")
        for one in ledger.read(1):
            stored = NewChange(who=one.who, when=one.when, kind=one.kind, why=one.why, after=one.after)
            copy.append(copy.head(), [stored])
        kind = "fact" if after == unsigned else last.kind
        copy.append(copy.head(), [NewChange(who=last.who, when=last.when, kind=kind, after=after)])
        with pytest.raises(RefusedError) as caught:
            RoleBook(copy)
        assert caught.value.code == "role.ledger"
    assert book.signed


def test_others_do_not_found_a_domain_s_roles() -> None:
    ledger = Ledger(MemoryRecords(), "roles")
    with pytest.raises(RefusedError) as caught:
        RoleBook.create(ledger, SIGNED, NOW, signer=SMITH)
    assert caught.value.code == "role.ledger"


def test_a_request_is_remembered_as_long_as_it_could_be_taken_again() -> None:
    ledger, book = signed_book()
    for number in range(3):
        session = OpenSession(f"s{number}", SMITH.principal)
        book.change(session, SMITH.principal, NOW + timedelta(seconds=300 * number), nonce=b"%d" % number)
    with pytest.raises(RefusedError) as caught:
        RoleBook(ledger, KEY).change(EndSession("s0"), SMITH.principal, NOW, nonce=b"0")
    assert caught.value.code == "role.repeated"
    book.change(EndSession("s0"), SMITH.principal, NOW + timedelta(seconds=900), nonce=b"3")
    assert len(book._applied) == 3


def folded(book: RoleBook) -> bytes:
    """Return the state that all changes lead to, without snapshots."""
    engine = book.founding.engine()
    engine.fold(book.changes())
    return canonical(engine.image().to_sexp())


def fill(ledger: Ledger, signer: SigningKey | None = KEY, appointments: int = 30) -> RoleBook:
    book = RoleBook.create(ledger, SIGNED, NOW, signer=signer)
    book.change(SetFact("open", True), KEY.principal, NOW, nonce=b"n")
    for number in range(appointments):
        book.change(Appoint("a", SMITH.principal, KEY.principal, (number,)), KEY.principal, NOW)
    book.change(OpenSession("s", SMITH.principal), KEY.principal if signer is None else SMITH.principal, NOW)
    book.change(ActivateRole("s", "r"), SMITH.principal, NOW)
    book.change(WithdrawAppointment("3", KEY.principal), KEY.principal, NOW)
    return book


@pytest.mark.parametrize("signer", [KEY, None])
def test_a_long_ledger_is_read_from_a_snapshot(monkeypatch: pytest.MonkeyPatch, signer: SigningKey | None) -> None:
    monkeypatch.setattr(role_book, "SNAPSHOT_EVERY", 10)
    ledger = Ledger(MemoryRecords(), "roles")
    book = fill(ledger, signer)
    reads: list[int] = []
    read = ledger.read

    def counted(first: int = 1, last: int | None = None) -> Iterator[Change]:
        reads.append(first)
        return read(first, last)

    monkeypatch.setattr(ledger, "read", counted)
    again = RoleBook(ledger, signer)
    assert reads[0] == 1
    assert reads[1] > 20
    assert canonical(again.engine.image().to_sexp()) == canonical(book.engine.image().to_sexp()) == folded(book)
    if signer is not None:
        # Also which requests were applied.
        with pytest.raises(RefusedError) as caught:
            again.change(SetFact("open", False), KEY.principal, NOW, nonce=b"n")
        assert caught.value.code == "role.repeated"


def test_only_the_domain_s_snapshots_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(role_book, "SNAPSHOT_EVERY", 10)
    ledger = Ledger(MemoryRecords(), "roles")
    book = fill(ledger)
    forged = RoleFounding(KEY.principal, POLICY, SIGNED.names).engine()
    forged.fold([*book.changes(), (NOW, Appoint("a", JONES.principal, KEY.principal, (1,)))])
    state = RoleBookImage(forged.image()).to_sexp()
    by_jones = RoleSnapshot(
        JONES.principal, ledger.head().number, ledger.head().hash, sha256(canonical(state)).digest()
    )
    kept = ledger.snapshot("roles/1")
    assert kept is not None
    old = parse_canonical(kept.data)
    assert isinstance(old, tuple)
    for data in (state, (b"kept", state, sign_value(by_jones, JONES).to_sexp()), (b"kept", state, old[2]), b"nonsense"):
        ledger.keep_snapshot("roles/1", ledger.head(), canonical(data))
        assert canonical(RoleBook(ledger).engine.image().to_sexp()) == folded(book)


def test_a_writer_whose_clock_is_behind_is_understood() -> None:
    ledger, book = signed_book()
    until = NOW + timedelta(minutes=1)
    book.change(WithdrawAppointment("1", KEY.principal), KEY.principal, NOW)
    book.change(Appoint("a", SMITH.principal, KEY.principal, (1,), until), KEY.principal, NOW)
    other = RoleBook(ledger, SMITH)
    # For the one, the appointment has ended. The other's clock is behind, and the role begins before.
    assert [one.record.name for one in book.advance(until + timedelta(minutes=1)).ended] == ["a"]
    other.change(OpenSession("s", SMITH.principal), SMITH.principal, NOW)
    other.change(ActivateRole("s", "r"), SMITH.principal, NOW)
    assert SMITH.principal in book.take(book.unread())
    assert [one.name for one in book.engine.active(SMITH.principal)] == ["r"]
    assert canonical(book.engine.image().to_sexp()) == folded(book)
    assert len(book.advance(until + timedelta(minutes=1)).ended) == 2


def test_the_first_change_of_a_clock_behind_the_founding_s_has_the_founding_s_time() -> None:
    ledger = Ledger(MemoryRecords(), "roles")
    book = RoleBook.create(ledger, SIGNED, NOW, signer=KEY)
    book.change(SetFact("open", True), KEY.principal, NOW - timedelta(hours=1))
    assert RoleBook(ledger).engine.now == NOW
