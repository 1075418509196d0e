"""Subscribers: attackers who may read, or carry events, and use that right as much as they can."""

import asyncio
from collections.abc import Callable
from contextlib import suppress

from tests.broker.node_kit import BROKERS
from tests.broker.sports import NEWS
from tests.network.hostile.target import SUBSCRIBER, Attack, Target, cheating_broker, greet, link_to

from penstock.broker.wire.link import Link
from penstock.broker.wire.protocol import NamedRequestMessage, PeerRole, SubscribeMessage
from penstock.codec.wire import encode
from penstock.errors import PenstockError

_MANY = 2_000


async def _subscribing(target: Target, selector: Callable[[int], str], *, keeping: int = _MANY) -> None:
    """Subscribe again and again at the reader's broker; keep so many subscriptions, and end the oldest."""
    target.begin()
    async with link_to(target, -1, SUBSCRIBER) as link:
        await greet(link, PeerRole.CLIENT)
        hearing = asyncio.create_task(_hear(link))
        with suppress(PenstockError):
            while target.going_on:
                number = target.blows = target.blows + 1
                await link.send(encode(SubscribeMessage(number, f"s{number}", NEWS.name, selector(number)).to_tree()))
                if number > keeping:
                    await link.send(
                        encode(NamedRequestMessage(number, "unsubscribe", f"s{number - keeping}").to_tree())
                    )
                if number == keeping == _MANY:
                    break
                await asyncio.sleep(0)
        await target.rest()
        hearing.cancel()
        await asyncio.gather(hearing, return_exceptions=True)


async def _hear(link: Link) -> None:
    with suppress(PenstockError):
        while True:
            await link.receive()


async def narrow_subscriptions(target: Target) -> None:
    """Hold many subscriptions of which each matches next to nothing."""
    await _subscribing(target, lambda number: f"headline = '{number}'")


async def overlapping_subscriptions(target: Target) -> None:
    """Hold many subscriptions that overlap and of which none covers another."""
    await _subscribing(target, lambda number: f"headline > '{number}' AND location < '{_MANY - number}'")


async def churn(target: Target) -> None:
    """Subscribe and unsubscribe as fast as the broker takes it."""
    await _subscribing(target, lambda number: f"headline = '{number}' OR agency = '{number}'", keeping=5)


async def long_selectors(target: Target) -> None:
    """Subscribe with selectors that are as long as they may be."""

    def selector(number: int) -> str:
        return " OR ".join(f"headline = '{number}.{part}'" for part in range(500))

    await _subscribing(target, selector, keeping=100)


async def flapping_link(target: Target) -> None:
    """Be a broker with all rights whose links break again and again."""
    target.begin()
    while target.going_on:
        target.blows += 1
        async with cheating_broker(target, BROKERS[4], 1, 2) as node:
            await asyncio.sleep(0.1)
            for link in [neighbour.link for neighbour in node.neighbours._neighbours.values()]:
                link._channel.abort()


ATTACKS: dict[str, Attack] = {
    "narrow subscriptions": narrow_subscriptions,
    "overlapping subscriptions": overlapping_subscriptions,
    "subscribing and unsubscribing": churn,
    "long selectors": long_selectors,
    "a broker link that flaps": flapping_link,
}
