"""Nodes and clients over real TLS, in one process."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import count

import pytest
from tests.broker.sports import (
    AGENCY,
    CONNECT,
    NETWORK,
    NEWS,
    NOW,
    PDA,
    REPORTER,
    STRANGER,
    TENNIS,
    TYPES,
    grant,
    signed,
)

import penstock
from penstock.broker.client import Client, connect
from penstock.broker.core import NodeSettings, PeerAddress
from penstock.broker.node import Node
from penstock.crypto import SigningKey
from penstock.errors import FailedError, RefusedError
from penstock.guard import DecisionRecord, Recorder
from penstock.trust.capabilities import Right
from penstock.trust.credentials import Credentials

BROKERS = [SigningKey(bytes([i]) * 32) for i in range(61, 66)]


def recorder(records: list[DecisionRecord]) -> Recorder:
    numbers = count(1)
    return Recorder(
        source="broker", sink=records.append, clock=lambda: NOW, timer=lambda: 0, ids=lambda: str(next(numbers))
    )


def settings(
    key: SigningKey = BROKERS[0], *policy: object, peers: tuple[PeerAddress, ...] = (), **more: object
) -> NodeSettings:
    brokers = [grant(broker, None, Right.CONNECT) for broker in BROKERS]
    brokers += [grant(broker, one, Right.ROUTE) for broker in BROKERS for one in TYPES]
    bag = Credentials.of(*CONNECT, *brokers, *policy)  # type: ignore[arg-type]  # certificates
    return NodeSettings(
        key=key,
        network=NETWORK,
        peers=peers,
        credentials=bag,
        types=tuple(map(signed, TYPES)),
        operators=frozenset([AGENCY.principal]),
        **more,  # type: ignore[arg-type]  # of the settings
    )


@asynccontextmanager
async def running(
    *policy: object, key: SigningKey = BROKERS[0], peers: tuple[PeerAddress, ...] = ()
) -> AsyncIterator[Node]:
    async with Node(settings(key, *policy, peers=peers), recorder([])) as node:
        yield node


def client_of(node: Node, key: SigningKey) -> Client:
    return connect(f"penstock://127.0.0.1:{node.port}", key=key, network=NETWORK)


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 30))  # type: ignore[arg-type]  # a coroutine


def test_an_event_goes_from_client_to_client() -> None:
    async def test() -> None:
        async with (
            running(grant(PDA, NEWS, Right.SUBSCRIBE), grant(REPORTER, NEWS, Right.PUBLISH)) as node,
            client_of(node, PDA) as reader,
            client_of(node, REPORTER) as writer,
        ):
            news = await reader.subscribe(NEWS.name)
            feed = await writer.advertise(NEWS.name)
            await feed.publish(headline="h", location="London")
            event = await news.next(5)
            assert event["headline"] == "h"
            await feed.post({"headline": "i"})
            assert (await news.next(5))["headline"] == "i"

    run(test)


def test_two_brokers() -> None:
    policy = grant(PDA, NEWS, Right.SUBSCRIBE), grant(REPORTER, NEWS, Right.PUBLISH)

    async def test() -> None:
        async with running(*policy) as one:
            address = PeerAddress("127.0.0.1", one.port, BROKERS[0].principal)
            async with (
                running(*policy, key=BROKERS[1], peers=(address,)) as other,
                client_of(one, PDA) as reader,
                client_of(other, REPORTER) as writer,
            ):
                news = await reader.subscribe(NEWS.name)
                feed = await writer.advertise(NEWS.name)
                for number in range(100):
                    await feed.post({"headline": str(number)})
                    if number == 0:
                        await asyncio.sleep(0.5)
                print((await news.next(5))["headline"])

    run(test)
