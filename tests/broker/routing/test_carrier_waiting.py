"""Sealed blocks that wait for keys, and what becomes of them where the keys do not come."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.broker.keys.test_node_keys import POLICY, SEALED, holds, managing
from tests.broker.network import principal
from tests.broker.node_kit import BROKERS, LONG, Broker, client_of, headlines, run, running, until
from tests.broker.sealed_kit import NOW
from tests.broker.sports import NEWS, PDA, REPORTER, grant, signed

from penstock.broker.client.client import Subscription
from penstock.broker.limits import BrokerLimits
from penstock.broker.routing.carrier import Waiting, WaitingRoom
from penstock.broker.sealing.blocks import SealedPublications
from penstock.model.events import TransitEvent
from penstock.model.names import TypeKey
from penstock.store.files.sealed_files import QuarantineFolder
from penstock.trust.capabilities import Right
from penstock.trust.key_statements import KeyGroup

READS = grant(BROKERS[1], NEWS, Right.SUBSCRIBE)
READS_LESS = grant(BROKERS[1], NEWS, Right.SUBSCRIBE, attributes=["location"])


def waiting(name: str, octets: int) -> Waiting:
    who = principal("pub")
    event = TransitEvent(TypeKey(who, name), (), {})
    return Waiting(SealedPublications(who, 1, (1,), (event,), block=bytes(octets)), who, NOW)


def test_what_is_taken_makes_room_and_the_rest_goes_on_waiting_in_its_order() -> None:
    room = WaitingRoom(BrokerLimits(seal_waiting_bytes=100))
    blocks = [waiting(name, 30) for name in ("a", "b", "a")]
    assert not [gone for block in blocks for gone in room.put(block)]
    assert room.take(lambda of_type: of_type.name == "a") == [blocks[0], blocks[2]]
    more = [waiting("c", 40), waiting("d", 30)]
    assert not [gone for block in more for gone in room.put(block)]
    assert room.put(waiting("e", 30)) == blocks[1:2]
    assert [one.block.type.name for one in room.empty()] == ["c", "d", "e"]
    assert len(room) == 0


@asynccontextmanager
async def missing(scope: str, folder: Path) -> AsyncIterator[tuple[Broker, Broker, Subscription]]:
    """A publisher's broker, and that of a reader, which has missed a key of a scope and has a block sealed under it."""
    policy, types = (*POLICY, READS), (signed(SEALED),)
    async with (
        running(*policy, types=types, managing=managing()) as pub,
        running(*policy, key=BROKERS[1], types=types, peers=(pub.address,)) as sub,
    ):
        await until(lambda: holds(pub) == holds(sub) == 4)
        sub.core.quarantine = QuarantineFolder(folder, 1_000, 1 << 20)
        # No plaintext beside is believed: all depends on the key.
        sub.keys.reads_as_much = lambda _peer, _of_type: False  # type: ignore[method-assign, assignment]  # so
        async with client_of(sub, PDA) as reader, client_of(pub, REPORTER) as writer:
            news, feed = await reader.subscribe(NEWS.name), await writer.advertise(NEWS.name)
            await until(lambda: not feed.quiet)
            sub.keys._transport._told = lambda _now, _told: None
            (group,) = (one for one in pub.keys.members if one.scope.endswith(scope))
            pub.keys.rotate(group)
            await until(lambda: pub.core.ring.current(group.scope) == 2)
            await feed.publish(headline="of epoch 2", location="London")
            await until(lambda: sub.core.router.waiting)
            yield pub, sub, news


def kept(folder: Path) -> list[str]:
    return [file.name.split("-", 2)[2].rpartition("-")[0] for file in folder.iterdir()]


def test_what_waits_for_the_key_of_an_epoch_that_a_broker_has_missed_is_read(tmp_path: Path) -> None:
    async def test() -> None:
        scope = str(NEWS.name.key)
        async with missing(scope, tmp_path) as (pub, sub, news):
            pub.keys.rotate(KeyGroup(NEWS.name.key))
            await until(lambda: pub.core.ring.current(scope) == 3)
            sub.keys._transport._told = sub.keys._told
            assert await headlines(news, 1) == ["of epoch 2"]
            assert sub.core.ring.current(scope) == 3
        assert not kept(tmp_path)

    run(test())


def test_what_waits_when_a_broker_stops_is_kept_sealed(tmp_path: Path) -> None:
    async def test() -> None:
        async with missing(str(NEWS.name.key), tmp_path) as (_, sub, news):
            assert not kept(tmp_path)
        assert kept(tmp_path) == ["seal.unknown-key"]
        assert sub.core.unopened == {"seal.unknown-key": 1}
        assert not sub.core.router.waiting
        assert not news.waiting

    run(test())


def test_what_waits_for_a_key_to_which_a_broker_has_lost_its_right_is_kept_sealed(tmp_path: Path) -> None:
    async def test() -> None:
        async with missing(str(NEWS.name.key), tmp_path) as (_, sub, news):
            sub.policy(*POLICY)
            assert kept(tmp_path) == ["seal.unknown-key"]
            assert not sub.core.router.waiting
            assert not news.waiting
        assert len(kept(tmp_path)) == 1

    run(test())


def test_who_loses_its_right_to_an_attribute_does_not_wait_for_it(tmp_path: Path) -> None:
    async def test() -> None:
        async with missing("headline", tmp_path) as (_, sub, news):
            sub.policy(*POLICY, READS_LESS)
            event = await news.next(LONG)
            assert (event["headline"], event["location"]) == (None, "London")
            assert not sub.core.router.waiting
        assert not kept(tmp_path)

    run(test())
