"""A moderator that asks over a fabric, collects votes, and brings polls to their end.

    async with PollModerator(polls, PollChannel(fabric, clock)) as asking:
        poll = await asking.ask("m", deadline)
        ended = await asking.until_ended(poll.id)

Open questions are sent again and again until their deadline. All that counts is in the ledger of the polls, so another
process goes on where this one was ended, with the polls that it finds open.
"""

import asyncio
from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import ParamSpec, Self, TypeVar

from penstock.authority.polls import Polls
from penstock.authority.polls_records import Kept
from penstock.authority.polls_topics import (
    PollChannel,
    Sending,
    end,
    instant,
    listen,
    outcome_key,
    polls_topic,
    votes_topic,
)
from penstock.codec.sexp import parse_canonical
from penstock.errors import PenstockError
from penstock.fabric import Sample
from penstock.fabric.tasks import keep_running
from penstock.moderator.polls import Poll, Vote
from penstock.trust.signed import read_signed

P = ParamSpec("P")
T = TypeVar("T")


class PollModerator:
    """The polls of a rule book on a fabric; runs while it is entered. `heard` receives polls that got a vote."""

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
        """Ask those affected about a rule that was rejected. Raises what `Polls.ask` raises."""
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
        """Send what is open, and what has ended lately, once: the topic keeps that."""
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
        vote = read_signed(parse_canonical(sample.data), Vote)
        if vote.value.poll in self._told:
            return
        known = self._polls.kept.get(vote.value.poll)
        poll = await self._do(self._polls.hear, vote, instant(self._channel.clock))
        if self._heard is not None and (known is None or known.poll != poll):
            self._heard(poll)

    async def _do(self, what: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        """Let a thread do what waits for a disk; one at a time."""
        async with self._alone:
            return await asyncio.to_thread(what, *arguments, **named)
