"""Pauses between calls of a broker that does not answer."""

import pytest

from penstock.broker.wire.transports import Pauses


def waits(pauses: Pauses, now: float, number: int) -> list[float]:
    found: list[float] = []
    for _ in range(number):
        found.append(pauses.next(now))
        now += found[-1]
    return found


@pytest.mark.parametrize("spread", [b"\0\0", b"\x80\0", b"\xff\xff"])
def test_a_broker_that_was_there_is_called_often_for_some_time(spread: bytes) -> None:
    pauses = Pauses(lambda _number: spread)
    pauses.there(100.0)
    # So one that starts again within minutes is found within a second.
    assert max(waits(pauses, 100.0, 200)) < 0.7


def test_a_broker_that_was_never_there_is_called_less_and_less_often() -> None:
    found = waits(Pauses(lambda _number: b"\x80\0"), 100.0, 20)
    assert found == sorted(found)
    assert (found[0], found[-1]) == (0.1, 5.0)


def test_after_some_time_nobody_believes_that_it_is_starting_again() -> None:
    pauses = Pauses(lambda _number: b"\x80\0")
    pauses.there(0.0)
    waits(pauses, 1_000.0, 20)
    assert pauses.next(1_000.0) == 5.0
    pauses.there(1_010.0)
    assert pauses.next(1_010.0) == 0.1


def test_not_everybody_calls_at_the_same_moment() -> None:
    numbers = iter([b"\0\0", b"\xff\xff"])
    pauses = Pauses(lambda _number: next(numbers))
    assert 2 * pauses.next(0.0) < pauses.next(0.0)
