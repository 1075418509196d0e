"""What the holders of keys have shown for their rights, for as long as they hold them.

A manager judges holders when policy changes, by what they show. One that cannot be reached for a while has not lost its
right by that: what it has shown last counts until it shows something else, its dates are over or policy says otherwise.
A manager that has only just started knows of its holders by its log, which says that they had a right and until when.
They are given some time to show themselves: little where policy is another one than at the start, and else as long as
an epoch can last. Who is silent for longer than that is judged by what policy says without it: its right may have been
withdrawn while no manager was there to notice.

Judging somebody costs some decisions, and in a network that comes up everybody shows something. Where nothing else has
changed, those alone are judged who do.
"""

from collections.abc import Iterable
from datetime import datetime, timedelta

from penstock.broker.core import Core
from penstock.model.principals import Principal
from penstock.trust.credentials import Credentials


class KeyEvidence:
    """See the module. It begins anew when the log has been read."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self.begin()

    def begin(self) -> None:
        """Begin: nothing has been shown."""
        core = self._core
        self._sources = core.sources
        limits, now = core.settings.limits, core.now()
        self._until = now + timedelta(milliseconds=limits.key_grace)
        self._longest = timedelta(milliseconds=limits.key_longest)
        self._shown: dict[Principal, Credentials] = {}
        self._disclosed: dict[Principal, Credentials] = {}
        self._by: tuple[object, int] | None = None
        #: holders that have shown nothing, and since when that is known; and when the first of them is to be judged
        self._silent: dict[Principal, datetime] = {}
        self._due: datetime | None = now

    def news(self) -> frozenset[Principal] | None:
        """Return who shows something else than when this was asked last; None where everybody is to be judged anew."""
        core, before = self._core, self._disclosed
        by, self._disclosed = (core.sources, core.library.changes), dict(core.disclosed)
        changed = {who for who in {*before, *self._disclosed} if before.get(who) is not self._disclosed.get(who)}
        # Where nothing has changed, it is a date.
        everybody = by != self._by or not changed
        self._by = by
        return None if everybody else frozenset(changed)

    def look(self, holders: Iterable[Principal]) -> None:
        """Take in what holders show now, and forget about those who hold nothing any more."""
        disclosed, known = self._core.disclosed, self._shown
        shown = {broker: disclosed.get(broker, known.get(broker)) for broker in holders}
        self._shown = {broker: bag for broker, bag in shown.items() if bag is not None}

    def joined(self, broker: Principal) -> None:
        """Take in what somebody shows who joins: it may have gone when others are looked at."""
        shown = self._core.disclosed.get(broker)
        if shown is not None:
            self._shown[broker] = shown

    def of(self, broker: Principal) -> Credentials:
        """Return what a broker has shown last."""
        return self._shown.get(broker, Credentials())

    def unseen(self, holders: Iterable[Principal]) -> frozenset[Principal]:
        """Return the holders that are not judged yet: they have shown nothing since the start, and have time to."""
        core, now, before = self._core, self._core.now(), self._silent
        silent = (broker for broker in holders if broker not in self._shown and broker != core.principal)
        self._silent = {broker: before.get(broker, now) for broker in silent}
        changed = core.sources != self._sources
        ends = {broker: self._until if changed else since + self._longest for broker, since in self._silent.items()}
        spared = {broker: until for broker, until in ends.items() if now < until}
        self._due = min(spared.values(), default=None)
        return frozenset(spared)

    @property
    def due(self) -> bool:
        """Whether it is time to judge somebody who has shown nothing."""
        return self._due is not None and self._core.now() >= self._due
