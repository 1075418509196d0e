"""A subscription is also a request for current state, and state is kept along the dissemination tree."""

import pytest
from tests.broker.domains import BROKERS, DOMAINS, FOOTBALL, NEWS, SPORT, rooted_at, three_domains
from tests.broker.network import Delivery, Network, principal

from penstock.broker.limits import BrokerLimits
from penstock.broker.routing.carrier import RetainedSample, RetainedSamples
from penstock.broker.routing.messages import Enter, Greeting, Hop, Stamp
from penstock.broker.routing.outputs import Deliver, RouterSettings, Send
from penstock.broker.routing.router import Router
from penstock.broker.wire.entries import SubscriptionEntry
from penstock.broker.wire.publications import Publications
from penstock.errors import LimitError
from penstock.model.events import Event, TransitEvent
from penstock.model.names import TypeKey


def line() -> Network:
    """Return a - b - c, with a publisher at c."""
    network = Network(1)
    network.start("a", "b", "c")
    network.connect(("a", "b"), ("b", "c"))
    network.advertise("c", "pub", NEWS)
    network.run()
    return network


def got(network: Network, key: str) -> list[str]:
    return [delivery.event for delivery in network.delivered if delivery.key == key]


class TestLateSubscribers:
    @pytest.mark.parametrize("subscriber", BROKERS)
    @pytest.mark.parametrize("root", ["p1", "c2"])
    def test_a_late_subscriber_gets_the_latest_of_each_slot_in_order_of_time(self, subscriber: str, root: str) -> None:
        network = three_domains()
        of_type = rooted_at(network, root)
        network.advertise("p2", "pub", of_type)
        for number, slot in enumerate(("x", "y", "x", "z", "y")):
            network.retain("p2", "pub", f"{slot}{number}", slot, n=number)
        network.publish("p2", "pub", "passing", n=9)
        network.run()
        network.subscribe(subscriber, "sub", of_type)
        network.run()

        assert got(network, "sub") == ["x2", "z3", "y4"]

    def test_only_what_matches_comes(self) -> None:
        network = line()
        for number in range(4):
            network.retain("c", "pub", str(number), f"slot {number}", n=number)
        network.subscribe("a", "sub", NEWS, "n BETWEEN 1 AND 2")
        network.run()

        assert got(network, "sub") == ["1", "2"]

    def test_a_subscription_to_a_parent_type_gets_the_state_of_sub_types_once(self) -> None:
        network = three_domains()
        network.advertise("c2", "pub", FOOTBALL)
        network.retain("c2", "pub", "1", "slot")
        network.subscribe("c2", "here", NEWS)
        network.subscribe("p1", "news", NEWS)
        network.run()
        network.subscribe("p1", "sport", SPORT)
        network.run()
        network.unadvertise("c2", "pub")
        network.run()
        network.advertise("c2", "pub", FOOTBALL)
        network.run()

        assert sorted(network.delivered, key=lambda d: d.key) == [
            Delivery("c2", "here", "1"),
            Delivery("p1", "news", "1"),
            Delivery("p1", "sport", "1"),
        ]

    def test_who_has_it_is_not_given_it_again(self) -> None:
        network = line()
        network.subscribe("a", "early", NEWS)
        network.run()
        network.retain("c", "pub", "1", "slot", n=1)
        network.run()
        network.subscribe("a", "late", NEWS, "n > 0")
        network.subscribe("b", "near", NEWS)
        network.run()

        assert sorted(network.delivered, key=lambda d: d.key) == [
            Delivery("a", "early", "1"),
            Delivery("a", "late", "1"),
            Delivery("b", "near", "1"),
        ]

    def test_state_is_kept_on_the_way(self) -> None:
        network = line()
        network.subscribe("a", "early", NEWS)
        network.run()
        network.retain("c", "pub", "1", "slot")
        network.run()
        assert {name: router.size().retained for name, router in network.routers.items()} == {"a": 1, "b": 1, "c": 1}
        network.disconnect(("b", "c"))
        network.run()
        network.subscribe("b", "late", NEWS)
        network.run()
        assert got(network, "late") == ["1"]

        network.connect(("b", "c"))
        network.run()
        network.retain("c", "pub", "2", "slot")
        network.run()
        assert [got(network, key) for key in ("early", "late")] == [["1", "2"]] * 2

    def test_the_newest_comes_however_old_what_was_kept_is(self) -> None:
        network = line()
        network.subscribe("a", "first", NEWS)
        network.run()
        network.retain("c", "pub", "1", "slot")
        network.run()
        network.unsubscribe("a", "first")
        network.run()
        assert {name: router.size().retained for name, router in network.routers.items()} == {"a": 0, "b": 0, "c": 1}
        network.retain("c", "pub", "2", "slot")
        network.subscribe("a", "second", NEWS)
        network.run()

        assert got(network, "second") == ["2"]

    def test_what_only_another_part_wants_is_let_go(self) -> None:
        network = line()
        network.subscribe("a", "low", NEWS, "n < 5")
        network.subscribe("a", "high", NEWS, "n > 5")
        network.run()
        network.retain("c", "pub", "low", "low", n=1)
        network.retain("c", "pub", "high", "high", n=9)
        network.run()
        network.unsubscribe("a", "low")
        network.run()

        assert [sample.event.id for sample in network.routers["b"]._carrier.retained.of_type(NEWS.key)] == ["high"]


class TestPartitions:
    def test_state_published_while_apart_comes_when_together_again(self) -> None:
        network = three_domains(6)
        network.advertise("p1", "pub", NEWS)
        network.subscribe("c2", "sub", NEWS)
        network.run()
        network.retain("p1", "pub", "before", "slot")
        network.run()
        cut = network.partition(DOMAINS["police"])
        network.run()
        network.retain("p1", "pub", "apart", "slot")
        network.publish("p1", "pub", "lost")
        network.run()
        network.connect(*cut)
        network.run()
        network.subscribe("m1", "late", NEWS)
        network.run()

        assert got(network, "sub") == ["before", "apart"]
        assert got(network, "late") == ["apart"]

    @pytest.mark.parametrize("victim", BROKERS[1:5])
    def test_a_restarted_broker_hears_it_again_and_others_do_not(self, victim: str) -> None:
        network = three_domains(4)
        network.advertise("p1", "pub", NEWS)
        for broker in BROKERS:
            network.subscribe(broker, "sub", NEWS)
        network.run()
        network.retain("p1", "pub", "1", "slot")
        network.run()
        links = [(victim, other) for other in network.neighbours(victim)]
        network.kill(victim)
        network.run()
        network.start(victim)
        network.connect(*links)
        network.run()

        counts = {broker: network.delivered.count(Delivery(broker, "sub", "1")) for broker in BROKERS}
        assert counts == dict.fromkeys(BROKERS, 1) | {victim: 2}

    @pytest.mark.parametrize("seed", range(3))
    def test_echoes_and_losses_make_no_copies(self, seed: int) -> None:
        network = three_domains(seed, echoes=0.3, losses=0.1)
        network.advertise("p1", "pub", NEWS)
        for broker in BROKERS:
            network.subscribe(broker, "sub", NEWS)
        network.wait(10)
        for number in range(5):
            network.retain("p1", "pub", str(number), "slot")
            network.wait(2)
        network.echoes = network.losses = 0.0
        network.wait(30)

        for broker in BROKERS:
            events = [delivery.event for delivery in network.delivered if delivery.broker == broker]
            assert len(set(events)) == len(events)
            assert events[-1] == "4"


class TestNeighbours:
    def linked(self) -> Router:
        router = Router(principal("a"), 1, RouterSettings(limits=BrokerLimits(route_window=2)))
        for name in ("b", "c"):
            router.link_up(principal(name), 0)
            router.receive(principal(name), Hop(Stamp(1, 1), 0, Greeting()), 0)
        return router

    def block(self, number: int, *, state: bool) -> Publications:
        event = Event.of(NEWS, {}, id=str(number)).to_transit()
        return Publications(principal("d"), 1, (number,), (event,), 0, "slot", state)

    def test_state_is_exempt_from_the_window_and_goes_to_other_sides(self) -> None:
        router, b, c = self.linked(), principal("b"), principal("c")
        router.receive(c, Hop(Stamp(1, 1), 1, Enter(1, SubscriptionEntry(NEWS.key))), 0)
        router.receive(b, Hop(Stamp(1, 1), 1, self.block(9, state=False)), 0)
        router.receive(c, Hop(Stamp(1, 1), 2, Enter(2, SubscriptionEntry(SPORT.key))), 0)
        router._carrier.retained = RetainedSamples(limits=BrokerLimits())
        router.subscribe("sub", NEWS.key)
        outputs = router.receive(b, Hop(Stamp(1, 1), 2, self.block(1, state=True)), 0)
        again = router.receive(c, Hop(Stamp(1, 1), 3, self.block(1, state=True)), 0)

        assert [output.deliveries[0][0] for output in outputs if isinstance(output, Deliver)] == [("sub",)]
        (sent,) = [output for output in outputs if isinstance(output, Send)]
        assert (sent.peer, sent.hop.body) == (c, self.block(1, state=True).onward())
        assert again == []

    def test_what_came_as_state_is_a_copy_when_it_comes_as_an_event(self) -> None:
        router = self.linked()
        router.subscribe("sub", NEWS.key)
        router.receive(principal("b"), Hop(Stamp(1, 1), 1, self.block(1, state=True)), 0)

        assert router.receive(principal("c"), Hop(Stamp(1, 1), 1, self.block(1, state=False)), 0) == []

    def test_state_that_nobody_wants_is_not_kept(self) -> None:
        router = self.linked()
        outputs = router.receive(principal("b"), Hop(Stamp(1, 1), 1, self.block(1, state=True)), 0)

        assert outputs == []
        assert router.size().retained == 0

    def test_the_name_of_a_slot_is_bounded(self) -> None:
        router = self.linked()
        router.advertise("pub", NEWS.key)
        with pytest.raises(LimitError):
            router.publish("pub", [Event.of(NEWS, {}).to_transit()], "x" * 129)


class TestBounds:
    def sample(self, slot: str, number: int = 1, text: str = "", source: str = "") -> RetainedSample:
        event = Event.of(NEWS, {"s": text}).to_transit()
        side = principal(source) if source else None
        return RetainedSample(Publications(principal("d"), 1, (number,), (event,), 0, slot), side)

    def test_the_least_recent_slots_go_first(self) -> None:
        retained = RetainedSamples(BrokerLimits(route_retained=3))
        for number, slot in enumerate(("a", "b", "c", "a", "d")):
            assert retained.keep(self.sample(slot, number))

        assert {sample.block.retain for sample in retained.of_type(NEWS.key)} == {"c", "a", "d"}
        assert len(retained) == 3

    @pytest.mark.parametrize("limits", [BrokerLimits(route_retained=8), BrokerLimits(route_retained_all=8)])
    def test_a_neighbour_pushes_out_nothing_but_its_own(self, limits: BrokerLimits) -> None:
        retained = RetainedSamples(limits)
        for number, slot in enumerate("abc"):
            retained.keep(self.sample(slot, number, source="honest"))
        for number in range(100):
            retained.keep(self.sample(f"junk {number}", number, "x" * number, source="liar"))

        assert len(retained) == 8
        assert {"a", "b", "c"} < {sample.block.retain for sample in retained.of_type(NEWS.key)}
        retained.prune(NEWS.key, lambda _sample: False)
        assert retained._sides == {None: {}}
        assert not retained._side_bytes

    def test_nor_by_large_ones(self) -> None:
        retained = RetainedSamples(BrokerLimits(route_retained_bytes=100_000))
        for number in range(20):
            retained.keep(self.sample(str(number), number, source="honest"))
        for number in range(20):
            retained.keep(self.sample(f"junk {number}", number, "x" * 10_000, source="liar"))

        assert {str(number) for number in range(20)} < {sample.block.retain for sample in retained.of_type(NEWS.key)}

    def test_what_brokers_say_among_themselves_is_not_kept(self) -> None:
        router = Router(principal("a"), 1, RouterSettings(limits=BrokerLimits()))
        key = TypeKey(principal("owner"), "penstock.keys")
        router.advertise("pub", key)
        router.subscribe("sub", key)
        (delivered,) = router.publish("pub", [TransitEvent(key, (), {}, "1")], "slot")

        assert isinstance(delivered, Deliver)
        assert not router.size().retained

    def test_samples_come_in_order_of_time_however_they_came(self) -> None:
        retained = RetainedSamples(limits=BrokerLimits())
        for slot, number in (("a", 9), ("b", 3), ("c", 5)):
            retained.keep(self.sample(slot, number))

        assert [sample.block.retain for sample in retained.of_type(NEWS.key)] == ["b", "c", "a"]
        assert [sample.block.retain for sample in retained.of_line(NEWS.key)] == ["b", "c", "a"]

    def test_octets_are_bounded(self) -> None:
        retained = RetainedSamples(BrokerLimits(route_retained_bytes=100_000))
        for number in range(100):
            retained.keep(self.sample(str(number), number, "x" * 1000))

        assert 10 < len(retained) < 50
        retained.prune(NEWS.key, lambda _sample: False)
        assert retained._bytes == len(retained) == 0
        assert NEWS.key not in retained

    def test_an_earlier_or_equal_sample_is_not_kept(self) -> None:
        retained = RetainedSamples(limits=BrokerLimits())
        assert [retained.keep(self.sample("a", number)) for number in (5, 5, 4, 6)] == [True, False, False, True]
