"""Serve the clients of a node: pass their requests to the local broker, and its answers back over their links."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from typing import Final, TypeAlias, cast

from penstock.broker.core.clock import TURN, Turns
from penstock.broker.core.core import Core
from penstock.broker.keys.client_requests import Answer, Asker, Outcome
from penstock.broker.limits import BrokerLimits
from penstock.broker.local import requests
from penstock.broker.local.requests import Detail, ToClient
from penstock.broker.node.policies import Told
from penstock.broker.node.validity import NodeValidity
from penstock.broker.wire import protocol
from penstock.broker.wire.link import Link, Rate
from penstock.broker.wire.protocol import AskKeys, FetchKeys, is_publication, read_request
from penstock.codec.wire import Encoded, Wire, encode
from penstock.errors import LimitError, MalformedError, PenstockError, RefusedError
from penstock.fabric.tasks import in_background
from penstock.model.principals import Principal
from penstock.selector import ALWAYS, parse
from penstock.trust.capabilities import Right
from penstock.trust.credentials import Credentials
from penstock.trust.event_types import UnverifiedType, read_type
from penstock.trust.refusals import TYPE_USES, LackedRight, RevokedCertificate, revoked_rows

Question: TypeAlias = Callable[[Principal], Wire]
"""Returns the status for operators. Raises `RefusedError` for others."""

Evolve: TypeAlias = Callable[[Principal, bytes, Told], None]
"""Processes an owner's signed statement from a client, and reports when it is safe on the disk, now or later.

Raises `RefusedError` and `MalformedError` for invalid statements.
"""

Policy: TypeAlias = Callable[[Principal, Principal, int], Wire]
"""Returns an owner's policy status and its events after a number. Raises `RefusedError` for strangers."""

RevokedAt: TypeAlias = Callable[[RevokedCertificate], RevokedCertificate]
"""Returns a revoked certificate with the time of the revocation, if it is known."""

AboutKeys: TypeAlias = Callable[[Asker, AskKeys | FetchKeys, Answer], None]
"""Answers clients' requests about keys, now or later. Raises `RefusedError` and `MalformedError`."""

#: a request that takes more seconds counts as expensive
_DEAR: Final = 0.01


@dataclass(slots=True)
class _Client:
    session: str
    link: Link
    #: the client's credentials
    shown: Credentials = field(default_factory=Credentials)
    #: the request that is being answered
    number: int = 0
    #: the code if it was refused at connection
    refused: str = ""
    #: changes of its rights that wait until it reads, the last one for each request, and the task that sends them
    notices: dict[str, Encoded] = field(default_factory=dict)
    telling: asyncio.Task[None] | None = None


class _Pace:
    """Limits the requests of a principal, by number and cost. Only its own links wait."""

    def __init__(self, limits: BrokerLimits) -> None:
        self._requests = Rate(limits.client_requests, limits.client_requests_burst)
        self._work = Rate(limits.client_work / 1000, limits.client_work_burst / 1000)
        self._changes = Rate(limits.client_changes, limits.client_changes_burst)

    def charge(self, work: float, now: float, *, change: bool) -> float:
        """Count a request that took `work` seconds; return how long to wait before the next one.

        A `change` is a request that other brokers have to process. After an expensive request, other principals get
        as much time as it took.
        """
        dear = work if work > _DEAR else 0.0
        rates = self._requests.charge(1, now), self._work.charge(work, now), self._changes.charge(change, now)
        return max(*rates, dear)


class Clients:
    """Serves the clients of a node."""

    def __init__(  # noqa: PLR0913  # each answers one kind of request
        self,
        core: Core,
        status: Question,
        evolve: Evolve,
        policy: Policy,
        keys: AboutKeys,
        *,
        validity: NodeValidity,
        revoked_at: RevokedAt,
        worked: Callable[[], float],
    ) -> None:
        self._core = core
        self._validity = validity
        self._status = status
        self._evolve = evolve
        self._policy = policy
        self._keys = keys
        self._revoked_at = revoked_at
        self._worked = worked
        self._numbers = count(1)
        self._clients: dict[str, _Client] = {}
        self._paces: dict[Principal, _Pace] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._clients)

    async def serve(self, link: Link, hello: protocol.Hello, waiting: Sequence[Wire]) -> None:
        """Serve a client until its link ends. Raises the error that ends it."""
        core, local = self._core, self._core.local
        try:
            bag = await core.read_hello(link.peer.principal, hello.credentials, hello.statements)
        except RefusedError as error:
            # The code that a link ends with does not say when to try again.
            with suppress(PenstockError):
                link.post(encode(_refusal(0, error).to_tree()))
            raise
        client = _Client(str(next(self._numbers)), link, bag)
        self._clients[client.session] = client
        core.path.links[client.session] = link
        try:
            core.settle(local.connect(core.now(), client.session, link.peer.principal, bag))
            if local.knows(client.session):
                link.admit()
                await self._converse(client, waiting)
            else:
                await link.close(client.refused)
        finally:
            core.path.links.pop(client.session, None)
            self._validity.left(link.peer.principal, client.session)
            if self._clients.pop(client.session, None) is not None and local.knows(client.session):
                core.settle(local.disconnect(core.now(), client.session))

    async def _converse(self, client: _Client, waiting: Sequence[Wire]) -> None:
        """Process a client's messages, in turns with other clients."""
        turns, loop, outbox = Turns(), asyncio.get_running_loop(), self._core.outbox
        pace = self._pace(client.link.peer.principal)
        alone = partial(self._take_alone, client)
        while True:
            turns.since = loop.time()
            for tree in waiting:
                if client.session not in self._clients:
                    return
                client.link.check_not_cut()
                request, pause = read_request(tree), 0.0
                if isinstance(request, protocol.PublishMessage):
                    self._take(client, request)
                    if outbox is not None and outbox.crowded:
                        await outbox.wait()
                elif _is_for_its_client(request) and client.link.left:
                    continue
                elif isinstance(request, protocol.Disclose):
                    # Reading credentials is expensive, and takes turns of its own.
                    await self._disclose(client, request)
                    pause = pace.charge(0.0, loop.time(), change=False)
                else:
                    await self._prepare(client, request)
                    if client.session not in self._clients:
                        return
                    began = self._worked()
                    self._take(client, request)
                    pause = pace.charge(self._worked() - began, loop.time(), change=_changes(request))
                    self._core.counts["slowed"] += pause > _DEAR
                if pause > 0 or loop.time() - turns.since > TURN:
                    await turns.over(pause)
            waiting = await client.link.receive(alone)

    async def _prepare(self, client: _Client, request: protocol.Request) -> None:
        """Let sources of authority ask others about a request, before it is decided."""
        prepare = self._core.settings.prepare
        if prepare is not None and isinstance(request, protocol.SubscribeMessage | protocol.AdvertiseMessage):
            subscribes = isinstance(request, protocol.SubscribeMessage)
            await prepare(client.link.peer.principal, Right.SUBSCRIBE if subscribes else Right.PUBLISH, request.type)

    def _take_alone(self, client: _Client, tree: Wire) -> bool:
        """Handle a publication that has arrived alone; return False for everything else."""
        if self._core.outbox is not None or client.session not in self._clients or not is_publication(tree):
            return False
        self._take(client, read_request(tree))
        return True

    def tell(self, word: ToClient) -> None:
        """Send an answer or a notice to a client."""
        client = self._clients.get(word.session)
        if client is None:
            return
        match word:
            case requests.Accepted(_, requests.ClientRequest(requests.Verb.CONNECT)):
                self._post(client, protocol.Welcome(self._core.shown()))
            case requests.Accepted(_, asked, keys):
                if asked.verb in (requests.Verb.UNSUBSCRIBE, requests.Verb.UNADVERTISE):
                    client.notices.pop(asked.id, None)
                # Answer when the whole network has the request: events that are published afterwards arrive.
                answer = partial(self._accept, client, client.number)
                self._core.confirm(keys, answer, asyncio.get_running_loop().time())
            case requests.Refused(_, asked, code, message, detail, hint, position, lacked, revoked):
                client.refused = code if asked.verb is requests.Verb.CONNECT else ""
                told = _told(detail, lacked, [*map(self._revoked_at, revoked)])
                self._post(client, protocol.RefusedMessage(client.number, code, message, hint, told, position))
            case requests.Answered(_, _, detail):
                self._post(client, protocol.ResponseMessage(client.number, detail_tree(detail)))
            case requests.Quenched(_, advertisement, quiet):
                self._post(client, protocol.QuenchedMessage(advertisement, quiet))
            case requests.RightChanged():
                self._tell_right(client, word)
            case requests.Closed(session, code):
                del self._clients[session]
                self._core.path.links.pop(session, None)
                self._close(client.link, code)

    def _tell_right(self, client: _Client, word: requests.RightChanged) -> None:
        """Send a change of a right. One change of policy may concern thousands of requests: a client may read slowly.

        If it does, changes wait, and a later one for the same request takes the place of an earlier one: what waits is
        bounded by the client's requests, and nobody is cut for a change that others have made.
        """
        message = self._right_message(word)
        if not client.notices and client.link.try_post(message):
            return
        client.notices[word.asked.id] = message
        if client.telling is None or client.telling.done():
            client.telling = in_background("telling a client about its rights", self._tell_rights(client))

    async def _tell_rights(self, client: _Client) -> None:
        # The task that serves a link notices its end.
        with suppress(PenstockError):
            while client.notices:
                await client.link.send(client.notices.pop(next(iter(client.notices))))

    def _right_message(self, word: requests.RightChanged) -> Encoded:
        told, code, message, hint = _told(word.detail, None, ()), "", "", ""
        if word.refused is not None:
            lacked, revoked = word.refused.lacked, [*map(self._revoked_at, word.refused.revoked)]
            code, message, hint = word.refused.code, word.refused.message, word.refused.hint
            told = _told(word.detail, lacked, revoked)
        made = protocol.RightChangedMessage(word.asked.id, word.change, code, message, hint, told)
        try:
            return encode(made.to_tree(), limits=self._core.settings.limits.codec)
        except LimitError as error:
            self._core.note(error)
            return encode(replace(made, detail=None).to_tree())

    def _accept(self, client: _Client, number: int) -> None:
        self._post(client, protocol.AcceptedMessage(number))

    def _post(self, client: _Client, word: protocol.Word) -> None:
        try:
            self._send(client, [encode(word.to_tree(), limits=self._core.settings.limits.codec)])
        except LimitError as error:
            self._core.note(error)
            self._send(client, [encode(protocol.RefusedMessage(client.number, error.code, error.message).to_tree())])

    def _send(self, client: _Client, messages: Sequence[Encoded]) -> None:
        # The task that serves a link notices its end.
        with suppress(PenstockError):
            for message in messages:
                client.link.post(message)

    def _close(self, link: Link, code: str) -> None:
        task = in_background("closing a link", link.close(code))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    # Requests of clients.

    def _pace(self, principal: Principal) -> "_Pace":
        pace = self._paces.get(principal)
        if pace is None:
            if len(self._paces) >= self._core.settings.limits.cache_entries:
                # Connected clients keep theirs; the others start again.
                self._paces.clear()
            pace = self._paces[principal] = _Pace(self._core.settings.limits)
        return pace

    def _take(self, client: _Client, request: protocol.Request) -> None:
        """Process a client's request."""
        if isinstance(request, protocol.Hello):
            raise MalformedError("protocol.malformed", "a second hello")
        client.number = request.number
        try:
            if isinstance(request, protocol.PublishMessage):
                self._core.path.publish(client.session, request)
            else:
                self._obey(client, request)
        except (RefusedError, MalformedError) as error:
            self._core.note(error)
            self._post(client, _refusal(request.number, error))
        if isinstance(request, protocol.PublishMessage) and request.number:
            self._post(client, protocol.AcceptedMessage(request.number))

    async def _disclose(self, client: _Client, request: protocol.Disclose) -> None:
        """Process further credentials of a client."""
        core, number = self._core, request.number
        try:
            bag = await core.read_disclosed(client.link.peer.principal, request.credentials)
            await self._validity.gather(bag)
            if client.session not in self._clients:
                return
            client.number = number
            core.settle(core.local.disclose(core.begin(), client.session, bag))
        except (RefusedError, MalformedError) as error:
            core.note(error)
            self._post(client, _refusal(number, error))
        else:
            client.shown += bag
            self._post(client, protocol.AcceptedMessage(number))

    def _obey(self, client: _Client, request: protocol.Request) -> None:
        core, local, session = self._core, self._core.local, client.session
        now = core.begin()
        match request:
            case protocol.SubscribeMessage(_, id_, name, selector, definitions):
                wanted = parse(selector) if selector else ALWAYS
                self._learn(definitions)
                core.settle(local.subscribe(now, session, id_, name, wanted))
            case protocol.AdvertiseMessage(_, id_, name, definitions):
                self._learn(definitions)
                core.settle(local.advertise(now, session, id_, name))
            case protocol.NamedRequestMessage(_, "unsubscribe", id_):
                core.settle(local.unsubscribe(now, session, id_))
            case protocol.NamedRequestMessage(_, "unadvertise", id_):
                core.settle(local.unadvertise(now, session, id_))
            case protocol.NamedRequestMessage(_, _, id_):
                core.settle(local.restrictions(now, session, id_))
            case protocol.AddTypeMessage(_, definition):
                core.settle(local.add_type(now, session, read_type(definition)))
            case protocol.RemoveTypeMessage(_, name):
                core.settle(local.remove_type(now, session, name))
            case protocol.DescribeTypeMessage(number, name):
                found: list[Wire] = [one.to_bytes() for one in core.library.definitions(name)]
                self._post(client, protocol.ResponseMessage(number, found))
            case protocol.NetworkStatusMessage(number):
                self._post(client, protocol.ResponseMessage(number, self._status(client.link.peer.principal)))
            case protocol.CredentialStatusMessage(number, about):
                core.settle(local.catch_up(now))
                answer: dict[str, Wire] = {"time": core.now(), "revoked": self._revoked_rows(session)}
                if about is not None and about in core.library:
                    rights = local.rights(now, session, about)
                    lacked = [LackedRight(client.link.peer.principal, one, about) for one in TYPE_USES - rights]
                    answer["rights"] = [*map(str, rights)]
                    answer["lost"] = {str(one.right): self._revoked_rows(session, one) for one in lacked}
                self._post(client, protocol.ResponseMessage(number, answer))
            case protocol.PolicyHeadMessage(number, owner, after):
                self._post(
                    client, protocol.ResponseMessage(number, self._policy(client.link.peer.principal, owner, after))
                )
            case AskKeys(number) | FetchKeys(number):
                asker = Asker(client.link.peer.principal, client.shown)
                self._keys(asker, request, partial(self._answer, client, number))
            case protocol.ServeValidityMessage(number):
                self._validity.serve(client.link.peer.principal, session, partial(self._ask_validity, client))
                self._post(client, protocol.AcceptedMessage(number))
            case protocol.WatchRightsMessage():
                core.settle(local.watch_rights(now, session))
            case protocol.Evolve(number, signed):
                self._evolve(client.link.peer.principal, signed, partial(self._evolved, client, number))

    def _evolved(self, client: _Client, number: int, error: PenstockError | None) -> None:
        """Tell a client whether a signed statement is safe on the disk."""
        if error is None:
            self._post(client, protocol.AcceptedMessage(number))
        else:
            self._post(client, _refusal(number, error))

    def _ask_validity(self, client: _Client, question: bytes) -> None:
        """Ask a client that answers for validity."""
        self._post(client, protocol.ValidityAskedMessage(question))

    def _answer(self, client: _Client, number: int, answer: Outcome) -> None:
        """Send an answer that may have taken time."""
        if isinstance(answer, PenstockError):
            self._core.note(answer)
            self._post(client, _refusal(number, answer))
        else:
            self._post(client, protocol.ResponseMessage(number, answer))

    def _revoked_rows(self, session: str, lacked: LackedRight | None = None) -> Wire:
        local = self._core.local
        return cast("Wire", revoked_rows(map(self._revoked_at, local.revoked(local.session(session), lacked))))

    def _learn(self, definitions: Sequence[bytes]) -> None:
        """Install types that a client brings. They are as valid as the broker's own (Table 4.6)."""
        core = self._core
        new = [read_type(definition) for definition in definitions]
        new = [unverified for unverified in new if not self._knows(unverified)]
        if new:
            core.settle(core.local.change(core.now(), installed=new))

    def _knows(self, unverified: UnverifiedType) -> bool:
        name, library = unverified.definition.name, self._core.library
        return name in library and library.definitions(name)[-1].fingerprint == unverified.fingerprint


def _changes(request: protocol.Request) -> bool:
    """Return whether other brokers may have to process a request."""
    if isinstance(request, protocol.NamedRequestMessage):
        return request.word in ("unsubscribe", "unadvertise")
    return isinstance(request, protocol.SubscribeMessage | protocol.AdvertiseMessage)


def _is_for_its_client(request: protocol.Request) -> bool:
    """Return whether a request affects its client alone: it is dropped if the client has left."""
    if isinstance(request, protocol.NamedRequestMessage):
        return request.word != "unadvertise"
    lasting = (
        protocol.PublishMessage
        | protocol.AdvertiseMessage
        | protocol.Evolve
        | protocol.ServeValidityMessage
        | protocol.AddTypeMessage
        | protocol.RemoveTypeMessage
    )
    return not isinstance(request, lasting | protocol.Disclose)


def _refusal(number: int, error: PenstockError) -> protocol.RefusedMessage:
    lacked = error.fields.get("lacked")
    told = _told(None, lacked if isinstance(lacked, LackedRight) else None, ())
    return protocol.RefusedMessage(number, error.code, error.message, error.hint, told)


def _told(detail: Detail | None, lacked: LackedRight | None, revoked: Sequence[RevokedCertificate]) -> Wire:
    """Return what a client learns about a refusal beside its words; None if that is nothing."""
    told: dict[str, Wire] = {} if detail is None else detail_tree(detail)
    if lacked is not None:
        told["lacked"] = [*lacked.to_row()]
    if revoked:
        told["revoked"] = cast("Wire", revoked_rows(revoked))
    return told or None


def detail_tree(detail: Detail) -> dict[str, Wire]:
    """Return the detail of an answer as plain data."""
    granted: list[Wire] = [[str(key), cast("Wire", restriction)] for key, restriction in detail.granted]
    missing: list[Wire] = [[str(one.right), str(one.about), list(one.attributes)] for one in detail.missing]
    return {"granted": granted, "missing": missing, "problems": list(detail.problems)}
