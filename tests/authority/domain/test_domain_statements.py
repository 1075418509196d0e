"""Validity statements of a domain: verifiers that follow them accept what the domain has not revoked."""

from datetime import timedelta
from itertools import pairwise

import pytest
from tests.authority.domain.kit import HOUR, MET, NOW, PITO, SMITH, STRANGER, SUBSCRIBE, Office, memory
from tests.guard.london import V8516
from tests.trust.kit import refused

from penstock.authority.domain.domain_ledger import DomainFold, DomainLedger
from penstock.authority.domain.domain_state import DomainState, IssueRequest, StatementRequest
from penstock.authority.domain.holders import complete, holders
from penstock.crypto import SigningKey
from penstock.errors import RefusedError
from penstock.trust.capabilities import Right
from penstock.trust.certificates import Certificate
from penstock.trust.statement_book import StatementBook
from penstock.trust.statements import OneTimeQuestion, OnlineKind, OnlineTerms, TimedStatement
from penstock.trust.validity import Validity

MINUTE = timedelta(minutes=1)
PERIOD = 5 * MINUTE
PAUSES = {OnlineKind.ONE_TIME: MINUTE, OnlineKind.ACTIVE: MINUTE}


def issued(office: Office, kind: OnlineKind, to: SigningKey = SMITH) -> Certificate:
    test = OnlineTerms(kind, PITO.principal, pause=PAUSES.get(kind)).to_test()
    before = set(office.domain.state.issued)
    office.ask(PITO, IssueRequest(to.principal, SUBSCRIBE, Validity(online=(test,))))
    [new] = office.domain.state.issued.keys() - before
    return office.domain.state.issued[new].certificate


def accepts(book: StatementBook, office: Office, certificate: Certificate) -> bool:
    """Return whether a verifier with these statements accepts a certificate now."""
    state = office.domain.state
    for statement in state.statements.values():
        book.take(statement, office.now)
    if OnlineKind.ACTIVE in state.tests():
        book.take(state.heartbeat(office.now, MINUTE, PITO), office.now)
    try:
        [test] = certificate.statement.validity.online
        return book.check(test, certificate.id, office.now).contains(office.now)
    except RefusedError:
        return False


@pytest.mark.parametrize("kind", [OnlineKind.CRL, OnlineKind.REVALIDATION, OnlineKind.ACTIVE])
def test_a_verifier_accepts_until_the_revocation(kind: OnlineKind) -> None:
    office = Office()
    one, other = issued(office, kind), office.issue(MET)
    book = StatementBook(MET.principal)
    if kind is not OnlineKind.ACTIVE:
        assert not accepts(book, office, one)
    office.ask(PITO, StatementRequest(PERIOD))
    assert accepts(book, office, one)
    office.at(NOW + timedelta(seconds=1))
    office.revoke(one, other)
    if kind is OnlineKind.ACTIVE:
        assert not accepts(book, office, one)
        return
    # A timed statement stays as it is until it ends.
    assert accepts(book, office, one)
    for _ in range(3):
        office.at(office.now + 4 * MINUTE)
        office.ask(PITO, StatementRequest(PERIOD))
    assert not accepts(book, office, one)


def test_timed_statements_of_two_services_do_not_overlap() -> None:
    ledger = memory()
    one, other = Office(ledger), Office(ledger)
    issued(one, OnlineKind.CRL)
    windows: list[TimedStatement] = []
    for minute in range(30):
        for office in (one, other):
            office.at(NOW + minute * MINUTE)
            office.ask(PITO, StatementRequest(PERIOD))
            [statement] = office.domain.state.statements.values()
            assert isinstance(statement.value, TimedStatement)
            if statement.value not in windows:
                windows.append(statement.value)
    assert 6 <= len(windows) <= 8
    assert not any(first.overlaps(second) for first, second in pairwise(windows))
    assert dump(one) == dump(other)


def dump(office: Office) -> bytes:
    fold = DomainFold(PITO.principal)
    data = fold.dump(office.domain.refresh())
    assert fold.dump(fold.load(data)) == data
    return data


def test_one_time_answers() -> None:
    office = Office()
    certificate = issued(office, OnlineKind.ONE_TIME)
    state = office.domain.state
    question = OneTimeQuestion(PITO.principal, certificate.id, MET.principal, bytes(16))
    assert not state.answer(question, MET.principal, NOW, PITO).value.revoked
    with refused("acs.not-permitted"):
        state.answer(question, STRANGER.principal, NOW, PITO)
    with refused("acs.not-issued"):
        state.answer(
            OneTimeQuestion(PITO.principal, "cert:" + "a" * 52, MET.principal, bytes(16)), MET.principal, NOW, PITO
        )
    with refused("acs.not-issued"):
        state.answer(OneTimeQuestion(MET.principal, certificate.id, MET.principal, bytes(16)), MET.principal, NOW, PITO)
    office.revoke(certificate)
    assert state.answer(question, MET.principal, NOW, PITO).value.revoked


def test_nothing_is_signed_that_nobody_needs() -> None:
    office = Office()
    office.revoke(office.issue(SMITH))
    assert not office.ask(PITO, StatementRequest(PERIOD))
    assert not office.domain.state.statements


def test_certificates_with_tests_are_listed_while_they_are_not_revoked() -> None:
    office = Office()
    certificate = issued(office, OnlineKind.CRL)

    def held(state: DomainState) -> bool:
        return any(one.holder == SMITH.principal for one in holders(state, V8516, NOW).holders)

    assert held(office.domain.state)
    chain = complete(office.domain.state, SMITH.principal, Right.SUBSCRIBE, V8516, NOW)
    assert list(chain.credentials) == [certificate]
    office.revoke(certificate)
    assert not held(office.domain.state)


def test_statements_survive_a_restart() -> None:
    office = Office()
    issued(office, OnlineKind.ACTIVE)
    office.revoke(issued(office, OnlineKind.ACTIVE, MET))
    again = DomainLedger(office.ledger, PITO)
    assert again.state.statements == office.domain.state.statements
    first = office.domain.state.heartbeat(NOW, HOUR, PITO)
    assert again.state.heartbeat(NOW, HOUR, PITO).digest == first.digest
