"""A domain in a ledger of a store.

    domain = DomainLedger.create(ledger, "grid", signer, now)      # or DomainLedger(ledger, signer)
    domain.ask(DomainRequest(caller, AddMember(...)), now)

Each change is signed by the domain's key for its place in the ledger, and verified whenever it is read. A request is
planned on the current state of the ledger, and its changes are appended together, only if the ledger still has that
state. If another service was faster, the request is planned again, so that several services on one store give no two
answers. A change is on disk when the call returns. A `DomainLedger` is for one thread at a time.

Snapshots are signed by the domain's key too. One that it has not signed is ignored.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Annotated, ClassVar, Final

from penstock.authority.domain.domain_changes import (
    RECORDED,
    DomainChange,
    DomainOperation,
    DomainRecord,
    FoundDomain,
    RemoveMember,
    kind_of_change,
    malformed_record,
)
from penstock.authority.domain.domain_state import (
    CERTIFICATE,
    CapabilityRevocation,
    DomainMember,
    DomainRequest,
    DomainState,
    IssuedCapability,
    answered,
    plan,
    repeated,
)
from penstock.authority.limits import AUTHORITY_LIMITS, AuthorityLimits
from penstock.codec.limits import wide
from penstock.codec.sexp import Form, canonical, parse_canonical
from penstock.crypto import Signer
from penstock.errors import PenstockError, RefusedError
from penstock.model.names import NetworkName
from penstock.model.principals import Principal
from penstock.store.ledgers.folds import FoldView, refold
from penstock.store.ledgers.ledgers import EMPTY, Change, Ledger, LedgerHead, NewChange, Progress, broken, chain, quiet
from penstock.trust.certificates import Certificate, Threshold, read_subject, subject_to_sexp
from penstock.trust.signed import DIGEST, AppliedRequest, Claim, UnverifiedValue, read_signed, sign_value, signed_form
from penstock.trust.statements import ValidityClaim

APPLIED: Final = "applied"
"""The outcome of a request that made changes, or had nothing to change."""

ANSWERED: Final = "answered"
"""The outcome of all others: reads and refusals."""


def ledger_name(name: str) -> str:
    """Return the name of a domain's ledger.

    >>> ledger_name("UK Police Network")
    'domain/uk-police-network'
    """
    return "domain/" + "".join(sign if sign.isascii() and sign.isalnum() else "-" for sign in name.lower())


# ----------------------------------------------------------------------------------------------------------------------
# The state as bytes, and its signed snapshots.


def _read_quorum(value: object) -> Threshold:
    found = read_subject(value)  # type: ignore[arg-type]  # an S-expression
    if not isinstance(found, Threshold):
        raise malformed_record("not a quorum")
    return found


_QUORUM: Final[Form[Threshold]] = Form(subject_to_sexp, _read_quorum)


@dataclass(frozen=True, slots=True)
class DomainImage(DomainRecord):
    """The state of a domain as it is written in a snapshot."""

    HEAD: ClassVar = b"domain-state"
    name: str
    principal: Principal
    time: datetime
    number: int
    members: tuple[DomainMember, ...]
    issued: tuple[IssuedCapability, ...]
    registered: tuple[Annotated[Certificate, CERTIFICATE], ...]
    quorums: tuple[Annotated[Threshold, _QUORUM], ...]
    revoked: tuple[CapabilityRevocation, ...]
    applied: tuple[AppliedRequest, ...]
    renewed: frozenset[str]
    statements: tuple[Annotated[UnverifiedValue[ValidityClaim], signed_form(*RECORDED)], ...] = ()

    @classmethod
    def of(cls, state: DomainState) -> "DomainImage":
        """Return the image of a state that has begun."""
        applied = (AppliedRequest(by, nonce, time) for (by, nonce), time in state.applied.items())
        if state.time is None:
            raise ValueError("the domain has not begun")
        return cls(
            state.name,
            state.begun(),
            state.time,
            state.number,
            tuple(state.members.values()),
            tuple(state.issued.values()),
            tuple(state.registered.values()),
            tuple(state.quorums.values()),
            tuple(state.revoked.values()),
            tuple(applied),
            frozenset(state.renewed),
            tuple(one.unverified() for one in state.statements.values()),
        )

    def state(self, limits: AuthorityLimits) -> DomainState:
        """Return the state."""
        state = DomainState(limits)
        state.name, state.principal, state.time, state.number = self.name, self.principal, self.time, self.number
        state.members = {one.principal: one for one in self.members}
        state.issued = {one.id: one for one in self.issued}
        state.registered = {one.id: one for one in self.registered}
        state.quorums = {one.principal: one for one in self.quorums}
        state.revoked = {one.id: one for one in self.revoked}
        state.applied = {(one.by, one.nonce): one.time for one in self.applied}
        state.renewed = set(self.renewed)
        state.statements = {one.value.HEAD: one.verify() for one in self.statements}
        state.restore()
        return state


@dataclass(frozen=True, slots=True)
class SnapshotClaim(Claim):
    """A domain's state at a head, as its key signs it."""

    HEAD: ClassVar = b"domain-snapshot"
    SIGNER: ClassVar = "domain"
    domain: Principal
    number: int
    hash: Annotated[bytes, DIGEST] = field(repr=False)
    #: the digest of the state
    state: Annotated[bytes, DIGEST] = field(repr=False)


class DomainSnapshots:
    """See `penstock.store.ledgers.folds.Keeping`: snapshots that the domain's key has signed."""

    able = True

    def __init__(self, signer: Signer) -> None:
        self._signer = signer

    def slots(self, fold: str) -> Sequence[str]:
        """Return the name of the fold."""
        return (fold,)

    def wrap(self, head: LedgerHead, data: bytes) -> bytes:
        """Return the state with a signature."""
        return canonical((b"kept", data, sign_value(self._claim(head, data), self._signer).to_sexp()))

    def unwrap(self, head: LedgerHead, data: bytes) -> bytes:
        """Return the state. Raises `MalformedError` unless the domain's key has signed it."""
        try:
            match parse_canonical(data, limits=wide(len(data))):
                case (b"kept", bytes(state), signed):
                    if read_signed(signed, SnapshotClaim).verify().value == self._claim(head, state):
                        return state
        except RefusedError as error:
            raise malformed_record("the snapshot has no valid signature") from error
        raise malformed_record("not a snapshot that the domain has signed")

    def _claim(self, head: LedgerHead, data: bytes) -> SnapshotClaim:
        return SnapshotClaim(self._signer.principal, head.number, head.hash, sha256(data).digest())


class DomainFold:
    """See `penstock.store.ledgers.folds.Fold`: it verifies each change before it applies it."""

    name = "domain/3"

    def __init__(self, domain: Principal, limits: AuthorityLimits = AUTHORITY_LIMITS) -> None:
        self._domain = domain
        self._limits = limits

    def empty(self) -> DomainState:
        """Return the state before the founding."""
        return DomainState(self._limits)

    def step(self, state: DomainState, change: Change) -> DomainState:
        """Verify a change and apply it.

        Raises `RefusedError` (`acs.ledger`) if the domain's key has not signed exactly this change for this place.
        """
        try:
            state.apply(self.read(change))
        except PenstockError as error:
            raise RefusedError(
                "acs.ledger",
                f"change {change.number} of `{change.ledger}` was not made by this domain: {error.message}",
                hint="check who can write to the store; restore a backup with `penstock store restore`",
                cause=error.code,
            ) from error
        return state

    def read(self, change: Change) -> DomainChange:
        """Return the signed change in a ledger's change. Raises what verifying it raises."""
        data = change.after or b""
        said = read_signed(parse_canonical(data, limits=wide(len(data))), DomainChange).verify().value
        stored = (change.who, change.when, change.why, change.kind, change.previous)
        if stored != (said.by, said.time, said.why, kind_of_change(said.change), said.previous):
            raise malformed_record("the record says something else than what was signed")
        if said.domain != self._domain:
            raise malformed_record("another domain has signed it")
        return said

    def dump(self, state: DomainState) -> bytes:
        """Return the state as bytes."""
        return canonical(DomainImage.of(state).to_sexp())

    def load(self, data: bytes) -> DomainState:
        """Return the state that was dumped, each certificate verified. Raises `MalformedError`."""
        try:
            return DomainImage.from_sexp(parse_canonical(data, limits=wide(len(data)))).state(self._limits)
        except RefusedError as error:
            raise malformed_record("the snapshot holds a certificate that is not valid") from error


# ----------------------------------------------------------------------------------------------------------------------
# The ledger.


@dataclass(frozen=True, slots=True)
class RecordedChange:
    """A change that is in the ledger: its number, and what was signed."""

    number: int
    change: DomainChange


class DomainLedger:
    """The state of a domain in a ledger. All methods raise errors of stores, and `RefusedError` (`acs.ledger`)."""

    def __init__(self, ledger: Ledger, signer: Signer, *, limits: AuthorityLimits = AUTHORITY_LIMITS) -> None:
        self.signer = signer
        self._limits = limits
        self._fold = DomainFold(signer.principal, limits)
        self._view: FoldView[DomainState] = FoldView(
            ledger,
            self._fold,
            keeping=DomainSnapshots(signer),
            every=limits.domain_snapshot_every,
            limits=limits,
        )

    @classmethod
    def create(
        cls, ledger: Ledger, name: str, signer: Signer, now: datetime, *, limits: AuthorityLimits = AUTHORITY_LIMITS
    ) -> "DomainLedger":
        """Begin a domain, unless the ledger has it already.

        Raises `RefusedError` (`acs.domain-exists`) if the ledger has a domain with another name, `MalformedError`
        (`name.malformed`).
        """
        NetworkName(signer.principal, name)
        domain = cls(ledger, signer, limits=limits)
        while domain.state.principal is None:
            try:
                domain._append([FoundDomain(name)], signer.principal, _seconds(now), "the domain begins", None)
            except RefusedError as error:
                if error.code != "store.conflict":
                    raise
                domain.refresh()
        if domain.state.name != name:
            raise RefusedError(
                "acs.domain-exists",
                f"the domain in `{ledger.name}` is called `{domain.state.name}`, not `{name}`",
                hint="a domain keeps its name",
            )
        return domain

    @property
    def state(self) -> DomainState:
        """The state as it was last read."""
        return self._view.state

    @property
    def head(self) -> LedgerHead:
        """The head that the state was computed from."""
        return self._view.head

    def refresh(self) -> DomainState:
        """Apply the changes of others, and return the state."""
        self._view.refresh()
        return self.state

    def ask(self, request: DomainRequest, now: datetime) -> tuple[RecordedChange, ...]:
        """Apply a request, and return the changes that it led to; none if there was nothing to change.

        Raises as `plan`, and `RefusedError` (`acs.busy`) if others were always faster. Nothing is changed then. After a
        `FailedError` it is unknown whether the request was applied. Repeating it with the same nonce is safe:
        `acs.repeated` says that it was.
        """
        for _ in range(self._limits.domain_attempts):
            state = self.refresh()
            # Times in a ledger never decrease, and the signed time is the stored one.
            when = max(_seconds(now), state.time or _seconds(now))
            operations = plan(state, request, when, self.signer)
            try:
                return self._append(operations, request.by, when, request.why, request.nonce)
            except RefusedError as error:
                if error.code != "store.conflict":
                    raise
        raise RefusedError("acs.busy", "other services kept changing the domain", hint="try again")

    def check_new(self, by: Principal, nonce: bytes) -> None:
        """Raise if a service has answered the request with this nonce already.

        Raises `RefusedError`: `acs.repeated` if it was applied, `acs.answered` otherwise.
        """
        outcome = self._view.ledger.outcome(_request(by, nonce))
        if outcome is not None:
            raise repeated(by) if outcome == APPLIED else answered(by)

    def settle(self, by: Principal, nonce: bytes, outcome: str, now: datetime) -> None:
        """Store how a request was answered, before the answer is given: another service will not answer it.

        Raises `RefusedError` (`acs.answered`) if another one has answered it meanwhile, and it was not applied here.
        """
        keep = timedelta(seconds=self._limits.domain_request_memory)
        if not self._view.ledger.settle(_request(by, nonce), outcome, now, keep) and outcome != APPLIED:
            raise answered(by)

    def log(self, first: int = 1, last: int | None = None) -> Iterator[RecordedChange]:
        """Yield recorded changes in order, each verified."""
        for change in self._view.ledger.read(first, last):
            yield RecordedChange(change.number, self._fold.read(change))

    def verify(self, known: LedgerHead = EMPTY, progress: Progress = quiet) -> LedgerHead:
        """Verify the whole ledger without snapshots: the chain, every signature, and that the state follows.

        Raises `RefusedError` (`store.broken`, `acs.ledger`).
        """
        self.refresh()
        self._view.ledger.verify(known, progress)
        state = refold(self._view.ledger, self._fold, self.head)
        if state.principal is not None and self._fold.dump(state) != self._fold.dump(self.state):
            raise broken(self._view.ledger.name, self.head.number, "leads to another state than a snapshot says")
        return self.head

    def keep(self) -> None:
        """Store a snapshot now."""
        self._view.keep()

    def _append(
        self, operations: Sequence[DomainOperation], by: Principal, when: datetime, why: str, nonce: bytes | None
    ) -> tuple[RecordedChange, ...]:
        head, entries = self.head, []
        signed: list[DomainChange] = []
        for operation in operations:
            # Only the first change of a request has its nonce: they are appended together.
            said = DomainChange(self.signer.principal, head.hash, by, when, why, operation, None if signed else nonce)
            entry = NewChange(
                who=by,
                when=when,
                kind=kind_of_change(operation),
                why=why,
                before=self._before(operation),
                after=sign_value(said, self.signer).to_bytes(),
            )
            head = chain(self._view.ledger.name, head, [entry], limits=self._limits)[0].head
            entries.append(entry)
            signed.append(said)
        changes = self._view.append(entries)
        return tuple(RecordedChange(change.number, said) for change, said in zip(changes, signed, strict=True))

    def _before(self, operation: DomainOperation) -> bytes | None:
        """Return what a change replaces."""
        if isinstance(operation, RemoveMember):
            return canonical(self.state.members[operation.principal].to_sexp())
        return None


def _request(by: Principal, nonce: bytes) -> bytes:
    return sha256(canonical((str(by).encode(), nonce))).digest()


def _seconds(now: datetime) -> datetime:
    return now.replace(microsecond=0)
