"""Data types of XACML 3.0 (appendix A.2, B.3): how each is written, read and compared.

A value is a plain Python object; its type is stated in the policy or in the request. Equal objects of one type are
equal values, so that bags are searched and compared directly. Names and addresses (mailboxes, X.500 names, hosts,
networks) have their own comparison and are written as they were read (A.3.9).
"""

import base64
import ipaddress
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Final, TypeAlias

from penstock.errors import EvaluationError, MalformedError, did_you_mean
from penstock.policy.language.times import (
    read_date,
    read_date_time,
    read_day_time_duration,
    read_time,
    read_year_month_duration,
)

_LONGEST_HOST: Final = 255
_LAST_PORT: Final = 65_535
#: of a mailbox's host: parts with dots between them, none of them empty
_DOMAIN: Final = r"[^@.\s]+(?:\.[^@.\s]+)*"
_MAIL: Final = re.compile(rf"[^@\s]+@{_DOMAIN}")
_MAIL_PATTERN: Final = re.compile(rf"(?:[^@\s]+@|\.)?{_DOMAIN}")
_PORTS: Final = re.compile(r"([0-9]{1,5})?(-)?([0-9]{1,5})?", re.ASCII)
_HOST: Final = re.compile(
    r"(?:\*|(?:\*\.)?[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?(?:\.[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?)*)\.?",
    re.ASCII,
)
_ESCAPED: Final = re.compile(r"\\([0-9A-Fa-f]{2})|\\(.)")


@dataclass(frozen=True, slots=True)
class Mailbox:
    """An `rfc822Name`: the local part as written, and the host in lower case."""

    local: str
    host: str
    text: str = field(compare=False)

    def __str__(self) -> str:
        return self.text


def read_mailbox(text: str) -> Mailbox:
    """Read an `rfc822Name`. Raises `MalformedError` (`xacml.value`)."""
    if not _MAIL.fullmatch(text):
        raise MalformedError("xacml.value", f"`{text[:80]}` is not a rfc822Name")
    local, _, host = text.partition("@")
    return Mailbox(local, host.lower(), text)


def check_mailbox_pattern(pattern: str) -> None:
    """Check that a pattern can match a mailbox. Raises `MalformedError` (`xacml.value`)."""
    if not _MAIL_PATTERN.fullmatch(pattern):
        raise MalformedError("xacml.value", f"`{pattern[:80]}` is not an rfc822Name, a domain, or a dot and a domain")


def mailbox_matches(pattern: str, mailbox: Mailbox) -> bool:
    """Return whether a mailbox matches a pattern (A.3.14). Raises `MalformedError` (`xacml.value`) if it is not one.

    `ann@sun.com` matches that mailbox, `sun.com` any at that host, `.sun.com` any at that host or a subdomain.
    """
    check_mailbox_pattern(pattern)
    if "@" in pattern:
        return read_mailbox(pattern) == mailbox
    domain = pattern.lower().removeprefix(".")
    below = pattern.startswith(".") and mailbox.host.endswith(f".{domain}")
    return below or mailbox.host == domain


@dataclass(frozen=True, slots=True)
class DirectoryName:
    """An `x500Name`: its relative names, most specific first, in a form for comparison."""

    parts: tuple[frozenset[tuple[str, str]], ...]
    text: str

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DirectoryName) and self.parts == other.parts

    def __hash__(self) -> int:
        return hash(self.parts)

    def __str__(self) -> str:
        return self.text

    def check_parts(self) -> None:
        """Check that it has parts. Raises `MalformedError` (`xacml.value`)."""
        if not self.parts:
            raise MalformedError("xacml.value", "an x500Name without parts matches no names")

    def ends(self, other: "DirectoryName") -> bool:
        """Return whether another name ends with it. Raises `MalformedError` (`xacml.value`) if it has no parts."""
        self.check_parts()
        return other.parts[-len(self.parts) :] == self.parts


def read_directory_name(text: str) -> DirectoryName:
    """Read an `x500Name` as RFC 4514 writes it. Raises `MalformedError` (`xacml.value`)."""
    parts = _split(text, ",;") if text.strip() else []
    return DirectoryName(tuple(_relative(part, text) for part in parts), text)


def _relative(part: str, whole: str) -> frozenset[tuple[str, str]]:
    found = set()
    for pair in _split(part, "+"):
        kind, sign, value = pair.partition("=")
        kind = kind.strip().lower()
        if not sign or not kind:
            raise MalformedError("xacml.value", f"`{whole[:80]}` is not a x500Name")
        found.add((kind.removeprefix("oid."), " ".join(_unescape(value.strip()).lower().split())))
    return frozenset(found)


def _split(text: str, at: str) -> list[str]:
    """Split at separators that are neither quoted nor escaped."""
    parts, begun, quoted, escaped = [], 0, False, False
    for place, letter in enumerate(text):
        if escaped:
            escaped = False
        elif letter == "\\":
            escaped = True
        elif letter == '"':
            quoted = not quoted
        elif letter in at and not quoted:
            parts.append(text[begun:place])
            begun = place + 1
    return [*parts, text[begun:]]


def _unescape(value: str) -> str:
    if len(value) > 1 and value[0] == value[-1] == '"':
        value = value[1:-1]
    data = b"".join(
        bytes.fromhex(found[1]) if found[1] else (found[2] or found[0]).encode("utf-8", "surrogatepass")
        for found in re.finditer(rf"{_ESCAPED.pattern}|[^\\]|\\", value, re.DOTALL)
    )
    return data.decode("utf-8", "replace")


@dataclass(frozen=True, slots=True)
class Ports:
    """A range of ports; a missing end is open."""

    first: int | None = None
    last: int | None = None


@dataclass(frozen=True, slots=True)
class NetworkAddress:
    """An `ipAddress`: an address, optionally with a mask and ports."""

    address: ipaddress.IPv4Address | ipaddress.IPv6Address
    mask: ipaddress.IPv4Address | ipaddress.IPv6Address | None
    ports: Ports
    text: str = field(compare=False)

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class HostName:
    """A `dnsName`: a host, or with `*.` all subdomains of a domain; optionally with ports."""

    host: str
    ports: Ports
    text: str = field(compare=False)

    def __str__(self) -> str:
        return self.text


def read_network_address(text: str) -> NetworkAddress:
    """Read an `ipAddress`. Raises `MalformedError` (`xacml.value`)."""
    pattern = (
        r"\[([^\]]*)\](?:/\[([^\]]*)\])?(?::(.*))?" if text.startswith("[") else r"([^/:]*)(?:/([^:]*))?(?::(.*))?"
    )
    found = re.fullmatch(pattern, text)
    if found is None:
        raise MalformedError("xacml.value", f"`{text[:80]}` is not an ipAddress")
    kind = ipaddress.IPv6Address if text.startswith("[") else ipaddress.IPv4Address
    try:
        return NetworkAddress(kind(found[1]), None if found[2] is None else kind(found[2]), _ports(found[3]), text)
    except ValueError:
        raise MalformedError("xacml.value", f"`{text[:80]}` is not an ipAddress") from None


def read_host_name(text: str) -> HostName:
    """Read a `dnsName`. Raises `MalformedError` (`xacml.value`)."""
    host, sign, ports = text.partition(":")
    if len(host) > _LONGEST_HOST or not _HOST.fullmatch(host):
        raise MalformedError("xacml.value", f"`{text[:80]}` is not a dnsName")
    try:
        return HostName(host.lower(), _ports(ports if sign else None), text)
    except ValueError:
        raise MalformedError("xacml.value", f"`{text[:80]}` is not a dnsName") from None


def _ports(text: str | None) -> Ports:
    if text is None:
        return Ports()
    found = _PORTS.fullmatch(text)
    if found is None or not (found[1] or found[3]):
        raise ValueError
    first, last = (None if part is None else int(part) for part in (found[1], found[3]))
    if not found[2]:
        last = first
    if any(port is not None and port > _LAST_PORT for port in (first, last)):
        raise ValueError
    return Ports(first, last)


Value: TypeAlias = Any
"""A value of a data type, or a bag of values, which is a tuple. The expression that it comes from has its kind."""

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
    """An `xpathExpression`: a path into the content of a category, with its namespace prefixes."""

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
    #: the name in function ids: `string` in `string-equal`
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
    """Return the usual notation of a number, with an exponent if it is large or small."""
    return repr(value) if value == 0 or _SMALLEST <= abs(value) < _LARGEST else write_scientific(value)


def write_scientific(value: float) -> str:
    """Return a number in XML Schema's canonical form.

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
    return MalformedError("xacml.value", f"`{text[:80]}` is not a valid {name}")


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

#: names of durations before 3.0
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
        hint = did_you_mean(type_id, (one.name for one in TYPES))
        raise MalformedError("xacml.type", f"`{type_id[:120]}` is not a data type of XACML 3.0", hint=hint)
    return found


def read_value(text: str, of_type: DataType) -> Value:
    """Read a value; surrounding space is significant only in strings. Raises `MalformedError` (`xacml.value`)."""
    return text if of_type is STRING else of_type.read(" ".join(text.split()) if of_type is not BASE64 else text)


# ----------------------------------------------------------------------------------------------------------------------
# Kinds of arguments and results, functions, and their errors.


@dataclass(frozen=True, slots=True)
class Bag:
    """A bag of values of one type."""

    of: DataType

    def __str__(self) -> str:
        return f"bag of {self.of}"


Kind: TypeAlias = DataType | Bag

ERROR: Final = "xacml.processing"
"""The code of the standard's processing error."""


@dataclass(frozen=True, slots=True, eq=False)
class Function:
    """A function: the kinds of its arguments, whether the last one can be repeated, and the kind of its result.

    `call` takes values and returns one; if it looks `within` the request, the context comes first. It raises only
    `EvaluationError` (`xacml.processing`; `xacml.value` for texts that are not values).
    """

    id: str
    takes: tuple[Kind, ...]
    gives: Kind
    call: Callable[..., Value] = field(repr=False)
    #: if set, the last kind can be repeated, with at least so many occurrences
    repeated: int | None = None
    #: the result depends on the request, not only on the arguments
    within: bool = False
    #: checks a first argument that is a literal in a policy. Raises `MalformedError`
    check: Callable[[Value], None] | None = field(default=None, repr=False)

    @property
    def name(self) -> str:
        """The last part of its id."""
        return self.id.rpartition(":")[2]

    def kind_at(self, place: int) -> Kind | None:
        """Return the kind of one of the arguments; None if there cannot be so many."""
        if place < len(self.takes):
            return self.takes[place]
        return self.takes[-1] if self.repeated is not None else None

    def accepts(self, kinds: tuple[Kind, ...]) -> bool:
        """Return whether it can be called with arguments of these kinds."""
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
