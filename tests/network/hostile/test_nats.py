"""Attacks on brokers that have a NATS server between them, by another client of that server."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from tests.network.hostile.bounds import NATS
from tests.network.hostile.litter import ATTACKS
from tests.network.hostile.network_kit import Stage, parameters

from penstock.testing.nats import NatsServer


@pytest.fixture(scope="module", params=["hostile_nats"])
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with ExitStack() as servers:
        # An attack that spoils a network may have spoiled the server as well.
        made = Stage(lambda: tmp_path_factory.mktemp("nats"), lambda: servers.enter_context(NatsServer()))
        yield made
        made.close()


@pytest.mark.parametrize("attack", parameters(NATS))
def test_honest_parties_lose_no_more_than_the_bounds_say(stage: Stage, attack: str) -> None:
    stage.run(attack, NATS[attack])


def test_each_attack_has_bounds() -> None:
    assert NATS.keys() == ATTACKS.keys()
