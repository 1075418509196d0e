"""Attribute values as S-expressions: `(string "AE05 XYZ")`, `(integer "42")`, … One value has one written form.

string     UTF-8                     float      Python's shortest repr, never NaN
integer    decimal, 64 bits          boolean    true | false
timestamp  RFC 2693 date in UTC, a fraction only where there is one
"""

from datetime import datetime

from penstock.codec.sexp import SExp
from penstock.errors import MalformedError, did_you_mean
from penstock.model.instants import format_date, parse_date
from penstock.model.values import AttributeSpec, Enumerated, Kind, Ranged, Value, ValueDomain, check_value, kind_of


def value_to_sexp(value: Value) -> SExp:
    """Write a value. Raises `MalformedError` (`value.kind`, `value.range`, `value.text`, `value.zone`, `value.nan`)."""
    kind = kind_of(value)
    check_value(kind, value)
    return (kind.encode(), _write(value))


def _write(value: Value) -> bytes:
    # A subclass (an enumeration, a NumPy float) may print differently from the value that it is.
    if isinstance(value, bool):
        return b"true" if value else b"false"
    if isinstance(value, datetime):
        return format_date(value)
    if isinstance(value, float):
        if value != value:  # noqa: PLR0124  # NaN is the value unequal to itself
            raise MalformedError("value.nan", "NaN cannot be written down", hint="use null for a missing number")
        return float.__repr__(value).encode()
    if isinstance(value, int):
        return int.__repr__(value).encode()
    return str.__str__(value).encode()


def value_from_sexp(value: SExp) -> Value:
    """Read a value. Raises `MalformedError` (`value.malformed` and errors of checking the value)."""
    match value:
        case (bytes(kind), bytes(written)):
            found = _read(kind, written)
            if found is not None:
                check_value(kind_of(found), found)
                # One written form only: signatures are over bytes, and equal grants must be equal bytes.
                if value_to_sexp(found) == value:
                    return found
    raise MalformedError(
        "value.malformed", "not an attribute value", hint='expected for example `(string "text")` or `(integer "42")`'
    )


def _read(kind: bytes, written: bytes) -> Value | None:
    try:
        match kind:
            case b"string":
                return written.decode()
            case b"integer":
                return int(written) if len(written) <= 20 else None
            case b"float":
                return float(written) if len(written) <= 32 else None
            case b"boolean":
                return {b"true": True, b"false": False}.get(written)
            case b"timestamp":
                return parse_date(written)
    except ValueError:
        pass
    return None


def spec_to_sexp(spec: AttributeSpec) -> tuple[SExp, ...]:
    """Write the permitted values of an attribute: its kind, then its domain if it has one."""
    kind = spec.kind.encode()
    match spec.domain:
        case None:
            return (kind,)
        case Enumerated(values):
            return (kind, (b"one-of", *sorted(_write(value) for value in values)))
        case Ranged(low, high):
            return (kind, (b"range", _write(low), _write(high)))


def spec_from_sexp(parts: tuple[SExp, ...]) -> AttributeSpec:
    """Read the permitted values of an attribute.

    Raises `MalformedError` (`value.malformed`, `value.domain` and errors of checking a value).
    """
    match parts:
        case (bytes(kind),):
            return AttributeSpec(_kind(kind))
        case (bytes(kind), (b"one-of", *values)):
            members = frozenset(value_from_sexp((kind, value)) for value in values)
            return _exactly(AttributeSpec(_kind(kind), Enumerated(members)), parts)
        case (bytes(kind), (b"range", low, high)):
            domain: ValueDomain = Ranged(_number(kind, low), _number(kind, high))
            return _exactly(AttributeSpec(_kind(kind), domain), parts)
    raise MalformedError(
        "value.malformed",
        "not the type of an attribute",
        hint="expected a kind, then `(one-of …)` or `(range low high)`",
    )


def _exactly(spec: AttributeSpec, parts: tuple[SExp, ...]) -> AttributeSpec:
    if spec_to_sexp(spec) != parts:
        raise MalformedError("value.malformed", "a domain is not written in its one form", hint="sort its values")
    return spec


def _kind(kind: bytes) -> Kind:
    word = kind.decode("ascii", "replace")
    try:
        return Kind(word)
    except ValueError:
        raise MalformedError(
            "value.malformed",
            f"`{kind[:20]!r}` is not a kind of value",
            hint=did_you_mean(word, Kind, f"known: {', '.join(Kind)}"),
        ) from None


def _number(kind: bytes, written: SExp) -> int | float | datetime:
    value = value_from_sexp((kind, written))
    if isinstance(value, str):
        raise MalformedError("value.domain", "a string has no range", hint="list the values instead")
    return value
