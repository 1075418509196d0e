"""The neighbours of a node: links to other brokers, called or accepted, and the messages over them.

Two brokers may call each other at the same time. The link that the smaller principal called stays, so that both keep
the same one. A newer call of the same caller replaces the older link, which its caller has lost.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final

from penstock.broker.core.clock import Turns
from penstock.broker.core.core import Core
from penstock.broker.core.reports import LinkReports
from penstock.broker.evolution.gossip import PolicyGossip
from penstock.broker.evolution.validity import ValidityTree
from penstock.broker.routing.messages import Hop
from penstock.broker.routing.outputs import Cut, Disclosed, Send, Unsent
from penstock.broker.wire.link import Endpoint, Link
from penstock.broker.wire.protocol import Hello, PeerRole, Welcome, read_word
from penstock.broker.wire.publications import Publications
from penstock.broker.wire.transports import Address, Pauses
from penstock.codec.limits import CodecLimits
from penstock.codec.wire import Wire, Writable, encode
from penstock.errors import FailedError, MalformedError, PenstockError, RefusedError
from penstock.fabric.tasks import in_background, keep_running
from penstock.model.principals import Principal
from penstock.trust.credentials import Credentials

#: seconds between two checks of a link that the other side has made
_LOOK: Final = 0.25
_DUPLICATE: Final = "link.duplicate"


@dataclass(slots=True)
class _Neighbour:
    link: Link
    caller: Principal
    credentials: Credentials
    #: the code if this broker has cut it off
    cut: str = ""


class NeighbourLinks:
    """The links to other brokers, by broker."""

    def __init__(self, limits: CodecLimits) -> None:
        self._limits = limits
        self.open: dict[Principal, _Neighbour] = {}

    def post(self, peer: Principal, message: Writable, *, urgent: bool = False) -> bool:
        """Send a message to a neighbour; return whether a link accepted it."""
        neighbour = self.open.get(peer)
        if neighbour is None:
            return False
        # The task that serves a link notices its end.
        with suppress(PenstockError):
            neighbour.link.post(encode(message, limits=self._limits), urgent=urgent)
            return True
        return False

    def post_now(self, peer: Principal, message: Writable) -> None:
        """Send a message about policy to a neighbour immediately, ahead of all events."""
        self.post(peer, message, urgent=True)
        neighbour = self.open.get(peer)
        if neighbour is not None:
            neighbour.link.flush()


class Neighbours:
    """See the module. `gossip` takes what neighbours say about policy, `validity` what they say about certificates."""

    def __init__(
        self, core: Core, endpoint: Endpoint, links: NeighbourLinks, gossip: PolicyGossip, validity: ValidityTree
    ) -> None:
        self._validity = validity
        self._core = core
        self._endpoint = endpoint
        self._links = links
        self._gossip = gossip
        self._neighbours = links.open
        self._calls: list[asyncio.Task[None]] = []
        self._closing: set[asyncio.Task[None]] = set()
        self._stopping = False
        #: brokers whose disclosures are being read
        self._reading: dict[Principal, asyncio.Task[None]] = {}
        self.reports = LinkReports(core.report)

    def up(self) -> list[Principal]:
        """Return the brokers with a link."""
        return sorted(self._neighbours)

    def status(self) -> dict[str, Wire]:
        """Return the lost links for operators, also those that are back."""
        return self.reports.status(asyncio.get_running_loop().time())

    def start(self, peers: Iterable[Address]) -> None:
        """Call brokers, and call them again whenever a link is lost."""
        self._calls += [keep_running("calling a broker", partial(self._keep_calling, peer)) for peer in peers]

    async def stop_calling(self) -> None:
        """Stop calling brokers. The links stay, and their end does not count as a loss."""
        self._stopping = True
        for call in self._calls:
            call.cancel()
        await asyncio.gather(*self._calls, return_exceptions=True)
        self._calls = []

    async def close(self) -> None:
        """Close all links."""
        for reading in list(self._reading.values()):
            reading.cancel()
        await asyncio.gather(*self._reading.values(), return_exceptions=True)
        await asyncio.gather(*(neighbour.link.close() for neighbour in list(self._neighbours.values())))
        await asyncio.gather(*self._closing, return_exceptions=True)

    def recheck(self) -> None:
        """Cut the links to brokers that may not be in the network any longer."""
        for peer in list(self._neighbours):
            if not self._core.admitted(peer):
                self.cut(
                    Cut(peer, RefusedError("broker.not-permitted", "the neighbour may not be a broker any longer"))
                )

    # Links.

    async def serve(self, link: Link, hello: Hello, waiting: Sequence[Wire]) -> None:
        """Serve a broker that has called. Raises the error that ends its link."""
        peer = link.peer.principal
        bag = await self._core.read_hello(peer, hello.credentials)
        self._core.require_broker(peer, bag)
        link.admit()
        link.post(encode(Welcome(self._core.shown()).to_tree()))
        await self._attend(_Neighbour(link, peer, bag), waiting)

    async def _keep_calling(self, address: Address) -> None:
        loop = asyncio.get_running_loop()
        pauses, who, noted = Pauses(self._endpoint.random), address.principal, ""
        while True:
            # The broker at an address without principal may have called in the meantime.
            if who is not None and who in self._neighbours:
                pauses.there(loop.time())
                await asyncio.sleep(_LOOK)
            else:
                try:
                    link = await address.call(self._endpoint)
                    who = link.peer.principal
                    await self._greet(link)
                    noted = ""
                    pauses.there(loop.time())
                except (PenstockError, OSError) as error:
                    # An unreachable broker is called often, but reported once.
                    if isinstance(error, PenstockError) and error.code != noted:
                        noted = error.code
                        self._core.note(error)
                await asyncio.sleep(pauses.next(loop.time()))

    async def _greet(self, link: Link) -> None:
        """Greet a broker that was called, and serve it. Raises the error that ends its link."""
        core = self._core
        try:
            link.post(encode(Hello(PeerRole.BROKER, core.shown()).to_tree()))
            async with asyncio.timeout(core.settings.limits.handshake_time / 1000):
                batch = await link.receive()
            welcome = read_word(batch[0])
            if not isinstance(welcome, Welcome):
                raise MalformedError("protocol.malformed", "a broker's first message is not a welcome")
            bag = await core.read_hello(link.peer.principal, welcome.credentials)
            core.require_broker(link.peer.principal, bag)
            with suppress(FailedError):
                await self._attend(_Neighbour(link, core.principal, bag), batch[1:])
        except PenstockError as error:
            await link.close(error.code)
            raise
        finally:
            await link.close()

    async def _attend(self, neighbour: _Neighbour, waiting: Sequence[Wire]) -> None:
        """Make a link the one to a neighbour, and process its messages until the link ends."""
        core, link = self._core, neighbour.link
        peer = link.peer.principal
        loop = asyncio.get_running_loop()
        turns = Turns()
        self._choose(peer, neighbour)
        link.let_overtake()
        self._own(partial(core.disclose, peer, neighbour.credentials))
        self._own(lambda: core.settle(core.router.link_up(peer, loop.time())))
        self.reports.up(peer, loop.time())
        self._gossip.linked(peer)
        self._validity.linked(peer)
        try:
            while True:
                turns.begin()
                for tree in waiting:
                    if self._neighbours.get(peer) is not neighbour:
                        return
                    link.check_not_cut()
                    for one in (*link.urgent(), tree):
                        core.begin()
                        self._hear(peer, one, loop.time())
                    await turns.over()
                waiting = await link.receive()
        finally:
            if self._neighbours.get(peer) is neighbour:
                del self._neighbours[peer]
                self._gossip.unlinked(peer)
                self._validity.unlinked(peer)
                reason = _reason(neighbour)
                # Of two links to the same broker one is closed, and the other one stays.
                if not self._stopping and reason != _DUPLICATE:
                    self.reports.lost(peer, reason, loop.time())
                self._own(lambda: core.settle(core.router.link_down(peer)))

    def _hear(self, peer: Principal, tree: Wire, now: float) -> None:
        core = self._core
        match tree:
            case ["stamp", bytes(stamp)]:
                self._gossip.heard_stamp(peer, stamp)
            case ["policy", *words]:
                self._hear_verified(peer, words, self._gossip.heard)
            case ["validity", *words]:
                self._hear_verified(peer, words, self._validity.heard)
            case _:
                # Only a malformed message ends the link.
                outputs = core.router.receive(peer, Hop.from_tree(tree), now)
                self._own(lambda: core.settle(outputs))

    def _own(self, act: Callable[[], None]) -> None:
        """Call `act`, and report its errors: they are not the neighbour's fault."""
        try:
            act()
        except PenstockError as error:
            self._core.note(error)

    def _hear_verified(
        self, peer: Principal, words: Sequence[Wire], heard: Callable[[Principal, Sequence[Wire]], None]
    ) -> None:
        try:
            heard(peer, words)
        except PenstockError as error:
            self.cut(Cut(peer, error))

    def _choose(self, peer: Principal, neighbour: _Neighbour) -> None:
        """Use a link. Raise `RefusedError` (`link.duplicate`) if there is one already that stays."""
        present = self._neighbours.get(peer)
        if present is not None and present.link.ended is None:
            if present.caller < neighbour.caller:
                raise RefusedError(_DUPLICATE, "there is a link to this broker already")
            self._close(present.link, _DUPLICATE)
        self._neighbours[peer] = neighbour

    def _close(self, link: Link, code: str) -> None:
        task = in_background("closing a link", link.close(code))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    # Outputs of the router.

    def send(self, send: Send) -> None:
        """Send a router's message to a neighbour."""
        if not self._links.post(send.peer, send.hop.to_tree()) and isinstance(send.hop.body, Publications):
            self.unsent(Unsent(send.peer, len(send.hop.body.events)))

    def unsent(self, unsent: Unsent) -> None:
        """Count events that could not be sent to a neighbour."""
        self.reports.not_passed_on(unsent.peer, unsent.events)

    def cut(self, cut: Cut) -> None:
        """Close the link to a neighbour, and say why."""
        neighbour = self._neighbours.get(cut.peer)
        if neighbour is not None:
            self._core.note(cut.reason)
            neighbour.cut = cut.reason.code
            self._close(neighbour.link, cut.reason.code)

    def disclosed(self, disclosed: Disclosed) -> None:
        """Read a broker's disclosure in the background, or forget the broker's credentials."""
        broker = disclosed.broker
        reading = self._reading.pop(broker, None)
        if reading is not None:
            reading.cancel()
        if not disclosed.data:
            self._core.disclose(broker, None)
            return
        task = self._reading[broker] = in_background("reading what a broker discloses", self._read(disclosed))
        task.add_done_callback(partial(self._was_read, broker))

    def _was_read(self, broker: Principal, task: asyncio.Task[None]) -> None:
        if self._reading.get(broker) is task:
            del self._reading[broker]

    async def _read(self, disclosed: Disclosed) -> None:
        core, broker, data = self._core, disclosed.broker, disclosed.data
        bag: Credentials | None = None
        try:
            bag = await core.read_relayed(disclosed.peer or broker, broker, data)
        except (RefusedError, MalformedError) as error:
            core.note(error)
        if not core.router.is_unread(broker, data):
            return
        if bag is None:
            core.router.disbelieve(broker, data)
        else:
            self._own(lambda: core.settle(core.router.believe(broker, data)))
        self._own(partial(core.disclose, broker, bag))


def _reason(neighbour: _Neighbour) -> str:
    """Return the code for the loss of a link: the one that the peer gave, if any."""
    ended = neighbour.link.ended
    return neighbour.cut or ("" if ended is None else str(ended.fields.get("reason", ended.code)))
