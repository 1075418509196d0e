"""Effective requests: the part of a subscription or an advertisement that policy permits (section 6.1).

A subscription to a type falls into parts: one for the type, if the subscriber has a right on it, and one for each
sub-type on which it has rights that reach further. Each part is seen through the type and the version that were asked
for. An event belongs to the part of its nearest ancestor, which holds the branches of the parts above it too.

From the branches of a part follows the filter that goes to the router: where they hold, and the subscriber's own
selector as it reads where what they hide is NULL. Where there is one branch, nothing of this is left to be asked when
an event comes by that filter (class 2 of the paper): it is masked, and that is all. Guards and conditions (class 1)
stay with the local broker, which asks them of the events that the filter lets through (hybrids). Several branches are
told apart at the local broker, since which attributes show depends on which of them hold.
"""

from collections.abc import Collection, Iterable, Iterator, KeysView, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, combinations
from typing import Final, TypeAlias

from penstock.broker.wire.entries import Filter
from penstock.errors import PenstockError
from penstock.guard import (
    ANYTIME,
    Branch,
    Delivery,
    Effect,
    Publication,
    Recorded,
    Restriction,
    Rules,
    TypeScope,
    When,
)
from penstock.guard.limits import BROKER_VIEWS
from penstock.model.names import TypeKey, TypeName
from penstock.model.types import EventType
from penstock.model.values import Schema
from penstock.selector import ALWAYS, Selector, conjunction, disjunction
from penstock.trust.event_types import VerifiedType

_EVERYTHING: Final = Filter()


@dataclass(frozen=True, slots=True)
class Ruled:
    """A type, and the decision about it."""

    type: VerifiedType
    recorded: Recorded

    @property
    def permitted(self) -> bool:
        """Whether anything is allowed."""
        return self.recorded.decision.effect is Effect.PERMIT


@dataclass(frozen=True, slots=True)
class SubscriptionPart:
    """A part of an effective subscription.

    `checked` asks everything of an event, `narrow` what the filter leaves to be asked. `timely` says whether they look
    at the environment.
    """

    type: TypeKey
    restriction: Restriction
    filter: Filter
    narrow: Delivery
    checked: Delivery
    timely: bool
    recorded: Recorded


@dataclass(frozen=True, slots=True)
class Offer:
    """A part of an effective advertisement: the events of one version of a type that may be published."""

    type: EventType
    publication: Publication
    filter: Filter
    timely: bool
    recorded: Recorded
    #: what its attributes are called
    names: KeysView[str] = field(init=False, repr=False, compare=False)
    #: the ids of its attributes, in their order
    layout: tuple[str, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "names", self.type.by_name.keys())
        object.__setattr__(self, "layout", tuple(str(attribute.id) for attribute in self.type.attributes))


@dataclass(frozen=True, slots=True)
class Basis:
    """What the parts of a subscription are derived from, besides its selector: an equal basis gives equal parts."""

    reader: EventType
    schema: Schema
    ruled: tuple[Ruled, ...]

    def is_same(self, other: "Basis") -> bool:
        """Say whether another basis gives the same parts: only the records of decisions may differ."""
        return (
            self.reader == other.reader
            and self.schema == other.schema
            and len(self.ruled) == len(other.ruled)
            and all(map(_same_ruling, self.ruled, other.ruled))
        )

    def moved(self, found: Mapping[TypeKey, SubscriptionPart], other: "Basis") -> dict[TypeKey, SubscriptionPart]:
        """Return parts that were derived from this basis with the records of another that gives the same parts."""
        recorded = {id(one.recorded): new.recorded for one, new in zip(self.ruled, other.ruled, strict=True)}
        return {key: replace(part, recorded=recorded[id(part.recorded)]) for key, part in found.items()}


def _same_ruling(one: Ruled, other: Ruled) -> bool:
    first, second = one.recorded.decision, other.recorded.decision
    return (
        one.type.event_type == other.type.event_type
        and first == second
        and _written(first.restriction.branches) == _written(second.restriction.branches)
    )


def parts(
    reader: EventType, selector: Selector, ruled: Iterable[Ruled], schema: Schema, rules: Rules
) -> dict[TypeKey, SubscriptionPart]:
    """Return the parts of an effective subscription; `ruled` has the version that was asked for, and all sub-types.

    Parents come first in `ruled`. Raises `SelectorError` when the selector does not fit the type.
    """
    selector.check(reader.schema)
    found: dict[TypeKey, SubscriptionPart] = {}
    own: dict[TypeKey, list[Branch]] = {}
    for one in ruled:
        event_type = one.type.event_type
        if not one.permitted or (event_type.key == reader.key and event_type != reader):
            continue
        own.setdefault(event_type.key, []).extend(_seen_through(reader, event_type, one.recorded))
        above = next((found[key] for key in event_type.ancestors if key in found), None)
        inherited = above.restriction.branches if above else ()
        branches = _usable(reader, prune([*inherited, *own[event_type.key]]), rules)
        if branches and (above is None or _written(branches) != _written(inherited)):
            found[event_type.key] = _part(event_type.key, reader, selector, branches, schema, rules, one.recorded)
    return found


Permitted: TypeAlias = frozenset[tuple[TypeKey | TypeName, frozenset[tuple[Branch, Selector]]]]
"""What an effective request permits, for each type: two that differ only in dates or in certificates are equal."""


def permitted(restrictions: Iterable[tuple[TypeKey | TypeName, Restriction]]) -> Permitted:
    """Return what restrictions permit, without the dates: a client that watches its rights learns when one ends."""
    return frozenset((about, frozenset(_written(map(_dateless, one.branches)))) for about, one in restrictions)


def _dateless(branch: Branch) -> Branch:
    return replace(branch, when=When(condition=branch.when.condition))


def _written(branches: Iterable[Branch]) -> set[tuple[Branch, Selector]]:
    # In Python 1, 1.0 and True are equal; as forced values they are three, and are written differently.
    return {(branch, branch.holds_where()) for branch in branches}


def _seen_through(reader: EventType, event_type: EventType, recorded: Recorded) -> Iterator[Branch]:
    """Yield branches about a type as they are about its events in the reader's type.

    What the version lacks that a right speaks about, the right does not show, though the reader's version may have it.
    """
    known = reader.by_id.keys() & event_type.by_id.keys()
    for branch in recorded.decision.restriction.branches:
        shown = known if branch.attributes is None else known & branch.attributes
        yield replace(branch, types=TypeScope(), attributes=frozenset(shown))


def prune(branches: Iterable[Branch]) -> tuple[Branch, ...]:
    """Remove branches that another branch makes redundant: it shows as much, and holds whenever they do."""
    kept: list[Branch] = []
    for branch in Restriction.of(branches).branches:
        if not any(_outdoes(other, branch) for other in kept):
            kept = [other for other in kept if not _outdoes(branch, other)]
            kept.append(branch)
    return tuple(kept)


def _outdoes(one: Branch, other: Branch) -> bool:
    return (
        all(one.shows(attribute) for attribute in other.attributes or ())
        and (one.attributes is None or other.attributes is not None)
        and one.guards <= other.guards
        and (one.only is None or (other.only is not None and other.only <= one.only))
        and one.when in (ANYTIME, other.when)
        and one.holds_where() in (ALWAYS, other.holds_where())
    )


def _usable(reader: EventType, branches: tuple[Branch, ...], rules: Rules) -> tuple[Branch, ...]:
    """Remove branches that cannot be enforced, so that the others still can."""
    kept: list[Branch] = []
    for branch in branches:
        try:
            Delivery(Restriction((branch,)), reader, ALWAYS, rules)
        except PenstockError as error:
            rules.on_problem(error.code, branch.because)
        else:
            kept.append(branch)
    return tuple(kept)


def _part(  # noqa: PLR0913, PLR0917  # what a part is made of
    key: TypeKey,
    reader: EventType,
    selector: Selector,
    branches: tuple[Branch, ...],
    schema: Schema,
    rules: Rules,
    recorded: Recorded,
) -> SubscriptionPart:
    restriction = Restriction(branches)
    filter_, exact = pushed(reader, selector, branches, schema)
    checked = narrow = Delivery(restriction, reader, selector, rules)
    if exact:
        narrow = Delivery(Restriction((replace(branches[0], where=ALWAYS, forced=()),)), reader, ALWAYS, rules)
    return SubscriptionPart(key, restriction, filter_, narrow, checked, _timely(branches), recorded)


def _timely(branches: Iterable[Branch]) -> bool:
    return any(branch.when != ANYTIME or branch.guards for branch in branches)


def pushed(reader: EventType, selector: Selector, branches: Sequence[Branch], schema: Schema) -> tuple[Filter, bool]:
    """Return a filter that passes every event for the subscriber, and whether it passes no other event.

    A filter that would be too large, or reads attributes that are not known here, is replaced by a wider one.
    """
    try:
        return Filter.of(disjunction(*_terms(reader, selector, branches)), schema), len(branches) == 1
    except PenstockError:
        pass
    try:
        return Filter.of(disjunction(*(branch.holds_where() for branch in branches)), schema), False
    except PenstockError:
        return _EVERYTHING, False


def _terms(reader: EventType, selector: Selector, branches: Sequence[Branch]) -> Iterator[Selector]:
    """Yield a condition for each set of branches that may hold together and show the selector different things."""
    asked = {name: reader.by_name[name].id for name in selector.attributes}
    views: dict[frozenset[str], list[Selector]] = {}
    for branch in branches:
        visible = frozenset(name for name, attribute in asked.items() if branch.shows(attribute))
        views.setdefault(visible, []).append(branch.holds_where())
    if len(views) > BROKER_VIEWS:
        yield disjunction(*chain.from_iterable(views.values()))
        return
    for size in range(1, len(views) + 1):
        for chosen in combinations(views, size):
            held = (disjunction(*views[visible]) for visible in chosen)
            yield conjunction(*held, _by_id(reader, selector, frozenset().union(*chosen)))


def _by_id(reader: EventType, selector: Selector, visible: Collection[str]) -> Selector:
    """Return a selector over attribute ids, with NULL in the place of hidden attributes."""
    masked = selector.nullify(selector.attributes - frozenset(visible))
    return masked.rename({name: str(reader.by_name[name].id) for name in masked.attributes})


def offers(ruled: Iterable[Ruled], schema: Schema, rules: Rules) -> Iterator[Offer]:
    """Yield the offers of an effective advertisement: one for each version that may be published in part."""
    for one in ruled:
        event_type = one.type.event_type
        if not one.permitted:
            continue
        try:
            publication = Publication(one.recorded.decision.restriction, event_type, rules)
        except PenstockError as error:
            rules.on_problem(error.code, one.recorded.decision.because)
            continue
        branches = [replace(branch, forced=forced) for forced, members in publication.groups for branch in members]
        if branches:
            yield Offer(event_type, publication, _announced(branches, schema), _timely(branches), one.recorded)


def _announced(branches: Iterable[Branch], schema: Schema) -> Filter:
    """Return a filter that passes everything that these branches permit."""
    try:
        return Filter.of(disjunction(*(branch.holds_where() for branch in branches)), schema)
    except PenstockError:
        return _EVERYTHING
