"""Attributes as they are written on the command line: `name:kind`, `name:kind:domain`, `name=value`."""

from penstock.errors import MalformedError
from penstock.model.instants import parse_instant
from penstock.model.types import AttributeDefinition
from penstock.model.values import AttributeSpec, Enumerated, Kind, Ranged, Value, check_value

SYNTAX = "`NAME:KIND`, `NAME:KIND:LOW..HIGH` or `NAME:KIND:ONE|OTHER`"


def parse_spec(written: str) -> AttributeSpec:
    """Read a kind and perhaps a domain.

    >>> parse_spec("integer:0..200").domain
    Ranged(low=0, high=200)

    Raises `MalformedError` (`cli.attribute` and what checking a value raises).
    """
    kind_text, colon, domain = written.partition(":")
    try:
        kind = Kind(kind_text)
    except ValueError:
        raise MalformedError(
            "cli.attribute", f"unknown attribute kind `{kind_text[:40]}`", hint=f"expected one of: {', '.join(Kind)}"
        ) from None
    if not colon:
        return AttributeSpec(kind)
    low, dots, high = domain.partition("..")
    if dots and kind in (Kind.INTEGER, Kind.FLOAT, Kind.TIMESTAMP):
        ends = parse_value(kind, low), parse_value(kind, high)
        return AttributeSpec(kind, Ranged(*ends))  # type: ignore[arg-type]  # these three kinds are ordered
    return AttributeSpec(kind, Enumerated(frozenset(parse_value(kind, member) for member in domain.split("|"))))


def split_attribute(written: str) -> tuple[str, str | None, str]:
    """Split `name[#uid]:spec`. Raises `MalformedError` (`cli.attribute`)."""
    left, colon, spec = written.partition(":")
    name, hash_sign, uid = left.partition("#")
    if not colon or not name or (hash_sign and not uid):
        raise MalformedError("cli.attribute", f"`{written[:80]}` does not declare an attribute", hint=f"write {SYNTAX}")
    return name, uid or None, spec


def parse_attribute(written: str, uid: str) -> AttributeDefinition:
    """Read an attribute; `uid` is for one that names none itself. Raises `MalformedError`."""
    name, own_uid, spec = split_attribute(written)
    return AttributeDefinition(name, own_uid or uid, parse_spec(spec))


def parse_schema(written: tuple[str, ...]) -> dict[str, AttributeSpec]:
    """Read the attributes of a schema. Raises `MalformedError`."""
    schema: dict[str, AttributeSpec] = {}
    for text in written:
        name, _uid, spec = split_attribute(text)
        if name in schema:
            raise given_twice(name, "declare each name once")
        schema[name] = parse_spec(spec)
    return schema


def given_twice(what: str, hint: str) -> MalformedError:
    """Return the error for something that was given twice, where the last one must not win unseen."""
    return MalformedError("cli.twice", f"`{what[:80]}` is given twice", hint=hint)


def split_pair(written: str, what: str) -> tuple[str, str]:
    """Split `left=right`. Raises `MalformedError` (`cli.pair`)."""
    left, equals, right = written.partition("=")
    if not equals or not left:
        raise MalformedError("cli.pair", f"`{written[:80]}` is not {what}", hint=f"write {what}")
    return left, right


def parse_value(kind: Kind, written: str) -> Value:
    """Read a value of a kind. Raises `MalformedError` (`value.malformed` and what checking the value raises)."""
    value: Value | None = None
    try:
        match kind:
            case Kind.STRING:
                value = written
            case Kind.INTEGER:
                value = int(written) if len(written) <= 20 else None
            case Kind.FLOAT:
                value = float(written)
            case Kind.BOOLEAN:
                value = {"true": True, "false": False}.get(written.lower())
            case Kind.TIMESTAMP:
                value = parse_instant(written)
    except ValueError:
        pass
    if value is None:
        raise MalformedError("value.malformed", f"`{written[:40]}` is not a value of kind {kind}")
    check_value(kind, value)
    return value
