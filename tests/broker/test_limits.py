"""What limits change: each is set so low that something is refused, shortened or dropped which the default permits.

Here are the limits that no other test sets; `tests/apps/node/test_limits.py` checks that each is set by some test.
"""

import asyncio
import selectors
import socket
from collections.abc import Callable, Sequence
from datetime import timedelta

import pytest
from tests.broker.core.test_admission import Clock, Counting, junk
from tests.broker.evolution.test_gossip import chain
from tests.broker.gossip_kit import World as Gossip
from tests.broker.key_kit import World, at, grounds, manager, right
from tests.broker.keys.test_manager import request
from tests.broker.keys.test_node_keys import MANAGING, SEALED
from tests.broker.matching.test_coverage import forwarded
from tests.broker.network import filter_of
from tests.broker.node_kit import Broker, settings
from tests.broker.policy_node import PolicyNode, names
from tests.broker.sealed_kit import ALL, CAR, SPEED, ring
from tests.broker.sealing.test_vault import NOW, car, vault
from tests.broker.sports import LIBRARY_TYPES, NEWS, PDA, STRANGER, Node, grant, signed
from tests.broker.wire.test_channel import Wires, arrive
from tests.trust.policy_kit import author

from penstock.broker.core.admission import Admission, MemberPace
from penstock.broker.keys.client_requests import Asker, KeyDesk
from penstock.broker.keys.log import MemoryLog
from penstock.broker.keys.node_keys import Managing
from penstock.broker.limits import BrokerLimits
from penstock.broker.sealing.blocks import SealedIndex, SealedPublications
from penstock.broker.sealing.filters import KeyFilters
from penstock.broker.wire.channel import Channel
from penstock.broker.wire.entries import SealedFilter
from penstock.broker.wire.protocol import FetchKeys
from penstock.broker.wire.publications import Publications
from penstock.codec.blocks import read_header
from penstock.codec.wire import KEEPALIVE
from penstock.crypto.wrapping import Secret
from penstock.errors import PenstockError
from penstock.model.types import Sealing
from penstock.trust.capabilities import Right
from penstock.trust.credentials import Credentials
from penstock.trust.key_statements import KeyGroup, KeyRequest, KeyWish
from penstock.trust.signed import sign_value

DEFAULTS = BrokerLimits()


def code_of(act: Callable[[], object]) -> str | None:
    """Return the code of the error that something raises, or None."""
    try:
        act()
    except PenstockError as error:
        return error.code
    return None


# Admission.


@pytest.mark.parametrize("low", [BrokerLimits(certificate_bytes=500), BrokerLimits(certificate_nodes=50)])
def test_a_certificate_is_so_large_and_no_larger(low: BrokerLimits) -> None:
    shown = Credentials.of(*junk(1)).to_bytes()
    asyncio.run(Admission(Counting(), DEFAULTS).disclosed(STRANGER.principal, shown))
    assert code_of(lambda: asyncio.run(Admission(Counting(), low).disclosed(STRANGER.principal, shown))) == "sexp.limit"


def test_a_member_is_read_in_one_burst_and_then_at_its_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    async def wait(limits: BrokerLimits) -> float:
        clock, pace = Clock(monkeypatch), MemberPace(limits)
        pace.spent(5_000)
        await pace.turn(0)
        return clock.passed

    assert asyncio.run(wait(BrokerLimits(member_work=1_000))) == 0
    assert asyncio.run(wait(BrokerLimits(member_work=1_000, member_burst=2_000))) == pytest.approx(3)


def test_a_principal_waits_so_long_to_be_admitted_and_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    async def admit(wait: int) -> None:
        _, pace = Clock(monkeypatch), MemberPace(BrokerLimits(admission_rate=2, admission_burst=1, admission_wait=wait))
        for _ in range(2):
            await pace.admission()

    asyncio.run(admit(DEFAULTS.admission_wait))
    assert code_of(lambda: asyncio.run(admit(400))) == "admission.rate"


# Links.


class Connection:
    """What stands in for a socket: it records its options."""

    def __init__(self) -> None:
        self.options: dict[tuple[int, int], int] = {}

    def setsockopt(self, level: int, name: int, value: int) -> None:
        self.options[level, name] = value


@pytest.mark.parametrize("size", [DEFAULTS.link_buffer, 4_096])
def test_the_system_keeps_so_much_of_a_connection(size: int) -> None:
    async def test() -> None:
        connection = Connection()
        channel = Channel(asyncio.get_running_loop(), BrokerLimits(link_buffer=size), opening=0)
        channel.connection_made(Wires(connection))
        channel.connection_lost(None)
        assert connection.options[socket.SOL_SOCKET, socket.SO_RCVBUF] == size
        # What waits to be sent is bounded too; without delay is the third.
        assert sorted(connection.options.values()) == [1, size, size]

    asyncio.run(test())


def test_a_peer_may_send_so_many_keepalives_and_no_more() -> None:
    async def end(limits: BrokerLimits) -> str | None:
        channel = Channel(asyncio.get_running_loop(), limits, opening=0)
        arrive(channel, KEEPALIVE * 3)
        return None if channel.ended is None else channel.ended.code

    assert asyncio.run(end(DEFAULTS)) is None
    assert asyncio.run(end(BrokerLimits(link_keepalives=2))) == "link.flood"


# Sealed filters and blocks.


def sealed_parts(text: str, **limits: int) -> int:
    filters = KeyFilters(ring(*ALL), lambda _of_type: Sealing.ATTRIBUTE, BrokerLimits(**limits))  # type: ignore[arg-type]  # numbers
    found = filters.seal(CAR.key, filter_of(CAR, text))
    return len(found.parts) if isinstance(found, SealedFilter) else 0


def test_a_sealed_filter_has_so_many_parts_of_such_a_size() -> None:
    text = f"plate = '{'P' * 100}' AND speed > 70"
    assert sealed_parts(text) == 2
    assert sealed_parts(text, filter_parts=1) == 1
    assert sealed_parts(text, filter_bytes=512) == 1
    assert sealed_parts(text, filter_bytes=1) == 0


def test_so_many_sealed_filters_are_kept() -> None:
    def keeps(limits: BrokerLimits) -> bool:
        filters = KeyFilters(ring(*ALL), lambda _of_type: Sealing.ATTRIBUTE, limits)
        one, other = (filter_of(CAR, f"speed > {number}") for number in (1, 2))
        first = filters.seal(CAR.key, one)
        filters.seal(CAR.key, other)
        return filters.seal(CAR.key, one) is first

    assert keeps(DEFAULTS)
    assert not keeps(BrokerLimits(filter_cache=1))


def test_so_many_indexes_of_sealed_filters_are_kept() -> None:
    def keeps(limits: BrokerLimits) -> bool:
        keys = ring(*ALL)
        here = vault(keys)
        index: SealedIndex[int] = SealedIndex(CAR.key, here.filters, limits)
        blocks = []
        for epoch in (1, 2):
            keys.begin(SPEED, epoch, Secret(bytes([epoch]) * 32))
            index.add(epoch, here.filters.seal(CAR.key, filter_of(CAR, "speed > 70")))
            events = (car(plate="P", speed=1),)
            blocks.append(SealedPublications.sealing(Publications(STRANGER.principal, 1, (epoch,), events), here))
        first = index.matcher(blocks[0])
        assert first is not None
        index.matcher(blocks[1])
        return index.matcher(blocks[0]) == first

    assert keeps(DEFAULTS)
    assert not keeps(BrokerLimits(filter_indexes=1))


def test_a_block_was_sealed_so_long_ago_at_most() -> None:
    header = read_header(vault(ring(*ALL)).seal([car(plate="P", speed=1)]))
    foreign = header._replace(fixed=header.fixed._replace(sender=bytes(32)))
    arrived = NOW + timedelta(seconds=10)
    assert list(vault(ring(*ALL)).take(foreign, CAR.key, (0,), arrived)) == [0]
    assert code_of(lambda: vault(ring(*ALL), seal_window=9_000).take(foreign, CAR.key, (0,), arrived)) == "seal.too-old"


# Policy.


def test_a_broker_that_is_behind_asks_again_after_so_long() -> None:
    def asks(limits: BrokerLimits) -> list[str]:
        node, policy = PolicyNode(limits=limits), author()
        policy.change(at(0))
        assert names(node.event(policy.change(at(0)))) == ["behind", "resubscribe"]
        return names(node.tick(at(5)))

    assert asks(DEFAULTS) == ["resubscribe"]
    assert asks(BrokerLimits(policy_retry=5_001)) == []


def test_neighbours_compare_heads_every_so_often() -> None:
    def messages(limits: BrokerLimits) -> int:
        world = Gossip(limits)
        world.link(world.start(0), world.start(1))
        world.sleep(0.5)
        before = world.messages
        world.sleep(20)
        return world.messages - before

    assert messages(DEFAULTS) == 2 * 10
    assert messages(BrokerLimits(policy_heads=10_000)) == 2 * 2


def test_another_neighbour_is_asked_after_so_long() -> None:
    def number(limits: BrokerLimits) -> int:
        world = Gossip(limits)
        silent, helpful = world.start(0), world.start(1)
        for broker in (silent, helpful):
            broker.hand_in(*chain(world, 2))
        silent.meddle = lambda _peer, message: [] if message[1] == "events" else [message]  # type: ignore[index]  # a list
        late = world.start(2, peers=2)
        world.link(silent, late, helpful)
        world.settle()
        assert late.number == 0
        world.sleep(1)
        return late.number

    assert number(DEFAULTS) == 2
    assert number(BrokerLimits(policy_answer=2_000)) == 0


def test_a_neighbour_that_is_not_there_is_waited_for_so_long() -> None:
    def state(limits: BrokerLimits) -> str:
        world = Gossip(limits)
        broker = world.start(1, peers=2)
        world.link(world.start(0), broker)
        world.sleep(3)
        return broker.state

    assert state(DEFAULTS) == "unknown"
    assert state(BrokerLimits(policy_proof=3_000)) == "fresh"


# Requests.


def test_it_is_remembered_of_so_many_events_who_receives_them() -> None:
    def keeps(limits: BrokerLimits) -> bool:
        node = Node(limits)
        node.policy(grant(PDA, NEWS, Right.SUBSCRIBE))
        node.connect(PDA)
        node.run(node.broker.subscribe(node.now, "pda", "s", NEWS.name))
        active, news = node.broker.active, LIBRARY_TYPES[NEWS.name]
        first = active.receivers(("1",), news)
        assert first == active.receivers(("1", "other"), news) != ()
        return active.receivers(("1",), news) is first

    assert keeps(DEFAULTS)
    assert not keeps(BrokerLimits(cache_entries=1))


# Keys.


def test_the_key_of_an_epoch_that_is_over_is_kept_so_long() -> None:
    def held(limits: BrokerLimits) -> set[int]:
        world = World(20, limits=limits)
        world.rotate()
        world.pass_time(10)
        return set(world.brokers[20].keys)

    assert held(DEFAULTS) == {1, 2}
    assert held(BrokerLimits(key_grace=10_000)) == {2}


def test_a_request_for_keys_is_so_old_at_most() -> None:
    def joins(limits: BrokerLimits) -> None:
        manager(limits=limits).join(at(10), request(20), grounds(20, right(20)))

    assert code_of(lambda: joins(DEFAULTS)) is None
    assert code_of(lambda: joins(BrokerLimits(key_request=9_000))) == "keys.old-request"


def test_so_many_clients_wait_for_old_keys() -> None:
    async def ask(limits: BrokerLimits) -> None:
        node = Broker(settings(types=(signed(SEALED),), limits=limits))
        desk = KeyDesk(node.core, node.keys, lambda _principal: False)
        try:
            for number in (1, 2):
                wanted = KeyRequest(
                    KeyWish.HISTORY, PDA.principal, KeyGroup(NEWS.name.key), node.core.now(), 1, 1, bytes([number]) * 32
                )
                signed_by = sign_value(wanted, PDA).to_bytes()
                desk.ask(Asker(PDA.principal, Credentials()), FetchKeys(number, signed_by), lambda _outcome: None)
        finally:
            await desk.stop()

    assert code_of(lambda: asyncio.run(ask(DEFAULTS))) is None
    assert code_of(lambda: asyncio.run(ask(BrokerLimits(key_fetching=1)))) == "keys.busy"


class _Jumping(selectors.DefaultSelector):
    """Lets the time pass in which nothing happens, without waiting for it."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.now += timeout or 0
        return super().select(0)


def test_a_manager_reads_what_others_wrote_every_so_often() -> None:
    class Counted(MemoryLog):
        read_at: list[float]

        async def read(self, number: int) -> Sequence[bytes]:
            self.read_at.append(asyncio.get_running_loop().time())
            return await super().read(number)

    def reads(limits: BrokerLimits) -> int:
        log, jumping = Counted(), _Jumping()
        log.read_at = []
        made = settings(MANAGING, types=(signed(SEALED),), limits=limits)
        node = Broker(made, managing=Managing(log, Secret(bytes(32))))

        async def test() -> None:
            await node.keys.start()
            log.read_at.clear()
            await asyncio.sleep(10.5)
            await node.keys.stop()

        loop = asyncio.SelectorEventLoop(jumping)
        loop.time = lambda: jumping.now  # type: ignore[method-assign]  # of this loop alone
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(test())
        return len(log.read_at)

    assert reads(DEFAULTS) in (10, 11)
    assert reads(BrokerLimits(key_follow=5_000)) in (2, 3)


# Matching.


def test_so_many_questions_are_asked_for_one_subscription() -> None:
    texts = "b AND i > 1 OR NOT b AND i > 1", "i > 1 AND b IS NOT NULL AND f > 1"
    assert len(forwarded(*texts)) == 1
    assert len(forwarded(*texts, limits=BrokerLimits(coverage_questions=0))) == 2
