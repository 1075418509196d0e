"""Validity statements of a domain: verifiers that follow them accept what the domain has not revoked."""

from datetime import timedelta
from itertools import pairwise

import pytest
from tests.authority.domain.kit import HOUR, MET, NOW, PITO, SMITH, STRANGER, SUBSCRIBE, Office, memory
from tests.guard.london import V8516
from tests.trust.kit import refused

from penstock.authority.domain.domain_changes import RecordStatement
from penstock.authority.domain.domain_ledger import DomainFold, DomainLedger
from penstock.authority.domain.domain_state import DomainState, IssueRequest, RenewRequest, StatementRequest
from penstock.authority.domain.holders import complete, holders
from penstock.codec.sexp import canonical
from penstock.crypto import SigningKey
from penstock.errors import RefusedError
from penstock.store.limits import STORE_LIMITS
from penstock.trust.capabilities import Right
from penstock.trust.certificates import Certificate
from penstock.trust.limits import STATEMENT_BYTES, STATEMENT_CERTIFICATES
from penstock.trust.statement_book import StatementBook
from penstock.trust.statements import (
    ActiveRevocation,
    OneTimeAnswer,
    OneTimeQuestion,
    OnlineKind,
    OnlineTerms,
    TimedStatement,
)
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


def renewed(office: Office, kind: OnlineKind, *holders: SigningKey) -> tuple[Certificate, Certificate]:
    """Issue short-lived certificates with an on-line test, renew them, and return the first and its renewal."""
    test = OnlineTerms(kind, PITO.principal, pause=PAUSES.get(kind)).to_test()
    for to in holders or (SMITH,):
        office.ask(PITO, IssueRequest(to.principal, SUBSCRIBE, Validity(online=(test,)), lifetime=HOUR))
    first = next(iter(office.domain.state.issued.values()))
    office.at(NOW + 45 * MINUTE)
    office.ask(PITO, RenewRequest())
    second = next(one for one in office.domain.state.issued.values() if one.replaces == first.id)
    return first.certificate, second.certificate


def successors(office: Office) -> list[str]:
    [statement] = office.domain.state.statements.values()
    assert isinstance(statement.value, TimedStatement | ActiveRevocation)
    return [one.id for one in statement.value.successors.verify()]


@pytest.mark.parametrize("kind", [OnlineKind.CRL, OnlineKind.REVALIDATION, OnlineKind.ACTIVE])
def test_statements_carry_the_successors_of_renewed_certificates(kind: OnlineKind) -> None:
    office = Office()
    first, second = renewed(office, kind)
    # Another one, whose verifiers ask otherwise, and one that was revoked.
    office.issue(MET, lifetime=HOUR)
    if kind is not OnlineKind.ACTIVE:
        office.ask(PITO, StatementRequest(PERIOD))
    assert successors(office) == [second.id]
    book = StatementBook(MET.principal)
    assert accepts(book, office, second)
    # The next renewal takes its place.
    office.at(NOW + 90 * MINUTE)
    office.ask(PITO, RenewRequest())
    third = next(one.certificate for one in office.domain.state.issued.values() if one.replaces == second.id)
    if kind is not OnlineKind.ACTIVE:
        office.ask(PITO, StatementRequest(PERIOD))
    assert successors(office) == [third.id]
    # What is revoked has no successor any more.
    office.revoke(first)
    office.at(office.now + 2 * PERIOD)
    office.ask(PITO, StatementRequest(PERIOD))
    assert successors(office) == []
    office.domain.verify()


def test_an_answer_carries_the_successor() -> None:
    office = Office()
    first, second = renewed(office, OnlineKind.ONE_TIME, SMITH, MET)

    def ask(certificate: Certificate) -> OneTimeAnswer:
        question = OneTimeQuestion(PITO.principal, certificate.id, MET.principal, bytes(16))
        return office.domain.state.answer(question, MET.principal, office.now, PITO).value

    assert [one.id for one in ask(first).successors.verify()] == [second.id]
    assert not ask(second).successors.certificates
    office.revoke(second)
    assert ask(first).revoked
    assert not ask(first).successors.certificates


def test_more_successors_than_fit_do_not_keep_a_revocation_back(monkeypatch: pytest.MonkeyPatch) -> None:
    office = Office()
    keys = [SigningKey(bytes(31) + bytes((number,))) for number in range(1, 9)]
    renewed(office, OnlineKind.ACTIVE, *keys)
    assert len(successors(office)) == 8
    size = len(canonical(office.domain.state.successors(OnlineKind.ACTIVE, 10**6).to_sexp()))
    monkeypatch.setattr("penstock.authority.domain.domain_state._STATEMENT_ROOM", size // 2)
    last = next(reversed(office.domain.state.issued.values())).certificate
    office.revoke(last)
    found = successors(office)
    assert 2 <= len(found) <= 4
    assert last.id not in found
    # With too many revoked certificates there is no room for any.
    monkeypatch.setattr("penstock.authority.domain.domain_state.STATEMENT_BYTES", 2_000)
    office.revoke(next(iter(office.domain.state.issued.values())).certificate)
    assert successors(office) == []


def test_the_largest_statement_can_be_stored() -> None:
    office = Office()
    letters = str.maketrans("0189", "bcde")
    ids = [f"cert:{'a' * 46}{number:06}".translate(letters) for number in range(STATEMENT_CERTIFICATES)]
    signed = office.domain.state.author(PITO).revoke(NOW, ids)
    # Successors can fill it up.
    assert len(signed.to_bytes()) < STATEMENT_BYTES < STORE_LIMITS.store_value_bytes - 4_096
    assert office.domain._append([RecordStatement(signed.unverified())], PITO.principal, NOW, "", None)
    office.domain.verify()


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


def test_only_certificates_that_need_a_list_are_in_it() -> None:
    office = Office()
    listed, other = issued(office, OnlineKind.CRL), office.issue(MET)
    office.revoke(listed, other)
    office.ask(PITO, StatementRequest(PERIOD))
    [statement] = office.domain.state.statements.values()
    assert isinstance(statement.value, TimedStatement)
    assert statement.value.certificates == {listed.id}


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
