"""`penstock up` with NATS servers: brokers that have them in between, and clients that come across them."""

import json

import pytest
from tests.apps.conftest import Shell
from tests.apps.node_kit import LONGEST, TYPE, Running, ask, eventually, lay_out, node_file, running, start

from penstock.testing.nats import NatsServer

NATS = '[nats]\nservers = ["{url}"]\n'
FABRIC = '[fabric]\nkind = "nats"\nplaintext = "unsafe"\n'


@pytest.fixture
def network(penstock: Shell) -> Shell:
    """Return a shell in a folder with a network in it."""
    lay_out(penstock)
    return penstock


def brokers(shell: Shell, broker: Running) -> int:
    return len(ask(shell, broker, "ops", "net show", "-o", "json").json["brokers"])


def check_fabric(network: Shell, more: str) -> None:
    """Let an event find its way from one broker to another over a fabric, as node files say."""
    with (
        running(network, node_file(network, "east", more)) as east,
        running(network, node_file(network, "west", more)) as west,
    ):
        eventually(lambda: brokers(network, east) == brokers(network, west) == 2)
        options = ("--type", TYPE, "--where", "speed > 50", "--count", "1", "--timeout", "60", "-o", "json")
        with start(network, west, "reader", "sub", *options) as reader:
            # Nobody knows who wants events: they are published until one has arrived.
            def arrived() -> bool:
                for speed in ("30", "77"):
                    assert ask(network, east, "camera", "pub", "--type", TYPE, f"speed={speed}").status == 0
                return reader.poll() is not None

            eventually(arrived, 60.0)
            out, _ = reader.communicate(timeout=LONGEST)
            assert json.loads(out.splitlines()[0])["data"]["speed"] == 77
        assert (east.stop(), west.stop()) == (0, 0)


def test_two_brokers_with_a_nats_server_in_between(network: Shell, server: NatsServer) -> None:
    check_fabric(network, NATS.format(url=server.url) + FABRIC)


def test_a_client_across_a_nats_server(network: Shell, server: NatsServer) -> None:
    with running(network, node_file(network, "east", NATS.format(url=server.url))) as east:
        words = ("--network", "london/London", "--key", "ops.key", "--broker-principal", "east")
        shown = network("net", "show", "--broker", server.url, *words, "-o", "json")
        assert list(shown.json["brokers"]) == [east.principal]
        assert east.stop() == 0


def test_a_server_that_is_not_there(network: Shell) -> None:
    node_file(network, "east", NATS.format(url="nats://127.0.0.1:1"))
    ran = network("up", "east.toml")
    assert ran.code == "fabric.unreachable"
