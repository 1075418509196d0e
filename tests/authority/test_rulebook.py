"""Rule books: what was taken is there, once, as it was asked for, whoever reads it."""

from datetime import timedelta

import pytest
from tests.authority.kit import K1, K2, MODERATOR, NOW, OWNER_KEY, book_in, founding, ledger
from tests.moderator.kit import P1, P2, event, rule
from tests.trust.kit import refused

from penstock.authority.limits import AuthorityLimits
from penstock.authority.rulebook import RuleBook
from penstock.moderator.rules.rules import SubscribeRule
from penstock.moderator.rules.steps import (
    Add,
    AddType,
    MoveType,
    Note,
    RemoveType,
    Request,
    Resolve,
    RuleStatus,
    StateSubscriberRule,
    Strategy,
    Undo,
    WithdrawRule,
)
from penstock.selector import parse

DAY = timedelta(days=1)
ENGINEERS = "role = 'engineer'"
BOTH = "role = 'engineer' AND company = 'A'"


def test_a_book_is_what_its_ledger_says() -> None:
    place = ledger()
    book = book_in(place)
    book.ask(K1, Add(rule("r1", "A1", ENGINEERS)), NOW, "engineers build it")
    book.ask(K2, Add(rule("r2", "A1", BOTH, of=[P2])), NOW + DAY)
    book.ask(K2, Resolve("r2", Strategy.ADD), NOW + DAY)
    assert {key: each.status for key, each in book.base.standings.items()} == {
        "r1": RuleStatus.IN_FORCE,
        "r2": RuleStatus.IN_FORCE,
    }

    again = RuleBook.open(place)
    assert again.base.image() == book.base.image()
    assert again.founding == book.founding
    assert [taken.step.request for taken in again.log()] == [step.request for step in book.base.steps]
    assert next(again.log()).step.note == Note(P1, NOW, "engineers build it")
    book.keep(MODERATOR)
    resumed = RuleBook.open(place)
    assert resumed.base.image() == book.base.image()
    assert resumed.base.next_number == 4
    resumed.verify()
    resumed.ask(K2, Undo(3), NOW + DAY)
    assert resumed.base.standings["r2"].status is RuleStatus.REJECTED
    book.refresh()
    assert book.base.image() == resumed.base.image()
    book.verify()


def test_a_plan_changes_nothing() -> None:
    book = book_in(ledger())
    head, image = book.head, book.base.image()
    planned = book.plan(Add(rule("r1", "A1", ENGINEERS)), Note(P1, NOW))
    assert planned.step.number == 1
    book.refresh()
    assert (book.head, book.base.image(), book.base.unsettled) == (head, image, frozenset())


def test_several_rules_are_stated_together_or_not_at_all() -> None:
    book = book_in(ledger())
    head, image = book.head, book.base.image()
    good = [Add(rule(f"r{number}", "A1", ENGINEERS)) for number in range(3)]
    with refused("moderator.unknown-type") as raised:
        book.state([*good, Add(rule("bad", "Nowhere"))], NOW, key=K1)
    assert raised.value.fields["rule"] == "bad"
    assert (book.head, book.base.image()) == (head, image)
    assert [plan.step.number for plan in book.state(good, NOW, key=K1)] == [1, 2, 3]
    assert book.next_serial(P1) == 4
    assert RuleBook.open(book.ledger).base.image() == book.base.image()
    book.verify()


def test_there_is_one_book_in_a_ledger() -> None:
    place = ledger()
    with refused("moderator.no-book"):
        RuleBook.open(place)
    book_in(place)
    with refused("moderator.book-exists"):
        book_in(place)
    with refused("moderator.founding"):
        book_in(place, name="others")


def test_the_state_of_then() -> None:
    book = book_in(ledger())
    book.ask(K1, Add(rule("r1", "A1")), NOW + DAY)
    book.ask(K1, WithdrawRule("r1"), NOW + 3 * DAY)
    assert book.at(NOW + 2 * DAY).standings["r1"].status is RuleStatus.IN_FORCE
    assert book.at(NOW).standings == {}
    with refused("moderator.no-book"):
        book.at(NOW - DAY)


def test_what_is_too_long_for_one_change_is_kept_in_several() -> None:
    place = ledger()
    tree = founding().vocabulary.tree
    many = dict(tree.parents) | {event(f"B{n}-{'x' * 90}"): event("A1") for n in range(12_000)}
    book = book_in(place, type(tree).of(many, tree.scope))
    assert book.head.number > 1
    book.ask(K1, Add(rule("r1", "A1")), NOW)
    assert RuleBook.open(place).base.image() == book.base.image()
    assert book.at(NOW).next_number == 2
    book.verify()


HARD = "badge LIKE '%a_b%' AND NOT badge LIKE '%a%b%' AND age * age * age = 100000 + age"
HARD_P = "company LIKE '%a_b%' AND NOT company LIKE '%a%b%'"


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (Add(rule("r2", "Nowhere")), "moderator.unknown-type"),
        (Add(rule("r2", "A1", "colour = 'red'")), "moderator.unknown-attribute"),
        (Add(rule("r2", "A1", "role = 'pilot'")), "moderator.domain"),
        (Add(rule("r2", "A1", "age = 200")), "moderator.domain"),
        (Add(rule("r2", "A1", "age = 'old'")), "selector.type"),
        (Add(rule("r2", "A1", "role = 'engineer' AND role = 'worker'")), "moderator.contradiction"),
        (Add(rule("r1", "A1")), "moderator.duplicate-id"),
        (MoveType(event("A1"), event("A10")), "type.cycle"),
        (AddType(event("A1")), "moderator.known-type"),
        (RemoveType(event("Nowhere")), "moderator.unknown-type"),
        (WithdrawRule("r9"), "moderator.unknown-rule"),
        (Resolve("r1", Strategy.ADD), "moderator.not-rejected"),
        (Undo(7), "moderator.unknown-step"),
    ],
)
def test_what_makes_no_sense_leaves_a_book_as_it_is(request_: Request, code: str) -> None:
    place = ledger()
    book = book_in(place)
    book.ask(K1, Add(rule("r1", "A1", ENGINEERS)), NOW)
    head, image = book.head, book.base.image()
    by = OWNER_KEY if isinstance(request_, MoveType | AddType | RemoveType) else K1
    with refused(code) as raised:
        book.ask(by, request_, NOW)
    assert raised.value.message
    with refused(code):
        book.plan(request_, Note(by.principal, NOW))
    assert (RuleBook.open(place).head, RuleBook.open(place).base.image()) == (head, image)
    assert book.base.image() == image


def test_a_formula_that_the_solver_does_not_decide_leaves_a_book_as_it_is() -> None:
    place = ledger()
    book_in(place)
    book = RuleBook.open(place, limits=AuthorityLimits(solver_effort=100))
    head = book.head
    for request in (
        Add(rule("r1", "A1", HARD)),
        StateSubscriberRule(SubscribeRule("s1", event("A1"), P1, P1, parse(HARD_P))),
    ):
        with refused("moderator.undecided"):
            book.ask(K1, request, NOW)
    assert (book.head, place.head()) == (head, head)


def test_what_was_decided_once_does_not_depend_on_the_clock() -> None:
    place = ledger()
    book_in(place).ask(K1, Add(rule("r1", "A1", "badge LIKE '%x' AND badge LIKE 'y%'")), NOW)
    hasty = RuleBook.open(place, limits=AuthorityLimits(solver_time=1))
    assert [*hasty.base.detector.rules] == ["r1"]


def test_steps_that_were_forgotten_are_read_again() -> None:
    place = ledger()
    book_in(place)
    few = AuthorityLimits(moderator_steps=2)
    book, other = RuleBook.open(place, limits=few), RuleBook.open(place)
    for number in range(8):
        book.ask(K1, Add(rule(f"r{number}", "A1")), NOW)
        assert book.base.remembered <= 2
    other.refresh()
    for number in range(9):
        assert [*book.base.since(number)] == [*other.base.since(number)] == [*other.base.steps[number:]]
    book.ask(K1, Undo(1), NOW)
    assert "r0" not in book.base.standings
    assert [step.number for step in book.base.steps] == [*range(1, 10)]
    RuleBook.open(place, limits=few).verify()
