"""Facts that a domain file names: they reach the role book, and the capabilities that follow from it."""

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from tests.apps.acs.kit import TYPES, Desk
from tests.authority.domain.kit import PITO, SMITH, memory
from tests.guard.london import NOW, V8516
from tests.guard.test_roles import POLICY, TRACK
from tests.trust.kit import refused

import penstock
from penstock.apps.acs.config import LoadedDomain, read_domain_file
from penstock.apps.acs.domain_facts import DomainFacts
from penstock.authority.role_book import RoleBook
from penstock.guard import Effect, EventRequest, decide
from penstock.model.principals import Petnames
from penstock.roles.engine import ActivateRole, Appoint, OpenSession, RoleFounding
from penstock.testing import network
from penstock.trust.capabilities import Right
from penstock.trust.credentials import Credentials

WHO = str(SMITH.principal)
START = 'name = "grid"\nkey = "a"\nlisten = "127.0.0.1:0"\nstore = "sqlite:a"\nroles = "roles"\n'
SQL = '[facts.assigned]\nsql = "sqlite:duty.db"\nquery = "SELECT who FROM duty"\nevery = 0.02\nmax_age = 30\n'


class Scene:
    """A service with roles, and the facts that its file names."""

    def __init__(self, text: str, folder: Path, feeds: dict[str, Credentials] | None = None) -> None:
        self.desk = Desk()
        self.book = RoleBook.create(memory(), RoleFounding(PITO.principal, POLICY + TRACK), NOW)
        self.service = self.desk.service
        self.service.settings = replace(self.service.settings, roles=self.book, types=TYPES)
        self.lines: list[str] = []
        path = str(folder / "domain.toml")
        file = read_domain_file(START + text)
        loaded = LoadedDomain(path, file, Petnames(), (), TYPES, Credentials(), None, feeds or {})
        self.facts = DomainFacts(loaded, self.book, self.service, self.lines.append)

    def assigned(self) -> object:
        return self.book.engine.fact("assigned", (WHO,))

    def may_track(self) -> bool:
        request = EventRequest(SMITH.principal, Right.SUBSCRIBE, V8516, NOW)
        return decide(request, [self.service.domain.state.authority()]).effect is Effect.PERMIT


async def until(holds: Callable[[], object]) -> None:
    while not holds():
        await asyncio.sleep(0.002)


def fill(path: Path, *rows: str) -> None:
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("CREATE TABLE IF NOT EXISTS duty (who TEXT)")
        database.execute("DELETE FROM duty")
        database.executemany("INSERT INTO duty VALUES (?)", [(row,) for row in rows])


def test_a_row_that_goes_ends_the_role_and_its_capability(tmp_path: Path) -> None:
    fill(tmp_path / "duty.db", WHO)
    scene = Scene(SQL, tmp_path)

    async def run() -> None:
        async with scene.facts:
            await until(scene.assigned)
            for change in (
                Appoint("order", SMITH.principal, PITO.principal, ("AE05 XYZ",)),
                OpenSession("s", SMITH.principal),
                ActivateRole("s", "tracker", (None,)),
            ):
                scene.book.change(change, PITO.principal, NOW)
            scene.service.follow_roles()
            assert scene.may_track()
            fill(tmp_path / "duty.db")
            await until(lambda: not scene.may_track())
            assert scene.assigned() is False

    asyncio.run(asyncio.wait_for(run(), 60))
    assert scene.lines == []
    # Every process that reads the ledger sees the same.
    assert scene.book.engine.active(SMITH.principal) == ()


def test_a_source_that_fails_is_noted_once(tmp_path: Path) -> None:
    scene = Scene(SQL, tmp_path)

    async def run() -> None:
        async with scene.facts:
            await until(lambda: scene.lines)
            await asyncio.sleep(0.1)
            assert len(scene.lines) == 1
            fill(tmp_path / "duty.db", WHO)
            await until(scene.assigned)

    asyncio.run(asyncio.wait_for(run(), 60))
    assert "fact assigned" in scene.lines[0]
    assert "fact.source" in scene.lines[0]


@penstock.event("grid/org.grid.Badge")
@dataclass
class Badge:
    """Somebody came or went."""

    who: str
    present: bool


def test_events_of_the_network_are_facts(tmp_path: Path) -> None:
    async def run() -> None:
        async with network(Badge) as net:
            net.grant("door", "publish", Badge)
            net.grant("acs", "subscribe", Badge)
            found = net.environment("acs", tmp_path)
            text = (
                f'[facts.assigned]\nevents = "{net.type(Badge).name}"\nbroker = "{net.url}"\nnetwork = "{net.name}"\n'
                f'key = "{found["PENSTOCK_KEY"]}"\narguments = ["who"]\nvalue = "present"\nmax_age = 3600\n'
            )
            scene = Scene(text, tmp_path, {"assigned": Credentials()})
            async with scene.facts, net.connect("door") as door:
                await net.wait_for_subscriber(Badge)
                await door.publish(Badge(WHO, present=True))
                await until(scene.assigned)
                await door.publish(Badge(WHO, present=False))
                await until(lambda: scene.assigned() is False)

    asyncio.run(asyncio.wait_for(run(), 60))


# The file.


def facts(text: str) -> Any:
    return read_domain_file(START + text).facts


def test_the_three_kinds_are_read() -> None:
    assert facts(SQL)["assigned"].every == 0.02
    assert facts('[facts.x]\nurl = "https://h/x"\ntoken_file = "t"')["x"].url == "https://h/x"
    text = '[facts.x]\nevents = "a/T"\nbroker = "penstock://h:1"\nnetwork = "a/n"\nkey = "k"\ncredential = ["c"]'
    assert facts(text)["x"].credential == ("c",)
    assert "hush" not in repr(facts('[facts.x]\nsql = "postgresql://u:hush@h/d"\nquery = "q"'))


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("[facts.x]", "acs.file-missing"),
        ('[facts.x]\nsql = "sqlite:a"', "acs.file-missing"),
        ('[facts.x]\nsql = "sqlite:a"\nquery = "q"\nurl = "https://h/"', "acs.file-missing"),
        ('[facts.x]\nsql = "sqlite:a"\nquery = "q"\nkey = "k"', "acs.file-unknown-key"),
        ('[facts.x]\nurl = "https://h/"\nevery = true', "acs.file-value"),
        ('[facts.x]\nurl = "https://h/"\nevery = "10s"', "acs.file-value"),
        ('[facts.x]\nevents = "a/T"\nbroker = "b"\nnetwork = "n"\nkey = "k"\narguments = "a"', "acs.file-value"),
        ("facts = 1", "acs.file-value"),
    ],
)
def test_mistakes_in_the_file(text: str, code: str) -> None:
    with refused(code):
        facts(text)


def test_facts_need_roles() -> None:
    with refused("acs.file-missing"):
        read_domain_file(START.replace('roles = "roles"\n', "") + SQL)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (SQL.replace("assigned", "asigned"), "acs.file-fact"),
        (SQL.replace("sqlite:duty.db", "mysql://h/d"), "fact.url"),
        (SQL.replace("max_age = 30", "max_age = 0.01"), "fact.times"),
        ('[facts.assigned]\nurl = "https://h/"\ntoken_file = "none"', "file.missing"),
    ],
)
def test_sources_that_do_not_fit_the_policy(text: str, code: str, tmp_path: Path) -> None:
    with refused(code):
        Scene(text, tmp_path)
