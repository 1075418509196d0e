"""Litter: what a second ordinary NATS client can do that shares the server with the brokers.

It hears all subjects, also before the brokers start, and so it knows topics, inboxes and requests; and it can publish
wherever it likes.
"""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime

import nats
import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js.errors import Error as JetStreamError
from tests.broker.sports import NETWORK
from tests.network.hostile.target import MEMBER, Attack, Target

from penstock.broker.fabric.members import SignedSample
from penstock.broker.limits import BrokerLimits
from penstock.broker.routing.membership import SignedProof
from penstock.errors import PenstockError
from penstock.fabric.envelope import decode, encode
from penstock.fabric.nats_api import settle

#: strikes in a second, so that the server is not merely busy
_RATE = 200
_API = "$JS.API"
_INBOX = "_INBOX"
_SUBJECTS = "penstock"


#: where brokers wait for samples and answers, by what they have asked so far
_inboxes: dict[str, None] = {}


async def listen(target: Target) -> None:
    """Learn inboxes from now on: brokers name them when they ask, which may be long before an attack."""
    ready = threading.Event()

    async def hear() -> None:
        async with _client(target) as client:
            heard = await client.subscribe(f"{_API}.>", pending_msgs_limit=0, pending_bytes_limit=0)
            await settle(client, 10)
            ready.set()
            async for message in heard.messages:
                if message.reply.startswith(_INBOX):
                    _inboxes[message.reply] = None

    _inboxes.clear()
    threading.Thread(target=lambda: asyncio.run(hear()), daemon=True).start()
    await asyncio.to_thread(ready.wait)
    target.begin()


async def _not_permitted(_error: Exception) -> None:
    """Go on: the server lets a client do less than an attacker would like."""


@asynccontextmanager
async def _client(target: Target) -> AsyncIterator[Client]:
    client = await nats.connect(target.nats, no_echo=True, allow_reconnect=False, error_cb=_not_permitted)
    try:
        yield client
    finally:
        await client.close()


def _inbox(target: Target) -> str:
    """Return one inbox after the other."""
    known = list(_inboxes)
    return known[target.blows % len(known)]


async def _hearing(target: Target, strike: Callable[[Client, Msg], Awaitable[None]]) -> None:
    """Answer what is heard with a strike, at a bounded rate."""
    async with _client(target) as client:
        heard = await client.subscribe(">", pending_msgs_limit=0, pending_bytes_limit=0)
        await settle(client, 10)
        target.begin()
        while target.going_on:
            with suppress(nats.errors.TimeoutError):
                message = await heard.next_msg(0.1)
                target.blows += 1
                with suppress(nats.errors.Error):
                    await strike(client, message)
                await asyncio.sleep(1 / _RATE)


async def empty_messages(target: Target) -> None:
    """Send empty messages to all inboxes, with and without a reply subject."""

    async def strike(client: Client, message: Msg) -> None:
        for inbox in (_inbox(target), message.reply):
            if inbox.startswith(_INBOX):
                await client.publish(inbox, b"")
                await client.publish(inbox, b"", reply="nowhere")
                await client.publish(inbox, b"", reply="a.b.c.d.e.f.g.h.i")

    await _hearing(target, strike)


async def unreadable_messages(target: Target) -> None:
    """Send bytes that are nothing at all to inboxes and topics, under replies that look right."""

    async def strike(client: Client, message: Msg) -> None:
        inbox = _inbox(target)
        reply = f"a.b.stream.{inbox.rpartition('.')[2]}.1.{target.blows}.{target.blows}.1.1"
        await client.publish(inbox, b"\xc1\xff junk", reply=reply)
        await client.publish(inbox, b"\xc1\xff junk", headers={"Status": "x", "Nats-Msg-Id": "1"})
        if message.subject.startswith(_SUBJECTS):
            await client.publish(message.subject, b"\xc1\xff junk")

    await _hearing(target, strike)


async def repeated_messages(target: Target) -> None:
    """Send each message once more."""

    async def strike(client: Client, message: Msg) -> None:
        if not message.subject.startswith("$"):
            await client.publish(message.subject, message.data, reply=message.reply)

    await _hearing(target, strike)


async def litter(target: Target) -> None:
    """Drop something on each subject that is heard, and below it."""

    async def strike(client: Client, message: Msg) -> None:
        for subject in (message.subject, f"{message.subject}.more"):
            await client.publish(subject, b"{}")

    await _hearing(target, strike)


async def forged_answers(target: Target) -> None:
    """Answer requests in the place of JetStream: errors, other streams, and what is not JSON.

    The server is quicker. So the attacker takes streams away for a moment: then nobody else answers.
    """
    error = json.dumps({"error": {"code": 404, "err_code": 10059, "description": "stream not found"}}).encode()
    answers = (b"[", b"[]", b"null", b'{"stream": 7, "seq": "x"}', b'{"stream": "other", "seq": 1}', error)

    async def strike(client: Client, message: Msg) -> None:
        for inbox in (_inbox(target), message.reply):
            if inbox.startswith(_INBOX):
                await client.publish(inbox, answers[target.blows % len(answers)])

    await asyncio.gather(_hearing(target, strike), _take_streams_away(target))


#: what requests raise that the attacker has answered itself
_MISLED = (JetStreamError, nats.errors.Error, TypeError, LookupError, ValueError)


async def _take_streams_away(target: Target) -> None:
    async with _client(target) as client:
        streams = client.jetstream()
        while not target.going_on:
            await asyncio.sleep(0.01)
        while target.going_on:
            try:
                known = await streams.streams_info()
            except _MISLED:
                continue
            for made in known:
                with suppress(*_MISLED):
                    await streams.delete_stream(str(made.config.name))
            await asyncio.sleep(0.3)
            for made in known:
                with suppress(*_MISLED):
                    await streams.add_stream(made.config)
            await asyncio.sleep(target.seconds / 2)


async def forged_messages(target: Target) -> None:
    """Send samples of an attacker's own, in the place of those of brokers: signed by who may not, altered, and old."""
    proof = SignedProof(MEMBER, NETWORK, limits=BrokerLimits())

    async def strike(client: Client, message: Msg) -> None:
        if not message.subject.startswith(_SUBJECTS):
            return
        with suppress(PenstockError):
            sample = decode(message.data)
            told = SignedSample.from_bytes(sample.data)
            topic = message.subject.split(".")[2]
            mine = replace(told, origin=MEMBER.principal, time=datetime.now(UTC)).sign(topic, proof)
            altered = replace(told, number=told.number + 1_000)
            for forged in (mine, altered):
                await client.publish(message.subject, encode(replace(sample, data=forged.to_bytes())))

    await _hearing(target, strike)


async def deleted_streams(target: Target) -> None:
    """Delete each stream, and immediately make it again with nothing in it."""
    async with _client(target) as client:
        streams = client.jetstream()
        target.begin()
        while target.going_on:
            for made in await streams.streams_info():
                target.blows += 1
                name = str(made.config.name)
                with suppress(JetStreamError, nats.errors.Error):
                    await streams.delete_stream(name)
                    if target.blows % 2:
                        await streams.add_stream(made.config)
            await asyncio.sleep(target.seconds / 3)


async def other_subjects(target: Target) -> None:
    """Publish under subjects that are not UTF-8: below those of topics, and to inboxes."""
    stems: set[bytes] = {inbox.rpartition(".")[0].encode() for inbox in _inboxes}
    async with _client(target) as client:
        heard = await client.subscribe(f"{_SUBJECTS}.>")
        for _ in range(20):
            stems.add((await heard.next_msg(5)).subject.rpartition(".")[0].encode())
    # The attacker's own client could not read these subjects either.
    host, _, port = target.nats.removeprefix("nats://").partition(":")
    _reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b'CONNECT {"verbose":false}\r\n')
    target.begin()
    while target.going_on:
        for stem in stems:
            target.blows += 1
            writer.write(b"PUB " + stem + b".\xff\xfe 2\r\nxx\r\n")
        await writer.drain()
        await asyncio.sleep(0.1)
    writer.close()
    await writer.wait_closed()


ATTACKS: dict[str, Attack] = {
    "empty messages to inboxes": empty_messages,
    "unreadable messages": unreadable_messages,
    "repeated messages": repeated_messages,
    "litter on every subject": litter,
    "forged answers of JetStream": forged_answers,
    "forged messages": forged_messages,
    "streams that are deleted": deleted_streams,
    "subjects that are not UTF-8": other_subjects,
}
