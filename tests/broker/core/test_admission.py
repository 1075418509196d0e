"""What strangers and members may make a broker do before, and after, they have shown a right: counted, not timed."""

import asyncio
from collections.abc import Iterable
from math import inf

import pytest
from tests.broker.node_kit import BROKERS, ending, peer, refused, run, running, until
from tests.broker.sports import AGENCY, NETWORK, NEWS, PDA, REPORTER, STRANGER, grant

from penstock.broker.core import admission
from penstock.broker.core.admission import TURN, Admission, CredentialBudget, StrangersQueue
from penstock.broker.limits import BrokerLimits
from penstock.codec.sexp import SExp
from penstock.crypto import SigningKey
from penstock.errors import PenstockError
from penstock.model.principals import Principal
from penstock.trust import certificates
from penstock.trust.capabilities import Right
from penstock.trust.certificates import Authorisation, Certificate, UnverifiedCertificate, issue, verify_certificate
from penstock.trust.credentials import BYTE_WORK, SIGNATURE_WORK, Credentials
from penstock.trust.tags import Tag, parse_tag

#: nobody waits for a clock
FREE = BrokerLimits(stranger_work=10**12, member_work=10**12)
CONNECT = grant(STRANGER, None, Right.CONNECT)


def large_tag() -> Tag:
    """A set of a hundred members that are not plain: much work to compare in pairs."""
    return parse_tag((b"*", b"set", *((b"f", (b"*", b"prefix", b"%d" % i), b"%d" % i) for i in range(100))))


def junk(number: int, key: SigningKey = STRANGER) -> list[Certificate]:
    """Return certificates that somebody has signed for himself."""
    tag = large_tag()
    return [
        issue(Authorisation(key.principal, key.principal, tag, propagate=True, comment=str(i)), key)
        for i in range(number)
    ]


class Counting:
    """A verifier that counts."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, unverified: UnverifiedCertificate) -> Certificate:
        self.calls += 1
        return verify_certificate(unverified)


def counted_tags(monkeypatch: pytest.MonkeyPatch) -> list[SExp]:
    """Return where each tag goes that is read from now on."""
    found: list[SExp] = []

    def read(tag: SExp) -> Tag:
        found.append(tag)
        return parse_tag(tag)

    monkeypatch.setattr(certificates, "parse_tag", read)
    return found


def asked(*, permitted: bool = False, trusted: Iterable[SigningKey] = (AGENCY,)) -> CredentialBudget:
    async def is_permitted(_bag: Credentials) -> bool:
        return permitted

    return CredentialBudget(lambda: [key.principal for key in trusted], is_permitted)


def test_what_cannot_give_a_stranger_a_right_is_not_looked_into(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = Credentials.of(*junk(50), CONNECT).to_bytes()
    tags = counted_tags(monkeypatch)
    counting = Counting()

    async def main() -> None:
        reading = Admission(counting, FREE)
        assert await reading.hello(STRANGER.principal, shown, asked()) == Credentials.of(CONNECT)
        assert counting.calls == len(tags) == 1
        # Whoever may connect gets all of it verified, and once.
        assert len(await reading.hello(STRANGER.principal, shown, asked(permitted=True))) == 51
        assert len(await reading.hello(STRANGER.principal, shown, asked())) == 51
        assert counting.calls == 52

    run(main())


def test_chains_through_whom_the_broker_knows_are_followed() -> None:
    relay = BROKERS[4]
    chain = [
        issue(Authorisation(relay.principal, STRANGER.principal, parse_tag((b"x",))), relay),
        issue(Authorisation(AGENCY.principal, relay.principal, parse_tag((b"x",)), propagate=True), AGENCY),
    ]
    shown = Credentials.of(*chain)

    async def main() -> None:
        assert await Admission(Counting(), FREE).hello(STRANGER.principal, shown.to_bytes(), asked()) == shown

    run(main())


@pytest.mark.parametrize("role", ["stranger", "member", "neighbour"])
def test_one_bag_is_so_much_work_and_no_more(role: str) -> None:
    shown = Credentials.of(*junk(20)).to_bytes()
    work = 20 * (SIGNATURE_WORK + BYTE_WORK * len(shown) // 20)

    async def reads(limits: BrokerLimits) -> Credentials:
        reading = Admission(Counting(), limits)
        match role:
            case "stranger":
                return await reading.hello(STRANGER.principal, shown, asked(trusted=[STRANGER]))
            case "member":
                return await reading.disclosed(STRANGER.principal, shown)
            case _:
                return await reading.relayed(PDA.principal, shown, asked(permitted=True))

    async def main() -> None:
        ample = BrokerLimits(hello_work=2 * work, disclosure_work=2 * work, stranger_work=10**12, member_work=10**12)
        assert len(await reads(ample)) == 20
        scarce = BrokerLimits(hello_work=work // 2, disclosure_work=work // 2, stranger_work=10**12, member_work=10**12)
        error = await refused("admission.work", reads(scarce))
        assert error.hint

    run(main())


def test_others_have_their_turn_while_a_bag_is_read() -> None:
    shown = Credentials.of(*junk(60)).to_bytes()

    async def main() -> None:
        turns = 0

        async def tick() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        ticking = asyncio.create_task(tick())
        await Admission(Counting(), FREE).disclosed(STRANGER.principal, shown)
        ticking.cancel()
        assert turns >= (len(shown) + 60 * SIGNATURE_WORK) // (2 * TURN)

    run(main())


def test_work_for_strangers_is_so_much_in_a_second_for_all_of_them() -> None:
    """The clock of the queue is that of the loop: what it says about waiting is asked, and nobody waits."""

    async def main() -> None:
        queue = StrangersQueue(BrokerLimits(stranger_work=1_000, stranger_burst=500))
        await queue.turn(1)
        queue.spent(500)
        await queue.turn(1)
        queue.spent(10_000_000)
        waiting = asyncio.create_task(queue.turn(1))
        await asyncio.sleep(0)
        assert len(queue) == 1
        assert queue._not_before > asyncio.get_running_loop().time() + 1_000
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert len(queue) == 0

    run(main())


def occupied(**limits: int) -> StrangersQueue:
    """Return a queue in which nobody has a turn until it is `released`."""
    queue = StrangersQueue(BrokerLimits(stranger_work=10**12, **limits))  # type: ignore[arg-type]  # numbers alone
    queue._not_before = inf
    # No timer: whoever tests says when it is time.
    queue._timer = asyncio.get_running_loop().call_later(10**6, lambda: None)
    return queue


async def release(queue: StrangersQueue, waiting: int) -> None:
    await until(lambda: len(queue) == waiting)
    assert queue._timer is not None
    queue._timer.cancel()
    queue._not_before = 0.0
    queue._wake()


def test_the_lightest_stranger_is_next() -> None:
    async def main() -> None:
        queue = occupied()
        order: list[int] = []

        async def stranger(weight: int) -> None:
            await queue.turn(weight)
            order.append(weight)
            queue.spent(1)

        tasks = [asyncio.create_task(stranger(weight)) for weight in (900, 5, 70, 5_000, 6)]
        await release(queue, 5)
        await asyncio.gather(*tasks)
        assert order == [5, 6, 70, 900, 5_000]

    run(main())


def test_the_heaviest_of_too_many_strangers_gives_way() -> None:
    async def main() -> None:
        queue = occupied(handshake_pending=2)
        tasks = [asyncio.create_task(queue.turn(weight)) for weight in (10, 5_000, 20, 30)]
        await until(lambda: tasks[1].done() and tasks[3].done())
        await release(queue, 2)
        found = await asyncio.gather(*tasks, return_exceptions=True)
        busy = [isinstance(one, PenstockError) and one.code == "link.busy" for one in found]
        assert busy == [False, True, False, True]

    run(main())


def test_a_turn_that_nobody_takes_goes_to_the_next() -> None:
    async def main() -> None:
        queue = occupied()
        gone, following = (asyncio.create_task(queue.turn(weight)) for weight in (1, 2))
        await until(lambda: len(queue) == 2)
        gone.cancel()
        await release(queue, 1)
        await following

    run(main())


def test_a_stranger_with_a_heavy_hello_is_refused_and_costs_no_signature(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it came over TLS: hundreds of certificates with large sets, in one frame."""
    shown = Credentials.of(*junk(70)).to_bytes()
    tags = counted_tags(monkeypatch)

    async def main() -> None:
        async with running(grant(PDA, NEWS, Right.SUBSCRIBE)) as node:
            before = node.core.certificates.misses
            tags.clear()
            async with peer(node, SigningKey(bytes([77]) * 32), shown=shown) as bad:
                assert await ending(bad) == "broker.not-permitted"
            assert node.core.certificates.misses == before
            assert not tags
            await until(lambda: not len(node.clients))

    run(main())


def test_members_read_at_their_own_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has one pace for all that it discloses or passes on, and nobody else waits for it."""
    paces: list[admission.MemberPace] = []

    class Remembered(admission.MemberPace):
        def __init__(self, limits: BrokerLimits) -> None:
            super().__init__(limits)
            paces.append(self)

    monkeypatch.setattr(admission, "MemberPace", Remembered)
    first, second, third = (Credentials.of(*junk(1, key)).to_bytes() for key in (STRANGER, PDA, BROKERS[0]))

    async def main() -> None:
        reading = Admission(Counting(), FREE)
        await reading.disclosed(PDA.principal, first)
        await reading.relayed(PDA.principal, second, asked(permitted=True))
        await reading.disclosed(STRANGER.principal, third)
        assert len(paces) == 2

    run(main())


class Clock:
    """The loop's time, which goes on when somebody sleeps, and only then."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.began = self.now = asyncio.get_running_loop().time()
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: self.now)
        monkeypatch.setattr(asyncio, "sleep", self._sleep)

    @property
    def passed(self) -> float:
        return self.now - self.began

    async def _sleep(self, pause: float) -> None:
        self.now += max(0.0, pause)


@pytest.mark.parametrize("how", ["hello", "disclosed"])
def test_a_member_that_comes_again_and_again_waits_for_its_turn(monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """Each time its rights are decided and recorded, however little work its credentials are."""

    async def main() -> None:
        clock, reading = Clock(monkeypatch), Admission(Counting(), BrokerLimits())

        async def come(principal: Principal) -> None:
            await (reading.hello(principal, b"", asked()) if how == "hello" else reading.disclosed(principal, b""))

        for _ in range(100):
            await come(PDA.principal)
        assert clock.passed == 0
        for _ in range(20):
            await come(PDA.principal)
        assert clock.passed == pytest.approx(10)
        # Nobody else waits for it.
        await come(STRANGER.principal)
        assert clock.passed == pytest.approx(10)
        clock.now += 5
        for _ in range(10):
            await come(PDA.principal)
        assert clock.passed == pytest.approx(15)

    run(main())


def test_who_would_wait_for_too_long_is_refused_and_told_when_to_come_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        clock, reading = Clock(monkeypatch), Admission(Counting(), BrokerLimits(admission_rate=2, admission_burst=5))
        turns: list[float] = []

        async def sleep(pause: float) -> None:
            turns.append(pause)

        monkeypatch.setattr(asyncio, "sleep", sleep)
        for _ in range(13):
            await reading.hello(PDA.principal, b"", asked())
        assert turns == pytest.approx([0.0] * 5 + [0.5 * number for number in range(1, 9)])
        for _ in range(100):
            error = await refused("admission.rate", reading.hello(PDA.principal, b"", asked()))
            assert error.hint is not None
            assert "5 seconds" in error.hint
        # Who is refused has not used up anything.
        clock.now += 5
        await reading.hello(PDA.principal, b"", asked())
        assert turns[-1] == pytest.approx(0.0)

    run(main())


def test_the_limits_on_admission_leave_room_for_who_is_honest() -> None:
    limits = BrokerLimits()
    # All sessions of a principal can come back together, and so can fifty commands of a script, twice.
    assert limits.admission_burst >= max(limits.client_sessions, 2 * 50)
    # A broker that waits for its turn has not given up before.
    assert limits.admission_wait < limits.handshake_time


def test_the_coordinator_is_trusted_and_who_may_pass_on_by_our_credentials() -> None:
    lets = issue(Authorisation(AGENCY.principal, REPORTER.principal, parse_tag((b"x",)), propagate=True), AGENCY)

    async def main() -> None:
        async with running(lets) as node:
            assert node.core._trusted_principals() == {NETWORK.owner, REPORTER.principal}

    run(main())
