"""Key managers of nodes that run: killed and started again from their folder, away for too long, and asked too much."""

import asyncio
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from tests.broker.keys.test_node_keys import POLICY, SEALED, holds
from tests.broker.node_kit import BROKERS, LIMITS, LONG, Broker, client_of, refused, run, running, settings, until
from tests.broker.sports import NEWS, PDA, REPORTER, grant, signed

from penstock.broker.core.settings import TrustSettings
from penstock.broker.keys.group import Refreshing
from penstock.broker.keys.node_keys import Managing
from penstock.broker.limits import BrokerLimits
from penstock.broker.wire.transports import PeerAddress
from penstock.crypto import SigningKey
from penstock.crypto.wrapping import Secret
from penstock.store.files.key_files import KeyFolder
from penstock.trust.capabilities import Right

KEK = Secret(bytes(range(32)))
SCOPE = str(NEWS.name.key)
TYPES = (signed(SEALED),)
#: the first broker manages, the second publishes and reads
TWO = (*POLICY, grant(BROKERS[1], NEWS, Right.PUBLISH, Right.SUBSCRIBE))
#: what is sent before a link is there is soon sent again
HASTY = replace(LIMITS, key_retry=200, key_notice=300)
EXACT = TrustSettings(skew=timedelta(0), strict=False)


def start(managing: Managing, peer: Broker) -> AbstractAsyncContextManager[Broker]:
    # What the others may, it knows by what they show.
    return running(*POLICY[:-1], types=TYPES, peers=(peer.address,), managing=managing, limits=HASTY)


def epoch(node: Broker) -> int:
    return node.core.ring.newest(SCOPE) or 0


def test_a_manager_starts_again_from_its_folder_and_nobody_notices(tmp_path: Path) -> None:
    async def test() -> None:
        async with (
            running(*TWO, key=BROKERS[1], types=TYPES, limits=HASTY) as pub,
            running(*POLICY, key=BROKERS[2], types=TYPES, limits=HASTY, peers=(pub.address,)) as far,
        ):
            before = 0
            for _ in range(2):
                managing = Managing(KeyFolder(tmp_path / "keys"), KEK)
                async with start(managing, pub) as manager:
                    await until(lambda: holds(pub) == holds(manager) == holds(far) == 4)
                    await until(lambda: manager.sees(pub, far))
                    assert epoch(pub) == epoch(manager) == epoch(far)
                    assert before in (0, epoch(pub))
                    before = epoch(pub)
            records = len(list((tmp_path / "keys").glob("*.record")))
            managing = Managing(KeyFolder(tmp_path / "keys"), KEK)
            async with start(managing, pub) as manager:
                # The trees are the same: who received nothing since then follows the next epoch.
                await until(lambda: holds(manager) == 4)
                for group in list(manager.keys._members):
                    manager.keys.rotate(group)
                await until(lambda: epoch(pub) == epoch(manager) == epoch(far) == before + 1)
                # The epoch is of one group; a record of each is written.
                await until(lambda: len(list((tmp_path / "keys").glob("*.record"))) == records + 4)

    run(test())


class Dying(KeyFolder):
    """A log with which the process is killed as soon as a record is written."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.written = asyncio.Event()

    async def append(self, number: int, record: bytes) -> bool:
        await super().append(number, record)
        self.written.set()
        await asyncio.Event().wait()
        raise AssertionError

    async def read(self, number: int) -> Sequence[bytes]:
        return () if self.written.is_set() else await super().read(number)


def test_a_manager_that_is_killed_between_writing_and_telling_is_made_up_for(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(*TWO, key=BROKERS[1], types=TYPES, limits=HASTY) as pub:
            dying = Dying(tmp_path / "keys")
            async with running(*TWO, types=TYPES, peers=(pub.address,), managing=Managing(dying, KEK)):
                await dying.written.wait()
                await asyncio.sleep(0.1)
                assert holds(pub) == 0
            managing = Managing(KeyFolder(tmp_path / "keys"), KEK)
            async with running(*TWO, types=TYPES, peers=(pub.address,), managing=managing, limits=HASTY) as manager:
                await until(lambda: holds(pub) == holds(manager) == 4)
                assert epoch(pub) == epoch(manager)

    run(test())


def test_another_key_encryption_key_opens_nothing_and_nothing_starts(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(*TWO, types=TYPES, managing=Managing(KeyFolder(tmp_path / "keys"), KEK)) as manager:
            await until(lambda: holds(manager) == 4)
        other = Managing(KeyFolder(tmp_path / "keys"), Secret(bytes(32)))
        await refused("keys.wrong-kek", Broker(settings(*TWO, types=TYPES), managing=other).start())

    run(test())


def test_two_replicas_of_a_manager_share_a_log_and_one_goes_on_when_the_other_is_gone(tmp_path: Path) -> None:
    replicas = frozenset(key.principal for key in BROKERS[:2])
    policy = (*TWO, grant(BROKERS[1], NEWS, Right.KEYS))

    def log() -> Managing:
        return Managing(KeyFolder(tmp_path / "keys"), KEK, replicas)

    async def test() -> None:
        async with running(*policy, key=BROKERS[1], types=TYPES, managing=log()) as other:
            async with running(*policy, types=TYPES, peers=(other.address,), managing=log()) as one:
                await until(lambda: holds(one) == holds(other) == 4)
                assert one.core.ring.key(SCOPE, 1) == other.core.ring.key(SCOPE, 1)
            group = next(iter(other.keys._members))
            other.keys.rotate(group)
            await until(lambda: (other.core.ring.newest(group.scope) or 0) > 1)
            assert not {code for code in other.codes if code.startswith("keys.")} - {"keys.old-request"}

    run(test())


def test_publications_wait_when_no_manager_is_there_for_longer_than_an_epoch_lasts(tmp_path: Path) -> None:
    short = replace(Refreshing.by(BrokerLimits()), period=300, longest=700)

    def begin(key: SigningKey, *peers: PeerAddress) -> AbstractAsyncContextManager[Broker]:
        managing = Managing(KeyFolder(tmp_path / "keys"), KEK, refreshing=short) if peers else None
        return running(*TWO, key=key, types=TYPES, trust=EXACT, limits=HASTY, peers=peers, managing=managing)

    async def test() -> None:
        async with begin(BROKERS[1]) as pub:
            async with begin(BROKERS[0], pub.address):
                await until(lambda: holds(pub) == 4)
            async with client_of(pub, REPORTER) as writer, client_of(pub, PDA) as reader:
                news, feed = await reader.subscribe(NEWS.name), await writer.advertise(NEWS.name)
                await until(lambda: pub.keys.readiness.holds(NEWS.name.key))
                # The client learns that its broker has it, which is true; nobody has it in the clear, or sealed.
                await feed.publish(headline="late")
                await until(lambda: "keys.no-manager" in pub.codes)
                assert not news.waiting
                async with begin(BROKERS[0], pub.address):
                    assert (await news.next(LONG))["headline"] == "late"

    run(test())


@pytest.mark.parametrize("managed", [True, False])
def test_an_epoch_ends_when_enough_was_sealed(tmp_path: Path, *, managed: bool) -> None:
    limits = replace(HASTY, key_blocks=3, key_refresh=1)

    async def test() -> None:
        managing = Managing(
            KeyFolder(tmp_path / "keys"), KEK, refreshing=replace(Refreshing.by(BrokerLimits()), blocks=3)
        )
        async with (
            running(*TWO, types=TYPES, managing=managing, limits=limits) as manager,
            running(*TWO, key=BROKERS[1], types=TYPES, peers=(manager.address,), limits=limits) as other,
        ):
            await until(lambda: holds(manager) == holds(other) == 4)
            async with client_of(manager if managed else other, REPORTER) as writer:
                feed = await writer.advertise(NEWS.name)
                for number in range(4):
                    await feed.publish(headline=f"{number}")
                    await asyncio.sleep(0.01)
                await until(lambda: epoch(manager) == epoch(other) == 2)

    run(test())


def test_who_lost_its_right_while_no_manager_was_there_does_not_stay_by_being_silent(tmp_path: Path) -> None:
    limits = replace(HASTY, key_longest=2_000)

    async def test() -> None:
        managing = Managing(KeyFolder(tmp_path / "keys"), KEK)
        async with (
            running(*TWO, types=TYPES, managing=managing, limits=limits) as manager,
            running(*TWO, key=BROKERS[1], types=TYPES, limits=limits, peers=(manager.address,)) as other,
        ):
            await until(lambda: holds(other) == 4)
        managing = Managing(KeyFolder(tmp_path / "keys"), KEK)
        async with running(*POLICY[:-1], types=TYPES, managing=managing, limits=limits) as manager:
            keys = manager.keys.manager
            groups = list(keys.groups())
            assert len(groups) == 4
            await until(lambda: not any(BROKERS[1].principal in keys.holders(group) for group in groups))

    run(test())
