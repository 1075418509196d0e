"""Attacks on brokers in a line, over TLS."""

import pytest
from tests.network.hostile.attacker import LINKS as ATTACKS
from tests.network.hostile.bounds import LINKS
from tests.network.hostile.network_kit import Stage, parameters


@pytest.mark.parametrize("attack", parameters(LINKS))
def test_honest_parties_lose_no_more_than_the_bounds_say(line: Stage, attack: str) -> None:
    line.run(attack, LINKS[attack])


def test_each_attack_has_bounds() -> None:
    assert LINKS.keys() == ATTACKS.keys()
