"""A snapshot counts by the word of the moderator: of this book, this head, this state. Others are passed over."""

from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256

import pytest
from tests.authority.kit import K1, K2, MODERATOR, NOW, book_in, founding, ledger
from tests.moderator.kit import P1, P2, rule
from tests.trust.kit import refused

from penstock.authority.limits import AuthorityLimits
from penstock.authority.rulebook import RuleBook
from penstock.authority.rulebook_records import Snapshots, Vouched
from penstock.authority.rulebook_state import BookState, RuleBookFold
from penstock.codec.sexp import SExp, canonical
from penstock.crypto import SigningKey
from penstock.errors import MalformedError
from penstock.model.principals import Principal
from penstock.moderator.rules.steps import Add, Note, Pass, RuleStatus, Undo, WithdrawRule
from penstock.store.ledgers.folds import refold
from penstock.store.ledgers.ledgers import Change, Ledger, to_row
from penstock.store.ledgers.memory import MemoryRecords
from penstock.trust.signed import sign_value

Forging = Callable[[Vouched], tuple[Vouched, SigningKey] | None]


@pytest.fixture
def place() -> Ledger:
    place = ledger()
    book_in(place).ask(K1, Add(rule("r1", "A1", "role = 'engineer'")), NOW)
    return place


def made_up(place: Ledger) -> bytes:
    """Return a state without the rule that is in force."""
    fold = RuleBookFold(place)
    state = refold(place, fold)
    assert state.book is not None
    state.book.base.apply(RuleBook.open(place).plan(WithdrawRule("r1"), Note(P1, NOW)).step)
    return fold.dump(state)


def signed(place: Ledger, data: bytes, forging: Forging) -> bytes:
    """Return a snapshot as somebody makes it who does not have the moderator's word for it."""
    found = forging(Vouched.of(RuleBook.open(place).founding, place.head(), data))
    words: tuple[SExp, ...] = () if found is None else (sign_value(*found).to_sexp(),)
    return canonical((b"kept", data, *words))


@pytest.mark.parametrize(
    "forging",
    [
        lambda _: None,
        lambda said: (replace(said, by=K2.principal), K2),
        lambda said: (replace(said, book=bytes(32)), MODERATOR),
        lambda said: (replace(said, number=1), MODERATOR),
        lambda said: (replace(said, hash=bytes(32)), MODERATOR),
        lambda said: (replace(said, state=sha256(b"").digest()), MODERATOR),
    ],
    ids=["nobody", "somebody else", "of another book", "of another number", "of another head", "of another state"],
)
def test_a_snapshot_that_the_moderator_did_not_sign_does_not_count(place: Ledger, forging: Forging) -> None:
    place.keep_snapshot(RuleBookFold.name, place.head(), signed(place, made_up(place), forging))
    book = RuleBook.open(place)
    assert book.base.standings["r1"].status is RuleStatus.IN_FORCE
    assert book.at(NOW).standings["r1"].status is RuleStatus.IN_FORCE
    book.verify()


def test_a_signature_of_somebody_else_does_not_count(place: Ledger) -> None:
    data = made_up(place)
    said = sign_value(Vouched.of(RuleBook.open(place).founding, place.head(), data), MODERATOR)
    for forged in (
        replace(said, key=K2.public, signature=K2.sign(canonical(said.body))),
        replace(said, signature=bytes(64)),
    ):
        with pytest.raises(MalformedError):
            Snapshots(place).unwrap(place.head(), canonical((b"kept", data, forged.to_sexp())))
    assert Snapshots(place).unwrap(place.head(), canonical((b"kept", data, said.to_sexp()))) == data


@pytest.mark.parametrize("data", [b"", b"3:abc", b"(4:kept)", b"(4:kept3:abc3:abc)", b"(4:kept3:abc()())"])
def test_what_is_no_snapshot_is_passed_over(place: Ledger, data: bytes) -> None:
    with pytest.raises(MalformedError):
        Snapshots(place).unwrap(place.head(), data)
    place.keep_snapshot(RuleBookFold.name, place.head(), data)
    assert [*RuleBook.open(place).base.standings] == ["r1"]


def test_a_snapshot_of_old_is_not_put_at_a_later_head(place: Ledger) -> None:
    book = RuleBook.open(place)
    book.keep(MODERATOR)
    kept = place.snapshot(RuleBookFold.name)
    assert kept is not None
    book.ask(K1, WithdrawRule("r1"), NOW)
    place.keep_snapshot(RuleBookFold.name, place.head(), kept.data)
    assert RuleBook.open(place).base.standings["r1"].status is RuleStatus.WITHDRAWN


def test_what_the_moderator_signed_is_found_out_by_who_verifies(place: Ledger) -> None:
    """The moderator is believed by who opens a book, and by nobody who goes through it."""
    octets = signed(place, made_up(place), lambda said: (said, MODERATOR))
    place.keep_snapshot(RuleBookFold.name, place.head(), octets)
    book = RuleBook.open(place)
    assert book.base.standings["r1"].status is RuleStatus.WITHDRAWN
    with refused("store.broken"):
        book.verify()


def test_the_moderator_alone_keeps_one(place: Ledger) -> None:
    book = RuleBook.open(place)
    with refused("moderator.unsigned"):
        book.keep()
    with refused("evolution.wrong-key"):
        book.keep(K1)
    assert place.snapshot(RuleBookFold.name) is None


def test_one_is_kept_now_and_then_where_the_key_is_at_hand(place: Ledger) -> None:
    book = RuleBook.open(place, limits=AuthorityLimits(moderator_snapshot_every=2))
    for number in range(4):
        book.ask(K2, Add(rule(f"b{number}", "A2", of=[P2])), NOW)
    assert place.snapshot(RuleBookFold.name) is None
    book.ask(MODERATOR, Pass(), NOW)
    kept = place.snapshot(RuleBookFold.name)
    assert kept is not None
    assert kept.head.number == 6
    assert RuleBook.open(place).base.image() == book.base.image()


def test_whoever_writes_keeps_its_own_which_count_for_nobody_else(
    place: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = AuthorityLimits(moderator_snapshot_every=3)
    steps: list[int] = []
    step = RuleBookFold.step

    def counted(fold: RuleBookFold, state: BookState, change: Change) -> BookState:
        steps.append(change.number)
        return step(fold, state, change)

    monkeypatch.setattr(RuleBookFold, "step", counted)

    def replayed(own: Principal | None) -> int:
        steps.clear()
        RuleBook.open(place, own=own, limits=few)
        return len(steps)

    book = RuleBook.open(place, own=P2, limits=few)
    for number in range(5):
        book.ask(K2, Add(rule(f"b{number}", "A2", of=[P2])), NOW)
    written = place.head().number
    assert place.snapshot(RuleBookFold.name) is None
    assert replayed(P2) < 3 <= written == replayed(P1) == replayed(None)
    assert RuleBook.open(place, own=P2).base.image() == RuleBook.open(place).base.image()
    # Whoever writes to the store cannot put its own in the place of another's.
    mine = place.snapshot(f"{RuleBookFold.name}/{P2.digest.hex()}")
    assert mine is not None
    place.keep_snapshot(f"{RuleBookFold.name}/{P1.digest.hex()}", mine.head, mine.data)
    place.keep_snapshot(RuleBookFold.name, mine.head, mine.data)
    assert replayed(P1) == written == replayed(None)


def test_a_long_book_replays_few_steps_and_reads_few_rules(place: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """What one more rule costs does not grow with the book, but for its index."""
    few = AuthorityLimits(moderator_snapshot_every=4)
    steps: list[int] = []
    step = RuleBookFold.step

    def counted(fold: RuleBookFold, state: BookState, change: Change) -> BookState:
        steps.append(change.number)
        return step(fold, state, change)

    monkeypatch.setattr(RuleBookFold, "step", counted)
    for number in range(25):
        book = RuleBook.open(place, own=P2, limits=few)
        adds = [Add(rule(f"b{number}-{name}", name, of=[P2])) for name in ("A2", "A3", "A16", "A17")]
        book.state(adds, NOW, key=K2)
    book = RuleBook.open(place, own=P2, limits=few)
    for number in range(9):
        steps.clear()
        book = RuleBook.open(place, own=P2, limits=few)
        book.ask(K2, Add(rule(f"c{number}", "A17", of=[P2])), NOW)
        assert len(steps) <= 4
        # Those of the steps, one of A3 and one of A17, which are on the way.
        assert book.base.read <= len(steps) + 2
    assert len(book.base.standings) == 110
    assert RuleBook.open(place).base.image() == book.base.image()
    book.verify()


def test_where_nobody_signs_snapshots_are_not_signed_either() -> None:
    place = ledger()
    book = RuleBook.create_unsigned(place, founding(unsafe_unsigned=True), NOW)
    book.take_unsigned(Add(rule("r1", "A1")), Note(P1, NOW))
    place.keep_snapshot(RuleBookFold.name, place.head(), signed(place, made_up(place), lambda _: None))
    assert RuleBook.open(place).base.standings["r1"].status is RuleStatus.WITHDRAWN
    book.take_unsigned(WithdrawRule("r1"), Note(P1, NOW))
    book.keep()
    kept = place.snapshot(RuleBookFold.name)
    assert kept is not None
    assert kept.head == place.head()


def test_steps_before_a_snapshot_are_those_of_the_chain(place: Ledger) -> None:
    """Who undoes a step of old undoes what was done, and nothing that somebody has put in its place."""
    records = MemoryRecords()
    mine, forged = Ledger(records, place.name), ledger()
    book = book_in(mine)
    for each in (book, book_in(forged, mode=book.founding.mode)):
        each.ask(K1, Add(rule("r1", "A1", "role = 'engineer'")), NOW, "mine" if each is book else "forged")
    book.keep(MODERATOR)
    book.ask(K2, Add(rule("r2", "A2", of=[P2])), NOW)
    opened = RuleBook.open(mine)
    (row,) = [to_row(change) for change in forged.read(2)]
    records._rows[mine.name][1] = row
    with refused("store.broken"):
        opened.ask(K1, Undo(1), NOW)
    with refused("store.broken"):
        opened.verify()
