"""The permissions of docs/how-to/use-nats.md on a real server: brokers and clients work, and others reach no inbox."""

import asyncio
import os
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import nats
import nkeys  # type: ignore[import-untyped]  # it ships no types
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg
from tests.broker.link_kit import BROKER, CLIENT, endpoint, gather

from penstock.broker.wire.link import Link
from penstock.broker.wire.nats_link import connect_nats, listen_nats
from penstock.codec.wire import encode
from penstock.fabric import Sample
from penstock.fabric.nats import NatsFabric
from penstock.fabric.nats_api import settle
from penstock.fabric.nats_log import NatsLog
from penstock.fabric.nats_login import NatsLogin
from penstock.testing.fabric_suite import EVENTS, LIVE, LOG, take
from penstock.testing.nats import NatsServer

HOW_TO = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "use-nats.md"


class Users:
    """The users of the how-to, each with a key in a file."""

    def __init__(self, folder: Path, config: str) -> None:
        self._folder = folder
        self.config = config
        for name in sorted(set(re.findall(r"NKEY_OF_([A-Z]+)", config))):
            seed = nkeys.encode_seed(os.urandom(32), nkeys.PREFIX_BYTE_USER)
            self.seed(name.lower()).write_bytes(seed)
            public = nkeys.from_seed(bytearray(seed)).public_key.decode()
            self.config = self.config.replace(f"NKEY_OF_{name}", public)
        self.url = ""

    def seed(self, name: str) -> Path:
        return self._folder / f"{name}.nk"

    def login(self, name: str) -> NatsLogin:
        return NatsLogin((self.url,), nkey=str(self.seed(name)), inbox=f"_INBOX.{name}")

    @asynccontextmanager
    async def stranger(self, name: str) -> AsyncIterator[tuple[Client, list[str]]]:
        """Yield an ordinary client of a user, and what the server refuses to it."""
        refused: list[str] = []

        async def hear(error: Exception) -> None:
            refused.append(str(error).lower())

        client = await nats.connect(self.url, nkeys_seed=str(self.seed(name)), error_cb=hear)
        try:
            yield client, refused
        finally:
            await client.close()


@pytest.fixture(scope="module")
def users(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Users]:
    (config,) = re.findall(r"```text\n(accounts .*?)```", HOW_TO.read_text("utf-8"), re.DOTALL)
    found = Users(tmp_path_factory.mktemp("nkeys"), config)
    with NatsServer(config=found.config) as server:
        found.url = server.url
        yield found


def run(test: object) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(60):
            await test()  # type: ignore[operator]  # an async function

    asyncio.run(bounded())


def test_brokers_can_do_all_that_they_need(users: Users) -> None:
    async def whole() -> None:
        async with (
            await NatsFabric.connect(users.login("east"), prefix="net1") as east,
            await NatsFabric.connect(users.login("west"), prefix="net1") as west,
        ):
            for topic, qos in (("events", EVENTS), ("live", LIVE), ("log", LOG)):
                await east.declare(topic, qos)
                reader, writer = await west.subscribe(topic), await east.publisher(topic)
                await writer.publish(b"1")
                assert await take(reader, 1) == [b"1"]
            assert [sample.data for sample in await west.state("log")] == [b"1"]
            await east.declare("parts", replace(LIVE, lease=60.0))
            seen: list[bytes] = []
            reader = await west.subscribe("parts", instances=["a"], on_writer=lambda writer, _: seen.append(writer))
            writer = await east.publisher("parts", instance="a")
            await writer.publish(b"1")
            assert await take(reader, 1) == [b"1"]
            assert seen == [writer.writer]

            async def echo(sample: Sample) -> bytes:
                return sample.data

            async with await east.serve("events", echo):
                assert await west.request("events", b"hello", timeout=10) == b"hello"
            log = await NatsLog.open(users.login("east"), "keys", prefix="net1")
            assert await log.append(0, b"0")
            assert list(await log.read(0)) == [b"0"]
            await log.close()

    run(whole)


def test_clients_have_sessions_and_nothing_else(users: Users) -> None:
    async def whole() -> None:
        async def serve(link: Link) -> None:
            await gather(link, [])

        listener = await listen_nats(endpoint(BROKER), users.login("east"), serve)
        link = await connect_nats(endpoint(CLIENT), users.login("clients"), BROKER.principal)
        await link.send(encode("hello"))
        await link.close()
        await listener.close()
        async with users.stranger("clients") as (client, refused):
            for subject in ("net1.t.log.x", "$JS.API.STREAM.DELETE.net1-log", "_INBOX.east.x"):
                await client.publish(subject, b"")
            for subject in (">", "_INBOX.>", "net1.>"):
                await client.subscribe(subject)
            await settle(client, 10)
            assert len([each for each in refused if "permissions violation" in each]) == 6

    run(whole)


@pytest.mark.parametrize("who", ["west", "others"])
def test_nobody_else_hears_or_answers_what_a_broker_asks(users: Users, who: str) -> None:
    async def whole() -> None:
        async with (
            users.stranger(who) as (stranger, refused),
            await NatsFabric.connect(users.login("east"), prefix=f"net{who}") as east,
        ):
            heard: list[Msg] = []

            async def hear(message: Msg) -> None:
                heard.append(message)

            client = await east.link.client()
            inbox = client.new_inbox().rpartition(".")[0]
            for subject in (">", "_INBOX.>", f"{inbox}.>", "*.*.>"):
                await stranger.subscribe(subject, cb=hear)
            await stranger.publish(f"{inbox}.x", b"forged")
            await settle(stranger, 10)
            await east.declare("log", LOG)
            await (await east.publisher("log")).publish(b"1")
            assert await take(await east.subscribe("log"), 1) == [b"1"]
            await settle(stranger, 10)
            # In another account there is nothing of Penstock, whatever is listened to.
            assert [message.subject for message in heard if message.data != b"forged"] == []
            assert len(refused) == (5 if who == "west" else 0)

    run(whole)
