"""How a stream reads files as they arrive."""

from dataclasses import dataclass
from typing import Final

_FOREVER: Final = "36500d"
"""Spark forgets files that are a week older than the newest one, and would not read such a file that comes late."""


@dataclass(frozen=True, slots=True)
class Streaming:
    """How a stream runs: at most so many files, or batches of another job, at a time; and whether it ends with them."""

    files: int = 100
    drain: bool = False


def arriving(streaming: Streaming) -> dict[str, str]:
    """Return the options with which files are read as they arrive."""
    return {"maxFilesPerTrigger": str(streaming.files), "maxFileAge": _FOREVER}
