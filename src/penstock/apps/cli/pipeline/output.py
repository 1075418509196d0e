"""Answers of the jobs of `penstock pipeline`: tables for people, JSON for programs, pages for both."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from penstock.apps.cli.pipeline.done import Done, done_data, job_answer, show_closed
from penstock.apps.cli.pipeline.runs import Planned
from penstock.apps.cli.shared.commands import CommandAnswer
from penstock.apps.cli.shared.describe import counted, instant_text
from penstock.apps.cli.shared.files import check_target, write_bytes
from penstock.apps.cli.shared.session import CommandSession
from penstock.apps.cli.shared.terminal import Shown, fact_table, grid_table
from penstock.errors import PenstockError
from penstock.model.principals import Petnames, Principal
from penstock.pipeline.audit import AuditReport, ReportTable
from penstock.pipeline.enforce.policy import PipelinePolicy
from penstock.pipeline.jobs.ingest import Ingest, MappedTables
from penstock.pipeline.jobs.job import Job
from penstock.pipeline.jobs.reports import audit_html, whatif_html
from penstock.pipeline.pages import number_text
from penstock.pipeline.whatif import PolicyComparison, VisibilityChange, listed
from penstock.trust.capabilities import Right

_PRINCIPAL: Final = re.compile(r"(?:ed25519|threshold):[a-z2-7]{51}[aq]", re.ASCII)
_CREDENTIAL: Final = re.compile(r"\bcert:[a-z2-7]{20,}", re.ASCII)
_SHOWN: Final = (
    *("rights_used", "rights_unused", "requests_made", "refusals", "kept_back", "flows"),
    *("durations", "slowest", "revocations"),
)


@dataclass(frozen=True, slots=True)
class Page:
    """A report as an HTML file, if one is wanted."""

    file: str | None
    names: Petnames
    session: CommandSession
    overwrite: bool
    #: whether a stream replaces the page after each batch
    again: bool = False

    def check(self) -> None:
        """Check early that it can be written. Raises what `check_target` raises."""
        if self.file is not None:
            check_target(self.file, overwrite=self.overwrite)

    def put(self, found: PolicyComparison | AuditReport) -> None:
        """Write it. Raises what `write_bytes` raises."""
        if self.file is None:
            return
        if isinstance(found, PolicyComparison):
            text = whatif_html(found, names=self.names, at=self.session.now)
        else:
            text = audit_html(found, names=self.names, at=self.session.now)
        write_bytes(self.file, text.encode(), overwrite=self.overwrite or self.again)


def known(names: Petnames, *policies: PipelinePolicy) -> Petnames:
    """Return the reader's own petnames, and those of policies for other principals."""
    found: dict[Principal, str] = {}
    for some in (names, *(loaded.names for loaded in policies)):
        for principal, name in some.items():
            found.setdefault(principal, name)
    return Petnames(found)


def done_answer(job: Job, out: str, done: Done) -> CommandAnswer:
    """Return the answer for a job that has run."""
    if isinstance(job, Ingest) and isinstance(job.records, MappedTables):
        return job_answer(job.name, out, done, job.records.bound.columns)
    return job_answer(job.name, out, done)


def plan_answer(job: Job, planned: Planned) -> CommandAnswer:
    """Return the answer for a job that was only planned."""
    data = {
        "job": job.name,
        "source": job.source,
        "files": planned.files,
        "bytes": planned.bytes,
        "records": planned.records,
        "plans": list(planned.plans),
    }
    return CommandAnswer(data, _show_plan(job, planned))


def _show_plan(job: Job, planned: Planned) -> Iterator[Shown]:
    sizes = [("files", planned.files), ("bytes", planned.bytes), ("records", planned.records)]
    yield fact_table(
        [("would read", job.source), *((name, f"{count:,}") for name, count in sizes if count is not None)]
    )
    for text in planned.plans:
        # The tree alone; what each node does is in the JSON.
        yield from text.partition("\n\n")[0].split("\n")


def comparison_answer(
    found: PolicyComparison, done: Done | None, names: Petnames, error: PenstockError | None = None
) -> CommandAnswer:
    """Return the answer of what-if: who gains and who loses what."""
    data = {**found.as_dict(), **({} if done is None else {"run": done_data(done)})}
    return CommandAnswer(data, _show_comparison(found, names), error)


def _show_comparison(found: PolicyComparison, names: Petnames) -> Iterator[Shown]:
    for right, who in ((Right.SUBSCRIBE, "subscriber"), (Right.PUBLISH, "publisher")):
        rows = [
            (
                _cell(c.reader.name, names) if right is Right.PUBLISH else c.reader.name,
                c.reader.type.name,
                what,
                f"{c.gained:,}",
                f"{c.lost:,}",
                _samples(c),
            )
            for c, what in listed(found.changes)
            if c.right is right
        ]
        if rows:
            yield grid_table((who, "type", "attribute", "gains", "loses", "such as"), rows)
    if not found.changes:
        yield "nothing changes"
    if found.unknown:
        yield f"the history does not tell: {', '.join(found.unknown)}; rights that ask for it count as not given"
    yield from show_closed(found.closed, found.events)
    if found.passed_over:
        others = ", ".join(f"{reader.name} ({reader.type.name})" for reader in found.passed_over)
        yield f"not compared, because the history is of other types: {others}"
    if found.unknown_type:
        yield f"{counted(found.unknown_type, 'event')} of types that neither policy has: nobody is given those"
    compared = f"{counted(len(found.readers), 'reader')} compared, and {counted(len(found.publishers), 'publisher')}"
    yield f"{counted(found.events, 'event')} under two policies, {compared}"


def _samples(change: VisibilityChange) -> str:
    return ", ".join((change.gained_samples or change.lost_samples)[:3])


def report_answer(report: AuditReport, done: Done | None, names: Petnames) -> CommandAnswer:
    """Return the answer of an audit."""
    data = {**report.as_dict(), **({} if done is None else {"run": done_data(done)})}
    return CommandAnswer(data, _show_report(report, done, names))


def _show_report(report: AuditReport, done: Done | None, names: Petnames) -> Iterator[Shown]:
    tables = report.tables()
    for name in _SHOWN:
        table = tables.get(name)
        if table is not None and table.rows:
            yield name.replace("_", " ")
            yield from show_table(table, names)
            yield ""
    if not report.revocations.rows:
        yield "no revocations in this period"
    aside = 0 if done is None else done.counts.get("quarantined", 0)
    other = "is not a decision" if aside == 1 else "are not decisions"
    rest = "" if done is None else f"; {counted(aside, 'line')} {other}"
    yield f"{counted(report.decisions, 'decision')}{rest}"


def show_table(table: ReportTable, names: Petnames) -> Iterator[Shown]:
    """Yield a table of a report."""
    yield grid_table(table.columns, [[_cell(value, names) for value in row] for row in table.rows])
    if table.more:
        yield "and more"


def _cell(value: object, names: Petnames) -> str:
    if value is None:
        return ""
    if isinstance(value, datetime):
        return instant_text(value)
    if isinstance(value, int | float):
        return number_text(value)
    text = _PRINCIPAL.sub(lambda found: names.show(Principal.parse(found[0])), str(value))
    return _CREDENTIAL.sub(lambda found: f"{found[0][:15]}…", text)
