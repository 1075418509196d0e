"""What clients ask a running broker about keys, who may, and what they get."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from types import MappingProxyType

from tests.broker.keys.test_node_keys import POLICY, SEALED, holds, managing
from tests.broker.node_kit import BROKERS, LIMITS, Broker, client_of, refused, run, running, until
from tests.broker.sports import AGENCY, NEWS, PDA, REPORTER, grant, signed

from penstock.broker.client.client import Client
from penstock.broker.keys.log import MemoryLog, read_record
from penstock.broker.keys.sealing import open_record
from penstock.broker.wire.protocol import FetchKeys, KeyWord
from penstock.crypto import SigningKey
from penstock.crypto.hpke import SealingKey
from penstock.crypto.opener import Opener
from penstock.crypto.seal_keys import KeyRing
from penstock.crypto.wrapping import Secret
from penstock.errors import FailedError
from penstock.model.events import TransitEvent
from penstock.model.names import AttributeId, TypeKey
from penstock.trust.capabilities import Right
from penstock.trust.credentials import Credentials
from penstock.trust.key_statements import KeyCheckpoint, KeyGroup, KeyRequest, KeyWish
from penstock.trust.signed import sign_value

TYPE = NEWS.name.key
WHOLE = KeyGroup(TYPE)
HEADLINE = KeyGroup(TYPE, AttributeId(TYPE.owner, TYPE.name, NEWS.attributes[0].uid))
TWO = (*POLICY, grant(BROKERS[1], NEWS, Right.PUBLISH, Right.SUBSCRIBE))
FAR = datetime(2999, 1, 1, tzinfo=UTC)


@asynccontextmanager
async def two(
    *more: object, log: MemoryLog | None = None, fetching: int = LIMITS.key_fetching
) -> AsyncIterator[tuple[Broker, Broker]]:
    """A manager, and a broker that has joined."""
    limits = replace(LIMITS, key_answer=1_500, key_fetching=fetching)
    managed = replace(managing(), log=log or MemoryLog())
    policy = (*TWO, *more)
    async with (
        running(*policy, types=(signed(SEALED),), managing=managed, limits=limits) as manager,  # type: ignore[arg-type]  # certificates
        running(*policy, key=BROKERS[1], types=(signed(SEALED),), peers=(manager.address,), limits=limits) as other,  # type: ignore[arg-type]  # certificates
    ):
        await until(lambda: holds(manager) == holds(other) == 4)
        yield manager, other


def bytes_of(number: int, size: int) -> bytes:
    return bytes([number]) * size


async def rotate(client: Client, times: int = 1) -> None:
    for _ in range(times):
        await client.keys(KeyWord.ROTATE, TYPE)


def epochs(answer: Mapping[str, object]) -> set[object]:
    return {part(one, "epoch") for one in answer.values()}


async def rotate_at(manager: Broker) -> None:
    async with client_of(manager, AGENCY) as owner:
        await rotate(owner)


def event(headline: str) -> TransitEvent:
    values = MappingProxyType({str(HEADLINE.attribute): headline})
    return TransitEvent(TYPE, (), values, "1", datetime.now(UTC))


def opened(sealed: bytes, keys: Mapping[KeyGroup, Mapping[int, Secret]]) -> dict[str, object]:
    """Return what keys show of a sealed event."""
    ring = KeyRing()
    for group, found in keys.items():
        for epoch, key in found.items():
            ring.put(group.scope, epoch, key)
    [shown] = Opener(ring).open(sealed).events()
    return {str(name): value for name, value in shown.values.items() if value is not None}


class Failing(MemoryLog):
    """A log that can be kept from forgetting."""

    fails = True

    async def forget(self, number: int) -> None:
        if self.fails:
            raise FailedError("keys.log-folder", "the disk is read-only")
        await super().forget(number)


def part(found: object, *names: str) -> object:
    for name in names:
        assert isinstance(found, Mapping)
        found = found[name]
    return found


def test_status_tells_operators_what_is_held_and_managers_who_holds_it() -> None:
    async def test() -> None:
        async with two() as (manager, other):
            async with client_of(manager, AGENCY) as owner:
                found = await owner.keys(KeyWord.STATUS)
                assert part(found, "held", str(TYPE), "epoch") == 1
                assert part(found, "held", str(TYPE), "seals") is True
                holders = part(found, "managed", str(TYPE), "holders")
                assert holders == [str(one) for one in sorted(key.principal for key in BROKERS[:2])]
                assert part(found, "waiting") == {"publications": 0, "sealed blocks": 0}
            async with client_of(other, AGENCY) as owner:
                found = await owner.keys(KeyWord.STATUS)
                assert part(found, "managed") == {}
                assert len(part(found, "held")) == 4  # type: ignore[arg-type]  # a table
            async with client_of(manager, PDA) as nobody:
                await refused("broker.not-operator", nobody.keys(KeyWord.STATUS))

    run(test())


def test_an_operator_who_may_not_manage_does_not_learn_who_holds_keys() -> None:
    async def test() -> None:
        async with running(
            *TWO, types=(signed(SEALED),), managing=managing(), operators=frozenset([PDA.principal])
        ) as manager:
            await until(lambda: holds(manager) == 4)
            async with client_of(manager, PDA) as operator:
                found = part(await operator.keys(KeyWord.STATUS), "managed", str(TYPE))
                assert isinstance(found, Mapping)
                assert (found["members"], "holders" in found) == (1, False)
                await refused("keys.not-manager", operator.keys(KeyWord.ROTATE, TYPE))

    run(test())


def test_owners_and_who_has_the_right_keys_begin_epochs_and_evict() -> None:
    async def test() -> None:
        shown = Credentials.of(grant(REPORTER, NEWS, Right.KEYS))
        async with two() as (manager, other):
            before = other.core.ring.newest(str(TYPE))
            async with (
                client_of(manager, REPORTER, credentials=shown) as deputy,
                client_of(manager, PDA) as nobody,
                client_of(other, AGENCY) as elsewhere,
            ):
                await refused("keys.not-manager", nobody.keys(KeyWord.ROTATE, TYPE))
                await refused("keys.not-managed", elsewhere.keys(KeyWord.ROTATE, TYPE))
                await refused("keys.not-managed", deputy.keys(KeyWord.ROTATE, replace(TYPE, name="no.Such")))
                assert epochs(await deputy.keys(KeyWord.ROTATE, TYPE)) == {2}
                one = await deputy.keys(KeyWord.ROTATE, TYPE, "headline")
                assert (set(one), epochs(one)) == ({HEADLINE.scope}, {3})
                await until(lambda: (other.core.ring.newest(HEADLINE.scope) or 0) == 3)
                await refused("keys.not-member", deputy.keys(KeyWord.EVICT, TYPE, evicted=PDA.principal))
                gone = await deputy.keys(KeyWord.EVICT, TYPE, evicted=BROKERS[1].principal)
                assert len(gone) == 4
                # It cannot follow, seals nothing, and may come back when it asks to.
                await until(lambda: other.keys.readiness.holds(TYPE))
                assert before == 1
                await elsewhere.keys(KeyWord.JOIN)
                await until(lambda: not other.keys.readiness.holds(TYPE))

    run(test())


def test_old_keys_are_released_to_a_client_with_the_right_history_and_to_no_other() -> None:
    async def test() -> None:
        shown = Credentials.of(grant(PDA, NEWS, Right.HISTORY))
        async with two() as (manager, other):
            first = manager.core.ring.key(str(TYPE), 1)
            async with (
                client_of(manager, AGENCY) as owner,
                client_of(other, PDA, credentials=shown) as engineer,
                client_of(other, REPORTER) as nobody,
            ):
                await refused("keys.no-history", engineer.fetch_keys(WHOLE, 1, 99))
                sealed = manager.core.vault.seal((event("old news"),))
                await rotate(owner, 2)
                found = await engineer.fetch_keys(WHOLE, 1, 99)
                assert set(found) == {1, 2}
                assert found[1] == first
                assert set(await engineer.fetch_keys(HEADLINE, 2, 2)) == {2}
                # What was sealed then can be opened now, as far as the keys go.
                assert opened(sealed, {WHOLE: found}) == {}
                headlines = await engineer.fetch_keys(HEADLINE, 1, 1)
                assert set(opened(sealed, {WHOLE: found, HEADLINE: headlines}).values()) == {"old news"}
                await refused("keys.not-entitled", nobody.fetch_keys(WHOLE, 1, 99))
                assert not other.keys.fetching

    run(test())


def test_a_broker_gets_what_it_holds_for_its_own_jobs_if_it_has_history() -> None:
    async def test() -> None:
        async with (
            two(grant(BROKERS[1], NEWS, Right.HISTORY)) as (manager, other),
            client_of(other, AGENCY) as operator,
            client_of(other, REPORTER) as nobody,
        ):
            found = await operator.fetch_keys(WHOLE, 1, 99)
            assert found == {1: other.core.ring.key(str(TYPE), 1)}
            await rotate_at(manager)
            await until(lambda: other.core.ring.newest(str(TYPE)) == 2)
            # The one before is still open, for what is under way.
            assert set(await operator.fetch_keys(WHOLE, 1, 99)) == {1, 2}
            await refused("keys.not-entitled", nobody.fetch_keys(WHOLE, 1, 99))

    run(test())


def test_requests_of_others_and_for_other_things_are_not_passed_on() -> None:
    def asking(wish: KeyWish, key: SigningKey) -> bytes:
        public = bytes(range(32)) if wish is KeyWish.HISTORY else b""
        request = KeyRequest(wish, key.principal, WHOLE, datetime.now(UTC), 1, 1, public)
        return sign_value(request, key).to_bytes()

    async def test() -> None:
        async with two() as (_, other), client_of(other, PDA) as client:
            for octets in (asking(KeyWish.HISTORY, REPORTER), asking(KeyWish.LEAVE, PDA)):
                request = FetchKeys(client._connection.number(), octets)
                await refused("keys.wrong-request", client._connection.ask(request))

    run(test())


def test_no_manager_is_there() -> None:
    async def test() -> None:
        limits = replace(LIMITS, key_answer=200)
        async with running(*TWO, types=(signed(SEALED),), limits=limits) as alone, client_of(alone, PDA) as client:
            await refused("keys.no-answer", client.fetch_keys(WHOLE, 1, 99))
            assert not alone.keys.fetching
            # Types that nobody has heard of leave nothing behind either.
            strange = KeyGroup(TypeKey(PDA.principal, "Strange"))
            await refused("keys.no-answer", client.fetch_keys(strange, 1, 99))
            assert alone.keys._transport._followed == {AGENCY.principal}
            asked = KeyRequest(KeyWish.HISTORY, PDA.principal, strange, datetime.now(UTC), 1, 1, bytes(range(32)))
            request = sign_value(asked, PDA)
            for _ in range(2):
                alone.keys.forward(request)
            alone.keys.forwarded(strange)
            # Somebody else still waits for an answer.
            assert alone.keys._transport._followed == {AGENCY.principal, PDA.principal}
            alone.keys.forwarded(strange)
            assert alone.keys._transport._followed == {AGENCY.principal}

    run(test())


def test_requests_that_are_too_large_to_be_passed_on_do_not_block_others() -> None:
    async def test() -> None:
        async with two(fetching=2) as (_, other), client_of(other, PDA) as client:
            for number in (1, 2, 3):
                public, much = SealingKey(partial(bytes_of, number)).public, bytes(500_000)
                asked = KeyRequest(KeyWish.HISTORY, PDA.principal, WHOLE, datetime.now(UTC), 1, 1, public, much)
                request = FetchKeys(client._connection.number(), sign_value(asked, PDA).to_bytes())
                await refused("route.event-size", client._connection.ask(request))
            assert (other.keys.fetching, other.keys._forwarded) == ({}, {})
            await refused("keys.not-entitled", client.fetch_keys(WHOLE, 1, 99))

    run(test())


def test_old_epochs_are_forgotten_by_managers_alone() -> None:
    async def test() -> None:
        shown = Credentials.of(grant(PDA, NEWS, Right.HISTORY))
        async with (
            two() as (manager, _),
            client_of(manager, AGENCY) as owner,
            client_of(manager, REPORTER) as other,
            client_of(manager, PDA, credentials=shown) as engineer,
        ):
            await rotate(owner)
            await refused("keys.not-manager", other.keys(KeyWord.FORGET, before=FAR))
            await owner.keys(KeyWord.FORGET, before=datetime.now(UTC) - timedelta(days=1))
            assert set(await engineer.fetch_keys(WHOLE, 1, 99)) == {1}
            await owner.keys(KeyWord.FORGET, before=FAR)
            await refused("keys.no-history", engineer.fetch_keys(WHOLE, 1, 99))
            await rotate(owner)
            assert set(await engineer.fetch_keys(WHOLE, 1, 99)) == {2}

    run(test())


def test_epochs_are_forgotten_when_the_log_has_forgotten_them_and_not_before() -> None:
    async def test() -> None:
        log = Failing()
        async with two(log=log) as (manager, _), client_of(manager, AGENCY) as owner:
            await rotate(owner)
            # The checkpoint is there, and all that came before it.
            await refused("keys.no-answer", owner.keys(KeyWord.FORGET, before=FAR))
            assert manager.keys.manager.position > 8
            assert (log.first, "keys.log-folder" in manager.codes) == (0, True)
            log.fails = False
            await until(lambda: log.first >= 8)
            assert await owner.keys(KeyWord.FORGET, before=FAR) == {"records": 1}
            assert [type(read_record(open_record(managing().kek, one)).value) for one in log.records] == [KeyCheckpoint]

    run(test())


def test_a_broker_that_was_evicted_knows_it_and_says_so() -> None:
    async def test() -> None:
        async with (
            two() as (manager, other),
            client_of(manager, AGENCY) as owner,
            client_of(other, AGENCY) as operator,
        ):
            await owner.keys(KeyWord.EVICT, TYPE, evicted=BROKERS[1].principal)
            await until(lambda: all(member.evicted for member in other.keys.members.values()))
            assert (holds(other), [*other.core.ring.items()]) == (0, [])
            held = part(await operator.keys(KeyWord.STATUS), "held", str(TYPE))
            assert (part(held, "evicted"), part(held, "epoch"), part(held, "seals")) == (True, 0, False)
            other.keys.readiness.tick(datetime.now(UTC) + timedelta(milliseconds=2 * LIMITS.key_retry))
            assert [one.code for one in other.told].count("keys.not-member") == 4
            assert "keys.no-manager" not in other.codes
            await operator.keys(KeyWord.JOIN)
            await until(lambda: holds(other) == 4)
            held = part(await operator.keys(KeyWord.STATUS), "held", str(TYPE))
            assert (part(held, "evicted"), part(held, "seals")) == (False, True)

    run(test())
