"""The commands of `penstock pipeline` that run jobs on Spark."""

from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial

import click

from penstock.apps.cli.pipeline.done import Page, comparison_answer, known, quarantine_answer, view_answer
from penstock.apps.cli.pipeline.options import (
    ReportJobOptions,
    SealedInputOptions,
    SparkOptions,
    TableJobOptions,
    constants_option,
    dedupe_option,
    engine_option,
    jetstream_option,
    messages_of,
    policy_option,
    run_job,
)
from penstock.apps.cli.pipeline.output import plan_answer, report_answer
from penstock.apps.cli.pipeline.runs import (
    AuditRun,
    admit_job,
    audit_job,
    clock,
    comparison,
    deliver_job,
    ingest_job,
    load,
    plan,
    policy_now,
    view_rows,
    whatif_job,
)
from penstock.apps.cli.pipeline.small import bound_mapping
from penstock.apps.cli.pipeline.spark_session import session as spark_session
from penstock.apps.cli.policy.files import read_root
from penstock.apps.cli.shared.commands import CommandAnswer, argument, command, option, option_class, output_option
from penstock.apps.cli.shared.files import read_bytes, within
from penstock.apps.cli.shared.options import AtOption, NamesOption, ShelfOptions, html_option
from penstock.apps.cli.shared.session import CommandSession
from penstock.errors import MalformedError
from penstock.model.instants import parse_end, parse_instant
from penstock.pipeline.audit import AuditReport
from penstock.pipeline.comparison import FailOn, whatif_html
from penstock.pipeline.conflicts.input import InputTable, StorageFormat
from penstock.pipeline.enforce.layout import Layout
from penstock.pipeline.enforce.policy import ConstantsIn
from penstock.pipeline.evaluate import TablePolicies, read_request_mapping
from penstock.pipeline.jobs.enforce import no_layout
from penstock.pipeline.jobs.evaluate import Evaluate
from penstock.pipeline.jobs.reports import ReportOptions, audit_html, open_quarantine
from penstock.pipeline.limits import RECORD_HOURS


@option_class
class _Ingest:
    source: str | None = argument(required=False, metavar="[PATH]")
    mapping: str | None = option("--mapping", metavar="FILE", help="Read CSV and Parquet by this mapping file.")
    policy_file: str | None = option(
        "--policy", metavar="FILE", help="Take the types of CloudEvents from this policy file."
    )
    type_files: tuple[str, ...] = option(
        "--type-file", multiple=True, metavar="FILE", help="Read a signed type of CloudEvents. Can be repeated."
    )
    shelf: ShelfOptions
    from_jetstream: tuple[str, str] | None = option(
        "--from-jetstream", nargs=2, metavar="URL STREAM", help="Read messages instead of files."
    )
    jetstream_more: tuple[str, ...] = jetstream_option()
    dedupe: float | None = dedupe_option()
    job: TableJobOptions
    engine: str = engine_option()
    output: str = output_option()


@command(
    example="""
penstock pipeline ingest meter.csv --mapping meter.toml --out ingested
penstock pipeline ingest events/ --policy policy.toml --out ingested --stream
"""
)
def ingest(session: CommandSession, options: _Ingest) -> CommandAnswer:
    """Turn records into typed events. Records that do not fit go to quarantine with the reason and the original bytes.

    Files are JSON lines of CloudEvents, or with a mapping CSV and Parquet. PATH can also be a table, which
    needs a mapping: delta:PATH, iceberg:CATALOG#NAMESPACE.TABLE, parquet:PATH or table:NAME. It can be a topic or
    stream of CloudEvents: kafka://HOST:PORT/TOPIC or jetstream://HOST:PORT/STREAM. The command checks that the numbers
    of events and quarantined records add up to the records read, and prints them.
    """
    messages = None if options.from_jetstream is None else messages_of(options.from_jetstream, options.jetstream_more)
    bound = None if options.mapping is None else bound_mapping(options.mapping, options.shelf, session)
    types = tuple(options.shelf.verified(file, session.now)[0] for file in options.type_files)
    if options.policy_file is not None:
        types += load(options.policy_file, session).types
    if bound is None and not types:
        raise MalformedError(
            "cli.type-file",
            "ingest needs to know the event types",
            hint="give --mapping for CSV and Parquet, --policy or --type-file for CloudEvents",
        )
    how = options.job.run()
    path, table = (None, None) if options.source is None else how.source(options.source)
    job = ingest_job(session, path=path, types=types, bound=bound, messages=messages, table=table)
    return run_job(replace(job, dedupe=_span(options.dedupe)), how)


def _span(seconds: float | None) -> timedelta | None:
    return None if seconds is None else timedelta(seconds=seconds)


@option_class
class _Admit:
    source: str = argument(metavar="FOLDER")
    keys: SealedInputOptions
    policy_file: str = policy_option()
    dedupe: float | None = dedupe_option()
    job: TableJobOptions
    engine: str = engine_option()
    output: str = output_option()


@command(example="penstock pipeline admit ingested --policy policy.toml --out admitted")
def admit(session: CommandSession, options: _Admit) -> CommandAnswer:
    """Admit the events that publishers may publish: set forced values, and remove attributes they may not set.

    FOLDER is what `ingest` wrote, or a table of events, such as delta:PATH. Every event is admitted or refused,
    with the reason. With --dedupe, an event whose source and id were admitted before is refused too. Each
    publisher's decision is recorded in `decisions/`, with the number of events that it admitted.
    """
    how = options.job.run()
    return run_job(
        admit_job(
            session,
            how.source(options.source),
            options.policy_file,
            options.keys.load(how),
            dedupe=_span(options.dedupe),
        ),
        how,
    )


@option_class
class _Deliver:
    source: str = argument(metavar="FOLDER")
    keys: SealedInputOptions
    policy_file: str = policy_option()
    layout: str = option(
        "--layout",
        type=click.Choice([layout.value for layout in Layout]),
        default="program",
        show_default=True,
        help="Write rows that readers with equal rights share, or a folder for each reader.",
    )
    reader: str | None = option(
        "--reader", metavar="NAME", help="Deliver to this subscriber only (default: to all of them)."
    )
    constants: ConstantsIn | None = constants_option()
    job: TableJobOptions
    engine: str = engine_option()
    output: str = output_option()


@command(example="penstock pipeline deliver admitted --policy policy.toml --out delivered")
def deliver(session: CommandSession, options: _Deliver) -> CommandAnswer:
    """Write for all subscribers of a policy what they may see, in one pass over the events.

    FOLDER is what `admit` or `ingest` wrote, or a table of events, such as delta:PATH. `penstock pipeline view`
    opens the result for one subscriber. With --to the rows of all subscribers go to one table, which says in the
    column `subscriber` whose row it is. Partitions and parts of files that nobody may see are not read, unless
    constants are hidden.
    """
    how = options.job.run()
    keys = options.keys.load(how)
    layout, to = Layout(options.layout), bool(options.job.tables.to)
    if to and layout is not Layout.PROGRAM:
        raise no_layout()
    source = how.source(options.source)
    job = deliver_job(
        session, source, options.policy_file, layout, keys, reader=options.reader, constants=options.constants
    )
    return run_job(job, how)


@option_class
class _View:
    folder: str = argument(metavar="FOLDER")
    subscriber: str = argument(metavar="SUBSCRIBER")
    limit: int = option(
        "--limit", type=click.IntRange(1, 10_000), default=20, show_default=True, help="Show at most this many rows."
    )
    spark: SparkOptions
    engine: str = engine_option()
    output: str = output_option()


@command(example="penstock pipeline view delivered statistics")
def view(options: _View) -> CommandAnswer:
    """Show what one subscriber received, with the attribute names of its own version of the type.

    FOLDER is what `deliver` wrote. Attributes that the subscriber may not see are empty.
    """
    cluster = options.spark.cluster()
    with spark_session(cluster, cluster.path(options.folder)) as on:
        columns, rows, whole = view_rows(on.spark, cluster.path(options.folder), options.subscriber, options.limit)
    return view_answer(options.subscriber, columns, rows, whole)


@option_class
class _Quarantine:
    folder: str = argument(metavar="FOLDER")
    samples: int = option(
        "--samples",
        type=click.IntRange(1, 100),
        default=3,
        show_default=True,
        help="Show this many records of each reason.",
    )
    spark: SparkOptions
    engine: str = engine_option()
    output: str = output_option()


@command(example="penstock pipeline quarantine ingested --samples 5")
def quarantine(options: _Quarantine) -> CommandAnswer:
    """Show what did not fit: the number of records for each reason, and the beginning of some of them.

    FOLDER is what `ingest` or `conflicts` wrote, or `audit` with --out. Bytes that are not text, or that would affect a
    terminal, are escaped. A quarantine holds whole records: protect it like the input.
    """
    cluster = options.spark.cluster()
    with spark_session(cluster, cluster.path(options.folder)) as on:
        found = open_quarantine(on.spark, cluster.path(options.folder), options.samples)
    return quarantine_answer(found)


@option_class
class _Whatif:
    source: str = argument(metavar="FOLDER")
    keys: SealedInputOptions
    before: str = option("--before", required=True, metavar="FILE", help="Read the policy file as it is.")
    after: str = option("--after", required=True, metavar="FILE", help="Read the policy file as it would be.")
    samples: int = option(
        "--samples",
        type=click.IntRange(1, 100),
        default=5,
        show_default=True,
        help="Name at most this many event ids for a change.",
    )
    fail_on: FailOn | None = option(
        "--fail-on",
        type=click.Choice(["gain", "loss", "any"]),
        help="Exit with 1 if there is such a change (default: exit with 0).",
    )
    constants: ConstantsIn | None = constants_option()
    html: str | None = html_option()
    job: ReportJobOptions
    engine: str = engine_option()
    output: str = output_option()
    names: NamesOption


@command(
    example="""
penstock pipeline whatif ingested --before policy.toml --after proposal.toml --fail-on gain --html change.html
"""
)
def whatif(session: CommandSession, options: _Whatif) -> CommandAnswer:
    """Compare two policies on a history: who gains and who loses which attributes, on how many events.

    FOLDER is what `ingest` or `admit` wrote, or a table of events, such as delta:PATH. Readers are compared by what
    they would see, and publishers by what they could publish. Events that `admit` refused by the earlier policy are
    not in its output. The report contains ids of events, and no attribute values.
    """
    how = options.job.run()
    keys = options.keys.load(how)
    files = options.before, options.after
    job = whatif_job(session, how.source(options.source), files, options.samples, keys, constants=options.constants)
    old, new = job.watched.policies
    page = Page(options.html, known(options.names.load().petnames, new, old), session, how.overwrite)
    page.check()
    with spark_session(how.cluster, how.reads(job.files)) as on:
        if how.dry_run:
            return plan_answer(job, plan(job, on.spark, how.place))
        found, done = comparison(job, on, how.place)
    page.put(partial(whatif_html, found))
    return comparison_answer(found, done, page.names, options.fail_on)


@option_class
class _Audit:
    source: str = argument(metavar="LOG")
    policy_file: str | None = option("--policy", metavar="FILE", help="Find unused rights by this policy file.")
    since: str | None = option(
        "--since", metavar="TIME", help="Report only decisions from this time on (default: all)."
    )
    until: str | None = option(
        "--until",
        metavar="TIME",
        help="Report only decisions until this time; a date alone includes that day (default: all).",
    )
    limit: int = option(
        "--limit",
        type=click.IntRange(1, 1_000),
        default=20,
        show_default=True,
        help="Show at most this many rows of a table.",
    )
    hours: int = option(
        "--hours",
        type=click.IntRange(1, RECORD_HOURS),
        default=1,
        show_default=True,
        help="Set the length of a period.",
    )
    html: str | None = html_option()
    job: ReportJobOptions
    output: str = output_option()
    names: NamesOption


@command(example="penstock pipeline audit admitted --policy policy.toml --html audit.html")
def audit(session: CommandSession, options: _Audit) -> CommandAnswer:
    """Report which rights are used and which are not, who is refused, and what flows from domain to domain.

    LOG is a folder or a file of decision records, or what `admit` or `deliver` wrote. It can also be a table with the
    records in a column `value`, such as delta:PATH, or messages: kafka://HOST:PORT/TOPIC. As a stream, the page is
    rewritten after each batch, by the policy at that time.
    """
    how = options.job.run()
    policy = policy_now(options.policy_file, session)
    loaded = policy()
    question = ReportOptions(_moment(options.since), _end(options.until), options.limit, timedelta(hours=options.hours))
    names = known(options.names.load().petnames, *(() if loaded is None else (loaded,)))
    page = Page(options.html, names, session, how.overwrite, again=how.streams)
    page.check()
    found: list[AuditReport] = []

    def on_report(made: AuditReport) -> None:
        found[:] = [made]
        page.put(partial(audit_html, made))

    source = how.source(options.source)
    with spark_session(how.cluster, how.reads(source[0] if source[1] is None else source[1].files)) as on:
        job = audit_job(on.spark, source)
        if how.dry_run:
            return plan_answer(job, plan(job, on.spark, how.place))
        run = AuditRun(policy, question, on_report)
        done = run.run(job, on, how.place)
        if not found and how.place is not None:
            # A stream found nothing new.
            run.report(on.spark, how.place.out)
    return report_answer(found[0], done, names)


def _moment(text: str | None) -> datetime | None:
    return None if text is None else parse_instant(text)


def _end(text: str | None) -> datetime | None:
    """Return the first instant after an end: the audit covers decisions before it."""
    if text is None:
        return None
    end = parse_end(text)
    return end if end == parse_instant(text) else end + timedelta(seconds=1)


# ----------------------------------------------------------------------------------------------------------------------
# `penstock pipeline evaluate`: decide every request of a table by attribute-based policies.


@option_class
class _Evaluate:
    source: str = argument(metavar="TABLE")
    mapping_file: str = option(
        "--mapping", required=True, metavar="FILE", help="Read from this file which column is which attribute."
    )
    policy_file: str = option(
        "--policy", required=True, metavar="FILE", help="Decide by this policy or policy set: XML, JSON or text."
    )
    referred: tuple[str, ...] = option(
        "--refer", multiple=True, metavar="FILE", help="Read a policy that it refers to. Can be repeated."
    )
    written: str | None = option(
        "--format",
        type=click.Choice([one.value for one in StorageFormat]),
        help="Read the table in this format (default: by the name's ending, or Parquet).",
    )
    log: bool = option("--log", is_flag=True, help="Record each decision, as the decision service does.")
    at: AtOption
    job: TableJobOptions
    output: str = output_option()


@command(
    example="""
penstock pipeline evaluate requests.parquet --mapping requests.toml --policy records.policy --out decided
penstock pipeline evaluate arriving/ --format json --mapping requests.toml --policy root.xml --refer records.xml \\
    --log --out decided --stream
"""
)
def evaluate(session: CommandSession, options: _Evaluate) -> CommandAnswer:
    """Decide every request in a TABLE: Parquet, CSV with a header, or JSON lines, with one request in each row.

    TABLE can also be delta:PATH, iceberg:CATALOG#NAMESPACE.TABLE, parquet:PATH or table:NAME.

    Each row is written with the decision, the status code, obligations and advice, the policies that applied, and the
    revision of the policies. The command checks that it writes as many rows as it reads, and prints the numbers. Values
    that cannot be read make a row Indeterminate; a table that cannot be read stops the job.
    """
    how = options.job.run()
    data = read_bytes(options.mapping_file)
    with within(options.mapping_file):
        columns = read_request_mapping(data)
    policies = TablePolicies(read_root(options.policy_file), tuple(read_root(file) for file in options.referred))
    path, stored = how.source(options.source)
    table = InputTable.at(path, None if options.written is None else StorageFormat(options.written), stored)
    moment = options.at.moment(session)

    def fixed() -> datetime:
        return moment

    identity = session.random(16).hex() if options.log else None
    return run_job(
        Evaluate(table, columns, policies, clock(session) if options.at.at is None else fixed, identity),
        how,
    )
