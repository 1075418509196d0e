"""`penstock pipeline run`: several jobs from one file, in one Spark session."""

import graphlib
import re
import shlex
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click

from penstock.apps.cli.pipeline.options import SparkOptions
from penstock.apps.cli.pipeline.spark_session import Cluster, one_session
from penstock.apps.cli.pipeline.spark_session import session as spark_session
from penstock.apps.cli.shared.commands import (
    CommandAnswer,
    CommandVerb,
    argument,
    command,
    option,
    option_class,
    output_option,
    say_json,
    wants_data,
)
from penstock.apps.cli.shared.files import read_bytes, within
from penstock.apps.cli.shared.session import Nouns, aside, say
from penstock.apps.cli.shared.terminal import show
from penstock.errors import MalformedError, PenstockError, did_you_mean, printable
from penstock.pipeline.jobs.schemes import register_schemes
from penstock.pipeline.outputs import commits, job_of
from penstock.pipeline.tables.addresses import has_scheme, parse_address

_STEP: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", re.ASCII)
_STEPS: Final = 100
_PATHS: Final = ("FILE", "FOLDER", "PATH", "[PATH]", "TABLE", "LOG", "ADDRESS")
#: options that the command `run` has for all steps
_COMMON: Final = ("--master", "--remote", "--conf", "--spark-log", "--output", "--dry-run", "--overwrite")


@dataclass(frozen=True, slots=True)
class PlanStep:
    """One step: a job, the step whose output it reads, and its arguments as on a command line."""

    name: str
    job: str
    after: str | None
    out: str
    arguments: tuple[str, ...]

    @property
    def line(self) -> str:
        """The command that does the same."""
        return shlex.join(["penstock", "pipeline", self.job, *self.arguments])


def read_plan(data: bytes, folder: Path, jobs: Mapping[str, CommandVerb]) -> tuple[PlanStep, ...]:
    """Read a plan, and return its steps, each after the one whose output it reads.

    Paths in it are relative to `folder`. Raises `MalformedError` (`pipeline.plan`).
    """
    try:
        found = tomllib.loads(data.decode())
    except ValueError as error:
        raise _malformed(
            f"the plan is not TOML: {error}", "see the example in `penstock pipeline run --help`"
        ) from None
    _known(found, ("out", "step"), "the plan")
    tables = found.get("step", {})
    out = found.get("out", ".")
    if not isinstance(tables, dict) or not tables or len(tables) > _STEPS or not isinstance(out, str):
        raise _malformed(
            "the plan has no steps" if tables == {} else f"`step` must be up to {_STEPS} tables, and `out` a folder",
            "write a table [step.NAME] for each job",
        )
    outs = {name: _out(name, table, folder, out) for name, table in tables.items()}
    steps = {name: _step(name, table, folder, jobs, outs) for name, table in tables.items()}
    if len(set(outs.values())) < len(outs):
        raise _malformed("two steps write the same folder", "give each step an `out` of its own")
    order = graphlib.TopologicalSorter({name: [step.after] if step.after else [] for name, step in steps.items()})
    try:
        return tuple(steps[name] for name in order.static_order())
    except graphlib.CycleError as error:
        raise _malformed(
            f"steps wait for each other: {' -> '.join(error.args[1])}", "let one of them read a `source` instead"
        ) from None


def _out(name: str, table: object, folder: Path, out: str) -> str:
    if not isinstance(table, dict) or not _STEP.fullmatch(name):
        raise _malformed(f"`{name[:64]}` is not a step", "write a table [step.NAME], NAME with letters and digits")
    chosen = table.get("out")
    if chosen is None:
        return _path(folder, f"{out.rstrip('/')}/{name}")
    if not isinstance(chosen, str):
        raise _malformed(f"`out` of step `{name}` is not a text", "give a folder")
    return _path(folder, chosen)


def _step(
    name: str, table: Mapping[str, object], folder: Path, jobs: Mapping[str, CommandVerb], outs: Mapping[str, str]
) -> PlanStep:
    job = table.get("job", name)
    verb = jobs.get(job) if isinstance(job, str) else None
    if verb is None or not isinstance(job, str):
        raise _malformed(
            f"step `{name}` has no job that a plan can run: `{str(job)[:40]}`",
            did_you_mean(str(job), jobs, f"give `job`: {', '.join(jobs)}"),
        )
    after, source = table.get("from"), table.get("source")
    if after is not None and (not isinstance(after, str) or after not in outs):
        raise _malformed(
            f"step `{name}` reads the output of `{str(after)[:40]}`, which is not a step",
            did_you_mean(str(after), outs, "give the name of a step"),
        )
    if after is not None and source is not None:
        raise _malformed(f"step `{name}` has both `from` and `source`", "leave one of them out")
    known = _options(verb)
    given = {key: value for key, value in table.items() if key not in ("job", "from", "source", "out")}
    _known(given, tuple(known), f"step `{name}`")
    if given.get("stream") is True and given.get("drain") is not True:
        raise _malformed(f"step `{name}` is a stream without an end", "add `drain = true`, or run it by itself")
    arguments = [] if after is None and source is None else [outs[after] if after else _path(folder, str(source))]
    for key, value in given.items():
        arguments += _given(name, known[key], value, folder)
    return PlanStep(name, job, after, outs[name], (*arguments, "--out", outs[name]))


def _options(verb: CommandVerb) -> dict[str, click.Option]:
    """Return the options of a job by their names in a plan."""
    return {
        name.removeprefix("--"): one
        for one in verb.params
        if isinstance(one, click.Option)
        for name in one.opts
        if name.startswith("--") and name != "--out" and name not in _COMMON
    }


def _given(step: str, known: click.Option, value: object, folder: Path) -> Iterator[str]:
    name = known.opts[0]
    if known.is_flag:
        if not isinstance(value, bool):
            raise _malformed(f"`{name[2:]}` of step `{step}` is true or false", "write true or false")
        if value:
            yield name
        return
    pairs = known.nargs > 1
    values = value if isinstance(value, list) and (known.multiple or pairs) else [value]
    if not all(type(one) in (str, int, float) for one in values):
        raise _malformed(
            f"`{name[2:]}` of step `{step}` has a value that an option cannot have",
            "write a text or a number, and a list where an option can be repeated",
        )
    path = str(known.metavar) in _PATHS
    texts = [_path(folder, str(one)) if path else str(one) for one in values]
    if pairs:
        yield from (name, *texts)
        return
    for text in texts:
        yield from (name, text)


def _path(folder: Path, text: str) -> str:
    if not has_scheme(text):
        return str(folder / text)
    register_schemes()
    address = parse_address(text, lambda path: path if has_scheme(path) else str(folder / path))
    return text if address.options else str(address)


def _known(found: Mapping[str, object], names: Sequence[str], where: str) -> None:
    for key in found:
        if key not in names:
            raise _malformed(f"{where} has no setting `{key[:40]}`", did_you_mean(key, names, ", ".join(names)))


def _malformed(message: str, hint: str) -> MalformedError:
    return MalformedError("pipeline.plan", printable(message), hint=hint)


@option_class
class _Run:
    plan: str = argument(metavar="PLAN")
    overwrite: bool = option("--overwrite", is_flag=True, help="Replace outputs that exist.")
    resume: bool = option("--resume", is_flag=True, help="Skip steps whose output is complete.")
    dry_run: bool = option("--dry-run", is_flag=True, help="Show the steps as commands, and run none of them.")
    spark: SparkOptions
    output: str = output_option()


@command(
    example="""
penstock pipeline run plan.toml

\b
with plan.toml:
  out = "results"

\b
  [step.ingest]
  source = "meter.csv"
  mapping = "meter.toml"

\b
  [step.admit]
  from = "ingest"
  policy = "./policy.toml"

\b
  [step.deliver]
  from = "admit"
  policy = "./policy.toml"
"""
)
def run(options: _Run) -> CommandAnswer | None:
    """Run all jobs of a plan in one Spark session, each after the job whose output it reads.

    PLAN is a TOML file with a table [step.NAME] for each job. `job` is the pipeline command (default: NAME), `from` is
    the step whose output it reads, `source` is an input of another kind, and all other settings are options of the
    command without `--`. Outputs are folders with the names of the steps, below `out`. Paths are relative to PLAN.
    """
    data = read_bytes(options.plan)
    with within(options.plan):
        steps = read_plan(data, Path(options.plan).parent.absolute(), _jobs())
    if options.dry_run:
        rows: list[dict[str, object]] = [{"step": step.name, "command": step.line} for step in steps]
        return CommandAnswer({"steps": rows}, [step.line for step in steps])
    cluster = options.spark.cluster()
    common = ["--overwrite"] if options.overwrite else []
    done: list[dict[str, object]] = []
    with one_session():
        for number, step in enumerate(steps, start=1):
            skipped = options.resume and _is_complete(step, cluster)
            if not wants_data():
                say(f"[{number}/{len(steps)}] {step.name}{' (complete already)' if skipped else ''}")
            answer = None if skipped else _run_step(step, [*_spark(options.spark), *common])
            if answer is not None and not wants_data():
                show(answer.shown)
            done.append(
                {
                    "step": step.name,
                    "job": step.job,
                    "out": step.out,
                    "skipped": skipped,
                    "answer": None if answer is None else answer.as_data(),
                }
            )
            if answer is not None and answer.error is not None:
                raise _stopped(step, number, len(steps), answer.error)
    if wants_data():
        say_json({"steps": done})
    return None


def _run_step(step: PlanStep, common: list[str]) -> CommandAnswer | None:
    verb = _jobs()[step.job]
    try:
        with verb.make_context(step.job, [*step.arguments, *common], parent=click.get_current_context()) as context:
            return verb.answer(context.params)
    except PenstockError as error:
        aside(f"step `{step.name}` failed; --resume skips steps whose output is complete")
        raise error from None


def _stopped(step: PlanStep, number: int, whole: int, error: PenstockError) -> PenstockError:
    if number < whole:
        aside(f"step `{step.name}` ended the plan")
    return error


def _is_complete(step: PlanStep, cluster: Cluster) -> bool:
    with spark_session(cluster, step.out) as on:
        return job_of(on.spark, step.out) == step.job and bool(commits(on.spark, step.out))


def _spark(spark: SparkOptions) -> list[str]:
    named = [("--master", spark.master), ("--remote", spark.remote), ("--spark-log", spark.spark_log)]
    given = [part for name, value in named if value is not None for part in (name, value)]
    return [*given, *(part for pair in spark.conf for part in ("--conf", pair))]


def _jobs() -> dict[str, CommandVerb]:
    """Return the commands that write an output."""
    parent = click.get_current_context().parent
    group = parent.command if parent is not None else None
    if not isinstance(group, Nouns):
        raise TypeError("the command is not in its group")
    found = {}
    for name, noun in group.nouns.items():
        verb = noun.load() if name not in ("run", "serve") else None
        if isinstance(verb, CommandVerb) and any("--out" in one.opts for one in verb.params):
            found[name] = verb
    return found
