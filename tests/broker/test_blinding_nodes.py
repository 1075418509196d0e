"""Blinded types at nodes that run: who carries them learns no name, and labels change without an event being lost."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from tests.broker.node_kit import BROKERS, LIMITS, LONG, Broker, client_of, refused, run, running, until
from tests.broker.sports import AGENCY, NUMBER, PDA, REPORTER, TEXT, grant

from penstock.broker.client.client import Subscription
from penstock.broker.keys.log import MemoryLog
from penstock.broker.keys.node_keys import Managing
from penstock.broker.wire.link import Link
from penstock.broker.wire.protocol import LABELS as ASKED
from penstock.broker.wire.protocol import KeyWord
from penstock.codec.wire import Encoded, encode
from penstock.crypto import SigningKey
from penstock.crypto.blinding import is_blinded
from penstock.crypto.wrapping import Secret
from penstock.model.names import TypeName
from penstock.model.types import AttributeDefinition, Sealing, TypeDefinition
from penstock.trust.capabilities import Right, event_tag
from penstock.trust.certificates import Authorisation, Certificate, issue
from penstock.trust.credentials import Credentials
from penstock.trust.event_types import sign_type
from penstock.trust.key_statements import KeyGroup
from penstock.trust.validity import ALWAYS

OWNER = SigningKey(bytes([15]) * 32)
PLATE = TypeDefinition(
    TypeName(OWNER.principal, "uk.gov.pito.Numberplate"),
    (AttributeDefinition("plate", "0", TEXT), AttributeDefinition("speed", "1", NUMBER)),
    sealing=Sealing.ATTRIBUTE,
    blinded=True,
)
TYPE = PLATE.name.key
SIGNED = sign_type(PLATE, OWNER, Credentials.of(grant(OWNER, None, Right.INSTALL)))
LABELS = KeyGroup(TYPE, labels=True)
PUB, BETWEEN, SUB, TRUSTED = BROKERS[:4]
#: requests that found no way yet are soon repeated
QUICK = replace(LIMITS, key_retry=400)


def may(who: SigningKey, *rights: Right) -> Certificate:
    tag = event_tag(OWNER.principal, PLATE.name.name, None, rights)
    return issue(Authorisation(OWNER.principal, who.principal, tag, False, ALWAYS), OWNER)


POLICY = (
    may(PDA, Right.SUBSCRIBE),
    may(REPORTER, Right.PUBLISH),
    may(PUB, Right.PUBLISH, Right.KEYS, Right.ROUTE),
    may(SUB, Right.SUBSCRIBE, Right.ROUTE),
    may(TRUSTED, Right.ROUTE),
)


def managing() -> Managing:
    return Managing(MemoryLog(), Secret(bytes(range(32))))


def labels(node: Broker) -> int:
    """Return of how many labels of the type a node has the key."""
    return len(node.core.labels.trees(TYPE))


def trees(node: Broker) -> set[str]:
    """Return the labels in whose trees a node stands."""
    return {tree.name for tree in node.core.router._forest.trees if is_blinded(tree)}


@asynccontextmanager
async def row(**more: Any) -> AsyncIterator[tuple[Broker, Broker, Broker]]:
    """One that manages keys and publishes, one that only carries, one that reads. All use the owner's policy."""
    policy = (*POLICY, may(BETWEEN, Right.ROUTE))
    async with (
        running(*policy, key=PUB, types=(SIGNED,), managing=managing(), **more) as pub,
        running(*policy, key=BETWEEN, types=(SIGNED,), peers=(pub.address,), **more) as between,
        running(*policy, key=SUB, types=(SIGNED,), peers=(between.address,), **more) as sub,
    ):
        yield pub, between, sub


async def plates(news: Subscription, number: int) -> list[object]:
    return [(await news.next(LONG))["plate"] for _ in range(number)]


def test_a_broker_without_keys_carries_what_it_cannot_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the one trusted way fails, events go through a foreign domain, which is never told what they are."""
    heard: list[bytes] = []
    post = Link.post

    def listening(link: Link, octets: Encoded, *, urgent: bool = False, eager: bool = False) -> None:
        if link.peer.principal == BETWEEN.principal:
            heard.append(bytes(octets))
        post(link, octets, urgent=urgent, eager=eager)

    monkeypatch.setattr(Link, "post", listening)
    known: dict[str, Any] = {"types": (SIGNED,), "limits": QUICK}

    async def test() -> None:
        async with (
            running(key=BETWEEN, types=()) as between,
            running(*POLICY, key=TRUSTED, **known) as trusted,
            running(*POLICY, key=PUB, peers=(between.address, trusted.address), managing=managing(), **known) as pub,
            running(*POLICY, key=SUB, peers=(between.address, trusted.address), **known) as sub,
        ):
            await until(lambda: labels(pub) == labels(sub) == 1)
            async with client_of(sub, PDA) as reader, client_of(pub, REPORTER) as writer:
                news = await reader.subscribe(PLATE.name, "speed > 70")
                feed = await writer.advertise(PLATE.name)
                await until(lambda: not feed.quiet)
                await trusted.stop()
                await until(lambda: pub.sees(between, sub) and sub.sees(between, pub) and between.sees(pub, sub))
                await until(lambda: trees(between) == trees(pub))
                await until(lambda: not feed.quiet)
                for number in range(3):
                    await feed.publish(plate=f"AE05 {number}", speed=90)
                assert await plates(news, 3) == [f"AE05 {number}" for number in range(3)]
            shown = [encode(between.status(AGENCY.principal)), str([*between.told, *between.records]).encode()]
            assert any(b"sealed" in octets for octets in heard)
            for word in (b"Numberplate", b"AE05", OWNER.principal.digest, str(OWNER.principal).encode()):
                assert not any(word in octets for octets in [*heard, *shown]), word

    run(test())


def test_labels_change_under_traffic_and_every_event_comes_once() -> None:
    async def test() -> None:
        limits = replace(QUICK, label_overlap=5_000)
        async with row(limits=limits) as (pub, between, sub), client_of(sub, PDA) as reader:
            await until(lambda: labels(pub) == labels(sub) == 1)
            assert labels(between) == 0
            async with client_of(pub, REPORTER) as writer:
                news = await reader.subscribe(PLATE.name)
                feed = await writer.advertise(PLATE.name)
                await until(lambda: not feed.quiet)
                before = trees(between)
                pub.keys.rotate(LABELS)
                published = 0
                both = False
                while before & trees(between) or len(trees(between)) != 1:
                    both |= len(trees(between)) == 2
                    await feed.publish(plate=str(published), speed=1)
                    published += 1
                    await asyncio.sleep(0.01)
                    assert not feed.quiet
                await feed.publish(plate="last", speed=1)
                got = await plates(news, published + 1)
                assert both
                assert got[-1] == "last"
                assert sorted(got[:-1], key=lambda plate: int(str(plate))) == [str(n) for n in range(published)]
                assert news.waiting == 0

    run(test())


def test_a_broker_that_starts_while_labels_change_finds_both() -> None:
    async def test() -> None:
        # Longer than the test: all of it happens while others publish under the old label.
        limits = replace(QUICK, label_overlap=60_000)
        policy = (*POLICY, may(BETWEEN, Right.ROUTE))
        async with row(limits=limits) as (pub, between, sub), client_of(pub, REPORTER) as writer:
            await until(lambda: labels(pub) == labels(sub) == 1 and pub.sees(between, sub) and sub.sees(pub, between))
            feed = await writer.advertise(PLATE.name)
            await sub.stop()
            pub.keys.rotate(LABELS)
            again = running(*policy, key=SUB, types=(SIGNED,), peers=(between.address,), limits=limits)
            async with again as reborn, client_of(reborn, PDA) as reader:
                news = await reader.subscribe(PLATE.name)
                await until(lambda: labels(reborn) == 2)
                old, _ = pub.core.labels.trees(TYPE)
                assert pub.core.labels.in_use(TYPE) == old
                await until(lambda: BETWEEN.principal in pub.core.router._forest.trees[old].subscriptions)
                await feed.publish(plate="early", speed=1)
                assert await plates(news, 1) == ["early"]
                assert news.waiting == 0

    run(test())


def test_who_loses_its_right_loses_the_label() -> None:
    async def test() -> None:
        limits = replace(QUICK, label_overlap=300)
        async with row(limits=limits) as (pub, _, sub):
            await until(lambda: labels(pub) == labels(sub) == 1)
            known = sub.core.labels.in_use(TYPE)
            pub.policy(*(one for one in POLICY if one != may(SUB, Right.SUBSCRIBE, Right.ROUTE)))
            await until(lambda: pub.core.labels.trees(TYPE) != [known] and labels(pub) == 1)
            assert pub.core.labels.in_use(TYPE) not in sub.core.labels.trees(TYPE)

    run(test())


def test_labels_change_when_somebody_asks_for_that_and_not_with_the_keys() -> None:
    async def test() -> None:
        policy = (*POLICY, grant(OWNER, None, Right.CONNECT))
        async with (
            running(*policy, key=PUB, types=(SIGNED,), managing=managing()) as pub,
            client_of(pub, OWNER) as owner,
        ):
            await until(lambda: labels(pub) == 1)
            assert LABELS.scope not in await owner.keys(KeyWord.ROTATE, TYPE)
            changed = await owner.keys(KeyWord.ROTATE, TYPE, ASKED)
            assert [(scope, one["epoch"]) for scope, one in changed.items() if isinstance(one, dict)] == [
                (LABELS.scope, 2)
            ]
            await refused("keys.too-soon", owner.keys(KeyWord.ROTATE, TYPE, ASKED))
            # What has to wait is not waited for.
            assert set(await owner.keys(KeyWord.EVICT, TYPE, evicted=PUB.principal)) > {LABELS.scope}

    run(test())


def test_rights_on_a_type_that_becomes_known_as_blinded_are_shown_no_longer() -> None:
    async def test() -> None:
        def names_it(node: Broker) -> bool:
            return b"Numberplate" in node.core.disclosed[SUB.principal].to_bytes()

        async with (
            running(key=BETWEEN, types=()) as between,
            running(*POLICY, key=SUB, types=(), peers=(between.address,)) as sub,
        ):
            await until(lambda: SUB.principal in between.core.disclosed and names_it(between))
            sub.core.library.add(SIGNED, sub.core.now())
            await until(lambda: not names_it(between))

    run(test())


def test_operators_get_the_labels_of_now_where_their_broker_may_read_logs() -> None:
    async def test() -> None:
        async with (
            running(*POLICY, may(PUB, Right.HISTORY), key=PUB, types=(SIGNED,), managing=managing()) as pub,
            client_of(pub, AGENCY) as operator,
            client_of(pub, REPORTER) as writer,
        ):
            await until(lambda: labels(pub) == 1)
            assert [*(await operator.fetch_keys(LABELS, 1, 9)).items()] == pub.core.labels.keys(TYPE)
            await refused("keys.not-entitled", writer.fetch_keys(LABELS, 1, 9))

    run(test())
