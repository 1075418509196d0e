"""Large networks of real routers, which know each other from the beginning."""

from datetime import UTC, datetime
from random import Random

from penstock.model.events import Event
from penstock.model.types import EventType
from penstock.simulate.brokers import READING, random_graph, tree
from penstock.simulate.routers import RouterNetwork

TYPE = EventType.of(READING)


def event(id_: str) -> Event:
    return Event.of(TYPE, {"event": id_, "value": 1}, id=id_, time=datetime(2026, 1, 1, tzinfo=UTC))


def test_events_take_the_only_way_through_a_tree() -> None:
    network = RouterNetwork(tree(21, 4))
    network.advertise(20, "pub", TYPE)
    network.subscribe(16, "sub", TYPE)
    # 20 and 16 are below 4 and 3, which are below 0.
    assert network.publish(20, "pub", event("e").to_transit()) == 4
    assert network.delivered == [(16, ("sub",), "e")]


def test_every_subscriber_gets_an_event_once_in_a_graph() -> None:
    random = Random(3)  # noqa: S311  # a test that can be repeated
    network = RouterNetwork(random_graph(120, 4, random))
    assert {len(router.view.links) for router in network.routers} == {120}
    network.advertise(0, "pub", TYPE)
    readers = random.sample(range(1, 120), 30)
    for number in readers:
        network.subscribe(number, "sub", TYPE)
    hops = network.publish(0, "pub", event("e").to_transit())
    assert sorted(network.delivered) == [(number, ("sub",), "e") for number in sorted(readers)]
    assert 30 <= hops < 120
