"""The client: a publisher's or subscriber's side of a session with its local broker.

    async with penstock.connect("penstock://127.0.0.1:7600", network=network, key=key, credentials=mine) as client:
        async for event in client.subscribe("pito/uk.gov.pito.Numberplate", "speed > 50"):
            print(event["plate"], event["speed"])

With an event class (`penstock.event`) in the place of the type's name, `subscribe` yields objects of the class, and
`publish` takes them.

A client keeps its requests and sends them again after a link was lost: it reconnects by itself. Events that were
published in between are lost for it. One copy of each of the last events that a subscription had before is dropped. A
request that waited for its answer then fails (`client.interrupted`): it may have been carried out or not.

A refusal raises `RefusedError` with the broker's code, what was asked in `asked`, and where the owner of the type lets
the client know, what was granted and which right was missing in `detail`. If a right is missing, the message says which
one, and the hint has the command that explains it.

Rights change while a client runs. A subscription or an advertisement without a right is kept, and is active again when
the right is: `Client.watch_rights` reports both.
"""

import asyncio
import secrets
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from inspect import isawaitable
from itertools import count
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, Protocol, Self, TypeAlias, TypeVar, overload

from penstock.broker.client.connection import ActiveRequest, Caller, Connection
from penstock.broker.keys.sealing import open_released
from penstock.broker.limits import BrokerLimits
from penstock.broker.local.type_library import Library
from penstock.broker.wire import protocol
from penstock.broker.wire.link import Endpoint
from penstock.broker.wire.protocol import AskKeys, FetchKeys, KeyWord, Row, write_rows
from penstock.broker.wire.transports import address_of
from penstock.codec.sexp import parse_canonical
from penstock.codec.wire import Encoded, Wire, Writable
from penstock.crypto.hpke import SealingKey
from penstock.crypto.keys import RandomBytes, Signer
from penstock.crypto.wrapping import Secret
from penstock.errors import FailedError, LimitError, MalformedError, PenstockError, RefusedError, did_you_mean
from penstock.fabric.nats_login import NatsLogin
from penstock.fabric.tasks import in_background
from penstock.guard.enforce import row_writer
from penstock.model.event_classes import EventClass, event_class_of
from penstock.model.events import Event
from penstock.model.instants import in_utc
from penstock.model.names import NetworkName, TypeKey, TypeName
from penstock.model.principals import Principal
from penstock.model.types import EventType
from penstock.model.values import Kind, Scalar, check_value
from penstock.store.files.client_files import OmittedArguments, load_credentials, load_key
from penstock.store.files.name_book import NameBook, WrittenNames, load_names
from penstock.trust.capabilities import Right
from penstock.trust.credentials import Credentials
from penstock.trust.event_types import UnverifiedType, read_type
from penstock.trust.key_statements import KeyGroup, KeyRequest, KeyWish
from penstock.trust.refusals import TYPE_USES, CredentialStatus, RightChange, read_revoked
from penstock.trust.signed import sign_value
from penstock.trust.statements import OneTimeQuestion

# ----------------------------------------------------------------------------------------------------------------------
# What a client holds: feeds that it publishes, and subscriptions that it reads.


if TYPE_CHECKING:
    # Type checkers bring these extensions along; a plain `Feed` or `Subscription` is one of `Event`.
    from typing_extensions import TypeVar as DefaultTypeVar

    T = DefaultTypeVar("T", default=Event)
else:
    T = TypeVar("T")

Taken: TypeAlias = Callable[[T], Awaitable[None] | None]
"""Is called with each event; what it returns is waited for."""

#: events that go in one message, and that wait for who reads before the broker has to
BLOCK: Final = 256
_WAITING: Final = 16_384
#: events that a subscription remembers, because they may come again after a reconnection
_REMEMBERED: Final = 1_024
_CLOSED: Final = "client.closed"
_NONE: Final[Mapping[str, Scalar]] = MappingProxyType({})


class FeedSession(Protocol):
    """The part of a client that feeds and subscriptions use."""

    async def publish_rows(self, feed: "Feed[Any]", rows: Sequence[Row]) -> None:
        """Publish rows, and wait until they are taken."""

    def post_rows(self, head: Sequence[Writable], rows: Sequence[Row]) -> list[Encoded]:
        """Send rows behind a message's first words as far as nothing has to wait; return the other messages."""

    async def send_rows(self, left: Sequence[Encoded], head: Sequence[Writable], rows: Sequence[Row]) -> None:
        """Send messages that are left, and then rows behind a message's first words, as soon as the broker reads."""

    async def restrictions(self, held: "Feed[Any] | Subscription[Any]") -> Mapping[str, Wire]:
        """Ask how a request is restricted."""

    async def drop(self, held: "Feed[Any] | Subscription[Any]") -> None:
        """End a request."""


def call_back(callback: Callable[..., object], *arguments: object) -> object:
    """Call an application's callback; report what it raises to the event loop, and go on."""
    try:
        return callback(*arguments)
    except Exception as error:  # noqa: BLE001  # an application may raise anything
        _report(error)
        return None


def _report(error: Exception) -> None:
    context = {"message": "a callback of a Penstock client failed", "exception": error}
    asyncio.get_running_loop().call_exception_handler(context)


class _Held:
    """A request of a client. It is `active` from its acceptance to its end.

    `refusal` says why nothing of it is permitted at present, for a client that watches its rights.
    """

    right: ClassVar[Right]

    def __init__(self, session: FeedSession, id: str, event_type: EventType) -> None:  # noqa: A002  # the client's name
        self._session = session
        self.id = id
        self.type = event_type
        self.active = False
        self.refusal: RefusedError | None = None
        self.ended: PenstockError | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.type.name.name}, {self.ended.code if self.ended else 'open'})"

    def end(self, error: PenstockError) -> None:
        """Record that the request has ended."""
        self.ended = self.ended or error
        self.active = False

    def check(self) -> None:
        """Raise the error that it ended with, if it has ended."""
        if self.ended is not None:
            raise self.ended.with_traceback(None)


class Feed(_Held, Generic[T]):
    """An advertisement, and the way to publish under it. `quiet` while nobody wants its events.

    `publish` waits until the broker has taken the event, and raises what it was refused for. `post` does not wait;
    later refusals go to `Client.on_refusal`. Events are in order in both ways.
    """

    right = Right.PUBLISH

    def __init__(
        self,
        session: FeedSession,
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
        self._names = frozenset(event_type.by_name)
        self._values = row_writer(event_type.attributes)
        self._head: tuple[Writable, ...] = ("publish", 0, id, str(event_type.name))
        self._rows: list[Row] = []
        #: whether what is posted in this turn of the event loop will be sent at its end
        self._flushing = False
        #: messages that could not be sent immediately, and go before all others
        self._left: list[Encoded] = []

    def request(self, number: int, definitions: tuple[bytes, ...]) -> protocol.Asking:
        """Return the request for the broker."""
        return protocol.AdvertiseMessage(number, self.id, self.type.name, definitions)

    async def publish(self, event: T | Event | Mapping[str, Scalar] | None = None, /, **attributes: Scalar) -> None:
        """Publish one event, and wait until the broker has taken it.

        Every keyword argument is an attribute, also `id=` and `time=`. To give an event an id or a time of its own,
        publish an `Event` (`Event.of`, `Event.from_object`).
        Raises `RefusedError`, `MalformedError` for values that do not fit, `FailedError` (`client.*`).
        """
        self.check()
        row = self._row({} if event is None else event, attributes)
        await self.flush()
        await self._session.publish_rows(self, [row])

    async def publish_many(self, events: Sequence[T | Event | Mapping[str, Scalar]]) -> None:
        """Publish events together, and wait until the broker has taken them: all but those that it refuses.

        Raises as `publish`, for the first that is refused, whose place is in the error's `position`.
        """
        self.check()
        rows = [self._row(event) for event in events]
        await self.flush()
        await self._session.publish_rows(self, rows)

    async def post(self, event: T | Event | Mapping[str, Scalar], /) -> None:
        """Publish one event without waiting for an answer; waits only while the broker does not read.

        Raises `MalformedError` for values that do not fit, `FailedError` (`client.*`).
        """
        self.check()
        self._rows.append(self._row(event))
        if len(self._rows) >= BLOCK:
            await self.flush()
        elif not self._flushing:
            # The first event of a turn goes immediately, and those that follow it in one message.
            self._flushing = True
            self._flush_first()
            asyncio.get_running_loop().call_soon(self._flush_last)

    async def flush(self) -> None:
        """Send what was posted. Raises `FailedError` (`client.*`)."""
        if self._rows or self._left:
            left, self._left = self._left, []
            rows, self._rows = self._rows, []
            await self._session.send_rows(left, self._head, rows)

    def _flush_last(self) -> None:
        self._flushing = False
        self._flush_first()

    def _flush_first(self) -> None:
        if self._rows and not self._left:
            rows, self._rows = self._rows, []
            # The next use of a feed raises why it has ended.
            with suppress(PenstockError):
                self._left = self._session.post_rows(self._head, rows)
                if self._left:
                    in_background("sending posted events", self._flush_left())

    async def _flush_left(self) -> None:
        with suppress(PenstockError):
            await self.flush()

    async def restrictions(self) -> Mapping[str, Wire]:
        """Ask how the advertisement is restricted. Raises `RefusedError`."""
        return await self._session.restrictions(self)

    async def unadvertise(self) -> None:
        """End the advertisement."""
        await self._session.drop(self)

    def _row(self, event: T | Event | Mapping[str, Scalar], more: Mapping[str, Scalar] = _NONE) -> Row:
        if isinstance(event, Event):
            if event.type.name != self.type.name:
                raise MalformedError(
                    "event.type",
                    f"an event of `{event.type.name.name}` version {event.type.name.version} is not one of "
                    f"`{self.type.name.name}` version {self.type.name.version}",
                    hint="advertise its type, or use `Client.publish`",
                )
            values, id_, time = event.values, event.id, event.time
        elif isinstance(event, Mapping):
            values, id_, time = event, "", None
        else:
            values, id_, time = event_class_of(type(event)).write(self.type, event), "", None
        if more:
            values = {**values, **more}
        if id_:
            check_value(Kind.STRING, id_)
        if not self._names.issuperset(values):
            unknown = min(values.keys() - self._names)
            raise MalformedError(
                "event.unknown-attribute",
                f"`{self.type.name.name}` has no attribute `{unknown[:80]}`",
                hint=did_you_mean(unknown, self.type.by_name, f"it has: {', '.join(self.type.by_name) or 'none'}"),
            )
        written = id_ or f"{self._stem}{next(self._numbers)}"
        return [written, self._clock() if time is None else in_utc(time), *self._values(values)]


def _hash(row: Row) -> int:
    """Return a hash of an event: its id, its time and what is seen of it."""
    try:
        return hash(tuple(row))
    except TypeError:
        # A value that no event has, which is refused when it is read.
        return hash(row[0])


class Subscription(_Held, Generic[T]):
    """A subscription. Iterate over it, or give a callback when it is made. Events come in the order of their source.

    A slow reader exerts back-pressure on its broker, and everything else for the same client waits too. A broker
    disconnects clients that leave it waiting for long.
    """

    right = Right.SUBSCRIBE

    def __init__(  # noqa: PLR0913  # what a subscription is made of
        self,
        session: FeedSession,
        id: str,  # noqa: A002  # the client's name
        event_type: EventType,
        selector: str,
        *,
        made: Callable[[Event], T] | None = None,
        callback: Taken[T] | None,
    ) -> None:
        super().__init__(session, id, event_type)
        self.selector = selector
        self._made = made
        self._callback = callback
        self._names = [attribute.name for attribute in event_type.attributes]
        self._rows: deque[Row] = deque()
        #: hashes of the last rows that have arrived, and of those before the last reconnection that have had no copy
        self._recent: deque[int] = deque(maxlen=_REMEMBERED)
        self._before: set[int] = set()
        self._calling: asyncio.Task[None] | None = None
        self._arrived = asyncio.Event()
        self._room = asyncio.Event()
        #: whether the broker has to wait until more is read
        self._full = False

    def request(self, number: int, definitions: tuple[bytes, ...]) -> protocol.Asking:
        """Return the request for the broker."""
        return protocol.SubscribeMessage(number, self.id, self.type.name, self.selector, definitions)

    def take(self, rows: Sequence[Row]) -> asyncio.Event | None:
        """Take events that have arrived; return an event to wait for if they are not read fast enough."""
        if not {len(self._names) + 2}.issuperset(map(len, rows)):
            raise MalformedError("protocol.row", f"an event of `{self.type.name.name}` has other attributes")
        hashes = [_hash(row) for row in rows]
        if self._before:
            rows = [row for row, known in zip(rows, hashes, strict=True) if not self._is_copy(known)]
        self._recent.extend(hashes)
        self._rows.extend(rows)
        if self._callback is not None and (self._calling is None or self._calling.done()):
            self._calling = in_background("calling back", self._call(self._callback))
        self._arrived.set()
        if len(self._rows) < _WAITING:
            return None
        self._room.clear()
        self._full = True
        return self._room

    def reconnected(self) -> None:
        """Record that the broker may not know any more which events it has delivered.

        After a restart it takes an event that was under way in the network for a new one.
        """
        self._before = set(self._recent)

    def _is_copy(self, known: int) -> bool:
        """Return whether an event counts as a copy of one from before the last reconnection; each has one copy."""
        if known not in self._before:
            return False
        # A broker takes an event from the network once between its restarts. What comes after that was published again.
        self._before.remove(known)
        return True

    async def _call(self, callback: Taken[T]) -> None:
        """Call the callback with the events that have arrived, in a task of its own: it can send requests."""
        while self._rows:
            answer = call_back(lambda: callback(self._take_one()))
            if isawaitable(answer):
                try:
                    await answer
                except Exception as error:  # noqa: BLE001  # an application may raise anything
                    _report(error)

    def end(self, error: PenstockError) -> None:
        """Record that it has ended: readers get the events that have arrived, and then the error."""
        super().end(error)
        if self._callback is not None and error.code == _CLOSED:
            self._rows.clear()
        self._arrived.set()
        self._room.set()

    @property
    def waiting(self) -> int:
        """The number of events that have arrived and are not read yet."""
        return len(self._rows)

    def __aiter__(self) -> AsyncIterator[T]:
        return self

    async def __anext__(self) -> T:
        while not self._rows:
            if self.ended is not None:
                if self.ended.code == _CLOSED:
                    raise StopAsyncIteration
                raise self.ended.with_traceback(None)
            self._arrived.clear()
            await self._arrived.wait()
        return self._take_one()

    def _take_one(self) -> T:
        id_, time, *values = self._rows.popleft()
        if self._full and len(self._rows) < _WAITING // 2:
            self._full = False
            self._room.set()
        seen: Mapping[str, Scalar] = MappingProxyType(dict(zip(self._names, values, strict=True)))  # type: ignore[arg-type]  # the broker's word
        event = Event(self.type, seen, id_, time)  # type: ignore[arg-type]  # seen when read
        return event if self._made is None else self._made(event)  # type: ignore[return-value]  # T is Event then

    async def next(self, timeout: float) -> T:
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


class Subscribing(Generic[T]):
    """A subscription that is about to be made: await it, enter it with `async with`, or iterate over it directly."""

    def __init__(self, subscribe: Callable[[], Awaitable[Subscription[T]]]) -> None:
        self._subscribe = subscribe
        self._made: Subscription[T] | None = None

    def __await__(self) -> Generator[Any, None, Subscription[T]]:
        return self._subscribe().__await__()

    async def __aiter__(self) -> AsyncIterator[T]:
        """Subscribe, yield events until the client is closed, and unsubscribe if the reader leaves before."""
        async with await self as held:
            async for event in held:
                yield event

    async def __aenter__(self) -> Subscription[T]:
        self._made = await self
        return self._made

    async def __aexit__(self, *_: object) -> None:
        if self._made is not None:
            await self._made.__aexit__()


# ----------------------------------------------------------------------------------------------------------------------
# The client: a publisher's or subscriber's side of a session with its local broker.


@dataclass(frozen=True, slots=True)
class RightNotice:
    """The right of a client to a subscription or an advertisement has changed. As text, it is a sentence.

    `refusal` says why nothing of it is permitted any more (`RightChange.WITHDRAWN`): it is the refusal that the request
    would get now. `detail` says what is granted and what is missing, where the owner of the type lets the client ask.
    Where the owner does not, no client learns that it is restricted in another way (`RightChange.RESTRICTED`).
    """

    principal: Principal
    request: Feed[Any] | Subscription[Any]
    change: RightChange
    refusal: RefusedError | None = None
    detail: Mapping[str, Wire] | None = None

    def __str__(self) -> str:
        text = self.change.text(self.principal, self.request.right, self.request.type.name)
        reason = "" if self.refusal is None or "lacked" in self.refusal.fields else f": {self.refusal.message}"
        return text + reason


OnQuench: TypeAlias = Callable[[Feed[Any], bool], None]
OnRefusal: TypeAlias = Callable[[RefusedError], None]
OnRightChange: TypeAlias = Callable[[RightNotice], None]
OnValidityAsked: TypeAlias = Callable[[OneTimeQuestion | None], None]
"""Receives a one-time question to be answered, or None: a new validity statement should be published."""
_HeldT = TypeVar("_HeldT", Feed[Any], Subscription[Any])
TypeSource: TypeAlias = TypeName | str | UnverifiedType | EventType
"""A type: its name, with the owner's principal or petname, or its definition."""
#: within `Client`, `type` is a method
_Class: TypeAlias = type[T]


_NOW: Final = partial(datetime.now, UTC)


def connect(  # noqa: PLR0913  # what a session is made of
    url: str | None = None,
    *,
    key: Signer | None = None,
    network: NetworkName | str | None = None,
    credentials: Credentials | None = None,
    names: NameBook | None = None,
    types: Iterable[UnverifiedType] = (),
    broker: Principal | str | None = None,
    nats: NatsLogin | None = None,
    statements: Iterable[bytes] = (),
    patience: float = 0.0,
    timeout: float = 30.0,
    limits: BrokerLimits | None = None,
    random: RandomBytes = secrets.token_bytes,
    clock: Callable[[], datetime] = _NOW,
) -> "Client":
    """Return a client that connects when it is entered: `async with connect(…) as client`.

    What is left out comes from the environment, as for the command line: `url` from `PENSTOCK_BROKER`, `network` from
    `PENSTOCK_NETWORK`, `key` from the file in `PENSTOCK_KEY`, `credentials` from the files in `PENSTOCK_CREDENTIALS`
    (separated as in `PATH`), and `names` from the file in `PENSTOCK_NAMES`, or from `names.toml` if it exists. What the
    environment does not say comes from the context in use (`penstock context`), or from that in `PENSTOCK_CONTEXT`.
    `names` are petnames: they can be written wherever a principal is expected.

    The address is `penstock://host:port`, or that of a NATS server across which the broker is reached (`nats://…`,
    `tls://…`); what the server wants to see is in `nats`, whose own addresses then count too. `broker` says who must be
    at the other end; without it, any broker of the network is good, though not across NATS, where brokers are found by
    who they are. `patience` is for how many seconds the first connection is tried, `timeout` how long an answer may
    take. `types` are signed definitions that the broker may not know, `statements` are validity statements for
    credentials with on-line tests: the broker asks the network for those that are left out.

    Raises `MalformedError` (`client.environment` if something is neither given nor in the environment, `client.url`,
    `client.no-broker`, `name.malformed`, `principal.unknown`) and what loading the files raises.
    """
    omitted = OmittedArguments()
    written = WrittenNames(lambda: load_names(omitted.names_file()) if names is None else names)
    url = omitted.find("url") if url is None else url
    explain = None
    if key is None:
        key = load_key(omitted.find("key"))
        explain = " ".join(omitted.context_option())
    network = omitted.find("network") if network is None else network
    broker = omitted.broker_principal() if broker is None else broker
    caller = Caller(
        address=address_of(url, None if broker is None else written.principal(broker), nats),
        endpoint=Endpoint(key=key, network=written.network(network), limits=limits or BrokerLimits(), random=random),
        credentials=load_credentials(*omitted.credential_files()) if credentials is None else credentials,
        statements=tuple(statements),
        timeout=timeout,
        clock=clock,
        explain=explain,
    )
    return Client(caller, types, patience, written)


class Client:
    """A session with a local broker. `connect` makes one."""

    def __init__(self, caller: Caller, types: Iterable[UnverifiedType], patience: float, names: WrittenNames) -> None:
        self._caller = caller
        self._names = names
        self._brought = list(types)
        self._patience = patience
        self._library = Library(caller.endpoint.network, limits=caller.endpoint.limits)
        self._connection = Connection(caller, hear=self._hear, again=self._again, over=self._over)
        self._subscriptions: dict[str, Subscription[Any]] = {}
        self._feeds: dict[str, Feed[Any]] = {}
        self._on_quench: OnQuench | None = None
        self._on_refusal: OnRefusal | None = None
        self._on_validity: OnValidityAsked | None = None
        self._on_right: OnRightChange | None = None
        self._stem = caller.endpoint.random(9).hex()

    def __repr__(self) -> str:
        return f"Client({self.principal.short}, {'up' if self._connection.is_up else 'down'})"

    async def __aenter__(self) -> Self:
        for unverified in self._brought:
            self._library.add(unverified, self._caller.clock())
        await self._connection.open(self._patience)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Send what was published, and end the session. What the broker has not taken within the timeout is lost."""
        if self._connection.is_up:
            with suppress(PenstockError, TimeoutError):
                async with asyncio.timeout(self._caller.timeout):
                    for feed in self._feeds.values():
                        await feed.flush()
        await self._connection.close()

    @property
    def principal(self) -> Principal:
        """The principal of the client."""
        return self._caller.endpoint.key.principal

    @property
    def peer(self) -> Principal | None:
        """The broker at the other end, while there is one."""
        link = self._connection.link
        return None if link is None else link.peer.principal

    @property
    def reconnections(self) -> int:
        """How often a lost connection was made again."""
        return self._connection.renewed

    # What the connection calls.

    def _hear(self, word: protocol.Word) -> asyncio.Event | None:
        """Handle a message that is not a response; return what has to be waited for before the next one."""
        match word:
            case protocol.Events(id_, rows):
                subscription = self._subscriptions.get(id_)
                return None if subscription is None else subscription.take(rows)
            case protocol.RefusedMessage():
                if self._on_refusal is not None:
                    call_back(self._on_refusal, self._caller.refusal(word, "publish"))
            case protocol.ValidityAskedMessage(question):
                if self._on_validity is not None:
                    asked = OneTimeQuestion.from_sexp(parse_canonical(question)) if question else None
                    call_back(self._on_validity, asked)
            case protocol.RightChangedMessage(id_):
                held = self._subscriptions.get(id_) or self._feeds.get(id_)
                if held is not None:
                    self._right_changed(held, word)
            case protocol.QuenchedMessage(id_, quiet):
                feed = self._feeds.get(id_)
                if feed is not None:
                    feed.quiet = quiet
                    if self._on_quench is not None:
                        call_back(self._on_quench, feed, quiet)
        return None

    def _right_changed(self, held: Feed[Any] | Subscription[Any], word: protocol.RightChangedMessage) -> None:
        refusal, detail = None, word.detail if isinstance(word.detail, dict) else None
        if word.change is RightChange.WITHDRAWN:
            refused = protocol.RefusedMessage(0, word.code, word.message, word.hint, word.detail)
            refusal = self._caller.refusal(refused, "subscribe" if held.right is Right.SUBSCRIBE else "advertise")
            found = refusal.fields["detail"]
            detail = found if isinstance(found, dict) else None
        self._tell_right(RightNotice(self.principal, held, word.change, refusal, detail))

    def _tell_right(self, notice: RightNotice) -> None:
        notice.request.refusal = notice.refusal
        if self._on_right is not None:
            call_back(self._on_right, notice)

    def _resumed(
        self, held: Feed[Any] | Subscription[Any], before: RefusedError | None, refused: RefusedError | None
    ) -> None:
        """Take the answer to a request that was sent again; `before` is why nothing of it was permitted then."""
        if refused is not None:
            held.end(refused)
        elif before is not None and held.refusal is before:
            self._tell_right(RightNotice(self.principal, held, RightChange.RESTORED))

    def _again(self) -> Iterator[ActiveRequest]:
        if self._on_right is not None:
            yield protocol.WatchRightsMessage(self._connection.number()), lambda _refused: None
        for subscription in self._subscriptions.values():
            subscription.reconnected()
        everything: list[Feed[Any] | Subscription[Any]] = [*self._feeds.values(), *self._subscriptions.values()]
        for held in everything:
            # A request without an answer is sent again by whoever waits for it.
            if held.active:
                yield self._request(held), partial(self._resumed, held, held.refusal)
        if self._on_validity is not None:
            yield protocol.ServeValidityMessage(self._connection.number()), lambda _refused: None

    def _over(self, error: PenstockError) -> None:
        for held in (*self._feeds.values(), *self._subscriptions.values()):
            held.end(error)

    # Types.

    async def type(self, source: TypeSource | _Class[Any]) -> EventType:
        """Return a type, verified: one that was brought along, or is asked of the broker.

        Raises `RefusedError` (`broker.unknown-type`), what verifying a type raises, and for an event class
        `MalformedError` (`event.class`, `event.class-differs`).
        """
        now = self._caller.clock()
        if isinstance(source, UnverifiedType):
            return self._library.add(source, now).event_type
        if isinstance(source, type):
            known = event_class_of(source)
            found = await self.type(self._named(known))
            known.check(found)
            return found
        name = self._names.type(source.name if isinstance(source, EventType) else source)
        if name not in self._library:
            answer = await self._connection.ask(protocol.DescribeTypeMessage(self._connection.number(), name))
            for definition in answer if isinstance(answer, list) else ():
                if isinstance(definition, bytes):
                    self._library.add(read_type(definition), now)
        return self._library.get(name, now).event_type

    def _named(self, known: EventClass[Any]) -> TypeName:
        """Return the name of an event class's type: one that was brought along goes before what the class says."""
        owner = self._names.principal(known.owner) if known.owner else None
        for name in (one.definition.name for one in reversed(self._brought)):
            if name.name == known.name and owner in (None, name.owner) and known.version in ("", name.version):
                return name
        if owner is None:
            raise MalformedError(
                "event.class",
                f"`{known.cls.__name__}` does not say who owns `{known.name}`",
                hint=f'write `@penstock.event("owner/{known.name}")`, or give the signed type to `connect` as `types=`',
            )
        return TypeName(owner, known.name, known.version or "0")

    async def add_type(self, source: UnverifiedType) -> EventType:
        """Have the broker serve a type, where that may be done. Raises `RefusedError`."""
        await self._connection.ask(protocol.AddTypeMessage(self._connection.number(), source.to_bytes()))
        return self._library.add(source, self._caller.clock()).event_type

    async def remove_type(self, name: TypeName | str) -> None:
        """Have the broker serve a type no longer. Raises `RefusedError`."""
        name = self._names.type(name)
        await self._connection.ask(protocol.RemoveTypeMessage(self._connection.number(), name))
        self._library.remove(name)

    def _definitions(self, name: TypeName) -> tuple[bytes, ...]:
        return tuple(one.to_bytes() for one in self._library.definitions(name))

    # Requests.

    async def disclose(self, credentials: Credentials) -> None:
        """Show the broker further credentials: what was asked for may become more. Raises `RefusedError`."""
        await self._connection.ask(protocol.Disclose(self._connection.number(), credentials.to_bytes()))
        self._caller.credentials += credentials

    @overload
    def subscribe(
        self, source: TypeSource, selector: str = "", *, callback: Taken[Event] | None = None
    ) -> Subscribing[Event]: ...

    @overload
    def subscribe(
        self, source: _Class[T], selector: str = "", *, callback: Taken[T] | None = None
    ) -> Subscribing[T]: ...

    def subscribe(
        self, source: TypeSource | _Class[Any], selector: str = "", *, callback: Taken[Any] | None = None
    ) -> Subscribing[Any]:
        """Ask for the events of a type and its sub-types, those that a selector wants.

        Await what is returned, iterate over it, or give a callback. An event class yields objects of it, with None for
        what is hidden. Raises `RefusedError` when nothing of it is permitted, `SelectorError` when the selector does
        not fit the type, and as `type`.
        """

        async def ask() -> Subscription[Any]:
            event_type = await self.type(source)
            made = partial(_object, source) if isinstance(source, type) else None
            held = Subscription(
                self, f"s{self._connection.number()}", event_type, selector, made=made, callback=callback
            )
            await self._hold(held, self._subscriptions)
            return held

        return Subscribing(ask)

    @overload
    async def advertise(self, source: TypeSource) -> Feed[Event]: ...

    @overload
    async def advertise(self, source: _Class[T]) -> Feed[T]: ...

    async def advertise(self, source: TypeSource | _Class[Any]) -> Feed[Any]:
        """Announce events of a type; what is returned publishes them. Raises as `subscribe`."""
        event_type = await self.type(source)
        stem = f"{self._stem}-{self._connection.number()}-"
        held = Feed[Any](self, f"a{self._connection.number()}", event_type, stem, self._caller.clock)
        await self._hold(held, self._feeds)
        return held

    async def _hold(self, held: _HeldT, among: dict[str, _HeldT]) -> None:
        """Send a request, and keep it while it is active. Events may arrive immediately after the answer."""
        among[held.id] = held
        try:
            await self._connection.ask(self._request(held))
        except RefusedError:
            del among[held.id]
            raise
        except BaseException:
            del among[held.id]
            # The broker may have accepted it all the same, and would deliver what nobody reads.
            self._give_up(held)
            raise
        held.active = True

    def _give_up(self, held: Feed[Any] | Subscription[Any]) -> None:
        """Tell the broker in the background that a request is over. Without a connection it has ended there already."""
        if self._connection.is_up:
            in_background("ending a request that was given up", self._end_quietly(held))

    async def _end_quietly(self, held: Feed[Any] | Subscription[Any]) -> None:
        with suppress(PenstockError):
            await self._end(held)

    async def _end(self, held: Feed[Any] | Subscription[Any]) -> None:
        word = "unadvertise" if isinstance(held, Feed) else "unsubscribe"
        await self._connection.ask(protocol.NamedRequestMessage(self._connection.number(), word, held.id))

    def _request(self, held: Feed[Any] | Subscription[Any]) -> protocol.Asking:
        return held.request(self._connection.number(), self._definitions(held.type.name))

    async def publish(self, event: object) -> None:
        """Publish an `Event` or an object of an event class under the advertisement of its type, made if there is none.

        Returns when the broker has taken it. Raises `RefusedError`, and as `type` for an event class.
        """
        event_type = event.type if isinstance(event, Event) else await self.type(type(event))
        held = [feed for feed in self._feeds.values() if feed.type.name == event_type.name]
        feed: Feed[Any] = held[0] if held else await self.advertise(event_type)
        await feed.publish(event)

    async def publish_rows(self, feed: Feed[Any], rows: Sequence[Row]) -> None:
        """Publish rows and wait until the broker has taken them, all but those that it refuses.

        Raises `RefusedError` for the first of these, with its place among all rows in `position`.
        """
        refused: RefusedError | None = None
        parts = deque((start, rows[start : start + BLOCK]) for start in range(0, len(rows), BLOCK))
        while parts:
            start, part = parts.popleft()
            try:
                await self._connection.ask(_publication(feed, self._connection.number(), part))
            except LimitError:
                middle = len(part) // 2
                if not middle:
                    raise
                parts.extendleft([(start + middle, part[middle:]), (start, part[:middle])])
            except RefusedError as error:
                refused = refused or _placed(error, start)
        if refused is not None:
            raise refused

    def post_rows(self, head: Sequence[Writable], rows: Sequence[Row]) -> list[Encoded]:
        """Send rows as far as nothing has to be waited for; return the other messages. Raises `LimitError`."""
        return self._connection.post(write_rows(head, rows, self._caller.endpoint.limits.codec))

    async def send_rows(self, left: Sequence[Encoded], head: Sequence[Writable], rows: Sequence[Row]) -> None:
        """Send messages that are left, and then rows, as soon as the broker reads.

        Raises `LimitError` and `FailedError` (`client.*`).
        """
        written = write_rows(head, rows, self._caller.endpoint.limits.codec) if rows else ()
        await self._connection.send(*left, *written)

    async def restrictions(self, held: Feed[Any] | Subscription[Any]) -> Mapping[str, Wire]:
        """Ask how a request is restricted, where the owner of its type lets clients ask. Raises `RefusedError`."""
        answer = await self._connection.ask(
            protocol.NamedRequestMessage(self._connection.number(), "restrictions", held.id)
        )
        return answer if isinstance(answer, dict) else {}

    async def drop(self, held: Feed[Any] | Subscription[Any]) -> None:
        """End a subscription or an advertisement."""
        if isinstance(held, Feed):
            await held.flush()
        held.active = False
        try:
            await self._end(held)
        except BaseException as error:
            code = error.code if isinstance(error, PenstockError) else ""
            # With the connection everything has ended that was asked over it.
            if code not in ("client.interrupted", "broker.unknown-id"):
                self._give_up(held)
                if code != "client.timeout":
                    raise
        finally:
            # It has ended here whatever the broker answers: it is not sent again over another connection.
            self._feeds.pop(held.id, None)
            self._subscriptions.pop(held.id, None)
            held.end(FailedError("client.closed", "it was ended"))

    async def evolve(self, signed: bytes) -> None:
        """Hand in a signed statement: an owner's change of policy, the time, or whether certificates are valid.

        Raises `RefusedError`.
        """
        await self._connection.ask(protocol.Evolve(self._connection.number(), signed))

    async def serve_validity(self, asked: OnValidityAsked) -> None:
        """Answer for the validity of certificates that name this client as the signer of their on-line tests.

        `asked` receives the questions, also after a lost connection was made again. Pass answers and other statements
        to `evolve`.
        """
        self._on_validity = asked
        await self._connection.ask(protocol.ServeValidityMessage(self._connection.number()))

    async def watch_rights(self, changed: OnRightChange) -> None:
        """Call `changed` when the right to a subscription or an advertisement of this client changes.

        A request without a right is kept: events come again when the right is granted again. One that is sent again
        over a new connection, while it has none, is refused and ends. Raises `RefusedError`.
        """
        self._on_right = changed
        await self._connection.ask(protocol.WatchRightsMessage(self._connection.number()))

    def watch_connection(self, changed: Callable[[PenstockError | None], None]) -> None:
        """Call `changed` with the error when the connection is lost, and with None when it was made again."""
        self._connection.watched = partial(call_back, changed)

    async def policy(self, owner: Principal | str, after: int = 0) -> Mapping[str, Wire]:
        """Ask how far an owner's policy is at the broker, and for its events after a number, or the first of them.

        For the owner itself and for operators. Raises `RefusedError` (`broker.not-operator`).
        """
        answer = await self._connection.ask(
            protocol.PolicyHeadMessage(self._connection.number(), self._names.principal(owner), after)
        )
        return answer if isinstance(answer, dict) else {}

    async def status(self) -> Mapping[str, Wire]:
        """Ask how the broker sees the network: for its operators. Raises `RefusedError` (`broker.not-operator`)."""
        answer = await self._connection.ask(protocol.NetworkStatusMessage(self._connection.number()))
        return answer if isinstance(answer, dict) else {}

    async def credential_status(self, about: TypeName | None = None) -> CredentialStatus:
        """Ask for the broker's time, which of this client's certificates are revoked, and its rights on a type.

        Raises `RefusedError`, `FailedError` (`client.*`), and `MalformedError` (`protocol.malformed`).
        """
        answer = await self._connection.ask(protocol.CredentialStatusMessage(self._connection.number(), about))
        match answer:
            case {"time": datetime() as time, "revoked": list(rows), **more}:
                found = more.get("rights")
                rights = frozenset(one for one in TYPE_USES if one in found) if isinstance(found, list) else None
                lost = more.get("lost")
                by_right = lost if isinstance(lost, dict) else {}
                gone = {one: read_revoked(by_right.get(one)) for one in TYPE_USES}
                return CredentialStatus(in_utc(time), read_revoked(rows), rights, gone)
        raise MalformedError("protocol.malformed", "the broker's answer does not say which certificates are revoked")

    async def keys(
        self,
        word: KeyWord,
        of_type: TypeKey | None = None,
        attribute: str = "",
        *,
        evicted: Principal | str | None = None,
        before: datetime | None = None,
    ) -> Mapping[str, Wire]:
        """Ask about the keys of the broker, or for a change (`keys.client_requests`). Raises `RefusedError`."""
        number = self._connection.number()
        gone = None if evicted is None else self._names.principal(evicted)
        answer = await self._connection.ask(AskKeys(number, word, of_type, attribute, gone, before))
        return answer if isinstance(answer, dict) else {}

    async def fetch_keys(self, group: KeyGroup, first: int, last: int) -> Mapping[int, Secret]:
        """Ask a key manager for the keys of epochs that are over: those with the right `history` get them.

        The number per call is limited: ask again from the last one on. Raises `RefusedError`
        (`keys.not-entitled`, `keys.no-history`) and `FailedError` (`keys.no-answer`).
        """
        endpoint = self._caller.endpoint
        private = SealingKey(endpoint.random)
        credentials = self._caller.credentials.to_bytes() if len(self._caller.credentials) else b""
        request = KeyRequest(
            KeyWish.HISTORY,
            self.principal,
            group,
            in_utc(self._caller.clock()),
            first,
            last,
            private.public,
            credentials,
        )
        signed = (await asyncio.to_thread(sign_value, request, endpoint.key)).to_bytes()
        answer = await self._connection.ask(FetchKeys(self._connection.number(), signed))
        return open_released(answer, group, self.principal, private)

    def on_quench(self, callback: OnQuench) -> None:
        """Register a callback for when nobody wants what a feed announces (True), or somebody does again (False)."""
        self._on_quench = callback

    def on_refusal(self, callback: OnRefusal) -> None:
        """Register a callback for refused events that were posted without waiting."""
        self._on_refusal = callback


def _publication(feed: Feed[Any], number: int, rows: Sequence[Row]) -> protocol.PublishMessage:
    return protocol.PublishMessage(number, feed.id, feed.type.name, rows)


def _placed(error: RefusedError, start: int) -> RefusedError:
    position = error.fields.get("position")
    if isinstance(position, int):
        error.fields["position"] = start + position
    return error


def _object(of: type[T], event: Event) -> T:
    return event.to_object(of)
