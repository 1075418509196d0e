"""The changes of a domain, as its key signs them and its ledger stores them.

    (domain-change (domain <principal>) (previous <hash>) (by <principal>) (time <date>) [(nonce <bytes>)]
                   (why <text>) <change>)
    <change>  (found (name <text>)) | (add-member (principal <principal>) (kind <kind>) (name <text>))
              (remove-member (principal <principal>)) | (register <certificate> <signature> …)
              (issue (certificate <certificate> <signature>) [(lifetime <seconds>)] [(until <date>)] [(replaces <id>)]
                     [(purpose <text>)])
              (revoke <certificate id> …) | (statement (sequence <validity statement> <signature>))

`previous` is the hash of the ledger's last change before this one, so that no change can be moved, dropped or repeated.
`by` is the principal that asked, and `nonce` identifies its request: a request is applied once. Times are whole
seconds.
"""

import re
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Annotated, ClassVar, Final, TypeAlias

from penstock.codec.sexp import BARE, OMITTED, Form, ListForm, text
from penstock.errors import MalformedError
from penstock.model.principals import Principal
from penstock.trust.credentials import UnverifiedCredentials, collect_credentials
from penstock.trust.signed import DIGEST, Claim, StatementRecord, UnverifiedValue, signed_form
from penstock.trust.statements import ActiveRevocation, Revalidation, RevocationList, ValidityClaim

_ID: Final = re.compile(r"cert:[a-z2-7]{52}", re.ASCII)


def malformed_record(message: str) -> MalformedError:
    """Return the error for a change that does not belong to a domain."""
    return MalformedError("acs.record", message, hint="the record was not written by this version of Penstock")


def check_certificate_id(id_: str) -> str:
    """Return the id of a certificate. Raises `MalformedError` (`acs.record`)."""
    if not _ID.fullmatch(id_):
        raise malformed_record("not the id of a certificate")
    return id_


_CREDENTIALS: Final[ListForm[UnverifiedCredentials]] = ListForm(lambda bag: bag.to_sexp()[1:], collect_credentials)
_CERTIFICATE_ID: Final[Form[str]] = Form(str.encode, lambda value: check_certificate_id(text(value)))


RECORDED: Final[tuple[type[ValidityClaim], ...]] = (RevocationList, Revalidation, ActiveRevocation)
"""The kinds of validity statements that are recorded."""


class MemberKind(StrEnum):
    """What a member of a domain is (paper 5, section 3.2)."""

    CLIENT = "client"
    BROKER = "broker"
    SUBDOMAIN = "sub-domain"


class DomainRecord(StatementRecord):
    """The base of a domain's changes."""

    __slots__ = ()

    @staticmethod
    def malformed(message: str) -> MalformedError:
        """Return the error for a malformed change: `acs.record`."""
        return malformed_record(message)


@dataclass(frozen=True, slots=True)
class FoundDomain(DomainRecord):
    """Begin the domain. Its principal signs this change."""

    HEAD: ClassVar = b"found"
    name: str


@dataclass(frozen=True, slots=True)
class AddMember(DomainRecord):
    """Add a member: a client, a broker or a sub-domain."""

    HEAD: ClassVar = b"add-member"
    principal: Principal
    kind: MemberKind
    name: str


@dataclass(frozen=True, slots=True)
class RemoveMember(DomainRecord):
    """Remove a member."""

    HEAD: ClassVar = b"remove-member"
    principal: Principal


@dataclass(frozen=True, slots=True)
class RegisterCertificates(DomainRecord):
    """Record certificates of others: rights that the domain received, and delegations that depend on it."""

    HEAD: ClassVar = b"register"
    credentials: Annotated[UnverifiedCredentials, _CREDENTIALS, BARE] = field(repr=False)


@dataclass(frozen=True, slots=True)
class RecordIssued(DomainRecord):
    """Issue a certificate of the domain. With a lifetime it is renewed before it ends, at most until `until`."""

    HEAD: ClassVar = b"issue"
    certificate: Annotated[UnverifiedCredentials, _CREDENTIALS] = field(repr=False)
    #: seconds
    lifetime: int | None = None
    until: datetime | None = None
    #: the id of the certificate that this one renews
    replaces: Annotated[str | None, _CERTIFICATE_ID] = None
    #: what it was issued for, such as `member`
    purpose: Annotated[str, OMITTED] = ""


@dataclass(frozen=True, slots=True)
class RevokeIssued(DomainRecord):
    """Revoke certificates that the domain issued. This cannot be undone."""

    HEAD: ClassVar = b"revoke"
    certificates: Annotated[tuple[str, ...], _CERTIFICATE_ID, BARE]


@dataclass(frozen=True, slots=True)
class RecordStatement(DomainRecord):
    """Sign a validity statement: a timed CRL or revalidation, or an active revocation.

    Statements are recorded before they are sent, so that those of several services never overlap.
    """

    HEAD: ClassVar = b"statement"
    statement: Annotated[UnverifiedValue[ValidityClaim], signed_form(*RECORDED), BARE] = field(repr=False)


DomainOperation: TypeAlias = (
    FoundDomain | AddMember | RemoveMember | RegisterCertificates | RecordIssued | RevokeIssued | RecordStatement
)


@dataclass(frozen=True, slots=True)
class DomainChange(Claim):
    """A change of a domain at one place of its ledger, for one request."""

    HEAD: ClassVar = b"domain-change"
    ORDER: ClassVar = ("domain", "previous", "by", "time", "nonce", "why", "change")
    SIGNER: ClassVar = "domain"
    domain: Principal
    previous: Annotated[bytes, DIGEST] = field(repr=False)
    by: Principal
    time: datetime
    why: str
    change: Annotated[DomainOperation, BARE]
    nonce: bytes | None = field(default=None, repr=False)

    def verify_fields(self) -> None:
        """Raise `MalformedError` (`acs.record`) for a time within a second, and for an empty nonce."""
        if self.time.microsecond or self.nonce == b"":
            raise malformed_record("a change has a time in whole seconds, and a nonce or none")


def kind_of_change(change: DomainOperation) -> str:
    """Return the word that names a change in the ledger."""
    return change.HEAD.decode()
