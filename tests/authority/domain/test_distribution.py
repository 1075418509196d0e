"""Capabilities over a fabric: brokers receive what is issued, lose what is revoked, and believe only the domain."""

import asyncio
from datetime import timedelta

import pytest
from tests.authority.domain.kit import CCS, HOUR, MET, NOW, PITO, SMITH, STRANGER, Office
from tests.authority.test_polls_network import until
from tests.trust.kit import refused

from penstock.authority.domain.distribution import (
    AGAIN,
    CapabilityAnnouncement,
    CapabilityFeed,
    CapabilityPush,
    capabilities_topic,
)
from penstock.authority.domain.domain_state import RenewRequest, unverified
from penstock.crypto import SigningKey
from penstock.errors import PenstockError
from penstock.fabric import EmbeddedFabric, Sample
from penstock.testing.fabric_suite import ManualClock
from penstock.trust.certificates import Certificate
from penstock.trust.credentials import Credentials
from penstock.trust.signed import sign_value


def ids(credentials: Credentials) -> set[str]:
    return {certificate.id for certificate in credentials}


def announced(
    certificate: Certificate, key: SigningKey = PITO, *, named: str = "", withdrawn: bool = False
) -> CapabilityAnnouncement:
    bag = None if withdrawn else unverified(Credentials.of(certificate))
    return CapabilityAnnouncement(key.principal, named or certificate.id, NOW, bag)


def feed(fabric: EmbeddedFabric) -> CapabilityFeed:
    return CapabilityFeed(fabric, PITO.principal, lambda _: None)


def test_a_broker_that_comes_late_receives_what_counts() -> None:
    office = Office()
    first, second = office.issue(CCS), office.issue(MET)

    async def whole() -> None:
        clock = ManualClock(NOW.timestamp())
        seen: list[set[str]] = []
        async with EmbeddedFabric(clock=clock) as fabric:
            push = CapabilityPush(fabric, clock, PITO)
            assert await push.push(office.domain.state) == 2
            assert await push.push(office.domain.state) == 0
            office.revoke(first)
            third = office.issue(SMITH)
            assert await push.push(office.domain.state) == 2
            broker = CapabilityFeed(fabric, PITO.principal, lambda found: seen.append(ids(found)))
            async with broker:
                await until(lambda: ids(broker.credentials) == {second.id, third.id})
                office.revoke(second)
                await push.push(office.domain.state)
                await until(lambda: ids(broker.credentials) == {third.id})
            assert seen[-1] == {third.id}
            # Now and then everything is sent again; so does a service that starts again.
            await clock.advance(AGAIN)
            assert await push.push(office.domain.state) == 3
            assert await CapabilityPush(fabric, clock, PITO).push(office.domain.state) == 3

    asyncio.run(whole())


def test_withdrawals_go_first_and_nothing_is_signed_twice() -> None:
    office = Office()
    first = office.issue(CCS)
    sent: list[bool] = []

    class Counting:
        public, principal = PITO.public, PITO.principal

        def sign(self, message: bytes) -> bytes:
            sent.append(b"credentials" not in message)
            return PITO.sign(message)

    async def whole() -> None:
        clock = ManualClock(NOW.timestamp())
        async with EmbeddedFabric(clock=clock) as fabric:
            push = CapabilityPush(fabric, clock, Counting())
            office.revoke(first)
            for key in (MET, SMITH):
                office.issue(key)
            assert await push.push(office.domain.state) == 3
            assert sent == [True, False, False]
            await clock.advance(AGAIN)
            assert await push.push(office.domain.state) == 3
            assert len(sent) == 3
            broker = feed(fabric)
            async with broker:
                await until(lambda: len(broker.credentials) == 2)

    asyncio.run(whole())


def test_what_has_ended_is_forgotten() -> None:
    office = Office()
    office.issue(CCS, lifetime=HOUR)
    lasting = office.issue(MET)

    async def whole() -> None:
        clock = ManualClock(NOW.timestamp())
        async with EmbeddedFabric(clock=clock) as fabric:
            push, broker = CapabilityPush(fabric, clock, PITO), feed(fabric)
            async with broker:
                for number in range(1, 6):
                    await push.push(office.domain.state)
                    await clock.advance(2_700.0)
                    office.at(NOW + number * timedelta(minutes=45))
                    office.ask(PITO, RenewRequest())
                await push.push(office.domain.state)
                last = max(office.domain.state.issued.values(), key=lambda one: one.when)
                await until(lambda: last.id in ids(broker.credentials))
                # The last one, the one before it, which has not ended, and the one without an end.
                assert len(ids(broker.credentials)) == 3
                assert {last.id, last.replaces, lasting.id} == ids(broker.credentials)
                # A late broker gets the same, in whatever order the announcements arrive.
                async with feed(fabric) as late:
                    await until(lambda: ids(late.credentials) == ids(broker.credentials))

    asyncio.run(whole())


def test_only_the_domain_is_believed() -> None:
    office = Office()
    mine, other = office.issue(CCS), office.issue(MET)

    async def whole() -> None:
        async with EmbeddedFabric() as fabric:
            broker = feed(fabric)

            async def take(said: CapabilityAnnouncement, key: SigningKey = PITO) -> None:
                await broker.take(Sample(sign_value(said, key).to_bytes(), said.id))

            with refused("acs.announcement"):
                await take(announced(mine, STRANGER), STRANGER)
            with refused("acs.announcement"):
                await take(announced(mine, named=other.id))
            with pytest.raises(PenstockError):
                await broker.take(Sample(b"rubbish", "x"))
            assert not len(broker.credentials)
            await take(announced(mine))
            assert ids(broker.credentials) == {mine.id}
            await take(announced(mine, withdrawn=True))
            # Nothing undoes a withdrawal, not even the same announcement again.
            await take(announced(mine))
            assert not len(broker.credentials)

    asyncio.run(whole())


def test_each_domain_has_a_topic_of_its_own() -> None:
    assert capabilities_topic(PITO.principal) != capabilities_topic(CCS.principal)
