"""Attributes and events as they are written on the command line and in lines of JSON."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from penstock.apps.cli.shared.describe import spec_text, value_text
from penstock.errors import MalformedError, did_you_mean
from penstock.model.events import Event
from penstock.model.instants import parse_instant
from penstock.model.types import AttributeDefinition, EventType
from penstock.model.values import AttributeSpec, Enumerated, Kind, Ranged, Scalar, Value, check_value, checked_value

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
            "cli.attribute",
            f"unknown attribute kind `{kind_text[:40]}`",
            hint=did_you_mean(kind_text, Kind, f"expected one of: {', '.join(Kind)}"),
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
    """Return the error for something that was given twice: the last one must not win silently."""
    return MalformedError("cli.twice", f"`{what[:80]}` is given twice", hint=hint)


_SUCH_AS: Final = {
    Kind.INTEGER: "write a whole number such as 12",
    Kind.FLOAT: "write a number such as 1.5",
    Kind.BOOLEAN: "write true or false",
    Kind.TIMESTAMP: "write a time such as 2026-05-01T12:00Z",
}


def split_pair(written: str, what: str) -> tuple[str, str]:
    """Split `left=right`. Raises `MalformedError` (`cli.pair`)."""
    left, equals, right = written.partition("=")
    if not equals or not left:
        raise MalformedError("cli.pair", f"`{written[:80]}` is not {what}", hint=f"write {what}")
    return left, right


def parse_value(kind: Kind, written: str, name: str = "") -> Value:
    """Read a value of a kind, perhaps of the attribute `name`.

    Raises `MalformedError` (`value.malformed` and what checking the value raises).
    """
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
        of = f"`{name[:80]}`, which is of kind {kind}" if name else f"kind {kind}"
        raise MalformedError("value.malformed", f"`{written[:40]}` is not a value of {of}", hint=_SUCH_AS.get(kind, ""))
    check_value(kind, value)
    return value


# ----------------------------------------------------------------------------------------------------------------------
# Events as they are printed: aligned for people, or each as a CloudEvent in one line, which `pub` and `seal` read.


_NARROWEST: Final = 12


def cloud_event(event: Event, source: str) -> str:
    """Return an event as a line of JSON; values that cannot be read are null."""
    return json.dumps(
        {
            "specversion": "1.0",
            "id": event.id,
            "source": source,
            "type": str(event.type.name),
            "time": plain(event.time),
            "data": {name: plain(value) for name, value in event.values.items()},
        }
    )


class Rows:
    """Align the events of a type below the names of its attributes."""

    def __init__(self, event_type: EventType) -> None:
        names = [attribute.name for attribute in event_type.attributes]
        self._widths = {name: max(_NARROWEST, len(name)) for name in names}

    def heading(self) -> str:
        """Return the line above the events."""
        return "  ".join(["time".ljust(24), *(name.ljust(width) for name, width in self._widths.items())]).rstrip()

    def row(self, event: Event) -> str:
        """Return the line of an event."""
        at = "" if event.time is None else event.time.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        shown = [_shown(value).ljust(self._widths.get(name, 0)) for name, value in event.values.items()]
        return "  ".join([at.ljust(24), *shown]).rstrip()


def plain(value: object) -> object:
    """Return a value for JSON; an instant becomes text."""
    return value if value is None or isinstance(value, str | int | float) else value_text(value)  # type: ignore[arg-type]  # an instant is left


def _shown(value: Scalar) -> str:
    return "-" if value is None else value_text(value)


# ----------------------------------------------------------------------------------------------------------------------
# Events to publish, from the command line and from lines of JSON.


@dataclass(frozen=True, slots=True)
class EventDraft:
    """An event as it was written: `type` is empty if the line has none, and values are not checked yet."""

    values: Mapping[str, object]
    type: str = ""
    id: str = ""
    time: datetime | None = None


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A line that is not an event."""

    error: MalformedError


def of_pairs(event_type: EventType, pairs: Iterable[str]) -> dict[str, Scalar]:
    """Read `name=value` by the kinds of a type; an empty value of another kind than string is null.

    Raises `MalformedError`: `cli.pair`, `cli.twice`, `event.unknown-attribute`, `value.malformed`.
    """
    values: dict[str, Scalar] = {}
    for pair in pairs:
        name, written = split_pair(pair, "`NAME=VALUE`")
        if name in values:
            raise given_twice(name, "give each attribute once")
        kind = _kind(event_type, name)
        values[name] = None if not written and kind is not Kind.STRING else parse_value(kind, written, name)
        check_fits(name, event_type.by_name[name].spec, values[name])
    return values


def check_fits(name: str, spec: AttributeSpec, value: Scalar) -> None:
    """Check the value of an attribute. Raises `MalformedError` as `checked_value`, which says what fits."""
    try:
        checked_value(name, spec, value)
    except MalformedError as error:
        raise MalformedError(error.code, error.message, hint=error.hint or f"`{name}` is {spec_text(spec)}") from None


def of_lines(lines: Iterable[bytes], first: int) -> Iterator[tuple[int, EventDraft | Unreadable]]:
    """Read lines of JSON, with their numbers: CloudEvents 1.0, or plain objects of attributes and values."""
    for number, line in enumerate(lines, start=first):
        if line.strip():
            try:
                yield number, _draft(line)
            except MalformedError as error:
                yield number, Unreadable(error)


def _draft(line: bytes) -> EventDraft:
    try:
        found = json.loads(line, object_pairs_hook=_once)
    except (ValueError, RecursionError):
        raise MalformedError("pub.line", "a line is not JSON", hint="write one object in each line") from None
    if not isinstance(found, dict):
        raise MalformedError("pub.line", "a line is not a JSON object", hint="write one object in each line")
    if "specversion" not in found:
        return EventDraft(found)
    data, id_, time, type_ = (found.get(name) for name in ("data", "id", "time", "type"))
    if found["specversion"] != "1.0" or not isinstance(data, dict) or not isinstance(type_, str):
        raise MalformedError(
            "pub.line", "a line is not a CloudEvent", hint="it needs `specversion` 1.0, `type` and `data`"
        )
    if not isinstance(id_, str) or not (time is None or isinstance(time, str)):
        raise MalformedError("pub.line", "a CloudEvent needs an `id`, and `time` must be a string")
    return EventDraft(data, type_, id_, None if time is None else parse_instant(time))


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key occurs twice")
    return found


def typed(event_type: EventType, values: Mapping[str, object]) -> dict[str, Scalar]:
    """Return the values of a line as those of a type: JSON has no timestamps, and writes 1.0 as 1.

    Raises `MalformedError`: `event.unknown-attribute`, `value.kind`, `date.malformed`.
    """
    return {name: _scalar(_kind(event_type, name), name, value) for name, value in values.items()}


def _scalar(kind: Kind, name: str, value: object) -> Scalar:
    if kind is Kind.TIMESTAMP and isinstance(value, str):
        return parse_instant(value)
    if kind is Kind.FLOAT and type(value) is int and abs(value) <= 1 << 53:
        return float(value)
    if value is None or isinstance(value, str | int | float):
        return value
    raise MalformedError("value.kind", f"attribute `{name[:80]}`: a list or an object is not a value")


def _kind(event_type: EventType, name: str) -> Kind:
    attribute = event_type.by_name.get(name)
    if attribute is None:
        raise MalformedError(
            "event.unknown-attribute",
            f"`{event_type.name.name}` has no attribute `{name[:80]}`",
            hint=did_you_mean(name, event_type.by_name, f"it has: {', '.join(event_type.by_name) or 'none'}"),
        )
    return attribute.spec.kind
