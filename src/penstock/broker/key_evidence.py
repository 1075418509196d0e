"""What the holders of keys have shown for their rights, for as long as they hold them.

A manager judges holders when policy changes, by what they show. One that cannot be reached for a while has not lost its
right by that: what it has shown last counts until it shows something else, its dates are over or policy says otherwise.
A manager that has only just started knows of its holders by its log, which says that they had a right and until when.
They are given some time to show themselves; as long as policy is what it was, whatever time it takes.

Judging somebody costs some decisions, and in a network that comes up everybody shows something. Where nothing else has
changed, those alone are judged who do.
"""

from collections.abc import Iterable
from datetime import timedelta

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
        self._until = core.now() + timedelta(milliseconds=core.settings.limits.key_grace)
        self._shown: dict[Principal, Credentials] = {}
        self._disclosed: dict[Principal, Credentials] = {}
        self._by: tuple[object, int] | None = None
        #: whether somebody was not judged yet
        self.open = False

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
        """Return the holders that cannot be judged yet: they have shown nothing since the start."""
        changed = self._core.sources != self._sources
        self.open = changed and self.waits
        if changed and not self.waits:
            return frozenset()
        return frozenset(broker for broker in holders if broker not in self._shown and broker != self._core.principal)

    @property
    def waits(self) -> bool:
        """Whether holders still have time to show themselves."""
        return self._core.now() < self._until
