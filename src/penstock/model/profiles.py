"""Profiles: attribute–value pairs that describe a publisher or a subscriber (paper 1, section II).

An alphabetic attribute takes one of its declared values, a numeric one a value of its range. A profile gives a value
to a subset of the declared attributes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from penstock.errors import MalformedError, did_you_mean
from penstock.model.names import check_attribute_name
from penstock.model.values import AttributeSpec, Enumerated, Kind, Ranged, Scalar, Schema, Value, checked_value


def alphabetic(*values: str) -> AttributeSpec:
    """Declare an attribute that takes one of `values`. Raises `MalformedError` (`value.domain`) for none."""
    return AttributeSpec(Kind.STRING, Enumerated(frozenset(values)))


def numeric(low: int | float, high: int | float) -> AttributeSpec:
    """Declare an attribute with `low <= v <= high`; it is a float as soon as one of the ends is.

    Raises `MalformedError`: `value.domain` when the range is empty, `value.range` when an end does not fit the kind.
    """
    if isinstance(low, int) and isinstance(high, int):
        return AttributeSpec(Kind.INTEGER, Ranged(low, high))
    try:
        return AttributeSpec(Kind.FLOAT, Ranged(float(low), float(high)))
    except OverflowError as error:
        raise MalformedError("value.range", "an end of a range is too large for a float") from error


@dataclass(frozen=True, slots=True)
class ProfileSchema:
    """The attributes that profiles of one kind may have: A_p for publishers, A_s for subscribers."""

    attributes: Schema

    def __post_init__(self) -> None:
        for name in self.attributes:
            check_attribute_name(name)
        object.__setattr__(self, "attributes", MappingProxyType(dict(self.attributes)))

    def profile(self, values: Mapping[str, Value]) -> "Profile":
        """Check a profile.

        Raises `MalformedError`: `profile.unknown-attribute`, and as `AttributeSpec.check`.
        """
        checked: dict[str, Scalar] = {}
        for name, value in values.items():
            spec = self.attributes.get(name)
            if spec is None:
                raise MalformedError(
                    "profile.unknown-attribute",
                    f"profiles of this kind have no attribute `{name[:80]}`",
                    hint=did_you_mean(name, self.attributes, f"they have: {', '.join(self.attributes) or 'none'}"),
                )
            checked[name] = checked_value(name, spec, value)
        return Profile(MappingProxyType(checked))


@dataclass(frozen=True, slots=True)
class Profile:
    """The values that one publisher or subscriber has. Build it with `ProfileSchema.profile`."""

    values: Mapping[str, Scalar]
