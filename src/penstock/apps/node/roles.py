"""A domain's roles as a source of authority in a broker, which follows the role book in a store.

The store is read in a thread, and what was read is applied between events, so that no decision sees half of a change.
Only requests of principals whose privileges have changed are decided again. Roles end at their times without a change.
If the store cannot be read for `max_age` seconds, roles are unknown, and permit nothing until it can be read again.
"""

import asyncio
from collections.abc import Callable
from datetime import datetime
from typing import Final

from penstock.apps.node.load import RolesPlace
from penstock.authority.role_book import RoleBook
from penstock.errors import MalformedError, PenstockError
from penstock.guard.roles import ActiveRoles, PrivilegePeriod, RoleAuthority
from penstock.model.principals import Principal
from penstock.store.ledgers.ledgers import Change, Store
from penstock.store.ledgers.urls import open_store

#: seconds between two looks at the store
_LOOK: Final = 0.1
_EPOCH: Final = 1 << 32


class BrokerRoles:
    """See the module, and `penstock.guard.roles.RoleSource`. `changed` receives the principals concerned."""

    def __init__(self, place: RolesPlace, clock: Callable[[], datetime]) -> None:
        """Open the role book. Raises as `open_store` and `RoleBook`, and `MalformedError` (`node.roles`)."""
        self._place = place
        self._clock = clock
        self._store: Store = open_store(place.store)
        self.book = RoleBook(self._store.ledger(place.ledger))
        if self.book.founding.domain != place.domain:
            self._store.close()
            raise MalformedError(
                "node.roles",
                f"the roles in `{place.ledger}` are those of {self.book.founding.domain.short}, and not of the domain"
                " that the node file names",
                hint="check `[roles]` in the node file",
            )
        self.book.advance(clock())
        self.authority = RoleAuthority(self, place.owners)
        #: what was wrong when the store was last read
        self.problem: PenstockError | None = None
        self._known = True
        self._turns = 0

    def version(self, principal: Principal) -> int:
        """Return a number that changes whenever the answer may have changed."""
        return self._turns * _EPOCH + self.book.engine.version(principal)

    def periods(self, principal: Principal) -> tuple[PrivilegePeriod, ...]:
        """Return the privileges of a principal; none if the roles are unknown."""
        return ActiveRoles(self.book.engine).periods(principal) if self._known else ()

    async def follow(
        self, changed: Callable[[frozenset[Principal]], None], note: Callable[[PenstockError], None]
    ) -> None:
        """Look for changes until cancelled."""
        loop = asyncio.get_running_loop()
        read = loop.time()
        while True:
            await asyncio.sleep(_LOOK)
            try:
                found = await asyncio.to_thread(self.book.unread)
                affected = self._take(found)
            except PenstockError as error:
                affected = frozenset()
                if self.problem is None:
                    note(error)
                self.problem = error
            else:
                self.problem, read = None, loop.time()
            affected |= self._is_known(loop.time() - read <= self._place.max_age)
            if affected:
                changed(affected)

    def _take(self, found: list[Change]) -> frozenset[Principal]:
        affected = self.book.take(found)
        return affected | self.book.advance(self._clock()).affected

    def _is_known(self, known: bool) -> frozenset[Principal]:
        if known is self._known:
            return frozenset()
        self._known = known
        self._turns += 1
        return frozenset(self.book.engine.sessions().values())

    def close(self) -> None:
        """Close the store."""
        self._store.close()
