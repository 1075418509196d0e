"""Keep memory with keys out of crash dumps.

    RLIMIT_CORE       1 byte. No dump is so small, and none is written. With 0, Linux would still pipe dumps to a
                      program that is there for them, and leave it to that program; with 1 it does not
    coredump_filter   where no limit but 0 may be set: a dump has no pages of the memory, only what was in registers

A process that says that it is not dumpable (`PR_SET_DUMPABLE`) could not be debugged by its own user either, nor open
`/dev/stdin` any more. Whoever may attach a debugger reads its memory anyway.
"""

import resource
from contextlib import suppress
from pathlib import Path
from typing import Final

_SMALLEST: Final = 1
_FILTER: Final = Path("/proc/self/coredump_filter")


def withhold_memory() -> None:
    """Keep the memory of this process, and of those that it starts from now on, out of crash dumps."""
    _, most = resource.getrlimit(resource.RLIMIT_CORE)
    least = _SMALLEST if most == resource.RLIM_INFINITY else min(_SMALLEST, most)
    resource.setrlimit(resource.RLIMIT_CORE, (least, most))
    # Only Linux has it, and not everywhere for writing.
    with suppress(OSError):
        _FILTER.write_text("0", encoding="ascii")
