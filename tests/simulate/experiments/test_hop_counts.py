"""Events take as many hops as the tree between a publisher and its subscribers has edges."""

from random import Random

from penstock.simulate.experiments.hop_counts import BrokerGraph, count_hops, random_links


def test_an_event_takes_one_hop_for_each_link_on_a_line() -> None:
    graph = BrokerGraph([[1], [0, 2], [1, 3], [2, 4], [3]])
    first, _, third, _, last = graph.brokers
    graph.advertise(first, "T")
    graph.subscribe(third, "T")
    assert graph.publish(first, "T") == 2
    graph.subscribe(last, "T")
    assert (graph.publish(first, "T"), graph.deliveries) == (4, 2)


def test_events_of_sub_types_reach_subscribers_of_the_super_type() -> None:
    graph = BrokerGraph([[1], [0, 2], [1]])
    graph.advertise(graph.brokers[0], "T.Part", "T")
    graph.subscribe(graph.brokers[2], "T")
    assert (graph.publish(graph.brokers[0], "T.Part", "T"), graph.deliveries) == (2, 1)


def test_sub_types_take_about_as_many_times_the_hops_as_there_are_groups() -> None:
    random = Random(1)  # noqa: S311  # the same each time
    graph = BrokerGraph(random_links(40, 6, random))
    found = count_hops(graph, (1, 3, 5), random)
    assert [one.attribute_level for one in found] == sorted(one.attribute_level for one in found)
    assert 0.75 * 5 <= found[-1].event_level / found[-1].attribute_level <= 1.25 * 5
    assert found[-1].own_types <= found[-1].event_level
