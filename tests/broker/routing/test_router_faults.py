"""Networks that lose brokers and links, bad transports and hostile neighbours: what is right comes back."""

from collections import Counter

import pytest
from tests.broker.domains import (
    BROKERS,
    DOMAINS,
    LINKS,
    NEWS,
    SPORT,
    TYPES,
    busy,
    check_delivery,
    of_living,
    three_domains,
)
from tests.broker.network import Delivery, Network, filter_of, principal

from penstock.broker.limits import BrokerLimits
from penstock.broker.routing.carrier import Copies
from penstock.broker.routing.messages import Announcement, Enter, Greeting, Hop, Pulse, Stamp, WithdrawEntry
from penstock.broker.routing.outputs import Cut, Deliver, Output, RouterSettings, Send
from penstock.broker.routing.router import Router
from penstock.broker.wire.entries import InterestEntry, SubscriptionEntry
from penstock.broker.wire.publications import Publications
from penstock.errors import LimitError
from penstock.model.events import Event
from penstock.model.names import TypeKey
from penstock.model.principals import Principal


class TestHealing:
    @pytest.mark.parametrize("victim", BROKERS)
    def test_a_killed_broker_is_routed_around_and_comes_back(self, victim: str) -> None:
        network = three_domains(4)
        events = busy(network)
        assert check_delivery(network, events) > 20
        links = [(victim, other) for other in network.neighbours(victim)]

        network.kill(victim)
        network.run()
        assert check_delivery(network, of_living(network, events), "killed ") > 10
        assert principal(victim) not in next(iter(network.routers.values())).view.links

        network.start(victim)
        network.connect(*links)
        network.run()
        assert check_delivery(network, events, "back ") > 20

    @pytest.mark.parametrize("leaver", BROKERS)
    def test_a_broker_that_leaves_takes_everything_with_it(self, leaver: str) -> None:
        network = three_domains(4)
        events = busy(network)
        network._do(leaver, network.routers[leaver].leave())
        network.run()
        assert network.routers[leaver].size().told == 0
        network.kill(leaver)
        network.run()

        assert check_delivery(network, of_living(network, events)) > 10

    def test_each_part_of_a_partition_works_and_so_does_the_whole_after_it(self) -> None:
        network = three_domains(6)
        events = busy(network)
        cut = network.partition(DOMAINS["police"])
        assert len(cut) == 2
        network.run()
        assert check_delivery(network, events, "apart ") > 10
        assert len(network.root(NEWS.key)) == 2

        network.connect(*cut)
        network.run()
        assert check_delivery(network, events, "together ") > 20
        assert len(network.root(NEWS.key)) == 1

    def test_what_is_taken_back_during_a_partition_is_gone_after_it(self) -> None:
        network = three_domains(6)
        busy(network)
        cut = network.partition(DOMAINS["press"])
        network.run()
        for broker in BROKERS:
            for key in ("some", "all"):
                network.unsubscribe(broker, key)
            network.unadvertise(broker, "pub")
        network.connect(*cut)
        network.run()

        assert network.empty()

    def test_a_rendezvous_node_that_moves_loses_no_subscription(self) -> None:
        network = three_domains(7)
        events = busy(network)
        roots = {of_type: network.root(of_type.key) for of_type in TYPES}
        for number in range(6):
            network.start(f"new {number}")
            network.connect((f"new {number}", BROKERS[number]), (f"new {number}", BROKERS[(number + 3) % 6]))
            network.run()
            assert check_delivery(network, events, f"{number} ") > 20
        moved = [of_type for of_type in TYPES if network.root(of_type.key) != roots[of_type]]
        assert moved
        for number in range(6):
            network.leave(f"new {number}")
            network.run()
            assert check_delivery(network, events, f"left {number} ") > 20
        assert {of_type: network.root(of_type.key) for of_type in TYPES} == roots

    def test_a_broker_can_be_restarted_before_anybody_has_noticed(self) -> None:
        network = three_domains(8)
        events = busy(network)
        links = [("c1", other) for other in network.neighbours("c1")]
        network.kill("c1")
        network.start("c1")
        network.connect(*links)
        network.run()

        assert check_delivery(network, events) > 20

    def test_nothing_is_kept_for_a_neighbour_that_is_gone(self) -> None:
        network = Network(0)
        network.start("a", "b")
        network.connect(("a", "b"))
        network.advertise("a", "pub", NEWS)
        network.subscribe("b", "wide", NEWS)
        network.subscribe("b", "narrow", NEWS, "n > 3")
        network.run()
        network.kill("a")
        network.run()
        network.unsubscribe("b", "wide")
        network.unsubscribe("b", "narrow")

        assert network.empty()

    def test_the_dead_are_forgotten(self) -> None:
        network = three_domains(8)
        network.kill("c1")
        network.wait(700)

        known = {len(router._members.announcements()) for router in network.routers.values()}
        assert known == {5}
        assert {len(router._neighbours) for router in network.routers.values()} == {1, 2}
        assert not network.cuts

    def test_a_silent_neighbour_is_cut_off(self) -> None:
        network = Network(0)
        network.start("a", "b")
        network.connect(("a", "b"))
        network.run()
        for second in range(1, 30):
            network._do("a", network.routers["a"].tick(network.now + second))

        assert [cut.reason.code for cut in network.cuts] == ["network.silent"]


class TestBadTransports:
    @pytest.mark.parametrize("seed", range(5))
    def test_echoes_also_between_sessions_change_nothing(self, seed: int) -> None:
        network = three_domains(seed, echoes=0.5)
        events = busy(network)
        for victim in ("c1", "m2", "c1"):
            links = [(victim, other) for other in network.neighbours(victim)]
            network.kill(victim)
            network.wait(1)
            network.start(victim)
            network.connect(*links)
            # Not run to the end: echoes of the life before arrive in this one.
            for number, event in enumerate(events[:9]):
                network.publish(event[0], event[1], f"{victim} {network.now} {number}", **event[2])
        network.wait(6)
        assert max(Counter(network.delivered).values()) == 1

        network.echoes = 0.0
        network.wait(6)
        assert check_delivery(network, events) > 20
        assert not network.cuts

    @pytest.mark.parametrize("seed", range(5))
    def test_lost_words_are_noticed_and_told_again(self, seed: int) -> None:
        network = three_domains(seed, losses=0.1)
        events = busy(network)
        network.wait(20)
        network.losses = 0.0
        network.wait(20)

        assert check_delivery(network, events) > 20
        for broker in BROKERS:
            for key in ("some", "all"):
                network.unsubscribe(broker, key)
            network.unadvertise(broker, "pub")
        network.run()
        assert network.empty()
        assert not network.cuts

    def test_an_event_that_comes_by_two_ways_is_taken_once(self) -> None:
        router, ways = (
            Router(principal("a"), 1, RouterSettings(limits=BrokerLimits())),
            (principal("b"), principal("c")),
        )
        router.subscribe("sub", NEWS.key)
        for peer in ways:
            router.link_up(peer, 0)
            router.receive(peer, Hop(Stamp(1, 1), 0, Greeting()), 0)
        event = Event.of(NEWS, {}).to_transit()
        copy = Publications(principal("d"), 1, (1,), (event,), 3)
        outputs = [router.receive(peer, Hop(Stamp(1, 1), 1, copy), 0) for peer in ways]

        assert outputs == [[Deliver(((("sub",), event),))], []]

    def test_a_neighbour_that_was_restarted_unnoticed_is_told_everything_again(self) -> None:
        network = Network(0)
        network.start("a", "b")
        network.connect(("a", "b"))
        network.advertise("b", "pub", NEWS)
        network.subscribe("a", "sub", NEWS)
        network.run()
        outputs = network.routers["a"].receive(principal("b"), Hop(Stamp(99, 1), 0, Greeting()), network.now)

        kinds = [output.hop.body.KIND for output in outputs if isinstance(output, Send)]
        assert kinds[:3] == ["greeting", "announcement", "announcement"]

    def test_copies_are_told_from_events(self) -> None:
        copies = Copies(BrokerLimits(route_window=10, route_streams=2))
        event = Event.of(NEWS, {}).to_transit()

        def first(number: int, incarnation: int = 1, origin: str = "a") -> bool:
            return bool(copies.first(Publications(principal(origin), incarnation, (number,), (event,))))

        assert [first(1), first(2), first(1), first(5), first(3), first(3)] == [True, True, False, True, True, False]
        assert first(100)
        assert [first(90), first(91)] == [False, True]
        assert [first(1, 2), first(101, 1)] == [True, False]
        assert all(first(number, 2) for number in range(2, 200))
        assert first(1, 1, "b")
        assert first(1, 1, "c")
        assert len(copies._streams) == 2


class TestHostileNeighbours:
    def linked(self, limits: BrokerLimits | None = None) -> tuple[Router, Principal]:
        router, peer = Router(principal("a"), 1, RouterSettings(limits=limits or BrokerLimits())), principal("b")
        router.link_up(peer, 0)
        router.receive(peer, Hop(Stamp(1, 1), 0, Greeting()), 0)
        return router, peer

    @pytest.mark.parametrize(
        ("bodies", "code"),
        [
            ([WithdrawEntry(1)], "route.handle"),
            ([Enter(1, InterestEntry(NEWS.key)), Enter(1, InterestEntry(SPORT.key))], "route.handle"),
            ([Enter(n, SubscriptionEntry(NEWS.key, filter_of(NEWS, f"n = {n}"))) for n in range(4)], "route.limit"),
            ([Announcement(principal(f"ghost {n}"), 1, 1) for n in range(4)], "network.limit"),
        ],
    )
    def test_who_breaks_the_rules_is_cut_off_and_leaves_nothing(self, bodies: list[object], code: str) -> None:
        router, peer = self.linked(BrokerLimits(route_entries=3, network_brokers=3))
        outputs: list[Output] = []
        for number, body in enumerate(bodies, 1):
            outputs += router.receive(peer, Hop(Stamp(1, 1), number, body), 0)  # type: ignore[arg-type]  # bodies

        assert [output.reason.code for output in outputs if isinstance(output, Cut)] == [code]
        assert router.size().entered == router.size().trees == 0
        assert router.receive(peer, Hop(Stamp(1, 1), 9, Pulse()), 0) == []

    def test_strangers_are_not_heard(self) -> None:
        router = Router(principal("a"), 1, RouterSettings(limits=BrokerLimits()))

        assert router.receive(principal("b"), Hop(Stamp(1, 1), 0, Greeting()), 0) == []

    def test_an_event_does_not_go_round_for_ever(self) -> None:
        router, peer = self.linked(BrokerLimits(network_hops=3))
        other = principal("c")
        router.link_up(other, 0)
        router.receive(other, Hop(Stamp(1, 1), 0, Greeting()), 0)
        router.receive(other, Hop(Stamp(1, 1), 1, Enter(1, SubscriptionEntry(NEWS.key))), 0)
        event = Event.of(NEWS, {}).to_transit()
        sent = [
            router.receive(peer, Hop(Stamp(1, 1), hops, Publications(peer, 1, (hops,), (event,), hops)), 0)
            for hops in (1, 2, 3)
        ]

        assert [len(outputs) for outputs in sent] == [1, 1, 0]

    def test_an_event_that_grows_when_it_is_written_anew_goes_no_further(self) -> None:
        router, peer = self.linked(BrokerLimits(route_block_bytes=100))
        other = principal("c")
        router.link_up(other, 0)
        router.receive(other, Hop(Stamp(1, 1), 0, Greeting()), 0)
        router.receive(other, Hop(Stamp(1, 1), 1, Enter(1, SubscriptionEntry(NEWS.key))), 0)
        router.subscribe("sub", NEWS.key)
        large = Event.of(NEWS, {"s": "x" * 200}, id="1").to_transit()
        outputs = router.receive(peer, Hop(Stamp(1, 1), 1, Publications(peer, 1, (1,), (large,))), 0)
        assert [type(output) for output in outputs] == [Deliver]

        router.advertise("pub", NEWS.key)
        with pytest.raises(LimitError) as caught:
            router.publish("pub", [large])
        assert caught.value.code == "route.event-size"

    def test_an_event_does_not_go_back_to_where_it_came_from(self) -> None:
        router, peer = self.linked()
        router.receive(peer, Hop(Stamp(1, 1), 1, Enter(1, SubscriptionEntry(NEWS.key))), 0)
        event = Event.of(NEWS, {}).to_transit()

        assert router.receive(peer, Hop(Stamp(1, 1), 2, Publications(peer, 1, (1,), (event,))), 0) == []

    def test_a_value_of_another_kind_matches_nothing(self) -> None:
        router, peer = self.linked()
        router.subscribe("sub", NEWS.key, filter_of(NEWS, "n + 1 > 3"))
        n = str(NEWS.attribute("n").id)
        odd = Event.of(NEWS, {"n": 2**63 - 1}).to_transit()
        assert n in odd.values

        outputs = router.receive(peer, Hop(Stamp(1, 1), 1, Publications(peer, 1, (1,), (odd,))), 0)
        assert not [output for output in outputs if isinstance(output, Deliver)]


class TestOverlays:
    """`may_route` keeps a type to brokers that are trusted with it."""

    def test_events_keep_to_trusted_brokers(self) -> None:
        trusted = {"p1", "m2", "m1", "c2"}

        def may_route(key: TypeKey, broker: Principal) -> bool:
            return key != NEWS.key or broker in {principal(name) for name in trusted}

        network = Network(0, settings=RouterSettings(may_route=may_route, limits=BrokerLimits()))
        network.start(*BROKERS)
        network.connect(*LINKS)
        network.advertise("p1", "pub", NEWS)
        network.subscribe("c2", "sub", NEWS)
        network.subscribe("c1", "untrusted", NEWS)
        network.run()
        network.publish("p1", "pub", "1")
        network.run()

        assert network.delivered == [Delivery("c2", "sub", "1")]
        assert network.sent["publications"] == 3
        assert network.held()["c1"] == network.held()["p2"] == 0

        trusted.add("c1")
        for name, router in network.routers.items():
            network._do(name, router.trust_changed())
        network.run()
        assert check_delivery(network, [("p1", "pub", {})]) == 2

        trusted.remove("c2")
        for name, router in network.routers.items():
            network._do(name, router.trust_changed())
        network.run()
        network.delivered.clear()
        network.publish("p1", "pub", "2")
        network.run()
        assert network.delivered == []

    def test_trust_that_is_gone_counts_from_the_next_event_on(self) -> None:
        trusted = {principal("a"), principal("b")}
        router = Router(
            principal("a"), 1, RouterSettings(may_route=lambda _key, broker: broker in trusted, limits=BrokerLimits())
        )
        router.link_up(principal("b"), 0)
        router.receive(principal("b"), Hop(Stamp(1, 1), 0, Greeting()), 0)
        router.receive(principal("b"), Hop(Stamp(1, 1), 1, Enter(1, SubscriptionEntry(NEWS.key))), 0)
        router.advertise("pub", NEWS.key)
        event = Event.of(NEWS, {}).to_transit()
        assert [type(output) for output in router.publish("pub", [event])] == [Send]

        trusted.discard(principal("b"))
        assert router.publish("pub", [event]) == []

    def test_what_an_untrusted_neighbour_enters_does_not_count(self) -> None:
        router = Router(
            principal("a"),
            1,
            RouterSettings(may_route=lambda _key, broker: broker != principal("b"), limits=BrokerLimits()),
        )
        router.link_up(principal("b"), 0)
        router.receive(principal("b"), Hop(Stamp(1, 1), 0, Greeting()), 0)
        router.receive(principal("b"), Hop(Stamp(1, 1), 1, Enter(1, SubscriptionEntry(NEWS.key))), 0)
        router.advertise("pub", NEWS.key)

        assert not [o for o in router.publish("pub", [Event.of(NEWS, {}).to_transit()]) if isinstance(o, Send)]


class TestDisclosure:
    def test_everybody_hears_once_what_a_broker_discloses_also_who_comes_late(self) -> None:
        network = three_domains(2)
        network._do("p1", network.routers["p1"].disclose(b"first"))
        network.run()
        network.start("late")
        network.connect(("late", "c1"))
        network.run()
        network._do("p1", network.routers["p1"].disclose(b"second"))
        network.run()

        others = {*BROKERS, "late"} - {"p1"}
        assert Counter(network.disclosed) == Counter(
            (name, "p1", octets) for name in others for octets in (b"first", b"second")
        )

    def test_it_is_forgotten_with_the_broker(self) -> None:
        network = three_domains(2)
        network._do("p1", network.routers["p1"].disclose(b"first"))
        network.run()
        network.kill("p1")
        network.wait(650)

        assert Counter(network.disclosed) == Counter(
            (name, "p1", octets) for name in BROKERS if name != "p1" for octets in (b"first", b"")
        )

    def test_what_some_have_forgotten_comes_again(self) -> None:
        network = three_domains(2)
        network._do("p1", network.routers["p1"].disclose(b"first"))
        network.run()
        forgetful = network.routers["c2"]._members
        del forgetful._known[principal("p1")]
        forgetful._view = None
        network.disclosed.clear()
        network.wait(310)

        assert network.disclosed == [("c2", "p1", b"first")]
        assert principal("p1") in network.routers["c2"].view.links


class TestAdmission:
    def test_who_is_not_admitted_takes_no_part_until_he_is(self) -> None:
        strangers = {principal("c1")}
        network = Network(
            0, settings=RouterSettings(admitted=lambda broker: broker not in strangers, limits=BrokerLimits())
        )
        network.start("a", "b", "c1")
        network.connect(("a", "b"), ("b", "c1"))
        network.advertise("a", "pub", NEWS)
        network.subscribe("c1", "sub", NEWS)
        network.run()
        network._do("c1", network.routers["c1"].disclose(b"credentials"))
        network.run()
        network.publish("a", "pub", "1")
        network.run()
        assert network.delivered == []
        assert network.disclosed == [("b", "c1", b"credentials")]
        assert network.held()["b"] == 0

        strangers.clear()
        for name, router in network.routers.items():
            network._do(name, router.trust_changed())
        network.run()
        assert check_delivery(network, [("a", "pub", {})]) == 1
        assert ("a", "c1", b"credentials") in network.disclosed

        strangers.add(principal("c1"))
        for name, router in network.routers.items():
            network._do(name, router.trust_changed())
        network.run()
        network.delivered.clear()
        network.publish("a", "pub", "2")
        network.run()
        assert network.delivered == []
