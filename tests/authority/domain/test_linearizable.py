"""Two services on one store: the history of a member is linearizable, and the checker finds a planted fault."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests.authority.domain.domain_writer import DOMAIN, LEDGER
from tests.authority.domain.linearizable import ADD, LOOK, REMOVE, Call, linearizable, step

from penstock.authority.domain.domain_changes import AddMember, MemberKind, RemoveMember
from penstock.authority.domain.domain_ledger import DomainLedger
from penstock.authority.domain.domain_state import DomainRequest, Operation
from penstock.crypto import SigningKey
from penstock.errors import RefusedError
from penstock.store.ledgers.urls import open_store
from penstock.testing.postgres import PostgresServer

MEMBER = SigningKey(bytes(30) + b"me").principal
WORDS = (ADD, LOOK, REMOVE, LOOK, LOOK)
OPERATIONS: dict[str, Operation] = {
    ADD: AddMember(MEMBER, MemberKind.CLIENT, "me"),
    REMOVE: RemoveMember(MEMBER),
}

Look = Callable[[DomainLedger], bool]


def newest(domain: DomainLedger) -> bool:
    return MEMBER in domain.refresh().members


def stale(domain: DomainLedger) -> bool:
    """Look without reading what others have changed: the planted fault."""
    return MEMBER in domain.state.members


def history(url: str, look: Look, calls: int = 60) -> list[Call]:
    """Let two services, with two callers each, add, remove and look at one member; return what they saw."""
    began = time.monotonic()

    def caller(number: int) -> list[Call]:
        found: list[Call] = []
        with open_store(url) as store:
            domain = DomainLedger.create(store.ledger(LEDGER), "crash", DOMAIN, datetime.now(UTC))
            for count in range(calls // 4):
                what = WORDS[(number + count) % len(WORDS)]
                begin = time.monotonic() - began
                answer = ask(domain, what, look)
                found.append(Call(begin, time.monotonic() - began, what, answer))
        return found

    with ThreadPoolExecutor(4) as pool:
        return [call for found in pool.map(caller, range(4)) for call in found]


def ask(domain: DomainLedger, what: str, look: Look) -> bool:
    if what == LOOK:
        return look(domain)
    try:
        domain.ask(DomainRequest(DOMAIN.principal, OPERATIONS[what]), datetime.now(UTC))
    except RefusedError as error:
        if error.code not in ("acs.member-exists", "acs.unknown-member"):
            raise
        return False
    return True


def test_sqlite(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path}/domain.db"
    open_store(url, create=True).close()
    assert linearizable(history(url, newest), False, step)


def test_postgresql(postgres: PostgresServer) -> None:
    url = postgres.url(postgres.new_database())
    open_store(url, create=True).close()
    assert linearizable(history(url, newest), False, step)


def test_the_checker_finds_a_service_that_answers_from_an_old_state(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path}/domain.db"
    with open_store(url, create=True) as store, open_store(url) as other:
        one, two = (
            DomainLedger.create(place.ledger(LEDGER), "crash", DOMAIN, datetime.now(UTC)) for place in (store, other)
        )
        calls = []
        for moment, (domain, what) in enumerate([(one, ADD), (two, LOOK), (two, REMOVE), (one, LOOK)]):
            calls.append(Call(moment, moment + 0.5, what, ask(domain, what, stale)))
    assert not linearizable(calls, False, step)


@pytest.mark.parametrize(
    ("answers", "holds"),
    [((True, True), True), ((True, False), True), ((False, True), False), ((False, False), False)],
)
def test_the_checker_knows_what_overlaps(answers: tuple[bool, bool], holds: bool) -> None:
    add, look = answers
    assert linearizable([Call(0, 2, ADD, add), Call(1, 3, LOOK, look)], False, step) is holds


def test_the_checker_respects_the_order_of_calls_that_do_not_overlap() -> None:
    assert not linearizable([Call(0, 1, ADD, True), Call(2, 3, LOOK, False)], False, step)
    assert linearizable([Call(0, 1, ADD, True), Call(2, 3, REMOVE, True), Call(4, 5, LOOK, False)], False, step)
