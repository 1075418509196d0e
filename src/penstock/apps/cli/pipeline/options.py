"""The options that the commands of `penstock pipeline` share."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import click

from penstock.apps.cli.pipeline.output import done_answer, plan_answer
from penstock.apps.cli.pipeline.runs import JobOutput, execute, plan
from penstock.apps.cli.pipeline.spark_session import Cluster
from penstock.apps.cli.pipeline.spark_session import session as spark_session
from penstock.apps.cli.shared.commands import CommandAnswer, option, option_class
from penstock.apps.cli.shared.options import Duration
from penstock.errors import MalformedError
from penstock.pipeline.jobs.job import Job
from penstock.pipeline.jobs.schemes import register_schemes
from penstock.pipeline.limits import BATCH_FILES
from penstock.pipeline.outputs import Streaming
from penstock.pipeline.sealed.log import KeyFiles
from penstock.pipeline.tables.addresses import RowSink, RowSource, SinkOptions, parse_address, sink_at, source_at

# ----------------------------------------------------------------------------------------------------------------------
# How a job runs.


@option_class
class OutFolderOptions:
    """Options for the folder that a job writes."""

    out: str | None = option("--out", metavar="FOLDER", required=True, help="Write to this folder.")
    overwrite: bool = option("--overwrite", is_flag=True, help="Replace an output that exists.")
    dry_run: bool = option("--dry-run", is_flag=True, help="Show the plan and what would be read, and write nothing.")


@option_class
class ReportFolderOptions(OutFolderOptions):
    """Options for the folder that keeps the results of a report, if one is given."""

    out: str | None = option(
        "--out", metavar="FOLDER", help="Keep the results in this folder (default: show them only); a stream needs one."
    )


@option_class
class StreamOptions:
    """Options of a job that can run as a stream."""

    stream: bool = option("--stream", is_flag=True, help="Process what arrives, until stopped.")
    drain: bool = option("--drain", is_flag=True, help="Stop a stream when all present input is read.")
    files: int = option(
        "--files",
        type=click.IntRange(1, BATCH_FILES),
        default=100,
        show_default=True,
        help="Read this many files, or batches of the job before, in one batch of a stream.",
    )


@option_class
class SparkOptions:
    """Options for where Spark runs."""

    master: str = option("--master", default="local[*]", show_default=True, metavar="URL", help="Run Spark there.")
    remote: str | None = option("--remote", metavar="URL", help="Use a Spark Connect server, such as sc://host:15002.")
    conf: tuple[str, ...] = option(
        "--conf", multiple=True, metavar="NAME=VALUE", help="Set a Spark setting. Can be repeated."
    )
    spark_log: str | None = option(
        "--spark-log", metavar="FILE", help="Write the log of Spark and Java to this file (default: nowhere)."
    )

    def cluster(self) -> Cluster:
        """Return where Spark runs. Raises `MalformedError` (`cli.pair`)."""
        return Cluster(self.master, self.remote, pairs(self.conf, "--conf"), self.spark_log)


@option_class
class JobOptions:
    """Options for how a job runs: where it writes, whether it is a stream, and where Spark is."""

    folder: OutFolderOptions
    stream: StreamOptions
    spark: SparkOptions

    def run(self) -> "Run":
        """Read the options. Raises `MalformedError` (`cli.stream`, `cli.pair`)."""
        return Run.of(self.folder, self.spark, self.stream)


@option_class
class ReportJobOptions(JobOptions):
    """Options for how a job runs whose results need not be kept."""

    folder: ReportFolderOptions


@option_class
class TableOptions:
    """Options for the tables that the main rows of a job also go to."""

    to: tuple[str, ...] = option(
        "--to",
        multiple=True,
        metavar="ADDRESS",
        help="Write the rows to this table too: delta:PATH, iceberg:CATALOG#NAMESPACE.TABLE, parquet:PATH, table:NAME, "
        "kafka://HOST:PORT/TOPIC or jetstream://HOST:PORT/STREAM?subject=SUBJECT. Can be repeated.",
    )
    partition_by: tuple[str, ...] = option(
        "--partition-by",
        multiple=True,
        metavar="COLUMN",
        help="Partition a table that is created by this column. Can be repeated.",
    )

    def sinks(self, cluster: Cluster) -> tuple[RowSink, ...]:
        """Return the tables. Raises as `parse_address`, `sink_at` and `RowSink.check`."""
        if self.partition_by and not self.to:
            raise MalformedError("tables.partition", "--partition-by is for tables", hint="give a table with --to")
        register_schemes()
        found = [
            sink_at(parse_address(text, cluster.path), SinkOptions(tuple(dict.fromkeys(self.partition_by))))
            for text in self.to
        ]
        if len({sink.name for sink in found}) < len(found):
            raise MalformedError("tables.address", "a table is given twice with --to", hint="give each once")
        for sink in found:
            sink.check()
        return tuple(found)


@option_class
class TableJobOptions(JobOptions):
    """Options for how a job runs whose main rows can also go to tables."""

    tables: TableOptions

    def run(self) -> "Run":
        """Read the options. Raises as `JobOptions.run` and `TableOptions.sinks`."""
        how = Run.of(self.folder, self.spark, self.stream)
        place = None if how.place is None else replace(how.place, sinks=self.tables.sinks(how.cluster))
        return replace(how, place=place)


@dataclass(frozen=True, slots=True)
class Run:
    """How a job runs, read from the options: where it writes, and where Spark is."""

    place: JobOutput | None
    cluster: Cluster
    dry_run: bool
    overwrite: bool
    #: the folder as it was given
    out: str

    @classmethod
    def of(cls, folder: OutFolderOptions, spark: SparkOptions, stream: StreamOptions | None = None) -> "Run":
        """Read the options. Raises `MalformedError` (`cli.stream`, `cli.pair`)."""
        streaming = None
        if stream is not None:
            if stream.drain and not stream.stream:
                raise MalformedError("cli.stream", "--drain is for streams", hint="give --stream too, or leave it out")
            if stream.stream and folder.out is None:
                raise MalformedError("cli.stream", "a stream must keep its results", hint="give a folder with --out")
            streaming = Streaming(stream.files, stream.drain) if stream.stream else None
        cluster = spark.cluster()
        place = None if folder.out is None else JobOutput(cluster.path(folder.out), streaming, folder.overwrite)
        return cls(place, cluster, folder.dry_run, folder.overwrite, folder.out or "")

    def key_files(self, ring: str, kek: str) -> KeyFiles:
        """Return the key files as tasks find them. Raises what `KeyFiles.read` raises, here and not in a task."""
        found = KeyFiles(self.cluster.path(ring), self.cluster.path(kek))
        found.read()
        return found

    def source(self, text: str) -> tuple[str, RowSource | None]:
        """Return where a job reads: a path, or a table. Raises as `parse_address` and `source_at`."""
        register_schemes()
        address = parse_address(text, self.cluster.path)
        return (address.place, None) if address.is_path else (str(address), source_at(address))

    def reads(self, path: str | None) -> str | None:
        """Return the path of everything that is read, or None for a stream, in which more will arrive."""
        return None if self.streams else path

    @property
    def streams(self) -> bool:
        """Whether it is a stream."""
        return self.place is not None and self.place.streaming is not None


def run_job(job: Job, how: Run) -> CommandAnswer:
    """Run a job, or plan it, and return the answer."""
    with spark_session(how.cluster, how.reads(job.files)) as on:
        if how.dry_run or how.place is None:
            return plan_answer(job, plan(job, on.spark, how.place))
        return done_answer(job, how.out, execute(job, on, how.place))


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
    """Return the options of a stream of messages: its address, and other options. Raises as `pairs`."""
    url, stream = where
    return {"url": url, "stream": stream, **pairs(more, "--jetstream")}


# ----------------------------------------------------------------------------------------------------------------------
# Options that some of the commands share.


def dedupe_option() -> Any:
    """Declare `--dedupe`."""
    return option(
        "--dedupe",
        type=Duration(unit="m", above=0),
        metavar="DURATION",
        help="Put events aside whose source and id were there before. A stream compares those of this time, such as "
        "10m, and puts older events aside too (default: events are not compared).",
    )


def jetstream_option() -> Any:
    """Declare `--jetstream`, with more about a stream of messages."""
    return option(
        "--jetstream", multiple=True, metavar="NAME=VALUE", help="Set an option of the stream. Can be repeated."
    )


def policy_option() -> Any:
    """Declare `--policy`."""
    return option("--policy", required=True, metavar="FILE", help="Enforce this policy file.")


def engine_option() -> Any:
    """Declare `--engine`."""
    return option(
        "--engine",
        type=click.Choice(["auto", "spark", "small"]),
        default="auto",
        show_default=True,
        help="Run on Spark, or without it, which small inputs on this machine do by default.",
    )


def constants_option() -> Any:
    """Declare `--constants`."""
    return option(
        "--constants",
        type=click.Choice(["public", "hidden"]),
        help="Let Spark's plans contain what rights and filters compare with, so that files are skipped, or hide it "
        "(default: as the policy file says, otherwise public).",
    )


_RING: Final = "Read this key ring in each task."
_KEK: Final = "Decrypt the key ring with this key-encryption key, which has no passphrase."


@option_class
class KeyFilesOptions:
    """Options for the keys of a sealed log, which tasks read where they run."""

    ring_file: str = option("--ring", required=True, metavar="FILE", help=_RING)
    kek_file: str = option("--kek", required=True, metavar="FILE", help=_KEK)

    def load(self, how: Run) -> KeyFiles:
        """Return the key files. Raises as `Run.key_files`."""
        return how.key_files(self.ring_file, self.kek_file)


@option_class
class SealedInputOptions:
    """Options for the keys of the input, if it is a sealed log."""

    ring_file: str | None = option("--ring", metavar="FILE", help=f"{_RING} FOLDER is then a sealed log.")
    kek_file: str | None = option("--kek", metavar="FILE", help=_KEK)

    def load(self, how: Run) -> KeyFiles | None:
        """Return the key files, if it is a sealed log. Raises `MalformedError` (`cli.keys`)."""
        if self.ring_file is not None and self.kek_file is not None:
            return how.key_files(self.ring_file, self.kek_file)
        if self.ring_file is self.kek_file:
            return None
        raise MalformedError(
            "cli.keys", "a sealed log is read with a key ring and its key", hint="give --ring and --kek"
        )
