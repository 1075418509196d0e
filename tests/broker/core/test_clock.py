"""The time of a broker, whatever somebody does to the clock of its machine."""

from datetime import UTC, datetime, timedelta

import pytest
from tests.broker.node_kit import Broker, client_of, run, settings, until
from tests.broker.sports import AGENCY, NEWS, PDA, REPORTER, grant

from penstock.broker.core.clock import PATIENCE, SteadyClock
from penstock.guard import PublicationRate
from penstock.trust.capabilities import Right
from penstock.trust.policy_state import PolicyAuthor
from penstock.trust.validity import Validity

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
HOURS = timedelta(hours=2)
SECOND = timedelta(seconds=1)


class Machine:
    """A machine whose wall clock somebody sets, and whose other clock nobody does."""

    def __init__(self) -> None:
        self.wall, self.steady = NOON, 1_000.0
        self.clock = SteadyClock(lambda: self.wall, lambda: self.steady)

    def pass_time(self, seconds: float, rate: float = 1.0) -> datetime:
        """Let time pass, with a look at the clock each half second."""
        for _ in range(int(2 * seconds)):
            self.steady += 0.5
            self.wall += timedelta(seconds=0.5 * rate)
            self.clock()
        return self.clock()

    def step(self, by: timedelta) -> datetime:
        self.wall += by
        return self.clock()


@pytest.fixture
def machine() -> Machine:
    return Machine()


def test_it_is_the_time_of_the_wall_clock(machine: Machine) -> None:
    assert machine.clock() == NOON
    assert machine.pass_time(100) == NOON + 100 * SECOND


def test_a_jump_forward_is_taken_back_as_soon_as_the_clock_is_corrected(machine: Machine) -> None:
    machine.pass_time(10)
    assert machine.step(HOURS) == NOON + HOURS + 10 * SECOND
    machine.pass_time(600)
    assert machine.step(-HOURS) == NOON + 610 * SECOND
    assert machine.pass_time(5) == NOON + 615 * SECOND


def test_when_it_was_made_is_corrected_with_the_wall_clock(machine: Machine) -> None:
    machine.pass_time(10)
    assert machine.clock.began == NOON
    machine.step(-HOURS)
    assert machine.clock.began == NOON
    machine.pass_time(PATIENCE + 1)
    assert machine.clock.began == NOON - HOURS
    machine.step(HOURS)
    machine.pass_time(10)
    assert machine.clock.began == NOON


@pytest.mark.parametrize("missed", [timedelta(milliseconds=-900), timedelta(milliseconds=900)])
def test_a_correction_need_not_be_exact(machine: Machine, missed: timedelta) -> None:
    machine.step(HOURS)
    assert machine.step(missed - HOURS) == NOON + missed


def test_a_jump_is_corrected_in_parts(machine: Machine) -> None:
    machine.step(HOURS)
    assert machine.step(-HOURS / 2) == NOON + HOURS / 2
    assert machine.step(-HOURS / 2) == NOON


def test_a_short_step_back_revives_nothing(machine: Machine) -> None:
    machine.pass_time(10)
    assert machine.step(-HOURS) == NOON + 10 * SECOND
    assert machine.pass_time(PATIENCE / 2) >= NOON + (10 + PATIENCE / 2) * SECOND - SECOND
    assert machine.step(HOURS) >= NOON + (10 + PATIENCE / 2) * SECOND - SECOND
    # There is nothing left of it that could be taken back immediately.
    before = machine.clock()
    assert machine.step(-HOURS) == before


def test_a_clock_that_was_wrong_from_the_start_is_followed_once_it_stays_corrected(machine: Machine) -> None:
    machine.pass_time(10)
    machine.step(-HOURS)
    assert machine.pass_time(PATIENCE - 1) > NOON
    assert machine.pass_time(2) == NOON - HOURS + (PATIENCE + 11) * SECOND


def test_more_than_the_jump_is_taken_back_only_after_a_while(machine: Machine) -> None:
    machine.step(HOURS)
    assert machine.step(-2 * HOURS) == NOON
    assert machine.pass_time(PATIENCE + 1) == NOON - HOURS + (PATIENCE + 1) * SECOND


def test_steps_back_that_follow_each_other_are_each_waited_for(machine: Machine) -> None:
    for _ in range(5):
        machine.step(-HOURS)
        assert machine.pass_time(PATIENCE / 2) >= NOON
    assert machine.pass_time(PATIENCE) < NOON


@pytest.mark.parametrize("rate", [0.99, 1.01])
def test_a_clock_that_runs_slowly_or_fast_is_followed(machine: Machine, rate: float) -> None:
    machine.pass_time(1_000, rate)
    assert abs(machine.clock() - (NOON + 1_000 * rate * SECOND)) < SECOND


def test_small_steps_back_are_waited_out(machine: Machine) -> None:
    machine.pass_time(10)
    before = machine.clock()
    assert machine.step(-SECOND / 2) == before
    assert machine.pass_time(2) == before + 1.5 * SECOND


def test_many_small_steps_back_are_one_step_back(machine: Machine) -> None:
    for _ in range(100):
        assert machine.step(-SECOND / 2) >= NOON
    assert machine.pass_time(1) > NOON
    assert machine.pass_time(PATIENCE) < NOON + PATIENCE * SECOND


def test_a_machine_that_slept_has_the_time_of_its_wall_clock(machine: Machine) -> None:
    machine.pass_time(10)
    # The other clock stood still meanwhile.
    assert machine.step(8 * HOURS) == NOON + 8 * HOURS + 10 * SECOND
    assert machine.pass_time(100) == NOON + 8 * HOURS + 110 * SECOND


def test_a_wall_clock_that_stands_still_is_followed(machine: Machine) -> None:
    machine.steady += 1_000
    assert machine.clock() == NOON


def test_a_jump_is_forgotten_at_last(machine: Machine) -> None:
    machine.step(HOURS)
    machine.steady += 2 * 86_400
    machine.wall += timedelta(days=2)
    before = machine.clock()
    assert machine.step(-HOURS) == before


# At a node.


def test_a_broker_goes_on_by_itself_when_its_clock_is_corrected() -> None:
    ahead = timedelta()

    def clock() -> datetime:
        return datetime.now(UTC) + ahead

    ends = Validity(not_after=(datetime.now(UTC) + HOURS / 2).strftime("%Y-%m-%d_%H:%M:%S").encode())
    rights = grant(PDA, NEWS, Right.SUBSCRIBE, valid=ends), grant(REPORTER, NEWS, Right.PUBLISH, valid=ends)

    async def main() -> None:
        nonlocal ahead
        async with (
            Broker(settings(*rights), clock=clock) as node,
            client_of(node, PDA) as reader,
            client_of(node, REPORTER) as writer,
        ):

            def states() -> set[str]:
                return {str(one["state"]) for one in node.policies.status().values() if isinstance(one, dict)}

            await writer.evolve(PolicyAuthor(AGENCY).stamp(datetime.now(UTC), 600_000).to_bytes())
            news, feed = await reader.subscribe(NEWS.name), await writer.advertise(NEWS.name)
            await feed.publish(headline="before")
            ahead = HOURS
            await until(lambda: states() == {"silent"})
            ahead = timedelta()
            # Neither a restart nor two hours are needed.
            await until(lambda: states() == {"fresh"})
            await feed.publish(headline="after")
            assert [(await news.next(30))["headline"] for _ in range(2)] == ["before", "after"]
            assert "clock.corrected" in node.codes

    run(main())


def test_publications_of_hours_to_come_do_not_count() -> None:
    rate = PublicationRate()
    rate.note(NOON + HOURS, 7)
    assert rate.at(NOON + HOURS) == 7
    assert rate.at(NOON) == 0
    rate.note(NOON, 2)
    assert rate.at(NOON) == 2
