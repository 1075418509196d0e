"""The commands of `penstock pipeline` without Spark, for small inputs on this machine. They import no Spark.

They have the options that the small engine needs. A command line with any other is for the command of the same name in
`jobs`, and so is what the small engine cannot do.
"""

import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Protocol

import click

from penstock.apps.cli.pipeline.done import (
    Done,
    Page,
    comparison_answer,
    job_answer,
    known,
    quarantine_answer,
    shown_value,
    view_answer,
)
from penstock.apps.cli.shared.commands import CommandAnswer, argument, command, option, option_class, output_option
from penstock.apps.cli.shared.files import read_bytes, within
from penstock.apps.cli.shared.options import NamesOption, ShelfOptions, html_option
from penstock.apps.cli.shared.session import CommandSession
from penstock.pipeline.commits import Said
from penstock.pipeline.comparison import FailOn, whatif_html
from penstock.pipeline.enforce.manifest import Layout
from penstock.pipeline.enforce.policy import RecordingPolicy, load_policy
from penstock.pipeline.ingest.mapping import BoundMapping, naming_type, read_mapping
from penstock.pipeline.small.folders import NotSmallError, read_commits
from penstock.pipeline.small.jobs import SmallAdmit, SmallDeliver, SmallIngest, local_path, open_quarantine, view_rows
from penstock.pipeline.small.whatif import SmallWhatIf


class _SmallJob(Protocol):
    def run(self, out: Path, *, overwrite: bool) -> Said:
        """Run the job, and return the description of its batch."""


@option_class
class _Place:
    out: str = option("--out", metavar="FOLDER", required=True, help="Write to this folder.")
    overwrite: bool = option("--overwrite", is_flag=True, help="Replace an output that exists.")
    engine: str = option("--engine", default="auto", help="Choose the engine.")
    output: str = output_option()

    def run(self, name: str, job: _SmallJob, columns: tuple[str, ...] = ()) -> CommandAnswer:
        """Run a job, and return the answer."""
        started = time.monotonic()
        out = local_path(self.out)
        job.run(out, overwrite=self.overwrite)
        said = list(read_commits(out).values())
        seconds = time.monotonic() - started
        done = Done.of(said, 1, seconds, 0)
        return job_answer(name, self.out, replace(done, rate=round(done.counts.get("read", 0) / seconds)), columns)


@option_class
class _Ingest:
    source: str = argument(metavar="PATH")
    mapping: str | None = option("--mapping", metavar="FILE", help="Read CSV and Parquet by this mapping file.")
    policy_file: str | None = option("--policy", metavar="FILE", help="Take the types from this policy file.")
    type_files: tuple[str, ...] = option("--type-file", multiple=True, metavar="FILE", help="Read a signed type.")
    shelf: ShelfOptions
    place: _Place


@command()
def ingest(session: CommandSession, options: _Ingest) -> CommandAnswer:
    """Turn records into typed events."""
    path = local_path(options.source)
    bound = None if options.mapping is None else bound_mapping(options.mapping, options.shelf, session)
    types = tuple(options.shelf.verified(one, session.now)[0] for one in options.type_files)
    if options.policy_file is not None:
        types += load_policy(options.policy_file, session.now).types
    if bound is None and not types:
        raise NotSmallError("the event types are not known")
    job = SmallIngest(path, tuple(one.event_type for one in types), bound, _clock(session))
    return options.place.run("ingest", job, () if bound is None else bound.columns)


def bound_mapping(file: str, shelf: ShelfOptions, session: CommandSession) -> BoundMapping:
    """Read a mapping file, and the type that it names. Raises what reading and verifying raise."""
    data = read_bytes(file)
    with within(file):
        mapping = read_mapping(data)
    type_file = str(Path(file).parent / mapping.type_file)
    with naming_type(file):
        read_bytes(type_file)
    verified, _ = shelf.verified(type_file, session.now)
    with within(file):
        return mapping.bind(verified)


def _clock(session: CommandSession) -> Callable[[], datetime]:
    started = time.monotonic()
    return lambda: session.now + timedelta(seconds=time.monotonic() - started)


def _desk(file: str, job: str, session: CommandSession) -> RecordingPolicy:
    return RecordingPolicy.of(
        load_policy(file, session.now),
        f"penstock-pipeline/{job}",
        clock=_clock(session),
        timer=time.perf_counter_ns,
        ids=lambda: session.random(16).hex(),
    )


@option_class
class _Admit:
    source: str = argument(metavar="FOLDER")
    policy_file: str = option("--policy", required=True, metavar="FILE", help="Enforce this policy file.")
    place: _Place


@command()
def admit(session: CommandSession, options: _Admit) -> CommandAnswer:
    """Admit the events that publishers may publish."""
    path = local_path(options.source)
    return options.place.run("admit", SmallAdmit(path, _desk(options.policy_file, "admit", session)))


@option_class
class _Deliver:
    source: str = argument(metavar="FOLDER")
    policy_file: str = option("--policy", required=True, metavar="FILE", help="Enforce this policy file.")
    layout: str = option(
        "--layout", type=click.Choice([one.value for one in Layout]), default="program", help="Layout."
    )
    reader: str | None = option("--reader", metavar="NAME", help="Deliver to this subscriber only.")
    place: _Place


@command()
def deliver(session: CommandSession, options: _Deliver) -> CommandAnswer:
    """Write for all subscribers of a policy what they may see."""
    path = local_path(options.source)
    desk = _desk(options.policy_file, "deliver", session)
    return options.place.run("deliver", SmallDeliver(path, desk, Layout(options.layout), options.reader))


@option_class
class _View:
    folder: str = argument(metavar="FOLDER")
    subscriber: str = argument(metavar="SUBSCRIBER")
    limit: int = option("--limit", type=click.IntRange(1, 10_000), default=20, help="Show at most this many rows.")
    engine: str = option("--engine", default="auto", help="Choose the engine.")
    output: str = output_option()


@command()
def view(options: _View) -> CommandAnswer:
    """Show what one subscriber received."""
    columns, rows = view_rows(local_path(options.folder), options.subscriber)
    return view_answer(
        options.subscriber, columns, [[shown_value(v) for v in row] for row in rows[: options.limit]], len(rows)
    )


@option_class
class _Quarantine:
    folder: str = argument(metavar="FOLDER")
    samples: int = option("--samples", type=click.IntRange(1, 100), default=3, help="Show this many of each reason.")
    engine: str = option("--engine", default="auto", help="Choose the engine.")
    output: str = output_option()


@command()
def quarantine(options: _Quarantine) -> CommandAnswer:
    """Show what did not fit."""
    return quarantine_answer(open_quarantine(local_path(options.folder), options.samples))


@option_class
class _Whatif:
    source: str = argument(metavar="FOLDER")
    before: str = option("--before", required=True, metavar="FILE", help="Read the policy file as it is.")
    after: str = option("--after", required=True, metavar="FILE", help="Read the policy file as it would be.")
    samples: int = option("--samples", type=click.IntRange(1, 100), default=5, help="Name this many event ids.")
    fail_on: FailOn | None = option("--fail-on", type=click.Choice(["gain", "loss", "any"]), help="Exit with 1 then.")
    html: str | None = html_option()
    overwrite: bool = option("--overwrite", is_flag=True, help="Replace a page that exists.")
    engine: str = option("--engine", default="auto", help="Choose the engine.")
    output: str = output_option()
    names: NamesOption


@command()
def whatif(session: CommandSession, options: _Whatif) -> CommandAnswer:
    """Compare two policies on a history."""
    path = local_path(options.source)
    before, after = (load_policy(file, session.now) for file in (options.before, options.after))
    job = SmallWhatIf(path, before, after, options.samples)
    page = Page(options.html, known(options.names.load().petnames, after, before), session, options.overwrite)
    page.check()
    found = job.compare()
    page.put(partial(whatif_html, found))
    return comparison_answer(found, None, page.names, options.fail_on)
