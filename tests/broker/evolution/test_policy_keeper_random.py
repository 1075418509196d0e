"""Policy evolution under losses, copies, other orders, forks, skewed clocks and restarts."""

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.broker.policy_node import PolicyNode, names
from tests.budget import examples
from tests.trust.kit import NOW, key, who
from tests.trust.policy_kit import OWNER, RIGHTS, TYPES, author, install, remove, revoke

from penstock.broker.evolution.completeness import Completeness
from penstock.broker.evolution.policy_keeper import Acknowledge, Output
from penstock.broker.limits import BrokerLimits
from penstock.trust.policy_events import Acknowledgement, Change, PolicyEvent, Revoke, TimeStamp
from penstock.trust.policy_state import PolicyAuthor, PolicyState, publish
from penstock.trust.signed import SignedValue, sign_value

SEEDS = st.integers(0, 2**32).map(Random)


def a_change(random: Random) -> Change:
    which, right, definition = random.randrange(5), random.choice(RIGHTS), random.choice(TYPES)
    if which < 2:
        return publish(right)
    return (revoke(right), install(definition), remove(definition.name))[which - 2]


def write_chain(random: Random, length: int) -> tuple[list[SignedValue[PolicyEvent]], list[PolicyState]]:
    """Return a chain, and what holds after each of its events."""
    policy, states, events = author(), [PolicyState()], []
    for _ in range(length):
        if random.random() < 0.15:
            # In parts: what they come to holds when the last of them is there.
            parts = random.randrange(3)
            changes = [*policy.state.as_changes()]
            events.append(policy.change(NOW, *changes[:2], checkpoint=parts))
            events += [policy.change(NOW, *(changes[2:] if part == 0 else ())) for part in range(parts)]
            states += [policy.state] * (parts + 1)
        else:
            events.append(policy.change(NOW, *(a_change(random) for _ in range(random.randrange(3)))))
            states.append(policy.state)
    return events, states


def applied(node: PolicyNode) -> int:
    log = node.keeper.log(who(OWNER))
    return log[-1].value.number if log else 0


@settings(max_examples=examples(80), deadline=None)
@given(SEEDS, st.integers(1, 10))
def test_every_broker_ends_where_the_chain_ends(random: Random, length: int) -> None:
    events, states = write_chain(random, length)
    nodes = [PolicyNode(), PolicyNode(8), PolicyNode(9)]
    seen: list[set[int]] = [set() for _ in nodes]
    for _ in range(3 * length):
        place = random.randrange(len(nodes))
        node, event = nodes[place], random.choice(events)
        node.event(event)
        seen[place].add(event.value.number)
        # At all times: what the chain said at that number, and nothing is delivered while something is missing.
        assert node.state == states[applied(node)]
        assert node.delivers() is (applied(node) == max(seen[place]))
        assert not node.state.revoked & {certificate.id for certificate in node.keeper.credentials()}
        if random.random() < 0.1:
            again = PolicyNode(node.number)
            again.restore(node.keeper.snapshot(NOW, who(OWNER)))
            assert (again.state, again.delivers()) == (node.state, node.delivers())
            nodes[place] = again
    source = PolicyNode(10)
    source.event(*events)
    for node in nodes:
        # Whoever asks gets the log of somebody who has it all.
        node.event(*source.keeper.log(who(OWNER)))
        assert applied(node) == len(events)
        assert node.state == states[-1] == source.state
        assert node.delivers()


@settings(max_examples=examples(60), deadline=None)
@given(SEEDS, st.integers(1, 6), st.integers(0, 5))
def test_a_fork_is_found_whatever_the_order(random: Random, length: int, common: int) -> None:
    one, other = author(), author()
    trunk = [policy.change(NOW, publish(RIGHTS[0])) for _ in range(common) for policy in (one, other)]
    twins = [one.change(NOW, publish(RIGHTS[1])), other.change(NOW, publish(RIGHTS[2]))]
    rest = [policy.change(NOW) for _ in range(length - 1) for policy in (one, other)]
    everything = trunk + twins + rest
    random.shuffle(everything)
    node, got = PolicyNode(), set[bytes]()
    for event in everything:
        node.event(event)
        got.add(event.digest)
        if got >= {twin.digest for twin in twins}:
            assert not node.delivers()
    forks = [word for word in names(node.said) if word.startswith("fork ")]
    assert len(forks) == 1
    assert int(forks[0].split()[1]) > common
    assert not node.delivers()
    assert not node.keeper.credentials().certificates


@settings(max_examples=examples(40), deadline=None)
@given(SEEDS, st.integers(1, 10))
def test_an_event_that_a_broker_says_it_has_would_change_nothing(random: Random, length: int) -> None:
    events, _ = write_chain(random, length)
    node = PolicyNode()
    for event in random.choices(events, k=3 * length):
        keeper, head = node.keeper, (who(OWNER), event.value.number, event.digest)
        had, before = keeper.has(*head), (node.state, keeper.known(who(OWNER)), keeper.top(who(OWNER)))
        node.event(event)
        assert keeper.has(*head)
        top = keeper.top(who(OWNER))
        assert top is not None
        assert top.value.number == keeper.known(who(OWNER))
        if had:
            assert (node.state, keeper.known(who(OWNER)), top) == before
        again = PolicyNode(node.number)
        again.restore(keeper.snapshot(NOW, who(OWNER)))
        assert (again.keeper.top(who(OWNER)), again.delivers()) == (top, node.delivers())


SKEW = 2.0
BROKERS = (7, 8, 9)


@dataclass
class World:
    """An owner and some brokers, each with a clock of its own, and everything that was said and may yet arrive."""

    random: Random
    time: float = 0.0
    policy: PolicyAuthor = field(default_factory=author)
    events: list[SignedValue[PolicyEvent]] = field(default_factory=list)
    stamps: list[SignedValue[TimeStamp]] = field(default_factory=list)
    acks: list[SignedValue[Acknowledgement]] = field(default_factory=list)

    def __post_init__(self) -> None:
        skew = timedelta(seconds=SKEW)
        # The worst that is allowed, mostly.
        self.offsets = {number: self.random.choice([-0.5, -0.5, 0, 0.5]) * SKEW for number in (OWNER, *BROKERS)}
        self.nodes = {number: PolicyNode(number, skew=skew) for number in BROKERS}
        self.completeness = Completeness(who(OWNER), skew=skew, limits=BrokerLimits())

    def clock(self, number: int) -> datetime:
        # Whole seconds would hide what happens between them; owners and brokers start from different ones.
        return NOW + timedelta(seconds=10 + self.time + self.offsets[number])

    def step(self) -> None:
        self.time += self.random.expovariate(1.0)
        number = self.random.choice(BROKERS)
        node = self.nodes[number]
        node.now = self.clock(number)
        match self.random.randrange(12):
            case 0:
                change = revoke(self.random.choice(RIGHTS)) if self.random.random() < 0.5 else a_change(self.random)
                self.events.append(self.policy.change(self.clock(OWNER), change))
                self.completeness.published(self.events[-1])
            case 1:
                period = self.random.choice([500, 3_000])
                self.stamps.append(self.policy.stamp(self.clock(OWNER), period))
                self.completeness.stamped(self.stamps[-1])
            case 2 | 3 if self.events:
                self.heard(node.event(self.random.choice(self.events)))
            case 4 | 5 if self.stamps:
                self.heard(node.stamp(self.random.choice(self.stamps[-3:])))
            case 6 | 7 | 8 if self.acks:
                # Some never come, some come twice.
                self.completeness.acknowledged(self.clock(OWNER), self.random.choice(self.acks[-6:]))
            case 9:
                self.heard(node.event(*self.events))
            case 10 if self.random.random() < 0.5:
                kept = node.keeper.snapshot(node.now, who(OWNER))
                self.nodes[number] = PolicyNode(number, skew=node.skew, now=node.now)
                self.heard(self.nodes[number].restore(kept))
            case _:
                self.heard(node.tick())

    def heard(self, outputs: list[Output]) -> None:
        self.acks += [output.acknowledgement for output in outputs if isinstance(output, Acknowledge)]

    def complete(self) -> list[int]:
        """Return the policy events that are complete, and check that nobody delivers without them."""
        done: list[int] = []
        brokers = [who(number) for number in BROKERS]
        for event in self.events:
            number = event.value.number
            found = self.completeness.of(self.clock(OWNER), number, brokers)
            if not found.complete:
                continue
            done.append(number)
            assert found.at is not None
            assert found.at <= self.clock(OWNER)
            for broker, node in self.nodes.items():
                if node.delivers(self.clock(broker)):
                    assert applied(node) >= number, (number, found)
        return done


@settings(max_examples=examples(100), deadline=None)
@given(SEEDS)
def test_nobody_delivers_what_a_complete_revocation_forbids(random: Random) -> None:
    world = World(random)
    for _ in range(60):
        world.step()
        world.complete()


def test_a_broker_whose_clock_is_slow_is_waited_for() -> None:
    """The bound cannot be lower: with the clocks as far apart as allowed the broker delivers until that very moment."""
    world = World(Random(0))  # noqa: S311  # a simulation
    world.offsets = dict.fromkeys(BROKERS, -SKEW / 2) | {OWNER: SKEW / 2}
    for node in world.nodes.values():
        node.now = world.clock(node.number)
        world.heard(node.stamp(world.policy.stamp(world.clock(OWNER), 3_000)))
    world.completeness.stamped(world.policy.stamp(world.clock(OWNER), 3_000))
    for ack in world.acks:
        world.completeness.acknowledged(world.clock(OWNER), ack)
    world.events.append(world.policy.change(world.clock(OWNER), revoke(RIGHTS[0])))
    world.completeness.published(world.events[0])
    world.time = 3 + SKEW
    assert world.complete() == []
    assert all(node.delivers(world.clock(broker)) for broker, node in world.nodes.items())
    world.time += 0.001
    assert world.complete() == [1]


def test_revocations_do_become_complete_both_ways() -> None:
    """The test before would hold if nothing ever was complete."""
    acknowledged = run_out = 0
    for seed in range(20):
        world = World(Random(seed))  # noqa: S311  # a simulation
        for _ in range(60):
            world.step()
        done = world.complete()
        for number in done:
            found = world.completeness.of(world.clock(OWNER), number, [who(broker) for broker in BROKERS])
            acknowledged += sum(standing.progress == "acknowledged" for standing in found.brokers)
            run_out += sum(standing.progress == "run-out" for standing in found.brokers)
    assert acknowledged > 20
    assert run_out > 20


#: brokers that stamp for the owner, for how long their stamps are good, and the certificate that lets them
STAMPERS = {7: (500, RIGHTS[0]), 8: (3_000, RIGHTS[1])}


class Delegated(World):
    """The same, and two of the brokers stamp for the owner, until it revokes their right."""

    def step(self) -> None:
        stamper, (period, right) = self.random.choice([*STAMPERS.items()])
        node = self.nodes[stamper]
        head = node.keeper.head(who(OWNER))
        if self.random.random() < 0.3 and head is not None and right.id not in node.state.revoked:
            node.now = self.clock(stamper)
            value = TimeStamp(who(OWNER), *head, node.now, period, who(stamper))
            self.stamps.append(sign_value(value, key(stamper)))
            self.heard(node.stamp(self.stamps[-1]))
            # Not all of them come to whoever waits.
            if self.random.random() < 0.5:
                self.completeness.stamped(self.stamps[-1])
        super().step()
        if self.events:
            for stamper, (_, right) in STAMPERS.items():
                if any(
                    right.id in change.certificates
                    for change in self.events[-1].value.changes
                    if isinstance(change, Revoke)
                ):
                    self.completeness.stamps_no_longer(self.events[-1].value.number, [who(stamper)])
        for node in self.nodes.values():
            node.stampers = {one for one, (_, right) in STAMPERS.items() if right.id not in node.state.revoked}
            self.heard(node.weigh())


@settings(max_examples=examples(60), deadline=None)
@given(SEEDS)
def test_nor_do_they_where_brokers_stamp_for_the_owner(random: Random) -> None:
    world = Delegated(random)
    for stamper in STAMPERS:
        world.completeness.stamps_for(who(stamper))
    for _ in range(60):
        world.step()
        world.complete()


def test_revocations_do_become_complete_where_brokers_stamp() -> None:
    run_out = 0
    for seed in range(40):
        world = Delegated(Random(seed))  # noqa: S311  # a simulation
        for _ in range(60):
            world.step()
        for number in world.complete():
            found = world.completeness.of(world.clock(OWNER), number, [who(broker) for broker in BROKERS])
            run_out += sum(standing.progress == "run-out" for standing in found.brokers)
    assert run_out > 10
