"""Profiles as claims: what somebody says about a publisher or a subscriber (paper 1, section II), and signs.

    (profile (of <principal>) (said-by <principal>) (values (value <name> <value>) …) (valid …))

Whose word about profiles counts is for those to say who go by them. A claim says nothing about which attributes there
are: that is checked where it is used.
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
    values: Mapping[str, Value] = field(repr=False)
    validity: Validity = ALWAYS

    def __post_init__(self) -> None:
        for name in self.values:
            check_attribute_name(name)
        if len(self.values) > DEFAULT_LIMITS.moderator_list:
            raise LimitError("moderator.limit", f"a profile has more than {DEFAULT_LIMITS.moderator_list} values")
        object.__setattr__(self, "values", MappingProxyType(dict(sorted(self.values.items()))))

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
            (b"values", *((b"value", name.encode(), value_to_sexp(value)) for name, value in self.values.items())),
            *(() if valid is None else (valid,)),
        )

    @classmethod
    def from_sexp(cls, body: SExp) -> "ProfileClaim":
        """Read a body. Raises `MalformedError` (`evolution.malformed`, and what the parts raise), `LimitError`."""
        listed, valid = sexp_field(body, b"values"), sexp_field(body, b"valid")
        if listed is None:
            raise malformed("a profile has values, if none")
        values: dict[str, Value] = {}
        for entry in listed[1:]:
            match entry:
                case (b"value", bytes(name), tuple(value)):
                    values[text(name)] = value_from_sexp(value)
                case _:
                    raise malformed("a value of a profile is `(value <name> <value>)`")
        return cls(
            read_owner(one(body, b"of")),
            read_owner(one(body, b"said-by")),
            values,
            ALWAYS if valid is None else parse_validity(valid[1:]),
        )
