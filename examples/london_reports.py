"""The last part of the London example: what a change of policy would do, and what the decision logs tell. On Spark."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from rich.console import Console
from rich.table import Table

from london_cast import CCS, NAMES, NOW, PITO, PLATE_TYPE, STATISTICS, grant
from penstock.errors import MalformedError
from penstock.model import Principal
from penstock.pipeline.audit import audit, read_log, reason
from penstock.pipeline.comparison import AffectedReader, whatif_html
from penstock.pipeline.enforce.policy import PipelinePolicy
from penstock.pipeline.jobs.reports import (
    audit_html,
)
from penstock.pipeline.pages import number_text
from penstock.pipeline.whatif import (
    compare,
)
from penstock.trust import Credentials, Right, VerifiedType, event_tag

_SHOWN = 6


def whatif(
    console: Console, transit: DataFrame, policy: PipelinePolicy, versions: Mapping[str, VerifiedType], out: Path
) -> None:
    """Compare the policy with one in which the statistics office may see the plate too."""
    plate = versions["0"].event_type.by_name["license-plate"].id
    asked = grant(
        CCS, STATISTICS.principal, event_tag(PITO.principal, PLATE_TYPE, None, [Right.SUBSCRIBE], attributes=[plate])
    )
    after = replace(policy, credentials=policy.credentials + Credentials.of(asked))
    types = [verified.event_type for verified in versions.values()]
    with console.status("  comparing"):
        found = compare(transit, policy, after, types=types, samples=3)
    gains: dict[tuple[AffectedReader, int, tuple[str, ...]], list[str]] = {}
    for change in found.gains:
        key = change.reader, change.gained, change.gained_samples
        gains.setdefault(key, []).append(change.name or "whole events")
    shown = Table("subscriber", "would gain", "on events", "for example")
    for (reader, events, samples), names in gains.items():
        shown.add_row(reader.name, ", ".join(names), f"{events:,}", ", ".join(samples))
    console.print(shown)
    losers = ", ".join(sorted({change.reader.name for change in found.losses})) or "Nobody"
    others = len(found.readers) - len({change.reader for change in found.changes})
    console.print(f"  {losers} would lose anything. For the other {others} subscriptions nothing changes.")
    page = whatif_html(found, names=NAMES, title="The statistics office asks for the plate", at=NOW)
    written(console, out / "whatif.html", page)


def audit_logs(console: Console, spark: SparkSession, paths: Sequence[Path], policy: PipelinePolicy, out: Path) -> None:
    """Audit the decision logs of the brokers."""
    with console.status("  reading the decision logs"):
        log, quarantine = read_log(spark.read.text([str(path) for path in paths]))
        if not quarantine.isEmpty():
            raise SystemExit("the decision logs cannot be read")
        log.persist()
        report = audit(log, policy, since=NOW, until=NOW + timedelta(days=1), top=100)
    console.print(f"  The logs hold {report.decisions} decisions, and how many events passed under each.")
    used = sorted(report.rights_used.as_dicts(), key=lambda row: -int(str(row["events"])))
    table(console, f"Rights that were used: {len(used)}", ("issuer", "subject", "right", "decisions", "events"), used)
    if report.rights_unused is not None:
        unused = report.rights_unused.as_dicts()
        table(console, f"Rights that were not used: {len(unused)}", ("issuer", "subject", "right"), unused)
    refused = [
        {**row, "version": _version(row["resource"]), "why": reason(row["code"])} for row in report.refusals.as_dicts()
    ]
    table(console, "Refused requests", ("principal", "action", "version", "why", "decisions"), refused)
    kept = [{**row, "version": _version(row["resource"])} for row in report.kept_back.as_dicts()]
    table(console, "Events kept back", ("principal", "action", "version", "effect", "events"), kept)
    flowing = [{**row, "from": row["origin"], "to": row["target"]} for row in report.flows.as_dicts()]
    table(console, "Flows between domains", ("from", "to", "action", "decisions", "events"), flowing)
    written(console, out / "audit.html", audit_html(report, names=NAMES, title="Decisions in London", at=NOW))


def table(console: Console, title: str, columns: Iterable[str], rows: list[dict[str, object]]) -> None:
    """Print the first rows of a table of the audit, or that it has none."""
    if not rows:
        console.print(f"{title}: none")
        return
    shown = Table(title=title, title_justify="left")
    for column in columns:
        shown.add_column(column, justify="right" if column in ("decisions", "events") else "left")
    for row in rows[:_SHOWN]:
        shown.add_row(*(_cell(row[column]) for column in columns))
    console.print(shown)
    if len(rows) > _SHOWN:
        console.print(f"  and {len(rows) - _SHOWN} more, in the report")


def _version(resource: object) -> str:
    """Return which version of the type something is about, where it is about one."""
    return str(resource).partition("@")[2] or "—"


def _cell(value: object) -> str:
    if value is None:
        return "unknown"
    if isinstance(value, int | float):
        return number_text(value)
    head, space, rest = str(value).partition(" ")
    try:
        return NAMES.show(Principal.parse(head)) + space + rest
    except MalformedError:
        return str(value)


def written(console: Console, path: Path, page: str) -> None:
    """Write a report, and say where."""
    path.write_text(page, encoding="utf-8")
    console.print(f"  As a page with plots: {path}", highlight=False)
