"""Validity statements in running nodes: they arrive, end and revoke, across brokers and for clients that bring them."""

import asyncio
import shutil
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from tests.broker.node_kit import (
    BROKERS,
    LIMITS,
    LONG,
    Broker,
    client_of,
    ending,
    headlines,
    hear,
    peer,
    refused,
    run,
    running,
    say,
    until,
)
from tests.broker.node_kit import settings as node_settings
from tests.broker.sports import AGENCY, NEWS, PDA, REPORTER, grant

from penstock.broker.client.client import Client, Subscription
from penstock.broker.limits import BrokerLimits
from penstock.broker.wire.plain_trees import principal_tree
from penstock.broker.wire.protocol import PeerRole
from penstock.codec.sexp import canonical
from penstock.crypto import SigningKey
from penstock.errors import MalformedError, RefusedError
from penstock.store.files.policy_files import PolicyFolder
from penstock.trust.capabilities import Right
from penstock.trust.certificates import Certificate, read_certificate
from penstock.trust.credentials import Credentials, UnverifiedCredentials
from penstock.trust.statements import OneTimeQuestion, OnlineKind, OnlineTerms, StatementAuthor
from penstock.trust.validity import OnlineTest, Validity

ACS, GUEST = (SigningKey(bytes([number]) * 32) for number in (77, 78))
HOUR = timedelta(hours=1)
#: who may always publish, and always read
WRITES = grant(REPORTER, NEWS, Right.PUBLISH)
ENTERS = [grant(who, None, Right.CONNECT) for who in (ACS, PDA, REPORTER)]


def reads(kind: OnlineKind, pause: timedelta | None = None, signer: SigningKey = ACS) -> Certificate:
    """Return a certificate that lets the PDA read, while statements say so."""
    test = OnlineTerms(kind, signer.principal, (), pause).to_test()
    return grant(PDA, NEWS, Right.SUBSCRIBE, valid=Validity(online=(test,)))


ACTIVE = reads(OnlineKind.ACTIVE, HOUR)
CRL = reads(OnlineKind.CRL)


def client(node: Broker, key: SigningKey, *shown: Certificate, **more: object) -> Client:
    return client_of(node, key, credentials=Credentials.of(*ENTERS, *shown), **more)


@asynccontextmanager
async def line(number: int, limits: BrokerLimits = LIMITS) -> AsyncIterator[list[Broker]]:
    """Run brokers, each linked to the one before."""
    async with _chain(number, limits) as nodes:
        await until(lambda: all(len(node.brokers()) == number for node in nodes))
        yield nodes


@asynccontextmanager
async def _chain(number: int, limits: BrokerLimits) -> AsyncIterator[list[Broker]]:
    if not number:
        yield []
        return
    async with _chain(number - 1, limits) as before:
        peers = tuple(node.address for node in before[-1:])
        async with running(*ENTERS, WRITES, key=BROKERS[number - 1], peers=peers, limits=limits) as node:
            yield [*before, node]


async def subscribed(reader: Client) -> Subscription:
    """Subscribe, again while statements are on their way."""
    async with asyncio.timeout(LONG):
        while True:
            try:
                return await reader.subscribe(str(NEWS.name))
            except RefusedError:
                await asyncio.sleep(0.01)


def parts(node: Broker) -> int:
    """Return how many subscriptions here admit something."""
    sessions = node.core.local._sessions.values()
    return sum(bool(list(held.paths())) for session in sessions for held in session.held.values())


def test_an_active_revocation_ends_a_live_subscription_immediately() -> None:
    async def test() -> None:
        author = StatementAuthor(ACS)
        async with running(*ENTERS, WRITES) as node, client(node, ACS) as acs:
            await acs.evolve(author.heartbeat(datetime.now(UTC), HOUR).to_bytes())
            async with client(node, PDA, ACTIVE) as reader, client(node, REPORTER) as writer:
                subscription = await reader.subscribe(str(NEWS.name))
                feed = await writer.advertise(str(NEWS.name))
                await feed.publish(headline="one")
                assert await headlines(subscription, 1) == ["one"]
                await acs.evolve(author.revoke(datetime.now(UTC), [grant(PDA, NEWS, Right.SUBSCRIBE).id]).to_bytes())
                await feed.publish(headline="another certificate is revoked")
                assert await headlines(subscription, 1) == ["another certificate is revoked"]
                await acs.evolve(author.revoke(datetime.now(UTC), [ACTIVE.id]).to_bytes())
                assert parts(node) == 1, "the writer's advertisement"
                await feed.publish(headline="secret")
                await acs.evolve(author.revoke(datetime.now(UTC), []).to_bytes())
                await feed.publish(headline="later")
                assert await headlines(subscription, 1) == ["later"]

    run(test())


def test_without_statements_a_right_with_an_on_line_test_does_not_count() -> None:
    async def test() -> None:
        async with running(*ENTERS, WRITES) as node, client(node, PDA, CRL, ACTIVE) as reader:
            await refused("broker.not-permitted", reader.subscribe(str(NEWS.name)).__aenter__())

    run(test())


def test_statements_of_another_signer_do_not_count() -> None:
    async def test() -> None:
        async with running(*ENTERS, WRITES) as node, client(node, REPORTER) as other:
            await other.evolve(StatementAuthor(REPORTER).revocation_list(datetime.now(UTC), HOUR, []).to_bytes())
            async with client(node, PDA, CRL) as reader:
                await refused("broker.not-permitted", reader.subscribe(str(NEWS.name)).__aenter__())
                forged = StatementAuthor(REPORTER).revocation_list(datetime.now(UTC), HOUR, [])
                await other.evolve(forged.to_bytes())
                stranger = StatementAuthor(AGENCY).revocation_list(datetime.now(UTC), HOUR, []).to_bytes()
                await refused("evolution.not-followed", reader.evolve(stranger))

    run(test())


def test_a_late_subscriber_gets_the_cached_statement_along_the_tree() -> None:
    async def test() -> None:
        author = StatementAuthor(ACS)
        async with line(3) as nodes:
            async with client(nodes[0], ACS) as acs:
                await acs.evolve(author.revocation_list(datetime.now(UTC), HOUR, []).to_bytes())
                async with client(nodes[2], PDA, CRL) as reader:
                    await subscribed(reader)
            # The issuer has gone, and its statement is still there for others.
            async with client(nodes[1], PDA, CRL) as reader:
                await subscribed(reader)

    run(test())


def test_a_revocation_reaches_every_broker_and_reinstatement_too() -> None:
    async def test() -> None:
        author = StatementAuthor(ACS)
        async with line(3) as nodes, client(nodes[0], ACS) as acs, client(nodes[2], PDA, ACTIVE) as reader:
            await acs.evolve(author.heartbeat(datetime.now(UTC), HOUR).to_bytes())
            await subscribed(reader)
            await acs.evolve(author.revoke(datetime.now(UTC), [ACTIVE.id]).to_bytes())
            await until(lambda: parts(nodes[2]) == 0)
            await acs.evolve(author.revoke(datetime.now(UTC), []).to_bytes())
            await until(lambda: parts(nodes[2]) == 1)

    run(test())


def test_a_client_brings_its_statement_in_the_hello() -> None:
    async def test() -> None:
        now = datetime.now(UTC)
        enters = OnlineTerms(OnlineKind.REVALIDATION, ACS.principal).to_test()
        certificate = grant(GUEST, None, Right.CONNECT, valid=Validity(online=(enters,)))
        statement = StatementAuthor(ACS).revalidation(now, HOUR, [certificate.id]).to_bytes()
        forged = StatementAuthor(REPORTER).revalidation(now, HOUR, [certificate.id]).to_bytes()
        quick = BrokerLimits(link_goodbye=300, statement_wait=10)
        async with running(limits=quick) as node:

            def bringing(*statements: bytes) -> Client:
                return client_of(node, GUEST, credentials=Credentials.of(certificate), statements=statements)

            for wrong in ((), (forged,), (b"nonsense", statement[:-1])):
                await refused("broker.not-permitted", bringing(*wrong).__aenter__())
            async with bringing(forged, statement):
                pass
            async with bringing():
                # The node has kept it.
                pass
            assert list(node.validity.book.issuers()) == [ACS.principal], "and nothing that no certificate needs"

    run(test())


def test_one_time_questions_are_answered_by_an_instance_across_brokers() -> None:
    once = reads(OnlineKind.ONE_TIME, HOUR)

    async def test() -> None:
        author, asked = StatementAuthor(ACS), list[OneTimeQuestion]()
        async with line(3) as nodes, client(nodes[0], ACS) as acs:

            def answer(question: OneTimeQuestion | None) -> None:
                if question is not None:
                    asked.append(question)
                    signed = author.answer(question, datetime.now(UTC), revoked=len(asked) > 1)
                    tasks.append(asyncio.ensure_future(acs.evolve(signed.to_bytes())))

            tasks: list[asyncio.Future[None]] = []
            await acs.serve_validity(answer)
            async with client(nodes[2], PDA, once) as reader:
                await subscribed(reader)
            assert [(one.certificate, one.verifier) for one in asked] == [(once.id, BROKERS[2].principal)]
            # The next broker asks for itself, and gets another answer.
            async with client(nodes[1], PDA, once) as reader:
                await refused("broker.not-permitted", reader.subscribe(str(NEWS.name)).__aenter__())
            assert len({one.nonce for one in asked}) == len(asked) == 2
            await asyncio.gather(*tasks)

    run(test())


class Time:
    """A clock that tests set."""

    def __init__(self) -> None:
        self.ahead = timedelta()

    def __call__(self) -> datetime:
        return datetime.now(UTC) + self.ahead


@asynccontextmanager
async def timed(clock: Callable[[], datetime]) -> AsyncIterator[Broker]:
    async with Broker(node_settings(*ENTERS, WRITES), clock=clock) as node:
        yield node


def test_when_heartbeats_stop_access_ends_with_the_last_one_and_comes_back_with_the_next() -> None:
    async def test() -> None:
        clock, author = Time(), StatementAuthor(ACS)
        async with timed(clock) as node, client(node, PDA, ACTIVE) as reader:
            async with client(node, ACS) as acs:
                await acs.evolve(author.heartbeat(clock(), HOUR).to_bytes())
            # The issuer is gone.
            await subscribed(reader)
            async with client(node, REPORTER) as writer:
                feed = await writer.advertise(str(NEWS.name))
                clock.ahead += timedelta(hours=2)
                await feed.publish(headline="too late")
                assert parts(node) == 1, "the writer's advertisement"
                async with client(node, ACS) as acs:
                    await acs.evolve(author.heartbeat(clock(), HOUR).to_bytes())
                assert parts(node) == 2

    run(test())


def test_a_timed_list_that_begins_later_counts_when_it_begins() -> None:
    async def test() -> None:
        clock, author = Time(), StatementAuthor(ACS)
        async with timed(clock) as node, client(node, ACS) as acs, client(node, PDA, CRL) as reader:
            await acs.evolve(author.revocation_list(clock(), HOUR, []).to_bytes())
            await acs.evolve(author.revocation_list(clock(), HOUR, [CRL.id]).to_bytes())
            await acs.evolve(author.revocation_list(clock(), HOUR, []).to_bytes())
            await subscribed(reader)
            clock.ahead += HOUR
            await until(lambda: parts(node) == 0)
            clock.ahead += HOUR
            await until(lambda: parts(node) == 1)

    run(test())


def test_a_broker_wakes_up_when_a_statement_begins_that_arrives_meanwhile() -> None:
    async def test() -> None:
        author = StatementAuthor(ACS)
        async with running(*ENTERS, WRITES) as node, client(node, ACS) as acs:
            resting = asyncio.create_task(node.validity.rest(1_000 * LONG))
            soon = datetime.now(UTC) + timedelta(milliseconds=50)
            await acs.evolve(author.revocation_list(soon, HOUR, []).to_bytes())
            await asyncio.wait_for(resting, LONG)
            assert node.validity.book.is_current(ACS.principal, datetime.now(UTC))

    run(test())


def test_a_clock_that_jumps_ahead_and_is_corrected_ends_access_and_gives_it_back() -> None:
    async def test() -> None:
        clock, author = Time(), StatementAuthor(ACS)
        async with timed(clock) as node, client(node, ACS) as acs, client(node, PDA, CRL, ACTIVE) as reader:
            await acs.evolve(author.revocation_list(clock(), HOUR, []).to_bytes())
            await subscribed(reader)
            clock.ahead += timedelta(days=30)
            await until(lambda: parts(node) == 0)
            clock.ahead -= timedelta(days=30)
            await until(lambda: parts(node) == 1)
            # Later statements count as before.
            await acs.evolve(author.revocation_list(clock(), HOUR, []).to_bytes())
            clock.ahead += timedelta(minutes=90)
            await until(lambda: node.validity.book.status(OnlineTerms.of(_test(CRL)), CRL.id, clock()).until)
            assert parts(node) == 1

    run(test())


def test_a_broker_goes_on_with_its_statements_after_a_restart_and_refuses_older_ones(tmp_path: Path) -> None:
    def node() -> AbstractAsyncContextManager[Broker]:
        return running(*ENTERS, WRITES, keep=PolicyFolder(tmp_path))

    async def test() -> None:
        author = StatementAuthor(ACS)
        old = [author.heartbeat(datetime.now(UTC), HOUR), author.revoke(datetime.now(UTC), [])]
        async with node() as first, client(first, ACS) as acs:
            for statement in (*old, author.heartbeat(datetime.now(UTC), HOUR)):
                await acs.evolve(statement.to_bytes())
        # The issuer has gone.
        async with node() as second, client(second, PDA, ACTIVE) as reader:
            await reader.subscribe(str(NEWS.name))
            async with client(second, ACS) as acs:
                await refused("statement.backwards", acs.evolve(old[0].to_bytes()))
                await acs.evolve(author.revoke(datetime.now(UTC), [ACTIVE.id]).to_bytes())
            # What was acknowledged is on the disk, whatever happens next.
            shutil.copytree(tmp_path, tmp_path / "killed")
        async with running(*ENTERS, WRITES, keep=PolicyFolder(tmp_path / "killed")) as third, client(third, ACS) as acs:
            await refused("statement.backwards", acs.evolve(old[1].to_bytes()))
            async with client(third, PDA, ACTIVE) as reader:
                await refused("broker.not-permitted", reader.subscribe(str(NEWS.name)).__aenter__())

    run(test())


def test_successors_are_there_after_a_restart_and_what_has_ended_long_ago_is_removed(tmp_path: Path) -> None:
    narrower = grant(PDA, NEWS, Right.SUBSCRIBE, attributes=["headline"])
    successors = UnverifiedCredentials((read_certificate(*narrower.to_sexps()),))

    async def test() -> None:
        clock, author, keep = Time(), StatementAuthor(ACS), PolicyFolder(tmp_path)
        async with Broker(node_settings(*ENTERS, WRITES), clock=clock, keep=keep) as node, client(node, ACS) as acs:
            await acs.evolve(author.revocation_list(clock(), HOUR, [CRL.id], successors).to_bytes())
        async with (
            Broker(node_settings(*ENTERS, WRITES), clock=clock, keep=keep) as node,
            client(node, PDA, CRL) as pda,
        ):
            await pda.subscribe(str(NEWS.name))
        [file] = tmp_path.glob("*.statements")
        spoiled = bytes(reversed(file.read_bytes()))
        clock.ahead += timedelta(days=3)
        async with Broker(node_settings(*ENTERS, WRITES), clock=clock, keep=keep) as node:
            assert not list(node.validity.book.issuers())
            assert not file.exists()
        file.write_bytes(spoiled)
        with pytest.raises(MalformedError):
            await Broker(node_settings(*ENTERS, WRITES), clock=clock, keep=keep).start()

    run(test())


def test_an_issuer_that_is_killed_ends_access_when_its_last_statement_does() -> None:
    program = """
import asyncio
from datetime import UTC, datetime, timedelta
from tests.broker.node.test_validity import ACS, ENTERS, HOUR
from tests.broker.node_kit import NETWORK
from penstock.broker.client.client import connect
from penstock.trust.credentials import Credentials
from penstock.trust.statements import StatementAuthor

async def main() -> None:
    url = "penstock://127.0.0.1:" + input()
    async with connect(url, key=ACS, network=NETWORK, credentials=Credentials.of(*ENTERS)) as acs:
        while True:
            await acs.evolve(StatementAuthor(ACS).heartbeat(datetime.now(UTC), HOUR).to_bytes())
            await asyncio.sleep(0.01)

asyncio.run(main())
"""

    async def test() -> None:
        clock = Time()
        async with timed(clock) as node:
            issuer = await asyncio.create_subprocess_exec(sys.executable, "-c", program, stdin=asyncio.subprocess.PIPE)
            try:
                assert issuer.stdin is not None
                issuer.stdin.write(b"%d\n" % node.port)
                async with client(node, PDA, ACTIVE) as reader, client(node, REPORTER) as writer:
                    subscription, feed = await subscribed(reader), await writer.advertise(str(NEWS.name))
                    issuer.kill()
                    await issuer.wait()
                    await until(lambda: not node.validity._instances)
                    await feed.publish(headline="its last statement counts")
                    assert await headlines(subscription, 1) == ["its last statement counts"]
                    end = node.validity.book.status(OnlineTerms.of(_test(ACTIVE)), ACTIVE.id, clock()).until
                    assert end is not None
                    clock.ahead += end - clock()
                    await feed.publish(headline="and not longer")
                    await until(lambda: parts(node) == 1)
                    assert node.core.counts["delivered"] == 1
            finally:
                if issuer.returncode is None:
                    issuer.kill()

    run(test())


def test_a_clock_that_jumps_back_gives_nothing_back_and_ends_nothing() -> None:
    async def test() -> None:
        clock, author = Time(), StatementAuthor(ACS)
        clock.ahead += timedelta(days=2)
        ended = StatementAuthor(ACS).revocation_list(clock() - timedelta(days=1), HOUR, [])
        async with (
            timed(clock) as node,
            client(node, ACS) as acs,
            client(node, PDA, CRL) as late,
            client(node, PDA, ACTIVE) as reader,
            client(node, REPORTER) as writer,
        ):
            await acs.evolve(author.heartbeat(clock(), HOUR).to_bytes())
            subscription, feed = await subscribed(reader), await writer.advertise(str(NEWS.name))
            await acs.evolve(ended.to_bytes())
            clock.ahead -= timedelta(days=1, minutes=-30)
            await refused("broker.not-permitted", late.subscribe(str(NEWS.name)).__aenter__())
            await feed.publish(headline="as before")
            assert await headlines(subscription, 1) == ["as before"]
            # An issuer whose clock is right goes on, and so does the broker.
            clock.ahead += timedelta(days=1, minutes=-30)
            await acs.evolve(author.heartbeat(clock(), HOUR).to_bytes())
            await feed.publish(headline="later")
            assert await headlines(subscription, 1) == ["later"]

    run(test())


def test_overlapping_statements_end_access_until_both_are_over() -> None:
    async def test() -> None:
        clock, author = Time(), StatementAuthor(ACS)
        async with timed(clock) as node, client(node, ACS) as acs, client(node, PDA, CRL) as reader:
            await acs.evolve(author.revocation_list(clock(), HOUR, []).to_bytes())
            await subscribed(reader)
            # Another instance of the issuer does not know of the first list.
            other = StatementAuthor(ACS).revocation_list(clock() + HOUR / 2, HOUR, [])
            await acs.evolve(other.to_bytes())
            assert parts(node) == 0
            last = StatementAuthor(ACS)
            last.resume([other])
            await acs.evolve(last.revocation_list(clock(), HOUR, []).to_bytes())
            clock.ahead += timedelta(minutes=75)
            node.validity.tick()
            assert parts(node) == 0
            clock.ahead += timedelta(minutes=30)
            await until(lambda: parts(node) == 1)

    run(test())


def test_statements_that_arrive_out_of_order_count_when_all_are_there() -> None:
    async def test() -> None:
        author = StatementAuthor(ACS)
        async with running(*ENTERS, WRITES) as node, client(node, ACS) as acs, client(node, PDA, ACTIVE) as reader:
            first = author.heartbeat(datetime.now(UTC), HOUR)
            revoked, second = author.revoke(datetime.now(UTC), [ACTIVE.id]), author.heartbeat(datetime.now(UTC), HOUR)
            again, third = author.revoke(datetime.now(UTC), []), author.heartbeat(datetime.now(UTC), HOUR)
            await acs.evolve(first.to_bytes())
            await subscribed(reader)
            await acs.evolve(third.to_bytes())
            assert parts(node) == 0, "it confirms a revocation that has not arrived"
            await acs.evolve(again.to_bytes())
            assert parts(node) == 1
            for late in (revoked, second, first):
                await refused("statement.backwards", acs.evolve(late.to_bytes()))
            assert parts(node) == 1

    run(test())


def _test(certificate: Certificate) -> OnlineTest:
    [test] = certificate.statement.validity.online
    return test


def test_one_time_answers_are_asked_for_again_while_a_session_lives_and_not_afterwards() -> None:
    once = reads(OnlineKind.ONE_TIME, HOUR)

    async def test() -> None:
        clock, author, asked = Time(), StatementAuthor(ACS), list[OneTimeQuestion]()
        async with timed(clock) as node, client(node, ACS) as acs:

            def answer(question: OneTimeQuestion | None) -> None:
                if question is not None:
                    asked.append(question)
                    signed = author.answer(question, clock(), revoked=len(asked) > 2)
                    tasks.append(asyncio.ensure_future(acs.evolve(signed.to_bytes())))

            tasks: list[asyncio.Future[None]] = []
            await acs.serve_validity(answer)
            async with client(node, PDA, once) as reader, client(node, REPORTER) as writer:
                await subscribed(reader)
                feed = await writer.advertise(str(NEWS.name))
                for number in range(10):
                    await feed.publish(headline=str(number))
                assert len(asked) == 1, "not for each event"
                clock.ahead += timedelta(minutes=50)
                await until(lambda: len(asked) == 2)
                await asyncio.gather(*tasks)
                assert parts(node) == 2
                clock.ahead += timedelta(minutes=50)
                await until(lambda: len(asked) == 3)
                await until(lambda: parts(node) == 1)
            before = len(asked)
            clock.ahead += timedelta(hours=5)
            node.validity.tick()
            await acs.evolve(author.heartbeat(clock(), HOUR).to_bytes())
            assert len(asked) == before

    run(test())


def test_a_neighbour_that_sends_a_forged_statement_is_cut_off() -> None:
    async def test() -> None:
        author = StatementAuthor(ACS)
        signed = author.heartbeat(datetime.now(UTC), HOUR).unverified()
        forged = canonical(replace(signed, signature=bytes(64)).to_sexp())
        async with running(*ENTERS, WRITES) as node, client(node, PDA, ACTIVE) as reader:
            await refused("broker.not-permitted", reader.subscribe(str(NEWS.name)).__aenter__())
            async with peer(node, BROKERS[1], PeerRole.BROKER) as link:
                await hear(link, 1)
                say(link, ["validity", "offer", principal_tree(ACS.principal)])
                say(link, ["validity", "state", [forged]])
                assert await ending(link) == "key.bad-signature"
            assert parts(node) == 0

    run(test())


def test_oversized_and_replayed_statements_are_refused_and_change_nothing() -> None:
    async def test() -> None:
        author = StatementAuthor(ACS)
        async with running(*ENTERS, WRITES) as node, client(node, ACS) as acs, client(node, PDA, ACTIVE) as reader:
            beat, revoked = author.heartbeat(datetime.now(UTC), HOUR), author.revoke(datetime.now(UTC), [ACTIVE.id])
            later, last = author.revoke(datetime.now(UTC), []), author.heartbeat(datetime.now(UTC), HOUR)
            for one in (later, last):
                await acs.evolve(one.to_bytes())
            await subscribed(reader)
            for replayed in (beat, revoked):
                await refused("statement.backwards", acs.evolve(replayed.to_bytes()))
            forged = replace(author.revoke(datetime.now(UTC), [ACTIVE.id]).unverified(), signature=bytes(64))
            await refused("key.bad-signature", acs.evolve(canonical(forged.to_sexp())))
            large = b"(8:sequence(3:crl%b))" % (b"1:a" * 300_000)
            await refused("sexp.limit", acs.evolve(large))
            assert parts(node) == 1

    run(test())


def test_a_revocation_costs_decisions_about_those_who_show_the_certificate_alone() -> None:
    async def test() -> None:
        author = StatementAuthor(ACS)
        async with running(*ENTERS, WRITES) as node, client(node, ACS) as acs, client(node, REPORTER) as writer:
            await acs.evolve(author.heartbeat(datetime.now(UTC), HOUR).to_bytes())
            await writer.advertise(str(NEWS.name))
            async with client(node, PDA, ACTIVE) as reader:
                await subscribed(reader)
                before = len(node.records)
                await acs.evolve(author.revoke(datetime.now(UTC), [ACTIVE.id]).to_bytes())
                assert parts(node) == 1, "the writer's advertisement"
                assert {record.principal for record in node.records[before:]} == {PDA.principal}

    run(test())


def test_revocations_are_recorded_with_the_time_that_they_took() -> None:
    async def test() -> None:
        clock, author = Time(), StatementAuthor(ACS)
        async with timed(clock) as node, client(node, ACS) as acs, client(node, PDA, CRL, ACTIVE) as reader:
            await acs.evolve(author.heartbeat(clock(), HOUR).to_bytes())
            await subscribed(reader)
            order = author.revoke(clock(), [ACTIVE.id])
            await acs.evolve(order.to_bytes())
            [record] = node.revocations
            assert (record.owner, record.because, record.ordered) == (ACS.principal, (ACTIVE.id,), order.value.time)
            assert record.revocation.endswith(order.digest.hex())
            for revoked in ([], [CRL.id]):
                await acs.evolve(author.revocation_list(clock(), HOUR, revoked).to_bytes())
            await until(lambda: parts(node) == 1)
            assert len(node.revocations) == 1, "nothing is revoked by the first list"
            clock.ahead += HOUR
            await until(lambda: len(node.revocations) == 2)
            assert node.revocations[1].because == (CRL.id,)

    run(test())


def test_a_certificate_of_the_broker_itself_concerns_everybody() -> None:
    async def test() -> None:
        author = StatementAuthor(ACS)
        async with running(*ENTERS, WRITES, ACTIVE) as node, client(node, ACS) as acs:
            await acs.evolve(author.heartbeat(datetime.now(UTC), HOUR).to_bytes())
            async with client(node, PDA) as reader:
                await subscribed(reader)
                await acs.evolve(author.revoke(datetime.now(UTC), [ACTIVE.id]).to_bytes())
                assert parts(node) == 0

    run(test())


def test_a_successor_takes_the_place_of_a_revoked_certificate() -> None:
    narrower = grant(PDA, NEWS, Right.SUBSCRIBE, attributes=["headline"])
    successors = UnverifiedCredentials((read_certificate(*narrower.to_sexps()),))

    async def test() -> None:
        author = StatementAuthor(ACS)
        async with running(*ENTERS, WRITES) as node, client(node, ACS) as acs, client(node, REPORTER) as writer:
            await acs.evolve(author.heartbeat(datetime.now(UTC), HOUR).to_bytes())
            async with client(node, PDA, ACTIVE) as reader:
                subscription = await subscribed(reader)
                feed = await writer.advertise(str(NEWS.name))
                await feed.publish(headline="one", location="Oslo")
                assert (await subscription.next(LONG))["location"] == "Oslo"
                await acs.evolve(author.revoke(datetime.now(UTC), [ACTIVE.id], successors).to_bytes())
                await feed.publish(headline="two", location="Oslo")
                event = await subscription.next(LONG)
                assert (event["headline"], event["location"]) == ("two", None)
                await acs.evolve(author.revoke(datetime.now(UTC), [ACTIVE.id]).to_bytes())
                assert parts(node) == 1, "the successor is no longer given"

    run(test())


def test_an_answer_about_another_certificate_leaves_successors_as_they_are() -> None:
    once, other = reads(OnlineKind.ONE_TIME, HOUR), reads(OnlineKind.ONE_TIME, 2 * HOUR)
    successor = reads(OnlineKind.ONE_TIME, 3 * HOUR)
    successors = UnverifiedCredentials((read_certificate(*successor.to_sexps()),))

    async def test() -> None:
        author, now = StatementAuthor(ACS), datetime.now(UTC)
        async with running(*ENTERS, WRITES, limits=BrokerLimits(cache_entries=1)) as node, client(node, ACS) as acs:

            def answer(question: OneTimeQuestion | None) -> None:
                if question is not None:
                    bag = UnverifiedCredentials() if question.certificate == other.id else successors
                    signed = author.answer(question, now, revoked=False, successors=bag)
                    tasks.append(asyncio.ensure_future(acs.evolve(signed.to_bytes())))

            tasks: list[asyncio.Future[None]] = []
            await acs.serve_validity(answer)
            for shown in (once, other):
                async with client(node, PDA, shown) as reader:
                    await subscribed(reader)
                assert [one.id for one in node.core.sources.successors] == [successor.id]
            await asyncio.gather(*tasks)

    run(test())


def test_a_successor_is_asked_about_if_it_needs_one_time_answers() -> None:
    once = reads(OnlineKind.ONE_TIME, HOUR)
    successors = UnverifiedCredentials((read_certificate(*once.to_sexps()),))

    async def test() -> None:
        author, tasks = StatementAuthor(ACS), list[asyncio.Future[None]]()
        async with running(*ENTERS, WRITES) as node, client(node, ACS) as acs, client(node, PDA, ACTIVE) as reader:

            def answer(question: OneTimeQuestion | None) -> None:
                if question is not None:
                    signed = author.answer(question, datetime.now(UTC), revoked=False)
                    tasks.append(asyncio.ensure_future(acs.evolve(signed.to_bytes())))

            await acs.serve_validity(answer)
            await acs.evolve(author.heartbeat(datetime.now(UTC), HOUR).to_bytes())
            await subscribed(reader)
            await acs.evolve(author.revoke(datetime.now(UTC), [ACTIVE.id], successors).to_bytes())
            await until(lambda: bool(tasks) and parts(node) == 1)
            await asyncio.gather(*tasks)

    run(test())


def test_a_faulty_successor_does_not_keep_a_revocation_from_counting() -> None:
    right = read_certificate(*grant(PDA, NEWS, Right.SUBSCRIBE).to_sexps())
    forged = UnverifiedCredentials((replace(right, signature=bytes(64)),))

    async def test() -> None:
        author = StatementAuthor(ACS)
        async with running(*ENTERS, WRITES) as node, client(node, ACS) as acs, client(node, PDA, ACTIVE) as reader:
            await acs.evolve(author.heartbeat(datetime.now(UTC), HOUR).to_bytes())
            await subscribed(reader)
            await acs.evolve(author.revoke(datetime.now(UTC), [ACTIVE.id], forged).to_bytes())
            assert parts(node) == 0
            assert "key.bad-signature" in node.codes

    run(test())


def test_a_client_that_shows_many_certificates_does_not_hide_the_revocation_of_another() -> None:
    async def test() -> None:
        author = StatementAuthor(ACS)
        test = ACTIVE.statement.validity.online
        ends = [datetime(2100 + number, 1, 1, tzinfo=UTC) for number in range(12)]
        many = [
            grant(REPORTER, NEWS, Right.PUBLISH, valid=replace(Validity.between(None, end), online=test))
            for end in ends
        ]
        limits = replace(LIMITS, cache_entries=8)
        async with running(*ENTERS, WRITES, limits=limits) as node, client(node, ACS) as acs:
            await acs.evolve(author.heartbeat(datetime.now(UTC), HOUR).to_bytes())
            async with client(node, PDA, ACTIVE) as reader:
                await subscribed(reader)
                async with client(node, REPORTER, *many) as crowd:
                    await crowd.advertise(str(NEWS.name))
                    # Not everything is decided again whenever time passes.
                    before = len(node.records)
                    node.validity.tick()
                    assert len(node.records) == before
                    await acs.evolve(author.revoke(datetime.now(UTC), [ACTIVE.id]).to_bytes())
                    assert parts(node) == 1, "the advertisement"

    run(test())
