"""A client's connection to its broker: numbered requests and their answers, over a link that is made again when lost.

Active requests are sent again over a new link before anything else, so that whoever waited for the connection finds
everything as it was. A request that waited for its answer when the link was lost fails
(`client.interrupted`): it may have been carried out or not.
"""

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from itertools import count
from typing import Final, TypeAlias

from penstock.broker.local.requests import Detail, MissingRight, not_permitted, settled
from penstock.broker.wire import protocol
from penstock.broker.wire.link import Endpoint, Link
from penstock.broker.wire.protocol import Asking, Hello, PeerRole, Welcome, Word, is_delivery, read_word, word_of
from penstock.broker.wire.transports import Address, Pauses
from penstock.codec.wire import HEADER_BYTES, Encoded, Wire, encode
from penstock.errors import FailedError, LimitError, MalformedError, PenstockError, RefusedError
from penstock.fabric.tasks import in_background, report
from penstock.guard import CapabilityAuthority, NetworkRequest, decide
from penstock.model.principals import Principal
from penstock.trust.capabilities import BROKER_RIGHTS
from penstock.trust.credentials import Credentials, read_credentials
from penstock.trust.refusals import LackedRight, read_revoked

#: codes of refusals that may not last: trying again may help
_PASSING: Final = frozenset(
    (
        # A session that has lost its link counts until the broker has noticed.
        *("broker.sessions", "handshake.timeout", "admission.rate", "log.write"),
        *("link.busy", "link.slow-reader", "link.idle", "link.flood"),
    )
)

Hear: TypeAlias = Callable[[Word], asyncio.Event | None]
"""Handle messages that are not responses: events, notices, late refusals.

Return an `asyncio.Event` that must be set before the next message is handled, if one has to be waited for.
"""

ActiveRequest: TypeAlias = tuple[Asking, Callable[[RefusedError | None], None]]
"""An active request, and the callback for its answer: None, or why a broker refuses it after all."""


@dataclass(slots=True, kw_only=True)
class Caller:
    """Which broker to call, with which identity and first message. If the address names a broker, require it."""

    address: Address
    endpoint: Endpoint
    credentials: Credentials
    timeout: float
    clock: Callable[[], datetime]
    statements: tuple[bytes, ...] = ()
    #: the options with which `penstock explain` finds this client's key and certificates, if there are such
    explain: str | None = None

    def refusal(self, word: protocol.RefusedMessage, asked: str) -> RefusedError:
        """Return the error for a broker's refusal, with the command that explains it if a right is missing.

        Raises `MalformedError` (`protocol.malformed`, `principal.malformed`).
        """
        detail = {**word.detail} if isinstance(word.detail, dict) else {}
        lacked = LackedRight.from_row(self.endpoint.key.principal, detail.pop("lacked", None))
        revoked = read_revoked(detail.pop("revoked", None))
        found: dict[str, object] = {"asked": asked, "detail": detail or None, "position": word.position}
        hint = word.hint
        if lacked is not None:
            found |= {"lacked": lacked, "revoked": revoked}
            hint = lacked.hint("" if self.explain is None else lacked.command(self.explain), revoked)
        return RefusedError(word.code, word.message, hint=hint, **found)

    async def call(self) -> tuple[Link, list[Wire]]:
        """Open a link and be admitted. Return it, and the messages that have followed the welcome.

        Raises what opening a link raises, `RefusedError` when one side may not be in the network, `FailedError`
        (`client.timeout`), and `LimitError` (`protocol.hello`).
        """
        hello = encode(Hello(PeerRole.CLIENT, self.credentials.to_bytes(), self.statements).to_tree())
        most = self.endpoint.limits.hello_bytes - HEADER_BYTES
        if len(hello) > most:
            raise LimitError(
                "protocol.hello",
                f"the credentials to connect with take {len(hello)} bytes, and a broker reads {most} at most",
                hint="connect with those that give the right to connect, and `disclose` the others afterwards",
            )
        link = await self.address.call(self.endpoint)
        try:
            async with asyncio.timeout(self.timeout):
                link.post(hello)
                first, *rest = await link.receive()
            self._check_broker(link.peer.principal, self._welcomed(read_word(first)))
        except TimeoutError:
            await link.close()
            raise late("connect") from None
        except BaseException:
            await link.close()
            raise
        return link, rest

    def _check_broker(self, broker: Principal, disclosed: bytes) -> None:
        """Check that the peer is a broker of the network: anybody can listen at an address."""
        if broker == self.address.principal:
            return
        bag = self.credentials
        if disclosed:
            bag += read_credentials(disclosed).verify()
        network = self.endpoint.network
        for right in BROKER_RIGHTS:
            request = NetworkRequest(broker, right, network, self.clock())
            if not settled(decide(request, (CapabilityAuthority(bag),))):
                raise not_permitted(
                    LackedRight(broker, right, network), Detail(missing=(MissingRight(right, network),))
                )

    def _welcomed(self, word: Word) -> bytes:
        """Return the credentials that the broker discloses in its welcome. Raises `RefusedError` if it refuses."""
        if isinstance(word, protocol.RefusedMessage):
            raise self.refusal(word, "connect")
        if not isinstance(word, Welcome):
            raise MalformedError("protocol.malformed", "a broker does not say welcome")
        return word.credentials


class Connection:
    """See the module. `again` returns the active requests, `over` receives why the connection has ended for good."""

    def __init__(
        self,
        caller: Caller,
        *,
        hear: Hear,
        again: Callable[[], Iterable[ActiveRequest]],
        over: Callable[[PenstockError], None],
    ) -> None:
        self._caller = caller
        self._hear = hear
        self._again = again
        self._over = over
        self._numbers = count(1)
        self._up = asyncio.Event()
        self._sending = asyncio.Lock()
        self._waiting: dict[int, _Answer] = {}
        self._running: asyncio.Task[None] | None = None
        self._resuming: asyncio.Task[None] | None = None
        #: to wait for before the next message of the broker is handled
        self._crowded: asyncio.Event | None = None
        self.link: Link | None = None
        self.ended: PenstockError | None = None
        #: how often a lost connection was made again
        self.renewed = 0
        #: receives the error of a lost link, and None when everything is as it was before
        self.watched: Callable[[PenstockError | None], object] | None = None

    @property
    def is_up(self) -> bool:
        """Whether requests are sent immediately."""
        return self._up.is_set() and self.ended is None

    def number(self) -> int:
        """Return a number that no request has had."""
        return next(self._numbers)

    # From the first link to the last.

    async def open(self, patience: float) -> None:
        """Connect; try for so many seconds. Raises as `Caller.call`."""
        loop = asyncio.get_running_loop()
        deadline, pauses = loop.time() + patience, Pauses(self._caller.endpoint.random)
        found: tuple[Link, list[Wire]] | None = None
        while found is None:
            try:
                found = await self._caller.call()
            except PenstockError as error:
                pause = pauses.next(loop.time())
                if not _is_passing(error) or loop.time() + pause > deadline:
                    raise
                await asyncio.sleep(pause)
        link, waiting = found
        self.link = link
        self._up.set()
        self._running = in_background("reading from the broker", self._run(link, waiting))

    async def close(self) -> None:
        """Send what was posted, and end the connection."""
        link = self.link
        self._end(FailedError("client.closed", "the client was closed"))
        if link is not None:
            await link.close()
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)

    async def _run(self, link: Link, waiting: list[Wire]) -> None:
        """Read the broker's messages; if the link is lost, open a new one and send all active requests again."""
        while True:
            error = await self._listen(link, waiting)
            self._lost(error)
            self._tell(error)
            found = await self._reopen()
            if found is None:
                return
            link, waiting = found
            self.link = link
            self.renewed += 1
            self._resuming = in_background("asking the broker again", self._resume(link))

    async def _listen(self, link: Link, waiting: list[Wire]) -> PenstockError:
        """Handle the broker's messages until the link ends; return the error that it ended with."""
        try:
            while True:
                for tree in waiting:
                    if self._crowded is not None:
                        await self._crowded.wait()
                    self._crowded = self._take(read_word(tree))
                waiting = await link.receive(self._take_alone)
        except PenstockError as error:
            await link.close(error.code)
            return error
        except Exception as error:  # noqa: BLE001  # what the broker said trips us up: the link is over, not the client
            report("a message of the broker", error)
            await link.close("protocol.malformed")
            return MalformedError("protocol.malformed", "the broker sent what cannot be read")

    def _lost(self, error: PenstockError) -> None:
        self._up.clear()
        self.link = None
        if self._resuming is not None:
            self._resuming.cancel()
        waiting, self._waiting = self._waiting, {}
        for answer in waiting.values():
            answer.fail(
                FailedError(
                    "client.interrupted",
                    "the connection was lost before an answer came",
                    hint="it may have been carried out or not",
                    reason=error.code,
                )
            )

    async def _reopen(self) -> tuple[Link, list[Wire]] | None:
        loop = asyncio.get_running_loop()
        pauses = Pauses(self._caller.endpoint.random)
        pauses.there(loop.time())
        while self.ended is None:
            try:
                return await self._caller.call()
            except PenstockError as error:
                if not _is_passing(error):
                    self._end(error)
                    return None
            await asyncio.sleep(pauses.next(loop.time()))
        return None

    async def _resume(self, link: Link) -> None:
        """Send the active requests again, and then let others send."""
        with suppress(PenstockError):  # of a link that is lost again, which whoever listens notices
            for request, answered in list(self._again()):
                answer = self._waiting[request.number] = _Answer(request)
                answer.tell(answered)
                await link.send(encode(request.to_tree(), limits=self._caller.endpoint.limits.codec))
            self._up.set()
            self._tell(None)

    def _tell(self, error: PenstockError | None) -> None:
        if self.watched is not None and self.ended is None:
            self.watched(error)

    def _end(self, error: PenstockError) -> None:
        if self.ended is None:
            self.ended = error
        self._lost(error)
        # Wake whoever waits for the connection: there will be none.
        self._up.set()
        self._over(self.ended)

    # Messages of the broker.

    def _take_alone(self, tree: Wire) -> bool:
        """Handle events that have arrived alone; return False for everything else."""
        if not is_delivery(tree) or (self._crowded is not None and not self._crowded.is_set()):
            return False
        self._crowded = self._take(read_word(tree))
        return True

    def _take(self, word: Word) -> asyncio.Event | None:
        """Handle a message of the broker; return what has to be waited for before the next one."""
        match word:
            case protocol.AcceptedMessage(number):
                self._answer(number, None)
            case protocol.ResponseMessage(number, found):
                self._answer(number, found)
            case protocol.RefusedMessage(number) if number in self._waiting:
                waiting = self._waiting[number]
                waiting.refuse(self._caller.refusal(word, word_of(waiting.asked)))
                # Of events several may be refused, and the answer to all of them follows.
                if not isinstance(self._waiting[number].asked, protocol.PublishMessage):
                    self._answer(number, None)
            case Welcome():
                raise MalformedError("protocol.malformed", "a second welcome")
            case _:
                return self._hear(word)
        return None

    def _answer(self, number: int, found: Wire) -> None:
        answer = self._waiting.pop(number, None)
        if answer is not None:
            answer.give(found)

    # Messages to the broker.

    async def ask(self, request: Asking) -> Wire:
        """Send a request and wait for its answer. Raises `RefusedError` and `FailedError` (`client.*`)."""
        answer = _Answer(request)
        try:
            async with asyncio.timeout(self._caller.timeout):
                await self.send(encode(request.to_tree(), limits=self._caller.endpoint.limits.codec))
                self._waiting[request.number] = answer
                return await answer
        except TimeoutError:
            raise late(word_of(request)) from None
        finally:
            self._waiting.pop(request.number, None)

    async def send(self, *messages: Encoded) -> None:
        """Send messages, in order, as soon as there is a connection and the broker reads.

        Raises `FailedError` (`client.*`) and what the connection has ended with.
        """
        # One at a time: what was to be sent first is sent first.
        async with self._sending:
            for message in messages:
                await self._send(message)

    def post(self, messages: list[Encoded]) -> list[Encoded]:
        """Send messages immediately, as far as nothing has to be waited for; return those that are left for `send`."""
        link = self.link
        if link is None or not self.is_up or self._sending.locked():
            return messages
        for place, message in enumerate(messages):
            if not link.try_post(message):
                return messages[place:]
        return []

    async def _send(self, message: Encoded) -> None:
        while True:
            await self._up.wait()
            if self.ended is not None:
                raise self.ended.with_traceback(None)
            link = self.link
            if link is not None:
                with suppress(PenstockError):
                    await link.send(message)
                    return
                # Lost just now; whoever listens will notice.
                if self.link is link:
                    self._up.clear()


class _Answer(asyncio.Future[Wire]):
    """The answer to a request, and the request."""

    def __init__(self, request: Asking) -> None:
        super().__init__()
        self.asked = request
        self._problem: RefusedError | None = None

    def give(self, found: Wire) -> None:
        """Set the result, or the refusal if there was one."""
        if not self.done():
            if self._problem is None:
                self.set_result(found)
            else:
                self.set_exception(self._problem)

    def refuse(self, problem: RefusedError) -> None:
        """Take a refusal; of several, the first one counts."""
        self._problem = self._problem or problem

    def fail(self, error: PenstockError) -> None:
        """End without an answer."""
        if not self.done():
            self.set_exception(error)

    def tell(self, answered: Callable[[RefusedError | None], None]) -> None:
        """Call back when the request is answered: nobody waits for the answer."""

        def done(_: "asyncio.Future[Wire]") -> None:
            if not self.cancelled() and isinstance(error := self.exception(), RefusedError | None):
                answered(error)

        self.add_done_callback(done)


def late(what: str) -> FailedError:
    """Return the error for an answer that takes too long."""
    return FailedError("client.timeout", f"no answer to `{what}` in time", hint="is the broker busy? try again")


def _is_passing(error: PenstockError) -> bool:
    return isinstance(error, FailedError) or error.code in _PASSING or error.fields.get("reason") in _PASSING
