"""The state machine of a domain: who may ask for what, what it leads to, and what is forgotten."""

from datetime import timedelta

import pytest
from tests.authority.domain.kit import ADMIN, CCS, HOUR, MET, NOW, PITO, SMITH, STRANGER, SUBSCRIBE, Office
from tests.guard.london import TO_MET, grant, numberplate
from tests.trust.kit import refused

from penstock.authority.domain.domain_changes import AddMember, MemberKind, RemoveMember, RevokeIssued
from penstock.authority.domain.domain_ledger import DomainLedger
from penstock.authority.domain.domain_state import (
    IssueRequest,
    Operation,
    RegisterRequest,
    RenewRequest,
)
from penstock.authority.limits import AuthorityLimits
from penstock.trust.capabilities import Right, event_tag
from penstock.trust.credentials import Credentials
from penstock.trust.tags import ANY
from penstock.trust.validity import ALWAYS, Validity

ADD = AddMember(SMITH.principal, MemberKind.CLIENT, "smith")
ISSUE = IssueRequest(SMITH.principal, SUBSCRIBE, ALWAYS)


def test_a_member_may_use_the_service_until_it_is_removed() -> None:
    office = Office()
    office.add(SMITH, "smith")
    state = office.domain.state
    assert state.members[SMITH.principal].name == "smith"
    assert state.permits(SMITH.principal, Right.CONNECT, NOW)
    assert not state.permits(SMITH.principal, Right.AUDIT, NOW)
    certificate = office.issue(SMITH)
    office.ask(PITO, RemoveMember(SMITH.principal))
    assert not state.members
    assert not state.permits(SMITH.principal, Right.CONNECT, NOW)
    assert certificate.id in state.revoked
    assert [one.change.change.HEAD for one in office.domain.log()][-2:] == [b"remove-member", b"revoke"]


def test_a_member_that_returns_in_the_same_second_gets_another_certificate() -> None:
    office = Office()
    for _ in range(3):
        office.add(SMITH, "smith")
        office.ask(PITO, RemoveMember(SMITH.principal))
    assert len(office.domain.state.revoked) == 3


@pytest.mark.parametrize(
    "operation",
    [ADD, RemoveMember(MET.principal), ISSUE, RenewRequest(), RevokeIssued(("cert:" + "a" * 52,))],
    ids=lambda one: type(one).__name__,
)
def test_only_administrators_change_anything(operation: Operation) -> None:
    office = Office()
    office.appoint()
    office.add(MET, "met")
    certificate = office.issue(CCS)
    if isinstance(operation, RevokeIssued):
        operation = RevokeIssued((certificate.id,))
    for caller in (STRANGER, MET):
        with refused("acs.not-permitted"):
            office.ask(caller, operation)
    office.ask(ADMIN, operation)


def test_members_register_what_they_issued_and_nothing_else() -> None:
    office = Office()
    office.issue(MET, propagate=True)
    own, other = grant(MET, SMITH.principal, SUBSCRIBE), grant(CCS, SMITH.principal, SUBSCRIBE)
    with refused("acs.not-permitted"):
        office.register(own, by=MET)
    office.add(MET, "met")
    with refused("acs.not-permitted"):
        office.register(own, other, by=MET)
    office.register(own, by=MET)
    assert set(office.domain.state.registered) == {own.id}
    # Once more changes nothing.
    head = office.domain.head
    office.register(own, by=MET)
    assert office.domain.head == head


def test_an_administrator_that_was_revoked_is_none_any_more() -> None:
    office = Office()
    office.appoint()
    [right] = [
        one for one in office.domain.state.issued.values() if one.certificate.statement.subject == ADMIN.principal
    ]
    office.ask(ADMIN, ADD)
    office.revoke(right.certificate)
    with refused("acs.not-permitted"):
        office.ask(ADMIN, ISSUE)


def test_a_request_is_applied_once() -> None:
    office = Office()
    office.ask(PITO, ADD, b"one")
    with refused("acs.repeated"):
        office.ask(PITO, ISSUE, b"one")
    office.appoint()
    # Another caller may use the same number.
    office.ask(ADMIN, ISSUE, b"one")
    # Requests are remembered for longer than they are valid, and then forgotten.
    office.at(NOW + timedelta(seconds=601))
    office.issue(CCS)
    assert (PITO.principal, b"one") not in office.domain.state.applied


def test_a_domain_has_sub_domains_or_brokers_and_clients() -> None:
    office = Office()
    office.add(CCS, "ccs", MemberKind.SUBDOMAIN)
    with refused("domain.mixed"):
        office.add(SMITH, "smith")
    with refused("acs.member-exists"):
        office.add(CCS, "again", MemberKind.SUBDOMAIN)
    with refused("acs.member-exists"):
        office.add(MET, "ccs", MemberKind.SUBDOMAIN)
    with refused("acs.member-exists"):
        office.add(PITO, "itself", MemberKind.SUBDOMAIN)
    office.add(MET, "met", MemberKind.SUBDOMAIN)
    assert [one.name for one in office.domain.state.domain.subdomains] == ["ccs", "met"]
    with refused("acs.unknown-member"):
        office.ask(PITO, RemoveMember(SMITH.principal))
    with refused("acs.name"):
        office.add(SMITH, "two\nlines", MemberKind.SUBDOMAIN)


def test_a_domain_passes_on_only_what_it_may_pass_on() -> None:
    met = Office(key=MET)
    ask = IssueRequest(SMITH.principal, SUBSCRIBE, ALWAYS)
    with refused("acs.no-authority"):
        met.ask(MET, ask)
    met.register(TO_MET, by=MET)
    met.ask(MET, ask)
    # It received the right to subscribe, not to publish.
    with refused("acs.no-authority"):
        met.ask(MET, IssueRequest(SMITH.principal, numberplate(Right.PUBLISH), ALWAYS))
    for tag in (ANY, event_tag(None, "*", None, [Right.SUBSCRIBE])):
        with refused("acs.no-owner"):
            met.ask(MET, IssueRequest(SMITH.principal, tag, ALWAYS))


def test_certificates_of_the_domain_itself_are_issued_and_not_registered() -> None:
    office = Office()
    with refused("acs.own-certificate"):
        office.register(TO_MET)
    with refused("acs.nothing"):
        office.ask(PITO, RegisterRequest(Credentials()))
    with refused("acs.not-issued"):
        office.revoke(TO_MET)


def test_short_lived_certificates_are_renewed_until_their_end() -> None:
    office = Office()
    first = office.issue(SMITH, lifetime=HOUR, validity=Validity.between(None, NOW + 2 * HOUR))
    assert first.statement.validity == Validity.between(NOW, NOW + HOUR)
    state = office.domain.state
    assert state.next_renewal() == NOW + timedelta(minutes=40)
    office.at(NOW + timedelta(minutes=39))
    assert not office.ask(PITO, RenewRequest())
    office.at(NOW + timedelta(minutes=41))
    [recorded] = office.ask(PITO, RenewRequest())
    assert not office.ask(PITO, RenewRequest())
    [second] = [one for one in state.issued.values() if one.replaces == first.id]
    assert second.certificate.statement.validity == Validity.between(office.now, office.now + HOUR)
    # Both are valid while they overlap, so nobody is cut off.
    assert {first.id, second.id} <= {one.id for one in state.credentials}
    assert recorded.change.by == PITO.principal
    office.at(NOW + timedelta(minutes=90))
    [third] = office.ask(PITO, RenewRequest())
    assert third.change.change.certificate.certificates[0].statement.validity.ends == NOW + 2 * HOUR  # type: ignore[union-attr]  # it was issued
    office.at(NOW + timedelta(minutes=119))
    assert not office.ask(PITO, RenewRequest())
    # What has expired is forgotten.
    office.at(NOW + 3 * HOUR)
    office.issue(CCS)
    assert len(state.issued) == 1


def test_what_is_revoked_is_not_renewed() -> None:
    office = Office()
    first = office.issue(SMITH, lifetime=HOUR)
    office.revoke(first)
    head = office.domain.head
    office.revoke(first)
    assert office.domain.head == head
    office.at(NOW + timedelta(minutes=50))
    assert not office.ask(PITO, RenewRequest())


@pytest.mark.parametrize("renewals", [1, 2, 3])
def test_a_certificate_is_revoked_with_its_renewals(renewals: int) -> None:
    office = Office()
    first, other = office.issue(SMITH, lifetime=HOUR), office.issue(MET)
    for number in range(1, renewals + 1):
        office.at(NOW + number * timedelta(minutes=50))
        assert len(office.ask(PITO, RenewRequest())) == 1
    state = office.domain.state
    # After the second renewal the first certificate has expired, and is all that the administrator has.
    assert (first.id in state.issued) is (renewals == 1)
    [change] = office.ask(PITO, RevokeIssued((first.id,)))
    assert {one.id for one in state.issued.values() if one.id not in state.revoked} == {other.id}
    assert change.change.by == PITO.principal
    office.at(office.now + timedelta(minutes=50))
    assert not office.ask(PITO, RenewRequest())
    # The same state follows from the ledger and from a snapshot.
    office.domain.keep()
    office.domain.verify()
    assert DomainLedger(office.ledger, PITO).state.issued == state.issued


@pytest.mark.parametrize("lifetime", [timedelta(seconds=29), timedelta(seconds=90.5)])
def test_lifetimes_are_whole_seconds_and_not_too_short(lifetime: timedelta) -> None:
    with refused("acs.lifetime"):
        Office().issue(SMITH, lifetime=lifetime)


def test_what_is_over_is_not_issued() -> None:
    with refused("acs.lifetime"):
        Office().issue(SMITH, validity=Validity.between(None, NOW - HOUR))


def test_bounds() -> None:
    office = Office(limits=AuthorityLimits(domain_members=1, domain_certificates=2, domain_batch=1))
    office.add(SMITH, "smith")
    with refused("acs.limit"):
        office.add(MET, "met")
    with refused("acs.limit"):
        office.register(grant(MET, SMITH.principal, SUBSCRIBE), grant(CCS, SMITH.principal, SUBSCRIBE))
    office.issue(SMITH)
    with refused("acs.limit"):
        office.issue(MET)
    with refused("acs.limit"):
        office.register(grant(MET, SMITH.principal, SUBSCRIBE))
