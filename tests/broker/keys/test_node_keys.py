"""Sealed types at nodes that run: keys from a manager, brokers that carry what they cannot read, and lost rights."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from tests.broker.node_kit import BROKERS, LIMITS, LONG, Broker, bag, client_of, refused, run, running, settings, until
from tests.broker.sports import AGENCY, NEWS, PDA, REPORTER, grant, signed

from penstock.broker.core.settings import TrustSettings
from penstock.broker.keys.group import Holder, Refreshing
from penstock.broker.keys.log import MemoryLog
from penstock.broker.keys.node_keys import Managing
from penstock.broker.limits import BrokerLimits
from penstock.broker.local.decisions import AuthoritySources
from penstock.broker.routing.carrier import Carried
from penstock.broker.routing.overlay import UnsafeOpen
from penstock.broker.sealing.blocks import SealedPublications
from penstock.broker.wire.publications import Publications
from penstock.crypto import SigningKey
from penstock.crypto.hpke import SealingKey
from penstock.crypto.wrapping import Secret
from penstock.errors import PenstockError
from penstock.model.events import TransitEvent
from penstock.model.names import AttributeId
from penstock.model.principals import Principal
from penstock.model.types import Sealing
from penstock.trust.capabilities import Right
from penstock.trust.certificates import Certificate
from penstock.trust.credentials import Credentials
from penstock.trust.key_statements import KeyGroup, KeyRequest, KeyWish
from penstock.trust.policy_events import Revoke
from penstock.trust.policy_state import PolicyAuthor, Revocations, publish
from penstock.trust.signed import sign_value
from penstock.trust.statements import OnlineKind, OnlineTerms, StatementAuthor
from penstock.trust.validity import Validity

SEALED = replace(NEWS, sealing=Sealing.ATTRIBUTE)
READING, WRITING = grant(PDA, NEWS, Right.SUBSCRIBE), grant(REPORTER, NEWS, Right.PUBLISH)
MANAGING = grant(BROKERS[0], NEWS, Right.KEYS)
#: the first broker publishes and manages the keys, the last one reads; the one between does neither
PUBLISHING = grant(BROKERS[0], NEWS, Right.PUBLISH)
SUBSCRIBING = grant(BROKERS[2], NEWS, Right.SUBSCRIBE)
POLICY = (READING, WRITING, MANAGING, PUBLISHING, SUBSCRIBING)


def now() -> datetime:
    return datetime.now(UTC)


def managing() -> Managing:
    return Managing(MemoryLog(), Secret(bytes(range(32))))


def holds(node: Broker) -> int:
    """Return of how many groups a node has a key."""
    held = node.keys.status()["held"]
    assert isinstance(held, dict)
    return sum(bool(one["epoch"]) for one in held.values() if isinstance(one, dict))


class Clock:
    """The time, which a test can move forward, so that no date comes before it is ready."""

    def __init__(self) -> None:
        self._ahead = timedelta()

    def __call__(self) -> datetime:
        return now() + self._ahead

    def advance(self, seconds: float) -> None:
        self._ahead += timedelta(seconds=seconds)


@asynccontextmanager
async def three(
    *policy: Certificate, log: MemoryLog | None = None, clock: Callable[[], datetime] = now
) -> AsyncIterator[tuple[Broker, Broker, Broker]]:
    """A manager that publishes, a broker that only carries, and one that reads; in a row."""

    def broker(number: int, *peers: Broker, manages: Managing | None = None) -> Broker:
        addresses = tuple(peer.address for peer in peers)
        made = settings(*policy, key=BROKERS[number], types=(signed(SEALED),), peers=addresses)
        return Broker(made, managing=manages, clock=clock)

    async with (
        broker(0, manages=replace(managing(), log=log or MemoryLog())) as pub,
        broker(1, pub) as between,
        broker(2, between) as sub,
    ):
        yield pub, between, sub


def watch(node: Broker) -> list[bytes]:
    """Return the sealed blocks that come to a node, as they come."""
    seen: list[bytes] = []
    carrier = node.core.router._carrier
    carry = carrier.carry

    def watched(block: Publications, came_from: Principal | None) -> Carried:
        if isinstance(block, SealedPublications):
            seen.append(block.block)
        return carry(block, came_from)

    carrier.carry = watched  # type: ignore[method-assign]  # it looks
    return seen


def test_sealed_events_cross_a_broker_that_cannot_read_them() -> None:
    async def test() -> None:
        async with three(*POLICY) as (pub, between, sub):
            # The key of the type, and one for each of three attributes.
            await until(lambda: holds(pub) == holds(sub) == 4)
            assert holds(between) == 0
            seen = watch(between)
            async with client_of(sub, PDA) as reader, client_of(pub, REPORTER) as writer:
                news = await reader.subscribe(NEWS.name, "headline LIKE 'SECRET%'")
                feed = await writer.advertise(NEWS.name)
                await until(lambda: not feed.quiet)
                for number in range(5):
                    await feed.publish(headline=f"SECRET-{number}", location="London")
                got = [await news.next(LONG) for _ in range(5)]
                assert [event["headline"] for event in got] == [f"SECRET-{number}" for number in range(5)]
                assert seen
                assert not any(b"SECRET" in block for block in seen)

    run(test())


def test_a_broker_that_has_sealed_as_much_as_its_manager_wants_gets_a_new_key() -> None:
    """Also one that does not manage keys itself, and whose own limits allow for more."""

    async def test() -> None:
        limits = replace(LIMITS, key_refresh=0)
        policy = (*POLICY, grant(BROKERS[1], NEWS, Right.PUBLISH))
        few = replace(managing(), refreshing=replace(Refreshing.by(BrokerLimits()), blocks=3))
        types = (signed(SEALED),)
        async with (
            running(*policy, types=types, managing=few, limits=limits) as manager,
            running(*policy, key=BROKERS[1], types=types, peers=(manager.address,), limits=limits) as other,
        ):
            await until(lambda: holds(manager) == holds(other) == 4)
            ring = other.core.ring
            before = {group.scope: ring.newest(group.scope) for group in other.keys.members}
            for number in range(3):
                assert {scope: ring.newest(scope) for scope in before} == before
                other.core.vault.seal((TransitEvent(SEALED.name.key, (), {}, str(number), now()),))
            await until(lambda: all((ring.newest(scope) or 0) > (epoch or 0) for scope, epoch in before.items()))

    run(test())


def test_filters_are_sealed_anew_between_other_things_and_all_of_them() -> None:
    async def test() -> None:
        limits = replace(LIMITS, filter_sealings=1)
        wanted = 60
        async with running(*POLICY, types=(signed(SEALED),), managing=managing(), limits=limits) as node:
            await until(lambda: holds(node) == 4)
            async with client_of(node, PDA) as reader:
                for number in range(wanted):
                    await reader.subscribe(NEWS.name, f"headline = 'N{number}'")
                filters = node.core.router._forest.trees[SEALED.name.key].subscriptions[None]
                before = set(filters.values())
                assert len(before) == wanted
                for group in node.keys.managed():
                    node.keys.rotate(group)
                # The clock of the node alone would take a second for each. The groups change one after the other.
                await until(lambda: not before & set(filters.values()) and not node.core.router.resealing)

    run(test())


def test_what_nobody_wants_stays_at_its_broker_in_each_epoch() -> None:
    async def test() -> None:
        headline = AttributeId(NEWS.name.owner, NEWS.name.name, NEWS.attributes[0].uid)
        async with three(*POLICY) as (pub, between, sub):
            await until(lambda: holds(pub) == holds(sub) == 4)
            seen, ring = watch(between), pub.core.ring
            async with client_of(sub, PDA) as reader, client_of(pub, REPORTER) as writer:
                news = await reader.subscribe(NEWS.name, "headline LIKE 'SECRET%'")
                feed = await writer.advertise(NEWS.name)
                for number in (1, 2):
                    await until(lambda: asks(pub, headline, ring.current(headline)))
                    await feed.publish(headline="another", location="London")
                    await feed.publish(headline="SECRET", location="London")
                    assert (await news.next(LONG))["headline"] == "SECRET"
                    assert len(seen) == number
                    before = ring.current(headline) or 0
                    pub.keys.rotate(KeyGroup(NEWS.name.key, headline))
                    await until(lambda: (ring.current(headline) or 0) > before)  # noqa: B023  # in the same round

    run(test())


def asks(node: Broker, attribute: str, epoch: int | None) -> bool:
    """Say whether an open filter of a neighbour is about an attribute in an epoch."""
    tree = node.core.router._forest.trees.get(NEWS.name.key)
    return tree is not None and (str(attribute), epoch) in tree.sealed._asked


def test_a_broker_that_loses_its_right_loses_the_key() -> None:
    async def test() -> None:
        author = PolicyAuthor(AGENCY)
        scope = str(NEWS.name.key)
        async with three(READING, WRITING, MANAGING, PUBLISHING) as (pub, _, sub), client_of(pub, REPORTER) as writer:
            await writer.evolve(author.change(now(), publish(SUBSCRIBING)).to_bytes())
            await until(lambda: holds(sub) == 4)
            before = pub.core.ring.newest(scope) or 0
            await writer.evolve(author.change(now(), Revoke((SUBSCRIBING.id,))).to_bytes())
            await until(lambda: holds(sub) == 0)
            await until(lambda: (pub.core.ring.newest(scope) or 0) > before)
            assert (sub.core.ring.newest(scope) or 0) <= before

    run(test())


def test_a_broker_is_evicted_when_a_validity_statement_revokes_its_right_or_ends() -> None:
    signer = SigningKey(bytes([79]) * 32)
    test_ = OnlineTerms(OnlineKind.ACTIVE, signer.principal, (), timedelta(hours=1)).to_test()
    tested = grant(BROKERS[2], NEWS, Right.SUBSCRIBE, valid=Validity(online=(test_,)))
    enters = grant(signer, None, Right.CONNECT)
    hour = timedelta(hours=1)

    async def test() -> None:
        author, scope = StatementAuthor(signer), str(NEWS.name.key)
        policy = (READING, WRITING, MANAGING, PUBLISHING, tested, enters)
        async with three(*policy) as (pub, _, sub), client_of(pub, signer) as acs:
            assert holds(sub) == 0
            await acs.evolve(author.heartbeat(now(), hour).to_bytes())
            await until(lambda: holds(sub) == 4)
            group = KeyGroup(NEWS.name.key)
            member = pub.keys.manager._fold.groups[group].members
            before = member[BROKERS[2].principal].until
            assert before is not None
            # A later heartbeat renews its right, and it keeps the key.
            epoch = pub.core.ring.newest(scope) or 0
            await acs.evolve(author.heartbeat(now(), hour).to_bytes())
            await until(lambda: (member[BROKERS[2].principal].until or before) > before)
            assert holds(sub) == 4
            await acs.evolve(author.revoke(now(), [tested.id]).to_bytes())
            await until(lambda: holds(sub) == 0)
            await until(lambda: (pub.core.ring.newest(scope) or 0) > epoch)
            assert BROKERS[2].principal not in member

    run(test())


def reading_from(begins: float | None, ends: float | None) -> Certificate:
    """Return a right to read from so many seconds on, until so many seconds from now.

    By minutes, and with a `Clock`: tests take less time than that on any machine.
    """
    first, last = (None if one is None else now() + timedelta(seconds=one) for one in (begins, ends))
    return grant(BROKERS[2], NEWS, Right.SUBSCRIBE, valid=Validity.between(first, last))


def test_a_broker_with_a_series_of_rights_keeps_the_keys() -> None:
    async def test() -> None:
        clock, rights = Clock(), (reading_from(None, 600), reading_from(300, None))
        async with three(*POLICY[:-1], *rights, clock=clock) as (pub, _, sub):
            await until(lambda: holds(sub) == 4)
            assert None not in ends_of(sub)
            # The first right has ended, and everybody has looked at it since.
            clock.advance(660)
            await until(lambda: ends_of(sub) == [None] * 4)
            await until(lambda: [holder.until for holder in holders_of(pub, BROKERS[2])] == [None] * 4)
            # It never had no right, so the epoch goes on. Members hear of another one later than that.
            assert [state.epoch for state in pub.keys.manager._fold.groups.values()] == [1] * 4

    run(test())


def ends_of(node: Broker) -> list[datetime | None]:
    """Return when a broker's rights to keys end, as far as it has asked for them."""
    return [member.until for member in node.keys.members.values()]


def holders_of(manager: Broker, broker: SigningKey) -> list[Holder]:
    """Return what a manager knows about a broker that holds keys."""
    states = manager.keys.manager._fold.groups.values()
    return [state.holders()[broker.principal] for state in states if broker.principal in state.holders()]


def test_another_right_does_not_undo_what_an_operator_has_evicted() -> None:
    async def test() -> None:
        author, clock = PolicyAuthor(AGENCY), Clock()
        nodes = three(*POLICY[:-1], reading_from(None, 600), clock=clock)
        async with nodes as (pub, _, sub), client_of(pub, REPORTER) as writer:
            await until(lambda: holds(sub) == 4)
            for group in pub.keys.managed():
                pub.keys.evict(group, BROKERS[2].principal)
            await until(lambda: all(member.evicted for member in sub.keys.members.values()))
            await writer.evolve(author.change(clock(), publish(SUBSCRIBING)).to_bytes())
            await until(lambda: changes_at(sub) == 1)
            await asyncio.sleep(0.3)
            assert all(member.evicted for member in sub.keys.members.values())
            # It lasts as long as the right that the broker had then, and no longer.
            clock.advance(660)
            await until(lambda: holds(sub) == 4)
            assert ends_of(sub) == [None] * 4

    run(test())


def changes_at(node: Broker) -> int:
    """Return how many changes of policy have come to a node."""
    return int(node.policies.status()[str(AGENCY.principal)]["number"])  # type: ignore[arg-type, call-overload, index]  # plain data


class Slow(MemoryLog):
    """A log that takes nothing while a test wants it to wait."""

    def __init__(self) -> None:
        super().__init__()
        self.opened = asyncio.Event()
        self.opened.set()

    async def append(self, number: int, record: bytes) -> bool:
        await self.opened.wait()
        return await super().append(number, record)


def test_another_right_does_not_undo_an_eviction_that_waits() -> None:
    async def test() -> None:
        author, clock, log = PolicyAuthor(AGENCY), Clock(), Slow()
        nodes = three(*POLICY[:-1], reading_from(None, 600), log=log, clock=clock)
        async with nodes as (pub, _, sub), client_of(pub, REPORTER) as writer:
            await until(lambda: holds(sub) == 4)
            before = ends_of(sub)
            log.opened.clear()
            for group in pub.keys.managed():
                pub.keys.evict(group, BROKERS[2].principal)
            # Manager and broker decide again: its right lasts longer now.
            await writer.evolve(author.change(clock(), publish(SUBSCRIBING)).to_bytes())
            await until(lambda: changes_at(sub) == 1)
            await asyncio.sleep(0.3)
            assert all(member.evicted for member in sub.keys.members.values())
            log.opened.set()
            await until(lambda: holds(sub) == 0)
            await asyncio.sleep(0.3)
            assert (holders_of(pub, BROKERS[2]), holds(sub), ends_of(sub)) == ([], 0, before)
            assert all(member.evicted for member in sub.keys.members.values())
            # Until its own operator says so.
            sub.keys.join_now()
            await until(lambda: holds(sub) == 4)
            assert ends_of(sub) == [None] * 4

    run(test())


def test_a_broker_whose_right_has_ended_has_the_keys_again_with_its_next_one() -> None:
    async def test() -> None:
        author, clock = PolicyAuthor(AGENCY), Clock()
        async with three(*POLICY[:-1], clock=clock) as (pub, _, sub), client_of(pub, REPORTER) as writer:
            await writer.evolve(author.change(clock(), publish(reading_from(None, 600))).to_bytes())
            await until(lambda: holds(sub) == 4)
            clock.advance(660)
            await until(lambda: not sub.keys.members and not holders_of(pub, BROKERS[2]))
            await writer.evolve(author.change(clock(), publish(SUBSCRIBING)).to_bytes())
            await until(lambda: holds(sub) == 4)

    run(test())


def test_a_broker_that_may_not_publish_says_so_where_it_would_have_to_sign() -> None:
    async def test() -> None:
        types = (signed(replace(SEALED, signed=True)),)
        # The broker reads, and so holds the keys; readers elsewhere would refuse what it signs.
        policy = (READING, WRITING, MANAGING, grant(BROKERS[0], NEWS, Right.SUBSCRIBE))
        async with running(*policy, key=BROKERS[0], types=types, managing=managing()) as pub:
            await until(lambda: holds(pub) == 4)
            async with client_of(pub, REPORTER) as writer:
                feed = await writer.advertise(NEWS.name)
                await refused("seal.signer", feed.publish(headline="h"))
                await writer.evolve(PolicyAuthor(AGENCY).change(now(), publish(PUBLISHING)).to_bytes())
                await until(lambda: pub.policies.status()[str(AGENCY.principal)]["number"] == 1)  # type: ignore[call-overload, index]  # plain data
                await feed.publish(headline="h")

    run(test())


def test_what_cannot_be_sealed_yet_waits_at_its_broker() -> None:
    async def test() -> None:
        types = (signed(SEALED),)
        policy = (READING, WRITING, MANAGING, PUBLISHING, grant(BROKERS[1], NEWS, Right.PUBLISH, Right.SUBSCRIBE))
        async with (
            running(*policy, key=BROKERS[1], types=types) as pub,
            client_of(pub, REPORTER) as writer,
            client_of(pub, PDA) as reader,
        ):
            news = await reader.subscribe(NEWS.name)
            feed = await writer.advertise(NEWS.name)
            await feed.publish(headline="early")
            await asyncio.sleep(0.1)
            assert not news.waiting
            async with running(*policy, key=BROKERS[0], types=types, peers=(pub.address,), managing=managing()):
                assert (await news.next(LONG))["headline"] == "early"

    run(test())


def test_a_broker_for_which_there_is_no_place_gets_to_know_why() -> None:
    async def test() -> None:
        limits = replace(LIMITS, key_members=1, key_retry=200)
        policy = (*POLICY, grant(BROKERS[1], NEWS, Right.PUBLISH))
        types = (signed(SEALED),)
        async with (
            running(*policy, types=types, managing=managing(), limits=limits) as manager,
            running(*policy, key=BROKERS[1], types=types, peers=(manager.address,), limits=limits) as other,
        ):
            await until(lambda: holds(manager) == 4)
            await until(lambda: [one.code for one in other.told].count("keys.members") == 4)
            assert "keys.members" in manager.codes
            assert holds(other) == 0
            # Others are not held up by it.
            manager.keys.evict(KeyGroup(NEWS.name.key), manager.core.principal)
            await until(lambda: holds(other) == 1)

    run(test())


def ask_to_join(node: Broker, key: SigningKey, group: KeyGroup = KeyGroup(NEWS.name.key)) -> None:  # noqa: B008  # frozen
    """Let a broker pass on what somebody has signed, as any on the way can."""
    public = SealingKey(secrets.token_bytes).public
    node.keys.forward(sign_value(KeyRequest(KeyWish.JOIN, key.principal, group, now(), 0, 0, public), key))


@pytest.mark.parametrize(
    "trust", [TrustSettings(strict=False), TrustSettings(unsafe_open=UnsafeOpen(everyone=True), strict=False)]
)
def test_clients_get_no_keys_whatever_they_may_read_and_brokers_do(trust: TrustSettings) -> None:
    async def test() -> None:
        types, group = (signed(SEALED),), KeyGroup(NEWS.name.key)
        policy = (*POLICY, grant(BROKERS[1], NEWS, Right.SUBSCRIBE))
        async with (
            running(*policy, types=types, managing=managing(), trust=trust) as manager,
            running(*policy, key=BROKERS[1], types=types, peers=(manager.address,), trust=trust) as other,
        ):
            await until(lambda: holds(manager) == holds(other) == 4)
            # Both may read all of the type, and be in the network.
            for client in (PDA, REPORTER):
                ask_to_join(other, client)
            await until(lambda: [one.code for one in manager.told].count("keys.not-broker") == 2)
            words = [one.message for one in manager.told if isinstance(one, PenstockError)]
            assert sum(" may not route " in one for one in words) == 2
            assert manager.keys.manager.holders(group) == {BROKERS[0].principal, BROKERS[1].principal}

    run(test())


def test_who_may_read_everything_founds_no_groups_of_what_does_not_exist() -> None:
    async def test() -> None:
        types, key = (signed(SEALED),), NEWS.name.key
        policy = (*POLICY, grant(BROKERS[1], NEWS, Right.SUBSCRIBE))
        async with (
            running(*policy, types=types, managing=managing()) as manager,
            running(*policy, key=BROKERS[1], types=types, peers=(manager.address,)) as other,
        ):
            await until(lambda: holds(manager) == holds(other) == 4)
            before = manager.keys.manager.position
            for group in (KeyGroup(key, AttributeId(key.owner, key.name, "other")), KeyGroup(key, labels=True)):
                ask_to_join(other, BROKERS[1], group)
            await until(lambda: [one.code for one in manager.told].count("keys.not-managed") == 2)
            assert (len(manager.keys.managed()), manager.keys.manager.position) == (4, before)

    run(test())


def test_a_broker_that_may_carry_a_type_no_longer_loses_its_keys() -> None:
    """Also while it shows nothing: what it has shown last is what is asked about."""

    async def test() -> None:
        types, group, other = (signed(SEALED),), KeyGroup(NEWS.name.key), BROKERS[1].principal
        policy = (*POLICY, grant(BROKERS[1], NEWS, Right.SUBSCRIBE))
        route = grant(BROKERS[1], NEWS, Right.ROUTE)
        without = [one for one in bag(*policy) if one != route]
        made = replace(settings(), credentials=Credentials.of(*without), types=types)
        async with Broker(made, managing=managing()) as manager:
            async with running(*policy, key=BROKERS[1], types=types, peers=(manager.address,)):
                await until(lambda: other in manager.keys.manager.holders(group))
                assert other in manager.core.disclosed
            manager.core.disclose(other, None)
            manager.core.change_sources(AuthoritySources(Credentials.of(*without, READING)))
            assert other in manager.keys.manager.holders(group)
            assert not manager.keys.manager._wish(group).evict
            revoked = Revocations({AGENCY.principal: frozenset([route.id])})
            manager.core.change_sources(AuthoritySources(Credentials.of(*without), revocations=revoked))
            await until(lambda: other not in manager.keys.manager.holders(group))

    run(test())


def test_who_has_no_right_to_a_key_gets_none() -> None:
    async def test() -> None:
        async with three(READING, WRITING, MANAGING, PUBLISHING) as (pub, between, sub):
            await until(lambda: holds(pub) == 4)
            await asyncio.sleep(0.3)
            assert holds(between) == holds(sub) == 0
            async with client_of(sub, PDA) as reader, client_of(pub, REPORTER) as writer:
                # What its own clients publish waits there, and its operator gets to know why; once.
                async with client_of(sub, REPORTER) as local:
                    await (await local.advertise(NEWS.name)).publish(headline="waits")
                later = now() + 2 * timedelta(milliseconds=BrokerLimits().key_retry)
                for _ in range(2):
                    sub.keys.readiness.tick(later)
                assert [one.code for one in sub.told].count("keys.not-entitled") == 1
                news = await reader.subscribe(NEWS.name)
                feed = await writer.advertise(NEWS.name)
                await feed.publish(headline="h")
                await asyncio.sleep(0.3)
                assert not news.waiting

    run(test())
