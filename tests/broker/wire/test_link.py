"""Links between peers that keep to the rules, over real TLS connections and across a real NATS server."""

import asyncio
import threading
import traceback
from contextlib import suppress
from dataclasses import replace

import pytest
from tests.broker.link_kit import (
    BROKER,
    CLIENT,
    LIMITS,
    LONG,
    Way,
    broker,
    gather,
    raw,
    refused,
    run,
    until,
    wait_for_the_end,
)

from penstock.broker.wire.link import Link
from penstock.codec.limits import CodecLimits
from penstock.codec.wire import Encoded, FrameReader, Wire, decode_messages, encode
from penstock.codec.wire import frame as frame_of
from penstock.errors import FailedError, RefusedError


def test_messages_go_both_ways_in_order_between_peers_who_know_each_other(way: Way) -> None:
    async def main() -> None:
        async with broker(way) as at:
            link = await at.link()
            assert link.peer.principal == BROKER.principal
            await until(lambda: at.served)
            assert at.served[0].peer.principal == CLIENT.principal
            sent: list[Wire] = [{"number": n, "octets": bytes(n % 300)} for n in range(2_000)]
            for message in sent:
                link.post(encode(message))
            found: list[Wire] = []
            while len(found) < len(sent):
                found += await link.receive()
            assert found == sent
            await link.close()

    run(main())


class OutsideKey:
    """A key outside the process, whose signatures take their time."""

    public, principal = CLIENT.public, CLIENT.principal

    def __init__(self, *, broken: bool = False) -> None:
        self.broken = broken
        self.threads: list[threading.Thread] = []

    def sign(self, message: bytes) -> bytes:
        self.threads.append(threading.current_thread())
        if self.broken:
            raise FailedError("signer.failed", "the token is not there")
        return CLIENT.sign(message)


def test_a_key_outside_the_process_signs_beside_the_event_loop(way: Way) -> None:
    async def main() -> None:
        async with broker(way) as at:
            key = OutsideKey()
            link = await at.link(key)
            await until(lambda: at.served)
            assert at.served[0].peer.principal == CLIENT.principal
            assert len(key.threads) == 1
            assert key.threads[0] is not threading.current_thread()
            await link.close()
            with pytest.raises(FailedError) as caught:
                await at.link(OutsideKey(broken=True))
            assert caught.value.code == "signer.failed"

    run(main())


def test_what_is_posted_together_goes_out_in_one_frame(way: Way) -> None:
    async def burst(link: Link) -> None:
        for number in range(1_000):
            link.post(encode(number))
        await wait_for_the_end(link)

    async def main() -> None:
        async with broker(way, serve=burst) as at, raw(at) as client:
            assert decode_messages(await client.frame()) == list(range(1_000))

    run(main())


def test_frames_keep_to_the_limits_whatever_is_posted(way: Way) -> None:
    limits = replace(LIMITS, codec=CodecLimits(frame_messages=10))

    async def burst(link: Link) -> None:
        for number in range(25):
            link.post(encode(number))
        for _ in range(3):
            link.post(encode(bytes(200_000)))
        link.post(encode(bytes(LIMITS.codec.frame_bytes - 20)))
        await wait_for_the_end(link)

    async def main() -> None:
        async with broker(way, limits, burst) as at, raw(at) as client:
            counts = [len(decode_messages(await client.frame())) for _ in range(6)]
            assert counts == [10, 10, 6, 1, 1, 1]

    run(main())


def test_who_sends_waits_for_who_takes(way: Way) -> None:
    # What was sent takes a while to be taken, and is not given up meanwhile.
    limits = replace(LIMITS, link_inbox=64 << 10, link_goodbye=30_000)
    go = asyncio.Event()

    async def main() -> None:
        taken: list[Wire] = []

        async def later(link: Link) -> None:
            await go.wait()
            await gather(link, taken)

        async with broker(way, limits, later) as at:
            link = await at.link(limits=limits)
            sent = 0
            with suppress(TimeoutError):
                while sent < 5_000:
                    await asyncio.wait_for(link.send(encode([sent, bytes(10_000)])), 0.1)
                    sent += 1
            assert sent < 5_000
            await until(lambda: at.served)
            (held,) = at.served
            assert held._channel._inbox_size < 1 << 20
            assert link.ended is None
            go.set()
            await link.close()
            await at.ended("link.closed")
            assert [message[0] for message in taken if isinstance(message, list)] == list(range(sent))

    run(main())


def test_everything_that_was_posted_arrives_before_the_goodbye(way: Way) -> None:
    limits = replace(LIMITS, link_goodbye=10_000)

    async def main() -> None:
        async def give(link: Link) -> None:
            for number in range(5_000):
                link.post(encode([number, bytes(500)]))

        async with broker(way, limits, give) as at:
            link = await at.link()
            found = [message[0] async for message in link if isinstance(message, list)]
            assert found == list(range(5_000))
            await refused("link.closed", link.send(encode(1)))
            await link.close()

    run(main())


def test_closing_takes_no_longer_than_a_goodbye_may(way: Way) -> None:
    limits = replace(LIMITS, link_goodbye=100)

    async def main() -> None:
        async with broker(way, limits, wait_for_the_end) as at, raw(at):
            (link,) = at.served
            while link._channel._stalled is None:
                link.post(encode(bytes(200_000)))
            # The peer never reads: without a bound this takes as long as the test may.
            async with asyncio.timeout(LONG / 2):
                await link.close()

    run(main())


def test_a_quiet_link_lives_and_a_dead_one_does_not(way: Way) -> None:
    limits = replace(LIMITS, link_keepalive=100, link_idle=3_000)

    async def main() -> None:
        async with broker(way, limits) as at, raw(at) as dead:
            quiet = await at.link(limits=limits)
            await at.ended("link.idle")
            assert encode("link.idle") in (await dead.goodbye(), b"")
            await quiet.send(encode("still here"))
            assert await quiet.receive() == ["still here"]
            await quiet.close()

    run(main())


def test_an_error_of_the_service_is_told_as_its_code(way: Way) -> None:
    async def deny(link: Link) -> None:
        raise RefusedError("guard.denied", "a secret reason")

    async def main() -> None:
        async with broker(way, serve=deny) as at:
            link = await at.link()
            error = await refused("link.refused", link.receive())
            assert error.fields["reason"] == "guard.denied"
            assert "secret" not in str(error)
            await at.ended("guard.denied")

    run(main())


def test_an_error_does_not_grow_by_being_raised(way: Way) -> None:
    async def main() -> None:
        async with broker(way) as at:
            link = await at.link()
            await link.close()
            depths = []
            for _ in range(3):
                error = await refused("link.closed", link.send(encode(1)))
                depths.append(len(traceback.extract_tb(error.__traceback__)))
            assert len(set(depths)) == 1

    run(main())


def test_closing_a_listener_ends_everything(way: Way) -> None:
    async def main() -> None:
        async with broker(way) as at, raw(at, shake=False):
            link = await at.link()
            await until(lambda: at.listener._greeting and at.served)
            await at.listener.close()
            assert [message async for message in link] == []
            assert at.listener.links == []
            await link.close()

    run(main())


def test_a_reader_of_frames_and_a_link_agree(way: Way) -> None:
    # What a link sends can be read by anybody who knows the format, byte by byte.
    async def main() -> None:
        async with broker(way) as at, raw(at) as client:
            client.write(frame_of([encode("x"), Encoded(b"\x01")]))
            reader = FrameReader()
            found: list[Wire] = []
            while len(found) < 2:
                for view in reader.feed(await client.reader.read(1)):
                    found += decode_messages(view)
            assert found == ["x", 1]

    run(main())
