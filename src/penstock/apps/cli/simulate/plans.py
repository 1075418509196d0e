"""`penstock simulate domain`, `network` and `calibrate`: plans are tried in virtual time before they are rolled out."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import click

from penstock.apps.cli.shared.commands import CommandAnswer, argument, command, option, option_class, output_option
from penstock.apps.cli.shared.component_process import open_plan
from penstock.apps.cli.shared.describe import counted
from penstock.apps.cli.shared.files import check_target, read_bytes, within, write_bytes
from penstock.apps.cli.shared.options import Duration, RealNumber, html_option, parse_duration
from penstock.apps.cli.shared.session import CommandSession
from penstock.apps.cli.shared.terminal import Shown, grid_table
from penstock.authority.components.plans.domain_check import PlanFinding, PlanLevel
from penstock.errors import MalformedError, RefusedError
from penstock.simulate.calibrate import calibrated, read_times, times_text
from penstock.simulate.network import Latency
from penstock.simulate.plans.domain import (
    PARTS,
    DomainComparison,
    DomainReport,
    DomainTrial,
    compare_domains,
    simulate_domain,
)
from penstock.simulate.plans.network import (
    BrokerPlan,
    NetworkReport,
    NetworkTrial,
    PlannedLink,
    at_share,
    read_network_plan,
    simulate_network,
)
from penstock.simulate.plans.page import domain_html, network_html
from penstock.simulate.plans.requests import DomainFinding
from penstock.simulate.simulation import ServiceTimes


class _Latency(click.ParamType[Latency]):
    """A range of durations, as in `1ms-5ms`."""

    name = "latency"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Latency:
        """Read it."""
        if isinstance(value, Latency):
            return value
        least, dash, most = str(value).partition("-")
        bounds = parse_duration(least, "s"), parse_duration(most if dash else least, "s")
        if bounds[0] is None or bounds[1] is None or bounds[0] > bounds[1]:
            self.fail(f"`{str(value)[:40]}` is not a range of durations such as 1ms-5ms", param, ctx)
        return Latency(bounds[0], bounds[1])


@option_class
class TrialOptions:
    """The options of all trials."""

    seed: int = option("--seed", default=0, show_default=True, help="Draw everything random from this number.")
    times: str | None = option(
        "--times", metavar="FILE", help="Read service times from this file of `penstock simulate calibrate`."
    )
    html: str | None = html_option()
    overwrite: bool = option("--overwrite", is_flag=True, help="Replace the HTML page.")

    def service_times(self) -> ServiceTimes:
        """Return the service times. Raises as `read_times`."""
        return ServiceTimes() if self.times is None else read_times(self.times)

    def check(self) -> None:
        """Check early that the page can be written. Raises as `check_target`."""
        if self.html is not None:
            check_target(self.html, overwrite=self.overwrite)

    def write(self, page: str) -> None:
        """Write the page. Raises as `write_bytes`."""
        if self.html is not None:
            write_bytes(self.html, page.encode(), overwrite=self.overwrite)


def latency_option(default: str) -> Latency:
    """Declare `--latency`."""
    found: Latency = option(
        "--latency",
        type=_Latency(),
        default=default,
        show_default=True,
        metavar="RANGE",
        help="Let each message between two processes take a time in this range.",
    )
    return found


@option_class
class _Domain:
    file: str = argument()
    others: tuple[str, ...] = argument(nargs=-1, required=False, metavar="[FILE]...")
    compare: str | None = option(
        "--compare",
        metavar="PLAN",
        help="Compare with this plan, which is today's, and try the change to FILE. Other files belong to both plans.",
    )
    latency: Latency = latency_option("0.1ms-0.5ms")
    source_time: float = option(
        "--source-time",
        type=Duration(60),
        default="1ms",
        show_default=True,
        metavar="DURATION",
        help="Let each source of attributes take this long to answer.",
    )
    requests: int = option(
        "--requests",
        type=click.IntRange(0, 100_000),
        default=100,
        show_default=True,
        help="Measure response times with this many requests of each enforcement point.",
    )
    rate: float = option(
        "--rate",
        type=RealNumber(0, 100_000, min_open=True),
        default=20.0,
        show_default=True,
        help="Let each enforcement point ask this often in a second, at random times.",
    )
    within: float | None = option(
        "--within",
        type=Duration(3_600),
        metavar="DURATION",
        help="Report a problem if 99 of 100 requests take longer (default: no limit).",
    )
    strict: bool = option("--strict", is_flag=True, help="Exit with 1 if there are warnings, too.")
    trial: TrialOptions
    output: str = output_option()


@command(
    example="""
penstock simulate domain bank.toml
penstock simulate domain bank.toml --html trial.html --within 20ms --strict
penstock simulate domain planned.toml --compare bank.toml -o json
"""
)
def domain(session: CommandSession, options: _Domain) -> CommandAnswer:
    """Try the domain plan in FILE before it is rolled out: run its components in virtual time, and ask requests.

    Reports joins that never finish or are refused, and which rule is missing; roles that nobody can take; policies
    that are incomplete or contradict each other, with a request that shows it; requests that end without
    information or without an answer; and response times with their parts. Other files have more components of the
    domain. The exit status is 1 if there are problems, also while roles change from today's to planned ones. Nothing is
    written, and no component outside is contacted.
    """
    options.trial.check()
    trial = DomainTrial(
        seed=options.trial.seed,
        now=session.now.timestamp(),
        times=options.trial.service_times(),
        latency=options.latency,
        source_time=options.source_time,
        requests=options.requests,
        rate=options.rate,
        within=options.within,
    )
    loaded, others = open_plan(options.file), [open_plan(file) for file in options.others]
    comparison = None
    if options.compare is None:
        report = simulate_domain(loaded, others, trial)
    else:
        comparison = compare_domains(open_plan(options.compare), loaded, trial, others=others)
        report = comparison.planned
    options.trial.write(domain_html(report, comparison, session.now, file=options.file, trial=trial))
    findings = _findings(report, comparison)
    problems = _problems(findings)
    failing = findings if options.strict else problems
    error = None
    if failing:
        what = "finding" if options.strict else "problem"
        error = RefusedError("simulate.problems", f"{options.file}: {counted(len(failing), what)} in a trial")
    data = {**report.as_dict(), "ok": not problems}
    if comparison is not None:
        data["comparison"] = comparison.as_dict()
    return CommandAnswer(data, _shown(options.file, report, comparison), error)


def _findings(report: DomainReport, comparison: DomainComparison | None) -> Sequence[PlanFinding]:
    """Return the findings of a plan, and of the change to it."""
    return report.findings if comparison is None else (*report.findings, *comparison.findings)


def _problems(findings: Iterable[PlanFinding]) -> list[PlanFinding]:
    return [one for one in findings if one.level is PlanLevel.PROBLEM]


def _shown(file: str, report: DomainReport, comparison: DomainComparison | None) -> Iterator[Shown]:
    findings = _findings(report, comparison)
    yield from shown_findings(findings)
    if not _problems(findings):
        joined, answered = counted(len(report.joins), "component"), counted(len(report.asked), "request")
        yield f"✓ {file}: {joined} joined, {answered} answered"
    if report.responses:
        headings = ("component", "action", *PARTS, "median", "p99")
        rows = [
            (
                one.component,
                one.action,
                *(_ms(one.parts[name]) for name in PARTS),
                _ms(one.at(0.5)),
                _ms(one.at(0.99)),
            )
            for one in report.responses
        ]
        yield "response times in ms:"
        yield grid_table(headings, rows)
    for one in report.unknown:
        yield f"? {one}"
    if comparison is not None:
        yield from _compared(comparison)


def _compared(comparison: DomainComparison) -> Iterator[Shown]:
    yield "compared with today:"
    for mark, those in (("+", comparison.new), ("-", comparison.gone)):
        for one in those:
            yield f"  {mark} {one.where}: {one.message} ({one.code})"
    for one in comparison.decisions:
        yield f"  {one.where}: {one.message}, such as {request_text(one)}"
    roles, change = comparison.roles, comparison.change
    for what, names in (("added", roles.added), ("removed", roles.removed)):
        if names:
            yield f"  {what}, and not tried as a change: {', '.join(names)}"
    if change is None:
        if roles.changed:
            yield f"  {', '.join(roles.changed)}: the change was not tried, because no PAP of today's plan joins"
        else:
            yield "  roles of both plans stay the same"
        return
    yield (
        f"  {', '.join(change.roles)}: applied by all components after {change.seconds * 1e3:.1f} ms; "
        f"{change.unanswered} of {counted(change.requests, 'request')} meanwhile without a decision"
    )
    if change.lost:
        yield f"  lost their roles: {', '.join(change.lost)}"


def shown_findings(findings: Iterable[PlanFinding]) -> Iterator[Shown]:
    """Yield findings for people."""
    for one in findings:
        yield f"{'✗' if one.level is PlanLevel.PROBLEM else '!'} {one.where}: {one.message} ({one.code})"
        if isinstance(one, DomainFinding) and one.request is not None:
            yield f"    for example {request_text(one)}"
        if one.hint:
            yield f"    {one.hint}"


def request_text(finding: DomainFinding) -> str:
    """Return the request of a finding as one line.

    It has the subject, the action and the resource, each with its attributes.
    """
    parts: list[str] = []
    for word in ("subject", "action", "resource"):
        one = (finding.request or {}).get(word)
        if isinstance(one, dict):
            name = f"{one['type']}:{one['id']}" if "type" in one else str(one["name"])
            properties = one.get("properties")
            known = properties.items() if isinstance(properties, dict) else ()
            more = ", ".join(f"{key}={value}" for key, value in known)
            parts.append(f"{name} ({more})" if more else name)
    return " ".join(parts)


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3f}"


# ----------------------------------------------------------------------------------------------------------------------
# Networks.


@option_class
class _Network:
    file: str = argument()
    latency: Latency = latency_option("1ms-5ms")
    owner: str | None = option(
        "--owner", metavar="BROKER", help="Let the owner be at this broker (default: the first one of FILE)."
    )
    readers: int = option(
        "--readers",
        type=click.IntRange(1, 10_000),
        default=40,
        show_default=True,
        help="Revoke the rights of this many readers at random brokers.",
    )
    orders: int = option(
        "--orders",
        type=click.IntRange(1, 1_000),
        default=4,
        show_default=True,
        help="Revoke them by this many orders, each for a part of the readers.",
    )
    rate: float = option(
        "--rate",
        type=RealNumber(0, 100_000, min_open=True),
        default=200.0,
        show_default=True,
        help="Let this many events a second arrive for each reader.",
    )
    lose: tuple[str, ...] = option(
        "--lose",
        multiple=True,
        metavar="BROKER:BROKER",
        help="Lose this link when an order is given. Can be repeated; `each` tries all links, one after the other.",
    )
    lost_for: float = option(
        "--lost-for",
        type=Duration(30),
        default="5s",
        show_default=True,
        metavar="DURATION",
        help="Let lost links come back after this time.",
    )
    within: float | None = option(
        "--within",
        type=Duration(3_600),
        metavar="DURATION",
        help="Report a problem if 99 of 100 readers get events for longer after an order (default: no limit).",
    )
    trial: TrialOptions
    output: str = output_option()


@command(
    example="""
penstock simulate network net.toml
penstock simulate network net.toml --lose berlin:paris --within 50ms
penstock simulate network net.toml --lose each -o json
"""
)
def network(session: CommandSession, options: _Network) -> CommandAnswer:
    """Try the network plan in FILE: how long does a revocation take, and what does a lost link do?

    An owner at one broker revokes the rights of readers at random brokers while events arrive. Shown are the last
    delivery to each reader after the order, when all brokers have acknowledged it, and how many events a reader still
    got. Brokers that lost links separate from the owner's are cut off. The exit status is 1 if a reader gets an event
    after all have acknowledged, if an order is never complete, or if --within is exceeded.
    """
    options.trial.check()
    data = read_bytes(options.file)
    with within(options.file):
        plan = read_network_plan(data, options.trial.seed)
    if options.owner is not None and options.owner not in plan.brokers:
        hint = f"write one of them, such as {plan.brokers[0]}"
        raise MalformedError("cli.usage", f"the plan has no broker `{options.owner[:80]}`", hint=hint)
    trial = NetworkTrial(
        seed=options.trial.seed,
        times=options.trial.service_times(),
        latency=options.latency,
        owner=options.owner,
        readers=options.readers,
        orders=options.orders,
        rate=options.rate,
        lost_for=options.lost_for,
    )
    named = [one for one in options.lose if one != _EACH]
    lost = tuple(_link(plan, one) for one in named)
    report = simulate_network(plan, replace(trial, lost=lost))
    single = {}
    if _EACH in options.lose:
        for link in plan.links:
            single[f"{link.one}:{link.other}"] = simulate_network(plan, replace(trial, lost=(link,), orders=1))
    options.trial.write(network_html(report, single, session.now, file=options.file, trial=trial))
    problems = _network_problems([report, *single.values()], options.within)
    error = RefusedError("simulate.problems", f"{options.file}: {'; '.join(problems)}") if problems else None
    found = {**report.as_dict(), "ok": not problems, "lost": {name: one.as_dict() for name, one in single.items()}}
    return CommandAnswer(found, _network_shown(report, single, lost=bool(lost)), error)


_EACH = "each"


def _link(plan: BrokerPlan, written: str) -> PlannedLink:
    one, _, other = written.partition(":")
    for link in plan.links:
        if {link.one, link.other} == {one, other}:
            return link
    raise MalformedError("cli.usage", f"the plan has no link `{written[:80]}`", hint="write BROKER:BROKER, or `each`")


def _network_problems(reports: Iterable[NetworkReport], limit: float | None) -> list[str]:
    found: dict[str, None] = {}
    for one in reports:
        if one.after_complete:
            found[f"{counted(one.after_complete, 'delivery')} after completion"] = None
        if one.incomplete:
            found[f"{counted(one.incomplete, 'order')} never complete"] = None
        late = at_share(one.last_deliveries, 0.99)
        if limit is not None and late > limit:
            found[f"readers get events for {late * 1e3:.1f} ms after an order, more than {limit * 1e3:g} ms"] = None
    return [*found]


def _network_shown(report: NetworkReport, single: Mapping[str, NetworkReport], *, lost: bool) -> Iterator[Shown]:
    counts = ((report.brokers, "broker"), (report.links, "link"), (len(report.orders), "order"))
    yield ", ".join(counted(*one) for one in counts)
    headings = ("in ms", "median", "p99", "longest")
    rows = [
        (name, *(_ms(at_share(those, share)) if those else "never" for share in (0.5, 0.99, 1.0)))
        for name, those in (("last delivery", report.last_deliveries), ("complete", report.completions))
    ]
    yield grid_table(headings, rows)
    median, most = (at_share(report.deliveries, share) for share in (0.5, 1.0))
    yield f"deliveries to a reader after the order: median {median:g}, most {most:g}"
    if report.brokers != report.reached:
        why = "while links are lost" if lost else "from the owner: no links of the plan lead there"
        yield f"{counted(report.brokers - report.reached, 'broker')} cut off {why}"
    if single:
        yield "if one link is lost:"
        yield grid_table(
            ("link", "brokers cut off", "last delivery p99 (ms)", "complete (ms)"),
            [
                (
                    name,
                    str(one.brokers - one.reached),
                    _ms(at_share(one.last_deliveries, 0.99)),
                    _ms(one.completions[0]) if one.completions else "never",
                )
                for name, one in single.items()
            ],
        )


# ----------------------------------------------------------------------------------------------------------------------
# Service times.


@option_class
class _Calibrate:
    steps: int = option(
        "--steps",
        type=click.IntRange(1, 10_000),
        default=60,
        show_default=True,
        help="Run this many steps of each simulated part of the system.",
    )
    out: str | None = option("--out", metavar="FILE", help="Write the file of service times there.")
    overwrite: bool = option("--overwrite", is_flag=True, help="Replace an existing file.")
    output: str = output_option()


@command(example="penstock simulate calibrate --out times.toml")
def calibrate(options: _Calibrate) -> CommandAnswer:
    """Measure how long this machine takes to sign, verify, decide, route and so on, for other simulations.

    Small simulations run for some seconds, and the processor time of each call is measured. Without --out, the file
    is printed.
    """
    if options.out is not None:
        check_target(options.out, overwrite=options.overwrite)
    meter = calibrated(options.steps)
    times, calls = meter.times(), {service: len(those) for service, those in meter.calls.items()}
    text = times_text(times, calls)
    if options.out is not None:
        write_bytes(options.out, text.encode(), overwrite=options.overwrite)
    data = {"seconds": dict(times.seconds), "calls": calls, "out": options.out}
    return CommandAnswer(data, text.splitlines() if options.out is None else [f"wrote {options.out}"])
