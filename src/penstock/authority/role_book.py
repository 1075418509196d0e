"""A domain's roles in a ledger: the founding first, which has the policy, and then changes.

    kind `found`              after  (role-book (domain <principal>) (policy <text>) [(names (<name> <principal>) …)])
    kind of the change        after  the change (`penstock.roles.engine`)

The state is a fold, so every reader computes the same. A change is checked against the state at a head and appended
only if the ledger still has that head. So separation of duty and cardinality hold for all that write to one store. A
policy is replaced by a change too.

With a key, `after` is signed, for its place in the ledger:

    (sequence (role-entry (author <principal>) (previous <hash>) (by <principal>) (time <date>) [(nonce <bytes>)]
                          (why <text>) <change>) <signature>)

Times of changes never decrease. The state is that of the last change, until something ends by time: if a change then
arrives from a writer whose clock is behind, the state is computed again from the ledger. So all readers agree.

A snapshot of the state is stored after a number of changes. If changes must be signed, so must snapshots, by the
domain's key; others are ignored.

The domain's key signs all changes; another principal's key signs what its holder may do without the domain: open, use
and end its own sessions, appoint and withdraw. If the founding is signed, so must be everything after it. Otherwise
whoever can write to the store acts for the domain.
"""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Annotated, ClassVar, Final

from penstock.authority.limits import AUTHORITY_LIMITS, AuthorityLimits
from penstock.codec.limits import wide
from penstock.codec.sexp import BARE, SExp, canonical, head, parse_canonical
from penstock.crypto import Signer
from penstock.errors import LimitError, MalformedError, PenstockError, RefusedError
from penstock.model.principals import Principal
from penstock.roles.engine import (
    ActivateRole,
    Appoint,
    DeactivateRole,
    EndSession,
    OpenSession,
    RoleChange,
    RoleEngine,
    RoleFounding,
    RoleImage,
    RoleOutcome,
    RoleRecord,
    StoredRoles,
    WithdrawAppointment,
    change_from_sexp,
    change_to_sexp,
)
from penstock.store.ledgers.ledgers import BEGINNING, EMPTY, Change, Ledger, LedgerHead, NewChange, chain
from penstock.trust.signed import DIGEST, AppliedRequest, Claim, read_signed, sign_value

FOUND: Final = "found"
#: how often a change is tried again if others change the ledger at the same time
_ATTEMPTS: Final = 100
#: the name of snapshots; another form of state needs another one
_SNAPSHOT: Final = "roles/1"
#: changes after which a snapshot is stored
SNAPSHOT_EVERY: Final = 5_000


@dataclass(frozen=True, slots=True)
class RoleEntry(Claim):
    """A change at one place of a ledger. `author` signs it, and `by` asked for it."""

    HEAD: ClassVar = b"role-entry"
    ORDER: ClassVar = ("author", "previous", "by", "time", "nonce", "why", "change")
    SIGNER: ClassVar = "author"
    author: Principal
    previous: Annotated[bytes, DIGEST] = field(repr=False)
    by: Principal
    time: datetime
    why: str
    change: Annotated[RoleFounding | RoleChange, BARE]
    #: identifies the request, which is applied once
    nonce: bytes | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class RoleBookImage(RoleRecord):
    """The state of a role book as it is written in a snapshot."""

    HEAD: ClassVar = b"role-book-state"
    state: RoleImage
    applied: tuple[AppliedRequest, ...] = ()


@dataclass(frozen=True, slots=True)
class RoleSnapshot(Claim):
    """The digest of a state at a head, as the domain's key signs it."""

    HEAD: ClassVar = b"role-snapshot"
    SIGNER: ClassVar = "domain"
    domain: Principal
    number: int
    hash: Annotated[bytes, DIGEST] = field(repr=False)
    state: Annotated[bytes, DIGEST] = field(repr=False)


def acts_alone(engine: RoleEngine, who: Principal, change: RoleChange) -> bool:
    """Return whether a change is one that a principal may ask for without the domain: the engine decides about it."""
    match change:
        case OpenSession(_, principal):
            return principal == who
        case EndSession(session) | ActivateRole(session):
            return engine.session(session) == who
        case DeactivateRole(record):
            found = engine.record(record)
            return found is not None and found.principal == who
        case Appoint(by=by) | WithdrawAppointment(by=by):
            return by == who
        case _:
            return False


class RoleBook:
    """The roles of a domain in a ledger. All methods raise what `Ledger` raises. `signer` signs changes."""

    def __init__(
        self,
        ledger: Ledger,
        signer: Signer | None = None,
        *,
        until: int | None = None,
        limits: AuthorityLimits = AUTHORITY_LIMITS,
    ) -> None:
        """Read the ledger, up to a change if `until` has its number.

        Raises `RefusedError` (`role.no-book`, `role.ledger`), `MalformedError` (`role.record`).
        """
        self._ledger = ledger
        self._signer = signer
        #: how long requests are remembered: as long as a service could take one again
        self._remembered = timedelta(seconds=2 * limits.domain_request_age)
        self._head: LedgerHead = EMPTY
        #: requests that were applied, and when
        self._applied: dict[tuple[Principal, bytes], datetime] = {}
        first = next(ledger.read(1, 1), None)
        if first is None or first.kind != FOUND:
            raise RefusedError(
                "role.no-book",
                f"ledger `{ledger.name}` has no roles",
                hint="`penstock role init FILE --store STORE` creates a role book",
            )
        value = _parse(first)
        self.signed = head(value) == b"sequence"
        found = _verified(value, first).change if self.signed else RoleFounding.from_sexp(value)
        if not isinstance(found, RoleFounding):
            raise MalformedError("role.record", "the first entry is not a founding")
        self.founding = found
        if self.signed and _verified(value, first).author != found.domain:
            raise _foreign(first, "the domain has not signed it")
        self.engine = self.founding.engine()
        self.engine.advance(first.when)
        self._head = first.head
        self._kept = first.number
        self._load(until)
        self.take(ledger.read(self._head.number + 1, until))
        if until is None:
            self._keep_sometimes()

    @classmethod
    def create(
        cls, ledger: Ledger, founding: RoleFounding, now: datetime, why: str = "", signer: Signer | None = None
    ) -> "RoleBook":
        """Begin a role book. Raises `RefusedError` (`role.book-exists`), and as `RoleFounding.engine`."""
        founding.engine()
        after = canonical(founding.to_sexp())
        if signer is not None:
            entry = RoleEntry(signer.principal, BEGINNING, founding.domain, now, why, founding)
            after = sign_value(entry, signer).to_bytes()
        new = NewChange(who=founding.domain, when=now, kind=FOUND, why=why, after=after)
        try:
            ledger.append(EMPTY, [new])
        except RefusedError as error:
            if error.code != "store.conflict":
                raise
            raise RefusedError(
                "role.book-exists", f"ledger `{ledger.name}` is in use already", hint="choose another --ledger"
            ) from error
        return cls(ledger, signer)

    def refresh(self) -> None:
        """Apply the changes that others have made."""
        self.take(self.unread())

    def unread(self) -> list[Change]:
        """Read the changes that others have made, and apply nothing. It may run in another thread than the rest."""
        return list(self._ledger.read(self._head.number + 1))

    def take(self, changes: Iterable[Change]) -> frozenset[Principal]:
        """Apply changes that were read, and return the principals whose privileges may have changed."""
        affected: dict[Principal, None] = {}
        for change in changes:
            affected.update(dict.fromkeys(self._take(change)[1]))
        return frozenset(affected)

    def advance(self, now: datetime) -> RoleOutcome:
        """Let time pass if something ends by it. That is not stored: it follows from what is."""
        due = self.engine.next_due
        return RoleOutcome() if due is None or due > now else self.engine.advance(now)

    def current(self, now: datetime) -> RoleEngine:
        """Return the newest state at a time."""
        self.refresh()
        self.advance(now)
        return self.engine

    def change(
        self, change: RoleChange, who: Principal, now: datetime, why: str = "", nonce: bytes | None = None
    ) -> RoleOutcome:
        """Check a change, store it and apply it. Raises as `RoleEngine.apply`; then nothing was stored.

        Others can change the ledger at the same time: the change is then checked again. Raises `RefusedError`:
        `role.unsigned` if the book needs a key and there is none, `role.not-permitted` if the key is not one that may
        sign this, `role.repeated` if the request with this nonce was applied already.
        """
        [outcome] = self.change_all([change], who, now, why, nonce)
        return outcome

    def change_all(
        self,
        changes: Sequence[RoleChange],
        who: Principal,
        now: datetime,
        why: str = "",
        nonce: bytes | None = None,
    ) -> list[RoleOutcome]:
        """Store and apply changes that do not depend on each other, all or none of them. Raises as `change`."""
        if self.signed and self._signer is None:
            raise RefusedError("role.unsigned", "changes of these roles must be signed", hint="give --key")
        for _ in range(_ATTEMPTS):
            self.refresh()
            self.engine.advance(now)
            if nonce is not None and (who, nonce) in self._applied:
                raise RefusedError("role.repeated", "this request was applied already", hint="sign a new one")
            for one in changes:
                self.engine.check(one)
                if self._signer is not None and not self._permitted(self._signer.principal, who, one):
                    raise RefusedError(
                        "role.not-permitted",
                        f"{self._signer.principal.short} may not sign this change: it is not the domain's key",
                        hint="sign with the domain's key, or with the key of the principal that acts",
                    )
            entries = self._entries(changes, who, why, nonce)
            try:
                stored = self._ledger.append(self._head, entries)
            except RefusedError as error:
                if error.code != "store.conflict":
                    raise
                continue
            outcomes = [self._take(one)[0] for one in stored]
            self._keep_sometimes()
            return outcomes
        raise RefusedError("store.conflict", f"`{self._ledger.name}` changes too often", hint="try again")

    def _entries(self, changes: Sequence[RoleChange], who: Principal, why: str, nonce: bytes | None) -> list[NewChange]:
        at, before = self.engine.now, self._head
        entries: list[NewChange] = []
        for one in changes:
            after = canonical(change_to_sexp(one))
            if self._signer is not None:
                # Only the first change of a request has its nonce: they are appended together.
                said = RoleEntry(self._signer.principal, before.hash, who, at, why, one, None if entries else nonce)
                after = sign_value(said, self._signer).to_bytes()
            entry = NewChange(who=who, when=at, kind=one.HEAD.decode(), why=why, after=after)
            before = chain(self._ledger.name, before, [entry])[0].head
            entries.append(entry)
        return entries

    def _permitted(self, author: Principal, by: Principal, change: RoleChange) -> bool:
        return author == self.founding.domain or (author == by and acts_alone(self.engine, by, change))

    def exported(self) -> StoredRoles:
        """Return the founding and all changes, for the domain to sign."""
        return StoredRoles(self.founding.domain, self.founding, tuple(self.changes()))

    def changes(self) -> list[tuple[datetime, RoleChange]]:
        """Return all changes with their times, for `RoleHistory`."""
        return [(one.when, self._read(one)[0]) for one in self._ledger.read(2)]

    def _take(self, stored: Change) -> tuple[RoleOutcome, frozenset[Principal]]:
        """Apply a change; return its outcome, and who was affected, also by the time that has passed before it."""
        change, entry = self._read(stored)
        everybody: frozenset[Principal] = frozenset()
        if stored.when < self.engine.now:
            everybody = frozenset(self.engine.sessions().values())
            before = RoleBook(self._ledger, until=stored.number - 1)
            self.engine.become(before.engine)
        passed = self.engine.advance(stored.when)
        if entry is not None:
            if not self._permitted(entry.author, entry.by, change):
                raise _foreign(stored, "it is not signed with a key that may do this")
            if entry.nonce is not None:
                self._remember(entry.by, entry.nonce, entry.time)
        outcome = self.engine.apply(change)
        self._head = stored.head
        return outcome, everybody | passed.affected | outcome.affected

    # ------------------------------------------------------------------------------------------------------------------
    # Snapshots.

    def _load(self, until: int | None) -> None:
        """Start from a snapshot, if there is one that can be trusted and is not too recent."""
        kept = self._ledger.snapshot(_SNAPSHOT)
        if kept is None or (until is not None and kept.head.number > until):
            return
        try:
            value = parse_canonical(kept.data, limits=wide(len(kept.data)))
            if self.signed:
                match value:
                    case (b"kept", state, signed):
                        value = state
                        claim = read_signed(signed, RoleSnapshot).verify().value
                        if claim != self._claim(kept.head, canonical(state)):
                            return
                    case _:
                        return
            found = RoleBookImage.from_sexp(value)
            engine = found.state.engine(self.founding.domain)
        except PenstockError:
            # It is a cache: without it everything is folded.
            return
        self.engine, self._head, self._kept = engine, kept.head, kept.head.number
        self._applied = {(one.by, one.nonce): one.time for one in found.applied}

    def _keep_sometimes(self) -> None:
        if self._head.number - self._kept < SNAPSHOT_EVERY or self.engine.now != self._head.when:
            return
        if self.signed and (self._signer is None or self._signer.principal != self.founding.domain):
            return
        applied = (AppliedRequest(by, nonce, time) for (by, nonce), time in self._applied.items())
        value = RoleBookImage(self.engine.image(), tuple(applied)).to_sexp()
        data = canonical(value)
        if self.signed and self._signer is not None:
            signed = sign_value(self._claim(self._head, data), self._signer)
            data = canonical((b"kept", value, signed.to_sexp()))
        self._kept = self._head.number
        with suppress(LimitError):
            self._ledger.keep_snapshot(_SNAPSHOT, self._head, data)

    def _claim(self, at: LedgerHead, state: bytes) -> "RoleSnapshot":
        return RoleSnapshot(self.founding.domain, at.number, at.hash, sha256(state).digest())

    def _remember(self, by: Principal, nonce: bytes, time: datetime) -> None:
        self._applied[by, nonce] = time
        for oldest, when in tuple(self._applied.items()):
            if time - when <= self._remembered:
                break
            del self._applied[oldest]

    def _read(self, stored: Change) -> tuple[RoleChange, RoleEntry | None]:
        """Return a change, and the entry that was signed, if it was."""
        value = _parse(stored)
        if head(value) != b"sequence":
            if self.signed:
                raise _foreign(stored, "it is not signed")
            change, entry = change_from_sexp(value), None
        else:
            entry = _verified(value, stored)
            if isinstance(entry.change, RoleFounding):
                raise _foreign(stored, "a founding is the first entry")
            change = entry.change
        if change.HEAD.decode() != stored.kind:
            raise MalformedError("role.record", f"change {stored.number} is not of the kind that it says")
        return change, entry


def _parse(stored: Change) -> SExp:
    data = stored.after or b""
    return parse_canonical(data, limits=wide(len(data)))


def _verified(value: SExp, stored: Change) -> RoleEntry:
    """Verify an entry and its place. Raises `RefusedError` (`role.ledger`)."""
    try:
        entry = read_signed(value, RoleEntry).verify().value
    except PenstockError as error:
        raise _foreign(stored, error.message) from error
    if (entry.previous, entry.by, entry.time, entry.why) != (stored.previous, stored.who, stored.when, stored.why):
        raise _foreign(stored, "the record says something else than what was signed")
    return entry


def _foreign(stored: Change, why: str) -> RefusedError:
    return RefusedError(
        "role.ledger",
        f"change {stored.number} of `{stored.ledger}` is not one of this domain: {why}",
        hint="check who can write to the store; restore a backup with `penstock store restore`",
    )
