"""An index of children by the equalities and ranges that they cannot do without, so that few of many are looked at.

A target that wants an attribute to have one of some values does not match where it has none of them, whatever else
there is in the target and whatever fails in it: for one part that does not match, all does not. Such a child says
NotApplicable and may be left out. What cannot be known is not left out: attributes that must be present and are not.
"""

import operator
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product
from math import prod
from operator import contains
from typing import Final, Generic, TypeAlias, TypeVar

from penstock.errors import EvaluationError
from penstock.policy.datatypes import DOUBLE, Value
from penstock.policy.expressions import Designator
from penstock.policy.functions import FUNCTIONS
from penstock.policy.index_comparisons import Comparisons, Leads
from penstock.policy.index_ranges import Bags, Ranges
from penstock.policy.policies import AnyOf, Target

T = TypeVar("T")
U = TypeVar("U")

Needs: TypeAlias = Mapping[Designator, frozenset[Value]]
"""Values of which an attribute must have one."""

#: what is no number is equal to itself, and found by nothing
_EQUALITIES: Final = frozenset(
    function for function in FUNCTIONS.values() if function.call is operator.eq and function.takes[0] is not DOUBLE
)
#: a child is entered under so many combinations of values at most
_MOST_ENTRIES: Final = 64
#: more kinds of needs than this are told apart by one attribute alone
_MOST_KINDS: Final = 8
_FEWEST: Final = 4
#: fewer children than this are asked one by one, without making the tests of all; making one is that much cheaper
_MANY: Final = 16
_CHEAPER: Final = 8


def necessary(target: Target) -> dict[Designator, frozenset[Value]]:
    """Return the equalities that a target cannot do without."""
    found: dict[Designator, frozenset[Value]] = {}
    for any_of in target:
        for attribute, values in _needed(any_of).items():
            # It may have several values, and one for each that is wanted: both together would be too little.
            found[attribute] = min(found[attribute], values, key=len) if attribute in found else values
    return found


def _needed(any_of: AnyOf) -> dict[Designator, frozenset[Value]]:
    """Return the attributes that each alternative wants to be equal to something."""
    sides: list[dict[Designator, frozenset[Value]]] = []
    for all_of in any_of:
        side: dict[Designator, frozenset[Value]] = {}
        for match in all_of:
            attribute = match.attribute
            if match.function in _EQUALITIES and isinstance(attribute, Designator) and attribute.issuer is None:
                side.setdefault(attribute, frozenset((match.value,)))
        sides.append(side)
    common = set(sides[0]).intersection(*sides[1:]) if sides else set()
    return {attribute: frozenset().union(*(side[attribute] for side in sides)) for attribute in common}


class Index(Generic[T]):
    """Children that are found by what they need."""

    def __init__(
        self,
        children: Sequence[T],
        found: Sequence[T],
        always: Sequence[int] | Ranges,
        groups: "Sequence[_Group | Ranges]",
        compared: Comparisons | None = None,
    ) -> None:
        self._compared = compared
        self._children = children
        self._found = found
        self._always = () if isinstance(always, Ranges) else tuple(always)
        self._groups = (*groups, always) if isinstance(always, Ranges) else tuple(groups)

    @classmethod
    def of(  # noqa: PLR0913  # one argument for each thing that is known of children
        cls,
        needs: Sequence[Needs],
        children: Sequence[U],
        targets: Sequence[Target],
        known: Callable[[U], T],
        reaches: Sequence[Target] | None = None,
        *,
        leads: Callable[[], Sequence[Leads | None]] | None = None,
    ) -> "Index[T | U] | None":
        """Return an index, or none where there is nothing to gain.

        A child that is found by all that its target wants is given as `known`: its target need not be asked again.
        `reaches` are targets without which children are not applicable, where more is known about that. `leads` says
        how their conditions begin: it is asked where many are found by their targets.
        """
        if len(children) < _FEWEST:
            return None
        kinds = [_kind(one) for one in needs]
        if len(set(kinds)) > _MOST_KINDS:
            usual = Counter(attribute for kind in kinds for attribute in kind)
            kinds = [(max(kind, key=lambda one: (usual[one], one.id)),) if kind else () for kind in kinds]
        groups: dict[tuple[Designator, ...], _Group] = {}
        always: list[int] = []
        found: list[T | U] = [*children]
        for place, kind in enumerate(kinds):
            if not kind:
                always.append(place)
                continue
            if kind not in groups:
                groups[kind] = _Group(kind)
            groups[kind].enter(place, [needs[place][attribute] for attribute in kind])
            if _covered(targets[place], kind):
                found[place] = known(children[place])
        ranged = targets if reaches is None else reaches
        for group in groups.values():
            group.range(ranged)
        rest = Ranges.of(always, ranged) or always
        many = max([len(always), *(group.most for group in groups.values())]) >= _MANY
        compared = Comparisons.of(leads()) if many and leads is not None else None
        gained = groups or isinstance(rest, Ranges) or compared is not None
        return Index(children, found, rest, [*groups.values()], compared) if gained else None

    def candidates(self, context: Bags, *, whole: bool = False) -> Sequence[T]:
        """Return the children that may apply, in their order; `whole` with those that say what others say anyway."""
        try:
            if len(self._groups) == 1 and not self._always:
                places = self._groups[0].places(context)
            else:
                several = [places for group in self._groups if (places := group.places(context))]
                if self._always or not several:
                    several.append(self._always)
                places = several[0] if len(several) == 1 else sorted({place for places in several for place in places})
            compared = self._compared
            if compared is not None and len(places) >= _MANY and len(places) * _CHEAPER > compared.size:
                left = compared.places(context, whole=whole)
                places = left if len(places) == len(self._children) else sorted({*places}.intersection(left))
        except _Unknown:
            # Whether they apply is for each of them to find out.
            return self._children
        except EvaluationError:
            return self._children
        found = self._found
        return [found[place] for place in places]


class _Unknown(Exception):  # noqa: N818  # nobody else sees it
    """An attribute that must be present is not."""


class _Group:
    """Children that need the same attributes, by their values."""

    __slots__ = ("_attributes", "_keys", "_must", "_places", "_ranges", "_single")

    def __init__(self, attributes: tuple[Designator, ...]) -> None:
        self._attributes = attributes
        self._keys = tuple(attribute.key for attribute in attributes)
        self._single = len(attributes) == 1
        self._must = any(attribute.must_be_present for attribute in attributes)
        self._places: dict[Value, list[int]] = {}
        self._ranges: dict[Value, Ranges] = {}

    def enter(self, place: int, values: Sequence[frozenset[Value]]) -> None:
        """Enter a child under all combinations of the values that it needs."""
        for chosen in product(*values):
            self._places.setdefault(chosen[0] if self._single else chosen, []).append(place)

    @property
    def most(self) -> int:
        """The most children that are found by one combination of values."""
        return max(map(len, self._places.values()), default=0)

    def range(self, targets: Sequence[Target]) -> None:
        """Find many that need the same values by the ranges that they want besides."""
        for values, places in self._places.items():
            ranges = Ranges.of(places, targets)
            if ranges is not None:
                self._ranges[values] = ranges

    def places(self, context: Bags) -> Sequence[int]:
        """Return where the children are that may apply. Raises `_Unknown`, `EvaluationError`."""
        facts = context.facts
        bags: list[tuple[Value, ...]] = []
        alone = True
        for key in self._keys:
            bag = facts.get(key)
            if not bag:
                bag = context.bag(self._attributes[len(bags)])
                if not bag:
                    if self._must:
                        raise _Unknown
                    return ()
            alone = alone and len(bag) == 1
            bags.append(bag)
        if alone:
            value = bags[0][0] if self._single else tuple([bag[0] for bag in bags])
            if self._ranges and value in self._ranges:
                return self._ranges[value].places(context)
            return self._places.get(value, ())
        return self._merged(bags[0] if self._single else self._combinations(bags))

    def _combinations(self, bags: Sequence[tuple[Value, ...]]) -> Iterable[Value]:
        """Return combinations of values, without those by which nothing is found, where there are more of them."""
        if prod(map(len, bags)) <= len(self._places):
            return product(*bags)
        sets = [frozenset(bag) for bag in bags]
        return [chosen for chosen in self._places if all(map(contains, sets, chosen))]

    def _merged(self, values: Iterable[Value]) -> Sequence[int]:
        found = [places for value in values if (places := self._places.get(value))]
        if len(found) <= 1:
            return found[0] if found else ()
        return sorted({place for places in found for place in places})


def _covered(target: Target, kind: tuple[Designator, ...]) -> bool:
    """Say whether all that a target wants are values of these attributes, each in one place."""
    seen: set[Designator] = set()
    for any_of in target:
        attributes = {match.attribute for all_of in any_of for match in all_of}
        single = all(len(all_of) == 1 and all_of[0].function in _EQUALITIES for all_of in any_of)
        (attribute, *others) = attributes
        if not single or others or attribute in seen or attribute not in kind or attribute.must_be_present:
            return False
        seen.add(attribute)
    return True


def _kind(needs: Needs) -> tuple[Designator, ...]:
    """Return the attributes to find a child by: all, unless that would be too many entries."""
    attributes = sorted(needs, key=lambda one: (len(needs[one]), one.category, one.id, one.of.id, one.must_be_present))
    entries = 1
    chosen: list[Designator] = []
    for attribute in attributes:
        entries *= len(needs[attribute])
        if entries > _MOST_ENTRIES and chosen:
            break
        chosen.append(attribute)
    return tuple(sorted(chosen, key=lambda one: (one.category, one.id, one.of.id, one.must_be_present)))
