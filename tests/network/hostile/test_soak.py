"""Deliveries under revocations, grants, kills, partitions and attacks at random, checked from the brokers' own logs."""

import asyncio
import os
import random
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import count
from pathlib import Path

import pytest
from tests.broker.node_kit import client_of
from tests.broker.sports import AGENCY, NEWS, REPORTER, grant
from tests.budget import amount
from tests.network.brokers import Lines
from tests.network.hostile.bounds import FORGERS, MEMBERS, STRANGERS, SUBSCRIBERS
from tests.network.hostile.delivery_checker import Account, Ban, deliveries, faults
from tests.network.hostile.network_kit import PATIENCE, Network, completed, line_to, now
from tests.network.hostile.target import key_of

from penstock.broker.client.client import Client, Feed
from penstock.crypto import SigningKey
from penstock.errors import PenstockError
from penstock.model import Event
from penstock.trust.capabilities import Right
from penstock.trust.certificates import Certificate
from penstock.trust.policy_events import RequireStamps, Revoke
from penstock.trust.policy_state import publish
from penstock.trust.validity import Validity

#: the owner's stamps: how often, and for how many milliseconds each is good
STAMP_EVERY, STAMP_PERIOD = 0.5, 5_000
#: the most that clocks differ; a broker also takes a moment from asking its clock to writing its log
SKEW = 1.0
ATTACKS = sorted({**STRANGERS, **MEMBERS, **FORGERS, **SUBSCRIBERS})
_serials = count(1)


@dataclass
class Reader:
    """One who reads at a broker while it may."""

    key: SigningKey
    broker: int
    account: Account
    rights: tuple[Certificate, ...] = ()
    connection: AsyncExitStack = field(default_factory=AsyncExitStack)
    #: since when it may not read any more
    banned: float | None = None

    def __call__(self, event: Event) -> None:
        self.account.received.setdefault(str(self.key.principal), set()).add(event.id)

    async def leave(self) -> None:
        """End the connection that there is now."""
        await self.connection.aclose()

    def renew(self) -> tuple[Certificate, ...]:
        """Return certificates that there were not before: revoked ones never count again."""
        end = now() + timedelta(days=1, seconds=next(_serials))
        valid = Validity.between(not_after=end.replace(microsecond=0))
        connect = grant(self.key, None, Right.CONNECT, valid=valid)
        self.rights = connect, grant(self.key, NEWS, Right.SUBSCRIBE, valid=valid)
        return self.rights


@dataclass
class Soak:
    """The network and everybody in it."""

    network: Network
    owner: Client
    feed: Feed
    choice: random.Random
    seconds: float
    account: Account = field(default_factory=Account)
    readers: list[Reader] = field(default_factory=list)
    done: Counter[str] = field(default_factory=Counter)

    # What happens at random.

    async def grant(self, reader: Reader) -> None:
        if reader.banned is not None:
            # From here on brokers may know of the new right.
            self.account.bans.append(Ban(str(reader.key.principal), reader.banned, time.time()))
            reader.banned = None
        await completed(self.owner, await self.network.say(self.owner, publish(*reader.renew())))
        port = self.network.brokers[reader.broker].port
        await reader.leave()
        # A broker whose stamps have run out counts as done, and gets to know of the right later.
        async with asyncio.timeout(PATIENCE):
            while not await self._subscribe(reader, port):
                await asyncio.sleep(0.1)

    async def _subscribe(self, reader: Reader, port: int) -> bool:
        async with AsyncExitStack() as stack:
            try:
                client = await stack.enter_async_context(client_of(port, reader.key))
                await client.subscribe(NEWS.name, callback=reader)
            except PenstockError:
                return False
            reader.connection = stack.pop_all()
        return True

    async def revoke(self, trouble: AbstractAsyncContextManager[None] | None = None) -> None:
        """Revoke a reader's right in the middle of some trouble, and wait until that is complete."""
        reader = self.choice.choice(self.readers)
        if reader.banned is not None:
            await self.grant(reader)
        async with trouble or nullcontext():
            number = await self.network.say(self.owner, Revoke((reader.rights[1].id,)))
            await asyncio.sleep(self.choice.random() * self.seconds)
        reader.banned = (await completed(self.owner, number)).timestamp()
        await self.network.until_whole()

    async def revoke_and_grant(self) -> None:
        await self.revoke()
        banned = [reader for reader in self.readers if reader.banned is not None]
        # Two at least read, so that there is something to deliver.
        if len(banned) > len(self.readers) - 2:
            await self.grant(self.choice.choice(banned))

    async def kill(self) -> None:
        await self.revoke(self._killed())

    @asynccontextmanager
    async def _killed(self) -> AsyncIterator[None]:
        # The owner and the publisher are at the first.
        broker = self.choice.choice(self.network.brokers[1:])
        broker.kill()
        yield
        await broker.start()
        self.account.starts[broker.log] += 1

    async def cut(self) -> None:
        await self.revoke(self._cut())

    @asynccontextmanager
    async def _cut(self) -> AsyncIterator[None]:
        line, lines = line_to(self.choice.randrange(len(self.network.brokers) - 1)), self.network.lines
        assert lines is not None
        lines.cut(line)
        yield
        lines.mend(line)

    async def attack(self) -> None:
        name = self.choice.choice(ATTACKS)
        self.done[name] += 1
        attacker = self.network.attacker
        await attacker.begin(self.network.order(name, self.seconds))
        await attacker.end()
        await self.network.until_whole()

    # What goes on all the time.

    async def stamp(self) -> None:
        while True:
            with suppress(PenstockError):
                await self.owner.evolve(self.network.author.stamp(now(), STAMP_PERIOD).to_bytes())
            await asyncio.sleep(STAMP_EVERY)

    async def publish(self) -> None:
        while True:
            with suppress(PenstockError):
                await self.feed.publish_many([{"headline": "h"}] * 20)
            await asyncio.sleep(0.01)

    def delivered(self) -> int:
        return sum(map(len, self.account.received.values()))


async def soak(network: Network, wanted: int, seed: int, seconds: float) -> Soak:
    """Deliver so many events at least while things happen; return what happened."""
    await network.start()
    async with AsyncExitStack() as stack:
        owner = await stack.enter_async_context(client_of(network.first.port, AGENCY, timeout=PATIENCE))
        writer = await stack.enter_async_context(client_of(network.first.port, REPORTER, timeout=PATIENCE))
        made = Soak(network, owner, await writer.advertise(NEWS.name), random.Random(seed), seconds)  # noqa: S311  # repeatable, and nothing secret
        made.account.starts.update(broker.log for broker in network.brokers)
        await owner.evolve(network.author.stamp(now(), STAMP_PERIOD).to_bytes())
        stamping = asyncio.create_task(made.stamp())
        await completed(owner, await network.say(owner, RequireStamps()))
        made.account.stamped, made.account.skew = True, SKEW
        for number in range(4):
            reader = Reader(key_of(f"reader {number}"), number % len(network.brokers), made.account)
            stack.push_async_callback(reader.leave)
            made.readers.append(reader)
            await made.grant(reader)
        publishing = asyncio.create_task(made.publish())
        happenings = (made.revoke_and_grant, made.kill, made.cut, made.attack)
        try:
            step = 0
            while made.delivered() < wanted or step < len(happenings):
                # Each once at least, then as it comes.
                happening = happenings[step] if step < len(happenings) else made.choice.choice(happenings)
                made.done[happening.__name__] += 1
                await happening()
                step += 1
            # What is not revoked goes on to the end.
            before = made.delivered()
            async with asyncio.timeout(PATIENCE):
                while made.delivered() < before + 100:
                    await asyncio.sleep(0.05)
        finally:
            for task in (stamping, publishing):
                task.cancel()
            await asyncio.gather(stamping, publishing, return_exceptions=True)
    made.account.bans += [Ban(str(one.key.principal), one.banned) for one in made.readers if one.banned is not None]
    return made


def run_soak(folder: Path, wanted: int, seed: int, seconds: float) -> None:
    print(f"\nsoak with seed {seed}")  # noqa: T201  # to repeat it
    lines = Lines()
    network = Network(folder, lines=lines)
    try:
        made = asyncio.run(soak(network, wanted, seed, seconds))
    finally:
        network.close()
    found = faults(made.account)
    logged = deliveries(broker.log for broker in network.brokers)
    print(f"{logged} deliveries, {len(made.account.bans)} revocations, {dict(made.done)}")  # noqa: T201  # the figure of the run
    assert logged >= wanted
    assert not found, found[:20]


@pytest.fixture(params=["hostile_links"])
def folder(tmp_path: Path) -> Path:
    return tmp_path


def test_nothing_is_delivered_that_was_revoked_whatever_happens(folder: Path) -> None:
    run_soak(folder, wanted=amount(10_000), seed=18, seconds=0.5)


@pytest.mark.long
def test_a_million_deliveries(folder: Path) -> None:
    wanted = int(os.environ.get("DELIVERIES", "1000000"))
    seed = int(os.environ.get("SEED", str(random.SystemRandom().randrange(1 << 32))))
    run_soak(folder, wanted=wanted, seed=seed, seconds=5.0)
