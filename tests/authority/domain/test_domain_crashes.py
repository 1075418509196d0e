"""kill -9 while many change one domain: what was acknowledged is there, nothing is there by half."""

import random
from collections import Counter
from pathlib import Path
from typing import ClassVar

import pytest
from tests.authority.domain.domain_writer import DOMAIN, LEDGER, fingerprint
from tests.store.ledgers.test_crashes import Crash

from penstock.authority.domain.domain_ledger import DomainLedger
from penstock.store.ledgers.urls import open_store
from penstock.testing.postgres import PostgresServer


class DomainCrash(Crash):
    """Services of one domain."""

    program: ClassVar = Path(__file__).with_name("domain_writer.py")

    def verify(self) -> int:
        """Check all that must hold after a crash; return how many changes there are."""
        told = self.acknowledged()
        with open_store(self.url) as store:
            domain = DomainLedger(store.ledger(LEDGER), DOMAIN)
            domain.verify()
            log = {one.number: one.change for one in domain.log()}
        assert {number: fingerprint(log[number]) for number in told} == told
        # Nothing is half done: who is added has its certificate, and who is removed has none that counts.
        kinds = Counter(change.change.HEAD for change in log.values())
        assert kinds[b"issue"] >= kinds[b"add-member"]
        state = domain.state
        held = {one.statement.subject for one in state.credentials}
        assert state.members.keys() <= held
        assert held <= state.members.keys()
        return len(log)


class LongDomainCrash(DomainCrash):
    """Services that are killed many times."""

    patience: ClassVar = 250.0


def test_a_domain_in_sqlite_survives_its_services(tmp_path: Path) -> None:
    crash = DomainCrash(f"sqlite:{tmp_path}/domain.db", tmp_path)
    for acknowledged in (10, 25):
        with crash.writers():
            crash.wait(acknowledged)
        assert crash.verify() >= acknowledged


def test_a_domain_in_postgresql_survives_its_services_and_its_server(postgres: PostgresServer, tmp_path: Path) -> None:
    crash = DomainCrash(postgres.url(postgres.new_database()), tmp_path)
    with crash.writers():
        crash.wait(10)
        postgres.kill()
        postgres.start()
        crash.wait(30)
    assert crash.verify() >= 30


def _killed_often(crash: Crash) -> None:
    """Kill the services at 50 random points of a thousand changes."""
    points = sorted(random.Random(22).sample(range(5, 1_000), 50))  # noqa: S311  # the same points in each run
    for point in points:
        with crash.writers():
            crash.wait(point)
        assert crash.verify() >= point
    with crash.writers(1_100) as writers:
        assert writers.wait(crash.patience) == 0
    assert crash.verify() >= 1_100


@pytest.mark.long
def test_fifty_crashes_in_sqlite(tmp_path: Path) -> None:
    _killed_often(LongDomainCrash(f"sqlite:{tmp_path}/domain.db", tmp_path))


@pytest.mark.long
def test_fifty_crashes_in_postgresql(postgres: PostgresServer, tmp_path: Path) -> None:
    _killed_often(LongDomainCrash(postgres.url(postgres.new_database()), tmp_path))
