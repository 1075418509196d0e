"""Rising numbers as runs: read back, in one form, within bounds."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.limits import BrokerLimits
from penstock.broker.sealing.blocks import read_runs, write_runs
from penstock.errors import MalformedError

MOST = BrokerLimits().route_block_events


@given(st.sets(st.integers(0, 60), min_size=1))
def test_rising_numbers_are_read_back(found: set[int]) -> None:
    numbers = tuple(sorted(found))
    runs = write_runs(numbers)
    assert read_runs(runs, numbers[-1]) == numbers
    with pytest.raises(MalformedError):
        read_runs(runs, numbers[-1] - 1)


def test_what_follows_one_another_is_one_run() -> None:
    assert write_runs(range(7, 39)) == [7, 32]
    assert write_runs((1, 2, 4, 9, 10)) == [1, 2, 4, 1, 9, 2]
    assert read_runs([0, MOST], MOST - 1) == tuple(range(MOST))


@pytest.mark.parametrize(
    "runs",
    [
        [],
        [1],
        [1, 0],
        [-1, 1],
        [-1, 3],
        [1, -1],
        [True, 1],
        [1, True],
        [1, 1.0],
        [1, None],
        [3, 1, 2, 1],
        [1, 1, 1, 1],
        [1, 1, 2, 1],
        [1, 2, 2, 2],
        [1, 1, 3],
        [5, 3, 20, -4],
        [0, MOST + 1],
        [0, MOST, MOST + 1, 1],
        [0, 1 << 62],
        [1 << 20, 1],
    ],
)
def test_what_are_no_runs_is_refused(runs: list[Any]) -> None:
    with pytest.raises(MalformedError) as caught:
        read_runs(runs, (1 << 20) - 1)
    assert caught.value.code == "message.malformed"
