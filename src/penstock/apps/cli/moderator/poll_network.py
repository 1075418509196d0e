"""Polls over NATS: a moderator asks and waits, and publishers answer. Needs the extra `nats`."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Final

from penstock.apps.cli.moderator.poll_output import poll_name, show_question, show_votes, vote_text
from penstock.apps.cli.moderator.sources import Cast
from penstock.apps.cli.shared.broker_client import talk, until
from penstock.apps.cli.shared.session import CommandSession, Warned, warn
from penstock.apps.cli.shared.terminal import show
from penstock.authority.polls import Kept, Polls
from penstock.authority.polls_network import (
    Answering,
    AutomaticVoter,
    Ended,
    Policy,
    PollChannel,
    PollModerator,
    open_questions,
    own_votes,
    send_vote,
)
from penstock.crypto import SigningKey
from penstock.errors import PenstockError
from penstock.fabric.nats import NatsFabric
from penstock.fabric.nats_login import NatsLogin
from penstock.model.principals import Principal
from penstock.moderator.polls import Ballot, Poll, PollQuestion, Vote
from penstock.trust.signed import SignedValue

#: the prefix of subjects
PREFIX: Final = "penstockpolls"
#: seconds after which open questions are sent again
AGAIN: Final = 2.0


class SessionClock:
    """A clock that starts at the time of the command."""

    def __init__(self, session: CommandSession) -> None:
        self._begun = session.now.timestamp()
        self._started = time.monotonic()

    def now(self) -> float:
        """Return the seconds since 1970."""
        return self._begun + time.monotonic() - self._started

    def steady(self) -> float:
        """Return the seconds of a clock that nobody sets."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await asyncio.sleep(seconds)


class Network:
    """The NATS servers that carry polls, for one command. All methods raise what `NatsFabric` raises."""

    def __init__(self, login: NatsLogin, session: CommandSession, cast: Cast) -> None:
        self._login = login
        self._clock = SessionClock(session)
        self._cast = cast

    def ask_and_wait(
        self, polls: Polls, asked: tuple[str, datetime] | None, on_poll: Callable[[Poll], None]
    ) -> tuple[Kept, ...]:
        """Ask about a rule, or continue open polls, and wait until all have ended or the command is stopped.

        `on_poll` gets the new poll. Raises what `Polls.ask` raises.
        """

        async def whole(stop: asyncio.Event) -> tuple[Kept, ...]:
            async with self._connected() as fabric, self._asking(polls, fabric, on_poll) as asking:
                if asked is not None:
                    poll = await asking.ask(*asked)
                    on_poll(poll)
                    waiting = [poll.id]
                else:
                    waiting = [poll_id for poll_id, kept in polls.kept.items() if kept.pending]
                for poll_id in waiting:
                    await until(stop, asking.until_ended(poll_id))
            return tuple(polls.kept[poll_id] for poll_id in waiting)

        return talk(whole)

    def _asking(self, polls: Polls, fabric: NatsFabric, on_poll: Callable[[Poll], None]) -> PollModerator:
        return PollModerator(polls, self._channel(fabric), on_poll)

    def _channel(self, fabric: NatsFabric) -> PollChannel:
        return PollChannel(fabric, self._clock, AGAIN, _note)

    def questions(self, moderator: Principal, voter: Principal) -> tuple[SignedValue[PollQuestion], ...]:
        """Return the open questions of a moderator to a voter."""

        async def whole(_: asyncio.Event) -> tuple[SignedValue[PollQuestion], ...]:
            async with self._connected() as fabric:
                return await open_questions(fabric, moderator, voter, self._clock)

        return talk(whole)

    def send(self, question: SignedValue[PollQuestion], key: SigningKey, ballot: Ballot) -> SignedValue[Vote]:
        """Send a vote. Raises what `send_vote` raises."""

        async def whole(_: asyncio.Event) -> SignedValue[Vote]:
            async with self._connected() as fabric:
                return await send_vote(fabric, question, key, ballot)

        return talk(whole)

    def own_votes(self, question: SignedValue[PollQuestion], voter: Principal) -> tuple[SignedValue[Vote], ...]:
        """Return a voter's votes on a question that the servers have."""

        async def whole(_: asyncio.Event) -> tuple[SignedValue[Vote], ...]:
            async with self._connected() as fabric:
                return await own_votes(fabric, question, voter)

        return talk(whole)

    def answer_all(self, moderator: Principal, key: SigningKey, policy: Policy) -> None:
        """Answer all questions of a moderator by a policy, until the command is stopped."""

        async def whole(stop: asyncio.Event) -> None:
            voter = AutomaticVoter(key, policy)
            async with (
                self._connected() as fabric,
                Answering(self._channel(fabric), voter, [moderator], asked=self._asked, ended=_ended),
            ):
                await stop.wait()

        talk(whole)

    def _asked(self, question: SignedValue[PollQuestion], vote: SignedValue[Vote] | None) -> None:
        show(show_question(question.digest, question.value, self._cast))
        if vote is not None:
            show([f"  you: {vote_text(vote.value, question.value)}"])

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[NatsFabric]:
        async with await NatsFabric.connect(self._login, prefix=PREFIX, clock=self._clock) as fabric:
            yield fabric


def _note(error: PenstockError) -> None:
    """Warn about a message that does not count, or that could not be sent."""
    warn(Warned(error.code, error.message))


def _ended(what: Ended) -> None:
    chosen = what.outcome.value.chosen
    show([f"poll {poll_name(what.question.digest)} has ended: {chosen or 'nothing was chosen'}"])


def show_progress(poll: Poll, cast: Cast) -> None:
    """Show a new poll, or a poll with a new vote."""
    show(show_votes(poll, cast) if poll.votes else show_question(poll.id, poll.question.value, cast))
