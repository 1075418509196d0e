"""AuthZEN as plain NATS messages, with a real server."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator, Mapping

import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg
from tests.authority.decisions.kit import PDP, PEP
from tests.authority.decisions.test_authzen_events import decide, failed

from penstock.authority.decisions.authzen_conformance import (
    DecisionPointSuite,
    EnforcementPointSuite,
    ProblemError,
    question,
)
from penstock.authority.decisions.authzen_events import (
    DECISION,
    EventDecisionPoint,
    EventEnforcementPoint,
    EventMessage,
)
from penstock.authority.decisions.authzen_nats import CONFORMANCE, NatsEvents
from penstock.authority.decisions.cloud_events import read_event, sign_event
from penstock.errors import FailedError, MalformedError
from penstock.policy.syntax.json.requests import Json
from penstock.testing.nats import NatsServer


@pytest.fixture(scope="module")
def server() -> Iterator[NatsServer]:
    with NatsServer() as running:
        yield running


def run(server: NatsServer, test: Callable[[NatsEvents], Awaitable[None]]) -> None:
    async def whole() -> None:
        async with NatsEvents(server.url) as transport:
            await test(transport)

    asyncio.run(asyncio.wait_for(whole(), 120))


def test_our_decision_point_passes(server: NatsServer) -> None:
    async def test(transport: NatsEvents) -> None:
        async with EventDecisionPoint(transport, PDP, decide, senders=[PEP.public]):
            # That nothing comes cannot fail here because it would come too late.
            suite = DecisionPointSuite(transport, PEP, PDP.public, patience=60.0, silence=0.05)
            assert failed(await suite.results()) == set()

    run(server, test)


@pytest.mark.long
def test_our_enforcement_point_passes(server: NatsServer) -> None:
    async def test(transport: NatsEvents) -> None:
        point = EventEnforcementPoint(transport, PEP, points=[PDP.public], timeout=3.0)

        async def conclude(asked: Mapping[str, Json]) -> Mapping[str, Json]:
            return {"decision": (await point.evaluate(asked)).decision}

        async with transport.be_asked(conclude):
            suite = EnforcementPointSuite(transport, PDP, PEP.public, make_ask=transport.make_ask)
            assert failed(await suite.results()) == set()

    run(server, test)


def test_a_driver_that_answers_junk_fails_the_checks(server: NatsServer) -> None:
    async def test(transport: NatsEvents) -> None:
        suite = EnforcementPointSuite(transport, PDP, PEP.public, make_ask=transport.make_ask)
        with pytest.raises(FailedError, match=r"fabric\.unreachable"):
            await suite.concludes()
        client = Client()
        await client.connect(server.url)

        async def junk(message: Msg) -> None:
            await message.respond(b"[" * 100_000)

        try:
            await client.subscribe(CONFORMANCE, cb=junk)
            await client.flush()
            with pytest.raises(ProblemError, match="did not return a `decision`"):
                await suite.concludes()
        finally:
            await client.close()

    run(server, test)


def test_a_client_without_penstock(server: NatsServer) -> None:
    """A request is an ordinary NATS message, and so is the answer; nothing goes to a subject that is not an inbox."""

    async def test(transport: NatsEvents) -> None:
        client = Client()
        await client.connect(server.url)
        try:
            async with EventDecisionPoint(transport, PDP, decide, senders=[PEP.public]):
                suite = DecisionPointSuite(transport, PEP, PDP.public)
                request = sign_event(suite.request(question("permit")), PEP)
                subject = "authzen.v1.request.conformance"
                answer = await client.request(subject, request.data, timeout=60, headers=request.headers)
                event, _ = read_event(answer.headers or {}, answer.data).verify(lambda key: key == PDP.public)
                assert (event.type, json.loads(event.data)) == (DECISION, {"decision": True})
                elsewhere = await client.subscribe("elsewhere")
                again = sign_event(suite.request(question("permit")), PEP)
                await client.publish(subject, again.data, reply="elsewhere", headers=again.headers)
                # The next answer comes after the one that must not come.
                last = sign_event(suite.request(question("deny")), PEP)
                await client.request(subject, last.data, timeout=60, headers=last.headers)
                assert elsewhere.pending_msgs == 0
        finally:
            await client.close()

    run(server, test)


def test_junk_is_ignored(server: NatsServer) -> None:
    async def test(transport: NatsEvents) -> None:
        async with EventDecisionPoint(transport, PDP, decide, senders=[PEP.public]) as point:
            async with transport.ask("x", "1", EventMessage({}, b"junk")):
                pass
            found = await EventEnforcementPoint(transport, PEP, points=[PDP.public], timeout=60).evaluate(
                question("permit")
            )
            assert found.decision
            assert point.counts == {"authzen.event": 1, "answers": 1}

    run(server, test)


def test_addresses_without_secrets() -> None:
    with pytest.raises(MalformedError):
        NatsEvents("nats://me:secret@host")
