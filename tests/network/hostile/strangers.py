"""Strangers: attackers without any credentials, who can do no more than connect."""

import asyncio
import socket
import ssl
from contextlib import suppress

from tests.broker.node_kit import HOST
from tests.broker.sports import AGENCY
from tests.network.hostile.target import Attack, Target, each_again, greet, key_of, link_to

from penstock.broker.wire.protocol import PeerRole
from penstock.codec.sexp import SExp, canonical
from penstock.crypto.keys import digest
from penstock.crypto.tls import client_context
from penstock.model.principals import Principal

STRANGER = key_of("stranger")
#: connections of one flood that are open at the same time
_CROWD = 200


def heavy_certificates(size: int, members: int = 100) -> bytes:
    """Return so many bytes of certificates whose tags have sets of patterns: short to send, long to compare."""
    found = b""
    # One object after the other, because the nodes of a sequence are counted together.
    while True:
        one = len(found)
        patterns = ((b"a%d" % one, (b"*", b"set", b"%d" % member, b"z%d" % member)) for member in range(members))
        more = b"".join(map(canonical, _signed((b"x", (b"*", b"set", *patterns)))))
        if len(found) + len(more) > size:
            return found
        found += more


def _signed(tag: SExp) -> tuple[SExp, SExp]:
    key = STRANGER
    body = (
        b"cert",
        (b"issuer", _hash(key.principal)),
        (b"subject", _hash(AGENCY.principal)),
        (b"tag", tag),
    )
    octets = key.sign(canonical(body))
    return body, (b"signature", (b"hash", b"sha256", digest(body)), key.public.to_sexp(), octets)


def _hash(principal: Principal) -> SExp:
    return b"hash", b"sha256", principal.digest


async def heavy_hellos(target: Target) -> None:
    """Say hello with as many expensive certificates as fit into a frame, to all brokers, as both kinds of peer."""
    heavy = heavy_certificates(998_000)
    target.begin()
    turn = 0

    async def blow() -> None:
        nonlocal turn
        turn += 1
        async with link_to(target, turn % len(target.ports), key_of(f"stranger {turn}")) as link:
            await greet(link, PeerRole.BROKER if turn % 2 else PeerRole.CLIENT, heavy)

    await each_again(target, blow)


async def empty_hellos(target: Target) -> None:
    """Say hello without anything to show, again and again, always as somebody else."""
    target.begin()

    async def blow() -> None:
        key = key_of(f"nobody {target.blows}")
        async with link_to(target, target.blows % len(target.ports), key) as link:
            await greet(link, PeerRole.BROKER if target.blows % 2 else PeerRole.CLIENT)

    await each_again(target, blow, 4)


async def giant_frames(target: Target) -> None:
    """Announce large frames, send most of them, and wait: before the handshake, and in the place of a hello."""
    target.begin()
    giant = (1 << 20).to_bytes(4, "big") + bytes(900_000)

    async def before_the_handshake() -> None:
        reader, writer = await _tls(target, target.blows % len(target.ports))
        try:
            writer.write(giant)
            async with asyncio.timeout(1):
                await writer.drain()
                await reader.read()
        finally:
            writer.transport.abort()

    async def after_the_handshake() -> None:
        key = key_of(f"giant {target.blows}")
        async with link_to(target, target.blows % len(target.ports), key) as link:
            link._channel.write(giant)
            async with asyncio.timeout(1):
                await link.receive()

    await asyncio.gather(each_again(target, before_the_handshake, 8), each_again(target, after_the_handshake, 8))


async def _tls(target: Target, broker: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection(
        HOST, target.ports[broker], ssl=client_context(), server_hostname="", ssl_handshake_timeout=5
    )


async def connection_flood(target: Target) -> None:
    """Connect without a word and leave immediately, many times."""
    target.begin()

    async def blow() -> None:
        _, writer = await asyncio.open_connection(HOST, target.ports[target.blows % len(target.ports)])
        writer.transport.abort()

    await each_again(target, blow, 16)


async def tls_flood(target: Target) -> None:
    """Go through TLS handshakes and leave."""
    target.begin()

    async def blow() -> None:
        with suppress(ssl.SSLError):
            _, writer = await _tls(target, target.blows % len(target.ports))
            writer.transport.abort()

    await each_again(target, blow, 8)


async def half_open_connections(target: Target) -> None:
    """Hold as many connections as there can be in handshakes, which do not go on: some in TCP, some in TLS."""
    target.begin()
    while target.going_on:
        held: list[socket.socket] = []
        for number in range(_CROWD):
            target.blows += 1
            with suppress(OSError):
                one = socket.create_connection((HOST, target.ports[number % len(target.ports)]), timeout=1)
                held.append(one)
                if number % 2:
                    # The beginning of a TLS record that never comes.
                    one.send(b"\x16\x03\x01\x02\x00\x01")
            await asyncio.sleep(0)
        await asyncio.sleep(min(1.0, target.seconds / 4))
        for one in held:
            one.close()


ATTACKS: dict[str, Attack] = {
    "heavy hellos": heavy_hellos,
    "empty hellos": empty_hellos,
    "giant frames": giant_frames,
    "connection flood": connection_flood,
    "TLS handshake flood": tls_flood,
    "half-open connections": half_open_connections,
}
