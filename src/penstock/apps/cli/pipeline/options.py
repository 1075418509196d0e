"""The options that the commands of `penstock pipeline` share."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import click

from penstock.apps.cli.pipeline.output import show_done, show_plan
from penstock.apps.cli.pipeline.runs import JobOutput, execute, plan
from penstock.apps.cli.pipeline.spark_session import Cluster
from penstock.apps.cli.pipeline.spark_session import session as spark_session
from penstock.errors import MalformedError
from penstock.model.limits import DEFAULT_LIMITS
from penstock.pipeline.jobs.job import Job
from penstock.pipeline.outputs.files import Streaming
from penstock.pipeline.sealed.log import KeyFiles

# ----------------------------------------------------------------------------------------------------------------------
# How a job of `penstock pipeline` runs, as the options say.


@dataclass(frozen=True, slots=True)
class Run:
    """How a job runs, as the options say: where it writes, where Spark is, and how to answer."""

    place: JobOutput | None
    cluster: Cluster
    dry_run: bool
    overwrite: bool
    output: str
    #: the folder as it was given
    out: str

    @classmethod
    def of(  # noqa: PLR0913  # one argument an option
        cls,
        output: str,
        *,
        out: str | None,
        overwrite: bool,
        dry_run: bool,
        stream: bool,
        drain: bool,
        files: int,
        **where: Any,
    ) -> "Run":
        """Read the options. Raises `MalformedError` (`cli.stream`, `cli.pair`)."""
        if drain and not stream:
            raise MalformedError("cli.stream", "--drain is for streams", hint="say --stream too, or leave it out")
        if stream and out is None:
            raise MalformedError("cli.stream", "a stream keeps what it has found", hint="say where with --out")
        streaming = Streaming(files, drain) if stream else None
        cluster = cluster_of(**where)
        place = None if out is None else JobOutput(cluster.path(out), streaming, overwrite)
        return cls(place, cluster, dry_run, overwrite, output, out or "")

    def key_files(self, ring: str, kek: str) -> KeyFiles:
        """Return where the keys are, as tasks find them. Raises what `KeyFiles.read` does, here and not in a task."""
        found = KeyFiles(self.cluster.path(ring), self.cluster.path(kek))
        found.read()
        return found

    def sealed_input(self, ring: str | None, kek: str | None) -> KeyFiles | None:
        """Return where the keys of a sealed log are, if it is one. Raises `MalformedError` (`cli.keys`)."""
        if ring is not None and kek is not None:
            return self.key_files(ring, kek)
        if ring is kek:
            return None
        raise MalformedError(
            "cli.keys", "a sealed log is read with a key ring and its key", hint="give --keys and --kek"
        )

    def reads(self, path: str | None) -> str | None:
        """Return the path of all that is read, where that is known before: more will arrive in a stream."""
        return None if self.streams else path

    @property
    def streams(self) -> bool:
        """Whether it is a stream."""
        return self.place is not None and self.place.streaming is not None


def cluster_of(*, master: str, remote: str | None, conf: tuple[str, ...], spark_log: str | None) -> Cluster:
    """Return where Spark runs. Raises `MalformedError` (`cli.pair`)."""
    return Cluster(master, remote, pairs(conf, "--conf"), spark_log)


def run_job(job: Job, how: Run) -> None:
    """Run a job, or show what it would do, and answer."""
    with spark_session(how.cluster, how.reads(job.files)) as on:
        if how.dry_run:
            show_plan(job, plan(job, on.spark, how.place), how.output)
        elif how.place is not None:
            show_done(job, how.out, execute(job, on, how.place), how.output)


def pairs(texts: tuple[str, ...], option: str) -> Mapping[str, str]:
    """Read options that are NAME=VALUE. Raises `MalformedError` (`cli.pair`)."""
    found = {}
    for text in texts:
        name, sign, value = text.partition("=")
        if not sign or not name:
            raise MalformedError("cli.pair", f"{option} `{text[:80]}` is not NAME=VALUE", hint="write name=value")
        found[name] = value
    return found


def messages_of(where: tuple[str, str], more: tuple[str, ...]) -> Mapping[str, str]:
    """Return the options of a stream of messages: where it is, and what else was said. Raises as `pairs`."""
    url, stream = where
    return {"url": url, "stream": stream, **pairs(more, "--jetstream")}


# ----------------------------------------------------------------------------------------------------------------------
# The options that the commands of `penstock pipeline` share.


F = TypeVar("F", bound=Callable[..., Any])


def spark_options(function: F) -> F:
    """Add where Spark runs."""
    for option in (
        click.option("--spark-log", metavar="FILE", help="Keep what Spark and Java say in this file."),
        click.option("--conf", multiple=True, metavar="NAME=VALUE", help="A setting of Spark; repeat it."),
        click.option("--remote", metavar="URL", help="Use a Spark Connect server, such as sc://host:15002."),
        click.option("--master", default="local[*]", show_default=True, metavar="URL", help="Where Spark runs."),
    ):
        function = option(function)
    return function


def stream_options(function: F) -> F:
    """Add `--stream`, `--drain` and `--files`."""
    for option in (
        click.option(
            "--files",
            type=click.IntRange(1, DEFAULT_LIMITS.batch_files),
            default=100,
            show_default=True,
            help="As a stream: so many files, or batches of the job before, at a time.",
        ),
        click.option("--drain", is_flag=True, help="As a stream: stop when everything is read that is there."),
        click.option("--stream", is_flag=True, help="Go on with what arrives, until stopped."),
    ):
        function = option(function)
    return function


def jetstream_options(name: str, words: str) -> Callable[[F], F]:
    """Add `--from-jetstream` or `--to-jetstream`, and `--jetstream` with more about it."""

    def decorate(function: F) -> F:
        more = click.option(
            "--jetstream", "jetstream_more", multiple=True, metavar="NAME=VALUE", help="An option of it; repeat."
        )
        return click.option(name, nargs=2, metavar="URL STREAM", help=words)(more(function))

    return decorate


def out_options(*, required: bool) -> Callable[[F], F]:
    """Add `--out`, `--overwrite` and `--dry-run`."""

    def decorate(function: F) -> F:
        words = "The folder to write." if required else "Keep what is found in this folder; a stream needs one."
        for option in (
            click.option("--dry-run", is_flag=True, help="Show the plan and what would be read, and write nothing."),
            click.option("--overwrite", is_flag=True, help="Replace an output that exists."),
            click.option("--out", metavar="FOLDER", required=required, help=words),
        ):
            function = option(function)
        return function

    return decorate


def policy_option(function: F) -> F:
    """Add `--policy`."""
    return click.option("--policy", "policy_file", required=True, metavar="FILE", help="The policy file.")(function)


def html_option(function: F) -> F:
    """Add `--html`."""
    return click.option("--html", metavar="FILE", help="Write the report as a page that needs no network.")(function)


def key_files_options(*, required: bool) -> Callable[[F], F]:
    """Add `--keys` and `--kek`, which tasks read where they run."""

    def decorate(function: F) -> F:
        log = "" if required else " FOLDER is a sealed log then."
        for option in (
            click.option(
                "--kek",
                "kek_file",
                required=required,
                metavar="FILE",
                help="The key-encryption key of the key ring, under no passphrase.",
            ),
            click.option(
                "--keys",
                "ring_file",
                required=required,
                metavar="FILE",
                help=f"A key ring, which tasks read where they run.{log}",
            ),
        ):
            function = option(function)
        return function

    return decorate
