"""The behaviour that every adapter of `penstock.fabric` shows. An adapter's test inherits it:

    class TestMine(FabricSuite):
        async def open(self, clock: Clock) -> Fabric:
            return MyFabric(clock=clock)

`open` gives a fabric without topics, `join` a second client of the same one where the adapter has such. Time stands
still until a test moves it, so that nothing here waits for a clock; what has to come from a server is waited for.
"""
# ruff: noqa: D102, S101  # a suite asserts, and the names of its tests say what

import asyncio

from penstock.fabric.envelope import Sample
from penstock.fabric.port import Fabric
from penstock.fabric.tasks import waited_for
from penstock.model.limits import DEFAULT_LIMITS
from penstock.testing.fabric_kit import (
    EVENTS,
    LIVE,
    LOG,
    PATIENCE,
    STATE,
    nothing,
    refused,
    refused_end,
    scenario,
    take,
    until,
)
from penstock.testing.fabric_qos_suite import QosSuite


class FabricSuite(QosSuite):
    """Inherit it as `Test…`, and say how to open a fabric."""

    # topics

    @scenario
    async def test_topics_are_declared_once_and_found_by_everybody(self, fabric: Fabric) -> None:
        await fabric.declare("weather", STATE)
        await fabric.declare("weather", STATE)
        other = await self.join(fabric)
        assert await other.describe("weather") == STATE
        with refused("fabric.topic-differs"):
            await other.declare("weather", EVENTS)
        await self.leave(fabric, other)

    @scenario
    async def test_what_nobody_declared_is_unknown(self, fabric: Fabric) -> None:
        for call in (fabric.describe, fabric.publisher, fabric.subscribe, fabric.state, fabric.remove):
            with refused("fabric.unknown-topic"):
                await call("nowhere")
        with refused("fabric.unknown-topic"):
            await fabric.request("nowhere", b"", timeout=1)

    @scenario
    async def test_names_are_one_plain_word(self, fabric: Fabric) -> None:
        for name in ("", "a.b", "a b", "*", ">", "é", "x" * (DEFAULT_LIMITS.fabric_name_length + 1)):
            with refused("fabric.bad-name"):
                await fabric.declare(name, EVENTS)

    @scenario
    async def test_a_removed_topic_ends_its_readers_and_writers_and_can_be_declared_anew(self, fabric: Fabric) -> None:
        await fabric.declare("gone", STATE)
        writer = await fabric.publisher("gone")
        await writer.publish(b"old")
        reader = await fabric.subscribe("gone")
        assert await take(reader, 1) == [b"old"]
        await fabric.remove("gone")
        with refused("fabric.unknown-topic"):
            await writer.publish(b"more")
        with refused("fabric.unknown-topic"):
            await asyncio.wait_for(anext(reader), PATIENCE)
        await fabric.declare("gone", LOG)
        assert await fabric.state("gone") == ()
        await reader.close()

    @scenario
    async def test_many_topics_do_not_mix(self, fabric: Fabric) -> None:
        names = [f"topic-{number}" for number in range(100)]
        await asyncio.gather(*(fabric.declare(name, EVENTS) for name in names))
        readers = await asyncio.gather(*(fabric.subscribe(name) for name in names))
        writers = await asyncio.gather(*(fabric.publisher(name) for name in names))
        await asyncio.gather(*(w.publish(n.encode()) for w, n in zip(writers, names, strict=True)))
        for name, reader in zip(names, readers, strict=True):
            assert await take(reader, 1) == [name.encode()]
            assert len(reader.reader) == 0

    # publishing and reading

    @scenario
    async def test_a_sample_arrives_whole(self, fabric: Fabric) -> None:
        for topic, qos in (("events", EVENTS), ("live", LIVE), ("log", LOG)):
            await fabric.declare(topic, qos)
            other = await self.join(fabric)
            async with await other.subscribe(topic) as reader, await fabric.publisher(topic) as writer:
                await writer.publish(b"\0data\xff", key="clé.*>/ ", headers={"ce-id": "1", "note": "naïve\r\nX: y"})
                await writer.publish(b"")
                first, second = [await asyncio.wait_for(anext(reader), PATIENCE) for _ in range(2)]
                assert (first.data, first.key) == (b"\0data\xff", "clé.*>/ ")
                assert first.headers == {"ce-id": "1", "note": "naïve\r\nX: y"}
                assert first.time == round(self.clock.now() * 1e6)
                assert (second.data, second.key, second.headers) == (b"", "", {})
                assert (first.writer, first.sequence, second.sequence) == (second.writer, 1, 2)
                assert second.time > first.time
            await self.leave(fabric, other)

    @scenario
    async def test_every_reader_gets_every_sample_in_order(self, fabric: Fabric) -> None:
        sent = [str(number).encode() for number in range(300)]
        for topic, qos in (("events", EVENTS), ("live", LIVE), ("log", LOG)):
            await fabric.declare(topic, qos)
            readers = [await fabric.subscribe(topic) for _ in range(2)]
            writer = await fabric.publisher(topic)
            for data in sent:
                await writer.publish(data)
            for reader in readers:
                assert await take(reader, 300) == sent
                await reader.close()

    @scenario
    async def test_a_callback_gets_samples_and_its_error_ends_the_subscription(self, fabric: Fabric) -> None:
        await fabric.declare("live", LIVE)
        got: list[bytes] = []

        async def callback(sample: Sample) -> None:
            if sample.data == b"bad":
                raise ValueError("no")
            got.append(sample.data)

        subscription = await fabric.subscribe("live", callback=callback)
        writer = await fabric.publisher("live")
        for data in (b"1", b"2", b"bad", b"3"):
            await writer.publish(data)
        try:
            await asyncio.wait_for(subscription.finished(), PATIENCE)
        except ValueError:
            assert got == [b"1", b"2"]
        else:
            raise AssertionError("the callback's error was lost")

    @scenario
    async def test_cancelled_reading_loses_nothing_and_leaves_nothing(self, fabric: Fabric) -> None:
        await fabric.declare("live", LIVE)
        writer = await fabric.publisher("live")
        got: list[bytes] = []
        begun = asyncio.Event()

        async def read() -> None:
            async with await fabric.subscribe("live") as samples:
                begun.set()
                async for sample in samples:
                    got.append(sample.data)  # noqa: PERF401  # what was read before the cancellation counts

        task = waited_for(read())
        reader = await fabric.subscribe("live")
        await nothing(reader)  # cancels a call that waits
        await begun.wait()
        await writer.publish(b"1")
        await until(lambda: got == [b"1"])
        assert await take(reader, 1) == [b"1"]
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await writer.publish(b"2")
        assert await take(reader, 1) == [b"2"]
        assert got == [b"1"]
        await reader.close()
        with refused_end():
            await anext(reader)

    @scenario
    async def test_what_is_too_large_is_refused(self, fabric: Fabric) -> None:
        await fabric.declare("live", LIVE)
        writer = await fabric.publisher("live")
        reader = await fabric.subscribe("live")
        largest = b"x" * DEFAULT_LIMITS.fabric_bytes
        await writer.publish(largest)
        assert await take(reader, 1) == [largest]
        with refused("fabric.too-large"):
            await writer.publish(largest + b"x")
        with refused("fabric.bad-key"):
            await writer.publish(b"", key="k" * (DEFAULT_LIMITS.fabric_key_bytes + 1))
        with refused("fabric.bad-header"):
            await writer.publish(b"", headers={"h": "v" * DEFAULT_LIMITS.fabric_header_bytes})
        with refused("fabric.too-large"):
            await fabric.request("live", largest + b"x", timeout=1)

    @scenario
    async def test_what_was_closed_is_refused(self, fabric: Fabric) -> None:
        await fabric.declare("live", LIVE)
        writer = await fabric.publisher("live")
        reader = await fabric.subscribe("live")
        await writer.close()
        with refused("fabric.closed"):
            await writer.publish(b"")
        await fabric.close()
        await fabric.close()
        with refused_end():
            await anext(reader)
        with refused("fabric.closed"):
            await fabric.describe("live")

    # request and reply

    @scenario
    async def test_requests_are_answered_once(self, fabric: Fabric) -> None:
        await fabric.declare("ask", EVENTS)
        other = await self.join(fabric)
        asked: list[str] = []

        async def shout(sample: Sample) -> bytes:
            asked.append(sample.key)
            return sample.data.upper() + sample.headers["mark"].encode()

        async with await other.serve("ask", shout), await other.serve("ask", shout):
            answers = [
                fabric.request("ask", b"a", key=str(n), headers={"mark": "!"}, timeout=PATIENCE) for n in range(10)
            ]
            assert await asyncio.gather(*answers) == [b"A!"] * 10
        assert sorted(asked) == [str(n) for n in range(10)]
        with refused("fabric.no-responder"):
            await fabric.request("ask", b"a", timeout=PATIENCE)
        await self.leave(fabric, other)

    @scenario
    async def test_a_request_that_fails_or_takes_too_long_says_so(self, fabric: Fabric) -> None:
        await fabric.declare("ask", EVENTS)
        never = asyncio.Event()

        async def handler(sample: Sample) -> bytes:
            if sample.data == b"wait":
                await never.wait()
            raise ValueError("a secret")

        async with await fabric.serve("ask", handler):
            with refused("fabric.handler-failed"):
                await fabric.request("ask", b"fail", timeout=PATIENCE)
            asking = waited_for(fabric.request("ask", b"wait", timeout=0.05))
            while not asking.done():
                await self.clock.advance(0.1)
                await asyncio.sleep(0.01)
            with refused("fabric.no-reply"):
                await asking
