"""A rule book's changes are read back as what they were; anything else is refused, and fails in no other way."""

from contextlib import suppress
from datetime import timedelta

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.authority.kit import K1, K2, MODERATOR, NOW, book_in, founding, ledger
from tests.budget import examples
from tests.moderator.kit import P1, P2, event, rule

from penstock.authority.limits import AuthorityLimits
from penstock.authority.rulebook_records import RecordedStep, Whole, read_found, read_taken, take
from penstock.authority.rulebook_state import RuleBookFold
from penstock.codec.limits import wide
from penstock.codec.sexp import SExp, canonical, parse_canonical
from penstock.errors import PenstockError
from penstock.moderator.rules.rules import SubscribeRule
from penstock.moderator.rules.steps import Add, Note, Resolve, StateSubscriberRule, Strategy, WithdrawRule
from penstock.moderator.settlement.proposals import Consent, subject_of
from penstock.store.ledgers.folds import refold
from penstock.store.ledgers.ledgers import Change
from penstock.store.limits import StoreLimits
from penstock.trust.signed import sign_value


def _full() -> tuple[list[RecordedStep], bytes, bytes]:
    """Return the steps of a book with something of everything, its founding, and a snapshot of it."""
    place = ledger()
    words = founding().vocabulary
    known = {P2: words.subscribers.profile({"role": "engineer", "age": 30})}
    book = book_in(place, known_subscribers=known, resolve=Strategy.ADD)
    book.ask(K1, Add(rule("r1", "A1", "role = 'engineer'")), NOW, "engineers build it")
    book.ask(K2, Add(rule("r2", "A1", "role = 'worker'", of=[P2])), NOW)
    chosen = Resolve("r2", Strategy.DELETE, frozenset({P1, P2}))
    step = book.plan(chosen, Note(P2, NOW)).step
    consent = sign_value(Consent(book.id, P1, subject_of(step), 2, NOW + timedelta(1)), K1)
    book.ask(K2, chosen, NOW, consents=[consent.unverified()])
    book.ask(K1, StateSubscriberRule(SubscribeRule("s1", event("A1"), P1, P1)), NOW)
    book.ask(K1, WithdrawRule("r1"), NOW)
    fold = RuleBookFold(place)
    return [*book.log()], canonical(sign_value(book.founding, MODERATOR).to_sexp()), fold.dump(refold(place, fold))


STEPS, FOUNDING, SNAPSHOT = _full()
UNSIGNED = canonical(founding(unsafe_unsigned=True).to_sexp())


def test_what_was_kept_is_read_back() -> None:
    for taken in STEPS:
        assert read_taken(taken.step.number, take(taken.step, taken.word)) == taken
    assert read_found(FOUNDING).known_subscribers.keys() == {P2}
    fold = RuleBookFold(ledger())
    assert fold.dump(fold.load(SNAPSHOT)) == SNAPSHOT


@given(st.sampled_from(STEPS), st.integers(1, 300))
@settings(max_examples=examples(30))
def test_a_change_in_parts_is_the_change(taken: RecordedStep, size: int) -> None:
    whole = take(taken.step, taken.word)
    entries = [*whole.entries(AuthorityLimits(store_value_bytes=size))]
    changes = [
        Change(
            who=entry.who,
            when=entry.when,
            kind=entry.kind,
            why=entry.why,
            before=entry.before,
            after=entry.after,
            ledger="rules",
            number=number,
            previous=bytes(32),
            hash=bytes(32),
        )
        for number, entry in enumerate(entries)
    ]
    assert Whole.of(changes) == whole
    assert {entry.kind for entry in entries[:-1]} <= {"part"}
    assert all(len(entry.after or b"") <= size for entry in entries)
    assert StoreLimits().store_value_bytes > size


@st.composite
def damaged(draw: st.DrawFn, octets: bytes) -> bytes:
    """Return what bytes say with some atoms and lists in the place of others, twice, or taken out."""
    found = parse_canonical(octets, limits=wide(len(octets)))
    for _ in range(draw(st.integers(1, 3))):
        found = _replaced(found, draw)
    return canonical(found)


def _replaced(value: SExp, draw: st.DrawFn) -> SExp:
    if isinstance(value, tuple) and value and draw(st.integers(0, 9)):
        index = draw(st.integers(0, len(value) - 1))
        return (*value[:index], _replaced(value[index], draw), *value[index + 1 :])
    others: list[SExp] = [b"", b"7", b"in-force", b"rejected", b"\xff", bytes(32), b"TRUE", b"add", (), (value,)]
    if isinstance(value, tuple):
        others = [(), value[1:], value[:-1], (*value, value), (*value, *value[-1:]), b"list"]
    elif isinstance(value, bytes) and value[:1] == b"(":
        # The step within a change.
        return draw(damaged(value))
    return draw(st.sampled_from(others))


@given(st.data(), st.sampled_from(STEPS))
@settings(max_examples=examples(150), deadline=None)
def test_what_is_no_step_is_refused(data: st.DataObject, taken: RecordedStep) -> None:
    whole = take(taken.step, taken.word)
    before, after = (data.draw(damaged(side) | st.just(side)) for side in (whole.before, whole.after))
    kind = data.draw(st.sampled_from([whole.kind, whole.kind, "add", "pass"]))
    note = taken.step.note
    with suppress(PenstockError):
        read_taken(taken.step.number, Whole(note.who, note.when, kind, note.why, before, after))


@given(damaged(FOUNDING) | damaged(UNSIGNED))
@settings(max_examples=examples(150), deadline=None)
def test_what_is_no_founding_is_refused(octets: bytes) -> None:
    with suppress(PenstockError):
        read_found(octets)


@given(damaged(SNAPSHOT))
@settings(max_examples=examples(150), deadline=None)
def test_what_is_no_snapshot_is_refused(octets: bytes) -> None:
    with suppress(PenstockError):
        RuleBookFold(ledger()).load(octets)
