"""What a client can ask of a node, over real TLS."""

import asyncio
from datetime import UTC, datetime

import pytest
from tests.broker.node_kit import BROKERS, LONG, client_of, headlines, refused, run, running, take, until
from tests.broker.sports import (
    AGENCY,
    LIBRARY_TYPES,
    NETWORK,
    NEWS,
    PDA,
    REPORTER,
    TENNIS,
    definition,
    grant,
    signed,
)

from penstock.broker.client import client as feeds
from penstock.broker.client.client import RightNotice, connect
from penstock.broker.limits import BrokerLimits
from penstock.codec.limits import CodecLimits
from penstock.errors import MalformedError, RefusedError
from penstock.model import AttributeSpec, Event, Kind
from penstock.trust.capabilities import BoundSelector, Right, event_tag
from penstock.trust.certificates import Authorisation, issue
from penstock.trust.refusals import RightChange
from penstock.trust.validity import Validity

READ = grant(PDA, NEWS, Right.SUBSCRIBE)
LESS = grant(PDA, NEWS, Right.SUBSCRIBE, attributes=["headline"])
WRITE = grant(REPORTER, NEWS, Right.PUBLISH)


# Events.


def test_attributes_are_published_whatever_their_names_are() -> None:
    names = ("id", "time", "self", "event", "values", "attributes", "more")
    odd = definition("Odd", dict.fromkeys(names, AttributeSpec(Kind.STRING)))
    tag = event_tag(AGENCY.principal, "Odd", None, (Right.PUBLISH, Right.SUBSCRIBE))
    rights = [issue(Authorisation(AGENCY.principal, who.principal, tag), AGENCY) for who in (PDA, REPORTER)]

    async def main() -> None:
        async with (
            running(*rights, types=(signed(odd),)) as node,
            client_of(node, PDA) as reader,
            client_of(node, REPORTER) as writer,
        ):
            news, feed = await reader.subscribe(odd.name), await writer.advertise(odd.name)
            await feed.publish(**dict.fromkeys(names, "a"))
            await feed.publish(dict.fromkeys(names, "b"))
            await feed.post(dict.fromkeys(names, "c"))
            events = await take(news, 3)
            assert [dict(event.values) for event in events] == [dict.fromkeys(names, word) for word in "abc"]
            assert len({event.id for event in events}) == 3

    run(main())


def test_an_event_brings_its_own_id_and_time_and_is_of_the_type_of_its_feed() -> None:
    async def main() -> None:
        async with running(READ, WRITE) as node, client_of(node, PDA) as reader, client_of(node, REPORTER) as writer:
            news, feed = await reader.subscribe(NEWS.name), await writer.advertise(NEWS.name)
            noon = datetime(2026, 5, 1, 12, tzinfo=UTC)
            await feed.publish(Event.of(feed.type, {"headline": "a"}, id="one", time=noon))
            await feed.publish_many([Event.of(feed.type, {"headline": "b"}, id="two"), {"headline": "c"}])
            await feed.post(Event.of(feed.type, {"headline": "d"}, id="four"))
            events = await take(news, 4)
            assert [event["headline"] for event in events] == ["a", "b", "c", "d"]
            assert (events[0].id, events[0].time, events[1].id, events[3].id) == ("one", noon, "two", "four")
            with pytest.raises(MalformedError) as failed:
                await feed.publish(Event.of(LIBRARY_TYPES[TENNIS.name], {"headline": "e"}))
            assert failed.value.code == "event.type"

    run(main())


def test_events_come_in_order_whether_they_were_published_or_posted() -> None:
    async def main() -> None:
        async with (
            running(READ, WRITE) as node,
            client_of(node, PDA) as reader,
            client_of(node, REPORTER) as writer,
        ):
            news = await reader.subscribe(NEWS.name)
            feed = await writer.advertise(NEWS.name)
            await feed.publish(headline="0", location="London")
            (event,) = await take(news)
            assert (event["headline"], event["location"], event["agency"]) == ("0", "London", None)
            assert event.time is not None
            for number in range(1, 700, 2):
                await feed.post({"headline": str(number)})
                if number % 50 == 1:
                    await feed.publish({"headline": str(number + 1)})
                else:
                    await feed.post({"headline": str(number + 1)})
            assert await headlines(news, 700) == [str(number) for number in range(1, 701)]

    run(main())


def test_what_was_posted_while_there_was_no_connection_goes_before_what_is_published_then() -> None:
    async def main() -> None:
        async with (
            running(READ, WRITE) as node,
            client_of(node, REPORTER) as writer,
            client_of(node, PDA) as reader,
        ):
            news, feed = await reader.subscribe(NEWS.name), await writer.advertise(NEWS.name)
            up = writer._connection._up
            up.clear()
            await feed.post({"headline": "posted"})
            await feed.post({"headline": "posted too"})
            asyncio.get_running_loop().call_later(0.05, up.set)
            await feed.publish(headline="published")
            assert await headlines(news, 3) == ["posted", "posted too", "published"]

    run(main())


def test_selectors_and_sub_types() -> None:
    async def main() -> None:
        async with (
            running(READ, grant(PDA, TENNIS, Right.SUBSCRIBE), WRITE, grant(REPORTER, TENNIS, Right.PUBLISH)) as node,
            client_of(node, PDA) as reader,
            client_of(node, REPORTER) as writer,
        ):
            everything = await reader.subscribe(NEWS.name)
            london = await reader.subscribe(str(NEWS.name), "location = 'London'")
            tennis = await reader.subscribe(TENNIS.name, "sets > 2")
            news = await writer.advertise(NEWS.name)
            matches = await writer.advertise(TENNIS.name)
            await news.publish(headline="a", location="London")
            await matches.publish(headline="b", location="London", sets=2)
            await matches.publish(headline="c", location="Paris", sets=3)
            assert await headlines(everything, 3) == ["a", "b", "c"]
            assert await headlines(london, 2) == ["a", "b"]
            (event,) = await take(tennis)
            assert (event["headline"], event["sets"]) == ("c", 3)
            await news.publish(headline="d", location="London")
            assert await headlines(london, 1) == ["d"]

    run(main())


def test_what_may_not_be_read_is_none_and_what_may_not_be_had_does_not_come() -> None:
    async def main() -> None:
        async with (
            running(LESS, WRITE) as node,
            client_of(node, PDA) as reader,
            client_of(node, REPORTER) as writer,
        ):
            london = await reader.subscribe(NEWS.name, "location = 'London' OR headline = 'i'")
            news = await reader.subscribe(NEWS.name)
            feed = await writer.advertise(NEWS.name)
            await feed.publish(headline="h", location="London")
            await feed.publish(headline="i", location="London")
            (event, _) = await take(news, 2)
            assert (event["headline"], event["location"]) == ("h", None)
            # Nobody finds out by asking what he may not see.
            assert await headlines(london, 1) == ["i"]

    run(main())


def test_a_subscription_is_unsubscribed_and_ends_what_reads_it() -> None:
    async def main() -> None:
        async with running(READ, WRITE) as node, client_of(node, PDA) as reader, client_of(node, REPORTER) as writer:
            feed = await writer.advertise(NEWS.name)
            async with await reader.subscribe(NEWS.name) as news:
                await feed.publish(headline="h")
                async for event in news:
                    assert event["headline"] == "h"
                    await news.unsubscribe()
            assert repr(news) == "Subscription(SportsNews, client.closed)"
            assert node.held == 1
            await refused("broker.unknown-id", news.restrictions())
            await feed.unadvertise()
            await refused("client.closed", feed.publish(headline="i"))
            assert node.held == 0

    run(main())


def test_callbacks_may_ask_their_broker_and_may_fail() -> None:
    async def main() -> None:
        problems: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(context["exception"]))
        both = grant(PDA, NEWS, Right.SUBSCRIBE, Right.PUBLISH)
        async with running(both, WRITE) as node, client_of(node, PDA) as reader, client_of(node, REPORTER) as writer:
            seen: list[object] = []
            answers = await reader.advertise(NEWS.name)

            async def answer(event: Event) -> None:
                seen.append(event["headline"])
                if event["headline"] == "question":
                    await answers.publish(headline="answer")
                if event["headline"] == "late trouble":
                    raise ValueError

            def fail(event: Event) -> None:
                if event["headline"] == "trouble":
                    raise TypeError

            await reader.subscribe(NEWS.name, callback=answer)
            await reader.subscribe(NEWS.name, callback=fail)
            feed = await writer.advertise(NEWS.name)
            for headline in ("question", "trouble", "late trouble", "end"):
                await feed.publish(headline=headline)
            await until(lambda: "end" in seen and "answer" in seen)
            assert seen[0] == "question"
            assert sorted(map(str, seen)) == ["answer", "end", "late trouble", "question", "trouble"]
            assert sorted(type(problem).__name__ for problem in problems) == ["TypeError", "ValueError"]

    run(main())


def test_a_client_publishes_events_as_objects() -> None:
    async def main() -> None:
        async with running(READ, WRITE) as node, client_of(node, PDA) as reader, client_of(node, REPORTER) as writer:
            news = await reader.subscribe(NEWS.name)
            news_type = await writer.type(NEWS.name)
            for id_ in ("one", "two"):
                await writer.publish(Event.of(news_type, {"headline": "h"}, id=id_))
            assert [event.id for event in await take(news, 2)] == ["one", "two"]
            assert node.held == 2

    run(main())


def test_large_events_take_as_many_messages_as_they_need() -> None:
    async def main() -> None:
        async with running(READ, WRITE) as node, client_of(node, PDA) as reader, client_of(node, REPORTER) as writer:
            news = await reader.subscribe(NEWS.name)
            feed = await writer.advertise(NEWS.name)
            events = [{"headline": str(number), "location": "x" * 200_000} for number in range(24)]
            await feed.publish_many(events[:12])
            for event in events[12:]:
                await feed.post(event)
            assert await headlines(news, 24) == [str(number) for number in range(24)]

    run(main())


def test_closing_a_client_sends_what_was_posted_and_ends_its_session() -> None:
    async def main() -> None:
        async with running(READ, WRITE) as node, client_of(node, PDA) as reader:
            news = await reader.subscribe(NEWS.name)
            async with client_of(node, REPORTER) as writer:
                feed = await writer.advertise(NEWS.name)
                for number in range(300):
                    await feed.post({"headline": str(number)})
            await headlines(news, 300)
            await until(lambda: len(node.clients) == 1)
            assert node.held == 1
            for act in (feed.publish(headline="h"), feed.post({}), writer.subscribe(NEWS.name)):
                await refused("client.closed", act)
            assert repr(writer).endswith(", down)")

    run(main())


# Refusals.


def test_a_refusal_says_what_was_asked_and_the_rest_to_those_who_may_know() -> None:
    async def main() -> None:
        async with running(READ) as node, client_of(node, PDA) as client:
            error = await refused("broker.not-permitted", client.advertise(NEWS.name))
            assert error.fields["asked"] == "advertise"
            assert error.fields["detail"] is None
            report = node.told[-1]
            assert "MissingRight(right=<Right.PUBLISH" in repr(report)
            node.policy(READ, grant(PDA, NEWS, Right.RESTRICTIONS))
            error = await refused("broker.not-permitted", client.advertise(NEWS.name))
            assert error.fields["detail"]["missing"][0] == ["publish", str(NEWS.name), []]  # type: ignore[index]  # so
            error = await refused("selector.unknown-attribute", client.subscribe(NEWS.name, "weight > 3"))
            await refused("selector.syntax", client.subscribe(NEWS.name, "location ="))
            await refused("broker.not-operator", client.status())
            await refused("broker.not-permitted", client.add_type(signed(definition("Golf", {}))))
            await refused("broker.not-permitted", client.remove_type(NEWS.name))
            error = await refused("broker.unknown-type", client.subscribe(definition("Chess", {}).name))
            assert "`penstock net install`" in error.hint

    run(main())


def test_a_refused_event_says_what_may_be_published_to_those_who_may_know() -> None:
    london = BoundSelector.of("location = 'London'", LIBRARY_TYPES[NEWS.name])
    limited = grant(REPORTER, NEWS, Right.PUBLISH, where=(london,))

    async def main() -> None:
        async with running(limited) as node, client_of(node, REPORTER) as writer:
            feed = await writer.advertise(NEWS.name)
            error = await refused("guard.not-permitted", feed.publish(headline="h", location="Paris"))
            assert isinstance(error, RefusedError)
            assert error.detail is None
            node.policy(limited, grant(REPORTER, NEWS, Right.RESTRICTIONS))
            error = await refused("guard.not-permitted", feed.publish(headline="h", location="Paris"))
            assert isinstance(error, RefusedError)
            assert "location = 'London'" in str(error.detail)

    run(main())


def test_restrictions_are_told_where_the_owner_lets_clients_ask() -> None:
    async def main() -> None:
        async with running(LESS) as node, client_of(node, PDA) as client:
            news = await client.subscribe(NEWS.name)
            await refused("broker.not-told", news.restrictions())
            node.policy(LESS, grant(PDA, NEWS, Right.RESTRICTIONS))
            told = await news.restrictions()
            assert told["missing"][0] == ["subscribe", str(NEWS.name), ["location", "agency"]]  # type: ignore[index]  # so
            assert str(told["granted"]).count("headline") > 0

    run(main())


def test_of_many_events_those_are_taken_that_may_be_published() -> None:
    reuters = BoundSelector.of("agency = 'Reuters'", LIBRARY_TYPES[NEWS.name])
    limited = grant(REPORTER, NEWS, Right.PUBLISH, where=[reuters])

    async def main() -> None:
        async with running(READ, limited) as node, client_of(node, PDA) as reader, client_of(node, REPORTER) as writer:
            news = await reader.subscribe(NEWS.name)
            feed = await writer.advertise(NEWS.name)
            events = [{"headline": str(n), "agency": "AP" if n in (3, 300) else "Reuters"} for n in range(400)]
            error = await refused("guard.not-permitted", feed.publish_many(events))
            assert (error.fields["asked"], error.fields["position"]) == ("publish", 3)
            error = await refused("guard.not-permitted", feed.publish_many(events[260:]))
            assert error.fields["position"] == 40
            expected = [str(n) for n in (*range(400), *range(260, 400)) if n not in (3, 300)]
            assert await headlines(news, len(expected)) == expected
            errors: list[RefusedError] = []
            writer.on_refusal(errors.append)
            for number in range(5):
                await feed.post({"headline": str(number), "agency": "AP" if number == 2 else "Reuters"})
            assert await headlines(news, 4) == ["0", "1", "3", "4"]
            await until(lambda: errors)
            assert [error.code for error in errors] == ["guard.not-permitted"]
            assert errors[0].fields["asked"] == "publish"

    run(main())


def test_values_that_do_not_fit_are_refused_before_they_are_sent() -> None:
    async def main() -> None:
        async with running(WRITE) as node, client_of(node, REPORTER) as writer:
            feed = await writer.advertise(NEWS.name)
            await refused("event.unknown-attribute", feed.publish(weight=3))
            await refused("value.kind", feed.post({"headline": 3}))
            await refused("wire.limit", feed.publish(headline="x" * (2 << 20)))
            await feed.publish(headline="h")
            assert node.core.counts["published"] == 1

    run(main())


@pytest.mark.parametrize("url", ["", "http://host:1", "penstock://host", "penstock://host:x", "penstock://host:1/p"])
def test_addresses(url: str) -> None:
    with pytest.raises(MalformedError) as caught:
        connect(url, key=PDA, network=NETWORK)
    assert caught.value.code == "client.url"


# Quenching.


def test_publishers_are_told_when_nobody_wants_their_events() -> None:
    async def main() -> None:
        async with running(READ, WRITE) as node, client_of(node, PDA) as reader, client_of(node, REPORTER) as writer:
            told: list[tuple[object, bool]] = []
            writer.on_quench(lambda feed, quiet: told.append((feed, quiet)))
            feed = await writer.advertise(NEWS.name)
            await until(lambda: feed.quiet)
            news = await reader.subscribe(NEWS.name)
            await until(lambda: not feed.quiet)
            await news.unsubscribe()
            await until(lambda: feed.quiet)
            assert told == [(feed, True), (feed, False), (feed, True)]

    run(main())


# Rights that change.


def test_clients_are_told_when_their_rights_change_and_events_come_again() -> None:
    asking = grant(PDA, NEWS, Right.RESTRICTIONS)

    async def main() -> None:
        async with running(READ, WRITE) as node, client_of(node, PDA) as reader, client_of(node, REPORTER) as writer:
            told: list[RightNotice] = []
            await reader.watch_rights(told.append)
            news, feed = await reader.subscribe(NEWS.name), await writer.advertise(NEWS.name)
            await feed.publish(headline="one")
            node.policy(WRITE)
            await until(lambda: told)
            await feed.publish(headline="two")
            (notice,) = told
            assert (notice.request, notice.change, notice.detail) == (news, RightChange.WITHDRAWN, None)
            assert (
                str(notice) == f"{PDA.principal.short} may no longer subscribe to {AGENCY.principal.short}/SportsNews@0"
            )
            assert notice.refusal is news.refusal
            assert notice.refusal is not None
            error = await refused("broker.not-permitted", reader.subscribe(NEWS.name))
            assert (notice.refusal.message, notice.refusal.hint) == (error.message, error.hint)
            node.policy(WRITE, LESS)
            await until(lambda: len(told) == 2)
            await feed.publish(headline="three", location="Leeds")
            assert [(one["headline"], one["location"]) for one in await take(news, 2)] == [
                ("one", None),
                ("three", None),
            ]
            assert (told[1].change, told[1].refusal, told[1].detail, news.refusal) == ("restored", None, None, None)
            assert str(told[1]).endswith("/SportsNews@0 again")
            node.policy(WRITE, READ)
            node.policy(WRITE, LESS, asking)
            await until(lambda: len(told) == 3)
            assert (told[2].change, [*(told[2].detail or ())]) == ("restricted", ["granted", "missing", "problems"])

    run(main())


def test_a_publisher_is_told_that_its_type_is_gone() -> None:
    async def main() -> None:
        async with running(WRITE) as node, client_of(node, REPORTER) as writer:
            told: list[RightNotice] = []
            await writer.watch_rights(told.append)
            feed = await writer.advertise(NEWS.name)
            node.core.settle(node.core.local.change(node.core.now(), removed=[NEWS.name]))
            await until(lambda: told)
            assert feed.refusal is not None
            assert (feed.refusal.code, feed.refusal.fields["asked"]) == ("broker.unknown-type", "advertise")
            assert str(told[0]).endswith("/SportsNews@0: `SportsNews` version 0 is not known here")

    run(main())


# Several of everything.


def test_several_clients_of_one_key_share_what_it_may_use() -> None:
    limits = BrokerLimits(client_sessions=2, client_subscriptions=2, client_advertisements=1, link_goodbye=300)

    async def main() -> None:
        async with (
            running(READ, WRITE, limits=limits) as node,
            client_of(node, PDA) as one,
            client_of(node, PDA) as two,
        ):
            await refused("broker.sessions", client_of(node, PDA).__aenter__())
            first = await one.subscribe(NEWS.name)
            second = await two.subscribe(NEWS.name)
            await refused("broker.subscriptions", one.subscribe(NEWS.name))
            async with client_of(node, REPORTER) as writer:
                feed = await writer.advertise(NEWS.name)
                await refused("broker.advertisements", writer.advertise(NEWS.name))
                await feed.publish(headline="h")
            assert await headlines(first, 1) == await headlines(second, 1) == ["h"]
            await until(lambda: len(node.clients) == 2)

    run(main())


def test_a_subscriber_that_does_not_read_harms_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = BrokerLimits(link_outbox=256 << 10, link_goodbye=300)
    monkeypatch.setattr(feeds, "_WAITING", 64)

    async def main() -> None:
        async with (
            running(READ, WRITE, limits=limits) as node,
            client_of(node, PDA, limits=BrokerLimits(link_inbox=4_096)) as slow,
            client_of(node, PDA) as quick,
            client_of(node, REPORTER) as writer,
        ):
            lazy = await slow.subscribe(NEWS.name)
            news = await quick.subscribe(NEWS.name)
            feed = await writer.advertise(NEWS.name)
            sent = 0
            while len(node.clients) == 3:
                await feed.publish_many([{"headline": str(sent + n), "location": "x" * 10_000} for n in range(20)])
                assert await headlines(news, 20) == [str(sent + n) for n in range(20)]
                sent += 20
                assert sent < 5_000
            assert slow.reconnections == 0
            # Who reads again comes back by itself.
            found: list[Event] = []

            async def read() -> None:
                while not found or found[-1]["headline"] != "again":
                    found.append(await lazy.next(LONG))

            reading = asyncio.create_task(read())
            await until(lambda: node.held == 3)
            await feed.publish(headline="again")
            await reading
            assert [event["headline"] for event in found[:2]] == ["0", "1"]
            assert slow.reconnections == 1

    run(main())


def test_single_events_wait_for_a_slow_reader_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeds, "_WAITING", 4)

    async def main() -> None:
        async with (
            running(READ, WRITE) as node,
            client_of(node, PDA) as slow,
            client_of(node, PDA) as quick,
            client_of(node, REPORTER) as writer,
        ):
            lazy, news = await slow.subscribe(NEWS.name), await quick.subscribe(NEWS.name)
            feed = await writer.advertise(NEWS.name)
            sent = [str(number) for number in range(40)]
            for headline in sent:
                await feed.publish(headline=headline)
                assert await headlines(news, 1) == [headline]
            assert lazy.waiting <= 4
            assert await headlines(lazy, 40) == sent

    run(main())


def test_an_operator_sees_the_state_of_the_broker() -> None:
    async def main() -> None:
        operator = grant(AGENCY, None, Right.CONNECT)
        async with running(operator, READ) as node, client_of(node, AGENCY) as client, client_of(node, PDA) as reader:
            await reader.subscribe(NEWS.name)
            state = await client.status()
            assert state["broker"] == str(BROKERS[0].principal)
            assert (state["sessions"], state["types"]) == (2, 5)
            assert state["neighbours"] == []

    run(main())


def test_rights_of_a_broker_that_are_too_many_to_show_are_refused_rather_than_silent() -> None:
    limits = BrokerLimits(codec=CodecLimits(frame_bytes=16 << 10), link_goodbye=300)
    ends = [Validity.between(None, datetime(2100 + number, 1, 1, tzinfo=UTC)) for number in range(40)]
    rights = [grant(BROKERS[0], NEWS, Right.SUBSCRIBE, valid=valid) for valid in ends]

    async def main() -> None:
        async with running(*rights, limits=limits) as node:
            await refused("wire.limit", client_of(node, PDA).__aenter__())

    run(main())
