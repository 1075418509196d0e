"""Members: attackers who may connect and nothing else, and who say that they are brokers."""

import asyncio
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from tests.broker.sports import AGENCY, NEWS
from tests.network.hostile.strangers import heavy_certificates
from tests.network.hostile.target import (
    MEMBER,
    Attack,
    Target,
    cheating_broker,
    each_again,
    greet,
    key_of,
    link_to,
)

from penstock.broker.evolution.statements import ACKNOWLEDGEMENT, POLICY, wrap
from penstock.broker.wire.link import Link
from penstock.broker.wire.protocol import (
    AddTypeMessage,
    DescribeTypeMessage,
    Disclose,
    NetworkStatusMessage,
    PeerRole,
    PolicyHeadMessage,
)
from penstock.codec.wire import encode
from penstock.errors import PenstockError
from penstock.model import AttributeDefinition, AttributeSpec, Kind, TransitEvent, TypeDefinition, TypeName
from penstock.model.names import AttributeId, TypeKey
from penstock.trust.event_types import sign_type
from penstock.trust.policy_events import Acknowledgement
from penstock.trust.signed import sign_value

#: more than a broker keeps of one type
JUNK = 1_100
_MIDDLE = 1


async def junk_policy(target: Target) -> None:
    """Join as a broker, and put more junk among the owner's policy than brokers keep of one type."""
    of_policy = TypeKey(AGENCY.principal, POLICY)
    async with cheating_broker(target, MEMBER, _MIDDLE) as node:
        target.begin()
        router = node.core.router
        node.core.settle(router.advertise("junk", of_policy))
        later = datetime.now(UTC) + timedelta(days=1)
        for number in range(JUNK):
            target.blows += 1
            name = str(AttributeId(AGENCY.principal, POLICY, "statement"))
            event = TransitEvent(of_policy, (), {name: f"junk {number}"}, id=f"junk {number}", time=later)
            node.core.settle(router.publish("junk", (event,), f"junk {number}"))
            await asyncio.sleep(0)
        await target.rest()


async def junk_acknowledgements(target: Target) -> None:
    """Join as a broker, and acknowledge the owner's policy under keys that nobody knows."""
    said = target.said()
    async with cheating_broker(target, MEMBER, _MIDDLE) as node:
        target.begin()
        of_type = TypeKey(AGENCY.principal, ACKNOWLEDGEMENT)
        node.core.settle(node.core.router.advertise("junk", of_type))
        while target.going_on:
            target.blows += 1
            key = key_of(f"broker {target.blows}")
            last = said[-1].verify()
            told = Acknowledgement(
                key.principal, AGENCY.principal, last.value.number - 1, last.value.previous, datetime.now(UTC)
            )
            retained = wrap(sign_value(told, key).unverified())
            event = replace(retained.event, id=retained.slot, time=told.time)
            node.core.settle(node.core.router.publish("junk", (event,), retained.slot))
            await asyncio.sleep(0.01)


async def heavy_disclosures(target: Target) -> None:
    """Disclose as many expensive certificates as a broker may, and as a client; others pass them on."""
    heavy = heavy_certificates(250_000)
    async with cheating_broker(target, MEMBER, _MIDDLE) as node, link_to(target, 2, MEMBER) as client:
        target.begin()
        with suppress(PenstockError, TimeoutError):
            await greet(client, PeerRole.CLIENT)
        for number in range(3):
            target.blows += 2
            node.core.settle(node.core.router.disclose(heavy + b"1:%d" % number))
            with suppress(PenstockError):
                client.post(encode(Disclose(number + 1, heavy).to_tree()))
            await asyncio.sleep(target.seconds / 4)
        await target.rest()


async def junk_types(target: Target) -> None:
    """Install types of one's own, again and again, each with many attributes."""
    text = AttributeSpec(Kind.STRING)
    attributes = tuple(AttributeDefinition(f"a{number}", f"a{number}", text) for number in range(200))
    target.begin()
    async with link_to(target, _MIDDLE, MEMBER) as link:
        await greet(link, PeerRole.CLIENT)
        while target.going_on:
            target.blows += 1
            made = TypeDefinition(TypeName(MEMBER.principal, f"Junk{target.blows}"), attributes)
            await link.send(encode(AddTypeMessage(target.blows, sign_type(made, MEMBER).to_bytes()).to_tree()))
            await link.receive()


async def endless_questions(target: Target) -> None:
    """Ask what nobody but operators may ask, and for types, without an end."""
    target.begin()
    async with link_to(target, _MIDDLE, MEMBER) as link:
        await greet(link, PeerRole.CLIENT)
        hearing = asyncio.create_task(_hear(link))
        while target.going_on and not hearing.done():
            for question in (
                NetworkStatusMessage(1),
                PolicyHeadMessage(2, AGENCY.principal, 0),
                DescribeTypeMessage(3, NEWS.name),
                DescribeTypeMessage(4, TypeName(MEMBER.principal, f"None{target.blows}")),
            ):
                target.blows += 1
                with suppress(PenstockError):
                    await link.send(encode(question.to_tree()))
            await asyncio.sleep(0)
        hearing.cancel()
        await asyncio.gather(hearing, return_exceptions=True)


async def _hear(link: Link) -> None:
    with suppress(PenstockError):
        while True:
            await link.receive()


async def reconnect_loops(target: Target) -> None:
    """Join as a broker and leave, again and again, at all brokers."""
    target.begin()

    async def blow() -> None:
        async with link_to(target, target.blows % len(target.ports), MEMBER) as link:
            await greet(link, PeerRole.BROKER)

    await each_again(target, blow, 4)


async def visits(target: Target) -> None:
    """Join as a broker once, and vanish without a word: nobody is to wait for them."""
    target.begin()
    async with cheating_broker(target, MEMBER, _MIDDLE) as node:
        target.blows += 1
        for link in [neighbour.link for neighbour in node.neighbours._neighbours.values()]:
            link._channel.abort()
    await target.rest()


ATTACKS: dict[str, Attack] = {
    "junk among policy": junk_policy,
    "junk acknowledgements": junk_acknowledgements,
    "heavy disclosures": heavy_disclosures,
    "junk types": junk_types,
    "endless questions": endless_questions,
    "reconnect loops": reconnect_loops,
    "a broker that vanishes": visits,
}
