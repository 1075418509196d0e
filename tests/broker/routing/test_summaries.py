"""What one principal asks for costs others little, however much it is; and nobody loses an event by it."""

import random

import pytest
from tests.broker.network import NUMBER, TEXT, Network, filter_of, make_type
from tests.broker.node_kit import client_of, run, running, until
from tests.broker.sports import NEWS, PDA, REPORTER, grant

from penstock.broker.limits import BrokerLimits
from penstock.broker.node.clients import _Pace
from penstock.broker.routing.filters import EVERYTHING, Covering
from penstock.broker.routing.outputs import RouterSettings
from penstock.broker.sealing.filters import NoFilters
from penstock.trust.capabilities import Right

READING = make_type("Reading", {"plate": TEXT, "speed": NUMBER})
FAST = make_type("FastReading", {"lane": NUMBER}, READING)
FEW = BrokerLimits(client_filters=20, route_filters=50)


class Grouped(Network):
    """A network whose clients belong to somebody: the first word of a key names the owner."""

    def subscribe(self, name: str, key: str, of_type: object = READING, text: str = "TRUE") -> None:
        assert of_type is READING
        filter_ = filter_of(READING, text)
        self.clients[name].subscribed[key] = (READING, filter_)
        self._do(name, self.routers[name].subscribe(key, READING.key, filter_, key.partition(" ")[0]))


def line(seed: int = 0) -> Grouped:
    network = Grouped(seed, settings=RouterSettings(limits=FEW))
    network.start("a", "b", "c")
    network.connect(("a", "b"), ("b", "c"))
    network.run()
    network.advertise("a", "p", READING)
    network.advertise("a", "f", FAST)
    network.run()
    return network


def ask(network: Network, who: str, numbers: range, at: str = "c") -> None:
    for number in numbers:
        network.subscribe(at, f"{who} {number}", READING, f"plate = '{who}{number}'")


def delivered(network: Network, event_id: str, plate: str, by: str = "p") -> set[str]:
    more = {"lane": 1} if by == "f" else {}
    network.publish("a", by, event_id, plate=plate, speed=5, **more)
    network.run()
    return {one.key for one in network.delivered if one.event == event_id}


def test_many_narrow_subscriptions_of_one_are_few_entries_for_others() -> None:
    network = line()
    ask(network, "bad", range(500))
    network.run()
    network.subscribe("c", "good 1", READING, "speed > 3")
    network.run()
    # One that covers all of them, in the tree of the type and in that of its sub-type.
    assert max(network.held().values()) <= 4
    for by in ("p", "f"):
        assert delivered(network, f"{by}1", "bad7", by) == {"bad 7", "good 1"}
        assert delivered(network, f"{by}2", "other", by) == {"good 1"}


def test_the_others_at_the_same_broker_are_told_as_they_are() -> None:
    network = line()
    ask(network, "good", range(5))
    network.run()
    before = network.held()["a"]
    ask(network, "bad", range(500))
    for number in range(500):
        network.unsubscribe("c", f"bad {number}")
    network.run()
    assert network.held()["a"] == before
    assert delivered(network, "e", "good3") == {"good 3"}


def test_changes_of_who_has_asked_for_much_reach_nobody() -> None:
    network = line()
    ask(network, "bad", range(40))
    network.run()
    network.sent.clear()
    ask(network, "bad", range(40, 300))
    for number in range(40, 300):
        network.unsubscribe("c", f"bad {number}")
    network.run()
    assert not network.sent


def test_the_same_asked_for_often_is_asked_for_once() -> None:
    network = line()
    for number in range(100):
        network.subscribe("c", f"same {number}", READING, "plate = 'x'")
    network.run()
    assert network.routers["c"]._forest._groups[READING.key, "same"].summed is False
    assert delivered(network, "e", "x") == {f"same {number}" for number in range(100)}


@pytest.mark.parametrize("seed", range(10))
def test_nobody_loses_anything_while_others_come_and_go(seed: int) -> None:
    network, chance = line(seed), random.Random(seed)  # noqa: S311  # a test that can be repeated
    held: set[tuple[str, int]] = set()
    for step in range(300):
        who, number = chance.choice(("one", "two")), chance.randrange(60)
        growing = step % 150 < 100
        if (who, number) not in held and (growing or chance.random() < 0.2):
            ask(network, who, range(number, number + 1))
            held.add((who, number))
        elif (who, number) in held and (not growing or chance.random() < 0.2):
            network.unsubscribe("c", f"{who} {number}")
            held.discard((who, number))
        if step % 10 == 0:
            network.run()
            plate = f"{who}{number}"
            event = network.publish("a", "p", f"e{step}", plate=plate, speed=1)
            network.run()
            expected = network.expected("a", event)
            assert {one for one in network.delivered if one.event == event.id} == expected
    for who, number in held:
        network.unsubscribe("c", f"{who} {number}")
    network.unadvertise("a", "p")
    network.unadvertise("a", "f")
    network.wait(2)
    assert network.empty()
    assert not network.routers["c"]._forest._groups


def test_what_neighbours_are_told_of_one_type_is_bounded_whoever_asks() -> None:
    network = line()
    for who in range(30):
        ask(network, f"w{who}", range(10), at="bc"[who % 2])
    network.run()
    assert max(network.held().values()) <= 2 * FEW.route_filters + 2
    assert network.held()["a"] <= 2
    assert delivered(network, "e", "w33") == {"w3 3"}
    for who in range(30):
        for number in range(1, 10):
            network.unsubscribe("bc"[who % 2], f"w{who} {number}")
    network.run()
    # Now there is room again for what is really wanted.
    assert network.held()["a"] == 2 * 30
    assert delivered(network, "f", "w30") == {"w3 0"}
    assert not network.cuts


def test_who_asks_for_everything_is_served_before_and_after_a_summary() -> None:
    covering: Covering[int] = Covering(READING.key, NoFilters(), BrokerLimits(route_filters=10))
    told: set[object] = set()

    def take(moves: list[tuple[object, bool]]) -> None:
        for filter_, holds in dict(moves).items():
            (told.add if holds else told.discard)(filter_)

    for number in range(30):
        take([*covering.put(number, filter_of(READING, f"plate = '{number}'"))])
    assert told == {EVERYTHING}
    take([*covering.put(99, filter_of(READING, "TRUE"))])
    assert told == set(covering) == {EVERYTHING}
    take([*covering.remove(99)])
    assert told == set(covering) == {EVERYTHING}
    for number in range(25):
        take([*covering.remove(number)])
    assert told == set(covering)
    assert len(told) == 5


# How fast.


def test_changes_of_one_principal_wait_when_there_are_too_many() -> None:
    pace = _Pace(BrokerLimits(client_changes=10, client_changes_burst=100))
    assert not any(pace.charge(0, 0.0, change=True) for _ in range(100))
    assert pace.charge(0, 0.0, change=True) == pytest.approx(0.1)
    # Other requests do not count as changes, though they wait behind one.
    before = pace.charge(0, 0.0, change=False)
    assert pace.charge(0, 0.0, change=False) == before
    assert pace.charge(0, 1_000.0, change=True) == 0


def test_a_node_counts_what_other_brokers_have_to_do_with(monkeypatch: pytest.MonkeyPatch) -> None:
    rights = grant(PDA, NEWS, Right.SUBSCRIBE), grant(REPORTER, NEWS, Right.PUBLISH)
    counted: list[bool] = []

    class Pace:
        def __init__(self, _limits: BrokerLimits) -> None:
            pass

        def charge(self, _work: float, _now: float, *, change: bool) -> float:
            counted.append(change)
            return 0.02

    monkeypatch.setattr("penstock.broker.node.clients._Pace", Pace)

    async def main() -> None:
        async with running(*rights) as node, client_of(node, PDA) as reader, client_of(node, REPORTER) as writer:
            news, feed = await reader.subscribe(NEWS.name), await writer.advertise(NEWS.name)
            await feed.publish(headline="h")
            await news.next(30)
            await reader.drop(news)
            await writer.drop(feed)
            await until(lambda: counted.count(True) == 4)
            # To describe a type is the business of its broker alone.
            assert counted.count(False) == node.core.counts["slowed"] - 4 == 2

    run(main())
