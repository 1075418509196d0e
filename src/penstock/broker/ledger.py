"""What two neighbours have entered with each other in their present sessions."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from penstock.broker.entries import Entry
from penstock.broker.messages import Enter, Withdraw
from penstock.errors import LimitError, MalformedError
from penstock.model.names import TypeKey


@dataclass(slots=True)
class Ledger:
    """What a neighbour has entered here, under its handles, and what was entered there, under mine."""

    entered: dict[int, Entry] = field(default_factory=dict)
    #: the handles of that which it may enter
    heeded: set[int] = field(default_factory=set)
    told: dict[TypeKey, dict[Entry, int]] = field(default_factory=dict)
    _handles: int = 0

    def enter(self, handle: int, entry: Entry, most: int) -> None:
        """Write down what the neighbour enters.

        Raises `MalformedError` (`route.handle`) if the handle is taken, `LimitError` (`route.limit`) beyond `most`.
        """
        if handle in self.entered:
            raise MalformedError("route.handle", "a neighbour enters two things under one handle")
        if len(self.entered) >= most:
            raise LimitError("route.limit", f"a neighbour enters more than {most} things")
        self.entered[handle] = entry

    def withdraw(self, handle: int) -> Entry:
        """Strike out what the neighbour withdraws, and return it. Raises `MalformedError` (`route.handle`)."""
        if handle not in self.entered:
            raise MalformedError("route.handle", "a neighbour withdraws what it has not entered")
        return self.entered.pop(handle)

    def heed(self, handle: int, *, allowed: bool) -> bool:
        """Let an entry count, or no longer; say whether that is a change."""
        if allowed == (handle in self.heeded):
            return False
        if allowed:
            self.heeded.add(handle)
        else:
            self.heeded.discard(handle)
        return True

    def counting(self) -> Iterator[Entry]:
        """Yield what the neighbour has entered, and may enter."""
        return (self.entered[handle] for handle in self.heeded)

    def forget_told(self) -> None:
        """Forget what was entered with the neighbour: a session begins, or is over."""
        self.told, self._handles = {}, 0

    def tell(self, entry: Entry) -> Enter:
        """Enter something with the neighbour."""
        self._handles += 1
        self.told.setdefault(entry.tree, {})[entry] = self._handles
        return Enter(self._handles, entry)

    def untell(self, entry: Entry) -> Withdraw:
        """Withdraw something from the neighbour."""
        told = self.told[entry.tree]
        handle = told.pop(entry)
        if not told:
            del self.told[entry.tree]
        return Withdraw(handle)

    def differing(self, key: TypeKey, wanted: Mapping[Entry, bool]) -> Iterator[tuple[Entry, bool]]:
        """Yield what of a tree has to be told (True) or taken back (False)."""
        told = self.told.get(key, {})
        return ((entry, holds) for entry, holds in wanted.items() if holds != (entry in told))
