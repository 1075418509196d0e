"""Profiles as claims: what somebody says about a publisher or a subscriber (paper 1, section II), and signs.

    (profile (of <principal>) (said-by <principal>)
             [(publisher (<name> <value>) …)] [(subscriber (<name> <value>) …)] [(valid …)])

Somebody may publish and subscribe, and is described as both then: who is described as a publisher alone is not a
subscriber without attributes. Whose word about profiles counts is for those to say who go by them. A claim says nothing
about which attributes there are: that is checked where it is used.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import ClassVar

from penstock.codec.sexp import SExp, text
from penstock.codec.sexp import field as sexp_field
from penstock.codec.values import value_from_sexp, value_to_sexp
from penstock.errors import LimitError
from penstock.model.limits import DEFAULT_LIMITS
from penstock.model.names import check_attribute_name
from penstock.model.principals import Principal
from penstock.model.values import Value
from penstock.trust.signed import malformed, one, read_owner
from penstock.trust.validity import ALWAYS, Validity, parse_validity, validity_to_sexp


@dataclass(frozen=True, slots=True)
class ProfileClaim:
    """The values that somebody has, by the word of whoever signs. Raises `MalformedError`, `LimitError`."""

    HEAD: ClassVar = b"profile"
    of: Principal
    said_by: Principal
    #: None where it is not described as one
    publisher: Mapping[str, Value] | None = field(default=None, repr=False)
    subscriber: Mapping[str, Value] | None = field(default=None, repr=False)
    validity: Validity = ALWAYS

    def __post_init__(self) -> None:
        if self.publisher is None and self.subscriber is None:
            raise malformed("a profile is that of a publisher, of a subscriber, or of both")
        object.__setattr__(self, "publisher", _checked(self.publisher))
        object.__setattr__(self, "subscriber", _checked(self.subscriber))

    @property
    def signer(self) -> Principal:
        """Whoever says so."""
        return self.said_by

    def to_sexp(self) -> SExp:
        """Return the body that is signed."""
        valid = validity_to_sexp(self.validity)
        return (
            self.HEAD,
            (b"of", str(self.of).encode()),
            (b"said-by", str(self.said_by).encode()),
            *_written(b"publisher", self.publisher),
            *_written(b"subscriber", self.subscriber),
            *(() if valid is None else (valid,)),
        )

    @classmethod
    def from_sexp(cls, body: SExp) -> "ProfileClaim":
        """Read a body. Raises `MalformedError` (`evolution.malformed`, and what the parts raise), `LimitError`."""
        valid = sexp_field(body, b"valid")
        return cls(
            read_owner(one(body, b"of")),
            read_owner(one(body, b"said-by")),
            _read(sexp_field(body, b"publisher")),
            _read(sexp_field(body, b"subscriber")),
            ALWAYS if valid is None else parse_validity(valid[1:]),
        )


def _checked(values: Mapping[str, Value] | None) -> Mapping[str, Value] | None:
    if values is None:
        return None
    for name in values:
        check_attribute_name(name)
    if len(values) > DEFAULT_LIMITS.moderator_list:
        raise LimitError("moderator.limit", f"a profile has more than {DEFAULT_LIMITS.moderator_list} values")
    return MappingProxyType(dict(sorted(values.items())))


def _written(name: bytes, values: Mapping[str, Value] | None) -> tuple[SExp, ...]:
    if values is None:
        return ()
    return ((name, *((attribute.encode(), value_to_sexp(value)) for attribute, value in values.items())),)


def _read(listed: tuple[SExp, ...] | None) -> dict[str, Value] | None:
    if listed is None:
        return None
    values: dict[str, Value] = {}
    for entry in listed[1:]:
        match entry:
            case (bytes(name), tuple(value)):
                values[text(name)] = value_from_sexp(value)
            case _:
                raise malformed("a profile has attributes with values")
    return values
