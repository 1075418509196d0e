"""Sessions across NATS: clients and brokers that are reached through servers which nobody has to trust."""

import asyncio
import subprocess
import sys

import pytest
from tests.broker.node_kit import (
    BROKERS,
    LIMITS,
    LONG,
    Broker,
    client_of,
    headlines,
    refused,
    run,
    running,
    until,
)
from tests.broker.sports import NETWORK, NEWS, PDA, REPORTER, grant

from penstock.broker.client.client import Client, connect
from penstock.broker.core.settings import NodeSettings
from penstock.broker.wire.transports import NatsAddress
from penstock.crypto import SigningKey
from penstock.errors import PenstockError
from penstock.fabric.nats_login import NatsLogin
from penstock.model.principals import Principal
from penstock.testing.nats import NatsServer
from penstock.trust.capabilities import Right

READ = grant(PDA, NEWS, Right.SUBSCRIBE)
WRITE = grant(REPORTER, NEWS, Right.PUBLISH)


def across(server: NatsServer, key: SigningKey, broker: Principal = BROKERS[0].principal) -> Client:
    return connect(server.url, key=key, network=NETWORK, broker=broker, limits=LIMITS, timeout=LONG, patience=LONG)


def login(server: NatsServer) -> NatsLogin:
    return NatsLogin((server.url,))


def test_a_client_across_nats_and_one_over_tls_meet_at_a_broker(server: NatsServer) -> None:
    async def main() -> None:
        async with (
            running(READ, WRITE, nats=login(server)) as node,
            across(server, PDA) as reader,
            client_of(node, REPORTER) as writer,
        ):
            assert reader.peer == node.core.principal
            news = await reader.subscribe(NEWS.name, "location = 'London'")
            feed = await writer.advertise(NEWS.name)
            await feed.publish_many(
                [{"headline": str(n), "location": ["London", "Paris"][n % 2]} for n in range(1_000)]
            )
            assert await headlines(news, 500) == [str(n) for n in range(0, 1_000, 2)]

    run(main())


def test_a_client_comes_back_when_its_broker_does(server: NatsServer) -> None:
    async def main() -> None:
        async with running(READ, WRITE, nats=login(server)):
            reader, writer = across(server, PDA), across(server, REPORTER)
            await reader.__aenter__()
            await writer.__aenter__()
            news, feed = await reader.subscribe(NEWS.name), await writer.advertise(NEWS.name)
        await until(lambda: "down" in repr(reader))
        async with running(READ, WRITE, nats=login(server)) as node:
            await until(lambda: node.held == 2)
            await feed.publish(headline="again")
            assert await headlines(news, 1) == ["again"]
            assert reader.reconnections == 1
            await reader.close()
            await writer.close()

    run(main())


def test_nobody_is_taken_for_another_broker(server: NatsServer) -> None:
    async def main() -> None:
        async with running(nats=login(server)):
            somebody = connect(
                server.url, key=PDA, network=NETWORK, broker=BROKERS[1].principal, limits=LIMITS, timeout=LONG
            )
            await refused("link.unreachable", somebody.__aenter__())

    run(main())


def test_brokers_call_each_other_across_nats(server: NatsServer) -> None:
    async def main() -> None:
        peer = NatsAddress(login(server), BROKERS[0].principal)
        async with (
            running(READ, WRITE, nats=login(server)) as one,
            running(READ, WRITE, key=BROKERS[1], peers=(peer,)) as other,
            client_of(one, PDA) as reader,
            client_of(other, REPORTER) as writer,
        ):
            await until(lambda: one.sees(other) and other.sees(one))
            news, feed = await reader.subscribe(NEWS.name), await writer.advertise(NEWS.name)
            await until(lambda: not feed.quiet and other.core.router.size().subscriptions)
            await feed.publish(headline="h")
            assert await headlines(news, 1) == ["h"]

    run(main())


def test_a_node_whose_nats_server_is_not_there_does_not_start() -> None:
    async def main() -> None:
        node = Broker(_settings(NatsLogin(("nats://127.0.0.1:1",))))
        await refused("fabric.unreachable", node.start())
        assert not asyncio.all_tasks() - {asyncio.current_task()}

    run(main())


def test_nats_py_is_imported_by_those_who_use_it() -> None:
    modules = (
        "penstock.broker.node.node, penstock.broker.client.client, penstock.broker.fabric.network, "
        "penstock.apps.node.process"
    )
    script = f"import sys, {modules}; sys.exit('nats' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def _settings(nats: NatsLogin) -> NodeSettings:
    return NodeSettings(key=BROKERS[0], network=NETWORK, nats=nats, limits=LIMITS)


@pytest.mark.parametrize(
    ("url", "code"),
    [
        ("nats://127.0.0.1:4222", "client.no-broker"),
        ("nats://user:secret@127.0.0.1:4222", "client.url"),
        ("nats://127.0.0.1:4222/path", "client.url"),
        ("http://127.0.0.1:4222", "client.url"),
    ],
)
def test_addresses(url: str, code: str) -> None:
    with pytest.raises(PenstockError) as caught:
        connect(url, key=PDA, network=NETWORK)
    assert caught.value.code == code
    assert "secret" not in caught.value.message
