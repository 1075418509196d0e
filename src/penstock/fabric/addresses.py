"""Fabric addresses, and the adapter that each of them means."""

from typing import Final

from penstock.errors import MalformedError
from penstock.fabric.embedded import EmbeddedFabric
from penstock.fabric.kafka_login import KAFKA as KAFKA
from penstock.fabric.kafka_login import KafkaLogin
from penstock.fabric.nats_login import NatsLogin
from penstock.fabric.port import Clock, Fabric

EMBEDDED: Final = "embedded"
DDS: Final = "dds://"
NATS: Final = ("nats://", "tls://")


async def open_fabric(
    address: str | NatsLogin | KafkaLogin, *, prefix: str = "penstock", clock: Clock | None = None
) -> Fabric:
    """Open the fabric of an address: `embedded`, `nats://…`, `tls://…`, `kafka://…` or `dds://…`.

    A `NatsLogin` or `KafkaLogin` is for secrets.

    Raises `MalformedError` (`fabric.bad-address`), `FailedError` (`fabric.not-installed`), and as the adapter's
    `connect`.
    """
    if address == EMBEDDED:
        return EmbeddedFabric(clock=clock)
    if isinstance(address, str) and address.startswith(DDS):
        from penstock.fabric.dds import DdsFabric  # noqa: PLC0415  # an extra

        return await DdsFabric.connect(address, prefix=prefix, clock=clock)
    if isinstance(address, KafkaLogin) or (isinstance(address, str) and address.startswith(KAFKA)):
        from penstock.fabric.kafka import KafkaFabric  # noqa: PLC0415  # an extra

        return await KafkaFabric.connect(address, prefix=prefix, clock=clock)
    if isinstance(address, NatsLogin) or address.startswith(NATS):
        from penstock.fabric.nats import NatsFabric  # noqa: PLC0415  # an extra

        return await NatsFabric.connect(address, prefix=prefix, clock=clock)
    raise MalformedError(
        "fabric.bad-address",
        f"`{address[:80]}` is not the address of a fabric",
        hint=f"write `{EMBEDDED}`, `nats://host:port`, `tls://host:port`, `kafka://host:port` or `dds://host/domain`",
    )
