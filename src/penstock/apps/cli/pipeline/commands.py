"""`penstock pipeline`: the list of jobs on Spark, each imported only when it is run."""

from typing import Final

import click

from penstock.apps.cli.shared.session import Noun, Nouns

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


@click.command(
    cls=Nouns,
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

    Paths may be any that Spark can read and write. With --stream a job goes on with what arrives, until it is stopped;
    stopped or killed, it goes on where it was, and no event is lost or twice in its output.
    """
