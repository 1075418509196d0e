"""Beyond the papers: how long a revocation takes in networks of up to 2,000 brokers, and what lost links do to it.

Each network is run by `penstock.simulate.plans.network`, with links of 1 to 5 ms and service times of this machine.
Several orders revoke the rights of the readers, one after the other; all figures come from the log of the run. Each
order costs as much again, because every broker verifies the acknowledgements of all others. So there is only one order
in the largest networks, and where links are lost, which is what completion waits for then.
"""

import time
from dataclasses import dataclass
from random import Random
from typing import Final

from penstock.simulate.calibrate import calibrated
from penstock.simulate.experiments.charts import ChartLine, LineChart
from penstock.simulate.experiments.experiment import (
    Experiment,
    ExperimentFindings,
    ExperimentMethod,
    Laboratory,
    Paper,
    PaperComparison,
)
from penstock.simulate.network import Latency
from penstock.simulate.plans.network import (
    BrokerPlan,
    NetworkReport,
    NetworkTrial,
    at_share,
    random_graph,
    simulate_network,
    tree,
)
from penstock.simulate.simulation import ServiceTimes

_DEGREE: Final = 4
_SIZES: Final = (10, 30, 100, 300, 1_000, 2_000)
#: the size for which the limit holds, in seconds until the last delivery, and with which links are lost
_LARGE: Final = 1_000
_LIMIT: Final = 0.050
_LOST: Final = 0.01
_READERS: Final = 100
#: orders to revoke, among which the readers of a network are split
_ORDERS: Final = 4
_SHAPES: Final = ("tree", "random graph")
#: of a distribution: the median, p99 and the longest
_SHARES: Final = (0.5, 0.99, 1.0)


@dataclass(frozen=True, slots=True)
class _Case:
    shape: str
    brokers: int
    lost: float = 0.0

    def plan(self) -> BrokerPlan:
        if self.shape == "tree":
            return tree(self.brokers, _DEGREE)
        return random_graph(self.brokers, _DEGREE, Random(f"graph {self.brokers}"))  # noqa: S311  # it must be repeatable

    def run(self, times: ServiceTimes, readers: int, orders: int, rate: float) -> NetworkReport:
        if self.lost or self.brokers > _LARGE:
            orders = 1
        plan = self.plan()
        random = Random(f"lost {self.brokers}")  # noqa: S311  # it must be repeatable
        lost = random.sample(plan.links, max(1, round(self.lost * len(plan.links)))) if self.lost else ()
        trial = NetworkTrial(
            times=times, latency=Latency(0.001, 0.005), readers=readers, orders=orders, lost=tuple(lost), rate=rate
        )
        return simulate_network(plan, trial)


def _revocation(lab: Laboratory) -> ExperimentFindings:
    sizes = lab.pick(_SIZES, (3, 8))
    large = lab.pick(_LARGE, 8)
    readers, orders = lab.pick(_READERS, 10), lab.pick(_ORDERS, 3)
    times = ServiceTimes() if lab.quick else calibrated().times()
    cases = [_Case(shape, size) for size in sizes for shape in _SHAPES]
    cases += [_Case(shape, large, _LOST) for shape in _SHAPES]
    rate = lab.pick(200.0, 20.0)
    start = time.process_time()
    found = {case: case.run(times, readers, orders, rate) for case in lab.each(cases)}
    taken = time.process_time() - start
    rows = [
        (
            case.shape,
            f"{case.brokers:,}",
            f"{report.brokers - report.reached:,} cut off" if case.lost else "no",
            str(len(report.orders)),
            *(_ms(at_share(report.last_deliveries, share)) for share in _SHARES),
            *(_ms(at_share(report.completions, share)) if report.completions else "never" for share in _SHARES),
            f"{at_share(report.deliveries, 0.5):g}",
            f"{at_share(report.deliveries, 1.0):g}",
            str(report.after_complete),
            f"{report.messages:,}",
        )
        for case, report in found.items()
    ]
    headings = (
        *("shape", "brokers", "1 % of the links lost for 5 s", "orders"),
        *("last delivery, median (ms)", "last delivery, p99 (ms)", "last delivery, longest (ms)"),
        *("complete, median (ms)", "complete, p99 (ms)", "complete, longest (ms)"),
        *("deliveries to a reader after the order, median", "deliveries to a reader after the order, most"),
        *("deliveries after completion", "messages"),
    )
    comparisons = [
        PaperComparison(
            f"p99 from the order to the last delivery, {large:,} brokers, {shape}",
            f"below {_LIMIT * 1e3:g} ms",
            f"{_ms(late)} ms",
            late < _LIMIT,
            "Hops and service times add up to more.",
        )
        for shape in _SHAPES
        for late in (at_share(found[_Case(shape, large)].last_deliveries, 0.99),)
    ]
    late = sum(report.after_complete for report in found.values())
    comparisons.append(
        PaperComparison("deliveries after an order is complete", "0", str(late), late == 0, "This must not be.")
    )
    whole = sum(report.incomplete for report in found.values())
    comparisons.append(
        PaperComparison("orders that are never complete", "0", str(whole), whole == 0, "Links were lost for too long.")
    )
    lines = [
        ChartLine(f"{what}, {shape}", [(case.brokers, 1e3 * value(found[case])) for case in cases if _is(case, shape)])
        for what, value in (("last delivery", _late), ("complete", _complete))
        for shape in _SHAPES
    ]
    chart = LineChart("Revocation by brokers", "brokers", "ms (p99)", lines, log_x=True)
    shown = ", ".join(f"{name} {seconds * 1e6:.0f} µs" for name, seconds in times.seconds.items())
    instead = {"service times by `penstock simulate calibrate`": shown, "processor time": f"{taken:.0f} s"}
    return ExperimentFindings(headings, rows, comparisons, chart, instead)


def _is(case: _Case, shape: str) -> bool:
    return case.shape == shape and not case.lost


def _late(report: NetworkReport) -> float:
    return at_share(report.last_deliveries, 0.99)


def _complete(report: NetworkReport) -> float:
    return at_share(report.completions, 0.99)


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f}"


EXPERIMENTS: Final = (
    Experiment(
        "revocation-growth",
        Paper.BEYOND,
        "Revocation",
        "the last delivery after an order to revoke, and completion, by the number of brokers",
        ExperimentMethod.SIMULATED,
        {
            "networks": f"a tree of fan-out {_DEGREE}, and a random graph of degree {_DEGREE}",
            "links": "1 to 5 ms",
            "disks": "0.5 to 4 ms to sync",
            "readers": f"{_READERS}, at random brokers, with 200 events a second each",
            "orders": f"{_ORDERS}, one after the other, each for a part of the readers; 1 if links are lost, or with "
            f"more than {_LARGE:,} brokers",
        },
        _revocation,
    ),
)
