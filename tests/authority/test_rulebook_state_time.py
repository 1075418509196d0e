"""One wrong clock does not bring a rule book to a stand, and time that was set wrong is set right by the moderator."""

from contextlib import nullcontext
from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from tests.authority.kit import K1, K2, MODERATOR, NOW, book_in, founding, ledger
from tests.moderator.kit import P1, P2, rule
from tests.trust.kit import refused

from penstock.authority.limits import AuthorityLimits
from penstock.authority.rulebook import RuleBook
from penstock.authority.rulebook_records import SignedRequest, read_taken, take
from penstock.codec.sexp import canonical, parse_canonical
from penstock.errors import MalformedError
from penstock.moderator.rules.steps import CLOCK, Add, Note, Pass, Request, RuleStatus, WithdrawRule
from penstock.store.ledgers.ledgers import Ledger, ticks
from penstock.trust.validity import Validity

DAY = timedelta(days=1)
#: clocks that are wrong: so far that the book sees it, and less
FAR, NEAR = NOW + 3_650 * DAY, NOW + 300 * DAY


@pytest.fixture
def place() -> Ledger:
    place = ledger()
    book_in(place).ask(K1, Add(rule("r1", "A1", "role = 'engineer'")), NOW)
    return place


def test_clocks_may_differ_a_little(place: Ledger) -> None:
    book = RuleBook.open(place)
    step = book.take_unsigned(Pass(), Note(CLOCK, NOW - DAY)).step
    assert step.note.when == NOW
    book.verify()


def test_time_does_not_leap_on_anybodys_word(place: Ledger) -> None:
    book = RuleBook.open(place)
    head = book.head
    with refused("moderator.untimely"):
        book.take_unsigned(Pass(), Note(CLOCK, FAR))
    with refused("moderator.untimely"):
        # That it says that it is of the moderator is not the moderator's word.
        book.take_unsigned(Pass(), Note(MODERATOR.principal, FAR))
    with refused("moderator.untimely"):
        book.ask(K2, Add(rule("r2", "A2", of=[P2])), FAR)
    assert place.head() == head
    book.ask(K2, Add(rule("r2", "A2", of=[P2])), NOW + DAY)
    # After a long rest, the moderator says that it was one.
    book.ask(MODERATOR, Pass(), FAR)
    book.ask(K1, WithdrawRule("r1"), FAR)
    RuleBook.open(place).verify()


@pytest.mark.parametrize("request_", [Pass(), WithdrawRule("r1")])
@pytest.mark.parametrize("when", [FAR, NOW - DAY])
def test_a_time_that_the_moderator_did_not_set_does_not_count(place: Ledger, request_: Request, when: datetime) -> None:
    """Also where somebody writes it past the book."""
    book = RuleBook.open(place)
    step = replace(book.plan(request_, Note(P1, NOW)).step, note=Note(P1, when))
    word = None if isinstance(request_, Pass) else SignedRequest(book.sign(K1, request_, when).unverified())
    place.append(place.head(), [*take(step, word, NOW).entries(AuthorityLimits())])
    with refused("moderator.book") as raised:
        RuleBook.open(place)
    assert raised.value.fields["reason"] == "moderator.untimely"


def test_that_somebody_writes_in_the_name_of_the_moderator_is_not_its_word(place: Ledger) -> None:
    step = RuleBook.open(place).plan(Pass(), Note(MODERATOR.principal, FAR)).step
    place.append(place.head(), [*take(step, None).entries(AuthorityLimits())])
    with refused("moderator.book"):
        RuleBook.open(place)


@pytest.mark.parametrize("time", [b"1", b"01", b"x", b"9" * 18, b"9" * 30])
def test_a_time_of_its_own_is_earlier_than_that_of_the_ledger(place: Ledger, time: bytes) -> None:
    whole = take(RuleBook.open(place).plan(Pass(), Note(P1, NOW)).step, None)
    body = parse_canonical(whole.after)
    assert isinstance(body, tuple)
    said = replace(whole, after=canonical((*body, (b"time", time))))
    with nullcontext() if time == b"1" else pytest.raises(MalformedError):
        assert read_taken(2, said).step.note.when < NOW
    with pytest.raises(MalformedError):
        read_taken(2, replace(whole, after=canonical((*body, (b"time", b"%d" % ticks(NOW))))))


@pytest.mark.parametrize("wrong", [Pass(), Add(rule("r2", "A2", of=[P2]))])
@pytest.mark.parametrize("by", ["anybody", "moderator"])
def test_the_moderator_sets_right_what_a_wrong_clock_did(place: Ledger, wrong: Request, by: str) -> None:
    book = RuleBook.open(place)
    if by == "moderator":
        book.ask(MODERATOR, Pass(), FAR)
    elif isinstance(wrong, Pass):
        book.take_unsigned(wrong, Note(CLOCK, NEAR))
    else:
        book.ask(K2, wrong, NEAR)
    ahead = book.head.when
    assert ahead is not None
    # Nobody else can say whose clock is wrong.
    with refused("moderator.untimely"):
        book.ask(K1, WithdrawRule("r1"), NOW + DAY)
    with refused("moderator.untimely"):
        book.take_unsigned(Pass(), Note(MODERATOR.principal, NOW + DAY))
    assert book.ask(MODERATOR, Pass(), NOW + DAY).step.note.when == NOW + DAY
    # Now it goes on for everybody, by the right time, though those of the ledger do not fall.
    book.ask(K1, WithdrawRule("r1"), NOW + 2 * DAY)
    assert book.base.steps[-1].note.when == NOW + 2 * DAY
    assert book.head.when == ahead
    # What was signed long ago does not count, whatever the ledger says.
    late = book.sign(K1, Add(rule("r3", "A3")), NOW + 2 * DAY).unverified()
    with refused("moderator.untimely"):
        book.take(late, NOW + 9 * DAY)
    book.keep(MODERATOR)
    again = RuleBook.open(place)
    assert again.base.standings["r1"].status is RuleStatus.WITHDRAWN
    again.take_unsigned(Pass(), Note(CLOCK, NOW + 3 * DAY))
    with refused("moderator.untimely"):
        again.take_unsigned(Pass(), Note(CLOCK, NOW))
    again.verify()
    assert [taken.step.note.when for taken in again.log()][-2:] == [NOW + 2 * DAY, NOW + 3 * DAY]


def test_where_nobody_signs_the_moderator_says_so() -> None:
    book = RuleBook.create_unsigned(ledger(), founding(unsafe_unsigned=True), NOW)
    book.take_unsigned(Pass(), Note(P1, NEAR))
    with refused("moderator.untimely"):
        book.take_unsigned(Pass(), Note(P1, NOW))
    book.take_unsigned(Pass(), Note(MODERATOR.principal, NOW))
    book.take_unsigned(Pass(), Note(P1, NOW))
    book.verify()


def test_where_nobody_signs_the_moderator_sets_the_time_by_asking() -> None:
    book = RuleBook.create_unsigned(ledger(), founding(unsafe_unsigned=True), NOW)
    ending = replace(rule("r1", "A1"), validity=Validity.between(None, NOW + DAY))
    book.take_unsigned(Add(ending), Note(P1, NOW))
    with refused("moderator.untimely"):
        book.take_unsigned(Add(rule("r2", "A2", of=[P2])), Note(P2, FAR))
    book.take_unsigned(Add(rule("m", "A2", of=[MODERATOR.principal])), Note(MODERATOR.principal, FAR))
    book.take_unsigned(Add(rule("r2", "A2", of=[P2])), Note(P2, FAR))
    assert [step.note.who for step in book.base.steps] == [P1, *[MODERATOR.principal] * 2, P2]
    # Where time did not leap it is nobody's.
    book.take_unsigned(Add(replace(ending, id="r3", validity=Validity.between(None, FAR + DAY))), Note(P1, FAR))
    book.take_unsigned(WithdrawRule("m"), Note(MODERATOR.principal, FAR + 2 * DAY))
    assert book.base.steps[-2].note.who == CLOCK
    book.verify()
