"""What a broker seals and opens of blinded types: blocks say labels, and the router hears of labels alone.

To the vault behind it these are blocks of the type that they are of; only their routes are written again.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from penstock.broker.blinding.labels import Labels
from penstock.broker.sealing.blocks import Vault
from penstock.broker.sealing.filters import Filters, NoFilters, OpenedFilter
from penstock.broker.wire.entries import AnyFilter, Filter, SealedFilter
from penstock.codec.blocks import Blinded, BlockHeader, Route, says_labels, with_route, written_route
from penstock.crypto.blinding import is_blinded, unknown_label
from penstock.errors import RefusedError
from penstock.model.events import TransitEvent
from penstock.model.names import TypeKey
from penstock.model.principals import Principal

_CLOSED: Final = NoFilters()


class BlindedFilters:
    """`Filters` for trees with labels, and for all others."""

    def __init__(self, filters: Filters, labels: Labels) -> None:
        self._filters = filters
        self._labels = labels

    @property
    def version(self) -> int:
        """Changes with keys of either kind."""
        return self._filters.version + self._labels.version

    def seal(self, of_type: TypeKey, filter_: Filter, /) -> AnyFilter:
        """Return a filter as neighbours may see it; nothing of it where the type is not known."""
        found = self._type_of(of_type)
        return Filter() if found is None else self._filters.seal(found, filter_)

    def open(self, of_type: TypeKey, sealed: SealedFilter, /) -> OpenedFilter:
        """Open what can be opened."""
        found = self._type_of(of_type)
        return _CLOSED.open(of_type, sealed) if found is None else self._filters.open(found, sealed)

    def attributes(self, route: Route, /) -> Sequence[str]:
        """Return the attributes of a block, if its route or the labels there say them."""
        try:
            return self._labels.resolve(route).attributes if isinstance(route, Blinded) else route.names.attributes
        except RefusedError:
            return ()

    def _type_of(self, of_type: TypeKey) -> TypeKey | None:
        return self._labels.type_of(of_type) if is_blinded(of_type) else of_type


class BlindedVault:
    """A `Vault` over another one, which knows nothing of labels."""

    def __init__(self, vault: Vault, labels: Labels) -> None:
        self._vault = vault
        self._labels = labels
        self.filters = BlindedFilters(vault.filters, labels)
        self.now = vault.now

    def __repr__(self) -> str:
        return f"BlindedVault({self._vault!r})"

    def seals(self, of_type: TypeKey, /) -> bool:
        """Say whether events of a type travel sealed. All that go under labels do, also where nothing opens them."""
        return is_blinded(of_type) or self._vault.seals(of_type)

    def seal(self, events: Sequence[TransitEvent], /) -> bytes:
        """Seal events of one type, or of one label. Raises `RefusedError` (`seal.*`, `seal.unknown-label`)."""
        tree = events[0].key
        if not is_blinded(tree):
            return self._vault.seal(events)
        octets = self._vault.seal(self._known(events))
        return with_route(octets, self._labels.route(tree, written_route(octets)))

    def require(self, events: Sequence[TransitEvent], /) -> None:
        """Check that there are keys to seal events of one type or label. Raises `RefusedError` as `seal`."""
        self._vault.require(self._known(events) if is_blinded(events[0].key) else events)

    def _known(self, events: Sequence[TransitEvent]) -> list[TransitEvent]:
        """Return events of a label under the name of their type. Raises `RefusedError` (`seal.unknown-label`)."""
        of_type = self._labels.type_of(events[0].key)
        if of_type is None:
            raise unknown_label()
        return renamed(events, of_type)

    def open(self, octets: bytes, /) -> Sequence[TransitEvent]:
        """Return the events of a block. Raises `RefusedError` (`seal.*`) and `MalformedError`."""
        if not says_labels(octets):
            return self._vault.open(octets)
        tree, plain = self._named(octets)
        return renamed(self._vault.open(plain), tree)

    def _named(self, octets: bytes) -> tuple[TypeKey, bytes]:
        """Return the label of a block, and the block with the names that its labels stand for."""
        try:
            tree, route = self._labels.names(written_route(octets))
        except RefusedError:
            # As with any key that is not there: it may yet come.
            raise RefusedError(
                "seal.unknown-key", "no key is held here for a blinded block", hint="carry it on, or wait for the key"
            ) from None
        return tree, with_route(octets, route)

    def demands(self, of_type: TypeKey, /) -> bool:
        """Say whether events of a type have to be signed."""
        return self._vault.demands(self._type_of(of_type))

    def verify(self, octets: bytes, events: Sequence[TransitEvent], /) -> None:
        """Check all events of a block against its signature. Raises `RefusedError` (`seal.*`)."""
        if says_labels(octets):
            octets = self._named(octets)[1]
            events = renamed(events, self._type_of(events[0].key))
        self._vault.verify(octets, events)

    def take(self, header: BlockHeader, of_type: TypeKey, rows: Sequence[int], arrived: datetime, /) -> Sequence[int]:
        """Take rows of a block that was opened, each once: also where it comes again under another label."""
        return self._vault.take(header, self._type_of(of_type), rows, arrived)

    def knows(self, header: BlockHeader, of_type: TypeKey, rows: Sequence[int], /) -> bool:
        """Say whether rows of a block have been taken, under whatever label."""
        return self._vault.knows(header, self._type_of(of_type), rows)

    def _type_of(self, of_type: TypeKey) -> TypeKey:
        return (self._labels.type_of(of_type) or of_type) if is_blinded(of_type) else of_type

    def reads_as_much(self, peer: Principal, of_type: TypeKey, /) -> bool:
        """Say whether a neighbour may read all of a type that is read here."""
        # No plaintext goes beside a blinded block: it would say what its route does not.
        return not is_blinded(of_type) and self._vault.reads_as_much(peer, of_type)


def renamed(events: Sequence[TransitEvent], key: TypeKey) -> list[TransitEvent]:
    """Return events as they are, under another name of their type."""
    return [TransitEvent(key, event.ancestors, event.values, event.id, event.time) for event in events]
