"""What a client holds: feeds that it publishes, and subscriptions that it reads."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from inspect import isawaitable
from itertools import count
from types import MappingProxyType
from typing import Final, Protocol, Self, TypeAlias

from penstock.broker import protocol
from penstock.broker.rows import Row
from penstock.codec.wire import Wire
from penstock.errors import MalformedError, PenstockError
from penstock.fabric.tasks import in_background
from penstock.model.events import Event
from penstock.model.instants import in_utc
from penstock.model.types import EventType
from penstock.model.values import Kind, Scalar, check_value, checked_value, quick_test

Taken: TypeAlias = Callable[[Event], Awaitable[None] | None]
"""Is called with each event; what it returns is waited for."""

#: events that go in one message, and that wait for who reads before the broker has to
BLOCK: Final = 256
_WAITING: Final = 16_384
_CLOSED: Final = "client.closed"
_NONE: Final[Mapping[str, Scalar]] = MappingProxyType({})


class Session(Protocol):
    """What feeds and subscriptions need of their client."""

    async def publish_rows(self, feed: "Feed", rows: Sequence[Row]) -> None:
        """Publish rows, and wait until they are taken."""

    async def post_rows(self, feed: "Feed", rows: Sequence[Row]) -> None:
        """Publish rows."""

    async def restrictions(self, held: "Feed | Subscription") -> Mapping[str, Wire]:
        """Ask how a request is restricted."""

    async def drop(self, held: "Feed | Subscription") -> None:
        """End a request."""


def call_back(callback: Callable[..., object], *arguments: object) -> object:
    """Call what an application gave; what it raises is the event loop's to report, and the session goes on."""
    try:
        return callback(*arguments)
    except Exception as error:  # noqa: BLE001  # an application may raise anything
        _report(error)
        return None


def _report(error: Exception) -> None:
    context = {"message": "a callback of a Penstock client failed", "exception": error}
    asyncio.get_running_loop().call_exception_handler(context)


class _Held:
    """A request of a client; it `stands` from when it was accepted until it is ended."""

    def __init__(self, session: Session, id: str, event_type: EventType) -> None:  # noqa: A002  # the client's name
        self._session = session
        self.id = id
        self.type = event_type
        self.stands = False
        self.ended: PenstockError | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.type.name.name}, {self.ended.code if self.ended else 'open'})"

    def end(self, error: PenstockError) -> None:
        """Take note that it stands no longer."""
        self.ended = self.ended or error
        self.stands = False

    def check(self) -> None:
        """Raise what it ended with, if it has."""
        if self.ended is not None:
            raise self.ended.with_traceback(None)


class Feed(_Held):
    """An advertisement, and the way to publish under it. `quiet` while nobody wants its events.

    `publish` waits until the broker has taken the event, and raises what it was refused for. `post` does not wait;
    what is refused then is told to `Client.on_refusal`. Events are in order in both ways.
    """

    def __init__(
        self,
        session: Session,
        id: str,  # noqa: A002  # the client's name
        event_type: EventType,
        stem: str,
        clock: Callable[[], datetime],
    ) -> None:
        super().__init__(session, id, event_type)
        self.quiet = False
        self._stem = stem
        self._clock = clock
        self._numbers = count(1)
        self._columns = [(a, a.name, quick_test(a.spec)) for a in event_type.attributes]
        self._names = frozenset(event_type.by_name)
        self._rows: list[Row] = []
        self._flushing: asyncio.Task[None] | None = None

    def request(self, number: int, definitions: tuple[bytes, ...]) -> protocol.Asking:
        """Return what is asked of the broker."""
        return protocol.Advertise(number, self.id, self.type.name, definitions)

    async def publish(self, event: Event | Mapping[str, Scalar] | None = None, /, **attributes: Scalar) -> None:
        """Publish one event, and wait until the broker has taken it.

        Keyword arguments are attributes, whatever their names are. An `Event` brings its own id and time.
        Raises `RefusedError`, `MalformedError` for values that do not fit, `FailedError` (`client.*`).
        """
        self.check()
        row = self._row(event or {}, attributes)
        await self.flush()
        await self._session.publish_rows(self, [row])

    async def publish_many(self, events: Sequence[Event | Mapping[str, Scalar]]) -> None:
        """Publish events together, and wait until the broker has taken them: all but those that it refuses.

        Raises as `publish`, for the first that is refused, whose place is in the error's `position`.
        """
        self.check()
        rows = [self._row(event) for event in events]
        await self.flush()
        await self._session.publish_rows(self, rows)

    async def post(self, event: Event | Mapping[str, Scalar], /) -> None:
        """Publish one event without waiting for an answer; waits only while the broker does not read.

        Raises `MalformedError` for values that do not fit, `FailedError` (`client.*`).
        """
        self.check()
        self._rows.append(self._row(event))
        if len(self._rows) >= BLOCK:
            await self.flush()
        elif self._flushing is None or self._flushing.done():
            self._flushing = in_background("sending posted events", self._flush_soon())

    async def flush(self) -> None:
        """Send what was posted. Raises `FailedError` (`client.*`)."""
        if self._rows:
            rows, self._rows = self._rows, []
            await self._session.post_rows(self, rows)

    async def _flush_soon(self) -> None:
        # Why a feed has ended is told to whoever uses it next.
        with suppress(PenstockError):
            await self.flush()

    async def restrictions(self) -> Mapping[str, Wire]:
        """Ask how the advertisement is restricted. Raises `RefusedError`."""
        return await self._session.restrictions(self)

    async def unadvertise(self) -> None:
        """End the advertisement."""
        await self._session.drop(self)

    def _row(self, event: Event | Mapping[str, Scalar], more: Mapping[str, Scalar] = _NONE) -> Row:
        if isinstance(event, Event):
            if event.type.name != self.type.name:
                raise MalformedError(
                    "event.type",
                    f"an event of `{event.type.name.name}` version {event.type.name.version} is not one of "
                    f"`{self.type.name.name}` version {self.type.name.version}",
                    hint="advertise its type, or use `Client.publish`",
                )
            values, id_, time = event.values, event.id, event.time
        else:
            values, id_, time = event, "", None
        if more:
            values = {**values, **more}
        row: Row = [id_ or f"{self._stem}{next(self._numbers)}", self._clock() if time is None else in_utc(time)]
        if id_:
            check_value(Kind.STRING, id_)
        known = 0
        for attribute, name, fits in self._columns:
            value = values.get(name)
            if value is not None and not fits(value):
                value = checked_value(name, attribute.spec, value)
            known += name in values
            row.append(value)
        if known != len(values):
            unknown = min(values.keys() - self._names)
            raise MalformedError(
                "event.unknown-attribute",
                f"`{self.type.name.name}` has no attribute `{unknown[:80]}`",
                hint=f"it has: {', '.join(self.type.by_name) or 'none'}",
            )
        return row


class Subscription(_Held):
    """A subscription. Iterate over it, or give a callback when it is made. Events come in the order of their source.

    Who does not read keeps its broker from sending, and all that comes to the same client waits with it; a broker cuts
    clients that leave it waiting for long.
    """

    def __init__(
        self,
        session: Session,
        id: str,  # noqa: A002  # the client's name
        event_type: EventType,
        selector: str,
        callback: Taken | None,
    ) -> None:
        super().__init__(session, id, event_type)
        self.selector = selector
        self._callback = callback
        self._names = [attribute.name for attribute in event_type.attributes]
        self._events: deque[Event] = deque()
        self._calling: asyncio.Task[None] | None = None
        self._arrived = asyncio.Event()
        self._room = asyncio.Event()

    def request(self, number: int, definitions: tuple[bytes, ...]) -> protocol.Asking:
        """Return what is asked of the broker."""
        return protocol.Subscribe(number, self.id, self.type.name, self.selector, definitions)

    def take(self, rows: Sequence[Row]) -> Awaitable[None] | None:
        """Take events that have come; return what is to be waited for, because they are not read fast enough."""
        event_type, names, width = self.type, self._names, len(self._names) + 2
        for row in rows:
            if len(row) != width:
                raise MalformedError("protocol.row", f"an event of `{event_type.name.name}` has other attributes")
            values: Mapping[str, Scalar] = MappingProxyType(dict(zip(names, row[2:], strict=True)))  # type: ignore[arg-type]  # the broker's word
            self._events.append(Event(event_type, values, row[0], row[1]))  # type: ignore[arg-type]  # seen when read
        if self._callback is not None and (self._calling is None or self._calling.done()):
            self._calling = in_background("calling back", self._call(self._callback))
        self._arrived.set()
        if len(self._events) < _WAITING:
            return None
        self._room.clear()
        return self._wait_for_room()

    async def _wait_for_room(self) -> None:
        await self._room.wait()

    async def _call(self, callback: Taken) -> None:
        """Give what has come to the callback. In a task of its own, so that it may ask the broker something too."""
        while self._events:
            answer = call_back(callback, self._take_one())
            if isawaitable(answer):
                try:
                    await answer
                except Exception as error:  # noqa: BLE001  # an application may raise anything
                    _report(error)

    def end(self, error: PenstockError) -> None:
        """Take note that it stands no longer: who reads gets what has come, and then the error."""
        super().end(error)
        if self._callback is not None and error.code == _CLOSED:
            self._events.clear()
        self._arrived.set()
        self._room.set()

    @property
    def waiting(self) -> int:
        """How many events have come that nobody has read yet."""
        return len(self._events)

    def __aiter__(self) -> AsyncIterator[Event]:
        return self

    async def __anext__(self) -> Event:
        while not self._events:
            if self.ended is not None:
                if self.ended.code == _CLOSED:
                    raise StopAsyncIteration
                raise self.ended.with_traceback(None)
            self._arrived.clear()
            await self._arrived.wait()
        return self._take_one()

    def _take_one(self) -> Event:
        event = self._events.popleft()
        if len(self._events) < _WAITING // 2:
            self._room.set()
        return event

    async def next(self, timeout: float) -> Event:
        """Return the next event. Raises `TimeoutError` when none comes in so many seconds."""
        async with asyncio.timeout(timeout):
            return await anext(self)

    async def restrictions(self) -> Mapping[str, Wire]:
        """Ask how the subscription is restricted. Raises `RefusedError`."""
        return await self._session.restrictions(self)

    async def unsubscribe(self) -> None:
        """End the subscription."""
        await self._session.drop(self)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self.ended is None:
            await self.unsubscribe()
