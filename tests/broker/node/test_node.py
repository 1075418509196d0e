"""Several nodes over real TLS in one process: links between them, and clients at each."""

import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace

import pytest
from tests.broker.node_kit import (
    BROKERS,
    HOST,
    LONG,
    Broker,
    client_of,
    headlines,
    publish,
    refused,
    run,
    running,
    settings,
    until,
)
from tests.broker.sports import NEWS, PDA, REPORTER, STRANGER, TENNIS, grant

from penstock.broker.wire.transports import PeerAddress
from penstock.errors import FailedError, RefusedError
from penstock.guard import DecisionRecord
from penstock.testing.server_process import free_port
from penstock.trust.capabilities import BROKER_RIGHTS, Right

READ = grant(PDA, NEWS, Right.SUBSCRIBE)
WRITE = grant(REPORTER, NEWS, Right.PUBLISH)


async def chain(stack: AsyncExitStack, number: int) -> list[Broker]:
    """Start brokers, each linked with the one before it."""
    made: list[Broker] = []
    for key in BROKERS[:number]:
        peers = tuple(one.address for one in made[-1:])
        made.append(await stack.enter_async_context(running(READ, WRITE, key=key, peers=peers)))
    await until(lambda: all(one.sees(*made) for one in made))
    return made


def test_events_go_where_they_are_wanted_and_nowhere_else() -> None:
    async def main() -> None:
        async with AsyncExitStack() as stack:
            nodes = await chain(stack, 4)
            reader = await stack.enter_async_context(client_of(nodes[0], PDA))
            writer = await stack.enter_async_context(client_of(nodes[2], REPORTER))
            feed = await writer.advertise(NEWS.name)
            await until(lambda: feed.quiet)
            news = await reader.subscribe(NEWS.name, "location = 'London'")
            await until(lambda: not feed.quiet)
            for number in range(300):
                await feed.post({"headline": str(number), "location": ("London", "Paris")[number % 2]})
            assert await headlines(news, 150) == [str(number) for number in range(0, 300, 2)]
            assert nodes[3].core.counts["delivered"] == nodes[1].core.counts["delivered"] == 0

    run(main())


def test_one_key_at_two_brokers() -> None:
    both = grant(PDA, NEWS, Right.SUBSCRIBE, Right.PUBLISH)

    async def main() -> None:
        async with (
            running(both) as one,
            running(both, key=BROKERS[1], peers=(one.address,)) as other,
            client_of(one, PDA) as here,
            client_of(other, PDA) as there,
        ):
            await until(lambda: one.sees(other))
            own = await here.subscribe(NEWS.name)
            news = await there.subscribe(NEWS.name)
            feed = await here.advertise(NEWS.name)
            again = await there.advertise(NEWS.name)
            await until(lambda: one.core.router.size().subscriptions and other.core.router.size().subscriptions)
            await feed.publish(headline="here")
            await again.publish(headline="there")
            assert sorted(map(str, await headlines(own, 2))) == ["here", "there"]
            assert sorted(map(str, await headlines(news, 2))) == ["here", "there"]

    run(main())


def test_two_brokers_that_call_each_other_keep_one_link() -> None:
    async def main() -> None:
        async with running(READ, WRITE, port=free_port()) as one:
            address = one.address
        async with running(READ, WRITE, key=BROKERS[1], peers=(address,)) as other:
            again = running(READ, WRITE, port=address.port, peers=(other.address,))
            async with again as one, client_of(one, PDA) as reader, client_of(other, REPORTER) as writer:
                await until(lambda: one.sees(other) and other.sees(one))
                news = await reader.subscribe(NEWS.name)
                feed = await writer.advertise(NEWS.name)
                await until(lambda: not feed.quiet)
                await feed.publish(headline="0")
                await headlines(news, 1)
                # Those of the two clients, and one between the brokers.
                await until(lambda: sum(len(node._listener.links) for node in (one, other) if node._listener) == 3)
                for number in range(50):
                    await feed.publish(headline=str(number))
                assert await headlines(news, 50) == [str(number) for number in range(50)]

    run(main())


def test_brokers_that_call_addresses_without_knowing_who_is_there() -> None:
    async def main() -> None:
        async with running(READ, WRITE, port=free_port()) as one:
            address = replace(one.address, principal=None)
        async with running(READ, WRITE, key=BROKERS[1], peers=(address,)) as other:
            back = replace(other.address, principal=None)
            async with running(READ, WRITE, port=address.port, peers=(back,)) as one:
                await until(lambda: one.sees(other) and other.sees(one))
                # Each of them may call in vain, once, and knows then that it need not. Otherwise it would call
                # four times in a second.
                await asyncio.sleep(1)
                told = [report for node in (one, other) for report in node.told if report.code == "link.duplicate"]
                assert len(told) <= 2
                assert one.sees(other)

    run(main())


def test_a_broker_that_may_not_be_in_the_network_is_refused_by_others() -> None:
    async def main() -> None:
        async with (
            running(READ, WRITE) as node,
            running(key=STRANGER, peers=(node.address,)) as caller,
        ):
            await until(lambda: "broker.not-permitted" in node.codes)
            await until(lambda: "link.refused" in caller.codes)
            async with running(key=BROKERS[1], peers=(caller.address,)) as called:
                await until(lambda: "broker.not-permitted" in called.codes)
                assert called.sees()
            assert node.sees()
            assert not node.neighbours.up()

    run(main())


def test_a_broker_whose_right_is_taken_away_is_cut() -> None:
    stranger = grant(STRANGER, None, *BROKER_RIGHTS)

    async def main() -> None:
        async with running(READ, stranger) as node, running(key=STRANGER, peers=(node.address,)) as other:
            await until(node.neighbours.up)
            node.policy(READ)
            await until(lambda: not node.neighbours.up() and node.sees())
            await until(lambda: "link.refused" in other.codes)

    run(main())


def test_somebody_else_at_the_address_of_a_broker() -> None:
    async def main() -> None:
        async with running(READ) as node:
            wrong = PeerAddress(HOST, node.port, BROKERS[2].principal)
            async with running(key=BROKERS[1], peers=(wrong,)) as caller:
                await until(lambda: "handshake.peer" in caller.codes)
                assert not caller.neighbours.up()

    run(main())


def test_a_broker_comes_back_and_so_does_everything_that_was_asked_for() -> None:
    async def main() -> None:
        async with running(READ, WRITE) as first:
            peers = (first.address,)
            port = free_port()
            second = await Broker(settings(READ, WRITE, key=BROKERS[1], peers=peers, port=port)).start()
            async with client_of(first, PDA) as reader, client_of(second, REPORTER) as writer:
                news = await reader.subscribe(NEWS.name)
                feed = await writer.advertise(NEWS.name)
                await until(lambda: not feed.quiet and second.sees(first))
                await feed.publish(headline="before")
                assert await headlines(news, 1) == ["before"]
                await second.stop()
                # Who leaves in peace says so, and is gone immediately.
                await until(first.sees)
                with pytest.raises(RefusedError, match=r"node\.stopped"):
                    _ = Broker(settings()).port
                async with running(READ, WRITE, key=BROKERS[1], peers=peers, port=port) as second:
                    found: list[object] = []

                    async def keep_publishing() -> None:
                        for number in range(10_000):
                            await publish(feed, headline=str(number))
                            await asyncio.sleep(0.01)

                    publishing = asyncio.create_task(keep_publishing())
                    found += await headlines(news, 5)
                    publishing.cancel()
                    await asyncio.gather(publishing, return_exceptions=True)
                    assert found == [str(int(str(found[0])) + n) for n in range(5)]
                    assert second.sees(first)
            assert writer.reconnections == 1
            assert reader.reconnections == 0

    run(main())


def test_nothing_passes_that_cannot_be_recorded() -> None:
    broken: list[bool] = []
    records: list[DecisionRecord] = []

    def sink(record: DecisionRecord) -> None:
        if broken:
            raise FailedError("log.write", "the disk is full")
        records.append(record)

    async def main() -> None:
        async with Broker(settings(READ, WRITE), sink) as node, client_of(node, PDA) as reader:
            await reader.subscribe(NEWS.name)
            broken.append(True)
            await refused("client.interrupted", reader.subscribe(TENNIS.name))
            asking = asyncio.ensure_future(reader.subscribe(NEWS.name, "location = 'Paris'"))
            await asyncio.sleep(0.2)
            assert not asking.done()
            broken.clear()
            await asyncio.wait_for(asking, LONG)
            await until(lambda: node.held == 2)

    run(main())


def test_a_mistake_in_a_tick_is_told_and_the_next_one_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks: list[int] = []
    told: list[object] = []

    def recheck() -> None:
        ticks.append(1)
        if len(ticks) == 1:
            raise TypeError("nobody foresaw this")

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _loop, context: told.append(context["exception"]))
        async with running(READ) as node:
            monkeypatch.setattr(node.neighbours, "recheck", recheck)
            await until(lambda: len(ticks) > 1)
        assert [type(error) for error in told] == [TypeError]

    run(main())
