"""The job `conflicts`: all conflicts in a table of rules. `conflicts.tables` says what it writes, and
`conflicts.report` opens it."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from pyspark.sql import DataFrame, SparkSession

from penstock.errors import FailedError
from penstock.moderator.rules.rules import Mode
from penstock.pipeline.conflicts.forms import RuleTerms
from penstock.pipeline.conflicts.input import check_rules
from penstock.pipeline.conflicts.tables import PARTS, bench, planned_for
from penstock.pipeline.outputs import Output, Said, Streaming, check_sum

Source = Callable[[SparkSession], DataFrame]
"""How a table is got from a session."""


@dataclass(frozen=True, slots=True)
class Conflicts:
    """The job `conflicts`, over tables of rules (`conflicts_input.RULES`) and of types (`TYPES`).

    `at` is the time at which rules are in force; without it all are. No stream: a rule may conflict with any other.
    """

    rules: Source
    types: Source
    terms: RuleTerms
    source: str
    at: datetime | None = None
    files: str | None = None
    name: str = "conflicts"
    parts: tuple[str, ...] = tuple(PARTS)

    def all(self, spark: SparkSession) -> DataFrame:
        """Return all rules."""
        return self.rules(spark)

    def arriving(self, spark: SparkSession, streaming: Streaming) -> DataFrame:  # noqa: ARG002  # as all jobs
        """Refuse. Raises `FailedError` (`conflicts.stream`)."""
        raise _no_stream()

    def arrived(self, batch: DataFrame) -> DataFrame:  # noqa: ARG002  # as all jobs
        """Refuse. Raises `FailedError` (`conflicts.stream`)."""
        raise _no_stream()

    def planned(self, events: DataFrame) -> tuple[DataFrame, ...]:
        """Return the rules that would be read; the rest is planned table by table."""
        return (check_rules(events, self.at),)

    def step(self, events: DataFrame, batch: int, output: Output) -> Said:
        """Find all conflicts."""
        rows = events.count()
        with planned_for(output.spark, rows) as few, bench(output, batch, few=few) as on:
            on.rules(events, self.terms, self.at)
            on.tree(self.types(output.spark), self.terms)
            counts = on.counted()
            if self.terms.mode is Mode.LITERAL:
                on.find_literal(self.terms)
            else:
                on.find(self.terms)
            counts |= on.conflicts()
        check_sum(rows, {name: counts[name] for name in ("rules", "not_in_force", "quarantined")})
        return {"counts": {"read": rows, **counts}, "reasons": on.reasons, "terms": self.terms.as_dict()}


def _no_stream() -> FailedError:
    return FailedError(
        "conflicts.stream",
        "conflicts are found among all rules together",
        hint="run the job again when rules have changed",
    )
