"""The ways to a broker: over TLS at an address, or across NATS servers by its principal.

nats-py is imported when the second way is taken, and not before: it is an extra.
"""

from dataclasses import dataclass
from typing import TypeAlias

from penstock.broker.link import Endpoint, Link
from penstock.broker.link import connect as connect_tls
from penstock.fabric.nats_login import NatsLogin
from penstock.model.principals import Principal


@dataclass(frozen=True, slots=True)
class PeerAddress:
    """Where another broker listens; with a principal, that one and no other."""

    host: str
    port: int
    principal: Principal | None = None

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    async def call(self, endpoint: Endpoint) -> Link:
        """Open a link. Raises as `penstock.broker.link.connect`."""
        return await connect_tls(endpoint, self.host, self.port, self.principal)


@dataclass(frozen=True, slots=True)
class NatsAddress:
    """A broker that is reached across NATS servers: who it is says where it hears."""

    login: NatsLogin
    principal: Principal

    def __str__(self) -> str:
        return f"{self.principal.short} across {self.login.servers}"

    async def call(self, endpoint: Endpoint) -> Link:
        """Open a link. Raises as `connect_nats`, and `FailedError` (`fabric.not-installed`)."""
        from penstock.broker.nats_link import connect_nats  # noqa: PLC0415  # see the module

        return await connect_nats(endpoint, self.login, self.principal)


Address: TypeAlias = PeerAddress | NatsAddress
"""Where a broker is."""
