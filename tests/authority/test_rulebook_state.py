"""Who can write to the ledger writes nothing that counts, unless it comes of what was signed; snapshots are whole."""

from contextlib import nullcontext
from dataclasses import replace

import pytest
from tests.authority.kit import K1, K2, MODERATOR, NOW, book_in, founding, ledger
from tests.moderator.kit import P1, P2, rule
from tests.trust.kit import refused

from penstock.authority.limits import AuthorityLimits
from penstock.authority.rulebook import RuleBook
from penstock.authority.rulebook_records import SignedRequest, Whole, found, take
from penstock.authority.rulebook_state import RuleBookFold
from penstock.codec.sexp import canonical, parse_canonical
from penstock.errors import MalformedError, PenstockError
from penstock.moderator.base.records import image_to_sexp
from penstock.moderator.rules.steps import (
    CLOCK,
    Add,
    Delta,
    Note,
    Pass,
    Request,
    RuleChange,
    RuleState,
    RuleStatus,
    Step,
    Undo,
    WithdrawRule,
)
from penstock.moderator.settlement.addition import plan_add
from penstock.store.ledgers.folds import refold
from penstock.store.ledgers.ledgers import Ledger
from penstock.trust.signed import sign_value

ENGINEERS = "role = 'engineer'"


@pytest.fixture
def place() -> Ledger:
    place = ledger()
    book_in(place).ask(K1, Add(rule("r1", "A1", ENGINEERS)), NOW)
    return place


def write(place: Ledger, whole: Whole) -> None:
    """Write to a ledger as somebody does who does not go through the book."""
    place.append(place.head(), [*whole.entries(AuthorityLimits())])


def step_of(place: Ledger, request: Request, who: object = P1) -> Step:
    return RuleBook.open(place).plan(request, Note(who, NOW)).step  # type: ignore[arg-type]  # a principal


def fails(place: Ledger, reason: str) -> None:
    """Check that a book does not open any more, and says at which change."""
    with refused("moderator.book") as raised:
        RuleBook.open(place)
    assert raised.value.fields == {"number": place.head().number, "reason": reason}


def test_a_step_without_a_word_does_not_count(place: Ledger) -> None:
    write(place, take(step_of(place, WithdrawRule("r1")), None))
    fails(place, "moderator.unsigned")


def test_a_step_on_somebody_elses_word_does_not_count(place: Ledger) -> None:
    book = RuleBook.open(place)
    step = step_of(place, WithdrawRule("r1"))
    write(place, take(step, SignedRequest(book.sign(K2, WithdrawRule("r1"), NOW).unverified())))
    fails(place, "moderator.not-yours")


def test_a_word_does_not_count_twice(place: Ledger) -> None:
    first = next(RuleBook.open(place).log())
    book = RuleBook.open(place)
    book.ask(K1, WithdrawRule("r1"), NOW)
    write(place, take(step_of(place, first.step.request), first.word))
    fails(place, "moderator.repeated")


@pytest.mark.parametrize("note", [Note(P2, NOW), Note(P1, NOW, "why not")])
def test_a_step_is_of_whoever_asked_and_why(place: Ledger, note: Note) -> None:
    book = RuleBook.open(place)
    word = SignedRequest(book.sign(K1, WithdrawRule("r1"), NOW).unverified())
    write(place, take(replace(step_of(place, WithdrawRule("r1")), note=note), word))
    fails(place, "moderator.record")


def test_a_step_is_what_was_asked_for(place: Ledger) -> None:
    book = RuleBook.open(place)
    word = SignedRequest(book.sign(K1, Undo(1), NOW).unverified())
    write(place, take(step_of(place, WithdrawRule("r1")), word))
    fails(place, "moderator.record")


def relaxed(place: Ledger) -> Delta:
    """Return a change of somebody else's rule that its publisher has not asked for."""
    mine = RuleBook.open(place).base.standings["r1"]
    return Delta(rules={"r1": RuleChange(mine, RuleState(mine.stated, RuleStatus.IN_FORCE, rule("r1", "A1")))})


@pytest.mark.parametrize("signed", [True, False])
def test_what_does_not_come_of_a_request_does_not_count(place: Ledger, *, signed: bool) -> None:
    """A good signature, or the passing of time, which needs none, and a change of somebody else's rule beside it."""
    ahead, behind = RuleBook.open(place), RuleBook.open(place)
    asked = Add(rule("r2", "A18", ENGINEERS, of=[P2])) if signed else Pass()
    step = step_of(place, asked, P2)
    forged = replace(step, delta=step.delta.then(relaxed(place)))
    word = SignedRequest(ahead.sign(K2, asked, NOW).unverified()) if signed else None
    image = ahead.base.image()
    write(place, take(forged, word))
    fails(place, "moderator.record")
    with refused("moderator.book"):
        ahead.at(NOW)
    with refused("moderator.book"):
        ahead.refresh()
    with refused("moderator.book"):
        behind.ask(K1, WithdrawRule("r1"), NOW)
    assert ahead.base.image() == behind.base.image() == image


def test_a_step_that_was_planned_is_not_taken_for_another(place: Ledger) -> None:
    """Who takes a step does not plan it twice; what others write in between is planned again."""
    book, other = RuleBook.open(place), RuleBook.open(place)
    plan = book.plan(Pass(), Note(P2, NOW))
    write(place, take(replace(plan.step, delta=relaxed(place)), None))
    with refused("moderator.book"):
        book.take_unsigned(Pass(), Note(CLOCK, NOW))
    with refused("moderator.book"):
        other.refresh()


def test_nothing_in_force_collides_whoever_wrote_it() -> None:
    place = ledger()
    book = RuleBook.create_unsigned(place, founding(unsafe_unsigned=True), NOW)
    book.take_unsigned(Add(rule("r1", "A1", ENGINEERS)), Note(P1, NOW))
    other = rule("r2", "A1", "role = 'worker'", of=[P2])
    delta = Delta(rules={"r2": RuleChange(None, RuleState(other, RuleStatus.IN_FORCE, other))})
    write(place, take(Step(2, Note(P2, NOW), Add(other), delta), None))
    fails(place, "moderator.record")


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
    pieces = [*whole.entries(AuthorityLimits(store_value_bytes=64))]
    place.append(place.head(), pieces[:-1])
    book.refresh()
    assert not book.base.standings
    # What comes next belongs to it, or there is somebody who writes past the book.
    place.append(place.head(), [replace(pieces[-1], why="something else")])
    fails(place, "moderator.record")


# --- snapshots ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("data", [b"3:abc", b"()", b"(15:rule-book-state0:(7:serials)())"])
def test_a_snapshot_that_is_none_is_passed_over(place: Ledger, data: bytes) -> None:
    fold = RuleBookFold(place)
    with pytest.raises(MalformedError):
        fold.load(data)
    place.keep_snapshot(fold.name, place.head(), data)
    assert [*RuleBook.open(place).base.standings] == ["r1"]


def test_a_snapshot_whose_rules_collide_answers_nothing_about_them() -> None:
    place = ledger()
    book = RuleBook.create_unsigned(place, founding(unsafe_unsigned=True), NOW)
    book.take_unsigned(Add(rule("r1", "A1", ENGINEERS)), Note(P1, NOW))
    fold = RuleBookFold(place)
    dumped = parse_canonical(fold.dump(refold(place, fold)))
    assert isinstance(dumped, tuple)
    for function, fits in ((ENGINEERS, True), ("role = 'worker'", False)):
        other = rule("r2", "A1", function, of=[P2])
        image = book.base.image()
        made_up = replace(image, rules={**image.rules, "r2": RuleState(other, RuleStatus.IN_FORCE, other)})
        data = canonical((*dumped[:-1], image_to_sexp(made_up)))
        resumed = fold.load(data).book
        assert resumed is not None
        # On the same event type, above and below; twice, since nothing is forgotten after the first time.
        for about in ("A1", "A1", "ActivityX", "A11"):
            with nullcontext() if fits else refused("moderator.book"):
                resumed.base.detector.conflicts(rule("r3", about, ENGINEERS))
        with nullcontext() if fits else refused("moderator.book"):
            plan_add(resumed.base, rule("r3", "A11", ENGINEERS), Note(P1, NOW))


def test_the_same_state_is_the_same_octets() -> None:
    dumps = set()
    for order in ((1, 2, 3), (3, 1, 2)):
        place = ledger()
        book = RuleBook.create_unsigned(place, founding(unsafe_unsigned=True), NOW)
        for number in order:
            book.take_unsigned(Add(rule(f"r{number}", f"A1{number}", ENGINEERS)), Note(P1, NOW))
        with pytest.raises(PenstockError):
            book.plan(WithdrawRule("r9"), Note(P1, NOW))
        book.plan(WithdrawRule("r1"), Note(P1, NOW))
        dumps.add(RuleBookFold(place).dump(book._view.state))  # what a snapshot would hold
    assert len(dumps) == 1


def test_a_log_shows_nothing_of_the_rules() -> None:
    place = ledger()
    book = book_in(place)
    book.ask(K1, Add(rule("r1", "A1", ENGINEERS)), NOW)
    shown = repr([*book.log()]) + repr([*place.read()])
    assert "r1" in shown
    assert "engineer" not in shown
