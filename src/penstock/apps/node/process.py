"""A node from its file, until it is stopped: SIGTERM and SIGINT stop it, SIGHUP has it read its files again."""

import asyncio
import signal
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector

from penstock.apps.http.server import Bounds, HttpRequest, HttpResponse, HttpService, refused
from penstock.apps.node.config import FabricKind, Stamps
from penstock.apps.node.limits import NodeLimits
from penstock.apps.node.load import LoadedNode, load_node, open_log
from penstock.apps.node.logs import Log
from penstock.authority.domain.distribution import CAPABILITY_PREFIX, CapabilityFeed
from penstock.broker.core.clock import Clock
from penstock.broker.core.settings import NodeSettings
from penstock.broker.fabric.members import network_topic
from penstock.broker.fabric.network import FabricSettings
from penstock.broker.keys.node_keys import Managing
from penstock.broker.node.node import Node
from penstock.broker.wire.transports import PeerAddress
from penstock.crypto import SigningKey
from penstock.crypto.keys import RandomBytes
from penstock.errors import FailedError, PenstockError
from penstock.fabric.tasks import failing, keep_running
from penstock.guard import DecisionRecord, Recorder
from penstock.guard.decision_log import Sink
from penstock.model.names import TypeName
from penstock.model.principals import Principal
from penstock.store.files.decision_file import DecisionFile, GuardFile
from penstock.store.files.policy_files import PolicyFolder
from penstock.store.files.sealed_files import QuarantineFolder
from penstock.trust.capabilities import Right
from penstock.trust.credentials import Credentials

if TYPE_CHECKING:
    from penstock.apps.node.decision_points import BrokerPoints
    from penstock.apps.node.roles import BrokerRoles
    from penstock.authority.decisions.rights import DecisionRights
    from penstock.fabric.port import Fabric

# ----------------------------------------------------------------------------------------------------------------------
# Metrics for Prometheus. They never name a principal, a type or a value.


_COUNTED: Final = {
    "published": ("penstock_events_published", "Events that clients have handed in."),
    "delivered": ("penstock_events_delivered", "Events that clients were given."),
    "accepted": ("penstock_requests_accepted", "Requests that stand, and that still stood after a change."),
    "refused": ("penstock_requests_refused", "Requests and events that were refused, and links that broke rules."),
    "slowed": ("penstock_requests_slowed", "Requests after which a client had to wait, since it asks for too much."),
    "unconfirmed": (
        "penstock_requests_unconfirmed",
        "Subscriptions and advertisements that other brokers did not confirm in time.",
    ),
    "lost": ("penstock_events_lost", "Events of clients that could not be sent to other brokers over a fabric."),
    "missing": ("penstock_samples_missing", "Samples of other brokers that a fabric did not bring."),
    "refusals not recorded": (
        "penstock_refusals_unrecorded",
        "Refusals of strangers that were too many to be recorded one by one.",
    ),
    "turned away": ("penstock_links_turned_away", "Connections that became no session, or ended badly."),
}
_SECONDS: Final = (0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 1.0)


class Metrics:
    """What is counted of one node. `recording` stands before the sink of its decisions."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._decisions = Counter(
            "penstock_decisions", "Decisions by their effect.", ("effect",), registry=self._registry
        )
        self._took = Histogram(
            "penstock_decision_seconds", "How long decisions took.", buckets=_SECONDS, registry=self._registry
        )
        #: why decisions cannot be recorded now, and so nothing is allowed
        self.failing: PenstockError | None = None

    def recording(self, sink: Sink) -> Sink:
        """Return a sink that counts what it hands on."""

        def count(entry: DecisionRecord) -> None:
            with self._watching():
                sink(entry)
            self.failing = None
            if entry.counts is None:
                self._decisions.labels(entry.effect.value).inc()
                self._took.observe(entry.took / 1_000_000)

        return count

    def saving(self, safe: Callable[[], None]) -> Callable[[], None]:
        """Return what makes records safe, and notices where it cannot."""

        def save() -> None:
            with self._watching():
                safe()

        return save

    @contextmanager
    def _watching(self) -> Iterator[None]:
        try:
            yield
        except PenstockError as error:
            self.failing = error
            raise

    def watch(self, node: Node) -> None:
        """Tell of a node."""
        self._registry.register(_Sizes(node))

    def page(self) -> HttpResponse:
        """Return the metrics in Prometheus' own text format."""
        return HttpResponse(generate_latest(self._registry), content_type=CONTENT_TYPE_PLAIN_0_0_4)


class _Sizes(Collector):
    """Collects a node's sizes when Prometheus scrapes."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def collect(self) -> Iterator[Metric]:
        """Yield the node's sizes and counters."""
        node, core = self._node, self._node.core
        for counted, (name, words) in _COUNTED.items():
            yield CounterMetricFamily(name, words, core.counts[counted])
        yield CounterMetricFamily(
            "penstock_events_held_back", "Events held back because their owner's policy is stale.", core.local.held_back
        )
        yield CounterMetricFamily(
            "penstock_events_unsent",
            "Events that other brokers had subscribed to and did not get, because their links were lost.",
            node.neighbours.reports.unsent,
        )
        refused = CounterMetricFamily(
            "penstock_blocks_unopened", "Refused sealed blocks, by error code.", labels=("code",)
        )
        for code, number in core.unopened.items():
            refused.add_metric((code,), number)
        yield refused
        yield CounterMetricFamily(
            "penstock_filters_unopened",
            "Parts of sealed filters that do not open although their key is held, or are malformed.",
            core.vault.filters.unopened,
        )
        members, now = node.keys.members.values(), core.now()
        size, owners = core.router.size(), node.policies.status().values()
        fresh = sum(isinstance(state, dict) and state.get("state") == "fresh" for state in owners)
        held = {
            "sessions": ("Connected clients.", len(node.clients)),
            "neighbours": ("Links to other brokers.", len(node.neighbours.up())),
            "brokers": ("Brokers of the network.", len(node.brokers())),
            "types": ("Installed event types.", len(core.library)),
            "policies": ("Owners whose policy this broker follows.", len(owners)),
            "policies_stale": (
                "Owners whose policy may not be current: their types are not delivered.",
                len(owners) - fresh,
            ),
            "keys": ("Key groups of sealed types that the broker is in or wants to join.", len(members)),
            "keys_missing": (
                "Key groups without a current key: publications wait.",
                sum(not member.seals(now) for member in members),
            ),
            "publications_waiting": ("Clients' events that wait to be sealed.", len(core.exchange.gathering)),
            "client_entries": ("Subscriptions and advertisements of clients.", size.clients),
            "entered_entries": ("Entries of neighbours at this broker.", size.entered),
            "entered_subscriptions": ("Subscriptions among the entries of neighbours.", size.subscriptions),
            "told_entries": ("Entries of this broker at neighbours.", size.told),
            "trees": ("Dissemination trees that the broker is part of.", size.trees),
            "retained_events": ("Retained events.", size.retained),
            "tasks_failing": ("Tasks that raised an error and have not succeeded since.", len(failing())),
            "quarantined_blocks": ("Refused sealed blocks in quarantine.", len(core.quarantine)),
        }
        for name, (words, number) in held.items():
            yield GaugeMetricFamily(f"penstock_{name}", words, number)


# ----------------------------------------------------------------------------------------------------------------------
# The HTTP pages of a node, for GET and HEAD. Only the path of a request is read.
#
# Anybody who can reach the address may ask, so the pages reveal nothing about principals.


Pages: TypeAlias = Mapping[str, Callable[[], HttpResponse]]
"""The page at each path."""


def pages_service(pages: Pages, limits: NodeLimits) -> HttpService:
    """Return an HTTP service for pages. Its error code is `node.http`."""

    def answer(asked: HttpRequest) -> HttpResponse:
        if asked.method not in (b"GET", b"HEAD"):
            return refused(HTTPStatus.METHOD_NOT_ALLOWED, b"Allow: GET, HEAD\r\n")
        page = pages.get(asked.path.decode("latin-1"))
        return refused(HTTPStatus.NOT_FOUND) if page is None else page()

    return HttpService(
        answer, Bounds.of_pages(limits.http_bytes, limits.http_time, limits.http_connections), "node.http"
    )


# ----------------------------------------------------------------------------------------------------------------------
# A node runs from its file until it is stopped: SIGTERM and SIGINT stop it, SIGHUP reloads its files.


@dataclass(frozen=True, slots=True)
class Ready:
    """A running node: its principal and addresses."""

    principal: Principal
    listen: PeerAddress
    http: PeerAddress | None


OnReady: TypeAlias = Callable[[Ready], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """What a node needs from outside: the time, a monotonic timer in nanoseconds, and a random source."""

    clock: Clock
    timer: Callable[[], int]
    random: RandomBytes


class RunningNode:
    """A node that runs from its file. `run` returns when it has stopped."""

    def __init__(self, loaded: LoadedNode, key: SigningKey, log: Log, world: World) -> None:
        self._loaded = loaded
        self._key = key
        self._log = log
        self._world = world
        self._metrics = Metrics()
        self._stopping = asyncio.Event()
        self._changed = asyncio.Event()
        #: certificates that access control services have pushed, by domain
        self._pushed: dict[Principal, Credentials] = {}
        self._received = asyncio.Event()
        self._reloading: asyncio.Task[None] | None = None
        self._roles: list[BrokerRoles] = []
        self._points: list[BrokerPoints] = []
        self._point_rights: list[DecisionRights] = []
        decisions = DecisionFile(loaded.decisions)
        self._recorder = Recorder(
            source=str(key.principal),
            sink=self._metrics.recording(decisions.append),
            revocations=decisions.append,
            safe=self._metrics.saving(decisions.sync),
            clock=world.clock,
            timer=world.timer,
            ids=lambda: world.random(16).hex(),
            domains=loaded.domains,
        )
        self._node: Node

    async def run(self, ready: OnReady) -> None:
        """Run until a signal ends it.

        Raises `FailedError` (`link.address`, `node.http`, `file.unwritable`), and for NATS servers `fabric.*`.
        """
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(self._note_unexpected)
        _make_folder(self._loaded)
        async with AsyncExitStack() as stack:
            for number, event in _SIGNALS.items():
                loop.add_signal_handler(number, getattr(self, event))
                stack.callback(loop.remove_signal_handler, number)
            await self._open_roles(stack)
            await self._open_points(stack)
            self._node = await self._make_node(stack)
            # The port of the node opens last, when the node is ready.
            http = await self._listen_http(stack)
            await stack.enter_async_context(self._node)
            listen = self._loaded.file.listen
            ready(Ready(self._key.principal, PeerAddress(listen.host, self._node.port), http))
            self._log.say("info", "started", principal=self._key.principal, network=str(self._loaded.network))
            if self._loaded.file.stamps is Stamps.OPTIONAL:
                self._log.say("warning", "stamps-optional", message=WITHOUT_STAMPS)
            self._reloading = keep_running("reloading", self._keep_reloading)
            await self._follow_services(stack)
            for roles in self._roles:
                following = keep_running("following roles", partial(roles.follow, self._use_roles, self._log.note))
                stack.callback(following.cancel)
            for points in self._points:
                following = keep_running(
                    "following decision points", partial(points.follow, self._principals, self._use_points)
                )
                stack.callback(following.cancel)
            await self._stopping.wait()
            self._log.say("info", "stopping", sessions=len(self._node.clients))
            self._reloading.cancel()
            await asyncio.gather(self._reloading, return_exceptions=True)
        self._log.say("info", "stopped")

    def stop(self) -> None:
        """Stop the node, and return from `run`."""
        self._stopping.set()

    def reload(self) -> None:
        """Reload credentials, types and operators."""
        self._changed.set()

    def _note_unexpected(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Log where an unexpected error happened, without its message, which may quote secrets."""
        error = context.get("exception")
        frames = traceback.extract_tb(error.__traceback__) if isinstance(error, BaseException) else []
        where = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
        told = str(context.get("message", ""))
        self._log.say("error", "unexpected", message=told, error=type(error).__name__, where=where)

    # The node, its fabric and its key manager.

    async def _make_node(self, stack: AsyncExitStack) -> Node:
        loaded, world = self._loaded, self._world
        limits = loaded.file.limits
        settings = loaded.settings(self._key)
        if loaded.file.guard_results:
            results = GuardFile(loaded.folder / loaded.file.guard_results, world.clock)
            settings = replace(settings, rules=replace(loaded.rules, on_guard=results.append))
        node = Node(
            replace(
                settings,
                others=(*(one.authority for one in self._roles), *(one.authority for one in self._points)),
                prepare=self._prepare if self._points else None,
            ),
            self._recorder,
            clock=world.clock,
            reported=self._log.note,
            keep=PolicyFolder(loaded.state),
            fabric=await self._open_fabric(stack),
            managing=await self._open_keys(stack),
            quarantine=QuarantineFolder(loaded.state / "quarantine", limits.quarantine_blocks, limits.quarantine_bytes),
        )
        node.core.local.know(loaded.file.facts)
        self._metrics.watch(node)
        return node

    async def _open_roles(self, stack: AsyncExitStack) -> None:
        """Open the role books that the file names."""
        for place in self._loaded.roles:
            from penstock.apps.node.roles import BrokerRoles  # noqa: PLC0415  # SQLAlchemy takes half a second to import

            found = await asyncio.to_thread(BrokerRoles, place, self._world.clock)
            stack.callback(found.close)
            self._roles.append(found)

    async def _open_points(self, stack: AsyncExitStack) -> None:
        """Open an enforcement point for each authority over decision points that the file names."""
        loaded = self._loaded
        if not loaded.points or loaded.nats is None:
            return
        from penstock.apps.node.decision_points import BrokerPoints  # noqa: PLC0415  # few brokers need it
        from penstock.authority.decisions.enforcement_point import EnforcementPoint  # noqa: PLC0415  # as above
        from penstock.authority.decisions.rights import DecisionRights  # noqa: PLC0415  # as above
        from penstock.fabric.nats import NatsFabric  # noqa: PLC0415  # nats-py is an extra

        for place in loaded.points:
            fabric = await NatsFabric.connect(loaded.nats, prefix=place.prefix, random=self._world.random)
            await stack.enter_async_context(fabric)
            rights = DecisionRights(place.authority, loaded.settings(self._key).credentials)
            self._point_rights.append(rights)
            point = EnforcementPoint(fabric, self._key, rights, timeout=place.timeout, random=self._world.random)
            await stack.enter_async_context(point)
            found = BrokerPoints(place, point, self._world.clock, self._log.note)
            stack.callback(found.close)
            stack.callback(keep_running("following policy updates", partial(found.listen, fabric)).cancel)
            self._points.append(found)

    async def _prepare(self, principal: Principal, right: Right, name: TypeName) -> None:
        for points in self._points:
            await points.prepare(principal, right, name)

    def _principals(self) -> frozenset[Principal]:
        return self._node.core.local.principals()

    def _use_points(self, principals: frozenset[Principal]) -> None:
        self._node.core.roles_changed(principals)
        self._log.say("info", "points", principals=len(principals))

    def _use_roles(self, principals: frozenset[Principal]) -> None:
        self._node.core.roles_changed(principals)
        self._log.say("info", "roles", principals=len(principals))

    async def _open_fabric(self, stack: AsyncExitStack) -> FabricSettings | None:
        """Connect to the fabric, if there is one."""
        loaded, random = self._loaded, self._world.random
        chosen = loaded.file.fabric
        fabric: Fabric
        if chosen.kind is FabricKind.NATS and loaded.nats is not None:
            from penstock.fabric.nats import NatsFabric  # noqa: PLC0415  # nats-py is an extra

            fabric = await NatsFabric.connect(loaded.nats, prefix=self._prefix, random=random)
        elif chosen.kind is FabricKind.KAFKA and loaded.kafka is not None:
            from penstock.fabric.kafka import KafkaFabric  # noqa: PLC0415  # confluent-kafka is an extra

            fabric = await KafkaFabric.connect(loaded.kafka, prefix=self._prefix, random=random)
        else:
            return None
        await stack.enter_async_context(fabric)
        return FabricSettings(fabric=fabric, unsafe_plaintext=chosen.unsafe_plaintext, durable=chosen.durable)

    async def _follow_services(self, stack: AsyncExitStack) -> None:
        """Receive the certificates that access control services push, if the file names any."""
        loaded = self._loaded
        if loaded.nats is None or not loaded.services:
            return
        from penstock.fabric.nats import NatsFabric  # noqa: PLC0415  # nats-py is an extra

        fabric = await NatsFabric.connect(loaded.nats, prefix=CAPABILITY_PREFIX, random=self._world.random)
        await stack.enter_async_context(fabric)
        for domain in sorted(loaded.services):
            await stack.enter_async_context(
                CapabilityFeed(fabric, domain, partial(self._receive, domain), self._refuse_push)
            )
        following = keep_running("using pushed certificates", self._use_pushed)
        stack.callback(following.cancel)

    def _receive(self, domain: Principal, credentials: Credentials) -> None:
        self._pushed[domain] = credentials
        self._received.set()

    def _refuse_push(self, error: PenstockError) -> None:
        self._log.say("warning", "push-refused", code=error.code, message=error.message)

    async def _use_pushed(self) -> None:
        while True:
            await self._received.wait()
            # Many may come together, and each use decides all requests again.
            await asyncio.sleep(_GATHERED)
            self._received.clear()
            self._node.reload(self._settings(self._loaded))
            self._log.say("info", "pushed", credentials=sum(map(len, self._pushed.values())))

    def _settings(self, loaded: LoadedNode) -> NodeSettings:
        """Return the settings of a file, with what was pushed."""
        settings = loaded.settings(self._key)
        pushed = sum(self._pushed.values(), settings.credentials)
        return settings if pushed is settings.credentials else replace(settings, credentials=pushed)

    @property
    def _prefix(self) -> str:
        """The prefix of subjects: each network has its own, because several may share the servers."""
        return f"penstock{network_topic(self._loaded.network)[:_PREFIX]}"

    async def _open_keys(self, stack: AsyncExitStack) -> Managing | None:
        """Open the key manager's log, if the node file has one."""
        loaded = self._loaded
        if loaded.file.keys is None or loaded.kek is None:
            return None
        log = await open_log(loaded.file.keys, loaded.state, loaded.folder, loaded.nats, self._prefix)
        stack.push_async_callback(log.close)
        return Managing(log, loaded.kek, loaded.replicas, loaded.file.keys.refreshing)

    # Reloading.

    async def _keep_reloading(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            await self._reload()

    async def _reload(self) -> None:
        """Reload the files; if anything is wrong with them, continue as before."""
        try:
            # In a thread, because verifying many signatures takes time.
            loaded = await asyncio.to_thread(load_node, self._loaded.path, self._world.clock())
            self._node.reload(self._settings(loaded))
        except PenstockError as error:
            self._log.say("error", "not-reloaded", code=error.code, message=error.message)
            return
        waiting = [name for name in _AT_START if getattr(loaded.file, name) != getattr(self._loaded.file, name)]
        # Members may have changed although the table has not, because petnames are in another file.
        if loaded.domains != self._loaded.domains:
            waiting.append("domains")
        if loaded.rules.environment == self._loaded.rules.environment:
            self._node.core.local.know(loaded.file.facts)
        else:
            waiting.append("facts")
        for rights in self._point_rights:
            rights.replace(self._settings(loaded).credentials)
        self._log.names = loaded.names
        self._log.say("info", "reloaded", credentials=len(loaded.credentials), types=len(loaded.types))
        if waiting:
            self._log.say("warning", "restart-needed", keys=waiting)

    # The HTTP pages.

    async def _listen_http(self, stack: AsyncExitStack) -> PeerAddress | None:
        address = self._loaded.file.http
        if address is None:
            return None
        pages = {"/health": _alive, "/ready": self._is_ready, "/metrics": self._metrics.page}
        server = await pages_service(pages, self._loaded.file.limits).start(address.host, address.port)
        stack.push_async_callback(server.stop)
        return PeerAddress(address.host, server.port)

    def _is_ready(self) -> HttpResponse:
        if self._stopping.is_set() or self._reloading is None:
            return HttpResponse(b"not running\n", HTTPStatus.SERVICE_UNAVAILABLE)
        if self._metrics.failing is not None:
            return HttpResponse(b"decisions cannot be recorded\n", HTTPStatus.SERVICE_UNAVAILABLE)
        if not self._node.policies.is_broker:
            return HttpResponse(b"not a broker of its network\n", HTTPStatus.SERVICE_UNAVAILABLE)
        if self._node.core.local.held:
            return HttpResponse(b"policy is being reconciled with the other brokers\n", HTTPStatus.SERVICE_UNAVAILABLE)
        if broken := failing():
            return HttpResponse(f"failing: {', '.join(broken)}\n".encode(), HTTPStatus.SERVICE_UNAVAILABLE)
        if self._loaded.file.stamps is Stamps.OPTIONAL:
            return HttpResponse(f"ready\n{WITHOUT_STAMPS}\n".encode())
        return HttpResponse(b"ready\n")


#: the warning for a network in which time-stamps are optional
WITHOUT_STAMPS = "time-stamps are optional: a disconnected broker keeps delivering types of owners without time-stamps"
#: the settings that a node reads only at its start
_AT_START = (
    *("network", "key", "listen", "http", "peers", "decisions", "state", "zone", "guards", "limits"),
    *("guard_results", "roles", "points"),
    *("services", "fabric", "nats", "sealing", "seals", "keys", "stamps", "skew", "issued"),
)
#: seconds that pushed certificates are gathered
_GATHERED = 0.2
#: hexadecimal digits of the network in the subjects of its fabric
_PREFIX = 16
_SIGNALS = {signal.SIGTERM: "stop", signal.SIGINT: "stop", signal.SIGHUP: "reload"}


def _alive() -> HttpResponse:
    return HttpResponse(b"alive\n")


def _make_folder(loaded: LoadedNode) -> None:
    try:
        loaded.state.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        why = error.strerror or "it failed"
        raise FailedError("file.unwritable", f"`{loaded.state}` cannot be written: {why}") from None


def run_node(loaded: LoadedNode, key: SigningKey, log: Log, world: World, ready: OnReady) -> None:
    """Run a node until a signal ends it. Raises as `RunningNode.run`."""

    async def run() -> None:
        await RunningNode(loaded, key, log, world).run(ready)

    asyncio.run(run())
