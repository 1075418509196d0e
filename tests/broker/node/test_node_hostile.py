"""Clients that keep no rules: each is refused or slowed down, with a code, and everybody else goes on.

Handshakes that are replayed or spliced, wrong keys and frames that are none are tried in `test_link_hostile`,
`test_link_tls` and `test_handshake`.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import pytest
from tests.broker.node.test_clients import Ears, Peer, attend
from tests.broker.node_kit import (
    LIMITS,
    LONG,
    Broker,
    client_of,
    ending,
    hear,
    peer,
    refused,
    run,
    running,
    say,
    settings,
    until,
)
from tests.broker.sports import NETWORK, NEWS, NOW, NUMBER, PDA, REPORTER, STRANGER, definition, grant, signed
from tests.budget import amount

from penstock.broker.client.client import Client, Feed, Subscription
from penstock.broker.core.clock import Turns
from penstock.broker.limits import BrokerLimits
from penstock.broker.wire.channel import Channel
from penstock.broker.wire.handshake import AuthenticatedPeer
from penstock.broker.wire.link import Endpoint, Link
from penstock.broker.wire.protocol import (
    AddTypeMessage,
    AdvertiseMessage,
    Disclose,
    Events,
    Hello,
    PeerRole,
    PublishMessage,
    Row,
    SubscribeMessage,
    read_word,
)
from penstock.codec.wire import Wire, Writable, decode, encode, frame
from penstock.errors import RefusedError
from penstock.model.types import TypeDefinition
from penstock.trust.capabilities import Right
from penstock.trust.certificates import Certificate
from penstock.trust.credentials import Credentials
from penstock.trust.event_types import sign_type
from penstock.trust.validity import Validity

READ = grant(PDA, NEWS, Right.SUBSCRIBE)
WRITE = grant(REPORTER, NEWS, Right.PUBLISH)
#: the hostile one may connect, and in some tests more than that
ENTER = grant(STRANGER, None, Right.CONNECT)
ALL = grant(STRANGER, NEWS, Right.SUBSCRIBE, Right.PUBLISH)


@dataclass
class Honest:
    """A publisher and a subscriber who want to go on."""

    node: Broker
    reader: Client
    news: Subscription
    feed: Feed
    rounds: int = 0

    async def go_on(self, rounds: int = 3) -> None:
        """Publish and read some more, and make a further request."""
        for _ in range(rounds):
            self.rounds += 1
            await self.feed.publish(headline=f"honest {self.rounds}")
            while (await self.news.next(LONG))["headline"] != f"honest {self.rounds}":
                pass
        await (await self.reader.subscribe(NEWS.name, "agency = 'AP'")).unsubscribe()


@asynccontextmanager
async def honest(*policy: Certificate, limits: BrokerLimits = LIMITS) -> AsyncIterator[Honest]:
    async with (
        running(READ, WRITE, ENTER, *policy, limits=limits) as node,
        client_of(node, PDA) as reader,
        client_of(node, REPORTER) as writer,
    ):
        news = await reader.subscribe(NEWS.name)
        yield Honest(node, reader, news, await writer.advertise(NEWS.name))


def codes(words: Sequence[Wire]) -> Counter[str]:
    """Count refusals by their codes, and what was accepted."""
    said = [word for word in words if isinstance(word, list)]
    return Counter(str(word[2]) if word[0] == "refused" else str(word[0]) for word in said)


async def during(work: "asyncio.Task[None]", pair: Honest) -> None:
    """Let the honest ones go on until some work is done."""
    while not work.done():
        await pair.go_on(1)
    await work


# Floods of requests.

QUICK = replace(
    LIMITS,
    client_requests=1_000_000,
    client_requests_burst=1_000_000,
    client_changes=1_000_000,
    client_changes_burst=1_000_000,
    client_work=1_000_000,
)


def junk(number: int) -> str:
    """Return one of many different selectors."""
    match number % 5:
        case 0:
            return f"headline = 'junk {number}'"
        case 1:
            return f"location > '{number}' AND agency <> 'x{number}'"
        case 2:
            return " OR ".join(f"headline = '{number}.{branch}'" for branch in range(20))
        case 3:
            return f"headline LIKE '%{number}_%' OR NOT (agency = '{number}' AND location IS NULL)"
        case _:
            return "(" * 20 + f"headline = '{number}'" + ")" * 20


@pytest.mark.parametrize(
    ("rights", "expected"),
    [
        ((), {"broker.not-permitted": amount(1_000)}),
        ((ALL,), {"accepted": 200, "broker.subscriptions": amount(9_800)}),
    ],
    ids=["without rights", "with rights"],
)
def test_ten_thousand_junk_subscriptions(rights: tuple[Certificate, ...], expected: dict[str, int]) -> None:
    total = sum(expected.values())
    limits = replace(QUICK, client_subscriptions=200)

    async def main() -> None:
        async with honest(*rights, limits=limits) as pair, peer(pair.node, STRANGER) as bad:
            await hear(bad, 1)

            async def flood() -> None:
                for number in range(total):
                    text = junk(number) if number < 400 else "headline = 'x'"
                    await bad.send(encode(SubscribeMessage(number, f"s{number}", NEWS.name, text).to_tree()))

            found: list[Wire] = []

            async def listen() -> None:
                while len(found) < total:
                    found.extend(word for word in await bad.receive() if isinstance(word, list) and word[0] != "events")

            flooding = asyncio.create_task(flood())
            await during(asyncio.create_task(listen()), pair)
            await flooding
            assert codes(found) == expected
            await pair.go_on()
            await bad.close()
            # Nothing is left of it.
            await until(lambda: pair.node.held == 2)

    run(main())


def test_who_asks_too_often_or_for_too_much_waits_and_nobody_else_does() -> None:
    often = replace(LIMITS, client_requests=50, client_requests_burst=10)
    much = replace(LIMITS, client_work=200, client_work_burst=1)

    async def main() -> None:
        for limits in (often, much):
            async with honest(ALL, limits=limits) as pair, peer(pair.node, STRANGER) as bad:
                await hear(bad, 1)
                began = asyncio.get_running_loop().time()
                wide = " OR ".join(f"(headline = '{branch}' AND location > 'k')" for branch in range(20))
                for number in range(20):
                    say(bad, SubscribeMessage(number, f"s{number}", NEWS.name, wide).to_tree())
                await asyncio.wait_for(pair.go_on(), LONG)
                assert codes(await hear(bad, 20)) == {"accepted": 20}
                # Ten are taken together, or what takes 1 ms; of the others 50 in a second, or what takes 200 ms.
                assert asyncio.get_running_loop().time() - began > 0.15

    run(main())


def test_between_two_expensive_requests_others_have_several_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pause is as long as the request took. Here it is as long as others need for two rounds, however busy."""
    wide = " OR ".join(f"(headline = '{branch}' AND location > 'k{branch}')" for branch in range(200))
    over = Turns.over

    async def main() -> None:
        async with honest(ALL) as pair, peer(pair.node, STRANGER) as bad:
            await hear(bad, 1)
            pace, works, pauses = pair.node.clients._pace(STRANGER.principal), list[float](), list[float]()
            charge = pace.charge

            def charged(work: float, now: float, *, change: bool) -> float:
                works.append(work)
                pauses.append(charge(work, now, change=change))
                return pauses[-1]

            async def turned(turns: Turns, pause: float = 0.0) -> None:
                if not pause or pause not in pauses:
                    await over(turns, pause)
                    return
                wanted = pair.rounds + 2
                await until(lambda: pair.rounds >= wanted)

            monkeypatch.setattr(pace, "charge", charged)
            monkeypatch.setattr(Turns, "over", turned)
            for number in range(8):
                say(bad, SubscribeMessage(number, f"s{number}", NEWS.name, wide).to_tree())
            listening = asyncio.create_task(hear(bad, 8))
            while not listening.done():
                await pair.go_on(1)
            assert codes(await listening) == {"accepted": 8}
            assert len(pauses) == 8
            assert all(pause >= work > 0.01 for pause, work in zip(pauses, works, strict=True))
            # Without the pauses there is one round for all eight; the last one is not waited for.
            assert pair.rounds >= 2 * 7

    run(main())


@pytest.mark.parametrize(
    ("selector", "code"),
    [
        ("headline = '" + "x" * 20_000 + "'", "selector.limit"),
        ("NOT " * 200 + "headline = 'x'", "selector.limit"),
        (" OR ".join(["headline = 'x'"] * 2_000), "selector.limit"),
        ("(" * 5_000, "selector.limit"),
        ("headline = 3", "selector.type"),
        ("odds = 3", "selector.unknown-attribute"),
        ("headline = ", "selector.syntax"),
        ("headline = 'x'; DROP TABLE news", "selector.unsupported"),
    ],
)
def test_selectors_that_are_none(selector: str, code: str) -> None:
    async def main() -> None:
        async with honest(ALL) as pair, peer(pair.node, STRANGER) as bad:
            await hear(bad, 1)
            say(bad, SubscribeMessage(1, "s", NEWS.name, selector).to_tree())
            assert codes(await hear(bad, 1)) == {code: 1}
            await pair.go_on(1)

    run(main())


# Publications.


def events(*rows: Row, number: int = 7) -> Writable:
    return PublishMessage(number, "a", NEWS.name, rows).to_tree()


GOOD: Row = ["id", NOW, "headline", "London", "AP"]


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (events(GOOD[:-1]), "protocol.row"),
        (events(GOOD, [*GOOD, "more"]), "protocol.row"),
        (events(["id", NOW, 3, None, None]), "value.kind"),
        (events(["id", NOW, b"octets", None, None]), "value.kind"),
        (events(["id", NOW, ["list"], None, None]), "value.kind"),
        (events(["id", NOW, {"a": 1}, None, None]), "value.kind"),
        (events(["id", NOW, 1 << 63, None, None]), "value.kind"),
        (events(["id", NOW, "x" * 300_000, None, None]), "broker.event-size"),
        (PublishMessage(7, "none", NEWS.name, [GOOD]).to_tree(), "broker.not-advertised"),
        (PublishMessage(7, "a", definition("Chess", {}).name, [GOOD]).to_tree(), "broker.unknown-type"),
    ],
)
def test_events_that_are_none_are_refused_and_the_publication_is_answered(message: Writable, code: str) -> None:
    async def main() -> None:
        async with honest(ALL) as pair, peer(pair.node, STRANGER) as bad:
            say(bad, AdvertiseMessage(1, "a", NEWS.name).to_tree(), message, events(GOOD, number=8))
            found = await hear(bad, 5)
            assert codes(found) - Counter(welcome=1, quenched=1) == {code: 1, "accepted": 3}
            assert found[-1] == ["accepted", 8]
            assert (await pair.news.next(LONG)).id == "id"
            await pair.go_on(1)

    run(main())


def test_values_that_no_codec_makes_are_not_delivered() -> None:
    async def main() -> None:
        async with honest(ALL) as pair, peer(pair.node, STRANGER) as bad:
            say(bad, AdvertiseMessage(1, "a", NEWS.name).to_tree())
            far = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
            rows: list[Row] = [["", None, "no id", None, None], ["\x00\n", far, "odd id", "\ufeff", ""]]
            say(bad, events(*rows))
            await hear(bad, 3)
            await pair.go_on(1)

    run(main())


def test_who_publishes_beyond_its_rate_is_refused_and_others_go_on() -> None:
    limits = replace(LIMITS, client_rate=1_000)

    async def main() -> None:
        async with honest(ALL, limits=limits) as pair, peer(pair.node, STRANGER) as bad:
            say(bad, AdvertiseMessage(1, "a", NEWS.name).to_tree())
            rows: list[Row] = [[str(number), NOW, "flood", None, None] for number in range(500)]
            for number in range(2, 8):
                say(bad, PublishMessage(number, "a", NEWS.name, rows).to_tree())
            found = Counter[str]()
            while found["accepted"] < 7:
                found += codes(await bad.receive())
            assert found["broker.rate"] == 2_000
            await pair.go_on()

    run(main())


# Forged types and credentials.


def forged(made: TypeDefinition) -> bytes:
    """Return a definition that somebody else signed."""
    return sign_type(made, STRANGER).to_bytes()


GOLF = definition("Golf", {}, NEWS.name)
CHANGED = replace(NEWS, attributes=NEWS.attributes[:1])


@pytest.mark.parametrize(
    ("definition_", "code"),
    [
        (forged(GOLF), "type.forged"),
        (signed(GOLF).to_bytes().replace(b"Golf", b"Gulf"), "type.signature-mismatch"),
        (signed(CHANGED).to_bytes(), "broker.type-exists"),
        (
            forged(replace(GOLF, name=replace(GOLF.name, owner=STRANGER.principal), extends=None)),
            "type.not-installable",
        ),
        (b"", "sexp.truncated"),
        (b"(" * 100_000, "sexp.limit"),
        (bytes(500_000), "sexp.syntax"),
    ],
    ids=["other signer", "changed", "same name", "own type", "nothing", "deep", "zeros"],
)
def test_forged_types(definition_: bytes, code: str) -> None:
    async def main() -> None:
        async with honest(ALL, grant(STRANGER, None, Right.INSTALL)) as pair, peer(pair.node, STRANGER) as bad:
            await hear(bad, 1)
            before = len(pair.node.core.library)
            for message in (
                AddTypeMessage(1, definition_),
                SubscribeMessage(2, "s", NEWS.name, "", (definition_,)),
                AdvertiseMessage(3, "a", NEWS.name, (definition_,)),
            ):
                say(bad, message.to_tree())
            assert codes(await hear(bad, 3)) == {code: 3}
            assert len(pair.node.core.library) == before
            await pair.go_on(1)

    run(main())


EXPIRED = grant(STRANGER, None, Right.CONNECT, valid=Validity.between(None, datetime(2020, 1, 1, tzinfo=UTC)))
OF_OTHERS = Credentials.of(grant(PDA, None, Right.CONNECT), READ)
FORGED = OF_OTHERS.to_bytes().replace(b"subscribe", b"subscribf")


@pytest.mark.parametrize(
    ("shown", "code"),
    [
        (b"", "broker.not-permitted"),
        (b"junk", "sexp.syntax"),
        (b"(" * 100_000, "sexp.limit"),
        (FORGED, "cert.signature-mismatch"),
        (Credentials.of(EXPIRED).to_bytes(), "broker.not-permitted"),
        (OF_OTHERS.to_bytes(), "broker.not-permitted"),
        (Credentials.of(grant(STRANGER, None, Right.INSTALL)).to_bytes(), "broker.not-permitted"),
    ],
    ids=["nothing", "junk", "deep", "forged", "expired", "of others", "other right"],
)
def test_credentials_that_let_nobody_in(shown: bytes, code: str) -> None:
    async def main() -> None:
        async with running(READ, WRITE) as node:
            async with peer(node, STRANGER, shown=shown) as bad:
                assert await ending(bad) == code
            async with peer(node, PDA) as bad:
                say(bad, Disclose(1, shown).to_tree(), Disclose(2, b"").to_tree())
                found = await hear(bad, 3)
                assert found[-1] == ["accepted", 2]
            await until(lambda: not len(node.clients))

    run(main())


def test_a_client_discloses_so_much_and_no_more() -> None:
    limits = replace(LIMITS, client_certificates=2)
    many = Credentials.of(*(grant(STRANGER, NEWS, Right.SUBSCRIBE, attributes=[name]) for name in NAMES)).to_bytes()

    async def main() -> None:
        async with honest(limits=limits) as pair:
            async with peer(pair.node, STRANGER, shown=many) as bad:
                assert codes(await hear(bad, 1)) == {"broker.credentials": 1}
                # Who was not let in is not kept.
                assert await ending(bad) == "broker.credentials"
            async with peer(pair.node, STRANGER) as bad:
                await hear(bad, 1)
                say(bad, Disclose(1, many).to_tree())
                assert codes(await hear(bad, 1)) == {"broker.credentials": 1}
            await pair.go_on(1)

    run(main())


NAMES = ["headline", "location", "agency"]


# Other words, and silence.


@pytest.mark.parametrize(
    ("messages", "code"),
    [
        ([["nonsense", 1]], "protocol.malformed"),
        ([7], "protocol.malformed"),
        ([Hello(PeerRole.CLIENT, b"").to_tree()], "protocol.malformed"),
        ([[1, 1, 0, "greeting", {}]], "protocol.malformed"),
        ([["welcome", 1, b""]], "protocol.malformed"),
        ([["events", "s", []]], "protocol.malformed"),
        ([["subscribe", 1, "s", "no name", "", []]], "name.malformed"),
    ],
)
def test_a_client_that_speaks_otherwise_is_cut(messages: list[Wire], code: str) -> None:
    async def main() -> None:
        async with honest() as pair:
            async with peer(pair.node, STRANGER) as bad:
                await hear(bad, 1)
                say(bad, *messages)
                assert await ending(bad) == code
            async with peer(pair.node, STRANGER, None) as bad:
                say(bad, *messages[:1])
                if messages[0] != Hello(PeerRole.CLIENT, b"").to_tree():
                    assert await ending(bad) == code
            await until(lambda: len(pair.node.clients) == 2)
            await pair.go_on(1)

    run(main())


def test_who_says_nothing_is_not_kept() -> None:
    limits = replace(LIMITS, handshake_time=3_000)

    async def main() -> None:
        async with honest(limits=limits) as pair, peer(pair.node, STRANGER, None) as bad:
            assert await ending(bad) == "handshake.timeout"
            await pair.go_on(1)

    run(main())


def test_sessions_of_one_principal_are_counted_and_those_beyond_are_not_kept() -> None:
    limits = replace(LIMITS, client_sessions=3)

    async def main() -> None:
        async with honest(limits=limits) as pair:
            clients = [client_of(pair.node, STRANGER) for _ in range(3)]
            for client in clients:
                await client.__aenter__()
            for _ in range(10):
                await refused("broker.sessions", client_of(pair.node, STRANGER).__aenter__())
            await until(lambda: len(pair.node.clients) == 5)
            listener = pair.node._listener
            assert listener is not None
            await until(lambda: len(listener.links) == 5)
            for client in clients:
                await client.close()
            await pair.go_on(1)

    run(main())


class Unread(asyncio.Transport):
    """A connection whose other end reads nothing."""

    aborted = False

    def abort(self) -> None:
        self.aborted = True

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Bound nothing: what is written stays with the channel."""


def test_who_does_not_read_its_answers_is_cut() -> None:
    limits = replace(QUICK, link_outbox=64 << 10)
    large = definition("Large", {f"attribute{number}": NUMBER for number in range(500)})

    async def main() -> None:
        node = Broker(settings(READ, WRITE, ENTER, limits=limits))
        for one in (NEWS, large):
            node.core.library.add(signed(one), node.core.now())
        news = Ears()
        reader = attend(node, "reader", news)
        node.clients._take(reader, SubscribeMessage(1, "s", NEWS.name, ""))
        writer = attend(node, "writer", Ears(peer=Peer(REPORTER.principal)))
        node.clients._take(writer, AdvertiseMessage(1, "a", NEWS.name))
        channel = Channel(asyncio.get_running_loop(), limits, opening=0)
        connection = Unread()
        channel.connection_made(connection)
        channel.pause_writing()
        peer = AuthenticatedPeer(STRANGER.public, NETWORK)
        bad = Link(channel, peer, Endpoint(key=STRANGER, network=NETWORK, limits=limits))
        serving = asyncio.create_task(node.clients.serve(bad, Hello(PeerRole.CLIENT, b""), ()))
        asked = frame([encode(["describe", 1, str(large.name)])])
        while not serving.done():
            channel.data_received(asked)
            news.heard.clear()
            row: Row = ["id", None, *["honest"] * len(NEWS.attributes)]
            node.clients._take(writer, PublishMessage(2, "a", NEWS.name, [row]))
            assert any(isinstance(read_word(decode(word)), Events) for word in news.heard)
            await asyncio.sleep(0)
        with pytest.raises(RefusedError) as caught:
            await serving
        assert caught.value.code == "link.slow-reader"
        assert connection.aborted
        assert len(node.clients) == 2
        channel.connection_lost(None)

    run(main())


def test_what_a_client_has_asked_for_is_not_done_once_it_has_left() -> None:
    """Though its broker could not know yet from what it has read: most of it still waits in the connection."""
    # One that stayed would be served for minutes.
    limits = replace(LIMITS, client_requests=1, client_requests_burst=2, link_inbox=1 << 10)

    async def main() -> None:
        async with running(READ, WRITE, limits=limits) as node, client_of(node, REPORTER) as honest:
            async with peer(node, PDA) as link:
                await hear(link, 1)
                for number in range(2, 300):
                    say(link, SubscribeMessage(number, str(number), NEWS.name, f"headline = '{'x' * 900}'").to_tree())
                await until(lambda: node.core.counts["slowed"])
            await until(lambda: len(node.clients) == 1)
            assert node.core.counts["accepted"] < 50
            # What is published counts for others, and is taken to the last event.
            feed = await honest.advertise(NEWS.name)
            for _ in range(100):
                await feed.post({"headline": "x" * 900})
            await honest.close()
            await until(lambda: node.core.counts["published"] == 100)

    run(main())
