"""Sealed blocks that clients of a broker want, and whose keys are still to come. The oldest give way."""

from collections import deque
from collections.abc import Callable
from datetime import datetime
from typing import NamedTuple

from penstock.broker.sealed import SealedPublications
from penstock.broker.trees import Side
from penstock.model.limits import DEFAULT_LIMITS, Limits
from penstock.model.names import TypeKey


class Waiting(NamedTuple):
    """A block that waits. When it arrived is what counts, however long it waits."""

    block: SealedPublications
    came_from: Side
    arrived: datetime


class WaitingRoom:
    """See the module. It is bounded by blocks and by their octets."""

    def __init__(self, limits: Limits = DEFAULT_LIMITS) -> None:
        self._limits = limits
        self._waiting: deque[Waiting] = deque()
        self._octets = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, block: SealedPublications) -> bool:
        return any(one.block.block == block.block and one.block.places == block.places for one in self._waiting)

    def put(self, waiting: Waiting) -> list[Waiting]:
        """Let a block wait; return those that have to give way to it."""
        self._waiting.append(waiting)
        self._octets += len(waiting.block.block)
        gone: list[Waiting] = []
        limits = self._limits
        while len(self._waiting) > limits.seal_waiting or self._octets > limits.seal_waiting_bytes:
            gone.append(self._waiting.popleft())
            self._octets -= len(gone[-1].block.block)
        return gone

    def empty(self) -> list[Waiting]:
        """Return all that waits, in the order of its arrival; nothing waits any more."""
        return self.take(lambda _type: True)

    def take(self, of: Callable[[TypeKey], bool]) -> list[Waiting]:
        """Return what waits of some types, in the order of its arrival; the rest goes on waiting."""
        taken = [waiting for waiting in self._waiting if of(waiting.block.type)]
        self._waiting = deque(waiting for waiting in self._waiting if not of(waiting.block.type))
        self._octets -= sum(len(waiting.block.block) for waiting in taken)
        return taken
