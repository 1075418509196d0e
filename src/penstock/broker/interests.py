"""Interests in events, and the index of those that are forwarded.

The index answers by rows. Each interest has a row that lies in its first box; whatever covers it must be TRUE there.
So the roots that may cover an interest are those that match its row, and the roots that it may cover are those whose
row it matches. The first are found by a `Matcher`, the second in columns of rows, sorted by value.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeAlias, TypeVar

from penstock.broker.boxes import Box, box
from penstock.broker.clauses import clauses
from penstock.broker.matching import Matcher
from penstock.model.limits import Limits
from penstock.model.names import TypeKey
from penstock.model.values import Kind, Scalar, Schema, kind_of
from penstock.selector import ALWAYS, Selector
from penstock.selector.sets import ValueSet

K = TypeVar("K")


@dataclass(frozen=True, slots=True)
class Interest:
    """Events of a type and its sub-types on which a selector is TRUE. Equal where type and selector are.

    `schema` is that of the type, keyed as the selector is; `ancestors` runs from the parent to the root. `source` is
    what is forwarded in its place, if that is something else; such an interest is not merged with others.
    """

    type: TypeKey
    selector: Selector = field(default=ALWAYS, repr=False)
    ancestors: tuple[TypeKey, ...] = field(default=(), compare=False, repr=False)
    schema: Schema = field(default_factory=dict, compare=False, repr=False)
    source: object = field(default=None, compare=False, repr=False)

    @property
    def line(self) -> tuple[TypeKey, ...]:
        """The type and its ancestors."""
        return self.type, *self.ancestors


class Member(Generic[K]):
    """A distinct interest: who holds it, what covers it, and what it covers."""

    __slots__ = ("above", "boxes", "interest", "keys", "parts", "rows", "wards")

    def __init__(self, interest: Interest, boxes: tuple[Box, ...]) -> None:
        self.interest = interest
        #: none where the selector is never TRUE on a row that fits the schema
        self.boxes = boxes
        #: a row for each box that lies in its sets
        self.rows = tuple(each.example() for each in boxes)
        self.keys: dict[K, None] = {}
        self.above: Member[K] | None = None
        self.wards: dict[Member[K], None] = {}
        #: the wards that a merged member is the union of
        self.parts: dict[Member[K], None] = {}

    @property
    def idle(self) -> bool:
        """Whether nobody holds it and nothing was merged into it."""
        return not self.keys and not self.parts

    @property
    def witness(self) -> dict[str, Scalar]:
        """The row by which it is found. There must be a box."""
        return self.rows[0]

    @property
    def exact(self) -> bool:
        """Whether its boxes say all there is to say."""
        return all(each.exact for each in self.boxes)

    @property
    def shares(self) -> "dict[Member[K], None]":
        """What it brings into a merged member: its own parts, or itself."""
        return self.parts if self.parts and not self.keys else {self: None}

    def take(self, ward: "Member[K]") -> None:
        """Hang another one below."""
        ward.above = self
        self.wards[ward] = None


def member_of(interest: Interest, limits: Limits) -> Member[Any]:
    """Cut the selector of an interest into boxes."""
    boxes = (box(clause, interest.schema) for clause in clauses(interest.selector, limits))
    return Member(interest, tuple(each for each in boxes if each is not None))


class Roots(Generic[K]):
    """The members that are forwarded, found by what they have in common with another."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._number = 0
        self._members: dict[Member[K], int] = {}
        self._matchers: dict[TypeKey, Matcher[Member[K]]] = {}
        #: by type, also those of sub-types
        self._rows: dict[TypeKey, _Rows[K]] = {}
        #: by everything but one attribute: where the span of that attribute begins
        self._sides: dict[_Side, _Column[K]] = {}

    def __iter__(self) -> Iterator[Member[K]]:
        return iter(self._members)

    def add(self, member: Member[K]) -> None:
        """Add a root."""
        self._number += 1
        self._members[member] = self._number
        interest = member.interest
        if member.exact:
            if interest.type not in self._matchers:
                self._matchers[interest.type] = Matcher(self._limits)
            self._matchers[interest.type].add(member, interest.selector)
        for key in interest.line:
            self._rows.setdefault(key, _Rows()).add(member, self._number)
        for side, values in _sides(member):
            insort(self._sides.setdefault(side, []), (values.spans[0][0], self._number, member))

    def remove(self, member: Member[K]) -> None:
        """Remove a root."""
        number = self._members.pop(member)
        interest = member.interest
        if member.exact:
            self._matchers[interest.type].remove(member)
            if not len(self._matchers[interest.type]):
                del self._matchers[interest.type]
        for key in interest.line:
            self._rows[key].remove(member, number)
            if self._rows[key].empty:
                del self._rows[key]
        for side, values in _sides(member):
            _take(self._sides, side, values.spans[0][0], number)

    def true_on(self, member: Member[K]) -> Iterator[Member[K]]:
        """Yield the roots that may cover a member."""
        for key in member.interest.line:
            if key in self._matchers:
                yield from self._matchers[key].match(member.witness)

    def shown_by(self, member: Member[K]) -> Iterator[Member[K]]:
        """Yield the roots that a member may cover."""
        rows = self._rows.get(member.interest.type)
        seen: set[Member[K]] = set()
        for each in member.boxes if rows else ():
            if rows and each.exact:
                for other in rows.within(each):
                    if other not in seen:
                        seen.add(other)
                        yield other

    def partners(self, member: Member[K]) -> Iterator[tuple[Member[K], Mapping[str, ValueSet]]]:
        """Yield the roots that differ from a member in one attribute and join it there, with the union."""
        for side, values in _sides(member):
            column = self._sides.get(side, [])
            index = bisect_left(column, (values.spans[0][0],))
            for _, _, other in column[max(0, index - 1) : index + 1]:
                union = values | other.boxes[0].values[side[1]]
                if len(union.spans) == 1:
                    yield other, {**member.boxes[0].values, side[1]: union}


_Column: TypeAlias = list[tuple[Any, int, Member[K]]]
_Side: TypeAlias = tuple[TypeKey, str, Kind, frozenset[tuple[str, ValueSet]]]


def _sides(member: Member[K]) -> Iterator[tuple[_Side, ValueSet]]:
    """Yield each attribute whose values are one span, with all the rest of the only box."""
    if len(member.boxes) != 1 or not member.exact:
        return
    sets = member.boxes[0].values
    for name, values in sets.items():
        if len(values.spans) == 1 and not values.null:
            rest = frozenset((other, theirs) for other, theirs in sets.items() if other != name)
            yield (member.interest.type, name, values.kind, rest), values


def _take(columns: "dict[Any, _Column[K]]", key: object, value: Any, number: int) -> None:
    column = columns[key]
    del column[bisect_left(column, (value, number))]
    if not column:
        del columns[key]


class _Rows(Generic[K]):
    """The rows of some members, by the values of each attribute."""

    __slots__ = ("_columns", "_members", "_nulls")

    def __init__(self) -> None:
        self._members: dict[Member[K], None] = {}
        self._columns: dict[tuple[str, Kind], _Column[K]] = {}
        self._nulls: dict[str, dict[Member[K], None]] = {}

    @property
    def empty(self) -> bool:
        return not self._members

    def add(self, member: Member[K], number: int) -> None:
        self._members[member] = None
        for name, value in member.witness.items():
            if value is None:
                self._nulls.setdefault(name, {})[member] = None
            else:
                insort(self._columns.setdefault((name, kind_of(value)), []), (value, number, member))

    def remove(self, member: Member[K], number: int) -> None:
        del self._members[member]
        for name, value in member.witness.items():
            if value is None:
                del self._nulls[name][member]
            else:
                _take(self._columns, (name, kind_of(value)), value, number)

    def within(self, wanted: Box) -> Iterable[Member[K]]:
        """Return the members whose row lies in the narrowest set of a box."""
        if not wanted.values:
            return list(self._members)
        return min((self._holding(name, values) for name, values in wanted.values.items()), key=len)

    def _holding(self, name: str, values: ValueSet) -> list[Member[K]]:
        found = list(self._nulls.get(name, ())) if values.null else []
        column = self._columns.get((name, values.kind), [])
        for low, high in values.spans:
            end = len(column) if high is None else bisect_left(column, (high,))
            found += (member for _, _, member in column[bisect_left(column, (low,)) : end])
        return found
