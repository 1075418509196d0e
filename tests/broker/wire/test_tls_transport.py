"""TLS between a socket and a channel, without sockets: bytes go from one side to the other in pieces of any size."""

import asyncio
import ssl
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA384
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand
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


# What a peer can do that does not use an ordinary TLS library.


class Records:
    """Writes records as a client that has finished its handshake, with its keys (RFC 8446, sections 5.2 and 7)."""

    def __init__(self, keys: Path) -> None:
        (line,) = (line for line in keys.read_text().splitlines() if line.startswith("CLIENT_TRAFFIC_SECRET_0 "))
        self._secret = bytes.fromhex(line.split()[2])
        self._number = 0

    def record(self, kind: int, content: bytes) -> bytes:
        place = (int.from_bytes(self._expand("iv", 12), "big") ^ self._number).to_bytes(12, "big")
        self._number += 1
        head = bytes((23, 3, 3, *(len(content) + 17).to_bytes(2, "big")))
        return head + AESGCM(self._expand("key", 32)).encrypt(place, content + bytes((kind,)), head)

    def new_key(self, *, asks: bool) -> bytes:
        """Return a KeyUpdate, which may ask for a new key of the other side as well (section 4.6.3)."""
        record = self.record(22, bytes((24, 0, 0, 1, asks)))
        self._secret, self._number = self._expand("traffic upd", 48), 0
        return record

    def _expand(self, label: str, size: int) -> bytes:
        text = f"tls13 {label}".encode()
        return HKDFExpand(SHA384(), size, bytes((0, size, len(text), *text, 0))).derive(self._secret)


def served(tmp_path: Path) -> tuple[Records, Side]:
    """Return a server after the handshake, and what writes records to it."""
    context = client_context()
    context.keylog_filename = str(tmp_path / "keys")
    sides = Side(context, server_side=False), Side(SERVER, server_side=True)
    for side in sides:
        side.tls.connection_made(side.socket)
    carry(sides)
    return Records(tmp_path / "keys"), sides[1]


def test_a_peer_that_asks_for_new_keys_and_never_reads_is_cut_off(tmp_path: Path) -> None:
    async def main() -> None:
        records, server = served(tmp_path)
        for _ in range(100):
            server.arrive(records.new_key(asks=True))
        server.arrive(records.record(23, b"still here"))
        assert server.plain.heard == b"still here"
        assert server.socket.calls == []
        for _ in range(5_000):
            # What arrives in between does not help it.
            server.arrive(records.new_key(asks=True) + records.record(23, b"."))
        assert server.socket.calls == ["abort"]
        assert len(server.socket.waiting) < 1 << 20
        server.tls.connection_lost(None)
        assert isinstance(server.plain.ends[0], ssl.SSLError)

    run(main())


def test_empty_records_are_not_the_end_and_endless_ones_are_an_error(tmp_path: Path) -> None:
    async def main() -> None:
        records, server = served(tmp_path)
        server.arrive(b"".join(records.record(23, b"") for _ in range(8)) + records.record(23, b"words"))
        assert server.plain.heard == b"words"
        assert server.socket.calls == []
        server.arrive(b"".join(records.record(23, b"") for _ in range(1_000)))
        assert server.socket.calls == ["abort"]

    run(main())


def test_tiny_records_arrive_as_one(tmp_path: Path) -> None:
    async def main() -> None:
        records, server = served(tmp_path)
        server.arrive(b"".join(records.record(23, bytes((number % 256,))) for number in range(1_500)))
        assert server.plain.heard == bytes(number % 256 for number in range(1_500))

    run(main())


def test_nothing_counts_after_the_end_of_tls(tmp_path: Path) -> None:
    async def main() -> None:
        records, server = served(tmp_path)
        server.arrive(records.record(23, b"first") + records.record(21, bytes((1, 0))) + records.record(23, b"second"))
        server.arrive(records.record(23, b"third"))
        server.tls.write(b"too late")
        assert server.plain.heard == b"first"
        assert server.socket.calls == ["close"]

    run(main())


@pytest.mark.parametrize(
    "content",
    [
        pytest.param((22, bytes((1, 0, 0, 0))), id="a second hello"),
        pytest.param((22, bytes((24, 0, 0, 1, 2))), id="an unknown request for a key"),
        pytest.param((20, b"\x01"), id="a change of ciphers"),
        pytest.param((21, bytes((2, 80))), id="a fatal alert"),
        pytest.param((22, bytes((11, 0xFF, 0xFF, 0xFF)) + bytes(1_000)), id="an endless certificate"),
    ],
)
def test_handshake_messages_after_the_handshake_end_the_connection(content: tuple[int, bytes], tmp_path: Path) -> None:
    async def main() -> None:
        records, server = served(tmp_path)
        server.arrive(records.record(*content))
        assert server.socket.calls == ["abort"]
        assert server.plain.heard == b""

    run(main())


def test_a_peer_that_half_closes_without_a_word_and_does_not_read_is_left_after_the_grace() -> None:
    async def main() -> None:
        one, _ = shaken(grace=0.0)
        one.tls.write(b"what the peer does not read")
        one.tls.eof_received()
        assert one.tls.is_closing()
        one.tls.write(b"too late")
        for _ in range(3):
            await asyncio.sleep(0)
        assert one.socket.calls == ["close", "abort"]

    run(main())


def _plain(kind: int, content: bytes) -> bytes:
    return bytes((kind, 3, 3, *len(content).to_bytes(2, "big"))) + content


@pytest.mark.parametrize(
    ("first", "again"),
    [
        pytest.param(_plain(22, bytes((1, 0xFF, 0xFF, 0xFF))), _plain(22, bytes(16_000)), id="an endless hello"),
        pytest.param(_plain(22, bytes((1, 1, 0xFF, 0xFF))), _plain(22, b"\0"), id="a hello in crumbs"),
        pytest.param(b"", _plain(22, b""), id="empty parts of a hello"),
        pytest.param(b"", _plain(21, bytes((1, 90))), id="warnings"),
        pytest.param(b"", _plain(20, b"\x01"), id="changes of ciphers"),
        pytest.param(b"", _plain(23, b"data"), id="data"),
        pytest.param(bytes((22, 3, 3, 0xFF, 0xFF)), bytes(20_000), id="a record that is too long"),
    ],
)
def test_a_stranger_that_never_finishes_its_hello_takes_little_memory(first: bytes, again: bytes) -> None:
    async def main() -> None:
        server = Side(SERVER, server_side=True)
        server.tls.connection_made(server.socket)
        arrived = first
        if first:
            server.arrive(first)
        while not server.tls.is_closing() and len(arrived) < 1 << 20:
            piece = (again * (PLACE // len(again)))[:PLACE]
            server.arrive(piece)
            arrived += piece
            # TLS keeps a message that is not whole, and nothing else.
            assert server.tls._incoming.pending < 1 << 16
        assert server.socket.calls == ["abort"]
        assert len(server.socket.waiting) < 1_000
        assert server.plain.transport is None

    run(main())
