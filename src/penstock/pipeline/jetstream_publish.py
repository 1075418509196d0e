"""Publishing the rows of one task attempt, each exactly once. The protocol is in `jetstream_ledger`."""

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from typing import Final, NamedTuple

from nats.aio.client import Client
from nats.aio.msg import Msg

from penstock.errors import FailedError, LimitError, MalformedError, RefusedError
from penstock.fabric.nats_api import TRANSIENT, AnswerError, ApiError, read_answer, text
from penstock.pipeline.jetstream_ledger import Attempt, Ledger
from penstock.pipeline.jetstream_link import Interrupted, Link, refusal, woken
from penstock.pipeline.jetstream_options import Options

_ID: Final = "ce-id"
_CHUNK_OCTETS: Final = 8 * 1024 * 1024


class Outgoing(NamedTuple):
    """A row on its way: where to, what makes it itself, and what it carries."""

    subject: str
    id: str
    key: str
    headers: Mapping[str, str]
    payload: bytes


@dataclass
class Counts:
    """What became of the rows of an attempt: rows = published + found + merged."""

    rows: int = 0
    published: int = 0
    found: int = 0  # an earlier attempt had stored them
    merged: int = 0  # another row of this attempt was the same message


def digest(row: Outgoing) -> str:
    """Return what identifies a row within its batch, whatever attempt and partition it is in."""
    hashed = blake2b(digest_size=16)
    for part in (row.subject, row.id, row.key):
        octets = part.encode()
        hashed.update(len(octets).to_bytes(8, "big"))
        hashed.update(octets)
    return hashed.hexdigest()


def publish_rows(options: Options, attempt: Attempt, rows: Iterable[Outgoing]) -> Counts:
    """Store each row's message exactly once, and return what was done.

    Raises `MalformedError` (`jetstream.bad-row`, `jetstream.id-reused`), `LimitError` (`jetstream.too-large`),
    `RefusedError` (`jetstream.refused` and those of `Ledger.begin`), `FailedError` (those of `Ledger.confirm`, and
    `jetstream.unreachable`).
    """
    counts = Counts()
    with Link(options) as link:
        ledger = Ledger(link, attempt)
        publisher = _Publisher(link, ledger)
        bodies: dict[str, bytes] = {}
        source = iter(rows)
        for number, chunk in enumerate(_chunks(source, options.max_in_flight)):
            if not number:
                ledger.begin()
            if ledger.committed:
                counts.rows += len(chunk)
                counts.found += len(chunk)
                continue
            prepared = _distinct(attempt, chunk, bodies)
            counts.rows += len(chunk)
            counts.merged += len(chunk) - len(prepared)
            publisher.store(prepared, counts)
    return counts


def _chunks(rows: Iterator[Outgoing], size: int) -> Iterator[list[Outgoing]]:
    """Yield the rows in chunks, of so many or so large that they are sent in no time against the window."""
    chunk: list[Outgoing] = []
    octets = 0
    for row in rows:
        chunk.append(row)
        octets += len(row.payload)
        if len(chunk) >= size or octets >= _CHUNK_OCTETS:
            yield chunk
            chunk, octets = [], 0
    if chunk:
        yield chunk


def _distinct(attempt: Attempt, rows: Sequence[Outgoing], bodies: dict[str, bytes]) -> dict[str, Outgoing]:
    """Return the rows by their message ids, without those that an earlier row of the attempt equals."""
    prepared: dict[str, Outgoing] = {}
    for row in rows:
        _check(row)
        name = attempt.prefix + digest(row)
        body = blake2b(row.payload, digest_size=8).digest()
        known = bodies.setdefault(name, body)
        if known != body:
            raise MalformedError(
                "jetstream.id-reused",
                f"two rows of one batch have subject `{row.subject}` and id `{row.id}`, and different payloads",
                hint="give them different ids, or tell them apart by a column `key`",
            )
        if known is body:
            prepared[name] = row
    return prepared


def _check(row: Outgoing) -> None:
    """Refuse what would not arrive as it was sent. Raises `MalformedError` (`jetstream.bad-row`)."""
    if not row.subject or any(c.isspace() or c in "*>" for c in row.subject) or "" in row.subject.split("."):
        raise MalformedError("jetstream.bad-row", f"`{row.subject}` is not a subject to publish to")
    for name, value in row.headers.items():
        printable = all(33 <= ord(c) <= 126 and c != ":" for c in name)
        if not name or not printable or "\r" in value or "\n" in value:
            raise MalformedError("jetstream.bad-row", f"header `{name}` of row `{row.id}` cannot be sent")
    if not row.id or not row.id.isprintable():
        raise MalformedError(
            "jetstream.bad-row", "a row's id is missing, or has characters that no header can have", hint="column `id`"
        )


class _Publisher:
    """Sends messages, many in flight, and waits until each is acknowledged."""

    def __init__(self, link: Link, ledger: Ledger) -> None:
        self._link = link
        self._options = link.options
        self._ledger = ledger
        self._inbox: tuple[Client, str] | None = None
        self._prefix = ledger.attempt.prefix
        self._waiting: dict[str, None] = {}  # ids of messages that are not acknowledged, in order
        self._refused: Exception | None = None
        self._wake = asyncio.Event()

    def store(self, rows: dict[str, Outgoing], counts: Counts) -> None:
        """Store some messages. Each retry first looks at what the one before has stored."""
        left = dict(rows)
        for attempt in range(self._options.retries + 1):
            self._ledger.confirm()
            for name in [name for name in left if name in self._ledger.stored]:
                del left[name]
                counts.found += 1
            try:
                self._link.call(partial(self._send, left=left, counts=counts))
            except _Unsure as error:
                self._ledger.doubt()
                if attempt == self._options.retries:
                    raise FailedError(
                        "jetstream.unreachable",
                        f"{len(left)} messages to {self._options.servers} were not acknowledged",
                        hint="check the server, and options `timeout` and `retries`",
                    ) from error
            else:
                return

    async def _send(self, client: Client, *, left: dict[str, Outgoing], counts: Counts) -> None:
        """Send what is left and take out what was acknowledged.

        The link must not repeat this by itself, so what failed leaves as `_Unsure`: first the ledger has to look.
        """
        self._waiting, self._refused = dict.fromkeys(left), None
        try:
            await self._send_all(client, left)
        except (*TRANSIENT, Interrupted) as error:
            raise _Unsure from error
        finally:
            for name in [name for name in left if name not in self._waiting]:
                del left[name]
                counts.published += 1

    async def _send_all(self, client: Client, left: dict[str, Outgoing]) -> None:
        if self._inbox is None or self._inbox[0] is not client:
            self._inbox = client, client.new_inbox()
            await client.subscribe(
                f"{self._inbox[1]}.*", cb=self._acknowledged, pending_msgs_limit=0, pending_bytes_limit=0
            )
        limit = client.max_payload
        for name, row in left.items():
            headers = self._headers(name, row)
            if len(row.payload) + sum(len(k) + len(v) * 4 + 4 for k, v in headers.items()) + 16 > limit:
                raise LimitError("jetstream.too-large", f"row `{row.id}` is larger than the server's {limit} octets")
            # The reply's last part is the digest: an answer that comes late can only speak for the same message.
            reply = f"{self._inbox[1]}.{name.rpartition(':')[2]}"
            await client.publish(row.subject, row.payload, reply=reply, headers=headers)
        while self._waiting and self._refused is None:
            await woken(client, self._wake, self._options.timeout)
        if self._refused is not None:
            raise self._refused

    def _headers(self, name: str, row: Outgoing) -> dict[str, str]:
        """Return the headers to send: the row's own, but of those that the server acts on only ours."""
        headers = {key: value for key, value in row.headers.items() if not key.lower().startswith("nats-")}
        if not any(key.lower() == _ID for key in headers):
            headers[_ID] = row.id
        return headers | {"Nats-Msg-Id": name, "Nats-Expected-Stream": self._options.stream}

    async def _acknowledged(self, message: Msg) -> None:
        name = self._prefix + message.subject.rpartition(".")[2]
        if (message.headers or {}).get("Status"):
            self._refused = RefusedError(
                "jetstream.refused",
                f"no stream takes a subject of the rows; `{self._options.stream}` should",
                hint="check the stream's subjects",
            )
        else:
            try:
                if text(read_answer(message.data), "stream") != self._options.stream:
                    return
            except ApiError as error:
                self._refused = refusal(self._options, error.answer)
            except AnswerError:
                return  # not of the server: its own answer is waited for
            else:
                self._waiting.pop(name, None)
        self._wake.set()


class _Unsure(Exception):  # noqa: N818  # not an error that leaves this room
    """Messages were sent, and it is not known whether they were stored."""
