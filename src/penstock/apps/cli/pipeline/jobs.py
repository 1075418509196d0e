"""The jobs of `penstock pipeline` on Spark, each a command."""

from datetime import datetime, timedelta
from typing import Any, Literal

import click

from penstock.apps.cli.pipeline.options import (
    Run,
    cluster_of,
    html_option,
    jetstream_options,
    key_files_options,
    messages_of,
    out_options,
    policy_option,
    run_job,
    spark_options,
    stream_options,
)
from penstock.apps.cli.pipeline.output import (
    Page,
    known,
    show_comparison,
    show_plan,
    show_quarantine,
    show_report,
)
from penstock.apps.cli.pipeline.runs import (
    admit_job,
    audit_job,
    bound_mapping,
    comparison,
    deliver_job,
    ingest_job,
    load,
    plan,
    policy_now,
    report,
    view_rows,
    whatif_job,
)
from penstock.apps.cli.pipeline.spark_session import session as spark_session
from penstock.apps.cli.shared import options
from penstock.apps.cli.shared import terminal as paint
from penstock.apps.cli.shared.credentials import load_verified_type
from penstock.apps.cli.shared.describe import counted
from penstock.apps.cli.shared.groups import example
from penstock.apps.cli.shared.names import load_names
from penstock.apps.cli.shared.options import JSON
from penstock.apps.cli.shared.session import CommandSession, say, say_json
from penstock.errors import MalformedError, RefusedError
from penstock.model.instants import parse_end, parse_instant
from penstock.model.limits import DEFAULT_LIMITS
from penstock.pipeline.audit import AuditReport
from penstock.pipeline.enforce.layout import Layout
from penstock.pipeline.jobs.quarantine import open_quarantine
from penstock.pipeline.jobs.reports import ReportOptions, audited
from penstock.pipeline.whatif import fails_on


@click.command()
@click.argument("source", required=False, metavar="[PATH]")
@click.option("--mapping", metavar="FILE", help="A mapping file, for CSV and Parquet.")
@click.option("--policy", "policy_file", metavar="FILE", help="For CloudEvents: a policy file, for its types.")
@click.option(
    "--type-file", "type_files", multiple=True, metavar="FILE", help="For CloudEvents: a signed type; repeat."
)
@options.shelf_options
@jetstream_options("--from-jetstream", "Read messages in place of files.")
@out_options(required=True)
@stream_options
@spark_options
@options.output_option()
@click.pass_obj
@example(
    """
penstock pipeline ingest meter.csv --mapping meter.toml --out ingested
penstock pipeline ingest events/ --policy policy.toml --out ingested --stream
"""
)
def ingest(  # noqa: PLR0913  # one argument an option
    session: CommandSession,
    /,
    *,
    source: str | None,
    mapping: str | None,
    policy_file: str | None,
    type_files: tuple[str, ...],
    parent: tuple[str, ...],
    previous: tuple[str, ...],
    from_jetstream: tuple[str, str] | None,
    jetstream_more: tuple[str, ...],
    output: str,
    **rest: Any,
) -> None:
    """Turn records into typed events; what does not fit goes to quarantine with the reason and its original bytes.

    Files are JSON lines of CloudEvents, or with a mapping CSV and Parquet. As many records go in as events and
    quarantined records come out; this is checked, and printed.
    """
    messages = None if from_jetstream is None else messages_of(from_jetstream, jetstream_more)
    bound = None if mapping is None else bound_mapping(mapping, parent, previous, session)
    types = tuple(load_verified_type(file, parent, previous, session.now)[0] for file in type_files)
    if policy_file is not None:
        types += load(policy_file, session).types
    if bound is None and not types:
        raise MalformedError(
            "cli.type-file",
            "ingest needs to know the event types",
            hint="give --mapping for CSV and Parquet, --policy or --type-file for CloudEvents",
        )
    how = Run.of(output, **rest)
    path = None if source is None else how.cluster.path(source)
    run_job(ingest_job(session, path=path, types=types, bound=bound, messages=messages), how)


@click.command()
@click.argument("source", metavar="FOLDER")
@key_files_options(required=False)
@policy_option
@out_options(required=True)
@stream_options
@spark_options
@options.output_option()
@click.pass_obj
@example("penstock pipeline admit ingested --policy policy.toml --out admitted")
def admit(  # noqa: PLR0913  # one argument an option
    session: CommandSession,
    /,
    *,
    source: str,
    policy_file: str,
    ring_file: str | None,
    kek_file: str | None,
    output: str,
    **rest: Any,
) -> None:
    """Let in what publishers may publish: forced values are set, what they may not set is taken away.

    FOLDER is what `ingest` wrote. Every event is admitted or refused, with the reason; each publisher's decision is
    recorded in `decisions/`, with how many events it let through.
    """
    how = Run.of(output, **rest)
    run_job(
        admit_job(session, how.cluster.path(source), policy_file, how.sealed_input(ring_file, kek_file)),
        how,
    )


@click.command()
@click.argument("source", metavar="FOLDER")
@key_files_options(required=False)
@policy_option
@click.option(
    "--layout",
    type=click.Choice([layout.value for layout in Layout]),
    default="program",
    show_default=True,
    help="Rows that readers with equal rights share, or a folder for each reader.",
)
@out_options(required=True)
@stream_options
@spark_options
@options.output_option()
@click.pass_obj
@example("penstock pipeline deliver admitted --policy policy.toml --out delivered")
def deliver(  # noqa: PLR0913  # one argument an option
    session: CommandSession,
    /,
    *,
    source: str,
    policy_file: str,
    layout: str,
    ring_file: str | None,
    kek_file: str | None,
    output: str,
    **rest: Any,
) -> None:
    """Give all subscribers of a policy what they may see, in one pass over the events.

    FOLDER is what `admit` or `ingest` wrote. `penstock pipeline view` opens the result for one subscriber.
    """
    how = Run.of(output, **rest)
    keys = how.sealed_input(ring_file, kek_file)
    run_job(deliver_job(session, how.cluster.path(source), policy_file, Layout(layout), keys), how)


@click.command()
@click.argument("folder", metavar="FOLDER")
@click.argument("subscriber", metavar="SUBSCRIBER")
@click.option("--limit", type=click.IntRange(1, 10_000), default=20, show_default=True, help="So many rows at most.")
@spark_options
@options.output_option()
@example("penstock pipeline view delivered statistics")
def view(*, folder: str, subscriber: str, limit: int, output: str, **where: Any) -> None:
    """Show what one subscriber got, under the names of its own version of the type.

    FOLDER is what `deliver` wrote. Attributes that the subscriber may not see are empty.
    """
    cluster = cluster_of(**where)
    with spark_session(cluster, cluster.path(folder)) as on:
        columns, rows, whole = view_rows(on.spark, cluster.path(folder), subscriber, limit)
    if output == JSON:
        found = [dict(zip(columns, row, strict=True)) for row in rows]
        say_json({"subscriber": subscriber, "rows": whole, "events": found})
        return
    paint.grid(columns, [["" if value is None else str(value) for value in row] for row in rows])
    say(counted(whole, "event") if whole == len(rows) else f"{len(rows):,} of {counted(whole, 'event')}")


@click.command()
@click.argument("folder", metavar="FOLDER")
@click.option("--samples", type=click.IntRange(1, 100), default=3, show_default=True, help="Records of each reason.")
@spark_options
@options.output_option()
@example("penstock pipeline quarantine ingested --samples 5")
def quarantine(*, folder: str, samples: int, output: str, **where: Any) -> None:
    """Show what did not fit: how many records for each reason, and the beginning of some of them.

    FOLDER is what `ingest` or `conflicts` wrote, or `audit` with --out. Bytes that are no text, or would do something
    to a terminal, are escaped. A quarantine holds whole records: guard it like the input.
    """
    cluster = cluster_of(**where)
    with spark_session(cluster, cluster.path(folder)) as on:
        found = open_quarantine(on.spark, cluster.path(folder), samples)
    show_quarantine(found, output)


@click.command()
@click.argument("source", metavar="FOLDER")
@key_files_options(required=False)
@click.option("--before", required=True, metavar="FILE", help="The policy file as it is.")
@click.option("--after", required=True, metavar="FILE", help="The policy file as it would be.")
@click.option("--samples", type=click.IntRange(1, 100), default=5, show_default=True, help="Ids that a change names.")
@click.option("--fail-on", type=click.Choice(["gain", "loss", "any"]), help="Exit with 1 if there is such a change.")
@html_option
@out_options(required=False)
@stream_options
@spark_options
@options.output_option()
@options.names_option
@click.pass_obj
@example(
    """
penstock pipeline whatif ingested --before policy.toml --after proposal.toml --fail-on gain --html change.html
"""
)
def whatif(  # noqa: PLR0913  # one argument an option
    session: CommandSession,
    /,
    *,
    source: str,
    before: str,
    after: str,
    samples: int,
    ring_file: str | None,
    kek_file: str | None,
    fail_on: Literal["gain", "loss", "any"] | None,
    html: str | None,
    output: str,
    names_file: str | None,
    **rest: Any,
) -> None:
    """Compare two policies on a history: who gains and who loses which attributes, on how many events.

    FOLDER is what `ingest` or `admit` wrote. Readers are compared by what they would see of it, and publishers by what
    they might put in; what `admit` refused by the policy of then is not in what it wrote. Values of attributes stand
    nowhere in the answer, ids of events do.
    """
    how = Run.of(output, **rest)
    keys = how.sealed_input(ring_file, kek_file)
    job = whatif_job(session, how.cluster.path(source), (before, after), samples, keys)
    old, new = job.watched.policies
    page = Page(html, known(load_names(names_file).petnames, new, old), session, how.overwrite)
    page.check()
    with spark_session(how.cluster, how.reads(job.files)) as on:
        if how.dry_run:
            show_plan(job, plan(job, on.spark, how.place), output)
            return
        found, done = comparison(job, on, how.place)
    page.put(found)
    show_comparison(found, done, page.names, output)
    if fail_on is not None and fails_on(found, fail_on):
        raise RefusedError("whatif.changes", f"the change has what it must not have: {fail_on}", hint="see the table")


@click.command()
@click.argument("source", metavar="LOG")
@click.option("--policy", "policy_file", metavar="FILE", help="A policy file, to find the rights that are not used.")
@click.option("--since", metavar="TIME", help="Only decisions from this time on.")
@click.option("--until", metavar="TIME", help="Only decisions until this time; a date alone includes that day.")
@click.option("--top", type=click.IntRange(1, 1_000), default=20, show_default=True, help="Rows of a table.")
@click.option(
    "--hours",
    type=click.IntRange(1, DEFAULT_LIMITS.record_hours),
    default=1,
    show_default=True,
    help="How long a period is.",
)
@html_option
@out_options(required=False)
@stream_options
@spark_options
@options.output_option()
@options.names_option
@click.pass_obj
@example("penstock pipeline audit admitted --policy policy.toml --html audit.html")
def audit(  # noqa: PLR0913  # one argument an option
    session: CommandSession,
    /,
    *,
    source: str,
    policy_file: str | None,
    since: str | None,
    until: str | None,
    top: int,
    hours: int,
    html: str | None,
    output: str,
    names_file: str | None,
    **rest: Any,
) -> None:
    """Report which rights are used and which are not, who is refused, and what flows from domain to domain.

    LOG is a folder or a file of decision records, or what `admit` or `deliver` wrote. As a stream, the page is written
    again after each batch, by the policy as it is then.
    """
    how = Run.of(output, **rest)
    policy = policy_now(policy_file, session)
    loaded = policy()
    question = ReportOptions(_moment(since), _end(until), top, timedelta(hours=hours))
    names = known(load_names(names_file).petnames, *(() if loaded is None else (loaded,)))
    page = Page(html, names, session, how.overwrite, again=how.streams)
    page.check()
    found: list[AuditReport] = []

    def on_report(made: AuditReport) -> None:
        found[:] = [made]
        page.put(made)

    path = how.cluster.path(source)
    with spark_session(how.cluster, how.reads(path)) as on:
        job = audit_job(on.spark, path)
        if how.dry_run:
            show_plan(job, plan(job, on.spark, how.place), output)
            return
        done = report(job, on, how.place, policy, question, on_report)
        if not found and how.place is not None:
            # A stream that found nothing new.
            on_report(audited(on.spark, how.place.out, policy(), question))
    show_report(found[0], done, names, output)


def _moment(text: str | None) -> datetime | None:
    return None if text is None else parse_instant(text)


def _end(text: str | None) -> datetime | None:
    """Return the first instant after an end: decisions are looked at before it."""
    if text is None:
        return None
    end = parse_end(text)
    return end if end == parse_instant(text) else end + timedelta(seconds=1)
