"""Whatever is asked of a rule book: what its ledger says is what it is, and nobody's step is lost."""

from collections.abc import Callable, Iterable
from datetime import timedelta
from functools import partial

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.authority.kit import KEYS, MODERATOR, NAME, NOW, book_in, ledger
from tests.budget import examples
from tests.moderator.kit import OWNER, P1, P2, P3, event, tree
from tests.moderator.settlement.test_lifecycle_properties import PARENTS, requests
from tests.trust.kit import refused

from penstock.authority.limits import AuthorityLimits
from penstock.authority.rulebook import RuleBook
from penstock.authority.rulebook_records import Snapshots
from penstock.authority.rulebook_state import RuleBookFold
from penstock.errors import PenstockError
from penstock.model.principals import Principal
from penstock.model.tree import TreeScope
from penstock.moderator.base.base import RuleBase
from penstock.moderator.detection.detector import find_conflicts
from penstock.moderator.rules.rules import SubscribeRule
from penstock.moderator.rules.steps import (
    Add,
    Leave,
    MoveType,
    Note,
    Pass,
    Request,
    Resolve,
    Return,
    StateSubscriberRule,
    Strategy,
    Undo,
    WithdrawRule,
)
from penstock.moderator.settlement.proposals import Consent, subject_of
from penstock.moderator.settlement.undo import plan_request
from penstock.selector import ALWAYS, parse
from penstock.store.ledgers.folds import FoldView, refold
from penstock.store.ledgers.ledgers import LedgerHead, Row, Store
from penstock.store.ledgers.memory import MemoryRecords
from penstock.trust.signed import sign_value
from penstock.trust.validity import Validity

WHO = (P1, P2, P3)


@st.composite
def wishes(draw: st.DrawFn) -> StateSubscriberRule:
    number = draw(st.integers(0, 3))
    by = WHO[number % len(WHO)]
    period = draw(st.sampled_from([Validity(), Validity.between(NOW + timedelta(1), NOW + timedelta(3))]))
    wanted = draw(st.sampled_from([ALWAYS, parse("company = 'A'"), parse("licensed")]))
    return StateSubscriberRule(
        SubscribeRule(f"s{number}", event(draw(st.sampled_from([*PARENTS]))), by, by, wanted, period)
    )


def anything(base: RuleBase) -> st.SearchStrategy[Request]:
    """Ask for all that publishers ask for, for what subscribers do, and for moves with a proposal."""
    known = st.sampled_from([*base.tree.parents])
    more: list[st.SearchStrategy[Request]] = [
        wishes(),
        st.builds(MoveType, known, known, st.sampled_from([*Strategy]), st.just(frozenset(WHO))),
    ]
    if base.wishes:
        more += [st.builds(WithdrawRule, st.sampled_from([*base.wishes]))]
    return st.integers(0, 9).flatmap(lambda number: more[number] if number < len(more) else requests(base))


def speaker(base: RuleBase, request: Request) -> Principal:
    """Let each request be made by whoever may."""
    match request:
        case Add(rule) | StateSubscriberRule(rule):
            return rule.stated_by
        case WithdrawRule(rule_id) | Resolve(rule_id) if rule_id in {*base.standings, *base.wishes}:
            return base.stated(rule_id).stated_by
        case Leave(who) | Return(who):
            return who
        case Undo():
            return MODERATOR.principal
        case _:
            return OWNER


def ask(book: RuleBook, request: Request) -> None:
    """Ask for something with the consents of all who have to agree. Raises what is refused."""
    when = NOW + timedelta(days=book.base.next_number // 4)
    by = speaker(book.base, request)
    step = book.plan(request, Note(by, when)).step
    given = request.consents if isinstance(request, Resolve | MoveType) else frozenset()
    consents = [
        sign_value(Consent(book.id, who, subject_of(step), step.number - 1, when), KEYS[who]).unverified()
        for who in sorted(given - {by})
    ]
    book.ask(KEYS[by], request, when, consents=consents)


@given(
    st.data(),
    st.sampled_from([*TreeScope]),
    st.sampled_from(["newest", "oldest", "fewest-changes", "paper"]),
    st.sampled_from([None, *Strategy]),
)
@settings(max_examples=examples(10), deadline=None)
def test_a_book_is_what_its_ledger_says(
    data: st.DataObject, scope: TreeScope, heuristic: str, resolve: Strategy | None
) -> None:
    place = ledger()
    book = book_in(place, tree(PARENTS, scope), heuristic=heuristic, resolve=resolve)
    kept = data.draw(st.integers(0, 10))
    for number in range(data.draw(st.integers(4, 12))):
        request = data.draw(anything(book.base))
        head, before = book.head, book.base.image()
        try:
            ask(book, request)
        except PenstockError:
            book.refresh()
            assert (book.head, book.base.image()) == (head, before), "what was refused changed nothing"
        else:
            assert book.head.number == head.number + (1 if book.passed is None else 2)
            undone(book, before)
            agree(book.base)
        if number == kept:
            book.keep(MODERATOR)
    fold = RuleBookFold(place)
    resumed, refolded = FoldView(place, fold, keeping=Snapshots(place)), refold(place, fold)
    assert fold.dump(resumed.state) == fold.dump(refolded) == fold.dump(fold.load(fold.dump(refolded)))
    again = RuleBook.open(place)
    assert again.base.image() == book.base.image()
    assert again.base.unsettled == book.base.unsettled
    assert [*again.base.steps] == [*book.base.steps]
    again.verify()


def agree(base: RuleBase) -> None:
    """Check that nothing in force conflicts."""
    rules = list(base.detector.rules.values())
    assert not any(find_conflicts(rule, rules, base.detector.vocabulary, base.mode) for rule in rules)


def undone(book: RuleBook, before: object) -> None:
    """Check that to undo the last step, and that time passed before it, would be as if they had not been."""
    last = book.base.next_number - 1
    with book.base.draft() as draft:
        note = Note(MODERATOR.principal, NOW)
        # A book lets time pass first, and where the last step undid what time had done, it does so again.
        again = is_of_time(book.base, last)
        plan = (
            plan_request(book.base, Undo(last), note, book.founding.customs) if again else book.plan(Undo(last), note)
        )
        draft.change(plan.step.delta)
        if book.passed is not None:
            draft.change(book.passed.step.delta.inverse())
        assert book.base.image() == before, "undo after do is identity"


def is_of_time(base: RuleBase, number: int) -> bool:
    """Say whether a step undoes, perhaps by way of others, that time has passed."""
    request = base.step(number).request
    return is_of_time(base, request.number) if isinstance(request, Undo) else isinstance(request, Pass)


class Contested(MemoryRecords):
    """Records to which somebody else adds a change just before this one does, as often as that is wanted."""

    def __init__(self) -> None:
        super().__init__()
        self.others: list[Callable[[], object]] = []

    def append(self, ledger: str, expected: LedgerHead, head: LedgerHead, rows: Iterable[Row]) -> None:
        if self.others:
            now, *later = self.others
            self.others = []
            now()
            self.others = later
        super().append(ledger, expected, head, rows)


def wish(id_: str, about: str, by: Principal) -> StateSubscriberRule:
    return StateSubscriberRule(SubscribeRule(id_, event(about), by, by))


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 2), st.sampled_from([*PARENTS])), min_size=2, max_size=6))
@settings(max_examples=examples(10), deadline=None)
def test_of_two_who_write_at_once_nobody_loses_a_step(turns: list[tuple[bool, int, str]]) -> None:
    records = Contested()
    place = Store(records).ledger(NAME)
    books = (book_in(place, tree(PARENTS)), RuleBook.open(place))
    taken: list[Request] = []
    for number, (first, contested, about) in enumerate(turns):
        book, other = books[first], books[not first]
        between = [wish(f"o{number}-{index}", about, P2) for index in range(contested)]
        records.others = [partial(other.ask, KEYS[P2], each, NOW) for each in between]
        mine = wish(f"s{number}", about, P1)
        assert book.ask(KEYS[P1], mine, NOW).step.request == mine
        taken += [*between, mine]
    for book in books:
        book.refresh()
        assert [step.request for step in book.base.steps] == taken
        book.verify()
    assert books[0].base.image() == books[1].base.image()


def test_who_is_never_first_is_told() -> None:
    records = Contested()
    place = Store(records).ledger(NAME)
    book, other = book_in(place, tree(PARENTS)), RuleBook.open(place)
    records.others = [partial(other.ask, KEYS[P2], wish(f"o{number}", "X", P2), NOW) for number in range(99)]
    with refused("moderator.busy"):
        book.ask(KEYS[P1], wish("s", "X", P1), NOW)
    book.refresh()
    assert "s" not in book.base.wishes
    assert len(book.base.wishes) == AuthorityLimits().moderator_attempts
