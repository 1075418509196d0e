"""The book of validity statements: what it says about certificates, against a naive reading of all statements."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import count, product
from random import Random
from typing import TypeAlias

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.budget import examples
from tests.trust.kit import NOW, grant, key, refused, who

from penstock.codec.sexp import parse_canonical
from penstock.errors import RefusedError
from penstock.trust.limits import TRUST_LIMITS
from penstock.trust.policy_events import BEGINNING
from penstock.trust.signed import SignedValue, sign_value
from penstock.trust.statement_book import (
    ANSWER_TIME,
    AskedCertificates,
    OnlineState,
    OnlineStatus,
    Outlook,
    StatementBook,
    StatementHistory,
)
from penstock.trust.statements import (
    ActiveRevocation,
    Heartbeat,
    OnlineKind,
    OnlineTerms,
    Revalidation,
    RevocationList,
    StatementAuthor,
    TimedStatement,
    ValidityClaim,
)

ISSUER, OTHER, VERIFIER = 7, 8, 9
SECOND = timedelta(seconds=1)
MINE, THEIRS = grant(1, 2).id, grant(1, 3).id
CRL = OnlineTerms(OnlineKind.CRL, who(ISSUER))
REVAL = OnlineTerms(OnlineKind.REVALIDATION, who(ISSUER))
ACTIVE = OnlineTerms(OnlineKind.ACTIVE, who(ISSUER), (), 10 * SECOND)
ONCE = OnlineTerms(OnlineKind.ONE_TIME, who(ISSUER), (), 60 * SECOND)


def at(seconds: float) -> datetime:
    return NOW + seconds * SECOND


def book() -> StatementBook:
    return StatementBook(who(VERIFIER))


def crl(begin: float, end: float, *ids: str, issuer: int = ISSUER) -> SignedValue[RevocationList]:
    return sign_value(RevocationList(who(issuer), at(begin), at(end), frozenset(ids)), key(issuer))


def reval(begin: float, end: float, *ids: str) -> SignedValue[Revalidation]:
    return sign_value(Revalidation(who(ISSUER), at(begin), at(end), frozenset(ids)), key(ISSUER))


def state(kept: StatementBook, terms: OnlineTerms, seconds: float, certificate: str = MINE) -> tuple[str, str]:
    status = kept.status(terms, certificate, at(seconds))
    assert (status.state is OnlineState.VALID) is (not status.code) is (status.until is not None)
    return str(status.state), status.code


ENDS = (OnlineState.VALID, OnlineState.REVOKED)
VALID = ("valid", "")
REVOKED = ("revoked", "cert.revoked")
UNKNOWN = ("unknown", "statement.unknown")
ENDED = ("unknown", "statement.ended")
OVERLAP = ("unknown", "statement.overlap")


def test_without_statements_nothing_is_valid() -> None:
    for terms in (CRL, REVAL, ACTIVE, ONCE):
        assert state(book(), terms, 0) == UNKNOWN


def test_a_timed_list_counts_within_its_period_both_ends_included() -> None:
    kept = book()
    assert kept.take(crl(0, 10, THEIRS), at(0))
    assert not kept.take(crl(0, 10, THEIRS), at(0))
    assert state(kept, CRL, -1) == UNKNOWN
    assert state(kept, CRL, 0) == state(kept, CRL, 10) == VALID
    assert state(kept, CRL, 10.000001) == ENDED
    assert state(kept, CRL, 5, THEIRS) == REVOKED
    assert kept.status(CRL, MINE, at(5)).until == at(10)
    assert kept.check(CRL.to_test(), MINE, at(5)).ends == at(10)
    with refused("cert.revoked"):
        kept.check(CRL.to_test(), THEIRS, at(5))


def test_a_revalidation_lists_what_is_valid() -> None:
    kept = book()
    kept.take(reval(0, 10, MINE), at(0))
    assert state(kept, REVAL, 5) == VALID
    assert state(kept, REVAL, 5, THEIRS) == ("unknown", "statement.not-listed")
    assert not kept.status(REVAL, THEIRS, at(5)).missing
    assert state(kept, CRL, 5) == UNKNOWN
    assert kept.status(CRL, MINE, at(5)).missing


def test_statements_of_another_signer_do_not_count() -> None:
    kept = book()
    kept.take(crl(0, 10, issuer=OTHER), at(0))
    assert state(kept, CRL, 5) == UNKNOWN
    assert state(kept, replace(CRL, signer=who(OTHER)), 5) == VALID


def test_two_that_overlap_both_fail_until_both_are_over() -> None:
    kept = book()
    kept.take(crl(0, 10), at(0))
    kept.take(crl(21, 30), at(0))
    assert kept.take(crl(10, 20), at(1))
    assert state(kept, CRL, 5) == state(kept, CRL, 15) == OVERLAP
    assert state(kept, CRL, 25) == VALID


def test_a_statement_that_reaches_back_behind_a_forgotten_one_is_refused() -> None:
    kept = book()
    for begin in (0, 10, 20, 30):
        kept.take(crl(begin, begin + 9), at(0))
    kept.purge(at(35))
    assert len(list(kept.statements(who(ISSUER)))) == 3
    with refused("statement.backwards"):
        kept.take(crl(5, 9.5), at(35))
    assert state(kept, CRL, 35) == VALID
    assert kept.take(crl(5, 45), at(35)), "it overlaps with those that are known"
    assert state(kept, CRL, 35) == OVERLAP


def test_a_clock_that_was_ahead_and_is_corrected_finds_the_same_statements() -> None:
    kept = book()
    kept.take(crl(0, 9), at(0))
    kept.take(crl(10, 19), at(0))
    beats = StatementAuthor(key(ISSUER))
    kept.take(beats.heartbeat(at(0), 10 * SECOND), at(0))
    year = 365 * 24 * 3_600
    kept.purge(at(year))
    assert state(kept, CRL, year) == state(kept, ACTIVE, year) == ENDED
    assert state(kept, CRL, 5) == state(kept, ACTIVE, 5) == VALID
    assert state(kept, CRL, 15) == VALID
    assert kept.take(crl(20, 29), at(15))


def test_a_heartbeat_received_by_a_clock_that_was_ahead_does_not_last_longer() -> None:
    kept = book()
    kept.take(StatementAuthor(key(ISSUER)).heartbeat(at(1_000), 10 * SECOND), at(0))
    assert kept.status(ACTIVE, MINE, at(0)).until == at(10)


def test_active_revocation_counts_immediately_and_heartbeats_end() -> None:
    author, kept = StatementAuthor(key(ISSUER)), book()
    assert kept.take(author.heartbeat(at(0), 60 * SECOND), at(0))
    assert kept.status(ACTIVE, MINE, at(1)).until == at(10)
    assert state(kept, ACTIVE, 11) == ENDED
    assert state(kept, replace(ACTIVE, pause=3_600 * SECOND), 60) == VALID
    assert kept.take(author.revoke(at(2), [MINE]), at(2))
    assert state(kept, ACTIVE, 2) == REVOKED
    assert state(kept, ACTIVE, 2, THEIRS) == VALID
    assert kept.take(author.heartbeat(at(9), 60 * SECOND), at(9))
    assert kept.status(ACTIVE, THEIRS, at(9)).until == at(19)


def test_a_heartbeat_for_a_revocation_that_is_missing_vouches_for_nothing() -> None:
    author, kept = StatementAuthor(key(ISSUER)), book()
    kept.take(author.heartbeat(at(0), 60 * SECOND), at(0))
    revoked = author.revoke(at(1), [THEIRS])
    kept.take(author.heartbeat(at(2), 60 * SECOND), at(2))
    assert state(kept, ACTIVE, 2) == UNKNOWN
    kept.take(revoked, at(3))
    assert state(kept, ACTIVE, 3) == VALID


def test_numbers_and_times_do_not_go_back() -> None:
    author, kept = StatementAuthor(key(ISSUER)), book()
    old, first, beat = (
        author.heartbeat(at(0), 60 * SECOND),
        author.revoke(at(1), [MINE]),
        author.heartbeat(at(1), SECOND),
    )
    second, last = author.revoke(at(2), []), author.heartbeat(at(2), 60 * SECOND)
    kept.take(second, at(2))
    kept.take(last, at(2))
    for replayed in (old, first, beat):
        with refused("statement.backwards"):
            kept.take(replayed, at(2))
    assert not kept.take(last, at(2))
    assert not kept.take(second, at(2))


def test_two_revocations_with_one_number_both_fail_until_there_is_a_higher_one() -> None:
    author, kept = StatementAuthor(key(ISSUER)), book()
    first, beat = author.revoke(at(0), [THEIRS]), author.heartbeat(at(0), 60 * SECOND)
    kept.take(first, at(0))
    kept.take(beat, at(0))
    assert state(kept, ACTIVE, 1) == VALID
    twin = sign_value(ActiveRevocation(who(ISSUER), 1, at(0), frozenset()), key(ISSUER))
    assert kept.take(twin, at(1))
    assert not kept.take(twin, at(1))
    assert state(kept, ACTIVE, 1) == OVERLAP
    kept.take(author.revoke(at(2), [THEIRS]), at(2))
    assert state(kept, ACTIVE, 2) == VALID


def test_a_heartbeat_with_another_head_than_the_known_revocation_vouches_for_nothing() -> None:
    author, kept = StatementAuthor(key(ISSUER)), book()
    kept.take(author.revoke(at(0), []), at(0))
    kept.take(sign_value(Heartbeat(who(ISSUER), 1, b"d" * 32, at(0), 60_000), key(ISSUER)), at(0))
    assert state(kept, ACTIVE, 0) == OVERLAP


def test_a_one_time_answer_serves_the_question_with_its_nonce_once() -> None:
    author, kept = StatementAuthor(key(ISSUER)), book()
    question = kept.ask(ONCE, MINE, b"n" * 16, at(0))
    assert not kept.is_due(ONCE, MINE, at(0))
    assert question.verifier == who(VERIFIER)
    answer = author.answer(question, at(1), revoked=False)
    assert kept.take(answer, at(5))
    for replayed in (answer, author.answer(replace(question, nonce=b"m" * 16), at(1), revoked=False)):
        with refused("statement.nonce"):
            kept.take(replayed, at(6))
    assert not kept.is_due(ONCE, MINE, at(44))
    assert kept.is_due(ONCE, MINE, at(45))
    assert kept.status(ONCE, MINE, at(5)).until == at(60)
    assert state(kept, ONCE, 5, THEIRS) == UNKNOWN
    assert state(kept, ONCE, 61) == ENDED


def test_an_answer_for_another_verifier_certificate_or_issuer_is_refused() -> None:
    kept = book()
    question = kept.ask(ONCE, MINE, b"n" * 16, at(0))
    for wrong in (replace(question, verifier=who(3)), replace(question, certificate=THEIRS)):
        with refused("statement.nonce"):
            kept.take(StatementAuthor(key(ISSUER)).answer(wrong, at(0), revoked=False), at(0))
    with refused("statement.nonce"):
        kept.take(StatementAuthor(key(OTHER)).answer(replace(question, issuer=who(OTHER)), at(0), revoked=False), at(0))
    assert kept.take(StatementAuthor(key(ISSUER)).answer(question, at(0), revoked=True), at(0))
    assert state(kept, ONCE, 0) == REVOKED


def test_an_answer_that_comes_too_late_is_refused() -> None:
    kept = book()
    question = kept.ask(ONCE, MINE, b"n" * 16, at(0))
    late = at(0) + ANSWER_TIME + SECOND
    with refused("statement.nonce"):
        kept.take(StatementAuthor(key(ISSUER)).answer(question, late, revoked=False), late)


def test_everything_is_bounded() -> None:
    limits = replace(TRUST_LIMITS, statement_issuers=2, statements_of_issuer=3, statement_questions=1)
    kept = StatementBook(who(VERIFIER), limits=limits)
    for begin in (0, 10, 20):
        kept.take(crl(begin, begin + 9), at(0))
    with refused("statement.limit"):
        kept.take(crl(30, 39), at(0))
    kept.take(crl(0, 5, issuer=OTHER), at(0))
    with refused("statement.limit"):
        kept.take(crl(0, 9, issuer=1), at(0))
    assert kept.take(crl(0, 9, issuer=1), at(6)), "issuers whose statements have ended make room"
    kept.ask(ONCE, MINE, b"n" * 16, at(0))
    with refused("statement.limit"):
        kept.ask(ONCE, MINE, b"m" * 16, at(0))
    with refused("online.malformed"):
        StatementBook(who(VERIFIER)).ask(CRL, MINE, b"n" * 16, at(0))


def test_the_next_turn_is_the_first_beginning_or_end() -> None:
    kept = book()
    assert kept.turns(at(0)) is None
    kept.take(crl(5, 10), at(0))
    assert kept.turns(at(0)) == at(5)
    assert kept.turns(at(5)) == at(10) + timedelta(microseconds=1)
    assert kept.turns(at(11)) is None
    kept.take(StatementAuthor(key(ISSUER)).heartbeat(at(0), 3 * SECOND), at(0))
    assert kept.turns(at(0)) == at(3) + timedelta(microseconds=1)


# ----------------------------------------------------------------------------------------------------------------------
# The naive version: all statements that ever arrived, looked at from the beginning for each question.


Step: TypeAlias = tuple[int, SignedValue[ValidityClaim]]
"""Seconds that pass, and a statement that arrives then."""


@dataclass(frozen=True)
class Arrival:
    when: datetime
    statement: SignedValue[ValidityClaim]


def naive(arrivals: Sequence[Arrival], terms: OnlineTerms, certificate: str, now: datetime) -> str:
    mine = [one for one in arrivals if one.statement.value.issuer == terms.signer]
    if terms.kind is OnlineKind.ACTIVE:
        return _naive_active(mine, terms, certificate, now)
    kind = RevocationList if terms.kind is OnlineKind.CRL else Revalidation
    timed = [one.statement.value for one in mine if isinstance(one.statement.value, kind)]
    distinct = list(dict.fromkeys(timed))
    covering = [one for one in distinct if one.not_before <= now <= one.not_after]
    good = [one for one in covering if not any(_clash(one, other) for other in distinct if other != one)]
    if not good or len(good) < len(covering):
        return "unknown"
    listed = certificate in good[0].certificates
    if kind is RevocationList:
        return "revoked" if listed else "valid"
    return "valid" if listed else "unknown"


def _clash(one: TimedStatement, other: TimedStatement) -> bool:
    return max(one.not_before, other.not_before) <= min(one.not_after, other.not_after)


def _naive_active(mine: Sequence[Arrival], terms: OnlineTerms, certificate: str, now: datetime) -> str:
    assert terms.pause is not None
    lists = {one.statement.digest: one.statement.value for one in mine}
    revoked = {digest: value for digest, value in lists.items() if isinstance(value, ActiveRevocation)}
    beats = [(one.when, one.statement.value) for one in mine if isinstance(one.statement.value, Heartbeat)]
    last = max((value.number for value in revoked.values()), default=0)
    top = {digest: value for digest, value in revoked.items() if value.number == last}
    if any(certificate in value.certificates for value in list(top.values())[:1]):
        return "revoked"
    if len(top) > 1 or not beats:
        return "unknown"
    high = max(value.number for _, value in beats)
    time = max(value.time for _, value in beats if value.number == high)
    heard, beat = next((when, value) for when, value in beats if (value.number, value.time) == (high, time))
    if last < high or (high and last == high and beat.head not in top):
        return "unknown"
    period = min(timedelta(milliseconds=beat.period), terms.pause)
    return "valid" if now <= min(beat.time, heard) + period else "unknown"


@st.composite
def timed_statements(draw: st.DrawFn) -> SignedValue[ValidityClaim]:
    begin = draw(st.integers(0, 12))
    end = begin + draw(st.integers(0, 4))
    listed = draw(st.sets(st.sampled_from([MINE, THEIRS])))
    made = crl(begin, end, *listed) if draw(st.booleans()) else reval(begin, end, *listed)
    return made  # noqa: RET504  # its type is the wider one


@given(st.lists(st.tuples(st.integers(0, 3), timed_statements()), max_size=7))
@settings(deadline=None, max_examples=examples(300))
def test_timed_statements_against_all_of_them(steps: list[Step]) -> None:
    kept, arrivals, moment = book(), list[Arrival](), 0
    for pause, statement in steps:
        moment += pause
        # The naive version has to agree that a refused one makes no difference.
        with suppress(RefusedError):
            kept.take(statement, at(moment))
        arrivals.append(Arrival(at(moment), statement))
        kept.purge(at(moment))
        for later in range(moment, 18):
            for terms in (CRL, REVAL):
                for one in (MINE, THEIRS):
                    assert str(kept.status(terms, one, at(later)).state) == naive(arrivals, terms, one, at(later))


@given(st.lists(st.tuples(st.integers(-20, 20), timed_statements()), max_size=7))
@settings(deadline=None, max_examples=examples(300))
def test_whatever_the_clock_does_nothing_is_valid_that_no_statement_supports(
    steps: list[Step],
) -> None:
    kept, arrivals = book(), list[Arrival]()
    for moment, statement in steps:
        with suppress(RefusedError):
            kept.take(statement, at(moment))
        arrivals.append(Arrival(at(moment), statement))
        kept.purge(at(moment))
        for now in range(18):
            for one in (MINE, THEIRS):
                if kept.status(CRL, one, at(now)).state is OnlineState.VALID:
                    supporting = [
                        value
                        for arrival in arrivals
                        if isinstance(value := arrival.statement.value, RevocationList)
                        and value.not_before <= at(now) <= value.not_after
                        and one not in value.certificates
                    ]
                    assert supporting


@st.composite
def active_steps(draw: st.DrawFn) -> list[Step]:
    """One author's statements, which arrive in any order, some several times."""
    author, time, made = StatementAuthor(key(ISSUER)), count(), list[SignedValue[ValidityClaim]]()
    for _ in range(draw(st.integers(1, 6))):
        now = at(next(time))
        if draw(st.booleans()):
            made.append(author.revoke(now, draw(st.sets(st.sampled_from([MINE, THEIRS])))))
        else:
            made.append(author.heartbeat(now, draw(st.integers(1, 15)) * SECOND))
    if draw(st.booleans()):
        made.append(sign_value(ActiveRevocation(who(ISSUER), 1, at(0), frozenset()), key(ISSUER)))
    order = draw(st.lists(st.sampled_from(made), max_size=9))
    return [(draw(st.integers(0, 4)), one) for one in order]


@given(active_steps())
@settings(deadline=None, max_examples=examples(300))
def test_active_statements_against_all_of_them(steps: list[Step]) -> None:
    kept, arrivals, moment = book(), list[Arrival](), 0
    for pause, statement in steps:
        moment += pause
        if isinstance(value := statement.value, Heartbeat) and value.until < at(moment):
            with suppress(RefusedError):
                assert not kept.take(statement, at(moment)), "it is over"
            continue
        with suppress(RefusedError):
            kept.take(statement, at(moment))
        arrivals.append(Arrival(at(moment), statement))
        for later in range(moment, 30, 3):
            for one in (MINE, THEIRS):
                assert str(kept.status(ACTIVE, one, at(later)).state) == naive(arrivals, ACTIVE, one, at(later))


# ----------------------------------------------------------------------------------------------------------------------
# Restarts.


def restored(kept: StatementBook, now: datetime) -> StatementBook:
    """Return the book of a verifier that was started again."""
    again = book()
    for issuer in list(kept.issuers()):
        again.restore([*map(parse_canonical, kept.remember(issuer))], now)
    return again


def taken(kept: StatementBook, statement: SignedValue[ValidityClaim], now: datetime) -> bool | str:
    try:
        return kept.take(statement, now)
    except RefusedError as error:
        return error.code


@given(
    st.lists(st.tuples(st.integers(-3, 6), timed_statements()), max_size=7),
    active_steps(),
    st.randoms(use_true_random=False),
)
@settings(deadline=None, max_examples=examples(100))
def test_a_verifier_that_is_started_again_takes_and_says_what_it_would_have_otherwise(
    timed: list[Step],
    active: list[Step],
    chance: Random,
) -> None:
    steps, first, second, moment = [*timed, *active], book(), book(), 0
    chance.shuffle(steps)
    for pause, statement in steps:
        moment += pause
        assert taken(first, statement, at(moment)) == taken(second, statement, at(moment))
        if chance.random() < 0.3:
            second = restored(second, at(moment))
        for terms in (CRL, REVAL, ACTIVE):
            for one in (MINE, THEIRS):
                for now in (moment, 5, 15):
                    assert first.status(terms, one, at(now)) == second.status(terms, one, at(now))


def test_statements_that_were_replaced_are_refused_after_a_restart() -> None:
    author, kept = StatementAuthor(key(ISSUER)), book()
    old = [author.heartbeat(at(0), 100 * SECOND), author.revoke(at(1), []), author.heartbeat(at(2), 100 * SECOND)]
    last = author.revoke(at(3), [MINE])
    lists = [crl(begin, begin + 9) for begin in (0, 10, 20, 30)]
    for statement in (*old, last, *lists):
        kept.take(statement, at(30))
    for again in (kept, restored(kept, at(31))):
        assert state(again, ACTIVE, 31) == REVOKED
        for statement in (*old[:2], lists[0]):
            with refused("statement.backwards"):
                again.take(statement, at(31))


def test_stored_statements_of_two_issuers_in_one_file_are_refused() -> None:
    kept = book()
    kept.take(crl(0, 10), at(0))
    kept.take(crl(0, 10, issuer=OTHER), at(0))
    mine, theirs = ([*map(parse_canonical, kept.remember(who(issuer)))] for issuer in (ISSUER, OTHER))
    for values in ([mine[0], theirs[1]], [], [mine[1]]):
        with refused("evolution.malformed"):
            book().restore(values, at(0))


# ----------------------------------------------------------------------------------------------------------------------
# What has changed since somebody asked.


@given(
    st.lists(st.one_of(st.tuples(st.integers(0, 3), timed_statements()), st.integers(0, 11)), max_size=12),
    active_steps(),
    st.randoms(use_true_random=False),
)
@settings(deadline=None, max_examples=examples(100))
def test_certificates_have_changed_if_their_states_have(
    timed: list[tuple[int, SignedValue[ValidityClaim]] | int],
    active: list[Step],
    chance: Random,
) -> None:
    steps: list[tuple[int, SignedValue[ValidityClaim]] | int] = [*timed, *active, *range(6)]
    kept, moment = book(), 0
    asked, naive_states = AskedCertificates(kept), dict[tuple[OnlineTerms, str], OnlineState]()
    revoked: set[str] = set()
    ways = [
        (terms, one)
        for terms in (CRL, REVAL, ACTIVE, replace(ACTIVE, pause=3 * SECOND), ONCE)
        for one in (MINE, THEIRS)
    ]
    chance.shuffle(steps)
    for step in steps:
        if isinstance(step, int):
            terms, one = ways[step % len(ways)]
            asked.ask(terms, one, at(moment))
            state = kept.status(terms, one, at(moment)).state
            if (naive_states.get((terms, one)), state) == ENDS:
                revoked.add(one)
            naive_states[terms, one] = state
            continue
        moment += step[0]
        taken(kept, step[1], at(moment))
        if chance.random() < 0.2:
            keep = frozenset([MINE])
            asked.forget(keep, 0)
            naive_states = {way: state for way, state in naive_states.items() if way[1] in keep}
        if chance.random() < 0.5:
            now = {way: kept.status(*way, at(moment)).state for way in naive_states}
            changed = frozenset(way[1] for way in now if now[way] is not naive_states[way])
            assert asked.changed(who(ISSUER), at(moment)) == changed
            revoked |= {one for (terms, one) in now if (naive_states[terms, one], now[terms, one]) == ENDS}
            assert {one for _, one in asked.revoked} == revoked
            assert len(asked) == len(now)
            naive_states = now


def test_a_statement_costs_what_it_changes_and_not_what_was_asked_about() -> None:
    author, kept = StatementAuthor(key(ISSUER)), book()
    kept.take(author.heartbeat(at(0), 60 * SECOND), at(0))
    asked = AskedCertificates(kept)
    many = [f"cert:{'a' * 49}{''.join(end)}" for end in product("abcdefghij", repeat=3)]
    for one in many:
        asked.ask(ACTIVE, one, at(0))
    [group] = asked._groups[who(ISSUER)].values()
    looked_at = 0

    class Counting(Outlook):
        def status(self, certificate: str) -> OnlineStatus:
            nonlocal looked_at
            looked_at += 1
            return super().status(certificate)

    def shifted() -> set[str]:
        now = kept.outlook(ACTIVE, at(1))
        return {*group.shift(Counting(now.others, now.listed, now.about_listed))}

    kept.take(author.heartbeat(at(1), 60 * SECOND), at(1))
    assert (shifted(), looked_at) == (set(), 0)
    kept.take(author.revoke(at(1), many[:2]), at(1))
    assert (shifted(), looked_at) == ({*many[:2]}, 4), "before and now"
    assert asked.questions() == []


def test_before_the_first_revocation_heartbeats_have_an_empty_head() -> None:
    assert StatementAuthor(key(ISSUER)).heartbeat(NOW, SECOND).value.head == BEGINNING


# ----------------------------------------------------------------------------------------------------------------------
# History.


def held(statements: Sequence[SignedValue[ValidityClaim]], terms: OnlineTerms, certificate: str, now: datetime) -> bool:
    periods = StatementHistory(tuple(statements)).periods(terms.to_test(), certificate)
    return any(period.contains(now) for period in periods)


@given(st.lists(timed_statements(), max_size=7))
@settings(deadline=None, max_examples=examples(200))
def test_history_says_what_the_book_would_have_said(statements: list[SignedValue[ValidityClaim]]) -> None:
    arrivals = [Arrival(at(0), one) for one in statements]
    for now in range(18):
        for terms in (CRL, REVAL):
            for one in (MINE, THEIRS):
                expected = naive(arrivals, terms, one, at(now)) == "valid"
                assert held(statements, terms, one, at(now)) is expected


@given(active_steps())
@settings(deadline=None, max_examples=examples(200))
def test_history_says_what_the_book_said_when_each_statement_arrived_in_time(steps: list[Step]) -> None:
    made = list({one.digest: one for _, one in steps}.values())

    def order(one: SignedValue[ValidityClaim]) -> tuple[datetime, bool, int]:
        value = one.value
        assert isinstance(value, ActiveRevocation | Heartbeat)
        return value.time, isinstance(value, Heartbeat), value.number

    left, kept = sorted(made, key=order), book()
    for now in range(30):
        while left and order(left[0])[0] <= at(now):
            taken(kept, left[0], order(left.pop(0))[0])
        for one in (MINE, THEIRS):
            assert held(made, ACTIVE, one, at(now)) is (kept.status(ACTIVE, one, at(now)).state is OnlineState.VALID)


def test_history_of_active_statements_has_gaps_where_it_was_revoked_or_silent() -> None:
    author = StatementAuthor(key(ISSUER))
    made = [
        author.heartbeat(at(0), 5 * SECOND),
        author.revoke(at(3), [MINE]),
        author.heartbeat(at(4), 5 * SECOND),
        author.revoke(at(6), []),
        author.heartbeat(at(7), 5 * SECOND),
        author.heartbeat(at(20), 60 * SECOND),
    ]
    found = [second for second in range(40) if held(made, ACTIVE, MINE, at(second))]
    assert found == [0, 1, 2, *range(6, 13), *range(20, 31)]
    assert [second for second in range(14) if held(made, ACTIVE, THEIRS, at(second))] == list(range(13))
    assert not held([one for one in made if not isinstance(one.value, ActiveRevocation)], ACTIVE, MINE, at(8))


def test_history_of_one_time_answers() -> None:
    author, kept = StatementAuthor(key(ISSUER)), book()
    question = kept.ask(ONCE, MINE, b"n" * 16, at(0))
    made = [author.answer(question, at(0), revoked=False), author.answer(question, at(30), revoked=True)]
    assert [second for second in range(90) if held(made, ONCE, MINE, at(second))] == list(range(30))


def test_periods_that_follow_each_other_are_one() -> None:
    author = StatementAuthor(key(ISSUER))
    made = [author.revocation_list(at(0), 10 * SECOND, []) for _ in range(100)]
    [period] = StatementHistory(tuple(made)).periods(CRL.to_test(), MINE)
    assert (period.starts, period.ends) == (at(0), at(1_000) - timedelta(microseconds=1))
    assert StatementHistory().periods(CRL.to_test(), MINE) == ()
