"""Attribute lists: the functions that paper 1 states in its algorithms and examples (section III-A).

    {(role, engineer), (age, max, 18)}

An alphabetic attribute has its one value, a numeric one the least or the greatest that is allowed; all entries must
hold. A list is a conjunction in the selector language and nothing more: `AttributeList.selector` is what rules carry.
"""

from collections.abc import Iterable, Sized
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from typing import Final

from penstock.errors import LimitError, MalformedError
from penstock.model.names import check_attribute_name
from penstock.model.values import Value, canonical, kind_of
from penstock.selector import ALWAYS, Selector, conjunction, conjuncts, equals
from penstock.selector.ast import And, AttributeReference, Between, Compare, ComparisonOperator, Condition, Literal, Not
from penstock.selector.selector import compares
from penstock.trust.limits import MODERATOR_LIST


class Bound(StrEnum):
    """What an entry asks of its attribute: this value, at least this value, at most this value."""

    IS = "is"
    MIN = "min"
    MAX = "max"


_COMPARISONS: Final = {
    Bound.IS: ComparisonOperator.EQ,
    Bound.MIN: ComparisonOperator.GE,
    Bound.MAX: ComparisonOperator.LE,
}
_BOUNDS: Final = {comparison: bound for bound, comparison in _COMPARISONS.items()}


@dataclass(frozen=True, slots=True)
class ListEntry:
    """One attribute of a list. Raises `MalformedError` (`name.malformed`, `moderator.list`)."""

    name: str
    value: Value
    bound: Bound = Bound.IS

    def __post_init__(self) -> None:
        check_attribute_name(self.name)
        kind_of(self.value)
        if self.bound is not Bound.IS and isinstance(self.value, bool | str):
            raise MalformedError(
                "moderator.list", f"attribute `{self.name}`: only what can be counted has a least or a greatest value"
            )
        object.__setattr__(self, "value", canonical(self.value))

    @property
    def order(self) -> tuple[str, str]:
        """What an entry is about: no list has two about the same."""
        return (self.name, self.bound)

    @property
    def selector(self) -> Selector:
        """The entry as a condition."""
        if self.bound is Bound.IS:
            return equals(self.name, self.value)
        return compares(self.name, _COMPARISONS[self.bound], self.value)

    def __str__(self) -> str:
        bound = "" if self.bound is Bound.IS else f"{self.bound}, "
        return f"({self.name}, {bound}{self.value})"


@dataclass(frozen=True, slots=True)
class AttributeList:
    """Entries that must all hold, ordered by name.

    Raises `MalformedError`: `moderator.empty-list`, `moderator.list` (two entries about the same); `LimitError`
    (`moderator.limit`).

    >>> from penstock.selector import parse
    >>> people = AttributeList.of(ListEntry("role", "engineer"), ListEntry("age", 18, Bound.MAX))
    >>> print(people, people.selector.text, sep="  ")
    {(age, max, 18), (role, engineer)}  age <= 18 AND role = 'engineer'
    >>> AttributeList.from_selector(parse("role = 'engineer' AND 18 >= age")) == people
    True
    """

    entries: tuple[ListEntry, ...]
    selector: Selector = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        ordered = tuple(sorted(dict.fromkeys(self.entries), key=lambda entry: entry.order))
        if not ordered:
            raise MalformedError(
                "moderator.empty-list", "an attribute list has no entries", hint="say TRUE where all are welcome"
            )
        _check_length(ordered)
        for one, other in pairwise(ordered):
            if one.order == other.order:
                raise MalformedError("moderator.list", f"attribute `{one.name}` stands twice in a list")
        object.__setattr__(self, "entries", ordered)
        object.__setattr__(self, "selector", conjunction(*(entry.selector for entry in ordered)))

    @classmethod
    def of(cls, *entries: ListEntry) -> "AttributeList":
        """Build a list."""
        return cls(entries)

    @classmethod
    def from_selector(cls, selector: Selector) -> "AttributeList | None":
        """Return the list that is this condition, however it is written; None where there is none.

        TRUE, for one, is not a list: it has no entries.
        """
        found = _read(selector)
        return None if found is None else cls(found)

    def __str__(self) -> str:
        return "{" + ", ".join(map(str, self.entries)) + "}"


def listed(selector: Selector) -> frozenset[ListEntry]:
    """Return the entries of a function that Algorithm 1 can read; of TRUE there are none.

    Raises `MalformedError` (`moderator.not-a-list`) for all other formulas.
    """
    if selector == ALWAYS:
        return frozenset()
    found = _read(selector)
    if found is None:
        raise MalformedError(
            "moderator.not-a-list",
            "the algorithm of the paper compares attribute lists, and this function is none",
            hint="use the mode `scoped`, which reads every formula",
        )
    _check_length(found)
    return frozenset(found)


def parts(selector: Selector) -> tuple[Selector, ...]:
    """Return what a function demands, piece by piece: its conjuncts, and of TRUE nothing."""
    return () if selector == ALWAYS else conjuncts(selector)


def _read(selector: Selector) -> tuple[ListEntry, ...] | None:
    """Return the entries of the list that a condition is; None where it is none."""
    found: dict[tuple[str, str], ListEntry] = {}
    for part in (selector.root,) if not isinstance(selector.root, And) else selector.root.operands:
        entries = _entries(part)
        if entries is None:
            return None
        for entry in entries:
            kept = found.get(entry.order)
            stricter = entry if kept is None else _stricter(kept, entry)
            if stricter is None:
                return None
            found[entry.order] = stricter
    return tuple(found.values())


def _check_length(entries: Sized) -> None:
    if len(entries) > MODERATOR_LIST:
        raise LimitError("moderator.limit", f"an attribute list has more than {MODERATOR_LIST} entries")


def _stricter(one: ListEntry, other: ListEntry) -> ListEntry | None:
    """Return the entry that says what two about the same say together, or None where it is more than one."""
    if one == other:
        return one
    # Kinds that do not go together are found where the function is checked.
    if one.bound is Bound.IS or type(one.value) is not type(other.value):
        return None
    least = one.value < other.value  # type: ignore[operator]  # of one type, checked above
    return one if least is (one.bound is Bound.MAX) else other


def _entries(part: Condition) -> Iterable[ListEntry] | None:
    match part:
        case Compare(operator, AttributeReference(name), Literal(value)) | Compare(
            operator, Literal(value), AttributeReference(name)
        ):
            if isinstance(part.left, Literal):
                operator = operator.flipped
            bound = _BOUNDS.get(operator)
            return None if bound is None or value is None else _entry(name, value, bound)
        case Between(AttributeReference(name), Literal(low), Literal(high)) if low is not None and high is not None:
            ends = (_entry(name, low, Bound.MIN), _entry(name, high, Bound.MAX))
            return None if None in ends else [entry for end in ends if end for entry in end]
        case AttributeReference(name):
            return _entry(name, True, Bound.IS)
        case Not(AttributeReference(name)):
            return _entry(name, False, Bound.IS)
        case _:
            return None


def _entry(name: str, value: Value, bound: Bound) -> tuple[ListEntry, ...] | None:
    try:
        return (ListEntry(name, value, bound),)
    except MalformedError:
        return None
