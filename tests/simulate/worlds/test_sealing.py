"""A world of sealed events: no broker opens what was sealed before it joined or after it left."""

from collections import Counter

import pytest
from tests.simulate.worlds.test_brokers import run

from penstock.simulate.checkers import check
from penstock.simulate.worlds.sealing import SealingWorld


@pytest.mark.long
def test_brokers_come_and_go_while_keys_change() -> None:
    simulation = run(SealingWorld({}), 3, 60)
    assert check(simulation.log) == []
    kinds = Counter(entry.kind for entry in simulation.log)
    assert min(kinds["opened"], kinds["sealed"], kinds["left"]) > 5
    assert simulation.messages > 1_000


@pytest.mark.long
@pytest.mark.parametrize("seed", range(20))
def test_keys_change_while_brokers_crash_and_links_fail(seed: int) -> None:
    assert check(run(SealingWorld({}), seed).log) == []
