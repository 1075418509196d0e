"""Networks of routers against an oracle that sees everything at once."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.broker.network import NUMBER, TEXT, Delivery, Network, filter_of, make_type, principal
from tests.budget import examples

from penstock.broker.copies import Copies
from penstock.broker.messages import (
    Announcement,
    Enter,
    Greeting,
    Hop,
    Interest,
    Publication,
    Pulse,
    Stamp,
    Subscription,
    Withdraw,
)
from penstock.broker.routing import Cut, Deliver, Output, Router, Send, Settings
from penstock.errors import RefusedError
from penstock.model.events import Event
from penstock.model.limits import Limits
from penstock.model.names import TypeKey
from penstock.model.principals import Principal
from penstock.model.types import EventType
from penstock.model.values import Scalar

NEWS = make_type("News", {"n": NUMBER, "s": TEXT})
SPORT = make_type("News.Sport", {"score": NUMBER}, NEWS)
FOOTBALL = make_type("News.Sport.Football", {"goals": NUMBER}, SPORT)
STOCK = make_type("Stock", {"n": NUMBER, "s": TEXT})
TYPES = (NEWS, SPORT, FOOTBALL, STOCK)

#: three domains and their brokers
DOMAINS = {"police": ("p1", "p2"), "council": ("c1", "c2"), "press": ("m1", "m2")}
BROKERS = tuple(name for names in DOMAINS.values() for name in names)
#: each domain is linked within, the police with the council, the council with the press, and the press with the police
LINKS = (("p1", "p2"), ("c1", "c2"), ("m1", "m2"), ("p2", "c1"), ("c2", "m1"), ("m2", "p1"))


def domain_of(broker: str) -> str:
    return next(domain for domain, names in DOMAINS.items() if broker in names)


def three_domains(seed: int = 0, **options: float) -> Network:
    network = Network(seed, **options)  # type: ignore[arg-type]  # echoes and losses
    network.start(*BROKERS)
    network.connect(*LINKS)
    network.run()
    return network


def rooted_at(network: Network, broker: str) -> EventType:
    """Return a type whose rendezvous node is the given broker."""
    candidates = (make_type(f"Type{i}", {"n": NUMBER, "s": TEXT}) for i in range(1000))
    return next(candidate for candidate in candidates if network.root(candidate.key) == {broker})


Events: TypeAlias = Sequence[tuple[str, str, Mapping[str, Scalar]]]
"""Who publishes, under which advertisement, and what."""


def check_delivery(network: Network, events: Events, tag: str = "") -> int:
    """Publish events; what is delivered must be what the oracle says, once each. Return how much that is."""
    network.delivered.clear()
    expected: Counter[Delivery] = Counter()
    for number, (broker, key, values) in enumerate(events):
        event = network.publish(broker, key, f"{tag}{number}", **values)
        expected.update(network.expected(broker, event))
    network.run()
    assert Counter(network.delivered) == expected
    return expected.total()


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

        assert network.sent.get("publication", 0) == 0

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
        before = network.sent.get("publication", 0)
        assert check_delivery(network, [("c", "pub", {"n": n}) for n in (3, 4, 5, 6)]) == 2
        assert network.sent["publication"] - before == 4

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
                network.routers["p1"].publish("pub", Event.of(of_type, values).to_transit())
            assert caught.value.code == "route.outside"

    def test_keys_are_taken_or_unknown(self) -> None:
        router = Router(principal("a"), 1)
        router.advertise("pub", NEWS.key)
        router.subscribe("sub", NEWS.key)
        event = Event.of(NEWS, {}).to_transit()
        refused: list[tuple[str, Callable[[], object]]] = [
            ("route.key", lambda: router.advertise("pub", NEWS.key)),
            ("route.key", lambda: router.subscribe("sub", NEWS.key)),
            ("route.unknown", lambda: router.unadvertise("other")),
            ("route.unknown", lambda: router.unsubscribe("other")),
            ("route.unknown", lambda: router.publish("other", event)),
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
        assert network.sent["publication"] == 1

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


def busy(network: Network) -> Events:
    """Let each broker subscribe and advertise, and return events to publish."""
    for number, broker in enumerate(BROKERS):
        network.advertise(broker, "pub", TYPES[number % 4])
        network.subscribe(broker, "some", TYPES[(number + 1) % 4], f"n > {number}")
        network.subscribe(broker, "all", TYPES[(number + 2) % 4])
    network.run()
    return [(broker, "pub", {"n": n}) for broker in BROKERS for n in range(0, 8, 3)]


def of_living(network: Network, events: Events) -> Events:
    return [event for event in events if event[0] in network.routers]


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
        router, ways = Router(principal("a"), 1), (principal("b"), principal("c"))
        router.subscribe("sub", NEWS.key)
        for peer in ways:
            router.link_up(peer, 0)
            router.receive(peer, Hop(Stamp(1, 1), 0, Greeting()), 0)
        copy = Publication(principal("d"), 1, 1, 3, Event.of(NEWS, {}).to_transit())
        outputs = [router.receive(peer, Hop(Stamp(1, 1), 1, copy), 0) for peer in ways]

        assert outputs == [[Deliver(("sub",), copy)], []]

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
        copies = Copies(Limits(route_window=10, route_streams=2))
        event = Event.of(NEWS, {}).to_transit()

        def first(number: int, incarnation: int = 1, origin: str = "a") -> bool:
            return copies.first(Publication(principal(origin), incarnation, number, 0, event))

        assert [first(1), first(2), first(1), first(5), first(3), first(3)] == [True, True, False, True, True, False]
        assert first(100)
        assert [first(90), first(91)] == [False, True]
        assert [first(1, 2), first(101, 1)] == [True, False]
        assert all(first(number, 2) for number in range(2, 200))
        assert first(1, 1, "b")
        assert first(1, 1, "c")
        assert len(copies._streams) == 2


class TestHostileNeighbours:
    def linked(self, limits: Limits | None = None) -> tuple[Router, Principal]:
        router, peer = Router(principal("a"), 1, Settings(limits=limits or Limits())), principal("b")
        router.link_up(peer, 0)
        router.receive(peer, Hop(Stamp(1, 1), 0, Greeting()), 0)
        return router, peer

    @pytest.mark.parametrize(
        ("bodies", "code"),
        [
            ([Withdraw(1)], "route.handle"),
            ([Enter(1, Interest(NEWS.key)), Enter(1, Interest(SPORT.key))], "route.handle"),
            ([Enter(n, Subscription(NEWS.key, filter_of(NEWS, f"n = {n}"))) for n in range(4)], "route.limit"),
            ([Announcement(principal(f"ghost {n}"), 1, 1) for n in range(4)], "network.limit"),
        ],
    )
    def test_who_breaks_the_rules_is_cut_off_and_leaves_nothing(self, bodies: list[object], code: str) -> None:
        router, peer = self.linked(Limits(route_entries=3, network_brokers=3))
        outputs: list[Output] = []
        for number, body in enumerate(bodies, 1):
            outputs += router.receive(peer, Hop(Stamp(1, 1), number, body), 0)  # type: ignore[arg-type]  # bodies

        assert [output.reason.code for output in outputs if isinstance(output, Cut)] == [code]
        assert router.size().entered == router.size().trees == 0
        assert router.receive(peer, Hop(Stamp(1, 1), 9, Pulse()), 0) == []

    def test_strangers_are_not_heard(self) -> None:
        router = Router(principal("a"), 1)

        assert router.receive(principal("b"), Hop(Stamp(1, 1), 0, Greeting()), 0) == []

    def test_an_event_does_not_go_round_for_ever(self) -> None:
        router, peer = self.linked(Limits(network_hops=3))
        other = principal("c")
        router.link_up(other, 0)
        router.receive(other, Hop(Stamp(1, 1), 0, Greeting()), 0)
        router.receive(other, Hop(Stamp(1, 1), 1, Enter(1, Subscription(NEWS.key))), 0)
        event = Event.of(NEWS, {}).to_transit()
        sent = [
            router.receive(peer, Hop(Stamp(1, 1), hops, Publication(peer, 1, hops, hops, event)), 0)
            for hops in (1, 2, 3)
        ]

        assert [len(outputs) for outputs in sent] == [1, 1, 0]

    def test_an_event_does_not_go_back_to_where_it_came_from(self) -> None:
        router, peer = self.linked()
        router.receive(peer, Hop(Stamp(1, 1), 1, Enter(1, Subscription(NEWS.key))), 0)
        event = Event.of(NEWS, {}).to_transit()

        assert router.receive(peer, Hop(Stamp(1, 1), 2, Publication(peer, 1, 1, 0, event)), 0) == []

    def test_a_value_of_another_kind_matches_nothing(self) -> None:
        router, peer = self.linked()
        router.subscribe("sub", NEWS.key, filter_of(NEWS, "n + 1 > 3"))
        n = str(NEWS.attribute("n").id)
        odd = Event.of(NEWS, {"n": 2**63 - 1}).to_transit()
        assert n in odd.values

        outputs = router.receive(peer, Hop(Stamp(1, 1), 1, Publication(peer, 1, 1, 0, odd)), 0)
        assert not [output for output in outputs if isinstance(output, Deliver)]


class TestOverlays:
    """`may_route` keeps a type to brokers that are trusted with it."""

    def test_events_keep_to_trusted_brokers(self) -> None:
        trusted = {"p1", "m2", "m1", "c2"}

        def may_route(key: TypeKey, broker: Principal) -> bool:
            return key != NEWS.key or broker in {principal(name) for name in trusted}

        network = Network(0, settings=Settings(may_route=may_route))
        network.start(*BROKERS)
        network.connect(*LINKS)
        network.advertise("p1", "pub", NEWS)
        network.subscribe("c2", "sub", NEWS)
        network.subscribe("c1", "untrusted", NEWS)
        network.run()
        network.publish("p1", "pub", "1")
        network.run()

        assert network.delivered == [Delivery("c2", "sub", "1")]
        assert network.sent["publication"] == 3
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

    def test_what_an_untrusted_neighbour_enters_does_not_count(self) -> None:
        router = Router(principal("a"), 1, Settings(may_route=lambda _key, broker: broker != principal("b")))
        router.link_up(principal("b"), 0)
        router.receive(principal("b"), Hop(Stamp(1, 1), 0, Greeting()), 0)
        router.receive(principal("b"), Hop(Stamp(1, 1), 1, Enter(1, Subscription(NEWS.key))), 0)
        router.advertise("pub", NEWS.key)

        assert not [o for o in router.publish("pub", Event.of(NEWS, {}).to_transit()) if isinstance(o, Send)]


# Random networks against the oracle.

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
                expected.update(network.expected(broker, event))
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


TOPOLOGIES = st.tuples(
    st.lists(st.integers(0, 100), min_size=4, max_size=6),
    st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from(NAMES)), max_size=5),
)


def random_network(seed: int, topology: tuple[list[int], list[tuple[str, str]]]) -> Network:
    """Return a connected network of five to seven brokers: a random tree, and some links more."""
    parents, more = topology
    network = Network(seed)
    network.start(*NAMES[: len(parents) + 1])
    network.connect(*((NAMES[i + 1], NAMES[parent % (i + 1)]) for i, parent in enumerate(parents)))
    network.connect(*((one, other) for one, other in more if one != other))
    return network


@given(st.integers(0, 999), TOPOLOGIES, steps(CALM, 20))
@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_exactly_the_matching_events_come_once_to_every_subscriber(
    seed: int, topology: tuple[list[int], list[tuple[str, str]]], script: list[Step]
) -> None:
    network = random_network(seed, topology)
    for number, step in enumerate(script):
        do(network, step, number)
    network.run()

    publish_everywhere(network)
    take_all_back(network)


@given(st.integers(0, 999), TOPOLOGIES, steps(STORMY, 40))
@settings(max_examples=examples(80), deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_after_any_storm_delivery_is_exact_again(
    seed: int, topology: tuple[list[int], list[tuple[str, str]]], script: list[Step]
) -> None:
    network = random_network(seed, topology)
    for number, step in enumerate(script):
        do(network, step, number)
    network.run()
    assert max(Counter(network.delivered).values(), default=0) <= 1

    publish_everywhere(network)
    take_all_back(network)
    assert not network.cuts
