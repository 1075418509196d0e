"""What a session of Spark is set to that `penstock` starts, unless somebody says otherwise."""

import socket
from typing import Final

EVERYWHERE: Final = {
    # With every expression Python would tell Java, in further calls, from which line of our own code it comes. These
    # were two thirds of all calls, and nobody who runs a command could use what they tell.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
}
"""Wherever its tasks run."""
LOCAL: Final = {
    # Nobody else need reach a driver that has its executors in itself.
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # What is on its way to Python fits into a processor's cache, however long a row is.
    "spark.sql.execution.arrow.maxBytesPerBatch": str(4 << 20),
    # Of values on their way back Java does not check the bounds of each, nor count who uses it: what tasks send was
    # made by Arrow itself, and checked there.
    "spark.driver.defaultJavaOptions": (
        "-Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false"
    ),
    # Both ways are a socket of the file system: one of TCP whose ends both have much to send may stand still for good
    # on Linux from 6.17 on.
    **({"spark.python.unix.domain.socket.enabled": "true"} if hasattr(socket, "AF_UNIX") else {}),
}
"""On one machine. Sealed logs are read faster with these, and always to their end: see ADR 20."""
