"""The protocol of the exactly-once writer: what of a batch is stored, and which attempts may be storing it.

The message. A row's message id is `sink:batch:digest`: the sink is the streaming query's own id (or the write id of a
batch job), the digest is of the row's subject, id and key. It depends on nothing that changes from one attempt to the
next: not on the partition, the order, the payload's encoding or the time. It goes out as `Nats-Msg-Id`, so within the
stream's duplicate window W the server itself drops a second copy. Beyond W the server forgets; hence the ledger.

The ledger is a bucket of the same server, written by compare-and-set only:

    <stream>.<sink>.batch     the latest batch: its number, the run that tries it, whether that run is the first to,
                              whether it is committed, and its floor: the last sequence of the stream before anyone
                              published of it
    <stream>.<sink>.part.<n>  the latest attempt at partition n: batch, run, and a token of the attempt

    (1) Before its first message an attempt writes itself into both.  An older batch than the latest is refused
        (`jetstream.stale-batch`); a committed one is already stored, whole, and nothing is published.
    (2) An attempt is fresh if its run is the first to try the batch, and no attempt of that run at this partition
        went before. Nobody else can have published its rows: it need not look.
    (3) Any other attempt looks: it reads the ids (headers only) of all messages from the floor to the stream's end,
        and leaves out the rows that it finds. A gap there means that a copy may have been stored and be gone: the
        attempt fails (`jetstream.sink-gap`).
    (4) What (2) or (3) established holds for W/2. After that, before it sends more, an attempt looks again: a fresh
        one whether both records are still its own (if not, it goes on by (3)), any other at the messages since.
        An attempt whose batch is committed or outdated stops (`jetstream.superseded`).
    (5) A row is stored when the server acknowledged it; a lost connection makes an attempt look as in (3).
    (6) The driver marks the batch committed when all tasks are done, before Spark notes it in its checkpoint.

Why two attempts cannot both store a row. Let A send it at a and B later at b. If b − a < W the server drops B's. If
b − a ≥ W, B looked at some time v with b − W/2 ≤ v, so v > a. Where B looks at messages, it finds A's. Where B is fresh
and looks at the records: A is not an attempt that went before (2), so A wrote itself into the ledger after B, before a
and so before v; B sees that, and looks at messages. Races of any length are covered, and so are replays at any time.

What is assumed: the server keeps what it acknowledged, the bucket too; no process stands still for W/2 between looking
and sending, nor the network for W/2 with a message in it; the rows of a batch are the same in each attempt (Spark's
offset log and a source that can be replayed give that), and within one run in the same partition; two rows of a batch
that have the same subject, id and key are one message.
"""

import json
import time
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, TypeVar, get_type_hints

from nats.aio.client import Client

from penstock.errors import FailedError, RefusedError
from penstock.fabric.nats_api import payload, whole
from penstock.pipeline.jetstream.link import JetStreamLink, StreamState, compare_and_set, request, stream_state
from penstock.pipeline.jetstream.options import Options
from penstock.pipeline.jetstream.ranges import RangeReader

_NOT_FOUND: Final = 10037
_BUCKET_EXISTS: Final = 10058
_R = TypeVar("_R")


@dataclass(frozen=True)
class Attempt:
    """One try of one task: `sink` and `run` are names, `token` is this try's own."""

    sink: str
    batch: int
    run: str
    partition: int
    token: str

    @property
    def prefix(self) -> str:
        """Return how the ids of this batch's messages begin."""
        return f"{self.sink}:{self.batch}:"


@dataclass(frozen=True)
class BatchRecord:
    """The latest batch of a sink."""

    batch: int
    run: str
    first_run: bool
    committed: bool
    floor: int
    created: str  # when the stream was made that the floor is of


@dataclass(frozen=True)
class PartitionClaim:
    """The latest attempt at a partition."""

    batch: int
    run: str
    token: str


class LedgerBucket:
    """The ledger's bucket, by keys; every write compares first."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._stream = f"KV_{options.state_bucket}"

    def _subject(self, key: str) -> str:
        return f"$KV.{self._options.state_bucket}.{self._options.stream}.{key}"

    async def ensure(self, client: Client, replicas: int) -> None:
        """Make the bucket if there is none, with as many replicas as the stream has.

        Raises `RefusedError` (`jetstream.sink-retention`) for a bucket that forgets.
        """
        try:
            info = await request(client, self._options, f"STREAM.INFO.{self._stream}")
        except RefusedError as error:
            if error.code != "jetstream.no-stream":
                raise
        else:
            if whole(info, "config", "max_age", default=0):
                raise RefusedError(
                    "jetstream.sink-retention",
                    f"bucket `{self._options.state_bucket}` forgets what it holds after a time",
                    hint="give option `stateBucket` a bucket without a time to live",
                )
            return
        body = {
            "name": self._stream,
            "subjects": [f"$KV.{self._options.state_bucket}.>"],
            "max_msgs_per_subject": 1,
            "discard": "new",
            "storage": "file",
            "num_replicas": replicas,
            "max_consumers": -1,
            "max_msgs": -1,
            "max_bytes": -1,
            "max_msg_size": -1,
            "deny_delete": True,
            "allow_rollup_hdrs": True,
            "allow_direct": False,  # only the leader's answer is current
            "description": "what penstock.jetstream has written",
        }
        try:
            await request(client, self._options, f"STREAM.CREATE.{self._stream}", body)
        except RefusedError as error:
            if error.fields.get("err_code") != _BUCKET_EXISTS:
                raise

    async def get(self, client: Client, key: str) -> tuple[dict[str, Any] | None, int]:
        """Return a value and its revision; (None, 0) where there is none."""
        body = {"last_by_subj": self._subject(key)}
        try:
            answer = await request(client, self._options, f"STREAM.MSG.GET.{self._stream}", body)
        except RefusedError as error:
            if error.fields.get("err_code") != _NOT_FOUND:
                raise
            return None, 0
        data, revision = payload(answer)
        try:
            value = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise self._unreadable() from error
        if not isinstance(value, dict):
            raise self._unreadable()
        return value, revision

    def _unreadable(self) -> FailedError:
        return FailedError(
            "jetstream.state",
            f"a record in bucket `{self._options.state_bucket}` cannot be read",
            hint="let nobody else write to the bucket; with another `stateBucket` the sink begins again",
        )

    def _record(self, kind: type[_R], value: dict[str, Any]) -> _R:
        fields = get_type_hints(kind)
        if value.keys() != fields.keys() or any(type(value[name]) is not of for name, of in fields.items()):
            raise self._unreadable()
        return kind(**value)

    async def put(self, client: Client, key: str, value: BatchRecord | PartitionClaim, revision: int) -> bool:
        """Store a value if the key still has this revision; say whether it was stored."""
        data = json.dumps(asdict(value)).encode()
        return await compare_and_set(client, self._options, self._subject(key), data, revision, stream=self._stream)

    async def batch(self, client: Client, sink: str) -> tuple[BatchRecord | None, int]:
        """Return the record of a sink's latest batch."""
        value, revision = await self.get(client, f"{sink}.batch")
        return (None if value is None else self._record(BatchRecord, value)), revision

    async def claim(self, client: Client, sink: str, partition: int) -> tuple[PartitionClaim | None, int]:
        """Return the record of the latest attempt at a partition."""
        value, revision = await self.get(client, f"{sink}.part.{partition}")
        return (None if value is None else self._record(PartitionClaim, value)), revision


class PublishLedger:
    """One attempt's view of the ledger. `begin`, then `confirm` before each time it sends."""

    def __init__(self, link: JetStreamLink, attempt: Attempt) -> None:
        self._link = link
        self._options = link.options
        self.attempt = attempt
        self._records = LedgerBucket(link.options)
        self._fresh = False
        self._looked_to = 0  # the sequence up to which messages were looked at
        self._holds_until = 0.0
        self._window = 0.0
        self.committed = False
        self.stored: set[str] = set()

    def begin(self) -> None:
        """Write the attempt into the ledger (1). `committed` says that nothing is left to do.

        Raises `RefusedError`: `jetstream.stale-batch`, `jetstream.sink-retention`; and as `JetStreamLink.call`.
        """
        looked = time.monotonic()
        self._link.call(self._enter)
        if self._fresh:
            self._holds_until = looked + self._window / 2

    async def _enter(self, client: Client) -> None:
        mine = self.attempt
        state = await stream_state(client, self._options)
        _check_retention(self._options, state)
        self._window = state.duplicate_window
        await self._records.ensure(client, state.replicas)
        record = await self._enter_batch(client)
        self.committed = record.committed
        if self.committed:
            return
        while True:
            claim, revision = await self._records.claim(client, mine.sink, mine.partition)
            # Ours too, from before a connection was lost: whether another went before that is not known any more.
            before = claim is not None and (claim.batch, claim.run) == (mine.batch, mine.run)
            if await self._records.put(
                client, f"{mine.sink}.part.{mine.partition}", PartitionClaim(mine.batch, mine.run, mine.token), revision
            ):
                break
        self._fresh = record.first_run and not before
        self._looked_to = record.floor

    async def _enter_batch(self, client: Client) -> BatchRecord:
        mine = self.attempt
        while True:
            record, revision = await self._records.batch(client, mine.sink)
            if record is not None and record.batch > mine.batch:
                raise RefusedError(
                    "jetstream.stale-batch",
                    f"the sink has batch {record.batch}, and this is batch {mine.batch}",
                    hint="a checkpoint was put back to an earlier state: use a new one, or a new `writeId`",
                    latest=record.batch,
                    batch=mine.batch,
                )
            if record is not None and record.batch == mine.batch and (record.committed or record.run == mine.run):
                return record
            state = await stream_state(client, self._options)
            if record is None or record.batch < mine.batch:
                # Nobody has entered this batch, so nothing of it is in the stream: it can only come after this.
                mark = BatchRecord(mine.batch, mine.run, True, False, state.last, state.created)
            elif record.created == state.created or not self._options.fail_on_data_loss:
                mark = replace(record, run=mine.run, first_run=False)
            else:
                raise self._gap("is not the one that an earlier attempt wrote to")
            if await self._records.put(client, f"{mine.sink}.batch", mark, revision):
                return mark

    def doubt(self) -> None:
        """Note that messages of this attempt itself may have been stored without our knowing (5)."""
        self._fresh = False
        self._holds_until = 0.0

    def confirm(self) -> None:
        """Look again if what we know may be out of date (4).

        Raises `FailedError` (`jetstream.superseded`, `jetstream.sink-gap`); and as `JetStreamLink.call`.
        """
        looked = time.monotonic()
        if looked < self._holds_until:
            return
        if not self._link.call(self._still_alone):
            self._look()
        self._holds_until = looked + self._window / 2

    async def _still_alone(self, client: Client) -> bool:
        mine = self.attempt
        record, _ = await self._records.batch(client, mine.sink)
        if record is None or record.batch != mine.batch or record.committed:
            raise FailedError(
                "jetstream.superseded",
                f"batch {mine.batch} was finished by another attempt",
                hint="nothing is lost; this attempt came too late",
            )
        claim, _ = await self._records.claim(client, mine.sink, mine.partition)
        alone = record.run == mine.run and record.first_run and claim is not None and claim.token == mine.token
        self._fresh = self._fresh and alone
        return self._fresh

    def _look(self) -> None:
        """Read the ids of this batch's messages since the last look (3)."""
        last = self._link.call(lambda client: stream_state(client, self._options)).last
        if last <= self._looked_to:
            return
        reader = RangeReader(self._link, self._looked_to + 1, last, headers_only=True)
        prefix = self.attempt.prefix
        for chunk in reader.chunks():
            for message in chunk:
                stored = message.headers.get("Nats-Msg-Id", "")
                if stored.startswith(prefix):
                    self.stored.add(stored)
        if reader.lost and self._options.fail_on_data_loss:
            raise self._gap(f"no longer holds the sequences {reader.lost[0].first} to {reader.lost[-1].last}")
        self._looked_to = last

    def _gap(self, what: str) -> FailedError:
        return FailedError(
            "jetstream.sink-gap",
            f"stream `{self._options.stream}` {what}, so it is unknown what is missing of batch {self.attempt.batch}",
            hint="keep messages longer than a restart takes; `failOnDataLoss` false risks a loss or a second copy",
            batch=self.attempt.batch,
        )


def commit_batch(link: JetStreamLink, sink: str, batch: int) -> None:
    """Mark a batch as stored, whole (6). Raises `FailedError` (`jetstream.no-ledger`); and as `JetStreamLink.call`."""
    records = LedgerBucket(link.options)

    async def mark(client: Client) -> None:
        while True:
            record, revision = await records.batch(client, sink)
            if record is not None and (record.batch > batch or (record.batch == batch and record.committed)):
                return
            if record is None:
                raise FailedError("jetstream.no-ledger", f"the record of sink `{sink}` is gone")
            done = replace(record, batch=batch, first_run=False, committed=True)
            if await records.put(client, f"{sink}.batch", done, revision):
                return

    link.call(mark)


def _check_retention(options: Options, state: StreamState) -> None:
    if state.retention != "limits":
        raise RefusedError(
            "jetstream.sink-retention",
            f"stream `{options.stream}` keeps messages by `{state.retention}`, not by limits",
            hint="what consumers took cannot be looked up any more; write to a stream with limits, and source from it",
        )
