"""Work with a NATS server is tried again with longer and longer pauses, as long as what went wrong may pass."""

import asyncio
from itertools import islice

import pytest

from penstock.fabric.nats_api import doubling, is_refusal, retried


def test_pauses_double_up_to_the_longest() -> None:
    assert [*islice(doubling(0.1, 0.5), 5)] == [0.1, 0.2, 0.4, 0.5, 0.5]


@pytest.mark.parametrize(
    ("failures", "pauses", "done", "tries"),
    [
        ([], [], True, 1),
        ([OSError(), TimeoutError()], [0.0] * 2, True, 3),
        ([OSError(), OSError()], [0.0], False, 2),
        ([OSError(), ValueError()], [0.0] * 5, False, 2),
    ],
)
def test_work_is_repeated_as_long_as_it_may_help(
    failures: list[Exception], pauses: list[float], done: bool, tries: int
) -> None:
    left, count = [*failures], 0

    async def work() -> str:
        nonlocal count
        count += 1
        if left:
            raise left.pop(0)
        return "done"

    async def run() -> str:
        return await retried(work, iter(pauses), lambda error: isinstance(error, OSError))

    if done:
        assert asyncio.run(run()) == "done"
    else:
        with pytest.raises(type(failures[-1])):
            asyncio.run(run())
    assert count == tries


def test_a_refusal_is_known_by_what_the_server_says() -> None:
    assert is_refusal(ConnectionError("Authorization Violation"), "")
    assert is_refusal(TimeoutError(), "nats: permissions violation for publish")
    assert not is_refusal(TimeoutError("connection refused"), "")
