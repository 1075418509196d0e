"""The labels under which one broker speaks of blinded types with others (dissertation, section 8.2).

A label is made with a key that the brokers of the type share (`KeyGroup.labels`). When that key changes, everybody who
has it advertises and subscribes under both labels for a while (`BrokerLimits.label_overlap`), and publishes under the
old one for the first half of that time and under the new one from then on. So each event goes one way only, and whoever
has heard of the new key within half of the time finds it there; a broker that starts in between also asks for the old
key.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

from penstock.broker.limits import BrokerLimits
from penstock.broker.local.type_library import Library
from penstock.codec.blocks import Blinded, BlockNames, PlainNames, Route, read_route, write_route
from penstock.crypto.blinding import Directory, blind, blinded_key, label, unknown_label
from penstock.crypto.wrapping import Secret
from penstock.model.names import TypeKey

_EVER: Final = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class _Label:
    """One label of a type: the name that is made of it, its key, and when that began."""

    type: TypeKey
    tree: TypeKey
    key: Secret = field(repr=False)
    begun: datetime


class Labels:
    """See the module."""

    def __init__(self, library: Library, clock: Callable[[], datetime], limits: BrokerLimits) -> None:
        self._library = library
        self._clock = clock
        self._limits = limits
        self._overlap = timedelta(milliseconds=limits.label_overlap)
        #: by type and epoch, the oldest first
        self._held: dict[TypeKey, dict[int, _Label]] = {}
        self._trees: dict[TypeKey, _Label] = {}
        self._used: dict[TypeKey, TypeKey] = {}
        self._directory = Directory()
        #: routes that were written again, with labels and without
        self._routes: dict[tuple[TypeKey, bytes], bytes] = {}
        self._named: dict[bytes, tuple[TypeKey, bytes]] = {}
        self._revision = -1
        self._changes = 0

    def __repr__(self) -> str:
        return f"Labels({len(self._trees)})"

    @property
    def version(self) -> int:
        """Changes when labels or blinded types come or go, and when other labels are to be used."""
        return self._changes + self._library.revision

    # Keys.

    def put(self, of_type: TypeKey, epoch: int, key: Secret, begun: datetime | None = None) -> None:
        """Take the key of labels in an epoch, and when that began; None for one that is over."""
        found = _Label(of_type, blinded_key(label(key, str(of_type))), key, begun or _EVER)
        self._held[of_type] = dict(sorted({**self._held.get(of_type, {}), epoch: found}.items()))
        self._changed()

    def drop(self, of_type: TypeKey, epoch: int) -> None:
        """Forget a key, if it was there. Who loses the newest loses all: it has no right to any of them."""
        held = self._held.get(of_type, {})
        if epoch not in held:
            return
        gone = list(held) if epoch == max(held) else [epoch]
        self._held[of_type] = {number: one for number, one in held.items() if number not in gone}
        if not self._held[of_type]:
            del self._held[of_type]
        self._changed()

    def tick(self) -> None:
        """Go over to labels that all others should know by now, and forget those that nobody uses any more."""
        over = [(of_type, epoch) for of_type in self._held for epoch in self._over(of_type)]
        for of_type, epoch in over:
            self.drop(of_type, epoch)
        if self._used != self._in_use():
            self._changed()

    def missing(self, of_type: TypeKey) -> int | None:
        """Return the epoch whose labels are still in use and not known here; None where there is none."""
        held = self._held.get(of_type)
        if not held:
            return None
        newest = max(held)
        recent = newest > 1 and self._clock() < held[newest].begun + self._overlap
        return newest - 1 if recent and newest - 1 not in held else None

    def _over(self, of_type: TypeKey) -> list[int]:
        held, now = self._held[of_type], self._clock()
        newest = max(held)
        return [epoch for epoch in held if epoch != newest and now >= held[newest].begun + self._overlap]

    def _in_use(self) -> dict[TypeKey, TypeKey]:
        """Return the label of each type under which events go: the newest one that is not too new."""
        settled = self._clock() - self._overlap / 2
        used: dict[TypeKey, TypeKey] = {}
        for of_type, held in self._held.items():
            known = [one.tree for one in held.values() if one.begun <= settled]
            # Who has only just come to know any has nothing but the oldest of them.
            used[of_type] = known[-1] if known else next(iter(held.values())).tree
        return used

    def _changed(self) -> None:
        self._changes += 1
        self._trees = {one.tree: one for held in self._held.values() for one in held.values()}
        self._used = self._in_use()
        self._routes.clear()
        self._revision = -1

    def keys(self, of_type: TypeKey) -> list[tuple[int, Secret]]:
        """Return the keys of labels that are held, by epoch."""
        return [(epoch, one.key) for epoch, one in self._held.get(of_type, {}).items()]

    # Names.

    def blinds(self, of_type: TypeKey) -> bool:
        """Say whether the owner of a type wants it blinded."""
        return of_type in self._library.blinded

    def trees(self, of_type: TypeKey) -> list[TypeKey]:
        """Return the names under which brokers speak of a type: its labels where it is blinded, or its own."""
        if not self.blinds(of_type):
            return [of_type]
        return [one.tree for one in self._held.get(of_type, {}).values()]

    def line(self, of_type: TypeKey) -> list[TypeKey]:
        """Return the names under which brokers are asked for a type.

        Of one that is blinded, others are not told what extends it. So that who wants it has its sub-types too, each of
        them is asked for by its own label, where it is known here.
        """
        if not self.blinds(of_type):
            return [of_type]
        below = {verified.event_type.key for verified in self._library.below(of_type, self._clock())}
        return [tree for one in sorted(below | {of_type}) for tree in self.trees(one)]

    def in_use(self, of_type: TypeKey) -> TypeKey:
        """Return the label under which events of a type go. Raises `RefusedError` (`seal.unknown-label`)."""
        found = self._used.get(of_type)
        if found is None:
            raise unknown_label()
        return found

    def type_of(self, tree: TypeKey) -> TypeKey | None:
        """Return the type that has a label, if it is known here."""
        found = self._trees.get(tree)
        return None if found is None else found.type

    # Routes of blocks, as they are written.

    def route(self, tree: TypeKey, plain: bytes) -> bytes:
        """Return the route of a block that goes under a label. Raises `RefusedError` (`seal.unknown-label`)."""
        found = self._routes.get((tree, plain))
        if found is None:
            if tree not in self._trees:
                raise unknown_label()
            made = write_route(blind(self._trees[tree].key, self._directory.resolve(read_route(plain))))
            found = self._routes[tree, plain] = self._bounded(made)
        return found

    def names(self, blinded: bytes) -> tuple[TypeKey, bytes]:
        """Return the label of a block, and its route with the names that its labels stand for.

        Raises `RefusedError` (`seal.unknown-label`) and what reading a route raises.
        """
        self._learn()
        found = self._named.get(blinded)
        if found is None:
            route = read_route(blinded)
            names = self.resolve(route)
            tree = blinded_key(route.type) if isinstance(route, Blinded) else names.type
            found = self._named[blinded] = tree, self._bounded(write_route(PlainNames(names)))
        return found

    def resolve(self, route: Route) -> BlockNames:
        """Return the names of a route. Raises `RefusedError` (`seal.unknown-label`)."""
        self._learn()
        return self._directory.resolve(route)

    def _bounded(self, route: bytes) -> bytes:
        if len(self._routes) + len(self._named) >= self._limits.seal_streams:
            self._routes.clear()
            self._named.clear()
        return route

    def _learn(self) -> None:
        """Learn the labels of all names again, where types or keys have come or gone."""
        if self._revision == self._library.revision:
            return
        self._revision, self._directory = self._library.revision, Directory()
        self._named.clear()
        for one in self._trees.values():
            for line, attributes in self._names(one.type):
                self._directory.add(one.key, line, attributes)

    def _names(self, of_type: TypeKey) -> Iterator[tuple[tuple[TypeKey, ...], tuple[str, ...]]]:
        for verified in self._library.below(of_type, self._clock()):
            event_type = verified.event_type
            if event_type.key == of_type:
                line = (of_type, *event_type.ancestors)
                yield line, tuple(str(attribute.id) for attribute in event_type.attributes)
