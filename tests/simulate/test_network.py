"""Messages take as long as the latency says; what was lost on a connection is sent again, and a run waits for it."""

from random import Random

import pytest

from penstock.simulate.brokers import BrokerNetwork
from penstock.simulate.network import SHAPES, Conditions, Latency
from penstock.simulate.simulation import Simulation


@pytest.mark.parametrize("shape", SHAPES)
def test_latencies_of_each_shape_have_the_same_scale(shape: str) -> None:
    random = Random(1)  # noqa: S311  # a test must be repeatable
    drawn = sorted(Latency(0.0002, 0.001, shape).draw(random) for _ in range(20_000))
    assert drawn[0] >= 0.0002
    assert drawn[19_800] == pytest.approx(0.001, rel=0.05), "the 99th percentile"
    if shape == "uniform":
        assert drawn[-1] <= 0.001
    else:
        assert drawn[10_000] < 0.0004
        assert 0.0015 < drawn[-1] < 0.01


@pytest.mark.parametrize("shape", SHAPES)
def test_a_latency_without_a_width_is_always_the_same(shape: str) -> None:
    assert Latency(0.5, 0.5, shape).draw(Random(1)) == 0.5  # noqa: S311  # a test must be repeatable


async def idle() -> None:
    """Do nothing."""


def test_what_is_lost_on_a_connection_is_waited_for() -> None:
    with Simulation() as simulation:
        network, arrived = simulation.network, list[float]()
        simulation.start("b", idle())
        pipe = network.pipe("a", "b")
        network.set_all(Conditions(loss=0.9))
        pipe.put(b"lost", lambda: arrived.append(simulation.time))
        network.set_all(Conditions())
        simulation.run(network.resent(1e9))
        assert arrived
        assert 1.0 < arrived[0] <= simulation.time < arrived[0] + 2.0


def test_a_connection_that_was_cut_is_not_waited_for() -> None:
    with Simulation() as simulation:
        network = BrokerNetwork(simulation, ((1, 0),))
        simulation.run(network.start())
        # Brokers cut a link on which they hear nothing for 20 seconds.
        simulation.network.set_all(Conditions(delay=100.0))
        simulation.run_for(10.0)
        assert simulation.network.slow
        simulation.network.set_all(Conditions())
        begun = simulation.time
        simulation.run(simulation.network.resent(240.0))
        assert 5.0 < simulation.time - begun < 30.0
        simulation.run(network.until(lambda: all(len(node.brokers()) == 2 for node in network.nodes.values())))
