"""The keys of a broker that runs, with what its key groups say of their epochs.

Which epoch is sealed under is said by the group, and not by the number: an epoch has begun, or it is over. What is
sealed in an epoch that is over is not opened any more, by the time at which it arrives; what is of one that is still
to be told of waits for its key. Keys of old epochs, which somebody was given for reading logs, open nothing here.
"""

from penstock.crypto.seal_keys import KeyRing
from penstock.crypto.wrapping import Secret


class LiveKeys(KeyRing):
    """See the module. Nothing is over, and nothing to come, of scopes whose keys nobody expects here."""

    def __init__(self) -> None:
        super().__init__()
        self._current: dict[str, int] = {}
        #: epochs whose keys open what arrives, by scope; and the highest of those that have ever been
        self._open: dict[str, set[int]] = {}
        self._highest: dict[str, int] = {}
        self._missed: dict[str, int] = {}

    def expect(self, scope: str) -> None:
        """Take note that this broker is in the group of a scope, or is about to be."""
        if scope not in self._open:
            self._open[scope] = set()
            self.version += 1

    def begin(self, scope: str, epoch: int, key: Secret) -> None:
        """Take the key of an epoch, and seal under it unless there is a later one."""
        self.expect(scope)
        self._open[scope].add(epoch)
        self._current[scope] = max(epoch, self._current.get(scope, 0))
        self._highest[scope] = max(epoch, self._highest.get(scope, 0))
        self.put(scope, epoch, key)

    def close(self, scope: str, epoch: int) -> None:
        """Forget the key of an epoch, which is over."""
        self._open.get(scope, set()).discard(epoch)
        if self._current.get(scope) == epoch:
            del self._current[scope]
        self.drop(scope, epoch)

    def leave(self, scope: str) -> None:
        """Expect nothing more of a scope: this broker has left its group."""
        for epoch in self._open.pop(scope, set()):
            self.drop(scope, epoch)
        for known in (self._current, self._highest, self._missed):
            known.pop(scope, None)
        self.version += 1

    def current(self, scope: str) -> int | None:
        """Return the epoch that the group says is the current one."""
        return self._current.get(scope)

    def is_expected(self, scope: str) -> bool:
        """Say whether keys of a scope are held here, or will be."""
        return scope in self._open

    def is_over(self, scope: str, epoch: int) -> bool:
        """Say whether an epoch is over, or was before this broker came."""
        held = self._open.get(scope)
        return held is not None and epoch not in held and epoch <= self._highest.get(scope, 0)

    def awaits(self, scope: str, epoch: int) -> bool:
        """Say whether the key of an epoch is still to come; if so, `missed` tells of it."""
        if scope not in self._open or epoch <= self._highest.get(scope, 0):
            return False
        self._missed[scope] = max(epoch, self._missed.get(scope, 0))
        return True

    def missed(self) -> dict[str, int]:
        """Return which epochs were asked for and not known since this was asked last: the highest of each scope."""
        missed, self._missed = self._missed, {}
        return missed
