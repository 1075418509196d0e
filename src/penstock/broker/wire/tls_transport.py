"""TLS between a socket and a channel: what arrives is decrypted and handed on, what is sent is encrypted.

asyncio's own TLS does the same in more steps: after each read it tries another one, and each write passes a queue. For
a small message that takes longer than the encryption.
"""

import asyncio
import ssl
from contextlib import suppress
from typing import Any, Final

#: bytes that TLS itself may say on a connection: thousands for the handshake, and some for each new key that the peer
#: asks for. They wait here if the peer does not read.
_WORDS: Final = 64 << 10


class TlsTransport(asyncio.Transport, asyncio.BufferedProtocol):
    """The protocol of a socket's transport, and the transport of a protocol that reads and writes plaintext.

    Closing sends everything, then the end of TLS and of the stream, and waits for the peer's end, `grace` seconds at
    most: a socket that is closed with something unread would destroy what was sent last.
    """

    def __init__(
        self, protocol: asyncio.BufferedProtocol, context: ssl.SSLContext, *, server_side: bool, grace: float
    ) -> None:
        super().__init__()
        self._protocol = protocol
        self._grace = grace
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=server_side)
        self._raw: asyncio.Transport | None = None
        #: where bytes arrive and are decrypted to: the protocol's own buffer, which stays the same
        self._place = memoryview(bytearray())
        #: set when the TLS handshake has succeeded or failed
        self._shaken = asyncio.Event()
        self._is_open = self._is_closing = False
        #: bytes that TLS itself has said
        self._said = 0
        #: why the connection ends
        self._problem: Exception | None = None
        self._timer: asyncio.TimerHandle | None = None

    async def open(self) -> None:
        """Wait for the TLS handshake. Raises `ssl.SSLError` and `OSError`; there is no connection then."""
        try:
            await self._shaken.wait()
        finally:
            if not self._is_open:
                self.abort()
        if not self._is_open:
            raise self._problem or ConnectionResetError

    # What the socket's transport calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin the handshake."""
        if not isinstance(transport, asyncio.Transport):  # pragma: no cover  # connections are
            raise TypeError(type(transport).__name__)
        self._raw = transport
        self._place = memoryview(self._protocol.get_buffer(-1))
        self._shake()

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002  # there is always room for that
        """Return where bytes go that arrive now: where they are decrypted to afterwards."""
        return self._place

    def buffer_updated(self, nbytes: int) -> None:
        """Decrypt so many bytes, and hand them on."""
        if not self._is_closing:
            self._incoming.write(self._place[:nbytes])
            if self._is_open or self._shake():
                self._read()

    def eof_received(self) -> None:
        """Close the socket: nothing more comes. A peer that does not read either is left after the grace."""
        self._end_by_peer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the protocol."""
        if self._timer is not None:
            self._timer.cancel()
        self._problem = self._problem or exc
        self._is_closing = True
        self._raw = None
        self._shaken.set()
        if self._is_open:
            self._protocol.connection_lost(self._problem)

    def pause_writing(self) -> None:
        """Tell the protocol."""
        self._protocol.pause_writing()

    def resume_writing(self) -> None:
        """Tell the protocol."""
        self._protocol.resume_writing()

    # What the protocol calls.

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Encrypt and send."""
        if self._raw is not None and not self._is_closing:
            self._tls.write(data)
            self._raw.write(self._outgoing.read())

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Bound what waits to be sent."""
        if self._raw is not None:
            self._raw.set_write_buffer_limits(high, low)

    def pause_reading(self) -> None:
        """Read nothing more for now."""
        if self._raw is not None and not self._is_closing:
            self._raw.pause_reading()

    def resume_reading(self) -> None:
        """Go on reading."""
        if self._raw is not None:
            self._raw.resume_reading()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return the `ssl_object`, or what the socket's transport says."""
        if name == "ssl_object":
            return self._tls
        return default if self._raw is None else self._raw.get_extra_info(name, default)

    def is_closing(self) -> bool:
        """Say whether the connection closes, or is closed."""
        return self._is_closing

    def close(self) -> None:
        """Send everything, and close when the peer has. See the class."""
        if self._raw is not None and not self._is_closing:
            self._end_tls()
            # The peer may have gone already.
            with suppress(OSError):
                self._raw.write_eof()
            self._raw.resume_reading()

    def abort(self) -> None:
        """End the connection immediately."""
        self._is_closing = True
        if self._raw is not None:
            self._raw.abort()

    # Within.

    def _shake(self) -> bool:
        """Go on with the handshake, and say whether it has succeeded."""
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._flush()
            return False
        except ssl.SSLError as error:
            self._flush()
            self._fail(error)
            return False
        self._flush()
        self._is_open = True
        self._protocol.connection_made(self)
        self._shaken.set()
        return True

    def _read(self) -> None:
        """Hand on everything that can be decrypted. A call of `SSLObject.read` returns one record at most."""
        incoming, tls, place = self._incoming, self._tls, self._place
        while not self._is_closing:
            size, count, found = len(place), 0, 1
            try:
                while found and count < size:
                    found = tls.read(size - count, place[count:] if count else place)  # type: ignore[assignment]  # a number where a buffer is given
                    count += found
                    # Another read would raise an error, which takes longer than all of this.
                    if not incoming.pending:
                        break
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLError as error:
                self._fail(error)
                return
            self._flush()
            if self._said > _WORDS:
                self._fail(ssl.SSLError("the peer asks for too many new keys"))
                return
            if count:
                self._protocol.buffer_updated(count)
            if not found:
                self._end_by_peer()
            # A record that has filled its place may go on.
            if count < size:
                break

    def _flush(self) -> None:
        """Send what TLS itself has to say."""
        if self._raw is not None and self._outgoing.pending:
            self._said += self._outgoing.pending
            self._raw.write(self._outgoing.read())

    def _fail(self, error: Exception) -> None:
        self._problem = error
        self._shaken.set()
        self.abort()

    def _end_by_peer(self) -> None:
        if self._raw is not None and not self._is_closing:
            self._end_tls()
            self._raw.close()

    def _end_tls(self) -> None:
        # This says that nothing more comes; the error says that the peer has not said so yet.
        with suppress(ssl.SSLError):
            self._tls.unwrap()
        self._flush()
        self._is_closing = True
        self._timer = asyncio.get_running_loop().call_later(self._grace, self.abort)
