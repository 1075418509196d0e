"""What could not be passed on while a neighbour was gone is counted where it was to be passed on."""

from collections import Counter

from tests.broker.network import NUMBER, TEXT, Network, make_type, principal

from penstock.broker.routing.outputs import Output, Unsent

READING = make_type("Reading", {"plate": TEXT, "speed": NUMBER})


class Counting(Network):
    """A network that counts what its brokers could not pass on."""

    def __init__(self) -> None:
        super().__init__(1)
        self.unsent: Counter[tuple[str, str]] = Counter()

    def _do(self, name: str, outputs: list[Output]) -> None:
        for output in outputs:
            if isinstance(output, Unsent):
                self.unsent[name, self.names[output.peer]] += output.events
        super()._do(name, outputs)


def line() -> Counting:
    network = Counting()
    network.start("a", "b", "c")
    network.connect(("a", "b"), ("b", "c"))
    network.run()
    network.advertise("a", "p", READING)
    network.subscribe("c", "s", READING, "speed > 10")
    network.run()
    return network


def publish(network: Network, first: int, *speeds: int) -> None:
    for number, speed in enumerate(speeds):
        network.publish("a", "p", f"e{first + number}", plate="x", speed=speed)
    network.run()


def test_nothing_is_counted_while_all_are_there() -> None:
    network = line()
    publish(network, 1, 20, 5, 30)
    assert len(network.delivered) == 2
    assert not network.unsent


def test_what_a_lost_neighbour_had_asked_for_is_counted_until_it_asks_again() -> None:
    network = line()
    network.kill("b")
    network.run()
    publish(network, 1, 20, 5, 30, 40)
    assert network.unsent == {("a", "b"): 3}
    network.start("b")
    network.connect(("a", "b"), ("b", "c"))
    network.run()
    publish(network, 10, 50, 60)
    assert network.unsent == {("a", "b"): 3}
    assert [delivery.event for delivery in network.delivered] == ["e10", "e11"]


def test_one_that_comes_back_and_wants_nothing_is_not_missed_for_long() -> None:
    network = line()
    network.kill("b")
    network.run()
    publish(network, 1, 20)
    del network.clients["c"].subscribed["s"]
    network.kill("c")
    network.start("b")
    network.connect(("a", "b"))
    network.wait(15)
    publish(network, 2, 30)
    assert network.unsent == {("a", "b"): 1}
    assert not len(network.routers["a"]._lost)


def test_one_that_takes_leave_is_not_missed() -> None:
    network = line()
    network.leave("c")
    network.leave("b")
    network.wait(3)
    publish(network, 1, 20)
    assert not network.unsent


def test_one_that_stays_away_is_forgotten() -> None:
    network = line()
    network.kill("b")
    network.wait(700)
    publish(network, 1, 20)
    assert not network.unsent
    assert principal("b") not in network.routers["a"]._neighbours
