"""The port for topics, which the rest of Penstock uses whatever the fabric is.

    async with EmbeddedFabric() as fabric:
        await fabric.declare("weather", Qos(durability=Durability.TRANSIENT, history=1))
        writer = await fabric.publisher("weather")
        await writer.publish(b"rain", key="London")
        async with await fabric.subscribe("weather") as samples:
            async for message in samples:
                ...

A topic is declared with what it offers (`Qos`), once; a reader may request less. Names of topics are opaque here. A
reader that joins late begins with what the topic keeps. What is dropped because a policy says so is counted in
`TopicSubscription.counts`, never silent.

All times are of the clock that the fabric was given, in seconds since 1970; nothing here reads another.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Self

from penstock.errors import FailedError, MalformedError, RefusedError
from penstock.fabric.envelope import Sample
from penstock.fabric.limits import FABRIC_LIMITS, FabricLimits
from penstock.fabric.qos import Qos
from penstock.fabric.reader import Callback, DeadlineMissed, TopicSubscription
from penstock.fabric.writer import Publisher

_NAME: Final = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)

Handler = Callable[[Sample], Awaitable[bytes]]


class Service(ABC):
    """Answers requests on a topic until it is closed."""

    @abstractmethod
    async def close(self) -> None:
        """Answer no more."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class Fabric(ABC):
    """Topics with quality of service. Adapters inherit `penstock.testing.fabric_suite.FabricSuite`."""

    #: by policy, in a few words, how this adapter does it; docs/reference/fabric.md shows it
    MAPPING: Mapping[str, str]

    @abstractmethod
    async def declare(self, topic: str, qos: Qos) -> None:
        """Make a topic, or confirm that it is as said.

        Raises `MalformedError` (`fabric.bad-name`), and `RefusedError`: `fabric.topic-differs` when it exists with
        another quality of service, and the code of the policy that this fabric cannot give.
        """

    @abstractmethod
    async def describe(self, topic: str) -> Qos:
        """Return the policies that a topic offers. Raises `RefusedError` (`fabric.unknown-topic`)."""

    @abstractmethod
    async def remove(self, topic: str) -> None:
        """Remove a topic and all that it keeps. Raises `RefusedError` (`fabric.unknown-topic`)."""

    @abstractmethod
    async def publisher(self, topic: str, *, strength: int = 0) -> Publisher:
        """Return a writer of a topic.

        Where ownership is exclusive the writer claims the topic; `strength` decides between two that want it. Raises
        `RefusedError`: `fabric.unknown-topic`, `fabric.not-owner`.
        """

    @abstractmethod
    async def subscribe(
        self,
        topic: str,
        requested: Qos | None = None,
        *,
        callback: Callback | None = None,
        on_deadline: DeadlineMissed | None = None,
    ) -> TopicSubscription:
        """Read a topic: iterate over the result, or pass a callback.

        Without a request the reader takes what the topic offers. `on_deadline` is called with a key for which no sample
        came in time. Raises `RefusedError`: `fabric.unknown-topic`, or the code of the policy that is not offered.
        """

    @abstractmethod
    async def state(self, topic: str, key: str | None = None) -> tuple[Sample, ...]:
        """Return the samples that a topic keeps now, oldest first, of one key or of all. Raises as `subscribe`."""

    @abstractmethod
    async def serve(self, topic: str, handler: Handler) -> Service:
        """Answer requests on a topic; of several that serve, one gets each request. Raises as `subscribe`."""

    @abstractmethod
    async def request(
        self, topic: str, data: bytes, *, timeout: float, key: str = "", headers: Mapping[str, str] | None = None
    ) -> bytes:
        """Ask on a topic and return the answer. A request is sent once; its answer acknowledges it.

        Waits no longer than the topic's lifespan. Raises `FailedError`: `fabric.no-responder`, `fabric.no-reply` when
        none came in time, `fabric.handler-failed`; and as `Publisher.publish` and `subscribe`.
        """

    @abstractmethod
    async def close(self) -> None:
        """End all that was opened here."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def check_name(topic: str, limits: FabricLimits = FABRIC_LIMITS) -> None:
    """Check the name of a topic. Raises `MalformedError` (`fabric.bad-name`)."""
    if len(topic) > limits.fabric_name_length or not _NAME.fullmatch(topic):
        raise MalformedError(
            "fabric.bad-name",
            f"`{topic[:40]}` is not a topic name",
            hint=f"1 to {limits.fabric_name_length} letters, digits, `-` and `_`",
        )


def unknown(topic: str) -> RefusedError:
    """Return the error for a topic that nobody declared."""
    return RefusedError("fabric.unknown-topic", f"there is no topic `{topic}`", hint="declare it first", topic=topic)


def differs(topic: str) -> RefusedError:
    """Return the error for a topic that is declared twice, and not the same."""
    return RefusedError(
        "fabric.topic-differs",
        f"topic `{topic}` exists with another quality of service",
        hint="remove it first, or declare it as it is",
        topic=topic,
    )


async def answer(topic: str, handler: Handler, sample: Sample) -> bytes:
    """Return a handler's answer. Raises `FailedError` (`fabric.handler-failed`) without details."""
    try:
        return await handler(sample)
    except Exception as error:
        raise handler_failed(topic) from error


def handler_failed(topic: str) -> FailedError:
    """Return the error for a request whose handler raised: details stay with who serves."""
    return FailedError("fabric.handler-failed", f"who serves `{topic}` failed", hint="its log says why", topic=topic)


def no_responder(topic: str) -> FailedError:
    """Return the error for a request that nobody serves."""
    return FailedError("fabric.no-responder", f"nobody serves `{topic}`", hint="try again later", topic=topic)


def no_reply(topic: str) -> FailedError:
    """Return the error for a request that was not answered in time."""
    return FailedError(
        "fabric.no-reply", f"no answer on `{topic}` in time", hint="it may have been carried out or not", topic=topic
    )
