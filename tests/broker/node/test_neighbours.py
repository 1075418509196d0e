"""Brokers that keep no rules, at a node that has clients and an honest neighbour: these go on."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import count
from types import NoneType
from typing import Any

import pytest
from tests.broker.network import filter_of
from tests.broker.node_kit import (
    BROKERS,
    LIMITS,
    LONG,
    Broker,
    client_of,
    ending,
    hear,
    peer,
    run,
    running,
    say,
    until,
)
from tests.broker.sports import (
    LIBRARY_TYPES,
    NETWORK,
    NEWS,
    NOW,
    PDA,
    REPORTER,
    STRANGER,
    TENNIS,
    grant,
)

from penstock.broker.client.client import Feed, Subscription
from penstock.broker.limits import BrokerLimits
from penstock.broker.local import requests
from penstock.broker.routing.membership import SignedProof, announced_words, disclosed_words
from penstock.broker.routing.messages import Announcement, Body, Disclosure, Enter, Hop, WithdrawEntry
from penstock.broker.routing.peers import Hops
from penstock.broker.wire.entries import InterestEntry
from penstock.broker.wire.entries import SubscriptionEntry as Entered
from penstock.broker.wire.link import Link
from penstock.broker.wire.protocol import PeerRole, SubscribeMessage
from penstock.broker.wire.publications import Publications, blocks
from penstock.codec.wire import Wire
from penstock.crypto import SigningKey
from penstock.errors import FailedError, PenstockError
from penstock.model import Event, TransitEvent
from penstock.trust.capabilities import BROKER_RIGHTS, Right
from penstock.trust.certificates import Certificate
from penstock.trust.credentials import Credentials

READ = grant(PDA, NEWS, Right.SUBSCRIBE)
WRITE = grant(REPORTER, NEWS, Right.PUBLISH)
#: the hostile one may carry events; another one may be a broker, and carry nothing
HOSTILE, FOREIGN = BROKERS[2], STRANGER
ENTER = grant(FOREIGN, None, *BROKER_RIGHTS)
KEY = NEWS.name.key


_LIVES = count(1)


@dataclass
class Fake:
    """A broker that says what it likes."""

    key: SigningKey
    link: Link
    hops: Hops = field(default_factory=lambda: Hops(next(_LIVES)))

    def begin(self) -> None:
        """Greet, and announce a link to the node."""
        hop = self.hops.begin()
        say(self.link, hop.to_tree())
        self.say(announced(self.key, self.link.peer.principal, life=hop.stamp.incarnation))

    def say(self, *bodies: Body) -> None:
        say(self.link, *(self.hops.say(body).to_tree() for body in bodies))

    async def hears(self, kind: str) -> Hop:
        """Return the next hop of some kind."""
        async with asyncio.timeout(LONG):
            while True:
                for tree in await self.link.receive():
                    if isinstance(tree, list) and len(tree) == 5 and tree[3] == kind:
                        return Hop.from_tree(tree)


def announced(key: SigningKey, *links: Any, by: SigningKey | None = None, life: int = 1) -> Announcement:
    plain = Announcement(key.principal, life, 1, tuple(sorted(links)))
    return replace(plain, proof=SignedProof(by or key, NETWORK, limits=BrokerLimits()).sign(announced_words(plain)))


def disclosed(key: SigningKey, octets: bytes, by: SigningKey | None = None, number: int = 1) -> Disclosure:
    plain = Disclosure(key.principal, 1, number, octets)
    return replace(plain, proof=SignedProof(by or key, NETWORK, limits=BrokerLimits()).sign(disclosed_words(plain)))


@dataclass
class Scene:
    """A node, an honest neighbour with a publisher, and a reader at the node."""

    node: Broker
    other: Broker
    news: Subscription
    feed: Feed
    rounds: int = 0

    async def go_on(self, rounds: int = 2) -> list[Event]:
        """Publish until it arrives, so many times: where paths are just being found again, some do not.

        Return what came besides.
        """
        others: list[Event] = []
        for _ in range(rounds):
            self.rounds += 1
            headline = f"honest {self.rounds}"
            while headline not in (seen := [row[2] for row in self.news._rows]):
                assert len(seen) < 1_000
                await self.feed.publish(headline=headline)
                await asyncio.sleep(0.02)
            while self.news._rows:
                others.append(await self.news.next(LONG))
        return [event for event in others if not str(event["headline"]).startswith("honest")]


@asynccontextmanager
async def scene(*policy: Certificate, limits: BrokerLimits = LIMITS) -> AsyncIterator[Scene]:
    rights = (READ, WRITE, ENTER, *policy)
    async with (
        running(*rights, limits=limits) as node,
        running(*rights, key=BROKERS[1], peers=(node.address,)) as other,
        client_of(node, PDA) as reader,
        client_of(other, REPORTER) as writer,
    ):
        await until(lambda: node.sees(other) and other.sees(node))
        news = await reader.subscribe(NEWS.name)
        feed = await writer.advertise(NEWS.name)
        made = Scene(node, other, news, feed)
        await until(lambda: other.core.router.size().subscriptions)
        await made.go_on(1)
        yield made


@asynccontextmanager
async def fake(node: Broker, key: SigningKey = HOSTILE) -> AsyncIterator[Fake]:
    async with peer(node, key, PeerRole.BROKER) as link:
        made = Fake(key, link)
        await hear(link, 1)
        made.begin()
        await until(lambda: key.principal in node.core.router.view.links)
        yield made


def event(number: int = 1, **values: Any) -> TransitEvent:
    made = Event.of(LIBRARY_TYPES[NEWS.name], {"headline": "hostile"}, id=f"h{number}", time=NOW).to_transit()
    ids = {str(a.id): values[a.name] for a in LIBRARY_TYPES[NEWS.name].attributes if a.name in values}
    return replace(made, values={**made.values, **ids})


def published(*events: TransitEvent, first: int = 1) -> Publications:
    (block,) = blocks(HOSTILE.principal, 1, first, events)
    return block


# Junk.

STAMP = (1, 1)


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (7, "message.malformed"),
        ([], "message.malformed"),
        ([*STAMP, 2, "greeting", {"more": 1}], "message.malformed"),
        ([*STAMP, 2, "revolution", {}], "message.malformed"),
        ([*STAMP, -1, "pulse", {}], "message.malformed"),
        ([*STAMP, 2, "enter", {"handle": 1, "entry": {"kind": "interest"}}], "message.malformed"),
        ([*STAMP, 2, "publications", {}], "message.malformed"),
        ([*STAMP, 2, "publications", [b"", b""]], "message.malformed"),
        ([1, 1, 0, "again", {"incarnation": (1 << 63) - 1, "session": (1 << 63) - 1}], "network.stamp"),
        (SubscribeMessage(1, "s", NEWS.name, "").to_tree(), "message.malformed"),
        (["hello", 1, "broker", b""], "message.malformed"),
        (["welcome", 1, b""], "message.malformed"),
    ],
)
def test_a_neighbour_that_speaks_otherwise_is_cut(message: Wire, code: str) -> None:
    async def main() -> None:
        async with scene() as made, fake(made.node) as bad:
            say(bad.link, message)
            assert await ending(bad.link) == code
            await until(lambda: made.node.sees(made.other))
            await made.go_on()

    run(main())


@pytest.mark.parametrize(
    ("bodies", "code"),
    [
        ((WithdrawEntry(9),), "route.handle"),
        ((Enter(1, InterestEntry(KEY)), Enter(1, InterestEntry(KEY))), "route.handle"),
        ((Enter(1, InterestEntry(KEY)), WithdrawEntry(1), WithdrawEntry(1)), "route.handle"),
        (tuple(Enter(number, InterestEntry(KEY)) for number in range(30)), "route.limit"),
        ((announced(BROKERS[3], HOSTILE.principal, by=HOSTILE),), "network.proof"),
        ((announced(BROKERS[1], by=HOSTILE, life=1 << 60),), "network.proof"),
        ((replace(announced(BROKERS[3], HOSTILE.principal), number=5),), "network.proof"),
        ((announced(BROKERS[3], HOSTILE.principal), disclosed(BROKERS[3], b"", by=HOSTILE)), "network.proof"),
    ],
    ids=["unknown", "twice", "gone", "too many", "forged", "forged neighbour", "changed", "forged disclosure"],
)
def test_a_neighbour_that_breaks_the_rules_is_cut(bodies: tuple[Body, ...], code: str) -> None:
    limits = replace(LIMITS, route_entries=20)

    async def main() -> None:
        async with scene(limits=limits) as made, fake(made.node) as bad:
            bad.say(*bodies)
            assert await ending(bad.link) == code
            await until(lambda: made.node.sees(made.other))
            assert code in made.node.codes
            await made.go_on()

    run(main())


# Lies that keep to the rules.


def test_brokers_that_are_not_admitted_do_not_count_whoever_announces_them() -> None:
    limits = replace(LIMITS, network_waiting=10)

    async def main() -> None:
        async with scene(limits=limits) as made, fake(made.node) as bad:
            for number in range(100):
                ghost = SigningKey(number.to_bytes(32, "big"))
                bad.say(announced(ghost, HOSTILE.principal), disclosed(ghost, b"junk"))
            bad.say(disclosed(HOSTILE, b"junk"))
            await made.go_on()
            known = set(made.node.core.router.view.links)
            assert known == {made.node.core.principal, made.other.core.principal, HOSTILE.principal}
            assert len(made.node.core.router._members._waiting) <= 10
            assert len(made.node.core.disclosed) < 20

    run(main())


def test_a_disclosure_that_cannot_be_read_goes_no_further() -> None:
    """The other broker hears who is there, and nothing of what he shows; what he shows later on is passed on."""
    good = Credentials.of(grant(HOSTILE, None, Right.CONNECT)).to_bytes()

    async def main() -> None:
        async with scene() as made, fake(made.node) as bad:
            members = made.other.core.router._members
            await until(lambda: HOSTILE.principal in members._known)
            bad.say(disclosed(HOSTILE, b"junk"))
            await until(lambda: "sexp.syntax" in made.node.codes)
            bad.say(disclosed(HOSTILE, good, number=2))
            await until(lambda: members._known[HOSTILE.principal].disclosure)
            assert members._known[HOSTILE.principal].disclosed == good
            assert "sexp.syntax" not in made.other.codes
            await made.go_on(1)

    run(main())


def test_an_error_of_our_own_does_not_end_the_link_of_a_neighbour() -> None:
    def fails(_given: requests.Given) -> None:
        raise FailedError("log.write", "no room on the disk")

    async def main() -> None:
        async with scene() as made:
            link = made.node.neighbours._neighbours[made.other.core.principal].link
            write = made.node.core.path.write
            made.node.core.path.write = fails  # type: ignore[method-assign, assignment]  # the fault
            await made.feed.publish(headline="lost")
            await until(lambda: "log.write" in made.node.codes)
            made.node.core.path.write = write  # type: ignore[method-assign]  # as before
            await made.go_on(1)
            assert made.node.neighbours._neighbours[made.other.core.principal].link is link
            assert link.ended is None

    run(main())


def test_publications_that_are_repeated_come_once() -> None:
    async def main() -> None:
        async with scene() as made, fake(made.node) as bad:
            bad.say(published(event(1), event(2)))
            bad.say(published(event(1), event(2)))
            bad.say(published(event(3), first=2))
            bad.say(published(event(3), first=3))
            await until(lambda: len(made.news._rows) == 3)
            assert [one.id for one in await made.go_on()] == ["h1", "h2", "h3"]

    run(main())


def test_a_broker_without_the_right_carries_nothing() -> None:
    async def main() -> None:
        async with scene() as made, fake(made.node, FOREIGN) as bad:
            bad.say(Enter(1, InterestEntry(KEY)), Enter(2, Entered(KEY)))
            (block,) = blocks(FOREIGN.principal, 1, 1, [event()])
            bad.say(block)
            # It is a neighbour, and takes part in nothing.
            await until(lambda: made.node.core.router.size().entered > 1)
            assert await made.go_on(3) == []
            made.node.core.settle(made.node.core.router.tick(asyncio.get_running_loop().time() + 100))
            kinds: set[str] = set()

            async def listen() -> None:
                for tree in await bad.link.receive():
                    assert isinstance(tree, list)
                    kinds.add(str(tree[3]))

            async with asyncio.timeout(LONG):
                while not kinds & {"pulse", "announcement"}:
                    await listen()
            with suppress(PenstockError, TimeoutError):
                async with asyncio.timeout(1):
                    while True:
                        await listen()
            assert "publications" not in kinds

    run(main())


def test_events_that_do_not_fit_their_type_harm_nobody() -> None:
    other = event(headline="h", location="London")
    cases = [
        event(1, headline=7, location=2.5),
        replace(event(2), values={}),
        replace(event(3), values={**other.values, "nobody/knows": "this"}),
        replace(event(4), ancestors=(TENNIS.name.key,)),
        replace(event(5), id="", time=None),
        replace(event(6), id="x" * 10_000),
    ]

    async def main() -> None:
        seen: list[Event] = []
        async with scene() as made:
            entered = made.node.core.router.size().entered
            for number, case in enumerate(cases):
                async with fake(made.node) as bad:
                    bad.say(published(case, first=10 * number + 1))
                    # Either it is cut for it, or what it says is taken as far as it can be.
                    bad.say(Enter(1, InterestEntry(KEY)))
                    await until(
                        lambda: made.node.core.router.size().entered > entered or not len(made.node.neighbours.up()) > 1
                    )
                    seen += await made.go_on(1)
            assert seen
            assert {type(one[name]) for one in seen for name in ("headline", "location")} <= {str, NoneType}

    run(main())


def test_a_neighbour_that_enters_a_lot_gets_no_more_than_its_turn() -> None:
    async def main() -> None:
        async with scene() as made, fake(made.node) as bad:
            filters = (filter_of(LIBRARY_TYPES[NEWS.name], f"headline = '{number}'") for number in range(1_000))
            hops = [Enter(number, Entered(KEY, one)) for number, one in enumerate(filters)]
            bad.say(Enter(5_000, InterestEntry(KEY)), *hops)
            while made.node.core.router.size().entered < 1_000:
                await made.go_on(1)
            await bad.link.close()
            await until(lambda: made.node.core.router.size().entered < 20)
            await made.go_on()

    run(main())


def test_a_neighbour_that_does_not_read_is_cut() -> None:
    limits = replace(LIMITS, link_outbox=128 << 10)

    async def main() -> None:
        async with scene(limits=limits) as made, fake(made.node) as bad:
            bad.say(Enter(1, InterestEntry(KEY)), Enter(2, Entered(KEY)))
            await until(lambda: made.node.core.router.size().entered >= 2)
            big = {"headline": "x", "location": "x" * 50_000}
            sent = 0
            while HOSTILE.principal in made.node.core.router.view.links:
                await made.feed.publish_many([big] * 10)
                sent += 10
                await made.go_on(1)
                assert sent < 3_000
            await made.go_on()

    run(main())


def test_what_is_urgent_is_heard_before_events_that_have_come_already(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[Wire] = []

    async def main() -> None:
        async with scene() as made, fake(made.node) as bad:
            link = made.node.neighbours._neighbours[HOSTILE.principal].link
            arrived: list[list[Wire]] = [[], [["policy", 1]], []]
            monkeypatch.setattr(link, "urgent", lambda: arrived.pop(0))
            monkeypatch.setattr(
                made.node.neighbours,
                "_hear",
                lambda peer, tree, _now: heard.append(tree) if peer == HOSTILE.principal else None,
            )
            say(bad.link, 1, 2, 3)
            await until(lambda: not arrived)
            assert heard == [1, ["policy", 1], 2, 3]

    run(main())
