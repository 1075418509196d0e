"""Records of the decision log as CloudEvents 1.0: their types, the envelope, and the parts of their data.

Attributes of the envelope that CloudEvents lets others add are passed over; within the data nothing is unknown.
"""

import json
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import Final, NoReturn

from penstock.errors import LimitError, MalformedError
from penstock.model.instants import parse_instant
from penstock.model.limits import Limits

DECIDED: Final = "io.penstock.decision"
ENFORCED: Final = "io.penstock.decision.enforced"
REVOKED: Final = "io.penstock.revocation"
ANSWERED: Final = "io.penstock.pdp.decision"

_ENVELOPE: Final = frozenset({"specversion", "id", "source", "type", "time", "data"})
_OPTIONAL: Final = frozenset({"datacontenttype", "dataschema", "subject"})
_EXTENSION: Final = re.compile(r"[a-z0-9]+", re.ASCII)
URI_REFERENCE: Final = re.compile(r"(?:[A-Za-z0-9._~:/?#\[\]@!$&'()*+,;=-]|%[0-9A-Fa-f]{2})+", re.ASCII)


def parsed(text: str | bytes, limits: Limits) -> object:
    """Read one record as JSON. Raises `LimitError` (`log.limit`) and `MalformedError` (`log.json`)."""
    if len(text) > limits.record_bytes:
        raise LimitError("log.limit", f"a record is longer than {limits.record_bytes} bytes")
    try:
        return json.loads(text, object_pairs_hook=_once, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise MalformedError("log.json", "a record is not JSON", hint="expected one CloudEvent a line") from error


@contextmanager
def named_field() -> Iterator[None]:
    """Turn what is wrong with a part of a record into `log.field`."""
    try:
        yield
    except ValueError as error:
        raise wrong_field("action", "the action or the effect is not one that Penstock knows") from error
    except MalformedError as error:
        if error.code.startswith("log."):
            raise
        raise MalformedError("log.field", f"a part of a record is malformed: {error.message}") from error


def open_envelope(event: object, *types: str) -> tuple[Mapping[str, object], Mapping[str, object]]:
    """Return the attributes of a CloudEvent of one of some types, and its data.

    Raises `MalformedError`: `log.envelope`, `log.field`.
    """
    if not isinstance(event, dict) or not all(isinstance(name, str) for name in event):
        raise MalformedError("log.envelope", "a record is no JSON object")
    missing = _ENVELOPE - event.keys()
    if missing:
        raise MalformedError("log.envelope", f"a record lacks `{min(missing)}`")
    for name in event.keys() - _ENVELOPE - _OPTIONAL:
        if not _EXTENSION.fullmatch(name):
            raise MalformedError("log.envelope", f"`{name[:80]}` is no name of a CloudEvents attribute")
    if event["specversion"] != "1.0" or event.get("datacontenttype", "application/json") != "application/json":
        raise MalformedError("log.envelope", "a record is a CloudEvent 1.0 with JSON data")
    if event["type"] not in types:
        raise MalformedError("log.envelope", "a CloudEvent is of another type", hint=f"expected `{types[0]}`")
    if not isinstance(event["data"], dict):
        raise wrong_field("data", "expected an object")
    return event, event["data"]


def cloud_event(id_: str, source: str, kind: str, time: datetime, data: Mapping[str, object]) -> dict[str, object]:
    """Return a CloudEvent 1.0 in structured mode, as plain data."""
    return {
        "specversion": "1.0",
        "id": id_,
        "source": source,
        "type": kind,
        "time": written(time),
        "datacontenttype": "application/json",
        "data": data,
    }


def json_line(event: Mapping[str, object]) -> str:
    """Write plain data as one line of JSON."""
    return json.dumps(event, ensure_ascii=False, separators=(",", ":"))


def check_names(found: Mapping[str, object], needed: Collection[str], allowed: Collection[str] = ()) -> None:
    """Check which names an object has. Raises `MalformedError` (`log.field`), as all that follow."""
    if missing := set(needed) - found.keys():
        raise wrong_field(min(missing), "it is missing")
    if unknown := found.keys() - set(needed) - set(allowed):
        raise wrong_field(min(unknown), "it is not known")


def text_of(found: Mapping[str, object], name: str) -> str:
    """Return a part that is a text."""
    value = found[name]
    if not isinstance(value, str):
        raise wrong_field(name, "expected a text")
    return value


def texts_of(found: Mapping[str, object], name: str) -> tuple[str, ...]:
    """Return a part that is a list of texts."""
    value = found[name]
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise wrong_field(name, "expected a list of texts")
    return tuple(value)


def count_of(found: Mapping[str, object], name: str) -> int:
    """Return a part that is a whole number."""
    value = found[name]
    if type(value) is not int:
        raise wrong_field(name, "expected a whole number")
    return value


def time_of(text: str) -> datetime:
    """Read an instant."""
    # RFC 3339 asks for the zone; what has none would be read as UTC, which is a guess.
    if "T" not in text or not re.search(r"(?:Z|[+-]\d\d:\d\d)$", text):
        raise wrong_field("time", "expected a date and time with a zone")
    return parse_instant(text)


def written(moment: datetime) -> str:
    """Write an instant that is in UTC."""
    return f"{moment.replace(tzinfo=None).isoformat(timespec='microseconds')}Z"


def is_text(text: str) -> bool:
    """Say whether a text can be written as Unicode."""
    return text.isascii() or not any("\ud800" <= character <= "\udfff" for character in text)


def wrong_field(name: str, why: str) -> MalformedError:
    """Return the error for a part of a record."""
    return MalformedError("log.field", f"`{name[:80]}` of a record cannot be used", hint=why, field=name[:80])


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name stands twice in an object")
    return found


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")
