"""Polls of a rule book: what was chosen is taken once, as it was asked about, whatever ends in between."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.authority.kit import K1, K2, K3, MODERATOR, NAME, book_in
from tests.authority.poll_kit import ASKED, DEADLINE, HOUR, K4, at, contested, polls_in, polls_of
from tests.budget import examples
from tests.moderator.kit import P1, P2, P3, P4, rule
from tests.moderator.poll_kit import CANDIDATE
from tests.trust.kit import key, refused

from penstock.authority.polls import Polls, PollsFold, SettledPoll, Settlement, polls_name
from penstock.authority.rulebook import RuleBook
from penstock.crypto import SigningKey
from penstock.model.principals import Principal
from penstock.moderator.polls import Ballot, Poll, PollProof, Vote, cast
from penstock.moderator.rules.steps import Add, Note, Resolve, RuleStatus, Strategy, Undo, WithdrawRule
from penstock.moderator.settlement.addition import Tightening
from penstock.moderator.settlement.proposals import Consent, poll_reason, subject_of
from penstock.store.ledgers.ledgers import Ledger, NewChange, Store
from penstock.store.ledgers.memory import MemoryRecords
from penstock.store.ledgers.urls import open_store
from penstock.trust.signed import SignedValue, sign_value

FOLLOW, ADD, DELETE = Strategy.FOLLOW, Strategy.ADD, Strategy.DELETE


def agree(polls: Polls, poll: Poll, *keys: SigningKey) -> None:
    for each in keys:
        polls.hear(cast(poll.question, each, Ballot(frozenset([ADD]))).unverified(), at(1))


def test_a_majority_tightens_all_involved() -> None:
    store = contested()
    polls = polls_in(store)
    poll = polls.ask("m", ASKED, DEADLINE)
    agree(polls, poll, K1, K2, K4)
    assert polls.advance(at(59)) == ()
    (ended,) = polls.advance(DEADLINE)
    assert ended.settlement == Settlement(5)
    book = RuleBook.open(store.ledger(NAME))
    assert {book.base.standing(each).form.fnc_s.text for each in "abcm"} == {  # type: ignore[union-attr]  # they are in the book
        "machine = 'M' AND role = 'engineer'"
    }
    book.verify()
    assert polls.advance(DEADLINE + HOUR) == ()
    assert polls_of(store) == polls.kept


def test_a_rule_is_relaxed_by_its_publishers_signatures_alone() -> None:
    store = contested()
    polls = polls_in(store)
    poll = polls.ask("m", ASKED, DEADLINE)
    polls.hear(cast(poll.question, K3, Ballot(frozenset([DELETE]))).unverified(), at(1))
    for each in (K1, K2, K4):
        polls.hear(cast(poll.question, each, Ballot(consents=frozenset([DELETE]))).unverified(), at(2))
    (ended,) = polls.advance(DEADLINE)
    assert ended.settlement == Settlement(5)
    book = RuleBook.open(store.ledger(NAME))
    taken = [*book.log()][-1]
    assert taken.step.request == Resolve("m", DELETE, frozenset({P1, P2, P4}))
    assert taken.word is not None
    assert {each.value.by for each in taken.word.consents} == {P1, P2, P4}
    book.verify()
    # The step can be undone like any other, and the consents do not count for another one.
    book.ask(polls.moderator, Undo(5), DEADLINE)
    with refused("moderator.consent"):
        book.ask(polls.moderator, taken.step.request, DEADLINE, "", taken.word.consents)


def test_a_rule_of_several_is_relaxed_by_the_signatures_of_them_all() -> None:
    store = Store(MemoryRecords())
    book = book_in(store.ledger(NAME))
    joint = Add(rule("j", "A1", "role = 'engineer'", of=[P1, P2]))
    to = subject_of(book.plan(joint, Note(P1, ASKED)).step)
    agreed = sign_value(Consent(book.id, P2, to, 0, DEADLINE), K2).unverified()
    book.ask(K1, joint, ASKED, "", [agreed])
    book.ask(K4, Add(CANDIDATE), ASKED)
    polls = polls_in(store)
    poll = polls.ask("m", ASKED, DEADLINE)
    for each in (K1, K2, K4):
        polls.hear(cast(poll.question, each, Ballot(consents=frozenset([DELETE]))).unverified(), at(1))
    (ended,) = polls.advance(DEADLINE)
    assert ended.settlement == Settlement(3)
    RuleBook.open(store.ledger(NAME)).verify()


def test_without_a_majority_everything_stays() -> None:
    store = contested()
    before = RuleBook.open(store.ledger(NAME)).base.image()
    polls = polls_in(store)
    poll = polls.ask("m", ASKED, DEADLINE)
    agree(polls, poll, K1, K2)
    (ended,) = polls.advance(DEADLINE)
    assert ended.settlement == Settlement(None, "poll.nothing-chosen")
    assert RuleBook.open(store.ledger(NAME)).base.image() == before
    # They may be asked again.
    agree(polls, polls.ask("m", DEADLINE, DEADLINE + HOUR), K1)


def test_votes_that_have_no_effect_are_not_kept() -> None:
    store = contested()
    polls = polls_in(store)
    poll = polls.ask("m", ASKED, DEADLINE)
    agree(polls, poll, K1)
    ledger = store.ledger(polls_name(NAME))
    head = ledger.head()
    agree(polls, poll, K1, K1)
    with refused("poll.closed"):
        polls.hear(cast(poll.question, K2, Ballot(frozenset([ADD]))).unverified(), DEADLINE)
    with refused("poll.not-asked"):
        polls.hear(stranger(poll).unverified(), at(1))
    with refused("key.bad-signature"):
        polls.hear(replace(cast(poll.question, K2, Ballot(frozenset([ADD]))).unverified(), signature=bytes(64)), at(1))
    other = contested()
    with refused("poll.unknown"):
        polls.hear(
            cast(polls_in(other).ask("m", at(3), DEADLINE).question, K1, Ballot(frozenset([ADD]))).unverified(), at(4)
        )
    assert ledger.head() == head


def stranger(poll: Poll) -> SignedValue[Vote]:
    return sign_value(Vote(poll.id, key(66).principal, 1, frozenset([ADD])), key(66))


def test_what_cannot_be_asked() -> None:
    store = contested()
    with refused("poll.not-moderator"):
        Polls(store.ledger(polls_name(NAME)), RuleBook.open(store.ledger(NAME)), K1)
    polls = polls_in(store)
    with refused("moderator.not-rejected"):
        polls.ask("a", ASKED, DEADLINE)
    with refused("poll.limit"):
        polls.ask("m", ASKED, ASKED + timedelta(days=31))
    polls.ask("m", ASKED, DEADLINE)
    with refused("poll.running"):
        polls.ask("m", at(1), DEADLINE)


def test_rules_that_changed_meanwhile_are_not_settled_blindly() -> None:
    store = contested()
    polls, book = polls_in(store), RuleBook.open(store.ledger(NAME))
    poll = polls.ask("m", ASKED, DEADLINE)
    agree(polls, poll, K1, K2, K3, K4)
    book.ask(K1, Add(rule("d", "A10", "role = 'engineer'", of=[P1])), at(2))
    (ended,) = polls.advance(DEADLINE)
    assert ended.settlement == Settlement(None, "poll.stale")
    assert RuleBook.open(store.ledger(NAME)).base.standing("m").status is RuleStatus.REJECTED


def test_others_may_write_between_the_check_and_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """The book itself compares what would come of the request with what was asked about."""
    store = contested()
    polls = polls_in(store)
    agree(polls, polls.ask("m", ASKED, DEADLINE), K1, K2, K3, K4)

    def race(*_: object) -> None:
        RuleBook.open(store.ledger(NAME)).ask(K1, Add(rule("d", "A10", "role = 'engineer'", of=[P1])), at(2))

    monkeypatch.setattr("penstock.authority.polls.check_current", race)
    (ended,) = polls.advance(DEADLINE)
    assert ended.settlement == Settlement(None, "poll.outcome")
    assert RuleBook.open(store.ledger(NAME)).base.standing("m").status is RuleStatus.REJECTED


def test_a_rule_that_was_withdrawn_is_not_settled() -> None:
    store = contested()
    polls = polls_in(store)
    agree(polls, polls.ask("m", ASKED, DEADLINE), K1, K2, K4)
    RuleBook.open(store.ledger(NAME)).ask(K4, WithdrawRule("m"), at(3))
    assert polls.advance(DEADLINE)[0].settlement == Settlement(None, "poll.stale")


def test_consents_end() -> None:
    polls = polls_in(contested())
    poll = polls.ask("m", ASKED, DEADLINE)
    for each in (K1, K2, K4):
        polls.hear(cast(poll.question, each, Ballot(consents=frozenset([DELETE]))).unverified(), at(2))
    (ended,) = polls.advance(DEADLINE + timedelta(days=2))
    assert ended.settlement == Settlement(None, "moderator.consent")


# --- whatever ends in between ---------------------------------------------------------------------------------------


class CrashError(Exception):
    """A process ends here."""


class Failing(Ledger):
    """A ledger whose writers are ended before, or after, one of their changes."""

    def __init__(self, ledger: Ledger, fate: list[str]) -> None:
        super().__init__(ledger._records, ledger.name)
        self._fate = fate

    def append(self, expected, entries):  # type: ignore[no-untyped-def]  # as `Ledger.append`
        fate = self._fate.pop(0) if self._fate else "kept"
        if fate == "before":
            raise CrashError
        kept = super().append(expected, entries)
        if fate == "after":
            raise CrashError
        return kept


class Mortal:
    """The process of a moderator, which is ended now and then, and started again."""

    def __init__(self, store: Store, fate: list[str]) -> None:
        self._ledgers = [Failing(store.ledger(name), fate) for name in (NAME, polls_name(NAME))]
        self._polls = self._start()

    def _start(self) -> Polls:
        return Polls(self._ledgers[1], RuleBook.open(self._ledgers[0]), MODERATOR)

    def does(self, what: Callable[[Polls], object]) -> None:
        """Do something, and be ended by it perhaps."""
        try:
            what(self._polls)
        except CrashError:
            self._polls = self._start()


@settings(max_examples=examples(6), deadline=None)
@given(st.integers(0, 2**32))
def test_a_moderator_that_is_ended_at_any_time_goes_on_to_the_same_end(seed: int) -> None:
    random = Random(seed)  # noqa: S311  # a schedule, no secret
    store = contested()
    fate = [random.choice(["kept", "before", "after"]) for _ in range(10)]
    process = Mortal(store, fate)
    while not polls_of(store):
        process.does(lambda polls: polls.ask("m", ASKED, DEADLINE))
    (asked,) = polls_of(store).values()
    votes = [cast(asked.poll.question, each, Ballot(frozenset([ADD]))).unverified() for each in (K1, K2, K4)]
    # Voters send again until they are heard.
    for minute in range(20):
        for vote in random.sample(votes, 2):
            process.does(lambda polls, vote=vote, minute=minute: polls.hear(vote, at(minute)))  # type: ignore[misc]  # a lambda with defaults has no type
    fate[:] = [random.choice(["kept", "before", "after"]) for _ in range(3)]
    for minute in range(60, 66):
        process.does(lambda polls, minute=minute: polls.advance(at(minute)))  # type: ignore[misc]  # a lambda with defaults has no type
    (ended,) = polls_of(store).values()
    assert ended.settlement == Settlement(5)
    book = RuleBook.open(store.ledger(NAME))
    assert book.base.next_number == 6
    book.verify()


@pytest.fixture
def sqlite(tmp_path: Path) -> Iterator[Store]:
    with open_store(f"sqlite:{tmp_path / 'rules.db'}", create=True) as store:
        yield store


def test_two_moderators_on_one_store_close_a_poll_once(sqlite: Store) -> None:
    contested(sqlite)
    one, two = polls_in(sqlite), polls_in(sqlite)
    poll = one.ask("m", ASKED, DEADLINE)
    two.refresh()
    agree(one, poll, K1, K2)
    agree(two, poll, K2, K4)
    assert one.advance(DEADLINE)[0].settlement == Settlement(5)
    assert two.advance(DEADLINE) == ()
    assert two.kept == one.kept
    kinds = [change.kind for change in sqlite.ledger(polls_name(NAME)).read()]
    assert kinds == ["poll", "vote", "vote", "vote", "outcome", "settled"]


def written(store: Store, kind: str, signed: SignedValue[Any], by: Principal = P3) -> None:
    """Write to the ledger of polls, past all that the moderator checks."""
    ledger = store.ledger(polls_name(NAME))
    ledger.append(ledger.head(), [NewChange(who=by, when=DEADLINE, kind=kind, after=signed.to_bytes())])


def finds(store: Store, reason: str) -> None:
    """Check that what somebody wrote is found, and said to be none of a poll."""
    for reading in (polls_of, polls_in):
        with refused("poll.record") as error:
            reading(store)
        assert error.value.fields["reason"] == reason


def test_a_forged_vote_in_a_ledger_is_found() -> None:
    store = contested()
    written(store, "vote", stranger(polls_in(store).ask("m", ASKED, DEADLINE)))
    finds(store, "poll.not-asked")


@pytest.mark.parametrize("forged", ["moderator", "book"])
def test_a_question_that_is_not_the_moderators_or_of_another_book_is_found(forged: str) -> None:
    store = contested()
    asked = polls_in(store).ask("m", ASKED, DEADLINE).question.value
    if forged == "moderator":
        written(store, "poll", sign_value(replace(asked, moderator=P3), K3))
    else:
        written(store, "poll", sign_value(replace(asked, book=bytes(32)), MODERATOR))
    finds(store, "poll.record")


def test_a_settlement_is_the_moderators_word() -> None:
    """Whoever can write to the ledger cannot make the step that was chosen go undone."""
    store = contested()
    polls = polls_in(store)
    poll = polls.ask("m", ASKED, DEADLINE)
    agree(polls, poll, K1, K2, K4)
    written(store, "outcome", polls.kept[poll.id].poll.sum_up(MODERATOR, DEADLINE))
    written(store, "settled", sign_value(SettledPoll(P3, poll.id, Settlement(999)), K3))
    finds(store, "poll.record")


def test_a_settlement_that_nobody_signed_is_none() -> None:
    store = contested()
    polls = polls_in(store)
    poll = polls.ask("m", ASKED, DEADLINE)
    agree(polls, poll, K1, K2, K4)
    written(store, "outcome", polls.kept[poll.id].poll.sum_up(MODERATOR, DEADLINE))
    signed = sign_value(SettledPoll(MODERATOR.principal, poll.id, Settlement(999)), MODERATOR)
    written(store, "settled", replace(signed, signature=bytes(64)))
    finds(store, "key.bad-signature")


def test_settlements_are_read_back() -> None:
    for settlement in (Settlement(7), Settlement(None, "poll.stale")):
        settled = SettledPoll(P1, bytes(32), settlement)
        assert SettledPoll.from_sexp(settled.to_sexp()) == settled


def test_a_snapshot_that_leaves_votes_out_has_no_effect() -> None:
    store = contested()
    polls = polls_in(store)
    poll = polls.ask("m", ASKED, DEADLINE)
    agree(polls, poll, K1, K2, K4)
    ledger, fold = store.ledger(polls_name(NAME)), PollsFold(RuleBook.open(store.ledger(NAME)).founding)
    silent = {poll.id: replace(polls.kept[poll.id], poll=replace(poll, votes=()))}
    ledger.keep_snapshot(fold.name, ledger.head(), fold.dump(silent))
    assert polls_in(store).kept == polls.kept
    (ended,) = polls_in(store).advance(DEADLINE)
    assert ended.settlement == Settlement(5)


# --- consents in votes ----------------------------------------------------------------------------------------------


def test_a_consent_in_a_vote_is_of_no_use_outside_its_poll() -> None:
    """Whoever carries votes sees them; a voter may still change its mind, and a majority be missing."""
    store = contested()
    polls = polls_in(store)
    poll = polls.ask("m", ASKED, DEADLINE)
    votes = [cast(poll.question, each, Ballot(consents=frozenset([DELETE]))) for each in (K1, K2, K4)]
    for vote in (*votes, cast(poll.question, K1, Ballot(), number=2)):
        polls.hear(vote.unverified(), at(1))
    seen = [consent for vote in votes for consent in vote.value.consents]
    book, chosen = RuleBook.open(store.ledger(NAME)), Resolve("m", DELETE, frozenset({P1, P2, P4}))
    for by, why in ((K4, ""), (K4, poll_reason(poll.id)), (MODERATOR, ""), (MODERATOR, poll_reason(poll.id))):
        with refused("moderator.consent"):
            book.ask(by, chosen, at(2), why, seen)
    (ended,) = polls.advance(DEADLINE)
    assert ended.settlement == Settlement(None, "poll.nothing-chosen")
    # Nor can the moderator use them against the votes.
    assert ended.poll.outcome is not None
    proof = PollProof(poll.question.unverified(), ended.poll.outcome.unverified())
    with refused("poll.outcome"):
        book.ask(MODERATOR, chosen, DEADLINE, poll_reason(poll.id), seen, poll=proof)


def test_a_step_shows_the_poll_that_chose_it_and_counts_once() -> None:
    store = contested(tightening=Tightening.POLL)
    polls, book = polls_in(store), RuleBook.open(store.ledger(NAME))
    for by in (K4, MODERATOR):
        with refused("moderator.needs-poll"):
            book.ask(by, Resolve("m", ADD), ASKED)
    agree(polls, polls.ask("m", ASKED, DEADLINE), K1, K2, K4)
    assert polls.advance(DEADLINE)[0].settlement == Settlement(5)
    book.verify()
    *_, taken = book.log()
    assert taken.word is not None
    proof, why = taken.word.poll, taken.step.note.why
    book.ask(MODERATOR, Undo(5), DEADLINE)
    with refused("moderator.needs-poll"):
        book.ask(MODERATOR, Undo(6), DEADLINE)
    # What was chosen is taken once, whoever asks, whatever for.
    for by, request in ((MODERATOR, Resolve("m", ADD)), (K4, Resolve("m", ADD)), (MODERATOR, Undo(6))):
        with refused("poll.outcome"):
            book.ask(by, request, DEADLINE, why, poll=proof)


def test_a_poll_of_somebody_else_or_that_nobody_closed_chooses_nothing() -> None:
    store = contested(tightening=Tightening.POLL)
    polls, book = polls_in(store), RuleBook.open(store.ledger(NAME))
    poll = polls.ask("m", ASKED, DEADLINE)
    agree(polls, poll, K1, K2, K4)
    poll = polls.kept[poll.id].poll
    outcome, why = poll.sum_up(MODERATOR, DEADLINE), poll_reason(poll.id)
    early = sign_value(replace(outcome.value, time=at(5)), MODERATOR)
    fewer = sign_value(replace(outcome.value, votes=outcome.value.votes[:2]), MODERATOR)
    for forged in (early, fewer):
        with refused("poll.outcome"):
            proof = PollProof(poll.question.unverified(), forged.unverified())
            book.ask(MODERATOR, Resolve("m", ADD), DEADLINE, why, poll=proof)
    own = Poll(sign_value(replace(poll.question.value, moderator=P4, voters=poll.question.value.voters), K4))
    votes = tuple(cast(own.question, each, Ballot(frozenset([ADD]))) for each in (K1, K2, K4))
    closed = replace(own, votes=votes).sum_up(K4, DEADLINE)
    with refused("moderator.wrong-book"):
        proof = PollProof(own.question.unverified(), closed.unverified())
        book.ask(K4, Resolve("m", ADD), DEADLINE, poll_reason(own.id), poll=proof)
    # It is for the moderator to take, and to say so.
    proof = PollProof(poll.question.unverified(), outcome.unverified())
    for by, said in ((K4, why), (MODERATOR, "")):
        with refused("poll.outcome"):
            book.ask(by, Resolve("m", ADD), DEADLINE, said, poll=proof)
    book.ask(MODERATOR, Resolve("m", ADD), DEADLINE, why, poll=proof)


def test_a_consent_for_no_poll_or_for_another_one_is_none_in_a_vote() -> None:
    polls = polls_in(contested())
    question = polls.ask("m", ASKED, DEADLINE).question
    vote = cast(question, K1, Ballot(consents=frozenset([DELETE]))).value
    for poll in (None, bytes(32)):
        other = sign_value(replace(vote.consents[0].value, poll=poll), K1).unverified()
        with refused("poll.consent"):
            polls.hear(sign_value(replace(vote, consents=(other,)), K1).unverified(), at(1))


def test_a_vote_that_is_written_after_the_deadline_by_another_clock_does_not_count() -> None:
    store = Store(MemoryRecords())
    contested(store)
    polls = polls_in(store)
    poll = polls.ask("m", ASKED, DEADLINE)
    vote = cast(poll.question, K1, Ballot(frozenset([ADD])))
    ledger = store.ledger(polls_name(NAME))
    ledger.append(ledger.head(), [NewChange(who=P1, when=DEADLINE, kind="vote", after=vote.to_bytes())])
    (kept,) = polls_of(store).values()
    assert kept.poll.votes == ()
    with refused("poll.closed"):
        polls.hear(vote.unverified(), at(1))
