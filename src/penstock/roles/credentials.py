"""Signed credentials of a domain: role membership certificates and appointment certificates.

    (role-membership (issuer <principal>) (record <id>) (role <name>) (principal <principal>)
                     (arguments <value> …) [(valid …)])
    (appointment (issuer <principal>) (record <id>) (appointment <name>) (holder <principal>)
                 (appointer <principal>) (arguments <value> …) [(valid …)])

A certificate refers to the credential record at its issuer. A signature proves that the issuer has issued it, not that
the record is still valid: another domain that issues on it asks the issuer, and tells it to be notified when the record
ends (`RelyOnRecord` there, `AcceptCredential` and `DropCredential` here).
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, ClassVar, TypeAlias

from penstock.codec.sexp import Form, SExp
from penstock.codec.values import value_from_sexp, value_to_sexp
from penstock.crypto import Signer
from penstock.errors import RefusedError
from penstock.model.principals import Principal
from penstock.model.values import Value
from penstock.roles.engine import AcceptCredential, CredentialRecord, ForeignCredential
from penstock.roles.language import CredentialKind
from penstock.trust.signed import Claim, SignedValue, read_signed, sign_value
from penstock.trust.validity import ALWAYS, Validity, ValidityField

_Arguments: TypeAlias = tuple[Annotated[Value, Form(value_to_sexp, value_from_sexp)], ...]


@dataclass(frozen=True, slots=True)
class RoleMembership(Claim):
    """A role membership certificate: the principal has a role active at the issuer."""

    HEAD: ClassVar = b"role-membership"
    SIGNER: ClassVar = "issuer"
    issuer: Principal
    record: str
    role: str
    principal: Principal
    arguments: _Arguments = ()
    validity: ValidityField = ALWAYS


@dataclass(frozen=True, slots=True)
class AppointmentCertificate(Claim):
    """An appointment certificate: a persistent qualification, until it ends or is withdrawn."""

    HEAD: ClassVar = b"appointment"
    SIGNER: ClassVar = "issuer"
    issuer: Principal
    record: str
    appointment: str
    holder: Principal
    appointer: Principal
    arguments: _Arguments = ()
    validity: ValidityField = ALWAYS


RoleCertificate: TypeAlias = RoleMembership | AppointmentCertificate


def certify(record: CredentialRecord, key: Signer) -> SignedValue[RoleMembership] | SignedValue[AppointmentCertificate]:
    """Sign the certificate of a record of one's own domain. Raises `RefusedError` (`evolution.wrong-key`)."""
    validity = Validity.between(record.since, record.until)
    if record.kind is CredentialKind.ROLE:
        return sign_value(
            RoleMembership(record.issuer, record.id, record.name, record.principal, record.arguments, validity), key
        )
    appointer = record.appointer or record.issuer
    return sign_value(
        AppointmentCertificate(
            record.issuer, record.id, record.name, record.principal, appointer, record.arguments, validity
        ),
        key,
    )


def read_role_certificate(value: SExp) -> RoleCertificate:
    """Read a certificate and verify its signature.

    Raises `MalformedError` (`evolution.malformed`, and errors of its parts), `RefusedError` (`evolution.wrong-key`,
    `evolution.signature-mismatch`, `key.bad-signature`).
    """
    verified = read_signed(value, RoleMembership, AppointmentCertificate).verify().value
    if not isinstance(verified, RoleMembership | AppointmentCertificate):
        raise TypeError("one of the two kinds was read")
    return verified


def accepted(certificate: RoleCertificate, now: datetime) -> AcceptCredential:
    """Return the change by which a domain accepts a verified certificate of another one.

    Raises `RefusedError` (`role.expired`) if it is not valid now.
    """
    if not certificate.validity.contains(now):
        raise RefusedError("role.expired", "the certificate is not valid now", hint="present one that is")
    until = certificate.validity.ends
    if isinstance(certificate, RoleMembership):
        kind, name, holder = CredentialKind.ROLE, certificate.role, certificate.principal
    else:
        kind, name, holder = CredentialKind.APPOINTMENT, certificate.appointment, certificate.holder
    return AcceptCredential(
        ForeignCredential(certificate.issuer, certificate.record, kind, name, holder, certificate.arguments, until)
    )
