"""The ways to a broker: over TLS at an address, or across NATS servers by its principal.

nats-py is imported when the second way is taken, and not before: it is an extra.
"""

import asyncio
import secrets
from dataclasses import dataclass, replace
from typing import Final, Protocol
from urllib.parse import urlsplit

from penstock.broker.limits import BrokerLimits
from penstock.broker.wire.link import Endpoint, Link
from penstock.broker.wire.link import connect as connect_tls
from penstock.crypto.keys import RandomBytes, new_key
from penstock.errors import FailedError, MalformedError, PenstockError
from penstock.fabric.nats_login import AddressError, NatsLogin, SecretError
from penstock.fabric.nats_login import address as nats_address
from penstock.model.names import NetworkName
from penstock.model.principals import Principal

# ----------------------------------------------------------------------------------------------------------------------
# How long to wait between two calls of a broker that does not answer.
#
# Pauses grow, so that a broker that is away costs little. They stay short for some time after the broker was connected:
# it may be restarting, and everything that is published meanwhile is lost. They vary, so that not all peers call a
# broker that comes back at the same moment.


_FIRST: Final = 0.1
_LONGEST: Final = 5.0
#: the longest pause while a broker may be starting again, and for how many seconds that is likely
_SHORT: Final = 0.5
_LIKELY: Final = 300.0
#: seconds until a broker that is probed must have answered
_PATIENCE: Final = 3.0


class Pauses:
    """See the module. `now` is any clock that does not go back, in seconds."""

    def __init__(self, random: RandomBytes) -> None:
        self._random = random
        self._pause = _FIRST
        self._was_there = float("-inf")

    def there(self, now: float) -> None:
        """Record that the broker is there, or was until now."""
        self._pause, self._was_there = _FIRST, now

    def next(self, now: float) -> float:
        """Return for how many seconds to wait now."""
        spread = 0.75 + int.from_bytes(self._random(2)) / 0x20000
        pause = self._pause * spread
        self._pause = min(_SHORT if now - self._was_there < _LIKELY else _LONGEST, 2 * self._pause)
        return pause


# ----------------------------------------------------------------------------------------------------------------------
# The ways to a broker: over TLS at an address, or across NATS servers by its principal.


@dataclass(frozen=True, slots=True)
class PeerAddress:
    """The address of another broker. If it names a principal, require that broker identity."""

    host: str
    port: int
    principal: Principal | None = None

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    async def call(self, endpoint: Endpoint) -> Link:
        """Open a link. Raises as `penstock.broker.wire.link.connect`."""
        return await connect_tls(endpoint, self.host, self.port, self.principal)

    async def probe(self, network: NetworkName, limits: BrokerLimits) -> PenstockError | None:
        """Return why a broker of a network cannot be reached; None if it answers.

        The whole handshake is done, with a key of the moment: a broker logs connections that end within it.
        """
        endpoint = Endpoint(key=new_key(secrets.token_bytes), network=network, limits=limits)
        try:
            async with asyncio.timeout(_PATIENCE):
                link = await self.call(endpoint)
                await link.close()
        except TimeoutError:
            text = f"cannot connect to {self}: no answer within {_PATIENCE:.0f} s"
            return FailedError("handshake.timeout", text, hint="is the peer a Penstock broker?")
        except PenstockError as error:
            return error
        return None


@dataclass(frozen=True, slots=True)
class NatsAddress:
    """A broker that is reached across NATS servers: its principal gives the subject."""

    login: NatsLogin
    principal: Principal

    def __str__(self) -> str:
        return f"{self.principal.short} across {self.login.servers}"

    async def call(self, endpoint: Endpoint) -> Link:
        """Open a link. Raises as `connect_nats`, and `FailedError` (`fabric.not-installed`)."""
        from penstock.broker.wire.nats_link import connect_nats  # noqa: PLC0415  # see the module

        return await connect_nats(endpoint, self.login, self.principal)


class Address(Protocol):
    """The address of a broker: `PeerAddress`, `NatsAddress`, or that of a simulation."""

    @property
    def principal(self) -> Principal | None:
        """The broker that must be there; None for any."""

    async def call(self, endpoint: Endpoint) -> Link:
        """Open a link. Raises `PenstockError` or `OSError`."""


def address_of(url: str, broker: Principal | None, nats: NatsLogin | None) -> Address:
    """Return the address of a broker from a URL.

    Raises `MalformedError`: `client.url`, `client.no-broker`.
    """
    try:
        parts = urlsplit(url)
        if parts.scheme in ("nats", "tls"):
            return _across_nats(nats_address(url), broker, nats)
        if parts.scheme == "penstock" and parts.hostname and parts.port and parts.path in ("", "/"):
            return PeerAddress(parts.hostname, parts.port, broker)
    except SecretError:
        # An address goes into messages and logs, a password must not.
        raise MalformedError(
            "client.url", "an address holds no user and no password", hint="give a `NatsLogin`, which names files"
        ) from None
    except (ValueError, AddressError):
        pass
    raise MalformedError(
        "client.url",
        f"`{url[:80]}` is not an address of a broker",
        hint="write `penstock://host:port`, or `nats://host:port` for a NATS server",
    )


def _across_nats(url: str, broker: Principal | None, nats: NatsLogin | None) -> NatsAddress:
    if broker is None:
        raise MalformedError(
            "client.no-broker", "across NATS a broker is found by its principal", hint="give it as `broker`"
        )
    login = nats or NatsLogin(())
    return NatsAddress(replace(login, urls=tuple(dict.fromkeys((url, *login.urls)))), broker)
