"""`penstock up` with Kafka between brokers."""

import asyncio
from dataclasses import replace

import pytest
from tests.apps.cli.test_up_nats import check_fabric
from tests.apps.conftest import Shell
from tests.apps.ebank_kit import set_up
from tests.apps.node_kit import lay_out, node_file
from tests.kafka_server import RunningKafka
from tests.trust.kit import refused

from penstock.apps.component_host import is_shared, plan_fabric
from penstock.authority.components.plans.domain_plan import load_domain_plan
from penstock.fabric import Qos
from penstock.fabric.kafka import KafkaFabric
from penstock.testing.server_process import free_port

FABRIC = '[fabric]\nkind = "kafka"\nplaintext = "unsafe"\naddress = "kafka://{}"\n'


@pytest.fixture
def network(penstock: Shell) -> Shell:
    """Return a shell in a folder with a network in it."""
    lay_out(penstock)
    return penstock


def test_two_brokers_with_kafka_in_between_over_tls(network: Shell, kafka: RunningKafka) -> None:
    config = kafka.tls_config(network.folder)
    check_fabric(network, FABRIC.format(f"{kafka.tls_address}?config={config.name}"))


def test_a_server_that_is_not_there(network: Shell) -> None:
    node_file(network, "east", FABRIC.format(f"127.0.0.1:{free_port()}"))
    assert network("up", "east.toml").code == "fabric.unreachable"
    node_file(network, "east", FABRIC.format("127.0.0.1:1?config=nowhere"))
    assert network("up", "east.toml").code == "file.missing"


def test_a_domain_plan_names_kafka(penstock: Shell, kafka: RunningKafka) -> None:
    bank = set_up(penstock)
    config = kafka.tls_config(bank)
    loaded = load_domain_plan("bank/bank.toml")

    async def opened(address: str) -> bool:
        plan = replace(loaded.plan, fabric={"kafka": address})
        async with plan_fabric(replace(loaded, plan=plan)) as fabric:
            await fabric.declare("bank", Qos())
            return isinstance(fabric, KafkaFabric) and await fabric.describe("bank") == Qos()

    assert asyncio.run(opened(f"kafka://{kafka.tls_address}?config={config.name}"))
    with refused("plan.value"):
        asyncio.run(opened(f"kafka://me:secret@{kafka.address}"))
    text = (bank / "bank.toml").read_text().replace("[levels]", '[fabric]\nkafka = "kafka://h"\n\n[levels]')
    (bank / "bank.toml").write_text(text)
    assert is_shared(load_domain_plan("bank/bank.toml"))
