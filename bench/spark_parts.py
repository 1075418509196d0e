"""What benchmarks on Spark have in common: a session, a policy with given rights, and how they are timed."""

import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping

from pyspark.sql import DataFrame, SparkSession

from penstock.guard import EventRequest, Request, Restriction, Ruling
from penstock.model import EventType, Principal, TypeDefinition
from penstock.pipeline.enforce.policy import PipelinePolicy
from penstock.pipeline.jobs.session_settings import EVERYWHERE, LOCAL
from penstock.trust.capabilities import Right
from penstock.trust.event_types import VerifiedType
from penstock.trust.validity import ALWAYS

WARM, ROUNDS = 3, 5
OWNER = Principal(b"\1" * 32)
"""Owns all types of the benchmarks."""


class Rules:
    """What each principal may do."""

    def __init__(self, rules: dict[Principal, Restriction]) -> None:
        self.rules = rules

    def rule(self, request: Request) -> Ruling:
        return Ruling(self.rules[request.principal].branches) if isinstance(request, EventRequest) else Ruling()


class BenchPolicy(PipelinePolicy):
    """A policy that knows its publishers."""

    def principals(self) -> tuple[Principal, ...]:
        rights = [right for book in self.others if isinstance(book, Rules) for right in book.rules.items()]
        return tuple(who for who, right in rights if any(b.action is Right.PUBLISH for b in right.branches))


def trusted(event_type: EventType) -> VerifiedType:
    definition = TypeDefinition(event_type.name, ())
    return VerifiedType(f"type:{event_type.name}", event_type, definition, OWNER, ALWAYS, ())


def spark_session(memory: str, also: Mapping[str, str] | None = None) -> SparkSession:
    """Start Spark on two cores, with what `penstock` sets on one machine, so much memory and further settings."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "4",
        "spark.driver.memory": memory,
        "spark.log.level": "ERROR",
        **EVERYWHERE,
        **LOCAL,
        **(also or {}),
    }
    builder = SparkSession.builder.master("local[2]").appName("penstock bench")
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def nothing(frame: DataFrame) -> None:
    """Make every row of a frame, and put it nowhere."""
    frame.write.format("noop").mode("overwrite").save()


def medians(*jobs: Callable[[], None], warm: int = WARM, rounds: int = ROUNDS) -> list[float]:
    """Time jobs by turns; the first rounds do not count: Java compiles what it has seen a while."""
    samples: list[list[float]] = [[] for _ in jobs]
    for number in range(warm + rounds):
        for job, times in zip(jobs, samples, strict=True):
            start = time.perf_counter()
            job()
            if number >= warm:
                times.append(time.perf_counter() - start)
    return [statistics.median(times) for times in samples]
