"""Publishers learn whether anybody wants what they advertise."""

import pytest
from tests.broker.domains import BROKERS, DOMAINS, FOOTBALL, NEWS, SPORT, three_domains
from tests.broker.network import Network, filter_of, principal

from penstock.broker.limits import BrokerLimits
from penstock.broker.routing.outputs import Interested, RouterSettings
from penstock.broker.routing.router import Router


def heard(outputs: list[object]) -> list[Interested]:
    return [output for output in outputs if isinstance(output, Interested)]


class TestOneBroker:
    def test_it_is_said_at_once_and_on_each_change(self) -> None:
        router = Router(principal("a"), 1, RouterSettings(limits=BrokerLimits()))
        outputs: list[object] = [
            *router.advertise("pub", NEWS.key),
            *router.subscribe("one", NEWS.key),
            *router.subscribe("two", NEWS.key),
            *router.unsubscribe("one"),
            *router.unsubscribe("two"),
            *router.subscribe("three", NEWS.key),
            *router.advertise("other", NEWS.key),
            *router.unadvertise("pub"),
            *router.advertise("pub", NEWS.key),
        ]

        assert heard(outputs) == [
            Interested("pub", wanted=False),
            Interested("pub", wanted=True),
            Interested("pub", wanted=False),
            Interested("pub", wanted=True),
            Interested("other", wanted=True),
            Interested("pub", wanted=True),
        ]

    def test_filters_count(self) -> None:
        router = Router(principal("a"), 1, RouterSettings(limits=BrokerLimits()))
        outputs: list[object] = [
            *router.advertise("pub", NEWS.key, (), filter_of(NEWS, "n > 10")),
            *router.subscribe("low", NEWS.key, filter_of(NEWS, "n < 5")),
            *router.subscribe("high", NEWS.key, filter_of(NEWS, "n > 20")),
            *router.unsubscribe("high"),
        ]

        assert [output.wanted for output in heard(outputs)] == [False, True, False]

    def test_a_subscription_to_an_ancestor_counts_and_one_to_a_sub_type_does_not(self) -> None:
        router = Router(principal("a"), 1, RouterSettings(limits=BrokerLimits()))
        outputs: list[object] = [
            *router.advertise("pub", SPORT.key, SPORT.ancestors),
            *router.subscribe("football", FOOTBALL.key),
            *router.subscribe("news", NEWS.key),
            *router.unsubscribe("news"),
        ]

        assert [output.wanted for output in heard(outputs)] == [False, True, False]


class TestNetworks:
    @pytest.mark.parametrize("subscriber", BROKERS)
    @pytest.mark.parametrize("wish", [NEWS, FOOTBALL])
    def test_subscribers_elsewhere_count(self, subscriber: str, wish: object) -> None:
        network = three_domains()
        network.advertise("p1", "pub", FOOTBALL, "n > 3")
        network.run()
        assert network.wanted == {("p1", "pub"): False}
        network.subscribe(subscriber, "other", NEWS, "n < 3")
        network.run()
        assert network.wanted == {("p1", "pub"): False}
        network.subscribe(subscriber, "sub", NEWS if wish is NEWS else FOOTBALL, "n > 5")
        network.run()
        assert network.wanted == {("p1", "pub"): True}
        network.unsubscribe(subscriber, "sub")
        network.run()
        assert network.wanted == {("p1", "pub"): False}

    def test_a_partition_quenches_and_healing_wakes(self) -> None:
        network = three_domains(6)
        network.advertise("p1", "pub", NEWS)
        network.subscribe("c2", "sub", NEWS)
        network.run()
        cut = network.partition(DOMAINS["police"])
        network.run()
        assert network.wanted == {("p1", "pub"): False}
        network.connect(*cut)
        network.run()
        assert network.wanted == {("p1", "pub"): True}

    def test_who_comes_first_does_not_matter(self) -> None:
        network = Network(0)
        network.start("a", "b")
        network.connect(("a", "b"))
        network.subscribe("b", "sub", NEWS, "n > 3")
        network.run()
        network.advertise("a", "pub", SPORT)
        network.run()

        assert network.wanted == {("a", "pub"): True}
