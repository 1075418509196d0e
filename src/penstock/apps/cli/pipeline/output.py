"""Answers of the jobs of `penstock pipeline` that only Spark runs: tables for people, and JSON for programs."""

from collections.abc import Iterator
from typing import Final

from penstock.apps.cli.pipeline.done import Done, done_data, job_answer, shown_cell
from penstock.apps.cli.pipeline.runs import Planned
from penstock.apps.cli.shared.commands import CommandAnswer
from penstock.apps.cli.shared.describe import counted
from penstock.apps.cli.shared.terminal import Shown, fact_table, grid_table
from penstock.model.principals import Petnames
from penstock.pipeline.audit import AuditReport, ReportTable
from penstock.pipeline.jobs.ingest import Ingest, MappedTables
from penstock.pipeline.jobs.job import Job

_SHOWN: Final = (
    *("rights_used", "rights_unused", "requests_made", "refusals", "kept_back", "flows"),
    *("durations", "slowest", "revocations"),
)


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
    yield grid_table(table.columns, [[shown_cell(value, names) for value in row] for row in table.rows])
    if table.more:
        yield "and more"
