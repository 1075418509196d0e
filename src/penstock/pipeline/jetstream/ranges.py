"""Reading a range of stream sequences, whole: the same range gives the same messages, or says what is gone.

A range is read by a consumer of its own that acknowledges nothing and starts at a sequence, so that reading leaves no
trace and can be repeated. Messages arrive in the order of their sequences; after an interruption the rest is read by a
new consumer. What did not arrive is looked up at the stream's leader:

    deleted or expired there                  lost: counted, and reported by the caller
    held, and the consumer had no filter      its replica lags behind the leader: read again, a bounded number of times
    held, and the server filtered subjects    of another subject

The server filters only where a stream has one replica: behind a filter a lagging replica looks like other subjects.
Where it has more, everything is read and filtered here.
"""

import asyncio
import json
import time
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, NamedTuple

from nats.aio.client import Client
from nats.aio.msg import Msg

from penstock.errors import FailedError, PenstockError
from penstock.fabric.nats_api import TRANSIENT, text, whole
from penstock.fabric.nats_feed import read_place
from penstock.pipeline.jetstream.link import Interrupted, JetStreamLink, deleted_sequences, request, stream_state, woken

_IDLE: Final = 60 * 1_000_000_000  # nanoseconds after which the server forgets a consumer nobody asks
_REREADS: Final = 5


class StreamMessage(NamedTuple):
    """A message as the stream holds it; `time` is in nanoseconds since 1970."""

    subject: str
    sequence: int
    time: int
    headers: dict[str, str]
    payload: bytes


class SequenceGap(NamedTuple):
    """Sequences from `first` to `last`, both included."""

    first: int
    last: int

    @property
    def size(self) -> int:
        """Return how many sequences that are."""
        return self.last - self.first + 1


def matches(pattern: str, subject: str) -> bool:
    """Say whether a subject matches a pattern of NATS.

    >>> matches("a.*.c", "a.b.c"), matches("a.>", "a.b.c"), matches("a.>", "a"), matches("a.*", "a.b.c")
    (True, True, False, False)
    """
    wanted, given = pattern.split("."), subject.split(".")
    for position, part in enumerate(wanted):
        if part == ">":
            return len(given) > position
        if position >= len(given) or part not in ("*", given[position]):
            return False
    return len(wanted) == len(given)


class RangeReader:
    """Reads the messages from `first` to `last`, both included; iterate over `chunks()`, then look at `lost`."""

    def __init__(
        self, link: JetStreamLink, first: int, last: int, *, subjects: Sequence[str] = (), headers_only: bool = False
    ) -> None:
        self._link = link
        self._options = link.options
        self._first, self._last = first, last
        self._subjects = tuple(subjects)
        self._headers_only = headers_only
        self._filtering = False  # whether the server filters
        self._next = first
        self._end = last
        self._consumer: tuple[Client, str, str] | None = None  # the connection it is for, its name, our inbox
        self._pending = 0
        self._got: list[StreamMessage] = []
        self._status = ""
        self._wake = asyncio.Event()
        self.lost: list[SequenceGap] = []

    def chunks(self) -> Iterator[list[StreamMessage]]:
        """Yield the messages, some at a time.

        Raises `FailedError` (`jetstream.incomplete`) when messages that the stream holds do not arrive; otherwise as
        `JetStreamLink.call` and `request`. Fills `lost` with what the stream holds no longer.
        """
        todo = [SequenceGap(self._first, self._last)]
        for attempt in range(_REREADS + 1):
            absent: list[SequenceGap] = []
            for piece in todo:
                self._next, self._end, self._consumer = piece.first, piece.last, None
                while self._next <= self._end:
                    chunk, skipped = self._link.call(self._chunk)
                    absent += skipped
                    if chunk:
                        yield chunk
            todo = self._link.call(partial(self._held, absent=absent))
            if not todo:
                return
            time.sleep(0.05 * 2**attempt)
        raise FailedError(
            "jetstream.incomplete",
            f"stream `{self._options.stream}` holds {sum(g.size for g in todo)} messages from sequence "
            f"{todo[0].first} that do not arrive",
            hint="a replica lags behind; try again",
        )

    async def _chunk(self, client: Client) -> tuple[list[StreamMessage], list[SequenceGap]]:
        """Return the next messages, filtered, and the sequences between them that did not arrive."""
        if self._consumer is None or self._consumer[0] is not client:
            await self._open(client)
        messages = await self._fetch(client) if self._pending else []
        arrived = [m for m in messages if self._next <= m.sequence <= self._end]
        absent: list[SequenceGap] = []
        for message in arrived:
            if message.sequence > self._next:
                absent.append(SequenceGap(self._next, message.sequence - 1))
            self._next = message.sequence + 1
        beyond = bool(messages) and messages[-1].sequence > self._end
        if self._next <= self._end and (beyond or not self._pending):
            absent.append(SequenceGap(self._next, self._end))
            self._next = self._end + 1
        if self._next > self._end:
            await self._close(client)
        if self._subjects:
            arrived = [m for m in arrived if any(matches(pattern, m.subject) for pattern in self._subjects)]
        return arrived, absent

    async def _open(self, client: Client) -> None:
        """Make a consumer that starts at the next sequence to read."""
        config: dict[str, Any] = {
            "deliver_policy": "by_start_sequence",
            "opt_start_seq": self._next,
            "ack_policy": "none",
            "replay_policy": "instant",
            "inactive_threshold": _IDLE,
            "mem_storage": True,
            "num_replicas": 1,
            "headers_only": self._headers_only,
        }
        if self._subjects:
            state = await stream_state(client, self._options)
            self._filtering = state.replicas <= 1
            if self._filtering and len(self._subjects) == 1:
                config["filter_subject"] = self._subjects[0]
            elif self._filtering:
                config["filter_subjects"] = list(self._subjects)
        stream = self._options.stream
        made = await request(
            client, self._options, f"CONSUMER.CREATE.{stream}", {"stream_name": stream, "config": config}
        )
        self._pending = whole(made, "num_pending", default=0)
        inbox = client.new_inbox()
        # No limit on what waits here: a chunk is no larger than what we asked for.
        await client.subscribe(inbox, cb=self._receive, pending_msgs_limit=0, pending_bytes_limit=0)
        self._consumer = client, text(made, "name"), inbox

    async def _close(self, client: Client) -> None:
        if self._consumer is not None:
            # What arrived must not be lost to a failure here; the server forgets the consumer by itself.
            with suppress(*TRANSIENT, Interrupted, PenstockError):
                await request(client, self._options, f"CONSUMER.DELETE.{self._options.stream}.{self._consumer[1]}")
            self._consumer = None

    async def _receive(self, message: Msg) -> None:
        if message.reply:
            place = read_place(message.reply)
            if place is None or self._consumer is None or place[:2] != (self._options.stream, self._consumer[1]):
                return  # not of our consumer: junk of somebody who knows the inbox
            headers: dict[str, str] = message.headers or {}
            self._pending = place.pending
            self._got.append(StreamMessage(message.subject, place.sequence, place.time, headers, message.data))
        elif status := (message.headers or {}).get("Status"):
            self._status = status
        else:
            return
        self._wake.set()

    async def _fetch(self, client: Client) -> list[StreamMessage]:
        """Ask for one chunk and take in all of it."""
        wanted = max(1, min(self._options.fetch_size, self._pending, self._end - self._next + 1))
        size = 0 if self._headers_only else self._options.fetch_bytes
        messages = await self._ask(client, wanted, size)
        if not messages and self._status == "409":  # the next message alone is larger than the limit
            messages = await self._ask(client, 1, 0)
        if not messages and self._status in ("404", "408"):
            self._pending = 0  # what was pending has been deleted since
        elif not messages:
            raise Interrupted(f"status {self._status}")
        return messages

    async def _ask(self, client: Client, wanted: int, size: int) -> list[StreamMessage]:
        if self._consumer is None:
            raise Interrupted("no consumer")
        self._got, self._status = [], ""
        body: dict[str, object] = {"batch": wanted, "no_wait": True}
        if size:
            body["max_bytes"] = size
        subject = f"{self._options.api}.CONSUMER.MSG.NEXT.{self._options.stream}.{self._consumer[1]}"
        await client.publish(subject, json.dumps(body).encode(), reply=self._consumer[2])
        while len(self._got) < wanted and not self._status:
            try:
                await woken(client, self._wake, self._options.timeout)
            except Interrupted:
                self._consumer = None  # a late answer must not be taken for the next one's
                raise
        return self._got

    async def _held(self, client: Client, *, absent: list[SequenceGap]) -> list[SequenceGap]:
        """Add to `lost` what is gone from the stream, and return what should have arrived and did not."""
        if not absent:
            return []
        state = await stream_state(client, self._options)
        deleted = await deleted_sequences(client, self._options) if state.deleted else []
        held: list[SequenceGap] = []
        for gap in absent:
            gone, kept = _split(gap, state.first, state.last, deleted)
            self.lost += gone
            held += kept
        return [] if self._filtering else held


def _split(
    gap: SequenceGap, first: int, last: int, deleted: Sequence[int]
) -> tuple[list[SequenceGap], list[SequenceGap]]:
    """Split a gap into what is gone from a stream and what it holds."""
    gone: list[SequenceGap] = []
    kept: list[SequenceGap] = []
    start, end = gap
    if start < first:
        gone.append(SequenceGap(start, min(end, first - 1)))
        start = first
    tail = SequenceGap(max(start, last + 1), end)
    end = min(end, last)
    for sequence in deleted[bisect_left(deleted, start) : bisect_right(deleted, end)]:
        if start < sequence:
            kept.append(SequenceGap(start, sequence - 1))
        if gone and gone[-1].last == sequence - 1:
            gone[-1] = SequenceGap(gone[-1].first, sequence)
        else:
            gone.append(SequenceGap(sequence, sequence))
        start = sequence + 1
    if start <= end:
        kept.append(SequenceGap(start, end))
    if tail.first <= tail.last:
        gone.append(tail)  # the stream ends before: it was made again
    return gone, kept
