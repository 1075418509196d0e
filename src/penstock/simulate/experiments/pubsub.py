"""Paper 3, "Authorization Using the Publish-Subscribe Model", section 4: availability and response times."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType
from typing import Final

from penstock.authority.decisions.enforcement_point import AskPath
from penstock.simulate.experiments.availability import WORKING, AvailabilityCase, failed_requests
from penstock.simulate.experiments.charts import ChartLine, LineChart
from penstock.simulate.experiments.experiment import (
    Experiment,
    ExperimentFindings,
    ExperimentMethod,
    Laboratory,
    Paper,
    PaperComparison,
    near,
)
from penstock.simulate.experiments.response_times import Recycling, ResponseSetup, mean_responses
from penstock.simulate.experiments.role_policies import DESCRIPTION

# ----------------------------------------------------------------------------------------------------------------------
# Figure 4: availability.


_POINTS: Final = (1, 2, 3, 4, 5, 6)
_OVERLAPS: Final = (0.0, 0.1, 0.25, 0.5, 0.75, 1.0)
#: how often the paper's experiment is repeated, each time with other failures and requests
_RUNS: Final = 3
#: how far the simulation may be from the closed form, in percentage points
_POINTS_OFF: Final = 3.0
_FAILURES: Final = MappingProxyType(
    {
        "requests": "5,000, one after the other",
        "policy of each PDP": "100 subjects, 1,000 objects, 3 rights",
        "time to failure": "exponential, mean 100 requests, at most 500",
        "time to repair": "exponential, mean 10 requests, at most 50",
    }
)


def expected_decrease(points: int, overlap: float) -> float:
    """Return by how many percent the failed requests decrease: some other point has the object, and works.

    >>> round(expected_decrease(4, 0.1), 1)
    24.9
    """
    return 100 * (1 - (1 - overlap * WORKING) ** (points - 1))


def _decreases(lab: Laboratory, cases: Sequence[tuple[int, float]]) -> tuple[list[float], Mapping[str, str]]:
    """Return the mean decrease of failed requests in percent for numbers of points and overlaps."""
    runs, requests = lab.pick((_RUNS, 5_000), (2, 400))
    decreases: dict[tuple[int, float], list[float]] = {case: [] for case in cases}
    alone: dict[int, int] = {}
    for seed, (points, overlap) in lab.each((seed, case) for seed in range(runs) for case in cases):
        case = AvailabilityCase(points, overlap, seed, requests)
        if seed not in alone:
            alone[seed] = failed_requests(case, AskPath.DIRECT)
        failed = failed_requests(case, AskPath.FABRIC)
        decreases[points, overlap].append(100 * (1 - failed / alone[seed]) if alone[seed] else 0.0)
    instead = {"repeated": f"{runs} times with other failures; the mean is shown"}
    if lab.quick:
        instead["requests"] = f"{requests}"
    return [statistics.mean(found) for found in decreases.values()], instead


def _availability(
    x: str, xs: Sequence[float], ours: Sequence[float], expected: Sequence[float]
) -> tuple[LineChart, list[tuple[str, str, str]], PaperComparison]:
    lines = [
        ChartLine("Penstock", [*zip(xs, ours, strict=True)]),
        ChartLine("closed form", [*zip(xs, expected, strict=True)], dashed=True),
    ]
    chart = LineChart(f"Decrease of failed requests by {x}", x, "decrease of failed requests (%)", lines)
    rows = [(f"{x:g}", f"{mine:.1f} %", f"{form:.1f} %") for x, mine, form in zip(xs, ours, expected, strict=True)]
    off = max(abs(mine - form) for mine, form in zip(ours, expected, strict=True))
    closed = PaperComparison(
        "the closed form 1 − (1 − f·10/11)^(k−1)",
        f"at most {_POINTS_OFF:g} points away",
        f"{off:.1f} points",
        off <= _POINTS_OFF,
        "Failures are few and last for several requests, so that single runs vary.",
    )
    return chart, rows, closed


def _grows(ours: Sequence[float]) -> bool:
    return all(later >= earlier for earlier, later in pairwise(ours))


def _figure_4a(lab: Laboratory) -> ExperimentFindings:
    ours, instead = _decreases(lab, [(points, 0.1) for points in _POINTS])
    expected = [expected_decrease(points, 0.1) for points in _POINTS]
    chart, rows, closed = _availability("PDPs", _POINTS, ours, expected)
    more = PaperComparison(
        "each PDP more decreases the failed requests further",
        "grows",
        "grows" if _grows(ours) else "does not always grow",
        _grows(ours),
        "The runs are too short to tell neighbouring numbers apart.",
    )
    return ExperimentFindings(("PDPs", "Penstock", "closed form"), rows, [more, closed], chart, instead)


def _figure_4b(lab: Laboratory) -> ExperimentFindings:
    ours, instead = _decreases(lab, [(4, overlap) for overlap in _OVERLAPS])
    expected = [expected_decrease(4, overlap) for overlap in _OVERLAPS]
    percent = [100 * overlap for overlap in _OVERLAPS]
    chart, rows, closed = _availability("overlap (%)", percent, ours, expected)
    first, last = ours[1] - ours[0], ours[-1] - ours[-2]
    comparisons = [
        near("the first 10 % of overlap decrease failed requests by so many percent", 23, first, "Single runs vary."),
        PaperComparison(
            "the last 25 % of overlap add hardly anything (at most 5 points)",
            "2 points",
            f"{last:.1f} points",
            last <= 5,
            "Single runs vary.",
        ),
        PaperComparison(
            "with full overlap all requests are resolved (at least 99 %)",
            "100 %",
            f"{ours[-1]:.1f} %",
            ours[-1] >= 99,
            "All four PDPs had failed at the same time.",
        ),
        closed,
    ]
    return ExperimentFindings(("overlap (%)", "Penstock", "closed form"), rows, comparisons, chart, instead)


# ----------------------------------------------------------------------------------------------------------------------
# Figures 5 to 7: response times.

_REQUESTS, _PERIOD, _RECYCLED_REQUESTS = 5_000, 500, 10_000
_RESPONSE: Final = MappingProxyType(
    {"way": "one request at a time", "mean": "of each 500 requests", "ENS": "Siena; ours is NATS"}
)
#: milliseconds between two requests to several points
_PAUSE: Final = 2
_RECYCLED: Final = MappingProxyType({"requests": "10,000 at random, a third of all possible ones"})
_ROLE_POLICY: Final = MappingProxyType({"policy": f"{DESCRIPTION}; the paper does not describe its policy"})
_SAME_MACHINE: Final = (
    "All processes share the cores of one machine here, and each message is signed and verified, so that processor "
    "time outweighs the way of a message."
)


@dataclass(frozen=True, slots=True)
class _Responses:
    """Mean response times by set-up, for each period of requests."""

    found: Mapping[str, Sequence[float]]
    intended: int
    requests: int
    period: int

    def mean(self, name: str) -> float:
        """Return the mean of the period in the middle, in milliseconds: others may have been busy in some."""
        return 1_000 * statistics.median(self.found[name])

    def findings(
        self, title: str, comparisons: Sequence[PaperComparison], more: Mapping[str, str] = MappingProxyType({})
    ) -> ExperimentFindings:
        """Return a table of the periods, and a chart; `more` is what else differs from the paper."""
        lines = [
            ChartLine(name, [(self.period * (n + 1), 1_000 * value) for n, value in enumerate(values)])
            for name, values in self.found.items()
        ]
        ends = [self.period * (n + 1) for n in range(self.requests // self.period)]
        rows = [
            (f"{end:,}", *(f"{1_000 * values[n]:.2f} ms" for values in self.found.values()))
            for n, end in enumerate(ends)
        ]
        first = next(iter(self.found))
        rows.append(("median", *(f"{self.mean(name):.2f} ms" for name in self.found)))
        rows.append((f"/ {first}", *(f"{self.mean(name) / self.mean(first):.2f}" for name in self.found)))
        instead = {"mean": "without the slowest 5 %, which other programs on this machine have delayed"}
        if self.period < _PERIOD or self.requests < self.intended:
            instead["requests"] = f"{self.requests:,}, means of {self.period}"
        chart = LineChart(title, "requests", "mean response time (ms)", lines)
        return ExperimentFindings(("requests", *self.found), rows, comparisons, chart, {**instead, **more})


def _responses(
    lab: Laboratory, setups: Sequence[ResponseSetup], requests: int = _REQUESTS, *, together: bool = False
) -> _Responses:
    many = lab.some(requests, 100)
    period = max(50, min(_PERIOD, many // 5))
    many -= many % period
    return _Responses(mean_responses(lab, setups, many, period, together=together), requests, many, period)


def _figure_5(lab: Laboratory) -> ExperimentFindings:
    direct, back, fabric = "point to point", "straight back", "pub/sub"
    paths = {direct: AskPath.DIRECT, back: AskPath.STRAIGHT_BACK, fabric: AskPath.FABRIC}
    found = _responses(lab, [ResponseSetup(name, path) for name, path in paths.items()])
    added, saved = found.mean(fabric) - found.mean(direct), found.mean(fabric) - found.mean(back)
    comparisons = [
        PaperComparison(
            "publish/subscribe takes longer than point to point",
            "+1.6 ms",
            f"{added:+.2f} ms ({found.mean(fabric) / found.mean(direct):.2f} times)",
            added > 0,
            _SAME_MACHINE,
        ),
        PaperComparison(
            "answers that go straight back take less time than over the fabric",
            "-0.8 ms",
            f"{-saved:+.2f} ms ({found.mean(back) / found.mean(fabric):.2f} times)",
            saved > 0,
            _SAME_MACHINE,
        ),
        PaperComparison(
            "and more than point to point",
            "+0.8 ms",
            f"{added - saved:+.2f} ms",
            added > saved,
            _SAME_MACHINE,
        ),
    ]
    return found.findings("Response time by architecture", comparisons)


def _figure_6a(lab: Laboratory) -> ExperimentFindings:
    few, many = "100 objects", "1,000 objects"
    found = _responses(lab, [ResponseSetup(few, objects=100), ResponseSetup(many, objects=1_000)])
    ratio = found.mean(many) / found.mean(few)
    comparison = PaperComparison(
        "with 1,000 object subscriptions a response takes almost twice as long (at least 1.5 times)",
        "about 2",
        f"{ratio:.2f}",
        ratio >= 1.5,
        "Our fabric finds the readers of a key by its parts in an index, so that the number of subscriptions hardly "
        "matters; Siena compared a request with more filters.",
    )
    return found.findings("Response time by the PDP's subscriptions", [comparison])


def _figure_6b(lab: Laboratory) -> ExperimentFindings:
    on, off = "unsubscribing", "not unsubscribing"
    found = _responses(lab, [ResponseSetup(on), ResponseSetup(off, unsubscribes=False)])
    growth = {name: values[-1] / values[0] for name, values in found.found.items()}
    comparisons = [
        PaperComparison(
            "with unsubscribing the time stays the same (last period / first, at most 1.25)",
            "1",
            f"{growth[on]:.2f}",
            growth[on] <= 1.25,
            "Other work on this machine changed during the run.",
        ),
        PaperComparison(
            "without it the time grows with the requests (last period / first, at least 1.25)",
            "almost linearly",
            f"{growth[off]:.2f}",
            growth[off] >= 1.25,
            "An answer has a key of its own, which the NATS server and our fabric look up in an index, so that stale "
            "subscriptions take memory and no time.",
        ),
    ]
    return found.findings("Response time by the PEP's subscriptions", comparisons)


def _points(lab: Laboratory) -> ExperimentFindings:
    numbers = (1, 2, 3, 4)
    names = {number: f"{number} PDP{'s' if number > 1 else ''}" for number in numbers}
    found = _responses(lab, [ResponseSetup(names[number], points=number, pause=_PAUSE) for number in numbers])
    ratio = max(found.mean(names[number]) for number in numbers) / found.mean(names[1])
    comparison = PaperComparison(
        "the number of PDPs has almost no effect (at most 1.2 times)",
        "almost none",
        f"{ratio:.2f}",
        ratio <= 1.2,
        "The PDPs share two cores here, and each that is asked verifies the request and signs an answer.",
    )
    pause = {"pause": f"{_PAUSE} ms after each request, in which PDPs finish whose answers come too late"}
    return found.findings("Response time by PDPs with the same 1,000 objects", [comparison], pause)


def _recycling(lab: Laboratory, delay: int) -> _Responses:
    setups = [
        ResponseSetup(
            f"{kind} recycling" if kind is not Recycling.NONE else "no recycling",
            objects=100,
            delay=delay,
            recycling=kind,
        )
        for kind in Recycling
    ]
    return _responses(lab, setups, _RECYCLED_REQUESTS, together=delay > 0)


def _recycled(found: _Responses) -> list[PaperComparison]:
    last = {name: values[-1] for name, values in found.found.items()}
    none, precise, approximate = last.values()
    return [
        PaperComparison(
            "precise recycling shortens the response time (last period / without)",
            "yes",
            f"{precise / none:.2f}",
            precise < none,
            _SAME_MACHINE,
        ),
        PaperComparison(
            "approximate recycling shortens it more (last period / precise)",
            "yes",
            f"{approximate / precise:.2f}",
            approximate < precise,
            _SAME_MACHINE,
        ),
    ]


def _figure_7a(lab: Laboratory) -> ExperimentFindings:
    found = _recycling(lab, 0)
    none, _, approximate = found.found.values()
    slowest = max(mine / other for mine, other in zip(approximate, none, strict=True))
    early = PaperComparison(
        "approximate recycling helps from the first period on (longest period / without, at most 1)",
        "better results",
        f"{slowest:.2f}",
        slowest <= 1,
        "Keeping an answer so that others follow from it is work, too, which counts beside a PDP that takes less than "
        "1 ms as long as few requests are decided by earlier answers. How much of the difference this is, was not "
        "measured.",
    )
    comparisons = [*_recycled(found), early]
    return found.findings("Response time with recycling, PDP below 1 ms", comparisons, _ROLE_POLICY)


def _figure_7b(lab: Laboratory) -> ExperimentFindings:
    found = _recycling(lab, 20)
    _, _, approximate = found.found.values()
    first, last = (1_000 * approximate[place] for place in (0, -1))
    drop = PaperComparison(
        "approximate recycling decreases it (last period / first; within 25 % of 6/22)",
        "from 22 ms to 6 ms: 0.27",
        f"from {first:.1f} ms to {last:.1f} ms: {last / first:.2f}",
        abs(last / first - 6 / 22) <= 0.25 * 6 / 22,
        "The share of requests that earlier answers decide depends on how many roles a subject has and how many "
        "permissions a role has, which the paper does not say; the mean of the first period is already shorter.",
    )
    together = {"way": "the three set-ups ask at the same time, each one request at a time"}
    comparisons = [*_recycled(found), drop]
    return found.findings("Response time with recycling, PDP of 20 ms", comparisons, {**_ROLE_POLICY, **together})


EXPERIMENTS: Final = (
    Experiment(
        "pubsub-fig4a",
        Paper.PUBSUB,
        "Figure 4(a)",
        "Decrease of failed requests by the number of PDPs",
        ExperimentMethod.COUNTED,
        {"PDPs": "1 to 6", "overlap": "10 %", **_FAILURES},
        _figure_4a,
    ),
    Experiment(
        "pubsub-fig4b",
        Paper.PUBSUB,
        "Figure 4(b)",
        "Decrease of failed requests by the overlap of PDPs",
        ExperimentMethod.COUNTED,
        {"PDPs": "4", "overlap": "0 % to 100 %", **_FAILURES},
        _figure_4b,
    ),
    Experiment(
        "pubsub-fig5",
        Paper.PUBSUB,
        "Figure 5",
        "Response time of publish/subscribe, straight back and point to point",
        ExperimentMethod.TIMED,
        {"PDPs": "1", **_RESPONSE},
        _figure_5,
    ),
    Experiment(
        "pubsub-fig6a",
        Paper.PUBSUB,
        "Figure 6(a)",
        "Response time by the subscriptions of the PDP",
        ExperimentMethod.TIMED,
        {"objects of the PDP": "100 and 1,000", **_RESPONSE},
        _figure_6a,
    ),
    Experiment(
        "pubsub-fig6b",
        Paper.PUBSUB,
        "Figure 6(b)",
        "Response time with and without unsubscribing from answers",
        ExperimentMethod.TIMED,
        {"unsubscribing": "on and off", **_RESPONSE},
        _figure_6b,
    ),
    Experiment(
        "pubsub-points",
        Paper.PUBSUB,
        "Section 4.4 (no figure)",
        "Response time by the number of PDPs",
        ExperimentMethod.TIMED,
        {"PDPs": "1 to 4, with the same 1,000 objects", **_RESPONSE},
        _points,
    ),
    Experiment(
        "pubsub-fig7a",
        Paper.PUBSUB,
        "Figure 7(a)",
        "Response time with recycled answers, PDP of less than 1 ms",
        ExperimentMethod.TIMED,
        {**_RECYCLED, "PDP": "less than 1 ms", **_RESPONSE},
        _figure_7a,
    ),
    Experiment(
        "pubsub-fig7b",
        Paper.PUBSUB,
        "Figure 7(b)",
        "Response time with recycled answers, PDP of 20 ms",
        ExperimentMethod.TIMED,
        {**_RECYCLED, "PDP": "20 ms", **_RESPONSE},
        _figure_7b,
    ),
)
