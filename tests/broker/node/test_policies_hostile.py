"""Brokers that lie about policy: junk in the place of policy, false heads, and revocations that are swallowed."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from types import MappingProxyType

import pytest
from tests.broker.evolution.test_gossip import COMPARED, PROVEN, chain, line
from tests.broker.gossip_kit import OWNER, GossipBroker, World
from tests.broker.node.test_policies import READING, WRITING, now, number_at
from tests.broker.node_kit import BROKERS, Broker, client_of, peer, refused, run, running, say, until
from tests.broker.sports import AGENCY, NEWS, PDA, REPORTER, STRANGER

from penstock.broker.evolution.statements import ACKNOWLEDGEMENT, POLICY
from penstock.broker.limits import BrokerLimits
from penstock.broker.routing.carrier import Carried
from penstock.broker.routing.membership import rendezvous
from penstock.broker.routing.messages import Body, Enter, Greeting, Hop, Stamp
from penstock.broker.wire.entries import InterestEntry
from penstock.broker.wire.link import Link
from penstock.broker.wire.plain_trees import principal_tree
from penstock.broker.wire.protocol import PeerRole
from penstock.broker.wire.publications import Publications
from penstock.codec.wire import Wire, Writable
from penstock.crypto import SigningKey
from penstock.model.events import TransitEvent
from penstock.model.names import AttributeId, TypeKey
from penstock.trust.capabilities import Right, event_tag
from penstock.trust.certificates import Authorisation, issue
from penstock.trust.credentials import Credentials
from penstock.trust.policy_events import Acknowledgement, Revoke
from penstock.trust.policy_state import PolicyAuthor, publish
from penstock.trust.signed import sign_value

LIAR = BROKERS[1]


class Liar:
    """A broker that is linked to a node and says what it likes."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self._said = 0
        say(link, Hop(Stamp(1, 1), 0, Greeting()).to_tree())

    def hop(self, body: Body) -> None:
        self._said += 1
        say(self.link, Hop(Stamp(1, 1), self._said, body).to_tree())

    def put_junk(self, name: str, slots: int) -> None:
        """Say retained events of a reserved type that hold nothing."""
        key = TypeKey(AGENCY.principal, name)
        values = MappingProxyType({str(AttributeId(key.owner, key.name, "statement")): "junk"})
        for number in range(1, slots + 1):
            event = TransitEvent(key, (), values, str(number), now())
            self.hop(Publications(LIAR.principal, 1, (number,), (event,), 0, f"{number + 2:015}"))


@asynccontextmanager
async def lying(node: Broker) -> AsyncIterator[Liar]:
    async with peer(node, LIAR, PeerRole.BROKER) as link:
        yield Liar(link)


@asynccontextmanager
async def revoked() -> AsyncIterator[Broker]:
    """Yield a broker whose owner has granted a right and revoked it."""
    author = PolicyAuthor(AGENCY)
    async with running() as one, client_of(one, REPORTER) as writer:
        await writer.evolve(author.change(now(), publish(READING, WRITING)).to_bytes())
        await writer.evolve(author.change(now(), Revoke((READING.id,))).to_bytes())
        yield one


def test_junk_displaces_no_policy() -> None:
    async def test() -> None:
        async with revoked() as one, lying(one) as liar:
            for name in (POLICY, ACKNOWLEDGEMENT):
                liar.put_junk(name, BrokerLimits().route_retained + 76)
            # What a link brings comes in order.
            liar.hop(Enter(1, InterestEntry(NEWS.name.key)))
            await until(lambda: one.core.router.size().entered)
            assert not one.core.router.size().retained
            async with running(key=BROKERS[2], peers=(one.address,)) as late, client_of(late, PDA) as reader:
                await until(lambda: number_at(late) == 2)
                await reader.disclose(Credentials.of(READING))
                await refused("broker.not-permitted", reader.subscribe(NEWS.name))

    run(test())


def test_a_broker_that_is_the_rendezvous_and_swallows_policy_suppresses_no_revocation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    root = rendezvous(TypeKey(AGENCY.principal, POLICY), iter([key.principal for key in BROKERS[:3]]))
    swallower, *others = sorted(BROKERS[:3], key=lambda key: key.principal != root)

    async def test() -> None:
        author = PolicyAuthor(AGENCY)
        async with (
            running(key=swallower) as fake,
            running(key=others[0], peers=(fake.address,)) as one,
            running(key=others[1], peers=(fake.address, one.address)) as other,
        ):
            await until(lambda: all(len(node.neighbours.up()) == 2 for node in (fake, one, other)))
            monkeypatch.setattr(fake.core.router._carrier, "carry", lambda *_: Carried())
            monkeypatch.setattr(fake._gossip, "heard", lambda _peer, _words: None)
            async with client_of(one, REPORTER) as writer:
                await writer.evolve(author.change(now(), publish(READING, WRITING)).to_bytes())
                await writer.evolve(author.change(now(), Revoke((READING.id,))).to_bytes())
                await until(lambda: number_at(other) == 2)

    run(test())


# Without sockets.

FALSE = b"f" * 32


def claim(number: int, digest: bytes = FALSE) -> Wire:
    return ["policy", "heads", [[principal_tree(OWNER), number, digest, b""]], True]


def events(*words: Writable, upto: int = 0) -> Writable:
    return ["policy", "events", principal_tree(OWNER), list(words), upto]


def mute(_peer: object, _message: object) -> list[Wire]:
    return []


def with_liar() -> tuple[World, GossipBroker, GossipBroker]:
    """Return a broker that has a policy of two events, and a neighbour that says only what the test says."""
    world = World()
    one, liar = line(world, 2)
    one.hand_in(*chain(world, 2))
    world.settle()
    liar.meddle = mute
    return world, one, liar


def test_a_false_head_stops_no_deliveries() -> None:
    world, one, liar = with_liar()
    liar.say(one.me, claim(10**6))
    world.settle()
    assert one.state == "fresh"
    world.sleep(PROVEN + 1)
    assert one.state == "fresh"
    assert one.codes.count("evolution.unproven") == 1


def test_a_false_head_stops_a_broker_that_starts_for_a_stated_time_only() -> None:
    world, one, liar = with_liar()
    late = world.start(2, peers=2)
    world.link(one, late)
    world.link(liar, late)
    liar.say(late.me, claim(10**6))
    world.settle()
    assert (late.number, late.state) == (2, "unknown")
    began, number = world.time, 10**6
    while world.time < began + PROVEN:
        # Another claim, or another link, gives it no more time.
        world.sleep(1)
        number += 1
        liar.say(late.me, claim(number))
        world.settle()
        if number % 3 == 0:
            world.unlink(liar.me, late.me)
            world.link(liar, late)
    world.sleep(1)
    assert (late.number, late.state) == (2, "fresh")
    assert late.codes.count("evolution.unproven") >= 1


def test_a_neighbour_that_says_nothing_stops_a_broker_that_starts_for_a_stated_time_only() -> None:
    world, one, liar = with_liar()
    late = world.start(2, peers=2)
    world.link(one, late)
    world.link(liar, late)
    world.settle()
    assert (late.number, late.state) == (2, "unknown")
    world.sleep(PROVEN + 1)
    assert (late.number, late.state) == (2, "fresh")
    assert late.codes == ["evolution.unproven"]


def test_a_broker_whose_only_neighbour_says_nothing_delivers_nothing() -> None:
    world, _, liar = with_liar()
    late = world.start(2, peers=1)
    world.link(liar, late)
    world.sleep(10 * PROVEN)
    assert late.state == "unknown"


def test_who_claims_what_it_does_not_prove_shows_nothing() -> None:
    world, one, liar = with_liar()
    late = world.start(2, peers=1)
    world.link(liar, late)
    liar.say(late.me, claim(10**6))
    world.sleep(10 * PROVEN)
    assert late.state == "unknown"
    world.link(one, late)
    world.sleep(COMPARED)
    assert (late.number, late.state) == (2, "fresh")


def test_a_neighbour_that_does_not_answer_is_passed_over() -> None:
    world, one, liar = with_liar()
    late = world.start(2, peers=2)
    head = one.policies.top(OWNER)
    assert head is not None
    world.link(liar, late)
    liar.say(late.me, claim(2, head.digest))
    world.settle()
    world.link(one, late)
    world.settle()
    assert late.number == 0
    world.sleep(BrokerLimits().policy_answer / 1_000)
    assert (late.number, late.state) == (2, "fresh")


def test_false_heads_of_many_owners_keep_nobody_from_learning_of_the_others() -> None:
    world = World()
    owners = [SigningKey(bytes([3, number]) * 16) for number in range(12)]
    one, liar = world.start(0), world.start(1)
    liar.meddle = mute
    late = world.start(2, peers=2)
    for owner in owners:
        right = event_tag(owner.principal, "Story", None, [Right.ROUTE])
        route = issue(Authorisation(owner.principal, late.me, right), owner)
        for broker in (one, late):
            broker.policies.follow(owner.principal)
        one.hand_in(PolicyAuthor(owner).change(world.now, publish(route)), client=owner.principal)
    world.link(liar, late)
    heads: list[Writable] = [[principal_tree(owner.principal), 9, FALSE, b""] for owner in owners]
    for _ in range(2 * int(PROVEN)):
        liar.say(late.me, ["policy", "heads", heads, True])
        world.sleep(1)
    world.link(one, late)
    for _ in range(2 * int(PROVEN)):
        liar.say(late.me, ["policy", "heads", heads, True])
        world.sleep(1)
    found = [late.policies.told(owner.principal, 0) for owner in owners]
    assert [(told["number"], told["state"]) for told in found] == [(1, "fresh")] * len(owners)


def test_old_heads_change_nothing() -> None:
    world, one, liar = with_liar()
    first, second = one.policies.events(OWNER)
    for number, digest in ((0, bytes(32)), (1, first.digest), (2, second.digest)):
        liar.say(one.me, claim(number, digest))
    liar.say(one.me, events([1, first.digest, first.to_bytes()], [2, second.digest, second.to_bytes()]))
    world.settle()
    assert (one.number, one.state, world.cut) == (2, "fresh", [])


def test_what_does_not_verify_ends_the_link_and_is_kept_by_nobody() -> None:
    third = chain(World(), 3)[2]
    bad = bytearray(third.to_bytes())
    bad[-10] ^= 1
    other = PolicyAuthor(STRANGER).change(World().now)
    junk: list[tuple[Writable, str]] = [
        (events([3, third.digest, bytes(bad)]), "key.bad-signature"),
        (events([4, third.digest, third.to_bytes()]), "message.malformed"),
        (events([3, FALSE, third.to_bytes()]), "message.malformed"),
        (events([1, other.digest, other.to_bytes()]), "message.malformed"),
        (events([3, FALSE, b"("]), "sexp.truncated"),
        (events([-1, FALSE, b""]), "message.malformed"),
        (events([3, b"", b""]), "message.malformed"),
        (events("junk"), "message.malformed"),
        (["policy", "heads", [["junk"]], True], "message.malformed"),
        (["policy", "heads", [[b"owner", 1, FALSE, b""]], True], "message.malformed"),
        (["policy", "heads", [[principal_tree(OWNER), 1, FALSE, b""]] * 2, True], "message.malformed"),
        (["policy", "have", principal_tree(OWNER), [1]], "message.malformed"),
        (["policy", "acks", principal_tree(OWNER), [1]], "message.malformed"),
        (["policy", "junk"], "message.malformed"),
    ]
    for said, code in junk:
        world, one, liar = with_liar()
        behind = world.start(2)
        world.link(one, behind)
        world.settle()
        before = world.messages
        liar.say(one.me, said)
        world.settle()
        assert world.cut == [(liar.me, code)], said
        # Nothing of it was passed on.
        assert world.messages == before + 1
        assert (one.number, one.state) == (2, "fresh")


def acknowledgement(world: World, key: SigningKey, number: int = 2, digest: bytes = FALSE, later: int = 0) -> Writable:
    value = Acknowledgement(key.principal, OWNER, number, digest, world.now + timedelta(seconds=later))
    return [principal_tree(key.principal), value.time, sign_value(value, key).to_bytes()]


def test_acknowledgements_of_strangers_take_no_space_and_go_nowhere() -> None:
    world, one, liar = with_liar()
    strangers = [SigningKey(bytes([1, number]) * 16) for number in range(50)]
    words = [acknowledgement(world, key) for key in strangers]
    before = world.messages
    liar.say(one.me, ["policy", "acks", principal_tree(OWNER), words])
    world.settle()
    assert world.messages == before + 1
    brokers = {one_.value.broker for one_ in one.policies.acknowledgements(OWNER)}
    assert brokers == {one.me, liar.me}
    assert not brokers & {key.principal for key in strangers}
    assert one.policies.completion(OWNER, 2).complete


def test_an_acknowledgement_in_the_name_of_another_ends_the_link() -> None:
    world, one, liar = with_liar()
    words = acknowledgement(world, STRANGER, later=5)
    assert isinstance(words, list)
    forged = [principal_tree(BROKERS[2].principal), *words[1:]]
    liar.say(one.me, ["policy", "acks", principal_tree(OWNER), [forged]])
    world.settle()
    assert world.cut == [(liar.me, "message.malformed")]
    assert one.policies.acknowledged(OWNER, BROKERS[2].principal) is None


def test_old_acknowledgements_are_not_even_read() -> None:
    world, one, liar = with_liar()
    last = one.policies.acknowledged(OWNER, liar.me)
    assert last is not None
    words: Writable = [principal_tree(liar.me), last, b"junk"]
    liar.say(one.me, ["policy", "acks", principal_tree(OWNER), [words]])
    world.settle()
    assert not world.cut
    assert one.policies.acknowledged(OWNER, liar.me) == last


def test_a_neighbour_gets_so_many_answers_and_no_more() -> None:
    limits = BrokerLimits(policy_answers=5)
    world = World(limits=limits)
    one, greedy = line(world, 2)
    one.hand_in(*chain(world, 2))
    world.sleep(COMPARED)
    answers = 0

    def counted(_peer: object, message: Wire) -> list[Wire]:
        nonlocal answers
        answers += isinstance(message, list) and message[1] == "events"
        return [message]

    one.meddle = counted
    for _ in range(100):
        greedy.say(one.me, ["policy", "ask", principal_tree(OWNER), 0])
    world.settle()
    assert answers <= 5
    world.sleep(COMPARED)
    greedy.say(one.me, ["policy", "ask", principal_tree(OWNER), 0])
    world.settle()
    assert answers > 0


def test_owners_that_nobody_knows_fill_nothing() -> None:
    world, one, liar = with_liar()
    for number in range(20):
        stranger = SigningKey(bytes([2, number]) * 16)
        event = PolicyAuthor(stranger).change(world.now)
        owner = principal_tree(stranger.principal)
        liar.say(one.me, ["policy", "heads", [[owner, 1, event.digest, b""]], False])
        liar.say(one.me, ["policy", "events", owner, [[1, event.digest, event.to_bytes()]], 0])
    world.settle()
    assert list(one.policies.owners()) == [OWNER]
    assert not world.cut


def test_claims_of_one_neighbour_are_bounded() -> None:
    world = World(limits=BrokerLimits(policy_owners=8))
    one, liar = line(world, 2)
    for number in range(50):
        liar.say(one.me, ["policy", "heads", [[b"\x00" + bytes([number]) * 32, 1, FALSE, b""]], False])
    world.settle()
    assert len(one.gossip._linked[liar.me].claims) <= 8


def test_policy_is_for_brokers_that_are_trusted_with_it() -> None:
    """An owner whose types a neighbour may not carry is not named to it, and its events are not shown."""
    world, one, liar = with_liar()
    one.policies.follow(STRANGER.principal)
    one.hand_in(PolicyAuthor(STRANGER).change(world.now), client=STRANGER.principal)
    said: list[Wire] = []

    def kept(_peer: object, message: Wire) -> list[Wire]:
        said.append(message)
        return [message]

    one.meddle = kept
    liar.say(one.me, ["policy", "ask", principal_tree(STRANGER.principal), 0])
    liar.say(one.me, ["policy", "have", principal_tree(STRANGER.principal), []])
    world.sleep(COMPARED)
    assert said
    assert repr(principal_tree(STRANGER.principal)) not in repr(said)
