"""The connections of a fabric to NATS servers: one for each priority that is used, open over restarts of the server."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeVar

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg

from penstock.errors import FailedError, MalformedError, PenstockError, RefusedError
from penstock.fabric.nats_api import (
    NO_MESSAGE,
    NO_STREAM,
    NOT_STORED,
    PURGE_FAILED,
    TRANSIENT,
    AnswerError,
    ApiError,
    MessageSink,
    NatsClient,
    ask,
    close_socket,
    compare_and_set,
    connect,
    doubling,
    is_refusal,
    payload,
    retried,
    settle,
    shut,
    whole,
)
from penstock.fabric.nats_login import (
    AddressError,
    HandshakeError,
    LoginError,
    NatsLogin,
    NotInstalledError,
    address,
)
from penstock.fabric.nats_names import NatsNames
from penstock.fabric.port import closed
from penstock.fabric.qos import Priority
from penstock.fabric.tasks import keep_running, report

_T = TypeVar("_T")
_PAUSE: Final = 0.02  # seconds before the first retry; doubles
_LONGEST_PAUSE: Final = 0.5
_FLUSHING: Final = 2
UNREACHABLE: Final = "fabric.unreachable"
_AGAIN: Final = 0.05  # seconds between two attempts to get a connection back
_LOOK: Final = 0.5  # seconds between two looks at whether connections are still read


class NatsLink(NatsNames):
    """Connections by priority, and calls that are repeated until they succeed or patience ends."""

    def __init__(self, login: NatsLogin, *, prefix: str, domain: str, timeout: float, patience: float) -> None:
        super().__init__(prefix, domain)
        self._login = login
        self.timeout = timeout
        self.patience = patience
        self._clients: dict[Priority, NatsClient] = {}
        self._opening = asyncio.Lock()
        self._complaint = ""
        self._listening: dict[Listening | DirectListening, None] = {}
        self._reviving: set[asyncio.Task[None]] = set()
        self._watching: asyncio.Task[None] | None = None
        self.returned: dict[object, Callable[[], None]] = {}  # called when a connection is back
        self.left: dict[object, Callable[[], None]] = {}  # called when a connection is gone
        self.closed = False

    async def client(self, priority: Priority = Priority.NORMAL) -> NatsClient:
        """Return the connection for a priority.

        Raises `FailedError` (`fabric.unreachable`, `fabric.credentials`, `fabric.not-installed`) and `RefusedError`
        (`fabric.unauthorized`, `fabric.tls`, `fabric.closed`).
        """
        async with self._opening:
            self._check_open()
            found = self._clients.get(priority)
            if found is None or found.is_closed:
                found = await self._open(priority)
                try:
                    self._check_open()
                except RefusedError:
                    # The link was closed meanwhile, without this connection.
                    await shut(found)
                    raise
                self._clients[priority] = found
            if self._watching is None:
                self._watching = keep_running("watching connections to NATS", self._watch)
            return found

    def _check_open(self) -> None:
        if self.closed:
            raise closed()

    async def _open(self, priority: Priority) -> NatsClient:
        # The first connection fails with a reason. The one that stays reconnects by itself, and would not give up.
        await shut(await self._connected(priority, stay=False))
        return await self._connected(priority, stay=True)

    async def _watch(self) -> None:
        """Close connections that nats-py does not read any more: `_lost` opens others."""
        while True:
            await asyncio.sleep(_LOOK)
            for priority, client in list(self._clients.items()):
                if client.is_connected and not client.reads:
                    report(f"the {priority.value} connection to NATS", ConnectionError("it is not read any more"))
                    await shut(client)

    async def _connected(self, priority: Priority, *, stay: bool) -> NatsClient:
        try:
            return await connect(
                self._login.arguments(),
                timeout=self.timeout,
                name=f"penstock.fabric {priority.value}",
                allow_reconnect=stay,
                max_reconnect_attempts=-1 if stay else 1,
                reconnect_time_wait=_AGAIN,
                error_cb=self._hear,
                disconnected_cb=self._away,
                reconnected_cb=self._back,
                closed_cb=partial(self._lost, priority) if stay else None,
            )
        except LoginError as error:
            raise _refused(error, self._login.servers) from error
        except TRANSIENT as error:
            raise self.unreachable(error) from error

    async def call(
        self,
        work: Callable[[NatsClient], Awaitable[_T]],
        *,
        priority: Priority = Priority.NORMAL,
        patience: float | None = None,
    ) -> _T:
        """Do some work; repeat it while the server does not answer, for at most `patience` seconds.

        `work` may run several times. Raises `FailedError` (`fabric.unreachable`), `RefusedError`
        (`fabric.unauthorized`), and `ApiError` if the server answers with an error that a retry does not mend.
        """
        self._complaint = ""  # an older complaint is about another call

        async def once() -> _T:
            return await work(await self.client(priority))

        try:
            return await retried(once, self._pauses(self.patience if patience is None else patience), _may_pass)
        except (ApiError, FailedError, *TRANSIENT) as error:
            if _may_pass(error):
                reason = self.unreachable(error)
                self._complaint = ""  # it was about this call, not about one that made it
                raise reason from error
            raise

    def _pauses(self, patience: float) -> Iterator[float]:
        loop = asyncio.get_running_loop()
        end = loop.time() + patience
        for pause in doubling(_PAUSE, _LONGEST_PAUSE):
            if loop.time() + pause > end or self.closed or "permissions violation" in self._complaint:
                return
            yield pause

    async def ask(self, subject: str, body: object = None) -> dict[str, Any]:
        """Ask the JetStream API. Raises as `call`."""
        return await self.call(lambda client: ask(client, f"{self.api}.{subject}", body, timeout=self.timeout))

    async def last(self, stream: str, subject: str) -> tuple[bytes, int] | None:
        """Return the last message on a subject and its sequence. Raises as `call`."""

        async def read(client: Client) -> tuple[bytes, int]:
            body = {"last_by_subj": subject}
            return payload(await ask(client, f"{self.api}.STREAM.MSG.GET.{stream}", body, timeout=self.timeout))

        try:
            return await self.call(read)
        except ApiError as error:
            if error.number in (NO_MESSAGE, NO_STREAM):
                return None
            raise

    async def replace(self, subject: str, value: object, revision: int) -> bool:
        """Put a value into the registry, as JSON, if nobody has stored another since; say whether it was stored.

        Raises as `call`.
        """
        data = json.dumps(value).encode()
        return await self.call(
            lambda c: compare_and_set(c, subject, data, revision, stream=self.registry, timeout=self.timeout)
        )

    async def clear(self, stream: str) -> None:
        """Delete a stream whose files are gone. Raises as `call`, except for a user who may not do this.

        A server that deletes a stream to which others write may keep it without its files (2.15.1 does): it says that
        the stream is empty, and never answers who writes to it. To purge what is before the next sequence loses nothing
        of any stream, and fails only for such a one.
        """
        with suppress(RefusedError, AnswerError):
            try:
                info = await self.ask(f"STREAM.INFO.{stream}")
                last = whole(info, "state", "last_seq")
                if last and not whole(info, "state", "messages"):
                    await self.ask(f"STREAM.PURGE.{stream}", {"seq": last + 1})
            except ApiError as error:
                if error.number == PURGE_FAILED:
                    with suppress(ApiError):
                        await self.ask(f"STREAM.DELETE.{stream}")

    def unreachable(self, cause: Exception) -> FailedError | RefusedError:
        """Return the error for a server that does not answer, or does not let us."""
        if is_refusal(cause, self._complaint):
            return RefusedError(
                "fabric.unauthorized",
                f"the server at {self._login.servers} does not let us in",
                hint="check the credentials, and the rights of that user",
            )
        return FailedError(
            UNREACHABLE,
            f"no server answers at {self._login.servers}: {type(cause).__name__}",
            hint="check the address, and that the server runs with JetStream",
            servers=self._login.servers,
        )

    async def close(self) -> None:
        """Close all connections."""
        self.closed = True
        tasks = [*self._reviving, *([self._watching] if self._watching is not None else [])]
        for task in tasks:
            task.cancel()
        try:
            await asyncio.gather(*tasks, return_exceptions=True)
            for client in list(self._clients.values()):
                await shut(client)
        finally:
            # Also if the caller of `close` was cancelled.
            for client in self._clients.values():
                close_socket(client)
            self._clients = {}

    async def _hear(self, error: Exception) -> None:
        if isinstance(error, nats.errors.Error):
            self._complaint = str(error).lower()
        elif not isinstance(error, OSError):
            report("a message from NATS", error)  # what one of our callbacks raised

    async def _back(self) -> None:
        self._complaint = ""
        for call in list(self.returned.values()):
            call()

    async def _away(self) -> None:
        for call in list(self.left.values()):
            call()

    async def _lost(self, priority: Priority) -> None:
        """Reconnect after nats-py has given up, which it does when a server says that it shuts down."""
        if not self.closed:
            task = keep_running("connecting to NATS again", partial(self._revive, priority))
            self._reviving.add(task)
            task.add_done_callback(self._reviving.discard)

    async def _revive(self, priority: Priority) -> None:
        async def once() -> None:
            if self.closed:
                return
            client = await self.client(priority)
            for listening in [each for each in self._listening if each.priority is priority]:
                await listening.attach(client)

        await retried(
            once, doubling(_PAUSE, _LONGEST_PAUSE), lambda error: isinstance(error, (PenstockError, *TRANSIENT))
        )
        if not self.closed:
            await self._back()

    async def listen(self, listening: "Listening | DirectListening") -> None:
        """Subscribe to a subject, on this connection and on later ones. Raises as `call`."""
        try:
            await self.call(listening.attach, priority=listening.priority)
        except BaseException:
            # It may have subscribed, and the server has not said so.
            await listening.detach()
            raise
        self._listening[listening] = None

    async def unlisten(self, listening: "Listening | DirectListening") -> None:
        """Unsubscribe from a subject."""
        self._listening.pop(listening, None)
        await listening.detach()


class Listening:
    """A subscription to a subject, on the current connection."""

    def __init__(
        self,
        subject: str,
        hear: Callable[[Msg], Awaitable[None]],
        *,
        priority: Priority,
        queue: str = "",
        pending: int = 0,
    ) -> None:
        self.subject = subject
        self.priority = priority
        self._hear = hear
        self._queue = queue
        self._pending = pending
        self._of: Client | None = None
        self._inbox: Any = None  # the subscription there, if any

    async def attach(self, client: Client) -> None:
        """Subscribe on this connection, and wait until the server has taken it in. Raises as nats-py."""
        if self._of is not client:
            self._inbox = await client.subscribe(
                self.subject,
                queue=self._queue,
                cb=self._hear,
                pending_msgs_limit=self._pending,
                pending_bytes_limit=0,
            )
            self._of = client
        await settle(client, _FLUSHING)

    async def detach(self) -> None:
        """Unsubscribe, and wait until the server has taken it in, if it is connected."""
        if self._of is not None and self._inbox is not None:
            with suppress(*TRANSIENT):
                await self._inbox.unsubscribe()
                if self._of.is_connected:
                    await settle(self._of, _FLUSHING)


class DirectListening:
    """Subscriptions to subjects, on the current connection, whose bytes are taken directly; subjects come and go."""

    def __init__(self, subjects: Mapping[str, MessageSink], priority: Priority) -> None:
        self.priority = priority
        self._sinks = dict(subjects)
        self._of: NatsClient | None = None
        self._made: dict[str, Any] = {}  # the subscription of each subject there

    async def attach(self, client: NatsClient) -> None:
        """Subscribe on this connection, and wait until the server has taken it in. Raises as nats-py."""
        if self._of is not client:
            self._of, self._made = client, {}
        for subject in self._sinks.keys() - self._made.keys():
            await self._subscribe(client, subject)
        await settle(client, _FLUSHING)

    async def _subscribe(self, client: NatsClient, subject: str) -> None:
        made = self._made[subject] = await client.subscribe(subject)
        client.sinks[made._id] = self._sinks[subject]  # noqa: SLF001  # nats-py shows it nowhere else

    async def add(self, client: NatsClient, subject: str, sink: MessageSink) -> None:
        """Subscribe to one more subject; whatever this connection sends later comes after it. Raises as nats-py."""
        self._sinks[subject] = sink
        if self._of is client:
            await self._subscribe(client, subject)
        else:
            await self.attach(client)

    async def drop(self, subject: str) -> None:
        """Unsubscribe from a subject."""
        self._sinks.pop(subject, None)
        made = self._made.pop(subject, None)
        if self._of is not None and made is not None:
            self._of.sinks.pop(made._id, None)  # noqa: SLF001  # as above
            with suppress(*TRANSIENT):
                await made.unsubscribe()

    async def detach(self) -> None:
        """Unsubscribe from all, and wait until the server has taken it in, if it is connected."""
        for subject in [*self._made]:
            await self.drop(subject)
        if self._of is not None and self._of.is_connected:
            with suppress(*TRANSIENT):
                await settle(self._of, _FLUSHING)


def checked(login: NatsLogin | str) -> NatsLogin:
    """Return a login with whole addresses. Raises `MalformedError` (`fabric.bad-address`)."""
    given = NatsLogin((login,)) if isinstance(login, str) else login
    try:
        return replace(given, urls=tuple(address(url) for url in given.urls))
    except AddressError as error:
        raise MalformedError(
            "fabric.bad-address",
            "not an address of a NATS server, or one with a secret in it",
            hint="write `nats://host:port` or `tls://host:port`; secrets come in files (`NatsLogin`)",
        ) from error


def _may_pass(error: Exception) -> bool:
    """Say whether a retry may succeed after this error."""
    if isinstance(error, ApiError):
        return error.status == 503 and error.number != NOT_STORED
    if isinstance(error, FailedError):
        return error.code == UNREACHABLE
    return isinstance(error, TRANSIENT) and not isinstance(error, nats.errors.MaxPayloadError)


def _refused(error: LoginError, servers: str) -> FailedError | RefusedError:
    if isinstance(error, HandshakeError):
        return RefusedError(
            "fabric.tls", f"no TLS with the server at {servers}: {error.option}", hint="check the certificates"
        )
    if isinstance(error, NotInstalledError):
        return FailedError(
            "fabric.not-installed", "credentials and nkeys need nkeys", hint="pip install 'penstock[nats]'"
        )
    return FailedError("fabric.credentials", f"the file for `{error.option}` cannot be used", option=error.option)
