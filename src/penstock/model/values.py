"""Attribute values: the five kinds, their Python types, and the domains that narrow them.

A null is `None` and belongs to every kind. Integers are signed 64-bit; strings are Unicode without lone
surrogates; timestamps are aware `datetime`s, compared as instants. A float may be infinite or NaN in an event,
but a selector that reads a NaN has no value on that event.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final, TypeAlias

from penstock.errors import MalformedError
from penstock.model.instants import in_utc

INTEGER_MIN: Final = -(1 << 63)
INTEGER_MAX: Final = (1 << 63) - 1

Value: TypeAlias = str | int | float | bool | datetime
"""A value that is not null."""

Scalar: TypeAlias = Value | None
"""A value or null."""


class Kind(StrEnum):
    """The kind of an attribute."""

    STRING = "string"
    INTEGER = "integer"
    FLOAT = "float"
    BOOLEAN = "boolean"
    TIMESTAMP = "timestamp"

    @property
    def phrase(self) -> str:
        """The kind with its article, for sentences."""
        return f"an {self}" if self is Kind.INTEGER else f"a {self}"


def kind_of(value: Value) -> Kind:
    """Return the kind of a Python value.

    >>> kind_of(True), kind_of(1), kind_of("a")
    (<Kind.BOOLEAN: 'boolean'>, <Kind.INTEGER: 'integer'>, <Kind.STRING: 'string'>)

    Raises `MalformedError` (`value.kind`) for anything that is not an attribute value.
    """
    # bool before int: in Python True is an int.
    if isinstance(value, bool):
        return Kind.BOOLEAN
    if isinstance(value, int):
        return Kind.INTEGER
    if isinstance(value, float):
        return Kind.FLOAT
    if isinstance(value, str):
        return Kind.STRING
    if isinstance(value, datetime):
        return Kind.TIMESTAMP
    raise MalformedError(
        "value.kind",
        f"a {type(value).__name__} is not an attribute value",
        hint="use str, int, float, bool, an aware datetime or None",
    )


def check_value(kind: Kind, value: Scalar) -> None:
    """Check that `value` is null or of `kind`.

    An integer is accepted where a float is declared only if the caller converts it first: kinds never mix.

    Raises `MalformedError`: `value.kind`, `value.range` (integer outside 64 bits), `value.text` (a lone
    surrogate), `value.zone` and `value.range` (a timestamp that is not an instant in UTC).
    """
    if value is None:
        return
    found = kind_of(value)
    if found is not kind:
        raise MalformedError("value.kind", f"expected {kind}, found {found}", expected=kind, found=found)
    if isinstance(value, str):
        try:
            value.encode("utf-8")
        except UnicodeEncodeError as error:
            raise MalformedError("value.text", "a string holds a lone surrogate") from error
    elif isinstance(value, datetime):
        in_utc(value)
    elif kind is Kind.INTEGER and not INTEGER_MIN <= value <= INTEGER_MAX:
        raise MalformedError("value.range", "an integer does not fit into 64 bits")


def canonical(value: Scalar) -> Scalar:
    """Return a value in the form whose `==` and `<` are those of its kind: a timestamp in UTC, others unchanged.

    Python compares two datetimes of one time zone by their wall clocks, which in autumn show an hour twice.

    Raises `MalformedError` as `in_utc`.
    """
    return in_utc(value) if isinstance(value, datetime) else value


@dataclass(frozen=True, slots=True)
class Enumerated:
    """A value domain: one of the declared values (an alphabetic attribute of paper 1, section II)."""

    values: frozenset[Value]

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", frozenset(map(canonical, self.values)))

    def contains(self, value: Value) -> bool:
        """Return whether the domain contains `value`."""
        return canonical(value) in self.values


@dataclass(frozen=True, slots=True)
class Ranged:
    """A value domain: `low <= v <= high`, both ends included (a numeric attribute of paper 1, section II)."""

    low: int | float | datetime
    high: int | float | datetime

    def __post_init__(self) -> None:
        object.__setattr__(self, "low", canonical(self.low))
        object.__setattr__(self, "high", canonical(self.high))

    def contains(self, value: Value) -> bool:
        """Return whether the domain contains `value`; it never contains NaN."""
        if isinstance(value, str):
            return False
        return self.low <= canonical(value) <= self.high  # type: ignore[operator]  # one kind, checked by AttributeSpec


ValueDomain: TypeAlias = Enumerated | Ranged


@dataclass(frozen=True, slots=True)
class AttributeSpec:
    """The values that an attribute may have: its kind and, optionally, a narrower domain. Null is always permitted.

    Raises `MalformedError`: `value.domain` when the kind has no such domain, or it is empty or holds a NaN, and what
    `check_value` raises for a member that is not a value of the kind.
    """

    kind: Kind
    domain: ValueDomain | None = None

    def __post_init__(self) -> None:
        domain = self.domain
        if domain is None:
            return
        members: list[Value]
        if isinstance(domain, Enumerated):
            members = list(domain.values)
            empty = not members
        else:
            if self.kind not in (Kind.INTEGER, Kind.FLOAT, Kind.TIMESTAMP):
                raise MalformedError("value.domain", f"{self.kind.phrase} has no range", hint="list the values instead")
            members = [domain.low, domain.high]
            for member in members:
                check_value(self.kind, member)
            empty = not domain.low <= domain.high  # type: ignore[operator]  # both of one kind, checked above
        if empty:
            raise MalformedError("value.domain", "the domain of an attribute is empty")
        for member in members:
            check_value(self.kind, member)
            if isinstance(member, float) and member != member:  # noqa: PLR0124  # NaN is the value unequal to itself
                raise MalformedError("value.domain", "NaN cannot be a member of a domain")

    def check(self, value: Scalar) -> None:
        """Check a value against kind and domain.

        Raises `MalformedError`: what `check_value` raises, and `value.domain`.
        """
        check_value(self.kind, value)
        if value is not None and self.domain is not None and not self.domain.contains(value):
            raise MalformedError("value.domain", "the value is outside the attribute's declared domain")


def checked_value(name: str, spec: AttributeSpec, value: Scalar) -> Scalar:
    """Check the value of the attribute `name` and return it in canonical form.

    Raises `MalformedError` as `AttributeSpec.check`. The attribute is named, its value is not: a message
    must not carry what a reader may not see.
    """
    try:
        spec.check(value)
    except MalformedError as error:
        raise MalformedError(error.code, f"attribute `{name}`: {error.message}", hint=error.hint) from error
    return canonical(value)


Schema: TypeAlias = Mapping[str, AttributeSpec]
"""Attribute names and their values: of an event type, a profile or the environment, for selectors."""


QuickTest: TypeAlias = Callable[[Value], bool]

_PLAIN: Final[Mapping[Kind, QuickTest]] = {
    Kind.STRING: lambda value: type(value) is str and value.isascii(),
    Kind.INTEGER: lambda value: type(value) is int and INTEGER_MIN <= value <= INTEGER_MAX,
    Kind.FLOAT: lambda value: type(value) is float,
    Kind.BOOLEAN: lambda value: type(value) is bool,
    Kind.TIMESTAMP: lambda value: type(value) is datetime and value.tzinfo is UTC,
}
"""The Python type of nearly every value of a kind. Other values are checked more closely."""


def quick_test(spec: AttributeSpec) -> QuickTest:
    """Return a quick test: if it returns True, the value is valid for the attribute and in canonical form."""
    plain, domain = _PLAIN[spec.kind], spec.domain
    return plain if domain is None else lambda value: plain(value) and domain.contains(value)
