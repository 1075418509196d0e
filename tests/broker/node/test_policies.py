"""Policy evolution at nodes that run: owners change policy while events flow."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests.broker.node_kit import BROKERS, LIMITS, LONG, Broker, client_of, flow, refused, run, running, settings, until
from tests.broker.sports import (
    AGENCY,
    LIVE,
    NEWS,
    NUMBER,
    PDA,
    REPORTER,
    STRANGER,
    TENNIS,
    TEXT,
    definition,
    grant,
    signed,
)

from penstock.broker.client.client import Client
from penstock.broker.core.settings import TrustSettings
from penstock.broker.evolution.policy_keeper import StampSettings
from penstock.errors import FailedError, RefusedError
from penstock.guard import DecisionRecord
from penstock.model.names import TypeName
from penstock.model.principals import Principal
from penstock.model.types import TypeDefinition
from penstock.store.files.policy_files import PolicyFolder
from penstock.trust.capabilities import BROKER_RIGHTS, Right, event_tag
from penstock.trust.certificates import Authorisation, issue
from penstock.trust.credentials import Credentials
from penstock.trust.event_types import sign_type
from penstock.trust.policy_events import BEGINNING, Install, Remove, RequireStamps, Revoke, TimeStamp
from penstock.trust.policy_state import PolicyAuthor, publish
from penstock.trust.signed import sign_value

READING = grant(PDA, NEWS, Right.SUBSCRIBE)
WRITING = grant(REPORTER, NEWS, Right.PUBLISH)
#: a type of somebody else than who coordinates the network
STORY = sign_type(
    TypeDefinition(TypeName(REPORTER.principal, "Story"), NEWS.attributes),
    REPORTER,
    Credentials.of(grant(REPORTER, None, Right.INSTALL)),
)


def now() -> datetime:
    return datetime.now(UTC)


@asynccontextmanager
async def two_brokers() -> AsyncIterator[tuple[Broker, Broker]]:
    """Two brokers that know nothing of who may read and write, linked."""
    async with (
        running(key=BROKERS[0]) as one,
        running(key=BROKERS[1], peers=(one.address,)) as other,
    ):
        await until(lambda: one.neighbours.up() and other.neighbours.up())
        yield one, other


def number_at(node: Broker) -> object:
    """Return the number of the agency's last policy event that a node knows."""
    return policy_at(node)["number"]


def policy_at(node: Broker) -> dict[str, object]:
    found = node.policies.status()[str(AGENCY.principal)]
    assert isinstance(found, dict)
    return found  # type: ignore[return-value]  # plain data


def complete_at(node: Broker, number: int) -> bool:
    """Tell whether a node knows that a policy event of the agency is complete; it may not have come there yet."""
    try:
        return node.policies.completion(AGENCY.principal, number).complete
    except RefusedError:
        return False


def test_what_an_owner_grants_and_revokes_reaches_all_brokers() -> None:
    async def test() -> None:
        author = PolicyAuthor(AGENCY)
        async with two_brokers() as (one, other), client_of(one, PDA) as reader, client_of(other, REPORTER) as writer:
            await refused("broker.not-permitted", reader.subscribe(NEWS.name))
            await writer.evolve(author.change(now(), publish(READING, WRITING)).to_bytes())
            await until(lambda: number_at(one) == 1)
            news = await reader.subscribe(NEWS.name)
            feed = await writer.advertise(NEWS.name)
            await flow(feed, news)
            await writer.evolve(author.change(now(), Revoke((READING.id,))).to_bytes())
            await until(lambda: complete_at(one, 2))
            assert {one_.broker for one_ in other.policies.completion(AGENCY.principal, 2).brokers} == {
                BROKERS[0].principal,
                BROKERS[1].principal,
            }
            while news.waiting:
                await anext(news)
            await feed.publish(headline="secret")
            await asyncio.sleep(0.2)
            assert not news.waiting
            # A subscription that stands is not refused: it comes to nothing until policy lets it again.
            again = grant(PDA, NEWS, Right.SUBSCRIBE, attributes=["headline"])
            await writer.evolve(author.change(now(), publish(again)).to_bytes())
            await flow(feed, news)

    run(test())


def test_a_broker_that_comes_later_asks_for_what_holds() -> None:
    async def test() -> None:
        author = PolicyAuthor(AGENCY)
        async with running() as one, client_of(one, REPORTER) as writer:
            for changes in (
                publish(READING, WRITING),
                Revoke((READING.id,)),
                publish(grant(PDA, TENNIS, Right.SUBSCRIBE)),
            ):
                await writer.evolve(author.change(now(), changes).to_bytes())
            async with running(key=BROKERS[1], peers=(one.address,)) as late, client_of(late, PDA) as reader:
                await until(lambda: number_at(late) == 3)
                # What was revoked does not count, though the client shows it.
                await refused("broker.not-permitted", client_subscribes(reader))
                await reader.subscribe(TENNIS.name)

    async def client_subscribes(reader: Client) -> None:
        await reader.disclose(Credentials.of(READING))
        await reader.subscribe(LIVE.name)

    run(test())


def test_an_owner_asks_how_far_its_policy_is_and_for_what_it_said() -> None:
    async def test() -> None:
        author = PolicyAuthor(AGENCY)
        small = replace(LIMITS, route_block_bytes=1_000)
        async with running(limits=small) as one, client_of(one, AGENCY) as owner, client_of(one, PDA) as reader:
            assert (await owner.policy(AGENCY.principal))["known"] == 0
            said = [author.change(now(), publish(certificate)).to_bytes() for certificate in (READING, WRITING)]
            for signed_ in said:
                await owner.evolve(signed_)
            told = await owner.policy(AGENCY.principal, 1)
            assert (told["number"], told["known"], told["state"], told["events"]) == (2, 2, "fresh", said[1:])
            # What is too much for one answer is asked for again.
            assert (await owner.policy(AGENCY.principal))["events"] == said[:1]
            # A time-stamp says that there is more than has come.
            author.change(now(), Revoke((READING.id,)))
            await owner.evolve(author.stamp(now(), 10_000).to_bytes())
            told = await owner.policy(AGENCY.principal, 2)
            assert (told["number"], told["known"], told["state"], told["events"]) == (2, 3, "behind", [])
            await refused("broker.not-operator", reader.policy(AGENCY.principal))

    run(test())


def test_types_are_installed_and_removed_by_policy_events() -> None:
    golf = definition("Golf", {"holes": NUMBER}, NEWS.name)

    async def test() -> None:
        author = PolicyAuthor(AGENCY)
        async with two_brokers() as (one, other), client_of(one, PDA) as reader, client_of(other, REPORTER) as writer:
            await refused("broker.unknown-type", reader.type(golf.name))
            await writer.evolve(author.change(now(), Install(signed(golf)), publish(READING)).to_bytes())
            await until(lambda: number_at(one) == 1)
            assert (await reader.type(golf.name)).by_name["holes"].spec == NUMBER
            await writer.evolve(author.change(now(), Remove(golf.name)).to_bytes())
            await until(lambda: golf.name not in one.core.library)

    run(test())


def test_without_time_stamps_nothing_is_delivered_and_with_them_it_is_again() -> None:
    async def test() -> None:
        author = PolicyAuthor(AGENCY)
        async with two_brokers() as (one, other), client_of(one, PDA) as reader, client_of(other, REPORTER) as writer:
            await writer.evolve(author.change(now(), publish(READING, WRITING), RequireStamps()).to_bytes())
            await until(lambda: policy_at(one)["state"] == "unstamped")
            news = await reader.subscribe(NEWS.name)
            feed = await writer.advertise(NEWS.name)
            await refused("broker.policy-stale", feed.publish(headline="h"))
            await writer.evolve(author.stamp(now(), 60_000).to_bytes())
            await until(lambda: policy_at(one)["state"] == "fresh")
            await flow(feed, news)
            await writer.evolve(author.stamp(now(), 300).to_bytes())
            await until(lambda: policy_at(one)["state"] == policy_at(other)["state"] == "silent")
            await refused("broker.policy-stale", feed.publish(headline="h"))
            await writer.evolve(author.stamp(now(), 60_000).to_bytes())
            await until(lambda: policy_at(one)["state"] == policy_at(other)["state"] == "fresh")
            await flow(feed, news)

    run(test())


def test_a_strict_broker_delivers_nothing_of_an_owner_of_whom_it_has_heard_nothing() -> None:
    async def test() -> None:
        strict = TrustSettings(strict=True)
        async with (
            running(READING, WRITING, trust=strict) as one,
            client_of(one, PDA) as reader,
            client_of(one, REPORTER) as writer,
        ):
            news = await reader.subscribe(NEWS.name)
            feed = await writer.advertise(NEWS.name)
            assert policy_at(one)["state"] == "unstamped"
            await refused("broker.policy-stale", feed.publish(headline="h"))
            await writer.evolve(PolicyAuthor(AGENCY).stamp(now(), 60_000).to_bytes())
            await flow(feed, news)

    run(test())


def test_a_strict_broker_looks_at_the_owner_of_a_type_that_comes_before_it_takes_an_event() -> None:
    async def test() -> None:
        async with running(trust=TrustSettings(strict=True)) as one, client_of(one, REPORTER, types=[STORY]) as writer:
            await writer.evolve(PolicyAuthor(AGENCY).stamp(now(), 60_000).to_bytes())
            feed = await writer.advertise(STORY.definition.name)
            await refused("broker.policy-stale", feed.publish(headline="h"))

    run(test())


#: the first broker may stamp for the agency
STAMPS = issue(
    Authorisation(AGENCY.principal, BROKERS[0].principal, event_tag(AGENCY.principal, None, None, [Right.STAMP])),
    AGENCY,
)


def test_a_broker_that_the_owner_lets_stamp_does_so_by_itself_for_all() -> None:
    async def test() -> None:
        required = TrustSettings(strict=True)
        async with (
            running(READING, WRITING, STAMPS, key=BROKERS[0], trust=required) as one,
            # The other learns of the right from what the first one shows.
            running(READING, WRITING, key=BROKERS[1], trust=required, peers=(one.address,)) as other,
            client_of(one, PDA) as reader,
            client_of(other, REPORTER) as writer,
        ):
            await until(lambda: policy_at(other)["state"] == "fresh")
            assert policy_at(other)["stamped by"] == [str(BROKERS[0].principal)]
            assert (policy_at(one)["stamps here"], policy_at(other)["stamps here"]) == (True, False)
            news = await reader.subscribe(NEWS.name)
            feed = await writer.advertise(NEWS.name)
            await flow(feed, news)
            # A change is stamped when it is enforced: brokers need not wait for the next stamp.
            event = PolicyAuthor(AGENCY).change(now(), publish(grant(PDA, TENNIS, Right.SUBSCRIBE)))
            await writer.evolve(event.to_bytes())
            await until(lambda: [one_.value.number for one_ in other.policies._keeper.stamps(AGENCY.principal)] == [1])
            assert policy_at(other)["state"] == "fresh"

    run(test())


def test_when_the_right_to_stamp_is_revoked_its_stamps_count_no_longer() -> None:
    async def test() -> None:
        required, author = TrustSettings(strict=True), PolicyAuthor(AGENCY)
        async with (
            running(STAMPS, key=BROKERS[0], trust=required) as one,
            running(key=BROKERS[1], trust=required, peers=(one.address,)) as other,
            client_of(other, REPORTER) as writer,
        ):
            await until(lambda: policy_at(other)["state"] == "fresh")
            await writer.evolve(author.change(now(), Revoke((STAMPS.id,))).to_bytes())
            await until(lambda: policy_at(one)["state"] == policy_at(other)["state"] == "unstamped")
            # The owner can always sign by hand.
            await writer.evolve(author.stamp(now(), 60_000).to_bytes())
            await until(lambda: policy_at(one)["state"] == policy_at(other)["state"] == "fresh")

    run(test())


def test_the_stamps_of_a_broker_that_has_gone_are_good_until_they_are_over() -> None:
    async def test() -> None:
        required = TrustSettings(strict=True)
        async with running(key=BROKERS[1], trust=required) as other:
            async with running(STAMPS, key=BROKERS[0], trust=required, peers=(other.address,)):
                await until(lambda: policy_at(other)["state"] == "fresh")
            await until(other.sees)
            other.core.trust_changed()
            assert policy_at(other)["state"] == "fresh"

    run(test())


def test_a_client_cannot_hand_in_the_stamps_of_a_stranger() -> None:
    async def test() -> None:
        stamp = TimeStamp(AGENCY.principal, 0, BEGINNING, now(), 60_000, STRANGER.principal)
        async with running(trust=TrustSettings(strict=True)) as one, client_of(one, REPORTER) as writer:
            await refused("evolution.not-stamper", writer.evolve(sign_value(stamp, STRANGER).to_bytes()))
            assert policy_at(one)["state"] == "unstamped"

    run(test())


def test_a_broker_that_has_lost_what_it_knew_stamps_nothing_before_it_has_heard_of_the_owner(tmp_path: Path) -> None:
    async def test() -> None:
        author, required = PolicyAuthor(AGENCY), TrustSettings(strict=True)
        lost = StampSettings(begins=False)
        async with (
            running(STAMPS, trust=required, stamps=lost, keep=PolicyFolder(tmp_path)) as one,
            client_of(one, REPORTER) as writer,
        ):
            assert policy_at(one)["state"] == "unstamped"
            assert "evolution.nothing-kept" in one.codes
            await writer.evolve(author.change(now(), publish(READING)).to_bytes())
            await until(lambda: policy_at(one)["state"] == "fresh")
            assert policy_at(one)["stamped by"] == [str(BROKERS[0].principal)]
        async with running(STAMPS, trust=required, stamps=lost, keep=PolicyFolder(tmp_path)) as again:
            await until(lambda: policy_at(again)["state"] == "fresh")

    run(test())


# What is safe on the disk.


class SlowDisk:
    """Keeps a snapshot when it is let, or fails; and remembers what it was given."""

    def __init__(self) -> None:
        self.free = threading.Event()
        self.asked = threading.Semaphore(0)
        self.broken = False
        self.saved: list[int] = []

    def load(self) -> list[bytes]:
        return []

    def load_brokers(self) -> bytes:
        return b""

    def save_brokers(self, seen: bytes) -> None:
        pass

    def load_statements(self) -> list[bytes]:
        return []

    def save_statements(self, issuer: Principal, snapshot: bytes) -> None:
        pass

    def save(self, owner: Principal, snapshot: bytes) -> None:
        self.asked.release()
        assert self.free.wait(LONG)
        if self.broken:
            raise FailedError("file.unwritable", "the disk is broken")
        self.saved.append(snapshot.count(b"12:policy-event"))


def test_nobody_waits_for_a_slow_disk_but_who_has_to_know_that_a_change_is_safe() -> None:
    async def test() -> None:
        author, disk = PolicyAuthor(AGENCY), SlowDisk()
        async with (
            running(READING, WRITING, STAMPS, keep=disk) as one,
            client_of(one, PDA) as reader,
            client_of(one, REPORTER) as writer,
            client_of(one, AGENCY) as owner,
        ):
            news = await reader.subscribe(NEWS.name)
            feed = await writer.advertise(NEWS.name)
            revoking = asyncio.create_task(owner.evolve(author.change(now(), Revoke((READING.id,))).to_bytes()))
            # It is enforced though nothing is written, and everybody else is served.
            await until(lambda: number_at(one) == 1)
            await feed.publish(headline="secret")
            await reader.type(NEWS.name)
            await asyncio.to_thread(disk.asked.acquire)
            assert not news.waiting
            assert not disk.saved
            assert not revoking.done()
            assert not one.policies.completion(AGENCY.principal, 1).complete
            # Nor is it stamped: a broker that forgot it would stamp an earlier one.
            assert all(stamp.value.number == 0 for stamp in one.policies._keeper.stamps(AGENCY.principal))
            disk.free.set()
            await revoking
            assert 1 in disk.saved
            await until(lambda: complete_at(one, 1))
            await until(lambda: one.policies._keeper.stamps(AGENCY.principal)[0].value.number == 1)

    run(test())


def test_changes_are_written_in_their_order_and_many_become_one() -> None:
    async def test() -> None:
        author, disk = PolicyAuthor(AGENCY), SlowDisk()
        async with running(keep=disk) as one, client_of(one, AGENCY) as owner:
            events = [author.change(now()).to_bytes() for _ in range(20)]
            handed = [asyncio.create_task(owner.evolve(event)) for event in events]
            await until(lambda: number_at(one) == 20)
            disk.free.set()
            await asyncio.gather(*handed)
            await until(lambda: complete_at(one, 20))
            assert disk.saved == sorted(disk.saved)
            assert disk.saved[-1] == 20
            assert len(disk.saved) < 20

    run(test())


def test_what_a_broken_disk_did_not_take_is_told_and_acknowledged_when_it_can_be() -> None:
    async def test() -> None:
        author, disk = PolicyAuthor(AGENCY), SlowDisk()
        disk.broken = True
        disk.free.set()
        async with running(keep=disk) as one, client_of(one, AGENCY) as owner:
            event = author.change(now(), Revoke((READING.id,))).to_bytes()
            await refused("file.unwritable", owner.evolve(event))
            assert "file.unwritable" in one.codes
            assert number_at(one) == 1
            assert not one.policies.completion(AGENCY.principal, 1).complete
            disk.broken = False
            await until(lambda: complete_at(one, 1))
            await owner.evolve(event)

    run(test())


def test_stamps_are_written_some_ticks_later_and_nobody_waits_for_them() -> None:
    async def test() -> None:
        author, disk = PolicyAuthor(AGENCY), SlowDisk()
        async with running(keep=disk, trust=TrustSettings(strict=True)) as one, client_of(one, AGENCY) as owner:
            await owner.evolve(author.stamp(now(), 60_000).to_bytes())
            assert policy_at(one)["state"] == "fresh"
            await asyncio.to_thread(disk.asked.acquire)
            disk.free.set()
            await until(lambda: disk.saved)

    run(test())


def test_nothing_passes_while_it_is_not_known_who_may_be_in_the_network() -> None:
    async def test() -> None:
        coordinator = PolicyAuthor(AGENCY)
        async with running() as one, client_of(one, REPORTER, types=[STORY]) as writer:
            feed = await writer.advertise(STORY.definition.name)
            await feed.publish(headline="h")
            await writer.evolve(coordinator.change(now(), RequireStamps()).to_bytes())
            await refused("broker.policy-stale", feed.publish(headline="h"))
            await writer.evolve(coordinator.stamp(now(), 60_000).to_bytes())
            await feed.publish(headline="h")

    run(test())


def test_what_the_coordinator_revokes_reaches_brokers_that_carry_none_of_its_types() -> None:
    connect = {one.principal: grant(one, None, Right.CONNECT) for one in (PDA, REPORTER)}
    known = Credentials.of(*connect.values(), *(grant(one, None, *BROKER_RIGHTS) for one in BROKERS[:2]))

    async def test() -> None:
        async with (
            running(key=BROKERS[0], credentials=known) as one,
            running(key=BROKERS[1], credentials=known, peers=(one.address,)) as other,
        ):
            await until(lambda: one.neighbours.up() and other.neighbours.up())
            async with client_of(one, REPORTER) as writer, client_of(other, PDA):
                revoked = Revoke((connect[PDA.principal].id,))
                await writer.evolve(PolicyAuthor(AGENCY).change(now(), revoked).to_bytes())
                await until(lambda: complete_at(one, 1))
                brokers = {standing.broker for standing in one.policies.completion(AGENCY.principal, 1).brokers}
                assert brokers == {BROKERS[0].principal, BROKERS[1].principal}
                assert not other.clients

    run(test())


def test_a_broker_that_starts_again_remembers_what_was_revoked(tmp_path: Path) -> None:
    async def test() -> None:
        author = PolicyAuthor(AGENCY)
        keep = PolicyFolder(tmp_path)
        async with running(keep=keep) as one, client_of(one, REPORTER) as writer:
            await writer.evolve(author.change(now(), publish(READING, WRITING)).to_bytes())
            await writer.evolve(author.change(now(), Revoke((READING.id,))).to_bytes())
        async with running(keep=keep) as again, client_of(again, PDA) as reader:
            assert number_at(again) == 2
            await reader.disclose(Credentials.of(READING))
            await refused("broker.not-permitted", reader.subscribe(NEWS.name))

    run(test())


def test_a_revocation_is_written_to_the_decision_log() -> None:
    async def test() -> None:
        author = PolicyAuthor(AGENCY)
        async with running() as one, client_of(one, REPORTER) as writer:
            ordered = now()
            await writer.evolve(author.change(now(), publish(READING)).to_bytes())
            await writer.evolve(author.change(ordered := now(), Revoke((READING.id,))).to_bytes())
            (record,) = one.revocations
            assert (record.owner, record.because, record.ordered) == (AGENCY.principal, (READING.id,), ordered)

    run(test())


def test_a_change_that_could_not_be_recorded_is_enforced_and_acknowledged_when_it_can_be() -> None:
    full, author = False, PolicyAuthor(AGENCY)

    def sink(_record: DecisionRecord) -> None:
        if full:
            raise FailedError("log.write", "the disk is full")

    async def test() -> None:
        nonlocal full
        async with (
            Broker(settings(READING, WRITING), sink) as one,
            client_of(one, PDA) as reader,
            client_of(one, REPORTER) as writer,
        ):
            news = await reader.subscribe(NEWS.name)
            feed = await writer.advertise(NEWS.name)
            full = True
            with pytest.raises(FailedError):
                await writer.evolve(author.change(now(), Revoke((READING.id,))).to_bytes())
            await until(lambda: "log.write" in one.codes)
            assert not one.policies.completion(AGENCY.principal, 1).complete
            full = False
            await until(lambda: complete_at(one, 1))
            await until(lambda: policy_at(one)["state"] == "fresh")
            assert [record.because for record in one.revocations] == [(READING.id,)]
            await feed.publish(headline="secret")
            assert not news.waiting

    run(test())


def test_only_the_owner_changes_policy_and_only_of_what_is_served() -> None:
    async def test() -> None:
        stranger = PolicyAuthor(STRANGER)
        async with running() as one, client_of(one, REPORTER) as writer:
            await refused("evolution.not-followed", writer.evolve(stranger.change(now(), publish(READING)).to_bytes()))
            event = bytearray(PolicyAuthor(AGENCY).change(now(), publish(READING)).to_bytes())
            event[-10] ^= 1
            await refused("key.bad-signature", writer.evolve(bytes(event)))
            await refused("sexp.truncated", writer.evolve(b"("))
            assert number_at(one) == 0

    run(test())


def test_no_client_reads_or_writes_what_is_for_brokers() -> None:
    reserved = definition("penstock.policy", {"statement": TEXT})

    async def test() -> None:
        async with running() as one, client_of(one, PDA) as reader:
            await refused("broker.reserved-type", reader.subscribe(signed(reserved)))
            await refused("broker.unknown-type", reader.subscribe(reserved.name))

    run(test())
