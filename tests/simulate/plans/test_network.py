"""A network of brokers is tried: revocations become complete, and no event is delivered after that."""

import asyncio
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from random import Random

import pytest

from penstock.errors import MalformedError, PenstockError
from penstock.simulate import brokers
from penstock.simulate.checkers import events_once, no_delivery_after_revocation
from penstock.simulate.network import Conditions, Latency
from penstock.simulate.plans.network import (
    BrokerPlan,
    NetworkTrial,
    PlannedLink,
    PolicyBroker,
    _NetworkRun,
    random_graph,
    read_network_plan,
    revocation_outcomes,
    simulate_network,
    tree,
)
from penstock.simulate.pure_work import shared_results
from penstock.simulate.simulation import Entry, Simulation
from penstock.trust.capabilities import Right
from penstock.trust.policy_events import Change, Revoke
from penstock.trust.policy_state import publish

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
    (count,) = report.deliveries
    assert count == order.after_order["r0"] > 0


def whole_brokers(links: brokers.Links, latency: Latency) -> float:
    """Return the seconds in which a revocation is complete in a network of whole brokers."""
    right = brokers.grant("r0", Right.SUBSCRIBE)
    with shared_results(), Simulation() as simulation:
        simulation.network.conditions = Conditions(latency)
        network = brokers.BrokerNetwork(simulation, links)

        async def complete(change: Change) -> float:
            await asyncio.sleep(5.0)
            signed, begun = network.author.change(simulation.clock("b0").date(), change), simulation.time
            policies = network.nodes["b0"].policies
            policies.hand_in(brokers.OWNER.principal, signed.to_bytes())
            while True:
                await asyncio.sleep(0.0005)
                with suppress(PenstockError):
                    if policies.completion(brokers.OWNER.principal, signed.value.number).complete:
                        return simulation.time - begun

        async def drive() -> float:
            await network.start()
            await simulation.start("b0", complete(publish(right)))
            return await simulation.start("b0", complete(Revoke((right.id,))))

        return simulation.run(drive())


@pytest.mark.parametrize("fan_out", [1, 3])
def test_whole_brokers_take_as_long(fan_out: int) -> None:
    latency = Latency(0.003, 0.003)
    whole = whole_brokers(brokers.tree(10, fan_out), latency)
    (order,) = simulate_network(tree(10, fan_out), NetworkTrial(readers=1, orders=1, latency=latency)).orders
    assert order.complete is not None
    # The owner hands its order in over a link here.
    assert order.complete - latency.least == pytest.approx(whole, abs=0.001)


# ----------------------------------------------------------------------------------------------------------------------
# The log, from which all figures come.


def note(at: float, kind: str, reader: str, event: str = "") -> Entry:
    fields = {"reader": reader, "topic": "Reading"}
    return Entry(at, "b", kind, {**fields, "event": event} if event else {**fields})


def test_figures_are_read_from_the_log() -> None:
    log = [
        note(0.95, "delivered", "r0", "r0.1"),
        Entry(1.0, "owner", "ordered", {"readers": ("r0", "r1")}),
        note(1.01, "delivered", "r0", "r0.2"),
        note(1.02, "delivered", "r0", "r0.3"),
        note(1.05, "revoked", "r0"),
        note(1.05, "revoked", "r1"),
        Entry(2.0, "owner", "ordered", {"readers": ("r2",)}),
        note(2.5, "delivered", "r2", "r2.1"),
        # Long after its order is complete, and during another.
        note(2.6, "delivered", "r1", "r1.1"),
    ]
    first, second = revocation_outcomes(log)
    assert first.complete == pytest.approx(0.05)
    assert first.last == pytest.approx({"r0": 0.02, "r1": 1.6})
    assert first.after_order == {"r0": 2, "r1": 1}
    assert first.after_complete == len([*no_delivery_after_revocation(log)]) == 1
    assert (second.complete, second.after_order, second.after_complete) == (None, {"r2": 1}, 0)


def test_the_log_has_what_checkers_read() -> None:
    run = _NetworkRun(tree(7, 2), FEW)
    report, log = run.report(), run.simulation.log
    assert [*no_delivery_after_revocation(log), *events_once(log)] == []
    assert {entry.fields["reader"] for entry in log if entry.kind == "revoked"} == {f"r{n}" for n in range(FEW.readers)}
    after = [entry for entry in log if entry.kind == "delivered" and entry.at > ordered(log, entry)]
    assert len(after) == sum(report.deliveries)
    # Each reader gets events before the order. They are noted only shortly before it, which keeps the log small.
    before = [entry for entry in log if entry.kind == "delivered" and entry not in after]
    assert {entry.fields["reader"] for entry in before} == {f"r{n}" for n in range(FEW.readers)}
    assert all(entry.at > ordered(log, entry) - 0.11 for entry in before)


def ordered(log: list[Entry], delivered: Entry) -> float:
    """Return when the order came that revokes the right of a reader."""
    reader = repr(delivered.fields["reader"])
    (found,) = (entry.at for entry in log if entry.kind == "ordered" and reader in repr(entry.fields["readers"]))
    return found


def test_a_broker_that_goes_on_delivering_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    # It acknowledges a revocation, and does not look at it.
    monkeypatch.setattr(PolicyBroker, "revoked", property(lambda _: frozenset(), lambda *_: None), raising=False)
    run = _NetworkRun(line("a", "b", "c"), FEW)
    report = run.report()
    found = [*no_delivery_after_revocation(run.simulation.log)]
    assert report.after_complete == len(found) > 0


def test_an_order_is_not_acknowledged_before_it_is_on_the_disk() -> None:
    run = _NetworkRun(line("a", "b", "c"), NetworkTrial(readers=3, orders=1))
    full = run.simulation.disk("c").fill()
    run.simulation.loop.call_later(3.0, full)
    (order,) = run.report().orders
    # The broker tries again twice a second.
    assert order.complete is not None
    assert 1.5 < order.complete < 3
    assert max(order.last.values()) < 0.1
    never = _NetworkRun(line("a", "b", "c"), NetworkTrial(readers=3, orders=1))
    never.simulation.disk("c").fill()
    report = never.report()
    assert (report.incomplete, report.completions) == (1, [])


def test_deliveries_are_noted_until_an_order_should_be_complete() -> None:
    # Nothing leads to `c` and `d`.
    plan = BrokerPlan(("a", "b", "c", "d"), (PlannedLink("a", "b"), PlannedLink("c", "d")))
    report = simulate_network(plan, NetworkTrial(readers=6, orders=2, rate=5.0))
    assert (report.reached, report.incomplete, report.after_complete) == (2, 2, 0)
    assert 55 < report.last_deliveries[-1] < 60.2


def test_an_order_has_at_least_one_reader() -> None:
    report = simulate_network(line("a", "b"), NetworkTrial(readers=2, orders=5))
    assert [len(one.last) for one in report.orders] == [1, 1]
    assert report.incomplete == 0


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


def test_brokers_are_cut_off_that_do_not_reach_that_of_the_owner() -> None:
    plan = line("a", "b", "c", "d")
    trial = NetworkTrial(readers=3, orders=1, lost=plan.links[:1], lost_for=0.5)
    # The larger part is not the one that has the owner.
    assert simulate_network(plan, trial).reached == 1
    assert simulate_network(plan, replace(trial, owner="c")).reached == 3
    with pytest.raises(MalformedError) as refused:
        simulate_network(plan, replace(trial, owner="e"))
    assert refused.value.code == "netplan.value"


def test_times_of_orders_that_are_never_complete_are_unknown() -> None:
    plan = BrokerPlan(("a", "b", "c", "d"), (PlannedLink("a", "b"), PlannedLink("c", "d")))
    found = simulate_network(plan, NetworkTrial(readers=3, orders=1)).as_dict()
    assert found["incomplete"] == 1
    assert found["complete"] == {"median": None, "p99": None, "longest": None}


def test_links_have_latencies_of_their_own() -> None:
    (slow,) = simulate_network(line("a", "b", latency=Latency(1, 1)), NetworkTrial(readers=1, orders=1)).completions
    assert 2 < slow < 2.1


def test_random_graphs_are_connected_and_have_the_degree() -> None:
    for seed in range(5):
        plan = random_graph(40, 4, Random(seed))  # noqa: S311  # it must be repeatable
        assert [len(part) for part in plan.parts()] == [40]
        assert len(plan.links) == 80


def test_plans_are_read() -> None:
    for least, most in ((0, 0), (1, 10)):
        (link,) = read_network_plan(f'links = [{{ between = ["a", "b"], latency = [{least}, {most}] }}]').links
        assert link.latency == Latency(float(least), float(most))
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
        ('links = [{ between = ["a", "b"] }, { between = ["b", "a"] }]', "netplan.value"),
        ('links = [{ between = ["a", "b"], latency = [1] }]', "netplan.value"),
        *(
            (f'links = [{{ between = ["a", "b"], latency = {latency} }}]', "netplan.value")
            for latency in (
                *('["x", "y"]', "[-1, 0.5]", "[0.2, 0.1]", "[nan, inf]", "[0, inf]", "[0, nan]", "[nan, 1]"),
                *("[true, 1]", "[0, true]", "[0, 10.1]", f"[1, 1{'0' * 400}]", "[0, 1, 2]", "0.1", "{}", "[[0], [1]]"),
            )
        ),
    ],
)
def test_mistakes_in_plans_are_refused(text: str, code: str) -> None:
    with pytest.raises(MalformedError) as refused:
        read_network_plan(text)
    assert refused.value.code == code
