"""How times are measured: jobs take turns within every round, and the median over the rounds counts.

A figure is a ratio of two things measured in the same run, because machines differ and are noisy.
"""

import gc
import statistics
import time
from collections.abc import Callable


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


def processor_seconds(job: Callable[[], object]) -> float:
    """Return the seconds of the processor that a job takes."""
    gc.collect()
    gc.disable()
    try:
        start = time.process_time()
        job()
        return time.process_time() - start
    finally:
        gc.enable()


def microseconds(value: float) -> str:
    """Write a duration for people."""
    return f"{value * 1e6:.2f} µs"
