"""Which certificates are revoked, as far as chains and a broker say."""

from datetime import UTC, datetime, timedelta

from penstock.apps.cli.shared.revocations import NOT_CHECKED, RevocationCheck, may_revoke
from penstock.model.principals import Principal
from penstock.trust.capabilities import event_tag
from penstock.trust.certificates import Authorisation
from penstock.trust.refusals import RevokedCertificate

OWNER, DELEGATE, READER, OTHER = (Principal(bytes([number]) * 32) for number in range(1, 5))
AT = datetime(2026, 5, 1, 12, tzinfo=UTC)
STATEMENT = Authorisation(DELEGATE, READER, event_tag(OWNER, "demo.Reading"))


def test_a_certificate_is_revoked_by_its_issuer_or_the_owner() -> None:
    for by in (OWNER, DELEGATE):
        revoked = RevokedCertificate("cert:a", by, AT)
        assert RevocationCheck((revoked,)).of("cert:a", STATEMENT) == revoked
    assert RevocationCheck((RevokedCertificate("cert:a", OTHER, AT),)).of("cert:a", STATEMENT) is None
    assert RevocationCheck((RevokedCertificate("cert:b", OWNER, AT),)).of("cert:a", STATEMENT) is None
    assert may_revoke(STATEMENT) == frozenset((OWNER, DELEGATE))
    assert may_revoke(Authorisation(DELEGATE, READER, event_tag(None, "demo.Reading"))) is None


def test_the_last_revocation_is_named() -> None:
    first, undated = RevokedCertificate("cert:a", OWNER, AT), RevokedCertificate("cert:a", DELEGATE)
    later = RevokedCertificate("cert:a", DELEGATE, AT + timedelta(days=1))
    foreign = RevokedCertificate("cert:a", OTHER, AT + timedelta(days=2))
    assert RevocationCheck((undated, later, first, foreign)).of("cert:a", STATEMENT) == later
    assert RevocationCheck((undated,)).of("cert:a", STATEMENT) == undated


def test_what_was_revoked_later_was_valid() -> None:
    check = RevocationCheck((RevokedCertificate("cert:a", OWNER, AT),))
    assert check.until(AT - timedelta(seconds=1)).revoked == ()
    assert check.until(AT) == check


def test_one_broker_that_has_answered_is_enough() -> None:
    failed = RevocationCheck(broker="penstock://a", unchecked="cannot connect")
    answered = RevocationCheck((RevokedCertificate("cert:a", OWNER),), "penstock://b")
    for both in (failed | answered, answered | failed, NOT_CHECKED | failed | answered):
        assert (both.answered, both.broker, both.revoked) == (True, "penstock://b", answered.revoked)
        assert not list(both.warnings())
    assert (NOT_CHECKED | failed).unchecked == "cannot connect"
    assert [warning.code for warning in (failed | NOT_CHECKED).warnings()] == ["cert.unchecked"]
