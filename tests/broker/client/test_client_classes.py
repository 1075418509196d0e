"""Clients with event classes, with petnames, and with what the environment says."""

import asyncio
import os
from dataclasses import dataclass
from pathlib import Path
from typing import assert_type

import pytest
from tests.broker.client.test_client import LESS, READ, WRITE
from tests.broker.node_kit import BROKERS, client_of, refused, run, running, take, until
from tests.broker.sports import AGENCY, NETWORK, NEWS, PDA, REPORTER, TENNIS, TEXT, definition, grant, signed

from penstock.broker.client.client import Feed, Subscription, connect
from penstock.codec.sexp import canonical
from penstock.crypto import SigningKey, private_key_to_sexp
from penstock.errors import FailedError, MalformedError
from penstock.model import Event
from penstock.model.event_classes import event
from penstock.store.files.name_book import NameBook
from penstock.trust.capabilities import Right, event_tag
from penstock.trust.certificates import Authorisation, issue
from penstock.trust.credentials import Credentials

NAMES = NameBook.of({"agency": AGENCY.principal})


@event("agency/SportsNews")
@dataclass
class News:
    headline: str
    location: str | None = None


@event("SportsNews")
@dataclass
class OwnerlessNews:
    headline: str


def test_events_are_published_and_read_as_objects() -> None:
    async def main() -> None:
        async with (
            running(LESS, WRITE) as node,
            client_of(node, PDA, names=NAMES) as reader,
            client_of(node, REPORTER, names=NAMES) as writer,
        ):
            news = await reader.subscribe(News, "headline <> 'b'")
            assert_type(news, Subscription[News])
            feed = await writer.advertise(News)
            assert_type(feed, Feed[News])
            await feed.publish(News("a", "London"))
            await feed.publish_many([News("b"), News("c")])
            await feed.post(News("d"))
            await writer.publish(News("e"))
            await feed.publish(headline="f")
            # The location is hidden from this reader.
            assert await take(news, 5) == [News(one) for one in "acdef"]
            with pytest.raises(MalformedError) as failed:
                await writer.publish("no event class")
            assert failed.value.code == "event.class"

    run(main())


def test_one_iterates_over_what_is_subscribed_to_and_leaves_it_behind() -> None:
    async def main() -> None:
        async with (
            running(READ, WRITE) as node,
            client_of(node, PDA, names=NAMES) as reader,
            client_of(node, REPORTER, names=NAMES) as writer,
        ):
            seen: list[News] = []

            async def read() -> None:
                events = aiter(reader.subscribe(News))
                async for one in events:
                    assert_type(one, News)
                    seen.append(one)
                    if one.headline == "last":
                        break
                await events.aclose()  # type: ignore[attr-defined]  # of a generator

            reading = asyncio.create_task(read())
            await until(lambda: node.held == 1)
            for headline in ("first", "last"):
                await writer.publish(News(headline, "London"))
            await reading
            assert seen == [News("first", "London"), News("last", "London")]
            assert node.held == 1
            async with reader.subscribe(News) as news:
                assert node.held == 2
                assert_type(news, Subscription[News])
            assert node.held == 1

    run(main())


def test_callbacks_get_objects() -> None:
    async def main() -> None:
        async with (
            running(READ, WRITE) as node,
            client_of(node, PDA, names=NAMES) as reader,
            client_of(node, REPORTER, names=NAMES) as writer,
        ):
            seen: list[News] = []
            await reader.subscribe(News, callback=seen.append)
            await writer.publish(News("a"))
            await until(lambda: seen)
            assert seen == [News("a")]

    run(main())


def test_attributes_may_have_the_names_of_metadata() -> None:
    names = ("id", "time", "type", "source", "subject", "event", "data")
    odd = definition("Odd", dict.fromkeys(names, TEXT))
    tag = event_tag(AGENCY.principal, "Odd", None, (Right.PUBLISH, Right.SUBSCRIBE))
    rights = [issue(Authorisation(AGENCY.principal, who.principal, tag), AGENCY) for who in (PDA, REPORTER)]

    @event("agency/Odd")
    @dataclass
    class Odd:
        id: str
        time: str
        type: str
        source: str
        subject: str
        event: str
        data: str

    async def main() -> None:
        async with (
            running(*rights, types=(signed(odd),)) as node,
            client_of(node, PDA, names=NAMES) as reader,
            client_of(node, REPORTER, names=NAMES) as writer,
        ):
            arrived, objects = await reader.subscribe("agency/Odd"), await reader.subscribe(Odd)
            feed = await writer.advertise("agency/Odd")
            await feed.publish(**{name: f"1 {name}" for name in names})
            await feed.publish({name: f"2 {name}" for name in names})
            await writer.publish(Odd(*(f"3 {name}" for name in names)))
            await feed.publish(Event.from_object(feed.type, Odd(*(f"4 {name}" for name in names)), id="metadata"))
            for number, one in enumerate(await take(arrived, 4), start=1):
                assert dict(one.values) == {name: f"{number} {name}" for name in names}
                assert (one.id == "metadata") == (number == 4)
            assert [one.id for one in await take(objects, 4)] == [f"{number} id" for number in range(1, 5)]

    run(main())


def test_a_class_without_an_owner_is_one_of_the_types_that_came_along() -> None:
    async def main() -> None:
        async with running(READ) as node:
            async with client_of(node, PDA, types=[signed(NEWS), signed(TENNIS)]) as client:
                assert (await client.subscribe(OwnerlessNews)).type.name == NEWS.name
            async with client_of(node, PDA) as client:
                error = await refused("event.class", client.subscribe(OwnerlessNews))
                assert "who owns `SportsNews`" in error.message
                await refused("principal.unknown", client.subscribe(News))

    run(main())


def test_a_class_that_differs_from_the_type_is_refused_before_anything_is_asked() -> None:
    @event("agency/SportsNews")
    @dataclass
    class Other:
        headline: int

    async def main() -> None:
        async with running(READ) as node, client_of(node, PDA, names=NAMES) as client:
            await refused("event.class-differs", client.subscribe(Other))
            await refused("event.class-differs", client.advertise(Other))
            await refused("event.class-differs", client.publish(Other(1)))
            assert node.held == 0

    run(main())


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PENSTOCK_NAMES", raising=False)
    for name, key in (("pda", PDA), ("reporter", REPORTER)):
        file = tmp_path / f"{name}.key"
        file.touch(0o600)
        file.write_bytes(canonical(private_key_to_sexp(key)))
    (tmp_path / "a.cert").write_bytes(Credentials.of(READ).to_bytes())
    (tmp_path / "b.cert").write_bytes(Credentials.of(grant(PDA, TENNIS, Right.SUBSCRIBE)).to_bytes())
    (tmp_path / "names.toml").write_text(f'agency = "{AGENCY.principal}"\nbroker = "{BROKERS[0].principal}"\n')
    return tmp_path


def test_what_is_left_out_comes_from_the_environment(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with running() as node:
            with pytest.raises(MalformedError) as failed:
                connect()
            assert failed.value.code == "client.environment"
            assert "PENSTOCK_BROKER" in failed.value.hint
            monkeypatch.setenv("PENSTOCK_BROKER", f"penstock://127.0.0.1:{node.port}")
            monkeypatch.setenv("PENSTOCK_KEY", "pda.key")
            monkeypatch.setenv("PENSTOCK_NETWORK", f"agency/{NETWORK.name}")
            async with connect(broker="broker") as client:
                assert client.principal == PDA.principal
                error = await refused("broker.not-permitted", client.subscribe(News))
                wanted = f"{PDA.principal.short} may not subscribe to {AGENCY.principal.short}/SportsNews@0"
                assert error.message == wanted
                error = await refused("broker.not-permitted", client.advertise(News))
                assert error.message == wanted.replace("subscribe to", "publish")
            monkeypatch.setenv("PENSTOCK_CREDENTIALS", os.pathsep.join(["a.cert", "b.cert"]))
            async with connect(broker="broker") as client:
                await client.subscribe(News)
                await client.subscribe("agency/TennisMatch")
            # What is given goes before.
            async with connect(broker="broker", credentials=Credentials()) as client:
                await refused("broker.not-permitted", client.subscribe(News))
            key = SigningKey(bytes([77]) * 32)
            assert connect(key=key).principal == key.principal
            await refused("broker.not-permitted", connect(key=key).__aenter__())

    run(main())


def test_petnames_are_read_when_one_is_written_and_not_before(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "names.toml").write_text("agency = 7")
    url = "penstock://127.0.0.1:1"
    connect(url, key=PDA, network=str(NETWORK), credentials=Credentials(), broker=str(BROKERS[0].principal))
    with pytest.raises(MalformedError) as failed:
        connect(url, key=PDA, network=f"agency/{NETWORK.name}", credentials=Credentials())
    assert failed.value.code == "petname.malformed"
    (folder / "mine.toml").write_text(f'agency = "{AGENCY.principal}"\n')
    monkeypatch.setenv("PENSTOCK_NAMES", "mine.toml")
    connect(url, key=PDA, network=f"agency/{NETWORK.name}", credentials=Credentials())
    # A key file names its principal, too.
    connect(url, key=PDA, network=NETWORK, credentials=Credentials(), broker="reporter.key")
    monkeypatch.setenv("PENSTOCK_NAMES", "none.toml")
    with pytest.raises(FailedError) as missing:
        connect(url, key=PDA, network=f"agency/{NETWORK.name}", credentials=Credentials())
    assert missing.value.code == "file.missing"


def test_operators_ask_by_petnames() -> None:
    async def main() -> None:
        async with (
            running(grant(AGENCY, None, Right.CONNECT)) as node,
            client_of(node, AGENCY, names=NAMES) as client,
        ):
            assert await client.policy("agency") == await client.policy(AGENCY.principal)
            await refused("principal.unknown", client.policy("nobody"))

    run(main())
