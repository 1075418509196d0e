"""A domain's roles in a ledger: the founding first, which has the policy, and then changes.

    kind `found`              after  (role-book (domain <principal>) (policy <text>) [(names (<name> <principal>) …)])
    kind of the change        after  the change (`penstock.roles.engine`)

The state is a fold, so every reader computes the same. A change is checked against the state at a head and appended
only if the ledger still has that head. So separation of duty and cardinality hold for all that write to one store. A
policy is replaced by a change too.

With a key, `after` is signed, for its place in the ledger:

    (sequence (role-entry (author <principal>) (previous <hash>) (by <principal>) (time <date>) [(nonce <bytes>)]
                          (why <text>) <change>) <signature>)

The domain's key signs all changes; another principal's key signs what its holder may do without the domain: open, use
and end its own sessions, appoint and withdraw. If the founding is signed, so must be everything after it. Otherwise
whoever can write to the store acts for the domain.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Annotated, ClassVar, Final

from penstock.authority.limits import AUTHORITY_LIMITS
from penstock.codec.limits import wide
from penstock.codec.sexp import BARE, SExp, canonical, head, parse_canonical
from penstock.crypto import Signer
from penstock.errors import MalformedError, PenstockError, RefusedError
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
    RoleOutcome,
    StoredRoles,
    WithdrawAppointment,
    change_from_sexp,
    change_to_sexp,
)
from penstock.store.ledgers.ledgers import BEGINNING, EMPTY, Change, Ledger, LedgerHead, NewChange, chain
from penstock.trust.signed import DIGEST, Claim, read_signed, sign_value

FOUND: Final = "found"
#: how often a change is tried again if others change the ledger at the same time
_ATTEMPTS: Final = 100
#: how long requests are remembered: as long as a service could take one again
_REMEMBERED: Final = timedelta(seconds=2 * AUTHORITY_LIMITS.domain_request_age)


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

    def __init__(self, ledger: Ledger, signer: Signer | None = None) -> None:
        """Read the ledger. Raises `RefusedError` (`role.no-book`, `role.ledger`), `MalformedError` (`role.record`)."""
        self._ledger = ledger
        self._signer = signer
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
        self._head = first.head
        self.refresh()

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
        """Let time pass. What ends by time is not stored: it follows from what is."""
        return self.engine.advance(now)

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
            return [self._take(one)[0] for one in stored]
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
        passed = self.engine.advance(stored.when)
        if entry is not None:
            if not self._permitted(entry.author, entry.by, change):
                raise _foreign(stored, "it is not signed with a key that may do this")
            if entry.nonce is not None:
                self._remember(entry.by, entry.nonce, entry.time)
        outcome = self.engine.apply(change)
        self._head = stored.head
        return outcome, passed.affected | outcome.affected

    def _remember(self, by: Principal, nonce: bytes, time: datetime) -> None:
        self._applied[by, nonce] = time
        for oldest, when in tuple(self._applied.items()):
            if time - when <= _REMEMBERED:
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
