"""The two topics of a moderator's polls, and how both sides use them.

| topic | keys | what is in it |
|---|---|---|
| `polls-<moderator>` | the poll, or the poll and `-outcome` | signed questions and outcomes |
| `votes-<moderator>` | a digest of the poll, the voter and the number | signed votes |

Both are reliable and keep the last sample of each key, so that who comes later finds what is open. Nothing rests on
that: whatever is still open is sent again and again, and what arrives is verified, whoever wrote it and how often.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from typing import Final, TypeAlias

from penstock.authority.limits import POLL_LONGEST
from penstock.errors import PenstockError
from penstock.fabric import Clock, Durability, Fabric, Publisher, Qos, Reliability, Sample
from penstock.fabric.limits import FABRIC_KEYS
from penstock.model.principals import Principal
from penstock.moderator.polls import Vote
from penstock.trust.caches import Recent

QOS: Final = Qos(
    durability=Durability.TRANSIENT,
    history=1,
    reliability=Reliability.RELIABLE,
    lifespan=float(POLL_LONGEST),
)
_OUTCOME: Final = "-outcome"
_ENDING: Final = 0.5
#: seconds after which what is open is sent again
AGAIN: Final = 5.0

Note: TypeAlias = Callable[[PenstockError], None]
"""Receives messages that could not be sent, and those that arrived and do not count."""

Take: TypeAlias = Callable[[Sample], Awaitable[None]]


def quiet(_error: PenstockError) -> None:
    """Tell nobody."""


def polls_topic(moderator: Principal) -> str:
    """Return where a moderator asks."""
    return f"polls-{moderator.digest.hex()}"


def votes_topic(moderator: Principal) -> str:
    """Return where a moderator is answered."""
    return f"votes-{moderator.digest.hex()}"


def outcome_key(poll: bytes) -> str:
    """Return the key of a poll's outcome; its question has the poll itself."""
    return f"{poll.hex()}{_OUTCOME}"


def is_outcome(key: str) -> bool:
    """Say whether a key is that of an outcome."""
    return key.endswith(_OUTCOME)


def vote_key(vote: Vote) -> str:
    """Return the key of a vote: one of another number does not take its place, whichever comes first."""
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
    """What polls travel over: a fabric, its clock, how often to send again, and who hears of what does not count."""

    fabric: Fabric
    clock: Clock
    again: float = AGAIN
    note: Note = quiet


class Sending:
    """Writes to one topic; a writer that failed is made again."""

    def __init__(self, fabric: Fabric, topic: str, note: Note) -> None:
        self._fabric = fabric
        self._topic = topic
        self._note = note
        self._publisher: Publisher | None = None

    async def send(self, key: str, data: bytes) -> bool:
        """Write a sample, and say whether that was acknowledged; what fails is noted."""
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
    """Read a topic until cancelled; reconnect after a disconnection.

    What `take` refuses is noted. What it has taken it does not get again, however often it comes.
    """
    taken: Recent[bytes, bool] = Recent(FABRIC_KEYS)

    async def heed(sample: Sample) -> None:
        octets = sha256(sample.data).digest()
        if taken.get(octets):
            return
        try:
            await take(sample)
        except PenstockError as error:
            note(error)
        else:
            taken.put(octets, value=True)

    while True:
        try:
            await fabric.declare(topic, QOS)
            async with await fabric.subscribe(topic) as samples:
                async for sample in samples:
                    await heed(sample)
        except PenstockError as error:
            note(error)
        await asyncio.sleep(pause)
