"""How many examples a property test tries: as many as it says, and more of them when a run has time (`make soak`)."""

from typing import Final

from hypothesis import settings

USUAL: Final = 100
"""What Hypothesis tries where nobody says otherwise."""


def examples(count: int) -> int:
    """Return the `max_examples` of a test that usually tries `count`, in the profile of this run."""
    return max(1, count * settings().max_examples // USUAL)
