"""Clients: types and their versions, credentials, and who is let in."""

from dataclasses import replace

from tests.broker.client.test_client import LESS, READ, WRITE
from tests.broker.node_kit import BROKERS, LONG, bag, client_of, headlines, refused, run, running, take, until
from tests.broker.sports import (
    LIVE,
    NEWS,
    NUMBER,
    PDA,
    REPORTER,
    SOCCER,
    STRANGER,
    TENNIS,
    definition,
    grant,
    signed,
)

from penstock.trust.capabilities import BROKER_RIGHTS, Right
from penstock.trust.credentials import Credentials

# Types and credentials.


def test_types_come_with_the_client_or_from_the_broker() -> None:
    rights = grant(PDA, NEWS, Right.SUBSCRIBE), grant(PDA, TENNIS, Right.SUBSCRIBE)

    async def main() -> None:
        async with running(*rights, types=()) as node:
            async with client_of(node, PDA) as client:
                await refused("broker.unknown-type", client.subscribe(TENNIS.name))
            async with client_of(node, PDA, types=[signed(NEWS), signed(TENNIS)]) as client:
                await client.subscribe(TENNIS.name)
            assert len(node.core.library) == 2
            async with client_of(node, PDA) as client:
                tennis = await client.type(TENNIS.name)
                assert list(tennis.by_name) == ["headline", "location", "agency", "sets"]
                await client.subscribe(tennis)

    run(main())


def test_types_are_added_and_removed_by_those_who_may() -> None:
    golf = definition("Golf", {"hole": NUMBER}, NEWS.name)
    rights = READ, grant(REPORTER, None, Right.INSTALL), grant(REPORTER, LIVE, Right.PUBLISH)

    async def main() -> None:
        async with running(*rights) as node, client_of(node, PDA) as reader, client_of(node, REPORTER) as writer:
            news = await reader.subscribe(NEWS.name)
            await writer.type(NEWS.name)
            added = await writer.add_type(signed(golf))
            assert "hole" in added.by_name
            assert golf.name in node.core.library
            live = await writer.advertise(LIVE.name)
            await live.publish(headline="h")
            assert await headlines(news, 1) == ["h"]
            other = replace(golf, attributes=())
            await refused("broker.type-exists", writer.add_type(signed(other)))
            await refused("broker.not-permitted", writer.remove_type(golf.name))
            manage = grant(REPORTER, SOCCER, Right.MANAGE)
            node.policy(*rights, manage)
            await writer.type(SOCCER.name)
            await writer.remove_type(SOCCER.name)
            assert SOCCER.name not in node.core.library
            await refused("broker.unknown-type", reader.subscribe(SOCCER.name))

    run(main())


def test_versions_are_translated_at_the_edge() -> None:
    later = NEWS.add("odds", "odds", NUMBER, version="1")

    async def main() -> None:
        async with (
            running(READ, WRITE) as node,
            client_of(node, PDA) as reader,
            client_of(node, REPORTER, types=[signed(NEWS), signed(later)]) as writer,
        ):
            old = await reader.subscribe(NEWS.name)
            feed = await writer.advertise(later.name)
            new = await reader.subscribe(later.name)
            await feed.publish(headline="h", odds=7)
            (before,), (after,) = await take(old), await take(new)
            assert before.type.name == NEWS.name
            assert dict(before.values) == {"headline": "h", "location": None, "agency": None}
            assert after["odds"] == 7

    run(main())


def test_what_is_disclosed_later_makes_more_of_what_was_asked_for() -> None:
    async def main() -> None:
        async with (
            running(LESS, WRITE) as node,
            client_of(node, PDA) as reader,
            client_of(node, REPORTER) as writer,
        ):
            news = await reader.subscribe(NEWS.name)
            feed = await writer.advertise(NEWS.name)
            await feed.publish(headline="a", location="London")
            await reader.disclose(Credentials.of(READ))
            await feed.publish(headline="b", location="London")
            assert [event["location"] for event in await take(news, 2)] == [None, "London"]

    run(main())


# Who is let in.


def test_credentials_that_a_client_brings_let_it_in() -> None:
    async def main() -> None:
        async with running() as node:
            error = await refused("broker.not-permitted", client_of(node, STRANGER).__aenter__())
            assert error.fields["asked"] == "connect"
            mine = Credentials.of(grant(STRANGER, None, Right.CONNECT), grant(STRANGER, NEWS, Right.SUBSCRIBE))
            async with client_of(node, STRANGER, credentials=mine) as client:
                await client.subscribe(NEWS.name)
            await until(lambda: not len(node.clients))

    run(main())


def test_a_client_whose_right_is_taken_away_is_let_go_and_does_not_come_back() -> None:
    async def main() -> None:
        mine = Credentials.of()
        stranger = grant(STRANGER, None, Right.CONNECT)
        reading = grant(STRANGER, NEWS, Right.SUBSCRIBE)
        async with running(stranger, reading) as node, client_of(node, STRANGER, credentials=mine) as client:
            news = await client.subscribe(NEWS.name)
            node.policy(reading)
            await refused("broker.not-permitted", news.next(LONG))
            await refused("broker.not-permitted", client.subscribe(NEWS.name))
            assert not len(node.clients)

    run(main())


def test_a_broker_that_may_not_be_in_the_network_is_not_spoken_to() -> None:
    async def main() -> None:
        async with running(READ, key=STRANGER) as node:
            await refused("broker.not-permitted", client_of(node, PDA).__aenter__())
            async with client_of(node, PDA, broker=STRANGER.principal) as client:
                assert client.peer == STRANGER.principal
            await refused("handshake.peer", client_of(node, PDA, broker=BROKERS[1].principal).__aenter__())
            mine = bag(grant(STRANGER, None, *BROKER_RIGHTS))
            async with client_of(node, PDA, credentials=mine) as client:
                await client.subscribe(NEWS.name)

    run(main())
