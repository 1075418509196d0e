"""Forgers: members who meddle with policy, by swallowing it, forging it, or saying it again."""

import asyncio
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import count

from tests.broker.node_kit import BROKERS, Broker
from tests.broker.sports import AGENCY
from tests.network.hostile.target import GROUND, MEMBER, Attack, Target, cheating_broker, greet, link_to

from penstock.broker.evolution.statements import POLICY, is_reserved, wrap
from penstock.broker.wire.link import Link
from penstock.broker.wire.plain_trees import principal_tree
from penstock.broker.wire.protocol import Evolve, PeerRole
from penstock.broker.wire.publications import Publications
from penstock.codec.sexp import canonical
from penstock.codec.wire import Writable, encode
from penstock.crypto import SigningKey
from penstock.crypto.keys import digest
from penstock.errors import PenstockError
from penstock.model.names import TypeKey
from penstock.model.principals import Principal
from penstock.trust.policy_events import CarriedStamp, PolicyEvent, Revoke, TimeStamp
from penstock.trust.signed import SignedValue, V

_MIDDLE = 1


def swallow(node: Broker) -> None:
    """Let a node pass on nothing about policy."""
    router = node.core.router
    carry = router._carry

    def selective(block: Publications, came_from: Principal | None) -> None:
        if not is_reserved(block.type.name):
            carry(block, came_from)

    router._carry = selective  # type: ignore[method-assign]  # that is the attack


async def _swallowing(target: Target, key: SigningKey) -> None:
    async with cheating_broker(target, key, 0, len(target.ports) - 1) as node:
        swallow(node)
        target.blows = len(node.neighbours.up())
        target.begin()
        await target.rest()


async def swallowed_policy(target: Target) -> None:
    """Join the line at both ends as a broker, and pass on nothing about policy."""
    await _swallowing(target, MEMBER)


async def ground_rendezvous(target: Target) -> None:
    """Do the same with a key for which all policy of the owner meets at the attacker."""
    await _swallowing(target, GROUND)


def forged(value: V, key: SigningKey) -> SignedValue[V]:
    """Sign what is somebody else's to say."""
    body = value.to_sexp()
    return SignedValue(value, digest(body), body, key.public, key.sign(canonical(body)))


async def forged_policy(target: Target) -> None:
    """Say in the owner's name that all brokers' rights are revoked: as a client, and among what brokers retain."""
    numbers = count(len(target.policy) + 1)
    previous = target.said()[-1].verify().digest
    async with cheating_broker(target, MEMBER, _MIDDLE) as node, link_to(target, 2, MEMBER) as client:
        target.begin()
        _advertise(node)
        with suppress(PenstockError, TimeoutError):
            await greet(client, PeerRole.CLIENT)
        while target.going_on:
            target.blows += 1
            value = PolicyEvent(AGENCY.principal, next(numbers), previous, _now(), (Revoke((_some_id(),)),))
            event = forged(value, MEMBER)
            await _hand_in(node, client, event)


async def replayed_policy(target: Target) -> None:
    """Say again what the owner has said before, as if it were of today."""
    said = target.said()
    async with cheating_broker(target, MEMBER, _MIDDLE) as node, link_to(target, 2, MEMBER) as client:
        target.begin()
        _advertise(node)
        with suppress(PenstockError, TimeoutError):
            await greet(client, PeerRole.CLIENT)
        while target.going_on:
            target.blows += 1
            await _hand_in(node, client, said[target.blows % len(said)].verify())


async def false_heads(target: Target) -> None:
    """Be a broker with all rights, and say how far the owner's policy is: not so far, and much farther."""
    async with cheating_broker(target, BROKERS[4], _MIDDLE, 2) as node:
        target.begin()
        while target.going_on:
            target.blows += 1
            number = 1 + 1_000 * (target.blows % 2)
            stamp = TimeStamp(AGENCY.principal, number, bytes([target.blows % 255 + 1]) * 32, _now(), 3_600_000)
            carried = CarriedStamp(forged(stamp, MEMBER).unverified())
            for peer in node.neighbours.up():
                node.neighbours._links.post(peer, ["stamp", canonical(carried.to_sexp())])
                head: list[Writable] = [[principal_tree(AGENCY.principal), number, stamp.head, bytes(16)]]
                node.neighbours._links.post(peer, ["policy", "heads", head, False])
            await asyncio.sleep(0.01)


def _advertise(node: Broker) -> None:
    node.core.settle(node.core.router.advertise("forged", TypeKey(AGENCY.principal, POLICY)))


async def _hand_in(node: Broker, client: Link, event: SignedValue[PolicyEvent]) -> None:
    retained = wrap(event.unverified())
    later = _now() + timedelta(minutes=1)
    travelling = replace(retained.event, id=retained.slot, time=later)
    with suppress(PenstockError):
        node.core.settle(node.core.router.publish("forged", (travelling,), retained.slot))
    with suppress(PenstockError):
        await client.send(encode(Evolve(1, event.to_bytes()).to_tree()))
    await asyncio.sleep(0.005)


def _some_id() -> str:
    return "cert:" + "a" * 52


def _now() -> datetime:
    return datetime.now(UTC)


ATTACKS: dict[str, Attack] = {
    "policy that is swallowed": swallowed_policy,
    "a key ground to be the rendezvous": ground_rendezvous,
    "forged policy": forged_policy,
    "replayed policy": replayed_policy,
    "false heads": false_heads,
}
