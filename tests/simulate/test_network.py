"""What was lost on a connection is sent again, later each time, and a run waits for it."""

from penstock.simulate.brokers import BrokerNetwork
from penstock.simulate.network import Conditions
from penstock.simulate.simulation import Simulation


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
