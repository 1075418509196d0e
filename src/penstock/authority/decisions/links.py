"""The port for authenticated links between points: for requests point to point, and for answers sent straight back.

`penstock.apps.answer_links` implements it with the links of brokers. A link is to a principal at an address. Whoever is
there must prove that it is this principal before anything is sent.
"""

from collections.abc import Callable
from typing import Protocol, TypeAlias

from penstock.model.principals import Principal

LinkReply: TypeAlias = Callable[[bytes], None]
"""Sends bytes back over the link on which a message came; without effect if the link has ended."""

TakeMessage: TypeAlias = Callable[[Principal, bytes, LinkReply], None]
"""Receives a message with the principal that sent it."""


class PointLinks(Protocol):
    """Links to other points, opened when they are first used."""

    @property
    def address(self) -> str:
        """Where others reach this point: `host:port`; empty if they cannot."""
        ...

    def listen(self, take: TakeMessage) -> None:
        """Pass all messages that come, over links in both directions, to this receiver."""
        ...

    def try_send(self, address: str, principal: Principal, data: bytes) -> bool:
        """Send bytes immediately if the link is open, and return whether it was so."""
        ...

    async def send(self, address: str, principal: Principal, data: bytes) -> None:
        """Send bytes to a principal at an address.

        Raises `FailedError` and `RefusedError` (`link.*`, `handshake.*`) if it is not there.
        """
        ...
