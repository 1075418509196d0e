"""Roles in a broker: they give rights, live subscriptions follow them, and they are unknown without their store."""

import asyncio
import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests.apps.acs.test_push import is_cut_off
from tests.apps.conftest import Shell
from tests.apps.node_kit import lay_out, node_file, running

from penstock.apps.node.load import RolesPlace
from penstock.apps.node.roles import BrokerRoles
from penstock.authority.role_book import RoleBook
from penstock.crypto import SigningKey
from penstock.errors import FailedError, MalformedError, PenstockError
from penstock.model.values import Scalar
from penstock.roles.engine import ActivateRole, OpenSession, RoleFounding, SetFact
from penstock.store.ledgers.urls import open_store

POLICY = """\
role analyst;
fact assigned(who: principal);
predicate modest(speed: integer, most: integer);
activate analyst if fact assigned(principal) *;
allow analyst to subscribe self/org.london.Sighting(speed) matching modest(.speed, 99);
"""
ROLES = """
guard_results = "east.guards"
[guards]
modest = "tests.apps.node.test_roles:modest"
[roles.london]
store = "sqlite:london.db"
"""
LONDON, READER = SigningKey(b"l" * 32), SigningKey(b"r" * 32)


def modest(values: Mapping[str, Scalar], _environment: Mapping[str, Scalar]) -> bool:
    speed, most = values["speed"], values["most"]
    return isinstance(speed, int) and isinstance(most, int) and speed <= most


def test_a_live_subscription_follows_a_role_in_the_broker(penstock: Shell) -> None:
    lay_out(penstock)
    (penstock.folder / "certs" / "subscribe.cert").unlink()
    (penstock.folder / "london.roles").write_text(POLICY)
    store = ("--key", "london.key", "--store", f"sqlite:{penstock.folder}/london.db")
    penstock.ok("role", "init", "london.roles", "--domain", "london", *store)
    penstock.ok("role", "fact", "assigned", "reader", *store)
    penstock.ok("role", "activate", "analyst", "--as", "reader", *store)
    with running(penstock, node_file(penstock, "east", ROLES)) as east:
        end = ("role", "fact", "assigned", "reader", "--set", "false", *store)
        is_cut_off(penstock, east, "certs/reader.cert", lambda: penstock.ok(*end))
        assert east.stop() == 0
    lines = (penstock.folder / "east.guards").read_text().splitlines()
    found = [json.loads(line) for line in lines]
    assert {one["held"] for one in found} == {True}
    assert all(one["guard"].startswith("modest(most, speed)#") for one in found)
    assert len({one["event"] for one in found}) == len(found)


@pytest.fixture
def place(tmp_path: Path) -> RolesPlace:
    url = f"sqlite:{tmp_path / 'roles.db'}"
    with open_store(url, create=True) as store:
        book = RoleBook.create(store.ledger("roles"), RoleFounding(LONDON.principal, POLICY), now(), signer=LONDON)
        book.change(SetFact("assigned", True, (str(READER.principal),)), LONDON.principal, now())
        book.change(OpenSession("s", READER.principal), READER.principal, now())
    return RolesPlace(LONDON.principal, url, "roles", frozenset({LONDON.principal}), 0.3)


def now() -> datetime:
    return datetime.now(UTC)


def test_a_broker_reads_the_roles_of_the_domain_that_its_file_names(place: RolesPlace) -> None:
    with pytest.raises(MalformedError) as caught:
        BrokerRoles(RolesPlace(READER.principal, place.store, "roles", place.owners, 30), now)
    assert caught.value.code == "node.roles"


def test_only_those_whose_privileges_have_changed_are_named(place: RolesPlace) -> None:
    seen: list[object] = []

    async def run() -> None:
        roles = BrokerRoles(place, now)
        following = asyncio.create_task(roles.follow(seen.append, lambda _: None))
        with open_store(place.store) as store:
            book = RoleBook(store.ledger("roles"), LONDON)
            book.change(ActivateRole("s", "analyst"), READER.principal, now())
            await until(lambda: roles.periods(READER.principal))
            book.change(SetFact("assigned", None, (str(READER.principal),)), LONDON.principal, now())
            await until(lambda: not roles.periods(READER.principal))
        following.cancel()
        roles.close()

    asyncio.run(run())
    assert seen == [frozenset({READER.principal})] * 2


def test_roles_are_unknown_while_their_store_cannot_be_read(place: RolesPlace) -> None:
    seen: list[object] = []
    problems: list[PenstockError] = []

    async def run() -> None:
        with open_store(place.store) as store:
            RoleBook(store.ledger("roles"), LONDON).change(ActivateRole("s", "analyst"), READER.principal, now())
        roles = BrokerRoles(place, now)
        unread, before = roles.book.unread, roles.version(READER.principal)

        def broken() -> list[object]:
            raise FailedError("store.failed", "the store is gone")

        roles.book.unread = broken  # type: ignore[method-assign,assignment]  # as when a server is down
        following = asyncio.create_task(roles.follow(seen.append, problems.append))
        assert len(roles.periods(READER.principal)) == 1
        await until(lambda: not roles.periods(READER.principal))
        assert roles.version(READER.principal) != before
        roles.book.unread = unread  # type: ignore[method-assign]
        await until(lambda: roles.periods(READER.principal))
        following.cancel()
        roles.close()

    asyncio.run(run())
    assert seen == [frozenset({READER.principal})] * 2
    assert [one.code for one in problems] == ["store.failed"]


async def until(holds: Callable[[], object]) -> None:
    async with asyncio.timeout(30):
        while not holds():
            await asyncio.sleep(0.005)
