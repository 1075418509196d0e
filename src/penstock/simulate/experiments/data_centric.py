"""Paper 4, "Access Control in Ultra-Large-Scale Systems Using a Data-Centric Middleware", sections 5 and 6."""

import asyncio
from contextlib import AsyncExitStack
from typing import Final

from penstock.authority.components.exchange.topics import ComponentKind
from penstock.simulate.experiments.access_requests import (
    RealSurroundings,
    RequestDomain,
    RequestParts,
    SimulatedSurroundings,
    middle,
)
from penstock.simulate.experiments.charts import ChartLine, LineChart
from penstock.simulate.experiments.component_domain import DomainSize, role_rules, role_table, run_domain
from penstock.simulate.experiments.experiment import (
    Experiment,
    ExperimentFindings,
    ExperimentMethod,
    Laboratory,
    Paper,
    PaperComparison,
)
from penstock.simulate.simulation import Simulation

# ----------------------------------------------------------------------------------------------------------------------
# Table 5 and Figure 10: 1,046 components join, and are reconfigured.

#: what Figure 10 shows in the end, by kind
_JOINED: Final = {ComponentKind.PEP: 478, ComponentKind.PDP: 285, ComponentKind.PIP: 187, ComponentKind.PLP: 93}
_SMALL: Final = DomainSize((6, 4, 2, 1), (4, 3, 2, 1), rejected=1, left=1, reconfigurations=2, groups=2)
#: seconds of the processor in which the conf process must end
_CONF_LIMIT: Final = 60.0


def _table_5(lab: Laboratory) -> ExperimentFindings:
    size = lab.pick(DomainSize(), _SMALL)
    found = run_domain(size)
    lab.progress(1.0)
    table = role_table(size)
    rules = role_rules(size).count("activate ")
    wanted = _JOINED if size == DomainSize() else dict(zip(_JOINED, (5, 4, 2, 1), strict=True))
    fields = (
        ("authorization components", "1046", size.total),
        ("OASIS rules", "320", rules),
        ("topics-lists", "320", len(table)),
        ("ABAC policies", "100", sum(len(role.policies) for role in table.values())),
        ("combining algorithms", "120", sum(len(role.combining) for role in table.values())),
        ("priorities", "120", sum(len(role.priorities) for role in table.values())),
        ("reconfigurations", "20", found.reconfigured),
    )
    rows = [(name, printed, f"{ours:,}") for name, printed, ours in fields]
    rows += [(f"joined: {kind}", str(_JOINED[kind]), str(found.joined[kind])) for kind in _JOINED]
    rows += [
        ("rejected", "2", str(found.rejected.total())),
        ("left", "1", str(found.left)),
        ("waiting", "4 (a snapshot)", str(found.waiting)),
        ("virtual time to the end of the conf process", "-", f"{found.conf_seconds:.1f} s"),
        ("virtual time of the slowest reconfiguration", "-", f"{found.reconf_seconds:.2f} s"),
    ]
    comparisons = [
        PaperComparison(
            "components of each kind in the end",
            ", ".join(f"{many} {kind}" for kind, many in _JOINED.items()),
            ", ".join(f"{found.joined[kind]} {kind}" for kind in _JOINED),
            dict(found.joined) == wanted,
            "A quick run has fewer components." if lab.quick else "Requests to join have failed.",
        ),
        PaperComparison(
            "rejected and left",
            "2 and 1",
            f"{found.rejected.total()} and {found.left}",
            (found.rejected.total(), found.left) == (size.rejected, size.left),
        ),
        PaperComparison(
            "every request to join ends, so the policies are complete",
            "0 wait in the end",
            f"{found.waiting} wait",
            found.waiting == 0,
        ),
        PaperComparison(
            f"processor time to the end of the conf process (at most {_CONF_LIMIT:g} s)",
            "not said",
            f"{found.conf_processor:.0f} s",
            found.conf_processor <= _CONF_LIMIT,
            "The machine is slower than the one that the limit is for.",
        ),
    ]
    instead = {
        "topics": f"{size.groups} groups of roles have topics of their own",
        "processor time of the reconfigurations": f"{found.reconf_processor:.0f} s",
    }
    return ExperimentFindings(("field", "paper", "Penstock"), rows, comparisons, None, instead)


# ----------------------------------------------------------------------------------------------------------------------
# Table 6: the response time by decision points.

_STEPS: Final = (1, 200, 400, 600, 800, 888)
_PAPER: Final = {1: 453, 200: 459, 400: 461, 600: 464, 800: 466, 888: 467}
#: seconds that a sample is under way in the paper, which are those of RTI's analysis
_LATENCY: Final = 91e-6
#: how much longer a response may take with 888 decision points: the paper says less than 4 %
_GROWTH: Final = 1.04


def _table_6(lab: Laboratory) -> ExperimentFindings:
    steps, requests = lab.pick((_STEPS, 200), ((1, 4), 3))
    with Simulation(1) as simulation:
        simulated = simulation.run(_simulated(SimulatedSurroundings(simulation, _LATENCY), steps, requests // 10 + 1))
    lab.progress(0.5)
    measured = asyncio.run(_measured(steps, requests))
    rows = []
    for number in steps:
        many, one = measured[number]
        rows.append(
            (
                str(number),
                f"{_PAPER[number]} µs" if number in _PAPER else "-",
                *_written(simulated[number]),
                *_written(many),
                f"{many.whole / one.whole:.2f}",
            )
        )
    last = steps[-1]
    growth = simulated[last].whole / simulated[1].whole
    real = measured[last][0].whole / measured[last][1].whole
    comparisons = [
        PaperComparison(
            f"simulated: response time with {last} PDPs / with 1 (at most {_GROWTH})",
            "1.03",
            f"{growth:.3f}",
            growth <= _GROWTH,
            "The fabric looks for the readers of each sample.",
        ),
        PaperComparison(
            f"measured, by turns with a domain that has one PDP (at most {_GROWTH})",
            "1.03 (simulated only)",
            f"{real:.3f}",
            real <= _GROWTH,
            "All components are in one process here, whose memory they share.",
        ),
    ]
    lines = [
        ChartLine("paper", [*_PAPER.items()], dashed=True),
        ChartLine("simulated", [(number, 1e6 * simulated[number].whole) for number in steps]),
        ChartLine("measured", [(number, 1e6 * measured[number][0].whole) for number in steps]),
    ]
    chart = LineChart("Response time of an access request by PDPs", "PDPs", "µs", lines)
    parts = ("request", "reply", "deciding", "rest", "response")
    headings = (
        "PDPs",
        "paper",
        *(f"simulated: {part}" for part in parts),
        *(f"measured: {part}" for part in parts),
        "measured / one PDP",
    )
    instead = {
        "latency": "simulated 91 µs for each sample; each sample is signed and verified, and the times of both parties "
        "are part of its latency",
        "measured": "on the embedded fabric, all components in one process",
        "rate": "one request at a time",
    }
    return ExperimentFindings(headings, rows, comparisons, chart, instead)


def _written(parts: RequestParts) -> tuple[str, ...]:
    found = (parts.request, parts.reply, parts.deciding, parts.rest, parts.whole)
    return tuple(f"{1e6 * value:.0f} µs" for value in found)


async def _simulated(place: SimulatedSurroundings, steps: tuple[int, ...], requests: int) -> dict[int, RequestParts]:
    found = {}
    domain, stack = RequestDomain(place, steps[-1]), AsyncExitStack()
    await domain.start(stack)
    for number in steps:
        await domain.grow(stack, number)
        await domain.ask()
        found[number] = middle([await domain.ask() for _ in range(requests)])
    # The simulation ends, and with it all components.
    stack.pop_all()
    return found


async def _measured(steps: tuple[int, ...], requests: int) -> dict[int, tuple[RequestParts, RequestParts]]:
    """Return the parts with so many decision points, and those with one, by turns."""
    found = {}
    async with AsyncExitStack() as stack:
        many, one = (RequestDomain(RealSurroundings(), most) for most in (steps[-1], 1))
        for domain in (many, one):
            await domain.start(stack)
        for number in steps:
            await many.grow(stack, number)
            for domain in (many, one):
                await domain.ask()
            pairs = [(await many.ask(), await one.ask()) for _ in range(requests)]
            found[number] = (middle([pair[0] for pair in pairs]), middle([pair[1] for pair in pairs]))
    return found


EXPERIMENTS: Final = (
    Experiment(
        "components-table5",
        Paper.DATA_CENTRIC,
        "Table 5 and Figure 10",
        "A domain of 1,046 components: who joined, left and was rejected",
        ExperimentMethod.COUNTED,
        {
            "components": "1,046",
            "OASIS rules": "320",
            "topics-lists": "320",
            "ABAC policies": "100",
            "combining algorithms": "120",
            "priorities": "120",
            "reconfigurations": "20",
        },
        _table_5,
    ),
    Experiment(
        "components-table6",
        Paper.DATA_CENTRIC,
        "Table 6",
        "Response time of an access request by the number of PDPs, of which one decides",
        ExperimentMethod.TIMED,
        {"PDPs": "1 to 888", "latency": "of RTI Connext DDS, 91 to 103 µs", "size": "200 bytes", "rate": "100,000/s"},
        _table_6,
    ),
)
