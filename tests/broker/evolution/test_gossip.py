"""Neighbours that compare policy: what each has reaches all, and who does not know how far a chain goes waits."""

from datetime import timedelta
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import settings as examples_of
from hypothesis import strategies as st
from tests.broker.gossip_kit import OWNER, GossipBroker, Kept, World
from tests.broker.node_kit import BROKERS
from tests.broker.sports import AGENCY, NEWS, PDA, REPORTER, STRANGER, grant
from tests.budget import examples

from penstock.broker.evolution import gossip
from penstock.broker.limits import BrokerLimits
from penstock.broker.wire.plain_trees import principal_tree
from penstock.codec.wire import Wire, decode
from penstock.crypto import SigningKey
from penstock.errors import FailedError
from penstock.model.principals import Principal
from penstock.trust.capabilities import Right, event_tag
from penstock.trust.certificates import Authorisation, issue
from penstock.trust.policy_events import PolicyEvent, Revoke
from penstock.trust.policy_state import PolicyAuthor, publish
from penstock.trust.signed import SignedValue

READING, WRITING = grant(PDA, NEWS, Right.SUBSCRIBE), grant(REPORTER, NEWS, Right.PUBLISH)
COMPARED = BrokerLimits().policy_heads / 1_000
PROVEN = BrokerLimits().policy_proof / 1_000


def chain(world: World, length: int) -> list[SignedValue[PolicyEvent]]:
    """Return a chain that ends with a revocation."""
    author = PolicyAuthor(AGENCY)
    events = [author.change(world.now, publish(READING, WRITING)) for _ in range(length - 1)]
    return [*events, author.change(world.now, Revoke((READING.id,)))]


def swallows(_peer: Principal, message: Wire) -> list[Wire]:
    """Say that there is no policy, and nothing else about it."""
    match message:
        case ["policy", "heads", _, whole]:
            return [["policy", "heads", [], whole]]
        case ["policy", *_]:
            return []
    return [message]


def line(world: World, length: int) -> list[GossipBroker]:
    brokers = [world.start(number) for number in range(length)]
    world.link(*brokers)
    world.settle()
    return brokers


def test_what_one_broker_is_handed_reaches_all_and_all_acknowledge_to_all() -> None:
    world = World()
    brokers = line(world, 4)
    first, second = chain(world, 2)
    brokers[1].hand_in(first)
    world.settle()
    brokers[3].hand_in(second)
    world.settle()
    assert [broker.number for broker in brokers] == [2, 2, 2, 2]
    assert [broker.state for broker in brokers] == ["fresh"] * 4
    for broker in brokers:
        found = broker.policies.completion(OWNER, 2)
        assert found.complete
        assert {standing.broker for standing in found.brokers} == {one.me for one in brokers}


def test_a_broker_that_starts_without_policy_waits_for_the_heads_of_its_neighbours() -> None:
    world = World()
    (one,) = line(world, 1)
    one.hand_in(*chain(world, 3))
    late = world.start(1, peers=1)
    assert late.state == "unknown"
    world.sleep(10 * PROVEN)
    # Nobody that it calls is there: it cannot know.
    assert late.state == "unknown"
    world.link(one, late)
    states = []
    while any(world.wires.values()):
        world.step(next(way for way, wire in world.wires.items() if wire))
        states.append((late.number, late.state))
    assert all(number == 3 for number, state in states if state == "fresh")
    assert states[-1] == (3, "fresh")


def test_a_broker_alone_knows_all_that_there_is() -> None:
    world = World()
    one = world.start(0)
    assert one.state == "fresh"
    one.hand_in(*chain(world, 2))
    assert (one.number, one.state) == (2, "fresh")


def test_neighbours_without_policy_show_that_there_is_none() -> None:
    world = World()
    one, other = world.start(0), world.start(1, peers=1)
    world.link(one, other)
    assert other.state == "unknown"
    world.settle()
    assert other.state == "fresh"


def test_the_owner_itself_shows_how_far_its_chain_goes() -> None:
    world = World()
    one = world.start(0, peers=1)
    first, second = chain(world, 2)
    one.hand_in(first)
    assert one.state == "unknown"
    one.hand_in(second, client=OWNER)
    assert one.state == "fresh"


def test_so_does_a_time_stamp() -> None:
    world = World()
    one = world.start(0, peers=1)
    author = PolicyAuthor(AGENCY)
    one.hand_in(author.change(world.now, publish(READING)))
    one.policies.hand_in(OWNER, author.stamp(world.now, 60_000).to_bytes())
    assert one.state == "fresh"


def test_a_broker_that_starts_again_goes_on_where_it_was() -> None:
    world, keep = World(), Kept()
    one = world.start(0, peers=1, keep=keep)
    one.hand_in(*chain(world, 2), client=OWNER)
    again = world.start(0, peers=1, keep=keep)
    assert (again.number, again.state) == (2, "fresh")


def test_all_that_are_called_are_waited_for_but_not_without_end() -> None:
    world = World()
    empty, knowing, late = world.start(0), world.start(1), world.start(2, peers=2)
    knowing.hand_in(*chain(world, 2))
    world.link(empty, late)
    world.settle()
    # One neighbour that has nothing is not the word of the other.
    assert late.state == "unknown"
    world.link(knowing, late)
    world.settle()
    assert (late.number, late.state) == (2, "fresh")
    another = world.start(3, peers=2)
    world.link(empty, another)
    world.settle()
    assert another.state == "unknown"
    world.sleep(PROVEN + 1)
    assert another.state == "fresh"


def test_an_owner_whose_type_comes_later_is_compared_immediately() -> None:
    """Claims are kept also of owners that are not followed yet."""
    world = World()
    one, other = line(world, 2)
    author = PolicyAuthor(STRANGER)
    one.policies.follow(STRANGER.principal)
    one.hand_in(author.change(world.now), client=STRANGER.principal)
    right = event_tag(STRANGER.principal, "Story", None, [Right.ROUTE])
    route = issue(Authorisation(STRANGER.principal, BROKERS[1].principal, right), STRANGER)
    one.policies.hand_in(STRANGER.principal, author.change(world.now, publish(route)).to_bytes())
    world.sleep(COMPARED + 1)
    assert STRANGER.principal not in other.policies.owners()
    other.policies.follow(STRANGER.principal)
    assert other.policies.told(STRANGER.principal, 0)["state"] == "unknown"
    world.settle()
    assert other.policies.told(STRANGER.principal, 0)["state"] == "fresh"
    assert other.policies.applied(STRANGER.principal) == 2


def test_a_long_chain_comes_in_chunks_and_nothing_is_delivered_in_between() -> None:
    world = World(limits=BrokerLimits(policy_chunk_bytes=4_000))
    (one,) = line(world, 1)
    events = chain(world, 40)
    one.hand_in(*events)
    late = world.start(1)
    world.link(one, late)
    numbers = set()
    while any(world.wires.values()):
        world.step(next(way for way, wire in world.wires.items() if wire))
        numbers.add(late.number)
        if late.number:
            assert late.state == ("fresh" if late.number == 40 else "behind")
    assert len(numbers) > 10
    assert late.number == 40


def test_many_owners_are_asked_about_some_at_a_time_and_all_are_waited_for() -> None:
    world = World()
    owners = [SigningKey(bytes([3, number]) * 16) for number in range(30)]
    one = world.start(0)
    late = world.start(1, peers=1)
    for owner in owners:
        author = PolicyAuthor(owner)
        right = event_tag(owner.principal, "Story", None, [Right.ROUTE])
        routes = [issue(Authorisation(owner.principal, key.principal, right), owner) for key in BROKERS[:2]]
        one.policies.follow(owner.principal)
        one.hand_in(author.change(world.now, publish(*routes)), client=owner.principal)
        late.policies.follow(owner.principal)
    world.link(one, late)
    asked = most = 0
    while any(world.wires.values()):
        way = next(way for way, wire in world.wires.items() if wire)
        message = decode(world.wires[way][0])
        assert isinstance(message, list)
        asked += (message[1] == "ask") - (message[1] == "events" and way[0] == one.me)
        most = max(most, asked)
        world.step(way)
    assert 1 <= most <= 8
    assert all(late.policies.applied(owner.principal) == 1 for owner in owners)
    assert {late.policies.told(owner.principal, 0)["state"] for owner in owners} == {"fresh"}


def test_a_chain_is_taken_from_its_checkpoint_on() -> None:
    world = World(limits=BrokerLimits(policy_chunk_bytes=1_000))
    (one,) = line(world, 1)
    author = PolicyAuthor(AGENCY)
    for _ in range(5):
        one.hand_in(author.change(world.now, publish(READING)))
    changes = [*author.state.as_changes()]
    one.hand_in(author.change(world.now, *changes, checkpoint=2), author.change(world.now), author.change(world.now))
    one.hand_in(author.change(world.now, Revoke((READING.id,))))
    late = world.start(1, peers=1)
    world.link(one, late)
    world.settle()
    assert (late.number, late.state) == (9, "fresh")
    assert late.policies.events(OWNER)[0].value.number == 6


def test_a_link_that_is_lost_in_the_middle_of_a_chain_is_made_good_by_another() -> None:
    world = World(limits=BrokerLimits(policy_chunk_bytes=4_000))
    one, other = line(world, 2)
    one.hand_in(*chain(world, 40))
    world.settle()
    late = world.start(2, peers=1)
    world.link(one, late)
    while late.number < 10:
        world.step(next(way for way, wire in world.wires.items() if wire))
    world.unlink(one.me, late.me)
    world.settle()
    assert late.number < 40
    assert late.state == "behind"
    world.link(other, late)
    world.settle()
    assert (late.number, late.state) == (40, "fresh")


def test_what_was_swallowed_on_one_way_comes_by_the_other() -> None:
    world = World()
    one, two, three, four = line(world, 4)
    world.link(four, one)
    world.settle()
    two.meddle = swallows
    first, second = chain(world, 2)
    one.hand_in(first, second)
    world.settle()
    assert [broker.number for broker in (one, three, four)] == [2, 2, 2]
    # Nobody had to wait for a comparison, and acknowledgements come around it too.
    standings = one.policies.completion(OWNER, 2).brokers
    assert {standing.broker for standing in standings if standing.done} == {one.me, two.me, three.me, four.me} - {
        two.me
    }


def test_a_revocation_that_was_lost_is_missed_when_heads_are_compared() -> None:
    world = World()
    one, two = line(world, 2)
    first, second = chain(world, 2)
    one.hand_in(first)
    world.settle()
    one.meddle = lambda _peer, _message: []
    one.hand_in(second)
    world.settle()
    assert two.number == 1
    one.meddle = lambda _peer, message: [message]
    world.sleep(COMPARED)
    assert (two.number, two.state) == (2, "fresh")


def test_a_clock_that_jumps_stops_no_comparison_and_ends_no_waiting() -> None:
    world = World()
    one, two = line(world, 2)
    first, second = chain(world, 2)
    one.hand_in(first)
    world.settle()
    world.now += timedelta(hours=2)
    world.sleep(COMPARED)
    world.now -= timedelta(hours=2)
    one.meddle = lambda _peer, _message: []
    one.hand_in(second)
    one.meddle = lambda _peer, message: [message]
    late = world.start(2, peers=2)
    world.now += timedelta(hours=2)
    world.link(two, late)
    world.settle()
    assert late.state == "unknown"
    world.sleep(COMPARED)
    assert (two.number, late.number) == (2, 2)


def test_events_that_come_in_another_order_are_asked_for() -> None:
    world = World()
    one, two = line(world, 2)
    events = chain(world, 5)
    one.meddle = lambda _peer, message: [] if message[1] == "events" else [message]  # type: ignore[index]  # a list
    one.hand_in(*events[:4])
    world.settle()
    one.meddle = lambda _peer, message: [message]
    one.hand_in(events[4])
    world.settle()
    assert (two.number, two.state) == (5, "fresh")


def test_both_halves_of_a_fork_reach_all() -> None:
    world = World()
    one, two, three = line(world, 3)
    author, twin = PolicyAuthor(AGENCY), PolicyAuthor(AGENCY)
    one.hand_in(author.change(world.now, publish(READING)))
    world.settle()
    three.hand_in(twin.change(world.now, publish(WRITING)))
    world.settle()
    assert [broker.state for broker in (one, two, three)] == ["forked"] * 3


def test_brokers_that_hold_different_halves_find_out_when_they_are_linked() -> None:
    world = World()
    one, two = world.start(0), world.start(1)
    author, twin = PolicyAuthor(AGENCY), PolicyAuthor(AGENCY)
    one.hand_in(author.change(world.now, publish(READING)), author.change(world.now))
    two.hand_in(twin.change(world.now, publish(WRITING)))
    world.link(one, two)
    world.settle()
    assert [broker.state for broker in (one, two)] == ["forked"] * 2


def test_a_fork_is_shown_to_those_who_come_later_or_have_one_half() -> None:
    world = World()
    one, two = line(world, 2)
    author, twin = PolicyAuthor(AGENCY), PolicyAuthor(AGENCY)
    first = author.change(world.now, publish(READING))
    one.hand_in(first)
    world.settle()
    world.unlink(one.me, two.me)
    one.hand_in(twin.change(world.now, publish(WRITING)))
    late = world.start(2, peers=1)
    world.link(two, one, late)
    world.settle()
    assert [broker.state for broker in (one, two, late)] == ["forked"] * 3
    assert not world.cut


def test_an_owner_beyond_those_that_can_be_kept_is_not_delivered() -> None:
    world = World(limits=BrokerLimits(policy_owners=1))
    one, two = line(world, 2)
    assert one.state == "fresh"
    for broker in (one, two):
        broker.policies.follow(STRANGER.principal)
        assert broker.policies.told(STRANGER.principal, 0)["state"] == "unknown"
    event = PolicyAuthor(STRANGER).change(world.now)
    words: Wire = ["policy", "events", principal_tree(STRANGER.principal), [[1, event.digest, event.to_bytes()]], 0]
    one.say(two.me, words)
    world.settle()
    # The neighbour is not to blame.
    assert not world.cut


def test_what_cannot_be_kept_here_is_not_held_against_who_sent_it() -> None:
    world, full = World(), True

    class Disk(Kept):
        def save(self, owner: Principal, snapshot: bytes) -> None:
            if full:
                raise FailedError("file.unwritable", "the disk is full")
            super().save(owner, snapshot)

    one, two = world.start(0), world.start(1, keep=Disk())
    world.link(one, two)
    one.hand_in(*chain(world, 2))
    world.settle()
    assert not world.cut
    assert "file.unwritable" in two.codes


def test_an_event_that_nobody_can_apply_is_shown_to_those_who_come_later_and_not_forgotten() -> None:
    limits = BrokerLimits(policy_log_bytes=1_500)
    world, keep = World(limits=limits), Kept()
    one = world.start(0, keep=keep)
    events = chain(world, 3)
    one.hand_in(*events)
    reached = one.number
    assert 0 < reached < 3
    assert one.state == "behind"
    late = world.start(1, peers=1)
    world.link(one, late)
    world.settle()
    assert (late.number, late.state) == (reached, "behind")
    again = world.start(0, keep=keep)
    assert (again.number, again.state) == (reached, "behind")


def test_acknowledgements_that_were_lost_come_when_heads_are_compared() -> None:
    world = World()
    one, two, three = line(world, 3)
    two.meddle = lambda _peer, message: [] if message[1] == "acks" else [message]  # type: ignore[index]  # a list
    one.hand_in(*chain(world, 2))
    world.settle()
    assert one.policies.acknowledged(OWNER, three.me) is None
    two.meddle = lambda _peer, message: [message]
    world.sleep(COMPARED)
    assert one.policies.acknowledged(OWNER, three.me) is not None
    assert three.policies.acknowledged(OWNER, one.me) is not None


def acknowledged(world: World, random: Random) -> dict[Principal, dict[Principal, int]]:
    """Hand in changes in a random network, in random order, and return who has whose acknowledgement of which event.

    Nothing may be complete before all brokers enforce it.
    """
    brokers = [world.start(number) for number in range(4)]
    for number in range(1, 4):
        world.link(brokers[random.randrange(number)], brokers[number])
    one, other = random.sample(brokers, 2)
    if (one.me, other.me) not in world.wires:
        world.link(one, other)
    first, *events = chain(world, 3)
    # So each broker knows all others, and waits for them.
    one.hand_in(first)
    world.settle()
    while events or any(world.wires.values()) or world.soon:
        ways = [way for way, wire in world.wires.items() if wire]
        act = random.randrange(8)
        if events and act == 0:
            random.choice(brokers).hand_in(events.pop(0))
        elif ways and act > 1:
            way = random.choice(ways)
            world.step(way)
            hearer = world.brokers[way[1]]
            if hearer.policies.completion(OWNER, hearer.number).complete:
                assert all(broker.number >= hearer.number for broker in brokers)
        else:
            world.turn()
    assert not world.cut
    return {
        broker.me: {one.value.broker: one.value.number for one in broker.policies.acknowledgements(OWNER)}
        for broker in brokers
    }


@examples_of(max_examples=examples(4), deadline=None)
@given(st.integers(0, 2**32))
def test_gathered_acknowledgements_arrive_as_those_that_go_singly_do(seed: int) -> None:
    # Seeds, because both must draw the same.
    gathered = acknowledged(World(turns=False), Random(seed))  # noqa: S311
    singly = acknowledged(World(singly=True), Random(seed))  # noqa: S311
    assert gathered == singly
    everybody = [key.principal for key in BROKERS[:4]]
    assert gathered == dict.fromkeys(everybody, dict.fromkeys(everybody, 3))


def acknowledgements_on(world: World, one: GossipBroker, other: GossipBroker) -> list[list[Wire]]:
    """Return the acknowledgements of each message that is on the way."""
    found: list[list[Wire]] = []
    for data in world.wires[one.me, other.me]:
        match decode(data):
            case ["policy", "acks", _, list(those)]:
                found.append(those)
    return found


def star(world: World) -> tuple[GossipBroker, list[GossipBroker]]:
    """Return a broker that has not heard its neighbours' acknowledgements of a change, and these four."""
    middle, *others = [world.start(number) for number in range(5)]
    for other in others:
        world.link(middle, other)
    world.settle()
    (event,) = chain(world, 1)
    middle.hand_in(event)
    for other in others:
        while world.wires[middle.me, other.me]:
            world.step((middle.me, other.me))
    world.turns = False
    return middle, others


def test_acknowledgements_of_one_turn_go_in_one_message_and_to_nobody_that_has_them() -> None:
    world = World()
    middle, others = star(world)
    for other in others:
        world.step((other.me, middle.me))
    assert not any(acknowledgements_on(world, middle, other) for other in others)
    world.turn()
    for other in others:
        (those,) = acknowledgements_on(world, middle, other)
        assert [one[0] for one in those] == [principal_tree(one.me) for one in others if one is not other]  # type: ignore[index]  # a list


def test_no_acknowledgement_goes_back_where_it_came_from() -> None:
    world = World()
    one, _two, three = line(world, 3)
    sent: list[Wire] = []

    def watch(_peer: Principal, message: Wire) -> list[Wire]:
        match message:
            case ["policy", "acks", _, list(those)]:
                sent.extend(those)
        return [message]

    one.meddle = watch
    three.hand_in(*chain(world, 1))
    world.settle()
    assert one.policies.acknowledged(OWNER, three.me) is not None
    assert [words[0] for words in sent] == [principal_tree(one.me)]  # type: ignore[index]  # lists


def test_an_acknowledgement_that_comes_alone_does_not_wait() -> None:
    world = World()
    middle, others = star(world)
    world.step((others[0].me, middle.me))
    world.turn()
    assert [len(acknowledgements_on(world, middle, other)) for other in others] == [0, 1, 1, 1]


def test_gathered_acknowledgements_are_sent_before_they_are_too_many_for_a_message(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gossip, "_TOGETHER", 2)
    world = World()
    middle, others = star(world)
    for other in others:
        world.step((other.me, middle.me))
    # No turn is over.
    assert [len(one) for one in acknowledgements_on(world, middle, others[3])] == [2, 1]
    assert [len(one) for one in acknowledgements_on(world, middle, others[0])] == [1, 2]
    # One message with all of them goes on in several.
    words = [one for other in others for those in acknowledgements_on(world, middle, other) for one in those]
    late, last = world.start(3), world.start(4)
    world.link(middle, late, last)
    world.wires[middle.me, late.me].clear()
    middle.say(late.me, ["policy", "acks", principal_tree(OWNER), words])
    world.step((middle.me, late.me))
    assert [len(one) for one in acknowledgements_on(world, late, last)] == [2, 2]


def test_a_neighbour_that_has_sent_an_acknowledgement_meanwhile_does_not_get_it() -> None:
    world = World()
    middle, (one, two, liar, last) = star(world)
    (copy,) = acknowledgements_on(world, one, middle)
    time = copy[0][1]  # type: ignore[index]  # a list
    world.step((one.me, middle.me))
    two.say(middle.me, ["policy", "acks", principal_tree(OWNER), copy])
    liar.say(middle.me, ["policy", "acks", principal_tree(OWNER), [[principal_tree(one.me), time, b"junk"]]])
    for other in (two, liar):
        while world.wires[other.me, middle.me]:
            world.step((other.me, middle.me))
    world.turn()

    def got(other: GossipBroker) -> bool:
        return any(copy[0] in those for those in acknowledgements_on(world, middle, other))

    assert [got(other) for other in (one, two, liar, last)] == [False, False, True, True]


def test_brokers_that_have_the_same_say_only_that() -> None:
    world = World()
    one, two = line(world, 2)
    one.hand_in(*chain(world, 2))
    world.sleep(COMPARED)
    before = world.messages
    world.sleep(10 * COMPARED)
    # A list of heads each way.
    assert world.messages - before == 2 * 10
    assert two.number == 2


def test_an_owner_that_is_not_known_takes_no_space() -> None:
    world = World()
    one, two = line(world, 2)
    one.policies.follow(STRANGER.principal)
    one.hand_in(PolicyAuthor(STRANGER).change(world.now), client=STRANGER.principal)
    world.sleep(COMPARED)
    assert one.policies.applied(STRANGER.principal) == 1
    assert list(two.policies.owners()) == [OWNER]
    assert not two.policies.carries(STRANGER.principal)


@examples_of(max_examples=examples(8), deadline=None)
@given(st.integers(0, 2**32).map(Random))
def test_whatever_happens_to_links_and_brokers_all_end_with_the_same(random: Random) -> None:
    world = World(limits=BrokerLimits(policy_chunk_bytes=2_000))
    keeps = [Kept() for _ in range(4)]
    brokers = [world.start(number, peers=number and 1, keep=keeps[number]) for number in range(4)]
    author, length, known = PolicyAuthor(AGENCY), 0, dict.fromkeys(range(4), 0)
    for _ in range(30):
        place, other = random.sample(range(4), 2)
        match random.randrange(8):
            case 0 | 1 if length < 12:
                brokers[0].hand_in(author.change(world.now, publish(READING)))
                length += 1
            case 2 if (brokers[place].me, brokers[other].me) not in world.wires:
                world.link(brokers[place], brokers[other])
            case 3:
                world.unlink(brokers[place].me, brokers[other].me)
            case 4 if place:
                if random.random() < 0.5:
                    keeps[place], known[place] = Kept(), 0
                brokers[place] = world.start(place, peers=1, keep=keeps[place])
            case 5:
                world.sleep(random.choice([0.5, COMPARED]))
            case _:
                for _ in range(random.randrange(30)):
                    ways = [way for way, wire in world.wires.items() if wire]
                    if ways:
                        world.step(random.choice(ways))
        for number, broker in enumerate(brokers):
            # What a broker has kept it does not lose, and while it knows of more it delivers nothing.
            assert broker.number >= known[number]
            known[number] = broker.number
            top = broker.policies.top(OWNER)
            if broker.state == "fresh":
                assert broker.number == (0 if top is None else top.value.number)
    for one, next_one in pairwise(brokers):
        if (one.me, next_one.me) not in world.wires:
            world.link(one, next_one)
    world.sleep(PROVEN + COMPARED)
    assert not world.cut
    assert [(broker.number, broker.state) for broker in brokers] == [(length, "fresh")] * 4
