"""A broker's time: that of the machine, except if the machine's clock makes steps.

Rights and time-stamps end by this time, so that a clock that is ahead refuses too much, and one that is behind permits
too much. Steps of the wall clock are distinguished from the passing of time by a second clock that nobody sets:

1. A step forward is accepted immediately: what may have ended does not count.
2. A step back is accepted immediately as far as it reverts a step forward that was seen before: then the wall clock
   agrees again with the clock that nobody sets.
3. Any other step back is not believed at first. Time goes on from where it was, and only a wall clock that stays behind
   for `PATIENCE` is followed. So a short step back revives nothing, and a clock that was wrong from the start is right
   some time after somebody has corrected it.

Between steps time never goes back: small differences are waited out.
"""

import asyncio
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Final, TypeAlias

from penstock.fabric.port import since_boot

# ----------------------------------------------------------------------------------------------------------------------
# Turns on the event loop: a task with much to do lets the others run in between.


#: seconds that a task may run before the others have their turn
TURN: Final = 0.005


class Turns:
    """The turns of one task that handles messages."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        #: when the turn began
        self.since = self._loop.time()

    def begin(self) -> None:
        """Start a turn now: the task was waiting until now."""
        self.since = self._loop.time()

    async def over(self, pause: float = 0.0) -> None:
        """Let other tasks run if this turn was longer than `TURN`, or wait `pause` seconds."""
        if pause > 0 or self._loop.time() - self.since > TURN:
            await asyncio.sleep(pause)
            self.since = self._loop.time()


# ----------------------------------------------------------------------------------------------------------------------
# A broker's time: that of the machine, except if the machine's clock makes steps.


Clock: TypeAlias = Callable[[], datetime]
Steady: TypeAlias = Callable[[], float]

#: a difference above this is a step; a smaller one corrects a clock that runs a little fast or slow
_STEP: Final = timedelta(seconds=1)
#: how many seconds a wall clock must stay behind before it is believed
PATIENCE: Final = 60.0
#: how many seconds a step forward can be reverted immediately
_REMEMBERED: Final = 86_400.0
_NONE: Final = timedelta()


def loop_time() -> float:
    """Return the time of the running event loop in seconds: that of a clock that nobody sets."""
    return asyncio.get_running_loop().time()


class SteadyClock:
    """See the module.

    >>> from datetime import UTC
    >>> wall, steady = [datetime(2026, 1, 1, 12, tzinfo=UTC)], [0.0]
    >>> clock = SteadyClock(lambda: wall[0], lambda: steady[0])
    >>> wall[0] += timedelta(hours=2)
    >>> clock().hour
    14
    >>> wall[0] -= timedelta(hours=2)
    >>> clock().hour
    12
    """

    def __init__(self, wall: Clock, steady: Steady = since_boot) -> None:
        self._wall, self._steady = wall, steady
        self._read, self._read_at = wall(), steady()
        self._latest = self._read
        self._made_at = self._read_at
        #: how often the time has gone back
        self.corrections = 0
        #: how far the time is ahead of a wall clock that is not believed, and since when
        self._ahead, self._ahead_since = _NONE, 0.0
        #: by how much the wall clock has stepped forward, and when it did so last
        self._stepped, self._stepped_at = _NONE, 0.0

    @property
    def began(self) -> datetime:
        """When this clock was made, by the wall clock that was last read: it may have been wrong then."""
        return self._latest - timedelta(seconds=self._read_at - self._made_at)

    def __call__(self) -> datetime:
        """Return the time. It is earlier than before only if the wall clock was corrected."""
        wall, at, before = self._wall(), self._steady(), self._latest
        if not self._ahead and before <= wall and _NONE <= wall - self._read <= _STEP:
            # Mostly so: as little time has passed as makes no step.
            self._read, self._read_at, self._latest = wall, at, wall
            return wall
        forward = wall - self._read - timedelta(seconds=at - self._read_at)
        self._read, self._read_at = wall, at
        if forward > _STEP:
            self._step_forward(forward, at)
        if self._ahead and at - self._ahead_since >= PATIENCE:
            self._ahead = _NONE
            self._latest = min(self._latest, wall)
        now = wall + self._ahead
        if now < self._latest:
            now = self._step_back(now, at) if self._latest - now > _STEP else self._latest
        self._latest = now
        self.corrections += now < before
        return now

    def _step_forward(self, step: timedelta, at: float) -> None:
        # It may be the end of a step back that was not believed.
        made_up = min(step, self._ahead)
        self._ahead -= made_up
        if step - made_up > _STEP:
            self._stepped += step - made_up
            self._stepped_at = at

    def _step_back(self, now: datetime, at: float) -> datetime:
        """Return the time after the wall clock has stepped back, by the part of the step that is believed."""
        if at - self._stepped_at > _REMEMBERED:
            self._stepped = _NONE
        step = self._latest - now
        # A correction is not exact to the instant.
        believed = step if step <= self._stepped + _STEP else self._stepped
        self._stepped = max(_NONE, self._stepped - believed)
        if step > believed:
            self._ahead += step - believed
            self._ahead_since = at
        return now + (step - believed)
