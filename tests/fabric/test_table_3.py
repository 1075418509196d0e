"""Table 3 of paper 4 on real DDS and NATS: for each policy an experiment, which fails when the policy is not applied.

The experiments are those of `penstock.testing.fabric_suite`, and here those of reliability on networks that lose
messages.
Priority is in `test_nats.py` (a connection for each) and `test_dds.py` (which policy DDS has).
"""

import asyncio
import gc
import logging
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from penstock.errors import PenstockError
from penstock.fabric import FOREVER, KEEP_ALL, Clock, Durability, Fabric, Order, Ownership, Qos
from penstock.fabric.nats import NatsFabric
from penstock.fabric.nats_api import close_socket
from penstock.testing import fabric_suite
from penstock.testing.fabric_suite import EVENTS, LIVE, PATIENCE, FabricSuite, take
from penstock.testing.nats import NatsServer

#: what a topic has that does not apply a policy, and the experiment that shows the policy
EXPERIMENTS: dict[str, tuple[Callable[[Qos], Any], str]] = {
    "durability": (lambda _: Durability.VOLATILE, "test_durability_late_readers_get_what_is_kept"),
    "history": (lambda qos: KEEP_ALL if qos.reliable else 1_000, "test_history_keeps_the_newest_of_each_key"),
    "ownership": (lambda _: Ownership.SHARED, "test_ownership_one_writer_until_a_stronger_comes"),
    "source_order": (lambda _: Order.BY_ARRIVAL, "test_source_order_an_older_state_does_not_replace_a_newer"),
    "time_filter": (lambda _: 0.0, "test_time_filter_lets_the_newest_of_a_period_through"),
    "deadline": (lambda _: FOREVER, "test_deadline_tells_which_key_had_no_sample"),
    "lifespan": (lambda _: FOREVER, "test_lifespan_what_is_over_is_not_delivered"),
    "latency_budget": (lambda _: FOREVER, "test_latency_budget_late_deliveries_are_counted"),
    "lease": (lambda _: FOREVER, "test_lease_of_an_owner_that_is_gone_frees_the_topic"),
}


def test_every_policy_has_an_experiment() -> None:
    assert EXPERIMENTS.keys() | {"reliability", "priority"} == Qos().as_dict().keys() | {"lease"}


class _NatsCase(FabricSuite):
    __test__ = False
    url = ""

    async def open(self, clock: Clock) -> Fabric:
        self.prefix = f"t3{os.urandom(4).hex()}"
        return await NatsFabric.connect(self.url, prefix=self.prefix, clock=clock)

    async def join(self, fabric: Fabric, clock: Clock | None = None) -> Fabric:
        return await NatsFabric.connect(self.url, prefix=self.prefix, clock=clock or self.clock)


def without(case: FabricSuite, policy: str) -> FabricSuite:
    """Let a case open fabrics that do not apply a policy."""
    opened, (value, _) = case.open, EXPERIMENTS[policy]

    def less(qos: Qos) -> Qos:
        return replace(qos, **{policy: value(qos)})

    async def open_(clock: Clock) -> Fabric:
        fabric: Any = await opened(clock)
        declare, subscribe = fabric.declare, fabric.subscribe
        fabric.declare = lambda topic, qos: declare(topic, less(qos))
        fabric.subscribe = lambda topic, requested=None, **more: subscribe(
            topic, None if requested is None else less(requested), **more
        )
        return fabric  # type: ignore[no-any-return]  # Any, to replace two methods

    case.open = open_  # type: ignore[method-assign]  # as above
    return case


@pytest.mark.parametrize("policy", EXPERIMENTS)
@pytest.mark.parametrize("which", ["nats", "dds"])
def test_an_experiment_fails_without_its_policy(
    which: str, policy: str, server: NatsServer, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    if which == "nats":
        case: FabricSuite = _NatsCase()
        case.url = server.url  # type: ignore[attr-defined]  # of this class
    else:
        case = _dds_case(tmp_path / "topics")
    monkeypatch.setattr(fabric_suite, "PATIENCE", 0.2)
    monkeypatch.setattr(logging.getLogger("asyncio"), "disabled", True)  # it complains about tasks that nobody awaits
    with pytest.raises((AssertionError, PenstockError, TimeoutError)):
        getattr(without(case, policy), EXPERIMENTS[policy][1])()
    gc.collect()


def _dds_case(path: Any) -> FabricSuite:
    pytest.importorskip("cyclonedds", reason="cyclonedds is not installed: there is no wheel for this machine")
    from tests.fabric.test_dds import TestDds  # noqa: PLC0415  # where there is DDS

    case = TestDds()
    case.path = path
    return case


# reliability


def test_reliability_over_nats_when_a_connection_breaks(server: NatsServer) -> None:
    sent = [str(number).encode() for number in range(20)]

    async def whole() -> None:
        prefix = f"t3{os.urandom(4).hex()}"
        async with (
            await NatsFabric.connect(server.url, prefix=prefix) as fabric,
            await NatsFabric.connect(server.url, prefix=prefix) as other,
        ):
            readers = []
            for topic, qos in (("events", EVENTS), ("live", LIVE)):
                await fabric.declare(topic, qos)
                readers.append(await other.subscribe(topic))
            events, live = [await fabric.publisher(topic) for topic in ("events", "live")]
            close_socket(await other.link.client())
            for data in sent:
                await events.publish(data)
            for data in sent:
                await live.publish(data)
            assert await take(readers[1], len(sent)) == sent
            assert len(readers[0].reader) < len(sent)

    asyncio.run(asyncio.wait_for(whole(), PATIENCE))


_LOSSY = """
import asyncio, sys
from penstock.fabric.dds import DdsFabric
from penstock.fabric.dds_link import DdsAddress

config = DdsAddress.config
lossy = "<Internal><Test><XmitLossiness>200</XmitLossiness></Test>"  # of 1,000 packets
DdsAddress.config = lambda self: config(self).replace("<Internal>", lossy)

async def main() -> None:
    async with await DdsFabric.connect(sys.argv[1], prefix=sys.argv[2], timeout=30) as fabric:
        writers = [await fabric.publisher(topic) for topic in ("events", "live")]
        for number in range(300):
            for writer in writers:
                await writer.publish(str(number).encode())

asyncio.run(main())
"""


def test_reliability_over_dds_when_a_fifth_of_the_packets_is_lost() -> None:
    pytest.importorskip("cyclonedds", reason="cyclonedds is not installed: there is no wheel for this machine")
    from tests.fabric.test_dds import address, domain  # noqa: PLC0415  # where there is DDS

    async def whole() -> None:
        async with domain() as (_, fabric, prefix):
            readers = []
            for topic, qos in (("events", EVENTS), ("live", LIVE)):
                await fabric.declare(topic, qos)
                readers.append(await fabric.subscribe(topic))
            child = await asyncio.create_subprocess_exec(sys.executable, "-c", _LOSSY, address(), prefix)
            assert await take(readers[1], 300) == [str(number).encode() for number in range(300)]
            assert await child.wait() == 0
            assert 0 < len(readers[0].reader) < 300

    asyncio.run(asyncio.wait_for(whole(), PATIENCE))
