"""Telling sealed events that come for the first time from those that somebody sends again.

Outside of a block stand numbers which every broker on the way can change; inside of it, bound to every column, stand
sender, incarnation and number. A row of a block is taken once by these. What is not remembered any more is refused:

1. Of each sender's incarnation and type a window of numbers is remembered. What lies before it is taken for a copy.
2. So many numbers are remembered as `Limits.seal_replays` says. The stream that was silent for longest is forgotten
   first, and nothing of any unknown stream is taken that was sealed before the last that came of one forgotten; nor,
   when it is known again, is anything from before that.
3. The same holds for what was sealed before the memory began: a broker that starts anew has not to remember.

Only blocks that have opened are asked about, so that nobody without keys fills the memory.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TypeAlias

from penstock.codec.blocks import Header
from penstock.errors import RefusedError
from penstock.model.limits import DEFAULT_LIMITS, Limits
from penstock.model.names import TypeKey

_Name: TypeAlias = tuple[bytes, bytes, TypeKey]


@dataclass(slots=True)
class _Stream:
    """The blocks of one sender, incarnation and type that came lately: the rows taken of each, as bits."""

    #: what was sealed before may have been taken before the stream was forgotten, and came again
    since: datetime
    highest: int = -1
    last: datetime | None = None
    taken: dict[int, int] = field(default_factory=dict)


class Replays:
    """See the module. `since` is when the memory begins, as early as any clock may have it."""

    def __init__(self, since: datetime, limits: Limits = DEFAULT_LIMITS) -> None:
        self._limits = limits
        self._since = since
        self._streams: OrderedDict[_Name, _Stream] = OrderedDict()
        self._numbers = 0
        #: the one that spoke last
        self._latest: _Stream | None = None

    def first(self, header: Header, of_type: TypeKey, rows: Sequence[int]) -> Sequence[int]:
        """Return the places, among rising rows of a block, of those that come for the first time; take all of them.

        Raises `RefusedError`: `seal.too-old` where it is not known whether they do, `seal.replayed` where none does.
        """
        name = header.fixed.sender, header.fixed.incarnation, of_type
        stream = self._streams.get(name)
        if stream is None:
            if header.time < self._since:
                raise too_old()
            stream = self._streams[name] = _Stream(self._since)
        number, before = header.number, stream.taken.get(header.number)
        if before is None:
            if header.time < stream.since:
                raise too_old()
            if number <= stream.highest - self._limits.route_window:
                raise replayed()
            before = 0
            self._numbers += 1
        fresh = range(len(rows)) if not before else [place for place, row in enumerate(rows) if not before >> row & 1]
        if not fresh:
            raise replayed()
        stream.taken[number] = before | _bits(rows)
        if stream.last is None or header.time > stream.last:
            stream.last = header.time
        stream.highest = max(stream.highest, number)
        if stream is not self._latest:
            self._latest = stream
            self._streams.move_to_end(name)
        self._make_room(stream)
        return fresh

    def knows(self, header: Header, of_type: TypeKey, rows: Sequence[int]) -> bool:
        """Say whether all of some rising rows have come before, or come so late that nobody can tell."""
        stream = self._streams.get((header.fixed.sender, header.fixed.incarnation, of_type))
        if stream is None:
            return False
        taken = stream.taken.get(header.number)
        if taken is None:
            return header.number <= stream.highest - self._limits.route_window
        return not _bits(rows) & ~taken

    def _make_room(self, stream: _Stream) -> None:
        window = self._limits.route_window
        if len(stream.taken) > 2 * window:
            kept = {number: rows for number, rows in stream.taken.items() if number > stream.highest - window}
            self._numbers -= len(stream.taken) - len(kept)
            stream.taken = kept
        while self._numbers > self._limits.seal_replays and len(self._streams) > 1:
            _, gone = self._streams.popitem(last=False)
            self._numbers -= len(gone.taken)
            self._since = self._since if gone.last is None else max(self._since, gone.last + datetime.resolution)


def _bits(rows: Sequence[int]) -> int:
    """Return rising rows as bits; mostly they are all that there are."""
    if rows[-1] - rows[0] + 1 == len(rows):
        return (1 << len(rows)) - 1 << rows[0]
    return sum(1 << row for row in rows)


def replayed() -> RefusedError:
    """Return the error for what has come before."""
    return RefusedError(
        "seal.replayed",
        "a sealed block has come before, or comes so late that nobody can tell",
        hint="somebody on its way sends it again",
    )


def too_old() -> RefusedError:
    """Return the error for what was sealed too long ago."""
    return RefusedError(
        "seal.too-old",
        "a block was sealed too long ago to know whether it has come before",
        hint="set the clocks; or somebody sends it again",
    )
