"""Connecting to a NATS server and asking its JetStream API, the same for the fabric and for JetStream on Spark.

Anybody who may publish to an inbox can answer in the server's place. So each answer is checked: one that JetStream
cannot have sent raises `AnswerError`, and is treated as a lost answer.
"""

import asyncio
import base64
import json
import ssl
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from typing import Any, Final, TypeVar

from nats.aio.client import DEFAULT_FLUSH_TIMEOUT, Client
from nats.aio.msg import Msg
from nats.errors import Error, InvalidUserCredentialsError

from penstock.fabric.nats_login import HandshakeError, NotInstalledError, UnreadableError
from penstock.fabric.tasks import heeding

_T = TypeVar("_T")
NO_STREAM: Final = 10059
NO_MESSAGE: Final = 10037
STREAM_DIFFERS: Final = 10058
PURGE_FAILED: Final = 10051
NOT_STORED: Final = 10077  # the description says why: the bounds of the stream, or its files
WRONG_LAST: Final = frozenset({10071, 10164})
_CLOSING: Final = 1.0  # seconds
#: characters of a server's description that go into messages and logs
_DESCRIPTION: Final = 200
#: seconds between two pings, and how many may go unanswered until nats-py connects again
_PING: Final = 10
_PINGS: Final = 3
_MOST: Final = 2**63  # sequences and counts are below


#: takes the data, reply subject, headers and subject of a message as they came, and returns what is left to do
MessageSink = Callable[[bytes, bytes, bytes, bytes], Awaitable[None] | None]


class ApiError(Exception):
    """The server answered with an error."""

    def __init__(self, error: dict[str, Any]) -> None:
        self.answer = error
        self.status = whole(error, "code", default=0)
        self.number = whole(error, "err_code", default=0)
        self.description = text(error, "description", default="no reason given")[:_DESCRIPTION]
        super().__init__(self.description)


class AnswerError(Exception):
    """An answer that JetStream cannot have given."""


#: what may pass when the connection or the server comes back
TRANSIENT: Final = (OSError, TimeoutError, Error, AnswerError)


class NatsClient(Client):
    """A client that goes on reading after any message, and that can be cancelled at any time.

    nats-py ends its reading task on a subject, reply subject or header that is not UTF-8, and stays connected. This
    client replaces bytes that are not UTF-8 and delivers the message: a stream reader that never got it would request
    it again and again. nats-py also swallows cancellations (see `heeding`), after which a task would never end.
    """

    #: messages that could not be read
    unreadable = 0

    def __init__(self) -> None:
        super().__init__()
        #: by subscription, what takes its messages directly, without a queue and a task
        self.sinks: dict[int, MessageSink] = {}

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
        sink = self.sinks.get(sid)
        if sink is not None:
            self.stats["in_msgs"] += 1
            self.stats["in_bytes"] += len(data)
            try:
                more = sink(data, reply, headers, subject)
                if more is not None:
                    await more
            except Exception:  # noqa: BLE001  # as below
                self.unreadable += 1
            return
        subject, reply, headers = (part and _as_text(part) for part in (subject, reply, headers))
        try:
            await super()._process_msg(sid, subject, reply, data, headers)
        except Exception:  # noqa: BLE001  # a stranger's message must not keep the next one from being read
            self.unreadable += 1

    async def _connect_to_server(self, s: Any) -> None:
        # A connection on which the server did not introduce itself is forgotten by nats-py, with its socket open.
        close_socket(self)
        try:
            await heeding(super()._connect_to_server(s))
        except asyncio.CancelledError:
            # The client was closed while it connected again: nobody else closes what has just been opened.
            close_socket(self)
            raise

    async def connect(self, *args: Any, **options: Any) -> None:
        """Connect as nats-py does."""
        await heeding(super().connect(*args, **options))

    async def request(self, *args: Any, **options: Any) -> Msg:
        """Ask as nats-py does."""
        return await heeding(super().request(*args, **options))

    async def flush(self, timeout: int = DEFAULT_FLUSH_TIMEOUT) -> None:
        """Wait as nats-py does, until the server has answered."""
        await heeding(super().flush(timeout))

    @property
    def reads(self) -> bool:
        """Say whether the task that reads from the server runs, as far as nats-py shows."""
        task = getattr(self, "_reading_task", None)
        return not isinstance(task, asyncio.Task) or not task.done()


def _as_text(raw: bytes) -> bytes:
    return raw if raw.isascii() else raw.decode("utf-8", "replace").encode()


async def connect(arguments: dict[str, Any], *, timeout: float, **options: Any) -> NatsClient:
    """Return a connection with the arguments of `NatsLogin`; one that fails is closed.

    Raises `LoginError`, and as nats-py where the server does not answer or refuses.
    """
    client = NatsClient()
    try:
        await _log_in(client, arguments, timeout=timeout, **options)
    except asyncio.CancelledError:
        close_socket(client)
        raise
    except Exception:  # whatever it is, the connection must not stay open
        await shut(client)
        raise
    return client


async def _log_in(client: Client, arguments: dict[str, Any], *, timeout: float, **options: Any) -> None:
    try:
        async with asyncio.timeout(timeout * (len(arguments["servers"]) + 1)):
            await client.connect(
                **arguments,
                connect_timeout=max(1, round(timeout)),
                ping_interval=_PING,
                max_outstanding_pings=_PINGS,
                **options,
            )
    except ssl.SSLError as error:
        raise HandshakeError(error.reason or "the handshake failed") from error
    except ImportError as error:
        raise NotInstalledError("nkeys") from error
    except (FileNotFoundError, IsADirectoryError, PermissionError) as error:
        raise UnreadableError("credentials or nkey") from error
    except (ValueError, InvalidUserCredentialsError) as error:
        raise UnreadableError("credentials or nkey") from error


def doubling(first: float, longest: float) -> Iterator[float]:
    """Yield pauses in seconds, each twice as long as the one before up to the longest."""
    while True:
        yield first
        first = min(2 * first, longest)


async def retried(
    work: Callable[[], Awaitable[_T]], pauses: Iterator[float], may_pass: Callable[[Exception], bool]
) -> _T:
    """Do some work; after an error that `may_pass`, do it again after the next pause. Raises the last error."""
    while True:
        try:
            return await work()
        except Exception as error:  # `may_pass` says which errors are repeated; all others are raised
            pause = next(pauses, None) if may_pass(error) else None
            if pause is None:
                raise
        await asyncio.sleep(pause)


def is_refusal(error: Exception, complaint: str) -> bool:
    """Say whether an error, or what the server complained about, means that it refuses this user."""
    said = f"{error} {complaint}".lower()
    return "authorization" in said or "permissions violation" in said


async def settle(client: Client, timeout: int) -> None:
    """Wait until the server has all messages sent so far, at most twice `timeout` seconds. Raises as nats-py."""
    # The ping of nats-py overtakes messages that wait to be sent; those are sent before the second ping.
    for _ in range(2):
        await client.flush(timeout)


async def shut(client: Client) -> None:
    """Close a connection, in bounded time."""
    # nats-py asserts that it began to connect, and after a failed TLS handshake it waits indefinitely.
    try:
        with suppress(*TRANSIENT, AssertionError):
            async with asyncio.timeout(_CLOSING):
                await heeding(client.close())
    finally:
        # If that took too long, the socket is still open although nats-py considers the connection closed.
        close_socket(client)
    await asyncio.sleep(0)  # the loop closes the socket in its next round


def close_socket(client: Client) -> None:
    """Close the socket of a connection without waiting."""
    transport = getattr(client, "_transport", None)
    # TLS would wait for the server, and asyncio cannot abort a transport closed twice: abort the one beneath TLS.
    writer = getattr(transport, "_bare_io_writer", None)
    if isinstance(writer, asyncio.StreamWriter):
        writer.transport.abort()
    elif transport is not None:
        transport.close()


async def ask(client: Client, subject: str, body: object = None, *, timeout: float) -> dict[str, Any]:
    """Call the API by its full subject and return the answer. Raises `ApiError`, `AnswerError`, and as nats-py."""
    data = b"" if body is None else json.dumps(body).encode()
    return read_answer((await client.request(subject, data, timeout=timeout)).data)


async def store(  # noqa: PLR0913  # a message, where it goes, and what the acknowledgement has to say
    client: Client,
    subject: str,
    value: bytes,
    *,
    stream: str,
    timeout: float,
    headers: dict[str, str] | None = None,
) -> int:
    """Store a message in a stream and return its sequence. Raises `ApiError`, `AnswerError`, and as nats-py."""
    answer = read_answer((await client.request(subject, value, timeout=timeout, headers=headers)).data)
    if text(answer, "stream") != stream:
        raise AnswerError("an acknowledgement of another stream")
    sequence = whole(answer, "seq")
    if not sequence:
        raise AnswerError("an acknowledgement without a sequence")
    return sequence


async def compare_and_set(  # noqa: PLR0913  # a value, where it goes, and what has to be there
    client: Client, subject: str, value: bytes, revision: int, *, stream: str, timeout: float
) -> bool:
    """Store a value if the last one on its subject has this sequence; say whether it was. Raises as `store`."""
    try:
        headers = {"Nats-Expected-Last-Subject-Sequence": str(revision)}
        await store(client, subject, value, stream=stream, timeout=timeout, headers=headers)
    except ApiError as error:
        if error.number in WRONG_LAST:
            return False
        raise
    return True


def read_answer(data: bytes) -> dict[str, Any]:
    """Read an answer of the API. Raises `ApiError` if it says that something failed, and `AnswerError`."""
    try:
        answer = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise AnswerError("not JSON") from error
    if not isinstance(answer, dict):
        raise AnswerError("not an object")
    if "error" in answer:
        if not isinstance(answer["error"], dict):
            raise AnswerError("`error` is not an object")
        raise ApiError(answer["error"])
    return answer


def whole(answer: dict[str, Any], *path: str, default: int | None = None) -> int:
    """Return the sequence or count at a path. Raises `AnswerError`."""
    found = _at(answer, path, default)
    if type(found) is not int or not 0 <= found < _MOST:
        raise AnswerError(f"`{path[-1]}` is not a count")
    return found


def text(answer: dict[str, Any], *path: str, default: str | None = None) -> str:
    """Return the text at a path. Raises `AnswerError`."""
    found = _at(answer, path, default)
    if not isinstance(found, str):
        raise AnswerError(f"`{path[-1]}` is not a text")
    return found


def sequences(answer: dict[str, Any], *path: str) -> list[int]:
    """Return the sequences at a path, in order; an empty list if the path is missing. Raises `AnswerError`."""
    found = _at(answer, path, None) or []
    if not isinstance(found, list) or any(type(one) is not int or not 0 <= one < _MOST for one in found):
        raise AnswerError(f"`{path[-1]}` is not a list of sequences")
    return sorted(found)


def payload(answer: dict[str, Any]) -> tuple[bytes, int]:
    """Return data and sequence of the message in an answer. Raises `AnswerError`."""
    try:
        data = base64.b64decode(text(answer, "message", "data", default=""), validate=True)
    except ValueError as error:
        raise AnswerError("`data` is not base64") from error
    return data, whole(answer, "message", "seq")


def _at(answer: object, path: tuple[str, ...], default: object) -> object:
    for name in path:
        if not isinstance(answer, dict):
            raise AnswerError(f"`{name}` is missing")
        answer = answer.get(name, default if name == path[-1] else None)
    return answer
