"""How a job of `penstock pipeline` runs, as the options say."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from penstock.apps.cli.pipeline_answers import show_done, show_plan
from penstock.apps.cli.pipeline_runs import Place, execute, plan
from penstock.apps.cli.pipeline_spark import Cluster
from penstock.apps.cli.pipeline_spark import session as spark_session
from penstock.errors import MalformedError
from penstock.pipeline.jobs import Job
from penstock.pipeline.sealed_log import KeyFiles
from penstock.pipeline.streaming import Streaming


@dataclass(frozen=True, slots=True)
class Run:
    """How a job runs, as the options say: where it writes, where Spark is, and how to answer."""

    place: Place | None
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
        place = None if out is None else Place(cluster.path(out), streaming, overwrite)
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
