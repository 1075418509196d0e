"""Rising numbers on the wire: as runs, the first number of each and how many follow one another.

What comes together is mostly numbered one after another, so that a block of many events takes no more than one of a
single event.
"""

from collections.abc import Sequence
from itertools import chain
from typing import Any

from penstock.broker.reading import Tree, malformed
from penstock.model.limits import DEFAULT_LIMITS


def write_runs(numbers: Sequence[int]) -> list[Tree]:
    """Return rising numbers, one at least, as runs."""
    first, count = numbers[0], len(numbers)
    if numbers[-1] - first + 1 == count:
        return [first, count]
    starts = [place for place in range(count) if not place or numbers[place] != numbers[place - 1] + 1]
    ends = [*starts[1:], count]
    return [*chain.from_iterable((numbers[start], end - start) for start, end in zip(starts, ends, strict=True))]


def read_runs(runs: list[Any], most: int) -> tuple[int, ...]:
    """Read runs of numbers from 0 to `most`, each as long as it can be. Raises `MalformedError`."""
    if len(runs) == 2 and type(runs[0]) is type(runs[1]) is int:  # as it mostly is
        first, count = runs
        if 0 <= first <= most + 1 - count and 0 < count <= DEFAULT_LIMITS.route_block_events:
            return (first,) if count == 1 else tuple(range(first, first + count))
    if not runs or len(runs) % 2 or not {int}.issuperset(map(type, runs)):
        malformed("numbers that are none")
    end, total = -1, 0
    for first, count in zip(runs[::2], runs[1::2], strict=True):
        total += count
        if first <= end or count < 1 or total > DEFAULT_LIMITS.route_block_events:
            malformed("numbers that do not rise, or too many")
        end = first + count
    if end > most + 1:
        malformed("numbers that are too high")
    return tuple(
        chain.from_iterable(range(first, first + count) for first, count in zip(runs[::2], runs[1::2], strict=True))
    )
