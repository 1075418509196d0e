"""Who can write to the ledger, but has nobody's key, writes nothing that counts; nor do snapshots that are made up."""

from contextlib import nullcontext
from dataclasses import replace
from datetime import timedelta

import pytest
from tests.authority.kit import K1, K2, MODERATOR, NOW, book_in, founding, ledger
from tests.moderator.kit import P1, P2, rule
from tests.trust.kit import refused

from penstock.authority.rulebook import RuleBook
from penstock.authority.rulebook_fold import RuleBookFold
from penstock.authority.rulebook_records import Whole, found, take
from penstock.authority.signed_requests import Word
from penstock.codec.sexp import canonical, parse_canonical
from penstock.errors import MalformedError, PenstockError
from penstock.model.limits import DEFAULT_LIMITS
from penstock.moderator.deltas import Change, Delta, Standing, Status
from penstock.moderator.records import image_to_sexp
from penstock.moderator.steps import Add, Note, Pass, Request, Step, Undo, Withdraw
from penstock.store.folds import refold
from penstock.store.ledgers import Ledger
from penstock.trust.signed import sign_value

ENGINEERS = "role = 'engineer'"


@pytest.fixture
def place() -> Ledger:
    place = ledger()
    book_in(place).ask(K1, Add(rule("r1", "A1", ENGINEERS)), NOW)
    return place


def write(place: Ledger, whole: Whole) -> None:
    """Write to a ledger as somebody does who does not go through the book."""
    place.append(place.head(), [*whole.entries(DEFAULT_LIMITS)])


def step_of(place: Ledger, request: Request, who: object = P1) -> Step:
    return RuleBook.open(place).plan(request, Note(who, NOW)).step  # type: ignore[arg-type]  # a principal


def fails(place: Ledger, reason: str) -> None:
    """Check that a book does not open any more, and says at which change."""
    with refused("moderator.book") as raised:
        RuleBook.open(place)
    assert raised.value.fields == {"number": place.head().number, "reason": reason}


def test_a_step_without_a_word_does_not_count(place: Ledger) -> None:
    write(place, take(step_of(place, Withdraw("r1")), None))
    fails(place, "moderator.unsigned")


def test_a_step_on_somebody_elses_word_does_not_count(place: Ledger) -> None:
    book = RuleBook.open(place)
    step = step_of(place, Withdraw("r1"))
    write(place, take(step, Word(book.sign(K2, Withdraw("r1"), NOW).unverified())))
    fails(place, "moderator.not-yours")


def test_a_word_does_not_count_twice(place: Ledger) -> None:
    first = next(RuleBook.open(place).log())
    book = RuleBook.open(place)
    book.ask(K1, Withdraw("r1"), NOW)
    write(place, take(step_of(place, first.step.request), first.word))
    fails(place, "moderator.repeated")


@pytest.mark.parametrize("note", [Note(P2, NOW), Note(P1, NOW, "why not")])
def test_a_step_is_of_whoever_asked_and_why(place: Ledger, note: Note) -> None:
    book = RuleBook.open(place)
    word = Word(book.sign(K1, Withdraw("r1"), NOW).unverified())
    write(place, take(replace(step_of(place, Withdraw("r1")), note=note), word))
    fails(place, "moderator.record")


def test_a_step_is_what_was_asked_for(place: Ledger) -> None:
    book = RuleBook.open(place)
    word = Word(book.sign(K1, Undo(1), NOW).unverified())
    write(place, take(step_of(place, Withdraw("r1")), word))
    fails(place, "moderator.record")


def test_what_comes_of_a_word_is_found_when_the_book_is_verified(place: Ledger) -> None:
    """A good signature on a request, and a change of somebody else's rule beside it."""
    book = RuleBook.open(place)
    asked = Add(rule("r2", "A18", ENGINEERS, of=[P2]))
    step = step_of(place, asked, P2)
    mine = book.base.standings["r1"]
    wider = Standing(mine.stated, Status.IN_FORCE, replace(rule("r1", "A1")))
    forged = replace(step, delta=step.delta.then(Delta(rules={"r1": Change(mine, wider)})))
    write(place, take(forged, Word(book.sign(K2, asked, NOW).unverified())))
    book.refresh()
    with refused("moderator.book") as raised:
        book.verify()
    assert raised.value.fields["reason"] == "moderator.record"


def test_nothing_in_force_collides_whoever_wrote_it() -> None:
    place = ledger()
    book = RuleBook.create_unsigned(place, founding(unsafe_unsigned=True), NOW)
    book.take_unsigned(Add(rule("r1", "A1", ENGINEERS)), Note(P1, NOW))
    other = rule("r2", "A1", "role = 'worker'", of=[P2])
    delta = Delta(rules={"r2": Change(None, Standing(other, Status.IN_FORCE, other))})
    write(place, take(Step(2, Note(P2, NOW), Add(other), delta), None))
    fails(place, "moderator.conflict")


def test_a_ledger_of_something_else_is_no_book() -> None:
    place = ledger()
    write(place, Whole(P1, NOW, "test", "", b"", b"3:abc"))
    fails(place, "evolution.malformed")
    other = ledger()
    signed = sign_value(founding(name="others"), MODERATOR).unverified()
    write(other, found(signed, Note(MODERATOR.principal, NOW)))
    fails(other, "moderator.record")


def test_a_founding_is_of_its_moderator() -> None:
    place = ledger()
    write(place, found(founding(), Note(MODERATOR.principal, NOW)))
    fails(place, "moderator.record")
    other = ledger()
    write(other, found(sign_value(founding(), MODERATOR).unverified(), Note(P1, NOW)))
    fails(other, "moderator.record")


def test_half_a_change_is_none() -> None:
    place = ledger()
    book = RuleBook.create_unsigned(place, founding(unsafe_unsigned=True), NOW)
    whole = take(step_of(place, Add(rule("r1", "A1", ENGINEERS))), None)
    pieces = [*whole.entries(replace(DEFAULT_LIMITS, store_value_bytes=64))]
    place.append(place.head(), pieces[:-1])
    book.refresh()
    assert not book.base.standings
    # What comes next belongs to it, or there is somebody who writes past the book.
    place.append(place.head(), [replace(pieces[-1], why="something else")])
    fails(place, "moderator.record")


# --- snapshots ------------------------------------------------------------------------------------------------------


def test_a_snapshot_that_somebody_made_up_is_found_out(place: Ledger) -> None:
    fold = RuleBookFold(place)
    state = refold(place, fold)
    assert state.book is not None
    state.book.base.apply(step_of(place, Withdraw("r1")))
    place.keep_snapshot(fold.name, place.head(), fold.dump(state))
    assert RuleBook.open(place).base.standings["r1"].status is Status.WITHDRAWN
    with refused("store.broken"):
        RuleBook.open(place).verify()


@pytest.mark.parametrize("data", [b"3:abc", b"()", b"(15:rule-book-state0:(7:serials)())"])
def test_a_snapshot_that_is_none_is_passed_over(place: Ledger, data: bytes) -> None:
    fold = RuleBookFold(place)
    with pytest.raises(MalformedError):
        fold.load(data)
    place.keep_snapshot(fold.name, place.head(), data)
    assert [*RuleBook.open(place).base.standings] == ["r1"]


def test_a_snapshot_whose_rules_collide_is_none() -> None:
    place = ledger()
    book = RuleBook.create_unsigned(place, founding(unsafe_unsigned=True), NOW)
    book.take_unsigned(Add(rule("r1", "A1", ENGINEERS)), Note(P1, NOW))
    fold = RuleBookFold(place)
    dumped = parse_canonical(fold.dump(refold(place, fold)))
    assert isinstance(dumped, tuple)
    for function, fits in ((ENGINEERS, True), ("role = 'worker'", False)):
        other = rule("r2", "A1", function, of=[P2])
        image = book.base.image()
        made_up = replace(image, rules={**image.rules, "r2": Standing(other, Status.IN_FORCE, other)})
        data = canonical((*dumped[:-1], image_to_sexp(made_up)))
        with nullcontext() if fits else refused("moderator.record"):
            fold.load(data)


def test_the_same_state_is_the_same_octets() -> None:
    dumps = set()
    for order in ((1, 2, 3), (3, 1, 2)):
        place = ledger()
        book = RuleBook.create_unsigned(place, founding(unsafe_unsigned=True), NOW)
        for number in order:
            book.take_unsigned(Add(rule(f"r{number}", f"A1{number}", ENGINEERS)), Note(P1, NOW))
        with pytest.raises(PenstockError):
            book.plan(Withdraw("r9"), Note(P1, NOW))
        book.plan(Withdraw("r1"), Note(P1, NOW))
        dumps.add(RuleBookFold(place).dump(book._view.state))  # what a snapshot would hold
    assert len(dumps) == 1


def test_a_log_shows_nothing_of_the_rules() -> None:
    place = ledger()
    book = book_in(place)
    book.ask(K1, Add(rule("r1", "A1", ENGINEERS)), NOW)
    shown = repr([*book.log()]) + repr([*place.read()])
    assert "r1" in shown
    assert "engineer" not in shown


def test_time_does_not_fall(place: Ledger) -> None:
    book = RuleBook.open(place)
    step = book.take_unsigned(Pass(), Note(P1, NOW - timedelta(days=3))).step
    assert step.note.when == NOW
    book.verify()
