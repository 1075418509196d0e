"""Polls over a fabric: the two topics of a moderator's polls, and how moderator and publishers use them.

| topic | keys | content |
|---|---|---|
| `polls-<moderator>` | the poll, or the poll and `-outcome` | signed questions and outcomes |
| `votes-<moderator>` | a digest of the poll, the voter and the number | signed votes |

Both are reliable and keep the last sample of each key, so that late readers find the open polls. Correctness does not
depend on that: open questions and votes are sent repeatedly, and everything that arrives is verified.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from hashlib import sha256
from typing import Final, ParamSpec, Self, TypeAlias, TypeVar

from penstock.authority.limits import POLL_LONGEST
from penstock.authority.polls import Kept, Polls
from penstock.crypto import SigningKey
from penstock.errors import MalformedError, PenstockError, RefusedError
from penstock.fabric import Clock, Durability, Fabric, Publisher, Qos, Reliability, Sample
from penstock.fabric.limits import FABRIC_KEYS
from penstock.fabric.tasks import keep_running
from penstock.model.principals import Principal
from penstock.moderator.polls import (
    Ballot,
    Poll,
    PollOutcome,
    PollQuestion,
    Vote,
    VoteTally,
    cast_again,
    verify_outcome,
)
from penstock.trust.caches import Recent
from penstock.trust.signed import Claim, SignedValue, parse_signed

QOS: Final = Qos(
    durability=Durability.TRANSIENT,
    history=1,
    reliability=Reliability.RELIABLE,
    lifespan=float(POLL_LONGEST),
)
_OUTCOME: Final = "-outcome"
_ENDING: Final = 0.5
#: seconds after which open questions and votes are sent again
AGAIN: Final = 5.0

Note: TypeAlias = Callable[[PenstockError], None]
"""Receives errors: messages that could not be sent, and received messages that were rejected."""

Take: TypeAlias = Callable[[Sample], Awaitable[None]]


def quiet(_error: PenstockError) -> None:
    """Ignore the error."""


def polls_topic(moderator: Principal) -> str:
    """Return the topic of a moderator's questions and outcomes."""
    return f"polls-{moderator.digest.hex()}"


def votes_topic(moderator: Principal) -> str:
    """Return the topic of the votes for a moderator."""
    return f"votes-{moderator.digest.hex()}"


def outcome_key(poll: bytes) -> str:
    """Return the key of a poll's outcome. The key of its question is the poll's id."""
    return f"{poll.hex()}{_OUTCOME}"


def is_outcome(key: str) -> bool:
    """Return whether a key belongs to an outcome."""
    return key.endswith(_OUTCOME)


def vote_key(vote: Vote) -> str:
    """Return the key of a vote. A vote with another number does not replace it, whichever comes first."""
    return sha256(vote.poll + vote.voter.digest + vote.number.to_bytes(4)).hexdigest()


def instant(clock: Clock) -> datetime:
    """Return the current time of a clock."""
    return datetime.fromtimestamp(clock.now(), UTC)


async def end(*tasks: asyncio.Task[None]) -> None:
    """Cancel tasks, even if their awaited calls suppress the cancellation (`asyncio.wait_for`, up to 3.11)."""
    while left := [task for task in tasks if not task.done()]:
        for task in left:
            task.cancel()
        await asyncio.wait(left, timeout=_ENDING)


@dataclass(frozen=True, slots=True)
class PollChannel:
    """A fabric for polls, its clock, how often to send again, and the receiver of errors."""

    fabric: Fabric
    clock: Clock
    again: float = AGAIN
    note: Note = quiet


class Sending:
    """Writes to one topic, and replaces a writer that failed."""

    def __init__(self, fabric: Fabric, topic: str, note: Note) -> None:
        self._fabric = fabric
        self._topic = topic
        self._note = note
        self._publisher: Publisher | None = None

    async def send(self, key: str, data: bytes) -> bool:
        """Write a sample, and return whether it was acknowledged. Errors are passed to the receiver of errors."""
        try:
            if self._publisher is None:
                await self._fabric.declare(self._topic, QOS)
                self._publisher = await self._fabric.publisher(self._topic)
            await self._publisher.publish(data, key=key)
        except PenstockError as error:
            self._publisher = None
            self._note(error)
            return False
        return True


async def listen(fabric: Fabric, topic: str, take: Take, note: Note, pause: float = AGAIN) -> None:
    """Read a topic until cancelled. Reconnect after a disconnection.

    Samples that `take` refuses are passed to the receiver of errors. Samples that it accepted are not passed to it
    again.
    """
    taken: Recent[bytes, bool] = Recent(FABRIC_KEYS)

    async def heed(sample: Sample) -> None:
        key = sha256(sample.data).digest()
        if taken.get(key):
            return
        try:
            await take(sample)
        except PenstockError as error:
            note(error)
        else:
            taken.put(key, value=True)

    while True:
        try:
            await fabric.declare(topic, QOS)
            async with await fabric.subscribe(topic) as samples:
                async for sample in samples:
                    await heed(sample)
        except PenstockError as error:
            note(error)
        await asyncio.sleep(pause)


# ----------------------------------------------------------------------------------------------------------------------
# The moderator: ask over a fabric, collect votes, and end polls.
#
# Open questions are sent repeatedly until their deadline. The whole state is in the ledger of the polls, so another
# process can continue with the open polls.

P = ParamSpec("P")
T = TypeVar("T")


class PollModerator:
    """The polls of a rule book on a fabric. It runs while it is entered. `heard` receives polls that got a vote.

    async with PollModerator(polls, PollChannel(fabric, clock)) as asking:
        poll = await asking.ask("m", deadline)
        ended = await asking.until_ended(poll.id)
    """

    def __init__(self, polls: Polls, channel: PollChannel, heard: Callable[[Poll], None] | None = None) -> None:
        self._polls = polls
        self._channel = channel
        self._heard = heard
        self._sending = Sending(channel.fabric, polls_topic(polls.moderator.principal), channel.note)
        self._alone = asyncio.Lock()
        self._ended: asyncio.Condition = asyncio.Condition()
        self._told: set[bytes] = set()
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        topic = votes_topic(self._polls.moderator.principal)
        self._tasks = [
            keep_running("reading votes", partial(listen, self._channel.fabric, topic, self._take, self._channel.note)),
            keep_running("repeating polls", self._repeat),
        ]
        return self

    async def __aexit__(self, *_: object) -> None:
        await end(*self._tasks)

    async def ask(self, rule_id: str, deadline: datetime) -> Poll:
        """Start a poll about a rejected rule. Raises as `Polls.ask`."""
        poll = await self._do(self._polls.ask, rule_id, instant(self._channel.clock), deadline)
        await self._send()
        return poll

    async def until_ended(self, poll_id: bytes) -> Kept:
        """Wait until a poll has ended."""
        async with self._ended:
            await self._ended.wait_for(lambda: not self._polls.kept[poll_id].pending)
        return self._polls.kept[poll_id]

    async def _repeat(self) -> None:
        while True:
            try:
                await self._do(self._polls.advance, instant(self._channel.clock))
            except PenstockError as error:
                self._channel.note(error)
            await self._send()
            async with self._ended:
                self._ended.notify_all()
            await self._channel.clock.sleep(self._pause())

    def _pause(self) -> float:
        """Return how long to sleep, at most until the next deadline."""
        deadlines = [kept.poll.question.value.deadline for kept in self._polls.kept.values() if kept.open]
        now = instant(self._channel.clock)
        return max(0.0, min([self._channel.again, *((deadline - now).total_seconds() for deadline in deadlines)]))

    async def _send(self) -> None:
        """Send open questions, and each new outcome once: the topic keeps it."""
        now = instant(self._channel.clock)
        for poll in [kept.poll for kept in self._polls.kept.values()]:
            if poll.outcome is None:
                await self._sending.send(poll.id.hex(), poll.question.to_bytes())
            elif poll.id not in self._told and (
                poll.question.value.until < now
                or await self._sending.send(outcome_key(poll.id), poll.outcome.to_bytes())
            ):
                self._told.add(poll.id)

    async def _take(self, sample: Sample) -> None:
        vote = parse_signed(sample.data, Vote)
        if vote.value.poll in self._told:
            return
        known = self._polls.kept.get(vote.value.poll)
        poll = await self._do(self._polls.hear, vote, instant(self._channel.clock))
        if self._heard is not None and (known is None or known.poll != poll):
            self._heard(poll)

    async def _do(self, what: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        """Run a call that waits for a disk in a thread, one at a time."""
        async with self._alone:
            return await asyncio.to_thread(what, *arguments, **named)


# ----------------------------------------------------------------------------------------------------------------------
# Publishers: read questions from a fabric, and answer them by a policy or by hand.
#
# A policy answers without human help. It can agree to relax a rule only by naming the consent. `tightenings` never
# does: whatever a moderator claims, its votes never relax a rule of the voter.
#
# The voter's earlier votes are read from the topic of votes, also after a restart: a new vote must have the next
# number, because of two votes with one number neither counts. A policy does not replace votes that were cast by hand.

V = TypeVar("V", bound=Claim)


Policy: TypeAlias = Callable[[PollQuestion, Principal], Ballot | None]
"""Returns the answer to a question, or None to leave it to a person."""


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
    """A publisher on a fabric. While it is entered, it answers the questions of known moderators.

    Votes are sent repeatedly until the deadline, or until the outcome is known.
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
        self._tasks: list[asyncio.Task[None]] = []

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
    """Send a vote, which replaces the voter's earlier votes. The fabric has stored it when this returns.

    Raises as `cast`, `Fabric.state` and `Publisher.publish`.
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
    signed = parse_signed(sample.data, kind).verify()
    if signed.value.signer != who:
        raise RefusedError(
            "poll.not-moderator", "another principal has signed this", hint="trust only moderators you know"
        )
    return signed
