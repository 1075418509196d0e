"""Data types of XACML 3.0 (appendix A.2, B.3): how each is written, read and compared.

A value is a plain Python object, and whoever has it knows its type: the type stands in the policy or in the request.
Equal objects of one type are equal values, so that bags are searched and compared as they are.
"""

import base64
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Final, TypeAlias

from penstock.errors import EvaluationError, MalformedError
from penstock.policy.language.addresses import read_directory_name, read_host_name, read_mailbox, read_network_address
from penstock.policy.language.times import (
    read_date,
    read_date_time,
    read_day_time_duration,
    read_time,
    read_year_month_duration,
)

Value: TypeAlias = Any
"""A value of some data type, or a bag of them, which is a tuple: what it is, the expression says that it comes from."""

XS: Final = "http://www.w3.org/2001/XMLSchema#"
_XACML_1: Final = "urn:oasis:names:tc:xacml:1.0:data-type:"
_XACML_2: Final = "urn:oasis:names:tc:xacml:2.0:data-type:"
_XACML_3: Final = "urn:oasis:names:tc:xacml:3.0:data-type:"
_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,4000}", re.ASCII)
_DOUBLE: Final = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?", re.ASCII)
_SPECIAL: Final = {"INF": math.inf, "-INF": -math.inf, "NaN": math.nan}
_LONGEST: Final = 1 << 16
#: numbers beyond these are written with an exponent
_SMALLEST: Final = 1e-3
_LARGEST: Final = 1e7


@dataclass(frozen=True, slots=True)
class XPathExpression:
    """An `xpathExpression`: a path into the content of a category, with the prefixes that it is written with."""

    path: str
    category: str
    prefixes: tuple[tuple[str, str], ...] = field(default=(), compare=False)
    version: str = field(default="", compare=False)

    def __str__(self) -> str:
        return self.path


@dataclass(frozen=True, slots=True, eq=False)
class DataType:
    """A data type; there is one object for each, compared by itself."""

    id: str
    #: as functions are called after it: `string` of `string-equal`
    name: str
    read: Callable[[str], Value] = field(repr=False)
    write: Callable[[Value], str] = field(default=str, repr=False)

    def __str__(self) -> str:
        return self.name

    def __reduce__(self) -> tuple[Callable[[str], "DataType"], tuple[str]]:
        return data_type, (self.id,)


def _read_boolean(text: str) -> bool:
    found = {"true": True, "1": True, "false": False, "0": False}.get(text)
    if found is None:
        raise _malformed(text, "boolean")
    return found


def _read_integer(text: str) -> int:
    if not _INTEGER.fullmatch(text):
        raise _malformed(text, "integer")
    return int(text)


def _read_double(text: str) -> float:
    if text in _SPECIAL:
        return _SPECIAL[text]
    if not _DOUBLE.fullmatch(text) or len(text) > _LONGEST:
        raise _malformed(text, "double")
    return float(text)


def _write_double(value: float) -> str:
    """Return a number as people write it, with an exponent where it is large or small."""
    return repr(value) if value == 0 or _SMALLEST <= abs(value) < _LARGEST else write_scientific(value)


def write_scientific(value: float) -> str:
    """Return a number in the form that XML Schema calls canonical.

    >>> write_scientific(45.5), write_scientific(-0.001)
    ('4.55E1', '-1.0E-3')
    """
    special = next((word for word, meant in _SPECIAL.items() if meant == value), None)
    if special is not None or math.isnan(value):
        return special or "NaN"
    sign, digits, exponent = Decimal(repr(value)).normalize().as_tuple()
    first, *rest = map(str, digits)
    return f"{'-' if sign else ''}{first}.{''.join(rest) or '0'}E{int(exponent) + len(rest)}"


def _read_hex(text: str) -> bytes:
    if not re.fullmatch(r"(?:[0-9A-Fa-f]{2})*", text, re.ASCII):
        raise _malformed(text, "hexBinary")
    return bytes.fromhex(text)


def _read_base64(text: str) -> bytes:
    try:
        return base64.b64decode("".join(text.split()), validate=True)
    except ValueError:
        raise _malformed(text, "base64Binary") from None


def _read_uri(text: str) -> str:
    if any(letter.isspace() for letter in text):
        raise _malformed(text, "anyURI")
    return text


def _read_path(text: str) -> XPathExpression:
    return XPathExpression(text, "")


def _malformed(text: str, name: str) -> MalformedError:
    return MalformedError("xacml.value", f"`{text[:80]}` is no {name}")


STRING: Final = DataType(f"{XS}string", "string", str)
BOOLEAN: Final = DataType(f"{XS}boolean", "boolean", _read_boolean, lambda value: "true" if value else "false")
INTEGER: Final = DataType(f"{XS}integer", "integer", _read_integer)
DOUBLE: Final = DataType(f"{XS}double", "double", _read_double, _write_double)
TIME: Final = DataType(f"{XS}time", "time", read_time)
DATE: Final = DataType(f"{XS}date", "date", read_date)
DATE_TIME: Final = DataType(f"{XS}dateTime", "dateTime", read_date_time)
DAY_TIME: Final = DataType(f"{XS}dayTimeDuration", "dayTimeDuration", read_day_time_duration)
YEAR_MONTH: Final = DataType(f"{XS}yearMonthDuration", "yearMonthDuration", read_year_month_duration)
URI: Final = DataType(f"{XS}anyURI", "anyURI", _read_uri)
HEX: Final = DataType(f"{XS}hexBinary", "hexBinary", _read_hex, lambda value: value.hex().upper())
BASE64: Final = DataType(
    f"{XS}base64Binary", "base64Binary", _read_base64, lambda value: base64.b64encode(value).decode()
)
MAILBOX: Final = DataType(f"{_XACML_1}rfc822Name", "rfc822Name", read_mailbox)
DIRECTORY: Final = DataType(f"{_XACML_1}x500Name", "x500Name", read_directory_name)
ADDRESS: Final = DataType(f"{_XACML_2}ipAddress", "ipAddress", read_network_address)
HOST: Final = DataType(f"{_XACML_2}dnsName", "dnsName", read_host_name)
XPATH: Final = DataType(f"{_XACML_3}xpathExpression", "xpathExpression", _read_path)

TYPES: Final = (
    STRING, BOOLEAN, INTEGER, DOUBLE, TIME, DATE, DATE_TIME, DAY_TIME, YEAR_MONTH, URI, HEX, BASE64, MAILBOX, DIRECTORY,
    ADDRESS, HOST, XPATH,
)  # fmt: skip

#: how durations were called before 3.0
_BEFORE: Final = "http://www.w3.org/TR/2002/WD-xquery-operators-20020816#"
_BY_ID: Final[Mapping[str, DataType]] = {
    **{one.id: one for one in TYPES},
    **{one.name: one for one in TYPES},
    **{f"{prefix}{one.name}": one for one in (DAY_TIME, YEAR_MONTH) for prefix in (_BEFORE, _XACML_2)},
}


def data_type(type_id: str) -> DataType:
    """Return the data type of an id, or of a short name. Raises `MalformedError` (`xacml.type`)."""
    found = _BY_ID.get(type_id)
    if found is None:
        raise MalformedError("xacml.type", f"`{type_id[:120]}` is not a data type of XACML 3.0")
    return found


def read_value(text: str, of_type: DataType) -> Value:
    """Read a value; space around it counts in a string alone. Raises `MalformedError` (`xacml.value`)."""
    return text if of_type is STRING else of_type.read(" ".join(text.split()) if of_type is not BASE64 else text)


# ----------------------------------------------------------------------------------------------------------------------
# What functions take and give: data types, bags of them, and how a function reports an error.


@dataclass(frozen=True, slots=True)
class Bag:
    """A bag of values of one type."""

    of: DataType

    def __str__(self) -> str:
        return f"bag of {self.of}"


Kind: TypeAlias = DataType | Bag

ERROR: Final = "xacml.processing"
"""The code of what the standard calls a processing error."""


@dataclass(frozen=True, slots=True, eq=False)
class Function:
    """A function: the kinds of its arguments, whether the last one may come any number of times, and of the result.

    `call` takes values and gives one; where it looks `within` the request, it takes the context before them. It raises
    `EvaluationError` (`xacml.processing`; `xacml.value` for texts that are not values), and nothing else.
    """

    id: str
    takes: tuple[Kind, ...]
    gives: Kind
    call: Callable[..., Value] = field(repr=False)
    #: the last kind may come any number of times, and so often at least
    repeated: int | None = None
    #: what it gives depends on the request, and not on its arguments alone
    within: bool = False
    #: refuses a first argument that can mean nothing, where it stands in a policy. Raises `MalformedError`
    check: Callable[[Value], None] | None = field(default=None, repr=False)

    @property
    def name(self) -> str:
        """The last part of its id."""
        return self.id.rpartition(":")[2]

    def kind_at(self, place: int) -> Kind | None:
        """Return the kind of one of the arguments, or nothing if there cannot be so many."""
        if place < len(self.takes):
            return self.takes[place]
        return self.takes[-1] if self.repeated is not None else None

    def accepts(self, kinds: tuple[Kind, ...]) -> bool:
        """Say whether it can be called with arguments of these kinds."""
        if self.repeated is None:
            return kinds == self.takes
        fixed = self.takes[:-1]
        rest = kinds[len(fixed) :]
        return (
            kinds[: len(fixed)] == fixed and len(rest) >= self.repeated and all(one == self.takes[-1] for one in rest)
        )


def failed(message: str) -> EvaluationError:
    """Return the error of a function that has no value for its arguments."""
    return EvaluationError(ERROR, message)
