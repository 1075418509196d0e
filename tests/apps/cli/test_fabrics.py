"""`penstock fabric keep`, and decisions over the DDS domain that it keeps."""

import asyncio
import json
import os
import signal
import subprocess

import pytest
from tests.apps.cli.test_pep import DOCTOR, lay_out
from tests.apps.conftest import Shell
from tests.apps.node_kit import LONGEST, bounded
from tests.copies import Copy

from penstock.fabric import Durability, EmbeddedFabric, Qos, Reliability
from penstock.fabric.addresses import open_fabric
from penstock.testing.fabric_suite import refused


def address() -> str:
    """Return the DDS domain of this process: tests run in processes that are copies of one."""
    return f"dds://127.0.0.1/{(os.getpid() + 50) % 200}?tag=cli{os.getpid()}"


def test_an_address_says_which_fabric() -> None:
    async def whole() -> None:
        async with await open_fabric("embedded") as fabric:
            assert isinstance(fabric, EmbeddedFabric)
        for address in ("", "mqtt://x", "dds://x/999"):
            with refused("fabric.bad-address"):
                await open_fabric(address)

    asyncio.run(whole())


def test_a_stand_by_takes_the_place_of_a_keeper_that_is_killed(penstock: Shell) -> None:
    pytest.importorskip("cyclonedds", reason="cyclonedds is not installed: there is no wheel for this machine")
    where = address()
    words = ["fabric", "keep", where, "--file", "kept", "-o", "json"]

    async def read() -> bytes:
        async with await open_fabric(where) as late:
            return (await anext(await late.subscribe("kept"))).data

    async def whole() -> None:
        async with asyncio.timeout(LONGEST):
            async with await open_fabric(where) as fabric:
                await fabric.declare("kept", Qos(durability=Durability.PERSISTENT, reliability=Reliability.RELIABLE))
                await (await fabric.publisher("kept")).publish(b"1")
                first.kill()
                assert standby.stdout is not None
                assert await asyncio.to_thread(standby.stdout.readline)
                assert await read() == b"1"

    first = Copy(words, stdout=subprocess.PIPE, text=True)
    with bounded(first):
        assert first.stdout is not None
        first.stdout.readline()
        assert penstock(*words[:-2]).code == "fabric.keeper"
        standby = Copy([*words, "--standby"], stdout=subprocess.PIPE, text=True)
        with bounded(standby):
            asyncio.run(whole())


def test_decisions_over_a_dds_domain_and_its_keeper(penstock: Shell) -> None:
    pytest.importorskip("cyclonedds", reason="cyclonedds is not installed: there is no wheel for this machine")
    bundle = lay_out(penstock)
    keeper = Copy(["fabric", "keep", address(), "--file", "topics", "-o", "json"], stdout=subprocess.PIPE, text=True)
    with bounded(keeper):
        assert keeper.stdout is not None
        assert json.loads(keeper.stdout.readline()) == {"keeper": address(), "file": "topics"}
        found = json.loads(penstock.ok("doctor", "--fabric", address(), "-o", "json").out)
        assert [(one["check"], one["level"]) for one in found["findings"]] == [("fabric", "ok")]
        on = ("--fabric", address(), "--owner", "hospital")
        words = ["pdp", "serve", str(bundle), "--listen", "127.0.0.1:0", *on, "--key", "pdp1.key"]
        point = Copy([*words, "--credential", "pep.cert", "-o", "json"], stdout=subprocess.PIPE, text=True)
        with bounded(point):
            assert point.stdout is not None
            point.stdout.readline()
            penstock.ok("pep", "ask", *on, "--key", "pep.key", "--credential", "pdp1.cert", *DOCTOR, "--timeout", "30s")
            point.send_signal(signal.SIGTERM)
            assert point.wait(LONGEST) == 0
        keeper.send_signal(signal.SIGTERM)
        assert keeper.wait(LONGEST) == 0
    assert (penstock.folder / "topics").exists()
    ran = penstock("doctor", "--fabric", "dds://x/999", "-o", "json")
    assert (ran.status, json.loads(ran.out)["problems"]) == (1, 1)
