"""Worlds of brokers: faults come and go, and nothing is delivered, lost or doubled that must not be."""

import asyncio
import os
import subprocess
import sys
from collections import Counter
from random import Random

import pytest

from penstock.broker.core.core import Core
from penstock.broker.local.decisions import AuthoritySources
from penstock.simulate.brokers import BrokerNetwork, random_graph, tree
from penstock.simulate.checkers import check
from penstock.simulate.faults import Fault, apply, draw
from penstock.simulate.network import Conditions, Latency
from penstock.simulate.scenario import SimulationStep
from penstock.simulate.simulation import Simulation
from penstock.simulate.worlds.brokers import BrokersWorld, FabricBrokersWorld, RevocationWorld
from penstock.simulate.worlds.sealing import SealingWorld

# ruff: noqa: S311  # a simulation must be repeatable


def run(world: BrokersWorld, seed: int, steps: int = 100, faults: tuple[Fault, ...] | None = None) -> Simulation:
    """Run a world with steps and faults of a seed, and return the simulation, closed."""
    workload = world.steps(Random(f"{seed}/steps"), steps, world.seconds)
    if faults is None:
        faults = draw(Random(f"{seed}/faults"), world, world.seconds)
    with Simulation(seed) as simulation:

        async def drive() -> None:
            await world.start(simulation)
            start = simulation.time

            async def at(what: SimulationStep | Fault) -> None:
                await asyncio.sleep(max(0.0, start + what.at - simulation.time))
                await (apply(simulation, world, what) if isinstance(what, Fault) else world.perform(what))

            every: list[SimulationStep | Fault] = [*workload, *(faults or ())]
            await asyncio.gather(*map(at, every))
            await world.settle()

        simulation.run(drive())
        assert simulation.loop.reports == []
    return simulation


def trace(seed: int) -> str:
    """Return the trace of a world of brokers: of each kind in turn."""
    world = (BrokersWorld, RevocationWorld, SealingWorld)[seed % 3]
    return run(world({}), seed, 20).trace


@pytest.mark.long
def test_rights_come_and_go_while_brokers_crash_and_links_fail() -> None:
    simulation = run(RevocationWorld({}), 4)
    assert check(simulation.log) == []
    kinds = Counter(entry.kind for entry in simulation.log)
    assert kinds["revoked"] > 2
    assert kinds["delivered"] > 50
    assert kinds["promised"] > 1
    assert simulation.messages > 1_000


def test_a_broker_that_acknowledges_what_it_does_not_enforce_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    before = Core.change_sources

    def careless(self: Core, sources: AuthoritySources) -> None:
        if not any(sources.revocations.by_owner.values()):
            before(self, sources)

    monkeypatch.setattr(Core, "change_sources", careless)
    found = check(run(RevocationWorld({}), 4, 60, ()).log)
    assert {one.checker for one in found} == {"no_delivery_after_revocation"}


@pytest.mark.long
def test_brokers_on_a_fabric_survive_its_crash() -> None:
    faults = (
        Fault(2, "crash", 4, ("fabric",)),
        Fault(8, "partition", 3, ("b1", "fabric")),
        Fault(5, "crash", 3, ("b3",)),
    )
    simulation = run(FabricBrokersWorld({}), 2, 60, faults)
    assert check(simulation.log) == []
    kinds = Counter(entry.kind for entry in simulation.log)
    assert min(kinds["delivered"], kinds["revoked"], kinds["promised"]) > 1
    assert kinds["fault over"] == 3


@pytest.mark.long
@pytest.mark.parametrize("seed", range(20))
def test_requests_come_and_go_while_brokers_crash_and_links_fail(seed: int) -> None:
    assert check(run(BrokersWorld({}), seed).log) == []
    assert check(run(RevocationWorld({}), seed).log) == []
    assert check(run(FabricBrokersWorld({}), seed).log) == []


@pytest.mark.long
def test_one_seed_gives_one_trace_in_every_process() -> None:
    program = "from tests.simulate.worlds.test_brokers import trace\nprint(*map(trace, range(100)))"
    printed = [
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split()
        for hash_seed in ("1", "77")
    ]
    assert printed[0] == printed[1]
    assert len(set(printed[0])) == 100


def test_networks_are_trees_or_random_graphs() -> None:
    assert len(tree(1000, 4)) == 999
    assert Counter(parent for _, parent in tree(21, 4)) == dict.fromkeys(range(5), 4)
    links = random_graph(100, 4, Random(1))
    assert len(links) == 200
    assert links == random_graph(100, 4, Random(1))
    met = {0}
    for one, other in [*links] * 3:
        if met & {one, other}:
            met |= {one, other}
    assert len(met) == 100


def test_brokers_of_a_tree_know_each_other_after_some_round_trips() -> None:
    with Simulation(1) as simulation:
        simulation.network.set_all(Conditions(Latency(0.001, 0.005)))
        network = BrokerNetwork(simulation, tree(6, 2), durable=False)
        simulation.run(network.start())
        assert simulation.time < 1
        assert {len(node.brokers()) for node in network.nodes.values()} == {6}
