"""What trials of plans have found, as HTML pages with plots (`penstock.pipeline.pages`)."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime

from penstock.authority.components.plans.domain_check import PlanFinding
from penstock.pipeline.pages import bars, made, page, section, table
from penstock.simulate.plans.domain import (
    PARTS,
    DomainComparison,
    DomainReport,
    DomainTrial,
    JoinOutcome,
    ResponseTimes,
)
from penstock.simulate.plans.network import NetworkReport, NetworkTrial, at_share
from penstock.simulate.plans.requests import DomainFinding

_BUCKETS = 20


def domain_html(
    report: DomainReport,
    comparison: DomainComparison | None = None,
    at: datetime | None = None,
    *,
    file: str = "",
    trial: DomainTrial | None = None,
) -> str:
    """Return the page of a domain plan, and of its comparison with today's.

    `file` is where the plan comes from, and `trial` how it was tried.
    """
    joined = sum(one.state == "joined" for one in report.joins)
    facts = {
        "problems": len(report.problems),
        "warnings": len(report.findings) - len(report.problems),
        "components": len(report.joins),
        "joined": joined,
        "requests": sum(len(one.seconds) for one in report.responses),
    }
    footer = _footer(report.trace, at, file, trial)
    lead = "A domain plan, run in virtual time with its real components before it is rolled out."
    return page(f"Trial of domain {report.domain}", lead, facts, _parts(report, comparison), footer)


def _parts(report: DomainReport, comparison: DomainComparison | None) -> Iterator[str]:
    if comparison is not None:
        yield _changes(comparison)
    text = "Problems keep the domain from working as planned. Each request shows the finding."
    yield section("Findings", text if report.findings else "Nothing is wrong.", table=_findings(report.findings))
    text = "How long each component takes to join, in microseconds of virtual time. Others wait, or are refused."
    times = [(one.component, _micro(one.seconds)) for one in report.joins if one.state == "joined"]
    yield section("Joins", text, bars("Time to join", times, "a"), _joins(report.joins))
    text = (
        "Response times in microseconds: the latency of request and answer, the decision and its information, the rest."
    )
    yield section("Response times", text, _part_bars(report.responses), _times(report.responses))
    for one in report.responses:
        title = f"Response times of {one.component} to {one.action}"
        text = f"{len(one.seconds)} requests that come at random times. Half take up to {_micro(one.at(0.5)):,} µs."
        buckets = histogram(one.seconds)
        rows = [[name, count] for name, count in buckets]
        drawn = bars(title, buckets, "b")
        yield section(title, text, drawn, table(title, ("up to (µs)", "requests"), rows))
    if report.unknown:
        rows = [[one] for one in report.unknown]
        text = "Findings about policies are missing there."
        yield section("Not searched", text, table=table("Not searched", ("what",), rows))
    busy = sorted(report.busy.items(), key=lambda pair: -pair[1])
    text = "The share of time in which the processor of each component works while requests come, in thousandths."
    shares = [(id_, round(share * 1_000)) for id_, share in busy]
    rows = [[id_, share] for id_, share in shares]
    yield section("Load", text, bars("Load", shares, "c"), table("Load", ("component", "thousandths"), rows))


def _findings(findings: Sequence[PlanFinding]) -> str:
    rows = [
        [
            str(one.level),
            one.code,
            one.where,
            one.message,
            json.dumps(one.request) if isinstance(one, DomainFinding) and one.request is not None else "",
        ]
        for one in findings
    ]
    return table("Findings", ("level", "code", "where", "finding", "request"), rows) if rows else ""


def _joins(joins: Iterable[JoinOutcome]) -> str:
    rows = [[one.component, str(one.kind), one.role, one.state, _micro(one.seconds), one.reason] for one in joins]
    return table("Joins", ("component", "kind", "role", "state", "after (µs)", "reason"), rows)


def _part_bars(responses: Iterable[ResponseTimes]) -> str:
    items = [
        (f"{one.component} {one.action}: {PARTS[name]}", _micro(one.parts[name])) for one in responses for name in PARTS
    ]
    return bars("Parts of response times", items, "a")


def _times(responses: Iterable[ResponseTimes]) -> str:
    rows = [
        [
            one.component,
            one.action,
            *(_micro(one.parts[name]) for name in PARTS),
            _micro(one.at(0.5)),
            _micro(one.at(0.99)),
        ]
        for one in responses
    ]
    return table("Response times", ("component", "action", *PARTS, "p50", "p99"), rows)


def _changes(comparison: DomainComparison) -> str:
    rows: list[list[object]] = [
        [kind, one.code, one.where, one.message]
        for kind, those in (
            ("problem", comparison.findings),
            ("new", comparison.new),
            ("gone", comparison.gone),
            ("decision", comparison.decisions),
        )
        for one in those
    ]
    roles = comparison.roles
    rows += [
        [f"role {kind}", "", f"roles.{role}", "not tried as a change"]
        for kind, those in (("added", roles.added), ("removed", roles.removed))
        for role in those
    ]
    today = {(one.component, one.action): one for one in comparison.today.responses}
    for one in comparison.planned.responses:
        before = today.get((one.component, one.action))
        if before is not None and _micro(before.at(0.99)) != _micro(one.at(0.99)):
            what = f"p99 {_micro(before.at(0.99)):,} µs → {_micro(one.at(0.99)):,} µs"
            rows.append(["response time", "", f"components.{one.component}", f"{one.action}: {what}"])
    change = comparison.change
    text = "Roles of both plans stay the same."
    if roles.changed and change is None:
        text = "The change was not tried, because no PAP of today's plan joins."
    if change is not None:
        text = (
            f"All components have applied the change after {change.seconds * 1e3:,.1f} ms. Of {change.requests:,} "
            f"requests, {change.unanswered:,} ended without a decision. {len(change.lost)} components lost their roles."
        )
    changes = table("Changes", ("what", "code", "where", "change"), rows) if rows else ""
    return section("Compared with today", text, table=changes)


def network_html(
    report: NetworkReport,
    single: Mapping[str, NetworkReport] | None = None,
    at: datetime | None = None,
    *,
    file: str = "",
    trial: NetworkTrial | None = None,
) -> str:
    """Return the page of a network plan; `single` has what happens if one link is lost, by its name.

    `file` is where the plan comes from, and `trial` how it was tried.
    """
    facts = {
        "brokers": report.brokers,
        "links": report.links,
        "orders": len(report.orders),
        "never complete": report.incomplete,
        "deliveries after completion": report.after_complete,
        "most deliveries to a reader after the order": max(report.deliveries, default=0),
    }
    parts = []
    for title, text, seconds in (
        (
            "Last deliveries",
            "When each reader got an event for the last time, after the order.",
            report.last_deliveries,
        ),
        ("Completion", "When all brokers had acknowledged an order.", report.completions),
    ):
        buckets = histogram(seconds)
        rows = [[name, count] for name, count in buckets]
        parts.append(section(title, text, bars(title, buckets, "a"), table(title, ("up to (µs)", "number"), rows)))
    if single:
        text = "What happens if one link is lost when an order is given: brokers that are cut off meanwhile, and times."
        cut = {name: (one.brokers - one.reached, at_share(one.last_deliveries, 0.99)) for name, one in single.items()}
        lost = [
            [name, *cut[name][:1], _micro(cut[name][1]), _micro(one.completions[0]) if one.completions else "never"]
            for name, one in single.items()
        ]
        heads = ("link", "brokers cut off", "last delivery p99 (µs)", "complete (µs)")
        drawn = bars("Last delivery (p99)", [(name, _micro(late)) for name, (_, late) in cut.items()], "b")
        parts.append(section("One lost link", text, drawn, table("One lost link", heads, lost)))
    lead = "A network of brokers, run in virtual time: an owner revokes rights of readers at random brokers."
    footer = _footer(report.trace, at, file, trial)
    return page("Trial of a network", lead, facts, parts, footer)


def _footer(trace: str, at: datetime | None, file: str, trial: DomainTrial | NetworkTrial | None) -> str:
    source, how = f" from {file}" if file else "", ""
    if trial is not None:
        least, most = trial.latency.least * 1e3, trial.latency.most * 1e3
        how = f", with seed {trial.seed}; messages take {least:g} to {most:g} ms"
    return f"{made(at)}Simulated by penstock{source}{how}. The trace is {trace}."


def histogram(seconds: Sequence[float]) -> list[tuple[str, int]]:
    """Return how many values are in each of some equal ranges, by its upper end in microseconds.

    >>> histogram([0.001, 0.001, 0.003])[:1], histogram([0.001, 0.001, 0.003])[-1]
    ([('1,100', 2)], ('3,000', 1))
    """
    if not seconds:
        return []
    least, most = min(seconds), max(seconds)
    wide = (most - least) / _BUCKETS or 1.0
    counts = [0] * _BUCKETS
    for one in seconds:
        counts[min(_BUCKETS - 1, int((one - least) / wide))] += 1
    return [(f"{_micro(least + wide * (place + 1)):,}", count) for place, count in enumerate(counts)]


def _micro(seconds: float) -> int:
    return round(seconds * 1e6)
