"""What the clients of a router may publish, by the keys under which they have advertised it."""

from collections.abc import Callable, Container, Iterable, Sequence
from typing import NamedTuple

from penstock.broker.entries import Advertisement, Filter
from penstock.broker.filters import passes
from penstock.errors import RefusedError
from penstock.model.events import TransitEvent
from penstock.model.names import TypeKey
from penstock.selector import ALWAYS, Compiled


class _Announced(NamedTuple):
    entries: tuple[Advertisement, ...]
    #: None where everything passes
    passes: Compiled | None


class Advertised:
    """See the module. `seals` says which types travel sealed."""

    def __init__(self, seals: Callable[[TypeKey], bool]) -> None:
        self._seals = seals
        self._by_key: dict[str, _Announced] = {}

    def __len__(self) -> int:
        return len(self._by_key)

    def put(
        self, key: str, of_type: TypeKey, ancestors: Iterable[TypeKey], filter_: Filter
    ) -> tuple[Advertisement, ...]:
        """Take in what a client advertises, and return its entries in the trees of the type and of its ancestors.

        Raises `RefusedError` (`route.key`) if the key is taken.
        """
        check_new(key, self._by_key)
        # What events may hold is nobody's business on the way where they are sealed.
        own = Advertisement(of_type, of_type, Filter() if self._seals(of_type) else filter_)
        entries = (own, *(Advertisement(a, of_type) for a in dict.fromkeys(ancestors) if a != of_type))
        self._by_key[key] = _Announced(entries, passing_of(filter_))
        return entries

    def pop(self, key: str) -> tuple[Advertisement, ...]:
        """Take it out, and return what was entered. Raises `RefusedError` (`route.unknown`)."""
        check_known(key, self._by_key)
        return self._by_key.pop(key).entries

    def trees(self, key: str) -> tuple[TypeKey, ...]:
        """Return the trees in which something is advertised under a key."""
        return tuple(entry.tree for entry in self._by_key[key].entries) if key in self._by_key else ()

    def check(self, key: str, events: Sequence[TransitEvent]) -> None:
        """Check that events are what is advertised under a key.

        Raises `RefusedError`: `route.unknown`, `route.outside`.
        """
        check_known(key, self._by_key)
        entries, passing = self._by_key[key]
        check_passing(entries[0].type, passing, events)


def passing_of(filter_: Filter) -> Compiled | None:
    """Return what passes a filter, and None where everything does."""
    return None if filter_.selector == ALWAYS else passes(filter_)


def check_passing(of_type: TypeKey, passing: Compiled | None, events: Sequence[TransitEvent]) -> None:
    """Check that events are of a type, and pass a filter, if there is one. Raises `RefusedError` (`route.outside`)."""
    for event in events:
        if event.key != of_type or (passing is not None and not passing(event.values)):
            raise RefusedError(
                "route.outside", "the event is not what was advertised", hint="advertise what you publish"
            )


def check_new(key: str, taken: Container[str]) -> None:
    """Check that a key is free. Raises `RefusedError` (`route.key`)."""
    if key in taken:
        raise RefusedError("route.key", f"`{key[:80]}` is in use already", hint="take another key")


def check_known(key: str, taken: Container[str]) -> None:
    """Check that there is something under a key. Raises `RefusedError` (`route.unknown`)."""
    if key not in taken:
        raise RefusedError("route.unknown", f"there is nothing under `{key[:80]}`")
