"""A revocation under load, with brokers as processes: what is delivered afterwards, from the brokers' own logs."""

import asyncio
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

from tests.broker.node_kit import LONG, client_of, run
from tests.broker.sports import AGENCY, NEWS, PDA, REPORTER, STRANGER, grant
from tests.budget import amount
from tests.network.processes import BrokerProcess, started

from penstock.broker.client.client import Client, Feed, Subscription
from penstock.crypto import SigningKey
from penstock.trust.capabilities import Right
from penstock.trust.policy_events import Revoke
from penstock.trust.policy_state import PolicyAuthor, publish

READING = grant(PDA, NEWS, Right.SUBSCRIBE)
OTHER_READING = grant(STRANGER, NEWS, Right.SUBSCRIBE)
WRITING = grant(REPORTER, NEWS, Right.PUBLISH)
CONNECTING = [grant(who, None, Right.CONNECT) for who in (STRANGER, AGENCY)]
RATE = amount(4_000)


def now() -> datetime:
    return datetime.now(UTC)


async def load(feed: Feed, stop: asyncio.Event) -> int:
    """Publish thousands of events a second until told to stop; return how many."""
    sent = 0
    loop = asyncio.get_running_loop()
    begun = loop.time()
    while not stop.is_set():
        due = int((loop.time() - begun) * RATE)
        for _ in range(due - sent):
            await feed.post({"headline": "h"})
        sent = max(sent, due)
        await asyncio.sleep(0.005)
    await feed.flush()
    return sent


class Reader:
    """Counts what a subscription gives."""

    def __init__(self, subscription: Subscription) -> None:
        self.seen = 0
        self.task = asyncio.create_task(self._read(subscription))

    async def _read(self, subscription: Subscription) -> None:
        async for _ in subscription:
            self.seen += 1

    async def more(self, events: int) -> None:
        """Wait until so many more have come."""
        wanted = self.seen + events
        async with asyncio.timeout(LONG):
            while self.seen < wanted:
                await asyncio.sleep(0.05)


def given(broker: BrokerProcess, reader: SigningKey) -> list[float]:
    """Return when a broker has handed something to a reader."""
    return [float(str(line["at"])) for line in broker.deliveries() if line["to"] == str(reader.principal)]


async def complete(client: Client, number: int) -> datetime:
    """Wait until a broker knows all three, and says that they have carried out a policy event; return since when."""
    async with asyncio.timeout(LONG):
        while True:
            status = await client.status()
            policy = status["policy"]
            assert isinstance(policy, dict)
            of_agency = policy[str(AGENCY.principal)]
            assert isinstance(of_agency, dict)
            events = of_agency["events"]
            assert isinstance(events, list)
            for event in events:
                assert isinstance(event, dict)
                assert isinstance(event["brokers"], dict)
                at = event["complete"]
                if event["number"] == number and len(event["brokers"]) == 3 and isinstance(at, datetime):
                    return at
            await asyncio.sleep(0.02)


def test_after_a_revocation_is_complete_nothing_is_delivered_that_it_forbids(tmp_path: Path) -> None:
    async def test() -> None:
        author = PolicyAuthor(AGENCY)
        with ExitStack() as stack:
            one = BrokerProcess(0, tmp_path, policy=tuple(CONNECTING))
            await started(stack, one)
            middle = BrokerProcess(1, tmp_path, [(one.port, 0)], tuple(CONNECTING))
            await started(stack, middle)
            far = BrokerProcess(2, tmp_path, [(middle.port, 1)], tuple(CONNECTING))
            await started(stack, far)
            async with (
                client_of(far.port, AGENCY) as owner,
                client_of(one.port, PDA) as reader,
                client_of(one.port, STRANGER) as other_reader,
                client_of(far.port, REPORTER) as writer,
            ):
                await owner.evolve(author.change(now(), publish(READING, OTHER_READING, WRITING)).to_bytes())
                await complete(owner, 1)
                revoked = Reader(await reader.subscribe(NEWS.name))
                kept = Reader(await other_reader.subscribe(NEWS.name))
                feed = await writer.advertise(NEWS.name)
                stop = asyncio.Event()
                loading = asyncio.create_task(load(feed, stop))
                await revoked.more(RATE)
                await owner.evolve(author.change(now(), Revoke((READING.id,))).to_bytes())
                completed = await complete(owner, 2)
                await kept.more(RATE)
                # The load goes on for everybody else, long after it was complete.
                async with asyncio.timeout(LONG):
                    while max(given(one, STRANGER)) <= completed.timestamp() + 0.2:
                        await asyncio.sleep(0.2)
                stop.set()
                sent = await loading
                revoked.task.cancel()
                kept.task.cancel()
        assert sent >= 2 * RATE
        to_revoked = given(one, PDA)
        assert to_revoked
        assert max(to_revoked) <= completed.timestamp()

    run(test())
