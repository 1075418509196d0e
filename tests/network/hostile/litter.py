"""Litter: what a second ordinary NATS client can do that shares the server with the brokers.

It hears all subjects, and so it knows topics, inboxes and requests; and it can publish wherever it likes.
"""

import asyncio
import json
import socket
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

from penstock.broker.proofs import SignedProof
from penstock.broker.samples import SignedSample
from penstock.errors import PenstockError
from penstock.fabric.envelope import decode, encode

#: strikes in a second, so that the server is not merely busy
_RATE = 200
_API = "$JS.API"
_INBOX = "_INBOX"
_SUBJECTS = "penstock"


@asynccontextmanager
async def _client(target: Target) -> AsyncIterator[Client]:
    client = await nats.connect(target.nats, no_echo=True, allow_reconnect=False)
    try:
        yield client
    finally:
        await client.close()


async def _hearing(target: Target, strike: Callable[[Client, Msg], Awaitable[None]]) -> None:
    """Answer what is heard with a strike, at a bounded rate."""
    async with _client(target) as client:
        heard = await client.subscribe(">", pending_msgs_limit=0, pending_bytes_limit=0)
        await client.flush()
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
        for inbox in (message.subject, message.reply):
            if inbox.startswith(_INBOX):
                await client.publish(inbox, b"")
                await client.publish(inbox, b"", reply="nowhere")
                await client.publish(inbox, b"", reply="$JS.ACK.a.b.c.d.e.f.g")

    await _hearing(target, strike)


async def unreadable_messages(target: Target) -> None:
    """Send bytes that are nothing at all to inboxes and topics, under replies that look right."""

    async def strike(client: Client, message: Msg) -> None:
        if message.subject.startswith(_INBOX):
            await client.publish(message.subject, b"\xc1\xff junk", reply=message.reply)
            await client.publish(message.subject, b"\xc1\xff junk", headers={"Status": "x", "Nats-Msg-Id": "1"})
        elif message.subject.startswith(_SUBJECTS):
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
    """Answer requests to JetStream before it does: errors, other streams, and what is no JSON."""
    error = json.dumps({"error": {"code": 404, "err_code": 10059, "description": "stream not found"}}).encode()
    answers = (b"[", b"[]", b"null", b'{"stream": 7, "seq": "x"}', b'{"stream": "other", "seq": 1}', error)

    async def strike(client: Client, message: Msg) -> None:
        if message.reply.startswith(_INBOX):
            await client.publish(message.reply, answers[target.blows % len(answers)])

    await _hearing(target, strike)


async def forged_messages(target: Target) -> None:
    """Send samples of an attacker's own, in the place of those of brokers: signed by who may not, altered, and old."""
    proof = SignedProof(MEMBER, NETWORK)

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
    """Delete each stream, and make it again at once with nothing in it."""
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
    """Publish under subjects that are not UTF-8: those of topics, and inboxes."""
    host, _, port = target.nats.removeprefix("nats://").partition(":")
    with socket.create_connection((host, int(port))) as raw:
        raw.sendall(b'CONNECT {"verbose":false}\r\n')

        async def strike(_client: Client, message: Msg) -> None:
            stem = message.subject.rpartition(".")[0].encode("utf-8", "surrogateescape")
            for subject in (stem + b".\xff\xfe", message.subject.encode("utf-8", "surrogateescape") + b"\xff"):
                raw.sendall(b"PUB " + subject + b" 2\r\nxx\r\n")

        await _hearing(target, strike)


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
