"""How much a test does: as much as it says, less in `make check`, and more random examples in `make soak`."""

from typing import Final

from hypothesis import settings

USUAL: Final = 100
"""What Hypothesis tries where nobody says otherwise."""


def examples(count: int) -> int:
    """Return the `max_examples` of a test that usually tries `count`, in the profile of this run."""
    return max(1, count * settings().max_examples // USUAL)


def amount(count: int) -> int:
    """Return how many of something other tests do that usually do `count`: fewer in `make check`, never more."""
    return min(count, examples(count))
