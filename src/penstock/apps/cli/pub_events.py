"""Events to publish, from the command line and from lines of JSON."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime

from penstock.apps.cli.attributes import given_twice, parse_value, split_pair
from penstock.errors import MalformedError
from penstock.model.instants import parse_instant
from penstock.model.types import EventType
from penstock.model.values import Kind, Scalar


@dataclass(frozen=True, slots=True)
class Draft:
    """An event as it was written: `type` is empty where the line does not say, and values are not looked at yet."""

    values: Mapping[str, object]
    type: str = ""
    id: str = ""
    time: datetime | None = None


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A line that is no event."""

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
        values[name] = None if not written and kind is not Kind.STRING else parse_value(kind, written)
    return values


def of_lines(lines: Iterable[bytes], first: int) -> Iterator[tuple[int, Draft | Unreadable]]:
    """Read lines of JSON, and say which line it was: CloudEvents 1.0, or plain objects of attributes and values."""
    for number, line in enumerate(lines, start=first):
        if line.strip():
            try:
                yield number, _draft(line)
            except MalformedError as error:
                yield number, Unreadable(error)


def _draft(line: bytes) -> Draft:
    try:
        found = json.loads(line, object_pairs_hook=_once)
    except (ValueError, RecursionError):
        raise MalformedError("pub.line", "a line is no JSON", hint="write one object a line") from None
    if not isinstance(found, dict):
        raise MalformedError("pub.line", "a line is no JSON object", hint="write one object a line")
    if "specversion" not in found:
        return Draft(found)
    data, id_, time, type_ = (found.get(name) for name in ("data", "id", "time", "type"))
    if found["specversion"] != "1.0" or not isinstance(data, dict) or not isinstance(type_, str):
        raise MalformedError(
            "pub.line", "a line is no CloudEvent", hint="it needs `specversion` 1.0, `type` and `data`"
        )
    if not isinstance(id_, str) or not (time is None or isinstance(time, str)):
        raise MalformedError("pub.line", "a CloudEvent needs an `id`, and `time` is a text")
    return Draft(data, type_, id_, None if time is None else parse_instant(time))


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key stands twice")
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
    raise MalformedError("value.kind", f"attribute `{name[:80]}`: a list or an object is no value")


def _kind(event_type: EventType, name: str) -> Kind:
    attribute = event_type.by_name.get(name)
    if attribute is None:
        raise MalformedError(
            "event.unknown-attribute",
            f"`{event_type.name.name}` has no attribute `{name[:80]}`",
            hint=f"it has: {', '.join(event_type.by_name) or 'none'}",
        )
    return attribute.spec.kind
