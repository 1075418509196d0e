"""Attributes in files that people wrote by hand: what they may be, what they are, and what is demanded of them."""

from penstock.errors import MalformedError
from penstock.model.instants import parse_instant
from penstock.model.names import check_attribute_name
from penstock.model.profiles import ProfileSchema, alphabetic, numeric
from penstock.model.values import AttributeSpec, Enumerated, Kind, Ranged, Value
from penstock.moderator.file_tables import Table
from penstock.moderator.lists import AttributeList, Bound, Entry


def read_schema(table: Table) -> ProfileSchema:
    """Read which attributes profiles have. Raises `MalformedError`: the form's code, and what attributes raise."""
    specs: dict[str, AttributeSpec] = {}
    for name in table.names():
        with table.at(name):
            check_attribute_name(name)
            specs[name] = _spec(table, name)
    return ProfileSchema(specs)


def _spec(table: Table, name: str) -> AttributeSpec:
    match table.any(name):
        case list(values) if values and all(isinstance(value, str) for value in values):
            return alphabetic(*values)
        case {"min": int() | float() as low, "max": int() | float() as high, **rest} if not rest:
            return numeric(low, high)
        case str(kind) if kind in [*Kind]:
            return AttributeSpec(Kind(kind))
        case {"kind": str(kind), "values": list(values), **rest} if kind in [*Kind] and not rest:
            members = [_as_kind(Kind(kind), value) for value in values]
            return AttributeSpec(Kind(kind), Enumerated(frozenset(members)))
        case {"kind": str(kind), "min": low, "max": high, **rest} if kind in [*Kind] and not rest:
            ends = (_as_kind(Kind(kind), low), _as_kind(Kind(kind), high))
            return AttributeSpec(Kind(kind), Ranged(*ends))  # type: ignore[arg-type]  # the spec checks its ends
        case []:
            return alphabetic()
    raise table.malformed(name, "a list of values, `min` and `max`, or a kind")


def read_value(schema: ProfileSchema, name: str, value: object) -> Value | None:
    """Read a value as its attribute has it: what YAML cannot write is text there. Raises `MalformedError`."""
    if value is None:
        return None
    spec = schema.attributes.get(name)
    return _scalar(value) if spec is None else _as_kind(spec.kind, value)


def _as_kind(kind: Kind, value: object) -> Value:
    found = _scalar(value)
    if kind is Kind.TIMESTAMP and isinstance(found, str):
        return parse_instant(found)
    if kind is Kind.FLOAT and isinstance(found, int) and not isinstance(found, bool):
        return float(found)
    return found


def _scalar(value: object) -> Value:
    if isinstance(value, bool | int | float | str):
        return value
    raise MalformedError("value.kind", "a list or a mapping is no value of an attribute", hint="give one value")


def read_list(table: Table, key: str, written: dict[str, object], schema: ProfileSchema) -> AttributeList:
    """Read an attribute list: attributes, and their values or bounds. Raises `MalformedError` as `AttributeList`."""
    return AttributeList(
        tuple(entry for name, value in written.items() for entry in _entries(table, key, name, value, schema))
    )


def _entries(table: Table, key: str, name: str, value: object, schema: ProfileSchema) -> list[Entry]:
    problem = table.malformed(key, f"for `{name[:80]}` a value, `min`, `max`, or both")
    bounds = value if isinstance(value, dict) else {Bound.IS: value}
    if isinstance(value, dict) and (not value or not set(value) <= {Bound.MIN, Bound.MAX}):
        raise problem
    found = []
    for bound, end in bounds.items():
        known = None if isinstance(end, list | dict) else read_value(schema, name, end)
        if known is None:
            raise problem
        found.append(Entry(name, known, Bound(str(bound))))
    return found
