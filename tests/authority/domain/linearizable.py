"""A checker of histories (Wing and Gong): is there an order of the calls that explains every answer?

A call takes effect at one moment between its beginning and its end. The checker tries the calls that may come first,
one after the other, and remembers which sets of calls with which state it has tried.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import TypeVar

S = TypeVar("S", bound=Hashable)

#: what is done with a member of a domain
ADD, REMOVE, LOOK = "add", "remove", "look"


def step(there: bool, what: str) -> tuple[bool, object]:
    """Return what a call does to a domain with or without the member, and what it answers."""
    if what == LOOK:
        return there, there
    return what == ADD, there is (what == REMOVE)


@dataclass(frozen=True)
class Call:
    """A call, when it began and ended, and its answer."""

    begin: float
    end: float
    what: str
    answer: object


def linearizable(calls: Sequence[Call], begun: S, step: Callable[[S, str], tuple[S, object]]) -> bool:
    """Return whether some order of the calls explains their answers; `step` gives the next state and the answer."""
    tried: set[tuple[frozenset[int], S]] = set()
    pending = [(frozenset(range(len(calls))), begun)]
    while pending:
        left, state = pending.pop()
        if not left:
            return True
        if (left, state) in tried:
            continue
        tried.add((left, state))
        # A call may come first if no other has ended before it began.
        first_end = min(calls[index].end for index in left)
        for index in left:
            if calls[index].begin <= first_end:
                after, answer = step(state, calls[index].what)
                if answer == calls[index].answer:
                    pending.append((left - {index}, after))
    return False
