"""A network of brokers is tried: revocations become complete, and no event is delivered after that."""

from itertools import pairwise
from random import Random

import pytest

from penstock.errors import MalformedError
from penstock.simulate.network import Latency
from penstock.simulate.plans.network import (
    BrokerPlan,
    NetworkTrial,
    PlannedLink,
    random_graph,
    read_network_plan,
    simulate_network,
    tree,
)

FEW = NetworkTrial(readers=6, orders=2)


def line(*names: str, latency: Latency | None = None) -> BrokerPlan:
    links = (PlannedLink(one, other, latency) for one, other in pairwise(names))
    return BrokerPlan(names, tuple(links))


def test_a_revocation_is_complete_when_all_brokers_have_acknowledged_it() -> None:
    far = NetworkTrial(readers=1, orders=1, latency=Latency(0.1, 0.1), rate=1_000.0)
    report = simulate_network(line("a", "b", "c"), far)
    (order,) = report.orders
    assert order.complete is not None
    # From the owner to its broker, over two links, and back.
    assert 0.5 < order.complete < 0.6
    assert report.after_complete == report.incomplete == 0
    # The reader gets events until the order is at its broker.
    (last,) = order.last.values()
    assert 0.09 < last < 0.35
    assert order.after_order > 0


def test_a_trial_is_repeatable() -> None:
    plan = tree(7, 2)
    assert simulate_network(plan, FEW) == simulate_network(plan, FEW)


@pytest.mark.parametrize("plan", [tree(13, 4), random_graph(13, 4, Random(1))])  # noqa: S311  # it must be repeatable
def test_deliveries_stop_before_completion_in_every_shape(plan: BrokerPlan) -> None:
    report = simulate_network(plan, FEW)
    assert len(report.completions) == FEW.orders
    assert report.after_complete == 0
    for order in report.orders:
        assert order.complete is not None
        assert max(order.last.values()) <= order.complete


def test_a_lost_link_delays_those_behind_it_until_it_is_back() -> None:
    plan = line("a", "b")
    trial = NetworkTrial(readers=3, orders=1, lost=plan.links, lost_for=2.0)
    report = simulate_network(plan, trial)
    (order,) = report.orders
    assert report.reached == 1
    assert order.complete is not None
    assert order.complete > trial.lost_for
    assert report.after_complete == 0
    # With another way it does not matter.
    ring = BrokerPlan(("a", "b", "c"), (*line("a", "b", "c").links, PlannedLink("c", "a")))
    found = simulate_network(ring, NetworkTrial(readers=3, orders=1, lost=ring.links[:1])).orders[0].complete
    assert found is not None
    assert found < 0.1


def test_links_have_latencies_of_their_own() -> None:
    (slow,) = simulate_network(line("a", "b", latency=Latency(1, 1)), NetworkTrial(readers=1, orders=1)).completions
    assert 2 < slow < 2.1


def test_random_graphs_are_connected_and_have_the_degree() -> None:
    for seed in range(5):
        plan = random_graph(40, 4, Random(seed))  # noqa: S311  # it must be repeatable
        assert [len(part) for part in plan.parts()] == [40]
        assert len(plan.links) == 80


def test_plans_are_read() -> None:
    assert read_network_plan('shape = "tree"\nbrokers = 5\ndegree = 2') == tree(5, 2)
    assert len(read_network_plan('shape = "random"\nbrokers = 20').links) == 40
    plan = read_network_plan('links = [{ between = ["a", "b"], latency = [0.01, 0.02] }, { between = ["b", "c"] }]')
    assert plan == BrokerPlan(("a", "b", "c"), (PlannedLink("a", "b", Latency(0.01, 0.02)), PlannedLink("b", "c")))


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("links = [", "netplan.syntax"),
        ("lines = []", "netplan.unknown-key"),
        ('shape = "ring"\nbrokers = 3', "netplan.value"),
        ('shape = "tree"', "netplan.missing"),
        ('shape = "tree"\nbrokers = 0', "netplan.value"),
        ("links = []", "netplan.value"),
        ('links = [{ between = ["a"] }]', "netplan.value"),
        ('links = [{ between = ["a", "a"] }]', "netplan.value"),
        ('links = [{ between = ["a", "b"], latency = [1] }]', "netplan.value"),
        ('links = [{ between = ["a", "b"], latency = ["x", "y"] }]', "netplan.value"),
    ],
)
def test_mistakes_in_plans_are_refused(text: str, code: str) -> None:
    with pytest.raises(MalformedError) as refused:
        read_network_plan(text)
    assert refused.value.code == code
