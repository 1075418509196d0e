"""Turns on the event loop: who has much to do lets everybody else go on in between."""

import asyncio
from typing import Final

#: seconds that one may take before the others have their turn
_TURN: Final = 0.005


class Turns:
    """The turns of one who takes messages."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._since = self._loop.time()

    def begin(self) -> None:
        """Take note that a turn begins now: there was nothing to do."""
        self._since = self._loop.time()

    async def over(self, pause: float = 0.0) -> None:
        """Give the others their turn when one's own was long, or for as long as `pause` says."""
        if pause > 0 or self._loop.time() - self._since > _TURN:
            await asyncio.sleep(pause)
            self._since = self._loop.time()
