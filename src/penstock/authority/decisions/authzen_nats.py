"""AuthZEN events as plain NATS messages (docs/reference/authzen-over-pubsub.md, section 2.1).

authzen.v1.request.WORD    requests; the reply subject is the inbox of whoever asks
authzen.v1.conformance.ask  for tests: a question that the enforcement point under test is to ask
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Final, Self, TypeAlias

from penstock.authority.decisions.authzen_events import EventHandler, EventMessage
from penstock.errors import FailedError
from penstock.fabric.limits import FABRIC_LIMITS, FabricLimits
from penstock.fabric.nats_login import NatsLogin
from penstock.fabric.qos import Priority
from penstock.policy.syntax.json.requests import Json

try:
    from nats.aio.msg import Msg

    from penstock.fabric.nats_api import TRANSIENT
    from penstock.fabric.nats_link import Listening, NatsLink, checked
except ImportError as missing:
    raise FailedError(
        "fabric.not-installed", "events over NATS need nats-py", hint="pip install 'penstock[nats]'"
    ) from missing

_VERSION: Final = "v1"
PREFIX: Final = f"authzen.{_VERSION}"
CONFORMANCE: Final = f"{PREFIX}.conformance.ask"
_INBOX: Final = "_INBOX."
_Hear: TypeAlias = Callable[[Msg], Awaitable[None]]
Conclude: TypeAlias = Callable[[Mapping[str, Json]], Awaitable[Mapping[str, Json]]]
"""Asks a question, and returns `decision` and, without one, `refused`."""


class NatsEvents:
    """Requests and answers as NATS messages. Raises `MalformedError` (`fabric.bad-address`)."""

    def __init__(self, login: NatsLogin | str, *, timeout: float = 5.0, limits: FabricLimits = FABRIC_LIMITS) -> None:
        self._limits = limits
        self._link = NatsLink(checked(login), prefix=PREFIX, domain="", timeout=timeout, patience=timeout)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._link.close()

    @asynccontextmanager
    async def listen(self, heard: EventHandler) -> AsyncIterator[None]:
        """Receive all requests while the context lasts. Raises as `NatsLink.listen`."""

        async def hear(message: Msg) -> None:
            if not message.reply.startswith(_INBOX):
                return  # a stranger must not make this point send to a subject that is not an inbox

            async def reply(answer: EventMessage) -> None:
                client = await self._link.client()
                await client.publish(message.reply, answer.data, headers=dict(answer.headers))

            await heard(_message(message), reply)

        async with self._listening(f"{PREFIX}.request.>", hear):
            yield

    @asynccontextmanager
    async def ask(self, word: str, _request: str, message: EventMessage) -> AsyncIterator[AsyncIterator[EventMessage]]:
        """Send a request, and receive its answers while the context lasts. Raises as `NatsLink.listen`."""
        answers: asyncio.Queue[EventMessage] = asyncio.Queue(self._limits.fabric_pending)
        client = await self._link.client()
        inbox = client.new_inbox()

        async def hear(answer: Msg) -> None:
            if not answers.full():
                answers.put_nowait(_message(answer))

        async with self._listening(inbox, hear):
            await client.publish(f"{PREFIX}.request.{word}", message.data, reply=inbox, headers=dict(message.headers))
            yield _taken(answers)

    @asynccontextmanager
    async def _listening(self, subject: str, hear: _Hear) -> AsyncIterator[None]:
        listening = Listening(subject, hear, priority=Priority.NORMAL, pending=self._limits.fabric_pending)
        await self._link.listen(listening)
        try:
            yield
        finally:
            await self._link.unlisten(listening)

    # --- tests of enforcement points ----------------------------------------------------------------------------

    async def make_ask(self, question: Mapping[str, Json]) -> Json:
        """Let the enforcement point under test ask a question, and return what it concluded; None if it is not JSON.

        Raises `FailedError` (`fabric.unreachable`) if no answer comes.
        """
        client = await self._link.client()
        try:
            answer = await client.request(CONFORMANCE, json.dumps(question).encode(), timeout=self._link.timeout)
        except TRANSIENT as error:
            raise self._link.unreachable(error) from error
        try:
            found: Json = json.loads(answer.data)
        except (ValueError, RecursionError):
            return None
        return found

    @asynccontextmanager
    async def be_asked(self, conclude: Conclude) -> AsyncIterator[None]:
        """Ask what a test wants to be asked, while the context lasts."""

        async def hear(message: Msg) -> None:
            found = await conclude(json.loads(message.data))
            await message.respond(json.dumps(found).encode())

        async with self._listening(CONFORMANCE, hear):
            yield


def _message(message: Msg) -> EventMessage:
    return EventMessage(dict(message.headers or {}), message.data)


async def _taken(answers: "asyncio.Queue[EventMessage]") -> AsyncIterator[EventMessage]:
    while True:
        yield await answers.get()
