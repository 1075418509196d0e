"""What is said in a poll has one form, is signed by who says it, and shows no rule where it is logged."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.budget import examples
from tests.moderator.kit import P1
from tests.moderator.poll_kit import ADD, ASKED, DEADLINE, DELETE, MODERATOR, STRANGER, question, vote
from tests.trust.kit import key, refused, who

from penstock.codec.sexp import SExp
from penstock.crypto import digest
from penstock.errors import PenstockError
from penstock.moderator.polls import Poll, PollOutcome, PollQuestion, Vote
from penstock.trust.signed import Claim, SignedValue, parse_signed, read_signed, sign_value

ASKING = question()
VOTE = vote(ASKING, key(11), ADD, consents=[DELETE], number=3)
ENDED = Poll(ASKING, (VOTE,)).sum_up(MODERATOR, DEADLINE)


def test_what_is_said_is_read_back() -> None:
    for signed in (ASKING, VOTE, ENDED):
        read = parse_signed(signed.to_bytes(), PollQuestion, Vote, PollOutcome)
        assert read.verify().value == signed.value
        assert "engineer" not in repr(read)


def test_only_who_says_it_can_sign_it() -> None:
    for value in (ASKING.value, VOTE.value, ENDED.value):
        with refused("evolution.wrong-key"):
            sign_value(value, STRANGER)


def test_a_vote_that_was_altered_is_refused() -> None:
    forged = VOTE.to_bytes().replace(b"6:number1:3", b"6:number1:4")
    assert forged != VOTE.to_bytes()
    with refused("evolution.signature-mismatch"):
        parse_signed(forged, Vote)


@pytest.mark.parametrize(
    "change",
    [
        {"candidate": "nobody"},
        {"rules": ASKING.value.rules * 2},
        {"options": ()},
        {"options": ASKING.value.options * 2},
        {"options": (replace(ASKING.value.options[0], relaxes=(who(99),)),)},
        {"rules": (ASKING.value.rules[0],)},
        {"voters": ASKING.value.voters[1:]},
        {"voters": ASKING.value.voters * 2},
        {"deadline": ASKED},
        {"until": DEADLINE},
    ],
)
def test_a_question_that_means_nothing_is_none(change: dict[str, object]) -> None:
    with refused("evolution.malformed"):
        replace(ASKING.value, **change)  # type: ignore[arg-type]  # one field each


def test_a_question_to_too_many_is_none() -> None:
    crowd = tuple(who(1000 + number) for number in range(125))
    with refused("poll.limit"):
        replace(ASKING.value, voters=(*ASKING.value.voters, *crowd))


def test_numbers_of_votes_are_bounded() -> None:
    for number in (0, 17):
        with refused("evolution.malformed"):
            Vote(ASKING.digest, P1, number)


@settings(max_examples=examples(60), deadline=None)
@given(st.sampled_from([ASKING, VOTE, ENDED]), st.data())
def test_whatever_is_read_is_refused_or_signed(said: SignedValue[Claim], data: st.DataObject) -> None:
    """Parts of a statement are taken out, doubled or replaced: nothing but an error of Penstock comes of it."""
    body = mangled(said.body, data)
    signature = (b"signature", (b"hash", b"sha256", digest(body)), said.key.to_sexp(), said.signature)
    try:
        read = read_signed((b"sequence", body, signature), PollQuestion, Vote, PollOutcome)
    except PenstockError:
        return
    if body != said.body:
        with pytest.raises(PenstockError):
            read.verify()


def mangled(value: SExp, data: st.DataObject) -> SExp:
    if not isinstance(value, tuple) or not value or data.draw(st.integers(0, 5)) == 0:
        return data.draw(st.sampled_from([(), b"", b"7", (b"x",), (value, value), value]))
    place = data.draw(st.integers(0, len(value) - 1))
    return (*value[:place], mangled(value[place], data), *value[place + 1 :])


def test_no_other_form_is_read() -> None:
    body = VOTE.value.to_sexp()
    assert isinstance(body, tuple)
    others = (
        (b"poll-vote",),
        (*body[:4], (b"approves", b"delete-attributes", b"add-attributes"), body[5]),
        (*body[:4], (b"approves", b"win"), body[5]),
        (*body, (b"more", b"1")),
    )
    for other in others:
        signature = (b"signature", (b"hash", b"sha256", digest(other)), key(11).public.to_sexp(), bytes(64))
        with refused("evolution.malformed"):
            read_signed((b"sequence", other, signature), Vote)
