"""`penstock pipeline`: the list of jobs on Spark, each imported only when it is run."""

from typing import Final

import click

from penstock.apps.cli.groups import Noun, Nouns

_HERE: Final = "penstock.apps.cli"
_JOBS: Final = {
    "ingest": ("pipeline:ingest", "Turn records into typed events, and quarantine those that do not fit."),
    "admit": ("pipeline:admit", "Let in the events that publishers may publish, with forced values set."),
    "deliver": ("pipeline:deliver", "Give all subscribers of a policy what they may see, in one pass."),
    "view": ("pipeline:view", "Show what one subscriber got."),
    "quarantine": ("pipeline:quarantine", "Show what did not fit: how many records for each reason."),
    "whatif": ("pipeline:whatif", "Compare two policies on a history: who gains and who loses which attributes."),
    "audit": ("pipeline:audit", "Report which rights are used, who is refused, and what flows where."),
    "seal": ("pipeline_sealed:seal", "Seal events as brokers do, and keep them as a sealed log."),
    "unseal": ("pipeline_sealed:unseal", "Open a sealed log with the keys that are held."),
    "compact": ("pipeline_sealed:compact", "Merge small blocks of a sealed log into large ones."),
    "conflicts": ("pipeline_conflicts:conflicts", "Find all conflicts in a rule base of any size, in one job."),
    "conflicts-of": ("pipeline_conflicts:conflicts_of", "List the conflicts of one rule, one by one."),
    "evaluate": ("pipeline_evaluate:evaluate", "Decide every request of a table."),
}


@click.command(
    cls=Nouns, nouns={name: Noun(f"{_HERE}.{where}", text, "spark") for name, (where, text) in _JOBS.items()}
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
