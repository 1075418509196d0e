"""One connection to a JetStream server for one task: bounded retries, and errors with codes.

A `JetStreamLink` runs its own event loop, because Spark calls readers and writers without one. While no call is running
nothing is read from the socket; so every call takes in all that it asked the server for.

Errors: `jetstream.unreachable` after the retries, `jetstream.unauthorized`, `jetstream.tls`,
`jetstream.no-stream`, `jetstream.refused` for any other answer of the server that is an error, `jetstream.credentials`.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from penstock.errors import FailedError, RefusedError
from penstock.fabric.nats_login import HandshakeError, NotInstalledError, UnreadableError
from penstock.pipeline.jetstream.options import Options, unreadable

try:
    from nats.aio.client import Client

    from penstock.fabric import nats_api
    from penstock.fabric.nats_api import (
        NO_STREAM,
        TRANSIENT,
        ApiError,
        ask,
        connect,
        doubling,
        is_refusal,
        retried,
        sequences,
        shut,
        text,
        whole,
    )
except ImportError as missing:
    raise FailedError(
        "jetstream.not-installed", "`penstock.jetstream` needs nats-py", hint="pip install 'penstock[nats]'"
    ) from missing

_T = TypeVar("_T")
_PAUSE: Final = 0.1  # seconds before the first retry; doubles
_LONGEST_PAUSE: Final = 5.0
_LOOK: Final = 0.2  # seconds after which a wait looks whether the connection is still there


class Interrupted(Exception):  # noqa: N818  # not an error that leaves this room
    """The connection or an answer was lost; the same call may succeed on a new connection."""


#: errors that can disappear on a new connection
_MAY_PASS: Final = (*TRANSIENT, Interrupted)


@dataclass(frozen=True)
class StreamState:
    """The state of a stream, according to its leader."""

    created: str
    first: int
    last: int
    deleted: int
    replicas: int
    retention: str
    duplicate_window: float

    @property
    def next(self) -> int:
        """Return the sequence that the next message will get."""
        return self.last + 1


class JetStreamLink:
    """A connection that opens at the first call and again after a failure."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self._runner = asyncio.Runner()
        self._client: Client | None = None
        self._complaint = ""  # the last message of the server that is not a response: mostly about permissions

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection and the event loop."""
        try:
            self._runner.run(self._disconnect())
        finally:
            self._runner.close()

    def call(self, work: Callable[[Client], Awaitable[_T]]) -> _T:
        """Do some work with a connection, again on a new one when the connection fails.

        `work` may run several times and must expect it. Raises `FailedError` (`jetstream.unreachable`) when the last
        retry failed too, and what `work` raises.
        """
        return self._runner.run(self._call(work))

    async def _call(self, work: Callable[[Client], Awaitable[_T]]) -> _T:
        async def once() -> _T:
            try:
                return await work(await self._connected())
            except _MAY_PASS:
                await self._disconnect()
                raise

        try:
            return await retried(once, islice(doubling(_PAUSE, _LONGEST_PAUSE), self.options.retries), self._may_pass)
        except _MAY_PASS as error:
            raise self._failure(error) from error

    def _may_pass(self, error: Exception) -> bool:
        return isinstance(error, _MAY_PASS) and not is_refusal(error, self._complaint)

    def _failure(self, cause: Exception) -> FailedError | RefusedError:
        servers, attempts = self.options.servers, self.options.retries + 1
        if is_refusal(cause, self._complaint):
            return RefusedError(
                "jetstream.unauthorized",
                f"the server at {servers} does not let us in",
                hint="check option `credentials`, `nkey` or `tokenFile` and the rights of that user",
            )
        return FailedError(
            "jetstream.unreachable",
            f"no JetStream answers at {servers}: {type(cause).__name__} after {attempts} attempts",
            hint="check option `url`, that the server runs with JetStream, and `timeout` and `retries`",
            servers=servers,
        )

    async def _connected(self) -> Client:
        if self._client is not None and self._client.is_connected:
            return self._client
        options = self.options
        arguments = options.arguments()
        await self._disconnect()
        self._complaint = ""
        try:
            self._client = await connect(
                arguments,
                timeout=options.timeout,
                name="penstock.jetstream",
                allow_reconnect=False,
                max_reconnect_attempts=1,
                error_cb=self._hear,
            )
        except HandshakeError as error:
            raise RefusedError(
                "jetstream.tls",
                f"no TLS with the server at {options.servers}: {error.option}",
                hint="check options `tlsCa`, `tlsCert`, `tlsKey` and `tlsHostname`",
            ) from error
        except NotInstalledError as error:
            raise FailedError(
                "jetstream.not-installed",
                "options `credentials` and `nkey` need nkeys",
                hint="pip install 'penstock[nats]'",
            ) from error
        except UnreadableError as error:
            raise unreadable(error.option) from error
        return self._client

    async def _hear(self, error: Exception) -> None:
        """Keep the error that nats-py would log: the call that fails because of it reports it."""
        self._complaint = str(error)

    async def _disconnect(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await shut(client)


async def woken(client: Client, event: asyncio.Event, timeout: float) -> None:
    """Wait for an event that a callback sets. Raises `Interrupted` when the connection ends or the time is over."""
    event.clear()
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout
    while not event.is_set():
        left = deadline - loop.time()
        if left <= 0 or not client.is_connected:
            raise Interrupted("no answer" if client.is_connected else "connection lost")
        with suppress(TimeoutError):
            async with asyncio.timeout(min(left, _LOOK)):
                await event.wait()


async def request(client: Client, options: Options, subject: str, body: object = None) -> dict[str, Any]:
    """Ask the JetStream API, and return its answer.

    Raises `RefusedError` (`jetstream.no-stream`, `jetstream.refused`); `Interrupted` or an error of nats-py where a
    retry may help.
    """
    try:
        return await ask(client, f"{options.api}.{subject}", body, timeout=options.timeout)
    except ApiError as error:
        raise refusal(options, error.answer) from error


def refusal(options: Options, error: dict[str, Any]) -> Exception:
    """Return the exception for an error in a response of the server."""
    if error.get("code") == 503:
        return Interrupted(str(error.get("description", "")))
    if error.get("err_code") == NO_STREAM:
        return RefusedError(
            "jetstream.no-stream",
            f"there is no stream `{options.stream}`",
            hint="check options `stream` and `domain`; a new one is made with NATS's own tools: `nats stream add`",
        )
    return RefusedError(
        "jetstream.refused",
        f"the server refused for stream `{options.stream}`: {error.get('description', 'no reason given')}",
        err_code=error.get("err_code"),
    )


async def stream_state(client: Client, options: Options) -> StreamState:
    """Return the state of the stream. Raises as `request`."""
    info = await request(client, options, f"STREAM.INFO.{options.stream}")
    return StreamState(
        created=text(info, "created"),
        first=whole(info, "state", "first_seq"),
        last=whole(info, "state", "last_seq"),
        deleted=whole(info, "state", "num_deleted", default=0),
        replicas=whole(info, "config", "num_replicas", default=1),
        retention=text(info, "config", "retention", default="limits"),
        duplicate_window=whole(info, "config", "duplicate_window", default=0) / 1e9,
    )


async def deleted_sequences(client: Client, options: Options) -> list[int]:
    """Return the sequences between the first and the last that the stream no longer holds, in order."""
    info = await request(client, options, f"STREAM.INFO.{options.stream}", {"deleted_details": True})
    return sequences(info, "state", "deleted")


async def compare_and_set(  # noqa: PLR0913  # a value, where it goes, and what has to be there
    client: Client, options: Options, subject: str, value: bytes, revision: int, *, stream: str
) -> bool:
    """Store a value if the last one on its subject has this sequence; say whether it was stored."""
    try:
        return await nats_api.compare_and_set(client, subject, value, revision, stream=stream, timeout=options.timeout)
    except ApiError as error:
        raise refusal(options, error.answer) from error
