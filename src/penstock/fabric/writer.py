"""The writing side of quality of service, the same for every adapter: stamps, bounds, and who owns a topic.

Where ownership is exclusive one writer holds a claim. A claim has an epoch that only grows; samples carry it, so that
readers see who wrote out of turn. It lasts for a lease, renewed by publishing. A stronger writer takes a topic over at
once, an equal one when the lease has run out or the owner has closed.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Self

from penstock.errors import RefusedError
from penstock.fabric.clock import Clock
from penstock.fabric.envelope import MICROSECONDS, Sample, check
from penstock.fabric.limits import FABRIC_LIMITS, FabricLimits

LEASE: Final = 10.0  # seconds


@dataclass(frozen=True, slots=True)
class TopicOwnership:
    """The owner of a topic, its strength, its epoch, and the end of its lease."""

    writer: bytes
    strength: int
    epoch: int
    until: float

    def as_dict(self) -> dict[str, object]:
        """Return the claim as plain data."""
        return {"writer": self.writer.hex(), "strength": self.strength, "epoch": self.epoch, "until": self.until}

    @classmethod
    def from_dict(cls, data: Any) -> "TopicOwnership":
        """Read what `as_dict` wrote. Raises `ValueError`, `TypeError` or `LookupError` for anything else."""
        return cls(bytes.fromhex(data["writer"]), int(data["strength"]), int(data["epoch"]), float(data["until"]))


def contend(
    current: TopicOwnership | None, writer: bytes, strength: int, now: float, *, epoch: int = 0
) -> TopicOwnership:
    """Return the claim of a writer that wants to own a topic now; `epoch` is the highest that the topic has seen.

    Raises `RefusedError` (`fabric.not-owner`).
    """
    if current is not None and current.writer == writer:
        return replace(current, until=now + LEASE)
    if current is not None and current.until > now and current.strength >= strength:
        raise not_owner()
    return TopicOwnership(writer, strength, max(epoch, 0 if current is None else current.epoch) + 1, now + LEASE)


def not_owner() -> RefusedError:
    """Return the error for a writer of a topic that somebody else owns."""
    return RefusedError(
        "fabric.not-owner",
        "another writer owns the topic",
        hint="wait until it closes or its lease runs out, or claim the topic with a greater strength",
    )


def full(topic: str) -> RefusedError:
    """Return the error for a topic that keeps all, and has no room."""
    return RefusedError(
        "fabric.full",
        f"topic `{topic}` keeps as much as it may",
        hint="keep fewer samples a key, give them a lifespan, or remove the topic",
        topic=topic,
    )


class Publisher(ABC):
    """Writes samples to one topic, in the order of its calls, each with the time of its source."""

    def __init__(self, topic: str, writer: bytes, clock: Clock, limits: FabricLimits = FABRIC_LIMITS) -> None:
        self.topic = topic
        self._writer = writer
        self._clock = clock
        self._limits = limits
        self._time = 0
        self._sequence = 0
        self._closed = False

    async def publish(self, data: bytes, *, key: str = "", headers: Mapping[str, str] | None = None) -> None:
        """Write a sample. Where the topic is reliable it is acknowledged when this returns.

        Raises `LimitError` (`fabric.too-large`), `MalformedError` (`fabric.bad-key`, `fabric.bad-header`),
        `RefusedError` (`fabric.not-owner`, `fabric.full`, `fabric.unknown-topic`, `fabric.closed`), and `FailedError`
        (`fabric.unreachable`) when nothing acknowledges it: then it may have been stored or not.
        """
        if self._closed:
            raise closed()
        check(data, key, headers or {}, self._limits)
        self._sequence += 1
        # A clock may stand still or go back; the samples of a writer never do.
        self._time = max(self._time + 1, round(self._clock.now() * MICROSECONDS))
        await self._send(Sample(data, key, dict(headers or {}), self._time, self._writer, self._sequence))

    @abstractmethod
    async def _send(self, sample: Sample) -> None:
        """Bring a sample to where it is kept or read; put the epoch in where ownership is exclusive."""

    async def close(self) -> None:
        """Write no more, and give the topic up where this writer owned it."""
        if not self._closed:
            self._closed = True
            await self._release()

    @abstractmethod
    async def _release(self) -> None:
        """Give up a claim, if there is one."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def closed() -> RefusedError:
    """Return the error for using a closed object."""
    return RefusedError("fabric.closed", "the fabric, or this part of it, was closed", hint="open it again")
