"""What the tests of domains share: the paper's cast as one domain, its partner, and its members."""

from datetime import datetime, timedelta
from itertools import count

from tests.guard.london import CCS, MALLORY, MANAGER, MET, NOW, PITO, SMITH, numberplate

from penstock.authority.domain.domain_changes import AddMember, MemberKind, RevokeIssued
from penstock.authority.domain.domain_ledger import DomainLedger, RecordedChange
from penstock.authority.domain.domain_state import DomainRequest, IssueRequest, Operation, RegisterRequest
from penstock.authority.limits import AUTHORITY_LIMITS, AuthorityLimits
from penstock.crypto import SigningKey
from penstock.store.ledgers.ledgers import Ledger, Store
from penstock.store.ledgers.memory import MemoryRecords
from penstock.trust.capabilities import Right, network_tag
from penstock.trust.certificates import Certificate
from penstock.trust.credentials import Credentials
from penstock.trust.tags import Tag
from penstock.trust.validity import ALWAYS, Validity

NAME = "pito"
#: the domain is PITO; MANAGER administers it; CCS and MET are partners
ADMIN, STRANGER = MANAGER, MALLORY
SUBSCRIBE = numberplate(Right.SUBSCRIBE)
HOUR = timedelta(hours=1)
_NONCES = (number.to_bytes(16) for number in count(1))


def memory() -> Ledger:
    return Store(MemoryRecords()).ledger("domain/pito")


class Office:
    """A domain whose clock the test moves."""

    def __init__(
        self, ledger: Ledger | None = None, key: SigningKey = PITO, limits: AuthorityLimits = AUTHORITY_LIMITS
    ) -> None:
        self.ledger = memory() if ledger is None else ledger
        self.now = NOW
        self.domain = DomainLedger.create(self.ledger, NAME, key, NOW, limits=limits)

    def ask(self, by: SigningKey, operation: Operation, nonce: bytes | None = None) -> tuple[RecordedChange, ...]:
        return self.domain.ask(DomainRequest(by.principal, operation, "a test", nonce or next(_NONCES)), self.now)

    def issue(
        self,
        subject: SigningKey,
        tag: Tag = SUBSCRIBE,
        *,
        by: SigningKey = PITO,
        propagate: bool = False,
        validity: Validity = ALWAYS,
        lifetime: timedelta | None = None,
    ) -> Certificate:
        before = set(self.domain.refresh().issued)
        self.ask(by, IssueRequest(subject.principal, tag, validity, propagate, lifetime))
        [new] = self.domain.state.issued.keys() - before
        return self.domain.state.issued[new].certificate

    def appoint(self, admin: SigningKey = ADMIN) -> None:
        self.issue(admin, network_tag(PITO.principal, NAME, [Right.ADMINISTER, Right.AUDIT]))

    def add(self, member: SigningKey, name: str, kind: MemberKind = MemberKind.CLIENT, by: SigningKey = PITO) -> None:
        self.ask(by, AddMember(member.principal, kind, name))

    def register(self, *certificates: Certificate, by: SigningKey = PITO) -> None:
        self.ask(by, RegisterRequest(Credentials.of(*certificates)))

    def revoke(self, *certificates: Certificate, by: SigningKey = PITO) -> None:
        self.ask(by, RevokeIssued(tuple(one.id for one in certificates)))

    def at(self, when: datetime) -> None:
        self.now = when


__all__ = ["ADMIN", "CCS", "HOUR", "MET", "NAME", "NOW", "PITO", "SMITH", "STRANGER", "SUBSCRIBE", "Office", "memory"]
