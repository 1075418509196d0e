"""Random networks against the oracle, calm and in storms."""

from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.broker.domains import TYPES
from tests.broker.network import Delivery, Network
from tests.budget import examples

from penstock.errors import RefusedError
from penstock.model.types import EventType

NAMES = tuple("abcdefg")
TEXTS = st.sampled_from(
    ["TRUE", "n > 3", "n > 5", "n < 4", "n BETWEEN 2 AND 6", "n = 4", "s = 'x'", "s = 'x' AND n > 2", "n IS NULL"]
)


@dataclass(frozen=True)
class Step:
    """Something that happens; numbers choose among what is possible then."""

    what: str
    broker: int
    other: int
    type_name: str
    text: str

    @property
    def of_type(self) -> EventType:
        return next(each for each in TYPES if each.name.name == self.type_name)


CALM = ("subscribe", "subscribe", "subscribe", "advertise", "advertise", "unsubscribe", "unadvertise", "run")
#: what happens to links and clients, but not to brokers, so that whoever was given an event has it
CHANGING = (*CALM, "retain", "retain", "retain", "connect", "disconnect", "partition", "heal", "publish", "wait")
STORMY = (*CALM, "kill", "start", "connect", "disconnect", "partition", "heal", "leave", "publish", "wait")


def steps(kinds: tuple[str, ...], most: int) -> st.SearchStrategy[list[Step]]:
    numbers = st.integers(0, 20)
    step = st.builds(
        Step, st.sampled_from(kinds), numbers, numbers, st.sampled_from([each.name.name for each in TYPES]), TEXTS
    )
    return st.lists(step, min_size=3, max_size=most)


def do(network: Network, step: Step, number: int) -> None:  # one line for each kind of step
    alive = sorted(network.routers)
    broker, other = alive[step.broker % len(alive)], alive[step.other % len(alive)]
    client = network.clients[broker]
    match step.what:
        case "subscribe":
            network.subscribe(broker, f"sub {number}", step.of_type, step.text)
        case "advertise":
            network.advertise(broker, f"pub {number}", step.of_type, step.text)
        case "unsubscribe" if client.subscribed:
            network.unsubscribe(broker, sorted(client.subscribed)[step.other % len(client.subscribed)])
        case "unadvertise" if client.advertised:
            network.unadvertise(broker, sorted(client.advertised)[step.other % len(client.advertised)])
        case "kill" if len(alive) > 2:
            network.kill(broker)
        case "leave" if len(alive) > 2:
            network.leave(broker)
        case "start":
            name = NAMES[step.broker % len(NAMES)]
            if name not in network.routers:
                network.start(name)
                network.connect((name, other))
        case "connect" if broker != other:
            network.connect((broker, other))
        case "disconnect":
            network.disconnect((broker, other))
        case "partition":
            network.partition(alive[: step.broker % len(alive)])
        case "heal":
            network.connect(*pairwise(alive))
        case "publish" if client.advertised:
            # Not every event is what was advertised.
            with suppress(RefusedError):
                network.publish(broker, min(client.advertised), f"storm {number}", n=step.other % 8)
        case "retain" if client.advertised:
            key = sorted(client.advertised)[step.other % len(client.advertised)]
            with suppress(RefusedError):
                network.states[broker, key] = network.retain(broker, key, f"state {number}", key, n=step.other % 8)
        case "wait":
            network.wait(1)
        case "run":
            network.run()


def publish_everywhere(network: Network) -> None:
    """Publish under each advertisement what it allows, and compare with the oracle."""
    network.delivered.clear()
    expected: Counter[Delivery] = Counter()
    for broker in sorted(network.routers):
        for key in network.clients[broker].advertised:
            for n in (None, 2, 4, 6):
                try:
                    event = network.publish(broker, key, f"{broker} {key} {n}", n=n, s="x" if n != 4 else "y")
                except RefusedError:
                    continue
                takers = network.expected(broker, event)
                # Nobody is quenched who publishes what somebody wants.
                assert network.wanted[broker, key] or not takers
                expected.update(takers)
    network.run()
    assert Counter(network.delivered) == expected


def take_all_back(network: Network) -> None:
    for broker in sorted(network.routers):
        for key in list(network.clients[broker].subscribed):
            network.unsubscribe(broker, key)
        for key in list(network.clients[broker].advertised):
            network.unadvertise(broker, key)
    network.run()
    assert network.empty()


Topology: TypeAlias = tuple[list[int], list[tuple[str, str]]]
TOPOLOGIES = st.tuples(
    st.lists(st.integers(0, 100), min_size=4, max_size=6),
    st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from(NAMES)), max_size=5),
)


def random_network(seed: int, topology: Topology) -> Network:
    """Return a connected network of five to seven brokers: a random tree, and some links more."""
    parents, more = topology
    network = Network(seed)
    network.start(*NAMES[: len(parents) + 1])
    network.connect(*((NAMES[i + 1], NAMES[parent % (i + 1)]) for i, parent in enumerate(parents)))
    network.connect(*((one, other) for one, other in more if one != other))
    return network


def after(seed: int, topology: Topology, script: list[Step]) -> Network:
    """Return a random network in which some things have happened, once it has come to rest."""
    network = random_network(seed, topology)
    for number, step in enumerate(script):
        do(network, step, number)
    network.run()
    return network


@given(st.integers(0, 999), TOPOLOGIES, steps(CALM, 20))
@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_exactly_the_matching_events_come_once_to_every_subscriber(
    seed: int, topology: Topology, script: list[Step]
) -> None:
    network = after(seed, topology, script)

    publish_everywhere(network)
    take_all_back(network)


@given(st.integers(0, 999), TOPOLOGIES, steps(STORMY, 40))
@settings(max_examples=examples(80), deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_after_any_storm_delivery_is_exact_again(seed: int, topology: Topology, script: list[Step]) -> None:
    network = after(seed, topology, script)
    assert max(Counter(network.delivered).values(), default=0) <= 1

    publish_everywhere(network)
    take_all_back(network)
    assert not network.cuts


@given(st.integers(0, 999), TOPOLOGIES, steps(CHANGING, 40))
@settings(max_examples=examples(80), deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_after_any_changes_everybody_has_the_state_and_nobody_has_it_twice(
    seed: int, topology: Topology, script: list[Step]
) -> None:
    network = after(seed, topology, script)
    network.connect(*pairwise(sorted(network.routers)))
    network.run()
    for broker in sorted(network.routers):
        for of_type in TYPES:
            network.subscribe(broker, f"late {of_type.name.name}", of_type)
    network.run()

    assert max(Counter(network.delivered).values(), default=0) <= 1
    for (broker, key), event in network.states.items():
        if key in network.clients[broker].advertised:
            assert network.expected(broker, event) <= set(network.delivered)
