"""How a benchmark is measured and reported.

A figure is a ratio of two things measured in the same run, by turns, because machines differ and are noisy; an
absolute time proves nothing. The median over the rounds is taken on each side.
"""

import gc
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class Result:
    """One line of bench/results.json."""

    name: str
    ratio: float
    target: str
    ok: bool
    detail: str

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


def at_most(name: str, ratio: float, bound: float, detail: str) -> Result:
    """Report a ratio that must not exceed `bound`."""
    return Result(name, round(ratio, 4), f"<= {bound:g}", ratio <= bound, detail)


def at_least(name: str, ratio: float, bound: float, detail: str) -> Result:
    """Report a ratio that must reach `bound`."""
    return Result(name, round(ratio, 4), f">= {bound:g}", ratio >= bound, detail)


def above(name: str, ratio: float, bound: float, detail: str) -> Result:
    """Report a ratio that must exceed `bound`."""
    return Result(name, round(ratio, 4), f"> {bound:g}", ratio > bound, detail)


def observed(name: str, ratio: float, detail: str) -> Result:
    """Report a ratio that has no target."""
    return Result(name, round(ratio, 4), "observed", True, detail)


def seconds(
    *jobs: Callable[[], object], repeat: int, rounds: int = 9, clock: Callable[[], float] = time.perf_counter
) -> list[float]:
    """Return the median seconds per call of each job; the jobs take turns within every round.

    Jobs that take very different times, and only compute, are better measured by `time.process_time`: on a busy machine
    the longer ones are interrupted more often.
    """
    samples: list[list[float]] = [[] for _ in jobs]
    for job in jobs:
        job()
    enabled = gc.isenabled()
    gc.disable()
    try:
        for _ in range(rounds):
            for job, times in zip(jobs, samples, strict=True):
                start = clock()
                for _ in range(repeat):
                    job()
                times.append((clock() - start) / repeat)
            gc.collect()
    finally:
        if enabled:
            gc.enable()
    return [statistics.median(times) for times in samples]


def microseconds(value: float) -> str:
    """Write a duration for people."""
    return f"{value * 1e6:.2f} µs"
