"""What a node counts, for Prometheus. Nothing here names a principal, a type or a value."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector

from penstock.apps.http.server import HttpResponse
from penstock.broker.node.node import Node
from penstock.errors import PenstockError
from penstock.fabric.tasks import failing
from penstock.guard import DecisionRecord
from penstock.guard.decision_log import Sink

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
    """Asks a node when somebody asks us."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def collect(self) -> Iterator[Metric]:
        """Yield what the node holds and has counted."""
        node, core = self._node, self._node.core
        for counted, (name, words) in _COUNTED.items():
            yield CounterMetricFamily(name, words, core.counts[counted])
        yield CounterMetricFamily(
            "penstock_events_held_back", "Events not delivered for want of their owner's policy.", core.local.held_back
        )
        yield CounterMetricFamily(
            "penstock_events_unsent",
            "Events that other brokers had asked for, and that were not passed on since the links to them were lost.",
            node.neighbours.reports.unsent,
        )
        refused = CounterMetricFamily(
            "penstock_blocks_unopened", "Sealed blocks that were refused, by the code.", labels=("code",)
        )
        for code, number in core.unopened.items():
            refused.add_metric((code,), number)
        yield refused
        yield CounterMetricFamily(
            "penstock_filters_unopened",
            "Parts of filters that do not open though their key is held, or are not what they should be.",
            core.vault.filters.unopened,
        )
        members, now = node.keys.members.values(), core.now()
        size, owners = core.router.size(), node.policies.status().values()
        fresh = sum(isinstance(state, dict) and state.get("state") == "fresh" for state in owners)
        held = {
            "sessions": ("Clients that are connected.", len(node.clients)),
            "neighbours": ("Links to other brokers.", len(node.neighbours.up())),
            "brokers": ("Brokers of the network.", len(node.brokers())),
            "types": ("Event types that are served.", len(core.library)),
            "policies": ("Owners whose policy is followed.", len(owners)),
            "policies_stale": (
                "Owners whose policy is not known to be current: nothing is delivered.",
                len(owners) - fresh,
            ),
            "keys": ("Keys of sealed types that are held, or wanted.", len(members)),
            "keys_missing": (
                "Of these, keys under which nothing may be sealed now: publications wait.",
                sum(not member.seals(now) for member in members),
            ),
            "publications_waiting": ("Events of clients that wait to be sealed.", len(core.exchange.gathering)),
            "client_entries": ("Subscriptions and advertisements of clients.", size.clients),
            "entered_entries": ("What neighbours have entered.", size.entered),
            "entered_subscriptions": ("Subscriptions among what neighbours have entered.", size.subscriptions),
            "told_entries": ("What was entered with neighbours.", size.told),
            "trees": ("Dissemination trees that the broker is part of.", size.trees),
            "retained_events": ("Events that are kept as current state.", size.retained),
            "tasks_failing": ("Tasks that raised an error and have not run well since.", len(failing())),
            "quarantined_blocks": ("Sealed blocks that were refused and are kept.", len(core.quarantine)),
        }
        for name, (words, number) in held.items():
            yield GaugeMetricFamily(f"penstock_{name}", words, number)
