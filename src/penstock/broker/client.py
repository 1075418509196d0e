"""The client: a publisher's or subscriber's side of a session with its local broker.

    async with penstock.connect("penstock://127.0.0.1:7600", network=network, key=key, credentials=mine) as client:
        sightings = await client.subscribe(numberplate, "speed > 50")
        async for event in sightings:
            print(event["plate"], event["speed"])

What a client has asked for it keeps, and asks again when a link was lost: it reconnects by itself, and what was
published or delivered in between is lost, as it is for whoever is not there. A request that waited for its answer then
fails (`client.interrupted`): it may have been carried out or not.

A refusal raises `RefusedError` with the broker's code, what was asked in `asked`, and where the owner of the type lets
the client know, what was granted and which right was missing in `detail`.
"""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from itertools import count
from typing import Final, Self, TypeAlias
from urllib.parse import urlsplit

from penstock.broker import protocol
from penstock.broker.feeds import Feed, Subscription, Taken
from penstock.broker.library import Library
from penstock.broker.link import Endpoint, Link
from penstock.broker.link import connect as open_link
from penstock.broker.outcomes import require
from penstock.broker.protocol import Hello, Role, Welcome, read_word
from penstock.codec.wire import Wire, encode
from penstock.crypto.keyfile import RandomBytes
from penstock.crypto.keys import SigningKey
from penstock.errors import FailedError, MalformedError, PenstockError, RefusedError
from penstock.guard import CapabilityAuthority, NetworkRequest, decide
from penstock.model.events import Event
from penstock.model.limits import DEFAULT_LIMITS, Limits
from penstock.model.names import NetworkName, TypeName
from penstock.model.principals import Principal
from penstock.model.types import EventType
from penstock.trust.capabilities import Right
from penstock.trust.credentials import Credentials, read_credentials
from penstock.trust.event_types import UnverifiedType, read_type

_FIRST_PAUSE: Final = 0.05
_LONGEST_PAUSE: Final = 5.0
#: a broker says so when it is not the moment, or not the place: trying again may help
_PASSING: Final = frozenset(("link.busy", "link.slow-reader", "link.idle", "link.flood", "log.write"))

OnQuench: TypeAlias = Callable[[Feed, bool], None]
OnRefusal: TypeAlias = Callable[[RefusedError], None]
TypeSource: TypeAlias = TypeName | str | UnverifiedType | EventType


def connect(  # noqa: PLR0913  # what a session is made of
    url: str,
    *,
    key: SigningKey,
    network: NetworkName | str,
    credentials: Credentials | None = None,
    types: Iterable[UnverifiedType] = (),
    broker: Principal | None = None,
    patience: float = 0.0,
    timeout: float = 30.0,
    limits: Limits = DEFAULT_LIMITS,
    random: RandomBytes = secrets.token_bytes,
    clock: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> "Client":
    """Return a client that connects when it is entered: `async with connect(…) as client`.

    `broker` says who must be at the other end; without it, any broker of the network is good. `patience` is for how
    many seconds the first connection is tried, `timeout` how long an answer may take. `types` are signed definitions
    that the broker may not know. Raises `MalformedError` (`client.url`, `name.malformed`).
    """
    return Client(
        _address(url),
        Endpoint(key=key, network=_network(network), limits=limits, random=random),
        credentials or Credentials(),
        types=types,
        broker=broker,
        patience=patience,
        timeout=timeout,
        clock=clock,
    )


class Client:
    """A session with a local broker. `connect` makes one."""

    def __init__(  # noqa: PLR0913  # what a session is made of
        self,
        address: tuple[str, int],
        endpoint: Endpoint,
        credentials: Credentials,
        *,
        types: Iterable[UnverifiedType],
        broker: Principal | None,
        patience: float,
        timeout: float,
        clock: Callable[[], datetime],
    ) -> None:
        self._address = address
        self._endpoint = endpoint
        self._credentials = credentials
        self._brought = list(types)
        self._broker = broker
        self._patience = patience
        self._timeout = timeout
        self._clock = clock
        self._library = Library(endpoint.network, limits=endpoint.limits)
        self._numbers = count(1)
        self._link: Link | None = None
        self._up = asyncio.Event()
        self._waiting: dict[int, asyncio.Future[Wire]] = {}
        self._problems: dict[int, RefusedError] = {}
        self._subscriptions: dict[str, Subscription] = {}
        self._feeds: dict[str, Feed] = {}
        self._ended: PenstockError | None = None
        self._running: asyncio.Task[None] | None = None
        self._asking: asyncio.Task[None] | None = None
        self._on_quench: OnQuench | None = None
        self._on_refusal: OnRefusal | None = None
        self._stem = endpoint.random(9).hex()
        #: how often a lost connection was made anew
        self.reconnections = 0

    def __repr__(self) -> str:
        return f"Client({self._endpoint.key.principal.short}, {'up' if self._up.is_set() else 'down'})"

    # Connection.

    async def __aenter__(self) -> Self:
        for unverified in self._brought:
            self._library.add(unverified, self._clock())
        link, waiting = await self._open_first()
        self._take_link(link)
        self._running = asyncio.create_task(self._run(link, waiting))
        return self

    async def _open_first(self) -> tuple[Link, list[Wire]]:
        loop = asyncio.get_running_loop()
        deadline, pause = loop.time() + self._patience, _FIRST_PAUSE
        while True:
            try:
                return await self._open()
            except FailedError:
                if loop.time() + pause > deadline:
                    raise
                await asyncio.sleep(pause)
                pause = min(_LONGEST_PAUSE, 2 * pause)

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Send what was published, and end the session."""
        if self._ended is None:
            with suppress(PenstockError):
                for feed in self._feeds.values():
                    await feed.flush()
        self._end(FailedError("client.closed", "the client was closed"))
        link = self._link
        if link is not None:
            await link.close()
        tasks = [task for task in (self._running, self._asking) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def principal(self) -> Principal:
        """Who the client is."""
        return self._endpoint.key.principal

    @property
    def peer(self) -> Principal | None:
        """The broker at the other end, while there is one."""
        return None if self._link is None else self._link.peer.principal

    async def _open(self) -> tuple[Link, list[Wire]]:
        """Open a link and be let in. Return what else the broker said already."""
        link = await open_link(self._endpoint, *self._address, self._broker)
        try:
            async with asyncio.timeout(self._timeout):
                link.post(encode(Hello(Role.CLIENT, self._credentials.to_bytes()).to_tree()))
                first, *rest = await link.receive()
            self._check_broker(link.peer.principal, _welcomed(read_word(first)))
        except TimeoutError:
            await link.close()
            raise _late("connect") from None
        except BaseException:
            await link.close()
            raise
        return link, rest

    def _check_broker(self, broker: Principal, disclosed: bytes) -> None:
        """Check that the broker may be in the network: anybody can listen at an address."""
        if broker == self._broker:
            return
        bag = self._credentials
        if disclosed:
            bag += read_credentials(disclosed, limits=self._endpoint.limits).verify()
        network = self._endpoint.network
        request = NetworkRequest(broker, Right.CONNECT, network, self._clock())
        require(decide(request, (CapabilityAuthority(bag),)), Right.CONNECT, network)

    def _take_link(self, link: Link) -> None:
        self._link = link
        self._up.set()

    async def _run(self, link: Link, waiting: list[Wire]) -> None:
        """Read what the broker says; when the link is lost, make a new one and ask for everything again."""
        while True:
            self._lost(await self._listen(link, waiting))
            found = await self._reopen()
            if found is None:
                return
            link, waiting = found
            self._take_link(link)
            self.reconnections += 1
            self._asking = asyncio.create_task(self._ask_again())

    def _lost(self, error: PenstockError) -> None:
        self._up.clear()
        self._link = None
        waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            if not future.done():
                future.set_exception(
                    FailedError(
                        "client.interrupted",
                        "the connection was lost before an answer came",
                        hint="it may have been carried out or not",
                        reason=error.code,
                    )
                )

    async def _reopen(self) -> tuple[Link, list[Wire]] | None:
        pause = _FIRST_PAUSE
        while self._ended is None:
            try:
                return await self._open()
            except FailedError:
                pass
            except PenstockError as error:
                if error.code not in _PASSING and error.fields.get("reason") not in _PASSING:
                    self._end(error)
                    return None
            # Brokers that come back are not to be met by all clients at once.
            spread = 0.5 + int.from_bytes(self._endpoint.random(2)) / 0x10000
            await asyncio.sleep(pause * spread)
            pause = min(_LONGEST_PAUSE, 2 * pause)
        return None

    async def _ask_again(self) -> None:
        everything: list[Feed | Subscription] = [*self._feeds.values(), *self._subscriptions.values()]
        for held in everything:
            try:
                await self._ask(held.request(next(self._numbers), self._definitions(held.type.name)))
            except RefusedError as error:
                held.end(error)
            except PenstockError:
                return

    def _end(self, error: PenstockError) -> None:
        if self._ended is None:
            self._ended = error
        self._lost(error)
        # Those who wait for the connection are to learn that there will be none.
        self._up.set()
        for held in (*self._feeds.values(), *self._subscriptions.values()):
            held.end(self._ended)

    async def _listen(self, link: Link, waiting: list[Wire]) -> PenstockError:
        """Take what the broker says, until the link ends; return how."""
        try:
            while True:
                for tree in waiting:
                    taken = self._hear(read_word(tree))
                    if taken is not None:
                        await taken
                waiting = await link.receive()
        except PenstockError as error:
            await link.close(error.code)
            return error

    def _hear(self, word: protocol.Word) -> Awaitable[None] | None:
        """Take a word of the broker; return what is to be waited for before the next one is taken."""
        match word:
            case protocol.Events(id_, rows):
                subscription = self._subscriptions.get(id_)
                return None if subscription is None else subscription.take(rows)
            case protocol.Accepted(number):
                self._answer(number, None)
            case protocol.Answered(number, answer):
                self._answer(number, answer)
            case protocol.Refused():
                self._refused(word)
            case protocol.Quenched(id_, quiet):
                feed = self._feeds.get(id_)
                if feed is not None:
                    feed.quiet = quiet
                    if self._on_quench is not None:
                        self._on_quench(feed, quiet)
            case Welcome():
                raise MalformedError("protocol.malformed", "a second welcome")
        return None

    def _answer(self, number: int, answer: Wire) -> None:
        future = self._waiting.pop(number, None)
        problem = self._problems.pop(number, None)
        if future is not None and not future.done():
            if problem is None:
                future.set_result(answer)
            else:
                future.set_exception(problem)

    def _refused(self, word: protocol.Refused) -> None:
        error = RefusedError(word.code, word.message, hint=word.hint, detail=word.detail, position=word.position)
        future = self._waiting.get(word.number)
        if future is None:
            if self._on_refusal is not None:
                self._on_refusal(error)
        elif isinstance(getattr(future, "asked", None), protocol.Publish):
            # The answer to all of them follows.
            self._problems.setdefault(word.number, error)
        else:
            self._problems[word.number] = error
            self._answer(word.number, None)

    async def _ask(self, request: protocol.Request) -> Wire:
        """Send a request and wait for its answer. Raises `RefusedError` and `FailedError` (`client.*`)."""
        number = 0 if isinstance(request, Hello) else request.number
        answer = _Asked(request)
        try:
            async with asyncio.timeout(self._timeout):
                await self.send(request)
                self._waiting[number] = answer
                return await answer
        except TimeoutError:
            raise _late(str(request.to_tree()[0])) from None  # type: ignore[index]  # a list
        except RefusedError as error:
            error.fields.setdefault("asked", request.to_tree()[0])  # type: ignore[index]  # a list
            raise
        finally:
            self._waiting.pop(number, None)
            self._problems.pop(number, None)

    async def send(self, request: protocol.Request) -> None:
        """Send a message as soon as there is a connection and the broker reads. Raises `FailedError` (`client.*`)."""
        message = encode(request.to_tree(), limits=self._endpoint.limits)
        while True:
            await self._up.wait()
            if self._ended is not None:
                raise self._ended.with_traceback(None)
            link = self._link
            if link is not None:
                with suppress(PenstockError):
                    await link.send(message)
                    return
                # Lost just now; whoever listens will notice.
                await asyncio.sleep(0)
                if self._link is link:
                    self._up.clear()

    # Types.

    async def type(self, source: TypeSource) -> EventType:
        """Return a type, verified: one that was brought along, or is asked of the broker.

        Raises `RefusedError` (`broker.unknown-type`) and what verifying a type raises.
        """
        now = self._clock()
        if isinstance(source, UnverifiedType):
            return self._library.add(source, now).event_type
        name = source.name if isinstance(source, EventType) else source
        name = TypeName.parse(name) if isinstance(name, str) else name
        if name not in self._library:
            answer = await self._ask(protocol.Describe(next(self._numbers), name))
            for definition in answer if isinstance(answer, list) else ():
                if isinstance(definition, bytes):
                    self._library.add(read_type(definition, limits=self._endpoint.limits), now)
        return self._library.get(name, now).event_type

    async def add_type(self, source: UnverifiedType) -> EventType:
        """Have the broker serve a type, where that may be done. Raises `RefusedError`."""
        await self._ask(protocol.AddType(next(self._numbers), source.to_bytes()))
        return self._library.add(source, self._clock()).event_type

    async def remove_type(self, name: TypeName) -> None:
        """Have the broker serve a type no longer. Raises `RefusedError`."""
        await self._ask(protocol.RemoveType(next(self._numbers), name))
        self._library.remove(name)

    def _definitions(self, name: TypeName) -> tuple[bytes, ...]:
        return tuple(one.to_bytes() for one in self._library.definitions(name))

    # Requests.

    async def disclose(self, credentials: Credentials) -> None:
        """Show the broker further credentials: what was asked for may become more. Raises `RefusedError`."""
        await self._ask(protocol.Disclose(next(self._numbers), credentials.to_bytes()))
        self._credentials += credentials

    async def subscribe(self, source: TypeSource, selector: str = "", *, callback: Taken | None = None) -> Subscription:
        """Ask for the events of a type and its sub-types, those that a selector wants.

        Iterate over what is returned, or give a callback. Raises `RefusedError` when nothing of it is permitted,
        `SelectorError` when the selector does not fit the type, and as `type`.
        """
        event_type = await self.type(source)
        held = Subscription(self, f"s{next(self._numbers)}", event_type, selector, callback)
        self._subscriptions[held.id] = held
        try:
            await self._ask(held.request(next(self._numbers), self._definitions(event_type.name)))
        except BaseException:
            del self._subscriptions[held.id]
            raise
        return held

    async def advertise(self, source: TypeSource) -> Feed:
        """Announce events of a type; what is returned publishes them. Raises as `subscribe`."""
        event_type = await self.type(source)
        held = Feed(self, f"a{next(self._numbers)}", event_type, f"{self._stem}-{next(self._numbers)}-", self._clock)
        self._feeds[held.id] = held
        try:
            await self._ask(held.request(next(self._numbers), self._definitions(event_type.name)))
        except BaseException:
            del self._feeds[held.id]
            raise
        return held

    async def publish(self, event: Event) -> None:
        """Publish an event under the advertisement of its type, which is made if there is none.

        Returns when the broker has taken it. Raises `RefusedError`.
        """
        feed = next((feed for feed in self._feeds.values() if feed.type.name == event.type.name), None)
        if feed is None:
            feed = await self.advertise(event.type)
        await feed.publish(event.values, id=event.id, time=event.time)

    async def publish_rows(self, feed: Feed, rows: list[protocol.Row]) -> None:
        """Publish rows and wait until the broker has taken them. Raises `RefusedError` for the first it refuses."""
        await self._ask(protocol.Publish(next(self._numbers), feed.id, feed.type.name, rows))

    async def restrictions(self, held: Feed | Subscription) -> Mapping[str, Wire]:
        """Ask how a request is restricted, where the owner of its type lets clients ask. Raises `RefusedError`."""
        answer = await self._ask(protocol.Named(next(self._numbers), "restrictions", held.id))
        return answer if isinstance(answer, dict) else {}

    async def drop(self, held: Feed | Subscription) -> None:
        """End a subscription or an advertisement."""
        word = "unadvertise" if isinstance(held, Feed) else "unsubscribe"
        if isinstance(held, Feed):
            await held.flush()
        await self._ask(protocol.Named(next(self._numbers), word, held.id))
        self._feeds.pop(held.id, None)
        self._subscriptions.pop(held.id, None)
        held.end(FailedError("client.closed", "it was ended"))

    async def evolve(self, signed: bytes) -> None:
        """Hand in what the owner of types has signed: a change of policy, or the time. Raises `RefusedError`."""
        await self._ask(protocol.Evolve(next(self._numbers), signed))

    async def status(self) -> Mapping[str, Wire]:
        """Ask how the broker sees the network: for its operators. Raises `RefusedError` (`broker.not-operator`)."""
        answer = await self._ask(protocol.Status(next(self._numbers)))
        return answer if isinstance(answer, dict) else {}

    def on_quench(self, callback: OnQuench) -> None:
        """Be told when nobody wants what a feed announces (True), or somebody does again (False)."""
        self._on_quench = callback

    def on_refusal(self, callback: OnRefusal) -> None:
        """Be told of refused events that were posted without waiting."""
        self._on_refusal = callback


class _Asked(asyncio.Future[Wire]):
    """The answer to a request, and which it is."""

    def __init__(self, request: protocol.Request) -> None:
        super().__init__()
        self.asked = request


def _welcomed(word: protocol.Word) -> bytes:
    """Return what a broker discloses that lets us in. Raises `RefusedError` if it does not."""
    if isinstance(word, protocol.Refused):
        raise RefusedError(word.code, word.message, hint=word.hint, asked="connect", detail=word.detail)
    if not isinstance(word, Welcome):
        raise MalformedError("protocol.malformed", "a broker does not say welcome")
    return word.credentials


def _late(what: str) -> FailedError:
    return FailedError("client.timeout", f"no answer to `{what}` in time", hint="is the broker busy? try again")


def _address(url: str) -> tuple[str, int]:
    try:
        parts = urlsplit(url)
        if parts.scheme == "penstock" and parts.hostname and parts.port and parts.path in ("", "/"):
            return parts.hostname, parts.port
    except ValueError:
        pass
    raise MalformedError("client.url", f"`{url[:80]}` is no address of a broker", hint="write `penstock://host:port`")


def _network(name: NetworkName | str) -> NetworkName:
    return NetworkName.parse(name) if isinstance(name, str) else name
