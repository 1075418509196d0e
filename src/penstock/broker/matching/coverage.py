"""Compute which subscriptions a broker must forward so that all of them are served.

A subscription covers another one of its type or a sub-type if its selector is TRUE wherever the other's is.
Subscriptions form a forest: the roots are forwarded, and each other one is below a root that covers it. When a root is
removed, the subscriptions below it are placed again.

Two roots of one type are merged if the result is exactly their union: if they differ in one attribute, and their
values of it join into one span. A merged root belongs to no key, and is removed with the first of its parts.

Coverage is proven by set algebra, never by the solver, because a subscriber could choose the solver's cost, and its
result depends on time. If coverage is not proven, the subscription is forwarded: then too much is carried, never too
little. A selector with a condition that only evaluation can decide covers only itself. The work for each placement is
bounded: candidates are found by a row on which the smaller of two selectors is TRUE, because the larger must be too.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeAlias, TypeVar

from penstock.broker.limits import BrokerLimits
from penstock.broker.matching.clauses import Box, box, clauses, write
from penstock.broker.matching.matcher import Matcher
from penstock.model.names import TypeKey
from penstock.model.values import Kind, Scalar, Schema, kind_of
from penstock.selector import ALWAYS, Selector
from penstock.selector.algebra import RowQuestion, TooHardError, search
from penstock.selector.limits import SELECTOR_LENGTH
from penstock.selector.sets import ValueSet

# ----------------------------------------------------------------------------------------------------------------------
# Interests in events, and the index of the forwarded ones.
#
# The index answers by rows. Each interest has a row that lies in its first box; whatever covers it must be TRUE there.
# So the roots that may cover an interest are those that match its row, and the roots that it may cover are those whose
# row it matches. The first are found by a `Matcher`, the second in columns of rows, sorted by value.


K = TypeVar("K")


@dataclass(frozen=True, slots=True)
class Interest:
    """Events of a type and its sub-types on which a selector is TRUE. Equal if type and selector are.

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
    """A distinct interest: its keys, the member that covers it, and those that it covers."""

    __slots__ = ("above", "boxes", "interest", "keys", "parts", "rows", "wards")

    def __init__(self, interest: Interest, boxes: tuple[Box, ...]) -> None:
        self.interest = interest
        #: none if the selector is never TRUE on a row that fits the schema
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
        """Whether it has no keys and nothing was merged into it."""
        return not self.keys and not self.parts

    @property
    def witness(self) -> dict[str, Scalar]:
        """The row by which it is found. There must be a box."""
        return self.rows[0]

    @property
    def exact(self) -> bool:
        """Whether its boxes describe the selector completely."""
        return all(each.exact for each in self.boxes)

    @property
    def shares(self) -> "dict[Member[K], None]":
        """The parts that it contributes to a merged member: its own parts, or itself."""
        return self.parts if self.parts and not self.keys else {self: None}

    def take(self, ward: "Member[K]") -> None:
        """Put another member below this one."""
        ward.above = self
        self.wards[ward] = None


def member_of(interest: Interest, limits: BrokerLimits) -> Member[Any]:
    """Split the selector of an interest into boxes."""
    boxes = (box(clause, interest.schema) for clause in clauses(interest.selector, limits))
    return Member(interest, tuple(each for each in boxes if each is not None))


class Roots(Generic[K]):
    """The forwarded members, indexed to find those related to another."""

    def __init__(self, limits: BrokerLimits) -> None:
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


# ----------------------------------------------------------------------------------------------------------------------
# The covering forest.


@dataclass(frozen=True, slots=True)
class CoverageChange:
    """The change of the forwarded set. Send `added` before `removed`, so that no event is missed in between."""

    added: tuple[Interest, ...] = ()
    removed: tuple[Interest, ...] = ()


class Coverage(Generic[K]):
    """Subscriptions by key, and those to forward.

    >>> from penstock.model.names import TypeKey
    >>> from penstock.model.principals import Principal
    >>> from penstock.model.values import AttributeSpec, Kind
    >>> from penstock.selector import parse
    >>> kind, schema = TypeKey(Principal(bytes(32)), "Stock"), {"price": AttributeSpec(Kind.INTEGER)}
    >>> coverage = Coverage[str](BrokerLimits())
    >>> len(coverage.add("a", Interest(kind, parse("price > 5"), schema=schema)).added)
    1
    >>> coverage.add("b", Interest(kind, parse("price > 7"), schema=schema))
    CoverageChange(added=(), removed=())
    """

    def __init__(self, limits: BrokerLimits) -> None:
        self._limits = limits
        self._interests: dict[K, Interest] = {}
        self._members: dict[Interest, Member[K]] = {}
        self._roots = Roots[K](limits)
        self._added: dict[Interest, None] = {}
        self._removed: dict[Interest, None] = {}

    def __len__(self) -> int:
        return len(self._interests)

    def __contains__(self, key: K) -> bool:
        return key in self._interests

    # Only for tests, which compare this state with the results of `add` and `remove`.

    @property
    def forwarded(self) -> tuple[Interest, ...]:
        """The subscriptions to forward, in the order of their creation."""
        return tuple(member.interest for member in self._roots)

    def forwarded_for(self, key: K) -> Interest | None:
        """Return the subscription that is forwarded for a key; None if it is never TRUE, or unknown."""
        interest = self._interests.get(key)
        if interest is None or not self._members[interest].boxes:
            return None
        member = self._members[interest]
        while member.above is not None:
            member = member.above
        return member.interest

    def add(self, key: K, interest: Interest) -> CoverageChange:
        """Add a subscription, or replace the one that the key had.

        Raises `SelectorError` when the selector does not fit the schema; an attribute that it lacks is not looked at.
        """
        interest.selector.check(interest.schema, missing="null")
        self._forget(key)
        self._interests[key] = interest
        member = self._members.get(interest)
        if member is None:
            member = self._members[interest] = member_of(interest, self._limits)
            member.keys[key] = None
            self._place(member)
        else:
            member.keys[key] = None
        return self._change()

    def remove(self, key: K) -> CoverageChange:
        """Remove a subscription, if there is one."""
        self._forget(key)
        return self._change()

    # --- the forest -------------------------------------------------------------------------------------------------

    def _forget(self, key: K) -> None:
        interest = self._interests.pop(key, None)
        if interest is None:
            return
        member = self._members[interest]
        del member.keys[key]
        if member.idle:
            self._drop(member)

    def _place(self, member: Member[K]) -> None:
        """Put a member below a root that covers it, or make it a root."""
        if not member.boxes:
            return
        above = self._coverer(member)
        if above is not None:
            above.take(member)
        else:
            self._make_root(member)

    def _make_root(self, member: Member[K]) -> None:
        for other in self._covered(member):
            self._uproot(other)
            self._hang(other, member)
        merged = self._merge(member)
        if merged is not None:
            self._make_root(merged)
            return
        self._roots.add(member)
        _move(member.interest, self._removed, self._added)

    def _uproot(self, member: Member[K]) -> None:
        self._roots.remove(member)
        _move(member.interest, self._added, self._removed)

    def _hang(self, member: Member[K], above: Member[K]) -> None:
        """Put a former root below another one; a merged one without keys is dissolved."""
        member.parts.clear()
        if not member.idle:
            above.take(member)
            return
        del self._members[member.interest]
        for ward in member.wards:
            above.take(ward)

    def _drop(self, member: Member[K]) -> None:
        """Remove a member without keys."""
        del self._members[member.interest]
        above = member.above
        wards = list(member.wards)
        if above is None:
            if member.boxes:
                self._uproot(member)
            for ward in wards:
                ward.above = None
            for ward in wards:
                self._place(ward)
            return
        del above.wards[member]
        for ward in wards:
            above.take(ward)
        if member in above.parts:
            # The union is no longer that of its parts.
            above.parts.clear()
            if above.idle:
                self._drop(above)

    # --- who covers what --------------------------------------------------------------------------------------------

    def _coverer(self, member: Member[K]) -> Member[K] | None:
        budget = _Budget(self._limits)
        for other in self._roots.true_on(member):
            if _covers(other, member, budget):
                return other
            if budget.spent:
                break
        return None

    def _covered(self, member: Member[K]) -> list[Member[K]]:
        found: list[Member[K]] = []
        budget = _Budget(self._limits)
        for other in self._roots.shown_by(member):
            if _covers(member, other, budget):
                found.append(other)
            if budget.spent:
                break
        return found

    # --- merging ----------------------------------------------------------------------------------------------------

    def _merge(self, member: Member[K]) -> Member[K] | None:
        """Merge a member and a root into one that is exactly their union, and put both below it."""
        for partner, sets in self._roots.partners(member) if member.interest.source is None else ():
            parts = {**member.shares, **partner.shares}
            if len(parts) > self._limits.coverage_merged:
                continue
            merged = self._union(member, partner, sets)
            if merged is None:
                continue
            self._members[merged.interest] = merged
            self._uproot(partner)
            for part in (partner, member):
                self._hang(part, merged)
            merged.parts.update(parts)
            return merged
        return None

    def _union(self, one: Member[K], other: Member[K], sets: Mapping[str, ValueSet]) -> Member[K] | None:
        schema = _common_schema(one, other)
        selector = write(sets, schema) if schema is not None else None
        if schema is None or selector is None or len(selector.text) > SELECTOR_LENGTH:
            return None
        interest = Interest(one.interest.type, selector, one.interest.ancestors, schema)
        if interest in self._members or not _is_union(selector, one, other, schema):
            return None
        return member_of(interest, self._limits)

    def _change(self) -> CoverageChange:
        change = CoverageChange(tuple(self._added), tuple(self._removed))
        self._added, self._removed = {}, {}
        return change


def _move(interest: Interest, undone: dict[Interest, None], done: dict[Interest, None]) -> None:
    """Record a step, or cancel its opposite of the same change."""
    if interest in undone:
        del undone[interest]
    else:
        done[interest] = None


class _Budget:
    """The number of failing comparisons that one placement may make."""

    __slots__ = ("comparisons", "questions")

    def __init__(self, limits: BrokerLimits) -> None:
        self.questions = limits.coverage_questions
        self.comparisons = limits.coverage_comparisons

    @property
    def spent(self) -> bool:
        return self.comparisons <= 0


def _covers(large: Member[K], small: Member[K], budget: _Budget) -> bool:
    """Return whether it is proven that one covers the other."""
    if all(any(part.within(whole) for whole in large.boxes) for part in small.boxes):
        return True
    budget.comparisons -= len(large.boxes) * len(small.boxes)
    # One box holds another or it does not. Several may hold it together, which algebra finds out.
    if len(large.boxes) == 1 or budget.questions <= 0 or not (large.exact and small.exact):
        return False
    if not all(any(whole.contains(row) for whole in large.boxes) for row in small.rows):
        return False
    schema = _common_schema(large, small)
    covered = schema is not None and _none(RowQuestion(schema, (small.interest.selector,), (large.interest.selector,)))
    budget.questions -= not covered
    return covered


def _common_schema(one: Member[K], other: Member[K]) -> Schema | None:
    """Return the schema of both, or None if they disagree about an attribute that either selector reads."""
    first, second = one.interest, other.interest
    names = first.selector.attributes | second.selector.attributes
    if any(first.schema[n] != second.schema[n] for n in names if n in first.schema and n in second.schema):
        return None
    return {**second.schema, **first.schema}


def _none(question: RowQuestion) -> bool:
    """Return whether it is proven that no row answers a question."""
    try:
        return search(question) is None
    except TooHardError:
        return False


def _is_union(selector: Selector, one: Member[K], other: Member[K], schema: Schema) -> bool:
    """Return whether it is proven that a selector is TRUE exactly where one of two is."""
    parts = (one.interest.selector, other.interest.selector)
    return _none(RowQuestion(schema, (selector,), parts)) and all(
        _none(RowQuestion(schema, (part,), (selector,))) for part in parts
    )
