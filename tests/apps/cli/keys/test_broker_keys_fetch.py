"""`penstock sealing fetch` gets all that a manager has kept, wherever that begins, some at a time."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from tests.pipeline.sealed_kit import CAR, PLATE, SPEED
from tests.trust.kit import refused

from penstock.apps.cli.keys.broker_keys import _Fetching, _Wanted
from penstock.crypto.seal_keys import KeyRing
from penstock.crypto.wrapping import Secret
from penstock.errors import RefusedError
from penstock.model.types import EventType
from penstock.trust.key_statements import KeyGroup

MOST = 4


@dataclass
class Manager:
    """Gives the first of the epochs that it has kept, and a broker's own keys besides, as `Client.fetch_keys` does."""

    kept: range
    live: tuple[int, ...] = ()
    asked: list[tuple[int, int]] = field(default_factory=list)

    async def type(self, _source: object) -> EventType:
        return CAR

    async def fetch_keys(self, _group: KeyGroup, first: int, last: int) -> Mapping[int, Secret]:
        self.asked.append((first, last))
        found = [epoch for epoch in self.kept if first <= epoch <= last][:MOST]
        if not found and not self.live:
            raise RefusedError("keys.no-history", "none of these epochs is over and kept")
        return {epoch: Secret(epoch.to_bytes(32, "big")) for epoch in (*found, *self.live)}


def fetch(manager: Manager, first: int = 1, last: int | None = None) -> set[int]:
    ring = KeyRing()
    fetching = _Fetching(manager, ring)  # type: ignore[arg-type]  # as much of a client as is asked
    kept: dict[str, Any] = asyncio.run(fetching.fetch(_Wanted("x", ("plate",), first, last))).epochs
    held = {epoch for scope, epoch, _ in ring.items() if scope == PLATE}
    assert set(kept.get("plate", ())) == held
    assert not any(scope == SPEED for scope, _, _ in ring.items())
    return held


@pytest.mark.parametrize("begin", [1, 2, 5_000])
@pytest.mark.parametrize("count", [1, MOST, MOST + 1, 3 * MOST])
def test_forgotten_epochs_are_passed_over(begin: int, count: int) -> None:
    manager = Manager(range(begin, begin + count))
    assert fetch(manager) == set(manager.kept)
    assert len(manager.asked) <= 2 * (-(-count // MOST) + 1), "so many questions, not one for each range of numbers"


def test_what_is_not_asked_for_is_not_kept() -> None:
    assert fetch(Manager(range(1, 20)), 3, 12) == set(range(3, 13))
    assert fetch(Manager(range(1, 5), live=(20, 21)), 3, 20) == {3, 4, 20}


def test_keys_of_now_do_not_hide_those_between() -> None:
    assert fetch(Manager(range(3, 20), live=(20, 21))) == set(range(3, 22))
    assert fetch(Manager(range(0), live=(20, 21))) == {20, 21}


def test_where_nothing_is_kept_the_reason_is_told() -> None:
    fetching = _Fetching(Manager(range(0)), KeyRing())  # type: ignore[arg-type]  # as above
    assert set(asyncio.run(fetching.fetch(_Wanted("x", (), 1, None))).refused.values()) == {"keys.no-history"}
    with refused("keys.no-history"):
        asyncio.run(fetching._epochs(KeyGroup(CAR.key), _Wanted("x", (), 1, None)))
