"""Tables of a file that people wrote by hand: what may stand where, and in which line stands what may not."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from enum import StrEnum
from typing import Final, TypeVar

from penstock.codec.yaml_text import Lined
from penstock.errors import MalformedError
from penstock.model.instants import parse_instant
from penstock.model.names import check_attribute_name
from penstock.model.profiles import ProfileSchema, alphabetic, numeric
from penstock.model.values import AttributeSpec, Enumerated, Kind, Ranged, Value
from penstock.moderator.rules.lists import AttributeList, Bound, ListEntry

T = TypeVar("T")
E = TypeVar("E", bound=StrEnum)

_KINDS: Final[Mapping[type, str]] = {
    str: "text",
    list: "a list",
    bool: "true or false",
    int: "a whole number",
    dict: "a mapping",
}


@dataclass(frozen=True, slots=True)
class FileKind:
    """A kind of file: the code of what is wrong with one, and the page that says what is right."""

    code: str
    page: str

    def malformed(self, where: str, wanted: str) -> MalformedError:
        """Return what is raised where something else stands than what is wanted."""
        return self.wrong(where, f"expected {wanted}")

    def wrong(self, where: str, problem: str, **fields: object) -> MalformedError:
        """Return what is raised for something that is wrong at a place."""
        return MalformedError(self.code, f"{where}: {problem}", hint=f"see {self.page}", **fields)


class StrictMapping:
    """A mapping of which every key has to be asked for. Each method raises `MalformedError` with the form's code."""

    def __init__(self, data: object, where: str, form: FileKind, line: int = 0) -> None:
        self.form = form
        self.where = where
        self._lines = data.lines if isinstance(data, Lined) else {}
        self._line = next(iter(self._lines.values()), line)
        if not isinstance(data, dict) or not all(isinstance(key, str) for key in data):
            raise form.malformed(self.place(), "a mapping with names as keys")
        self._left: dict[str, object] = dict(data)
        self._asked: set[str] = set()

    def place(self, key: str | None = None) -> str:
        """Say where a key stands, or the table itself."""
        line = self._line if key is None else self.line(key)
        where = self.where if key is None else f"{self.where}, `{key[:80]}`"
        return f"line {line}: {where}" if line else where

    def line(self, key: str | None = None) -> int:
        """Return the line in which a key stands; 0 where that is not known."""
        return self._line if key is None else self._lines.get(key, self._line)

    def malformed(self, key: str | None, wanted: str) -> MalformedError:
        """Return what is raised where something else stands under a key than what is wanted."""
        return self.form.malformed(self.place(key), wanted)

    @contextmanager
    def at(self, key: str | None = None) -> Iterator[None]:
        """Say in an error about a value under which key, and in which line, the value stands."""
        place = self.place(key)
        try:
            yield
        except MalformedError as error:
            # What a reader within has found has said already where it is.
            if error.code != self.form.code:
                error.message = f"{place}: {error.message}"
            raise

    def has(self, key: str) -> bool:
        """Say whether there is such a key that was not asked for."""
        self._asked.add(key)
        return key in self._left

    def names(self) -> list[str]:
        """Return the keys that were not asked for."""
        return [*self._left]

    def take(self, key: str, kind: type[T], default: T | None = None) -> T:
        """Return a value of a kind."""
        self._asked.add(key)
        if default is None and key not in self._left:
            raise self.form.wrong(self.place(key), f"it is missing ({_KINDS[kind]})")
        value = self._left.pop(key, default)
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is int):
            raise self.malformed(key, _KINDS[kind])
        return value

    def any(self, key: str) -> object:
        """Return a value, whatever it is."""
        self._asked.add(key)
        return self._left.pop(key, None)

    def table(self, key: str) -> "StrictMapping":
        """Return a table within; an empty one where there is none."""
        found = self.any(key)
        return StrictMapping({} if found is None else found, f"{self.where}, `{key[:80]}`", self.form, self.line(key))

    def tables(self, key: str, what: str) -> list["StrictMapping"]:
        """Return the tables of a list, each called by what it is and its number."""
        found = self.take(key, list, [])
        line = self.line(key)
        return [StrictMapping(each, f"{what} {number}", self.form, line) for number, each in enumerate(found, 1)]

    def texts(self, key: str) -> list[str]:
        """Return a list of names."""
        found = self.take(key, list, [])
        if not all(isinstance(each, str) for each in found):
            raise self.malformed(key, "a list of names")
        return found

    def choice(self, key: str, kind: type[E], default: E | None = None) -> E:
        """Return one of some words."""
        text = self.take(key, str, None if default is None else default.value)
        try:
            return kind(text)
        except ValueError as error:
            raise self.malformed(key, f"one of {', '.join(kind)}") from error

    def done(self) -> None:
        """Check that every key was asked for."""
        for key in self._left:
            meant = get_close_matches(key, sorted(self._asked), 1)
            perhaps = f"; did you mean `{meant[0]}`?" if meant else ""
            raise self.form.wrong(self.place(key), f"this means nothing here{perhaps}")


# ----------------------------------------------------------------------------------------------------------------------
# Attributes in files that people wrote by hand: what they may be, what they are, and what is demanded of them.


def read_schema(table: StrictMapping) -> ProfileSchema:
    """Read which attributes profiles have. Raises `MalformedError`: the form's code, and what attributes raise."""
    specs: dict[str, AttributeSpec] = {}
    for name in table.names():
        with table.at(name):
            check_attribute_name(name)
            specs[name] = _spec(table, name)
    return ProfileSchema(specs)


def _spec(table: StrictMapping, name: str) -> AttributeSpec:
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
    raise MalformedError("value.kind", "a list or a mapping is not a value of an attribute", hint="give one value")


def read_list(table: StrictMapping, key: str, written: dict[str, object], schema: ProfileSchema) -> AttributeList:
    """Read an attribute list: attributes, and their values or bounds. Raises `MalformedError` as `AttributeList`."""
    return AttributeList(
        tuple(entry for name, value in written.items() for entry in _entries(table, key, name, value, schema))
    )


def _entries(table: StrictMapping, key: str, name: str, value: object, schema: ProfileSchema) -> list[ListEntry]:
    problem = table.malformed(key, f"for `{name[:80]}` a value, `min`, `max`, or both")
    bounds = value if isinstance(value, dict) else {Bound.IS: value}
    if isinstance(value, dict) and (not value or not set(value) <= {Bound.MIN, Bound.MAX}):
        raise problem
    found = []
    for bound, end in bounds.items():
        known = None if isinstance(end, list | dict) else read_value(schema, name, end)
        if known is None:
            raise problem
        found.append(ListEntry(name, known, Bound(str(bound))))
    return found
