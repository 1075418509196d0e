"""Hand the domain's validity statements to the network: the service is a client of a broker (paper 5, section 6.3).

It sends each recorded statement when it is new, heartbeats while issued certificates need them, and everything again
when a broker asks. It answers one-time questions from the newest state. When the service stops, its statements end,
and with them the certificates that need them.
"""

import asyncio
import math
from collections.abc import Callable
from datetime import timedelta
from typing import Final, TypeAlias

from penstock.apps.acs.service import DomainService
from penstock.broker.client.client import Client
from penstock.errors import PenstockError, RefusedError
from penstock.trust.statements import OneTimeQuestion

#: seconds after which a lost broker is called again, and between two looks for something to send, at most
_PAUSE: Final = 2.0
_LOOK: Final = 1.0
#: seconds between two heartbeats at least
_QUICKEST: Final = 0.2

_Call: TypeAlias = OneTimeQuestion | bool
"""A question; True to send everything again, False to send what is new."""


class ValidityPublisher:
    """Sends statements until it is cancelled. `connected` makes a client of a broker, with the domain's key."""

    def __init__(
        self, service: DomainService, connected: Callable[[], Client], note: Callable[[PenstockError], None]
    ) -> None:
        self._service = service
        self._connected = connected
        self._note = note
        self._calls: asyncio.Queue[_Call] = asyncio.Queue()
        self._sent: set[bytes] = set()
        self._beaten = -math.inf
        loop = asyncio.get_running_loop()

        def changed() -> None:
            # Changes are made in threads.
            loop.call_soon_threadsafe(self._calls.put_nowait, False)

        service.listeners.append(changed)

    async def run(self) -> None:
        """Connect and send, again and again."""
        while True:
            try:
                async with self._connected() as client:
                    await client.serve_validity(lambda asked: self._calls.put_nowait(True if asked is None else asked))
                    self._forget()
                    while True:
                        pause = await self._send(client)
                        await self._next(client, pause)
            except PenstockError as error:
                self._note(error)
            await asyncio.sleep(_PAUSE)

    async def _next(self, client: Client, pause: float) -> None:
        """Wait for a call, or until something may have to be sent."""
        try:
            async with asyncio.timeout(pause):
                call = await self._calls.get()
        except TimeoutError:
            return
        if call is True:
            self._forget()
        elif isinstance(call, OneTimeQuestion):
            await self._answer(client, call)

    def _forget(self) -> None:
        """Send everything again."""
        self._sent.clear()
        self._beaten = -math.inf

    async def _send(self, client: Client) -> float:
        """Send new statements, and a heartbeat if it is time; return after how many seconds to look again."""
        service, now = self._service, self._service.settings.clock()
        state = await service.do(service.domain.refresh)
        found = [(one.digest, one.to_bytes()) for one in state.statements.values()]
        interval, time = state.interval(), asyncio.get_running_loop().time()
        # A signature may take a token's time: no more heartbeats than two of three may be lost.
        pause = _LOOK if interval is None else max(_QUICKEST, interval.total_seconds() / 3)
        if interval is not None and (
            time - self._beaten >= pause or any(digest not in self._sent for digest, _ in found)
        ):
            period = max(interval, timedelta(seconds=_LOOK))
            beat = await service.do(lambda: state.heartbeat(now, period, service.domain.signer))
            found.append((beat.digest, beat.to_bytes()))
            self._beaten = time
        # A heartbeat confirms the revocations before it, so it is sent after them.
        for digest, data in found:
            if digest not in self._sent:
                await client.evolve(data)
        self._sent = {digest for digest, _ in found}
        return min(pause, _LOOK)

    async def _answer(self, client: Client, question: OneTimeQuestion) -> None:
        service, now = self._service, self._service.settings.clock()

        def answer() -> bytes:
            state = service.domain.refresh()
            return state.answer(question, question.verifier, now, service.domain.signer).to_bytes()

        try:
            await client.evolve(await service.do(answer))
        except RefusedError as error:
            # No answer is an answer: the certificate is not valid without one.
            self._note(error)
