"""A domain's roles in a ledger: the founding first, which has the policy, and then changes.

    kind `found`              after  (role-book (domain <principal>) (policy <text>) [(names (<name> <principal>) …)])
    kind of the change        after  the change (`penstock.roles.engine`)

The state is a fold, so every reader computes the same. A change is checked against the state at a head and appended
only if the ledger still has that head. So separation of duty and cardinality hold for all that write to one store. A
policy is replaced by a change too.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from penstock.codec.sexp import canonical, parse_canonical
from penstock.errors import MalformedError, RefusedError
from penstock.model.principals import Principal
from penstock.roles.engine import (
    RoleChange,
    RoleFounding,
    RoleOutcome,
    SetFact,
    StoredRoles,
    change_from_sexp,
    change_to_sexp,
)
from penstock.store.ledgers.ledgers import EMPTY, Change, Ledger, LedgerHead, NewChange

FOUND: Final = "found"
#: how often a change is tried again if others change the ledger at the same time
_ATTEMPTS: Final = 100


class RoleBook:
    """The roles of a domain in a ledger. All methods raise what `Ledger` raises."""

    def __init__(self, ledger: Ledger) -> None:
        """Read the ledger. Raises `RefusedError` (`role.no-book`), `MalformedError` (`role.record`)."""
        self._ledger = ledger
        self._head: LedgerHead = EMPTY
        first = next(ledger.read(1, 1), None)
        if first is None or first.kind != FOUND:
            raise RefusedError(
                "role.no-book",
                f"ledger `{ledger.name}` has no roles",
                hint="`penstock role init FILE --store STORE` creates a role book",
            )
        self.founding = RoleFounding.from_sexp(parse_canonical(first.after or b""))
        self.engine = self.founding.engine()
        self._head = first.head
        self.refresh()

    @classmethod
    def create(cls, ledger: Ledger, founding: RoleFounding, now: datetime, why: str = "") -> "RoleBook":
        """Begin a role book. Raises `RefusedError` (`role.book-exists`), and as `RoleFounding.engine`."""
        founding.engine()
        entry = NewChange(who=founding.domain, when=now, kind=FOUND, why=why, after=canonical(founding.to_sexp()))
        try:
            ledger.append(EMPTY, [entry])
        except RefusedError as error:
            if error.code != "store.conflict":
                raise
            raise RefusedError(
                "role.book-exists", f"ledger `{ledger.name}` is in use already", hint="choose another --ledger"
            ) from error
        return cls(ledger)

    def refresh(self) -> None:
        """Apply the changes that others have made."""
        for change in self._ledger.read(self._head.number + 1):
            self._take(change)

    def advance(self, now: datetime) -> RoleOutcome:
        """Let time pass. What ends by time is not stored: it follows from what is."""
        return self.engine.advance(now)

    def change(self, change: RoleChange, who: Principal, now: datetime, why: str = "") -> RoleOutcome:
        """Check a change, store it and apply it. Raises as `RoleEngine.apply`; then nothing was stored.

        Others can change the ledger at the same time: the change is then checked again.
        """
        [outcome] = self._store([change], who, now, why)
        return outcome

    def set_facts(self, facts: Sequence[SetFact], who: Principal, now: datetime, why: str = "") -> None:
        """Store and apply facts, all or none of them. Raises as `change`."""
        self._store(facts, who, now, why)

    def _store(self, changes: Sequence[RoleChange], who: Principal, now: datetime, why: str) -> list[RoleOutcome]:
        """Store changes that do not depend on each other."""
        for _ in range(_ATTEMPTS):
            self.refresh()
            self.engine.advance(now)
            for one in changes:
                self.engine.check(one)
            at = self.engine.now
            entries = [
                NewChange(who=who, when=at, kind=one.HEAD.decode(), why=why, after=canonical(change_to_sexp(one)))
                for one in changes
            ]
            try:
                stored = self._ledger.append(self._head, entries)
            except RefusedError as error:
                if error.code != "store.conflict":
                    raise
                continue
            return [self._take(one) for one in stored]
        raise RefusedError("store.conflict", f"`{self._ledger.name}` changes too often", hint="try again")

    def exported(self) -> StoredRoles:
        """Return the founding and all changes, for the domain to sign."""
        return StoredRoles(self.founding.domain, self.founding, tuple(self.changes()))

    def changes(self) -> list[tuple[datetime, RoleChange]]:
        """Return all changes with their times, for `RoleHistory`."""
        return [(one.when, _read(one)) for one in self._ledger.read(2)]

    def _take(self, stored: Change) -> RoleOutcome:
        self.engine.advance(stored.when)
        outcome = self.engine.apply(_read(stored))
        self._head = stored.head
        return outcome


def _read(stored: Change) -> RoleChange:
    change = change_from_sexp(parse_canonical(stored.after or b""))
    if change.HEAD.decode() != stored.kind:
        raise MalformedError("role.record", f"change {stored.number} is not of the kind that it says")
    return change
