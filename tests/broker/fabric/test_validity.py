"""Validity statements over a fabric: topics of issuers instead of trees."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime
from itertools import product

import pytest
from tests.broker.fabric.test_network import Between, Embedded, Nats, network
from tests.broker.node.test_validity import ACS, ACTIVE, CRL, ENTERS, HOUR, WRITES, client, parts, reads, subscribed
from tests.broker.node_kit import run, until
from tests.broker.sports import PDA

from penstock.codec.sexp import transport
from penstock.model.events import TransitEvent
from penstock.model.names import AttributeId, TypeKey
from penstock.trust.statements import VALIDITY_TOPIC, OneTimeQuestion, OnlineKind, StatementAuthor


@pytest.fixture(params=["embedded", "nats"])
def between(request: pytest.FixtureRequest) -> Between:
    """Return each kind of fabric in turn."""
    return Nats(request.getfixturevalue("server").url) if request.param == "nats" else Embedded()


def test_statements_reach_brokers_that_come_later_and_revocations_all_of_them(between: Between) -> None:
    revoked = [f"cert:{'a' * 48}{''.join(end)}" for end in product("abcdefghij", repeat=4)]

    async def test() -> None:
        author = StatementAuthor(ACS)
        async with network(between, *ENTERS, WRITES) as (first, second), client(first, ACS) as acs:
            await acs.evolve(author.revocation_list(datetime.now(UTC), HOUR, revoked).to_bytes())
            await acs.evolve(author.heartbeat(datetime.now(UTC), HOUR).to_bytes())
            async with client(second, PDA, CRL) as late, client(second, PDA, ACTIVE) as reader:
                await subscribed(late)
                await subscribed(reader)
                await acs.evolve(author.revoke(datetime.now(UTC), [ACTIVE.id]).to_bytes())
                await until(lambda: parts(second) == 1)

    run(test())


def test_one_time_questions_are_answered(between: Between) -> None:
    once = reads(OnlineKind.ONE_TIME, HOUR)

    async def test() -> None:
        author, tasks = StatementAuthor(ACS), list[asyncio.Future[None]]()
        async with network(between, *ENTERS, WRITES) as (first, second), client(first, ACS) as acs:

            def answer(question: OneTimeQuestion | None) -> None:
                if question is not None:
                    signed = author.answer(question, datetime.now(UTC), revoked=False)
                    tasks.append(asyncio.ensure_future(acs.evolve(signed.to_bytes())))

            await acs.serve_validity(answer)
            async with client(second, PDA, once) as reader:
                await subscribed(reader)
            assert len(tasks) == 1
            await asyncio.gather(*tasks)

    run(test())


def test_what_is_not_a_statement_is_reported_and_changes_nothing() -> None:
    async def test() -> None:
        author = StatementAuthor(ACS)
        async with network(Embedded(), *ENTERS, WRITES) as (first, _), client(first, ACS) as acs:
            await acs.evolve(author.heartbeat(datetime.now(UTC), HOUR).to_bytes())
            key = TypeKey(ACS.principal, VALIDITY_TOPIC)
            uid = str(AttributeId(ACS.principal, VALIDITY_TOPIC, "statement"))
            for text in ("", "(", "(what)", "(state x)", "x" * 4_000_000, 7, "(part x 9 9 y)", "(part x 0 1 y)"):
                before = len(first.told)
                first.validity.arrived(TransitEvent(key, (), {uid: text}))
                assert len(first.told) == before + 1
            forged = replace(author.revoke(datetime.now(UTC), []).unverified(), signature=bytes(64))
            first.validity.arrived(TransitEvent(key, (), {uid: transport((b"state", forged.to_sexp())).decode()}))
            assert "key.bad-signature" in first.codes
            assert [one.value.HEAD for one in first.validity.held(ACS.principal)] == [b"heartbeat"]
            other = TypeKey(PDA.principal, VALIDITY_TOPIC)
            before = len(first.told)
            first.validity.arrived(TransitEvent(other, (), {uid: "("}))
            assert len(first.told) == before, "nobody here needs it"

    run(test())
