"""Default settings of Spark sessions that `penstock` starts."""

import os
import socket
from pathlib import Path
from typing import Final

EVERYWHERE: Final = {
    # For every expression Python would report the line of our code to Java, in further calls. These were two thirds of
    # all calls, and are of no use to users of a command.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    # Java does not compile methods of more than 8,000 bytes. What Spark writes for a whole stage is one, and for wide
    # rows would be interpreted; above this limit Spark writes a method for each few expressions.
    "spark.sql.codegen.hugeMethodLimit": "8000",
}
"""Wherever its tasks run."""
_ARROW: Final = "-Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false"
LOCAL: Final = {
    # The driver contains its executors, so nobody else needs to reach it.
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # Batches on their way to Python fit into a processor's cache, however long a row is.
    "spark.sql.execution.arrow.maxBytesPerBatch": str(4 << 20),
    # Of values on their way back Java does not check the bounds of each, nor count who uses it: what tasks send was
    # made by Arrow itself, and checked there.
    "spark.driver.defaultJavaOptions": _ARROW,
    # Both ways are a socket of the file system: one of TCP whose ends both have much to send may stand still
    # permanently on Linux from 6.17 on.
    **({"spark.python.unix.domain.socket.enabled": "true"} if hasattr(socket, "AF_UNIX") else {}),
}
"""On one machine. Sealed logs are read faster with these, and always to their end: see ADR 20."""

BRIEF: Final = ("-XX:TieredStopAtLevel=1", "-XX:ReservedCodeCacheSize=240m")
"""Options of a Java that ends soon: it does not earn back what optimising its code costs. Java that does not optimise
keeps a fifth of the usual room for code, and once Spark has filled it, compiles nothing any more. A garbage collector
is not chosen: where somebody has chosen another, Java would not start."""
INTERPRETED: Final = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
}
"""For a handful of rows, which do not earn back what compiling for them costs, or planning again at each stage."""
SMALL: Final = {
    **INTERPRETED,
    # One task reads, and one sorts: nothing is exchanged between tasks.
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.files.minPartitionNum": "1",
    # The memory page of a sort or count: usually 32 MB, which Java has to clear and to collect.
    "spark.buffer.pageSize": "1m",
    "spark.driver.defaultJavaOptions": " ".join((_ARROW, *BRIEF)),
}
"""On one machine, in the place of what `LOCAL` says, for a command whose input is small (`is_small`); see ADR 45."""
SMALL_INPUT: Final = 1 << 20
"""Bytes of a small input: some thousand events."""
_SMALL_FILES: Final = 1_000


def is_small(path: str | None) -> bool:
    """Return whether everything below a path of this machine is a small input. What cannot be looked at is not."""
    if path is None:
        return False
    top = Path(path.removeprefix("file://").removeprefix("file:"))
    size = seen = 0
    try:
        if top.is_file():
            return top.stat().st_size <= SMALL_INPUT
        for folder, _, files in os.walk(top):
            for file in files:
                size += Path(folder, file).stat().st_size
                seen += 1
                if size > SMALL_INPUT or seen > _SMALL_FILES:
                    return False
    except OSError:
        return False
    return seen > 0
