"""A network of processes: what is published in one domain is read in others, whatever happens on the way."""

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack, suppress
from itertools import count, pairwise

import pytest
from tests.broker.node_kit import publish
from tests.network.brokers import BORDER, BROKERS, DOMAINS, LONG, OTHERS, SIGHTING, Network, run, until

from penstock.broker.client.client import Feed, Subscription
from penstock.model import Event, Scalar


@pytest.fixture(scope="module", params=["five_brokers"])
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Network]:
    made = Network(tmp_path_factory.mktemp("network"))
    try:
        made.lay_out()
        made.start(*BROKERS)
        yield made
    finally:
        made.close()


class Reader:
    """Somebody who reads all that comes, and remembers it."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def __call__(self, event: Event) -> None:
        self.events.append(event)

    @property
    def speeds(self) -> list[int]:
        return [int(str(event["speed"])) for event in self.events]

    async def has(self, speed: int) -> None:
        async def there() -> bool:
            return speed in self.speeds

        await until(there)

    def check(self) -> None:
        """Check that nothing came twice, and everything in order."""
        assert all(one < other for one, other in pairwise(self.speeds)), self.speeds
        assert len({event.id for event in self.events}) == len(self.events)


async def reading(stack: AsyncExitStack, network: Network, broker: str, who: str, selector: str = "") -> Reader:
    client = await stack.enter_async_context(network.client(broker, who))
    reader = Reader()
    await client.subscribe(SIGHTING.name, selector, callback=reader)
    return reader


async def publishing(stack: AsyncExitStack, network: Network, broker: str) -> Feed:
    client = await stack.enter_async_context(network.client(broker, "camera"))
    return await client.advertise(SIGHTING.name)


def seen(speed: int) -> Mapping[str, Scalar]:
    return {"plate": f"P{speed}", "speed": speed, "officer": "Dixon"}


async def arrive(feed: Feed, start: int, *readers: Reader) -> int:
    """Publish until everybody has got the last event, so that nothing is under way; return the number after it."""
    patience = 0.05
    for number in count(start):
        await publish(feed, seen(number))
        with suppress(TimeoutError):
            async with asyncio.timeout(patience):
                while not all(reader.events and reader.events[-1]["speed"] == number for reader in readers):
                    await asyncio.sleep(0.005)
                return number + 1
        patience = min(1.2 * patience, LONG)
    raise AssertionError


def test_every_event_comes_once_in_order_and_as_the_policy_says(network: Network) -> None:
    async def main() -> None:
        async with AsyncExitStack() as stack:
            await network.until_all_see(BROKERS)
            everything = await reading(stack, network, "p2", "officer")
            masked = await reading(stack, network, "c1", "clerk")
            fast = await reading(stack, network, "m1", "reporter")
            chosen = await reading(stack, network, "c1", "officer", "speed >= 1090 AND plate LIKE 'P%5'")
            feed = await publishing(stack, network, "p1")
            start = await arrive(feed, 100, everything, masked, fast)
            for reader in (everything, masked, fast, chosen):
                reader.events.clear()
            slow = range(1, 20)
            await feed.publish_many([seen(speed) for speed in (*slow, *range(1_000, 1_300))])
            for reader in (everything, masked, fast):
                await reader.has(1_299)
            await chosen.has(1_295)
            assert start < 1_000
            assert everything.speeds == masked.speeds == [*slow, *range(1_000, 1_300)]
            assert fast.speeds == list(range(1_000, 1_300))
            assert chosen.speeds == [speed for speed in range(1_090, 1_300) if speed % 10 == 5]
            assert {event["officer"] for event in everything.events} == {"Dixon"}
            assert {event["officer"] for event in masked.events} == {None}
            assert {(event["officer"], event["plate"]) for event in fast.events} == {(None, None)}
            assert masked.events[0]["plate"] == "P1"

    run(main())


def test_no_broker_holds_all_subscriptions(network: Network) -> None:
    async def main() -> None:
        async with AsyncExitStack() as stack:
            await network.until_all_see(BROKERS)
            wanted: list[Subscription] = []
            feeds: list[Feed] = []
            for number, made in enumerate(OTHERS):
                reader, writer = BROKERS[number % 5], BROKERS[(number // 3 + number + 1) % 5]
                client = await stack.enter_async_context(network.client(reader, "officer"))
                wanted += [await client.subscribe(made.name, f"speed > {limit}") for limit in range(3)]
                camera = await stack.enter_async_context(network.client(writer, "camera"))
                feeds.append(await camera.advertise(made.name))
            for feed, subscription in zip(feeds, wanted[2::3], strict=True):
                assert await first_of(feed, subscription) == "Dixon"
            held = {}
            for name in BROKERS:
                status = await network.status(name)
                held[name] = int(str(status["subscriptions"]))
            # Nor one that covers them for each of the types.
            assert max(held.values()) < len(OTHERS)

    run(main())


async def first_of(feed: Feed, subscription: Subscription) -> Scalar:
    """Publish until something comes."""
    for speed in count(10):
        await publish(feed, seen(speed))
        with suppress(TimeoutError):
            return (await subscription.next(0.05))["officer"]
    raise AssertionError


def test_a_broker_is_killed_and_comes_back(network: Network) -> None:
    async def main() -> None:
        async with AsyncExitStack() as stack:
            await network.until_all_see(BROKERS)
            readers = [await reading(stack, network, broker, "officer") for broker in ("m1", "c1")]
            feed = await publishing(stack, network, "p1")
            start = await arrive(feed, 1, *readers)
            # The rendezvous node, which is on the way to the first of them.
            network.kill("m2")
            start = await arrive(feed, start, *readers)
            await network.until_all_see([name for name in BROKERS if name != "m2"])
            await exactly(feed, start, *readers)
            network.start("m2")
            await network.until_all_see(BROKERS)
            start = await arrive(feed, start + 200, *readers)
            await exactly(feed, start, *readers)
            here = await reading(stack, network, "m2", "clerk")
            await arrive(feed, start + 200, here)
            for reader in readers:
                reader.check()

    run(main())


async def exactly(feed: Feed, start: int, *readers: Reader) -> None:
    """Publish a hundred events; everybody gets exactly these."""
    await feed.publish_many([seen(start + number) for number in range(100)])
    for reader in readers:
        await reader.has(start + 99)
        assert reader.speeds[-100:] == list(range(start, start + 100))
        reader.check()


def test_domains_are_cut_off_from_each_other_and_come_together_again(network: Network) -> None:
    press = DOMAINS["press"]
    rest = [name for name in BROKERS if name not in press]

    async def main() -> None:
        async with AsyncExitStack() as stack:
            await network.until_all_see(BROKERS)
            inside = await reading(stack, network, "m1", "officer", "speed < 100000")
            outside = await reading(stack, network, "c1", "officer", "speed < 100000")
            police = await publishing(stack, network, "p1")
            start = await arrive(police, 1, inside, outside)
            network.lines.cut(*BORDER)
            await network.until_all_see(press, rest)
            before = len(inside.events)
            # That brokers see the same links does not say that subscriptions have taken the new paths yet.
            start = await arrive(police, start + 10, outside)
            await exactly(police, start, outside)
            assert len(inside.events) == before
            # The other side goes on as well.
            theirs = await reading(stack, network, "m1", "officer", "speed >= 100000")
            camera = await publishing(stack, network, "m2")
            far = await arrive(camera, 100_000, theirs)
            await exactly(camera, far, theirs)
            network.lines.mend(*BORDER)
            await network.until_all_see(BROKERS)
            start = await arrive(police, start + 500, inside, outside)
            await exactly(police, start, inside, outside)
            everywhere = await reading(stack, network, "p2", "officer", "speed >= 100000")
            far = await arrive(camera, far + 500, theirs, everywhere)
            await exactly(camera, far, theirs, everywhere)

    run(main())
