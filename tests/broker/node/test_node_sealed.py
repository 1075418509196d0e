"""Sealed types at a node that runs: events are gathered into blocks, and what is refused is kept sealed."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from tests.broker.keys.test_node_keys import MANAGING, READING, SEALED, WRITING, holds, managing, now
from tests.broker.node_kit import BROKERS, Broker, client_of, headlines, refused, run, running, until
from tests.broker.sports import AGENCY, NEWS, PDA, REPORTER, grant, signed

from penstock.broker.routing.outputs import Unopened
from penstock.broker.sealing.blocks import Lingering
from penstock.codec.blocks import VERSION
from penstock.errors import RefusedError
from penstock.model.events import TransitEvent
from penstock.store.files.sealed_files import QuarantineFolder
from penstock.trust.capabilities import Right
from penstock.trust.policy_events import Revoke
from penstock.trust.policy_state import PolicyAuthor

BOTH = grant(BROKERS[0], NEWS, Right.PUBLISH, Right.SUBSCRIBE)


@asynccontextmanager
async def one(linger: float) -> AsyncIterator[tuple[Broker, list[int]]]:
    """A node that holds all keys, and how many events there were in each block that it has sealed."""
    sealing = Lingering(linger=timedelta(seconds=linger))
    policy = (READING, WRITING, MANAGING, BOTH)
    async with running(*policy, types=(signed(SEALED),), managing=managing(), sealing=sealing) as node:
        await until(lambda: holds(node) == 4)
        sizes: list[int] = []
        seal = node.core.vault.seal

        def count(events: Sequence[TransitEvent], /) -> bytes:
            sizes.append(len(events))
            return seal(events)

        node.core.vault.seal = count  # type: ignore[method-assign]  # it counts
        yield node, sizes


def test_events_of_several_publishers_are_sealed_together() -> None:
    async def test() -> None:
        async with one(0.2) as (node, sizes), client_of(node, PDA) as reader:
            news = await reader.subscribe(NEWS.name)
            async with client_of(node, REPORTER) as first, client_of(node, REPORTER) as second:
                for number in range(3):
                    for writer in (first, second):
                        feed = await writer.advertise(NEWS.name)
                        await feed.publish(headline=f"{number}")
                got = await headlines(news, 6)
            assert got == ["0", "0", "1", "1", "2", "2"]
            assert sum(sizes) == 6
            assert len(sizes) < 6

    run(test())


def test_what_was_taken_goes_before_its_advertisement_does() -> None:
    async def test() -> None:
        async with one(1.0) as (node, sizes), client_of(node, PDA) as reader:
            news = await reader.subscribe(NEWS.name)
            async with client_of(node, REPORTER) as writer:
                feed = await writer.advertise(NEWS.name)
                await feed.publish(headline="last words")
                assert not news.waiting
            await until(lambda: node.held == 1)
            assert len(node.core.exchange.gathering) == 0
            assert await headlines(news, 1) == ["last words"]
            assert sizes == [1]

    run(test())


def test_what_was_taken_waits_when_its_keys_have_gone_in_the_meantime() -> None:
    async def test() -> None:
        async with one(1.0) as (node, _), client_of(node, PDA) as reader, client_of(node, REPORTER) as writer:
            news, feed = await reader.subscribe(NEWS.name), await writer.advertise(NEWS.name)
            await feed.publish(headline="taken", location="London")
            core, scope = node.core, str(NEWS.name.key)
            epoch = core.ring.current(scope) or 0
            key = core.ring.key(scope, epoch)
            assert key is not None
            core.ring.leave(scope)
            core.release()
            assert len(core.exchange.gathering) == 1
            assert not news.waiting
            core.ring.begin(scope, epoch, key)
            core.release()
            assert await headlines(news, 1) == ["taken"]

    run(test())


def test_what_can_never_be_sealed_keeps_nothing_else_waiting() -> None:
    async def test() -> None:
        async with one(1.0) as (node, _), client_of(node, PDA) as reader, client_of(node, REPORTER) as writer:
            news, feed = await reader.subscribe(NEWS.name), await writer.advertise(NEWS.name)
            await feed.publish(headline="nowhere", location="London")
            await feed.publish(headline="fine")
            (scope,) = (group.scope for group in node.keys.members if "location" in group.scope)
            node.core.ring.leave(scope)
            node.core.release()
            assert await headlines(news, 1) == ["fine"]
            assert "seal.unsent" in node.codes
            assert len(node.core.exchange.gathering) == 0

    run(test())


def test_what_waits_for_keys_is_advertised_when_its_publisher_has_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        async with one(0) as (node, sizes):
            router = node.core.router
            monkeypatch.setattr(node.keys.readiness, "holds", lambda _of_type: True)
            before = router.size().clients
            for number in range(2):
                async with client_of(node, REPORTER) as writer:
                    await (await writer.advertise(NEWS.name)).publish(headline=f"{number}")
                await until(lambda: not node.held)
            assert router.size().clients == before + 1
            monkeypatch.undo()
            node.core.release()
            assert sizes == [2]
            assert router.size().clients == before
            monkeypatch.setattr(node.keys.readiness, "holds", lambda _of_type: True)
            async with client_of(node, REPORTER) as writer:
                await (await writer.advertise(NEWS.name)).publish(headline="too late")
        assert "seal.unsent" in node.codes

    run(test())


def test_without_lingering_nothing_waits() -> None:
    async def test() -> None:
        async with one(0) as (node, sizes), client_of(node, PDA) as reader, client_of(node, REPORTER) as writer:
            news = await reader.subscribe(NEWS.name)
            feed = await writer.advertise(NEWS.name)
            for number in range(3):
                await feed.publish(headline=f"{number}")
            assert await headlines(news, 3) == ["0", "1", "2"]
            assert sizes == [1, 1, 1]

    run(test())


def test_refused_blocks_are_kept_and_counted(tmp_path: Path) -> None:
    async def test() -> None:
        async with one(0) as (node, _):
            core, block = node.core, bytes([VERSION]) + b"block"
            core.quarantine = QuarantineFolder(tmp_path, 1_000, 1 << 20)
            reason = RefusedError("seal.cannot-open", "it does not open")
            for octets in (block, b""):
                core.settle([Unopened(core.principal, octets, reason, BROKERS[1].principal)])
            assert core.unopened == {"seal.cannot-open": 2}
            (file,) = tmp_path.iterdir()
            assert file.read_bytes().endswith(block)
            assert "seal.cannot-open" in node.codes
            # A folder that cannot be written stops nobody.
            core.quarantine = QuarantineFolder(file, 1_000, 1 << 20)
            core.settle([Unopened(core.principal, block, reason)])
            assert "file.unwritable" in node.codes

    run(test())


def test_a_signature_counts_while_the_signer_may_publish_and_plaintext_goes_to_equals_alone() -> None:
    async def test() -> None:
        types = (signed(replace(SEALED, signed=True)),)
        equal = grant(BROKERS[1], NEWS, Right.PUBLISH, Right.SUBSCRIBE)
        reads, writes = (grant(BROKERS[0], NEWS, right) for right in (Right.SUBSCRIBE, Right.PUBLISH))
        policy, author = (READING, WRITING, MANAGING, reads, writes, equal), PolicyAuthor(AGENCY)
        async with (
            running(*policy, types=types, managing=managing()) as pub,
            running(*policy, key=BROKERS[1], types=types, peers=(pub.address,)) as sub,
            client_of(sub, PDA) as reader,
            client_of(pub, REPORTER) as writer,
        ):
            await until(lambda: holds(pub) == holds(sub) == 4)
            news, feed = await reader.subscribe(NEWS.name), await writer.advertise(NEWS.name)
            await until(lambda: not feed.quiet)
            sub.core.vault.open = unwanted  # type: ignore[method-assign]  # the plaintext is beside
            await feed.publish(headline="one", location="London")
            assert await headlines(news, 1) == ["one"]
            # The publishing broker may read, and so hold the keys, and publish no longer.
            await writer.evolve(author.change(now(), Revoke((writes.id,))).to_bytes())
            await until(lambda: not sub.core._may_sign(pub.core.principal, NEWS.name.key, ()))
            await refused("seal.signer", feed.publish(headline="two", location="London"))
            # One that is not honest does not ask itself.
            pub.core.exchange._ports = replace(pub.core.exchange._ports, sealable=lambda _events: None)
            await feed.publish(headline="two", location="London")
            await until(lambda: sub.core.unopened)
            assert sub.core.unopened == {"seal.signer": 1}
            assert pub.core.vault.reads_as_much(sub.core.principal, NEWS.name.key)
            await writer.evolve(author.change(now(), Revoke((equal.id,))).to_bytes())
            assert not pub.core.vault.reads_as_much(sub.core.principal, NEWS.name.key)

    run(test())


def unwanted(_octets: bytes, /) -> Sequence[TransitEvent]:
    raise AssertionError("it was opened")
