"""Profiles as signed claims about a publisher or a subscriber (paper 1, section II).

    (profile (of <principal>) (said-by <principal>)
             [(publisher (<name> <value>) …)] [(subscriber (<name> <value>) …)] [(valid …)])

A principal that publishes and subscribes is described as both. A principal that is described only as a publisher is
not a subscriber without attributes. Users of profiles decide which signers they accept. Whether the attributes are
declared is checked where a claim is used.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Annotated, ClassVar, Final

from penstock.codec.sexp import ListForm, SExp, text
from penstock.codec.values import value_from_sexp, value_to_sexp
from penstock.errors import LimitError
from penstock.model.names import check_attribute_name
from penstock.model.principals import Principal
from penstock.model.values import Value
from penstock.trust.limits import MODERATOR_LIST
from penstock.trust.signed import Claim, malformed
from penstock.trust.validity import ALWAYS, ValidityField


def _write_values(values: Mapping[str, Value]) -> tuple[SExp, ...]:
    return tuple((attribute.encode(), value_to_sexp(value)) for attribute, value in values.items())


def _read_values(listed: tuple[SExp, ...]) -> dict[str, Value]:
    values: dict[str, Value] = {}
    for entry in listed:
        match entry:
            case (bytes(name), tuple(value)):
                values[text(name)] = value_from_sexp(value)
            case _:
                raise malformed("a profile must contain attributes with values")
    return values


_VALUES: Final = ListForm(_write_values, _read_values)


@dataclass(frozen=True, slots=True)
class ProfileClaim(Claim):
    """A principal's values, claimed by the signer. Raises `MalformedError`, `LimitError`."""

    HEAD: ClassVar = b"profile"
    SIGNER: ClassVar = "said_by"
    of: Principal
    said_by: Principal
    #: None if it is not described in this role
    publisher: Annotated[Mapping[str, Value] | None, _VALUES] = field(default=None, repr=False)
    subscriber: Annotated[Mapping[str, Value] | None, _VALUES] = field(default=None, repr=False)
    validity: ValidityField = ALWAYS

    def __post_init__(self) -> None:
        if self.publisher is None and self.subscriber is None:
            raise malformed("a profile describes a publisher, a subscriber, or both")
        object.__setattr__(self, "publisher", _checked(self.publisher))
        object.__setattr__(self, "subscriber", _checked(self.subscriber))


def _checked(values: Mapping[str, Value] | None) -> Mapping[str, Value] | None:
    if values is None:
        return None
    for name in values:
        check_attribute_name(name)
    if len(values) > MODERATOR_LIST:
        raise LimitError("moderator.limit", f"a profile has more than {MODERATOR_LIST} values")
    return MappingProxyType(dict(sorted(values.items())))
