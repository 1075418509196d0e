"""How long to wait between two calls of a broker that does not answer.

Pauses grow, so that somebody who is not there costs little. They stay short for some time after the broker was there:
it may be starting again, and everything that is published meanwhile is lost. They vary, so that a broker that comes
back is not called by everybody at the same moment.
"""

from typing import Final

from penstock.crypto.keyfile import RandomBytes

_FIRST: Final = 0.1
_LONGEST: Final = 5.0
#: the longest pause while a broker may be starting again, and for how many seconds that is likely
_SHORT: Final = 0.5
_LIKELY: Final = 300.0


class Pauses:
    """See the module. `now` is any clock that does not go back, in seconds."""

    def __init__(self, random: RandomBytes) -> None:
        self._random = random
        self._pause = _FIRST
        self._was_there = float("-inf")

    def there(self, now: float) -> None:
        """Take note that the broker is there, or was until now."""
        self._pause, self._was_there = _FIRST, now

    def next(self, now: float) -> float:
        """Return for how many seconds to wait now."""
        spread = 0.75 + int.from_bytes(self._random(2)) / 0x20000
        pause = self._pause * spread
        self._pause = min(_SHORT if now - self._was_there < _LIKELY else _LONGEST, 2 * self._pause)
        return pause
