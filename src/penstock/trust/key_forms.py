"""The forms that statements about keys have in common."""

from collections.abc import Iterator
from datetime import datetime
from typing import Final

from penstock.codec.sexp import SExp
from penstock.codec.sexp import field as sexp_field
from penstock.model.instants import format_date, parse_date
from penstock.model.principals import Principal
from penstock.trust.signed import malformed

_FOREVER: Final = b""


def principal_field(name: bytes, principal: Principal) -> SExp:
    """Return a field with a principal."""
    return (name, str(principal).encode())


def count(value: int) -> bytes:
    """Return a number as it is written."""
    return str(value).encode()


def read_octets(value: SExp) -> bytes:
    """Read octets. Raises `MalformedError`."""
    if not isinstance(value, bytes):
        raise malformed("octets are an atom")
    return value


def read_list(body: SExp, name: bytes) -> tuple[SExp, ...]:
    """Return the values of a field. Raises `MalformedError`."""
    found = sexp_field(body, name)
    if found is None:
        raise malformed(f"a statement has one `({name.decode()} …)`")
    return found[1:]


def read_two(value: SExp) -> tuple[SExp, SExp]:
    """Return the two values of a list. Raises `MalformedError`."""
    if not isinstance(value, tuple) or len(value) != 2:
        raise malformed("two values are a list of two")
    return value[0], value[1]


def read_pair(body: SExp, name: bytes) -> tuple[SExp, SExp]:
    """Return the two values of a field. Raises `MalformedError`."""
    return read_two(read_list(body, name))


def read_pairs(body: SExp, name: bytes) -> Iterator[tuple[SExp, SExp]]:
    """Return the pairs in a field. Raises `MalformedError`."""
    return map(read_two, read_list(body, name))


def write_end(until: datetime | None) -> bytes:
    """Write when a right ends, if it does."""
    return _FOREVER if until is None else format_date(until)


def read_end(value: SExp) -> datetime | None:
    """Read what `write_end` wrote. Raises `MalformedError`."""
    return None if value == _FOREVER else parse_date(read_octets(value))
