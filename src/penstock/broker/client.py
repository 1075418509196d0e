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
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Self, TypeAlias, TypeVar

from penstock.broker import protocol
from penstock.broker.connection import Caller, Connection, Standing, refusal
from penstock.broker.feeds import BLOCK, Feed, Subscription, Taken, call_back
from penstock.broker.key_protocol import AskKeys, FetchKeys, KeyWord, open_released
from penstock.broker.library import Library
from penstock.broker.link import Endpoint
from penstock.broker.rows import Row, write_rows
from penstock.broker.ways import address_of
from penstock.codec.wire import Wire
from penstock.crypto.hpke import SealingKey
from penstock.crypto.keyfile import RandomBytes
from penstock.crypto.keys import SigningKey
from penstock.crypto.wrapping import Secret
from penstock.errors import FailedError, LimitError, PenstockError, RefusedError
from penstock.fabric.nats_login import NatsLogin
from penstock.model.events import Event
from penstock.model.instants import in_utc
from penstock.model.limits import DEFAULT_LIMITS, Limits
from penstock.model.names import NetworkName, TypeKey, TypeName
from penstock.model.principals import Principal
from penstock.model.types import EventType
from penstock.trust.credentials import Credentials
from penstock.trust.event_types import UnverifiedType, read_type
from penstock.trust.key_messages import KeyGroup, KeyRequest, Wish
from penstock.trust.signed import sign_value

OnQuench: TypeAlias = Callable[[Feed, bool], None]
OnRefusal: TypeAlias = Callable[[RefusedError], None]
_HeldT = TypeVar("_HeldT", Feed, Subscription)
TypeSource: TypeAlias = TypeName | str | UnverifiedType | EventType


def connect(  # noqa: PLR0913  # what a session is made of
    url: str,
    *,
    key: SigningKey,
    network: NetworkName | str,
    credentials: Credentials | None = None,
    types: Iterable[UnverifiedType] = (),
    broker: Principal | None = None,
    nats: NatsLogin | None = None,
    patience: float = 0.0,
    timeout: float = 30.0,
    limits: Limits = DEFAULT_LIMITS,
    random: RandomBytes = secrets.token_bytes,
    clock: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> "Client":
    """Return a client that connects when it is entered: `async with connect(…) as client`.

    The address is `penstock://host:port`, or that of a NATS server across which the broker is reached (`nats://…`,
    `tls://…`); what the server wants to see is in `nats`, whose own addresses then count too. `broker` says who must be
    at the other end; without it, any broker of the network is good, though not across NATS, where brokers are found by
    who they are. `patience` is for how many seconds the first connection is tried, `timeout` how long an answer may
    take. `types` are signed definitions that the broker may not know.

    Raises `MalformedError` (`client.url`, `client.no-broker`, `name.malformed`).
    """
    caller = Caller(
        address=address_of(url, broker, nats),
        endpoint=Endpoint(key=key, network=_network(network), limits=limits, random=random),
        credentials=credentials or Credentials(),
        timeout=timeout,
        clock=clock,
    )
    return Client(caller, types, patience)


class Client:
    """A session with a local broker. `connect` makes one."""

    def __init__(self, caller: Caller, types: Iterable[UnverifiedType], patience: float) -> None:
        self._caller = caller
        self._brought = list(types)
        self._patience = patience
        self._library = Library(caller.endpoint.network, limits=caller.endpoint.limits)
        self._connection = Connection(caller, hear=self._hear, again=self._again, over=self._over)
        self._subscriptions: dict[str, Subscription] = {}
        self._feeds: dict[str, Feed] = {}
        self._on_quench: OnQuench | None = None
        self._on_refusal: OnRefusal | None = None
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
        """Who the client is."""
        return self._caller.endpoint.key.principal

    @property
    def peer(self) -> Principal | None:
        """The broker at the other end, while there is one."""
        link = self._connection.link
        return None if link is None else link.peer.principal

    @property
    def reconnections(self) -> int:
        """How often a lost connection was made anew."""
        return self._connection.renewed

    # What the connection calls.

    def _hear(self, word: protocol.Word) -> Awaitable[None] | None:
        """Take a word of the broker that is no answer; return what is to be waited for before the next one."""
        match word:
            case protocol.Events(id_, rows):
                subscription = self._subscriptions.get(id_)
                return None if subscription is None else subscription.take(rows)
            case protocol.Refused():
                if self._on_refusal is not None:
                    call_back(self._on_refusal, refusal(word, "publish"))
            case protocol.Quenched(id_, quiet):
                feed = self._feeds.get(id_)
                if feed is not None:
                    feed.quiet = quiet
                    if self._on_quench is not None:
                        call_back(self._on_quench, feed, quiet)
        return None

    def _again(self) -> Iterator[Standing]:
        everything: list[Feed | Subscription] = [*self._feeds.values(), *self._subscriptions.values()]
        for held in everything:
            # What has not stood yet is asked for by whoever waits for it.
            if held.stands:
                yield self._request(held), held.end

    def _over(self, error: PenstockError) -> None:
        for held in (*self._feeds.values(), *self._subscriptions.values()):
            held.end(error)

    # Types.

    async def type(self, source: TypeSource) -> EventType:
        """Return a type, verified: one that was brought along, or is asked of the broker.

        Raises `RefusedError` (`broker.unknown-type`) and what verifying a type raises.
        """
        now = self._caller.clock()
        if isinstance(source, UnverifiedType):
            return self._library.add(source, now).event_type
        name = source.name if isinstance(source, EventType) else source
        name = TypeName.parse(name) if isinstance(name, str) else name
        if name not in self._library:
            answer = await self._connection.ask(protocol.Describe(self._connection.number(), name))
            for definition in answer if isinstance(answer, list) else ():
                if isinstance(definition, bytes):
                    self._library.add(read_type(definition, limits=self._caller.endpoint.limits), now)
        return self._library.get(name, now).event_type

    async def add_type(self, source: UnverifiedType) -> EventType:
        """Have the broker serve a type, where that may be done. Raises `RefusedError`."""
        await self._connection.ask(protocol.AddType(self._connection.number(), source.to_bytes()))
        return self._library.add(source, self._caller.clock()).event_type

    async def remove_type(self, name: TypeName) -> None:
        """Have the broker serve a type no longer. Raises `RefusedError`."""
        await self._connection.ask(protocol.RemoveType(self._connection.number(), name))
        self._library.remove(name)

    def _definitions(self, name: TypeName) -> tuple[bytes, ...]:
        return tuple(one.to_bytes() for one in self._library.definitions(name))

    # Requests.

    async def disclose(self, credentials: Credentials) -> None:
        """Show the broker further credentials: what was asked for may become more. Raises `RefusedError`."""
        await self._connection.ask(protocol.Disclose(self._connection.number(), credentials.to_bytes()))
        self._caller.credentials += credentials

    async def subscribe(self, source: TypeSource, selector: str = "", *, callback: Taken | None = None) -> Subscription:
        """Ask for the events of a type and its sub-types, those that a selector wants.

        Iterate over what is returned, or give a callback. Raises `RefusedError` when nothing of it is permitted,
        `SelectorError` when the selector does not fit the type, and as `type`.
        """
        event_type = await self.type(source)
        held = Subscription(self, f"s{self._connection.number()}", event_type, selector, callback)
        await self._hold(held, self._subscriptions)
        return held

    async def advertise(self, source: TypeSource) -> Feed:
        """Announce events of a type; what is returned publishes them. Raises as `subscribe`."""
        event_type = await self.type(source)
        stem = f"{self._stem}-{self._connection.number()}-"
        held = Feed(self, f"a{self._connection.number()}", event_type, stem, self._caller.clock)
        await self._hold(held, self._feeds)
        return held

    async def _hold(self, held: _HeldT, among: dict[str, _HeldT]) -> None:
        """Ask for something, and keep it while it stands. Events may come at once after the answer."""
        among[held.id] = held
        try:
            await self._connection.ask(self._request(held))
        except BaseException:
            del among[held.id]
            raise
        held.stands = True

    def _request(self, held: Feed | Subscription) -> protocol.Asking:
        return held.request(self._connection.number(), self._definitions(held.type.name))

    async def publish(self, event: Event) -> None:
        """Publish an event under the advertisement of its type, which is made if there is none.

        Returns when the broker has taken it. Raises `RefusedError`.
        """
        feed = next((feed for feed in self._feeds.values() if feed.type.name == event.type.name), None)
        if feed is None:
            feed = await self.advertise(event.type)
        await feed.publish(event)

    async def publish_rows(self, feed: Feed, rows: Sequence[Row]) -> None:
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

    async def post_rows(self, feed: Feed, rows: Sequence[Row]) -> None:
        """Publish rows without waiting for an answer. Raises `FailedError` (`client.*`)."""
        await self._connection.send(
            *write_rows(lambda part: _publication(feed, 0, part), rows, self._caller.endpoint.limits)
        )

    async def restrictions(self, held: Feed | Subscription) -> Mapping[str, Wire]:
        """Ask how a request is restricted, where the owner of its type lets clients ask. Raises `RefusedError`."""
        answer = await self._connection.ask(protocol.Named(self._connection.number(), "restrictions", held.id))
        return answer if isinstance(answer, dict) else {}

    async def drop(self, held: Feed | Subscription) -> None:
        """End a subscription or an advertisement."""
        word = "unadvertise" if isinstance(held, Feed) else "unsubscribe"
        if isinstance(held, Feed):
            await held.flush()
        held.stands = False
        try:
            await self._connection.ask(protocol.Named(self._connection.number(), word, held.id))
        except PenstockError as error:
            # With the connection everything has ended that was asked over it.
            if error.code not in ("client.interrupted", "broker.unknown-id"):
                raise
        self._feeds.pop(held.id, None)
        self._subscriptions.pop(held.id, None)
        held.end(FailedError("client.closed", "it was ended"))

    async def evolve(self, signed: bytes) -> None:
        """Hand in what the owner of types has signed: a change of policy, or the time. Raises `RefusedError`."""
        await self._connection.ask(protocol.Evolve(self._connection.number(), signed))

    async def policy(self, owner: Principal, after: int = 0) -> Mapping[str, Wire]:
        """Ask how far an owner's policy is at the broker, and for its events after a number, or the first of them.

        For the owner itself and for operators. Raises `RefusedError` (`broker.not-operator`).
        """
        answer = await self._connection.ask(protocol.Policy(self._connection.number(), owner, after))
        return answer if isinstance(answer, dict) else {}

    async def status(self) -> Mapping[str, Wire]:
        """Ask how the broker sees the network: for its operators. Raises `RefusedError` (`broker.not-operator`)."""
        answer = await self._connection.ask(protocol.Status(self._connection.number()))
        return answer if isinstance(answer, dict) else {}

    async def keys(
        self,
        word: KeyWord,
        of_type: TypeKey | None = None,
        attribute: str = "",
        *,
        evicted: Principal | None = None,
        before: datetime | None = None,
    ) -> Mapping[str, Wire]:
        """Ask about the keys of the broker, or for a change (`key_desk`). Raises `RefusedError`."""
        number = self._connection.number()
        answer = await self._connection.ask(AskKeys(number, word, of_type, attribute, evicted, before))
        return answer if isinstance(answer, dict) else {}

    async def fetch_keys(self, group: KeyGroup, first: int, last: int) -> Mapping[int, Secret]:
        """Ask a key manager for the keys of epochs that are over: those with the right `history` get them.

        Not more than some are given at once: ask again from the last one on. Raises `RefusedError`
        (`keys.not-entitled`, `keys.no-history`) and `FailedError` (`keys.no-answer`).
        """
        endpoint = self._caller.endpoint
        private = SealingKey(endpoint.random)
        credentials = self._caller.credentials.to_bytes() if len(self._caller.credentials) else b""
        request = KeyRequest(
            Wish.HISTORY, self.principal, group, in_utc(self._caller.clock()), first, last, private.public, credentials
        )
        signed = sign_value(request, endpoint.key).to_bytes()
        answer = await self._connection.ask(FetchKeys(self._connection.number(), signed))
        return open_released(answer, group, self.principal, private)

    def on_quench(self, callback: OnQuench) -> None:
        """Be told when nobody wants what a feed announces (True), or somebody does again (False)."""
        self._on_quench = callback

    def on_refusal(self, callback: OnRefusal) -> None:
        """Be told of refused events that were posted without waiting."""
        self._on_refusal = callback


def _publication(feed: Feed, number: int, rows: Sequence[Row]) -> protocol.Publish:
    return protocol.Publish(number, feed.id, feed.type.name, rows)


def _placed(error: RefusedError, start: int) -> RefusedError:
    position = error.fields.get("position")
    if isinstance(position, int):
        error.fields["position"] = start + position
    return error


def _network(name: NetworkName | str) -> NetworkName:
    return NetworkName.parse(name) if isinstance(name, str) else name
