"""The time and the chance that a fabric is given: real ones, or those of a simulation."""

import asyncio
import time
from collections.abc import Callable
from typing import Protocol

#: gives so many random bytes, as `secrets.token_bytes`
RandomBytes = Callable[[int], bytes]


class Clock(Protocol):
    """A clock, real or virtual."""

    def now(self) -> float:
        """Return the seconds since 1970."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait until this clock shows so much more."""
        ...


class SystemClock:
    """The clock of this machine."""

    def now(self) -> float:
        """Return the seconds since 1970."""
        return time.time()

    async def sleep(self, seconds: float) -> None:
        """Wait as long as the event loop says it is."""
        await asyncio.sleep(seconds)
