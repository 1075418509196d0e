"""Keep memory with keys out of crash dumps.

    RLIMIT_CORE       1 byte: every dump is larger, so none is written. With 0, Linux would still pipe dumps to a
                      crash handler, which would decide by itself; with 1 it does not
    coredump_filter   used if no limit but 0 can be set: a dump contains registers, but no pages of memory

`PR_SET_DUMPABLE` is not used: the process could then not be debugged by its own user, nor open `/dev/stdin`. Whoever
may attach a debugger can read its memory anyway.
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
    # Only Linux has this file, and it is not always writable.
    with suppress(OSError):
        _FILTER.write_text("0", encoding="ascii")
