"""A request that a client gives up does not stay at its broker."""

import asyncio

import pytest

from penstock.errors import FailedError
from penstock.simulate.brokers import READING, BrokerNetwork, grant
from penstock.simulate.simulation import Simulation
from penstock.trust.capabilities import Right
from penstock.trust.policy_state import publish


def test_a_subscription_that_is_answered_too_late_is_ended_at_the_broker() -> None:
    with Simulation(1) as simulation:
        network = BrokerNetwork(simulation, [(1, 0)], clients=["p", "r", "owner"])

        def held() -> int:
            sessions = network.nodes["b0"].core.local._sessions.values()
            return sum(len(session.held) for session in sessions)

        async def write() -> None:
            async with network.client("p", "b1") as writer:
                await writer.advertise(READING.name)
                await asyncio.sleep(100)

        async def read() -> None:
            async with network.client("r", "b0", timeout=0.5) as reader:
                # The other broker does not confirm that it has the subscription.
                simulation.loop.pause(simulation.process("b1"))
                with pytest.raises(FailedError, match="subscribe"):
                    await reader.subscribe(READING.name)
                assert held() == 1
                simulation.loop.resume(simulation.process("b1"))
                await asyncio.sleep(5)
                assert held() == 0

        async def allow() -> None:
            rights = publish(grant("p", Right.PUBLISH), grant("r", Right.SUBSCRIBE))
            async with network.client("owner", "b0") as owner:
                await owner.evolve(network.author.change(simulation.clock("owner").date(), rights).to_bytes())

        async def drive() -> None:
            await network.start()
            await simulation.start("owner", allow())
            writing = simulation.start("p", write())
            await asyncio.sleep(1)
            await simulation.start("r", read())
            assert not writing.done()

        simulation.run(drive())
