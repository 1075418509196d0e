"""Lines of a file or of standard input as they come: what is there is handed on, and no buffer is filled first."""

import asyncio
import sys
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import CancelledError
from contextlib import suppress
from typing import BinaryIO, Final

from penstock.apps.cli.files import STDIN
from penstock.errors import MalformedError, PenstockError
from penstock.model.limits import DEFAULT_LIMITS
from penstock.store.files import unreadable

_CHUNK: Final = 1 << 16
_WAITING: Final = 4


async def read_lines(source: str) -> AsyncIterator[list[bytes]]:
    """Yield the lines that have come since, in order.

    A thread reads them: standard input may take its time, and the connection to the broker has to be kept. Raises
    `FailedError` (`file.unreadable`) and `MalformedError` (`pub.line`) for a line that does not end.
    """
    found: asyncio.Queue[list[bytes] | PenstockError | None] = asyncio.Queue(_WAITING)
    loop = asyncio.get_running_loop()

    def hand_on(what: list[bytes] | PenstockError | None) -> None:
        asyncio.run_coroutine_threadsafe(found.put(what), loop).result()

    def read() -> None:
        # Whoever took the lines may have left.
        with suppress(RuntimeError, CancelledError):
            try:
                with _opened(source) as stream:
                    _split(stream, hand_on)
            except (OSError, ValueError) as error:
                hand_on(unreadable(source, error))
            except MalformedError as error:
                hand_on(error)
            else:
                hand_on(None)

    # It is left behind when the program ends: nothing wakes a thread that waits for a terminal.
    threading.Thread(target=read, daemon=True).start()
    while (lines := await found.get()) is not None:
        if isinstance(lines, PenstockError):
            raise lines
        yield lines


def _opened(source: str) -> BinaryIO:
    return sys.stdin.buffer if source == STDIN else open(source, "rb")  # noqa: PTH123  # for who closes it


def _split(stream: BinaryIO, hand_on: Callable[[list[bytes]], None]) -> None:
    rest = b""
    while chunk := stream.read1(_CHUNK):  # type: ignore[attr-defined]  # files and standard input are buffered readers
        *lines, rest = (rest + chunk).split(b"\n")
        if len(rest) > DEFAULT_LIMITS.frame_bytes:
            raise MalformedError("pub.line", f"a line has more than {DEFAULT_LIMITS.frame_bytes} bytes")
        if lines:
            hand_on(lines)
    if rest:
        hand_on([rest])
