"""What votes come to: a majority for tightenings, a signature for relaxing, in whatever order they come."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cache
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.budget import examples
from tests.moderator.kit import P1, P2, P3, P4, rule
from tests.moderator.life import add, ask, base_of, resolve
from tests.moderator.poll_kit import (
    ADD,
    ASKED,
    BOOK,
    CANDIDATE,
    DEADLINE,
    DELETE,
    ENGINEERS,
    FOLLOW,
    IN_TIME,
    MODERATOR,
    STRANGER,
    UNTIL,
    VOTERS,
    contested,
    question,
    vote,
)
from tests.trust.kit import key, refused

from penstock.crypto import SigningKey
from penstock.errors import PenstockError
from penstock.model.principals import Principal
from penstock.moderator.polls import (
    Poll,
    PollNotice,
    PollQuestion,
    Touched,
    Vote,
    VoterResponse,
    check_current,
    check_vote,
    count,
    pose,
    verify_outcome,
)
from penstock.moderator.rules.steps import Resolve, Strategy, WithdrawRule
from penstock.moderator.settlement.proposals import subject_of
from penstock.trust.signed import SignedValue, UnverifiedValue, sign_value

ASKING = question()
K1, K2, K3, K4 = KEYS = tuple(key(number) for number in (11, 12, 13, 14))
#: whose rules would be relaxed if nobody demanded anything; that of K3 may demand more than those above it
RELAXED = (K1, K2, K4)


def chosen(*votes: SignedValue[Vote], asked: SignedValue[PollQuestion] = ASKING) -> Strategy | None:
    found = count(asked.value, votes).chosen
    return None if found is None else found.strategy


def test_those_are_asked_whose_rules_would_change() -> None:
    asked = ASKING.value
    assert set(asked.voters) == set(VOTERS)
    assert {option.strategy: set(option.relaxes) for option in asked.options} == {
        FOLLOW: {P4},
        ADD: set(),
        DELETE: {P1, P2, P4},
    }
    bystander = rule("z", "A2", "role = 'worker'", of=[key(15).principal])
    assert set(question(contested(*ENGINEERS, bystander)).value.voters) == set(VOTERS)


def test_those_whom_a_relaxed_rule_binds_consent_and_have_no_voice_besides() -> None:
    base = contested(rule("a", "A1", "role = 'engineer'", of=[P1, P2, P3]))
    asked = question(base)
    assert [*map(set, (asked.value.voters, asked.value.deciding))] == [{P1, P2, P3, P4}, {P1, P4}]
    relaxed = [vote(asked, each, consents=[DELETE]) for each in KEYS]
    assert chosen(*relaxed, asked=asked) is DELETE
    assert [chosen(*relaxed[:n], *relaxed[n + 1 :], asked=asked) for n in range(4)] == [None] * 4
    # However many a rule is said to bind, whoever stated it has one vote of two.
    assert chosen(*(vote(asked, each, ADD) for each in KEYS[:3]), asked=asked) is None
    assert chosen(*(vote(asked, each, ADD) for each in (K1, K4)), asked=asked) is ADD


@pytest.mark.parametrize(
    ("votes", "wanted"),
    [
        ((), None),
        # More than half of all who were asked, not of those who answered.
        ([vote(ASKING, K1, ADD)], None),
        ([vote(ASKING, K1, ADD), vote(ASKING, K2, ADD)], None),
        ([vote(ASKING, K1, ADD), vote(ASKING, K2, ADD), vote(ASKING, K3, ADD)], ADD),
        # Whoever's rule would be relaxed has to sign for it; a majority does not do.
        ([vote(ASKING, K1, FOLLOW), vote(ASKING, K2, FOLLOW), vote(ASKING, K3, FOLLOW)], None),
        ([vote(ASKING, K1, FOLLOW), vote(ASKING, K2, FOLLOW), vote(ASKING, K4, consents=[FOLLOW])], FOLLOW),
        ([*(vote(ASKING, each, consents=[DELETE]) for each in RELAXED), vote(ASKING, K3, DELETE)], DELETE),
        ([vote(ASKING, each, consents=[DELETE]) for each in RELAXED], DELETE),
        ([*(vote(ASKING, each, consents=[DELETE]) for each in RELAXED[1:]), vote(ASKING, K3, DELETE)], None),
        # The most approvals, and then what changes least, which is the first of the question.
        ([*(vote(ASKING, each, ADD, FOLLOW) for each in KEYS[:3]), vote(ASKING, K4, consents=[FOLLOW])], FOLLOW),
        ([*(vote(ASKING, each, ADD, FOLLOW) for each in KEYS[:3]), vote(ASKING, K4, ADD, consents=[FOLLOW])], FOLLOW),
        ([*(vote(ASKING, each, ADD) for each in KEYS[:3]), vote(ASKING, K4, ADD, consents=[FOLLOW])], ADD),
        # The highest number counts, and two of it that differ refuse.
        ([*(vote(ASKING, each, ADD) for each in KEYS[:3]), vote(ASKING, K1, number=2)], None),
        ([*(vote(ASKING, each, ADD) for each in KEYS[:3]), vote(ASKING, K1)], None),
        ([*(vote(ASKING, each, ADD) for each in KEYS[:3]), vote(ASKING, K1), vote(ASKING, K1, ADD, number=2)], ADD),
    ],
)
def test_what_is_chosen(votes: Sequence[SignedValue[Vote]], wanted: Strategy | None) -> None:
    assert chosen(*votes) == wanted
    assert chosen(*reversed(votes), *votes) == wanted


def test_the_answers_are_told_apart() -> None:
    tally = count(ASKING.value, [vote(ASKING, K1, ADD), vote(ASKING, K2), vote(ASKING, K3, ADD), vote(ASKING, K3)])
    assert tally.answers == {
        P1: VoterResponse.VOTED,
        P2: VoterResponse.VOTED,
        P3: VoterResponse.CONTRADICTED,
        P4: VoterResponse.SILENT,
    }
    assert tally.approvals == {FOLLOW: (), ADD: (P1,), DELETE: ()}


def test_a_consent_is_what_the_rule_base_would_want_to_see() -> None:
    base = contested()
    asked = question(base)
    tally = count(asked.value, [vote(asked, each, consents=[DELETE]) for each in RELAXED])
    step = resolve(base, "m", DELETE, P1, P2, P4).step
    assert {(each.value.by, each.value.to) for each in tally.consents} == {
        (by, subject_of(step)) for by in (P1, P2, P4)
    }
    assert {(each.value.book, each.value.since, each.value.until) for each in tally.consents} == {(BOOK, 4, UNTIL)}


def test_what_a_voter_does_not_mean_it_cannot_sign() -> None:
    with refused("poll.consent"):
        vote(ASKING, K4, FOLLOW)
    with refused("poll.consent"):
        vote(ASKING, K1, consents=[ADD])
    with refused("poll.not-asked"):
        vote(ASKING, STRANGER, ADD)


def forged(claimed: Principal) -> SignedValue[Vote]:
    """Return a vote of somebody, with the signature of a stranger, that was not verified."""
    mine = vote(ASKING, K1, ADD)
    return replace(mine, value=replace(mine.value, voter=claimed), key=STRANGER.public)


def test_votes_that_do_not_count() -> None:
    other = sign_value(replace(ASKING.value, until=UNTIL + timedelta(1)), MODERATOR)
    narrow = sign_value(replace(ASKING.value, options=ASKING.value.options[:1]), MODERATOR)
    stolen = replace(vote(ASKING, K1, consents=[DELETE]).value, voter=P2)
    away = sign_value(
        Vote(ASKING.digest, P4, 1, frozenset([FOLLOW]), _consents(vote(ASKING, K4, consents=[DELETE]))), K4
    )
    late = sign_value(
        Vote(ASKING.digest, P1, 1, frozenset([DELETE]), _consents(vote(other, K1, consents=[DELETE]))), K1
    )
    twice = sign_value(
        Vote(ASKING.digest, P1, 1, frozenset([DELETE]), _consents(vote(ASKING, K1, consents=[DELETE])) * 2), K1
    )
    for code, asked, wrong in (
        ("poll.foreign", ASKING, vote(other, K1, ADD)),
        ("poll.unknown-option", narrow, sign_value(replace(vote(ASKING, K1, ADD).value, poll=narrow.digest), K1)),
        ("poll.not-asked", ASKING, sign_value(Vote(ASKING.digest, STRANGER.principal, 1, frozenset([ADD])), STRANGER)),
        ("poll.consent", ASKING, sign_value(stolen, K2)),
        ("poll.consent", ASKING, away),
        ("poll.consent", ASKING, late),
        ("poll.consent", ASKING, twice),
    ):
        with refused(code):
            check_vote(asked, wrong)
        with refused(code):
            Poll(asked).hear(wrong, IN_TIME)


def _consents(signed: SignedValue[Vote]) -> tuple[UnverifiedValue, ...]:  # type: ignore[type-arg]  # of consents
    return signed.value.consents


def test_a_consent_with_a_signature_of_another_is_none() -> None:
    mine = vote(ASKING, K1, consents=[DELETE])
    consent = mine.value.consents[0]
    wrong = sign_value(replace(mine.value, consents=(replace(consent, signature=bytes(64)),)), K1)
    with refused("key.bad-signature"):
        check_vote(ASKING, wrong)


def test_the_deadline_is_the_last_moment_that_does_not_count() -> None:
    poll, yes = Poll(ASKING), vote(ASKING, K1, ADD)
    assert poll.hear(yes, IN_TIME).votes == (yes,)
    with refused("poll.closed"):
        poll.hear(yes, DEADLINE)
    with refused("poll.open"):
        poll.sum_up(MODERATOR, IN_TIME)
    ended = poll.close(poll.sum_up(MODERATOR, DEADLINE))
    with refused("poll.closed"):
        ended.hear(yes, IN_TIME)
    with refused("poll.closed"):
        ended.close(poll.sum_up(MODERATOR, DEADLINE))


def test_what_says_nothing_new_is_not_kept() -> None:
    first, second, other = vote(ASKING, K1, ADD), vote(ASKING, K1, number=2), vote(ASKING, K1, ADD, number=2)
    poll = Poll(ASKING).hear(second, IN_TIME)
    assert poll.hear(first, IN_TIME) is poll
    assert poll.hear(second, IN_TIME) is poll
    contradicted = poll.hear(other, IN_TIME)
    assert len(contradicted.votes) == 2
    assert contradicted.hear(vote(ASKING, K1, FOLLOW, number=2), IN_TIME) is contradicted
    assert len(contradicted.hear(vote(ASKING, K1, ADD, number=3), IN_TIME).votes) == 1


def test_whoever_counts_the_votes_of_an_outcome_comes_to_the_same() -> None:
    poll = Poll(ASKING)
    for each in KEYS[:3]:
        poll = poll.hear(vote(ASKING, each, ADD), IN_TIME)
    outcome = poll.sum_up(MODERATOR, DEADLINE)
    assert outcome.value.chosen is ADD
    assert verify_outcome(ASKING, outcome.unverified()).chosen == ASKING.value.option(ADD)

    def altered(**change: object) -> UnverifiedValue:  # type: ignore[type-arg]  # an outcome
        return sign_value(replace(outcome.value, **change), MODERATOR).unverified()  # type: ignore[arg-type]  # as an outcome has them

    with refused("poll.outcome"):
        verify_outcome(ASKING, altered(chosen=FOLLOW))
    with refused("poll.outcome"):
        verify_outcome(ASKING, altered(chosen=None))
    with refused("poll.outcome"):
        verify_outcome(ASKING, altered(votes=outcome.value.votes[1:]))
    with refused("poll.outcome"):
        verify_outcome(ASKING, altered(poll=bytes(32)))
    with refused("poll.outcome"):
        verify_outcome(ASKING, altered(time=IN_TIME))
    with refused("key.bad-signature"):
        verify_outcome(ASKING, replace(outcome.unverified(), signature=bytes(64)))
    with refused("evolution.wrong-key"):
        verify_outcome(ASKING, altered(votes=(forged(P1).unverified(),)))


def test_what_was_asked_about_is_what_comes_of_it() -> None:
    base = contested()
    asked = question(base).value
    for strategy in (FOLLOW, ADD, DELETE):
        check_current(base, asked, strategy)
    # What happens elsewhere is of no effect.
    add(base, rule("z", "A2", "role = 'worker'", of=[P1]))
    check_current(base, asked, ADD)
    # Others come, go, or state something else.
    add(base, rule("d", "A12", "role = 'engineer'", of=[P1]))
    with refused("poll.stale"):
        check_current(base, asked, ADD)
    ask(base, WithdrawRule("d"))
    check_current(base, asked, ADD)
    ask(base, WithdrawRule("c"))
    add(base, rule("c", "A12", "role = 'engineer' AND company = 'A'", of=[P3]))
    with refused("poll.stale"):
        check_current(base, asked, ADD)
    check_current(base, asked, FOLLOW)
    ask(base, Resolve("m", FOLLOW, frozenset({P4})))
    with refused("poll.stale"):
        check_current(base, asked, FOLLOW)


def test_rules_that_voters_saw_otherwise_are_not_what_they_were_asked_about() -> None:
    """The same forms would come of it, but of rules that demanded something else before."""
    base = contested()
    asked = question(base).value
    other = rule("a", "A1", "company = 'A'", of=[P1])
    for touched in (Touched(other, asked.rule("a").stated), Touched(asked.rule("a").form, other)):
        seen = replace(asked, rules=tuple(touched if each.form.id == "a" else each for each in asked.rules))
        with refused("poll.stale"):
            check_current(base, seen, DELETE)


def test_only_what_was_rejected_and_can_be_settled_is_asked_about() -> None:
    base = contested()
    for code, candidate in (("moderator.not-rejected", "a"), ("moderator.unknown-rule", "nobody")):
        with refused(code):
            question(base, candidate)
    with refused("evolution.malformed"):
        pose(base, "m", PollNotice(P1, BOOK, DEADLINE, ASKED, UNTIL))


# --- whatever becomes of the messages -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sent:
    """A vote under way, and when it arrives; more than once, perhaps, or never."""

    vote: SignedValue[Vote]
    arrivals: tuple[float, ...]


SUBJECTS = [ASKING.value.subject(option) for option in ASKING.value.options]


def oracle(heard: Sequence[SignedValue[Vote]]) -> Strategy | None:
    """Say what is chosen, voter by voter and as the issue says it."""
    last: dict[Principal, Vote | None] = {}
    for voter in VOTERS:
        mine = {each.value for each in heard if each.value.voter == voter}
        newest = {each for each in mine if each.number == max(other.number for other in mine)}
        last[voter] = newest.pop() if len(newest) == 1 else None
    scores: list[tuple[int, int, Strategy]] = []
    for index, option in enumerate(ASKING.value.options):
        for_it = [each for each in last.values() if each is not None and option.strategy in each.approves]
        subject = SUBJECTS[index]
        signed = {each.voter for each in for_it if subject in {consent.value.to for consent in each.consents}}
        if len(for_it) > len(VOTERS) / 2 and set(option.relaxes) <= signed:
            scores.append((-len(for_it), index, option.strategy))
    return min(scores)[2] if scores else None


def random_vote(random: Random) -> SignedValue[Vote]:
    signer = random.choice([*KEYS] * 4)
    relaxing = {FOLLOW: signer is K4, ADD: False, DELETE: signer is not K3}
    taken = [strategy for strategy in relaxing if random.random() < 0.75]
    return signed_once(
        signer,
        tuple(strategy for strategy in taken if not relaxing[strategy]),
        tuple(strategy for strategy in taken if relaxing[strategy]),
        random.choice([1, 1, 1, 2, 3]),
    )


@cache
def signed_once(
    signer: SigningKey, approves: tuple[Strategy, ...], consents: tuple[Strategy, ...], number: int
) -> SignedValue[Vote]:
    return vote(ASKING, signer, *approves, consents=consents, number=number)


OTHER = sign_value(replace(ASKING.value, candidate="a"), MODERATOR)


def hostile(random: Random) -> SignedValue[Vote]:
    """Return what nobody who was asked has said: a forgery, an invented voter, an answer to another question."""
    made = random_vote(random)
    return random.choice(
        [
            forged(random.choice(VOTERS)),
            replace(made, signature=bytes(64)),
            sign_value(Vote(ASKING.digest, STRANGER.principal, 9, frozenset([FOLLOW, ADD, DELETE])), STRANGER),
            sign_value(Vote(OTHER.digest, P1, 9, frozenset([DELETE])), K1),
            sign_value(replace(made.value, voter=P3, number=9), K3) if made.value.consents else forged(P3),
        ]
    )


def run(sent: Sequence[Sent]) -> Poll:
    """Let a moderator hear what arrives, when it does, and close the poll."""
    poll = Poll(ASKING)
    arriving = sorted(((at, index) for index, each in enumerate(sent) for at in each.arrivals))
    for at, index in arriving:
        try:
            poll = poll.hear(sent[index].vote.unverified().verify(), _instant(at))
        except PenstockError:
            continue
    return poll.close(poll.sum_up(MODERATOR, DEADLINE))


def _instant(at: float) -> datetime:
    return ASKED + (DEADLINE - ASKED) * at


def arrivals(random: Random) -> tuple[float, ...]:
    """Return when copies of a message arrive; 1 is the deadline."""
    return tuple(random.uniform(0, 1.4) for _ in range(random.choice([0, 1, 1, 2, 3])))


@settings(max_examples=examples(30), deadline=None)
@given(st.integers(0, 2**32))
def test_an_outcome_depends_on_nothing_but_the_votes_that_were_there_in_time(seed: int) -> None:
    random = Random(seed)  # noqa: S311  # a schedule, no secret
    honest = [Sent(random_vote(random), arrivals(random)) for _ in range(random.randrange(9))]
    noise = [Sent(hostile(random), arrivals(random)) for _ in range(random.randrange(4))]
    ended = run([*honest, *noise])
    in_time = [each.vote for each in honest if any(at < 1 for at in each.arrivals)]
    assert ended.outcome is not None
    assert ended.outcome.value.chosen == oracle(in_time)
    # Another schedule by which the same arrives in time: another order, other repetitions, other noise.
    again = [
        Sent(each.vote, tuple(random.uniform(0, 0.99) for _ in range(random.choice([1, 2]))))
        for each in honest
        if any(at < 1 for at in each.arrivals)
    ]
    random.shuffle(again)
    other = run([*again, *(Sent(hostile(random), arrivals(random)) for _ in range(2))])
    assert other.tally() == ended.tally()
    verify_outcome(ASKING, ended.outcome.unverified())


@settings(max_examples=examples(20), deadline=None)
@given(st.integers(0, 2**32))
def test_who_lets_messages_be_lost_can_bring_about_silence_alone(seed: int) -> None:
    """Losing all that a voter says is as if it had not answered: it never relaxes a rule."""
    random = Random(seed)  # noqa: S311  # a schedule, no secret
    everything = [random_vote(random) for _ in range(8)]
    lost = random.choice(VOTERS)
    ended = run([Sent(each, (0.5,)) for each in everything if each.value.voter != lost])
    assert ended.tally().answers[lost] is VoterResponse.SILENT
    found = ended.tally().chosen
    assert found is None or lost not in found.relaxes


def test_rules_that_agree_are_settled_by_one_vote_each() -> None:
    """The transcript of the paper's section VI as a poll: two publishers, and both sign."""
    base = base_of()
    add(base, rule("a", "A1", "role = 'manager'", of=[P1]), replace(CANDIDATE, id="m"))
    asked = question(base)
    assert chosen(vote(asked, K1, ADD), asked=asked) is None
    assert chosen(vote(asked, K1, ADD), vote(asked, K4, ADD), asked=asked) is ADD
