"""The router of a broker that knows blinded types: clients say their names, neighbours hear labels.

A wish of a client (to publish a type, or to have it) stands in the trees of all labels that the type has for now, and
of no others. When labels come and go, or an owner begins to blind a type, wishes move: into the new trees first, then
out of the old ones. To the router these are wishes under names of their own; what it says about them is put together
here.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from penstock.broker.blinding.labels import Labels
from penstock.broker.blinding.vault import renamed
from penstock.broker.routing.filters import check_new, check_passing, passing_of
from penstock.broker.routing.outputs import Deliver, Deliveries, Interested, Output, RouterSettings
from penstock.broker.routing.router import Router
from penstock.broker.wire.entries import Filter
from penstock.crypto.blinding import is_blinded
from penstock.model.events import TransitEvent
from penstock.model.names import TypeKey
from penstock.model.principals import Principal
from penstock.selector import Compiled


@dataclass(slots=True)
class _Wish:
    """What a client wants to publish or to have, and the names under which the router knows it."""

    type: TypeKey
    filter: Filter | None
    #: the ancestors of what is published
    line: tuple[TypeKey, ...] = ()
    #: whose it is, where that bounds it
    group: str = ""
    #: what passes of it, and None where everything does
    passes: Compiled | None = None
    placed: tuple[str, ...] = ()


@dataclass(slots=True)
class _Wishes:
    """Wishes of one kind: how they are entered in the router and withdrawn, and in which trees they belong."""

    enter: Callable[[str, TypeKey, _Wish], list[Output]]
    leave: Callable[[str], list[Output]]
    trees: Callable[[TypeKey], list[TypeKey]]
    by_key: dict[str, _Wish] = field(default_factory=dict)
    #: for those that stand under labels, the client's key
    keys: dict[str, str] = field(default_factory=dict)

    def begin(self, key: str, wish: _Wish) -> list[Output]:
        """Take in a wish. Raises `RefusedError` (`route.key`)."""
        check_new(key, self.by_key)
        self.by_key[key] = wish
        return self.place(key, wish)

    def end(self, key: str) -> list[Output]:
        """Take a wish out. Raises `RefusedError` (`route.unknown`)."""
        wish = self.by_key.pop(key, None)
        if wish is None:
            return self.leave(key)
        return [output for name in wish.placed for output in self._displace(name)]

    def place(self, key: str, wish: _Wish) -> list[Output]:
        """Let a wish stand where it belongs, and nowhere else."""
        trees = {name_in(key, tree): tree for tree in self.trees(wish.type)}
        before, wish.placed = wish.placed, tuple(trees)
        said: list[Output] = []
        for name, tree in trees.items():
            if is_blinded(tree):
                self.keys[name] = key
            if name not in before:
                said += self.enter(name, tree, wish)
        for name in before:
            if name not in trees:
                said += self._displace(name)
        return said

    def place_all(self) -> list[Output]:
        """Let all wishes stand where they belong."""
        return [output for key, wish in self.by_key.items() for output in self.place(key, wish)]

    def _displace(self, name: str) -> list[Output]:
        said = self.leave(name)
        self.keys.pop(name, None)
        return said


def name_in(key: str, tree: TypeKey) -> str:
    """Return the name under which the router knows a client's wish in a tree."""
    return f"{key} {tree.name}" if is_blinded(tree) else key


_Demand: TypeAlias = dict[str, bool]


class BlindingRouter(Router):
    """See the module."""

    def __init__(self, me: Principal, incarnation: int, settings: RouterSettings, labels: Labels) -> None:
        super().__init__(me, incarnation, settings)
        self._labels = labels
        #: the version of the labels under which wishes stand
        self.labelled = labels.version
        self._offers = _Wishes(self._offer, self._withdraw, labels.trees)
        self._requests = _Wishes(self._request, super().unsubscribe, labels.line)
        #: of each advertisement under labels, under which somebody wants it; and what the client was sent
        self._demands: dict[str, _Demand] = {}
        self._told: dict[str, bool] = {}

    # Clients.

    def advertise(
        self, key: str, of_type: TypeKey, ancestors: Iterable[TypeKey] = (), filter_: Filter | None = None
    ) -> list[Output]:
        """Let a client publish events of a type. Raises what the router raises."""
        line, passing = tuple(ancestors), passing_of(filter_ or Filter())
        return self._offers.begin(key, _Wish(of_type, filter_, line, passes=passing))

    def unadvertise(self, key: str) -> list[Output]:
        """Take an advertisement back. Raises what the router raises."""
        self._demands.pop(key, None)
        self._told.pop(key, None)
        return self._offers.end(key)

    def subscribe(self, key: str, of_type: TypeKey, filter_: Filter | None = None, group: str = "") -> list[Output]:
        """Subscribe a client to a type and its sub-types. Raises errors of the router."""
        return self._requests.begin(key, _Wish(of_type, filter_, group=group))

    def unsubscribe(self, key: str) -> list[Output]:
        """Take a subscription back. Raises what the router raises."""
        return self._requests.end(key)

    def check_events(self, key: str, events: Sequence[TransitEvent]) -> None:
        """Check that events are what an advertisement announces. Raises what the router raises."""
        wish = self._offers.by_key.get(key)
        if wish is None or not self._labels.blinds(wish.type):
            super().check_events(key, events)
        else:
            check_passing(wish.type, wish.passes, events)

    def send(self, events: Sequence[TransitEvent], retain: str = "") -> list[Output]:
        """Send events that were checked. Raises what the router raises, and `seal.unknown-label`."""
        of_type = events[0].key
        if not self._labels.blinds(of_type):
            return super().send(events, retain)
        said = self.labels_changed()
        return [*said, *super().send(renamed(events, self._labels.in_use(of_type)), retain)]

    def wanted(self) -> frozenset[TypeKey]:
        """Return the types that clients have subscribed to."""
        return frozenset(wish.type for wish in self._requests.by_key.values())

    def labels_changed(self) -> list[Output]:
        """Let wishes stand in other trees than before, if labels or blinded types have come or gone."""
        if self.labelled == self._labels.version:
            return []
        self.labelled = self._labels.version
        return [*self._offers.place_all(), *self._requests.place_all()]

    def _trees_of(self, key: str) -> Iterable[TypeKey]:
        wishes = (self._requests.by_key.get(key), self._offers.by_key.get(key))
        names = [name for wish in wishes if wish is not None for name in wish.placed]
        return [tree for trees in map(super()._trees_of, names) for tree in trees]

    # Calls of the router.

    def _offer(self, name: str, tree: TypeKey, wish: _Wish) -> list[Output]:
        # Who wants an ancestor asks for this type by its own label: nobody has to hear what it extends.
        return super().advertise(name, tree, () if is_blinded(tree) else wish.line, wish.filter)

    def _withdraw(self, name: str) -> list[Output]:
        return [*super().unadvertise(name), *self._interested(name, wanted=False)]

    def _request(self, name: str, tree: TypeKey, wish: _Wish) -> list[Output]:
        return super().subscribe(name, tree, wish.filter, wish.group)

    # What the router says.

    def _settle(self) -> list[Output]:
        outputs = super()._settle()
        if not self._offers.keys and not self._requests.keys:
            return outputs
        return [said for output in outputs for said in self._said(output)]

    def _said(self, output: Output) -> list[Output]:
        match output:
            case Deliver(deliveries):
                return [Deliver(self._named(deliveries))]
            case Interested(name, wanted) if name in self._offers.keys:
                return self._interested(name, wanted=wanted)
        return [output]

    def _interested(self, name: str, *, wanted: bool) -> list[Output]:
        """Tell a client that somebody wants what it advertises, under one label at least, where that is news."""
        key = self._offers.keys.get(name)
        if key is None or key not in self._offers.by_key:
            return []
        demand = self._demands.setdefault(key, {})
        demand[name] = wanted
        if not wanted:
            del demand[name]
        if self._told.get(key) is bool(demand):
            return []
        self._told[key] = bool(demand)
        return [Interested(key, bool(demand))]

    def _named(self, deliveries: Deliveries) -> Deliveries:
        """Return deliveries by the names that clients know; without those of labels that have just gone."""
        return tuple(named for delivery in deliveries if (named := self._name(*delivery)) is not None)

    def _name(self, names: tuple[str, ...], event: TransitEvent) -> tuple[tuple[str, ...], TransitEvent] | None:
        if not is_blinded(event.key):
            return names, event
        of_type = self._labels.type_of(event.key)
        if of_type is None:
            return None
        return tuple(self._requests.keys[name] for name in names), renamed((event,), of_type)[0]
