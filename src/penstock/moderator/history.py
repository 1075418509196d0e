"""The history of rules as the paper's stack (paper 1, section V-A): a view on the log of steps, newest first.

What a rollback used up leaves the view; the log itself is never cleared.
"""

from collections.abc import Iterator, KeysView, Mapping
from types import MappingProxyType

from penstock.model.names import TypeKey
from penstock.moderator.deltas import Change, Logged, Place


class History:
    """The entries that may come back, by their places."""

    def __init__(self) -> None:
        self._entries: dict[Place, Logged] = {}
        self._on: dict[TypeKey, set[Place]] = {}

    @property
    def entries(self) -> Mapping[Place, Logged]:
        """All entries."""
        return MappingProxyType(self._entries)

    def __iter__(self) -> Iterator[Logged]:
        """Yield the entries from the top of the stack, which is the newest, to its bottom."""
        return (self._entries[place] for place in sorted(self._entries, reverse=True))

    @property
    def events(self) -> KeysView[TypeKey]:
        """The event types that there are entries about."""
        return self._on.keys()

    def on(self, event: TypeKey) -> tuple[Logged, ...]:
        """Return the entries about one event type, oldest first."""
        return tuple(self._entries[place] for place in sorted(self._on.get(event, ())))

    def same(self, entry: Logged) -> Logged | None:
        """Return the entry that says what another one says, if there is one."""
        for place in self._on.get(entry.event, ()):
            found = self._entries[place]
            if (found.kind, found.rules) == (entry.kind, entry.rules):
                return found
        return None

    def change(self, changes: Mapping[Place, Change[Logged]]) -> None:
        """Write entries, and take out others."""
        for place, change in changes.items():
            if change.before is not None:
                del self._entries[place]
                self._forget(change.before)
        for place, change in changes.items():
            if change.after is not None:
                self._entries[place] = change.after
                self._on.setdefault(change.after.event, set()).add(place)

    def _forget(self, entry: Logged) -> None:
        places = self._on[entry.event]
        places.remove(entry.place)
        if not places:
            del self._on[entry.event]
