"""Publishers that are asked: questions are read from a fabric, and answered by a policy or by hand.

A policy says what to answer without anybody looking; it has no way to say that a rule may be relaxed unless it names
the consent. `tightenings` never does: whatever a moderator claims, its votes take nothing from a rule of the voter.

What the voter has said before is read from the topic of votes, also after a restart: another vote takes its place, and
of two of one number neither would count. A policy leaves alone what somebody cast by hand.
"""

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Self, TypeAlias, TypeVar

from penstock.authority.polls_topics import (
    QOS,
    PollChannel,
    Sending,
    end,
    instant,
    is_outcome,
    listen,
    polls_topic,
    vote_key,
    votes_topic,
)
from penstock.codec.sexp import parse_canonical
from penstock.crypto import SigningKey
from penstock.errors import MalformedError, RefusedError
from penstock.fabric import Clock, Fabric, Sample
from penstock.fabric.tasks import keep_running
from penstock.model.principals import Principal
from penstock.moderator.polls import Ballot, PollOutcome, PollQuestion, Vote, VoteTally, cast_again, verify_outcome
from penstock.trust.signed import Claim, SignedValue, read_signed

if TYPE_CHECKING:
    from asyncio import Task

V = TypeVar("V", bound=Claim)


Policy: TypeAlias = Callable[[PollQuestion, Principal], Ballot | None]
"""Says what to answer to a question; None leaves it to somebody."""


def tightenings(question: PollQuestion, voter: Principal) -> Ballot:
    """Approve of all proposals except those that relax one of the voter's rules."""
    return Ballot(frozenset(option.strategy for option in question.options if voter not in option.relaxes))


def refusals(question: PollQuestion, voter: Principal) -> Ballot:  # noqa: ARG001  # whatever is asked
    """Approve of nothing."""
    return Ballot()


@dataclass(frozen=True, slots=True)
class Ended:
    """The outcome of a poll, verified from its votes."""

    question: SignedValue[PollQuestion]
    outcome: SignedValue[PollOutcome]
    tally: VoteTally


@dataclass(frozen=True, slots=True)
class AutomaticVoter:
    """A publisher that answers by a policy."""

    key: SigningKey
    policy: Policy


Told: TypeAlias = Callable[[SignedValue[PollQuestion], SignedValue[Vote] | None], None]
"""Receives a question, and the immediate answer to it."""


class Answering:
    """A publisher on a fabric, while it is entered: answers the questions of moderators that it knows.

    Votes are sent again and again until the deadline, or until the outcome is known.
    """

    def __init__(
        self,
        channel: PollChannel,
        voter: AutomaticVoter,
        moderators: Iterable[Principal],
        *,
        asked: Told | None = None,
        ended: Callable[[Ended], None] | None = None,
    ) -> None:
        self._channel = channel
        self._key = voter.key
        self._policy = voter.policy
        self._told_asked = asked
        self._told_ended = ended
        self._sending = {each: Sending(channel.fabric, votes_topic(each), channel.note) for each in moderators}
        self._questions: dict[bytes, SignedValue[PollQuestion]] = {}
        self._votes: dict[bytes, SignedValue[Vote]] = {}
        self._tasks: list[Task[None]] = []

    async def __aenter__(self) -> Self:
        self._tasks = [keep_running("reading polls", partial(self._listen, each)) for each in self._sending]
        self._tasks.append(keep_running("repeating votes", self._repeat))
        return self

    async def __aexit__(self, *_: object) -> None:
        await end(*self._tasks)

    async def _listen(self, moderator: Principal) -> None:
        async def take(sample: Sample) -> None:
            if is_outcome(sample.key):
                self._end(said_by(moderator, sample, PollOutcome))
            else:
                await self._answer(said_by(moderator, sample, PollQuestion))

        await listen(self._channel.fabric, polls_topic(moderator), take, self._channel.note)

    async def _answer(self, question: SignedValue[PollQuestion]) -> None:
        asked = question.value
        if question.digest in self._questions or self._key.principal not in asked.voters:
            return
        if asked.deadline <= instant(self._channel.clock):
            return
        ballot = self._policy(asked, self._key.principal)
        vote = None if ballot is None else await self._cast(question, ballot)
        self._questions[question.digest] = question
        if vote is not None:
            self._votes[question.digest] = vote
        if self._told_asked is not None:
            self._told_asked(question, vote)
        if vote is not None:
            await self._sending[asked.moderator].send(vote_key(vote.value), vote.to_bytes())

    async def _cast(self, question: SignedValue[PollQuestion], ballot: Ballot) -> SignedValue[Vote]:
        earlier = await own_votes(self._channel.fabric, question, self._key.principal)
        return cast_again(question, self._key, ballot, earlier, automatic=True)

    def _end(self, outcome: SignedValue[PollOutcome]) -> None:
        question = self._questions.get(outcome.value.poll)
        if question is None:
            return
        tally = verify_outcome(question, outcome.unverified())
        self._forget(question.digest)
        if self._told_ended is not None:
            self._told_ended(Ended(question, outcome, tally))

    def _forget(self, poll: bytes) -> None:
        self._votes.pop(poll, None)
        self._questions.pop(poll, None)

    async def _repeat(self) -> None:
        while True:
            await self._channel.clock.sleep(self._channel.again)
            now = instant(self._channel.clock)
            for poll, vote in [*self._votes.items()]:
                asked = self._questions[poll].value
                if asked.deadline > now:
                    await self._sending[asked.moderator].send(vote_key(vote.value), vote.to_bytes())
            # An outcome may be late, but not indefinitely.
            for poll in [poll for poll, question in self._questions.items() if question.value.until < now]:
                self._forget(poll)


# --- by hand --------------------------------------------------------------------------------------------------------


async def open_questions(
    fabric: Fabric, moderator: Principal, voter: Principal, clock: Clock
) -> tuple[SignedValue[PollQuestion], ...]:
    """Return a moderator's open questions to a principal, by deadline. Raises errors of `Fabric.state`."""
    found = []
    await fabric.declare(polls_topic(moderator), QOS)
    for sample in await fabric.state(polls_topic(moderator)):
        # Anybody can write to the topic.
        with suppress(MalformedError, RefusedError):
            if not is_outcome(sample.key):
                found.append(said_by(moderator, sample, PollQuestion))
    now = instant(clock)
    mine = (each for each in found if voter in each.value.voters and each.value.deadline > now)
    return tuple(sorted(mine, key=lambda each: (each.value.deadline, each.digest)))


async def send_vote(
    fabric: Fabric, question: SignedValue[PollQuestion], key: SigningKey, ballot: Ballot
) -> SignedValue[Vote]:
    """Send a vote, which takes the place of those that the fabric has of the voter. It is kept there when this returns.

    Raises what `cast`, `Fabric.state` and `Publisher.publish` raise.
    """
    earlier = await own_votes(fabric, question, key.principal)
    vote = cast_again(question, key, ballot, earlier)
    async with await fabric.publisher(votes_topic(question.value.moderator)) as publisher:
        await publisher.publish(vote.to_bytes(), key=vote_key(vote.value))
    return vote


async def own_votes(
    fabric: Fabric, question: SignedValue[PollQuestion], voter: Principal
) -> tuple[SignedValue[Vote], ...]:
    """Return a principal's votes on a question from a fabric. Raises errors of `Fabric.state`."""
    topic, found = votes_topic(question.value.moderator), []
    await fabric.declare(topic, QOS)
    for sample in await fabric.state(topic):
        # Anybody can write to the topic.
        with suppress(MalformedError, RefusedError):
            found.append(said_by(voter, sample, Vote))
    return tuple(vote for vote in found if vote.value.poll == question.digest)


def said_by(who: Principal, sample: Sample, kind: type[V]) -> SignedValue[V]:
    """Return a verified statement. Raises `RefusedError` (`poll.not-moderator`), and as `read_signed`."""
    signed = read_signed(parse_canonical(sample.data), kind).verify()
    if signed.value.signer != who:
        raise RefusedError("poll.not-moderator", "somebody else has signed this", hint="trust only moderators you know")
    return signed
