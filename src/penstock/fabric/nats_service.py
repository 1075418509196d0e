"""Who answers requests over NATS: each answer begins with an octet that says whether there is one."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from nats.aio.msg import Msg

from penstock.errors import FailedError, MalformedError
from penstock.fabric.clock import Clock
from penstock.fabric.envelope import MICROSECONDS, decode
from penstock.fabric.nats_api import TRANSIENT
from penstock.fabric.nats_link import Listening, NatsLink
from penstock.fabric.port import Handler, Service, answer, handler_failed
from penstock.fabric.qos import Qos
from penstock.fabric.tasks import in_background
from penstock.model.limits import Limits

_ANSWER, _FAILED = b"\0", b"\1"
_INBOX: Final = "_INBOX."


class NatsService(Service):
    """Answers requests on a topic; `over` is told when it is closed."""

    def __init__(  # noqa: PLR0913  # a topic, who answers, and what it goes by
        self,
        link: NatsLink,
        topic: str,
        qos: Qos,
        handler: Handler,
        *,
        clock: Clock,
        limits: Limits,
        over: Callable[["NatsService"], None],
    ) -> None:
        self._link = link
        self._topic = topic
        self._qos = qos
        self._handler = handler
        self._clock = clock
        self._limits = limits
        self._over = over
        subject = f"{link.prefix}.ask.{topic}"
        self.listening = Listening(
            subject, self.hear, priority=qos.priority, queue="serve", pending=limits.fabric_pending
        )
        self._running: set[asyncio.Task[None]] = set()

    async def hear(self, message: Msg) -> None:
        """Answer a request, once not too many others are under way."""
        if not message.reply.startswith(_INBOX):
            return  # nobody makes us send anything to a subject that is not an inbox
        while len(self._running) >= self._limits.fabric_requests:
            await asyncio.wait(self._running, return_when=asyncio.FIRST_COMPLETED)
        task = in_background(f"answering on {self._topic}", self._reply(message))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _reply(self, message: Msg) -> None:
        try:
            sample = decode(message.data)
            if self._clock.now() - sample.time / MICROSECONDS > self._qos.lifespan:
                return  # who asked waits no more
            octets = _ANSWER + await answer(self._topic, self._handler, sample)
        except (MalformedError, FailedError):
            octets = _FAILED
        with suppress(*TRANSIENT):
            await message.respond(octets)

    async def close(self) -> None:
        """Answer nobody any more."""
        self._over(self)
        await self._link.unlisten(self.listening)
        for task in list(self._running):
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)


def answered(topic: str, octets: bytes) -> bytes:
    """Return the answer to a request. Raises `FailedError` (`fabric.handler-failed`)."""
    if octets[:1] != _ANSWER:
        raise handler_failed(topic)
    return octets[1:]
