"""Links between decision and enforcement points, over the links of brokers: TLS 1.3 and a handshake of both.

A message is the bytes of one signed request or answer. Links are opened when they are first used, and kept.
"""

import asyncio
from collections import OrderedDict
from dataclasses import dataclass
from itertools import islice
from typing import Final, Self

from penstock.authority.decisions.links import TakeMessage
from penstock.authority.limits import ANSWER_BYTES
from penstock.broker.limits import BrokerLimits
from penstock.broker.wire.link import Endpoint, Link, Listener, connect, listen
from penstock.codec.wire import Wire, encode
from penstock.crypto import SigningKey
from penstock.errors import MalformedError, PenstockError
from penstock.fabric.tasks import in_background
from penstock.model.names import NetworkName
from penstock.model.principals import Principal

#: the name under which points of one owner shake hands
_NETWORK: Final = "decisions"
#: links that are kept; the one that was not used for longest gives way
_MOST: Final = 256
#: of them to one principal: who names one address after another displaces its own links
_MOST_OF_ONE: Final = 8


@dataclass(frozen=True, eq=False, slots=True)
class _Kept:
    """A link that is open or being opened, and the task that reads from it."""

    ready: "asyncio.Future[Link]"
    task: "asyncio.Task[None]"

    @property
    def usable(self) -> bool:
        if not self.ready.done():
            return not self.task.done()
        return not self.ready.cancelled() and self.ready.exception() is None and self.ready.result().ended is None


class AnswerLinks:
    """Links of one point: `async with AnswerLinks(key, owner, "127.0.0.1", 0) as links`. Without a host it only calls.

    `owner` is the owner of the decisions: points of others are not let in. `shown` is the address for others, if it
    is not where this point listens.
    """

    def __init__(self, key: SigningKey, owner: Principal, host: str = "", port: int = 0, *, shown: str = "") -> None:
        limits = BrokerLimits()
        self._endpoint = Endpoint(key=key, network=NetworkName(owner, _NETWORK), limits=limits)
        self._host, self._port, self._shown = host, port, shown
        self._listener: Listener | None = None
        self._take: TakeMessage | None = None
        self._kept: OrderedDict[tuple[str, Principal], _Kept] = OrderedDict()

    @property
    def address(self) -> str:
        """Where others reach this point; empty if they cannot."""
        if self._listener is None:
            return ""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return self._shown or f"{host}:{self._listener.port}"

    def listen(self, take: TakeMessage) -> None:
        """Pass all messages that come to this receiver."""
        self._take = take

    async def __aenter__(self) -> Self:
        if self._host:
            self._listener = await listen(self._endpoint, self._host, self._port, self._serve)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all links."""
        if self._listener is not None:
            await self._listener.close()
        kept, self._kept = [*self._kept.values()], OrderedDict()
        for one in kept:
            one.task.cancel()
        await asyncio.gather(*(one.task for one in kept), return_exceptions=True)

    def try_send(self, address: str, principal: Principal, data: bytes) -> bool:
        """Send bytes immediately if the link is open, and return whether it was so."""
        place = address, principal
        kept = self._kept.get(place)
        if kept is None or not kept.ready.done() or not kept.usable:
            return False
        self._kept.move_to_end(place)
        try:
            kept.ready.result().post(encode(data), eager=True)
        except PenstockError:
            return False  # it ended by this
        return True

    async def send(self, address: str, principal: Principal, data: bytes) -> None:
        """Send bytes to a principal at an address. Raises `MalformedError` (`pep.address`), and as `connect`."""
        if self.try_send(address, principal, data):
            return
        place = address, principal
        kept = self._kept.get(place)
        if kept is None or not kept.usable:
            host, port = _address(address)
            ready: asyncio.Future[Link] = asyncio.get_running_loop().create_future()
            kept = _Kept(ready, in_background("a link between points", self._run(ready, host, port, principal)))
            self._kept[place] = kept
            own = [one for one in self._kept if one[1] == principal]
            for one in [*own[:-_MOST_OF_ONE], *islice(self._kept, max(0, len(self._kept) - _MOST))]:
                if one in self._kept:
                    self._kept.pop(one).task.cancel()
        self._kept.move_to_end(place)
        link = await asyncio.shield(kept.ready)
        link.post(encode(data), eager=True)

    async def _run(self, ready: "asyncio.Future[Link]", host: str, port: int, principal: Principal) -> None:
        try:
            link = await connect(self._endpoint, host, port, principal)
        except PenstockError as error:
            ready.set_exception(error)
            ready.exception()  # whoever waited may have gone
            return
        except asyncio.CancelledError:
            ready.cancel()
            raise
        ready.set_result(link)
        try:
            await self._serve(link)
        except PenstockError:
            pass  # the next message opens another link
        finally:
            await link.close()

    async def _serve(self, link: Link) -> None:
        def reply(data: bytes) -> None:
            if link.ended is None:
                link.post(encode(data), eager=True)

        def take(message: Wire) -> bool:
            if self._take is not None and isinstance(message, bytes) and len(message) <= ANSWER_BYTES:
                self._take(link.peer.principal, message, reply)
            return True

        while True:
            # A message that arrives alone is handled where it arrives, without waking this task.
            for message in await link.receive(take):
                take(message)


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65_536:
        raise MalformedError("pep.address", f"`{text[:80]}` is not an address", hint="write `host:port`")
    return host.removeprefix("[").removesuffix("]"), int(port)
