"""TLS between a socket and a channel, without sockets: bytes go from one side to the other in pieces of any size."""

import asyncio
import ssl
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.broker.link_kit import fresh

from penstock.broker.wire.tls_transport import TlsTransport
from penstock.crypto.tls import client_context, new_certificate, server_context

SERVER = server_context(new_certificate(fresh))
PLACE = 40_000


class Plain(asyncio.BufferedProtocol):
    """What stands in for a channel: it remembers its calls."""

    def __init__(self) -> None:
        self.place = memoryview(bytearray(PLACE))
        self.transport: asyncio.BaseTransport | None = None
        self.heard = b""
        self.paused: list[bool] = []
        self.ends: list[Exception | None] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def get_buffer(self, _sizehint: int) -> memoryview:
        return self.place

    def buffer_updated(self, nbytes: int) -> None:
        self.heard += self.place[:nbytes]

    def pause_writing(self) -> None:
        self.paused.append(True)

    def resume_writing(self) -> None:
        self.paused.append(False)

    def connection_lost(self, exc: Exception | None) -> None:
        self.ends.append(exc)


class Socket(asyncio.Transport):
    """What stands in for a socket's transport: what is written waits until it is carried over."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting = b""
        self.calls: list[str] = []

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert "write_eof" not in self.calls
        self.waiting += bytes(data)

    def write_eof(self) -> None:
        self.calls.append("write_eof")

    def close(self) -> None:
        self.calls.append("close")

    def abort(self) -> None:
        self.calls.append("abort")

    def pause_reading(self) -> None:
        self.calls.append("pause_reading")

    def resume_reading(self) -> None:
        self.calls.append("resume_reading")


class Side:
    def __init__(self, context: ssl.SSLContext, *, server_side: bool, grace: float = 60.0) -> None:
        self.plain, self.socket = Plain(), Socket()
        self.tls = TlsTransport(self.plain, context, server_side=server_side, grace=grace)

    def arrive(self, data: bytes) -> None:
        self.tls.get_buffer(-1)[: len(data)] = data
        self.tls.buffer_updated(len(data))


def carry(sides: tuple[Side, Side], piece: Callable[[], int] = lambda: PLACE) -> None:
    """Carry everything over, in both directions."""
    while any(side.socket.waiting for side in sides):
        for side, other in (sides, sides[::-1]):
            size = piece()
            data, side.socket.waiting = side.socket.waiting[:size], side.socket.waiting[size:]
            if data:
                other.arrive(data)


def shaken(grace: float = 60.0) -> tuple[Side, Side]:
    sides = Side(client_context(), server_side=False, grace=grace), Side(SERVER, server_side=True, grace=grace)
    for side in sides:
        side.tls.connection_made(side.socket)
    carry(sides)
    return sides


def run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(main)


@given(
    st.lists(st.tuples(st.booleans(), st.sampled_from((1, 100, 16_384, 16_385, PLACE, 3 * PLACE + 7))), max_size=6),
    st.lists(st.sampled_from((1, 5, 22, 1_000, 16_406, PLACE)), min_size=1, max_size=8),
)
def test_everything_arrives_in_order_whatever_the_pieces(writes: list[tuple[bool, int]], pieces: list[int]) -> None:
    async def main() -> None:
        sides = shaken()
        sent = [b"", b""]
        for number, (which, size) in enumerate(writes):
            data = bytes((number,)) * size
            sides[which].tls.write(data)
            sent[which] += data
        sizes = iter(pieces * 1_000)
        carry(sides, lambda: next(sizes, PLACE))
        assert [sides[1].plain.heard, sides[0].plain.heard] == sent
        assert all(side.plain.transport is side.tls for side in sides)

    run(main())


def test_what_was_written_arrives_before_the_end_and_both_close() -> None:
    async def main() -> None:
        one, other = sides = shaken()
        one.tls.write(b"the last words")
        one.tls.close()
        one.tls.write(b"too late")
        assert one.tls.is_closing()
        assert one.socket.calls == ["write_eof", "resume_reading"]
        carry(sides)
        assert other.plain.heard == b"the last words"
        # The peer answers the end of TLS with its own, and closes.
        assert other.socket.calls == ["close"]
        for side in sides:
            side.tls.connection_lost(None)
            side.tls.close()
            side.tls.abort()
            assert side.plain.ends == [None]
        assert one.plain.heard == b""

    run(main())


def test_a_peer_that_does_not_end_is_left_after_the_grace() -> None:
    async def main() -> None:
        one, other = shaken(grace=0.0)
        other.tls.write(b"on and on")
        one.tls.close()
        one.arrive(other.socket.waiting)
        assert one.plain.heard == b""
        while one.socket.calls[-1] != "abort":
            await asyncio.sleep(0)

    run(main())


def test_bytes_that_are_not_tls_end_the_connection() -> None:
    async def main() -> None:
        one, other = shaken()
        one.tls.write(b"secret")
        record = bytearray(one.socket.waiting)
        record[-1] ^= 1
        other.arrive(bytes(record))
        assert other.plain.heard == b""
        assert other.socket.calls == ["abort"]
        other.tls.connection_lost(None)
        (error,) = other.plain.ends
        assert isinstance(error, ssl.SSLError)

    run(main())


def test_a_handshake_that_fails_gives_no_connection() -> None:
    async def main() -> None:
        for junk, expected in ((b"GET / HTTP/1.1\r\n\r\n", ssl.SSLError), (b"", ConnectionResetError)):
            side = Side(SERVER, server_side=True)
            opening = asyncio.create_task(side.tls.open())
            await asyncio.sleep(0)
            side.tls.connection_made(side.socket)
            if junk:
                side.arrive(junk)
            else:
                side.tls.connection_lost(None)
            with pytest.raises(expected):
                await opening
            assert side.plain.transport is None
            assert side.plain.ends == []
        side = Side(SERVER, server_side=True)
        side.tls.connection_made(side.socket)
        opening = asyncio.create_task(side.tls.open())
        await asyncio.sleep(0)
        opening.cancel()
        await asyncio.gather(opening, return_exceptions=True)
        assert side.socket.calls == ["abort"]

    run(main())


def test_back_pressure_is_passed_on_in_both_directions() -> None:
    async def main() -> None:
        one, _ = shaken()
        one.tls.pause_writing()
        one.tls.resume_writing()
        assert one.plain.paused == [True, False]
        one.tls.pause_reading()
        one.tls.resume_reading()
        assert one.socket.calls == ["pause_reading", "resume_reading"]

    run(main())
