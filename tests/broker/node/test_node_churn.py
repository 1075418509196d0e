"""What is left of subscriptions that have come and gone: nothing, and of what was read a bounded part."""

import gc

from tests.broker.network import NUMBER, TEXT, Network, make_type

from penstock.broker.limits import FILTER_CACHE_LENGTH, BrokerLimits
from penstock.broker.routing.filters import _overlap_short
from penstock.broker.wire.entries import Filter, _read_short
from penstock.selector import Selector

READING = make_type("Reading", {"plate": TEXT, "speed": NUMBER})


def live(kind: type) -> int:
    gc.collect()
    return sum(type(one) is kind for one in gc.get_objects())


def test_nothing_is_kept_of_subscriptions_that_come_and_go() -> None:
    length = FILTER_CACHE_LENGTH
    network = Network(1)
    network.start("a", "b", "c")
    network.connect(("a", "b"), ("b", "c"))
    network.run()
    network.advertise("a", "p", READING, "speed > 0")
    network.subscribe("c", "stays", READING, "speed > 5")
    network.run()
    sizes = {name: router.size() for name, router in network.routers.items()}
    before = live(Selector), live(Filter)
    each = 50
    for number in range(4):
        for place in range(each):
            network.subscribe("c", f"s{place}", READING, f"plate = '{number}-{place}{'x' * length}' AND speed > 0")
        network.run()
        for place in range(each):
            network.unsubscribe("c", f"s{place}")
        network.run()
    assert {name: router.size() for name, router in network.routers.items()} == sizes
    forests = [router._forest for router in network.routers.values()]
    assert not any(forest._groups for forest in forests)
    for forest in forests:
        for tree in forest.trees.values():
            assert len(tree.index._entries) <= 1
            assert all(len(covering._coverage._members) <= 1 for covering in tree._towards.values())
    grown = live(Selector) - before[0], live(Filter) - before[1]
    assert max(grown) < each, grown


def test_of_short_ones_a_few_are_remembered() -> None:
    for remembered in (_read_short, _overlap_short):
        assert remembered.cache_info().maxsize == BrokerLimits().filter_cache
    assert BrokerLimits().filter_cache * FILTER_CACHE_LENGTH <= 1 << 20
