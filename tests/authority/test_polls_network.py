"""Polls over a fabric that loses, repeats, delays and disorders, and over a real one: who is reached is heard."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from itertools import count
from random import Random

import pytest
from tests.authority.kit import K1, K2, K3, MODERATOR, NAME
from tests.authority.poll_kit import K4, contested, polls_in
from tests.moderator.kit import P1, P4
from tests.trust.kit import key

from penstock.authority.polls import Kept, Polls, Settlement
from penstock.authority.polls_network import (
    Answering,
    AutomaticVoter,
    Ended,
    Policy,
    PollChannel,
    PollModerator,
    open_questions,
    polls_topic,
    refusals,
    send_vote,
    tightenings,
    vote_key,
    votes_topic,
)
from penstock.authority.rulebook import RuleBook
from penstock.codec.sexp import canonical
from penstock.crypto import SigningKey
from penstock.errors import PenstockError
from penstock.fabric import EmbeddedFabric, Fabric, Sample
from penstock.fabric.embedded import _Topic
from penstock.fabric.nats import NatsFabric
from penstock.model.principals import Principal
from penstock.moderator.polls import Ballot, Poll, PollQuestion, Vote, VoterResponse
from penstock.moderator.rules.steps import Strategy
from penstock.store.ledgers.ledgers import Store
from penstock.testing.fabric_suite import ManualClock
from penstock.testing.nats import NatsServer
from penstock.trust.signed import sign_value

FOLLOW, ADD, DELETE = Strategy.FOLLOW, Strategy.ADD, Strategy.DELETE
KEYS = (K1, K2, K3, K4)
MINUTE = 60.0
_NUMBERS = count()


def deleting(question: PollQuestion, voter: Principal) -> Ballot:
    """Agree that nobody demands anything, and to nothing else."""
    option = question.option(DELETE)
    relaxed = option is not None and voter in option.relaxes
    return Ballot(frozenset([DELETE]), frozenset([DELETE] if relaxed else []))


def by_hand(question: PollQuestion, voter: Principal) -> None:
    """Leave it to somebody."""


class Weather(EmbeddedFabric):
    """A fabric in bad weather: what it acknowledges it may lose, repeat or hold back."""

    def __init__(self, clock: ManualClock, seed: int) -> None:
        super().__init__(clock=clock)
        self._dice = Random(seed)  # noqa: S311  # a schedule, no secret
        self._under_way: set[asyncio.Task[None]] = set()

    async def carry(self, topic: _Topic, sample: Sample) -> Sample:
        for _ in range(self._dice.choice([0, 0, 1, 1, 2])):
            task = asyncio.create_task(self._later(self._dice.expovariate(1 / 30), topic, sample))
            self._under_way.add(task)
            task.add_done_callback(self._under_way.discard)
        return sample

    async def _later(self, delay: float, topic: _Topic, sample: Sample) -> None:
        await self.clock.sleep(delay)
        await super().carry(topic, sample)

    async def close(self) -> None:
        for task in self._under_way:
            task.cancel()
        await asyncio.gather(*self._under_way, return_exceptions=True)
        await super().close()


async def settle(clock: ManualClock, seconds: float, step: float = 1.0, asking: PollModerator | None = None) -> None:
    """Let time pass, slowly enough that a moderator, which works in threads, can follow."""
    for _ in range(int(seconds / step)):
        await clock.advance(step)
        while asking is not None and asking._alone.locked():
            await asyncio.sleep(0.0005)


async def until(said: Callable[[], object], clock: ManualClock | None = None) -> None:
    """Wait for something to happen, and let time pass meanwhile where a clock is given."""
    async with asyncio.timeout(60):
        while not said():
            if clock is not None:
                await clock.advance(1.0)
            await asyncio.sleep(0.002)


async def ended(asking: PollModerator, poll: Poll, clock: ManualClock) -> Kept:
    """Let time pass until a poll has come to its end."""
    waiting = asyncio.create_task(asking.until_ended(poll.id))
    await until(waiting.done, clock)
    return waiting.result()


def deadline(clock: ManualClock, minutes: float) -> datetime:
    return datetime.fromtimestamp(clock.now() + minutes * MINUTE, UTC)


@asynccontextmanager
async def publishers(
    fabric: Fabric, clock: ManualClock, policies: dict[SigningKey, Policy], told: list[Ended]
) -> AsyncIterator[None]:
    async with AsyncExitStack() as stack:
        for each, policy in policies.items():
            await stack.enter_async_context(
                Answering(
                    PollChannel(fabric, clock), AutomaticVoter(each, policy), [MODERATOR.principal], ended=told.append
                )
            )
        yield


Cast = tuple[dict[SigningKey, Policy], Strategy | None]
EVERYBODY: Cast = (dict.fromkeys(KEYS, tightenings), ADD)
DELETED: Cast = ({K1: deleting, K2: deleting, K3: refusals, K4: deleting}, DELETE)
ONE_SILENT: Cast = ({K1: deleting, K2: deleting, K3: by_hand, K4: deleting}, DELETE)
NO_CONSENT: Cast = ({K1: deleting, K2: tightenings, K3: tightenings, K4: deleting}, None)
REFUSED: Cast = ({K1: tightenings, K2: refusals, K3: tightenings, K4: refusals}, None)


@pytest.mark.parametrize(
    ("cast", "seed"), [(EVERYBODY, 1), (DELETED, 2), (ONE_SILENT, 3), (NO_CONSENT, 4), (REFUSED, 5)]
)
def test_bad_weather_changes_no_outcome(cast: Cast, seed: int) -> None:
    """Every message is lost two times in five, and all are late: those who answer are heard before the deadline."""

    async def whole() -> Kept:
        clock = ManualClock()
        store = contested()
        async with Weather(clock, seed) as fabric:
            told: list[Ended] = []
            async with (
                publishers(fabric, clock, cast[0], told),
                PollModerator(polls_in(store), PollChannel(fabric, clock, again=30)) as asking,
            ):
                poll = await asking.ask("m", deadline(clock, 15))
                await settle(clock, 15 * MINUTE, 10, asking)
                return await ended(asking, poll, clock)

    kept = asyncio.run(whole())
    policies, wanted = cast
    assert kept.poll.outcome is not None
    answers = kept.poll.tally().answers
    assert {who for who, answer in answers.items() if answer is VoterResponse.VOTED} == {
        each.principal for each, policy in policies.items() if policy is not by_hand
    }
    assert kept.poll.outcome.value.chosen is wanted
    assert kept.settlement == (Settlement(5) if wanted else Settlement(None, "poll.nothing-chosen"))


def test_publishers_hear_what_came_of_it_and_can_count_it() -> None:
    async def whole() -> list[Ended]:
        clock, store = ManualClock(), contested()
        told: list[Ended] = []
        async with (
            EmbeddedFabric(clock=clock) as fabric,
            publishers(fabric, clock, EVERYBODY[0], told),
            PollModerator(polls_in(store), PollChannel(fabric, clock)) as asking,
        ):
            await asking.ask("m", deadline(clock, 1))
            await until(lambda: len(told) == len(KEYS), clock)
        return told

    for each in asyncio.run(whole()):
        assert each.tally.chosen == each.question.value.option(ADD)


def test_a_moderator_that_is_ended_in_the_middle_goes_on() -> None:
    async def whole() -> Store:
        clock, store = ManualClock(), contested()
        async with EmbeddedFabric(clock=clock) as fabric:
            early: dict[SigningKey, Policy] = {K1: tightenings, K4: tightenings}
            late: dict[SigningKey, Policy] = {K2: tightenings}
            polls = polls_in(store)
            async with publishers(fabric, clock, early, []), PollModerator(polls, PollChannel(fabric, clock)) as asking:
                poll = await asking.ask("m", deadline(clock, 10))
                await until(lambda: votes(polls) == 2)
            # Nobody is there; somebody answers all the same, to the question that the topic keeps.
            async with publishers(fabric, clock, late, []):
                await settle(clock, 20)
            await settle(clock, 5 * MINUTE, step=30)
            polls = polls_in(store)
            async with PollModerator(polls, PollChannel(fabric, clock)) as asking:
                await until(lambda: votes(polls) == 3)
                await settle(clock, 5 * MINUTE, 10, asking)
                assert (await ended(asking, poll, clock)).settlement == Settlement(5)
        return store

    RuleBook.open(asyncio.run(whole()).ledger(NAME)).verify()


async def answer(fabric: Fabric, clock: ManualClock, policy: Policy) -> None:
    """Let K1 answer by a policy for some time."""
    told: list[object] = []
    whose = [MODERATOR.principal]
    async with Answering(
        PollChannel(fabric, clock), AutomaticVoter(K1, policy), whose, asked=lambda _, vote: told.append(vote)
    ):
        await until(lambda: told, clock)
        await settle(clock, 20)


@pytest.mark.parametrize(
    ("by_hand", "policies", "wanted"),
    [
        # What somebody cast by hand stays, whatever would be answered by itself.
        (Ballot(frozenset([FOLLOW])), [tightenings, refusals], ({FOLLOW}, 1)),
        (Ballot(), [tightenings], (set(), 1)),
        # What was answered by itself gives way to another policy, and stays under the same one.
        (None, [tightenings, refusals], (set(), 2)),
        (None, [tightenings, tightenings, refusals, refusals], (set(), 2)),
        (None, [refusals, tightenings, refusals], (set(), 3)),
    ],
)
def test_who_answers_again_contradicts_itself_never(
    by_hand: Ballot | None, policies: list[Policy], wanted: tuple[set[Strategy], int]
) -> None:
    async def whole() -> Poll:
        clock, polls = ManualClock(), polls_in(contested())
        async with EmbeddedFabric(clock=clock) as fabric, PollModerator(polls, PollChannel(fabric, clock)) as asking:
            poll = await asking.ask("m", deadline(clock, 10_000))
            if by_hand is not None:
                await send_vote(fabric, poll.question, K1, by_hand)
            for policy in policies:
                await answer(fabric, clock, policy)
            await until(lambda: any(vote.value.number == wanted[1] for vote in polls.kept[poll.id].poll.votes))
            return polls.kept[poll.id].poll

    poll = asyncio.run(whole())
    assert poll.tally().answers[P1] is VoterResponse.VOTED
    (vote,) = poll.votes
    assert (set(vote.value.approves), vote.value.number) == wanted
    assert vote.value.automatic is (by_hand is None)


def test_by_hand_the_same_vote_is_sent_once_and_takes_the_place_of_one_by_a_policy() -> None:
    async def whole() -> list[tuple[int, bool]]:
        clock, polls = ManualClock(), polls_in(contested())
        async with EmbeddedFabric(clock=clock) as fabric, PollModerator(polls, PollChannel(fabric, clock)) as asking:
            poll = await asking.ask("m", deadline(clock, 10))
            await answer(fabric, clock, refusals)
            sent = [await send_vote(fabric, poll.question, K1, Ballot(frozenset(said))) for said in ([], [], [ADD])]
            return [(each.value.number, each.value.automatic) for each in sent]

    assert asyncio.run(whole()) == [(2, False), (2, False), (3, False)]


def votes(polls: Polls) -> int:
    (kept,) = polls.kept.values()
    return len(kept.poll.votes)


def test_noise_on_the_topics_is_noted_and_of_no_effect() -> None:
    async def whole() -> list[str]:
        clock, polls = ManualClock(), polls_in(contested())
        noted: list[str] = []

        def note(error: PenstockError) -> None:
            noted.append(error.code)

        async with (
            EmbeddedFabric(clock=clock) as fabric,
            Answering(PollChannel(fabric, clock, note=note), AutomaticVoter(K1, tightenings), [MODERATOR.principal]),
            PollModerator(polls, PollChannel(fabric, clock, note=note)) as asking,
        ):
            poll = await asking.ask("m", deadline(clock, 1))
            await until(lambda: votes(polls) == 1)
            for topic, octets in noise(poll):
                async with await fabric.publisher(topic) as publisher:
                    await publisher.publish(octets, key=octets.hex()[-40:])
            await until(lambda: len(noted) == 5)
            await settle(clock, MINUTE, 5, asking)
            assert len((await ended(asking, poll, clock)).poll.votes) == 1
        return noted

    assert sorted(asyncio.run(whole())) == [
        "evolution.wrong-key",
        "poll.not-asked",
        "poll.not-moderator",
        "poll.unknown",
        "sexp.syntax",
    ]


def noise(poll: Poll) -> list[tuple[str, bytes]]:
    stranger = key(66)
    mine = sign_value(Vote(poll.id, stranger.principal, 1, frozenset([ADD])), stranger)
    forged = sign_value(Vote(poll.id, P4, 1, frozenset([ADD])), K4).to_bytes()
    asked = replace(poll.question.value, moderator=stranger.principal)
    return [
        (votes_topic(MODERATOR.principal), b"noise"),
        (votes_topic(MODERATOR.principal), mine.to_bytes()),
        (votes_topic(MODERATOR.principal), forged.replace(_octets(K4), _octets(stranger))),
        (votes_topic(MODERATOR.principal), sign_value(Vote(bytes(32), P4, 1), K4).to_bytes()),
        (polls_topic(MODERATOR.principal), sign_value(asked, stranger).to_bytes()),
    ]


def _octets(signer: SigningKey) -> bytes:
    return canonical(signer.public.to_sexp())


# --- on both fabrics ------------------------------------------------------------------------------------------------

Open = Callable[[ManualClock], Awaitable[Fabric]]


@pytest.fixture(params=["embedded", "nats"])
def opened(request: pytest.FixtureRequest) -> Open:
    async def embedded(clock: ManualClock) -> Fabric:
        return EmbeddedFabric(clock=clock)

    if request.param == "embedded":
        return embedded
    server: NatsServer = request.getfixturevalue("server")
    prefix = f"polls{next(_NUMBERS)}"

    async def nats(clock: ManualClock) -> Fabric:
        return await NatsFabric.connect(server.url, prefix=prefix, clock=clock)

    return nats


def test_a_poll_over_a_fabric(opened: Open) -> None:
    """Three answer by a policy, one by hand, and changes its mind; the moderator is started again in the middle."""

    async def whole() -> Kept:
        clock, store = ManualClock(), contested()
        told: list[Ended] = []
        policies: dict[SigningKey, Policy] = {K1: tightenings, K2: tightenings, K3: refusals}
        async with await opened(clock) as fabric, publishers(fabric, clock, policies, told):
            polls = polls_in(store)
            async with PollModerator(polls, PollChannel(fabric, clock)) as asking:
                poll = await asking.ask("m", deadline(clock, 2))
                await until(lambda: votes(polls) == 3)
            (asked,) = await open_questions(fabric, MODERATOR.principal, P4, clock)
            assert asked.digest == poll.id
            first = await send_vote(fabric, asked, K4, Ballot(frozenset(), frozenset([FOLLOW])))
            again = await send_vote(fabric, asked, K4, Ballot(frozenset([ADD])))
            assert (first.value.number, again.value.number) == (1, 2)
            assert vote_key(first.value) != vote_key(again.value)
            polls = polls_in(store)
            async with PollModerator(polls, PollChannel(fabric, clock)) as asking:
                await until(lambda: votes(polls) == 4)
                await settle(clock, 2 * MINUTE, 5, asking)
                kept = await ended(asking, poll, clock)
                await until(lambda: len(told) == 3)
        return kept

    kept = asyncio.run(whole())
    assert kept.settlement == Settlement(5)
    assert kept.poll.outcome is not None
    assert kept.poll.outcome.value.chosen is ADD
    assert set(kept.poll.tally().answers.values()) == {VoterResponse.VOTED}


def test_polls_outlive_the_server(server: NatsServer) -> None:
    async def whole() -> Kept:
        clock, polls = ManualClock(), polls_in(contested())
        prefix = f"polls{next(_NUMBERS)}"
        async with (
            await NatsFabric.connect(server.url, prefix=prefix, clock=clock, timeout=0.5) as fabric,
            PollModerator(polls, PollChannel(fabric, clock)) as asking,
        ):
            poll = await asking.ask("m", deadline(clock, 60))
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.start)
            async with publishers(fabric, clock, EVERYBODY[0], []):
                await until(lambda: votes(polls) == 4, clock)
            await settle(clock, 60 * MINUTE, 60, asking)
            return await ended(asking, poll, clock)

    assert asyncio.run(whole()).settlement == Settlement(5)
