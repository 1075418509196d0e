"""Rights on decisions: from the owner's certificates, for patterns of resources, while they are valid."""

from datetime import timedelta
from itertools import product

import pytest
from tests.authority.decisions.kit import NOW, OTHER, OWNER, PDP, PEP, STRANGER, grant, rights_of

from penstock.authority.decisions.questions import Entity
from penstock.authority.decisions.rights import DecisionRights
from penstock.model.instants import format_date
from penstock.trust.capabilities import DecisionRight, decision_tag
from penstock.trust.certificates import Authorisation, issue
from penstock.trust.credentials import Credentials
from penstock.trust.validity import Validity

DOCUMENT, INVOICE = Entity("document", "report-7"), Entity("invoice", "7")
DECIDE, ASK = DecisionRight.DECIDE, DecisionRight.ASK
DAY = timedelta(days=1)


def test_a_right_is_for_its_pattern_and_for_what_it_names() -> None:
    rights = rights_of(grant(PDP, kind="document", name="report-*"), grant(PEP, ASK), grant(OTHER, DECIDE, ASK))
    assert rights.may(PDP.principal, DECIDE, DOCUMENT, NOW)
    assert not rights.may(PDP.principal, DECIDE, Entity("document", "other"), NOW)
    assert not rights.may(PDP.principal, DECIDE, INVOICE, NOW)
    assert not rights.may(PDP.principal, ASK, DOCUMENT, NOW)
    assert rights.may(PEP.principal, ASK, INVOICE, NOW)
    assert not rights.may(PEP.principal, DECIDE, INVOICE, NOW)
    assert rights.may(OTHER.principal, DECIDE, INVOICE, NOW)
    assert not rights.may(STRANGER.principal, DECIDE, INVOICE, NOW)
    assert rights.may(OWNER.principal, DECIDE, INVOICE, NOW)


def test_what_was_looked_up_before_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.authority.decisions.rights._KEPT", 3)
    later = Validity(format_date(NOW + timedelta(days=1)), None)
    tag = decision_tag(OWNER.principal, "document", None, (ASK,))
    given = (
        grant(PDP, kind="document"),
        issue(Authorisation(OWNER.principal, PDP.principal, tag, validity=later), OWNER),
        grant(PEP, ASK, kind="invoice"),
    )
    used = rights_of(*given)
    asked = [*product((PDP.principal, PEP.principal), (DECIDE, ASK), (DOCUMENT, INVOICE), (NOW, NOW + 2 * DAY))]
    for each in asked * 2:
        assert used.may(*each) is rights_of(*given).may(*each)
    assert sum(used.may(*each) for each in asked) == 5
    for principal, name in ((STRANGER, "1"), (PEP, "1" * 1_000)):
        before = dict(used._periods)
        assert used.may(principal.principal, ASK, Entity("invoice", name), NOW) is (principal is PEP)
        assert used._periods == before


def test_a_chain_of_certificates_gives_what_all_of_them_give() -> None:
    tag = decision_tag(OWNER.principal, "document", None, (DECIDE,))
    first = issue(Authorisation(OWNER.principal, OTHER.principal, tag, propagate=True), OWNER)
    second = issue(Authorisation(OTHER.principal, PDP.principal, decision_tag(OWNER.principal)), OTHER)
    rights = DecisionRights(OWNER.principal, Credentials.of(first, second))
    assert rights.may(PDP.principal, DECIDE, DOCUMENT, NOW)
    assert not rights.may(PDP.principal, DECIDE, INVOICE, NOW)
    alone = DecisionRights(OWNER.principal, Credentials.of(second))
    assert not alone.may(PDP.principal, DECIDE, DOCUMENT, NOW)


def test_a_right_ends_with_its_certificate_or_when_it_is_revoked() -> None:
    until = Validity(None, format_date(NOW))
    tag = decision_tag(OWNER.principal)
    certificate = issue(Authorisation(OWNER.principal, PDP.principal, tag, validity=until), OWNER)
    rights = DecisionRights(OWNER.principal, Credentials.of(certificate))
    assert rights.may(PDP.principal, DECIDE, DOCUMENT, NOW)
    assert not rights.may(PDP.principal, DECIDE, DOCUMENT, NOW + timedelta(seconds=1))
    early = Validity(None, format_date(NOW - timedelta(days=1)))
    rights.replace(Credentials.of(certificate), {certificate.id: early})
    assert not rights.may(PDP.principal, DECIDE, DOCUMENT, NOW)
    rights.replace(Credentials.of())
    assert not rights.may(PDP.principal, DECIDE, DOCUMENT, NOW - timedelta(days=2))
