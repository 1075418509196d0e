"""Attacks on brokers in a line, over TLS."""

from collections.abc import Iterator

import pytest
from tests.network.hostile.attacker import LINKS as ATTACKS
from tests.network.hostile.bounds import LINKS
from tests.network.hostile.network_kit import Stage, parameters


@pytest.fixture(scope="module", params=["hostile_links"])
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    made = Stage(lambda: tmp_path_factory.mktemp("line"))
    yield made
    made.close()


@pytest.mark.parametrize("attack", parameters(LINKS))
def test_honest_parties_lose_no_more_than_the_bounds_say(stage: Stage, attack: str) -> None:
    stage.run(attack, LINKS[attack])


def test_each_attack_has_bounds() -> None:
    assert LINKS.keys() == ATTACKS.keys()
