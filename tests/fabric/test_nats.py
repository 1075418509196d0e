"""The fabric over a real NATS server: the suite of all adapters, restarts, logins, and servers that lie."""

import asyncio
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from penstock.errors import PenstockError
from penstock.fabric import Clock, Fabric, Qos
from penstock.fabric.nats import NatsFabric
from penstock.fabric.nats_login import NatsLogin
from penstock.testing.fabric_suite import LIVE, LOG, FabricSuite, take
from penstock.testing.nats import NatsServer

_NUMBERS = count()


@pytest.fixture(scope="module")
def server() -> Iterator[NatsServer]:
    with NatsServer() as running:
        yield running


def prefix() -> str:
    return f"test{next(_NUMBERS)}"


class TestNats(FabricSuite):
    @pytest.fixture(autouse=True)
    def _server(self, server: NatsServer) -> None:
        self.server = server

    async def open(self, clock: Clock) -> Fabric:
        self.prefix = prefix()
        return await NatsFabric.connect(self.server.url, prefix=self.prefix, clock=clock)

    async def join(self, fabric: Fabric) -> Fabric:
        return await NatsFabric.connect(self.server.url, prefix=self.prefix, clock=self.clock)


@pytest.mark.parametrize("how", ["stop", "kill"])
@pytest.mark.parametrize("qos", [LIVE, LOG], ids=["volatile", "durable"])
def test_reliable_samples_survive_the_server(server: NatsServer, qos: Qos, how: str) -> None:
    sent = [str(number).encode() for number in range(200)]

    async def whole() -> list[bytes]:
        name = prefix()
        async with (
            await NatsFabric.connect(server.url, prefix=name, timeout=0.5) as fabric,
            await NatsFabric.connect(server.url, prefix=name, timeout=0.5) as other,
        ):
            await fabric.declare("topic", qos)
            reader, writer = await other.subscribe("topic"), await fabric.publisher("topic")

            async def write() -> None:
                for data in sent:
                    await writer.publish(data)
                    await asyncio.sleep(0.001)

            writing = asyncio.create_task(write())
            got = await take(reader, 20)
            await asyncio.to_thread(server.kill if how == "kill" else server.stop)
            await asyncio.to_thread(server.start)
            got += await take(reader, 180)
            await writing
            return got

    assert asyncio.run(whole()) == sent


def test_a_login_that_fails_says_why(tmp_path: Path) -> None:
    async def code(login: NatsLogin | str) -> str:
        with pytest.raises(PenstockError) as failed:
            await NatsFabric.connect(login, timeout=0.5, patience=0.2)
        assert "s3cret" not in f"{failed.value} {failed.value.as_dict()}"
        return failed.value.code

    (tmp_path / "token").write_text("s3cret")
    (tmp_path / "wrong").write_text("wrong")
    with NatsServer(config='authorization { token: "s3cret" }') as locked:

        async def enter() -> None:
            login = NatsLogin((locked.url,), token_file=str(tmp_path / "token"))
            assert "s3cret" not in repr(login)
            await (await NatsFabric.connect(login)).close()

        asyncio.run(enter())
        assert asyncio.run(code(locked.url)) == "fabric.unauthorized"
        wrong = NatsLogin((locked.url,), token_file=str(tmp_path / "wrong"))
        assert asyncio.run(code(wrong)) == "fabric.unauthorized"
        missing = NatsLogin((locked.url,), token_file=str(tmp_path / "none"))
        assert asyncio.run(code(missing)) == "fabric.credentials"
        url = locked.url
    assert asyncio.run(code(url)) == "fabric.unreachable"
    assert asyncio.run(code("nats://user:s3cret@host:4222")) == "fabric.bad-address"
    assert asyncio.run(code("http://host")) == "fabric.bad-address"
