"""`penstock pipeline`: the list of jobs, each imported only when it is run, and which engine runs them."""

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any, Final

import click

from penstock.apps.cli.shared.session import Noun, Nouns
from penstock.errors import RefusedError

_HERE: Final = "penstock.apps.cli"
_JOBS: Final = {
    "ingest": ("pipeline.jobs:ingest", "Turn records into typed events, and quarantine those that do not fit."),
    "admit": ("pipeline.jobs:admit", "Admit the events that publishers may publish, with forced values set."),
    "deliver": ("pipeline.jobs:deliver", "Write for all subscribers of a policy what they may see, in one pass."),
    "view": ("pipeline.jobs:view", "Show what one subscriber received."),
    "quarantine": ("pipeline.jobs:quarantine", "Show what did not fit: the number of records for each reason."),
    "whatif": ("pipeline.jobs:whatif", "Compare two policies on a history: who gains and who loses which attributes."),
    "audit": ("pipeline.jobs:audit", "Report which rights are used, who is refused, and what flows where."),
    "audit-components": (
        "pipeline.components:audit",
        "Report who asked components what, whose answer counted, and what was missing.",
    ),
    "seal": ("pipeline.sealed:seal", "Seal events as brokers do, and keep them as a sealed log."),
    "unseal": ("pipeline.sealed:unseal", "Open a sealed log with the keys that you have."),
    "compact": ("pipeline.sealed:compact", "Merge small blocks of a sealed log into large ones."),
    "conflicts": ("pipeline.conflicts:conflicts", "Find all conflicts in a rule base of any size, in one job."),
    "conflicts-of": ("pipeline.conflicts:conflicts_of", "List the conflicts of one rule."),
    "evaluate": ("pipeline.jobs:evaluate", "Decide every request of a table."),
    "run": ("pipeline.plan:run", "Run all jobs of a plan, in the order in which they need each other."),
    "serve": ("pipeline.serve:serve", "Keep a Spark warm, so that commands start quickly."),
}


_SMALL: Final = ("ingest", "admit", "deliver", "view", "quarantine", "whatif")
"""The commands that `pipeline.small` has too."""


class _EngineCommand(click.Command):
    """A command that runs without Spark if its input is small and its options are those of the small engine."""

    def __init__(self, name: str, small: click.Command, on_spark: Callable[[], click.Command], *, only: bool) -> None:
        super().__init__(name, add_help_option=False)
        self._small = small
        self._on_spark = on_spark
        self._only = only

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Keep the arguments: which command reads them is not known yet."""
        context = click.Context(self, info_name=info_name, parent=parent, **extra)
        context.args = [*args]
        return context

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command without Spark, or else on Spark. Raises `RefusedError` (`pipeline.small`)."""
        from penstock.pipeline.small.folders import NotSmallError  # noqa: PLC0415  # it needs an extra

        try:
            with self._small.make_context(ctx.info_name, [*ctx.args], parent=ctx.parent) as inner:
                return self._small.invoke(inner)
        except click.UsageError as error:
            reason = error.format_message()
        except NotSmallError as error:
            reason = str(error)
        if self._only:
            words = f"the small engine cannot do this: {reason}"
            raise RefusedError("pipeline.small", words, hint="use --engine spark, or leave --engine out")
        command = self._on_spark()
        with command.make_context(ctx.info_name, [*ctx.args], parent=ctx.parent) as inner:
            return command.invoke(inner)


class _Engines(Nouns):
    """The commands of `penstock pipeline`. Some have a second form for small inputs, which imports no Spark."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find a command; one that can run without Spark is tried so first."""
        name, rest = args[0], args[1:]
        engine = _engine(rest)
        # A process that has started a Spark already uses it.
        wanted = engine == "small" or (engine == "auto" and "pyspark.sql" not in sys.modules)
        if name in _SMALL and wanted and not {"-h", "--help"} & {*rest} and not ctx.resilient_parsing:
            try:
                small = getattr(import_module(f"{_HERE}.pipeline.small"), name)
            except ModuleNotFoundError:
                small = None
            if isinstance(small, click.Command):
                return name, _EngineCommand(name, small, self.nouns[name].load, only=engine == "small"), rest
        return super().resolve_command(ctx, args)


def _engine(arguments: list[str]) -> str:
    """Return the engine that a command line names; what it cannot be, the command itself refuses."""
    for place, one in enumerate(arguments):
        if one.startswith("--engine="):
            return one.partition("=")[2]
        if one == "--engine" and place + 1 < len(arguments):
            return arguments[place + 1]
    return "auto"


@click.command(
    cls=_Engines,
    sections={"Commands": {name: Noun(f"{_HERE}.{where}", text, "spark") for name, (where, text) in _JOBS.items()}},
)
def pipeline() -> None:
    """Run the same policy over logs and streams, on Spark.

    \b
    From records to what each reader may see:
      penstock pipeline ingest in/ --mapping meter.toml --out ingested
      penstock pipeline admit ingested --policy policy.toml --out admitted
      penstock pipeline deliver admitted --policy policy.toml --out delivered
      penstock pipeline view delivered statistics

    Small inputs on this machine need no Spark. Paths may be any that Spark can read and write. With --stream a job goes
    on with what arrives, until it is stopped; stopped or killed, it goes on where it was, and no event is lost or twice
    in its output.
    """
