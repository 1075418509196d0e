"""What the decision service counts, for Prometheus. Nothing here names anybody; numbers are made ready when asked."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from typing import Final

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector

from penstock.apps.http.server import Answer, HttpService
from penstock.policy.results import Decision

_SECONDS: Final = (0.000005, 0.00001, 0.000025, 0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.005, 0.025, 0.1, 1.0)


class Counting(Collector):
    """What is counted of one service."""

    def __init__(self) -> None:
        self.decisions = dict.fromkeys(Decision, 0)
        self.loads: Counter[str] = Counter()
        self.refused_callers = 0
        self.revision = ""
        self.service: HttpService | None = None
        self._took = [0] * (len(_SECONDS) + 1)
        self._sum = 0.0
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._registry.register(self)

    def took(self, seconds: float) -> None:
        """Count how long the decisions of a question took."""
        self._took[bisect_left(_SECONDS, seconds)] += 1
        self._sum += seconds

    def page(self) -> Answer:
        """Return the metrics in Prometheus' own text format."""
        return Answer(generate_latest(self._registry), content_type=CONTENT_TYPE_PLAIN_0_0_4)

    def collect(self) -> Iterator[Metric]:
        """Yield what was counted."""
        decisions = CounterMetricFamily("penstock_pdp_decisions", "Decisions.", labels=("decision",))
        for decision, number in self.decisions.items():
            decisions.add_metric((decision.value,), number)
        yield decisions
        loads = CounterMetricFamily("penstock_pdp_loads", "Bundles that were read, or were not.", labels=("result",))
        for result, number in self.loads.items():
            loads.add_metric((result,), number)
        yield loads
        yield CounterMetricFamily("penstock_pdp_unauthorized", "Questions of unknown callers.", self.refused_callers)
        info = GaugeMetricFamily("penstock_pdp_revision", "The revision that decides.", labels=("revision",))
        info.add_metric((self.revision,), 1)
        yield info
        yield self._times()
        if self.service is not None:
            yield from _of_server(self.service)

    def _times(self) -> Metric:
        total, buckets = 0, []
        for bound, number in zip((*map(str, _SECONDS), "+Inf"), self._took, strict=True):
            total += number
            buckets.append((bound, total))
        words = "How long the decisions of a question took."
        return HistogramMetricFamily("penstock_pdp_seconds", words, buckets=buckets, sum_value=self._sum)


def _of_server(service: HttpService) -> Iterator[Metric]:
    answers = CounterMetricFamily("penstock_pdp_answers", "Answers by their status.", labels=("status",))
    for status, number in service.counts.answers.items():
        answers.add_metric((str(int(status)),), number)
    yield answers
    yield CounterMetricFamily(
        "penstock_pdp_connections_refused", "Connections beyond the bound.", service.counts.turned_away
    )
    yield CounterMetricFamily("penstock_pdp_timeouts", "Connections that were too slow.", service.counts.timed_out)
    yield GaugeMetricFamily("penstock_pdp_connections", "Connections.", len(service.open))
