"""Signed credentials: what one domain certifies, another one can accept."""

from datetime import timedelta

import pytest
from tests.roles.test_engine import MET, NOON, SMITH

from penstock.crypto import SigningKey
from penstock.errors import RefusedError
from penstock.roles.credentials import AppointmentCertificate, RoleMembership, accepted, certify
from penstock.roles.engine import ActivateRole, Appoint, ForeignCredential, OpenSession, RoleEngine
from penstock.roles.language import CredentialKind, read_policy
from penstock.trust.signed import read_signed

KEY = SigningKey(b"k" * 32)


def court() -> RoleEngine:
    engine = RoleEngine(
        read_policy(
            """role judge(bench: string); appointment order(case: string, number: integer);
            activate judge(b) if where b = 'first';"""
        ),
        KEY.principal,
    )
    engine.advance(NOON)
    return engine


def test_an_appointment_certificate() -> None:
    engine = court()
    until = NOON + timedelta(days=1)
    record = engine.apply(Appoint("order", SMITH, KEY.principal, ("C7", 3), until)).record
    assert record is not None
    signed = certify(record, KEY)
    read = read_signed(signed.to_sexp(), AppointmentCertificate).verify().value
    assert read == signed.value
    assert accepted(read, NOON).credential == ForeignCredential(
        KEY.principal, record.id, CredentialKind.APPOINTMENT, "order", SMITH, ("C7", 3), until
    )
    with pytest.raises(RefusedError) as caught:
        accepted(read, until + timedelta(seconds=1))
    assert caught.value.code == "role.expired"


def test_a_role_membership_certificate() -> None:
    engine = court()
    engine.apply(OpenSession("s", SMITH))
    record = engine.apply(ActivateRole("s", "judge", ("first",))).record
    assert record is not None
    signed = certify(record, KEY)
    assert isinstance(signed.value, RoleMembership)
    read = read_signed(signed.to_sexp(), RoleMembership).verify().value
    found = accepted(read, NOON).credential
    assert (found.kind, found.name, found.arguments) == (CredentialKind.ROLE, "judge", ("first",))


def test_only_the_issuer_certifies() -> None:
    engine = RoleEngine(read_policy("appointment a;"), MET)
    engine.advance(NOON)
    record = engine.apply(Appoint("a", SMITH, MET)).record
    assert record is not None
    with pytest.raises(RefusedError) as caught:
        certify(record, KEY)
    assert caught.value.code == "evolution.wrong-key"
