"""The history of rules as the paper's stack (paper 1, section V-A): a view on the log of steps, newest first.

What a rollback used up leaves the view; the log itself is never cleared.

An entry that cannot come back has a reason: a rule in force that it collides with, a rule of its own that nobody wants
any more, somebody who is away. As long as that is as it was there is no need to look at the entry again. So what a
search of the log costs depends on what has changed since, and not on how long the log is.
"""

from collections.abc import Collection, Iterable, Iterator, KeysView, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeAlias

from penstock.model.names import TypeKey
from penstock.model.principals import Principal
from penstock.moderator.deltas import Change, Logged, Place

Reason: TypeAlias = str | Principal
"""A rule, by its id, or somebody: how they stand keeps an entry out."""


@dataclass(frozen=True, slots=True)
class _KeptOut:
    entry: Logged
    reasons: frozenset[Reason]


class History:
    """The entries that may come back, by their places."""

    def __init__(self) -> None:
        self._entries: dict[Place, Logged] = {}
        self._on: dict[TypeKey, set[Place]] = {}
        #: entries that are not known to be kept out
        self._open: set[Place] = set()
        #: also of entries that a draft wrote and that will be written again
        self._kept_out: dict[Place, _KeptOut] = {}
        self._by_reason: dict[Reason, set[Place]] = {}

    @property
    def entries(self) -> Mapping[Place, Logged]:
        """All entries."""
        return MappingProxyType(self._entries)

    @property
    def open(self) -> Collection[Place]:
        """The entries that nothing is known to keep out."""
        return self._open

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
                self._open.discard(place)
                self._forget(change.before)
        for place, change in changes.items():
            if change.after is not None:
                self._entries[place] = change.after
                self._on.setdefault(change.after.event, set()).add(place)
                known = self._kept_out.get(place)
                if known is None or known.entry != change.after:
                    self._let_in(place)

    def keep_out(self, entry: Logged, reasons: frozenset[Reason]) -> None:
        """Note why an entry does not come back; there is one reason at least."""
        self._let_in(entry.place)
        self._open.discard(entry.place)
        self._kept_out[entry.place] = _KeptOut(entry, reasons)
        for reason in reasons:
            self._by_reason.setdefault(reason, set()).add(entry.place)
        if len(self._kept_out) > 2 * len(self._entries) + 16:
            for place in [place for place in self._kept_out if place not in self._entries]:
                self._let_in(place)

    def release(self, reasons: Iterable[Reason]) -> None:
        """Look again at what was kept out for reasons that have changed."""
        for reason in reasons:
            for place in [*self._by_reason.get(reason, ())]:
                self._let_in(place)

    def release_all(self) -> None:
        """Look again at all entries."""
        self._kept_out.clear()
        self._by_reason.clear()
        self._open = set(self._entries)

    def _let_in(self, place: Place) -> None:
        known = self._kept_out.pop(place, None)
        for reason in () if known is None else known.reasons:
            places = self._by_reason[reason]
            places.discard(place)
            if not places:
                del self._by_reason[reason]
        if place in self._entries:
            self._open.add(place)

    def _forget(self, entry: Logged) -> None:
        places = self._on[entry.event]
        places.remove(entry.place)
        if not places:
            del self._on[entry.event]
