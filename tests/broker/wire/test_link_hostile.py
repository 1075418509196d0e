"""Peers that keep no rules are cut, told why, and disturb nobody, whatever way the link goes."""

from contextlib import suppress
from dataclasses import replace

import pytest
from tests.broker.link_kit import (
    BROKER,
    CLIENT,
    LIMITS,
    MALLORY,
    Way,
    broker,
    endpoint,
    gather,
    raw,
    refused,
    run,
    until,
    wait_for_the_end,
    works,
)

from penstock.broker.wire.link import Link, Rate
from penstock.codec.wire import KEEPALIVE, Wire, decode_messages, encode, raw_frame
from penstock.codec.wire import frame as frame_of
from penstock.errors import RefusedError


def test_frames_that_are_too_large_or_no_handshake_are_refused_before_it(way: Way) -> None:
    async def main() -> None:
        async with broker(way) as at:
            for data, code in (
                ((2_000).to_bytes(4, "big"), "frame.limit"),
                (KEEPALIVE + (2_000).to_bytes(4, "big"), "frame.limit"),
                (b"GET / HTTP/1.1\r\n\r\n", "frame.limit"),
                (frame_of([encode("let me in")]), "handshake.malformed"),
            ):
                async with raw(at, shake=False) as client:
                    await client.frame()
                    client.write(data)
                    assert await client.goodbye() == encode(code)
                assert at.codes[-1] == code
            await works(at)

    run(main())


@pytest.mark.parametrize(
    ("data", "code"),
    [
        ((LIMITS.codec.frame_bytes + 1).to_bytes(4, "big"), "frame.limit"),
        (b"\xff\xff\xff\xff", "frame.limit"),
        (raw_frame(b"\xc1"), "wire.malformed"),
        (raw_frame(b"\x01"), "wire.malformed"),
        (raw_frame(b"\x91" * 40), "wire.malformed"),
        (raw_frame(b"\x91" * 40 + b"\x01"), "wire.limit"),
        (raw_frame(b"\xdc\xff\xff" + b"\x01" * 65_535), "wire.malformed"),
        (raw_frame(b"\xa3no!"), "link.goodbye"),
        (raw_frame(b"\xa2\xff\xff"), "wire.malformed"),
        (KEEPALIVE * 1_000, "link.flood"),
    ],
)
def test_a_peer_that_breaks_the_rules_is_cut_and_told_why(way: Way, data: bytes, code: str) -> None:
    async def main() -> None:
        async with broker(way) as at, raw(at) as client:
            client.write(data)
            assert await client.goodbye() == encode(code)
            await at.ended(code)
            await works(at)

    run(main())


def test_what_came_before_a_bad_frame_is_taken(way: Way) -> None:
    async def main() -> None:
        found: list[Wire] = []

        async def collect(link: Link) -> None:
            await gather(link, found)

        async with broker(way, serve=collect) as at, raw(at) as client:
            client.write(frame_of([encode(1), encode(2)]) + raw_frame(b"\x93"))
            await at.ended("wire.malformed")
            assert found == [1, 2]

    run(main())


@pytest.mark.parametrize(
    ("last", "code"), [(b"", "link.lost"), (b"\x00", "frame.truncated"), (raw_frame(b"cut")[:-1], "frame.truncated")]
)
def test_an_end_without_a_goodbye_is_no_end_in_peace(way: Way, last: bytes, code: str) -> None:
    async def main() -> None:
        for abort in (False, True):
            async with broker(way) as at, raw(at) as client:
                client.write(frame_of([encode("heard")]) + last)
                assert decode_messages(await client.frame()) == ["heard"]
                if abort:
                    client.writer.transport.abort()
                else:
                    client.writer.close()
                await at.ended(code)

    run(main())


def test_a_peer_that_does_not_read_is_cut_and_others_are_served(way: Way) -> None:
    limits = replace(LIMITS, link_outbox=1 << 20)
    message = encode(bytes(10_000))

    async def main() -> None:
        async with broker(way, limits, wait_for_the_end) as at, raw(at):
            other = await at.link(MALLORY)
            await until(lambda: len(at.served) == 2)
            slow, quick = at.served
            posted = heard = 0
            while slow.ended is None:
                with suppress(RefusedError):
                    slow.post(message)
                quick.post(encode(posted))
                posted += 1
                if posted % 16 == 0:
                    heard += len(await other.receive())
            await refused("link.slow-reader", slow.send(message))
            await refused("link.slow-reader", slow.receive())
            # What the system holds is not ours to bound; what waits here was.
            assert posted * 10_000 < 32 << 20
            while heard < posted:
                heard += len(await other.receive())
            await other.close()

    run(main())


def test_a_peer_that_reads_nothing_for_too_long_is_cut_even_when_little_waits(way: Way) -> None:
    limits = replace(LIMITS, link_stall=100, link_outbox=64 << 20)

    async def fill(link: Link) -> None:
        while True:
            await link.send(encode(bytes(100_000)))

    async def main() -> None:
        async with broker(way, limits, fill) as at, raw(at):
            await at.ended("link.slow-reader")

    run(main())


def test_there_are_only_so_many_links(way: Way) -> None:
    limits = replace(LIMITS, links=1)

    async def main() -> None:
        async with broker(way, limits) as at:
            first = await at.link()
            error = await refused("link.refused", at.link(MALLORY))
            assert error.fields["reason"] == "link.busy"
            await first.close()
            await until(lambda: not at.listener.links)
            await works(at)

    run(main())


def test_the_rate_is_that_of_all_links_together_and_saves_up_no_more_than_a_burst() -> None:
    rate = Rate(10, 5)
    assert rate.charge(5, 0.0) == 0
    assert rate.charge(1, 0.0) == pytest.approx(0.1)
    assert rate.charge(0, 100.0) == 0
    assert rate.charge(10, 100.0) == pytest.approx(0.5)


def test_secrets_do_not_show(way: Way) -> None:
    async def main() -> None:
        async with broker(way) as at:
            link = await at.link()
            for shown in (repr(link), repr(endpoint(CLIENT)), repr(at.listener)):
                assert CLIENT.seed.hex() not in shown
                assert repr(CLIENT.seed)[2:-1] not in shown
            assert repr(link) == f"Link({BROKER.principal.short}, open)"
            await link.close()

    run(main())
