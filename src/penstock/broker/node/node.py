"""A running broker: links to clients and to other brokers, and the exchange between them.

    async with Node(settings, recorder) as node:
        ...  # clients connect to node.port

State machines that read no clock decide everything. The node provides the time, and carries out their outputs. All
consequences of a message are carried out before the next message is processed, so no client can see half of a change.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Final, Self

from penstock.broker.core.clock import Clock
from penstock.broker.core.core import Core, Reported
from penstock.broker.core.exchange import Outward
from penstock.broker.core.settings import NodeSettings
from penstock.broker.evolution.gossip import PolicyGossip
from penstock.broker.evolution.statements import PolicyBook, PolicyNetwork
from penstock.broker.fabric.network import FabricNetwork, FabricSettings
from penstock.broker.keys.client_requests import KeyDesk
from penstock.broker.keys.node_keys import Keys, Managing
from penstock.broker.local.requests import Accepted, Answered, Closed, Quenched, Refused, RightChanged
from penstock.broker.node.clients import Clients
from penstock.broker.node.machine import LinkListener, Machine
from penstock.broker.node.neighbours import NeighbourLinks, Neighbours
from penstock.broker.node.policies import Forgetful, Keep, NodePolicies, Told
from penstock.broker.node.validity import NodeValidity
from penstock.broker.routing.outputs import Cut, Disclosed, Send, Unsent
from penstock.broker.sealing.vault import Quarantine
from penstock.broker.wire.link import Endpoint, Link
from penstock.broker.wire.protocol import Hello, PeerRole, read_request
from penstock.codec.sexp import head as sexp_head
from penstock.codec.sexp import parse_canonical
from penstock.codec.wire import Wire
from penstock.errors import FailedError, MalformedError, PenstockError, RefusedError
from penstock.fabric.nats_login import NatsLogin
from penstock.fabric.tasks import keep_running
from penstock.guard import Recorder
from penstock.model.events import TransitEvent
from penstock.model.names import TypeKey
from penstock.model.principals import Principal
from penstock.trust.credentials import Credentials
from penstock.trust.statements import VALIDITY_KINDS, VALIDITY_TOPIC
from penstock.trust.validity import OnlineTest, Validity

if TYPE_CHECKING:
    from penstock.broker.wire.nats_link import NatsListener

_TICK: Final = 0.5
#: the heads of validity statements
_VALIDITY: Final = frozenset(kind.HEAD for kind in VALIDITY_KINDS)

_NOW: Final = partial(datetime.now, UTC)
_MACHINE: Final = Machine()


class _Ports:
    """How the core reaches the parts of a node, which are built on it (`CorePorts`)."""

    def __init__(self, node: "Node", reported: Reported) -> None:
        self._node = node
        self.report = reported

    def carry_out(self, output: Outward) -> None:
        match output:
            case Send():
                self._node.neighbours.send(output)
            case Cut():
                self._node.neighbours.cut(output)
            case Disclosed():
                self._node.neighbours.disclosed(output)
            case Unsent():
                self._node.neighbours.unsent(output)
            case Accepted() | Refused() | Answered() | Quenched() | RightChanged() | Closed():
                self._node.clients.tell(output)
            case _:
                # The core carries out the others itself.
                raise TypeError(output)

    def do_due(self) -> None:
        self._node.policies.tick()

    def rights_changed(self) -> None:
        self._node.policies.rights_changed()
        self._node.keys.rights_changed()

    def remembers(self, broker: Principal) -> bool:
        return self._node.policies.counts_stamps_of(broker)

    def check_online(self, test: OnlineTest, certificate: str, now: datetime) -> Validity:
        return self._node.validity.check(test, certificate, now)

    async def gather(self, bag: Credentials, statements: Sequence[bytes]) -> None:
        await self._node.validity.gather(bag, statements)

    def reads_as_much(self, peer: Principal, of_type: TypeKey) -> bool:
        return self._node.keys.reads_as_much(peer, of_type)

    def may_sign(self, broker: Principal, of_type: TypeKey, attributes: tuple[str, ...]) -> bool:
        return self._node.keys.may_publish(broker, of_type, attributes)

    def waits_for_keys(self, of_type: TypeKey) -> bool:
        return self._node.keys.readiness.holds(of_type)

    def take_own(self, now: datetime, event: TransitEvent) -> None:
        if event.key.name == VALIDITY_TOPIC:
            self._node.validity.arrived(event)
        else:
            self._node.keys.arrived(now, event)

    def wake(self, due: datetime) -> None:
        core = self._node.core
        asyncio.get_running_loop().call_later((due - core.now()) / timedelta(seconds=1), core.flush)

    def soon(self, work: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_soon(work)

    # Only on a fabric.

    def spread(self, events: tuple[TransitEvent, ...]) -> None:
        if self._node.on_fabric is not None:
            self._node.on_fabric.spread(events)

    def interests_changed(self) -> None:
        if self._node.on_fabric is not None:
            self._node.on_fabric.interests_changed()


class Node:
    """A broker that runs in this process. `reported` receives reports for operators.

    With `fabric`, brokers are connected by it instead of links. Raises `MalformedError` (`node.peers`).
    """

    #: set if brokers are connected by a fabric
    on_fabric: FabricNetwork | None = None

    def __init__(  # noqa: PLR0913  # what a node is made of, named, each with a default
        self,
        settings: NodeSettings,
        recorder: Recorder,
        *,
        clock: Clock = _NOW,
        reported: Reported = lambda _report: None,
        machine: Machine = _MACHINE,
        keep: Keep | None = None,
        fabric: FabricSettings | None = None,
        managing: Managing | None = None,
        quarantine: Quarantine | None = None,
    ) -> None:
        if fabric is not None and settings.peers:
            raise MalformedError(
                "node.peers", "a broker on a fabric cannot have links to other brokers", hint="leave out the peers"
            )
        self.settings = settings
        self.core = core = Core(
            settings,
            recorder,
            clock,
            _Ports(self, reported),
            steady=machine.steady,
            on_fabric=fabric is not None,
            quarantine=quarantine,
        )
        endpoint = Endpoint(
            key=settings.key,
            network=settings.network,
            limits=settings.limits,
            random=settings.random,
            guarded=True,
        )
        self._endpoint = endpoint
        links = NeighbourLinks(settings.limits.codec)

        def policy_network(book: PolicyBook) -> PolicyNetwork:
            self._gossip = PolicyGossip(
                book,
                core.now,
                machine.timer,
                core.goes_by,
                links.post_now,
                soon=lambda work: asyncio.get_running_loop().call_soon(work),
                note=core.note,
                peers=len(settings.peers),
                limits=settings.limits,
            )
            if fabric is None or core.outbox is None:
                return self._gossip
            self.on_fabric = FabricNetwork(core, fabric, book, core.outbox)
            return self.on_fabric

        kept = keep or Forgetful()
        self.policies = NodePolicies(core, kept, policy_network, machine)
        self.validity = NodeValidity(core, kept, links.post_now, machine)
        self.neighbours = Neighbours(core, endpoint, links, self._gossip, self.validity.tree)
        self.keys = Keys(core, core.ring, managing)
        self._desk = KeyDesk(core, self.keys, self._is_operator)
        self.clients = Clients(
            core,
            self.status,
            self._hand_in,
            self.policy_of,
            self._desk.ask,
            validity=self.validity,
            revoked_at=self.policies.revoked_at,
            worked=machine.worked,
        )
        self._listen = machine.listen
        self._listener: LinkListener | None = None
        self._across_nats: NatsListener | None = None
        self._ticking: asyncio.Task[None] | None = None
        self._ready = asyncio.Event()

    # Running.

    async def start(self) -> Self:
        """Load the types, listen, and call the neighbours.

        Raises `FailedError` (`link.address`), what verifying a type raises, and for NATS servers as `listen_nats`.
        """
        now = self.core.now()
        for unverified in self.settings.types:
            self.core.library.add(unverified, now)
        self.core.show()
        # First: if this broker runs already, nothing that others hear or read may come from here.
        self._listener = await self._listen(
            self._endpoint, self.settings.host, self.settings.port, self._serve, self._not_let_in
        )
        try:
            self.policies.start()
            self.validity.start()
            await self.keys.start()
            if self.on_fabric is not None:
                await self.on_fabric.start()
            self.policies.begin_stamps()
            if self.settings.nats is not None:
                self._across_nats = await self._listen_nats(self.settings.nats)
        except BaseException:
            await self.stop()
            raise
        self._ready.set()
        self.neighbours.start(self.settings.peers)
        self._ticking = keep_running("the clock of the node", self._tick)
        return self

    async def stop(self) -> None:
        """Leave the network, close all links, quarantine unopened blocks, and record the counts."""
        if self._ticking is not None:
            self._ticking.cancel()
            await asyncio.gather(self._ticking, return_exceptions=True)
        core = self.core
        await self._desk.stop()
        try:
            await self.keys.stop()
        except PenstockError as error:
            core.note(error)
        await self.neighbours.stop_calling()
        self._at_last(self._send_last)
        self._at_last(lambda: core.settle(core.router.leave()))
        for reception in (self._listener, self._across_nats):
            if reception is not None:
                await reception.close()
        await self.neighbours.close()
        if self.on_fabric is not None:
            await self.on_fabric.stop()
        # No more blocks or keys can arrive.
        self._at_last(lambda: core.settle(core.router.give_up()))
        self._at_last(lambda: core.settle(core.local.tick(core.now())[0]))
        self._at_last(lambda: core.refusals.flush(core.recorder, core.note))
        await self.policies.stop(self.settings.limits.link_goodbye / 1000)
        await self.validity.stop(self.settings.limits.link_goodbye / 1000)

    def _at_last(self, work: Callable[[], None]) -> None:
        try:
            work()
        except PenstockError as error:
            # It keeps nothing from being stored.
            self.core.note(error)

    def _send_last(self) -> None:
        """Seal the events that clients have published. Events that cannot be sealed are lost, and reported."""
        core = self.core
        core.release()
        unsent = len(core.exchange.gathering)
        if unsent:
            core.note(
                FailedError(
                    "seal.unsent",
                    f"{unsent} published events are lost: keys to seal them were missing when the broker stopped",
                    hint="publish them again",
                )
            )

    def reload(self, settings: NodeSettings) -> None:
        """Use other credentials, agreements, policies, types and operators, and decide all requests again.

        All other settings stay the same. Raises what verifying a type raises; the credentials, and the types before
        it, are then in use.
        """
        core, before = self.core, self.settings
        kept = {unverified.definition.name for unverified in settings.types}
        gone = [one.definition.name for one in before.types if one.definition.name not in kept]
        self.settings = core.settings = replace(
            before,
            credentials=settings.credentials,
            agreements=settings.agreements,
            policies=settings.policies,
            types=settings.types,
            operators=settings.operators,
        )
        self.policies.settings_changed()
        core.show()
        core.settle(core.local.change(core.now(), installed=settings.types, removed=gone))

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    @property
    def port(self) -> int:
        """The port on which the node listens. Raises `RefusedError` (`node.stopped`)."""
        if self._listener is None:
            raise RefusedError("node.stopped", "the node is not running", hint="start it first")
        return self._listener.port

    async def _tick(self) -> None:
        loop, core = asyncio.get_running_loop(), self.core
        pause = _TICK
        while True:
            await self.validity.rest(pause)
            turn = None
            try:
                core.settle(core.router.tick(loop.time()))
                outputs, turn = core.local.tick(core.now())
                core.settle(outputs)
                self.policies.tick()
                self.validity.tick()
                if self.on_fabric is None:
                    self._gossip.tick()
                self.keys.tick()
                self.neighbours.recheck()
                core.refusals.tick(core.now(), core.recorder, core.note)
                if self.on_fabric is not None:
                    self.on_fabric.tick()
            except PenstockError as error:
                # A decision that could not be recorded is tried again; nothing is delivered before it is.
                core.note(error)
            until = _TICK if turn is None else (turn - core.now()) / timedelta(seconds=1)
            pause = min(_TICK, max(0.01, until))

    # Those who come.

    async def _listen_nats(self, login: NatsLogin) -> "NatsListener":
        from penstock.broker.wire.nats_link import listen_nats  # noqa: PLC0415  # nats-py is an extra

        return await listen_nats(self._endpoint, login, self._serve, self._not_let_in)

    async def _serve(self, link: Link) -> None:
        await self._ready.wait()
        try:
            # Anybody with a key gets a link, so an unused one must not keep others out.
            async with asyncio.timeout(self.settings.limits.handshake_time / 1000):
                batch = await link.receive()
        except TimeoutError:
            raise FailedError(
                "handshake.timeout", "the peer did not send its hello in time", hint="try again"
            ) from None
        hello = read_request(batch[0])
        if not isinstance(hello, Hello):
            raise MalformedError("protocol.malformed", "the first message is not a hello")
        if hello.role is PeerRole.CLIENT:
            await self.clients.serve(link, hello, batch[1:])
        elif self.on_fabric is not None:
            raise RefusedError(
                "node.no-links",
                "this broker is on a fabric, and accepts no links from other brokers",
                hint="give both brokers the same fabric, and no peers",
            )
        else:
            await self.neighbours.serve(link, hello, batch[1:])

    def _not_let_in(self, error: PenstockError) -> None:
        self.core.counts["turned away"] += 1
        self.core.note_stranger(error)

    # Requests of operators and owners.

    def brokers(self) -> dict[Principal, list[Principal]]:
        """Return the live brokers of the network, with the links of each."""
        if self.on_fabric is not None:
            return {broker: [] for broker in self.on_fabric.brokers()}
        links = self.core.router.view.links
        return {broker: sorted(links[broker]) for broker in sorted(links)}

    def _is_operator(self, principal: Principal) -> bool:
        return principal in self.settings.operators or principal == self.core.principal

    def _check_operator(self, principal: Principal) -> None:
        if not self._is_operator(principal):
            raise RefusedError(
                "broker.not-operator",
                f"{principal.short} is not an operator of this broker, and only operators may ask for this",
                hint="let the broker's administrator add you to `operators` in its node file",
            )

    def _hand_in(self, client: Principal, signed: bytes, told: Told | None = None) -> None:
        """Process a statement that a client brings: about an owner's policy, or about the validity of certificates."""
        written = parse_canonical(signed)
        body = written[1] if isinstance(written, tuple) and len(written) > 1 else b""
        hand_in = self.validity.hand_in if sexp_head(body) in _VALIDITY else self.policies.hand_in
        hand_in(client, signed, told)

    def policy_of(self, principal: Principal, owner: Principal, after: int) -> Wire:
        """Return an owner's policy status and events to the owner and to operators. Raises as `status`."""
        if principal != owner:
            self._check_operator(principal)
        return self.policies.told(owner, after)

    def status(self, principal: Principal) -> Wire:
        """Return the status for operators, as plain data. Raises `RefusedError` (`broker.not-operator`) for others."""
        self._check_operator(principal)
        core = self.core
        size = core.router.size()
        return {
            "broker": str(core.principal),
            "network": str(self.settings.network),
            "brokers": {str(broker): [str(one) for one in links] for broker, links in self.brokers().items()},
            "neighbours": [str(peer) for peer in self.neighbours.up()],
            "links": self.neighbours.status(),
            "sessions": len(self.clients),
            "types": len(core.library),
            "clients": size.clients,
            "entered": size.entered,
            "subscriptions": size.subscriptions,
            "told": size.told,
            "trees": size.trees,
            "stamps": "required" if self.settings.trust.strict else "optional",
            "policy": self.policies.status(),
            "validity": self.validity.status(),
            "keys": self.keys.status(),
            "held back": core.local.held_back,
            "counts": {name: core.counts[name] for name in sorted(core.counts)},
            "unopened": {code: core.unopened[code] for code in sorted(core.unopened)},
            "quarantined": len(core.quarantine),
        }
