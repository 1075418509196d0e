"""How much work requests to join can cause before anything in them is believed. It is pure.

Whoever reaches the fabric can write to JOIN, as often as it wants and under any name. Verifying and answering a request
costs much more than reading it. So each principal that the domain knows (a fact, an appointment or a credential names
it) has an allowance of its own, and all others share one. What exceeds an allowance is dropped without an answer: a
newcomer asks again.
"""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from penstock.errors import LimitError, RefusedError
from penstock.model.principals import Principal

#: bytes of a request to join
JOIN_BYTES: Final = 128 << 10
#: requests a second of all principals that the domain does not know, and how many can come together
STRANGERS_RATE: Final = 100.0
STRANGERS_BURST: Final = 1_000.0
#: the same of one principal that the domain knows
KNOWN_RATE: Final = 5.0
KNOWN_BURST: Final = 20.0
#: known principals whose allowances are remembered
KNOWN: Final = 10_000


@dataclass(slots=True)
class _Allowance:
    rate: float
    most: float
    left: float
    then: float

    def take(self, now: float) -> bool:
        self.left = min(self.most, self.left + max(0.0, now - self.then) * self.rate)
        self.then = now
        if self.left < 1:
            return False
        self.left -= 1
        return True


class JoinAdmission:
    """The allowances of one domain. See the module."""

    def __init__(self) -> None:
        self._strangers = _Allowance(STRANGERS_RATE, STRANGERS_BURST, STRANGERS_BURST, 0.0)
        self._known: OrderedDict[Principal, _Allowance] = OrderedDict()

    def check_size(self, data: bytes) -> None:
        """Check the length of a request before it is read. Raises `LimitError` (`component.limit`)."""
        if len(data) > JOIN_BYTES:
            raise LimitError("component.limit", f"a request to join has {len(data)} bytes, more than {JOIN_BYTES}")

    def take(self, principal: Principal, now: float, *, known: bool) -> None:
        """Use up the allowance for a request. Raises `RefusedError` (`component.flood`) if there is none left."""
        allowance = self._strangers
        if known:
            allowance = self._known.setdefault(principal, _Allowance(KNOWN_RATE, KNOWN_BURST, KNOWN_BURST, now))
            self._known.move_to_end(principal)
            if len(self._known) > KNOWN:
                self._known.popitem(last=False)
        if not allowance.take(now):
            raise RefusedError("component.flood", "too many requests to join", hint="newcomers ask again")
