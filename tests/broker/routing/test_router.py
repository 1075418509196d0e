"""Networks of routers against an oracle that sees everything."""

from collections.abc import Callable
from typing import TypeAlias

import pytest
from tests.broker.domains import (
    BROKERS,
    FOOTBALL,
    NEWS,
    SPORT,
    TYPES,
    Events,
    check_delivery,
    domain_of,
    rooted_at,
    three_domains,
)
from tests.broker.network import NUMBER, Network, make_type, principal

from penstock.broker.limits import BrokerLimits
from penstock.broker.routing.outputs import RouterSettings
from penstock.broker.routing.router import Router
from penstock.errors import RefusedError
from penstock.model.events import Event

Act: TypeAlias = Callable[[], object]


class TestThreeDomains:
    def test_the_rendezvous_node_may_be_in_a_foreign_domain(self) -> None:
        network = three_domains()
        of_type = rooted_at(network, "m1")
        network.advertise("p1", "pub", of_type)
        network.subscribe("c2", "sub", of_type, "n > 3")
        network.run()

        assert {domain_of(root) for root in network.root(of_type.key)} == {"press"}
        assert check_delivery(network, [("p1", "pub", {"n": n}) for n in range(6)]) == 2

    def test_events_come_in_source_order(self) -> None:
        network = three_domains(3)
        network.advertise("p1", "pub", NEWS)
        network.subscribe("c2", "sub", NEWS)
        network.run()
        for number in range(50):
            network.publish("p1", "pub", str(number))
        network.run()

        assert [delivery.event for delivery in network.delivered] == [str(number) for number in range(50)]

    def test_events_that_nobody_wants_stay_where_they_are(self) -> None:
        network = three_domains()
        network.advertise("p1", "pub", NEWS)
        network.subscribe("c2", "sub", NEWS, "n > 3")
        network.run()
        network.publish("p1", "pub", "1", n=1)
        network.run()

        assert network.sent.get("publications", 0) == 0

    def test_no_broker_holds_all_subscriptions(self) -> None:
        network = three_domains()
        types = [make_type(f"T{i}", {"n": NUMBER}) for i in range(30)]
        for number, of_type in enumerate(types):
            network.advertise(BROKERS[number % 6], f"pub {number}", of_type)
            for other in range(6):
                network.subscribe(BROKERS[other], f"sub {number} {other}", of_type, f"n = {other}")
        network.run()
        total = 30 * 6
        published = [(BROKERS[number % 6], f"pub {number}", {"n": n}) for number in range(30) for n in range(6)]

        assert check_delivery(network, published) == total
        assert max(network.held().values()) < total * 2 / 3
        assert min(network.held().values()) > 0

    def test_whole_networks_settle_to_the_same_view(self) -> None:
        network = three_domains(5)

        assert len({tuple(router.view.links.items()) for router in network.routers.values()}) == 1
        assert {len(router.view.links) for router in network.routers.values()} == {6}


class TestCoverage:
    def line(self) -> Network:
        network = Network(1)
        network.start("a", "b", "c")
        network.connect(("a", "b"), ("b", "c"))
        network.run()
        network.advertise("c", "pub", NEWS)
        network.subscribe("a", "wide", NEWS, "n > 3")
        network.run()
        return network

    def test_a_narrower_subscription_behind_a_wider_one_sends_nothing(self) -> None:
        network = self.line()
        before = dict(network.sent)
        network.subscribe("a", "narrow", NEWS, "n > 5 AND s = 'x'")
        network.subscribe("b", "narrow", NEWS, "n BETWEEN 7 AND 9")
        network.run()

        assert network.sent == before
        assert check_delivery(network, [("c", "pub", {"n": n, "s": "x"}) for n in range(10)]) == 6 + 4 + 3

    def test_a_wider_one_takes_the_place_of_narrower_ones(self) -> None:
        network = self.line()
        network.subscribe("a", "wider", NEWS, "n > 0")
        network.run()

        assert network.held()["b"] == network.held()["c"] == 1
        network.unsubscribe("a", "wider")
        network.run()
        assert network.held()["b"] == network.held()["c"] == 1
        assert check_delivery(network, [("c", "pub", {"n": n}) for n in range(6)]) == 2

    def test_when_the_wider_one_goes_the_narrower_ones_are_sent(self) -> None:
        network = self.line()
        network.subscribe("a", "one", NEWS, "n > 5")
        network.subscribe("a", "two", NEWS, "n = 4")
        network.run()
        network.unsubscribe("a", "wide")
        network.run()

        assert network.held()["b"] == 2
        before = network.sent.get("publications", 0)
        assert check_delivery(network, [("c", "pub", {"n": n}) for n in (3, 4, 5, 6)]) == 2
        assert network.sent["publications"] - before == 4

    def test_a_subscription_to_a_parent_type_covers_one_to_a_sub_type(self) -> None:
        network = Network(1)
        network.start("a", "b", "c")
        network.connect(("a", "b"), ("b", "c"))
        network.advertise("c", "pub", SPORT)
        network.subscribe("a", "news", NEWS, "n > 3")
        network.run()
        network.subscribe("a", "warm", SPORT, "n > 3")
        network.run()
        before = dict(network.sent)
        network.subscribe("a", "sport", SPORT, "n > 5 AND score = 1")
        network.run()

        assert network.sent == before
        assert check_delivery(network, [("c", "pub", {"n": n, "score": 1}) for n in range(8)]) == 4 + 4 + 2


class TestAdvertisements:
    def test_subscriptions_stay_where_nobody_advertises(self) -> None:
        network = three_domains()
        network.subscribe("p1", "sub", NEWS, "n > 3")
        network.run()

        assert set(network.held().values()) == {0}

    def test_subscriptions_go_only_where_advertisements_can_match(self) -> None:
        network = three_domains()
        network.advertise("c2", "high", NEWS, "n > 10")
        network.subscribe("p1", "low", NEWS, "n < 5")
        network.run()
        assert set(network.held().values()) == {0}

        network.advertise("c2", "low", NEWS, "n < 3")
        network.run()
        assert network.held()["c2"] == 1
        published: Events = [("c2", "low", {"n": 1}), ("c2", "high", {"n": 11})]
        assert check_delivery(network, published) == 1

    def test_who_comes_first_does_not_matter(self) -> None:
        for first, second in (("sub", "pub"), ("pub", "sub")):
            network = three_domains()
            for step in (first, second):
                if step == "pub":
                    network.advertise("c2", "pub", FOOTBALL)
                else:
                    network.subscribe("p1", "sub", NEWS, "n > 3")
                network.run()
            assert check_delivery(network, [("c2", "pub", {"n": 4}), ("c2", "pub", {"n": 2})]) == 1

    def test_a_publisher_keeps_to_its_advertisement(self) -> None:
        network = three_domains()
        network.advertise("p1", "pub", NEWS, "n > 3")
        for of_type, values in ((NEWS, {"n": 3}), (NEWS, {"n": None}), (SPORT, {"n": 4})):
            with pytest.raises(RefusedError) as caught:
                network.routers["p1"].publish("pub", [Event.of(of_type, values).to_transit()])
            assert caught.value.code == "route.outside"

    def test_keys_are_taken_or_unknown(self) -> None:
        router = Router(principal("a"), 1, RouterSettings(limits=BrokerLimits()))
        router.advertise("pub", NEWS.key)
        router.subscribe("sub", NEWS.key)
        event = Event.of(NEWS, {}).to_transit()
        refused: list[tuple[str, Act]] = [
            ("route.key", lambda: router.advertise("pub", NEWS.key)),
            ("route.key", lambda: router.subscribe("sub", NEWS.key)),
            ("route.unknown", lambda: router.unadvertise("other")),
            ("route.unknown", lambda: router.unsubscribe("other")),
            ("route.unknown", lambda: router.publish("other", [event])),
        ]
        for code, act in refused:
            with pytest.raises(RefusedError) as caught:
                act()
            assert caught.value.code == code

    @pytest.mark.parametrize("subscriber", ["a", "b"])
    def test_a_subscription_is_not_sent_back_to_where_it_came_from(self, subscriber: str) -> None:
        network = Network(0)
        network.start("a", "b")
        network.connect(("a", "b"))
        network.advertise("a", "pub", NEWS)
        network.advertise("b", "pub", NEWS)
        network.run()
        network.subscribe(subscriber, "sub", NEWS)
        network.run()

        assert network.held() == {"a": 1, "b": 1} | {subscriber: 0}


class TestTypeTree:
    def test_a_subscription_to_a_parent_type_gets_events_of_sub_types(self) -> None:
        network = three_domains()
        network.subscribe("p1", "news", NEWS, "n > 3")
        network.subscribe("c1", "sport", SPORT)
        network.subscribe("m1", "football", FOOTBALL, "goals = 1")
        for broker, key, of_type in (("m2", "n", NEWS), ("c2", "s", SPORT), ("p2", "f", FOOTBALL)):
            network.advertise(broker, key, of_type)
        network.run()

        assert check_delivery(network, [("m2", "n", {"n": 4})]) == 1
        assert check_delivery(network, [("c2", "s", {"n": 4})]) == 2
        assert check_delivery(network, [("p2", "f", {"n": 4, "goals": 1})]) == 3

    def test_an_event_takes_one_way_only(self) -> None:
        network = Network(0)
        network.start("a", "b")
        network.connect(("a", "b"))
        network.advertise("a", "pub", FOOTBALL)
        for number, of_type in enumerate((NEWS, SPORT, FOOTBALL)):
            network.subscribe("b", f"sub {number}", of_type)
        network.run()

        assert check_delivery(network, [("a", "pub", {})]) == 3
        assert network.sent["publications"] == 1

    def test_a_second_subscription_joins_what_the_first_has_joined(self) -> None:
        network = three_domains()
        network.advertise("c2", "pub", FOOTBALL)
        network.subscribe("p1", "first", NEWS, "n = 1")
        network.run()
        network.subscribe("p1", "second", NEWS, "n = 2")
        network.run()
        assert check_delivery(network, [("c2", "pub", {"n": n}) for n in range(4)]) == 2

        network.unsubscribe("p1", "first")
        network.run()
        assert network.held()["c2"] == 1
        assert check_delivery(network, [("c2", "pub", {"n": n}) for n in range(4)]) == 1

    def test_a_subscription_follows_sub_types_as_they_come_and_go(self) -> None:
        network = three_domains()
        network.subscribe("p1", "news", NEWS)
        network.run()
        for broker in ("c2", "m1"):
            network.advertise(broker, "pub", FOOTBALL)
            network.run()
            assert check_delivery(network, [(broker, "pub", {})]) == 1
        for broker in ("c2", "m1"):
            network.unadvertise(broker, "pub")
        network.run()

        assert {router.size().subscriptions for router in network.routers.values()} == {0}


class TestCleaningUp:
    def test_what_is_taken_back_leaves_nothing(self) -> None:
        network = three_domains(2)
        for number, broker in enumerate(BROKERS):
            network.subscribe(broker, "sub", TYPES[number % 4], f"n > {number}")
            network.advertise(broker, "pub", TYPES[(number + 1) % 4], f"n > {number}")
        network.run()
        assert not network.empty()
        for broker in BROKERS:
            network.unsubscribe(broker, "sub")
        network.run()
        assert set(network.held().values()) == {0}
        for broker in BROKERS:
            network.unadvertise(broker, "pub")
        network.run()

        assert network.empty()
