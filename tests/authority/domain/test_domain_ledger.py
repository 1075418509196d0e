"""A domain in a ledger: two services, forged changes and snapshots, and what is stored of each change."""

from dataclasses import replace
from pathlib import Path

import pytest
from tests.authority.domain.kit import ADMIN, CCS, MET, NAME, NOW, PITO, SMITH, STRANGER, Office, memory
from tests.guard.london import grant, numberplate
from tests.trust.kit import refused

from penstock.authority.domain.domain_changes import AddMember, DomainChange, MemberKind, RemoveMember
from penstock.authority.domain.domain_ledger import DomainFold, DomainLedger, DomainSnapshots, ledger_name
from penstock.authority.limits import AuthorityLimits
from penstock.crypto import SigningKey
from penstock.store.ledgers.ledgers import Ledger, NewChange
from penstock.store.ledgers.urls import open_store
from penstock.trust.capabilities import Right
from penstock.trust.certificates import Threshold
from penstock.trust.signed import sign_value


def dump(domain: DomainLedger) -> bytes:
    return DomainFold(PITO.principal).dump(domain.refresh())


def busy(office: Office) -> None:
    """Make one change of each kind."""
    office.appoint()
    office.add(MET, "met")
    office.issue(CCS, propagate=True)
    office.revoke(office.issue(SMITH))
    office.register(grant(CCS, SMITH.principal, numberplate(Right.SUBSCRIBE)), by=ADMIN)
    office.register(grant(CCS, Threshold(1, (SMITH.principal, MET.principal)), numberplate(Right.SUBSCRIBE)))
    office.ask(PITO, RemoveMember(MET.principal))


def test_what_is_stored_of_a_change() -> None:
    office = Office()
    busy(office)
    *_, removed, revoked = office.ledger.read()
    assert (removed.who, removed.when, removed.kind, removed.why) == (PITO.principal, NOW, "remove-member", "a test")
    assert removed.before is not None
    assert b"met" in removed.before
    assert revoked.kind == "revoke"
    assert [one.number for one in office.domain.log()] == [*range(1, revoked.number + 1)]
    assert office.domain.verify() == revoked.head


def test_two_services_on_one_ledger_see_each_other() -> None:
    ledger = memory()
    one, other = Office(ledger), Office(ledger)
    one.add(SMITH, "smith")
    with refused("acs.member-exists"):
        other.add(SMITH, "again")
    other.ask(PITO, RemoveMember(SMITH.principal))
    one.add(SMITH, "smith")
    assert dump(one.domain) == dump(other.domain)


def test_it_opens_again_from_its_changes_and_from_a_snapshot(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path}/domain.db"
    with open_store(url, create=True) as store:
        office = Office(store.ledger(ledger_name(NAME)), limits=AuthorityLimits(domain_snapshot_every=3))
        busy(office)
        expected = dump(office.domain)
    with open_store(url) as store:
        ledger = store.ledger(ledger_name(NAME))
        assert ledger.snapshot(DomainFold.name) is not None
        again = DomainLedger(ledger, PITO)
        assert dump(again) == expected
        again.verify()
        again.keep()
        assert dump(DomainLedger(ledger, PITO)) == expected


def test_a_snapshot_by_another_key_is_ignored() -> None:
    office = Office()
    office.add(SMITH, "smith")
    forged = Office()
    forged.add(STRANGER, "stranger")
    data = DomainFold(PITO.principal).dump(forged.domain.state)
    head = office.domain.head
    office.ledger.keep_snapshot(DomainFold.name, head, DomainSnapshots(STRANGER).wrap(head, data))
    assert dump(DomainLedger(office.ledger, PITO)) == dump(office.domain)


def test_a_domain_has_one_name_and_one_key() -> None:
    office = Office()
    with refused("acs.domain-exists"):
        DomainLedger.create(office.ledger, "other", PITO, NOW)
    with refused("acs.ledger"):
        DomainLedger(office.ledger, STRANGER)
    with refused("acs.no-domain"):
        DomainLedger(memory(), PITO).state.begun()
    with refused("name.malformed"):
        DomainLedger.create(memory(), "no\nname", PITO, NOW)


def _entry(said: DomainChange, key: SigningKey, **changed: object) -> NewChange:
    entry = NewChange(
        who=said.by,
        when=said.time,
        kind=said.change.HEAD.decode(),
        why=said.why,
        after=sign_value(replace(said, domain=key.principal), key).to_bytes(),
    )
    return replace(entry, **changed)  # type: ignore[arg-type]  # fields of a change


def _said(ledger: Ledger) -> DomainChange:
    adding = AddMember(STRANGER.principal, MemberKind.CLIENT, "stranger")
    return DomainChange(PITO.principal, ledger.head().hash, PITO.principal, NOW, "why", adding)


@pytest.mark.parametrize(
    "changed", [{}, {"why": "another"}, {"who": STRANGER.principal}, {"kind": "issue"}, {"after": b"3:abc"}], ids=str
)
def test_a_change_that_the_domain_has_not_signed_is_found(changed: dict[str, object]) -> None:
    office = Office()
    said = _said(office.ledger)
    office.ledger.append(office.ledger.head(), [_entry(said, STRANGER if not changed else PITO, **changed)])
    with refused("acs.ledger"):
        DomainLedger(office.ledger, PITO)
    with refused("acs.ledger"):
        office.domain.refresh()


def test_a_change_for_another_place_is_found() -> None:
    office = Office()
    said = _said(office.ledger)
    office.add(SMITH, "smith")
    office.ledger.append(office.ledger.head(), [_entry(said, PITO)])
    with refused("acs.ledger"):
        office.domain.refresh()


def test_nothing_secret_is_shown() -> None:
    office = Office()
    shown = repr(office.domain.signer) + repr(office.domain) + repr(office.domain.state)
    assert PITO.seed.hex() not in shown
    assert repr(PITO.seed) not in shown
