"""What lies between the brokers of the London example: sealed blocks, and who holds which keys of them.

The statistics office may read places and not plates. Here it goes further than it should: it runs a broker of its own,
which CCS has given the right to carry sightings, and which keeps every byte that others send it. And PITO takes from
the Metropolitan Police the right to read, upon which their broker loses its keys. The broker in the
middle never had any.
"""

import asyncio
import os
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from typing import Any, Self

from rich.console import Console
from rich.table import Table

import penstock
from london_cast import BROKER_OF_STATISTICS, CCS, NETWORK, PITO, STATISTICS, Issued
from london_network import eventually
from penstock.broker.core.settings import NodeSettings
from penstock.broker.limits import BrokerLimits
from penstock.broker.node.node import Node
from penstock.broker.routing.messages import Hop
from penstock.broker.routing.outputs import Output
from penstock.broker.sealing.blocks import SealedPublications
from penstock.broker.wire.transports import PeerAddress
from penstock.codec.blocks import read_header, split
from penstock.crypto.opener import Opener
from penstock.guard import Recorder
from penstock.model import EventType, Principal, Scalar
from penstock.trust import Credentials, UnverifiedType
from penstock.trust.certificates import Certificate
from penstock.trust.policy_events import Revoke
from penstock.trust.policy_state import PolicyAuthor
from stage import progress


class Tap:
    """A broker that does its work, and keeps all that it is sent. It runs in the process of the demonstration."""

    def __init__(self, url: str, types: tuple[UnverifiedType, ...], issued: Issued) -> None:
        host, _, port = url.removeprefix("penstock://").rpartition(":")
        settings = NodeSettings(
            key=BROKER_OF_STATISTICS,
            network=NETWORK,
            peers=(PeerAddress(host, int(port)),),
            credentials=issued.of(CCS, BROKER_OF_STATISTICS),
            types=types,
            limits=BrokerLimits(),
        )
        recorder = Recorder(
            source=str(BROKER_OF_STATISTICS.principal),
            sink=lambda _record: None,
            clock=lambda: datetime.now(UTC),
            timer=time.perf_counter_ns,
            ids=lambda: os.urandom(16).hex(),
        )
        self._node = Node(settings, recorder)
        self._mine: Credentials = issued.of(STATISTICS)
        self._type = types[0].definition.name
        self._stack = AsyncExitStack()
        self.blocks: list[bytes] = []

    async def __aenter__(self) -> Self:
        router = self._node.core.router
        receive = router.receive

        def keep(peer: Principal, hop: Hop, now: float) -> list[Output]:
            if isinstance(hop.body, SealedPublications):
                self.blocks.append(hop.body.block)
            return receive(peer, hop, now)

        router.receive = keep  # type: ignore[method-assign]  # what a broker can do that is not honest
        node = await self._stack.enter_async_context(self._node)
        url = f"penstock://127.0.0.1:{node.port}"
        client = penstock.connect(url, key=STATISTICS, network=NETWORK, credentials=self._mine)
        reader = await self._stack.enter_async_context(client)
        # Somebody has to want sightings here, or none would come.
        await reader.subscribe(self._type)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    def keys(self) -> int:
        """Return how many key groups it has the keys of."""
        return len(held(self._node.keys.status()))

    def events(self, first: int) -> int:
        """Return how many events there are in the blocks from one on."""
        return sum(read_header(block).rows for block in self.blocks[first:])

    def show(self, console: Console, event_type: EventType, secrets: set[Scalar]) -> None:
        """Print what it got of each attribute; `secrets` are what it must not have seen."""
        opener = Opener(self._node.core.ring)
        opened = [opener.open(block) for block in self.blocks]
        sent = b"".join(self.blocks)
        table = Table("attribute", "sealed bytes", "different values that its keys open")
        columns = [split(block)[1] for block in self.blocks]
        for attribute in event_type.attributes:
            sealed = sum(len(found[attribute.id]) for found in columns)
            values = {value for block in opened for value in block.column(attribute.id) or ()}
            table.add_row(attribute.name, f"{sealed:,}", f"{len(values):,}" if values else "none: it has no key")
            if values & secrets:
                raise SystemExit("the statistics office has read a plate")
        console.print(table)
        seen = sum(str(secret).encode() in sent for secret in secrets)
        if seen or not self.blocks:
            raise SystemExit("plates lie open on the wire, or nothing came")
        console.print(
            f"  {len(self.blocks):,} blocks, {len(sent):,} bytes, and none of {len(secrets):,} plates in them.",
            highlight=False,
        )


def held(keys: Mapping[str, Any]) -> Mapping[str, int]:
    """Return the epochs of the keys that a broker holds, of what it says of itself."""
    return {scope: one["epoch"] for scope, one in keys["held"].items() if one["epoch"]}


async def keys_at(url: str) -> Mapping[str, int]:
    """Ask a broker which keys it holds, as its operator."""
    async with penstock.connect(url, key=PITO, network=NETWORK) as client:
        status: Any = await client.status()
        return held(status["keys"])


async def carried(console: Console, url: str) -> None:
    """Say what keys the broker in the middle has."""
    if await keys_at(url):
        raise SystemExit("the broker in the middle has keys")
    console.print(
        "  All came through the broker of Thames Valley Police, which holds no key, and reads nothing at all.",
        highlight=False,
    )


async def withdraw(console: Console, urls: Mapping[str, str], author: PolicyAuthor, right: Certificate) -> None:
    """Take the right to read from the Met, and watch its broker lose the keys."""
    before = {name: await keys_at(urls[name]) for name in ("Met Broker", "CCS Broker")}
    async with penstock.connect(urls["PITO Broker"], key=PITO, network=NETWORK) as pito:
        change = author.change(datetime.now(UTC), Revoke((right.id,)))
        began = time.perf_counter()
        await pito.evolve(change.to_bytes())
        while progress(await pito.status(), PITO.principal, author.number).get("complete") is None:
            await asyncio.sleep(0.01)
    after: dict[str, Mapping[str, int]] = {}

    async def lost() -> None:
        while True:
            after.update({name: await keys_at(urls[name]) for name in before})
            newer = all(after["CCS Broker"][scope] > epoch for scope, epoch in before["CCS Broker"].items())
            if newer and not after["Met Broker"]:
                return
            await asyncio.sleep(0.02)

    watching = asyncio.create_task(lost())
    await eventually(watching.done, "the broker of the Met loses its keys, and others get new ones")
    took = time.perf_counter() - began
    table = Table("broker", "keys before", "epoch", "keys after", "epoch ")
    for name, epochs in before.items():
        now = after[name]
        table.add_row(name, str(len(epochs)), _epochs(epochs), str(len(now)), _epochs(now))
    console.print(table)
    console.print(
        f"  Within {took * 1000:.0f} ms. It may still carry sightings, and reads none that are sealed from now on.",
        highlight=False,
    )


def _epochs(epochs: Mapping[str, int]) -> str:
    found = sorted({*epochs.values()})
    return ", ".join(map(str, found)) or "—"
