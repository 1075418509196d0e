"""What is accepted is accepted by the network: what is published afterwards comes, whatever others do."""

from dataclasses import replace
from itertools import pairwise

import pytest
from tests.broker.network import NUMBER, TEXT, Network, make_type, principal
from tests.broker.node.test_neighbours import KEY, fake
from tests.broker.node_kit import BROKERS, LIMITS, client_of, run, running, until
from tests.broker.sports import NEWS, PDA, REPORTER, TENNIS, grant

from penstock.broker.limits import BrokerLimits
from penstock.broker.routing.messages import Confirm, Confirmed, Enter
from penstock.broker.routing.outputs import Laid, Output, RouterSettings
from penstock.broker.routing.peers import Confirmations
from penstock.broker.wire.entries import InterestEntry
from penstock.broker.wire.entries import SubscriptionEntry as Entered
from penstock.model.types import EventType
from penstock.trust.capabilities import Right

DEFAULTS = BrokerLimits()

READING = make_type("Reading", {"plate": TEXT, "speed": NUMBER})
FAST = make_type("FastReading", {"lane": NUMBER}, READING)


class Confirming(Network):
    """A network in which clients learn when the paths of what they asked for are laid."""

    def __init__(self, seed: int = 0, settings: RouterSettings | None = None) -> None:
        super().__init__(seed, settings=settings)
        self.laid: dict[str, bool] = {}

    def _do(self, name: str, outputs: list[Output]) -> None:
        self.laid |= {output.token: output.complete for output in outputs if isinstance(output, Laid)}
        super()._do(name, outputs)

    def confirm(self, name: str, key: str) -> None:
        self._do(name, self.routers[name].confirm(key, [key], self.now))

    def until_laid(self, *keys: str) -> None:
        """Let time pass just until something is laid: much may still be under way."""
        while not self.laid.keys() >= set(keys):
            self.step()


def line(names: str = "abcde", seed: int = 0, limits: BrokerLimits = DEFAULTS) -> Confirming:
    network = Confirming(seed, RouterSettings(limits=limits))
    network.start(*names)
    network.connect(*pairwise(names))
    network.run()
    return network


def publish(network: Network, event_id: str, **values: object) -> None:
    network.publish("a", "p", event_id, **{"plate": "x", "speed": 1, **values})  # type: ignore[arg-type]  # scalars


@pytest.mark.parametrize("seed", range(5))
def test_what_is_published_after_a_subscription_was_accepted_comes(seed: int) -> None:
    network = line(seed=seed)
    network.advertise("a", "p", READING)
    network.run()
    for number in range(200):
        # Somebody else asks for much, before and behind.
        network.subscribe("e", f"other {number}", READING, f"plate = 'N{number}'")
    network.subscribe("e", "mine", READING, "speed > 0")
    network.confirm("e", "mine")
    for number in range(200):
        network.unsubscribe("e", f"other {number}")
    network.until_laid("mine")
    publish(network, "after")
    network.run()
    assert network.laid == {"mine": True}
    assert [one.event for one in network.delivered if one.key == "mine"] == ["after"]


@pytest.mark.parametrize("seed", range(5))
def test_the_first_who_asks_for_a_type_waits_until_its_publishers_know(seed: int) -> None:
    network = line(seed=seed)
    network.advertise("a", "p", READING)
    # Neither has the advertisement arrived anywhere.
    network.subscribe("e", "mine", READING)
    network.confirm("a", "p")
    network.confirm("e", "mine")
    network.until_laid("mine", "p")
    publish(network, "after")
    network.run()
    assert [one.key for one in network.delivered] == ["mine"]


@pytest.mark.parametrize("seed", range(5))
def test_what_is_published_after_an_advertisement_was_accepted_comes(seed: int) -> None:
    network = line(seed=seed)
    network.subscribe("e", "mine", READING)
    network.subscribe("c", "theirs", READING, "speed > 0")
    network.run()
    network.advertise("a", "p", READING)
    network.confirm("a", "p")
    network.until_laid("p")
    publish(network, "first")
    network.run()
    assert {one.key for one in network.delivered} == {"mine", "theirs"}


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("advertised", [READING, FAST])
def test_sub_types_are_waited_for_from_both_sides(seed: int, advertised: EventType) -> None:
    for first in ("subscribed", "advertised"):
        network = line(seed=seed)
        if first == "subscribed":
            network.subscribe("e", "mine", READING)
            network.run()
            network.advertise("a", "p", advertised)
            network.confirm("a", "p")
            network.until_laid("p")
        else:
            network.advertise("a", "p", advertised)
            network.run()
            network.subscribe("e", "mine", READING)
            network.confirm("e", "mine")
            network.until_laid("mine")
        publish(network, first)
        network.run()
        assert [one.event for one in network.delivered] == [first]


def test_what_is_covered_needs_no_question() -> None:
    network = line()
    network.advertise("a", "p", READING)
    network.subscribe("e", "wide", READING)
    network.confirm("e", "wide")
    network.run()
    network.sent.clear()
    network.subscribe("e", "narrow", READING, "speed > 3")
    network.confirm("e", "narrow")
    assert network.laid == {"wide": True, "narrow": True}
    assert not network.sent


def test_many_cost_few_questions() -> None:
    network = line()
    network.advertise("a", "p", READING)
    network.run()
    for number in range(300):
        network.subscribe("e", f"s{number}", READING, f"plate = 'N{number}'")
        network.confirm("e", f"s{number}")
    network.run()
    assert len(network.laid) == 300
    assert all(network.laid.values())
    # On each of four links, and not one for each subscription.
    assert network.sent["confirm"] == network.sent["confirmed"] < 4 * 12
    assert not any(len(router._confirmations) for router in network.routers.values())


def test_what_others_ask_for_all_the_time_delays_an_answer_little() -> None:
    network = line("abcde")
    network.advertise("a", "p", READING)
    network.run()
    network.subscribe("e", "mine", READING, "speed > 0")
    network.confirm("e", "mine")
    began = due = network.now
    while "mine" not in network.laid:
        if network.now >= due:
            # At every broker on the way somebody asks for something else, all the time.
            due += 0.04
            for name in "bcde":
                network.subscribe(name, f"{name} {due}", READING, f"speed <= 0 AND plate = '{name}{due}'")
        network.step()
        # Words take up to a tenth of a second on a link: a few times there and back over four of them.
        assert network.now - began < 3 * 2 * 4 * 0.1


def test_somebody_who_does_not_answer_is_waited_for_and_not_for_ever() -> None:
    network = line("abc", limits=BrokerLimits(route_confirm=5_000))
    network.advertise("a", "p", READING)
    network.run()
    network.deaf.add("b")
    network.subscribe("c", "mine", READING)
    network.confirm("c", "mine")
    network.wait(4)
    assert network.laid == {}
    network.wait(2)
    assert network.laid == {"mine": False}
    assert not len(network.routers["c"]._confirmations)


def test_a_link_that_breaks_is_not_waited_for() -> None:
    network = line("abc")
    network.advertise("a", "p", READING)
    network.run()
    network.deaf.add("b")
    network.subscribe("c", "mine", READING)
    network.confirm("c", "mine")
    network.kill("b")
    network.run()
    assert network.laid == {"mine": True}


def test_a_wish_that_is_taken_back_is_not_waited_for() -> None:
    network = line("abc")
    network.advertise("a", "p", READING)
    network.run()
    network.subscribe("c", "mine", READING)
    network.confirm("c", "mine")
    network.unsubscribe("c", "mine")
    network.run()
    assert network.laid == {"mine": True}


def test_a_broker_without_neighbours_waits_for_nobody() -> None:
    network = line("a")
    network.subscribe("a", "mine", READING)
    network.confirm("a", "mine")
    assert network.laid == {"mine": True}


# Answers that nobody asked for.


def test_answers_that_were_not_asked_for_confirm_nothing() -> None:
    one, other = principal("one"), principal("other")
    confirmations = Confirmations(BrokerLimits())
    confirmations.told(one, READING.key)
    confirmations.await_for_client("mine", lambda: [READING.key], 0)
    ((peer, question),) = confirmations.said
    assert (peer, question) == (one, Confirm(1, READING.key))
    for wrong in ((other, 1), (one, 2), (one, 0)):
        confirmations.confirmed(*wrong)
    assert confirmations.laid == []
    confirmations.confirmed(one, 1)
    assert confirmations.laid == [Laid("mine")]
    confirmations.confirmed(one, 1)
    assert len(confirmations.laid) == 1


def test_a_neighbour_that_asks_again_and_again_takes_no_more_room() -> None:
    one, other = principal("one"), principal("other")
    confirmations = Confirmations(BrokerLimits())
    confirmations.told(other, READING.key)
    for number in range(1_000):
        confirmations.await_for_peer(one, Confirm(number, READING.key), lambda: [READING.key], number / 1_000)
    assert len(confirmations) == 1
    confirmations.confirmed(other, 1)
    assert confirmations.said[-1] == (one, Confirmed(999))
    assert len(confirmations) == 0


# At nodes.


def test_a_client_is_told_when_the_network_knows() -> None:
    rights = grant(PDA, NEWS, Right.SUBSCRIBE), grant(REPORTER, NEWS, Right.PUBLISH)

    async def main() -> None:
        async with (
            running(*rights) as one,
            running(*rights, key=BROKERS[1], peers=(one.address,)) as two,
            running(*rights, key=BROKERS[2], peers=(two.address,)) as three,
            client_of(one, REPORTER) as writer,
            client_of(three, PDA) as reader,
        ):
            await until(lambda: one.sees(two, three) and three.sees(one, two))
            feed = await writer.advertise(NEWS.name)
            for number in range(20):
                # It is not waited for anything: the answer is all that is needed.
                news = await reader.subscribe(NEWS.name, f"headline = '{number}'")
                await feed.publish(headline=str(number))
                assert (await news.next(30))["headline"] == str(number)
                await reader.drop(news)

    run(main())


def test_a_neighbour_that_does_not_answer_delays_an_answer_and_operators_know() -> None:
    rights = grant(PDA, NEWS, Right.SUBSCRIBE), grant(REPORTER, NEWS, Right.PUBLISH)
    limits = replace(LIMITS, route_confirm=200)

    async def main() -> None:
        async with (
            running(*rights, limits=limits) as node,
            client_of(node, PDA) as reader,
            client_of(node, REPORTER) as writer,
            fake(node) as bad,
        ):
            bad.say(Enter(1, InterestEntry(KEY)), Enter(2, Entered(KEY)))
            await until(lambda: node.core.router.size().entered == 2)
            feed = await writer.advertise(NEWS.name)
            news = await reader.subscribe(NEWS.name)
            await feed.publish(headline="h")
            await news.next(30)
            assert "route.unconfirmed" in node.codes
            assert node.core.counts["unconfirmed"] >= 1
            # Who asks is answered, also about what is not known here.
            bad.say(Confirm(7, KEY))
            assert (await bad.hears("confirmed")).body == Confirmed(7)
            bad.say(Confirm(8, TENNIS.name.key), Confirmed(99))
            assert (await bad.hears("confirmed")).body == Confirmed(8)

    run(main())
